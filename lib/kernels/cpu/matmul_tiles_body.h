/* Matrix products for many tokens from tiles of bfloat16, the same for AMX and for AVX-512 BF16. Included once by the file
 * of each level, behind its tiles_on, tiles_off and tiles_multiply, with these names defined:
 *   TILES_ITEMS, TILES_RUN  functions of the variant
 *   STEP_TILES              column tiles of a panel that are multiplied at a time: they and their activations stay in
 *                           the L1 cache
 *
 * Phase 0 rounds the activations to bfloat16 in tile order: [16 tokens][32 columns] per KiB. Phase 1 takes
 * a panel of 32 weight rows, dequantises a block of its columns into tiles of pairs, [16 column pairs][16
 * rows][2], and multiplies it with every 16 tokens, two tiles by two, summing in float32. Quantised
 * weights and their activations keep 8 bits of mantissa. Float weights are split, w = hi + lo, as are
 * their activations; of the four products the one of both low parts is left out. */
#ifndef PS_KERNELS_CPU_MATMUL_TILES_BODY_H
#define PS_KERNELS_CPU_MATMUL_TILES_BODY_H

enum {
    PANEL_ROWS = 2 * TILE,
    PANEL_TILES =
        64,          /* column tiles dequantised at a time (half with low parts); a multiple of every block */
    SWEEP_PAIRS = 8, /* of 32 tokens: sums that wait for the next step */
    STRIP_COLS = 256 /* columns of 16 rows that are dequantised, then turned into tiles */
};

/* On the way from rows to tiles: quantised types use the first, float types the second. */
typedef union strip_mem {
    struct {
        float factors[2][TILE][16]; /* [d, m][row][lane] */
        float turned[2][16][TILE];  /* [d, m][lane][row] */
        uint8_t bytes[TILE][64];    /* [row][column] */
        uint32_t quads[16][TILE];   /* [four columns][row] */
    };
    uint16_t rows[2][TILE][STRIP_COLS]; /* [hi, lo], bfloat16 */
} strip_mem;

/* One thread's scratch. */
typedef struct thread_mem {
    uint8_t panel[2 * PANEL_TILES][TILE_BYTES]; /* [hi, lo][row tile][column tile] */
    strip_mem strip;
    float sums[SWEEP_PAIRS][2][2][TILE][TILE]; /* [token pair][token tile][row tile] */
    float edge[2][2][TILE][TILE];              /* results that are not a full tile of the destination */
} thread_mem;
_Static_assert(sizeof(thread_mem) <= PS_MM_THREAD_SCRATCH, "thread scratch");

/* What a call looks like, the same in every item. */
typedef struct product {
    const ps_kargs *a;
    uint64_t n_groups;    /* of 16 tokens */
    uint64_t n_col_tiles; /* of 32 columns */
    uint32_t n_parts;     /* 1 or 2: high part alone or with the low part, activations */
    bool split_weights;   /* weights have a low part too */
    uint8_t *x[2];        /* activations, high and low parts: [group][column tile][TILE_BYTES] */
} product;

static product describe(const ps_kargs *a) {
    product p = {.a = a,
                 .n_groups = (a->n_tokens + TILE - 1) / TILE,
                 .n_col_tiles = (a->w[0].cols + TILE_COLS - 1) / TILE_COLS};
    ps_dtype type = a->w[0].type;
    p.split_weights = type == PS_DTYPE_F32 || type == PS_DTYPE_F16;
    p.n_parts = p.split_weights || type == PS_DTYPE_BF16 ? 2 : 1;
    p.x[0] = ps_mm_thread_scratch(a, a->n_threads);
    p.x[1] = p.x[0] + p.n_groups * p.n_col_tiles * TILE_BYTES;
    return p;
}

/* Phase 0 ------------------------------------------------------------------------------------------- */

enum { CONVERT_COL_TILES = 16 };

static uint64_t convert_pieces(const product *p) {
    return (p->n_col_tiles + CONVERT_COL_TILES - 1) / CONVERT_COL_TILES;
}

