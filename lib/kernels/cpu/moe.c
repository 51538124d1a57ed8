/* Mixture of experts on the CPU: dst = (src2 +) sum over a token's experts that the call takes (moe_rule.h) of
 * weight * down(act(gate x) * up x), added up in ascending order of expert.
 *
 *   phase 0            sort the (token, slot) pairs by expert; one item. Few pairs: none, each thread sorts for itself
 *   phase 1, 3, 5      a block of hidden columns of one expert that has tokens: both products, activation
 *   phase 2, 4, 6      a block of output columns: the down products of all experts, weighted, summed
 *
 * The hidden rows of all pairs are kept in scratch. Where they do not fit for all tokens (many experts used), the
 * tokens are done in up to three rounds; the later phases are empty otherwise. Products are those of the matrix
 * kernels for few tokens, up to 12 pairs of an expert at a time; hidden rows have the format of src0. With few tokens
 * all depends on how fast the weights arrive, so each block asks for the one that this thread takes after it. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/matmul_int.h"
#include "kernels/moe_rule.h"

enum { OUT_BLOCK = 16, MAX_BLOCK = 128, MIN_BLOCK = 32, FLOAT_BLOCK = 16 };
enum { FEW_PAIRS = 128 }; /* at most so many are sorted by each thread instead of in a phase of its own */
static_assert(PS_MOE_THREAD_COL >= MM_NT * 4, "gathered rows fit a thread's scratch");

/* One round's pairs by expert: expert active[i] has pairs [first[i], first[i+1]) of the round's part of the list;
 * none, where all its pairs are another round's. */
typedef struct moe_round {
    uint32_t n_active;
    uint32_t first[PS_MAX_EXPERTS + 1];
    uint32_t active[PS_MAX_EXPERTS];
} moe_round;

/* The same as the items use it. */
typedef struct moe_group {
    uint32_t n_active;
    const uint32_t *first, *active;
    const uint32_t *pairs; /* token * used + slot, sorted by expert, token */
    uint64_t t0, t1;       /* tokens of the round */
} moe_group;

/* Lists of a call of few pairs, on the stack. */
typedef struct moe_few {
    uint32_t first[FEW_PAIRS + 1], active[FEW_PAIRS], pairs[FEW_PAIRS];
} moe_few;

/* What a level brings. */
typedef struct moe_level {
    const mm_ops *mm;
    ps_cpu_act_fn act;
    ps_cpu_quantize_fn quantize;
} moe_level;

/* Where things lie in scratch, and how the tokens are cut into rounds. */
typedef struct moe_frame {
    bool few; /* nothing but hidden and gather is in use */
    moe_round *rounds;
    uint32_t *pairs; /* sorted by round, expert, token */
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
    f.few = f.n_rounds == 1 && t * f.used <= FEW_PAIRS;
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

/* Counting sort of the pairs of tokens [t0, t1) whose experts are taken. first and active have room for the experts
 * taken, and one more. Returns how many those are. */
static uint32_t sort_pairs(const ps_kargs *a, const uint32_t *taken, uint64_t t0, uint64_t t1,
                           uint32_t *first, uint32_t *active, uint32_t *pairs) {
    const uint64_t used = a->src[1].cols;
    uint16_t rank[PS_MAX_EXPERTS]; /* of the experts that are taken */
    uint32_t n = 0, at = 0;
    float weight;
    for (uint32_t w = 0; w < PS_MOE_WORDS; w++)
        for (uint32_t x = taken[w]; x != 0; x &= x - 1) {
            const uint32_t e = 32 * w + (uint32_t)__builtin_ctz(x);
            rank[e] = (uint16_t)n;
            first[n] = 0;
            active[n++] = e;
        }
    for (uint64_t t = t0; t < t1; t++)
        for (uint64_t k = 0; k < used; k++) {
            const int32_t e = selected(a, t, k, &weight);
            if (ps_moe_takes(taken, e))
                first[rank[e]]++;
        }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t here = first[i];
        first[i] = at;
        at += here;
    }
    for (uint64_t t = t0; t < t1; t++)
        for (uint64_t k = 0; k < used; k++) {
            const int32_t e = selected(a, t, k, &weight);
            if (ps_moe_takes(taken, e))
                pairs[first[rank[e]]++] = (uint32_t)(t * used + k);
        }
    /* first[i] is now the end of i. */
    for (uint32_t i = n; i > 0; i--)
        first[i] = first[i - 1];
    first[0] = 0;
    return n;
}

