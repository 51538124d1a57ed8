/* Speed of matrix products for many token rows: our tensor-core kernels (the tile chosen, and each tile), cuBLAS on weights
 * made halves in pieces, and plain cuBLAS on halves, in turn in one run: part of bench_cuda_kernels.cu. Targets: a share of
 * plain cuBLAS's rate. */
#ifndef PS_TESTS_GPU_BENCH_MATMUL_CUH
#define PS_TESTS_GPU_BENCH_MATMUL_CUH

#include <functional>

#include "kernels/cuda/blas.cuh"
#include "kernels/cuda/launch.cuh"

__global__ void set_scales(uint8_t *x, uint64_t stride, uint64_t offset, uint32_t rows) {
    const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < rows)
        *(float *)(x + t * stride + offset) = 1.0f;
}

/* Medians, in microseconds per launch, of several ways measured in turn; a way that cannot be launched gets 0. */
static std::vector<double> measure_in_turn(const std::vector<std::function<bool(int)>> &ways, int n_launches,
                                           int reps) {
    std::vector<cudaGraphExec_t> execs(ways.size(), nullptr);
    std::vector<std::vector<float>> us(ways.size());
    cudaEvent_t e0, e1;
    CK(cudaEventCreate(&e0));
    CK(cudaEventCreate(&e1));
    for (size_t w = 0; w < ways.size(); w++) {
        if (!ways[w](0)) /* loads what it needs, outside of any capture */
            continue;
        CK(cudaStreamSynchronize(stream));
        cudaGraph_t graph;
        CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < n_launches; i++)
            ways[w](i);
        CK(cudaStreamEndCapture(stream, &graph));
        CK(cudaGraphInstantiate(&execs[w], graph, 0));
        CK(cudaGraphDestroy(graph));
    }
    for (int r = 0; r < reps + 2; r++)
        for (size_t w = 0; w < ways.size(); w++) {
            float ms;
            if (!execs[w])
                continue;
            CK(cudaEventRecord(e0, stream));
            CK(cudaGraphLaunch(execs[w], stream));
            CK(cudaEventRecord(e1, stream));
            CK(cudaStreamSynchronize(stream));
            CK(cudaEventElapsedTime(&ms, e0, e1));
            if (r >= 2)
                us[w].push_back(ms * 1000 / (float)n_launches);
        }
    std::vector<double> medians;
    for (size_t w = 0; w < ways.size(); w++) {
        if (execs[w])
            CK(cudaGraphExecDestroy(execs[w]));
        std::sort(us[w].begin(), us[w].end());
        medians.push_back(us[w].empty() ? 0.0 : (double)us[w][us[w].size() / 2]);
    }
    CK(cudaEventDestroy(e0));
    CK(cudaEventDestroy(e1));
    return medians;
}

static const type_row matmul_types[] = {
    {2301, PS_DTYPE_F16, "f16", true},   {2302, PS_DTYPE_Q4_0, "q4_0", true},
    {2303, PS_DTYPE_Q4_1, "q4_1", true}, {2306, PS_DTYPE_Q5_0, "q5_0", true},
    {2307, PS_DTYPE_Q5_1, "q5_1", true}, {2308, PS_DTYPE_Q8_0, "q8_0", true},
    {2312, PS_DTYPE_Q4_K, "q4_k", true}, {2313, PS_DTYPE_Q5_K, "q5_k", true},
    {2314, PS_DTYPE_Q6_K, "q6_k", true}, {2330, PS_DTYPE_BF16, "bf16", false},
    {2300, PS_DTYPE_F32, "f32", false},
};

