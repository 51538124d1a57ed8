/* Matrix products with AVX-512 and VNNI. */
#if defined(__x86_64__)
#include "kernels/cpu/matmul_unpack512.h"

/* Tiles of at most 4 rows by 4 tokens for integer products and 4 by 4 for floats: every product has its
 * own accumulator register. */
enum { Q8_NT = 4, FLOAT_NT = 4 };

/* Ask for what lies `ahead` of n bytes of each row. */
MM_INLINE void fetch(const int NR, const uint8_t *w, uint64_t row_bytes, uint64_t n, uint64_t ahead) {
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 9
        for (uint64_t i = 0; i < n; i += 64)
            mm_ask(w + (uint64_t)r * row_bytes + i, ahead);
}

/* Sum of the lanes, halves first. */
MM_INLINE __m128 fold128(__m512 v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
MM_INLINE float fold(__m512 v) {
    __m128 a = fold128(v);
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* 64 activations at x as far as they belong to the n groups that are left. */
MM_INLINE __m512i load_q(const uint8_t *x, uint32_t n) {
    return _mm512_maskz_loadu_epi8(n >= 2 ? ~0ull : n == 1 ? 0xffffffffull : 0, x);
}

/* Two groups for NR rows and NT tokens: acc += float(u . q) * factors; n groups are left. */
MM_INLINE void q8_pair(const ps_dtype type, const int NR, const int NT, const uint8_t *b, uint64_t row_bytes,
                       uint32_t pair, uint32_t n, const uint8_t *x, uint64_t x_bytes, __m512i lanes,
                       __m512 p[4][4], __m512 acc[4][4]) {
    __m512i start[4], q[4];
#pragma GCC unroll 4
    for (int t = 0; t < NT; t++, x += x_bytes) {
        q[t] = mm_is_super(type) ? _mm512_loadu_si512(x) : load_q(x, n);
        start[t] = _mm512_setzero_si512();
        /* Q6_K has two scales to a group of 32, so its offset is taken off the integers. */
        if (type == PS_DTYPE_Q6_K)
            start[t] = _mm512_sub_epi32(start[t], _mm512_dpbusd_epi32(start[t], _mm512_set1_epi8(32), q[t]));
    }
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++) {
        __m512i u = mm512_unpack(type, b + (uint64_t)r * row_bytes, pair, mm512_block_at(type, 1, n));
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++) {
            __m512 f = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start[t], u, q[t]));
            acc[r][t] = _mm512_fmadd_ps(f, _mm512_permutexvar_ps(lanes, p[r][t]), acc[r][t]);
        }
    }
}

/* The same for four blocks of nibbles. */
MM_INLINE void q8_quad(const ps_dtype type, const int NR, const int NT, const uint8_t *b, uint64_t row_bytes,
                       uint32_t n, const uint8_t *x, uint64_t x_bytes, __m512i lanes, __m512 p[4][4],
                       __m512 acc[4][4]) {
    __m512i q_lo[4], q_hi[4];
#pragma GCC unroll 4
    for (int t = 0; t < NT; t++, x += x_bytes) {
        __m512i q0 = load_q(x, n), q1 = load_q(x + 64, n >= 2 ? n - 2 : 0);
        q_lo[t] = _mm512_shuffle_i32x4(q0, q1, 0x88);
        q_hi[t] = _mm512_shuffle_i32x4(q0, q1, 0xdd);
    }
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++) {
        __m512i lo, hi;
        mm512_unpack_quad(type, b + (uint64_t)r * row_bytes, n, &lo, &hi);
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++) {
            __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), lo, q_lo[t]);
            s = _mm512_dpbusd_epi32(s, hi, q_hi[t]);
            acc[r][t] =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_permutexvar_ps(lanes, p[r][t]), acc[r][t]);
        }
    }
}

MM_INLINE void q8_blocks(const ps_dtype type, const int NR, const int NT, const uint8_t *b,
                         uint64_t row_bytes, uint32_t n, const uint8_t *x, uint64_t x_bytes, __m512i lanes,
                         __m512 p[4][4], __m512 acc[4][4]) {
    if (mm512_is_quad(type))
        q8_quad(type, NR, NT, b, row_bytes, n, x, x_bytes, lanes, p, acc);
    else
        q8_pair(type, NR, NT, b, row_bytes, 0, n, x, x_bytes, lanes, p, acc);
}

