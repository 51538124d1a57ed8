/* A trace as Trace Event Format, which chrome://tracing and Perfetto open: a row per queue, and below the measured
 * ones the predicted, so that both can be compared by eye. */
#include <math.h>
#include <stdio.h>

#include "core/json.h"
#include "emit/emit.h"

/* Processes of the format stand for what happened and what was predicted. */
enum { PID_STEPS = 1, PID_PREDICTED = 2 };

/* Microseconds, to the nanosecond. */
static double us(double s) {
    return round(s * 1e9) / 1e3;
}

static void metadata(ps_json *j, const char *what, int pid, int tid, const char *name) {
    ps_json_object(j, NULL);
    ps_json_str(j, "name", what);
    ps_json_str(j, "ph", "M");
    ps_json_i64(j, "pid", pid);
    ps_json_i64(j, "tid", tid);
    ps_json_object(j, "args");
    ps_json_str(j, "name", name);
    ps_json_close(j);
    ps_json_close(j);
}

static void complete(ps_json *j, const char *name, const char *category, int pid, int tid, double start_s,
                     double end_s) {
    ps_json_object(j, NULL);
    ps_json_str(j, "name", name);
    ps_json_str(j, "cat", category);
    ps_json_str(j, "ph", "X");
    ps_json_f64(j, "ts", us(start_s));
    ps_json_f64(j, "dur", us(end_s > start_s ? end_s - start_s : 0));
    ps_json_i64(j, "pid", pid);
    ps_json_i64(j, "tid", tid);
    ps_json_object(j, "args");
}

static void event(ps_json *j, const ps_trace_step *step, const ps_trace_event *e, bool measured,
                  bool predicted) {
    const char *name = (unsigned)e->op < PS_OP_COUNT ? ps_op_get(e->op)->name : "?";
    double start = predicted ? e->predicted_start_s : e->start_s,
           end = predicted ? e->predicted_end_s : e->end_s;
    complete(j, name, ps_queue_name(e->queue), predicted ? PID_PREDICTED : PID_STEPS, (int)e->queue + 1,
             step->start_s + start, step->start_s + end);
    ps_json_u64(j, "index", e->index);
    ps_json_u64(j, "instr", e->instr);
    ps_json_u64(j, "layer", e->layer);
    ps_json_u64(j, "tile", e->tile);
    if (measured && !predicted)
        ps_json_f64(j, "predicted_us", us(e->predicted_end_s - e->predicted_start_s));
    ps_json_close(j);
    ps_json_close(j);
}

ps_status ps_emit_timeline(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err) {
    const ps_trace *trace = source->trace;
    bool measured = trace->source == PS_TRACE_MEASURED;
    ps_json *j = ps_json_new(0);
    ps_json_object(j, NULL);
    ps_json_str(j, "displayTimeUnit", "ns");
    ps_json_object(j, "otherData");
    ps_json_str(j, "model", trace->model_name);
    ps_json_str(j, "source", measured ? "measured" : "simulated");
    ps_json_str(j, "tool", trace->tool);
    ps_json_str(j, "budget", trace->budget);
    ps_json_close(j);
    ps_json_array(j, "traceEvents");
    for (int pid = PID_STEPS; pid <= (measured ? PID_PREDICTED : PID_STEPS); pid++) {
        metadata(j, "process_name", pid, 0,
                 pid == PID_PREDICTED ? "predicted"
                 : measured           ? "measured"
                                      : "simulated");
        metadata(j, "thread_name", pid, 0, "step");
        for (int q = 0; q < PS_QUEUE_COUNT; q++)
            metadata(j, "thread_name", pid, q + 1, ps_queue_name((ps_queue)q));
    }
    for (uint32_t s = 0; s < trace->n_steps; s++) {
        const ps_trace_step *step = &trace->steps[s];
        for (int pid = PID_STEPS; pid <= (measured ? PID_PREDICTED : PID_STEPS); pid++) {
            char name[64];
            snprintf(name, sizeof name, "step of %u, kv %llu", step->n_tokens,
                     (unsigned long long)step->kv_len);
            complete(j, name, "step", pid, 0, step->start_s,
                     step->start_s + (pid == PID_PREDICTED ? step->predicted_s : step->step_s));
            ps_json_u64(j, "level", step->level);
            ps_json_u64(j, "tier", step->tier);
            ps_json_close(j);
            ps_json_close(j);
        }
        for (uint32_t i = 0; i < step->n_events; i++) {
            event(j, step, &step->events[i], measured, false);
            if (measured)
                event(j, step, &step->events[i], measured, true);
        }
    }
    ps_json_close(j);
    ps_json_close(j);
    *out = ps_json_end(j, out_size);
    return *out ? PS_OK : ps_error_set(err, PS_E_NOMEM, "timeline", "out of memory");
}
