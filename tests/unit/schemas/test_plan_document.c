/* The plan in YAML and in binary: the same meaning, the same bytes, and what is refused. */
#include <criterion/criterion.h>
#include <string.h>

#include "plan_case.h"
#include "schemas/plan_fields.h"

static void must(ps_status status, const ps_error *err) {
    char line[600];
    cr_assert_eq(status, PS_OK, "%s", ps_error_format(err, line, sizeof line));
}

Test(plan_document, yaml_binary_yaml_is_the_identity) {
    const mb_shape *shapes[] = {&mb_llama_small, &mb_qwen3_small, &mb_qwen3moe_small, &mb_gemma3_small};
    for (int i = 0; i < 4; i++) {
        plan_case c;
        plan_case_open(&c, shapes[i]);
        ps_error err = {0};
        char *yaml, *yaml2;
        uint8_t *binary, *binary2;
        uint64_t n_yaml, n_yaml2, n_binary, n_binary2;
        ps_plan *from_yaml, *from_binary;
        must(ps_plan_to_yaml(c.plan, &yaml, &n_yaml, &err), &err);
        must(ps_plan_parse(yaml, n_yaml, "p.yaml", &from_yaml, &err), &err);
        must(ps_plan_to_binary(from_yaml, &binary, &n_binary, &err), &err);
        must(ps_plan_parse(binary, n_binary, "p.bin", &from_binary, &err), &err);
        must(ps_plan_to_yaml(from_binary, &yaml2, &n_yaml2, &err), &err);
        must(ps_plan_to_binary(c.plan, &binary2, &n_binary2, &err), &err);
        cr_assert_eq(n_yaml, n_yaml2);
        cr_assert_eq(memcmp(yaml, yaml2, n_yaml), 0);
        cr_assert_eq(n_binary, n_binary2);
        cr_assert_eq(memcmp(binary, binary2, n_binary), 0);
        free(yaml);
        free(yaml2);
        free(binary);
        free(binary2);
        ps_plan_free(from_yaml);
        ps_plan_free(from_binary);
        plan_case_close(&c);
    }
}
