/* Speed of row operations, of choosing tokens, and of the mixture of experts: part of bench_cuda_kernels.cu. */

static void bench_bulk(double hbm) {
    const uint32_t T = 2048, cols = 4096;
    const uint64_t bytes = (uint64_t)T * cols * 4;
    static const struct {
        uint32_t id;
        const char *name;
        ps_fmt out;
        bool two;
    } ops[] = {{2010, "rmsnorm.f32", PS_FMT_F32, false},
               {2011, "rmsnorm.q8", PS_FMT_Q8, false},
               {2012, "rmsnorm.f16s", PS_FMT_F16S, false},
               {2020, "rope", PS_FMT_F32, false},
               {2052, "glu.f16s", PS_FMT_F16S, true},
               {2051, "glu.q8", PS_FMT_Q8, true},
               {2060, "add", PS_FMT_F32, true},
               {2070, "convert.q8", PS_FMT_Q8, false},
               {2072, "convert.f16s", PS_FMT_F16S, false},
               {2080, "gather", PS_FMT_F32, false}};
    static const double per_element[PS_FMT_COUNT] = {0, 4, 2, 4, 1.25, 8, 2};
    ps_model model = {};
    model.norm_eps = 1e-5f;
    ps_layer l = {};
    l.head_dim_k = l.head_dim_v = l.rope_dims = 128, l.rope_base = 500000, l.rope_scale = 1;
    std::vector<uint32_t> order(T);
    for (uint32_t t = 0; t < T; t++)
        order[t] = T - 1 - t;
    CK(cudaMemcpy(work, order.data(), T * 4, cudaMemcpyHostToDevice));
    ps_cuda_on on = {};
    on.stream = stream;
    for (const auto &op : ops)
        for (int heads = 0; heads < 2; heads++) { /* and norms of heads of 128 */
            if (heads && op.id != 2010)
                continue;
            ps_kargs a = {};
            a.model = &model, a.layer = &l;
            a.n_tokens = T;
            a.positions = a.outputs = (const uint32_t *)work;
            if (op.id < 2020)
                a.w[0] = {work + (1 << 20), PS_DTYPE_F32, heads ? 128 : cols, 1, 1, heads ? 512 : 4 * cols};
            const double us = measure(16, 9, [&](int i) {
                uint8_t *base = weights + (uint64_t)(i % 16) * 4 * bytes;
                a.src[0] = {base, PS_FMT_F32, cols, 4 * cols};
                a.src[1] = a.src[0];
                a.src[1].data = op.two ? base + bytes : NULL;
                a.dst = {base + 2 * bytes, op.out, cols, ps_fmt_row_bytes(op.out, cols)};
                launch(op.id, a, on);
            });
            const double moved = (double)T * cols * ((op.two ? 8 : 4) + per_element[op.out]);
            line(op.name, heads ? "2048 x 32 heads of 128" : "2048 x 4096", us, moved,
                 moved / (0.7 * hbm * 1e3));
        }
}

