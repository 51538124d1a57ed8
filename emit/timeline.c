/* A trace as Trace Event Format, which chrome://tracing and Perfetto open: a row per queue, and below the measured
 * ones the predicted, so that both can be compared by eye. Rows hold nothing that overlaps: instructions of queue cpu that do,
 * as threads go on one by one, take further rows of the queue. */
#include <math.h>
#include <stdio.h>

#include "core/json.h"
#include "emit/emit.h"

/* Processes of the format stand for what happened and what was predicted. */
enum { PID_STEPS = 1, PID_PREDICTED = 2, MAX_ROWS = 16 };

/* When the last event of each row of a process ends, in nanoseconds from the start of the trace. */
typedef struct rows {
    double end_ns[PS_QUEUE_COUNT][MAX_ROWS];
    int n[PS_QUEUE_COUNT];
} rows;

/* The first row that is free; the last where none is: there an event begins late rather than overlap. */
static int row_for(rows *r, ps_queue q, double *start_ns, double end_ns) {
    int row = 0;
    while (row < r->n[q] && r->end_ns[q][row] > *start_ns && row + 1 < MAX_ROWS)
        row++;
    r->n[q] = row >= r->n[q] ? row + 1 : r->n[q];
    *start_ns = fmax(*start_ns, r->end_ns[q][row]);
    r->end_ns[q][row] = fmax(end_ns, *start_ns);
    return row;
}

static int tid_of(ps_queue q, int row) {
    return 1 + (int)q + row * PS_QUEUE_COUNT;
}

/* Microseconds, to the nanosecond. */
static double us(double s) {
    return round(s * 1e9) / 1e3;
}

static void sort_index(ps_json *j, int pid, int tid, int index) {
    ps_json_object(j, NULL);
    ps_json_str(j, "name", "thread_sort_index");
    ps_json_str(j, "ph", "M");
    ps_json_i64(j, "pid", pid);
    ps_json_i64(j, "tid", tid);
    ps_json_object(j, "args");
    ps_json_i64(j, "sort_index", index);
    ps_json_close(j);
    ps_json_close(j);
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

static void complete(ps_json *j, const char *name, const char *category, int pid, int tid, double start_ns,
                     double end_ns) {
    ps_json_object(j, NULL);
    ps_json_str(j, "name", name);
    ps_json_str(j, "cat", category);
    ps_json_str(j, "ph", "X");
    ps_json_f64(j, "ts", start_ns / 1e3);
    ps_json_f64(j, "dur", fmax(end_ns - start_ns, 0) / 1e3);
    ps_json_i64(j, "pid", pid);
    ps_json_i64(j, "tid", tid);
    ps_json_object(j, "args");
}

static void event(ps_json *j, rows *r, double step_s, const ps_trace_event *e, bool measured,
                  bool predicted) {
    const char *name = (unsigned)e->op < PS_OP_COUNT ? ps_op_get(e->op)->name : "?";
    double start = round(1e9 * (step_s + (predicted ? e->predicted_start_s : e->start_s))),
           end = round(1e9 * (step_s + (predicted ? e->predicted_end_s : e->end_s)));
    int row = row_for(r, e->queue, &start, end);
    complete(j, name, ps_queue_name(e->queue), predicted ? PID_PREDICTED : PID_STEPS, tid_of(e->queue, row),
             start, end);
    ps_json_u64(j, "index", e->index);
    ps_json_u64(j, "instr", e->instr);
    ps_json_u64(j, "layer", e->layer);
    ps_json_u64(j, "tile", e->tile);
    if (measured && !predicted)
        ps_json_f64(j, "predicted_us", us(e->predicted_end_s - e->predicted_start_s));
    ps_json_close(j);
    ps_json_close(j);
}

/* Names of the rows, in the order of the queues. */
static void name_rows(ps_json *j, const rows *r, int pid) {
    metadata(j, "thread_name", pid, 0, "step");
    sort_index(j, pid, 0, 0);
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        for (int row = 0; row == 0 || row < r->n[q]; row++) {
            char name[32];
            snprintf(name, sizeof name, row != 0 ? "%s %d" : "%s", ps_queue_name((ps_queue)q), row + 1);
            metadata(j, "thread_name", pid, tid_of((ps_queue)q, row), name);
            sort_index(j, pid, tid_of((ps_queue)q, row), 1 + q * MAX_ROWS + row);
        }
}

ps_status ps_emit_timeline(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err) {
    const ps_trace *trace = source->trace;
    bool measured = trace->source == PS_TRACE_MEASURED;
    rows of[2] = {0};
    double from[2] = {0},
           to[2] = {0}; /* of a step: predicted ones that take longer push the next ones back */
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
    int last_pid = measured ? PID_PREDICTED : PID_STEPS;
    for (int pid = PID_STEPS; pid <= last_pid; pid++)
        metadata(j, "process_name", pid, 0,
                 pid == PID_PREDICTED ? "predicted"
                 : measured           ? "measured"
                                      : "simulated");
    for (uint32_t s = 0; s < trace->n_steps; s++) {
        const ps_trace_step *step = &trace->steps[s];
        for (int pid = PID_STEPS; pid <= last_pid; pid++) {
            char name[64];
            snprintf(name, sizeof name, "step of %u, kv %llu", step->n_tokens,
                     (unsigned long long)step->kv_len);
            double length = pid == PID_PREDICTED ? step->predicted_s : step->step_s;
            from[pid - PID_STEPS] = fmax(step->start_s, to[pid - PID_STEPS]);
            to[pid - PID_STEPS] = from[pid - PID_STEPS] + fmax(length, 0);
            complete(j, name, "step", pid, 0, round(1e9 * from[pid - PID_STEPS]),
                     round(1e9 * to[pid - PID_STEPS]));
            ps_json_u64(j, "level", step->level);
            ps_json_u64(j, "tier", step->tier);
            ps_json_close(j);
            ps_json_close(j);
        }
        for (uint32_t i = 0; i < step->n_events; i++) {
            event(j, &of[0], from[0], &step->events[i], measured, false);
            if (measured)
                event(j, &of[1], from[1], &step->events[i], measured, true);
        }
    }
    for (int pid = PID_STEPS; pid <= last_pid; pid++)
        name_rows(j, &of[pid - PID_STEPS], pid);
    ps_json_close(j);
    ps_json_close(j);
    *out = ps_json_end(j, out_size);
    return *out ? PS_OK : ps_error_set(err, PS_E_NOMEM, "timeline", "out of memory");
}
