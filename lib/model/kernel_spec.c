/* Rows of the kernel catalogue: choice, scratch size, and the hash that names a kernel set. */
#include "model/kernel_spec.h"

#include <stddef.h>
#include <string.h>

#include "core/checked.h"
#include "core/hash.h"

static const char *const device_names[PS_DEV_COUNT] = {
#define PS_DEVICE_ROW(id, text) [PS_DEV_##id] = (text),
    PS_DEVICE_LIST(PS_DEVICE_ROW)
#undef PS_DEVICE_ROW
};

const char *ps_processor_name(ps_processor device) {
    return (unsigned)device < PS_DEV_COUNT ? device_names[device] : "unknown";
}

ps_processor ps_processor_by_name(const char *name) {
    for (unsigned i = 0; name != NULL && i < PS_DEV_COUNT; i++)
        if (strcmp(device_names[i], name) == 0)
            return (ps_processor)i;
    return PS_DEV_COUNT;
}

/* *acc += n * (a + cols * b) */
static bool add_term(uint64_t *acc, uint64_t n, uint64_t a, uint64_t b, uint64_t cols) {
    uint64_t x;
    return ps_mul_u64(b, cols, &x) && ps_add_u64(x, a, &x) && ps_mul_u64(x, n, &x) &&
           ps_add_u64(*acc, x, acc);
}

uint64_t ps_scratch_bytes(const ps_scratch_coef *c, uint64_t n_tokens, uint64_t cols, uint32_t n_threads,
                          uint64_t kv_tokens) {
    uint64_t sum = c->base;
    uint64_t chunks = c->kv_chunk != 0 ? kv_tokens / c->kv_chunk + (kv_tokens % c->kv_chunk != 0) : 0, rows;
    if (!add_term(&sum, n_tokens, c->per_token, c->per_token_col, cols) ||
        !add_term(&sum, 1, 0, c->per_col, cols) || !ps_mul_u64(n_tokens, chunks, &rows) ||
        !add_term(&sum, rows, 0, c->per_token_col_chunk, cols) ||
        !add_term(&sum, n_threads, c->per_thread, c->per_thread_col, cols) || !ps_align_u64(sum, 64, &sum))
        return UINT64_MAX;
    return sum;
}

const ps_kernel_spec *ps_kernel_spec_choose(const ps_kernel_spec *specs, uint32_t n, ps_op op, ps_dtype wtype,
                                            ps_fmt in, ps_fmt out, ps_processor device, uint64_t n_tokens) {
    const ps_kernel_spec *best = NULL;
    for (uint32_t i = 0; i < n; i++) {
        const ps_kernel_spec *s = &specs[i];
        if (s->op != op || s->wtype != wtype || s->in_fmt != in || s->out_fmt != out || s->device != device)
            continue;
        if (n_tokens < s->min_tokens || n_tokens > s->max_tokens)
            continue;
        if (best == NULL || s->min_tokens > best->min_tokens ||
            (s->min_tokens == best->min_tokens && s->id < best->id))
            best = s;
    }
    return best;
}

static size_t put_u64(uint8_t *p, size_t at, uint64_t v) {
    for (unsigned i = 0; i < 8; i++)
        p[at + i] = (uint8_t)(v >> (8 * i));
    return at + 8;
}

/* A chain, so that nothing is allocated: h[0] = hash(n), h[i+1] = hash(h[i] | row i), every number as 8 bytes
 * little-endian, the name padded with zeros. */
void ps_kernel_spec_hash(const ps_kernel_spec *specs, uint32_t n, uint8_t out[16]) {
    enum { N_NUMBERS = 16 };
    uint8_t row[PS_HASH_BYTES + 8 * N_NUMBERS + PS_KERNEL_NAME_MAX];
    put_u64(row, 0, n);
    ps_hash_bytes(row, 8, out);
    for (uint32_t i = 0; i < n; i++) {
        const ps_kernel_spec *s = &specs[i];
        const uint64_t numbers[N_NUMBERS] = {s->id,
                                             (uint64_t)s->op,
                                             (uint64_t)s->wtype,
                                             (uint64_t)s->in_fmt,
                                             (uint64_t)s->out_fmt,
                                             (uint64_t)s->device,
                                             s->min_tokens,
                                             s->max_tokens,
                                             s->scratch.base,
                                             s->scratch.per_token,
                                             s->scratch.per_token_col,
                                             s->scratch.per_col,
                                             s->scratch.per_thread,
                                             s->scratch.per_thread_col,
                                             s->scratch.kv_chunk,
                                             s->scratch.per_token_col_chunk};
        size_t at = PS_HASH_BYTES;
        memcpy(row, out, PS_HASH_BYTES);
        for (unsigned k = 0; k < N_NUMBERS; k++)
            at = put_u64(row, at, numbers[k]);
        memset(row + at, 0, PS_KERNEL_NAME_MAX);
        memcpy(row + at, s->name, strnlen(s->name, PS_KERNEL_NAME_MAX));
        ps_hash_bytes(row, sizeof row, out);
    }
}
