/* Matrix products for many token rows (activations F16S): part of test_cuda_kernels.cu. Every tile of the tensor-core kernels and
 * the choice among them must give the same bits, from VRAM and from mapped host memory. Beside the whole result's
 * error each element's is held against the sum of the absolute values of its products, half as much again, so that no row
 * hides behind a larger one. */
#ifndef PS_TESTS_GPU_MATMUL_CASES_CUH
#define PS_TESTS_GPU_MATMUL_CASES_CUH

#include "kernels/cuda/launch.cuh"

struct matmul_shape {
    uint32_t tokens, cols, rows, row0, n_rows;
    uint32_t col0, all_cols; /* the range of columns begins at col0 of all_cols */
};
static const matmul_shape matmul_shapes[] = {
    {9, 4096, 300, 0, 300, 0, 4096},   {33, 256, 77, 13, 50, 0, 256},     {65, 512, 129, 0, 129, 256, 1024},
    {130, 1280, 140, 1, 139, 0, 1536}, {17, 96, 21, 0, 21, 0, 96},        {12, 32, 5, 0, 5, 0, 32},
    {1, 512, 70, 3, 64, 0, 512},       {300, 256, 260, 0, 260, 512, 768}, {10, 1120, 40, 0, 40, 0, 1120},
    {257, 2048, 130, 0, 130, 0, 2048}, {64, 768, 64, 0, 64, 1024, 1792},  {11, 14336, 36, 2, 33, 0, 14336},
    {9, 37, 9, 0, 9, 0, 37},           {70, 203, 67, 1, 65, 24, 227},     {20, 64, 33, 0, 33, 8, 72},
};

/* Ranges of columns for the kernels of few token rows: all else of them is in test_matvec. */
static const matmul_shape matvec_ranges[] = {
    {1, 256, 77, 3, 70, 256, 1024}, {5, 512, 33, 0, 33, 512, 1280}, {8, 768, 20, 1, 18, 256, 1024},
    {3, 96, 21, 0, 21, 64, 224},    {2, 40, 9, 0, 9, 24, 67},       {1, 32, 5, 0, 5, 96, 160},
};

/* F16S rows of the values of a filling; some rows of OUTLIERS need a scale and their neighbours none. */
static ps_xarg f16s_source(test_case &c, uint64_t cols, uint64_t rows, fill how) {
    ps_xarg x = new_act(c, PS_FMT_F16S, cols, rows);
    std::vector<float> v(cols);
    for (uint64_t t = 0; t < rows; t++) {
        float most = 0, scale = 1;
        for (float &f : v) {
            f = value(how, (uint32_t)t, uniform()) * (how == OUTLIERS && t % 3 == 1 ? 1e7f : 1.0f);
            most = fmaxf(most, fabsf(f));
        }
        while (most / scale > 32768)
            scale *= 2;
        uint8_t *row = (uint8_t *)x.data + t * x.row_bytes;
        for (uint64_t i = 0; i < cols; i++)
            ((uint16_t *)row)[i] = ps_f32_to_f16(v[i] / scale);
        memcpy(row + ps_f16s_scale_offset(cols), &scale, 4);
    }
    return x;
}

/* The same values as floats. */
static ps_xarg as_floats(test_case &c, const ps_xarg &x, uint64_t rows) {
    ps_xarg f = new_act(c, PS_FMT_F32, x.cols, rows);
    for (uint64_t t = 0; t < rows; t++) {
        const uint8_t *row = (const uint8_t *)x.data + t * x.row_bytes;
        float *out = (float *)((uint8_t *)f.data + t * f.row_bytes), scale = 1;
        if (x.fmt == PS_FMT_F16S)
            memcpy(&scale, row + ps_f16s_scale_offset(x.cols), 4);
        for (uint64_t i = 0; i < x.cols; i++)
            out[i] = x.fmt == PS_FMT_F16S ? scale * ps_f16_to_f32(((const uint16_t *)row)[i])
                     : x.fmt == PS_FMT_Q8 ? ((const float *)(row + ps_q8_d_offset(x.cols)))[i / 32] *
                                                (float)((const int8_t *)row)[i]
                                          : ((const float *)row)[i];
    }
    return f;
}