static void bench_matmul_shape(const type_row &t, uint32_t T, uint32_t cols, uint32_t rows,
                               ps_cuda_blas *blas, bool tiles) {
    const size_t y_at = (size_t)64 << 20, scratch_at = (size_t)192 << 20;
    ps_model model = {};
    ps_kargs a = {};
    a.model = &model;
    a.n_tokens = T;
    a.n_rows = rows;
    ps_warg w = {weights, t.type, cols, rows, 1, 0};
    ps_dtype_bytes(t.type, cols, &w.row_bytes);
    a.src[0] = {work, PS_FMT_F16S, cols, ps_fmt_row_bytes(PS_FMT_F16S, cols)};
    a.dst = {work + y_at, PS_FMT_F32, rows, ps_fmt_row_bytes(PS_FMT_F32, rows)};
    a.scratch = work + scratch_at;
    set_scales<<<(T + 255) / 256, 256, 0, stream>>>(work, a.src[0].row_bytes, ps_f16s_scale_offset(cols), T);
    CK(cudaGetLastError());
    const uint64_t bytes = (w.row_bytes * rows + 31) / 32 * 32, half_bytes = 2ull * cols * rows;
    const int n = (int)std::min<uint64_t>(4, weights_bytes / std::max(bytes, half_bytes));
    ps_cuda_on on = {};
    on.stream = stream;
    on.blas = blas;
    const auto ours = [&](uint32_t id, int i) {
        ps_kargs k = a;
        ps_error err;
        k.w[0] = w;
        k.w[0].data = weights + (uint64_t)i * bytes;
        const ps_status s = ps_cuda_launch(id, &k, &on, &err);
        if (s != PS_OK && s != PS_E_UNSUPPORTED && s != PS_E_UNAVAILABLE) {
            fprintf(stderr, "%s: %s\n", err.subject, err.message);
            exit(1);
        }
        return s == PS_OK;
    };
    std::vector<std::function<bool(int)>> ways;
    ways.push_back([&](int i) {
        return blas && psc::blas_multiply(
                           blas, stream, a.scratch + PS_CUDA_GEMM_PIECE, PS_CUDA_GEMM_WORKSPACE, rows, T,
                           cols, weights + (uint64_t)i * half_bytes, cols, work, a.src[0].row_bytes / 2, 0.0f,
                           (float *)a.dst.data, a.dst.row_bytes / 4) == cudaSuccess;
    });
    ways.push_back([&](int i) { return ours(t.id, i); });
    ways.push_back([&](int i) { return ours(t.id + 100, i); });
    for (uint32_t k = 0; tiles && k < psc::MATMUL_TILES; k++)
        ways.push_back([&, k](int i) {
            ps_kargs b = a;
            b.w[0] = w;
            b.w[0].data = weights + (uint64_t)i * bytes;
            return psc::launch_matmul_tile(&b, &on, k) == cudaSuccess;
        });
    const std::vector<double> us = measure_in_turn(ways, n, 9);
    static const char *const names[] = {"cublas.f16 beside", "matmul",       "gemm",
                                        "matmul.wide",       "matmul.large", "matmul.square",
                                        "matmul.medium",     "matmul.small", "matmul.few"};
    for (size_t k = 0; k < us.size(); k++) {
        char name[64], shape[128];
        if (us[k] <= 0)
            continue;
        snprintf(name, sizeof name, "%s%s%s", names[k], k ? "." : " ", t.name);
        snprintf(shape, sizeof shape, "%u tokens, %u x %u, %.0f TFLOP/s, %.0f%% of cuBLAS", T, cols, rows,
                 2.0 * T * cols * rows / us[k] / 1e6, us[0] > 0 ? 100 * us[0] / us[k] : 0.0);
        line(name, shape, us[k], (double)bytes, 0);
    }
    /* A profile takes the faster one of the registry's two: that one is judged. */
    const double best = us[2] > 0 && us[2] < us[1] ? us[2] : us[1];
    if (t.target && T >= 512 && us[0] > 0 && best > 0) {
        char name[64], shape[128];
        snprintf(name, sizeof name, "best of matmul, gemm.%s", t.name);
        snprintf(shape, sizeof shape, "%u tokens, %u x %u, %.0f%% of cuBLAS F16", T, cols, rows,
                 100 * us[0] / best);
        line(name, shape, best, (double)bytes, us[0] / (t.type == PS_DTYPE_F16 ? 0.8 : 0.7));
    }
}

static void bench_matmul() {
    ps_cuda_blas *blas = NULL;
    ps_error err;
    if (ps_cuda_blas_open(&blas, &err) != PS_OK)
        fprintf(stderr, "without cuBLAS: %s: %s\n", err.subject, err.message);
    for (const type_row &t : matmul_types)
        for (uint32_t T : {512u, 2048u}) {
            bench_matmul_shape(t, T, 4096, 14336, blas, true);
            bench_matmul_shape(t, T, 14336, 4096, blas, true);
        }
    /* From few tokens to many, and the shapes of small experts' shared parts. */
    for (const type_row &t : matmul_types) {
        if (t.type != PS_DTYPE_F16 && t.type != PS_DTYPE_Q4_0 && t.type != PS_DTYPE_Q4_K)
            continue;
        for (uint32_t T : {9u, 16u, 32u, 64u, 128u, 256u})
            bench_matmul_shape(t, T, 4096, 14336, blas, true);
        bench_matmul_shape(t, 512, 2048, 4096, blas, true);
        bench_matmul_shape(t, 512, 2048, 768, blas, true);
    }
    ps_cuda_blas_close(blas);
}
#endif
