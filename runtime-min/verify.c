/* Verify mode: every operation runs through its double-precision reference as well, on the very operands of
 * the run, and must agree within the tolerance that the kernel's row states. Operations of the device run alone; what they
 * read and write is copied back, but for weights: those are the file's, so that copies into VRAM are verified too. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime-min/engine_internal.h"

/* Element i of an activation row as a number; a selection counts expert and weight as two. */
static double element(const ps_xarg *x, const uint8_t *row, uint64_t i) {
    float f;
    int32_t n;
    uint16_t h;
    switch (x->fmt) {
    case PS_FMT_F32:
        memcpy(&f, row + 4 * i, 4);
        return f;
    case PS_FMT_F16:
        memcpy(&h, row + 2 * i, 2);
        return ps_f16_to_f32(h);
    case PS_FMT_F16S:
        memcpy(&h, row + 2 * i, 2);
        memcpy(&f, row + ps_f16s_scale_offset(x->cols), 4);
        return (double)f * (double)ps_f16_to_f32(h);
    case PS_FMT_I32:
        memcpy(&n, row + 4 * i, 4);
        return n;
    case PS_FMT_Q8:
        memcpy(&f, row + ps_q8_d_offset(x->cols) + i / PS_Q8_GROUP * 4, 4);
        return (double)f * (int8_t)row[i];
    case PS_FMT_SEL:
        if (i % 2 == 0) {
            memcpy(&n, row + 4 * i, 4);
            return n;
        }
        memcpy(&f, row + 4 * i, 4);
        return f;
    case PS_FMT_NONE:
    case PS_FMT_COUNT:
        break;
    }
    return 0;
}

/* ||a - b|| / ||b|| over all elements. A value that is not finite must be the same on both sides. */
static double relative_error(const ps_xarg *x, const uint8_t *a, const uint8_t *b, uint32_t n_rows) {
    double diff = 0, norm = 0;
    uint64_t n = x->fmt == PS_FMT_SEL ? 2 * x->cols : x->cols;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint64_t i = 0; i < n; i++) {
            double va = element(x, a + r * x->row_bytes, i), vb = element(x, b + r * x->row_bytes, i);
            if (isfinite(vb))
                norm += vb * vb;
            if (va == vb || (isnan(va) && isnan(vb)))
                continue;
            if (!isfinite(va) || !isfinite(vb))
                return INFINITY;
            diff += (va - vb) * (va - vb);
        }
    if (diff == 0)
        return 0;
    return norm == 0 ? INFINITY : sqrt(diff / norm);
}

/* The KV rows that a KV_STORE wrote, one row of K and V per token, as f16. */
static void copy_kv_rows(const ps_kargs *a, uint8_t *out) {
    uint64_t k_dim = (uint64_t)a->layer->n_head_kv * a->layer->head_dim_k;
    uint64_t v_dim = (uint64_t)a->layer->n_head_kv * a->layer->head_dim_v;
    for (uint32_t s = 0; s < a->n_spans; s++) {
        const ps_seq_span *span = &a->spans[s];
        for (uint32_t r = 0; r < span->n_rows; r++) {
            uint64_t slot = (span->pos0 + r) % span->kv_rows;
            uint8_t *row = out + (span->row0 + r) * (k_dim + v_dim) * 2;
            memcpy(row, span->k + slot * k_dim, k_dim * 2);
            memcpy(row + k_dim * 2, span->v + slot * v_dim, v_dim * 2);
        }
    }
}

static ps_xarg kv_view(const ps_layer *l) {
    uint64_t cols = (uint64_t)l->n_head_kv * (l->head_dim_k + l->head_dim_v);
    return (ps_xarg){.fmt = PS_FMT_F16, .cols = cols, .row_bytes = 2 * cols};
}

static ps_status judge(ps_engine *e, const ps_run_op *op, double error, ps_error *err) {
    double tolerance = (double)op->kernel->tolerance;
    double share = error == 0 ? 0 : tolerance > 0 ? error / tolerance : INFINITY;
    e->stats.n_verified++;
    if (share > e->stats.worst_verify)
        e->stats.worst_verify = share;
    return share <= 1
               ? PS_OK
               : ps_error_set(err, PS_E_MISMATCH, op->kernel->spec.name,
                              "layer %u, instruction %u: off by %.3g of the reference, %.3g is allowed",
                              op->layer, op->instr_index, error, tolerance);
}