static void sort_rounds(const ps_kargs *a, const moe_frame *f) {
    uint32_t taken[PS_MOE_WORDS];
    ps_moe_select(a, taken);
    for (uint64_t i = 0; i < f->n_rounds; i++) {
        moe_round *r = &f->rounds[i];
        const uint64_t t0 = i * f->round_tokens, t1 = t0 + f->round_tokens;
        r->n_active = sort_pairs(a, taken, t0, t1 < a->n_tokens ? t1 : a->n_tokens, r->first, r->active,
                                 f->pairs + t0 * f->used);
    }
}

static moe_group group_of(const ps_kargs *a, const moe_frame *f, uint64_t round, moe_few *few) {
    const uint64_t t0 = round * f->round_tokens, t1 = t0 + f->round_tokens;
    moe_group g = {.t0 = t0, .t1 = t1 < a->n_tokens ? t1 : a->n_tokens};
    if (f->few) {
        uint32_t taken[PS_MOE_WORDS];
        ps_moe_select(a, taken);
        g.n_active = sort_pairs(a, taken, g.t0, g.t1, few->first, few->active, few->pairs);
        g.first = few->first;
        g.active = few->active;
        g.pairs = few->pairs;
    } else {
        const moe_round *r = &f->rounds[round];
        g.n_active = r->n_active;
        g.first = r->first;
        g.active = r->active;
        g.pairs = f->pairs + t0 * f->used;
    }
    return g;
}

/* Hidden columns of one item: more where an expert has many tokens, since each item gathers their rows. */
static uint64_t hidden_block(const ps_kargs *a) {
    return a->n_tokens * a->src[1].cols > 4 * a->n_rows ? MAX_BLOCK
           : a->src[0].fmt == PS_FMT_Q8                 ? MIN_BLOCK
                                                        : FLOAT_BLOCK;
}

