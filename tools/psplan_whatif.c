/* psplan whatif: a profile scaled to another machine's rates, and what that would do to a model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/whatif.h"
#include "psplan.h"

static const ps_option options[] = {
    {"profile", 'p', PS_OPT_TEXT, "FILE", NULL, 0, 0, "Machine profile to scale (pstune's default place)."},
    {"machine", 'm', PS_OPT_TEXT, "FILE", NULL, 0, 0, "The same: a profile may be of any machine."},
    {"pcie", 0, PS_OPT_TEXT, "RATE", NULL, 0, 0, "Copies to the GPU, as 16GB/s."},
    {"dram", 0, PS_OPT_TEXT, "RATE", NULL, 0, 0, "Reads of host memory by all threads, as 60GB/s."},
    {"hbm", 0, PS_OPT_TEXT, "RATE", NULL, 0, 0, "Reads of the GPU's own memory, as 400GB/s."},
    {"gpu-flops", 0, PS_OPT_TEXT, "RATE", NULL, 0, 0, "The GPU's best product, as 60TFLOPS."},
    {"cpu-flops", 0, PS_OPT_TEXT, "RATE", NULL, 0, 0, "Best product of all threads, as 800GFLOPS."},
    {"vram", 0, PS_OPT_SIZE, "SIZE", NULL, 1, 0x1p60, "The GPU's memory, as 8GiB."},
    {"memory", 0, PS_OPT_SIZE, "SIZE", NULL, 1, 0x1p60, "Host memory, as 16GiB."},
    {"threads", 't', PS_OPT_U64, "N", NULL, 1, 4096, "Cores, all of them allowed."},
    {"no-gpu", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Leave the GPU out."},
    {"output", 'o', PS_OPT_TEXT, "FILE", NULL, 0, 0, "Write the scaled profile here (- for stdout)."},
    {"budget", 'b', PS_OPT_TEXT, "LIST", NULL, 0, 0,
     "VRAM: sizes, ranges, auto; host: no GPU (host, and what both GPUs have)."},
    {"context", 'c', PS_OPT_U64, "N", NULL, 1, 4294967295.0, "Context in tokens (4096, or the model's)."},
    {"parallel", 'n', PS_OPT_U64, "N", "1", 1, 4096, "Sequences at the same time."},
    {"max-step", 0, PS_OPT_U64, "N", NULL, 1, 65536, "Most new tokens in one step."},
    {"force", 0, PS_OPT_TEXT, "FAMILY", NULL, 0, 0, "gpu, direct, static, dynamic or split (the fastest)."},
    {"workload", 0, PS_OPT_TEXT, "LIST", NULL, 0, 0, "What is to be fast (prompt=1024,output=256)."},
    {"json", 'j', PS_OPT_FLAG, NULL, NULL, 0, 0, "Print JSON instead of a table."},
    PS_CLI_ROWS};
enum { N_OPTIONS = sizeof options / sizeof options[0] };

static const ps_command command = {
    .name = "psplan whatif",
    .synopsis = "[OPTIONS] [MODEL.gguf]",
    .summary = "Scale a profile to other rates; with a model, predict it on both machines.",
    .details = "Rates: B/s, FLOPS or nothing, with k, M, G, T (powers of 1000) before them. What was\n"
               "scaled, and that it is synthetic, stands in the note of the profile that is written.",
    .examples = "  psplan whatif --pcie 16GB/s --dram 60GB/s --threads 8 -o desktop.yaml\n"
                "  psplan whatif --vram 12GiB --hbm 400GB/s --budget 4GiB,8GiB model.gguf",
    .options = options,
    .n_options = N_OPTIONS,
    .min_args = 0,
    .max_args = 1,
};

static const ps_opt_value *get(const ps_opt_value *values, const char *name) {
    return ps_options_get(&command, values, name);
}

/* "16GB/s", "60 TFLOPS", "5e9": a number, a power of 1000, the unit or nothing. */
static bool parse_rate(const char *text, const char *unit, double *out) {
    static const char powers[] = "kMGT";
    char *end;
    double v = strtod(text, &end), by = 1;
    if (end == text || !isfinite(v) || !(v > 0) || text + strspn(text, "0123456789.eE+-") != end)
        return false;
    while (*end == ' ')
        end++;
    const char *p = *end ? strchr(powers, *end == 'K' ? 'k' : *end) : NULL;
    if (p) {
        for (const char *q = powers; q <= p; q++)
            by *= 1000;
        end++;
    }
    *out = v * by;
    return (*end == '\0' || strcmp(end, unit) == 0) && isfinite(*out);
}

