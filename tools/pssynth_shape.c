/* Presets and tensor lists of synthetic models. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "pssynth.h"

enum { ALIGNMENT = 32 };

#define TINY                                                                                                 \
    .n_layers = 2, .n_embd = 256, .n_ff = 512, .n_head = 4, .n_head_kv = 2, .head_dim = 64, .n_vocab = 1024, \
    .n_ctx = 2048, .rms_eps = 1e-5f, .type = PS_DTYPE_Q4_0, .embed_type = PS_DTYPE_Q4_0,                     \
    .output_type = PS_DTYPE_Q6_K

static const synth_shape presets[] = {
    {.preset = "tiny-llama", .arch = SYNTH_LLAMA, .rope_base = 10000.0f, TINY},
    {.preset = "tiny-qwen3", .arch = SYNTH_QWEN3, .rope_base = 1e6f, TINY},
    {.preset = "tiny-qwen3moe",
     .arch = SYNTH_QWEN3MOE,
     .rope_base = 1e6f,
     .n_expert = 6,
     .n_expert_used = 2,
     .n_ff_expert = 256,
     TINY},
    /* Seven layers: the sixth attends to everything, the others to a window. */
    {.preset = "tiny-gemma3",
     .arch = SYNTH_GEMMA3,
     .rope_base = 1e6f,
     .rms_eps = 1e-6f,
     .n_layers = 7,
     .n_embd = 256,
     .n_ff = 256,
     .n_head = 4,
     .n_head_kv = 1,
     .head_dim = 64,
     .n_vocab = 1024,
     .n_ctx = 2048,
     .window = 64,
     .tied = true,
     .type = PS_DTYPE_Q4_0,
     .embed_type = PS_DTYPE_Q4_0},
    {.preset = "minitron-8b-f16",
     .arch = SYNTH_LLAMA,
     .rope_base = 10000.0f,
     .rms_eps = 1e-5f,
     .n_layers = 40,
     .n_embd = 4096,
     .n_ff = 11520,
     .n_head = 32,
     .n_head_kv = 8,
     .head_dim = 128,
     .n_vocab = 131072,
     .n_ctx = 8192,
     .type = PS_DTYPE_F16,
     .embed_type = PS_DTYPE_F16,
     .output_type = PS_DTYPE_F16},
    {.preset = "llama3-8b-q4_0",
     .arch = SYNTH_LLAMA,
     .rope_base = 5e5f,
     .rms_eps = 1e-5f,
     .n_layers = 32,
     .n_embd = 4096,
     .n_ff = 14336,
     .n_head = 32,
     .n_head_kv = 8,
     .head_dim = 128,
     .n_vocab = 128256,
     .n_ctx = 8192,
     .type = PS_DTYPE_Q4_0,
     .embed_type = PS_DTYPE_Q4_0,
     .output_type = PS_DTYPE_Q6_K},
    {.preset = "llama3-70b",
     .arch = SYNTH_LLAMA,
     .rope_base = 5e5f,
     .rms_eps = 1e-5f,
     .n_layers = 80,
     .n_embd = 8192,
     .n_ff = 28672,
     .n_head = 64,
     .n_head_kv = 8,
     .head_dim = 128,
     .n_vocab = 128256,
     .n_ctx = 8192,
     .type = PS_DTYPE_Q4_0,
     .embed_type = PS_DTYPE_Q4_0,
     .output_type = PS_DTYPE_Q6_K},
    {.preset = "qwen3-30b-a3b-q4_0",
     .arch = SYNTH_QWEN3MOE,
     .rope_base = 1e6f,
     .rms_eps = 1e-6f,
     .n_layers = 48,
     .n_embd = 2048,
     .n_ff = 6144,
     .n_head = 32,
     .n_head_kv = 4,
     .head_dim = 128,
     .n_vocab = 151936,
     .n_ctx = 40960,
     .n_expert = 128,
     .n_expert_used = 8,
     .n_ff_expert = 768,
     .type = PS_DTYPE_Q4_0,
     .embed_type = PS_DTYPE_Q4_0,
     .output_type = PS_DTYPE_Q6_K},
};
enum { N_PRESETS = sizeof presets / sizeof presets[0] };

const synth_shape *synth_preset_at(uint32_t i) {
    return i < N_PRESETS ? &presets[i] : NULL;
}

