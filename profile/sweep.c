/* The sweep over all tasks. */
#include "profile/sweep.h"

#include "profile/sweep_internal.h"
#include "profile/visits.h"

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

enum { MIN_SAMPLES = 5, FEWEST_SAMPLES = 3, WARM_CALLS = 1, LIMIT_EVERY = 32, RECENT = 32 };
/* Calls as long as this are sampled less in one visit, so that there is time for more visits. */
static const double long_s = 10e-3;
/* By when a round of visits is to be over, as a share of the time that was left at its beginning. */
static const double round_frac[PS_VISITS] = {0.45, 0.55, 0.4, 0.8, 1, 1};

/* A task in the order it is done. */
typedef struct item {
    const ps_task *task;
    int rank;        /* 0: a profile is nothing without it; 1: more of the bus; 2: kernels */
    int cost_class;  /* decade of the guessed cost; one class for all essential ones */
    uint32_t kernel; /* index into the catalogue */
    ps_dtype wtype;
    bool resumed;
    ps_visits visits;
} item;

typedef struct sweep {
    const ps_sweep_config *c;
    ps_sweep_result *out;
    ps_profile *p;
    item *items;
    double *scale; /* [n_kernels] time of the last task over its guess; 0: none yet */
    double all_scale;
    bool *seen; /* [n_kernels] kernels that were prepared before */
    double prepare_s
        [2][2];     /* what preparing takes: of a kernel seen before or not, of the same weights or others */
    ps_dtype wtype; /* of the last task */
    ps_series *series, *beside; /* beside: of TOGETHER, the reads' side */
    uint64_t start_ns, saved_ns;
    uint32_t left; /* tasks to visit in this round */
    uint32_t n_visits;
    double recent[RECENT]; /* probes of the clock, in turn */
    double *probes; /* [room_probes] the quickest of the recent ones, and as much room again for sorting */
    uint32_t n_probes, room_probes;
    double clock_limit_s;
} sweep;

/* Before anything is known: a new kernel is held against the reference, other weights are made. */
static const double first_prepare_s[2][2] = {{2e-3, 50e-3}, {20e-3, 100e-3}};

static double elapsed_s(const sweep *s) {
    return (double)(s->c->ops->now_ns(s->c->rig) - s->start_ns) * 1e-9;
}

#define BY(a, b)                                                                                             \
    if ((a) != (b))                                                                                          \
    return (a) < (b) ? -1 : 1

static int by_order(const void *a, const void *b) {
    const item *x = a, *y = b;
    const ps_profile_point *p = &x->task->point, *q = &y->task->point;
    BY(x->rank, y->rank);
    BY(y->task->measure, x->task->measure);
    BY(y->task->essential, x->task->essential);
    BY(x->wtype, y->wtype); /* operands are made anew for each type */
    BY(x->cost_class, y->cost_class);
    BY(x->kernel, y->kernel);
    BY(x->task->cost_s, y->task->cost_s);
    /* The same alone and beside something: one after the other, in turn in every round. */
    BY(p->rows, q->rows);
    BY(p->cols, q->cols);
    BY(p->n_tokens, q->n_tokens);
    BY(p->n_threads, q->n_threads);
    BY(p->beside, q->beside);
    BY(x->task, y->task);
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
    s->seen = calloc(c->n_kernels + 1, sizeof *s->seen);
    s->room_probes = (c->n_tasks + 1) * (PS_VISITS + 1);
    s->probes = malloc(2 * (uint64_t)s->room_probes * sizeof *s->probes);
    if (!p || !s->items || !s->scale || !s->series || !s->beside || !s->seen || !s->probes)
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
    p->gpu.paced = calloc(c->n_tasks + 1, sizeof *p->gpu.paced);
    p->gpu.checks = calloc(c->n_kernels + 1, sizeof *p->gpu.checks);
    if (!p->dram || !p->points || !p->kernels || !p->gpu.copies || !p->gpu.together || !p->gpu.paced ||
        !p->gpu.checks)
        goto nomem;
    memcpy(p->kernels, c->kernels, c->n_kernels * sizeof *p->kernels);
    p->n_kernels = c->n_kernels;
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        item *it = &s->items[i];
        it->task = &c->tasks[i];
        const bool bus = it->task->measure == PS_MEASURE_COPY || ps_sweep_both(it->task->measure);
        it->rank = it->task->measure == PS_MEASURE_KERNEL ? 2 : bus && !it->task->essential ? 1 : 0;
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
    for (int i = 0; i < 4; i++)
        s->prepare_s[i / 2][i % 2] = fmax(first_prepare_s[i / 2][i % 2], i % 2 ? c->fill_s : 0);
    qsort(s->items, c->n_tasks, sizeof *s->items, by_order);
    s->start_ns = s->saved_ns = c->ops->now_ns(c->rig);
    return PS_OK;
nomem:
    return ps_error_set(err, PS_E_NOMEM, "sweep", "no memory for %u tasks", c->n_tasks);
}

