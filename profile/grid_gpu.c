/* What is measured of a GPU: the bus in both directions and beside the CPUs, small costs, and curves of its kernels. */
#include "profile/grid_internal.h"

/* Pieces over the bus, and ways to hold the host's side of them. */
static const uint64_t pieces[] = {4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20};
enum { N_PIECES = sizeof pieces / sizeof pieces[0] };

static void add_bus(ps_grid *g) {
    const ps_grid_config *c = g->config;
    for (uint32_t i = 0; i < N_PIECES; i++) {
        ps_task t = {.measure = PS_MEASURE_COPY,
                     .bytes = pieces[i],
                     .cost_s = 3e-3,
                     .essential = pieces[i] >= 4 << 20};
        t.bus = PS_BUS_H2D;
        ps_grid_add(g, t);
        t.bus = PS_BUS_D2H;
        ps_grid_add(g, t);
        if (pieces[i] < 1 << 20) /* a kernel that reads so little is all launch */
            continue;
        t.bus = PS_BUS_DIRECT;
        ps_grid_add(g, t);
    }
    for (int kind = PS_HOST_KIND_REGISTERED; kind <= PS_HOST_KIND_STAGED; kind++)
        ps_grid_add(g, (ps_task){.measure = PS_MEASURE_COPY,
                                 .bus = PS_BUS_H2D,
                                 .kind = (ps_host_kind)kind,
                                 .bytes = pieces[N_PIECES - 1],
                                 .cost_s = 10e-3});
    uint32_t threads[PS_GRID_THREADS];
    const uint32_t n = ps_grid_threads(c->n_threads, false, threads);
    for (uint32_t i = 0; i < n; i++)
        for (int bus = 0; bus < PS_BUS_COUNT; bus++)
            if (bus != PS_BUS_D2H || !c->quick)
                ps_grid_add(g, (ps_task){.measure = PS_MEASURE_TOGETHER,
                                         .point = {.n_threads = threads[i]},
                                         .bus = (ps_bus)bus,
                                         .cost_s = 12e-3,
                                         .essential = true});
    for (uint32_t i = 0; i < n && !c->quick; i++)
        for (int bus = PS_BUS_H2D; bus <= PS_BUS_D2H; bus++)
            ps_grid_add(g, (ps_task){.measure = PS_MEASURE_PACED,
                                     .point = {.n_threads = threads[i]},
                                     .bus = (ps_bus)bus,
                                     .share_frac = 0.5,
                                     .cost_s = 12e-3});
    for (int m = PS_MEASURE_HBM; m <= (c->quick ? PS_MEASURE_LEVEL : PS_MEASURE_HBM_FULL); m++)
        ps_grid_add(
            g, (ps_task){
                   .measure = (ps_measure)m, .point = {.n_threads = 1}, .cost_s = 2e-3, .essential = true});
}

static void add_gpu_point(ps_grid *g, const ps_kernel_spec *k, ps_profile_point p, bool essential) {
    double bytes, flops;
    p.kernel = k->id;
    ps_point_work(k, &p, &bytes, &flops);
    if (flops > 2e12 || bytes > 1e9)
        return;
    const double bus = p.beside == PS_BESIDE_DIRECT ? 2e10 : 1e12;
    ps_grid_add(g, (ps_task){.measure = PS_MEASURE_KERNEL,
                             .point = p,
                             .essential = essential,
                             .cost_s = 5e-6 + bytes / bus + flops / 1e14});
}

/* KV lengths after a step of n tokens. */
static void add_attention(ps_grid *g, const ps_kernel_spec *k, ps_profile_point p, uint64_t n_ctx,
                          bool essential) {
    static const uint64_t lens[] = {256, 1024, 4096, 16384, 65536};
    p.kv_len = p.n_tokens < 32 ? 32 : p.n_tokens;
    add_gpu_point(g, k, p, essential);
    const uint64_t least = p.kv_len;
    for (uint32_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        if (lens[i] <= least || (n_ctx != 0 && lens[i] > n_ctx) || (g->config->quick && i % 2 == 0))
            continue;
        p.kv_len = lens[i];
        add_gpu_point(g, k, p, essential);
    }
}

/* Products and experts of few tokens can read their weights from host memory. */
static bool reads_direct(const ps_kernel_spec *k, uint32_t tokens) {
    return (tokens == 1 || tokens == 8) && (k->op == PS_OP_MATMUL || k->op == PS_OP_MOE_DISPATCH);
}

static bool uses_blas(const ps_kernel_spec *k) {
    return k->id >= 2400 && k->id < 2500; /* the family of cuda_kernels.h */
}

