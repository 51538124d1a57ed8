/* The device's side of a pass: its instructions enqueued in stream order with the events and points of the schedule, as far
 * ahead as a window allows, or launched all at once as a graph.
 *
 * The block of the step's data is the pass's first copy. A pass ends with a point of its own behind all work but copies into
 * slots, which may go on into the next pass: that one begins with the compute stream waiting for them. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "runtime-min/engine_internal.h"

enum { LOOK_NS = 200000, CHECK_NS = 2000000, NAP_NS = 50000 };
/* Without any sign of life; kernels of the emulated device can take long. */
static const uint64_t stuck_ns = 60000000000, emulated_stuck_ns = 900000000000;

static const uint64_t *base_address(const ps_engine *e) {
    return (const uint64_t *)(const void *)e->run.d_block;
}

static uint32_t final_point(const ps_run_step *step) {
    return step->schedule->dev_points + 1;
}

static ps_stream stream_of(ps_queue q) {
    return q == PS_QUEUE_H2D ? PS_STREAM_H2D : q == PS_QUEUE_D2H ? PS_STREAM_D2H : PS_STREAM_COMPUTE;
}

/* Streams `to` wait for all that is enqueued on `from`. */
static ps_status order(ps_run_device *r, ps_stream from, ps_stream to, ps_error *err) {
    ps_status status = ps_device_record(r->device, from, PS_EVENT_JOIN + from, err);
    return status == PS_OK ? ps_device_wait(r->device, to, PS_EVENT_JOIN + from, err) : status;
}

static ps_status fork_streams(ps_run_device *r, ps_error *err) {
    ps_status status = ps_device_record(r->device, PS_STREAM_COMPUTE, PS_EVENT_JOIN, err);
    if (status == PS_OK)
        status = ps_device_wait(r->device, PS_STREAM_H2D, PS_EVENT_JOIN, err);
    return status == PS_OK ? ps_device_wait(r->device, PS_STREAM_D2H, PS_EVENT_JOIN, err) : status;
}

static ps_status join_streams(ps_run_device *r, ps_error *err) {
    ps_status status = order(r, PS_STREAM_H2D, PS_STREAM_COMPUTE, err);
    return status == PS_OK ? order(r, PS_STREAM_D2H, PS_STREAM_COMPUTE, err) : status;
}

/* Times of a traced instruction. Outside of graphs each has two events. In a graph, where a node costs, one behind each
 * instruction does, and one before it where it may have waited for others. */
static ps_status time_begin(ps_engine *e, const ps_run_entry *entry, ps_stream stream, uint32_t *out,
                            ps_error *err) {
    ps_run_device *r = &e->run;
    ps_status status = PS_OK;
    if (!r->capturing) {
        while (status == PS_OK && r->n_timed - r->n_timed_read == PS_RUN_TIMED)
            status = ps_device_read_times(e, false, err);
        r->timed_index[r->n_timed % PS_RUN_TIMED] = entry->index;
        *out = PS_EVENT_TIME + 2 * (uint32_t)(r->n_timed % PS_RUN_TIMED);
        return status == PS_OK ? ps_device_time(r->device, stream, *out, err) : status;
    }
    if (r->graph_events + 2 > 2 * PS_RUN_TIMED || r->n_graph_timed == 2 * PS_RUN_TIMED)
        return ps_error_set(err, PS_E_UNSUPPORTED, "trace", "more instructions than a graph has events for");
    bool waits = entry->wait[0] != 0 || entry->await != 0 || r->last_time[stream] == 0;
    *out = waits ? PS_EVENT_TIME + r->graph_events++ : r->last_time[stream];
    return waits ? ps_device_time(r->device, stream, *out, err) : PS_OK;
}

static ps_status time_end(ps_engine *e, const ps_run_entry *entry, ps_stream stream, uint32_t begin,
                          ps_error *err) {
    ps_run_device *r = &e->run;
    if (!r->capturing) {
        r->n_timed++;
        return ps_device_time(r->device, stream, begin + 1, err);
    }
    uint32_t end = PS_EVENT_TIME + r->graph_events++;
    r->last_time[stream] = end;
    r->graph_timed[r->n_graph_timed++] = (ps_run_timed){entry->index, begin, end};
    return ps_device_time(r->device, stream, end, err);
}

