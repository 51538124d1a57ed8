/* From the plan's program to operations that only need a step's data: kernels and operand addresses. The level has
 * passed the checker, so indices and ranges are good; what is left to refuse is what only this build and this machine
 * know: kernels that are not there, weights that the device cannot read. */
#include <string.h>

#include "core/checked.h"
#include "runtime-min/engine_internal.h"

/* What one instruction is resolved against. */
typedef struct scope {
    const ps_engine *e;
    const ps_run_tier *t;
    const ps_instr *in;
    uint32_t index, layer;
    bool on_device; /* its kernel runs on the device */
    ps_error *err;
} scope;

static ps_status refuse(const scope *s, ps_status status, const char *what) {
    return ps_error_set(s->err, status, s->e->info.budget, "tier %u, layer %u, instruction %u (%s on %s): %s",
                        s->t->tier->max_tokens, s->layer, s->index, ps_op_get(s->in->op)->name,
                        ps_queue_name(s->in->queue), what);
}

/* Start of a buffer as the instruction's queue sees it. Copy engines take host addresses. */
static uint8_t *buffer_data(const scope *s, uint16_t buffer) {
    const ps_plan_buffer *b = &s->t->program->buffers[buffer];
    uint64_t offset = s->t->tier->buffer_offset[buffer];
    if (b->space == PS_SPACE_VRAM)
        return s->e->run.d_work + offset;
    return (s->on_device ? s->e->d_host_arena : s->e->host_arena) + offset;
}

static ps_xarg buffer_arg(const scope *s, uint16_t buffer) {
    if (buffer == PS_NO_BUFFER)
        return (ps_xarg){0};
    const ps_plan_buffer *b = &s->t->program->buffers[buffer];
    return (ps_xarg){.data = buffer_data(s, buffer),
                     .fmt = b->fmt,
                     .cols = b->cols,
                     .row_bytes = ps_fmt_row_bytes(b->fmt, b->cols)};
}

static uint32_t buffer_col0(const scope *s, uint16_t buffer) {
    return buffer == PS_NO_BUFFER ? 0 : s->t->program->buffers[buffer].col0;
}

/* Bytes of `cols` elements of a weight's row; ranges are cut at whole blocks. */
static uint64_t col_bytes(const ps_weight *w, uint64_t cols) {
    const ps_dtype_info *d = ps_dtype_find(w->type);
    return cols / d->block_elems * d->block_bytes;
}

/* The range of weight i that the instruction uses. Rows of a weight of several experts count experts; row bytes of a
 * whole one are those of its rows. */
static ps_weight_range used_range(const ps_instr *in, uint32_t layer, int i, const ps_weight *w) {
    ps_weight_range r = {.role = in->w[i],
                         .layer = ps_role_get(in->w[i])->per_layer ? layer : 0,
                         .n_rows = w->experts > 1 ? w->experts : w->rows};
    bool by_rows = (in->op == PS_OP_MATMUL && i == 0) || in->op == PS_OP_MOE_DISPATCH;
    if (by_rows && in->n_rows != 0) {
        r.row0 = in->row0;
        r.n_rows = in->n_rows;
    }
    if (in->op == PS_OP_MATMUL && i == 0 && in->n_cols != 0) {
        r.col0 = in->col0;
        r.n_cols = in->n_cols;
    }
    return r;
}

/* Where `want` begins in memory that holds `held` of it, rows one behind the other. */
static uint8_t *inside(const ps_engine *e, uint8_t *base, const ps_weight *w, const ps_weight_range *held,
                       const ps_weight_range *want, uint64_t *out_row_bytes) {
    uint64_t bytes, row_bytes = 0;
    if (!ps_weight_range_bytes(e->model, held, &bytes, &row_bytes))
        return NULL;
    *out_row_bytes = row_bytes;
    uint64_t step =
        w->experts > 1 ? w->bytes / w->experts : row_bytes; /* from one of its "rows" to the next */
    return base + (want->row0 - held->row0) * step + col_bytes(w, want->col0) - col_bytes(w, held->col0);
}

/* A matrix whose row `row` (as the kernel counts) begins at `at`. The address of row 0 may lie outside of what is there:
 * kernels touch the rows of their range only. */
