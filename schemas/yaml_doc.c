/* Builds the bounded tree from libyaml's events. */
#include "schemas/yaml_doc.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "core/arena.h"
#include "core/checked.h"

struct ps_yaml_doc {
    ps_arena *arena;
    uint64_t limit_bytes;
    const char *label;
    const ps_yaml_node *root;
    locale_t c_locale; /* numbers have a point whatever the program's locale says */
};

/* An open container: where its next child goes. */
typedef struct open_node {
    ps_yaml_node *node, *last;
    bool want_value; /* mapping whose newest child is a key */
} open_node;

typedef struct loader {
    ps_yaml_doc *doc;
    ps_error *err;
    open_node stack[PS_YAML_MAX_DEPTH];
    uint32_t depth;
} loader;

static void set_place(ps_error *err, uint32_t line, uint32_t column) {
    if (err != NULL) {
        err->line = line;
        err->column = column;
    }
}

static uint32_t clamp_u32(size_t v) {
    return v > UINT32_MAX - 1 ? UINT32_MAX : (uint32_t)v + 1;
}

static ps_status fail_mark(const loader *l, yaml_mark_t mark, const char *message) {
    ps_error_set(l->err, PS_E_DATA, l->doc->label, "%s", message);
    set_place(l->err, clamp_u32(mark.line), clamp_u32(mark.column));
    return PS_E_DATA;
}

