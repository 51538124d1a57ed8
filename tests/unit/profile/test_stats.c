/* Statistics: quantiles, order-statistic intervals, stopping, disturbed samples. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "profile/stats.h"

Test(stats, quantiles_between_ranks) {
    const double v[] = {1, 2, 4, 8};
    cr_expect_float_eq(ps_quantile_sorted(v, 4, 0.5), 3, 1e-12);
    cr_expect_float_eq(ps_quantile_sorted(v, 4, 0.25), 1.75, 1e-12);
    cr_expect_float_eq(ps_quantile_sorted(v, 4, 0), 1, 1e-12);
    cr_expect_float_eq(ps_quantile_sorted(v, 4, 1), 8, 1e-12);
    cr_expect_float_eq(ps_quantile_sorted(v, 1, 0.5), 1, 1e-12);
}

/* Ranks from published tables of the sign-test interval (1-based there: 6 -> 1..6, 10 -> 2..9, 20 -> 6..15,
 * 50 -> 18..33, 100 -> 40..61). */
Test(stats, median_interval_ranks) {
    static const struct {
        uint32_t n, lo, hi;
    } table[] = {{6, 1, 6}, {8, 1, 8}, {9, 2, 8}, {10, 2, 9}, {20, 6, 15}, {50, 18, 33}, {100, 40, 61}};
    uint32_t lo, hi;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        cr_assert(ps_median_ci_ranks(table[i].n, &lo, &hi));
        cr_expect_eq(lo + 1, table[i].lo, "n %u: %u", table[i].n, lo + 1);
        cr_expect_eq(hi + 1, table[i].hi, "n %u: %u", table[i].n, hi + 1);
    }
    cr_expect_not(ps_median_ci_ranks(5, &lo, &hi));
    cr_expect(ps_median_ci_ranks(1000, &lo, &hi));
    cr_expect(lo > 460 && lo < 470, "%u", lo);
}

Test(stats, stops_when_sure_and_says_why) {
    ps_series *s = calloc(1, sizeof *s);
    const ps_stop_rule rule = {
        .min_samples = 3, .max_samples = 20, .target_frac = 0.01, .cap_s = 1, .patience = 2};
    ps_stop stop;
    for (int i = 0; i < 5; i++) {
        ps_series_add(s, 1, false);
        cr_expect_not(ps_series_done(s, &rule, 0, &stop), "five equal samples prove nothing");
    }
    ps_series_add(s, 1, false);
    cr_expect(ps_series_done(s, &rule, 0, &stop));
    cr_expect_eq(stop, PS_STOP_CONVERGED);

    s->n = 0;
    for (int i = 0; i < 8; i++)
        ps_series_add(s, i % 2 ? 1 : 1.2, false);
    cr_expect_not(ps_series_done(s, &rule, 0.5, &stop));
    cr_expect(ps_series_done(s, &rule, 1, &stop));
    cr_expect_eq(stop, PS_STOP_TIME_CAP);
    while (s->n < 20)
        ps_series_add(s, s->n % 2 ? 1 : 1.2, false);
    cr_expect(ps_series_done(s, &rule, 0.5, &stop));
    cr_expect_eq(stop, PS_STOP_SAMPLE_CAP);
    /* Two samples are too few whatever the time. */
    s->n = 2;
    cr_expect_not(ps_series_done(s, &rule, 100, &stop));
    free(s);
}

Test(stats, disturbed_samples_are_left_out_while_enough_remain) {
    ps_series *s = calloc(1, sizeof *s);
    for (int i = 0; i < 30; i++)
        ps_series_add(s, i % 3 == 2 ? 5 : 1 + i * 1e-4, i % 3 == 2);
    ps_stat st = ps_series_summary(s, PS_STOP_CONVERGED);
    cr_expect_eq(st.n, 20);
    cr_expect_lt(st.q3, 1.01);
    cr_expect_not(st.noisy);
    /* Where nearly all are disturbed the rest still counts, and the result says so. */
    for (int i = 0; i < 30; i++)
        s->samples[i].disturbed = i != 3;
    s->n_disturbed = 29;
    st = ps_series_summary(s, PS_STOP_TIME_CAP);
    cr_expect_eq(st.n, 1);
    cr_expect_float_eq(st.median, s->samples[3].value, 1e-12);
    cr_expect(st.noisy);
    s->samples[3].disturbed = true;
    s->n_disturbed = 30;
    st = ps_series_summary(s, PS_STOP_TIME_CAP); /* nothing is: the lowest quarter */
    cr_expect_eq(st.n, 8);
    cr_expect_lt(st.q3, 1.01);
    cr_expect(st.noisy);
    /* Waits longer for undisturbed samples, but not for ever. */
    const ps_stop_rule rule = {
        .min_samples = 3, .max_samples = 100, .target_frac = 0.01, .cap_s = 1, .patience = 2};
    ps_stop stop;
    cr_expect_not(ps_series_done(s, &rule, 1.5, &stop));
    cr_expect(ps_series_done(s, &rule, 2, &stop));
    cr_expect_eq(stop, PS_STOP_TIME_CAP);
    free(s);
}

Test(stats, drift_and_spread_are_noise) {
    ps_series *s = calloc(1, sizeof *s);
    for (int i = 0; i < 40; i++)
        ps_series_add(s, i < 20 ? 1 : 1.05, false); /* throttled half way */
    cr_expect(ps_series_summary(s, PS_STOP_TIME_CAP).noisy);
    s->n = 0;
    for (int i = 0; i < 40; i++)
        ps_series_add(s, 1 + (i % 8) * 0.1, false);
    ps_stat st = ps_series_summary(s, PS_STOP_TIME_CAP);
    cr_expect(st.noisy, "most were slowed");
    cr_expect_eq(st.n, 10);
    cr_expect_float_eq(st.median, 1.05, 1e-9);
    s->n = 0;
    for (int i = 0; i < 40; i++)
        ps_series_add(s, 1 + (i % 2) * 0.12, false);
    st = ps_series_summary(s, PS_STOP_TIME_CAP);
    cr_expect_eq(st.n, 40, "neither mode is far from the other");
    cr_expect(st.noisy);
    free(s);
}

/* Another guest on the same core: nothing says so but that samples are longer. */
Test(stats, slowed_samples_are_left_out) {
    ps_series *s = calloc(1, sizeof *s);
    for (int i = 0; i < 50; i++)
        ps_series_add(s, (i % 5 < 2 ? 1.4 : 1) + i * 1e-4, false);
    const ps_stat st = ps_series_summary(s, PS_STOP_TIME_CAP);
    cr_expect_eq(st.n, 30);
    cr_expect_lt(st.median, 1.01);
    cr_expect_not(st.noisy);
    free(s);
}

Test(stats, a_full_series_takes_no_more) {
    ps_series *s = calloc(1, sizeof *s);
    for (int i = 0; i < PS_STATS_MAX_SAMPLES; i++)
        cr_assert(ps_series_add(s, 1, false));
    cr_expect_not(ps_series_add(s, 1, false));
    cr_expect_eq(s->n, PS_STATS_MAX_SAMPLES);
    free(s);
}