/* Single rows, which are latency; then 2048 rows of 4096, cold, which are bandwidth. */
static void bench_rows(double hbm) {
    ps_model model = {};
    model.norm_eps = 1e-5f;
    model.moe_norm_topk = true;
    ps_layer l = {};
    l.n_head = 32, l.n_head_kv = 8, l.head_dim_k = l.head_dim_v = l.rope_dims = 128, l.rope_base = 500000,
    l.rope_scale = 1;
    ps_kargs a = {};
    a.model = &model, a.layer = &l;
    a.n_tokens = 1;
    a.positions = (const uint32_t *)(work + (8 << 20));
    ps_cuda_on on = {};
    on.stream = stream;
    a.src[0] = a.src[1] = {work, PS_FMT_F32, 4096, 16384};
    a.src[1].data = NULL;
    a.dst = {work + (1 << 20), PS_FMT_F32, 4096, 16384};
    a.w[0] = {work + (2 << 20), PS_DTYPE_F32, 4096, 1, 1, 16384};
    const auto one = [&](const char *name, uint32_t id) {
        line(name, "4096 columns, 1 token", measure(100, 15, [&](int) { launch(id, a, on); }), 3 * 16384, 0);
    };
    one("rmsnorm.f32", 2010);
    a.dst.fmt = PS_FMT_Q8;
    one("rmsnorm.q8", 2011);
    one("convert.q8", 2070);
    a.src[1] = a.src[0];
    one("glu.q8", 2051);
    a.dst.fmt = PS_FMT_F32;
    one("add", 2060);
    a.w[0].data = NULL;
    one("rope", 2020);
    a.src[0].cols = 128, a.dst = {work + (1 << 20), PS_FMT_SEL, 8, 64};
    line("moe_route", "8 of 128, 1 token", measure(100, 15, [&](int) { launch(2090, a, on); }), 1024, 0);
    a.n_tokens = 2048;
    line("moe_route", "8 of 128, 2048 tokens", measure(100, 15, [&](int) { launch(2090, a, on); }),
         2048 * 576, 0);
    for (uint32_t T = 1; T <= 64; T *= 8) {
        const uint32_t n = 151936;
        char shape[64];
        snprintf(shape, sizeof shape, "151936 logits, %u rows", T);
        const ps_xarg logits = {weights, PS_FMT_F32, n, ps_fmt_row_bytes(PS_FMT_F32, n)};
        a.n_tokens = T, a.src[0] = logits, a.dst = {work, PS_FMT_I32, 1, 64};
        line("argmax", shape, measure(20, 9, [&](int) { launch(2095, a, on); }), 4.0 * n * T, 0);
        const double us = measure(20, 9, [&](int) {
            ps_error err;
            if (ps_cuda_topk(&logits, T, 64, (ps_cuda_top *)work, stream, &err) != PS_OK) {
                fprintf(stderr, "topk: %s\n", err.message);
                exit(1);
            }
        });
        line("topk, 64", shape, us, 4.0 * n * T, 0);
    }
    bench_bulk(hbm);
}

static void bench_moe() {
    ps_model model = {};
    model.norm_eps = 1e-5f;
    static const type_row rows[] = {{2202, PS_DTYPE_Q4_0, "q4_0", false}, {2201, PS_DTYPE_F16, "f16", false}};
    for (const type_row &t : rows)
        for (uint32_t T = 1; T <= 8; T *= 2) {
            const uint32_t cols = 2048, ff = 768, experts = 128, used = 8;
            const bool q8 = t.type == PS_DTYPE_Q4_0;
            ps_kargs a = {};
            a.model = &model;
            a.n_tokens = T;
            a.n_rows = experts;
            ps_dtype_bytes(t.type, cols, &a.w[0].row_bytes);
            ps_dtype_bytes(t.type, ff, &a.w[2].row_bytes);
            a.w[0] = {NULL, t.type, cols, ff, experts, a.w[0].row_bytes};
            a.w[1] = a.w[0];
            a.w[2] = {NULL, t.type, ff, cols, experts, a.w[2].row_bytes};
            const uint64_t bytes = a.w[0].row_bytes * ff * experts;
            const ps_fmt fmt = q8 ? PS_FMT_Q8 : PS_FMT_F32;
            a.src[0] = {work, fmt, cols, ps_fmt_row_bytes(fmt, cols)};
            a.src[1] = {work + (1 << 20), PS_FMT_SEL, used, 64};
            a.dst = {work + (2 << 20), PS_FMT_F32, cols, 8192};
            a.scratch = work + (16 << 20);
            /* Every launch takes other experts, and there are several layers. */
            const int n_layers = (int)(weights_bytes / (3 * bytes)), n = 16 * n_layers;
            std::vector<uint8_t> sel((size_t)n * 64 * T);
            for (int i = 0; i < n; i++)
                for (uint32_t k = 0; k < T * used; k++) {
                    const int32_t e =
                        (int32_t)((i / n_layers * 8 + (int)(k % used) + 24 * (int)(k / used)) % 128);
                    const float w = 0.125f;
                    memcpy(&sel[(size_t)i * 64 * T + 8 * k], &e, 4);
                    memcpy(&sel[(size_t)i * 64 * T + 8 * k + 4], &w, 4);
                }
            CK(cudaMemcpy(a.src[1].data, sel.data(), sel.size(), cudaMemcpyHostToDevice));
            ps_cuda_on on = {};
            on.stream = stream;
            const double us = measure(n, 7, [&](int i) {
                const uint8_t *base = weights + (uint64_t)(i % n_layers) * 3 * bytes;
                a.w[0].data = base, a.w[1].data = base + bytes, a.w[2].data = base + 2 * bytes;
                a.src[1].data = work + (1 << 20) + (size_t)i * 64 * T;
                launch(t.id, a, on);
            });
            char name[64], shape[64];
            snprintf(name, sizeof name, "moe.%s", t.name);
            snprintf(shape, sizeof shape, "8 of 128, 2048 x 768, %u tokens", T);
            line(name, shape, us, 3.0 * (double)bytes / experts * used * T, 0);
        }
}

