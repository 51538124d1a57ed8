/* MATMUL for 1 to 8 token rows: weights are read once for all of them. A warp makes R rows of the result. */
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/launch.cuh"

namespace psc {
namespace {

enum { Q_WARPS = 4 };

struct matvec_args {
    const uint8_t *w, *w_end;
    uint64_t w_stride;
    uint32_t cols, row0, n_rows, n_tokens;
    rows x, residual, y;
    const float *bias;
};

/* Lane 0 has the sums. */
template <int R, int T>
__device__ __forceinline__ void finish(const matvec_args &a, uint32_t first, float (&acc)[R][T]) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int t = 0; t < T; t++)
            acc[r][t] = warp_sum(acc[r][t]);
    if (threadIdx.x & 31)
        return;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (first + r >= a.n_rows)
            break;
        const uint32_t row = a.row0 + first + r;
#pragma unroll
        for (int t = 0; t < T; t++) {
            if ((uint32_t)t >= a.n_tokens)
                break;
            float v = acc[r][t];
            if (a.bias)
                v += a.bias[row];
            if (a.residual.data)
                v += row_f32(a.residual, t)[row];
            row_f32(a.y, t)[row] = v;
        }
    }
}

template <int R>
__device__ __forceinline__ void row_starts(const matvec_args &a, uint32_t first, const uint8_t *(&row)[R]) {
#pragma unroll
    for (int r = 0; r < R; r++)
        row[r] = a.w + (uint64_t)(a.row0 + min(first + (uint32_t)r, a.n_rows - 1)) * a.w_stride;
}

/* A warp goes from one group of R rows to the next, and asks for the next group's first chunk while it is still at this
 * group's last. */
template <class W, int R, int T> __global__ void __launch_bounds__(32 * Q_WARPS) matvec_q(matvec_args a) {
    __shared__ __align__(16) uint8_t slots_of[Q_WARPS][R * slot<W>::BYTES];
    const uint32_t warp = threadIdx.x / 32, n_warps = gridDim.x * Q_WARPS, n_groups = (a.n_rows + R - 1) / R;
    uint32_t group = blockIdx.x * Q_WARPS + warp;
    if (group >= n_groups)
        return;
    uint8_t *slots = slots_of[warp];
    q8_row x[T];
#pragma unroll
    for (int t = 0; t < T; t++)
        x[t] = q8_at(a.x.data + min((uint32_t)t, a.n_tokens - 1) * a.x.stride, a.cols);
    const uint32_t n_chunks = ((a.cols / 32 + 1) / 2 + 31) / 32, row_bytes = row_length<W>(a.cols);
    const uint8_t *row[R], *ahead[R], *end[R];
#pragma unroll
    for (int r = 0; r < R; r++)
        end[r] = a.w_end;
    row_starts(a, group * R, row);
    stager<W, R> next;
    next.load(row, end, row_bytes, 0);
    float acc[R][T] = {};
    for (uint32_t c = 0; group < n_groups;) {
        /* What comes after chunk c: the rows' next one, or the first of the next group. */
        const bool last = c + 1 == n_chunks;
        const uint32_t c_ahead = last ? 0 : c + 1, group_ahead = last ? group + n_warps : group;
        next.store(slots);
        row_starts(a, group_ahead * R, ahead);
        if (group_ahead < n_groups)
            next.load(ahead, end, row_bytes, c_ahead);
        __syncwarp();
        chunk_dot<W>(slots, row, c, a.cols, x, acc);
        __syncwarp();
        if (last) {
            finish(a, group * R, acc);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int t = 0; t < T; t++)
                    acc[r][t] = 0;
        }
#pragma unroll
        for (int r = 0; r < R; r++)
            row[r] = ahead[r];
        group = group_ahead;
        c = c_ahead;
    }
}

template <class W, int R, int T, int UNROLL> __global__ void __launch_bounds__(128) matvec_f(matvec_args a) {
    const uint32_t first = (blockIdx.x * 4 + threadIdx.x / 32) * R;
    if (first >= a.n_rows)
        return;
    const uint8_t *row[R];
    row_starts(a, first, row);
    const float *x[T];
#pragma unroll
    for (int t = 0; t < T; t++)
        x[t] = row_f32(a.x, min((uint32_t)t, a.n_tokens - 1));
    float acc[R][T] = {};
    dot_rows_f<W, R, T, UNROLL>(row, a.cols, x, acc);
    finish(a, first, acc);
}

typedef void (*kernel_fn)(matvec_args);
/* Of a type, for 1, 2, 4 and 8 token rows: rows per warp grow with them, since each activation that is read serves
 * all rows of the warp. */
