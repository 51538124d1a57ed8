/* Brings a Jinja template to canonical form, so that formats can be told apart by their expressions. */
#include "model/chat_canonical.h"

#include <stdlib.h>
#include <string.h>

static const char subject[] = "tokenizer.chat_template";

void ps_chat_buf_add(ps_chat_buf *b, const char *p, uint64_t n) {
    if (b->failed)
        return;
    if (n >= b->cap - b->n) { /* room for the NUL, too */
        uint64_t cap = (b->cap + n + 64) * 2;
        char *data = realloc(b->data, cap);
        if (data == NULL) {
            b->failed = true;
            return;
        }
        b->data = data;
        b->cap = cap;
    }
    if (n != 0)
        memcpy(b->data + b->n, p, n);
    b->n += n;
    b->data[b->n] = '\0';
}

static bool ends_with(const ps_chat_buf *b, const char *s) {
    size_t n = strlen(s);
    return b->n >= n && memcmp(b->data + b->n - n, s, n) == 0;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static void open_output(ps_chat_buf *b) {
    if (ends_with(b, "}}")) {
        b->n -= 2;
        ps_chat_buf_add(b, "+", 1);
    } else
        ps_chat_buf_add(b, "{{", 2);
}

/* Opening quote of a string, joined with a literal that stands right before it. */
static void open_string(ps_chat_buf *b) {
    if (ends_with(b, "'+") && b->n > 3 && b->data[b->n - 3] != '\\')
        b->n -= 2;
    else
        ps_chat_buf_add(b, "'", 1);
}

static void string_byte(ps_chat_buf *b, char c) {
    if (c == '\'' || c == '\\')
        ps_chat_buf_add(b, "\\", 1);
    ps_chat_buf_add(b, &c, 1);
}

/* x['name'] -> x.name, once the closing bracket has been read. */
static bool fold_index(ps_chat_buf *b) {
    if (!ends_with(b, "'") || b->n < 4)
        return false;
    uint64_t i = b->n - 1;
    while (i > 0 && is_word(b->data[i - 1]))
        i--;
    if (i < 2 || i == b->n - 1 || b->data[i - 1] != '\'' || b->data[i - 2] != '[')
        return false;
    uint64_t len = b->n - 1 - i;
    b->data[i - 2] = '.';
    memmove(b->data + i - 1, b->data + i, len);
    b->n = i - 1 + len;
    b->data[b->n] = '\0';
    return true;
}

/* A string literal from t[at], its opening quote; returns the index after its end, 0 if it has none. */
static uint64_t copy_string(ps_chat_buf *b, ps_str t, uint64_t at) {
    char quote = t.data[at++];
    open_string(b);
    for (; at < t.len && t.data[at] != quote; at++) {
        char c = t.data[at];
        if (c == '\\' && at + 1 < t.len) {
            c = t.data[++at];
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
        }
        string_byte(b, c);
    }
    if (at >= t.len)
        return 0;
    ps_chat_buf_add(b, "'", 1);
    return at + 1;
}

/* Contents of a tag from t[at] to its closing `end` ("}}" or "%}"); returns the index of `end`, 0 if it has
 * none. *out_strip: a "-" stands before the end. */
static uint64_t copy_tag(ps_chat_buf *b, ps_str t, uint64_t at, const char *end, bool *out_strip) {
    bool gap = false;
    while (at + 1 < t.len) {
        char c = t.data[at];
        bool minus = c == '-' && at + 2 < t.len && memcmp(t.data + at + 1, end, 2) == 0;
        if (minus || memcmp(t.data + at, end, 2) == 0) {
            *out_strip = minus;
            return at + minus;
        }
        if (c == '\'' || c == '"') {
            at = copy_string(b, t, at);
            if (at == 0)
                return 0;
            gap = false;
            continue;
        }
        at++;
        if (is_space(c)) {
            gap = true;
            continue;
        }
        if (gap && is_word(c) && b->n > 0 && is_word(b->data[b->n - 1]))
            ps_chat_buf_add(b, " ", 1);
        gap = false;
        if (c != ']' || !fold_index(b))
            ps_chat_buf_add(b, &c, 1);
        if (b->failed)
            return at; /* told by the caller */
    }
    return 0;
}

/* Text between tags. strip_left: the tag before ended with "-"; trim: it was a block, which takes a newline;
 * next: what the following tag starts with, '\0' at the end of the template. */
static void copy_text(ps_chat_buf *b, ps_str s, bool strip_left, bool trim, char next, bool strip_right) {
    bool line_start = b->n == 0;
    while (strip_left && s.len > 0 && is_space(s.data[0]))
        s.data++, s.len--;
    if (!strip_left && trim && s.len > 0 && s.data[0] == '\n') {
        line_start = true;
        s.data++, s.len--;
    }
    while (strip_right && s.len > 0 && is_space(s.data[s.len - 1]))
        s.len--;
    if (next == '%' || next == '#') { /* blanks between a newline and a block */
        uint64_t n = s.len;
        while (n > 0 && (s.data[n - 1] == ' ' || s.data[n - 1] == '\t'))
            n--;
        if ((n > 0 && s.data[n - 1] == '\n') || (n == 0 && line_start))
            s.len = n;
    }
    if (next == '\0' && s.len > 0 && s.data[s.len - 1] == '\n')
        s.len--;
    if (s.len == 0)
        return;
    open_output(b);
    open_string(b);
    for (uint64_t i = 0; i < s.len; i++)
        string_byte(b, s.data[i]);
    ps_chat_buf_add(b, "'}}", 3);
}

ps_status ps_chat_canonical(ps_str t, ps_chat_buf *out, ps_error *err) {
    bool strip = false, trim = false;
    uint64_t at = 0;
    ps_status st = PS_OK;
    ps_chat_buf_add(out, "", 0);
    while (at <= t.len && !out->failed) {
        uint64_t tag = at;
        while (tag + 1 < t.len && !(t.data[tag] == '{' && (t.data[tag + 1] == '{' || t.data[tag + 1] == '%' ||
                                                           t.data[tag + 1] == '#')))
            tag++;
        bool last = tag + 1 >= t.len;
        if (last)
            tag = t.len;
        char kind = last ? '\0' : t.data[tag + 1];
        bool minus = !last && tag + 2 < t.len && t.data[tag + 2] == '-';
        copy_text(out, (ps_str){t.data + at, tag - at}, strip, trim, kind, minus);
        if (last)
            break;
        uint64_t begin = tag;
        at = tag + 2 + minus;
        const char *end = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
        if (kind == '#') {
            while (at + 1 < t.len && memcmp(t.data + at, end, 2) != 0)
                at++;
            strip = at + 1 < t.len && at > begin + 2 && t.data[at - 1] == '-';
            at = at + 1 < t.len ? at : 0;
        } else {
            if (kind == '{')
                open_output(out);
            else
                ps_chat_buf_add(out, "{%", 2);
            at = copy_tag(out, t, at, end, &strip);
            ps_chat_buf_add(out, end, 2);
        }
        if (at == 0 && !out->failed) {
            st = ps_error_at(err, PS_E_DATA, subject, begin, "a tag or string has no end");
            break;
        }
        at += 2;
        trim = kind != '{';
    }
    if (st == PS_OK && out->failed)
        st = ps_error_set(err, PS_E_NOMEM, subject, "out of memory");
    if (st != PS_OK) {
        free(out->data);
        *out = (ps_chat_buf){.data = NULL};
    }
    return st;
}
