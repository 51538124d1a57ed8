/* References of attention, the router and the mixture of experts. */
#include "kernels/moe_rule.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One query head over positions [lo, hi) of a span: out[dv] = softmax(scale q.k) v. score: hi - lo doubles. */
static void attend(const ps_layer *l, const ps_seq_span *sp, uint64_t kv_head, const double *q, uint64_t lo,
                   uint64_t hi, double *score, double *out) {
    const uint64_t dk = l->head_dim_k, dv = l->head_dim_v, nk = l->n_head_kv * dk, nv = l->n_head_kv * dv;
    double best = -INFINITY, sum = 0;
    for (uint64_t p = lo; p < hi; p++) {
        const uint16_t *k = sp->k + p % sp->kv_rows * nk + kv_head * dk;
        double dot = 0;
        for (uint64_t i = 0; i < dk; i++)
            dot += q[i] * (double)ps_f16_to_f32(k[i]);
        score[p - lo] = dot * (double)l->attn_scale;
        best = score[p - lo] > best ? score[p - lo] : best;
    }
    memset(out, 0, dv * sizeof *out);
    for (uint64_t p = lo; p < hi; p++) {
        const uint16_t *v = sp->v + p % sp->kv_rows * nv + kv_head * dv;
        const double e = exp(score[p - lo] - best);
        sum += e;
        for (uint64_t i = 0; i < dv; i++)
            out[i] += e * (double)ps_f16_to_f32(v[i]);
    }
    for (uint64_t i = 0; i < dv; i++)
        out[i] /= sum;
}

ps_status ps_ref_attention(const ps_kargs *a, ps_error *err) {
    const ps_layer *l = a->layer;
    const uint64_t dk = l->head_dim_k, dv = l->head_dim_v, group = l->n_head / l->n_head_kv;
    ps_status status = PS_OK;
    uint64_t longest = 1;
    for (uint32_t s = 0; s < a->n_spans; s++) {
        const uint64_t end = (uint64_t)a->spans[s].pos0 + a->spans[s].n_rows;
        longest = end > longest ? end : longest;
    }
    double *q = calloc(dk, sizeof *q), *score = calloc(longest, sizeof *score);
    double *out = calloc(a->n_rows * group * dv + 1, sizeof *out);
    if (!q || !score || !out) {
        status = ps_error_set(err, PS_E_NOMEM, "attention", "reference: out of memory");
        goto done;
    }
    for (uint32_t s = 0; s < a->n_spans; s++) {
        const ps_seq_span *sp = &a->spans[s];
        for (uint64_t i = 0; i < sp->n_rows; i++) {
            const uint64_t hi = sp->pos0 + i + 1, lo = l->window && hi > l->window ? hi - l->window : 0;
            for (uint64_t h = 0; h < a->n_rows * group; h++) {
                const uint64_t head = a->row0 * group + h;
                ps_ref_load(&a->src[0], sp->row0 + i, head * dk, dk, q);
                attend(l, sp, head / group, q, lo, hi, score, out + h * dv);
            }
            ps_ref_store(&a->dst, sp->row0 + i, a->row0 * group * dv, a->n_rows * group * dv, out);
        }
    }
done:
    free(q);
    free(score);
    free(out);
    return status;
}