/* Weights of all columns. Wide-ranged types get rows of very different size. */
static ps_warg matmul_weight(test_case &c, ps_dtype type, const matmul_shape &sh, fill how) {
    ps_warg w = weight(c, type, sh.all_cols, sh.rows);
    if (how != RANDOM && how != EQUAL)
        return w;
    for (uint64_t r = 0; r < sh.rows; r++) {
        const float by = r % 3 == 0 ? 1e15f : r % 3 == 1 ? 1e-15f : 1.0f;
        uint8_t *p = (uint8_t *)w.data + r * w.row_bytes;
        for (uint64_t i = 0; i < sh.all_cols; i++) {
            if (type == PS_DTYPE_F32)
                ((float *)p)[i] *= by;
            else if (type == PS_DTYPE_BF16)
                ((uint16_t *)p)[i] = ps_f32_to_bf16(ps_bf16_to_f32(((uint16_t *)p)[i]) * by);
        }
    }
    return w;
}

/* What the reference makes of the range: of a matrix of these columns alone and floats. */
static bool matmul_reference(test_case &c, const matmul_shape &sh, std::vector<double> *sizes) {
    const ps_dtype_info *info = ps_dtype_find(c.a.w[0].type);
    ps_kargs a = c.a;
    a.src[0] = as_floats(c, c.a.src[0], sh.tokens);
    ps_warg w = {NULL, c.a.w[0].type, sh.cols, sh.rows, 1, sh.cols / info->block_elems * info->block_bytes};
    uint8_t *data = (uint8_t *)c.mem.alloc(w.row_bytes * w.rows);
    for (uint64_t r = 0; r < w.rows; r++)
        memcpy(data + r * w.row_bytes, c.a.w[0].data + r * c.a.w[0].row_bytes, w.row_bytes);
    w.data = data;
    a.w[0] = w;
    ps_error err;
    if (ps_ref_run(PS_OP_MATMUL, &a, &err) != PS_OK) {
        printf("FAILED reference: %s\n", err.message);
        return false;
    }
    std::vector<float> f(sh.cols);
    sizes->assign((size_t)sh.tokens * sh.rows, 0);
    for (uint64_t r = sh.row0; r < sh.row0 + sh.n_rows; r++) {
        ps_dequantize_row(w.type, data + r * w.row_bytes, f.data(), sh.cols);
        /* Weights that are the difference of two rounded products are as exact as the largest of their group. */
        if (w.type == PS_DTYPE_Q4_K || w.type == PS_DTYPE_Q5_K)
            for (uint64_t g = 0; g < sh.cols; g += 32) {
                float most = 0;
                for (uint64_t i = g; i < g + 32; i++)
                    most = fmaxf(most, fabsf(f[i]));
                for (uint64_t i = g; i < g + 32; i++)
                    f[i] = most;
            }
        for (uint64_t t = 0; t < sh.tokens; t++) {
            const float *x = (const float *)((const uint8_t *)a.src[0].data + t * a.src[0].row_bytes);
            double sum = 0;
            for (uint64_t i = 0; i < sh.cols; i++)
                sum += fabs((double)f[i] * (double)x[i]);
            if (a.w[1].data)
                sum += fabs((double)((const float *)a.w[1].data)[r]);
            if (a.src[1]
                    .data) /* may be the destination, which holds the sum by now: no larger than twice these */
                sum += fabs(
                    (double)((const float *)((const uint8_t *)a.src[1].data + t * a.src[1].row_bytes))[r]);
            (*sizes)[t * sh.rows + r] = sum;
        }
    }
    return true;
}

