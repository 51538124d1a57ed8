/* Operation lists of every architecture, and every refusal by name: one changed key or tensor per row. */
#include <criterion/criterion.h>
#include <math.h>

#include "../../model_builder.h"
#include "model/model.h"

/* Kept small: one line per operation, weights and values by name. */
static void print_ops(const ps_shard *s, char *buf, size_t size) {
    size_t at = 0;
    buf[0] = '\0';
    for (uint32_t i = 0; i < s->n_ops && at < size; i++) {
        const ps_op_desc *o = &s->ops[i];
        at += (size_t)snprintf(buf + at, size - at, "%s", ps_op_get(o->op)->name);
        for (int k = 0; k < PS_OP_MAX_WEIGHTS && at < size; k++)
            if (o->w[k] != PS_ROLE_NONE)
                at += (size_t)snprintf(buf + at, size - at, " %s", ps_role_get(o->w[k])->name);
        for (int k = 0; k < PS_OP_MAX_SRC && at < size; k++)
            if (o->src[k] != PS_VALUE_NONE)
                at += (size_t)snprintf(buf + at, size - at, " %s", ps_value_name(o->src[k]));
        if (at < size)
            at += (size_t)snprintf(buf + at, size - at, " > %s %ux%u\n", ps_value_name(o->dst), o->cols,
                                   o->rows);
    }
}

static ps_status open_built(mb *b, ps_gguf **g, ps_model **m, ps_error *e) {
    uint64_t size;
    const uint8_t *data = mb_finish(b, &size);
    ps_status st = ps_gguf_open_memory(data, size, "test.gguf", g, e);
    cr_assert_eq(st, PS_OK, "the reader refused it: %s: %s", e->subject, e->message);
    return ps_model_open(*g, m, e);
}

static void check_ops(mb *b, const char *attn, const char *ffn, const char *head) {
    ps_gguf *g;
    ps_model *m;
    ps_error e = {.status = PS_OK};
    char text[4096];
    cr_assert_eq(open_built(b, &g, &m, &e), PS_OK, "%s: %s", e.subject, e.message);
    print_ops(&m->shards[0], text, sizeof text);
    cr_assert_str_eq(text, "embed token_embd.weight > x 64x64\n");
    for (uint32_t l = 0; l < m->n_layers; l++) {
        print_ops(&m->shards[1 + 2 * l], text, sizeof text);
        cr_assert_str_eq(text, attn);
        print_ops(&m->shards[2 + 2 * l], text, sizeof text);
        cr_assert_str_eq(text, ffn);
    }
    print_ops(&m->shards[m->n_shards - 1], text, sizeof text);
    cr_assert_str_eq(text, head);
    ps_model_close(m);
    ps_gguf_close(g);
    mb_free(b);
}

#define HEAD                                                                                                 \
    "gather x > last 64x64\n"                                                                                \
    "rmsnorm output_norm.weight last > last_norm 64x64\n"                                                    \
    "matmul output.weight last_norm > logits 64x128\n"                                                       \
    "sample logits > tokens 128x1\n"

Test(arch, ops_of_llama) {
    mb b;
    mb_model(&b, &mb_llama_small);
    check_ops(&b,
              "rmsnorm attn_norm.weight x > norm 64x64\n"
              "matmul attn_q.weight norm > q 64x64\n"
              "matmul attn_k.weight norm > k 64x32\n"
              "matmul attn_v.weight norm > v 64x32\n"
              "rope rope_freqs.weight q > q 64x64\n"
              "rope rope_freqs.weight k > k 32x32\n"
              "kv_store k v > none 32x0\n"
              "attention q > att 64x64\n"
              "matmul attn_output.weight att x > x 64x64\n",
              "rmsnorm ffn_norm.weight x > norm 64x64\n"
              "matmul ffn_gate.weight norm > gate 64x96\n"
              "matmul ffn_up.weight norm > up 64x96\n"
              "glu gate up > act 96x96\n"
              "matmul ffn_down.weight act x > x 96x64\n",
              HEAD);
}

Test(arch, ops_of_llama_with_biases) {
    static const struct {
        const char *name;
        uint64_t n;
    } bias[] = {{"attn_q", 64},   {"attn_k", 32}, {"attn_v", 32},  {"attn_output", 64},
                {"ffn_gate", 96}, {"ffn_up", 96}, {"ffn_down", 64}};
    mb b;
    char name[64];
    mb_model(&b, &mb_llama_small);
    mb_drop(&b, "rope_freqs.weight");
    for (unsigned l = 0; l < 2; l++)
        for (unsigned i = 0; i < 7; i++) {
            snprintf(name, sizeof name, "blk.%u.%s.bias", l, bias[i].name);
            mb_tensor(&b, name, PS_DTYPE_F32, bias[i].n, 0, 0);
        }
    check_ops(&b,
              "rmsnorm attn_norm.weight x > norm 64x64\n"
              "matmul attn_q.weight attn_q.bias norm > q 64x64\n"
              "matmul attn_k.weight attn_k.bias norm > k 64x32\n"
              "matmul attn_v.weight attn_v.bias norm > v 64x32\n"
              "rope q > q 64x64\n"
              "rope k > k 32x32\n"
              "kv_store k v > none 32x0\n"
              "attention q > att 64x64\n"
              "matmul attn_output.weight attn_output.bias att x > x 64x64\n",
              "rmsnorm ffn_norm.weight x > norm 64x64\n"
              "matmul ffn_gate.weight ffn_gate.bias norm > gate 64x96\n"
              "matmul ffn_up.weight ffn_up.bias norm > up 64x96\n"
              "glu gate up > act 96x96\n"
              "matmul ffn_down.weight ffn_down.bias act x > x 96x64\n",
              HEAD);
}

