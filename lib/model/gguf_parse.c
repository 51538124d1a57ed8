/* Parser of one GGUF header: every count, length and offset is checked before it is used, and memory
 * grows with the bytes that were read, never with a number that the file claims. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "model/gguf_internal.h"

enum {
    MIN_KV_BYTES = 8 + 1 + 4 + 1,         /* one-byte key, one-byte value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8, /* one-byte name, no dimensions */
    FIRST_CAPACITY = 64,
    DEFAULT_ALIGNMENT = 32,
    VERSION_SWAPPED_MASK = 0xffff /* a version whose low half is zero has its bytes swapped */
};

/* X(TYPE, "name", bytes of an element, 0 where it varies) */
#define GGUF_TYPE_LIST(X)                                                                                    \
    X(U8, "u8", 1)                                                                                           \
    X(I8, "i8", 1)                                                                                           \
    X(U16, "u16", 2)                                                                                         \
    X(I16, "i16", 2)                                                                                         \
    X(U32, "u32", 4)                                                                                         \
    X(I32, "i32", 4)                                                                                         \
    X(F32, "f32", 4)                                                                                         \
    X(BOOL, "bool", 1)                                                                                       \
    X(STRING, "string", 0)                                                                                   \
    X(ARRAY, "array", 0)                                                                                     \
    X(U64, "u64", 8)                                                                                         \
    X(I64, "i64", 8)                                                                                         \
    X(F64, "f64", 8)

static const struct {
    const char *name;
    uint64_t bytes;
} type_rows[PS_GGUF_TYPE_COUNT] = {
#define TYPE_ROW(type, name, bytes) [PS_GGUF_##type] = {name, bytes},
    GGUF_TYPE_LIST(TYPE_ROW)
#undef TYPE_ROW
};

uint64_t ps_gguf_type_bytes(ps_gguf_type type) {
    return type_rows[type].bytes;
}

const char *ps_gguf_type_name(ps_gguf_type type) {
    return type_rows[type].name;
}

int ps_str_compare(ps_str a, ps_str b) {
    uint64_t n = a.len < b.len ? a.len : b.len;
    int c = memcmp(a.data, b.data, (size_t)n);
    return c != 0 ? c : (a.len > b.len) - (a.len < b.len);
}

char *ps_str_clip(ps_str s, char buf[128]) {
    if (s.len < 128) {
        memcpy(buf, s.data, (size_t)s.len);
        buf[s.len] = '\0';
    } else {
        memcpy(buf, s.data, 124);
        memcpy(buf + 124, "...", 4);
    }
    for (char *p = buf; p < buf + (s.len < 128 ? s.len : 127); p++)
        if (*p == '\0')
            *p = '?'; /* a NUL inside a name would hide the rest of it */
    return buf;
}

/* Reading position. */
typedef struct cursor {
    const uint8_t *data;
    uint64_t at, size;
} cursor;

static bool take(cursor *c, uint64_t n, const uint8_t **out) {
    if (!ps_range_ok(c->at, n, c->size))
        return false;
    *out = c->data + c->at;
    c->at += n;
    return true;
}

static bool take_u32(cursor *c, uint32_t *out) {
    const uint8_t *p;
    if (!take(c, 4, &p))
        return false;
    *out = ps_load_u32(p);
    return true;
}

static bool take_u64(cursor *c, uint64_t *out) {
    const uint8_t *p;
    if (!take(c, 8, &p))
        return false;
    *out = ps_load_u64(p);
    return true;
}

static bool take_str(cursor *c, ps_str *out) {
    const uint8_t *p;
    uint64_t len;
    if (!take_u64(c, &len) || !take(c, len, &p))
        return false;
    *out = (ps_str){(const char *)p, len};
    return true;
}

static ps_status truncated(ps_error *err, const char *subject, const cursor *c, const char *what) {
    return ps_error_at(err, PS_E_DATA, subject, c->at, "the file ends inside %s", what);
}

