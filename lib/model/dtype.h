/* The one list of tensor types (ggml ids and block sizes) and of activation formats. */
#ifndef PS_MODEL_DTYPE_H
#define PS_MODEL_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, "name", ggml id, elements per block, bytes per block).
 * Ids 4, 5, 31 to 33 and 36 to 38 were removed from ggml and are refused by number. */
#define PS_DTYPE_LIST(X)                                                                                     \
    X(F32, "F32", 0, 1, 4)                                                                                   \
    X(F16, "F16", 1, 1, 2)                                                                                   \
    X(Q4_0, "Q4_0", 2, 32, 18)                                                                               \
    X(Q4_1, "Q4_1", 3, 32, 20)                                                                               \
    X(Q5_0, "Q5_0", 6, 32, 22)                                                                               \
    X(Q5_1, "Q5_1", 7, 32, 24)                                                                               \
    X(Q8_0, "Q8_0", 8, 32, 34)                                                                               \
    X(Q8_1, "Q8_1", 9, 32, 36)                                                                               \
    X(Q2_K, "Q2_K", 10, 256, 84)                                                                             \
    X(Q3_K, "Q3_K", 11, 256, 110)                                                                            \
    X(Q4_K, "Q4_K", 12, 256, 144)                                                                            \
    X(Q5_K, "Q5_K", 13, 256, 176)                                                                            \
    X(Q6_K, "Q6_K", 14, 256, 210)                                                                            \
    X(Q8_K, "Q8_K", 15, 256, 292)                                                                            \
    X(IQ2_XXS, "IQ2_XXS", 16, 256, 66)                                                                       \
    X(IQ2_XS, "IQ2_XS", 17, 256, 74)                                                                         \
    X(IQ3_XXS, "IQ3_XXS", 18, 256, 98)                                                                       \
    X(IQ1_S, "IQ1_S", 19, 256, 50)                                                                           \
    X(IQ4_NL, "IQ4_NL", 20, 32, 18)                                                                          \
    X(IQ3_S, "IQ3_S", 21, 256, 110)                                                                          \
    X(IQ2_S, "IQ2_S", 22, 256, 82)                                                                           \
    X(IQ4_XS, "IQ4_XS", 23, 256, 136)                                                                        \
    X(I8, "I8", 24, 1, 1)                                                                                    \
    X(I16, "I16", 25, 1, 2)                                                                                  \
    X(I32, "I32", 26, 1, 4)                                                                                  \
    X(I64, "I64", 27, 1, 8)                                                                                  \
    X(F64, "F64", 28, 1, 8)                                                                                  \
    X(IQ1_M, "IQ1_M", 29, 256, 56)                                                                           \
    X(BF16, "BF16", 30, 1, 2)                                                                                \
    X(TQ1_0, "TQ1_0", 34, 256, 54)                                                                           \
    X(TQ2_0, "TQ2_0", 35, 256, 66)                                                                           \
    X(MXFP4, "MXFP4", 39, 32, 17)                                                                            \
    X(NVFP4, "NVFP4", 40, 64, 36)                                                                            \
    X(Q1_0, "Q1_0", 41, 128, 18)                                                                             \
    X(Q2_0, "Q2_0", 42, 64, 18)

/* The value is the ggml id. */
typedef enum ps_dtype {
#define PS_DTYPE_ENUM(name, text, id, elems, bytes) PS_DTYPE_##name = id,
    PS_DTYPE_LIST(PS_DTYPE_ENUM)
#undef PS_DTYPE_ENUM
        PS_DTYPE_NONE = 255
} ps_dtype;

typedef struct ps_dtype_info {
    const char *name;
    uint32_t id;
    uint32_t block_elems;
    uint32_t block_bytes;
} ps_dtype_info;

/* Row of the table, or NULL for an id that is unknown or removed. Any thread. */
const ps_dtype_info *ps_dtype_find(uint32_t id);
/* By name, case-sensitive; NULL if unknown. */
const ps_dtype_info *ps_dtype_by_name(const char *name);
/* Bytes of `n_elems` elements laid out in blocks. False if the type is unknown, n_elems is not a
 * multiple of the block, or the product overflows. */
bool ps_dtype_bytes(ps_dtype type, uint64_t n_elems, uint64_t *out_bytes);
/* True for the types whose weights this version can dequantise and compute with: F32, F16, BF16,
 * Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K. */
bool ps_dtype_computable(ps_dtype type);

/* Dequantise n elements (a multiple of the block) to float, bit-exact with the reference of ggml's
 * own Python package. src: packed blocks, any alignment. Only computable types. Any thread. */
void ps_dequantize_row(ps_dtype type, const void *src, float *dst, uint64_t n);
/* The inverse, round to nearest, for writers of test models: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1,
 * Q8_0, Q4_K, Q5_K, Q6_K. Simple, deterministic scales; not tuned for quality. */
void ps_quantize_row(ps_dtype type, const float *src, void *dst, uint64_t n);

/* IEEE half and bfloat16 conversions, round to nearest even. */
float ps_f16_to_f32(uint16_t h);
uint16_t ps_f32_to_f16(float f);
float ps_bf16_to_f32(uint16_t b);
uint16_t ps_f32_to_bf16(float f);

/* Formats of activations between instructions: X(NAME, "name").
 * F32   row of n floats
 * F16   row of n halfs
 * I32   row of n int32 (token ids, router selections)
 * Q8    row of n (a multiple of 32) elements quantised in groups of 32, in three planes, each
 *       starting at a multiple of 64 bytes: int8 q[n]; float d[n/32]; float s[n/32].
 *       x is about d*q with d = max|x|/127; s = d * sum(q) serves weight types with an offset.
 * SEL   router selection: row of n pairs {int32 expert, float weight}, 8 bytes each.
 * F16S  row of n halfs h, then at ps_f16s_scale_offset one float s: x is about s*h. s is 1 where max|x| is at most
 *       32768, otherwise the least power of two with max|x|/s at most 32768: what tensor cores take, whatever
 *       the size of x. */
#define PS_FMT_LIST(X)                                                                                       \
    X(NONE, "none")                                                                                          \
    X(F32, "f32") X(F16, "f16") X(I32, "i32") X(Q8, "q8") X(SEL, "sel") X(F16S, "f16s")

typedef enum ps_fmt {
#define PS_FMT_ENUM(name, text) PS_FMT_##name,
    PS_FMT_LIST(PS_FMT_ENUM)
#undef PS_FMT_ENUM
        PS_FMT_COUNT
} ps_fmt;

enum { PS_Q8_GROUP = 32, PS_ROW_ALIGN = 64 };

const char *ps_fmt_name(ps_fmt fmt);
/* PS_FMT_COUNT if unknown. */
ps_fmt ps_fmt_by_name(const char *name);
/* Bytes of a row of n elements, a multiple of PS_ROW_ALIGN: rows of a buffer follow each other at this
 * stride. n is at most 2^32. */
uint64_t ps_fmt_row_bytes(ps_fmt fmt, uint64_t n);
/* Byte offsets of the planes d and s in a Q8 row of n elements. */
static inline uint64_t ps_q8_d_offset(uint64_t n) {
    return (n + 63) & ~(uint64_t)63;
}
static inline uint64_t ps_q8_s_offset(uint64_t n) {
    return ps_q8_d_offset(n) + ((n / 32 * 4 + 63) & ~(uint64_t)63);
}
static inline uint64_t ps_f16s_scale_offset(uint64_t n) {
    return (2 * n + 63) & ~(uint64_t)63;
}

#ifdef __cplusplus
}
#endif
#endif
