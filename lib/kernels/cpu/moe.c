/* Mixture of experts on the CPU: dst = (src2 +) sum over a token's selected experts in [row0, row0 + n_rows) of
 * weight * down(act(gate x) * up x), added up in ascending order of expert.
 *
 *   phase 0            sort the (token, slot) pairs by expert; one item
 *   phase 1, 3, 5      a block of hidden columns of one expert that has tokens: both products, activation
 *   phase 2, 4, 6      a block of output columns: the down products of all experts, weighted, summed
 *
 * The hidden rows of all pairs are kept in scratch. Where they do not fit for all tokens (many experts used), the
 * tokens are done in up to three rounds; the later phases are empty otherwise. Products are those of the matrix
 * kernels for few tokens, up to 12 pairs of an expert at a time; hidden rows have the format of src0. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/matmul_int.h"

enum { OUT_BLOCK = 16, MAX_BLOCK = 128, MIN_BLOCK = 32 };
static_assert(PS_MOE_THREAD_COL >= MM_NT * 4, "gathered rows fit a thread's scratch");

/* One round's pairs by expert: expert active[i] (counted from row0) has pairs [first[i], first[i+1]) of the
 * round's part of the list. */
typedef struct moe_round {
    uint32_t n_active;
    uint32_t first[PS_MAX_EXPERTS + 1];
    uint32_t active[PS_MAX_EXPERTS];
} moe_round;

/* What a level brings. */
typedef struct moe_level {
    const mm_ops *mm;
    ps_cpu_act_fn act;
    ps_cpu_quantize_fn quantize;
} moe_level;

/* Where things lie in scratch, and how the tokens are cut into rounds. */
typedef struct moe_frame {
    moe_round *rounds;
    uint32_t *pairs; /* token * used + slot, sorted by round, expert, token */
    ps_xarg hidden;  /* rows of one round's pairs */
    uint8_t *gather; /* [threads] MM_NT rows */
    uint64_t gather_bytes, used, round_tokens, n_rounds;
} moe_frame;

static uint64_t longest_row(const ps_kargs *a) {
    uint64_t cols = a->dst.cols;
    for (int i = 0; i < 3; i++) {
        cols = a->w[i].cols > cols ? a->w[i].cols : cols;
        cols = a->src[i].data && a->src[i].cols > cols ? a->src[i].cols : cols;
    }
    return cols;
}

static moe_frame frame_of(const ps_kargs *a) {
    const uint64_t cols = longest_row(a), t = a->n_tokens;
    const bool q8 = a->src[0].fmt == PS_FMT_Q8;
    moe_frame f = {.used = a->src[1].cols};
    assert(a->n_rows <= PS_MAX_EXPERTS && f.used <= PS_MAX_EXPERTS_USED);
    f.gather_bytes = (PS_MOE_THREAD + PS_MOE_THREAD_COL * cols) / 64 * 64;
    f.hidden = (ps_xarg){.fmt = a->src[0].fmt, .cols = a->w[0].rows};
    f.hidden.row_bytes = ps_fmt_row_bytes(f.hidden.fmt, f.hidden.cols);
    /* The rest of what the scratch formula gives, less the padding of one line per part. */
    const uint64_t room = PS_MAX_EXPERTS_USED * 256 +
                          t * (2048 + (q8 ? PS_MOE_TOKEN_COL_Q8 : PS_MOE_TOKEN_COL_F32) * cols) +
                          (q8 ? PS_MOE_COL_Q8 : PS_MOE_COL_F32) * cols;
    const uint64_t fit = room / (f.used * f.hidden.row_bytes);
    f.round_tokens = fit < t ? fit : t;
    f.n_rounds = (t + f.round_tokens - 1) / f.round_tokens;
    assert(fit > 0 && f.n_rounds <= PS_MOE_ROUNDS);
    uint8_t *p = a->scratch;
    f.gather = p;
    p += f.gather_bytes * a->n_threads;
    f.hidden.data = p;
    p += f.hidden.row_bytes * f.used * f.round_tokens;
    f.rounds = (moe_round *)(void *)p;
    f.pairs = (uint32_t *)(void *)(f.rounds + PS_MOE_ROUNDS);
    return f;
}

