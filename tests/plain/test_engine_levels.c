/* Levels at run time on the emulated device: whatever changes, when asked for between evaluations or by another thread in
 * the middle of one, and wherever caches and weights are at each level, logits are the bits of a run without changes; sessions
 * grow through buckets; the meter never shows more than the budget; a level that cannot be had leaves the engine usable. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "check.h"
#include "engine_gpu_case.h"

enum { TOKENS = 200, CHUNK = 21 };

/* One model in these levels: budgets of 128, 160 and 512 MiB, two buckets each; caches everywhere; rings of different length. */
static const gc_level levels[] = {
    {.budget = "small",
     .budget_bytes = 128 << 20,
     .bucket_tokens = 64,
     .n_seqs = 2,
     .n_threads = 1,
     .n_tiers = 3,
     .tiers = {1, 8, 32},
     .kv = GC_KV_HOST},
    {.budget = "small",
     .budget_bytes = 128 << 20,
     .bucket_tokens = 512,
     .n_seqs = 2,
     .n_threads = 1,
     .n_tiers = 3,
     .tiers = {1, 8, 64},
     .kv = GC_KV_SLOT},
    {.budget = "middle",
     .budget_bytes = 160 << 20,
     .bucket_tokens = 64,
     .n_seqs = 2,
     .n_threads = 1,
     .n_tiers = 2,
     .tiers = {1, 64},
     .resident_attn = true,
     .stream = true,
     .n_slots = 2},
    {.budget = "middle",
     .budget_bytes = 160 << 20,
     .bucket_tokens = 512,
     .n_seqs = 2,
     .n_threads = 1,
     .n_tiers = 3,
     .tiers = {1, 4, 16},
     .resident_attn = true,
     .stream = true,
     .carry = true},
    {.budget = "large",
     .budget_bytes = 512 << 20,
     .bucket_tokens = 64,
     .n_seqs = 2,
     .n_threads = 1,
     .n_tiers = 2,
     .tiers = {1, 64},
     .resident_attn = true,
     .resident_ffn = true},
    {.budget = "large",
     .budget_bytes = 512 << 20,
     .bucket_tokens = 512,
     .n_seqs = 2,
     .n_threads = 1,
     .n_tiers = 3,
     .tiers = {1, 8, 64},
     .resident_attn = true,
     .resident_ffn = true},
};
enum { N_LEVELS = sizeof levels / sizeof *levels };

static const ps_sampler_params warm = {.temperature = 1, .top_p = 1, .seed = 7};

static void fill_tokens(int32_t *ids, uint32_t n, uint32_t n_vocab) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(7919u * (i + 3) % n_vocab);
}

static ps_session *new_session(ps_engine *e) {
    ps_session *s;
    ps_error err = {0};
    if (ps_session_new(e, &warm, &s, &err) != PS_OK)
        case_die("session", &err);
    return s;
}

/* What happens before evaluation i. */
typedef void (*between)(ps_engine *e, uint32_t i);

/* Chunks and single tokens in turn, of two sessions; logits and sampled tokens of each. */
static float *run(ps_engine *e, between act, uint64_t *out_n, int32_t *sampled) {
    const uint32_t v = ps_engine_get_info(e)->n_vocab;
    float *out = calloc((size_t)TOKENS * v, sizeof *out);
    int32_t ids[TOKENS];
    if (out == NULL)
        case_die("memory", NULL);
    fill_tokens(ids, TOKENS, v);
    ps_session *s[2] = {new_session(e), new_session(e)};
    uint32_t at = 0, i = 0;
    for (; at < TOKENS; i++) {
        uint32_t n = i % 3 == 0 ? CHUNK : 1;
        n = n < TOKENS - at ? n : TOKENS - at;
        act(e, i);
        ps_error err = {0};
        bool other =
            at >= 100; /* the second sequence joins later, and is evaluated beside the first at times */
        ps_eval_item items[2] = {{.session = s[0],
                                  .tokens = ids + at,
                                  .n_tokens = n,
                                  .logits = out + (size_t)at * v,
                                  .all_logits = true,
                                  .sampled = &sampled[i]},
                                 {.session = s[1], .tokens = ids + i, .n_tokens = 1 + i % 2}};
        if (ps_engine_eval(e, items, other ? 2 : 1, &err) != PS_OK)
            case_die("eval", &err);
        ps_engine_stats st;
        ps_engine_get_stats(e, &st);
        uint64_t used, all, total;
        if (ps_engine_vram_used(e, &used, &all, &total, &err) != PS_OK)
            case_die("meter", &err);
        CHECK(used <= ps_engine_get_info(e)->budget_bytes, "%llu bytes of VRAM in %s",
              (unsigned long long)used, ps_engine_get_info(e)->budget);
        at += n;
    }
    ps_session_free(s[0]);
    ps_session_free(s[1]);
    *out_n = (uint64_t)TOKENS * v;
    return out;
}

