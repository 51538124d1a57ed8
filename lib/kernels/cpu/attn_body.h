/* Attention kernels, compiled once per instruction-set level: online softmax over blocks of positions
 * (Milakov and Gimelshein; Dao et al.).
 *
 * Many rows: rows lie in lanes, everything is transposed: S[key][row] = K[key] . Q^T, the softmax runs down the
 * columns with no sums across lanes, O[dv][row] += V^T[dv][key] . P[key][row]. One register tile serves both
 * products: PS_TM rows of the left operand (broadcast) times a panel of lanes.
 * Few rows (decode): one dot product per key and row, then V rows scaled and added, up to four rows at once. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/vec.h"

/* Panels are up to three vectors wide: 48, 24 or 12 lanes; items with few rows take narrower ones. */
enum { PS_PV_MAX = 3 };
#if PS_VW == 16
enum { PS_TM = 8 }; /* 24 of 32 registers hold sums */
#else
enum { PS_TM = 4 }; /* 12 of 16 */
#endif

#define PS_INLINE static inline __attribute__((always_inline))

static inline uint64_t pad_to(uint64_t n, uint64_t m) {
    return (n + m - 1) / m * m;
}

/* C[m][lane] (=, or alpha[lane] * C +) sum over k of A[m*sm + k*sk] * B[k][lane]: m < PS_TM, lane < pv*PS_VW. */
PS_INLINE void tile(const float *A, uint64_t sm, uint64_t sk, const float *B, uint64_t n_k, float *C,
                    const float *alpha, const int pv) {
    const uint64_t pw = (uint64_t)pv * PS_VW;
    vf acc[PS_TM][PS_PV_MAX];
#pragma GCC unroll 8
    for (uint64_t m = 0; m < PS_TM; m++)
#pragma GCC unroll 3
        for (int v = 0; v < pv; v++)
            acc[m][v] =
                alpha ? vf_mul(vf_load(C + m * pw + v * PS_VW), vf_load(alpha + v * PS_VW)) : vf_set1(0);
    for (uint64_t k = 0; k < n_k; k++) {
        vf b[PS_PV_MAX];
#pragma GCC unroll 3
        for (int v = 0; v < pv; v++)
            b[v] = vf_load(B + k * pw + v * PS_VW);
#pragma GCC unroll 8
        for (uint64_t m = 0; m < PS_TM; m++) {
            const vf x = vf_set1(A[m * sm + k * sk]);
#pragma GCC unroll 3
            for (int v = 0; v < pv; v++)
                acc[m][v] = vf_fma(x, b[v], acc[m][v]);
        }
    }
#pragma GCC unroll 8
    for (uint64_t m = 0; m < PS_TM; m++)
#pragma GCC unroll 3
        for (int v = 0; v < pv; v++)
            vf_store(C + m * pw + v * PS_VW, acc[m][v]);
}

/* Positions [p, p + n) of a plane of the cache, one head, as floats [key][ld]; ld - dim zeros end each row, and
 * zero rows follow up to `keys`. */
static void load_keys(const uint16_t *plane, uint64_t stride, uint64_t dim, const ps_seq_span *sp, uint64_t p,
                      uint64_t n, uint64_t keys, float *out, uint64_t ld) {
    uint64_t row = p % sp->kv_rows;
    for (uint64_t j = 0; j < n; j++, out += ld) {
        const uint16_t *h = plane + row * stride;
        uint64_t i = 0;
        for (; i + PS_VW <= dim; i += PS_VW)
            vf_store(out + i, vf_load_f16(h + i));
        for (; i < dim; i++)
            out[i] = ps_f16_to_f32(h[i]);
        for (; i < ld; i++)
            out[i] = 0;
        row = row + 1 == sp->kv_rows ? 0 : row + 1;
    }
    if (keys > n)
        memset(out, 0, (keys - n) * ld * sizeof *out);
}

