/* ATTENTION for few rows: the positions are cut into chunks of a fixed length, one block each, and the chunks'
 * results are joined in ascending order. A block serves all query heads of one KV head, so that K and V are read
 * once; up to GROUP of them at a time. */
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"

namespace psc {
namespace {

enum {
    CHUNK = PS_CUDA_ATTN_CHUNK,
    THREADS = 128,
    WARPS = THREADS / 32,
    MAX_DIM = 512,
    JOIN_WARPS = 8,
    FAST_THREADS = 256
};

struct attn_args {
    rows q, y;
    const ps_seq_span *spans;
    uint32_t n_head, n_head_kv, head0; /* head0: first KV head of the range */
    uint32_t dk, dv, window, span_rows, n_chunks;
    float scale;
    float *part; /* [row][query head][chunk][dv], then pairs [row][query head][chunk] */
    uint32_t n_tokens;
    bool q8;
};

__device__ __forceinline__ void halves(uint4 v, float (&f)[8]) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 p = __half22float2(*(const __half2 *)&w[i]);
        f[2 * i] = p.x, f[2 * i + 1] = p.y;
    }
}

/* What row i of a span sees: positions [lo, hi). */
__device__ __forceinline__ void visible(const attn_args &a, const ps_seq_span &sp, uint32_t i, uint32_t &lo,
                                        uint32_t &hi) {
    hi = sp.pos0 + i + 1;
    lo = a.window && hi > a.window ? hi - a.window : 0;
}

/* A chunk's results: sums of its values; largest score and sum of weights, which lie behind all sums. */
__device__ __forceinline__ float *part_at(const attn_args &a, uint32_t row, uint32_t head, uint32_t chunk) {
    return a.part + (((uint64_t)row * a.n_head + head) * a.n_chunks + chunk) * a.dv;
}
__device__ __forceinline__ float2 *ms_at(const attn_args &a, uint32_t row, uint32_t head) {
    float *behind = a.part + (uint64_t)a.n_tokens * a.n_head * a.n_chunks * a.dv;
    return (float2 *)behind + ((uint64_t)row * a.n_head + head) * a.n_chunks;
}

/* Softmax over the chunk: one warp per head, 4 positions per lane. */
template <int GROUP>
__device__ __forceinline__ void softmax_chunk(const attn_args &a, float *ps, uint32_t row, uint32_t head0,
                                              uint32_t heads, uint32_t warp, uint32_t n_warps) {
    const uint32_t lane = threadIdx.x & 31;
    for (uint32_t g = warp; g < heads; g += n_warps) {
        float best = -INFINITY, sum = 0, v[CHUNK / 32];
#pragma unroll
        for (int k = 0; k < CHUNK / 32; k++)
            best = fmaxf(best, v[k] = ps[g * CHUNK + 32 * k + lane]);
#pragma unroll
        for (int o = 16; o; o >>= 1)
            best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, o));
#pragma unroll
        for (int k = 0; k < CHUNK / 32; k++) {
            const float e = v[k] == -INFINITY ? 0.0f : expf(v[k] - best);
            ps[g * CHUNK + 32 * k + lane] = e;
            sum += e;
        }
#pragma unroll
        for (int o = 16; o; o >>= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (lane == 0)
            ms_at(a, row, head0 + g)[blockIdx.x] = make_float2(best, sum);
    }
}

/* Block (chunk, KV head and group of its query heads, span and row). Chunks are counted from the first visible
 * position rounded down to one. */