static ps_status enqueue_entry(ps_engine *e, const ps_run_step *step, const ps_run_entry *entry,
                               uint64_t kv_bound, ps_error *err) {
    ps_run_device *r = &e->run;
    const ps_run_op *op = &step->tier->ops[entry->op];
    const ps_stream stream = stream_of(op->instr->queue);
    ps_status status = PS_OK;
    for (int i = 0; i < 2 && status == PS_OK; i++)
        if (entry->wait[i] != 0 && !(step->tail_only && entry->body[i]) &&
            (!r->capturing || r->recorded_in[entry->wait[i]] == r->capture_part))
            status = ps_device_wait(r->device, stream, entry->wait[i], err);
    if (status == PS_OK && r->capturing && entry->await > step->cpu_point0)
        status = ps_device_await(r->device, stream, base_address(e), entry->await, err);
    uint32_t time = 0;
    if (e->tracing && status == PS_OK)
        status = time_begin(e, entry, stream, &time, err);
    if (status == PS_OK)
        status = ps_engine_enqueue_op(e, step, op, entry->tile, kv_bound, err);
    if (time != 0 && status == PS_OK)
        status = time_end(e, entry, stream, time, err);
    r->used_d2h |= stream == PS_STREAM_D2H;
    r->loose |= stream != PS_STREAM_COMPUTE;
    if (status == PS_OK && entry->record != 0) {
        status = ps_device_record(r->device, stream, entry->record, err);
        r->recorded_in[entry->record] = (uint8_t)r->capture_part;
    }
    if (status != PS_OK || entry->point == 0)
        return status;
    if (stream != PS_STREAM_COMPUTE) {
        status = ps_device_record(r->device, stream, PS_EVENT_COPIED, err);
        if (status == PS_OK)
            status = ps_device_wait(r->device, PS_STREAM_COMPUTE, PS_EVENT_COPIED, err);
    }
    return status == PS_OK
               ? ps_device_signal(r->device, PS_STREAM_COMPUTE, base_address(e), entry->point, err)
               : status;
}

/* Behind everything: results are home, and the CPU is told. */
static ps_status enqueue_end(ps_engine *e, const ps_run_step *step, ps_error *err) {
    ps_run_device *r = &e->run;
    ps_status status = r->used_d2h ? order(r, PS_STREAM_D2H, PS_STREAM_COMPUTE, err) : PS_OK;
    return status == PS_OK
               ? ps_device_signal(r->device, PS_STREAM_COMPUTE, base_address(e), final_point(step), err)
               : status;
}

/* ---- graphs ---- */

static bool same_key(const ps_graph_key *a, const ps_graph_key *b) {
    return a->tier == b->tier && a->n_tokens == b->n_tokens && a->n_spans == b->n_spans &&
           a->span_rows == b->span_rows && a->n_outputs == b->n_outputs;
}

static void free_graph(ps_run_device *r, ps_run_graph *g) {
    for (uint32_t p = 0; p < g->n_parts; p++)
        ps_device_graph_free(r->device, g->part[p]);
    free(g->timed);
}

void ps_device_drop_graphs(ps_engine *e) {
    ps_run_device *r = &e->run;
    for (uint32_t i = 0; i < r->n_graphs; i++)
        free_graph(r, &r->graphs[i]);
    r->n_graphs = r->n_keys = 0;
    e->stats.n_graphs = e->stats.n_graph_shapes = 0;
}

/* Nodes that an entry becomes, at most. */
static uint32_t nodes_of(const ps_engine *e, const ps_run_step *step, const ps_run_entry *entry) {
    const ps_run_op *op = &step->tier->ops[entry->op];
    const bool several = op->kind == PS_RUN_KERNEL &&
                         (op->instr->op == PS_OP_MOE_DISPATCH || op->instr->op == PS_OP_ATTENTION);
    return (several ? 3u : 1u) + (entry->await > step->cpu_point0 ? 1u : 0u) + (entry->point ? 2u : 0u) +
           (e->tracing ? 2u : 0u);
}

