/* MATMUL on tensor cores, for many token rows: which kernel a call takes, and the scales of rows of wide-ranged weights. */
#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/products.cuh"

namespace psc {
namespace {

/* The power of two that brings a row's largest weight to [2^14, 2^15): one warp per row. */
template <class T> __global__ void __launch_bounds__(256) row_scales(weight_rows w, float *out) {
    const uint32_t row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (row >= w.n_rows)
        return;
    const T *p = (const T *)(w.data + row * w.stride);
    uint32_t most = 0; /* bits of a float without sign are in its order */
    for (uint32_t c = lane; c < w.cols; c += 32)
        most = max(most, (sizeof(T) == 2 ? (uint32_t)p[c] << 16 : (uint32_t)p[c]) & 0x7fffffffu);
#pragma unroll
    for (int o = 16; o; o >>= 1)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, o));
    /* Exponent of 2: 14 less the largest's, within those of floats; no weights but zeros, or one that is no number: 1. */
    const int exponent =
        most == 0 || most >= 0x7f800000u ? 0 : min(127, 14 + 127 - max(1, (int)(most >> 23)));
    if (lane == 0)
        out[row] = __uint_as_float((uint32_t)(exponent + 127) << 23);
}

struct choice {
    ps_dtype type;
    const matmul_family *family, *unaligned; /* of aligned rows whose columns come in eights; of others */
    uint32_t align;                          /* of rows for the first */
};
const choice choices[] = {
    {PS_DTYPE_F32, &matmul_f32, NULL, 4},    {PS_DTYPE_F16, &matmul_f16, &matmul_f16_any, 16},
    {PS_DTYPE_BF16, &matmul_bf16, NULL, 2},  {PS_DTYPE_Q4_0, &matmul_q4_0, NULL, 2},
    {PS_DTYPE_Q4_1, &matmul_q4_1, NULL, 4},  {PS_DTYPE_Q5_0, &matmul_q5_0, NULL, 2},
    {PS_DTYPE_Q5_1, &matmul_q5_1, NULL, 4},  {PS_DTYPE_Q8_0, &matmul_q8_0, NULL, 2},
    {PS_DTYPE_Q4_K, &matmul_q4_k, NULL, 16}, {PS_DTYPE_Q5_K, &matmul_q5_k, NULL, 16},
    {PS_DTYPE_Q6_K, &matmul_q6_k, NULL, 2},
};

cudaError_t load_family(const matmul_family *f) {
    if (!f)
        return cudaSuccess;
    for (const matmul_kernel &k : f->tile)
        if (k.fn)
            if (cudaError_t e = load(k.fn))
                return e;
    return cudaSuccess;
}

/* The tile that the GPU is through with first: blocks that the busiest multiprocessor has, times what a block takes. With
 * `only` below MATMUL_TILES: that one. */
cudaError_t best_tile(const matmul_family &f, uint32_t n_tokens, uint32_t n_rows, uint32_t only,
                      const matmul_kernel **out) {
    int device = 0, n_sm = 0, shared_max = 0;
    cudaError_t e = cudaGetDevice(&device);
    e = e ? e : cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device);
    e = e ? e : cudaDeviceGetAttribute(&shared_max, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (e)
        return e;
    *out = NULL;
    double least = 0;
    for (const matmul_kernel &k : f.tile) {
        if (!k.fn || k.shared_bytes > (uint32_t)shared_max || (only < MATMUL_TILES && &k != f.tile + only))
            continue;
        const uint64_t blocks =
            (uint64_t)((n_tokens + k.tokens - 1) / k.tokens) * ((n_rows + k.rows - 1) / k.rows);
        const uint64_t per_sm = (blocks + (uint64_t)n_sm - 1) / (uint64_t)n_sm;
        /* Four warps alone on a multiprocessor leave gaps that those of a second block would fill. */
        const double rate = (double)k.rate * (per_sm == 1 && k.threads < 256 && k.tokens > 32 ? 0.7 : 1.0);
        const double time = (double)per_sm * k.tokens * k.rows / rate;
        if (!*out || time < least)
            *out = &k, least = time;
    }
    if (!*out)
        return cudaErrorNotSupported;
    return cudaFuncSetAttribute((const void *)(*out)->fn, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)(*out)->shared_bytes);
}

} // namespace

cudaError_t launch_matmul(const ps_kargs *a, const ps_cuda_on *on) {
    return launch_matmul_tile(a, on, MATMUL_TILES);
}

cudaError_t launch_matmul_tile(const ps_kargs *a, const ps_cuda_on *on, uint32_t tile) {
    if (!a) {
        for (const choice &c : choices) {
            cudaError_t e = load_family(c.family);
            e = e ? e : load_family(c.unaligned);
            if (e)
                return e;
        }
        const cudaError_t e = load(row_scales<uint16_t>);
        return e ? e : load(row_scales<uint32_t>);
    }
    if (a->n_tokens == 0 || a->n_rows == 0)
        return cudaSuccess;
    product p;
    if (!product_of(a, &p))
        return cudaErrorNotSupported;
    for (const choice &c : choices) {
        if (c.type != a->w[0].type)
            continue;
        const matmul_family *f = c.family;
        if ((uintptr_t)p.w.data % c.align || p.w.stride % c.align || (c.unaligned && p.w.cols % 8)) {
            if (!c.unaligned || (uintptr_t)p.w.data % 2 || p.w.stride % 2)
                return cudaErrorNotSupported;
            f = c.unaligned;
        }
        const matmul_kernel *k = NULL;
        if (cudaError_t e = best_tile(*f, a->n_tokens, p.w.n_rows, tile, &k))
            return e;
        float *w_scale = NULL;
        if (c.type == PS_DTYPE_BF16 || c.type == PS_DTYPE_F32) {
            w_scale = (float *)a->scratch;
            const uint32_t blocks = (p.w.n_rows + 7) / 8;
            if (c.type == PS_DTYPE_BF16)
                PS_LAUNCH(row_scales<uint16_t>, blocks, 256, 0, stream_of(on))(p.w, w_scale);
            else
                PS_LAUNCH(row_scales<uint32_t>, blocks, 256, 0, stream_of(on))(p.w, w_scale);
            if (cudaError_t e = cudaGetLastError())
                return e;
        }
        const matmul_args args = {p.w,         w_scale,           p.x,        p.x_stride, p.x_scale,
                                  a->n_tokens, (uint32_t)a->row0, p.residual, p.y,        p.bias};
        const uint64_t blocks =
            (uint64_t)((a->n_tokens + k->tokens - 1) / k->tokens) * ((p.w.n_rows + k->rows - 1) / k->rows);
        if (blocks > INT32_MAX)
            return cudaErrorNotSupported;
        PS_LAUNCH(k->fn, (uint32_t)blocks, k->threads, k->shared_bytes, stream_of(on))(args);
        return cudaGetLastError();
    }
    return cudaErrorNotSupported;
}

} // namespace psc