static int32_t selected(const ps_kargs *a, uint64_t t, uint64_t slot, float *out_weight) {
    const uint8_t *p = (const uint8_t *)a->src[1].data + t * a->src[1].row_bytes + 8 * slot;
    int32_t e;
    memcpy(&e, p, sizeof e);
    memcpy(out_weight, p + 4, sizeof *out_weight);
    return e;
}

/* Counting sort of one round's pairs. */
static void group_round(const ps_kargs *a, const moe_frame *f, uint64_t round) {
    moe_round *r = &f->rounds[round];
    const uint64_t t0 = round * f->round_tokens;
    const uint64_t t1 = t0 + f->round_tokens < a->n_tokens ? t0 + f->round_tokens : a->n_tokens;
    uint32_t *pairs = f->pairs + t0 * f->used;
    uint32_t *count = r->active; /* per expert, until the list is made */
    float weight;
    memset(count, 0, a->n_rows * sizeof *count);
    for (uint64_t t = t0; t < t1; t++)
        for (uint64_t k = 0; k < f->used; k++) {
            const int64_t e = (int64_t)selected(a, t, k, &weight) - (int64_t)a->row0;
            if (e >= 0 && (uint64_t)e < a->n_rows)
                count[e]++;
        }
    uint32_t at = 0;
    for (uint64_t e = 0; e < a->n_rows; e++) {
        const uint32_t n = count[e];
        r->first[e] = at;
        at += n;
    }
    for (uint64_t t = t0; t < t1; t++)
        for (uint64_t k = 0; k < f->used; k++) {
            const int64_t e = (int64_t)selected(a, t, k, &weight) - (int64_t)a->row0;
            if (e >= 0 && (uint64_t)e < a->n_rows)
                pairs[r->first[e]++] = (uint32_t)(t * f->used + k);
        }
    /* first[e] is now the end of e: keep the experts that have pairs. */
    uint32_t n = 0, begin = 0;
    for (uint64_t e = 0; e < a->n_rows; e++) {
        const uint32_t end = r->first[e];
        if (end == begin)
            continue;
        r->active[n] = (uint32_t)e;
        r->first[n++] = begin;
        begin = end;
    }
    r->first[n] = begin;
    r->n_active = n;
}

/* Hidden columns of one item: more where an expert has many tokens, since each item gathers their rows. */
static uint64_t hidden_block(const ps_kargs *a) {
    return a->n_tokens * a->src[1].cols > 4 * a->n_rows ? MAX_BLOCK : MIN_BLOCK;
}

uint64_t ps_cpu_moe_items(const ps_kargs *a, uint32_t phase) {
    if (phase == 0)
        return 1;
    const moe_frame f = frame_of(a);
    const uint64_t round = (phase - 1) / 2;
    if (round >= f.n_rounds)
        return 0;
    if (phase % 2 == 0)
        return (a->dst.cols + OUT_BLOCK - 1) / OUT_BLOCK;
    const uint64_t most = f.round_tokens * f.used < a->n_rows ? f.round_tokens * f.used : a->n_rows;
    return most * ((a->w[0].rows + hidden_block(a) - 1) / hidden_block(a));
}

static bool takes_q8(ps_dtype type) {
    return type != PS_DTYPE_F32 && type != PS_DTYPE_F16 && type != PS_DTYPE_BF16;
}

/* Row `row` of x in format `fmt`, into out. tmp and out may not overlap. */
static void convert_row(const moe_level *lv, const ps_xarg *x, uint64_t row, ps_fmt fmt, uint8_t *out) {
    const uint8_t *in = (const uint8_t *)x->data + row * x->row_bytes;
    if (fmt == x->fmt) {
        memcpy(out, in, ps_fmt_row_bytes(fmt, x->cols));
    } else if (fmt == PS_FMT_Q8) {
        const ps_xarg to = {.data = out, .fmt = fmt, .cols = x->cols};
        lv->quantize(&to, 0, 0, x->cols, (const float *)(const void *)in);
    } else {
        const float *d = (const float *)(const void *)(in + ps_q8_d_offset(x->cols));
        float *y = (float *)(void *)out;
        for (uint64_t i = 0; i < x->cols; i++)
            y[i] = d[i / PS_Q8_GROUP] * (float)(int8_t)in[i];
    }
}

