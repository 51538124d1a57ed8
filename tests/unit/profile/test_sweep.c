/* The sweep on the null rig: the profiler must find the truth of a machine whose truth is known, within its time. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profile/grid.h"
#include "profile/null_rig.h"
#include "profile/sweep.h"
#include "profile/visits.h"

/* A catalogue of every operation, two products per type. */
static uint32_t make_kernels(ps_kernel_spec *out) {
    static const ps_dtype types[] = {PS_DTYPE_F32,  PS_DTYPE_F16,  PS_DTYPE_Q4_0, PS_DTYPE_Q4_1,
                                     PS_DTYPE_Q8_0, PS_DTYPE_Q4_K, PS_DTYPE_Q6_K};
    static const ps_op others[] = {PS_OP_RMSNORM, PS_OP_ROPE,   PS_OP_KV_STORE, PS_OP_ATTENTION,
                                   PS_OP_GLU,     PS_OP_ADD,    PS_OP_GATHER,   PS_OP_MOE_ROUTE,
                                   PS_OP_SAMPLE,  PS_OP_CONVERT};
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        for (uint32_t wide = 0; wide < 3; wide++) {
            ps_kernel_spec *k = &out[n];
            *k = (ps_kernel_spec){.id = 100 + n,
                                  .op = wide == 2 ? PS_OP_MOE_DISPATCH : PS_OP_MATMUL,
                                  .wtype = types[i],
                                  .in_fmt = PS_FMT_F32,
                                  .out_fmt = PS_FMT_F32,
                                  .device = PS_DEV_CPU,
                                  .min_tokens = wide == 1 ? 9 : 1,
                                  .max_tokens = wide == 0 ? 8 : UINT32_MAX};
            snprintf(k->name, sizeof k->name, "null.%u.%s", wide, ps_dtype_find(types[i])->name);
            n++;
        }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        out[n] = (ps_kernel_spec){.id = 100 + n,
                                  .op = others[i],
                                  .wtype = PS_DTYPE_NONE,
                                  .in_fmt = PS_FMT_F32,
                                  .out_fmt = PS_FMT_F32,
                                  .device = PS_DEV_CPU,
                                  .min_tokens = 1,
                                  .max_tokens = others[i] == PS_OP_ATTENTION ? 15 : UINT32_MAX};
        snprintf(out[n].name, sizeof out[n].name, "null.%s", ps_op_get(others[i])->name);
        n++;
    }
    return n;
}

typedef struct fixture {
    ps_kernel_spec kernels[64];
    uint32_t n_kernels;
    ps_task *tasks;
    uint32_t n_tasks;
    ps_null_rig *rig;
    ps_sweep_config sweep;
    ps_error err;
    uint32_t n_saves;
    uint64_t stop_after;
    ps_profile *saved;
} fixture;

static bool stop_after(void *ctx) {
    const fixture *f = ctx;
    return f->stop_after && ps_null_samples(f->rig) >= f->stop_after;
}

static ps_status save(void *ctx, const ps_profile *p, ps_error *err) {
    fixture *f = ctx;
    char *text;
    uint64_t size;
    f->n_saves++;
    cr_expect_not(p->complete);
    /* What is saved must read back at any time. */
    ps_status st = ps_profile_format(p, &text, &size, err);
    if (st == PS_OK) {
        ps_profile_free(f->saved);
        f->saved = NULL;
        st = ps_profile_parse(text, size, "saved", &f->saved, err);
        free(text);
    }
    cr_expect_eq(st, PS_OK, "%s: %s", err->subject, err->message);
    return st;
}

