/* Records of the documents as tables: one row per field drives the YAML reader and writer and the binary
 * reader and writer, so that they cannot disagree. Private to schemas/. */
#ifndef PS_SCHEMAS_FIELDS_H
#define PS_SCHEMAS_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "core/text.h"
#include "schemas/yaml_doc.h"

/* Names of an enumeration whose values are 0 .. count - 1; `name_of` gives NULL for a value that is none. */
typedef struct ps_names {
    const char *what; /* "op": for messages */
    uint32_t count;
    const char *(*name_of)(uint32_t value);
} ps_names;

extern const ps_names ps_names_op, ps_names_dtype, ps_names_fmt, ps_names_device, ps_names_value,
    ps_names_shard_kind, ps_names_role, ps_names_queue, ps_names_space, ps_names_placement, ps_names_rows,
    ps_names_loop, ps_names_stop, ps_names_beside, ps_names_trace_source, ps_names_when, ps_names_part,
    ps_names_host_kind, ps_names_bus, ps_names_timer;

/* Value of a name, or names->count. */
uint32_t ps_names_find(const ps_names *names, const char *text);

/* X(NAME, bytes in the binary plan; 0: the field's own size) */
#define PS_FIELD_LIST(X)                                                                                     \
    X(U16, 2)                                                                                                \
    X(U32, 4)                                                                                                \
    X(U64, 8)                                                                                                \
    X(F64, 8)                                                                                                \
    X(BOOL, 4)  /* 0 or 1 */                                                                                 \
    X(ENUM, 4)  /* spelt by name in YAML */                                                                  \
    X(CHARS, 0) /* char[size], NUL-padded */                                                                 \
    X(HASH, 16) /* 32 hex digits in YAML */
typedef enum ps_field_type {
#define PS_FIELD_ENUM_ROW(name, bytes) PS_FIELD_##name,
    PS_FIELD_LIST(PS_FIELD_ENUM_ROW)
#undef PS_FIELD_ENUM_ROW
} ps_field_type;

typedef struct ps_field {
    const char *name;
    ps_field_type type;
    uint32_t offset, size; /* in the record */
    const ps_names *names; /* ENUM */
} ps_field;

#define PS_FIELD(record, member, text, type_name)                                                            \
    { (text), PS_FIELD_##type_name, (uint32_t)offsetof(record, member), sizeof(((record *)0)->member), NULL }
#define PS_FIELD_NAMED(record, member, text, names_ptr)                                                      \
    { (text), PS_FIELD_ENUM, (uint32_t)offsetof(record, member), sizeof(((record *)0)->member), (names_ptr) }

typedef struct ps_fields {
    uint32_t n;
    const ps_field *rows;
} ps_fields;
#define PS_FIELDS(array)                                                                                     \
    { sizeof(array) / sizeof((array)[0]), (array) }

/* Fill one field of a record from the value of a key. */
ps_status ps_fields_read_one(const ps_yaml_doc *doc, const ps_yaml_node *node, const ps_field *field,
                             void *record, ps_error *err);
/* Fill a record from a mapping. `others`: keys that the caller reads itself, NULL after the last (may be NULL);
 * any other key is refused by name, and every field must be there. */
ps_status ps_fields_read_map(const ps_yaml_doc *doc, const ps_yaml_node *map, const ps_fields *fields,
                             const char *const *others, void *record, ps_error *err);
/* Fill a record from a sequence with one element per field. */
ps_status ps_fields_read_row(const ps_yaml_doc *doc, const ps_yaml_node *seq, const ps_fields *fields,
                             void *record, ps_error *err);
/* A table {columns: [names], rows: [[...], ...]}: the columns must be the fields, in order, and every row
 * must have a value for each, so that an array of out_rows->n records is within a constant of the text. */
ps_status ps_fields_open_table(const ps_yaml_doc *doc, const ps_yaml_node *map, const ps_fields *fields,
                               const ps_yaml_node **out_rows, ps_error *err);
/* The same where "columns" and "rows" are keys among others, which the caller has checked. */
ps_status ps_fields_find_rows(const ps_yaml_doc *doc, const ps_yaml_node *map, const ps_fields *fields,
                              const ps_yaml_node **out_rows, ps_error *err);
/* Fill the array that the caller made for the rows. */
ps_status ps_fields_read_rows(const ps_yaml_doc *doc, const ps_yaml_node *rows, const ps_fields *fields,
                              void *records, size_t record_bytes, ps_error *err);
/* Refuse keys that are neither fields nor in `others`. */
ps_status ps_fields_check_keys(const ps_yaml_doc *doc, const ps_yaml_node *map, const ps_fields *fields,
                               const char *const *others, ps_error *err);

/* One line "key: value" per field, each after `indent` spaces. */
void ps_fields_write_lines(ps_text *t, uint32_t indent, const ps_fields *fields, const void *record);
/* "key: value, key: value", without braces. */
void ps_fields_write_flow(ps_text *t, const ps_fields *fields, const void *record);
/* One value as JSON: as in YAML, with names quoted. */
void ps_fields_write_json(ps_text *t, const ps_field *field, const void *record);
void ps_fields_write_row(ps_text *t, const ps_fields *fields, const void *record);
void ps_fields_write_table(ps_text *t, uint32_t indent, const ps_fields *fields, const void *records,
                           uint32_t n, size_t record_bytes);

/* The same without spaces in the rows, where there are thousands: the same document. */
void ps_fields_write_dense_table(ps_text *t, uint32_t indent, const ps_fields *fields, const void *records,
                                 uint32_t n, size_t record_bytes);

/* Bytes of a record in the binary plan. Fields follow each other without padding, little-endian. */
uint64_t ps_fields_binary_bytes(const ps_fields *fields);
void ps_fields_put(uint8_t *dst, const ps_fields *fields, const void *record);
/* Names the field that holds a value out of range; `offset` is src's place in the file. */
ps_status ps_fields_get(const uint8_t *src, uint64_t offset, const char *label, const ps_fields *fields,
                        void *record, ps_error *err);

/* Scalars of documents that are not part of a record. */
ps_status ps_read_name(const ps_yaml_doc *doc, const ps_yaml_node *node, const ps_names *names, uint32_t *out,
                       ps_error *err);
ps_status ps_read_u32(const ps_yaml_doc *doc, const ps_yaml_node *node, uint32_t *out, ps_error *err);

/* True for well-formed UTF-8 without control characters (with `multiline`, newlines and tabs pass). */
bool ps_string_clean(const char *s, bool multiline);
/* Double-quoted; what YAML would fold or refuse is escaped. `s` is clean. */
void ps_write_quoted(ps_text *t, const char *s);
void ps_write_f64(ps_text *t, double v);
void ps_write_str(ps_text *t, const char *s);
void ps_put_u32(uint8_t *dst, uint32_t v);
void ps_put_u64(uint8_t *dst, uint64_t v);
uint32_t ps_get_u32(const uint8_t *src);
uint64_t ps_get_u64(const uint8_t *src);

/* Semantic check of the CHARS fields of a record (clean, terminated) and of its ENUM and F64 fields (in
 * range, finite). Names the field. */
ps_status ps_fields_validate(const ps_fields *fields, const void *record, ps_error *err);

#endif