/* 32 floats (fewer: `n`) as bfloat16, and what that leaves. */
MM_INLINE void split32(const float *x, uint64_t n, bool low, uint8_t *hi_out, uint8_t *lo_out) {
    uint32_t bits = n >= TILE_COLS ? 0xffffffffu : (1u << n) - 1u;
    __m512 v0 = _mm512_maskz_loadu_ps((__mmask16)bits, x);
    __m512 v1 = bits >> 16 ? _mm512_maskz_loadu_ps((__mmask16)(bits >> 16), x + 16) : _mm512_setzero_ps();
    __m512i hi = (__m512i)_mm512_cvtne2ps_pbh(v1, v0);
    _mm512_storeu_si512(hi_out, hi);
    if (low) {
        __m512i h0 = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(hi)), 16);
        __m512i h1 = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(hi, 1)), 16);
        v0 = _mm512_sub_ps(v0, _mm512_castsi512_ps(h0));
        v1 = _mm512_sub_ps(v1, _mm512_castsi512_ps(h1));
        _mm512_storeu_si512(lo_out, (__m512i)_mm512_cvtne2ps_pbh(v1, v0));
    }
}

static void convert(const product *p, uint64_t item) {
    const ps_kargs *a = p->a;
    uint64_t group = item / convert_pieces(p), tile = item % convert_pieces(p) * CONVERT_COL_TILES;
    uint64_t end = tile + CONVERT_COL_TILES < p->n_col_tiles ? tile + CONVERT_COL_TILES : p->n_col_tiles;
    for (; tile < end; tile++) {
        uint64_t at = (group * p->n_col_tiles + tile) * TILE_BYTES, col = tile * TILE_COLS;
        for (uint32_t i = 0; i < TILE; i++) {
            uint64_t t = group * TILE + i;
            uint8_t *hi = p->x[0] + at + i * 64, *lo = p->x[1] + at + i * 64;
            if (t < a->n_tokens) {
                const float *x = (const float *)((const uint8_t *)a->src[0].data + t * a->src[0].row_bytes);
                split32(x + col, a->w[0].cols - col, p->n_parts == 2, hi, lo);
            } else {
                _mm512_storeu_si512(hi, _mm512_setzero_si512());
                if (p->n_parts == 2)
                    _mm512_storeu_si512(lo, _mm512_setzero_si512());
            }
        }
    }
}

/* Phase 1: weights ---------------------------------------------------------------------------------- */

static __attribute__((noinline)) void transpose(const uint8_t *src, uint64_t stride, uint8_t *dst) {
    mm512_transpose(src, stride, dst);
}

/* n groups of 32 columns (a chunk of mm512_factors) of up to 16 rows of a quantised type to tiles. The integers
 * are turned first, so that factors are vectors of rows; u / 256 + 1 is a float whose upper mantissa bits
 * are u: weight = 256 d (1 + u / 256) + (m - 256 d). */