static fixture *setup(bool quick, uint32_t n_threads, double noise, double outliers, double limit_s) {
    fixture *f = calloc(1, sizeof *f);
    f->n_kernels = make_kernels(f->kernels);
    const ps_grid_config grid = {
        .kernels = f->kernels, .n_kernels = f->n_kernels, .n_threads = n_threads, .quick = quick};
    cr_assert_eq(ps_grid_make(&grid, &f->tasks, &f->n_tasks, &f->err), PS_OK);
    const ps_null_config config = {.seed = 7,
                                   .n_threads = n_threads,
                                   .noise_frac = noise,
                                   .outlier_frac = outliers,
                                   .disturbed_frac = outliers,
                                   .kernels = f->kernels,
                                   .n_kernels = f->n_kernels};
    cr_assert_eq(ps_null_rig_new(&config, &f->rig, &f->err), PS_OK);
    f->sweep = (ps_sweep_config){.ops = &ps_null_rig_ops,
                                 .rig = f->rig,
                                 .kernels = f->kernels,
                                 .n_kernels = f->n_kernels,
                                 .tasks = f->tasks,
                                 .n_tasks = f->n_tasks,
                                 .mode = quick ? "quick" : "default",
                                 .tool = "test",
                                 .created = "2026-01-01T00:00:00Z",
                                 .limit_s = limit_s,
                                 .max_task_s = 2,
                                 .save_every_s = 3,
                                 .save = save,
                                 .stop = stop_after,
                                 .ctx = f};
    return f;
}

static void teardown(fixture *f) {
    ps_profile_free(f->saved);
    ps_null_rig_free(f->rig);
    free(f->tasks);
    free(f);
}

/* Every quantity of the profile against the truth. */
static void count_errors(const fixture *f, const ps_profile *p, uint32_t *n, uint32_t *over1, uint32_t *over3,
                         double *worst_beside) {
    *n = *over1 = *over3 = 0;
    *worst_beside = 0;
    for (uint32_t i = 0; i < f->n_tasks; i++) {
        const ps_task *t = &f->tasks[i];
        const ps_stat *found = t->measure == PS_MEASURE_BARRIER      ? &p->barrier_s
                               : t->measure == PS_MEASURE_POOL_START ? &p->pool_start_s
                                                                     : NULL;
        double beside_found = 0, beside;
        for (uint32_t k = 0; t->measure == PS_MEASURE_DRAM && k < p->n_dram; k++)
            if (p->dram[k].n_threads == t->point.n_threads)
                found = &p->dram[k].bw_bytes_per_s;
        for (uint32_t k = 0; t->measure == PS_MEASURE_KERNEL && k < p->n_points; k++) {
            const ps_profile_point *q = &p->points[k];
            if (q->kernel == t->point.kernel && q->rows == t->point.rows && q->cols == t->point.cols &&
                q->heads_kv == t->point.heads_kv && q->kv_len == t->point.kv_len &&
                q->n_tokens == t->point.n_tokens && q->n_threads == t->point.n_threads &&
                q->beside == t->point.beside) {
                cr_expect_null(found, "measured twice");
                found = &q->time_s;
                beside_found = q->beside_bytes_per_s;
            }
        }
        if (!found)
            continue;
        const double truth = ps_null_truth(f->rig, t, &beside);
        const double off = fabs(found->median / truth - 1);
        (*n)++;
        *over1 += off > 0.01;
        *over3 += off > 0.03;
        if (beside > 0)
            *worst_beside = fmax(*worst_beside, fabs(beside_found / beside - 1));
    }
}

Test(sweep, recovers_the_truth_of_the_null_device) {
    fixture *f = setup(false, 8, 0.015, 0.03, 540);
    ps_sweep_result r;
    cr_assert_eq(ps_sweep_run(&f->sweep, &r, &f->err), PS_OK, "%s %s", f->err.subject, f->err.message);
    uint32_t n, over1, over3;
    double beside;
    count_errors(f, r.profile, &n, &over1, &over3, &beside);
    cr_log_info("%u quantities, %u over 1%%, %u over 3%%, beside %.3f", n, over1, over3, beside);
    cr_expect_eq(n, f->n_tasks, "all %u tasks are in the profile, found %u", f->n_tasks, n);
    cr_expect_eq(r.n_left_out, 0);
    cr_expect_leq(over1 * 20, n, "%u of %u medians are more than 1%% off", over1, n);
    cr_expect_eq(over3, 0, "%u medians are more than 3%% off", over3);
    cr_expect_lt(beside, 0.03, "rate beside is %.1f%% off", beside * 100);
    cr_expect(r.profile->complete);
    cr_expect(r.profile->synthetic);
    cr_expect_lt((double)ps_null_rig_ops.now_ns(f->rig) * 1e-9, 541);
    cr_expect_eq(ps_profile_validate(r.profile, &f->err), PS_OK, "%s: %s", f->err.subject, f->err.message);
    cr_expect_gt(f->n_saves, 10);
    ps_sweep_free(&r);
    teardown(f);
}

