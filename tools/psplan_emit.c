/* psplan emit: a document as something else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "emit/emit.h"
#include "psplan.h"

static const ps_option emit_options[] = {
    {"output", 'o', PS_OPT_TEXT, "FILE", "-", 0, 0, "Write here instead of standard output."},
    {"budget", 'b', PS_OPT_TEXT, "NAME", NULL, 0, 0, "Budget of the level to take; default the largest."},
    {"context", 'c', PS_OPT_SIZE, "TOKENS", NULL, 1, 1e9,
     "Tokens that the level holds at least; default its budget's largest."},
    {"threads", 't', PS_OPT_U64, "N", NULL, 1, 4096, "Threads of the level; default its most."},
    {"trace", 0, PS_OPT_TEXT, "FILE", NULL, 0, 0,
     "html: a trace of this plan, predicted against measured; the level is that of its last step."},
    PS_CLI_ROWS};
enum { N_EMIT_OPTIONS = sizeof emit_options / sizeof emit_options[0] };

#define EMITTER_HELP(id_, name_, input_, model_, trace_, ending_, help_) "\n  " name_ ": " help_
static const ps_command emit_command = {
    .name = "psplan emit",
    .synopsis = "[OPTIONS] KIND FILE [MODEL.gguf]",
    .summary = "Turn a plan or a trace into another form.",
    .details = "Kinds:" PS_EMITTER_LIST(EMITTER_HELP),
    .examples = "  psplan emit timeline trace.json --output timeline.json\n"
                "  psplan emit binary model.plan.yaml --output model.plan.bin\n"
                "  psplan emit llama.cpp model.plan.yaml model.gguf --budget 4GiB\n"
                "  psplan emit html model.plan.yaml --trace trace.json --output report.html",
    .options = emit_options,
    .n_options = N_EMIT_OPTIONS,
    .min_args = 2,
    .max_args = 3,
};

/* What the options ask for. */
typedef struct wish {
    const char *budget; /* the plan's name for it; NULL: any */
    const ps_opt_value *context, *threads;
} wish;

static bool is_wished(const wish *w, const ps_level *l) {
    return (!w->budget || strcmp(l->budget, w->budget) == 0) &&
           (!w->context->set || l->bucket_tokens >= w->context->u64) &&
           (!w->threads->set || l->n_threads == w->threads->u64);
}

/* As psrun: the largest budget, the fewest sequences, the most threads; the shortest context that is long enough where one is
 * asked for, else the longest. */
static bool better(const wish *w, const ps_level *a, const ps_level *b) {
    if (a->budget_bytes != b->budget_bytes)
        return a->budget_bytes > b->budget_bytes;
    if (a->bucket_tokens != b->bucket_tokens)
        return w->context->set ? a->bucket_tokens < b->bucket_tokens : a->bucket_tokens > b->bucket_tokens;
    if (a->n_seqs != b->n_seqs)
        return a->n_seqs < b->n_seqs;
    return a->n_threads > b->n_threads;
}

/* Names the levels that there are, as many as a message holds. */
static ps_status no_level(const ps_plan *plan, ps_error *err) {
    char list[200];
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_levels; i++) {
        const ps_level *l = &plan->levels[i];
        char one[64];
        int len = snprintf(one, sizeof one, "%s%s %llu %u", i ? ", " : "", l->budget,
                           (unsigned long long)l->bucket_tokens, l->n_threads);
        if (n + (size_t)len + sizeof ", ..." > sizeof list) {
            snprintf(list + n, sizeof list - n, ", ...");
            break;
        }
        memcpy(list + n, one, (size_t)len + 1);
        n += (size_t)len;
    }
    return ps_error_set(err, PS_E_USAGE, "level",
                        "the plan has none of this budget, context and number of threads; it has %s", list);
}

static ps_status find_level(const ps_plan *plan, const ps_opt_value *values, uint32_t *out, ps_error *err) {
    const ps_opt_value *budget = ps_options_get(&emit_command, values, "budget");
    wish w = {budget->set ? ps_plan_budget_name(plan, budget->text) : NULL,
              ps_options_get(&emit_command, values, "context"),
              ps_options_get(&emit_command, values, "threads")};
    bool found = false;
    for (uint32_t i = 0; i < plan->n_levels; i++)
        if (is_wished(&w, &plan->levels[i]) &&
            (!found || better(&w, &plan->levels[i], &plan->levels[*out]))) {
            *out = i;
            found = true;
        }
    return found ? PS_OK : no_level(plan, err);
}

