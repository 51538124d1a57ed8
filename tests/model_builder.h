/* GGUF files in memory for tests: keys and tensors can be replaced and dropped before the file is laid out.
 * Tensor data is reserved address space that reads as zeros, so a 5 GB model costs only its header. */
#ifndef PS_TESTS_MODEL_BUILDER_H
#define PS_TESTS_MODEL_BUILDER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "model/dtype.h"
#include "model/gguf.h"

typedef struct mb_item {
    char name[128];
    uint8_t body[256]; /* kv: type and value; tensor: n_dims, dims, type */
    size_t body_len;
    uint64_t bytes; /* tensor data */
    const float *data;
} mb_item;

typedef struct mb {
    mb_item *kv, *tensors;
    size_t n_kv, n_tensors, cap_kv, cap_tensors;
    uint8_t *file; /* mapping, NULL until mb_finish */
    uint64_t size;
} mb;

static inline mb_item *mb_slot(mb_item **items, size_t *n, size_t *cap, const char *name) {
    for (size_t i = 0; i < *n; i++)
        if (strcmp((*items)[i].name, name) == 0) {
            (*items)[i].body_len = 0;
            return &(*items)[i];
        }
    if (*n == *cap) {
        *cap = *cap ? 2 * *cap : 64;
        *items = realloc(*items, *cap * sizeof **items);
        if (*items == NULL)
            abort();
    }
    mb_item *it = &(*items)[(*n)++];
    memset(it, 0, sizeof *it);
    snprintf(it->name, sizeof it->name, "%s", name);
    return it;
}

static inline void mb_put(mb_item *it, const void *p, size_t n) {
    if (it->body_len + n > sizeof it->body)
        abort();
    memcpy(it->body + it->body_len, p, n);
    it->body_len += n;
}

static inline void mb_scalar(mb *g, const char *key, ps_gguf_type type, const void *v, size_t size) {
    mb_item *it = mb_slot(&g->kv, &g->n_kv, &g->cap_kv, key);
    uint32_t t = type;
    mb_put(it, &t, 4);
    mb_put(it, v, size);
}

static inline void mb_u32(mb *g, const char *key, uint32_t v) {
    mb_scalar(g, key, PS_GGUF_U32, &v, 4);
}

static inline void mb_u64(mb *g, const char *key, uint64_t v) {
    mb_scalar(g, key, PS_GGUF_U64, &v, 8);
}

static inline void mb_f32(mb *g, const char *key, float v) {
    mb_scalar(g, key, PS_GGUF_F32, &v, 4);
}

static inline void mb_bool(mb *g, const char *key, int v) {
    uint8_t b = v != 0;
    mb_scalar(g, key, PS_GGUF_BOOL, &b, 1);
}

static inline void mb_str(mb *g, const char *key, const char *s) {
    mb_item *it = mb_slot(&g->kv, &g->n_kv, &g->cap_kv, key);
    uint32_t t = PS_GGUF_STRING;
    uint64_t len = strlen(s);
    mb_put(it, &t, 4);
    mb_put(it, &len, 8);
    mb_put(it, s, len);
}

/* Array of n elements of `size` bytes. */
static inline void mb_array(mb *g, const char *key, ps_gguf_type elem, const void *v, uint64_t n,
                            size_t size) {
    mb_item *it = mb_slot(&g->kv, &g->n_kv, &g->cap_kv, key);
    uint32_t t = PS_GGUF_ARRAY, e = elem;
    mb_put(it, &t, 4);
    mb_put(it, &e, 4);
    mb_put(it, &n, 8);
    mb_put(it, v, n * size);
}

/* Dims that are 0 end the list. */
static inline void mb_tensor(mb *g, const char *name, ps_dtype type, uint64_t d0, uint64_t d1, uint64_t d2) {
    mb_item *it = mb_slot(&g->tensors, &g->n_tensors, &g->cap_tensors, name);
    uint64_t dims[3] = {d0, d1, d2}, n = 1;
    uint32_t n_dims = d1 == 0 ? 1 : d2 == 0 ? 2 : 3, t = type;
    mb_put(it, &n_dims, 4);
    for (uint32_t i = 0; i < n_dims; i++) {
        mb_put(it, &dims[i], 8);
        n *= dims[i];
    }
    mb_put(it, &t, 4);
    if (!ps_dtype_bytes(type, n, &it->bytes))
        abort();
}

/* Data of a float tensor already added; borrowed until mb_finish. */
static inline void mb_data(mb *g, const char *name, const float *data) {
    for (size_t i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            g->tensors[i].data = data;
}

static inline void mb_drop(mb *g, const char *name) {
    mb_item *lists[2] = {g->kv, g->tensors};
    size_t *counts[2] = {&g->n_kv, &g->n_tensors};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < *counts[k]; i++)
            if (strcmp(lists[k][i].name, name) == 0) {
                memmove(&lists[k][i], &lists[k][i + 1], (*counts[k] - i - 1) * sizeof(mb_item));
                (*counts[k])--;
                return;
            }
    abort(); /* a test that drops what is not there tests nothing */
}

/* Lay the file out: *size bytes, released by mb_free. */
static inline const uint8_t *mb_finish(mb *g, uint64_t *size) {
    uint64_t head = 24, data = 0;
    for (size_t i = 0; i < g->n_kv; i++)
        head += 8 + strlen(g->kv[i].name) + g->kv[i].body_len;
    for (size_t i = 0; i < g->n_tensors; i++) {
        head += 8 + strlen(g->tensors[i].name) + g->tensors[i].body_len + 8;
        data += (g->tensors[i].bytes + 31) / 32 * 32;
    }
    uint64_t start = (head + 31) / 32 * 32;
    g->size = start + data;
    g->file = mmap(NULL, g->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g->file == MAP_FAILED)
        abort();
    uint8_t *p = g->file;
    uint32_t version = 3;
    uint64_t n_kv = g->n_kv, n_tensors = g->n_tensors, offset = 0;
#define MB_PUT(src, n) (memcpy(p, (src), (n)), p += (n))
    MB_PUT("GGUF", 4);
    MB_PUT(&version, 4);
    MB_PUT(&n_tensors, 8);
    MB_PUT(&n_kv, 8);
    for (size_t i = 0; i < g->n_kv; i++) {
        uint64_t len = strlen(g->kv[i].name);
        MB_PUT(&len, 8);
        MB_PUT(g->kv[i].name, len);
        MB_PUT(g->kv[i].body, g->kv[i].body_len);
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        const mb_item *t = &g->tensors[i];
        uint64_t len = strlen(t->name);
        MB_PUT(&len, 8);
        MB_PUT(t->name, len);
        MB_PUT(t->body, t->body_len);
        MB_PUT(&offset, 8);
        if (t->data != NULL)
            memcpy(g->file + start + offset, t->data, t->bytes);
        offset += (t->bytes + 31) / 32 * 32;
    }
#undef MB_PUT
    *size = g->size;
    return g->file;
}

static inline void mb_free(mb *g) {
    if (g->file != NULL)
        munmap(g->file, g->size);
    free(g->kv);
    free(g->tensors);
    memset(g, 0, sizeof *g);
}

/* Shape of a whole model; every row of the architecture table can be written from it. */
typedef struct mb_shape {
    const char *arch;
    uint32_t n_layers, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab;
    uint32_t n_expert, n_expert_used, n_ff_expert, window;
    int qk_norm, post_norm, tied, rope_freqs, ffn_bias;
    ps_dtype type, output_type;
} mb_shape;

static inline const char *mb_key(const mb_shape *s, const char *suffix, char buf[128]) {
    snprintf(buf, 128, "%s.%s", s->arch, suffix);
    return buf;
}