/* Where the parts of the step's graph end, as entries. Returns how many; 0: more than there may be. */
static uint32_t cut(const ps_engine *e, const ps_run_step *step, uint32_t end[PS_RUN_PARTS]) {
    const ps_run_schedule *s = step->schedule;
    uint32_t all = 0, n = 0, nodes = 0;
    bool waits = false;
    for (uint32_t k = step->dev_begin; k < step->dev_end; k++) {
        all += nodes_of(e, step, &s->dev[k]);
        waits |= s->dev[k].await > step->cpu_point0;
    }
    const uint32_t most = waits && all > PS_RUN_GRAPH_NODES ? PS_RUN_PART_NODES : all;
    for (uint32_t k = step->dev_begin; k < step->dev_end; k++) {
        const uint32_t more = nodes_of(e, step, &s->dev[k]);
        if (nodes != 0 && nodes + more > most) {
            if (n + 1 == PS_RUN_PARTS)
                return 0;
            end[n++] = k;
            nodes = 0;
        }
        nodes += more;
    }
    end[n++] = step->dev_end;
    return n;
}

/* Entries [begin, end) as part `part` of a graph, counted from 0. All of a part has ended where the next one begins. */
static ps_status capture(ps_engine *e, const ps_run_step *step, uint32_t part, uint32_t begin, uint32_t end,
                         ps_device_graph **out, ps_error *err) {
    ps_run_device *r = &e->run;
    ps_status status = ps_device_capture_begin(r->device, err);
    if (status != PS_OK)
        return status;
    r->capturing = true;
    r->capture_part = part + 1;
    memset(r->last_time, 0, sizeof r->last_time);
    if (part == 0)
        status = ps_device_send_block(e, err);
    if (status == PS_OK)
        status = fork_streams(r, err);
    for (uint32_t k = begin; k < end && status == PS_OK; k++)
        status = enqueue_entry(e, step, &step->schedule->dev[k], e->level->bucket_tokens, err);
    if (status == PS_OK && end == step->dev_end)
        status = enqueue_end(e, step, err);
    if (status == PS_OK)
        status = join_streams(r, err);
    r->capturing = false;
    if (status != PS_OK) {
        ps_device_capture_abort(r->device);
        return status;
    }
    return ps_device_capture_end(r->device, out, err);
}

/* All parts. On failure nothing is left. */
static ps_status capture_parts(ps_engine *e, const ps_run_step *step, const uint32_t end[], uint32_t n,
                               ps_run_graph *g, ps_error *err) {
    ps_run_device *r = &e->run;
    ps_status status = PS_OK;
    r->traffic = (ps_run_traffic){0};
    r->graph_events = r->n_graph_timed = 0;
    r->used_d2h = false;
    memset(r->recorded_in, 0, sizeof r->recorded_in);
    for (uint32_t p = 0, begin = step->dev_begin; p < n && status == PS_OK; begin = end[p++]) {
        g->first[p] = step->schedule->dev[begin].index;
        status = capture(e, step, p, begin, end[p], &g->part[p], err);
        g->n_parts += status == PS_OK;
    }
    r->loose = false;
    if (status == PS_OK && r->n_graph_timed != 0) {
        g->timed = malloc(r->n_graph_timed * sizeof *g->timed);
        if (g->timed != NULL)
            memcpy(g->timed, r->graph_timed, r->n_graph_timed * sizeof *g->timed);
        else
            status = ps_error_set(err, PS_E_NOMEM, "trace", "no memory for %u times", r->n_graph_timed);
    }
    g->n_timed = r->n_graph_timed;
    g->traffic = r->traffic;
    if (status != PS_OK)
        free_graph(r, g);
    return status;
}

/* The step's graph; *out NULL: it has none, as its shape is new or cannot be one. */
static ps_status find_graph(ps_engine *e, const ps_run_step *step, ps_run_graph **out, ps_error *err) {
    ps_run_device *r = &e->run;
    const ps_run_tier *t = step->tier;
    *out = NULL;
    if (step->tail_only || step->n_tokens > PS_RUN_GRAPH_TOKENS || step->dev_end - step->dev_begin < 8 ||
        t->has_kv_copies || (t->has_weight_copies && !e->weights_direct))
        return PS_OK;
    ps_graph_key key = {t, step->n_tokens, step->n_spans, step->span_rows, step->n_outputs};
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < r->n_graphs; i++) {
        if (same_key(&r->graphs[i].key, &key)) {
            *out = &r->graphs[i];
            r->graphs[i].used = e->stats.n_steps;
            return PS_OK;
        }
        if (r->graphs[i].used < r->graphs[oldest].used)
            oldest = i;
    }
    bool known = false;
    for (uint32_t i = 0; i < r->n_keys && i < PS_RUN_KEYS; i++)
        known |= same_key(&r->keys[i], &key);
    if (!known) { /* it pays from the second time on */
        r->keys[r->n_keys++ % PS_RUN_KEYS] = key;
        return PS_OK;
    }
    uint32_t end[PS_RUN_PARTS];
    const uint32_t n_parts = cut(e, step, end);
    if (n_parts == 0)
        return PS_OK;
    ps_run_graph made = {.key = key, .used = e->stats.n_steps};
    const ps_status status = capture_parts(e, step, end, n_parts, &made, err);
    if (status == PS_E_UNSUPPORTED && e->tracing)
        return PS_OK; /* too long to be timed as a graph */
    if (status != PS_OK)
        return status;
    if (r->n_graphs == PS_RUN_GRAPHS) {
        free_graph(r, &r->graphs[oldest]);
        *out = &r->graphs[oldest];
    } else {
        *out = &r->graphs[r->n_graphs++];
    }
    **out = made;
    e->stats.n_graph_shapes = r->n_graphs;
    e->stats.n_graphs = 0;
    for (uint32_t i = 0; i < r->n_graphs; i++)
        e->stats.n_graphs += r->graphs[i].n_parts;
    return PS_OK;
}

