/* JSON writer. */
#include "core/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "core/utf8.h"

enum { JSON_MAX_DEPTH = 32 };

struct ps_json {
    ps_text *text;
    uint32_t indent, depth;
    bool is_array[JSON_MAX_DEPTH];
    bool has_items[JSON_MAX_DEPTH];
    bool failed; /* nesting error: a bug of the caller, seen as NULL at the end */
};

ps_json *ps_json_new(uint32_t indent) {
    ps_json *j = calloc(1, sizeof *j);
    if (j == NULL)
        return NULL;
    j->indent = indent;
    j->text = ps_text_new();
    if (j->text == NULL) {
        free(j);
        return NULL;
    }
    return j;
}

static void put_string(ps_json *j, const char *s, uint64_t n) {
    const unsigned char *p = (const unsigned char *)s;
    ps_text_put(j->text, "\"", 1);
    while (n != 0) {
        uint32_t cp, len = ps_utf8_sequence((const char *)p, n, &cp);
        if (len == 0) {
            ps_text_put(j->text, "\xef\xbf\xbd", 3);
            len = 1;
        } else if (*p == '"' || *p == '\\') {
            ps_text_printf(j->text, "\\%c", *p);
        } else if (*p < 0x20 || *p == 0x7f) {
            ps_text_printf(j->text, "\\u%04x", *p);
        } else {
            ps_text_put(j->text, p, len);
        }
        p += len;
        n -= len;
    }
    ps_text_put(j->text, "\"", 1);
}

static void new_line(ps_json *j) {
    if (j->indent != 0)
        ps_text_printf(j->text, "\n%*s", (int)(j->indent * j->depth), "");
}

/* Comma, line break and key before a value. */
static void begin_item(ps_json *j, const char *key) {
    if (j->depth == 0)
        return;
    if (j->has_items[j->depth - 1])
        ps_text_put(j->text, ",", 1);
    j->has_items[j->depth - 1] = true;
    new_line(j);
    if (j->is_array[j->depth - 1])
        return;
    if (key == NULL) {
        j->failed = true;
        return;
    }
    put_string(j, key, strlen(key));
    ps_text_put(j->text, ": ", j->indent != 0 ? 2 : 1);
}

static void open_group(ps_json *j, const char *key, bool is_array) {
    if (j == NULL)
        return;
    begin_item(j, key);
    if (j->depth == JSON_MAX_DEPTH) {
        j->failed = true;
        return;
    }
    ps_text_put(j->text, is_array ? "[" : "{", 1);
    j->is_array[j->depth] = is_array;
    j->has_items[j->depth] = false;
    j->depth++;
}

void ps_json_object(ps_json *j, const char *key) {
    open_group(j, key, false);
}

void ps_json_array(ps_json *j, const char *key) {
    open_group(j, key, true);
}

void ps_json_close(ps_json *j) {
    if (j == NULL)
        return;
    if (j->depth == 0) {
        j->failed = true;
        return;
    }
    j->depth--;
    if (j->has_items[j->depth])
        new_line(j);
    ps_text_put(j->text, j->is_array[j->depth] ? "]" : "}", 1);
}

void ps_json_strn(ps_json *j, const char *key, const char *s, uint64_t len) {
    if (j == NULL)
        return;
    begin_item(j, key);
    put_string(j, s, len);
}

void ps_json_str(ps_json *j, const char *key, const char *s) {
    ps_json_strn(j, key, s, strlen(s));
}

void ps_json_u64(ps_json *j, const char *key, uint64_t v) {
    if (j == NULL)
        return;
    begin_item(j, key);
    ps_text_printf(j->text, "%" PRIu64, v);
}

void ps_json_i64(ps_json *j, const char *key, int64_t v) {
    if (j == NULL)
        return;
    begin_item(j, key);
    ps_text_printf(j->text, "%" PRId64, v);
}

void ps_json_f64(ps_json *j, const char *key, double v) {
    if (j == NULL)
        return;
    if (!isfinite(v)) {
        ps_json_null(j, key);
        return;
    }
    char buf[32];
    begin_item(j, key);
    ps_text_printf(j->text, "%s", ps_format_f64(v, buf));
}

void ps_json_bool(ps_json *j, const char *key, bool v) {
    if (j == NULL)
        return;
    begin_item(j, key);
    ps_text_printf(j->text, "%s", v ? "true" : "false");
}

void ps_json_null(ps_json *j, const char *key) {
    if (j == NULL)
        return;
    begin_item(j, key);
    ps_text_printf(j->text, "null");
}

char *ps_json_end(ps_json *j, uint64_t *out_size) {
    if (j == NULL)
        return NULL;
    ps_text_put(j->text, "\n", 1);
    char *data = ps_text_end(j->text, out_size);
    if (j->failed || j->depth != 0) {
        free(data);
        data = NULL;
    }
    free(j);
    return data;
}

char *ps_format_f64(double v, char buf[32]) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, 32, "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    return buf;
}
