/* Choice of the next token. Everything that decides (exponentials, sums, draws) is done in double with
 * operations that IEEE 754 fixes, so the same logits and seed give the same tokens on any machine.
 *
 * Generator: SplitMix64 (Steele, Lea, Flood 2014) as a counter: draw i of seed s is mix(s + (i+1)*golden); the
 * top 53 bits make a number in [0, 1).
 * Not-finite logits: NaN counts as -inf. Tokens at +inf, if any, share the probability among themselves.
 * If every logit is NaN or -inf, token 0 is chosen. Weights below e^-700 of the largest count as 0.
 *
 * Each filter sees the probabilities of the tokens that the filters before it kept. */
#include "kernels/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A candidate: its logit's rank is (larger logit, then smaller id). */
typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct ps_sampler {
    ps_sampler_params params;
    uint32_t n_vocab;
    uint64_t draws;
    candidate *cand; /* [n_vocab], as the weights; both NULL when greedy */
    double *weight;
};

ps_status ps_sampler_new(const ps_sampler_params *params, uint32_t n_vocab, ps_sampler **out, ps_error *err) {
    if (!(params->temperature >= 0) || isinf(params->temperature))
        return ps_error_set(err, PS_E_USAGE, "temperature", "must be a finite number, 0 or more");
    if (!(params->top_p > 0 && params->top_p <= 1))
        return ps_error_set(err, PS_E_USAGE, "top_p", "must be above 0 and at most 1");
    if (!(params->min_p >= 0 && params->min_p <= 1))
        return ps_error_set(err, PS_E_USAGE, "min_p", "must be between 0 and 1");
    if (n_vocab == 0 || n_vocab > INT32_MAX)
        return ps_error_set(err, PS_E_USAGE, "vocabulary", "of %u tokens is out of range", (unsigned)n_vocab);
    ps_sampler *s = calloc(1, sizeof *s);
    if (!s)
        goto no_memory;
    s->params = *params;
    s->n_vocab = n_vocab;
    if (params->temperature > 0) {
        s->cand = calloc(n_vocab, sizeof *s->cand);
        s->weight = calloc(n_vocab, sizeof *s->weight);
        if (!s->cand || !s->weight)
            goto no_memory;
    }
    *out = s;
    return PS_OK;
no_memory:
    ps_sampler_free(s);
    return ps_error_set(err, PS_E_NOMEM, "sampler", "out of memory");
}

void ps_sampler_free(ps_sampler *sampler) {
    if (!sampler)
        return;
    free(sampler->cand);
    free(sampler->weight);
    free(sampler);
}

static double draw(ps_sampler *s) {
    uint64_t z = s->params.seed + ++s->draws * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* Two doubles; GCC and Clang lower them to what the target has, with the same results everywhere. */
typedef double vd __attribute__((vector_size(16)));
typedef uint64_t vu __attribute__((vector_size(16)));

/* e^x for x <= 0 from sums and products alone: libraries differ in the last bit. Relative error under 1e-15;
 * 0 below -700. x = k ln 2 + r, Taylor series of e^r to degree 13, k added to the exponent. */
static vd exp_neg(vd x) {
    static const double inv_fact[] = {1,
                                      1.0 / 2,
                                      1.0 / 6,
                                      1.0 / 24,
                                      1.0 / 120,
                                      1.0 / 720,
                                      1.0 / 5040,
                                      1.0 / 40320,
                                      1.0 / 362880,
                                      1.0 / 3628800,
                                      1.0 / 39916800,
                                      1.0 / 479001600,
                                      1.0 / 6227020800};
    const double magic = 6755399441055744.0; /* 1.5 * 2^52: the sum has the rounded integer in its low bits */
    const vu live = (vu)(x > (vd){-700, -700});
    vu bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= live;
    memcpy(&x, &bits, sizeof x);
    const vd shifted = x * 1.4426950408889634 + magic;
    const vd k = shifted - magic;
    const vd r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    vd p = r * inv_fact[12] + inv_fact[11];
    for (int i = 10; i >= 0; i--)
        p = p * r + inv_fact[i];
    p = p * r + 1.0;
    memcpy(&bits, &shifted, sizeof bits);
    vu out;
    memcpy(&out, &p, sizeof out);
    out = (out + (bits << 52)) & live;
    memcpy(&p, &out, sizeof p);
    return p;
}

static int32_t greedy(const float *logits, uint32_t n) {
    float best = -INFINITY;
    int32_t id = 0;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] > best) {
            best = logits[i];
            id = (int32_t)i;
        }
    return id;
}

