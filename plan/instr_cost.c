/* Predicted time of an instruction of a lowered program. */
#include <math.h>

#include "plan/lower.h"

/* Positions that T causal rows see on average when the last sees kv_len, at most `window` each (0: all). */
static double mean_visible(double t, double kv_len, double window) {
    double first = kv_len - t + 1, last = kv_len;
    if (window <= 0 || last <= window)
        return (first + last) / 2;
    if (first >= window)
        return window;
    double growing = window - first;
    return (growing * (first + window - 1) / 2 + (t - growing) * window) / t;
}

/* Share of the read ceiling that attention of many sequences reaches. */
static const double attention_of_hbm = 0.7;

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Time of a call whose kernel has no points: all bytes it touches at their memory's ceiling or its FLOPs at the best
 * product's rate, whichever is longer, and a barrier or a launch. */
static double assumed(const ps_lower_request *r, const ps_program *p, const ps_instr *in, uint32_t layer,
                      const ps_cost_query *q, double tokens) {
    const ps_profile_gpu *g = &r->profile->gpu;
    bool gpu = in->queue != PS_QUEUE_CPU;
    double bytes = 0, bus_bytes = 0, flops = 0, weights;
    for (int i = 0; i <= PS_OP_MAX_SRC; i++) {
        uint16_t b = i < PS_OP_MAX_SRC ? in->src[i] : in->dst;
        if (b == PS_NO_BUFFER)
            continue;
        double n = tokens * (double)ps_fmt_row_bytes(p->buffers[b].fmt, p->buffers[b].cols);
        *(gpu && p->buffers[b].space == PS_SPACE_HOST ? &bus_bytes : &bytes) += n;
    }
    ps_op_desc d = {.op = in->op,
                    .w = {in->w[0], in->w[1], in->w[2]},
                    .cols = (uint32_t)q->cols,
                    .rows =
                        (uint32_t)(in->op == PS_OP_MOE_DISPATCH ? q->cols : q->rows)}; /* of what it makes */
    if (in->op == PS_OP_ATTENTION) {
        weights = q->kv_len * q->heads_kv * (double)q->cols * 4;
    } else {
        const ps_weight *w = in->w[0] != PS_ROLE_NONE ? ps_model_weight(r->model, layer, in->w[0]) : NULL;
        weights = ps_op_weight_bytes(r->model, layer, &d, (uint64_t)tokens);
        if (in->op == PS_OP_MATMUL && w) /* of the range alone */
            weights *= (double)q->rows * (double)q->cols / ((double)w->rows * (double)w->cols);
    }
    *(q->beside == PS_BESIDE_DIRECT ? &bus_bytes : &bytes) += weights;
    if (in->op != PS_OP_EMBED)
        flops = ps_op_flops(r->model, layer, &d, (uint64_t)tokens, (uint64_t)q->kv_len);
    double bw = gpu ? g->hbm_read_bytes_per_s.median : ps_cost_dram_bytes_per_s(r->cost, r->n_threads),
           rate = gpu ? in->op == PS_OP_ATTENTION ? g->attention_flops_per_s.median
                                                  : g->matmul_flops_per_s.median
                      : ps_cost_matmul_flops_per_s(r->cost, r->n_threads);
    double t = bw > 0 ? bytes / bw : 0;
    if (rate > 0)
        t = larger(t, flops / rate);
    if (!gpu)
        return t + r->profile->barrier_s.median;
    double bus = ps_cost_bus_bytes_per_s(r->cost, PS_BUS_DIRECT, larger(bus_bytes, 16 << 20));
    return larger(t, bus > 0 ? bus_bytes / bus : 0) + g->graph_node_s.median;
}

/* Steps of few rows are one graph; longer ones are launched as they come. */
static double launched(const ps_lower_request *r, double t) {
    return r->max_tokens > PS_PLAN_DECODE_TOKENS ? larger(t, r->profile->gpu.launch_s.median) : t;
}

