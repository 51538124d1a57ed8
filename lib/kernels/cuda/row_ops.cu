/* The operations on rows: norms, rope, KV store, gated units, sums, conversions, gathering. */
#include <math.h>

#include "kernels/cuda/launch.cuh"

namespace psc {
namespace {

/* Blocks of a norm that share a multiprocessor, which takes 1024 threads in compute capability 7.5. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
enum { NORM_BLOCKS = 2 };
#else
enum { NORM_BLOCKS = 3 };
#endif
enum { BLOCK = 256, NORM_THREADS = 512, NORM_VECTORS = 8 };

/* 1 / rms of len elements whose squares sum to `sum`; where the squares leave the range of floats they are summed
 * again, scaled by a power of two: value = in * pre * scale. at(i): element i of this thread's, n of them. */
template <bool WARP = false, class AT>
__device__ __forceinline__ void norm_scale(float sum, uint32_t len, float eps, uint32_t n, AT at,
                                           float *shared, float *pre, float *scale) {
    *pre = 1;
    if (sum < 1e30f && sum > 1e-20f * (float)len) {
        *scale = 1.0f / sqrtf(sum / (float)len + eps);
        return;
    }
    float amax = 0;
    for (uint32_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(at(i)));
    amax = WARP ? all_lanes_max(amax) : block_max(amax, shared);
    int exponent = 0;
    frexpf(amax, &exponent);
    exponent = max(-100, min(120, exponent));
    *pre = amax > 0 ? ldexpf(1.0f, -exponent) : 1.0f;
    sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum = fmaf(at(i) * *pre, at(i) * *pre, sum);
    sum = WARP ? all_lanes_sum(sum) : block_sum(sum, shared);
    /* Rare, so double is no cost. */
    const double e = (double)eps * (double)*pre * (double)*pre;
    *scale = (float)(1.0 / sqrt((double)sum / (double)len + e));
}

/* Four elements of row t in the format of y; Q8: all lanes of the warp take part. */
__device__ __forceinline__ void store_four(const rows &y, uint64_t t, uint32_t col, float4 v, ps_fmt fmt) {
    if (fmt == PS_FMT_Q8)
        quantize_four(y, t, col, v, true);
    else if (fmt == PS_FMT_F32)
        *(float4 *)(row_f32(y, t) + col) = v;
    else
        *(uint2 *)(y.data + t * y.stride + 2 * (uint64_t)col) =
            make_uint2(two_halfs(v.x, v.y), two_halfs(v.z, v.w));
}

/* Block (g, t): group g of len elements of row t, one at a time: any length. F16S: one group; written as if the scale were
 * 1, and once more where it is not. */
__global__ void rmsnorm(rows x, rows residual, rows y, const float *w, uint32_t len, float eps, ps_fmt fmt) {
    __shared__ float shared[32];
    const uint32_t t = blockIdx.y, col0 = blockIdx.x * len;
    const float *in = row_f32(x, t) + col0;
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < len; i += blockDim.x)
        sum = fmaf(in[i], in[i], sum);
    sum = block_sum(sum, shared);
    float pre, scale;
    const uint32_t n = threadIdx.x < len ? (len - threadIdx.x + blockDim.x - 1) / blockDim.x : 0;
    norm_scale(
        sum, len, eps, n, [&](uint32_t i) { return in[threadIdx.x + i * blockDim.x]; }, shared, &pre, &scale);
    const auto value = [&](uint32_t i) {
        const float v = in[i] * pre * scale * w[i];
        return residual.data ? v + row_f32(residual, t)[col0 + i] : v;
    };
    float amax = 0;
    for (uint32_t i0 = threadIdx.x & ~31u; i0 < len; i0 += blockDim.x) {
        const uint32_t i = i0 + (threadIdx.x & 31);
        const float v = i < len ? value(i) : 0;
        amax = fmaxf(amax, finite_abs(v));
        if (fmt == PS_FMT_Q8)
            quantize_group(y, t, (col0 + i0) / 32, v);
        else if (i < len && fmt == PS_FMT_F32)
            row_f32(y, t)[col0 + i] = v;
        else if (i < len)
            ((__half *)(y.data + t * y.stride))[i] = __float2half_rn(v);
    }
    if (fmt != PS_FMT_F16S)
        return;
    const float s = f16s_scale(block_max(amax, shared));
    if (threadIdx.x == 0)
        store_scale(y, t, s);
    for (uint32_t i = threadIdx.x; s > 1 && i < len; i += blockDim.x)
        ((__half *)(y.data + t * y.stride))[i] = __float2half_rn(value(i) / s);
}

/* Block t: all groups of a row to F16S, a warp per group: once for the row's scale, once to write. */
__global__ void __launch_bounds__(BLOCK)
    rmsnorm_groups_f16s(rows x, rows residual, rows y, const float *w, uint32_t len, float eps) {
    __shared__ float shared[32];
    const uint32_t t = blockIdx.x, lane = threadIdx.x & 31, n = len > lane ? (len - lane + 31) / 32 : 0;
    float amax = 0, row_scale = 1;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t col0 = threadIdx.x / 32 * len; col0 + len <= x.cols; col0 += BLOCK / 32 * len) {
            const float *in = row_f32(x, t) + col0;
            float sum = 0, pre, scale;
            for (uint32_t i = lane; i < len; i += 32)
                sum = fmaf(in[i], in[i], sum);
            sum = all_lanes_sum(sum);
            norm_scale<true>(
                sum, len, eps, n, [&](uint32_t i) { return in[lane + 32 * i]; }, shared, &pre, &scale);
            for (uint32_t i = lane; i < len; i += 32) {
                float v = in[i] * pre * scale * w[i];
                v = residual.data ? v + row_f32(residual, t)[col0 + i] : v;
                if (pass == 0)
                    amax = fmaxf(amax, finite_abs(v));
                else
                    ((__half *)(y.data + t * y.stride))[col0 + i] = __float2half_rn(v / row_scale);
            }
        }
        if (pass == 0)
            row_scale = f16s_scale(block_max(amax, shared));
    }
    if (threadIdx.x == 0)
        store_scale(y, t, row_scale);
}

