/* Levels with a GPU: every family's plans pass the checker, memory stays within the budget, a smaller level's residents are
 * the first of a larger one's, more budget never makes less resident, and the same request gives the same bytes. */
#include <criterion/criterion.h>
#include <string.h>

#include "gpu_case.h"

#define MIB ((uint64_t)1 << 20)

static ps_plan *build(const ps_plan_request *r) {
    ps_error e = {0};
    ps_plan *plan = NULL;
    cr_assert_eq(ps_plan_build(r, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
    return plan;
}

static void check(const ps_plan *plan, const gpu_case *c, const char *what) {
    ps_error e = {0};
    cr_assert_eq(ps_plan_validate(plan, &e), PS_OK, "%s: %s: %s", what, e.subject, e.message);
    for (uint32_t i = 0; i < plan->n_levels; i++) {
        const ps_level *l = &plan->levels[i];
        cr_assert_eq(ps_plan_check(plan, l, c->model, &e), PS_OK, "%s: %s: %s", what, e.subject, e.message);
        cr_assert_leq(l->vram_base_bytes + l->vram_work_bytes + l->vram_weight_bytes, l->budget_bytes);
        for (uint32_t k = 0; k < i; k++)
            cr_assert_eq(ps_plan_check_change(plan, &plan->levels[k], l, c->model, &e), PS_OK, "%s: %s: %s", what,
                         e.subject, e.message);
    }
}

/* All families, some budgets, two contexts. */
static void families(const mb_shape *shape, const uint64_t *budgets, uint32_t n_budgets, uint64_t max_step) {
    gpu_case c = gc_shape(shape);
    for (int f = 0; f < 2 * PS_FAMILY_COUNT; f++) {
        ps_level_request levels[16];
        uint32_t n = 0, seqs = f % 2 ? 4 : 1;
        for (uint32_t i = 0; i < n_budgets; i++) {
            levels[n++] = gc_level(budgets[i], 1024, seqs, 16);
            levels[n++] = gc_level(budgets[i], 8192, seqs, 8);
        }
        ps_plan_request r = gc_request(&c, levels, n);
        r.forced = true;
        r.family = (ps_family)(f / 2);
        r.max_step_tokens = max_step;
        ps_plan *plan = build(&r);
        check(plan, &c, ps_family_name(r.family));
        ps_plan_free(plan);
    }
    gc_close(&c);
}

Test(gpu_planner, llama) {
    static const uint64_t budgets[] = {680 * MIB, 720 * MIB, 1000 * MIB};
    families(&mb_llama_small, budgets, 3, 8192);
}
Test(gpu_planner, qwen3) {
    static const uint64_t budgets[] = {680 * MIB, 1000 * MIB};
    families(&mb_qwen3_small, budgets, 2, 0);
}
Test(gpu_planner, qwen3moe) {
    static const uint64_t budgets[] = {680 * MIB, 1000 * MIB};
    families(&mb_qwen3moe_small, budgets, 2, 8192);
}
Test(gpu_planner, gemma3) {
    static const uint64_t budgets[] = {680 * MIB, 1000 * MIB};
    families(&mb_gemma3_small, budgets, 2, 8192);
}
Test(gpu_planner, llama3_8b) {
    static const uint64_t budgets[] = {2048 * MIB, 4096 * MIB, 12288 * MIB};
    families(&mb_llama3_8b, budgets, 3, 0);
}
Test(gpu_planner, qwen3_30b_a3b) {
    static const uint64_t budgets[] = {2800 * MIB, 8800 * MIB, 30000 * MIB};
    families(&mb_qwen3_30b_a3b, budgets, 3, 0);
}
