/* Weights as halves, for tensor cores: how a part of each type's blocks becomes 16 of them, and how blocks come into
 * shared memory. Layouts of blocks: lib/model/dequant.c.
 *
 * A row of weights is cut into units of 64 columns, and its bytes into loads of UNITS units. The columns of a unit are
 * 8 pieces of 8 (16 bytes as halves); a thread makes one part of a unit, two of its pieces. What is made is
 * within 2 roundings to half (2^-11 each) of the exact weight where that is between 2^-14 and 65504.
 *
 * The functions that turn blocks into halves run on the host too, so that they are tested without a GPU. */
#ifndef PS_KERNELS_CUDA_DEQUANT_CUH
#define PS_KERNELS_CUDA_DEQUANT_CUH

#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/mma.cuh"

namespace psc {

#define PSC_BOTH static __host__ __device__ __forceinline__

/* Bytes b, c of two words' eight, as CUDA's __byte_perm. */
PSC_BOTH uint32_t permute(uint32_t x, uint32_t y, uint32_t selector) {
#ifdef __CUDA_ARCH__
    return __byte_perm(x, y, selector);
#else
    const uint64_t both = (uint64_t)y << 32 | x;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return r;
#endif
}
PSC_BOTH __half2 as_half2(uint32_t v) {
    __half2 h;
    memcpy((void *)&h, &v, 4);
    return h;
}
PSC_BOTH uint32_t as_word(__half2 h) {
    uint32_t v;
    memcpy(&v, &h, 4);
    return v;
}
PSC_BOTH float half_at(const uint8_t *p) {
    return __half2float(__ushort_as_half(*(const unsigned short *)p));
}
PSC_BOTH __half2 twice(const uint8_t *p) { /* a half of memory in both places */
    return __half2half2(__ushort_as_half(*(const unsigned short *)p));
}

/* N words of a byte stream at an even address; reads up to two bytes before it and after them. */
template <int N> PSC_BOTH void words_of(const uint8_t *p, uint32_t (&out)[N]) {
    const uint32_t odd = (uint32_t)(uintptr_t)p & 2;
    const uint32_t *w = (const uint32_t *)(p - odd);
    uint32_t last = w[0];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t next = w[i + 1];
        out[i] = odd ? permute(last, next, 0x5432) : last;
        last = next;
    }
}
template <int N> PSC_BOTH void words_aligned(const uint8_t *p, uint32_t (&out)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = ((const uint32_t *)p)[i];
}

