/* Record tables: YAML and binary reading and writing. */
#include "schemas/fields.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/utf8.h"

bool ps_string_clean(const char *s, bool multiline) {
    for (uint64_t left = strlen(s); left != 0;) {
        uint32_t cp, len = ps_utf8_sequence(s, left, &cp);
        if (len == 0)
            return false;
        bool control = cp < 0x20 ? !(multiline && (cp == '\n' || cp == '\t')) : cp >= 0x7f && cp < 0xa0;
        if (control || cp == 0xfffe || cp == 0xffff)
            return false;
        s += len;
        left -= len;
    }
    return true;
}

void ps_write_str(ps_text *t, const char *s) {
    ps_text_put(t, s, strlen(s));
}

void ps_write_quoted(ps_text *t, const char *s) {
    ps_write_str(t, "\"");
    for (uint64_t left = strlen(s); left != 0;) {
        uint32_t cp = 0, len = ps_utf8_sequence(s, left, &cp);
        len = len == 0 ? 1 : len; /* never of a document that was validated */
        if (cp == '"' || cp == '\\')
            ps_text_printf(t, "\\%c", (int)cp);
        else if (cp == '\n' || cp == '\t')
            ps_text_printf(t, "\\%c", cp == '\n' ? 'n' : 't');
        else if (cp == 0x2028 || cp == 0x2029 || cp == 0xfeff)
            ps_text_printf(t, "\\u%04X", (unsigned)cp);
        else
            ps_text_put(t, s, len);
        s += len;
        left -= len;
    }
    ps_write_str(t, "\"");
}

void ps_write_f64(ps_text *t, double v) {
    char buf[32];
    ps_write_str(t, ps_format_f64(v, buf));
}

void ps_put_u32(uint8_t *dst, uint32_t v) {
    for (int i = 0; i < 4; i++)
        dst[i] = (uint8_t)(v >> 8 * i);
}

void ps_put_u64(uint8_t *dst, uint64_t v) {
    for (int i = 0; i < 8; i++)
        dst[i] = (uint8_t)(v >> 8 * i);
}

uint32_t ps_get_u32(const uint8_t *src) {
    return src[0] | (uint32_t)src[1] << 8 | (uint32_t)src[2] << 16 | (uint32_t)src[3] << 24;
}

uint64_t ps_get_u64(const uint8_t *src) {
    return ps_get_u32(src) | (uint64_t)ps_get_u32(src + 4) << 32;
}

ps_status ps_read_name(const ps_yaml_doc *doc, const ps_yaml_node *node, const ps_names *names, uint32_t *out,
                       ps_error *err) {
    ps_status status = ps_yaml_want(doc, node, PS_YAML_SCALAR, err);
    if (status != PS_OK)
        return status;
    *out = ps_names_find(names, node->text);
    if (*out == names->count)
        return ps_yaml_error(doc, node, PS_E_DATA, err, "unknown %s \"%.60s\"", names->what, node->text);
    return PS_OK;
}

ps_status ps_read_u32(const ps_yaml_doc *doc, const ps_yaml_node *node, uint32_t *out, ps_error *err) {
    uint64_t v;
    ps_status status = ps_yaml_u64(doc, node, UINT32_MAX, &v, err);
    if (status == PS_OK)
        *out = (uint32_t)v;
    return status;
}

static ps_status read_chars(const ps_yaml_doc *doc, const ps_yaml_node *node, char *dst, uint32_t size,
                            ps_error *err) {
    if (node->n >= size)
        return ps_yaml_error(doc, node, PS_E_DATA, err, "text longer than %u bytes", size - 1);
    if (!ps_string_clean(node->text, false))
        return ps_yaml_error(doc, node, PS_E_DATA, err, "control characters or broken UTF-8 in text");
    memset(dst, 0, size);
    memcpy(dst, node->text, node->n);
    return PS_OK;
}

