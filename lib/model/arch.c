/* The architecture table: what each architecture knows, requires and does differently. */
#include "model/arch.h"

#include <assert.h>
#include <string.h>

#define A(id) (1u << PS_ARCH_##id)
#define H(id) (1u << PS_HKEY_##id)
#define R(id) (UINT64_C(1) << PS_ROLE_##id)

static_assert(PS_HKEY_COUNT <= 32, "bit sets of hyper-parameters are 32 bits wide");
static_assert(PS_ROLE_COUNT <= 64, "bit sets of roles are 64 bits wide");

static const ps_hkey_info hkeys[PS_HKEY_COUNT] = {
#define PS_HKEY_ROW(id, text, kind_) [PS_HKEY_##id] = {.suffix = (text), .kind = PS_HKIND_##kind_},
    PS_HKEY_LIST(PS_HKEY_ROW)
#undef PS_HKEY_ROW
};

const ps_hkey_info *ps_hkey_get(ps_hkey key) {
    assert((unsigned)key < PS_HKEY_COUNT);
    return &hkeys[key];
}

/* What every architecture here needs, and what it may have. Where a key is absent: head_count_kv = head_count,
 * key and value length = n_embd / n_head, rope dimensions = key length, rope base = 10000. */
#define COMMON_REQUIRED                                                                                      \
    (H(BLOCK_COUNT) | H(CONTEXT_LENGTH) | H(EMBEDDING_LENGTH) | H(HEAD_COUNT) | H(RMS_EPS))
#define COMMON_OPTIONAL                                                                                      \
    (H(VOCAB_SIZE) | H(HEAD_COUNT_KV) | H(KEY_LENGTH) | H(VALUE_LENGTH) | H(ATTN_SCALE) | H(ROPE_DIMS) |     \
     H(ROPE_BASE) | H(ROPE_SCALING_TYPE) | H(ROPE_SCALING_FACTOR) | H(ROPE_SCALE_LINEAR) | H(ROPE_ORIG_CTX))

#define COMMON_ROLES                                                                                         \
    (R(TOKEN_EMBD) | R(OUTPUT_NORM) | R(ATTN_NORM) | R(ATTN_Q) | R(ATTN_K) | R(ATTN_V) | R(ATTN_OUT) |       \
     R(FFN_NORM))
#define DENSE_ROLES (R(FFN_GATE) | R(FFN_UP) | R(FFN_DOWN))
#define MOE_ROLES (R(FFN_ROUTER) | R(FFN_GATE_EXPS) | R(FFN_UP_EXPS) | R(FFN_DOWN_EXPS))
#define QK_NORM_ROLES (R(ATTN_Q_NORM) | R(ATTN_K_NORM))
#define BIAS_ROLES                                                                                           \
    (R(ATTN_Q_BIAS) | R(ATTN_K_BIAS) | R(ATTN_V_BIAS) | R(ATTN_OUT_BIAS) | R(FFN_GATE_BIAS) |                \
     R(FFN_UP_BIAS) | R(FFN_DOWN_BIAS))

