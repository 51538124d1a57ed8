/* The table of tensor types, half-precision conversions, and the formats of activation rows. */
#include "model/dtype.h"

#include <string.h>

#include "core/checked.h"

/* Every block layout once more, as the sum of its fields, so that a mistyped size does not compile.
 * Fields in file order; numbers are bytes per block. */
#define DTYPE_FIELDS(X)                                                                                      \
    X(F32, 4)                                                                                                \
    X(F16, 2)                                                                                                \
    X(Q4_0, 2 + 32 / 2)                                   /* d f16, nibbles */                               \
    X(Q4_1, 2 + 2 + 32 / 2)                               /* d, m f16, nibbles */                            \
    X(Q5_0, 2 + 32 / 8 + 32 / 2)                          /* d, fifth bits, nibbles */                       \
    X(Q5_1, 2 + 2 + 32 / 8 + 32 / 2)                      /* d, m, fifth bits, nibbles */                    \
    X(Q8_0, 2 + 32)                                       /* d, int8 */                                      \
    X(Q8_1, 2 + 2 + 32)                                   /* d, s, int8 */                                   \
    X(Q2_K, 256 / 16 + 256 / 4 + 2 + 2)                   /* scale+min nibbles, 2-bit, d, dmin */            \
    X(Q3_K, 256 / 8 + 256 / 4 + 12 + 2)                   /* high bits, 2-bit, 6-bit scales, d */            \
    X(Q4_K, 2 + 2 + 12 + 256 / 2)                         /* d, dmin, 6-bit scales and mins, nibbles */      \
    X(Q5_K, 2 + 2 + 12 + 256 / 8 + 256 / 2)               /* d, dmin, scales, fifth bits, nibbles */         \
    X(Q6_K, 256 / 2 + 256 / 4 + 256 / 16 + 2)             /* nibbles, high pairs, int8 scales, d */          \
    X(Q8_K, 4 + 256 + 256 / 16 * 2)                       /* d f32, int8, int16 sums */                      \
    X(IQ2_XXS, 2 + 256 / 8 * 2)                           /* d, grid words */                                \
    X(IQ2_XS, 2 + 256 / 8 * 2 + 256 / 32)                 /* d, grid words, scales */                        \
    X(IQ3_XXS, 2 + 3 * 256 / 8)                           /* d, grid bytes and sign words */                 \
    X(IQ1_S, 2 + 256 / 8 + 256 / 32 * 2)                  /* d, grid bytes, high bits */                     \
    X(IQ4_NL, 2 + 32 / 2)                                 /* d, nibbles */                                   \
    X(IQ3_S, 2 + 256 / 4 + 256 / 32 + 256 / 8 + 256 / 64) /* d, grid, high bits, signs, scales */            \
    X(IQ2_S, 2 + 256 / 4 + 256 / 32 + 256 / 32)           /* d, grid and signs, high bits, scales */         \
    X(IQ4_XS, 2 + 2 + 256 / 64 + 256 / 2)                 /* d, high and low scales, nibbles */              \
    X(I8, 1)                                                                                                 \
    X(I16, 2)                                                                                                \
    X(I32, 4)                                                                                                \
    X(I64, 8)                                                                                                \
    X(F64, 8)                                                                                                \
    X(IQ1_M, 256 / 8 + 256 / 16 + 256 / 32) /* grid, high bits, scales */                                    \
    X(BF16, 2)                                                                                               \
    X(TQ1_0, (256 - 4 * 256 / 64) / 5 + 256 / 64 + 2) /* base-3 digits, the rest, d */                       \
    X(TQ2_0, 256 / 4 + 2)                             /* 2-bit, d */                                         \
    X(MXFP4, 1 + 32 / 2)                              /* e8m0 scale, fp4 */                                  \
    X(NVFP4, 64 / 16 + 64 / 2)                        /* e4m3 scale per 16, fp4 */                           \
    X(Q1_0, 2 + 128 / 8)                              /* d, signs */                                         \
    X(Q2_0, 2 + 64 / 4)                               /* d, 2-bit */

