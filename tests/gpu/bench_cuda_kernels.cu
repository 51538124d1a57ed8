/* Speed of the CUDA kernels with cold caches: every launch reads weights that no launch before it has read for
 * longer than the L2 holds. Medians of graph replays, per launch. A line per kernel and shape: microseconds, rate, and the
 * target where there is one; as JSON with --json. Exit 1: a target was missed.
 * bench_cuda_kernels [--json] [PART]: PART is matvec, matmul, attention, rows or moe. */
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"

#define CK(x)                                                                                                \
    do {                                                                                                     \
        cudaError_t e_ = (x);                                                                                \
        if (e_ != cudaSuccess) {                                                                             \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_));              \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static bool json;
static int n_missed;
static cudaStream_t stream;
static uint8_t *weights, *work;
static const size_t weights_bytes = (size_t)4 << 30, work_bytes = (size_t)320 << 20;

__global__ void fill_random(uint32_t *p, size_t n, uint32_t mask, uint32_t bits) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32);
        x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
        p[i] = (x & mask) | bits;
    }
}
__global__ void read_all(const uint4 *p, size_t n, uint32_t *out) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    uint32_t s = 0;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = p[i], b = p[i + step], c = p[i + 2 * step], d = p[i + 3 * step];
        s ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (s == 0x12345678)
        *out = s;
}

/* Median over `reps` replays of a graph made by record(), in microseconds per launch. */
template <class F> static double measure(int n_launches, int reps, F record) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t e0, e1;
    CK(cudaEventCreate(&e0));
    CK(cudaEventCreate(&e1));
    CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n_launches; i++)
        record(i);
    CK(cudaStreamEndCapture(stream, &graph));
    CK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<float> us;
    for (int r = 0; r < reps + 2; r++) {
        float ms;
        CK(cudaEventRecord(e0, stream));
        CK(cudaGraphLaunch(exec, stream));
        CK(cudaEventRecord(e1, stream));
        CK(cudaStreamSynchronize(stream));
        CK(cudaEventElapsedTime(&ms, e0, e1));
        if (r >= 2)
            us.push_back(ms * 1000 / (float)n_launches);
    }
    CK(cudaGraphExecDestroy(exec));
    CK(cudaGraphDestroy(graph));
    CK(cudaEventDestroy(e0));
    CK(cudaEventDestroy(e1));
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

static void line(const char *name, const char *shape, double us, double bytes, double target_us) {
    const bool missed = target_us > 0 && us > target_us;
    n_missed += missed;
    if (json)
        printf("{\"kernel\": \"%s\", \"shape\": \"%s\", \"us\": %.2f, \"gb_per_s\": %.1f, \"target_us\": "
               "%.2f, \"met\": %s}\n",
               name, shape, us, bytes / us / 1e3, target_us,
               target_us > 0 ? (missed ? "false" : "true") : "null");
    else if (target_us > 0)
        printf("%-28s %-34s %9.2f us %8.1f GB/s  target %8.2f us  %s\n", name, shape, us, bytes / us / 1e3,
               target_us, missed ? "MISSED" : "met");
    else
        printf("%-28s %-34s %9.2f us %8.1f GB/s\n", name, shape, us, bytes / us / 1e3);
}

static void launch(uint32_t id, const ps_kargs &a, const ps_cuda_on &on) {
    ps_error err;
    if (ps_cuda_launch(id, &a, &on, &err) != PS_OK) {
        fprintf(stderr, "%s: %s\n", err.subject, err.message);
        exit(1);
    }
}

struct type_row {
    uint32_t id;
    ps_dtype type;
    const char *name;
    bool target;
};
static const type_row types[] = {{2101, PS_DTYPE_F16, "f16", true},    {2102, PS_DTYPE_Q4_0, "q4_0", true},
                                 {2108, PS_DTYPE_Q8_0, "q8_0", true},  {2112, PS_DTYPE_Q4_K, "q4_k", true},
                                 {2114, PS_DTYPE_Q6_K, "q6_k", true},  {2103, PS_DTYPE_Q4_1, "q4_1", false},
                                 {2106, PS_DTYPE_Q5_0, "q5_0", false}, {2107, PS_DTYPE_Q5_1, "q5_1", false},
                                 {2113, PS_DTYPE_Q5_K, "q5_k", false}, {2130, PS_DTYPE_BF16, "bf16", false},
                                 {2100, PS_DTYPE_F32, "f32", false}};

