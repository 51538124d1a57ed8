/* Where results are in a profile, and what is made of them once all are there. */
#include "profile/sweep_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static ps_profile_paced *paced_of(ps_profile_gpu *g, const ps_task *t, bool add) {
    for (uint32_t i = 0; i < g->n_paced; i++)
        if (g->paced[i].bus == t->bus && g->paced[i].n_threads == t->point.n_threads &&
            g->paced[i].share_frac == t->share_frac)
            return &g->paced[i];
    if (!add)
        return NULL;
    g->paced[g->n_paced] =
        (ps_profile_paced){.bus = t->bus, .n_threads = t->point.n_threads, .share_frac = t->share_frac};
    return &g->paced[g->n_paced++];
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

static ps_stat *stat_of(ps_profile *p, const ps_task *t, bool add) {
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
    case PS_MEASURE_PACED: {
        ps_profile_paced *both = paced_of(&p->gpu, t, add);
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

bool ps_slot_find(ps_profile *p, const ps_task *t, bool add, ps_slot *out) {
    *out = (ps_slot){.stat = stat_of(p, t, add)};
    if (!out->stat)
        return false;
    if (t->measure == PS_MEASURE_TOGETHER)
        out->other = &together_of(&p->gpu, t, false)->dram_bytes_per_s;
    if (t->measure == PS_MEASURE_PACED)
        out->other = &paced_of(&p->gpu, t, false)->dram_bytes_per_s;
    if (t->measure == PS_MEASURE_KERNEL) {
        char *point = (char *)out->stat - offsetof(ps_profile_point, time_s);
        out->beside = &((ps_profile_point *)(void *)point)->beside_bytes_per_s;
    }
    return true;
}

void ps_sweep_clear(ps_profile *p) {
    p->n_dram = p->n_points = p->gpu.n_copies = p->gpu.n_together = p->gpu.n_paced = 0;
    p->barrier_s = p->pool_start_s = (ps_stat){0};
#define CLEAR(member, name, label, unit) p->gpu.member = (ps_stat){0};
    PS_GPU_STAT_LIST(CLEAR, CLEAR)
#undef CLEAR
}

static double rounded(double v, int digits) {
    char text[32];
    snprintf(text, sizeof text, "%.*g", digits, v);
    return strtod(text, NULL);
}

/* Five digits are more than any measurement has, and keep a profile of 2,500 points small. */
double ps_sweep_stored(double v) {
    return rounded(v, 5);
}

double ps_sweep_stored_quartile(double v) {
    return rounded(v, 4);
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

static int by_paced(const void *a, const void *b) {
    const ps_profile_paced *x = a, *y = b;
    BY(bus);
    BY(n_threads);
    BY(share_frac);
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
        to->median = ps_sweep_stored(rate);
        to->q1 = ps_sweep_stored(flops / q->time_s.q3);
        to->q3 = ps_sweep_stored(flops / q->time_s.q1);
    }
    if (p->gpu.matmul_flops_per_s.n == 0)
        p->gpu.matmul_flops_per_s = p->gpu.hbm_read_bytes_per_s;
    if (p->gpu.attention_flops_per_s.n == 0)
        p->gpu.attention_flops_per_s = p->gpu.matmul_flops_per_s;
}

void ps_sweep_order(ps_profile *p) {
    qsort(p->points, p->n_points, sizeof *p->points, by_point);
    qsort(p->dram, p->n_dram, sizeof *p->dram, by_threads);
    qsort(p->gpu.copies, p->gpu.n_copies, sizeof *p->gpu.copies, by_copy);
    qsort(p->gpu.together, p->gpu.n_together, sizeof *p->gpu.together, by_together);
    qsort(p->gpu.paced, p->gpu.n_paced, sizeof *p->gpu.paced, by_paced);
    best_rates(p);
}
