/* Raw and reachable bound: see bounds.h. */
#include "plan/bounds.h"

#include <math.h>
#include <stdlib.h>

static const double barriers_per_layer_s = 5e-6, hand_over_per_layer_s = 15e-6;

/* Shares of the host's work that are tried for the CPU. */
enum { SHARES = 1000 };

ps_step_work ps_step_work_of(const ps_lower_request *r, uint64_t kv_len) {
    const ps_model *m = r->model;
    ps_step_work w = {0};
    /* As the cost of attention takes it: a token each for some sequences, or a run of tokens of one. */
    double seqs = r->max_tokens <= r->n_seqs ? (double)r->max_tokens : 1;
    uint64_t per_seq = seqs > 1 ? 1 : r->max_tokens;
    if (r->level && r->max_tokens > r->bucket_tokens) { /* prompts of several sequences */
        seqs = (double)r->max_tokens / (double)r->bucket_tokens;
        per_seq = r->bucket_tokens;
    }
    for (uint32_t s = 0; s < m->n_shards; s++)
        for (uint32_t i = 0; i < m->shards[s].n_ops; i++) {
            const ps_op_desc *d = &m->shards[s].ops[i];
            bool head = m->shards[s].kind == PS_SHARD_HEAD;
            uint64_t tokens = head ? r->max_outputs : r->max_tokens;
            double bytes = ps_op_weight_bytes(m, m->shards[s].layer, d, tokens), flops;
            w.weight_bytes += bytes;
            bool minor = d->op != PS_OP_MATMUL && d->op != PS_OP_MOE_DISPATCH && d->op != PS_OP_ATTENTION;
            w.minor_bytes += minor ? bytes : 0;
            if (d->op == PS_OP_ATTENTION) {
                flops = seqs * ps_op_flops(m, m->shards[s].layer, d, per_seq, kv_len);
                w.attention_flops += flops;
            } else {
                flops = ps_op_flops(m, m->shards[s].layer, d, tokens, kv_len);
                if (d->op == PS_OP_MOE_DISPATCH) {
                    w.expert_bytes += bytes;
                    w.expert_flops += flops;
                    for (int k = 0; k < PS_OP_MAX_WEIGHTS; k++) {
                        const ps_weight *x = ps_model_weight(m, m->shards[s].layer, d->w[k]);
                        w.all_expert_bytes += x ? (double)x->bytes : 0;
                    }
                }
                if (head) {
                    w.head_bytes += bytes;
                    w.head_flops += flops;
                }
                if (m->shards[s].kind == PS_SHARD_ATTN) {
                    w.attn_bytes += bytes;
                    w.attn_matrix_flops += flops;
                }
            }
            w.flops += flops;
            w.minor_flops += minor ? flops : 0;
        }
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const ps_layer *y = &m->layers[l];
        double row = ps_kv_row_bytes(y);
        double held = (double)kv_len;
        if (y->window && held > (double)y->window + (double)per_seq)
            held = (double)y->window + (double)per_seq;
        w.kv_bytes += seqs * held * row + (double)r->max_tokens * row;
        w.minor_bytes += (double)r->max_tokens * row;
    }
    return w;
}

static double over(double amount, double rate) {
    return rate > 0 ? amount / rate : 0;
}

/* Without what is small and may never leave a cache: its calls' times say nothing of ceilings. */
static ps_step_work major(const ps_lower_request *r, uint64_t kv_len) {
    ps_step_work w = ps_step_work_of(r, kv_len);
    double written = 0;
    for (uint32_t l = 0; l < r->model->n_layers; l++) {
        const ps_layer *y = &r->model->layers[l];
        written += (double)r->max_tokens * ps_kv_row_bytes(y);
    }
    w.kv_bytes -= written;
    w.weight_bytes -= w.minor_bytes - written;
    w.flops -= w.minor_flops;
    return w;
}

/* ---- the best that was seen of each resource ---- */

/* Rates: bytes and FLOPs per second. cpu_beside, bus_beside: those of both while the other is busy. */
typedef struct ceilings {
    double dram, cpu_flops, bus, dram_beside, bus_beside, hbm, gpu_flops, attention_flops;
} ceilings;

