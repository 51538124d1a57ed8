/* MATMUL for many token rows on tensor cores. A block of threads makes TOKENS x ROWS of the result: it goes along the
 * columns 64 at a time (a unit, dequant.cuh); activations and packed weights come into shared memory asynchronously, some
 * units ahead; weights of the next unit become halves while this one is multiplied.
 *
 * Order of sums: units of a row in ascending order, four products of 16 columns each, floats. It is the same whatever
 * the tile, so a tile may be chosen by how well it fills the GPU.
 *
 * Included by the files that hold the kernels of some types each, so that they compile side by side. */
#ifndef PS_KERNELS_CUDA_MATMUL_CUH
#define PS_KERNELS_CUDA_MATMUL_CUH

#include "kernels/cuda/dequant.cuh"
#include "kernels/cuda/launch.cuh"

namespace psc {

struct matmul_args {
    weight_rows w;        /* rows from row0 on */
    const float *w_scale; /* SCALED: what each row of w is multiplied by to become halves, a power of two */
    const uint8_t *x;     /* rows of halves */
    uint64_t x_stride;
    const uint8_t *x_scale; /* of row 0; stride x_stride */
    uint32_t n_tokens, row0;
    rows residual, y;
    const float *bias;
};

typedef void (*matmul_fn)(matmul_args);

/* One kernel: its tile and what it needs. */
struct matmul_kernel {
    matmul_fn fn;
    uint32_t tokens, rows, threads, shared_bytes;
    float
        rate; /* of its arithmetic, relative to the others, by bytes of shared memory that a product moves */
};
struct matmul_family {
    matmul_kernel tile[MATMUL_TILES]; /* fn NULL: not made for this type */
};
/* Of each weight type; files matmul_*.cu. */
extern const matmul_family matmul_q4_0, matmul_q4_1, matmul_q5_0, matmul_q5_1, matmul_q8_0, matmul_q4_k,
    matmul_q5_k, matmul_q6_k, matmul_f16, matmul_f16_any, matmul_bf16, matmul_f32;

/* Tile of a block: TOKENS x ROWS, by warps that make M x N each; STAGES units of activations in shared memory; BLOCKS of
 * threads that a multiprocessor shall hold. */
template <int TOKENS_, int ROWS_, int M_, int N_, int STAGES_, int BLOCKS_> struct matmul_tile {
    static constexpr int TOKENS = TOKENS_, ROWS = ROWS_, M = M_, N = N_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int WARPS_M = TOKENS / M, WARPS_N = ROWS / N, THREADS = 32 * WARPS_M * WARPS_N;
};
using tile_wide = matmul_tile<128, 256, 64, 64, 3, 1>;
using tile_large = matmul_tile<256, 128, 64, 64, 3, 1>;
using tile_square = matmul_tile<128, 128, 64, 64, 2, 2>;
using tile_medium = matmul_tile<128, 64, 32, 32, 2, 2>;
using tile_small = matmul_tile<64, 32, 32, 16, 2, 4>;

/* Shared memory: stages of activations, tiles of weights as halves (a stage each where they are copied, else two, and
 * two more for the second halves), loads of packed weights (two). */
template <class W, class C> struct matmul_layout {
    static constexpr uint32_t X = C::TOKENS * 128, TILE = C::ROWS * 128, W_TILES = W::DIRECT ? C::STAGES : 2,
                              LOADS = W::DIRECT ? 0 : C::ROWS * load_slot<W>::SLOT;
    static constexpr uint32_t W_AT = C::STAGES * X, LOW_AT = W_AT + W_TILES * TILE,
                              LOADS_AT = LOW_AT + (W::SPLIT ? 2 * TILE : 0), BYTES = LOADS_AT + 2 * LOADS;
};

/* Ask for unit `unit` of N rows of halves, `stride` apart; rows from `valid` on and columns from `cols` on are zero. */
template <class W, int N, int THREADS>
__device__ __forceinline__ void ask_for_halves(const uint8_t *base, uint64_t stride, uint32_t valid,
                                               uint32_t cols, uint32_t unit, uint8_t *to) {
    static_assert(N * 8 % THREADS == 0 && THREADS % 8 == 0, "a thread keeps its piece");
    const uint32_t piece = threadIdx.x & 7, r0 = threadIdx.x >> 3, col = W::column(unit, piece);
    const uint32_t bytes = col < cols ? min(16u, 2 * (cols - col)) : 0;
    const uint8_t *p = bytes ? base + 2 * (uint64_t)col : base;
#pragma unroll
    for (int k = 0; k < N * 8 / THREADS; k++) {
        const uint32_t r = r0 + k * (THREADS / 8);
        const bool there = r < valid;
        copy_async(to + piece_at(r, piece), there ? p + r * stride : base, there ? bytes : 0);
    }
}

/* Item `item` of a unit's parts: lanes of a warp take 8 rows x 4 parts, so that reads of packed weights and writes of
 * halves both go to different banks. */
template <class W, class C>
__device__ __forceinline__ void make_item(const matmul_args &a, uint32_t first, uint32_t unit, uint32_t item,
                                          uint8_t *shared) {
    using L = matmul_layout<W, C>;
    const uint32_t row = (item >> 5) * 8 + (item & 7), part = item >> 3 & 3;
    const uint32_t load = unit / W::UNITS, row_of_w = min(first + row, a.w.n_rows - 1);
    const uint8_t *slot = shared + L::LOADS_AT + (load & 1) * L::LOADS + row * load_slot<W>::SLOT;
    uint32_t out[8], low[8];
    W::make(slot + load_lead<W>(a.w, row_of_w, load), unit % W::UNITS, part,
            W::SCALED ? a.w_scale[row_of_w] : 1.0f, out, low);
    uint8_t *to = shared + L::W_AT + (unit & 1) * L::TILE;
    *(uint4 *)(to + piece_at(row, W::piece(part, 0))) = make_uint4(out[0], out[1], out[2], out[3]);
    *(uint4 *)(to + piece_at(row, W::piece(part, 1))) = make_uint4(out[4], out[5], out[6], out[7]);
    if constexpr (W::SPLIT) {
        to = shared + L::LOW_AT + (unit & 1) * L::TILE;
        *(uint4 *)(to + piece_at(row, W::piece(part, 0))) = make_uint4(low[0], low[1], low[2], low[3]);
        *(uint4 *)(to + piece_at(row, W::piece(part, 1))) = make_uint4(low[4], low[5], low[6], low[7]);
    }
}

/* Zero what an item that this thread has made holds beyond the last column: there a load has other bytes of the file, or
 * none, and their product with zero may be no number. */
template <class W, class C>
__device__ __noinline__ void cut_item(uint32_t cols, uint32_t unit, uint32_t item, uint8_t *tile) {
    const uint32_t row = (item >> 5) * 8 + (item & 7), part = item >> 3 & 3;
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t piece = W::piece(part, k), col = W::column(unit, piece);
        uint16_t *h = (uint16_t *)(tile + piece_at(row, piece));
        for (uint32_t i = 0; i < 8; i++)
            if (col + i >= cols)
                h[i] = 0;
    }
}

