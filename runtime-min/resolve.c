/* From the plan's program to operations that only need a step's data: kernel variants and operand addresses.
 * The level has passed the checker, so indices and ranges are good; what is left to refuse is what only
 * this build knows: kernels it does not have. */
#include "core/checked.h"
#include "runtime-min/engine_internal.h"

static ps_xarg buffer_arg(const ps_engine *e, const ps_run_tier *t, uint16_t buffer) {
    if (buffer == PS_NO_BUFFER)
        return (ps_xarg){0};
    const ps_plan_buffer *b = &t->program->buffers[buffer];
    return (ps_xarg){.data = e->host_arena + t->tier->buffer_offset[buffer],
                     .fmt = b->fmt,
                     .cols = b->cols,
                     .row_bytes = ps_fmt_row_bytes(b->fmt, b->cols)};
}

static ps_warg weight_arg(const ps_engine *e, uint32_t layer, ps_role role) {
    const ps_weight *w = role == PS_ROLE_NONE ? NULL : ps_model_weight(e->model, layer, role);
    if (w == NULL)
        return (ps_warg){0};
    return (ps_warg){.data = ps_model_weight_data(e->model, w),
                     .type = w->type,
                     .cols = w->cols,
                     .rows = w->rows,
                     .experts = w->experts,
                     .row_bytes = w->bytes / (w->rows * w->experts)};
}

/* The rows an instruction works on are those of its destination; KV_STORE has none and follows its source. */
static ps_rows rows_of(const ps_program *p, const ps_instr *in) {
    uint16_t buffer = in->dst != PS_NO_BUFFER ? in->dst : in->src[0];
    return p->buffers[buffer].rows;
}

static ps_status resolve_op(const ps_engine *e, const ps_run_tier *t, uint32_t index, uint32_t layer,
                            bool has_layer, ps_run_op *op, ps_error *err) {
    const ps_instr *in = &t->program->instrs[index];
    if (in->queue != PS_QUEUE_CPU)
        return ps_error_set(err, PS_E_UNSUPPORTED, e->info.budget,
                            "instruction %u is for the %s queue, which this build does not run", index,
                            ps_queue_name(in->queue));
    const ps_kernel *kernel = ps_kernel_find(in->kernel);
    if (kernel == NULL || kernel->spec.device != PS_DEV_CPU)
        return ps_error_set(err, PS_E_MISMATCH, e->info.budget,
                            "instruction %u names kernel %u, which this build does not have", index,
                            in->kernel);
    *op = (ps_run_op){
        .instr = in,
        .kernel = kernel,
        .variant = ps_kernel_variant(kernel, ps_cpu_level_detect()),
        .instr_index = index,
        .layer = layer,
        .rows = rows_of(t->program, in),
        .args = {.model = e->model,
                 .layer = has_layer ? &e->model->layers[layer] : NULL,
                 .row0 = in->row0,
                 .n_rows = in->n_rows,
                 .scratch = e->host_arena + t->tier->scratch_offset,
                 .n_threads = e->info.n_threads},
    };
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        op->args.w[i] = weight_arg(e, layer, in->w[i]);
    for (int i = 0; i < PS_OP_MAX_SRC; i++) {
        op->args.src[i] = buffer_arg(e, t, in->src[i]);
        if (in->src[i] != PS_NO_BUFFER)
            op->src_rows[i] = t->program->buffers[in->src[i]].rows;
    }
    op->args.dst = buffer_arg(e, t, in->dst);
    if (in->dst != PS_NO_BUFFER)
        op->dst_rows = t->program->buffers[in->dst].rows;
    if (op->args.n_rows == 0 && in->op == PS_OP_MATMUL)
        op->args.n_rows = op->args.w[0].rows;
    if (op->args.n_rows == 0 && in->op == PS_OP_MOE_DISPATCH)
        op->args.n_rows = op->args.w[0].experts;
    if (op->args.n_rows == 0 && in->op == PS_OP_ATTENTION)
        op->args.n_rows = e->model->layers[layer].n_head_kv;
    if (op->variant->n_phases > PS_RUN_MAX_PHASES)
        return ps_error_set(err, PS_E_INTERNAL, kernel->spec.name, "has %u phases, more than %d",
                            op->variant->n_phases, PS_RUN_MAX_PHASES);
    return PS_OK;
}

/* A barrier is due before an op that waits for one after the last barrier. All of the plan's waits are at
 * distances in the expanded stream, whose order is the order here (tiles repeat a segment: the first op of
 * a repeated segment gets a barrier for what the segment itself wrote). Operations of different instructions
 * share one scratch area, so one that uses scratch also waits for another that does. */
