/* Classes of code points and forgiving UTF-8 decoding, for pre-tokenizers.
 *
 * A table of our own (generated, 8 KB) instead of a library: splits must equal llama.cpp's, which follow
 * Unicode 15.1, while utf8proc and PCRE2 bring whatever version the distribution has; and model/ then
 * stands on libc alone. */
#ifndef PS_MODEL_UNICODE_CLASS_H
#define PS_MODEL_UNICODE_CLASS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* SPACE is the White_Space property; the others are general categories L, N, M, P and S without it;
 * OTHER is everything else (controls, unassigned, invisible separators). */
typedef enum ps_cpclass {
    PS_CP_OTHER,
    PS_CP_LETTER,
    PS_CP_NUMBER,
    PS_CP_MARK,
    PS_CP_PUNCT,
    PS_CP_SYMBOL,
    PS_CP_SPACE
} ps_cpclass;

enum { PS_CP_REPLACEMENT = 0xFFFD };

/* Any value; above U+10FFFF is OTHER. Pure; any thread. */
ps_cpclass ps_cp_class(uint32_t cp);

/* Decode one code point of s[0..n), n > 0, and write the bytes it took. What is not UTF-8 by form gives
 * U+FFFD for one byte; over-long forms and surrogates are decoded as they stand. */
uint32_t ps_utf8_decode(const uint8_t *s, uint64_t n, uint32_t *out_len);
/* Encode cp <= U+10FFFF; returns the bytes written. */
uint32_t ps_utf8_encode(uint32_t cp, uint8_t out[4]);

#ifdef __cplusplus
}
#endif
#endif