template <class W, class C>
__device__ __forceinline__ void cut(uint32_t cols, uint32_t unit, uint8_t *shared) {
    using L = matmul_layout<W, C>;
    for (uint32_t item = threadIdx.x; item < C::ROWS * 4; item += C::THREADS) {
        cut_item<W, C>(cols, unit, item, shared + L::W_AT + (unit & 1) * L::TILE);
        if constexpr (W::SPLIT)
            cut_item<W, C>(cols, unit, item, shared + L::LOW_AT + (unit & 1) * L::TILE);
    }
}

/* What one warp multiplies at a time: 16 columns of its activations and weights. */
template <class C> struct fragments {
    uint32_t a[C::M / 16][4], b[C::N / 16][4];

    /* Of tiles whose rows begin at x and w, columns [16 step, 16 step + 16). */
    __device__ __forceinline__ void load(uint32_t x, uint32_t w, uint32_t step) {
        const uint32_t lane = threadIdx.x & 31;
        /* Activations: matrices (rows 0-7, first 8 columns), (8-15, first), (0-7, last), (8-15, last). */
#pragma unroll
        for (int m = 0; m < C::M / 16; m++)
            load_matrices(a[m], x + piece_at(16 * m + (lane & 15), 2 * step + (lane >> 4)));
            /* Weights: (rows 0-7, first), (0-7, last), (8-15, first), (8-15, last). */
#pragma unroll
        for (int n = 0; n < C::N / 16; n++)
            load_matrices(b[n],
                          w + piece_at(16 * n + (lane & 7) + (lane >> 4) * 8, 2 * step + (lane >> 3 & 1)));
    }
    __device__ __forceinline__ void multiply_into(float (&acc)[C::M / 16][C::N / 8][4]) const {
#pragma unroll
        for (int n = 0; n < C::N / 16; n++)
#pragma unroll
            for (int m = 0; m < C::M / 16; m++) {
                multiply(acc[m][2 * n], a[m], b[n][0], b[n][1]);
                multiply(acc[m][2 * n + 1], a[m], b[n][2], b[n][3]);
            }
    }
};

