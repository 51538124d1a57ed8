/* Between the parts of the checker. Private to schemas/. */
#ifndef PS_SCHEMAS_PLAN_CHECK_H
#define PS_SCHEMAS_PLAN_CHECK_H

#include "core/arena.h"
#include "schemas/plan.h"

/* One operation of the model and which operations make what it reads: 1 + their numbers, 0 where it reads
 * nothing. */
typedef struct ps_check_op {
    const ps_op_desc *desc;
    uint32_t shard;
    uint32_t src[PS_OP_MAX_SRC];
} ps_check_op;

/* All operations of a model, in data-flow order. */
typedef struct ps_check_model {
    uint32_t n_ops, n_body_ops; /* body: all but the head's */
    ps_check_op *ops;
    uint32_t *op0;      /* [n_shards] first operation of each */
    uint32_t *shard_of; /* [n_layers * PS_SHARD_KIND_COUNT], UINT32_MAX: none */
} ps_check_model;

/* The resident pieces of a level, found by weight. */
typedef struct ps_check_piece {
    const ps_weight_range *range;
    uint64_t reach; /* most rows that this one or one before it, of the same weight, reaches to */
} ps_check_piece;

typedef struct ps_check_pieces {
    uint32_t n;
    ps_check_piece *pieces; /* by role, layer, first row */
} ps_check_pieces;

/* Index the level's pieces, into `arena`. False: no memory. */
bool ps_check_pieces_init(ps_check_pieces *p, ps_arena *arena, const ps_level *level);
/* Does one piece hold all of the range? */
bool ps_check_pieces_hold(const ps_check_pieces *p, const ps_weight_range *range);

/* Walk every tier. Memory, structure and regions of the level have been checked. */
ps_status ps_plan_check_tiers(const ps_plan *plan, const ps_level *level, const ps_model *model,
                              const ps_check_model *cm, const ps_check_pieces *pieces, ps_error *err);

#endif