static ps_warg matrix_at(const ps_weight *w, const uint8_t *at, uint64_t row, uint64_t unit_bytes,
                         uint64_t row_bytes, uint64_t n_cols) {
    return (ps_warg){.data = (const uint8_t *)((uintptr_t)at - row * unit_bytes),
                     .type = w->type,
                     .cols = n_cols != 0 ? n_cols : w->cols,
                     .rows = w->rows,
                     .experts = w->experts,
                     .row_bytes = row_bytes};
}

static uint64_t file_row_bytes(const ps_weight *w) {
    return w->bytes / (w->rows * w->experts);
}

/* Weight i in host memory that begins at `base`, as a kernel takes it that counts rows from dst's first column. */
static ps_warg host_arg(const ps_weight *w, const uint8_t *base, const ps_instr *in, const ps_weight_range *r,
                        int i, uint32_t dst_col0) {
    uint64_t row_bytes = file_row_bytes(w);
    const uint8_t *at = base + col_bytes(w, r->col0);
    if (in->op == PS_OP_MATMUL && i == 0)
        return matrix_at(w, at + (uint64_t)dst_col0 * row_bytes, 0, row_bytes, row_bytes, r->n_cols);
    if (in->op == PS_OP_MATMUL && i == 1) /* a bias: its elements are dst's columns */
        return matrix_at(w, at + col_bytes(w, dst_col0), 0, row_bytes, row_bytes, 0);
    return matrix_at(w, at, 0, row_bytes, row_bytes, 0);
}

ps_warg ps_run_host_weight(const ps_engine *e, const ps_instr *in, uint32_t layer, int i,
                           const ps_kargs *like) {
    const ps_weight *w = in->w[i] == PS_ROLE_NONE ? NULL : ps_model_weight(e->model, layer, in->w[i]);
    if (w == NULL || (like->w[i].data == NULL && like->experts[i] == NULL))
        return (ps_warg){0};
    ps_weight_range r = used_range(in, layer, i, w);
    uint32_t col0 = in->op == PS_OP_MATMUL ? (uint32_t)((in->n_rows != 0 ? in->row0 : 0) - like->row0) : 0;
    return host_arg(w, ps_weights_host(e->weights, w), in, &r, i, col0);
}

static ps_status weight_arg(const scope *s, int i, ps_warg *out, uint64_t *direct_bytes) {
    const ps_engine *e = s->e;
    const ps_instr *in = s->in;
    const ps_weight *w = in->w[i] == PS_ROLE_NONE ? NULL : ps_model_weight(e->model, s->layer, in->w[i]);
    *out = (ps_warg){0};
    if (w == NULL)
        return PS_OK;
    uint32_t dst_col0 = in->op == PS_OP_MATMUL ? buffer_col0(s, in->dst) : 0;
    ps_weight_range r = used_range(in, s->layer, i, w);
    /* The bias goes into the partial sum whose columns begin at 0. */
    if (in->op == PS_OP_MATMUL && i == 1 && in->n_cols != 0 && in->col0 != 0)
        return PS_OK;
    if (in->op == PS_OP_MOE_DISPATCH && s->on_device &&
        in->at[i] < PS_AT_SLOT) { /* addresses are in the tables */
        *out = host_arg(w, NULL, in, &r, i, 0);
        out->data = NULL;
        return PS_OK;
    }
    if (in->at[i] == PS_AT_HOST) {
        const uint8_t *base =
            s->on_device ? ps_weights_device(e->weights, w) : ps_weights_host(e->weights, w);
        if (base == NULL)
            return refuse(s, PS_E_UNAVAILABLE,
                          "it reads weights direct, which the device cannot do as they are held");
        *out = host_arg(w, base, in, &r, i, dst_col0);
        uint64_t bytes;
        if (s->on_device && ps_weight_range_bytes(e->model, &r, &bytes, NULL))
            *direct_bytes += bytes;
        return PS_OK;
    }
    uint8_t *base;
    ps_weight_range held = r;
    if (in->at[i] == PS_AT_VRAM) {
        const ps_resident *piece = ps_level_find_resident(e->level, &r);
        if (piece == NULL)
            return refuse(s, PS_E_DATA, "no resident piece holds its weights");
        base = e->run.d_weight + piece->offset;
        held = piece->range;
    } else {
        base = e->run.d_work + s->t->tier->buffer_offset[in->at[i] - PS_AT_SLOT];
    }
    uint64_t row_bytes = 0;
    const uint8_t *at = inside(e, base, w, &held, &r, &row_bytes);
    if (at == NULL)
        return refuse(s, PS_E_DATA, "the range of its weights is not whole blocks");
    if (in->op == PS_OP_MATMUL && i == 1)
        *out = matrix_at(w, at + col_bytes(w, dst_col0), 0, row_bytes, row_bytes, 0);
    else if (in->op == PS_OP_MATMUL)
        *out = matrix_at(w, at, r.row0 - dst_col0, row_bytes, row_bytes, r.n_cols);
    else if (in->op == PS_OP_MOE_DISPATCH)
        *out = matrix_at(w, at, r.row0, w->bytes / w->experts, row_bytes, 0);
    else
        *out = matrix_at(w, at, 0, row_bytes, row_bytes, 0);
    return PS_OK;
}