/* A sum times the scale of its activation row and over that of its weight row: powers of two. */
template <class W> __device__ __forceinline__ float unscaled(float sum, float x_scale, float w_scale) {
    if constexpr (W::SCALED) {
        if (x_scale != 1.0f) /* either may leave the range of floats alone */
            return (float)((double)sum * (double)x_scale / (double)w_scale);
        return sum / w_scale;
    }
    return sum * x_scale;
}

template <class W, class C>
__device__ __forceinline__ void store_sums(const matmul_args &a, uint32_t token, uint32_t row,
                                           const float (&acc)[C::M / 16][C::N / 8][4]) {
    const uint32_t lane = threadIdx.x & 31;
    const bool pairs = ((uintptr_t)(a.y.data + 4 * (uint64_t)a.row0) & 7) == 0;
#pragma unroll
    for (int m = 0; m < C::M / 16; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t t = token + 16 * m + 8 * h + (lane >> 2);
            if (t >= a.n_tokens)
                continue;
            const float x_scale = *(const float *)(a.x_scale + t * a.x_stride);
            float *y = row_f32(a.y, t) + a.row0;
            const float *residual = a.residual.data ? row_f32(a.residual, t) + a.row0 : nullptr;
#pragma unroll
            for (int n = 0; n < C::N / 8; n++) {
                const uint32_t r = row + 8 * n + 2 * (lane & 3);
                float v[2];
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    if (r + i >= a.w.n_rows)
                        continue;
                    v[i] = unscaled<W>(acc[m][n][2 * h + i], x_scale, W::SCALED ? a.w_scale[r + i] : 1.0f);
                    if (a.bias)
                        v[i] += a.bias[a.row0 + r + i];
                    if (residual)
                        v[i] += residual[r + i];
                }
                if (pairs && r + 1 < a.w.n_rows) {
                    *(float2 *)(y + r) = make_float2(v[0], v[1]);
                } else {
                    if (r < a.w.n_rows)
                        y[r] = v[0];
                    if (r + 1 < a.w.n_rows)
                        y[r + 1] = v[1];
                }
            }
        }
}

