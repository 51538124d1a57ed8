/* What slows what down: a profile's contention as one list of factors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pstune_internal.h"

enum { FEW_TOKENS = 16 };

/* One kernel at one shape, beside something, against the same alone. */
typedef struct sample {
    bool gpu, many; /* many: tokens, so that arithmetic matters more than memory */
    uint32_t n_threads;
    ps_beside beside;
    double times;
} sample;

static int compare_u64(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b;
}

static int by_shape(const void *va, const void *vb) {
    const ps_profile_point *a = *(const ps_profile_point *const *)va,
                           *b = *(const ps_profile_point *const *)vb;
    int c = compare_u64(a->kernel, b->kernel);
    c = c ? c : compare_u64(a->rows, b->rows);
    c = c ? c : compare_u64(a->cols, b->cols);
    c = c ? c : compare_u64(a->heads_kv, b->heads_kv);
    c = c ? c : compare_u64(a->kv_len, b->kv_len);
    c = c ? c : compare_u64(a->n_tokens, b->n_tokens);
    return c ? c : compare_u64(a->n_threads, b->n_threads);
}

static int by_group(const void *va, const void *vb) {
    const sample *a = va, *b = vb;
    int c = compare_u64(a->gpu, b->gpu);
    c = c ? c : compare_u64(a->beside, b->beside);
    c = c ? c : compare_u64(a->many, b->many);
    c = c ? c : compare_u64(a->n_threads, b->n_threads);
    return c ? c : (a->times > b->times) - (a->times < b->times);
}

/* Ratios of all points that were measured beside something and alone. False: out of memory. */
static bool ratios(const ps_profile *p, sample **out, uint32_t *out_n) {
    const ps_profile_point **idle = calloc((uint64_t)p->n_points + 1, sizeof *idle);
    sample *s = calloc((uint64_t)p->n_points + 1, sizeof *s);
    uint32_t n_idle = 0, n = 0;
    if (!idle || !s) {
        free(idle);
        free(s);
        return false;
    }
    for (uint32_t i = 0; i < p->n_points; i++)
        if (p->points[i].beside == PS_BESIDE_IDLE && p->points[i].time_s.n)
            idle[n_idle++] = &p->points[i];
    qsort(idle, n_idle, sizeof *idle, by_shape);
    for (uint32_t i = 0; i < p->n_points; i++) {
        const ps_profile_point *q = &p->points[i], *const * alone;
        /* DIRECT of a GPU's kernel is another place of its weights, nothing beside. */
        if (q->beside == PS_BESIDE_IDLE || (q->beside == PS_BESIDE_DIRECT && q->n_threads == 0) ||
            !q->time_s.n || !n_idle)
            continue;
        alone = bsearch(&q, idle, n_idle, sizeof *idle, by_shape);
        if (alone)
            s[n++] = (sample){.gpu = q->n_threads == 0,
                              .many = q->n_tokens > FEW_TOKENS,
                              .n_threads = q->n_threads,
                              .beside = q->beside,
                              .times = q->time_s.median / (*alone)->time_s.median};
    }
    free(idle);
    qsort(s, n, sizeof *s, by_group);
    *out = s;
    *out_n = n;
    return true;
}

static const ps_stat *largest_copy(const ps_profile_gpu *g, ps_bus bus) {
    const ps_profile_copy *best = NULL;
    for (uint32_t i = 0; i < g->n_copies; i++)
        if (g->copies[i].bus == bus && g->copies[i].kind == PS_HOST_KIND_PINNED &&
            g->copies[i].bw_bytes_per_s.n && (!best || g->copies[i].bytes > best->bytes))
            best = &g->copies[i];
    return best ? &best->bw_bytes_per_s : NULL;
}

/* Bus and reads at the same time against each alone, of the bus the share that it was held at. */
static void add_both(const ps_profile *p, ps_bus which, uint32_t n_threads, double share_frac,
                     const ps_stat *bus_beside, const ps_stat *dram_beside, ps_tune_slowdown *out,
                     uint32_t *n) {
    const ps_stat *bus = largest_copy(&p->gpu, which), *dram = NULL;
    char name[32];
    if (share_frac < 1)
        snprintf(name, sizeof name, "%s held at %.0f%%", ps_bus_name(which), 100 * share_frac);
    else
        snprintf(name, sizeof name, "%s", ps_bus_name(which));
    for (uint32_t i = 0; i < p->n_dram; i++)
        if (p->dram[i].n_threads == n_threads && p->dram[i].bw_bytes_per_s.n)
            dram = &p->dram[i].bw_bytes_per_s;
    if (bus && bus_beside->n) {
        ps_tune_slowdown *s = &out[(*n)++];
        *s = (ps_tune_slowdown){.times = share_frac * bus->median / bus_beside->median, .n = 1};
        snprintf(s->what, sizeof s->what, "%s beside reads of %u thr", name, n_threads);
    }
    if (dram && dram_beside->n) {
        ps_tune_slowdown *s = &out[(*n)++];
        *s = (ps_tune_slowdown){.times = dram->median / dram_beside->median, .n = 1};
        snprintf(s->what, sizeof s->what, "reads of %u thr beside %s", n_threads, name);
    }
}

bool ps_tune_slowdowns(const ps_profile *p, ps_tune_slowdown **out, uint32_t *out_n) {
    sample *s;
    uint32_t n_samples, n = 0;
    if (!ratios(p, &s, &n_samples))
        return false;
    ps_tune_slowdown *list =
        calloc((uint64_t)n_samples + 2 * ((uint64_t)p->gpu.n_together + p->gpu.n_paced) + 1, sizeof *list);
    for (uint32_t i = 0, j; list && i < n_samples; i = j) {
        for (j = i; j < n_samples && s[j].gpu == s[i].gpu && s[j].beside == s[i].beside &&
                    s[j].many == s[i].many && s[j].n_threads == s[i].n_threads;
             j++)
            ;
        ps_tune_slowdown *d = &list[n++];
        d->n = j - i;
        d->times = (s[i + (j - i) / 2].times + s[i + (j - i - 1) / 2].times) / 2;
        if (s[i].gpu)
            snprintf(d->what, sizeof d->what, "GPU kernels, %s tokens, beside %s", s[i].many ? "many" : "few",
                     ps_beside_name(s[i].beside));
        else
            snprintf(d->what, sizeof d->what, "CPU kernels of %u thr, %s tokens, beside %s", s[i].n_threads,
                     s[i].many ? "many" : "few", ps_beside_name(s[i].beside));
    }
    for (uint32_t i = 0; list && i < p->gpu.n_together; i++) {
        const ps_profile_together *t = &p->gpu.together[i];
        add_both(p, t->bus, t->n_threads, 1, &t->bus_bytes_per_s, &t->dram_bytes_per_s, list, &n);
    }
    for (uint32_t i = 0; list && i < p->gpu.n_paced; i++) {
        const ps_profile_paced *t = &p->gpu.paced[i];
        add_both(p, t->bus, t->n_threads, t->share_frac, &t->bus_bytes_per_s, &t->dram_bytes_per_s, list, &n);
    }
    free(s);
    *out = list;
    *out_n = n;
    return list != NULL;
}
