/* Every CUDA kernel of the registry against the double-precision reference, on random and extreme inputs and odd
 * shapes. Each case runs twice from VRAM and once with its weights, or K and V, in mapped host memory: the bits must be the
 * same. Outputs are poisoned first; device buffers have their exact size, so that a memory checker sees any step
 * outside. test_cuda_kernels [--few] [NAME...]: only kernels whose name contains a NAME; --few: small shapes and two fillings,
 * for memory checkers and for the host (tests/cuda_host). */
#include <cuda_runtime.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/moe_rule.h"

#define CK(x)                                                                                                \
    do {                                                                                                     \
        cudaError_t e_ = (x);                                                                                \
        if (e_ != cudaSuccess) {                                                                             \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_));              \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum fill { RANDOM, HUGE_VALUES, TINY_VALUES, ZERO_ROWS, EQUAL, OUTLIERS, N_FILLS };
static const char *const fill_names[] = {"random", "huge", "tiny", "zero rows", "equal", "outliers"};

struct spec {
    uint32_t id;
    const char *name;
    ps_op op;
    ps_dtype wtype;
    ps_fmt in, out;
    float tolerance;
    ps_scratch_coef scratch;
};
#define SPEC(id_, name_, op_, wtype_, in_, out_, min_, max_, tol_, launcher_, ...)                           \
    {id_, name_, PS_OP_##op_, PS_DTYPE_##wtype_, PS_FMT_##in_, PS_FMT_##out_, tol_, {__VA_ARGS__}},
static const spec specs[] = {PS_CUDA_KERNELS(SPEC)};

static uint64_t rng = 1;
static uint32_t rnd() {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33);
}
static float uniform() {
    return (float)rnd() / 1073741824.0f - 1.0f;
}

/* Host memory of a case, and what has been copied to the device. */
struct pool {
    std::vector<void *> host, device, pinned;
    void *alloc(size_t n) {
        void *p = aligned_alloc(64, (n + 63) / 64 * 64 + 64);
        if (!p)
            exit(71);
        memset(p, 0xA5, (n + 63) / 64 * 64 + 64);
        host.push_back(p);
        return p;
    }
    void *to_device(const void *p, size_t n) {
        if (!p || !n)
            return nullptr;
        void *d;
        CK(cudaMalloc(&d, n));
        CK(cudaMemcpy(d, p, n, cudaMemcpyHostToDevice));
        device.push_back(d);
        return d;
    }
    void *to_mapped(const void *p, size_t n) {
        void *h, *d;
        CK(cudaHostAlloc(&h, n, cudaHostAllocMapped));
        memcpy(h, p, n);
        pinned.push_back(h);
        CK(cudaHostGetDevicePointer(&d, h, 0));
        return d;
    }
    ~pool() {
        for (void *p : host)
            free(p);
        for (void *p : device)
            cudaFree(p);
        for (void *p : pinned)
            cudaFreeHost(p);
    }
};

static float value(fill how, uint32_t t, float v) {
    switch (how) {
    case HUGE_VALUES:
        return v * 1e18f;
    case TINY_VALUES:
        return v * 1e-24f;
    case ZERO_ROWS:
        return t % 2 ? v : 0;
    case EQUAL:
        return 0.75f;
    case OUTLIERS:
        return rnd() % 37 ? v : v * 3000;
    default:
        return v;
    }
}

struct test_case {
    pool mem;
    ps_model model = {};
    ps_layer layer = {};
    ps_kargs a = {};
    ps_cuda_on on = {};
    std::vector<ps_seq_span> spans;
    uint64_t out_rows = 0;
    bool in_place = false;                           /* dst is src 2, where there is one */
    void (*before_reference)(test_case &) = nullptr; /* may change what the reference is given */
};

