/* pstune check: points that a profile does not have are measured and held against what is interpolated from those it has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/progress.h"
#include "kernels/kernel.h"
#include "plan/cost.h"
#include "profile/cpu_rig.h"
#include "profile/grid.h"
#include "profile/null_rig.h"
#include "profile/sweep.h"
#include "pstune_internal.h"

static const ps_option options[] = {
    {"points", 'n', PS_OPT_U64, "N", "50", 1, 10000, "How many points."},
    {"seed", 's', PS_OPT_U64, "N", "1", 0, 1e18, "Another number, other points."},
    {"model", 'm', PS_OPT_TEXT, "FILE.gguf", NULL, 0, 0,
     "Points of this model's shapes, as the profile was measured for."},
    {"again", 'a', PS_OPT_FLAG, NULL, NULL, 0, 0,
     "Measure the profile's own points around each as well, to tell what drifted from what is interpolated "
     "wrongly."},
    {"time", 0, PS_OPT_F64, "SECONDS", "60", 1, 86400, "Time to spend at most."},
    {"output", 'o', PS_OPT_TEXT, "OTHER", NULL, 0, 0,
     "Keep what was measured, a profile of these points alone."},
    {"json", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print JSON instead of a table."},
    {"help", 'h', PS_OPT_FLAG, NULL, NULL, 0, 0, "Show this help."},
    {"man", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print the man page's source."},
    {"version", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Show the version."},
};

static const ps_command command = {
    .name = "pstune check",
    .synopsis = "[OPTIONS] FILE [OTHER]",
    .summary = "Measure random points of CPU kernels and compare them with what the profile says of them.",
    .details =
        "Shapes, tokens, KV lengths and threads are off the grid, so each answer of the profile is\n"
        "interpolated. Points that turn out noisy do not count. Exit status 1 where the median of the\n"
        "errors is above 10% or one in ten above 25% (with --model 3% and 8%; of a quick profile, whose\n"
        "grid is coarse, twice as much), where the profile says nothing of a point, or where nothing\n"
        "could be compared. A profile of the null device is checked against that. With OTHER nothing is "
        "measured: its points of CPU kernels that\n"
        "run alone are what FILE is held against. With --again the points of FILE that an answer is made\n"
        "of are measured in turn with it: what FILE says with their new times tells what is interpolated\n"
        "wrongly, and how far that is from what it says with the old ones is drift. Takes five times as\n"
        "long.",
    .examples = "  pstune check profile.yaml\n"
                "  pstune check --again --time 300 profile.yaml\n"
                "  pstune check --model model.gguf --points 200 --json model.yaml",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .min_args = 1,
    .max_args = 2,
};

static const ps_opt_value *option(const ps_opt_value *values, const char *name) {
    return ps_options_get(&command, values, name);
}

typedef struct row {
    const ps_profile_point *found; /* as measured now */
    ps_cost said;
    bool known;
    double error; /* said over measured, minus 1 */
    /* --again: that part of it that is there with the profile's own points measured now, and the rest. */
    double between, drift;
} row;

/* Of absolute errors: what half, and one in ten, exceed. Of none: not a number. */
typedef struct spread {
    double median, tenth, worst;
} spread;

typedef struct verdict {
    row *rows;
    uint32_t n, n_quiet, n_unknown, n_again;
    bool again;
    spread error, between, drift; /* of the quiet and known */
    double median_limit, tenth_limit;
    bool good;
} verdict;

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static spread spread_of(double *errors, uint32_t n) {
    if (n == 0)
        return (spread){NAN, NAN, NAN};
    qsort(errors, n, sizeof *errors, by_value);
    return (spread){ps_quantile_sorted(errors, n, 0.5), ps_quantile_sorted(errors, n, 0.9), errors[n - 1]};
}