/* One group by a block, or by a warp of it (WARP), for lengths that are multiples of 128: four elements at a time, V times,
 * kept in registers. */
template <int V, bool WARP>
__device__ __forceinline__ void norm_group(const rows &x, const rows &residual, const rows &y, const float *w,
                                           uint32_t len, float eps, ps_fmt fmt, uint32_t t, uint32_t col0,
                                           float *shared) {
    const uint32_t me = WARP ? threadIdx.x & 31 : threadIdx.x, n = WARP ? 32 : blockDim.x, n4 = len / 4;
    const float4 *in = (const float4 *)(row_f32(x, t) + col0), *w4 = (const float4 *)w;
    float4 v[V];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < V; k++)
        v[k] = me + k * n < n4 ? in[me + k * n] : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < V; k++) {
        sum = fmaf(v[k].x, v[k].x, sum), sum = fmaf(v[k].y, v[k].y, sum);
        sum = fmaf(v[k].z, v[k].z, sum), sum = fmaf(v[k].w, v[k].w, sum);
    }
    sum = WARP ? all_lanes_sum(sum) : block_sum(sum, shared);
    float pre, scale;
    norm_scale<WARP>(
        sum, len, eps, 4 * V,
        [&](uint32_t i) {
            return i % 4 == 0 ? v[i / 4].x : i % 4 == 1 ? v[i / 4].y : i % 4 == 2 ? v[i / 4].z : v[i / 4].w;
        },
        shared, &pre, &scale);
    float amax = 0;
#pragma unroll
    for (int k = 0; k < V; k++) {
        const uint32_t i = me + k * n;
        if (i >= n4) /* whole warps: len is a multiple of 128 */
            continue;
        const float4 g = w4[i];
        v[k] = make_float4(v[k].x * pre * scale * g.x, v[k].y * pre * scale * g.y, v[k].z * pre * scale * g.z,
                           v[k].w * pre * scale * g.w);
        if (residual.data) {
            const float4 r = ((const float4 *)(row_f32(residual, t) + col0))[i];
            v[k].x += r.x, v[k].y += r.y, v[k].z += r.z, v[k].w += r.w;
        }
        amax = fmaxf(fmaxf(amax, fmaxf(finite_abs(v[k].x), finite_abs(v[k].y))),
                     fmaxf(finite_abs(v[k].z), finite_abs(v[k].w)));
        if (fmt != PS_FMT_F16S)
            store_four(y, t, col0 + 4 * i, v[k], fmt);
    }
    if (fmt != PS_FMT_F16S)
        return;
    const float s = f16s_scale(WARP ? all_lanes_max(amax) : block_max(amax, shared)), inv = 1 / s; /* exact */
