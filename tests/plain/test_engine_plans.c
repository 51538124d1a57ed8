/* The planner's own plans on the emulated device: every family at several budgets gives what the CPU's plan gives within
 * the kernels' tolerances, the same bits run after run, and every instruction agrees with its reference. */
#include <math.h>

#include "../gpu_profile.h"
#include "check.h"
#include "engine_case.h"

enum { PROMPT = 12, STEPS = 4, CONTEXT = 256, MAX_LEVELS = 4, THREADS = 2 };

typedef struct made {
    engine_case c;
    ps_gguf *gguf;
    ps_model *model;
    ps_profile *profile;
    ps_cost_model *cost;
} made;

static void make_model(made *m, const synth_shape *shape) {
    ps_error err = {0};
    uint64_t bytes;
    engine_case *c = &m->c;
    snprintf(c->folder, sizeof c->folder, "%s", "/tmp/pinstripe-engine.XXXXXX");
    if (mkdtemp(c->folder) == NULL)
        case_die("mkdtemp", NULL);
    snprintf(c->model, sizeof c->model, "%s/m.gguf", c->folder);
    snprintf(c->plan, sizeof c->plan, "%s/m.plan", c->folder);
    if (synth_write(c->model, shape, 1, false, false, NULL, &bytes, &err) != PS_OK)
        case_die("synth_write", &err);
    if (ps_gguf_open(c->model, &m->gguf, &err) != PS_OK || ps_model_open(m->gguf, &m->model, &err) != PS_OK)
        case_die("model", &err);
    m->profile = gp_profile();
    if (ps_cost_model_new(m->profile, &m->cost, &err) != PS_OK)
        case_die("cost model", &err);
}

static void unmake(made *m) {
    ps_cost_model_free(m->cost);
    ps_profile_free(m->profile);
    ps_model_close(m->model);
    ps_gguf_close(m->gguf);
    case_remove(&m->c);
}

/* One level per budget (0: host). Returns the least budget that would do when a level is infeasible, else 0. */
static uint64_t make_plan(made *m, const uint64_t *budgets, uint32_t n, ps_family family, uint64_t max_step) {
    ps_error err = {0};
    ps_level_request levels[MAX_LEVELS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        levels[i] = (ps_level_request){
            .budget_bytes = budgets[i], .bucket_tokens = CONTEXT, .n_seqs = 2, .n_threads = THREADS};
        snprintf(levels[i].budget, sizeof levels[i].budget, budgets[i] == 0 ? "host" : "%lluMiB",
                 (unsigned long long)(budgets[i] >> 20));
    }
    ps_plan_request r = {.model = m->model,
                         .profile = m->profile,
                         .cost = m->cost,
                         .levels = levels,
                         .n_levels = n,
                         .max_step_tokens = max_step,
                         .forced = budgets[0] != 0,
                         .family = family,
                         .tool = "test",
                         .created = "2026-01-01T00:00:00Z"};
    ps_plan *plan;
    ps_shortage shortage = {0};
    uint8_t *binary;
    uint64_t size;
    ps_status status = ps_plan_build(&r, &plan, &shortage, &err);
    if (status == PS_E_INFEASIBLE && shortage.nearest_budget_bytes != 0)
        return shortage.nearest_budget_bytes;
    if (status != PS_OK || ps_plan_to_binary(plan, &binary, &size, &err) != PS_OK ||
        ps_file_write_atomic(m->c.plan, binary, size, &err) != PS_OK)
        case_die("plan", &err);
    free(binary);
    ps_plan_free(plan);
    return 0;
}

static ps_engine *open_engine(const made *m, const char *budget, bool verify) {
    ps_engine_options o = {.model_path = m->c.model,
                           .plan_path = m->c.plan,
                           .budget = budget,
                           .n_sessions = 2,
                           .verify = verify,
                           .device = strcmp(budget, "host") == 0 ? "none" : "emulated",
                           .fixed_level = true};
    ps_engine *e;
    ps_error err = {0};
    if (ps_engine_open(&o, &e, &err) != PS_OK)
        case_die("open", &err);
    return e;
}

static float *run(ps_engine *e, uint64_t *out_n) {
    static const ps_sampler_params greedy = {.top_p = 1};
    const uint32_t v = ps_engine_get_info(e)->n_vocab;
    *out_n = (uint64_t)(PROMPT + STEPS + 2) * v;
    float *out = calloc(*out_n, sizeof *out), *at = out;
    ps_session *s[2];
    ps_error err = {0};
    if (out == NULL || ps_session_new(e, &greedy, &s[0], &err) != PS_OK ||
        ps_session_new(e, &greedy, &s[1], &err) != PS_OK)
        case_die("session", &err);
    int32_t ids[PROMPT + STEPS];
    for (uint32_t i = 0; i < PROMPT + STEPS; i++)
        ids[i] = (int32_t)(7919u * (i + 3) % v);
    ps_eval_item item = {
        .session = s[0], .tokens = ids, .n_tokens = PROMPT, .logits = at, .all_logits = true};
    if (ps_engine_eval(e, &item, 1, &err) != PS_OK)
        case_die("prompt", &err);
    at += (uint64_t)PROMPT * v;
    for (uint32_t i = 0; i < STEPS; i++, at += v) {
        item = (ps_eval_item){.session = s[0], .tokens = ids + PROMPT + i, .n_tokens = 1, .logits = at};
        if (ps_engine_eval(e, &item, 1, &err) != PS_OK)
            case_die("step", &err);
    }
    ps_eval_item both[2] = {{.session = s[0], .tokens = ids, .n_tokens = 1, .logits = at},
                            {.session = s[1], .tokens = ids + 2, .n_tokens = 3, .logits = at + v}};
    if (ps_engine_eval(e, both, 2, &err) != PS_OK)
        case_die("two sequences", &err);
    ps_session_free(s[0]);
    ps_session_free(s[1]);
    return out;
}

