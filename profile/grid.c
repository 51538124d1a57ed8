/* The grids: for any machine and model, quick or default; grid_model.c has the one for a single model. */
#include "profile/grid.h"

#include <stdlib.h>
#include <string.h>

#include "profile/grid_internal.h"

/* Time grows with the work beyond this, so larger points teach little for what they cost. */
static const double most_flops = 20e9, most_flops_quick = 10e9;

void ps_grid_add(ps_grid *g, ps_task task) {
    if (g->failed)
        return;
    if (g->n == g->room) {
        const uint32_t room = g->room ? g->room * 2 : 256;
        ps_task *tasks = realloc(g->tasks, room * sizeof *tasks);
        if (!tasks) {
            g->failed = true;
            return;
        }
        g->tasks = tasks;
        g->room = room;
    }
    g->tasks[g->n++] = task;
}

void ps_grid_point(ps_grid *g, const ps_kernel_spec *k, ps_profile_point p, bool essential) {
    double bytes, flops;
    p.kernel = k->id;
    ps_point_work(k, &p, &bytes, &flops);
    if (flops > (g->config->quick ? most_flops_quick : most_flops))
        return;
    ps_grid_add(g, (ps_task){.measure = PS_MEASURE_KERNEL,
                             .point = p,
                             .essential = essential,
                             .cost_s = 1e-6 + bytes / 8e9 + flops / (30e9 * p.n_threads)});
}

uint32_t ps_grid_threads(uint32_t most, bool few, uint32_t *out) {
    uint32_t n = 0;
    for (uint32_t t = 1; t < most; t *= 2)
        if (!few || t == 1 || t * 2 >= most)
            out[n++] = t;
    out[n++] = most;
    return n;
}

uint32_t ps_grid_beside_threads(uint32_t most) {
    uint32_t t = 1;
    while (t * 2 <= most / 2)
        t *= 2;
    return t;
}

/* Token counts that an operation is measured at, where its kernels are meant for them; 0 ends. */
static const uint32_t product_tokens[] = {1, 2, 4, 8, 32, 128, 512, 0};
static const uint32_t attention_tokens[] = {1, 8, 64, 512, 0};
static const uint32_t row_tokens[] = {1, 32, 512, 0};
static const uint32_t end_tokens[] = {1, 512, 0};
static const uint32_t output_tokens[] = {1, 8, 0};

/* Those of `list` in the range kernel k is meant for, its least, and (ends) its most, since another kernel goes on there; quick: its
 * least, its most up to 512 and a middle one where they are far apart and the list is long. Returns how many; out holds
 * PS_GRID_TOKENS. */
static uint32_t tokens_of(const ps_kernel_spec *k, const uint32_t *list, bool quick, bool ends,
                          uint32_t *out) {
    const uint32_t lo = k->min_tokens ? k->min_tokens : 1;
    uint32_t n = 0, n_list = 0;
    while (list[n_list])
        n_list++;
    if (quick) {
        uint32_t hi = list[n_list - 1];
        if (hi > k->max_tokens)
            hi = k->max_tokens;
        out[n++] = lo;
        uint32_t mid = lo;
        while ((uint64_t)mid * mid < (uint64_t)lo * hi)
            mid *= 2;
        if (hi >= lo * 16 && n_list > 2)
            out[n++] = mid;
        if (hi > lo)
            out[n++] = hi;
        return n;
    }
    if (lo != 1)
        out[n++] = lo;
    for (uint32_t i = 0; i < n_list; i++)
        if (list[i] >= lo && list[i] <= k->max_tokens && (n == 0 || list[i] != out[n - 1]))
            out[n++] = list[i];
    if (ends && k->max_tokens < list[n_list - 1] && out[n - 1] < k->max_tokens)
        out[n++] = k->max_tokens;
    return n;
}

typedef struct shape {
    uint64_t rows, cols;
    uint32_t heads_kv;
    uint64_t kv_len; /* attention: 0, it has its own list */
} shape;

