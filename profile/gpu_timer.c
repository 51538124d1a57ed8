/* How the GPU rig tells the time of kernels and copies: by CUPTI's records where they can be had and trusted, else by CUDA events.
 *
 * An event around a run of calls sees what a run pays: the calls and the gaps between them, and the launch of the graph once.
 * CUPTI sees each call alone, but makes the gaps wider while it looks. So by CUPTI a call takes what it was busy, and for each of
 * its kernels the gap from one node of a graph to the next: that is measured once, as what a small kernel takes in a graph by
 * events (CUPTI off) less what CUPTI says that it ran. Copies are one behind the other in a run as well: there it is the whole
 * span. Points of more than 20 us are timed both ways, some of each kernel, and the difference goes into the profile. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "profile/gpu_rig_internal.h"

enum { N_TRIES = 3, N_BY_EVENTS = 3, N_CALIBRATE = 5 };
static const double least_s = 20e-6;    /* of a point that is timed both ways */
static const double most_spent_s = 20;  /* on that, in all */
static const uint64_t least_copy = MIB; /* smaller ones take no longer than CUPTI's work between them */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static bool covers(const ps_task *t) {
    return (t->measure == PS_MEASURE_KERNEL && !ps_gpu_is_beside(t)) ||
           (t->measure == PS_MEASURE_COPY && t->bytes >= least_copy &&
            (t->kind == PS_HOST_KIND_PINNED || t->kind == PS_HOST_KIND_REGISTERED));
}

/* No more CUPTI, because of *why. Where nothing else would do that is an error. */
static ps_status give_up(ps_gpu_rig *r, const ps_error *why, ps_error *err) {
    ps_gpu_timer *t = &r->timer;
    char from[48] = "";
    const char *slash = strrchr(why->subject, '/');
    if (t->n_points)
        snprintf(from, sizeof from, "CUPTI for the first %u points, then ", t->n_points);
    snprintf(t->reason, sizeof t->reason, "%s%.30s: %.80s", from, slash ? slash + 1 : why->subject,
             why->message);
    ps_cupti_close(t->cupti);
    t->cupti = NULL;
    if (!t->required)
        return PS_OK;
    if (err)
        *err = *why;
    return why->status;
}

ps_status ps_gpu_timer_open(ps_gpu_rig *r, const ps_gpu_config *c, ps_error *err) {
    ps_gpu_timer *t = &r->timer;
    ps_error why = {0};
    uint32_t n_kernels;
    ps_kernel_table(&n_kernels);
    t->required = c->timer == PS_GPU_TIMER_CUPTI;
    t->differences = calloc(n_kernels + 1, sizeof *t->differences);
    if (!t->differences)
        return ps_error_set(err, PS_E_NOMEM, "gpu", "no memory for the timer");
    if (c->timer == PS_GPU_TIMER_EVENTS) {
        snprintf(t->reason, sizeof t->reason, "events were asked for");
        return PS_OK;
    }
    if (ps_device_get_info(r->device)->emulated && !c->cupti_library) {
        ps_error_set(&why, PS_E_UNAVAILABLE, r->info.name, "CUPTI knows no emulated device");
        return give_up(r, &why, err);
    }
    if (ps_cupti_open(c->cupti_library, c->cuda_home, &t->cupti, &why) != PS_OK)
        return give_up(r, &why, err);
    return PS_OK;
}

void ps_gpu_timer_close(ps_gpu_rig *r) {
    ps_cupti_close(r->timer.cupti);
    r->timer.cupti = NULL;
    free(r->timer.differences);
    r->timer.differences = NULL;
}

/* ---- one sample ---- */
static ps_status by_events(ps_gpu_rig *r, ps_gpu_run *run, double *out_s, ps_error *err) {
    ps_status status = ps_gpu_start_time(r, err);
    if (status == PS_OK)
        status = run(r, err);
    return ps_gpu_timed(r, out_s, status, err);
}

