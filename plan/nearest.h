/* What does fit, where a level does not: found by planning, so that it is true whatever the planner does. */
#ifndef PS_PLAN_NEAREST_H
#define PS_PLAN_NEAREST_H

#include "plan/planner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* request: as ps_plan_build refused it with PS_E_INFEASIBLE and *shortage. Finds the first of its levels that does not fit by
 * itself and makes the numbers exact: the least budget, in MiB, at which it fits and a MiB less does not (VRAM is short;
 * needed_bytes then is that budget), and the longest context, a multiple of 256, that fits where 256 more do not. Sets err
 * anew, with the same subject. Plans a dozen levels or two. Errors: PS_E_INFEASIBLE when done, PS_E_NOMEM and others of
 * ps_plan_build; PS_OK only where every level fits by itself: shortage and err are as they were. Pure; any thread. */
ps_status ps_plan_nearest(const ps_plan_request *request, ps_shortage *shortage, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