/* nt rows of x (numbers in rows[]) in the format that products with `type` take: in place where they already lie
 * one behind the other, otherwise gathered. Returns the first, *out_stride the distance. */
static const uint8_t *operand(const moe_level *lv, const ps_xarg *x, const uint32_t *rows, uint32_t nt,
                              ps_dtype type, uint8_t *gather, uint64_t *out_stride) {
    const ps_fmt fmt = takes_q8(type) ? PS_FMT_Q8 : PS_FMT_F32;
    bool follow = fmt == x->fmt;
    for (uint32_t i = 1; i < nt; i++)
        follow = follow && rows[i] == rows[i - 1] + 1;
    if (follow) {
        *out_stride = x->row_bytes;
        return (const uint8_t *)x->data + rows[0] * x->row_bytes;
    }
    *out_stride = ps_fmt_row_bytes(fmt, x->cols);
    for (uint32_t i = 0; i < nt; i++)
        convert_row(lv, x, rows[i], fmt, gather + i * *out_stride);
    return gather;
}

/* Rows [row0, row0 + nr) of an expert's matrix times nt operand rows: out[t * ld + r]. */
static void product(const moe_level *lv, const ps_warg *w, uint64_t expert, uint64_t row0, uint64_t nr,
                    const uint8_t *x, uint64_t stride, uint32_t nt, float *out, uint64_t ld) {
    for (uint64_t r = 0; r < nr; r += MM_NR) {
        float part[MM_NT * MM_NR];
        const uint32_t n = nr - r < MM_NR ? (uint32_t)(nr - r) : MM_NR;
        const uint8_t *rows = w->data + (expert * w->rows + row0 + r) * w->row_bytes;
        const uint64_t ahead = (nr - r - n) * w->row_bytes;
        if (takes_q8(w->type))
            lv->mm->dot_q8[w->type](rows, w->row_bytes, w->cols, n, ahead, x, stride, nt, part);
        else
            lv->mm->dot_float[w->type](rows, w->row_bytes, w->cols, n, ahead, x, stride, nt, part);
        for (uint32_t t = 0; t < nt; t++)
            memcpy(out + t * ld + r, part + t * MM_NR, n * sizeof *out);
    }
}

static void hidden_item(const moe_level *lv, const ps_kargs *a, const moe_frame *f, uint64_t round,
                        uint64_t item, uint8_t *gather) {
    const moe_round *r = &f->rounds[round];
    const uint64_t block = hidden_block(a), blocks = (a->w[0].rows + block - 1) / block;
    const uint64_t i = item / blocks, c0 = item % blocks * block;
    if (i >= r->n_active)
        return;
    const uint64_t expert = a->row0 + r->active[i], left = a->w[0].rows - c0, n = left < block ? left : block;
    const uint32_t *pairs = f->pairs + round * f->round_tokens * f->used;
    float g[MM_NT * MAX_BLOCK], u[MM_NT * MAX_BLOCK];
    for (uint32_t p = r->first[i], nt; p < r->first[i + 1]; p += nt) {
        uint32_t rows[MM_NT];
        uint64_t stride;
        nt = r->first[i + 1] - p < MM_NT ? r->first[i + 1] - p : MM_NT;
        for (uint32_t k = 0; k < nt; k++)
            rows[k] = (uint32_t)(pairs[p + k] / f->used);
        const uint8_t *x = operand(lv, &a->src[0], rows, nt, a->w[0].type, gather, &stride);
        product(lv, &a->w[0], expert, c0, n, x, stride, nt, g, block);
        if (takes_q8(a->w[0].type) != takes_q8(a->w[1].type))
            x = operand(lv, &a->src[0], rows, nt, a->w[1].type, gather, &stride);
        product(lv, &a->w[1], expert, c0, n, x, stride, nt, u, block);
        for (uint32_t k = 0; k < nt; k++) {
            float *y = g + k * block;
            lv->act(y, u + k * block, y, n, a->model->glu == PS_GLU_SILU);
            if (f->hidden.fmt == PS_FMT_Q8)
                lv->quantize(&f->hidden, p + k, c0, n, y);
            else
                memcpy((float *)(void *)((uint8_t *)f->hidden.data + (p + k) * f->hidden.row_bytes) + c0, y,
                       n * sizeof *y);
        }
    }
}

