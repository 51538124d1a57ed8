/* A list of nodes becomes instructions: formats, kernels, spaces and buffers. See lower_int.h.
 *
 * An operation takes its input in the format whose kernel is predicted fastest. What makes a value writes the format that
 * is wanted, if it is one and a kernel can; otherwise a CONVERT stands before the first use. A value wanted on the other
 * side is copied by the GPU, or written to host memory by its kernel where only the CPU wants it. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/lower_int.h"

enum { MAX_HELD = 160 };

const ps_kernel_spec *ps_catalogue_find(const ps_profile *profile, uint32_t id) {
    for (uint32_t i = 0; i < profile->n_kernels; i++)
        if (profile->kernels[i].id == id)
            return &profile->kernels[i];
    return NULL;
}

/* Rows a value has. Only the residual stream lives from layer to layer, so only it has rows for a whole step. */
static ps_rows rows_of(ps_value v) {
    switch (v) {
    case PS_VALUE_X:
        return PS_ROWS_STEP;
    case PS_VALUE_LAST:
    case PS_VALUE_LAST_NORM:
    case PS_VALUE_LOGITS:
    case PS_VALUE_TOKENS:
        return PS_ROWS_OUTPUTS;
    default:
        return PS_ROWS_TILE;
    }
}

uint64_t ps_lower_tokens(const ps_lower_request *r, ps_rows rows) {
    if (rows == PS_ROWS_OUTPUTS)
        return r->max_outputs;
    return r->max_tokens < PS_TILE_TOKENS ? r->max_tokens : PS_TILE_TOKENS;
}

static uint64_t node_tokens(const ps_lowering *lo, const ps_node *n) {
    return ps_lower_tokens(lo->r, rows_of(n->dst.value != PS_VALUE_NONE ? n->dst.value : n->src[0].value));
}

static ps_dtype node_wtype(const ps_lowering *lo, const ps_node *n) {
    if (n->in.w[0] == PS_ROLE_NONE)
        return PS_DTYPE_NONE;
    const ps_weight *w = ps_model_weight(lo->r->model, n->layer, n->in.w[0]);
    return w ? w->type : PS_DTYPE_NONE;
}

static ps_space space_of(ps_queue q) {
    return q == PS_QUEUE_CPU ? PS_SPACE_HOST : PS_SPACE_VRAM;
}

static ps_processor device_of(ps_queue q) {
    return q == PS_QUEUE_CPU ? PS_DEV_CPU : PS_DEV_CUDA;
}

/* Format that a source other than the first must have, given the first's. */
static ps_fmt other_fmt(ps_op op, int s, ps_fmt first) {
    switch (op) {
    case PS_OP_MATMUL:
    case PS_OP_RMSNORM: /* residual */
    case PS_OP_ADD:
        return PS_FMT_F32;
    case PS_OP_MOE_DISPATCH:
        return s == 1 ? PS_FMT_SEL : PS_FMT_F32;
    default:
        return first;
    }
}

/* Shape of an operation in the terms of the profile's points. */
static ps_cost_query shape_of(const ps_model *m, uint32_t layer, const ps_instr *in, uint64_t cols) {
    ps_cost_query q = {.cols = cols, .beside = PS_BESIDE_IDLE};
    const ps_layer *l = layer < m->n_layers ? &m->layers[layer] : NULL;
    const ps_weight *w0 = in->w[0] != PS_ROLE_NONE ? ps_model_weight(m, layer, in->w[0]) : NULL;
    switch (in->op) {
    case PS_OP_MATMUL:
        q.rows = in->n_rows ? in->n_rows : w0 ? w0->rows : 0;
        q.cols = in->n_cols ? in->n_cols : w0 ? w0->cols : cols;
        break;
    case PS_OP_ATTENTION:
        q.rows = l ? l->n_head : 0;
        q.cols = l ? l->head_dim_k : 0;
        q.heads_kv = l ? l->n_head_kv : 0;
        break;
    case PS_OP_MOE_DISPATCH:
        q.rows = l ? l->n_ff_expert : 0; /* and, as MOE_ROUTE: */
        /* fall through */
    case PS_OP_MOE_ROUTE:
        q.heads_kv = l ? l->n_expert : 0;
        q.kv_len = l ? l->n_expert_used : 0;
        break;
    default:
        break;
    }
    if (in->queue == PS_QUEUE_GPU && in->w[0] != PS_ROLE_NONE && in->at[0] == PS_AT_HOST)
        q.beside = PS_BESIDE_DIRECT;
    return q;
}

