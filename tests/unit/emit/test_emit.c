/* Emitters: the table, the timeline of simulated and of measured traces, and the plan's two forms. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "emit/emit.h"

static ps_trace_event events[2] = {
    {.index = 0,
     .instr = 0,
     .queue = PS_QUEUE_CPU,
     .op = PS_OP_EMBED,
     .start_s = 1e-3,
     .end_s = 3e-3,
     .predicted_start_s = 1e-3,
     .predicted_end_s = 2e-3},
    {.index = 1,
     .instr = 1,
     .layer = 7,
     .tile = 2,
     .queue = PS_QUEUE_H2D,
     .op = PS_OP_COPY,
     .start_s = 3e-3,
     .end_s = 4e-3,
     .predicted_start_s = 2e-3,
     .predicted_end_s = 5e-3},
};

static char *timeline(ps_trace_source source, uint64_t *out_size) {
    ps_trace_step step = {.n_tokens = 16,
                          .kv_len = 100,
                          .start_s = 1,
                          .step_s = 4e-3,
                          .predicted_s = 5e-3,
                          .n_events = 2,
                          .events = events};
    ps_trace trace = {.source = source,
                      .tool = "test",
                      .model_name = "a \"model\"",
                      .budget = "host",
                      .n_steps = 1,
                      .steps = &step};
    char *out = NULL;
    ps_error err;
    cr_assert_eq(ps_emit_timeline(&(ps_emit_source){.trace = &trace}, &out, out_size, &err), PS_OK);
    cr_assert_eq(strlen(out), *out_size);
    return out;
}

static uint32_t count(const char *text, const char *what) {
    uint32_t n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p += strlen(what))
        n++;
    return n;
}

/* One complete event per instruction and one per step, in microseconds from the start of the trace. */
Test(emit, timeline_of_a_simulation) {
    uint64_t size;
    char *t = timeline(PS_TRACE_SIMULATED, &size);
    cr_assert_eq(count(t, "\"ph\":\"X\"") + count(t, "\"ph\": \"X\""), 3, "%s", t);
    cr_assert(strstr(t, "\"ts\":1.001e+06"), "%s", t); /* 1 s + 1 ms */
    cr_assert(strstr(t, "simulated") && !strstr(t, "predicted_us"));
    cr_assert(strstr(t, "a \\\"model\\\""), "%s", t);
    cr_assert(strstr(t, "\"layer\":7") || strstr(t, "\"layer\": 7"), "%s", t);
    free(t);
}

/* Measured: what was predicted stands in a process of its own, and the prediction in the arguments. */
Test(emit, timeline_of_a_measurement) {
    uint64_t size;
    char *t = timeline(PS_TRACE_MEASURED, &size);
    cr_assert_eq(count(t, "\"ph\":\"X\"") + count(t, "\"ph\": \"X\""), 6, "%s", t);
    cr_assert_eq(count(t, "predicted_us"), 2);
    free(t);
}

Test(emit, table) {
    uint32_t n;
    const ps_emitter *table = ps_emitters(&n);
    cr_assert_geq(n, 5);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(ps_emitter_find(table[i].name), &table[i]);
        cr_assert(table[i].emit && table[i].help && table[i].ending);
    }
    cr_assert_null(ps_emitter_find("poem"));
    cr_assert(ps_emitter_find("llama.cpp")->needs_model && !ps_emitter_find("yaml")->needs_model);
    cr_assert(ps_emitter_find("html")->takes_trace && !ps_emitter_find("timeline")->takes_trace);
    cr_assert_eq(ps_emitter_find("timeline")->input, PS_EMIT_TRACE);
    cr_assert_eq(ps_emitter_find("binary")->input, PS_EMIT_PLAN);
}
