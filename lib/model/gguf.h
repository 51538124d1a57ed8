/* Bounds-checked reader of GGUF v2 and v3, single files and splits.
 *
 *   file:     magic "GGUF" u32 | version u32 | n_tensors u64 | n_kv u64 | kv[n_kv] | info[n_tensors]
 *             | padding to general.alignment (default 32) | tensor data
 *   kv:       key string | type u32 | value          string: length u64, bytes, no NUL
 *   array:    element type u32 | count u64 | elements
 *   info:     name string | n_dims u32 | dims u64[n_dims] | type u32 | offset u64 into tensor data
 *
 * The file is mapped read-only; strings and arrays are views into the mapping, which lives as long as
 * the ps_gguf. Memory taken besides is bounded by a constant times the bytes of header parsed. */
#ifndef PS_MODEL_GGUF_H
#define PS_MODEL_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "model/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ps_gguf_type {
    PS_GGUF_U8 = 0,
    PS_GGUF_I8,
    PS_GGUF_U16,
    PS_GGUF_I16,
    PS_GGUF_U32,
    PS_GGUF_I32,
    PS_GGUF_F32,
    PS_GGUF_BOOL,
    PS_GGUF_STRING,
    PS_GGUF_ARRAY,
    PS_GGUF_U64,
    PS_GGUF_I64,
    PS_GGUF_F64,
    PS_GGUF_TYPE_COUNT
} ps_gguf_type;

/* Bytes that are not NUL-terminated and may hold anything. */
typedef struct ps_str {
    const char *data;
    uint64_t len;
} ps_str;

typedef struct ps_gguf_kv {
    ps_str key;
    ps_gguf_type type;      /* PS_GGUF_ARRAY for arrays */
    ps_gguf_type elem_type; /* of an array; otherwise == type. Nested arrays are refused. */
    uint64_t count;         /* elements of an array; otherwise 1 */
    const uint8_t *value;   /* first byte of the value's elements, unaligned, little-endian */
    uint64_t offset;        /* of the key in the file, for messages */
} ps_gguf_kv;

enum { PS_GGUF_MAX_DIMS = 4 };

typedef struct ps_gguf_tensor {
    ps_str name;
    ps_dtype type;
    uint32_t n_dims;
    uint64_t dims[PS_GGUF_MAX_DIMS]; /* dims[0] is the contiguous one (a row's length); unused are 1 */
    uint64_t bytes;
    uint32_t file;   /* index of the split file that holds it */
    uint64_t offset; /* of the data from the start of that file */
} ps_gguf_tensor;

typedef struct ps_gguf_file {
    const char *path;
    uint64_t size;
    const uint8_t *data; /* the mapping */
} ps_gguf_file;

typedef struct ps_gguf {
    uint32_t version; /* of the first file */
    uint32_t alignment;
    uint64_t n_kv;
    const ps_gguf_kv *kv; /* of the first file */
    uint64_t n_tensors;
    const ps_gguf_tensor *tensors; /* of all files, in file order */
    uint32_t n_files;
    const ps_gguf_file *files;
    uint64_t data_bytes; /* sum of tensor bytes */
    uint8_t hash[16];    /* over metadata, tensor table and file sizes of all files; not the weights */
} ps_gguf;

/* Open `path`; for a split ("name-00002-of-00005.gguf", any member) all siblings are opened too.
 * The weights are never touched. On PS_OK the caller calls ps_gguf_close.
 * Errors name the file and the key or tensor: PS_E_NOINPUT, PS_E_PERM, PS_E_DATA (malformed),
 * PS_E_UNSUPPORTED (big-endian, version 1 or unknown, nested array, removed or unknown type id),
 * PS_E_NOMEM, PS_E_OS. Not thread-safe per object; the opened object is immutable. */
ps_status ps_gguf_open(const char *path, ps_gguf **out, ps_error *err);
/* Same from memory, one file, for fuzzing and tests; data is borrowed. */
ps_status ps_gguf_open_memory(const void *data, uint64_t size, const char *label, ps_gguf **out,
                              ps_error *err);
void ps_gguf_close(ps_gguf *gguf);

/* Look-ups by binary search over a sorted index. NULL if absent. Any thread. */
const ps_gguf_kv *ps_gguf_find(const ps_gguf *gguf, const char *key);
const ps_gguf_tensor *ps_gguf_find_tensor(const ps_gguf *gguf, const char *name);

/* Typed reads. Any integer type that holds the value is accepted for the integer getters; a wrong type or
 * range is PS_E_DATA naming the key. `found` may be NULL, then an absent key is PS_E_DATA too. */
ps_status ps_gguf_get_u32(const ps_gguf *gguf, const char *key, uint32_t *out, bool *found, ps_error *err);
ps_status ps_gguf_get_f32(const ps_gguf *gguf, const char *key, float *out, bool *found, ps_error *err);
ps_status ps_gguf_get_bool(const ps_gguf *gguf, const char *key, bool *out, bool *found, ps_error *err);
ps_status ps_gguf_get_str(const ps_gguf *gguf, const char *key, ps_str *out, bool *found, ps_error *err);
/* Element i of an array (or of a scalar, i == 0), already known to be in range and of a numeric or
 * string type respectively. String elements are found by walking; use ps_gguf_strings for all. */
int64_t ps_gguf_elem_i64(const ps_gguf_kv *kv, uint64_t i);
double ps_gguf_elem_f64(const ps_gguf_kv *kv, uint64_t i);
/* Views of all strings of a string array: out has kv->count entries. */
void ps_gguf_strings(const ps_gguf_kv *kv, ps_str *out);

static inline const uint8_t *ps_gguf_data(const ps_gguf *gguf, const ps_gguf_tensor *t) {
    return gguf->files[t->file].data + t->offset;
}

#ifdef __cplusplus
}
#endif
#endif