ps_cost_query ps_lower_query(const ps_model *model, uint32_t layer, const ps_instr *in, const ps_program *p) {
    uint64_t cols = in->src[0] != PS_NO_BUFFER ? p->buffers[in->src[0]].cols
                    : in->dst != PS_NO_BUFFER  ? p->buffers[in->dst].cols
                                               : 0;
    ps_cost_query q = shape_of(model, layer, in, cols);
    q.kernel = in->kernel;
    return q;
}

/* What the time of a node is asked by, but for the kernel. */
static ps_cost_query query_of(const ps_lowering *lo, const ps_node *n) {
    const ps_lower_request *r = lo->r;
    ps_cost_query q = shape_of(r->model, n->layer, &n->in, n->dst.cols);
    q.n_tokens = node_tokens(lo, n);
    q.n_threads = n->in.queue == PS_QUEUE_CPU ? r->n_threads : 0;
    if (n->in.op == PS_OP_ATTENTION)
        q.kv_len = (double)r->bucket_tokens;
    return q;
}

/* Predicted time of a node with a kernel, for comparing kernels; a large number where nothing is known. */
static double kernel_time(const ps_lowering *lo, ps_cost_query q, uint32_t kernel) {
    ps_cost cost;
    q.kernel = kernel;
    return ps_cost_lookup_cached(lo->r->cost, lo->r->cache, &q, &cost) ? cost.time_s : 1e30;
}

/* What was chosen for a node with that input and output, or for any (ANY), before; NULL: there is no cache. */
enum { ANY = 0xff };
static ps_cost_choice *choice_of(const ps_lowering *lo, const ps_node *n, uint32_t in, uint32_t out) {
    if (!lo->r->cache)
        return NULL;
    const ps_cost_query q = query_of(lo, n);
    uint64_t kv;
    memcpy(&kv, &q.kv_len, sizeof kv);
    const bool whole = n->in.n_rows == 0 || n->in.n_rows == n->dst.cols;
    const uint64_t key[PS_COST_CHOICE_WORDS] = {
        q.rows,
        q.cols,
        (uint64_t)q.heads_kv << 32 | q.n_threads,
        kv,
        q.n_tokens,
        (uint64_t)n->in.op << 32 | (uint64_t)(uint32_t)node_wtype(lo, n),
        (uint64_t)n->in.queue << 32 | (uint64_t)q.beside << 24 | (uint64_t)whole << 16 | in << 8 | out};
    return ps_cost_choice_at(lo->r->cache, key);
}

ps_status ps_lowering_init(ps_lowering *lo, const ps_lower_request *r, ps_error *err) {
    const ps_profile *p = r->profile;
    lo->r = r;
    lo->err = err;
    lo->gpu_kernels = calloc(p->n_kernels ? p->n_kernels : 1, sizeof *lo->gpu_kernels);
    if (!lo->gpu_kernels)
        return ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u kernels", p->n_kernels);
    uint32_t n = 0;
    static_assert(PS_FMT_COUNT <= 8, "a bit for each");
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        const ps_kernel_spec *k = &p->kernels[i];
        lo->outs[k->device == PS_DEV_CUDA][k->op][k->in_fmt] |= (uint8_t)(1u << k->out_fmt);
    }
    for (int op = 0; op < PS_OP_COUNT; op++) {
        lo->first[op] = n;
        for (uint32_t i = 0; i < p->n_kernels; i++)
            if ((int)p->kernels[i].op == op && p->kernels[i].device == PS_DEV_CUDA)
                lo->gpu_kernels[n++] = i;
    }
    lo->first[PS_OP_COUNT] = n;
    return PS_OK;
}

