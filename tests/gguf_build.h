/* Builds small GGUF files in memory, well-formed or not, for tests. */
#ifndef PS_TESTS_GGUF_BUILD_H
#define PS_TESTS_GGUF_BUILD_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct gguf_build {
    uint8_t *data; /* malloc; freed by gb_free */
    size_t n, capacity;
} gguf_build;

static inline void gb_raw(gguf_build *b, const void *p, size_t n) {
    if (b->n + n > b->capacity) {
        b->capacity = 2 * (b->n + n);
        b->data = (uint8_t *)realloc(b->data, b->capacity);
        if (b->data == NULL)
            abort();
    }
    memcpy(b->data + b->n, p, n);
    b->n += n;
}
static inline void gb_free(gguf_build *b) {
    free(b->data);
    memset(b, 0, sizeof *b);
}
static inline void gb_int(gguf_build *b, uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)(v >> (8 * i));
        gb_raw(b, &byte, 1);
    }
}
static inline void gb_u32(gguf_build *b, uint32_t v) {
    gb_int(b, v, 4);
}
static inline void gb_u64(gguf_build *b, uint64_t v) {
    gb_int(b, v, 8);
}
static inline void gb_str(gguf_build *b, const char *s) {
    gb_u64(b, strlen(s));
    gb_raw(b, s, strlen(s));
}
static inline void gb_head(gguf_build *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv) {
    gb_raw(b, "GGUF", 4);
    gb_u32(b, version);
    gb_u64(b, n_tensors);
    gb_u64(b, n_kv);
}
/* type: a GGUF value type of `bytes` bytes. */
static inline void gb_kv_int(gguf_build *b, const char *key, uint32_t type, uint64_t v, size_t bytes) {
    gb_str(b, key);
    gb_u32(b, type);
    gb_int(b, v, bytes);
}
static inline void gb_kv_u32(gguf_build *b, const char *key, uint32_t v) {
    gb_kv_int(b, key, 4, v, 4);
}
static inline void gb_kv_str(gguf_build *b, const char *key, const char *v) {
    gb_str(b, key);
    gb_u32(b, 8);
    gb_str(b, v);
}
/* Head of an array; its elements follow. */
static inline void gb_kv_array(gguf_build *b, const char *key, uint32_t elem_type, uint64_t count) {
    gb_str(b, key);
    gb_u32(b, 9);
    gb_u32(b, elem_type);
    gb_u64(b, count);
}
static inline void gb_tensor(gguf_build *b, const char *name, uint32_t n_dims, const uint64_t *dims,
                             uint32_t type, uint64_t offset) {
    gb_str(b, name);
    gb_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        gb_u64(b, dims[i]);
    gb_u32(b, type);
    gb_u64(b, offset);
}
static inline void gb_tensor_1d(gguf_build *b, const char *name, uint64_t dim, uint32_t type,
                                uint64_t offset) {
    gb_tensor(b, name, 1, &dim, type, offset);
}
static inline void gb_zeros(gguf_build *b, size_t n) {
    while (n-- != 0)
        gb_raw(b, "", 1);
}
static inline void gb_pad(gguf_build *b, size_t align) {
    gb_zeros(b, (align - b->n % align) % align);
}

/* A small well-formed file: ten keys of several types and three tensors (F32 [8], Q4_0 [32 x 2], F16 [4 x 3]). */
static inline void gb_sample(gguf_build *b, uint32_t version) {
    gb_head(b, version, 3, 10);
    gb_kv_str(b, "general.architecture", "llama");
    gb_kv_u32(b, "llama.block_count", 2);
    gb_kv_int(b, "a.u8", 0, 200, 1);
    gb_kv_int(b, "a.i8", 1, 0x80, 1);
    gb_kv_int(b, "a.bool", 7, 1, 1);
    gb_kv_int(b, "a.f32", 6, 0x3fc00000, 4);
    gb_kv_int(b, "a.f64", 12, 0x4004000000000000ull, 8);
    gb_kv_int(b, "a.i64", 11, (uint64_t)-5, 8);
    gb_kv_array(b, "a.strings", 8, 3);
    gb_str(b, "one");
    gb_str(b, "");
    gb_str(b, "three");
    gb_kv_array(b, "a.u16s", 2, 3);
    gb_int(b, 1, 2);
    gb_int(b, 65535, 2);
    gb_int(b, 3, 2);
    const uint64_t q[2] = {32, 2}, h[2] = {4, 3};
    gb_tensor_1d(b, "norm", 8, 0, 0);
    gb_tensor(b, "quants", 2, q, 2, 32);
    gb_tensor(b, "halfs", 2, h, 1, 96);
    gb_pad(b, 32);
    for (unsigned i = 0; i < 96 + 24; i++) {
        uint8_t byte = (uint8_t)(i * 7 & 63);
        gb_raw(b, &byte, 1);
    }
}

#endif
