/* Statistics of repeated measurements: median with quartiles, a confidence interval that assumes nothing of the
 * distribution, and the rule when to stop sampling. */
#ifndef PS_PROFILE_STATS_H
#define PS_PROFILE_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "schemas/machine_profile.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PS_STATS_MAX_SAMPLES = 1000 };

/* One sample: a value, and whether the system took a CPU away while it was taken. */
typedef struct ps_sample {
    double value;
    bool disturbed;
} ps_sample;

/* When to stop. The confidence interval is 95%, its whole width counts: target_frac 0.01 means that the median is
 * known to about half a percent either way. */
typedef struct ps_stop_rule {
    uint32_t min_samples, max_samples; /* at most PS_STATS_MAX_SAMPLES */
    double target_frac;
    double cap_s;    /* time that may be spent on samples; min_samples are taken all the same */
    double patience; /* times cap_s, while fewer than min_samples were undisturbed; at least 1 */
} ps_stop_rule;

/* Samples of one quantity. Zero-initialise; about 16 KB, plain data. */
typedef struct ps_series {
    uint32_t n, n_disturbed;
    ps_sample samples[PS_STATS_MAX_SAMPLES];
} ps_series;

/* Appends; false when full. */
bool ps_series_add(ps_series *s, double value, bool disturbed);

/* Quantile f (0 to 1) of n ascending values, linear between ranks. n at least 1. */
double ps_quantile_sorted(const double *sorted, uint32_t n, double f);

/* Ranks (0-based, *lo <= *hi) of the order statistics that enclose the median with at least 95% confidence, by the
 * binomial distribution. False when n is too small for it (below 6). */
bool ps_median_ci_ranks(uint32_t n, uint32_t *lo, uint32_t *hi);

/* Whether to stop after the samples so far and spent_s, and why. */
bool ps_series_done(const ps_series *s, const ps_stop_rule *rule, double spent_s, ps_stop *out_stop);

/* Summary of the undisturbed samples, however few: what the machine does when left alone is wanted. Where
 * none is, of the lowest quarter of all, since what disturbs only ever adds. Of undisturbed ones those more than 15% above their lowest
 * tenth are left out as well: what shares a core with a guest of a host is in no counter. Values are times, not rates. noisy: quartiles
 * further apart than 10% of the median, two thirds of the samples left out, or
 * the second half of the samples more than 3% off the first (drift). */
ps_stat ps_series_summary(const ps_series *s, ps_stop stop);

#ifdef __cplusplus
}
#endif
#endif