/* A kernel for the node. Of several the CPU's is the one made for the most tokens, the GPU's the one predicted fastest. */
static const ps_kernel_spec *choose(const ps_lowering *lo, const ps_node *n, ps_fmt in, ps_fmt out) {
    const ps_profile *profile = lo->r->profile;
    if (!(lo->outs[n->in.queue != PS_QUEUE_CPU][n->in.op][in] >> out & 1))
        return NULL;
    uint64_t tokens = node_tokens(lo, n);
    ps_dtype wtype = node_wtype(lo, n);
    if (n->in.queue == PS_QUEUE_CPU)
        return ps_kernel_spec_choose(profile->kernels, profile->n_kernels, n->in.op, wtype, in, out,
                                     PS_DEV_CPU, tokens);
    const ps_kernel_spec *best = NULL;
    ps_cost_choice *before = choice_of(lo, n, in, out);
    if (before && before->used)
        return before->chosen ? &profile->kernels[before->chosen - 1] : NULL;
    const ps_cost_query q = query_of(lo, n);
    double best_s = 0;
    for (uint32_t i = lo->first[n->in.op]; i < lo->first[n->in.op + 1]; i++) {
        const ps_kernel_spec *k = &profile->kernels[lo->gpu_kernels[i]];
        if (k->wtype != wtype || k->in_fmt != in || k->out_fmt != out || tokens < k->min_tokens ||
            tokens > k->max_tokens)
            continue;
        double t = kernel_time(lo, q, k->id);
        if (!best || t < best_s) {
            best = k;
            best_s = t;
        }
    }
    if (before) {
        before->chosen = best ? (uint32_t)(best - profile->kernels) + 1 : 0;
        before->used = true;
    }
    return best;
}

/* Rows of a range that is less than the destination are written in the middle of its rows. */
static bool out_allowed(const ps_node *n, ps_fmt out) {
    return n->in.op != PS_OP_MATMUL || n->in.n_rows == 0 || n->in.n_rows == n->dst.cols ||
           out == PS_FMT_F32 || out == PS_FMT_F16;
}

/* Any kernel for the input format, whatever it writes. */
static const ps_kernel_spec *choose_any_out(const ps_lowering *lo, const ps_node *n, ps_fmt in) {
    for (int out = 0; out < PS_FMT_COUNT; out++) {
        const ps_kernel_spec *k = out_allowed(n, (ps_fmt)out) ? choose(lo, n, in, (ps_fmt)out) : NULL;
        if (k)
            return k;
    }
    return NULL;
}

/* Input format: the one whose kernel is predicted fastest; formats without a measured kernel come last, in the
 * order of the list, so that an unmeasured catalogue still gives a program. */
static ps_status choose_input(ps_lowering *lo, ps_node *n) {
    double best = INFINITY;
    bool found = false;
    n->in_fmt = PS_FMT_NONE;
    if (n->src[0].value == PS_VALUE_NONE || n->in.op == PS_OP_COPY)
        return PS_OK;
    const ps_cost_choice *before = choice_of(lo, n, ANY, ANY);
    if (before && before->used) {
        n->in_fmt = (ps_fmt)before->chosen;
        return PS_OK;
    }
    for (int in = PS_FMT_NONE + 1; in < PS_FMT_COUNT; in++) {
        const ps_kernel_spec *k = choose_any_out(lo, n, (ps_fmt)in);
        if (!k)
            continue;
        double t = kernel_time(lo, query_of(lo, n), k->id);
        if (!found || t < best) {
            best = t;
            n->in_fmt = (ps_fmt)in;
            found = true;
        }
    }
    if (found) { /* looked for again, as choices in between may have taken its place */
        ps_cost_choice *to = choice_of(lo, n, ANY, ANY);
        if (to) {
            to->chosen = n->in_fmt;
            to->used = true;
        }
        return PS_OK;
    }
    const ps_dtype_info *type = ps_dtype_find((uint32_t)node_wtype(lo, n));
    const ps_role role = n->in.w[0];
    char where[32];
    snprintf(where, sizeof where, " of layer %u", n->layer);
    return ps_error_set(
        lo->err, PS_E_UNSUPPORTED, "kernel catalogue", "no %s kernel for %s with %s weights (%s%s)",
        n->in.queue == PS_QUEUE_CPU ? "CPU" : "GPU", ps_op_get(n->in.op)->name, type ? type->name : "no",
        role != PS_ROLE_NONE ? ps_role_get(role)->name : "no tensor",
        role != PS_ROLE_NONE && ps_role_get(role)->per_layer ? where : "");
}

