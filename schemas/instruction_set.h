/* The instruction set, version 1, as one table: what the checker proves, what docs/instruction-set.md says.
 * Operands and meaning of each operation are in model/ops.h; the rows here say how instructions use them. */
#ifndef PS_SCHEMAS_INSTRUCTION_SET_H
#define PS_SCHEMAS_INSTRUCTION_SET_H

#include <stdint.h>

#include "model/dtype.h"
#include "model/ops.h"
#include "schemas/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What row0 and n_rows of an instruction select. X(NAME, "meaning") */
#define PS_RANGE_LIST(X)                                                                                     \
    X(NONE, "no range: row0 and n_rows are 0")                                                               \
    X(OUTPUTS, "rows of w[0], which are the columns of dst that it writes")                                  \
    X(HEADS, "KV heads, each with its group of query heads: their columns of dst")                           \
    X(EXPERTS, "experts of w[0], a partial sum unless all")                                                  \
    X(COLUMNS, "columns of src[0] and dst; of a weight, its rows")
typedef enum ps_range {
#define PS_RANGE_ENUM(name, text) PS_RANGE_##name,
    PS_RANGE_LIST(PS_RANGE_ENUM)
#undef PS_RANGE_ENUM
        PS_RANGE_COUNT
} ps_range;

/* Queues as bits of a set. */
enum {
    PS_Q_CPU = 1 << PS_QUEUE_CPU,
    PS_Q_GPU = 1 << PS_QUEUE_GPU,
    PS_Q_H2D = 1 << PS_QUEUE_H2D,
    PS_Q_D2H = 1 << PS_QUEUE_D2H
};

/* X(op, queues, range, src needed, src in place, format of src[1], passes through)
 * src needed: bit i set: src[i] must be given (weights follow the model's operation list).
 * src in place: bit i set: dst may be the same buffer as src[i]; any other overlap of dst and a source is
 * refused. Format of src[1]: NONE: that of src[0]. src[0] and dst have the kernel's formats, src[2] is F32.
 * Passes through: it is no operation of the model: dst holds the same value as src[0]. */
#define PS_INSTRUCTION_LIST(X)                                                                               \
    X(EMBED, PS_Q_CPU, NONE, 0, 0, NONE, 0)                                                                  \
    X(RMSNORM, PS_Q_CPU | PS_Q_GPU, NONE, 1, 3, F32, 0)                                                      \
    X(MATMUL, PS_Q_CPU | PS_Q_GPU, OUTPUTS, 1, 2, F32, 0)                                                    \
    X(ROPE, PS_Q_CPU | PS_Q_GPU, NONE, 1, 1, NONE, 0)                                                        \
    X(KV_STORE, PS_Q_CPU | PS_Q_GPU, NONE, 3, 0, NONE, 0)                                                    \
    X(ATTENTION, PS_Q_CPU | PS_Q_GPU, HEADS, 1, 0, NONE, 0)                                                  \
    X(GLU, PS_Q_CPU | PS_Q_GPU, NONE, 3, 3, NONE, 0)                                                         \
    X(ADD, PS_Q_CPU | PS_Q_GPU, NONE, 3, 3, F32, 0)                                                          \
    X(CONVERT, PS_Q_CPU | PS_Q_GPU, NONE, 1, 0, NONE, 1)                                                     \
    X(GATHER, PS_Q_CPU | PS_Q_GPU, NONE, 1, 0, NONE, 0)                                                      \
    X(MOE_ROUTE, PS_Q_CPU | PS_Q_GPU, NONE, 1, 0, NONE, 0)                                                   \
    X(MOE_DISPATCH, PS_Q_CPU | PS_Q_GPU, EXPERTS, 3, 4, SEL, 0)                                              \
    X(SAMPLE, PS_Q_CPU | PS_Q_GPU, NONE, 1, 0, NONE, 0)                                                      \
    X(COPY, PS_Q_GPU | PS_Q_H2D | PS_Q_D2H, COLUMNS, 0, 0, NONE, 1)

typedef struct ps_instruction_rule {
    uint8_t queues;
    ps_range range;
    uint8_t src_needed, src_in_place;
    ps_fmt src1_fmt;
    uint8_t passes_through;
} ps_instruction_rule;

/* Row of an operation below PS_OP_COUNT. */
const ps_instruction_rule *ps_instruction_rule_get(ps_op op);

/* Where a queue's instructions find their sources and put their destinations: bit s: space s is allowed. Kernels of
 * queue gpu read and write activations in host memory too, where few rows cross. */
typedef struct ps_queue_rule {
    uint8_t src, dst;
    ps_processor device; /* of the kernels; PS_DEV_COUNT: it runs none */
    uint8_t serial;      /* an instruction ends before the next one of the queue starts; otherwise only starts
                         are in order, and what must have ended is waited for */
} ps_queue_rule;
const ps_queue_rule *ps_queue_rule_get(ps_queue queue);

#ifdef __cplusplus
}
#endif
#endif
