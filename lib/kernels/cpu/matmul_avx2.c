/* Matrix products with AVX2, FMA and F16C. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/matmul_int.h"

#define MM_INLINE static inline __attribute__((always_inline))

enum { GROUP = PS_Q8_GROUP };

MM_INLINE __m128i load128(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
MM_INLINE __m256i load256(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
MM_INLINE float half(const uint8_t *p) {
    return _cvtsh_ss(mm_load_u16(p));
}

/* Factors of one block: weight = d * v + m for the values of unpack; types with blocks of 32 use [0], Q4_K
 * and Q5_K one per group, Q6_K d[2g], d[2g + 1] for the halves of group g. */
typedef struct factors {
    float d[16], m[8];
} factors;

MM_INLINE void load_factors(const ps_dtype type, const uint8_t *b, factors *f) {
    if (type == PS_DTYPE_Q6_K) {
        __m256 d = _mm256_set1_ps(half(b + 208));
        __m128i sc = load128(b + 192);
        _mm256_storeu_ps(f->d, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sc))));
        _mm256_storeu_ps(f->d + 8,
                         _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(sc, 8)))));
    } else if (mm_is_super(type)) {
        uint32_t sm[4];
        mm_unpack_k_scales(b + 4, sm);
        __m256 d = _mm256_set1_ps(half(b)), m = _mm256_set1_ps(-half(b + 2));
        __m256i s8 = _mm256_cvtepu8_epi32(_mm_setr_epi32((int)sm[0], (int)sm[1], 0, 0));
        __m256i m8 = _mm256_cvtepu8_epi32(_mm_setr_epi32((int)sm[2], (int)sm[3], 0, 0));
        _mm256_storeu_ps(f->d, _mm256_mul_ps(d, _mm256_cvtepi32_ps(s8)));
        _mm256_storeu_ps(f->m, _mm256_mul_ps(m, _mm256_cvtepi32_ps(m8)));
    } else {
        f->d[0] = half(b);
        f->m[0] = type == PS_DTYPE_Q4_1 || type == PS_DTYPE_Q5_1 ? half(b + 2) : 0.0f;
    }
}

/* Byte i is 16 where bit i of h is set, 0 elsewhere. */
MM_INLINE __m256i fifth_bits(uint32_t h) {
    const __m256i pick = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2,
                                          2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)h), pick), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, bit), _mm256_set1_epi8(16));
}

/* Group g of the block at b as signed bytes, offsets taken off. */
MM_INLINE __m256i unpack(const ps_dtype type, const uint8_t *b, uint32_t g) {
    const __m256i low4 = _mm256_set1_epi8(15);
    if (type == PS_DTYPE_Q8_0)
        return load256(b + 2);
    if (type == PS_DTYPE_Q6_K) {
        __m256i ql = load256(b + g / 4 * 64 + (g & 1) * 32), qh = load256(b + 128 + g / 4 * 32);
        ql = _mm256_srl_epi16(ql, _mm_cvtsi32_si128((int)(2 * (g & 2))));
        qh = _mm256_slli_epi16(_mm256_srl_epi16(qh, _mm_cvtsi32_si128((int)(2 * (g & 3)))), 4);
        __m256i v = _mm256_or_si256(_mm256_and_si256(ql, low4), _mm256_and_si256(qh, _mm256_set1_epi8(48)));
        return _mm256_sub_epi8(v, _mm256_set1_epi8(32));
    }
    if (mm_is_super(type)) {
        __m256i ql = load256(b + (type == PS_DTYPE_Q4_K ? 16 : 48) + g / 2 * 32);
        __m256i v = _mm256_and_si256(_mm256_srl_epi16(ql, _mm_cvtsi32_si128((int)(4 * (g & 1)))), low4);
        if (type == PS_DTYPE_Q5_K) {
            __m256i bit = _mm256_set1_epi8((char)(1u << g));
            __m256i h = _mm256_cmpeq_epi8(_mm256_and_si256(load256(b + 16), bit), bit);
            v = _mm256_or_si256(v, _mm256_and_si256(h, _mm256_set1_epi8(16)));
        }
        return v;
    }
    const uint32_t at = mm_block_bytes(type) - 16;
    __m128i n = load128(b + at);
    __m256i v = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(n, 4), n), low4);
    if (type == PS_DTYPE_Q5_0 || type == PS_DTYPE_Q5_1)
        v = _mm256_or_si256(v, fifth_bits(mm_load_u32(b + at - 4)));
    if (type == PS_DTYPE_Q4_0)
        v = _mm256_sub_epi8(v, _mm256_set1_epi8(8));
    if (type == PS_DTYPE_Q5_0)
        v = _mm256_sub_epi8(v, _mm256_set1_epi8(16));
    return v;
}