Test(sweep, more_noise_still_within_bounds) {
    fixture *f = setup(true, 4, 0.03, 0.04, 5000); /* nobody waits for it */
    f->sweep.max_task_s = 30;
    ps_sweep_result r;
    cr_assert_eq(ps_sweep_run(&f->sweep, &r, &f->err), PS_OK);
    uint32_t n, over1, over3;
    double beside;
    count_errors(f, r.profile, &n, &over1, &over3, &beside);
    cr_expect_leq(over1 * 20, n, "%u of %u", over1, n);
    cr_expect_eq(over3, 0);
    ps_sweep_free(&r);
    teardown(f);
}

/* A core that is shared for a quarter of the time: samples are longer, and nothing else tells. */
Test(sweep, samples_slowed_by_another_guest_do_not_count) {
    fixture *f = setup(true, 4, 0.015, 0.25, 1000); /* nobody waits for it */
    ps_sweep_result r;
    cr_assert_eq(ps_sweep_run(&f->sweep, &r, &f->err), PS_OK);
    uint32_t n, over1, over3;
    double beside;
    count_errors(f, r.profile, &n, &over1, &over3, &beside);
    cr_log_info("%u quantities, %u over 1%%, %u over 3%%, %u noisy", n, over1, over3, r.n_noisy);
    cr_expect_leq(over1 * 20, n, "%u of %u", over1, n);
    cr_expect_eq(over3, 0);
    cr_expect_leq(r.n_noisy * 20, n);
    ps_sweep_free(&r);
    teardown(f);
}

/* Other work that comes and goes and that no sample tells of: entries that it met are found out by their other visits, and what is not
 * marked is right; of three visits all meet it by chance in 0.3^3. */
static void under_other_work(bool clock, double frac, double *out_noisy_frac) {
    fixture *f = setup(false, 4, 0.015, 0.02, 540);
    ps_null_rig *busy;
    const ps_null_config config = {.seed = 7,
                                   .n_threads = 4,
                                   .noise_frac = 0.015,
                                   .outlier_frac = 0.02,
                                   .kernels = f->kernels,
                                   .n_kernels = f->n_kernels,
                                   .busy_period_s = 17,
                                   .busy_frac = frac,
                                   .busy_times = 1.4,
                                   .busy_clock = clock};
    cr_assert_eq(ps_null_rig_new(&config, &busy, &f->err), PS_OK);
    f->sweep.rig = busy;
    ps_sweep_result r;
    cr_assert_eq(ps_sweep_run(&f->sweep, &r, &f->err), PS_OK);
    uint32_t n = 0, off = 0;
    for (uint32_t i = 0; i < f->n_tasks; i++) {
        const ps_task *t = &f->tasks[i];
        for (uint32_t k = 0; t->measure == PS_MEASURE_KERNEL && k < r.profile->n_points; k++) {
            const ps_profile_point *q = &r.profile->points[k];
            if (q->kernel != t->point.kernel || q->rows != t->point.rows || q->cols != t->point.cols ||
                q->kv_len != t->point.kv_len || q->n_tokens != t->point.n_tokens ||
                q->heads_kv != t->point.heads_kv || q->n_threads != t->point.n_threads ||
                q->beside != t->point.beside)
                continue;
            double beside;
            n++;
            off += !q->time_s.noisy && fabs(q->time_s.median / ps_null_truth(busy, t, &beside) - 1) > 0.05;
        }
    }
    *out_noisy_frac = (double)r.n_noisy / f->n_tasks;
    cr_log_info("%u points, %u quiet ones wrong, %.0f%% noisy", n, off, 100 * *out_noisy_frac);
    cr_expect_gt(n, 500);
    cr_expect_leq(off * 40, n, "%u of %u points that are not marked are wrong by more than 5%%", off, n);
    ps_sweep_free(&r);
    ps_null_rig_free(busy);
    teardown(f);
}

