/* Dot products of weight rows with activations, by one warp: the part that matrix-vector products and the
 * mixture of experts share. Weights are read where they lie, in the file's layout, from VRAM or from mapped host
 * memory: always as 16-byte pieces, a warp's pieces one behind the other, so that the bus sees whole lines.
 *
 * Order of sums, for every type: a lane adds up units lane, lane + 32, ... of the row in that order, then the
 * lanes are added in a fixed tree. */
#ifndef PS_KERNELS_CUDA_DOT_CUH
#define PS_KERNELS_CUDA_DOT_CUH

#include <cuda_bf16.h>

#include "kernels/cuda/ptx.cuh"

namespace psc {

__device__ __forceinline__ float half_bits(uint32_t h) {
    return __half2float(__ushort_as_half((unsigned short)h));
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

/* load_stream for the last piece of a matrix that does not end at a multiple of 16: nothing past `end` is read. All its loads are
 * on their way together. */
static __device__ __noinline__ uint4 load_end(const uint8_t *p, const uint8_t *end) {
    uint32_t half[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        half[i] = p + 2 * i < end ? *(const uint16_t *)(p + 2 * i) : 0;
    return make_uint4(half[0] | half[1] << 16, half[2] | half[3] << 16, half[4] | half[5] << 16,
                      half[6] | half[7] << 16);
}

/* N words of a byte stream that starts at an even address of shared memory. */
template <int N> __device__ __forceinline__ void words_at(const uint8_t *p, uint32_t (&out)[N]) {
    const uint32_t shift = ((uint32_t)(uintptr_t)p & 2) * 8;
    const uint32_t *w = (const uint32_t *)(p - ((uintptr_t)p & 2));
    uint32_t last = w[0];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t next = w[i + 1];
        out[i] = __funnelshift_r(last, next, shift);
        last = next;
    }
}

/* Bits 0..3 of x into bit 4 of the four bytes of a word. */
__device__ __forceinline__ uint32_t fifth_bits(uint32_t x) {
    return (x & 1) << 4 | (x & 2) << 11 | (x & 4) << 18 | (x & 8) << 25;
}

/* A unit is 64 weights, in two groups of 32 that meet groups group(u, 0) and group(u, 1) of the activation row.
 * q: the weights as int8. Of each group: value = a[half] * q + b, a[0] for its first 16 elements, a[1] for the
 * others (the same unless HALVES); b is there if OFFSET. A chunk is 32 units, CHUNK bytes, one per lane. */
struct unit {
    uint32_t q[2][8];
    float a[2][2], b[2];
};

/* Types of 32-element blocks: a unit is two blocks. Of those without a minimum a weight is q - 8, q - 16: its int8 is that times 16
 * or 8, its bits at the top of a byte, where flipping the top bit is the subtraction. Nothing is taken off a sum then, which could
 * cancel. */
struct type_q4_0 {
    static constexpr int CHUNK = 32 * 36;
    static constexpr bool HALVES = false, OFFSET = false;
    static __device__ __forceinline__ void decode(const uint8_t *chunk, int lane, unit &u) {
        uint32_t w[9];
        words_at(chunk + lane * 36, w);
        u.a[0][0] = u.a[0][1] = 0.0625f * half_bits(w[0] & 0xffff);
        u.a[1][0] = u.a[1][1] = 0.0625f * half_bits(w[4] >> 16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t v = __funnelshift_r(w[i], w[i + 1], 16);
            u.q[0][i] = (v << 4 & 0xf0f0f0f0) ^ 0x80808080;
            u.q[0][i + 4] = (v & 0xf0f0f0f0) ^ 0x80808080;
            u.q[1][i] = (w[5 + i] << 4 & 0xf0f0f0f0) ^ 0x80808080;
            u.q[1][i + 4] = (w[5 + i] & 0xf0f0f0f0) ^ 0x80808080;
        }
    }
};

struct type_q4_1 {
    static constexpr int CHUNK = 32 * 40;
    static constexpr bool HALVES = false, OFFSET = true;
    static __device__ __forceinline__ void decode(const uint8_t *chunk, int lane, unit &u) {
        uint32_t w[10];
        words_at(chunk + lane * 40, w);
#pragma unroll
        for (int g = 0; g < 2; g++) {
            u.a[g][0] = u.a[g][1] = half_bits(w[5 * g] & 0xffff);
            u.b[g] = half_bits(w[5 * g] >> 16);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u.q[g][i] = w[5 * g + 1 + i] & 0x0f0f0f0f;
                u.q[g][i + 4] = w[5 * g + 1 + i] >> 4 & 0x0f0f0f0f;
            }
        }
    }
};

__device__ __forceinline__ void nibbles_and_fifth(const uint32_t *lo, uint32_t high, uint32_t (&q)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[i] = (lo[i] & 0x0f0f0f0f) | fifth_bits(high >> 4 * i);
        q[i + 4] = (lo[i] >> 4 & 0x0f0f0f0f) | fifth_bits(high >> (16 + 4 * i));
    }
}