#pragma unroll
    for (int k = 0; k < V; k++)
        if (me + k * n < n4)
            store_four(y, t, col0 + 4 * (me + k * n),
                       make_float4(v[k].x * inv, v[k].y * inv, v[k].z * inv, v[k].w * inv), fmt);
    if (me == 0)
        store_scale(y, t, s);
}

/* Block (g, t). */
template <int V>
__global__ void __launch_bounds__(NORM_THREADS, V <= 2 ? NORM_BLOCKS : 2)
    rmsnorm4(rows x, rows residual, rows y, const float *w, uint32_t len, float eps, ps_fmt fmt) {
    __shared__ float shared[32];
    norm_group<V, false>(x, residual, y, w, len, eps, fmt, blockIdx.y, blockIdx.x * len, shared);
}
/* Block (groups, t), a warp per group of 128 V elements at most: rows of heads. */
template <int V>
__global__ void __launch_bounds__(BLOCK)
    rmsnorm_heads(rows x, rows residual, rows y, const float *w, uint32_t len, float eps, ps_fmt fmt) {
    const uint32_t g = blockIdx.x * (BLOCK / 32) + threadIdx.x / 32;
    if (g < x.cols / len)
        norm_group<V, true>(x, residual, y, w, len, eps, fmt, blockIdx.y, g * len, nullptr);
}

enum { ROPE_TABLE = 128 };
struct rope_args {
    rows x, y;
    const uint32_t *positions;
    const float *factors;
    uint32_t head_dim, rope_dims;
    double base, scale;
    bool neox, fours;
    double turns
        [ROPE_TABLE]; /* revolutions per position of each pair, where there are no more pairs than this */
};

/* Cosine and sine of the angle of pair i. The product is in double, so that the angle is good at any position; the rest of a
 * revolution is a small number. */
__device__ __forceinline__ float2 rope_turn(const rope_args &a, uint32_t t, uint32_t i) {
    const double rate = a.rope_dims <= 2 * ROPE_TABLE
                            ? a.turns[i]
                            : a.scale * pow(a.base, -2.0 * i / a.rope_dims) * 0.15915494309189533577;
    double turns = a.positions[t] * rate;
    if (a.factors)
        turns /= (double)a.factors[i];
    float s, c;
    sincospif((float)(2 * (turns - rint(turns))), &s, &c);
    return make_float2(c, s);
}

/* Block (t, part of the row): angles once per pair, for all heads of the part. fours: four elements at a time, which needs
 * multiples of 4 everywhere. */
__global__ void __launch_bounds__(BLOCK) rope(const __grid_constant__ rope_args a) {
    PS_DYNAMIC_SHARED(8, float2, turn);
    const uint32_t t = blockIdx.x, half = a.rope_dims / 2, first = blockIdx.y * BLOCK + threadIdx.x,
                   step = gridDim.y * BLOCK;
    for (uint32_t i = threadIdx.x; i < half; i += BLOCK)
        turn[i] = rope_turn(a, t, i);
    __syncthreads();
    const float *in = row_f32(a.x, t);
    float *out = row_f32(a.y, t);
    const uint32_t heads = a.x.cols / a.head_dim, rest = a.head_dim - a.rope_dims;
    if (a.fours && a.neox) {
        for (uint32_t k = first; k < heads * (half / 4); k += step) {
            const uint32_t i = k % (half / 4) * 4, p = k / (half / 4) * a.head_dim + i;
            const float4 x = *(const float4 *)(in + p), y = *(const float4 *)(in + p + half);
            const float2 r0 = turn[i], r1 = turn[i + 1], r2 = turn[i + 2], r3 = turn[i + 3];
            *(float4 *)(out + p) = make_float4(x.x * r0.x - y.x * r0.y, x.y * r1.x - y.y * r1.y,
                                               x.z * r2.x - y.z * r2.y, x.w * r3.x - y.w * r3.y);
            *(float4 *)(out + p + half) = make_float4(x.x * r0.y + y.x * r0.x, x.y * r1.y + y.y * r1.x,
                                                      x.z * r2.y + y.z * r2.x, x.w * r3.y + y.w * r3.x);
        }
    } else if (a.fours) {
        for (uint32_t k = first; k < heads * (half / 2); k += step) {
            const uint32_t i = k % (half / 2) * 2, p = k / (half / 2) * a.head_dim + 2 * i;
            const float4 v = *(const float4 *)(in + p);
            const float2 r0 = turn[i], r1 = turn[i + 1];
            *(float4 *)(out + p) = make_float4(v.x * r0.x - v.y * r0.y, v.x * r0.y + v.y * r0.x,
                                               v.z * r1.x - v.w * r1.y, v.z * r1.y + v.w * r1.x);
        }
    } else {
        for (uint32_t k = first; k < heads * half; k += step) {
            const uint32_t h = k / half, i = k % half, p = h * a.head_dim + (a.neox ? i : 2 * i),
                           q = a.neox ? p + half : p + 1;
            const float2 r = turn[i];
            const float x = in[p], y = in[q];
            out[p] = x * r.x - y * r.y;
            out[q] = x * r.y + y * r.x;
        }
    }
    if (rest && in != out)
        for (uint32_t k = first; k < heads * rest; k += step) {
            const uint32_t at = k / rest * a.head_dim + a.rope_dims + k % rest;
            out[at] = in[at];
        }
}