Test(sweep, other_work_that_comes_and_goes) {
    double noisy;
    under_other_work(false, 0.3, &noisy);
    cr_expect_lt(noisy, 0.1);
    under_other_work(true, 0.3, &noisy);
    cr_expect_lt(noisy, 0.1);
}

Test(visits, the_quickest_that_agree_count) {
    const ps_stat quiet = {.n = 20, .median = 1, .q1 = 0.99, .q3 = 1.01, .stop = PS_STOP_CONVERGED};
    ps_stat s = quiet;
    ps_visits v = {0};
    ps_visits_add(&v, &(ps_visit){.stat = s, .beside = 5, .clock_s = 1});
    cr_expect_not(ps_visits_settled(&v, INFINITY));
    cr_expect_not(ps_visits_result(&v, INFINITY).stat.noisy, "a single visit is what it says itself");
    cr_expect(ps_visits_result(&v, 0.9).stat.noisy, "but not at a lowered clock");
    s.median = 1.2; /* a disturbed one */
    ps_visits_add(&v, &(ps_visit){.stat = s, .beside = 3, .clock_s = 1});
    cr_expect_not(ps_visits_settled(&v, INFINITY));
    ps_visit r = ps_visits_result(&v, INFINITY);
    cr_expect(r.stat.noisy && r.stat.median == 1 && r.stat.n == 20 && r.beside == 5);
    s.median = 1.03;
    s.n = 40;
    ps_visits_add(&v, &(ps_visit){.stat = s, .beside = 2, .clock_s = 1});
    cr_expect(ps_visits_settled(&v, INFINITY));
    r = ps_visits_result(&v, INFINITY);
    cr_expect_not(r.stat.noisy);
    cr_expect_float_eq(r.stat.median, 1.015, 1e-12);
    cr_expect_float_eq(r.beside, 3.5, 1e-12);
    cr_expect_eq(r.stat.n, 60);
    v.visit[2].starved = true; /* it agrees, but proves nothing */
    cr_expect_not(ps_visits_settled(&v, INFINITY));
    cr_expect(ps_visits_result(&v, INFINITY).stat.noisy);
    v.visit[2].starved = false;
    /* One at a lowered clock does not count while others are left. */
    s.median = 0.5;
    ps_visits_add(&v, &(ps_visit){.stat = s, .clock_s = 2});
    cr_expect(ps_visits_settled(&v, 1.5));
    cr_expect_float_eq(ps_visits_result(&v, 1.5).stat.median, 1.015, 1e-12);
    cr_expect_not(ps_visits_settled(&v, INFINITY));
    /* Full: the slowest goes. */
    for (int i = 0; i < 10; i++) {
        s.median = 0.9 + 0.001 * i;
        ps_visits_add(&v, &(ps_visit){.stat = s, .clock_s = 1});
    }
    cr_expect_eq(v.n, PS_VISITS);
    for (uint32_t i = 0; i < v.n; i++)
        cr_expect_leq(v.visit[i].stat.median, 0.91);
    /* What was measured at the same time must agree as well. */
    ps_visits both = {0};
    ps_visits_add(&both, &(ps_visit){.stat = quiet, .other = quiet});
    s = quiet;
    s.median = 1.3;
    ps_visits_add(&both, &(ps_visit){.stat = quiet, .other = s});
    cr_expect_not(ps_visits_settled(&both, INFINITY));
    double room[8];
    cr_expect_float_eq(ps_clock_limit((const double[]){4, 1, 1, 1, 1, 1, 4, 4}, 8, room), 1.08, 1e-12);
    cr_expect(isinf(ps_clock_limit(NULL, 0, room)));
}

