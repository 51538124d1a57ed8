/* Cases of attention, KV_STORE and row copies: part of test_cuda_kernels.cu, which includes it behind its tools. */

struct attn_shape {
    uint32_t n_head, n_head_kv, dk, dv, window;
    uint32_t kv_rows;                                 /* 0: as many as there are positions */
    std::vector<std::pair<uint32_t, uint32_t>> spans; /* pos0, rows */
};

/* Spans at odd positions, at and around the ends of chunks and tiles, empty ones between others; rings; windows; group
 * sizes 1, 2, 3, 4, 7, 8, 12, 16; head dimensions with and without padding, and above what tensor cores are used for. */
static const attn_shape few_rows[] = {{32, 8, 128, 128, 0, 0, {{1023, 1}}},
                                      {9, 3, 64, 64, 0, 0, {{5, 1}, {300, 1}}},
                                      {4, 1, 256, 256, 100, 0, {{700, 1}, {40, 3}}},
                                      {4, 4, 80, 96, 0, 0, {{127, 1}, {128, 1}}},
                                      {16, 2, 128, 64, 0, 0, {{0, 1}, {3000, 1}}},
                                      {24, 2, 64, 64, 0, 0, {{200, 2}, {17, 4}}},
                                      {8, 2, 64, 64, 129, 160, {{500, 1}, {90, 5}}},
                                      {32, 32, 128, 128, 0, 0, {{255, 3}, {256, 2}}},
                                      {6, 3, 64, 32, 512, 0, {{1500, 1}, {511, 2}}},
                                      {32, 4, 128, 128, 0, 0, {{4095, 1}, {31, 1}}},
                                      {14, 2, 128, 128, 0, 0, {{511, 1}, {0, 0}, {600, 5}}},
                                      {16, 2, 128, 128, 0, 0, {{253, 8}}},
                                      {16, 1, 64, 64, 300, 331, {{1021, 7}, {2, 1}}},
                                      {2, 2, 72, 120, 0, 0, {{77, 8}}},
                                      {4, 2, 512, 512, 0, 0, {{300, 2}, {7, 1}}},
                                      {2, 1, 320, 264, 40, 0, {{290, 3}}}};
static const attn_shape many_rows[] = {{8, 2, 128, 128, 0, 0, {{0, 200}}},
                                       {4, 4, 64, 64, 0, 0, {{5, 130}, {0, 0}, {77, 33}}},
                                       {14, 2, 128, 128, 0, 0, {{1, 65}, {300, 19}}},
                                       {8, 1, 80, 80, 0, 0, {{3, 50}}},
                                       {6, 3, 96, 64, 0, 0, {{63, 64}, {64, 9}, {0, 1}}},
                                       {8, 2, 256, 256, 0, 0, {{100, 40}}},
                                       {8, 2, 128, 128, 100, 0, {{450, 150}}},
                                       {8, 2, 64, 64, 129, 200, {{500, 60}, {90, 9}}},
                                       {4, 1, 192, 128, 0, 0, {{33, 70}}},
                                       {32, 8, 128, 128, 0, 0, {{1000, 9}}},
                                       {4, 4, 128, 128, 1, 0, {{60, 70}}},
                                       {16,
                                        2,
                                        128,
                                        128,
                                        0,
                                        0,
                                        {{31, 1},
                                         {64, 1},
                                         {0, 1},
                                         {127, 1},
                                         {999, 1},
                                         {63, 1},
                                         {0, 0},
                                         {65, 1},
                                         {500, 1},
                                         {13, 1},
                                         {256, 1},
                                         {1, 1}}},
                                       {2, 1, 512, 512, 0, 0, {{20, 12}}},
                                       {4, 2, 264, 264, 30, 0, {{50, 9}}}};

/* The kernels for many rows take q in f16, with a power of two per head: so that the reference sees what they compute
 * with, its q is rounded the same way (attention.cuh: times attn_scale * log2(e), largest element in [2^14, 2^15)). */
