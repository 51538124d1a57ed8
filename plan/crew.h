/* Independent tasks on several threads. Private to the planner. */
#ifndef PS_PLAN_CREW_H
#define PS_PLAN_CREW_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Task `i`; worker: which of the threads does it, so that each may have things of its own. */
typedef void (*ps_crew_task)(void *ctx, uint32_t worker, uint32_t i);

/* How many threads ps_crew_run uses at most, the caller's included: what is asked for (0 is 1), bounded, and never more than tasks. */
enum { PS_CREW_MOST = 64 };
uint32_t ps_crew_size(uint32_t n_threads, uint32_t n_tasks);

/* Do tasks 0 to n_tasks - 1, which may be done in any order, on so many threads that end with the call. Where the system gives
 * fewer, on fewer. */
void ps_crew_run(uint32_t n_threads, uint32_t n_tasks, ps_crew_task task, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
