/* pstune show: a profile as tables or JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profile/grid.h"
#include "pstune_internal.h"

#define COMMON_OPTIONS                                                                                       \
    {"json", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print JSON instead of tables."},                             \
        {"help", 'h', PS_OPT_FLAG, NULL, NULL, 0, 0, "Show this help."},                                     \
        {"man", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print the man page's source."},                           \
        {"version", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Show the version."},

static const ps_option options[] = {COMMON_OPTIONS};

static const ps_command command = {
    .name = "pstune show",
    .synopsis = "[OPTIONS] FILE",
    .summary = "Print a machine profile.",
    .examples = "  pstune show ~/.local/share/pinstripe/profile.yaml\n"
                "  pstune show --json profile.yaml | jq .points[0]",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .min_args = 1,
    .max_args = 1,
};

/* "12.3 us" and the like. */
static const char *time_text(double s, char buf[24]) {
    if (s < 1e-6)
        snprintf(buf, 24, "%.0f ns", s * 1e9);
    else if (s < 1e-3)
        snprintf(buf, 24, "%.2f us", s * 1e6);
    else if (s < 1)
        snprintf(buf, 24, "%.3f ms", s * 1e3);
    else
        snprintf(buf, 24, "%.3f s", s);
    return buf;
}

static const char *const beside_names[] = {
#define BESIDE_NAME(name, text) text,
    PS_BESIDE_LIST(BESIDE_NAME)
#undef BESIDE_NAME
};
static const char *const stop_names[] = {
#define STOP_NAME(name, text) text,
    PS_STOP_LIST(STOP_NAME)
#undef STOP_NAME
};

static double spread_frac(const ps_stat *s) {
    return s->median > 0 ? (s->q3 - s->q1) / (2 * s->median) : 0;
}

static void print_point(const ps_kernel_spec *k, const ps_profile_point *p) {
    char shape[64], kv[32] = "", t[24];
    double bytes, flops;
    ps_point_work(k, p, &bytes, &flops);
    if (p->rows)
        snprintf(shape, sizeof shape, "%llux%llu", (unsigned long long)p->rows, (unsigned long long)p->cols);
    else
        snprintf(shape, sizeof shape, "%llu", (unsigned long long)p->cols);
    if (p->heads_kv)
        snprintf(kv, sizeof kv, "/%u kv %llu", p->heads_kv, (unsigned long long)p->kv_len);
    printf("  %-12s%-14s %6u tok %3u thr  %-7s %11s +-%4.1f%% %8.2f GB/s %9.2f GFLOP/s%s%s\n", shape, kv,
           p->n_tokens, p->n_threads, beside_names[p->beside], time_text(p->time_s.median, t),
           100 * spread_frac(&p->time_s), bytes / p->time_s.median * 1e-9, flops / p->time_s.median * 1e-9,
           p->time_s.noisy ? " noisy" : "", p->time_s.stop == PS_STOP_CONVERGED ? "" : " *");
    if (p->beside_bytes_per_s > 0)
        printf("  %61s streams beside: %.2f GB/s\n", "", p->beside_bytes_per_s * 1e-9);
}

static const char *plural_of(uint32_t n) {
    return n == 1 ? "" : "s";
}

void ps_tune_print(const ps_profile *p, bool all) {
    const ps_profile_topology *t = &p->topology;
    char a[24], b[24];
    printf("machine   %s%s\n", t->cpu_model, p->synthetic ? " (made up, not measured)" : "");
    printf("          %u package%s, %u core%s", t->n_packages, plural_of(t->n_packages), t->n_cores,
           plural_of(t->n_cores));
    if (t->n_e_cores)
        printf(" (%u performance, %u efficiency)", t->n_p_cores, t->n_e_cores);
    printf(", %u thread%s, %u NUMA node%s, kernels for %s\n", t->n_threads, plural_of(t->n_threads),
           t->n_numa, plural_of(t->n_numa), t->cpu_level);
    printf("          L2 %.1f MiB, L3 %.1f MiB, memory %.1f GiB", (double)t->l2_bytes / (1 << 20),
           (double)t->l3_bytes / (1 << 20), (double)t->memory_bytes / (1 << 30));
    if (t->memlock_bytes == UINT64_MAX)
        printf(", lockable without limit\n");
    else
        printf(", lockable %.1f MiB\n", (double)t->memlock_bytes / (1 << 20));
    printf("          this process may use %u thread%s", t->n_allowed, plural_of(t->n_allowed));
    if (t->cpu_quota > 0)
        printf(" (quota of %.2f CPUs)", t->cpu_quota);
    printf("\nprofile   %s, %s, mode %s%s\n", p->tool, p->created, p->mode,
           p->complete ? "" : ", NOT COMPLETE: run pstune again to go on");
    if (p->note)
        printf("          %s\n", p->note);
    for (uint32_t i = 0; i < p->n_dram; i++)
        printf("%s%6.2f GB/s +-%.1f%% with %u thread%s\n", i ? "          " : "DRAM read ",
               p->dram[i].bw_bytes_per_s.median * 1e-9, 100 * spread_frac(&p->dram[i].bw_bytes_per_s),
               p->dram[i].n_threads, plural_of(p->dram[i].n_threads));
    if (p->barrier_s.n)
        printf("barrier   %s, pool start %s\n", time_text(p->barrier_s.median, a),
               time_text(p->pool_start_s.median, b));
    printf("kernels   %u, %u points%s\n", p->n_kernels, p->n_points,
           all ? "; +- half the quartile distance, * stopped before the median was sure" : "");
    for (uint32_t i = 0; i < p->n_kernels && all; i++) {
        const ps_kernel_spec *k = &p->kernels[i];
        bool any = false;
        for (uint32_t q = 0; q < p->n_points; q++) {
            if (p->points[q].kernel != k->id)
                continue;
            if (!any)
                printf("%s\n", k->name);
            any = true;
            print_point(k, &p->points[q]);
        }
    }
}

