/* Places by rule: see family.h. */
#include "plan/family.h"

#include <math.h>
#include <string.h>

/* Slots and ranges: two of 16 MiB keep the bus busy while few rows are computed, three of 32 MiB while many are. Where
 * the CPU and the bus share the feed-forward blocks, the attention matrices of the next layer come meanwhile: a slot
 * for each of the four. */
enum {
    FEW_SLOTS = 2,
    FEW_RANGE = 16 << 20,
    MANY_SLOTS = 3,
    MANY_RANGE = 32 << 20,
    ATTN_SLOTS = 4,
    ATTN_RANGE = 128 << 20,
    HEAD_ROWS = 256
};

#define FAMILY_NAME(name, text) text,
static const char *const family_names[] = {PS_FAMILY_LIST(FAMILY_NAME)};
#undef FAMILY_NAME

const char *ps_family_name(ps_family family) {
    return family < PS_FAMILY_COUNT ? family_names[family] : "?";
}

ps_family ps_family_by_name(const char *name) {
    int f = 0;
    while (f < PS_FAMILY_COUNT && strcmp(family_names[f], name) != 0)
        f++;
    return (ps_family)f;
}

uint64_t ps_family_max_step(ps_family family) {
    return family == PS_FAMILY_STATIC || family == PS_FAMILY_DYNAMIC ? PS_TILE_TOKENS : PS_PLAN_MAX_TOKENS;
}

/* ---- rates that the shares are balanced by ---- */

/* Seconds that a product of `rows` x `cols` of that type takes on one side: the fastest kernel that fits. Without points:
 * bytes at the ceiling of where they are. */
static double product_s(const ps_lower_request *r, ps_queue queue, ps_beside beside, ps_op op, ps_dtype type,
                        ps_cost_query q) {
    const ps_profile *p = r->profile;
    double best = INFINITY;
    q.n_threads = queue == PS_QUEUE_CPU ? r->n_threads : 0;
    q.beside = beside;
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        const ps_kernel_spec *k = &p->kernels[i];
        ps_cost c;
        q.kernel = k->id;
        if (k->op == op && k->wtype == type && q.n_tokens >= k->min_tokens && q.n_tokens <= k->max_tokens &&
            k->device == (queue == PS_QUEUE_CPU ? PS_DEV_CPU : PS_DEV_CUDA) && ps_cost_of_product(r, &q, &c))
            best = fmin(best, c.time_s);
    }
    if (isfinite(best))
        return best;
    double elements = (double)q.rows * (double)q.cols;
    if (op == PS_OP_MOE_DISPATCH)
        elements *= 3.0 * q.heads_kv * (1 - pow(1 - q.kv_len / q.heads_kv, (double)q.n_tokens));
    const ps_dtype_info *info = ps_dtype_find((uint32_t)type);
    double bytes = info ? elements * info->block_bytes / info->block_elems : elements * 4;
    double rate = queue == PS_QUEUE_CPU        ? ps_cost_dram_bytes_per_s(r->cost, r->n_threads)
                  : beside == PS_BESIDE_DIRECT ? ps_cost_bus_bytes_per_s(r->cost, PS_BUS_DIRECT, 16 << 20)
                                               : p->gpu.hbm_read_bytes_per_s.median;
    return rate > 0 ? bytes / rate : 0;
}

/* `columns` hidden columns of a layer's feed-forward block, on one side. */
static double hidden_s(const ps_lower_request *r, uint32_t layer, ps_queue queue, ps_beside beside,
                       uint64_t columns) {
    static const ps_role roles[] = {PS_ROLE_FFN_GATE, PS_ROLE_FFN_UP, PS_ROLE_FFN_DOWN};
    double sum = 0;
    for (int i = 0; i < 3 && columns; i++) {
        const ps_weight *w = ps_model_weight(r->model, layer, roles[i]);
        ps_cost_query q = {
            .rows = i < 2 ? columns : w->rows, .cols = i < 2 ? w->cols : columns, .n_tokens = r->max_tokens};
        sum += product_s(r, queue, beside, PS_OP_MATMUL, w->type, q);
    }
    return sum;
}