double ps_cost_cold_bytes_per_s(const ps_lower_request *r) {
    if (!r->level || r->model->weight_bytes < 4 * r->profile->topology.l3_bytes)
        return 0;
    double cold = ps_cost_dram_cold(r->cost, r->n_threads) * 1.05;
    return cold > 0 ? larger(cold, ps_cost_dram_alone(r->cost, r->n_threads)) : 0;
}

/* Least time of a CPU product for a model that no cache holds: points of small matrices may have been measured on what
 * stayed in one. */
static double cold_s(const ps_lower_request *r, const ps_cost_query *q) {
    double rate = q->n_threads ? ps_cost_cold_bytes_per_s(r) : 0;
    if (!(rate > 0))
        return 0;
    const ps_kernel_spec *k = ps_cost_kernel(r->cost, q->kernel);
    const ps_dtype_info *type = k && k->op == PS_OP_MATMUL ? ps_dtype_find((uint32_t)k->wtype) : NULL;
    return type ? (double)q->rows * (double)q->cols * type->block_bytes / type->block_elems / rate : 0;
}

bool ps_cost_of_product(const ps_lower_request *r, const ps_cost_query *q, ps_cost *out) {
    if (q->beside != PS_BESIDE_DIRECT || q->n_tokens <= 1) {
        bool found = ps_cost_lookup_cached(r->cost, r->cache, q, out);
        if (found)
            out->time_s = larger(out->time_s, cold_s(r, q));
        return found;
    }
    /* Reading weights over the bus takes as long for a few rows as for one, unless the arithmetic takes longer. */
    ps_cost_query row = *q, idle = *q;
    ps_cost all;
    row.n_tokens = 1;
    idle.beside = PS_BESIDE_IDLE;
    if (!ps_cost_lookup_cached(r->cost, r->cache, q, &all))
        return false;
    if (all.quality < PS_COST_EXTRAPOLATED || !ps_cost_lookup_cached(r->cost, r->cache, &row, out)) {
        *out = all;
        return true;
    }
    if (q->heads_kv && q->kv_len > 0) /* a mixture: more rows select more experts */
        out->time_s *=
            (1 - pow(1 - q->kv_len / q->heads_kv, (double)q->n_tokens)) / (q->kv_len / q->heads_kv);
    if (ps_cost_lookup_cached(r->cost, r->cache, &idle, &all))
        out->time_s = larger(out->time_s, all.time_s);
    out->quality = PS_COST_EXTRAPOLATED;
    return true;
}

static ps_cost one(const ps_lower_request *r, const ps_program *p, const ps_instr *in, uint32_t layer,
                   ps_cost_query q, double tokens) {
    ps_cost c = {0, PS_COST_ASSUMED};
    q.n_tokens = (uint64_t)larger(tokens, 1);
    if (!(in->op == PS_OP_ATTENTION ? ps_cost_lookup_cached(r->cost, r->cache, &q, &c)
                                    : ps_cost_of_product(r, &q, &c))) {
        ps_cost near = c;
        ps_cost_query idle = q;
        idle.beside = PS_BESIDE_IDLE;
        c = (ps_cost){assumed(r, p, in, layer, &q, larger(tokens, 1)), PS_COST_ASSUMED};
        /* Never faster from the host than from VRAM. */
        if (q.beside == PS_BESIDE_DIRECT && ps_cost_lookup_cached(r->cost, r->cache, &idle, &near))
            c.time_s = larger(c.time_s, near.time_s);
    }
    return c;
}

/* Experts of a layer that are resident: those that pieces of the gate matrices hold. */
static double resident_experts(const ps_lower_request *r, uint32_t layer) {
    double n = 0;
    for (uint32_t i = 0; i < r->level->n_resident; i++) {
        const ps_weight_range *p = &r->level->resident[i].range;
        if (p->role == PS_ROLE_FFN_GATE_EXPS && p->layer == layer)
            n += (double)p->n_rows;
    }
    return n;
}

