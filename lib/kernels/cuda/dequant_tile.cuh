/* Weights as operands of tensor cores: from the file's bytes in shared memory straight into the registers of mma.m16n8k16,
 * and the product itself. What products for many tokens share.
 *
 * A group is 32 weights of a row, two steps of 16 along the inner dimension. The order of the elements within a step
 * is ours to choose as long as both operands have the same, so a lane takes neighbours: lane (g, c) = (lane / 4, lane % 4)
 * holds of its row elements 16 s + 4 c .. + 3 of step s, as two words of two halfs. With weights as operand A (rows g and
 * g + 8) and token rows as operand B (token g), B's registers are one 8-byte read of the token's row at half 16 s + 4 c.
 *
 * Weights are rounded to half once: products with the scale are exact before that, so the error is 2^-12 of a weight. */
#ifndef PS_KERNELS_CUDA_DEQUANT_TILE_CUH
#define PS_KERNELS_CUDA_DEQUANT_TILE_CUH

#include <cuda_bf16.h>

#include "kernels/cuda/ptx.cuh"

namespace psc {

namespace tile {

/* A word of shared memory at an even address. */
__device__ __forceinline__ uint32_t word(const uint8_t *p) {
    const uint32_t odd = (uint32_t)(uintptr_t)p & 2;
    const uint32_t *w = (const uint32_t *)(p - odd);
    return odd ? __funnelshift_r(w[0], w[1], 16) : w[0];
}
__device__ __forceinline__ uint32_t half_at(const uint8_t *p) {
    return *(const uint16_t *)p;
}
__device__ __forceinline__ __half2 both(uint32_t half) {
    return __half2half2(__ushort_as_half((unsigned short)half));
}
__device__ __forceinline__ uint32_t bits(__half2 v) {
    return *(uint32_t *)&v;
}
__device__ __forceinline__ __half2 halfs(uint32_t v) {
    return *(__half2 *)&v;
}
/* The four bytes of a word (0 to 255 each) minus `base`, as halfs: a byte below 0x64 is the half 1024 + byte. */
__device__ __forceinline__ void bytes_to_halfs(uint32_t v, float base, __half2 &a, __half2 &b) {
    const __half2 from = __float2half2_rn(1024.0f + base);
    a = __hsub2(halfs(__byte_perm(v, 0x64646464u, 0x4140)), from);
    b = __hsub2(halfs(__byte_perm(v, 0x64646464u, 0x4342)), from);
}
/* d * (byte - base) */
__device__ __forceinline__ void scaled(uint32_t v, float base, __half2 d, uint32_t *out) {
    __half2 a, b;
    bytes_to_halfs(v, base, a, b);
    out[0] = bits(__hmul2(a, d));
    out[1] = bits(__hmul2(b, d));
}
/* d * byte + m */
__device__ __forceinline__ void scaled_plus(uint32_t v, __half2 d, __half2 m, uint32_t *out) {
    __half2 a, b;
    bytes_to_halfs(v, 0, a, b);
    out[0] = bits(__hfma2(a, d, m));
    out[1] = bits(__hfma2(b, d, m));
}
/* Bits 4 c .. 4 c + 3 of x into bit 4 of the four bytes of a word. */
__device__ __forceinline__ uint32_t fifths(uint32_t x, uint32_t c) {
    x >>= 4 * c;
    return (x & 1) << 4 | (x & 2) << 11 | (x & 4) << 18 | (x & 8) << 25;
}

/* Each type: CHUNK weights of a row are brought to shared memory at a time, BYTES of the file, which start at most LEAD bytes
 * behind a multiple of 16. group(): this lane's
 * elements of group `at` (0 .. CHUNK / 32 - 1) of the chunk that starts at p (any address the type's blocks have):
 * out[2 s] and out[2 s + 1] for step s. */
struct q4_0 {
    static constexpr int CHUNK = 128, BYTES = 4 * 18, LEAD = 14;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        p += 18 * at;
        const uint32_t w = word(p + 2 + 4 * c);
        const __half2 d = both(half_at(p));
        scaled(w & 0x0f0f0f0f, 8, d, out);
        scaled(w >> 4 & 0x0f0f0f0f, 8, d, out + 2);
    }
};
struct q4_1 {
    static constexpr int CHUNK = 128, BYTES = 4 * 20, LEAD = 12;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        const uint32_t *b = (const uint32_t *)(p + 20 * at);
        const uint32_t w = b[1 + c], dm = b[0];
        const __half2 d = both(dm & 0xffff), m = both(dm >> 16);
        scaled_plus(w & 0x0f0f0f0f, d, m, out);
        scaled_plus(w >> 4 & 0x0f0f0f0f, d, m, out + 2);
    }
};
struct q5_0 {
    static constexpr int CHUNK = 128, BYTES = 4 * 22, LEAD = 14;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        p += 22 * at;
        const uint32_t w = word(p + 6 + 4 * c), high = word(p + 2);
        const __half2 d = both(half_at(p));
        scaled((w & 0x0f0f0f0f) | fifths(high, c), 16, d, out);
        scaled((w >> 4 & 0x0f0f0f0f) | fifths(high >> 16, c), 16, d, out + 2);
    }
};
struct q5_1 {
    static constexpr int CHUNK = 128, BYTES = 4 * 24, LEAD = 12;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        const uint32_t *b = (const uint32_t *)(p + 24 * at);
        const uint32_t w = b[2 + c], dm = b[0], high = b[1];
        const __half2 d = both(dm & 0xffff), m = both(dm >> 16);
        scaled_plus((w & 0x0f0f0f0f) | fifths(high, c), d, m, out);
        scaled_plus((w >> 4 & 0x0f0f0f0f) | fifths(high >> 16, c), d, m, out + 2);
    }
};
struct q8_0 {
    static constexpr int CHUNK = 128, BYTES = 4 * 34, LEAD = 14;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        p += 34 * at;
        const __half2 d = both(half_at(p));
        scaled(word(p + 2 + 4 * c) ^ 0x80808080u, 128, d, out);
        scaled(word(p + 18 + 4 * c) ^ 0x80808080u, 128, d, out + 2);
    }
};