struct type_q5_0 {
    static constexpr int CHUNK = 32 * 44;
    static constexpr bool HALVES = false, OFFSET = false;
    static __device__ __forceinline__ void decode(const uint8_t *chunk, int lane, unit &u) {
        uint32_t w[11], lo[4];
        words_at(chunk + lane * 44, w);
        u.a[0][0] = u.a[0][1] = 0.125f * half_bits(w[0] & 0xffff);
        u.a[1][0] = u.a[1][1] = 0.125f * half_bits(w[5] >> 16);
#pragma unroll
        for (int i = 0; i < 4; i++)
            lo[i] = __funnelshift_r(w[1 + i], w[2 + i], 16);
        nibbles_and_fifth(lo, __funnelshift_r(w[0], w[1], 16), u.q[0]);
        nibbles_and_fifth(w + 7, w[6], u.q[1]);
#pragma unroll
        for (int g = 0; g < 2; g++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                u.q[g][i] = u.q[g][i] << 3 ^ 0x80808080;
    }
};

struct type_q5_1 {
    static constexpr int CHUNK = 32 * 48;
    static constexpr bool HALVES = false, OFFSET = true;
    static __device__ __forceinline__ void decode(const uint8_t *chunk, int lane, unit &u) {
        uint32_t w[12];
        words_at(chunk + lane * 48, w);
#pragma unroll
        for (int g = 0; g < 2; g++) {
            u.a[g][0] = u.a[g][1] = half_bits(w[6 * g] & 0xffff);
            u.b[g] = half_bits(w[6 * g] >> 16);
            nibbles_and_fifth(w + 6 * g + 2, w[6 * g + 1], u.q[g]);
        }
    }
};

struct type_q8_0 {
    static constexpr int CHUNK = 32 * 68;
    static constexpr bool HALVES = false, OFFSET = false;
    static __device__ __forceinline__ void decode(const uint8_t *chunk, int lane, unit &u) {
        uint32_t w[17];
        words_at(chunk + lane * 68, w);
        u.a[0][0] = u.a[0][1] = half_bits(w[0] & 0xffff);
        u.a[1][0] = u.a[1][1] = half_bits(w[8] >> 16);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u.q[0][i] = __funnelshift_r(w[i], w[i + 1], 16);
            u.q[1][i] = w[9 + i];
        }
    }
};

/* Types of super-blocks of 256: a unit is a quarter of one. */