/* Ask for what lies `ahead` of n bytes of each row. */
MM_INLINE void fetch(const int NR, const uint8_t *w, uint64_t row_bytes, uint32_t n, uint64_t ahead) {
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++)
        for (uint32_t i = 0; i < n; i += 64)
            mm_ask(w + (uint64_t)r * row_bytes + i, ahead);
}

/* Sum of the lanes, halves first. */
MM_INLINE float fold(__m256 v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* Products of signed bytes, four to a lane: |w| <= 128 and |q| <= 127, so that no pair overflows 16 bits. */
MM_INLINE __m256 dot32(__m256i w, __m256i q) {
    __m256i p = _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(q, w));
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(p, _mm256_set1_epi16(1)));
}

MM_INLINE void q8_tile(const ps_dtype type, const int NR, const int NT, const uint8_t *w, uint64_t row_bytes,
                       uint64_t cols, uint64_t ahead, const uint8_t *x, uint64_t x_bytes, float *out) {
    const uint32_t fetch_blocks = mm_is_super(type) || type == PS_DTYPE_Q8_0 ? 1 : 2; /* a line or more */
    const uint32_t per_block = mm_is_super(type) ? 8 : 1;
    const bool has_min =
        type == PS_DTYPE_Q4_1 || type == PS_DTYPE_Q5_1 || type == PS_DTYPE_Q4_K || type == PS_DTYPE_Q5_K;
    const uint64_t d_at = ps_q8_d_offset(cols), s_at = ps_q8_s_offset(cols);
    uint64_t n_groups = cols / GROUP;
    __m256 acc[4][2];
    float min_acc[4][2] = {{0}};
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 2
        for (int t = 0; t < NT; t++)
            acc[r][t] = _mm256_setzero_ps();
    for (uint64_t g0 = 0; g0 < n_groups; g0 += per_block, w += mm_block_bytes(type)) {
        factors f[4];
        if (ahead && g0 % (fetch_blocks * per_block) == 0)
            fetch(NR, w, row_bytes, fetch_blocks * mm_block_bytes(type), ahead);
#pragma GCC unroll 4
        for (int r = 0; r < NR; r++)
            load_factors(type, w + (uint64_t)r * row_bytes, &f[r]);
        for (uint32_t g = 0; g < per_block; g++) {
#pragma GCC unroll 2
            for (int t = 0; t < NT; t++) {
                const uint8_t *row = x + (uint64_t)t * x_bytes;
                float d = ((const float *)(const void *)(row + d_at))[g0 + g];
                float s = ((const float *)(const void *)(row + s_at))[g0 + g];
                __m256i q = load256(row + (g0 + g) * GROUP);
#pragma GCC unroll 4
                for (int r = 0; r < NR; r++) {
                    __m256i v = unpack(type, w + (uint64_t)r * row_bytes, g);
                    __m256 k = type == PS_DTYPE_Q6_K ? _mm256_set_m128(_mm_set1_ps(f[r].d[2 * g + 1] * d),
                                                                       _mm_set1_ps(f[r].d[2 * g] * d))
                                                     : _mm256_set1_ps(f[r].d[g] * d);
                    acc[r][t] = _mm256_fmadd_ps(dot32(v, q), k, acc[r][t]);
                    if (has_min)
                        min_acc[r][t] += f[r].m[g] * s;
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 2
        for (int t = 0; t < NT; t++)
            out[t * MM_NR + r] = fold(acc[r][t]) + min_acc[r][t];
}

MM_INLINE void dot_q8(const ps_dtype type, const uint8_t *w, uint64_t row_bytes, uint64_t cols, uint32_t nr,
                      uint64_t ahead, const uint8_t *x, uint64_t x_bytes, uint32_t nt, float *out) {
    for (; nt >= 2; nt -= 2, x += 2 * x_bytes, out += 2 * MM_NR, ahead = 0) {
        uint32_t r = 0;
        for (; r + 2 <= nr; r += 2)
            q8_tile(type, 2, 2, w + r * row_bytes, row_bytes, cols, ahead, x, x_bytes, out + r);
        if (r < nr)
            q8_tile(type, 1, 2, w + r * row_bytes, row_bytes, cols, ahead, x, x_bytes, out + r);
    }
    if (nt == 0)
        return;
    if (nr == 4)
        q8_tile(type, 4, 1, w, row_bytes, cols, ahead, x, x_bytes, out);
    else
        for (uint32_t r = 0; r < nr; r++)
            q8_tile(type, 1, 1, w + r * row_bytes, row_bytes, cols, ahead, x, x_bytes, out + r);
}

MM_INLINE void dequant(const ps_dtype type, const uint8_t *w, float *dst, uint64_t n) {
    const uint32_t per_block = mm_is_super(type) ? 8 : 1;
    for (uint64_t g0 = 0; g0 < n / GROUP; g0 += per_block, w += mm_block_bytes(type)) {
        factors f;
        load_factors(type, w, &f);
        for (uint32_t g = 0; g < per_block; g++) {
            int8_t v[GROUP];
            _mm256_storeu_si256((__m256i *)(void *)v, unpack(type, w, g));
            __m256 m = _mm256_set1_ps(type == PS_DTYPE_Q6_K ? 0.0f : f.m[g]);
            for (uint32_t h = 0; h < 4; h++, dst += 8) {
                __m256 d = _mm256_set1_ps(type == PS_DTYPE_Q6_K ? f.d[2 * g + h / 2] : f.d[g]);
                __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)(v + h * 8));
                _mm256_storeu_ps(dst, _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)), d, m));
            }
        }
    }
}

