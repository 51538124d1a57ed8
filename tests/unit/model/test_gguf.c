/* The GGUF reader on well-formed files: inventory, typed reads, hash, splits. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../gguf_build.h"
#include "model/gguf.h"

static ps_gguf *open_ok(const gguf_build *b) {
    ps_gguf *g = NULL;
    ps_error err;
    char line[600];
    ps_status s = ps_gguf_open_memory(b->data, b->n, "mem.gguf", &g, &err);
    cr_assert_eq(s, PS_OK, "%s", ps_error_format(&err, line, sizeof line));
    return g;
}

static bool same(ps_str s, const char *want) {
    return s.len == strlen(want) && memcmp(s.data, want, s.len) == 0;
}

static void check_sample(uint32_t version) {
    gguf_build b = {0};
    gb_sample(&b, version);
    ps_gguf *g = open_ok(&b);
    cr_assert_eq(g->version, version);
    cr_assert_eq(g->alignment, 32);
    cr_assert_eq(g->n_kv, 10);
    cr_assert_eq(g->n_files, 1);
    cr_assert_eq(g->n_tensors, 3);
    cr_assert_eq(g->data_bytes, 32 + 36 + 24);
    cr_assert(same(g->kv[1].key, "llama.block_count"), "keys are in file order");
    cr_assert(same(g->tensors[2].name, "halfs"));
    const ps_gguf_tensor *q = ps_gguf_find_tensor(g, "quants");
    cr_assert_eq(q, &g->tensors[1]);
    cr_assert_eq(q->type, PS_DTYPE_Q4_0);
    cr_assert_eq(q->n_dims, 2);
    cr_assert_eq(q->dims[0], 32);
    cr_assert_eq(q->dims[1], 2);
    cr_assert_eq(q->dims[2], 1);
    cr_assert_eq(q->dims[3], 1);
    cr_assert_eq(q->bytes, 36);
    cr_assert_eq(q->offset, b.n - 120 + 32);
    cr_assert_eq(ps_gguf_data(g, q)[1], 33 * 7 & 63);
    cr_assert_null(ps_gguf_find_tensor(g, "quant"));
    cr_assert_null(ps_gguf_find_tensor(g, ""));
    ps_gguf_close(g);
    gb_free(&b);
}

Test(gguf, sample_v2) {
    check_sample(2);
}

Test(gguf, sample_v3) {
    check_sample(3);
}

Test(gguf, typed_reads) {
    gguf_build b = {0};
    gb_sample(&b, 3);
    ps_gguf *g = open_ok(&b);
    uint32_t u = 0;
    float f = 0;
    bool yes = false, found = true;
    ps_str s;
    ps_error err;
    cr_assert_eq(ps_gguf_get_u32(g, "llama.block_count", &u, NULL, &err), PS_OK);
    cr_assert_eq(u, 2);
    cr_assert_eq(ps_gguf_get_u32(g, "a.u8", &u, &found, &err), PS_OK);
    cr_assert_eq(u, 200);
    cr_assert(found);
    cr_assert_eq(ps_gguf_get_f32(g, "a.f32", &f, NULL, &err), PS_OK);
    cr_assert_eq(f, 1.5f);
    cr_assert_eq(ps_gguf_get_f32(g, "a.f64", &f, NULL, &err), PS_OK);
    cr_assert_eq(f, 2.5f);
    cr_assert_eq(ps_gguf_get_bool(g, "a.bool", &yes, NULL, &err), PS_OK);
    cr_assert(yes);
    cr_assert_eq(ps_gguf_get_str(g, "general.architecture", &s, NULL, &err), PS_OK);
    cr_assert(same(s, "llama"));
    /* An absent key is fine where `found` is given, and leaves the value alone. */
    u = 9;
    cr_assert_eq(ps_gguf_get_u32(g, "absent", &u, &found, &err), PS_OK);
    cr_assert_not(found);
    cr_assert_eq(u, 9);
    const ps_gguf_kv *kv = ps_gguf_find(g, "a.u16s");
    cr_assert_eq(kv->type, PS_GGUF_ARRAY);
    cr_assert_eq(kv->elem_type, PS_GGUF_U16);
    cr_assert_eq(kv->count, 3);
    cr_assert_eq(ps_gguf_elem_i64(kv, 1), 65535);
    cr_assert_eq(ps_gguf_elem_f64(kv, 2), 3.0);
    cr_assert_eq(ps_gguf_elem_i64(ps_gguf_find(g, "a.i8"), 0), -128);
    cr_assert_eq(ps_gguf_elem_i64(ps_gguf_find(g, "a.i64"), 0), -5);
    ps_str strings[3];
    ps_gguf_strings(ps_gguf_find(g, "a.strings"), strings);
    cr_assert(same(strings[0], "one") && same(strings[1], "") && same(strings[2], "three"));
    ps_gguf_close(g);
    gb_free(&b);
}

