/* The grouped product of MOE_DISPATCH for many tokens: rows of tokens that chose the same expert, times that expert's
 * matrix, on tensor cores. A block makes one tile: up to BT token rows x 32 weight rows per warp. For gate and up the 32 are
 * 16 of each and what is stored is act(gate) * up.
 *
 * Shared memory: stages of token rows (64 halfs each), filled by all threads; and of each warp its own weight rows as
 * they are in the file, from where they are decoded into registers (dequant_tile.cuh), so weights take part in no barrier.
 * The order of a sum is that of the inner dimension, whatever the tile. */
#ifndef PS_KERNELS_CUDA_MOE_MANY_CUH
#define PS_KERNELS_CUDA_MOE_MANY_CUH

#include "kernels/cuda/dequant_tile.cuh"
#include "kernels/cuda/moe.cuh"

namespace psc {

enum {
    MANY_STEP = 64,                  /* of the inner dimension between two barriers */
    MANY_X_ROW = 2 * MANY_STEP + 32, /* bytes: neighbouring rows start 8 banks apart */
    MANY_WARPS = 8,                  /* most */
    MANY_BLOCK_COLS = 16,            /* hidden columns that share an exponent */
};

/* Rows [first, first + n) of the sorted pairs, all of one expert. */
struct many_tile {
    uint32_t expert, first, n;
};

struct many_args {
    experts w, up;            /* up: bytes 0 where there is no second matrix */
    uint32_t k, row0, n_rows; /* inner dimension; weight rows [row0, row0 + n_rows) */
    const many_tile *tiles;
    const uint32_t *n_tiles;
    uint32_t chunk0, chunk_n; /* of the sorted pairs: only these */
    const uint8_t *x;         /* rows of halfs */
    uint64_t x_stride;
    const uint32_t *x_row; /* of each sorted pair; NULL: its own, counted from chunk0 */
    const uint8_t *scale;  /* float of each row of x */
    uint64_t scale_stride;
    uint8_t *y; /* a row per pair, counted from chunk0: halfs (gate and up) or floats */
    uint64_t y_stride;
    uint8_t *
        exponents; /* gate and up: of each pair and MANY_BLOCK_COLS columns, what is stored is times 2^-that */
    uint64_t exponents_stride;
    uint32_t raw_stages; /* 1: weights are not prefetched */
    bool silu;
};
typedef void (*many_fn)(many_args);

/* Rows of tokens in a tile, smallest first. */
enum { MANY_SIZES = 3 };
static const uint32_t many_tokens[MANY_SIZES] = {32, 64, 128};
struct many_family {
    ps_dtype type;
    uint32_t raw_row, raw_stages[MANY_SIZES]; /* bytes; stages that hide the latency */
    many_fn kernel[MANY_SIZES];
};
/* By folder of types, each its own file: they take long to compile. */
enum { MANY_F = 3, MANY_Q = 5, MANY_K = 3 };
extern const many_family many_f[MANY_F], many_q[MANY_Q], many_k[MANY_K];

/* Stages of token rows: small tiles compute little between two barriers, so more must be on its way. A commit holds the rows of
 * one step and, where a chunk begins, weights; commits arrive in order, so weights are asked for as far ahead as rows. */
__host__ __device__ constexpr uint32_t many_x_stages(uint32_t tokens) {
    return tokens == 32 ? 4 : 3;
}
template <class W> struct many_raw {
    static constexpr uint32_t STEPS = W::CHUNK / MANY_STEP;
    static constexpr uint32_t stages(uint32_t tokens) {
        return (many_x_stages(tokens) - 1 + STEPS - 1) / STEPS + 1;
    }
};
#define PS_MANY_FAMILY(id, W)                                                                                \
    {                                                                                                        \
        PS_DTYPE_##id, tile::raw<W>::ROW,                                                                    \
            {many_raw<W>::stages(32), many_raw<W>::stages(64), many_raw<W>::stages(128)}, {                  \
            many<W, 32, true>, many<W, 64, true>, many<W, 128, false>                                        \
        }                                                                                                    \
    }

/* The 32 weight rows of a warp and where they are. */
struct many_rows {
    const uint8_t *w, *up;
    uint32_t first; /* weight row of lane row 0 (gate and up: hidden column) */
    __device__ __forceinline__ const uint8_t *row(const many_args &a, uint32_t r) const {
        const bool second = up && r >= 16;
        const uint32_t i = min(first + (up ? r & 15 : r), a.row0 + a.n_rows - 1);
        return second ? up + i * a.up.stride : w + i * a.w.stride;
    }
    __device__ __forceinline__ const uint8_t *end(const many_args &a, uint32_t r) const {
        return up && r >= 16 ? up + a.up.bytes : w + a.w.bytes;
    }
};

/* Ask for chunk c of the warp's rows. */
template <class W>
__device__ __forceinline__ void many_load_raw(const many_args &a, const many_rows &m, uint32_t c,
                                              uint8_t *to) {
    constexpr uint32_t PIECES = tile::raw<W>::PIECES, ROW = tile::raw<W>::ROW;
    const uint32_t lane = threadIdx.x & 31, n = min((uint32_t)W::CHUNK, a.k - c * W::CHUNK),
                   bytes = (uint32_t)((uint64_t)n * W::BYTES / W::CHUNK);
#pragma unroll 4
    for (uint32_t q = lane; q < 32 * PIECES; q += 32) {
        const uint32_t r = q / PIECES, at = q % PIECES * 16;
        const uint8_t *p = m.row(a, r) + (uint64_t)c * W::BYTES, *end = m.end(a, r);
        const uint32_t lead = (uint32_t)(uintptr_t)p & 15;
        p = p - lead + at;
        if (at < bytes + lead)
            copy_async_row(to + r * ROW + at, p, p + 16 <= end ? 16u : (uint32_t)(end - p));
    }
}

/* Weights at columns from `left` on, of a group of 32, are none. */
__device__ __forceinline__ void many_mask(uint32_t (&f)[4], uint32_t left, uint32_t c) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t col = 16 * (i / 2) + 4 * c + 2 * (i & 1);
        f[i] &= (col < left ? 0xffffu : 0) | (col + 1 < left ? 0xffff0000u : 0);
    }
}