const synth_shape *synth_preset(const char *name) {
    for (uint32_t i = 0; i < N_PRESETS; i++)
        if (strcmp(presets[i].preset, name) == 0)
            return &presets[i];
    return NULL;
}

static const struct {
    synth_arch arch;
    const char *name;
} archs[] = {
    {SYNTH_LLAMA, "llama"}, {SYNTH_QWEN3, "qwen3"}, {SYNTH_QWEN3MOE, "qwen3moe"}, {SYNTH_GEMMA3, "gemma3"}};
enum { N_ARCHS = sizeof archs / sizeof archs[0] };

const char *synth_arch_name(synth_arch arch) {
    for (uint32_t i = 0; i < N_ARCHS; i++)
        if (archs[i].arch == arch)
            return archs[i].name;
    return "unknown";
}

synth_arch synth_arch_by_name(const char *name) {
    for (uint32_t i = 0; i < N_ARCHS; i++)
        if (strcmp(archs[i].name, name) == 0)
            return archs[i].arch;
    return (synth_arch)0;
}

typedef enum extent { ONE, EMBD, VOCAB, Q, KV, HEAD, FF, EXPERT, FF_EXPERT, HALF_HEAD } extent;
typedef enum type_rule { TYPE_MAIN, TYPE_EMBED, TYPE_OUTPUT, TYPE_F32 } type_rule;
typedef enum condition { ALWAYS, UNTIED, BIASES, FREQS } condition;

enum {
    DENSE = SYNTH_LLAMA | SYNTH_QWEN3 | SYNTH_GEMMA3,
    QK_NORM = SYNTH_QWEN3 | SYNTH_QWEN3MOE | SYNTH_GEMMA3,
    PLAIN = SYNTH_LLAMA | SYNTH_QWEN3 | SYNTH_QWEN3MOE,
    ANY = PLAIN | SYNTH_GEMMA3
};

/* gain of a MATRIX: standard deviation of its product with a row of unit elements. Attention scores and router
 * logits then spread by about 1, output logits by 4, so that the most likely tokens stand apart. gain of a norm:
 * mean of its elements. gemma3 adds its embedding, times sqrt(n_embd), to the residual stream and uses it again
 * as output: a smaller one keeps the layers audible, a larger last norm keeps the logits' spread. */
typedef struct tensor_row {
    const char *name; /* with %u: once per layer */
    unsigned archs;
    condition when;
    extent cols, rows, experts;
    type_rule type;
    synth_fill fill;
    float gain;
} tensor_row;

#define NORM(name, archs, cols)                                                                              \
    { name, archs, ALWAYS, cols, ONE, ONE, TYPE_F32, SYNTH_ONES, 1 }
#define BIAS(name, cols)                                                                                     \
    { name, SYNTH_LLAMA, BIASES, cols, ONE, ONE, TYPE_F32, SYNTH_SMALL, 0 }
#define PRODUCT(name, archs, cols, rows)                                                                     \
    { name, archs, ALWAYS, cols, rows, ONE, TYPE_MAIN, SYNTH_MATRIX, 1 }
#define EXPERTS(name, cols, rows)                                                                            \
    { name, SYNTH_QWEN3MOE, ALWAYS, cols, rows, EXPERT, TYPE_MAIN, SYNTH_MATRIX, 1 }

