/* Partial sums of an operation: what is in one, how two are joined; and which parts of the operations that are not finished
 * have been executed. Private to the checker. */
#ifndef PS_SCHEMAS_CHECK_SUMS_H
#define PS_SCHEMAS_CHECK_SUMS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "schemas/check_state.h"

/* Sides of a MOE_DISPATCH; everything else has both. */
enum { PS_SIDE_NEAR = 1, PS_SIDE_FAR = 2, PS_SIDES = 3 };

/* Parts of the inner dimension (of the experts), ascending, apart and not touching, so that equal sums look alike. */
typedef struct ps_sum {
    uint32_t n;
    uint8_t sides;
    bool residual;
    ps_part parts[PS_CHECK_PARTS];
} ps_sum;

enum { PS_CHECK_SUMS = 1024 };

/* Every different sum of a stream has a number from 1 on. */
typedef struct ps_sums {
    uint32_t n;
    ps_sum *sums[PS_CHECK_SUMS];
    uint16_t table[2 * PS_CHECK_SUMS]; /* number by hash, 0: free */
} ps_sums;

/* 0 when there are too many or no memory. */
uint32_t ps_sum_number(ps_sums *s, ps_arena *arena, const ps_sum *sum);

typedef enum ps_join { PS_JOIN_OK, PS_JOIN_TWICE, PS_JOIN_RESIDUAL, PS_JOIN_CROWDED } ps_join;
/* TWICE: they share a part; RESIDUAL: both have the residual; CROWDED: in too many pieces. */
ps_join ps_sum_join(const ps_sum *a, const ps_sum *b, ps_sum *out);
/* Does it hold everything of an inner dimension of `inner`? (The residual aside.) */
bool ps_sum_covers(const ps_sum *sum, uint32_t inner);

/* A rectangle of an operation's work: columns of the result by parts of the inner dimension. */
typedef struct ps_rect {
    ps_part cols, inner;
    uint32_t sides;
} ps_rect;

/* An operation of a tile of which some is executed. */
typedef struct ps_open_op {
    uint32_t n_rects, n_whole;
    ps_rect rects[PS_CHECK_PARTS]; /* executed */
    ps_part whole[PS_CHECK_PARTS]; /* columns whose result is there */
} ps_open_op;

/* False: *twice: some of it was executed before; otherwise in too many pieces. */
bool ps_open_execute(ps_open_op *o, ps_rect rect, bool *twice);
/* The columns' result is whole. False as above; *all: no column of `cols` is missing any more. */
bool ps_open_finish(ps_open_op *o, ps_part part, uint32_t cols, bool *twice, bool *all);

#endif
