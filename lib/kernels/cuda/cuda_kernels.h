/* The CUDA kernels: their registry rows, and the one call that launches any of them. Compiles without CUDA;
 * the launcher itself exists only in builds with PS_CUDA. */
#ifndef PS_KERNELS_CUDA_KERNELS_H
#define PS_KERNELS_CUDA_KERNELS_H

#include "kernels/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PS_CUDA_MATVEC_TOKENS = 8, /* most token rows of the kernels that read weights once for all of them */
    PS_CUDA_ATTN_TOKENS = 8,   /* most token rows of decode attention; above, attention without scratch */
    PS_CUDA_ATTN_CHUNK = 256,  /* positions of one block of decode attention: a constant, so that the order of
                                  sums depends on nothing else */
    PS_CUDA_MAX_USED = 32,     /* experts per token */
    PS_CUDA_GEMM_PIECE =
        64
        << 20, /* scratch of cuda.gemm: weights as halves, few enough that an L2 cache keeps most of them, */
    PS_CUDA_GEMM_WORKSPACE = 32 << 20, /* and behind them cuBLAS's workspace */
    /* Scratch of MOE_DISPATCH for many tokens: bytes per token and element of the longest row, and for all. */
    PS_CUDA_MOE_MANY_COL = 16,
    PS_CUDA_MOE_MANY_ROOM = 8 << 20
};

/* Where one launch runs, and what the arguments of an instruction do not say. */
typedef struct ps_cuda_on {
    void *stream; /* cudaStream_t; launches are asynchronous and may be captured into a graph */
    uint32_t
        kv_bound; /* ATTENTION: no span ends above this position; sizes the grid and scratch, so that spans
                          may change between replays of a graph */
    uint32_t span_rows;        /* ATTENTION, KV_STORE: most rows of one span */
    struct ps_cuda_blas *blas; /* for kernels that use cuBLAS; NULL: they answer PS_E_UNAVAILABLE */
} ps_cuda_on;

/* cuBLAS, opened at run time: libcublas.so.13 or .12. Its workspace is the kernel's scratch. Errors: PS_E_UNAVAILABLE
 * (no library), PS_E_OS. One handle is used by one thread at a time. */
ps_status ps_cuda_blas_open(struct ps_cuda_blas **out, ps_error *err);
void ps_cuda_blas_close(struct ps_cuda_blas *blas);

/* Launch kernel `id` (a row below). Arguments mean what they mean for CPU kernels, with these differences:
 * - all pointers, those to positions, outputs and spans too, and those inside the spans, are addresses that
 *   the device can read: VRAM, or mapped page-locked memory (`direct`); weights start at multiples of 16 bytes;
 * - only `a` itself, model and layer are read on the host, during the call;
 * - MATMUL: w[0].row_bytes may be more than its columns take, so that a range of columns is a matrix too; F16S: such a range
 *   may begin at any block;
 * - n_spans and n_tokens are the grid's bounds; a span with n_rows 0 is skipped;
 * - the kernel launched directly before ATTENTION on its stream must not write the spans: ATTENTION may read them before
 *   that kernel has ended.
 * The order of every sum depends on shapes alone: neither on the memory that weights lie in, nor on the number of
 * token rows or multiprocessors. cuda.gemm is the exception: cuBLAS chooses by range, number of token rows and GPU, and gives
 * the same bits for the same of these. Errors: PS_E_UNSUPPORTED (unknown id, shape), PS_E_UNAVAILABLE (needs cuBLAS),
 * PS_E_OS with CUDA's code. Any thread whose current device is the stream's. */
ps_status ps_cuda_launch(uint32_t id, const ps_kargs *a, const ps_cuda_on *on, ps_error *err);
/* Load every kernel of the registry into the current context now, so that none is loaded between two tokens. */
ps_status ps_cuda_load_all(ps_error *err);

/* Copy n_rows rows of row_bytes each between VRAM and mapped host memory (device addresses, any direction) with a kernel:
 * for COPY on queue gpu, which must not queue behind weight copies. Strides are bytes between rows; they are ignored for
 * one row. Fastest where addresses, strides and row_bytes are multiples of 16; source and destination must not overlap.
 * May be captured. Errors: PS_E_UNSUPPORTED (sizes beyond addresses), PS_E_OS with CUDA's code. Any thread whose current
 * device is the stream's. */
