/* Thread pool of the CPU queue: a fixed team, bound through hwloc, that runs one job at a time. */
#ifndef PS_MACHINE_POOL_H
#define PS_MACHINE_POOL_H

#include <stdint.h>

#include "core/status.h"
#include "machine/topology.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_pool ps_pool;

/* Team of n_threads: the caller is thread 0, n_threads - 1 are created and bound to the cores that
 * `machine` allows (one per core before SMT siblings, performance cores first). n_threads above
 * machine->n_allowed is refused: PS_E_USAGE. Errors: PS_E_OS, PS_E_NOMEM. */
ps_status ps_pool_new(const ps_machine *machine, uint32_t n_threads, ps_pool **out, ps_error *err);
void ps_pool_free(ps_pool *pool);
uint32_t ps_pool_threads(const ps_pool *pool);

/* Run job(ctx, thread) on every thread of the team at once and wait for all. Threads spin between jobs while
 * a step is open and sleep otherwise. Only the thread that made the pool may call. */
typedef void (*ps_pool_job)(void *ctx, uint32_t thread);
void ps_pool_run(ps_pool *pool, ps_pool_job job, void *ctx);
/* Between these the team spins for the next job instead of sleeping. */
void ps_pool_step_begin(ps_pool *pool);
void ps_pool_step_end(ps_pool *pool);

/* Inside a job: wait until all threads of the team have come here. Everything written before is visible
 * after. Spins, then yields where the team is larger than the CPUs that are free. */
void ps_pool_barrier(ps_pool *pool, uint32_t thread);

#ifdef __cplusplus
}
#endif
#endif
