/* Matrix products on the CPU: how work is cut into items, walked in tiles and stored; the variants of
 * every family. The arithmetic is in matmul_generic.c, matmul_avx2.c, matmul_avx512.c and matmul_amx.c. */
#include "kernels/cpu/matmul_int.h"

/* Weight bytes per item of the families for few tokens: large against the cost of handing out an item,
 * small against the smallest matrix. */
enum { FEW_ITEM_BYTES = 16 * 1024, FEW_ITEM_MAX_ROWS = 64 };
/* Least tokens per piece when panels alone are too few for the threads; a panel's dequantisation is then
 * repeated for every piece. */
enum { CHUNK_MIN_TOKENS = 64, ITEMS_PER_THREAD = 4 };

static uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

float ps_mm_bias(const ps_kargs *a, uint64_t row) {
    const ps_warg *b = &a->w[1];
    if (!b->data)
        return 0.0f;
    switch (b->type) {
    case PS_DTYPE_F16:
        return ps_f16_to_f32(mm_load_u16(b->data + row * 2));
    case PS_DTYPE_BF16:
        return ps_bf16_to_f32(mm_load_u16(b->data + row * 2));
    default: {
        float v;
        memcpy(&v, b->data + row * 4, sizeof v);
        return v;
    }
    }
}

void ps_mm_store(const ps_kargs *a, uint64_t row, uint32_t nr, uint32_t t, uint32_t nt, const float *out,
                 bool more) {
    float bias[MM_NR] = {0};
    if (a->w[1].data && !more)
        for (uint32_t r = 0; r < nr; r++)
            bias[r] = ps_mm_bias(a, row + r);
    for (uint32_t i = 0; i < nt; i++, out += MM_NR) {
        float *dst = (float *)((uint8_t *)a->dst.data + (t + i) * a->dst.row_bytes) + row;
        const float *add = NULL;
        if (more)
            add = dst;
        else if (a->src[1].data)
            add = (const float *)((const uint8_t *)a->src[1].data + (t + i) * a->src[1].row_bytes) + row;
        if (nr == MM_NR)
            for (uint32_t r = 0; r < MM_NR; r++)
                dst[r] = out[r] + bias[r] + (add ? add[r] : 0.0f);
        else
            for (uint32_t r = 0; r < nr; r++)
                dst[r] = out[r] + bias[r] + (add ? add[r] : 0.0f);
    }
}

/* Bytes of a row's columns: less than row_bytes where they are a range of a larger matrix. */
static uint64_t cols_bytes(const ps_warg *w) {
    return w->cols / mm_block_elems(w->type) * mm_block_bytes(w->type);
}

/* Rows per item, a multiple of MM_NR. */
static uint64_t few_rows(const ps_kargs *a) {
    uint64_t rows = FEW_ITEM_BYTES / (cols_bytes(&a->w[0]) + 1) / MM_NR * MM_NR;
    return rows < MM_NR ? MM_NR : rows > FEW_ITEM_MAX_ROWS ? FEW_ITEM_MAX_ROWS : rows;
}

uint64_t ps_mm_items_few(const ps_kargs *a, uint32_t phase) {
    (void)phase;
    uint64_t rows = few_rows(a);
    return a->n_tokens == 0 ? 0 : (a->n_rows + rows - 1) / rows;
}

static void run_few(const ps_kargs *a, uint64_t first, uint64_t n, mm_dot dot) {
    const ps_warg *wt = &a->w[0];
    const uint64_t bytes = cols_bytes(wt);
    uint64_t rows = few_rows(a), end = a->row0 + a->n_rows;
    uint64_t row = a->row0 + first * rows, last = min_u64(row + n * rows, end);
    float out[MM_NR * MM_NT];
    mm_ask_first(wt->data + row * wt->row_bytes, wt->row_bytes, bytes, last - row);
    for (; row < last; row += MM_NR) {
        uint32_t nr = (uint32_t)min_u64(MM_NR, last - row);
        const uint8_t *w = wt->data + row * wt->row_bytes;
        uint64_t ahead = mm_ahead(w, wt->row_bytes, bytes, last - row, NULL, 0);
        for (uint32_t t = 0; t < a->n_tokens; t += MM_NT, ahead = 0) {
            uint32_t nt = (uint32_t)min_u64(MM_NT, a->n_tokens - t);
            const uint8_t *x = (const uint8_t *)a->src[0].data + t * a->src[0].row_bytes;
            dot(w, wt->row_bytes, wt->cols, nr, ahead, x, a->src[0].row_bytes, nt, out);
            ps_mm_store(a, row, nr, t, nt, out, false);
        }
    }
}