static void json_stat(ps_json *j, const char *key, const ps_stat *s) {
    ps_json_object(j, key);
    ps_json_u64(j, "n", s->n);
    ps_json_f64(j, "median", s->median);
    ps_json_f64(j, "q1", s->q1);
    ps_json_f64(j, "q3", s->q3);
    ps_json_str(j, "stop", stop_names[s->stop]);
    ps_json_bool(j, "noisy", s->noisy);
    ps_json_close(j);
}

void ps_tune_json(ps_json *j, const ps_profile *p) {
    const ps_profile_topology *t = &p->topology;
    char hex[PS_HASH_HEX];
    ps_json_str(j, "tool", p->tool);
    ps_json_str(j, "created", p->created);
    ps_json_str(j, "mode", p->mode);
    ps_json_bool(j, "complete", p->complete);
    ps_json_bool(j, "synthetic", p->synthetic);
    ps_json_str(j, "machine_hash", ps_hash_hex(p->machine_hash, hex));
    ps_json_str(j, "kernel_set", ps_hash_hex(p->kernel_set, hex));
    if (p->note)
        ps_json_str(j, "note", p->note);
    ps_json_object(j, "topology");
    ps_json_str(j, "cpu_model", t->cpu_model);
    ps_json_u64(j, "n_packages", t->n_packages);
    ps_json_u64(j, "n_cores", t->n_cores);
    ps_json_u64(j, "n_threads", t->n_threads);
    ps_json_u64(j, "n_numa", t->n_numa);
    ps_json_u64(j, "n_p_cores", t->n_p_cores);
    ps_json_u64(j, "n_e_cores", t->n_e_cores);
    ps_json_u64(j, "l2_bytes", t->l2_bytes);
    ps_json_u64(j, "l3_bytes", t->l3_bytes);
    ps_json_u64(j, "memory_bytes", t->memory_bytes);
    ps_json_u64(j, "memlock_bytes", t->memlock_bytes);
    ps_json_f64(j, "cpu_quota", t->cpu_quota);
    ps_json_u64(j, "n_allowed", t->n_allowed);
    ps_json_str(j, "cpu_level", t->cpu_level);
    ps_json_str(j, "gpu_name", t->gpu_name);
    ps_json_close(j);
    ps_json_array(j, "dram");
    for (uint32_t i = 0; i < p->n_dram; i++) {
        ps_json_object(j, NULL);
        ps_json_u64(j, "n_threads", p->dram[i].n_threads);
        json_stat(j, "bytes_per_s", &p->dram[i].bw_bytes_per_s);
        ps_json_close(j);
    }
    ps_json_close(j);
    json_stat(j, "barrier_s", &p->barrier_s);
    json_stat(j, "pool_start_s", &p->pool_start_s);
    ps_json_array(j, "kernels");
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        ps_json_object(j, NULL);
        ps_json_u64(j, "id", p->kernels[i].id);
        ps_json_str(j, "name", p->kernels[i].name);
        ps_json_str(j, "op", ps_op_get(p->kernels[i].op)->name);
        ps_json_u64(j, "min_tokens", p->kernels[i].min_tokens);
        ps_json_u64(j, "max_tokens", p->kernels[i].max_tokens);
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_array(j, "points");
    for (uint32_t i = 0; i < p->n_points; i++) {
        const ps_profile_point *q = &p->points[i];
        ps_json_object(j, NULL);
        ps_json_u64(j, "kernel", q->kernel);
        ps_json_u64(j, "rows", q->rows);
        ps_json_u64(j, "cols", q->cols);
        ps_json_u64(j, "heads_kv", q->heads_kv);
        ps_json_u64(j, "kv_len", q->kv_len);
        ps_json_u64(j, "n_tokens", q->n_tokens);
        ps_json_u64(j, "n_threads", q->n_threads);
        ps_json_str(j, "beside", beside_names[q->beside]);
        json_stat(j, "time_s", &q->time_s);
        ps_json_f64(j, "beside_bytes_per_s", q->beside_bytes_per_s);
        ps_json_close(j);
    }
    ps_json_close(j);
}

int ps_tune_show(int argc, char **argv) {
    ps_opt_value values[sizeof options / sizeof *options];
    const char *args[1] = {NULL};
    uint32_t n_args = 0;
    int code;
    if (!ps_tune_parse(&command, argc, argv, values, args, &n_args, &code))
        return code;
    ps_profile *p;
    ps_error err = {0};
    if (ps_profile_read(args[0], &p, &err) != PS_OK)
        return ps_tune_fail(&err);
    code = 0;
    if (ps_options_get(&command, values, "json")->set) {
        ps_json *j = ps_json_new(2);
        ps_json_object(j, NULL);
        ps_tune_json(j, p);
        ps_json_close(j);
        code = ps_tune_json_out(j);
    } else {
        ps_tune_print(p, true);
    }
    ps_profile_free(p);
    return code;
}
