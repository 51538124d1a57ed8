/* What an instruction may be by itself: its queue and kernel, formats, spaces, rows and scratch. */
#include "core/checked.h"
#include "schemas/check_walk.h"
#include "schemas/plan_fields.h"

static ps_status check_formats(const ps_walk *c, const ps_here *h, const ps_kernel_spec *k) {
    const ps_instr *in = h->in;
    ps_fmt in_fmt = in->src[0] != PS_NO_BUFFER ? ps_walk_buffer(c, in->src[0])->fmt : PS_FMT_NONE;
    ps_fmt out_fmt = in->dst != PS_NO_BUFFER ? ps_walk_buffer(c, in->dst)->fmt : PS_FMT_NONE;
    if (k->in_fmt != in_fmt || k->out_fmt != out_fmt)
        return ps_walk_fail(c, h, "kernel %s goes from %s to %s, the buffers are %s and %s", k->name,
                            ps_fmt_name(k->in_fmt), ps_fmt_name(k->out_fmt), ps_fmt_name(in_fmt),
                            ps_fmt_name(out_fmt));
    ps_fmt src1 = h->rule->src1_fmt != PS_FMT_NONE ? h->rule->src1_fmt : in_fmt;
    if (in->src[1] != PS_NO_BUFFER && ps_walk_buffer(c, in->src[1])->fmt != src1)
        return ps_walk_fail(c, h, "the second source must be %s", ps_fmt_name(src1));
    if (in->src[2] != PS_NO_BUFFER && ps_walk_buffer(c, in->src[2])->fmt != PS_FMT_F32)
        return ps_walk_fail(c, h, "the third source must be f32");
    return PS_OK;
}

static ps_status check_kernel(const ps_walk *c, const ps_here *h) {
    const ps_instr *in = h->in;
    const ps_queue_rule *queue = ps_queue_rule_get(in->queue);
    uint32_t queues = h->rule->queues;
    if (ps_is_weight_copy(in))
        queues = PS_Q_H2D;
    else if (ps_is_kv_copy(in))
        queues = PS_Q_H2D | PS_Q_D2H;
    if (!(queues >> in->queue & 1))
        return ps_walk_fail(c, h, "the operation cannot run on queue %s", ps_queue_name(in->queue));
    if (in->queue != PS_QUEUE_CPU && c->level->budget_bytes == 0)
        return ps_walk_fail(c, h, "a level without VRAM has queue cpu alone");
    if (in->op == PS_OP_COPY)
        return PS_OK;
    const ps_kernel_spec *k = ps_kernel_specs_find(c->plan->kernels, c->plan->n_kernels, in->kernel);
    if (k->op != in->op || k->device != queue->device)
        return ps_walk_fail(c, h, "kernel %s is for %s on %s", k->name, ps_op_get(k->op)->name,
                            ps_processor_name(k->device));
    const ps_weight *w = in->w[0] != PS_ROLE_NONE ? ps_model_weight(c->model, h->layer, in->w[0]) : NULL;
    if (in->w[0] != PS_ROLE_NONE && w == NULL)
        return ps_walk_fail(c, h, "the model has no %s here", ps_role_get(in->w[0])->name);
    if (k->wtype != (w != NULL ? w->type : PS_DTYPE_NONE))
        return ps_walk_fail(c, h, "kernel %s does not take the type of the weights", k->name);
    return check_formats(c, h, k);
}

static uint64_t longest_row(const ps_walk *c, const ps_here *h) {
    uint64_t cols = h->in->dst != PS_NO_BUFFER ? ps_walk_buffer(c, h->in->dst)->cols : 0;
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++)
        if (h->in->src[i] != PS_NO_BUFFER && ps_walk_buffer(c, h->in->src[i])->cols > cols)
            cols = ps_walk_buffer(c, h->in->src[i])->cols;
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        const ps_weight *w =
            h->in->w[i] != PS_ROLE_NONE ? ps_model_weight(c->model, h->layer, h->in->w[i]) : NULL;
        uint64_t n = w == NULL ? 0 : i == 0 && h->in->n_cols != 0 ? h->in->n_cols : w->cols;
        cols = n > cols ? n : cols;
    }
    return cols;
}

static ps_status check_scratch(const ps_walk *c, const ps_here *h) {
    const ps_kernel_spec *k = ps_kernel_specs_find(c->plan->kernels, c->plan->n_kernels, h->in->kernel);
    if (k == NULL)
        return PS_OK;
    uint64_t rows = h->outputs ? c->tier->max_outputs : c->tier->max_tokens;
    if (rows > PS_TILE_TOKENS && !h->outputs)
        rows = PS_TILE_TOKENS;
    bool gpu = h->in->queue == PS_QUEUE_GPU;
    uint64_t have = gpu ? c->tier->vram_scratch_bytes : c->tier->scratch_bytes;
    uint64_t need =
        ps_scratch_bytes(&k->scratch, rows, longest_row(c, h), c->level->n_threads, c->level->bucket_tokens);
    return need <= have
               ? PS_OK
               : ps_walk_fail(c, h, "needs %llu bytes of %sscratch, the tier has %llu",
                              (unsigned long long)need, gpu ? "VRAM " : "", (unsigned long long)have);
}