MM_INLINE void q8_tile(const ps_dtype type, const int NR, const int NT, const uint8_t *w, uint64_t row_bytes,
                       uint64_t cols, uint64_t ahead, const uint8_t *x, uint64_t x_bytes, float *out) {
    const uint32_t chunk = mm512_chunk_groups(type);
    const uint64_t chunk_bytes = mm_is_super(type) ? mm_block_bytes(type) : 16u * mm_block_bytes(type);
    const uint64_t d_at = ps_q8_d_offset(cols), s_at = ps_q8_s_offset(cols);
    uint64_t n_groups = cols / PS_Q8_GROUP;
    __m512 acc[4][4], p[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++)
            acc[r][t] = _mm512_setzero_ps();
    for (uint64_t g = 0; g < n_groups; g += chunk, w += chunk_bytes) {
        uint32_t n = n_groups - g < chunk ? (uint32_t)(n_groups - g) : chunk;
        if (ahead && n == chunk)
            fetch(NR, w, row_bytes, chunk_bytes, ahead); /* a constant number of lines */
        else if (ahead)
            fetch(NR, w, row_bytes, n * mm_block_bytes(type), ahead);
        __mmask16 k = mm_mask16(n);
        __m512 xd[4], xs[4];
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++) {
            const uint8_t *row = x + (uint64_t)t * x_bytes;
            xd[t] = _mm512_maskz_loadu_ps(k, row + d_at + g * 4);
            if (type == PS_DTYPE_Q6_K) /* a factor per 16 weights */
                xd[t] = _mm512_permutexvar_ps(
                    _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), xd[t]);
            else
                xs[t] = _mm512_maskz_loadu_ps(k, row + s_at + g * 4);
        }
#pragma GCC unroll 4
        for (int r = 0; r < NR; r++) {
            __m512 d, m;
            mm512_factors(type, w + (uint64_t)r * row_bytes, n, &d, &m);
#pragma GCC unroll 4
            for (int t = 0; t < NT; t++) {
                p[r][t] = _mm512_mul_ps(d, xd[t]);
                if (type != PS_DTYPE_Q6_K)
                    acc[r][t] = _mm512_fmadd_ps(m, xs[t], acc[r][t]);
            }
        }
        __m512i lanes = mm512_factor_lanes(type);
        const __m512i next = _mm512_set1_epi32(type == PS_DTYPE_Q6_K || mm512_is_quad(type) ? 4 : 2);
        const uint8_t *xq = x + g * 32;
        if (mm_is_super(type)) {
#pragma GCC unroll 4
            for (uint32_t i = 0; i < 4; i++) {
                q8_pair(type, NR, NT, w, row_bytes, i, 8 - 2 * i, xq + i * 64, x_bytes, lanes, p, acc);
                lanes = _mm512_add_epi32(lanes, next);
            }
        } else {
            const uint32_t at_once = mm512_is_quad(type) ? 4 : 2;
            const uint8_t *b = w;
            for (uint32_t i = 0; i + at_once <= n; i += at_once) {
                q8_blocks(type, NR, NT, b, row_bytes, at_once, xq, x_bytes, lanes, p, acc);
                lanes = _mm512_add_epi32(lanes, next);
                b += at_once * mm_block_bytes(type);
                xq += at_once * PS_Q8_GROUP;
            }
            if (n % at_once)
                q8_blocks(type, NR, NT, b, row_bytes, n % at_once, xq, x_bytes, lanes, p, acc);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++)
            out[t * MM_NR + r] = fold(acc[r][t]);
}

