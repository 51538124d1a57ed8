/* Which items of a stream have certainly ended when another starts, for the shadow executor (plan_shadow.h): the closure of
 * what queues and waits say, item by item, nothing forgotten. Built on nothing of the checker. */
#ifndef PS_TESTS_PLAN_SHADOW_ORDER_H
#define PS_TESTS_PLAN_SHADOW_ORDER_H

#include "plan_shadow_memory.h"

/* Whatever had ended when `from` started, and `from` itself where it has ended. */
static inline void shadow_after(shadow *s, uint32_t i, uint32_t from, bool ended) {
    for (uint64_t w = 0; w < s->n_set; w++)
        s->before[i * s->n_set + w] |= s->before[from * s->n_set + w];
    if (ended)
        s->before[i * s->n_set + from / 64] |= (uint64_t)1 << (from % 64);
}

/* An item starts when all that it waits for has ended. The one before it in its queue has ended as well, but in queue cpu has
 * started only. An item that does not run waits for nothing and ends with the one before it in its queue. */
static inline void shadow_order(shadow *s) {
    uint32_t latest[PS_QUEUE_COUNT] = {0}; /* 1 + item */
    s->n_set = (s->n_items + 63) / 64;
    s->before = calloc((size_t)s->n_items * s->n_set + 1, sizeof *s->before);
    if (s->before == NULL)
        abort();
    for (uint32_t i = 0; i < s->n_items; i++) {
        const shadow_item *it = &s->items[i];
        const ps_instr *in = it->in;
        if (latest[in->queue] != 0)
            shadow_after(s, i, latest[in->queue] - 1, in->queue != PS_QUEUE_CPU || !it->runs);
        for (uint32_t w = 0; it->runs && w < in->n_waits; w++)
            if (in->wait[w] <= i)
                shadow_after(s, i, i - in->wait[w], true);
        latest[in->queue] = i + 1;
    }
}

#endif
