/* What a GGUF file describes once its architecture is understood: hyper-parameters, which tensor plays
 * which role, shards (the units of placement) and the operations of each shard. */
#ifndef PS_MODEL_MODEL_H
#define PS_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "model/dtype.h"
#include "model/gguf.h"
#include "model/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, "gguf name without blk.N. and .weight", per layer?, suffix)
 * Roles of tensors. A tensor of the file that has no role in its architecture is refused by name. */
#define PS_ROLE_LIST(X)                                                                                      \
    X(TOKEN_EMBD, "token_embd", 0, ".weight")                                                                \
    X(OUTPUT_NORM, "output_norm", 0, ".weight")                                                              \
    X(OUTPUT, "output", 0, ".weight")                                                                        \
    X(ROPE_FREQS, "rope_freqs", 0, ".weight")                                                                \
    X(ATTN_NORM, "attn_norm", 1, ".weight")                                                                  \
    X(ATTN_Q, "attn_q", 1, ".weight")                                                                        \
    X(ATTN_K, "attn_k", 1, ".weight")                                                                        \
    X(ATTN_V, "attn_v", 1, ".weight")                                                                        \
    X(ATTN_OUT, "attn_output", 1, ".weight")                                                                 \
    X(ATTN_Q_BIAS, "attn_q", 1, ".bias")                                                                     \
    X(ATTN_K_BIAS, "attn_k", 1, ".bias")                                                                     \
    X(ATTN_V_BIAS, "attn_v", 1, ".bias")                                                                     \
    X(ATTN_OUT_BIAS, "attn_output", 1, ".bias")                                                              \
    X(ATTN_Q_NORM, "attn_q_norm", 1, ".weight")                                                              \
    X(ATTN_K_NORM, "attn_k_norm", 1, ".weight")                                                              \
    X(ATTN_POST_NORM, "post_attention_norm", 1, ".weight")                                                   \
    X(FFN_NORM, "ffn_norm", 1, ".weight")                                                                    \
    X(FFN_GATE, "ffn_gate", 1, ".weight")                                                                    \
    X(FFN_UP, "ffn_up", 1, ".weight")                                                                        \
    X(FFN_DOWN, "ffn_down", 1, ".weight")                                                                    \
    X(FFN_GATE_BIAS, "ffn_gate", 1, ".bias")                                                                 \
    X(FFN_UP_BIAS, "ffn_up", 1, ".bias")                                                                     \
    X(FFN_DOWN_BIAS, "ffn_down", 1, ".bias")                                                                 \
    X(FFN_POST_NORM, "post_ffw_norm", 1, ".weight")                                                          \
    X(FFN_ROUTER, "ffn_gate_inp", 1, ".weight")                                                              \
    X(FFN_GATE_EXPS, "ffn_gate_exps", 1, ".weight")                                                          \
    X(FFN_UP_EXPS, "ffn_up_exps", 1, ".weight")                                                              \
    X(FFN_DOWN_EXPS, "ffn_down_exps", 1, ".weight")

typedef enum ps_role {
#define PS_ROLE_ENUM(name, text, per_layer, suffix) PS_ROLE_##name,
    PS_ROLE_LIST(PS_ROLE_ENUM)
#undef PS_ROLE_ENUM
        PS_ROLE_COUNT,
    PS_ROLE_NONE = PS_ROLE_COUNT
} ps_role;

typedef struct ps_role_info {
    const char *name; /* e.g. "attn_q.bias": how plans and errors spell it */
    bool per_layer;
} ps_role_info;
const ps_role_info *ps_role_get(ps_role role);
ps_role ps_role_by_name(const char *name); /* PS_ROLE_NONE if unknown */

/* A weight matrix: `rows` rows of `cols` elements, `experts` of them one behind the other (1 if dense). */
typedef struct ps_weight {
    uint32_t tensor; /* index into gguf->tensors */
    ps_dtype type;
    uint64_t cols, rows, experts;
    uint64_t bytes;
} ps_weight;

/* What differs from layer to layer. All counts are of this layer. */
typedef struct ps_layer {
    uint32_t n_head, n_head_kv;
    uint32_t head_dim_k, head_dim_v;
    uint32_t n_ff; /* dense feed-forward width, 0 if the layer is MoE */
    uint32_t n_expert, n_expert_used, n_ff_expert;
    uint32_t window;    /* sliding window in tokens, 0: full attention. Token p sees (p - window, p]. */
    uint32_t rope_dims; /* rotated elements per head */
    float rope_base;    /* theta */
    float rope_scale;   /* positions are multiplied by it (1 / linear factor) */
    float attn_scale;   /* multiplies q.k */
    const ps_weight *w[PS_ROLE_COUNT]; /* NULL where absent; only per-layer roles */
} ps_layer;

