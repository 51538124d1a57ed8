/* Lowering: see lower.h.
 *
 * Each layer's operations are lowered by themselves into a list of instructions; layers whose lists, shapes and
 * windows are alike and that follow each other become one block. Formats: an operation takes its input in the
 * format whose kernel is predicted fastest; the operation that makes the value writes that format at once if a
 * kernel can, otherwise a CONVERT stands before the first use. */
#include "plan/lower.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most instructions of a layer: 12 + 6 operations, and a CONVERT before each. */
enum { MAX_LIST = 64, MAX_BUFFERS = 64 };

typedef struct lowered {
    uint32_t n;
    ps_instr instr[MAX_LIST];
} lowered;

typedef struct lowering {
    const ps_lower_request *r;
    ps_plan_buffer buffers[MAX_BUFFERS];
    uint32_t n_buffers;
    ps_error *err;
} lowering;

/* Operation of a list with the layer it belongs to. */
typedef struct op_ref {
    const ps_op_desc *desc;
    ps_shard_kind shard;
    uint32_t layer;
    ps_fmt in_fmt;
} op_ref;

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

static ps_rows op_rows(const ps_op_desc *d) {
    return rows_of(d->dst != PS_VALUE_NONE ? d->dst : d->src[0]);
}

static ps_dtype op_wtype(const ps_model *m, uint32_t layer, const ps_op_desc *d) {
    if (d->w[0] == PS_ROLE_NONE)
        return PS_DTYPE_NONE;
    const ps_weight *w = ps_model_weight(m, layer, d->w[0]);
    return w ? w->type : PS_DTYPE_NONE;
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

static const ps_kernel_spec *choose(const lowering *lo, const op_ref *o, ps_fmt in, ps_fmt out) {
    return ps_kernel_spec_choose(lo->r->profile->kernels, lo->r->profile->n_kernels, o->desc->op,
                                 op_wtype(lo->r->model, o->layer, o->desc), in, out, PS_DEV_CPU,
                                 ps_lower_tokens(lo->r, op_rows(o->desc)));
}

/* Any kernel for the input format, whatever it writes. */
static const ps_kernel_spec *choose_any_out(const lowering *lo, const op_ref *o, ps_fmt in) {
    for (int out = 0; out < PS_FMT_COUNT; out++) {
        const ps_kernel_spec *k = choose(lo, o, in, (ps_fmt)out);
        if (k)
            return k;
    }
    return NULL;
}

/* Shape of an operation in the terms of the profile's points. */
static ps_cost_query op_query(const ps_model *m, uint32_t layer, ps_op op, const ps_role *w, uint64_t cols,
                              uint64_t n_rows) {
    ps_cost_query q = {.cols = cols, .beside = PS_BESIDE_IDLE};
    const ps_layer *l = layer < m->n_layers ? &m->layers[layer] : NULL;
    const ps_weight *w0 = w[0] != PS_ROLE_NONE ? ps_model_weight(m, layer, w[0]) : NULL;
    switch (op) {
    case PS_OP_MATMUL:
        q.rows = n_rows ? n_rows : w0 ? w0->rows : 0;
        q.cols = w0 ? w0->cols : cols;
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
    return q;
}

ps_cost_query ps_lower_query(const ps_model *model, uint32_t layer, const ps_instr *in, const ps_program *p) {
    uint64_t cols = in->src[0] != PS_NO_BUFFER ? p->buffers[in->src[0]].cols
                    : in->dst != PS_NO_BUFFER  ? p->buffers[in->dst].cols
                                               : 0;
    ps_cost_query q = op_query(model, layer, in->op, in->w, cols, in->n_rows);
    q.kernel = in->kernel;
    return q;
}

/* Input format: the one whose kernel is predicted fastest; formats without a measured kernel come last, in the
 * order of the list, so that an unmeasured catalogue still gives a program. */
static ps_status choose_input(lowering *lo, op_ref *o) {
    const ps_model *m = lo->r->model;
    double best = INFINITY;
    bool found = false;
    if (o->desc->src[0] == PS_VALUE_NONE) {
        o->in_fmt = PS_FMT_NONE;
        return PS_OK;
    }
    for (int in = PS_FMT_NONE + 1; in < PS_FMT_COUNT; in++) {
        const ps_kernel_spec *k = choose_any_out(lo, o, (ps_fmt)in);
        if (!k)
            continue;
        ps_cost_query q = op_query(m, o->layer, o->desc->op, o->desc->w, o->desc->cols, 0);
        q.kernel = k->id;
        q.n_tokens = ps_lower_tokens(lo->r, op_rows(o->desc));
        q.n_threads = lo->r->n_threads;
        if (o->desc->op == PS_OP_ATTENTION)
            q.kv_len = (double)lo->r->bucket_tokens;
        ps_cost cost;
        double t = ps_cost_lookup(lo->r->cost, &q, &cost) ? cost.time_s : 1e30;
        if (!found || t < best) {
            best = t;
            o->in_fmt = (ps_fmt)in;
            found = true;
        }
    }
    if (found)
        return PS_OK;
    const ps_dtype_info *type = ps_dtype_find((uint32_t)op_wtype(m, o->layer, o->desc));
    char where[32];
    snprintf(where, sizeof where, " of layer %u", o->layer);
    return ps_error_set(lo->err, PS_E_UNSUPPORTED, "kernel catalogue",
                        "no CPU kernel for %s with %s weights (%s%s)", ps_op_get(o->desc->op)->name,
                        type ? type->name : "no",
                        o->desc->w[0] != PS_ROLE_NONE ? ps_role_get(o->desc->w[0])->name : "no tensor",
                        o->desc->w[0] != PS_ROLE_NONE && ps_role_get(o->desc->w[0])->per_layer ? where : "");
}

static uint16_t buffer_for(lowering *lo, ps_value v, ps_fmt fmt, uint32_t cols) {
    ps_plan_buffer b = {.value = v, .space = PS_SPACE_HOST, .fmt = fmt, .rows = rows_of(v), .cols = cols};
    for (uint32_t i = 0; i < lo->n_buffers; i++) {
        const ps_plan_buffer *o = &lo->buffers[i];
        if (o->value == b.value && o->fmt == b.fmt && o->rows == b.rows && o->cols == b.cols)
            return (uint16_t)i;
    }
    if (lo->n_buffers == MAX_BUFFERS)
        return PS_NO_BUFFER;
    lo->buffers[lo->n_buffers] = b;
    return (uint16_t)lo->n_buffers++;
}

/* Formats in which operations after `at` want the value that `at` makes, as a bit set; live_out: also wanted
 * in F32 after the list. */
static uint32_t demanded(const op_ref *ops, uint32_t n, uint32_t at, bool live_out) {
    ps_value v = ops[at].desc->dst;
    uint32_t set = 0;
    for (uint32_t i = at + 1; i < n; i++) {
        const ps_op_desc *d = ops[i].desc;
        for (int s = 0; s < PS_OP_MAX_SRC; s++)
            if (d->src[s] == v)
                set |= 1u << (s == 0 ? ops[i].in_fmt : other_fmt(d->op, s, ops[i].in_fmt));
        if (d->dst == v)
            return set;
    }
    return live_out ? set | 1u << PS_FMT_F32 : set;
}

/* Values as the list is walked: in which formats each is at hand, and how long its rows are. */
typedef struct at_hand {
    uint32_t fmts[PS_VALUE_COUNT];
    uint32_t cols[PS_VALUE_COUNT];
} at_hand;

static ps_status no_memory(lowering *lo) {
    return ps_error_set(lo->err, PS_E_INTERNAL, "program", "more than %d instructions or %d buffers",
                        MAX_LIST, MAX_BUFFERS);
}

static ps_status emit(lowering *lo, lowered *out, ps_instr in) {
    if (out->n == MAX_LIST)
        return no_memory(lo);
    out->instr[out->n++] = in;
    return PS_OK;
}

static ps_instr new_instr(ps_op op, ps_shard_kind shard, uint32_t kernel) {
    ps_instr in = {.op = op, .queue = PS_QUEUE_CPU, .kernel = kernel, .shard = shard, .dst = PS_NO_BUFFER};
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        in.w[i] = PS_ROLE_NONE;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        in.src[i] = PS_NO_BUFFER;
    return in;
}

/* Buffer of value v in `fmt`, converted into it if need be. */
static ps_status source(lowering *lo, lowered *out, at_hand *have, const op_ref *o, ps_value v, ps_fmt fmt,
                        uint16_t *out_buffer) {
    if (have->fmts[v] == 0)
        return ps_error_set(lo->err, PS_E_INTERNAL, "model", "%s reads %s before it is made",
                            ps_op_get(o->desc->op)->name, ps_value_name(v));
    if (!(have->fmts[v] & 1u << fmt)) {
        const ps_kernel_spec *k = NULL;
        ps_fmt from = PS_FMT_NONE;
        for (int f = 0; f < PS_FMT_COUNT && !k; f++)
            if (have->fmts[v] & 1u << f) {
                from = (ps_fmt)f;
                k = ps_kernel_spec_choose(lo->r->profile->kernels, lo->r->profile->n_kernels, PS_OP_CONVERT,
                                          PS_DTYPE_NONE, from, fmt, PS_DEV_CPU,
                                          ps_lower_tokens(lo->r, rows_of(v)));
            }
        if (!k)
            return ps_error_set(lo->err, PS_E_UNSUPPORTED, "kernel catalogue",
                                "no CPU kernel converts %s to %s", ps_value_name(v), ps_fmt_name(fmt));
        ps_instr in = new_instr(PS_OP_CONVERT, o->shard, k->id);
        in.src[0] = buffer_for(lo, v, from, have->cols[v]);
        in.dst = buffer_for(lo, v, fmt, have->cols[v]);
        if (in.src[0] == PS_NO_BUFFER || in.dst == PS_NO_BUFFER)
            return no_memory(lo);
        ps_status status = emit(lo, out, in);
        if (status)
            return status;
        have->fmts[v] |= 1u << fmt;
    }
    *out_buffer = buffer_for(lo, v, fmt, have->cols[v]);
    return *out_buffer == PS_NO_BUFFER ? no_memory(lo) : PS_OK;
}

static ps_status lower_op(lowering *lo, lowered *out, at_hand *have, const op_ref *ops, uint32_t n,
                          uint32_t at, bool live_out) {
    const op_ref *o = &ops[at];
    const ps_op_desc *d = o->desc;
    ps_status status = PS_OK;
    ps_instr in = new_instr(d->op, o->shard, 0);
    uint32_t set = d->dst == PS_VALUE_NONE ? 0 : demanded(ops, n, at, live_out && d->dst == PS_VALUE_X);
    const ps_kernel_spec *k = NULL;
    ps_fmt out_fmt = PS_FMT_NONE;
    if (d->dst == PS_VALUE_NONE)
        k = choose(lo, o, o->in_fmt, PS_FMT_NONE);
    else if (set && !(set & (set - 1))) /* wanted in one format: written in it, if a kernel can */
        for (int f = 0; f < PS_FMT_COUNT; f++)
            if (set == 1u << f && (k = choose(lo, o, o->in_fmt, (ps_fmt)f)))
                out_fmt = (ps_fmt)f;
    if (!k && d->dst != PS_VALUE_NONE && (k = choose(lo, o, o->in_fmt, PS_FMT_F32)))
        out_fmt = PS_FMT_F32;
    if (!k && d->dst != PS_VALUE_NONE && (k = choose_any_out(lo, o, o->in_fmt)))
        out_fmt = k->out_fmt;
    if (!k)
        return ps_error_set(lo->err, PS_E_UNSUPPORTED, "kernel catalogue", "no CPU kernel for %s from %s",
                            ps_op_get(d->op)->name, ps_fmt_name(o->in_fmt));
    in.kernel = k->id;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        in.w[i] = d->w[i];
    for (int s = 0; s < PS_OP_MAX_SRC && !status; s++)
        if (d->src[s] != PS_VALUE_NONE)
            status = source(lo, out, have, o, d->src[s], s == 0 ? o->in_fmt : other_fmt(d->op, s, o->in_fmt),
                            &in.src[s]);
    if (status)
        return status;
    if (d->dst != PS_VALUE_NONE) {
        in.dst = buffer_for(lo, d->dst, out_fmt, d->rows);
        if (in.dst == PS_NO_BUFFER)
            return no_memory(lo);
        have->fmts[d->dst] = 1u << out_fmt;
        have->cols[d->dst] = d->rows;
    }
    return emit(lo, out, in);
}

/* Lower the operations of some shards one behind the other. x_in / x_out: the residual stream comes in / goes
 * on to other lists. */
static ps_status lower_list(lowering *lo, const ps_shard *const *shards, uint32_t n_shards, bool x_in,
                            bool x_out, lowered *out) {
    op_ref ops[MAX_LIST];
    uint32_t n = 0;
    ps_status status = PS_OK;
    for (uint32_t s = 0; s < n_shards; s++)
        for (uint32_t i = 0; i < shards[s]->n_ops; i++) {
            if (n == MAX_LIST)
                return no_memory(lo);
            ops[n++] =
                (op_ref){.desc = &shards[s]->ops[i], .shard = shards[s]->kind, .layer = shards[s]->layer};
        }
    for (uint32_t i = 0; i < n && !status; i++)
        status = choose_input(lo, &ops[i]);
    at_hand have = {0};
    if (x_in) {
        have.fmts[PS_VALUE_X] = 1u << PS_FMT_F32;
        have.cols[PS_VALUE_X] = lo->r->model->n_embd;
    }
    out->n = 0;
    for (uint32_t i = 0; i < n && !status; i++)
        status = lower_op(lo, out, &have, ops, n, i, x_out);
    return status;
}

static bool same_instr(const ps_instr *a, const ps_instr *b) {
    bool same = a->op == b->op && a->queue == b->queue && a->kernel == b->kernel && a->shard == b->shard &&
                a->row0 == b->row0 && a->n_rows == b->n_rows && a->dst == b->dst;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        same = same && a->w[i] == b->w[i];
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        same = same && a->src[i] == b->src[i];
    return same;
}

/* Layers share a block if they run the same instructions in the same time: shapes, window and weight types alike. */
static bool same_layer(const ps_model *m, uint32_t la, const lowered *a, uint32_t lb, const lowered *b) {
    const ps_layer *x = &m->layers[la], *y = &m->layers[lb];
    bool same = a->n == b->n && x->window == y->window && x->n_head == y->n_head &&
                x->n_head_kv == y->n_head_kv && x->head_dim_k == y->head_dim_k &&
                x->head_dim_v == y->head_dim_v && x->n_ff == y->n_ff && x->n_expert == y->n_expert &&
                x->n_expert_used == y->n_expert_used && x->n_ff_expert == y->n_ff_expert;
    for (uint32_t i = 0; same && i < a->n; i++) {
        same = same_instr(&a->instr[i], &b->instr[i]);
        for (int k = 0; same && k < PS_OP_MAX_WEIGHTS; k++) {
            const ps_weight *wa =
                a->instr[i].w[k] != PS_ROLE_NONE ? ps_model_weight(m, la, a->instr[i].w[k]) : NULL;
            const ps_weight *wb =
                b->instr[i].w[k] != PS_ROLE_NONE ? ps_model_weight(m, lb, b->instr[i].w[k]) : NULL;
            same =
                (wa != NULL) == (wb != NULL) && (!wa || (wa->type == wb->type && wa->cols == wb->cols &&
                                                         wa->rows == wb->rows && wa->experts == wb->experts));
        }
    }
    return same;
}

uint64_t ps_instr_cols(const ps_model *model, uint32_t layer, const ps_instr *in, const ps_program *p) {
    uint64_t cols = in->dst != PS_NO_BUFFER ? p->buffers[in->dst].cols : 0;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        if (in->src[i] != PS_NO_BUFFER && p->buffers[in->src[i]].cols > cols)
            cols = p->buffers[in->src[i]].cols;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        const ps_weight *w = in->w[i] != PS_ROLE_NONE ? ps_model_weight(model, layer, in->w[i]) : NULL;
        if (w && w->cols > cols)
            cols = w->cols;
    }
    return cols;
}

static ps_status set_waits(const ps_lower_request *r, ps_program *p, ps_error *err) {
    bool *uses_scratch = calloc(p->n_instrs ? p->n_instrs : 1, sizeof *uses_scratch);
    if (!uses_scratch)
        return ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u instructions", p->n_instrs);
    for (uint32_t i = 0; i < p->n_instrs; i++) {
        const ps_scratch_coef *c = &ps_catalogue_find(r->profile, p->instrs[i].kernel)->scratch;
        uses_scratch[i] =
            c->base || c->per_token || c->per_token_col || c->per_col || c->per_thread || c->per_thread_col;
    }
    ps_status status = ps_deps_waits(p, uses_scratch, err);
    free(uses_scratch);
    return status;
}

/* Append a list as a block. */
static void add_block(ps_program *p, const lowered *list, ps_loop loop, uint32_t layer0, bool over_tiles) {
    p->blocks[p->n_blocks++] = (ps_block){.loop = loop,
                                          .layer0 = layer0,
                                          .n_layers = 1,
                                          .over_tiles = over_tiles,
                                          .instr0 = p->n_instrs,
                                          .n_instrs = list->n};
    memcpy(&p->instrs[p->n_instrs], list->instr, list->n * sizeof list->instr[0]);
    p->n_instrs += list->n;
}

ps_status ps_lower(const ps_lower_request *r, ps_arena *arena, ps_program *out, ps_error *err) {
    const ps_model *m = r->model;
    ps_status status = PS_OK;
    lowering *lo = calloc(1, sizeof *lo);
    lowered *lists = calloc(2, sizeof *lists); /* of this layer and the one before */
    ps_program p = {0};
    p.blocks = calloc((uint64_t)m->n_layers + 2, sizeof *p.blocks);
    p.instrs = calloc(((uint64_t)m->n_layers + 2) * MAX_LIST, sizeof *p.instrs);
    if (!lo || !lists || !p.blocks || !p.instrs) {
        status = ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u layers", m->n_layers);
        goto done;
    }
    lo->r = r;
    lo->err = err;
    bool over_tiles = r->max_tokens > PS_TILE_TOKENS;
    lowered *now = &lists[0], *before = &lists[1];
    const ps_shard *first = &m->shards[0], *last = &m->shards[m->n_shards - 1];
    status = lower_list(lo, &first, 1, false, true, now);
    if (status)
        goto done;
    add_block(&p, now, PS_LOOP_ONCE, 0, over_tiles);
    before->n = 0;
    for (uint32_t s = 1; s + 1 < m->n_shards;) {
        const ps_shard *shards[8];
        uint32_t n = 0, layer = m->shards[s].layer;
        while (s + 1 < m->n_shards && m->shards[s].layer == layer && n < 8)
            shards[n++] = &m->shards[s++];
        status = lower_list(lo, shards, n, true, true, now);
        if (status)
            goto done;
        ps_block *b = &p.blocks[p.n_blocks - 1];
        if (b->loop == PS_LOOP_LAYERS && b->layer0 + b->n_layers == layer &&
            same_layer(m, b->layer0, before, layer, now)) {
            b->n_layers++;
            continue;
        }
        add_block(&p, now, PS_LOOP_LAYERS, layer, over_tiles);
        lowered *swap = before;
        before = now;
        now = swap;
    }
    status = lower_list(lo, &last, 1, true, false, now);
    if (status)
        goto done;
    add_block(&p, now, PS_LOOP_ONCE, 0, false);

    *out = (ps_program){.n_buffers = lo->n_buffers, .n_instrs = p.n_instrs, .n_blocks = p.n_blocks};
    out->buffers = ps_arena_array(arena, p.n_instrs ? lo->n_buffers : 0, sizeof *out->buffers);
    out->instrs = ps_arena_array(arena, p.n_instrs, sizeof *out->instrs);
    out->blocks = ps_arena_array(arena, p.n_blocks, sizeof *out->blocks);
    if (!out->buffers || !out->instrs || !out->blocks) {
        status = ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u instructions", p.n_instrs);
        goto done;
    }
    memcpy(out->buffers, lo->buffers, lo->n_buffers * sizeof *out->buffers);
    memcpy(out->instrs, p.instrs, p.n_instrs * sizeof *out->instrs);
    memcpy(out->blocks, p.blocks, p.n_blocks * sizeof *out->blocks);
    status = set_waits(r, out, err);
done:
    free(lo);
    free(lists);
    free(p.blocks);
    free(p.instrs);
    return status;
}
