/* The checker: safe plans pass, and each rule refuses exactly what breaks it. */
#include <criterion/criterion.h>
#include <string.h>

#include "plan_case.h"

static void must(ps_status status, const ps_error *err) {
    char line[600];
    cr_assert_eq(status, PS_OK, "%s", ps_error_format(err, line, sizeof line));
}

Test(plan_check, safe_plans_pass) {
    const mb_shape *shapes[] = {&mb_llama_small, &mb_qwen3_small, &mb_qwen3moe_small, &mb_gemma3_small};
    for (int i = 0; i < 4; i++) {
        plan_case c;
        plan_case_open(&c, shapes[i]);
        ps_error err = {0};
        must(ps_plan_match_model(c.plan, c.model, &err), &err);
        for (uint32_t l = 0; l < c.plan->n_levels; l++)
            must(ps_plan_check(c.plan, &c.plan->levels[l], c.model, &err), &err);
        plan_case_close(&c);
    }
}