static const ps_arch archs[PS_ARCH_COUNT] = {
    /* Llama 2 and 3, Mistral, Minitron, SmolLM2. Rows of Q and K are stored permuted for the NORMAL pairing.
     * A sliding_window key (Mistral 7B v0.1) is computed as the sliding window it is, in every layer;
     * llama.cpp ignores the key for this architecture, so past the window the two differ. */
    [PS_ARCH_LLAMA] =
        {
            .id = PS_ARCH_LLAMA,
            .name = "llama",
            .rope_style = PS_ROPE_NORMAL,
            .glu = PS_GLU_SILU,
            .window_everywhere = true,
            .hkeys_required = COMMON_REQUIRED | H(FEED_FORWARD_LENGTH),
            .hkeys_optional = COMMON_OPTIONAL | H(SLIDING_WINDOW),
            .roles_required = COMMON_ROLES | DENSE_ROLES,
            .roles_optional = R(OUTPUT) | R(ROPE_FREQS) | BIAS_ROLES,
        },
    [PS_ARCH_QWEN3] =
        {
            .id = PS_ARCH_QWEN3,
            .name = "qwen3",
            .rope_style = PS_ROPE_NEOX,
            .glu = PS_GLU_SILU,
            .hkeys_required = COMMON_REQUIRED | H(FEED_FORWARD_LENGTH),
            .hkeys_optional = COMMON_OPTIONAL,
            .roles_required = COMMON_ROLES | DENSE_ROLES | QK_NORM_ROLES,
            .roles_optional = R(OUTPUT),
        },
    /* feed_forward_length is the width of dense layers, of which the released models have none. */
    [PS_ARCH_QWEN3MOE] =
        {
            .id = PS_ARCH_QWEN3MOE,
            .name = "qwen3moe",
            .rope_style = PS_ROPE_NEOX,
            .glu = PS_GLU_SILU,
            .moe = true,
            .moe_norm_topk = true,
            .hkeys_required =
                COMMON_REQUIRED | H(EXPERT_COUNT) | H(EXPERT_USED_COUNT) | H(EXPERT_FEED_FORWARD_LENGTH),
            .hkeys_optional = COMMON_OPTIONAL | H(FEED_FORWARD_LENGTH),
            .roles_required = COMMON_ROLES | MOE_ROLES | QK_NORM_ROLES,
            .roles_optional = R(OUTPUT),
        },
    /* Norm weights in the file include the +1 of the original. Five sliding layers, then a full one. */
    [PS_ARCH_GEMMA3] =
        {
            .id = PS_ARCH_GEMMA3,
            .name = "gemma3",
            .rope_style = PS_ROPE_NEOX,
            .glu = PS_GLU_GELU_TANH,
            .embed_sqrt_scale = true,
            .window_period = 6,
            .window_rope_base = 10000.0f,
            .wide_scale_layers = 62,
            .hkeys_required = COMMON_REQUIRED | H(FEED_FORWARD_LENGTH) | H(SLIDING_WINDOW),
            .hkeys_optional = COMMON_OPTIONAL | H(SLIDING_PATTERN),
            .roles_required =
                COMMON_ROLES | DENSE_ROLES | QK_NORM_ROLES | R(ATTN_POST_NORM) | R(FFN_POST_NORM),
            .roles_optional = R(OUTPUT),
        },
};

#define ALL (A(LLAMA) | A(QWEN3) | A(QWEN3MOE) | A(GEMMA3))
#define NUMBER(key, mask, v)                                                                                 \
    { .suffix = (key), .archs = (mask), .kind = PS_FIXED_NUMBER, .number = (v) }
#define BOOLEAN(key, mask, v)                                                                                \
    { .suffix = (key), .archs = (mask), .kind = PS_FIXED_BOOL, .number = (v) }
#define TEXT(key, mask, v)                                                                                   \
    { .suffix = (key), .archs = (mask), .kind = PS_FIXED_STR, .text = (v) }
static const ps_fixed_key fixed[] = {
    BOOLEAN("attention.causal", ALL, 1),
    BOOLEAN("use_parallel_residual", ALL, 0),
    NUMBER("attn_logit_softcapping", ALL, 0),
    NUMBER("final_logit_softcapping", ALL, 0),
    NUMBER("attention.clamp_kqv", ALL, 0),
    NUMBER("attention.max_alibi_bias", ALL, 0),
    NUMBER("logit_scale", ALL, 1),
    NUMBER("residual_scale", ALL, 1),
    NUMBER("embedding_scale", A(LLAMA) | A(QWEN3) | A(QWEN3MOE), 1),
    NUMBER("rope.scaling.attn_factor", ALL, 1),
    BOOLEAN("rope.scaling.finetuned", ALL, 0),
    NUMBER("rope.freq_base_swa", A(GEMMA3), 10000),
    NUMBER("pooling_type", ALL, 0),
    /* The permutation of Q and K that this architecture always has. */
    TEXT("tensor_data_layout", A(LLAMA), "Meta AI original pth"),
    NUMBER("expert_count", A(LLAMA) | A(QWEN3) | A(GEMMA3), 0),
    NUMBER("expert_used_count", A(LLAMA) | A(QWEN3) | A(GEMMA3), 0),
    NUMBER("expert_shared_count", ALL, 0),
    NUMBER("expert_shared_feed_forward_length", ALL, 0),
    NUMBER("leading_dense_block_count", ALL, 0),
    NUMBER("nextn_predict_layers", ALL, 0),
    NUMBER("expert_weights_scale", A(QWEN3MOE), 1),
    BOOLEAN("expert_weights_norm", A(QWEN3MOE), 1),
    NUMBER("expert_gating_func", A(QWEN3MOE), 1), /* softmax */
    NUMBER("expert_group_count", A(QWEN3MOE), 1),
    NUMBER("expert_group_used_count", A(QWEN3MOE), 1),
    NUMBER("interleave_moe_layer_step", A(QWEN3MOE), 1),
    NUMBER("attention.sliding_window", A(QWEN3) | A(QWEN3MOE), 0),
};