Test(sweep, quick_keeps_to_its_time_on_two_cores) {
    fixture *f = setup(true, 2, 0.02, 0.05, 50);
    ps_sweep_result r;
    cr_assert_eq(ps_sweep_run(&f->sweep, &r, &f->err), PS_OK);
    cr_expect_lt((double)ps_null_rig_ops.now_ns(f->rig) * 1e-9, 51);
    cr_expect_lt(r.n_left_out * 10, f->n_tasks, "%u of %u left out", r.n_left_out, f->n_tasks);
    ps_sweep_free(&r);
    teardown(f);
}

Test(sweep, too_little_time_leaves_points_out_and_says_so) {
    fixture *f = setup(false, 8, 0.02, 0.05, 3);
    ps_sweep_result r;
    cr_assert_eq(ps_sweep_run(&f->sweep, &r, &f->err), PS_OK);
    cr_expect_gt(r.n_left_out, 0);
    cr_expect_lt((double)ps_null_rig_ops.now_ns(f->rig) * 1e-9, 4);
    char text[64];
    snprintf(text, sizeof text, "%u left out for lack of time", r.n_left_out);
    cr_expect(strstr(r.profile->note, text), "%s", r.profile->note);
    ps_sweep_free(&r);
    teardown(f);
}

/* However short the time, no kernel goes without a curve before others get all their points. */
Test(sweep, every_kernel_comes_before_any_is_complete) {
    fixture *f = setup(false, 8, 0.02, 0.05, 8);
    ps_sweep_result r;
    cr_assert_eq(ps_sweep_run(&f->sweep, &r, &f->err), PS_OK);
    cr_expect_gt(r.n_left_out, f->n_tasks / 8, "%u of %u", r.n_left_out, f->n_tasks);
    for (uint32_t k = 0; k < f->n_kernels; k++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < r.profile->n_points; i++)
            n += r.profile->points[i].kernel == f->kernels[k].id;
        cr_expect_geq(n, 2, "%s has %u points", f->kernels[k].name, n);
    }
    ps_sweep_free(&r);
    teardown(f);
}

Test(sweep, same_seed_same_profile) {
    char *text[2];
    uint64_t size[2];
    for (int i = 0; i < 2; i++) {
        fixture *f = setup(true, 4, 0.02, 0.05, 50);
        ps_sweep_result r;
        cr_assert_eq(ps_sweep_run(&f->sweep, &r, &f->err), PS_OK);
        cr_assert_eq(ps_profile_format(r.profile, &text[i], &size[i], &f->err), PS_OK);
        ps_sweep_free(&r);
        teardown(f);
    }
    cr_expect_eq(size[0], size[1]);
    cr_expect_str_eq(text[0], text[1]);
    free(text[0]);
    free(text[1]);
}

