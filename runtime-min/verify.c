/* Verify mode: every operation runs through its double-precision reference as well, on the very operands of
 * the run, and must agree within the tolerance that the kernel's row states. */
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

static ps_status verify_op(ps_engine *e, const ps_run_op *op, const ps_kargs *a, ps_error *err) {
    ps_cpu_level level = ps_cpu_level_detect();
    if (op->instr->op == PS_OP_SAMPLE) { /* a second draw would change the run */
        ps_kernel_run_serial(op->kernel, level, a);
        return PS_OK;
    }
    ps_kargs ref = *a;
    ps_xarg view = a->dst;
    bool is_kv = op->instr->op == PS_OP_KV_STORE;
    if (is_kv)
        view = (ps_xarg){
            .fmt = PS_FMT_F16,
            .cols = (uint64_t)a->layer->n_head_kv * (a->layer->head_dim_k + a->layer->head_dim_v),
            .row_bytes = (uint64_t)a->layer->n_head_kv * (a->layer->head_dim_k + a->layer->head_dim_v) * 2};
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
        double error = relative_error(&view, is_kv ? actual : a->dst.data, expected, a->n_tokens);
        double tolerance = (double)op->kernel->tolerance;
        double share = error == 0 ? 0 : tolerance > 0 ? error / tolerance : INFINITY;
        e->stats.n_verified++;
        if (share > e->stats.worst_verify)
            e->stats.worst_verify = share;
        if (!(share <= 1))
            status = ps_error_set(err, PS_E_MISMATCH, op->kernel->spec.name,
                                  "layer %u, instruction %u: off by %.3g of the reference, %.3g is allowed",
                                  op->layer, op->instr_index, error, tolerance);
    }
    free(expected);
    return status;
}

ps_status ps_engine_run_verified(ps_engine *e, ps_run_step *step, ps_error *err) {
    for (uint32_t s = step->segment0; s < step->segment_end; s++) {
        const ps_run_segment *seg = &step->tier->segments[s];
        uint32_t n_tiles = seg->over_tiles ? step->n_tiles : 1;
        for (uint32_t tile = 0; tile < n_tiles; tile++)
            for (uint32_t i = 0; i < seg->n_ops; i++) {
                const ps_run_op *op = &step->tier->ops[seg->op0 + i];
                ps_kargs a;
                if (!ps_run_op_args(e, step, op, tile, &a, e->thread_spans))
                    continue;
                ps_status status = verify_op(e, op, &a, err);
                if (status != PS_OK)
                    return status;
            }
    }
    return PS_OK;
}