static ps_status no_memory(ps_lowering *lo) {
    return ps_error_set(lo->err, PS_E_INTERNAL, "program",
                        "a layer has more than %d instructions, or the program more than %d buffers",
                        PS_MAX_LIST, PS_MAX_LOWER_BUFFERS);
}

static uint16_t buffer_for(ps_lowering *lo, const ps_operand *o, ps_space space, ps_fmt fmt) {
    ps_plan_buffer b = {.value = o->value,
                        .space = space,
                        .fmt = fmt,
                        .rows = rows_of(o->value),
                        .col0 = o->col0,
                        .cols = o->cols};
    for (uint32_t i = 0; i < lo->n_buffers; i++) {
        const ps_plan_buffer *x = &lo->buffers[i];
        if (x->value == b.value && x->space == b.space && x->fmt == b.fmt && x->rows == b.rows &&
            x->col0 == b.col0 && x->cols == b.cols && lo->tags[i] == o->tag)
            return (uint16_t)i;
    }
    if (lo->n_buffers == PS_MAX_LOWER_BUFFERS)
        return PS_NO_BUFFER;
    lo->buffers[lo->n_buffers] = b;
    lo->tags[lo->n_buffers] = o->tag;
    return (uint16_t)lo->n_buffers++;
}

/* Buffer of a slot, at least `bytes` large. */
static uint16_t slot_for(ps_lowering *lo, uint32_t slot, uint64_t bytes) {
    bytes = (bytes + PS_RESIDENT_ALIGN - 1) / PS_RESIDENT_ALIGN * PS_RESIDENT_ALIGN;
    if (slot >= PS_MAX_SLOTS || bytes > UINT32_MAX)
        return PS_NO_BUFFER;
    if (!lo->slot[slot]) {
        if (lo->n_buffers == PS_MAX_LOWER_BUFFERS)
            return PS_NO_BUFFER;
        lo->buffers[lo->n_buffers] = (ps_plan_buffer){
            .value = PS_VALUE_NONE, .space = PS_SPACE_VRAM, .fmt = PS_FMT_NONE, .rows = PS_ROWS_SLOT};
        lo->tags[lo->n_buffers] = slot;
        lo->slot[slot] = (uint16_t)++lo->n_buffers;
    }
    ps_plan_buffer *b = &lo->buffers[lo->slot[slot] - 1];
    if (bytes > b->cols)
        b->cols = (uint32_t)bytes;
    return (uint16_t)(lo->slot[slot] - 1);
}

/* A value as the list is walked: in which formats it is at hand in each space. */
typedef struct held {
    ps_operand what;
    uint32_t fmts[PS_SPACE_COUNT];
} held;

typedef struct hands {
    uint32_t n;
    held held[MAX_HELD];
} hands;

static held *find_held(hands *h, ps_value value, uint32_t tag) {
    for (uint32_t i = 0; i < h->n; i++)
        if (h->held[i].what.value == value && h->held[i].what.tag == tag)
            return &h->held[i];
    return NULL;
}

static held *make_held(hands *h, const ps_operand *what) {
    held *x = find_held(h, what->value, what->tag);
    if (!x && h->n < MAX_HELD)
        x = &h->held[h->n++];
    if (x)
        x->what = *what;
    return x;
}

static bool same_value(const ps_operand *a, const ps_operand *b) {
    return a->value == b->value && a->tag == b->tag && a->value != PS_VALUE_NONE;
}

/* Does the node write only some columns of what it makes? */
static bool writes_part(const ps_node *n) {
    return n->in.op == PS_OP_MATMUL && n->in.n_rows != 0 && n->in.n_rows != n->dst.cols;
}

/* Formats in which later nodes want what node `at` makes, per space, as bit sets; live_out: also wanted in F32 after the
 * list. */
static void demanded(const ps_node *nodes, uint32_t n, uint32_t at, bool live_out, uint32_t set[2]) {
    const ps_operand *v = &nodes[at].dst;
    set[0] = set[1] = 0;
    for (uint32_t i = at + 1; i < n; i++) {
        const ps_node *d = &nodes[i];
        ps_space space = d->in.op == PS_OP_COPY ? PS_SPACE_HOST : space_of(d->in.queue);
        bool reads = false;
        for (int s = 0; s < PS_OP_MAX_SRC; s++)
            if (same_value(&d->src[s], v)) {
                reads = true;
                set[space] |= 1u << (d->in.op == PS_OP_COPY ? PS_FMT_F32
                                     : s == 0               ? d->in_fmt
                                                            : other_fmt(d->in.op, s, d->in_fmt));
            }
        if (same_value(&d->dst, v) && d->in.op != PS_OP_COPY && !(writes_part(d) && !reads))
            return;
        if (d->in.op == PS_OP_COPY && same_value(&d->dst, v))
            return;
    }
    if (live_out)
        set[space_of(nodes[at].in.queue)] |= 1u << PS_FMT_F32;
}

