/* The two bounds on a step's time that no engine can beat on this machine: see docs/psplan.md. */
#ifndef PS_PLAN_BOUNDS_H
#define PS_PLAN_BOUNDS_H

#include "plan/lower.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a step must move and compute, whatever the program. */
typedef struct ps_step_work {
    double weight_bytes; /* every weight the step needs once; experts: the expected distinct ones */
    double kv_bytes;     /* caches read, and written for the new tokens */
    double flops;
    double expert_bytes, all_expert_bytes; /* of the weights: experts that are expected, and all there are */
    double attn_bytes, attn_matrix_flops;  /* attention blocks' matrices */
    double attention_flops;                /* of flops: scores and sums over the cache */
    double minor_bytes,
        minor_flops; /* of all: rows of the embedding and new rows of KV; all but products and attention */
    double head_bytes, head_flops, expert_flops; /* the output head's; the experts' */
} ps_step_work;

/* kv_len: positions that each sequence holds after the step. */
ps_step_work ps_step_work_of(const ps_lower_request *r, uint64_t kv_len);

/* Raw: the busier of DRAM (bytes at the measured ceiling of n_threads) and arithmetic (FLOPs at the best measured
 * rate of any product). Ceilings are the best of any measurement: where points of the step's own operations say more than
 * the tables of rates, they count, so that no prediction that is made of them is under the bound. Reachable: plus 5 us of
 * barriers per layer. 0 where the profile has no ceilings. At the full bucket.
 * With a GPU (r->level) the least, over all divisions of the work between CPU, bus and GPU, of the busiest one's time;
 * reachable, where the CPU takes part: plus attention on the GPU at its ceilings and 15 us of hand-over per layer. */
/* The raw bound alone, when sequences hold kv_len positions after the step. */
double ps_raw_bound(const ps_lower_request *r, uint64_t kv_len);
/* With a GPU: what no program of the planner's is predicted to be under: the raw bound, or the serial operations of all layers and
 * what the CPU does between them, as far as the bus does not do it meanwhile. For the search. */
double ps_search_bound(const ps_lower_request *r, uint64_t kv_len);
void ps_bounds(const ps_lower_request *r, double *out_raw_s, double *out_reachable_s);

/* Raw bound of a level with a GPU (r->level) if its budget held all weights and KV. */
double ps_bound_in_vram(const ps_lower_request *r);
/* What the reachable bound counts for hand-overs, without a GPU for barriers, where the CPU takes part. */
double ps_bound_hand_over_s(const ps_lower_request *r);

#ifdef __cplusplus
}
#endif
#endif
