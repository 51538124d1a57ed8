/* Packed blocks to floats. The order of the few roundings is that of ggml's own Python package, so the
 * results have the same bits: scale times sub-scale first, then times the quant, then the offset. */
#include <assert.h>
#include <string.h>

#include "model/dtype.h"

enum { QK = 32, QK_K = 256 };

static float half_at(const uint8_t *p) {
    return ps_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static void dequant_f32(const uint8_t *src, float *dst, uint64_t n) {
    memcpy(dst, src, (size_t)n * 4);
}

static void dequant_f16(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        dst[i] = half_at(src + 2 * i);
}

static void dequant_bf16(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        dst[i] = ps_bf16_to_f32((uint16_t)(src[2 * i] | src[2 * i + 1] << 8));
}

/* Blocks of 32: element i is the low nibble of byte i, element i + 16 its high nibble. */
static void dequant_q4_0(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / QK; b++, src += 18, dst += QK) {
        float d = half_at(src);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((src[2 + i] & 15) - 8);
            dst[i + 16] = d * (float)((src[2 + i] >> 4) - 8);
        }
    }
}

static void dequant_q4_1(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / QK; b++, src += 20, dst += QK) {
        float d = half_at(src), m = half_at(src + 2);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)(src[4 + i] & 15) + m;
            dst[i + 16] = d * (float)(src[4 + i] >> 4) + m;
        }
    }
}

/* Fifth bit of element i: bit i of the 32 at `bits`, moved to bit 4. */
static int fifth_bit(const uint8_t *bits, int i) {
    return (bits[i / 8] >> (i % 8) & 1) << 4;
}

static void dequant_q5_0(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / QK; b++, src += 22, dst += QK) {
        float d = half_at(src);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)(((src[6 + i] & 15) | fifth_bit(src + 2, i)) - 16);
            dst[i + 16] = d * (float)((src[6 + i] >> 4 | fifth_bit(src + 2, i + 16)) - 16);
        }
    }
}

static void dequant_q5_1(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / QK; b++, src += 24, dst += QK) {
        float d = half_at(src), m = half_at(src + 2);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((src[8 + i] & 15) | fifth_bit(src + 4, i)) + m;
            dst[i + 16] = d * (float)(src[8 + i] >> 4 | fifth_bit(src + 4, i + 16)) + m;
        }
    }
}

static void dequant_q8_0(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / QK; b++, src += 34, dst += QK) {
        float d = half_at(src);
        for (int i = 0; i < QK; i++)
            dst[i] = (float)(int8_t)src[2 + i] * d;
    }
}

/* Eight 6-bit scales and mins in 12 bytes: bytes 0-3 and 4-7 hold the first four of each, with the top
 * two bits of the last four in their own top bits; bytes 8-11 the low nibbles of the last four. */
static void unpack_scales(const uint8_t *p, float sc[8], float mn[8]) {
    for (int j = 0; j < 4; j++) {
        sc[j] = (float)(p[j] & 63);
        mn[j] = (float)(p[j + 4] & 63);
        sc[j + 4] = (float)((p[j + 8] & 15) | (p[j] >> 6) << 4);
        mn[j + 4] = (float)(p[j + 8] >> 4 | (p[j + 4] >> 6) << 4);
    }
}

/* Super-blocks of 8 groups of 32; groups 2j and 2j+1 are the low and high nibbles of the j-th 32 bytes. */
static void dequant_q4_k(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / QK_K; b++, src += 144, dst += QK_K) {
        float d = half_at(src), dmin = half_at(src + 2), sc[8], mn[8];
        unpack_scales(src + 4, sc, mn);
        for (int g = 0; g < 8; g++) {
            float scale = d * sc[g], min = dmin * mn[g];
            const uint8_t *q = src + 16 + g / 2 * 32;
            for (int i = 0; i < 32; i++)
                dst[g * 32 + i] = scale * (float)(q[i] >> g % 2 * 4 & 15) - min;
        }
    }
}

/* As Q4_K; bit g of byte i of the 32 high bytes is the fifth bit of element i of group g. */
static void dequant_q5_k(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / QK_K; b++, src += 176, dst += QK_K) {
        float d = half_at(src), dmin = half_at(src + 2), sc[8], mn[8];
        unpack_scales(src + 4, sc, mn);
        const uint8_t *high = src + 16;
        for (int g = 0; g < 8; g++) {
            float scale = d * sc[g], min = dmin * mn[g];
            const uint8_t *q = src + 48 + g / 2 * 32;
            for (int i = 0; i < 32; i++)
                dst[g * 32 + i] = scale * (float)((q[i] >> g % 2 * 4 & 15) | (high[i] >> g & 1) << 4) - min;
        }
    }
}

/* Two halves of 128: element 32k + i of a half has its low nibble in byte 32(k % 2) + i of the half's 64
 * (k / 2 picks the nibble), its high pair at bits 2k of byte i of the half's 32; int8 scale per 16. */
static void dequant_q6_k(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / QK_K; b++, src += 210, dst += QK_K) {
        const uint8_t *scales = src + 192;
        float d = half_at(src + 208);
        for (int half = 0; half < 2; half++)
            for (int k = 0; k < 4; k++)
                for (int i = 0; i < 32; i++) {
                    const uint8_t *low = src + half * 64, *high = src + 128 + half * 32;
                    int q = (low[k % 2 * 32 + i] >> k / 2 * 4 & 15) | (high[i] >> 2 * k & 3) << 4;
                    int at = half * 128 + k * 32 + i;
                    dst[at] = d * (float)(int8_t)scales[at / 16] * (float)(q - 32);
                }
    }
}

typedef void (*dequant_fn)(const uint8_t *src, float *dst, uint64_t n);

static const dequant_fn dequant_of[] = {
    [PS_DTYPE_F32] = dequant_f32,   [PS_DTYPE_F16] = dequant_f16,   [PS_DTYPE_BF16] = dequant_bf16,
    [PS_DTYPE_Q4_0] = dequant_q4_0, [PS_DTYPE_Q4_1] = dequant_q4_1, [PS_DTYPE_Q5_0] = dequant_q5_0,
    [PS_DTYPE_Q5_1] = dequant_q5_1, [PS_DTYPE_Q8_0] = dequant_q8_0, [PS_DTYPE_Q4_K] = dequant_q4_k,
    [PS_DTYPE_Q5_K] = dequant_q5_k, [PS_DTYPE_Q6_K] = dequant_q6_k,
};

bool ps_dtype_computable(ps_dtype type) {
    return (uint32_t)type < sizeof dequant_of / sizeof dequant_of[0] && dequant_of[type] != NULL;
}

void ps_dequantize_row(ps_dtype type, const void *src, float *dst, uint64_t n) {
    assert(ps_dtype_computable(type) && n % ps_dtype_find((uint32_t)type)->block_elems == 0);
    dequant_of[type](src, dst, n);
}