/* Fastest kernel of one side for an operation; 0: none was measured. */
static double fastest_s(const ps_lower_request *r, ps_op op, ps_dtype type, ps_processor device,
                        ps_beside beside, ps_cost_query q) {
    const ps_profile *p = r->profile;
    double best = 0;
    q.n_threads = device == PS_DEV_CPU ? r->n_threads : 0;
    q.beside = beside;
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        const ps_kernel_spec *k = &p->kernels[i];
        ps_cost c;
        if (k->op != op || k->device != device || (type != PS_DTYPE_NONE && k->wtype != type) ||
            q.n_tokens < k->min_tokens || q.n_tokens > k->max_tokens)
            continue;
        q.kernel = k->id;
        bool found = op == PS_OP_ATTENTION ? ps_cost_lookup_cached(r->cost, r->cache, &q, &c)
                                           : ps_cost_of_product(r, &q, &c);
        if (found && c.time_s > 0 && (best == 0 || c.time_s < best))
            best = c.time_s;
    }
    return best;
}

static void raise_to(double *rate, double amount, double time_s) {
    if (time_s > 0 && amount / time_s > *rate)
        *rate = amount / time_s;
}

/* What the profile's points of one operation of the step say: whole, and in parts as splits cut it. */
static void see_product(const ps_lower_request *r, uint32_t layer, const ps_op_desc *d, uint64_t tokens,
                        ceilings *c) {
    static const uint64_t parts[] = {1, 4, 16};
    const ps_layer *y = layer < r->model->n_layers ? &r->model->layers[layer] : NULL;
    const ps_weight *w = ps_model_weight(r->model, layer, d->w[0]);
    bool moe = d->op == PS_OP_MOE_DISPATCH;
    if (!w || (moe && !y))
        return;
    double bytes = ps_op_weight_bytes(r->model, layer, d, tokens),
           flops = ps_op_flops(r->model, layer, d, tokens, 1);
    for (int along = 0; along < 2; along++) /* rows, then columns */
        for (size_t i = along ? 1 : 0; i < (moe ? 1 : sizeof parts / sizeof parts[0]); i++) {
            ps_cost_query q = {.rows = moe ? y->n_ff_expert : w->rows,
                               .cols = moe ? r->model->n_embd : w->cols,
                               .heads_kv = moe ? y->n_expert : 0,
                               .kv_len = moe ? y->n_expert_used : 0,
                               .n_tokens = tokens};
            uint64_t *cut = along ? &q.cols : &q.rows;
            if (!moe && *cut / parts[i] == 0)
                continue;
            double share = moe ? 1 : (double)(*cut / parts[i]) / (double)*cut;
            if (!moe)
                *cut /= parts[i];
            double cpu = fastest_s(r, d->op, w->type, PS_DEV_CPU, PS_BESIDE_IDLE, q);
            if (moe || !(ps_cost_cold_bytes_per_s(r) > 0))
                raise_to(&c->dram, bytes * share, cpu);
            raise_to(&c->cpu_flops, flops * share, cpu);
            if (!r->level)
                continue;
            double gpu = fastest_s(r, d->op, w->type, PS_DEV_CUDA, PS_BESIDE_IDLE, q);
            raise_to(&c->hbm, bytes * share, gpu);
            raise_to(&c->gpu_flops, flops * share, gpu);
            if (tokens <= PS_PLAN_DECODE_TOKENS)
                raise_to(&c->bus, bytes * share,
                         fastest_s(r, d->op, w->type, PS_DEV_CUDA, PS_BESIDE_DIRECT, q));
        }
}

static bool alike(const ps_model *m, uint32_t a, uint32_t b) {
    const ps_layer *x = &m->layers[a], *y = &m->layers[b];
    bool same =
        x->n_ff == y->n_ff && x->n_expert == y->n_expert && x->n_head == y->n_head && x->window == y->window;
    for (int i = 0; same && i < PS_ROLE_COUNT; i++)
        same = (x->w[i] != NULL) == (y->w[i] != NULL) && (!x->w[i] || x->w[i]->type == y->w[i]->type);
    return same;
}

