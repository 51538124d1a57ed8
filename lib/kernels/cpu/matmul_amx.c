/* Matrix products for many tokens on AMX tiles in bfloat16.
 *
 * Phase 0 rounds the activations to bfloat16 in tile order: [16 tokens][32 columns] per KiB. Phase 1 takes
 * a panel of 32 weight rows, dequantises a block of its columns into tiles of pairs, [16 column pairs][16
 * rows][2], and multiplies it with every 16 tokens, two tiles by two, summing in float32. Quantised
 * weights and their activations keep 8 bits of mantissa. Float weights are split, w = hi + lo, as are
 * their activations; of the four products the one of both low parts is left out.
 *
 * Tiles are written in assembler: some compilers' intrinsics do not tell that tile loads read memory. */
#if defined(__x86_64__)
#include "kernels/cpu/matmul_unpack512.h"

enum {
    TILE = 16,      /* rows of a tile, and columns of a result tile */
    TILE_COLS = 32, /* columns (of the weight matrix) per tile */
    TILE_BYTES = 1024,
    PANEL_ROWS = 2 * TILE,
    PANEL_COLS = 1024, /* columns dequantised at a time, a multiple of every block */
    STRIP_COLS = 256   /* columns of 16 rows that are dequantised, then turned into tiles */
};

/* One thread's scratch. */
typedef struct thread_mem {
    uint8_t panel[2][2][PANEL_COLS / TILE_COLS][TILE_BYTES]; /* [hi, lo][row tile][column tile] */
    uint16_t strip[2][TILE][STRIP_COLS];                     /* [hi, lo], bfloat16 */
    float result[2][2][TILE][TILE];
} thread_mem;
_Static_assert(sizeof(thread_mem) <= PS_MM_THREAD_SCRATCH, "thread scratch");

#define TILE_ZERO(n) __asm__ volatile("tilezero %%tmm" #n ::: "memory")
#define TILE_LOAD(n, p, stride)                                                                              \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n ::"r"(p), "r"((uint64_t)(stride)) : "memory")
#define TILE_STORE(n, p, stride)                                                                             \
    __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" ::"r"(p), "r"((uint64_t)(stride)) : "memory")
#define TILE_MUL(c, x, w) __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #c ::: "memory")

/* All eight tiles 16 rows of 64 bytes. */
static void tiles_on(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64))) = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = TILE;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
static void tiles_off(void) {
    __asm__ volatile("tilerelease" ::: "memory");
}

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

/* n weights (a multiple of 32) of a quantised type as bfloat16. */
MM_INLINE void dequant_bf16(const ps_dtype type, const uint8_t *w, uint16_t *dst, uint64_t n) {
    const uint32_t chunk = mm512_chunk_groups(type);
    const uint64_t chunk_bytes = mm_is_super(type) ? mm_block_bytes(type) : 16u * mm_block_bytes(type);
    uint64_t n_groups = n / PS_Q8_GROUP;
    for (uint64_t g = 0; g < n_groups; g += chunk, w += chunk_bytes) {
        uint32_t ng = n_groups - g < chunk ? (uint32_t)(n_groups - g) : chunk;
        __m512 d, m;
        mm512_factors(type, w, ng, &d, &m);
        for (uint32_t i = 0; i < ng; i += 2) {
            bool both = i + 1 < ng;
            __m512i u = both ? mm512_unpack(type, w, i / 2, true) : mm512_unpack(type, w, i / 2, false);
            __m512 f[4];
#pragma GCC unroll 4
            for (uint32_t h = 0; h < 4; h++) {
                __m128i b = h == 0   ? _mm512_castsi512_si128(u)
                            : h == 1 ? _mm512_extracti32x4_epi32(u, 1)
                            : h == 2 ? _mm512_extracti32x4_epi32(u, 2)
                                     : _mm512_extracti32x4_epi32(u, 3);
                __m512i lane = _mm512_set1_epi32((int)(type == PS_DTYPE_Q6_K ? i * 2 + h : i + h / 2));
                f[h] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b)),
                                       _mm512_permutexvar_ps(lane, d), _mm512_permutexvar_ps(lane, m));
            }
            _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(f[1], f[0]));
            if (both)
                _mm512_storeu_si512(dst + 32, (__m512i)_mm512_cvtne2ps_pbh(f[3], f[2]));
            dst += 64;
        }
    }
}

/* n weights at w as bfloat16 parts hi and lo (float types that need one), zero up to a multiple of 32. */
typedef void (*strip_row)(const uint8_t *w, uint64_t n, uint16_t *hi, uint16_t *lo);

#define DEFINE_QUANT(name)                                                                                   \
    static void strip_##name(const uint8_t *w, uint64_t n, uint16_t *hi, uint16_t *lo) {                     \
        (void)lo;                                                                                            \
        dequant_bf16(PS_DTYPE_##name, w, hi, n);                                                             \
    }
MM_QUANT_LIST(DEFINE_QUANT)

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

static const strip_row strips[MM_N_TYPES] = {
#define ROW(name) [PS_DTYPE_##name] = strip_##name,
    MM_QUANT_LIST(ROW) MM_FLOAT_LIST(ROW)
#undef ROW
};