static uint64_t tokens_of(const ps_lower_request *r, const ps_program *p, const ps_instr *in) {
    uint16_t b = in->dst != PS_NO_BUFFER ? in->dst : in->src[0];
    return ps_lower_tokens(r, b != PS_NO_BUFFER ? p->buffers[b].rows : PS_ROWS_TILE);
}

ps_expert_share ps_instr_experts(const ps_lower_request *r, const ps_program *p, const ps_instr *in,
                                 uint32_t layer) {
    const ps_layer *y = &r->model->layers[layer];
    double experts = y->n_expert, used = y->n_expert_used, ranged = in->n_rows ? (double)in->n_rows : experts;
    double distinct = experts * (1 - pow(1 - used / experts, (double)tokens_of(r, p, in)));
    double m = r->level ? resident_experts(r, layer) : 0, near = distinct * m / experts,
           others = distinct - near;
    double direct = fmin(r->max_direct, others);
    ps_expert_share s = {.distinct = distinct};
    if (in->queue == PS_QUEUE_CPU) {
        s.there = in->part == PS_MOE_PART_FAR ? others - direct : distinct * ranged / experts;
    } else if (in->part == PS_MOE_PART_NEAR) {
        s.there = near;
        s.direct = direct;
    } else if (in->at[0] >= PS_AT_SLOT || (in->at[0] == PS_AT_VRAM && in->n_rows)) {
        s.there = distinct * ranged / experts;
    } else {
        s.there = in->at[0] == PS_AT_VRAM ? near : 0;
        s.direct = distinct - s.there;
    }
    return s;
}

/* A mixture's parts: each takes its part of the time of all experts that are expected. */
static ps_cost mixture(const ps_lower_request *r, const ps_program *p, const ps_instr *in, uint32_t layer,
                       ps_cost_query q, double tokens) {
    ps_expert_share share = ps_instr_experts(r, p, in, layer);
    q.beside = PS_BESIDE_IDLE;
    ps_cost idle = one(r, p, in, layer, q, tokens),
            sum = {idle.time_s * share.there / share.distinct, idle.quality};
    if (share.direct > 0) {
        q.beside = PS_BESIDE_DIRECT;
        ps_cost c = one(r, p, in, layer, q, tokens);
        sum.time_s += c.time_s * share.direct / share.distinct;
        sum.quality = c.quality > sum.quality ? c.quality : sum.quality;
    }
    sum.time_s +=
        in->queue == PS_QUEUE_CPU ? r->profile->barrier_s.median : r->profile->gpu.graph_node_s.median;
    return sum;
}

static ps_bus bus_of(ps_queue q) {
    return q == PS_QUEUE_H2D ? PS_BUS_H2D : q == PS_QUEUE_D2H ? PS_BUS_D2H : PS_BUS_DIRECT;
}

static double copy_bytes(const ps_lower_request *r, const ps_program *p, const ps_instr *in, uint32_t layer,
                         uint64_t kv_len) {
    const ps_model *m = r->model;
    double bytes = 0;
    if (in->src[0] != PS_NO_BUFFER) {
        const ps_plan_buffer *b = &p->buffers[in->src[0]];
        bytes = (double)ps_lower_tokens(r, b->rows) * (double)ps_fmt_row_bytes(b->fmt, b->cols);
    } else if (in->w[0] != PS_ROLE_NONE) {
        uint32_t of = in->ahead ? (layer + 1 < m->n_layers ? layer + 1 : 0) : layer;
        const ps_weight *w = ps_model_weight(m, of, in->w[0]);
        double rows = w ? (double)(w->experts > 1 ? w->experts : w->rows) : 1;
        bytes = w ? (double)w->bytes : 0;
        if (in->n_rows)
            bytes *= (double)in->n_rows / rows;
        if (w && in->n_cols)
            bytes *= (double)in->n_cols / (double)w->cols;
    } else { /* KV: in, what was held before the step; home, its rows */
        const ps_layer *y = &m->layers[layer];
        double row = ps_kv_row_bytes(y);
        double seqs = r->max_tokens <= r->n_seqs ? (double)r->max_tokens : 1;
        double rows = in->queue == PS_QUEUE_D2H
                          ? (double)r->max_tokens
                          : seqs * fmax((double)kv_len - (double)r->max_tokens / seqs, 0);
        if (in->queue == PS_QUEUE_H2D && y->window && rows > seqs * y->window)
            rows = seqs * y->window;
        bytes = rows * row;
    }
    return bytes;
}

