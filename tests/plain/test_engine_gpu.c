/* The engine with a GPU, on the emulated device: weights resident, direct and streamed, caches in VRAM, in host memory and
 * through slots, the CPU taking part, give what the CPU alone gives within the kernels' tolerances, and the same bits among
 * themselves; several sequences, tiles, tails in groups, traces, weights behind a staging ring. */
#include <math.h>

#include "check.h"
#include "engine_gpu_case.h"
#include "schemas/trace.h"

static const ps_sampler_params greedy = {.top_p = 1};

static void fill_tokens(int32_t *ids, uint32_t n, uint32_t n_vocab, uint32_t seed) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((seed + 1) * 7919u * (i + 3) % n_vocab);
}

static ps_session *new_session(ps_engine *e) {
    ps_session *s;
    ps_error err = {0};
    if (ps_session_new(e, &greedy, &s, &err) != PS_OK)
        case_die("session", &err);
    return s;
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

enum { PROMPT = 40, STEPS = 6, N_SEQS = 2 };

/* Logits of a prompt (all rows), of decode steps, of two sequences together: one block of floats. */
static float *run(ps_engine *e, uint64_t *out_n) {
    const uint32_t v = ps_engine_get_info(e)->n_vocab;
    *out_n = (uint64_t)(PROMPT + STEPS + 2 * 3) * v;
    float *out = calloc(*out_n, sizeof *out), *at = out;
    if (out == NULL)
        case_die("memory", NULL);
    int32_t ids[PROMPT + STEPS], other[PROMPT];
    fill_tokens(ids, PROMPT + STEPS, v, 0);
    fill_tokens(other, PROMPT, v, 5);
    ps_session *s = new_session(e);
    eval(e, s, ids, PROMPT, at, true);
    at += (uint64_t)PROMPT * v;
    for (uint32_t i = 0; i < STEPS; i++, at += v)
        eval(e, s, ids + PROMPT + i, 1, at, false);
    ps_session *t = new_session(e);
    for (uint32_t i = 0; i < 3; i++, at += 2 * v) {
        int32_t sampled[2];
        ps_eval_item items[2] = {
            {.session = s, .tokens = ids + i, .n_tokens = 1, .logits = at, .sampled = &sampled[0]},
            {.session = t,
             .tokens = other + i * 3,
             .n_tokens = i == 1 ? 20 : 3,
             .logits = at + v,
             .sampled = &sampled[1]}};
        ps_error err = {0};
        if (ps_engine_eval(e, items, 2, &err) != PS_OK)
            case_die("eval of two", &err);
    }
    ps_session_free(s);
    ps_session_free(t);
    return out;
}

static const gc_level plain = {.budget = "1GiB",
                               .budget_bytes = 1 << 30,
                               .bucket_tokens = 256,
                               .n_seqs = N_SEQS,
                               .n_threads = 2,
                               .n_tiers = 4,
                               .tiers = {1, 2, 8, 64}};

typedef struct variant {
    const char *name;
    bool resident_attn, resident_ffn, stream, carry, ffn_on_cpu, split_moe;
    uint32_t n_slots, cut;
    gc_kv kv;
    const char *hold;
} variant;

/* All on the GPU: the same bits, whatever the memory. */
static const variant on_gpu[] = {
    {.name = "resident", .resident_attn = true, .resident_ffn = true},
    {.name = "direct"},
    {.name = "direct, KV in host memory", .kv = GC_KV_HOST},
    {.name = "half resident", .resident_attn = true},
    {.name = "one slot", .stream = true, .n_slots = 1},
    {.name = "two slots", .stream = true, .n_slots = 2},
    {.name = "three slots, cut", .stream = true, .n_slots = 3, .cut = 3},
    {.name = "slots of their own", .stream = true},
    {.name = "carried", .stream = true, .carry = true},
    {.name = "streamed and resident", .stream = true, .n_slots = 2, .resident_attn = true},
    {.name = "KV through a slot", .stream = true, .kv = GC_KV_SLOT, .resident_ffn = true},
};

static gc_level level_of(const variant *v) {
    gc_level l = plain;
    l.resident_attn = v->resident_attn;
    l.resident_ffn = v->resident_ffn;
    l.stream = v->stream;
    l.carry = v->carry;
    l.ffn_on_cpu = v->ffn_on_cpu;
    l.split_moe = v->split_moe;
    l.n_slots = v->n_slots;
    l.cut = v->cut;
    l.kv = v->kv;
    return l;
}

static void test_placements(const char *preset) {
    engine_case c, host;
    case_make(&c, preset, 256, N_SEQS, 1, 64);
    case_make(&host, preset, 256, N_SEQS, 1, 64);
    uint64_t n, n_want;
    ps_engine *e = case_open(&host, 1, N_SEQS, false);
    float *want = run(e, &n_want), *first = NULL;
    ps_engine_close(e);
    /* All of them on two architectures, some on the others. */
    const size_t every = strcmp(preset, "tiny-llama") == 0 || strstr(preset, "moe") != NULL ? 1 : 4;
    for (size_t i = 0; i < sizeof on_gpu / sizeof *on_gpu; i += every) {
        gc_level l = level_of(&on_gpu[i]);
        gc_write(&c, &l, 1);
        e = gc_open(&c, &(ps_engine_options){.n_sessions = N_SEQS});
        for (int again = 0; again < (i == 0 ? 3 : 1); again++) {
            float *have = run(e, &n);
            if (first == NULL) {
                first = have;
                double d = distance(have, want, n);
                CHECK(n == n_want && d < 0.05, "%s: %.3g away from the CPU", preset, d);
                continue;
            }
            CHECK(memcmp(have, first, n * sizeof *have) == 0, "%s, %s: other bits, %.3g away", preset,
                  on_gpu[i].name, distance(have, first, n));
            free(have);
        }
        ps_engine_stats st;
        ps_engine_get_stats(e, &st);
        CHECK(st.n_graph_steps > 0 || on_gpu[i].kv == GC_KV_SLOT, "%s, %s: no graphs", preset,
              on_gpu[i].name);
        ps_engine_close(e);
    }
    static const variant mixed[] = {
        {.name = "feed-forward on the CPU", .resident_attn = true, .ffn_on_cpu = true},
        {.name = "feed-forward on the CPU, attention streamed",
         .stream = true,
         .n_slots = 2,
         .ffn_on_cpu = true},
        {.name = "experts near and far", .resident_attn = true, .split_moe = true},
        {.name = "experts near and far, half resident",
         .resident_attn = true,
         .resident_ffn = true,
         .split_moe = true},
    };
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++) {
        if (mixed[i].split_moe && strstr(preset, "moe") == NULL)
            continue;
        float *bits = NULL;
        gc_level l = level_of(&mixed[i]);
        for (uint32_t threads = 1; threads <= 2; threads++) {
            l.n_threads = threads;
            gc_write(&c, &l, 1);
            e = gc_open(&c, &(ps_engine_options){.n_sessions = N_SEQS});
            for (int again = 0; again < (every == 1 ? 3 : 1); again++) {
                float *have = run(e, &n);
                double d = distance(have, want, n);
                CHECK(d < 0.05, "%s, %s: %.3g away from the CPU", preset, mixed[i].name, d);
                CHECK(bits == NULL || memcmp(bits, have, n * sizeof *have) == 0,
                      "%s, %s, %u threads: other bits", preset, mixed[i].name, threads);
                if (bits == NULL)
                    bits = have;
                else
                    free(have);
            }
            ps_engine_close(e);
        }
        free(bits);
    }
    free(first);
    free(want);
    case_remove(&c);
    case_remove(&host);
}