static const tensor_row global_rows[] = {
    {"token_embd.weight", PLAIN, ALWAYS, EMBD, VOCAB, ONE, TYPE_EMBED, SYNTH_MATRIX, 4},
    {"token_embd.weight", SYNTH_GEMMA3, ALWAYS, EMBD, VOCAB, ONE, TYPE_EMBED, SYNTH_MATRIX, 0.5f},
    {"rope_freqs.weight", SYNTH_LLAMA, FREQS, HALF_HEAD, ONE, ONE, TYPE_F32, SYNTH_FREQS, 0},
};
static const tensor_row layer_rows[] = {
    NORM("blk.%u.attn_norm.weight", ANY, EMBD),
    PRODUCT("blk.%u.attn_q.weight", ANY, EMBD, Q),
    BIAS("blk.%u.attn_q.bias", Q),
    NORM("blk.%u.attn_q_norm.weight", QK_NORM, HEAD),
    PRODUCT("blk.%u.attn_k.weight", ANY, EMBD, KV),
    BIAS("blk.%u.attn_k.bias", KV),
    NORM("blk.%u.attn_k_norm.weight", QK_NORM, HEAD),
    PRODUCT("blk.%u.attn_v.weight", ANY, EMBD, KV),
    BIAS("blk.%u.attn_v.bias", KV),
    PRODUCT("blk.%u.attn_output.weight", ANY, Q, EMBD),
    BIAS("blk.%u.attn_output.bias", EMBD),
    NORM("blk.%u.post_attention_norm.weight", SYNTH_GEMMA3, EMBD),
    NORM("blk.%u.ffn_norm.weight", ANY, EMBD),
    PRODUCT("blk.%u.ffn_gate.weight", DENSE, EMBD, FF),
    BIAS("blk.%u.ffn_gate.bias", FF),
    PRODUCT("blk.%u.ffn_up.weight", DENSE, EMBD, FF),
    BIAS("blk.%u.ffn_up.bias", FF),
    PRODUCT("blk.%u.ffn_down.weight", DENSE, FF, EMBD),
    BIAS("blk.%u.ffn_down.bias", EMBD),
    {"blk.%u.ffn_gate_inp.weight", SYNTH_QWEN3MOE, ALWAYS, EMBD, EXPERT, ONE, TYPE_F32, SYNTH_MATRIX, 1},
    EXPERTS("blk.%u.ffn_gate_exps.weight", EMBD, FF_EXPERT),
    EXPERTS("blk.%u.ffn_up_exps.weight", EMBD, FF_EXPERT),
    EXPERTS("blk.%u.ffn_down_exps.weight", FF_EXPERT, EMBD),
    NORM("blk.%u.post_ffw_norm.weight", SYNTH_GEMMA3, EMBD),
};
static const tensor_row last_rows[] = {
    NORM("output_norm.weight", PLAIN, EMBD),
    {"output_norm.weight", SYNTH_GEMMA3, ALWAYS, EMBD, ONE, ONE, TYPE_F32, SYNTH_ONES, 8},
    {"output.weight", PLAIN, UNTIED, EMBD, VOCAB, ONE, TYPE_OUTPUT, SYNTH_MATRIX, 4},
    {"output.weight", SYNTH_GEMMA3, UNTIED, EMBD, VOCAB, ONE, TYPE_OUTPUT, SYNTH_MATRIX, 0.5f},
};

static uint64_t extent_of(const synth_shape *s, extent e) {
    switch (e) {
    case EMBD:
        return s->n_embd;
    case VOCAB:
        return s->n_vocab;
    case Q:
        return s->n_head * s->head_dim;
    case KV:
        return s->n_head_kv * s->head_dim;
    case HEAD:
        return s->head_dim;
    case FF:
        return s->n_ff;
    case EXPERT:
        return s->n_expert;
    case FF_EXPERT:
        return s->n_ff_expert;
    case HALF_HEAD:
        return s->head_dim / 2;
    case ONE:
        break;
    }
    return 1;
}

static bool applies(const synth_shape *s, const tensor_row *row) {
    return (row->archs & (unsigned)s->arch) != 0 && !(row->when == UNTIED && s->tied) &&
           !(row->when == BIASES && !s->biases) && !(row->when == FREQS && !s->rope_freqs);
}

typedef struct tensor_list {
    const synth_shape *shape;
    synth_tensor *items;
    uint64_t n, capacity, bytes;
    ps_error *err;
} tensor_list;