/* A point of the profile, by what it is of. NULL: it has none. */
static ps_profile_point *find(const ps_profile *p, const ps_profile_point *of) {
    for (uint32_t i = 0; i < p->n_points; i++) {
        ps_profile_point *q = &p->points[i];
        if (q->kernel == of->kernel && q->rows == of->rows && q->cols == of->cols &&
            q->heads_kv == of->heads_kv && q->kv_len == of->kv_len && q->n_tokens == of->n_tokens &&
            q->n_threads == of->n_threads && q->beside == of->beside)
            return q;
    }
    return NULL;
}

static bool is_counted(const ps_profile_point *p) {
    return p->n_threads > 0 && p->beside == PS_BESIDE_IDLE && p->time_s.n > 0;
}

/* `profile` with the times of those of its points that `now` has as well; points are from malloc. */
static ps_status renew(const ps_profile *profile, const ps_profile *now, ps_profile *out, uint32_t *out_n,
                       ps_error *err) {
    *out = *profile;
    *out_n = 0;
    out->points = malloc(((uint64_t)profile->n_points + 1) * sizeof *out->points);
    if (!out->points)
        return ps_error_set(err, PS_E_NOMEM, "check", "no memory for %u points", profile->n_points);
    memcpy(out->points, profile->points, profile->n_points * sizeof *out->points);
    for (uint32_t i = 0; i < now->n_points; i++) {
        ps_profile_point *p = is_counted(&now->points[i]) ? find(out, &now->points[i]) : NULL;
        if (p)
            p->time_s = now->points[i].time_s;
        *out_n += p != NULL;
    }
    return PS_OK;
}

static void judge_row(row *r, const ps_cost_model *cost, const ps_cost_model *renewed) {
    const ps_cost_query q = ps_cost_query_of(r->found);
    const double found_s = r->found->time_s.median;
    ps_cost said;
    r->known = ps_cost_lookup(cost, &q, &r->said);
    r->error = r->known ? r->said.time_s / found_s - 1 : 0;
    if (r->known && renewed && ps_cost_lookup(renewed, &q, &said)) {
        r->between = said.time_s / found_s - 1;
        r->drift = r->said.time_s / said.time_s - 1;
    }
}

static void sum_up(verdict *v, const char *mode, bool model, double *room) {
    /* What the grid promises. Between the few points of a quick one even a machine without noise is further off: the made-up one of 8
     * threads by 25% for one in ten. */
    const double times = strstr(mode, "quick") ? 2 : 1;
    v->median_limit = times * (model ? 0.03 : 0.10);
    v->tenth_limit = times * (model ? 0.08 : 0.25);
    spread *to[] = {&v->error, &v->between, &v->drift};
    for (int k = 0; k < 3; k++) {
        v->n_quiet = 0;
        for (uint32_t i = 0; i < v->n; i++) {
            const row *r = &v->rows[i];
            const double errors[] = {r->error, r->between, r->drift};
            if (r->known && !r->found->time_s.noisy)
                room[v->n_quiet++] = fabs(errors[k]);
        }
        *to[k] = spread_of(room, v->n_quiet);
    }
    v->good = v->n_quiet > 0 && v->n_unknown == 0 && v->error.median <= v->median_limit &&
              v->error.tenth <= v->tenth_limit;
}

static ps_status judge(const ps_profile *profile, const ps_profile *now, bool model, verdict *v,
                       ps_error *err) {
    ps_cost_model *cost = NULL, *cost_renewed = NULL;
    ps_profile renewed = {0};
    double *room = calloc((uint64_t)now->n_points + 1, sizeof *room);
    v->rows = calloc((uint64_t)now->n_points + 1, sizeof *v->rows);
    ps_status st = room && v->rows ? ps_cost_model_new(profile, &cost, err)
                                   : ps_error_set(err, PS_E_NOMEM, "check", "no memory for the points");
    if (st == PS_OK && v->again)
        st = renew(profile, now, &renewed, &v->n_again, err);
    if (st == PS_OK && v->again)
        st = ps_cost_model_new(&renewed, &cost_renewed, err);
    for (uint32_t i = 0; i < now->n_points && st == PS_OK; i++) {
        const ps_profile_point *p = &now->points[i];
        if (!is_counted(p) || (v->again && find(profile, p)))
            continue;
        row *r = &v->rows[v->n++];
        r->found = p;
        judge_row(r, cost, cost_renewed);
        v->n_unknown += !r->known;
    }
    if (st == PS_OK)
        sum_up(v, profile->mode, model, room);
    ps_cost_model_free(cost_renewed);
    ps_cost_model_free(cost);
    free(renewed.points);
    free(room);
    return st;
}