/* 6-bit scale and minimum of group g (0..7) from the 12 bytes of three words (lib/model/dequant.c). */
__device__ __forceinline__ void k_scale(uint32_t s0, uint32_t s1, uint32_t s2, int g, uint32_t &sc,
                                        uint32_t &mn) {
    const int sh = 8 * (g & 3);
    const uint32_t b0 = s0 >> sh, b1 = s1 >> sh, b2 = s2 >> sh;
    sc = g < 4 ? b0 & 63 : (b2 & 15) | (b0 >> 6 & 3) << 4;
    mn = g < 4 ? b1 & 63 : (b2 >> 4 & 15) | (b1 >> 6 & 3) << 4;
}

__device__ __forceinline__ void k_scales(uint4 head, int j, unit &u) {
    const float d = half_bits(head.x & 0xffff), dmin = half_bits(head.x >> 16);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        uint32_t sc, mn;
        k_scale(head.y, head.z, head.w, 2 * j + g, sc, mn);
        u.a[g][0] = u.a[g][1] = d * (float)sc;
        u.b[g] = -dmin * (float)mn;
    }
}

struct type_q4_k {
    static constexpr int CHUNK = 8 * 144;
    static constexpr bool HALVES = false, OFFSET = true;
    static __device__ __forceinline__ void decode(const uint8_t *chunk, int lane, unit &u) {
        const uint8_t *sb = chunk + (lane >> 2) * 144;
        const int j = lane & 3;
        k_scales(*(const uint4 *)sb, j, u);
        const uint4 *p = (const uint4 *)(sb + 16 + 32 * j);
        const uint4 v0 = p[0], v1 = p[1];
        const uint32_t w[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u.q[0][i] = w[i] & 0x0f0f0f0f;
            u.q[1][i] = w[i] >> 4 & 0x0f0f0f0f;
        }
    }
};

struct type_q5_k {
    static constexpr int CHUNK = 8 * 176;
    static constexpr bool HALVES = false, OFFSET = true;
    static __device__ __forceinline__ void decode(const uint8_t *chunk, int lane, unit &u) {
        const uint8_t *sb = chunk + (lane >> 2) * 176;
        const int j = lane & 3;
        k_scales(*(const uint4 *)sb, j, u);
        const uint4 *p = (const uint4 *)(sb + 48 + 32 * j), *h = (const uint4 *)(sb + 16);
        const uint4 v0 = p[0], v1 = p[1], h0 = h[0], h1 = h[1];
        const uint32_t w[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
        const uint32_t hw[8] = {h0.x, h0.y, h0.z, h0.w, h1.x, h1.y, h1.z, h1.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t b = hw[i] >> 2 * j;
            u.q[0][i] = (w[i] & 0x0f0f0f0f) | (b << 4 & 0x10101010);
            u.q[1][i] = (w[i] >> 4 & 0x0f0f0f0f) | (b << 3 & 0x10101010);
        }
    }
};

/* Unit j: half j / 2; groups k = j % 2 and k + 2 of that half share their low bytes. A weight is (q - 32) for six bits q; its
 * int8 here is four times that, six bits at the top of a byte: flipping the top bit is all that the 32 takes. */
struct type_q6_k {
    static constexpr int CHUNK = 8 * 210;
    static constexpr bool HALVES = true, OFFSET = false;
    static __device__ __forceinline__ void decode(const uint8_t *chunk, int lane, unit &u) {
        const uint8_t *sb = chunk + (lane >> 2) * 210;
        const int half = lane >> 1 & 1, k = lane & 1;
        uint32_t lo[8], hi[8];
        words_at(sb + half * 64 + k * 32, lo);
        words_at(sb + 128 + half * 32, hi);
        const float d = 0.25f * half_bits(*(const uint16_t *)(sb + 208));
#pragma unroll
        for (int i = 0; i < 8; i++) /* pair k + 2 to the top of its byte: then pair k is four bits below */
            hi[i] = (hi[i] ^ 0xaaaaaaaau) << (2 - 2 * k);
#pragma unroll
        for (int g = 0; g < 2; g++) {
            const uint32_t sc = *(const uint16_t *)(sb + 192 + half * 8 + 2 * (k + 2 * g));
            u.a[g][0] = d * (float)(int8_t)(sc & 0xff);
            u.a[g][1] = d * (float)(int8_t)(sc >> 8);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t low = g ? lo[i] >> 2 : lo[i] << 2, high = g ? hi[i] : hi[i] << 4;
                u.q[g][i] = (low & 0x3c3c3c3c) | (high & 0xc0c0c0c0);
            }
        }
    }
};