static void bench_matvec(double hbm) {
    static const uint32_t shapes[][2] = {
        {4096, 14336}, {14336, 4096}, {2048, 768}, {768, 2048}}; /* cols, rows */
    ps_model model = {};
    for (const type_row &t : types)
        for (const auto &sh : shapes)
            for (uint32_t T = 1; T <= 8; T *= 2) {
                if (T > 1 && (sh[1] < 4096 || sh[0] != 4096))
                    continue;
                ps_kargs a = {};
                a.model = &model;
                a.n_tokens = T;
                ps_warg w = {weights, t.type, sh[0], sh[1], 1, 0};
                ps_dtype_bytes(t.type, sh[0], &w.row_bytes);
                a.n_rows = sh[1];
                const bool q8 = t.type != PS_DTYPE_F16 && t.type != PS_DTYPE_BF16 && t.type != PS_DTYPE_F32;
                const ps_fmt fmt = q8 ? PS_FMT_Q8 : PS_FMT_F32;
                a.src[0] = {work, fmt, sh[0], ps_fmt_row_bytes(fmt, sh[0])};
                a.dst = {work + (64 << 20), PS_FMT_F32, sh[1], ps_fmt_row_bytes(PS_FMT_F32, sh[1])};
                const uint64_t bytes = (w.row_bytes * sh[1] + 31) / 32 * 32;
                ps_cuda_on on = {};
                on.stream = stream;
                const int n = (int)std::min<uint64_t>(bytes > (16 << 20) ? 24 : 200, weights_bytes / bytes);
                /* Launches that do not wait for each other would overlap: the stream's order keeps them apart. */
                const double us = measure(n, 15, [&](int i) {
                    a.w[0] = w;
                    a.w[0].data = weights + (uint64_t)i * bytes;
                    launch(t.id, a, on);
                });
                char shape[64], name[64];
                snprintf(name, sizeof name, "matvec.%s", t.name);
                snprintf(shape, sizeof shape, "%u x %u, %u tokens", sh[0], sh[1], T);
                line(name, shape, us, (double)bytes,
                     t.target && T == 1 ? 4 + (double)bytes / (0.85 * hbm * 1e3) : 0);
            }
}

#include "bench_matmul.cuh"

/* Decode over one long context in VRAM, and in host memory read directly; then `rows` sequences at once. */
static void bench_decode(double hbm, uint32_t kv, uint32_t rows, bool host) {
    ps_model model = {};
    ps_layer l = {};
    l.n_head = 32, l.n_head_kv = 8, l.head_dim_k = l.head_dim_v = 128, l.attn_scale = 0.088f;
    ps_kargs a = {};
    a.model = &model, a.layer = &l;
    a.n_tokens = rows, a.n_rows = 8, a.n_spans = rows;
    a.src[0] = {work, PS_FMT_F32, 4096, 16384};
    a.dst = {work + (1 << 20), PS_FMT_F32, 4096, 16384};
    a.scratch = work + (2 << 20);
    const uint64_t bytes = (uint64_t)kv * 1024 * 2 * 2;
    uint8_t *base = weights, *pinned = NULL;
    size_t room = weights_bytes;
    if (host) {
        room = bytes * rows * 2;
        CK(cudaHostAlloc((void **)&pinned, room, cudaHostAllocMapped));
        memset(pinned, 0, room);
        CK(cudaHostGetDevicePointer((void **)&base, pinned, 0));
    }
    const int n = (int)std::min<uint64_t>(32, room / (bytes * rows));
    std::vector<ps_seq_span> spans((size_t)n * rows);
    for (size_t i = 0; i < spans.size(); i++)
        spans[i] = {(uint32_t)(i % rows),
                    1,
                    kv - 1,
                    kv,
                    (uint16_t *)(base + i * bytes),
                    (uint16_t *)(base + i * bytes + bytes / 2)};
    ps_seq_span *d_spans;
    CK(cudaMalloc(&d_spans, spans.size() * sizeof spans[0]));
    CK(cudaMemcpy(d_spans, spans.data(), spans.size() * sizeof spans[0], cudaMemcpyHostToDevice));
    ps_cuda_on on = {};
    on.stream = stream, on.kv_bound = kv, on.span_rows = 1;
    const bool split = rows <= PS_CUDA_ATTN_TOKENS;
    const double us = measure(n, host ? 7 : 15, [&](int i) {
        a.spans = d_spans + (size_t)i * rows;
        launch(split ? 2040 : 2042, a, on);
    });
    char shape[96];
    snprintf(shape, sizeof shape, "32/8 heads of 128, KV %u%s, %u seq.", kv, host ? " in host memory" : "",
             rows);
    line(split ? "attention.split" : "attention.flash", shape, us, (double)bytes * rows,
         kv == 16384 && rows == 1 && !host ? (double)bytes / (0.75 * hbm * 1e3) : 0);
    CK(cudaFree(d_spans));
    if (pinned)
        CK(cudaFreeHost(pinned));
}

/* Uniform in (-1.7, 1.7), so that the spread is 1: as halves, or as floats. */
__global__ void fill_uniform(void *p, size_t n, bool half) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32);
        x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
        const float f = ((float)x / 2147483648.0f - 1.0f) * 1.7f;
        if (half)
            ((__half *)p)[i] = __float2half_rn(f);
        else
            ((float *)p)[i] = f;
    }
}