static void round_queries(test_case &c) {
    ps_layer &l = c.layer;
    const float factor = (float)((double)l.attn_scale * 1.4426950408889634);
    for (uint32_t t = 0; t < c.a.n_tokens; t++)
        for (uint32_t h = 0; h < l.n_head; h++) {
            float *q =
                (float *)((uint8_t *)c.a.src[0].data + t * c.a.src[0].row_bytes) + (size_t)h * l.head_dim_k;
            float amax = 0;
            int e1, e2;
            for (uint32_t i = 0; i < l.head_dim_k; i++)
                amax = fmaxf(amax, fabsf(q[i]));
            if (!(amax > 0))
                continue;
            frexpf(amax, &e1), e1 -= 1;
            frexpf(ldexpf(amax, -e1) * factor, &e2), e2 -= 1;
            for (uint32_t i = 0; i < l.head_dim_k; i++)
                q[i] = ldexpf(ps_f16_to_f32(ps_f32_to_f16(ldexpf(ldexpf(q[i], -e1) * factor, 14 - e2))),
                              e1 + e2 - 14);
        }
    l.attn_scale = 0.693147181f;
}

/* The layer, its spans with random K and V, sources and destination. */
static void set_attention(test_case &c, const spec &s, const attn_shape &sh, fill how) {
    c.a.model = &c.model, c.a.layer = &c.layer;
    ps_layer &l = c.layer;
    l.n_head = sh.n_head, l.n_head_kv = sh.n_head_kv, l.head_dim_k = sh.dk, l.head_dim_v = sh.dv,
    l.window = sh.window;
    l.attn_scale = 1.0f / sqrtf((float)l.head_dim_k);
    c.a.row0 = 0, c.a.n_rows = l.n_head_kv;
    uint32_t T = 0;
    for (const auto &at : sh.spans) {
        ps_seq_span sp = {T,        at.second,
                          at.first, sh.kv_rows ? sh.kv_rows : at.first + at.second + (at.second == 0),
                          nullptr,  nullptr};
        const size_t nk = (size_t)sp.kv_rows * l.n_head_kv * l.head_dim_k,
                     nv = (size_t)sp.kv_rows * l.n_head_kv * l.head_dim_v;
        sp.k = (uint16_t *)c.mem.alloc(nk * 2);
        sp.v = (uint16_t *)c.mem.alloc(nv * 2);
        for (size_t i = 0; i < nk; i++)
            sp.k[i] = ps_f32_to_f16(uniform());
        for (size_t i = 0; i < nv; i++)
            sp.v[i] = ps_f32_to_f16(uniform());
        c.spans.push_back(sp);
        T += at.second;
    }
    c.a.n_spans = (uint32_t)c.spans.size();
    c.out_rows = c.a.n_tokens = T;
    const bool store = s.op == PS_OP_KV_STORE;
    c.a.src[0] = source(c, PS_FMT_F32, (store ? l.n_head_kv : l.n_head) * l.head_dim_k, T, how);
    if (store)
        c.a.src[1] = source(c, PS_FMT_F32, l.n_head_kv * l.head_dim_v, T, how);
    else
        c.a.dst = new_act(c, s.out, l.n_head * l.head_dim_v, T);
}

static bool is_flash(const spec &s) {
    return s.op == PS_OP_ATTENTION && s.scratch.kv_chunk == 0;
}
static std::vector<attn_shape> shapes_of(const spec &s) {
    std::vector<attn_shape> v;
    if (!is_flash(s))
        v.assign(few_rows, few_rows + sizeof few_rows / sizeof *few_rows);
    if (is_flash(s) || s.op == PS_OP_KV_STORE)
        v.insert(v.end(), many_rows, many_rows + sizeof many_rows / sizeof *many_rows);
    return v;
}

