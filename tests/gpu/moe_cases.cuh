/* Cases of MOE_DISPATCH and MOE_ROUTE, of the largest logits, and of rows in bulk: part of test_cuda_kernels.cu, which
 * includes it behind its tools. */

/* What the selection has besides random experts, each once per row. */
enum sel_style { PLAIN, ONE_EXPERT, HOLES }; /* HOLES: ids that select nothing, -1 and beyond the experts */

struct moe_shape {
    uint32_t tokens, experts, used, cols, ff, first, n;
    ps_moe_part part;
    uint32_t max_direct;
    int resident; /* of 4 experts: how many are, by chance; -1: no set at all */
    sel_style style;
};
static const ps_moe_part ALL = PS_MOE_PART_ALL, NEAR = PS_MOE_PART_NEAR, FAR = PS_MOE_PART_FAR;

/* Whole mixtures, ranges, empty ranges; parts with random residents and 0, 1, 3, 8 read directly, one of them with a range,
 * one with a part that is empty. Above 8 tokens: tiles with a few rows, full ones and several of one expert; hidden rows of more
 * than one chunk (used * ff > 4 * longest) and outputs in several slices; rows of odd length (float types alone). */
static const moe_shape moe_shapes[] = {
    {1, 128, 8, 2048, 768, 0, 128, ALL, 0, -1, PLAIN}, {4, 16, 4, 256, 512, 3, 9, ALL, 0, -1, PLAIN},
    {8, 8, 2, 512, 256, 0, 8, ALL, 0, -1, HOLES},      {3, 5, 5, 1024, 1280, 1, 3, ALL, 0, -1, PLAIN},
    {2, 6, 2, 256, 256, 0, 0, ALL, 0, -1, PLAIN},      {3, 4, 2, 96, 96, 0, 4, ALL, 0, -1, PLAIN},
    {5, 6, 2, 37, 41, 0, 6, ALL, 0, -1, PLAIN},        {1, 16, 8, 256, 256, 0, 16, NEAR, 3, 2, PLAIN},
    {1, 16, 8, 256, 256, 0, 16, FAR, 3, 2, PLAIN},     {4, 40, 4, 256, 256, 0, 40, NEAR, 8, 1, PLAIN},
    {4, 40, 4, 256, 256, 0, 40, FAR, 8, 1, HOLES},     {8, 64, 8, 256, 256, 0, 64, NEAR, 1, 2, PLAIN},
    {8, 64, 8, 256, 256, 0, 64, FAR, 0, -1, PLAIN},    {2, 12, 3, 256, 256, 0, 12, NEAR, 0, -1, PLAIN},
    {6, 33, 5, 256, 256, 4, 20, NEAR, 3, 2, PLAIN},    {2, 8, 4, 256, 256, 0, 8, FAR, 8, 0, ONE_EXPERT},
    {9, 16, 4, 256, 512, 0, 16, ALL, 0, -1, PLAIN},    {33, 8, 2, 512, 256, 0, 8, ALL, 0, -1, HOLES},
    {257, 32, 8, 256, 256, 0, 32, ALL, 0, -1, PLAIN},  {20, 12, 8, 256, 512, 0, 12, ALL, 0, -1, PLAIN},
    {70, 4, 3, 256, 256, 1, 2, ALL, 0, -1, PLAIN},     {150, 3, 1, 256, 256, 0, 3, ALL, 0, -1, ONE_EXPERT},
    {33, 64, 4, 256, 256, 0, 64, NEAR, 8, 2, PLAIN},   {33, 64, 4, 256, 256, 0, 64, FAR, 8, 2, PLAIN},
    {12, 5, 2, 256, 256, 0, 0, ALL, 0, -1, PLAIN},     {13, 6, 3, 96, 96, 0, 6, ALL, 0, -1, PLAIN},
    {11, 5, 3, 37, 41, 0, 5, ALL, 0, -1, PLAIN},       {40, 40, 32, 288, 64, 0, 40, ALL, 0, -1, PLAIN}};

