/* Vector row operations, compiled once per instruction-set level by row_ops.c, row_ops_avx2.c and
 * row_ops_avx512.c. Results of a level do not depend on how items are shared out. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vec.h"

static inline float *row_f32(const ps_xarg *x, uint64_t t) {
    return (float *)(void *)((uint8_t *)x->data + t * x->row_bytes);
}

/* Quantise elements [col0, col0 + n) of row t of a Q8 destination from x[n]. */
static void quantize_cols(const ps_xarg *dst, uint64_t t, uint64_t col0, uint64_t n, const float *x) {
    uint8_t *row = (uint8_t *)dst->data + t * dst->row_bytes;
    int8_t *q = (int8_t *)row + col0;
    float *d = (float *)(void *)(row + ps_q8_d_offset(dst->cols)) + col0 / PS_Q8_GROUP;
    float *s = (float *)(void *)(row + ps_q8_s_offset(dst->cols)) + col0 / PS_Q8_GROUP;
    for (uint64_t g = 0; g < n / PS_Q8_GROUP; g++)
        vf_quantize_group(x + g * PS_Q8_GROUP, q + g * PS_Q8_GROUP, d + g, s + g);
}

/* 1/sqrt(mean(x^2) + eps). Sums that overflow or vanish in float are done again in double. */
static float rms_scale(const float *x, uint64_t n, float eps) {
    vf s0 = vf_set1(0), s1 = s0, s2 = s0, s3 = s0;
    uint64_t i = 0;
    for (; i + 4 * PS_VW <= n; i += 4 * PS_VW) {
        const vf a = vf_load(x + i), b = vf_load(x + i + PS_VW);
        const vf c = vf_load(x + i + 2 * PS_VW), d = vf_load(x + i + 3 * PS_VW);
        s0 = vf_fma(a, a, s0);
        s1 = vf_fma(b, b, s1);
        s2 = vf_fma(c, c, s2);
        s3 = vf_fma(d, d, s3);
    }
    float sum = vf_hsum(vf_add(vf_add(s0, s1), vf_add(s2, s3)));
    for (; i < n; i++)
        sum += x[i] * x[i];
    if (sum > 1e-25f && sum < 1e38f)
        return 1.0f / sqrtf(sum / (float)n + eps);
    double wide = 0;
    for (i = 0; i < n; i++)
        wide += (double)x[i] * (double)x[i];
    return (float)(1.0 / sqrt(wide / (double)n + (double)eps));
}

void PS_FN(ps_cpu_rmsnorm_run)(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,
                               uint32_t thread) {
    (void)phase;
    const uint64_t cols = a->src[0].cols, len = a->w[0].cols;
    const float *w = (const float *)(const void *)a->w[0].data;
    float *tmp = a->dst.fmt == PS_FMT_Q8 ? (float *)(void *)a->scratch + thread * cols : NULL;
    for (uint64_t t = first; t < first + n; t++) {
        const float *x = row_f32(&a->src[0], t);
        const float *res = a->src[1].data ? row_f32(&a->src[1], t) : NULL;
        float *y = a->dst.fmt == PS_FMT_Q8 ? tmp : row_f32(&a->dst, t);
        for (uint64_t g = 0; g + len <= cols; g += len) {
            const float scale = rms_scale(x + g, len, a->model->norm_eps);
            const vf vs = vf_set1(scale);
            uint64_t i = 0;
            if (res) {
                for (; i + PS_VW <= len; i += PS_VW)
                    vf_store(y + g + i, vf_add(vf_mul(vf_mul(vf_load(x + g + i), vs), vf_load(w + i)),
                                               vf_load(res + g + i)));
                for (; i < len; i++)
                    y[g + i] = x[g + i] * scale * w[i] + res[g + i];
            } else {
                for (; i + PS_VW <= len; i += PS_VW)
                    vf_store(y + g + i, vf_mul(vf_mul(vf_load(x + g + i), vs), vf_load(w + i)));
                for (; i < len; i++)
                    y[g + i] = x[g + i] * scale * w[i];
            }
        }
        if (tmp)
            quantize_cols(&a->dst, t, 0, cols, tmp);
    }
}