template <int GROUP> __global__ void __launch_bounds__(THREADS) attn_part(attn_args a) {
    extern __shared__ __align__(
        16) float shared[]; /* q [GROUP][dk]; p [GROUP][CHUNK]; then sums [slices][GROUP][dv] */
    const ps_seq_span sp = a.spans[blockIdx.z / a.span_rows];
    const uint32_t i = blockIdx.z % a.span_rows;
    if (i >= sp.n_rows)
        return;
    uint32_t lo, hi;
    visible(a, sp, i, lo, hi);
    const uint32_t group = a.n_head / a.n_head_kv, passes = (group + GROUP - 1) / GROUP;
    const uint32_t kv = a.head0 + blockIdx.y / passes, h0 = blockIdx.y % passes * GROUP,
                   heads = min((uint32_t)GROUP, group - h0);
    const uint32_t base = (lo / CHUNK + blockIdx.x) * CHUNK;
    if (base >= hi)
        return;
    const uint32_t from = max(base, lo), to = min(base + CHUNK, hi);
    const uint32_t tid = threadIdx.x, warp = tid / 32, lane = tid & 31;
    float *qs = shared, *ps = qs + GROUP * a.dk, *os = ps + GROUP * CHUNK;
    const float *q = row_f32(a.q, sp.row0 + i) + (uint64_t)(kv * group + h0) * a.dk;
    for (uint32_t k = tid; k < GROUP * a.dk; k += THREADS)
        qs[k] = k < heads * a.dk ? q[k] * a.scale : 0.0f;
    __syncthreads();

    /* Scores: 4 lanes per position, 8 positions per warp at a time; lane j takes the 8-element pieces j, j + 4, ... */
    const uint64_t nk = (uint64_t)a.n_head_kv * a.dk, nv = (uint64_t)a.n_head_kv * a.dv;
    const uint32_t pieces = a.dk / 8;
    for (uint32_t p0 = warp * 8; p0 < CHUNK; p0 += WARPS * 8) {
        const uint32_t p = base + p0 + lane / 4;
        const bool in = p >= from && p < to;
        float s[GROUP] = {};
        if (in) {
            const uint16_t *k = sp.k + p % sp.kv_rows * nk + (uint64_t)kv * a.dk;
#pragma unroll 4
            for (uint32_t c = lane & 3; c < pieces; c += 4) {
                float f[8];
                halves(__ldg((const uint4 *)(k + 8 * c)), f);
#pragma unroll
                for (int g = 0; g < GROUP; g++) {
                    const float4 *qp = (const float4 *)(qs + g * a.dk + 8 * c);
                    const float4 q0 = qp[0], q1 = qp[1];
                    s[g] = fmaf(f[0], q0.x, s[g]), s[g] = fmaf(f[1], q0.y, s[g]);
                    s[g] = fmaf(f[2], q0.z, s[g]), s[g] = fmaf(f[3], q0.w, s[g]);
                    s[g] = fmaf(f[4], q1.x, s[g]), s[g] = fmaf(f[5], q1.y, s[g]);
                    s[g] = fmaf(f[6], q1.z, s[g]), s[g] = fmaf(f[7], q1.w, s[g]);
                }
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            s[g] += __shfl_xor_sync(0xffffffffu, s[g], 1);
            s[g] += __shfl_xor_sync(0xffffffffu, s[g], 2);
            if ((lane & 3) == 0)
                ps[g * CHUNK + p0 + lane / 4] = in ? s[g] : -INFINITY;
        }
    }
    __syncthreads();

    softmax_chunk<GROUP>(a, ps, sp.row0 + i, kv * group + h0, heads, warp, WARPS);
    __syncthreads();

    /* Values: a thread has 8 elements of V; the block's slices take every n-th position. */
    const uint32_t across = a.dv / 8, slices = THREADS / across, slice = tid / across, e0 = tid % across * 8;
    if (slice < slices) {
        float o[GROUP][8] = {};
#pragma unroll 4
        for (uint32_t p = from - base + slice; p < to - base; p += slices) {
            float f[8];
            halves(__ldg((const uint4 *)(sp.v + (base + p) % sp.kv_rows * nv + (uint64_t)kv * a.dv + e0)), f);
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                const float w = ps[g * CHUNK + p];
#pragma unroll
                for (int k = 0; k < 8; k++)
                    o[g][k] = fmaf(w, f[k], o[g][k]);
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++)
#pragma unroll
            for (int k = 0; k < 8; k++)
                os[(slice * GROUP + g) * a.dv + e0 + k] = o[g][k];
    }
    __syncthreads();
    for (uint32_t k = tid; k < heads * a.dv; k += THREADS) {
        const uint32_t g = k / a.dv, e = k % a.dv;
        float sum = 0;
        for (uint32_t s = 0; s < slices; s++)
            sum += os[(s * GROUP + g) * a.dv + e];
        part_at(a, sp.row0 + i, kv * group + h0 + g, blockIdx.x)[e] = sum;
    }
}

/* The same where K and V have DIM elements per head, the usual case: all of the chunk is asked for at once, before
 * anything is computed, so that a block waits for memory once. A warp has 16 positions. */
template <int GROUP, int DIM> __global__ void __launch_bounds__(FAST_THREADS) attn_part_fast(attn_args a) {
    constexpr int FWARPS = FAST_THREADS / 32, PASSES = CHUNK / (FWARPS * 8), PIECES = DIM / 32;
    constexpr int ACROSS = DIM / 8, VALUES = CHUNK * ACROSS / FAST_THREADS;
    static_assert(VALUES % 4 == 0, "weights are read four at a time");
    __shared__ __align__(16) float qs[GROUP * DIM], ps[GROUP * CHUNK], os[FWARPS * GROUP * DIM];
    const ps_seq_span sp = a.spans[blockIdx.z / a.span_rows];
    const uint32_t i = blockIdx.z % a.span_rows;
    if (i >= sp.n_rows)
        return;
    uint32_t lo, hi;
    visible(a, sp, i, lo, hi);
    const uint32_t group = a.n_head / a.n_head_kv, passes = (group + GROUP - 1) / GROUP;
    const uint32_t kv = a.head0 + blockIdx.y / passes, h0 = blockIdx.y % passes * GROUP,
                   heads = min((uint32_t)GROUP, group - h0);
    const uint32_t base = (lo / CHUNK + blockIdx.x) * CHUNK;
    if (base >= hi)
        return;
    const uint32_t from = max(base, lo), to = min(base + CHUNK, hi), tid = threadIdx.x, warp = tid / 32,
                   lane = tid & 31;
    const uint64_t n = (uint64_t)a.n_head_kv * DIM;
    const uint16_t *k = sp.k + (uint64_t)kv * DIM, *v = sp.v + (uint64_t)kv * DIM;
    uint4 kr[PASSES][PIECES], vr[VALUES];
#pragma unroll
    for (int r = 0; r < PASSES; r++) {
        const uint32_t p = base + (r * FWARPS + warp) * 8 + lane / 4;
#pragma unroll
        for (int c = 0; c < PIECES; c++)
            kr[r][c] = p >= from && p < to
                           ? __ldg((const uint4 *)(k + p % sp.kv_rows * n + 8 * ((lane & 3) + 4 * c)))
                           : make_uint4(0, 0, 0, 0);
    }
    const uint32_t slice = tid / ACROSS, e0 = tid % ACROSS * 8;
#pragma unroll
    for (int r = 0; r < VALUES; r++) {
        const uint32_t p = base + slice * VALUES + r;
        vr[r] = p >= from && p < to ? __ldg((const uint4 *)(v + p % sp.kv_rows * n + e0))
                                    : make_uint4(0, 0, 0, 0);
    }
    const float *q = row_f32(a.q, sp.row0 + i) + (uint64_t)(kv * group + h0) * DIM;
    for (uint32_t e = tid; e < GROUP * DIM; e += FAST_THREADS)
        qs[e] = e < heads * DIM ? q[e] * a.scale : 0.0f;
    __syncthreads();
    float s[PASSES][GROUP] = {};
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        float f[PASSES][8];
#pragma unroll
        for (int r = 0; r < PASSES; r++)
            halves(kr[r][c], f[r]);
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            const float4 *qp = (const float4 *)(qs + g * DIM + 8 * ((lane & 3) + 4 * c));
            const float4 q0 = qp[0], q1 = qp[1];
#pragma unroll
            for (int r = 0; r < PASSES; r++) {
                float v = s[r][g];
                v = fmaf(f[r][0], q0.x, v), v = fmaf(f[r][1], q0.y, v);
                v = fmaf(f[r][2], q0.z, v), v = fmaf(f[r][3], q0.w, v);
                v = fmaf(f[r][4], q1.x, v), v = fmaf(f[r][5], q1.y, v);
                v = fmaf(f[r][6], q1.z, v), v = fmaf(f[r][7], q1.w, v);
                s[r][g] = v;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < PASSES; r++) {
        const uint32_t at = (r * FWARPS + warp) * 8 + lane / 4, p = base + at;
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float v = s[r][g];
            v += __shfl_xor_sync(0xffffffffu, v, 1);
            v += __shfl_xor_sync(0xffffffffu, v, 2);
            if ((lane & 3) == 0)
                ps[g * CHUNK + at] = p >= from && p < to ? v : -INFINITY;
        }
    }
    __syncthreads();
    softmax_chunk<GROUP>(a, ps, sp.row0 + i, kv * group + h0, heads, warp, FWARPS);
    __syncthreads();
    float o[GROUP][8] = {};
#pragma unroll
    for (int r0 = 0; r0 < VALUES; r0 += 4) {
        float4 w[GROUP];
#pragma unroll
        for (int g = 0; g < GROUP; g++)
            w[g] = *(const float4 *)(ps + g * CHUNK + slice * VALUES + r0);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float f[8];
            halves(vr[r0 + r], f);
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                const float p = r == 0 ? w[g].x : r == 1 ? w[g].y : r == 2 ? w[g].z : w[g].w;
#pragma unroll
                for (int e = 0; e < 8; e++)
                    o[g][e] = fmaf(p, f[e], o[g][e]);
            }
        }
    }
    /* The slices of a warp first, then the warps. */
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
#pragma unroll
        for (int e = 0; e < 8; e++)
