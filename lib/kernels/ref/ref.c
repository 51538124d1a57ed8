/* Double-precision references of the operations, written for reading: the yardstick of every kernel's
 * tolerance. Attention and the mixture of experts are in ref_blocks.c. */
#include "kernels/ref/ref.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t *row_of(const ps_xarg *x, uint64_t t) {
    return (const uint8_t *)x->data + t * x->row_bytes;
}

void ps_ref_load(const ps_xarg *x, uint64_t t, uint64_t col0, uint64_t n, double *out) {
    const uint8_t *row = row_of(x, t);
    const float *d = (const float *)(const void *)(row + ps_q8_d_offset(x->cols));
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t c = col0 + i;
        float f;
        int32_t v;
        uint16_t h;
        switch (x->fmt) {
        case PS_FMT_F16:
            memcpy(&h, row + 2 * c, sizeof h);
            out[i] = (double)ps_f16_to_f32(h);
            break;
        case PS_FMT_F16S:
            memcpy(&h, row + 2 * c, sizeof h);
            memcpy(&f, row + ps_f16s_scale_offset(x->cols), sizeof f);
            out[i] = (double)ps_f16_to_f32(h) * (double)f;
            break;
        case PS_FMT_I32:
            memcpy(&v, row + 4 * c, sizeof v);
            out[i] = v;
            break;
        case PS_FMT_Q8:
            out[i] = (double)d[c / PS_Q8_GROUP] * (double)(int8_t)row[c];
            break;
        case PS_FMT_SEL:
            memcpy(&f, row + 8 * c + 4, sizeof f);
            out[i] = (double)f;
            break;
        default:
            memcpy(&f, row + 4 * c, sizeof f);
            out[i] = (double)f;
            break;
        }
    }
}

static void store_q8(const ps_xarg *x, uint8_t *row, uint64_t col0, uint64_t n, const double *in) {
    float *dp = (float *)(void *)(row + ps_q8_d_offset(x->cols));
    float *sp = (float *)(void *)(row + ps_q8_s_offset(x->cols));
    for (uint64_t g = 0; g < n / PS_Q8_GROUP; g++) {
        const double *v = in + g * PS_Q8_GROUP;
        double amax = 0;
        for (int i = 0; i < PS_Q8_GROUP; i++)
            amax = isnan(v[i]) || fabs(v[i]) > amax ? fabs(v[i]) : amax;
        const double scale = amax > 0 ? 127.0 / amax : 0;
        int sum = 0;
        for (int i = 0; i < PS_Q8_GROUP; i++) {
            const double r = nearbyint(v[i] * scale);
            const int q = fabs(r) <= 127 ? (int)r : 0; /* NaN and infinity have no code: d shows them */
            row[col0 + g * PS_Q8_GROUP + (uint64_t)i] = (uint8_t)(int8_t)q;
            sum += q;
        }
        dp[col0 / PS_Q8_GROUP + g] = (float)(amax / 127.0);
        sp[col0 / PS_Q8_GROUP + g] = (float)(amax / 127.0 * sum);
    }
}

/* A whole row: its scale depends on all of it. What is no finite float stays infinite or NaN, and the scale is that of
 * the other elements. */
static void store_f16s(const ps_xarg *x, uint8_t *row, const double *in) {
    double amax = 0;
    float scale = 1;
    for (uint64_t i = 0; i < x->cols; i++)
        if (isfinite((float)in[i]) && fabs(in[i]) > amax)
            amax = fabs(in[i]);
    while (amax / (double)scale > 32768)
        scale *= 2;
    for (uint64_t i = 0; i < x->cols; i++) {
        const uint16_t h = ps_f32_to_f16((float)(in[i] / (double)scale));
        memcpy(row + 2 * i, &h, sizeof h);
    }
    memcpy(row + ps_f16s_scale_offset(x->cols), &scale, sizeof scale);
}

void ps_ref_store(const ps_xarg *x, uint64_t t, uint64_t col0, uint64_t n, const double *in) {
    uint8_t *row = (uint8_t *)x->data + t * x->row_bytes;
    if (x->fmt == PS_FMT_Q8) {
        store_q8(x, row, col0, n, in);
        return;
    }
    if (x->fmt == PS_FMT_F16S) {
        assert(col0 == 0 && n == x->cols);
        store_f16s(x, row, in);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t c = col0 + i;
        const float f = (float)in[i];
        if (x->fmt == PS_FMT_F16) {
            const uint16_t h = ps_f32_to_f16(f);
            memcpy(row + 2 * c, &h, sizeof h);
        } else if (x->fmt == PS_FMT_I32) {
            const int32_t v = (int32_t)in[i];
            memcpy(row + 4 * c, &v, sizeof v);
        } else {
            memcpy(row + 4 * c, &f, sizeof f);
        }
    }
}

void ps_ref_weight_row(const ps_warg *w, uint64_t expert, uint64_t row, float *tmp, double *out) {
    ps_dequantize_row(w->type, w->data + (expert * w->rows + row) * w->row_bytes, tmp, w->cols);
    for (uint64_t i = 0; i < w->cols; i++)
        out[i] = (double)tmp[i];
}