/* GATHER goes from all tiles to the outputs. */
static ps_status check_gather(const ps_walk *c, ps_here *h, uint32_t n_outputs) {
    const ps_instr *in = h->in;
    const ps_block *block = &c->program->blocks[c->cursor.block];
    h->outputs = true;
    if (block->over_tiles || block->loop != PS_LOOP_ONCE)
        return ps_walk_fail(c, h, "must be in a block that runs once");
    if (n_outputs != 0 || ps_walk_buffer(c, in->dst)->rows != PS_ROWS_OUTPUTS)
        return ps_walk_fail(c, h, "must go from rows of the step to rows of the outputs");
    return ps_walk_buffer(c, in->src[0])->rows == PS_ROWS_STEP || c->n_tiles == 1
               ? PS_OK
               : ps_walk_fail(c, h, "must read rows of the step");
}

/* Which rows it works on: the tokens of one tile, or the outputs. */
static ps_status check_rows(const ps_walk *c, ps_here *h) {
    const ps_instr *in = h->in;
    const ps_block *block = &c->program->blocks[c->cursor.block];
    uint32_t n_outputs = 0, n = 0;
    if (ps_is_weight_copy(in) || ps_is_kv_copy(in))
        return PS_OK;
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++)
        if (in->src[i] != PS_NO_BUFFER && (n++, ps_walk_buffer(c, in->src[i])->rows == PS_ROWS_OUTPUTS))
            n_outputs++;
    if (in->op == PS_OP_GATHER)
        return check_gather(c, h, n_outputs);
    if (in->dst != PS_NO_BUFFER && (n++, ps_walk_buffer(c, in->dst)->rows == PS_ROWS_OUTPUTS))
        n_outputs++;
    h->outputs = n != 0 && n_outputs == n;
    if (n_outputs != 0 && !h->outputs)
        return ps_walk_fail(c, h, "mixes rows of the step with rows of the outputs");
    if (h->outputs && block->over_tiles)
        return ps_walk_fail(c, h, "rows of the outputs in a block over tiles");
    if (!h->outputs && !block->over_tiles && c->n_tiles > 1)
        return ps_walk_fail(c, h, "a step of %u tiles needs it in a block over tiles", c->n_tiles);
    return PS_OK;
}

/* Buffers that it reads besides its sources: slots of weights, and of KV. */
static uint32_t slots_read(const ps_instr *in, uint16_t out[PS_OP_MAX_WEIGHTS + 1]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        if (in->w[i] != PS_ROLE_NONE && in->at[i] >= PS_AT_SLOT)
            out[n++] = (uint16_t)(in->at[i] - PS_AT_SLOT);
    if (in->kv >= PS_KV_SLOT && in->op != PS_OP_KV_STORE)
        out[n++] = (uint16_t)(in->kv - PS_KV_SLOT);
    return n;
}

static ps_status check_apart(const ps_walk *c, const ps_here *h) {
    const ps_instr *in = h->in;
    uint16_t slots[PS_OP_MAX_WEIGHTS + 1];
    uint32_t n = slots_read(in, slots);
    for (uint32_t i = 0; i < n && in->dst != PS_NO_BUFFER; i++)
        if (slots[i] == in->dst || ps_check_overlap(&c->state, slots[i], in->dst))
            return ps_walk_fail(c, h, "slot %u and the destination share bytes", slots[i]);
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++)
        if (in->op == PS_OP_KV_STORE && in->kv >= PS_KV_SLOT && in->src[i] != PS_NO_BUFFER &&
            ps_check_overlap(&c->state, in->src[i], (uint32_t)in->kv - PS_KV_SLOT))
            return ps_walk_fail(c, h, "source %u and the slot share bytes", i);
    return PS_OK;
}

static ps_status check_operands(const ps_walk *c, const ps_here *h) {
    const ps_instr *in = h->in;
    const ps_queue_rule *queue = ps_queue_rule_get(in->queue);
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++) {
        if (in->src[i] == PS_NO_BUFFER && (h->rule->src_needed >> i & 1) != 0)
            return ps_walk_fail(c, h, "source %u is missing", i);
        if (in->src[i] == PS_NO_BUFFER)
            continue;
        ps_space space = ps_walk_buffer(c, in->src[i])->space;
        if (!(queue->src >> space & 1))
            return ps_walk_fail(c, h, "queue %s does not read from %s", ps_queue_name(in->queue),
                                ps_space_name(space));
        if (in->dst == PS_NO_BUFFER)
            continue;
        if (in->src[i] == in->dst && !(h->rule->src_in_place >> i & 1))
            return ps_walk_fail(c, h, "source %u cannot be the destination", i);
        if (ps_check_overlap(&c->state, in->src[i], in->dst))
            return ps_walk_fail(c, h, "source %u and the destination share bytes", i);
    }
    if (in->dst != PS_NO_BUFFER && !(queue->dst >> ps_walk_buffer(c, in->dst)->space & 1))
        return ps_walk_fail(c, h, "queue %s does not write to %s", ps_queue_name(in->queue),
                            ps_space_name(ps_walk_buffer(c, in->dst)->space));
    return check_apart(c, h);
}

ps_status ps_walk_check_instr(const ps_walk *c, ps_here *h) {
    if (h->in->n_rows != 0 && h->rule->range == PS_RANGE_NONE)
        return ps_walk_fail(c, h, "the operation takes no range");
    ps_status status = check_operands(c, h);
    if (status == PS_OK)
        status = check_kernel(c, h);
    if (status == PS_OK)
        status = check_rows(c, h);
    return status == PS_OK ? check_scratch(c, h) : status;
}
