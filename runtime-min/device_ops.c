/* Single instructions on the device's queues: kernels, copies, the step block that they read. */
#include <string.h>

#include "core/clock.h"
#include "runtime-min/engine_internal.h"

static uint64_t align64(uint64_t n) {
    return (n + 63) & ~(uint64_t)63;
}

/* Layout: base of the points (8 bytes), positions, outputs, spans [tile][set][span]. The same for all steps of a key. */
void ps_device_fill_block(ps_engine *e, const ps_run_step *step) {
    ps_run_device *r = &e->run;
    const ps_run_tier *t = step->tier;
    uint32_t n_outputs = step->first_output + step->n_outputs;
    r->at_positions = 64;
    r->at_outputs = align64(r->at_positions + 4 * (uint64_t)step->n_tokens);
    r->at_spans = align64(r->at_outputs + 4 * (uint64_t)n_outputs);
    r->block_used =
        r->at_spans + (uint64_t)step->n_tiles * t->n_span_sets * step->n_spans * sizeof(ps_seq_span);
    memcpy(r->block, &r->base, sizeof r->base);
    memcpy(r->block + r->at_positions, step->positions, 4 * (size_t)step->n_tokens);
    memcpy(r->block + r->at_outputs, step->outputs - step->first_output, 4 * (size_t)n_outputs);
    ps_seq_span *spans = (ps_seq_span *)(void *)(r->block + r->at_spans);
    for (uint32_t i = 0; i < t->n_ops; i++) {
        const ps_run_op *op = &t->ops[i];
        if (op->span_set == PS_RUN_NO_SPANS || op->instr->op != PS_OP_KV_STORE)
            continue; /* what attends has stored before, in the same set */
        for (uint32_t tile = 0; tile < step->n_tiles; tile++) {
            uint32_t row0 = tile * PS_TILE_TOKENS, n_rows = ps_run_tile_rows(step, tile);
            ps_seq_span *out = spans + ((uint64_t)tile * t->n_span_sets + op->span_set) * step->n_spans;
            uint32_t n = ps_run_spans(e, step, op->layer, op->kv, row0, n_rows, out);
            memset(out + n, 0, (step->n_spans - n) * sizeof *out); /* no rows here */
        }
    }
}

ps_status ps_device_send_block(ps_engine *e, ps_error *err) {
    return ps_device_copy(e->run.device, PS_STREAM_COMPUTE, e->run.d_block, 0, e->run.block, 0,
                          e->run.block_used, 1, err);
}

/* A kernel on the emulated device: the reference, on the same arguments. */
typedef struct emulated_call {
    ps_engine *engine;
    ps_op op;
    ps_kargs args;
} emulated_call;

static void run_emulated(void *payload) {
    const emulated_call *c = payload;
    ps_status status = ps_ref_run(c->op, &c->args, NULL);
    if (status != PS_OK)
        __atomic_store_n(&c->engine->run.emulated_status, (int)status, __ATOMIC_RELEASE);
}

static ps_status launch(ps_engine *e, const ps_run_step *step, const ps_run_op *op, const ps_kargs *a,
                        uint64_t kv_bound, ps_error *err) {
    ps_device *d = e->run.device;
    if (ps_device_get_info(d)->emulated) {
        emulated_call call = {e, op->instr->op, *a};
        return ps_device_enqueue(d, PS_STREAM_COMPUTE, run_emulated, &call, sizeof call, err);
    }
    if (ps_device_fault(d, "launch"))
        return ps_error_set(err, PS_E_OS, op->kernel->spec.name, "launch failed");
#ifdef PS_HAVE_CUDA
    ps_cuda_on on = {.stream = ps_device_stream(d, PS_STREAM_COMPUTE),
                     .kv_bound = (uint32_t)kv_bound,
                     .span_rows = step->span_rows,
                     .blas = e->run.blas};
    return ps_cuda_launch(op->instr->kernel, a, &on, err);
#else
    (void)step;
    (void)kv_bound;
    return ps_error_set(err, PS_E_INTERNAL, op->kernel->spec.name, "built without CUDA");
#endif
}

