/* pstune show: a profile as tables or JSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "profile/grid.h"
#include "pstune_internal.h"

#define COMMON_OPTIONS                                                                                       \
    {"json", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print JSON instead of tables."},                             \
        {"help", 'h', PS_OPT_FLAG, NULL, NULL, 0, 0, "Show this help."},                                     \
        {"man", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print the man page's source."},                           \
        {"version", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Show the version."},

static const ps_option options[] = {{"svg", 0, PS_OPT_TEXT, "FILE", NULL, 0, 0,
                                     "Draw rooflines, copy rates by size and slowdowns into FILE instead."},
                                    COMMON_OPTIONS};

static const ps_command command = {
    .name = "pstune show",
    .synopsis = "[OPTIONS] FILE",
    .summary = "Print a machine profile.",
    .examples = "  pstune show ~/.local/share/pinstripe/profile.yaml\n"
                "  pstune show --json profile.yaml | jq .points[0]\n"
                "  pstune show --svg profile.svg profile.yaml",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .min_args = 1,
    .max_args = 1,
};

static double spread_frac(const ps_stat *s) {
    return s->median > 0 ? (s->q3 - s->q1) / (2 * s->median) : 0;
}

static void print_point(const ps_kernel_spec *k, const ps_profile_point *p) {
    char shape[PS_TUNE_SHAPE], t[24];
    double bytes, flops;
    ps_point_work(k, p, &bytes, &flops);
    printf("  %-26s %6u tok %3u thr  %-7s %11s +-%4.1f%% %8.2f GB/s %9.2f GFLOP/s%s%s\n",
           ps_tune_shape_text(p, shape), p->n_tokens, p->n_threads, ps_beside_name(p->beside),
           ps_tune_time_text(p->time_s.median, t), 100 * spread_frac(&p->time_s),
           bytes / p->time_s.median * 1e-9, flops / p->time_s.median * 1e-9, p->time_s.noisy ? " noisy" : "",
           p->time_s.stop == PS_STOP_CONVERGED ? "" : " *");
    if (p->beside_bytes_per_s > 0)
        printf("  %61s streams beside: %.2f GB/s\n", "", p->beside_bytes_per_s * 1e-9);
}

static const char *plural_of(uint32_t n) {
    return n == 1 ? "" : "s";
}

static const char *size_text(uint64_t bytes, char buf[24]) {
    if (bytes >= 1 << 20)
        snprintf(buf, 24, "%llu MiB", (unsigned long long)(bytes >> 20));
    else
        snprintf(buf, 24, "%llu KiB", (unsigned long long)(bytes >> 10));
    return buf;
}

/* How the times of kernels and copies were taken, and how far the two ways are apart. */
static void print_timer(const ps_profile_gpu *g) {
    if (g->timer == PS_TIMER_CUPTI)
        printf("          times by CUPTI, %.0f ns between kernels of a graph", g->timer_gap_s * 1e9);
    else
        printf("          times by CUDA events%s%s", g->timer_reason[0] ? ": " : "", g->timer_reason);
    double worst = 0, least = 0, most = 0;
    uint32_t n = 0, within = 0;
    for (uint32_t i = 0; i < g->n_checks; i++) {
        const ps_profile_check *c = &g->checks[i];
        n += c->n;
        within += fabs(c->median_frac) <= 0.05;
        least = i == 0 || c->median_frac < least ? c->median_frac : least;
        most = i == 0 || c->median_frac > most ? c->median_frac : most;
        worst = fabs(c->worst_frac) > fabs(worst) ? c->worst_frac : worst;
    }
    printf("\n");
    if (n)
        printf("          CUPTI against events, %u points over 20 us: %+.1f%% to %+.1f%% by kernel, %u of %u "
               "within 5%%, worst "
               "point %+.1f%%\n",
               n, 100 * least, 100 * most, within, g->n_checks, 100 * worst);
}

/* Both rates of the same moments; share_frac: what the bus was held at. */
static void print_both(const char *head, ps_bus bus, uint32_t n_threads, double share_frac,
                       const ps_stat *bus_rate, const ps_stat *dram_rate) {
    char held[32] = "";
    if (share_frac < 1)
        snprintf(held, sizeof held, " held at %.0f%%", 100 * share_frac);
    printf("%-10s%-6s%s %7.2f GB/s while %u thread%s read%s %.2f GB/s\n", head, ps_bus_name(bus), held,
           bus_rate->median * 1e-9, n_threads, plural_of(n_threads), n_threads == 1 ? "s" : "",
           dram_rate->median * 1e-9);
}

