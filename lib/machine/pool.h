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
 * `machine` allows (one per core before SMT siblings, performance cores first); the caller is bound only while a
 * step is open. Where a CPU quota is what limits the process, threads are bound to a NUMA node instead, since
 * other containers share its cores. machine: borrowed, outlives the pool. n_threads above
 * machine->n_allowed is refused: PS_E_USAGE. Errors: PS_E_OS, PS_E_NOMEM. */
ps_status ps_pool_new(const ps_machine *machine, uint32_t n_threads, ps_pool **out, ps_error *err);
void ps_pool_free(ps_pool *pool);
uint32_t ps_pool_threads(const ps_pool *pool);
/* Created threads that the system let us bind: n_threads - 1 once they have started, less where it refused. */
uint32_t ps_pool_bound(const ps_pool *pool);

/* Run job(ctx, thread) on every thread of the team at once and wait for all. Threads spin between jobs while
 * a step is open and sleep otherwise. Only the thread that made the pool may call. */
typedef void (*ps_pool_job)(void *ctx, uint32_t thread);
void ps_pool_run(ps_pool *pool, ps_pool_job job, void *ctx);
/* Between these the team spins for the next job instead of sleeping (and sleeps after all once half a
 * millisecond went by without one). */
void ps_pool_step_begin(ps_pool *pool);
void ps_pool_step_end(ps_pool *pool);

/* Inside a job: wait until all threads of the team have come here. Everything written before is visible
 * after. Spins for a fifth of a millisecond, then sleeps: where others use the CPUs too, waiting costs
 * them little. Every thread of the team must pass the same barriers of a job. */
void ps_pool_barrier(ps_pool *pool, uint32_t thread);
/* Inside a job, thread 0: whoever is in a barrier leaves it, and barriers are nothing until the job has ended. Threads must
 * look for themselves, behind a barrier, whether it was one. */
void ps_pool_abandon(ps_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