static ps_cost copy_cost(const ps_lower_request *r, const ps_program *p, const ps_instr *in, uint32_t layer,
                         uint64_t kv_len) {
    double bytes = copy_bytes(r, p, in, layer, kv_len);
    if (bytes <= 0)
        return (ps_cost){0, PS_COST_MEASURED};
    ps_bus bus = bus_of(in->queue);
    double rate = ps_cost_bus_bytes_per_s(r->cost, bus, bus == PS_BUS_DIRECT ? fmax(bytes, 16 << 20) : bytes);
    double t = rate > 0 ? bytes / rate : 0;
    if (bus == PS_BUS_DIRECT)
        t = launched(r, t + r->profile->gpu.graph_node_s.median);
    return (ps_cost){t, PS_COST_INTERPOLATED};
}

/* Time of a hand-over: what an instruction waits for another queue's to be seen to have ended. */
static double hand_over(const ps_lower_request *r, const ps_program *p, uint32_t instr) {
    const ps_instr *in = &p->instrs[instr];
    const ps_profile_gpu *g = &r->profile->gpu;
    double most = 0;
    for (uint32_t w = 0; w < in->n_waits; w++) {
        uint32_t n = 0, first = 0, from;
        for (uint32_t b = 0; b < p->n_blocks; b++)
            if (instr >= p->blocks[b].instr0 && instr < p->blocks[b].instr0 + p->blocks[b].n_instrs) {
                first = p->blocks[b].instr0;
                n = p->blocks[b].n_instrs;
            }
        if (in->wait[w] <= instr - first)
            from = instr - in->wait[w];
        else if (in->wait[w] <= instr - first + n) /* the round before */
            from = instr + n - in->wait[w];
        else
            from = instr >= in->wait[w] ? instr - in->wait[w] : instr;
        ps_queue a = p->instrs[from].queue, b = in->queue;
        if (a == b)
            continue;
        most = larger(most, b == PS_QUEUE_CPU   ? g->to_cpu_s.median
                            : a == PS_QUEUE_CPU ? g->to_gpu_s.median
                                                : g->event_wait_s.median);
    }
    return most;
}

/* Attention of `seqs` sequences from the time of one. The CPU takes one after the other. The GPU takes all in one launch: each
 * further one adds its bytes, at most the time of the first. */
static double all_sequences(const ps_lower_request *r, const ps_instr *in, uint32_t layer,
                            const ps_cost_query *q, double one_s, double seqs) {
    double rate = r->profile->gpu.hbm_read_bytes_per_s.median * attention_of_hbm;
    if (in->queue == PS_QUEUE_CPU || q->beside == PS_BESIDE_DIRECT || !(rate > 0))
        return one_s * seqs;
    const ps_layer *y = &r->model->layers[layer];
    double bytes = ps_kv_row_bytes(y) * q->kv_len;
    return one_s + (seqs - 1) * fmin(one_s, bytes / rate);
}