/* The four bytes of a word, less `zero`, as halves: 1024 + byte is a half whose low bits are the byte. */
PSC_BOTH void bytes_to_halves(uint32_t bytes, float zero, __half2 &lo, __half2 &hi) {
    const __half2 base = __half2half2(__float2half_rn(1024.0f + zero));
    lo = __hsub2(as_half2(permute(bytes, 0x64646464u, 0x4140)), base);
    hi = __hsub2(as_half2(permute(bytes, 0x64646464u, 0x4342)), base);
}
/* (byte - zero) * a of two words: 8 weights. */
PSC_BOTH void scale_bytes(uint32_t w0, uint32_t w1, float zero, __half2 a, uint32_t *out) {
    __half2 h[4];
    bytes_to_halves(w0, zero, h[0], h[1]);
    bytes_to_halves(w1, zero, h[2], h[3]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = as_word(__hmul2(h[i], a));
}
PSC_BOTH __half2 multiply_add(__half2 x, __half2 a, __half2 b) {
#ifdef __CUDA_ARCH__
    return __hfma2(x, a, b);
#else /* a double holds the exact sum of these */
    const auto one = [](float f, float g, float h) {
        return __double2half((double)f * (double)g + (double)h);
    };
    return __halves2half2(one(__low2float(x), __low2float(a), __low2float(b)),
                          one(__high2float(x), __high2float(a), __high2float(b)));
#endif
}
/* (byte - zero) * a + b. */
PSC_BOTH void scale_bytes(uint32_t w0, uint32_t w1, float zero, __half2 a, __half2 b, uint32_t *out) {
    __half2 h[4];
    bytes_to_halves(w0, zero, h[0], h[1]);
    bytes_to_halves(w1, zero, h[2], h[3]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = as_word(multiply_add(h[i], a, b));
}
/* Bits 0..3 of x into bit 4 of the four bytes of a word. */
PSC_BOTH uint32_t bit4_of_bytes(uint32_t x) {
    return (x & 1) << 4 | (x & 2) << 11 | (x & 4) << 18 | (x & 8) << 25;
}

enum { LOW_NIBBLES = 0x0f0f0f0f };

/* Each type: UNITS of a load and its BYTES; ALIGN, what every load's start in a file is a multiple of; DIRECT: rows are
 * halves already and are copied as they lie; WHOLE: columns come in eights; SPLIT: a weight is the sum of two halves; SCALED: weights are made from
 * floats times a power of two that belongs to the row.
 * piece(part, k): which pieces of the unit part's words out[0..3] (k 0) and out[4..7] (k 1) are. column(unit, piece):
 * first column of a piece. make(load, unit, part, scale, out, out_low): unit counts within the load; a load starts at an
 * address that is a multiple of ALIGN and may be read up to 4 bytes beyond its end; out_low: the second halves of SPLIT. */
struct natural_columns {
    static constexpr bool DIRECT = false, SPLIT = false, SCALED = false, WHOLE = true;
    PSC_BOTH uint32_t column(uint32_t unit, uint32_t piece) {
        return 64 * unit + 8 * piece;
    }
};
/* Blocks of 32 whose byte i holds elements i and i + 16: a part is 8 bytes of one block. */
struct nibble_blocks : natural_columns {
    static constexpr int UNITS = 4;
    PSC_BOTH uint32_t piece(uint32_t part, uint32_t k) {
        return 4 * (part >> 1) + (part & 1) + 2 * k;
    }
};
/* A part is pieces p and p + 4: of two blocks, or 8 bytes of a super-block, whose low nibbles are in one group of 32 and the
 * high ones in another. Threads that follow each other make pieces that do. */
struct far_pieces : natural_columns {
    PSC_BOTH uint32_t piece(uint32_t part, uint32_t k) {
        return part + 4 * k;
    }
};
struct super_blocks : far_pieces {
    static constexpr int UNITS = 4;
};

struct half_q4_0 : nibble_blocks {
    static constexpr int BYTES = 144, ALIGN = 2;
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float, uint32_t (&out)[8],
                       uint32_t (&)[8]) {
        const uint8_t *b = load + 36 * unit + 18 * (part >> 1);
        uint32_t w[2];
        words_of(b + 2 + 8 * (part & 1), w);
        const __half2 d = twice(b);
        scale_bytes(w[0] & LOW_NIBBLES, w[1] & LOW_NIBBLES, 8, d, out);
        scale_bytes(w[0] >> 4 & LOW_NIBBLES, w[1] >> 4 & LOW_NIBBLES, 8, d, out + 4);
    }
};

struct half_q4_1 : nibble_blocks {
    static constexpr int BYTES = 160, ALIGN = 4;
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float, uint32_t (&out)[8],
                       uint32_t (&)[8]) {
        const uint8_t *b = load + 40 * unit + 20 * (part >> 1);
        uint32_t w[2];
        words_aligned(b + 4 + 8 * (part & 1), w);
        const __half2 d = twice(b), m = twice(b + 2);
        scale_bytes(w[0] & LOW_NIBBLES, w[1] & LOW_NIBBLES, 0, d, m, out);
        scale_bytes(w[0] >> 4 & LOW_NIBBLES, w[1] >> 4 & LOW_NIBBLES, 0, d, m, out + 4);
    }
};

/* The 8 + 8 five-bit numbers of part `half` of a block with nibble words w and fifth bits `high`. */
PSC_BOTH void five_bits(const uint32_t (&w)[2], uint32_t high, uint32_t half, uint32_t (&lo)[2],
                        uint32_t (&hi)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        lo[i] = (w[i] & LOW_NIBBLES) | bit4_of_bytes(high >> (8 * half + 4 * i));
        hi[i] = (w[i] >> 4 & LOW_NIBBLES) | bit4_of_bytes(high >> (16 + 8 * half + 4 * i));
    }
}

