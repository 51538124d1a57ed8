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
    float rate; /* of its arithmetic, relative to the others: as measured on an H200 */
};
struct matmul_family {
    matmul_kernel tile[MATMUL_TILES]; /* fn NULL: not made for this type */
};
/* Of each weight type; files matmul_*.cu. */
extern const matmul_family matmul_q4_0, matmul_q4_1, matmul_q5_0, matmul_q5_1, matmul_q8_0, matmul_q4_k,
    matmul_q5_k, matmul_q6_k, matmul_f16, matmul_f16_any, matmul_bf16, matmul_f32;

/* Tile of a block: TOKENS x ROWS, by warps that make M x N each; STAGES units of activations and LOADS loads of packed weights in
 * shared memory; BLOCKS of threads that a multiprocessor shall hold. */
template <int TOKENS_, int ROWS_, int M_, int N_, int STAGES_, int LOADS_, int BLOCKS_> struct matmul_tile {
    static constexpr int TOKENS = TOKENS_, ROWS = ROWS_, M = M_, N = N_, STAGES = STAGES_, LOADS = LOADS_,
                         BLOCKS = BLOCKS_;
    static constexpr int WARPS_M = TOKENS / M, WARPS_N = ROWS / N, THREADS = 32 * WARPS_M * WARPS_N;
};
using tile_wide = matmul_tile<128, 256, 64, 64, 3, 2, 1>;
using tile_large = matmul_tile<256, 128, 64, 64, 3, 2, 1>;
using tile_square = matmul_tile<128, 128, 64, 64, 2, 2, 2>;
using tile_medium = matmul_tile<128, 64, 32, 32, 3, 2, 2>;
using tile_small = matmul_tile<64, 32, 32, 16, 3, 2, 4>; /* within the 64 KB of compute capability 7.5 */
using tile_few = matmul_tile<32, 64, 32, 16, 4, 4, 2>;
using tile_split = matmul_tile<64, 32, 32, 16, 2, 2, 4>;

/* Shared memory: stages of activations, tiles of weights as halves (a stage each where they are copied, else two, and
 * two more for the second halves), loads of packed weights. */
template <class W, class C> struct matmul_layout {
    static constexpr uint32_t X = C::TOKENS * 128, TILE = C::ROWS * 128, W_TILES = W::DIRECT ? C::STAGES : 2,
                              LOAD = W::DIRECT ? 0 : C::ROWS * load_slot<W>::SLOT;
    static constexpr uint32_t W_AT = C::STAGES * X, LOW_AT = W_AT + W_TILES * TILE,
                              LOADS_AT = LOW_AT + (W::SPLIT ? 2 * TILE : 0),
                              BYTES = LOADS_AT + C::LOADS * LOAD;
};

/* N rows of halves as a thread copies them: one piece of every THREADS / 8th row. Rows from n_rows on and columns from `cols` on
 * are zero. */
template <class W, int N, int THREADS> struct halves_tile {
    static_assert(N * 8 % THREADS == 0 && THREADS % 64 == 0, "a thread keeps its piece");
    static constexpr int COPIES = N * 8 / THREADS, STEP = THREADS / 8;
    const uint8_t *base;                        /* first row; for all threads alike */
    uint32_t step, cols, offset, to, col, left; /* left: rows from this thread's first on */

    __device__ __forceinline__ halves_tile(const uint8_t *base_, uint64_t stride, uint32_t n_rows,
                                           uint32_t cols_)
        : base(base_), step(STEP * (uint32_t)stride), cols(cols_) {
        const uint32_t r0 = threadIdx.x >> 3, piece = threadIdx.x & 7;
        col = held_back(W::column(0, piece));
        offset = r0 * (uint32_t)stride + 2 * col;
        to = piece_at(r0, piece);
        left = n_rows > r0 ? n_rows - r0 : 0;
    }
    /* Part `part` of `parts` of unit `unit`: beyond the last one all is zero. */
    __device__ __forceinline__ void ask(uint32_t unit, uint8_t *stage, int part, int parts) const {
        const uint32_t first = W::column(unit, 0);
        const uint8_t *p = base + 2 * (uint64_t)first;
        uint32_t at = held_back(offset);
#pragma unroll
        for (int k = 0; k < COPIES; k++) {
            if (k * parts / COPIES == part) {
                uint8_t *dst = stage + to + k * STEP * 128;
                if constexpr (W::WHOLE) {
                    copy_or_zero(dst, p + at, k * STEP < left && first + col < cols);
                } else {
                    const uint32_t bytes = first + col < cols ? min(16u, 2 * (cols - first - col)) : 0;
                    copy_async(dst, p + at, k * STEP < left ? bytes : 0);
                }
            }
            at += step;
        }
    }
};