static ps_cost alone(const ps_lower_request *r, const ps_program *p, uint32_t instr, uint32_t layer,
                     uint64_t kv_len) {
    const ps_instr *in = &p->instrs[instr];
    if (in->op == PS_OP_COPY)
        return copy_cost(r, p, in, layer, kv_len);
    ps_cost_query q = ps_lower_query(r->model, layer, in, p);
    q.n_threads = in->queue == PS_QUEUE_CPU ? r->n_threads : 0;
    double tokens = (double)tokens_of(r, p, in);
    bool tiles = r->max_tokens > PS_TILE_TOKENS;
    if (in->op == PS_OP_MOE_DISPATCH && r->level)
        return mixture(r, p, in, layer, q, tokens);
    if (in->op != PS_OP_ATTENTION)
        return one(r, p, in, layer, q, tokens);

    /* Points were measured with T rows of one sequence, the last seeing kv_len, without a window: asked for is the
     * point whose rows see as much on average. A step of at most one token per sequence reads each sequence's cache. */
    double window = r->model->layers[layer].window;
    double seqs = r->max_tokens <= r->n_seqs ? (double)r->max_tokens : 1;
    if (r->level && r->max_tokens > r->bucket_tokens) { /* prompts of several sequences, each of a bucket */
        double runs = tokens / (double)r->bucket_tokens;
        q.kv_len = mean_visible((double)r->bucket_tokens, (double)r->bucket_tokens, window) +
                   ((double)r->bucket_tokens - 1) / 2;
        ps_cost c = one(r, p, in, layer, q, fmin(tokens, (double)r->bucket_tokens));
        c.time_s *= fmax(runs, 1);
        return c;
    }
    uint64_t n_tiles = tiles ? (r->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS : 1;
    if (in->queue == PS_QUEUE_GPU && in->kv == PS_KV_HOME && r->level &&
        r->level->kv[layer].space == PS_SPACE_HOST)
        q.beside = PS_BESIDE_DIRECT;
    ps_cost sum = {0, PS_COST_MEASURED};
    for (uint64_t i = 0; i < n_tiles; i++) {
        double tile = (double)i;
        double t = seqs > 1 ? 1
                   : tiles  ? fmin(PS_TILE_TOKENS, (double)r->max_tokens - tile * PS_TILE_TOKENS)
                            : tokens;
        double before = fmax((double)kv_len - (double)r->max_tokens / seqs, 0);
        double after = before + (seqs > 1 ? 1 : fmin((tile + 1) * PS_TILE_TOKENS, (double)r->max_tokens));
        q.kv_len = mean_visible(t, after, window) + (t - 1) / 2;
        ps_cost c = one(r, p, in, layer, q, t);
        sum.time_s += all_sequences(r, in, layer, &q, c.time_s, seqs) / (double)n_tiles;
        sum.quality = c.quality > sum.quality ? c.quality : sum.quality;
    }
    return sum;
}

ps_cost ps_instr_cost(const ps_lower_request *r, const ps_program *p, uint32_t instr, uint32_t layer,
                      uint64_t kv_len) {
    ps_cost c = alone(r, p, instr, layer, kv_len);
    if (p->instrs[instr].queue == PS_QUEUE_GPU && p->instrs[instr].op != PS_OP_COPY)
        c.time_s = launched(r, c.time_s);
    if (r->level)
        c.time_s += hand_over(r, p, instr);
    return c;
}

/* May a GPU instruction read a weight where it is in the host's memory? Of a mixture VRAM holds the resident experts: others
 * that it takes are read there. */
static bool is_direct(const ps_instr *in, int w) {
    return in->w[w] != PS_ROLE_NONE &&
           (in->at[w] == PS_AT_HOST || (in->op == PS_OP_MOE_DISPATCH && in->at[w] == PS_AT_VRAM));
}

static bool reads_host(const ps_instr *in) {
    bool direct = false;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        direct |= is_direct(in, i);
    return direct;
}

/* Bytes of weights that a GPU instruction is expected to read from the host: of a mixture those of the selected experts that
 * are neither resident nor fetched. */
static double direct_bytes(const ps_lower_request *r, const ps_program *p, const ps_instr *in,
                           uint32_t layer) {
    double bytes = 0;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        const ps_weight *w = is_direct(in, i) ? ps_model_weight(r->model, layer, in->w[i]) : NULL;
        if (!w)
            continue;
        double part = (double)w->bytes;
        if (in->op == PS_OP_MOE_DISPATCH && w->experts > 1)
            part *= ps_instr_experts(r, p, in, layer).direct / (double)w->experts;
        else if (w->experts <= 1)
            part *= (in->n_rows ? (double)in->n_rows / (double)w->rows : 1) *
                    (in->n_cols ? (double)in->n_cols / (double)w->cols : 1);
        bytes += part;
    }
    return bytes;
}