ps_status ps_cuda_copy_rows(void *dst, uint64_t dst_stride, const void *src, uint64_t src_stride,
                            uint64_t row_bytes, uint64_t n_rows, void *stream, ps_error *err);

/* A logit and its token. */
typedef struct ps_cuda_top {
    int32_t id;
    float logit;
} ps_cuda_top;
enum { PS_CUDA_TOPK = 256 };
/* For each of n_rows rows of logits (F32) the k <= PS_CUDA_TOPK largest, descending, of equal ones the lower id first; NaN
 * counts as -infinity. out: n_rows x k, device-writable. All that a sampler with top_k needs of a row. May be captured.
 * Errors: PS_E_UNSUPPORTED (format, k), PS_E_OS with CUDA's code. Any thread whose current device is the stream's. */
ps_status ps_cuda_topk(const ps_xarg *logits, uint32_t n_rows, uint32_t k, ps_cuda_top *out, void *stream,
                       ps_error *err);

/* Rows, in the form of PS_CPU_OP_KERNELS: X(id, "name", op, weight type, in, out, min tokens, max tokens, tolerance,
 * launcher, scratch base, per_token, per_token_col, per_col, per_thread, per_thread_col, kv_chunk, per_token_col_chunk).
 * Ascending ids. Matrix products: 2100 + ggml id for few token rows, 2300 and 2400 for many; mixture of experts: 2200 + ggml id, 2500
 * for many. cuda.argmax is for greedy samplers alone: it does not look at them.
 * Decode attention's scratch, ps_cuda_attn_scratch at the bucket's end, is T * chunks * n_head * (head_dim + 2) * 4;
 * the row's T * chunks * cols * 5 with cols >= n_head * head_dim is no less for heads of 8 elements and more. */
