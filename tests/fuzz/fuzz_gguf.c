/* GGUF reader: any bytes are an error or a file whose keys, strings and tensors can all be read. */
#include <stdlib.h>
#include <string.h>

#include "model/gguf.h"

/* Keeps the reads from being optimised away. */
static volatile uint64_t sink;

static void read_key(const ps_gguf *g, const ps_gguf_kv *kv) {
    uint64_t sum = 0;
    char *key = malloc((size_t)kv->key.len + 1);
    if (key == NULL)
        return;
    memcpy(key, kv->key.data, (size_t)kv->key.len);
    key[kv->key.len] = '\0';
    ps_error err;
    uint32_t u = 0;
    float f = 0;
    bool b = false, found;
    ps_str s = {NULL, 0};
    sum += (uint64_t)ps_gguf_get_u32(g, key, &u, &found, &err) + u;
    sum += (uint64_t)ps_gguf_get_f32(g, key, &f, &found, &err);
    sum += (uint64_t)ps_gguf_get_bool(g, key, &b, &found, &err);
    if (ps_gguf_get_str(g, key, &s, &found, &err) == PS_OK && found && s.len != 0)
        sum += (uint8_t)s.data[s.len - 1];
    /* A name without NUL is found again, as the very same key. */
    if (strlen(key) == kv->key.len && ps_gguf_find(g, key) != kv)
        abort();
    free(key);
    if (kv->elem_type == PS_GGUF_STRING) {
        ps_str *strings = malloc((size_t)kv->count * sizeof *strings + 1);
        if (strings == NULL)
            return;
        ps_gguf_strings(kv, strings);
        for (uint64_t i = 0; i < kv->count; i++)
            if (strings[i].len != 0)
                sum += (uint8_t)strings[i].data[strings[i].len - 1];
        free(strings);
    } else {
        for (uint64_t i = 0; i < kv->count; i++)
            sum += (uint64_t)ps_gguf_elem_i64(kv, i) + (ps_gguf_elem_f64(kv, i) > 0.0);
    }
    sink += sum;
}

static void read_tensor(const ps_gguf *g, const ps_gguf_tensor *t) {
    const uint8_t *data = ps_gguf_data(g, t);
    sink += (uint64_t)data[0] + data[t->bytes - 1];
    if (!ps_dtype_computable(t->type))
        return;
    /* The first and the last row, each its last blocks. */
    float out[1024];
    const ps_dtype_info *info = ps_dtype_find((uint32_t)t->type);
    uint64_t n = t->dims[0] < 1024 ? t->dims[0] : 1024, bytes;
    if (!ps_dtype_bytes(t->type, n, &bytes))
        abort(); /* rows are whole blocks, and 1024 is a multiple of every block */
    ps_dequantize_row(t->type, data, out, n);
    ps_dequantize_row(t->type, data + t->bytes - bytes, out, n);
    sink += info->block_bytes + (out[n - 1] > 0.0f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ps_gguf *g = NULL;
    ps_error err;
    if (ps_gguf_open_memory(data, size, "fuzz", &g, &err) != PS_OK) {
        char line[600];
        sink += strlen(ps_error_format(&err, line, sizeof line));
        return 0;
    }
    for (uint64_t i = 0; i < g->n_kv; i++)
        read_key(g, &g->kv[i]);
    for (uint64_t i = 0; i < g->n_tensors; i++)
        read_tensor(g, &g->tensors[i]);
    ps_gguf_close(g);
    return 0;
}