/* Shapes per operation: `quick` of them are in the quick grid, the first one also serves thread scaling. */
enum { MOST_SHAPES_BESIDE_GPU = 8 }; /* where the GPU's kernels need room in the profile too */
static const shape matmul_shapes[] = {
    {2048, 2048, 0, 0}, {512, 512, 0, 0},    {4096, 512, 0, 0},   {512, 2048, 0, 0},
    {256, 2048, 0, 0},  {256, 8192, 0, 0},   {2048, 512, 0, 0},   {2048, 8192, 0, 0},
    {256, 512, 0, 0},   {16384, 2048, 0, 0}, {16384, 8192, 0, 0}, {16384, 512, 0, 0},
};
static const shape attention_shapes[] = {
    {32, 128, 8, 0}, {8, 64, 2, 0},  {32, 64, 8, 0},  {8, 128, 2, 0},
    {8, 64, 8, 0},   {8, 256, 2, 0}, {32, 256, 8, 0},
};
static const shape moe_shapes[] = {{768, 2048, 32, 4}, {512, 1024, 8, 2}, {512, 2048, 64, 8}};
static const shape route_shapes[] = {{0, 128, 128, 8}, {0, 8, 8, 2}, {0, 32, 32, 4}};
static const shape row_shapes[] = {{0, 4096, 0, 0}, {0, 512, 0, 0}, {0, 2048, 0, 0}};
/* Rows lie apart: a short one costs as much to find as a long one. */
static const shape embed_shapes[] = {{0, 2048, 0, 0}, {0, 512, 0, 0}, {0, 8192, 0, 0}};
static const shape glu_shapes[] = {{0, 8192, 0, 0}, {0, 1536, 0, 0}};
static const shape vocab_shapes[] = {{0, 49152, 0, 0}, {0, 151936, 0, 0}};

#define SHAPES(list, n_quick) list, sizeof list / sizeof list[0], n_quick
static const struct {
    ps_op op;
    const uint32_t *tokens;
    const shape *shapes;
    uint32_t n, n_quick;
} op_shapes[] = {
    {PS_OP_EMBED, end_tokens, SHAPES(embed_shapes, 1)},
    {PS_OP_RMSNORM, row_tokens, SHAPES(row_shapes, 2)},
    {PS_OP_MATMUL, product_tokens, SHAPES(matmul_shapes, 4)},
    {PS_OP_ROPE, row_tokens, SHAPES(row_shapes, 2)},
    {PS_OP_KV_STORE, row_tokens, SHAPES(row_shapes, 2)},
    {PS_OP_ATTENTION, attention_tokens, SHAPES(attention_shapes, 2)},
    {PS_OP_GLU, row_tokens, SHAPES(glu_shapes, 2)},
    {PS_OP_ADD, row_tokens, SHAPES(row_shapes, 2)},
    {PS_OP_CONVERT, row_tokens, SHAPES(row_shapes, 2)},
    {PS_OP_GATHER, output_tokens, SHAPES(row_shapes, 2)},
    {PS_OP_MOE_ROUTE, row_tokens, SHAPES(route_shapes, 1)},
    {PS_OP_MOE_DISPATCH, row_tokens, SHAPES(moe_shapes, 2)},
    {PS_OP_SAMPLE, output_tokens, SHAPES(vocab_shapes, 2)},
};

/* KV lengths after the step that attention is measured at for steps of n_tokens. */
static uint32_t kv_lens(uint32_t n_tokens, bool quick, uint64_t *out) {
    const uint64_t least = n_tokens < 128 ? 128 : n_tokens;
    const uint64_t list[] = {least, 2048, 8192};
    uint32_t n = 0;
    for (uint32_t i = 0; i < (quick ? 2u : 3u); i++)
        if (i == 0 || list[i] > least)
            out[n++] = list[i];
    return n;
}

static void add_shape(ps_grid *g, const ps_kernel_spec *k, const shape *s, uint32_t tokens, uint32_t threads,
                      ps_beside beside, bool essential) {
    ps_profile_point p = {.rows = s->rows,
                          .cols = s->cols,
                          .heads_kv = s->heads_kv,
                          .kv_len = s->kv_len,
                          .n_tokens = tokens,
                          .n_threads = threads,
                          .beside = beside};
    if (k->op != PS_OP_ATTENTION) {
        ps_grid_point(g, k, p, essential);
        return;
    }
    uint64_t kv[3];
    const uint32_t n = kv_lens(tokens, g->config->quick, kv);
    for (uint32_t i = 0; i < n; i++) {
        p.kv_len = kv[i];
        ps_grid_point(g, k, p, essential);
    }
}

/* What most models' large matrices are of. */
static bool is_common(ps_dtype type) {
    return type == PS_DTYPE_F16 || type == PS_DTYPE_Q4_0 || type == PS_DTYPE_Q8_0 || type == PS_DTYPE_Q4_K;
}