/* Blocks of one tile of weight rows follow each other, so that what they read of the weights is still in the cache. */
template <class W, class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) matmul(matmul_args a) {
    using L = matmul_layout<W, C>;
    static_assert(W::DIRECT || W::UNITS >= C::STAGES - 1, "a load is there before its first unit is made");
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int ITEMS = W::DIRECT ? 0 : C::ROWS * 4 / C::THREADS;
    static_assert(W::DIRECT || (ITEMS * C::THREADS == C::ROWS * 4 && ITEMS <= 4),
                  "items are dealt out evenly");
    const uint32_t n_tiles = (a.n_tokens + C::TOKENS - 1) / C::TOKENS;
    const uint32_t token0 = blockIdx.x % n_tiles * C::TOKENS, first = blockIdx.x / n_tiles * C::ROWS;
    const uint32_t n_units = (a.w.cols + 63) / 64, warp = threadIdx.x / 32;
    const uint32_t m0 = warp % C::WARPS_M * C::M, n0 = warp / C::WARPS_M * C::N;
    const uint8_t *x = a.x + token0 * a.x_stride;
    const auto ask = [&](uint32_t unit) {
        const uint32_t stage = unit % C::STAGES;
        ask_for_halves<W, C::TOKENS, C::THREADS>(x, a.x_stride, a.n_tokens - token0, a.w.cols, unit,
                                                 shared + stage * L::X);
        if constexpr (W::DIRECT)
            ask_for_halves<W, C::ROWS, C::THREADS>(a.w.data + first * a.w.stride, a.w.stride,
                                                   a.w.n_rows - first, a.w.cols, unit,
                                                   shared + L::W_AT + stage * L::TILE);
    };
    const auto ask_load = [&](uint32_t load) {
        if constexpr (!W::DIRECT)
            ask_for<W, C::ROWS, C::THREADS>(a.w, first, load, shared + L::LOADS_AT + (load & 1) * L::LOADS);
    };
    ask_load(0);
#pragma unroll
    for (uint32_t k = 0; k < C::STAGES - 1; k++) {
        if (k < n_units)
            ask(k);
        copy_commit();
    }
    if constexpr (!W::DIRECT) {
        copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            make_item<W, C>(a, first, 0, threadIdx.x + i * C::THREADS, shared);
        if (a.w.cols < 64)
            cut<W, C>(a.w.cols, 0, shared);
        ask_load(1);
        copy_commit();
    }
    float acc[C::M / 16][C::N / 8][4] = {};
    for (uint32_t unit = 0; unit < n_units; unit++) {
        copy_wait<C::STAGES - 2>();
        __syncthreads(); /* this unit is there; nobody reads the one before any more */
        if (unit + C::STAGES - 1 < n_units)
            ask(unit + C::STAGES - 1);
        /* The unit after this one is made below: where it is the first of its load, the load before is used up. */
        if (!W::DIRECT && (unit + 1) % W::UNITS == 0)
            ask_load((unit + 1) / W::UNITS + 1);
        copy_commit();
        const uint32_t x_tile = shared_address(shared + unit % C::STAGES * L::X) + m0 * 128;
        const uint32_t w_at = W::DIRECT ? unit % C::STAGES : unit & 1;
        const uint32_t w_tile = shared_address(shared + L::W_AT + w_at * L::TILE) + n0 * 128;
        const uint32_t low_tile = shared_address(shared + L::LOW_AT + w_at * L::TILE) + n0 * 128;
        fragments<C> now, next;
        now.load(x_tile, w_tile, 0);
#pragma unroll
        for (int step = 0; step < 4; step++) {
            if constexpr (W::SPLIT) {
                next.load(x_tile, low_tile, step);
                now.multiply_into(acc);
                next.multiply_into(acc);
                if (step < 3)
                    now.load(x_tile, w_tile, step + 1);
            } else {
                if (step < 3)
                    (step & 1 ? now : next).load(x_tile, w_tile, step + 1);
                (step & 1 ? next : now).multiply_into(acc);
            }
            /* After the last unit an item is made of what lies there, and not used. */
            if (step < ITEMS)
                make_item<W, C>(a, first, unit + 1, threadIdx.x + step * C::THREADS, shared);
        }
        if (!W::DIRECT && a.w.cols % 64 && unit + 2 == n_units)
            cut<W, C>(a.w.cols, unit + 1, shared);
    }
    copy_wait<0>();
    store_sums<W, C>(a, token0 + m0, first + n0, acc);
}

template <class W, class C> constexpr matmul_kernel matmul_of(float rate) {
    return {matmul<W, C>, C::TOKENS, C::ROWS, C::THREADS, matmul_layout<W, C>::BYTES, rate};
}
#define PSC_MATMUL_FAMILY(name, W)                                                                           \
    const matmul_family name = {{matmul_of<W, tile_wide>(1.0f), matmul_of<W, tile_large>(0.97f),             \
                                 matmul_of<W, tile_square>(0.85f), matmul_of<W, tile_medium>(0.6f),          \
                                 matmul_of<W, tile_small>(0.35f)}}
/* Types whose packed rows leave no room for, or gain nothing from, more rows than tokens. */
#define PSC_MATMUL_NARROW(name, W)                                                                           \
    const matmul_family name = {{{},                                                                         \
                                 matmul_of<W, tile_large>(1.0f),                                             \
                                 matmul_of<W, tile_square>(0.85f),                                           \
                                 matmul_of<W, tile_medium>(0.6f),                                            \
                                 matmul_of<W, tile_small>(0.35f)}}

} // namespace psc
#endif