static void nothing(ps_engine *e, uint32_t i) {
    (void)e;
    (void)i;
}

static void by_name(ps_engine *e, uint32_t i) {
    static const char *const names[] = {"small", "large", "middle", "small", "middle", "large"};
    ps_error err = {0};
    if (i % 2 == 1 && ps_engine_set_budget(e, names[i / 2 % 6], &err) != PS_OK)
        case_die("set budget", &err);
    if (i % 2 == 1)
        CHECK(strcmp(ps_engine_get_info(e)->budget, names[i / 2 % 6]) == 0, "%s",
              ps_engine_get_info(e)->budget);
}

static void by_request(ps_engine *e, uint32_t i) {
    static const uint64_t bytes[] = {512 << 20, 140 << 20, 1, (uint64_t)1 << 40, 160 << 20};
    ps_engine_request_bytes(e, bytes[i % 5]);
}

static void by_step(ps_engine *e, uint32_t i) {
    const int direction = i % 7 < 3 ? 1 : -1;
    uint64_t b = ps_engine_next_budget(e, direction);
    CHECK(b == 160 << 20 || (direction > 0 ? b == 512 << 20 || b == 0 : b == 128 << 20 || b == 0), "%llu",
          (unsigned long long)b);
    if (b != 0)
        ps_engine_request_bytes(e, b);
}

typedef struct pest {
    ps_engine *engine;
    _Atomic bool stop;
} pest;

static void *pest_main(void *arg) {
    pest *p = arg;
    static const uint64_t bytes[] = {128 << 20, 512 << 20, 160 << 20};
    for (uint32_t i = 0; !atomic_load(&p->stop); i++) {
        ps_engine_request_bytes(p->engine, bytes[i % 3]);
        nanosleep(&(struct timespec){0, 1000000 + 700000 * (long)(i % 11)}, NULL);
    }
    return NULL;
}

