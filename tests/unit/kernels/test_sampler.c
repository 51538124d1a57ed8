/* The sampler: draws that are the same on every machine, each filter alone and in order, not-finite logits,
 * refused parameters, and that frequencies are the probabilities. */
#include <criterion/criterion.h>
#include <math.h>

#include "kernels/sampler.h"

static ps_sampler *make(ps_sampler_params p, uint32_t n) {
    ps_sampler *s = NULL;
    ps_error err;
    cr_assert_eq(ps_sampler_new(&p, n, &s, &err), PS_OK);
    return s;
}

static int32_t once(ps_sampler_params p, const float *logits, uint32_t n) {
    ps_sampler *s = make(p, n);
    const int32_t id = ps_sampler_pick(s, logits);
    ps_sampler_free(s);
    return id;
}

/* Tokens of 16 draws over logits sin(1.7 i) * 4, from an independent program (sort, sum and compare in
 * Python, SplitMix64 by its definition). */
Test(sampler, draws_of_an_independent_program) {
    static const struct {
        ps_sampler_params p;
        int32_t ids[16];
    } rows[] = {
        {{.temperature = 1, .top_p = 1, .seed = 1234},
         {38, 30, 9, 16, 38, 34, 23, 12, 19, 41, 5, 12, 38, 30, 49, 49}},
        {{.temperature = 0.7f, .top_k = 5, .top_p = 1, .seed = 99},
         {49, 12, 38, 12, 12, 49, 23, 23, 1, 1, 1, 23, 49, 1, 12, 23}},
        {{.temperature = 1.5f, .top_p = 0.8f, .seed = 7},
         {23, 12, 5, 27, 38, 1, 38, 23, 49, 38, 49, 19, 5, 8, 8, 34}},
        {{.temperature = 2, .top_k = 20, .top_p = 0.9f, .min_p = 0.1f, .seed = UINT64_MAX},
         {19, 42, 1, 38, 16, 5, 42, 1, 8, 12, 12, 5, 12, 19, 1, 16}},
    };
    float logits[50];
    for (int i = 0; i < 50; i++)
        logits[i] = (float)(sin(i * 1.7) * 4);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        ps_sampler *s = make(rows[r].p, 50);
        for (int i = 0; i < 16; i++)
            cr_assert_eq(ps_sampler_pick(s, logits), rows[r].ids[i], "row %zu draw %d", r, i);
        ps_sampler_free(s);
    }
}

Test(sampler, greedy_takes_the_lowest_of_equals) {
    const ps_sampler_params greedy = {.top_p = 1};
    const float tie[] = {1, 3, 3, 2}, flat[] = {0, 0, 0, 0}, below[] = {-5, -4, -4, -9};
    cr_assert_eq(once(greedy, tie, 4), 1);
    cr_assert_eq(once(greedy, flat, 4), 0);
    cr_assert_eq(once(greedy, below, 4), 1);
}

Test(sampler, one_candidate_is_greedy) {
    const float logits[] = {0.5f, 2, 2, -1};
    for (uint64_t seed = 0; seed < 50; seed++) {
        const ps_sampler_params one = {.temperature = 5, .top_k = 1, .top_p = 1, .seed = seed};
        const ps_sampler_params share = {.temperature = 5, .top_p = 1e-6f, .seed = seed};
        const ps_sampler_params best = {.temperature = 5, .top_p = 1, .min_p = 1, .seed = seed};
        cr_assert_eq(once(one, logits, 4), 1);
        cr_assert_eq(once(share, logits, 4), 1);
        const int32_t id = once(best, logits, 4);
        cr_assert(id == 1 || id == 2);
    }
}

Test(sampler, not_finite_logits) {
    const float nans[] = {NAN, -INFINITY, 1, NAN, 1}, tops[] = {0, INFINITY, NAN, INFINITY, 1e30f};
    const float nothing[] = {NAN, NAN, -INFINITY}, single[] = {-INFINITY, -3e38f, -INFINITY};
    for (uint64_t seed = 0; seed < 100; seed++) {
        for (int greedy = 0; greedy < 2; greedy++) {
            const ps_sampler_params p = {.temperature = greedy ? 0 : 1, .top_p = 0.95f, .seed = seed};
            /* NaN is never chosen, nor -inf. */
            int32_t id = once(p, nans, 5);
            cr_assert(id == 2 || (!greedy && id == 4));
            /* +inf takes all there is. */
            id = once(p, tops, 5);
            cr_assert(id == 1 || (!greedy && id == 3));
            cr_assert_eq(once(p, nothing, 3), 0);
            cr_assert_eq(once(p, single, 3), 1);
        }
    }
}

/* Pearson's statistic of `n` draws against probabilities p. */
static double chi_square(ps_sampler_params params, const float *logits, const double *p, int kinds, int n) {
    int count[16] = {0};
    ps_sampler *s = make(params, (uint32_t)kinds);
    for (int i = 0; i < n; i++)
        count[ps_sampler_pick(s, logits)]++;
    ps_sampler_free(s);
    double x = 0;
    for (int i = 0; i < kinds; i++) {
        if (p[i] == 0)
            cr_assert_eq(count[i], 0, "token %d must never come", i);
        else
            x += (count[i] - n * p[i]) * (count[i] - n * p[i]) / (n * p[i]);
    }
    return x;
}

