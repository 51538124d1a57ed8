/* A few float vector operations under one set of names, so that each row operation and the attention
 * kernels are written once and compiled per instruction-set level: the including file's compiler flags
 * decide. Lanes: PS_VW. Not for headers that others include. */
#ifndef PS_KERNELS_CPU_VEC_H
#define PS_KERNELS_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "model/dtype.h"

/* Q8 group of largest magnitude amax: d, and its inverse. Groups below 2^-116 become zeros (127/amax would
 * overflow). NaN and infinity in a group give a d that is NaN or infinite, so they do not vanish: the
 * magnitudes are compared as integers, where NaN is largest. */
static inline float ps_q8_scale(float amax) {
    return amax < 0x1p-116f ? 0.0f : amax / 127.0f;
}
static inline float ps_q8_inverse(float amax) {
    return amax < 0x1p-116f ? 0.0f : 127.0f / amax;
}

/* Names of functions with external linkage get the level at their end: PS_FN(ps_x_run). */
#define PS_CAT2(a, b) a##_##b
#define PS_CAT(a, b) PS_CAT2(a, b)
#define PS_FN(name) PS_CAT(name, PS_VEC_LEVEL)

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include <immintrin.h>
#define PS_VEC_LEVEL avx512
#define PS_VW 16
typedef __m512 vf;

static inline vf vf_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf a) {
    _mm512_storeu_ps(p, a);
}
static inline vf vf_set1(float x) {
    return _mm512_set1_ps(x);
}
static inline vf vf_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
static inline float vf_hsum(vf a) {
    return _mm512_reduce_add_ps(a);
}
static inline float vf_hmax(vf a) {
    return _mm512_reduce_max_ps(a);
}
/* x where lo < j <= hi, otherwise -inf. */
static inline vf vf_keep_between(vf x, vf j, vf lo, vf hi) {
    const __mmask16 m = _mm512_cmp_ps_mask(j, lo, _CMP_GT_OQ) & _mm512_cmp_ps_mask(j, hi, _CMP_LE_OQ);
    return _mm512_mask_blend_ps(m, _mm512_set1_ps(-INFINITY), x);
}
/* a where x > -inf, otherwise b. */
static inline vf vf_if_above_neg_inf(vf x, vf a, vf b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ), b, a);
}
static inline vf vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline void vf_store_f16(uint16_t *p, vf a) {
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline vf vf_exp2_scale(vf p, vf n) {
    return _mm512_scalef_ps(p, n);
}
static inline vf vf_round(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
static inline vf vf_swap_pairs(vf a) {
    return _mm512_permute_ps(a, 0xB1);
}
/* Lane i of the result is the sum of a[i]'s lanes: four rounds that halve the vectors, each adding lanes that
 * lie 1, 2, 4 and 8 apart. */
static inline vf vf_sum_each(vf *a) {
    vf b[8], c[4];
    for (int i = 0; i < 8; i++)
        b[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]),
                             _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        const __m512d x = _mm512_castps_pd(b[2 * i]), y = _mm512_castps_pd(b[2 * i + 1]);
        c[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    /* c[i]: four quarter sums, in 128-bit lanes, of each of vectors 4i to 4i+3. */
    const vf d0 =
        _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xDD));
    const vf d1 =
        _mm512_add_ps(_mm512_shuffle_f32x4(c[2], c[3], 0x88), _mm512_shuffle_f32x4(c[2], c[3], 0xDD));
    return _mm512_add_ps(_mm512_shuffle_f32x4(d0, d1, 0x88), _mm512_shuffle_f32x4(d0, d1, 0xDD));
}
static inline void vf_quantize_group(const float *x, int8_t *q, float *d, float *s) {
    const vf a = vf_load(x), b = vf_load(x + 16);
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const uint32_t bits = (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(
        _mm512_and_si512(_mm512_castps_si512(a), mask), _mm512_and_si512(_mm512_castps_si512(b), mask)));
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    const vf scale = vf_set1(ps_q8_inverse(amax));
    const __m512i qa = _mm512_cvtps_epi32(vf_mul(a, scale)), qb = _mm512_cvtps_epi32(vf_mul(b, scale));
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtsepi32_epi8(qa));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtsepi32_epi8(qb));
    *d = ps_q8_scale(amax);
    *s = *d * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(qa, qb));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define PS_VEC_LEVEL avx2
