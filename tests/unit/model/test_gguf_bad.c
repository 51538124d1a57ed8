/* Malformed GGUF files: each is one error that names the key or tensor. The list is requirement R11. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "../../gguf_build.h"
#include "model/gguf.h"

/* Opens an exact-size copy, so that a sanitizer sees a read past the end; frees b. */
static void refused(gguf_build *b, ps_status want, const char *part) {
    ps_gguf *g = NULL;
    ps_error err;
    char line[600] = "";
    uint8_t *copy = malloc(b->n == 0 ? 1 : b->n);
    if (b->n != 0)
        memcpy(copy, b->data, b->n);
    ps_status s = ps_gguf_open_memory(copy, b->n, "mem.gguf", &g, &err);
    if (s != PS_OK)
        ps_error_format(&err, line, sizeof line);
    cr_assert_eq(s, want, "got %s: %s", ps_status_name(s), line);
    cr_assert_not_null(strstr(line, part), "'%s' in: %s", part, line);
    cr_assert_eq(strncmp(line, "mem.gguf", 8), 0, "the file is named: %s", line);
    cr_assert_null(strchr(line, '\n'));
    free(copy);
    gb_free(b);
}

Test(gguf_bad, magic_and_version) {
    gguf_build b = {0};
    refused(&b, PS_E_DATA, "the file is empty");
    gb_raw(&b, "GGML", 4);
    gb_zeros(&b, 40);
    refused(&b, PS_E_DATA, "not a GGUF file: it begins with 47 47 4d 4c");
    static const uint32_t versions[] = {0, 1, 4, 99, UINT32_MAX};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        char want[40];
        snprintf(want, sizeof want, "GGUF version %u;", versions[i]);
        gb_head(&b, versions[i], 0, 0);
        refused(&b, PS_E_UNSUPPORTED, want);
    }
}

Test(gguf_bad, big_endian) {
    gguf_build b = {0};
    gb_head(&b, 0x03000000, 0, 0);
    refused(&b, PS_E_UNSUPPORTED, "big-endian");
    gb_head(&b, 0x02000000, 1ull << 56, 1ull << 56);
    refused(&b, PS_E_UNSUPPORTED, "big-endian");
}

Test(gguf_bad, counts_beyond_the_file) {
    gguf_build b = {0};
    gb_head(&b, 3, 1ull << 60, 0);
    gb_zeros(&b, 76);
    refused(&b, PS_E_DATA, "1152921504606846976 tensors do not fit");
    gb_head(&b, 3, 0, UINT64_MAX);
    gb_zeros(&b, 76);
    refused(&b, PS_E_DATA, "18446744073709551615 keys do not fit");
    gb_head(&b, 3, 0, 1);
    gb_kv_array(&b, "tokens", 8, 1ull << 60);
    refused(&b, PS_E_DATA, "tokens: the file ends inside the value");
    gb_head(&b, 3, 0, 1);
    gb_kv_array(&b, "ids", 10, (1ull << 61) + 1); /* times 8 wraps to 8 */
    gb_zeros(&b, 64);
    refused(&b, PS_E_DATA, "ids: the file ends inside the value");
    gb_head(&b, 3, 0, 1);
    gb_u64(&b, UINT64_MAX - 3); /* a key's length that wraps the position */
    gb_zeros(&b, 64);
    refused(&b, PS_E_DATA, "key 0: the file ends inside the key's name");
}

