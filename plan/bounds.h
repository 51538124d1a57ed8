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
} ps_step_work;

/* kv_len: positions that each sequence holds after the step. */
ps_step_work ps_step_work_of(const ps_lower_request *r, uint64_t kv_len);

/* Raw: the busier of DRAM (bytes at the measured ceiling of n_threads) and arithmetic (FLOPs at the best measured
 * rate of any product). Reachable: plus 5 us of barriers per layer. 0 where the profile has no ceilings. */
void ps_bounds(const ps_lower_request *r, double *out_raw_s, double *out_reachable_s);

#ifdef __cplusplus
}
#endif
#endif