/* Whether the sample could be had is *why->status; the result is that of the device. */
static ps_status by_cupti(ps_gpu_rig *r, ps_gpu_run *run, uint32_t multiple, ps_cupti_sum *out, ps_error *why,
                          ps_error *err) {
    ps_gpu_timer *t = &r->timer;
    ps_status status = PS_OK;
    for (int i = 0; i < N_TRIES && status == PS_OK; i++) {
        *why = (ps_error){0};
        ps_status st = ps_cupti_begin(t->cupti, why);
        if (st == PS_OK) {
            status = run(r, err);
            if (status == PS_OK)
                status = ps_device_sync(r->device, err);
            st = ps_cupti_end(t->cupti, multiple, out, why);
        }
        why->status = st;
        if (st != PS_E_DATA)
            break;
    }
    if (status == PS_OK && __atomic_load_n(&r->emulated_status, __ATOMIC_ACQUIRE) != PS_OK)
        status = ps_error_set(err, PS_E_INTERNAL, "gpu", "a kernel failed on the emulated device");
    return status;
}

ps_status ps_gpu_timer_sample(ps_gpu_rig *r, ps_gpu_run *run, uint32_t n_calls, double *out_s,
                              ps_error *err) {
    ps_gpu_timer *t = &r->timer;
    if (!t->cupti || !covers(r->task))
        return by_events(r, run, out_s, err);
    const bool copies = r->task->measure == PS_MEASURE_COPY;
    ps_cupti_sum sum = {0};
    ps_error why = {0};
    ps_status status =
        by_cupti(r, run, copies && r->task->bus != PS_BUS_DIRECT ? 0 : n_calls, &sum, &why, err);
    if (status != PS_OK)
        return status;
    if (why.status != PS_OK) {
        status = give_up(r, &why, err);
        return status == PS_OK ? by_events(r, run, out_s, err) : status;
    }
    *out_s = copies ? sum.span_s : sum.busy_s + t->gap_s * (sum.n_kernels + sum.n_copies);
    if (!(*out_s > 0))
        *out_s = 1e-9; /* below the resolution */
    if (t->n_values < PS_GPU_TIMER_VALUES)
        t->values[t->n_values++] = *out_s / n_calls;
    return PS_OK;
}

/* ---- once: the gap ---- */
static ps_status launch_graph(ps_gpu_rig *r, ps_error *err) {
    return ps_device_graph_launch(r->device, r->graph, err);
}

static void drop_graph(ps_gpu_rig *r) {
    ps_device_graph_free(r->device, r->graph);
    r->graph = NULL;
}

static ps_status calibrate(ps_gpu_rig *r, ps_error *err) {
    ps_gpu_timer *t = &r->timer;
    double node[N_CALIBRATE], ran[N_CALIBRATE];
    ps_error why = {0};
    ps_status status = ps_gpu_capture_small(r, N_NODES, err);
    for (int i = 0; i < N_CALIBRATE && status == PS_OK; i++)
        status = by_events(r, launch_graph, &node[i], err);
    drop_graph(r);
    if (status != PS_OK)
        return status;
    if (ps_cupti_on(t->cupti, &why) != PS_OK)
        return give_up(r, &why, err);
    status = ps_gpu_capture_small(r, N_NODES, err);
    for (int i = 0; i < N_CALIBRATE && status == PS_OK && why.status == PS_OK; i++) {
        ps_cupti_sum sum = {0};
        status = by_cupti(r, launch_graph, N_NODES, &sum, &why, err);
        ran[i] = sum.busy_s;
    }
    drop_graph(r);
    if (status == PS_OK && why.status != PS_OK)
        return give_up(r, &why, err);
    if (status != PS_OK)
        return status;
    const double gap = (median_of(node, N_CALIBRATE) - median_of(ran, N_CALIBRATE)) / N_NODES;
    t->gap_s = gap > 0 ? gap : 0;
    t->calibrated = true;
    return PS_OK;
}

ps_status ps_gpu_timer_before(ps_gpu_rig *r, ps_error *err) {
    ps_gpu_timer *t = &r->timer;
    ps_error why = {0};
    t->n_values = 0;
    t->by_events_s = 0;
    if (!t->cupti)
        return PS_OK;
    if (!covers(r->task))
        return ps_cupti_off(t->cupti, &why) == PS_OK ? PS_OK : give_up(r, &why, err);
    if (!t->calibrated) {
        const ps_status status = calibrate(r, err);
        if (status != PS_OK || !t->cupti)
            return status;
    }
    return ps_cupti_on(t->cupti, &why) == PS_OK ? PS_OK : give_up(r, &why, err);
}

