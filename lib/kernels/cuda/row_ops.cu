/* The operations on rows: norms, rope, KV store, gated units, sums, conversions, gathering. */
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"

namespace psc {
namespace {

enum { BLOCK = 256, NORM_VECTORS = 4 };

/* Sum over a block in a fixed tree; every thread gets it. */
__device__ __forceinline__ float block_sum(float v, float *shared) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, n = blockDim.x / 32;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    if (lane == 0)
        shared[warp] = v;
    __syncthreads();
    float s = lane < n ? shared[lane] : 0.0f;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        s += __shfl_xor_sync(0xffffffffu, s, o);
    __syncthreads();
    return s;
}

__device__ __forceinline__ float block_max(float v, float *shared) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, n = blockDim.x / 32;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    if (lane == 0)
        shared[warp] = v;
    __syncthreads();
    float s = lane < n ? shared[lane] : 0.0f;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        s = fmaxf(s, __shfl_xor_sync(0xffffffffu, s, o));
    __syncthreads();
    return s;
}

/* 1 / rms of len elements whose squares sum to `sum`; where the squares leave the range of floats they are summed
 * again, scaled by a power of two: value = in * pre * scale. at(i): element i of this thread's, n of them. */
template <class AT>
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
    amax = block_max(amax, shared);
    int exponent = 0;
    frexpf(amax, &exponent);
    exponent = max(-100, min(120, exponent));
    *pre = amax > 0 ? ldexpf(1.0f, -exponent) : 1.0f;
    sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum = fmaf(at(i) * *pre, at(i) * *pre, sum);
    sum = block_sum(sum, shared);
    /* Rare, so double is no cost. */
    const double e = (double)eps * (double)*pre * (double)*pre;
    *scale = (float)(1.0 / sqrt((double)sum / (double)len + e));
}

/* Block (g, t): group g of len elements of row t, one at a time: any length. */
__global__ void rmsnorm(rows x, rows residual, rows y, const float *w, uint32_t len, float eps, bool q8) {
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
    for (uint32_t i0 = threadIdx.x & ~31u; i0 < len; i0 += blockDim.x) {
        const uint32_t i = i0 + (threadIdx.x & 31);
        float v = 0;
        if (i < len) {
            v = in[i] * pre * scale * w[i];
            if (residual.data)
                v += row_f32(residual, t)[col0 + i];
        }
        if (q8)
            quantize_group(y, t, (col0 + i0) / 32, v);
        else if (i < len)
            row_f32(y, t)[col0 + i] = v;
    }
}

/* The same for lengths that are multiples of 128: four elements at a time, kept in registers. */
__global__ void __launch_bounds__(1024)
    rmsnorm4(rows x, rows residual, rows y, const float *w, uint32_t len, float eps, bool q8) {
    __shared__ float shared[32];
    const uint32_t t = blockIdx.y, col0 = blockIdx.x * len, n4 = len / 4;
    const float4 *in = (const float4 *)(row_f32(x, t) + col0), *w4 = (const float4 *)w;
    float4 v[NORM_VECTORS], g[NORM_VECTORS];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < NORM_VECTORS; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        v[k] = i < n4 ? in[i] : make_float4(0, 0, 0, 0);
        g[k] = i < n4 ? w4[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < NORM_VECTORS; k++) {
        sum = fmaf(v[k].x, v[k].x, sum), sum = fmaf(v[k].y, v[k].y, sum);
        sum = fmaf(v[k].z, v[k].z, sum), sum = fmaf(v[k].w, v[k].w, sum);
    }
    sum = block_sum(sum, shared);
    float pre, scale;
    norm_scale(
        sum, len, eps, 4 * NORM_VECTORS,
        [&](uint32_t i) {
            return i % 4 == 0 ? v[i / 4].x : i % 4 == 1 ? v[i / 4].y : i % 4 == 2 ? v[i / 4].z : v[i / 4].w;
        },
        shared, &pre, &scale);
#pragma unroll
    for (int k = 0; k < NORM_VECTORS; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        if (i >= n4) /* whole groups of 8 lanes: len is a multiple of 128 */
            continue;
        float4 o = make_float4(v[k].x * pre * scale * g[k].x, v[k].y * pre * scale * g[k].y,
                               v[k].z * pre * scale * g[k].z, v[k].w * pre * scale * g[k].w);
        if (residual.data) {
            const float4 r = ((const float4 *)(row_f32(residual, t) + col0))[i];
            o.x += r.x, o.y += r.y, o.z += r.z, o.w += r.w;
        }
        if (q8)
            quantize_four(y, t, col0 + 4 * i, o);
        else
            ((float4 *)(row_f32(y, t) + col0))[i] = o;
    }
}

struct rope_args {
    rows x, y;
    const uint32_t *positions;
    const float *factors;
    uint32_t head_dim, rope_dims;
    double base, scale;
    bool neox;
};