static ps_status rate_option(const ps_opt_value *values, const char *name, const char *unit, double *out,
                             ps_error *err) {
    const char *text = get(values, name)->text;
    if (!text || parse_rate(text, unit, out))
        return PS_OK;
    char subject[32];
    snprintf(subject, sizeof subject, "--%s", name);
    return ps_error_set(err, PS_E_USAGE, subject, "'%s' is not a rate above 0 in %s", text, unit);
}

static ps_status parse_wish(const ps_opt_value *values, ps_whatif *w, ps_error *err) {
    ps_status status = rate_option(values, "pcie", "B/s", &w->pcie_bytes_per_s, err);
    if (!status)
        status = rate_option(values, "dram", "B/s", &w->dram_bytes_per_s, err);
    if (!status)
        status = rate_option(values, "hbm", "B/s", &w->hbm_bytes_per_s, err);
    if (!status)
        status = rate_option(values, "gpu-flops", "FLOPS", &w->gpu_flops_per_s, err);
    if (!status)
        status = rate_option(values, "cpu-flops", "FLOPS", &w->cpu_flops_per_s, err);
    w->vram_bytes = get(values, "vram")->u64;
    w->memory_bytes = get(values, "memory")->u64;
    w->n_threads = (uint32_t)get(values, "threads")->u64;
    w->no_gpu = get(values, "no-gpu")->set;
    return status;
}

/* One budget on one machine. */
typedef struct prediction {
    double prefill_s,
        decode_s; /* of the prompt; of a step of one token per sequence in the middle of the context */
    psplan_found decode_from, prefill_from;
    uint64_t vram_weight_bytes;
    bool gpu;
    ps_error why; /* where it cannot be planned */
    ps_status status;
} prediction;

typedef struct question {
    const ps_model *model;
    const char *model_path;
    uint64_t context, max_step;
    psplan_budgets budgets;
    psplan_workload workload;
    ps_family family;
} question;

/* As the planner judges a workload: decode steps at half the context, the prompt in the tier that takes it. */
static void read_plan(const psplan_view *v, const question *q, prediction *out) {
    const ps_level *l = &v->plan->levels[0];
    uint32_t decode = 0, fill = 0;
    double prompt = fmin(q->workload.prompt ? q->workload.prompt : PS_PLAN_PROMPT, (double)l->bucket_tokens);
    while (decode + 1 < l->n_tiers && l->tiers[decode].max_tokens < l->n_seqs)
        decode++;
    while (fill + 1 < l->n_tiers && l->tiers[fill].max_tokens < prompt)
        fill++;
    const ps_tier *a = &l->tiers[decode], *b = &l->tiers[fill];
    out->decode_s = ceil((double)l->n_seqs / a->max_tokens) * (a->step_empty_s + a->step_full_s) / 2;
    out->prefill_s = l->n_seqs * ceil(prompt / b->max_tokens) * b->step_empty_s;
    out->decode_from = psplan_find_weights(v, l, a);
    out->prefill_from = psplan_find_weights(v, l, b);
    out->vram_weight_bytes = l->vram_weight_bytes;
    out->gpu = l->budget_bytes != 0;
}