struct half_q5_0 : nibble_blocks {
    static constexpr int BYTES = 176, ALIGN = 2;
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float, uint32_t (&out)[8],
                       uint32_t (&)[8]) {
        const uint8_t *b = load + 44 * unit + 22 * (part >> 1);
        uint32_t w[2], high[1], lo[2], hi[2];
        words_of(b + 2, high);
        words_of(b + 6 + 8 * (part & 1), w);
        five_bits(w, high[0], part & 1, lo, hi);
        const __half2 d = twice(b);
        scale_bytes(lo[0], lo[1], 16, d, out);
        scale_bytes(hi[0], hi[1], 16, d, out + 4);
    }
};

struct half_q5_1 : nibble_blocks {
    static constexpr int UNITS = 2, BYTES = 96, ALIGN = 4;
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float, uint32_t (&out)[8],
                       uint32_t (&)[8]) {
        const uint8_t *b = load + 48 * unit + 24 * (part >> 1);
        uint32_t w[2], high[1], lo[2], hi[2];
        words_aligned(b + 4, high);
        words_aligned(b + 8 + 8 * (part & 1), w);
        five_bits(w, high[0], part & 1, lo, hi);
        const __half2 d = twice(b), m = twice(b + 2);
        scale_bytes(lo[0], lo[1], 0, d, m, out);
        scale_bytes(hi[0], hi[1], 0, d, m, out + 4);
    }
};

struct half_q8_0 : far_pieces {
    static constexpr int UNITS = 2, BYTES = 136, ALIGN = 2;
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float, uint32_t (&out)[8],
                       uint32_t (&)[8]) {
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint8_t *b = load + 68 * unit + 34 * k;
            uint32_t w[2];
            words_of(b + 2 + 8 * part, w);
            /* With the sign bit flipped a byte is its value plus 128. */
            scale_bytes(w[0] ^ 0x80808080u, w[1] ^ 0x80808080u, 128, twice(b), out + 4 * k);
        }
    }
};

/* Scale and offset of group g of a super-block with header words (d and dmin, then 12 bytes of scales): weight =
 * (q - zero) * a + b. The offset is taken at the middle of the quants, so that the rounding of `a` to half counts for
 * half the range alone. */
PSC_BOTH void group_scale(const uint32_t (&head)[4], uint32_t g, float zero, __half2 &a, __half2 &b) {
    const float d = __half2float(__ushort_as_half((unsigned short)(head[0] & 0xffff))),
                dmin = __half2float(__ushort_as_half((unsigned short)(head[0] >> 16)));
    const uint32_t sh = 8 * (g & 3);
    const uint32_t b0 = head[1] >> sh, b1 = head[2] >> sh, b2 = head[3] >> sh;
    const uint32_t sc = g < 4 ? b0 & 63 : (b2 & 15) | (b0 >> 6 & 3) << 4;
    const uint32_t mn = g < 4 ? b1 & 63 : (b2 >> 4 & 15) | (b1 >> 6 & 3) << 4;
    const float scale = d * (float)sc;
    a = __half2half2(__float2half_rn(scale));
    b = __half2half2(__float2half_rn(zero * scale - dmin * (float)mn));
}

struct half_q4_k : super_blocks {
    static constexpr int BYTES = 144, ALIGN = 16;
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float, uint32_t (&out)[8],
                       uint32_t (&)[8]) {
        const uint4 h = *(const uint4 *)load;
        const uint2 v = *(const uint2 *)(load + 16 + 32 * unit + 8 * part);
        const uint32_t head[4] = {h.x, h.y, h.z, h.w};
        __half2 a, b;
        group_scale(head, 2 * unit, 8, a, b);
        scale_bytes(v.x & LOW_NIBBLES, v.y & LOW_NIBBLES, 8, a, b, out);
        group_scale(head, 2 * unit + 1, 8, a, b);
        scale_bytes(v.x >> 4 & LOW_NIBBLES, v.y >> 4 & LOW_NIBBLES, 8, a, b, out + 4);
    }
};

