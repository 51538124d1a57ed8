/* MOE_ROUTE: softmax over the experts, then the largest of them, ties to the lower number. */
#include <math.h>

#include "kernels/cuda/moe.cuh"

namespace psc {
namespace {

enum { ROUTE_THREADS = 1024 };

/* Block t, a thread per expert (or several, 1024 apart). An expert's place in the selection is the number of experts
 * before it; NaN is before nobody and has no place. Shared memory: n floats, at a multiple of 4. */
__global__ void __launch_bounds__(ROUTE_THREADS) route(rows x, rows y, bool norm_topk) {
    PS_DYNAMIC_SHARED(16, float, score);
    __shared__ float shared[32];
    __shared__ sel best_of[PS_CUDA_MAX_USED];
    const uint32_t t = blockIdx.x, lane = threadIdx.x & 31, n = x.cols, used = y.cols, n4 = (n + 3) / 4;
    const float *row = row_f32(x, t);
    float best = -INFINITY;
    for (uint32_t e = threadIdx.x; e < 4 * n4; e += blockDim.x)
        best = fmaxf(best, score[e] = e < n ? row[e] : NAN);
    if (threadIdx.x < used)
        best_of[threadIdx.x] = {-1, 0};
    best = block_max(best, shared);
    float all = 0;
    for (uint32_t e = threadIdx.x; e < n; e += blockDim.x)
        all += expf(score[e] - best);
    all = block_sum(all, shared);
    for (uint32_t e = threadIdx.x; e < n; e += blockDim.x) {
        const float mine = score[e];
        uint32_t place = isnan(mine) ? used : 0;
        for (uint32_t i = 0; i < n4; i++) {
            const float4 v = ((const float4 *)score)[i];
            place += v.x > mine || (v.x == mine && 4 * i < e);
            place += v.y > mine || (v.y == mine && 4 * i + 1 < e);
            place += v.z > mine || (v.z == mine && 4 * i + 2 < e);
            place += v.w > mine || (v.w == mine && 4 * i + 3 < e);
        }
        if (place < used)
            best_of[place] = {(int32_t)e, expf(mine - best) / all};
    }
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    sel mine = lane < used ? best_of[lane] : sel{-1, 0};
    float kept = mine.weight;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        kept += __shfl_xor_sync(0xffffffffu, kept, o);
    if (lane < used) {
        if (norm_topk)
            mine.weight /= kept;
        ((sel *)(y.data + t * y.stride))[lane] = mine;
    }
}

} // namespace

cudaError_t launch_moe_route(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a)
        return load(route);
    const uint32_t n = (uint32_t)a->src[0].cols;
    if (a->dst.cols > PS_CUDA_MAX_USED || n > 4 * PS_MAX_EXPERTS || n < a->dst.cols)
        return cudaErrorNotSupported;
    const uint32_t threads = n >= ROUTE_THREADS ? ROUTE_THREADS : (n + 31) / 32 * 32;
    if (a->n_tokens)
        PS_LAUNCH(route, a->n_tokens, threads, (n + 3) / 4 * 4 * sizeof(float), stream_of(on))
    (rows_of(a->src[0]), rows_of(a->dst), a->model->moe_norm_topk);
    return cudaGetLastError();
}

} // namespace psc
