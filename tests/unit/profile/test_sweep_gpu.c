/* The sweep with a GPU on the null rig, with this build's kernels: the truth comes back, the profile stays small, and a quick
 * run has time for all of it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/kernel.h"
#include "profile/grid.h"
#include "profile/null_rig.h"
#include "profile/sweep.h"

typedef struct fixture {
    ps_kernel_spec *kernels;
    ps_task *tasks;
    ps_null_rig *rig;
    ps_sweep_config sweep;
    ps_sweep_result result;
    ps_error err;
} fixture;

static fixture *run(bool quick, uint32_t n_threads, double limit_s) {
    fixture *f = calloc(1, sizeof *f);
    uint32_t n;
    const ps_kernel *table = ps_kernel_table(&n);
    f->kernels = calloc(n, sizeof *f->kernels);
    for (uint32_t i = 0; i < n; i++)
        f->kernels[i] = table[i].spec;
    const ps_grid_config grid = {.kernels = f->kernels,
                                 .n_kernels = n,
                                 .n_threads = n_threads,
                                 .gpu = true,
                                 .blas = true,
                                 .quick = quick};
    const ps_null_config config = {.seed = 11,
                                   .n_threads = n_threads,
                                   .noise_frac = 0.015,
                                   .outlier_frac = 0.03,
                                   .disturbed_frac = 0.03,
                                   .gpu = true,
                                   .kernels = f->kernels,
                                   .n_kernels = n};
    f->sweep = (ps_sweep_config){.ops = &ps_null_rig_ops,
                                 .kernels = f->kernels,
                                 .n_kernels = n,
                                 .mode = quick ? "quick" : "default",
                                 .tool = "test",
                                 .created = "2026-01-01T00:00:00Z",
                                 .limit_s = limit_s,
                                 .max_task_s = quick ? 0.3 : 2};
    cr_assert_eq(ps_grid_make(&grid, &f->tasks, &f->sweep.n_tasks, &f->err), PS_OK);
    cr_assert_eq(ps_null_rig_new(&config, &f->rig, &f->err), PS_OK);
    f->sweep.tasks = f->tasks;
    f->sweep.rig = f->rig;
    cr_assert_eq(ps_sweep_run(&f->sweep, &f->result, &f->err), PS_OK, "%s %s", f->err.subject,
                 f->err.message);
    cr_assert_eq(ps_profile_validate(f->result.profile, &f->err), PS_OK, "%s: %s", f->err.subject,
                 f->err.message);
    return f;
}

static void end(fixture *f) {
    ps_sweep_free(&f->result);
    ps_null_rig_free(f->rig);
    free(f->tasks);
    free(f->kernels);
    free(f);
}

/* Where the result of a task of the GPU is; *out_beside: of what ran beside. */
static const ps_stat *result_of(const ps_profile *p, const ps_task *t, const ps_stat **out_beside) {
    const ps_profile_gpu *g = &p->gpu;
    *out_beside = NULL;
    switch (t->measure) {
    case PS_MEASURE_HBM:
        return &g->hbm_read_bytes_per_s;
    case PS_MEASURE_LAUNCH:
        return &g->launch_s;
    case PS_MEASURE_GRAPH_NODE:
        return &g->graph_node_s;
    case PS_MEASURE_GRAPH_LAUNCH:
        return &g->graph_launch_s;
    case PS_MEASURE_EVENT_WAIT:
        return &g->event_wait_s;
    case PS_MEASURE_TO_CPU:
        return &g->to_cpu_s;
    case PS_MEASURE_TO_GPU:
        return &g->to_gpu_s;
    case PS_MEASURE_LOCK:
        return &g->lock_bytes_per_s;
    case PS_MEASURE_MAP:
        return &g->map_s;
    case PS_MEASURE_UNMAP:
        return &g->unmap_s;
    case PS_MEASURE_EVENT_RECORD:
        return &g->event_record_s;
    case PS_MEASURE_LEVEL:
        return &g->level_bytes_per_s;
    case PS_MEASURE_HBM_FULL:
        return &g->hbm_full_bytes_per_s;
    case PS_MEASURE_COPY:
        for (uint32_t i = 0; i < g->n_copies; i++)
            if (g->copies[i].bus == t->bus && g->copies[i].kind == t->kind && g->copies[i].bytes == t->bytes)
                return &g->copies[i].bw_bytes_per_s;
        return NULL;
    case PS_MEASURE_TOGETHER:
        for (uint32_t i = 0; i < g->n_together; i++)
            if (g->together[i].bus == t->bus && g->together[i].n_threads == t->point.n_threads) {
                *out_beside = &g->together[i].dram_bytes_per_s;
                return &g->together[i].bus_bytes_per_s;
            }
        return NULL;
    case PS_MEASURE_PACED:
        for (uint32_t i = 0; i < g->n_paced; i++)
            if (g->paced[i].bus == t->bus && g->paced[i].n_threads == t->point.n_threads &&
                g->paced[i].share_frac == t->share_frac) {
                *out_beside = &g->paced[i].dram_bytes_per_s;
                return &g->paced[i].bus_bytes_per_s;
            }
        return NULL;
    case PS_MEASURE_KERNEL:
        for (uint32_t i = 0; i < p->n_points; i++) {
            const ps_profile_point *q = &p->points[i];
            if (q->kernel == t->point.kernel && q->rows == t->point.rows && q->cols == t->point.cols &&
                q->heads_kv == t->point.heads_kv && q->kv_len == t->point.kv_len &&
                q->n_tokens == t->point.n_tokens && q->n_threads == t->point.n_threads &&
                q->beside == t->point.beside)
                return &q->time_s;
        }
        return NULL;
    default:
        return NULL;
    }
}