struct half_q5_k : super_blocks {
    static constexpr int BYTES = 176, ALIGN = 16;
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float, uint32_t (&out)[8],
                       uint32_t (&)[8]) {
        const uint4 h = *(const uint4 *)load;
        const uint2 v = *(const uint2 *)(load + 48 + 32 * unit + 8 * part);
        const uint2 f = *(const uint2 *)(load + 16 + 8 * part);
        const uint32_t head[4] = {h.x, h.y, h.z, h.w}, b0 = f.x >> 2 * unit, b1 = f.y >> 2 * unit;
        __half2 a, b;
        group_scale(head, 2 * unit, 16, a, b);
        scale_bytes((v.x & LOW_NIBBLES) | (b0 << 4 & 0x10101010),
                    (v.y & LOW_NIBBLES) | (b1 << 4 & 0x10101010), 16, a, b, out);
        group_scale(head, 2 * unit + 1, 16, a, b);
        scale_bytes((v.x >> 4 & LOW_NIBBLES) | (b0 << 3 & 0x10101010),
                    (v.y >> 4 & LOW_NIBBLES) | (b1 << 3 & 0x10101010), 16, a, b, out + 4);
    }
};

/* Unit j is groups k = j % 2 and k + 2 of half j / 2: they share their low bytes. */
struct half_q6_k : super_blocks {
    static constexpr int BYTES = 210, ALIGN = 2;
    PSC_BOTH uint32_t column(uint32_t unit, uint32_t piece) {
        return 128 * (unit >> 1) + 32 * (unit & 1) + 64 * (piece >> 2) + 8 * (piece & 3);
    }
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float, uint32_t (&out)[8],
                       uint32_t (&)[8]) {
        const uint32_t half = unit >> 1, k = unit & 1;
        uint32_t lo[2], hi[2];
        words_of(load + 64 * half + 32 * k + 8 * part, lo);
        words_of(load + 128 + 32 * half + 8 * part, hi);
        const float d = half_at(load + 208);
#pragma unroll
        for (uint32_t g = 0; g < 2; g++) {
            const int8_t sc = (int8_t)load[192 + 8 * half + 2 * (k + 2 * g) + (part >> 1)];
            const uint32_t sh = 2 * (k + 2 * g);
            const uint32_t q0 = (lo[0] >> 4 * g & LOW_NIBBLES) | (hi[0] >> sh & 0x03030303) << 4,
                           q1 = (lo[1] >> 4 * g & LOW_NIBBLES) | (hi[1] >> sh & 0x03030303) << 4;
            scale_bytes(q0, q1, 32, __half2half2(__float2half_rn(d * (float)sc)), out + 4 * g);
        }
    }
};

/* Rows of halves at multiples of 16 bytes. */
struct half_f16 : far_pieces {
    static constexpr bool DIRECT = true;
    static constexpr int UNITS = 1, BYTES = 128, ALIGN = 16;
    PSC_BOTH void make(const uint8_t *, uint32_t, uint32_t, float, uint32_t (&)[8], uint32_t (&)[8]) {
    }
};
/* Rows of halves anywhere. */
struct half_f16_any : far_pieces {
    static constexpr bool WHOLE = false;
    static constexpr int UNITS = 2, BYTES = 256, ALIGN = 2;
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float, uint32_t (&out)[8],
                       uint32_t (&)[8]) {
        uint32_t w[2][4];
        words_of(load + 128 * unit + 16 * part, w[0]);
        words_of(load + 128 * unit + 64 + 16 * part, w[1]);
        memcpy(out, w, 32);
    }
};
/* Brain floats have fewer bits than halves but a wider range: with the row's largest at 2^14 to 2^15 nothing of those is
 * lost that are at least 2^-28 of it, and of the others less than 2^-39 of it. */
