/* Losses of a tier: see loss.h. */
#include "plan/loss.h"

#include <math.h>

#include "plan/bounds.h"

static uint64_t times_of(const ps_block *b, const ps_instr *in, uint32_t n_tiles) {
    return b->n_layers * (uint64_t)(b->over_tiles && in->when == PS_WHEN_EVERY ? n_tiles : 1);
}

static double length_of(const ps_prediction *p) {
    return p->end_full_s - p->start_full_s;
}

/* Bytes of an instruction's weights that cross the bus in one execution. */
static double bus_bytes(const ps_lower_request *r, const ps_instr *in, uint32_t layer) {
    double sum = 0;
    for (int w = 0; w < PS_OP_MAX_WEIGHTS && in->queue != PS_QUEUE_CPU; w++) {
        const ps_weight *x = in->w[w] != PS_ROLE_NONE ? ps_model_weight(r->model, layer, in->w[w]) : NULL;
        bool near = in->part == PS_MOE_PART_NEAR;
        if (x == NULL || !(in->op == PS_OP_COPY || near || in->at[w] == PS_AT_HOST))
            continue;
        double rows = (double)(x->experts > 1 ? x->experts : x->rows), share = 1;
        if (near)
            share = fmin((double)r->max_direct, rows) / rows;
        else if (w == 0 || in->op == PS_OP_MOE_DISPATCH)
            share = (in->n_rows ? (double)in->n_rows / rows : 1) *
                    (in->n_cols ? (double)in->n_cols / (double)x->cols : 1);
        sum += (double)x->bytes * share;
    }
    return sum;
}

/* Whose end an instruction waits for: the latest of those before it. Instructions of earlier rounds of a
 * block end a period earlier for each; what other blocks did has ended. Its own queue where nothing else is later. */
static ps_queue waited_for(const ps_tier *tier, const ps_program *p, const ps_block *b, uint32_t k) {
    const ps_instr *in = &p->instrs[b->instr0 + k];
    double period = tier->block_period_full_s[b - p->blocks], latest = -INFINITY;
    ps_queue queue = in->queue;
    for (uint32_t w = 0; w < in->n_waits; w++) {
        int64_t at = (int64_t)k - in->wait[w];
        double end = 0;
        for (; at < 0 && b->n_layers > 1; at += b->n_instrs)
            end -= period;
        if (at < 0)
            continue;
        end += tier->predicted[b->instr0 + at].end_full_s;
        if (end > latest) {
            latest = end;
            queue = p->instrs[b->instr0 + at].queue;
        }
    }
    return queue;
}

/* Idle time of a queue between its instructions, by whom it waits for, in the proportions of each block's first round. */
static void find_waits(const ps_plan *plan, const ps_tier *tier, ps_queue queue, double idle_s,
                       ps_loss *out) {
    const ps_program *p = &plan->programs[tier->program];
    double sum = 0;
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        const ps_block *b = &p->blocks[i];
        double last = -INFINITY; /* end of the one before, in the round before for the first */
        double first = INFINITY; /* start of the block */
        for (uint32_t k = 0; k < b->n_instrs; k++) {
            const ps_prediction *t = &tier->predicted[b->instr0 + k];
            first = fmin(first, t->start_full_s);
            if (p->instrs[b->instr0 + k].queue == queue)
                last = fmax(last, t->end_full_s - tier->block_period_full_s[i]);
        }
        if (b->n_layers == 1)
            last = first;
        for (uint32_t k = 0; k < b->n_instrs; k++) {
            const ps_prediction *t = &tier->predicted[b->instr0 + k];
            if (p->instrs[b->instr0 + k].queue != queue)
                continue;
            double gap = t->start_full_s - last;
            last = fmax(last, t->end_full_s);
            if (gap <= 0)
                continue;
            out->wait_for_s[waited_for(tier, p, b, k)] += gap * b->n_layers;
            sum += gap * b->n_layers;
        }
    }
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        out->wait_for_s[q] = sum > 0 ? out->wait_for_s[q] * idle_s / sum : 0;
    if (sum <= 0)
        out->wait_for_s[queue] = idle_s;
}

static double take(double *left, double most) {
    double t = fmax(fmin(*left, most), 0);
    *left -= t;
    return t;
}

void ps_loss_of(const ps_lower_request *r, const ps_plan *plan, const ps_tier *tier, ps_loss *out) {
    const ps_program *p = &plan->programs[tier->program];
    uint32_t n_tiles = (tier->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
    double crossing = 0, raw = tier->raw_bound_s, reachable = tier->reachable_bound_s, ideal = raw;
    *out = (ps_loss){.step_s = tier->step_full_s};
    for (uint32_t i = 0; i < p->n_blocks; i++)
        for (uint32_t k = p->blocks[i].instr0; k < p->blocks[i].instr0 + p->blocks[i].n_instrs; k++) {
            const ps_instr *in = &p->instrs[k];
            double times = (double)times_of(&p->blocks[i], in, n_tiles);
            out->busy_s[in->queue] += times * length_of(&tier->predicted[k]);
            crossing += times * bus_bytes(r, in, ps_instr_weight_layer(plan, in, p->blocks[i].layer0));
        }
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        if (out->busy_s[q] > out->busy_s[out->busiest])
            out->busiest = (ps_queue)q;
    double idle = fmax(tier->step_full_s - out->busy_s[out->busiest], 0);
    find_waits(plan, tier, out->busiest, idle, out);
    if (r->level != NULL) {
        double bus = ps_cost_bus_bytes_per_s(r->cost, PS_BUS_H2D, 16 << 20),
               direct = ps_cost_bus_bytes_per_s(r->cost, PS_BUS_DIRECT, 16 << 20);
        out->link_s = fmax(bus, direct) > 0 ? crossing / fmax(bus, direct) : 0;
        ideal = fmin(ps_bound_in_vram(r), raw);
    }
    double left = tier->step_full_s;
    out->ideal_s = take(&left, ideal);
    out->budget_s = take(&left, raw - ideal);
    out->serial_s = take(&left, reachable - raw);
    out->hand_over_s = fmin(ps_bound_hand_over_s(r), out->serial_s);
    out->waits_s = take(&left, idle - out->serial_s);
    out->rates_s = left;
}
