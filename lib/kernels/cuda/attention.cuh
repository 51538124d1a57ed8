/* What both attention kernels are made of: tiles of K and V in shared memory, products on tensor cores, softmax over a
 * tile. Halves in, float sums.
 *
 * Query rows of one KV head are packed: row r of a span is its token r / group with query head r % group, so that all
 * query heads of a KV head share what is read. A query row is brought to f16 with a power of two of its own: its
 * elements times attn_scale * log2(e) become at most 2^15, and what that takes away, `mult`, is a power of two too, so
 * that scores times mult are exact and softmax runs in base 2.
 *
 * Positions are cut at multiples of the tile's length counted from position 0, and a tile that a row does not see
 * leaves its sums as they are, bit for bit: a row's result does not depend on the rows beside it. */
#ifndef PS_KERNELS_CUDA_ATTENTION_CUH
#define PS_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace psc {

__device__ __forceinline__ uint32_t pack(float a, float b) {
    const __half2 h = __floats2half2_rn(a, b);
    return *(const uint32_t *)&h;
}

/* ---- queries ---- */

/* x * pre * factor * post is at most 2^15 where |x| <= amax, all but factor are powers of two; mult takes them away. */
struct query_scale {
    float pre, post, mult;
};
__device__ __forceinline__ int
exponent_of(float x) { /* of x >= 0, within what a power of two of floats can be */
    return max(-126, min(126, (int)(__float_as_uint(x) >> 23) - 127));
}
__device__ __forceinline__ float two_to(int e) { /* -126 <= e <= 127 */
    return __uint_as_float((uint32_t)(e + 127) << 23);
}
__device__ __forceinline__ query_scale scale_query(float amax, float factor) {
    const int e1 = exponent_of(amax);
    const int e2 = max(-100, exponent_of(amax * two_to(-e1) * fabsf(factor)));
    /* Scores before mult are below 2^(15 + 16 + 10): with mult at most 2^85 none of them leaves the range of floats. */
    return {two_to(-e1), two_to(14 - e2), two_to(max(-126, min(85, e1 + e2 - 14)))};
}

/* A warp brings one query row to shared memory, `hi` its halves and `lo` what they leave (if LOW), DIM elements of which
 * those from dk on are 0. q NULL: a row of zeros. Returns mult. */
template <int DIM, bool LOW>
__device__ __forceinline__ float put_query(__half *hi, __half *lo, const float *q, uint32_t dk,
                                           float factor) {
    constexpr int N = (DIM + 127) / 128;
    const uint32_t lane = threadIdx.x & 31;
    float4 v[N];
    float amax = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint32_t e = 4 * (lane + 32 * j);
        v[j] = q && e < dk ? __ldg((const float4 *)(q + e)) : make_float4(0, 0, 0, 0);
        amax = fmaxf(amax, fmaxf(fmaxf(fabsf(v[j].x), fabsf(v[j].y)), fmaxf(fabsf(v[j].z), fabsf(v[j].w))));
    }
#pragma unroll
    for (int o = 16; o; o >>= 1)
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, o));
    const query_scale s = scale_query(amax, factor);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint32_t e = 4 * (lane + 32 * j);
        if (e >= DIM)
            continue;
        const float x[4] = {v[j].x * s.pre * factor * s.post, v[j].y * s.pre * factor * s.post,
                            v[j].z * s.pre * factor * s.post, v[j].w * s.pre * factor * s.post};
        const uint2 h = make_uint2(pack(x[0], x[1]), pack(x[2], x[3]));
        *(uint2 *)(hi + e) = h;
        if (LOW) {
            const float2 h0 = __half22float2(*(const __half2 *)&h.x),
                         h1 = __half22float2(*(const __half2 *)&h.y);
            *(uint2 *)(lo + e) = make_uint2(pack(x[0] - h0.x, x[1] - h0.y), pack(x[2] - h1.x, x[3] - h1.y));
        }
    }
    return s.mult;
}

/* ---- K and V ---- */

/* One KV head of K or V of a span; positions outside [lo, hi) are not read. */
struct kv_head {
    const uint16_t *base;
    uint64_t stride; /* halves between rows */
    uint32_t dim, kv_rows, lo, hi;
};

