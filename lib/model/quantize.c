/* Floats to packed blocks, for writers of test models: one pass over a block, deterministic, no search
 * for better scales. Layouts are described in dequant.c. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "model/dtype.h"

enum { QK = 32, QK_K = 256 };

static void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* Store a scale as half; what is returned is what a reader will see. */
static float put_half(uint8_t *p, float v) {
    uint16_t h = ps_f32_to_f16(v);
    put_u16(p, h);
    return ps_f16_to_f32(h);
}

/* Nearest integer to v, half to even, within [lo, hi]; a NaN gives lo. */
static int nearest(float v, int lo, int hi) {
    if (!(v > (float)lo))
        return lo;
    return v >= (float)hi ? hi : (int)lrintf(v);
}

/* x divided by the scale, 0 where there is no scale. */
static float over(float x, float d) {
    return d == 0.0f ? 0.0f : x / d;
}

static float abs_max(const float *x, int n) {
    float m = 0.0f;
    for (int i = 0; i < n; i++)
        m = fmaxf(m, fabsf(x[i]));
    return m;
}

/* The element of largest magnitude, with its sign: it gets the extra negative step of a signed range. */
static float signed_max(const float *x, int n) {
    float m = 0.0f;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(m))
            m = x[i];
    return m;
}

static void min_max(const float *x, int n, float *lo, float *hi) {
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        *lo = fminf(*lo, x[i]);
        *hi = fmaxf(*hi, x[i]);
    }
}

static void quant_f32(const float *src, uint8_t *dst, uint64_t n) {
    memcpy(dst, src, (size_t)n * 4);
}

static void quant_f16(const float *src, uint8_t *dst, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        put_u16(dst + 2 * i, ps_f32_to_f16(src[i]));
}

static void quant_bf16(const float *src, uint8_t *dst, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        put_u16(dst + 2 * i, ps_f32_to_bf16(src[i]));
}

