/* Look-up in the generated range table, and UTF-8 as pre-tokenizers read it. */
#include "model/unicode_class.h"

#include <stddef.h>

/* First code point in the upper 24 bits, class in the lower 8. */
static const uint32_t ranges[] = {
#define R(first, class) (uint32_t)(first) << 8 | PS_CP_##class,
#include "model/unicode_class_table.h"
#undef R
};

ps_cpclass ps_cp_class(uint32_t cp) {
    if (cp > 0x10FFFF)
        return PS_CP_OTHER;
    size_t lo = 0, hi = sizeof ranges / sizeof ranges[0];
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (ranges[mid] >> 8 <= cp)
            lo = mid;
        else
            hi = mid;
    }
    return (ps_cpclass)(ranges[lo] & 0xFF);
}

uint32_t ps_utf8_decode(const uint8_t *s, uint64_t n, uint32_t *out_len) {
    uint32_t lead = s[0];
    *out_len = 1;
    if (lead < 0x80)
        return lead;
    uint32_t more = lead < 0xC0 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : lead < 0xF8 ? 3 : 0;
    if (more == 0 || more >= n)
        return PS_CP_REPLACEMENT;
    uint32_t cp = lead & (0x3FU >> more);
    for (uint32_t i = 1; i <= more; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return PS_CP_REPLACEMENT;
        cp = cp << 6 | (s[i] & 0x3F);
    }
    if (cp > 0x10FFFF)
        return PS_CP_REPLACEMENT;
    *out_len = more + 1;
    return cp;
}

uint32_t ps_utf8_encode(uint32_t cp, uint8_t out[4]) {
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    uint32_t more = cp < 0x800 ? 1 : cp < 0x10000 ? 2 : 3;
    for (uint32_t i = more; i > 0; i--, cp >>= 6)
        out[i] = (uint8_t)(0x80 | (cp & 0x3F));
    out[0] = (uint8_t)(((0xFF00U >> (more + 1)) & 0xFF) | cp); /* 0xC0, 0xE0, 0xF0 */
    return more + 1;
}