/* Where the rows of an item end up: finished rows, or one part's sums. */
typedef struct attn_sink {
    const ps_kargs *a;
    const ps_attn_item *it;
    ps_attn_scratch s;
    bool split;
} attn_sink;

/* Query head and step row of row r of the item. */
static inline uint64_t sink_head(const attn_sink *k, uint64_t r, uint64_t *out_token) {
    const uint64_t group = k->a->layer->n_head / k->a->layer->n_head_kv;
    *out_token = k->it->span->row0 + (k->it->r0 + r) / group;
    return k->it->kv_head * group + (k->it->r0 + r) % group;
}

static void write_head(const ps_kargs *a, float *staged, uint64_t token, uint64_t head, const float *x) {
    const uint64_t dv = a->layer->head_dim_v, c0 = head * dv;
    uint8_t *row = (uint8_t *)a->dst.data + token * a->dst.row_bytes;
    if (a->dst.fmt != PS_FMT_Q8) {
        memcpy((float *)(void *)row + c0, x, dv * sizeof *x);
    } else if (ps_attn_staged(a)) {
        memcpy(staged + token * a->dst.cols + c0, x, dv * sizeof *x);
    } else {
        float *d = (float *)(void *)(row + ps_q8_d_offset(a->dst.cols)) + c0 / PS_Q8_GROUP;
        float *s = (float *)(void *)(row + ps_q8_s_offset(a->dst.cols)) + c0 / PS_Q8_GROUP;
        for (uint64_t g = 0; g < dv / PS_Q8_GROUP; g++)
            vf_quantize_group(x + g * PS_Q8_GROUP, (int8_t *)row + c0 + g * PS_Q8_GROUP, d + g, s + g);
    }
}

/* Row r of the item: o[dv], largest score m, sum of exponentials l. For finished rows o is divided by l. */
static void sink_put(const attn_sink *k, uint64_t r, const float *o, float m, float l) {
    uint64_t token;
    const uint64_t head = sink_head(k, r, &token), dv = k->a->layer->head_dim_v;
    if (!k->split) {
        write_head(k->a, k->s.staged, token, head, o);
        return;
    }
    const uint64_t parts = dv < 2 ? PS_ATTN_PARTS_MAX / 2 : PS_ATTN_PARTS_MAX;
    const uint64_t at = (token * k->a->layer->n_head + head) * parts + k->it->part;
    memcpy(k->s.out + at * dv, o, dv * sizeof *o);
    k->s.stat[2 * at] = m;
    k->s.stat[2 * at + 1] = l;
}

static const float *query(const attn_sink *k, uint64_t r) {
    uint64_t token;
    const uint64_t head = sink_head(k, r, &token);
    const uint8_t *row = (const uint8_t *)k->a->src[0].data + token * k->a->src[0].row_bytes;
    return (const float *)(const void *)row + head * k->a->layer->head_dim_k;
}

/* Softmax of one panel's block, down the columns: s[keys][pv*PS_VW] scores on entry, exponentials on exit; m, l:
 * running largest and sum; alpha: what the sums so far are to be multiplied by. pos: position of each lane's
 * row less that of the block's first key; masked: some lane does not see some key. */