static void add_kernel(ps_grid *g, const ps_kernel_spec *k) {
    const ps_grid_config *c = g->config;
    for (size_t o = 0; o < sizeof op_shapes / sizeof op_shapes[0]; o++) {
        if (op_shapes[o].op != k->op)
            continue;
        uint32_t tokens[PS_GRID_TOKENS], threads[PS_GRID_THREADS];
        const uint32_t n_tokens = tokens_of(k, op_shapes[o].tokens, c->quick, !c->gpu, tokens);
        const uint32_t n_threads =
            ps_grid_threads(c->n_threads, c->quick || c->n_threads > (c->gpu ? 8 : 16), threads);
        uint32_t n = c->quick ? op_shapes[o].n_quick : op_shapes[o].n;
        if (c->gpu && n > MOST_SHAPES_BESIDE_GPU)
            n = MOST_SHAPES_BESIDE_GPU;
        if (c->gpu && k->op == PS_OP_EMBED)
            n = 1;
        for (uint32_t t = 0; t < n_tokens; t++) {
            for (uint32_t s = 0; s < n; s++)
                add_shape(g, k, &op_shapes[o].shapes[s], tokens[t], c->n_threads, PS_BESIDE_IDLE, s == 0);
            /* Thread scaling and contention on the first shape, at the kernel's fewest and most tokens. */
            if (t != 0 && (t + 1 != n_tokens || c->quick))
                continue;
            for (uint32_t h = 0; h + 1 < n_threads; h++)
                add_shape(g, k, &op_shapes[o].shapes[0], tokens[t], threads[h], PS_BESIDE_IDLE, false);
            /* Beside memory streams: at half of the threads; of common types at every power of two that leaves some. */
            const uint32_t most = ps_grid_beside_threads(c->n_threads);
            for (uint32_t h = is_common(k->wtype) && !c->quick ? 1 : most;
                 k->op == PS_OP_MATMUL && h<c->n_threads; h *= c->n_threads> 16 ? 4 : 2) {
                add_shape(g, k, &op_shapes[o].shapes[0], tokens[t], h, PS_BESIDE_IDLE, false);
                add_shape(g, k, &op_shapes[o].shapes[0], tokens[t], h, PS_BESIDE_MEMORY, false);
                if (!is_common(k->wtype) || c->quick)
                    break;
            }
        }
    }
}

/* Order of tasks; equal ones measure the same. */
#define BY(field)                                                                                            \
    if (x->field != y->field)                                                                                \
    return x->field < y->field ? -1 : 1

static int by_task(const void *a, const void *b) {
    const ps_task *x = a, *y = b;
    BY(measure);
    BY(bus);
    BY(kind);
    BY(bytes);
    BY(share_frac);
    BY(point.kernel);
    BY(point.beside);
    BY(point.n_threads);
    BY(point.n_tokens);
    BY(point.heads_kv);
    BY(point.cols);
    BY(point.rows);
    BY(point.kv_len);
    return 0;
}

void ps_grid_dedupe(ps_grid *g) {
    qsort(g->tasks, g->n, sizeof *g->tasks, by_task);
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n; i++)
        if (n == 0 || by_task(&g->tasks[n - 1], &g->tasks[i]) != 0)
            g->tasks[n++] = g->tasks[i];
        else
            g->tasks[n - 1].essential |= g->tasks[i].essential;
    g->n = n;
}

ps_status ps_grid_make(const ps_grid_config *config, ps_task **out_tasks, uint32_t *out_n, ps_error *err) {
    ps_grid g = {.config = config};
    uint32_t threads[PS_GRID_THREADS];
    const uint32_t n_threads = ps_grid_threads(config->n_threads, false, threads);
    for (uint32_t h = 0; h < n_threads; h++)
        ps_grid_add(
            &g, (ps_task){.measure = PS_MEASURE_DRAM, .point = {.n_threads = threads[h]}, .cost_s = 5e-3});
    ps_grid_add(
        &g,
        (ps_task){.measure = PS_MEASURE_BARRIER, .point = {.n_threads = config->n_threads}, .cost_s = 1e-6});
    ps_grid_add(&g, (ps_task){.measure = PS_MEASURE_POOL_START,
                              .point = {.n_threads = config->n_threads},
                              .cost_s = 50e-6});
    if (config->model)
        ps_grid_add_model(&g);
    else
        for (uint32_t i = 0; i < config->n_kernels; i++)
            if (config->kernels[i].device == PS_DEV_CPU)
                add_kernel(&g, &config->kernels[i]);
    if (config->gpu)
        ps_grid_add_gpu(&g);
    if (g.failed) {
        free(g.tasks);
        return ps_error_set(err, PS_E_NOMEM, "grid", "no memory for %u tasks", g.n);
    }
    ps_grid_dedupe(&g);
    *out_tasks = g.tasks;
    *out_n = g.n;
    return PS_OK;
}