template <int BT>
__device__ __forceinline__ void many_store_hidden(const many_args &a, float (&acc)[2][BT / 8][4],
                                                  const float *scale, uint32_t n, uint32_t row,
                                                  uint32_t col0) {
    const uint32_t lane = threadIdx.x & 31, g = lane / 4, c = lane % 4;
    float most = 0;
#pragma unroll
    for (int j = 0; j < BT / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t token = 8 * j + 2 * c + (i & 1), col = col0 + g + (i >= 2 ? 8 : 0);
            float h = 0;
            if (token < n && col < a.n_rows)
                h = glu_value(acc[0][j][i] * scale[token], acc[1][j][i] * scale[token], a.silu);
            acc[0][j][i] = h;
            most = fmaxf(most, finite_abs(h));
        }
    const bool large = __any_sync(0xffffffffu, most > 32768.0f);
#pragma unroll
    for (int j = 0; j < BT / 8; j++)
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            const uint32_t token = 8 * j + 2 * c + odd;
            float v0 = acc[0][j][odd], v1 = acc[0][j][odd + 2];
            uint32_t exponent = 0;
            if (large) {
                float top = fmaxf(finite_abs(v0), finite_abs(v1));
#pragma unroll
                for (int o = 4; o < 32; o *= 2)
                    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
                const float s = f16s_scale(top);
                exponent = (__float_as_uint(s) >> 23) - 127;
                v0 /= s, v1 /= s;
            }
            if (token >= n)
                continue;
            __half *out = (__half *)(a.y + (uint64_t)(row + token) * a.y_stride) + col0 + g;
            if (col0 + g < a.n_rows)
                out[0] = __float2half_rn(v0);
            if (col0 + g + 8 < a.n_rows)
                out[8] = __float2half_rn(v1);
            if (g == 0 && col0 < a.n_rows)
                a.exponents[(uint64_t)(row + token) * a.exponents_stride + col0 / MANY_BLOCK_COLS] =
                    (uint8_t)exponent;
        }
}

template <int BT>
__device__ __forceinline__ void many_store(const many_args &a, const float (&acc)[2][BT / 8][4],
                                           const float *scale, uint32_t n, uint32_t row, uint32_t col0) {
    const uint32_t lane = threadIdx.x & 31, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < BT / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = 8 * j + 2 * c + (i & 1), col = col0 + 16 * m + g + (i >= 2 ? 8 : 0);
                if (token < n && col < a.n_rows)
                    ((float *)(a.y + (uint64_t)(row + token) * a.y_stride))[col] =
                        acc[m][j][i] * scale[token];
            }
}

/* Block (weight rows, tile). Dynamic shared memory: stages of token rows, then raw_stages x 32 rows of each warp. TWO: two
 * blocks share a multiprocessor. */
