/* Status codes and the error record that every fallible call in Pinstripe fills. */
#ifndef PS_CORE_STATUS_H
#define PS_CORE_STATUS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, exit code of a program that ends with it, one-line meaning).
 * Exit 1 is "ran, and the answer is no"; the others follow sysexits.h. */
#define PS_STATUS_LIST(X)                                                                                    \
    X(OK, 0, "success")                                                                                      \
    X(E_INFEASIBLE, 1, "no plan fits the request")                                                           \
    X(E_MISMATCH, 1, "two things that must agree do not")                                                    \
    X(E_USAGE, 64, "wrong use of a command or call")                                                         \
    X(E_DATA, 65, "malformed input")                                                                         \
    X(E_UNSUPPORTED, 65, "well-formed input that this version cannot run")                                   \
    X(E_NOINPUT, 66, "input missing or unreadable")                                                          \
    X(E_UNAVAILABLE, 69, "a needed thing is not on this machine")                                            \
    X(E_INTERNAL, 70, "a bug in Pinstripe")                                                                  \
    X(E_NOMEM, 71, "out of memory")                                                                          \
    X(E_OS, 71, "the operating system refused")                                                              \
    X(E_CANTCREATE, 73, "cannot create output")                                                              \
    X(E_IO, 74, "I/O error")                                                                                 \
    X(E_PERM, 77, "permission denied")

typedef enum ps_status {
#define PS_STATUS_ENUM(name, code, text) PS_##name,
    PS_STATUS_LIST(PS_STATUS_ENUM)
#undef PS_STATUS_ENUM
        PS_STATUS_COUNT
} ps_status;

#define PS_NO_OFFSET UINT64_MAX

/* What went wrong, where. Plain data, owned by the caller, never allocated.
 * subject: the file, key, tensor, option or call the message is about ("" if none).
 * offset:  byte offset in the subject, or PS_NO_OFFSET.  line, column: 1-based, 0 if none.
 * sys_code: errno or CUDA code, 0 if none. */
typedef struct ps_error {
    ps_status status;
    int sys_code;
    uint32_t line, column;
    uint64_t offset;
    char subject[192];
    char message[320];
} ps_error;

/* Short lower-case name ("ok", "e_data") and meaning of a status. Never NULL. Any thread. */
const char *ps_status_name(ps_status status);
const char *ps_status_text(ps_status status);
/* Exit code that a program ends with. Any thread. */
int ps_status_exit_code(ps_status status);

/* Fill *err (NULL is allowed: nothing is recorded) and return `status`, so that a failure is one
 * statement: `return ps_error_set(err, PS_E_DATA, path, "block count %u is zero", n);`
 * Control characters of untrusted text are replaced by '?', so an error stays one line. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
ps_status
ps_error_set(ps_error *err, ps_status status, const char *subject, const char *fmt, ...);

/* As ps_error_set, with a byte offset into the subject. */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
ps_status
ps_error_at(ps_error *err, ps_status status, const char *subject, uint64_t offset, const char *fmt, ...);

/* As ps_error_set, from errno: the status is chosen from `sys_errno` (ENOENT -> E_NOINPUT, EACCES ->
 * E_PERM, ENOMEM -> E_NOMEM, otherwise `fallback`) and its text is appended. */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
ps_status
ps_error_errno(ps_error *err, ps_status fallback, const char *subject, int sys_errno, const char *fmt, ...);

/* Put a path or name before the subject of an error raised further down ("a.gguf: key x"). */
void ps_error_prefix(ps_error *err, const char *prefix);

/* Format as one line without newline: "subject: message (byte 12)". Returns buf. */
char *ps_error_format(const ps_error *err, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif
