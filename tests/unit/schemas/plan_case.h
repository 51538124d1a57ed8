/* A small model and a plan for it, ready to be broken. */
#ifndef PS_TESTS_PLAN_CASE_H
#define PS_TESTS_PLAN_CASE_H

#include "tests/model_builder.h"
#include "tests/plan_builder.h"

typedef struct plan_case {
    mb file;
    ps_gguf *gguf;
    ps_model *model;
    ps_plan *plan;
} plan_case;

/* Levels of plan_case_open: 0 plain and tiled tiers on the host, 1 a larger bucket, 2 GPU. */
static const pb_config plan_case_levels[] = {
    {.bucket_tokens = 1024,
     .n_seqs = 1,
     .n_threads = 2,
     .n_tiers = 3,
     .tiers = {1, 8, 512},
     .programs = {0, 0, 0}},
    {.bucket_tokens = 16384,
     .n_seqs = 2,
     .n_threads = 4,
     .n_tiers = 3,
     .tiers = {1, 2048, 8192},
     .programs = {0, 0, 1}},
    {.gpu = true,
     .bucket_tokens = 1024,
     .n_seqs = 1,
     .n_threads = 2,
     .n_tiers = 2,
     .tiers = {1, 64},
     .programs = {2, 2}},
};

/* Feed-forward blocks wide enough to be cut by columns; a mixture whose first layers are the same. */
static const mb_shape plan_case_wide = {.arch = "llama",
                                        .n_layers = 3,
                                        .n_embd = 64,
                                        .n_ff = 1024,
                                        .n_head = 4,
                                        .n_head_kv = 2,
                                        .head_dim = 16,
                                        .n_vocab = 128,
                                        .rope_freqs = 1,
                                        .type = PS_DTYPE_Q4_0,
                                        .output_type = PS_DTYPE_Q8_0};

/* The same with biases. */
static const mb_shape plan_case_biased = {.arch = "llama",
                                          .n_layers = 2,
                                          .n_embd = 64,
                                          .n_ff = 1024,
                                          .n_head = 4,
                                          .n_head_kv = 2,
                                          .head_dim = 16,
                                          .n_vocab = 128,
                                          .ffn_bias = 1,
                                          .type = PS_DTYPE_Q8_0,
                                          .output_type = PS_DTYPE_Q8_0};

/* A level of one program (plan_builder.h), for small steps. */
static inline pb_config plan_case_level(uint32_t program) {
    bool tiled = program == 1 || program == 4;
    return (pb_config){.gpu = program >= 2,
                       .bucket_tokens = tiled ? 6400 : 64,
                       .n_seqs = 2,
                       .n_threads = 2,
                       .n_tiers = 2,
                       .tiers = {tiled ? 2048 : 1, tiled ? 5000 : 5},
                       .programs = {program, program},
                       .kv_in_vram = program >= 5};
}

static inline void plan_case_open_with(plan_case *c, const mb_shape *shape, const pb_config *levels,
                                       uint32_t n) {
    uint64_t size;
    ps_error err = {0};
    memset(c, 0, sizeof *c);
    mb_model(&c->file, shape);
    const uint8_t *data = mb_finish(&c->file, &size);
    if (ps_gguf_open_memory(data, size, "test.gguf", &c->gguf, &err) != PS_OK ||
        ps_model_open(c->gguf, &c->model, &err) != PS_OK) {
        fprintf(stderr, "model: %s: %s\n", err.subject, err.message);
        abort();
    }
    c->plan = pb_plan(c->model, levels, n);
}

static inline void plan_case_open(plan_case *c, const mb_shape *shape) {
    plan_case_open_with(c, shape, plan_case_levels, 3);
}

static inline void plan_case_close(plan_case *c) {
    ps_plan_free(c->plan);
    ps_model_close(c->model);
    ps_gguf_close(c->gguf);
    mb_free(&c->file);
}

#endif