/* Attention of a layer, of one sequence. */
static void see_attention(const ps_lower_request *r, uint32_t layer, uint64_t kv_len, uint64_t tokens,
                          ceilings *c) {
    const ps_layer *y = &r->model->layers[layer];
    double held = (double)kv_len, t = (double)tokens;
    if (y->window && held > (double)y->window + t)
        held = (double)y->window + t;
    ps_cost_query q = {.rows = y->n_head,
                       .cols = y->head_dim_k,
                       .heads_kv = y->n_head_kv,
                       .kv_len = held,
                       .n_tokens = tokens};
    double bytes = ps_kv_row_bytes(y) * held, flops = (t * held - t * (t - 1) / 2) * y->n_head *
                                                      (2.0 * ((double)y->head_dim_k + y->head_dim_v) + 5);
    double cpu = fastest_s(r, PS_OP_ATTENTION, PS_DTYPE_NONE, PS_DEV_CPU, PS_BESIDE_IDLE, q);
    raise_to(&c->dram, bytes, cpu);
    raise_to(&c->cpu_flops, flops, cpu);
    if (!r->level)
        return;
    double gpu = fastest_s(r, PS_OP_ATTENTION, PS_DTYPE_NONE, PS_DEV_CUDA, PS_BESIDE_IDLE, q);
    raise_to(&c->hbm, bytes, gpu);
    raise_to(&c->attention_flops, flops, gpu);
    raise_to(&c->bus, bytes, fastest_s(r, PS_OP_ATTENTION, PS_DTYPE_NONE, PS_DEV_CUDA, PS_BESIDE_DIRECT, q));
}

/* Ceilings of the profile, raised by what any of its points that the step can use has reached. */
static ceilings best_seen(const ps_lower_request *r, uint64_t kv_len) {
    const ps_model *m = r->model;
    const ps_profile_gpu *g = &r->profile->gpu;
    ceilings c = {.dram = ps_cost_dram_bytes_per_s(r->cost, r->n_threads),
                  .cpu_flops = ps_cost_matmul_flops_per_s(r->cost, r->n_threads)};
    c.dram = fmax(c.dram, ps_cost_cold_bytes_per_s(r));
    double known = c.dram;
    if (r->level) {
        c.hbm = g->hbm_read_bytes_per_s.median;
        c.gpu_flops = g->matmul_flops_per_s.median;
        c.attention_flops = g->attention_flops_per_s.median;
        for (int i = 0; i < PS_BUS_COUNT; i++)
            if (i != PS_BUS_D2H)
                c.bus = fmax(c.bus, ps_cost_bus_bytes_per_s(r->cost, (ps_bus)i, 1e12));
        for (uint32_t i = 0; i < g->n_copies; i++)
            if (g->copies[i].bus != PS_BUS_D2H && g->copies[i].kind == PS_HOST_KIND_PINNED)
                c.bus = fmax(c.bus, g->copies[i].bw_bytes_per_s.median);
    }
    uint64_t tokens = r->max_tokens < PS_TILE_TOKENS ? r->max_tokens : PS_TILE_TOKENS;
    bool one_each = r->max_tokens <= r->n_seqs;
    for (uint32_t s = 0; s < m->n_shards; s++) {
        const ps_shard *shard = &m->shards[s];
        bool head = shard->kind == PS_SHARD_HEAD, layered = !head && shard->kind != PS_SHARD_EMBED;
        if (layered && shard->layer && alike(m, shard->layer - 1, shard->layer))
            continue;
        for (uint32_t i = 0; i < shard->n_ops; i++) {
            const ps_op_desc *d = &shard->ops[i];
            if (d->op == PS_OP_MATMUL || d->op == PS_OP_MOE_DISPATCH)
                see_product(r, shard->layer, d, head ? r->max_outputs : tokens, &c);
            else if (d->op == PS_OP_ATTENTION)
                see_attention(r, shard->layer, kv_len, one_each ? 1 : tokens, &c);
        }
    }
    if (r->level) {
        ps_contention slow = ps_contention_of(r->cost, r->n_threads);
        double alone = c.bus, b, d;
        for (int i = 0; i < 2; i++) { /* copies or direct reads, whichever bring more beside the CPU */
            ps_cost_together(r->cost, i ? PS_BUS_DIRECT : PS_BUS_H2D, r->n_threads, &b, &d);
            if (b + d > c.bus_beside + c.dram_beside) {
                c.bus_beside = b;
                c.dram_beside = d;
            }
        }
        /* As far as the points are above the tables, so are both together. */
        if (c.dram > known)
            c.dram_beside = fmax(c.dram_beside, c.dram * fmax(ps_slowing_cpu(&slow.by[PS_BUS_H2D], 1),
                                                              ps_slowing_cpu(&slow.by[PS_BUS_DIRECT], 1)));
        c.bus_beside = fmax(c.bus_beside, alone * fmax(ps_slowing_bus(&slow.by[PS_BUS_H2D], 1),
                                                       ps_slowing_bus(&slow.by[PS_BUS_DIRECT], 1)));
        c.dram_beside = fmax(c.dram_beside, known * fmax(ps_slowing_cpu(&slow.by[PS_BUS_H2D], 1),
                                                         ps_slowing_cpu(&slow.by[PS_BUS_DIRECT], 1)));
    }
    return c;
}