ps_status ps_yaml_error(const ps_yaml_doc *doc, const ps_yaml_node *node, ps_status status, ps_error *err,
                        const char *fmt, ...) {
    if (err == NULL)
        return status;
    char message[sizeof err->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    ps_error_set(err, status, node->key, "%s", message);
    ps_error_prefix(err, doc->label);
    set_place(err, node->line, node->column);
    return status;
}

static ps_status new_node(loader *l, ps_yaml_kind kind, yaml_mark_t mark, const char *text, size_t len,
                          ps_yaml_node **out) {
    ps_yaml_doc *doc = l->doc;
    uint64_t need = sizeof(ps_yaml_node) + (uint64_t)len + 1;
    if (len >= UINT32_MAX || !ps_range_ok(ps_arena_used(doc->arena), need + 16, doc->limit_bytes))
        return fail_mark(l, mark, "too many values for the size of the file");
    ps_yaml_node *node = ps_arena_alloc(doc->arena, need);
    if (node == NULL)
        return ps_error_set(l->err, PS_E_NOMEM, doc->label, "no memory for the document");
    node->kind = (uint8_t)kind;
    node->line = clamp_u32(mark.line);
    node->column = clamp_u32(mark.column);
    node->key = "";
    if (text != NULL) {
        if (memchr(text, '\0', len) != NULL)
            return fail_mark(l, mark, "NUL character in text");
        memcpy(node->text, text, len);
        node->n = (uint32_t)len;
    }
    *out = node;
    return PS_OK;
}

static ps_status check_key(loader *l, open_node *top, const ps_yaml_node *key, yaml_mark_t mark) {
    if (key->kind != PS_YAML_SCALAR)
        return fail_mark(l, mark, "a key must be plain text");
    if (top->node->n == PS_YAML_MAX_KEYS)
        return fail_mark(l, mark, "too many keys in one mapping");
    for (const ps_yaml_node *k = top->node->first; k != NULL; k = k->next->next)
        if (strcmp(k->text, key->text) == 0)
            return ps_yaml_error(l->doc, key, PS_E_DATA, l->err, "key \"%.64s\" given twice", key->text);
    return PS_OK;
}

/* Put a finished scalar or a just opened container where it belongs. */
static ps_status attach(loader *l, ps_yaml_node *node, yaml_mark_t mark) {
    if (l->depth == 0) {
        l->doc->root = node;
        return PS_OK;
    }
    open_node *top = &l->stack[l->depth - 1];
    if (top->node->kind == PS_YAML_MAP && !top->want_value) {
        ps_status status = check_key(l, top, node, mark);
        if (status != PS_OK)
            return status;
        top->want_value = true;
    } else {
        node->key = top->node->kind == PS_YAML_MAP ? top->last->text : top->node->key;
        top->want_value = false;
        top->node->n++;
    }
    if (top->last == NULL)
        top->node->first = node;
    else
        top->last->next = node;
    top->last = node;
    return PS_OK;
}

static ps_status open_container(loader *l, ps_yaml_kind kind, yaml_mark_t mark) {
    if (l->depth == PS_YAML_MAX_DEPTH)
        return fail_mark(l, mark, "nested too deeply");
    ps_yaml_node *node = NULL;
    ps_status status = new_node(l, kind, mark, NULL, 0, &node);
    if (status == PS_OK)
        status = attach(l, node, mark);
    if (status == PS_OK)
        l->stack[l->depth++] = (open_node){node, NULL, false};
    return status;
}

static ps_status on_scalar(loader *l, const yaml_event_t *e) {
    ps_yaml_node *node = NULL;
    ps_status status = new_node(l, PS_YAML_SCALAR, e->start_mark, (const char *)e->data.scalar.value,
                                e->data.scalar.length, &node);
    if (status != PS_OK)
        return status;
    node->plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return attach(l, node, e->start_mark);
}

static ps_status on_event(loader *l, const yaml_event_t *e) {
    static const char no_anchor[] = "anchors are not accepted", no_tag[] = "tags are not accepted";
    switch (e->type) {
    case YAML_ALIAS_EVENT:
        return fail_mark(l, e->start_mark, "aliases are not accepted");
    case YAML_DOCUMENT_START_EVENT:
        if (l->doc->root != NULL)
            return fail_mark(l, e->start_mark, "a second document in the file");
        if (e->data.document_start.version_directive != NULL ||
            e->data.document_start.tag_directives.start != e->data.document_start.tag_directives.end)
            return fail_mark(l, e->start_mark, "directives are not accepted");
        return PS_OK;
    case YAML_SCALAR_EVENT:
        if (e->data.scalar.anchor != NULL || e->data.scalar.tag != NULL)
            return fail_mark(l, e->start_mark, e->data.scalar.tag != NULL ? no_tag : no_anchor);
        return on_scalar(l, e);
    case YAML_SEQUENCE_START_EVENT:
        if (e->data.sequence_start.anchor != NULL || e->data.sequence_start.tag != NULL)
            return fail_mark(l, e->start_mark, e->data.sequence_start.tag != NULL ? no_tag : no_anchor);
        return open_container(l, PS_YAML_SEQ, e->start_mark);
    case YAML_MAPPING_START_EVENT:
        if (e->data.mapping_start.anchor != NULL || e->data.mapping_start.tag != NULL)
            return fail_mark(l, e->start_mark, e->data.mapping_start.tag != NULL ? no_tag : no_anchor);
        return open_container(l, PS_YAML_MAP, e->start_mark);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        l->depth--;
        return PS_OK;
    default:
        return PS_OK;
    }
}

static ps_status fail_parser(const loader *l, const yaml_parser_t *parser) {
    if (parser->error == YAML_MEMORY_ERROR)
        return ps_error_set(l->err, PS_E_NOMEM, l->doc->label, "no memory for the document");
    const char *problem = parser->problem != NULL ? parser->problem : "not YAML";
    if (parser->error == YAML_READER_ERROR)
        return ps_error_at(l->err, PS_E_DATA, l->doc->label, parser->problem_offset, "%s", problem);
    return fail_mark(l, parser->problem_mark, problem);
}

static ps_status run_events(loader *l, yaml_parser_t *parser) {
    for (;;) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event))
            return fail_parser(l, parser);
        yaml_event_type_t type = event.type;
        ps_status status = on_event(l, &event);
        yaml_event_delete(&event);
        if (status != PS_OK)
            return status;
        if (type == YAML_STREAM_END_EVENT)
            return PS_OK;
    }
}

ps_status ps_yaml_load(const char *data, uint64_t size, const char *label, ps_yaml_doc **out, ps_error *err) {
    *out = NULL;
    uint64_t limit;
    if (size > SIZE_MAX || !ps_mul_u64(size, PS_YAML_BYTES_PER_BYTE, &limit) ||
        !ps_add_u64(limit, PS_YAML_BYTES_EXTRA, &limit))
        return ps_error_set(err, PS_E_DATA, label, "too large");
    ps_yaml_doc *doc = calloc(1, sizeof *doc);
    yaml_parser_t parser;
    if (doc == NULL)
        return ps_error_set(err, PS_E_NOMEM, label, "no memory for the document");
    doc->label = label;
    doc->limit_bytes = limit;
    doc->arena = ps_arena_new(limit);
    doc->c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (doc->arena == NULL || doc->c_locale == (locale_t)0 || !yaml_parser_initialize(&parser)) {
        ps_yaml_free(doc);
        return ps_error_set(err, PS_E_NOMEM, label, "no memory for the document");
    }
    loader l = {.doc = doc, .err = err};
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)data, (size_t)size);
    ps_status status = run_events(&l, &parser);
    yaml_parser_delete(&parser);
    if (status == PS_OK && doc->root == NULL)
        status = ps_error_set(err, PS_E_DATA, label, "the document is empty");
    if (status != PS_OK) {
        ps_yaml_free(doc);
        return status;
    }
    *out = doc;
    return PS_OK;
}

