/* What the tile products of matmul_tiles_body.h hand to the instructions of a level. */
#ifndef PS_KERNELS_CPU_MATMUL_TILES_H
#define PS_KERNELS_CPU_MATMUL_TILES_H

#include <stdint.h>

enum {
    TILE = 16,      /* rows of a tile, and columns of a result tile */
    TILE_COLS = 32, /* columns (of the weight matrix) per tile */
    TILE_BYTES = 1024
};

/* Where a result tile, 16 tokens of 16 floats, starts from (NULL: zero) and where it goes. */
typedef struct tile_target {
    const float *start;
    uint64_t start_stride;
    float *end;
    uint64_t end_stride;
} tile_target;

/* One product of a step: activations [16 tokens][32 columns] and weights [16 column pairs][16 rows][2] in bfloat16, column
 * tiles one behind the other; distances to the second token and row tile. */
typedef struct tile_operands {
    const uint8_t *x, *w;
    uint64_t x_next, w_next;
} tile_operands;

/* A level defines
 *   tiles_on, tiles_off    around all items of a call
 *   tiles_multiply(M, N, g, op, n_ops, n_tiles, nt)
 * the last: results g[i][j] of M token tiles by N row tiles (constants, 1 or 2), over n_tiles column tiles of each of the
 * n_ops products in turn; nt[i]: tokens of token tile i that anyone wants. */

#endif
