/* What the planner knows of a kernel: the row of the kernel catalogue that a machine profile carries and a
 * plan copies. The registry of lib/kernels is made of the same rows. */
#ifndef PS_MODEL_KERNEL_SPEC_H
#define PS_MODEL_KERNEL_SPEC_H

#include <stdint.h>

#include "model/dtype.h"
#include "model/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PS_DEVICE_LIST(X) X(CPU, "cpu") X(CUDA, "cuda")
typedef enum ps_processor {
#define PS_DEVICE_ENUM(name, text) PS_DEV_##name,
    PS_DEVICE_LIST(PS_DEVICE_ENUM)
#undef PS_DEVICE_ENUM
        PS_DEV_COUNT
} ps_processor;
const char *ps_processor_name(ps_processor device);
ps_processor ps_processor_by_name(const char *name); /* PS_DEV_COUNT if unknown */

/* Scratch bytes of one call with T token rows: base + T*(per_token + cols*per_token_col) + cols*per_col
 * + threads*(per_thread + cols*per_thread_col) + T*chunks*cols*per_token_col_chunk, rounded up to 64; `cols` is the
 * longest row among the call's weights, sources and destination; chunks is the bucket's tokens / kv_chunk, rounded
 * up (0 where kv_chunk is 0): partial results of attention. */
typedef struct ps_scratch_coef {
    uint64_t base, per_token, per_token_col, per_col, per_thread, per_thread_col;
    uint64_t kv_chunk, per_token_col_chunk;
} ps_scratch_coef;

enum { PS_KERNEL_NAME_MAX = 48 };

typedef struct ps_kernel_spec {
    uint32_t id;                   /* stable: never reused for another meaning */
    char name[PS_KERNEL_NAME_MAX]; /* "cpu.matmul.q4_1.q8" */
    ps_op op;
    ps_dtype wtype;         /* of the first weight; PS_DTYPE_NONE where the op has none */
    ps_fmt in_fmt, out_fmt; /* of the first source and of the destination; NONE where absent */
    ps_processor device;
    uint32_t min_tokens, max_tokens; /* token rows it is meant for (it is correct for any number) */
    ps_scratch_coef scratch;
} ps_kernel_spec;

/* kv_tokens: of the bucket. UINT64_MAX on overflow. */
uint64_t ps_scratch_bytes(const ps_scratch_coef *c, uint64_t n_tokens, uint64_t cols, uint32_t n_threads,
                          uint64_t kv_tokens);
/* Best of `n` specs for (op, wtype, in, out, device) and T token rows: the one whose range holds T, the
 * highest min_tokens first, then the lowest id; NULL if none. */
const ps_kernel_spec *ps_kernel_spec_choose(const ps_kernel_spec *specs, uint32_t n, ps_op op, ps_dtype wtype,
                                            ps_fmt in, ps_fmt out, ps_processor device, uint64_t n_tokens);
/* Hash over all fields of all rows, in order: the kernel set that plans and profiles name. */
void ps_kernel_spec_hash(const ps_kernel_spec *specs, uint32_t n, uint8_t out[16]);

#ifdef __cplusplus
}
#endif
#endif
