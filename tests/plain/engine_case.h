/* A tiny model and a plan for it in a temporary folder, for tests of the engine. */
#ifndef PS_TESTS_ENGINE_CASE_H
#define PS_TESTS_ENGINE_CASE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../tools/pssynth.h"
#include "../unit/plan/synthetic_profile.h"
#include "core/file.h"
#include "plan/planner.h"
#include "runtime-min/pinstripe.h"

typedef struct engine_case {
    char folder[64], model[96], plan[96];
} engine_case;

static inline void case_die(const char *what, const ps_error *err) {
    char line[600] = "";
    if (err != NULL)
        ps_error_format(err, line, sizeof line);
    fprintf(stderr, "%s: %s\n", what, line);
    exit(1);
}

/* Write preset's model and a plan with one level of n_seqs sequences for each thread count 1..max_threads. */
/* n_layers 0: the preset's. */
static inline void case_make_deep(engine_case *c, const char *preset, uint32_t n_layers, uint64_t context,
                                  uint32_t n_seqs, uint32_t max_threads, uint64_t max_step_tokens) {
    ps_error err = {0};
    snprintf(c->folder, sizeof c->folder, "%s", "/tmp/pinstripe-engine.XXXXXX");
    if (mkdtemp(c->folder) == NULL)
        case_die("mkdtemp", NULL);
    snprintf(c->model, sizeof c->model, "%s/m.gguf", c->folder);
    snprintf(c->plan, sizeof c->plan, "%s/m.plan", c->folder);
    synth_shape shape = *synth_preset(preset);
    shape.n_ctx = 8192;
    shape.n_layers = n_layers ? n_layers : shape.n_layers;
    uint64_t bytes;
    if (synth_write(c->model, &shape, 1, false, false, NULL, &bytes, &err) != PS_OK)
        case_die("synth_write", &err);
    ps_gguf *gguf;
    ps_model *model;
    if (ps_gguf_open(c->model, &gguf, &err) != PS_OK || ps_model_open(gguf, &model, &err) != PS_OK)
        case_die("model", &err);
    ps_profile *profile = syn_profile();
    ps_cost_model *cost;
    if (ps_cost_model_new(profile, &cost, &err) != PS_OK)
        case_die("cost model", &err);
    ps_level_request levels[8] = {0};
    for (uint32_t i = 0; i < max_threads; i++) {
        snprintf(levels[i].budget, sizeof levels[i].budget, "host");
        levels[i].bucket_tokens = context;
        levels[i].n_seqs = n_seqs;
        levels[i].n_threads = i + 1;
    }
    ps_plan_request request = {.model = model,
                               .profile = profile,
                               .cost = cost,
                               .levels = levels,
                               .n_levels = max_threads,
                               .max_step_tokens = max_step_tokens,
                               .tool = "test",
                               .created = "2026-01-01T00:00:00Z"};
    ps_plan *plan;
    uint8_t *binary;
    uint64_t size;
    if (ps_plan_build(&request, &plan, NULL, &err) != PS_OK ||
        ps_plan_to_binary(plan, &binary, &size, &err) != PS_OK ||
        ps_file_write_atomic(c->plan, binary, size, &err) != PS_OK)
        case_die("plan", &err);
    free(binary);
    ps_plan_free(plan);
    ps_cost_model_free(cost);
    ps_profile_free(profile);
    ps_model_close(model);
    ps_gguf_close(gguf);
}
static inline void case_make(engine_case *c, const char *preset, uint64_t context, uint32_t n_seqs,
                             uint32_t max_threads, uint64_t max_step_tokens) {
    case_make_deep(c, preset, 0, context, n_seqs, max_threads, max_step_tokens);
}

static inline void case_remove(const engine_case *c) {
    unlink(c->model);
    unlink(c->plan);
    rmdir(c->folder);
}

static inline ps_engine *case_open(const engine_case *c, uint32_t n_threads, uint32_t n_sessions,
                                   bool verify) {
    ps_error err = {0};
    ps_engine *e;
    ps_engine_options o = {.model_path = c->model,
                           .plan_path = c->plan,
                           .n_threads = n_threads,
                           .n_sessions = n_sessions,
                           .verify = verify};
    if (ps_engine_open(&o, &e, &err) != PS_OK)
        case_die("open", &err);
    return e;
}

#endif
