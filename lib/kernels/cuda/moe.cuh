/* What the kernels of the mixture of experts share: a selection, which of its experts a call takes, and where their
 * matrices lie. */
#ifndef PS_KERNELS_CUDA_MOE_CUH
#define PS_KERNELS_CUDA_MOE_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/moe_rule.h"

namespace psc {

struct sel {
    int32_t expert;
    float weight;
};

/* The selection of a call, and the rule that says which of its experts the call takes (kernels/moe_rule.h). */
struct choice {
    rows selection;
    uint32_t used, n_tokens, n_experts, first, n; /* range: experts [first, first + n) */
    ps_moe_part part;
    uint32_t max_direct;
    const uint32_t *resident; /* device-readable; NULL: none */
};
inline choice choice_of(const ps_kargs *a) {
    return {rows_of(a->src[1]), (uint32_t)a->src[1].cols, a->n_tokens, (uint32_t)a->w[0].experts,
            (uint32_t)a->row0,  (uint32_t)a->n_rows,      a->part,     a->max_direct,
            a->resident};
}
__device__ __forceinline__ const sel *selection_row(const choice &c, uint32_t t) {
    return (const sel *)(c.selection.data + t * c.selection.stride);
}

/* Exclusive sum over the lanes of a warp. */
__device__ __forceinline__ uint32_t warp_before(uint32_t v) {
    const uint32_t lane = threadIdx.x & 31;
    uint32_t sum = v;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const uint32_t x = __shfl_up_sync(0xffffffffu, sum, o);
        sum += lane >= (uint32_t)o ? x : 0;
    }
    return sum - v;
}

/* Word `lane` of the set of a part's experts, out of that word of the set `selected`; all lanes take part. */
__device__ __forceinline__ uint32_t part_word(const choice &c, uint32_t selected) {
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t there = c.resident && 32 * lane < c.n_experts ? selected & c.resident[lane] : 0,
                   rest = selected & ~there;
    const uint32_t before = warp_before((uint32_t)__popc(rest));
    const uint32_t first = ps_moe_lowest(rest, before < c.max_direct ? c.max_direct - before : 0);
    const uint32_t near = there | first;
    return (c.part == PS_MOE_PART_ALL    ? selected
            : c.part == PS_MOE_PART_NEAR ? near
                                         : selected & ~near) &
           ps_moe_range_word(c.first, c.n, lane);
}

/* Word `lane` of the set of experts that the call takes (where all parts are taken: of those that it would take if they
 * are selected), by one warp. words: shared, 32 of this warp. For selections of few rows: every warp reads all of it. */
__device__ __forceinline__ uint32_t taken_word(const choice &c, uint32_t *words) {
    const uint32_t lane = threadIdx.x & 31, pairs = c.n_tokens * c.used;
    if (c.part == PS_MOE_PART_ALL)
        return ps_moe_range_word(c.first, c.n, lane);
    words[lane] = 0;
    __syncwarp();
    for (uint32_t p = lane; p < pairs; p += 32) {
        const int32_t e = selection_row(c, p / c.used)[p % c.used].expert;
        if (e >= 0 && (uint32_t)e < c.n_experts)
            atomicOr(words + e / 32, 1u << e % 32);
    }
    __syncwarp();
    return part_word(c, words[lane]);
}
/* Whether the expert is in the set whose words the lanes hold; all lanes take part, each may ask for another. */
__device__ __forceinline__ bool takes(const choice &c, uint32_t word, int32_t expert) {
    const uint32_t w = __shfl_sync(0xffffffffu, word, expert >= 0 ? expert / 32 & 31 : 0);
    return expert >= 0 && (uint32_t)expert < c.n_experts && (w >> expert % 32 & 1);
}

/* Where one matrix of the experts lies: one behind the other from expert 0, or at the addresses of a table. */
struct experts {
    const uint8_t *base;
    const uint8_t *const *table;
    uint64_t bytes, stride; /* of one expert's matrix, of one row */
};
inline experts experts_of(const ps_kargs *a, int i) {
    const ps_warg &w = a->w[i];
    return {w.data, a->experts[i], w.rows * w.row_bytes, w.row_bytes};
}
__device__ __forceinline__ const uint8_t *expert_at(const experts &x, int32_t e) {
    return x.table ? x.table[e] : x.base + (uint64_t)e * x.bytes;
}

} // namespace psc
#endif
