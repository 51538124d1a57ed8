/* Discrete-event simulation of a program over the four queues.
 *
 * An instruction starts once it heads its queue, the instruction before it in that queue has ended, and all that
 * it waits for has ended. It has an amount of work in seconds at idle speed; how fast it proceeds depends on what
 * runs on the other queues at that moment (measured contention), so speeds change at every start and end. */
#ifndef PS_PLAN_SIMULATE_H
#define PS_PLAN_SIMULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "schemas/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Speed of running[q] (1: as measured idle) while the instructions of `running` are on their queues (NULL: the queue is
 * idle). Must be positive. NULL in ps_sim: every speed is 1. */
typedef double (*ps_sim_speed)(void *ctx, const ps_instr *const running[PS_QUEUE_COUNT], ps_queue q);

typedef struct ps_sim_time {
    double start_s, end_s;
} ps_sim_time;

/* What to simulate. work_s: [program->n_instrs], the same for every layer of a block and every tile. All
 * borrowed. */
typedef struct ps_sim {
    const ps_program *program;
    uint32_t n_tiles; /* of the step, at least 1 */
    const double *work_s;
    double start_s; /* before the first instruction may start: waking the pool */
    ps_sim_speed speed;
    bool alone_is_idle; /* `speed` says 1 where nothing else runs: then it is not asked */
    void *speed_ctx;
} ps_sim;

/* Per block: when its first round starts, and by how much each round is later than the one before; of a block of one round by
 * how much the next block is (of the last: its length). */
typedef struct ps_sim_block {
    double start_s, period_s;
} ps_sim_block;

/* Whole stream, one entry per expanded instruction, in stream order, in *out_times (from malloc, the caller
 * frees it). out_end_s: end of the step. Errors: PS_E_NOMEM, PS_E_USAGE (work that is negative or not finite).
 * Pure; any thread. */
ps_status ps_simulate_all(const ps_sim *sim, ps_sim_time **out_times, uint64_t *out_n, double *out_end_s,
                          ps_error *err);

/* Closed form: the same figures from a few rounds of each block, once the rounds repeat exactly; more rounds are
 * tried until they do, all of them in the end, so the result always equals ps_simulate_all's.
 * instrs: [program->n_instrs], times of the block's first round and first tile from the start of the step.
 * blocks: [program->n_blocks]. */
ps_status ps_simulate(const ps_sim *sim, ps_sim_time *instrs, ps_sim_block *blocks, double *out_end_s,
                      ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