/* Traces hold every instruction of every queue with times inside of its step, of steps that are graphs too; what is computed
 * is the same. */
static void test_trace(const char *preset) {
    static const variant traced[] = {
        {.name = "feed-forward on the CPU", .stream = true, .n_slots = 2, .ffn_on_cpu = true},
        {.name = "KV through a slot", .resident_ffn = true, .kv = GC_KV_SLOT}};
    engine_case c;
    char path[128];
    case_make(&c, preset, 256, N_SEQS, 1, 64);
    snprintf(path, sizeof path, "%s/trace.json", c.folder);
    for (size_t i = 0; i < sizeof traced / sizeof *traced; i++) {
        gc_level l = level_of(&traced[i]);
        gc_write(&c, &l, 1);
        ps_engine *e = gc_open(&c, &(ps_engine_options){.n_sessions = N_SEQS});
        uint64_t n;
        ps_error err = {0};
        float *want = run(e, &n);
        if (ps_engine_trace_start(e, &err) != PS_OK)
            case_die("trace", &err);
        ps_engine_stats before, after;
        ps_engine_get_stats(e, &before);
        float *have = run(e, &n);
        ps_engine_get_stats(e, &after);
        CHECK(memcmp(want, have, n * sizeof *want) == 0, "%s: a trace changes bits", traced[i].name);
        CHECK(after.n_graph_steps > before.n_graph_steps || traced[i].kv == GC_KV_SLOT,
              "%s: no graphs in a trace", traced[i].name);
        ps_trace *t;
        if (ps_engine_trace_write(e, path, &err) != PS_OK || ps_trace_read(path, &t, &err) != PS_OK)
            case_die("trace", &err);
        CHECK(t->n_steps == after.n_steps - before.n_steps, "%u steps in the trace", t->n_steps);
        for (uint32_t s = 0; s < t->n_steps; s++) {
            uint32_t of[PS_QUEUE_COUNT] = {0};
            for (uint32_t k = 0; k < t->steps[s].n_events; k++) {
                const ps_trace_event *v = &t->steps[s].events[k];
                of[v->queue]++;
                /* Both clocks are known together as well as the machine is quiet. */
                CHECK(v->end_s >= v->start_s && v->start_s >= 0 && v->end_s < 2 * t->steps[s].step_s + 0.2,
                      "%s: step %u, instruction %u from %g to %g of %g", traced[i].name, s, v->instr,
                      v->start_s, v->end_s, t->steps[s].step_s);
            }
            CHECK(of[PS_QUEUE_CPU] > 1 && of[PS_QUEUE_GPU] > 10 && of[PS_QUEUE_H2D] > 0,
                  "%s: %u %u %u events", traced[i].name, of[PS_QUEUE_CPU], of[PS_QUEUE_GPU],
                  of[PS_QUEUE_H2D]);
        }
        ps_trace_free(t);
        ps_engine_close(e);
        free(want);
        free(have);
        unlink(path);
    }
    case_remove(&c);
}