/* NR rows at a time, the rest one by one: few shapes, so that the file stays cheap to compile. */
MM_INLINE void q8_rows(const ps_dtype type, const int NR, const int NT, const uint8_t *w, uint64_t row_bytes,
                       uint64_t cols, uint32_t nr, uint64_t ahead, const uint8_t *x, uint64_t x_bytes,
                       float *out) {
    for (; nr >= (uint32_t)NR; nr -= (uint32_t)NR, w += (uint64_t)NR * row_bytes, out += NR)
        q8_tile(type, NR, NT, w, row_bytes, cols, ahead, x, x_bytes, out);
    for (; nr > 0; nr--, w += row_bytes, out++)
        q8_tile(type, 1, NT, w, row_bytes, cols, ahead, x, x_bytes, out);
}

MM_INLINE void dot_q8(const ps_dtype type, const uint8_t *w, uint64_t row_bytes, uint64_t cols, uint32_t nr,
                      uint64_t ahead, const uint8_t *x, uint64_t x_bytes, uint32_t nt, float *out) {
    for (; nt >= Q8_NT; nt -= Q8_NT, x += Q8_NT * x_bytes, out += Q8_NT * MM_NR, ahead = 0)
        q8_rows(type, 2, Q8_NT, w, row_bytes, cols, nr, ahead, x, x_bytes, out);
    for (; nt >= 2; nt -= 2, x += 2 * x_bytes, out += 2 * MM_NR, ahead = 0)
        q8_rows(type, 4, 2, w, row_bytes, cols, nr, ahead, x, x_bytes, out);
    if (nt)
        q8_rows(type, 4, 1, w, row_bytes, cols, nr, ahead, x, x_bytes, out);
}

MM_INLINE void dequant(const ps_dtype type, const uint8_t *w, float *dst, uint64_t n) {
    const uint32_t chunk = mm512_chunk_groups(type);
    const uint64_t chunk_bytes = mm_is_super(type) ? mm_block_bytes(type) : 16u * mm_block_bytes(type);
    uint64_t n_groups = n / PS_Q8_GROUP;
    for (uint64_t g = 0; g < n_groups; g += chunk, w += chunk_bytes) {
        uint32_t ng = n_groups - g < chunk ? (uint32_t)(n_groups - g) : chunk;
        __m512 d, m;
        mm512_factors(type, w, ng, &d, &m);
        for (uint32_t i = 0; i < ng; i += 2) {
            const uint8_t *b = mm_is_super(type) ? w : w + i * mm_block_bytes(type);
            uint8_t bytes[64];
            _mm512_storeu_si512(bytes, mm512_unpack(type, b, i / 2, mm512_block_at(type, 1, ng - i)));
            for (uint32_t h = 0; h < (i + 1 < ng ? 4u : 2u); h++, dst += 16) {
                __m512i lane = _mm512_set1_epi32((int)(type == PS_DTYPE_Q6_K ? i * 2 + h : i + h / 2));
                __m512 f = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(mm_load128(bytes + h * 16)));
                _mm512_storeu_ps(
                    dst, _mm512_fmadd_ps(f, _mm512_permutexvar_ps(lane, d), _mm512_permutexvar_ps(lane, m)));
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

/* 16 weights at w; lanes off in k are 0 and not read. */
MM_INLINE __m512 load_floats(const ps_dtype type, const uint8_t *w, __mmask16 k) {
    if (type == PS_DTYPE_F16)
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(k, w));
    if (type == PS_DTYPE_BF16)
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(k, w)), 16));
    return _mm512_maskz_loadu_ps(k, w);
}

MM_INLINE void float_tile(const ps_dtype type, const int NR, const int NT, const uint8_t *w,
                          uint64_t row_bytes, uint64_t cols, uint64_t ahead, const uint8_t *x,
                          uint64_t x_bytes, float *out) {
    const uint32_t bytes = mm_block_bytes(type);
    __m512 acc[4][FLOAT_NT], wv[4];
#pragma GCC unroll 4
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++)
            acc[r][t] = _mm512_setzero_ps();
    for (uint64_t i = 0; i < cols; i += 16) {
        __mmask16 k = mm_mask16(cols - i);
        if (ahead)
            fetch(NR, w + i * bytes, row_bytes, 16 * bytes, ahead);
#pragma GCC unroll 4
        for (int r = 0; r < NR; r++)
            wv[r] = load_floats(type, w + (uint64_t)r * row_bytes + i * bytes, k);
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++) {
            __m512 xv = _mm512_maskz_loadu_ps(k, x + (uint64_t)t * x_bytes + i * 4);
#pragma GCC unroll 4
            for (int r = 0; r < NR; r++)
                acc[r][t] = _mm512_fmadd_ps(wv[r], xv, acc[r][t]);
        }
    }
