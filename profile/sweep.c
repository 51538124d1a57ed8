/* The sweep over all tasks. */
#include "profile/sweep.h"

#include "profile/grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *unit;
} measures[] = {
#define MEASURE_ROW(name, text, unit) {text, unit},
    PS_MEASURE_LIST(MEASURE_ROW)
#undef MEASURE_ROW
};

enum { MIN_SAMPLES = 5, WARM_CALLS = 1 };

/* A task in the order it is done. */
typedef struct item {
    const ps_task *task;
    int rank;        /* 0: a profile is nothing without it; 1: bus; 2: kernels */
    int cost_class;  /* decade of the guessed cost; one class for all essential ones */
    uint32_t kernel; /* index into the catalogue */
    ps_dtype wtype;
    bool done;
} item;

typedef struct sweep {
    const ps_sweep_config *c;
    ps_sweep_result *out;
    ps_profile *p;
    item *items;
    double *scale; /* [n_kernels] time of the last task over its guess; 0: none yet */
    double all_scale;
    ps_series *series, *beside; /* beside: of TOGETHER, the reads' side */
    uint64_t start_ns, saved_ns;
    uint32_t left; /* tasks to do */
    double probe_min_s, probe_max_s;
} sweep;

static double elapsed_s(const sweep *s) {
    return (double)(s->c->ops->now_ns(s->c->rig) - s->start_ns) * 1e-9;
}

static int by_order(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->task->measure != y->task->measure)
        return x->task->measure > y->task->measure ? -1 : 1;
    if (x->task->essential != y->task->essential)
        return x->task->essential ? -1 : 1;
    if (x->wtype != y->wtype) /* operands are made anew for each type */
        return x->wtype < y->wtype ? -1 : 1;
    if (x->cost_class != y->cost_class)
        return x->cost_class < y->cost_class ? -1 : 1;
    if (x->kernel != y->kernel)
        return x->kernel < y->kernel ? -1 : 1;
    if (x->task->cost_s != y->task->cost_s)
        return x->task->cost_s < y->task->cost_s ? -1 : 1;
    return x->task < y->task ? -1 : x->task > y->task;
}

#define BY(field)                                                                                            \
    if (x->field != y->field)                                                                                \
    return x->field < y->field ? -1 : 1

static int by_point(const void *a, const void *b) {
    const ps_profile_point *x = a, *y = b;
    BY(kernel);
    BY(beside);
    BY(n_threads);
    BY(n_tokens);
    BY(heads_kv);
    BY(cols);
    BY(rows);
    BY(kv_len);
    return 0;
}

static int by_threads(const void *a, const void *b) {
    const ps_profile_dram *x = a, *y = b;
    BY(n_threads);
    return 0;
}

static uint32_t kernel_index(const ps_sweep_config *c, uint32_t id) {
    for (uint32_t i = 0; i < c->n_kernels; i++)
        if (c->kernels[i].id == id)
            return i;
    return UINT32_MAX;
}