struct half_bf16 : far_pieces {
    static constexpr bool SCALED = true, WHOLE = false;
    static constexpr int UNITS = 2, BYTES = 256, ALIGN = 2;
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float scale, uint32_t (&out)[8],
                       uint32_t (&)[8]) {
        uint32_t w[2][4];
        words_of(load + 128 * unit + 16 * part, w[0]);
        words_of(load + 128 * unit + 64 + 16 * part, w[1]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float lo, hi;
            const uint32_t v = w[i / 4][i % 4], l = v << 16, h = v & 0xffff0000u;
            memcpy(&lo, &l, 4);
            memcpy(&hi, &h, 4);
            out[i] = as_word(__floats2half2_rn(lo * scale, hi * scale));
        }
    }
};
/* Floats as two halves, scaled as above: at least 22 bits, and less than 2^-39 of the row's largest is lost. */
struct half_f32 : far_pieces {
    static constexpr bool SCALED = true, SPLIT = true, WHOLE = false;
    static constexpr int UNITS = 1, BYTES = 256, ALIGN = 4;
    PSC_BOTH void make(const uint8_t *load, uint32_t unit, uint32_t part, float scale, uint32_t (&out)[8],
                       uint32_t (&low)[8]) {
        uint32_t w[2][8];
        words_aligned(load + 256 * unit + 32 * part, w[0]);
        words_aligned(load + 256 * unit + 128 + 32 * part, w[1]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float f[2];
            memcpy(f, w[i / 4] + 2 * (i % 4), 8);
            f[0] *= scale, f[1] *= scale;
            const __half2 h = __floats2half2_rn(f[0], f[1]);
            out[i] = as_word(h);
            low[i] = as_word(__floats2half2_rn(f[0] - __low2float(h), f[1] - __high2float(h)));
        }
    }
};

/* ---- loads into shared memory ---- */

/* Rows of a range of columns of a matrix, in its file's layout. */
struct weight_rows {
    const uint8_t *data, *end; /* first row; no byte at `end` or behind is read */
    uint64_t stride;
    uint32_t row_bytes; /* of the range */
    uint32_t n_rows, cols;
};

/* A row's slot of one load: it starts `lead` bytes into its slot, up to 16 - ALIGN; SLOT is an odd number of 16 bytes, so
 * that the same place in eight rows lies in different banks. */
template <class W> struct load_slot {
    static constexpr int PIECES = (W::BYTES + (16 - W::ALIGN) + 15) / 16,
                         ROOM = PIECES + (W::ALIGN == 16 ? 0 : 1), SLOT = (ROOM | 1) * 16;
};

/* A tile of rows of packed weights, for all threads alike. Places are bytes from `base`, the last multiple of 16 at or before
 * its first row: strides are below MAX_STRIDE, so 32 bits hold them. */
enum { MAX_STRIDE = 1 << 23 };
struct packed_tile {
    const uint8_t *base;
    uint32_t skew, stride, row_bytes, n_rows, room; /* room: bytes up to the end of the matrix, or 2^32 - 1 */

    __device__ __forceinline__ packed_tile(const weight_rows &w, uint32_t first) {
        const uint8_t *p = w.data + first * w.stride;
        skew = (uint32_t)(uintptr_t)p & 15;
        base = p - skew;
        stride = (uint32_t)w.stride, row_bytes = w.row_bytes;
        n_rows = w.n_rows - first;
        room = (uint32_t)min((uint64_t)(w.end - base), (uint64_t)UINT32_MAX);
    }
    /* Where load `load` of a row begins in its slot. */
    template <class W> __device__ __forceinline__ uint32_t lead(uint32_t row, uint32_t load) const {
        if constexpr (W::ALIGN == 16)
            return 0;
        return (skew + row * stride + load * W::BYTES) & 15;
    }
    /* Ask for load `load` of the first N rows by THREADS threads: those of a row follow each other. Slots of rows that are not
     * there keep what they hold. */
    template <class W, int N, int THREADS>
    __device__ __forceinline__ void ask(uint32_t load, uint8_t *slots) const {
        constexpr int PIECES = load_slot<W>::PIECES, SLOT = load_slot<W>::SLOT, STEP = THREADS / PIECES;
        const uint32_t from = load * W::BYTES, r0 = threadIdx.x / PIECES, at = threadIdx.x % PIECES * 16;
        if (from >= row_bytes || r0 >= STEP)
            return;
        const uint32_t bytes = min((uint32_t)W::BYTES, row_bytes - from), last = min((uint32_t)N, n_rows);
        uint32_t place = skew + r0 * stride + from;
#pragma unroll
        for (int k = 0; k < (N + STEP - 1) / STEP; k++) {
            const uint32_t r = r0 + k * STEP, p = (place & ~15u) + at;
            if (r < last && at < bytes + (place & 15))
                copy_async(slots + r * SLOT + at, base + p, min(16u, room - p));
            place += STEP * stride;
        }
    }
};

} // namespace psc
#endif
