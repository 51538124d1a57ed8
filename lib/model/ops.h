/* Operations that programs are made of, shared by architecture tables, kernels and instruction set. */
#ifndef PS_MODEL_OPS_H
#define PS_MODEL_OPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, "name", weights, sources, destinations, meaning)
 *
 * weights: most weight operands (roles) it takes; sources, destinations: activation buffers.
 * T is the number of token rows of the step or tile.
 *
 * EMBED        dst0[T x n_embd] = row token[t] of w0, times the model's embedding scale
 * RMSNORM      dst0 = src0 / rms(src0) * w0, over groups of len(w0) elements of each row (so one row of
 *              heads is normed per head); src1, if given, is added after: dst0 = src1 + norm(src0)
 * MATMUL       dst0[T x rows] = w0[rows x n] . src0[T x n] (+ w1, a bias); with src1 (same shape as dst0,
 *              may be dst0): + src1. A row range of w0 writes the same columns of dst0.
 * ROPE         rotate src0 into dst0 (may be the same), per head, by position; the layer's rope
 *              parameters; w0: frequency factors, if the model has them
 * KV_STORE     src0 = K rows, src1 = V rows -> the layer's KV cache at the tokens' positions, as f16
 * ATTENTION    dst0 = softmax(scale q.k + mask) v, src0 = Q rows; grouped-query, causal, sliding window
 * GLU          dst0 = act(src0) * src1, the model's activation (SiLU or tanh-GELU)
 * ADD          dst0 = src0 + src1
 * CONVERT      dst0 = src0 in another activation format
 * GATHER       dst0[n_outputs x n] = the rows of src0[T x n] whose logits are wanted
 * MOE_ROUTE    src0 = router logits [T x experts] -> dst0 = SEL rows of the used experts, softmax as the
 *              architecture says, ties to the lower expert number
 * MOE_DISPATCH composite: dst0 = sum over selected experts of weight * down(act(gate x) * up x);
 *              w0 gate, w1 up, w2 down experts; src0 = x, src1 = SEL; src2, if given, is added.
 *              Fixed parts (resident on GPU, fetched or direct, host), joined in fixed order; a part may
 *              be empty. On a machine without GPU all experts are in the host part.
 * SAMPLE       src0 = logits rows -> dst0 = token ids, as the session's sampler says
 * COPY         bytes of a weight range or a buffer from host to device or back (h2d, d2h queues)
 */
#define PS_OP_LIST(X)                                                                                        \
    X(EMBED, "embed", 1, 0, 1)                                                                               \
    X(RMSNORM, "rmsnorm", 1, 2, 1)                                                                           \
    X(MATMUL, "matmul", 2, 2, 1)                                                                             \
    X(ROPE, "rope", 1, 1, 1)                                                                                 \
    X(KV_STORE, "kv_store", 0, 2, 0)                                                                         \
    X(ATTENTION, "attention", 0, 1, 1)                                                                       \
    X(GLU, "glu", 0, 2, 1)                                                                                   \
    X(ADD, "add", 0, 2, 1)                                                                                   \
    X(CONVERT, "convert", 0, 1, 1)                                                                           \
    X(GATHER, "gather", 0, 1, 1)                                                                             \
    X(MOE_ROUTE, "moe_route", 0, 1, 1)                                                                       \
    X(MOE_DISPATCH, "moe_dispatch", 3, 3, 1)                                                                 \
    X(SAMPLE, "sample", 0, 1, 1)                                                                             \
    X(COPY, "copy", 1, 1, 1)

typedef enum ps_op {
#define PS_OP_ENUM(name, text, nw, ns, nd) PS_OP_##name,
    PS_OP_LIST(PS_OP_ENUM)
#undef PS_OP_ENUM
        PS_OP_COUNT
} ps_op;

enum { PS_OP_MAX_WEIGHTS = 3, PS_OP_MAX_SRC = 3, PS_OP_MAX_DST = 1 };

/* Largest shapes that kernels are made for; ps_model_open refuses others by name. */
enum { PS_MAX_HEAD_DIM = 1024, PS_MAX_EXPERTS = 1024, PS_MAX_EXPERTS_USED = 32 };

typedef struct ps_op_info {
    const char *name;
    uint8_t n_weights, n_src, n_dst;
} ps_op_info;

/* Row of the table; op must be below PS_OP_COUNT. */
const ps_op_info *ps_op_get(ps_op op);
/* PS_OP_COUNT if unknown. */
ps_op ps_op_by_name(const char *name);

/* Gated activation of the feed-forward block. */
typedef enum ps_glu { PS_GLU_SILU, PS_GLU_GELU_TANH } ps_glu;

/* Pairing of rotated elements: NORMAL turns (2i, 2i+1), NEOX turns (i, i + n/2). */
typedef enum ps_rope_style { PS_ROPE_NORMAL, PS_ROPE_NEOX } ps_rope_style;

/* Which experts a MOE_DISPATCH takes, out of those that the step's rows selected. NEAR (the GPU's): resident experts,
 * and of the other distinct ones the first max_direct in ascending order. FAR (the CPU's): all the rest. Both sides
 * apply the same rule to the same selection, so each selected expert belongs to exactly one part. */
#define PS_MOE_PART_LIST(X) X(ALL, "all") X(NEAR, "near") X(FAR, "far")
typedef enum ps_moe_part {
#define PS_MOE_PART_ENUM(name, text) PS_MOE_PART_##name,
    PS_MOE_PART_LIST(PS_MOE_PART_ENUM)
#undef PS_MOE_PART_ENUM
        PS_MOE_PART_COUNT
} ps_moe_part;

#ifdef __cplusplus
}
#endif
#endif
