/* The architecture table and what is built from it; private to lib/model.
 *
 * A row says what sets an architecture apart: which hyper-parameters and tensors it knows, and the few facts
 * that no key of the file states. Everything else (reading keys, checking shapes, listing operations) walks
 * the row, so a new architecture that fits the pattern is one more row. */
#ifndef PS_MODEL_ARCH_H
#define PS_MODEL_ARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/status.h"
#include "model/gguf.h"
#include "model/model.h"

/* X(NAME, "general.architecture") */
#define PS_ARCH_LIST(X) X(LLAMA, "llama") X(QWEN3, "qwen3") X(QWEN3MOE, "qwen3moe") X(GEMMA3, "gemma3")
typedef enum ps_arch_id {
#define PS_ARCH_ENUM(id, name) PS_ARCH_##id,
    PS_ARCH_LIST(PS_ARCH_ENUM)
#undef PS_ARCH_ENUM
        PS_ARCH_COUNT
} ps_arch_id;

/* Hyper-parameters: X(NAME, "key without <arch>.", kind).
 * U32: an integer below 2^31. LAYERS: such an integer, or an array of one per layer. F32: a finite number.
 * STR: text. ANY: judged by its own code. */
#define PS_HKEY_LIST(X)                                                                                      \
    X(BLOCK_COUNT, "block_count", U32)                                                                       \
    X(CONTEXT_LENGTH, "context_length", U32)                                                                 \
    X(EMBEDDING_LENGTH, "embedding_length", U32)                                                             \
    X(VOCAB_SIZE, "vocab_size", U32)                                                                         \
    X(FEED_FORWARD_LENGTH, "feed_forward_length", LAYERS)                                                    \
    X(HEAD_COUNT, "attention.head_count", LAYERS)                                                            \
    X(HEAD_COUNT_KV, "attention.head_count_kv", LAYERS)                                                      \
    X(KEY_LENGTH, "attention.key_length", U32)                                                               \
    X(VALUE_LENGTH, "attention.value_length", U32)                                                           \
    X(RMS_EPS, "attention.layer_norm_rms_epsilon", F32)                                                      \
    X(ATTN_SCALE, "attention.scale", F32)                                                                    \
    X(SLIDING_WINDOW, "attention.sliding_window", U32)                                                       \
    X(SLIDING_PATTERN, "attention.sliding_window_pattern", ANY)                                              \
    X(ROPE_DIMS, "rope.dimension_count", U32)                                                                \
    X(ROPE_BASE, "rope.freq_base", F32)                                                                      \
    X(ROPE_SCALING_TYPE, "rope.scaling.type", STR)                                                           \
    X(ROPE_SCALING_FACTOR, "rope.scaling.factor", F32)                                                       \
    X(ROPE_SCALE_LINEAR, "rope.scale_linear", F32)                                                           \
    X(ROPE_ORIG_CTX, "rope.scaling.original_context_length", U32)                                            \
    X(EXPERT_COUNT, "expert_count", U32)                                                                     \
    X(EXPERT_USED_COUNT, "expert_used_count", U32)                                                           \
    X(EXPERT_FEED_FORWARD_LENGTH, "expert_feed_forward_length", U32)

typedef enum ps_hkey {
#define PS_HKEY_ENUM(id, text, kind) PS_HKEY_##id,
    PS_HKEY_LIST(PS_HKEY_ENUM)
#undef PS_HKEY_ENUM
        PS_HKEY_COUNT
} ps_hkey;

typedef enum ps_hkind { PS_HKIND_U32, PS_HKIND_LAYERS, PS_HKIND_F32, PS_HKIND_STR, PS_HKIND_ANY } ps_hkind;

typedef struct ps_hkey_info {
    const char *suffix;
    ps_hkind kind;
} ps_hkey_info;
const ps_hkey_info *ps_hkey_get(ps_hkey key);

/* Keys that may be there only with the value that is computed anyway; any other value is refused by name. */
typedef enum ps_fixed_kind { PS_FIXED_NUMBER, PS_FIXED_BOOL, PS_FIXED_STR } ps_fixed_kind;
typedef struct ps_fixed_key {
    const char *suffix;
    uint32_t archs; /* bit set of ps_arch_id */
    ps_fixed_kind kind;
    double number;    /* NUMBER; BOOL: 0 or 1 */
    const char *text; /* STR */
} ps_fixed_key;
const ps_fixed_key *ps_fixed_keys(uint32_t *out_n);