MM_INLINE void chunk_tiles(const ps_dtype type, const uint8_t *w, uint64_t row_bytes, uint32_t n_rows,
                           uint32_t n, strip_mem *mem, uint8_t *tiles) {
    const __m512i one = _mm512_set1_epi32(0x3f800000), bits = _mm512_set1_epi32(0x007f8000);
    const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32((int)0xffff0000u);
    for (uint32_t r = 0; r < TILE; r++) {
        __m512 d = _mm512_setzero_ps(), m = d;
        if (r < n_rows) {
            mm512_factors(type, w + r * row_bytes, n, &d, &m);
            d = _mm512_mul_ps(d, _mm512_set1_ps(256.0f));
            m = _mm512_sub_ps(m, d);
        }
        _mm512_storeu_ps(mem->factors[0][r], d);
        _mm512_storeu_ps(mem->factors[1][r], m);
    }
    for (uint32_t i = 0; i < 2; i++)
        transpose((const uint8_t *)mem->factors[i], 64, (uint8_t *)mem->turned[i]);
    for (uint32_t i = 0; i < n; i += 2) {
        for (uint32_t r = 0; r < TILE; r++) {
            const uint8_t *b = w + (r < n_rows ? r : 0) * row_bytes;
            if (!mm_is_super(type))
                b += i * mm_block_bytes(type);
            _mm512_storeu_si512(mem->bytes[r], mm512_unpack(type, b, i / 2, mm512_block_at(type, 1, n - i)));
        }
        transpose(mem->bytes[0], 64, (uint8_t *)mem->quads);
        for (uint32_t j = 0; j < (i + 1 < n ? 16u : 8u); j++) {
            uint32_t lane = type == PS_DTYPE_Q6_K ? 2 * i + j / 4 : i + j / 8;
            __m512 d = _mm512_loadu_ps(mem->turned[0][lane]), m = _mm512_loadu_ps(mem->turned[1][lane]);
            __m512i v = _mm512_loadu_si512(mem->quads[j]), f[4];
            f[0] = _mm512_slli_epi32(v, 15);
            f[1] = _mm512_slli_epi32(v, 7);
            f[2] = _mm512_srli_epi32(v, 1);
            f[3] = _mm512_srli_epi32(v, 9);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                f[k] = _mm512_ternarylogic_epi32(f[k], bits, one, 0xea); /* (f & bits) | one */
                f[k] = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(f[k]), d, m));
                f[k] = _mm512_add_epi32(f[k], half); /* to the nearest bfloat16 */
            }
            uint8_t *out = tiles + (i + j / 8) * TILE_BYTES + j % 8 * 128;
            for (int k = 0; k < 2; k++) /* high ? odd : even */
                _mm512_storeu_si512(
                    out + k * 64,
                    _mm512_ternarylogic_epi32(high, f[2 * k + 1], _mm512_srli_epi32(f[2 * k], 16), 0xca));
        }
    }
}

/* Columns [0, n) of up to 16 rows at w as column tiles, hi and lo (types with a low part). */
typedef void (*to_tiles)(const uint8_t *w, uint64_t row_bytes, uint32_t n_rows, uint64_t n, strip_mem *mem,
                         uint8_t *hi, uint8_t *lo);