static bool is_rate(ps_measure m) {
    return strcmp(measures[m].unit, "B/s") == 0;
}

static double as_time(double v, bool rate) {
    return rate ? 1 / v : v;
}

/* Between times and what the profile holds. */
static ps_stat converted(const ps_stat *from, bool rate) {
    ps_stat to = *from;
    if (from->n == 0)
        return to;
    to.median = as_time(from->median, rate);
    to.q1 = as_time(rate ? from->q3 : from->q1, rate);
    to.q3 = as_time(rate ? from->q1 : from->q3, rate);
    return to;
}

static ps_stat stored(const ps_stat *times, bool rate) {
    ps_stat to = converted(times, rate);
    to.median = ps_sweep_stored(to.median);
    to.q1 = fmin(ps_sweep_stored_quartile(to.q1), to.median);
    to.q3 = fmax(ps_sweep_stored_quartile(to.q3), to.median);
    return to;
}

/* The profile from all visits so far. */
static void build(sweep *s) {
    ps_sweep_clear(s->p);
    s->out->n_noisy = 0;
    for (uint32_t i = 0; i < s->c->n_tasks; i++) {
        item *it = &s->items[i];
        ps_slot to;
        if (it->visits.n == 0 || !ps_slot_find(s->p, it->task, true, &to))
            continue;
        const ps_visit v = ps_visits_result(&it->visits, s->clock_limit_s);
        *to.stat = stored(&v.stat, is_rate(it->task->measure));
        if (to.other)
            *to.other = stored(&v.other, true);
        if (to.beside)
            *to.beside = ps_sweep_stored(v.beside);
        s->out->n_noisy += v.stat.noisy;
    }
    if (s->c->ops->describe_timer && s->p->gpu.name[0])
        s->c->ops->describe_timer(s->c->rig, &s->p->gpu);
    ps_sweep_order(s->p);
}

/* What an interrupted run has measured of our tasks counts as a visit. */
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
        ps_slot from;
        if (!ps_slot_find(&old, it->task, false, &from) || from.stat->n == 0)
            continue;
        ps_visit v = {.stat = converted(from.stat, is_rate(it->task->measure)),
                      .beside = from.beside ? *from.beside : 0};
        if (from.other)
            v.other = converted(from.other, true);
        ps_visits_add(&it->visits, &v);
        it->resumed = true;
        s->out->n_resumed++;
    }
}

/* A lowered clock lasts for seconds: no recent probe was quick. A single slow one met another guest of the host, and says nothing
 * of the visit behind it. */
static double probe_clock(sweep *s) {
    double t = s->recent[s->n_probes % RECENT] = s->c->ops->clock_probe(s->c->rig);
    for (uint32_t i = 0; i < RECENT && i < s->n_probes; i++)
        t = fmin(t, s->recent[i]);
    if (s->n_probes < s->room_probes)
        s->probes[s->n_probes++] = t;
    if (s->n_probes % LIMIT_EVERY == 1)
        s->clock_limit_s = ps_clock_limit(s->probes, s->n_probes, s->probes + s->room_probes);
    return t;
}

static double guess_s(const sweep *s, const item *it) {
    double scale = it->task->measure == PS_MEASURE_KERNEL ? s->scale[it->kernel] : 1;
    if (scale == 0)
        scale = s->all_scale > 0 ? s->all_scale : 1;
    return it->task->cost_s * scale;
}