__device__ __forceinline__ void to_cache(uint16_t *to, const float *from, uint32_t n) {
    if (n % 4 == 0 && (uintptr_t)to % 8 == 0 && (uintptr_t)from % 16 == 0) {
        for (uint32_t i = threadIdx.x; i < n / 4; i += BLOCK) {
            const float4 v = ((const float4 *)from)[i];
            ((uint2 *)to)[i] = make_uint2(two_halfs(v.x, v.y), two_halfs(v.z, v.w));
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < n; i += BLOCK)
        to[i] = __half_as_ushort(__float2half_rn(from[i]));
}

/* Block (row of a span, span, 0: K, 1: V). */
__global__ void __launch_bounds__(BLOCK) kv_store(const ps_seq_span *spans, rows k, rows v) {
    launch_dependents(); /* attention, which waits before it reads K and V */
    const ps_seq_span sp = spans[blockIdx.y];
    if (blockIdx.x >= sp.n_rows)
        return;
    const uint64_t p = (sp.pos0 + blockIdx.x) % sp.kv_rows;
    const rows &from = blockIdx.z ? v : k;
    to_cache((blockIdx.z ? sp.v : sp.k) + p * from.cols, row_f32(from, sp.row0 + blockIdx.x), from.cols);
}

/* Element-wise operations: what is made of elements i of row t. */
struct op_glu {
    bool silu;
    __device__ float operator()(float a, float b) const {
        return glu_value(a, b, silu);
    }
};
struct op_add {
    __device__ float operator()(float a, float b) const {
        return a + b;
    }
};
struct op_first {
    __device__ float operator()(float a, float) const {
        return a;
    }
};

/* Block (columns, t). source: rows of x that the rows of y come from, or NULL. */
template <class OP>
__global__ void __launch_bounds__(BLOCK)
    map_rows(OP op, rows x, rows x2, rows y, ps_fmt fmt, const uint32_t *source) {
    const uint32_t t = blockIdx.y, i = blockIdx.x * BLOCK + threadIdx.x;
    const uint64_t from = source ? source[t] : t;
    float v = 0;
    if (i < x.cols)
        v = op(row_f32(x, from)[i], x2.data ? row_f32(x2, t)[i] : 0.0f);
    if (fmt == PS_FMT_Q8) {
        if (i / 32 * 32 < x.cols)
            quantize_group(y, t, i / 32, v);
    } else if (i < x.cols) {
        if (fmt == PS_FMT_F16)
            ((__half *)(y.data + t * y.stride))[i] = __float2half_rn(v);
        else
            row_f32(y, t)[i] = v;
    }
}

template <class OP>
__device__ __forceinline__ float4 four(OP op, const float *x, const float *x2, uint32_t i) {
    const float4 a = ((const float4 *)x)[i];
    const float4 b = x2 ? ((const float4 *)x2)[i] : make_float4(0, 0, 0, 0);
    return make_float4(op(a.x, b.x), op(a.y, b.y), op(a.z, b.z), op(a.w, b.w));
}

/* The same four elements at a time: rows of a multiple of 4 (Q8: 32) elements, at multiples of 16 bytes. */
template <class OP>
__global__ void __launch_bounds__(BLOCK)
    map_fours(OP op, rows x, rows x2, rows y, ps_fmt fmt, const uint32_t *source) {
    const uint32_t t = blockIdx.y, i = blockIdx.x * BLOCK + threadIdx.x;
    const bool here = i < x.cols / 4;
    if (fmt != PS_FMT_Q8 && !here)
        return;
    const float4 v = here
                         ? four(op, row_f32(x, source ? source[t] : t), x2.data ? row_f32(x2, t) : nullptr, i)
                         : make_float4(0, 0, 0, 0);
    if (fmt == PS_FMT_Q8)
        quantize_four(y, t, 4 * i, v, here);
    else
        store_four(y, t, 4 * i, v, fmt);
}

/* To F16S, block t: written as if the scale were 1, and once more where it is not. */
template <class OP>
__global__ void __launch_bounds__(512) map_f16s(OP op, rows x, rows x2, rows y, bool fours) {
    __shared__ float shared[32];
    const uint32_t t = blockIdx.x;
    const float *in = row_f32(x, t), *in2 = x2.data ? row_f32(x2, t) : nullptr;
    uint8_t *out = y.data + t * y.stride;
    const auto one = [&](uint32_t i) { return op(in[i], in2 ? in2[i] : 0.0f); };
    float amax = 0;
    if (fours) {
        for (uint32_t i = threadIdx.x; i < x.cols / 4; i += blockDim.x) {
            const float4 v = four(op, in, in2, i);
            amax = fmaxf(fmaxf(amax, fmaxf(finite_abs(v.x), finite_abs(v.y))),
                         fmaxf(finite_abs(v.z), finite_abs(v.w)));
            store_four(y, t, 4 * i, v, PS_FMT_F16S);
        }
    } else {
        for (uint32_t i = threadIdx.x; i < x.cols; i += blockDim.x) {
            const float v = one(i);
            amax = fmaxf(amax, finite_abs(v));
            ((__half *)out)[i] = __float2half_rn(v);
        }
    }
    const float s = f16s_scale(block_max(amax, shared)), inv = 1 / s;
    if (threadIdx.x == 0)
        store_scale(y, t, s);
    if (s > 1)
        for (uint32_t i = threadIdx.x; i < x.cols; i += blockDim.x)
            ((__half *)out)[i] = __float2half_rn(one(i) * inv);
}

bool at_16(const ps_xarg &x) {
    return (uintptr_t)x.data % 16 == 0 && x.row_bytes % 16 == 0;
}

template <class OP> cudaError_t map(OP op, const ps_kargs *a, const ps_cuda_on *on, const uint32_t *source) {
    if (!a) {
        cudaError_t e = load(map_rows<OP>);
        e = e ? e : load(map_fours<OP>);
        return e ? e : load(map_f16s<OP>);
    }
    if (!a->n_tokens || !a->src[0].cols)
        return cudaSuccess;
    const rows x = rows_of(a->src[0]), x2 = rows_of(a->src[1]), y = rows_of(a->dst);
    const bool fours = x.cols % (a->dst.fmt == PS_FMT_Q8 ? 32 : 4) == 0 && at_16(a->src[0]) &&
                       at_16(a->src[1]) && at_16(a->dst);
    if (a->dst.fmt == PS_FMT_F16S) {
        if (source)
            return cudaErrorNotSupported;
        PS_LAUNCH(map_f16s<OP>, a->n_tokens, x.cols <= 4096 ? 256 : 512, 0, stream_of(on))
        (op, x, x2, y, fours);
        return cudaGetLastError();
    }
    const uint32_t per_block = fours ? 4 * BLOCK : BLOCK;
    PS_LAUNCH((fours ? map_fours<OP> : map_rows<OP>), dim3((x.cols + per_block - 1) / per_block, a->n_tokens),
              BLOCK, 0, stream_of(on))
    (op, x, x2, y, a->dst.fmt, source);
    return cudaGetLastError();
}

} // namespace