static void put_nibbles(uint8_t *p, const int q[QK]) {
    for (int i = 0; i < 16; i++)
        p[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void put_fifth_bits(uint8_t *p, const int q[QK]) {
    memset(p, 0, 4);
    for (int i = 0; i < QK; i++)
        p[i / 8] = (uint8_t)(p[i / 8] | (q[i] >> 4 & 1) << (i % 8));
}

/* Signed range [-half, half - 1] around zero, stored with `half` added. */
static void quant_signed(const float *src, uint8_t *d_at, int half, int q[QK]) {
    float d = put_half(d_at, signed_max(src, QK) / (float)-half);
    for (int i = 0; i < QK; i++)
        q[i] = nearest(over(src[i], d), -half, half - 1) + half;
}

/* Range [0, top] from the block's minimum up. */
static void quant_offset(const float *src, uint8_t *d_at, uint8_t *m_at, int top, int q[QK]) {
    float lo, hi;
    min_max(src, QK, &lo, &hi);
    float d = put_half(d_at, (hi - lo) / (float)top), m = put_half(m_at, lo);
    for (int i = 0; i < QK; i++)
        q[i] = nearest(over(src[i] - m, d), 0, top);
}

static void quant_q4_0(const float *src, uint8_t *dst, uint64_t n) {
    int q[QK];
    for (uint64_t b = 0; b < n / QK; b++, src += QK, dst += 18) {
        quant_signed(src, dst, 8, q);
        put_nibbles(dst + 2, q);
    }
}

static void quant_q4_1(const float *src, uint8_t *dst, uint64_t n) {
    int q[QK];
    for (uint64_t b = 0; b < n / QK; b++, src += QK, dst += 20) {
        quant_offset(src, dst, dst + 2, 15, q);
        put_nibbles(dst + 4, q);
    }
}

static void quant_q5_0(const float *src, uint8_t *dst, uint64_t n) {
    int q[QK];
    for (uint64_t b = 0; b < n / QK; b++, src += QK, dst += 22) {
        quant_signed(src, dst, 16, q);
        put_fifth_bits(dst + 2, q);
        put_nibbles(dst + 6, q);
    }
}

static void quant_q5_1(const float *src, uint8_t *dst, uint64_t n) {
    int q[QK];
    for (uint64_t b = 0; b < n / QK; b++, src += QK, dst += 24) {
        quant_offset(src, dst, dst + 2, 31, q);
        put_fifth_bits(dst + 4, q);
        put_nibbles(dst + 8, q);
    }
}

static void quant_q8_0(const float *src, uint8_t *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / QK; b++, src += QK, dst += 34) {
        float d = put_half(dst, abs_max(src, QK) / 127.0f);
        for (int i = 0; i < QK; i++)
            dst[2 + i] = (uint8_t)nearest(over(src[i], d), -127, 127);
    }
}

/* Scale and offset of the 8 groups of a super-block, packed at 6 bits; sc and mn are what a reader sees.
 * An offset is never positive: x is about sc * q - mn. */
static void pack_scales(const float *src, int top, uint8_t *dst, float sc[8], float mn[8]) {
    float scale[8], min[8];
    for (int g = 0; g < 8; g++) {
        float lo, hi;
        min_max(src + g * 32, 32, &lo, &hi);
        lo = fminf(lo, 0.0f);
        scale[g] = (fmaxf(hi, lo) - lo) / (float)top;
        min[g] = -lo;
    }
    float d = put_half(dst, abs_max(scale, 8) / 63.0f), dmin = put_half(dst + 2, abs_max(min, 8) / 63.0f);
    int s[8], m[8];
    for (int g = 0; g < 8; g++) {
        s[g] = nearest(over(scale[g], d), 0, 63);
        m[g] = nearest(over(min[g], dmin), 0, 63);
        sc[g] = d * (float)s[g];
        mn[g] = dmin * (float)m[g];
    }
    for (int j = 0; j < 4; j++) {
        dst[4 + j] = (uint8_t)(s[j] | (s[j + 4] >> 4) << 6);
        dst[8 + j] = (uint8_t)(m[j] | (m[j + 4] >> 4) << 6);
        dst[12 + j] = (uint8_t)((s[j + 4] & 15) | (m[j + 4] & 15) << 4);
    }
}

static void quant_q4_k(const float *src, uint8_t *dst, uint64_t n) {
    float sc[8], mn[8];
    for (uint64_t b = 0; b < n / QK_K; b++, src += QK_K, dst += 144) {
        pack_scales(src, 15, dst, sc, mn);
        memset(dst + 16, 0, 128);
        for (int g = 0; g < 8; g++)
            for (int i = 0; i < 32; i++) {
                int q = nearest(over(src[g * 32 + i] + mn[g], sc[g]), 0, 15);
                uint8_t *p = dst + 16 + g / 2 * 32 + i;
                *p = (uint8_t)(*p | q << g % 2 * 4);
            }
    }
}

static void quant_q5_k(const float *src, uint8_t *dst, uint64_t n) {
    float sc[8], mn[8];
    for (uint64_t b = 0; b < n / QK_K; b++, src += QK_K, dst += 176) {
        pack_scales(src, 31, dst, sc, mn);
        memset(dst + 16, 0, 160);
        for (int g = 0; g < 8; g++)
            for (int i = 0; i < 32; i++) {
                int q = nearest(over(src[g * 32 + i] + mn[g], sc[g]), 0, 31);
                uint8_t *high = dst + 16 + i, *low = dst + 48 + g / 2 * 32 + i;
                *high = (uint8_t)(*high | (q >> 4) << g);
                *low = (uint8_t)(*low | (q & 15) << g % 2 * 4);
            }
    }
}

static void quant_q6_k(const float *src, uint8_t *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / QK_K; b++, src += QK_K, dst += 210) {
        float scale[16];
        for (int g = 0; g < 16; g++)
            scale[g] = signed_max(src + g * 16, 16) / -32.0f;
        float d = put_half(dst + 208, signed_max(scale, 16) / -128.0f);
        memset(dst, 0, 192);
        for (int g = 0; g < 16; g++) {
            int s = nearest(over(scale[g], d), -128, 127);
            dst[192 + g] = (uint8_t)s;
            for (int i = g * 16; i < g * 16 + 16; i++) {
                int q = nearest(over(src[i], d * (float)s), -32, 31) + 32;
                int half = i / 128, k = i % 128 / 32, at = i % 32;
                uint8_t *low = dst + half * 64 + k % 2 * 32 + at, *high = dst + 128 + half * 32 + at;
                *low = (uint8_t)(*low | (q & 15) << k / 2 * 4);
                *high = (uint8_t)(*high | (q >> 4) << 2 * k);
            }
        }
    }
}

typedef void (*quant_fn)(const float *src, uint8_t *dst, uint64_t n);

static const quant_fn quant_of[] = {
    [PS_DTYPE_F32] = quant_f32,   [PS_DTYPE_F16] = quant_f16,   [PS_DTYPE_BF16] = quant_bf16,
    [PS_DTYPE_Q4_0] = quant_q4_0, [PS_DTYPE_Q4_1] = quant_q4_1, [PS_DTYPE_Q5_0] = quant_q5_0,
    [PS_DTYPE_Q5_1] = quant_q5_1, [PS_DTYPE_Q8_0] = quant_q8_0, [PS_DTYPE_Q4_K] = quant_q4_k,
    [PS_DTYPE_Q5_K] = quant_q5_k, [PS_DTYPE_Q6_K] = quant_q6_k,
};

void ps_quantize_row(ps_dtype type, const float *src, void *dst, uint64_t n) {
    assert(ps_dtype_computable(type) && n % ps_dtype_find((uint32_t)type)->block_elems == 0);
    quant_of[type](src, dst, n);
}