typedef enum ps_shard_kind {
    PS_SHARD_EMBED, /* token embedding: gathered on the host */
    PS_SHARD_ATTN,
    PS_SHARD_FFN,
    PS_SHARD_MOE,
    PS_SHARD_HEAD, /* final norm and output matrix */
    PS_SHARD_KIND_COUNT
} ps_shard_kind;
const char *ps_shard_kind_name(ps_shard_kind kind);

/* Symbolic activation values of the operation lists. ROW(NAME, "name") */
#define PS_VALUE_LIST(ROW)                                                                                   \
    ROW(NONE, "none")                                                                                        \
    ROW(X, "x")                 /* residual stream [T x n_embd] */                                           \
    ROW(NORM, "norm")           /* normed input of a block [T x n_embd] */                                   \
    ROW(Q, "q")                 /* [T x n_head*head_dim_k] */                                                \
    ROW(K, "k")                 /* [T x n_head_kv*head_dim_k] */                                             \
    ROW(V, "v")                 /* [T x n_head_kv*head_dim_v] */                                             \
    ROW(ATT, "att")             /* attention output [T x n_head*head_dim_v] */                               \
    ROW(PROJ, "proj")           /* block output before a post-norm [T x n_embd] */                           \
    ROW(GATE, "gate")           /* [T x n_ff] */                                                             \
    ROW(UP, "up")               /* [T x n_ff] */                                                             \
    ROW(ACT, "act")             /* act(gate)*up [T x n_ff] */                                                \
    ROW(ROUTER, "router")       /* [T x n_expert] */                                                         \
    ROW(SEL, "sel")             /* SEL rows [T x n_expert_used] */                                           \
    ROW(LAST, "last")           /* residual rows whose logits are wanted [O x n_embd] */                     \
    ROW(LAST_NORM, "last_norm") /* [O x n_embd] */                                                           \
    ROW(LOGITS, "logits")       /* [O x n_vocab] */                                                          \
    ROW(TOKENS, "tokens")       /* sampled ids [O x 1] */

typedef enum ps_value {
#define PS_VALUE_ENUM(name, text) PS_VALUE_##name,
    PS_VALUE_LIST(PS_VALUE_ENUM)
#undef PS_VALUE_ENUM
        PS_VALUE_COUNT
} ps_value;
const char *ps_value_name(ps_value v);

/* One operation of a shard, before kernels, formats and buffers are chosen. Values that feed a product
 * may be wanted in another format: the planner picks it per kernel. */
typedef struct ps_op_desc {
    ps_op op;
    ps_role w[PS_OP_MAX_WEIGHTS]; /* PS_ROLE_NONE where unused */
    ps_value src[PS_OP_MAX_SRC];  /* PS_VALUE_NONE where unused */
    ps_value dst;
    uint32_t cols; /* elements of a row of src[0]; EMBED: of the weight */
    uint32_t rows; /* elements of a destination row (SEL: pairs); 0 without destination */
} ps_op_desc;

typedef struct ps_shard {
    ps_shard_kind kind;
    uint32_t layer;        /* 0 for EMBED and HEAD */
    uint64_t weight_bytes; /* each tensor counted once, so that the shards sum to the model's weight_bytes:
                              rope_freqs in EMBED; a tied output in EMBED and not in HEAD */
    uint32_t n_ops;
    const ps_op_desc *ops;
} ps_shard;

typedef struct ps_arch ps_arch; /* row of the architecture table, private to model/ */

typedef struct ps_model {
    const ps_gguf *gguf; /* borrowed */
    const ps_arch *arch;
    const char *arch_name; /* "llama" */
    char name[96];         /* general.name, cleaned */
    uint32_t n_layers, n_embd, n_vocab, n_ctx_train;
    float norm_eps;
    float embed_scale; /* 1 unless the architecture scales embeddings */
    ps_glu glu;
    ps_rope_style rope_style;
    bool moe_norm_topk; /* selected weights are normalised to sum 1 */
    bool tied_output;   /* output matrix is the token embedding */
    const ps_layer *layers;
    const ps_weight *w[PS_ROLE_COUNT]; /* global roles; OUTPUT == TOKEN_EMBD when tied */
    const float *rope_factors; /* n_rope_factors frequency divisors (Llama 3) from rope_freqs, or NULL */
    uint32_t n_rope_factors;
    uint32_t n_shards;
    const ps_shard *shards; /* EMBED, then ATTN and FFN/MOE per layer, then HEAD */
    uint64_t weight_bytes;  /* of all tensors with a role */
    uint64_t n_params;
} ps_model;

