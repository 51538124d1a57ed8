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

/* Those that may count, as bits: not starved and not at a lowered clock, as far as any are left. */
static uint32_t candidates(const ps_visits *v, double limit_s, bool *out_lowered) {
    uint32_t fed = 0, quick = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        fed |= v->visit[i].starved ? 0 : 1u << i;
        quick |= v->visit[i].clock_s > limit_s ? 0 : 1u << i;
    }
    const uint32_t all = (1u << v->n) - 1;
    *out_lowered = quick == 0;
    quick = quick ? quick : all;
    return fed & quick ? fed & quick : quick;
}

/* The second quickest of the candidates, INFINITY where there is one alone; *out_first: the quickest. */
static double second_of(const ps_visits *v, uint32_t bits, double *out_first) {
    double first = INFINITY, second = INFINITY;
    for (uint32_t i = 0; i < v->n; i++) {
        const double m = v->visit[i].stat.median;
        if (!(bits >> i & 1))
            continue;
        second = fmin(second, fmax(first, m));
        first = fmin(first, m);
    }
    *out_first = first;
    return second;
}

/* Of the candidates the quickest, and with a second that agrees with it those near that one. */
static uint32_t counted(const ps_visits *v, uint32_t bits) {
    double first;
    const double second = second_of(v, bits, &first);
    const double limit = second <= first * (1 + PS_VISITS_AGREE) ? second * (1 + PS_VISITS_NEAR) : first;
    uint32_t out = 0;
    for (uint32_t i = 0; i < v->n; i++)
        if ((bits >> i & 1) && v->visit[i].stat.median <= limit)
            out |= 1u << i;
    return out;
}

bool ps_visits_settled(const ps_visits *v, double limit_s) {
    bool lowered;
    const uint32_t bits = counted(v, candidates(v, limit_s, &lowered));
    uint32_t n = 0;
    double low = INFINITY, high = 0;
    for (uint32_t i = 0; i < v->n; i++)
        if ((bits >> i & 1) && !v->visit[i].starved) {
            const double other = v->visit[i].other.n ? v->visit[i].other.median : 1;
            n++;
            low = fmin(low, other);
            high = fmax(high, other);
        }
    return !lowered && n >= 2 && high <= low * (1 + PS_VISITS_AGREE);
}

static void add(ps_stat *sum, const ps_stat *s) {
    sum->median += s->median;
    sum->q1 += s->q1;
    sum->q3 += s->q3;
    sum->n += s->n;
}

static void divide(ps_stat *sum, uint32_t n_visits, bool noisy, ps_stop stop) {
    *sum = (ps_stat){.n = sum->n,
                     .median = sum->median / n_visits,
                     .q1 = sum->q1 / n_visits,
                     .q3 = sum->q3 / n_visits,
                     .stop = stop,
                     .noisy = noisy};
}

ps_visit ps_visits_result(const ps_visits *v, double limit_s) {
    bool lowered;
    const uint32_t bits = counted(v, candidates(v, limit_s, &lowered));
    ps_visit out = {0};
    double clock_s = INFINITY;
    ps_stop stop = PS_STOP_TIME_CAP;
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        if (!(bits >> i & 1))
            continue;
        const ps_visit *one = &v->visit[i];
        n++;
        add(&out.stat, &one->stat);
        add(&out.other, &one->other);
        out.beside += one->beside;
        clock_s = fmin(clock_s, one->clock_s);
        if (one->stat.stop == PS_STOP_CONVERGED || stop == PS_STOP_TIME_CAP)
            stop = one->stat.stop;
    }
    const bool noisy = v->n > 1 ? !ps_visits_settled(v, limit_s)
                                : v->visit[0].stat.noisy || v->visit[0].other.noisy || lowered;
    out.beside /= n;
    out.clock_s = clock_s;
    divide(&out.stat, n, noisy, stop);
    divide(&out.other, n, noisy, stop);
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