/* Of n pieces of work that the CPU does in cpu_s and the GPU, from the host, in gpu_s, those for the GPU such that both
 * end together: the CPU begins cpu_start_s, the GPU gpu_start_s later. */
static double share(double n, double cpu_start_s, double cpu_s, double gpu_start_s, double gpu_s) {
    if (n <= 0 || cpu_s + gpu_s <= 0)
        return 0;
    return fmin(fmax((cpu_start_s + cpu_s - gpu_start_s) / (cpu_s + gpu_s) * n, 0), n);
}

/* Of n pieces that the bus brings, x where the CPU does the others: all of them, if that gains next to nothing. */
static double worth_it(double n, double x) {
    return x > n * 0.9 ? n : x;
}

static double crossing_s(const ps_lower_request *r) {
    return r->profile->gpu.to_cpu_s.median + r->profile->gpu.to_gpu_s.median;
}

/* Rows of a step on their way to the CPU and back. */
static double rows_s(const ps_lower_request *r) {
    double rate = ps_cost_bus_bytes_per_s(r->cost, PS_BUS_DIRECT, 16 << 20);
    return rate > 0 ? 2.0 * (double)r->max_tokens * r->model->n_embd * 4 / rate : 0;
}

/* A layer's attention block on the GPU, resident: its products, and a launch for each of the others. */
static double attention_s(const ps_lower_request *r, uint32_t layer) {
    static const ps_role roles[] = {PS_ROLE_ATTN_Q, PS_ROLE_ATTN_K, PS_ROLE_ATTN_V, PS_ROLE_ATTN_OUT};
    const ps_shard *shard = &r->model->shards[1 + 2 * (uint64_t)layer];
    double sum = 2 * r->profile->gpu.graph_node_s.median * shard->n_ops;
    for (int i = 0; i < 4; i++) {
        const ps_weight *w = ps_model_weight(r->model, layer, roles[i]);
        ps_cost_query q = {.rows = w ? w->rows : 0, .cols = w ? w->cols : 0, .n_tokens = r->max_tokens};
        sum += w ? product_s(r, PS_QUEUE_GPU, PS_BESIDE_IDLE, PS_OP_MATMUL, w->type, q) : 0;
    }
    return sum;
}

uint64_t ps_rule_ffn_unit(const ps_model *m, uint32_t layer) {
    uint64_t step = ps_ffn_step(m, layer), n = m->layers[layer].n_expert;
    return n ? (n + 31) / 32 : step ? step : 1;
}

uint64_t ps_rule_head_unit(const ps_model *m) {
    uint64_t rows = m->w[PS_ROLE_OUTPUT]->rows / 32;
    return rows < HEAD_ROWS ? HEAD_ROWS : rows / HEAD_ROWS * HEAD_ROWS;
}

/* n and `shift` units more or fewer, of `rest`. */
static uint64_t shifted(uint64_t n, int shift, uint64_t unit, uint64_t rest) {
    uint64_t by = (uint64_t)(shift < 0 ? -shift : shift) * unit;
    n = n > rest ? rest : n;
    if (shift < 0)
        return n > by ? n - by : 0;
    return by > rest - n ? rest : n + by;
}

/* Columns behind the `held` resident ones that the GPU takes over the bus: read direct beside the CPU, or copied.
 * copied_bytes: of other weights that the bus brings in the meantime. */
static uint64_t hidden_share(const ps_lower_request *r, uint32_t layer, uint64_t held, bool copied,
                             double copied_bytes, int shift) {
    uint64_t all = r->model->layers[layer].n_ff, rest = all - held, step = ps_ffn_step(r->model, layer);
    ps_contention c = ps_contention_of(r->cost, r->n_threads);
    double h2d =
        ps_cost_bus_bytes_per_s(r->cost, PS_BUS_H2D, 16 << 20) * ps_slowing_bus(&c.by[PS_BUS_H2D], 1);
    double cpu = hidden_s(r, layer, PS_QUEUE_CPU, PS_BESIDE_IDLE, rest) /
                 (copied ? ps_slowing_cpu(&c.by[PS_BUS_H2D], 1) : ps_slowing_cpu(&c.by[PS_BUS_DIRECT], 1));
    double gpu =
        hidden_s(r, layer, PS_QUEUE_GPU, PS_BESIDE_DIRECT, rest) / ps_slowing_bus(&c.by[PS_BUS_DIRECT], 1);
    if (copied) {
        double bytes = 0;
        static const ps_role roles[] = {PS_ROLE_FFN_GATE, PS_ROLE_FFN_UP, PS_ROLE_FFN_DOWN};
        for (int i = 0; i < 3; i++)
            bytes += (double)ps_model_weight(r->model, layer, roles[i])->bytes * (double)rest / (double)all;
        gpu = h2d > 0 ? bytes / h2d : gpu;
    }
    double gpu_start = hidden_s(r, layer, PS_QUEUE_GPU, PS_BESIDE_IDLE, held);
    if (copied) /* copies go on while the GPU is at the attention block, and the CPU waits for it */
        gpu_start = -attention_s(r, layer);
    if (h2d > 0)
        gpu_start += copied_bytes / h2d;
    double x = share((double)rest, crossing_s(r) + rows_s(r) + 4 * r->profile->barrier_s.median, cpu,
                     gpu_start, gpu);
    if (copied)
        x = worth_it((double)rest, x);
    if (!step)
        return (x * 2 > (double)rest) != (shift != 0) ? rest : 0;
    return shifted((uint64_t)(x / (double)step + 0.5) * step, shift, ps_rule_ffn_unit(r->model, layer), rest);
}

static uint64_t head_share(const ps_lower_request *r, uint64_t held, int shift) {
    const ps_weight *w = r->model->w[PS_ROLE_OUTPUT];
    uint64_t rest = w->rows - held;
    ps_contention c = ps_contention_of(r->cost, r->n_threads);
    ps_cost_query q = {.rows = rest, .cols = w->cols, .n_tokens = r->max_outputs};
    if (!rest)
        return 0;
    double cpu = product_s(r, PS_QUEUE_CPU, PS_BESIDE_IDLE, PS_OP_MATMUL, w->type, q) /
                 ps_slowing_cpu(&c.by[PS_BUS_DIRECT], 1);
    double gpu = product_s(r, PS_QUEUE_GPU, PS_BESIDE_DIRECT, PS_OP_MATMUL, w->type, q) /
                 ps_slowing_bus(&c.by[PS_BUS_DIRECT], 1);
    q.rows = held;
    double start = held ? product_s(r, PS_QUEUE_GPU, PS_BESIDE_IDLE, PS_OP_MATMUL, w->type, q) : 0;
    uint64_t n =
        (uint64_t)(share((double)rest, crossing_s(r), cpu, start, gpu) / HEAD_ROWS + 0.5) * HEAD_ROWS;
    return shifted(n, shift, ps_rule_head_unit(r->model), rest);
}

/* Experts that the GPU reads direct, of those a step is expected to select and that are not resident. */
static uint32_t direct_experts(const ps_lower_request *r, uint32_t layer, uint64_t held) {
    const ps_layer *y = &r->model->layers[layer];
    const ps_weight *w = ps_model_weight(r->model, layer, PS_ROLE_FFN_GATE_EXPS);
    ps_contention c = ps_contention_of(r->cost, r->n_threads);
    ps_cost_query q = {.rows = y->n_ff_expert,
                       .cols = r->model->n_embd,
                       .heads_kv = y->n_expert,
                       .kv_len = y->n_expert_used,
                       .n_tokens = r->max_tokens};
    double distinct =
        y->n_expert * (1 - pow(1 - (double)y->n_expert_used / y->n_expert, (double)r->max_tokens));
    double resident = distinct * (double)held / y->n_expert, others = distinct - resident;
    double cpu =
        product_s(r, PS_QUEUE_CPU, PS_BESIDE_IDLE, PS_OP_MOE_DISPATCH, w->type, q) * others / distinct;
    double gpu =
        product_s(r, PS_QUEUE_GPU, PS_BESIDE_DIRECT, PS_OP_MOE_DISPATCH, w->type, q) * others / distinct;
    double start =
        product_s(r, PS_QUEUE_GPU, PS_BESIDE_IDLE, PS_OP_MOE_DISPATCH, w->type, q) * resident / distinct;
    double n = share(others, crossing_s(r), cpu / ps_slowing_cpu(&c.by[PS_BUS_DIRECT], 1), start,
                     gpu / ps_slowing_bus(&c.by[PS_BUS_DIRECT], 1));
    return (uint32_t)(n + 0.5);
}