void ps_mm_run_q8(const mm_ops *ops, const ps_kargs *a, uint64_t first, uint64_t n) {
    run_few(a, first, n, ops->dot_q8[a->w[0].type]);
}

void ps_mm_run_few(const mm_ops *ops, const ps_kargs *a, uint64_t first, uint64_t n) {
    run_few(a, first, n, ops->dot_float[a->w[0].type]);
}

mm_grid ps_mm_grid(const ps_kargs *a, uint32_t panel_rows, uint32_t token_step) {
    mm_grid g = {.n_panels = (a->n_rows + panel_rows - 1) / panel_rows, .n_chunks = 1};
    uint64_t tokens = a->n_tokens, want = (uint64_t)a->n_threads * ITEMS_PER_THREAD;
    if (g.n_panels > 0 && g.n_panels < want) {
        uint64_t pieces = min_u64((want + g.n_panels - 1) / g.n_panels, tokens / CHUNK_MIN_TOKENS);
        if (pieces > 1)
            tokens = (tokens + pieces - 1) / pieces;
    }
    tokens = (tokens + token_step - 1) / token_step * token_step;
    g.chunk_tokens = (uint32_t)(tokens ? tokens : token_step);
    g.n_chunks = ((uint64_t)a->n_tokens + g.chunk_tokens - 1) / g.chunk_tokens;
    return g;
}

uint8_t *ps_mm_thread_scratch(const ps_kargs *a, uint32_t thread) {
    /* Threads' parts come first, so that they do not move with the number of tokens. */
    return a->scratch + (uint64_t)thread * PS_MM_THREAD_SCRATCH;
}

uint64_t ps_mm_items_panel(const ps_kargs *a, uint32_t phase) {
    (void)phase;
    mm_grid g = ps_mm_grid(a, MM_PANEL_ROWS, MM_NT);
    return g.n_panels * g.n_chunks;
}

/* Scratch of a thread in the panel family: rows as they are dequantised, and the panel they are turned into. */
typedef struct panel_mem {
    float panel[MM_PANEL_ROWS * MM_PANEL_COLS]; /* [row tile][column][tile_rows] */
    float rows[MM_TILE_MAX_ROWS * MM_PANEL_COLS];
} panel_mem;
_Static_assert(sizeof(panel_mem) <= PS_MM_THREAD_SCRATCH, "thread scratch");

/* A tile of sums to its place; the first block of columns adds bias and residual, the others add to what is there. */
static void store_tile(const ps_kargs *a, uint64_t row, uint32_t nr, uint64_t t, uint32_t nt,
                       const float *sums, uint32_t ld, bool first) {
    float bias[MM_TILE_MAX_ROWS];
    const bool has_bias = first && a->w[1].data != NULL;
    if (has_bias)
        for (uint32_t r = 0; r < nr; r++)
            bias[r] = ps_mm_bias(a, row + r);
    for (uint32_t i = 0; i < nt; i++, sums += ld) {
        float *dst = (float *)(void *)((uint8_t *)a->dst.data + (t + i) * a->dst.row_bytes) + row;
        const float *add = dst;
        if (first)
            add = a->src[1].data ? (const float *)(const void *)((const uint8_t *)a->src[1].data +
                                                                 (t + i) * a->src[1].row_bytes) +
                                       row
                                 : NULL;
        if (has_bias)
            for (uint32_t r = 0; r < nr; r++)
                dst[r] = sums[r] + bias[r] + (add ? add[r] : 0.0f);
        else if (add)
            for (uint32_t r = 0; r < nr; r++)
                dst[r] = sums[r] + add[r];
        else
            memcpy(dst, sums, nr * sizeof *dst);
    }
}

/* Columns [c, c + nc) of a panel's rows, dequantised and turned; rows that are missing become 0. */
static void load_panel(const mm_ops *ops, const ps_warg *w, uint64_t row, uint32_t n_rows, uint64_t c,
                       uint64_t nc, panel_mem *mem) {
    const uint32_t elems = mm_block_elems(w->type), bytes = mm_block_bytes(w->type), tr = ops->tile_rows;
    for (uint32_t r0 = 0; r0 < n_rows; r0 += tr) {
        for (uint32_t r = 0; r < tr; r++) {
            float *out = mem->rows + r * MM_PANEL_COLS;
            if (r0 + r < n_rows)
                ops->dequant[w->type](w->data + (row + r0 + r) * w->row_bytes + c / elems * bytes, out, nc);
            else
                memset(out, 0, nc * sizeof *out);
        }
        ops->turn(mem->rows, MM_PANEL_COLS, nc, mem->panel + (uint64_t)r0 * MM_PANEL_COLS);
    }
}

