/* Dequantisation bit for bit against numbers of PyPI's `gguf` (tests/golden/make_dequant.py), and
 * quantisation against the error that each type's step allows. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "model/dtype.h"

static uint32_t load_u32(const char *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

Test(dtype, dequantisation_has_the_reference_bits) {
    char *data;
    uint64_t size;
    ps_error err;
    cr_assert_eq(ps_file_read("tests/golden/dequant.bin", 1 << 24, &data, &size, &err), PS_OK);
    unsigned n_types = 0;
    for (uint64_t at = 0; at < size;) {
        char name[9] = {0};
        memcpy(name, data + at, 8);
        uint32_t n = load_u32(data + at + 8), bytes = load_u32(data + at + 12),
                 elems = load_u32(data + at + 16);
        at += 20;
        const ps_dtype_info *info = ps_dtype_by_name(name);
        cr_assert_not_null(info, "%s", name);
        cr_assert_eq(info->block_bytes, bytes, "%s", name);
        cr_assert_eq(info->block_elems, elems, "%s", name);
        uint64_t total = (uint64_t)n * elems;
        /* Sources at odd addresses: packed blocks have no alignment. */
        char *blocks = malloc((size_t)n * bytes + 1);
        float *out = malloc(total * sizeof *out);
        memcpy(blocks + 1, data + at, (size_t)n * bytes);
        ps_dequantize_row((ps_dtype)info->id, blocks + 1, out, total);
        const char *want = data + at + (uint64_t)n * bytes;
        for (uint64_t i = 0; i < total; i++)
            cr_assert_eq(memcmp(&out[i], want + 4 * i, 4), 0, "%s element %llu: %a", name,
                         (unsigned long long)i, (double)out[i]);
        free(blocks);
        free(out);
        at += (uint64_t)n * bytes + total * 4;
        n_types++;
    }
    cr_assert_eq(n_types, 11);
    free(data);
}

enum { N = 2048 };

/* Deterministic values in (-1, 1), three of them summed: a bell. */
static void fill(float *x, float amplitude, float shift) {
    uint64_t s = 88172645463325252ull;
    for (int i = 0; i < N; i++) {
        float v = 0;
        for (int k = 0; k < 3; k++) {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            v += (float)(int32_t)(uint32_t)s * 0x1p-31f;
        }
        x[i] = amplitude * v + shift;
    }
}

/* Largest error relative to the largest magnitude: half a step of the range the type spans, and for the
 * K types some more for scales in 6 bits. */
static const struct {
    ps_dtype type;
    double max_error, max_error_shifted;
} bounds[] = {
    {PS_DTYPE_F32, 0, 0},          {PS_DTYPE_F16, 0x1p-11, 0x1p-11}, {PS_DTYPE_BF16, 0x1p-8, 0x1p-8},
    {PS_DTYPE_Q4_0, 0.126, 0.126}, {PS_DTYPE_Q4_1, 0.068, 0.068},    {PS_DTYPE_Q5_0, 0.063, 0.063},
    {PS_DTYPE_Q5_1, 0.034, 0.034}, {PS_DTYPE_Q8_0, 0.0042, 0.0042},  {PS_DTYPE_Q4_K, 0.09, 0.09},
    {PS_DTYPE_Q5_K, 0.06, 0.06},   {PS_DTYPE_Q6_K, 0.035, 0.035},
};

Test(dtype, quantisation_error) {
    static float x[N], y[N];
    static uint8_t packed[N * 4];
    for (size_t t = 0; t < sizeof bounds / sizeof bounds[0]; t++)
        for (int shifted = 0; shifted < 2; shifted++) {
            fill(x, 0.05f, shifted ? 0.1f : 0.0f);
            double peak = 0, worst = 0;
            ps_quantize_row(bounds[t].type, x, packed, N);
            ps_dequantize_row(bounds[t].type, packed, y, N);
            for (int i = 0; i < N; i++) {
                peak = fmax(peak, fabs((double)x[i]));
                worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
            }
            double limit = (shifted ? bounds[t].max_error_shifted : bounds[t].max_error) * peak;
            cr_assert(worst <= limit, "%s: %g of %g allowed", ps_dtype_find(bounds[t].type)->name,
                      worst / peak, limit / peak);
        }
}

Test(dtype, quantising_what_a_block_holds_gives_it_back) {
    static float x[N], y[N];
    static uint8_t packed[N * 4], again[N * 4];
    static const ps_dtype exact[] = {PS_DTYPE_F32, PS_DTYPE_F16, PS_DTYPE_BF16, PS_DTYPE_Q8_0};
    fill(x, 0.05f, 0);
    for (size_t t = 0; t < sizeof exact / sizeof exact[0]; t++) {
        uint64_t bytes;
        cr_assert(ps_dtype_bytes(exact[t], N, &bytes));
        ps_quantize_row(exact[t], x, packed, N);
        ps_dequantize_row(exact[t], packed, y, N);
        ps_quantize_row(exact[t], y, again, N);
        cr_assert_eq(memcmp(packed, again, bytes), 0, "%s", ps_dtype_find(exact[t])->name);
    }
}

Test(dtype, quantising_zeros_and_extremes_stays_finite) {
    static float x[N], y[N];
    static uint8_t packed[N * 4];
    for (size_t t = 0; t < sizeof bounds / sizeof bounds[0]; t++) {
        memset(x, 0, sizeof x);
        ps_quantize_row(bounds[t].type, x, packed, N);
        ps_dequantize_row(bounds[t].type, packed, y, N);
        for (int i = 0; i < N; i++)
            cr_assert_eq(y[i], 0.0f, "%s", ps_dtype_find(bounds[t].type)->name);
        for (int i = 0; i < N; i++)
            x[i] = i % 3 == 0 ? 60000.0f : i % 3 == 1 ? -60000.0f : 1e-30f;
        ps_quantize_row(bounds[t].type, x, packed, N);
        ps_dequantize_row(bounds[t].type, packed, y, N);
        for (int i = 0; i < N; i++)
            cr_assert(isfinite(y[i]) && fabsf(y[i]) < 70000.0f, "%s", ps_dtype_find(bounds[t].type)->name);
    }
}
