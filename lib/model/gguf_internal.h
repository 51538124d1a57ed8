/* Private to the GGUF reader: the parser's view of one file, shared by gguf_parse.c and gguf.c. */
#ifndef PS_MODEL_GGUF_INTERNAL_H
#define PS_MODEL_GGUF_INTERNAL_H

#include "model/gguf.h"

/* Growing list of the tensors of all files. */
typedef struct ps_gguf_tensor_list {
    ps_gguf_tensor *items; /* malloc */
    uint64_t n, capacity;
} ps_gguf_tensor_list;

/* One parsed file. kv and kv_index are malloc'ed and owned here. */
typedef struct ps_gguf_part {
    const char *label; /* borrowed; errors start with it */
    const uint8_t *data;
    uint64_t size;
    uint32_t version, alignment;
    uint64_t n_kv;
    ps_gguf_kv *kv;
    const ps_gguf_kv **kv_index;    /* sorted by key */
    uint64_t n_tensors, tensors_at; /* its tensors are list items [tensors_at, tensors_at + n_tensors) */
    uint64_t data_offset;           /* of the tensor data: the header before it is what the hash covers */
    uint32_t split_count, split_no; /* 1, 0 unless the file is part of a split */
    uint64_t split_tensors;         /* of the whole split as this file says, UINT64_MAX if it does not */
} ps_gguf_part;

/* Parse the header of `size` bytes at `data`; tensors are appended to `list` with file = `file`. On error
 * nothing is left allocated in `part` (the list stays the caller's). */
ps_status ps_gguf_part_parse(const char *label, const uint8_t *data, uint64_t size, uint32_t file,
                             ps_gguf_tensor_list *list, ps_gguf_part *part, ps_error *err);
void ps_gguf_part_free(ps_gguf_part *part);

/* Bytes of one element; 0 for strings and arrays. */
uint64_t ps_gguf_type_bytes(ps_gguf_type type);
const char *ps_gguf_type_name(ps_gguf_type type);

/* memcmp order, the shorter first. */
int ps_str_compare(ps_str a, ps_str b);
/* A copy of at most 127 bytes for messages, cut with "..."; returns buf. */
char *ps_str_clip(ps_str s, char buf[128]);

const ps_gguf_kv *ps_gguf_index_find(const ps_gguf_kv *const *index, uint64_t n, const char *key);
/* As ps_gguf_get_u32 for any upper bound; `found` is not NULL. */
ps_status ps_gguf_kv_u64(const ps_gguf_kv *kv, uint64_t max, uint64_t *out, ps_error *err);

static inline uint32_t ps_load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t ps_load_u64(const uint8_t *p) {
    return ps_load_u32(p) | (uint64_t)ps_load_u32(p + 4) << 32;
}

#endif