template <class W, int BT, bool TWO>
__global__ void __launch_bounds__(32 * MANY_WARPS, TWO ? 2 : 1) many(many_args a) {
    constexpr uint32_t X_STAGES = many_x_stages(BT), X_STAGE = BT * MANY_X_ROW, ROW = tile::raw<W>::ROW,
                       RAW = 32 * ROW, S = many_raw<W>::STEPS;
    PS_DYNAMIC_SHARED(16, uint8_t, memory);
    __shared__ float scale[BT];
    __shared__ const uint8_t *x_at[BT];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, c = lane % 4,
                   n_warps = blockDim.x / 32;
    if (blockIdx.y >= *a.n_tiles)
        return;
    const many_tile tl = a.tiles[blockIdx.y];
    const uint32_t first = max(tl.first, a.chunk0), last = min(tl.first + tl.n, a.chunk0 + a.chunk_n);
    if (first >= last)
        return;
    const uint32_t n = last - first;
    for (uint32_t r = threadIdx.x; r < BT; r += blockDim.x) {
        const uint64_t from = r >= n ? 0 : a.x_row ? a.x_row[first + r] : first + r - a.chunk0;
        x_at[r] = r < n ? a.x + from * a.x_stride : nullptr;
        scale[r] = r < n ? *(const float *)(a.scale + from * a.scale_stride) : 0.0f;
    }
    const bool glu = a.up.bytes != 0;
    const uint32_t col0 = (blockIdx.x * n_warps + warp) * (glu ? 16 : 32); /* counted from row0 */
    const many_rows m = {expert_at(a.w, (int32_t)tl.expert),
                         glu ? expert_at(a.up, (int32_t)tl.expert) : nullptr, a.row0 + col0};
    uint8_t *raw = memory + X_STAGES * X_STAGE + warp * a.raw_stages * RAW;
    /* This lane's four rows. */
    uint32_t low[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        low[i] = (uint32_t)(uintptr_t)m.row(a, g + 8 * i) & 15;
    __syncthreads();

    const uint32_t n_steps = (a.k + MANY_STEP - 1) / MANY_STEP, n_chunks = (n_steps + S - 1) / S,
                   x_rows = min((n + 7) / 8 * 8, (uint32_t)BT), ahead = a.raw_stages - 1;
    const auto load_x = [&](uint32_t step) {
        uint8_t *to = memory + step % X_STAGES * X_STAGE;
        for (uint32_t q = threadIdx.x; q < x_rows * 8; q += blockDim.x) {
            const uint32_t r = q / 8, k0 = step * MANY_STEP + q % 8 * 8;
            const uint8_t *p = x_at[r];
            const uint32_t left = p && k0 < a.k ? min(a.k - k0, 8u) : 0;
            copy_async(to + r * MANY_X_ROW + q % 8 * 16, left ? p + 2 * (uint64_t)k0 : a.x, 2 * left);
        }
    };
    for (uint32_t i = 0; i < X_STAGES - 1; i++) {
        if (i < n_steps)
            load_x(i);
        for (uint32_t r = 0; i == 0 && r < ahead && r < n_chunks; r++)
            many_load_raw<W>(a, m, r, raw + r * RAW);
        copy_commit();
    }
    float acc[2][BT / 8][4] = {};
    for (uint32_t step = 0; step < n_steps; step++) {
        const uint32_t chunk = step / S;
        if (step % S == 0 && ahead == 0) {
            many_load_raw<W>(a, m, chunk, raw);
            copy_commit();
            copy_wait<0>();
        } else {
            copy_wait<X_STAGES - 2>();
        }
        __syncthreads();
        if (step + X_STAGES - 1 < n_steps)
            load_x(step + X_STAGES - 1);
        if (step % S == 0 && ahead != 0 && chunk + ahead < n_chunks)
            many_load_raw<W>(a, m, chunk + ahead, raw + (chunk + ahead) % a.raw_stages * RAW);
        copy_commit();
        const uint8_t *xs = memory + step % X_STAGES * X_STAGE + g * MANY_X_ROW + 8 * c;
        const uint8_t *ws = raw + chunk % a.raw_stages * RAW + g * ROW;
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t k0 = step * MANY_STEP + 32 * half;
            if (k0 >= a.k)
                break;
            uint32_t f[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t lead = (low[i] + chunk * (uint32_t)W::BYTES) & 15;
                W::group(ws + 8 * i * ROW + lead, (step % S) * 2 + half, c, f[i]);
                if (a.k - k0 < 32)
                    many_mask(f[i], a.k - k0, c);
            }
            /* 32 tokens at a time: their operands are asked for together. */
#pragma unroll
            for (int j0 = 0; j0 < BT / 8; j0 += 4) {
                if (8 * j0 >= (int)n)
                    break;
                uint2 b[4][2];
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int s = 0; s < 2; s++)
                        b[j][s] = *(const uint2 *)(xs + 8 * (j0 + j) * MANY_X_ROW + 64 * half + 32 * s);
#pragma unroll
                for (int s = 0; s < 2; s++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
#pragma unroll
                        for (int m = 0; m < 2; m++) {
                            const uint32_t w[4] = {f[2 * m][2 * s], f[2 * m + 1][2 * s], f[2 * m][2 * s + 1],
                                                   f[2 * m + 1][2 * s + 1]};
                            multiply(acc[m][j0 + j], w, b[j][s].x, b[j][s].y);
                        }
                    }
            }
        }
    }
    copy_wait<0>();
    if (glu)
        many_store_hidden<BT>(a, acc, scale, n, first - a.chunk0, col0);
    else
        many_store<BT>(a, acc, scale, n, first - a.chunk0, col0);
}

} // namespace psc
#endif