#define PS_CUDA_KERNELS(X)                                                                                   \
    X(2010, "cuda.rmsnorm.f32", RMSNORM, F32, F32, F32, 1, UINT32_MAX, 2e-6f, rmsnorm, 0, 0, 0, 0, 0, 0, 0,  \
      0)                                                                                                     \
    X(2011, "cuda.rmsnorm.q8", RMSNORM, F32, F32, Q8, 1, UINT32_MAX, 2e-3f, rmsnorm, 0, 0, 0, 0, 0, 0, 0, 0) \
    X(2012, "cuda.rmsnorm.f16s", RMSNORM, F32, F32, F16S, 1, UINT32_MAX, 5e-4f, rmsnorm, 0, 0, 0, 0, 0, 0,   \
      0, 0)                                                                                                  \
    X(2020, "cuda.rope", ROPE, NONE, F32, F32, 1, UINT32_MAX, 1e-6f, rope, 0, 0, 0, 0, 0, 0, 0, 0)           \
    X(2021, "cuda.rope.factors", ROPE, F32, F32, F32, 1, UINT32_MAX, 1e-6f, rope, 0, 0, 0, 0, 0, 0, 0, 0)    \
    X(2030, "cuda.kv_store", KV_STORE, NONE, F32, NONE, 1, UINT32_MAX, 0.0f, kv_store, 0, 0, 0, 0, 0, 0, 0,  \
      0)                                                                                                     \
    X(2040, "cuda.attention.split.f32", ATTENTION, NONE, F32, F32, 1, PS_CUDA_ATTN_TOKENS, 5e-5f,            \
      attn_split, 0, 0, 0, 0, 0, 0, PS_CUDA_ATTN_CHUNK, 5)                                                   \
    X(2041, "cuda.attention.split.q8", ATTENTION, NONE, F32, Q8, 1, PS_CUDA_ATTN_TOKENS, 2e-3f, attn_split,  \
      0, 0, 0, 0, 0, 0, PS_CUDA_ATTN_CHUNK, 5)                                                               \
    X(2042, "cuda.attention.flash.f32", ATTENTION, NONE, F32, F32, PS_CUDA_ATTN_TOKENS + 1, UINT32_MAX,      \
      1e-3f, attn_flash, 0, 0, 0, 0, 0, 0, 0, 0)                                                             \
    X(2043, "cuda.attention.flash.f16s", ATTENTION, NONE, F32, F16S, PS_CUDA_ATTN_TOKENS + 1, UINT32_MAX,    \
      1e-3f, attn_flash, 0, 0, 0, 0, 0, 0, 0, 0)                                                             \
    X(2044, "cuda.attention.flash.q8", ATTENTION, NONE, F32, Q8, PS_CUDA_ATTN_TOKENS + 1, UINT32_MAX, 5e-3f, \
      attn_flash, 0, 0, 0, 0, 0, 0, 0, 0)                                                                    \
    X(2050, "cuda.glu.f32", GLU, NONE, F32, F32, 1, UINT32_MAX, 1e-6f, glu, 0, 0, 0, 0, 0, 0, 0, 0)          \
    X(2051, "cuda.glu.q8", GLU, NONE, F32, Q8, 1, UINT32_MAX, 2e-3f, glu, 0, 0, 0, 0, 0, 0, 0, 0)            \
    X(2052, "cuda.glu.f16s", GLU, NONE, F32, F16S, 1, UINT32_MAX, 5e-4f, glu, 0, 0, 0, 0, 0, 0, 0, 0)        \
    X(2060, "cuda.add", ADD, NONE, F32, F32, 1, UINT32_MAX, 1e-7f, add, 0, 0, 0, 0, 0, 0, 0, 0)              \
    X(2070, "cuda.convert.q8", CONVERT, NONE, F32, Q8, 1, UINT32_MAX, 2e-3f, convert, 0, 0, 0, 0, 0, 0, 0,   \
      0)                                                                                                     \
    X(2071, "cuda.convert.f16", CONVERT, NONE, F32, F16, 1, UINT32_MAX, 0.0f, convert, 0, 0, 0, 0, 0, 0, 0,  \
      0)                                                                                                     \
    X(2072, "cuda.convert.f16s", CONVERT, NONE, F32, F16S, 1, UINT32_MAX, 5e-4f, convert, 0, 0, 0, 0, 0, 0,  \
      0, 0)                                                                                                  \
    X(2080, "cuda.gather", GATHER, NONE, F32, F32, 1, UINT32_MAX, 0.0f, gather, 0, 0, 0, 0, 0, 0, 0, 0)      \
    X(2090, "cuda.moe_route", MOE_ROUTE, NONE, F32, SEL, 1, UINT32_MAX, 2e-6f, moe_route, 0, 0, 0, 0, 0, 0,  \
      0, 0)                                                                                                  \
    X(2095, "cuda.argmax", SAMPLE, NONE, F32, I32, 1, UINT32_MAX, 0.0f, argmax, 0, 0, 0, 0, 0, 0, 0, 0)      \
    PS_CUDA_MATVEC_F(X, 2100, "f32", F32)                                                                    \
    PS_CUDA_MATVEC_F(X, 2101, "f16", F16)                                                                    \
    PS_CUDA_MATVEC_Q(X, 2102, "q4_0", Q4_0)                                                                  \
    PS_CUDA_MATVEC_Q(X, 2103, "q4_1", Q4_1)                                                                  \
    PS_CUDA_MATVEC_Q(X, 2106, "q5_0", Q5_0)                                                                  \
    PS_CUDA_MATVEC_Q(X, 2107, "q5_1", Q5_1)                                                                  \
    PS_CUDA_MATVEC_Q(X, 2108, "q8_0", Q8_0)                                                                  \
    PS_CUDA_MATVEC_Q(X, 2112, "q4_k", Q4_K)                                                                  \
    PS_CUDA_MATVEC_Q(X, 2113, "q5_k", Q5_K)                                                                  \
    PS_CUDA_MATVEC_Q(X, 2114, "q6_k", Q6_K)                                                                  \
    PS_CUDA_MATVEC_F(X, 2130, "bf16", BF16)                                                                  \
    PS_CUDA_MOE_F(X, 2200, "f32", F32)                                                                       \
    PS_CUDA_MOE_F(X, 2201, "f16", F16)                                                                       \
    PS_CUDA_MOE_Q(X, 2202, "q4_0", Q4_0)                                                                     \
    PS_CUDA_MOE_Q(X, 2203, "q4_1", Q4_1)                                                                     \
    PS_CUDA_MOE_Q(X, 2206, "q5_0", Q5_0)                                                                     \
    PS_CUDA_MOE_Q(X, 2207, "q5_1", Q5_1)                                                                     \
    PS_CUDA_MOE_Q(X, 2208, "q8_0", Q8_0)                                                                     \
    PS_CUDA_MOE_Q(X, 2212, "q4_k", Q4_K)                                                                     \
    PS_CUDA_MOE_Q(X, 2213, "q5_k", Q5_K)                                                                     \
    PS_CUDA_MOE_Q(X, 2214, "q6_k", Q6_K)                                                                     \
    PS_CUDA_MOE_F(X, 2230, "bf16", BF16)                                                                     \
    PS_CUDA_MATMUL_F(X, 2300, "f32", F32)                                                                    \
    PS_CUDA_MATMUL(X, 2301, "f16", F16, 1e-4f)                                                               \
    PS_CUDA_MATMUL(X, 2302, "q4_0", Q4_0, 1e-3f)                                                             \
    PS_CUDA_MATMUL(X, 2303, "q4_1", Q4_1, 1e-3f)                                                             \
    PS_CUDA_MATMUL(X, 2306, "q5_0", Q5_0, 1e-3f)                                                             \
    PS_CUDA_MATMUL(X, 2307, "q5_1", Q5_1, 1e-3f)                                                             \
    PS_CUDA_MATMUL(X, 2308, "q8_0", Q8_0, 1e-3f)                                                             \
    PS_CUDA_MATMUL(X, 2312, "q4_k", Q4_K, 1e-3f)                                                             \
    PS_CUDA_MATMUL(X, 2313, "q5_k", Q5_K, 1e-3f)                                                             \
    PS_CUDA_MATMUL(X, 2314, "q6_k", Q6_K, 1e-3f)                                                             \
    PS_CUDA_MATMUL_F(X, 2330, "bf16", BF16)                                                                  \
    PS_CUDA_GEMM(X, 2401, "f16", F16, 1e-4f, 0)                                                              \
    PS_CUDA_GEMM(X, 2402, "q4_0", Q4_0, 1e-3f, PS_CUDA_GEMM_PIECE)                                           \
    PS_CUDA_GEMM(X, 2403, "q4_1", Q4_1, 1e-3f, PS_CUDA_GEMM_PIECE)                                           \
    PS_CUDA_GEMM(X, 2406, "q5_0", Q5_0, 1e-3f, PS_CUDA_GEMM_PIECE)                                           \
    PS_CUDA_GEMM(X, 2407, "q5_1", Q5_1, 1e-3f, PS_CUDA_GEMM_PIECE)                                           \
    PS_CUDA_GEMM(X, 2408, "q8_0", Q8_0, 1e-3f, PS_CUDA_GEMM_PIECE)                                           \
    PS_CUDA_GEMM(X, 2412, "q4_k", Q4_K, 1e-3f, PS_CUDA_GEMM_PIECE)                                           \
    PS_CUDA_GEMM(X, 2413, "q5_k", Q5_K, 1e-3f, PS_CUDA_GEMM_PIECE)                                           \
    PS_CUDA_GEMM(X, 2414, "q6_k", Q6_K, 1e-3f, PS_CUDA_GEMM_PIECE)                                           \
    PS_CUDA_MOE_MANY(X, 2500, "f32", F32)                                                                    \
    PS_CUDA_MOE_MANY(X, 2501, "f16", F16)                                                                    \
    PS_CUDA_MOE_MANY(X, 2502, "q4_0", Q4_0)                                                                  \
    PS_CUDA_MOE_MANY(X, 2503, "q4_1", Q4_1)                                                                  \
    PS_CUDA_MOE_MANY(X, 2506, "q5_0", Q5_0)                                                                  \
    PS_CUDA_MOE_MANY(X, 2507, "q5_1", Q5_1)                                                                  \
    PS_CUDA_MOE_MANY(X, 2508, "q8_0", Q8_0)                                                                  \
    PS_CUDA_MOE_MANY(X, 2512, "q4_k", Q4_K)                                                                  \
    PS_CUDA_MOE_MANY(X, 2513, "q5_k", Q5_K)                                                                  \
    PS_CUDA_MOE_MANY(X, 2514, "q6_k", Q6_K)                                                                  \
    PS_CUDA_MOE_MANY(X, 2530, "bf16", BF16)