/* Room for one more item of `size` bytes behind n of them: doubles, at most up to what is `claimed`. */
static bool grow(void **items, uint64_t *capacity, uint64_t n, uint64_t claimed, uint64_t size) {
    if (n < *capacity)
        return true;
    uint64_t want = *capacity < FIRST_CAPACITY ? FIRST_CAPACITY : *capacity * 2;
    if (want > claimed && claimed > n)
        want = claimed;
    uint64_t bytes;
    if (!ps_mul_u64(want, size, &bytes) || bytes > SIZE_MAX)
        return false;
    void *p = realloc(*items, (size_t)bytes);
    if (p == NULL)
        return false;
    *items = p;
    *capacity = want;
    return true;
}

/* Skip `count` strings; false when the file ends first. */
static bool skip_strings(cursor *c, uint64_t count) {
    uint64_t at = c->at;
    const uint64_t size = c->size;
    for (uint64_t i = 0; i < count; i++) {
        if (size - at < 8)
            return false;
        uint64_t len = ps_load_u64(c->data + at);
        at += 8;
        if (len > size - at)
            return false;
        at += len;
    }
    c->at = at;
    return true;
}

static ps_status parse_value(cursor *c, ps_gguf_kv *kv, const char *key, ps_error *err) {
    uint32_t type, elem;
    if (!take_u32(c, &type))
        return truncated(err, key, c, "the value's type");
    if (type >= PS_GGUF_TYPE_COUNT)
        return ps_error_at(err, PS_E_DATA, key, c->at - 4, "value type %u is unknown", type);
    elem = type;
    kv->count = 1;
    if (type == PS_GGUF_ARRAY) {
        if (!take_u32(c, &elem) || !take_u64(c, &kv->count))
            return truncated(err, key, c, "the array's head");
        if (elem == PS_GGUF_ARRAY)
            return ps_error_at(err, PS_E_UNSUPPORTED, key, c->at - 12, "is an array of arrays");
        if (elem >= PS_GGUF_TYPE_COUNT)
            return ps_error_at(err, PS_E_DATA, key, c->at - 12, "element type %u is unknown", elem);
    }
    kv->type = (ps_gguf_type)type;
    kv->elem_type = (ps_gguf_type)elem;
    kv->value = c->data + c->at;
    uint64_t elem_bytes = type_rows[elem].bytes, bytes;
    const uint8_t *unused;
    if (elem_bytes == 0) {
        /* Each string takes 8 bytes at least. */
        if (kv->count > (c->size - c->at) / 8 || !skip_strings(c, kv->count))
            return truncated(err, key, c, "the value");
    } else if (!ps_mul_u64(kv->count, elem_bytes, &bytes) || !take(c, bytes, &unused)) {
        return truncated(err, key, c, "the value");
    }
    return PS_OK;
}

static ps_status parse_kv(cursor *c, uint64_t i, ps_gguf_kv *kv, ps_error *err) {
    char subject[128];
    snprintf(subject, sizeof subject, "key %llu", (unsigned long long)i);
    kv->offset = c->at;
    if (!take_str(c, &kv->key))
        return truncated(err, subject, c, "the key's name");
    if (kv->key.len == 0)
        return ps_error_at(err, PS_E_DATA, subject, kv->offset, "the key's name is empty");
    return parse_value(c, kv, ps_str_clip(kv->key, subject), err);
}