double ps_ref_act(ps_glu glu, double g) {
    if (glu == PS_GLU_SILU)
        return g / (1.0 + exp(-g));
    /* Hendrycks and Gimpel's tanh form of GELU. */
    return 0.5 * g * (1.0 + tanh(sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g)));
}

/* Buffers of one reference call; everything is freed together. */
typedef struct ref_rows {
    float *f;
    double *a, *b, *c;
} ref_rows;

static bool rows_new(ref_rows *r, uint64_t n) {
    r->f = calloc(n + 1, sizeof *r->f);
    r->a = calloc(n + 1, sizeof *r->a);
    r->b = calloc(n + 1, sizeof *r->b);
    r->c = calloc(n + 1, sizeof *r->c);
    return r->f && r->a && r->b && r->c;
}

static void rows_free(ref_rows *r) {
    free(r->f);
    free(r->a);
    free(r->b);
    free(r->c);
}

static void ref_embed(const ps_kargs *a, ref_rows *r) {
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        ps_ref_weight_row(&a->w[0], 0, (uint64_t)a->tokens[t], r->f, r->a);
        for (uint64_t i = 0; i < a->w[0].cols; i++)
            r->a[i] *= (double)a->model->embed_scale;
        ps_ref_store(&a->dst, t, 0, a->w[0].cols, r->a);
    }
}

static void ref_rmsnorm(const ps_kargs *a, ref_rows *r) {
    const uint64_t cols = a->src[0].cols, len = a->w[0].cols;
    ps_ref_weight_row(&a->w[0], 0, 0, r->f, r->b);
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        ps_ref_load(&a->src[0], t, 0, cols, r->a);
        for (uint64_t g = 0; g + len <= cols; g += len) {
            double sum = 0;
            for (uint64_t i = 0; i < len; i++)
                sum += r->a[g + i] * r->a[g + i];
            const double scale = 1.0 / sqrt(sum / (double)len + (double)a->model->norm_eps);
            for (uint64_t i = 0; i < len; i++)
                r->a[g + i] *= scale * r->b[i];
        }
        if (a->src[1].data) {
            ps_ref_load(&a->src[1], t, 0, cols, r->c);
            for (uint64_t i = 0; i < cols; i++)
                r->a[i] += r->c[i];
        }
        ps_ref_store(&a->dst, t, 0, cols, r->a);
    }
}

static ps_status ref_matmul(const ps_kargs *a, ps_error *err) {
    const ps_warg *w = &a->w[0];
    const uint64_t n = w->cols;
    ps_status status = PS_OK;
    float *f = calloc(n + 1, sizeof *f);
    double *row = calloc(n + 1, sizeof *row);
    double *x = calloc(n * a->n_tokens + 1, sizeof *x);
    float *bias = calloc(w->rows + 1, sizeof *bias);
    double *out = calloc(a->n_rows * a->n_tokens + 1, sizeof *out);
    double *res = calloc(a->n_rows + 1, sizeof *res);
    if (!f || !row || !x || !bias || !out || !res) {
        status = ps_error_set(err, PS_E_NOMEM, "matmul", "reference: out of memory");
        goto done;
    }
    if (a->w[1].data)
        ps_dequantize_row(a->w[1].type, a->w[1].data, bias, w->rows);
    for (uint32_t t = 0; t < a->n_tokens; t++)
        ps_ref_load(&a->src[0], t, 0, n, x + t * n);
    for (uint64_t i = 0; i < a->n_rows; i++) {
        ps_ref_weight_row(w, 0, a->row0 + i, f, row);
        for (uint32_t t = 0; t < a->n_tokens; t++) {
            double sum = (double)bias[a->row0 + i];
            for (uint64_t c = 0; c < n; c++)
                sum += row[c] * x[t * n + c];
            out[t * a->n_rows + i] = sum;
        }
    }
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        double *o = out + t * a->n_rows;
        if (a->src[1].data) {
            ps_ref_load(&a->src[1], t, a->row0, a->n_rows, res);
            for (uint64_t i = 0; i < a->n_rows; i++)
                o[i] += res[i];
        }
        ps_ref_store(&a->dst, t, a->row0, a->n_rows, o);
    }
done:
    free(f);
    free(row);
    free(x);
    free(bias);
    free(out);
    free(res);
    return status;
}

static void ref_rope(const ps_kargs *a, ref_rows *r) {
    const ps_layer *l = a->layer;
    const uint64_t cols = a->src[0].cols, hd = l->head_dim_k, half = l->rope_dims / 2;
    const bool neox = a->model->rope_style == PS_ROPE_NEOX;
    if (a->w[0].data)
        ps_ref_weight_row(&a->w[0], 0, 0, r->f, r->b);
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        ps_ref_load(&a->src[0], t, 0, cols, r->a);
        for (uint64_t i = 0; i < half; i++) {
            double theta = a->positions[t] * (double)l->rope_scale *
                           pow((double)l->rope_base, -2.0 * (double)i / (double)l->rope_dims);
            if (a->w[0].data)
                theta /= r->b[i];
            const double cs = cos(theta), sn = sin(theta);
            for (uint64_t h = 0; h + hd <= cols; h += hd) {
                double *p = r->a + h + (neox ? i : 2 * i), *q = neox ? p + half : p + 1;
                const double x = *p, y = *q;
                *p = x * cs - y * sn;
                *q = x * sn + y * cs;
            }
        }
        ps_ref_store(&a->dst, t, 0, cols, r->a);
    }
}

