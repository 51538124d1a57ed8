/* Which visits count, and what they say together. */
#include "profile/visits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void ps_visits_add(ps_visits *v, const ps_visit *visit) {
    if (v->n < PS_VISITS) {
        v->visit[v->n++] = *visit;
        return;
    }
    uint32_t slowest = 0;
    for (uint32_t i = 1; i < v->n; i++)
        if (v->visit[i].stat.median > v->visit[slowest].stat.median)
            slowest = i;
    if (visit->stat.median < v->visit[slowest].stat.median)
        v->visit[slowest] = *visit;
}

/* Those that may count, as bits: not at a lowered clock, or all if none is left. */
static uint32_t candidates(const ps_visits *v, double limit_s, bool *out_lowered) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < v->n; i++)
        if (!(v->visit[i].clock_s > limit_s))
            bits |= 1u << i;
    *out_lowered = bits == 0;
    return bits ? bits : (1u << v->n) - 1;
}

/* Of the candidates those within PS_VISITS_AGREE of the quickest. */
static uint32_t agreeing(const ps_visits *v, uint32_t bits) {
    double best = INFINITY;
    uint32_t out = 0;
    for (uint32_t i = 0; i < v->n; i++)
        if (bits >> i & 1)
            best = fmin(best, v->visit[i].stat.median);
    for (uint32_t i = 0; i < v->n; i++)
        if ((bits >> i & 1) && v->visit[i].stat.median <= best * (1 + PS_VISITS_AGREE))
            out |= 1u << i;
    return out;
}

bool ps_visits_settled(const ps_visits *v, double limit_s) {
    bool lowered;
    const uint32_t bits = agreeing(v, candidates(v, limit_s, &lowered));
    uint32_t n = 0;
    double low = INFINITY, high = 0;
    for (uint32_t i = 0; i < v->n; i++)
        if ((bits >> i & 1) && !v->visit[i].starved) {
            const double other = v->visit[i].other.n ? v->visit[i].other.median : 1;
            n++;
            low = fmin(low, other);
            high = fmax(high, other);
        }
    return !lowered && n >= 2 && high <= low * (1 + 2 * PS_VISITS_AGREE);
}

/* Weighted by samples: medians of the same thing. */
static void add_weighted(ps_stat *sum, const ps_stat *s) {
    const double w = s->n;
    sum->median += w * s->median;
    sum->q1 += w * s->q1;
    sum->q3 += w * s->q3;
    sum->n += s->n;
}

static void divide(ps_stat *sum, bool noisy, ps_stop stop) {
    const double n = sum->n ? sum->n : 1;
    *sum = (ps_stat){.n = sum->n,
                     .median = sum->median / n,
                     .q1 = sum->q1 / n,
                     .q3 = sum->q3 / n,
                     .stop = stop,
                     .noisy = noisy};
}

ps_visit ps_visits_result(const ps_visits *v, double limit_s) {
    bool lowered;
    const uint32_t bits = agreeing(v, candidates(v, limit_s, &lowered));
    ps_visit out = {0};
    double clock_s = INFINITY;
    ps_stop stop = PS_STOP_TIME_CAP;
    for (uint32_t i = 0; i < v->n; i++) {
        if (!(bits >> i & 1))
            continue;
        const ps_visit *one = &v->visit[i];
        add_weighted(&out.stat, &one->stat);
        add_weighted(&out.other, &one->other);
        out.beside += one->stat.n * one->beside;
        clock_s = fmin(clock_s, one->clock_s);
        if (one->stat.stop == PS_STOP_CONVERGED || stop == PS_STOP_TIME_CAP)
            stop = one->stat.stop;
    }
    const bool noisy = v->n > 1 ? !ps_visits_settled(v, limit_s)
                                : v->visit[0].stat.noisy || v->visit[0].other.noisy || lowered;
    out.beside /= out.stat.n ? out.stat.n : 1;
    out.clock_s = clock_s;
    divide(&out.stat, noisy, stop);
    divide(&out.other, noisy, stop);
    return out;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double ps_clock_limit(const double *probes, uint32_t n, double *room) {
    if (n == 0)
        return INFINITY;
    memcpy(room, probes, n * sizeof *room);
    qsort(room, n, sizeof *room, by_value);
    return 1.08 * ps_quantile_sorted(room, n, 0.25);
}