static void matmul_case(const spec &s, const matmul_shape &sh, fill how, bool bias, int residual,
                        ps_cuda_blas *blas) {
    test_case c;
    char what[128];
    snprintf(what, sizeof what, "T %u, %u (of %u) x %u, rows %u + %u%s%s", sh.tokens, sh.cols, sh.all_cols,
             sh.rows, sh.row0, sh.n_rows, bias ? ", bias" : "",
             residual == 2   ? ", residual in place"
             : residual == 1 ? ", residual"
                             : "");
    n_cases++;
    pool &m = c.mem;
    c.a.model = &c.model, c.a.layer = &c.layer;
    c.a.n_tokens = sh.tokens, c.a.row0 = sh.row0, c.a.n_rows = sh.n_rows;
    c.a.src[0] = s.in == PS_FMT_F16S ? f16s_source(c, sh.cols, sh.tokens, how)
                                     : source(c, s.in, sh.cols, sh.tokens, how);
    const ps_warg all = matmul_weight(c, s.wtype, sh, how);
    const ps_dtype_info *info = ps_dtype_find(s.wtype);
    const uint64_t offset = sh.col0 / info->block_elems * info->block_bytes;
    c.a.w[0] = all;
    c.a.w[0].cols = sh.cols;
    c.a.w[0].data = all.data + offset;
    if (bias)
        c.a.w[1] = weight(c, PS_DTYPE_F32, sh.rows, 1);
    c.a.dst = new_act(c, PS_FMT_F32, sh.rows, sh.tokens);
    memset(c.a.dst.data, 0xA5, c.a.dst.row_bytes * sh.tokens);
    if (residual)
        c.a.src[1] = source(c, PS_FMT_F32, sh.rows, sh.tokens, how);
    const size_t out_bytes = c.a.dst.row_bytes * sh.tokens;
    if (residual == 2) { /* outside the range it stays as it was */
        memcpy(c.a.dst.data, c.a.src[1].data, out_bytes);
        c.a.src[1].data = c.a.dst.data;
    }
    const std::vector<uint8_t> before((uint8_t *)c.a.dst.data, (uint8_t *)c.a.dst.data + out_bytes);
    ps_kargs d = c.a;
    d.src[0].data = m.to_device(c.a.src[0].data, c.a.src[0].row_bytes * sh.tokens);
    d.w[1].data = (const uint8_t *)m.to_device(c.a.w[1].data, bias ? 4 * (size_t)sh.rows : 0);
    if (residual == 1)
        d.src[1].data = m.to_device(c.a.src[1].data, out_bytes);
    d.dst.data = m.to_device(before.data(), out_bytes);
    if (residual == 2)
        d.src[1].data = d.dst.data;
    const uint64_t scratch =
        blas ? (uint64_t)PS_CUDA_GEMM_PIECE + PS_CUDA_GEMM_WORKSPACE : 4 * (uint64_t)sh.rows;
    CK(cudaMalloc((void **)&d.scratch, scratch));
    m.device.push_back(d.scratch);
    CK(cudaMemset(d.scratch, 0xFF, scratch)); /* NaN */
    const uint8_t *vram = (const uint8_t *)m.to_device(all.data, weight_bytes(all)) + offset;
    const uint8_t *mapped = (const uint8_t *)m.to_mapped(all.data, weight_bytes(all)) + offset;
    std::vector<uint8_t> first, got(out_bytes);
    const int n_ways = blas || s.in != PS_FMT_F16S ? 3 : 3 + psc::MATMUL_TILES;
    for (int way = 0; way < n_ways; way++) {
        ps_cuda_on on = {};
        ps_error err;
        on.blas = blas;
        d.w[0].data = way == 2 ? mapped : vram;
        CK(cudaMemcpy(d.dst.data, before.data(), out_bytes, cudaMemcpyHostToDevice));
        if (way < 3) {
            if (ps_cuda_launch(s.id, &d, &on, &err) != PS_OK) {
                printf("FAILED %s, %s, %s: %s\n", s.name, what, fill_names[how], err.message);
                n_failed++;
                return;
            }
        } else {
            const cudaError_t e = psc::launch_matmul_tile(&d, &on, (uint32_t)way - 3);
            if (e == cudaErrorNotSupported)
                continue;
            CK(e);
        }
        CK(cudaDeviceSynchronize());
        CK(cudaMemcpy(got.data(), d.dst.data, out_bytes, cudaMemcpyDeviceToHost));
        if (way == 0) {
            first = got;
        } else if (got != first) {
            printf("FAILED %s, %s, %s: bits differ (way %d)\n", s.name, what, fill_names[how], way);
            n_failed++;
            return;
        }
    }
    std::vector<double> sizes;
    if (!matmul_reference(c, sh, &sizes)) {
        n_failed++;
        return;
    }
    double diff = 0, norm = 0, worst = 0;
    bool outside = false;
    for (uint64_t t = 0; t < sh.tokens; t++) {
        const float *y = (const float *)(first.data() + t * c.a.dst.row_bytes);
        const float *want = (const float *)((const uint8_t *)c.a.dst.data + t * c.a.dst.row_bytes);
        for (uint64_t r = 0; r < sh.rows; r++) {
            if (r < sh.row0 || r >= sh.row0 + sh.n_rows) {
                outside |= memcmp(y + r, before.data() + t * c.a.dst.row_bytes + 4 * r, 4) != 0;
                continue;
            }
            const double e = fabs((double)y[r] - (double)want[r]), size = sizes[t * sh.rows + r];
            const double rel = e > 0 ? e / (size > 1e-30 ? size : 1e-30) : e == 0 ? 0 : NAN;
            worst = rel > worst || isnan(rel) ? rel : worst;
            diff += e * e;
            norm += (double)want[r] * (double)want[r];
        }
    }
    const double whole = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
    if (!(whole <= (double)s.tolerance) || !(worst <= 1.5 * (double)s.tolerance) || outside) {
        printf("FAILED %s, %s, %s: error %.3g, worst element %.3g (tolerance %.3g)%s\n", s.name, what,
               fill_names[how], whole, worst, (double)s.tolerance,
               outside ? ", wrote outside its range" : "");
        n_failed++;
    }
}