static ps_status emit(ps_lowering *lo, ps_lowered *out, ps_instr in) {
    if (out->n == PS_MAX_LIST)
        return no_memory(lo);
    out->instr[out->n++] = in;
    return PS_OK;
}

static ps_instr new_instr(ps_op op, ps_queue queue, ps_shard_kind shard, uint32_t kernel) {
    ps_instr in = {.op = op, .queue = queue, .kernel = kernel, .shard = shard, .dst = PS_NO_BUFFER};
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        in.w[i] = PS_ROLE_NONE;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        in.src[i] = PS_NO_BUFFER;
    return in;
}

/* A CONVERT (kernel not 0) or a COPY of a held value. */
static ps_status move(ps_lowering *lo, ps_lowered *out, const ps_node *n, held *h, ps_queue queue,
                      uint32_t kernel, ps_space from, ps_fmt from_fmt, ps_space to, ps_fmt to_fmt) {
    ps_instr in = new_instr(kernel ? PS_OP_CONVERT : PS_OP_COPY, queue, n->in.shard, kernel);
    in.src[0] = buffer_for(lo, &h->what, from, from_fmt);
    in.dst = buffer_for(lo, &h->what, to, to_fmt);
    if (in.src[0] == PS_NO_BUFFER || in.dst == PS_NO_BUFFER)
        return no_memory(lo);
    h->fmts[to] |= 1u << to_fmt;
    return emit(lo, out, in);
}

/* A kernel that converts a held value in space `from` to `fmt`, on the device of `queue`. */
static const ps_kernel_spec *converter(const ps_lowering *lo, const held *h, ps_queue queue, ps_space from,
                                       ps_fmt fmt, ps_fmt *out_from) {
    const ps_profile *profile = lo->r->profile;
    for (int f = 0; f < PS_FMT_COUNT; f++)
        if (h->fmts[from] & 1u << f) {
            const ps_kernel_spec *k = ps_kernel_spec_choose(
                profile->kernels, profile->n_kernels, PS_OP_CONVERT, PS_DTYPE_NONE, (ps_fmt)f, fmt,
                device_of(queue), ps_lower_tokens(lo->r, rows_of(h->what.value)));
            if (k) {
                *out_from = (ps_fmt)f;
                return k;
            }
        }
    return NULL;
}

/* Buffer of an operand in `space` and `fmt`: copied or converted if need be. */
static ps_status source(ps_lowering *lo, ps_lowered *out, hands *have, const ps_node *n, const ps_operand *o,
                        ps_space space, ps_fmt fmt, uint16_t *out_buffer) {
    held *h = find_held(have, o->value, o->tag);
    ps_status status = PS_OK;
    if (!h || (h->fmts[0] | h->fmts[1]) == 0)
        return ps_error_set(lo->err, PS_E_INTERNAL, "model", "%s reads %s before it is made",
                            ps_op_get(n->in.op)->name, ps_value_name(o->value));
    if (!(h->fmts[space] & 1u << fmt)) {
        ps_space other = space == PS_SPACE_HOST ? PS_SPACE_VRAM : PS_SPACE_HOST;
        ps_queue own = space == PS_SPACE_HOST ? PS_QUEUE_CPU : PS_QUEUE_GPU;
        ps_fmt from = PS_FMT_NONE;
        const ps_kernel_spec *k;
        /* The GPU rather converts in VRAM than reads across; the CPU rather has it copied than converts itself. */
        if (own == PS_QUEUE_GPU && (k = converter(lo, h, own, space, fmt, &from)))
            status = move(lo, out, n, h, own, k->id, space, from, space, fmt);
        else if (h->fmts[other] & 1u << fmt)
            status = move(lo, out, n, h, PS_QUEUE_GPU, 0, other, fmt, space, fmt);
        else if ((k = converter(lo, h, own, space, fmt, &from)))
            status = move(lo, out, n, h, own, k->id, space, from, space, fmt);
        else if ((k = converter(lo, h, PS_QUEUE_GPU, other, fmt, &from)))
            status = move(lo, out, n, h, PS_QUEUE_GPU, k->id, other, from, space, fmt);
        else
            status =
                ps_error_set(lo->err, PS_E_UNSUPPORTED, "kernel catalogue", "no %s kernel converts %s to %s",
                             own == PS_QUEUE_CPU && !h->fmts[other] ? "CPU" : "GPU", ps_value_name(o->value),
                             ps_fmt_name(fmt));
        if (status)
            return status;
    }
    *out_buffer = buffer_for(lo, &h->what, space, fmt);
    return *out_buffer == PS_NO_BUFFER ? no_memory(lo) : PS_OK;
}