static void place_barriers(ps_run_tier *t) {
    uint32_t since = 0;        /* ops since the last barrier */
    bool scratch_busy = false; /* one of them uses scratch */
    for (uint32_t i = 0; i < t->n_ops; i++) {
        ps_run_op *op = &t->ops[i];
        const ps_scratch_coef *s = &op->kernel->spec.scratch;
        bool uses_scratch =
            (s->base | s->per_token | s->per_token_col | s->per_col | s->per_thread | s->per_thread_col) != 0;
        op->barrier = uses_scratch && scratch_busy;
        for (uint32_t w = 0; w < op->instr->n_waits; w++)
            op->barrier |= op->instr->wait[w] <= since;
        if (op->barrier) {
            since = 0;
            scratch_busy = false;
        }
        since++;
        scratch_busy |= uses_scratch;
    }
    for (uint32_t s = 0; s < t->n_segments; s++)
        if (t->segments[s].over_tiles || s == t->tail_segment)
            t->ops[t->segments[s].op0].barrier = true;
}

static ps_status resolve_tier(ps_engine *e, const ps_tier *tier, ps_run_tier *t, ps_error *err) {
    const ps_program *p = &e->plan->programs[tier->program];
    *t = (ps_run_tier){.tier = tier, .program = p, .tail_segment = UINT32_MAX};
    uint64_t n_ops = 0, n_segments = 0;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        n_ops += (uint64_t)p->blocks[b].n_layers * p->blocks[b].n_instrs;
        n_segments += (uint64_t)p->blocks[b].n_layers + 1; /* a block with GATHER in it becomes two */
    }
    t->ops = ps_arena_array(e->arena, n_ops, sizeof *t->ops);
    t->segments = ps_arena_array(e->arena, n_segments, sizeof *t->segments);
    if (t->ops == NULL || t->segments == NULL)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for a program of %llu instructions",
                            (unsigned long long)n_ops);
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const ps_block *block = &p->blocks[b];
        for (uint32_t l = 0; l < block->n_layers; l++) {
            ps_run_segment *seg = &t->segments[t->n_segments++];
            *seg = (ps_run_segment){.op0 = t->n_ops, .over_tiles = block->over_tiles};
            for (uint32_t i = 0; i < block->n_instrs; i++) {
                if (p->instrs[block->instr0 + i].op == PS_OP_GATHER) {
                    if (seg->n_ops != 0) {
                        seg = &t->segments[t->n_segments++];
                        *seg = (ps_run_segment){.op0 = t->n_ops};
                    }
                    t->tail_segment = t->n_segments - 1;
                }
                ps_status status = resolve_op(e, t, block->instr0 + i, block->layer0 + l,
                                              block->loop == PS_LOOP_LAYERS, &t->ops[t->n_ops], err);
                if (status != PS_OK)
                    return status;
                seg->n_phases += t->ops[t->n_ops].variant->n_phases;
                t->n_ops++;
                seg->n_ops++;
            }
        }
    }
    if (t->tail_segment == UINT32_MAX)
        return ps_error_set(err, PS_E_DATA, e->info.budget, "tier %u has no gather instruction",
                            tier->max_tokens);
    place_barriers(t);
    return PS_OK;
}

ps_status ps_engine_resolve(ps_engine *e, ps_error *err) {
    e->n_tiers = e->level->n_tiers;
    e->tiers = ps_arena_array(e->arena, e->n_tiers, sizeof *e->tiers);
    if (e->tiers == NULL)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for %u tiers", e->n_tiers);
    for (uint32_t i = 0; i < e->n_tiers; i++) {
        ps_status status = resolve_tier(e, &e->level->tiers[i], &e->tiers[i], err);
        if (status != PS_OK)
            return status;
    }
    return PS_OK;
}

uint64_t ps_run_n_instrs(const ps_run_tier *t, uint32_t begin, uint32_t end, uint32_t n_tiles) {
    uint64_t n = 0;
    for (uint32_t s = begin; s < end; s++)
        n += (uint64_t)t->segments[s].n_ops * (t->segments[s].over_tiles ? n_tiles : 1);
    return n;
}

uint64_t ps_run_n_phases(const ps_run_tier *t, uint32_t begin, uint32_t end, uint32_t n_tiles) {
    uint64_t n = 0;
    for (uint32_t s = begin; s < end; s++)
        n += (uint64_t)t->segments[s].n_phases * (t->segments[s].over_tiles ? n_tiles : 1);
    return n;
}