/* Item `item` of a thread's parts of a unit: lanes of a warp take 8 rows x 4 parts, so that reads of packed weights and
 * writes of halves both go to different banks. */
template <class C> __device__ __forceinline__ uint32_t row_of_item(int item) {
    return (threadIdx.x >> 5) * 8 + (threadIdx.x & 7) + item * (C::THREADS / 4);
}
template <class W, class C>
__device__ __forceinline__ void make_item(const packed_tile &packed, uint32_t unit, int item, float scale,
                                          uint8_t *shared) {
    using L = matmul_layout<W, C>;
    const uint32_t row = row_of_item<C>(item), part = threadIdx.x >> 3 & 3, load = unit / W::UNITS;
    const uint8_t *slot = shared + L::LOADS_AT + load % C::LOADS * L::LOAD + row * load_slot<W>::SLOT;
    uint32_t out[8], low[8];
    W::make(slot + packed.lead<W>(row, load), unit % W::UNITS, part, scale, out, low);
    uint8_t *to = shared + L::W_AT + (unit & 1) * L::TILE;
    *(uint4 *)(to + piece_at(row, W::piece(part, 0))) = make_uint4(out[0], out[1], out[2], out[3]);
    *(uint4 *)(to + piece_at(row, W::piece(part, 1))) = make_uint4(out[4], out[5], out[6], out[7]);
    if constexpr (W::SPLIT) {
        to = shared + L::LOW_AT + (unit & 1) * L::TILE;
        *(uint4 *)(to + piece_at(row, W::piece(part, 0))) = make_uint4(low[0], low[1], low[2], low[3]);
        *(uint4 *)(to + piece_at(row, W::piece(part, 1))) = make_uint4(low[4], low[5], low[6], low[7]);
    }
}

/* Zero what this thread's items hold beyond the last column: there a load has other bytes of the file, or none, and their
 * product with zero may be no number. */
template <class W, class C>
__device__ __noinline__ void cut_items(uint32_t cols, uint32_t unit, uint8_t *shared) {
    using L = matmul_layout<W, C>;
    const uint32_t part = threadIdx.x >> 3 & 3;
    for (int item = 0; item < C::ROWS * 4 / C::THREADS; item++)
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t piece = W::piece(part, k), col = W::column(unit, piece),
                           at = (unit & 1) * L::TILE + piece_at(row_of_item<C>(item), piece);
            for (uint32_t i = 0; i < 8; i++)
                if (col + i >= cols) {
                    ((uint16_t *)(shared + L::W_AT + at))[i] = 0;
                    if constexpr (W::SPLIT)
                        ((uint16_t *)(shared + L::LOW_AT + at))[i] = 0;
                }
        }
}