#define PS_VW 8
typedef __m256 vf;

static inline vf vf_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void vf_store(float *p, vf a) {
    _mm256_storeu_ps(p, a);
}
static inline vf vf_set1(float x) {
    return _mm256_set1_ps(x);
}
static inline vf vf_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
static inline float vf_hsum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float vf_hmax(vf a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
static inline vf vf_keep_between(vf x, vf j, vf lo, vf hi) {
    const vf m = _mm256_and_ps(_mm256_cmp_ps(j, lo, _CMP_GT_OQ), _mm256_cmp_ps(j, hi, _CMP_LE_OQ));
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), x, m);
}
static inline vf vf_if_above_neg_inf(vf x, vf a, vf b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_set1_ps(-INFINITY), _CMP_GT_OQ));
}
static inline vf vf_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline void vf_store_f16(uint16_t *p, vf a) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* p * 2^n in two steps, so that neither factor leaves the range of normal floats: |n| <= 252. */
static inline vf vf_exp2_scale(vf p, vf n) {
    const __m256i k = _mm256_cvtps_epi32(n), h = _mm256_srai_epi32(k, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const vf s0 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(h, bias), 23));
    const vf s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, h), bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(p, s0), s1);
}
static inline vf vf_round(vf a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
static inline vf vf_swap_pairs(vf a) {
    return _mm256_permute_ps(a, 0xB1);
}
/* Lane i of the result is the sum of a[i]'s lanes. */
static inline vf vf_sum_each(vf *a) {
    const vf x = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    const vf y = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
}
static inline __m128i vf_half_max(__m256i a) {
    return _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
static inline void vf_quantize_group(const float *x, int8_t *q, float *d, float *s) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_setzero_si256(), k[4];
    for (int i = 0; i < 4; i++)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(vf_load(x + 8 * i)), mask));
    __m128i h = vf_half_max(m);
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4E));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xB1));
    const int32_t bits = _mm_cvtsi128_si32(h);
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    const vf scale = vf_set1(ps_q8_inverse(amax));
    for (int i = 0; i < 4; i++)
        k[i] = _mm256_cvtps_epi32(vf_mul(vf_load(x + 8 * i), scale));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(k[0], k[1]), _mm256_add_epi32(k[2], k[3]));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4E));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xB1));
    /* Packing works within halves; the permutation puts the eight runs of four in order. */
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(k[0], k[1]), _mm256_packs_epi32(k[2], k[3]));
    _mm256_storeu_si256((__m256i *)(void *)q,
                        _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    *d = ps_q8_scale(amax);
    *s = *d * (float)_mm_cvtsi128_si32(t);
}

#else
#define PS_VEC_LEVEL generic
#define PS_VW 4
/* GCC and Clang lower this to whatever the target has. */
typedef float vf __attribute__((vector_size(16)));
typedef int32_t ps_vi __attribute__((vector_size(16)));