#pragma unroll
            for (int d = ACROSS; d < 32; d *= 2)
                o[g][e] += __shfl_xor_sync(0xffffffffu, o[g][e], d);
        if (lane < ACROSS) {
            float4 *to = (float4 *)(os + (warp * GROUP + g) * DIM + e0);
            to[0] = make_float4(o[g][0], o[g][1], o[g][2], o[g][3]);
            to[1] = make_float4(o[g][4], o[g][5], o[g][6], o[g][7]);
        }
    }
    __syncthreads();
    for (uint32_t e = tid; e < heads * DIM; e += FAST_THREADS) {
        const uint32_t g = e / DIM;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < FWARPS; w++)
            sum += os[(w * GROUP + g) * DIM + e % DIM];
        part_at(a, sp.row0 + i, kv * group + h0 + g, blockIdx.x)[e % DIM] = sum;
    }
}

/* Block (32 elements, query head, span and row): the chunks' weights first, then each warp joins every JOIN_WARPS-th
 * chunk, then the warps are joined. */
__global__ void __launch_bounds__(32 * JOIN_WARPS) attn_join(attn_args a) {
    extern __shared__ float weight[]; /* [n_chunks] */
    __shared__ float so[JOIN_WARPS][32], red[JOIN_WARPS];
    const ps_seq_span sp = a.spans[blockIdx.z / a.span_rows];
    const uint32_t i = blockIdx.z % a.span_rows, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    if (i >= sp.n_rows)
        return;
    uint32_t lo, hi;
    visible(a, sp, i, lo, hi);
    const uint32_t n = (hi - 1) / CHUNK - lo / CHUNK + 1, e = blockIdx.x * 32 + lane, row = sp.row0 + i;
    const uint32_t head = a.head0 * (a.n_head / a.n_head_kv) + blockIdx.y;
    const float2 *ms = ms_at(a, row, head);
    float best = -INFINITY;
    for (uint32_t c = threadIdx.x; c < n; c += 32 * JOIN_WARPS)
        best = fmaxf(best, ms[c].x);
#pragma unroll
    for (int o = 16; o; o >>= 1)
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, o));
    if (lane == 0)
        red[warp] = best;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < JOIN_WARPS; k++)
        best = fmaxf(best, red[k]);
    __syncthreads();
    float sum = 0;
    for (uint32_t c = threadIdx.x; c < n; c += 32 * JOIN_WARPS) {
        const float2 v = ms[c];
        const float w = expf(v.x - best);
        weight[c] = w;
        sum = fmaf(w, v.y, sum);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (lane == 0)
        red[warp] = sum;
    __syncthreads();
    float o = 0;
#pragma unroll 8
    for (uint32_t c = warp; c < n; c += JOIN_WARPS)
        o = fmaf(weight[c], e < a.dv ? part_at(a, row, head, c)[e] : 0.0f, o);
    so[warp][lane] = o;
    __syncthreads();
    if (warp)
        return;
    sum = 0, o = 0;
#pragma unroll
    for (int k = 0; k < JOIN_WARPS; k++)
        sum += red[k], o += so[k][lane];
    const float v = o / sum;
    if (a.q8)
        quantize_group(a.y, row, (head * a.dv + blockIdx.x * 32) / 32, v);
    else if (e < a.dv)
        row_f32(a.y, row)[head * a.dv + e] = v;
}