PS_INLINE void softmax_panel(float *s, uint64_t keys, float *m, float *l, float *alpha, const float *pos,
                             float window, bool masked, const int pv) {
    const uint64_t pw = (uint64_t)pv * PS_VW;
    for (int v = 0; v < pv; v++) {
        float *c = s + v * PS_VW;
        const vf old = vf_load(m + v * PS_VW);
        vf top = old;
        if (masked) {
            const vf hi = vf_load(pos + v * PS_VW), lo = vf_sub(hi, vf_set1(window));
            for (uint64_t j = 0; j < keys; j++) {
                const vf x = vf_keep_between(vf_load(c + j * pw), vf_set1((float)j), lo, hi);
                vf_store(c + j * pw, x);
                top = vf_max(top, x);
            }
        } else {
            for (uint64_t j = 0; j < keys; j++)
                top = vf_max(top, vf_load(c + j * pw));
        }
        /* A lane that has seen nothing yet subtracts 0, not -inf: all its exponentials are 0. */
        const vf base = vf_if_above_neg_inf(top, top, vf_set1(0));
        const vf shrink = vf_exp(vf_sub(old, base));
        vf sum0 = vf_set1(0), sum1 = sum0;
        uint64_t j = 0;
        for (; j + 2 <= keys; j += 2) {
            const vf x = vf_exp(vf_sub(vf_load(c + j * pw), base));
            const vf y = vf_exp(vf_sub(vf_load(c + (j + 1) * pw), base));
            vf_store(c + j * pw, x);
            vf_store(c + (j + 1) * pw, y);
            sum0 = vf_add(sum0, x);
            sum1 = vf_add(sum1, y);
        }
        if (j < keys) {
            const vf x = vf_exp(vf_sub(vf_load(c + j * pw), base));
            vf_store(c + j * pw, x);
            sum0 = vf_add(sum0, x);
        }
        vf_store(alpha + v * PS_VW, shrink);
        vf_store(m + v * PS_VW, top);
        vf_store(l + v * PS_VW, vf_fma(vf_load(l + v * PS_VW), shrink, vf_add(sum0, sum1)));
    }
}

PS_INLINE void many_rows(const attn_sink *k, float *mem, const int pv) {
    const ps_layer *ly = k->a->layer;
    const ps_attn_item *it = k->it;
    const ps_seq_span *sp = it->span;
    const uint64_t pw = (uint64_t)pv * PS_VW, panels = (it->n + pw - 1) / pw;
    const uint64_t dk = ly->head_dim_k, dv = ly->head_dim_v, dvp = pad_to(dv, PS_TM);
    const uint64_t group = ly->n_head / ly->n_head_kv;
    float *q = mem, *o = q + panels * pw * dk, *s = o + panels * pw * dvp;
    float *kf = s + pw * PS_ATTN_KEYS, *vals = kf + PS_ATTN_KEYS * dk;
    float *m = vals + PS_ATTN_KEYS * dvp, *l = m + panels * pw, *pos = l + panels * pw, *alpha = pos + pw;
    /* Lanes beyond the last row repeat it: they cost nothing extra and hold no special values. */
    for (uint64_t r = 0; r < panels * pw; r++) {
        const float *row = query(k, r < it->n ? r : it->n - 1);
        float *col = q + r / pw * pw * dk + r % pw;
        for (uint64_t i = 0; i < dk; i++)
            col[i * pw] = row[i] * ly->attn_scale;
        m[r] = -INFINITY;
        l[r] = 0;
    }
    memset(o, 0, panels * pw * dvp * sizeof *o);
    const uint16_t *kp = sp->k + it->kv_head * dk, *vp = sp->v + it->kv_head * dv;
    for (uint64_t p = it->lo; p < it->hi; p += PS_ATTN_KEYS) {
        const uint64_t n = it->hi - p < PS_ATTN_KEYS ? it->hi - p : PS_ATTN_KEYS;
        load_keys(kp, ly->n_head_kv * dk, dk, sp, p, n, pad_to(n, PS_TM), kf, dk);
        load_keys(vp, ly->n_head_kv * dv, dv, sp, p, n, n, vals, dvp);
        for (uint64_t b = 0; b < panels; b++) {
            const uint64_t r_last = (b + 1) * pw < it->n ? (b + 1) * pw - 1 : it->n - 1;
            const uint64_t pos_lo = sp->pos0 + (it->r0 + b * pw) / group;
            const uint64_t pos_hi = sp->pos0 + (it->r0 + r_last) / group;
            if (p > pos_hi || p + n <= ps_attn_first(ly, pos_lo))
                continue;
            const bool masked = p + n - 1 > pos_lo || ps_attn_first(ly, pos_hi) > p;
            const uint64_t seen = pos_hi + 1 - p < n ? pos_hi + 1 - p : n;
            for (uint64_t i = 0; masked && i < pw; i++) {
                const uint64_t r = b * pw + i < it->n ? b * pw + i : it->n - 1;
                pos[i] = (float)((int64_t)(sp->pos0 + (it->r0 + r) / group) - (int64_t)p);
            }
            for (uint64_t j = 0; j < seen; j += PS_TM)
                tile(kf + j * dk, dk, 1, q + b * pw * dk, dk, s + j * pw, NULL, pv);
            softmax_panel(s, seen, m + b * pw, l + b * pw, alpha, pos,
                          ly->window ? (float)ly->window : INFINITY, masked, pv);
            for (uint64_t i = 0; i < dvp; i += PS_TM)
                tile(vals + i, 1, dvp, s, seen, o + (b * dvp + i) * pw, alpha, pv);
        }
    }
    /* Back to rows, a group at a time in the place of the last block: read at once, they would stall on the single
     * elements just stored. */
    enum { GROUP = 32 };
    float *out = vals;
    for (uint64_t r0 = 0; r0 < it->n; r0 += GROUP) {
        const uint64_t n = it->n - r0 < GROUP ? it->n - r0 : GROUP;
        for (uint64_t r = r0; r < r0 + n; r++) {
            const float *col = o + r / pw * pw * dvp + r % pw, scale = k->split ? 1.0f : 1.0f / l[r];
            for (uint64_t i = 0; i < dv; i++)
                out[(r - r0) * dv + i] = col[i * pw] * scale;
        }
        for (uint64_t r = r0; r < r0 + n; r++)
            sink_put(k, r, out + (r - r0) * dv, m[r], l[r]);
    }
}