/* The rows an instruction works on are those of its destination; KV_STORE has none and follows its source. */
static ps_rows rows_of(const ps_program *p, const ps_instr *in) {
    uint16_t buffer = in->dst != PS_NO_BUFFER ? in->dst : in->src[0];
    return buffer == PS_NO_BUFFER ? PS_ROWS_STEP : p->buffers[buffer].rows;
}

static void resolve_experts(const scope *s, ps_run_op *op) {
    const ps_engine *e = s->e;
    const ps_instr *in = s->in;
    const ps_layer *l = &e->model->layers[s->layer];
    uint64_t offset = e->expert_offset[s->layer];
    op->args.part = in->part;
    op->args.max_direct = s->t->tier->max_direct;
    if (offset == UINT64_MAX)
        return;
    const uint8_t *base = s->on_device ? e->run.d_tables : e->run.tables;
    uint64_t per_matrix = l->n_expert * sizeof(uint64_t);
    op->args.resident = (const uint32_t *)(const void *)(base + offset + PS_OP_MAX_WEIGHTS * per_matrix);
    if (!s->on_device)
        return;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        if (in->at[i] < PS_AT_SLOT)
            op->args.experts[i] =
                (const uint8_t *const *)(const void *)(base + offset + (uint64_t)i * per_matrix);
}

static ps_status resolve_kernel(const scope *s, ps_run_op *op) {
    const ps_engine *e = s->e;
    const ps_instr *in = s->in;
    const ps_kernel *kernel = ps_kernel_find(in->kernel);
    if (kernel == NULL || kernel->spec.device != (s->on_device ? PS_DEV_CUDA : PS_DEV_CPU))
        return refuse(s, PS_E_MISMATCH, "this build does not have its kernel");
    op->kernel = kernel;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        ps_status status = weight_arg(s, i, &op->args.w[i], &op->direct_bytes);
        if (status != PS_OK)
            return status;
    }
    ps_kargs *a = &op->args;
    a->row0 = in->row0;
    a->n_rows = in->n_rows;
    if (a->n_rows == 0 && in->op == PS_OP_MATMUL)
        a->n_rows = a->w[0].rows;
    if (a->n_rows == 0 && in->op == PS_OP_MOE_DISPATCH)
        a->n_rows = a->w[0].experts;
    if (a->n_rows == 0 && in->op == PS_OP_ATTENTION)
        a->n_rows = e->model->layers[s->layer].n_head_kv;
    if (in->op == PS_OP_MATMUL) { /* rows are counted from the first column of dst */
        uint32_t col0 = buffer_col0(s, in->dst);
        a->row0 -= col0;
        a->w[0].rows = a->w[0].rows - col0 > a->row0 + a->n_rows ? a->w[0].rows - col0 : a->row0 + a->n_rows;
        if (a->src[1].data != NULL) { /* a residual may hold other columns than dst */
            int64_t shift = (int64_t)col0 - (int64_t)buffer_col0(s, in->src[1]);
            a->src[1].data =
                (uint8_t *)((uintptr_t)a->src[1].data + (uint64_t)(shift * (int64_t)sizeof(float)));
        }
    }
    if (in->op == PS_OP_MOE_DISPATCH)
        resolve_experts(s, op);
    if (s->on_device) {
        op->args.scratch = e->run.d_work + s->t->tier->vram_scratch_offset;
        return PS_OK;
    }
    op->args.scratch = e->host_arena + s->t->tier->scratch_offset;
    op->args.n_threads = e->info.n_threads;
    op->variant = ps_kernel_variant(kernel, ps_cpu_level_detect());
    if (op->variant->n_phases > PS_RUN_MAX_PHASES)
        return refuse(s, PS_E_INTERNAL, "its kernel has too many phases");
    return PS_OK;
}