static ps_status add(tensor_list *list, const tensor_row *row, unsigned layer) {
    const synth_shape *s = list->shape;
    if (!applies(s, row))
        return PS_OK;
    if (list->n == list->capacity) {
        uint64_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        synth_tensor *items = realloc(list->items, (size_t)capacity * sizeof *items);
        if (items == NULL)
            return ps_error_set(list->err, PS_E_NOMEM, "", "no memory");
        list->items = items;
        list->capacity = capacity;
    }
    synth_tensor *t = &list->items[list->n];
    const ps_dtype types[] = {[TYPE_MAIN] = s->type,
                              [TYPE_EMBED] = s->embed_type,
                              [TYPE_OUTPUT] = s->output_type,
                              [TYPE_F32] = PS_DTYPE_F32};
    *t = (synth_tensor){.type = types[row->type], .fill = row->fill, .offset = list->bytes};
    /* The name is one of this file's rows: %u or nothing. */
    const char *mark = strstr(row->name, "%u");
    if (mark != NULL)
        snprintf(t->name, sizeof t->name, "%.*s%u%s", (int)(mark - row->name), row->name, layer, mark + 2);
    else
        snprintf(t->name, sizeof t->name, "%s", row->name);
    t->dims[0] = extent_of(s, row->cols);
    t->dims[1] = extent_of(s, row->rows);
    t->dims[2] = extent_of(s, row->experts);
    t->n_dims = row->experts != ONE ? 3 : row->rows != ONE ? 2 : 1;
    t->scale = row->fill == SYNTH_MATRIX ? row->gain / sqrtf((float)t->dims[0]) : row->gain;
    const ps_dtype_info *info = ps_dtype_find((uint32_t)t->type);
    if (t->dims[0] % info->block_elems != 0)
        return ps_error_set(list->err, PS_E_USAGE, t->name,
                            "rows of %llu elements are not whole %s blocks of %u",
                            (unsigned long long)t->dims[0], info->name, info->block_elems);
    uint64_t n_elems;
    if (!ps_mul_u64(t->dims[0], t->dims[1], &n_elems) || !ps_mul_u64(n_elems, t->dims[2], &n_elems) ||
        !ps_dtype_bytes(t->type, n_elems, &t->bytes) || !ps_add_u64(list->bytes, t->bytes, &list->bytes) ||
        !ps_align_u64(list->bytes, ALIGNMENT, &list->bytes) || list->bytes > INT64_MAX)
        return ps_error_set(list->err, PS_E_USAGE, t->name, "the file would be too large");
    list->n++;
    return PS_OK;
}

static ps_status add_rows(tensor_list *list, const tensor_row *rows, size_t n, unsigned layer) {
    ps_status status = PS_OK;
    for (size_t i = 0; i < n && status == PS_OK; i++)
        status = add(list, &rows[i], layer);
    return status;
}

static ps_status check_shape(const synth_shape *s, ps_error *err) {
    bool moe = s->arch == SYNTH_QWEN3MOE;
    if (s->n_vocab < 512)
        return ps_error_set(err, PS_E_USAGE, "--n-vocab",
                            "fewer than 512 tokens do not hold the bytes and signs");
    if (s->n_head % s->n_head_kv != 0)
        return ps_error_set(err, PS_E_USAGE, "--n-head-kv", "%llu does not divide the %llu heads",
                            (unsigned long long)s->n_head_kv, (unsigned long long)s->n_head);
    if (s->head_dim % 2 != 0)
        return ps_error_set(err, PS_E_USAGE, "--head-dim", "must be even");
    if (moe && s->n_expert_used > s->n_expert)
        return ps_error_set(err, PS_E_USAGE, "--n-expert-used", "more than the %llu experts",
                            (unsigned long long)s->n_expert);
    if (!moe && (s->n_expert | s->n_expert_used | s->n_ff_expert) != 0)
        return ps_error_set(err, PS_E_USAGE, "--n-expert", "%s has no experts", synth_arch_name(s->arch));
    if ((s->arch & (SYNTH_QWEN3 | SYNTH_QWEN3MOE)) != 0 && s->window != 0)
        return ps_error_set(err, PS_E_USAGE, "--window", "%s has no sliding window",
                            synth_arch_name(s->arch));
    if (s->arch != SYNTH_LLAMA && (s->biases || s->rope_freqs))
        return ps_error_set(err, PS_E_USAGE, s->biases ? "--biases" : "--rope-freqs", "only for llama");
    return PS_OK;
}

ps_status synth_tensors(const synth_shape *shape, synth_tensor **out, uint64_t *out_n, uint64_t *out_bytes,
                        ps_error *err) {
    tensor_list list = {.shape = shape, .err = err};
    ps_status status = check_shape(shape, err);
    if (status == PS_OK)
        status = add_rows(&list, global_rows, sizeof global_rows / sizeof global_rows[0], 0);
    for (unsigned l = 0; l < shape->n_layers && status == PS_OK; l++)
        status = add_rows(&list, layer_rows, sizeof layer_rows / sizeof layer_rows[0], l);
    if (status == PS_OK)
        status = add_rows(&list, last_rows, sizeof last_rows / sizeof last_rows[0], 0);
    if (status != PS_OK) {
        free(list.items);
        return status;
    }
    *out = list.items;
    *out_n = list.n;
    *out_bytes = list.bytes;
    return PS_OK;
}
