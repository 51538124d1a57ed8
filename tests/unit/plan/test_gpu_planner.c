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
            cr_assert_eq(ps_plan_check_change(plan, &plan->levels[k], l, c->model, &e), PS_OK, "%s: %s: %s",
                         what, e.subject, e.message);
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
    static const uint64_t budgets[] = {712 * MIB, 744 * MIB, 1000 * MIB};
    families(&mb_llama_small, budgets, 3, 8192);
}
Test(gpu_planner, qwen3) {
    static const uint64_t budgets[] = {712 * MIB, 1000 * MIB};
    families(&mb_qwen3_small, budgets, 2, 0);
}
Test(gpu_planner, qwen3moe) {
    static const uint64_t budgets[] = {712 * MIB, 1000 * MIB};
    families(&mb_qwen3moe_small, budgets, 2, 8192);
}
Test(gpu_planner, gemma3) {
    static const uint64_t budgets[] = {712 * MIB, 1000 * MIB};
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

/* Weights in VRAM, in bytes. */
static uint64_t resident(const ps_plan *plan, uint32_t level) {
    return plan->levels[level].n_resident
               ? plan->levels[level].resident[plan->levels[level].n_resident - 1].offset
               : 0;
}

#ifdef __SANITIZE_ADDRESS__ /* where eight take a minute */
enum { BUDGETS = 3 };
#else
enum { BUDGETS = 8 };
#endif

Test(gpu_planner, more_budget_never_makes_less_resident_and_bytes_repeat) {
    static const mb_shape *const shapes[] = {&mb_llama3_8b, &mb_qwen3_30b_a3b};
    for (int k = 0; k < 2; k++) {
        gpu_case c = gc_shape(shapes[k]);
        ps_level_request levels[BUDGETS];
        for (uint32_t i = 0; i < BUDGETS; i++)
            levels[i] = gc_level((1500 + 700 * i) * MIB, 4096, 1, 16);
        ps_plan_request r = gc_request(&c, levels, BUDGETS);
        ps_plan *plan = build(&r), *again = build(&r);
        check(plan, &c, "some budgets");
        for (uint32_t i = 1; i < plan->n_levels; i++) {
            const ps_level *a = &plan->levels[i - 1], *b = &plan->levels[i];
            cr_assert_geq(b->n_resident, a->n_resident);
            cr_assert_geq(resident(plan, i), resident(plan, i - 1));
            for (uint32_t p = 0; p < a->n_resident; p++) {
                const ps_resident *x = &a->resident[p], *y = &b->resident[p];
                cr_assert(x->offset == y->offset && x->range.role == y->range.role &&
                          x->range.layer == y->range.layer && x->range.row0 == y->range.row0 &&
                          x->range.n_rows == y->range.n_rows && x->range.col0 == y->range.col0 &&
                          x->range.n_cols == y->range.n_cols);
            }
            uint64_t left = b->budget_bytes - b->vram_base_bytes - b->vram_work_bytes - b->vram_weight_bytes;
            bool all = b->vram_weight_bytes + c.model->w[PS_ROLE_TOKEN_EMBD]->bytes >= c.model->weight_bytes;
            cr_assert(all || left < 256 * MIB, "level %u leaves %llu bytes", i, (unsigned long long)left);
        }
        ps_error e = {0};
        uint8_t *x, *y;
        uint64_t nx, ny;
        cr_assert_eq(ps_plan_to_binary(plan, &x, &nx, &e), PS_OK, "%s: %s", e.subject, e.message);
        cr_assert_eq(ps_plan_to_binary(again, &y, &ny, &e), PS_OK);
        cr_assert(nx == ny && memcmp(x, y, nx) == 0);
        free(x);
        free(y);
        ps_plan_free(plan);
        ps_plan_free(again);
        gc_close(&c);
    }
}

/* Predicted time of decoding one token at half the bucket. */
static double token_s(const ps_plan *plan) {
    const ps_tier *t = &plan->levels[0].tiers[0];
    return (t->step_empty_s + t->step_full_s) / 2;
}

static double prompt_s(const ps_plan *plan) {
    const ps_level *l = &plan->levels[0];
    for (uint32_t i = 0; i < l->n_tiers; i++)
        if (l->tiers[i].max_tokens >= PS_PLAN_PROMPT)
            return l->tiers[i].step_empty_s;
    return l->tiers[l->n_tiers - 1].step_empty_s * PS_PLAN_PROMPT / l->tiers[l->n_tiers - 1].max_tokens;
}

Test(gpu_planner, the_chosen_families_are_no_slower_than_any_forced_one) {
    static const mb_shape *const shapes[] = {&mb_llama3_8b, &mb_qwen3_30b_a3b};
    static const uint64_t budgets[] = {2048 * MIB, 9000 * MIB};
    for (int k = 0; k < 4; k++) {
        gpu_case c = gc_shape(shapes[k / 2]);
        ps_level_request level = gc_level(budgets[k % 2], 2048, 1, 16);
        ps_plan_request r = gc_request(&c, &level, 1);
        ps_plan *best = build(&r);
        double t = PS_PLAN_OUTPUT * token_s(best) + prompt_s(best);
        ps_plan_free(best);
        for (int f = 0; f < PS_FAMILY_COUNT; f++) {
            r.forced = true;
            r.family = (ps_family)f;
            ps_plan *plan = build(&r);
            double forced = PS_PLAN_OUTPUT * token_s(plan) + prompt_s(plan);
            cr_assert_leq(t, forced * 1.002, "%s: %g s, chosen %g s", ps_family_name(r.family), forced, t);
            ps_plan_free(plan);
        }
        gc_close(&c);
    }
}

/* Steps are never faster than the raw bound, which is what everything at its ceiling takes; of models that no cache holds, whose
 * attention is in VRAM, nor than what is reachable. */
static void nothing_beats_the_bounds(const mb_shape *shape, const ps_level_request *levels, uint32_t n) {
    gpu_case c = gc_shape(shape);
    ps_plan_request r = gc_request(&c, levels, n);
    ps_plan *plan = build(&r);
    for (uint32_t l = 0; l < plan->n_levels; l++)
        for (uint32_t t = 0; t < plan->levels[l].n_tiers; t++) {
            const ps_tier *tier = &plan->levels[l].tiers[t];
            cr_assert_gt(tier->raw_bound_s, 0);
            cr_assert_geq(tier->reachable_bound_s, tier->raw_bound_s);
            cr_assert_geq(tier->step_full_s, tier->raw_bound_s * 0.999, "%u tokens: %g s, bound %g s",
                          tier->max_tokens, tier->step_full_s, tier->raw_bound_s);
            cr_assert_geq(tier->step_full_s, tier->reachable_bound_s * 0.999,
                          "%u tokens: %g s, reachable %g s", tier->max_tokens, tier->step_full_s,
                          tier->reachable_bound_s);
        }
    ps_plan_free(plan);
    gc_close(&c);
}

Test(gpu_planner, nothing_beats_the_bounds) {
    ps_level_request llama[] = {gc_level(2048 * MIB, 1024, 1, 16), gc_level(9000 * MIB, 8192, 1, 8)};
    nothing_beats_the_bounds(&mb_llama3_8b, llama, 2);
}

Test(gpu_planner, what_does_not_fit_is_said_in_numbers) {
    gpu_case c = gc_shape(&mb_llama3_8b);
    ps_level_request level = gc_level(640 * MIB, 4096, 1, 16);
    ps_plan_request r = gc_request(&c, &level, 1);
    ps_plan *plan = NULL;
    ps_shortage s = {0};
    ps_error e = {0};
    cr_assert_eq(ps_plan_build(&r, &plan, &s, &e), PS_E_INFEASIBLE);
    cr_assert_eq(s.memory_bytes, 640 * MIB);
    cr_assert_gt(s.needed_bytes, s.memory_bytes);
    cr_assert_gt(s.nearest_budget_bytes, s.memory_bytes);
    cr_assert(strstr(e.message, "bytes short") != NULL, "%s", e.message);
    level = gc_level(s.nearest_budget_bytes, 4096, 1, 16); /* and that would do */
    cr_assert_eq(ps_plan_build(&r, &plan, &s, &e), PS_OK, "%s: %s", e.subject, e.message);
    check(plan, &c, "the nearest budget");
    ps_plan_free(plan);
    c.profile->gpu.name[0] = '\0';
    cr_assert_eq(ps_plan_build(&r, &plan, &s, &e), PS_E_UNAVAILABLE);
    gc_close(&c);
}

/* Sequences in parallel, rows of logits in number, odd steps and contexts. */
Test(gpu_planner, odd_requests) {
    static const mb_shape *const shapes[] = {&mb_llama_small, &mb_qwen3moe_small, &mb_gemma3_small,
                                             &mb_llama3_8b};
    for (int k = 0; k < 4; k++) {
        gpu_case c = gc_shape(shapes[k]);
        for (int f = 0; f <= PS_FAMILY_COUNT; f++) {
            ps_level_request levels[] = {gc_level(1400 * MIB, 1000, 16, 3), gc_level(2500 * MIB, 333, 16, 3)};
            ps_plan_request r = gc_request(&c, levels, 2);
            r.forced = f < PS_FAMILY_COUNT;
            r.family = (ps_family)(f % PS_FAMILY_COUNT);
            r.max_outputs = 20;
            r.max_step_tokens = 5000;
            ps_plan *plan = build(&r);
            check(plan, &c, ps_family_name(r.family));
            ps_plan_free(plan);
        }
        gc_close(&c);
    }
}