/* Steps of so many instructions that a graph would not fit into the driver's queues: graphs in parts give the bits of the steps
 * before there were any, in traces too. */
static void test_long(const char *preset) {
    enum { N_LAYERS = 70 };
    static const variant deep[] = {
        {.name = "feed-forward on the CPU", .resident_attn = true, .ffn_on_cpu = true},
        {.name = "feed-forward on the CPU, attention streamed",
         .stream = true,
         .n_slots = 2,
         .ffn_on_cpu = true}};
    engine_case c;
    char path[128];
    case_make_deep(&c, preset, N_LAYERS, 256, N_SEQS, 1, 64);
    snprintf(path, sizeof path, "%s/trace.json", c.folder);
#ifdef __SANITIZE_ADDRESS__
    const size_t n_deep = 1; /* each takes a minute */
#else
    const size_t n_deep = sizeof deep / sizeof *deep;
#endif
    for (size_t i = 0; i < n_deep; i++) {
        gc_level l = level_of(&deep[i]);
        gc_write(&c, &l, 1);
        ps_engine *e = gc_open(&c, &(ps_engine_options){.n_sessions = N_SEQS});
        ps_error err = {0};
        ps_engine_stats st;
        uint64_t n;
        float *want = run(e, &n);
        for (int traced = 0; traced < 2; traced++) {
            if (traced && ps_engine_trace_start(e, &err) != PS_OK)
                case_die("trace", &err);
            float *have = run(e, &n);
            ps_engine_get_stats(e, &st);
            CHECK(memcmp(want, have, n * sizeof *have) == 0, "%s, traced %d: other bits", deep[i].name,
                  traced);
            CHECK(st.n_graphs >= 2 * st.n_graph_shapes && st.n_graph_shapes > 0,
                  "%s, traced %d: %u graphs for steps of %u shapes", deep[i].name, traced, st.n_graphs,
                  st.n_graph_shapes);
            free(have);
        }
        if (ps_engine_trace_write(e, path, &err) != PS_OK)
            case_die("trace", &err);
        ps_engine_close(e);
        free(want);
        unlink(path);
    }
    case_remove(&c);
}

