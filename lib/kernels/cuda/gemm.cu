/* MATMUL by cuBLAS, for many token rows: weights become halves in scratch, a piece that stays in the L2 cache at a time, and
 * are multiplied from there. Pieces are PIECE_COLS columns of as many rows as fit, so that each product has rows enough to
 * fill a GPU; sums over several pieces are added up in the destination, in ascending columns. */
#include "kernels/cuda/blas.cuh"
#include "kernels/cuda/products.cuh"

namespace psc {
namespace {

enum { PIECE_COLS = 8192, ROW_TILE = 32, THREADS = 128 };

/* Columns [256 load, ...) of ROW_TILE rows as halves: block (load, tile of rows). `first_load` is out's column 0; out
 * has rows of out_cols halves. */
template <class W>
__global__ void __launch_bounds__(THREADS) dequantize(weight_rows w, uint32_t first_row, uint32_t first_load,
                                                      uint32_t out_cols, uint32_t n_rows, uint8_t *out) {
    __shared__ __align__(128) uint8_t slots[ROW_TILE * load_slot<W>::SLOT];
    const uint32_t tile = blockIdx.y * ROW_TILE, load = first_load + blockIdx.x;
    const packed_tile packed(w, first_row + tile);
    packed.ask<W, ROW_TILE, THREADS>(load, slots);
    copy_commit();
    wait_dependencies(); /* the product of the piece before reads `out`; nothing writes weights */
    copy_wait<0>();
    __syncthreads();
    const uint32_t row = (threadIdx.x >> 5) * 8 + (threadIdx.x & 7), part = threadIdx.x >> 3 & 3;
    if (tile + row >= n_rows)
        return;
    const uint8_t *slot = slots + row * load_slot<W>::SLOT + packed.lead<W>(row, load);
    uint8_t *to = out + 2 * (uint64_t)(tile + row) * out_cols;
#pragma unroll
    for (uint32_t unit = 0; unit < W::UNITS; unit++) {
        uint32_t v[8], low[8];
        const uint32_t at = blockIdx.x * W::UNITS + unit;
        W::make(slot, unit, part, 1.0f, v, low);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t col = W::column(at, W::piece(part, k));
            if (col < out_cols) /* blocks have 32 columns at least: a piece is whole or not there */
                *(uint4 *)(to + 2 * col) = make_uint4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
        }
    }
}

typedef void (*dequantize_fn)(weight_rows, uint32_t, uint32_t, uint32_t, uint32_t, uint8_t *);
struct choice {
    ps_dtype type;
    dequantize_fn fn;
    uint32_t load_cols, align;
};
#define CHOICE(id, W)                                                                                        \
    { PS_DTYPE_##id, dequantize<W>, 64 * W::UNITS, W::ALIGN }
const choice choices[] = {
    CHOICE(Q4_0, half_q4_0), CHOICE(Q4_1, half_q4_1), CHOICE(Q5_0, half_q5_0), CHOICE(Q5_1, half_q5_1),
    CHOICE(Q8_0, half_q8_0), CHOICE(Q4_K, half_q4_k), CHOICE(Q5_K, half_q5_k), CHOICE(Q6_K, half_q6_k),
};

/* Block t: token row t. Rows that have a scale get their residual divided by it first, and are multiplied by it in the
 * end; all other rows are nothing to do where the residual already lies in the destination. */
__global__ void __launch_bounds__(256)
    put_residual(rows y, rows residual, const float *bias, const uint8_t *x_scale, uint64_t x_stride,
                 uint32_t row0, uint32_t n_rows) {
    const uint32_t t = blockIdx.x;
    const float scale = *(const float *)(x_scale + t * x_stride);
    if (scale == 1.0f && !bias && residual.data == y.data)
        return;
    float *to = row_f32(y, t) + row0;
    const float *from = residual.data ? row_f32(residual, t) + row0 : nullptr;
    for (uint32_t i = threadIdx.x; i < n_rows; i += blockDim.x) {
        const float v = (bias ? bias[row0 + i] : 0.0f) + (from ? from[i] : 0.0f);
        to[i] = v / scale;
    }
}
__global__ void __launch_bounds__(256)
    put_scale(rows y, const uint8_t *x_scale, uint64_t x_stride, uint32_t row0, uint32_t n_rows) {
    wait_dependencies();
    const uint32_t t = blockIdx.x;
    const float scale = *(const float *)(x_scale + t * x_stride);
    if (scale == 1.0f)
        return;
    float *to = row_f32(y, t) + row0;
    for (uint32_t i = threadIdx.x; i < n_rows; i += blockDim.x)
        to[i] *= scale;
}

/* All pieces of a quantised matrix. */
cudaError_t multiply_pieces(const product &p, const choice &c, const ps_kargs *a, const ps_cuda_on *on,
                            float beta) {
    uint8_t *piece = a->scratch, *workspace = piece + PS_CUDA_GEMM_PIECE;
    const uint32_t cols = p.w.cols < (uint32_t)PIECE_COLS ? p.w.cols : (uint32_t)PIECE_COLS;
    const uint64_t fit = PS_CUDA_GEMM_PIECE / (2 * (uint64_t)cols) / 256 * 256;
    bool early =
        false; /* behind a product of this call: before that the stream may wait for the weights to arrive */
    if (cudaError_t e = may_be_early(c.fn, &early))
        return e;
    for (uint64_t row = 0; row < p.w.n_rows; row += fit) {
        const uint32_t n = (uint32_t)(p.w.n_rows - row < fit ? p.w.n_rows - row : fit);
        float *y = (float *)p.y.data + a->row0 + row;
        for (uint32_t col = 0; col < p.w.cols; col += cols) {
            const uint32_t k = p.w.cols - col < cols ? p.w.cols - col : cols;
            const dim3 grid((k + c.load_cols - 1) / c.load_cols, (n + ROW_TILE - 1) / ROW_TILE);
            cudaError_t e = launch_early(c.fn, grid, THREADS, 0, early && (row || col), stream_of(on), p.w,
                                         (uint32_t)row, col / c.load_cols, k, n, piece);
            e = e ? e
                  : blas_multiply(on->blas, stream_of(on), workspace, PS_CUDA_GEMM_WORKSPACE, n, a->n_tokens,
                                  k, piece, k, p.x + 2 * (uint64_t)col, p.x_stride / 2, col ? 1.0f : beta, y,
                                  p.y.stride / 4);
            if (e)
                return e;
        }
    }
    return cudaSuccess;
}

} // namespace

cudaError_t launch_gemm(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a) {
        for (const choice &c : choices)
            if (cudaError_t e = load(c.fn))
                return e;
        const cudaError_t e = load(put_residual);
        return e ? e : load(put_scale);
    }
    if (!on->blas)
        return cudaErrorSharedObjectInitFailed;
    if (a->n_tokens == 0 || a->n_rows == 0)
        return cudaSuccess;
    product p;
    if (!product_of(a, &p) || p.y.stride % 4)
        return cudaErrorNotSupported;
    const choice *c = NULL;
    for (const choice &i : choices)
        if (i.type == a->w[0].type)
            c = &i;
    if (c ? (uintptr_t)p.w.data % c->align || p.w.stride % c->align
          : a->w[0].type != PS_DTYPE_F16 || p.w.stride % 2)
        return cudaErrorNotSupported;
    const bool add = p.bias || p.residual.data;
    if (add) {
        PS_LAUNCH(put_residual, a->n_tokens, 256, 0, stream_of(on))
        (p.y, p.residual, p.bias, p.x_scale, p.x_stride, (uint32_t)a->row0, p.w.n_rows);
        if (cudaError_t e = cudaGetLastError())
            return e;
    }
    const float beta = add ? 1.0f : 0.0f;
    const cudaError_t e =
        c ? multiply_pieces(p, *c, a, on, beta)
          : blas_multiply(on->blas, stream_of(on), a->scratch, PS_CUDA_GEMM_WORKSPACE, p.w.n_rows,
                          a->n_tokens, p.w.cols, p.w.data, p.w.stride / 2, p.x, p.x_stride / 2, beta,
                          (float *)p.y.data + a->row0, p.y.stride / 4);
    if (e)
        return e;
    bool early = false;
    if (cudaError_t asked = may_be_early(put_scale, &early))
        return asked;
    return launch_early(put_scale, a->n_tokens, 256, 0, early, stream_of(on), p.y, p.x_scale, p.x_stride,
                        (uint32_t)a->row0, p.w.n_rows);
}

} // namespace psc
