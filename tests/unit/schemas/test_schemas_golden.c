/* Documents as they are written today, kept in tests/golden/schemas: a change of layout shows up as a diff there.
 * PS_UPDATE_GOLDEN=1 in the environment rewrites them. The same files are seeds of the fuzz targets, and
 * tests/cli/test_json_schemas.sh holds them against the JSON Schemas. Runs in the root of the repository. */
#include <criterion/criterion.h>
#include <string.h>

#include "core/file.h"
#include "plan_case.h"
#include "schemas/fields.h"
#include "tests/profile_builder.h"
#include "tests/trace_builder.h"

static void hold_against(const char *name, const void *data, uint64_t size) {
    char path[128], *golden;
    uint64_t n;
    ps_error err;
    snprintf(path, sizeof path, "tests/golden/schemas/%s", name);
    if (getenv("PS_UPDATE_GOLDEN") != NULL)
        cr_assert_eq(ps_file_write_atomic(path, data, size, &err), PS_OK);
    cr_assert_eq(ps_file_read(path, UINT64_MAX, &golden, &n, &err), PS_OK, "%s: %s", path, err.message);
    cr_expect(n == size && memcmp(golden, data, size) == 0, "%s differs from what is written now", path);
    free(golden);
}

Test(schemas_golden, profile) {
    ps_profile *p = pf_profile(6);
    pf_add_gpu(p);
    char *text;
    uint64_t n;
    ps_error err;
    cr_assert_eq(ps_profile_format(p, &text, &n, &err), PS_OK);
    hold_against("profile.yaml", text, n);
    free(text);
    ps_profile_free(p);
}

Test(schemas_golden, trace) {
    ps_trace *t = tr_trace(20);
    char *text;
    uint64_t n;
    ps_error err;
    cr_assert_eq(ps_trace_to_json(t, &text, &n, &err), PS_OK);
    hold_against("trace.json", text, n);
    free(text);
    ps_trace_free(t);
}

static void hold_plan(const char *name, const mb_shape *shape, const pb_config *levels, uint32_t n_levels) {
    plan_case c;
    char *text, file[64];
    uint8_t *binary;
    uint64_t n;
    ps_error err;
    plan_case_open_with(&c, shape, levels, n_levels);
    cr_assert_eq(ps_plan_to_yaml(c.plan, &text, &n, &err), PS_OK, "%s: %s", err.subject, err.message);
    snprintf(file, sizeof file, "%s.yaml", name);
    hold_against(file, text, n);
    cr_assert_eq(ps_plan_to_binary(c.plan, &binary, &n, &err), PS_OK);
    snprintf(file, sizeof file, "%s.pspl", name);
    hold_against(file, binary, n);
    free(text);
    free(binary);
    plan_case_close(&c);
}

Test(schemas_golden, plan) {
    static const pb_config levels[] = {
        {.bucket_tokens = 1024,
         .n_seqs = 1,
         .n_threads = 2,
         .n_tiers = 2,
         .tiers = {1, 512},
         .programs = {0, 0}},
        {.gpu = true,
         .bucket_tokens = 4096,
         .n_seqs = 1,
         .n_threads = 2,
         .n_tiers = 1,
         .tiers = {4},
         .programs = {2}},
    };
    hold_plan("plan", &mb_llama_small, levels, 2);
}

/* Streamed weights with entries, KV in a slot, ranges of rows. */
Test(schemas_golden, plan_of_streams) {
    pb_config levels[] = {plan_case_level(3), plan_case_level(6)};
    levels[1].bucket_tokens = 128;
    hold_plan("plan_stream", &mb_llama_small, levels, 2);
}

/* Near and far experts, some resident. */
Test(schemas_golden, plan_of_experts) {
    const pb_config level = plan_case_level(5);
    hold_plan("plan_experts", &mb_qwen3moe_small, &level, 1);
}

/* Every name that a document may use is in its JSON Schema. */
static void names_are_in(const char *path, const ps_names *const *lists, size_t n_lists) {
    char *text, quoted[64];
    uint64_t n;
    ps_error err;
    cr_assert_eq(ps_file_read(path, UINT64_MAX, &text, &n, &err), PS_OK);
    for (size_t i = 0; i < n_lists; i++)
        for (uint32_t v = 0; v < lists[i]->count; v++) {
            const char *name = lists[i]->name_of(v);
            snprintf(quoted, sizeof quoted, "\"%s\"", name != NULL ? name : "");
            cr_expect(name == NULL || strstr(text, quoted) != NULL, "%s: %s \"%s\" is missing", path,
                      lists[i]->what, name);
        }
    free(text);
}

Test(schemas_golden, names_are_in_the_json_schemas) {
    static const ps_names *const profile[] = {&ps_names_op,        &ps_names_dtype, &ps_names_fmt,
                                              &ps_names_device,    &ps_names_stop,  &ps_names_beside,
                                              &ps_names_host_kind, &ps_names_bus};
    static const ps_names *const plan[] = {
        &ps_names_op,         &ps_names_dtype, &ps_names_fmt,   &ps_names_device, &ps_names_value,
        &ps_names_shard_kind, &ps_names_role,  &ps_names_queue, &ps_names_space,  &ps_names_placement,
        &ps_names_rows,       &ps_names_loop,  &ps_names_when,  &ps_names_part};
    static const ps_names *const trace[] = {&ps_names_op, &ps_names_queue, &ps_names_trace_source};
    names_are_in("schemas/machine_profile.schema.json", profile, sizeof profile / sizeof profile[0]);
    names_are_in("schemas/plan.schema.json", plan, sizeof plan / sizeof plan[0]);
    names_are_in("schemas/trace.schema.json", trace, sizeof trace / sizeof trace[0]);
}
