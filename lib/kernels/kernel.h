/* The kernel registry: one row per kernel, the same rows for profiler and runtime, so that what is
 * measured is what runs.
 *
 * A kernel id fixes operation, weight type, activation formats and device; on CPUs CPUID picks among the
 * row's variants once, when a set is opened. A CPU kernel is cut into phases and every phase into
 * independent items (row groups, tokens, heads); the executor spreads the items over its threads and puts
 * a barrier between phases. Each item's reduction order is fixed, so results do not depend on the number
 * of threads. */
#ifndef PS_KERNELS_KERNEL_H
#define PS_KERNELS_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "kernels/sampler.h"
#include "model/dtype.h"
#include "model/kernel_spec.h"
#include "model/model.h"
#include "model/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instruction-set level of a CPU variant, each including the ones before it.
 * X(NAME, "name", what it needs) */
#define PS_CPU_LEVEL_LIST(X)                                                                                 \
    X(GENERIC, "generic", "C17")                                                                             \
    X(AVX2, "avx2", "AVX2, FMA, F16C")                                                                       \
    X(AVX512, "avx512", "AVX-512 F BW DQ VL VNNI")                                                           \
    X(AVX512BF16, "avx512bf16", "AVX-512 BF16")                                                              \
    X(AMX, "amx", "AMX-TILE, AMX-BF16, permission from the kernel")
typedef enum ps_cpu_level {
#define PS_CPU_LEVEL_ENUM(name, text, needs) PS_CPU_##name,
    PS_CPU_LEVEL_LIST(PS_CPU_LEVEL_ENUM)
#undef PS_CPU_LEVEL_ENUM
        PS_CPU_LEVEL_COUNT
} ps_cpu_level;
const char *ps_cpu_level_name(ps_cpu_level level);
/* Best level this process may use, by CPUID and XGETBV (AMX: also asks the kernel for permission, for
 * the whole process). Any thread. */
ps_cpu_level ps_cpu_level_detect(void);

/* A weight operand: rows [row0, row0 + n_rows) of the matrix `data` points to (first row = row 0). row_bytes may be more
 * than its columns take, so that a range of columns of a larger matrix is a matrix too (MATMUL; with sources as wide as
 * that range). Of several experts `data` points to where expert 0 is: expert e is at data + e * rows * row_bytes, also where
 * only experts [row0, row0 + n_rows) are there, as in a slot: then data lies before the memory that is read. */
typedef struct ps_warg {
    const uint8_t *data; /* NULL if absent */
    ps_dtype type;
    uint64_t cols, rows, experts;
    uint64_t row_bytes;
} ps_warg;

/* An activation operand: T rows at a fixed stride. */
typedef struct ps_xarg {
    void *data; /* NULL if absent */
    ps_fmt fmt;
    uint64_t cols;
    uint64_t row_bytes; /* stride */
} ps_xarg;

/* One sequence's part of a step: rows [row0, row0 + n_rows) of the step (or tile) are its next tokens at
 * positions [pos0, pos0 + n_rows); its KV cache of the layer holds positions below pos0 + n_rows once
 * KV_STORE has run. Position p lives in row p % kv_rows. */
typedef struct ps_seq_span {
    uint32_t row0, n_rows;
    uint32_t pos0;
    uint32_t kv_rows;
    uint16_t *k; /* [kv_rows x n_head_kv*head_dim_k] f16 */
    uint16_t *v; /* [kv_rows x n_head_kv*head_dim_v] f16 */
} ps_seq_span;

