/* Unpacking quantised blocks with AVX-512: 64 weights at a time as unsigned bytes in their natural order,
 * and the factors of up to 16 scales at a time. `type` is a constant at every call, so that the tests
 * of it fold away. Nothing is read beyond the blocks asked for. */
#ifndef PS_KERNELS_CPU_MATMUL_UNPACK512_H
#define PS_KERNELS_CPU_MATMUL_UNPACK512_H

#include <immintrin.h>

#include "kernels/cpu/matmul_int.h"

#define MM_INLINE static inline __attribute__((always_inline))

/* The first n of 16 lanes. */
MM_INLINE __mmask16 mm_mask16(uint64_t n) {
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u);
}

/* Groups of 32 weights whose factors fill one vector: a "chunk". Types with blocks of 32: 16 blocks, of
 * which the last chunk of a row may have fewer; Q4_K, Q5_K, Q6_K: one block, 8 groups. */
MM_INLINE uint32_t mm512_chunk_groups(ps_dtype type) {
    return mm_is_super(type) ? 8 : 16;
}

/* What is taken off the unsigned integers: weight = d * (u - offset), or d * u + m. */
MM_INLINE float mm512_offset(ps_dtype type) {
    return type == PS_DTYPE_Q4_0   ? 8.0f
           : type == PS_DTYPE_Q5_0 ? 16.0f
           : type == PS_DTYPE_Q6_K ? 32.0f
           : type == PS_DTYPE_Q8_0 ? 128.0f
                                   : 0.0f;
}

/* Where vectors take several blocks of 32 and a row ends before: byte offset of block i when n are left. The
 * last one stands in for those that are missing; their factors are 0. */
MM_INLINE uint32_t mm512_block_at(ps_dtype type, uint32_t i, uint32_t n) {
    return (i < n ? i : n - 1) * mm_block_bytes(type);
}

/* Factors of the chunk at b with n groups: weight = d * u + m, one lane per group of 32; Q6_K: one lane
 * per 16 weights. Lanes past the chunk are 0. */
MM_INLINE void mm512_factors(ps_dtype type, const uint8_t *b, uint32_t n, __m512 *d, __m512 *m) {
    if (type == PS_DTYPE_Q6_K) {
        __m512 sc = _mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(b + 192))));
        *d = _mm512_mul_ps(sc, _mm512_set1_ps(_cvtsh_ss(mm_load_u16(b + 208))));
        *m = _mm512_mul_ps(*d, _mm512_set1_ps(-32.0f));
    } else if (mm_is_super(type)) {
        uint32_t sm[4];
        mm_unpack_k_scales(b + 4, sm);
        __m128i bytes = _mm_setr_epi32((int)sm[0], (int)sm[1], (int)sm[2], (int)sm[3]);
        __m128 dd = _mm_cvtph_ps(_mm_cvtsi32_si128((int)mm_load_u32(b))); /* d, dmin */
        __m512 f = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                         _mm512_castps128_ps512(dd));
        f = _mm512_mul_ps(f, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)));
        *d = _mm512_maskz_mov_ps(0x00ff, f);
        __m512 zero = _mm512_setzero_ps();
        *m = _mm512_sub_ps(zero, _mm512_maskz_shuffle_f32x4(0x00ff, f, f, 0x4e));
    } else {
        const int bytes = (int)mm_block_bytes(type);
        __mmask16 k = mm_mask16(n);
        __m512i idx =
            _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                               _mm512_set1_epi32(bytes));
        __m512i g = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), k, idx, b, 1);
        if (type == PS_DTYPE_Q4_1 || type == PS_DTYPE_Q5_1) {
            g = _mm512_permutexvar_epi16(_mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5,
                                                          3, 1, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8,
                                                          6, 4, 2, 0),
                                         g);
            *d = _mm512_cvtph_ps(_mm512_castsi512_si256(g));
            *m = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(g, 1));
            return;
        }
        *d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(g));
        *m = _mm512_mul_ps(*d, _mm512_set1_ps(-mm512_offset(type)));
    }
}

