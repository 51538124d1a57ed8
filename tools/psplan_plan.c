/* psplan's main command: model + profile -> plan, and a table for people. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/file.h"
#include "kernels/kernel.h"
#include "machine/limits.h"
#include "machine/topology.h"
#include "psplan.h"

static const ps_option options[] = {
    {"profile", 'p', PS_OPT_TEXT, "FILE", NULL, 0, 0, "Machine profile (pstune's default place)."},
    {"machine", 'm', PS_OPT_TEXT, "FILE", NULL, 0, 0, "The same: a profile may be of any machine."},
    {"budget", 'b', PS_OPT_TEXT, "LIST", NULL, 0, 0,
     "VRAM: sizes, 2GiB-8GiB/1GiB, auto; host: no GPU (default host, auto)."},
    {"context", 'c', PS_OPT_TEXT, "LIST", NULL, 0, 0, "Contexts in tokens (4096, or the model's)."},
    {"parallel", 'n', PS_OPT_U64, "N", "1", 1, 4096, "Sequences at the same time."},
    {"threads", 't', PS_OPT_TEXT, "LIST", NULL, 0, 0, "Thread counts (all; with a GPU one less)."},
    {"max-step", 0, PS_OPT_U64, "N", NULL, 1, 65536, "Most new tokens in one step (2048; GPU: 16384)."},
    {"outputs", 0, PS_OPT_U64, "N", NULL, 1, 65536, "Rows of logits at once (one per sequence)."},
    {"force", 0, PS_OPT_TEXT, "FAMILY", NULL, 0, 0, "gpu, direct, static, dynamic or split (the fastest)."},
    {"workload", 0, PS_OPT_TEXT, "LIST", NULL, 0, 0, "What is to be fast (prompt=1024,output=256)."},
    {"output", 'o', PS_OPT_TEXT, "FILE", NULL, 0, 0,
     "Write here (MODEL.plan.yaml in this folder; - for stdout)."},
    {"format", 'f', PS_OPT_TEXT, "NAME", NULL, 0, 0, "yaml or binary (by the ending: .bin is binary)."},
    {"trace", 0, PS_OPT_TEXT, "FILE", NULL, 0, 0, "Also write the simulated steps as a trace document."},
    {"json", 'j', PS_OPT_FLAG, NULL, NULL, 0, 0, "Print JSON instead of a table."},
    {"explain", 'e', PS_OPT_FLAG, NULL, NULL, 0, 0, "Say where the time goes and why."},
    PS_CLI_ROWS};
enum { N_OPTIONS = sizeof options / sizeof options[0], MAX_LIST = PSPLAN_MAX_LIST };

static const ps_command command = {
    .name = "psplan",
    .synopsis = "[OPTIONS] MODEL.gguf",
    .summary = "Plan how a model runs on a measured machine: programs, memory, predicted times.",
    .details = "Other commands, each with --help: psplan inspect FILE.gguf, psplan emit KIND FILE,\n"
               "psplan check PLAN MODEL.gguf, psplan whatif --profile FILE. Lists are separated by\n"
               "commas. Weights are never read.",
    .examples = "  psplan model.gguf\n"
                "  psplan model.gguf --context 1024,4096 --threads 1,2 --explain\n"
                "  psplan model.gguf --budget 4GiB,8GiB --context 4096,16384\n"
                "  psplan model.gguf --profile there.yaml --output model.plan.bin",
    .options = options,
    .n_options = N_OPTIONS,
    .min_args = 1,
    .max_args = 1,
};

static const ps_opt_value *get(const ps_opt_value *values, const char *name) {
    return ps_options_get(&command, values, name);
}

static const char *profile_path(const ps_opt_value *values) {
    const char *machine = get(values, "machine")->text;
    return machine ? machine : get(values, "profile")->text;
}

static ps_status parse_numbers(const char *option, const char *text, uint64_t max, uint64_t *out,
                               uint32_t *out_n, ps_error *err) {
    char items[MAX_LIST][PSPLAN_ITEM_BYTES];
    ps_status status = psplan_split_list(option, text, items, out_n, err);
    for (uint32_t i = 0; i < *out_n && !status; i++)
        if (strchr(items[i], '.') || !ps_parse_size(items[i], &out[i]) || out[i] == 0 || out[i] > max)
            status = ps_error_set(err, PS_E_USAGE, option, "'%s' is not a number from 1 to %llu", items[i],
                                  (unsigned long long)max);
    return status;
}

typedef struct wishes {
    psplan_budgets budgets;
    uint64_t contexts[MAX_LIST], threads[MAX_LIST];
    uint32_t n_contexts, n_threads;
    psplan_workload workload;
    ps_family family; /* PS_FAMILY_COUNT: the fastest */
} wishes;