template <int GROUP>
cudaError_t run(const attn_args &a, uint32_t n_heads_kv, uint32_t n_z, cudaStream_t stream) {
    const uint32_t group = a.n_head / a.n_head_kv, passes = (group + GROUP - 1) / GROUP,
                   slices = THREADS / (a.dv / 8);
    const dim3 grid(a.n_chunks, n_heads_kv * passes, n_z);
    if (a.dk == 128 && a.dv == 128) {
        attn_part_fast<GROUP, 128><<<grid, FAST_THREADS, 0, stream>>>(a);
        return cudaGetLastError();
    }
    if (a.dk == 64 && a.dv == 64) {
        attn_part_fast<GROUP, 64><<<grid, FAST_THREADS, 0, stream>>>(a);
        return cudaGetLastError();
    }
    const size_t bytes = sizeof(float) * GROUP * (a.dk + CHUNK + slices * a.dv);
    if (bytes > 48 * 1024)
        if (cudaError_t e = cudaFuncSetAttribute(attn_part<GROUP>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes))
            return e;
    attn_part<GROUP><<<grid, THREADS, bytes, stream>>>(a);
    return cudaGetLastError();
}

template <int GROUP> cudaError_t load_group() {
    cudaError_t e = load(attn_part<GROUP>);
    e = e ? e : load(attn_part_fast<GROUP, 128>);
    return e ? e : load(attn_part_fast<GROUP, 64>);
}

} // namespace

