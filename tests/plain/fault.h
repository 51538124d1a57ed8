/* Fault injection: makes the n-th allocation or I/O call of the code under test fail, and tells whether
 * anything was left behind.
 *
 * Programs tests/plain/test_*_fault.c are linked with fault.c and with --wrap for every call of
 * PS_FAULT_CALLS, so calls made from our objects (static libraries included) come here. Calls that a shared
 * library makes by itself (libyaml's, or malloc inside getline) are not seen. One thread allocates; others may free. */
#ifndef PS_TESTS_FAULT_H
#define PS_TESTS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* X(call, errno when it fails); the same list is in tests/CMakeLists.txt. free, close and munmap are
 * wrapped as well, only to be counted. */
#define PS_FAULT_CALLS(X)                                                                                    \
    X(malloc, ENOMEM)                                                                                        \
    X(calloc, ENOMEM)                                                                                        \
    X(realloc, ENOMEM)                                                                                       \
    X(strdup, ENOMEM)                                                                                        \
    X(strndup, ENOMEM)                                                                                       \
    X(aligned_alloc, ENOMEM)                                                                                 \
    X(open, EMFILE)                                                                                          \
    X(mkostemp, EACCES)                                                                                      \
    X(fstat, EIO)                                                                                            \
    X(mmap, ENODEV)                                                                                          \
    X(read, EIO)                                                                                             \
    X(pread, EIO)                                                                                            \
    X(write, ENOSPC)                                                                                         \
    X(ftruncate, EFBIG)                                                                                      \
    X(fsync, EIO)                                                                                            \
    X(linkat, EIO)                                                                                           \
    X(rename, EIO)

/* What is held now, and the most heap bytes since ps_fault_reset_peak. */
typedef struct ps_fault_held {
    int64_t blocks, descriptors, mappings;
    int64_t heap_bytes, peak_bytes;
} ps_fault_held;
ps_fault_held ps_fault_now(void);
void ps_fault_reset_peak(void);

/* The n-th wrapped call from now on fails (1 is the next); `onwards`: and every one after it. 0: none. */
void ps_fault_arm(uint64_t n, bool onwards);
/* Stop failing; wrapped calls seen since ps_fault_arm. */
uint64_t ps_fault_disarm(void);
/* Refuse files without a name from now on, as some file systems do; that is no injected failure. */
void ps_fault_no_tmpfile(bool refuse);
/* True if a call was made to fail since ps_fault_arm. */
bool ps_fault_hit(void);

/* Do something, free everything, and return NULL if all is as it should be, otherwise what is wrong.
 * injected: a call may fail this time; otherwise the work must succeed. ps_fault_hit tells whether one did. */
typedef const char *(*ps_fault_body)(void *ctx, bool injected);
/* Runs body once with no failure, then for every call of that run once with that call failing and once with
 * all from it on failing. Prints and counts what is wrong: body's complaints, and anything still held after
 * it. Returns the number of complaints; *out_calls is how many calls were made to fail. */
unsigned ps_fault_sweep(const char *name, ps_fault_body body, void *ctx, uint64_t *out_calls);

#endif