/* PS_VW halfs, or the `left` that remain and zeros. */
PS_INLINE vf load_halfs(const uint16_t *p, uint64_t left) {
    if (left >= PS_VW)
        return vf_load_f16(p);
    uint16_t tmp[PS_VW] = {0};
    memcpy(tmp, p, left * sizeof *p);
    return vf_load_f16(tmp);
}

/* Scores of nr rows (at distance dkp, zeros at their end) against n keys: s[r*PS_ATTN_KEYS + j] = q[r] . k[j]; writes
 * up to PS_VW scores beyond n. The sums of one round fill PS_VW vectors, so one transposing addition serves them. */
PS_INLINE void dot_keys(const float *q, uint64_t dkp, const uint16_t *k, uint64_t stride, uint64_t dk,
                        uint64_t n, float *s, const int nr) {
    const int kb = PS_VW / (nr == 3 ? 4 : nr);
    for (uint64_t j = 0; j < n; j += (uint64_t)kb) {
        vf acc[PS_VW];
#pragma GCC unroll 16
        for (int i = 0; i < PS_VW; i++)
            acc[i] = vf_set1(0);
        const uint64_t last = n - 1 - j;
        for (uint64_t c = 0; c < dk; c += PS_VW) {
#pragma GCC unroll 16
            for (int i = 0; i < kb; i++) {
                const uint64_t key = j + ((uint64_t)i < last ? (uint64_t)i : last);
                const vf x = load_halfs(k + key * stride + c, dk - c);
#pragma GCC unroll 4
                for (int r = 0; r < nr; r++)
                    acc[r * kb + i] = vf_fma(x, vf_load(q + (uint64_t)r * dkp + c), acc[r * kb + i]);
            }
        }
        float tmp[PS_VW];
        vf_store(tmp, vf_sum_each(acc));
#pragma GCC unroll 4
        for (int r = 0; r < nr; r++)
            memcpy(s + r * PS_ATTN_KEYS + j, tmp + r * kb, (size_t)kb * sizeof *s);
    }
}