/* THREADS threads copy positions [p0, p0 + ROWS) to rows of DIM + 8 halves (no two of 8 neighbours in one bank); zeros
 * outside [lo, hi) and from column dim on. */
template <int DIM, int ROWS, int THREADS>
__device__ __forceinline__ void copy_tile(uint32_t to, const kv_head &x, uint32_t p0, uint32_t tid) {
    constexpr uint32_t ACROSS = DIM / 8, N = ROWS * ACROSS, LD = 2 * (DIM + 8);
    static_assert(N % THREADS == 0, "");
    const uint32_t first = p0 % x.kv_rows;
    if (THREADS % ACROSS == 0 && x.dim == DIM && p0 >= x.lo && p0 + ROWS <= x.hi &&
        first + ROWS <= x.kv_rows) {
        constexpr uint32_t ROWS_AT_ONCE = THREADS % ACROSS == 0 ? THREADS / ACROSS : 1;
        const uint32_t row = tid / ACROSS, c = tid % ACROSS;
        const uint16_t *from = x.base + (uint64_t)(first + row) * x.stride + 8 * c;
        to += row * LD + 16 * c;
#pragma unroll
        for (uint32_t i = 0; i < N / THREADS; i++)
            copy_or_zero(to + i * ROWS_AT_ONCE * LD, from + i * ROWS_AT_ONCE * x.stride, true);
        return;
    }
#pragma unroll 2
    for (uint32_t i = 0; i < N / THREADS; i++) {
        const uint32_t k = tid + i * THREADS, row = k / ACROSS, c = k % ACROSS, p = p0 + row;
        const bool ok = p >= x.lo && p < x.hi && 8 * c < x.dim;
        uint32_t r = first + row;
        if (r >= x.kv_rows)
            r %= x.kv_rows;
        copy_or_zero(to + row * LD + 16 * c, ok ? x.base + (uint64_t)r * x.stride + 8 * c : x.base, ok);
    }
}

/* First position that a token at `pos` sees. */
__device__ __forceinline__ uint32_t first_seen(uint32_t pos, uint32_t window) {
    return window && pos + 1 > window ? pos + 1 - window : 0;
}

/* ---- softmax of a tile ----
 * Of a warp's 16 * MT rows a thread has rows 16 * mt + 8 * h + lane / 4, and of every 8 columns two: 2 * (lane % 4). */

template <int MT> struct row_state {
    float top[MT]
             [2]; /* base-2 exponent that weights are taken from: largest score - OFFSET, or a little less */
    float sum[MT][2]; /* of this thread's weights */
    float mult[MT][2];
    uint32_t last[MT][2]; /* last position that the row sees */
};

/* Weights are at most 2^12, whatever rounding does to top: halves hold them, and those of 2^-21 of the largest are
 * still normal numbers. top follows the largest score only where that is more than SLACK above it. */
constexpr float OFFSET = 7, SLACK = 3;

template <int MT, int NT>
__device__ __forceinline__ void mask_tile(float (&s)[MT][NT][4], const row_state<MT> &st, uint32_t p0,
                                          uint32_t window) {
    const uint32_t col = 2 * (threadIdx.x & 3);
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t last = st.last[mt][h], first = first_seen(last, window);
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint32_t p = p0 + 8 * nt + col + e;
                    if (p < first || p > last)
                        s[mt][nt][2 * h + e] = -INFINITY;
                }
        }
}

/* Scores become weights; sums so far, `o`, are brought to the new top. */
template <int MT, int NT, int DT>
__device__ __forceinline__ void softmax_tile(float (&s)[MT][NT][4], float (&o)[MT][DT][4],
                                             row_state<MT> &st) {
    float keep[MT][2];
    bool raised = false;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float best = fmaxf(s[mt][0][2 * h], s[mt][0][2 * h + 1]);
#pragma unroll
            for (int nt = 1; nt < NT; nt++)
                best = fmaxf(best, fmaxf(s[mt][nt][2 * h], s[mt][nt][2 * h + 1]));
            best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
            best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
            const float mult = st.mult[mt][h], top = best * mult - OFFSET, old = st.top[mt][h];
            const bool raise = top > old + SLACK;
            keep[mt][h] = raise ? power2(old - top) : 1.0f; /* 0 where there was nothing before */
            st.top[mt][h] = raise ? top : old;
            raised |= raise;
            const float base = st.top[mt][h] == -INFINITY ? 0.0f : -st.top[mt][h];
            float sum = 0;
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float w = power2(fmaf(s[mt][nt][2 * h + e], mult, base));
                    s[mt][nt][2 * h + e] = w;
                    sum += w;
                }
            st.sum[mt][h] = fmaf(st.sum[mt][h], keep[mt][h], sum);
        }
    if (!__any_sync(0xffffffffu, raised))
        return;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int dt = 0; dt < DT; dt++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[mt][dt][e] *= keep[mt][e / 2];
}

