/* Matrix products for many tokens on AMX tiles in bfloat16: matmul_tiles_body.h with the tile instructions, written in
 * assembler: some compilers' intrinsics do not tell that tile loads read memory. */
#if defined(__x86_64__)
#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/matmul_unpack512.h"

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

#define START(n, g)                                                                                          \
    do {                                                                                                     \
        if ((g).start)                                                                                       \
            TILE_LOAD(n, (g).start, (g).start_stride);                                                       \
        else                                                                                                 \
            TILE_ZERO(n);                                                                                    \
    } while (0)

/* M token tiles by N row tiles over n_tiles column tiles: x activations, w weights, distances to the second
 * token and row tile. */
MM_INLINE void multiply(const int M, const int N, const uint8_t *x, uint64_t x_next, const uint8_t *w,
                        uint64_t w_next, uint64_t n_tiles) {
    const uint8_t *x1 = x + x_next, *w1 = w + w_next;
    for (uint64_t i = 0; i < n_tiles * TILE_BYTES; i += TILE_BYTES) {
        TILE_LOAD(6, w + i, 64);
        TILE_LOAD(4, x + i, 64);
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

MM_INLINE void tiles_multiply(const int M, const int N, const tile_target g[2][2], const tile_operands *op,
                              uint32_t n_ops, uint64_t n_tiles, const uint32_t nt[2]) {
    (void)nt;
    START(0, g[0][0]);
    if (N > 1)
        START(1, g[0][1]);
    if (M > 1)
        START(2, g[1][0]);
    if (M > 1 && N > 1)
        START(3, g[1][1]);
    for (uint32_t k = 0; k < n_ops; k++)
        multiply(M, N, op[k].x, op[k].x_next, op[k].w, op[k].w_next, n_tiles);
    TILE_STORE(0, g[0][0].end, g[0][0].end_stride);
    if (N > 1)
        TILE_STORE(1, g[0][1].end, g[0][1].end_stride);
    if (M > 1)
        TILE_STORE(2, g[1][0].end, g[1][0].end_stride);
    if (M > 1 && N > 1)
        TILE_STORE(3, g[1][1].end, g[1][1].end_stride);
}

enum { STEP_TILES = 10 };
#define TILES_ITEMS ps_mm_items_amx
#define TILES_RUN ps_mm_run_amx
#include "kernels/cpu/matmul_tiles_body.h"
#else
typedef int ps_mm_no_amx;
#endif