cudaError_t launch_attn_split(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a) {
        cudaError_t e = load_group<1>();
        e = e ? e : load_group<2>();
        e = e ? e : load_group<4>();
        e = e ? e : load_group<8>();
        return e ? e : load(attn_join);
    }
    const ps_layer *l = a->layer;
    const bool q8 = a->dst.fmt == PS_FMT_Q8;
    if (l->head_dim_k % 8 || l->head_dim_v % 8 || l->head_dim_k > MAX_DIM || l->head_dim_v > MAX_DIM ||
        (q8 && l->head_dim_v % 32) || a->n_tokens * (uint64_t)on->span_rows > 65535)
        return cudaErrorNotSupported;
    if (a->n_spans == 0 || a->n_rows == 0 || on->span_rows == 0 || on->kv_bound == 0)
        return cudaSuccess;
    attn_args args = {rows_of(a->src[0]),
                      rows_of(a->dst),
                      a->spans,
                      l->n_head,
                      l->n_head_kv,
                      (uint32_t)a->row0,
                      l->head_dim_k,
                      l->head_dim_v,
                      l->window,
                      on->span_rows,
                      0,
                      l->attn_scale,
                      (float *)a->scratch,
                      a->n_tokens,
                      q8};
    args.n_chunks = (on->kv_bound + CHUNK - 1) / CHUNK;
    if (l->window && args.n_chunks > l->window / CHUNK + 2)
        args.n_chunks = l->window / CHUNK + 2;
    const uint32_t group = l->n_head / l->n_head_kv, n_z = a->n_spans * on->span_rows,
                   kv = (uint32_t)a->n_rows;
    cudaError_t e;
    if (group == 1)
        e = run<1>(args, kv, n_z, stream_of(on));
    else if (group == 2)
        e = run<2>(args, kv, n_z, stream_of(on));
    else if (group <= 4)
        e = run<4>(args, kv, n_z, stream_of(on));
    else
        e = run<8>(args, kv, n_z, stream_of(on));
    if (e)
        return e;
    attn_join<<<dim3((l->head_dim_v + 31) / 32, kv * group, n_z), 32 * JOIN_WARPS,
                args.n_chunks * sizeof(float), stream_of(on)>>>(args);
    return cudaGetLastError();
}

} // namespace psc
