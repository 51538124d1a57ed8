/* Order between instructions. */
#include "schemas/check_order.h"

#include <string.h>

#include "schemas/instruction_set.h"

void ps_order_start(ps_order *o) {
    memset(o, 0, sizeof *o);
}

/* Add what had ended before `f` (an earlier instruction's record) to `e`. */
static void add_ended(ps_ended *e, const ps_ended *f) {
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        if (f->last[q] > e->last[q])
            e->last[q] = f->last[q];
    uint32_t distance = e->cpu - f->cpu;
    if (distance >= PS_ORDER_WINDOW)
        return;
    uint32_t word = distance / 64, shift = distance % 64;
    for (uint32_t i = PS_ORDER_WORDS; i-- > word;) {
        uint64_t v = f->bits[i - word] << shift;
        if (shift != 0 && i > word)
            v |= f->bits[i - word - 1] >> (64 - shift);
        e->bits[i] |= v;
    }
}

/* And the instruction itself. */
static void add_itself(ps_ended *e, const ps_ended *f, uint32_t index) {
    if (f->queue != PS_QUEUE_CPU) {
        if (index + 1 > e->last[f->queue])
            e->last[f->queue] = index + 1;
        return;
    }
    uint32_t distance = e->cpu - f->cpu;
    if (distance != 0 && distance <= PS_ORDER_WINDOW)
        e->bits[(distance - 1) / 64] |= (uint64_t)1 << ((distance - 1) % 64);
}

static bool cpu_ended(const ps_ended *e, uint32_t number) {
    if (number < e->last[PS_QUEUE_CPU])
        return true;
    uint32_t distance = e->cpu - number;
    return number < e->cpu && distance <= PS_ORDER_WINDOW &&
           (e->bits[(distance - 1) / 64] >> ((distance - 1) % 64) & 1) != 0;
}

void ps_order_enter(ps_order *o, const ps_instr *in, bool runs) {
    ps_ended e = {.queue = in->queue};
    if (o->last[PS_QUEUE_CPU] != 0)
        e.cpu = o->latest[PS_QUEUE_CPU].cpu + 1;
    if (o->last[in->queue] != 0) {
        add_ended(&e, &o->latest[in->queue]);
        if (ps_queue_rule_get(in->queue)->serial || !runs)
            add_itself(&e, &o->latest[in->queue], o->last[in->queue] - 1);
    }
    for (uint32_t i = 0; runs && i < in->n_waits; i++) {
        if (in->wait[i] > o->now || in->wait[i] >= PS_ORDER_RECORDS)
            continue;
        uint32_t from = o->now - in->wait[i];
        add_ended(&e, &o->ended[from % PS_ORDER_RECORDS]);
        add_itself(&e, &o->ended[from % PS_ORDER_RECORDS], from);
    }
    while (e.last[PS_QUEUE_CPU] < e.cpu && cpu_ended(&e, e.last[PS_QUEUE_CPU]))
        e.last[PS_QUEUE_CPU]++;
    if (in->queue == PS_QUEUE_CPU)
        o->cpu_index[e.cpu % PS_ORDER_RECORDS] = o->now;
    o->ended[o->now % PS_ORDER_RECORDS] = e;
    o->latest[in->queue] = e;
    o->last[in->queue] = o->now + 1;
}

void ps_order_leave(ps_order *o) {
    o->now++;
}

static const ps_ended *present(const ps_order *o) {
    return &o->ended[o->now % PS_ORDER_RECORDS];
}

/* What has ended before this instruction has ended before whatever waits for this one, so it need not be kept. */
static void forget_ended(ps_accesses *a, const ps_ended *e) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < a->n; i++)
        if (!cpu_ended(e, a->cpu[i]))
            a->cpu[kept++] = a->cpu[i];
    a->n = kept;
}

static bool add_number(ps_accesses *a, uint32_t number) {
    for (uint32_t i = 0; i < a->n; i++)
        if (a->cpu[i] == number)
            return true;
    if (a->n == PS_CHECK_ACCESSES)
        return false;
    a->cpu[a->n++] = number;
    return true;
}

bool ps_accesses_add(ps_accesses *a, const ps_order *order) {
    const ps_ended *e = present(order);
    forget_ended(a, e);
    if (e->queue == PS_QUEUE_CPU)
        return add_number(a, e->cpu);
    a->last[e->queue] = order->now + 1;
    return true;
}

bool ps_accesses_ended(const ps_accesses *a, const ps_order *order, uint64_t *out) {
    const ps_ended *e = present(order);
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        if (a->last[q] > e->last[q] && a->last[q] != order->now + 1) {
            *out = a->last[q] - 1;
            return false;
        }
    for (uint32_t i = 0; i < a->n; i++)
        if (!cpu_ended(e, a->cpu[i]) && !(e->queue == PS_QUEUE_CPU && a->cpu[i] == e->cpu)) {
            *out = order->cpu_index[a->cpu[i] % PS_ORDER_RECORDS];
            return false;
        }
    return true;
}

bool ps_accesses_join(ps_accesses *to, const ps_accesses *from, const ps_order *order) {
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        if (from->last[q] > to->last[q])
            to->last[q] = from->last[q];
    forget_ended(to, present(order));
    for (uint32_t i = 0; i < from->n; i++)
        if (!cpu_ended(present(order), from->cpu[i]) && !add_number(to, from->cpu[i]))
            return false;
    return true;
}
