/* pstune diff: two profiles, entry by entry. An entry is one quantity by its name, which holds all that the profile keys it
 * by, so entries of both files meet by name whatever their order. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pstune_internal.h"

static const ps_option options[] = {
    {"within", 'w', PS_OPT_F64, "PERCENT", "3", 0.01, 100,
     "Medians that differ at most so much are the same."},
    {"all", 'a', PS_OPT_FLAG, NULL, NULL, 0, 0, "List all entries, not only those that differ."},
    {"json", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print JSON instead of tables."},
    {"help", 'h', PS_OPT_FLAG, NULL, NULL, 0, 0, "Show this help."},
    {"man", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print the man page's source."},
    {"version", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Show the version."},
};

static const ps_command command = {
    .name = "pstune diff",
    .synopsis = "[OPTIONS] A B",
    .summary = "Say what is faster or slower in profile B than in profile A.",
    .details = "An entry is the same when its medians differ by no more than --within. It is faster or "
               "slower when they differ by "
               "more, neither is marked noisy, and the quartiles of one lie wholly beyond those of the "
               "other. All else is "
               "ambiguous. Speeds are given as B against A: above 1, B is faster. Exit status 0 whatever the "
               "answer.",
    .examples = "  pstune diff before.yaml after.yaml\n"
                "  pstune diff --json a.yaml b.yaml | jq .within_3_frac",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .min_args = 2,
    .max_args = 2,
};

typedef struct entry {
    char name[144];
    const ps_stat *stat;
    ps_unit unit;
} entry;

typedef struct entries {
    uint32_t n;
    entry *e; /* those of A as in the file, those of B by name */
} entries;

#define VERDICT_LIST(X) X(SAME, "same") X(FASTER, "faster") X(SLOWER, "slower") X(AMBIGUOUS, "ambiguous")
typedef enum verdict {
#define VERDICT_ENUM(name, text) name,
    VERDICT_LIST(VERDICT_ENUM)
#undef VERDICT_ENUM
        N_VERDICTS
} verdict;
static const char *const verdict_names[] = {
#define VERDICT_NAME(name, text) text,
    VERDICT_LIST(VERDICT_NAME)
#undef VERDICT_NAME
};

typedef struct pair {
    const entry *a, *b;
    double speed; /* of B against A */
    verdict verdict;
} pair;

typedef struct comparison {
    entries a, b;
    uint32_t n_pairs;
    pair *pairs;
    uint32_t count[N_VERDICTS];
    uint32_t within_3, within_10, quiet, quiet_within_10; /* quiet: noisy in neither */
} comparison;

/* Room for one more is there: collect() counts first. Quantities that were not measured are no entries. */
__attribute__((format(printf, 4, 5))) static void add(entries *list, const ps_stat *stat, ps_unit unit,
                                                      const char *format, ...) {
    if (stat->n == 0)
        return;
    entry *e = &list->e[list->n++];
    e->stat = stat;
    e->unit = unit;
    va_list args;
    va_start(args, format);
    vsnprintf(e->name, sizeof e->name, format, args);
    va_end(args);
}

static void add_point(entries *list, const ps_profile *p, const ps_profile_point *q) {
    const ps_kernel_spec *k = ps_tune_kernel(p, q->kernel);
    const char *kernel = k ? k->name : "?";
    char shape[64] = "";
    if (q->heads_kv)
        snprintf(shape, sizeof shape, "/%u kv %llu", q->heads_kv, (unsigned long long)q->kv_len);
    add(list, &q->time_s, PS_UNIT_SECONDS, "%s %llux%llu%s, %u tok, %u thr, %s", kernel,
        (unsigned long long)q->rows, (unsigned long long)q->cols, shape, q->n_tokens, q->n_threads,
        ps_beside_name(q->beside));
}