/* Token counts, where a kernel is meant for them; 0 ends. */
static const uint32_t product_tokens[] = {1, 4, 8, 16, 128, 512, 2048, 0};
static const uint32_t rare_tokens[] = {1, 8, 16, 512, 2048, 0};
static const uint32_t attention_tokens[] = {1, 8, 16, 128, 512, 2048, 0};
static const uint32_t row_tokens[] = {1, 256, 2048, 0};
static const uint32_t end_tokens[] = {1, 8, 0};
static const uint32_t model_tokens[] = {1, 2, 4, 8, 16, 64, 256, 1024, 2048, 0};
static const uint32_t quick_tokens[] = {1, 8, 256, 2048, 0};
static const uint32_t quick_row_tokens[] = {1, 2048, 0};

/* Types that few models' large matrices have, and attention whose results go where few programs want them. */
static bool is_rare(const ps_kernel_spec *k) {
    if (k->op == PS_OP_ATTENTION)
        return k->min_tokens > 1 && k->out_fmt != PS_FMT_F16S;
    return (k->op == PS_OP_MATMUL || k->op == PS_OP_MOE_DISPATCH) &&
           (k->wtype == PS_DTYPE_F32 || k->wtype == PS_DTYPE_Q4_1 || k->wtype == PS_DTYPE_Q5_0 ||
            k->wtype == PS_DTYPE_Q5_1);
}

static const uint32_t *tokens_for(const ps_grid *g, const ps_kernel_spec *k) {
    const bool row = k->op != PS_OP_MATMUL && k->op != PS_OP_MOE_DISPATCH && k->op != PS_OP_ATTENTION;
    if (g->config->quick)
        return row ? quick_row_tokens : quick_tokens;
    if (g->config->model)
        return model_tokens;
    if (row)
        return row_tokens;
    return is_rare(k) ? rare_tokens : k->op == PS_OP_ATTENTION ? attention_tokens : product_tokens;
}

/* At the token counts that the kernel is meant for, as far as shape number `index` is wanted there; output: of rows whose
 * logits are wanted. */
static void add_tokens(ps_grid *g, const ps_kernel_spec *k, ps_profile_point p, uint64_t n_ctx, bool output,
                       uint32_t index, uint32_t most, uint32_t most_many, uint32_t most_direct) {
    for (const uint32_t *t = output ? end_tokens : tokens_for(g, k); *t; t++) {
        const bool essential = index == 0 && (*t == 1 || *t == 2048 || g->config->quick);
        if (*t < k->min_tokens || *t > k->max_tokens || index >= (*t > 8 ? most_many : most))
            continue;
        p.n_tokens = *t;
        p.beside = PS_BESIDE_IDLE;
        if (k->op == PS_OP_ATTENTION) {
            add_attention(g, k, p, n_ctx, essential);
            continue;
        }
        add_gpu_point(g, k, p, essential);
        p.beside = PS_BESIDE_DIRECT;
        if (reads_direct(k, *t) && index < most_direct)
            add_gpu_point(g, k, p, essential);
    }
}

static void add_model(ps_grid *g) {
    const ps_grid_config *c = g->config;
    const ps_model *m = c->model;
    for (uint32_t s = 0; s < m->n_shards; s++) {
        for (uint32_t o = 0; o < m->shards[s].n_ops; o++) {
            const ps_op_desc *op = &m->shards[s].ops[o];
            const ps_dtype type = ps_grid_weight_type(m, m->shards[s].layer, op);
            for (uint32_t i = 0; i < c->n_kernels; i++) {
                const ps_kernel_spec *k = &c->kernels[i];
                if (k->op == op->op && k->device == PS_DEV_CUDA && k->wtype == type &&
                    (c->blas || !uses_blas(k)))
                    add_tokens(g, k, ps_grid_shape_of(m, m->shards[s].layer, op), m->n_ctx_train,
                               ps_grid_is_output(op->dst), 0, 1, 1, 1);
            }
        }
        if (g->n > 100000)
            ps_grid_dedupe(g);
    }
}

