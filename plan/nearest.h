/* What does fit, where a level does not. Private to the planner. */
#ifndef PS_PLAN_NEAREST_H
#define PS_PLAN_NEAREST_H

#include "plan/build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* too_small: as ps_build_plan left it. Makes its numbers exact and sets err, the subject being the budget or "host memory": bytes
 * needed, with which the level fits and a byte less does not (VRAM); the same budget rounded up to a MiB; and the longest
 * context, a multiple of 256, that fits where 256 more do not. They are found on the memory layout alone, and then planned once,
 * so that they are true whatever the planner does. Errors: PS_E_INFEASIBLE when done, PS_E_NOMEM and others of
 * ps_plan_build. Pure; any thread. */
ps_status ps_nearest(const ps_plan_request *request, ps_too_small *too_small, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