/* One rectangle of a value; on queue gpu by a kernel, so that it does not queue behind copies of weights. */
static ps_status copy_rect(ps_engine *e, ps_stream stream, uint8_t *dst, uint64_t dst_pitch,
                           const uint8_t *src, uint64_t src_pitch, uint64_t row_bytes, uint64_t rows,
                           ps_error *err) {
    ps_device *d = e->run.device;
    if (rows > 1 && dst_pitch == row_bytes && src_pitch == row_bytes) {
        row_bytes *= rows;
        rows = 1;
    }
    if (stream != PS_STREAM_COMPUTE || ps_device_get_info(d)->emulated)
        return ps_device_copy(d, stream, dst, dst_pitch, src, src_pitch, row_bytes, rows, err);
    if (ps_device_fault(d, "launch"))
        return ps_error_set(err, PS_E_OS, "copy", "launch failed");
#ifdef PS_HAVE_CUDA
    return ps_cuda_copy_rows(dst, dst_pitch, src, src_pitch, row_bytes, rows, ps_device_stream(d, stream),
                             err);
#else
    return ps_error_set(err, PS_E_INTERNAL, "copy", "built without CUDA");
#endif
}

/* Columns of a value from buffer to buffer: whole rows, or in each part of a row's layout the bytes of the columns. */
static ps_status copy_value(ps_engine *e, const ps_run_op *op, const ps_kargs *a, ps_stream stream,
                            ps_error *err) {
    const ps_xarg *src = &a->src[0], *dst = &a->dst;
    uint64_t n = op->args.n_rows, from = op->copy_from, to = op->copy_to;
    if (n == src->cols && n == dst->cols)
        return copy_rect(e, stream, dst->data, dst->row_bytes, src->data, src->row_bytes, src->row_bytes,
                         a->n_tokens, err);
    /* The parts of a row: bytes of a column, or of what many columns share, and where each begins. */
    uint64_t unit = src->fmt == PS_FMT_F16 || src->fmt == PS_FMT_F16S ? 2
                    : src->fmt == PS_FMT_SEL                          ? 8
                    : src->fmt == PS_FMT_Q8                           ? 1
                                                                      : 4;
    uint64_t dst_at[3] = {to * unit}, src_at[3] = {from * unit}, bytes[3] = {n * unit};
    if (src->fmt == PS_FMT_F16S) { /* a scale for all columns */
        dst_at[1] = ps_f16s_scale_offset(dst->cols);
        src_at[1] = ps_f16s_scale_offset(src->cols);
        bytes[1] = sizeof(float);
    }
    if (src->fmt == PS_FMT_Q8) { /* two floats for each group */
        dst_at[1] = ps_q8_d_offset(dst->cols) + to / PS_Q8_GROUP * sizeof(float);
        dst_at[2] = ps_q8_s_offset(dst->cols) + to / PS_Q8_GROUP * sizeof(float);
        src_at[1] = ps_q8_d_offset(src->cols) + from / PS_Q8_GROUP * sizeof(float);
        src_at[2] = ps_q8_s_offset(src->cols) + from / PS_Q8_GROUP * sizeof(float);
        bytes[1] = bytes[2] = n / PS_Q8_GROUP * sizeof(float);
    }
    ps_status status = PS_OK;
    for (int i = 0; i < 3 && bytes[i] != 0 && status == PS_OK; i++)
        status =
            copy_rect(e, stream, (uint8_t *)dst->data + dst_at[i], dst->row_bytes,
                      (const uint8_t *)src->data + src_at[i], src->row_bytes, bytes[i], a->n_tokens, err);
    return status;
}