/* One panel: a block of columns at a time is dequantised, then used for all tokens of the chunk. */
static void panel_item(const mm_ops *ops, const ps_kargs *a, uint64_t row, uint32_t n_rows, uint32_t t0,
                       uint32_t n_tokens, panel_mem *mem) {
    const ps_warg *w = &a->w[0];
    const uint32_t tr = ops->tile_rows;
    float sums[MM_TILE_MAX_ROWS * MM_TILE_MAX_TOKENS];
    for (uint64_t c = 0; c < w->cols; c += MM_PANEL_COLS) {
        const uint64_t nc = min_u64(MM_PANEL_COLS, w->cols - c);
        load_panel(ops, w, row, n_rows, c, nc, mem);
        for (uint32_t t = 0; t < n_tokens; t += ops->tile_tokens) {
            const uint32_t nt = (uint32_t)min_u64(ops->tile_tokens, n_tokens - t);
            const uint8_t *x = (const uint8_t *)a->src[0].data + (t0 + t) * a->src[0].row_bytes + c * 4;
            for (uint32_t r = 0; r < n_rows; r += tr) {
                ops->tile(mem->panel + (uint64_t)r * MM_PANEL_COLS, nc, x, a->src[0].row_bytes, nt, sums);
                store_tile(a, row + r, (uint32_t)min_u64(tr, n_rows - r), t0 + t, nt, sums, tr, c == 0);
            }
        }
    }
}

void ps_mm_run_panel(const mm_ops *ops, const ps_kargs *a, uint64_t first, uint64_t n, uint32_t thread) {
    mm_grid g = ps_mm_grid(a, MM_PANEL_ROWS, MM_NT);
    panel_mem *mem = (panel_mem *)(void *)ps_mm_thread_scratch(a, thread);
    for (uint64_t i = first; i < first + n; i++) {
        uint64_t row = i / g.n_chunks * MM_PANEL_ROWS;
        uint32_t t0 = (uint32_t)(i % g.n_chunks) * g.chunk_tokens;
        panel_item(ops, a, a->row0 + row, (uint32_t)min_u64(MM_PANEL_ROWS, a->n_rows - row), t0,
                   (uint32_t)min_u64(g.chunk_tokens, a->n_tokens - t0), mem);
    }
}

/* X(level name, table): the runs of every family on a level's table. */
#if defined(__x86_64__)
#define MM_LEVEL_LIST(X) X(GENERIC, generic) X(AVX2, avx2) X(AVX512, avx512)
#else
#define MM_LEVEL_LIST(X) X(GENERIC, generic)
#endif
#define MM_RUNS(LEVEL, level)                                                                                \
    static void q8_##level(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread) { \
        (void)phase, (void)thread;                                                                           \
        ps_mm_run_q8(&ps_mm_ops_##level, a, first, n);                                                       \
    }                                                                                                        \
    static void few_##level(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,                   \
                            uint32_t thread) {                                                               \
        (void)phase, (void)thread;                                                                           \
        ps_mm_run_few(&ps_mm_ops_##level, a, first, n);                                                      \
    }                                                                                                        \
    static void f32_##level(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,                   \
                            uint32_t thread) {                                                               \
        (void)phase;                                                                                         \
        ps_mm_run_panel(&ps_mm_ops_##level, a, first, n, thread);                                            \
    }
MM_LEVEL_LIST(MM_RUNS)
#undef MM_RUNS

const ps_cpu_variant ps_mm_variants_q8[PS_MM_N_q8] = {
#define MM_VARIANT(LEVEL, level) {PS_CPU_##LEVEL, 1, ps_mm_items_few, q8_##level},
    MM_LEVEL_LIST(MM_VARIANT)
#undef MM_VARIANT
};
const ps_cpu_variant ps_mm_variants_few[PS_MM_N_few] = {
#define MM_VARIANT(LEVEL, level) {PS_CPU_##LEVEL, 1, ps_mm_items_few, few_##level},
    MM_LEVEL_LIST(MM_VARIANT)
#undef MM_VARIANT
};
const ps_cpu_variant ps_mm_variants_f32[PS_MM_N_f32] = {
#define MM_VARIANT(LEVEL, level) {PS_CPU_##LEVEL, 1, ps_mm_items_panel, f32_##level},
    MM_LEVEL_LIST(MM_VARIANT)
#undef MM_VARIANT
#if defined(__x86_64__)
        {PS_CPU_AVX512BF16, 2, ps_mm_items_bf16, ps_mm_run_bf16},
    {PS_CPU_AMX, 2, ps_mm_items_amx, ps_mm_run_amx},
#endif
};