#define DEFINE_QUANT(name)                                                                                   \
    static void dot_q8_##name(const uint8_t *w, uint64_t row_bytes, uint64_t cols, uint32_t nr,              \
                              uint64_t ahead, const uint8_t *x, uint64_t x_bytes, uint32_t nt, float *out) { \
        dot_q8(PS_DTYPE_##name, w, row_bytes, cols, nr, ahead, x, x_bytes, nt, out);                         \
    }                                                                                                        \
    static void dequant_##name(const uint8_t *w, float *dst, uint64_t n) {                                   \
        dequant(PS_DTYPE_##name, w, dst, n);                                                                 \
    }
MM_QUANT_LIST(DEFINE_QUANT)

/* n <= 8 weights at w, the other lanes 0. */
MM_INLINE __m256 load_floats(const ps_dtype type, const uint8_t *w, uint64_t n) {
    uint8_t tail[32] = {0};
    if (n < 8) {
        memcpy(tail, w, n * mm_block_bytes(type));
        w = tail;
    }
    if (type == PS_DTYPE_F16)
        return _mm256_cvtph_ps(load128(w));
    if (type == PS_DTYPE_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(w)), 16));
    return _mm256_castsi256_ps(load256(w));
}

MM_INLINE void float_step(const ps_dtype type, const int NR, const int NT, const uint8_t *w,
                          uint64_t row_bytes, const uint8_t *x, uint64_t x_bytes, uint64_t n,
                          __m256 acc[4][3]) {
    __m256 xv[3];
#pragma GCC unroll 3
    for (int t = 0; t < NT; t++)
        xv[t] = load_floats(PS_DTYPE_F32, x + (uint64_t)t * x_bytes, n);
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++) {
        __m256 wv = load_floats(type, w + (uint64_t)r * row_bytes, n);
#pragma GCC unroll 3
        for (int t = 0; t < NT; t++)
            acc[r][t] = _mm256_fmadd_ps(wv, xv[t], acc[r][t]);
    }
}

/* 4 rows by 3 tokens fill the sixteen registers. */
MM_INLINE void float_tile(const ps_dtype type, const int NR, const int NT, const uint8_t *w,
                          uint64_t row_bytes, uint64_t cols, uint64_t ahead, const uint8_t *x,
                          uint64_t x_bytes, float *out) {
    const uint32_t bytes = mm_block_bytes(type);
    __m256 acc[4][3];
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 3
        for (int t = 0; t < NT; t++)
            acc[r][t] = _mm256_setzero_ps();
    uint64_t i = 0;
    for (; i + 8 <= cols; i += 8) {
        if (ahead && i * bytes % 64 == 0)
            fetch(NR, w + i * bytes, row_bytes, 64, ahead);
        float_step(type, NR, NT, w + i * bytes, row_bytes, x + i * 4, x_bytes, 8, acc);
    }
    if (i < cols)
        float_step(type, NR, NT, w + i * bytes, row_bytes, x + i * 4, x_bytes, cols - i, acc);
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 3
        for (int t = 0; t < NT; t++)
            out[t * MM_NR + r] = fold(acc[r][t]);
}

MM_INLINE void float_rows(const ps_dtype type, const int NT, const uint8_t *w, uint64_t row_bytes,
                          uint64_t cols, uint32_t nr, uint64_t ahead, const uint8_t *x, uint64_t x_bytes,
                          float *out) {
    if (nr == 4)
        float_tile(type, 4, NT, w, row_bytes, cols, ahead, x, x_bytes, out);
    else
        for (uint32_t r = 0; r < nr; r++)
            float_tile(type, 1, NT, w + r * row_bytes, row_bytes, cols, ahead, x, x_bytes, out + r);
}

MM_INLINE void dot_float(const ps_dtype type, const uint8_t *w, uint64_t row_bytes, uint64_t cols,
                         uint32_t nr, uint64_t ahead, const uint8_t *x, uint64_t x_bytes, uint32_t nt,
                         float *out) {
    for (; nt >= 3; nt -= 3, x += 3 * x_bytes, out += 3 * MM_NR, ahead = 0)
        float_rows(type, 3, w, row_bytes, cols, nr, ahead, x, x_bytes, out);
    for (; nt > 0; nt--, x += x_bytes, out += MM_NR, ahead = 0)
        float_rows(type, 1, w, row_bytes, cols, nr, ahead, x, x_bytes, out);
}