/* Every scalar and array type is walked over at its right width: what follows is found. */
Test(gguf, every_value_type) {
    static const size_t width[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    gguf_build b = {0};
    gb_head(&b, 3, 0, 25);
    char key[16];
    for (uint32_t t = 0; t < 13; t++) {
        if (t == 9)
            continue;
        snprintf(key, sizeof key, "s%u", t);
        if (t == 8)
            gb_kv_str(&b, key, "x");
        else
            gb_kv_int(&b, key, t, 1, width[t]);
        snprintf(key, sizeof key, "a%u", t);
        gb_kv_array(&b, key, t, t == 8 ? 2 : 5);
        if (t == 8) {
            gb_str(&b, "p");
            gb_str(&b, "qq");
        } else {
            gb_zeros(&b, 5 * width[t]);
        }
    }
    gb_kv_array(&b, "empty", 8, 0);
    ps_gguf *g = open_ok(&b);
    cr_assert_eq(g->n_kv, 25);
    for (uint32_t t = 0; t < 13; t++) {
        if (t == 9)
            continue;
        snprintf(key, sizeof key, "s%u", t);
        cr_assert_eq(ps_gguf_find(g, key)->type, t);
        snprintf(key, sizeof key, "a%u", t);
        cr_assert_eq(ps_gguf_find(g, key)->elem_type, t);
        cr_assert_eq(ps_gguf_find(g, key)->count, t == 8 ? 2 : 5);
    }
    cr_assert_eq(ps_gguf_find(g, "empty")->count, 0);
    ps_gguf_close(g);
    gb_free(&b);
}

/* R11: every type of the list is sized, MXFP4 (39) and NVFP4 (40) among them. */
Test(gguf, every_tensor_type_is_sized) {
    gguf_build b = {0};
    uint32_t n = 0, ids[64];
    for (uint32_t id = 0; id < 64; id++)
        if (ps_dtype_find(id) != NULL)
            ids[n++] = id;
    gb_head(&b, 3, n, 0);
    uint64_t offset = 0;
    char name[16];
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t dims[3] = {256, 3, 2};
        snprintf(name, sizeof name, "t%u", ids[i]);
        gb_tensor(&b, name, 3, dims, ids[i], offset);
        uint64_t bytes;
        cr_assert(ps_dtype_bytes((ps_dtype)ids[i], 256 * 6, &bytes));
        offset += (bytes + 31) / 32 * 32;
    }
    gb_pad(&b, 32);
    gb_zeros(&b, offset);
    ps_gguf *g = open_ok(&b);
    cr_assert_eq(ps_gguf_find_tensor(g, "t39")->bytes, 1536 / 32 * 17);
    cr_assert_eq(ps_gguf_find_tensor(g, "t40")->bytes, 1536 / 64 * 36);
    cr_assert_eq(ps_gguf_find_tensor(g, "t14")->bytes, 1536 / 256 * 210);
    ps_gguf_close(g);
    gb_free(&b);
}

/* Tensors may come in any order of offsets; a scalar has no dimensions; alignment moves the data. */
Test(gguf, unusual_but_right) {
    gguf_build b = {0};
    gb_head(&b, 3, 3, 1);
    gb_kv_u32(&b, "general.alignment", 64);
    gb_tensor_1d(&b, "late", 4, 0, 128);
    gb_tensor_1d(&b, "early", 4, 0, 0);
    gb_tensor(&b, "scalar", 0, NULL, 0, 64);
    gb_pad(&b, 64);
    size_t data = b.n;
    gb_zeros(&b, 144);
    ps_gguf *g = open_ok(&b);
    cr_assert_eq(g->alignment, 64);
    cr_assert_eq(g->tensors[0].offset, data + 128);
    cr_assert_eq(g->tensors[1].offset, data);
    cr_assert_eq(ps_gguf_find_tensor(g, "scalar")->bytes, 4);
    ps_gguf_close(g);
    gb_free(&b);
    /* A file of metadata alone may end without padding. */
    gb_head(&b, 3, 0, 1);
    gb_kv_str(&b, "general.architecture", "llama");
    g = open_ok(&b);
    cr_assert_eq(g->n_tensors, 0);
    ps_gguf_close(g);
    gb_free(&b);
    gb_head(&b, 2, 0, 0);
    g = open_ok(&b);
    cr_assert_null(ps_gguf_find(g, "x"));
    cr_assert_null(ps_gguf_find_tensor(g, "x"));
    ps_gguf_close(g);
    gb_free(&b);
}

/* The hash sees metadata, tensor table and file size, and does not see weights. */
Test(gguf, hash) {
    gguf_build b = {0};
    gb_sample(&b, 3);
    ps_gguf *g = open_ok(&b), *h;
    b.data[b.n - 1] ^= 1;
    h = open_ok(&b);
    cr_assert_eq(memcmp(g->hash, h->hash, 16), 0, "weights are not part of it");
    ps_gguf_close(h);
    b.data[64] ^= 1; /* a letter of the architecture's name */
    h = open_ok(&b);
    cr_assert_neq(memcmp(g->hash, h->hash, 16), 0, "metadata is");
    ps_gguf_close(h);
    b.data[64] ^= 1;
    gb_zeros(&b, 32);
    h = open_ok(&b);
    cr_assert_neq(memcmp(g->hash, h->hash, 16), 0, "the file size is");
    ps_gguf_close(h);
    ps_gguf_close(g);
    gb_free(&b);
}