static ps_status resolve_copy(const scope *s, ps_run_op *op) {
    const ps_engine *e = s->e;
    const ps_instr *in = s->in;
    if (in->w[0] != PS_ROLE_NONE) {
        op->kind = PS_RUN_COPY_WEIGHT;
        op->layer = ps_instr_weight_layer(e->plan, in, s->layer);
        op->weight = ps_model_weight(e->model, op->layer, in->w[0]);
        if (op->weight == NULL)
            return refuse(s, PS_E_DATA, "the model has no such weight there");
        const ps_weight *w = op->weight;
        op->range = (ps_weight_range){.role = in->w[0],
                                      .layer = op->layer,
                                      .row0 = in->row0,
                                      .n_rows = in->n_rows != 0  ? in->n_rows
                                                : w->experts > 1 ? w->experts
                                                                 : w->rows,
                                      .col0 = in->col0,
                                      .n_cols = in->n_cols};
        return PS_OK;
    }
    if (in->src[0] == PS_NO_BUFFER) {
        op->kind = PS_RUN_COPY_KV;
        if (in->kv < PS_KV_SLOT || e->level->kv[s->layer].space != PS_SPACE_HOST)
            return refuse(s, PS_E_DATA, "copies of KV go between a slot and a home in host memory");
        op->kv_slot = e->run.d_work + s->t->tier->buffer_offset[in->kv - PS_KV_SLOT];
        op->kv = e->host_arena + e->level->kv[s->layer].offset;
        return PS_OK;
    }
    op->kind = PS_RUN_COPY_VALUE;
    /* In a range of columns both buffers hold them somewhere: args.row0 and n_rows are columns of the value. */
    const ps_plan_buffer *from = &s->t->program->buffers[in->src[0]], *to = &s->t->program->buffers[in->dst];
    uint64_t lo = from->col0 > to->col0 ? from->col0 : to->col0;
    uint64_t end_from = (uint64_t)from->col0 + from->cols, end_to = (uint64_t)to->col0 + to->cols;
    uint64_t hi = end_from < end_to ? end_from : end_to;
    op->args.row0 = in->n_rows != 0 ? in->row0 : lo;
    op->args.n_rows = in->n_rows != 0 ? in->n_rows : hi - lo;
    op->copy_from = (uint32_t)(op->args.row0 - from->col0);
    op->copy_to = (uint32_t)(op->args.row0 - to->col0);
    return PS_OK;
}