static inline vf vf_load(const float *p) {
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}
static inline void vf_store(float *p, vf a) {
    memcpy(p, &a, sizeof a);
}
static inline vf vf_set1(float x) {
    return (vf){x, x, x, x};
}
static inline vf vf_add(vf a, vf b) {
    return a + b;
}
static inline vf vf_sub(vf a, vf b) {
    return a - b;
}
static inline vf vf_mul(vf a, vf b) {
    return a * b;
}
static inline vf vf_div(vf a, vf b) {
    return a / b;
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return a * b + c;
}
static inline vf vf_pick(ps_vi m, vf a, vf b) {
    ps_vi x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    const ps_vi r = (m & x) | (~m & y);
    memcpy(&a, &r, sizeof a);
    return a;
}
static inline vf vf_max(vf a, vf b) {
    return vf_pick(a > b, a, b);
}
static inline float vf_hsum(vf a) {
    return (a[0] + a[2]) + (a[1] + a[3]);
}
static inline float vf_hmax(vf a) {
    const float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
    return x > y ? x : y;
}
static inline vf vf_keep_between(vf x, vf j, vf lo, vf hi) {
    return vf_pick((j > lo) & (j <= hi), x, vf_set1(-INFINITY));
}
static inline vf vf_if_above_neg_inf(vf x, vf a, vf b) {
    return vf_pick(x > vf_set1(-INFINITY), a, b);
}
static inline vf vf_load_f16(const uint16_t *p) {
    return (vf){ps_f16_to_f32(p[0]), ps_f16_to_f32(p[1]), ps_f16_to_f32(p[2]), ps_f16_to_f32(p[3])};
}
static inline void vf_store_f16(uint16_t *p, vf a) {
    for (int i = 0; i < 4; i++)
        p[i] = ps_f32_to_f16(a[i]);
}
static inline vf vf_exp2_scale(vf p, vf n) {
    const ps_vi k = __builtin_convertvector(n, ps_vi), h = k >> 1;
    const ps_vi e0 = (h + 127) << 23, e1 = (k - h + 127) << 23;
    vf s0, s1;
    memcpy(&s0, &e0, sizeof s0);
    memcpy(&s1, &e1, sizeof s1);
    return p * s0 * s1;
}
/* Round to nearest even by adding and taking away 1.5 * 2^23; |a| < 2^22. */
static inline vf vf_round(vf a) {
    const vf big = vf_set1(12582912.0f);
    return (a + big) - big;
}
static inline vf vf_min(vf a, vf b) {
    return vf_pick(a < b, a, b);
}
static inline vf vf_swap_pairs(vf a) {
    return (vf){a[1], a[0], a[3], a[2]};
}
static inline vf vf_sum_each(vf *a) {
    return (vf){vf_hsum(a[0]), vf_hsum(a[1]), vf_hsum(a[2]), vf_hsum(a[3])};
}
static inline void vf_quantize_group(const float *x, int8_t *q, float *d, float *s) {
    uint32_t most = 0;
    for (int i = 0; i < PS_Q8_GROUP; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    float amax;
    memcpy(&amax, &most, sizeof amax);
    const float scale = ps_q8_inverse(amax);
    int32_t sum = 0;
    for (int i = 0; i < PS_Q8_GROUP; i++) {
        /* |x * scale| is at most 127 and a bit; the large number rounds it to the nearest, ties to even. */
        const float y = x[i] * scale;
        const int32_t k = y == y ? (int32_t)((y + 12582912.0f) - 12582912.0f) : 0;
        q[i] = (int8_t)k;
        sum += k;
    }
    *d = ps_q8_scale(amax);
    *s = *d * (float)sum;
}
#endif

/* e^x within 2 ulp; 0 below about -103, +inf above 88.73 (x = -inf and +inf included); NaN stays NaN, since
 * min and max give their second operand then. x = n ln 2 + r with |r| <= ln(2)/2; e^r by its Taylor series
 * to degree 7, whose remainder is under 6e-9. */
static inline vf vf_exp(vf x) {
    x = vf_min(vf_set1(100.0f), vf_max(vf_set1(-110.0f), x));
    const vf n = vf_round(vf_mul(x, vf_set1(1.44269504088896341f)));
    /* ln 2 in two parts, the first with 9 zero bits at its end. */
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.0f / 5040.0f);
    p = vf_fma(p, r, vf_set1(1.0f / 720.0f));
    p = vf_fma(p, r, vf_set1(1.0f / 120.0f));
    p = vf_fma(p, r, vf_set1(1.0f / 24.0f));
    p = vf_fma(p, r, vf_set1(1.0f / 6.0f));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_exp2_scale(p, n);
}

#endif
