/* Typed reads of GGUF metadata. */
#include <float.h>
#include <string.h>

#include "core/checked.h"
#include "model/gguf_internal.h"

static double load_f64(const uint8_t *p) {
    uint64_t bits = ps_load_u64(p);
    double v;
    memcpy(&v, &bits, 8);
    return v;
}

static double load_f32(const uint8_t *p) {
    uint32_t bits = ps_load_u32(p);
    float v;
    memcpy(&v, &bits, 4);
    return (double)v;
}

static int64_t clamp_i64(double v) {
    if (v != v)
        return 0;
    if (v >= 0x1p63)
        return INT64_MAX;
    return v < -0x1p63 ? INT64_MIN : (int64_t)v;
}

int64_t ps_gguf_elem_i64(const ps_gguf_kv *kv, uint64_t i) {
    const uint8_t *p = kv->value + i * ps_gguf_type_bytes(kv->elem_type);
    switch (kv->elem_type) {
    case PS_GGUF_U8:
        return p[0];
    case PS_GGUF_BOOL:
        return p[0] != 0;
    case PS_GGUF_I8:
        return (int8_t)p[0];
    case PS_GGUF_U16:
        return p[0] | p[1] << 8;
    case PS_GGUF_I16:
        return (int16_t)(p[0] | p[1] << 8);
    case PS_GGUF_U32:
        return ps_load_u32(p);
    case PS_GGUF_I32:
        return (int32_t)ps_load_u32(p);
    case PS_GGUF_U64: {
        uint64_t v = ps_load_u64(p);
        return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    }
    case PS_GGUF_I64:
        return (int64_t)ps_load_u64(p);
    case PS_GGUF_F32:
    case PS_GGUF_F64:
        return clamp_i64(ps_gguf_elem_f64(kv, i));
    default:
        return 0;
    }
}

double ps_gguf_elem_f64(const ps_gguf_kv *kv, uint64_t i) {
    const uint8_t *p = kv->value + i * ps_gguf_type_bytes(kv->elem_type);
    switch (kv->elem_type) {
    case PS_GGUF_F32:
        return load_f32(p);
    case PS_GGUF_F64:
        return load_f64(p);
    case PS_GGUF_U64:
        return (double)ps_load_u64(p);
    default:
        return (double)ps_gguf_elem_i64(kv, i);
    }
}

static ps_str load_str(const uint8_t *p) {
    return (ps_str){(const char *)p + 8, ps_load_u64(p)};
}

void ps_gguf_strings(const ps_gguf_kv *kv, ps_str *out) {
    const uint8_t *p = kv->value;
    for (uint64_t i = 0; i < kv->count; i++) {
        out[i] = load_str(p);
        p += 8 + out[i].len;
    }
}

static bool is_integer(ps_gguf_type type) {
    return ps_gguf_type_bytes(type) != 0 && type != PS_GGUF_F32 && type != PS_GGUF_F64 &&
           type != PS_GGUF_BOOL;
}

static ps_status wrong_type(const ps_gguf_kv *kv, const char *want, ps_error *err) {
    char key[128];
    if (kv->type == PS_GGUF_ARRAY)
        return ps_error_at(err, PS_E_DATA, ps_str_clip(kv->key, key), kv->offset,
                           "is an array of %llu %s where %s is wanted", (unsigned long long)kv->count,
                           ps_gguf_type_name(kv->elem_type), want);
    return ps_error_at(err, PS_E_DATA, ps_str_clip(kv->key, key), kv->offset, "is %s where %s is wanted",
                       ps_gguf_type_name(kv->type), want);
}