void ps_yaml_free(ps_yaml_doc *doc) {
    if (doc == NULL)
        return;
    if (doc->c_locale != (locale_t)0)
        freelocale(doc->c_locale);
    ps_arena_free(doc->arena);
    free(doc);
}

const ps_yaml_node *ps_yaml_root(const ps_yaml_doc *doc) {
    return doc->root;
}

const ps_yaml_node *ps_yaml_find(const ps_yaml_node *map, const char *key) {
    for (const ps_yaml_node *k = map->first; k != NULL; k = k->next->next)
        if (strcmp(k->text, key) == 0)
            return k->next;
    return NULL;
}

ps_status ps_yaml_want(const ps_yaml_doc *doc, const ps_yaml_node *node, ps_yaml_kind kind, ps_error *err) {
    static const char *const names[] = {"a single value", "a sequence", "a mapping"};
    if (node->kind == kind)
        return PS_OK;
    return ps_yaml_error(doc, node, PS_E_DATA, err, "must be %s, is %s", names[kind], names[node->kind]);
}

ps_status ps_yaml_need(const ps_yaml_doc *doc, const ps_yaml_node *map, const char *key, ps_yaml_kind kind,
                       const ps_yaml_node **out, ps_error *err) {
    ps_status status = ps_yaml_want(doc, map, PS_YAML_MAP, err);
    if (status != PS_OK)
        return status;
    *out = ps_yaml_find(map, key);
    if (*out == NULL)
        return ps_yaml_error(doc, map, PS_E_DATA, err, "key \"%s\" is missing", key);
    return ps_yaml_want(doc, *out, kind, err);
}

ps_status ps_yaml_u64(const ps_yaml_doc *doc, const ps_yaml_node *node, uint64_t max, uint64_t *out,
                      ps_error *err) {
    ps_status status = ps_yaml_want(doc, node, PS_YAML_SCALAR, err);
    if (status != PS_OK)
        return status;
    const char *s = node->text;
    uint64_t v = 0;
    bool ok = node->plain && *s != '\0' && !(s[0] == '0' && s[1] != '\0');
    for (; ok && *s != '\0'; s++)
        ok = *s >= '0' && *s <= '9' && ps_mul_u64(v, 10, &v) && ps_add_u64(v, (uint64_t)(*s - '0'), &v);
    if (!ok || v > max)
        return ps_yaml_error(doc, node, PS_E_DATA, err, "must be a whole number from 0 to %llu, is \"%.40s\"",
                             (unsigned long long)max, node->text);
    *out = v;
    return PS_OK;
}

static const char *skip_digits(const char *s) {
    while (*s >= '0' && *s <= '9')
        s++;
    return s;
}

static bool is_json_number(const char *s) {
    if (*s == '-')
        s++;
    const char *p = skip_digits(s);
    if (p == s || (*s == '0' && p != s + 1))
        return false;
    if (*p == '.') {
        s = p + 1;
        p = skip_digits(s);
        if (p == s)
            return false;
    }
    if (*p == 'e' || *p == 'E') {
        s = p + 1;
        if (*s == '+' || *s == '-')
            s++;
        p = skip_digits(s);
        if (p == s)
            return false;
    }
    return *p == '\0';
}

ps_status ps_yaml_f64(const ps_yaml_doc *doc, const ps_yaml_node *node, double *out, ps_error *err) {
    ps_status status = ps_yaml_want(doc, node, PS_YAML_SCALAR, err);
    if (status != PS_OK)
        return status;
    bool ok = node->plain && is_json_number(node->text);
    double v = ok ? strtod_l(node->text, NULL, doc->c_locale) : 0;
    if (!ok || !isfinite(v))
        return ps_yaml_error(doc, node, PS_E_DATA, err, "must be a finite number, is \"%.40s\"", node->text);
    *out = v;
    return PS_OK;
}

ps_status ps_yaml_bool(const ps_yaml_doc *doc, const ps_yaml_node *node, bool *out, ps_error *err) {
    ps_status status = ps_yaml_want(doc, node, PS_YAML_SCALAR, err);
    if (status != PS_OK)
        return status;
    bool yes = node->plain && strcmp(node->text, "true") == 0;
    if (!yes && !(node->plain && strcmp(node->text, "false") == 0))
        return ps_yaml_error(doc, node, PS_E_DATA, err, "must be true or false, is \"%.40s\"", node->text);
    *out = yes;
    return PS_OK;
}