ps_status ps_fields_read_one(const ps_yaml_doc *doc, const ps_yaml_node *node, const ps_field *f,
                             void *record, ps_error *err) {
    char *at = (char *)record + f->offset;
    ps_status status = ps_yaml_want(doc, node, PS_YAML_SCALAR, err);
    uint64_t u64;
    uint32_t u32;
    uint16_t u16;
    double f64;
    bool flag;
    if (status != PS_OK)
        return status;
    switch (f->type) {
    case PS_FIELD_U16:
        if ((status = ps_yaml_u64(doc, node, UINT16_MAX, &u64, err)) == PS_OK)
            memcpy(at, (u16 = (uint16_t)u64, &u16), sizeof u16);
        return status;
    case PS_FIELD_U32:
        if ((status = ps_read_u32(doc, node, &u32, err)) == PS_OK)
            memcpy(at, &u32, sizeof u32);
        return status;
    case PS_FIELD_U64:
        if ((status = ps_yaml_u64(doc, node, UINT64_MAX, &u64, err)) == PS_OK)
            memcpy(at, &u64, sizeof u64);
        return status;
    case PS_FIELD_F64:
        if ((status = ps_yaml_f64(doc, node, &f64, err)) == PS_OK)
            memcpy(at, &f64, sizeof f64);
        return status;
    case PS_FIELD_BOOL:
        if ((status = ps_yaml_bool(doc, node, &flag, err)) == PS_OK)
            memcpy(at, &flag, sizeof flag);
        return status;
    case PS_FIELD_ENUM:
        if ((status = ps_read_name(doc, node, f->names, &u32, err)) == PS_OK)
            memcpy(at, &u32, sizeof u32);
        return status;
    case PS_FIELD_CHARS:
        return read_chars(doc, node, at, f->size, err);
    case PS_FIELD_HASH:
        if (ps_hash_parse(node->text, (uint8_t *)at) != 0)
            return ps_yaml_error(doc, node, PS_E_DATA, err, "must be 32 hexadecimal digits");
        return PS_OK;
    }
    return ps_yaml_error(doc, node, PS_E_INTERNAL, err, "field of unknown type");
}

static bool is_among(const char *const *list, const char *key) {
    for (; list != NULL && *list != NULL; list++)
        if (strcmp(*list, key) == 0)
            return true;
    return false;
}

ps_status ps_fields_check_keys(const ps_yaml_doc *doc, const ps_yaml_node *map, const ps_fields *fields,
                               const char *const *others, ps_error *err) {
    ps_status status = ps_yaml_want(doc, map, PS_YAML_MAP, err);
    for (const ps_yaml_node *k = map->first; status == PS_OK && k != NULL; k = k->next->next) {
        bool known = is_among(others, k->text);
        for (uint32_t i = 0; !known && i < fields->n; i++)
            known = strcmp(fields->rows[i].name, k->text) == 0;
        if (!known)
            status = ps_yaml_error(doc, k, PS_E_DATA, err, "unknown key \"%.60s\"", k->text);
    }
    return status;
}

ps_status ps_fields_read_map(const ps_yaml_doc *doc, const ps_yaml_node *map, const ps_fields *fields,
                             const char *const *others, void *record, ps_error *err) {
    ps_status status = ps_fields_check_keys(doc, map, fields, others, err);
    for (uint32_t i = 0; status == PS_OK && i < fields->n; i++) {
        const ps_yaml_node *node = ps_yaml_find(map, fields->rows[i].name);
        if (node == NULL)
            return ps_yaml_error(doc, map, PS_E_DATA, err, "key \"%s\" is missing", fields->rows[i].name);
        status = ps_fields_read_one(doc, node, &fields->rows[i], record, err);
    }
    return status;
}

ps_status ps_fields_read_row(const ps_yaml_doc *doc, const ps_yaml_node *seq, const ps_fields *fields,
                             void *record, ps_error *err) {
    ps_status status = ps_yaml_want(doc, seq, PS_YAML_SEQ, err);
    if (status != PS_OK)
        return status;
    if (seq->n != fields->n)
        return ps_yaml_error(doc, seq, PS_E_DATA, err, "must have %u values, has %u", fields->n, seq->n);
    const ps_yaml_node *node = seq->first;
    for (uint32_t i = 0; status == PS_OK && i < fields->n; i++, node = node->next)
        status = ps_fields_read_one(doc, node, &fields->rows[i], record, err);
    return status;
}

