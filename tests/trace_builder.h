/* A trace for tests: two steps of made-up events. */
#ifndef PS_TESTS_TRACE_BUILDER_H
#define PS_TESTS_TRACE_BUILDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "schemas/trace.h"

static inline ps_trace *tr_trace(uint32_t n_events) {
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    ps_trace *t = arena != NULL ? ps_arena_alloc(arena, sizeof *t) : NULL;
    if (t == NULL)
        abort();
    t->arena = arena;
    t->source = PS_TRACE_MEASURED;
    snprintf(t->tool, sizeof t->tool, "psrun 0.1.0");
    snprintf(t->created, sizeof t->created, "2026-01-02T03:04:05Z");
    snprintf(t->model_name, sizeof t->model_name, "A \"model\" \xe2\x80\xa8 \xf0\x9f\x98\x80");
    snprintf(t->budget, sizeof t->budget, "host");
    snprintf(t->weights, sizeof t->weights, "mapped file");
    memset(t->model_hash, 0x77, PS_HASH_BYTES);
    memset(t->profile_hash, 0x0e, PS_HASH_BYTES);
    t->n_steps = 2;
    t->steps = ps_arena_array(arena, 2, sizeof *t->steps);
    for (uint32_t s = 0; s < 2 && t->steps != NULL; s++) {
        ps_trace_step *step = &t->steps[s];
        *step = (ps_trace_step){.tier = s,
                                .n_tokens = 1 + 511 * s,
                                .kv_len = 100,
                                .start_s = 0.1 * s,
                                .step_s = 0.05 / 3,
                                .predicted_s = 0.04,
                                .n_events = s == 0 ? n_events : 0};
        step->events = ps_arena_array(arena, n_events, sizeof *step->events);
        for (uint32_t i = 0; i < step->n_events && step->events != NULL; i++)
            step->events[i] = (ps_trace_event){.index = i,
                                               .instr = i % 30,
                                               .layer = i / 30,
                                               .queue = (ps_queue)(i % PS_QUEUE_COUNT),
                                               .op = (ps_op)(i % PS_OP_COUNT),
                                               .start_s = i * 1e-5 / 3,
                                               .end_s = (i + 1) * 1e-5 / 3,
                                               .predicted_start_s = i * 1e-5,
                                               .predicted_end_s = i * 1e-5};
    }
    return t;
}

#endif
