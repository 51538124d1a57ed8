/* How attention is cut into items: shared by the item counts and by the kernels of every level.
 *
 * The query heads that share a KV head are packed with the tokens into rows: row r of a span and KV head is
 * token r / group, head r % group of the group. An item takes up to `rows` of them over a range of positions,
 * in blocks of PS_ATTN_KEYS. The block kernel's items see all positions; the split kernel cuts the positions
 * into parts too, by a rule that knows nothing of threads, and joins the parts in order. */
#ifndef PS_KERNELS_CPU_ATTN_H
#define PS_KERNELS_CPU_ATTN_H

#include "kernels/cpu/cpu_ops.h"

enum {
    PS_ATTN_KEYS = 64,      /* positions of one block */
    PS_ATTN_FEW_ROWS = 8,   /* up to so many rows, a few at a time are faster than rows in lanes */
    PS_ATTN_PART_MIN = 256, /* positions that are worth a part of their own */
    PS_ATTN_PARTS_MAX = 32  /* parts of a span at most: the scratch formula counts on it */
};

/* One item: rows [r0, r0 + n) of a span and KV head over positions [lo, hi). */
typedef struct ps_attn_item {
    const ps_seq_span *span;
    uint64_t kv_head, r0, n, lo, hi;
    uint64_t part; /* split kernel */
} ps_attn_item;

/* Rows of one item: what fits the tiles of a thread; a multiple of every level's panel. */
static inline uint64_t ps_attn_rows(const ps_layer *l) {
    const uint64_t dim = l->head_dim_k > l->head_dim_v ? l->head_dim_k : l->head_dim_v;
    return dim <= 256 ? 96 : dim <= 512 ? 48 : PS_ATTN_FEW_ROWS;
}

/* First position that the rows from position `pos` on see. */
static inline uint64_t ps_attn_first(const ps_layer *l, uint64_t pos) {
    return l->window != 0 && pos + 1 > l->window ? pos + 1 - l->window : 0;
}

/* Parts of a span: positions of a part, and their number. */
static inline uint64_t ps_attn_part_len(const ps_layer *l, const ps_seq_span *sp, uint64_t *out_parts) {
    const uint64_t n = (uint64_t)sp->pos0 + sp->n_rows - ps_attn_first(l, sp->pos0);
    /* Heads of a single element have room for half as many (two more floats go with each part). */
    const uint64_t most = l->head_dim_v < 2 ? PS_ATTN_PARTS_MAX / 2 : PS_ATTN_PARTS_MAX;
    uint64_t parts = (n + PS_ATTN_PART_MIN - 1) / PS_ATTN_PART_MIN;
    parts = parts < 1 ? 1 : parts > most ? most : parts;
    uint64_t len = (n + parts - 1) / parts;
    len = (len + PS_ATTN_KEYS - 1) / PS_ATTN_KEYS * PS_ATTN_KEYS;
    *out_parts = len ? (n + len - 1) / len : 0;
    return len;
}

/* Q8 output whose groups straddle heads: rows are staged as floats and quantised once whole. */
static inline bool ps_attn_staged(const ps_kargs *a) {
    return a->dst.fmt == PS_FMT_Q8 && a->layer->head_dim_v % PS_Q8_GROUP != 0;
}

/* Item number `index` of phase 0. split: parts count too; otherwise the last rows, which see most, come first. */
ps_attn_item ps_attn_item_at(const ps_kargs *a, uint64_t index, bool split);

/* Places in scratch after the threads' tiles: partial sums [token][head][part][dv], then the pair (largest
 * score, sum of exponentials) [token][head][part], then staged rows [token][cols]. The block kernel has only
 * staged rows. */
typedef struct ps_attn_scratch {
    float *out, *stat, *staged;
} ps_attn_scratch;
static inline ps_attn_scratch ps_attn_scratch_of(const ps_kargs *a, bool split) {
    const uint64_t heads = a->layer->n_head, dv = a->layer->head_dim_v, most = PS_ATTN_PARTS_MAX;
    ps_attn_scratch s;
    s.out = (float *)(void *)(a->scratch + (uint64_t)a->n_threads * PS_ATTN_THREAD);
    if (!split) {
        s.stat = s.staged = s.out;
        return s;
    }
    const uint64_t parts = dv < 2 ? most / 2 : most;
    s.stat = s.out + a->n_tokens * heads * parts * dv;
    s.staged = s.stat + a->n_tokens * heads * parts * 2;
    return s;
}

#endif
