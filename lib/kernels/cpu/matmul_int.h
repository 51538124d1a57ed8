/* Inside the CPU matrix products: what the levels share. A level fills one table of tile functions; the
 * drivers in matmul.c walk rows and tokens in tiles and store results with bias and residual. */
#ifndef PS_KERNELS_CPU_MATMUL_INT_H
#define PS_KERNELS_CPU_MATMUL_INT_H

#include <string.h>

#include "kernels/cpu/matmul.h"

/* A tile of results: at most MM_NR weight rows by MM_NT tokens, out[t * MM_NR + r]. */
enum { MM_NR = 4, MM_NT = 12 };
/* Panels of the f32 family below level AMX: rows, and columns dequantised at a time (a multiple of every
 * block). A panel stays in the L2 cache, the activations of a tile in the L1 cache while they meet all its rows. */
enum { MM_PANEL_ROWS = 64, MM_PANEL_COLS = 256, MM_TILE_MAX_ROWS = 32, MM_TILE_MAX_TOKENS = 12 };
enum { MM_N_TYPES = 31 };
/* How far ahead of the weights in use memory is asked for the next: the hardware's own prefetch stops at
 * every page, and at every jump to another row or matrix. The L2 cache holds what is asked for this early. */
enum { MM_AHEAD_BYTES = 8192 };

/* Weight rows at w, w + row_bytes, ...; Q8 activation rows at x, x + x_bytes, ...; nr rows, nt tokens.
 * ahead: added to the address of a weight in use it gives one that the caller wants soon, worth fetching into the L2
 * cache (any distance, modulo 2^64); 0: nothing.
 * Each result's order of operations depends on cols alone, never on its place in the tile. */
typedef void (*mm_dot)(const uint8_t *w, uint64_t row_bytes, uint64_t cols, uint32_t nr, uint64_t ahead,
                       const uint8_t *x, uint64_t x_bytes, uint32_t nt, float *out);
/* n weights (a multiple of the block) at w to floats. */
typedef void (*mm_dequant)(const uint8_t *w, float *dst, uint64_t n);

/* A tile of a panel: panel[column][tile_rows], n columns, times nt <= tile_tokens rows of n floats at x, x + x_bytes, ...:
 * out[t * tile_rows + r]. Each result is a sum in the order of columns, wherever it lies. */
typedef void (*mm_tile)(const float *panel, uint64_t n, const uint8_t *x, uint64_t x_bytes, uint32_t nt,
                        float *out);
/* tile_rows rows of n floats at distance ld to panel[column][tile_rows]; reads up to the next multiple of 16 columns. */
typedef void (*mm_turn)(const float *rows, uint64_t ld, uint64_t n, float *panel);

typedef struct mm_ops {
    uint32_t tile_rows, tile_tokens; /* rows: a divisor of MM_PANEL_ROWS */
    mm_tile tile;
    mm_turn turn;
    mm_dot dot_q8[MM_N_TYPES];    /* by ps_dtype; NULL for types without */
    mm_dot dot_float[MM_N_TYPES]; /* float weights (F32, F16, BF16) and float activations */
    mm_dequant dequant[MM_N_TYPES];
} mm_ops;

/* X(NAME): the quantised types, which have integer dot products, and the float types. */
#define MM_QUANT_LIST(X)                                                                                     \
    X(Q4_0)                                                                                                  \
    X(Q4_1)                                                                                                  \
    X(Q5_0)                                                                                                  \
    X(Q5_1)                                                                                                  \
    X(Q8_0)                                                                                                  \
    X(Q4_K)                                                                                                  \
    X(Q5_K)                                                                                                  \
    X(Q6_K)
#define MM_FLOAT_LIST(X) X(F32) X(F16) X(BF16)

/* Constants of a type that fold away where the type is a constant. */
static inline uint32_t mm_block_bytes(ps_dtype type) {
    switch (type) {
#define MM_CASE(name, text, id, elems, bytes)                                                                \
    case PS_DTYPE_##name:                                                                                    \
        return bytes;
        PS_DTYPE_LIST(MM_CASE)
#undef MM_CASE
    default:
        return 0;
    }
}
static inline uint32_t mm_block_elems(ps_dtype type) {
    switch (type) {
#define MM_CASE(name, text, id, elems, bytes)                                                                \
    case PS_DTYPE_##name:                                                                                    \
        return elems;
        PS_DTYPE_LIST(MM_CASE)
#undef MM_CASE
    default:
        return 0;
    }
}
/* True where a block holds 256 elements with scales per 16 or 32. */
static inline bool mm_is_super(ps_dtype type) {
    return type == PS_DTYPE_Q4_K || type == PS_DTYPE_Q5_K || type == PS_DTYPE_Q6_K;
}

