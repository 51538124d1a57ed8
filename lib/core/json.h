/* JSON writer into growing memory. Doubles are written with the fewest digits that read back the same;
 * strings that are not UTF-8 have their bad bytes replaced by U+FFFD. */
#ifndef PS_CORE_JSON_H
#define PS_CORE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_json ps_json;

/* indent: spaces per level, 0 for one line. NULL when out of memory. One thread at a time. */
ps_json *ps_json_new(uint32_t indent);
/* Errors (out of memory) stick: the calls below become no-ops and ps_json_end gives NULL. `key` is NULL
 * inside arrays and at the top. */
void ps_json_object(ps_json *j, const char *key);
void ps_json_array(ps_json *j, const char *key);
void ps_json_close(ps_json *j); /* innermost object or array */
void ps_json_str(ps_json *j, const char *key, const char *s);
void ps_json_strn(ps_json *j, const char *key, const char *s, uint64_t len);
void ps_json_u64(ps_json *j, const char *key, uint64_t v);
void ps_json_i64(ps_json *j, const char *key, int64_t v);
void ps_json_f64(ps_json *j, const char *key, double v); /* not finite: null */
void ps_json_bool(ps_json *j, const char *key, bool v);
void ps_json_null(ps_json *j, const char *key);
/* Text from malloc with a newline at its end (the caller frees it), or NULL when memory ran out. Frees j. */
char *ps_json_end(ps_json *j, uint64_t *out_size);
/* Shortest decimal text of a finite double that reads back the same; buf holds 32. Returns buf. */
char *ps_format_f64(double v, char buf[32]);

#ifdef __cplusplus
}
#endif
#endif
