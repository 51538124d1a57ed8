/* Matrix products for many tokens with AVX-512 BF16: matmul_tiles_body.h on vectors, for quantised weights. Float weights
 * would take three products, more than the panels in float32 do. */
#if defined(__x86_64__)
#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/matmul_unpack512.h"

static void tiles_on(void) {
}
static void tiles_off(void) {
}

enum {
    HALF = 8
}; /* tokens at a time: with two row tiles 16 sums, and two vectors of weights, in registers */

/* HALF tokens from x (64 bytes apart) by N row tiles. */
MM_INLINE void half_tile(const int N, const tile_target *g, uint32_t t0, const tile_operands *op,
                         uint32_t n_ops, uint64_t x_at, uint64_t n_tiles) {
    __m512 acc[HALF][2];
#pragma GCC unroll 8
    for (uint32_t t = 0; t < HALF; t++)
#pragma GCC unroll 2
        for (int j = 0; j < N; j++)
            acc[t][j] = g[j].start
                            ? _mm512_loadu_ps((const uint8_t *)g[j].start + (t0 + t) * g[j].start_stride)
                            : _mm512_setzero_ps();
    for (uint32_t k = 0; k < n_ops; k++) {
        const uint8_t *x = op[k].x + x_at + t0 * 64, *w = op[k].w;
        for (uint64_t i = 0; i < n_tiles; i++, x += TILE_BYTES - 64)
            for (uint32_t pair = 0; pair < 16; pair++, x += 4, w += 64) {
                const __m512bh w0 = (__m512bh)_mm512_loadu_si512(w);
                const __m512bh w1 = (__m512bh)_mm512_loadu_si512(w + (N > 1 ? op[k].w_next : 0));
#pragma GCC unroll 8
                for (uint32_t t = 0; t < HALF; t++) {
                    const __m512bh v = (__m512bh)_mm512_set1_epi32((int)mm_load_u32(x + t * 64));
                    acc[t][0] = _mm512_dpbf16_ps(acc[t][0], w0, v);
                    if (N > 1)
                        acc[t][1] = _mm512_dpbf16_ps(acc[t][1], w1, v);
                }
            }
    }
#pragma GCC unroll 8
    for (uint32_t t = 0; t < HALF; t++)
#pragma GCC unroll 2
        for (int j = 0; j < N; j++)
            _mm512_storeu_ps((uint8_t *)g[j].end + (t0 + t) * g[j].end_stride, acc[t][j]);
}

/* Tokens that nobody wants are left out eight by eight. */
MM_INLINE void tiles_multiply(const int M, const int N, const tile_target g[2][2], const tile_operands *op,
                              uint32_t n_ops, uint64_t n_tiles, const uint32_t nt[2]) {
    for (int i = 0; i < M; i++)
        for (uint32_t t0 = 0; t0 < nt[i]; t0 += HALF)
            half_tile(N, g[i], t0, op, n_ops, (uint64_t)i * op[0].x_next, n_tiles);
}

enum { STEP_TILES = 8 };
#define TILES_ITEMS tiles_items
#define TILES_RUN tiles_run
static uint64_t tiles_items(const ps_kargs *a, uint32_t phase);
static void tiles_run(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread);
#include "kernels/cpu/matmul_tiles_body.h"

static bool quantised(const ps_kargs *a) {
    return a->w[0].type != PS_DTYPE_F32 && a->w[0].type != PS_DTYPE_F16 && a->w[0].type != PS_DTYPE_BF16;
}

uint64_t ps_mm_items_bf16(const ps_kargs *a, uint32_t phase) {
    return quantised(a) ? tiles_items(a, phase) : phase == 0 ? 0 : ps_mm_items_panel(a, 0);
}

void ps_mm_run_bf16(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread) {
    if (quantised(a))
        tiles_run(a, phase, first, n, thread);
    else
        ps_mm_run_panel(&ps_mm_ops_avx512, a, first, n, thread);
}
#else
typedef int ps_mm_no_bf16;
#endif