/* ---- a pass ---- */

/* What the slots must hold where another program ran before. */
static ps_status fill_entries(ps_engine *e, const ps_run_tier *t, ps_error *err) {
    ps_run_device *r = &e->run;
    ps_status status = order(r, PS_STREAM_COMPUTE, PS_STREAM_H2D, err);
    for (uint32_t i = 0; i < t->program->n_entries && status == PS_OK; i++) {
        const ps_slot_entry *s = &t->program->entries[i];
        const ps_weight_range *range = &s->range;
        const ps_weight *w = ps_model_weight(e->model, range->layer, range->role);
        status = w == NULL ? ps_error_set(err, PS_E_DATA, e->info.budget, "slot %u: no such weight", s->slot)
                           : ps_weights_copy(e->weights, w, range->row0, range->n_rows, range->col0,
                                             range->n_cols, r->d_work + t->tier->buffer_offset[s->slot], err);
    }
    r->loose = true;
    return status;
}

ps_status ps_device_pass_prepare(ps_engine *e, const ps_run_step *step, ps_error *err) {
    ps_run_device *r = &e->run;
    const ps_run_schedule *s = step->schedule;
    uint64_t points = s->cpu_points > s->dev_points ? s->cpu_points : s->dev_points;
    r->base = r->next_base;
    r->next_base += points + 2;
    r->final = r->base + final_point(step);
    r->next = step->dev_begin;
    r->in_chunk = 0;
    r->chunks = r->chunks_passed = 0;
    r->as_graph = r->ended = r->used_d2h = false;
    r->progress_ns = r->looked_ns = ps_clock_ns();
    r->traffic = (ps_run_traffic){0};
    __atomic_store_n(&r->emulated_status, 0, __ATOMIC_RELAXED);
    ps_device_fill_block(e, step);
    ps_status status = PS_OK;
    if (r->loose) {
        status = join_streams(r, err);
        r->loose = false;
    }
    if (status == PS_OK && step->tier != r->slots && step->tier->program->n_entries != 0) {
        r->slots = NULL;
        status = fill_entries(e, step->tier, err);
        if (status == PS_OK)
            status = join_streams(r, err);
        r->loose = false;
    }
    r->slots = step->tier;
    return status;
}

/* Parts up to the one that holds instruction `before` of the stream, two on the way at most. What a part waits for the CPU has done
 * before that instruction, so it ends by itself. */
static ps_status launch_parts(ps_engine *e, uint32_t before, ps_error *err) {
    ps_run_device *r = &e->run;
    const ps_run_graph *g = r->graph;
    ps_status status = PS_OK;
    while (r->parts < g->n_parts && status == PS_OK && e->abort == PS_ABORT_NONE) {
        bool passed = r->parts - r->parts_passed < 2;
        if (!passed) {
            status =
                ps_device_passed(r->device, PS_EVENT_WINDOW + r->parts_passed % PS_RUN_WINDOW, &passed, err);
            if (status == PS_OK && passed) {
                r->parts_passed++;
                r->progress_ns = ps_clock_ns();
            }
        }
        if (status == PS_OK && passed) {
            status = ps_device_graph_launch(r->device, g->part[r->parts], err);
            if (status == PS_OK)
                status = ps_device_record(r->device, PS_STREAM_COMPUTE,
                                          PS_EVENT_WINDOW + r->parts++ % PS_RUN_WINDOW, err);
        } else if (status == PS_OK) {
            if (g->first[r->parts] >= before)
                return PS_OK;
            ps_device_pass_look(e);
        }
    }
    if (status == PS_OK && r->parts == g->n_parts && !r->ended) {
        status = ps_device_record(r->device, PS_STREAM_COMPUTE, PS_EVENT_LAST, err);
        r->ended = status == PS_OK;
    }
    return status;
}

