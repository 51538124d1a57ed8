/* A YAML or JSON document as a tree, for readers that trust nothing: no anchors, aliases, tags or second
 * documents; depth, keys per mapping and memory bounded; every node keeps its line and column. Private
 * to schemas/. */
#ifndef PS_SCHEMAS_YAML_DOC_H
#define PS_SCHEMAS_YAML_DOC_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

enum {
    PS_YAML_MAX_DEPTH = 24,
    PS_YAML_MAX_KEYS = 64,       /* of one mapping; no document of ours comes near */
    PS_YAML_BYTES_PER_BYTE = 32, /* tree memory per input byte (a value of ours takes 3 bytes, a node 48), */
    PS_YAML_BYTES_EXTRA = 1 << 16, /* plus this */
};

typedef enum ps_yaml_kind { PS_YAML_SCALAR, PS_YAML_SEQ, PS_YAML_MAP } ps_yaml_kind;

typedef struct ps_yaml_node {
    struct ps_yaml_node *next;  /* after it in its sequence or mapping */
    struct ps_yaml_node *first; /* of a sequence: elements; of a mapping: key, value, key, value */
    const char *key;            /* innermost mapping key above the node, "" if none */
    uint32_t n;                 /* elements, pairs, or bytes of text */
    uint32_t line, column;      /* 1-based */
    uint8_t kind;               /* ps_yaml_kind */
    bool plain;                 /* scalar without quotes */
    char text[];                /* scalars: NUL-terminated, without NULs inside */
} ps_yaml_node;

typedef struct ps_yaml_doc ps_yaml_doc;

/* Load the one document of `size` bytes. label: names the input in errors; must outlive the tree.
 * Errors: PS_E_DATA with line and column, PS_E_NOMEM. On PS_OK the caller calls ps_yaml_free. */
ps_status ps_yaml_load(const char *data, uint64_t size, const char *label, ps_yaml_doc **out, ps_error *err);
void ps_yaml_free(ps_yaml_doc *doc);
const ps_yaml_node *ps_yaml_root(const ps_yaml_doc *doc);

/* Fill *err with "label: key: message (line, column)" of a node. */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
ps_status
ps_yaml_error(const ps_yaml_doc *doc, const ps_yaml_node *node, ps_status status, ps_error *err,
              const char *fmt, ...);

/* Value of a key, or NULL. `map` must be a mapping. */
const ps_yaml_node *ps_yaml_find(const ps_yaml_node *map, const char *key);
/* The same, an error if it is absent or of another kind. Also refuses a `map` that is no mapping. */
ps_status ps_yaml_need(const ps_yaml_doc *doc, const ps_yaml_node *map, const char *key, ps_yaml_kind kind,
                       const ps_yaml_node **out, ps_error *err);
ps_status ps_yaml_want(const ps_yaml_doc *doc, const ps_yaml_node *node, ps_yaml_kind kind, ps_error *err);

/* Typed scalars. Numbers and booleans must be plain: "1" in quotes is text. */
ps_status ps_yaml_u64(const ps_yaml_doc *doc, const ps_yaml_node *node, uint64_t max, uint64_t *out,
                      ps_error *err);
/* JSON's number grammar; finite. */
ps_status ps_yaml_f64(const ps_yaml_doc *doc, const ps_yaml_node *node, double *out, ps_error *err);
ps_status ps_yaml_bool(const ps_yaml_doc *doc, const ps_yaml_node *node, bool *out, ps_error *err);

#endif