static ps_status check_columns(const ps_yaml_doc *doc, const ps_yaml_node *columns, const ps_fields *fields,
                               ps_error *err) {
    const ps_yaml_node *node = columns->first;
    for (uint32_t i = 0; i < fields->n; i++, node = node->next) {
        if (node == NULL)
            return ps_yaml_error(doc, columns, PS_E_DATA, err, "column \"%s\" is missing",
                                 fields->rows[i].name);
        if (node->kind != PS_YAML_SCALAR || strcmp(node->text, fields->rows[i].name) != 0)
            return ps_yaml_error(doc, node, PS_E_DATA, err, "column %u must be \"%s\"", i + 1,
                                 fields->rows[i].name);
    }
    if (node != NULL)
        return ps_yaml_error(doc, node, PS_E_DATA, err, "unknown column");
    return PS_OK;
}

ps_status ps_fields_find_rows(const ps_yaml_doc *doc, const ps_yaml_node *map, const ps_fields *fields,
                              const ps_yaml_node **out_rows, ps_error *err) {
    const ps_yaml_node *columns, *rows = NULL;
    ps_status status = ps_yaml_need(doc, map, "columns", PS_YAML_SEQ, &columns, err);
    if (status == PS_OK)
        status = check_columns(doc, columns, fields, err);
    if (status == PS_OK)
        status = ps_yaml_need(doc, map, "rows", PS_YAML_SEQ, &rows, err);
    if (status != PS_OK)
        return status;
    for (const ps_yaml_node *r = rows->first; r != NULL; r = r->next)
        if (r->kind != PS_YAML_SEQ || r->n != fields->n)
            return ps_yaml_error(doc, r, PS_E_DATA, err, "must be a sequence of %u values", fields->n);
    *out_rows = rows;
    return PS_OK;
}

ps_status ps_fields_open_table(const ps_yaml_doc *doc, const ps_yaml_node *map, const ps_fields *fields,
                               const ps_yaml_node **out_rows, ps_error *err) {
    static const char *const keys[] = {"columns", "rows", NULL};
    static const ps_fields none = {0, NULL};
    ps_status status = ps_fields_check_keys(doc, map, &none, keys, err);
    return status == PS_OK ? ps_fields_find_rows(doc, map, fields, out_rows, err) : status;
}

ps_status ps_fields_read_rows(const ps_yaml_doc *doc, const ps_yaml_node *rows, const ps_fields *fields,
                              void *records, size_t record_bytes, ps_error *err) {
    ps_status status = PS_OK;
    char *record = records;
    for (const ps_yaml_node *r = rows->first; status == PS_OK && r != NULL; r = r->next) {
        status = ps_fields_read_row(doc, r, fields, record, err);
        record += record_bytes;
    }
    return status;
}

static void write_value(ps_text *t, const ps_field *f, const void *record) {
    const char *at = (const char *)record + f->offset;
    uint64_t u64;
    uint32_t u32;
    uint16_t u16;
    double f64;
    bool flag;
    char hex[PS_HASH_HEX];
    switch (f->type) {
    case PS_FIELD_U16:
        memcpy(&u16, at, sizeof u16);
        ps_text_printf(t, "%u", u16);
        break;
    case PS_FIELD_U32:
        memcpy(&u32, at, sizeof u32);
        ps_text_printf(t, "%u", u32);
        break;
    case PS_FIELD_U64:
        memcpy(&u64, at, sizeof u64);
        ps_text_printf(t, "%" PRIu64, u64);
        break;
    case PS_FIELD_F64:
        memcpy(&f64, at, sizeof f64);
        ps_write_f64(t, f64);
        break;
    case PS_FIELD_BOOL:
        memcpy(&flag, at, sizeof flag);
        ps_write_str(t, flag ? "true" : "false");
        break;
    case PS_FIELD_ENUM:
        memcpy(&u32, at, sizeof u32);
        ps_write_str(t, f->names->name_of(u32));
        break;
    case PS_FIELD_CHARS:
        ps_write_quoted(t, at);
        break;
    case PS_FIELD_HASH:
        ps_text_printf(t, "\"%s\"", ps_hash_hex((const uint8_t *)at, hex));
        break;
    }
}

