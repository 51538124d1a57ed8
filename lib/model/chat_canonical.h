/* Canonical form of a Jinja template; private to lib/model. */
#ifndef PS_MODEL_CHAT_CANONICAL_H
#define PS_MODEL_CHAT_CANONICAL_H

#include "core/status.h"
#include "model/gguf.h"

enum { PS_CHAT_TEMPLATE_MAX = 1 << 20 };

/* Growing text for templates and renderings; start with {0}. `failed` sticks once memory has run out. */
typedef struct ps_chat_buf {
    char *data; /* from malloc, NUL after the last byte; NULL while empty */
    uint64_t n, cap;
    bool failed;
} ps_chat_buf;
void ps_chat_buf_add(ps_chat_buf *b, const char *p, uint64_t n);

/* The template as {% %} and {{ }} tags only:
 *   - comments dropped; white space outside of tags treated as with trim_blocks and lstrip_blocks, and "-" signs
 *     applied; what text remains becomes {{'text'}}
 *   - inside tags no spaces but one between words; strings in single quotes with escapes resolved (quote and
 *     backslash stay escaped); x['name'] becomes x.name
 *   - {{a}}{{b}} becomes {{a+b}}, 'a'+'b' becomes 'ab'
 * On PS_OK the caller frees out->data. Errors: PS_E_DATA (tag or string without end), PS_E_NOMEM. */
ps_status ps_chat_canonical(ps_str text, ps_chat_buf *out, ps_error *err);

#endif