/* Sum over the four threads of a row. */
__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    v += __shfl_xor_sync(0xffffffffu, v, 2);
    return v;
}

/* ---- arguments ---- */

struct attn_args {
    rows q, y;
    const ps_seq_span *spans;
    uint32_t n_head, n_head_kv, head0; /* head0: first KV head of the range */
    uint32_t dk, dv, window, span_rows;
    float factor; /* attn_scale * log2(e) */
    ps_fmt fmt;
    /* Split: partial results [row][query head][chunk][dv], then pairs (top, sum) [row][query head][chunk]. */
    uint32_t n_tokens, n_chunks, row_tiles, n_heads_kv, n_spans;
    float *part;
};

enum { TC_MAX_DIM = 256 }; /* of the kernels on tensor cores */

/* The chunk that partial results of a span are counted from, in chunks from position 0. */
__device__ __forceinline__ uint32_t base_chunk(const attn_args &a, const ps_seq_span &sp) {
    return first_seen(sp.pos0, a.window) / PS_CUDA_ATTN_CHUNK;
}
__device__ __forceinline__ float *part_at(const attn_args &a, uint32_t row, uint32_t head, uint32_t chunk) {
    return a.part + (((uint64_t)row * a.n_head + head) * a.n_chunks + chunk) * a.dv;
}
__device__ __forceinline__ float2 *top_sum_at(const attn_args &a, uint32_t row, uint32_t head) {
    float *behind = a.part + (uint64_t)a.n_tokens * a.n_head * a.n_chunks * a.dv;
    return (float2 *)behind + ((uint64_t)row * a.n_head + head) * a.n_chunks;
}

/* attention_wide.cu, for head dimensions above TC_MAX_DIM. split: partial results as attn_split leaves them. n_heads_kv:
 * KV heads of the range. */
cudaError_t run_attn_wide(const attn_args &a, bool split, uint32_t n_heads_kv, uint32_t n_spans,
                          cudaStream_t stream);
cudaError_t load_attn_wide();

inline attn_args attn_args_of(const ps_kargs *a, const ps_cuda_on *on) {
    const ps_layer *l = a->layer;
    attn_args r = {};
    r.q = rows_of(a->src[0]), r.y = rows_of(a->dst);
    r.spans = a->spans;
    r.n_head = l->n_head, r.n_head_kv = l->n_head_kv, r.head0 = (uint32_t)a->row0;
    r.dk = l->head_dim_k, r.dv = l->head_dim_v, r.window = l->window;
    r.span_rows = on->span_rows;
    r.factor = (float)((double)l->attn_scale * 1.4426950408889634);
    r.fmt = a->dst.fmt;
    r.n_tokens = a->n_tokens, r.n_heads_kv = (uint32_t)a->n_rows, r.n_spans = a->n_spans;
    r.part = (float *)a->scratch;
    return r;
}
/* Shapes that all attention kernels need. */
inline bool attn_fits(const ps_kargs *a) {
    const ps_layer *l = a->layer;
    return l->n_head_kv && l->n_head % l->n_head_kv == 0 && l->head_dim_k && l->head_dim_k % 8 == 0 &&
           l->head_dim_v && l->head_dim_v % 8 == 0 && l->head_dim_k <= PS_MAX_HEAD_DIM &&
           l->head_dim_v <= PS_MAX_HEAD_DIM && (a->dst.fmt != PS_FMT_Q8 || l->head_dim_v % 32 == 0) &&
           a->n_spans <= 65535;
}

} // namespace psc
#endif