static ps_status verify_op(ps_engine *e, const ps_run_op *op, const ps_kargs *a, ps_error *err) {
    ps_cpu_level level = ps_cpu_level_detect();
    if (op->instr->op == PS_OP_SAMPLE) { /* a second draw would change the run */
        ps_kernel_run_serial(op->kernel, level, a);
        return PS_OK;
    }
    ps_kargs ref = *a;
    bool is_kv = op->instr->op == PS_OP_KV_STORE;
    ps_xarg view = is_kv ? kv_view(a->layer) : a->dst;
    uint64_t bytes = a->n_tokens * view.row_bytes;
    uint8_t *expected = malloc(2 * bytes + 1);
    if (expected == NULL)
        return ps_error_set(err, PS_E_NOMEM, "verify", "no memory for %llu bytes", (unsigned long long)bytes);
    uint8_t *actual = expected + bytes;
    if (!is_kv) {
        memcpy(expected, a->dst.data, bytes); /* a row range leaves the other columns as they are */
        ref.dst.data = expected;
    }
    ps_status status = ps_ref_run(op->instr->op, &ref, err);
    if (status == PS_OK) {
        if (is_kv)
            copy_kv_rows(a, expected);
        ps_kernel_run_serial(op->kernel, level, a);
        if (is_kv)
            copy_kv_rows(a, actual);
        status =
            judge(e, op, relative_error(&view, is_kv ? actual : a->dst.data, expected, a->n_tokens), err);
    }
    free(expected);
    return status;
}

/* ---- on the device ---- */

/* Host copies of a device operation's operands, freed together. */
typedef struct mirror {
    ps_kargs args;
    ps_seq_span *spans;
    void *blocks[2 * PS_OP_MAX_SRC + 64];
    uint32_t n_blocks;
} mirror;

static ps_status fetch(ps_engine *e, mirror *m, const void *d, uint64_t bytes, void **out, ps_error *err) {
    *out = malloc(bytes + 1);
    if (*out == NULL || m->n_blocks == sizeof m->blocks / sizeof *m->blocks) {
        free(*out);
        return ps_error_set(err, PS_E_NOMEM, "verify", "no memory for %llu bytes", (unsigned long long)bytes);
    }
    m->blocks[m->n_blocks++] = *out;
    ps_status status = ps_device_copy(e->run.device, PS_STREAM_D2H, *out, 0, d, 0, bytes, 1, err);
    return status == PS_OK ? ps_device_sync(e->run.device, err) : status;
}

static ps_status mirror_new(ps_engine *e, const ps_run_step *step, const ps_run_op *op,
                            const ps_run_entry *entry, const ps_kargs *a, mirror *m, ps_error *err) {
    ps_status status = PS_OK;
    *m = (mirror){.args = *a};
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        m->args.w[i] = ps_run_host_weight(e, op->instr, op->layer, i, a);
        m->args.experts[i] = NULL;
    }
    if (a->resident != NULL)
        m->args.resident = (const uint32_t *)(const void *)(e->run.tables +
                                                            ((const uint8_t *)a->resident - e->run.d_tables));
    for (int i = 0; i < PS_OP_MAX_SRC && status == PS_OK; i++)
        if (a->src[i].data != NULL && op->instr->op != PS_OP_GATHER)
            status =
                fetch(e, m, a->src[i].data, a->n_tokens * a->src[i].row_bytes, &m->args.src[i].data, err);
    if (op->instr->op == PS_OP_GATHER && status == PS_OK)
        status = fetch(e, m, a->src[0].data, step->n_tokens * a->src[0].row_bytes, &m->args.src[0].data, err);
    if (a->dst.data != NULL && status == PS_OK)
        status = fetch(e, m, a->dst.data, a->n_tokens * a->dst.row_bytes, &m->args.dst.data, err);
    m->args.outputs = step->outputs;
    m->args.positions = step->positions + (uint64_t)entry->tile * PS_TILE_TOKENS;
    if (op->kv == NULL || status != PS_OK)
        return status;
    m->args.n_spans =
        ps_run_spans(e, step, op->layer, op->kv, entry->tile * PS_TILE_TOKENS, a->n_tokens, e->thread_spans);
    m->args.spans = e->thread_spans;
    for (uint32_t i = 0; i < m->args.n_spans && status == PS_OK; i++) {
        ps_seq_span *s = &e->thread_spans[i];
        void *k, *v = NULL;
        status =
            fetch(e, m, s->k, 2 * (uint64_t)s->kv_rows * a->layer->n_head_kv * a->layer->head_dim_k, &k, err);
        if (status == PS_OK)
            status = fetch(e, m, s->v, 2 * (uint64_t)s->kv_rows * a->layer->n_head_kv * a->layer->head_dim_v,
                           &v, err);
        s->k = k;
        s->v = v;
    }
    return status;
}