/* o[r][dvp] = alpha[r] * o[r] + sum over j of p[r][j] * v[j], for nr rows, w vectors from column c. */
PS_INLINE void add_columns(float *o, uint64_t dvp, const float *p, const float *alpha, const uint16_t *v,
                           uint64_t stride, uint64_t dv, uint64_t n, const int nr, const int w) {
    vf acc[4][4];
#pragma GCC unroll 4
    for (uint64_t r = 0; r < (uint64_t)nr; r++)
#pragma GCC unroll 4
        for (int i = 0; i < w; i++)
            acc[r][i] = vf_mul(vf_load(o + r * dvp + i * PS_VW), vf_set1(alpha[r]));
    for (uint64_t j = 0; j < n; j++) {
        vf y[4];
#pragma GCC unroll 4
        for (int r = 0; r < nr; r++)
            y[r] = vf_set1(p[(uint64_t)r * PS_ATTN_KEYS + j]);
#pragma GCC unroll 4
        for (uint64_t i = 0; i < (uint64_t)w; i++) {
            const vf x = w == 1 ? load_halfs(v + j * stride, dv) : vf_load_f16(v + j * stride + i * PS_VW);
#pragma GCC unroll 4
            for (int r = 0; r < nr; r++)
                acc[r][i] = vf_fma(y[r], x, acc[r][i]);
        }
    }
#pragma GCC unroll 4
    for (uint64_t r = 0; r < (uint64_t)nr; r++)
#pragma GCC unroll 4
        for (int i = 0; i < w; i++)
            vf_store(o + r * dvp + i * PS_VW, acc[r][i]);
}

PS_INLINE void add_values(float *o, uint64_t dvp, const float *p, const float *alpha, const uint16_t *v,
                          uint64_t stride, uint64_t dv, uint64_t n, const int nr) {
    uint64_t c = 0;
    for (; c + 4 * PS_VW <= dv; c += 4 * PS_VW)
        add_columns(o + c, dvp, p, alpha, v + c, stride, dv - c, n, nr, 4);
    for (; c < dv; c += PS_VW)
        add_columns(o + c, dvp, p, alpha, v + c, stride, dv - c, n, nr, 1);
}

/* Softmax step of one row: scores s[n], room up to the next multiple of PS_VW, become exponentials; returns
 * alpha. Key j of the block is seen where hi - window < j <= hi. */
static float softmax_row(float *s, uint64_t n, int64_t hi, int64_t window, float *m, float *l) {
    const uint64_t np = pad_to(n, PS_VW);
    const int64_t lo = window && hi - window >= 0 ? hi - window + 1 : 0;
    for (uint64_t j = 0; (int64_t)j < lo && j < n; j++)
        s[j] = -INFINITY;
    for (uint64_t j = hi < 0 ? 0 : (uint64_t)hi + 1 < n ? (uint64_t)hi + 1 : n; j < np; j++)
        s[j] = -INFINITY;
    vf top = vf_load(s);
    for (uint64_t j = PS_VW; j < np; j += PS_VW)
        top = vf_max(top, vf_load(s + j));
    const float old = *m, here = vf_hmax(top), best = here > old ? here : old;
    const float base = best > -INFINITY ? best : 0;
    vf sum = vf_set1(0);
    for (uint64_t j = 0; j < np; j += PS_VW) {
        const vf e = vf_exp(vf_sub(vf_load(s + j), vf_set1(base)));
        vf_store(s + j, e);
        sum = vf_add(sum, e);
    }
    float tmp[PS_VW];
    vf_store(tmp, vf_exp(vf_set1(old - base)));
    *m = best;
    *l = *l * tmp[0] + vf_hsum(sum);
    return tmp[0];
}

/* nr rows of an item with few: one block of n keys that lie one behind the other in the cache. */
PS_INLINE void few_block(const ps_layer *ly, const float *q, uint64_t dkp, float *o, uint64_t dvp, float *m,
                         float *l, const uint16_t *k, const uint16_t *v, uint64_t n, const int64_t *hi,
                         const int nr) {
    float s[4 * PS_ATTN_KEYS], alpha[4];
    dot_keys(q, dkp, k, (uint64_t)ly->n_head_kv * ly->head_dim_k, ly->head_dim_k, n, s, nr);
    for (int r = 0; r < nr; r++)
        alpha[r] = softmax_row(s + r * PS_ATTN_KEYS, n, hi[r], ly->window, m + r, l + r);
    add_values(o, dvp, s, alpha, v, (uint64_t)ly->n_head_kv * ly->head_dim_v, ly->head_dim_v, n, nr);
}