static inline void mb_model(mb *g, const mb_shape *s) {
    static const float ones[512] = {[0 ... 511] = 1.0f};
    char k[128];
    memset(g, 0, sizeof *g);
    mb_str(g, "general.architecture", s->arch);
    mb_str(g, "general.name", "A test");
    mb_u32(g, mb_key(s, "block_count", k), s->n_layers);
    mb_u32(g, mb_key(s, "context_length", k), 32768);
    mb_u32(g, mb_key(s, "embedding_length", k), s->n_embd);
    mb_u32(g, mb_key(s, "attention.head_count", k), s->n_head);
    mb_u32(g, mb_key(s, "attention.head_count_kv", k), s->n_head_kv);
    mb_u32(g, mb_key(s, "attention.key_length", k), s->head_dim);
    mb_u32(g, mb_key(s, "attention.value_length", k), s->head_dim);
    mb_f32(g, mb_key(s, "attention.layer_norm_rms_epsilon", k), 1e-6f);
    mb_f32(g, mb_key(s, "rope.freq_base", k), 1000000.0f);
    if (s->n_ff != 0)
        mb_u32(g, mb_key(s, "feed_forward_length", k), s->n_ff);
    if (s->window != 0)
        mb_u32(g, mb_key(s, "attention.sliding_window", k), s->window);
    if (s->n_expert != 0) {
        mb_u32(g, mb_key(s, "expert_count", k), s->n_expert);
        mb_u32(g, mb_key(s, "expert_used_count", k), s->n_expert_used);
        mb_u32(g, mb_key(s, "expert_feed_forward_length", k), s->n_ff_expert);
    }
    uint64_t e = s->n_embd, q = (uint64_t)s->n_head * s->head_dim, kv = (uint64_t)s->n_head_kv * s->head_dim;
    mb_tensor(g, "token_embd.weight", s->type, e, s->n_vocab, 0);
    mb_tensor(g, "output_norm.weight", PS_DTYPE_F32, e, 0, 0);
    if (!s->tied)
        mb_tensor(g, "output.weight", s->output_type, e, s->n_vocab, 0);
    if (s->rope_freqs) {
        mb_tensor(g, "rope_freqs.weight", PS_DTYPE_F32, s->head_dim / 2, 0, 0);
        mb_data(g, "rope_freqs.weight", ones);
    }
    for (uint32_t l = 0; l < s->n_layers; l++) {
#define MB_LAYER(role, type, a, b, c)                                                                        \
    (snprintf(k, 128, "blk.%u." role ".weight", l), mb_tensor(g, k, type, a, b, c))
        MB_LAYER("attn_norm", PS_DTYPE_F32, e, 0, 0);
        MB_LAYER("attn_q", s->type, e, q, 0);
        MB_LAYER("attn_k", s->type, e, kv, 0);
        MB_LAYER("attn_v", s->type, e, kv, 0);
        MB_LAYER("attn_output", s->type, q, e, 0);
        if (s->qk_norm) {
            MB_LAYER("attn_q_norm", PS_DTYPE_F32, s->head_dim, 0, 0);
            MB_LAYER("attn_k_norm", PS_DTYPE_F32, s->head_dim, 0, 0);
        }
        MB_LAYER("ffn_norm", PS_DTYPE_F32, e, 0, 0);
        if (s->n_expert != 0) {
            MB_LAYER("ffn_gate_inp", PS_DTYPE_F32, e, s->n_expert, 0);
            MB_LAYER("ffn_gate_exps", s->type, e, s->n_ff_expert, s->n_expert);
            MB_LAYER("ffn_up_exps", s->type, e, s->n_ff_expert, s->n_expert);
            MB_LAYER("ffn_down_exps", s->type, s->n_ff_expert, e, s->n_expert);
        } else {
            MB_LAYER("ffn_gate", s->type, e, s->n_ff, 0);
            MB_LAYER("ffn_up", s->type, e, s->n_ff, 0);
            MB_LAYER("ffn_down", s->type, s->n_ff, e, 0);
            if (s->ffn_bias) {
                snprintf(k, 128, "blk.%u.ffn_gate.bias", l);
                mb_tensor(g, k, PS_DTYPE_F32, s->n_ff, 0, 0);
                snprintf(k, 128, "blk.%u.ffn_up.bias", l);
                mb_tensor(g, k, PS_DTYPE_F32, s->n_ff, 0, 0);
                snprintf(k, 128, "blk.%u.ffn_down.bias", l);
                mb_tensor(g, k, PS_DTYPE_F32, e, 0, 0);
            }
        }
        if (s->post_norm) {
            MB_LAYER("post_attention_norm", PS_DTYPE_F32, e, 0, 0);
            MB_LAYER("post_ffw_norm", PS_DTYPE_F32, e, 0, 0);
        }
#undef MB_LAYER
    }
}