static void print_gpu(const ps_profile_gpu *g) {
    char t[24];
    if (!g->name[0])
        return;
    printf("GPU       %s, compute capability %u.%u, %u multiprocessors, %.1f GiB, L2 %.1f MiB\n", g->name,
           g->cc_major, g->cc_minor, g->n_multiprocessors, (double)g->vram_bytes / (1 << 30),
           (double)g->l2_bytes / (1 << 20));
    printf("          ");
    if (g->driver[0])
        printf("driver %s, ", g->driver);
    if (g->pcie_gen)
        printf("PCIe %u x%u, ", g->pcie_gen, g->pcie_width);
    printf("%.1f MiB taken before any weight (meter: %s)\n", (double)g->base_bytes / (1 << 20), g->meter);
    if (g->context_bytes)
        printf("          of that %.1f MiB context, %.1f MiB kernels, %.1f MiB cuBLAS\n",
               (double)g->context_bytes / (1 << 20), (double)g->modules_bytes / (1 << 20),
               (double)g->blas_bytes / (1 << 20));
    print_timer(g);
    for (uint32_t i = 0; i < PS_GPU_STAT_COUNT; i++) {
        const ps_stat *s = ps_gpu_stat(g, i);
        if (s->n == 0)
            continue;
        printf("          %-20s", ps_gpu_stat_rows[i].label);
        if (ps_gpu_stat_rows[i].unit == PS_UNIT_SECONDS)
            printf(" %12s", ps_tune_time_text(s->median, t));
        else
            printf(" %7.1f %s", s->median * (ps_gpu_stat_rows[i].unit == PS_UNIT_FLOPS ? 1e-12 : 1e-9),
                   ps_gpu_stat_rows[i].unit == PS_UNIT_FLOPS ? "TF/s" : "GB/s");
        printf(" +-%.1f%%\n", 100 * spread_frac(s));
    }
    for (uint32_t i = 0; i < g->n_copies; i++)
        printf("%s%-6s %-10s %8s  %7.2f GB/s +-%.1f%%\n", i ? "          " : "bus       ",
               ps_bus_name(g->copies[i].bus), ps_host_kind_name(g->copies[i].kind),
               size_text(g->copies[i].bytes, t), g->copies[i].bw_bytes_per_s.median * 1e-9,
               100 * spread_frac(&g->copies[i].bw_bytes_per_s));
    for (uint32_t i = 0; i < g->n_together; i++)
        print_both(i ? "" : "together", g->together[i].bus, g->together[i].n_threads, 1,
                   &g->together[i].bus_bytes_per_s, &g->together[i].dram_bytes_per_s);
    for (uint32_t i = 0; i < g->n_paced; i++)
        print_both(i ? "" : "paced", g->paced[i].bus, g->paced[i].n_threads, g->paced[i].share_frac,
                   &g->paced[i].bus_bytes_per_s, &g->paced[i].dram_bytes_per_s);
}