/* Bytes of a cache in host memory that attention on the GPU reads there, of the rows that the step's tokens see. */
static double kv_bytes(const ps_lower_request *r, const ps_instr *in, uint32_t layer, uint64_t kv_len) {
    if (in->op != PS_OP_ATTENTION || in->kv != PS_KV_HOME || !r->level ||
        r->level->kv[layer].space != PS_SPACE_HOST)
        return 0;
    const ps_layer *y = &r->model->layers[layer];
    const double seqs = r->max_tokens <= r->n_seqs ? (double)r->max_tokens : 1;
    double rows = seqs * (double)kv_len;
    if (y->window && rows > seqs * y->window)
        rows = seqs * y->window;
    return rows * ps_kv_row_bytes(y);
}

double ps_instr_bus_share(const ps_lower_request *r, const ps_program *p, uint32_t instr, uint32_t layer,
                          uint64_t kv_len, double time_s) {
    const ps_instr *in = &p->instrs[instr];
    bool copy = in->op == PS_OP_COPY;
    if (in->queue == PS_QUEUE_CPU || !(time_s > 0))
        return 0;
    double bytes = copy ? copy_bytes(r, p, in, layer, kv_len)
                   : in->queue == PS_QUEUE_GPU
                       ? direct_bytes(r, p, in, layer) + kv_bytes(r, in, layer, kv_len)
                       : 0;
    double rate = ps_cost_bus_bytes_per_s(r->cost, bus_of(in->queue), 16 << 20);
    return rate > 0 && bytes > 0 ? fmin(bytes / (rate * time_s), 1) : 0;
}

/* A fraction by share: from 1 at none of the bus along the lines between what was measured. */
static double along(const ps_slowing *s, const double *value, double share) {
    double from = 0, was = 1;
    for (uint32_t i = 0; i < s->n; i++) {
        if (share <= s->share[i])
            return was + (value[i] - was) * (share - from) / (s->share[i] - from);
        from = s->share[i];
        was = value[i];
    }
    return was;
}

double ps_slowing_cpu(const ps_slowing *s, double share) {
    return along(s, s->cpu, share);
}

double ps_slowing_bus(const ps_slowing *s, double share) {
    return along(s, s->bus, share);
}

static double share_of(const ps_contention *c, const ps_instr *in) {
    return !in ? 0 : c->bus_share ? c->bus_share[in - c->instrs] : 1;
}

/* Of the smaller of two, and the larger: inline, for the simulation's innermost loop. */
static double least(double a, double b) {
    return b < a ? b : a;
}

static bool reads_weights(const ps_instr *in) {
    bool reads = false;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        reads |= in->w[i] != PS_ROLE_NONE;
    return reads;
}

/* Whether a GPU instruction may read the host's memory. That one reads caches there its share says; without shares weights alone are
 * known. */
static bool asks(const ps_contention *c, const ps_instr *gpu) {
    return gpu->op != PS_OP_COPY && (c->bus_share || reads_host(gpu));
}

