/* UTF-8: see utf8.h. */
#include "core/utf8.h"

uint32_t ps_utf8_sequence(const char *s, uint64_t n, uint32_t *out_cp) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0)
        return 0;
    uint32_t len = p[0] < 0x80   ? 1
                   : p[0] < 0xc2 ? 0
                   : p[0] < 0xe0 ? 2
                   : p[0] < 0xf0 ? 3
                   : p[0] < 0xf5 ? 4
                                 : 0;
    if (len == 0 || len > n)
        return 0;
    uint32_t cp = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (uint32_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        cp = cp << 6 | (p[i] & 0x3fu);
    }
    if (cp < least[len] || cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        return 0;
    *out_cp = cp;
    return len;
}

bool ps_utf8_is_plain(uint32_t cp) {
    bool control = cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
    bool line_or_direction = cp == 0x61c || cp == 0x200e || cp == 0x200f || (cp >= 0x2028 && cp <= 0x202e) ||
                             (cp >= 0x2066 && cp <= 0x2069);
    return !control && !line_or_direction && cp != 0xfffe && cp != 0xffff;
}