/* What one warp multiplies at a time: 16 columns of its activations and weights. */
template <class C> struct fragments {
    uint32_t a[C::M / 16][4], b[C::N / 16][4];

    /* Columns [16 step, 16 step + 16) of the rows that begin at x and w, which are this lane's: x_lane, w_lane. The lane's
     * piece is `flip` of the swizzle of piece_at: rows of a fragment differ by multiples of 8. */
    static __device__ __forceinline__ uint32_t
    x_lane() { /* matrices (rows 0-7, first 8 columns), (8-15, first), (0-7,
                                                             last), (8-15, last) */
        return (threadIdx.x & 15) * 128;
    }
    static __device__ __forceinline__ uint32_t x_flip() {
        return ((threadIdx.x >> 4 & 1) ^ (threadIdx.x & 7)) << 4;
    }
    static __device__ __forceinline__ uint32_t
    w_lane() { /* (rows 0-7, first), (0-7, last), (8-15, first), (8-15, last) */
        return ((threadIdx.x & 7) + (threadIdx.x >> 4 & 1) * 8) * 128;
    }
    static __device__ __forceinline__ uint32_t w_flip() {
        return ((threadIdx.x >> 3 & 1) ^ (threadIdx.x & 7)) << 4;
    }
    __device__ __forceinline__ void load(uint32_t x, uint32_t x_flip, uint32_t w, uint32_t w_flip,
                                         uint32_t step) {
        x += x_flip ^ step << 5;
        w += w_flip ^ step << 5;
#pragma unroll
        for (int m = 0; m < C::M / 16; m++)
            load_matrices(a[m], x + 16 * 128 * m);
#pragma unroll
        for (int n = 0; n < C::N / 16; n++)
            load_matrices(b[n], w + 16 * 128 * n);
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

/* Blocks of one tile of weight rows follow each other, so that what they read of the weights is still in the cache. Whatever is
 * done beside the products of a unit - asking for a later one, making the next one's weights - is spread between them. */
template <class W, class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) matmul(matmul_args a) {
    using L = matmul_layout<W, C>;
    static_assert(W::DIRECT || (C::LOADS - 1) * W::UNITS >= C::STAGES - 1,
                  "a load is there before its first unit is made");
    PS_DYNAMIC_SHARED(128, uint8_t, shared);
    constexpr int ITEMS = W::DIRECT ? 0 : C::ROWS * 4 / C::THREADS, PARTS = C::STAGES > 2 ? 3 : 1;
    static_assert(W::DIRECT || (ITEMS * C::THREADS == C::ROWS * 4 && ITEMS <= 4),
                  "items are dealt out evenly");
    const uint32_t n_tiles = (a.n_tokens + C::TOKENS - 1) / C::TOKENS;
    const uint32_t token0 = blockIdx.x % n_tiles * C::TOKENS, first = blockIdx.x / n_tiles * C::ROWS;
    const uint32_t n_units = (a.w.cols + 63) / 64, warp = threadIdx.x / 32;
    const uint32_t m0 = warp % C::WARPS_M * C::M, n0 = warp / C::WARPS_M * C::N;
    const halves_tile<W, C::TOKENS, C::THREADS> x(a.x + token0 * a.x_stride, a.x_stride, a.n_tokens - token0,
                                                  a.w.cols);
    const halves_tile<W, C::ROWS, C::THREADS> direct(a.w.data + first * a.w.stride, a.w.stride,
                                                     a.w.n_rows - first, a.w.cols);
    const packed_tile packed(a.w, first);
    const auto ask = [&](uint32_t unit, uint32_t stage, int part, int parts) {
        x.ask(unit, shared + stage * L::X, part, parts);
        if constexpr (W::DIRECT)
            direct.ask(unit, shared + L::W_AT + stage * L::TILE, part, parts);
    };
    const auto ask_load = [&](uint32_t load) {
        if constexpr (!W::DIRECT)
            packed.ask<W, C::ROWS, C::THREADS>(load, shared + L::LOADS_AT + load % C::LOADS * L::LOAD);
    };
    float scale[ITEMS > 0 ? ITEMS : 1];
#pragma unroll
    for (int i = 0; i < ITEMS; i++)
        scale[i] = W::SCALED ? a.w_scale[min(first + row_of_item<C>(i), a.w.n_rows - 1)] : 1.0f;
    for (uint32_t k = 0; k < C::LOADS - 1; k++)
        ask_load(k);
#pragma unroll
    for (uint32_t k = 0; k < C::STAGES - 1; k++) {
        ask(k, k, 0, 1);
        copy_commit();
    }
    copy_wait<C::STAGES - 2>();
    __syncthreads();
    if constexpr (!W::DIRECT) {
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            make_item<W, C>(packed, 0, i, scale[i], shared);
        if (a.w.cols < 64)
            cut_items<W, C>(a.w.cols, 0, shared);
        ask_load(C::LOADS - 1);
        copy_commit();
        copy_wait<C::STAGES - 2>();
        __syncthreads();
    }
    float acc[C::M / 16][C::N / 8][4] = {};
    const uint32_t x_lane = held_back(m0 * 128 + fragments<C>::x_lane()), x_flip = fragments<C>::x_flip(),
                   w_lane = held_back(n0 * 128 + fragments<C>::w_lane()), w_flip = fragments<C>::w_flip();
    /* Where this lane reads the tiles of a unit that lies in stage `stage`. */
    const auto x_at = [&](uint32_t stage) { return shared_address(shared + stage * L::X) + x_lane; };
    const auto w_at = [&](uint32_t unit, uint32_t stage, uint32_t tiles) {
        return shared_address(shared + tiles + (W::DIRECT ? stage : unit & 1) * L::TILE) + w_lane;
    };
    fragments<C> now, next;
    now.load(x_at(0), x_flip, w_at(0, 0, L::W_AT), w_flip, 0);
    uint32_t stage = 0;
    for (uint32_t unit = 0; unit < n_units; unit++) {
        const uint32_t before = stage == 0 ? C::STAGES - 1 : stage - 1; /* its stage is free */
        const uint32_t after = stage + 1 == C::STAGES ? 0 : stage + 1;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const auto load_ahead = [&](fragments<C> &f) {
                if (step < 3)
                    f.load(x_at(stage), x_flip, w_at(unit, stage, L::W_AT), w_flip, step + 1);
                else
                    f.load(x_at(after), x_flip, w_at(unit + 1, after, L::W_AT), w_flip, 0);
            };
            if constexpr (W::SPLIT)
                next.load(x_at(stage), x_flip, w_at(unit, stage, L::LOW_AT), w_flip, step);
            if (step == 3) { /* all of this unit has been read, and the next one is there */
                copy_wait<C::STAGES - 2>();
                __syncthreads();
            }
            if constexpr (W::SPLIT) {
                now.multiply_into(acc);
                next.multiply_into(acc);
                load_ahead(now);
            } else {
                load_ahead(step & 1 ? now : next);
                (step & 1 ? next : now).multiply_into(acc);
            }
            if (step == 3)
                continue;
            if (step < PARTS)
                ask(unit + C::STAGES - 1, before, step, PARTS);
                /* After the last unit items are made of what lies there, and not used. */
#pragma unroll
            for (int i = 0; i < ITEMS; i++)
                if (i * 3 / (ITEMS > 0 ? ITEMS : 1) == step)
                    make_item<W, C>(packed, unit + 1, i, scale[i], shared);
            if (step < 2)
                continue;
            /* The unit just made is the first of its load: the load before is used up. */
            if (!W::DIRECT && (unit + 1) % W::UNITS == 0)
                ask_load((unit + 1) / W::UNITS + C::LOADS - 1);
            copy_commit();
            if (!W::DIRECT && a.w.cols % 64 && unit + 2 == n_units)
                cut_items<W, C>(a.w.cols, unit + 1, shared);
        }
        stage = after;
    }
    copy_wait<0>();
    store_sums<W, C>(a, token0 + m0, first + n0, acc);
}

template <class W, class C> constexpr matmul_kernel matmul_of(float rate) {
    return {matmul<W, C>, C::TOKENS, C::ROWS, C::THREADS, matmul_layout<W, C>::BYTES, rate};
}
#define PSC_MATMUL_TILES(W)                                                                                  \
    matmul_of<W, tile_large>(1.0f), matmul_of<W, tile_square>(1.0f), matmul_of<W, tile_medium>(0.75f),       \
        matmul_of<W, tile_small>(0.5f), matmul_of<W, tile_few>(0.35f)
#define PSC_MATMUL_FAMILY(name, W)                                                                           \
    const matmul_family name = {{matmul_of<W, tile_wide>(1.0f), PSC_MATMUL_TILES(W)}}
/* Types whose packed rows leave no room for, or gain nothing from, more rows than tokens. */
#define PSC_MATMUL_NARROW(name, W) const matmul_family name = {{{}, PSC_MATMUL_TILES(W)}}

} // namespace psc
#endif