static ps_plan_request request_of(const ps_profile *profile, const ps_cost_model *cost, const question *q,
                                  const ps_level_request *level) {
    return (ps_plan_request){.model = q->model,
                             .profile = profile,
                             .cost = cost,
                             .levels = level,
                             .n_levels = 1,
                             .max_step_tokens = q->max_step,
                             .forced = q->family != PS_FAMILY_COUNT,
                             .family = q->family,
                             .prompt_tokens = q->workload.prompt,
                             .output_tokens = q->workload.output,
                             .n_workers = psplan_workers(),
                             .tool = "psplan " PS_VERSION_STRING,
                             .created = "1970-01-01T00:00:00Z"};
}

static ps_level_request level_of(const ps_profile *profile, const question *q, const char *budget,
                                 uint64_t bytes) {
    ps_level_request level = {.budget_bytes = bytes,
                              .bucket_tokens = q->context,
                              .n_seqs = q->workload.parallel,
                              .n_threads = psplan_default_threads(profile, bytes)};
    snprintf(level.budget, sizeof level.budget, "%s", budget);
    return level;
}

static ps_status predict(const ps_profile *profile, const ps_cost_model *cost, const question *q, uint32_t b,
                         prediction *out, ps_error *err) {
    const ps_level_request level = level_of(profile, q, q->budgets.name[b], q->budgets.bytes[b]);
    const ps_plan_request request = request_of(profile, cost, q, &level);
    ps_plan *plan = NULL;
    if (profile->gpu.name[0] && level.budget_bytes > profile->gpu.vram_bytes)
        out->status = ps_error_set(&out->why, PS_E_INFEASIBLE, level.budget, "more than the GPU's memory");
    else
        out->status = ps_plan_build(&request, &plan, NULL, &out->why);
    if (out->status == PS_E_INFEASIBLE || out->status == PS_E_UNAVAILABLE)
        return PS_OK; /* an answer as well */
    if (out->status) {
        *err = out->why;
        return out->status;
    }
    psplan_view view = {plan, q->model, profile, cost, q->model_path, "", NULL};
    read_plan(&view, q, out);
    ps_plan_free(plan);
    return PS_OK;
}

/* "vram + direct + cpu": where weights are found. buf holds 48. */
static const char *sources(const prediction *p, const psplan_found *f, char *buf) {
    const char *names[] = {"vram", "copied", "direct", "cpu"};
    bool is[] = {p->gpu && p->vram_weight_bytes > 0, f->copied > 0, f->direct > 0, f->host > 0};
    size_t n = 0;
    buf[0] = '\0';
    for (int i = 0; i < 4; i++)
        if (is[i])
            n += (size_t)snprintf(buf + n, 48 - n, "%s%s", n ? " + " : "", names[i]);
    return buf;
}

static double prompt_of(const question *q) {
    return (double)q->workload.parallel *
           fmin(q->workload.prompt ? q->workload.prompt : PS_PLAN_PROMPT, (double)q->context);
}

static void show_row(ps_text *t, const question *q, const char *budget, const char *which,
                     const prediction *p) {
    char a[32], b[32], from[2][48];
    ps_text_printf(t, "  %-9s %-7s", budget, which);
    if (p->status) {
        ps_text_printf(t, "  %s: %s\n", p->why.subject, p->why.message);
        return;
    }
    psplan_time(p->prefill_s, a);
    psplan_time(p->decode_s, b);
    ps_text_printf(t, "%9s %10.1f", a, prompt_of(q) / p->prefill_s);
    ps_text_printf(t, "%10s %10.1f  %s; %s\n", b, q->workload.parallel / p->decode_s,
                   sources(p, &p->prefill_from, from[0]), sources(p, &p->decode_from, from[1]));
}