static double distance(const float *a, const float *b, uint64_t n) {
    double diff = 0, norm = 0;
    for (uint64_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return norm > 0 && isfinite(diff) ? sqrt(diff / norm) : INFINITY;
}

static void test_families(const char *name, const synth_shape *shape, bool verify) {
    static const uint64_t host = 0;
    made m;
    make_model(&m, shape);
    make_plan(&m, &host, 1, PS_FAMILY_GPU, 64);
    uint64_t n, n_want;
    ps_engine *e = open_engine(&m, "host", false);
    float *want = run(e, &n_want);
    ps_engine_close(e);
    for (uint32_t f = 0; f < PS_FAMILY_COUNT; f++) {
        const uint64_t one = 1 << 20;
        uint64_t least = make_plan(&m, &one, 1, (ps_family)f, 64), budgets[MAX_LEVELS];
        uint32_t n_budgets = 0;
        const uint64_t more[2] = {0, 16 << 20};
        for (int i = 0; i < 2; i++)
            if (i == 0 || (shape->n_embd > 256 && i == 1)) /* tiny models fit into one handle */
                budgets[n_budgets++] = ((least + (1 << 20) - 1) & ~(uint64_t)((1 << 20) - 1)) + more[i];
        CHECK(make_plan(&m, budgets, n_budgets, (ps_family)f, 64) == 0, "%s: infeasible",
              ps_family_name((ps_family)f));
        for (uint32_t i = 0; i < n_budgets; i++) {
            char budget[24];
            snprintf(budget, sizeof budget, "%lluMiB", (unsigned long long)(budgets[i] >> 20));
            e = open_engine(&m, budget, false);
            float *first = run(e, &n), *again = run(e, &n);
            double d = distance(first, want, n);
            ps_engine_stats st;
            ps_engine_get_stats(e, &st);
            printf("%-12s %-8s %-8s %.2g away, %.1f MB copied, %.1f MB direct, %llu graph steps\n", name,
                   ps_family_name((ps_family)f), budget, d, (double)st.copied_bytes * 1e-6,
                   (double)st.direct_bytes * 1e-6, (unsigned long long)st.n_graph_steps);
            CHECK(d < 0.05, "%s %s %s: %.3g away from the CPU", name, ps_family_name((ps_family)f), budget,
                  d);
            CHECK(memcmp(first, again, n * sizeof *first) == 0, "%s %s %s: other bits", name,
                  ps_family_name((ps_family)f), budget);
            free(first);
            free(again);
            ps_engine_close(e);
        }
        if (!verify)
            continue;
        char budget[24];
        snprintf(budget, sizeof budget, "%lluMiB", (unsigned long long)(budgets[0] >> 20));
        e = open_engine(&m, budget, true);
        free(run(e, &n));
        ps_engine_stats st;
        ps_engine_get_stats(e, &st);
        CHECK(st.n_verified > 100 && st.worst_verify <= 1, "%llu verified, worst %.3g",
              (unsigned long long)st.n_verified, st.worst_verify);
        ps_engine_close(e);
    }
    free(want);
    unmake(&m);
}

int main(int argc, char **argv) {
    static const char *const presets[] = {"tiny-llama", "tiny-qwen3", "tiny-qwen3moe", "tiny-gemma3"};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        synth_shape shape = *synth_preset(presets[i]);
        shape.n_ctx = 8192;
        if (argc < 2 || strcmp(argv[1], presets[i]) == 0)
            test_families(presets[i], &shape, true);
    }
    /* Large enough that a level holds some of the weights and not others. */
    synth_shape shape = *synth_preset("tiny-llama");
    shape.n_layers = 4;
    shape.n_embd = 512;
    shape.n_ff = 2048;
    shape.n_head = 8;
    shape.n_head_kv = 4;
    shape.head_dim = 64;
    shape.n_vocab = 1024;
    shape.n_ctx = 8192;
    shape.type = shape.output_type = shape.embed_type = PS_DTYPE_F16;
    if (argc < 2 || strcmp(argv[1], "llama-f16") == 0)
        test_families("llama-f16", &shape, false);
    return failures != 0;
}