/* sin and cos of n angles, reduced in double to [-pi/4, pi/4] and a quadrant, so that an angle of 10^6
 * is as good as one of 1; then the Taylor series to x^9 and x^10 (remainder under 2e-9). */
static void sincos_row(const double *angle_per_pos, double pos, uint64_t n, float *sn, float *cs) {
    const double magic = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer in the low bits */
    for (uint64_t i = 0; i < n; i++) {
        const double theta = angle_per_pos[i] * pos;
        const double shifted = theta * 0.63661977236758134308 + magic;
        uint64_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        const double k = shifted - magic;
        /* pi/2 in two parts; the first has 20 zero bits at its end, so k times it is exact to k = 2^20. */
        const float r = (float)((theta - k * 1.57079632673412561417) - k * 6.07710050650619224932e-11);
        const float z = r * r;
        const float s = r + r * z *
                                (-1.6666666667e-1f +
                                 z * (8.3333333333e-3f + z * (-1.9841269841e-4f + z * 2.7557319224e-6f)));
        const float c =
            1.0f +
            z * (-0.5f + z * (4.1666666667e-2f +
                              z * (-1.3888888889e-3f + z * (2.4801587302e-5f + z * -2.7557319224e-7f))));
        const float a = bits & 1 ? c : s, b = bits & 1 ? s : c;
        sn[i] = bits & 2 ? -a : a;
        cs[i] = (bits + 1) & 2 ? -b : b;
    }
}

/* Rotate one head: x and y may be the same. c, s: NEOX [half] each; NORMAL [2*half], each value twice, the
 * sine with alternating sign. */
static void rotate_head(const float *x, float *y, uint64_t half, bool neox, const float *c, const float *s) {
    uint64_t i = 0;
    if (neox) {
        for (; i + PS_VW <= half; i += PS_VW) {
            const vf u = vf_load(x + i), v = vf_load(x + half + i), vc = vf_load(c + i), vs = vf_load(s + i);
            vf_store(y + i, vf_sub(vf_mul(u, vc), vf_mul(v, vs)));
            vf_store(y + half + i, vf_add(vf_mul(u, vs), vf_mul(v, vc)));
        }
        for (; i < half; i++) {
            const float u = x[i], v = x[half + i];
            y[i] = u * c[i] - v * s[i];
            y[half + i] = u * s[i] + v * c[i];
        }
        return;
    }
    for (; i + PS_VW <= 2 * half; i += PS_VW) {
        const vf u = vf_load(x + i);
        vf_store(y + i, vf_add(vf_mul(u, vf_load(c + i)), vf_mul(vf_swap_pairs(u), vf_load(s + i))));
    }
    for (; i < 2 * half; i += 2) {
        const float u = x[i], v = x[i + 1];
        y[i] = u * c[i] + v * s[i];
        y[i + 1] = v * c[i + 1] + u * s[i + 1];
    }
}

void PS_FN(ps_cpu_rope_run)(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread) {
    (void)phase;
    const ps_layer *l = a->layer;
    const uint64_t cols = a->src[0].cols, hd = l->head_dim_k, half = l->rope_dims / 2;
    const bool neox = a->model->rope_style == PS_ROPE_NEOX;
    /* Per thread: angle per position [half] doubles, then sine and cosine [2*half] floats each, and at
     * the front of those the [half] values they are spread from. */
    double *angle = (double *)(void *)(a->scratch + thread * (cols * 12 / 8 * 8 + 64));
    float *sn = (float *)(void *)(angle + half), *cs = sn + 2 * half;
    const float *factors = (const float *)(const void *)a->w[0].data;
    const double step = pow((double)l->rope_base, -2.0 / (double)l->rope_dims);
    double power = l->rope_scale;
    for (uint64_t i = 0; i < half; i++, power *= step)
        angle[i] = factors ? power / (double)factors[i] : power;
    for (uint64_t t = first; t < first + n; t++) {
        const float *x = row_f32(&a->src[0], t);
        float *y = row_f32(&a->dst, t);
        sincos_row(angle, a->positions[t], half, sn, cs);
        for (uint64_t i = half; !neox && i-- > 0;) {
            cs[2 * i + 1] = cs[i];
            cs[2 * i] = cs[i];
            sn[2 * i + 1] = sn[i];
            sn[2 * i] = -sn[i];
        }
        for (uint64_t h = 0; h + hd <= cols; h += hd) {
            rotate_head(x + h, y + h, half, neox, cs, sn);
            if (x != y)
                memcpy(y + h + 2 * half, x + h + 2 * half, (hd - 2 * half) * sizeof *y);
        }
    }
}

