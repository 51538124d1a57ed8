/* Choosing tokens from logits: the largest one, and the k largest ones in order. */
#include <math.h>

#include "kernels/cuda/launch.cuh"

namespace psc {
namespace {

enum { THREADS = 1024, BINS = 2048 };

/* A logit as an integer that sorts the same way; NaN counts as -infinity, -0 as 0. Never 0. */
__device__ __forceinline__ uint32_t rank_of(float v) {
    const uint32_t b = __float_as_uint(isnan(v) ? -INFINITY : v + 0.0f);
    return b >> 31 ? ~b : b | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t rank) {
    return __uint_as_float(rank >> 31 ? rank & 0x7fffffffu : ~rank);
}
/* Larger is earlier: a larger logit, or the same and a lower id. */
__device__ __forceinline__ unsigned long long key_of(float v, uint32_t id) {
    return (unsigned long long)rank_of(v) << 32 | (0xffffffffu - id);
}
__device__ __forceinline__ unsigned long long warp_max_key(unsigned long long k) {
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        const unsigned long long other = __shfl_xor_sync(0xffffffffu, k, o);
        k = other > k ? other : k;
    }
    return k;
}

/* Block t. Four loads of 16 bytes are on their way at a time. */
__global__ void __launch_bounds__(THREADS) argmax(rows x, rows y) {
    __shared__ unsigned long long shared[32];
    const uint32_t t = blockIdx.x, lane = threadIdx.x & 31;
    const float *row = row_f32(x, t);
    const uint32_t n4 = (uintptr_t)row % 16 == 0 ? x.cols / 4 : 0;
    /* Ids ascend, so of equal logits the first stays; nothing is above -infinity, so a thread may end without any: token 0,
     * which is the answer where all do. */
    float top = -INFINITY;
    uint32_t top_id = 0;
    for (uint32_t i0 = threadIdx.x; i0 < n4; i0 += 4 * THREADS) {
        float4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = i0 + k * THREADS < n4 ? ((const float4 *)row)[i0 + k * THREADS]
                                         : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float f[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                if (f[j] > top)
                    top = f[j], top_id = 4 * (i0 + k * THREADS) + j;
        }
    }
    for (uint32_t i = 4 * n4 + threadIdx.x; i < x.cols; i += THREADS)
        if (row[i] > top)
            top = row[i], top_id = i;
    unsigned long long best = key_of(top, top_id);
    best = warp_max_key(best);
    if (lane == 0)
        shared[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x < 32) {
        best = warp_max_key(shared[lane]);
        if (lane == 0)
            *(int32_t *)(y.data + t * y.stride) = (int32_t)(0xffffffffu - (uint32_t)best);
    }
}

/* Block t: the k-th largest rank digit by digit (11, 11 and 10 bits), then all above it, and of those equal to it the
 * lowest ids; these sorted. */
__global__ void __launch_bounds__(THREADS) topk(rows x, uint32_t k, ps_cuda_top *out) {
    __shared__ uint32_t bins[BINS];
    __shared__ uint32_t chosen, above, n_taken, n_equal;
    __shared__ unsigned long long keys[PS_CUDA_TOPK];
    const uint32_t t = blockIdx.x, lane = threadIdx.x & 31, n = x.cols;
    const float *row = row_f32(x, t);
    uint32_t prefix = 0, left = k; /* digits found so far; how many are wanted among those that share them */
    for (int shift = 21; shift >= 0; shift = shift ? (shift == 21 ? 10 : 0) : -1) {
        const uint32_t width = shift == 0 ? 10 : 11;
        for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
            bins[i] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            const uint32_t r = rank_of(row[i]);
            if (shift == 21 || r >> (shift + width) == prefix)
                atomicAdd(&bins[r >> shift & ((1u << width) - 1)], 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32) { /* from the highest bin down, 32 at a time */
            uint32_t before = 0;
            for (int top = (1 << width) - 32; top >= 0; top -= 32) {
                const uint32_t bin = (uint32_t)top + 31 - lane, c = bins[bin];
                uint32_t sum = c;
#pragma unroll
                for (int o = 1; o < 32; o *= 2) {
                    const uint32_t v = __shfl_up_sync(0xffffffffu, sum, o);
                    sum += lane >= (uint32_t)o ? v : 0;
                }
                const uint32_t hit = __ballot_sync(0xffffffffu, before + sum >= left);
                if (hit) {
                    if ((int)lane == __ffs((int)hit) - 1)
                        chosen = bin, above = before + sum - c;
                    break;
                }
                before += __shfl_sync(0xffffffffu, sum, 31);
            }
        }
        __syncthreads();
        prefix = prefix << width | chosen;
        left -= above;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        n_taken = 0, n_equal = 0;
    for (uint32_t i = threadIdx.x; i < PS_CUDA_TOPK; i += THREADS)
        keys[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) { /* in any order: they are sorted */
        const uint32_t r = rank_of(row[i]);
        if (r > prefix)
            keys[atomicAdd(&n_taken, 1u)] = key_of(row[i], i);
        if (r == prefix) {
            const uint32_t i_equal = atomicAdd(&n_equal, 1u);
            if (i_equal < left)
                keys[k - left + i_equal] = key_of(row[i], i);
        }
    }
    __syncthreads();
    /* More equal ones than are wanted: the first `left` of them, found by a warp that goes through the row in order. */
    if (n_equal > left && threadIdx.x < 32) {
        uint32_t at = 0;
        for (uint32_t i0 = 0; at < left; i0 += 32) {
            const uint32_t i = i0 + lane;
            const bool here = i < n && rank_of(row[i]) == prefix;
            const uint32_t all = __ballot_sync(0xffffffffu, here),
                           mine = at + (uint32_t)__popc(all & ((1u << lane) - 1));
            if (here && mine < left)
                keys[k - left + mine] = key_of(row[i], i);
            at += (uint32_t)__popc(all);
        }
    }
    __syncthreads();
    /* Bitonic sort, descending. */
    for (uint32_t size = 2; size <= PS_CUDA_TOPK; size *= 2)
        for (uint32_t step = size / 2; step > 0; step /= 2) {
            const uint32_t i = threadIdx.x, j = i ^ step;
            if (i < PS_CUDA_TOPK && j > i) {
                const unsigned long long a = keys[i], b = keys[j];
                if (((i & size) == 0) == (a < b))
                    keys[i] = b, keys[j] = a;
            }
            __syncthreads();
        }
    for (uint32_t i = threadIdx.x; i < k; i += THREADS)
        out[(uint64_t)t * k + i] = {(int32_t)(0xffffffffu - (uint32_t)keys[i]),
                                    logit_of((uint32_t)(keys[i] >> 32))};
}

} // namespace

cudaError_t launch_argmax(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a)
        return load(argmax);
    if (a->src[0].cols == 0 || a->src[0].cols > INT32_MAX)
        return cudaErrorNotSupported;
    if (a->n_tokens)
        PS_LAUNCH(argmax, a->n_tokens, THREADS, 0, stream_of(on))(rows_of(a->src[0]), rows_of(a->dst));
    return cudaGetLastError();
}
cudaError_t load_topk() {
    return load(topk);
}

} // namespace psc

extern "C" ps_status ps_cuda_topk(const ps_xarg *logits, uint32_t n_rows, uint32_t k, ps_cuda_top *out,
                                  void *stream, ps_error *err) {
    if (logits->fmt != PS_FMT_F32 || k == 0 || k > PS_CUDA_TOPK || k > logits->cols ||
        logits->cols > INT32_MAX)
        return ps_error_set(err, PS_E_UNSUPPORTED, "topk", "%u of %llu logits cannot be chosen", k,
                            (unsigned long long)logits->cols);
    if (n_rows)
        PS_LAUNCH(psc::topk, n_rows, psc::THREADS, 0, (cudaStream_t)stream)(psc::rows_of(*logits), k, out);
    const cudaError_t e = cudaGetLastError();
    if (e == cudaSuccess)
        return PS_OK;
    const ps_status s =
        ps_error_set(err, PS_E_OS, "topk", "%s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
    if (err)
        err->sys_code = (int)e;
    return s;
}