static ps_xarg new_act(test_case &c, ps_fmt fmt, uint64_t cols, uint64_t rows) {
    ps_xarg x = {nullptr, fmt, cols, ps_fmt_row_bytes(fmt, cols)};
    x.data = c.mem.alloc(x.row_bytes * rows);
    return x;
}
/* Floats first, then in the format wanted through the reference's own conversion. */
static ps_xarg source(test_case &c, ps_fmt fmt, uint64_t cols, uint64_t rows, fill how) {
    ps_xarg f = new_act(c, PS_FMT_F32, cols, rows);
    for (uint64_t t = 0; t < rows; t++)
        for (uint64_t i = 0; i < cols; i++)
            ((float *)((uint8_t *)f.data + t * f.row_bytes))[i] = value(how, (uint32_t)t, uniform());
    if (fmt == PS_FMT_F32)
        return f;
    ps_xarg x = new_act(c, fmt, cols, rows);
    ps_kargs k = {};
    k.n_tokens = (uint32_t)rows;
    k.src[0] = f;
    k.dst = x;
    if (ps_ref_run(PS_OP_CONVERT, &k, NULL) != PS_OK)
        exit(70);
    return x;
}
static ps_warg weight(test_case &c, ps_dtype type, uint64_t cols, uint64_t rows, uint64_t experts = 1,
                      float add = 0.1f) {
    ps_warg w = {nullptr, type, cols, rows, experts, 0};
    if (!ps_dtype_bytes(type, cols, &w.row_bytes))
        exit(70);
    uint8_t *data = (uint8_t *)c.mem.alloc(w.row_bytes * rows * experts);
    std::vector<float> f(cols);
    for (uint64_t r = 0; r < rows * experts; r++) {
        for (float &v : f)
            v = uniform() + add;
        ps_quantize_row(type, f.data(), data + r * w.row_bytes, cols);
    }
    w.data = data;
    return w;
}
static size_t weight_bytes(const ps_warg &w) {
    return w.data ? w.row_bytes * w.rows * w.experts : 0;
}