static void out_item(const moe_level *lv, const ps_kargs *a, const moe_frame *f, uint64_t round,
                     uint64_t item, uint8_t *gather) {
    const moe_round *r = &f->rounds[round];
    const uint64_t c0 = item * OUT_BLOCK, left = a->dst.cols - c0, n = left < OUT_BLOCK ? left : OUT_BLOCK;
    const uint64_t t0 = round * f->round_tokens;
    const uint64_t t1 = t0 + f->round_tokens < a->n_tokens ? t0 + f->round_tokens : a->n_tokens;
    const uint32_t *pairs = f->pairs + t0 * f->used;
    for (uint64_t t = t0; t < t1; t++) {
        float *y = (float *)(void *)((uint8_t *)a->dst.data + t * a->dst.row_bytes) + c0;
        const uint8_t *res = (const uint8_t *)a->src[2].data;
        if (res)
            memmove(y, (const float *)(const void *)(res + t * a->src[2].row_bytes) + c0, n * sizeof *y);
        else
            memset(y, 0, n * sizeof *y);
    }
    for (uint32_t i = 0; i < r->n_active; i++) {
        for (uint32_t p = r->first[i], nt; p < r->first[i + 1]; p += nt) {
            float part[MM_NT * OUT_BLOCK];
            uint32_t rows[MM_NT];
            uint64_t stride;
            nt = r->first[i + 1] - p < MM_NT ? r->first[i + 1] - p : MM_NT;
            for (uint32_t k = 0; k < nt; k++)
                rows[k] = p + k;
            const uint8_t *x = operand(lv, &f->hidden, rows, nt, a->w[2].type, gather, &stride);
            product(lv, &a->w[2], a->row0 + r->active[i], c0, n, x, stride, nt, part, OUT_BLOCK);
            for (uint32_t k = 0; k < nt; k++) {
                const uint64_t t = pairs[p + k] / f->used;
                float weight, *y = (float *)(void *)((uint8_t *)a->dst.data + t * a->dst.row_bytes) + c0;
                selected(a, t, pairs[p + k] % f->used, &weight);
                for (uint64_t c = 0; c < n; c++)
                    y[c] += weight * part[k * OUT_BLOCK + c];
            }
        }
    }
}

static void moe_run(const moe_level *lv, const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,
                    uint32_t thread) {
    const moe_frame f = frame_of(a);
    uint8_t *gather = f.gather + thread * f.gather_bytes;
    for (uint64_t i = first; i < first + n; i++) {
        if (phase == 0)
            for (uint64_t r = 0; r < f.n_rounds; r++)
                group_round(a, &f, r);
        else if (phase % 2 == 1)
            hidden_item(lv, a, &f, (phase - 1) / 2, i, gather);
        else
            out_item(lv, a, &f, (phase - 1) / 2, i, gather);
    }
}

#define MOE_LEVEL(level)                                                                                     \
    void ps_cpu_moe_run_##level(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,               \
                                uint32_t thread) {                                                           \
        static const moe_level lv = {&ps_mm_ops_##level, ps_cpu_act_cols_##level,                            \
                                     ps_cpu_quantize_cols_##level};                                          \
        moe_run(&lv, a, phase, first, n, thread);                                                            \
    }
MOE_LEVEL(generic)
#if defined(__x86_64__)
MOE_LEVEL(avx2)
MOE_LEVEL(avx512)
#endif