/* 16 rows of 16 pairs at `src` (row stride in bytes) to 16 pairs of 16 rows. */
MM_INLINE void transpose(const uint8_t *src, uint64_t stride, uint8_t *dst) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        a[i] = _mm512_loadu_si512(src + (uint64_t)i * stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i lo0 = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88),
                hi0 = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        __m512i lo1 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        __m512i hi1 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
        _mm512_storeu_si512(dst + i * 64, _mm512_shuffle_i32x4(lo0, lo1, 0x88));
        _mm512_storeu_si512(dst + (i + 8) * 64, _mm512_shuffle_i32x4(lo0, lo1, 0xdd));
        _mm512_storeu_si512(dst + (i + 4) * 64, _mm512_shuffle_i32x4(hi0, hi1, 0x88));
        _mm512_storeu_si512(dst + (i + 12) * 64, _mm512_shuffle_i32x4(hi0, hi1, 0xdd));
    }
}

/* Columns [col, col + n) of up to 16 rows from `row` as tiles. */
static void load_panel(const product *p, uint64_t row, uint32_t n_rows, uint32_t row_tile, uint64_t col,
                       uint64_t n, thread_mem *mem) {
    const ps_warg *w = &p->a->w[0];
    uint32_t elems = mm_block_elems(w->type), bytes = mm_block_bytes(w->type);
    uint32_t parts = p->split_weights ? 2 : 1;
    for (uint64_t c = 0; c < n; c += STRIP_COLS) {
        uint64_t nc = n - c < STRIP_COLS ? n - c : STRIP_COLS;
        for (uint32_t r = 0; r < TILE; r++) {
            uint16_t *hi = mem->strip[0][r], *lo = mem->strip[1][r];
            if (r < n_rows) {
                strips[w->type](w->data + (row + r) * w->row_bytes + (col + c) / elems * bytes, nc, hi, lo);
            } else if (c == 0) {
                memset(hi, 0, sizeof mem->strip[0][r]);
                memset(lo, 0, sizeof mem->strip[1][r]);
            }
        }
        for (uint32_t part = 0; part < parts; part++)
            for (uint64_t i = 0; i < nc; i += TILE_COLS)
                transpose((const uint8_t *)(mem->strip[part][0] + i), STRIP_COLS * 2,
                          mem->panel[part][row_tile][(c + i) / TILE_COLS]);
    }
}

/* Phase 1: products --------------------------------------------------------------------------------- */

/* A result tile: where its values come from and go to. */
typedef struct target {
    float *data;
    uint64_t stride;
    bool direct; /* data is the destination itself, else the thread's copy */
    bool zero;   /* starts from 0 */
    const float *start;
    uint64_t start_stride;
    uint64_t row, t;
    uint32_t nr, nt;
} target;

static inline float *dst_at(const ps_kargs *a, uint64_t t, uint64_t row) {
    return (float *)((uint8_t *)a->dst.data + t * a->dst.row_bytes) + row;
}
static inline const float *residual_at(const ps_kargs *a, uint64_t t, uint64_t row) {
    return (const float *)((const uint8_t *)a->src[1].data + t * a->src[1].row_bytes) + row;
}

static target aim(const ps_kargs *a, uint64_t row, uint32_t nr, uint64_t t, uint32_t nt, bool first,
                  float (*copy)[TILE]) {
    target g = {.row = row, .t = t, .nr = nr, .nt = nt};
    bool bias = a->w[1].data != NULL, residual = a->src[1].data != NULL;
    g.direct = nr == TILE && nt == TILE;
    g.data = g.direct ? dst_at(a, t, row) : copy[0];
    g.stride = g.direct ? a->dst.row_bytes : sizeof copy[0];
    g.start = copy[0];
    g.start_stride = sizeof copy[0];
    if (g.direct && !first) {
        g.start = g.data;
        g.start_stride = g.stride;
    } else if (first && !bias && !residual) {
        g.zero = true;
    } else if (g.direct && !bias) {
        g.start = residual_at(a, t, row);
        g.start_stride = a->src[1].row_bytes;
    } else {
        for (uint32_t i = 0; i < nt; i++)
            for (uint32_t r = 0; r < nr; r++)
                copy[i][r] = !first ? dst_at(a, t + i, row)[r]
                                    : (bias ? ps_mm_bias(a, row + r) : 0.0f) +
                                          (residual ? residual_at(a, t + i, row)[r] : 0.0f);
    }
    return g;
}

static void put(const ps_kargs *a, const target *g) {
    if (g->direct)
        return;
    for (uint32_t i = 0; i < g->nt; i++)
        memcpy(dst_at(a, g->t + i, g->row), g->data + i * TILE, g->nr * sizeof(float));
}

#define START(n, g)                                                                                          \
    do {                                                                                                     \
        if ((g).zero)                                                                                        \
            TILE_ZERO(n);                                                                                    \
        else                                                                                                 \
            TILE_LOAD(n, (g).start, (g).start_stride);                                                       \
    } while (0)

