/* The CPU kernels other than matrix products: their registry rows, and their functions per level. */
#ifndef PS_KERNELS_CPU_OPS_H
#define PS_KERNELS_CPU_OPS_H

#include "kernels/kernel.h"

/* Levels that vector kernels are compiled for: generic, and on x86 AVX2 and AVX-512. */
#if defined(__x86_64__)
enum { PS_CPU_VEC_LEVELS = 3 };
#else
enum { PS_CPU_VEC_LEVELS = 1 };
#endif

/* Variants: X(variants, phases). VEC rows are compiled per level from *_body.h, PLAIN rows once.
 * Each has ps_cpu_<variants>_items and ps_cpu_<variants>_run(_level). */
#define PS_CPU_VEC_OPS(X)                                                                                    \
    X(rmsnorm, 1)                                                                                            \
    X(rope, 1)                                                                                               \
    X(kv_store, 1)                                                                                           \
    X(glu, 1)                                                                                                \
    X(add, 1)                                                                                                \
    X(convert, 1)                                                                                            \
    X(moe_route, 1)                                                                                          \
    X(attn_split, 2)                                                                                         \
    X(attn_block, 2)                                                                                         \
    X(moe, 7)
#define PS_CPU_PLAIN_OPS(X)                                                                                  \
    X(embed, 1)                                                                                              \
    X(gather, 1)                                                                                             \
    X(sample, 1)

#define PS_CPU_DECLARE_VEC(name, phases)                                                                     \
    extern const ps_cpu_variant ps_cpu_##name[PS_CPU_VEC_LEVELS];                                            \
    uint64_t ps_cpu_##name##_items(const ps_kargs *a, uint32_t phase);                                       \
    void ps_cpu_##name##_run_generic(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,          \
                                     uint32_t thread);                                                       \
    void ps_cpu_##name##_run_avx2(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,             \
                                  uint32_t thread);                                                          \
    void ps_cpu_##name##_run_avx512(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n,           \
                                    uint32_t thread);
PS_CPU_VEC_OPS(PS_CPU_DECLARE_VEC)
#undef PS_CPU_DECLARE_VEC
#define PS_CPU_DECLARE_PLAIN(name, phases) extern const ps_cpu_variant ps_cpu_##name[1];
PS_CPU_PLAIN_OPS(PS_CPU_DECLARE_PLAIN)
#undef PS_CPU_DECLARE_PLAIN

enum {
    PS_GLU_BLOCK = 1024,     /* elements of one GLU item, a multiple of the Q8 group */
    PS_ATTN_THREAD = 1 << 19 /* bytes of one thread's attention tiles */
};

/* Functions of row_ops_body.h that the mixture of experts uses, per level: y = act(g) * u for n elements, and
 * quantisation of elements [col0, col0 + n) of row t of a Q8 activation. */
typedef void (*ps_cpu_act_fn)(const float *g, const float *u, float *y, uint64_t n, bool silu);
typedef void (*ps_cpu_quantize_fn)(const ps_xarg *dst, uint64_t t, uint64_t col0, uint64_t n, const float *x);
#define PS_CPU_DECLARE_HELPERS(level)                                                                        \
    void ps_cpu_act_cols_##level(const float *g, const float *u, float *y, uint64_t n, bool silu);           \
    void ps_cpu_quantize_cols_##level(const ps_xarg *dst, uint64_t t, uint64_t col0, uint64_t n,             \
                                      const float *x);
PS_CPU_DECLARE_HELPERS(generic)
PS_CPU_DECLARE_HELPERS(avx2)
PS_CPU_DECLARE_HELPERS(avx512)
#undef PS_CPU_DECLARE_HELPERS

