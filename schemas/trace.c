/* Trace: JSON writer and reader. Events are rows of one table per step, so a long trace stays small. */
#include "schemas/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/checked.h"
#include "core/file.h"
#include "core/text.h"
#include "schemas/fields.h"
#include "schemas/yaml_doc.h"

enum { ARENA_BYTES_PER_BYTE = 8, ARENA_BYTES_EXTRA = 1 << 16 };

#define F(record, member, type) PS_FIELD(record, member, #member, type)
static const ps_field head_rows[] = {
    PS_FIELD_NAMED(ps_trace, source, "source", &ps_names_trace_source),
    F(ps_trace, tool, CHARS),
    F(ps_trace, created, CHARS),
    F(ps_trace, model_name, CHARS),
    F(ps_trace, budget, CHARS),
    F(ps_trace, model_hash, HASH),
    F(ps_trace, profile_hash, HASH),
    F(ps_trace, weights, CHARS),
};
static const ps_field step_rows[] = {
    F(ps_trace_step, level, U32),       F(ps_trace_step, tier, U32),    F(ps_trace_step, n_tokens, U32),
    F(ps_trace_step, kv_len, U64),      F(ps_trace_step, start_s, F64), F(ps_trace_step, step_s, F64),
    F(ps_trace_step, predicted_s, F64),
};
static const ps_field event_rows[] = {
    F(ps_trace_event, index, U64),
    F(ps_trace_event, instr, U32),
    F(ps_trace_event, layer, U32),
    F(ps_trace_event, tile, U32),
    PS_FIELD_NAMED(ps_trace_event, queue, "queue", &ps_names_queue),
    PS_FIELD_NAMED(ps_trace_event, op, "op", &ps_names_op),
    F(ps_trace_event, start_s, F64),
    F(ps_trace_event, end_s, F64),
    F(ps_trace_event, predicted_start_s, F64),
    F(ps_trace_event, predicted_end_s, F64),
};
static const ps_fields head_fields = PS_FIELDS(head_rows), step_fields = PS_FIELDS(step_rows),
                       event_fields = PS_FIELDS(event_rows);

static ps_status check_step(const ps_trace_step *s, ps_error *err) {
    ps_status status = ps_fields_validate(&step_fields, s, err);
    if (status != PS_OK)
        return status;
    if (s->start_s < 0 || s->step_s < 0 || s->predicted_s < 0)
        return ps_error_set(err, PS_E_DATA, "step", "times must not be negative");
    for (uint32_t i = 0; i < s->n_events; i++) {
        const ps_trace_event *e = &s->events[i];
        status = ps_fields_validate(&event_fields, e, err);
        if (status == PS_OK && (e->start_s < 0 || e->end_s < e->start_s || e->predicted_start_s < 0 ||
                                e->predicted_end_s < e->predicted_start_s))
            status = ps_error_set(err, PS_E_DATA, "start_s", "an event ends before it starts");
        if (status != PS_OK) {
            char prefix[32];
            snprintf(prefix, sizeof prefix, "event %u", i);
            ps_error_prefix(err, prefix);
            return status;
        }
    }
    return PS_OK;
}

static ps_status validate(const ps_trace *t, ps_error *err) {
    if (t->version != PS_TRACE_VERSION)
        return ps_error_set(err, PS_E_UNSUPPORTED, "pinstripe-trace",
                            "trace version %u, this program knows version %d", t->version, PS_TRACE_VERSION);
    ps_status status = ps_fields_validate(&head_fields, t, err);
    for (uint32_t i = 0; status == PS_OK && i < t->n_steps; i++) {
        status = check_step(&t->steps[i], err);
        if (status != PS_OK) {
            char prefix[32];
            snprintf(prefix, sizeof prefix, "step %u", i);
            ps_error_prefix(err, prefix);
        }
    }
    return status;
}

/* What a field table writes is JSON too, once keys and names are quoted. */
static void write_json_fields(ps_text *t, const ps_fields *fields, const void *record,
                              const char *separator) {
    for (uint32_t i = 0; i < fields->n; i++) {
        ps_text_printf(t, "%s\"%s\": ", i == 0 ? "" : separator, fields->rows[i].name);
        ps_fields_write_json(t, &fields->rows[i], record);
    }
}

static void write_step(ps_text *t, const ps_trace_step *s) {
    ps_write_str(t, "    {");
    write_json_fields(t, &step_fields, s, ", ");
    ps_write_str(t, ",\n     \"columns\": [");
    for (uint32_t i = 0; i < event_fields.n; i++)
        ps_text_printf(t, "%s\"%s\"", i == 0 ? "" : ", ", event_fields.rows[i].name);
    ps_write_str(t, "],\n     \"rows\": [");
    for (uint32_t i = 0; i < s->n_events; i++) {
        ps_write_str(t, i == 0 ? "\n      [" : ",\n      [");
        for (uint32_t k = 0; k < event_fields.n; k++) {
            ps_write_str(t, k == 0 ? "" : ", ");
            ps_fields_write_json(t, &event_fields.rows[k], &s->events[i]);
        }
        ps_write_str(t, "]");
    }
    ps_write_str(t, "]}");
}

