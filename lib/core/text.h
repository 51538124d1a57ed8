/* Growing text buffer whose out-of-memory error sticks until the end. */
#ifndef PS_CORE_TEXT_H
#define PS_CORE_TEXT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_text ps_text;

/* NULL when out of memory; every call below takes NULL and does nothing. One thread at a time. */
ps_text *ps_text_new(void);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void ps_text_printf(ps_text *t, const char *fmt, ...);
void ps_text_put(ps_text *t, const void *bytes, uint64_t n);
/* Text from elsewhere, a file name say, in a line that people read: what is not plain (core/utf8.h) as \x1b or \u202e, bytes that
 * are no UTF-8 as \x9b. */
void ps_text_put_plain(ps_text *t, const char *s);
/* "1.50 GiB": a size for people, three digits and the power of 1024 that they are of. Writes at most 32 bytes to buf; returns buf. */
char *ps_format_bytes(double bytes, char buf[32]);
/* Text from malloc with a NUL behind it (the caller frees it), or NULL when memory ran out on the way. out_size may be
 * NULL. Frees t. */
char *ps_text_end(ps_text *t, uint64_t *out_size);

#ifdef __cplusplus
}
#endif
#endif