cudaError_t launch_rmsnorm(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a) {
        cudaError_t e = load(rmsnorm);
        e = e ? e : load(rmsnorm4<1>);
        e = e ? e : load(rmsnorm4<2>);
        e = e ? e : load(rmsnorm4<4>);
        e = e ? e : load(rmsnorm4<8>);
        e = e ? e : load(rmsnorm_groups_f16s);
        e = e ? e : load(rmsnorm_heads<1>);
        return e ? e : load(rmsnorm_heads<2>);
    }
    const uint32_t len = (uint32_t)a->w[0].cols, groups = (uint32_t)(a->src[0].cols / len);
    const ps_fmt fmt = a->dst.fmt;
    if (a->w[0].type != PS_DTYPE_F32 || (fmt == PS_FMT_Q8 && len % 32))
        return cudaErrorNotSupported;
    if (a->n_tokens == 0 || groups == 0)
        return cudaSuccess;
    if (fmt == PS_FMT_F16S && groups > 1) {
        PS_LAUNCH(rmsnorm_groups_f16s, a->n_tokens, BLOCK, 0, stream_of(on))
        (rows_of(a->src[0]), rows_of(a->src[1]), rows_of(a->dst), (const float *)a->w[0].data, len,
         a->model->norm_eps);
        return cudaGetLastError();
    }
    void (*kernel)(rows, rows, rows, const float *, uint32_t, float, ps_fmt) = rmsnorm;
    uint32_t threads = len <= 128 ? 32 : len <= 2048 ? 256 : 1024, blocks = groups;
    if ((len == 128 || len == 256) && at_16(a->src[0]) && at_16(a->src[1]) && at_16(a->dst)) {
        kernel = len == 128 ? rmsnorm_heads<1> : rmsnorm_heads<2>;
        threads = BLOCK, blocks = (groups + BLOCK / 32 - 1) / (BLOCK / 32);
    } else if (len % 128 == 0 && len <= NORM_THREADS * 4 * NORM_VECTORS && at_16(a->src[0]) &&
               at_16(a->src[1]) && at_16(a->dst)) {
        const uint32_t vectors = (len + 4 * NORM_THREADS - 1) / (4 * NORM_THREADS);
        kernel = vectors == 1   ? rmsnorm4<1>
                 : vectors == 2 ? rmsnorm4<2>
                 : vectors <= 4 ? rmsnorm4<4>
                                : rmsnorm4<8>;
        threads = len < 4 * NORM_THREADS ? len / 4 : NORM_THREADS;
    }
    PS_LAUNCH(kernel, dim3(blocks, a->n_tokens), threads, 0, stream_of(on))
    (rows_of(a->src[0]), rows_of(a->src[1]), rows_of(a->dst), (const float *)a->w[0].data, len,
     a->model->norm_eps, fmt);
    return cudaGetLastError();
}

