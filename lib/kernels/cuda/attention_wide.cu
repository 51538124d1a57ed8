/* ATTENTION for heads of more than 256 elements, which no tile of the other kernels holds: plain arithmetic in floats, a
 * block per row and query head. Rare in models, so that it is simple rather than fast. */
#include "kernels/cuda/attention.cuh"

namespace psc {
namespace {

enum { WIDE_WARPS = 8, WIDE_THREADS = 32 * WIDE_WARPS, PIECES = PS_MAX_HEAD_DIM / 256 };

__device__ __forceinline__ void read8(float (&f)[8], const uint16_t *p) {
    const uint4 v = __ldg((const uint4 *)p);
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 x = __half22float2(*(const __half2 *)&w[i]);
        f[2 * i] = x.x, f[2 * i + 1] = x.y;
    }
}

/* Block (chunk and row of the span, query head, span). A warp takes the positions that leave its number when divided by
 * WIDE_WARPS; a lane has pieces of 8 elements, lane, lane + 32, ... */
template <bool SPLIT>
__global__ void __launch_bounds__(WIDE_THREADS) attn_wide(attn_args a, uint32_t n_chunks) {
    __shared__ float os[WIDE_WARPS][PS_MAX_HEAD_DIM];
    __shared__ float2 red[WIDE_WARPS];
    const ps_seq_span sp = a.spans[blockIdx.z];
    const uint32_t i = blockIdx.x / n_chunks, chunk = blockIdx.x % n_chunks;
    if (i >= sp.n_rows)
        return;
    const uint32_t group = a.n_head / a.n_head_kv, head = a.head0 * group + blockIdx.y, kv = head / group;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, pos = sp.pos0 + i;
    uint32_t from = first_seen(pos, a.window), to = pos + 1;
    if (SPLIT) {
        const uint32_t base = (base_chunk(a, sp) + chunk) * PS_CUDA_ATTN_CHUNK;
        from = max(from, base), to = min(to, base + PS_CUDA_ATTN_CHUNK);
        if (from >= to)
            return;
    }
    const float *qp = row_f32(a.q, sp.row0 + i) + (uint64_t)head * a.dk;
    float q[PIECES][8], o[PIECES][8] = {}, amax = 0, top = -INFINITY, sum = 0;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const uint32_t e = 8 * (lane + 32 * j);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            q[j][k] = e < a.dk ? qp[e + k] : 0.0f;
            amax = fmaxf(amax, fabsf(q[j][k]));
        }
    }
#pragma unroll
    for (int s = 16; s; s >>= 1)
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, s));
    const query_scale scale = scale_query(amax, a.factor);
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int k = 0; k < 8; k++)
            q[j][k] = q[j][k] * scale.pre * a.factor * scale.post;
    for (uint32_t p = from + (warp - from) % WIDE_WARPS; p < to; p += WIDE_WARPS) {
        const uint64_t r = p % sp.kv_rows;
        const uint16_t *k = sp.k + (r * a.n_head_kv + kv) * a.dk, *v = sp.v + (r * a.n_head_kv + kv) * a.dv;
        float dot = 0;
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const uint32_t e = 8 * (lane + 32 * j);
            if (e >= a.dk)
                continue;
            float f[8];
            read8(f, k + e);
#pragma unroll
            for (int x = 0; x < 8; x++)
                dot = fmaf(f[x], q[j][x], dot);
        }
#pragma unroll
        for (int s = 16; s; s >>= 1)
            dot += __shfl_xor_sync(0xffffffffu, dot, s);
        const float score = dot * scale.mult, best = fmaxf(top, score), keep = power2(top - best),
                    w = power2(score - best);
        top = best;
        sum = fmaf(sum, keep, w);
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const uint32_t e = 8 * (lane + 32 * j);
            if (e >= a.dv)
                continue;
            float f[8];
            read8(f, v + e);
#pragma unroll
            for (int x = 0; x < 8; x++)
                o[j][x] = fmaf(w, f[x], o[j][x] * keep);
        }
    }
    if (lane == 0)
        red[warp] = make_float2(top, sum);
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int x = 0; x < 8; x++)
            os[warp][8 * (lane + 32 * j) + x] = o[j][x];
    __syncthreads();
    float weight[WIDE_WARPS], best = -INFINITY, total = 0;
#pragma unroll
    for (int w = 0; w < WIDE_WARPS; w++)
        best = fmaxf(best, red[w].x);
#pragma unroll
    for (int w = 0; w < WIDE_WARPS; w++) {
        weight[w] = red[w].x == -INFINITY ? 0.0f : power2(red[w].x - best);
        total = fmaf(red[w].y, weight[w], total);
    }
    const uint32_t row = sp.row0 + i;
    if (SPLIT && threadIdx.x == 0)
        top_sum_at(a, row, head)[chunk] = make_float2(best, total);
    for (uint32_t e0 = warp * 32; e0 < a.dv; e0 += WIDE_THREADS) {
        const uint32_t e = e0 + lane;
        float v = 0;
#pragma unroll
        for (int w = 0; w < WIDE_WARPS; w++)
            v = fmaf(os[w][e], weight[w], v);
        if (SPLIT) {
            if (e < a.dv)
                part_at(a, row, head, chunk)[e] = v;
            continue;
        }
        v /= total;
        if (a.fmt == PS_FMT_Q8)
            quantize_group(a.y, row, (head * a.dv + e0) / 32, v);
        else if (e < a.dv && a.fmt == PS_FMT_F32)
            row_f32(a.y, row)[head * a.dv + e] = v;
        else if (e < a.dv) /* F16S, as in attention_flash.cu */
            ((__half *)(a.y.data + row * a.y.stride))[head * a.dv + e] =
                __float2half_rn(fminf(fmaxf(v, -65504.0f), 65504.0f));
    }
}

} // namespace

cudaError_t run_attn_wide(const attn_args &a, bool split, uint32_t n_heads_kv, uint32_t n_spans,
                          cudaStream_t stream) {
    const uint32_t n_chunks = split ? a.n_chunks : 1, heads = n_heads_kv * (a.n_head / a.n_head_kv);
    if ((uint64_t)n_chunks * a.span_rows > INT32_MAX || heads > 65535)
        return cudaErrorNotSupported;
    const dim3 grid(n_chunks * a.span_rows, heads, n_spans);
    if (split)
        PS_LAUNCH(attn_wide<true>, grid, WIDE_THREADS, 0, stream)(a, n_chunks);
    else
        PS_LAUNCH(attn_wide<false>, grid, WIDE_THREADS, 0, stream)(a, n_chunks);
    return cudaGetLastError();
}
cudaError_t load_attn_wide() {
    const cudaError_t e = load(attn_wide<true>);
    return e ? e : load(attn_wide<false>);
}

} // namespace psc