ps_status ps_trace_to_json(const ps_trace *trace, char **out, uint64_t *out_size, ps_error *err) {
    *out = NULL;
    ps_status status = validate(trace, err);
    if (status != PS_OK)
        return status;
    ps_text *t = ps_text_new();
    ps_text_printf(t, "{\n  \"pinstripe-trace\": %u,\n  ", trace->version);
    write_json_fields(t, &head_fields, trace, ",\n  ");
    ps_write_str(t, ",\n  \"steps\": [");
    for (uint32_t i = 0; i < trace->n_steps; i++) {
        ps_write_str(t, i == 0 ? "\n" : ",\n");
        write_step(t, &trace->steps[i]);
    }
    ps_write_str(t, "]\n}\n");
    *out = ps_text_end(t, out_size);
    return *out != NULL ? PS_OK : ps_error_set(err, PS_E_NOMEM, "trace", "no memory for its text");
}

ps_status ps_trace_write(const ps_trace *trace, const char *path, ps_error *err) {
    char *text;
    uint64_t size;
    ps_status status = ps_trace_to_json(trace, &text, &size, err);
    if (status != PS_OK) {
        ps_error_prefix(err, path);
        return status;
    }
    status = ps_file_write_atomic(path, text, size, err);
    free(text);
    return status;
}

static ps_status read_step(const ps_yaml_doc *doc, const ps_yaml_node *map, ps_arena *arena, ps_trace_step *s,
                           ps_error *err) {
    static const char *const others[] = {"columns", "rows", NULL};
    const ps_yaml_node *rows;
    ps_status status = ps_fields_read_map(doc, map, &step_fields, others, s, err);
    if (status == PS_OK)
        status = ps_fields_find_rows(doc, map, &event_fields, &rows, err);
    if (status != PS_OK)
        return status;
    s->n_events = rows->n;
    s->events = ps_arena_array(arena, rows->n, sizeof *s->events);
    if (s->events == NULL)
        return ps_yaml_error(doc, rows, PS_E_NOMEM, err, "no memory");
    return ps_fields_read_rows(doc, rows, &event_fields, s->events, sizeof *s->events, err);
}

static ps_status read_root(const ps_yaml_doc *doc, ps_arena *arena, ps_trace *t, ps_error *err) {
    static const char *const others[] = {"pinstripe-trace", "steps", NULL};
    const ps_yaml_node *root = ps_yaml_root(doc), *node, *list;
    ps_status status = ps_yaml_need(doc, root, "pinstripe-trace", PS_YAML_SCALAR, &node, err);
    if (status == PS_OK)
        status = ps_read_u32(doc, node, &t->version, err);
    if (status == PS_OK && t->version != PS_TRACE_VERSION)
        return ps_yaml_error(doc, node, PS_E_UNSUPPORTED, err,
                             "trace version %u, this program reads version %d", t->version, PS_TRACE_VERSION);
    if (status == PS_OK)
        status = ps_fields_read_map(doc, root, &head_fields, others, t, err);
    if (status == PS_OK)
        status = ps_yaml_need(doc, root, "steps", PS_YAML_SEQ, &list, err);
    if (status != PS_OK)
        return status;
    t->n_steps = list->n;
    t->steps = ps_arena_array(arena, list->n, sizeof *t->steps);
    if (t->steps == NULL)
        return ps_yaml_error(doc, list, PS_E_NOMEM, err, "no memory");
    ps_trace_step *step = t->steps;
    for (const ps_yaml_node *e = list->first; status == PS_OK && e != NULL; e = e->next)
        status = read_step(doc, e, arena, step++, err);
    return status;
}

ps_status ps_trace_parse(const char *text, uint64_t size, const char *label, ps_trace **out, ps_error *err) {
    ps_yaml_doc *doc = NULL;
    uint64_t limit;
    *out = NULL;
    if (size > PS_TRACE_MAX_BYTES)
        return ps_error_set(err, PS_E_DATA, label, "larger than %d bytes", PS_TRACE_MAX_BYTES);
    ps_status status = ps_yaml_load(text, size, label, &doc, err);
    if (status != PS_OK)
        return status;
    limit = size * ARENA_BYTES_PER_BYTE + ARENA_BYTES_EXTRA;
    ps_arena *arena = ps_arena_new(limit);
    ps_trace *t = arena != NULL ? ps_arena_alloc(arena, sizeof *t) : NULL;
    if (t == NULL) {
        status = ps_error_set(err, PS_E_NOMEM, label, "no memory for a trace");
    } else {
        t->arena = arena;
        status = read_root(doc, arena, t, err);
    }
    if (status == PS_OK) {
        status = validate(t, err);
        if (status != PS_OK)
            ps_error_prefix(err, label);
    }
    ps_yaml_free(doc);
    if (status == PS_OK)
        *out = t;
    else
        ps_arena_free(arena);
    return status;
}

ps_status ps_trace_read(const char *path, ps_trace **out, ps_error *err) {
    char *text;
    uint64_t size;
    *out = NULL;
    ps_status status = ps_file_read(path, PS_TRACE_MAX_BYTES, &text, &size, err);
    if (status != PS_OK)
        return status;
    status = ps_trace_parse(text, size, path, out, err);
    free(text);
    return status;
}

void ps_trace_free(ps_trace *trace) {
    if (trace != NULL)
        ps_arena_free(trace->arena);
}