/* Group of the activation row that group g of unit `at` (counted along the row) meets. */
template <class W> __device__ __forceinline__ uint32_t x_group(uint32_t at, int g) {
    return 2 * at + (uint32_t)g;
}
template <> __device__ __forceinline__ uint32_t x_group<type_q6_k>(uint32_t at, int g) {
    return (at >> 1) * 4 + (at & 1) + 2 * (uint32_t)g;
}

/* A Q8 row: the plane of int8, and where its other planes are. */
struct q8_row {
    const int8_t *q;
    const float *d, *s;
};
__device__ __forceinline__ q8_row q8_at(const uint8_t *row, uint32_t cols) {
    const uint64_t d_off = ((uint64_t)cols + 63) & ~63ull;
    const uint64_t s_off = d_off + (((uint64_t)cols / 32 * 4 + 63) & ~63ull);
    return {(const int8_t *)row, (const float *)(row + d_off), (const float *)(row + s_off)};
}

/* acc += the dot product of unit `at` of R rows with T activation rows. */
template <class W, int R, int T>
__device__ __forceinline__ void unit_dot(const unit (&u)[R], uint32_t at, uint32_t n_groups,
                                         const q8_row (&x)[T], float (&acc)[R][T]) {
#pragma unroll
    for (int g = 0; g < 2; g++) {
        const uint32_t xg = x_group<W>(at, g);
        if (xg >= n_groups)
            continue;
#pragma unroll
        for (int t = 0; t < T; t++) {
            const int4 *xp = (const int4 *)(x[t].q + 32 * xg);
            const int4 x0 = xp[0], x1 = xp[1];
            const float d = x[t].d[xg], s = W::OFFSET ? x[t].s[xg] : 0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const uint32_t *q = u[r].q[g];
                int lo = __dp4a((int)q[0], x0.x, 0), hi = __dp4a((int)q[4], x1.x, 0);
                lo = __dp4a((int)q[1], x0.y, lo);
                hi = __dp4a((int)q[5], x1.y, hi);
                lo = __dp4a((int)q[2], x0.z, lo);
                hi = __dp4a((int)q[6], x1.z, hi);
                lo = __dp4a((int)q[3], x0.w, lo);
                hi = __dp4a((int)q[7], x1.w, hi);
                const float sum = W::HALVES
                                      ? fmaf(u[r].a[g][0], (float)lo, __fmul_rn(u[r].a[g][1], (float)hi))
                                      : __fmul_rn(u[r].a[g][0], (float)(lo + hi));
                acc[r][t] = fmaf(d, sum, W::OFFSET ? fmaf(u[r].b[g], s, acc[r][t]) : acc[r][t]);
            }
        }
    }
}

/* Bytes of shared memory for one chunk of one row: it starts up to 15 bytes into the first piece; words_at reads a
 * word past its last. */
template <class W> struct slot { static constexpr int BYTES = (W::CHUNK + 15 + 15) / 16 * 16 + 16; };

/* Bytes of the columns that take part: less than the distance of rows where they are a range. */
template <class W> __host__ __device__ __forceinline__ uint32_t row_length(uint32_t cols) {
    return (uint32_t)((uint64_t)(cols / 32) * W::CHUNK / 64);
}

/* One chunk of R rows on its way: asked for in 16-byte pieces that lie in registers until they are put into shared
 * memory, so that the next chunk is under way while one is computed. (Asynchronous copies into shared memory ask host memory for
 * less at a time: 27 to 43 GB/s instead of 49.) A row's pieces are dealt out to the lanes in turn, so that all of a row's have one
 * address and a constant. Chunks are multiples of 16 bytes: all of a row lie alike in their slots. */