/* Stopped at many places: what was saved is taken over, nothing is measured twice, and the end is whole. */
Test(sweep, resumes_after_a_stop_anywhere) {
    for (uint64_t at = 1; at < 60000; at = at * 5 + 3) {
        fixture *f = setup(true, 4, 0.02, 0.05, 50);
        f->stop_after = at;
        f->sweep.save_every_s = 0;
        ps_sweep_result r;
        cr_assert_eq(ps_sweep_run(&f->sweep, &r, &f->err), PS_OK);
        if (!r.stopped) {
            ps_sweep_free(&r);
            teardown(f);
            break;
        }
        cr_expect_not(r.profile->complete);
        const uint32_t had = r.n_measured;
        cr_expect_eq(ps_profile_validate(r.profile, &f->err), PS_OK, "%s: %s", f->err.subject,
                     f->err.message);

        fixture *g = setup(true, 4, 0.02, 0.05, 50);
        g->sweep.resume = r.profile;
        cr_expect(ps_sweep_can_resume(r.profile, &g->sweep));
        ps_sweep_result r2;
        cr_assert_eq(ps_sweep_run(&g->sweep, &r2, &g->err), PS_OK);
        cr_expect_eq(r2.n_resumed, had);
        cr_expect_eq(r2.n_measured + r2.n_resumed + r2.n_left_out, g->n_tasks);
        cr_expect(r2.profile->complete);
        uint32_t n, over1, over3;
        double beside;
        count_errors(g, r2.profile, &n, &over1, &over3, &beside);
        cr_expect_eq(n + r2.n_left_out, g->n_tasks);
        cr_expect_leq(over3 * 50, n);
        /* Another mode, machine or kernel set starts afresh. */
        g->sweep.mode = "default";
        cr_expect_not(ps_sweep_can_resume(r.profile, &g->sweep));
        g->sweep.mode = "quick";
        g->sweep.n_kernels--;
        cr_expect_not(ps_sweep_can_resume(r.profile, &g->sweep));
        g->sweep.n_kernels++;
        cr_expect_not(ps_sweep_can_resume(r2.profile, &g->sweep), "a complete profile is not resumed");
        ps_sweep_free(&r);
        ps_sweep_free(&r2);
        teardown(f);
        teardown(g);
    }
}

Test(sweep, a_failing_rig_is_an_error_that_keeps_what_was_measured) {
    fixture *f = setup(true, 4, 0.02, 0.05, 50);
    ps_null_rig *bad;
    const ps_null_config config = {
        .seed = 7, .n_threads = 4, .kernels = f->kernels, .n_kernels = f->n_kernels, .fail_after = 500};
    cr_assert_eq(ps_null_rig_new(&config, &bad, &f->err), PS_OK);
    f->sweep.rig = bad;
    ps_sweep_result r;
    cr_expect_eq(ps_sweep_run(&f->sweep, &r, &f->err), PS_E_OS);
    cr_expect_gt(r.n_measured, 10);
    cr_expect_not(r.profile->complete);
    ps_sweep_free(&r);
    ps_null_rig_free(bad);
    teardown(f);
}

Test(grid, no_duplicates_and_within_kernels_ranges) {
    fixture *f = setup(false, 8, 0, 0, 1);
    for (uint32_t i = 0; i < f->n_tasks; i++) {
        const ps_task *t = &f->tasks[i];
        if (t->measure != PS_MEASURE_KERNEL)
            continue;
        const ps_kernel_spec *k = &f->kernels[t->point.kernel - 100];
        cr_expect(t->point.n_tokens >= k->min_tokens && t->point.n_tokens <= k->max_tokens, "%s at %u tokens",
                  k->name, t->point.n_tokens);
        cr_expect_leq(t->point.n_threads, 8);
        cr_expect_gt(t->cost_s, 0);
    }
    /* Where another kernel goes on there is a point on either side. */
    for (uint32_t k = 0; k < f->n_kernels; k++) {
        bool least = false, most = f->kernels[k].max_tokens > 512;
        for (uint32_t i = 0; i < f->n_tasks; i++) {
            const ps_profile_point *p = &f->tasks[i].point;
            if (f->tasks[i].measure != PS_MEASURE_KERNEL || p->kernel != f->kernels[k].id)
                continue;
            least |= p->n_tokens == f->kernels[k].min_tokens;
            most |= p->n_tokens == f->kernels[k].max_tokens;
        }
        cr_expect(least && most, "%s", f->kernels[k].name);
    }
    cr_log_info("%u tasks", f->n_tasks);
    teardown(f);
    for (uint32_t threads = 1; threads <= 96; threads++) {
        fixture *q = setup(true, threads, 0, 0, 1);
        cr_expect_lt(q->n_tasks, 1500);
        bool all = false;
        for (uint32_t i = 0; i < q->n_tasks; i++) {
            cr_expect_leq(q->tasks[i].point.n_threads, threads);
            all |= q->tasks[i].measure == PS_MEASURE_KERNEL && q->tasks[i].point.n_threads == threads;
        }
        cr_expect(all);
        teardown(q);
    }
}
