/* Planning on several threads: each task is done once, and plans, reports and errors are the same as on one. */
#include <stdatomic.h>
#include <string.h>

#include "../unit/plan/gpu_case.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOW 1 /* where it takes minutes: fewer threads and levels */
#else
#define SLOW 0
#endif
#include "check.h"
#include "plan/crew.h"

enum { TASKS = 1000 };

static atomic_uint done[TASKS];
static atomic_uint strangers;

static void count(void *ctx, uint32_t worker, uint32_t i) {
    const uint32_t *n_workers = ctx;
    atomic_fetch_add(&done[i], 1);
    if (worker >= *n_workers)
        atomic_fetch_add(&strangers, 1);
}

static void every_task_is_done_once(void) {
    static const uint32_t threads[] = {0, 1, 2, 7, 64, 1000}, tasks[] = {0, 1, 3, TASKS};
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++)
        for (size_t n = 0; n < sizeof tasks / sizeof tasks[0]; n++) {
            uint32_t size = ps_crew_size(threads[t], tasks[n]);
            CHECK(size >= 1 && size <= PS_CREW_MOST && (size == 1 || size <= tasks[n]), "%u threads", size);
            for (uint32_t i = 0; i < TASKS; i++)
                atomic_store(&done[i], 0);
            ps_crew_run(threads[t], tasks[n], count, &size);
            for (uint32_t i = 0; i < TASKS; i++)
                CHECK(atomic_load(&done[i]) == (i < tasks[n]), "task %u of %u on %u threads", i, tasks[n],
                      threads[t]);
        }
    CHECK(atomic_load(&strangers) == 0, "workers beyond the crew");
}

/* What planning comes to. */
typedef struct outcome {
    ps_status status;
    ps_error err;
    uint8_t *bytes;
    uint64_t size;
    ps_plan_report report;
} outcome;

static outcome plan_with(ps_plan_request q, uint32_t n_workers) {
    outcome o = {0};
    ps_plan *plan = NULL;
    q.n_workers = n_workers;
    o.status = ps_plan_search(&q, &plan, &o.report, NULL, &o.err);
    if (!o.status)
        o.status = ps_plan_to_binary(plan, &o.bytes, &o.size, &o.err);
    ps_plan_free(plan);
    return o;
}

static void outcome_free(outcome *o) {
    free(o->bytes);
    free(o->report.levels);
}

static void same_on_all(const char *what, const ps_plan_request *q, ps_status wanted) {
#if SLOW
    static const uint32_t workers[] = {3};
#else
    static const uint32_t workers[] = {2, 8};
#endif
    outcome one = plan_with(*q, 0);
    CHECK(one.status == wanted, "%s: %s: %s", what, one.err.subject, one.err.message);
    for (size_t i = 0; i < sizeof workers / sizeof workers[0]; i++) {
        outcome o = plan_with(*q, workers[i]);
        CHECK(o.status == one.status && strcmp(o.err.subject, one.err.subject) == 0 &&
                  strcmp(o.err.message, one.err.message) == 0,
              "%s on %u: '%s' against '%s'", what, workers[i], o.err.message, one.err.message);
        CHECK(o.size == one.size && (!o.size || memcmp(o.bytes, one.bytes, o.size) == 0),
              "%s on %u: another plan", what, workers[i]);
        CHECK(o.report.looked_at == one.report.looked_at && o.report.n_levels == one.report.n_levels,
              "%s on %u: %llu schedules looked at, %llu on one", what, workers[i],
              (unsigned long long)o.report.looked_at, (unsigned long long)one.report.looked_at);
        for (uint32_t l = 0; l < o.report.n_levels && l < one.report.n_levels; l++) {
            const ps_level_report *a = &o.report.levels[l], *b = &one.report.levels[l];
            CHECK(a->chosen.workload_s == b->chosen.workload_s && a->path == b->path &&
                      a->left_bytes == b->left_bytes &&
                      memcmp(&a->decode, &b->decode, sizeof a->decode) == 0 &&
                      memcmp(a->family, b->family, sizeof a->family) == 0,
                  "%s on %u: another report of level %u", what, workers[i], l);
        }
        outcome_free(&o);
    }
    outcome_free(&one);
}

/* A budget so many MiB above what comes before any weight. */
static ps_level_request level(const gpu_case *c, uint64_t mib, uint64_t context, uint32_t n_seqs,
                              uint32_t n_threads) {
    return gc_level(c->profile->gpu.base_bytes + (mib << 20), context, n_seqs, n_threads);
}

int main(void) {
    static const mb_shape dense = {.arch = "llama",
                                   .n_layers = 6,
                                   .n_embd = 512,
                                   .n_ff = 2048,
                                   .n_head = 4,
                                   .n_head_kv = 2,
                                   .head_dim = 128,
                                   .n_vocab = 8192,
                                   .type = PS_DTYPE_F16,
                                   .output_type = PS_DTYPE_F16},
                          experts = {.arch = "qwen3moe",
                                     .n_layers = 5,
                                     .n_embd = 512,
                                     .n_head = 4,
                                     .n_head_kv = 2,
                                     .head_dim = 128,
                                     .n_vocab = 4096,
                                     .qk_norm = 1,
                                     .n_expert = 16,
                                     .n_expert_used = 2,
                                     .n_ff_expert = 256,
                                     .type = PS_DTYPE_Q4_0,
                                     .output_type = PS_DTYPE_Q4_0};
    every_task_is_done_once();

    gpu_case c = gc_shape(&dense);
    const ps_level_request some[] = {level(&c, 320, 256, 1, 8), level(&c, 320, 1024, 1, 8),
                                     level(&c, 400, 256, 1, 8), level(&c, 400, 1024, 1, 8)},
                           small[] = {level(&c, 400, 128, 1, 8), level(&c, 1, 128, 1, 8),
                                      level(&c, 400, 64, 1, 8), level(&c, 2, 64, 1, 8)};
    const ps_level_request long_one =
        level(&c, 300, 16384, 4, 8); /* as much cache as weights: points between */
    ps_plan_request q = gc_request(&c, &long_one, 1);
    same_on_all("one level", &q, PS_OK);
    q = gc_request(&c, some, SLOW ? 2 : 4);
    same_on_all("four levels", &q, PS_OK);
    q.forced = true;
    q.family = PS_FAMILY_SPLIT;
    same_on_all("one family", &q, PS_OK);
    q = gc_request(&c, small, 4);
    same_on_all("two that do not fit", &q, PS_E_INFEASIBLE);
    gc_close(&c);

    c = gc_shape(&experts);
    const ps_level_request teams[] = {level(&c, 300, 256, 1, 4), level(&c, 300, 256, 4, 8)};
    q = gc_request(&c, teams, 2);
    same_on_all("experts, two teams", &q, PS_OK);
    gc_close(&c);

    c = gc_shape(&mb_gemma3_small);
    const ps_level_request window = level(&c, 300, 256, 1, 8);
    q = gc_request(&c, &window, 1);
    same_on_all("windows", &q, PS_OK);
    gc_close(&c);
    return failures != 0;
}