#pragma GCC unroll 4
    for (int t = 0; t < NT; t++) {
#pragma GCC unroll 4
        for (int r = 0; r < NR; r++)
            out[t * MM_NR + r] = fold(acc[r][t]);
    }
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
    for (; nt >= FLOAT_NT; nt -= FLOAT_NT, x += FLOAT_NT * x_bytes, out += FLOAT_NT * MM_NR, ahead = 0)
        float_rows(type, FLOAT_NT, w, row_bytes, cols, nr, ahead, x, x_bytes, out);
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
        for (uint64_t i = 0; i < n; i += 16) {                                                               \
            __mmask16 k = mm_mask16(n - i);                                                                  \
            _mm512_mask_storeu_ps(dst + i, k,                                                                \
                                  load_floats(PS_DTYPE_##name, w + i * mm_block_bytes(PS_DTYPE_##name), k)); \
        }                                                                                                    \
    }
MM_FLOAT_LIST(DEFINE_FLOAT)

/* Panels: 32 rows by 12 tokens, sums in 24 registers. */
enum { TILE_ROWS = 32, TILE_TOKENS = 12 };

MM_INLINE void panel_tile(const int NT, const float *panel, uint64_t n, const uint8_t *x, uint64_t x_bytes,
                          float *out) {
    __m512 acc[TILE_TOKENS][2];
#pragma GCC unroll 12
    for (int t = 0; t < NT; t++)
        acc[t][0] = acc[t][1] = _mm512_setzero_ps();
    for (uint64_t i = 0; i < n; i++, panel += TILE_ROWS, x += 4) {
        const __m512 w0 = _mm512_loadu_ps(panel), w1 = _mm512_loadu_ps(panel + 16);
#pragma GCC unroll 12
        for (int t = 0; t < NT; t++) {
            const __m512 v = _mm512_set1_ps(*(const float *)(const void *)(x + (uint64_t)t * x_bytes));
            acc[t][0] = _mm512_fmadd_ps(w0, v, acc[t][0]);
            acc[t][1] = _mm512_fmadd_ps(w1, v, acc[t][1]);
        }
    }
#pragma GCC unroll 12
    for (int t = 0; t < NT; t++) {
        _mm512_storeu_ps(out + t * TILE_ROWS, acc[t][0]);
        _mm512_storeu_ps(out + t * TILE_ROWS + 16, acc[t][1]);
    }
}

static void tile(const float *panel, uint64_t n, const uint8_t *x, uint64_t x_bytes, uint32_t nt,
                 float *out) {
    if (nt == TILE_TOKENS) {
        panel_tile(TILE_TOKENS, panel, n, x, x_bytes, out);
        return;
    }
    for (; nt >= 4; nt -= 4, x += 4 * x_bytes, out += 4 * TILE_ROWS)
        panel_tile(4, panel, n, x, x_bytes, out);
    for (; nt > 0; nt--, x += x_bytes, out += TILE_ROWS)
        panel_tile(1, panel, n, x, x_bytes, out);
}

static void turn(const float *rows, uint64_t ld, uint64_t n, float *panel) {
    for (uint64_t c = 0; c < n; c += 16)
        for (uint64_t r = 0; r < TILE_ROWS; r += 16) {
            float square[16][16];
            mm512_transpose((const uint8_t *)(rows + r * ld + c), ld * 4, (uint8_t *)square);
            for (uint64_t i = 0; i < 16 && c + i < n; i++)
                _mm512_storeu_ps(panel + (c + i) * TILE_ROWS + r, _mm512_loadu_ps(square[i]));
        }
}

const mm_ops ps_mm_ops_avx512 = {
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
typedef int ps_mm_no_avx512;
#endif