static void print_slowdowns(const ps_profile *p) {
    ps_tune_slowdown *s;
    uint32_t n;
    if (!ps_tune_slowdowns(p, &s, &n)) {
        printf("slower    not shown: out of memory\n");
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        printf("%s%5.2f times: %s (%u)\n", i ? "          " : "slower    ", s[i].times, s[i].what, s[i].n);
    free(s);
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
        printf("barrier   %s, pool start %s\n", ps_tune_time_text(p->barrier_s.median, a),
               ps_tune_time_text(p->pool_start_s.median, b));
    print_gpu(&p->gpu);
    print_slowdowns(p);
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
    ps_json_str(j, "stop", ps_stop_name(s->stop));
    ps_json_bool(j, "noisy", s->noisy);
    ps_json_close(j);
}

static void json_gpu(ps_json *j, const ps_profile_gpu *g) {
    ps_json_object(j, "gpu");
    ps_json_str(j, "name", g->name);
    ps_json_str(j, "uuid", g->uuid);
    ps_json_str(j, "driver", g->driver);
    ps_json_u64(j, "cc_major", g->cc_major);
    ps_json_u64(j, "cc_minor", g->cc_minor);
    ps_json_u64(j, "n_multiprocessors", g->n_multiprocessors);
    ps_json_u64(j, "vram_bytes", g->vram_bytes);
    ps_json_u64(j, "l2_bytes", g->l2_bytes);
    ps_json_u64(j, "pcie_gen", g->pcie_gen);
    ps_json_u64(j, "pcie_width", g->pcie_width);
    ps_json_u64(j, "base_bytes", g->base_bytes);
    ps_json_str(j, "meter", g->meter);
    ps_json_u64(j, "context_bytes", g->context_bytes);
    ps_json_u64(j, "modules_bytes", g->modules_bytes);
    ps_json_u64(j, "blas_bytes", g->blas_bytes);
    ps_json_str(j, "timer", g->timer == PS_TIMER_CUPTI ? "cupti" : "events");
    ps_json_str(j, "timer_reason", g->timer_reason);
    ps_json_f64(j, "timer_gap_s", g->timer_gap_s);
    ps_json_array(j, "timer_checks");
    for (uint32_t i = 0; i < g->n_checks; i++) {
        ps_json_object(j, NULL);
        ps_json_u64(j, "kernel", g->checks[i].kernel);
        ps_json_u64(j, "n", g->checks[i].n);
        ps_json_f64(j, "median_frac", g->checks[i].median_frac);
        ps_json_f64(j, "worst_frac", g->checks[i].worst_frac);
        ps_json_close(j);
    }
    ps_json_close(j);
    for (uint32_t i = 0; i < PS_GPU_STAT_COUNT; i++)
        json_stat(j, ps_gpu_stat_rows[i].key, ps_gpu_stat(g, i));
    ps_json_array(j, "copies");
    for (uint32_t i = 0; i < g->n_copies; i++) {
        ps_json_object(j, NULL);
        ps_json_str(j, "bus", ps_bus_name(g->copies[i].bus));
        ps_json_str(j, "kind", ps_host_kind_name(g->copies[i].kind));
        ps_json_u64(j, "bytes", g->copies[i].bytes);
        json_stat(j, "bytes_per_s", &g->copies[i].bw_bytes_per_s);
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_array(j, "together");
    for (uint32_t i = 0; i < g->n_together; i++) {
        ps_json_object(j, NULL);
        ps_json_str(j, "bus", ps_bus_name(g->together[i].bus));
        ps_json_u64(j, "n_threads", g->together[i].n_threads);
        json_stat(j, "bus_bytes_per_s", &g->together[i].bus_bytes_per_s);
        json_stat(j, "dram_bytes_per_s", &g->together[i].dram_bytes_per_s);
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_array(j, "paced");
    for (uint32_t i = 0; i < g->n_paced; i++) {
        ps_json_object(j, NULL);
        ps_json_str(j, "bus", ps_bus_name(g->paced[i].bus));
        ps_json_u64(j, "n_threads", g->paced[i].n_threads);
        ps_json_f64(j, "share_frac", g->paced[i].share_frac);
        json_stat(j, "bus_bytes_per_s", &g->paced[i].bus_bytes_per_s);
        json_stat(j, "dram_bytes_per_s", &g->paced[i].dram_bytes_per_s);
        ps_json_close(j);
    }
    ps_json_close(j);
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
    if (p->gpu.name[0])
        json_gpu(j, &p->gpu);
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
        ps_json_str(j, "beside", ps_beside_name(q->beside));
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
    const char *svg = ps_options_get(&command, values, "svg")->text;
    if (svg && ps_options_get(&command, values, "json")->set) {
        (void)ps_error_set(&err, PS_E_USAGE, "--svg",
                           "draws instead of printing: give it or --json, not both");
        return ps_tune_fail(&err);
    }
    if (ps_profile_read(args[0], &p, &err) != PS_OK)
        return ps_tune_fail(&err);
    code = 0;
    if (svg && ps_file_is_same(svg, args[0])) {
        (void)ps_error_set(&err, PS_E_USAGE, svg, "is an input; writing there would destroy it");
        code = ps_tune_fail(&err);
    } else if (svg) {
        if (ps_tune_svg(p, svg, &err) != PS_OK)
            code = ps_tune_fail(&err);
    } else if (ps_options_get(&command, values, "json")->set) {
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