Test(gguf_bad, keys) {
    gguf_build b = {0};
    gb_head(&b, 3, 0, 2);
    gb_kv_u32(&b, "one", 1);
    gb_kv_u32(&b, "", 1);
    refused(&b, PS_E_DATA, "key 1: the key's name is empty");
    gb_head(&b, 3, 0, 3);
    gb_kv_u32(&b, "twin", 1);
    gb_kv_u32(&b, "other", 1);
    gb_kv_str(&b, "twin", "x");
    refused(&b, PS_E_DATA, "twin: the key is there twice");
    gb_head(&b, 3, 0, 1);
    gb_kv_int(&b, "odd", 13, 1, 8);
    refused(&b, PS_E_DATA, "odd: value type 13 is unknown");
    gb_head(&b, 3, 0, 1);
    gb_kv_array(&b, "odd", 200, 1);
    gb_zeros(&b, 8);
    refused(&b, PS_E_DATA, "odd: element type 200 is unknown");
    gb_head(&b, 3, 0, 1);
    gb_kv_array(&b, "nest", 9, 1);
    gb_u32(&b, 4);
    gb_u64(&b, 1);
    gb_u32(&b, 1);
    refused(&b, PS_E_UNSUPPORTED, "nest: is an array of arrays");
    /* A name with line breaks and a NUL stays one line, and is shown whole. */
    gb_head(&b, 3, 0, 1);
    gb_u64(&b, 5);
    gb_raw(&b, "a\n\0\rb", 5);
    gb_u32(&b, 13);
    gb_zeros(&b, 8);
    refused(&b, PS_E_DATA, "a???b: value type 13");
}

Test(gguf_bad, alignment) {
    gguf_build b = {0};
    static const uint32_t bad[] = {0, 3, 48, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gb_head(&b, 3, 0, 1);
        gb_kv_u32(&b, "general.alignment", bad[i]);
        refused(&b, PS_E_DATA, "general.alignment: ");
    }
    gb_head(&b, 3, 0, 1);
    gb_kv_str(&b, "general.alignment", "32");
    refused(&b, PS_E_DATA, "general.alignment: is string where an integer is wanted");
    gb_head(&b, 3, 0, 1);
    gb_kv_array(&b, "general.alignment", 4, 2);
    gb_u64(&b, 32);
    refused(&b, PS_E_DATA, "general.alignment: is an array of 2 u32 where an integer is wanted");
    gb_head(&b, 3, 1, 1);
    gb_kv_u32(&b, "general.alignment", 1u << 31);
    gb_tensor_1d(&b, "t", 8, 0, 0);
    gb_pad(&b, 32);
    gb_zeros(&b, 64);
    refused(&b, PS_E_DATA, "t: its 32 bytes lie past the end");
}

/* One tensor of n_dims dimensions, type and offset, with 64 bytes of data behind it. */
static void one_tensor(gguf_build *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                       uint64_t offset) {
    gb_head(b, 3, 1, 0);
    gb_tensor(b, name, n_dims, dims, type, offset);
    gb_pad(b, 32);
    gb_zeros(b, 64);
}

Test(gguf_bad, tensor_shapes) {
    gguf_build b = {0};
    one_tensor(&b, "z", 2, (const uint64_t[]){8, 0}, 0, 0);
    refused(&b, PS_E_DATA, "z: dimension 1 is zero");
    one_tensor(&b, "z", 1, (const uint64_t[]){0}, 0, 0);
    refused(&b, PS_E_DATA, "z: dimension 0 is zero");
    one_tensor(&b, "five", 5, (const uint64_t[]){1, 1, 1, 1, 1}, 0, 0);
    refused(&b, PS_E_DATA, "five: has 5 dimensions");
    gb_head(&b, 3, 1, 0);
    gb_str(&b, "many");
    gb_u32(&b, UINT32_MAX);
    gb_zeros(&b, 64);
    refused(&b, PS_E_DATA, "many: has 4294967295 dimensions");
    /* 2^32 * 2^32 wraps to 0, 2^33 * (2^31 + ...) wraps to something small. */
    one_tensor(&b, "wrap", 2, (const uint64_t[]){1ull << 32, 1ull << 32}, 0, 0);
    refused(&b, PS_E_DATA, "wrap: the product of its dimensions overflows");
    one_tensor(&b, "wrap", 4, (const uint64_t[]){1ull << 33, 1ull << 31, 3, 5}, 24, 0);
    refused(&b, PS_E_DATA, "wrap: the product of its dimensions overflows");
    one_tensor(&b, "wrap", 1, (const uint64_t[]){1ull << 62}, 0, 0);
    refused(&b, PS_E_DATA, "wrap: its size in bytes overflows");
    one_tensor(&b, "odd", 2, (const uint64_t[]){16, 2}, 2, 0);
    refused(&b, PS_E_DATA, "odd: rows of 16 elements are not whole Q4_0 blocks of 32");
    one_tensor(&b, "", 1, (const uint64_t[]){8}, 0, 0);
    refused(&b, PS_E_DATA, "tensor 0: the tensor's name is empty");
}

