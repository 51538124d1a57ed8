/* The engine on tiny models of every architecture: every instruction agrees with its reference; one evaluation,
 * many, tiles and sequences together give the same logits; the same bits for any number of threads; wrong calls
 * are refused and change nothing. */
#include <math.h>

#include "check.h"
#include "engine_case.h"

static const ps_sampler_params greedy = {.top_p = 1};

static ps_session *new_session(ps_engine *e) {
    ps_session *s;
    ps_error err = {0};
    if (ps_session_new(e, &greedy, &s, &err) != PS_OK)
        case_die("session", &err);
    return s;
}

static void fill_tokens(int32_t *ids, uint32_t n, uint32_t n_vocab, uint32_t seed) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((seed + 1) * 7919u * (i + 3) % n_vocab);
}

static void eval(ps_engine *e, ps_session *s, const int32_t *ids, uint32_t n, float *logits, bool all) {
    ps_error err = {0};
    ps_eval_item item = {.session = s, .tokens = ids, .n_tokens = n, .logits = logits, .all_logits = all};
    if (ps_engine_eval(e, &item, 1, &err) != PS_OK)
        case_die("eval", &err);
}

static double distance(const float *a, const float *b, uint64_t n) {
    double diff = 0, norm = 0;
    for (uint64_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return norm > 0 && isfinite(diff) ? sqrt(diff / norm) : INFINITY;
}

/* Activations are rounded to 8 bits for few tokens and to bfloat16 on some CPUs for many: paths differ by that. */
#define PATH_TOLERANCE 0.05

static void test_paths(const char *preset) {
    enum { N = 150 };
    engine_case c;
    case_make(&c, preset, 512, 3, 2, 64);
    ps_engine *e = case_open(&c, 1, 3, false);
    const ps_engine_info *info = ps_engine_get_info(e);
    const uint32_t v = info->n_vocab;
    CHECK(info->max_step_tokens == 64, "%u", info->max_step_tokens);
    int32_t ids[N], other[N];
    fill_tokens(ids, N, v, 0);
    fill_tokens(other, N, v, 1);
    float *all = malloc((size_t)N * v * sizeof *all), *one = malloc((size_t)v * sizeof *one),
          *two = malloc((size_t)N * v * sizeof *two);
    if (all == NULL || one == NULL || two == NULL)
        case_die("memory", NULL);

    /* All logits of three steps against the last token alone, and against token by token. */
    ps_session *s = new_session(e), *t = new_session(e);
    eval(e, s, ids, N, all, true);
    CHECK(ps_session_length(s) == N, "%llu", (unsigned long long)ps_session_length(s));
    eval(e, t, ids, N, one, false);
    CHECK(memcmp(one, all + (size_t)(N - 1) * v, v * sizeof *one) == 0, "%s: last row differs", preset);
    ps_session_reset(t);
    uint32_t n_far = 0;
    for (uint32_t i = 0; i < N; i++) {
        eval(e, t, ids + i, 1, one, false);
        n_far += distance(one, all + (size_t)i * v, v) >= PATH_TOLERANCE;
    }
    /* A router whose two best experts are close may pick the other one: seldom. */
    uint32_t far_allowed = strstr(preset, "moe") != NULL ? N / 20 : 0;
    CHECK(n_far <= far_allowed, "%s: %u tokens one by one are far from 64 at once", preset, n_far);

    /* Three sequences in one evaluation: what each gives alone, whatever runs beside it. */
    ps_session_reset(s);
    ps_session_reset(t);
    ps_session *u = new_session(e);
    int32_t sampled[3] = {-1, -1, -1};
    eval(e, s, ids, 20, NULL, false);
    ps_eval_item items[3] = {
        {.session = s,
         .tokens = ids + 20,
         .n_tokens = 10,
         .logits = two,
         .all_logits = true,
         .sampled = &sampled[0]},
        {.session = t, .tokens = other, .n_tokens = 70, .logits = one, .sampled = &sampled[1]},
        {.session = u, .tokens = ids, .n_tokens = 1, .sampled = &sampled[2]},
    };
    ps_error err = {0};
    CHECK(ps_engine_eval(e, items, 3, &err) == PS_OK, "%s", err.message);
    for (uint32_t i = 0; i < 10; i++) {
        double d = distance(two + (size_t)i * v, all + (size_t)(20 + i) * v, v);
        CHECK(d < PATH_TOLERANCE, "%s: row %u beside others is %.3g away", preset, i, d);
    }
    for (int i = 0; i < 3; i++)
        CHECK(sampled[i] >= 0 && (uint32_t)sampled[i] < v, "%s: sampled %d", preset, sampled[i]);
    uint32_t best = 0;
    for (uint32_t i = 0; i < v; i++)
        if (one[i] > one[best])
            best = i;
    CHECK((uint32_t)sampled[1] == best, "%s: greedy took %d, best is %u", preset, sampled[1], best);

    /* The same bits with two threads. */
    ps_session_free(s);
    ps_session_free(t);
    ps_session_free(u);
    ps_engine_close(e);
    e = case_open(&c, 2, 1, false);
    s = new_session(e);
    eval(e, s, ids, N, two, true);
    CHECK(memcmp(two, all, (size_t)N * v * sizeof *two) == 0, "%s: two threads give other bits", preset);
    ps_session_free(s);
    ps_engine_close(e);

    /* Every instruction against its reference, prefill and decode. */
    e = case_open(&c, 1, 1, true);
    s = new_session(e);
    eval(e, s, ids, 70, one, false);
    for (int i = 0; i < 3; i++)
        eval(e, s, ids + i, 1, one, false);
    ps_engine_stats stats;
    ps_engine_get_stats(e, &stats);
    CHECK(stats.n_verified > 100 && stats.worst_verify <= 1, "%s: %llu verified, worst %.3g", preset,
          (unsigned long long)stats.n_verified, stats.worst_verify);
    ps_session_free(s);
    ps_engine_close(e);
    free(all);
    free(one);
    free(two);
    case_remove(&c);
}

/* A step longer than a tile runs in tiles and gives the bits of steps of a tile's length. */
static void test_tiles(const char *preset) {
    enum { N = 2048 + 700 };
    engine_case a, b;
    case_make(&a, preset, 4096, 1, 1, 2048);
    case_make(&b, preset, 4096, 1, 1, 4096);
    ps_engine *ea = case_open(&a, 1, 1, false), *eb = case_open(&b, 1, 1, false);
    const uint32_t v = ps_engine_get_info(ea)->n_vocab;
    CHECK(ps_engine_get_info(eb)->max_step_tokens == 4096, "%u", ps_engine_get_info(eb)->max_step_tokens);
    int32_t *ids = malloc(N * sizeof *ids);
    float *la = malloc(v * sizeof *la), *lb = malloc(v * sizeof *lb);
    if (ids == NULL || la == NULL || lb == NULL)
        case_die("memory", NULL);
    fill_tokens(ids, N, v, 3);
    ps_session *sa = new_session(ea), *sb = new_session(eb);
    eval(ea, sa, ids, N, la, false);
    eval(eb, sb, ids, N, lb, false);
    ps_engine_stats st;
    ps_engine_get_stats(eb, &st);
    CHECK(st.n_steps == 1, "%llu steps", (unsigned long long)st.n_steps);
    double d = distance(la, lb, v);
    CHECK(memcmp(la, lb, v * sizeof *la) == 0, "%s: tiles are %.3g away from steps", preset, d);
    ps_session_free(sa);
    ps_session_free(sb);
    ps_engine_close(ea);
    ps_engine_close(eb);
    free(ids);
    free(la);
    free(lb);
    case_remove(&a);
    case_remove(&b);
}

static void test_wrong_calls(void) {
    engine_case c;
    case_make(&c, "tiny-llama", 64, 2, 1, 64);
    ps_engine *e = case_open(&c, 1, 2, false);
    const uint32_t v = ps_engine_get_info(e)->n_vocab;
    ps_error err = {0};
    ps_session *s = new_session(e), *t = new_session(e), *third = NULL;
    CHECK(ps_session_new(e, &greedy, &third, &err) == PS_E_UNAVAILABLE, "%s", err.message);
    int32_t ids[65], token = -5;
    fill_tokens(ids, 65, v, 0);
    ps_eval_item items[2] = {{.session = s, .tokens = ids, .n_tokens = 65, .sampled = &token},
                             {.session = s, .tokens = ids, .n_tokens = 1}};
    CHECK(ps_engine_eval(e, items, 1, &err) == PS_E_USAGE, "context");
    items[0].n_tokens = 4;
    CHECK(ps_engine_eval(e, items, 2, &err) == PS_E_USAGE, "same session twice");
    items[1].session = t;
    items[1].n_tokens = 0;
    CHECK(ps_engine_eval(e, items, 2, &err) == PS_E_USAGE, "no tokens");
    CHECK(ps_engine_eval(e, items, 0, &err) == PS_E_USAGE, "no items");
    CHECK(ps_engine_eval(e, items, 3, &err) == PS_E_USAGE, "more items than sessions");
    const int32_t bad[] = {-1, (int32_t)v, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ids[3] = bad[i];
        CHECK(ps_engine_eval(e, items, 1, &err) == PS_E_USAGE, "token %d", bad[i]);
    }
    CHECK(ps_session_length(s) == 0 && token == -5, "a refused call changed something");
    ids[3] = 1;
    items[0].n_tokens = 64;
    CHECK(ps_engine_eval(e, items, 1, &err) == PS_OK, "%s", err.message);
    items[0].n_tokens = 1;
    CHECK(ps_engine_eval(e, items, 1, &err) == PS_E_USAGE, "full context");
    CHECK(ps_engine_trace_write(e, "/tmp/never", &err) == PS_E_USAGE, "no trace was started");
    ps_session_free(t);
    t = new_session(e);
    CHECK(ps_session_length(t) == 0, "a new session is empty");
    ps_session_free(s);
    ps_session_free(t);
    ps_engine_close(e);

    ps_engine *none;
    ps_engine_options o = {.model_path = c.model, .plan_path = c.plan, .n_sessions = 3};
    CHECK(ps_engine_open(&o, &none, &err) == PS_E_USAGE, "three sessions");
    o.n_sessions = 1;
    o.context = 65;
    CHECK(ps_engine_open(&o, &none, &err) == PS_E_USAGE, "context");
    o.context = 0;
    o.n_threads = 7;
    CHECK(ps_engine_open(&o, &none, &err) == PS_E_USAGE, "threads");
    o.n_threads = 0;
    o.budget = "2GiB";
    CHECK(ps_engine_open(&o, &none, &err) == PS_E_USAGE, "budget");
    engine_case other;
    case_make(&other, "tiny-qwen3", 64, 1, 1, 64);
    o.budget = NULL;
    o.model_path = other.model;
    CHECK(ps_engine_open(&o, &none, &err) == PS_E_MISMATCH, "plan of another model: %s", err.message);
    case_remove(&other);
    case_remove(&c);
}

int main(void) {
    static const char *const presets[] = {"tiny-llama", "tiny-qwen3", "tiny-qwen3moe", "tiny-gemma3"};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        test_paths(presets[i]);
    test_tiles("tiny-llama");
    test_tiles("tiny-gemma3");
    test_wrong_calls();
    if (failures == 0)
        printf("engine: 4 architectures, tiles, threads, sequences, wrong calls\n");
    return failures != 0;
}