static void test_attention(const spec &s, fill how) {
    const bool store = s.op == PS_OP_KV_STORE;
    /* Attention is not asked for scores beyond floats here: test_attention_extremes does. */
    const fill f = how == HUGE_VALUES ? store ? OUTLIERS : RANDOM : how;
    for (const attn_shape &sh : shapes_of(s))
        for (int part = 0; part < 2; part++) {
            uint64_t work = 0;
            for (const auto &at : sh.spans)
                work += (uint64_t)(at.first + at.second) * (is_flash(s) ? at.second : 1);
            /* Ranges of KV heads: F32 covers them; the scale of F16S belongs to whole rows. */
            if ((s.out == PS_FMT_Q8 && sh.dv % 32) || left_out(work * sh.n_head_kv * sh.dk) ||
                (part && (sh.n_head_kv < 2 || s.out != PS_FMT_F32)))
                continue;
            test_case c;
            set_attention(c, s, sh, f);
            if (part)
                c.a.row0 = 1, c.a.n_rows = sh.n_head_kv - 1;
            if (is_flash(s) && how == OUTLIERS && sh.dk <= 256 && sh.dv <= 256)
                c.before_reference = round_queries;
            char what[128];
            snprintf(what, sizeof what,
                     "%u/%u heads of %u/%u, window %u, ring %u, %u rows, the first at %u, part %d", sh.n_head,
                     sh.n_head_kv, sh.dk, sh.dv, sh.window, sh.kv_rows, c.a.n_tokens, sh.spans[0].first,
                     part);
            check(c, s, what, f, store);
        }
}

/* Queries from subnormal to almost infinite, whose best position is known by a wide margin; values as large as halves are,
 * so that F16S needs a scale of 2 in some rows. */
static void test_attention_extremes(const spec &s) {
    static const float sizes[] = {1e-40f, 1e-30f, 0.01f, 30.0f, 1e10f, 1e30f, 3e38f};
    const uint32_t rows = is_flash(s) ? 33 : 3;
    for (const float size : sizes)
        for (int large = 0; large < 2; large++) {
            test_case c;
            set_attention(c, s, {8, 2, 64, 64, 0, 0, {{301, rows}, {1, 1}}}, RANDOM);
            std::vector<float> sign(64);
            for (float &x : sign)
                x = rnd() % 2 ? 1.0f : -1.0f;
            for (uint32_t t = 0; t < c.a.n_tokens; t++)
                for (uint32_t i = 0; i < 8 * 64; i++)
                    ((float *)((uint8_t *)c.a.src[0].data + t * c.a.src[0].row_bytes))[i] =
                        size * sign[i % 64];
            for (const ps_seq_span &sp : c.spans)
                for (uint32_t p = 0; p < sp.kv_rows; p++)
                    for (uint32_t i = 0; i < 2 * 64; i++) {
                        const float x = p == 0 ? sign[i % 64] : rnd() % 2 ? 1.0f : -1.0f;
                        sp.k[p * 128 + i] = ps_f32_to_f16(x);
                        if (large && i < 64)
                            sp.v[p * 128 + i] = ps_f32_to_f16(p == 0 || p % 3 ? 65504.0f : -65504.0f);
                    }
            if (is_flash(s) && size == 30.0f)
                c.before_reference = round_queries;
            char what[96];
            snprintf(what, sizeof what, "queries of %g, %s values", (double)size, large ? "large" : "small");
            check(c, s, what, RANDOM);
        }
}