/* Copies between memories: of weights, of KV, and of a value where the list asks for one by name. */
static ps_status lower_copy(ps_lowering *lo, ps_lowered *out, hands *have, const ps_node *n) {
    const ps_model *m = lo->r->model;
    ps_instr in = n->in;
    uint16_t ignored;
    if (n->src[0].value != PS_VALUE_NONE)
        return source(lo, out, have, n, &n->src[0], PS_SPACE_VRAM, PS_FMT_F32, &ignored);
    if (in.w[0] == PS_ROLE_NONE) {
        uint16_t slot = slot_for(lo, (uint32_t)in.kv - PS_KV_SLOT, lo->r->place->kv_slot_bytes);
        if (slot == PS_NO_BUFFER)
            return ps_error_set(lo->err, PS_E_INFEASIBLE, "kv", "a layer's cache is too large for one slot");
        in.kv = (uint16_t)(PS_KV_SLOT + slot);
        return emit(lo, out, in);
    }
    uint32_t layer = in.ahead ? (n->layer + 1 < m->n_layers ? n->layer + 1 : 0) : n->layer;
    const ps_weight *w = ps_model_weight(m, layer, in.w[0]);
    ps_weight_range range = {
        in.w[0], ps_role_get(in.w[0])->per_layer ? layer : 0, in.row0, in.n_rows, in.col0, in.n_cols};
    if (w && !range.n_rows)
        range.n_rows = w->experts > 1 ? w->experts : w->rows;
    uint64_t bytes = 0;
    if (!w || !ps_weight_range_bytes(m, &range, &bytes, NULL))
        return ps_error_set(lo->err, PS_E_INTERNAL, "program", "a copy of %s of layer %u is no range",
                            ps_role_get(in.w[0])->name, layer);
    in.dst = slot_for(lo, n->in.dst, bytes);
    return in.dst == PS_NO_BUFFER ? no_memory(lo) : emit(lo, out, in);
}