#define DEFINE_FLOAT(name)                                                                                   \
    static void dot_float_##name(const uint8_t *w, uint64_t row_bytes, uint64_t cols, uint32_t nr,           \
                                 uint64_t ahead, const uint8_t *x, uint64_t x_bytes, uint32_t nt,            \
                                 float *out) {                                                               \
        dot_float(PS_DTYPE_##name, w, row_bytes, cols, nr, ahead, x, x_bytes, nt, out);                      \
    }                                                                                                        \
    static void dequant_##name(const uint8_t *w, float *dst, uint64_t n) {                                   \
        for (uint64_t i = 0; i < n; i += 8) {                                                                \
            float v[8];                                                                                      \
            uint64_t k = n - i < 8 ? n - i : 8;                                                              \
            _mm256_storeu_ps(v, load_floats(PS_DTYPE_##name, w + i * mm_block_bytes(PS_DTYPE_##name), k));   \
            memcpy(dst + i, v, k * sizeof *v);                                                               \
        }                                                                                                    \
    }
MM_FLOAT_LIST(DEFINE_FLOAT)

/* Panels: 16 rows by 6 tokens, sums in 12 registers. */
enum { TILE_ROWS = 16, TILE_TOKENS = 6 };

MM_INLINE void panel_tile(const int NT, const float *panel, uint64_t n, const uint8_t *x, uint64_t x_bytes,
                          float *out) {
    __m256 acc[TILE_TOKENS][2];
#pragma GCC unroll 6
    for (int t = 0; t < NT; t++)
        acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    for (uint64_t i = 0; i < n; i++, panel += TILE_ROWS, x += 4) {
        const __m256 w0 = _mm256_loadu_ps(panel), w1 = _mm256_loadu_ps(panel + 8);
#pragma GCC unroll 6
        for (int t = 0; t < NT; t++) {
            const __m256 v = _mm256_broadcast_ss((const float *)(const void *)(x + (uint64_t)t * x_bytes));
            acc[t][0] = _mm256_fmadd_ps(w0, v, acc[t][0]);
            acc[t][1] = _mm256_fmadd_ps(w1, v, acc[t][1]);
        }
    }
#pragma GCC unroll 6
    for (int t = 0; t < NT; t++) {
        _mm256_storeu_ps(out + t * TILE_ROWS, acc[t][0]);
        _mm256_storeu_ps(out + t * TILE_ROWS + 8, acc[t][1]);
    }
}

static void tile(const float *panel, uint64_t n, const uint8_t *x, uint64_t x_bytes, uint32_t nt,
                 float *out) {
    if (nt == TILE_TOKENS) {
        panel_tile(TILE_TOKENS, panel, n, x, x_bytes, out);
        return;
    }
    for (; nt >= 2; nt -= 2, x += 2 * x_bytes, out += 2 * TILE_ROWS)
        panel_tile(2, panel, n, x, x_bytes, out);
    if (nt > 0)
        panel_tile(1, panel, n, x, x_bytes, out);
}

/* 8 rows of 8 floats to 8 columns of 8. */
MM_INLINE void transpose8(const float *rows, uint64_t ld, __m256 out[8]) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_loadu_ps(rows + (uint64_t)i * ld);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
        out[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
    }
}

static void turn(const float *rows, uint64_t ld, uint64_t n, float *panel) {
    for (uint64_t c = 0; c < n; c += 8)
        for (uint64_t r = 0; r < TILE_ROWS; r += 8) {
            __m256 cols[8];
            transpose8(rows + r * ld + c, ld, cols);
            for (uint64_t i = 0; i < 8 && c + i < n; i++)
                _mm256_storeu_ps(panel + (c + i) * TILE_ROWS + r, cols[i]);
        }
}

const mm_ops ps_mm_ops_avx2 = {
    .tile_rows = TILE_ROWS,
    .tile_tokens = TILE_TOKENS,
    .tile = tile,
    .turn = turn,
#define ROW(name) [PS_DTYPE_##name] = dot_q8_##name,
    .dot_q8 = {MM_QUANT_LIST(ROW)},
#undef ROW
#define ROW(name) [PS_DTYPE_##name] = dot_float_##name,
    .dot_float = {MM_FLOAT_LIST(ROW)},
#undef ROW
#define ROW(name) [PS_DTYPE_##name] = dequant_##name,
    .dequant = {MM_QUANT_LIST(ROW) MM_FLOAT_LIST(ROW)},
#undef ROW
};
#else
typedef int ps_mm_no_avx2;
#endif
