/* Every machine of fixtures/profiles reads, says what it is, and plans a tiny model and ones of real size. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "gpu_case.h"

static const char folder[] = "fixtures/profiles";
enum { MAX_BYTES = 256 << 10, LEAST_MACHINES = 6 };

static void plans(const char *name, gpu_case *c, const ps_profile *p, uint64_t budget, const char *of) {
    ps_error e = {0};
    ps_cost_model *cost = NULL;
    ps_plan *plan = NULL;
    cr_assert_eq(ps_cost_model_new(p, &cost, &e), PS_OK);
    ps_level_request level = gc_level(budget, c->model->n_ctx_train < 4096 ? c->model->n_ctx_train : 4096, 1,
                                      p->topology.n_allowed);
    ps_plan_request r = gc_request(c, &level, 1);
    r.profile = p;
    r.cost = cost;
    ps_status status = ps_plan_build(&r, &plan, NULL, &e);
    bool small = p->topology.memory_bytes < c->model->weight_bytes + ((uint64_t)1 << 30);
    if (small && status == PS_E_INFEASIBLE) { /* an answer too */
        ps_cost_model_free(cost);
        return;
    }
    cr_assert_eq(status, PS_OK, "%s, %s: %s: %s", name, of, e.subject, e.message);
    cr_assert_eq(ps_plan_validate(plan, &e), PS_OK, "%s, %s: %s: %s", name, of, e.subject, e.message);
    cr_assert_eq(ps_plan_check(plan, &plan->levels[0], c->model, &e), PS_OK, "%s, %s: %s: %s", name, of,
                 e.subject, e.message);
    const ps_level *l = &plan->levels[0];
    for (uint32_t i = 0; i < l->n_tiers; i++) {
        const ps_tier *t = &l->tiers[i];
        cr_assert(isfinite(t->step_empty_s) && t->step_empty_s > 0 && isfinite(t->step_full_s) &&
                      t->step_full_s >= t->step_empty_s * 0.999 && t->step_full_s < 3600,
                  "%s, %s, %u tokens: %g, %g s", name, of, t->max_tokens, t->step_empty_s, t->step_full_s);
        cr_assert(isfinite(t->raw_bound_s) && t->raw_bound_s > 0 && isfinite(t->reachable_bound_s));
    }
    ps_plan_free(plan);
    ps_cost_model_free(cost);
}

/* True: it was measured. */
static bool machine(const char *name) {
    char path[512];
    ps_error e = {0};
    ps_profile *p = NULL;
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_leq(st.st_size, MAX_BYTES, "%s", name);
    cr_assert_eq(ps_profile_read(path, &p, &e), PS_OK, "%s: %s", e.subject, e.message);
    cr_assert(p->complete && p->note, "%s", name);
    const char *what = p->synthetic ? "synthetic: " : "measured: ";
    cr_assert_eq(strncmp(p->note, what, strlen(what)), 0, "%s: %s", name, p->note);
    cr_assert_eq(p->gpu.uuid[0], '\0', "%s", name);
    static const struct {
        const mb_shape *shape;
        const char *name;
    } models[] = {{&mb_llama_small, "tiny"}, {&mb_llama3_8b, "8b"}, {&mb_qwen3_30b_a3b, "30b"}};
#ifdef __SANITIZE_ADDRESS__ /* where it takes minutes: the two extremes, in little VRAM */
    const size_t by = 2;
#else
    const size_t by = 1;
#endif
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i += by) {
        gpu_case c = gc_shape(models[i].shape);
        plans(name, &c, p, 0, models[i].name);
        if (p->gpu.name[0]) {
            plans(name, &c, p, (uint64_t)3 << 30, models[i].name);
            if (by == 1)
                plans(name, &c, p, p->gpu.vram_bytes / 16 * 15, models[i].name);
        }
        gc_close(&c);
    }
    bool measured = !p->synthetic;
    ps_profile_free(p);
    return measured;
}

Test(machines, all) {
    DIR *d = opendir(folder);
    cr_assert(d);
    int n = 0, measured = 0;
    for (struct dirent *f; (f = readdir(d));) {
        size_t len = strlen(f->d_name);
        if (len < 5 || strcmp(f->d_name + len - 5, ".yaml") != 0)
            continue;
        measured += machine(f->d_name);
        n++;
    }
    closedir(d);
    cr_assert_geq(n, LEAST_MACHINES);
    cr_assert_geq(measured, 3);
}

/* Predicted time of a prompt of 1,024 tokens and 256 more, as psplan's default workload. */
static double workload_s(const ps_level *l) {
    const ps_tier *prompt = NULL, *one = &l->tiers[0];
    for (uint32_t i = 0; i < l->n_tiers && !prompt; i++)
        if (l->tiers[i].max_tokens >= 1024)
            prompt = &l->tiers[i];
    cr_assert(prompt && one->max_tokens == 1);
    return prompt->step_empty_s + 256 * (one->step_empty_s + one->step_full_s) / 2;
}

/* On this machine experts that fill the last of 16 GB by themselves make steps slower, not faster: there the smaller budget's
 * choice stays. */
Test(machines, larger_budgets_are_not_slower) {
    enum { N = 6 };
    ps_error e = {0};
    ps_profile *p = NULL;
    ps_cost_model *cost = NULL;
    ps_plan *plan = NULL;
    gpu_case c = gc_shape(&mb_qwen3_30b_a3b);
    cr_assert_eq(ps_profile_read("fixtures/profiles/gaming-laptop.yaml", &p, &e), PS_OK, "%s", e.message);
    cr_assert_eq(ps_cost_model_new(p, &cost, &e), PS_OK);
    ps_level_request levels[N];
    for (int i = 0; i < N; i++)
        levels[i] = gc_level((uint64_t)(11776 + 768 * i) << 20, 2048, 1, p->topology.n_allowed - 1);
    ps_plan_request r = gc_request(&c, levels, N);
    r.profile = p;
    r.cost = cost;
    cr_assert_eq(ps_plan_build(&r, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
    cr_assert_eq(plan->n_levels, N);
    for (int i = 1; i < N; i++)
        cr_assert_leq(workload_s(&plan->levels[i]), workload_s(&plan->levels[i - 1]) * 1.0001,
                      "%s: %g s, not %g", plan->levels[i].budget, workload_s(&plan->levels[i]),
                      workload_s(&plan->levels[i - 1]));
    cr_assert_lt(plan->levels[N - 1].vram_weight_bytes,
                 plan->levels[N - 1].budget_bytes - ((uint64_t)1 << 30),
                 "the smaller budget's choice was not needed: another case must show the rule");
    ps_plan_free(plan);
    ps_cost_model_free(cost);
    ps_profile_free(p);
    gc_close(&c);
}