static void test_changes(const char *preset) {
    engine_case c;
    case_make(&c, preset, 64, 1, 1, 64);
    gc_write(&c, levels, N_LEVELS);
    uint64_t n, n_want;
    int32_t want_ids[TOKENS] = {0}, ids[TOKENS] = {0};
    ps_engine *e = gc_open(
        &c, &(ps_engine_options){.budget = "large", .context = 512, .n_sessions = 2, .fixed_level = true});
    CHECK(ps_engine_get_info(e)->bucket == 512, "%llu", (unsigned long long)ps_engine_get_info(e)->bucket);
    float *want = run(e, nothing, &n_want, want_ids);
    ps_engine_close(e);
    static const struct {
        const char *name, *budget;
        between act;
        bool pest;
    } cases[] = {{"buckets only", "large", nothing, false},
                 {"set by name", "middle", by_name, false},
                 {"asked for in bytes", "small", by_request, false},
                 {"asked for by steps", "large", by_step, false},
                 {"asked for in the middle of steps", "large", nothing, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        e = gc_open(&c, &(ps_engine_options){.budget = cases[i].budget, .n_sessions = 2});
        CHECK(ps_engine_get_info(e)->bucket == 64 && ps_engine_get_info(e)->context == 512,
              "bucket %llu, context %llu", (unsigned long long)ps_engine_get_info(e)->bucket,
              (unsigned long long)ps_engine_get_info(e)->context);
        pest p = {.engine = e};
        pthread_t thread;
        if (cases[i].pest && pthread_create(&thread, NULL, pest_main, &p) != 0)
            case_die("thread", NULL);
        for (int again = 0; again < (cases[i].pest ? 3 : 1); again++) {
            float *have = run(e, cases[i].act, &n, ids);
            uint64_t bad = 0;
            while (bad < n && have[bad] == want[bad])
                bad++;
            CHECK(bad == n, "%s, %s: logits differ from token %llu on", preset, cases[i].name,
                  (unsigned long long)(bad / (n_want / TOKENS)));
            if (again == 0) /* samplers are new in each run */
                CHECK(memcmp(ids, want_ids, sizeof ids) == 0, "%s, %s: other tokens", preset, cases[i].name);
            free(have);
        }
        atomic_store(&p.stop, true);
        if (cases[i].pest)
            pthread_join(thread, NULL);
        ps_engine_stats st;
        ps_engine_get_stats(e, &st);
        printf("%s, %s: %u changes, %u steps given up\n", preset, cases[i].name, st.n_changes,
               st.n_abandoned);
        CHECK(st.n_changes > 0, "%s, %s: no changes", preset, cases[i].name);
        CHECK(!cases[i].pest || st.n_abandoned > 0, "%s: no step was given up", preset);
        ps_engine_close(e);
    }
    free(want);
    case_remove(&c);
}

/* Which level is opened: the thread count that is asked for decides on the budget too, as do sequences and context; a budget has its name
 * and its size in any spelling. */
static void test_chosen(void) {
    static const gc_level plan[] = {{.budget = "128MiB",
                                     .budget_bytes = 128 << 20,
                                     .bucket_tokens = 64,
                                     .n_seqs = 1,
                                     .n_threads = 1,
                                     .n_tiers = 1,
                                     .tiers = {8}},
                                    {.budget = "128MiB",
                                     .budget_bytes = 128 << 20,
                                     .bucket_tokens = 128,
                                     .n_seqs = 2,
                                     .n_threads = 1,
                                     .n_tiers = 1,
                                     .tiers = {8}},
                                    {.budget = "quarter",
                                     .budget_bytes = 256 << 20,
                                     .bucket_tokens = 64,
                                     .n_seqs = 1,
                                     .n_threads = 2,
                                     .n_tiers = 1,
                                     .tiers = {8},
                                     .resident_attn = true}};
    static const struct {
        ps_engine_options o;
        const char *budget; /* NULL: refused */
        uint64_t bucket;
        const char *why;
    } cases[] = {
        {{.n_threads = 1}, "128MiB", 64, "that has such a level, its smallest context, threads as asked for"},
        {{.n_threads = 2}, "quarter", 64, "largest budget within"},
        {{0}, "quarter", 64, "largest budget within"},
        {{.n_sessions = 2}, "128MiB", 128, "that has such a level"},
        {{.context = 100}, "128MiB", 128, "smallest context of at least 100"},
        {{.n_threads = 1, .vram_limit_bytes = 300 << 20}, "128MiB", 64, "largest budget within 0.29 GiB"},
        {{.n_threads = 2, .vram_limit_bytes = 200 << 20}, NULL, 0, "at most 209715200 bytes"},
        {{.budget = "256MiB"}, "quarter", 64, "budget as asked for"},
        {{.budget = "quarter"}, "quarter", 64, "budget as asked for"},
        {{.budget = "0.25GiB", .n_threads = 1}, NULL, 0, "has no level for 1 thread; its levels are for 2"},
        {{.budget = "64MiB"}, NULL, 0, "no budget '64MiB'"},
        {{.n_threads = 2, .device = "none"}, NULL, 0, "a GPU"},
    };
    engine_case c;
    case_make(&c, "tiny-qwen3moe", 64, 1, 1, 64);
    gc_write(&c, plan, sizeof plan / sizeof *plan);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ps_engine *e = NULL;
        ps_error err = {0};
        ps_status status = gc_try_open(&c, &cases[i].o, &e, &err);
        if (cases[i].budget == NULL) {
            CHECK(status != PS_OK && strstr(err.message, cases[i].why) != NULL, "case %zu: %s", i,
                  err.message);
        } else {
            const ps_engine_info *info = status == PS_OK ? ps_engine_get_info(e) : NULL;
            CHECK(info != NULL && strcmp(info->budget, cases[i].budget) == 0 &&
                      info->bucket == cases[i].bucket && strstr(info->level_why, cases[i].why) != NULL,
                  "case %zu: %s, %llu: %s%s", i, info ? info->budget : "",
                  info ? (unsigned long long)info->bucket : 0, info ? info->level_why : "", err.message);
        }
        if (i == 0)
            CHECK(ps_engine_set_budget(e, "0.5GiB", &err) == PS_E_USAGE &&
                      ps_engine_set_budget(e, "131072KiB", &err) == PS_OK,
                  "by size: %s", err.message);
        ps_engine_close(e);
    }
    case_remove(&c);
}

int main(int argc, char **argv) {
    if (argc < 2)
        test_chosen();
    static const char *const presets[] = {"tiny-qwen3moe", "tiny-gemma3"};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (argc < 2 || strcmp(argv[1], presets[i]) == 0)
            test_changes(presets[i]);
    return failures != 0;
}