static void ref_kv_store(const ps_kargs *a, ref_rows *r) {
    for (uint32_t s = 0; s < a->n_spans; s++) {
        const ps_seq_span *sp = &a->spans[s];
        for (uint32_t i = 0; i < sp->n_rows; i++) {
            const uint64_t p = (sp->pos0 + i) % sp->kv_rows;
            const uint64_t nk = a->src[0].cols, nv = a->src[1].cols;
            ps_ref_load(&a->src[0], sp->row0 + i, 0, nk, r->a);
            for (uint64_t c = 0; c < nk; c++)
                sp->k[p * nk + c] = ps_f32_to_f16((float)r->a[c]);
            ps_ref_load(&a->src[1], sp->row0 + i, 0, nv, r->a);
            for (uint64_t c = 0; c < nv; c++)
                sp->v[p * nv + c] = ps_f32_to_f16((float)r->a[c]);
        }
    }
}

static void ref_glu(const ps_kargs *a, ref_rows *r) {
    const uint64_t n = a->src[0].cols;
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        ps_ref_load(&a->src[0], t, 0, n, r->a);
        ps_ref_load(&a->src[1], t, 0, n, r->b);
        for (uint64_t i = 0; i < n; i++)
            r->a[i] = ps_ref_act(a->model->glu, r->a[i]) * r->b[i];
        ps_ref_store(&a->dst, t, 0, n, r->a);
    }
}

/* ADD, CONVERT and GATHER: rows of src0, src1 added where there is one. */
static void ref_rows_op(const ps_kargs *a, ref_rows *r, bool gather) {
    const uint64_t n = a->src[0].cols;
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        ps_ref_load(&a->src[0], gather ? a->outputs[t] : t, 0, n, r->a);
        if (a->src[1].data) {
            ps_ref_load(&a->src[1], t, 0, n, r->b);
            for (uint64_t i = 0; i < n; i++)
                r->a[i] += r->b[i];
        }
        ps_ref_store(&a->dst, t, 0, n, r->a);
    }
}

static void ref_sample(const ps_kargs *a, ref_rows *r) {
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        ps_ref_load(&a->src[0], t, 0, a->src[0].cols, r->a);
        for (uint64_t i = 0; i < a->src[0].cols; i++)
            r->f[i] = (float)r->a[i];
        const double id = a->samplers[t] == NULL ? -1 : ps_sampler_pick(a->samplers[t], r->f);
        ps_ref_store(&a->dst, t, 0, 1, &id);
    }
}

ps_status ps_ref_run(ps_op op, const ps_kargs *a, ps_error *err) {
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        if (a->w[i].data && !ps_dtype_computable(a->w[i].type))
            return ps_error_set(err, PS_E_UNSUPPORTED, ps_op_get(op)->name,
                                "weight type %u has no arithmetic", (unsigned)a->w[i].type);
    uint64_t longest = a->dst.cols;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        longest = a->src[i].cols > longest ? a->src[i].cols : longest;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        longest = a->w[i].cols > longest ? a->w[i].cols : longest;
    ref_rows r = {0};
    ps_status status = PS_OK;
    if (!rows_new(&r, longest)) {
        status = ps_error_set(err, PS_E_NOMEM, ps_op_get(op)->name, "reference: out of memory");
        goto done;
    }
    switch (op) {
    case PS_OP_EMBED:
        ref_embed(a, &r);
        break;
    case PS_OP_RMSNORM:
        ref_rmsnorm(a, &r);
        break;
    case PS_OP_MATMUL:
        status = ref_matmul(a, err);
        break;
    case PS_OP_ROPE:
        ref_rope(a, &r);
        break;
    case PS_OP_KV_STORE:
        ref_kv_store(a, &r);
        break;
    case PS_OP_ATTENTION:
        status = ps_ref_attention(a, err);
        break;
    case PS_OP_GLU:
        ref_glu(a, &r);
        break;
    case PS_OP_ADD:
    case PS_OP_CONVERT:
    case PS_OP_GATHER:
        ref_rows_op(a, &r, op == PS_OP_GATHER);
        break;
    case PS_OP_MOE_ROUTE:
        status = ps_ref_moe_route(a, err);
        break;
    case PS_OP_MOE_DISPATCH:
        status = ps_ref_moe_dispatch(a, err);
        break;
    case PS_OP_SAMPLE:
        ref_sample(a, &r);
        break;
    default:
        status = ps_error_set(err, PS_E_UNSUPPORTED, ps_op_get(op)->name, "has no reference");
        break;
    }
done:
    rows_free(&r);
    return status;
}