static void to_f16(const float *x, uint16_t *y, uint64_t n) {
    uint64_t i = 0;
    for (; i + PS_VW <= n; i += PS_VW)
        vf_store_f16(y + i, vf_load(x + i));
    for (; i < n; i++)
        y[i] = ps_f32_to_f16(x[i]);
}

void PS_FN(ps_cpu_kv_store_run)(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,
                                uint32_t thread) {
    (void)phase;
    (void)thread;
    const uint64_t nk = a->src[0].cols, nv = a->src[1].cols;
    uint64_t item = 0;
    for (uint32_t s = 0; s < a->n_spans; item += a->spans[s].n_rows, s++) {
        const ps_seq_span *sp = &a->spans[s];
        for (uint64_t i = first > item ? first - item : 0; i < sp->n_rows && item + i < first + n; i++) {
            if (i + sp->kv_rows < sp->n_rows)
                continue; /* a later row of this step takes its place in the ring */
            const uint64_t p = (sp->pos0 + i) % sp->kv_rows;
            to_f16(row_f32(&a->src[0], sp->row0 + i), sp->k + p * nk, nk);
            to_f16(row_f32(&a->src[1], sp->row0 + i), sp->v + p * nv, nv);
        }
    }
}

/* act(g) * u: SiLU g/(1 + e^-g); tanh-GELU g/(1 + e^-2z), z = sqrt(2/pi) (g + 0.044715 g^3), which is the
 * same function since (1 + tanh z)/2 = 1/(1 + e^-2z). */
static inline vf glu_vec(vf g, vf u, bool silu) {
    vf z;
    if (silu)
        z = vf_sub(vf_set1(0), g);
    else
        z = vf_mul(vf_mul(g, vf_set1(-1.5957691216057308f)),
                   vf_fma(vf_mul(g, g), vf_set1(0.044715f), vf_set1(1.0f)));
    return vf_mul(vf_div(g, vf_add(vf_set1(1.0f), vf_exp(z))), u);
}

static void glu_cols(const float *g, const float *u, float *y, uint64_t n, bool silu) {
    uint64_t i = 0;
    if (silu)
        for (; i + PS_VW <= n; i += PS_VW)
            vf_store(y + i, glu_vec(vf_load(g + i), vf_load(u + i), true));
    else
        for (; i + PS_VW <= n; i += PS_VW)
            vf_store(y + i, glu_vec(vf_load(g + i), vf_load(u + i), false));
    if (i < n) {
        float tg[PS_VW] = {0}, tu[PS_VW] = {0};
        memcpy(tg, g + i, (n - i) * sizeof *g);
        memcpy(tu, u + i, (n - i) * sizeof *u);
        vf_store(tg, glu_vec(vf_load(tg), vf_load(tu), silu));
        memcpy(y + i, tg, (n - i) * sizeof *y);
    }
}

void PS_FN(ps_cpu_act_cols)(const float *g, const float *u, float *y, uint64_t n, bool silu) {
    glu_cols(g, u, y, n, silu);
}

void PS_FN(ps_cpu_quantize_cols)(const ps_xarg *dst, uint64_t t, uint64_t col0, uint64_t n, const float *x) {
    quantize_cols(dst, t, col0, n, x);
}