/* Experts behind the `held` resident ones that are streamed, all of them, while the CPU takes those of the others that were
 * selected. */
static uint64_t streamed_experts(const ps_lower_request *r, uint32_t layer, uint64_t held) {
    const ps_layer *y = &r->model->layers[layer];
    static const ps_role roles[] = {PS_ROLE_FFN_GATE_EXPS, PS_ROLE_FFN_UP_EXPS, PS_ROLE_FFN_DOWN_EXPS};
    const ps_weight *w = ps_model_weight(r->model, layer, roles[0]);
    ps_contention c = ps_contention_of(r->cost, r->n_threads);
    ps_cost_query q = {.rows = y->n_ff_expert,
                       .cols = r->model->n_embd,
                       .heads_kv = y->n_expert,
                       .kv_len = y->n_expert_used,
                       .n_tokens = r->max_tokens};
    double rest = (double)y->n_expert - (double)held, bytes = 0;
    for (int i = 0; i < 3; i++)
        bytes += (double)ps_model_weight(r->model, layer, roles[i])->bytes * rest / y->n_expert;
    double h2d =
        ps_cost_bus_bytes_per_s(r->cost, PS_BUS_H2D, 16 << 20) * ps_slowing_bus(&c.by[PS_BUS_H2D], 1);
    double cpu =
        product_s(r, PS_QUEUE_CPU, PS_BESIDE_IDLE, PS_OP_MOE_DISPATCH, w->type, q) * rest / y->n_expert;
    double x = share(rest, crossing_s(r) + rows_s(r), cpu / ps_slowing_cpu(&c.by[PS_BUS_H2D], 1), 0,
                     h2d > 0 ? bytes / h2d : 0);
    return (uint64_t)(worth_it(rest, x) + 0.5);
}

/* ---- places ---- */

static void add_part(ps_layer_place *at, ps_where where, uint64_t first, uint64_t n) {
    if (n && at->n_parts < PS_MAX_PARTS)
        at->part[at->n_parts++] = (ps_place_part){where, first, n};
}

/* Resident parts of all layers: one per piece, since an instruction finds its range in one. */
static void hidden_pieces(const ps_resident_set *set, ps_layer_place *layers) {
    const ps_model *m = set->model;
    for (uint32_t l = 0; l < m->n_layers; l++)
        if (m->layers[l].n_expert)
            add_part(&layers[l], PS_WHERE_VRAM, 0, set->ffn[l]);
    for (uint32_t i = 0; i < set->n; i++) {
        const ps_weight_range *r = &set->pieces[i].range;
        if (r->role == PS_ROLE_FFN_GATE && !m->layers[r->layer].n_expert &&
            r->row0 + r->n_rows <= set->ffn[r->layer])
            add_part(&layers[r->layer], PS_WHERE_VRAM, r->row0, r->n_rows);
    }
}