static void test_matmul(const spec &s, fill how) {
    ps_cuda_blas *blas = NULL;
    ps_error err;
    if (strstr(s.name, "cuda.gemm") && ps_cuda_blas_open(&blas, &err) != PS_OK) {
        static bool said;
        if (!said)
            printf("SKIP %s: %s: %s\n", s.name, err.subject, err.message);
        said = true;
        return;
    }
    const ps_dtype_info *info = ps_dtype_find(s.wtype);
    int i = 0;
    for (const matmul_shape &sh : matmul_shapes) {
        i++;
        if (sh.cols % info->block_elems || sh.all_cols % info->block_elems || sh.col0 % info->block_elems ||
            left_out((uint64_t)sh.cols * sh.rows * (sh.tokens < 64 ? 1 : 4)))
            continue;

        matmul_case(s, sh, how, i % 2 == 0, i % 3, blas);
        if (how == RANDOM)
            matmul_case(s, sh, how, i % 2 == 1, (i + 1) % 3, blas);
    }
    ps_cuda_blas_close(blas);
}

static void test_matvec_ranges(const spec &s, fill how) {
    const ps_dtype_info *info = ps_dtype_find(s.wtype);
    int i = 0;
    for (const matmul_shape &sh : matvec_ranges)
        if (i++; sh.cols % info->block_elems == 0 && sh.col0 % info->block_elems == 0 &&
                 sh.all_cols % info->block_elems == 0)
            matmul_case(s, sh, how == HUGE_VALUES || how == TINY_VALUES ? how : OUTLIERS, i % 2 == 0, i % 3,
                        NULL);
}
#endif
