/* Hand-out of items to the threads of a team. */
#include "machine/spread.h"

enum { SPREAD_CHUNKS_PER_THREAD = 8 };

bool ps_spread_take(ps_spread *spread, uint64_t n_items, uint32_t n_threads, uint64_t *out_first,
                    uint64_t *out_n) {
    uint64_t chunk = n_items / ((uint64_t)SPREAD_CHUNKS_PER_THREAD * n_threads);
    if (chunk == 0)
        chunk = 1;
    /* A look before the addition keeps late threads from bouncing the line, and the counter from growing. */
    if (__atomic_load_n(&spread->next, __ATOMIC_RELAXED) >= n_items)
        return false;
    uint64_t first = __atomic_fetch_add(&spread->next, chunk, __ATOMIC_RELAXED);
    if (first >= n_items)
        return false;
    *out_first = first;
    *out_n = chunk < n_items - first ? chunk : n_items - first;
    return true;
}
