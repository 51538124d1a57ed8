/* What launchers of matrix products for many token rows read from the arguments of an instruction. */
#ifndef PS_KERNELS_CUDA_PRODUCTS_CUH
#define PS_KERNELS_CUDA_PRODUCTS_CUH

#include "kernels/cuda/dequant.cuh"
#include "kernels/cuda/launch.cuh"

namespace psc {

struct product {
    weight_rows w; /* rows from row0 on */
    const uint8_t *x;
    uint64_t x_stride;
    const uint8_t *x_scale; /* of row 0 */
    rows residual, y;       /* data NULL: no residual */
    const float *bias;      /* NULL: none is added here */
};

/* False: shapes or formats that these kernels do not take. Weights that are a range of columns may begin anywhere in the
 * rows of their matrix, which begins at a multiple of 16 bytes. */
inline bool product_of(const ps_kargs *a, product *out) {
    const ps_warg &w = a->w[0];
    const ps_xarg &x = a->src[0];
    uint64_t row_bytes = 0;
    if (x.fmt != PS_FMT_F16S || a->dst.fmt != PS_FMT_F32 || !ps_dtype_bytes(w.type, w.cols, &row_bytes) ||
        (a->w[1].data && a->w[1].type != PS_DTYPE_F32))
        return false;
    if (w.cols != x.cols)
        return false;
    if (x.cols > UINT32_MAX / 8 || row_bytes > UINT32_MAX / 8 || w.rows > UINT32_MAX / 8 || w.rows == 0 ||
        a->row0 + a->n_rows > w.rows || a->n_tokens > UINT32_MAX / 8)
        return false;
    if ((uintptr_t)x.data % 16 || x.row_bytes % 16 || x.row_bytes >= MAX_STRIDE || w.row_bytes >= MAX_STRIDE)
        return false;
    out->w.data = w.data + a->row0 * w.row_bytes;
    out->w.end = w.data + (w.rows - 1) * w.row_bytes + row_bytes;
    out->w.stride = w.row_bytes;
    out->w.row_bytes = (uint32_t)row_bytes;
    out->w.n_rows = (uint32_t)a->n_rows;
    out->w.cols = (uint32_t)w.cols;
    out->x = (const uint8_t *)x.data;
    out->x_stride = x.row_bytes;
    out->x_scale = (const uint8_t *)x.data + ps_f16s_scale_offset(x.cols);
    out->residual = rows_of(a->src[1]);
    out->y = rows_of(a->dst);
    out->bias = (const float *)a->w[1].data;
    return true;
}

} // namespace psc
#endif