ps_rule ps_family_rule(ps_family family, uint64_t max_tokens, uint32_t max_outputs) {
    bool few = max_tokens <= PS_PLAN_DECODE_TOKENS, few_out = max_outputs <= PS_PLAN_DECODE_TOKENS;
    ps_rule r;
    memset(&r, 0, sizeof r);
    r.family = family;
    r.attn = PS_WHERE_STREAM;
    r.bus = PS_WHERE_STREAM;
    r.ffn = PS_SHARE_ALL;
    r.head_bus = few_out && family != PS_FAMILY_GPU ? PS_WHERE_DIRECT : PS_WHERE_STREAM;
    r.head = PS_SHARE_ALL;
    r.n_slots = few ? FEW_SLOTS : MANY_SLOTS;
    r.range_bytes = few ? FEW_RANGE : MANY_RANGE;
    switch (family) {
    case PS_FAMILY_DIRECT:
        r.attn = r.bus = few ? PS_WHERE_DIRECT : PS_WHERE_STREAM;
        break;
    case PS_FAMILY_STATIC:
        r.attn = PS_WHERE_HOST;
        r.ffn = r.head = PS_SHARE_NONE;
        break;
    case PS_FAMILY_DYNAMIC:
        r.ffn = PS_SHARE_AFTER_ATTENTION;
        r.head = PS_SHARE_NONE;
        break;
    case PS_FAMILY_SPLIT:
        r.bus = few ? PS_WHERE_DIRECT : PS_WHERE_STREAM;
        r.ffn = max_tokens > PS_TILE_TOKENS ? PS_SHARE_ALL : PS_SHARE_BALANCED;
        r.head = few_out ? PS_SHARE_BALANCED : PS_SHARE_ALL;
        if (few) {
            r.n_slots = ATTN_SLOTS;
            r.range_bytes = ATTN_RANGE;
        }
        break;
    default:
        break;
    }
    return r;
}

/* The feed-forward block behind what is resident. */
static void place_rest(const ps_rule *rule, const ps_lower_request *r, const ps_resident_set *set,
                       uint32_t layer, ps_layer_place *at) {
    const ps_layer *y = &r->model->layers[layer];
    uint64_t all = y->n_expert ? y->n_expert : y->n_ff, held = set->ffn[layer], rest = all - held;
    bool dense = y->n_expert == 0, streams = rule->bus == PS_WHERE_STREAM;
    uint64_t over_bus = 0, unit = ps_rule_ffn_unit(r->model, layer);
    /* Slices go round the layers: behind the last that had one are those with fewer. */
    const bool more = set->ffn[layer] > set->ffn[r->model->n_layers - 1];
    const int shift = more ? rule->ffn_shift_more : rule->ffn_shift;
    double streamed = at->attn == PS_WHERE_STREAM ? (double)ps_resident_attn_bytes(r->model, layer) : 0;
    switch ((ps_share)rule->ffn) {
    case PS_SHARE_ALL:
        over_bus = shifted(rest, shift, unit, rest);
        break;
    case PS_SHARE_NONE:
        over_bus = shifted(0, shift, unit, rest);
        break;
    case PS_SHARE_AFTER_ATTENTION:
        if (dense && set->n_attn == r->model->n_layers)
            over_bus = hidden_share(r, layer, held, true, 0, shift);
        break;
    case PS_SHARE_BALANCED:
        if (dense)
            over_bus = hidden_share(r, layer, held, streams, streamed, shift);
        else /* that there are some to read direct; which, and how many, is a rule of the tier */
            over_bus = !streams ? rest != 0 : shifted(streamed_experts(r, layer, held), shift, unit, rest);
        break;
    }
    if (dense && over_bus < rest && !ps_ffn_step(r->model, layer)) /* it cannot be cut */
        over_bus = 0;
    add_part(at, (ps_where)rule->bus, held, over_bus);
    add_part(at, PS_WHERE_HOST, held + over_bus, rest - over_bus);
}

