/* Steps of few rows as graphs. One that is predicted to take long is cut into parts, of which at most two are on the way: so a
 * request for a smaller budget does not have to wait for the end of the step. */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "runtime-min/engine_internal.h"

static const double part_s = 0.04; /* of the step as predicted at the full bucket */

static bool same_key(const ps_graph_key *a, const ps_graph_key *b) {
    return a->tier == b->tier && a->n_tokens == b->n_tokens && a->n_spans == b->n_spans &&
           a->span_rows == b->span_rows && a->n_outputs == b->n_outputs;
}

static void free_graph(ps_run_device *r, ps_run_graph *g) {
    for (uint32_t i = 0; i < g->n_parts; i++)
        ps_device_graph_free(r->device, g->parts[i]);
    free(g->timed);
    *g = (ps_run_graph){0};
}

void ps_device_drop_graphs(ps_engine *e) {
    ps_run_device *r = &e->run;
    for (uint32_t i = 0; i < r->n_graphs; i++)
        free_graph(r, &r->graphs[i]);
    r->n_graphs = r->n_keys = 0;
    e->stats.n_graphs = 0;
}

/* Entries [begin, end) of the step as a graph of their own. */
static ps_status capture_part(ps_engine *e, const ps_run_step *step, uint32_t begin, uint32_t end,
                              ps_device_graph **out, ps_error *err) {
    ps_run_device *r = &e->run;
    ps_status status = ps_device_capture_begin(r->device, err);
    if (status != PS_OK)
        return status;
    r->capturing = true;
    r->part_begin = begin;
    memset(r->last_time, 0, sizeof r->last_time);
    if (begin == step->dev_begin)
        status = ps_device_send_block(e, err);
    if (status == PS_OK)
        status = ps_device_fork(r, err);
    for (uint32_t k = begin; k < end && status == PS_OK; k++)
        status = ps_device_enqueue_entry(e, step, &step->schedule->dev[k], e->level->bucket_tokens, err);
    if (end == step->dev_end && status == PS_OK)
        status = ps_device_enqueue_end(e, step, err);
    if (status == PS_OK)
        status = ps_device_join(r, err);
    r->capturing = false;
    if (status != PS_OK) {
        ps_device_capture_abort(r->device);
        return status;
    }
    return ps_device_capture_end(r->device, out, err);
}

static ps_status capture(ps_engine *e, const ps_run_step *step, ps_run_graph *g, ps_error *err) {
    ps_run_device *r = &e->run;
    const ps_tier *t = step->tier->tier;
    double s = t->step_full_s > t->step_empty_s ? t->step_full_s : t->step_empty_s;
    uint32_t n = s < 2 * part_s ? 1 : s >= PS_RUN_PARTS * part_s ? PS_RUN_PARTS : (uint32_t)(s / part_s);
    uint32_t n_entries = step->dev_end - step->dev_begin;
    r->traffic = (ps_run_traffic){0};
    r->graph_events = r->n_graph_timed = 0;
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < n && status == PS_OK; i++) {
        uint32_t begin = step->dev_begin + (uint32_t)((uint64_t)n_entries * i / n);
        uint32_t end = step->dev_begin + (uint32_t)((uint64_t)n_entries * (i + 1) / n);
        status = capture_part(e, step, begin, end, &g->parts[i], err);
        g->n_parts += status == PS_OK;
    }
    r->loose = false;
    g->traffic = r->traffic;
    if (status == PS_OK && r->n_graph_timed != 0) {
        g->n_timed = r->n_graph_timed;
        g->timed = malloc(g->n_timed * sizeof *g->timed);
        if (g->timed == NULL)
            status = ps_error_set(err, PS_E_NOMEM, "trace", "no memory for %u times", g->n_timed);
        else
            memcpy(g->timed, r->graph_timed, g->n_timed * sizeof *g->timed);
    }
    if (status != PS_OK)
        free_graph(r, g);
    return status;
}

ps_status ps_device_find_graph(ps_engine *e, const ps_run_step *step, ps_run_graph **out, ps_error *err) {
    ps_run_device *r = &e->run;
    const ps_run_tier *t = step->tier;
    *out = NULL;
    if (step->tail_only || step->n_tokens > PS_RUN_GRAPH_TOKENS ||
        step->dev_end - step->dev_begin < PS_RUN_PARTS || t->has_kv_copies ||
        (t->has_weight_copies && !e->weights_direct))
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
    ps_run_graph g = {.key = key, .used = e->stats.n_steps};
    ps_status status = capture(e, step, &g, err);
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
    **out = g;
    e->stats.n_graphs = r->n_graphs;
    return PS_OK;
}

ps_status ps_device_launch_parts(ps_engine *e, ps_error *err) {
    ps_run_device *r = &e->run;
    const ps_run_graph *g = r->graph;
    ps_status status = PS_OK;
    while (status == PS_OK && r->part < g->n_parts) {
        bool passed = r->part < 2;
        if (!passed) /* the one before the last */
            status = ps_device_passed(r->device, PS_EVENT_WINDOW + r->part - 2, &passed, err);
        if (status != PS_OK || !passed)
            return status;
        status = ps_device_graph_launch(r->device, g->parts[r->part], err);
        bool last = r->part + 1 == g->n_parts;
        if (status == PS_OK && (last || g->n_parts > 1))
            status = ps_device_record(r->device, PS_STREAM_COMPUTE,
                                      last ? (uint32_t)PS_EVENT_LAST : PS_EVENT_WINDOW + r->part, err);
        r->part++;
        r->progress_ns = ps_clock_ns();
        r->ended = last;
    }
    return status;
}