ps_status ps_device_pass_begin(ps_engine *e, const ps_run_step *step, ps_error *err) {
    ps_run_device *r = &e->run;
    ps_status status = ps_device_pass_prepare(e, step, err);
    ps_run_graph *graph = NULL;
    if (status == PS_OK)
        status = find_graph(e, step, &graph, err);
    if (status == PS_OK && graph != NULL) {
        r->as_graph = true;
        r->graph = graph;
        r->traffic = graph->traffic;
        r->next = step->dev_end;
        r->parts = r->parts_passed = 0;
        e->stats.n_graph_steps++;
        return launch_parts(e, 0, err);
    }
    r->traffic = (ps_run_traffic){0};
    r->used_d2h = false;
    if (status == PS_OK)
        status = ps_device_send_block(e, err);
    return status == PS_OK ? fork_streams(r, err) : status;
}

/* See which chunks of the window have ended. False: a driver error, taken care of. */
static bool read_window(ps_engine *e) {
    ps_run_device *r = &e->run;
    ps_error err = {0};
    ps_status status = PS_OK;
    bool passed = true;
    while (passed && r->chunks_passed < r->chunks) {
        status = ps_device_passed(r->device, PS_EVENT_WINDOW + (uint32_t)(r->chunks_passed % PS_RUN_WINDOW),
                                  &passed, &err);
        if (status != PS_OK)
            break;
        if (passed) {
            r->chunks_passed++;
            r->progress_ns = ps_clock_ns();
        }
    }
    if (status == PS_OK && e->tracing)
        status = ps_device_read_times(e, false, &err);
    if (status != PS_OK)
        ps_engine_abort(e, PS_ABORT_ERROR, &err);
    return status == PS_OK;
}

/* Has the CPU come to what the entry waits for? Outside of graphs work is enqueued only then: a kernel that spins on the device
 * would stop the driver from loading another one (cuBLAS loads its own when they are first used), and with it thread 0, which
 * the CPU's work needs. */
static bool cpu_is_there(const ps_engine *e, const ps_run_step *step, const ps_run_entry *entry) {
    return entry->await <= step->cpu_point0 ||
           __atomic_load_n(ps_device_flag(e->run.device, PS_FLAG_CPU), __ATOMIC_ACQUIRE) >=
               e->run.base + entry->await;
}

void ps_device_pass_pump(ps_engine *e, const ps_run_step *step, uint32_t before) {
    ps_run_device *r = &e->run;
    if (r->as_graph && r->parts < r->graph->n_parts) {
        ps_error err = {0};
        if (launch_parts(e, before, &err) != PS_OK)
            ps_engine_abort(e, PS_ABORT_ERROR, &err);
    }
    while (r->next < step->dev_end && e->abort == PS_ABORT_NONE) {
        const ps_run_entry *entry = &step->schedule->dev[r->next];
        if (r->chunks - r->chunks_passed >= PS_RUN_WINDOW) {
            if (!read_window(e))
                return;
            if (r->chunks - r->chunks_passed >= PS_RUN_WINDOW) {
                if (entry->index >= before)
                    return; /* only ahead of time: the CPU's work comes first */
                ps_device_pass_look(e);
                continue;
            }
        }
        /* Behind a staging ring a copy waits for room, so it must not run ahead of what the CPU has to do for that. */
        if (!e->weights_direct && entry->index >= before &&
            step->tier->ops[entry->op].kind == PS_RUN_COPY_WEIGHT)
            return;
        if (!cpu_is_there(e, step, entry)) {
            if (entry->index >= before)
                return;
            ps_device_pass_look(e); /* the others are about to finish it */
            continue;
        }
        ps_error err = {0};
        ps_status status = enqueue_entry(e, step, entry, step->kv_end, &err);
        r->next++;
        if (status == PS_OK && ++r->in_chunk == PS_RUN_CHUNK) {
            r->in_chunk = 0;
            status = ps_device_record(r->device, PS_STREAM_COMPUTE,
                                      PS_EVENT_WINDOW + (uint32_t)(r->chunks++ % PS_RUN_WINDOW), &err);
        }
        if (status != PS_OK)
            ps_engine_abort(e, PS_ABORT_ERROR, &err);
    }
}

