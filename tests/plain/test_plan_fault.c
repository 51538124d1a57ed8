/* Planning, simulating and emitting when memory runs out: an error, and nothing left behind. */
#include <stdio.h>
#include <string.h>

#include "../model_builder.h"
#include "../unit/plan/synthetic_profile.h"
#include "emit/emit.h"
#include "fault.h"
#include "plan/planner.h"

typedef struct world {
    ps_model *model;
    ps_profile *profile;
    ps_cost_model *cost;
    ps_plan *plan;
    uint64_t memory_bytes;
} world;

static const char *judge(ps_status status, ps_status wanted, const ps_error *err, bool injected) {
    if (injected && ps_fault_hit())
        return status == PS_E_NOMEM && err->message[0] ? NULL : "not an out-of-memory error";
    return status == wanted ? NULL : ps_status_name(status);
}

static ps_plan_request request(const world *w, const ps_level_request *levels, uint32_t n) {
    return (ps_plan_request){.model = w->model,
                             .profile = w->profile,
                             .cost = w->cost,
                             .levels = levels,
                             .n_levels = n,
                             .max_step_tokens = 4096,
                             .memory_bytes = w->memory_bytes,
                             .tool = "t",
                             .created = "c"};
}

static const char *build(void *ctx, bool injected) {
    const ps_level_request levels[] = {{.budget = "host", .bucket_tokens = 2, .n_seqs = 1, .n_threads = 3},
                                       {.budget = "host", .bucket_tokens = 1, .n_seqs = 1, .n_threads = 8}};
    ps_plan_request q = request(ctx, levels, 2);
    ps_plan *plan = NULL;
    ps_error err = {0};
    ps_status status = ps_plan_build(&q, &plan, NULL, &err);
    const char *wrong = status && plan ? "an object on failure" : judge(status, PS_OK, &err, injected);
    ps_plan_free(plan);
    return wrong;
}

static const char *index_points(void *ctx, bool injected) {
    const world *w = ctx;
    ps_cost_model *cost = NULL;
    ps_error err = {0};
    ps_status status = ps_cost_model_new(w->profile, &cost, &err);
    const char *wrong = status && cost ? "an object on failure" : judge(status, PS_OK, &err, injected);
    ps_cost_model_free(cost);
    return wrong;
}

static const char *trace(void *ctx, bool injected) {
    const world *w = ctx;
    ps_trace_step step = {0};
    ps_error err = {0};
    char *text = NULL;
    uint64_t size;
    ps_status status = ps_plan_simulate_step(w->plan, 0, 2, w->model, w->profile, w->cost, 0, &step, &err);
    if (!status) {
        ps_trace t = {.source = PS_TRACE_SIMULATED, .n_steps = 1, .steps = &step};
        status = ps_emit_timeline(&(ps_emit_source){.trace = &t}, &text, &size, &err);
    }
    free(text);
    free(step.events);
    return judge(status, PS_OK, &err, injected);
}

int main(void) {
    unsigned wrong = 0;
    uint64_t size, n;
    mb b;
    ps_gguf *g;
    ps_error err = {0};
    world w = {0};
    mb_shape s = mb_gemma3_small;
    s.n_layers = 2;
    mb_model(&b, &s);
    const uint8_t *data = mb_finish(&b, &size);
    w.profile = syn_profile();
    uint32_t n_points = 0; /* a few: every plan hashes the profile's text */
    for (uint32_t i = 0; i < w.profile->n_points; i++)
        if ((w.profile->points[i].n_tokens == 1 || w.profile->points[i].n_tokens == 9) &&
            w.profile->points[i].rows <= 64 && w.profile->points[i].cols <= 64 &&
            w.profile->points[i].n_threads >= 4)
            w.profile->points[n_points++] = w.profile->points[i];
    w.profile->n_points = n_points;
    const ps_level_request level = {.budget = "host", .bucket_tokens = 4, .n_seqs = 1, .n_threads = 8};
    ps_status status = ps_gguf_open_memory(data, size, "test.gguf", &g, &err);
    if (!status)
        status = ps_model_open(g, &w.model, &err);
    if (!status)
        status = ps_cost_model_new(w.profile, &w.cost, &err);
    ps_plan_request q = request(&w, &level, 1);
    if (!status)
        status = ps_plan_build(&q, &w.plan, NULL, &err);
    if (status) {
        fprintf(stderr, "FAIL: %s\n", err.message);
        return 1;
    }
    wrong += ps_fault_sweep("index", index_points, &w, &n) + (n < 4);
    wrong += ps_fault_sweep("plan", build, &w, &n) + (n < 50);
    wrong += ps_fault_sweep("trace", trace, &w, &n) + (n < 5);
    ps_plan_free(w.plan);
    ps_cost_model_free(w.cost);
    ps_profile_free(w.profile);
    ps_model_close(w.model);
    ps_gguf_close(g);
    mb_free(&b);
    return wrong != 0;
}