/* Parts of a step's weights and caches, with as many FLOPs for a byte throughout. */
typedef struct piece {
    double bytes, flops;
} piece;

enum { N_PIECES = 3, HEAD_SHARES = 4 };

static int fewest_flops_first(const void *pa, const void *pb) {
    const piece *a = pa, *b = pb;
    double x = a->flops * b->bytes, y = b->flops * a->bytes;
    return x < y ? -1 : x > y;
}

/* FLOPs that come with `bytes` of the step's, at least (of the pieces from the first on) or at most (from the last). */
static double flops_with(const piece *p, double bytes, bool least) {
    double sum = 0;
    for (int i = 0; i < N_PIECES && bytes > 0; i++) {
        const piece *x = &p[least ? i : N_PIECES - 1 - i];
        double part = x->bytes > 0 ? fmin(bytes / x->bytes, 1) : 0;
        sum += part * x->flops;
        bytes -= part * x->bytes;
    }
    return sum;
}

/* With a GPU. What the budget leaves beside CUDA context and libraries holds what every step reads first (all but experts, and
 * the KV), then experts. What is left on the host is divided between CPU and bus. */
static void gpu_bounds(const ps_lower_request *r, double room, uint64_t kv_len, double *out_raw_s,
                       double *out_reachable_s) {
    ps_step_work w = major(r, kv_len);
    ceilings c = best_seen(r, kv_len);
    double always = w.weight_bytes - w.expert_bytes + w.kv_bytes, held = fmin(room, always);
    double experts = w.all_expert_bytes > 0 ? fmin((room - held) / w.all_expert_bytes, 1) : 0;
    double resident = held + experts * w.expert_bytes, all = always + w.expert_bytes, left = all - resident;
    double product_flops = w.flops - w.attention_flops;
    piece pieces[N_PIECES] = {
        {w.kv_bytes, 0},
        {w.expert_bytes, w.expert_flops},
        {w.weight_bytes - w.expert_bytes - w.head_bytes, product_flops - w.expert_flops - w.head_flops}};
    qsort(pieces, N_PIECES, sizeof pieces[0], fewest_flops_first);
    /* Attention stands between one layer's experts or columns and the next's: the CPU waits for it. */
    double serial =
        fmax(over(w.attn_bytes + w.kv_bytes, c.hbm),
             over(w.attn_matrix_flops, c.gpu_flops) + over(w.attention_flops, c.attention_flops)) +
        hand_over_per_layer_s * r->model->n_layers;
    double raw = INFINITY, reachable = INFINITY;
    /* Of the host's bytes the CPU takes some while layers run, of which it has the FLOPs, and some of the head's, behind all
     * layers. What the GPU does not compute then has as many FLOPs as there can be. */
    double head = fmin(w.head_bytes, left);
    for (int k = 0; k <= HEAD_SHARES; k++)
        for (int i = 0; i <= SHARES; i++) {
            double behind = head * k / HEAD_SHARES, during = (left - behind) * i / SHARES;
            double by_cpu = behind + during, by_bus = left - by_cpu;
            double t_cpu = fmax(over(during, by_bus > 0 ? c.dram_beside : c.dram),
                                over(flops_with(pieces, during, true), c.cpu_flops));
            double gpu_flops =
                fmax(product_flops - flops_with(pieces, during, false) - (behind > 0 ? w.head_flops : 0), 0);
            double t_gpu = fmax(over(resident + by_bus, c.hbm),
                                over(gpu_flops, c.gpu_flops) + over(w.attention_flops, c.attention_flops));
            double layers_bus = over(fmax(by_bus - (head - behind), 0), by_cpu > 0 ? c.bus_beside : c.bus);
            double others = fmax(layers_bus, t_gpu), tail = over(behind, c.dram),
                   bus = over(by_bus, by_cpu > 0 ? c.bus_beside : c.bus);
            raw = fmin(raw, fmax(fmax(t_cpu, others) + tail, bus));
            /* The GPU's time has its attention in it. */
            t_cpu += during > 0 ? serial : 0;
            reachable = fmin(reachable, fmax(fmax(t_cpu, others) + tail, bus));
        }
    *out_raw_s = raw;
    *out_reachable_s = reachable;
}