static bool collect(entries *list, const ps_profile *p) {
    const uint64_t room = 2 + (uint64_t)PS_GPU_STAT_COUNT + p->n_dram + p->gpu.n_copies +
                          2 * ((uint64_t)p->gpu.n_together + p->gpu.n_paced) + p->n_points;
    list->n = 0;
    list->e = calloc(room, sizeof *list->e);
    if (!list->e)
        return false;
    for (uint32_t i = 0; i < p->n_dram; i++)
        add(list, &p->dram[i].bw_bytes_per_s, PS_UNIT_BYTES_PER_S, "dram read, %u thr", p->dram[i].n_threads);
    add(list, &p->barrier_s, PS_UNIT_SECONDS, "barrier");
    add(list, &p->pool_start_s, PS_UNIT_SECONDS, "pool start");
    const ps_profile_gpu *g = &p->gpu;
    for (uint32_t i = 0; i < PS_GPU_STAT_COUNT; i++)
        add(list, ps_gpu_stat(g, i), ps_gpu_stat_rows[i].unit, "gpu %s", ps_gpu_stat_rows[i].label);
    for (uint32_t i = 0; i < g->n_copies; i++)
        add(list, &g->copies[i].bw_bytes_per_s, PS_UNIT_BYTES_PER_S, "bus %s, %s, %llu bytes",
            ps_bus_name(g->copies[i].bus), ps_host_kind_name(g->copies[i].kind),
            (unsigned long long)g->copies[i].bytes);
    for (uint32_t i = 0; i < g->n_together; i++) {
        const char *bus = ps_bus_name(g->together[i].bus);
        const uint32_t n_threads = g->together[i].n_threads;
        add(list, &g->together[i].bus_bytes_per_s, PS_UNIT_BYTES_PER_S, "bus %s beside %u thr", bus,
            n_threads);
        add(list, &g->together[i].dram_bytes_per_s, PS_UNIT_BYTES_PER_S, "dram read, %u thr, beside %s",
            n_threads, bus);
    }
    for (uint32_t i = 0; i < g->n_paced; i++) {
        const ps_profile_paced *c = &g->paced[i];
        const char *bus = ps_bus_name(c->bus);
        add(list, &c->bus_bytes_per_s, PS_UNIT_BYTES_PER_S, "bus %s at %.0f%% beside %u thr", bus,
            100 * c->share_frac, c->n_threads);
        add(list, &c->dram_bytes_per_s, PS_UNIT_BYTES_PER_S, "dram read, %u thr, beside %s at %.0f%%",
            c->n_threads, bus, 100 * c->share_frac);
    }
    for (uint32_t i = 0; i < p->n_points; i++)
        add_point(list, p, &p->points[i]);
    return true;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static verdict judge(const pair *p, double within_frac) {
    const ps_stat *a = p->a->stat, *b = p->b->stat;
    if (fmax(p->speed, 1 / p->speed) <= 1 + within_frac)
        return SAME;
    const bool apart = a->q3 < b->q1 || b->q3 < a->q1;
    if (a->noisy || b->noisy || !apart)
        return AMBIGUOUS;
    return p->speed > 1 ? FASTER : SLOWER;
}

static bool compare(comparison *c, const ps_profile *a, const ps_profile *b, double within_frac) {
    if (!collect(&c->a, a) || !collect(&c->b, b))
        return false;
    c->pairs = calloc((uint64_t)c->a.n + 1, sizeof *c->pairs);
    if (!c->pairs)
        return false;
    qsort(c->b.e, c->b.n, sizeof *c->b.e, by_name);
    for (uint32_t i = 0; i < c->a.n; i++) {
        const entry *other = c->b.n ? bsearch(&c->a.e[i], c->b.e, c->b.n, sizeof *c->b.e, by_name) : NULL;
        if (!other)
            continue;
        pair *p = &c->pairs[c->n_pairs++];
        *p = (pair){.a = &c->a.e[i], .b = other, .speed = other->stat->median / c->a.e[i].stat->median};
        if (p->a->unit == PS_UNIT_SECONDS)
            p->speed = 1 / p->speed;
        p->verdict = judge(p, within_frac);
        c->count[p->verdict]++;
        const double apart_frac = fmax(p->speed, 1 / p->speed) - 1;
        const bool quiet = !p->a->stat->noisy && !p->b->stat->noisy;
        c->within_3 += apart_frac <= 0.03;
        c->within_10 += apart_frac <= 0.10;
        c->quiet += quiet;
        c->quiet_within_10 += quiet && apart_frac <= 0.10;
    }
    return true;
}

static double share(uint32_t part, uint32_t whole) {
    return whole ? (double)part / whole : 1;
}

static void print(const comparison *c, const ps_profile *a, const ps_profile *b, bool all) {
    printf("A         %s, %s, mode %s\nB         %s, %s, mode %s\n", a->topology.cpu_model, a->created,
           a->mode, b->topology.cpu_model, b->created, b->mode);
    if (memcmp(a->machine_hash, b->machine_hash, PS_HASH_BYTES))
        printf("          different machines\n");
    if (memcmp(a->kernel_set, b->kernel_set, PS_HASH_BYTES))
        printf("          different versions of the kernels\n");
    printf("entries   %u in both: %u same, %u faster, %u slower, %u ambiguous; %u only in A, %u only in B\n",
           c->n_pairs, c->count[SAME], c->count[FASTER], c->count[SLOWER], c->count[AMBIGUOUS],
           c->a.n - c->n_pairs, c->b.n - c->n_pairs);
    printf("          %.1f%% within 3%%, %.1f%% within 10%%; of %u not marked noisy %.1f%% within 10%%\n",
           100 * share(c->within_3, c->n_pairs), 100 * share(c->within_10, c->n_pairs), c->quiet,
           100 * share(c->quiet_within_10, c->quiet));
    for (uint32_t i = 0; i < c->n_pairs; i++) {
        const pair *p = &c->pairs[i];
        char va[24], vb[24];
        if (p->verdict == SAME && !all)
            continue;
        printf("%-9s %6.3fx  %12s -> %12s  %s%s\n", verdict_names[p->verdict], p->speed,
               ps_tune_value_text(p->a->stat->median, p->a->unit, va),
               ps_tune_value_text(p->b->stat->median, p->b->unit, vb), p->a->name,
               p->a->stat->noisy || p->b->stat->noisy ? " (noisy)" : "");
    }
}

static int print_json(const comparison *c, const ps_profile *a, const ps_profile *b) {
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    ps_json_bool(j, "same_machine", !memcmp(a->machine_hash, b->machine_hash, PS_HASH_BYTES));
    ps_json_bool(j, "same_kernels", !memcmp(a->kernel_set, b->kernel_set, PS_HASH_BYTES));
    ps_json_u64(j, "only_in_a", c->a.n - c->n_pairs);
    ps_json_u64(j, "only_in_b", c->b.n - c->n_pairs);
    for (int i = 0; i < N_VERDICTS; i++)
        ps_json_u64(j, verdict_names[i], c->count[i]);
    ps_json_f64(j, "within_3_frac", share(c->within_3, c->n_pairs));
    ps_json_f64(j, "within_10_frac", share(c->within_10, c->n_pairs));
    ps_json_f64(j, "quiet_within_10_frac", share(c->quiet_within_10, c->quiet));
    ps_json_array(j, "entries");
    for (uint32_t i = 0; i < c->n_pairs; i++) {
        const pair *p = &c->pairs[i];
        ps_json_object(j, NULL);
        ps_json_str(j, "name", p->a->name);
        ps_json_str(j, "verdict", verdict_names[p->verdict]);
        ps_json_f64(j, "speed", p->speed);
        ps_json_f64(j, "a", p->a->stat->median);
        ps_json_f64(j, "b", p->b->stat->median);
        ps_json_bool(j, "noisy", p->a->stat->noisy || p->b->stat->noisy);
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_close(j);
    return ps_tune_json_out(j);
}

int ps_tune_diff(int argc, char **argv) {
    ps_opt_value values[sizeof options / sizeof *options];
    const char *args[2] = {NULL, NULL};
    uint32_t n_args = 0;
    int code = 0;
    if (!ps_tune_parse(&command, argc, argv, values, args, &n_args, &code))
        return code;
    ps_profile *a = NULL, *b = NULL;
    comparison c = {0};
    ps_error err = {0};
    const double within_frac = ps_options_get(&command, values, "within")->f64 / 100;
    if (ps_profile_read(args[0], &a, &err) != PS_OK || ps_profile_read(args[1], &b, &err) != PS_OK) {
        code = ps_tune_fail(&err);
    } else if (!compare(&c, a, b, within_frac)) {
        ps_error_set(&err, PS_E_NOMEM, "profiles", "out of memory");
        code = ps_tune_fail(&err);
    } else if (ps_options_get(&command, values, "json")->set) {
        code = print_json(&c, a, b);
    } else {
        print(&c, a, b, ps_options_get(&command, values, "all")->set);
    }
    free(c.pairs);
    free(c.a.e);
    free(c.b.e);
    ps_profile_free(a);
    ps_profile_free(b);
    return code;
}