/* Mixture of experts: the scratch that follows from the limits (moe.c). */
enum {
    PS_MOE_ROUNDS = 3,
    PS_MOE_BASE = PS_MOE_ROUNDS * (2 * PS_MAX_EXPERTS + 2) * 4 + 128 + PS_MAX_EXPERTS_USED * 256,
    PS_MOE_TOKEN = PS_MAX_EXPERTS_USED * 4 + 2048,
    PS_MOE_TOKEN_COL_Q8 = 16,
    PS_MOE_COL_Q8 = PS_MAX_EXPERTS_USED * 5 / 4,
    PS_MOE_TOKEN_COL_F32 = 48,
    PS_MOE_COL_F32 = PS_MAX_EXPERTS_USED * 4,
    PS_MOE_THREAD = 12 * 256,
    PS_MOE_THREAD_COL = 12 * 4
};

/* Rows: X(id, "name", op, weight type, in, out, min tokens, max tokens, tolerance, variants, scratch...).
 * Ascending ids; scratch is base, per_token, per_token_col, per_col, per_thread, per_thread_col.
 * Tolerances: a few float roundings; Q8 outputs differ by a step of 1/254 of the group's largest where a value
 * lies between two steps; attention scores in the hundreds carry float errors of 1e-5, which the exponential
 * makes relative. */
#define PS_CPU_OP_KERNELS(X)                                                                                 \
    X(10, "cpu.rmsnorm.f32", RMSNORM, F32, F32, F32, 1, UINT32_MAX, 2e-6f, rmsnorm, 0, 0, 0, 0, 0, 0)        \
    X(11, "cpu.rmsnorm.q8", RMSNORM, F32, F32, Q8, 1, UINT32_MAX, 2e-3f, rmsnorm, 0, 0, 0, 0, 0, 4)          \
    X(20, "cpu.rope", ROPE, NONE, F32, F32, 1, UINT32_MAX, 1e-6f, rope, 0, 0, 0, 0, 64, 12)                  \
    X(21, "cpu.rope.factors", ROPE, F32, F32, F32, 1, UINT32_MAX, 1e-6f, rope, 0, 0, 0, 0, 64, 12)           \
    X(30, "cpu.kv_store", KV_STORE, NONE, F32, NONE, 1, UINT32_MAX, 0.0f, kv_store, 0, 0, 0, 0, 0, 0)        \
    X(40, "cpu.attention.split.f32", ATTENTION, NONE, F32, F32, 1, 15, 5e-5f, attn_split, 0, 0, 264, 0,      \
      PS_ATTN_THREAD, 0)                                                                                     \
    X(41, "cpu.attention.split.q8", ATTENTION, NONE, F32, Q8, 1, 15, 2e-3f, attn_split, 0, 0, 264, 0,        \
      PS_ATTN_THREAD, 0)                                                                                     \
    X(42, "cpu.attention.block.f32", ATTENTION, NONE, F32, F32, 16, UINT32_MAX, 5e-5f, attn_block, 0, 0, 0,  \
      0, PS_ATTN_THREAD, 0)                                                                                  \
    X(43, "cpu.attention.block.q8", ATTENTION, NONE, F32, Q8, 16, UINT32_MAX, 2e-3f, attn_block, 0, 0, 4, 0, \
      PS_ATTN_THREAD, 0)                                                                                     \
    X(50, "cpu.glu.f32", GLU, NONE, F32, F32, 1, UINT32_MAX, 1e-6f, glu, 0, 0, 0, 0, 0, 0)                   \
    X(51, "cpu.glu.q8", GLU, NONE, F32, Q8, 1, UINT32_MAX, 2e-3f, glu, 0, 0, 0, 0, 0, 0)                     \
    X(60, "cpu.add", ADD, NONE, F32, F32, 1, UINT32_MAX, 1e-7f, add, 0, 0, 0, 0, 0, 0)                       \
    X(70, "cpu.convert.q8", CONVERT, NONE, F32, Q8, 1, UINT32_MAX, 2e-3f, convert, 0, 0, 0, 0, 0, 0)         \
    X(71, "cpu.convert.f16", CONVERT, NONE, F32, F16, 1, UINT32_MAX, 0.0f, convert, 0, 0, 0, 0, 0, 0)        \
    X(80, "cpu.gather", GATHER, NONE, F32, F32, 1, UINT32_MAX, 0.0f, gather, 0, 0, 0, 0, 0, 0)               \
    X(90, "cpu.moe_route", MOE_ROUTE, NONE, F32, SEL, 1, UINT32_MAX, 2e-6f, moe_route, 0, 0, 0, 0, 0, 8)     \
    X(95, "cpu.sample", SAMPLE, NONE, F32, I32, 1, UINT32_MAX, 0.0f, sample, 0, 0, 0, 0, 0, 0)               \
    PS_CPU_EMBED_KERNEL(X, 100, "f32", F32)                                                                  \
    PS_CPU_EMBED_KERNEL(X, 101, "f16", F16)                                                                  \
    PS_CPU_EMBED_KERNEL(X, 102, "q4_0", Q4_0)                                                                \
    PS_CPU_EMBED_KERNEL(X, 103, "q4_1", Q4_1)                                                                \
    PS_CPU_EMBED_KERNEL(X, 106, "q5_0", Q5_0)                                                                \
    PS_CPU_EMBED_KERNEL(X, 107, "q5_1", Q5_1)                                                                \
    PS_CPU_EMBED_KERNEL(X, 108, "q8_0", Q8_0)                                                                \
    PS_CPU_EMBED_KERNEL(X, 112, "q4_k", Q4_K)                                                                \
    PS_CPU_EMBED_KERNEL(X, 113, "q5_k", Q5_K)                                                                \
    PS_CPU_EMBED_KERNEL(X, 114, "q6_k", Q6_K)                                                                \
    PS_CPU_EMBED_KERNEL(X, 130, "bf16", BF16)                                                                \
    PS_CPU_MOE_F32(X, 200, "f32", F32)                                                                       \
    PS_CPU_MOE_F32(X, 201, "f16", F16)                                                                       \
    PS_CPU_MOE_Q8(X, 202, "q4_0", Q4_0)                                                                      \
    PS_CPU_MOE_Q8(X, 203, "q4_1", Q4_1)                                                                      \
    PS_CPU_MOE_Q8(X, 206, "q5_0", Q5_0)                                                                      \
    PS_CPU_MOE_Q8(X, 207, "q5_1", Q5_1)                                                                      \
    PS_CPU_MOE_Q8(X, 208, "q8_0", Q8_0)                                                                      \
    PS_CPU_MOE_Q8(X, 212, "q4_k", Q4_K)                                                                      \
    PS_CPU_MOE_Q8(X, 213, "q5_k", Q5_K)                                                                      \
    PS_CPU_MOE_Q8(X, 214, "q6_k", Q6_K)                                                                      \
    PS_CPU_MOE_F32(X, 230, "bf16", BF16)

