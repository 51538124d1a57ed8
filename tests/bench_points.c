/* How well a profile answers for points of the GPU's kernels that it does not hold (pstune check is for the CPU's): random ones
 * off its grid are measured on this machine and held against what the planner's cost model makes of the profile.
 * bench_points --profile FILE [--device cuda|emulated|null] [--model FILE] [--points N] [--seed S] [--time SECONDS]
 * A JSON line per point, then one with the medians. With --model the profile is of that model: its shapes stay, tokens and positions
 * are others. Exit 0: within 10% in the median and 25% for nine in ten (with --model 3% and 8%); 1: not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernel.h"
#include "model/gguf.h"
#include "plan/cost.h"
#include "profile/cpu_rig.h"
#include "profile/gpu_rig.h"
#include "profile/grid.h"
#include "profile/null_rig.h"
#include "profile/sweep.h"

enum { MOST = 500, DRAWS = 20000 };

typedef struct options {
    const char *profile, *device, *model;
    uint32_t n;
    uint64_t seed;
    double time_s;
} options;

static uint64_t rng;
static double next_unit(void) { /* splitmix64 */
    uint64_t z = (rng += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 12) + 0.5) / 4503599627370496.0;
}

/* Log-uniform between two values, in steps. */
static uint64_t between(uint64_t lo, uint64_t hi, uint64_t step) {
    if (lo >= hi)
        return lo;
    const double v = exp(log((double)lo) + next_unit() * (log((double)hi) - log((double)lo)));
    uint64_t r = (uint64_t)(v / (double)step + 0.5) * step;
    r = r < lo ? lo : r;
    return r > hi ? hi : r;
}

/* A point that the profile does not hold, inside of what it holds of a random kernel; false: none this time. */
static bool draw(const ps_profile *p, bool of_model, ps_profile_point *out) {
    const ps_profile_point *a = &p->points[(uint32_t)(next_unit() * p->n_points)];
    const ps_kernel *k = ps_kernel_find(a->kernel);
    if (!k || k->spec.device != PS_DEV_CUDA || a->beside != PS_BESIDE_IDLE)
        return false;
    ps_profile_point lo = *a, hi = *a;
    for (uint32_t i = 0; i < p->n_points; i++) {
        const ps_profile_point *q = &p->points[i];
        const bool grid = k->spec.op == PS_OP_MATMUL || q->heads_kv == a->heads_kv;
        if (q->kernel != a->kernel || q->beside != PS_BESIDE_IDLE || !grid)
            continue;
#define SPAN(member)                                                                                         \
    lo.member = q->member < lo.member ? q->member : lo.member;                                               \
    hi.member = q->member > hi.member ? q->member : hi.member
        SPAN(n_tokens);
        if (k->spec.op == PS_OP_MATMUL) {
            SPAN(rows);
        }
        if (k->spec.op == PS_OP_ATTENTION && q->rows == a->rows && q->cols == a->cols) {
            SPAN(kv_len);
        } else if (k->spec.op != PS_OP_ATTENTION && k->spec.op != PS_OP_MOE_DISPATCH &&
                   k->spec.op != PS_OP_MOE_ROUTE) {
            SPAN(cols);
        }
#undef SPAN
    }
    *out = *a;
    memset(&out->time_s, 0, sizeof out->time_s);
    out->beside_bytes_per_s = 0;
    out->n_tokens = (uint32_t)between(lo.n_tokens, hi.n_tokens, 1);
    if (!of_model) {
        out->rows = between(lo.rows, hi.rows, 32);
        out->cols = between(lo.cols, hi.cols, 256);
    }
    if (k->spec.op == PS_OP_ATTENTION)
        out->kv_len = between(lo.kv_len > out->n_tokens ? lo.kv_len : out->n_tokens, hi.kv_len, 1);
    double bytes, flops;
    ps_point_work(&k->spec, out, &bytes, &flops);
    return flops < 1e12 && bytes < 5e8;
}