ps_status ps_ref_moe_route(const ps_kargs *a, ps_error *err) {
    const uint64_t n = a->src[0].cols, used = a->dst.cols;
    double *p = calloc(2 * n + 1, sizeof *p), *key = p ? p + n : NULL;
    if (!p)
        return ps_error_set(err, PS_E_NOMEM, "moe_route", "reference: out of memory");
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        ps_ref_load(&a->src[0], t, 0, n, p);
        double best = -INFINITY, all = 0, kept = 0;
        for (uint64_t e = 0; e < n; e++)
            best = p[e] > best ? p[e] : best;
        for (uint64_t e = 0; e < n; e++)
            key[e] = p[e];
        for (uint64_t e = 0; e < n; e++)
            all += p[e] = exp(p[e] - best);
        uint8_t *row = (uint8_t *)a->dst.data + t * a->dst.row_bytes;
        for (int pass = 0; pass < 2; pass++) {
            /* First pass: which, in falling order, and their sum. Second: their weights. */
            for (uint64_t k = 0; k < used; k++) {
                if (pass == 0) {
                    int32_t id = -1;
                    for (uint64_t e = 0; e < n; e++)
                        if (!isnan(key[e]) && (id < 0 || key[e] > key[id]))
                            id = (int32_t)e;
                    const float w = (float)(p[id] / all);
                    kept += p[id] / all;
                    key[id] = NAN; /* taken */
                    memcpy(row + 8 * k, &id, sizeof id);
                    memcpy(row + 8 * k + 4, &w, sizeof w);
                } else if (a->model->moe_norm_topk) {
                    float w;
                    memcpy(&w, row + 8 * k + 4, sizeof w);
                    w = (float)((double)w / kept);
                    memcpy(row + 8 * k + 4, &w, sizeof w);
                }
            }
        }
    }
    free(p);
    return PS_OK;
}

/* y[rows] = matrix i of an expert times x. */
static void expert_product(const ps_kargs *a, int i, uint64_t expert, const double *x, float *tmp,
                           double *row, double *y) {
    ps_warg w = a->w[i];
    w.data = ps_moe_matrix(a, i, expert);
    for (uint64_t r = 0; r < w.rows; r++) {
        ps_ref_weight_row(&w, 0, r, tmp, row);
        y[r] = 0;
        for (uint64_t c = 0; c < w.cols; c++)
            y[r] += row[c] * x[c];
    }
}

ps_status ps_ref_moe_dispatch(const ps_kargs *a, ps_error *err) {
    const uint64_t n = a->w[0].cols, ff = a->w[0].rows, out_n = a->w[2].rows, used = a->src[1].cols;
    ps_status status = PS_OK;
    const uint64_t longest = n > ff ? n : ff;
    uint32_t taken[PS_MOE_WORDS];
    ps_moe_select(a, taken);
    float *tmp = calloc(longest + 1, sizeof *tmp);
    double *row = calloc(longest + 1, sizeof *row), *x = calloc(n + 1, sizeof *x);
    double *gate = calloc(ff + 1, sizeof *gate), *up = calloc(ff + 1, sizeof *up);
    double *y = calloc(out_n + 1, sizeof *y), *sum = calloc(out_n + 1, sizeof *sum);
    if (!tmp || !row || !x || !gate || !up || !y || !sum) {
        status = ps_error_set(err, PS_E_NOMEM, "moe_dispatch", "reference: out of memory");
        goto done;
    }
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        ps_ref_load(&a->src[0], t, 0, n, x);
        if (a->src[2].data)
            ps_ref_load(&a->src[2], t, 0, out_n, sum);
        else
            memset(sum, 0, out_n * sizeof *sum);
        for (uint64_t k = 0; k < used; k++) {
            const uint8_t *sel = (const uint8_t *)a->src[1].data + t * a->src[1].row_bytes + 8 * k;
            int32_t e;
            float weight;
            memcpy(&e, sel, sizeof e);
            memcpy(&weight, sel + 4, sizeof weight);
            if (!ps_moe_takes(taken, e))
                continue;
            expert_product(a, 0, (uint64_t)e, x, tmp, row, gate);
            expert_product(a, 1, (uint64_t)e, x, tmp, row, up);
            for (uint64_t i = 0; i < ff; i++)
                gate[i] = ps_ref_act(a->model->glu, gate[i]) * up[i];
            expert_product(a, 2, (uint64_t)e, gate, tmp, row, y);
            for (uint64_t i = 0; i < out_n; i++)
                sum[i] += (double)weight * y[i];
        }
        ps_ref_store(&a->dst, t, 0, out_n, sum);
    }
done:
    free(tmp);
    free(row);
    free(x);
    free(gate);
    free(up);
    free(y);
    free(sum);
    return status;
}