static ps_status start(sweep *s, ps_error *err) {
    const ps_sweep_config *c = s->c;
    ps_profile *p = calloc(1, sizeof *p);
    s->p = s->out->profile = p;
    s->items = calloc(c->n_tasks + 1, sizeof *s->items);
    s->scale = calloc(c->n_kernels + 1, sizeof *s->scale);
    s->series = calloc(1, sizeof *s->series);
    s->beside = calloc(1, sizeof *s->beside);
    if (!p || !s->items || !s->scale || !s->series || !s->beside)
        goto nomem;
    p->version = PS_PROFILE_VERSION;
    snprintf(p->tool, sizeof p->tool, "%s", c->tool);
    snprintf(p->created, sizeof p->created, "%s", c->created);
    snprintf(p->mode, sizeof p->mode, "%s", c->mode);
    p->synthetic = c->ops->synthetic;
    c->ops->describe(c->rig, &p->topology, p->machine_hash);
    if (c->ops->describe_gpu)
        c->ops->describe_gpu(c->rig, &p->gpu);
    snprintf(p->topology.gpu_name, sizeof p->topology.gpu_name, "%s", p->gpu.name);
    ps_kernel_spec_hash(c->kernels, c->n_kernels, p->kernel_set);
    p->dram = calloc(c->n_tasks + 1, sizeof *p->dram);
    p->points = calloc(c->n_tasks + 1, sizeof *p->points);
    p->kernels = calloc(c->n_kernels + 1, sizeof *p->kernels);
    p->gpu.copies = calloc(c->n_tasks + 1, sizeof *p->gpu.copies);
    p->gpu.together = calloc(c->n_tasks + 1, sizeof *p->gpu.together);
    p->gpu.checks = calloc(c->n_kernels + 1, sizeof *p->gpu.checks);
    if (!p->dram || !p->points || !p->kernels || !p->gpu.copies || !p->gpu.together || !p->gpu.checks)
        goto nomem;
    memcpy(p->kernels, c->kernels, c->n_kernels * sizeof *p->kernels);
    p->n_kernels = c->n_kernels;
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        item *it = &s->items[i];
        it->task = &c->tasks[i];
        it->rank = it->task->measure == PS_MEASURE_KERNEL                                             ? 2
                   : it->task->measure == PS_MEASURE_COPY || it->task->measure == PS_MEASURE_TOGETHER ? 1
                                                                                                      : 0;
        it->cost_class = it->task->essential ? 0 : (int)floor(log10(fmax(it->task->cost_s, 1e-9)));
        it->wtype = PS_DTYPE_NONE;
        if (c->tasks[i].measure == PS_MEASURE_KERNEL) {
            it->kernel = kernel_index(c, c->tasks[i].point.kernel);
            if (it->kernel == UINT32_MAX)
                return ps_error_set(err, PS_E_INTERNAL, "sweep",
                                    "task for kernel %u, which is not in the catalogue",
                                    c->tasks[i].point.kernel);
            it->wtype = c->kernels[it->kernel].wtype;
        }
    }
    qsort(s->items, c->n_tasks, sizeof *s->items, by_order);
    s->start_ns = s->saved_ns = c->ops->now_ns(c->rig);
    return PS_OK;
nomem:
    return ps_error_set(err, PS_E_NOMEM, "sweep", "no memory for %u tasks", c->n_tasks);
}

/* A quantity of the GPU that stands alone; NULL: the measure is another. */
static ps_stat *gpu_slot(ps_profile_gpu *g, ps_measure m) {
    switch (m) {
#define MEASURED(member, name, label, unit)                                                                  \
    case PS_MEASURE_##name:                                                                                  \
        return &g->member;
#define DERIVED(member, name, label, unit)
        PS_GPU_STAT_LIST(MEASURED, DERIVED)
#undef MEASURED
#undef DERIVED
    default:
        return NULL;
    }
}

static ps_profile_together *together_of(ps_profile_gpu *g, const ps_task *t, bool add) {
    for (uint32_t i = 0; i < g->n_together; i++)
        if (g->together[i].bus == t->bus && g->together[i].n_threads == t->point.n_threads)
            return &g->together[i];
    if (!add)
        return NULL;
    g->together[g->n_together] = (ps_profile_together){.bus = t->bus, .n_threads = t->point.n_threads};
    return &g->together[g->n_together++];
}

static ps_stat *copy_slot(ps_profile_gpu *g, const ps_task *t, bool add) {
    for (uint32_t i = 0; i < g->n_copies; i++)
        if (g->copies[i].bus == t->bus && g->copies[i].kind == t->kind && g->copies[i].bytes == t->bytes)
            return &g->copies[i].bw_bytes_per_s;
    if (!add)
        return NULL;
    g->copies[g->n_copies] = (ps_profile_copy){.bus = t->bus, .kind = t->kind, .bytes = t->bytes};
    return &g->copies[g->n_copies++].bw_bytes_per_s;
}

/* Where the result of a task goes, or is already. */
static ps_stat *slot_of(ps_profile *p, const ps_task *t, bool add) {
    ps_stat *of_gpu = gpu_slot(&p->gpu, t->measure);
    if (of_gpu)
        return of_gpu;
    switch (t->measure) {
    case PS_MEASURE_COPY:
        return copy_slot(&p->gpu, t, add);
    case PS_MEASURE_TOGETHER: {
        ps_profile_together *both = together_of(&p->gpu, t, add);
        return both ? &both->bus_bytes_per_s : NULL;
    }
    case PS_MEASURE_BARRIER:
        return &p->barrier_s;
    case PS_MEASURE_POOL_START:
        return &p->pool_start_s;
    case PS_MEASURE_DRAM:
        for (uint32_t i = 0; i < p->n_dram; i++)
            if (p->dram[i].n_threads == t->point.n_threads)
                return &p->dram[i].bw_bytes_per_s;
        if (!add)
            return NULL;
        p->dram[p->n_dram].n_threads = t->point.n_threads;
        return &p->dram[p->n_dram++].bw_bytes_per_s;
    default:
        for (uint32_t i = 0; i < p->n_points; i++)
            if (by_point(&p->points[i], &t->point) == 0)
                return &p->points[i].time_s;
        if (!add)
            return NULL;
        p->points[p->n_points] = t->point;
        p->points[p->n_points].beside_bytes_per_s = 0;
        return &p->points[p->n_points++].time_s;
    }
}