/* Scale and minimum of group g of a super-block, as halfs: 6-bit integers times d and dmin (lib/model/dequant.c). The scale
 * stays an integer: times a weight of 5 bits it is below 2048, which a half holds exactly. */
__device__ __forceinline__ void k_scale_min(const uint8_t *sb, uint32_t g, __half2 &sc, __half2 &d,
                                            __half2 &m) {
    const uint32_t dd = *(const uint32_t *)sb, sh = 8 * (g & 3);
    const uint32_t b0 = *(const uint32_t *)(sb + 4) >> sh, b1 = *(const uint32_t *)(sb + 8) >> sh,
                   b2 = *(const uint32_t *)(sb + 12) >> sh;
    const uint32_t s = g < 4 ? b0 & 63 : (b2 & 15) | (b0 >> 6 & 3) << 4;
    const uint32_t mn = g < 4 ? b1 & 63 : (b2 >> 4 & 15) | (b1 >> 6 & 3) << 4;
    sc = __half2half2(__ushort2half_rn((unsigned short)s));
    d = both(dd & 0xffff);
    m = __float2half2_rn(-__half2float(__ushort_as_half((unsigned short)(dd >> 16))) * (float)mn);
}
__device__ __forceinline__ void k_scaled(uint32_t v, __half2 sc, __half2 d, __half2 m, uint32_t *out) {
    __half2 a, b;
    bytes_to_halfs(v, 0, a, b);
    out[0] = bits(__hfma2(__hmul2(a, sc), d, m));
    out[1] = bits(__hfma2(__hmul2(b, sc), d, m));
}
struct q4_k {
    static constexpr int CHUNK = 256, BYTES = 144, LEAD = 0;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        __half2 sc, d, m;
        k_scale_min(p, at, sc, d, m);
        const uint32_t *w = (const uint32_t *)(p + 16 + 32 * (at >> 1));
        const uint32_t sh = 4 * (at & 1);
        k_scaled(w[c] >> sh & 0x0f0f0f0f, sc, d, m, out);
        k_scaled(w[4 + c] >> sh & 0x0f0f0f0f, sc, d, m, out + 2);
    }
};
struct q5_k {
    static constexpr int CHUNK = 256, BYTES = 176, LEAD = 0;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        __half2 sc, d, m;
        k_scale_min(p, at, sc, d, m);
        const uint32_t *h = (const uint32_t *)(p + 16), *w = (const uint32_t *)(p + 48 + 32 * (at >> 1));
        const uint32_t sh = 4 * (at & 1);
        k_scaled((w[c] >> sh & 0x0f0f0f0f) | (h[c] >> at & 0x01010101) << 4, sc, d, m, out);
        k_scaled((w[4 + c] >> sh & 0x0f0f0f0f) | (h[4 + c] >> at & 0x01010101) << 4, sc, d, m, out + 2);
    }
};
/* Group at: half at / 4 of the super-block, quarter k = at % 4 of it. */
struct q6_k {
    static constexpr int CHUNK = 256, BYTES = 210, LEAD = 14;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        const uint32_t half = at >> 2, k = at & 3;
        const __half2 d = both(half_at(p + 208));
        const uint32_t sc = half_at(p + 192 + 8 * half + 2 * k);
        const uint8_t *lo = p + 64 * half + 32 * (k & 1) + 4 * c, *hi = p + 128 + 32 * half + 4 * c;
#pragma unroll
        for (uint32_t s = 0; s < 2; s++) {
            const uint32_t v = (word(lo + 16 * s) >> 4 * (k >> 1) & 0x0f0f0f0f) |
                               (word(hi + 16 * s) >> 2 * k & 0x03030303) << 4;
            const __half2 scale = __half2half2(__short2half_rn((short)(int8_t)(sc >> 8 * s & 0xff)));
            __half2 a, b;
            bytes_to_halfs(v, 32, a, b);
            out[2 * s] = bits(__hmul2(__hmul2(a, scale), d));
            out[2 * s + 1] = bits(__hmul2(__hmul2(b, scale), d));
        }
    }
};