static void place_head(const ps_rule *rule, const ps_lower_request *r, const ps_resident_set *set,
                       ps_placing *out) {
    uint64_t all = r->model->w[PS_ROLE_OUTPUT]->rows, held = set->head_rows, rest = all - held,
             over_bus = rest, unit = ps_rule_head_unit(r->model);
    ps_layer_place at = {0};
    if (rule->head == PS_SHARE_NONE)
        over_bus = shifted(0, rule->head_shift, unit, rest);
    else if (rule->head == PS_SHARE_BALANCED)
        over_bus = head_share(r, held, rule->head_shift);
    else
        over_bus = shifted(rest, rule->head_shift, unit, rest);
    for (uint32_t i = 0; i < set->n; i++) {
        const ps_weight_range *p = &set->pieces[i].range;
        if (p->role == PS_ROLE_OUTPUT && p->row0 + p->n_rows <= held)
            add_part(&at, PS_WHERE_VRAM, p->row0, p->n_rows);
    }
    add_part(&at, (ps_where)rule->head_bus, held, over_bus);
    add_part(&at, PS_WHERE_HOST, held + over_bus, rest - over_bus);
    out->n_head = at.n_parts;
    memcpy(out->head, at.part, sizeof at.part);
}

ps_status ps_rule_place(const ps_rule *rule, const ps_lower_request *r, const ps_resident_set *resident,
                        const ps_kv_home *kv, ps_arena *arena, ps_placing *out, ps_error *err) {
    const ps_model *m = r->model;
    bool few = r->max_tokens <= PS_PLAN_DECODE_TOKENS;
    memset(out, 0, sizeof *out);
    out->layers = ps_arena_array(arena, m->n_layers, sizeof *out->layers);
    if (!out->layers)
        return ps_error_set(err, PS_E_NOMEM, "plan", "out of memory");
    out->n_slots = rule->n_slots;
    out->range_bytes = rule->range_bytes;
    out->carry = few;
    hidden_pieces(resident, out->layers);
    for (uint32_t l = 0; l < m->n_layers; l++) {
        ps_layer_place *at = &out->layers[l];
        const ps_layer_place *before = l ? at - 1 : NULL;
        at->attn = l < resident->n_attn ? PS_WHERE_VRAM : (ps_where)rule->attn;
        if (at->attn == PS_WHERE_HOST && kv[l].space == PS_SPACE_VRAM)
            at->attn = PS_WHERE_STREAM; /* the CPU does not reach its cache */
        at->kv_host = kv[l].space == PS_SPACE_HOST;
        at->kv_slot = kv[l].space == PS_SPACE_HOST && at->attn != PS_WHERE_HOST && !few;
        if (at->kv_slot && kv[l].bytes * r->n_seqs > out->kv_slot_bytes)
            out->kv_slot_bytes = kv[l].bytes * r->n_seqs;
        /* Shares are found once for layers that follow each other alike. */
        const ps_layer *y = &m->layers[l], *z = l ? y - 1 : NULL;
        const ps_weight *down = y->w[PS_ROLE_FFN_DOWN], *down_z = z ? z->w[PS_ROLE_FFN_DOWN] : NULL;
        uint32_t n = at->n_parts;
        if (before && before->attn == at->attn && z->n_expert == y->n_expert && z->n_ff == y->n_ff &&
            resident->ffn[l] == resident->ffn[l - 1] && (!down || (down_z && down->type == down_z->type)) &&
            before->n_parts >= n && memcmp(before->part, at->part, n * sizeof at->part[0]) == 0) {
            memcpy(at->part, before->part, before->n_parts * sizeof at->part[0]); /* zeros follow */
            at->n_parts = before->n_parts;
        } else {
            place_rest(rule, r, resident, l, at);
        }
        if (y->n_expert && rule->ffn == PS_SHARE_BALANCED && rule->bus == PS_WHERE_DIRECT) {
            uint32_t d =
                l && before->n_parts && z->n_expert == y->n_expert && resident->ffn[l] == resident->ffn[l - 1]
                    ? 0
                    : (uint32_t)shifted(direct_experts(r, l, resident->ffn[l]), rule->direct_shift, 1,
                                        y->n_expert - resident->ffn[l]);
            out->max_direct = d > out->max_direct ? d : out->max_direct;
        }
    }
    place_head(rule, r, resident, out);
    return PS_OK;
}