static ps_xarg selection(test_case &c, uint32_t tokens, uint32_t experts, uint32_t used, sel_style style) {
    ps_xarg sel = new_act(c, PS_FMT_SEL, used, tokens);
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t k = 0; k < used; k++) {
            int32_t e = (int32_t)(rnd() % experts);
            const float w = uniform() + 1.1f;
            uint8_t *row = (uint8_t *)sel.data + t * sel.row_bytes;
            for (uint32_t j = 0; j < k; j++)
                if (((int32_t *)row)[2 * j] == e)
                    e = (e + 1) % (int32_t)experts, j = UINT32_MAX;
            if (style == ONE_EXPERT)
                e = k == 0 ? 1 : -1;
            if (style == HOLES && rnd() % 4 == 0)
                e = rnd() % 2 ? -1 : (int32_t)experts + (int32_t)(rnd() % 2000);
            memcpy(row + 8 * k, &e, 4);
            memcpy(row + 8 * k + 4, &w, 4);
        }
    return sel;
}

/* Experts' matrices, whose rows are drawn from 61 quantised ones: making every row would take longer than the rest. */
static ps_warg expert_weight(test_case &c, ps_dtype type, uint64_t cols, uint64_t rows, uint64_t experts) {
    const uint64_t n = 61;
    const ps_warg pool = weight(c, type, cols, n, 1, 0.01f);
    ps_warg w = {nullptr, type, cols, rows, experts, pool.row_bytes};
    uint8_t *data = (uint8_t *)c.mem.alloc(w.row_bytes * rows * experts);
    for (uint64_t r = 0; r < rows * experts; r++)
        memcpy(data + r * w.row_bytes, pool.data + rnd() % n * w.row_bytes, w.row_bytes);
    w.data = data;
    return w;
}

static void moe_case(test_case &c, const spec &s, const moe_shape &sh, fill f,
                     std::vector<uint32_t> &resident) {
    c.a.model = &c.model, c.a.layer = &c.layer;
    c.model.glu = sh.tokens % 2 ? PS_GLU_SILU : PS_GLU_GELU_TANH;
    c.out_rows = c.a.n_tokens = sh.tokens;
    c.a.w[0] = expert_weight(c, s.wtype, sh.cols, sh.ff, sh.experts);
    c.a.w[1] = expert_weight(c, s.wtype, sh.cols, sh.ff, sh.experts);
    c.a.w[2] = expert_weight(c, s.wtype, sh.ff, sh.cols, sh.experts);
    c.a.row0 = sh.first, c.a.n_rows = sh.n;
    c.a.part = sh.part, c.a.max_direct = sh.max_direct;
    if (sh.resident >= 0) {
        resident.assign((sh.experts + 31) / 32, 0);
        for (uint32_t e = 0; e < sh.experts; e++)
            resident[e / 32] |= (uint32_t)((int)(rnd() % 4) < sh.resident) << e % 32;
        c.a.resident = resident.data();
    }
    c.a.src[0] = source(c, s.in, sh.cols, sh.tokens, f);
    c.a.src[1] = selection(c, sh.tokens, sh.experts, sh.used, sh.style);
    if (sh.tokens != 4)
        c.a.src[2] = source(c, PS_FMT_F32, sh.cols, sh.tokens, f);
    c.a.dst = new_act(c, PS_FMT_F32, sh.cols, sh.tokens);
    c.in_place = sh.tokens % 3 == 0;
}

static bool moe_fits(const spec &s, const moe_shape &sh, bool random) {
    const ps_dtype_info *info = ps_dtype_find(s.wtype);
    if (sh.cols % info->block_elems || sh.ff % info->block_elems ||
        (s.in != PS_FMT_F16S && sh.tokens > PS_CUDA_MATVEC_TOKENS))
        return false;
    return (random && !few) || (sh.experts != 128 && sh.tokens != 257);
}

static void test_moe(const spec &s, fill how) {
    for (const moe_shape &sh : moe_shapes) {
        /* Extremes are of values, not of shapes. */
        if (!moe_fits(s, sh, how == RANDOM) || (how != RANDOM && (&sh - moe_shapes) % 3 != (int)how % 3))
            continue;
        test_case c;
        std::vector<uint32_t> resident;
        /* The gated unit squares: huge and tiny values leave the range of floats in any precision. Outliers make hidden
         * values that halfs cannot hold. */
        const fill f = how == HUGE_VALUES ? OUTLIERS : how == TINY_VALUES ? EQUAL : how;
        moe_case(c, s, sh, f, resident);
        char what[128];
        snprintf(what, sizeof what, "T %u, %u of %u experts, %u x %u, range %u + %u, part %d, %u direct",
                 sh.tokens, sh.used, sh.experts, sh.cols, sh.ff, sh.first, sh.n, (int)sh.part, sh.max_direct);
        check(c, s, what, f);
    }
}

