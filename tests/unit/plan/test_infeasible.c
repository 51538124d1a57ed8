/* R15: what does not fit is said with its largest part, the bytes short and the nearest that does fit: it fits, and a step beyond
 * it does not. In host memory and in VRAM, for the fastest family and for each forced one. */
#include <criterion/criterion.h>
#include <string.h>

#include "gpu_case.h"

#define MIB ((uint64_t)1 << 20)

static ps_status plans(const ps_plan_request *q, const ps_level_request *level, ps_shortage *s, ps_error *e) {
    ps_plan_request r = *q;
    ps_plan *plan = NULL;
    r.levels = level;
    r.n_levels = 1;
    ps_status status = ps_plan_build(&r, &plan, s, e);
    cr_assert((status == PS_OK) == (plan != NULL));
    if (plan != NULL)
        cr_assert_eq(ps_plan_check(plan, plan->levels, r.model, e), PS_OK, "%s: %s", e->subject, e->message);
    ps_plan_free(plan);
    return status;
}

static void numbers(const ps_shortage *s, const ps_error *e, const char *what) {
    char bytes[64];
    cr_assert_gt(s->needed_bytes, s->memory_bytes, "%s", what);
    snprintf(bytes, sizeof bytes, "%llu bytes short",
             (unsigned long long)(s->needed_bytes - s->memory_bytes));
    cr_assert(strstr(e->message, bytes) != NULL, "%s: %s", what, e->message);
    cr_assert(s->largest[0] && strstr(e->message, s->largest) != NULL, "%s: %s", what, e->message);
    cr_assert(s->largest_bytes > 0 && s->largest_bytes <= s->needed_bytes, "%s", what);
}

/* A budget too small for this context. */
static void vram(const gpu_case *c, uint64_t budget, uint64_t context, uint32_t seqs, int family,
                 uint64_t max_step) {
    ps_plan_request r = gc_request(c, NULL, 0);
    ps_level_request level = gc_level(budget, context, seqs, 8);
    ps_shortage s = {0};
    ps_error e = {0};
    char what[96];
    r.max_step_tokens = max_step;
    r.forced = family < PS_FAMILY_COUNT;
    r.family = (ps_family)(family % PS_FAMILY_COUNT);
    snprintf(what, sizeof what, "%s, %llu MiB, context %llu", r.forced ? ps_family_name(r.family) : "any",
             (unsigned long long)(budget >> 20), (unsigned long long)context);
    cr_assert_eq(plans(&r, &level, &s, &e), PS_E_INFEASIBLE, "%s", what);
    numbers(&s, &e, what);
    cr_assert_eq(s.memory_bytes, budget);
    cr_assert_eq(s.nearest_budget_bytes % MIB, 0);
    level = gc_level(s.nearest_budget_bytes, context, seqs, 8);
    cr_assert_eq(plans(&r, &level, NULL, &e), PS_OK, "%s: the nearest budget, %s, does not: %s", what,
                 level.budget, e.message);
    cr_assert_eq((s.needed_bytes + MIB - 1) / MIB * MIB, s.nearest_budget_bytes);
    level = gc_level(s.needed_bytes, context, seqs, 8);
    cr_assert_eq(plans(&r, &level, NULL, &e), PS_OK, "%s: %s, said to be needed, does not: %s", what,
                 level.budget, e.message);
    level = gc_level(s.needed_bytes - 1, context, seqs, 8);
    cr_assert_eq(plans(&r, &level, NULL, &e), PS_E_INFEASIBLE, "%s: %s would do as well", what, level.budget);
    if (s.nearest_context != 0) {
        cr_assert_lt(s.nearest_context, context);
        level = gc_level(budget, s.nearest_context, seqs, 8);
        cr_assert_eq(plans(&r, &level, NULL, &e), PS_OK, "%s: a context of %llu does not: %s", what,
                     (unsigned long long)s.nearest_context, e.message);
    }
    level = gc_level(budget, s.nearest_context + 256, seqs, 8);
    if (level.bucket_tokens < context)
        cr_assert_eq(plans(&r, &level, NULL, &e), PS_E_INFEASIBLE, "%s: a context of %llu would do as well",
                     what, (unsigned long long)level.bucket_tokens);
}

Test(infeasible, vram) {
    static const mb_shape *const shapes[] = {&mb_gemma3_270m, &mb_llama3_8b, &mb_qwen3_30b_a3b};
#if defined(__SANITIZE_ADDRESS__)
    enum { N_SHAPES = 1 }; /* hundreds of plans */
#else
    enum { N_SHAPES = 3 };
#endif
    for (int i = 0; i < N_SHAPES; i++) {
        gpu_case c = gc_shape(shapes[i]);
        for (int family = i; family <= PS_FAMILY_COUNT; family += 1 + i) {
            vram(&c, 200 * MIB, 4096, 1, family, i == 0 ? 0 : 16);
            ps_shortage s = {0};
            ps_error e = {0};
            ps_level_request level = gc_level(MIB, 32768, 4, 8);
            ps_plan_request r = gc_request(&c, NULL, 0);
            r.forced = family < PS_FAMILY_COUNT;
            r.family = (ps_family)(family % PS_FAMILY_COUNT);
            r.max_step_tokens = 64;
            cr_assert_eq(plans(&r, &level, &s, &e), PS_E_INFEASIBLE);
            vram(&c, s.nearest_budget_bytes - 20 * MIB, 32768, 4, family, 64);
        }
        gc_close(&c);
    }
}

/* Host memory, with and without a GPU. */
Test(infeasible, host_memory) {
    gpu_case c = gc_shape(&mb_llama3_8b);
    for (int family = 1; family <= PS_FAMILY_COUNT; family += 2)
        for (uint64_t budget = family == 1 ? 0 : 4096 * MIB; budget <= 4096 * MIB; budget += 4096 * MIB) {
            static const uint64_t memory[] = {1024 * MIB, 6000 * MIB, 8000 * MIB};
            for (int k = 0; k < 3; k++) {
                ps_plan_request r = gc_request(&c, NULL, 0);
                ps_level_request level = gc_level(budget, 32768, 4, 8);
                ps_shortage s = {0};
                ps_error e = {0};
                char what[64];
                snprintf(what, sizeof what, "%s, %s, memory of %llu MiB", level.budget,
                         ps_family_name((ps_family)(family % PS_FAMILY_COUNT)),
                         (unsigned long long)(memory[k] >> 20));
                r.memory_bytes = memory[k];
                r.max_step_tokens = 64;
                r.forced = budget != 0 && family < PS_FAMILY_COUNT;
                r.family = (ps_family)(family % PS_FAMILY_COUNT);
                ps_status status = plans(&r, &level, &s, &e);
                if (budget != 0 && status == PS_OK)
                    continue; /* the KV is in VRAM */
                cr_assert_eq(status, PS_E_INFEASIBLE, "%s: %s", what, e.message);
                numbers(&s, &e, what);
                cr_assert_eq(s.memory_bytes, memory[k]);
                level.bucket_tokens = s.nearest_context;
                if (s.nearest_context != 0)
                    cr_assert_eq(plans(&r, &level, NULL, &e), PS_OK, "%s: %s", what, e.message);
                level.bucket_tokens = s.nearest_context + 256;
                cr_assert_eq(plans(&r, &level, NULL, &e), PS_E_INFEASIBLE, "%s: %llu would do", what,
                             (unsigned long long)level.bucket_tokens);
            }
        }
    gc_close(&c);
}
