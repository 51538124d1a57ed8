/* The wrappers of fault.h. */
#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Test state; this file is no library. What is held is counted in any thread, calls fail in the body's only. */
static ps_fault_held held;
static uint64_t calls, fail_at;
static bool fail_onwards, armed, hit, no_tmpfile;

enum fault_call {
#define FAULT_ENUM(call, error) CALL_##call,
    PS_FAULT_CALLS(FAULT_ENUM)
#undef FAULT_ENUM
};

static const int fault_errno[] = {
#define FAULT_ERRNO(call, error) [CALL_##call] = error,
    PS_FAULT_CALLS(FAULT_ERRNO)
#undef FAULT_ERRNO
};

static bool fails(enum fault_call call) {
    if (!armed)
        return false;
    calls++;
    if (fail_at == 0 || (fail_onwards ? calls < fail_at : calls != fail_at))
        return false;
    hit = true;
    errno = fault_errno[call];
    return true;
}

void ps_fault_no_tmpfile(bool refuse) {
    no_tmpfile = refuse;
}

static int64_t add(int64_t *what, int64_t n) {
    return __atomic_add_fetch(what, n, __ATOMIC_RELAXED);
}

static void *counted(void *p) {
    if (p != NULL) {
        add(&held.blocks, 1);
        const int64_t now = add(&held.heap_bytes, (int64_t)malloc_usable_size(p));
        if (now > held.peak_bytes)
            held.peak_bytes = now;
    }
    return p;
}

static void uncounted(void *p) {
    if (p != NULL) {
        add(&held.blocks, -1);
        add(&held.heap_bytes, -(int64_t)malloc_usable_size(p));
    }
}

#define WRAP(ret, call, ...)                                                                                 \
    ret __real_##call(__VA_ARGS__);                                                                          \
    ret __wrap_##call(__VA_ARGS__);                                                                          \
    ret __wrap_##call(__VA_ARGS__)

WRAP(void *, malloc, size_t n) {
    return fails(CALL_malloc) ? NULL : counted(__real_malloc(n));
}
WRAP(void *, calloc, size_t n, size_t size) {
    return fails(CALL_calloc) ? NULL : counted(__real_calloc(n, size));
}
WRAP(void *, realloc, void *p, size_t n) {
    if (fails(CALL_realloc))
        return NULL;
    int64_t old_bytes = p == NULL ? 0 : (int64_t)malloc_usable_size(p);
    void *q = __real_realloc(p, n);
    if (q == NULL && n != 0)
        return NULL;
    add(&held.heap_bytes, -old_bytes);
    add(&held.blocks, p != NULL ? -1 : 0);
    return counted(q);
}
WRAP(char *, strdup, const char *s) {
    return fails(CALL_strdup) ? NULL : counted(__real_strdup(s));
}
WRAP(char *, strndup, const char *s, size_t n) {
    return fails(CALL_strndup) ? NULL : counted(__real_strndup(s, n));
}
WRAP(void *, aligned_alloc, size_t align, size_t n) {
    return fails(CALL_aligned_alloc) ? NULL : counted(__real_aligned_alloc(align, n));
}
WRAP(void, free, void *p) {
    uncounted(p);
    __real_free(p);
}
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0) {
        va_list ap;
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    if (fails(CALL_open))
        return -1;
    if (no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    int fd = __real_open(path, flags, mode);
    add(&held.descriptors, fd >= 0);
    return fd;
}
WRAP(int, mkostemp, char *path, int flags) {
    if (fails(CALL_mkostemp))
        return -1;
    int fd = __real_mkostemp(path, flags);
    add(&held.descriptors, fd >= 0);
    return fd;
}
WRAP(int, close, int fd) {
    int result = __real_close(fd);
    add(&held.descriptors, -(result == 0));
    return result;
}
WRAP(int, fstat, int fd, struct stat *st) {
    return fails(CALL_fstat) ? -1 : __real_fstat(fd, st);
}
WRAP(void *, mmap, void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    if (fails(CALL_mmap))
        return MAP_FAILED;
    void *p = __real_mmap(at, n, prot, flags, fd, offset);
    add(&held.mappings, p != MAP_FAILED);
    return p;
}
WRAP(int, munmap, void *p, size_t n) {
    int result = __real_munmap(p, n);
    add(&held.mappings, -(result == 0));
    return result;
}
WRAP(ssize_t, read, int fd, void *p, size_t n) {
    return fails(CALL_read) ? -1 : __real_read(fd, p, n);
}
WRAP(ssize_t, pread, int fd, void *p, size_t n, off_t offset) {
    return fails(CALL_pread) ? -1 : __real_pread(fd, p, n, offset);
}
WRAP(ssize_t, write, int fd, const void *p, size_t n) {
    return fails(CALL_write) ? -1 : __real_write(fd, p, n);
}
WRAP(int, ftruncate, int fd, off_t n) {
    return fails(CALL_ftruncate) ? -1 : __real_ftruncate(fd, n);
}
WRAP(int, fsync, int fd) {
    return fails(CALL_fsync) ? -1 : __real_fsync(fd);
}
WRAP(int, linkat, int from_dir, const char *from, int to_dir, const char *to, int flags) {
    return fails(CALL_linkat) ? -1 : __real_linkat(from_dir, from, to_dir, to, flags);
}
WRAP(int, rename, const char *from, const char *to) {
    return fails(CALL_rename) ? -1 : __real_rename(from, to);
}

ps_fault_held ps_fault_now(void) {
    return held;
}

void ps_fault_reset_peak(void) {
    held.peak_bytes = held.heap_bytes;
}

void ps_fault_arm(uint64_t n, bool onwards) {
    calls = 0;
    fail_at = n;
    fail_onwards = onwards;
    hit = false;
    armed = true;
}

uint64_t ps_fault_disarm(void) {
    armed = false;
    return calls;
}

bool ps_fault_hit(void) {
    return hit;
}

static unsigned run_once(const char *name, ps_fault_body body, void *ctx, uint64_t n, bool onwards,
                         uint64_t *out_calls) {
    unsigned wrong = 0;
    ps_fault_held before = held;
    ps_fault_arm(n, onwards);
    const char *complaint = body(ctx, n != 0);
    *out_calls = ps_fault_disarm();
    ps_fault_held after = held;
    if (complaint != NULL) {
        fprintf(stderr, "%s: call %llu%s failing: %s\n", name, (unsigned long long)n,
                onwards ? " and on" : "", complaint);
        wrong++;
    }
    if (after.blocks != before.blocks || after.descriptors != before.descriptors ||
        after.mappings != before.mappings) {
        fprintf(stderr, "%s: call %llu%s failing: %lld blocks, %lld descriptors, %lld mappings left behind\n",
                name, (unsigned long long)n, onwards ? " and on" : "",
                (long long)(after.blocks - before.blocks),
                (long long)(after.descriptors - before.descriptors),
                (long long)(after.mappings - before.mappings));
        wrong++;
    }
    return wrong;
}

unsigned ps_fault_sweep(const char *name, ps_fault_body body, void *ctx, uint64_t *out_calls) {
    uint64_t n_calls, unused;
    unsigned wrong = run_once(name, body, ctx, 0, false, &n_calls);
    for (uint64_t n = 1; n <= n_calls; n++) {
        wrong += run_once(name, body, ctx, n, false, &unused);
        wrong += run_once(name, body, ctx, n, true, &unused);
    }
    printf("%s: each of %llu calls made to fail, %u complaints\n", name, (unsigned long long)n_calls, wrong);
    if (out_calls != NULL)
        *out_calls = n_calls;
    return wrong;
}