/* 30B-A3B: one launch a layer, cold, random routing. */
static void bench_moe_many() {
    static const type_row rows[] = {{2502, PS_DTYPE_Q4_0, "q4_0", false},
                                    {2512, PS_DTYPE_Q4_K, "q4_k", false},
                                    {2514, PS_DTYPE_Q6_K, "q6_k", false},
                                    {2508, PS_DTYPE_Q8_0, "q8_0", false},
                                    {2501, PS_DTYPE_F16, "f16", false}};
    static const uint32_t tokens[] = {1, 4, 16, 64, 256, 512, 1024, 2048};
    ps_model model = {};
    for (const type_row &t : rows)
        for (uint32_t T : tokens) {
            const uint32_t cols = 2048, ff = 768, experts = 128, used = 8;
            if (t.type != PS_DTYPE_Q4_0 && T != 64 && T != 2048)
                continue;
            ps_kargs a = {};
            a.model = &model;
            a.n_tokens = T;
            a.n_rows = experts;
            a.w[0] = {NULL, t.type, cols, ff, experts, 0};
            a.w[2] = {NULL, t.type, ff, cols, experts, 0};
            ps_dtype_bytes(t.type, cols, &a.w[0].row_bytes);
            ps_dtype_bytes(t.type, ff, &a.w[2].row_bytes);
            a.w[1] = a.w[0];
            const uint64_t bytes = a.w[0].row_bytes * ff * experts;
            const int n_layers = (int)std::min<uint64_t>(6, weights_bytes / (3 * bytes));
            a.src[0] = {work, PS_FMT_F16S, cols, ps_fmt_row_bytes(PS_FMT_F16S, cols)};
            a.dst = {work + (48 << 20), PS_FMT_F32, cols, 4 * cols};
            a.scratch = work + (96 << 20);
            const size_t step = (size_t)T * 64;
            std::vector<uint8_t> sel(step * (size_t)n_layers);
            std::vector<bool> seen(experts * (size_t)n_layers);
            uint32_t random = 1;
            for (int i = 0; i < n_layers; i++)
                for (uint32_t row = 0; row < T; row++) {
                    int32_t *p = (int32_t *)&sel[step * (size_t)i + row * 64];
                    for (uint32_t k = 0; k < used; k++) {
                        bool again = true;
                        while (again) {
                            random = random * 1664525u + 1013904223u;
                            p[2 * k] = (int32_t)(random >> 16) % (int32_t)experts;
                            again = false;
                            for (uint32_t j = 0; j < k; j++)
                                again = again || p[2 * j] == p[2 * k];
                        }
                        seen[experts * (size_t)i + (size_t)p[2 * k]] = true;
                        const float w = 0.125f;
                        memcpy(&p[2 * k + 1], &w, 4);
                    }
                }
            CK(cudaMemcpy(work + (16 << 20), sel.data(), sel.size(), cudaMemcpyHostToDevice));
            /* So small that hidden values are of ordinary size: the weights are random bits. */
            std::vector<uint16_t> x(a.src[0].row_bytes / 2 * T, 0x1400);
            for (uint32_t row = 0; row < T; row++) {
                const float one = 1;
                memcpy((uint8_t *)x.data() + row * a.src[0].row_bytes + ps_f16s_scale_offset(cols), &one, 4);
            }
            CK(cudaMemcpy(work, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
            ps_cuda_on on = {};
            on.stream = stream;
            const double us = measure(n_layers, 7, [&](int i) {
                const uint8_t *base = weights + (uint64_t)i * 3 * bytes;
                a.w[0].data = base, a.w[1].data = base + bytes, a.w[2].data = base + 2 * bytes;
                a.src[1] = {work + (16 << 20) + step * (size_t)i, PS_FMT_SEL, used, 64};
                launch(t.id, a, on);
            });
            const double share = (double)std::count(seen.begin(), seen.end(), true) / (double)seen.size();
            char name[64], shape[64];
            snprintf(name, sizeof name, "moe.many.%s", t.name);
            snprintf(shape, sizeof shape, "%u tokens, %.0f TFLOP/s", T,
                     6.0 * T * used * cols * ff / us / 1e6);
            line(name, shape, us, 3.0 * (double)bytes * share, 0);
        }
}
