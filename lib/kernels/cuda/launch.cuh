/* What the files of CUDA kernels share: the launchers of each operation, and how they report. */
#ifndef PS_KERNELS_CUDA_LAUNCH_CUH
#define PS_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_kernels.h"

namespace psc {

/* CUDA's answer to a launch; cudaErrorNotSupported: a shape that the kernel does not do; cudaErrorSharedObjectInitFailed: it
 * needs cuBLAS. With a == NULL a launcher
 * loads its kernels and launches nothing. */
typedef cudaError_t (*launcher)(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_rmsnorm(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_rope(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_kv_store(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_attn_split(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_attn_flash(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_glu(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_add(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_convert(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_gather(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_moe_route(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_matvec(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_matmul(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_gemm(const ps_kargs *a, const ps_cuda_on *on);
/* launch_matmul with a tile of the caller's choice, 0 the largest: for tests and benchmarks, since all give the same bits.
 * cudaErrorNotSupported: the type or the GPU has not got it. */
enum { MATMUL_TILES = 4 };
cudaError_t launch_matmul_tile(const ps_kargs *a, const ps_cuda_on *on, uint32_t tile);
cudaError_t launch_moe(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t load_copy_rows();

/* Rows of an activation on the device. */
struct rows {
    uint8_t *data;
    uint64_t stride;
    uint32_t cols;
};
inline rows rows_of(const ps_xarg &x) {
    return {(uint8_t *)x.data, x.row_bytes, (uint32_t)x.cols};
}
__device__ __forceinline__ float *row_f32(const rows &x, uint64_t t) {
    return (float *)(x.data + t * x.stride);
}

inline cudaStream_t stream_of(const ps_cuda_on *on) {
    return (cudaStream_t)on->stream;
}
/* Loads a kernel's code into the context. */
template <class F> cudaError_t load(F *kernel) {
    cudaFuncAttributes attr;
    return cudaFuncGetAttributes(&attr, (const void *)kernel);
}

/* Quantise the 32 values that the lanes of a warp hold, group g of a Q8 row: lib/model/dtype.h. */
__device__ __forceinline__ void quantize_group(const rows &dst, uint64_t t, uint32_t g, float v) {
    const uint32_t lane = threadIdx.x & 31;
    float amax = fabsf(v);
#pragma unroll
    for (int o = 16; o; o >>= 1)
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, o));
    /* Two factors, so that neither 127 / amax nor v * 127 leaves the range of floats. */
    const float d = __fdiv_rn(amax, 127.0f);
    const int q = amax > 0 ? __float2int_rn(__fmul_rn(__fdiv_rn(v, amax), 127.0f)) : 0;
    int sum = q;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    uint8_t *row = dst.data + t * dst.stride;
    const uint64_t d_off = ((uint64_t)dst.cols + 63) & ~63ull;
    const uint64_t s_off = d_off + (((uint64_t)dst.cols / 32 * 4 + 63) & ~63ull);
    row[32 * (uint64_t)g + lane] = (uint8_t)(int8_t)q;
    if (lane == 0) {
        ((float *)(row + d_off))[g] = d;
        ((float *)(row + s_off))[g] = __fmul_rn(d, (float)sum);
    }
}

/* The same for four values per lane, elements [col, col + 4) of row t: 8 lanes make a group. All 8 take part. */
__device__ __forceinline__ void quantize_four(const rows &dst, uint64_t t, uint32_t col, float4 v) {
    const uint32_t lane = threadIdx.x & 31, mask = 0xffu << (lane & 24);
    float amax = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int o = 4; o; o >>= 1)
        amax = fmaxf(amax, __shfl_xor_sync(mask, amax, o));
    const float d = __fdiv_rn(amax, 127.0f);
    const float f[4] = {v.x, v.y, v.z, v.w};
    int sum = 0;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int q = amax > 0 ? __float2int_rn(__fmul_rn(__fdiv_rn(f[i], amax), 127.0f)) : 0;
        sum += q;
        word |= ((uint32_t)q & 255) << 8 * i;
    }
#pragma unroll
    for (int o = 4; o; o >>= 1)
        sum += __shfl_xor_sync(mask, sum, o);
    uint8_t *row = dst.data + t * dst.stride;
    const uint64_t d_off = ((uint64_t)dst.cols + 63) & ~63ull;
    const uint64_t s_off = d_off + (((uint64_t)dst.cols / 32 * 4 + 63) & ~63ull);
    *(uint32_t *)(row + col) = word;
    if ((lane & 7) == 0) {
        ((float *)(row + d_off))[col / 32] = d;
        ((float *)(row + s_off))[col / 32] = __fmul_rn(d, (float)sum);
    }
}

/* act(g) * u of the gated unit; exact functions: the fast ones miss the tolerance. */
__device__ __forceinline__ float glu_value(float g, float u, bool silu) {
    if (silu)
        return g / (1.0f + expf(-g)) * u;
    const float k = 0.7978845608028654f; /* sqrt(2 / pi) */
    return 0.5f * g * (1.0f + tanhf(k * (g + 0.044715f * g * g * g))) * u;
}

} // namespace psc
#endif
