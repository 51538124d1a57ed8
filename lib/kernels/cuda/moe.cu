/* MOE_ROUTE and MOE_DISPATCH for up to 8 token rows. The experts' matrices are found through one address each, so
 * that experts in VRAM and experts that are read directly from host memory are one launch.
 *
 *   hidden   block row of a (token, slot) pair: act(gate x) * up x, as floats; nothing for another part's expert
 *   convert  those rows to Q8 where the products take it
 *   down     weighted sum over a token's experts, in ascending order of expert
 */
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/launch.cuh"

namespace psc {
namespace {

enum { DOWN_WARPS = 8, DOWN_ROWS = 2 };

struct sel {
    int32_t expert;
    float weight;
};

/* Where the matrices of the experts lie: one behind the other, or at the addresses of a table. */
struct experts {
    const uint8_t *base;
    const uint8_t *const *table;
    uint64_t bytes, stride; /* of one matrix, of one row */
    uint32_t first, n;      /* those of this part */
};
__device__ __forceinline__ const uint8_t *expert_at(const experts &x, int32_t e) {
    if (e < (int32_t)x.first || e >= (int32_t)(x.first + x.n))
        return nullptr;
    return x.table ? x.table[e] : x.base + (uint64_t)e * x.bytes;
}

struct hidden_args {
    experts gate, up;
    rows x, selection, y; /* y: a row per pair */
    uint32_t cols, ff, used;
    bool silu;
};

/* Two hidden columns per warp. */
template <class W> __global__ void __launch_bounds__(64) hidden_q(hidden_args a) {
    __shared__ __align__(16) uint8_t slots[2][4 * slot<W>::BYTES];
    const uint32_t warp = threadIdx.x / 32, first = (blockIdx.x * 2 + warp) * 2, pair = blockIdx.y;
    const uint32_t t = pair / a.used;
    const sel s = ((const sel *)(a.selection.data + t * a.selection.stride))[pair % a.used];
    const uint8_t *g = expert_at(a.gate, s.expert), *u = expert_at(a.up, s.expert);
    if (!g || first >= a.ff)
        return;
    const uint32_t second = min(first + 1, a.ff - 1);
    const uint8_t *const row[4] = {g + first * a.gate.stride, u + first * a.up.stride,
                                   g + second * a.gate.stride, u + second * a.up.stride};
    const uint8_t *const end[4] = {g + a.gate.bytes, u + a.up.bytes, g + a.gate.bytes, u + a.up.bytes};
    const q8_row x[1] = {q8_at(a.x.data + t * a.x.stride, a.cols)};
    float acc[4][1] = {};
    dot_rows<W, 4, 1>(row, end, a.cols, x, slots[warp], acc);
#pragma unroll
    for (int i = 0; i < 4; i++)
        acc[i][0] = warp_sum(acc[i][0]);
    if ((threadIdx.x & 31) == 0) {
        row_f32(a.y, pair)[first] = glu_value(acc[0][0], acc[1][0], a.silu);
        if (first + 1 < a.ff)
            row_f32(a.y, pair)[first + 1] = glu_value(acc[2][0], acc[3][0], a.silu);
    }
}

template <class W> __global__ void __launch_bounds__(128) hidden_f(hidden_args a) {
    const uint32_t col = blockIdx.x * 4 + threadIdx.x / 32, pair = blockIdx.y, t = pair / a.used;
    const sel s = ((const sel *)(a.selection.data + t * a.selection.stride))[pair % a.used];
    const uint8_t *g = expert_at(a.gate, s.expert), *u = expert_at(a.up, s.expert);
    if (!g || col >= a.ff)
        return;
    const uint8_t *const row[2] = {g + col * a.gate.stride, u + col * a.up.stride};
    const float *const x[1] = {row_f32(a.x, t)};
    float acc[2][1] = {};
    dot_rows_f<W, 2, 1, 4>(row, a.cols, x, acc);
    acc[0][0] = warp_sum(acc[0][0]);
    acc[1][0] = warp_sum(acc[1][0]);
    if ((threadIdx.x & 31) == 0)
        row_f32(a.y, pair)[col] = glu_value(acc[0][0], acc[1][0], a.silu);
}

__global__ void __launch_bounds__(32) hidden_convert(hidden_args a, rows to) {
    const uint32_t pair = blockIdx.y, t = pair / a.used, g = blockIdx.x;
    const sel s = ((const sel *)(a.selection.data + t * a.selection.stride))[pair % a.used];
    if (!expert_at(a.gate, s.expert))
        return;
    quantize_group(to, pair, g, row_f32(a.y, pair)[32 * g + threadIdx.x]);
}

struct down_args {
    experts down;
    rows h, selection, residual, y;
    uint32_t ff, out, used;
};

/* The token's pairs of this part in ascending order of expert: slots and weights, every lane the same. Returns how
 * many. order: shared, of this warp. */
__device__ __forceinline__ uint32_t sort_pairs(const down_args &a, uint32_t t, sel *order,
                                               uint32_t *slots_of) {
    const uint32_t lane = threadIdx.x & 31;
    sel mine = {-1, 0};
    if (lane < a.used)
        mine = ((const sel *)(a.selection.data + t * a.selection.stride))[lane];
    const bool here = lane < a.used && expert_at(a.down, mine.expert) != nullptr;
    uint32_t rank = 0;
    for (uint32_t k = 0; k < a.used; k++) {
        const int32_t e = __shfl_sync(0xffffffffu, mine.expert, (int)k);
        const bool there = __shfl_sync(0xffffffffu, (int)here, (int)k);
        rank += there && (e < mine.expert || (e == mine.expert && k < lane));
    }
    if (here)
        order[rank] = mine, slots_of[rank] = lane;
    __syncwarp();
    return __popc(__ballot_sync(0xffffffffu, here));
}

__device__ __forceinline__ void down_finish(const down_args &a, float (&acc)[DOWN_ROWS], uint32_t first,
                                            uint32_t t) {
    __shared__ float sums[DOWN_WARPS][DOWN_ROWS];
    const uint32_t warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < DOWN_ROWS; r++) {
        acc[r] = warp_sum(acc[r]);
        if ((threadIdx.x & 31) == 0)
            sums[warp][r] = acc[r];
    }
    __syncthreads();
    const uint32_t r = threadIdx.x, row = first + r;
    if (r >= DOWN_ROWS || row >= a.out)
        return;
    float v = 0;
#pragma unroll
    for (int w = 0; w < DOWN_WARPS; w++)
        v += sums[w][r];
    row_f32(a.y, t)[row] = v + (a.residual.data ? row_f32(a.residual, t)[row] : 0.0f);
}

/* A block makes DOWN_ROWS output rows of a token; its warps share the experts, and are added up in order. */
template <class W> __global__ void __launch_bounds__(32 * DOWN_WARPS) down_q(down_args a) {
    constexpr int R = DOWN_ROWS;
    __shared__ __align__(16) uint8_t slots[DOWN_WARPS][R * slot<W>::BYTES];
    __shared__ sel order[DOWN_WARPS][32];
    __shared__ uint32_t slot_of[DOWN_WARPS][32];
    const uint32_t warp = threadIdx.x / 32, first = blockIdx.x * R, t = blockIdx.y;
    const uint32_t n = sort_pairs(a, t, order[warp], slot_of[warp]);
    float acc[R] = {};
    for (uint32_t k = warp; k < n; k += DOWN_WARPS) {
        const uint8_t *w = expert_at(a.down, order[warp][k].expert);
        const uint8_t *row[R], *end[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            row[r] = w + min(first + (uint32_t)r, a.out - 1) * a.down.stride, end[r] = w + a.down.bytes;
        const q8_row x[1] = {q8_at(a.h.data + (t * a.used + slot_of[warp][k]) * a.h.stride, a.ff)};
        float part[R][1] = {};
        dot_rows<W, R, 1>(row, end, a.ff, x, slots[warp], part);
#pragma unroll
        for (int r = 0; r < R; r++)
            acc[r] = fmaf(order[warp][k].weight, part[r][0], acc[r]);
    }
    down_finish(a, acc, first, t);
}

template <class W> __global__ void __launch_bounds__(32 * DOWN_WARPS) down_f(down_args a) {
    constexpr int R = DOWN_ROWS;
    __shared__ sel order[DOWN_WARPS][32];
    __shared__ uint32_t slot_of[DOWN_WARPS][32];
    const uint32_t warp = threadIdx.x / 32, first = blockIdx.x * R, t = blockIdx.y;
    const uint32_t n = sort_pairs(a, t, order[warp], slot_of[warp]);
    float acc[R] = {};
    for (uint32_t k = warp; k < n; k += DOWN_WARPS) {
        const uint8_t *w = expert_at(a.down, order[warp][k].expert), *row[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            row[r] = w + min(first + (uint32_t)r, a.out - 1) * a.down.stride;
        const float *const x[1] = {row_f32(a.h, t * a.used + slot_of[warp][k])};
        float part[R][1] = {};
        dot_rows_f<W, R, 1, 2>(row, a.ff, x, part);
#pragma unroll
        for (int r = 0; r < R; r++)
            acc[r] = fmaf(order[warp][k].weight, part[r][0], acc[r]);
    }
    down_finish(a, acc, first, t);
}

/* One warp per token: softmax over the experts, then the `used` largest, ties to the lower number. Positions taken
 * are marked in shared memory. */
__global__ void __launch_bounds__(32) route(rows x, rows y, bool norm_topk) {
    extern __shared__ float score[];
    const uint32_t t = blockIdx.x, lane = threadIdx.x, n = x.cols, used = y.cols;
    const float *row = row_f32(x, t);
    float best = -INFINITY;
    for (uint32_t e = lane; e < n; e += 32)
        best = fmaxf(best, score[e] = row[e]);
#pragma unroll
    for (int o = 16; o; o >>= 1)
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, o));
    float all = 0;
    for (uint32_t e = lane; e < n; e += 32)
        all += expf(score[e] - best);
    all = warp_sum(all);
    __syncwarp();
    sel *out = (sel *)(y.data + t * y.stride);
    float kept = 0;
    sel mine = {0, 0};
    for (uint32_t k = 0; k < used; k++) {
        float top = 0;
        int32_t at = -1;
        for (uint32_t e = lane; e < n; e += 32)
            if (!isnan(score[e]) && (at < 0 || score[e] > top))
                top = score[e], at = (int32_t)e;
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            const float v = __shfl_xor_sync(0xffffffffu, top, o);
            const int32_t e = __shfl_xor_sync(0xffffffffu, at, o);
            if (e >= 0 && (at < 0 || v > top || (v == top && e < at)))
                top = v, at = e;
        }
        const float w = at >= 0 ? expf(top - best) / all : 0;
        kept += w;
        if (lane == k)
            mine = {at, w};
        if (at >= 0 && ((uint32_t)at & 31) == lane)
            score[at] = NAN;
        __syncwarp();
    }
    if (lane < used) {
        if (norm_topk)
            mine.weight /= kept;
        out[lane] = mine;
    }
}