const ps_fixed_key *ps_fixed_keys(uint32_t *out_n) {
    *out_n = sizeof fixed / sizeof fixed[0];
    return fixed;
}

const ps_arch *ps_arch_find(ps_str name) {
    for (unsigned i = 0; i < PS_ARCH_COUNT; i++)
        if (strlen(archs[i].name) == name.len && memcmp(archs[i].name, name.data, name.len) == 0)
            return &archs[i];
    return NULL;
}

const char *const *ps_arch_names(void) {
    static const char *const names[] = {
#define PS_ARCH_NAME(id, text) text,
        PS_ARCH_LIST(PS_ARCH_NAME)
#undef PS_ARCH_NAME
            NULL};
    return names;
}

#define MATRIX(c, r)                                                                                         \
    { .cols = PS_EXT_##c, .rows = PS_EXT_##r, .experts = PS_EXT_ONE, .vector = false }
#define EXPERTS(c, r)                                                                                        \
    { .cols = PS_EXT_##c, .rows = PS_EXT_##r, .experts = PS_EXT_EXPERT, .vector = false }
#define VECTOR(c)                                                                                            \
    { .cols = PS_EXT_##c, .rows = PS_EXT_ONE, .experts = PS_EXT_ONE, .vector = true }
static const ps_role_shape shapes[PS_ROLE_COUNT] = {
    [PS_ROLE_TOKEN_EMBD] = MATRIX(EMBD, VOCAB),
    [PS_ROLE_OUTPUT_NORM] = VECTOR(EMBD),
    [PS_ROLE_OUTPUT] = MATRIX(EMBD, VOCAB),
    [PS_ROLE_ROPE_FREQS] = VECTOR(HALF_ROPE),
    [PS_ROLE_ATTN_NORM] = VECTOR(EMBD),
    [PS_ROLE_ATTN_Q] = MATRIX(EMBD, Q),
    [PS_ROLE_ATTN_K] = MATRIX(EMBD, K),
    [PS_ROLE_ATTN_V] = MATRIX(EMBD, V),
    [PS_ROLE_ATTN_OUT] = MATRIX(O, EMBD),
    [PS_ROLE_ATTN_Q_BIAS] = VECTOR(Q),
    [PS_ROLE_ATTN_K_BIAS] = VECTOR(K),
    [PS_ROLE_ATTN_V_BIAS] = VECTOR(V),
    [PS_ROLE_ATTN_OUT_BIAS] = VECTOR(EMBD),
    [PS_ROLE_ATTN_Q_NORM] = VECTOR(HEAD_K),
    [PS_ROLE_ATTN_K_NORM] = VECTOR(HEAD_K),
    [PS_ROLE_ATTN_POST_NORM] = VECTOR(EMBD),
    [PS_ROLE_FFN_NORM] = VECTOR(EMBD),
    [PS_ROLE_FFN_GATE] = MATRIX(EMBD, FF),
    [PS_ROLE_FFN_UP] = MATRIX(EMBD, FF),
    [PS_ROLE_FFN_DOWN] = MATRIX(FF, EMBD),
    [PS_ROLE_FFN_GATE_BIAS] = VECTOR(FF),
    [PS_ROLE_FFN_UP_BIAS] = VECTOR(FF),
    [PS_ROLE_FFN_DOWN_BIAS] = VECTOR(EMBD),
    [PS_ROLE_FFN_POST_NORM] = VECTOR(EMBD),
    [PS_ROLE_FFN_ROUTER] = MATRIX(EMBD, EXPERT),
    [PS_ROLE_FFN_GATE_EXPS] = EXPERTS(EMBD, FF_EXPERT),
    [PS_ROLE_FFN_UP_EXPS] = EXPERTS(EMBD, FF_EXPERT),
    [PS_ROLE_FFN_DOWN_EXPS] = EXPERTS(FF_EXPERT, EMBD),
};

const ps_role_shape *ps_role_shape_get(ps_role role) {
    assert((unsigned)role < PS_ROLE_COUNT);
    return &shapes[role];
}