#define QWEN3_ATTN                                                                                           \
    "rmsnorm attn_norm.weight x > norm 64x64\n"                                                              \
    "matmul attn_q.weight norm > q 64x128\n"                                                                 \
    "matmul attn_k.weight norm > k 64x64\n"                                                                  \
    "matmul attn_v.weight norm > v 64x64\n"                                                                  \
    "rmsnorm attn_q_norm.weight q > q 128x128\n"                                                             \
    "rmsnorm attn_k_norm.weight k > k 64x64\n"                                                               \
    "rope q > q 128x128\n"                                                                                   \
    "rope k > k 64x64\n"                                                                                     \
    "kv_store k v > none 64x0\n"                                                                             \
    "attention q > att 128x128\n"                                                                            \
    "matmul attn_output.weight att x > x 128x64\n"

Test(arch, ops_of_qwen3) {
    mb b;
    mb_model(&b, &mb_qwen3_small);
    check_ops(&b, QWEN3_ATTN,
              "rmsnorm ffn_norm.weight x > norm 64x64\n"
              "matmul ffn_gate.weight norm > gate 64x96\n"
              "matmul ffn_up.weight norm > up 64x96\n"
              "glu gate up > act 96x96\n"
              "matmul ffn_down.weight act x > x 96x64\n",
              HEAD);
}

Test(arch, ops_of_qwen3moe) {
    mb b;
    mb_model(&b, &mb_qwen3moe_small);
    check_ops(
        &b, QWEN3_ATTN,
        "rmsnorm ffn_norm.weight x > norm 64x64\n"
        "matmul ffn_gate_inp.weight norm > router 64x8\n"
        "moe_route router > sel 8x2\n"
        "moe_dispatch ffn_gate_exps.weight ffn_up_exps.weight ffn_down_exps.weight norm sel x > x 64x64\n",
        HEAD);
}

Test(arch, ops_of_gemma3) {
    mb b;
    mb_model(&b, &mb_gemma3_small);
    check_ops(&b,
              "rmsnorm attn_norm.weight x > norm 64x64\n"
              "matmul attn_q.weight norm > q 64x128\n"
              "matmul attn_k.weight norm > k 64x32\n"
              "matmul attn_v.weight norm > v 64x32\n"
              "rmsnorm attn_q_norm.weight q > q 128x128\n"
              "rmsnorm attn_k_norm.weight k > k 32x32\n"
              "rope q > q 128x128\n"
              "rope k > k 32x32\n"
              "kv_store k v > none 32x0\n"
              "attention q > att 128x128\n"
              "matmul attn_output.weight att > proj 128x64\n"
              "rmsnorm post_attention_norm.weight proj x > x 64x64\n",
              "rmsnorm ffn_norm.weight x > norm 64x64\n"
              "matmul ffn_gate.weight norm > gate 64x96\n"
              "matmul ffn_up.weight norm > up 64x96\n"
              "glu gate up > act 96x96\n"
              "matmul ffn_down.weight act > proj 96x64\n"
              "rmsnorm post_ffw_norm.weight proj x > x 64x64\n",
              HEAD);
}

typedef enum what { U32, U64, F32, F64, BOOL, STR, LIST, DROP, TENSOR } what;

/* One change to a good file. LIST: [n, n-1, ...] as many as `count`. TENSOR: type `count`, dims n x d1 x d2. */
typedef struct change {
    what what;
    const char *name;
    double n;
    const char *text;
    uint32_t count, d1, d2;
} change;

static void apply(mb *b, const change *c) {
    uint32_t list[64];
    switch (c->what) {
    case U32:
        mb_u32(b, c->name, (uint32_t)c->n);
        break;
    case U64:
        mb_u64(b, c->name, (uint64_t)c->n);
        break;
    case F32:
        mb_f32(b, c->name, (float)c->n);
        break;
    case F64:
        mb_scalar(b, c->name, PS_GGUF_F64, &c->n, 8);
        break;
    case BOOL:
        mb_bool(b, c->name, c->n != 0);
        break;
    case STR:
        mb_str(b, c->name, c->text);
        break;
    case LIST:
        for (uint32_t i = 0; i < c->count; i++)
            list[i] = (uint32_t)c->n - i;
        mb_array(b, c->name, PS_GGUF_U32, list, c->count, 4);
        break;
    case DROP:
        mb_drop(b, c->name);
        break;
    case TENSOR:
        mb_tensor(b, c->name, (ps_dtype)c->count, (uint64_t)c->n, c->d1, c->d2);
        break;
    }
}

typedef struct refusal_case {
    const mb_shape *shape;
    change change;
    ps_status status;
    const char *message; /* part of it */
} refusal_case;

#define L &mb_llama_small
#define Q &mb_qwen3_small
#define M &mb_qwen3moe_small
#define G &mb_gemma3_small
#define HUGE_INT 2147483648.0