/* Five digits are more than any measurement has, and keep a profile of 2,500 points small. */
static double stored(double v) {
    char text[32];
    snprintf(text, sizeof text, "%.5g", v);
    return strtod(text, NULL);
}

/* Take over what an interrupted run has measured of our tasks. */
static void take_over(sweep *s) {
    if (!s->c->resume)
        return;
    /* Only looked up, never changed. */
    ps_profile old = *s->c->resume;
    if (s->p->gpu.name[0] && old.gpu.n_checks <= s->c->n_kernels + 1 && old.gpu.n_checks) {
        memcpy(s->p->gpu.checks, old.gpu.checks, old.gpu.n_checks * sizeof *old.gpu.checks);
        s->p->gpu.n_checks = old.gpu.n_checks;
    }
    for (uint32_t i = 0; i < s->c->n_tasks; i++) {
        item *it = &s->items[i];
        const ps_stat *from = slot_of(&old, it->task, false);
        if (!from || from->n == 0)
            continue;
        ps_stat *to = slot_of(s->p, it->task, true);
        *to = *from;
        if (it->task->measure == PS_MEASURE_TOGETHER)
            together_of(&s->p->gpu, it->task, true)->dram_bytes_per_s =
                together_of(&old.gpu, it->task, false)->dram_bytes_per_s;
        if (it->task->measure == PS_MEASURE_KERNEL)
            for (uint32_t k = 0; k < old.n_points; k++)
                if (from == &old.points[k].time_s)
                    s->p->points[s->p->n_points - 1].beside_bytes_per_s = old.points[k].beside_bytes_per_s;
        it->done = true;
        s->out->n_resumed++;
        s->out->n_noisy += to->noisy;
    }
}

static void probe_clock(sweep *s) {
    const double t = s->c->ops->clock_probe(s->c->rig);
    if (s->probe_min_s == 0 || t < s->probe_min_s)
        s->probe_min_s = t;
    if (t > s->probe_max_s)
        s->probe_max_s = t;
}

static double guess_s(const sweep *s, const item *it) {
    double scale = it->task->measure == PS_MEASURE_KERNEL ? s->scale[it->kernel] : 1;
    if (scale == 0)
        scale = s->all_scale > 0 ? s->all_scale : 1;
    return it->task->cost_s * scale;
}

static bool is_rate(ps_measure m) {
    return strcmp(measures[m].unit, "B/s") == 0;
}

static ps_stat summary_of(const ps_series *series, ps_stop stop, bool rate) {
    ps_stat to = ps_series_summary(series, stop);
    if (rate) {
        const double q1 = to.q1;
        to.median = 1 / to.median;
        to.q1 = 1 / to.q3;
        to.q3 = 1 / q1;
    }
    to.median = stored(to.median);
    to.q1 = stored(to.q1);
    to.q3 = stored(to.q3);
    return to;
}