Test(gguf_bad, tensor_types_by_number) {
    static const uint32_t ids[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 255, UINT32_MAX};
    gguf_build b = {0};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char want[60];
        snprintf(want, sizeof want, "w: tensor type %u is unknown or removed", ids[i]);
        one_tensor(&b, "w", 1, (const uint64_t[]){256}, ids[i], 0);
        refused(&b, PS_E_UNSUPPORTED, want);
    }
}

Test(gguf_bad, tensor_places) {
    gguf_build b = {0};
    one_tensor(&b, "far", 1, (const uint64_t[]){8}, 0, 64);
    refused(&b, PS_E_DATA, "far: its 32 bytes lie past the end");
    one_tensor(&b, "far", 1, (const uint64_t[]){17}, 0, 0);
    refused(&b, PS_E_DATA, "far: its 68 bytes lie past the end");
    one_tensor(&b, "far", 1, (const uint64_t[]){8}, 0, UINT64_MAX - 31);
    refused(&b, PS_E_DATA, "far: its 32 bytes lie past the end");
    one_tensor(&b, "askew", 1, (const uint64_t[]){8}, 0, 4);
    refused(&b, PS_E_DATA, "askew: data offset 4 is not a multiple of the alignment 32");
    /* Overlapping, in and against the order of offsets, and wholly inside. */
    static const uint64_t at[3][2] = {{0, 32}, {32, 0}, {0, 0}};
    for (int i = 0; i < 3; i++) {
        gb_head(&b, 3, 2, 0);
        gb_tensor_1d(&b, "first", at[i][0] == 0 ? 16 : 8, 0, at[i][0]);
        gb_tensor_1d(&b, "second", at[i][0] == 0 ? 8 : 16, 0, at[i][1]);
        gb_pad(&b, 32);
        gb_zeros(&b, 128);
        refused(&b, PS_E_DATA, "its data overlaps that of ");
    }
    gb_head(&b, 3, 2, 0);
    gb_tensor_1d(&b, "twin", 8, 0, 0);
    gb_tensor_1d(&b, "twin", 8, 0, 32);
    gb_pad(&b, 32);
    gb_zeros(&b, 64);
    refused(&b, PS_E_DATA, "twin: the tensor is there twice");
}

Test(gguf_bad, truncated_at_every_byte) {
    gguf_build b = {0};
    gb_sample(&b, 3);
    for (size_t n = 0; n < b.n; n++) {
        gguf_build cut = {0};
        if (n != 0)
            gb_raw(&cut, b.data, n);
        refused(&cut, PS_E_DATA, "");
    }
    gb_free(&b);
}