template <class W, int R> struct stager {
    static_assert(W::CHUNK % 16 == 0, "the chunks of a row lie alike");
    static constexpr int PER_ROW = (W::CHUNK + 15 + 15) / 16, LOADS = (PER_ROW + 31) / 32,
                         SLOT = slot<W>::BYTES;
    uint4 v[R][LOADS] = {};

    /* Chunk c of rows that are row_bytes long; their matrices end at end[]. What follows the last chunk's bytes in their last
     * piece is read where the matrix goes on, and means nothing. */
    __device__ __forceinline__ void load(const uint8_t *const (&row)[R], const uint8_t *const (&end)[R],
                                         uint32_t row_bytes, uint32_t c) {
        const uint32_t lane = threadIdx.x & 31, from = c * W::CHUNK,
                       bytes = min((uint32_t)W::CHUNK, row_bytes - from);
        const uint8_t *p[R];
        uint32_t stop[R];
        bool inside = true;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const uint32_t lead = (uint32_t)(uintptr_t)row[r] & 15;
            inside = inside && row[r] + from + bytes + 15 <= end[r];
            p[r] = row[r] + from - lead + 16 * lane;
            stop[r] = bytes + lead;
        }
        if (inside) {
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int k = 0; k < LOADS; k++)
                    load_stream_if(16 * lane + 512 * k < stop[r], p[r] + 512 * k, v[r][k]);
        } else { /* a matrix's last rows: their pieces are whole but for the last one, and not to be waited for one by one */
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int k = 0; k < LOADS; k++) {
                    const uint8_t *from = p[r] + 512 * k;
                    const bool takes = 16 * lane + 512 * k < stop[r], whole = from + 16 <= end[r];
                    load_stream_if(takes && whole, from, v[r][k]);
                    if (takes && !whole)
                        v[r][k] = load_end(from, end[r]);
                }
        }
    }
    __device__ __forceinline__ void store(uint8_t *slots) const {
        const uint32_t lane = threadIdx.x & 31;
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int k = 0; k < LOADS; k++)
                if (32 * k + 32 <= PER_ROW || lane < PER_ROW - 32 * k)
                    *(uint4 *)(slots + r * SLOT + 16 * lane + 512 * k) = v[r][k];
    }
};

/* acc += chunk c, which lies in slots, of R rows times T Q8 rows. */
template <class W, int R, int T>
__device__ __forceinline__ void chunk_dot(const uint8_t *slots, const uint8_t *const (&row)[R], uint32_t c,
                                          uint32_t cols, const q8_row (&x)[T], float (&acc)[R][T]) {
    const uint32_t lane = threadIdx.x & 31, n_groups = cols / 32, at = c * 32 + lane;
    if (at >= (n_groups + 1) / 2)
        return;
    unit u[R];
#pragma unroll
    for (int r = 0; r < R; r++)
        W::decode(slots + r * slot<W>::BYTES + ((uint32_t)(uintptr_t)row[r] & 15), (int)lane, u[r]);
    unit_dot<W>(u, at, n_groups, x, acc);
}

/* R rows of cols weights times T Q8 rows; slots: R of this warp. Lanes hold parts of the sums. */
template <class W, int R, int T>
__device__ __forceinline__ void dot_rows(const uint8_t *const (&row)[R], const uint8_t *const (&end)[R],
                                         uint32_t cols, const q8_row (&x)[T], uint8_t *slots,
                                         float (&acc)[R][T]) {
    const uint32_t n_chunks = ((cols / 32 + 1) / 2 + 31) / 32, row_bytes = row_length<W>(cols);
    stager<W, R> next;
    next.load(row, end, row_bytes, 0);
    for (uint32_t c = 0; c < n_chunks; c++) {
        next.store(slots);
        if (c + 1 < n_chunks)
            next.load(row, end, row_bytes, c + 1);
        __syncwarp();
        chunk_dot<W>(slots, row, c, cols, x, acc);
        __syncwarp();
    }
}