struct family {
    ps_dtype type;
    bool q8;
    void (*hidden)(hidden_args);
    void (*down)(down_args);
};
#define Q_FAMILY(id, W)                                                                                      \
    { PS_DTYPE_##id, true, hidden_q<W>, down_q<W> }
#define F_FAMILY(id, W)                                                                                      \
    { PS_DTYPE_##id, false, hidden_f<W>, down_f<W> }
const family families[] = {
    F_FAMILY(F32, type_f32),   F_FAMILY(F16, type_f16),   F_FAMILY(BF16, type_bf16),
    Q_FAMILY(Q4_0, type_q4_0), Q_FAMILY(Q4_1, type_q4_1), Q_FAMILY(Q5_0, type_q5_0),
    Q_FAMILY(Q5_1, type_q5_1), Q_FAMILY(Q8_0, type_q8_0), Q_FAMILY(Q4_K, type_q4_k),
    Q_FAMILY(Q5_K, type_q5_k), Q_FAMILY(Q6_K, type_q6_k),
};
const family *family_of(ps_dtype type) {
    for (const family &f : families)
        if (f.type == type)
            return &f;
    return nullptr;
}

experts experts_of(const ps_kargs *a, int i, const uint8_t *const *table) {
    const ps_warg &w = a->w[i];
    return {w.data, table, w.rows * w.row_bytes, w.row_bytes, (uint32_t)a->row0, (uint32_t)a->n_rows};
}

} // namespace

cudaError_t launch_moe_route(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a)
        return load(route);
    if (a->dst.cols > PS_CUDA_MAX_USED || a->src[0].cols > 4096)
        return cudaErrorNotSupported;
    if (a->n_tokens)
        route<<<a->n_tokens, 32, a->src[0].cols * sizeof(float), stream_of(on)>>>(
            rows_of(a->src[0]), rows_of(a->dst), a->model->moe_norm_topk);
    return cudaGetLastError();
}