/* Small models of each architecture, and the real shapes that the byte tables are about. */
static const mb_shape mb_llama_small = {.arch = "llama",
                                        .n_layers = 2,
                                        .n_embd = 64,
                                        .n_ff = 96,
                                        .n_head = 4,
                                        .n_head_kv = 2,
                                        .head_dim = 16,
                                        .n_vocab = 128,
                                        .rope_freqs = 1,
                                        .type = PS_DTYPE_Q4_0,
                                        .output_type = PS_DTYPE_Q8_0};
static const mb_shape mb_qwen3_small = {.arch = "qwen3",
                                        .n_layers = 2,
                                        .n_embd = 64,
                                        .n_ff = 96,
                                        .n_head = 4,
                                        .n_head_kv = 2,
                                        .head_dim = 32,
                                        .n_vocab = 128,
                                        .qk_norm = 1,
                                        .tied = 1,
                                        .type = PS_DTYPE_Q8_0};
static const mb_shape mb_qwen3moe_small = {.arch = "qwen3moe",
                                           .n_layers = 2,
                                           .n_embd = 64,
                                           .n_head = 4,
                                           .n_head_kv = 2,
                                           .head_dim = 32,
                                           .n_vocab = 128,
                                           .n_expert = 8,
                                           .n_expert_used = 2,
                                           .n_ff_expert = 32,
                                           .qk_norm = 1,
                                           .type = PS_DTYPE_Q8_0,
                                           .output_type = PS_DTYPE_F16};
static const mb_shape mb_gemma3_small = {.arch = "gemma3",
                                         .n_layers = 7,
                                         .n_embd = 64,
                                         .n_ff = 96,
                                         .n_head = 4,
                                         .n_head_kv = 1,
                                         .head_dim = 32,
                                         .n_vocab = 128,
                                         .window = 16,
                                         .qk_norm = 1,
                                         .post_norm = 1,
                                         .tied = 1,
                                         .type = PS_DTYPE_Q8_0};
static const mb_shape mb_llama3_8b = {.arch = "llama",
                                      .n_layers = 32,
                                      .n_embd = 4096,
                                      .n_ff = 14336,
                                      .n_head = 32,
                                      .n_head_kv = 8,
                                      .head_dim = 128,
                                      .n_vocab = 128256,
                                      .rope_freqs = 1,
                                      .type = PS_DTYPE_Q4_0,
                                      .output_type = PS_DTYPE_Q6_K};
static const mb_shape mb_qwen3_30b_a3b = {.arch = "qwen3moe",
                                          .n_layers = 48,
                                          .n_embd = 2048,
                                          .n_head = 32,
                                          .n_head_kv = 4,
                                          .head_dim = 128,
                                          .n_vocab = 151936,
                                          .n_expert = 128,
                                          .n_expert_used = 8,
                                          .n_ff_expert = 768,
                                          .qk_norm = 1,
                                          .type = PS_DTYPE_Q4_0,
                                          .output_type = PS_DTYPE_Q6_K};
static const mb_shape mb_gemma3_270m = {.arch = "gemma3",
                                        .n_layers = 18,
                                        .n_embd = 640,
                                        .n_ff = 2048,
                                        .n_head = 4,
                                        .n_head_kv = 1,
                                        .head_dim = 256,
                                        .n_vocab = 262144,
                                        .window = 512,
                                        .qk_norm = 1,
                                        .post_norm = 1,
                                        .tied = 1,
                                        .type = PS_DTYPE_BF16};

#endif