enum {
#define FIELD_SUM(name, sum) FIELD_BYTES_##name = (sum),
    DTYPE_FIELDS(FIELD_SUM)
#undef FIELD_SUM
};

#define ASSERT_BYTES(name, text, id, elems, bytes)                                                           \
    _Static_assert(FIELD_BYTES_##name == (bytes), "block bytes of " text);
PS_DTYPE_LIST(ASSERT_BYTES)
#undef ASSERT_BYTES

static const ps_dtype_info dtype_rows[] = {
#define DTYPE_ROW(name, text, id, elems, bytes) [id] = {text, id, elems, bytes},
    PS_DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};
enum { N_DTYPE_ROWS = sizeof dtype_rows / sizeof dtype_rows[0] };

const ps_dtype_info *ps_dtype_find(uint32_t id) {
    if (id >= N_DTYPE_ROWS || dtype_rows[id].name == NULL)
        return NULL;
    return &dtype_rows[id];
}

const ps_dtype_info *ps_dtype_by_name(const char *name) {
    for (uint32_t id = 0; id < N_DTYPE_ROWS; id++)
        if (dtype_rows[id].name != NULL && strcmp(dtype_rows[id].name, name) == 0)
            return &dtype_rows[id];
    return NULL;
}

bool ps_dtype_bytes(ps_dtype type, uint64_t n_elems, uint64_t *out_bytes) {
    const ps_dtype_info *info = ps_dtype_find((uint32_t)type);
    if (info == NULL || n_elems % info->block_elems != 0)
        return false;
    return ps_mul_u64(n_elems / info->block_elems, info->block_bytes, out_bytes);
}

float ps_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    uint32_t bits;
    if (exponent == 0) {
        /* Subnormal: an exact integer times 2^-24. */
        float f = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &f, 4);
        bits |= sign;
    } else if (exponent == 31) {
        bits = sign | 0x7f800000 | mantissa << 13;
    } else {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    }
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

uint16_t ps_f32_to_f16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff)); /* NaN, made quiet */
    if (magnitude >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00); /* 65520 and above round to infinity */
    if (magnitude < 0x38800000) {
        /* Below 2^-14. Adding 0.5 puts the subnormal half's last bit at the sum's last bit, so the
         * addition itself rounds to nearest even. */
        float a;
        memcpy(&a, &magnitude, 4);
        a += 0.5f;
        memcpy(&bits, &a, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

float ps_bf16_to_f32(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

uint16_t ps_f32_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 64); /* NaN, made quiet */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static const char *const fmt_names[PS_FMT_COUNT] = {
#define FMT_NAME(name, text) [PS_FMT_##name] = text,
    PS_FMT_LIST(FMT_NAME)
#undef FMT_NAME
};

const char *ps_fmt_name(ps_fmt fmt) {
    return (unsigned)fmt < PS_FMT_COUNT ? fmt_names[fmt] : "unknown";
}

ps_fmt ps_fmt_by_name(const char *name) {
    unsigned i = 0;
    while (i < PS_FMT_COUNT && strcmp(fmt_names[i], name) != 0)
        i++;
    return (ps_fmt)i;
}

uint64_t ps_fmt_row_bytes(ps_fmt fmt, uint64_t n) {
    /* Bytes per element of the formats that have one plane. */
    static const uint8_t elem_bytes[PS_FMT_COUNT] = {
        [PS_FMT_F32] = 4, [PS_FMT_F16] = 2, [PS_FMT_I32] = 4, [PS_FMT_SEL] = 8};
    uint64_t bytes = fmt == PS_FMT_Q8               ? ps_q8_s_offset(n) + n / PS_Q8_GROUP * 4
                     : fmt == PS_FMT_F16S           ? ps_f16s_scale_offset(n) + sizeof(float)
                     : (unsigned)fmt < PS_FMT_COUNT ? n * elem_bytes[fmt]
                                                    : 0;
    return (bytes + PS_ROW_ALIGN - 1) & ~(uint64_t)(PS_ROW_ALIGN - 1);
}
