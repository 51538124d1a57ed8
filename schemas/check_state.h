/* What every buffer of a program holds while the checker walks its stream, and who touched it. Private to the
 * checker.
 *
 * Contents are named by the operation of the model that made them (1 + its place in the model's list of all
 * operations; 0: nothing). A buffer of step rows has a cell per tile, any other one cell. A cell can hold a
 * result of which only some columns are written yet; the other columns then still hold what was there before. */
#ifndef PS_SCHEMAS_CHECK_STATE_H
#define PS_SCHEMAS_CHECK_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "schemas/check_order.h"
#include "schemas/plan.h"

enum { PS_CHECK_PARTS = 16, PS_CHECK_ACCESSES = 32 };

/* Instructions that touched something and are not known to have ended. */
typedef struct ps_accesses {
    uint32_t n;
    uint64_t at[PS_CHECK_ACCESSES];
} ps_accesses;

typedef struct ps_part {
    uint64_t begin, end; /* columns */
} ps_part;

typedef struct ps_cell {
    uint64_t epoch;      /* of the buffer when this was written: an older one means overwritten */
    uint32_t id, before; /* content; content of the columns not yet written */
    uint32_t tile;       /* that the content is of */
    uint32_t n_parts;    /* 0: all columns written */
    ps_part parts[PS_CHECK_PARTS];
    ps_accesses writers; /* of id */
    ps_accesses readers; /* of id once it was whole */
    ps_accesses others;  /* readers of `before` since writing of parts began */
    ps_accesses makers;  /* writers of `before` */
} ps_cell;

typedef struct ps_buffer_state {
    uint64_t begin, end; /* bytes in its arena */
    uint64_t epoch;
    uint32_t overlap0, n_overlaps; /* in ps_check_state.overlaps: buffers that share bytes with it */
    uint32_t overwritten_by;       /* buffer whose write ended the last content, UINT32_MAX: none */
    ps_accesses accesses;          /* all, of every cell */
    ps_cell *cells;
} ps_buffer_state;

typedef struct ps_check_state {
    const ps_program *program;
    ps_order order;
    uint32_t n_tiles;
    ps_buffer_state *buffers;
    uint32_t *overlaps;
} ps_check_state;

/* Everything of the tier for steps of n_tiles tiles, from `arena`. False when out of memory. Offsets and
 * sizes of buffers have been checked. */
bool ps_check_state_init(ps_check_state *s, ps_arena *arena, const ps_program *program, const ps_tier *tier,
                         uint32_t n_tiles);
/* Bytes of a buffer at a tier, false on overflow. */
bool ps_buffer_bytes(const ps_plan_buffer *buffer, const ps_tier *tier, uint64_t *out_bytes);

/* Add the present instruction; false when too many are open at once. */
bool ps_accesses_add(ps_accesses *a, const ps_order *order);
/* Have all of them ended? If not, *out is one that has not. */
bool ps_accesses_ended(const ps_accesses *a, const ps_order *order, uint64_t *out);

/* The present instruction reads columns [begin, end) of content `id` (of the tile, for single cells) in a cell.
 * in_place: it writes the same columns too. On false *why says what is wrong; *other is an instruction or
 * content that it concerns. */
typedef enum ps_check_why {
    PS_WHY_OK,
    PS_WHY_EMPTY,       /* never written, or overwritten by another buffer */
    PS_WHY_STALE,       /* holds another content: *other */
    PS_WHY_PARTIAL,     /* not all of the columns are written */
    PS_WHY_WRITE_RACE,  /* instruction *other, which writes it, may still run */
    PS_WHY_READ_RACE,   /* instruction *other, which reads it, may still run */
    PS_WHY_SHARED_RACE, /* instruction *other uses a buffer that shares bytes and may still run */
    PS_WHY_TWICE,       /* columns written twice */
    PS_WHY_CROWDED      /* more than the checker follows */
} ps_check_why;
ps_check_why ps_check_read(ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id, uint64_t begin,
                           uint64_t end, bool in_place, uint64_t *other);
ps_check_why ps_check_write(ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id, uint64_t begin,
                            uint64_t end, uint64_t *other);
/* Content of a cell, 0 if none. */
uint32_t ps_check_content(const ps_check_state *s, uint16_t buffer, uint32_t tile);
/* Is content id whole in the cell? No record of an access is made. */
bool ps_check_holds(const ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id);

#endif
