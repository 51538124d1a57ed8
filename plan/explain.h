/* Where the predicted time of a tier goes, and what else could have been chosen. */
#ifndef PS_PLAN_EXPLAIN_H
#define PS_PLAN_EXPLAIN_H

#include "plan/lower.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One kernel of a tier's program. rival: the fastest kernel of another input format that could do the same work,
 * 0 if there is none; rival_s: its predicted time for all the executions. */
typedef struct ps_explain_kernel {
    uint32_t kernel, rival;
    ps_op op;
    uint64_t n_calls;
    double time_s, rival_s;
    ps_cost_quality quality; /* the worst of its calls */
} ps_explain_kernel;

enum { PS_EXPLAIN_MAX_KERNELS = 64 };

typedef struct ps_explain {
    double start_s;                          /* waking the pool */
    double step_s;                           /* with it, every instruction by itself: the sum of all queues */
    double queue_s[PS_QUEUE_COUNT];          /* by queue */
    double op_s[PS_OP_COUNT];                /* by operation */
    double shard_s[PS_SHARD_KIND_COUNT];     /* by kind of shard */
    double quality_s[PS_COST_QUALITY_COUNT]; /* by how well it is known */
    uint32_t n_kernels;
    ps_explain_kernel kernels[PS_EXPLAIN_MAX_KERNELS]; /* most time first */
} ps_explain;

/* kv_len: positions that sequences hold after the step. Pure; any thread. */
void ps_explain_tier(const ps_lower_request *r, const ps_program *p, uint64_t kv_len, ps_explain *out);

#ifdef __cplusplus
}
#endif
#endif