static double row_error(const ps_xarg &x, const uint8_t *got, const uint8_t *want, uint64_t rows, bool *nan) {
    double diff = 0, norm = 0;
    for (uint64_t t = 0; t < rows; t++)
        for (uint64_t i = 0; i < x.cols; i++) {
            double v[2];
            const uint8_t *p[2] = {got + t * x.row_bytes, want + t * x.row_bytes};
            for (int k = 0; k < 2; k++) {
                if (x.fmt == PS_FMT_Q8) {
                    v[k] = (double)((const float *)(p[k] + ps_q8_d_offset(x.cols)))[i / 32] *
                           (double)(int8_t)p[k][i];
                } else if (x.fmt == PS_FMT_F16) {
                    v[k] = (double)ps_f16_to_f32(((const uint16_t *)p[k])[i]);
                } else if (x.fmt == PS_FMT_F16S) {
                    v[k] = (double)ps_f16_to_f32(((const uint16_t *)p[k])[i]) *
                           (double)*(const float *)(p[k] + ps_f16s_scale_offset(x.cols));
                } else if (x.fmt == PS_FMT_SEL) {
                    v[k] = (double)((const float *)p[k])[2 * i + 1] +
                           1000 * (double)((const int32_t *)p[k])[2 * i];
                } else if (x.fmt == PS_FMT_I32) {
                    v[k] = ((const int32_t *)p[k])[i];
                } else {
                    v[k] = (double)((const float *)p[k])[i];
                }
                *nan |= k == 0 && isnan(v[k]) != 0;
            }
            if (isinf(v[1]) && v[0] == v[1])
                continue;
            diff += (v[0] - v[1]) * (v[0] - v[1]);
            norm += v[1] * v[1];
        }
    /* F16S: the same scales. */
    if (x.fmt == PS_FMT_F16S)
        for (uint64_t t = 0; t < rows; t++)
            *nan |= memcmp(got + t * x.row_bytes + ps_f16s_scale_offset(x.cols),
                           want + t * x.row_bytes + ps_f16s_scale_offset(x.cols), sizeof(float)) != 0;
    /* Q8: the plane of sums too. */
    if (x.fmt == PS_FMT_Q8)
        for (uint64_t t = 0; t < rows; t++)
            for (uint64_t g = 0; g < x.cols / 32; g++) {
                const float *s = (const float *)(got + t * x.row_bytes + ps_q8_s_offset(x.cols));
                const float *d = (const float *)(got + t * x.row_bytes + ps_q8_d_offset(x.cols));
                int sum = 0;
                for (int i = 0; i < 32; i++)
                    sum += (int8_t)got[t * x.row_bytes + 32 * g + i];
                if (fabs((double)s[g] - (double)d[g] * sum) > 1e-6 * fabs((double)d[g] * 4064))
                    *nan = true;
            }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static int n_cases, n_failed;
static bool few; /* small shapes alone */
static bool left_out(uint64_t work) {
    return few && work > 300000;
}

/* Run the case on the device in the three ways and compare with the reference. */
static void check(test_case &c, const spec &s, const char *what, fill how, bool is_kv = false) {
    ps_error err;
    n_cases++;
    /* The device's copies come first: some operations work in place. */
    ps_kargs d = c.a;
    pool &m = c.mem;
    std::vector<uint8_t> result[3], kv_result[3];
    const size_t out_bytes = c.a.dst.data ? c.a.dst.row_bytes * c.out_rows : 0;
    const uint8_t *gate_table[3][1024];
    for (int i = 0; i < PS_OP_MAX_SRC; i++) {
        const uint64_t rows = s.op == PS_OP_GATHER ? c.out_rows * 3 : c.out_rows;
        if (c.a.src[i].data)
            d.src[i].data = m.to_device(c.a.src[i].data, c.a.src[i].row_bytes * rows);
    }
    d.positions = (const uint32_t *)m.to_device(c.a.positions, c.a.positions ? 4 * c.a.n_tokens : 0);
    d.outputs = (const uint32_t *)m.to_device(c.a.outputs, c.a.outputs ? 4 * c.a.n_tokens : 0);
    d.resident =
        (const uint32_t *)m.to_device(c.a.resident, c.a.resident ? (c.a.w[0].experts + 31) / 32 * 4 : 0);
    c.on.kv_bound = 0, c.on.span_rows = 0;
    const auto plane = [&](const ps_seq_span &sp, uint32_t dim) {
        return (size_t)sp.kv_rows * c.layer.n_head_kv * dim * 2;
    };
    for (const ps_seq_span &sp : c.spans) {
        c.on.kv_bound = sp.pos0 + sp.n_rows > c.on.kv_bound ? sp.pos0 + sp.n_rows : c.on.kv_bound;
        c.on.span_rows = sp.n_rows > c.on.span_rows ? sp.n_rows : c.on.span_rows;
    }
    /* What the row asks for; where the exact need is known the kernel gets no more than that. */
    uint64_t cols = c.a.dst.cols;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        cols = c.a.src[i].data && c.a.src[i].cols > cols ? c.a.src[i].cols : cols;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        cols = c.a.w[i].cols > cols ? c.a.w[i].cols : cols;
    const uint64_t asked = ps_scratch_bytes(&s.scratch, c.a.n_tokens, cols, 1, c.on.kv_bound);
    uint64_t scratch = asked;
    if (s.op == PS_OP_ATTENTION && s.scratch.kv_chunk != 0)
        scratch = ps_cuda_attn_scratch(&c.layer, c.a.n_tokens, c.on.kv_bound);
    if (scratch > asked) {
        printf("FAILED %s, %s: the row asks for %llu bytes of scratch, %llu are needed\n", s.name, what,
               (unsigned long long)asked, (unsigned long long)scratch);
        n_failed++;
        return;
    }
    if (scratch) {
        CK(cudaMalloc((void **)&d.scratch, scratch));
        m.device.push_back(d.scratch);
        CK(cudaMemset(d.scratch, 0xFF, scratch)); /* NaN */
    }
    for (int way = 0; way < 3; way++) {
        for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
            if (c.a.w[i].data && way != 1)
                d.w[i].data =
                    (const uint8_t *)(way == 2 ? m.to_mapped(c.a.w[i].data, weight_bytes(c.a.w[i]))
                                               : m.to_device(c.a.w[i].data, weight_bytes(c.a.w[i])));
        ps_cuda_on on = c.on;
        if (s.op == PS_OP_MOE_DISPATCH && way == 2) { /* addresses instead of a base, even experts in VRAM */
            const uint8_t *const *tables[3];
            uint32_t taken[PS_MOE_WORDS];
            ps_moe_select(&c.a, taken);
            for (int i = 0; i < 3; i++) {
                const ps_warg &w = c.a.w[i];
                const uint8_t *vram = (const uint8_t *)m.to_device(w.data, weight_bytes(w));
                for (uint64_t e = 0; e < w.experts; e++)
                    gate_table[i][e] = ps_moe_takes(taken, (int64_t)e)
                                           ? (e % 2 ? d.w[i].data : vram) + e * w.rows * w.row_bytes
                                           : NULL;
                tables[i] = (const uint8_t *const *)m.to_device(gate_table[i], w.experts * 8);
                d.w[i].data = NULL;
            }
            for (int k = 0; k < 3; k++)
                d.experts[k] = tables[k];
        }
        std::vector<ps_seq_span> spans = c.spans;
        for (ps_seq_span &sp : spans) {
            const bool mapped = way == 2 && s.op == PS_OP_ATTENTION;
            const size_t nk = plane(sp, c.layer.head_dim_k), nv = plane(sp, c.layer.head_dim_v);
            sp.k = (uint16_t *)(mapped ? m.to_mapped(sp.k, nk) : m.to_device(sp.k, nk));
            sp.v = (uint16_t *)(mapped ? m.to_mapped(sp.v, nv) : m.to_device(sp.v, nv));
        }
        d.spans = (const ps_seq_span *)m.to_device(spans.data(), spans.size() * sizeof spans[0]);
        if (out_bytes) {
            CK(cudaMalloc(&d.dst.data, out_bytes));
            m.device.push_back(d.dst.data);
            CK(cudaMemset(d.dst.data, 0xA5, out_bytes));
            if (c.in_place && c.a.src[2].data) {
                CK(cudaMemcpy(d.dst.data, c.a.src[2].data, out_bytes, cudaMemcpyHostToDevice));
                d.src[2].data = d.dst.data;
            }
        }
        if (ps_cuda_launch(s.id, &d, &on, &err) != PS_OK) {
            printf("FAILED %s, %s, %s: %s\n", s.name, what, fill_names[how], err.message);
            n_failed++;
            return;
        }
        CK(cudaDeviceSynchronize());
        result[way].resize(out_bytes);
        if (out_bytes)
            CK(cudaMemcpy(result[way].data(), d.dst.data, out_bytes, cudaMemcpyDeviceToHost));
        if (is_kv)
            for (const ps_seq_span &sp : spans) {
                const size_t nk = plane(sp, c.layer.head_dim_k), nv = plane(sp, c.layer.head_dim_v);
                const size_t at = kv_result[way].size();
                kv_result[way].resize(at + nk + nv);
                CK(cudaMemcpy(&kv_result[way][at], sp.k, nk, cudaMemcpyDeviceToHost));
                CK(cudaMemcpy(&kv_result[way][at + nk], sp.v, nv, cudaMemcpyDeviceToHost));
            }
    }
    c.a.spans = c.spans.data();
    if (c.before_reference)
        c.before_reference(c);
    if (ps_ref_run(s.op, &c.a, &err) != PS_OK) {
        printf("FAILED %s: reference: %s\n", s.name, err.message);
        n_failed++;
        return;
    }
    bool nan = false;
    double e = 0;
    if (is_kv) {
        std::vector<uint8_t> want;
        for (const ps_seq_span &sp : c.spans) {
            const size_t nk = plane(sp, c.layer.head_dim_k), nv = plane(sp, c.layer.head_dim_v),
                         at = want.size();
            want.resize(at + nk + nv);
            memcpy(&want[at], sp.k, nk);
            memcpy(&want[at + nk], sp.v, nv);
        }
        e = want == kv_result[0] ? 0 : 1;
    } else {
        e = row_error(c.a.dst, result[0].data(), (const uint8_t *)c.a.dst.data, c.out_rows, &nan);
    }
    const bool same = result[0] == result[1] && result[0] == result[2] && kv_result[0] == kv_result[1];
    if (!(e <= (double)s.tolerance) || nan || !same) {
        printf("FAILED %s, %s, %s: error %.3g (tolerance %.3g)%s%s\n", s.name, what, fill_names[how], e,
               (double)s.tolerance, nan ? ", NaN or wrong sums" : "",
               same ? "" : ", bits differ between runs or memories");
        n_failed++;
    }
}

static void test_rows(const spec &s, fill how) {
    static const uint32_t shapes[][3] = {/* tokens, cols, group */
                                         {1, 4096, 0},  {3, 64, 0},    {2, 1024, 128},
                                         {5, 96, 0},    {1, 14336, 0}, {7, 320, 64},
                                         {33, 2048, 0}, {2, 640, 0},   {4, 1792, 256}};
    for (const auto &sh : shapes)
        for (int residual = 0; residual < 2; residual++) {
            if (left_out((uint64_t)sh[0] * sh[1] * 16))
                continue;
            test_case c;
            const uint32_t T = sh[0], n = sh[1];
            c.out_rows = T;
            c.a.model = &c.model, c.a.layer = &c.layer;
            c.model.norm_eps = 1e-5f;
            c.model.glu = residual ? PS_GLU_GELU_TANH : PS_GLU_SILU;
            c.a.n_tokens = T;
            c.a.src[0] = source(c, s.in, n, T * 3, how);
            c.a.dst = new_act(c, s.out, n, T);
            if (s.op == PS_OP_RMSNORM)
                c.a.w[0] = weight(c, PS_DTYPE_F32, sh[2] ? sh[2] : n, 1);
            if (s.op == PS_OP_GLU || s.op == PS_OP_ADD || (s.op == PS_OP_RMSNORM && residual))
                c.a.src[1] = source(c, PS_FMT_F32, n, T * 3, how);
            std::vector<uint32_t> outputs(T);
            for (uint32_t t = 0; t < T; t++)
                outputs[t] = rnd() % (3 * T);
            if (s.op == PS_OP_GATHER)
                c.a.outputs = outputs.data();
            char what[96];
            snprintf(what, sizeof what, "T %u, cols %u, group %u, residual %d", T, n, sh[2], residual);
            check(c, s, what, how);
        }
}

static void test_matvec(const spec &s, fill how) {
    static const uint32_t shapes[][4] = {
        /* cols, rows, row0, n_rows */
        {4096, 300, 0, 300}, {2048, 768, 0, 768}, {768, 65, 0, 65}, {14336, 9, 0, 9},  {256, 77, 13, 50},
        {11520, 7, 2, 5},    {256, 1, 0, 1},      {512, 33, 30, 3}, {1280, 40, 0, 40}, {96, 21, 0, 21},
        {32, 5, 0, 5},       {1120, 6, 0, 6},     {37, 9, 0, 9}};
    const ps_dtype_info *info = ps_dtype_find(s.wtype);
    for (const auto &sh : shapes) {
        if (sh[0] % info->block_elems)
            continue;
        for (uint32_t T = 1; T <= PS_CUDA_MATVEC_TOKENS; T++) {
            if (((how != RANDOM || few) && T != 1 && T != 5) || left_out((uint64_t)sh[0] * sh[1]))
                continue;
            test_case c;
            c.a.model = &c.model, c.a.layer = &c.layer;
            c.out_rows = T;
            c.a.n_tokens = T;
            c.a.w[0] = weight(c, s.wtype, sh[0], sh[1]);
            c.a.row0 = sh[2], c.a.n_rows = sh[3];
            c.a.src[0] = source(c, s.in, sh[0], T, how);
            c.a.dst = new_act(c, PS_FMT_F32, sh[1], T);
            memset(c.a.dst.data, 0xA5,
                   c.a.dst.row_bytes * T); /* columns outside the range stay as they were */
            if (T % 2 == 0)
                c.a.w[1] = weight(c, PS_DTYPE_F32, sh[1], 1);
            if (T % 3 == 0)
                c.a.src[1] = source(c, PS_FMT_F32, sh[1], T, how);
            char what[96];
            snprintf(what, sizeof what, "T %u, %u x %u, rows %u + %u", T, sh[0], sh[1], sh[2], sh[3]);
            check(c, s, what, how);
        }
    }
}

#include "matmul_cases.cuh"

static void test_rope(const spec &s, fill how) {
    static const uint32_t shapes[][4] = {{1, 32, 128, 128}, {5, 3, 64, 64}, {4, 8, 96, 48}, {2, 1, 256, 256}};
    for (const auto &sh : shapes)
        for (int style = 0; style < 2; style++) {
            test_case c;
            c.a.model = &c.model, c.a.layer = &c.layer;
            c.out_rows = c.a.n_tokens = sh[0];
            c.model.rope_style = style ? PS_ROPE_NEOX : PS_ROPE_NORMAL;
            c.layer.head_dim_k = sh[2], c.layer.rope_dims = sh[3];
            c.layer.rope_base = 500000.0f, c.layer.rope_scale = style ? 1.0f : 0.25f;
            std::vector<uint32_t> pos(sh[0]);
            for (uint32_t &p : pos)
                p = rnd() % 65536;
            c.a.positions = pos.data();
            c.a.src[0] = source(c, PS_FMT_F32, sh[1] * sh[2], sh[0], how);
            c.a.dst = new_act(c, PS_FMT_F32, sh[1] * sh[2], sh[0]);
            if (s.wtype == PS_DTYPE_F32)
                c.a.w[0] = weight(c, PS_DTYPE_F32, sh[3] / 2, 1, 1, 2.5f);
            char what[96];
            snprintf(what, sizeof what, "T %u, %u heads of %u, %u rotated, style %d", sh[0], sh[1], sh[2],
                     sh[3], style);
            check(c, s, what, how);
        }
}

#include "attention_cases.cuh"

#include "moe_cases.cuh"

int main(int argc, char **argv) {
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIP: no CUDA device\n");
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    std::vector<const char *> names;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--few"))
            few = true;
        else
            names.push_back(argv[i]);
    }
    const auto wanted = [&](const char *kernel) {
        for (const char *name : names)
            if (strstr(kernel, name))
                return true;
        return names.empty();
    };
    ps_error err;
    if (ps_cuda_load_all(&err) != PS_OK) {
        printf("FAILED: loading kernels: %s: %s\n", err.subject, err.message);
        return 1;
    }
    int n_kernels = 0;
    for (const spec &s : specs) {
        if (!wanted(s.name))
            continue;
        const int before = n_failed, cases = n_cases;
        n_kernels++;
        for (int f = 0; f < N_FILLS; f++) {
            const fill how = (fill)f;
            if (few && how != RANDOM && how != OUTLIERS)
                continue;
            switch (s.op) {
            case PS_OP_MATMUL:
                if (s.in == PS_FMT_F16S)
                    test_matmul(s, how);
                else
                    test_matvec(s, how), test_matvec_ranges(s, how);
                break;
            case PS_OP_ROPE:
                test_rope(s, how);
                break;
            case PS_OP_KV_STORE:
            case PS_OP_ATTENTION:
                test_attention(s, how);
                if (s.op == PS_OP_ATTENTION && how == RANDOM) {
                    test_attention_extremes(s);
                    test_attention_alone(s);
                }
                break;
            case PS_OP_MOE_DISPATCH:
                test_moe(s, how);
                if (how == RANDOM)
                    test_moe_chain(s);
                break;
            case PS_OP_SAMPLE:
                test_argmax(s, how);
                break;
            case PS_OP_MOE_ROUTE:
                test_route(s, how);
                break;
            default:
                test_rows(s, how);
                break;
            }
        }
        printf("%-28s %4d cases %s\n", s.name, n_cases - cases, n_failed == before ? "passed" : "FAILED");
    }
    if (wanted("cuda.copy")) {
        const int before = n_failed, cases = n_cases;
        test_copy();
        printf("%-28s %4d cases, %s\n", "cuda.copy", n_cases - cases,
               n_failed == before ? "passed" : "FAILED");
    }
    if (wanted("cuda.topk")) {
        const int before = n_failed, cases = n_cases;
        for (int f = 0; f < N_FILLS; f++)
            test_topk((fill)f);
        printf("%-28s %4d cases, %s\n", "cuda.topk", n_cases - cases,
               n_failed == before ? "passed" : "FAILED");
    }
    printf("%d kernels, %d cases, %d failed\n", n_kernels, n_cases, n_failed);
    return n_failed || n_cases == 0;
}