MM_INLINE __m128i mm_load128(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
MM_INLINE __m256i mm_load256(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* Groups 2 * pair and 2 * pair + 1 of the block of 256 at b, or the block of 32 at b and the one `second` bytes
 * behind it. */
MM_INLINE __m512i mm512_unpack(ps_dtype type, const uint8_t *b, uint32_t pair, uint32_t second) {
    const __m512i low4 = _mm512_set1_epi8(15);
    if (mm_is_super(type)) {
        if (type == PS_DTYPE_Q6_K) {
            __m512i ql = _mm512_loadu_si512(b + pair / 2 * 64);
            __m512i qh = _mm512_broadcast_i64x4(mm_load256(b + 128 + pair / 2 * 32));
            if (pair & 1) {
                ql = _mm512_srli_epi16(ql, 4);
                qh = _mm512_srlv_epi64(qh, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
            } else {
                qh = _mm512_sllv_epi64(qh, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
            }
            /* (ql & 15) | (qh & 48) */
            return _mm512_or_si512(_mm512_and_si512(ql, low4), _mm512_and_si512(qh, _mm512_set1_epi8(48)));
        }
        const uint8_t *ql = b + (type == PS_DTYPE_Q4_K ? 16 : 48) + pair * 32;
        __m512i v = _mm512_broadcast_i64x4(mm_load256(ql));
        v = _mm512_srlv_epi64(v, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4));
        v = _mm512_and_si512(v, low4);
        if (type == PS_DTYPE_Q5_K) {
            __m512i bit = _mm512_inserti64x4(_mm512_set1_epi8((char)(1 << 2 * pair)),
                                             _mm256_set1_epi8((char)(2 << 2 * pair)), 1);
            __mmask64 h = _mm512_test_epi8_mask(_mm512_broadcast_i64x4(mm_load256(b + 16)), bit);
            v = _mm512_mask_add_epi8(v, h, v, _mm512_set1_epi8(16));
        }
        return v;
    }
    const uint32_t bytes = mm_block_bytes(type);
    const uint8_t *p = b, *q = b + second;
    if (type == PS_DTYPE_Q8_0) {
        __m512i v = _mm512_inserti64x4(_mm512_castsi256_si512(mm_load256(p + 2)), mm_load256(q + 2), 1);
        return _mm512_xor_si512(v, _mm512_set1_epi8((char)-128));
    }
    const uint32_t at = bytes - 16; /* the nibbles are last */
    __m256i two = _mm256_inserti128_si256(_mm256_castsi128_si256(mm_load128(p + at)), mm_load128(q + at), 1);
    __m512i v =
        _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(two));
    v = _mm512_and_si512(_mm512_srlv_epi64(v, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)), low4);
    if (type == PS_DTYPE_Q5_0 || type == PS_DTYPE_Q5_1) {
        uint64_t h = mm_load_u32(p + at - 4) | (uint64_t)mm_load_u32(q + at - 4) << 32;
        v = _mm512_mask_add_epi8(v, h, v, _mm512_set1_epi8(16));
    }
    return v;
}

/* Types whose block is 16 bytes of nibbles: elements 0-15 low, 16-31 high. Four blocks fill two vectors. */
MM_INLINE bool mm512_is_quad(ps_dtype type) {
    return type == PS_DTYPE_Q4_0 || type == PS_DTYPE_Q4_1 || type == PS_DTYPE_Q5_0 || type == PS_DTYPE_Q5_1;
}

/* Four blocks from b (n left in the row): first halves of all in lo, second halves in hi, 16 bytes a block. */
MM_INLINE void mm512_unpack_quad(ps_dtype type, const uint8_t *b, uint32_t n, __m512i *lo, __m512i *hi) {
    const uint32_t at = mm_block_bytes(type) - 16; /* the nibbles are last */
    const __m512i low4 = _mm512_set1_epi8(15);
    __m512i v = _mm512_castsi128_si512(mm_load128(b + at));
    v = _mm512_inserti32x4(v, mm_load128(b + mm512_block_at(type, 1, n) + at), 1);
    v = _mm512_inserti32x4(v, mm_load128(b + mm512_block_at(type, 2, n) + at), 2);
    v = _mm512_inserti32x4(v, mm_load128(b + mm512_block_at(type, 3, n) + at), 3);
    *lo = _mm512_and_si512(v, low4);
    *hi = _mm512_and_si512(_mm512_srli_epi16(v, 4), low4);
    if (type == PS_DTYPE_Q5_0 || type == PS_DTYPE_Q5_1) {
        uint64_t k_lo = 0, k_hi = 0; /* 16 bits of each block, first halves and second halves */
#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t *h = b + mm512_block_at(type, i, n) + at - 4;
            k_lo |= (uint64_t)mm_load_u16(h) << 16 * i;
            k_hi |= (uint64_t)mm_load_u16(h + 2) << 16 * i;
        }
        *lo = _mm512_mask_add_epi8(*lo, k_lo, *lo, _mm512_set1_epi8(16));
        *hi = _mm512_mask_add_epi8(*hi, k_hi, *hi, _mm512_set1_epi8(16));
    }
}

/* Lane of the factors that each int32 lane of pair 0 takes (a lane holds 4 weights); pair p: + 2p, for
 * Q6_K and quads + 4p. */
MM_INLINE __m512i mm512_factor_lanes(ps_dtype type) {
    return type == PS_DTYPE_Q6_K || mm512_is_quad(type)
               ? _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)
               : _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
}

/* 16 rows of 16 dwords at `src` (row stride in bytes) to 16 dwords of 16 rows at dst. */
MM_INLINE void mm512_transpose(const uint8_t *src, uint64_t stride, uint8_t *dst) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        a[i] = _mm512_loadu_si512(src + (uint64_t)i * stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i lo0 = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88),
                hi0 = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        __m512i lo1 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        __m512i hi1 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
        _mm512_storeu_si512(dst + i * 64, _mm512_shuffle_i32x4(lo0, lo1, 0x88));
        _mm512_storeu_si512(dst + (i + 8) * 64, _mm512_shuffle_i32x4(lo0, lo1, 0xdd));
        _mm512_storeu_si512(dst + (i + 4) * 64, _mm512_shuffle_i32x4(hi0, hi1, 0x88));
        _mm512_storeu_si512(dst + (i + 12) * 64, _mm512_shuffle_i32x4(hi0, hi1, 0xdd));
    }
}

#endif