static void mirror_free(mirror *m) {
    for (uint32_t i = 0; i < m->n_blocks; i++)
        free(m->blocks[i]);
}

static ps_status verify_on_device(ps_engine *e, const ps_run_step *step, const ps_run_op *op,
                                  const ps_run_entry *entry, ps_error *err) {
    ps_kargs a;
    if (!ps_run_op_args(e, step, op, entry->tile, &a, NULL))
        return PS_OK;
    mirror want = {0}, have = {0};
    const bool is_kernel = op->kind == PS_RUN_KERNEL, is_kv = op->instr->op == PS_OP_KV_STORE;
    ps_status status = is_kernel ? mirror_new(e, step, op, entry, &a, &want, err) : PS_OK;
    ps_xarg view = is_kernel && is_kv ? kv_view(a.layer) : a.dst;
    uint8_t *rows = NULL;
    if (is_kernel && is_kv && status == PS_OK && (rows = malloc(2 * a.n_tokens * view.row_bytes + 1)) == NULL)
        status = ps_error_set(err, PS_E_NOMEM, "verify", "no memory");
    if (is_kernel && status == PS_OK)
        status = ps_ref_run(op->instr->op, &want.args, err);
    if (is_kv && status == PS_OK)
        copy_kv_rows(&want.args, rows);
    if (status == PS_OK)
        status = ps_engine_enqueue_op(e, step, op, entry->tile, step->kv_end, err);
    if (status == PS_OK)
        status = ps_device_sync(e->run.device, err);
    if (is_kernel && status == PS_OK)
        status = mirror_new(e, step, op, entry, &a, &have, err);
    if (is_kernel && status == PS_OK) {
        if (is_kv)
            copy_kv_rows(&have.args, rows + a.n_tokens * view.row_bytes);
        status = judge(e, op,
                       relative_error(&view, is_kv ? rows + a.n_tokens * view.row_bytes : have.args.dst.data,
                                      is_kv ? rows : want.args.dst.data, a.n_tokens),
                       err);
    }
    free(rows);
    mirror_free(&want);
    mirror_free(&have);
    return status;
}

ps_status ps_engine_run_verified(ps_engine *e, ps_run_step *step, ps_error *err) {
    const ps_run_schedule *s = step->schedule;
    uint32_t c = step->cpu_begin, d = step->dev_begin;
    ps_status status = PS_OK;
    if (d != step->dev_end) {
        status = ps_device_pass_prepare(e, step, err);
        if (status == PS_OK)
            status = ps_device_send_block(e, err);
        if (status == PS_OK)
            status = ps_device_sync(e->run.device, err);
    }
    while (status == PS_OK && (c < step->cpu_end || d < step->dev_end)) {
        bool on_cpu = d == step->dev_end || (c < step->cpu_end && s->cpu[c].index < s->dev[d].index);
        const ps_run_entry *entry = on_cpu ? &s->cpu[c++] : &s->dev[d++];
        const ps_run_op *op = &step->tier->ops[entry->op];
        ps_kargs a;
        if (!on_cpu)
            status = verify_on_device(e, step, op, entry, err);
        else if (ps_run_op_args(e, step, op, entry->tile, &a, e->thread_spans))
            status = verify_op(e, op, &a, err);
    }
    return status;
}