static void row_json(ps_json *j, const question *q, const char *which, const prediction *p) {
    char from[48];
    ps_json_object(j, which);
    ps_json_bool(j, "feasible", p->status == PS_OK);
    if (p->status) {
        ps_json_str(j, "message", p->why.message);
    } else {
        ps_json_f64(j, "prefill_s", p->prefill_s);
        ps_json_f64(j, "prefill_tokens_per_s", prompt_of(q) / p->prefill_s);
        ps_json_f64(j, "decode_step_s", p->decode_s);
        ps_json_f64(j, "decode_tokens_per_s", q->workload.parallel / p->decode_s);
        ps_json_u64(j, "vram_weight_bytes", p->vram_weight_bytes);
        ps_json_str(j, "prefill_weights", sources(p, &p->prefill_from, from));
        ps_json_str(j, "decode_weights", sources(p, &p->decode_from, from));
    }
    ps_json_close(j);
}

/* Those asked for, or the host and what both GPUs have; at last those where the schedule changes on either machine. */
static ps_status settle_budgets(const ps_profile *const profiles[2], ps_cost_model *const cost[2],
                                question *q, ps_error *err) {
    uint64_t before = ps_profile_fast_vram_bytes(&profiles[0]->gpu),
             after = ps_profile_fast_vram_bytes(&profiles[1]->gpu);
    uint64_t most = after && after < before ? after : before; /* a machine without a GPU says so itself */
    char all[48] = "host";
    ps_status status = PS_OK;
    if (most)
        snprintf(all, sizeof all, "host,%lluMiB", (unsigned long long)(most >> 20));
    if (q->budgets.n == 0 && !q->budgets.automatic)
        status = psplan_parse_budgets(all, &q->budgets, err);
    bool gpu = profiles[0]->gpu.name[0] || profiles[1]->gpu.name[0];
    for (int i = 0; i < 2 && q->budgets.automatic && !status; i++) {
        const ps_level_request level = level_of(profiles[i], q, "auto", 1);
        const ps_plan_request request = request_of(profiles[i], cost[i], q, &level);
        if (profiles[i]->gpu.name[0] || !gpu)
            status = psplan_auto_budgets(&request, &level, &q->budgets, err);
    }
    return status;
}