/* A row's bits do not depend on the rows beside it. */
static void test_attention_alone(const spec &s) {
    if (s.out != PS_FMT_F32)
        return;
    static const attn_shape shapes[] = {{8, 2, 128, 128, 0, 0, {{250, 40}}},
                                        {8, 2, 128, 128, 70, 0, {{250, 40}}},
                                        {7, 1, 64, 64, 0, 0, {{600, 8}}},
                                        {8, 1, 256, 256, 90, 0, {{700, 8}}},
                                        {4, 2, 96, 80, 300, 0, {{900, 8}}}};
    for (const attn_shape &sh : shapes) {
        if (!is_flash(s) && sh.spans[0].second > PS_CUDA_MATVEC_TOKENS)
            continue;
        n_cases++;
        test_case c;
        set_attention(c, s, sh, RANDOM);
        pool &m = c.mem;
        const uint32_t T = c.a.n_tokens, end = sh.spans[0].first + T;
        const uint64_t scratch = ps_cuda_attn_scratch(&c.layer, T, end), bytes = c.a.dst.row_bytes * T;
        ps_kargs d = c.a;
        d.src[0].data = m.to_device(c.a.src[0].data, c.a.src[0].row_bytes * T);
        std::vector<uint8_t> poison(scratch, 0xFF), got[2];
        d.scratch = (uint8_t *)m.to_device(poison.data(), scratch);
        ps_seq_span sp = c.spans[0];
        sp.k = (uint16_t *)m.to_device(sp.k, (size_t)sp.kv_rows * sh.n_head_kv * sh.dk * 2);
        sp.v = (uint16_t *)m.to_device(sp.v, (size_t)sp.kv_rows * sh.n_head_kv * sh.dv * 2);
        bool ok = true;
        for (int alone = 0; alone < 2; alone++) {
            d.dst.data = m.to_device(c.a.dst.data, bytes);
            for (uint32_t i = 0; i < (alone ? T : 1); i++) {
                const ps_seq_span one =
                    alone ? ps_seq_span{sp.row0 + i, 1, sp.pos0 + i, sp.kv_rows, sp.k, sp.v} : sp;
                ps_cuda_on on = {};
                on.kv_bound = one.pos0 + one.n_rows, on.span_rows = one.n_rows;
                d.spans = (const ps_seq_span *)m.to_device(&one, sizeof one);
                ps_error err;
                ok &= ps_cuda_launch(s.id, &d, &on, &err) == PS_OK;
            }
            CK(cudaDeviceSynchronize());
            got[alone].resize(bytes);
            CK(cudaMemcpy(got[alone].data(), d.dst.data, bytes, cudaMemcpyDeviceToHost));
        }
        if (!ok || got[0] != got[1]) {
            printf("FAILED %s, %u/%u heads of %u/%u, window %u: rows alone give other bits\n", s.name,
                   sh.n_head, sh.n_head_kv, sh.dk, sh.dv, sh.window);
            n_failed++;
        }
    }
}

/* ps_cuda_copy_rows: between VRAM and mapped host memory, all alignments; what lies between rows stays. */
static void test_copy() {
    static const uint32_t shapes[][5] = {/* row bytes, rows, stride from, stride to, offset */
                                         {16384, 1, 0, 0, 0},
                                         {16384, 7, 16384, 32768, 0},
                                         {4096, 33, 8192, 4096, 4096},
                                         {20, 1000, 64, 48, 4},
                                         {1, 3, 2, 5, 1},
                                         {12345, 9, 20000, 12345, 3},
                                         {512, 2048, 512, 1024, 512},
                                         {1 << 20, 2, 1 << 20, 1 << 20, 0}};
    for (const auto &sh : shapes)
        for (int way = 0; way < 4; way++) { /* bit 0: from mapped memory, bit 1: to it */
            n_cases++;
            pool m;
            const size_t n_from = (size_t)sh[2] * (sh[1] - 1) + sh[0] + sh[4],
                         n_to = (size_t)sh[3] * (sh[1] - 1) + sh[0] + sh[4];
            std::vector<uint8_t> from(n_from), to(n_to, 0xA5), got(n_to);
            for (uint8_t &b : from)
                b = (uint8_t)rnd();
            uint8_t *d_from =
                (uint8_t *)(way & 1 ? m.to_mapped(from.data(), n_from) : m.to_device(from.data(), n_from));
            uint8_t *d_to =
                (uint8_t *)(way & 2 ? m.to_mapped(to.data(), n_to) : m.to_device(to.data(), n_to));
            ps_error err;
            if (ps_cuda_copy_rows(d_to + sh[4], sh[3], d_from + sh[4], sh[2], sh[0], sh[1], nullptr, &err) !=
                PS_OK) {
                printf("FAILED cuda.copy: %s\n", err.message);
                n_failed++;
                continue;
            }
            CK(cudaDeviceSynchronize());
            CK(cudaMemcpy(got.data(), d_to, n_to, cudaMemcpyDefault));
            for (uint32_t r = 0; r < sh[1]; r++)
                memcpy(&to[sh[4] + (size_t)r * sh[3]], &from[sh[4] + (size_t)r * sh[2]], sh[0]);
            if (got != to) {
                printf("FAILED cuda.copy, %u rows of %u bytes, offset %u, way %d\n", sh[1], sh[0], sh[4],
                       way);
                n_failed++;
            }
        }
}
