/* What the files of CUDA kernels share: the launchers of each operation, and how they report. */
#ifndef PS_KERNELS_CUDA_LAUNCH_CUH
#define PS_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/ptx.cuh"

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
/* launch_matmul with a tile of the caller's choice (matmul.cuh's order): for tests and benchmarks, since all give the same bits.
 * cudaErrorNotSupported: the type or the GPU has not got it. */
enum { MATMUL_TILES = 6 };
cudaError_t launch_matmul_tile(const ps_kargs *a, const ps_cuda_on *on, uint32_t tile);
cudaError_t launch_moe(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_moe_many(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t launch_argmax(const ps_kargs *a, const ps_cuda_on *on);
cudaError_t load_topk();
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

/* Whether a kernel may start before the one before it has ended: it was compiled with the instructions for it (wait_dependencies). */
template <class F> cudaError_t may_be_early(F *kernel, bool *out) {
    cudaFuncAttributes attr;
    const cudaError_t e = cudaFuncGetAttributes(&attr, (const void *)kernel);
    *out = e == cudaSuccess && attr.ptxVersion >= 90 && attr.binaryVersion >= 90;
    return e;
}
template <class... PARAMS, class... ARGS>
cudaError_t launch_early(void (*kernel)(PARAMS...), dim3 grid, uint32_t threads, size_t bytes, bool early,
                         cudaStream_t stream, ARGS... args) {
#ifdef PS_CUDA_ON_HOST
    (void)early;
    PS_LAUNCH(kernel, grid, threads, bytes, stream)(args...);
    return cudaGetLastError();
#else
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes, config.stream = stream;
    config.attrs = &attribute, config.numAttrs = early ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
#endif
}

/* Sum and maximum over a warp in a fixed tree; every lane gets them. */
__device__ __forceinline__ float all_lanes_sum(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
__device__ __forceinline__ float all_lanes_max(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}
/* The same over a block; shared: 32 floats. */
__device__ __forceinline__ float block_sum(float v, float *shared) {
    const uint32_t lane = threadIdx.x & 31;
    v = all_lanes_sum(v);
    if (lane == 0)
        shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = all_lanes_sum(lane < blockDim.x / 32 ? shared[lane] : 0.0f);
    __syncthreads();
    return v;
}
__device__ __forceinline__ float block_max(float v, float *shared) {
    const uint32_t lane = threadIdx.x & 31;
    v = all_lanes_max(v);
    if (lane == 0)
        shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = all_lanes_max(lane < blockDim.x / 32 ? shared[lane] : -INFINITY);
    __syncthreads();
    return v;
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

/* The same for four values per lane, elements [col, col + 4) of row t: 8 lanes make a group. All lanes of the
 * warp take part; those that are not `here` store nothing. */
__device__ __forceinline__ void quantize_four(const rows &dst, uint64_t t, uint32_t col, float4 v,
                                              bool here) {
    const uint32_t lane = threadIdx.x & 31, mask = 0xffffffffu;
    float amax = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int o = 4; o; o >>= 1)
        amax = fmaxf(amax, __shfl_xor_sync(mask, amax, o));
    const float d = __fdiv_rn(amax, 127.0f);
    /* Where amax is small or large, in two factors, as above. */
    const bool plain = amax > 1e-30f && amax < 1e30f;
    const float inv = plain ? __fdiv_rn(127.0f, amax) : 0;
    const float f[4] = {v.x, v.y, v.z, v.w};
    int sum = 0;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int q = __float2int_rn(__fmul_rn(f[i], inv));
        if (!plain)
            q = amax > 0 ? __float2int_rn(__fmul_rn(__fdiv_rn(f[i], amax), 127.0f)) : 0;
        sum += q;
        word |= ((uint32_t)q & 255) << 8 * i;
    }
#pragma unroll
    for (int o = 4; o; o >>= 1)
        sum += __shfl_xor_sync(mask, sum, o);
    if (!here)
        return;
    uint8_t *row = dst.data + t * dst.stride;
    const uint64_t d_off = ((uint64_t)dst.cols + 63) & ~63ull;
    const uint64_t s_off = d_off + (((uint64_t)dst.cols / 32 * 4 + 63) & ~63ull);
    *(uint32_t *)(row + col) = word;
    if ((lane & 7) == 0) {
        ((float *)(row + d_off))[col / 32] = d;
        ((float *)(row + s_off))[col / 32] = __fmul_rn(d, (float)sum);
    }
}

/* The scale of an F16S row whose largest finite magnitude is amax (lib/model/dtype.h): a power of two. */
__device__ __forceinline__ float f16s_scale(float amax) {
    if (!(amax > 32768.0f))
        return 1;
    int e;
    const float m = frexpf(amax, &e); /* amax = m 2^e, m in [1/2, 1) */
    return ldexpf(1.0f, m == 0.5f ? e - 16 : e - 15);
}
/* |v|, or 0 where it is no finite number: that has no part in the scale. */
__device__ __forceinline__ float finite_abs(float v) {
    const float x = fabsf(v);
    return x <= 3.402823466e38f ? x : 0.0f;
}
__device__ __forceinline__ uint32_t two_halfs(float a, float b) {
    return (uint32_t)__half_as_ushort(__float2half_rn(a)) | (uint32_t)__half_as_ushort(__float2half_rn(b))
                                                                << 16;
}
__device__ __forceinline__ void store_scale(const rows &y, uint64_t t, float scale) {
    *(float *)(y.data + t * y.stride + ((2 * (uint64_t)y.cols + 63) & ~63ull)) = scale;
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