/* Predict every budget on both machines and print it. *out_none: on the second no budget fits, and why the first does not. */
static ps_status compare(const ps_profile *const profiles[2], question *q, bool as_json, bool *out_none,
                         ps_error *out_why, ps_error *err) {
    static const char *const names[2] = {"before", "after"};
    ps_cost_model *cost[2] = {NULL, NULL};
    ps_status status = PS_OK;
    *out_none = true;
    for (int i = 0; i < 2 && !status; i++)
        status = ps_cost_model_new(profiles[i], &cost[i], err);
    if (!status)
        status = settle_budgets(profiles, cost, q, err);
    ps_text *t = ps_text_new();
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    ps_json_str(j, "model", q->model_path);
    ps_json_u64(j, "context_tokens", q->context);
    ps_json_f64(j, "prompt_tokens", prompt_of(q));
    ps_json_str(j, "note", profiles[1]->note ? profiles[1]->note : "");
    ps_json_array(j, "budgets");
    ps_text_printf(t, "%s, context %llu, %u sequence%s; predictions\n",
                   q->model->name[0] ? q->model->name : q->model_path, (unsigned long long)q->context,
                   q->workload.parallel, q->workload.parallel == 1 ? "" : "s");
    ps_text_printf(t, "  %-9s %-7s%9s %10s%10s %10s  %s\n", "budget", "", "prompt", "tok/s", "step", "tok/s",
                   "weights: prompt; decode step");
    for (uint32_t b = 0; b < q->budgets.n && !status; b++) {
        ps_json_object(j, NULL);
        ps_json_str(j, "budget", q->budgets.name[b]);
        for (int i = 0; i < 2 && !status; i++) {
            prediction p = {0};
            status = predict(profiles[i], cost[i], q, b, &p, err);
            if (status)
                break;
            if (i && p.status && (b == 0 || (p.status == PS_E_INFEASIBLE && out_why->status != p.status)))
                *out_why = p.why;
            *out_none = *out_none && (i == 0 || p.status);
            show_row(t, q, i ? "" : q->budgets.name[b], names[i], &p);
            row_json(j, q, names[i], &p);
        }
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_close(j);
    char *text = ps_text_end(t, NULL), *json = ps_json_end(j, NULL);
    for (int i = 0; i < 2; i++)
        ps_cost_model_free(cost[i]);
    free(as_json ? text : json);
    if (status) {
        free(as_json ? json : text);
        return status;
    }
    return psplan_print(as_json ? json : text, err);
}

static ps_status parse_question(const ps_opt_value *values, question *q, ps_error *err) {
    const char *force = get(values, "force")->text, *budgets = get(values, "budget")->text;
    *q = (question){.family = PS_FAMILY_COUNT,
                    .context = get(values, "context")->u64,
                    .max_step = get(values, "max-step")->u64};
    ps_status status = force ? psplan_parse_family(force, &q->family, err) : PS_OK;
    if (!status && budgets)
        status = psplan_parse_budgets(budgets, &q->budgets, err);
    if (!status)
        status = psplan_parse_workload(get(values, "workload"), get(values, "parallel"), &q->workload, err);
    return status;
}

static ps_status write_profile(const ps_profile *p, const char *path, ps_error *err) {
    if (strcmp(path, "-") != 0)
        return ps_profile_write(p, path, err);
    char *text = NULL;
    uint64_t size;
    ps_status status = ps_profile_format(p, &text, &size, err);
    return status ? status : psplan_print(text, err);
}

int psplan_whatif(int argc, char **argv) {
    ps_opt_value values[N_OPTIONS];
    const char *args[1] = {NULL};
    uint32_t n_args;
    int code;
    if (!psplan_parse(&command, argc, argv, values, args, &n_args, &code))
        return code;
    ps_error err = {0};
    ps_whatif wish = {0};
    question q;
    psplan_model m = {0};
    ps_profile *profile = NULL, *scaled = NULL;
    const char *output = get(values, "output")->text, *machine = get(values, "machine")->text,
               *from = machine ? machine : get(values, "profile")->text;
    ps_status status = parse_wish(values, &wish, &err);
    if (!status && machine && get(values, "profile")->set)
        status =
            ps_error_set(&err, PS_E_USAGE, "--machine", "is another name of --profile; give one of them");
    if (!status)
        status = parse_question(values, &q, &err);
    if (!status && !output && n_args == 0)
        status =
            ps_error_set(&err, PS_E_USAGE, "whatif", "nothing to do: neither --output nor a model is given");
    if (!status && n_args && output && strcmp(output, "-") == 0)
        status = ps_error_set(&err, PS_E_USAGE, "--output", "standard output is for the table of the model");
    if (!status && output && strcmp(output, "-") != 0)
        status = psplan_check_output(output, n_args ? args[0] : NULL, from, &err);
    if (!status)
        status = psplan_profile_read(from, &profile, &err);
    if (!status)
        status = ps_profile_whatif(profile, &wish, &scaled, &err);
    if (!status && n_args)
        status = psplan_model_open(args[0], &m, &err);
    if (!status && output)
        status = write_profile(scaled, output, &err);
    if (!status && n_args) {
        const ps_profile *const both[2] = {profile, scaled};
        q.model = m.model;
        q.model_path = args[0];
        if (q.context == 0)
            q.context = m.model->n_ctx_train && m.model->n_ctx_train < 4096 ? m.model->n_ctx_train : 4096;
        bool none = false;
        ps_error why = {0};
        status = compare(both, &q, get(values, "json")->set, &none, &why, &err);
        if (!status && none) { /* the answer is no, and has been printed */
            err = why;
            status = why.status;
        }
    }
    ps_profile_free(profile);
    ps_profile_free(scaled);
    psplan_model_close(&m);
    return psplan_finish(status, &err);
}
