/* Loading an engine and running it when any allocation or I/O call fails: a clear error, nothing left behind. */
#include "engine_case.h"
#include "fault.h"

static const char *run_body(void *ctx, bool injected) {
    const engine_case *c = ctx;
    ps_error err = {0};
    ps_engine *e = NULL;
    ps_session *s = NULL;
    int32_t *ids = NULL, token = -1;
    uint64_t n = 0;
    ps_engine_options o = {.model_path = c->model, .plan_path = c->plan, .n_threads = 1};
    ps_sampler_params sampling = {.temperature = 1, .top_p = 1, .seed = 3};
    char trace[128];
    snprintf(trace, sizeof trace, "%s/t.json", c->folder);
    const char *stage = "open";
    ps_status status = ps_engine_open(&o, &e, &err);
    if (status == PS_OK) {
        stage = "encode";
        status = ps_engine_encode(e, "some words", 10, true, true, &ids, &n, &err);
    }
    if (status == PS_OK) {
        stage = "session";
        status = ps_session_new(e, &sampling, &s, &err);
    }
    if (status == PS_OK) {
        stage = "trace start";
        status = ps_engine_trace_start(e, &err);
    }
    if (status == PS_OK) {
        stage = "eval";
        ps_eval_item item = {.session = s, .tokens = ids, .n_tokens = (uint32_t)n, .sampled = &token};
        status = ps_engine_eval(e, &item, 1, &err);
    }
    if (status == PS_OK) {
        stage = "trace write";
        status = ps_engine_trace_write(e, trace, &err);
    }
    free(ids);
    ps_session_free(s);
    ps_engine_close(e);
    unlink(trace);
    if (status == PS_OK)
        return NULL;
    static char complaint[700];
    char line[600];
    snprintf(complaint, sizeof complaint, "%s: %s", stage, ps_error_format(&err, line, sizeof line));
    if (!injected)
        return complaint;
    return err.message[0] == '\0' || err.status != status ? "no error was recorded" : NULL;
}

/* Once the engine is open, a step allocates nothing. */
static unsigned steps_allocate_nothing(const engine_case *c) {
    ps_engine *e = case_open(c, 1, 1, false);
    ps_session *s = NULL;
    ps_error err = {0};
    ps_sampler_params sampling = {.temperature = 1, .top_p = 0.9f, .top_k = 40, .seed = 3};
    if (ps_session_new(e, &sampling, &s, &err) != PS_OK)
        case_die("session", &err);
    ps_fault_arm(1, true);
    int32_t ids[70], token = 1;
    for (int i = 0; i < 70; i++)
        ids[i] = i + 1;
    ps_eval_item item = {.session = s, .tokens = ids, .n_tokens = 70, .sampled = &token};
    ps_status status = ps_engine_eval(e, &item, 1, &err);
    for (int i = 0; i < 5 && status == PS_OK; i++) {
        int32_t next = token;
        item = (ps_eval_item){.session = s, .tokens = &next, .n_tokens = 1, .sampled = &token};
        status = ps_engine_eval(e, &item, 1, &err);
    }
    uint64_t calls = ps_fault_disarm();
    ps_session_free(s);
    ps_engine_close(e);
    if (status == PS_OK && calls == 0)
        return 0;
    printf("steps made %llu calls that allocate or do I/O\n", (unsigned long long)calls);
    return 1;
}

int main(void) {
    engine_case c;
    case_make(&c, "tiny-qwen3moe", 128, 1, 1, 64);
    uint64_t calls = 0;
    unsigned bad = ps_fault_sweep("engine", run_body, &c, &calls);
    bad += calls < 20;
    bad += steps_allocate_nothing(&c);
    case_remove(&c);
    return bad != 0;
}