double ps_instr_speed(void *ctx, const ps_instr *const running[PS_QUEUE_COUNT], ps_queue q) {
    const ps_contention *c = ctx;
    const ps_instr *gpu = running[PS_QUEUE_GPU], *cpu = running[PS_QUEUE_CPU], *in = running[PS_QUEUE_H2D],
                   *back = running[PS_QUEUE_D2H];
    if (q == PS_QUEUE_CPU) {
        if (!reads_weights(cpu))
            return 1;
        double speed = 1; /* beside a bus that nothing is asked of */
        if (gpu && asks(c, gpu))
            speed = least(speed, ps_slowing_cpu(&c->by[PS_BUS_DIRECT], share_of(c, gpu)));
        if (in)
            speed = least(speed, ps_slowing_cpu(&c->by[PS_BUS_H2D], share_of(c, in)));
        return back ? least(speed, ps_slowing_cpu(&c->by[PS_BUS_D2H], share_of(c, back))) : speed;
    }
    bool reads = cpu && reads_weights(cpu);
    if (q == PS_QUEUE_D2H)
        return reads ? ps_slowing_bus(&c->by[PS_BUS_D2H], share_of(c, back)) : 1;
    double direct = gpu && asks(c, gpu) ? share_of(c, gpu) : 0, copied = share_of(c, in);
    double shared = larger(direct + copied, 1); /* copies and direct reads share one bus */
    if (shared > 1)
        return 1 / shared;
    return !reads              ? 1
           : q == PS_QUEUE_GPU ? ps_slowing_bus(&c->by[PS_BUS_DIRECT], direct)
                               : ps_slowing_bus(&c->by[PS_BUS_H2D], copied);
}

/* What each side keeps at one share, of rates of both at once. */
static void keep(const ps_cost_model *cost, uint32_t n_threads, double share, double alone, double bus,
                 double dram, double *out_cpu, double *out_bus) {
    double reads = ps_cost_dram_alone(cost, n_threads), wanted = share * alone;
    double cpu = reads > 0 ? fmin(fmax(dram / reads, 0.05), 1) : 1;
    double b = wanted > 0 ? fmin(fmax(bus / wanted, 0.05), 1) : 1;
    /* Kernels may ask for more than what was measured beside the bus did: flat out both get their part of what there is. */
    double most = ps_cost_dram_bytes_per_s(cost, n_threads), asked = most + wanted;
    double part = asked > 0 ? fmax((bus + dram) / asked, 0.05) : 1;
    if (share < 1) {
        cpu *= most > reads && reads > 0 ? reads / most : 1;
        part = 1;
    }
    *out_cpu = fmin(cpu, part);
    *out_bus = fmin(b, part);
}

ps_contention ps_contention_of(const ps_cost_model *cost, uint32_t n_threads) {
    ps_contention c = {0};
    for (int which = 0; which < PS_BUS_COUNT; which++) {
        ps_slowing *s = &c.by[which];
        double alone = ps_cost_bus_bytes_per_s(cost, (ps_bus)which, 16 << 20), bus, dram, cpu_all, bus_all;
        ps_cost_together(cost, (ps_bus)which, n_threads, &bus, &dram);
        keep(cost, n_threads, 1, alone, bus, dram, &cpu_all, &bus_all);
        s->n = ps_cost_shares(cost, (ps_bus)which, s->share, PS_CONTENTION_SHARES - 1);
        double cpu_least = cpu_all, bus_least = bus_all;
        for (uint32_t i = s->n; i-- > 0;) { /* a bus that is asked for less is never more in the way */
            s->cpu[i] = s->bus[i] = 0;
            if (ps_cost_paced(cost, (ps_bus)which, s->share[i], n_threads, &bus, &dram))
                keep(cost, n_threads, s->share[i], alone, bus, dram, &s->cpu[i], &s->bus[i]);
            s->cpu[i] = cpu_least = fmax(s->cpu[i], cpu_least);
            s->bus[i] = bus_least = fmax(s->bus[i], bus_least);
        }
        s->share[s->n] = 1;
        s->cpu[s->n] = cpu_all;
        s->bus[s->n++] = bus_all;
    }
    return c;
}