static ps_status measure(sweep *s, item *it, double share_s, ps_error *err) {
    const ps_sweep_config *c = s->c;
    const double begin_s = elapsed_s(s);
    const ps_stop_rule rule = {.min_samples = MIN_SAMPLES,
                               .max_samples = PS_STATS_MAX_SAMPLES,
                               .target_frac = 0.01,
                               .cap_s = share_s,
                               .patience = s->left > 10 ? 3 : 1};
    const bool rate = is_rate(it->task->measure); /* the series holds times, here per byte */
    const bool both = it->task->measure == PS_MEASURE_TOGETHER;
    ps_stop stop = PS_STOP_TIME_CAP;
    double beside_sum = 0;
    s->series->n = s->series->n_disturbed = 0;
    s->beside->n = s->beside->n_disturbed = 0;
    ps_status st = c->ops->prepare(c->rig, it->task, err);
    while (st == PS_OK) {
        ps_rig_sample sample = {0};
        st = c->ops->sample(c->rig, &sample, err);
        if (st != PS_OK)
            break;
        if (!(sample.value > 0) || !isfinite(sample.value)) {
            st = ps_error_set(err, PS_E_INTERNAL, measures[it->task->measure].name, "a sample is %g %s",
                              sample.value, measures[it->task->measure].unit);
            break;
        }
        ps_series_add(s->series, rate ? 1 / sample.value : sample.value, sample.disturbed);
        beside_sum += sample.beside_bytes_per_s;
        if (both && sample.beside_bytes_per_s > 0)
            ps_series_add(s->beside, 1 / sample.beside_bytes_per_s, sample.disturbed);
        if (ps_series_done(s->series, &rule, elapsed_s(s) - begin_s, &stop))
            break;
        if (c->stop && c->stop(c->ctx)) { /* half a point is no point */
            s->out->stopped = true;
            break;
        }
    }
    c->ops->finish(c->rig);
    if (st != PS_OK || s->out->stopped)
        return st;
    if (both && s->beside->n == 0)
        return ps_error_set(err, PS_E_INTERNAL, measures[it->task->measure].name,
                            "nothing was read beside it");
    ps_stat *to = slot_of(s->p, it->task, true);
    *to = summary_of(s->series, stop, rate);
    if (both)
        together_of(&s->p->gpu, it->task, false)->dram_bytes_per_s = summary_of(s->beside, stop, true);
    s->out->n_measured++;
    s->out->n_noisy += to->noisy;
    it->done = true;
    if (it->task->measure == PS_MEASURE_KERNEL) {
        s->p->points[s->p->n_points - 1].beside_bytes_per_s = stored(beside_sum / s->series->n);
        const double scale = to->median / it->task->cost_s;
        s->scale[it->kernel] = scale;
        s->all_scale = s->all_scale > 0 ? sqrt(s->all_scale * scale) : scale;
    }
    return PS_OK;
}

static void label_of(const sweep *s, const item *it, char *buf, size_t size) {
    const ps_profile_point *p = &it->task->point;
    if (it->task->measure == PS_MEASURE_KERNEL)
        snprintf(buf, size, "%s %llux%llu, %u tokens, %u threads", s->c->kernels[it->kernel].name,
                 (unsigned long long)p->rows, (unsigned long long)p->cols, p->n_tokens, p->n_threads);
    else if (it->task->measure == PS_MEASURE_COPY)
        snprintf(buf, size, "%s in pieces of %llu KiB", measures[it->task->measure].name,
                 (unsigned long long)it->task->bytes >> 10);
    else
        snprintf(buf, size, "%s, %u threads", measures[it->task->measure].name, p->n_threads);
}

static int by_copy(const void *a, const void *b) {
    const ps_profile_copy *x = a, *y = b;
    BY(bus);
    BY(kind);
    BY(bytes);
    return 0;
}

static int by_together(const void *a, const void *b) {
    const ps_profile_together *x = a, *y = b;
    BY(bus);
    BY(n_threads);
    return 0;
}

/* The GPU's matrix and attention rates: the best of its kernels' points. Where there was no time for any, attention is as
 * fast as products, and products do one operation per byte of memory: never more than is known. */
static void best_rates(ps_profile *p) {
    double best[2] = {0};
    for (uint32_t i = 0; i < p->n_points; i++) {
        const ps_profile_point *q = &p->points[i];
        const ps_kernel_spec *k = NULL;
        for (uint32_t n = 0; n < p->n_kernels && !k; n++)
            k = p->kernels[n].id == q->kernel ? &p->kernels[n] : NULL;
        const bool product = k && k->op == PS_OP_MATMUL, attention = k && k->op == PS_OP_ATTENTION;
        if (!k || k->device != PS_DEV_CUDA || q->time_s.n == 0 || (!product && !attention))
            continue;
        double bytes, flops;
        ps_point_work(k, q, &bytes, &flops);
        const double rate = flops / q->time_s.median;
        if (rate <= best[attention])
            continue;
        best[attention] = rate;
        ps_stat *to = attention ? &p->gpu.attention_flops_per_s : &p->gpu.matmul_flops_per_s;
        *to = q->time_s;
        to->median = stored(rate);
        to->q1 = stored(flops / q->time_s.q3);
        to->q3 = stored(flops / q->time_s.q1);
    }
    if (p->gpu.matmul_flops_per_s.n == 0)
        p->gpu.matmul_flops_per_s = p->gpu.hbm_read_bytes_per_s;
    if (p->gpu.attention_flops_per_s.n == 0)
        p->gpu.attention_flops_per_s = p->gpu.matmul_flops_per_s;
}