/* The plan and, where the emitter asks for it, its model, proven to belong together. */
static ps_status open_plan(const ps_emitter *emitter, const char *const *args, const ps_opt_value *values,
                           ps_plan **plan, psplan_model *m, uint32_t *level, ps_error *err) {
    ps_status status = ps_plan_read(args[1], plan, err);
    if (!status)
        status = find_level(*plan, values, level, err);
    if (status || !emitter->needs_model)
        return status;
    status = psplan_model_open(args[2], m, err);
    if (status)
        return status;
    status = ps_plan_match_model(*plan, m->model, err);
    if (!status)
        status = ps_plan_check(*plan, &(*plan)->levels[*level], m->model, err);
    if (status)
        ps_error_prefix(err, args[1]);
    return status;
}

static bool any_level_option(const ps_opt_value *values) {
    static const char *const names[] = {"budget", "context", "threads"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (ps_options_get(&emit_command, values, names[i])->set)
            return true;
    return false;
}

static ps_status trace_level(const ps_plan *plan, const ps_trace *trace, uint32_t *out, ps_error *err) {
    uint32_t level = trace->steps[trace->n_steps - 1].level;
    if (level >= plan->n_levels)
        return ps_error_set(err, PS_E_MISMATCH, "trace", "its last step is of a level that the plan has not");
    *out = level;
    return PS_OK;
}

int psplan_emit(int argc, char **argv) {
    ps_opt_value values[N_EMIT_OPTIONS];
    const char *args[3] = {NULL, NULL, NULL};
    uint32_t n_args;
    int code;
    if (!psplan_parse(&emit_command, argc, argv, values, args, &n_args, &code))
        return code;
    ps_error err = {0};
    ps_plan *plan = NULL;
    ps_trace *trace = NULL;
    const char *trace_path = ps_options_get(&emit_command, values, "trace")->text;
    psplan_model m = {0};
    ps_emit_source source = {0};
    char *data = NULL;
    uint64_t size = 0;
    const char *output = ps_options_get(&emit_command, values, "output")->text;
    const ps_emitter *emitter = ps_emitter_find(args[0]);
    ps_status status = PS_OK;
    if (!emitter)
        status = ps_error_set(&err, PS_E_USAGE, args[0], "not a kind of output; see psplan emit --help");
    else if (emitter->needs_model != (n_args == 3))
        status = ps_error_set(&err, PS_E_USAGE, args[0],
                              emitter->needs_model ? "needs PLAN and MODEL.gguf" : "takes one file");
    else if (trace_path && !emitter->takes_trace)
        status = ps_error_set(&err, PS_E_USAGE, "--trace", "is of use to html only");
    else if (strcmp(output, "-") != 0)
        status = psplan_check_output(output, args[1], trace_path ? trace_path : args[2], &err);
    if (!status && emitter->input == PS_EMIT_PLAN)
        status = open_plan(emitter, args, values, &plan, &m, &source.level, &err);
    if (!status && (trace_path || emitter->input == PS_EMIT_TRACE))
        status = ps_trace_read(trace_path ? trace_path : args[1], &trace, &err);
    if (!status && trace_path && trace->n_steps && !any_level_option(values))
        status = trace_level(plan, trace, &source.level, &err);
    source.plan = plan;
    source.trace = trace;
    source.model = m.model;
    if (!status)
        status = emitter->emit(&source, &data, &size, &err);
    if (!status && strcmp(output, "-") == 0) {
        if (fwrite(data, 1, size, stdout) != size)
            status = ps_error_set(&err, PS_E_IO, "standard output", "cannot write");
    } else if (!status) {
        status = ps_file_write_atomic(output, data, size, &err);
    }
    free(data);
    ps_plan_free(plan);
    ps_trace_free(trace);
    psplan_model_close(&m);
    return psplan_finish(status, &err);
}