/* Families are of a GPU's budgets. */
static ps_status check_force(const wishes *w, ps_error *err) {
    bool vram = w->budgets.automatic;
    for (uint32_t i = 0; i < w->budgets.n; i++)
        vram = vram || w->budgets.bytes[i] != 0;
    return vram ? PS_OK
                : ps_error_set(err, PS_E_USAGE, "--force",
                               "says how a GPU takes part; give a VRAM budget with --budget");
}

/* Everything that can be wrong without looking into a file. */
static ps_status parse_wishes(const ps_opt_value *values, wishes *w, ps_error *err) {
    const char *format = get(values, "format")->text;
    if (get(values, "machine")->set && get(values, "profile")->set)
        return ps_error_set(err, PS_E_USAGE, "--machine", "is another name of --profile; give one of them");
    ps_status status = get(values, "budget")->set
                           ? psplan_parse_budgets(get(values, "budget")->text, &w->budgets, err)
                           : PS_OK;
    if (!status && get(values, "context")->set)
        status = parse_numbers("--context", get(values, "context")->text, UINT32_MAX, w->contexts,
                               &w->n_contexts, err);
    if (!status && get(values, "threads")->set)
        status =
            parse_numbers("--threads", get(values, "threads")->text, 65536, w->threads, &w->n_threads, err);
    w->family = PS_FAMILY_COUNT;
    if (!status && get(values, "force")->set) {
        status = psplan_parse_family(get(values, "force")->text, &w->family, err);
        if (!status && get(values, "budget")->set)
            status = check_force(w, err);
    }
    if (!status)
        status = psplan_parse_workload(get(values, "workload"), get(values, "parallel"), &w->workload, err);
    if (!status && format && strcmp(format, "yaml") != 0 && strcmp(format, "binary") != 0)
        status = ps_error_set(err, PS_E_USAGE, "--format", "'%s' is neither yaml nor binary", format);
    return status;
}