/* Arguments of one instruction. All pointers borrowed for the call. */
typedef struct ps_kargs {
    const ps_model *model;
    const ps_layer *layer; /* NULL for global operations */
    uint32_t n_tokens;     /* T: rows of the sources */
    uint64_t row0, n_rows; /* range of output rows of w[0] (MATMUL), experts (MOE_DISPATCH), or heads
                                (ATTENTION: KV heads); other operations ignore it */
    ps_warg w[PS_OP_MAX_WEIGHTS];
    ps_xarg src[PS_OP_MAX_SRC];
    ps_xarg dst;
    ps_moe_part part;         /* MOE_DISPATCH: which of the experts in [row0, row0 + n_rows) */
    uint32_t max_direct;      /* of that rule */
    const uint32_t *resident; /* of that rule: bit e % 32 of word e / 32; NULL: no expert is resident */
    const uint8_t *const *experts
        [PS_OP_MAX_WEIGHTS];   /* MOE_DISPATCH: addresses of each expert's matrix of w[i], [w[i].experts],
                                                         instead of one behind the other from w[i].data; NULL: not so.
                                                         Entries of experts that are not taken may be NULL */
    const int32_t *tokens;     /* EMBED: ids of the T rows */
    const uint32_t *positions; /* ROPE: positions of the T rows */
    const uint32_t *outputs;   /* GATHER: source row of each of the n_tokens destination rows */
    uint32_t n_spans;          /* KV_STORE, ATTENTION */
    const ps_seq_span *spans;
    ps_sampler *const *samplers; /* SAMPLE: one per logits row; NULL: that row gets token -1 */
    uint8_t *scratch;            /* shared by all threads, 64-byte aligned, ps_kernel_scratch bytes */
    uint32_t n_threads;          /* how many threads take part: per-thread scratch is sized by it */
} ps_kargs;

typedef struct ps_cpu_variant {
    ps_cpu_level level;
    uint32_t n_phases;
    /* Number of independent items of a phase, at least 0: by arguments and sources alone, not by what the phases before
     * have written. No thread waits for a phase without items. */
    uint64_t (*n_items)(const ps_kargs *a, uint32_t phase);
    /* Do items [first, first + n) of a phase as thread `thread` of a->n_threads. */
    void (*run)(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread);
} ps_cpu_variant;

typedef struct ps_kernel {
    ps_kernel_spec spec;
    float tolerance;                /* ||out - ref|| / ||ref|| against kernels/ref never exceeds it */
    uint32_t n_variants;            /* 0 where the device is not the CPU */
    const ps_cpu_variant *variants; /* ascending level; NULL where the device is not the CPU */
} ps_kernel;

/* All rows of all devices, ascending id; the same in every build. CUDA rows are launched by ps_cuda_launch. */
const ps_kernel *ps_kernel_table(uint32_t *out_n);
const ps_kernel *ps_kernel_find(uint32_t id);         /* NULL if unknown */
const ps_kernel *ps_kernel_by_name(const char *name); /* NULL if unknown */
/* Best row for (op, wtype, in, out, device) and T tokens; NULL if none. */
const ps_kernel *ps_kernel_choose(ps_op op, ps_dtype wtype, ps_fmt in, ps_fmt out, ps_processor device,
                                  uint32_t n_tokens);
/* Variant of a CPU kernel for the highest level not above `level`; never NULL for CPU rows, NULL for others. */
const ps_cpu_variant *ps_kernel_variant(const ps_kernel *kernel, ps_cpu_level level);
/* ps_kernel_spec_hash of all rows: plans and profiles carry it. */
void ps_kernel_set_hash(uint8_t out[16]);
/* Is `set` that hash: of a profile that was measured with this build's kernels, or of a plan for them? */
bool ps_kernel_set_is_own(const uint8_t set[16]);
/* Bytes (weights, activations, KV) that one call moves and FLOPs it does, for rates and rooflines. */
void ps_kernel_cost(const ps_kernel *kernel, const ps_kargs *a, double *out_bytes, double *out_flops);
/* Run a CPU kernel on the calling thread alone: tests, verification. */
void ps_kernel_run_serial(const ps_kernel *kernel, ps_cpu_level level, const ps_kargs *a);

/* Plain double-precision reference of the same operation (any activation format, any computable weight
 * type): the yardstick of every tolerance. Allocates; PS_E_NOMEM. kernels/ref. */
ps_status ps_ref_run(ps_op op, const ps_kargs *a, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