/* The answer of the profile; false: it is a point of it, or beyond all of them. */
static bool answer(const ps_cost_model *m, const ps_profile_point *p, ps_cost *out) {
    const ps_cost_query q = ps_cost_query_of(p);
    return ps_cost_lookup(m, &q, out) && out->quality == PS_COST_INTERPOLATED;
}

static uint32_t draw_tasks(const ps_profile *p, const ps_cost_model *m, const options *o, ps_task *tasks) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < DRAWS && n < o->n; i++) {
        ps_profile_point q;
        ps_cost cost;
        if (!draw(p, o->model != NULL, &q) || !answer(m, &q, &cost))
            continue;
        bool again = false;
        for (uint32_t k = 0; k < n; k++)
            again |= tasks[k].point.kernel == q.kernel && tasks[k].point.n_tokens == q.n_tokens;
        if (!again)
            tasks[n++] = (ps_task){.measure = PS_MEASURE_KERNEL, .point = q, .cost_s = cost.time_s};
    }
    return n;
}

typedef struct rigs {
    ps_machine *machine;
    ps_gguf *gguf;
    ps_model *model;
    ps_cpu_rig *cpu;
    ps_device *device;
    ps_gpu_rig *gpu;
    ps_null_rig *null;
    const ps_rig_ops *ops;
    void *rig;
} rigs;

static ps_status open_rigs(const options *o, const ps_profile *p, rigs *r, ps_error *err) {
    ps_status st = PS_OK;
    if (strcmp(o->device, "null") == 0) {
        r->ops = &ps_null_rig_ops;
        st = ps_null_rig_new(&(ps_null_config){.seed = 7,
                                               .n_threads = p->topology.n_allowed,
                                               .noise_frac = 0.005,
                                               .gpu = true,
                                               .kernels = p->kernels,
                                               .n_kernels = p->n_kernels},
                             &r->null, err);
        r->rig = r->null;
        return st;
    }
    st = ps_machine_open(NULL, &r->machine, err);
    if (st == PS_OK && o->model)
        st = ps_gguf_open(o->model, &r->gguf, err);
    if (st == PS_OK && o->model)
        st = ps_model_open(r->gguf, &r->model, err);
    if (st == PS_OK)
        st = ps_cpu_rig_new(&(ps_cpu_config){.machine = r->machine,
                                             .model = r->model,
                                             .cold_bytes = ps_cpu_cold_bytes(r->machine, r->model, false)},
                            &r->cpu, err);
    r->ops = &ps_cpu_rig_ops;
    r->rig = r->cpu;
    if (st != PS_OK)
        return st;
    const bool emulated = strcmp(o->device, "emulated") == 0;
    st = ps_device_open(&(ps_device_options){.emulated = emulated, .emulated_base_bytes = 64 << 20},
                        &r->device, err);
    if (st == PS_OK)
        st = ps_gpu_rig_new(&(ps_gpu_config){.machine = r->machine,
                                             .model = r->model,
                                             .device = r->device,
                                             .cpu_ops = &ps_cpu_rig_ops,
                                             .cpu_rig = r->cpu,
                                             .timer = p->gpu.timer == PS_TIMER_CUPTI ? PS_GPU_TIMER_AUTO
                                                                                     : PS_GPU_TIMER_EVENTS},
                            &r->gpu, err);
    r->ops = emulated ? &ps_gpu_rig_emulated_ops : &ps_gpu_rig_ops;
    r->rig = r->gpu;
    return st;
}