/* A dispatch cut in two, the second adding to the first, against the whole: by part, and by range of experts, whose
 * matrices then lie in slots that hold no more than the range. For many tokens ranges give the very bits of the whole. */
static void test_moe_chain(const spec &s) {
    const bool many = s.in == PS_FMT_F16S;
    for (const moe_shape &sh : moe_shapes) {
        if (sh.part != NEAR || sh.first != 0 || !moe_fits(s, sh, false) || many != (sh.tokens > 8))
            continue;
        for (int by_range = 0; by_range < 2; by_range++) {
            test_case c;
            std::vector<uint32_t> resident;
            moe_case(c, s, sh, RANDOM, resident);
            n_cases++;
            pool &m = c.mem;
            ps_kargs d = c.a;
            for (int i = 0; i < PS_OP_MAX_SRC; i++)
                d.src[i].data = m.to_device(c.a.src[i].data, c.a.src[i].row_bytes * sh.tokens);
            for (int i = 0; i < 3; i++)
                d.w[i].data = (const uint8_t *)m.to_device(c.a.w[i].data, weight_bytes(c.a.w[i]));
            d.resident = (const uint32_t *)m.to_device(resident.data(), resident.size() * 4);
            const size_t bytes = c.a.dst.row_bytes * sh.tokens;
            const uint64_t longest = sh.cols > sh.ff ? sh.cols : sh.ff;
            const uint64_t scratch = ps_scratch_bytes(&s.scratch, sh.tokens, longest, 1, 0);
            CK(cudaMalloc((void **)&d.scratch, scratch));
            m.device.push_back(d.scratch);
            std::vector<uint8_t> whole(bytes), cut(bytes);
            ps_cuda_on on = c.on;
            ps_error err;
            bool ok = true;
            const auto dispatch = [&](const ps_kargs &k) {
                ok = ok && ps_cuda_launch(s.id, &k, &on, &err) == PS_OK;
                CK(cudaDeviceSynchronize());
            };
            d.part = ALL;
            CK(cudaMalloc(&d.dst.data, bytes));
            m.device.push_back(d.dst.data);
            dispatch(d);
            CK(cudaMemcpy(whole.data(), d.dst.data, bytes, cudaMemcpyDeviceToHost));
            CK(cudaMemset(d.dst.data, 0xA5, bytes));
            for (int second = 0; second < 2; second++) {
                ps_kargs k = d;
                if (by_range) {
                    const uint64_t at = sh.experts / 3;
                    k.row0 = second ? at : 0, k.n_rows = second ? sh.experts - at : at;
                    for (int i = 0; i < 3; i++) {
                        const uint64_t one = c.a.w[i].rows * c.a.w[i].row_bytes;
                        k.w[i].data =
                            (const uint8_t *)m.to_device(c.a.w[i].data + k.row0 * one, k.n_rows * one) -
                            k.row0 * one;
                    }
                } else {
                    k.part = second ? FAR : NEAR;
                }
                if (second)
                    k.src[2] = k.dst;
                dispatch(k);
            }
            CK(cudaMemcpy(cut.data(), d.dst.data, bytes, cudaMemcpyDeviceToHost));
            bool nan = false;
            const double e = ok ? row_error(c.a.dst, cut.data(), whole.data(), sh.tokens, &nan) : 1;
            if (e > 1e-6 || nan || !ok || (many && by_range && cut != whole)) {
                printf("FAILED %s, T %u, %u of %u experts cut by %s: error %.3g%s\n", s.name, sh.tokens,
                       sh.used, sh.experts, by_range ? "range" : "part", e, ok ? "" : err.message);
                n_failed++;
            }
        }
    }
}

static void test_route(const spec &s, fill how) {
    static const uint32_t shapes[][3] = {{1, 128, 8},  {5, 8, 2},     {3, 60, 4},    {2, 32, 32},
                                         {8, 512, 10}, {4, 1024, 32}, {300, 128, 8}, {2, 6, 6}};
    for (const auto &sh : shapes)
        for (int norm = 0; norm < 2; norm++) {
            if (left_out((uint64_t)sh[0] * sh[1] * 16))
                continue;
            test_case c;
            c.a.model = &c.model, c.a.layer = &c.layer;
            c.model.moe_norm_topk = norm;
            c.out_rows = c.a.n_tokens = sh[0];
            c.a.src[0] = source(c, PS_FMT_F32, sh[1], sh[0], how);
            c.a.dst = new_act(c, PS_FMT_SEL, sh[2], sh[0]);
            char what[96];
            snprintf(what, sizeof what, "T %u, %u of %u, norm %d", sh[0], sh[2], sh[1], norm);
            check(c, s, what, how);
        }
}