static inline uint16_t mm_load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t mm_load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Q4_K and Q5_K: the eight 6-bit scales and eight 6-bit minima packed in 12 bytes, one per byte:
 * out[0..1] scales, out[2..3] minima. Bytes 0-3 and 4-7 hold the first four of each with the high bits
 * of the last four on top; bytes 8-11 hold the low nibbles of the last four scales and minima. */
static inline void mm_unpack_k_scales(const uint8_t *p, uint32_t out[4]) {
    uint32_t a = mm_load_u32(p), b = mm_load_u32(p + 4), c = mm_load_u32(p + 8);
    out[0] = a & 0x3f3f3f3fu;
    out[1] = (c & 0x0f0f0f0fu) | ((a >> 2) & 0x30303030u);
    out[2] = b & 0x3f3f3f3fu;
    out[3] = ((c >> 4) & 0x0f0f0f0fu) | ((b >> 2) & 0x30303030u);
}

/* Ask for the line at `w` + ahead. */
static inline void mm_ask(const uint8_t *w, uint64_t ahead) {
    __builtin_prefetch((const void *)((uintptr_t)w + ahead), 0, 2);
}
/* How many rows of cols_bytes further on a tile's `ahead` is: MM_AHEAD_BYTES, at least the next tile. */
static inline uint64_t mm_rows_ahead(uint64_t cols_bytes) {
    return (MM_AHEAD_BYTES / (MM_NR * cols_bytes + 1) + 1) * MM_NR;
}
/* `ahead` of a tile of MM_NR rows at w: n_rows from w are wanted (stride row_bytes, each cols_bytes long), then those at
 * `next` (at least block_rows of the same stride; NULL: none). */
static inline uint64_t mm_ahead(const uint8_t *w, uint64_t row_bytes, uint64_t cols_bytes, uint64_t n_rows,
                                const uint8_t *next, uint64_t block_rows) {
    uint64_t rows = mm_rows_ahead(cols_bytes);
    if (rows < n_rows)
        return rows * row_bytes;
    if (!next)
        return 0;
    rows = rows < block_rows ? rows : block_rows;
    rows = rows > n_rows ? rows - n_rows : 0;
    return (uint64_t)((uintptr_t)next - (uintptr_t)w) + rows * row_bytes;
}
/* Ask for the start of a walk over n_rows at w: the rows that no tile asks for, as far as MM_AHEAD_BYTES go where
 * they are long. */
static inline void mm_ask_first(const uint8_t *w, uint64_t row_bytes, uint64_t cols_bytes, uint64_t n_rows) {
    const uint64_t most = MM_AHEAD_BYTES / MM_NR, n = cols_bytes < most ? cols_bytes : most;
    const uint64_t rows = mm_rows_ahead(cols_bytes) < n_rows ? mm_rows_ahead(cols_bytes) : n_rows;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = 0; i < n; i += 64)
            mm_ask(w + r * row_bytes, i);
}

/* dst[t][row] = out (+ bias) (+ residual) for a tile; `more` adds to dst instead (a later part of the
 * columns). */
void ps_mm_store(const ps_kargs *a, uint64_t row, uint32_t nr, uint32_t t, uint32_t nt, const float *out,
                 bool more);
/* Bias of one row, 0 if there is none. */
float ps_mm_bias(const ps_kargs *a, uint64_t row);

/* Items of the families that need no conversion phase, and their runs on a level's table. */
uint64_t ps_mm_items_few(const ps_kargs *a, uint32_t phase);
uint64_t ps_mm_items_panel(const ps_kargs *a, uint32_t phase);
void ps_mm_run_q8(const mm_ops *ops, const ps_kargs *a, uint64_t first, uint64_t n);
void ps_mm_run_few(const mm_ops *ops, const ps_kargs *a, uint64_t first, uint64_t n);
void ps_mm_run_panel(const mm_ops *ops, const ps_kargs *a, uint64_t first, uint64_t n, uint32_t thread);

/* How the panel families cut their work: `panel_rows` by `chunk_tokens` pieces, enough of them for the
 * threads; item i is panel i / n_chunks, chunk i % n_chunks. */
typedef struct mm_grid {
    uint64_t n_panels, n_chunks;
    uint32_t chunk_tokens;
} mm_grid;
mm_grid ps_mm_grid(const ps_kargs *a, uint32_t panel_rows, uint32_t token_step);
/* The calling thread's part of the scratch, 64-byte aligned. */
uint8_t *ps_mm_thread_scratch(const ps_kargs *a, uint32_t thread);

extern const mm_ops ps_mm_ops_generic;
#if defined(__x86_64__)
extern const mm_ops ps_mm_ops_avx2;
extern const mm_ops ps_mm_ops_avx512;
uint64_t ps_mm_items_bf16(const ps_kargs *a, uint32_t phase);
void ps_mm_run_bf16(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread);
uint64_t ps_mm_items_amx(const ps_kargs *a, uint32_t phase);
void ps_mm_run_amx(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread);
#endif

#endif