void ps_fields_write_json(ps_text *t, const ps_field *field, const void *record) {
    bool bare = field->type == PS_FIELD_ENUM;
    if (bare)
        ps_write_str(t, "\"");
    write_value(t, field, record);
    if (bare)
        ps_write_str(t, "\"");
}

void ps_fields_write_lines(ps_text *t, uint32_t indent, const ps_fields *fields, const void *record) {
    for (uint32_t i = 0; i < fields->n; i++) {
        ps_text_printf(t, "%*s%s: ", (int)indent, "", fields->rows[i].name);
        write_value(t, &fields->rows[i], record);
        ps_write_str(t, "\n");
    }
}

void ps_fields_write_flow(ps_text *t, const ps_fields *fields, const void *record) {
    for (uint32_t i = 0; i < fields->n; i++) {
        ps_text_printf(t, "%s%s: ", i == 0 ? "" : ", ", fields->rows[i].name);
        write_value(t, &fields->rows[i], record);
    }
}

static void write_row(ps_text *t, const ps_fields *fields, const void *record, const char *between) {
    for (uint32_t i = 0; i < fields->n; i++) {
        ps_write_str(t, i == 0 ? "[" : between);
        write_value(t, &fields->rows[i], record);
    }
    ps_write_str(t, "]");
}

void ps_fields_write_row(ps_text *t, const ps_fields *fields, const void *record) {
    write_row(t, fields, record, ", ");
}

static void write_table(ps_text *t, uint32_t indent, const ps_fields *fields, const void *records, uint32_t n,
                        size_t record_bytes, const char *between) {
    ps_text_printf(t, "%*scolumns: [", (int)indent, "");
    for (uint32_t i = 0; i < fields->n; i++)
        ps_text_printf(t, "%s%s", i == 0 ? "" : ", ", fields->rows[i].name);
    ps_text_printf(t, "]\n%*srows:%s\n", (int)indent, "", n == 0 ? " []" : "");
    for (uint32_t i = 0; i < n; i++) {
        ps_text_printf(t, "%*s- ", (int)indent, "");
        write_row(t, fields, (const char *)records + i * record_bytes, between);
        ps_write_str(t, "\n");
    }
}

void ps_fields_write_table(ps_text *t, uint32_t indent, const ps_fields *fields, const void *records,
                           uint32_t n, size_t record_bytes) {
    write_table(t, indent, fields, records, n, record_bytes, ", ");
}

void ps_fields_write_dense_table(ps_text *t, uint32_t indent, const ps_fields *fields, const void *records,
                                 uint32_t n, size_t record_bytes) {
    write_table(t, indent, fields, records, n, record_bytes, ",");
}

static uint32_t binary_bytes_of(const ps_field *f) {
    static const uint8_t bytes[] = {
#define PS_FIELD_BYTES(name, n) [PS_FIELD_##name] = (n),
        PS_FIELD_LIST(PS_FIELD_BYTES)
#undef PS_FIELD_BYTES
    };
    return bytes[f->type] != 0 ? bytes[f->type] : f->size;
}

uint64_t ps_fields_binary_bytes(const ps_fields *fields) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < fields->n; i++)
        sum += binary_bytes_of(&fields->rows[i]);
    return sum;
}