/* Does a rank before b? */
static bool before(candidate a, candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void swap(candidate *a, candidate *b) {
    const candidate t = *a;
    *a = *b;
    *b = t;
}

/* Heap over c[0, n) with the last-ranked on top: let c[i] sink to its place. */
static void sift(candidate *c, uint32_t i, uint32_t n) {
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(c[child], c[child + 1]))
            child++;
        if (!before(c[i], c[child]))
            return;
        swap(c + i, c + child);
    }
}

/* Bring the k first-ranked of c[0, n) to the front, sorted. */
static void sort_top(candidate *c, uint32_t n, uint32_t k) {
    for (uint32_t i = k / 2; i-- > 0;)
        sift(c, i, k);
    for (uint32_t i = k; i < n; i++)
        if (before(c[i], c[0])) {
            swap(c, c + i);
            sift(c, 0, k);
        }
    for (uint32_t i = k; i-- > 1;) {
        swap(c, c + i);
        sift(c, 0, i);
    }
}

/* w[i] = e^((logit - top) / temperature) for c[0, n); returns their sum, added up in order. */
static double weigh(const candidate *c, uint32_t n, float top, float temperature, double *w) {
    double total = 0;
    for (uint32_t i = 0; i < n; i += 2) {
        vd x = {0};
        const uint32_t len = n - i < 2 ? n - i : 2;
        for (uint32_t j = 0; j < len; j++)
            x[j] = ((double)c[i + j].logit - (double)top) / (double)temperature;
        x = exp_neg(x);
        for (uint32_t j = 0; j < len; j++)
            total += w[i + j] = x[j];
    }
    return total;
}

/* How many of c[0, n) make up a share top_p of their probability, most likely first; sorts that many
 * and works in growing steps, since a peaked distribution needs only a few. sorted: how many already are. */
static uint32_t keep_top_p(candidate *c, uint32_t n, uint32_t sorted, float top, double top_p, double *w) {
    const double total = weigh(c, n, top, 1, w);
    double sum = 0;
    uint32_t known = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i == sorted) {
            const uint32_t more = n - i < 4 * i + 64 ? n - i : 4 * i + 64;
            sort_top(c + i, n - i, more);
            sorted += more;
        }
        if (i == known) {
            weigh(c + i, sorted - i, top, 1, w + i);
            known = sorted;
        }
        sum += w[i];
        if (sum >= top_p * total)
            return i + 1;
    }
    return n;
}

int32_t ps_sampler_pick(ps_sampler *s, const float *logits) {
    const ps_sampler_params *p = &s->params;
    const int32_t best = greedy(logits, s->n_vocab);
    if (p->temperature == 0)
        return best;
    const double u = draw(s);
    const float max = logits[best];
    if (!(max > -INFINITY))
        return 0;
    /* Candidates: what can be drawn at all. Beside +inf nothing finite can. */
    candidate *c = s->cand;
    uint32_t n = 0, sorted = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (!(logits[i] > -INFINITY) || (isinf(max) && logits[i] < max))
            continue;
        c[n++] = (candidate){isinf(max) ? 0 : logits[i], (int32_t)i};
    }
    const float top = isinf(max) ? 0 : max;
    if (p->top_k && p->top_k < n) {
        sort_top(c, n, p->top_k);
        n = sorted = p->top_k;
    }
    if (p->top_p < 1)
        n = keep_top_p(c, n, sorted, top, (double)p->top_p, s->weight);
    if (p->min_p > 0) {
        weigh(c, n, top, 1, s->weight);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++)
            if (s->weight[i] >= (double)p->min_p)
                c[kept++] = c[i];
        n = kept;
    }
    const double total = weigh(c, n, top, p->temperature, s->weight);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += s->weight[i];
        if (sum > u * total)
            return c[i].id;
    }
    return c[n - 1].id;
}
