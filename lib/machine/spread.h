/* How the items of one kernel phase are handed to the threads of a team: the executor and the profiler use
 * the same rule, so that what is measured is what runs. */
#ifndef PS_MACHINE_SPREAD_H
#define PS_MACHINE_SPREAD_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One phase's hand-out. Zero before the team enters the phase; each phase of a step has its own. */
typedef struct ps_spread {
    uint64_t next;
} ps_spread;

/* Take the next chunk of `n_items` for one of `n_threads` threads: chunks are n_items / (8 * n_threads),
 * at least 1, so that a thread that lost its core for a while holds up little. False when none is left.
 * Any thread of the team at any time. */
bool ps_spread_take(ps_spread *spread, uint64_t n_items, uint32_t n_threads, uint64_t *out_first,
                    uint64_t *out_n);

#ifdef __cplusplus
}
#endif
#endif