static ps_status resolve_op(ps_engine *e, ps_run_tier *t, uint32_t index, uint32_t layer, bool has_layer,
                            ps_run_op *op, ps_error *err) {
    const ps_instr *in = &t->program->instrs[index];
    scope s = {.e = e,
               .t = t,
               .in = in,
               .index = index,
               .layer = layer,
               .on_device = in->queue == PS_QUEUE_GPU,
               .err = err};
    if (in->queue != PS_QUEUE_CPU && !e->has_device)
        return refuse(&s, PS_E_UNAVAILABLE, "no GPU takes part");
    *op = (ps_run_op){.instr = in,
                      .instr_index = index,
                      .layer = layer,
                      .rows = rows_of(t->program, in),
                      .span_set = PS_RUN_NO_SPANS,
                      .args = {.model = e->model, .layer = has_layer ? &e->model->layers[layer] : NULL}};
    for (int i = 0; i < PS_OP_MAX_SRC; i++) {
        op->args.src[i] = buffer_arg(&s, in->src[i]);
        if (in->src[i] != PS_NO_BUFFER)
            op->src_rows[i] = t->program->buffers[in->src[i]].rows;
    }
    op->args.dst = buffer_arg(&s, in->dst);
    if (in->dst != PS_NO_BUFFER)
        op->dst_rows = t->program->buffers[in->dst].rows;
    if (in->queue != PS_QUEUE_CPU)
        t->has_device = true;
    if (in->op == PS_OP_COPY) {
        ps_status status = resolve_copy(&s, op);
        t->has_kv_copies |= op->kind == PS_RUN_COPY_KV;
        t->has_weight_copies |= op->kind == PS_RUN_COPY_WEIGHT;
        return status;
    }
    if (in->op == PS_OP_KV_STORE || in->op == PS_OP_ATTENTION) {
        const ps_kv_home *home = &e->level->kv[layer];
        if (in->kv >= PS_KV_SLOT)
            op->kv = e->run.d_work + t->tier->buffer_offset[in->kv - PS_KV_SLOT];
        else
            op->kv = (home->space == PS_SPACE_VRAM ? e->run.d_work
                      : s.on_device                ? e->d_host_arena
                                                   : e->host_arena) +
                     home->offset;
        if (s.on_device) { /* the same layer and cache use one set */
            for (uint32_t i = t->n_ops; i-- > 0 && op->span_set == PS_RUN_NO_SPANS;) {
                const ps_run_op *o = &t->ops[i];
                if (o->kind != PS_RUN_KERNEL)
                    continue;
                if (o->layer != layer)
                    break;
                if (o->span_set != PS_RUN_NO_SPANS && o->kv == op->kv)
                    op->span_set = o->span_set;
            }
            if (op->span_set == PS_RUN_NO_SPANS)
                op->span_set = t->n_span_sets++;
        }
    }
    if (in->queue == PS_QUEUE_CPU && in->op != PS_OP_EMBED && in->op != PS_OP_GATHER &&
        in->op != PS_OP_SAMPLE)
        t->light_cpu = false;
    return resolve_kernel(&s, op);
}

static ps_status resolve_tier(ps_engine *e, uint32_t tier, ps_run_tier *t, ps_error *err) {
    const ps_program *p = &e->plan->programs[e->level->tiers[tier].program];
    *t = (ps_run_tier){.tier = &e->level->tiers[tier], .program = p, .light_cpu = true};
    uint64_t n_ops = 0;
    for (uint32_t b = 0; b < p->n_blocks; b++)
        n_ops += (uint64_t)p->blocks[b].n_layers * p->blocks[b].n_instrs;
    t->ops = ps_arena_array(e->level_arena, n_ops, sizeof *t->ops);
    t->block_op = ps_arena_array(e->level_arena, p->n_blocks, sizeof *t->block_op);
    if (t->ops == NULL || t->block_op == NULL)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for a program of %llu instructions",
                            (unsigned long long)n_ops);
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const ps_block *block = &p->blocks[b];
        t->block_op[b] = t->n_ops;
        for (uint32_t l = 0; l < block->n_layers; l++)
            for (uint32_t i = 0; i < block->n_instrs; i++, t->n_ops++) {
                ps_status status = resolve_op(e, t, block->instr0 + i, block->layer0 + l,
                                              block->loop == PS_LOOP_LAYERS, &t->ops[t->n_ops], err);
                if (status != PS_OK)
                    return status;
            }
    }
    uint32_t least = tier == 0 ? 1 : e->level->tiers[tier - 1].max_tokens + 1;
    t->first_tiles = (least + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
    t->n_schedules = (t->tier->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS - t->first_tiles + 1;
    t->schedules = ps_arena_array(e->level_arena, t->n_schedules, sizeof *t->schedules);
    if (t->schedules == NULL)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for %u schedules", t->n_schedules);
    for (uint32_t i = 0; i < t->n_schedules; i++) {
        ps_status status = ps_engine_schedule(e, t, t->first_tiles + i, &t->schedules[i], err);
        if (status != PS_OK)
            return status;
    }
    return PS_OK;
}

ps_status ps_engine_resolve(ps_engine *e, ps_error *err) {
    e->n_tiers = e->level->n_tiers;
    e->tiers = ps_arena_array(e->level_arena, e->n_tiers, sizeof *e->tiers);
    if (e->tiers == NULL)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for %u tiers", e->n_tiers);
    for (uint32_t i = 0; i < e->n_tiers; i++) {
        ps_status status = resolve_tier(e, i, &e->tiers[i], err);
        if (status != PS_OK)
            return status;
    }
    return PS_OK;
}

const ps_run_schedule *ps_run_schedule_for(const ps_run_tier *t, uint32_t n_tiles) {
    return &t->schedules[n_tiles - t->first_tiles];
}
