/* Which experts a MOE_DISPATCH takes: the one rule that both sides of a split mixture apply, so that each selected
 * expert belongs to exactly one part (model/ops.h). A pure function of the selection; compiles for host and device. */
#ifndef PS_KERNELS_MOE_RULE_H
#define PS_KERNELS_MOE_RULE_H

#include <stdint.h>
#include <string.h>

#include "kernels/kernel.h"

#ifdef __CUDACC__
#define PS_RULE_FN static inline __host__ __device__
#else
#define PS_RULE_FN static inline
#endif

enum { PS_MOE_WORDS = PS_MAX_EXPERTS / 32 }; /* of a set of experts: bit e % 32 of word e / 32 */

/* The lowest n bits that are set in x. */
PS_RULE_FN uint32_t ps_moe_lowest(uint32_t x, uint32_t n) {
    uint32_t rest = x;
    while (n-- > 0 && rest != 0)
        rest &= rest - 1;
    return x ^ rest;
}

/* What word w of a part's set is, out of word w of the set `selected` by the step. resident: NULL for none.
 * *direct: how many more experts the GPU reads from the host; starts as max_direct, words in ascending order. */
PS_RULE_FN uint32_t ps_moe_part_word(ps_moe_part part, uint32_t selected, const uint32_t *resident,
                                     uint32_t w, uint32_t *direct) {
    const uint32_t there = resident ? selected & resident[w] : 0;
    const uint32_t first = ps_moe_lowest(selected & ~there, *direct);
    for (uint32_t x = first; x != 0; x &= x - 1)
        --*direct;
    return part == PS_MOE_PART_ALL    ? selected
           : part == PS_MOE_PART_NEAR ? there | first
                                      : selected & ~(there | first);
}

/* Bits of word w that are in the range [row0, row0 + n_rows). */
PS_RULE_FN uint32_t ps_moe_range_word(uint64_t row0, uint64_t n_rows, uint32_t w) {
    const uint64_t lo = 32u * (uint64_t)w, end = row0 + n_rows;
    uint32_t x = 0xffffffffu;
    if (row0 >= lo + 32 || end <= lo)
        return 0;
    if (row0 > lo)
        x &= 0xffffffffu << (row0 - lo);
    if (end < lo + 32)
        x &= 0xffffffffu >> (lo + 32 - end);
    return x;
}

/* Experts that the call takes, PS_MOE_WORDS words: those that its selection (src[1], all rows) names, that are in its
 * part, and in its range. The rule looks at the whole selection; the range comes after. Ids below 0 and from
 * w[0].experts on select nothing. Host pointers. Pure; any thread. */
static inline void ps_moe_select(const ps_kargs *a, uint32_t *out_bits) {
    const uint64_t used = a->src[1].cols;
    const uint64_t most = PS_MAX_EXPERTS;
    const uint64_t n = a->w[0].experts < most ? a->w[0].experts : most;
    uint32_t direct = a->max_direct;
    memset(out_bits, 0, PS_MOE_WORDS * sizeof *out_bits);
    for (uint64_t t = 0; t < a->n_tokens; t++)
        for (uint64_t k = 0; k < used; k++) {
            int32_t e;
            memcpy(&e, (const uint8_t *)a->src[1].data + t * a->src[1].row_bytes + 8 * k, sizeof e);
            if (e >= 0 && (uint64_t)e < n)
                out_bits[e / 32] |= (uint32_t)1 << e % 32;
        }
    for (uint32_t w = 0; 32 * (uint64_t)w < n; w++)
        if (out_bits[w] != 0)
            out_bits[w] = ps_moe_part_word(a->part, out_bits[w], a->resident, w, &direct) &
                          ps_moe_range_word(a->row0, a->n_rows, w);
}
PS_RULE_FN bool ps_moe_takes(const uint32_t *bits, int64_t expert) {
    return expert >= 0 && expert < PS_MAX_EXPERTS && (bits[expert / 32] >> expert % 32 & 1) != 0;
}

/* Where the matrix of an expert starts. */
PS_RULE_FN const uint8_t *ps_moe_matrix(const ps_kargs *a, int i, uint64_t expert) {
    return a->experts[i] ? a->experts[i][expert] : a->w[i].data + expert * a->w[i].rows * a->w[i].row_bytes;
}

#endif