cudaError_t launch_moe(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a) {
        for (const family &f : families) {
            if (cudaError_t e = load(f.hidden))
                return e;
            if (cudaError_t e = load(f.down))
                return e;
        }
        return load(hidden_convert);
    }
    if (a->n_tokens == 0)
        return cudaSuccess;
    const family *in = family_of(a->w[0].type), *out = family_of(a->w[2].type);
    const uint32_t used = (uint32_t)a->src[1].cols, ff = (uint32_t)a->w[0].rows, pairs = a->n_tokens * used;
    const bool q8 = in && in->q8;
    if (!in || !out || a->w[1].type != a->w[0].type || used > PS_CUDA_MAX_USED || out->q8 != q8 ||
        (a->src[0].fmt == PS_FMT_Q8) != q8 || (q8 && ff % 32) || a->n_tokens > PS_CUDA_MATVEC_TOKENS)
        return cudaErrorNotSupported;
    const ps_xarg h = {a->scratch, PS_FMT_F32, ff, ps_fmt_row_bytes(PS_FMT_F32, ff)};
    const hidden_args ha = {experts_of(a, 0, a->experts[0]),
                            experts_of(a, 1, a->experts[1]),
                            rows_of(a->src[0]),
                            rows_of(a->src[1]),
                            rows_of(h),
                            (uint32_t)a->w[0].cols,
                            ff,
                            used,
                            a->model->glu == PS_GLU_SILU};
    const uint32_t per_block = 4; /* hidden columns: two warps of two, or four of one */
    in->hidden<<<dim3((ff + per_block - 1) / per_block, pairs), q8 ? 64 : 128, 0, stream_of(on)>>>(ha);
    ps_xarg hq = h;
    if (q8) {
        hq = {(uint8_t *)h.data + pairs * h.row_bytes, PS_FMT_Q8, ff, ps_fmt_row_bytes(PS_FMT_Q8, ff)};
        hidden_convert<<<dim3(ff / 32, pairs), 32, 0, stream_of(on)>>>(ha, rows_of(hq));
    }
    const down_args da = {
        experts_of(a, 2, a->experts[2]), rows_of(hq), rows_of(a->src[1]), rows_of(a->src[2]), rows_of(a->dst), ff,
        (uint32_t)a->w[2].rows,     used};
    out->down<<<dim3((da.out + DOWN_ROWS - 1) / DOWN_ROWS, a->n_tokens), 32 * DOWN_WARPS, 0, stream_of(on)>>>(
        da);
    return cudaGetLastError();
}

} // namespace psc