static void close_rigs(rigs *r) {
    ps_gpu_rig_free(r->gpu);
    ps_device_close(r->device);
    ps_cpu_rig_free(r->cpu);
    ps_null_rig_free(r->null);
    ps_model_close(r->model);
    ps_gguf_close(r->gguf);
    ps_machine_close(r->machine);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints all; returns the exit code. */
static int report(const ps_profile *measured, const ps_cost_model *m, const options *o) {
    double off[MOST];
    uint32_t n = 0;
    for (uint32_t i = 0; i < measured->n_points && n < MOST; i++) {
        const ps_profile_point *q = &measured->points[i];
        ps_cost cost;
        if (!answer(m, q, &cost))
            continue;
        off[n] = fabs(cost.time_s / q->time_s.median - 1);
        printf("{\"kernel\": \"%s\", \"rows\": %llu, \"cols\": %llu, \"heads_kv\": %u, \"kv_len\": %llu, "
               "\"n_tokens\": %u, "
               "\"n_threads\": %u, \"measured_s\": %.5g, \"noisy\": %s, \"answer_s\": %.5g, \"off_frac\": "
               "%.4f}\n",
               ps_kernel_find(q->kernel)->spec.name, (unsigned long long)q->rows, (unsigned long long)q->cols,
               q->heads_kv, (unsigned long long)q->kv_len, q->n_tokens, q->n_threads, q->time_s.median,
               q->time_s.noisy ? "true" : "false", cost.time_s, off[n]);
        n++;
    }
    if (n == 0)
        return 1;
    qsort(off, n, sizeof off[0], by_value);
    const double median = off[n / 2], nine = off[(uint32_t)(0.9 * n) < n ? (uint32_t)(0.9 * n) : n - 1];
    const double most_median = o->model ? 0.03 : 0.10, most_nine = o->model ? 0.08 : 0.25;
    const bool met = median <= most_median && nine <= most_nine;
    printf("{\"points\": %u, \"median_frac\": %.4f, \"nine_in_ten_frac\": %.4f, \"target_frac\": [%g, %g], "
           "\"met\": %s}\n",
           n, median, nine, most_median, most_nine, met ? "true" : "false");
    return met ? 0 : 1;
}

int main(int argc, char **argv) {
    options o = {.device = "cuda", .n = 50, .seed = 1, .time_s = 60};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--profile") == 0)
            o.profile = value;
        else if (strcmp(name, "--device") == 0)
            o.device = value;
        else if (strcmp(name, "--model") == 0)
            o.model = value;
        else if (strcmp(name, "--points") == 0)
            o.n = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(name, "--seed") == 0)
            o.seed = strtoull(value, NULL, 10);
        else if (strcmp(name, "--time") == 0)
            o.time_s = strtod(value, NULL);
        else
            o.n = MOST + 1;
    }
    if (!o.profile || o.n == 0 || o.n > MOST || argc % 2 == 0) {
        fprintf(stderr, "bench_points: see its first lines for the options\n");
        return 64;
    }
    rng = o.seed;
    static ps_task tasks[MOST];
    ps_profile *p = NULL;
    ps_cost_model *m = NULL;
    rigs r = {0};
    ps_sweep_result result = {0};
    ps_error err = {0};
    int code = 70;
    ps_status st = ps_profile_read(o.profile, &p, &err);
    if (st == PS_OK)
        st = ps_cost_model_new(p, &m, &err);
    uint32_t n = 0;
    if (st == PS_OK && p->n_points)
        n = draw_tasks(p, m, &o, tasks);
    if (st == PS_OK && n == 0)
        st = ps_error_set(&err, PS_E_UNAVAILABLE, o.profile, "no kernel has points with room between them");
    if (st == PS_OK)
        st = open_rigs(&o, p, &r, &err);
    if (st == PS_OK)
        st = ps_sweep_run(&(ps_sweep_config){.ops = r.ops,
                                             .rig = r.rig,
                                             .kernels = p->kernels,
                                             .n_kernels = p->n_kernels,
                                             .tasks = tasks,
                                             .n_tasks = n,
                                             .mode = "points",
                                             .tool = "bench_points",
                                             .created = "",
                                             .limit_s = o.time_s,
                                             .max_task_s = 2},
                          &result, &err);
    if (st == PS_OK)
        code = report(result.profile, m, &o);
    else {
        char line[600];
        fprintf(stderr, "bench_points: %s\n", ps_error_format(&err, line, sizeof line));
        code = st == PS_E_UNAVAILABLE ? 69 : 70;
    }
    ps_sweep_free(&result);
    close_rigs(&r);
    ps_cost_model_free(m);
    ps_profile_free(p);
    return code;
}