/* Logits of row t: as the filling says, and in other rows ties, some NaN, NaN and -infinity alone, and +infinity. */
static ps_xarg logits_rows(test_case &c, uint32_t cols, uint32_t rows, fill how) {
    ps_xarg x = source(c, PS_FMT_F32, cols, rows, how);
    for (uint32_t t = 0; t < rows; t++) {
        float *row = (float *)((uint8_t *)x.data + t * x.row_bytes);
        for (uint32_t i = 0; i < cols; i++)
            switch (t % 6) {
            case 1:
                row[i] = (float)(rnd() % 5) * 0.5f - 1;
                break;
            case 2:
                row[i] = rnd() % 3 ? row[i] : NAN;
                break;
            case 3:
                row[i] = rnd() % 2 ? NAN : -INFINITY;
                break;
            case 4:
                row[i] = rnd() % 50 == 0 ? INFINITY : row[i];
                break;
            case 5:
                row[i] = rnd() % 2 ? 0.0f : -0.0f;
                break;
            default:
                break;
            }
    }
    return x;
}

static void test_argmax(const spec &s, fill how) {
    static const uint32_t shapes[][2] = {{1, 151936}, {7, 1003}, {12, 37}, {6, 4096}, {6, 1}, {19, 8193}};
    for (const auto &sh : shapes) {
        if (left_out((uint64_t)sh[0] * sh[1]))
            continue;
        test_case c;
        c.a.model = &c.model, c.a.layer = &c.layer;
        c.out_rows = c.a.n_tokens = sh[0];
        c.a.src[0] = logits_rows(c, sh[1], sh[0], how);
        c.a.dst = new_act(c, PS_FMT_I32, 1, sh[0]);
        const ps_sampler_params greedy = {0, 0, 1, 0, 0};
        ps_sampler *one = NULL;
        if (ps_sampler_new(&greedy, sh[1], &one, NULL) != PS_OK)
            exit(70);
        std::vector<ps_sampler *> all(sh[0], one);
        c.a.samplers = all.data();
        char what[64];
        snprintf(what, sizeof what, "%u rows of %u", sh[0], sh[1]);
        check(c, s, what, how);
        ps_sampler_free(one);
    }
}

static void test_topk(fill how) {
    static const uint32_t shapes[][3] = {{1, 151936, 40}, {7, 1003, 256}, {13, 300, 256}, {6, 257, 256},
                                         {6, 5, 5},       {12, 64, 1},    {6, 8192, 100}};
    for (const auto &sh : shapes) {
        const uint32_t T = sh[0], n = sh[1], k = sh[2];
        if (left_out((uint64_t)T * n))
            continue;
        test_case c;
        n_cases++;
        ps_xarg x = logits_rows(c, n, T, how), d = x;
        d.data = c.mem.to_device(x.data, x.row_bytes * T);
        ps_cuda_top *out;
        CK(cudaMalloc((void **)&out, T * k * sizeof *out));
        c.mem.device.push_back(out);
        std::vector<ps_cuda_top> got(T * k);
        ps_error err;
        bool ok = ps_cuda_topk(&d, T, k, out, NULL, &err) == PS_OK;
        CK(cudaDeviceSynchronize());
        CK(cudaMemcpy(got.data(), out, T * k * sizeof *out, cudaMemcpyDeviceToHost));
        for (uint32_t t = 0; ok && t < T; t++) {
            const float *row = (const float *)((const uint8_t *)x.data + t * x.row_bytes);
            const auto value = [&](uint32_t i) { return isnan(row[i]) ? -INFINITY : row[i]; };
            std::vector<uint32_t> ids(n);
            for (uint32_t i = 0; i < n; i++)
                ids[i] = i;
            std::partial_sort(ids.begin(), ids.begin() + k, ids.end(), [&](uint32_t a, uint32_t b) {
                return value(a) > value(b) || (value(a) == value(b) && a < b);
            });
            for (uint32_t i = 0; i < k; i++)
                ok = ok && got[t * k + i].id == (int32_t)ids[i] && got[t * k + i].logit == value(ids[i]);
        }
        if (!ok) {
            printf("FAILED cuda.topk, %u rows of %u, %u largest, %s\n", T, n, k, fill_names[how]);
            n_failed++;
        }
    }
}