void PS_FN(ps_cpu_glu_run)(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread) {
    (void)phase;
    (void)thread;
    const uint64_t cols = a->src[0].cols, blocks = (cols + PS_GLU_BLOCK - 1) / PS_GLU_BLOCK;
    const bool silu = a->model->glu == PS_GLU_SILU;
    float tmp[PS_GLU_BLOCK];
    for (uint64_t item = first; item < first + n; item++) {
        const uint64_t t = item / blocks, c = item % blocks * PS_GLU_BLOCK;
        const uint64_t len = cols - c < PS_GLU_BLOCK ? cols - c : PS_GLU_BLOCK;
        const float *g = row_f32(&a->src[0], t) + c, *u = row_f32(&a->src[1], t) + c;
        if (a->dst.fmt == PS_FMT_Q8) {
            glu_cols(g, u, tmp, len, silu);
            quantize_cols(&a->dst, t, c, len, tmp);
        } else {
            glu_cols(g, u, row_f32(&a->dst, t) + c, len, silu);
        }
    }
}

void PS_FN(ps_cpu_add_run)(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread) {
    (void)phase;
    (void)thread;
    const uint64_t cols = a->src[0].cols;
    for (uint64_t t = first; t < first + n; t++) {
        const float *x = row_f32(&a->src[0], t), *y = row_f32(&a->src[1], t);
        float *out = row_f32(&a->dst, t);
        uint64_t i = 0;
        for (; i + PS_VW <= cols; i += PS_VW)
            vf_store(out + i, vf_add(vf_load(x + i), vf_load(y + i)));
        for (; i < cols; i++)
            out[i] = x[i] + y[i];
    }
}

void PS_FN(ps_cpu_convert_run)(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,
                               uint32_t thread) {
    (void)phase;
    (void)thread;
    const uint64_t cols = a->src[0].cols;
    for (uint64_t t = first; t < first + n; t++) {
        if (a->dst.fmt == PS_FMT_Q8)
            quantize_cols(&a->dst, t, 0, cols, row_f32(&a->src[0], t));
        else
            to_f16(row_f32(&a->src[0], t), (uint16_t *)(void *)row_f32(&a->dst, t), cols);
    }
}

void PS_FN(ps_cpu_moe_route_run)(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,
                                 uint32_t thread) {
    (void)phase;
    const uint64_t cols = a->src[0].cols, used = a->dst.cols;
    float *key = (float *)(void *)a->scratch + thread * 2 * cols, *p = key + cols;
    for (uint64_t t = first; t < first + n; t++) {
        const float *x = row_f32(&a->src[0], t);
        uint8_t *row = (uint8_t *)a->dst.data + t * a->dst.row_bytes;
        float best = -INFINITY, all = 0, kept = 0;
        for (uint64_t e = 0; e < cols; e++)
            best = x[e] > best ? x[e] : best;
        for (uint64_t e = 0; e < cols; e += PS_VW) {
            float tmp[PS_VW];
            const uint64_t len = cols - e < PS_VW ? cols - e : PS_VW;
            for (uint64_t i = 0; i < PS_VW; i++)
                tmp[i] = i < len ? x[e + i] - best : -INFINITY;
            vf_store(tmp, vf_exp(vf_load(tmp)));
            for (uint64_t i = 0; i < len; i++) {
                p[e + i] = tmp[i];
                all += tmp[i];
                key[e + i] = isnan(x[e + i]) ? -INFINITY : x[e + i];
            }
        }
        for (uint64_t k = 0; k < used; k++) {
            /* Taken experts have NaN as their key, which no comparison prefers. */
            uint64_t id = cols;
            for (uint64_t e = 0; e < cols; e++)
                if (!isnan(key[e]) && (id == cols || key[e] > key[id]))
                    id = e;
            const int32_t expert = (int32_t)id;
            const float w = p[id] / all;
            key[id] = NAN;
            kept += w;
            memcpy(row + 8 * k, &expert, sizeof expert);
            memcpy(row + 8 * k + 4, &w, sizeof w);
        }
        for (uint64_t k = 0; a->model->moe_norm_topk && k < used; k++) {
            float w;
            memcpy(&w, row + 8 * k + 4, sizeof w);
            w /= kept;
            memcpy(row + 8 * k + 4, &w, sizeof w);
        }
    }
}
