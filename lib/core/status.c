/* Status table and error record. */
#include "core/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/utf8.h"

typedef struct status_row {
    const char *name;
    const char *text;
    int exit_code;
} status_row;

static const status_row status_rows[PS_STATUS_COUNT] = {
#define PS_STATUS_ROW(name, code, text) [PS_##name] = {"" #name, text, code},
    PS_STATUS_LIST(PS_STATUS_ROW)
#undef PS_STATUS_ROW
};

static const status_row *row_of(ps_status status) {
    if ((unsigned)status >= PS_STATUS_COUNT)
        return &status_rows[PS_E_INTERNAL];
    return &status_rows[status];
}

const char *ps_status_name(ps_status status) {
    return row_of(status)->name;
}

const char *ps_status_text(ps_status status) {
    return row_of(status)->text;
}

int ps_status_exit_code(ps_status status) {
    return row_of(status)->exit_code;
}

/* What cannot stand in a line that people read becomes '?', a sequence that was cut at the end of its room too. */
static void clean_line(char *s) {
    for (uint64_t left = strlen(s); left != 0;) {
        uint32_t cp, len = ps_utf8_sequence(s, left, &cp);
        if (len == 0 || !ps_utf8_is_plain(cp))
            memset(s, '?', len ? len : 1);
        s += len ? len : 1;
        left -= len ? len : 1;
    }
}

static void put_text(char *dst, size_t size, const char *src) {
    snprintf(dst, size, "%s", src != NULL ? src : "");
    clean_line(dst);
}

static void begin(ps_error *err, ps_status status, const char *subject, uint64_t offset) {
    memset(err, 0, sizeof *err);
    err->status = status;
    err->offset = offset;
    put_text(err->subject, sizeof err->subject, subject);
}

ps_status ps_error_set(ps_error *err, ps_status status, const char *subject, const char *fmt, ...) {
    if (err == NULL)
        return status;
    begin(err, status, subject, PS_NO_OFFSET);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    clean_line(err->message);
    return status;
}

ps_status ps_error_at(ps_error *err, ps_status status, const char *subject, uint64_t offset, const char *fmt,
                      ...) {
    if (err == NULL)
        return status;
    begin(err, status, subject, offset);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    clean_line(err->message);
    return status;
}

static ps_status status_of_errno(int sys_errno, ps_status fallback) {
    switch (sys_errno) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
        return fallback == PS_E_CANTCREATE ? fallback : PS_E_NOINPUT;
    case EACCES:
    case EPERM:
        return PS_E_PERM;
    case ENOMEM:
        return PS_E_NOMEM;
    default:
        return fallback;
    }
}

ps_status ps_error_errno(ps_error *err, ps_status fallback, const char *subject, int sys_errno,
                         const char *fmt, ...) {
    ps_status status = status_of_errno(sys_errno, fallback);
    if (err == NULL)
        return status;
    begin(err, status, subject, PS_NO_OFFSET);
    err->sys_code = sys_errno;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n < sizeof err->message)
        snprintf(err->message + n, sizeof err->message - (size_t)n, ": %s", strerror(sys_errno));
    clean_line(err->message);
    return status;
}

void ps_error_prefix(ps_error *err, const char *prefix) {
    if (err == NULL || err->status == PS_OK)
        return;
    char old[sizeof err->subject];
    memcpy(old, err->subject, sizeof old);
    char head[sizeof err->subject];
    put_text(head, sizeof head, prefix);
    if (old[0] == '\0') {
        memcpy(err->subject, head, sizeof err->subject);
        return;
    }
    /* Both parts must stay readable when the whole does not fit: the head gives way. */
    size_t tail_len = strlen(old);
    size_t room = sizeof err->subject - 3; /* ": " and NUL */
    size_t head_len = strlen(head);
    if (tail_len > room)
        tail_len = room;
    if (head_len > room - tail_len)
        head_len = room - tail_len;
    memcpy(err->subject, head, head_len);
    memcpy(err->subject + head_len, ": ", 2);
    memcpy(err->subject + head_len + 2, old, tail_len);
    err->subject[head_len + 2 + tail_len] = '\0';
}

char *ps_error_format(const ps_error *err, char *buf, size_t size) {
    char where[64] = "";
    if (err->line != 0)
        snprintf(where, sizeof where, " (line %u, column %u)", err->line, err->column);
    else if (err->offset != PS_NO_OFFSET)
        snprintf(where, sizeof where, " (byte %llu)", (unsigned long long)err->offset);
    snprintf(buf, size, "%s%s%s%s", err->subject, err->subject[0] != '\0' ? ": " : "", err->message, where);
    return buf;
}