static ps_status parse_tensor(cursor *c, uint64_t i, ps_gguf_tensor *t, ps_error *err) {
    char subject[128];
    snprintf(subject, sizeof subject, "tensor %llu", (unsigned long long)i);
    uint64_t start = c->at;
    if (!take_str(c, &t->name))
        return truncated(err, subject, c, "the tensor's name");
    if (t->name.len == 0)
        return ps_error_at(err, PS_E_DATA, subject, start, "the tensor's name is empty");
    ps_str_clip(t->name, subject);
    if (!take_u32(c, &t->n_dims))
        return truncated(err, subject, c, "the tensor's entry");
    if (t->n_dims > PS_GGUF_MAX_DIMS)
        return ps_error_at(err, PS_E_DATA, subject, c->at - 4, "has %u dimensions, more than %d", t->n_dims,
                           PS_GGUF_MAX_DIMS);
    uint64_t n_elems = 1;
    for (uint32_t d = 0; d < PS_GGUF_MAX_DIMS; d++) {
        t->dims[d] = 1;
        if (d >= t->n_dims)
            continue;
        if (!take_u64(c, &t->dims[d]))
            return truncated(err, subject, c, "the tensor's entry");
        if (t->dims[d] == 0)
            return ps_error_at(err, PS_E_DATA, subject, c->at - 8, "dimension %u is zero", d);
        if (!ps_mul_u64(n_elems, t->dims[d], &n_elems))
            return ps_error_at(err, PS_E_DATA, subject, c->at - 8, "the product of its dimensions overflows");
    }
    uint32_t type;
    if (!take_u32(c, &type) || !take_u64(c, &t->offset))
        return truncated(err, subject, c, "the tensor's entry");
    const ps_dtype_info *info = ps_dtype_find(type);
    if (info == NULL)
        return ps_error_at(err, PS_E_UNSUPPORTED, subject, c->at - 12, "tensor type %u is unknown or removed",
                           type);
    t->type = (ps_dtype)type;
    if (t->dims[0] % info->block_elems != 0)
        return ps_error_at(err, PS_E_DATA, subject, c->at - 12,
                           "rows of %llu elements are not whole %s blocks of %u",
                           (unsigned long long)t->dims[0], info->name, info->block_elems);
    if (!ps_dtype_bytes(t->type, n_elems, &t->bytes))
        return ps_error_at(err, PS_E_DATA, subject, c->at - 12, "its size in bytes overflows");
    return PS_OK;
}

static int compare_kv(const void *a, const void *b) {
    const ps_gguf_kv *x = *(const ps_gguf_kv *const *)a, *y = *(const ps_gguf_kv *const *)b;
    int c = ps_str_compare(x->key, y->key);
    return c != 0 ? c : (x > y) - (x < y);
}

static ps_status index_kv(ps_gguf_part *part, ps_error *err) {
    char subject[128];
    if (part->n_kv == 0)
        return PS_OK;
    part->kv_index = malloc((size_t)part->n_kv * sizeof *part->kv_index);
    if (part->kv_index == NULL)
        return ps_error_set(err, PS_E_NOMEM, "", "no memory for the keys");
    for (uint64_t i = 0; i < part->n_kv; i++)
        part->kv_index[i] = &part->kv[i];
    qsort(part->kv_index, (size_t)part->n_kv, sizeof *part->kv_index, compare_kv);
    for (uint64_t i = 1; i < part->n_kv; i++)
        if (ps_str_compare(part->kv_index[i - 1]->key, part->kv_index[i]->key) == 0)
            return ps_error_at(err, PS_E_DATA, ps_str_clip(part->kv_index[i]->key, subject),
                               part->kv_index[i]->offset, "the key is there twice");
    return PS_OK;
}