/* Any single byte changed: an error or a file that can be read to the end, never a crash. */
Test(gguf_bad, every_byte_changed) {
    gguf_build b = {0};
    gb_sample(&b, 3);
    static const uint8_t changes[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    unsigned opened = 0;
    for (size_t n = 0; n < b.n; n++)
        for (size_t k = 0; k < sizeof changes; k++) {
            uint8_t old = b.data[n];
            b.data[n] = changes[k];
            ps_gguf *g;
            ps_error err;
            if (ps_gguf_open_memory(b.data, b.n, "mem", &g, &err) == PS_OK) {
                opened++;
                for (uint64_t i = 0; i < g->n_tensors; i++)
                    cr_assert(g->tensors[i].offset + g->tensors[i].bytes <= b.n);
                ps_gguf_close(g);
            } else {
                cr_assert(err.message[0] != '\0');
            }
            b.data[n] = old;
        }
    cr_assert_gt(opened, 100);
    gb_free(&b);
}

Test(gguf_bad, getters_name_the_key) {
    gguf_build b = {0};
    gb_sample(&b, 3);
    ps_gguf *g;
    ps_error err;
    uint32_t u = 77;
    float f = 7;
    bool yes = true, found;
    ps_str s = {"keep", 4};
    cr_assert_eq(ps_gguf_open_memory(b.data, b.n, "mem", &g, &err), PS_OK);
    /* X(call, subject, message) */
#define GETTER_CASES(X)                                                                                      \
    X(u32(g, "absent", &u, NULL, &err), "absent", "the key is missing")                                      \
    X(u32(g, "a.i64", &u, &found, &err), "a.i64", "-5 is not between 0 and 4294967295")                      \
    X(u32(g, "a.f32", &u, &found, &err), "a.f32", "is f32 where an integer is wanted")                       \
    X(u32(g, "a.bool", &u, &found, &err), "a.bool", "is bool where an integer is wanted")                    \
    X(u32(g, "a.u16s", &u, &found, &err), "a.u16s", "is an array of 3 u16 where an integer is wanted")       \
    X(u32(g, "general.architecture", &u, &found, &err), "general.architecture",                              \
      "is string where an integer is wanted")                                                                \
    X(f32(g, "a.u8", &f, &found, &err), "a.u8", "is u8 where a floating-point number is wanted")             \
    X(bool(g, "a.u8", &yes, &found, &err), "a.u8", "is u8 where a bool is wanted")                           \
    X(str(g, "a.strings", &s, &found, &err), "a.strings",                                                    \
      "is an array of 3 string where a string is wanted")                                                    \
    X(str(g, "a.u8", &s, NULL, &err), "a.u8", "is u8 where a string is wanted")
#define GETTER_CASE(call, key, text)                                                                         \
    cr_assert_eq(ps_gguf_get_##call, PS_E_DATA);                                                             \
    cr_assert_str_eq(err.subject, "mem: " key);                                                              \
    cr_assert_str_eq(err.message, text);
    GETTER_CASES(GETTER_CASE)
    cr_assert(u == 77 && f == 7 && yes && s.len == 4, "values stay as they were on an error");
    ps_gguf_close(g);
    gb_free(&b);
    gb_head(&b, 3, 0, 2);
    gb_kv_int(&b, "big", 10, 1ull << 32, 8);
    gb_kv_int(&b, "wide", 12, 0x7fe0000000000000ull, 8);
    cr_assert_eq(ps_gguf_open_memory(b.data, b.n, "mem", &g, &err), PS_OK);
    cr_assert_eq(ps_gguf_get_u32(g, "big", &u, NULL, &err), PS_E_DATA);
    cr_assert_eq(ps_gguf_get_f32(g, "wide", &f, NULL, &err), PS_E_DATA);
    ps_gguf_close(g);
    gb_free(&b);
}

Test(gguf_bad, files) {
    ps_gguf *g;
    ps_error err;
    cr_assert_eq(ps_gguf_open("/nonexistent/x.gguf", &g, &err), PS_E_NOINPUT);
    cr_assert_eq(ps_gguf_open("tests", &g, &err), PS_E_NOINPUT);
    cr_assert_eq(ps_gguf_open("/dev/null", &g, &err), PS_E_NOINPUT);
    cr_assert_eq(ps_gguf_open("CMakeLists.txt", &g, &err), PS_E_DATA);
    cr_assert_eq(ps_gguf_open("CMakeLists.txt", &g, NULL), PS_E_DATA, "an error record is optional");
}