/* A prompt longer than a tile: shards over tiles, weights copied once for all of them, give the bits of steps of one tile. */
static void test_tiles(const char *preset) {
    enum { N = 2048 + 75 };
    static const variant tiled[] = {
        {.name = "resident, a tile at a time", .resident_attn = true, .resident_ffn = true},
        {.name = "streamed, KV through a slot", .stream = true, .kv = GC_KV_SLOT},
        {.name = "feed-forward on the CPU",
         .stream = true,
         .carry = true,
         .ffn_on_cpu = true,
         .kv = GC_KV_HOST},
    };
    engine_case c;
    case_make(&c, preset, 256, 1, 1, 64);
    float *want = NULL;
    for (size_t i = 0; i < sizeof tiled / sizeof *tiled; i++) {
        gc_level l = level_of(&tiled[i]);
        l.bucket_tokens = 2304;
        l.n_seqs = 1;
        l.n_tiers = 2;
        l.tiers[0] = 64;
        l.tiers[1] = i == 0 ? 2048 : 4096;
        gc_write(&c, &l, 1);
        ps_engine *e = gc_open(&c, &(ps_engine_options){.n_sessions = 1});
        const uint32_t v = ps_engine_get_info(e)->n_vocab;
        int32_t *ids = malloc(N * sizeof *ids);
        float *have = malloc(v * sizeof *have);
        if (ids == NULL || have == NULL)
            case_die("memory", NULL);
        fill_tokens(ids, N, v, 2);
        ps_session *s = new_session(e);
        eval(e, s, ids, N - 1, have, false);
        eval(e, s, ids + N - 1, 1, have, false);
        ps_engine_stats st;
        ps_engine_get_stats(e, &st);
        CHECK(st.n_steps == 2 + (i == 0), "%s: %llu steps", tiled[i].name, (unsigned long long)st.n_steps);
        if (want == NULL) {
            want = have;
        } else {
            double d = distance(have, want, v);
            CHECK(tiled[i].ffn_on_cpu ? d < 0.05 : d == 0, "%s, %s: tiles are %.3g away", preset,
                  tiled[i].name, d);
            free(have);
        }
        ps_session_free(s);
        ps_engine_close(e);
        free(ids);
    }
    free(want);
    case_remove(&c);
}

/* Weights behind a staging ring, as where little may be page-locked: the same bits; direct reads are refused. */
static void test_staged(void) {
    engine_case c;
    case_make(&c, "tiny-llama", 256, N_SEQS, 1, 64);
    static const variant held[] = {{.name = "resident", .resident_attn = true, .resident_ffn = true},
                                   {.name = "resident, staged",
                                    .resident_attn = true,
                                    .resident_ffn = true,
                                    .hold = "mapped file, staging ring"},
                                   {.name = "resident, read in plan order",
                                    .resident_attn = true,
                                    .resident_ffn = true,
                                    .hold = "read in plan order, staging ring"}};
    float *want = NULL;
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        gc_level l = level_of(&held[i]);
        gc_write(&c, &l, 1);
        ps_engine *e = gc_open(&c, &(ps_engine_options){.n_sessions = N_SEQS, .hold = held[i].hold});
        CHECK(held[i].hold == NULL || strcmp(ps_engine_get_info(e)->weights, held[i].hold) == 0, "%s",
              ps_engine_get_info(e)->weights);
        uint64_t n;
        float *have = run(e, &n);
        CHECK(want == NULL || memcmp(have, want, n * sizeof *have) == 0, "%s: other bits", held[i].name);
        if (want == NULL)
            want = have;
        else
            free(have);
        ps_engine_close(e);
    }
    free(want);
    gc_level l = plain; /* everything direct */
    gc_write(&c, &l, 1);
    ps_engine *none;
    ps_error err = {0};
    ps_status status =
        gc_try_open(&c, &(ps_engine_options){.hold = "mapped file, staging ring"}, &none, &err);
    CHECK(status == PS_E_UNAVAILABLE, "direct reads of staged weights: %s", ps_status_name(status));
    /* What a budget cannot hold is refused with both figures. */
    l.resident_attn = l.resident_ffn = true;
    gc_write(&c, &l, 1);
    status = gc_try_open(&c, &(ps_engine_options){.emulated_base_bytes = (uint64_t)1000 << 20}, &none, &err);
    CHECK(status == PS_E_INFEASIBLE && strstr(err.message, "1073741824") != NULL &&
              strstr(err.message, "1048576000") != NULL,
          "%s: %s", ps_status_name(status), err.message);
    case_remove(&c);
}

int main(int argc, char **argv) {
    static const char *const presets[] = {"tiny-llama", "tiny-qwen3", "tiny-qwen3moe", "tiny-gemma3"};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (argc < 2 || strcmp(argv[1], presets[i]) == 0)
            test_placements(presets[i]);
    if (argc < 2 || strcmp(argv[1], "trace") == 0)
        test_trace("tiny-llama");
    if (argc < 2 || strcmp(argv[1], "long") == 0)
        test_long("tiny-llama");
    if (argc < 2 || strcmp(argv[1], "tiles") == 0)
        test_tiles("tiny-llama");
    if (argc < 2 || strcmp(argv[1], "held") == 0)
        test_staged();
    if (failures == 0)
        printf("engine with a GPU: placements of 4 architectures\n");
    return failures != 0;
}
