/* Order between instructions. */
#include "schemas/check_order.h"

#include <string.h>

#include "schemas/instruction_set.h"

void ps_order_start(ps_order *o) {
    memset(o, 0, sizeof *o);
}

/* Add what had ended before instruction `from` to what has ended before `o->now`, and with `itself` also it. */
static void add(ps_order *o, ps_ended *e, uint64_t from, bool itself) {
    uint64_t distance = o->now - from;
    if (distance > PS_ORDER_WINDOW)
        return;
    const ps_ended *f = &o->ended[from % PS_ORDER_WINDOW];
    if (f == e)
        return; /* its place is already taken by the present one: distance == WINDOW */
    if (f->upto > e->upto)
        e->upto = f->upto;
    uint32_t word = (uint32_t)(distance / 64), shift = (uint32_t)(distance % 64);
    for (uint32_t i = PS_ORDER_WORDS; i-- > word;) {
        uint64_t v = f->bits[i - word] << shift;
        if (shift != 0 && i > word)
            v |= f->bits[i - word - 1] >> (64 - shift);
        e->bits[i] |= v;
    }
    if (itself)
        e->bits[(distance - 1) / 64] |= (uint64_t)1 << ((distance - 1) % 64);
}

static bool has_bit(const ps_ended *e, uint64_t distance) {
    return distance <= PS_ORDER_WINDOW && (e->bits[(distance - 1) / 64] >> ((distance - 1) % 64) & 1) != 0;
}

void ps_order_enter(ps_order *o, const ps_instr *in) {
    ps_ended *e = &o->ended[o->now % PS_ORDER_WINDOW];
    memset(e, 0, sizeof *e);
    if (o->last[in->queue] != 0)
        add(o, e, o->last[in->queue] - 1, ps_queue_rule_get(in->queue)->serial != 0);
    for (uint32_t i = 0; i < in->n_waits; i++)
        if (in->wait[i] <= o->now)
            add(o, e, o->now - in->wait[i], true);
    while (e->upto < o->now && has_bit(e, o->now - e->upto))
        e->upto++;
    o->last[in->queue] = o->now + 1;
}

bool ps_order_ended(const ps_order *o, uint64_t before) {
    const ps_ended *e = &o->ended[o->now % PS_ORDER_WINDOW];
    return before < e->upto || (before < o->now && has_bit(e, o->now - before));
}

void ps_order_leave(ps_order *o) {
    o->now++;
}