#define PS_CUDA_MATVEC_F(X, id, text, type)                                                                  \
    X(id, "cuda.matvec." text, MATMUL, type, F32, F32, 1, PS_CUDA_MATVEC_TOKENS, 1e-5f, matvec, 0, 0, 0, 0,  \
      0, 0, 0, 0)
#define PS_CUDA_MATVEC_Q(X, id, text, type)                                                                  \
    X(id, "cuda.matvec." text ".q8", MATMUL, type, Q8, F32, 1, PS_CUDA_MATVEC_TOKENS, 1e-5f, matvec, 0, 0,   \
      0, 0, 0, 0, 0, 0)
/* Many token rows: on tensor cores, weights rounded to halves (three roundings of 2^-11 of a group's largest at most) except those
 * that are halves already. PS_CUDA_MATMUL_F: types of a wider range, scaled by a float per row in scratch. PS_CUDA_GEMM: by cuBLAS. */
#define PS_CUDA_MATMUL(X, id, text, type, tolerance)                                                         \
    X(id, "cuda.matmul." text ".f16s", MATMUL, type, F16S, F32, PS_CUDA_MATVEC_TOKENS + 1, UINT32_MAX,       \
      tolerance, matmul, 0, 0, 0, 0, 0, 0, 0, 0)
#define PS_CUDA_MATMUL_F(X, id, text, type)                                                                  \
    X(id, "cuda.matmul." text ".f16s", MATMUL, type, F16S, F32, PS_CUDA_MATVEC_TOKENS + 1, UINT32_MAX,       \
      1e-4f, matmul, 0, 0, 0, 4, 0, 0, 0, 0)
