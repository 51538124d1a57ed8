/* What every buffer of a program holds while the checker walks its stream, and who touched it. Private to the
 * checker.
 *
 * Contents are named by the operation of the model that made them (1 + its place in the model's list of all
 * operations; 0: nothing) and, where they are a partial sum of it, by which (check_sums.h; 0: the whole result). A buffer of
 * step rows has a cell per tile, any other one cell; slots have a state of their own. A cell is a list of segments:
 * columns of the value, what they hold, and who wrote and read that. */
#ifndef PS_SCHEMAS_CHECK_STATE_H
#define PS_SCHEMAS_CHECK_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "schemas/check_order.h"
#include "schemas/plan.h"

enum { PS_CHECK_PARTS = 16 };

typedef struct ps_part {
    uint32_t begin, end; /* columns of a value, or of an inner dimension, or experts */
} ps_part;

typedef struct ps_segment {
    ps_part cols;
    uint32_t id, sum, tile; /* the content, of which tile */
    ps_accesses writers, readers;
} ps_segment;

typedef struct ps_cell {
    uint64_t epoch; /* of the buffer when this was written: an older one means overwritten */
    uint32_t n, cap;
    ps_segment *segments; /* ascending, apart */
} ps_cell;

typedef enum ps_slot_kind { PS_SLOT_EMPTY, PS_SLOT_WEIGHT, PS_SLOT_KV } ps_slot_kind;

typedef struct ps_slot {
    ps_slot_kind kind;
    ps_weight_range range; /* WEIGHT: n_cols 0 where all */
    uint32_t layer;        /* KV: of which layer */
    bool stored, brought;  /* KV: rows of this step are in it; and are home */
    uint64_t epoch;        /* of the buffer when it was filled */
    uint32_t filled;       /* how often so far */
    bool in_tail;          /* last by the tail */
    uint32_t tail;         /* `filled` when the tail read what it had not filled itself, 0: it did not */
    ps_accesses writers, readers;
} ps_slot;

typedef struct ps_buffer_state {
    uint64_t begin, end; /* bytes in its arena */
    uint64_t epoch;
    uint32_t overlap0, n_overlaps; /* in ps_check_state.overlaps: buffers that share bytes with it */
    uint32_t overwritten_by;       /* buffer whose write ended the last content, UINT32_MAX: none */
    ps_accesses accesses;          /* all, of every cell */
    ps_cell *cells;                /* NULL for slots */
    ps_slot *slot;                 /* NULL for others */
} ps_buffer_state;

typedef struct ps_check_state {
    const ps_program *program;
    ps_arena *arena;
    ps_order order;
    uint32_t n_tiles;
    ps_buffer_state *buffers;
    uint32_t *overlaps;
    ps_segment spare[PS_CHECK_PARTS + 2]; /* a cell being rewritten */
} ps_check_state;

/* Everything of the tier for steps of n_tiles tiles, from `arena`, which must outlive it. False when out of memory.
 * Offsets and sizes of buffers have been checked. */
bool ps_check_state_init(ps_check_state *s, ps_arena *arena, const ps_program *program, const ps_tier *tier,
                         uint32_t n_tiles);
/* Bytes of a buffer at a tier, false on overflow. */
bool ps_buffer_bytes(const ps_plan_buffer *buffer, const ps_tier *tier, uint64_t *out_bytes);
/* Do two buffers, not the same, share bytes? */
bool ps_check_overlap(const ps_check_state *s, uint32_t a, uint32_t b);

/* The present instruction reads or writes columns of a value in a buffer that holds them: content `id` and `sum`, of the
 * tile. An instruction that works in place reads first. On other than OK, *other is an instruction or content that
 * it concerns. */
typedef enum ps_check_why {
    PS_WHY_OK,
    PS_WHY_EMPTY,       /* never written, or overwritten by another buffer */
    PS_WHY_STALE,       /* holds another content: *other */
    PS_WHY_SUM,         /* holds another partial sum of it, or the whole */
    PS_WHY_PARTIAL,     /* not all of the columns are written */
    PS_WHY_WRITE_RACE,  /* instruction *other, which writes it, may still run */
    PS_WHY_READ_RACE,   /* instruction *other, which reads it, may still run */
    PS_WHY_SHARED_RACE, /* instruction *other uses a buffer that shares bytes and may still run */
    PS_WHY_TWICE,       /* columns written twice */
    PS_WHY_CROWDED,     /* more than the checker follows */
    PS_WHY_NOMEM
} ps_check_why;
ps_check_why ps_check_read(ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id, uint32_t sum,
                           ps_part cols, uint64_t *other);
ps_check_why ps_check_write(ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id, uint32_t sum,
                            ps_part cols, uint64_t *other);
/* Content of a column, 0 if none; *out_sum: which partial sum. No record of an access is made. */
uint32_t ps_check_content(const ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t col,
                          uint32_t *out_sum);
/* Is content id whole in the buffer, all its columns? */
bool ps_check_holds(const ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id);

/* The slot holds what it was filled with last, and nobody has overwritten it. */
bool ps_slot_alive(const ps_check_state *s, uint16_t buffer);
/* The present instruction fills a slot; what it holds is for the caller to say. */
ps_check_why ps_slot_fill(ps_check_state *s, uint16_t buffer, uint64_t *other);
/* It reads a slot that is alive. */
ps_check_why ps_slot_read(ps_check_state *s, uint16_t buffer, uint64_t *other);
/* It adds rows to the KV in a slot that is alive; `ring`: they may take the place of others. */
ps_check_why ps_slot_store(ps_check_state *s, uint16_t buffer, bool ring, uint64_t *other);

#endif