/* M token tiles by N row tiles, n_tiles of columns, summed in the order high.high, high.low, low.high. */
MM_INLINE void multiply(const int M, const int N, const target g[2][2], const product *p, uint64_t group,
                        uint64_t col_tile, uint64_t n_tiles, const thread_mem *mem) {
    START(0, g[0][0]);
    if (N > 1)
        START(1, g[0][1]);
    if (M > 1)
        START(2, g[1][0]);
    if (M > 1 && N > 1)
        START(3, g[1][1]);
    uint32_t n_products = p->split_weights ? 3 : p->n_parts;
    for (uint32_t k = 0; k < n_products; k++) {
        /* BF16 weights have no low part: high.high, low.high. */
        uint32_t wp = p->split_weights && k == 1, xp = k == n_products - 1 && k > 0;
        const uint8_t *x0 = p->x[xp] + (group * p->n_col_tiles + col_tile) * TILE_BYTES;
        const uint8_t *x1 = x0 + p->n_col_tiles * TILE_BYTES;
        const uint8_t *w0 = mem->panel[wp][0][0], *w1 = mem->panel[wp][1][0];
        for (uint64_t i = 0; i < n_tiles * TILE_BYTES; i += TILE_BYTES) {
            TILE_LOAD(6, w0 + i, 64);
            TILE_LOAD(4, x0 + i, 64);
            TILE_MUL(0, 4, 6);
            if (N > 1) {
                TILE_LOAD(7, w1 + i, 64);
                TILE_MUL(1, 4, 7);
            }
            if (M > 1) {
                TILE_LOAD(5, x1 + i, 64);
                TILE_MUL(2, 5, 6);
                if (N > 1)
                    TILE_MUL(3, 5, 7);
            }
        }
    }
    TILE_STORE(0, g[0][0].data, g[0][0].stride);
    if (N > 1)
        TILE_STORE(1, g[0][1].data, g[0][1].stride);
    if (M > 1)
        TILE_STORE(2, g[1][0].data, g[1][0].stride);
    if (M > 1 && N > 1)
        TILE_STORE(3, g[1][1].data, g[1][1].stride);
}

static uint32_t part(uint64_t n, uint64_t from) {
    return n <= from ? 0 : n - from < TILE ? (uint32_t)(n - from) : TILE;
}

static void panel_item(const product *p, uint64_t row, uint64_t n_rows, uint64_t t0, uint64_t n_tokens,
                       thread_mem *mem) {
    const ps_kargs *a = p->a;
    uint32_t nr[2] = {part(n_rows, 0), part(n_rows, TILE)};
    for (uint64_t col = 0; col < a->w[0].cols; col += PANEL_COLS) {
        uint64_t n = a->w[0].cols - col < PANEL_COLS ? a->w[0].cols - col : PANEL_COLS;
        uint64_t n_tiles = (n + TILE_COLS - 1) / TILE_COLS;
        for (uint32_t j = 0; j < 2 && nr[j] > 0; j++)
            load_panel(p, row + j * TILE, nr[j], j, col, n, mem);
        for (uint64_t t = 0; t < n_tokens; t += 2 * TILE) {
            uint32_t nt[2] = {part(n_tokens, t), part(n_tokens, t + TILE)};
            target g[2][2];
            for (uint32_t i = 0; i < 2 && nt[i] > 0; i++)
                for (uint32_t j = 0; j < 2 && nr[j] > 0; j++)
                    g[i][j] =
                        aim(a, row + j * TILE, nr[j], t0 + t + i * TILE, nt[i], col == 0, mem->result[i][j]);
            uint64_t group = (t0 + t) / TILE, tile = col / TILE_COLS;
            if (nt[1] && nr[1])
                multiply(2, 2, g, p, group, tile, n_tiles, mem);
            else if (nt[1])
                multiply(2, 1, g, p, group, tile, n_tiles, mem);
            else if (nr[1])
                multiply(1, 2, g, p, group, tile, n_tiles, mem);
            else
                multiply(1, 1, g, p, group, tile, n_tiles, mem);
            for (uint32_t i = 0; i < 2 && nt[i] > 0; i++)
                for (uint32_t j = 0; j < 2 && nr[j] > 0; j++)
                    put(a, &g[i][j]);
        }
    }
}

uint64_t ps_mm_items_amx(const ps_kargs *a, uint32_t phase) {
    product p = describe(a);
    if (phase == 0)
        return p.n_groups * convert_pieces(&p);
    mm_grid g = ps_mm_grid(a, PANEL_ROWS, 2 * TILE);
    return g.n_panels * g.n_chunks;
}

void ps_mm_run_amx(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread) {
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
        uint64_t rows = a->n_rows - row < PANEL_ROWS ? a->n_rows - row : PANEL_ROWS;
        uint64_t tokens = a->n_tokens - t0 < g.chunk_tokens ? a->n_tokens - t0 : g.chunk_tokens;
        panel_item(&p, a->row0 + row, rows, t0, tokens, mem);
    }
    tiles_off();
}
#else
typedef int ps_mm_no_amx;
#endif