/* Understand a GGUF file. gguf is borrowed and must outlive the model. Every tensor and every
 * hyper-parameter of the architecture is consumed or refused by name (PS_E_UNSUPPORTED); shapes are
 * checked against the hyper-parameters (PS_E_DATA). Reads no weights except rope_freqs, whose factors
 * are checked to be finite and positive. The result is immutable: any thread. */
ps_status ps_model_open(const ps_gguf *gguf, ps_model **out, ps_error *err);
void ps_model_close(ps_model *model); /* NULL is allowed */

/* Everything that stands against running a file, for people: what ps_model_open would refuse, all of it
 * instead of the first. */
typedef struct ps_refusal {
    ps_status status;
    const char *subject; /* tensor, key or architecture */
    const char *message;
} ps_refusal;

typedef struct ps_type_count {
    ps_dtype type;
    bool computable;
    uint64_t n_tensors, bytes;
} ps_type_count;

enum { PS_SURVEY_MAX_REFUSALS = 256 };

typedef struct ps_survey {
    const ps_gguf *gguf; /* borrowed */
    char arch_name[64];  /* general.architecture, cleaned; "" if absent */
    bool arch_known;     /* a row of the architecture table */
    uint64_t n_refused;  /* all of them */
    uint32_t n_refusals; /* the first of them, at most PS_SURVEY_MAX_REFUSALS */
    const ps_refusal *refusals;
    uint32_t n_types; /* types that occur, ascending id */
    const ps_type_count *types;
    const ps_model *model; /* layers, shards and bytes, where the refusals leave enough to know them; else
                                NULL. Only to be looked at: it runs only if n_refused is 0. */
} ps_survey;

/* gguf is borrowed and must outlive the survey. PS_OK whatever is refused: errors are PS_E_NOMEM only.
 * Reads what ps_model_open reads. The result is immutable: any thread. */
ps_status ps_model_survey(const ps_gguf *gguf, ps_survey **out, ps_error *err);
void ps_survey_close(ps_survey *survey); /* NULL is allowed */

/* KV cache of layer `l`, f16, one sequence. Rows of positions that a sequence of up to n_ctx tokens needs
 * when at most tile_tokens are stored before they are attended to: a sliding-window layer keeps
 * min(n_ctx, window + tile_tokens) rows as a ring (position p lives in row p % rows), any other n_ctx.
 * Layout of a layer's cache: K [rows x n_head_kv*head_dim_k] f16, then V [rows x n_head_kv*head_dim_v].
 * ps_model_kv_bytes gives the bytes of both, each plane rounded up to 64. */
uint64_t ps_model_kv_rows(const ps_model *model, uint32_t l, uint64_t n_ctx, uint64_t tile_tokens);
uint64_t ps_model_kv_bytes(const ps_model *model, uint32_t l, uint64_t rows);

/* FLOPs of one op for T token rows (of HEAD: T output rows) of one sequence whose KV holds n_kv positions once
 * they are stored, so that the last row attends to n_kv of them (causal; fewer under a sliding window). 2 per
 * multiply-add; sources of the formulas are beside them. And bytes of weights it reads for T rows (expected distinct experts for
 * MoE under uniform routing: E * (1 - (1 - k/E)^T)). */
double ps_op_flops(const ps_model *model, uint32_t layer, const ps_op_desc *op, uint64_t n_tokens,
                   uint64_t n_kv);
double ps_op_weight_bytes(const ps_model *model, uint32_t layer, const ps_op_desc *op, uint64_t n_tokens);
/* The weight that plays `role` for an op of layer `layer` (global roles ignore it). NULL if absent. */
const ps_weight *ps_model_weight(const ps_model *model, uint32_t layer, ps_role role);
/* First byte of a weight in the mapping. */
const uint8_t *ps_model_weight_data(const ps_model *model, const ps_weight *w);

/* Names of supported architectures, NULL after the last. */
const char *const *ps_arch_names(void);

#ifdef __cplusplus
}
#endif
#endif
