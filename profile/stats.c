/* Statistics of repeated measurements. */
#include "profile/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool ps_series_add(ps_series *s, double value, bool disturbed) {
    if (s->n >= PS_STATS_MAX_SAMPLES)
        return false;
    s->samples[s->n++] = (ps_sample){value, disturbed};
    s->n_disturbed += disturbed;
    return true;
}

double ps_quantile_sorted(const double *sorted, uint32_t n, double f) {
    const double at = f * (double)(n - 1);
    const uint32_t i = (uint32_t)at;
    if (i + 1 >= n)
        return sorted[n - 1];
    return sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]);
}

bool ps_median_ci_ranks(uint32_t n, uint32_t *lo, uint32_t *hi) {
    /* With ranks k and n-1-k the interval misses the median with probability 2 P(X <= k), X ~ Bin(n, 1/2):
     * the largest k for which that is at most 5%. */
    if (n < 6 || n > PS_STATS_MAX_SAMPLES)
        return false;
    double term = ldexp(1.0, -(int)n); /* P(X = 0); 2^-1000 is still a normal number */
    double sum = term;
    uint32_t k = 0;
    while (k + 1 < n / 2) {
        const double next = term * (double)(n - k) / (double)(k + 1);
        if (2 * (sum + next) > 0.05)
            break;
        k++;
        term = next;
        sum += term;
    }
    *lo = k;
    *hi = n - 1 - k;
    return true;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* A sample longer than the lowest tenth by this was slowed by something that no counter of ours tells: another guest of the host
 * on the same core, a host that had other plans. */
static const double slowed_frac = 0.15;

/* Values that count, in the order taken; returns how many. */
static uint32_t pick(const ps_series *s, double *out) {
    double sorted[PS_STATS_MAX_SAMPLES];
    const bool any_clean = s->n > s->n_disturbed;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (!any_clean || !s->samples[i].disturbed)
            sorted[n++] = s->samples[i].value;
    if (n == 0)
        return 0;
    qsort(sorted, n, sizeof *sorted, by_value);
    /* What disturbs only ever adds: where all are disturbed the lowest quarter is nearest to the truth. */
    const double limit =
        any_clean ? (1 + slowed_frac) * ps_quantile_sorted(sorted, n, 0.1) : sorted[(n - 1) / 4];
    n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if ((!any_clean || !s->samples[i].disturbed) && s->samples[i].value <= limit)
            out[n++] = s->samples[i].value;
    return n;
}

bool ps_series_done(const ps_series *s, const ps_stop_rule *rule, double spent_s, ps_stop *out_stop) {
    if (s->n < rule->min_samples)
        return false;
    /* Looking after every sample would stop at lucky moments and cost a sort each time. */
    const bool look = s->n < 16 || s->n % (s->n < 128 ? 8 : 32) == 0;
    if (look) {
        double v[PS_STATS_MAX_SAMPLES];
        const uint32_t n = pick(s, v);
        uint32_t lo, hi;
        qsort(v, n, sizeof *v, by_value);
        if (ps_median_ci_ranks(n, &lo, &hi) &&
            v[hi] - v[lo] <= rule->target_frac * ps_quantile_sorted(v, n, 0.5)) {
            *out_stop = PS_STOP_CONVERGED;
            return true;
        }
    }
    if (s->n >= rule->max_samples || s->n >= PS_STATS_MAX_SAMPLES) {
        *out_stop = PS_STOP_SAMPLE_CAP;
        return true;
    }
    const bool starved = s->n - s->n_disturbed < rule->min_samples;
    if (spent_s >= rule->cap_s * (starved ? rule->patience : 1)) {
        *out_stop = PS_STOP_TIME_CAP;
        return true;
    }
    return false;
}

static double median_of(const double *v, uint32_t n, double *room) {
    memcpy(room, v, n * sizeof *v);
    qsort(room, n, sizeof *room, by_value);
    return ps_quantile_sorted(room, n, 0.5);
}

ps_stat ps_series_summary(const ps_series *s, ps_stop stop) {
    double v[PS_STATS_MAX_SAMPLES], room[PS_STATS_MAX_SAMPLES];
    ps_stat out = {.stop = stop};
    const uint32_t n = pick(s, v);
    if (n == 0)
        return out;
    const bool drift =
        n >= 24 && fabs(median_of(v, n / 2, room) / median_of(v + n / 2, n - n / 2, room) - 1) > 0.03;
    qsort(v, n, sizeof *v, by_value);
    out.n = n;
    out.median = ps_quantile_sorted(v, n, 0.5);
    out.q1 = ps_quantile_sorted(v, n, 0.25);
    out.q3 = ps_quantile_sorted(v, n, 0.75);
    out.noisy = 3 * (uint64_t)n < s->n || drift || out.q3 - out.q1 > 0.1 * out.median;
    return out;
}
