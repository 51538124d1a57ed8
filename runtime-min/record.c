/* Measured traces: out of every thread's clock readings of a step, one event per instruction. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "runtime-min/engine_internal.h"

/* Graphs take times only in a trace. */
static ps_status drop_graphs(ps_engine *e, ps_error *err) {
    ps_status status = e->has_device ? ps_device_sync(e->run.device, err) : PS_OK;
    if (status == PS_OK && e->has_device)
        ps_device_drop_graphs(e);
    return status;
}

ps_status ps_engine_trace_start(ps_engine *e, ps_error *err) {
    if (e->trace.arena != NULL)
        ps_arena_free(e->trace.arena);
    e->trace = (ps_trace){.version = PS_TRACE_VERSION, .source = PS_TRACE_MEASURED};
    e->trace.arena = ps_arena_new(UINT64_MAX);
    uint64_t bytes = 2 * sizeof(uint64_t) * e->n_events * e->info.n_threads;
    if (e->event_ns == NULL)
        e->event_ns = malloc(bytes);
    if (e->trace.arena == NULL || e->event_ns == NULL)
        return ps_error_set(err, PS_E_NOMEM, "trace", "no memory for %llu bytes", (unsigned long long)bytes);
    ps_trace *t = &e->trace;
    snprintf(t->tool, sizeof t->tool, "psrun %s", PS_VERSION_STRING);
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) != NULL)
        strftime(t->created, sizeof t->created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    snprintf(t->model_name, sizeof t->model_name, "%s", e->plan->model_name);
    snprintf(t->budget, sizeof t->budget, "%s", e->level->budget);
    snprintf(t->weights, sizeof t->weights, "%s", e->info.weights_why);
    memcpy(t->model_hash, e->plan->model_hash, sizeof t->model_hash);
    memcpy(t->profile_hash, e->plan->profile_hash, sizeof t->profile_hash);
    e->trace_steps_capacity = 0;
    ps_status status = drop_graphs(e, err);
    if (status != PS_OK)
        return status;
    e->trace_start_ns = ps_clock_ns();
    e->tracing = true;
    return PS_OK;
}

ps_status ps_engine_trace_write(ps_engine *e, const char *path, ps_error *err) {
    ps_status status = e->tracing ? drop_graphs(e, err) : PS_OK;
    e->tracing = false;
    if (status != PS_OK)
        return status;
    if (e->trace.arena == NULL)
        return ps_error_set(err, PS_E_USAGE, "trace", "none was started");
    return ps_trace_write(&e->trace, path, err);
}

/* Predicted time of an instruction for a step that finds kv_len tokens cached: linear in the bucket. */
static double at_kv(double empty, double full, double kv_frac) {
    return empty + (full - empty) * kv_frac;
}

/* A step record with room for its events; steps live in an array that doubles inside the trace's arena. */
static ps_trace_step *new_step(ps_engine *e, uint64_t n_events) {
    ps_trace *t = &e->trace;
    if (t->n_steps == e->trace_steps_capacity) {
        uint64_t capacity = e->trace_steps_capacity == 0 ? 64 : 2 * e->trace_steps_capacity;
        ps_trace_step *steps = ps_arena_array(t->arena, capacity, sizeof *steps);
        if (steps == NULL)
            return NULL;
        if (t->n_steps != 0)
            memcpy(steps, t->steps, t->n_steps * sizeof *steps);
        t->steps = steps;
        e->trace_steps_capacity = capacity;
    }
    ps_trace_step *step = &t->steps[t->n_steps];
    step->events = ps_arena_array(t->arena, n_events, sizeof *step->events);
    return step->events == NULL ? NULL : step;
}

void ps_engine_clear_events(ps_engine *e, const ps_run_step *step) {
    for (uint32_t k = 0; k < e->info.n_threads; k++)
        for (uint32_t i = 0; i < step->schedule->length; i++) {
            uint64_t *ns = e->event_ns + 2 * (k * e->n_events + i);
            ns[0] = UINT64_MAX;
            ns[1] = 0;
        }
}

ps_status ps_engine_record(ps_engine *e, const ps_run_step *run, uint64_t kv_len, uint64_t start_ns,
                           uint64_t end_ns, double predicted_s, ps_error *err) {
    const ps_run_tier *t = run->tier;
    ps_trace_step *step = new_step(e, run->schedule->length);
    if (step == NULL)
        return ps_error_set(err, PS_E_NOMEM, "trace", "no memory for step %u", e->trace.n_steps);
    step->level = e->level_index;
    step->tier = (uint32_t)(t->tier - e->level->tiers);
    step->n_tokens = run->n_tokens;
    step->kv_len = kv_len;
    step->start_s = (double)(start_ns - e->trace_start_ns) * 1e-9;
    step->step_s = (double)(end_ns - start_ns) * 1e-9;
    step->predicted_s = predicted_s;
    double kv_frac = (double)kv_len / (double)e->level->bucket_tokens;

    ps_cursor c;
    ps_cursor_start(&c, t->program, run->n_tiles);
    uint32_t n = 0, layer;
    for (const ps_instr *in; (in = ps_cursor_get(&c, &layer)) != NULL; ps_cursor_next(&c)) {
        if (run->n_outputs == 0 && in->op == PS_OP_GATHER)
            break; /* no logits wanted: the tail was left out */
        uint32_t index = (uint32_t)(in - t->program->instrs);
        const ps_prediction *p = &t->tier->predicted[index];
        double period =
            at_kv(t->tier->block_period_empty_s[c.block], t->tier->block_period_full_s[c.block], kv_frac);
        double later = ps_cursor_later_s(&c, period);
        ps_trace_event *ev = &step->events[n];
        *ev = (ps_trace_event){.index = c.index,
                               .instr = index,
                               .layer = layer,
                               .tile = c.tile,
                               .queue = in->queue,
                               .op = in->op,
                               .predicted_start_s = later + at_kv(p->start_empty_s, p->start_full_s, kv_frac),
                               .predicted_end_s = later + at_kv(p->end_empty_s, p->end_full_s, kv_frac)};
        uint64_t first = UINT64_MAX, last = 0;
        for (uint32_t k = 0; k < e->info.n_threads; k++) {
            const uint64_t *ns = e->event_ns + 2 * (k * e->n_events + c.index);
            first = ns[0] < first ? ns[0] : first;
            last = ns[1] > last ? ns[1] : last;
        }
        if (first == UINT64_MAX)
            continue; /* it does not run in this tile */
        ev->start_s = (double)first * 1e-9;
        ev->end_s = (double)last * 1e-9;
        n++;
    }
    step->n_events = n;
    e->trace.n_steps++;
    return PS_OK;
}