double ps_bound_in_vram(const ps_lower_request *r) {
    double raw, reachable;
    gpu_bounds(r, INFINITY, r->bucket_tokens, &raw, &reachable);
    return raw;
}

double ps_bound_hand_over_s(const ps_lower_request *r) {
    return (r->level ? hand_over_per_layer_s : barriers_per_layer_s) * r->model->n_layers;
}

static void bounds_at(const ps_lower_request *r, uint64_t kv_len, double *out_raw_s,
                      double *out_reachable_s) {
    if (r->level) {
        gpu_bounds(r, fmax((double)r->level->budget_bytes - (double)r->profile->gpu.base_bytes, 0), kv_len,
                   out_raw_s, out_reachable_s);
        return;
    }
    ps_step_work w = major(r, kv_len);
    ceilings c = best_seen(r, kv_len);
    *out_raw_s = fmax(over(w.weight_bytes + w.kv_bytes, c.dram), over(w.flops, c.cpu_flops));
    *out_reachable_s = *out_raw_s + barriers_per_layer_s * r->model->n_layers;
}

/* Least time of operations that no program of the planner's cuts up or runs beside each other: attention blocks, and of
 * feed-forward blocks all but the products. */
static double chain_s(const ps_lower_request *r, uint64_t kv_len) {
    const ps_model *m = r->model;
    const ps_profile *p = r->profile;
    uint64_t tokens = r->max_tokens < PS_TILE_TOKENS ? r->max_tokens : PS_TILE_TOKENS;
    double sum = 0, layer_s = 0;
    bool one_each = r->max_tokens <= r->n_seqs;
    for (uint32_t s = 0; s < m->n_shards; s++) {
        const ps_shard *shard = &m->shards[s];
        if (shard->kind == PS_SHARD_HEAD || shard->kind == PS_SHARD_EMBED)
            continue;
        bool attn = shard->kind == PS_SHARD_ATTN;
        if (attn && shard->layer && alike(m, shard->layer - 1, shard->layer)) {
            sum += layer_s; /* with its feed-forward block */
            s++;
            continue;
        }
        layer_s = attn ? 0 : layer_s;
        for (uint32_t i = 0; i < shard->n_ops; i++) {
            const ps_op_desc *d = &shard->ops[i];
            double best = fmin(p->barrier_s.median, p->gpu.graph_node_s.median);
            if (d->op == PS_OP_MATMUL && attn) {
                const ps_weight *w = ps_model_weight(m, shard->layer, d->w[0]);
                ps_cost_query q = {.rows = w ? w->rows : 0, .cols = w ? w->cols : 0, .n_tokens = tokens};
                double cpu = w ? fastest_s(r, d->op, w->type, PS_DEV_CPU, PS_BESIDE_IDLE, q) : 0,
                       gpu = w ? fastest_s(r, d->op, w->type, PS_DEV_CUDA, PS_BESIDE_IDLE, q) : 0;
                best = cpu > 0 && gpu > 0 ? fmin(cpu, gpu) : best;
            } else if (d->op == PS_OP_MATMUL || d->op == PS_OP_MOE_DISPATCH || d->op == PS_OP_GLU) {
                best = 0;
            } else {
                const ps_layer *y = &m->layers[shard->layer];
                ps_cost_query q = {.cols = d->cols, .n_tokens = tokens};
                if (d->op == PS_OP_ATTENTION)
                    q = (ps_cost_query){.rows = y->n_head,
                                        .cols = y->head_dim_k,
                                        .heads_kv = y->n_head_kv,
                                        .kv_len =
                                            y->window && y->window < kv_len ? y->window : (double)kv_len,
                                        .n_tokens = one_each ? 1 : tokens};
                else if (d->op == PS_OP_MOE_ROUTE)
                    q.heads_kv = y->n_expert, q.kv_len = y->n_expert_used;
                double cpu = fastest_s(r, d->op, PS_DTYPE_NONE, PS_DEV_CPU, PS_BESIDE_IDLE, q),
                       gpu = fastest_s(r, d->op, PS_DTYPE_NONE, PS_DEV_CUDA, PS_BESIDE_IDLE, q);
                best = cpu > 0 && gpu > 0 ? fmin(cpu, gpu) : best;
            }
            layer_s += best;
        }
        if (!attn)
            sum += layer_s;
    }
    double tiles = ceil((double)r->max_tokens / PS_TILE_TOKENS);
    return sum * tiles;
}

