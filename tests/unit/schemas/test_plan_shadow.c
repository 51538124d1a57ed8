/* What the checker accepts is safe under every schedule that was tried, and what is unsafe in the ways that
 * mutations make it is refused: thousands of mutants of valid plans, fixed seeds, judged by plan_shadow.h. */
#include <criterion/criterion.h>
#include <string.h>

#include "core/hash.h"
#include "plan_case.h"
#include "plan_mutate.h"

/* PS_SEED=N hunts elsewhere; PS_MUTANTS=N for longer (plan_mutate.h). */
static uint64_t first_seed(uint64_t usual) {
    const char *want = getenv("PS_SEED");
    return want != NULL ? usual + strtoull(want, NULL, 10) * 1000003 : usual;
}

static const mb_shape *const shapes[] = {&mb_llama_small, &mb_qwen3_small, &mb_qwen3moe_small,
                                         &mb_gemma3_small};

/* Small steps, so that the judge is quick. */
static const pb_config small_levels[] = {
    {.bucket_tokens = 48, .n_seqs = 2, .n_threads = 2, .n_tiers = 2, .tiers = {1, 6}, .programs = {0, 0}},
    {.gpu = true,
     .bucket_tokens = 64,
     .n_seqs = 1,
     .n_threads = 2,
     .n_tiers = 2,
     .tiers = {1, 5},
     .programs = {2, 2}},
};
static const pb_config tiled_levels[] = {
    {.bucket_tokens = 4200,
     .n_seqs = 1,
     .n_threads = 2,
     .n_tiers = 2,
     .tiers = {2048, 4100},
     .programs = {1, 1}},
};

Test(plan_shadow, the_judge_passes_valid_plans) {
    char why[200];
    for (int i = 0; i < 4; i++) {
        plan_case c;
        plan_case_open_with(&c, shapes[i], small_levels, 2);
        for (uint32_t l = 0; l < 2; l++)
            cr_assert_str_eq(judge_level(c.plan, &c.plan->levels[l], c.model, 4, 7, why), "");
        plan_case_close(&c);
        if (i % 3 != 0) /* slow: with rings, and without */
            continue;
        plan_case_open_with(&c, shapes[i], tiled_levels, 1);
        cr_assert_str_eq(judge_level(c.plan, &c.plan->levels[0], c.model, 1, 7, why), "");
        plan_case_close(&c);
    }
}

static const mb_shape *const gpu_shapes[] = {&plan_case_wide, &mb_qwen3moe_small, &mb_gemma3_small,
                                             &plan_case_biased};

/* Streamed, split and ranged weights; over tiles for one model, since that is slow. */
static bool fits(const mb_shape *shape, uint32_t program) {
    return program != 5 || shape->n_expert != 0 || shape->n_ff >= 1024;
}

Test(plan_shadow, the_judge_passes_valid_plans_with_a_gpu) {
    char why[200];
    for (int i = 0; i < 4; i++)
        for (uint32_t program = 2; program <= 6; program++) {
            plan_case c;
            if (!fits(gpu_shapes[i], program) || (program == 4 && i != 2))
                continue;
            pb_config level = plan_case_level(program);
            plan_case_open_with(&c, gpu_shapes[i], &level, 1);
            judge_level(c.plan, c.plan->levels, c.model, program == 4 ? 1 : 4, 7, why);
            cr_assert_str_eq(why, "", "%s, program %u: %s", gpu_shapes[i]->arch, program, why);
            plan_case_close(&c);
        }
}

/* Plans with as few waits as the checker lets through are safe; and so are their mutants that it lets through. */
static void run_relaxed(const mb_shape *shape, uint32_t program, uint32_t n_mutants, uint32_t n_schedules,
                        uint64_t seed, tally *n) {
    plan_case c;
    ps_error err;
    char why[200];
    uint8_t *binary;
    uint64_t size;
    const pb_config level = plan_case_level(program);
    plan_case_open_with(&c, shape, &level, 1);
    uint32_t n_instrs = c.plan->programs[program].n_instrs, n_free = relax(c.plan, c.plan->levels, c.model);
    judge_level(c.plan, c.plan->levels, c.model, program == 4 ? 1 : 4 * n_schedules, seed, why);
    cr_assert_str_eq(why, "", "%s, program %u with few waits: %s", shape->arch, program, why);
    cr_assert_gt(n_free * 8, n_instrs, "%s, program %u: %u of %u wait for nothing", shape->arch, program,
                 n_free, n_instrs);
    cr_assert_eq(ps_plan_to_binary(c.plan, &binary, &size, &err), PS_OK);
    for (uint32_t k = 0; k < n_mutants; k++) {
        ps_plan *p;
        cr_assert_eq(ps_plan_parse(binary, size, "p", &p, &err), PS_OK);
        for (uint64_t changes = 1 + below(&seed, 2); changes != 0; changes--)
            mutate(p, p->levels, &seed);
        judge_mutant(p, p->levels, c.model, n_schedules, seed, n);
        ps_plan_free(p);
    }
    free(binary);
    plan_case_close(&c);
}