/* Shapes for any model: small, middling, large. */
static void add_any(ps_grid *g) {
    static const ps_profile_point matmul[] = {{.rows = 4096, .cols = 4096},
                                              {.rows = 768, .cols = 2048},
                                              {.rows = 14336, .cols = 4096},
                                              {.rows = 1024, .cols = 4096},
                                              {.rows = 4096, .cols = 14336}},
                                  attention[] = {{.rows = 32, .cols = 128, .heads_kv = 8},
                                                 {.rows = 32, .cols = 128, .heads_kv = 4},
                                                 {.rows = 16, .cols = 64, .heads_kv = 4}},
                                  moe[] = {{.rows = 768, .cols = 2048, .heads_kv = 128, .kv_len = 8},
                                           {.rows = 1536, .cols = 4096, .heads_kv = 8, .kv_len = 2}},
                                  route[] = {{.cols = 128, .heads_kv = 128, .kv_len = 8},
                                             {.cols = 8, .heads_kv = 8, .kv_len = 2}},
                                  row[] = {{.cols = 4096}, {.cols = 14336}},
                                  vocabulary[] = {{.cols = 32000}, {.cols = 151936}};
#define LIST(a) a, sizeof a / sizeof a[0]
    /* How many of the shapes: of few tokens, of many, read direct; of rare kernels; quick. */
    static const struct {
        ps_op op;
        const ps_profile_point *shapes;
        uint32_t n, n_many, n_direct, n_rare, n_quick;
    } ops[] = {{PS_OP_MATMUL, LIST(matmul), 3, 2, 2, 2},    {PS_OP_ATTENTION, LIST(attention), 3, 0, 1, 2},
               {PS_OP_MOE_DISPATCH, LIST(moe), 2, 1, 1, 1}, {PS_OP_MOE_ROUTE, LIST(route), 2, 0, 2, 1},
               {PS_OP_RMSNORM, LIST(row), 2, 0, 2, 2},      {PS_OP_ROPE, LIST(row), 2, 0, 2, 2},
               {PS_OP_KV_STORE, LIST(row), 2, 0, 2, 2},     {PS_OP_GLU, LIST(row), 2, 0, 2, 2},
               {PS_OP_ADD, LIST(row), 2, 0, 2, 2},          {PS_OP_CONVERT, LIST(row), 2, 0, 2, 2},
               {PS_OP_GATHER, LIST(row), 2, 0, 2, 2},       {PS_OP_SAMPLE, LIST(vocabulary), 2, 0, 2, 2}};
    const ps_grid_config *c = g->config;
    for (uint32_t i = 0; i < c->n_kernels; i++)
        for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
            const ps_kernel_spec *k = &c->kernels[i];
            if (k->op != ops[o].op || k->device != PS_DEV_CUDA || (!c->blas && uses_blas(k)))
                continue;
            const uint32_t limit = c->quick ? ops[o].n_quick : is_rare(k) ? ops[o].n_rare : ops[o].n;
            const uint32_t many = ops[o].n_many < limit ? ops[o].n_many : limit;
            const uint32_t direct = c->quick || is_rare(k) ? ops[o].n_direct > 0 : ops[o].n_direct;
            /* 128 experts of unquantised weights are more than models have, and more than it is worth to make. */
            const uint32_t skip = k->op == PS_OP_MOE_DISPATCH && ps_dtype_find(k->wtype)->block_elems == 1;
            for (uint32_t s = skip; s < ops[o].n; s++)
                add_tokens(g, k, ops[o].shapes[s], 0, k->op == PS_OP_GATHER || k->op == PS_OP_SAMPLE,
                           s - skip, limit, many, direct);
        }
}

static bool is_common(ps_dtype type) {
    return type == PS_DTYPE_F16 || type == PS_DTYPE_Q4_0;
}

/* What a kernel becomes beside a busy bus, and alone for comparison: CPUs' products of one token, by threads; of the GPU products and
 * attention of few and of many tokens. */
static void add_beside(ps_grid *g) {
    static const ps_beside of_cpu[] = {PS_BESIDE_IDLE, PS_BESIDE_H2D, PS_BESIDE_DIRECT},
                           of_gpu[] = {PS_BESIDE_IDLE, PS_BESIDE_H2D, PS_BESIDE_D2H};
    const ps_grid_config *c = g->config;
    uint32_t threads[PS_GRID_THREADS];
    const uint32_t n_threads = ps_grid_threads(c->n_threads, false, threads);
    for (uint32_t i = 0; i < c->n_kernels; i++) {
        const ps_kernel_spec *k = &c->kernels[i];
        const bool few = k->min_tokens <= 1;
        ps_profile_point p = {.n_tokens = few ? 1 : 512};
        if (k->op == PS_OP_MATMUL && is_common(k->wtype)) {
            p.rows = k->device == PS_DEV_CPU ? 2048 : 14336;
            p.cols = k->device == PS_DEV_CPU ? 2048 : 4096;
        } else if (k->op == PS_OP_ATTENTION && k->device == PS_DEV_CUDA &&
                   k->out_fmt == (few ? PS_FMT_F32 : PS_FMT_F16S)) {
            p.rows = 32, p.cols = 128, p.heads_kv = 8;
            p.kv_len = few ? 16384 : 4096;
        } else {
            continue;
        }
        /* Of two kernels for many tokens the one that is used. */
        if (k->device == PS_DEV_CUDA && (k->op == PS_OP_ATTENTION || few || c->blas == uses_blas(k)))
            for (size_t b = 0; b < sizeof of_gpu / sizeof of_gpu[0]; b++) {
                p.beside = of_gpu[b];
                add_gpu_point(g, k, p, false);
            }
        for (uint32_t h = 0; k->device == PS_DEV_CPU && few && h < n_threads; h++)
            for (size_t b = 0; b < sizeof of_cpu / sizeof of_cpu[0]; b++) {
                p.n_threads = threads[h];
                p.beside = of_cpu[b];
                if (threads[h] >= 4 || h + 1 == n_threads)
                    ps_grid_point(g, k, p, false);
            }
    }
}

void ps_grid_add_gpu(ps_grid *g) {
    add_bus(g);
    if (!g->config->quick && !g->config->model)
        add_beside(g);
    if (g->config->model)
        add_model(g);
    else
        add_any(g);
}