/* Block t, chunk of heads: angles once per pair, in double, for all heads. */
__global__ void __launch_bounds__(BLOCK) rope(rope_args a) {
    extern __shared__ float2 turn[];
    const uint32_t t = blockIdx.x, half = a.rope_dims / 2;
    for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
        double theta = a.positions[t] * a.scale * pow(a.base, -2.0 * i / a.rope_dims);
        if (a.factors)
            theta /= (double)a.factors[i];
        double s, c;
        sincos(theta, &s, &c);
        turn[i] = make_float2((float)c, (float)s);
    }
    __syncthreads();
    const float *in = row_f32(a.x, t);
    float *out = row_f32(a.y, t);
    const uint32_t heads = a.x.cols / a.head_dim, rest = a.head_dim - a.rope_dims;
    for (uint32_t k = threadIdx.x; k < heads * half; k += blockDim.x) {
        const uint32_t h = k / half, i = k % half, p = h * a.head_dim + (a.neox ? i : 2 * i),
                       q = a.neox ? p + half : p + 1;
        const float2 r = turn[i];
        const float x = in[p], y = in[q];
        out[p] = x * r.x - y * r.y;
        out[q] = x * r.y + y * r.x;
    }
    if (rest && in != out)
        for (uint32_t k = threadIdx.x; k < heads * rest; k += blockDim.x) {
            const uint32_t at = k / rest * a.head_dim + a.rope_dims + k % rest;
            out[at] = in[at];
        }
}

/* Block (row of a span, span). */
__global__ void __launch_bounds__(BLOCK) kv_store(const ps_seq_span *spans, rows k, rows v) {
    const ps_seq_span sp = spans[blockIdx.y];
    if (blockIdx.x >= sp.n_rows)
        return;
    const uint64_t p = (sp.pos0 + blockIdx.x) % sp.kv_rows;
    const float *kr = row_f32(k, sp.row0 + blockIdx.x), *vr = row_f32(v, sp.row0 + blockIdx.x);
    for (uint32_t i = threadIdx.x; i < k.cols; i += BLOCK)
        sp.k[p * k.cols + i] = __half_as_ushort(__float2half_rn(kr[i]));
    for (uint32_t i = threadIdx.x; i < v.cols; i += BLOCK)
        sp.v[p * v.cols + i] = __half_as_ushort(__float2half_rn(vr[i]));
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

template <class OP> cudaError_t map(OP op, const ps_kargs *a, const ps_cuda_on *on, const uint32_t *source) {
    if (!a)
        return load(map_rows<OP>);
    if (a->n_tokens && a->src[0].cols)
        map_rows<<<dim3((uint32_t)((a->src[0].cols + BLOCK - 1) / BLOCK), a->n_tokens), BLOCK, 0,
                   stream_of(on)>>>(op, rows_of(a->src[0]), rows_of(a->src[1]), rows_of(a->dst), a->dst.fmt,
                                    source);
    return cudaGetLastError();
}

} // namespace

cudaError_t launch_rmsnorm(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a) {
        const cudaError_t e = load(rmsnorm);
        return e ? e : load(rmsnorm4);
    }
    const uint32_t len = (uint32_t)a->w[0].cols, groups = (uint32_t)(a->src[0].cols / len);
    const bool q8 = a->dst.fmt == PS_FMT_Q8;
    if (a->w[0].type != PS_DTYPE_F32 || (q8 && len % 32))
        return cudaErrorNotSupported;
    if (a->n_tokens == 0 || groups == 0)
        return cudaSuccess;
    if (len % 128 == 0 && len <= 1024 * 4 * NORM_VECTORS) {
        const uint32_t threads = len <= 4096 ? len / 4 : 1024;
        rmsnorm4<<<dim3(groups, a->n_tokens), threads, 0, stream_of(on)>>>(
            rows_of(a->src[0]), rows_of(a->src[1]), rows_of(a->dst), (const float *)a->w[0].data, len,
            a->model->norm_eps, q8);
        return cudaGetLastError();
    }
    const uint32_t threads = len <= 128 ? 32 : len <= 2048 ? 256 : 1024;
    if (groups)
        rmsnorm<<<dim3(groups, a->n_tokens), threads, 0, stream_of(on)>>>(
            rows_of(a->src[0]), rows_of(a->src[1]), rows_of(a->dst), (const float *)a->w[0].data, len,
            a->model->norm_eps, q8);
    return cudaGetLastError();
}

cudaError_t launch_rope(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a)
        return load(rope);
    const ps_layer *l = a->layer;
    const rope_args args = {
        rows_of(a->src[0]),          rows_of(a->dst),       a->positions,
        (const float *)a->w[0].data, l->head_dim_k,         l->rope_dims,
        (double)l->rope_base,        (double)l->rope_scale, a->model->rope_style == PS_ROPE_NEOX};
    if (a->w[0].data && a->w[0].type != PS_DTYPE_F32)
        return cudaErrorNotSupported;
    if (a->n_tokens)
        rope<<<a->n_tokens, BLOCK, l->rope_dims / 2 * sizeof(float2), stream_of(on)>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_kv_store(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a)
        return load(kv_store);
    if (a->n_spans && on->span_rows)
        kv_store<<<dim3(on->span_rows, a->n_spans), BLOCK, 0, stream_of(on)>>>(a->spans, rows_of(a->src[0]),
                                                                               rows_of(a->src[1]));
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