#define DEFINE_QUANT(name)                                                                                   \
    static void tiles_##name(const uint8_t *w, uint64_t row_bytes, uint32_t n_rows, uint64_t n,              \
                             strip_mem *mem, uint8_t *hi, uint8_t *lo) {                                     \
        const uint32_t chunk = mm512_chunk_groups(PS_DTYPE_##name);                                          \
        const uint64_t blocks = chunk * PS_Q8_GROUP / mm_block_elems(PS_DTYPE_##name);                       \
        uint64_t groups = n / PS_Q8_GROUP;                                                                   \
        (void)lo;                                                                                            \
        for (uint64_t g = 0; g < groups; g += chunk, w += blocks * mm_block_bytes(PS_DTYPE_##name))          \
            chunk_tiles(PS_DTYPE_##name, w, row_bytes, n_rows,                                               \
                        groups - g < chunk ? (uint32_t)(groups - g) : chunk, mem, hi + g * TILE_BYTES);      \
    }
MM_QUANT_LIST(DEFINE_QUANT)

/* n weights of one row as bfloat16 parts, zero up to a multiple of 32. */
static void strip_F32(const uint8_t *w, uint64_t n, uint16_t *hi, uint16_t *lo) {
    for (uint64_t i = 0; i < n; i += TILE_COLS)
        split32((const float *)(const void *)(w + i * 4), n - i, true, (uint8_t *)(hi + i),
                (uint8_t *)(lo + i));
}
static void strip_F16(const uint8_t *w, uint64_t n, uint16_t *hi, uint16_t *lo) {
    for (uint64_t i = 0; i < n; i += TILE_COLS) {
        uint64_t k = n - i < TILE_COLS ? n - i : TILE_COLS;
        __m512i h = _mm512_maskz_loadu_epi16((__mmask32)((1ull << k) - 1u), w + i * 2);
        float f[TILE_COLS];
        _mm512_storeu_ps(f, _mm512_cvtph_ps(_mm512_castsi512_si256(h)));
        _mm512_storeu_ps(f + 16, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)));
        split32(f, TILE_COLS, true, (uint8_t *)(hi + i), (uint8_t *)(lo + i));
    }
}
static void strip_BF16(const uint8_t *w, uint64_t n, uint16_t *hi, uint16_t *lo) {
    (void)lo;
    for (uint64_t i = 0; i < n; i += TILE_COLS) {
        uint64_t k = n - i < TILE_COLS ? n - i : TILE_COLS;
        _mm512_storeu_si512(hi + i, _mm512_maskz_loadu_epi16((__mmask32)((1ull << k) - 1u), w + i * 2));
    }
}

#define DEFINE_FLOAT(name)                                                                                   \
    static void tiles_##name(const uint8_t *w, uint64_t row_bytes, uint32_t n_rows, uint64_t n,              \
                             strip_mem *mem, uint8_t *hi, uint8_t *lo) {                                     \
        const uint32_t bytes = mm_block_bytes(PS_DTYPE_##name);                                              \
        memset(mem->rows, 0, sizeof mem->rows);                                                              \
        for (uint64_t c = 0; c < n; c += STRIP_COLS) {                                                       \
            uint64_t nc = n - c < STRIP_COLS ? n - c : STRIP_COLS;                                           \
            for (uint32_t r = 0; r < n_rows; r++)                                                            \
                strip_##name(w + r * row_bytes + c * bytes, nc, mem->rows[0][r], mem->rows[1][r]);           \
            for (uint64_t i = 0; i < nc; i += TILE_COLS) {                                                   \
                uint64_t at = (c + i) / TILE_COLS * TILE_BYTES;                                              \
                transpose((const uint8_t *)(mem->rows[0][0] + i), STRIP_COLS * 2, hi + at);                  \
                if (PS_DTYPE_##name != PS_DTYPE_BF16)                                                        \
                    transpose((const uint8_t *)(mem->rows[1][0] + i), STRIP_COLS * 2, lo + at);              \
            }                                                                                                \
        }                                                                                                    \
    }
MM_FLOAT_LIST(DEFINE_FLOAT)

static const to_tiles tilers[MM_N_TYPES] = {
#define ROW(name) [PS_DTYPE_##name] = tiles_##name,
    MM_QUANT_LIST(ROW) MM_FLOAT_LIST(ROW)
#undef ROW
};

/* Column tiles that a panel holds. */
static uint64_t panel_tiles(const product *p) {
    return p->split_weights ? PANEL_TILES / 2 : PANEL_TILES;
}
static uint8_t *panel_tile(const product *p, thread_mem *mem, uint32_t part, uint32_t row_tile,
                           uint64_t col_tile) {
    return mem->panel[(part * 2 + row_tile) * panel_tiles(p) + col_tile];
}

/* Columns [col, col + n) of up to 16 rows from `row` as tiles. */
static void load_panel(const product *p, uint64_t row, uint32_t n_rows, uint32_t row_tile, uint64_t col,
                       uint64_t n, thread_mem *mem) {
    const ps_warg *w = &p->a->w[0];
    const uint8_t *at =
        w->data + row * w->row_bytes + col / mm_block_elems(w->type) * mm_block_bytes(w->type);
    tilers[w->type](at, w->row_bytes, n_rows, n, &mem->strip, panel_tile(p, mem, 0, row_tile, 0),
                    p->split_weights ? panel_tile(p, mem, 1, row_tile, 0) : NULL);
}

/* Phase 1: products --------------------------------------------------------------------------------- */

static inline float *dst_at(const ps_kargs *a, uint64_t t, uint64_t row) {
    return (float *)((uint8_t *)a->dst.data + t * a->dst.row_bytes) + row;
}
static inline const float *residual_at(const ps_kargs *a, uint64_t t, uint64_t row) {
    return (const float *)((const uint8_t *)a->src[1].data + t * a->src[1].row_bytes) + row;
}

/* A result tile of the step: its place, its true size, and whether the step is the first or the last. */
typedef struct place {
    uint64_t row, t;
    uint32_t nr, nt;
    bool first_panel, first, last;
} place;

static tile_target aim(const ps_kargs *a, const place *at, float (*sums)[TILE], float (*edge)[TILE]) {
    bool bias = a->w[1].data != NULL, residual = a->src[1].data != NULL;
    bool full = at->nr == TILE && at->nt == TILE;
    tile_target g = {sums[0], sizeof sums[0], sums[0], sizeof sums[0]};
    if (at->last && full) {
        g.end = dst_at(a, at->t, at->row);
        g.end_stride = a->dst.row_bytes;
    } else if (at->last) {
        g.end = edge[0];
    }
    if (!at->first)
        return g;
    if (at->first_panel && !bias && !residual) {
        g.start = NULL;
    } else if (full && !at->first_panel) {
        g.start = dst_at(a, at->t, at->row);
        g.start_stride = a->dst.row_bytes;
    } else if (full && !bias) {
        g.start = residual_at(a, at->t, at->row);
        g.start_stride = a->src[1].row_bytes;
    } else {
        for (uint32_t i = 0; i < at->nt; i++)
            for (uint32_t r = 0; r < at->nr; r++)
                edge[i][r] = !at->first_panel ? dst_at(a, at->t + i, at->row)[r]
                                              : (bias ? ps_mm_bias(a, at->row + r) : 0.0f) +
                                                    (residual ? residual_at(a, at->t + i, at->row)[r] : 0.0f);
        g.start = edge[0];
    }
    return g;
}

static void put_edge(const ps_kargs *a, const place *at, float (*edge)[TILE]) {
    if (at->last && (at->nr < TILE || at->nt < TILE))
        for (uint32_t i = 0; i < at->nt; i++)
            memcpy(dst_at(a, at->t + i, at->row), edge[i], at->nr * sizeof(float));
}

/* One step of a result of M by N tiles: columns [tile, tile + n_tiles) of the panel that starts at
 * `panel_tile0`, in the order high.high, high.low, low.high. */
MM_INLINE void result(const int M, const int N, const tile_target g[2][2], const product *p, uint64_t group,
                      uint64_t panel_tile0, uint64_t tile, uint64_t n_tiles, const uint32_t nt[2],
                      thread_mem *mem) {
    const uint32_t n = p->split_weights ? 3 : p->n_parts;
    tile_operands op[3];
    for (uint32_t k = 0; k < n; k++) {
        /* BF16 weights have no low part: high.high, low.high. */
        uint32_t w_part = p->split_weights && k == 1, x_part = k == n - 1 && k > 0;
        op[k] = (tile_operands){p->x[x_part] + (group * p->n_col_tiles + panel_tile0 + tile) * TILE_BYTES,
                                panel_tile(p, mem, w_part, 0, tile), p->n_col_tiles * TILE_BYTES,
                                panel_tiles(p) * TILE_BYTES};
    }
    tiles_multiply(M, N, g, op, n, n_tiles, nt);
}

static uint32_t part_of_tile(uint64_t n, uint64_t from) {
    return n <= from ? 0 : n - from < TILE ? (uint32_t)(n - from) : TILE;
}

/* What an item works on: rows of weights by tokens. */
typedef struct item {
    uint64_t row, n_rows, t0, n_tokens;
} item;

/* All steps of the panel's columns for one sweep of tokens from it->t0 + t. */
static void sweep(const product *p, const item *it, uint64_t t, uint64_t n_tokens, uint64_t panel_tile0,
                  uint64_t n_tiles, thread_mem *mem) {
    const ps_kargs *a = p->a;
    uint64_t n_steps = (n_tiles + STEP_TILES - 1) / STEP_TILES;
    uint32_t nr[2] = {part_of_tile(it->n_rows, 0), part_of_tile(it->n_rows, TILE)};
    for (uint64_t step = 0; step < n_steps; step++) {
        uint64_t from = n_tiles * step / n_steps, to = n_tiles * (step + 1) / n_steps;
        for (uint64_t pair = 0; pair * 2 * TILE < n_tokens; pair++) {
            uint64_t at_t = it->t0 + t + pair * 2 * TILE, left = n_tokens - pair * 2 * TILE;
            uint32_t nt[2] = {part_of_tile(left, 0), part_of_tile(left, TILE)};
            tile_target g[2][2];
            place at[2][2];
            for (uint32_t i = 0; i < 2 && nt[i] > 0; i++)
                for (uint32_t j = 0; j < 2 && nr[j] > 0; j++) {
                    at[i][j] = (place){it->row + j * TILE, at_t + i * TILE,    nr[j], nt[i], panel_tile0 == 0,
                                       step == 0,          step == n_steps - 1};
                    g[i][j] = aim(a, &at[i][j], mem->sums[pair][i][j], mem->edge[i][j]);
                }
            if (step == n_steps - 1) /* results arrive in lines that are most likely not in the cache */
                for (uint32_t i = 0; i < nt[0] + nt[1]; i++) {
                    __builtin_prefetch(dst_at(a, at_t + i, it->row), 1, 3);
                    __builtin_prefetch(dst_at(a, at_t + i, it->row + it->n_rows - 1), 1, 3);
                }
            uint64_t group = at_t / TILE;
            if (nt[1] && nr[1])
                result(2, 2, g, p, group, panel_tile0, from, to - from, nt, mem);
            else if (nt[1])
                result(2, 1, g, p, group, panel_tile0, from, to - from, nt, mem);
            else if (nr[1])
                result(1, 2, g, p, group, panel_tile0, from, to - from, nt, mem);
            else
                result(1, 1, g, p, group, panel_tile0, from, to - from, nt, mem);
            for (uint32_t i = 0; i < 2 && nt[i] > 0; i++)
                for (uint32_t j = 0; j < 2 && nr[j] > 0; j++)
                    put_edge(a, &at[i][j], mem->edge[i][j]);
        }
    }
}

static void panel_item(const product *p, const item *it, thread_mem *mem) {
    const ps_warg *w = &p->a->w[0];
    for (uint64_t tile = 0; tile < p->n_col_tiles; tile += panel_tiles(p)) {
        uint64_t n_tiles = p->n_col_tiles - tile, col = tile * TILE_COLS;
        if (n_tiles > panel_tiles(p))
            n_tiles = panel_tiles(p);
        uint64_t n = w->cols - col < n_tiles * TILE_COLS ? w->cols - col : n_tiles * TILE_COLS;
        for (uint32_t j = 0; j < 2 && it->n_rows > j * TILE; j++)
            load_panel(p, it->row + j * TILE, part_of_tile(it->n_rows, j * TILE), j, col, n, mem);
        for (uint64_t t = 0; t < it->n_tokens; t += SWEEP_PAIRS * 2 * TILE) {
            uint64_t left = it->n_tokens - t;
            sweep(p, it, t, left < SWEEP_PAIRS * 2 * TILE ? left : SWEEP_PAIRS * 2 * TILE, tile, n_tiles,
                  mem);
        }
    }
}

uint64_t TILES_ITEMS(const ps_kargs *a, uint32_t phase) {
    product p = describe(a);
    if (phase == 0)
        return p.n_groups * convert_pieces(&p);
    mm_grid g = ps_mm_grid(a, PANEL_ROWS, 2 * TILE);
    return g.n_panels * g.n_chunks;
}

void TILES_RUN(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread) {
    product p = describe(a);
    if (phase == 0) {
        for (uint64_t i = first; i < first + n; i++)
            convert(&p, i);
        return;
    }
    mm_grid g = ps_mm_grid(a, PANEL_ROWS, 2 * TILE);
    thread_mem *mem = (thread_mem *)(void *)ps_mm_thread_scratch(a, thread);
    tiles_on();
    for (uint64_t i = first; i < first + n; i++) {
        uint64_t row = i / g.n_chunks * PANEL_ROWS, t0 = i % g.n_chunks * g.chunk_tokens;
        item it = {.row = a->row0 + row,
                   .n_rows = a->n_rows - row < PANEL_ROWS ? a->n_rows - row : PANEL_ROWS,
                   .t0 = t0,
                   .n_tokens = a->n_tokens - t0 < g.chunk_tokens ? a->n_tokens - t0 : g.chunk_tokens};
        panel_item(&p, &it, mem);
    }
    tiles_off();
}
#endif