static bool on_gpu(const ps_task *t) {
    if (t->measure != PS_MEASURE_KERNEL)
        return t->measure >= PS_MEASURE_PACED;
    const ps_kernel *k = ps_kernel_find(t->point.kernel);
    return k != NULL && k->spec.device == PS_DEV_CUDA;
}

Test(sweep_gpu, recovers_the_truth_of_the_null_gpu) {
    fixture *f = run(false, 8, 540);
    uint32_t n = 0, n_beside = 0, over1 = 0, over3 = 0;
    for (uint32_t i = 0; i < f->sweep.n_tasks; i++) {
        const ps_task *t = &f->tasks[i];
        if (!on_gpu(t))
            continue;
        double beside_truth;
        const ps_stat *beside, *found = result_of(f->result.profile, t, &beside);
        cr_assert(found != NULL && found->n != 0, "task %u: measure %d", i, (int)t->measure);
        const double off = fabs(found->median / ps_null_truth(f->rig, t, &beside_truth) - 1);
        n++;
        over1 += off > 0.01;
        over3 += off > 0.03;
        if (!beside)
            continue;
        n_beside++;
        cr_expect_lt(fabs(beside->median / beside_truth - 1), 0.03, "beside, task %u", i);
    }
    cr_expect_gt(n, 700);
    cr_expect_gt(n_beside, 5);
    cr_expect_eq(f->result.profile->gpu.n_paced, 8, "both ways at 1, 2, 4 and 8 threads");
    cr_expect_leq(over1 * 20, n, "%u of %u medians are more than 1%% off", over1, n);
    cr_expect_eq(over3, 0, "%u medians are more than 3%% off", over3);
    cr_expect_eq(f->result.n_left_out, 0);
    /* The best rate of any product, from the points. */
    cr_expect_gt(f->result.profile->gpu.matmul_flops_per_s.median, 1e13);
    end(f);
}

Test(sweep_gpu, a_profile_stays_under_256_kilobytes) {
    static const uint32_t threads[] = {2, 8, 16, 64};
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        fixture *f = run(false, threads[i], 1e5); /* nobody waits for it */
        char *text;
        uint64_t size;
        cr_assert_eq(ps_profile_format(f->result.profile, &text, &size, &f->err), PS_OK);
        cr_expect_lt(size, 256000, "%llu bytes with %u threads", (unsigned long long)size, threads[i]);
        free(text);
        end(f);
    }
}

static uint32_t points_at(const ps_profile *p, uint32_t kernel, uint32_t n_tokens, ps_beside beside) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_points; i++)
        n += p->points[i].kernel == kernel && p->points[i].n_tokens == n_tokens &&
             p->points[i].beside == beside;
    return n;
}

Test(sweep_gpu, a_quick_run_has_time_for_everything) {
    fixture *f = run(true, 16, 48);
    const ps_profile *p = f->result.profile;
    cr_expect_lt(f->sweep.n_tasks, 1000);
    cr_expect_eq(f->result.n_left_out, 0);
    cr_expect_lt((double)ps_null_rig_ops.now_ns(f->rig) * 1e-9, 49);
    for (uint32_t k = 0; k < p->n_kernels; k++) {
        const ps_kernel_spec *s = &p->kernels[k];
        if (s->device != PS_DEV_CUDA || s->op == PS_OP_SAMPLE)
            continue;
        const uint32_t shapes = s->op == PS_OP_MATMUL ? 2 : 1;
        const uint32_t tokens[] = {1, 8, 256, 2048};
        for (int t = 0; t < 4; t++) {
            const bool few = s->op == PS_OP_GATHER && tokens[t] > 8;
            const bool row = s->op != PS_OP_MATMUL && s->op != PS_OP_MOE_DISPATCH &&
                             s->op != PS_OP_ATTENTION && s->op != PS_OP_GATHER && t % 3 != 0;
            if (tokens[t] < s->min_tokens || tokens[t] > s->max_tokens || few || row)
                continue;
            cr_expect_geq(points_at(p, s->id, tokens[t], PS_BESIDE_IDLE), shapes, "%s at %u tokens", s->name,
                          tokens[t]);
        }
        if ((s->op == PS_OP_MATMUL || s->op == PS_OP_MOE_DISPATCH) && s->min_tokens == 1)
            cr_expect_geq(points_at(p, s->id, 1, PS_BESIDE_DIRECT), 1, "%s read direct", s->name);
    }
    end(f);
}