ps_status ps_engine_enqueue_op(ps_engine *e, const ps_run_step *step, const ps_run_op *op, uint32_t tile,
                               uint64_t kv_bound, ps_error *err) {
    ps_run_device *r = &e->run;
    const ps_stream stream = op->instr->queue == PS_QUEUE_H2D   ? PS_STREAM_H2D
                             : op->instr->queue == PS_QUEUE_D2H ? PS_STREAM_D2H
                                                                : PS_STREAM_COMPUTE;
    ps_kargs a;
    if (!ps_run_op_args(e, step, op, tile, &a, NULL))
        return PS_OK;
    switch (op->kind) {
    case PS_RUN_KERNEL:
        r->traffic.direct += op->direct_bytes;
        return launch(e, step, op, &a, kv_bound, err);
    case PS_RUN_COPY_WEIGHT: {
        uint64_t bytes;
        if (ps_weight_range_bytes(e->model, &op->range, &bytes, NULL))
            r->traffic.copied += bytes;
        return ps_weights_copy(e->weights, op->weight, op->range.row0, op->range.n_rows, op->range.col0,
                               op->range.n_cols, op->args.dst.data, err);
    }
    case PS_RUN_COPY_VALUE:
        return copy_value(e, op, &a, stream, err);
    case PS_RUN_COPY_KV:
        return ps_run_copy_kv(e, step, op, tile, err);
    }
    return PS_OK;
}

/* The event is between the two readings of the clock, so the closer they are, the better both clocks are known together. */
ps_status ps_device_start_times(ps_engine *e, ps_error *err) {
    enum { TRIES = 8, CLOSE_NS = 20000 };
    ps_run_device *r = &e->run;
    ps_status status = ps_device_sync(r->device, err);
    uint64_t round_trip = UINT64_MAX;
    for (int i = 0; i < TRIES && status == PS_OK && round_trip > CLOSE_NS; i++) {
        uint64_t before = ps_clock_ns();
        status = ps_device_time(r->device, PS_STREAM_COMPUTE, PS_EVENT_ZERO, err);
        if (status == PS_OK)
            status = ps_device_sync(r->device, err);
        round_trip = ps_clock_ns() - before;
        r->zero_ns = (int64_t)(before + round_trip / 2 - e->trace_step_ns);
    }
    r->n_timed = r->n_timed_read = 0;
    return status;
}

static ps_status read_time(ps_engine *e, uint32_t event, uint64_t *out_ns, ps_error *err) {
    double s = 0;
    ps_status status = ps_device_elapsed(e->run.device, PS_EVENT_ZERO, event, &s, err);
    int64_t at = e->run.zero_ns + (int64_t)(s * 1e9);
    *out_ns = at < 0 ? 0 : (uint64_t)at;
    return status;
}

ps_status ps_device_read_graph_times(ps_engine *e, const ps_run_graph *graph, ps_error *err) {
    ps_status status = ps_device_sync(e->run.device, err);
    for (uint32_t i = 0; i < graph->n_timed && status == PS_OK; i++) {
        const ps_run_timed *t = &graph->timed[i];
        uint64_t *ns = e->event_ns + 2 * (uint64_t)t->index;
        status = read_time(e, t->begin, &ns[0], err);
        if (status == PS_OK)
            status = read_time(e, t->end, &ns[1], err);
    }
    return status;
}

ps_status ps_device_read_times(ps_engine *e, bool all, ps_error *err) {
    ps_run_device *r = &e->run;
    ps_status status = all && r->n_timed_read != r->n_timed ? ps_device_sync(r->device, err) : PS_OK;
    while (status == PS_OK && r->n_timed_read < r->n_timed) {
        uint32_t slot = (uint32_t)(r->n_timed_read % PS_RUN_TIMED), event = PS_EVENT_TIME + 2 * slot;
        bool passed = true;
        if (!all && ((status = ps_device_passed(r->device, event + 1, &passed, err)) != PS_OK || !passed))
            break;
        uint64_t *ns = e->event_ns + 2 * (uint64_t)r->timed_index[slot];
        for (uint32_t i = 0; i < 2 && status == PS_OK; i++)
            status = read_time(e, event + i, &ns[i], err);
        r->n_timed_read++;
    }
    return status;
}