static void few_rows(const attn_sink *k, float *mem) {
    const ps_layer *ly = k->a->layer;
    const ps_attn_item *it = k->it;
    const ps_seq_span *sp = it->span;
    const uint64_t dk = ly->head_dim_k, dv = ly->head_dim_v, dkp = pad_to(dk, PS_VW), dvp = pad_to(dv, PS_VW);
    const uint64_t group = ly->n_head / ly->n_head_kv;
    float *q = mem, *o = q + it->n * dkp, m[PS_ATTN_FEW_ROWS], l[PS_ATTN_FEW_ROWS];
    memset(q, 0, it->n * (dkp + dvp) * sizeof *q);
    for (uint64_t r = 0; r < it->n; r++) {
        const float *row = query(k, r);
        for (uint64_t i = 0; i < dk; i++)
            q[r * dkp + i] = row[i] * ly->attn_scale;
        m[r] = -INFINITY;
        l[r] = 0;
    }
    for (uint64_t p = it->lo, n; p < it->hi; p += n) {
        const uint64_t at = p % sp->kv_rows;
        n = it->hi - p < PS_ATTN_KEYS ? it->hi - p : PS_ATTN_KEYS;
        n = sp->kv_rows - at < n ? sp->kv_rows - at : n;
        const uint16_t *kp = sp->k + (at * ly->n_head_kv + it->kv_head) * dk;
        const uint16_t *vp = sp->v + (at * ly->n_head_kv + it->kv_head) * dv;
        for (uint64_t r = 0; r < it->n; r += 4) {
            int64_t hi[4];
            for (uint64_t i = 0; i < 4; i++)
                hi[i] = (int64_t)(sp->pos0 + (it->r0 + r + i) / group) - (int64_t)p;
            const float *rq = q + r * dkp;
            float *ro = o + r * dvp;
            if (it->n - r >= 4)
                few_block(ly, rq, dkp, ro, dvp, m + r, l + r, kp, vp, n, hi, 4);
            else if (it->n - r == 3)
                few_block(ly, rq, dkp, ro, dvp, m + r, l + r, kp, vp, n, hi, 3);
            else if (it->n - r == 2)
                few_block(ly, rq, dkp, ro, dvp, m + r, l + r, kp, vp, n, hi, 2);
            else
                few_block(ly, rq, dkp, ro, dvp, m + r, l + r, kp, vp, n, hi, 1);
        }
    }
    for (uint64_t r = 0; r < it->n; r++) {
        const float scale = 1.0f / l[r];
        for (uint64_t i = 0; !k->split && i < dv; i++)
            o[r * dvp + i] *= scale;
        sink_put(k, r, o + r * dvp, m[r], l[r]);
    }
}

static void attend(const ps_kargs *a, uint64_t first, uint64_t n, uint32_t thread, bool split) {
    float *mem = (float *)(void *)(a->scratch + (uint64_t)thread * PS_ATTN_THREAD);
    for (uint64_t i = first; i < first + n; i++) {
        const ps_attn_item it = ps_attn_item_at(a, i, split);
        const attn_sink sink = {a, &it, ps_attn_scratch_of(a, split), split};
        if (it.n <= PS_ATTN_FEW_ROWS)
            few_rows(&sink, mem);
        else if (it.n <= PS_VW)
            many_rows(&sink, mem, 1);
        else if (it.n <= 2 * PS_VW)
            many_rows(&sink, mem, 2);
        else
            many_rows(&sink, mem, 3);
    }
}

/* Row `item` of the spans' rows: its row of the step, and its span. */
static const ps_seq_span *span_row(const ps_kargs *a, uint64_t item, uint64_t *out_row) {
    const ps_seq_span *sp = a->spans;
    for (; item >= sp->n_rows; sp++)
        item -= sp->n_rows;
    *out_row = sp->row0 + item;
    return sp;
}