/* Prefill of one sequence from position 0; bench_torch_attention.py measures the same shapes. */
static void bench_prefill(uint32_t id, const char *name, ps_fmt fmt, uint32_t tokens) {
    ps_model model = {};
    ps_layer l = {};
    l.n_head = 32, l.n_head_kv = 8, l.head_dim_k = l.head_dim_v = 128, l.attn_scale = 0.08838835f;
    ps_kargs a = {};
    a.model = &model, a.layer = &l;
    a.n_tokens = tokens, a.n_rows = 8, a.n_spans = 1;
    const size_t q_bytes = (size_t)tokens * 16384, kv_bytes = (size_t)tokens * 1024 * 2;
    uint8_t *mem;
    CK(cudaMalloc(&mem, 2 * q_bytes + 2 * kv_bytes + 4096));
    fill_uniform<<<1024, 256, 0, stream>>>(mem, q_bytes / 4, false);
    fill_uniform<<<1024, 256, 0, stream>>>(mem + 2 * q_bytes, kv_bytes, true);
    a.src[0] = {mem, PS_FMT_F32, 4096, 16384};
    a.dst = {mem + q_bytes, fmt, 4096, ps_fmt_row_bytes(fmt, 4096)};
    const ps_seq_span span = {
        0, tokens, 0, tokens, (uint16_t *)(mem + 2 * q_bytes), (uint16_t *)(mem + 2 * q_bytes + kv_bytes)};
    CK(cudaStreamSynchronize(stream));
    CK(cudaMemcpy(mem + 2 * q_bytes + 2 * kv_bytes, &span, sizeof span, cudaMemcpyHostToDevice));
    a.spans = (const ps_seq_span *)(mem + 2 * q_bytes + 2 * kv_bytes);
    ps_cuda_on on = {};
    on.stream = stream, on.kv_bound = on.span_rows = tokens;
    const double us = measure(4, 9, [&](int) { launch(id, a, on); });
    char shape[64];
    snprintf(shape, sizeof shape, "32/8 heads of 128, %u tokens", tokens);
    line(name, shape, us, (double)q_bytes * 2 + (double)kv_bytes * 2, 0);
    if (!json)
        printf("%63s %9.1f TFLOP/s\n", "", 2.0 * 128 * 2 * 32 * tokens * (tokens + 1.0) / 2 / us / 1e6);
    CK(cudaFree(mem));
}

static void bench_attention(double hbm) {
    for (uint32_t kv = 1024; kv <= 65536; kv *= 4)
        bench_decode(hbm, kv, 1, false);
    bench_decode(hbm, 16384, 1, true);
    for (uint32_t rows = 4; rows <= 64; rows *= 4)
        bench_decode(hbm, 1024, rows, false);
    for (uint32_t tokens = 1024; tokens <= 16384; tokens *= 4)
        bench_prefill(2042, "attention.flash", PS_FMT_F32, tokens);
    bench_prefill(2043, "attention.flash.f16s", PS_FMT_F16S, 4096);
    bench_prefill(2044, "attention.flash.q8", PS_FMT_Q8, 4096);
}

#include "bench_rows.cuh"

static void fill_all() {
    /* Bits that are small numbers whatever they are read as: no exponent is large, no half is NaN. */
    fill_random<<<4096, 256, 0, stream>>>((uint32_t *)weights, weights_bytes / 4, 0x3bff3bffu, 0);
    fill_random<<<4096, 256, 0, stream>>>((uint32_t *)work, work_bytes / 4, 0x3b7f3b7fu, 0x04000400u);
    CK(cudaStreamSynchronize(stream));
}

int main(int argc, char **argv) {
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            json = true;
        else
            only = argv[i];
    }
    const auto wanted = [&](const char *part) { return !only || !strcmp(only, part); };
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIP: no CUDA device\n");
        return 77;
    }
    ps_error err;
    if (ps_cuda_load_all(&err) != PS_OK) {
        fprintf(stderr, "%s: %s\n", err.subject, err.message);
        return 1;
    }
    CK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CK(cudaMalloc(&weights, weights_bytes));
    CK(cudaMalloc(&work, work_bytes));
    fill_all();
    const double us = measure(4, 9, [&](int i) {
        read_all<<<2112, 512, 0, stream>>>((const uint4 *)(weights + (size_t)i % 2 * (weights_bytes / 2)),
                                           weights_bytes / 32, (uint32_t *)work);
    });
    const double hbm = (double)weights_bytes / 2 / us / 1e3; /* GB/s */
    line("read of device memory", "2 GiB", us, (double)weights_bytes / 2, 0);
    if (wanted("matvec"))
        bench_matvec(hbm);
    if (wanted("matmul"))
        bench_matmul();
    if (wanted("attention"))
        bench_attention(hbm);
    if (wanted("rows")) {
        bench_rows(hbm);
        fill_all(); /* it writes where weights are */
    }
    if (wanted("moe")) {
        bench_moe();
        bench_moe_many();
    }
    if (!json)
        printf("%d targets missed\n", n_missed);
    return n_missed != 0;
}