void ps_fields_put(uint8_t *dst, const ps_fields *fields, const void *record) {
    for (uint32_t i = 0; i < fields->n; i++) {
        const ps_field *f = &fields->rows[i];
        const char *at = (const char *)record + f->offset;
        uint64_t u64;
        uint32_t u32;
        uint16_t u16;
        bool flag;
        switch (f->type) {
        case PS_FIELD_U16:
            memcpy(&u16, at, sizeof u16);
            dst[0] = (uint8_t)u16;
            dst[1] = (uint8_t)(u16 >> 8);
            break;
        case PS_FIELD_U32:
        case PS_FIELD_ENUM:
            memcpy(&u32, at, sizeof u32);
            ps_put_u32(dst, u32);
            break;
        case PS_FIELD_U64:
        case PS_FIELD_F64:
            memcpy(&u64, at, sizeof u64);
            ps_put_u64(dst, u64);
            break;
        case PS_FIELD_BOOL:
            memcpy(&flag, at, sizeof flag);
            ps_put_u32(dst, flag ? 1 : 0);
            break;
        case PS_FIELD_CHARS:
            memset(dst, 0, f->size);
            memcpy(dst, at, strnlen(at, f->size));
            break;
        case PS_FIELD_HASH:
            memcpy(dst, at, PS_HASH_BYTES);
            break;
        }
        dst += binary_bytes_of(f);
    }
}

/* What validation cannot see any more once the value is in its field. */
static const char *get_value(const uint8_t *src, const ps_field *f, char *at) {
    uint64_t u64;
    uint32_t u32;
    uint16_t u16;
    bool flag;
    switch (f->type) {
    case PS_FIELD_U16:
        u16 = (uint16_t)(src[0] | src[1] << 8);
        memcpy(at, &u16, sizeof u16);
        return NULL;
    case PS_FIELD_U32:
        u32 = ps_get_u32(src);
        memcpy(at, &u32, sizeof u32);
        return NULL;
    case PS_FIELD_U64:
    case PS_FIELD_F64:
        u64 = ps_get_u64(src);
        memcpy(at, &u64, sizeof u64);
        return NULL;
    case PS_FIELD_BOOL:
        u32 = ps_get_u32(src);
        flag = u32 == 1;
        memcpy(at, &flag, sizeof flag);
        return u32 <= 1 ? NULL : "is neither 0 nor 1";
    case PS_FIELD_ENUM:
        u32 = ps_get_u32(src);
        if (u32 >= f->names->count || f->names->name_of(u32) == NULL)
            return "is not a known number";
        memcpy(at, &u32, sizeof u32);
        return NULL;
    case PS_FIELD_CHARS: {
        size_t len = strnlen((const char *)src, f->size);
        if (len == f->size)
            return "is not terminated";
        for (size_t i = len; i < f->size; i++)
            if (src[i] != 0)
                return "has bytes behind its end";
        memcpy(at, src, f->size);
        return NULL;
    }
    case PS_FIELD_HASH:
        memcpy(at, src, PS_HASH_BYTES);
        return NULL;
    }
    return "has an unknown type";
}

ps_status ps_fields_get(const uint8_t *src, uint64_t offset, const char *label, const ps_fields *fields,
                        void *record, ps_error *err) {
    const uint8_t *start = src;
    for (uint32_t i = 0; i < fields->n; i++) {
        const ps_field *f = &fields->rows[i];
        const char *wrong = get_value(src, f, (char *)record + f->offset);
        if (wrong != NULL)
            return ps_error_at(err, PS_E_DATA, label, offset + (uint64_t)(src - start), "%s %s", f->name,
                               wrong);
        src += binary_bytes_of(f);
    }
    return PS_OK;
}

ps_status ps_fields_validate(const ps_fields *fields, const void *record, ps_error *err) {
    for (uint32_t i = 0; i < fields->n; i++) {
        const ps_field *f = &fields->rows[i];
        const char *at = (const char *)record + f->offset;
        uint32_t u32;
        double f64;
        if (f->type == PS_FIELD_CHARS && (strnlen(at, f->size) == f->size || !ps_string_clean(at, false)))
            return ps_error_set(err, PS_E_DATA, f->name, "control characters or broken UTF-8 in text");
        if (f->type == PS_FIELD_F64 && (memcpy(&f64, at, sizeof f64), !isfinite(f64)))
            return ps_error_set(err, PS_E_DATA, f->name, "is not a finite number");
        if (f->type == PS_FIELD_ENUM &&
            (memcpy(&u32, at, sizeof u32), u32 >= f->names->count || f->names->name_of(u32) == NULL))
            return ps_error_set(err, PS_E_DATA, f->name, "unknown %s %u", f->names->what, u32);
    }
    return PS_OK;
}