/* Join the parts of the heads of one row of the spans and one KV head, in order. */
static void join_parts(const ps_kargs *a, uint64_t row, uint64_t kv_head, float *mem) {
    const ps_layer *ly = a->layer;
    const ps_attn_scratch s = ps_attn_scratch_of(a, true);
    const uint64_t dv = ly->head_dim_v, group = ly->n_head / ly->n_head_kv;
    const uint64_t most = dv < 2 ? PS_ATTN_PARTS_MAX / 2 : PS_ATTN_PARTS_MAX;
    uint64_t token, parts;
    ps_attn_part_len(ly, span_row(a, row, &token), &parts);
    for (uint64_t g = 0; g < group; g++) {
        const uint64_t head = kv_head * group + g;
        const uint64_t at = (token * ly->n_head + head) * most;
        const float *stat = s.stat + 2 * at;
        float w[PS_ATTN_PARTS_MAX], best = -INFINITY, sum = 0;
        for (uint64_t i = 0; i < parts; i++)
            best = stat[2 * i] > best ? stat[2 * i] : best;
        for (uint64_t i = 0; i < PS_ATTN_PARTS_MAX; i++)
            w[i] = i < parts ? stat[2 * i] - best : -INFINITY;
        for (uint64_t i = 0; i < PS_ATTN_PARTS_MAX; i += PS_VW)
            vf_store(w + i, vf_exp(vf_load(w + i)));
        for (uint64_t i = 0; i < parts; i++)
            sum += w[i] * stat[2 * i + 1];
        for (uint64_t c = 0; c < dv; c++)
            mem[c] = 0;
        for (uint64_t i = 0; i < parts; i++) {
            const float scale = w[i] / sum, *o = s.out + (at + i) * dv;
            for (uint64_t c = 0; c < dv; c++)
                mem[c] += scale * o[c];
        }
        write_head(a, s.staged, token, head, mem);
    }
}

static void quantize_staged(const ps_kargs *a, uint64_t item, const float *staged) {
    const uint64_t per_head = a->layer->n_head / a->layer->n_head_kv * a->layer->head_dim_v;
    const uint64_t c0 = a->row0 * per_head / PS_Q8_GROUP, c1 = (a->row0 + a->n_rows) * per_head / PS_Q8_GROUP;
    uint64_t token;
    span_row(a, item, &token);
    uint8_t *row = (uint8_t *)a->dst.data + token * a->dst.row_bytes;
    float *d = (float *)(void *)(row + ps_q8_d_offset(a->dst.cols));
    float *s = (float *)(void *)(row + ps_q8_s_offset(a->dst.cols));
    for (uint64_t g = c0; g < c1; g++)
        vf_quantize_group(staged + token * a->dst.cols + g * PS_Q8_GROUP, (int8_t *)row + g * PS_Q8_GROUP,
                          d + g, s + g);
}

void PS_FN(ps_cpu_attn_split_run)(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,
                                  uint32_t thread) {
    float *mem = (float *)(void *)(a->scratch + (uint64_t)thread * PS_ATTN_THREAD);
    if (phase == 0) {
        attend(a, first, n, thread, true);
        return;
    }
    for (uint64_t i = first; i < first + n; i++) {
        if (!ps_attn_staged(a)) {
            join_parts(a, i / a->n_rows, a->row0 + i % a->n_rows, mem);
            continue;
        }
        for (uint64_t h = 0; h < a->n_rows; h++)
            join_parts(a, i, a->row0 + h, mem);
        quantize_staged(a, i, ps_attn_scratch_of(a, true).staged);
    }
}

void PS_FN(ps_cpu_attn_block_run)(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,
                                  uint32_t thread) {
    if (phase == 0)
        attend(a, first, n, thread, false);
    for (uint64_t i = first; phase == 1 && i < first + n; i++)
        quantize_staged(a, i, ps_attn_scratch_of(a, false).staged);
}