uint64_t ps_cpu_moe_items(const ps_kargs *a, uint32_t phase) {
    if (a->n_tokens == 0)
        return 0;
    const moe_frame f = frame_of(a);
    if (phase == 0)
        return f.few ? 0 : 1;
    const uint64_t round = (phase - 1) / 2;
    if (round >= f.n_rounds)
        return 0;
    if (phase % 2 == 0)
        return (a->dst.cols + OUT_BLOCK - 1) / OUT_BLOCK;
    uint64_t most = a->n_tokens * f.used < a->n_rows ? a->n_tokens * f.used : a->n_rows;
    if (f.few) {
        uint32_t taken[PS_MOE_WORDS];
        ps_moe_select(a, taken);
        most = 0;
        for (uint32_t w = 0; w < PS_MOE_WORDS; w++)
            for (uint32_t x = taken[w]; x != 0; x &= x - 1)
                most++;
    }
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

/* nr rows at `rows` of a matrix like w times nt operand rows: out[t * ld + r]. next: rows that are wanted after these,
 * as many; NULL: unknown. fetch: the rows come from memory. */
static void product(const moe_level *lv, const ps_warg *w, const uint8_t *rows, uint64_t nr, const uint8_t *x,
                    uint64_t stride, uint32_t nt, float *out, uint64_t ld, bool fetch, const uint8_t *next) {
    const mm_dot dot = takes_q8(w->type) ? lv->mm->dot_q8[w->type] : lv->mm->dot_float[w->type];
    for (uint64_t r = 0; r < nr; r += MM_NR, rows += MM_NR * w->row_bytes) {
        float part[MM_NT * MM_NR];
        const uint32_t n = nr - r < MM_NR ? (uint32_t)(nr - r) : MM_NR;
        const uint64_t ahead = fetch ? mm_ahead(rows, w->row_bytes, w->row_bytes, nr - r, next, nr) : 0;
        dot(rows, w->row_bytes, w->cols, n, ahead, x, stride, nt, part);
        for (uint32_t t = 0; t < nt; t++)
            memcpy(out + t * ld + r, part + t * MM_NR, n * sizeof *out);
    }
}

/* Row `row` of matrix i of the expert of number k in the group; NULL if there is no such. */
static const uint8_t *rows_at(const ps_kargs *a, const moe_group *g, int i, uint64_t k, uint64_t row) {
    if (k >= g->n_active || row >= a->w[i].rows)
        return NULL;
    return ps_moe_matrix(a, i, g->active[k]) + row * a->w[i].row_bytes;
}

/* more: the thread does the next item after this one. */
static void hidden_item(const moe_level *lv, const ps_kargs *a, const moe_frame *f, const moe_group *g,
                        uint64_t item, bool more, uint8_t *gather) {
    const uint64_t block = hidden_block(a), blocks = (a->w[0].rows + block - 1) / block;
    const uint64_t i = item / blocks, c0 = item % blocks * block;
    if (i >= g->n_active)
        return;
    const uint64_t left = a->w[0].rows - c0, n = left < block ? left : block;
    const uint8_t *w_gate = rows_at(a, g, 0, i, c0), *w_up = rows_at(a, g, 1, i, c0);
    const uint8_t *next = more ? rows_at(a, g, 0, (item + 1) / blocks, (item + 1) % blocks * block) : NULL;
    float gate[MM_NT * MAX_BLOCK], up[MM_NT * MAX_BLOCK];
    for (uint32_t p = g->first[i], nt; p < g->first[i + 1]; p += nt) {
        const bool fetch = p == g->first[i];
        uint32_t rows[MM_NT];
        uint64_t stride;
        nt = g->first[i + 1] - p < MM_NT ? g->first[i + 1] - p : MM_NT;
        for (uint32_t k = 0; k < nt; k++)
            rows[k] = (uint32_t)(g->pairs[p + k] / f->used);
        const uint8_t *x = operand(lv, &a->src[0], rows, nt, a->w[0].type, gather, &stride);
        product(lv, &a->w[0], w_gate, n, x, stride, nt, gate, block, fetch, w_up);
        if (takes_q8(a->w[0].type) != takes_q8(a->w[1].type))
            x = operand(lv, &a->src[0], rows, nt, a->w[1].type, gather, &stride);
        product(lv, &a->w[1], w_up, n, x, stride, nt, up, block, fetch, next);
        for (uint32_t k = 0; k < nt; k++) {
            float *y = gate + k * block;
            lv->act(y, up + k * block, y, n, a->model->glu == PS_GLU_SILU);
            if (f->hidden.fmt == PS_FMT_Q8)
                lv->quantize(&f->hidden, p + k, c0, n, y);
            else
                memcpy((float *)(void *)((uint8_t *)f->hidden.data + (p + k) * f->hidden.row_bytes) + c0, y,
                       n * sizeof *y);
        }
    }
}

static void out_item(const moe_level *lv, const ps_kargs *a, const moe_frame *f, const moe_group *g,
                     uint64_t item, bool more, uint8_t *gather) {
    const uint64_t c0 = item * OUT_BLOCK, left = a->dst.cols - c0, n = left < OUT_BLOCK ? left : OUT_BLOCK;
    for (uint64_t t = g->t0; t < g->t1; t++) {
        float *y = (float *)(void *)((uint8_t *)a->dst.data + t * a->dst.row_bytes) + c0;
        const uint8_t *res = (const uint8_t *)a->src[2].data;
        if (res)
            memmove(y, (const float *)(const void *)(res + t * a->src[2].row_bytes) + c0, n * sizeof *y);
        else
            memset(y, 0, n * sizeof *y);
    }
    for (uint32_t i = 0; i < g->n_active; i++) {
        const uint8_t *next = i + 1 < g->n_active ? rows_at(a, g, 2, i + 1, c0)
                              : more              ? rows_at(a, g, 2, 0, c0 + OUT_BLOCK)
                                                  : NULL;
        for (uint32_t p = g->first[i], nt; p < g->first[i + 1]; p += nt) {
            float part[MM_NT * OUT_BLOCK];
            uint32_t rows[MM_NT];
            uint64_t stride;
            nt = g->first[i + 1] - p < MM_NT ? g->first[i + 1] - p : MM_NT;
            for (uint32_t k = 0; k < nt; k++)
                rows[k] = p + k;
            const uint8_t *x = operand(lv, &f->hidden, rows, nt, a->w[2].type, gather, &stride);
            product(lv, &a->w[2], rows_at(a, g, 2, i, c0), n, x, stride, nt, part, OUT_BLOCK,
                    p == g->first[i], next);
            for (uint32_t k = 0; k < nt; k++) {
                const uint64_t t = g->pairs[p + k] / f->used;
                float weight, *y = (float *)(void *)((uint8_t *)a->dst.data + t * a->dst.row_bytes) + c0;
                selected(a, t, g->pairs[p + k] % f->used, &weight);
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
    if (phase == 0) {
        sort_rounds(a, &f);
        return;
    }
    moe_few few;
    const moe_group g = group_of(a, &f, (phase - 1) / 2, &few);
    const bool hidden = phase % 2 == 1;
    const uint64_t blocks = (a->w[0].rows + hidden_block(a) - 1) / hidden_block(a);
    const uint8_t *w = hidden ? rows_at(a, &g, 0, first / blocks, first % blocks * hidden_block(a))
                              : rows_at(a, &g, 2, 0, first * OUT_BLOCK);
    if (w)
        mm_ask_first(w, a->w[hidden ? 0 : 2].row_bytes, a->w[hidden ? 0 : 2].row_bytes,
                     hidden ? hidden_block(a) : OUT_BLOCK);
    for (uint64_t i = first; i < first + n; i++)
        if (hidden)
            hidden_item(lv, a, &f, &g, i, i + 1 < first + n, gather);
        else
            out_item(lv, a, &f, &g, i, i + 1 < first + n, gather);
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
