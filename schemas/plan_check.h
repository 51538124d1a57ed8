/* Between the parts of the checker. Private to schemas/. */
#ifndef PS_SCHEMAS_PLAN_CHECK_H
#define PS_SCHEMAS_PLAN_CHECK_H

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

/* Walk every tier. Memory, structure and regions of the level have been checked. */
ps_status ps_plan_check_tiers(const ps_plan *plan, const ps_level *level, const ps_model *model,
                              const ps_check_model *cm, ps_error *err);

#endif
