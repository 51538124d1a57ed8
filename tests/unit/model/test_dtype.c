/* The type table, half-precision conversions over their whole range, and activation formats. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "model/dtype.h"

Test(dtype, ids_are_known_or_refused) {
    static const uint32_t removed[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 255, UINT32_MAX};
    uint32_t known = 0;
    for (uint32_t id = 0; id < 300; id++) {
        const ps_dtype_info *info = ps_dtype_find(id);
        bool gone = false;
        for (size_t i = 0; i < sizeof removed / sizeof removed[0]; i++)
            gone = gone || removed[i] == id;
        if (info == NULL) {
            cr_assert(gone || id > 43, "id %u", id);
            continue;
        }
        cr_assert(!gone, "id %u", id);
        cr_assert_eq(info->id, id);
        cr_assert_eq(ps_dtype_by_name(info->name), info);
        known++;
    }
    cr_assert_eq(known, 35);
    cr_assert_null(ps_dtype_find(UINT32_MAX));
    cr_assert_null(ps_dtype_by_name("q4_0"));
    cr_assert_eq(ps_dtype_by_name("MXFP4")->id, 39);
    cr_assert_eq(ps_dtype_by_name("NVFP4")->id, 40);
}

Test(dtype, bytes) {
    uint64_t b = 7;
    cr_assert(ps_dtype_bytes(PS_DTYPE_Q4_K, 512, &b));
    cr_assert_eq(b, 288);
    cr_assert(ps_dtype_bytes(PS_DTYPE_NVFP4, 128, &b));
    cr_assert_eq(b, 72);
    cr_assert(ps_dtype_bytes(PS_DTYPE_F32, 0, &b));
    cr_assert_eq(b, 0);
    cr_assert_not(ps_dtype_bytes(PS_DTYPE_Q4_0, 33, &b));
    cr_assert_not(ps_dtype_bytes((ps_dtype)5, 32, &b));
    cr_assert_not(ps_dtype_bytes(PS_DTYPE_NONE, 32, &b));
    cr_assert_not(ps_dtype_bytes(PS_DTYPE_F64, UINT64_MAX / 4, &b));
    cr_assert(ps_dtype_bytes(PS_DTYPE_F64, UINT64_MAX / 8, &b));
}

Test(dtype, computable) {
    static const char *const names[] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",
                                        "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
    unsigned n = 0;
    for (uint32_t id = 0; id < 300; id++)
        n += ps_dtype_computable((ps_dtype)id);
    cr_assert_eq(n, sizeof names / sizeof names[0]);
    for (unsigned i = 0; i < n; i++)
        cr_assert(ps_dtype_computable((ps_dtype)ps_dtype_by_name(names[i])->id), "%s", names[i]);
}

/* Value of a finite half, from its definition. */
static double half_value(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    return h & 0x8000 ? -v : v;
}

Test(dtype, f16_every_value) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = ps_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            cr_assert((h & 0x3ff) != 0 ? isnan(f) : isinf(f), "%04x", h);
            cr_assert_eq(signbit(f) != 0, h >> 15, "%04x", h);
            if ((h & 0x3ff) != 0) {
                cr_assert(isnan(ps_f16_to_f32(ps_f32_to_f16(f))), "%04x", h);
                continue;
            }
        } else {
            cr_assert_eq((double)f, half_value((uint16_t)h), "%04x", h);
            cr_assert_eq(signbit(f) != 0, h >> 15, "%04x", h);
        }
        cr_assert_eq(ps_f32_to_f16(f), h, "%04x", h);
    }
}

/* Between two neighbours everything goes to the nearer one, the middle to the even one. */
Test(dtype, f16_rounds_to_nearest_even) {
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float lo = ps_f16_to_f32((uint16_t)h), hi = ps_f16_to_f32((uint16_t)(h + 1));
        float mid = (float)(((double)lo + (double)hi) / 2);
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        cr_assert_eq(ps_f32_to_f16(mid), even, "%04x", h);
        cr_assert_eq(ps_f32_to_f16(-mid), even | 0x8000, "%04x", h);
        cr_assert_eq(ps_f32_to_f16(nextafterf(mid, lo)), h, "%04x", h);
        cr_assert_eq(ps_f32_to_f16(nextafterf(mid, hi)), h + 1, "%04x", h);
    }
    cr_assert_eq(ps_f32_to_f16(65519.996f), 0x7bff);
    cr_assert_eq(ps_f32_to_f16(65520.0f), 0x7c00);
    cr_assert_eq(ps_f32_to_f16(1e38f), 0x7c00);
    cr_assert_eq(ps_f32_to_f16(-INFINITY), 0xfc00);
    cr_assert_eq(ps_f32_to_f16(1e-40f), 0);
    cr_assert_eq(ps_f32_to_f16(-1e-40f), 0x8000);
}

Test(dtype, bf16) {
    for (uint32_t b = 0; b < 65536; b++) {
        float f = ps_bf16_to_f32((uint16_t)b);
        if (isnan(f)) {
            cr_assert(isnan(ps_bf16_to_f32(ps_f32_to_bf16(f))), "%04x", b);
            continue;
        }
        cr_assert_eq(ps_f32_to_bf16(f), b, "%04x", b);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        cr_assert_eq(bits, b << 16);
        if (isinf(f))
            continue;
        /* Just below, at and just above the middle to the next magnitude. */
        const uint32_t low[3] = {0x7fff, 0x8000, 0x8001}, up[3] = {0, b & 1, 1};
        for (int i = 0; i < 3; i++) {
            uint32_t x = bits | low[i];
            memcpy(&f, &x, 4);
            cr_assert_eq(ps_f32_to_bf16(f), b + up[i], "%08x", x);
        }
    }
}

Test(dtype, formats) {
    cr_assert_eq(ps_fmt_by_name("q8"), PS_FMT_Q8);
    cr_assert_eq(ps_fmt_by_name("q9"), PS_FMT_COUNT);
    for (unsigned i = 0; i < PS_FMT_COUNT; i++)
        cr_assert_eq(ps_fmt_by_name(ps_fmt_name((ps_fmt)i)), i);
    cr_assert_eq(ps_fmt_row_bytes(PS_FMT_F32, 576), 2304);
    cr_assert_eq(ps_fmt_row_bytes(PS_FMT_F32, 17), 128);
    cr_assert_eq(ps_fmt_row_bytes(PS_FMT_F16, 32), 64);
    cr_assert_eq(ps_fmt_row_bytes(PS_FMT_I32, 1), 64);
    cr_assert_eq(ps_fmt_row_bytes(PS_FMT_SEL, 9), 128);
    cr_assert_eq(ps_fmt_row_bytes(PS_FMT_NONE, 9), 0);
    /* 96 elements: q 96 -> 128, d 3 floats -> 192, s 3 floats -> 256. */
    cr_assert_eq(ps_q8_d_offset(96), 128);
    cr_assert_eq(ps_q8_s_offset(96), 192);
    cr_assert_eq(ps_fmt_row_bytes(PS_FMT_Q8, 96), 256);
    cr_assert_eq(ps_fmt_row_bytes(PS_FMT_Q8, 576), 576 + 128 + 128);
}
