/* Matrix products on the CPU: dst[T x rows] = w0[rows x cols] . src0[T x cols] (+ bias w1) (+ src1).
 * Weights are read where they lie in the file's layout; nothing is repacked or kept.
 *
 * Families, by activation format and number of tokens:
 *   q8   quantised weights, activations in groups of 32 int8 (PS_FMT_Q8): integer dot products; few tokens,
 *        bound by how fast the weights arrive.
 *   few  float weights, float activations, few tokens.
 *   f32  float activations, many tokens: panels of weights are dequantised into the thread's scratch once
 *        and used for all tokens. At levels AVX512BF16 and AMX in bfloat16: weights and activations of quantised
 *        types are rounded to 8 bits of mantissa; float types are split in two parts and keep 16 at AMX. */
#ifndef PS_KERNELS_CPU_MATMUL_H
#define PS_KERNELS_CPU_MATMUL_H

#include "kernels/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Token counts from which the panel family is faster than the family for few tokens. */
enum { PS_MM_Q8_MAX_TOKENS = 8, PS_MM_FEW_MAX_TOKENS = 8, PS_MM_MAX_TOKENS = 1 << 20 };

/* Rows of the kernel registry.
 * X(id, "name", weight type, activation format, least tokens, most tokens, tolerance, family):
 * operation MATMUL, destination F32, device CPU; PS_MM_SCRATCH_<family> and ps_mm_variants_<family> are
 * its scratch and its PS_MM_N_<family> variants. The tolerance is on ||out - ref|| / ||ref|| with ref
 * from the dequantised weights and the activations as given, in double precision. */
#define PS_CPU_MATMUL_KERNELS(X)                                                                             \
    X(1000, "cpu.matmul.q4_0.q8", Q4_0, Q8, 1, PS_MM_Q8_MAX_TOKENS, 1e-5f, q8)                               \
    X(1001, "cpu.matmul.q4_1.q8", Q4_1, Q8, 1, PS_MM_Q8_MAX_TOKENS, 1e-5f, q8)                               \
    X(1002, "cpu.matmul.q5_0.q8", Q5_0, Q8, 1, PS_MM_Q8_MAX_TOKENS, 1e-5f, q8)                               \
    X(1003, "cpu.matmul.q5_1.q8", Q5_1, Q8, 1, PS_MM_Q8_MAX_TOKENS, 1e-5f, q8)                               \
    X(1004, "cpu.matmul.q8_0.q8", Q8_0, Q8, 1, PS_MM_Q8_MAX_TOKENS, 1e-5f, q8)                               \
    X(1005, "cpu.matmul.q4_k.q8", Q4_K, Q8, 1, PS_MM_Q8_MAX_TOKENS, 1e-5f, q8)                               \
    X(1006, "cpu.matmul.q5_k.q8", Q5_K, Q8, 1, PS_MM_Q8_MAX_TOKENS, 1e-5f, q8)                               \
    X(1007, "cpu.matmul.q6_k.q8", Q6_K, Q8, 1, PS_MM_Q8_MAX_TOKENS, 1e-5f, q8)                               \
    X(1100, "cpu.matmul.f32.few", F32, F32, 1, PS_MM_FEW_MAX_TOKENS, 1e-5f, few)                             \
    X(1101, "cpu.matmul.f16.few", F16, F32, 1, PS_MM_FEW_MAX_TOKENS, 1e-5f, few)                             \
    X(1102, "cpu.matmul.bf16.few", BF16, F32, 1, PS_MM_FEW_MAX_TOKENS, 1e-5f, few)                           \
    X(1200, "cpu.matmul.f32.f32", F32, F32, PS_MM_FEW_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 1e-4f, f32)          \
    X(1201, "cpu.matmul.f16.f32", F16, F32, PS_MM_FEW_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 1e-4f, f32)          \
    X(1202, "cpu.matmul.bf16.f32", BF16, F32, PS_MM_FEW_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 1e-4f, f32)        \
    X(1203, "cpu.matmul.q4_0.f32", Q4_0, F32, PS_MM_Q8_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 6e-3f, f32)         \
    X(1204, "cpu.matmul.q4_1.f32", Q4_1, F32, PS_MM_Q8_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 6e-3f, f32)         \
    X(1205, "cpu.matmul.q5_0.f32", Q5_0, F32, PS_MM_Q8_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 6e-3f, f32)         \
    X(1206, "cpu.matmul.q5_1.f32", Q5_1, F32, PS_MM_Q8_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 6e-3f, f32)         \
    X(1207, "cpu.matmul.q8_0.f32", Q8_0, F32, PS_MM_Q8_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 6e-3f, f32)         \
    X(1208, "cpu.matmul.q4_k.f32", Q4_K, F32, PS_MM_Q8_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 6e-3f, f32)         \
    X(1209, "cpu.matmul.q5_k.f32", Q5_K, F32, PS_MM_Q8_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 6e-3f, f32)         \
    X(1210, "cpu.matmul.q6_k.f32", Q6_K, F32, PS_MM_Q8_MAX_TOKENS + 1, PS_MM_MAX_TOKENS, 6e-3f, f32)

/* Scratch of each family, as initialisers of ps_scratch_coef.
 * F32: the activations in bfloat16, high and low part, tokens rounded up to 16 and columns to 32
 * (level AMX); per thread one panel and one tile of results. */
#define PS_MM_SCRATCH_q8                                                                                     \
    { 0 }
#define PS_MM_SCRATCH_few                                                                                    \
    { 0 }
#define PS_MM_SCRATCH_f32                                                                                    \
    {                                                                                                        \
        .base = 15 * 2 * 64 + 64, .per_token = 2 * 64, .per_token_col = 4, .per_col = 15 * 4,                \
        .per_thread = PS_MM_THREAD_SCRATCH                                                                   \
    }
enum { PS_MM_THREAD_SCRATCH = 184 * 1024 };

/* Variants of each family, ascending level; the same for all weight types. Levels that this build
 * does not have (other processors) are left out. */
#if defined(__x86_64__)
enum { PS_MM_N_q8 = 3, PS_MM_N_few = 3, PS_MM_N_f32 = 5 };
#else
enum { PS_MM_N_q8 = 1, PS_MM_N_few = 1, PS_MM_N_f32 = 1 };
#endif
extern const ps_cpu_variant ps_mm_variants_q8[PS_MM_N_q8];
extern const ps_cpu_variant ps_mm_variants_few[PS_MM_N_few];
extern const ps_cpu_variant ps_mm_variants_f32[PS_MM_N_f32];

#ifdef __cplusplus
}
#endif
#endif