/* ---- both ways ---- */
static ps_gpu_difference *difference_of(ps_gpu_rig *r) {
    uint32_t n_kernels;
    const ps_kernel *table = ps_kernel_table(&n_kernels);
    const ptrdiff_t index = r->task->measure == PS_MEASURE_KERNEL ? r->kernel - table : (ptrdiff_t)n_kernels;
    return &r->timer.differences[index];
}

/* Graphs keep what CUPTI put into them: a new one each time it comes or goes. */
static ps_status graph_anew(ps_gpu_rig *r, ps_error *err) {
    if (!r->graph)
        return PS_OK;
    drop_graph(r);
    return ps_gpu_capture_calls(r, err);
}

ps_status ps_gpu_timer_compare(ps_gpu_rig *r, ps_gpu_run *run, uint32_t n_calls, ps_error *err) {
    ps_gpu_timer *t = &r->timer;
    ps_gpu_difference *d = difference_of(r);
    bool again = false;
    for (uint32_t i = 0; i < d->n; i++)
        again |= d->task[i] == r->task;
    if (again || !t->cupti || !covers(r->task) || d->n == PS_GPU_TIMER_POINTS || t->spent_s > most_spent_s)
        return PS_OK;
    double s = 0, by[N_BY_EVENTS + 1];
    ps_error why = {0};
    const uint64_t start_ns = ps_clock_ns();
    ps_status status = ps_gpu_timer_sample(r, run, n_calls, &s, err);
    t->n_values = 0;
    if (status != PS_OK || !t->cupti || s / n_calls < least_s)
        return status;
    if (ps_cupti_off(t->cupti, &why) != PS_OK)
        return give_up(r, &why, err);
    status = graph_anew(r, err);
    for (int i = 0; i <= N_BY_EVENTS && status == PS_OK; i++) /* the first one to warm up */
        status = by_events(r, run, &by[i], err);
    if (status != PS_OK)
        return status;
    t->by_events_s = median_of(by + 1, N_BY_EVENTS) / n_calls;
    if (ps_cupti_on(t->cupti, &why) != PS_OK)
        return give_up(r, &why, err);
    status = graph_anew(r, err);
    t->spent_s += (double)(ps_clock_ns() - start_ns) * 1e-9;
    return status;
}

void ps_gpu_timer_after(ps_gpu_rig *r) {
    ps_gpu_timer *t = &r->timer;
    if (t->n_values == 0)
        return;
    t->n_points++;
    if (t->by_events_s < least_s)
        return;
    ps_gpu_difference *d = difference_of(r);
    d->task[d->n] = r->task;
    d->frac[d->n++] = median_of(t->values, t->n_values) / t->by_events_s - 1;
}

/* ---- what the profile says of it ---- */
static void put_check(ps_profile_gpu *g, uint32_t kernel, const ps_gpu_difference *d) {
    double frac[PS_GPU_TIMER_POINTS];
    ps_profile_check row = {.kernel = kernel, .n = d->n};
    memcpy(frac, d->frac, sizeof frac);
    row.median_frac = median_of(frac, d->n);
    row.worst_frac = fabs(frac[0]) > fabs(frac[d->n - 1]) ? frac[0] : frac[d->n - 1];
    uint32_t at = 0;
    while (at < g->n_checks && g->checks[at].kernel < kernel)
        at++;
    if (at == g->n_checks || g->checks[at].kernel != kernel) {
        memmove(g->checks + at + 1, g->checks + at, (g->n_checks - at) * sizeof *g->checks);
        g->n_checks++;
    }
    g->checks[at] = row;
}

void ps_gpu_timer_describe(const ps_gpu_rig *r, ps_profile_gpu *g) {
    const ps_gpu_timer *t = &r->timer;
    uint32_t n_kernels;
    const ps_kernel *table = ps_kernel_table(&n_kernels);
    g->timer = t->cupti ? PS_TIMER_CUPTI : PS_TIMER_EVENTS;
    snprintf(g->timer_reason, sizeof g->timer_reason, "%s", t->cupti ? "" : t->reason);
    g->timer_gap_s = t->gap_s;
    for (uint32_t i = 0; i <= n_kernels && g->checks; i++)
        if (t->differences[i].n)
            put_check(g, i == n_kernels ? 0 : table[i].spec.id, &t->differences[i]);
}