static void order_results(const sweep *s) {
    ps_profile *p = s->p;
    if (s->c->ops->describe_timer && p->gpu.name[0])
        s->c->ops->describe_timer(s->c->rig, &p->gpu);
    qsort(p->points, p->n_points, sizeof *p->points, by_point);
    qsort(p->dram, p->n_dram, sizeof *p->dram, by_threads);
    qsort(p->gpu.copies, p->gpu.n_copies, sizeof *p->gpu.copies, by_copy);
    qsort(p->gpu.together, p->gpu.n_together, sizeof *p->gpu.together, by_together);
    best_rates(p);
}

static ps_status write_note(sweep *s, ps_error *err) {
    char text[512];
    int n = snprintf(
        text, sizeof text, "%s%s%u of %u quantities measured, %u left out for lack of time, %u noisy",
        s->c->note ? s->c->note : "", s->c->note ? "; " : "", s->out->n_measured + s->out->n_resumed,
        s->c->n_tasks, s->out->n_left_out, s->out->n_noisy);
    if (s->probe_min_s > 0 && s->probe_max_s > 1.05 * s->probe_min_s && n > 0 && (size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n,
                 "; the clock or other work on this machine changed speed by %.0f%%",
                 (s->probe_max_s / s->probe_min_s - 1) * 100);
    s->p->note = strdup(text);
    return s->p->note ? PS_OK : ps_error_set(err, PS_E_NOMEM, "sweep", "no memory for a note");
}

ps_status ps_sweep_run(const ps_sweep_config *config, ps_sweep_result *out, ps_error *err) {
    sweep s = {.c = config, .out = out};
    memset(out, 0, sizeof *out);
    ps_status st = start(&s, err);
    if (st != PS_OK)
        goto done;
    take_over(&s);
    probe_clock(&s);
    double next_probe_s = 10;
    for (uint32_t i = 0; i < config->n_tasks; i++)
        s.left += !s.items[i].done;
    for (uint32_t i = 0; i < config->n_tasks && !out->stopped; i++) {
        item *it = &s.items[i];
        if (it->done)
            continue;
        if (config->stop && config->stop(config->ctx)) {
            out->stopped = true;
            break;
        }
        const double remaining_s = config->limit_s - elapsed_s(&s);
        /* Warm-up and the fewest samples. */
        if (it->rank != 0 && guess_s(&s, it) * (MIN_SAMPLES + WARM_CALLS) > remaining_s) {
            out->n_left_out++;
            s.left--;
            continue;
        }
        char label[96];
        label_of(&s, it, label, sizeof label);
        if (config->progress) {
            const double by_time = elapsed_s(&s) / config->limit_s;
            const double by_count = (double)i / config->n_tasks;
            config->progress(config->ctx, by_time > by_count ? by_time : by_count, label);
        }
        st = measure(&s, it, fmin(fmax(remaining_s, 0) / s.left, config->max_task_s), err);
        s.left--;
        if (st != PS_OK)
            goto done;
        if (elapsed_s(&s) > next_probe_s) {
            probe_clock(&s);
            next_probe_s = elapsed_s(&s) + 10;
        }
        const uint64_t now = config->ops->now_ns(config->rig);
        if (config->save && (double)(now - s.saved_ns) * 1e-9 >= config->save_every_s) {
            order_results(&s);
            free(s.p->note);
            st = write_note(&s, err);
            if (st != PS_OK)
                goto done;
            st = config->save(config->ctx, s.p, err);
            if (st != PS_OK)
                goto done;
            s.saved_ns = config->ops->now_ns(config->rig);
        }
    }
    probe_clock(&s);
    order_results(&s);
    free(s.p->note);
    st = write_note(&s, err);
    s.p->complete = st == PS_OK && !out->stopped;
done:
    free(s.items);
    free(s.scale);
    free(s.series);
    free(s.beside);
    return st;
}

void ps_sweep_free(ps_sweep_result *result) {
    ps_profile_free(result->profile);
    result->profile = NULL;
}

bool ps_sweep_can_resume(const ps_profile *old, const ps_sweep_config *config) {
    ps_profile_topology topology;
    uint8_t machine[PS_HASH_BYTES], set[PS_HASH_BYTES];
    config->ops->describe(config->rig, &topology, machine);
    ps_kernel_spec_hash(config->kernels, config->n_kernels, set);
    return !old->complete && old->synthetic == config->ops->synthetic && !strcmp(old->mode, config->mode) &&
           !strncmp(old->note ? old->note : "", config->note ? config->note : "",
                    config->note ? strlen(config->note) : 0) &&
           !memcmp(old->machine_hash, machine, sizeof machine) && !memcmp(old->kernel_set, set, sizeof set);
}