cudaError_t launch_rope(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a)
        return load(rope);
    const ps_layer *l = a->layer;
    if (a->w[0].data && a->w[0].type != PS_DTYPE_F32)
        return cudaErrorNotSupported;
    rope_args args = {rows_of(a->src[0]),
                      rows_of(a->dst),
                      a->positions,
                      (const float *)a->w[0].data,
                      l->head_dim_k,
                      l->rope_dims,
                      (double)l->rope_base,
                      (double)l->rope_scale,
                      a->model->rope_style == PS_ROPE_NEOX,
                      false,
                      {0}};
    const uint32_t half = l->rope_dims / 2, heads = args.x.cols / l->head_dim_k;
    args.fours =
        half % (args.neox ? 4 : 2) == 0 && l->head_dim_k % 4 == 0 && at_16(a->src[0]) && at_16(a->dst);
    for (uint32_t i = 0; half <= ROPE_TABLE && i < half; i++)
        args.turns[i] = args.scale * pow(args.base, -2.0 * i / l->rope_dims) * 0.15915494309189533577;
    const uint32_t items = args.fours ? heads * half / (args.neox ? 4 : 2) : heads * half;
    if (a->n_tokens)
        PS_LAUNCH(rope, dim3(a->n_tokens, items <= BLOCK ? 1 : (items + 2 * BLOCK - 1) / (2 * BLOCK)), BLOCK,
                  half * sizeof(float2), stream_of(on))
    (args);
    return cudaGetLastError();
}

cudaError_t launch_kv_store(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a)
        return load(kv_store);
    if (a->n_spans && on->span_rows)
        PS_LAUNCH(kv_store, dim3(on->span_rows, a->n_spans, 2), BLOCK, 0, stream_of(on))
    (a->spans, rows_of(a->src[0]), rows_of(a->src[1]));
    return cudaGetLastError();
}

cudaError_t launch_glu(const ps_kargs *a, const ps_cuda_on *on) {
    return map(op_glu{a && a->model->glu == PS_GLU_SILU}, a, on, nullptr);
}
cudaError_t launch_add(const ps_kargs *a, const ps_cuda_on *on) {
    return map(op_add{}, a, on, nullptr);
}
cudaError_t launch_convert(const ps_kargs *a, const ps_cuda_on *on) {
    return map(op_first{}, a, on, nullptr);
}
cudaError_t launch_gather(const ps_kargs *a, const ps_cuda_on *on) {
    return map(op_first{}, a, on, a ? a->outputs : nullptr);
}

} // namespace psc
