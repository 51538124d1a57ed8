/* MOE_DISPATCH for up to 8 token rows. The experts' matrices are found through one address each, so that experts in VRAM
 * and experts that are read directly from host memory are one launch. Every warp applies the rule of parts itself: the
 * selection is a few cache lines.
 *
 *   hidden   rows of (token, slot) pairs: act(gate x) * up x, as floats, or in Q8 where the products take it; nothing
 *            for experts that are not taken
 *   down     weighted sum over a token's experts, in ascending order of expert
 */
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/moe.cuh"

namespace psc {
namespace {

enum { HIDDEN_WARPS = 8, HIDDEN_COLS = 32, DOWN_WARPS = 8, DOWN_ROWS = 2, FLAT_ROWS = 8 };

struct hidden_args {
    experts gate, up;
    choice of;
    rows x, y; /* y: a row per pair */
    uint32_t cols, ff;
    bool silu;
};

/* The expert of a pair, or -1 where the call does not take it: every lane the same. */
__device__ __forceinline__ int32_t taken_expert(const choice &c, uint32_t pair, uint32_t *words) {
    const int32_t e = selection_row(c, pair / c.used)[pair % c.used].expert;
    const uint32_t set = taken_word(c, words);
    return takes(c, set, e) ? e : -1;
}

/* What a lane's unit of a row meets of one activation row, kept in registers for several weight rows. */
template <class W> struct x_unit {
    int4 q[2][2];
    float d[2], s[2];
    __device__ __forceinline__ void load(const q8_row &x, uint32_t at, uint32_t n_groups) {
#pragma unroll
        for (int g = 0; g < 2; g++) {
            const uint32_t xg = x_group<W>(at, g);
            const bool here = xg < n_groups;
            q[g][0] = here ? ((const int4 *)(x.q + 32 * xg))[0] : make_int4(0, 0, 0, 0);
            q[g][1] = here ? ((const int4 *)(x.q + 32 * xg))[1] : make_int4(0, 0, 0, 0);
            d[g] = here ? x.d[xg] : 0.0f;
            s[g] = here && W::OFFSET ? x.s[xg] : 0.0f;
        }
    }
    /* As unit_dot, for one row. Groups beyond the row: weights are what lies there, so they are left out. */
    __device__ __forceinline__ float dot(const unit &u, uint32_t at, uint32_t n_groups, float acc) const {
#pragma unroll
        for (int g = 0; g < 2; g++) {
            if (x_group<W>(at, g) >= n_groups)
                continue;
            int lo = __dp4a((int)u.q[g][0], q[g][0].x, 0), hi = __dp4a((int)u.q[g][4], q[g][1].x, 0);
            lo = __dp4a((int)u.q[g][1], q[g][0].y, lo);
            hi = __dp4a((int)u.q[g][5], q[g][1].y, hi);
            lo = __dp4a((int)u.q[g][2], q[g][0].z, lo);
            hi = __dp4a((int)u.q[g][6], q[g][1].z, hi);
            lo = __dp4a((int)u.q[g][3], q[g][0].w, lo);
            hi = __dp4a((int)u.q[g][7], q[g][1].w, hi);
            const float sum = W::HALVES ? fmaf(u.a[g][0], (float)lo, __fmul_rn(u.a[g][1], (float)hi))
                                        : __fmul_rn(u.a[g][0], (float)(lo + hi));
            acc = fmaf(d[g], sum, W::OFFSET ? fmaf(u.b[g], s[g], acc) : acc);
        }
        return acc;
    }
};

/* The block asks for a row of x while it finds out what to do with it. */
__device__ __forceinline__ void prefetch_row(const rows &x, uint32_t t) {
    for (uint32_t i = 128 * threadIdx.x; i < x.stride; i += 128 * blockDim.x)
        prefetch(x.data + t * x.stride + i);
}

/* A block makes a group of 32 hidden columns of a pair, a warp four of them: two at a time, and while it computes with
 * one chunk of their rows the next is on its way. Shared memory: HIDDEN_WARPS * 4 slots. */
template <class W> __global__ void __launch_bounds__(32 * HIDDEN_WARPS, 2) hidden_q(hidden_args a) {
    PS_DYNAMIC_SHARED(16, uint8_t, all_slots);
    __shared__ uint32_t words[HIDDEN_WARPS][32];
    __shared__ float gates[HIDDEN_COLS], ups[HIDDEN_COLS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, pair = blockIdx.y;
    prefetch_row(a.x, pair / a.of.used);
    const int32_t e = taken_expert(a.of, pair, words[warp]);
    if (e < 0)
        return;
    uint8_t *slots = all_slots + warp * 4 * slot<W>::BYTES;
    const uint8_t *g = expert_at(a.gate, e), *u = expert_at(a.up, e);
    const uint8_t *const end[4] = {g + a.gate.bytes, u + a.up.bytes, g + a.gate.bytes, u + a.up.bytes};
    const q8_row x = q8_at(a.x.data + pair / a.of.used * a.x.stride, a.cols);
    const uint32_t n_chunks = ((a.cols / 32 + 1) / 2 + 31) / 32, row_bytes = row_length<W>(a.cols);
    uint32_t col = 4 * warp;
    const uint8_t *row[4];
    const auto rows_from = [&](uint32_t c) {
        const uint64_t at = blockIdx.x * HIDDEN_COLS + c;
        row[0] = g + at * a.gate.stride, row[1] = u + at * a.up.stride;
        row[2] = row[0] + a.gate.stride, row[3] = row[1] + a.up.stride;
    };
    rows_from(col);
    stager<W, 4> next;
    next.load(row, end, row_bytes, 0);
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++, col += 2) {
        float acc[4] = {};
        for (uint32_t c = 0; c < n_chunks; c++) {
            const uint8_t *const now[4] = {row[0], row[1], row[2], row[3]};
            next.store(slots);
            if (c + 1 < n_chunks) {
                next.load(row, end, row_bytes, c + 1);
            } else if (pass == 0) {
                rows_from(col + 2);
                next.load(row, end, row_bytes, 0);
            }
            const uint32_t at = c * 32 + lane, n_groups = a.cols / 32;
            x_unit<W> xu;
            xu.load(x, at, n_groups);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                __syncwarp(); /* one row at a time: all at once take so many registers that few warps fit */
                if (at >= (n_groups + 1) / 2)
                    continue;
                unit u;
                W::decode(slots + i * slot<W>::BYTES + ((uint32_t)(uintptr_t)now[i] & 15), (int)lane, u);
                acc[i] = xu.dot(u, at, n_groups, acc[i]);
            }
            __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[i] = warp_sum(acc[i]);
        if (lane == 0) {
            gates[col] = acc[0], ups[col] = acc[1];
            gates[col + 1] = acc[2], ups[col + 1] = acc[3];
        }
    }
    __syncthreads();
    if (warp == 0)
        quantize_group(a.y, pair, blockIdx.x, glu_value(gates[lane], ups[lane], a.silu));
}

template <class W> __global__ void __launch_bounds__(128) hidden_f(hidden_args a) {
    __shared__ uint32_t words[4][32];
    const uint32_t warp = threadIdx.x / 32, col = blockIdx.x * 4 + warp, pair = blockIdx.y;
    const int32_t e = taken_expert(a.of, pair, words[warp]);
    if (e < 0 || col >= a.ff)
        return;
    const uint8_t *const row[2] = {expert_at(a.gate, e) + col * a.gate.stride,
                                   expert_at(a.up, e) + col * a.up.stride};
    const float *const x[1] = {row_f32(a.x, pair / a.of.used)};
    float acc[2][1] = {};
    dot_rows_f<W, 2, 1, 4>(row, a.cols, x, acc);
    acc[0][0] = warp_sum(acc[0][0]);
    acc[1][0] = warp_sum(acc[1][0]);
    if ((threadIdx.x & 31) == 0)
        row_f32(a.y, pair)[col] = glu_value(acc[0][0], acc[1][0], a.silu);
}

struct down_args {
    experts down;
    choice of;
    rows h, residual, y;
    uint32_t ff, out;
};

/* A token's pairs that the call takes, in ascending order of expert, and their slots. Shared, of one warp. */
struct order {
    sel pair[32];
    uint32_t slot[32], words[32];
};
/* Returns how many. */
__device__ __forceinline__ uint32_t sort_pairs(const choice &c, uint32_t t, order &o) {
    const uint32_t lane = threadIdx.x & 31;
    sel mine = {-1, 0};
    if (lane < c.used)
        mine = selection_row(c, t)[lane];
    const uint32_t set = taken_word(c, o.words);
    const bool here = takes(c, set, mine.expert);
    const uint32_t all = __ballot_sync(0xffffffffu, here);
    uint32_t rank = 0;
    for (uint32_t k = 0; k < c.used; k++) {
        const int32_t e = __shfl_sync(0xffffffffu, mine.expert, (int)k);
        rank += (all >> k & 1) && (e < mine.expert || (e == mine.expert && k < lane));
    }
    if (here)
        o.pair[rank] = mine, o.slot[rank] = lane;
    __syncwarp();
    return (uint32_t)__popc(all);
}

/* Row r of sums: what each warp has of output row first + r. */
template <int R>
__device__ __forceinline__ void down_store(const down_args &a, const float (&sums)[DOWN_WARPS][R],
                                           uint32_t first, uint32_t t) {
    const uint32_t r = threadIdx.x, row = first + r;
    if (r >= R || row >= a.out)
        return;
    float v = 0;
#pragma unroll
    for (int w = 0; w < DOWN_WARPS; w++)
        v += sums[w][r];
    row_f32(a.y, t)[row] = v + (a.residual.data ? row_f32(a.residual, t)[row] : 0.0f);
}
__device__ __forceinline__ void down_finish(const down_args &a, float (&acc)[DOWN_ROWS], uint32_t first,
                                            uint32_t t) {
    __shared__ float sums[DOWN_WARPS][DOWN_ROWS];
    const uint32_t warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < DOWN_ROWS; r++) {
        acc[r] = warp_sum(acc[r]);
        if ((threadIdx.x & 31) == 0)
            sums[warp][r] = acc[r];
    }
    __syncthreads();
    down_store(a, sums, first, t);
}

/* A block makes DOWN_ROWS output rows of a token; its warps share the experts, and are added up in order. */
template <class W> __global__ void __launch_bounds__(32 * DOWN_WARPS) down_q(down_args a) {
    constexpr int R = DOWN_ROWS;
    __shared__ __align__(16) uint8_t slots[DOWN_WARPS][R * slot<W>::BYTES];
    __shared__ order orders[DOWN_WARPS];
    const uint32_t warp = threadIdx.x / 32, first = blockIdx.x * R, t = blockIdx.y;
    const uint32_t n = sort_pairs(a.of, t, orders[warp]);
    float acc[R] = {};
    for (uint32_t k = warp; k < n; k += DOWN_WARPS) {
        const uint8_t *w = expert_at(a.down, orders[warp].pair[k].expert);
        const uint8_t *row[R], *end[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            row[r] = w + min(first + (uint32_t)r, a.out - 1) * a.down.stride, end[r] = w + a.down.bytes;
        const q8_row x[1] = {q8_at(a.h.data + (t * a.of.used + orders[warp].slot[k]) * a.h.stride, a.ff)};
        float part[R][1] = {};
        dot_rows<W, R, 1>(row, end, a.ff, x, slots[warp], part);
#pragma unroll
        for (int r = 0; r < R; r++)
            acc[r] = fmaf(orders[warp].pair[k].weight, part[r][0], acc[r]);
    }
    down_finish(a, acc, first, t);
}

/* N chunks of a byte stream on their way, as in stager. */
template <class W, int N> struct span {
    static constexpr int BYTES = N * W::CHUNK, PIECES = (BYTES + 15 + 15) / 16, LOADS = (PIECES + 31) / 32,
                         SLOT = PIECES * 16 + 16;
    uint4 v[LOADS];
    /* `bytes` from p; the matrix ends at `end`. */
    __device__ __forceinline__ void load(const uint8_t *p, uint32_t bytes, const uint8_t *end) {
        const uint32_t lane = threadIdx.x & 31, lead = (uint32_t)(uintptr_t)p & 15;
#pragma unroll
        for (int k = 0; k < LOADS; k++) {
            const uint32_t at = 16 * (lane + 32 * (uint32_t)k);
            const uint8_t *from = p - lead + at;
            v[k] = make_uint4(0, 0, 0, 0);
            if (at < bytes + lead)
                v[k] = from + 16 <= end ? load_stream(from) : load_end(from, end);
        }
    }
    __device__ __forceinline__ void store(uint8_t *to) const {
        const uint32_t lane = threadIdx.x & 31;
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            if (lane + 32 * k < PIECES)
                *(uint4 *)(to + 16 * (lane + 32 * k)) = v[k];
    }
};

/* The same for rows of fewer than 32 units, which would leave lanes idle: FLAT_ROWS rows lie one behind the other and are one
 * stream of units. The units of a row are added up four ways, by four lanes, and these in a tree. */
template <class W> __global__ void __launch_bounds__(32 * DOWN_WARPS) down_flat(down_args a) {
    constexpr int R = FLAT_ROWS, N = W::CHUNK > 1500 ? 2 : 3;
    typedef span<W, N> stream;
    __shared__ __align__(16) uint8_t slots[DOWN_WARPS][stream::SLOT];
    __shared__ float parts[DOWN_WARPS][R * 32], sums[DOWN_WARPS][R];
    __shared__ order orders[DOWN_WARPS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, first = blockIdx.x * R, t = blockIdx.y;
    const uint32_t n = sort_pairs(a.of, t, orders[warp]);
    const uint32_t per_row = a.ff / 64, n_rows = min((uint32_t)R, a.out - first), units = n_rows * per_row,
                   bytes = n_rows * row_length<W>(a.ff);
    float acc = 0;
    for (uint32_t k = warp; k < n; k += DOWN_WARPS) {
        const uint8_t *w = expert_at(a.down, orders[warp].pair[k].expert), *end = w + a.down.bytes;
        w += first * a.down.stride;
        const q8_row x[1] = {q8_at(a.h.data + (t * a.of.used + orders[warp].slot[k]) * a.h.stride, a.ff)};
        stream next;
        next.load(w, min(bytes, (uint32_t)stream::BYTES), end);
        for (uint32_t from = 0; from < bytes; from += stream::BYTES) {
            next.store(slots[warp]);
            if (from + stream::BYTES < bytes)
                next.load(w + from + stream::BYTES,
                          min(bytes - from - stream::BYTES, (uint32_t)stream::BYTES), end);
            __syncwarp();
            const uint8_t *here = slots[warp] + ((uint32_t)(uintptr_t)(w + from) & 15);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const uint32_t u = from / W::CHUNK * 32 + 32 * i + lane;
                if (u < units) {
                    unit v[1];
                    W::decode(here + i * W::CHUNK, (int)lane, v[0]);
                    float dot[1][1] = {};
                    unit_dot<W>(v, u % per_row, a.ff / 32, x, dot);
                    parts[warp][u] = dot[0][0];
                }
            }
            __syncwarp();
        }
        const uint32_t r = lane / 4;
        float sum = 0;
        if (r < n_rows)
            for (uint32_t u = lane & 3; u < per_row; u += 4)
                sum += parts[warp][r * per_row + u];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        acc = fmaf(orders[warp].pair[k].weight, sum, acc);
        __syncwarp();
    }
    if (lane % 4 == 0)
        sums[warp][lane / 4] = acc;
    __syncthreads();
    down_store(a, sums, first, t);
}

template <class W> __global__ void __launch_bounds__(32 * DOWN_WARPS) down_f(down_args a) {
    constexpr int R = DOWN_ROWS;
    __shared__ order orders[DOWN_WARPS];
    const uint32_t warp = threadIdx.x / 32, first = blockIdx.x * R, t = blockIdx.y;
    const uint32_t n = sort_pairs(a.of, t, orders[warp]);
    float acc[R] = {};
    for (uint32_t k = warp; k < n; k += DOWN_WARPS) {
        const uint8_t *w = expert_at(a.down, orders[warp].pair[k].expert), *row[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            row[r] = w + min(first + (uint32_t)r, a.out - 1) * a.down.stride;
        const float *const x[1] = {row_f32(a.h, t * a.of.used + orders[warp].slot[k])};
        float part[R][1] = {};
        dot_rows_f<W, R, 1, 2>(row, a.ff, x, part);
#pragma unroll
        for (int r = 0; r < R; r++)
            acc[r] = fmaf(orders[warp].pair[k].weight, part[r][0], acc[r]);
    }
    down_finish(a, acc, first, t);
}

struct family {
    ps_dtype type;
    bool q8;
    uint32_t hidden_shared; /* bytes */
    void (*hidden)(hidden_args);
    void (*down)(down_args);
    void (*flat)(down_args); /* NULL: none */
};
#define Q_FAMILY(id, W)                                                                                      \
    { PS_DTYPE_##id, true, HIDDEN_WARPS * 4 * slot<W>::BYTES, hidden_q<W>, down_q<W>, down_flat<W> }
#define F_FAMILY(id, W)                                                                                      \
    { PS_DTYPE_##id, false, 0, hidden_f<W>, down_f<W>, nullptr }
const family families[] = {
    F_FAMILY(F32, type_f32),   F_FAMILY(F16, type_f16),   F_FAMILY(BF16, type_bf16),
    Q_FAMILY(Q4_0, type_q4_0), Q_FAMILY(Q4_1, type_q4_1), Q_FAMILY(Q5_0, type_q5_0),
    Q_FAMILY(Q5_1, type_q5_1), Q_FAMILY(Q8_0, type_q8_0), Q_FAMILY(Q4_K, type_q4_k),
    Q_FAMILY(Q5_K, type_q5_k), Q_FAMILY(Q6_K, type_q6_k),
};
const family *family_of(ps_dtype type) {
    for (const family &f : families)
        if (f.type == type)
            return &f;
    return nullptr;
}

} // namespace

cudaError_t launch_moe(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a) {
        for (const family &f : families) {
            cudaError_t e = load(f.hidden);
            e = e ? e : load(f.down);
            e = e || !f.flat ? e : load(f.flat);
            if (e)
                return e;
        }
        return cudaSuccess;
    }
    if (a->n_tokens == 0)
        return cudaSuccess;
    const family *in = family_of(a->w[0].type), *out = family_of(a->w[2].type);
    const uint32_t used = (uint32_t)a->src[1].cols, ff = (uint32_t)a->w[0].rows, pairs = a->n_tokens * used;
    const bool q8 = in && in->q8;
    if (!in || !out || a->w[1].type != a->w[0].type || used > PS_CUDA_MAX_USED || out->q8 != q8 ||
        (a->src[0].fmt == PS_FMT_Q8) != q8 || (q8 && ff % HIDDEN_COLS) ||
        a->n_tokens > PS_CUDA_MATVEC_TOKENS || a->w[0].experts > PS_MAX_EXPERTS)
        return cudaErrorNotSupported;
    const ps_fmt fmt = q8 ? PS_FMT_Q8 : PS_FMT_F32;
    const ps_xarg h = {a->scratch, fmt, ff, ps_fmt_row_bytes(fmt, ff)};
    const choice of = choice_of(a);
    const hidden_args ha = {experts_of(a, 0), experts_of(a, 1),       of, rows_of(a->src[0]),
                            rows_of(h),       (uint32_t)a->w[0].cols, ff, a->model->glu == PS_GLU_SILU};
    if (pairs > 0 && a->n_rows > 0) {
        if (in->hidden_shared > 48 << 10)
            if (cudaError_t e =
                    cudaFuncSetAttribute((const void *)in->hidden,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)in->hidden_shared))
                return e;
        if (q8)
            PS_LAUNCH(in->hidden, dim3(ff / HIDDEN_COLS, pairs), 32 * HIDDEN_WARPS, in->hidden_shared,
                      stream_of(on))
        (ha);
        else PS_LAUNCH(in->hidden, dim3((ff + 3) / 4, pairs), 128, 0, stream_of(on))(ha);
    }
    const down_args da = {experts_of(a, 2),      of, rows_of(h), rows_of(a->src[2]), rows_of(a->dst), ff,
                          (uint32_t)a->w[2].rows};
    uint64_t length = 0;
    const bool flat = out->flat && ff % 64 == 0 && ff < 64 * 32 &&
                      ps_dtype_bytes(a->w[2].type, ff, &length) && length == a->w[2].row_bytes;
    const uint32_t per_block = flat ? FLAT_ROWS : DOWN_ROWS;
    PS_LAUNCH((flat ? out->flat : out->down), dim3((da.out + per_block - 1) / per_block, a->n_tokens),
              32 * DOWN_WARPS, 0, stream_of(on))
    (da);
    return cudaGetLastError();
}

} // namespace psc