struct f16 {
    static constexpr int CHUNK = 64, BYTES = 128, LEAD = 14;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        p += 64 * at + 8 * c;
        out[0] = word(p), out[1] = word(p + 4), out[2] = word(p + 32), out[3] = word(p + 36);
    }
};
struct bf16 {
    static constexpr int CHUNK = 64, BYTES = 128, LEAD = 14;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        f16::group(p, at, c, out);
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[i] =
                bits(__floats2half2_rn(__uint_as_float(out[i] << 16), __uint_as_float(out[i] & 0xffff0000u)));
    }
};
struct f32 {
    static constexpr int CHUNK = 64, BYTES = 256, LEAD = 12;
    static __device__ __forceinline__ void group(const uint8_t *p, uint32_t at, uint32_t c,
                                                 uint32_t (&out)[4]) {
        const float *f = (const float *)(p + 128 * at + 16 * c);
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                out[2 * s + i] = bits(__floats2half2_rn(f[16 * s + 2 * i], f[16 * s + 2 * i + 1]));
    }
};

/* Bytes of shared memory for one chunk of one row that starts anywhere: the pieces of 16 bytes that hold it, and an odd
 * number of pieces, so that the rows of a warp lie in different banks. */
template <class W> struct raw {
    static constexpr int PIECES = (W::BYTES + W::LEAD + 15) / 16, ROW = (PIECES + (PIECES % 2 == 0)) * 16;
};

} // namespace tile
} // namespace psc
#endif