/* What preparing an item takes, by what it took before. */
static double *prepare_guess(sweep *s, const item *it) {
    const bool kernel = it->task->measure == PS_MEASURE_KERNEL;
    return &s->prepare_s[kernel && !s->seen[it->kernel]][kernel && it->wtype != s->wtype];
}

/* Right after a copy the link is as it was under load; at rest it may be slower. */
static void look_at_link(sweep *s) {
    ps_profile_gpu now = {0};
    if (s->c->ops->describe_gpu)
        s->c->ops->describe_gpu(s->c->rig, &now);
    if (now.pcie_gen > s->p->gpu.pcie_gen)
        s->p->gpu.pcie_gen = now.pcie_gen;
    if (now.pcie_width > s->p->gpu.pcie_width)
        s->p->gpu.pcie_width = now.pcie_width;
}

/* One visit, for about share_s. *out_enough: false where the time was over before there were samples enough. */
static ps_status visit(sweep *s, item *it, double share_s, bool *out_enough, ps_error *err) {
    const ps_sweep_config *c = s->c;
    const double clock_s = probe_clock(s), begin_s = elapsed_s(s);
    const ps_stop_rule rule = {.min_samples = guess_s(s, it) > long_s ? FEWEST_SAMPLES : MIN_SAMPLES,
                               .max_samples = PS_STATS_MAX_SAMPLES,
                               .target_frac = 0.01,
                               .cap_s = share_s,
                               .patience = 1};
    const bool rate = is_rate(it->task->measure); /* the series holds times, here per byte */
    const bool both = ps_sweep_both(it->task->measure);
    ps_stop stop = PS_STOP_TIME_CAP;
    double beside_sum = 0;
    *out_enough = true;
    s->series->n = s->series->n_disturbed = 0;
    s->beside->n = s->beside->n_disturbed = 0;
    ps_status st = c->ops->prepare(c->rig, it->task, err);
    if (st == PS_OK) {
        double *guess = prepare_guess(s, it);
        *guess = fmax(0.7 * *guess, elapsed_s(s) - begin_s);
        if (it->task->measure == PS_MEASURE_KERNEL) {
            s->seen[it->kernel] = true;
            s->wtype = it->wtype;
        }
    }
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
        ps_series_add(s->series, as_time(sample.value, rate), sample.disturbed);
        beside_sum += sample.beside_bytes_per_s;
        if (both && sample.beside_bytes_per_s > 0)
            ps_series_add(s->beside, 1 / sample.beside_bytes_per_s, sample.disturbed);
        if (ps_series_done(s->series, &rule, elapsed_s(s) - begin_s, &stop))
            break;
        if (elapsed_s(s) >= c->limit_s) { /* samples may take longer than anybody could guess */
            *out_enough = s->series->n >= FEWEST_SAMPLES || it->rank == 0;
            break;
        }
        if (c->stop && c->stop(c->ctx)) { /* half a point is no point */
            s->out->stopped = true;
            break;
        }
    }
    c->ops->finish(c->rig);
    if (it->task->measure == PS_MEASURE_COPY)
        look_at_link(s);
    if (st != PS_OK || s->out->stopped || !*out_enough)
        return st;
    if (both && s->beside->n == 0)
        return ps_error_set(err, PS_E_INTERNAL, measures[it->task->measure].name,
                            "nothing was read beside it");
    ps_visit v = {.stat = ps_series_summary(s->series, stop),
                  .beside = beside_sum / s->series->n,
                  .clock_s = clock_s,
                  .starved = s->series->n - s->series->n_disturbed < 2};
    if (both)
        v.other = ps_series_summary(s->beside, stop);
    s->out->n_measured += it->visits.n == 0;
    s->n_visits++;
    ps_visits_add(&it->visits, &v);
    if (it->task->measure == PS_MEASURE_KERNEL) {
        const double scale = v.stat.median / it->task->cost_s;
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

static ps_status write_note(sweep *s, ps_error *err) {
    char text[512];
    const uint32_t n_done = s->out->n_measured + s->out->n_resumed;
    uint32_t n_lowered = 0;
    int n = snprintf(
        text, sizeof text,
        "%s%s%u of %u quantities measured, %u left out for lack of time, %u noisy, %.1f visits to each",
        s->c->note ? s->c->note : "", s->c->note ? "; " : "", n_done, s->c->n_tasks, s->out->n_left_out,
        s->out->n_noisy, n_done ? (double)s->n_visits / n_done : 0);
    for (uint32_t i = 0; i < s->n_probes; i++)
        n_lowered += s->probes[i] > s->clock_limit_s;
    if (n_lowered && n > 0 && (size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n,
                 "; the clock was lowered, or its cores were shared, at %.0f%% of them",
                 100.0 * n_lowered / s->n_probes);
    free(s->p->note);
    s->p->note = strdup(text);
    return s->p->note ? PS_OK : ps_error_set(err, PS_E_NOMEM, "sweep", "no memory for a note");
}

static ps_status save(sweep *s, ps_error *err) {
    const ps_sweep_config *c = s->c;
    if (!c->save || (double)(c->ops->now_ns(c->rig) - s->saved_ns) * 1e-9 < c->save_every_s)
        return PS_OK;
    build(s);
    ps_status st = write_note(s, err);
    if (st == PS_OK)
        st = c->save(c->ctx, s->p, err);
    s->saved_ns = c->ops->now_ns(c->rig);
    return st;
}

/* Whether a round goes to an item: the first two and the fourth to all, others to those that are not settled. */
static bool pending(const sweep *s, const item *it, uint32_t round) {
    static const uint32_t wanted[PS_VISITS] = {1, 2, 0, 3, 0, 0};
    if (round > 0 && it->visits.n == 0) /* left out */
        return false;
    return it->visits.n < wanted[round] || (round > 1 && !ps_visits_settled(&it->visits, s->clock_limit_s));
}

static ps_status run_round(sweep *s, uint32_t round, ps_error *err) {
    const ps_sweep_config *c = s->c;
    ps_status st = PS_OK;
    const double start_s = elapsed_s(s), end_s = start_s + round_frac[round] * fmax(c->limit_s - start_s, 0);
    s->left = 0;
    for (uint32_t i = 0; i < c->n_tasks; i++)
        s->left += pending(s, &s->items[i], round);
    for (uint32_t i = 0; i < c->n_tasks && st == PS_OK && s->left > 0; i++) {
        item *it = &s->items[i];
        if (!pending(s, it, round))
            continue;
        if (c->stop && c->stop(c->ctx)) {
            s->out->stopped = true;
            break;
        }
        const double now_s = elapsed_s(s);
        const double needed_s = *prepare_guess(s, it) + guess_s(s, it) * (MIN_SAMPLES + WARM_CALLS);
        bool enough = false;
        if ((round == 0 && it->rank == 0) || now_s + needed_s <= c->limit_s) {
            char label[96];
            label_of(s, it, label, sizeof label);
            if (c->progress)
                c->progress(c->ctx, fmax(now_s / c->limit_s, s->n_visits / (3.0 * c->n_tasks)), label);
            st = visit(s, it, fmin(fmax(end_s - now_s, 0) / s->left, c->max_task_s), &enough, err);
        }
        s->left--;
        if (s->out->stopped)
            break;
        s->out->n_left_out += round == 0 && !enough && st == PS_OK;
        if (st == PS_OK)
            st = save(s, err);
    }
    return st;
}

ps_status ps_sweep_run(const ps_sweep_config *config, ps_sweep_result *out, ps_error *err) {
    sweep s = {.c = config, .out = out, .wtype = PS_DTYPE_NONE, .clock_limit_s = INFINITY};
    memset(out, 0, sizeof *out);
    ps_status st = start(&s, err);
    if (st != PS_OK)
        goto done;
    take_over(&s);
    for (uint32_t round = 0; round < PS_VISITS && st == PS_OK && !out->stopped; round++)
        st = run_round(&s, round, err);
    s.clock_limit_s = ps_clock_limit(s.probes, s.n_probes, s.probes + s.room_probes);
    build(&s);
    ps_error noting = {0};
    const ps_status noted = write_note(&s, &noting);
    if (st == PS_OK && noted != PS_OK) {
        st = noted;
        if (err)
            *err = noting;
    }
    s.p->complete = st == PS_OK && !out->stopped;
done:
    free(s.items);
    free(s.scale);
    free(s.seen);
    free(s.probes);
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