/* Mixture of experts, by the type of the gate matrices; id 200 + ggml id. Scratch: moe.c says what it holds. The
 * hidden layer is rounded to Q8 between the products where the row takes Q8. */
#define PS_CPU_MOE_Q8(X, id, text, type)                                                                     \
    X(id, "cpu.moe." text ".q8", MOE_DISPATCH, type, Q8, F32, 1, UINT32_MAX, 2e-2f, moe, PS_MOE_BASE,        \
      PS_MOE_TOKEN, PS_MOE_TOKEN_COL_Q8, PS_MOE_COL_Q8, PS_MOE_THREAD, PS_MOE_THREAD_COL)
#define PS_CPU_MOE_F32(X, id, text, type)                                                                    \
    X(id, "cpu.moe." text ".f32", MOE_DISPATCH, type, F32, F32, 1, UINT32_MAX, 1e-5f, moe, PS_MOE_BASE,      \
      PS_MOE_TOKEN, PS_MOE_TOKEN_COL_F32, PS_MOE_COL_F32, PS_MOE_THREAD, PS_MOE_THREAD_COL)

/* Embedding rows of each type the dequantiser knows; id 100 + ggml id. */
#define PS_CPU_EMBED_KERNEL(X, id, text, type)                                                               \
    X(id, "cpu.embed." text, EMBED, type, NONE, F32, 1, UINT32_MAX, 1e-7f, embed, 0, 0, 0, 0, 0, 0)

#endif