struct ps_arch {
    ps_arch_id id;
    const char *name;
    ps_rope_style rope_style;
    ps_glu glu;
    bool embed_sqrt_scale;      /* embeddings are multiplied by sqrt(n_embd) */
    bool moe;                   /* every layer's feed-forward is routed experts */
    bool moe_norm_topk;         /* the weights of the used experts are normalised to sum 1 */
    bool window_everywhere;     /* a sliding_window key applies to all layers */
    uint32_t window_period;     /* layer l slides unless (l+1) % period == 0; 0: no such pattern */
    float window_rope_base;     /* theta of sliding layers, which ignore rope scaling */
    uint32_t wide_scale_layers; /* with this many layers q.k is scaled by 1/sqrt(n_embd/n_head); 0: never */
    uint32_t hkeys_required, hkeys_optional; /* bit sets of ps_hkey */
    uint64_t roles_required, roles_optional; /* bit sets of ps_role */
};
const ps_arch *ps_arch_find(ps_str name); /* NULL if unknown */

/* Dimensions of a weight by name of its extents, resolved per layer. */
typedef enum ps_extent {
    PS_EXT_ONE,
    PS_EXT_EMBD,      /* n_embd */
    PS_EXT_VOCAB,     /* rows of the token embedding */
    PS_EXT_Q,         /* n_head * head_dim_k */
    PS_EXT_K,         /* n_head_kv * head_dim_k */
    PS_EXT_V,         /* n_head_kv * head_dim_v */
    PS_EXT_O,         /* n_head * head_dim_v */
    PS_EXT_HEAD_K,    /* head_dim_k */
    PS_EXT_FF,        /* n_ff */
    PS_EXT_FF_EXPERT, /* n_ff_expert */
    PS_EXT_EXPERT,    /* n_expert */
    PS_EXT_HALF_ROPE  /* rope_dims / 2 */
} ps_extent;

typedef struct ps_role_shape {
    ps_extent cols, rows, experts;
    bool vector; /* norm, bias or factors: F32 in every file, and only F32 is computed */
} ps_role_shape;
const ps_role_shape *ps_role_shape_get(ps_role role);

/* A hyper-parameter as read. */
typedef struct ps_hvalue {
    const ps_gguf_kv *kv; /* NULL: absent */
    uint32_t u32;         /* U32, and LAYERS when scalar */
    double f64;           /* F32 */
} ps_hvalue;

/* State of one ps_model_open or ps_model_survey. */
typedef struct ps_build {
    const ps_gguf *gguf;
    const ps_arch *arch;
    ps_arena *arena;
    ps_error *err;
    ps_survey *survey;    /* NULL: the first refusal ends it */
    ps_refusal *refusals; /* room for PS_SURVEY_MAX_REFUSALS */
    bool incomplete;      /* survey: a refusal left the model without something it needs */
    ps_model *model;
    ps_layer *layers;
    ps_weight *weights; /* one per tensor of the file */
    uint8_t *kv_used;   /* one per key of the file */
    ps_hvalue h[PS_HKEY_COUNT];
} ps_build;

#if defined(__GNUC__)
#define PS_BUILD_PRINTF __attribute__((format(printf, 5, 6)))
#else
#define PS_BUILD_PRINTF
#endif
/* Refuse `subject`. Opening: fills b->err and returns `status`. Surveying: notes it and returns PS_OK; with
 * `needed` the model cannot be completed. */
PS_BUILD_PRINTF ps_status ps_build_refuse(ps_build *b, bool needed, ps_status status, const char *subject,
                                          const char *fmt, ...);
ps_status ps_build_nomem(ps_build *b);

/* Steps, in this order: read keys; per-layer numbers; roles of tensors; shards and operations. */
ps_status ps_build_keys(ps_build *b);
ps_status ps_build_layers(ps_build *b);
ps_status ps_build_weights(ps_build *b);
ps_status ps_build_shards(ps_build *b);

/* NUL-terminated copy for messages, cut to the buffer. */
const char *ps_str_cut(ps_str s, char *buf, size_t size);

#endif
