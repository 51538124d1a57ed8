/* UTF-8, one code point at a time. */
#ifndef PS_CORE_UTF8_H
#define PS_CORE_UTF8_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the well-formed sequence at s (Unicode, table 3-7), of which n bytes can be read; 0: there is none. out_cp, its code
 * point, is written where there is one. */
uint32_t ps_utf8_sequence(const char *s, uint64_t n, uint32_t *out_cp);
/* Can it stand in a line that people read: no control character, and nothing that breaks the line or turns its direction. */
bool ps_utf8_is_plain(uint32_t cp);

#ifdef __cplusplus
}
#endif
#endif