void ps_device_pass_end(ps_engine *e, const ps_run_step *step) {
    ps_run_device *r = &e->run;
    ps_error err = {0};
    ps_device_pass_pump(e, step, UINT32_MAX);
    if (!r->as_graph && e->abort == PS_ABORT_NONE) {
        ps_status status = enqueue_end(e, step, &err);
        if (status == PS_OK)
            status = ps_device_record(r->device, PS_STREAM_COMPUTE, PS_EVENT_LAST, &err);
        r->ended = status == PS_OK;
        if (status != PS_OK)
            ps_engine_abort(e, PS_ABORT_ERROR, &err);
    }
    const uint64_t *flag = ps_device_flag(r->device, PS_FLAG_GPU);
    uint64_t start_ns = ps_clock_ns();
    for (uint32_t spins = 1; __atomic_load_n(flag, __ATOMIC_ACQUIRE) < r->final && e->abort == PS_ABORT_NONE;
         spins++) {
        if (spins % 64 != 0)
            continue;
        ps_device_pass_look(e);
        if (ps_clock_ns() - start_ns > r->spin_ns)
            nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
    int reference = __atomic_load_n(&r->emulated_status, __ATOMIC_ACQUIRE);
    if (reference != 0 && e->abort == PS_ABORT_NONE) {
        ps_error_set(&err, (ps_status)reference, "emulated device", "a kernel failed");
        ps_engine_abort(e, PS_ABORT_ERROR, &err);
    }
    if (e->abort != PS_ABORT_NONE)
        return;
    if (e->tracing && r->as_graph && ps_device_read_graph_times(e, r->graph, &err) != PS_OK) {
        ps_engine_abort(e, PS_ABORT_ERROR, &err);
        return;
    }
    e->stats.copied_bytes += r->traffic.copied;
    e->stats.direct_bytes += r->traffic.direct;
}

void ps_device_pass_look(ps_engine *e) {
    ps_run_device *r = &e->run;
    uint64_t now = ps_clock_ns();
    if (now - r->looked_ns < LOOK_NS)
        return;
    if (ps_engine_must_stop(e))
        ps_engine_abort(e, PS_ABORT_STOP, NULL);
    if (now - r->looked_ns < CHECK_NS || e->abort != PS_ABORT_NONE)
        return;
    r->looked_ns = now;
    ps_error err = {0};
    const uint64_t *flag = ps_device_flag(r->device, PS_FLAG_GPU);
    uint64_t value = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
    if (value != r->progress_flag) {
        r->progress_flag = value;
        r->progress_ns = now;
    }
    ps_status status = ps_device_check(r->device, &err);
    if (status == PS_OK && __atomic_load_n(&r->emulated_status, __ATOMIC_ACQUIRE) != 0)
        status = ps_error_set(&err, (ps_status)r->emulated_status, "emulated device", "a kernel failed");
    bool passed = false;
    if (status == PS_OK && r->ended)
        status = ps_device_passed(r->device, PS_EVENT_LAST, &passed, &err);
    if (status == PS_OK && passed && __atomic_load_n(flag, __ATOMIC_ACQUIRE) < r->final)
        status =
            ps_error_set(&err, PS_E_INTERNAL, "GPU", "ended its work without coming to the end of the step");
    uint64_t limit_ns = ps_device_get_info(r->device)->emulated ? emulated_stuck_ns : stuck_ns;
    if (status == PS_OK && now - r->progress_ns > limit_ns)
        status = ps_error_set(&err, PS_E_OS, "GPU", "no sign of life for %llu s",
                              (unsigned long long)(limit_ns / 1000000000));
    if (status != PS_OK)
        ps_engine_abort(e, PS_ABORT_ERROR, &err);
}

ps_status ps_device_pass_drain(ps_engine *e, ps_error *err) {
    ps_run_device *r = &e->run;
    if (!e->has_device)
        return PS_OK;
    ps_device_capture_abort(r->device);
    ps_device_poison(r->device);
    ps_status status = ps_device_sync(r->device, err);
    ps_device_heal(r->device);
    r->slots = NULL;
    r->loose = false;
    return status;
}