double ps_search_bound(const ps_lower_request *r, uint64_t kv_len) {
    const ps_profile_gpu *g = &r->profile->gpu;
    ps_step_work w = major(r, kv_len);
    ceilings c = best_seen(r, kv_len);
    double room = fmax((double)r->level->budget_bytes - (double)g->base_bytes, 0), chain = chain_s(r, kv_len);
    double always = w.weight_bytes - w.expert_bytes + w.kv_bytes, held = fmin(room, always);
    double experts = w.all_expert_bytes > 0 ? fmin((room - held) / w.all_expert_bytes, 1) : 0;
    double left = always + w.expert_bytes - held - experts * w.expert_bytes;
    left = fmax(left - w.attn_bytes - w.head_bytes - w.kv_bytes, 0);
    if (w.all_expert_bytes > 0) /* as if all room were theirs */
        left = fmax(left, w.expert_bytes * (1 - fmin(room / w.all_expert_bytes, 1)));
    double best = INFINITY, raw = ps_raw_bound(r, kv_len);
    /* Of the rest the CPU takes some and the GPU reads some itself, both between the serial operations. What is copied comes
     * meanwhile, but as a whole: of experts also those that the step does not select. */
    enum { COPIED = 20, BY_CPU = 100 };
    double more = w.expert_bytes > 0 && w.expert_bytes >= left ? w.all_expert_bytes / w.expert_bytes : 1;
    for (int k = 0; k <= COPIED; k++)
        for (int i = 0; i <= BY_CPU; i++) {
            double copied = left * k / COPIED, cpu = (left - copied) * i / BY_CPU,
                   direct = left - copied - cpu;
            double bus = cpu > 0 ? c.bus_beside : c.bus, dram = copied + direct > 0 ? c.dram_beside : c.dram;
            double t = chain + fmax(over(cpu, dram), over(direct, bus));
            best = fmin(best, fmax(t, over(direct + copied * more, bus)));
        }
    return fmax(best, raw);
}

double ps_raw_bound(const ps_lower_request *r, uint64_t kv_len) {
    double raw, reachable;
    bounds_at(r, kv_len, &raw, &reachable);
    return raw;
}

void ps_bounds(const ps_lower_request *r, double *out_raw_s, double *out_reachable_s) {
    bounds_at(r, r->bucket_tokens, out_raw_s, out_reachable_s);
}