static void print_spread(const char *what, const spread *s) {
    printf("%s %.1f%% in the median, %.1f%% exceeded by one in ten, %.1f%% at worst\n", what, 100 * s->median,
           100 * s->tenth, 100 * s->worst);
}

static void print(const ps_profile *now, const verdict *v) {
    char said[24], found[24];
    for (uint32_t i = 0; i < v->n; i++) {
        const row *r = &v->rows[i];
        const ps_profile_point *p = r->found;
        char shape[PS_TUNE_SHAPE];
        if (r->known)
            printf("%+7.1f%%", 100 * r->error);
        else
            printf("%8s", "-");
        if (v->again && r->known)
            printf(" = %+6.1f%% between, %+6.1f%% drift", 100 * r->between, 100 * r->drift);
        printf("  %12s said, %12s found  %-12s %s %s, %u tok, %u thr%s\n",
               r->known ? ps_tune_time_text(r->said.time_s, said) : "nothing",
               ps_tune_time_text(p->time_s.median, found),
               r->known ? ps_cost_quality_name(r->said.quality) : "unknown",
               ps_tune_kernel(now, p->kernel)->name, ps_tune_shape_text(p, shape), p->n_tokens, p->n_threads,
               p->time_s.noisy ? " (noisy)" : "");
    }
    printf("%u points, %u not noisy and known", v->n, v->n_quiet);
    if (v->n_unknown)
        printf(", %u that the profile says nothing of", v->n_unknown);
    if (v->n_quiet == 0) {
        printf(": nothing could be compared\n");
        return;
    }
    printf(": ");
    print_spread("error", &v->error);
    printf("%.0f%% and %.0f%% are allowed\n", 100 * v->median_limit, 100 * v->tenth_limit);
    if (!v->again)
        return;
    printf("with the profile's own %u points around them measured again: ", v->n_again);
    print_spread("error", &v->between);
    print_spread("what the answers differ by, old times and new:", &v->drift);
}

static void json_spread(ps_json *j, const char *prefix, const spread *s) {
    const struct {
        const char *name;
        double v;
    } rows[] = {{"median_frac", s->median}, {"one_in_ten_frac", s->tenth}, {"worst_frac", s->worst}};
    for (int i = 0; i < 3; i++) {
        char name[48];
        snprintf(name, sizeof name, "%s%s", prefix, rows[i].name);
        ps_json_f64(j, name, rows[i].v);
    }
}

