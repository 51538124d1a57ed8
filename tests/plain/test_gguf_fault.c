/* The GGUF reader when memory runs out or the system refuses, and how much memory it takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../gguf_build.h"
#include "core/file.h"
#include "fault.h"
#include "model/gguf.h"

static unsigned n_wrong;

static void check(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "FAIL: %s\n", what);
        n_wrong++;
    }
}

typedef struct source {
    const char *path;      /* a file, or */
    const gguf_build *mem; /* memory */
} source;

static ps_status open_source(const source *s, ps_gguf **out, ps_error *err) {
    return s->path != NULL ? ps_gguf_open(s->path, out, err)
                           : ps_gguf_open_memory(s->mem->data, s->mem->n, "mem", out, err);
}

static const char *open_and_close(void *ctx, bool injected) {
    ps_gguf *g = NULL;
    ps_error err = {0};
    ps_status status = open_source(ctx, &g, &err);
    if (status == PS_OK) {
        ps_gguf_close(g);
        return injected && ps_fault_hit() ? "opened although a call had failed" : NULL;
    }
    if (!injected)
        return "did not open";
    if (g != NULL)
        return "an object on failure";
    if (status != PS_E_NOMEM && status != PS_E_NOINPUT && status != PS_E_IO && status != PS_E_OS)
        return ps_status_name(status);
    return err.status == status && err.message[0] != '\0' ? NULL : "no message";
}

static void sweep_files(void) {
    char dir[] = "/tmp/ps-fault-XXXXXX", paths[3][64];
    check(mkdtemp(dir) != NULL, "temporary folder");
    for (unsigned i = 0; i < 3; i++) {
        gguf_build b = {0};
        char name[8];
        ps_error err;
        gb_head(&b, 3, 1, 2);
        gb_kv_int(&b, "split.no", 2, i, 2);
        gb_kv_int(&b, "split.count", 2, 3, 2);
        snprintf(name, sizeof name, "t%u", i);
        gb_tensor_1d(&b, name, 8, 0, 0);
        gb_pad(&b, 32);
        gb_zeros(&b, 32);
        snprintf(paths[i], sizeof paths[i], "%s/m-%05u-of-00003.gguf", dir, i + 1);
        check(ps_file_write_atomic(paths[i], b.data, b.n, &err) == PS_OK, "writing a member");
        gb_free(&b);
    }
    source split = {paths[1], NULL};
    uint64_t n_calls;
    n_wrong += ps_fault_sweep("split", open_and_close, &split, &n_calls);
    check(n_calls > 15, "the calls are seen");
    for (unsigned i = 0; i < 3; i++)
        unlink(paths[i]);
    rmdir(dir);
}

/* Tensors against the order of offsets need one more list. */
static void sweep_memory(void) {
    gguf_build b = {0};
    gb_head(&b, 3, 200, 100);
    char name[16];
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "key.%u", i);
        gb_kv_u32(&b, name, i);
    }
    for (unsigned i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "t.%u", i);
        gb_tensor_1d(&b, name, 8, 0, (199 - i) * 32);
    }
    gb_pad(&b, 32);
    gb_zeros(&b, 200 * 32);
    source mem = {NULL, &b};
    n_wrong += ps_fault_sweep("memory", open_and_close, &mem, NULL);
    gb_free(&b);
}

/* Peak heap bytes of opening b, whatever comes of it. */
static uint64_t peak_of(const gguf_build *b, ps_status *status) {
    ps_gguf *g = NULL;
    int64_t before = ps_fault_now().heap_bytes;
    ps_fault_reset_peak();
    *status = ps_gguf_open_memory(b->data, b->n, "mem", &g, NULL);
    uint64_t peak = (uint64_t)(ps_fault_now().peak_bytes - before);
    ps_gguf_close(g);
    return peak;
}

/* Fixed cost: the object and the hash's state. */
enum { FIXED_BYTES = 16384 };

static void memory_is_bounded(void) {
    gguf_build b = {0};
    ps_status status;
    /* 100 bytes that claim 2^60 tensors or keys. */
    for (int keys = 0; keys < 2; keys++) {
        gb_head(&b, 3, keys ? 0 : 1ull << 60, keys ? 1ull << 60 : 0);
        gb_zeros(&b, 76);
        uint64_t peak = peak_of(&b, &status);
        check(status == PS_E_DATA, "2^60 items are refused");
        check(peak <= FIXED_BYTES, "refused before anything is allocated for them");
        gb_free(&b);
    }
    /* A large file whose header claims as many tensors as would just fit and holds one. */
    gb_head(&b, 3, 300000, 1);
    gb_kv_u32(&b, "k", 1);
    gb_tensor_1d(&b, "t", 8, 0, 0);
    gb_zeros(&b, 16 << 20);
    uint64_t peak = peak_of(&b, &status);
    check(status == PS_E_DATA, "the second tensor has no name");
    check(peak <= FIXED_BYTES + 64 * (sizeof(ps_gguf_tensor) + sizeof(ps_gguf_kv)),
          "memory follows what is read");
    gb_free(&b);
    /* The worst ratio: the smallest keys and tensors possible, all well-formed. */
    enum { N = 20000 };
    gb_head(&b, 3, N, N);
    for (unsigned i = 0; i < N; i++) {
        char name[8];
        snprintf(name, sizeof name, "%x", i);
        gb_kv_int(&b, name, 0, 1, 1);
    }
    for (unsigned i = 0; i < N; i++) {
        char name[8];
        snprintf(name, sizeof name, "%x", i);
        gb_tensor(&b, name, 0, NULL, 0, (uint64_t)i * 32);
    }
    uint64_t header = b.n;
    gb_pad(&b, 32);
    gb_zeros(&b, (size_t)N * 32);
    peak = peak_of(&b, &status);
    check(status == PS_OK, "small keys and tensors open");
    printf("peak %llu bytes for a header of %llu\n", (unsigned long long)peak, (unsigned long long)header);
    check(peak <= FIXED_BYTES + 8 * header, "at most 8 bytes of memory per byte of header");
    gb_free(&b);
}

int main(void) {
    sweep_memory();
    sweep_files();
    memory_is_bounded();
    printf("%s\n", n_wrong == 0 ? "ok" : "FAILED");
    return n_wrong == 0 ? 0 : 1;
}
