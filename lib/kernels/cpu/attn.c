/* Attention: how many items there are and which is which; the generic level of the kernels. */
#include <assert.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/attn_body.h"

static uint64_t row_blocks(const ps_kargs *a, const ps_seq_span *sp) {
    const uint64_t rows = (uint64_t)sp->n_rows * (a->layer->n_head / a->layer->n_head_kv);
    const uint64_t per = ps_attn_rows(a->layer);
    return (rows + per - 1) / per;
}

static uint64_t span_items(const ps_kargs *a, const ps_seq_span *sp, bool split) {
    uint64_t parts = 1;
    if (split)
        ps_attn_part_len(a->layer, sp, &parts);
    return row_blocks(a, sp) * a->n_rows * parts;
}

static uint64_t items(const ps_kargs *a, uint32_t phase, bool split) {
    assert(a->layer->head_dim_k <= PS_MAX_HEAD_DIM && a->layer->head_dim_v <= PS_MAX_HEAD_DIM);
    uint64_t n = 0;
    for (uint32_t s = 0; s < a->n_spans; s++) {
        if (phase == 0)
            n += span_items(a, &a->spans[s], split);
        else
            n += a->spans[s].n_rows;
    }
    if (phase == 0 || ps_attn_staged(a))
        return n;
    return split ? n * a->n_rows : 0;
}

uint64_t ps_cpu_attn_split_items(const ps_kargs *a, uint32_t phase) {
    return items(a, phase, true);
}

uint64_t ps_cpu_attn_block_items(const ps_kargs *a, uint32_t phase) {
    return items(a, phase, false);
}

ps_attn_item ps_attn_item_at(const ps_kargs *a, uint64_t index, bool split) {
    const ps_layer *l = a->layer;
    const ps_seq_span *sp = a->spans;
    for (uint64_t n; index >= (n = span_items(a, sp, split)); sp++)
        index -= n;
    const uint64_t group = l->n_head / l->n_head_kv, per = ps_attn_rows(l), blocks = row_blocks(a, sp);
    uint64_t parts = 1, len = 0;
    if (split)
        len = ps_attn_part_len(l, sp, &parts);
    /* Heads of the same positions follow each other: their rows are neighbours in the cache. */
    ps_attn_item it = {.span = sp, .kv_head = a->row0 + index % a->n_rows};
    index /= a->n_rows;
    it.part = index % parts;
    it.r0 = (blocks - 1 - index / parts) * per;
    const uint64_t rows = sp->n_rows * group;
    it.n = rows - it.r0 < per ? rows - it.r0 : per;
    if (split) {
        const uint64_t end = (uint64_t)sp->pos0 + sp->n_rows;
        it.lo = ps_attn_first(l, sp->pos0) + it.part * len;
        it.hi = end - it.lo < len ? end : it.lo + len;
    } else {
        it.lo = ps_attn_first(l, sp->pos0 + it.r0 / group);
        it.hi = sp->pos0 + (it.r0 + it.n - 1) / group + 1;
    }
    return it;
}
