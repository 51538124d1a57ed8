/* psplan check: proof that a plan is safe for a model, and which of its levels can be changed into each other. */
#include <stdlib.h>

#include "kernels/kernel.h"
#include "psplan.h"

static const ps_option check_options[] = {{"json", 'j', PS_OPT_FLAG, NULL, NULL, 0, 0, "Print JSON."},
                                          PS_CLI_ROWS};
enum { N_CHECK_OPTIONS = sizeof check_options / sizeof check_options[0] };

static const ps_command check_command = {
    .name = "psplan check",
    .synopsis = "[OPTIONS] PLAN MODEL.gguf",
    .summary = "Prove every level of a plan safe for a model, as psrun does before it runs one.",
    .details =
        "Exit code 0: safe. 1: the plan is for another model. 65: not safe, with the place and reason.\n"
        "Also says which levels psrun can change to from which while it runs.",
    .examples = "  psplan check model.plan.yaml model.gguf",
    .options = check_options,
    .n_options = N_CHECK_OPTIONS,
    .min_args = 2,
    .max_args = 2,
};

static void level_name(const ps_level *l, char buf[96]) {
    snprintf(buf, 96, "%s/%llu/%u/%u", l->budget, (unsigned long long)l->bucket_tokens, l->n_seqs,
             l->n_threads);
}

/* As psrun does: with a GPU, the same sequences and threads, and what both hold in VRAM is in the same places. */
static bool can_change(const ps_plan *plan, uint32_t from, uint32_t to, const ps_model *model) {
    const ps_level *a = &plan->levels[from], *b = &plan->levels[to];
    return from != to && a->budget_bytes != 0 && b->budget_bytes != 0 && a->n_threads == b->n_threads &&
           a->n_seqs == b->n_seqs && ps_plan_check_change(plan, a, b, model, NULL) == PS_OK &&
           ps_plan_check_change(plan, b, a, model, NULL) == PS_OK;
}

/* Of the levels, how many other ones each can be changed into. */
static uint32_t changes_of(const ps_plan *plan, uint32_t level, const ps_model *model) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_levels; i++)
        n += can_change(plan, level, i, model);
    return n;
}

static ps_status show_json(const ps_plan *plan, const ps_model *model, ps_error *err) {
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    ps_json_bool(j, "safe", true);
    ps_json_bool(j, "own_kernels", ps_kernel_set_is_own(plan->kernel_set));
    ps_json_u64(j, "n_levels", plan->n_levels);
    ps_json_u64(j, "n_programs", plan->n_programs);
    ps_json_array(j, "levels");
    for (uint32_t i = 0; i < plan->n_levels; i++) {
        const ps_level *l = &plan->levels[i];
        ps_json_object(j, NULL);
        ps_json_str(j, "budget", l->budget);
        ps_json_u64(j, "context_tokens", l->bucket_tokens);
        ps_json_u64(j, "n_sequences", l->n_seqs);
        ps_json_u64(j, "n_threads", l->n_threads);
        ps_json_array(j, "changes_to");
        for (uint32_t k = 0; k < plan->n_levels; k++)
            if (can_change(plan, i, k, model))
                ps_json_u64(j, NULL, k);
        ps_json_close(j);
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_close(j);
    return psplan_print(ps_json_end(j, NULL), err);
}

/* The answer is no; what is wrong goes to standard error as well. */
static void show_unsafe(ps_status status, const ps_error *why) {
    ps_error ignored;
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    ps_json_bool(j, "safe", false);
    ps_json_bool(j, "of_this_model", status != PS_E_MISMATCH);
    ps_json_str(j, "where", why->subject);
    ps_json_str(j, "message", why->message);
    ps_json_close(j);
    psplan_print(ps_json_end(j, NULL), &ignored);
}

static void show_text(const char *path, const ps_plan *plan, const ps_model *model) {
    ps_cli_name(stdout, path);
    printf(": safe: %u level%s, %u program%s\n", plan->n_levels, plan->n_levels == 1 ? "" : "s",
           plan->n_programs, plan->n_programs == 1 ? "" : "s");
    if (!ps_kernel_set_is_own(plan->kernel_set))
        printf("  its kernels are another build's: psrun of this one refuses it\n");
    for (uint32_t i = 0; i < plan->n_levels && plan->n_levels > 1; i++) {
        char name[96];
        uint32_t n = changes_of(plan, i, model);
        level_name(&plan->levels[i], name);
        printf("  level %s changes to %u of the other %u while it runs\n", name, n, plan->n_levels - 1);
    }
}

int psplan_check(int argc, char **argv) {
    ps_opt_value values[N_CHECK_OPTIONS];
    const char *args[2];
    uint32_t n_args;
    int code;
    if (!psplan_parse(&check_command, argc, argv, values, args, &n_args, &code))
        return code;
    ps_error err = {0};
    ps_plan *plan = NULL;
    psplan_model m = {0};
    bool json = ps_options_get(&check_command, values, "json")->set;
    ps_status status = ps_plan_read(args[0], &plan, &err);
    if (!status)
        status = psplan_model_open(args[1], &m, &err);
    if (!status) {
        status = ps_plan_match_model(plan, m.model, &err);
        for (uint32_t i = 0; !status && i < plan->n_levels; i++)
            status = ps_plan_check(plan, &plan->levels[i], m.model, &err);
        if (status && json && status != PS_E_NOMEM)
            show_unsafe(status, &err);
        if (status)
            ps_error_prefix(&err, args[0]);
    }
    if (!status && json)
        status = show_json(plan, m.model, &err);
    else if (!status)
        show_text(args[0], plan, m.model);
    ps_plan_free(plan);
    psplan_model_close(&m);
    return psplan_finish(status, &err);
}