const ps_gguf_kv *ps_gguf_index_find(const ps_gguf_kv *const *index, uint64_t n, const char *key) {
    ps_str want = {key, strlen(key)};
    uint64_t lo = 0, hi = n;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        int c = ps_str_compare(index[mid]->key, want);
        if (c == 0)
            return index[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* An integer key of the container itself; *out keeps its value when the key is absent. */
static ps_status own_key(const ps_gguf_part *part, const char *key, uint64_t max, uint64_t *out,
                         ps_error *err) {
    const ps_gguf_kv *kv = ps_gguf_index_find(part->kv_index, part->n_kv, key);
    return kv == NULL ? PS_OK : ps_gguf_kv_u64(kv, max, out, err);
}

static ps_status read_own_keys(ps_gguf_part *part, ps_error *err) {
    uint64_t alignment = DEFAULT_ALIGNMENT, count = 1, no = 0;
    ps_status status = own_key(part, "general.alignment", UINT32_MAX, &alignment, err);
    if (status != PS_OK)
        return status;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0)
        return ps_error_set(err, PS_E_DATA, "general.alignment", "%llu is not a power of two",
                            (unsigned long long)alignment);
    part->alignment = (uint32_t)alignment;
    status = own_key(part, "split.count", 99999, &count, err);
    if (status == PS_OK)
        status = own_key(part, "split.no", 99999, &no, err);
    part->split_tensors = UINT64_MAX;
    if (status == PS_OK)
        status = own_key(part, "split.tensors.count", INT64_MAX, &part->split_tensors, err);
    if (status != PS_OK)
        return status;
    if (count < 1)
        count = 1;
    if (no >= count)
        return ps_error_set(err, PS_E_DATA, "split.no", "file %llu of a split into %llu",
                            (unsigned long long)no, (unsigned long long)count);
    part->split_count = (uint32_t)count;
    part->split_no = (uint32_t)no;
    return PS_OK;
}

static int compare_offset(const void *a, const void *b) {
    const ps_gguf_tensor *x = *(const ps_gguf_tensor *const *)a, *y = *(const ps_gguf_tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static ps_status overlap(const ps_gguf_tensor *first, const ps_gguf_tensor *second, ps_error *err) {
    char name[128], other[128];
    return ps_error_at(err, PS_E_DATA, ps_str_clip(second->name, name), second->offset,
                       "its data overlaps that of %s", ps_str_clip(first->name, other));
}

/* Offsets become file offsets; every tensor lies inside the file, aligned, and on no other one. */
static ps_status place_tensors(ps_gguf_part *part, ps_gguf_tensor *tensors, uint64_t *out_end,
                               ps_error *err) {
    ps_status status = PS_OK;
    char name[128];
    bool ascending = true;
    *out_end = part->data_offset;
    for (uint64_t i = 0; i < part->n_tensors; i++) {
        ps_gguf_tensor *t = &tensors[i];
        if (t->offset % part->alignment != 0)
            return ps_error_set(err, PS_E_DATA, ps_str_clip(t->name, name),
                                "data offset %llu is not a multiple of the alignment %u",
                                (unsigned long long)t->offset, part->alignment);
        if (!ps_add_u64(t->offset, part->data_offset, &t->offset) ||
            !ps_range_ok(t->offset, t->bytes, part->size))
            return ps_error_set(err, PS_E_DATA, ps_str_clip(t->name, name),
                                "its %llu bytes lie past the end of the file (%llu bytes)",
                                (unsigned long long)t->bytes, (unsigned long long)part->size);
        if (i != 0 && t->offset < tensors[i - 1].offset + tensors[i - 1].bytes)
            ascending = false;
        if (t->offset + t->bytes > *out_end)
            *out_end = t->offset + t->bytes;
    }
    if (ascending)
        return PS_OK;
    const ps_gguf_tensor **sorted = malloc((size_t)part->n_tensors * sizeof *sorted);
    if (sorted == NULL)
        return ps_error_set(err, PS_E_NOMEM, "", "no memory for the tensors");
    for (uint64_t i = 0; i < part->n_tensors; i++)
        sorted[i] = &tensors[i];
    qsort(sorted, (size_t)part->n_tensors, sizeof *sorted, compare_offset);
    for (uint64_t i = 1; i < part->n_tensors && status == PS_OK; i++)
        if (sorted[i]->offset < sorted[i - 1]->offset + sorted[i - 1]->bytes)
            status = overlap(sorted[i - 1], sorted[i], err);
    free(sorted);
    return status;
}

/* Several files written one behind the other: the next one's magic follows the last tensor, at once or
 * after padding. */
static ps_status refuse_joined(const ps_gguf_part *part, uint64_t end, ps_error *err) {
    uint64_t aligned;
    if (!ps_align_u64(end, part->alignment, &aligned))
        return PS_OK;
    const uint64_t places[2] = {end, aligned};
    for (int i = 0; i < 2; i++)
        if (ps_range_ok(places[i], 8, part->size) && memcmp(part->data + places[i], "GGUF", 4) == 0)
            return ps_error_at(err, PS_E_DATA, "", places[i],
                               "another GGUF file begins here: files of a split were joined byte by byte; "
                               "open the separate files, or merge them with a GGUF tool");
    return PS_OK;
}

static ps_status parse_head(cursor *c, ps_gguf_part *part, ps_error *err) {
    const uint8_t *magic;
    if (c->size == 0)
        return ps_error_set(err, PS_E_DATA, "", "the file is empty");
    if (!take(c, 4, &magic))
        return truncated(err, "", c, "the magic");
    if (memcmp(magic, "GGUF", 4) != 0)
        return ps_error_at(err, PS_E_DATA, "", 0, "not a GGUF file: it begins with %02x %02x %02x %02x",
                           magic[0], magic[1], magic[2], magic[3]);
    if (!take_u32(c, &part->version))
        return truncated(err, "", c, "the version");
    if (part->version != 0 && (part->version & VERSION_SWAPPED_MASK) == 0)
        return ps_error_at(err, PS_E_UNSUPPORTED, "", 4, "the file is big-endian");
    if (part->version != 2 && part->version != 3)
        return ps_error_at(err, PS_E_UNSUPPORTED, "", 4, "GGUF version %u; versions 2 and 3 are known",
                           part->version);
    if (!take_u64(c, &part->n_tensors) || !take_u64(c, &part->n_kv))
        return truncated(err, "", c, "the counts");
    uint64_t rest = c->size - c->at;
    if (part->n_kv > rest / MIN_KV_BYTES)
        return ps_error_at(err, PS_E_DATA, "", 16, "%llu keys do not fit in the file",
                           (unsigned long long)part->n_kv);
    if (part->n_tensors > rest / MIN_TENSOR_BYTES)
        return ps_error_at(err, PS_E_DATA, "", 8, "%llu tensors do not fit in the file",
                           (unsigned long long)part->n_tensors);
    return PS_OK;
}

static ps_status parse_part(ps_gguf_part *part, uint32_t file, ps_gguf_tensor_list *list, ps_error *err) {
    cursor c = {part->data, 0, part->size};
    ps_status status = parse_head(&c, part, err);
    if (status != PS_OK)
        return status;
    void *items = NULL;
    uint64_t capacity = 0;
    for (uint64_t i = 0; i < part->n_kv; i++) {
        if (!grow(&items, &capacity, i, part->n_kv, sizeof *part->kv))
            return ps_error_set(err, PS_E_NOMEM, "", "no memory for the keys");
        part->kv = items;
        status = parse_kv(&c, i, &part->kv[i], err);
        if (status != PS_OK)
            return status;
    }
    status = index_kv(part, err);
    if (status == PS_OK)
        status = read_own_keys(part, err);
    if (status != PS_OK)
        return status;
    uint64_t claimed;
    if (!ps_add_u64(list->n, part->n_tensors, &claimed))
        return ps_error_set(err, PS_E_DATA, "", "too many tensors");
    part->tensors_at = list->n;
    for (uint64_t i = 0; i < part->n_tensors; i++) {
        items = list->items;
        if (!grow(&items, &list->capacity, list->n, claimed, sizeof *list->items))
            return ps_error_set(err, PS_E_NOMEM, "", "no memory for the tensors");
        list->items = items;
        ps_gguf_tensor *t = &list->items[list->n];
        status = parse_tensor(&c, i, t, err);
        if (status != PS_OK)
            return status;
        t->file = file;
        list->n++;
    }
    if (!ps_align_u64(c.at, part->alignment, &part->data_offset))
        return ps_error_set(err, PS_E_DATA, "general.alignment", "the data offset overflows");
    uint64_t end = part->data_offset;
    if (part->n_tensors != 0) {
        status = place_tensors(part, list->items + part->tensors_at, &end, err);
    } else if (end > part->size) {
        /* A file without tensors may end without padding. */
        part->data_offset = part->size;
        end = part->size;
    }
    if (status == PS_OK)
        status = refuse_joined(part, end, err);
    return status;
}

ps_status ps_gguf_part_parse(const char *label, const uint8_t *data, uint64_t size, uint32_t file,
                             ps_gguf_tensor_list *list, ps_gguf_part *part, ps_error *err) {
    *part = (ps_gguf_part){.label = label, .data = data, .size = size};
    ps_status status = parse_part(part, file, list, err);
    if (status != PS_OK) {
        ps_error_prefix(err, label);
        ps_gguf_part_free(part);
    }
    return status;
}

void ps_gguf_part_free(ps_gguf_part *part) {
    free(part->kv);
    free(part->kv_index);
    part->kv = NULL;
    part->kv_index = NULL;
}