/* The subject of the error must be the changed key or tensor. */
static const refusal_case cases[] = {
    {L, {DROP, "llama.block_count", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {DROP, "llama.context_length", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {DROP, "llama.embedding_length", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {DROP, "llama.feed_forward_length", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {DROP, "llama.attention.head_count", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {DROP, "llama.attention.layer_norm_rms_epsilon", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {M, {DROP, "qwen3moe.expert_count", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {M, {DROP, "qwen3moe.expert_used_count", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {M, {DROP, "qwen3moe.expert_feed_forward_length", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {G, {DROP, "gemma3.attention.sliding_window", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {DROP, "general.architecture", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {STR, "general.architecture", 0, "mamba", 0, 0, 0}, PS_E_UNSUPPORTED, "\"mamba\" is not supported"},
    {L, {STR, "general.architecture", 0, "", 0, 0, 0}, PS_E_UNSUPPORTED, "not supported"},
    /* caches that this build does not size: shared between layers, recurrent, none in some layers; by architecture and by key */
    {G,
     {STR, "general.architecture", 0, "gemma3n", 0, 0, 0},
     PS_E_UNSUPPORTED,
     "\"gemma3n\" is not supported"},
    {Q,
     {STR, "general.architecture", 0, "qwen3next", 0, 0, 0},
     PS_E_UNSUPPORTED,
     "\"qwen3next\" is not supported"},
    {L,
     {STR, "general.architecture", 0, "falcon-h1", 0, 0, 0},
     PS_E_UNSUPPORTED,
     "\"falcon-h1\" is not supported"},
    {L, {STR, "general.architecture", 0, "deci", 0, 0, 0}, PS_E_UNSUPPORTED, "\"deci\" is not supported"},
    {G, {U32, "gemma3.attention.shared_kv_layers", 3, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "architecture gemma3"},
    {L, {U32, "llama.ssm.state_size", 128, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "architecture llama"},
    {Q, {U32, "qwen3.full_attention_interval", 4, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "architecture qwen3"},
    {L, {U32, "general.architecture", 3, 0, 0, 0, 0}, PS_E_DATA, ""},
    /* hostile numbers */
    {L, {U32, "llama.block_count", 0, 0, 0, 0, 0}, PS_E_DATA, "zero"},
    {L, {U32, "llama.block_count", HUGE_INT, 0, 0, 0, 0}, PS_E_DATA, "between"},
    {L, {U32, "llama.block_count", HUGE_INT - 1, 0, 0, 0, 0}, PS_E_DATA, "tensors"},
    {L, {U64, "llama.block_count", 1.8e19, 0, 0, 0, 0}, PS_E_DATA, "between"},
    {L, {F32, "llama.block_count", 2, 0, 0, 0, 0}, PS_E_DATA, "not an integer"},
    {L, {STR, "llama.block_count", 0, "2", 0, 0, 0}, PS_E_DATA, "not an integer"},
    {L, {LIST, "llama.block_count", 2, 0, 1, 0, 0}, PS_E_DATA, "array"},
    {L, {U32, "llama.context_length", 0, 0, 0, 0, 0}, PS_E_DATA, "zero"},
    {L, {U32, "llama.embedding_length", 0, 0, 0, 0, 0}, PS_E_DATA, "zero"},
    {L, {U32, "llama.attention.head_count", HUGE_INT, 0, 0, 0, 0}, PS_E_DATA, "between"},
    {L, {U32, "llama.attention.head_count", HUGE_INT - 2, 0, 0, 0, 0}, PS_E_DATA, "too wide"},
    {L, {U32, "llama.attention.head_count", 0, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "no heads"},
    {L, {LIST, "llama.attention.head_count", 4, 0, 3, 0, 0}, PS_E_DATA, "3 elements for 2 layers"},
    {L, {LIST, "llama.attention.head_count", 4, 0, 0, 0, 0}, PS_E_DATA, "0 elements"},
    {L, {U32, "llama.attention.head_count_kv", 0, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "no KV heads"},
    {L, {LIST, "llama.attention.head_count_kv", 1, 0, 2, 0, 0}, PS_E_UNSUPPORTED, "layer 1 has no KV heads"},
    {L, {U32, "llama.attention.head_count_kv", 3, 0, 0, 0, 0}, PS_E_DATA, "not a multiple"},
    {L, {U32, "llama.attention.head_count_kv", 8, 0, 0, 0, 0}, PS_E_DATA, "not a multiple"},
    {L, {U32, "llama.attention.key_length", 15, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "odd head size"},
    {L, {U32, "llama.attention.key_length", 0, 0, 0, 0, 0}, PS_E_DATA, "zero"},
    {L, {U32, "llama.attention.key_length", 1026, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "(1026) above 1024"},
    {L, {U32, "llama.attention.value_length", 1025, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "(1025) above 1024"},
    {L, {U32, "llama.attention.value_length", 0, 0, 0, 0, 0}, PS_E_DATA, "zero"},
    {L,
     {U32, "llama.rope.dimension_count", 18, 0, 0, 0, 0},
     PS_E_DATA,
     "18 rotated elements of a head of 16"},
    {L, {U32, "llama.rope.dimension_count", 7, 0, 0, 0, 0}, PS_E_DATA, "rotated"},
    {L, {U32, "llama.rope.dimension_count", 0, 0, 0, 0, 0}, PS_E_DATA, "rotated"},
    {L, {F32, "llama.attention.layer_norm_rms_epsilon", NAN, 0, 0, 0, 0}, PS_E_DATA, "finite"},
    {L, {F32, "llama.attention.layer_norm_rms_epsilon", INFINITY, 0, 0, 0, 0}, PS_E_DATA, "finite"},
    {L, {F32, "llama.attention.layer_norm_rms_epsilon", 0, 0, 0, 0, 0}, PS_E_DATA, "not positive"},
    {L, {F32, "llama.attention.layer_norm_rms_epsilon", -1e-5, 0, 0, 0, 0}, PS_E_DATA, "not positive"},
    {L, {STR, "llama.attention.layer_norm_rms_epsilon", 0, "x", 0, 0, 0}, PS_E_DATA, "not a number"},
    {L, {F32, "llama.rope.freq_base", 0, 0, 0, 0, 0}, PS_E_DATA, "not positive"},
    {L, {F64, "llama.rope.freq_base", 1e-300, 0, 0, 0, 0}, PS_E_DATA, "not positive"},
    {L, {F32, "llama.rope.freq_base", NAN, 0, 0, 0, 0}, PS_E_DATA, "finite"},
    {L, {F32, "llama.rope.scaling.factor", -2, 0, 0, 0, 0}, PS_E_DATA, "usable factor"},
    {L, {F32, "llama.rope.scaling.factor", 1e-39, 0, 0, 0, 0}, PS_E_DATA, "usable factor"},
    {L, {F32, "llama.rope.scale_linear", -2, 0, 0, 0, 0}, PS_E_DATA, "usable factor"},
    {L, {U32, "llama.rope.scaling.type", 1, 0, 0, 0, 0}, PS_E_DATA, "not a string"},
    {L, {U32, "llama.feed_forward_length", 0, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "no feed-forward"},
    {L, {LIST, "llama.feed_forward_length", 1, 0, 2, 0, 0}, PS_E_UNSUPPORTED, "layer 1 has no feed-forward"},
    {L, {LIST, "llama.feed_forward_length", 9, 0, 1, 0, 0}, PS_E_DATA, "1 elements for 2 layers"},
    {M, {U32, "qwen3moe.expert_count", 0, 0, 0, 0, 0}, PS_E_DATA, "zero"},
    {M, {U32, "qwen3moe.expert_count", 1025, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "1025 is above 1024"},
    {M, {U32, "qwen3moe.expert_used_count", 9, 0, 0, 0, 0}, PS_E_DATA, "9 of 8"},
    {M, {U32, "qwen3moe.expert_used_count", 0, 0, 0, 0, 0}, PS_E_DATA, "zero"},
    {G, {U32, "gemma3.attention.sliding_window", 0, 0, 0, 0, 0}, PS_E_DATA, "zero"},
    /* hyper-parameters that would change the result */
    {L, {STR, "llama.rope.scaling.type", 0, "yarn", 0, 0, 0}, PS_E_UNSUPPORTED, "\"yarn\""},
    {Q, {STR, "qwen3.rope.scaling.type", 0, "longrope", 0, 0, 0}, PS_E_UNSUPPORTED, "\"longrope\""},
    {L, {F32, "llama.rope.scaling.attn_factor", 2, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 1"},
    {L, {BOOL, "llama.rope.scaling.finetuned", 1, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "true"},
    {L, {F32, "llama.rope.scaling.yarn_log_multiplier", 1, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "not supported"},
    {L, {F32, "llama.attention.scale", 0.3, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 0.25"},
    {L, {BOOL, "llama.attention.causal", 0, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "false"},
    {L, {U32, "llama.attention.causal", 1, 0, 0, 0, 0}, PS_E_DATA, "wrong type"},
    {L, {F32, "llama.logit_scale", 0.5, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 1"},
    {L, {STR, "llama.logit_scale", 0, "1", 0, 0, 0}, PS_E_DATA, "wrong type"},
    {L, {F32, "llama.final_logit_softcapping", 30, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 0"},
    {G, {F32, "gemma3.final_logit_softcapping", 30, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 0"},
    {L, {STR, "llama.tensor_data_layout", 0, "other", 0, 0, 0}, PS_E_UNSUPPORTED, "\"other\""},
    {L, {U32, "llama.tensor_data_layout", 0, 0, 0, 0, 0}, PS_E_DATA, "wrong type"},
    {L, {U32, "llama.expert_count", 8, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 0"},
    {L, {U32, "llama.some_new_key", 0, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "architecture llama"},
    {Q, {U32, "qwen3.attention.sliding_window", 4096, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 0"},
    {M, {F32, "qwen3moe.expert_weights_scale", 2.5, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 1"},
    {M, {BOOL, "qwen3moe.expert_weights_norm", 0, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "false"},
    {M, {U32, "qwen3moe.expert_gating_func", 2, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 1"},
    {M, {U32, "qwen3moe.expert_shared_count", 1, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 0"},
    {M, {U32, "qwen3moe.leading_dense_block_count", 1, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 0"},
    {G, {U32, "gemma3.attention.sliding_window_pattern", 4, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "a period of 4"},
    {G, {LIST, "gemma3.attention.sliding_window_pattern", 9, 0, 7, 0, 0}, PS_E_UNSUPPORTED, "layer 5"},
    {G, {LIST, "gemma3.attention.sliding_window_pattern", 9, 0, 6, 0, 0}, PS_E_DATA, "per layer"},
    {G, {STR, "gemma3.attention.sliding_window_pattern", 0, "6", 0, 0, 0}, PS_E_DATA, "not an integer"},
    {G, {F32, "gemma3.rope.freq_base_swa", 5000, 0, 0, 0, 0}, PS_E_UNSUPPORTED, "only 10000"},
    /* tensors: absent, unknown, of another shape or type */
    {L, {DROP, "token_embd.weight", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {DROP, "output_norm.weight", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {DROP, "blk.1.attn_q.weight", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {DROP, "blk.0.ffn_down.weight", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {Q, {DROP, "blk.1.attn_k_norm.weight", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {M, {DROP, "blk.1.ffn_gate_inp.weight", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {G, {DROP, "blk.6.post_ffw_norm.weight", 0, 0, 0, 0, 0}, PS_E_DATA, "missing"},
    {L, {TENSOR, "blk.0.attn_q_norm.weight", 16, 0, PS_DTYPE_F32, 0, 0}, PS_E_UNSUPPORTED, "no role"},
    {L, {TENSOR, "blk.0.ffn_gate.0.weight", 64, 0, PS_DTYPE_Q4_0, 96, 0}, PS_E_UNSUPPORTED, "no role"},
    {L, {TENSOR, "blk.2.attn_q.weight", 64, 0, PS_DTYPE_Q4_0, 64, 0}, PS_E_UNSUPPORTED, "beyond"},
    {L,
     {TENSOR, "blk.99999999999999999999.attn_q.weight", 64, 0, PS_DTYPE_Q4_0, 64, 0},
     PS_E_UNSUPPORTED,
     ""},
    {L, {TENSOR, "blk.00.attn_q.weight", 64, 0, PS_DTYPE_Q4_0, 64, 0}, PS_E_UNSUPPORTED, "no role"},
    {L, {TENSOR, "blk..attn_q.weight", 64, 0, PS_DTYPE_Q4_0, 64, 0}, PS_E_UNSUPPORTED, "no role"},
    {L, {TENSOR, "blk.1", 64, 0, PS_DTYPE_Q4_0, 64, 0}, PS_E_UNSUPPORTED, "no role"},
    {L, {TENSOR, "blk.0.output.weight", 64, 0, PS_DTYPE_Q4_0, 64, 0}, PS_E_UNSUPPORTED, "no role"},
    {L, {TENSOR, "attn_q.weight", 64, 0, PS_DTYPE_Q4_0, 64, 0}, PS_E_UNSUPPORTED, "no role"},
    {L, {TENSOR, "rope_factors_long.weight", 8, 0, PS_DTYPE_F32, 0, 0}, PS_E_UNSUPPORTED, "no role"},
    {Q, {TENSOR, "rope_freqs.weight", 16, 0, PS_DTYPE_F32, 0, 0}, PS_E_UNSUPPORTED, "no role"},
    {Q, {TENSOR, "blk.0.attn_q.bias", 128, 0, PS_DTYPE_F32, 0, 0}, PS_E_UNSUPPORTED, "no role"},
    {L,
     {TENSOR, "blk.1.attn_q.weight", 64, 0, PS_DTYPE_Q4_0, 32, 0},
     PS_E_DATA,
     "shape [64 32 1 1], but the hyper-parameters say [64 64 1 1]"},
    {L, {TENSOR, "blk.1.attn_v.weight", 64, 0, PS_DTYPE_Q4_0, 32, 2}, PS_E_DATA, "shape [64 32 2 1]"},
    {L, {TENSOR, "blk.1.ffn_norm.weight", 32, 0, PS_DTYPE_F32, 0, 0}, PS_E_DATA, "shape"},
    {L, {TENSOR, "output.weight", 64, 0, PS_DTYPE_Q4_0, 96, 0}, PS_E_DATA, "shape"},
    {L, {TENSOR, "rope_freqs.weight", 16, 0, PS_DTYPE_F32, 0, 0}, PS_E_DATA, "shape"},
    {M, {TENSOR, "blk.1.ffn_down_exps.weight", 32, 0, PS_DTYPE_Q8_0, 64, 4}, PS_E_DATA, "say [32 64 8 1]"},
    {L, {TENSOR, "blk.1.attn_q.weight", 64, 0, PS_DTYPE_IQ4_NL, 64, 0}, PS_E_UNSUPPORTED, "type IQ4_NL"},
    {L, {TENSOR, "blk.1.ffn_up.weight", 64, 0, PS_DTYPE_MXFP4, 96, 0}, PS_E_UNSUPPORTED, "type MXFP4"},
    {L, {TENSOR, "blk.1.ffn_norm.weight", 64, 0, PS_DTYPE_F16, 0, 0}, PS_E_UNSUPPORTED, "only F32"},
    {L, {TENSOR, "rope_freqs.weight", 8, 0, PS_DTYPE_F16, 0, 0}, PS_E_UNSUPPORTED, "only F32"},
};

Test(arch, every_refusal_names_its_subject) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const refusal_case *c = &cases[i];
        mb b;
        ps_gguf *g;
        ps_model *m;
        ps_error e = {.status = PS_OK};
        char want[256];
        mb_model(&b, c->shape);
        apply(&b, &c->change);
        ps_status st = open_built(&b, &g, &m, &e);
        cr_assert_eq(st, c->status, "case %zu, %s: %s instead of %s (%s: %s)", i, c->change.name,
                     ps_status_name(st), ps_status_name(c->status), e.subject, e.message);
        cr_assert_eq(e.status, st);
        snprintf(want, sizeof want, "test.gguf: %s", c->change.name);
        cr_expect(strstr(e.subject, want) != NULL || strcmp(c->message, "") == 0,
                  "case %zu: subject \"%s\" is not %s", i, e.subject, want);
        cr_expect_not_null(strstr(e.message, c->message), "case %zu, %s: \"%s\" lacks \"%s\"", i,
                           c->change.name, e.message, c->message);
        /* The survey lists it as well, and never fails on it. */
        ps_survey *s;
        cr_assert_eq(ps_model_survey(g, &s, &e), PS_OK);
        cr_assert_gt(s->n_refused, 0);
        bool named = strcmp(c->message, "") == 0;
        for (uint32_t k = 0; k < s->n_refusals; k++)
            named |=
                strcmp(s->refusals[k].subject, c->change.name) == 0 && s->refusals[k].status == c->status;
        cr_expect(named, "case %zu: the survey does not name %s", i, c->change.name);
        ps_survey_close(s);
        ps_gguf_close(g);
        mb_free(&b);
    }
}

/* Changes that are consumed: the file still opens. */
static const struct {
    const mb_shape *shape;
    change change;
} accepted[] = {
    {L, {STR, "llama.rope.scaling.type", 0, "none", 0, 0, 0}},
    {L, {STR, "llama.rope.scaling.type", 0, "linear", 0, 0, 0}},
    {L, {F32, "llama.rope.scaling.factor", 0, 0, 0, 0, 0}},
    {L, {U32, "llama.rope.scaling.original_context_length", 4096, 0, 0, 0, 0}},
    {L, {STR, "llama.tensor_data_layout", 0, "Meta AI original pth", 0, 0, 0}},
    {L, {U32, "llama.vocab_size", 128, 0, 0, 0, 0}},
    {L, {U32, "llama.expert_count", 0, 0, 0, 0, 0}},
    {L, {F32, "llama.attention.scale", 0.25, 0, 0, 0, 0}},
    {L, {BOOL, "llama.attention.causal", 1, 0, 0, 0, 0}},
    {L, {DROP, "output.weight", 0, 0, 0, 0, 0}},
    {L, {DROP, "rope_freqs.weight", 0, 0, 0, 0, 0}},
    {L, {DROP, "general.name", 0, 0, 0, 0, 0}},
    {L, {U32, "otherprogram.some_key", 1, 0, 0, 0, 0}},
    {L, {U32, "llamas.block_count", 1, 0, 0, 0, 0}},
    {M, {U32, "qwen3moe.feed_forward_length", 6144, 0, 0, 0, 0}},
    {M, {F32, "qwen3moe.expert_weights_scale", 1, 0, 0, 0, 0}},
    {M, {U32, "qwen3moe.expert_gating_func", 1, 0, 0, 0, 0}},
    {G, {U32, "gemma3.attention.sliding_window_pattern", 6, 0, 0, 0, 0}},
    {G, {F32, "gemma3.rope.freq_base_swa", 10000, 0, 0, 0, 0}},
    {G, {F32, "gemma3.final_logit_softcapping", 0, 0, 0, 0, 0}},
};

Test(arch, equal_values_are_consumed) {
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        mb b;
        ps_gguf *g;
        ps_model *m;
        ps_error e = {.status = PS_OK};
        mb_model(&b, accepted[i].shape);
        apply(&b, &accepted[i].change);
        cr_assert_eq(open_built(&b, &g, &m, &e), PS_OK, "case %zu: %s: %s", i, e.subject, e.message);
        ps_survey *s;
        cr_assert_eq(ps_model_survey(g, &s, &e), PS_OK);
        cr_assert_eq(s->n_refused, 0);
        cr_assert_not_null(s->model);
        cr_assert_eq(s->model->weight_bytes, m->weight_bytes);
        ps_survey_close(s);
        ps_model_close(m);
        ps_gguf_close(g);
        mb_free(&b);
    }
}

/* The name stands in plans, tables and reports: one line of well-formed text, whatever the file holds. */
Test(arch, names_are_text_of_one_line) {
    static const struct {
        const char *in, *out;
    } names[] = {{"a\xff\xfe\x80"
                  "bc",
                  "a???bc"},
                 {"two\nlines\x1b[1m", "two lines [1m"},
                 {"\xe2\x80\xaeturned", " turned"},
                 {"caf\xc3\xa9", "caf\xc3\xa9"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        mb b;
        ps_gguf *g;
        ps_model *m;
        ps_error e = {.status = PS_OK};
        mb_model(&b, L);
        apply(&b, &(change){STR, "general.name", 0, names[i].in, 0, 0, 0});
        cr_assert_eq(open_built(&b, &g, &m, &e), PS_OK, "%s: %s", e.subject, e.message);
        cr_assert_str_eq(m->name, names[i].out);
        ps_model_close(m);
        ps_gguf_close(g);
        mb_free(&b);
    }
}

static ps_model *must_open(mb *b, ps_gguf **g) {
    ps_model *m = NULL;
    ps_error e = {.status = PS_OK};
    cr_assert_eq(open_built(b, g, &m, &e), PS_OK, "%s: %s", e.subject, e.message);
    return m;
}

static void drop_all(mb *b, ps_gguf *g, ps_model *m) {
    ps_model_close(m);
    ps_gguf_close(g);
    mb_free(b);
}

Test(arch, per_layer_arrays) {
    mb b;
    ps_gguf *g;
    int32_t heads[2] = {4, 8};
    uint64_t kv[2] = {2, 4};
    uint16_t ff[2] = {96, 128};
    mb_model(&b, &mb_llama_small);
    mb_array(&b, "llama.attention.head_count", PS_GGUF_I32, heads, 2, 4);
    mb_array(&b, "llama.attention.head_count_kv", PS_GGUF_U64, kv, 2, 8);
    mb_array(&b, "llama.feed_forward_length", PS_GGUF_U16, ff, 2, 2);
    mb_tensor(&b, "blk.1.attn_q.weight", PS_DTYPE_Q4_0, 64, 128, 0);
    mb_tensor(&b, "blk.1.attn_k.weight", PS_DTYPE_Q4_0, 64, 64, 0);
    mb_tensor(&b, "blk.1.attn_v.weight", PS_DTYPE_Q4_0, 64, 64, 0);
    mb_tensor(&b, "blk.1.attn_output.weight", PS_DTYPE_Q4_0, 128, 64, 0);
    mb_tensor(&b, "blk.1.ffn_gate.weight", PS_DTYPE_Q4_0, 64, 128, 0);
    mb_tensor(&b, "blk.1.ffn_up.weight", PS_DTYPE_Q4_0, 64, 128, 0);
    mb_tensor(&b, "blk.1.ffn_down.weight", PS_DTYPE_Q4_0, 128, 64, 0);
    ps_model *m = must_open(&b, &g);
    cr_assert(m->layers[0].n_head == 4 && m->layers[0].n_head_kv == 2 && m->layers[0].n_ff == 96);
    cr_assert(m->layers[1].n_head == 8 && m->layers[1].n_head_kv == 4 && m->layers[1].n_ff == 128);
    /* K and V of layer 1 are twice as wide: 10 rows * 4 heads * 16 halfs */
    cr_assert_eq(ps_model_kv_bytes(m, 0, 10), 2 * 640);
    cr_assert_eq(ps_model_kv_bytes(m, 1, 10), 2 * 1280);
    drop_all(&b, g, m);
}

Test(arch, a_layer_without_heads_is_refused) {
    mb b;
    ps_gguf *g;
    ps_model *m;
    ps_error e = {.status = PS_OK};
    int32_t heads[2] = {4, 0};
    mb_model(&b, &mb_llama_small);
    mb_array(&b, "llama.attention.head_count", PS_GGUF_I32, heads, 2, 4);
    cr_assert_eq(open_built(&b, &g, &m, &e), PS_E_UNSUPPORTED);
    cr_assert_str_eq(e.subject, "test.gguf: llama.attention.head_count");
    cr_assert_not_null(strstr(e.message, "layer 1 has no heads"));
    ps_gguf_close(g);
    mb_free(&b);
    heads[1] = -4;
    mb_model(&b, &mb_llama_small);
    mb_array(&b, "llama.attention.head_count", PS_GGUF_I32, heads, 2, 4);
    cr_assert_eq(open_built(&b, &g, &m, &e), PS_E_DATA);
    cr_assert_not_null(strstr(e.message, "between"));
    ps_gguf_close(g);
    mb_free(&b);
}

Test(arch, defaults_of_absent_keys) {
    mb b;
    ps_gguf *g;
    mb_model(&b, &mb_llama_small);
    mb_drop(&b, "llama.attention.key_length");
    mb_drop(&b, "llama.attention.value_length");
    mb_drop(&b, "llama.rope.freq_base");
    mb_drop(&b, "output.weight");
    mb_drop(&b, "rope_freqs.weight");
    ps_model *m = must_open(&b, &g);
    cr_assert(m->layers[1].head_dim_k == 16 && m->layers[1].head_dim_v == 16 && m->layers[1].rope_dims == 16);
    cr_assert(m->layers[1].rope_base == 10000.0f && m->layers[1].rope_scale == 1.0f);
    cr_assert_eq(m->layers[1].attn_scale, 0.25f);
    cr_assert(m->tied_output && m->w[PS_ROLE_OUTPUT] == m->w[PS_ROLE_TOKEN_EMBD]);
    cr_assert_null(m->rope_factors);
    drop_all(&b, g, m);

    ps_error e = {.status = PS_OK};
    mb_model(&b, &mb_llama_small);
    mb_drop(&b, "llama.attention.head_count_kv"); /* as many as heads: K of the file is then too small */
    cr_assert_eq(open_built(&b, &g, &m, &e), PS_E_DATA);
    cr_assert_str_eq(e.subject, "test.gguf: blk.0.attn_k.weight");
    ps_gguf_close(g);
    mb_free(&b);
    mb_model(&b, &mb_llama_small);
    mb_drop(&b, "llama.attention.value_length");
    mb_u32(&b, "llama.attention.head_count", 6);
    cr_assert_eq(open_built(&b, &g, &m, &e), PS_E_DATA);
    cr_assert_not_null(strstr(e.message, "do not divide"));
    ps_gguf_close(g);
    mb_free(&b);
}

Test(arch, rope_scaling_and_windows) {
    mb b;
    ps_gguf *g;
    mb_model(&b, &mb_llama_small);
    mb_f32(&b, "llama.rope.scaling.factor", 4.0f); /* no type: linear */
    mb_u32(&b, "llama.rope.dimension_count", 8);
    mb_tensor(&b, "rope_freqs.weight", PS_DTYPE_F32, 4, 0, 0);
    mb_u32(&b, "llama.attention.sliding_window", 100);
    ps_model *m = must_open(&b, &g);
    cr_assert(m->layers[1].rope_scale == 0.25f && m->layers[1].rope_dims == 8 && m->n_rope_factors == 4);
    cr_assert(m->layers[0].window == 100 && m->layers[1].window == 100);
    drop_all(&b, g, m);

    mb_model(&b, &mb_llama_small);
    mb_str(&b, "llama.rope.scaling.type", "none");
    mb_f32(&b, "llama.rope.scaling.factor", 4.0f);
    m = must_open(&b, &g);
    cr_assert_eq(m->layers[1].rope_scale, 1.0f);
    drop_all(&b, g, m);

    uint8_t slides[7] = {1, 1, 1, 1, 1, 0, 1};
    mb_model(&b, &mb_gemma3_small);
    mb_str(&b, "gemma3.rope.scaling.type", "linear");
    mb_f32(&b, "gemma3.rope.scaling.factor", 8.0f);
    mb_array(&b, "gemma3.attention.sliding_window_pattern", PS_GGUF_BOOL, slides, 7, 1);
    m = must_open(&b, &g);
    for (unsigned l = 0; l < 7; l++) {
        const ps_layer *y = &m->layers[l];
        cr_assert_eq(y->window, l == 5 ? 0 : 16);
        cr_assert_eq(y->rope_scale, l == 5 ? 0.125f : 1.0f);
        cr_assert_eq(y->rope_base, l == 5 ? 1000000.0f : 10000.0f);
    }
    cr_assert_eq(m->embed_scale, 8.0f);
    drop_all(&b, g, m);
}

Test(arch, gemma3_27b_scales_by_width_over_heads) {
    mb b;
    ps_gguf *g;
    mb_shape s = mb_gemma3_small;
    s.n_layers = 62;
    mb_model(&b, &s);
    ps_model *m = must_open(&b, &g);
    cr_assert_eq(m->layers[61].attn_scale, 0.25f); /* 1/sqrt(64/4) */
    drop_all(&b, g, m);
    s.n_layers = 61;
    mb_model(&b, &s);
    m = must_open(&b, &g);
    cr_assert_eq(m->layers[60].attn_scale, (float)(1 / sqrt(32)));
    drop_all(&b, g, m);
}

Test(arch, rope_factors_are_finite_and_positive) {
    const float bad[] = {0.0f, -1.0f, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        float f[8] = {1, 1, 1, 1, 1, 1, 1, bad[i]};
        mb b;
        ps_gguf *g;
        ps_model *m;
        ps_error e = {.status = PS_OK};
        mb_model(&b, &mb_llama_small);
        mb_data(&b, "rope_freqs.weight", f);
        cr_assert_eq(open_built(&b, &g, &m, &e), PS_E_DATA);
        cr_assert_not_null(strstr(e.subject, "rope_freqs.weight"));
        cr_assert_not_null(strstr(e.message, "factor 7"));
        ps_gguf_close(g);
        mb_free(&b);
    }
}

Test(arch, vocabulary_must_agree) {
    mb b;
    ps_gguf *g;
    ps_model *m;
    ps_error e = {.status = PS_OK};
    mb_model(&b, &mb_llama_small);
    mb_u32(&b, "llama.vocab_size", 127);
    cr_assert_eq(open_built(&b, &g, &m, &e), PS_E_DATA);
    cr_assert_str_eq(e.message, "128 rows, but llama.vocab_size is 127");
    ps_gguf_close(g);
    mb_free(&b);
}

Test(arch, survey_collects_all_and_keeps_the_shards) {
    mb b;
    ps_gguf *g;
    ps_survey *s;
    ps_error e = {.status = PS_OK};
    uint64_t size;
    mb_model(&b, &mb_llama_small);
    mb_u32(&b, "llama.mystery", 1);
    mb_str(&b, "llama.rope.scaling.type", "yarn");
    mb_tensor(&b, "blk.0.attn_q.weight", PS_DTYPE_IQ4_NL, 64, 64, 0);
    mb_tensor(&b, "blk.1.attn_q.weight", PS_DTYPE_IQ4_NL, 64, 64, 0);
    mb_tensor(&b, "extra.weight", PS_DTYPE_F32, 8, 0, 0);
    const uint8_t *data = mb_finish(&b, &size);
    cr_assert_eq(ps_gguf_open_memory(data, size, "test.gguf", &g, &e), PS_OK);
    cr_assert_eq(ps_model_survey(g, &s, &e), PS_OK);
    cr_assert(s->arch_known && s->n_refused == 5 && s->n_refusals == 5);
    static const char *const subjects[] = {"llama.mystery", "llama.rope.scaling.type", "blk.0.attn_q.weight",
                                           "blk.1.attn_q.weight", "extra.weight"};
    for (unsigned i = 0; i < 5; i++)
        cr_assert_str_eq(s->refusals[i].subject, subjects[i]);
    cr_assert_not_null(s->model);
    cr_assert_eq(s->model->n_shards, 6);
    cr_assert_eq(s->model->shards[1].weight_bytes, 256 + 2 * 64 * 36 + 2 * 32 * 36 + 256 - 256);
    cr_assert_eq(s->n_types, 4); /* F32, Q4_0, Q8_0, IQ4_NL */
    cr_assert(s->types[0].type == PS_DTYPE_F32 && s->types[0].n_tensors == 7 && s->types[0].computable);
    cr_assert(s->types[3].type == PS_DTYPE_IQ4_NL && s->types[3].n_tensors == 2 && !s->types[3].computable);
    cr_assert_eq(s->types[3].bytes, 2 * 64 * 36);
    ps_survey_close(s);
    ps_gguf_close(g);
    mb_free(&b);
}

Test(arch, survey_of_what_cannot_be_completed) {
    mb b;
    ps_gguf *g;
    ps_survey *s;
    ps_error e = {.status = PS_OK};
    uint64_t size;
    mb_model(&b, &mb_llama_small);
    mb_drop(&b, "blk.0.attn_k.weight");
    mb_drop(&b, "blk.1.attn_k.weight");
    const uint8_t *data = mb_finish(&b, &size);
    cr_assert_eq(ps_gguf_open_memory(data, size, "test.gguf", &g, &e), PS_OK);
    cr_assert_eq(ps_model_survey(g, &s, &e), PS_OK);
    cr_assert(s->n_refused == 2 && s->model == NULL && s->n_types == 3);
    ps_survey_close(s);
    ps_gguf_close(g);
    mb_free(&b);

    mb_shape many = mb_llama_small; /* more refusals than the list holds */
    many.n_layers = 60;
    mb_model(&b, &many);
    mb_str(&b, "general.architecture", "no\nsuch");
    for (unsigned k = 0; k < 2; k++) {
        data = mb_finish(&b, &size);
        cr_assert_eq(ps_gguf_open_memory(data, size, "test.gguf", &g, &e), PS_OK);
        cr_assert_eq(ps_model_survey(g, &s, &e), PS_OK);
        if (k == 0) {
            cr_assert_str_eq(s->arch_name, "no?such");
            cr_assert(!s->arch_known && s->n_refused == 1 && s->model == NULL);
        } else {
            cr_assert_eq(s->n_refused, 60 * 7);
            cr_assert_eq(s->n_refusals, PS_SURVEY_MAX_REFUSALS);
            cr_assert_not_null(s->model);
        }
        ps_survey_close(s);
        ps_gguf_close(g);
        mb_free(&b);
        many.type = PS_DTYPE_IQ4_NL;
        mb_model(&b, &many);
        mb_drop(&b, "token_embd.weight");
        mb_tensor(&b, "token_embd.weight", PS_DTYPE_F16, 64, 128, 0);
    }
    mb_free(&b);
}