/* Float weights. A unit is 16 bytes; rows that are no multiple of 16 bytes, or begin at none, go element by element. */
struct type_f32 {
    static constexpr int N = 4, BYTES = 4;
    static __device__ __forceinline__ void decode(uint4 v, float (&f)[4]) {
        f[0] = __uint_as_float(v.x), f[1] = __uint_as_float(v.y);
        f[2] = __uint_as_float(v.z), f[3] = __uint_as_float(v.w);
    }
    static __device__ __forceinline__ float one(const uint8_t *p) {
        return *(const float *)p;
    }
};
struct type_f16 {
    static constexpr int N = 8, BYTES = 2;
    static __device__ __forceinline__ void decode(uint4 v, float (&f)[8]) {
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            f[2 * i] = half_bits(w[i] & 0xffff), f[2 * i + 1] = half_bits(w[i] >> 16);
    }
    static __device__ __forceinline__ float one(const uint8_t *p) {
        return half_bits(*(const uint16_t *)p);
    }
};
struct type_bf16 {
    static constexpr int N = 8, BYTES = 2;
    static __device__ __forceinline__ void decode(uint4 v, float (&f)[8]) {
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            f[2 * i] = __uint_as_float(w[i] << 16), f[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
    static __device__ __forceinline__ float one(const uint8_t *p) {
        return __uint_as_float((uint32_t) * (const uint16_t *)p << 16);
    }
};

/* As dot_rows, for float weights and float activations. UNROLL units of each row are in flight at a time. */
template <class W, int R, int T, int UNROLL>
__device__ __forceinline__ void dot_rows_f(const uint8_t *const (&row)[R], uint32_t cols,
                                           const float *const (&x)[T], float (&acc)[R][T]) {
    const uint32_t lane = threadIdx.x & 31;
    uintptr_t starts = 0;
#pragma unroll
    for (int r = 0; r < R; r++)
        starts |= (uintptr_t)row[r];
    if (cols % W::N || starts % 16) {
        for (uint32_t c = lane; c < cols; c += 32)
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float w = W::one(row[r] + (uint64_t)c * W::BYTES);
#pragma unroll
                for (int t = 0; t < T; t++)
                    acc[r][t] = fmaf(w, x[t][c], acc[r][t]);
            }
        return;
    }
    const uint32_t n_units = cols / W::N;
    for (uint32_t u0 = lane; u0 < n_units; u0 += 32 * UNROLL) {
        uint4 w[UNROLL][R];
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
#pragma unroll
            for (int r = 0; r < R; r++)
                w[k][r] = u0 + 32 * k < n_units ? load_stream(row[r] + 16ull * (u0 + 32 * k))
                                                : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const uint32_t at = u0 + 32 * k;
            if (at >= n_units)
                break;
            float f[R][W::N];
#pragma unroll
            for (int r = 0; r < R; r++)
                W::decode(w[k][r], f[r]);
#pragma unroll
            for (int t = 0; t < T; t++) {
                const float4 *xp = (const float4 *)(x[t] + W::N * (uint64_t)at);
#pragma unroll
                for (int i = 0; i < W::N / 4; i++) {
                    const float4 v = xp[i];
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        acc[r][t] = fmaf(f[r][4 * i], v.x, acc[r][t]);
                        acc[r][t] = fmaf(f[r][4 * i + 1], v.y, acc[r][t]);
                        acc[r][t] = fmaf(f[r][4 * i + 2], v.z, acc[r][t]);
                        acc[r][t] = fmaf(f[r][4 * i + 3], v.w, acc[r][t]);
                    }
                }
            }
        }
    }
}

} // namespace psc
#endif