static void run_mutants(const pb_config *levels, uint32_t n_levels, uint32_t n_mutants, uint32_t n_schedules,
                        uint64_t seed, tally *n) {
    for (int i = 0; i < 4; i++) {
        plan_case c;
        ps_error err;
        uint8_t *binary;
        uint64_t size;
        plan_case_open_with(&c, shapes[i], levels, n_levels);
        cr_assert_eq(ps_plan_to_binary(c.plan, &binary, &size, &err), PS_OK);
        for (uint32_t k = 0; k < n_mutants; k++) {
            ps_plan *p;
            cr_assert_eq(ps_plan_parse(binary, size, "p", &p, &err), PS_OK);
            ps_level *l = &p->levels[k % n_levels];
            for (uint64_t changes = 1 + below(&seed, 2); changes != 0; changes--)
                mutate(p, l, &seed);
            judge_mutant(p, l, c.model, n_schedules, seed, n);
            ps_plan_free(p);
        }
        free(binary);
        plan_case_close(&c);
    }
}

/* Some mutants are accepted, more are not, and of those the judge sees what is wrong with most. */
static void expect_both(const char *what, const tally *n, uint32_t accepted_in, uint32_t refused_in) {
    uint32_t all = n->accepted + n->refused;
    show_tally(what, n);
    if (all >= 100 || getenv("PS_MUTANTS") != NULL) /* fewer, where they are slow, may by chance be none */
        cr_assert_gt(n->accepted * accepted_in, all, "%u accepted, %u refused", n->accepted, n->refused);
    cr_assert_gt(n->refused * refused_in, all, "%u accepted, %u refused", n->accepted, n->refused);
    cr_assert_geq(n->refused_unsafe * 2, n->refused_judged, "%u of %u", n->refused_unsafe, n->refused_judged);
}

Test(plan_shadow, accepted_mutants_are_safe) {
    tally n = {0};
    run_mutants(small_levels, 2, mutants(100), 2, first_seed(12345), &n);
    expect_both("small plans", &n, 12, 2);
}

Test(plan_shadow, accepted_mutants_over_tiles_are_safe) {
    tally n = {0};
    run_mutants(tiled_levels, 1, mutants(4), 1, first_seed(777), &n);
    expect_both("plans over tiles", &n, 24, 3);
}

static void change_bytes(const mb_shape *shape, const pb_config *levels, uint32_t n_levels,
                         uint32_t n_mutants, tally *n) {
    plan_case c;
    ps_error err;
    uint8_t *binary;
    uint64_t size, seed = first_seed(99);
    uint32_t refused_by_reader = 0;
    plan_case_open_with(&c, shape, levels, n_levels);
    cr_assert_eq(ps_plan_to_binary(c.plan, &binary, &size, &err), PS_OK);
    for (uint32_t k = 0; k < n_mutants; k++) {
        ps_plan *p;
        uint64_t at[3], n_at = 1 + below(&seed, 3);
        uint8_t old[3];
        for (uint64_t i = 0; i < n_at; i++) {
            at[i] = 32 + below(&seed, size - 32);
            old[i] = binary[at[i]];
            binary[at[i]] =
                below(&seed, 2) == 0 ? (uint8_t)(old[i] + below(&seed, 5) - 2) : (uint8_t)below(&seed, 256);
        }
        ps_hash_bytes(binary + 32, size - 32, binary + 16);
        if (ps_plan_parse(binary, size, "p", &p, &err) == PS_OK) {
            for (uint32_t l = 0; l < p->n_levels; l++)
                judge_mutant(p, &p->levels[l], c.model, 4, seed, n);
            ps_plan_free(p);
        } else {
            refused_by_reader++;
        }
        for (uint64_t i = n_at; i-- > 0;)
            binary[at[i]] = old[i];
    }
    cr_assert_gt(refused_by_reader, n_mutants / 4);
    free(binary);
    plan_case_close(&c);
}

Test(plan_shadow, changed_bytes_of_a_binary_plan) {
    tally n = {0};
    change_bytes(&mb_llama_small, small_levels, 2, mutants(600), &n);
    expect_both("changed bytes", &n, 8, 16);
}

Test(plan_shadow, changed_bytes_of_a_binary_plan_with_a_gpu) {
    tally n = {0};
    for (uint32_t program = 3; program <= 6; program++) {
        const pb_config level = plan_case_level(program);
        if (program != 4)
            change_bytes(&mb_qwen3moe_small, &level, 1, mutants(150), &n);
    }
    expect_both("changed bytes, GPU", &n, 8, 16);
}

Test(plan_shadow, accepted_mutants_with_a_gpu_are_safe) {
    tally n = {0};
    for (int i = 0; i < 4; i++)
        for (uint32_t program = 2; program <= 6; program++)
            if (fits(gpu_shapes[i], program) && program != 4)
                run_relaxed(gpu_shapes[i], program, mutants(40), 1, first_seed(4711) + program, &n);
    expect_both("plans with a GPU", &n, 12, 2);
}

Test(plan_shadow, accepted_mutants_with_a_gpu_over_tiles_are_safe) {
    tally n = {0};
    run_relaxed(&mb_qwen3moe_small, 4, mutants(12), 1, first_seed(815), &n);
    expect_both("plans with a GPU, over tiles", &n, 16, 3);
}
