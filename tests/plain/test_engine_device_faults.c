/* Calls to the device's driver fail, one in each run, or all from one on: a clear error or a documented fallback, no hang, the
 * engine can be closed, and where it says that it can go on it gives the right bits. */
#include <malloc.h>
#include <signal.h>

#include "check.h"
#include "engine_gpu_case.h"

typedef struct faults {
    uint64_t n, at; /* calls so far; the one to fail, 0: none */
    bool onwards;
    char hit[48]; /* the call that failed first */
} faults;

static bool fault(void *ctx, const char *call) {
    faults *f = ctx;
    f->n++;
    if (f->at == 0 || (f->onwards ? f->n < f->at : f->n != f->at))
        return false;
    if (f->hit[0] == '\0')
        snprintf(f->hit, sizeof f->hit, "%s", call);
    return true;
}

enum { PROMPT = 11, STEPS = 4 };

static const gc_level levels[] = {
    {.budget = "small",
     .budget_bytes = 128 << 20,
     .bucket_tokens = 64,
     .n_seqs = 1,
     .n_threads = 2,
     .n_tiers = 2,
     .tiers = {1, 8},
     .stream = true,
     .n_slots = 2,
     .kv = GC_KV_SLOT},
    {.budget = "large",
     .budget_bytes = 512 << 20,
     .bucket_tokens = 64,
     .n_seqs = 1,
     .n_threads = 2,
     .n_tiers = 2,
     .tiers = {1, 8},
     .resident_attn = true,
     .ffn_on_cpu = true},
};

static ps_status eval(ps_engine *e, ps_session *s, const int32_t *ids, uint32_t n, float *logits,
                      ps_error *err) {
    ps_eval_item item = {.session = s, .tokens = ids, .n_tokens = n, .logits = logits};
    return ps_engine_eval(e, &item, 1, err);
}

/* Everything once; logits after each evaluation. Returns where it ended: NULL, or the stage that failed. */
static const char *run(const engine_case *c, faults *f, float *logits, uint32_t v, ps_error *err) {
    static const ps_sampler_params greedy = {.top_p = 1};
    int32_t ids[PROMPT + 2 * STEPS];
    for (uint32_t i = 0; i < PROMPT + 2 * STEPS; i++)
        ids[i] = (int32_t)(7919u * (i + 3) % v);
    ps_engine *e = NULL;
    ps_session *s = NULL;
    ps_engine_options o = {.budget = "large", .device_fault = fault, .device_fault_ctx = f};
    const char *stage = "open";
    ps_status status = gc_try_open(c, &o, &e, err);
    if (status == PS_OK)
        status = ps_session_new(e, &greedy, &s, err);
    for (int half = 0; half < 2 && status == PS_OK; half++) {
        if (half == 1) {
            stage = "change of level";
            status = ps_engine_set_budget(e, "small", err);
        }
        if (status == PS_OK && half == 0) {
            stage = "prompt";
            status = eval(e, s, ids, PROMPT, logits, err);
        }
        for (uint32_t i = 0; i < STEPS && status == PS_OK; i++) {
            uint32_t at = (uint32_t)half * STEPS + i;
            stage = "step";
            status = eval(e, s, ids + PROMPT + at, 1, logits + (at + 1) * (size_t)v, err);
        }
    }
    if (status != PS_OK && s != NULL && !f->onwards) { /* one failure is over: from the start, or refused */
        ps_error again = {0};
        float *other = calloc(v, sizeof *other);
        ps_session_reset(s);
        ps_status second = eval(e, s, ids, PROMPT, other, &again);
        CHECK(second == PS_OK || again.message[0] != '\0', "%s failed: then no message", f->hit);
        /* The other level's programs compute the feed-forward block elsewhere. */
        bool large = strcmp(ps_engine_get_info(e)->budget, "large") == 0 && strcmp(stage, "prompt") != 0;
        CHECK(second != PS_OK || !large || memcmp(other, logits, v * sizeof *other) == 0,
              "%s failed in %s: then other bits", f->hit, stage);
        free(other);
    }
    ps_session_free(s);
    ps_engine_close(e);
    return status == PS_OK ? NULL : stage;
}

/* What the process holds: heap bytes and mappings. */
typedef struct held {
    uint64_t heap, mappings;
} held;

static held held_now(void) {
    held h = {0};
    struct mallinfo2 m = mallinfo2();
    h.heap = m.uordblks + m.hblkhd;
    FILE *maps = fopen("/proc/self/maps", "r");
    for (int c; maps != NULL && (c = fgetc(maps)) != EOF;)
        h.mappings += c == '\n';
    if (maps != NULL)
        fclose(maps);
    return h;
}

int main(void) {
    engine_case c;
    case_make(&c, "tiny-llama", 64, 1, 1, 64);
    gc_write(&c, levels, 2);
    ps_error err = {0};
    ps_gguf *gguf;
    if (ps_gguf_open(c.model, &gguf, &err) != PS_OK)
        case_die("model", &err);
    ps_gguf_close(gguf);
    const uint32_t v = (uint32_t)synth_preset("tiny-llama")->n_vocab;
    float *want = calloc((size_t)(2 * STEPS + 1) * v, sizeof *want),
          *have = calloc((size_t)(2 * STEPS + 1) * v, sizeof *have);
    if (want == NULL || have == NULL)
        case_die("memory", NULL);
    faults none = {0};
    const char *stage = run(&c, &none, want, v, &err);
    if (stage != NULL)
        case_die(stage, &err);
    uint64_t n_failed = 0, n_fine = 0;
    held before = held_now();
    for (int onwards = 0; onwards < 2; onwards++)
        /* Each of the first calls, then ever fewer: later ones repeat what steps do. */
        for (uint64_t k = 1; k <= none.n; k += k < 60 ? 1 : onwards ? 97 : 13) {
            faults f = {.at = k, .onwards = onwards != 0};
            err = (ps_error){0};
            alarm(60);
            stage = run(&c, &f, have, v, &err);
            if (stage == NULL) {
                n_fine++;
                CHECK(memcmp(have, want, (size_t)(2 * STEPS + 1) * v * sizeof *have) == 0,
                      "%s (call %llu) failed: other bits", f.hit, (unsigned long long)k);
            } else {
                n_failed++;
                CHECK(err.message[0] != '\0' && err.status != PS_OK,
                      "%s (call %llu) failed in %s: no message", f.hit, (unsigned long long)k, stage);
            }
        }
    alarm(0);
    held after = held_now();
    CHECK(after.heap < before.heap + 65536, "%llu bytes of heap left behind",
          (unsigned long long)(after.heap - before.heap));
    /* Allocators keep some, AddressSanitizer's twenty; one left by every fourth failure is a leak. */
    CHECK(after.mappings < before.mappings + n_failed / 4, "%llu mappings left behind",
          (unsigned long long)(after.mappings - before.mappings));
    printf("device faults: %llu calls; %llu runs failed with an error, %llu went on\n",
           (unsigned long long)none.n, (unsigned long long)n_failed, (unsigned long long)n_fine);
    CHECK(n_failed > 60, "%llu", (unsigned long long)n_failed);
    free(want);
    free(have);
    case_remove(&c);
    return failures != 0;
}