struct family {
    ps_dtype type;
    bool q8;
    kernel_fn kernel[4];
};
/* Two rows for one and two tokens: more leaves too few warps to hide latency (13.7 us became 16.0 with four). */
const int rows_q[4] = {2, 2, 4, 4}, rows_f[4] = {2, 2, 4, 4};
#define Q_FAMILY(id, W)                                                                                      \
    {                                                                                                        \
        PS_DTYPE_##id, true, {                                                                               \
            matvec_q<W, 2, 1>, matvec_q<W, 2, 2>, matvec_q<W, 4, 4>, matvec_q<W, 4, 8>                       \
        }                                                                                                    \
    }
#define F_FAMILY(id, W)                                                                                      \
    {                                                                                                        \
        PS_DTYPE_##id, false, {                                                                              \
            matvec_f<W, 2, 1, 4>, matvec_f<W, 2, 2, 4>, matvec_f<W, 4, 4, 2>, matvec_f<W, 4, 8, 1>           \
        }                                                                                                    \
    }
const family families[] = {
    F_FAMILY(F32, type_f32),   F_FAMILY(F16, type_f16),   F_FAMILY(BF16, type_bf16),
    Q_FAMILY(Q4_0, type_q4_0), Q_FAMILY(Q4_1, type_q4_1), Q_FAMILY(Q5_0, type_q5_0),
    Q_FAMILY(Q5_1, type_q5_1), Q_FAMILY(Q8_0, type_q8_0), Q_FAMILY(Q4_K, type_q4_k),
    Q_FAMILY(Q5_K, type_q5_k), Q_FAMILY(Q6_K, type_q6_k),
};

} // namespace

cudaError_t launch_matvec(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a) {
        for (const family &f : families)
            for (kernel_fn k : f.kernel)
                if (cudaError_t e = load(k))
                    return e;
        return cudaSuccess;
    }
    if (a->n_tokens == 0 || a->n_rows == 0)
        return cudaSuccess;
    const ps_warg &w = a->w[0];
    /* A range of columns may begin anywhere in its matrix, which begins at a multiple of 16 bytes: pieces are read from
     * there on. Super-blocks of 16-byte multiples are read as they lie. */
    const uint32_t align = w.type == PS_DTYPE_Q4_K || w.type == PS_DTYPE_Q5_K ? 16
                           : w.type == PS_DTYPE_F32                           ? 4
                                                                              : 2;
    if (a->n_tokens > PS_CUDA_MATVEC_TOKENS || (uintptr_t)w.data % align || w.row_bytes % align ||
        w.cols > UINT32_MAX / 8 || (a->w[1].data && a->w[1].type != PS_DTYPE_F32))
        return cudaErrorNotSupported;
    for (const family &f : families) {
        if (f.type != w.type)
            continue;
        if ((a->src[0].fmt == PS_FMT_Q8) != f.q8)
            return cudaErrorNotSupported;
        uint64_t length = 0;
        if (!ps_dtype_bytes(w.type, w.cols, &length))
            return cudaErrorNotSupported;
        const int i = a->n_tokens <= 1 ? 0 : a->n_tokens <= 2 ? 1 : a->n_tokens <= 4 ? 2 : 3;
        const matvec_args args = {w.data,
                                  w.data + (w.rows - 1) * w.row_bytes + length,
                                  w.row_bytes,
                                  (uint32_t)w.cols,
                                  (uint32_t)a->row0,
                                  (uint32_t)a->n_rows,
                                  a->n_tokens,
                                  rows_of(a->src[0]),
                                  rows_of(a->src[1]),
                                  rows_of(a->dst),
                                  (const float *)a->w[1].data};
        const uint32_t warps = Q_WARPS, per_block = warps * (uint32_t)(f.q8 ? rows_q[i] : rows_f[i]);
        uint32_t blocks = (uint32_t)((a->n_rows + per_block - 1) / per_block);
        if (f.q8) { /* no more than run at once */
            int device = 0, n_sm = 0, at_once = 0;
            cudaError_t e = cudaGetDevice(&device);
            e = e ? e : cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device);
            e = e ? e : cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, f.kernel[i], 32 * Q_WARPS, 0);
            if (e)
                return e;
            const uint32_t most = (uint32_t)n_sm * (uint32_t)(at_once > 0 ? at_once : 1);
            blocks = blocks < most ? blocks : most;
        }
        PS_LAUNCH(f.kernel[i], blocks, 32 * warps, 0, stream_of(on))(args);
        return cudaGetLastError();
    }
    return cudaErrorNotSupported;
}

} // namespace psc