ps_status ps_gguf_kv_u64(const ps_gguf_kv *kv, uint64_t max, uint64_t *out, ps_error *err) {
    char key[128];
    if (!is_integer(kv->type))
        return wrong_type(kv, "an integer", err);
    if (kv->type == PS_GGUF_U64) {
        uint64_t v = ps_load_u64(kv->value);
        if (v > max)
            return ps_error_at(err, PS_E_DATA, ps_str_clip(kv->key, key), kv->offset,
                               "%llu is above the largest value allowed, %llu", (unsigned long long)v,
                               (unsigned long long)max);
        *out = v;
        return PS_OK;
    }
    int64_t v = ps_gguf_elem_i64(kv, 0);
    if (v < 0 || (uint64_t)v > max)
        return ps_error_at(err, PS_E_DATA, ps_str_clip(kv->key, key), kv->offset,
                           "%lld is not between 0 and %llu", (long long)v, (unsigned long long)max);
    *out = (uint64_t)v;
    return PS_OK;
}

/* *out is NULL when the key is absent and `found` allows that. */
static ps_status want_key(const ps_gguf *gguf, const char *key, bool *found, const ps_gguf_kv **out,
                          ps_error *err) {
    *out = ps_gguf_find(gguf, key);
    if (found != NULL)
        *found = *out != NULL;
    else if (*out == NULL) {
        ps_error_set(err, PS_E_DATA, key, "the key is missing");
        ps_error_prefix(err, gguf->files[0].path);
        return PS_E_DATA;
    }
    return PS_OK;
}

static ps_status done(const ps_gguf *gguf, ps_status status, ps_error *err) {
    if (status != PS_OK)
        ps_error_prefix(err, gguf->files[0].path);
    return status;
}

ps_status ps_gguf_get_u32(const ps_gguf *gguf, const char *key, uint32_t *out, bool *found, ps_error *err) {
    const ps_gguf_kv *kv;
    ps_status status = want_key(gguf, key, found, &kv, err);
    if (status != PS_OK || kv == NULL)
        return status;
    uint64_t v = 0;
    status = ps_gguf_kv_u64(kv, UINT32_MAX, &v, err);
    if (status == PS_OK)
        *out = (uint32_t)v;
    return done(gguf, status, err);
}

ps_status ps_gguf_get_f32(const ps_gguf *gguf, const char *key, float *out, bool *found, ps_error *err) {
    const ps_gguf_kv *kv;
    ps_status status = want_key(gguf, key, found, &kv, err);
    if (status != PS_OK || kv == NULL)
        return status;
    if (kv->type != PS_GGUF_F32 && kv->type != PS_GGUF_F64)
        return done(gguf, wrong_type(kv, "a floating-point number", err), err);
    double v = ps_gguf_elem_f64(kv, 0);
    /* Infinities and NaN pass: only a finite value that a float cannot hold is out of range. */
    double magnitude = v < 0 ? -v : v;
    if (magnitude > (double)FLT_MAX && magnitude <= DBL_MAX) {
        char name[128];
        status = ps_error_at(err, PS_E_DATA, ps_str_clip(kv->key, name), kv->offset,
                             "%g does not fit a 32-bit float", v);
        return done(gguf, status, err);
    }
    *out = (float)v;
    return PS_OK;
}

ps_status ps_gguf_get_bool(const ps_gguf *gguf, const char *key, bool *out, bool *found, ps_error *err) {
    const ps_gguf_kv *kv;
    ps_status status = want_key(gguf, key, found, &kv, err);
    if (status != PS_OK || kv == NULL)
        return status;
    if (kv->type != PS_GGUF_BOOL)
        return done(gguf, wrong_type(kv, "a bool", err), err);
    *out = kv->value[0] != 0;
    return PS_OK;
}

ps_status ps_gguf_get_str(const ps_gguf *gguf, const char *key, ps_str *out, bool *found, ps_error *err) {
    const ps_gguf_kv *kv;
    ps_status status = want_key(gguf, key, found, &kv, err);
    if (status != PS_OK || kv == NULL)
        return status;
    if (kv->type != PS_GGUF_STRING)
        return done(gguf, wrong_type(kv, "a string", err), err);
    *out = load_str(kv->value);
    return PS_OK;
}