/* 0.1% points of chi-square for 1, 2 and 7 degrees of freedom. */
#define CHI1 10.8
#define CHI2 13.8
#define CHI7 24.3

Test(sampler, frequencies_are_probabilities) {
    const float logits[8] = {0, 1, -1, 0.5f, 2, -2, 1.5f, 0.25f};
    double p[8], sum = 0;
    for (int i = 0; i < 8; i++)
        sum += p[i] = exp((double)logits[i] / 0.8);
    for (int i = 0; i < 8; i++)
        p[i] /= sum;
    ps_sampler_params params = {.temperature = 0.8f, .top_p = 1, .seed = 11};
    cr_assert_lt(chi_square(params, logits, p, 8, 20000), CHI7);
    /* The wrong temperature must be noticed. */
    params.temperature = 0.9f;
    cr_assert_gt(chi_square(params, logits, p, 8, 20000), CHI7);
    /* The three likeliest. */
    const double three = exp(2) + exp(1.5) + exp(1);
    const double k3[8] = {0, exp(1) / three, 0, 0, exp(2) / three, 0, exp(1.5) / three, 0};
    params = (ps_sampler_params){.temperature = 1, .top_k = 3, .top_p = 1, .seed = 5};
    cr_assert_lt(chi_square(params, logits, k3, 8, 20000), CHI2);
}

Test(sampler, filters_keep_what_they_say) {
    /* Probabilities 0.125, 0.5, 0.25, 0.125. */
    const float logits[4] = {logf(0.125f), logf(0.5f), logf(0.25f), logf(0.125f)};
    const double half[4] = {0, 1, 0, 0}, two[4] = {0, 2.0 / 3, 1.0 / 3, 0};
    const double three[4] = {1.0 / 7, 4.0 / 7, 2.0 / 7, 0};
    ps_sampler_params p = {.temperature = 1, .top_p = 0.49f};
    cr_assert_eq(chi_square(p, logits, half, 4, 2000), 0);
    p.top_p = 0.74f;
    cr_assert_lt(chi_square(p, logits, two, 4, 20000), CHI1);
    p.top_p = 0.8f;
    cr_assert_lt(chi_square(p, logits, three, 4, 20000), CHI2);
    /* After top_k the shares are of what is left: 0.5 of 0.75 is two thirds. */
    p.top_k = 2;
    p.top_p = 0.6f;
    cr_assert_eq(chi_square(p, logits, half, 4, 2000), 0);
    p.top_p = 0.7f;
    cr_assert_lt(chi_square(p, logits, two, 4, 20000), CHI1);
    /* min_p is measured at temperature 1: 0.3 of the largest keeps two, whatever the temperature. */
    const double flat = sqrt(0.5) + sqrt(0.25), hot[4] = {0, sqrt(0.5) / flat, sqrt(0.25) / flat, 0};
    p = (ps_sampler_params){.temperature = 2, .top_p = 1, .min_p = 0.3f};
    cr_assert_lt(chi_square(p, logits, hot, 4, 20000), CHI1);
}

/* The partial sort over a large, flat vocabulary must find the set that sorting all of it would. */
Test(sampler, top_p_over_a_large_vocabulary) {
    enum { N = 5000 };
    static float logits[N];
    for (int i = 0; i < N; i++)
        logits[i] = (float)((i * 7919) % N) * 1e-3f; /* a permutation of 0 to 4.999 */
    double total = 0, sum = 0;
    for (int i = 0; i < N; i++)
        total += exp(i * 1e-3);
    int kept = 0;
    for (int i = N - 1; sum < 0.5 * total; i--, kept++)
        sum += exp(i * 1e-3);
    ps_sampler *s = make((ps_sampler_params){.temperature = 3, .top_p = 0.5f, .seed = 3}, N);
    double least = 10;
    for (int i = 0; i < 2000; i++) {
        const double l = (double)logits[ps_sampler_pick(s, logits)];
        least = l < least ? l : least;
        cr_assert_geq(l, (N - kept) * 1e-3 - 1e-6);
    }
    cr_assert_lt(least, (N - kept) * 1e-3 + 0.02, "the tail of the kept set comes up too");
    ps_sampler_free(s);
}

Test(sampler, refuses_parameters_by_name) {
    static const struct {
        ps_sampler_params p;
        uint32_t n;
        const char *subject;
    } bad[] = {
        {{.temperature = -1, .top_p = 1}, 4, "temperature"},
        {{.temperature = NAN, .top_p = 1}, 4, "temperature"},
        {{.temperature = INFINITY, .top_p = 1}, 4, "temperature"},
        {{.temperature = 1, .top_p = 0}, 4, "top_p"},
        {{.temperature = 1, .top_p = 1.5f}, 4, "top_p"},
        {{.temperature = 1, .top_p = NAN}, 4, "top_p"},
        {{.temperature = 1, .top_p = 1, .min_p = -0.1f}, 4, "min_p"},
        {{.temperature = 1, .top_p = 1, .min_p = NAN}, 4, "min_p"},
        {{.temperature = 1, .top_p = 1}, 0, "vocabulary"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ps_sampler *s = NULL;
        ps_error err;
        cr_assert_eq(ps_sampler_new(&bad[i].p, bad[i].n, &s, &err), PS_E_USAGE);
        cr_assert_str_eq(err.subject, bad[i].subject);
        cr_assert_null(s);
    }
}