static ps_status lower_node(ps_lowering *lo, ps_lowered *out, hands *have, const ps_node *nodes, uint32_t n,
                            uint32_t at, bool live_out) {
    const ps_node *o = &nodes[at];
    ps_status status = PS_OK;
    ps_instr in = o->in;
    if (in.op == PS_OP_COPY)
        return lower_copy(lo, out, have, o);
    bool makes = o->dst.value != PS_VALUE_NONE;
    uint32_t sets[2] = {0, 0};
    if (makes)
        demanded(nodes, n, at, live_out && o->dst.value == PS_VALUE_X && o->dst.tag == 0, sets);
    ps_space space = space_of(in.queue);
    const held *begun = makes && writes_part(o) ? find_held(have, o->dst.value, o->dst.tag) : NULL;
    if (in.queue == PS_QUEUE_GPU && !sets[PS_SPACE_VRAM] && sets[PS_SPACE_HOST] &&
        !(begun && begun->fmts[PS_SPACE_VRAM])) /* parts of a value are made in one place */
        space = PS_SPACE_HOST;
    uint32_t set = sets[0] | sets[1];
    const ps_kernel_spec *k = NULL;
    ps_fmt out_fmt = PS_FMT_NONE;
    if (!makes)
        k = choose(lo, o, o->in_fmt, PS_FMT_NONE);
    else if (set && !(set & (set - 1))) /* wanted in one format: written in it, if a kernel can */
        for (int f = 0; f < PS_FMT_COUNT; f++)
            if (set == 1u << f && out_allowed(o, (ps_fmt)f) && (k = choose(lo, o, o->in_fmt, (ps_fmt)f)))
                out_fmt = (ps_fmt)f;
    if (!k && makes && (k = choose(lo, o, o->in_fmt, PS_FMT_F32)))
        out_fmt = PS_FMT_F32;
    if (!k && makes && (k = choose_any_out(lo, o, o->in_fmt)))
        out_fmt = k->out_fmt;
    if (!k)
        return ps_error_set(lo->err, PS_E_UNSUPPORTED, "kernel catalogue", "no %s kernel for %s from %s",
                            in.queue == PS_QUEUE_CPU ? "CPU" : "GPU", ps_op_get(in.op)->name,
                            ps_fmt_name(o->in_fmt));
    in.kernel = k->id;
    for (int s = 0; s < PS_OP_MAX_SRC && !status; s++)
        if (o->src[s].value != PS_VALUE_NONE) {
            ps_fmt fmt = s == 0 ? o->in_fmt : other_fmt(in.op, s, o->in_fmt);
            const held *h = find_held(have, o->src[s].value, o->src[s].tag);
            /* A sum is read once: from where the CPU left it. */
            bool there =
                in.op == PS_OP_ADD && h && h->fmts[PS_SPACE_HOST] & 1u << fmt && !h->fmts[PS_SPACE_VRAM];
            status = source(lo, out, have, o, &o->src[s], there ? PS_SPACE_HOST : space_of(in.queue), fmt,
                            &in.src[s]);
        }
    if (status)
        return status;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        if (in.at[i] >= PS_AT_SLOT) {
            uint16_t slot = slot_for(lo, (uint32_t)in.at[i] - PS_AT_SLOT, 0);
            if (slot == PS_NO_BUFFER)
                return no_memory(lo);
            in.at[i] = (uint16_t)(PS_AT_SLOT + slot);
        }
    if (in.kv >= PS_KV_SLOT) {
        uint16_t slot = slot_for(lo, (uint32_t)in.kv - PS_KV_SLOT, lo->r->place->kv_slot_bytes);
        if (slot == PS_NO_BUFFER)
            return no_memory(lo);
        in.kv = (uint16_t)(PS_KV_SLOT + slot);
    }
    if (makes) {
        bool more = writes_part(o); /* of a value that is in the making */
        held *h = find_held(have, o->dst.value, o->dst.tag);
        uint32_t before = h && more ? h->fmts[space] : 0;
        h = make_held(have, &o->dst);
        if (!h)
            return no_memory(lo);
        memset(h->fmts, 0, sizeof h->fmts);
        h->fmts[space] = before | 1u << out_fmt;
        in.dst = buffer_for(lo, &h->what, space, out_fmt);
        if (in.dst == PS_NO_BUFFER)
            return no_memory(lo);
    }
    return emit(lo, out, in);
}

ps_status ps_lower_list(ps_lowering *lo, ps_node_list *nodes, bool x_out, ps_lowered *out) {
    ps_status status = PS_OK;
    hands *have = calloc(1, sizeof *have);
    if (!have)
        return ps_error_set(lo->err, PS_E_NOMEM, "program", "out of memory");
    if (nodes->overflow)
        status = no_memory(lo);
    out->n = 0;
    for (uint32_t i = 0; i < nodes->n && !status; i++)
        status = choose_input(lo, &nodes->nodes[i]);
    if (lo->x_spaces) {
        held *x = make_held(have, &(ps_operand){.value = PS_VALUE_X, .cols = lo->r->model->n_embd});
        for (int s = 0; s < PS_SPACE_COUNT; s++)
            x->fmts[s] = lo->x_spaces >> s & 1 ? 1u << PS_FMT_F32 : 0;
    }
    for (uint32_t i = 0; i < nodes->n && !status; i++)
        status = lower_node(lo, out, have, nodes->nodes, nodes->n, i, x_out);
    held *x = find_held(have, PS_VALUE_X, 0);
    lo->x_spaces = 0;
    for (int s = 0; x && s < PS_SPACE_COUNT; s++)
        lo->x_spaces |= x->fmts[s] & 1u << PS_FMT_F32 ? 1u << s : 0;
    free(have);
    return status;
}