/* Time of the plan: now, or SOURCE_DATE_EPOCH's, so that builds that ask for it get the same bytes. */
static ps_status now_text(char buf[32], ps_error *err) {
    enum { MOST_DIGITS = 18 };
    static const long long year_10000 = 253402300800;
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    time_t t = time(NULL);
    if (epoch && *epoch) {
        const size_t n = strspn(epoch, "0123456789");
        const long long v = epoch[n] == '\0' && n <= MOST_DIGITS ? strtoll(epoch, NULL, 10) : -1;
        if (v < 0 || v >= year_10000)
            return ps_error_set(err, PS_E_USAGE, "SOURCE_DATE_EPOCH",
                                "'%.40s' is not a number of seconds from 0 to %lld", epoch, year_10000 - 1);
        t = (time_t)v;
    }
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(buf, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return PS_OK;
}

/* "dir/model.gguf" -> "model.plan.yaml" in the current folder. */
static void default_output(const char *model_path, char *buf, size_t size) {
    const char *base = strrchr(model_path, '/');
    base = base ? base + 1 : model_path;
    size_t len = strlen(base);
    if (len > 5 && strcmp(base + len - 5, ".gguf") == 0)
        len -= 5;
    snprintf(buf, size, "%.*s.plan.yaml", (int)len, base);
}

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static ps_status write_plan(const ps_plan *plan, const char *path, const char *format, ps_error *err) {
    bool binary = format ? strcmp(format, "binary") == 0 : ends_with(path, ".bin");
    char *data = NULL;
    uint64_t size = 0;
    ps_status status = binary ? ps_plan_to_binary(plan, (uint8_t **)&data, &size, err)
                              : ps_plan_to_yaml(plan, &data, &size, err);
    if (!status && strcmp(path, "-") == 0) {
        if (fwrite(data, 1, size, stdout) != size)
            status = ps_error_set(err, PS_E_IO, "standard output", "cannot write");
    } else if (!status) {
        status = ps_file_write_atomic(path, data, size, err);
    }
    free(data);
    return status;
}

static ps_status write_trace(const psplan_view *v, const char *path, ps_error *err) {
    const ps_plan *plan = v->plan;
    ps_trace trace = {.version = PS_TRACE_VERSION, .source = PS_TRACE_SIMULATED};
    uint32_t n = 0;
    for (uint32_t l = 0; l < plan->n_levels; l++)
        n += plan->levels[l].n_tiers;
    ps_status status = PS_OK;
    trace.steps = calloc(n ? n : 1, sizeof *trace.steps);
    if (!trace.steps)
        return ps_error_set(err, PS_E_NOMEM, path, "out of memory");
    snprintf(trace.tool, sizeof trace.tool, "%s", plan->tool);
    snprintf(trace.created, sizeof trace.created, "%s", plan->created);
    snprintf(trace.model_name, sizeof trace.model_name, "%s", plan->model_name);
    snprintf(trace.budget, sizeof trace.budget, "%s", plan->levels[0].budget);
    snprintf(trace.weights, sizeof trace.weights, "mapped file");
    memcpy(trace.model_hash, plan->model_hash, sizeof trace.model_hash);
    memcpy(trace.profile_hash, plan->profile_hash, sizeof trace.profile_hash);
    double at = 0;
    for (uint32_t l = 0; l < plan->n_levels && !status; l++)
        for (uint32_t t = 0; t < plan->levels[l].n_tiers && !status; t++) {
            ps_trace_step *step = &trace.steps[trace.n_steps];
            status = ps_plan_simulate_step(plan, l, t, v->model, v->profile, v->cost, 0, step, err);
            if (!status) {
                step->start_s = at;
                at += step->step_s;
                trace.n_steps++;
            }
        }
    if (!status)
        status = ps_trace_write(&trace, path, err);
    for (uint32_t i = 0; i < trace.n_steps; i++)
        free(trace.steps[i].events);
    free(trace.steps);
    return status;
}

/* Only psrun of a build that has the kernels of the profile runs the plan. */
static const char *whose_kernels(const ps_profile *p) {
    return ps_kernel_set_is_own(p->kernel_set)
               ? ""
               : "; its kernels are another build's, and psrun of this one refuses the plan";
}

/* A profile of this machine, measured with other kernels than this build's: no plan of it would run here. Profiles of other
 * machines may be for other builds there. */
static ps_status check_kernels(const ps_profile *p, ps_error *err) {
    ps_machine *m = NULL;
    uint8_t hash[PS_HASH_BYTES];
    if (p->synthetic || ps_kernel_set_is_own(p->kernel_set) || ps_machine_open(NULL, &m, NULL) != PS_OK)
        return PS_OK;
    ps_machine_hash(m, hash);
    ps_machine_close(m);
    return memcmp(hash, p->machine_hash, sizeof hash) != 0
               ? PS_OK
               : ps_error_set(
                     err, PS_E_UNSUPPORTED, "profile",
                     "was measured with another set of kernels than this build has: run pstune again");
}

/* Is the profile of the machine we are on, as it is now? Planning for another is allowed; only warnings need to know, so a machine
 * that cannot be looked at counts as the same. */
static void warn_machine(const ps_profile *p) {
    ps_machine *m = NULL;
    uint8_t hash[PS_HASH_BYTES];
    if (ps_machine_open(NULL, &m, NULL) != PS_OK)
        return;
    ps_machine_hash(m, hash);
    ps_facts then, now = {.n_allowed = m->n_allowed, .memory_bytes = m->memory_bytes};
    char what[400];
    ps_profile_facts(p, &then);
    snprintf(now.cpu_model, sizeof now.cpu_model, "%s", m->cpu_model);
    snprintf(now.gpu_driver, sizeof now.gpu_driver, "%s", m->signs.driver);
    const bool differ = ps_facts_differ(&then, "the profile", &now, what, sizeof what);
    if (memcmp(hash, p->machine_hash, sizeof hash) != 0)
        fprintf(stderr,
                "psplan: warning: the profile is of another machine (%s); the plan is for that one%s\n",
                differ ? what : p->topology.cpu_model, whose_kernels(p));
    else if (differ)
        fprintf(stderr,
                "psplan: warning: the machine has changed since it was measured: %s: run pstune again\n",
                what);
    ps_machine_close(m);
}

/* What a plan made from this profile is worth: one line. */
static void warn_profile(const ps_profile *p) {
    if (p->synthetic)
        fprintf(stderr, "psplan: note: the profile is synthetic; its times are made up%s\n",
                whose_kernels(p));
    else
        warn_machine(p);
    if (!p->complete)
        fprintf(stderr, "psplan: warning: the profile is unfinished; run pstune again to complete it\n");
}

/* A budget above what the card has is kept: the plan may be for another one. */
static void warn_budgets(const ps_profile *p, const wishes *w) {
    for (uint32_t i = 0; i < w->budgets.n; i++)
        if (p->gpu.name[0] && w->budgets.bytes[i] > p->gpu.vram_bytes)
            fprintf(stderr, "psplan: warning: budget %s is more than the %.1f GiB of %s\n",
                    w->budgets.name[i], (double)p->gpu.vram_bytes / (1 << 30), p->gpu.name);
}

/* Memory that is slow once it is full: automatic budgets stay below that; others are kept, as those above the card's. */
static void warn_spills(const ps_profile *p, const wishes *w) {
    const uint64_t fast = ps_profile_fast_vram_bytes(&p->gpu);
    const char *above = NULL;
    bool vram = false;
    char what[160], size[32];
    ps_format_bytes((double)fast, size);
    for (uint32_t i = 0; i < w->budgets.n; i++) {
        vram = vram || w->budgets.bytes[i] != 0;
        if (w->budgets.bytes[i] > fast)
            above = w->budgets.name[i];
    }
    if (!vram || !ps_profile_spills(&p->gpu))
        return;
    if (above)
        snprintf(what, sizeof what, "budgets above %s, as %s, may be slower than predicted", size, above);
    else
        snprintf(what, sizeof what, "automatic budgets end at %s", size);
    fprintf(stderr, "psplan: warning: %s: memory is read at %.1f GB/s once it is full, at %.1f before: %s\n",
            p->gpu.name, p->gpu.hbm_full_bytes_per_s.median * 1e-9, p->gpu.hbm_read_bytes_per_s.median * 1e-9,
            what);
}

static ps_status show(const psplan_view *v, const ps_opt_value *values, ps_error *err) {
    ps_status status = PS_OK;
    bool explain = get(values, "explain")->set;
    if (get(values, "json")->set) {
        ps_json *j = ps_json_new(2);
        ps_json_object(j, NULL);
        psplan_json(v, j);
        if (explain)
            status = psplan_explain_json(v, j, err);
        ps_json_close(j);
        char *text = ps_json_end(j, NULL);
        if (status) {
            free(text);
            return status;
        }
        return psplan_print(text, err);
    }
    ps_text *t = ps_text_new();
    psplan_table(v, t);
    if (explain)
        status = psplan_explain(v, t, err);
    char *text = ps_text_end(t, NULL);
    if (status) {
        free(text);
        return status;
    }
    return psplan_print(text, err);
}

/* Why it does not fit, for programs. */
static ps_status show_shortage(const ps_shortage *s, const ps_error *why, ps_error *err) {
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    ps_json_bool(j, "feasible", false);
    ps_json_str(j, "message", why->message);
    ps_json_u64(j, "needed_bytes", s->needed_bytes);
    ps_json_u64(j, "memory_bytes", s->memory_bytes);
    ps_json_u64(j, "short_bytes", s->needed_bytes - s->memory_bytes);
    ps_json_str(j, "largest", s->largest);
    ps_json_u64(j, "largest_bytes", s->largest_bytes);
    ps_json_u64(j, "nearest_context", s->nearest_context);
    if (s->nearest_budget_bytes)
        ps_json_u64(j, "nearest_budget_bytes", s->nearest_budget_bytes);
    ps_json_close(j);
    return psplan_print(ps_json_end(j, NULL), err);
}

/* Neither output may replace an input, nor one the other. */
static ps_status check_outputs(const char *model, const ps_opt_value *values, const char *output,
                               ps_error *err) {
    const char *profile = profile_path(values), *trace = get(values, "trace")->text;
    ps_status status = PS_OK;
    if (strcmp(output, "-") != 0)
        status = psplan_check_output(output, model, profile, err);
    if (!status && trace)
        status = psplan_check_output(trace, model, profile, err);
    if (!status && strcmp(output, "-") == 0 && get(values, "json")->set)
        status = ps_error_set(err, PS_E_USAGE, "--json", "standard output is where the plan goes");
    if (!status && trace && (strcmp(trace, output) == 0 || ps_file_is_same(trace, output)))
        status = ps_error_set(err, PS_E_USAGE, "--trace", "'%s' is where the plan goes", trace);
    return status;
}

/* A GPU's driver and the system need a core at times, and a team that waits for its slowest
 * thread then loses milliseconds: from eight on one is left to them (docs/performance.md: 62 against 77 tokens/s with 16). */
uint32_t psplan_default_threads(const ps_profile *profile, uint64_t budget_bytes) {
    uint32_t n = profile->topology.n_allowed;
    return budget_bytes != 0 && n >= 8 ? n - 1 : n;
}

uint32_t psplan_workers(void) {
    ps_limits l;
    uint32_t n = 0;
    if (ps_limits_read("", &l, NULL) != PS_OK)
        return 1;
    for (uint32_t cpu = 0; cpu < PS_LIMIT_CPUS; cpu++)
        n += ps_cpu_mask_has(&l.allowed, cpu);
    if (l.cpu_quota > 0 && l.cpu_quota < n)
        n = (uint32_t)l.cpu_quota;
    return n ? n : 1;
}

/* Budgets where the schedule of the longest context changes. */
static ps_status add_automatic(const ps_plan_request *like, wishes *w, ps_error *err) {
    ps_level_request level = {.n_seqs = w->workload.parallel,
                              .n_threads = psplan_default_threads(like->profile, 1)};
    for (uint32_t i = 0; i < w->n_contexts; i++)
        level.bucket_tokens = w->contexts[i] > level.bucket_tokens ? w->contexts[i] : level.bucket_tokens;
    for (uint32_t i = 0; i < w->n_threads; i++)
        if (w->threads[i]) /* 0: ours to choose */
            level.n_threads =
                i == 0 || w->threads[i] > level.n_threads ? (uint32_t)w->threads[i] : level.n_threads;
    return psplan_auto_budgets(like, &level, &w->budgets, err);
}

/* Where fewer threads than allowed are predicted to be faster. */
static void note_teams(const ps_plan_report *r) {
    for (uint32_t i = 0; i < r->n_levels; i++) {
        const ps_level_report *l = &r->levels[i];
        bool said = false;
        for (uint32_t k = 0; k < i; k++)
            said |= r->levels[k].asked_threads == l->asked_threads && r->levels[k].n_threads == l->n_threads;
        if (l->n_threads < l->asked_threads && !said)
            fprintf(stderr, "psplan: note: %u of %u threads are predicted to be faster; levels are for %u\n",
                    l->n_threads, l->asked_threads, l->n_threads);
    }
}

int psplan_plan(int argc, char **argv) {
    ps_opt_value values[N_OPTIONS];
    const char *args[1];
    uint32_t n_args;
    int code;
    if (!psplan_parse(&command, argc, argv, values, args, &n_args, &code))
        return code;
    ps_error err = {0};
    psplan_model m = {0};
    ps_profile *profile = NULL;
    ps_cost_model *cost = NULL;
    ps_plan *plan = NULL;
    ps_level_request *levels = NULL;
    wishes w = {0};
    psplan_progress progress = {0};
    char created[32], output[4096];
    ps_shortage shortage = {0};
    ps_plan_report report = {0};
    default_output(args[0], output, sizeof output);
    if (get(values, "output")->set)
        snprintf(output, sizeof output, "%s", get(values, "output")->text);
    ps_status status = parse_wishes(values, &w, &err);
    if (!status)
        status = now_text(created, &err);
    if (!status)
        status = check_outputs(args[0], values, output, &err);
    if (!status)
        status = psplan_model_open(args[0], &m, &err);
    if (!status)
        status = psplan_profile_read(profile_path(values), &profile, &err);
    if (!status)
        status = check_kernels(profile, &err);
    if (!status && !get(values, "budget")->set)
        status = psplan_parse_budgets(profile->gpu.name[0] ? "host,auto" : "host", &w.budgets, &err);
    if (!status && w.family != PS_FAMILY_COUNT)
        status = check_force(&w, &err);
    if (!status)
        status = ps_cost_model_new(profile, &cost, &err);
    if (status)
        goto done;
    if (w.n_contexts == 0) {
        w.n_contexts = 1;
        w.contexts[0] = m.model->n_ctx_train && m.model->n_ctx_train < 4096 ? m.model->n_ctx_train : 4096;
    }
    const bool own_threads = w.n_threads == 0; /* one count per budget, ours to choose */
    if (own_threads)
        w.n_threads = 1;
    ps_plan_request request = {.model = m.model,
                               .profile = profile,
                               .cost = cost,
                               .max_step_tokens = get(values, "max-step")->u64,
                               .max_outputs = (uint32_t)get(values, "outputs")->u64,
                               .progress = psplan_progress_tell,
                               .progress_ctx = &progress,
                               .forced = w.family != PS_FAMILY_COUNT,
                               .family = w.family,
                               .prompt_tokens = w.workload.prompt,
                               .output_tokens = w.workload.output,
                               .n_workers = psplan_workers(),
                               .tool = "psplan " PS_VERSION_STRING,
                               .created = created};
    psplan_progress_start(&progress);
    if (w.budgets.automatic) {
        psplan_progress_part(&progress, 0, 0.3);
        status = add_automatic(&request, &w, &err);
        psplan_progress_part(&progress, 0.3, 1);
    }
    if (status == PS_E_INFEASIBLE && !get(values, "budget")->set && !request.forced) {
        psplan_progress_end(&progress);
        fprintf(stderr, "psplan: %s; the plan is for the CPU alone\n", err.message);
        err = (ps_error){0};
        status = PS_OK;
    }
    if (status)
        goto done;
    uint32_t n_levels = w.budgets.n * w.n_contexts * w.n_threads, n = 0;
    levels = calloc(n_levels, sizeof *levels);
    if (!levels) {
        status = ps_error_set(&err, PS_E_NOMEM, "plan", "out of memory");
        goto done;
    }
    for (uint32_t b = 0; b < w.budgets.n; b++)
        for (uint32_t c = 0; c < w.n_contexts; c++)
            for (uint32_t t = 0; t < w.n_threads; t++) {
                ps_level_request *l = &levels[n++];
                memcpy(l->budget, w.budgets.name[b], sizeof l->budget);
                l->budget_bytes = w.budgets.bytes[b];
                l->bucket_tokens = w.contexts[c];
                l->n_seqs = w.workload.parallel;
                l->n_threads =
                    own_threads ? psplan_default_threads(profile, l->budget_bytes) : (uint32_t)w.threads[t];
            }
    request.levels = levels;
    request.n_levels = n_levels;
    status = ps_plan_search(&request, &plan, &report, &shortage, &err);
    psplan_progress_end(&progress);
    if (status == PS_E_INFEASIBLE) {
        ps_error ignored;
        if (get(values, "json")->set && shortage.needed_bytes)
            show_shortage(&shortage, &err, &ignored);
    }
    if (status)
        goto done;
    bool to_stdout = strcmp(output, "-") == 0;
    psplan_view view = {plan, m.model, profile, cost, args[0], output, &report};
    status = write_plan(plan, output, get(values, "format")->text, &err);
    if (!status && get(values, "trace")->set)
        status = write_trace(&view, get(values, "trace")->text, &err);
    if (!status) {
        warn_profile(profile);
        warn_budgets(profile, &w);
        warn_spills(profile, &w);
        note_teams(&report);
    }
    if (!status && !to_stdout)
        status = show(&view, values, &err);
done:
    psplan_progress_end(&progress);
    free(levels);
    free(report.levels);
    ps_plan_free(plan);
    ps_cost_model_free(cost);
    ps_profile_free(profile);
    psplan_model_close(&m);
    return psplan_finish(status, &err);
}