static int print_json(const ps_profile *now, const verdict *v) {
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    ps_json_bool(j, "good", v->good);
    ps_json_u64(j, "n", v->n);
    ps_json_u64(j, "n_quiet", v->n_quiet);
    ps_json_u64(j, "n_unknown", v->n_unknown);
    json_spread(j, "", &v->error);
    ps_json_f64(j, "median_limit_frac", v->median_limit);
    ps_json_f64(j, "one_in_ten_limit_frac", v->tenth_limit);
    if (v->again) {
        ps_json_u64(j, "n_again", v->n_again);
        json_spread(j, "between_", &v->between);
        json_spread(j, "drift_", &v->drift);
    }
    ps_json_array(j, "points");
    for (uint32_t i = 0; i < v->n; i++) {
        const row *r = &v->rows[i];
        const ps_profile_point *p = r->found;
        ps_json_object(j, NULL);
        ps_json_str(j, "kernel", ps_tune_kernel(now, p->kernel)->name);
        ps_json_u64(j, "rows", p->rows);
        ps_json_u64(j, "cols", p->cols);
        ps_json_u64(j, "heads_kv", p->heads_kv);
        ps_json_u64(j, "kv_len", p->kv_len);
        ps_json_u64(j, "n_tokens", p->n_tokens);
        ps_json_u64(j, "n_threads", p->n_threads);
        ps_json_f64(j, "found_s", p->time_s.median);
        ps_json_bool(j, "noisy", p->time_s.noisy);
        if (r->known) {
            ps_json_f64(j, "said_s", r->said.time_s);
            ps_json_str(j, "known_from", ps_cost_quality_name(r->said.quality));
            ps_json_f64(j, "error_frac", r->error);
        }
        if (r->known && v->again) {
            ps_json_f64(j, "between_frac", r->between);
            ps_json_f64(j, "drift_frac", r->drift);
        }
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_close(j);
    return ps_tune_json_out(j);
}

static void show_progress(void *ctx, double frac, const char *label) {
    ps_progress_update(ctx, frac, label);
}

/* The machine that the points are measured on. */
typedef struct rig {
    ps_machine *machine;
    ps_cpu_rig *cpu;
    ps_null_rig *null;
} rig;

static ps_status open_rig(rig *r, const ps_profile *profile, const ps_model *model, ps_sweep_config *c,
                          ps_error *err) {
    if (profile->synthetic) {
        const ps_null_config nc = {.seed = 2,
                                   .n_threads = profile->topology.n_allowed,
                                   .noise_frac = 0.015,
                                   .kernels = c->kernels,
                                   .n_kernels = c->n_kernels};
        c->ops = &ps_null_rig_ops;
        const ps_status st = ps_null_rig_new(&nc, &r->null, err);
        c->rig = r->null;
        return st;
    }
    ps_status st = ps_machine_open(NULL, &r->machine, err);
    if (st != PS_OK)
        return st;
    uint8_t hash[PS_HASH_BYTES];
    ps_machine_hash(r->machine, hash);
    if (memcmp(hash, profile->machine_hash, sizeof hash) != 0)
        fprintf(stderr, "pstune: warning: the profile is of another machine (%s)\n",
                profile->topology.cpu_model);
    const bool quick = strstr(profile->mode, "quick") != NULL;
    const ps_cpu_config cc = {
        .machine = r->machine, .model = model, .cold_bytes = ps_cpu_cold_bytes(r->machine, model, quick)};
    c->ops = &ps_cpu_rig_ops;
    st = ps_cpu_rig_new(&cc, &r->cpu, err);
    c->rig = r->cpu;
    return st;
}

/* Threads that the profile knows kernels at: it may have been measured with fewer than are allowed. */
static uint32_t most_threads(const ps_profile *p) {
    uint32_t most = 1;
    for (uint32_t i = 0; i < p->n_points; i++)
        most = p->points[i].n_threads > most ? p->points[i].n_threads : most;
    return most;
}

/* Adds the points of the profile that the answer for `of` is made of: those whose time, changed, changes it. room: two
 * arrays of profile->n_points. Answers that need other kernels' points for their threads are left with their own. */
static ps_status add_around(const ps_profile *profile, const ps_profile_point *of, bool *around,
                            ps_profile_point *points, uint32_t *from, ps_error *err) {
    ps_profile own = *profile;
    own.points = points;
    own.n_points = 0;
    for (uint32_t i = 0; i < profile->n_points; i++)
        if (profile->points[i].kernel == of->kernel && is_counted(&profile->points[i])) {
            from[own.n_points] = i;
            points[own.n_points++] = profile->points[i];
        }
    const ps_cost_query q = ps_cost_query_of(of);
    double said_s = 0;
    for (uint32_t i = 0; i <= own.n_points; i++) { /* first as they are, then one after the other changed */
        ps_cost_model *cost = NULL;
        ps_cost said;
        if (i > 0)
            points[i - 1].time_s.median *= 1.5;
        const ps_status st = ps_cost_model_new(&own, &cost, err);
        if (st != PS_OK)
            return st;
        const bool known = ps_cost_lookup(cost, &q, &said);
        ps_cost_model_free(cost);
        if (!known)
            return PS_OK;
        if (i == 0)
            said_s = said.time_s;
        else if (fabs(said.time_s / said_s - 1) > 1e-6)
            around[from[i - 1]] = true;
        if (i > 0)
            points[i - 1].time_s = profile->points[from[i - 1]].time_s;
    }
    return PS_OK;
}

/* Appends the profile's points around n tasks, each once. */
static ps_status tasks_around(const ps_profile *profile, ps_task **tasks, uint32_t *n, ps_error *err) {
    const uint32_t n_random = *n;
    const uint64_t room = (uint64_t)profile->n_points + 1;
    bool *around = calloc(room, sizeof *around);
    ps_profile_point *points = calloc(room, sizeof *points);
    uint32_t *from = calloc(room, sizeof *from);
    ps_task *all = realloc(*tasks, (n_random + room) * sizeof *all);
    ps_status st = around && points && from && all
                       ? PS_OK
                       : ps_error_set(err, PS_E_NOMEM, "check", "no memory for points around points");
    if (all)
        *tasks = all;
    for (uint32_t i = 0; i < n_random && st == PS_OK; i++)
        if (all[i].measure == PS_MEASURE_KERNEL)
            st = add_around(profile, &all[i].point, around, points, from, err);
    for (uint32_t i = 0; i < profile->n_points && st == PS_OK; i++) {
        ps_profile_point p = profile->points[i];
        bool there = !around[i];
        for (uint32_t k = 0; k < n_random && !there; k++) {
            const ps_profile one = {.points = &all[k].point, .n_points = 1};
            there = find(&one, &p) != NULL;
        }
        if (there)
            continue;
        const double cost_s = p.time_s.median;
        p.time_s = (ps_stat){0};
        all[(*n)++] = (ps_task){.measure = PS_MEASURE_KERNEL, .point = p, .cost_s = cost_s};
    }
    free(from);
    free(points);
    free(around);
    return st;
}

/* Measure random points; *out is the profile that holds them. */
static ps_status measure(const ps_opt_value *values, const ps_profile *profile, const ps_model *model,
                         ps_sweep_result *out, ps_error *err) {
    ps_kernel_spec *kernels = NULL;
    ps_task *tasks = NULL;
    rig r = {0};
    ps_progress progress;
    ps_sweep_config config = {.mode = "check",
                              .tool = "pstune " PS_VERSION_STRING,
                              .created = "",
                              .limit_s = option(values, "time")->f64,
                              .max_task_s = 1,
                              .progress = show_progress,
                              .ctx = &progress};
    ps_status st = ps_tune_catalogue(&kernels, &config.n_kernels, err);
    config.kernels = kernels;
    if (st == PS_OK)
        st = open_rig(&r, profile, model, &config, err);
    uint32_t n_threads = most_threads(profile);
    if (r.machine && n_threads > r.machine->n_allowed)
        n_threads = r.machine->n_allowed;
    const ps_grid_config grid = {
        .kernels = kernels, .n_kernels = config.n_kernels, .n_threads = n_threads, .model = model};
    if (st == PS_OK)
        st = ps_grid_random(&grid, option(values, "seed")->u64, (uint32_t)option(values, "points")->u64,
                            &tasks, &config.n_tasks, err);
    if (st == PS_OK && config.n_tasks == 0)
        st = ps_error_set(err, PS_E_UNSUPPORTED, option(values, "model")->text,
                          "no operation of it has a kernel on CPUs");
    if (st == PS_OK && option(values, "again")->set)
        st = tasks_around(profile, &tasks, &config.n_tasks, err);
    config.tasks = tasks;
    if (st == PS_OK) {
        ps_progress_start(&progress, stderr);
        st = ps_sweep_run(&config, out, err);
        ps_progress_end(&progress);
    }
    if (out->profile) /* it has no ceilings */
        out->profile->complete = false;
    ps_cpu_rig_free(r.cpu);
    ps_null_rig_free(r.null);
    ps_machine_close(r.machine);
    free(tasks);
    free(kernels);
    return st;
}

/* Errors: PS_E_UNSUPPORTED where the kernels of the profile are not this program's. */
static ps_status check_kernels(const char *path, const ps_profile *profile, ps_error *err) {
    ps_kernel_spec *kernels = NULL;
    uint32_t n_kernels = 0;
    uint8_t set[PS_HASH_BYTES];
    ps_status st = ps_tune_catalogue(&kernels, &n_kernels, err);
    if (st != PS_OK)
        return st;
    ps_kernel_spec_hash(kernels, n_kernels, set);
    free(kernels);
    if (memcmp(set, profile->kernel_set, sizeof set) != 0)
        st = ps_error_set(err, PS_E_UNSUPPORTED, path,
                          "is of other kernels than this program's: run pstune again");
    return st;
}

int ps_tune_check(int argc, char **argv) {
    ps_opt_value values[sizeof options / sizeof *options];
    const char *args[2] = {NULL, NULL};
    uint32_t n_args = 0;
    int code = 0;
    ps_error err = {0};
    ps_profile *profile = NULL, *other = NULL;
    ps_gguf *gguf = NULL;
    ps_model *model = NULL;
    verdict v = {0};
    ps_sweep_result result = {0};
    if (!ps_tune_parse(&command, argc, argv, values, args, &n_args, &code))
        return code;
    const char *model_path = option(values, "model")->text, *output = option(values, "output")->text;
    ps_status st = PS_OK;
    if (args[1] && output)
        st = ps_error_set(&err, PS_E_USAGE, "--output", "nothing is measured that could be kept");
    if (st == PS_OK && output)
        st = ps_file_check_output(output, &err);
    if (st == PS_OK && output && (ps_file_is_same(output, args[0]) || ps_file_is_same(output, model_path)))
        st = ps_error_set(&err, PS_E_USAGE, output, "is an input");
    if (st == PS_OK)
        st = ps_profile_read(args[0], &profile, &err);
    if (st == PS_OK)
        st = check_kernels(args[0], profile, &err);
    if (st == PS_OK && args[1])
        st = ps_profile_read(args[1], &other, &err);
    if (st == PS_OK && args[1])
        st = check_kernels(args[1], other, &err);
    if (st == PS_OK && model_path)
        st = ps_gguf_open(model_path, &gguf, &err);
    if (st == PS_OK && model_path)
        st = ps_model_open(gguf, &model, &err);
    if (st == PS_OK && !other)
        st = measure(values, profile, model, &result, &err);
    v.again = option(values, "again")->set;
    const ps_profile *now = other ? other : result.profile;
    if (st == PS_OK && output)
        st = ps_profile_write(now, output, &err);
    if (st == PS_OK)
        st = judge(profile, now, model != NULL, &v, &err);
    if (st != PS_OK) {
        code = ps_tune_fail(&err);
    } else {
        if (option(values, "json")->set)
            code = print_json(now, &v);
        else
            print(now, &v);
        if (code == 0 && !v.good)
            code = 1;
    }
    free(v.rows);
    ps_sweep_free(&result);
    ps_profile_free(other);
    ps_model_close(model);
    ps_gguf_close(gguf);
    ps_profile_free(profile);
    return code;
}
