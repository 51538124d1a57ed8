/* Growing text buffer. */
#include "core/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"

struct ps_text {
    char *data;
    size_t size, capacity;
    bool failed;
};

ps_text *ps_text_new(void) {
    return calloc(1, sizeof(ps_text));
}

/* Room for n more bytes and a NUL. */
static bool reserve(ps_text *t, size_t n) {
    if (t->failed)
        return false;
    if (n >= t->capacity - t->size) {
        size_t capacity = t->capacity < 256 ? 256 : t->capacity;
        while (n >= capacity - t->size) {
            if (capacity > SIZE_MAX / 2) {
                t->failed = true;
                return false;
            }
            capacity *= 2;
        }
        char *data = realloc(t->data, capacity);
        if (data == NULL) {
            t->failed = true;
            return false;
        }
        t->data = data;
        t->capacity = capacity;
    }
    return true;
}

void ps_text_put(ps_text *t, const void *bytes, uint64_t n) {
    if (t == NULL || n > SIZE_MAX || !reserve(t, (size_t)n))
        return;
    if (n != 0)
        memcpy(t->data + t->size, bytes, (size_t)n);
    t->size += (size_t)n;
}

void ps_text_printf(ps_text *t, const char *fmt, ...) {
    if (t == NULL || !reserve(t, 128))
        return;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->data + t->size, t->capacity - t->size, fmt, ap);
    va_end(ap);
    if (n < 0) {
        t->failed = true;
        return;
    }
    if ((size_t)n >= t->capacity - t->size) {
        if (!reserve(t, (size_t)n))
            return;
        va_start(ap, fmt);
        vsnprintf(t->data + t->size, t->capacity - t->size, fmt, ap);
        va_end(ap);
    }
    t->size += (size_t)n;
}

void ps_text_put_plain(ps_text *t, const char *s) {
    for (uint64_t left = strlen(s); left != 0;) {
        uint32_t cp = 0, len = ps_utf8_sequence(s, left, &cp);
        if (len == 0)
            ps_text_printf(t, "\\x%02x", (unsigned char)*s);
        else if (ps_utf8_is_plain(cp))
            ps_text_put(t, s, len);
        else
            ps_text_printf(t, cp < 0x80 ? "\\x%02x" : "\\u%04x", (unsigned)cp);
        s += len ? len : 1;
        left -= len ? len : 1;
    }
}

char *ps_format_bytes(double bytes, char buf[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; u + 1 < (int)(sizeof units / sizeof units[0]) && bytes >= 1023.5; u++)
        bytes /= 1024;
    snprintf(buf, 32, "%.*f %s", u == 0 || bytes >= 99.95 ? 0 : bytes < 9.995 ? 2 : 1, bytes, units[u]);
    return buf;
}

char *ps_text_end(ps_text *t, uint64_t *out_size) {
    if (t == NULL)
        return NULL;
    char *data = NULL;
    if (reserve(t, 0)) {
        data = t->data;
        data[t->size] = '\0';
        if (out_size != NULL)
            *out_size = t->size;
    } else {
        free(t->data);
    }
    free(t);
    return data;
}