#define PS_CUDA_GEMM(X, id, text, type, tolerance, piece)                                                    \
    X(id, "cuda.gemm." text ".f16s", MATMUL, type, F16S, F32, PS_CUDA_MATVEC_TOKENS + 1, UINT32_MAX,         \
      tolerance, gemm, (piece) + PS_CUDA_GEMM_WORKSPACE, 0, 0, 0, 0, 0, 0, 0)
/* Hidden rows of all (token, expert) pairs: floats, or Q8 for quantised types. */
#define PS_CUDA_MOE_F(X, id, text, type)                                                                     \
    X(id, "cuda.moe." text ".f32", MOE_DISPATCH, type, F32, F32, 1, PS_CUDA_MATVEC_TOKENS, 1e-5f, moe, 0,    \
      PS_CUDA_MAX_USED * 64, PS_CUDA_MAX_USED * 4, 0, 0, 0, 0, 0)
#define PS_CUDA_MOE_Q(X, id, text, type)                                                                     \
    X(id, "cuda.moe." text ".q8", MOE_DISPATCH, type, Q8, F32, 1, PS_CUDA_MATVEC_TOKENS, 2e-2f, moe, 0,      \
      PS_CUDA_MAX_USED * 256, PS_CUDA_MAX_USED * 2, 0, 0, 0, 0, 0)
/* Many tokens, on tensor cores: lists of pairs and tiles; hidden rows of (token, expert) pairs, as halfs, and a slice of
 * their outputs, as floats. Whatever the number of experts used, the rows get the same room: kernels/cuda/moe_many.cu. */
#define PS_CUDA_MOE_MANY(X, id, text, type)                                                                  \
    X(id, "cuda.moe.many." text ".f16s", MOE_DISPATCH, type, F16S, F32, PS_CUDA_MATVEC_TOKENS + 1,           \
      UINT32_MAX, 2e-3f, moe_many, PS_CUDA_MOE_MANY_ROOM + 32768, PS_CUDA_MAX_USED * 16,                     \
      PS_CUDA_MOE_MANY_COL, 0, 0, 0, 0, 0)

/* Scratch bytes of decode attention: partial results of every chunk of positions. */
static inline uint64_t ps_cuda_attn_scratch(const ps_layer *layer, uint32_t n_tokens, uint32_t kv_bound) {
    const uint64_t chunks = ((uint64_t)kv_bound + PS_CUDA_ATTN_CHUNK - 1) / PS_CUDA_ATTN_CHUNK;
    return (uint64_t)n_tokens * layer->n_head * chunks * (layer->head_dim_v + 2) * 4;
}

#ifdef __cplusplus
}
#endif
#endif
