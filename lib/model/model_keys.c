/* Hyper-parameters: reading them with their checks, and the numbers of each layer that follow from them. */
#include "model/arch.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEY_MAX = 128, INT_LIMIT = INT32_MAX };

static const char *key_name(const ps_build *b, const char *suffix, char buf[KEY_MAX]) {
    (void)snprintf(buf, KEY_MAX, "%s.%s", b->arch->name, suffix);
    return buf;
}

static const char *hkey_name(const ps_build *b, ps_hkey key, char buf[KEY_MAX]) {
    return key_name(b, ps_hkey_get(key)->suffix, buf);
}

static bool is_integer(ps_gguf_type t) {
    return t <= PS_GGUF_I32 || t == PS_GGUF_U64 || t == PS_GGUF_I64;
}

static bool is_number(ps_gguf_type t) {
    return is_integer(t) || t == PS_GGUF_F32 || t == PS_GGUF_F64;
}

/* Find a key by its suffix and mark it as consumed. */
static const ps_gguf_kv *take(ps_build *b, const char *suffix) {
    char key[KEY_MAX];
    const ps_gguf_kv *kv = ps_gguf_find(b->gguf, key_name(b, suffix, key));
    if (kv != NULL)
        b->kv_used[kv - b->gguf->kv] = 1;
    return kv;
}

/* Element i as a count below 2^31. */
static ps_status elem_u32(ps_build *b, const ps_gguf_kv *kv, const char *key, uint64_t i, uint32_t *out) {
    if (!is_integer(kv->elem_type))
        return ps_error_at(b->err, PS_E_DATA, key, kv->offset, "is not an integer");
    int64_t v = ps_gguf_elem_i64(kv, i);
    if (v < 0 || v > INT_LIMIT)
        return ps_error_at(b->err, PS_E_DATA, key, kv->offset, "value is not between 0 and %d", INT_LIMIT);
    *out = (uint32_t)v;
    return PS_OK;
}

static ps_status read_hkey(ps_build *b, ps_hkey id, bool required) {
    const ps_hkey_info *info = ps_hkey_get(id);
    ps_hvalue *h = &b->h[id];
    char key[KEY_MAX];
    hkey_name(b, id, key);
    h->kv = take(b, info->suffix);
    if (h->kv == NULL)
        return required ? ps_error_set(b->err, PS_E_DATA, key, "the key is missing") : PS_OK;
    if (info->kind == PS_HKIND_ANY)
        return PS_OK;
    bool array = h->kv->type == PS_GGUF_ARRAY;
    if (info->kind == PS_HKIND_STR)
        return h->kv->type == PS_GGUF_STRING
                   ? PS_OK
                   : ps_error_at(b->err, PS_E_DATA, key, h->kv->offset, "is not a string");
    if (info->kind == PS_HKIND_LAYERS && array) {
        if (!is_integer(h->kv->elem_type))
            return ps_error_at(b->err, PS_E_DATA, key, h->kv->offset, "is not an array of integers");
        return PS_OK; /* length and elements: when the layers are made */
    }
    if (array)
        return ps_error_at(b->err, PS_E_DATA, key, h->kv->offset, "is an array where one value belongs");
    if (info->kind != PS_HKIND_F32)
        return elem_u32(b, h->kv, key, 0, &h->u32);
    if (!is_number(h->kv->type))
        return ps_error_at(b->err, PS_E_DATA, key, h->kv->offset, "is not a number");
    h->f64 = ps_gguf_elem_f64(h->kv, 0);
    if (!isfinite(h->f64) || !isfinite((float)h->f64))
        return ps_error_at(b->err, PS_E_DATA, key, h->kv->offset, "is not a finite number");
    return PS_OK;
}

/* A key that may only say what is computed anyway. */
static ps_status check_fixed(ps_build *b, const ps_fixed_key *f) {
    const ps_gguf_kv *kv = take(b, f->suffix);
    if (kv == NULL)
        return PS_OK;
    char key[KEY_MAX], text[64];
    key_name(b, f->suffix, key);
    switch (f->kind) {
    case PS_FIXED_NUMBER:
        if (!is_number(kv->type))
            break;
        if (ps_gguf_elem_f64(kv, 0) == f->number)
            return PS_OK;
        return ps_build_refuse(b, false, PS_E_UNSUPPORTED, key, "value %g is not supported, only %g",
                               ps_gguf_elem_f64(kv, 0), f->number);
    case PS_FIXED_BOOL: {
        if (kv->type != PS_GGUF_BOOL)
            break;
        bool v = kv->value[0] != 0;
        if (v == (f->number != 0))
            return PS_OK;
        return ps_build_refuse(b, false, PS_E_UNSUPPORTED, key, "value %s is not supported",
                               v ? "true" : "false");
    }
    case PS_FIXED_STR: {
        ps_str s;
        if (kv->type != PS_GGUF_STRING)
            break;
        ps_gguf_strings(kv, &s);
        if (s.len == strlen(f->text) && memcmp(s.data, f->text, s.len) == 0)
            return PS_OK;
        return ps_build_refuse(b, false, PS_E_UNSUPPORTED, key, "\"%s\" is not supported, only \"%s\"",
                               ps_str_cut(s, text, sizeof text), f->text);
    }
    }
    return ps_error_at(b->err, PS_E_DATA, key, kv->offset, "has the wrong type");
}

/* Keys of the architecture's name space that nobody consumed. */
static ps_status check_unknown(ps_build *b) {
    size_t len = strlen(b->arch->name);
    for (uint64_t i = 0; i < b->gguf->n_kv; i++) {
        const ps_gguf_kv *kv = &b->gguf->kv[i];
        if (b->kv_used[i] || kv->key.len <= len || memcmp(kv->key.data, b->arch->name, len) != 0 ||
            kv->key.data[len] != '.')
            continue;
        char key[KEY_MAX];
        ps_status st =
            ps_build_refuse(b, false, PS_E_UNSUPPORTED, ps_str_cut(kv->key, key, sizeof key),
                            "this hyper-parameter of architecture %s is not supported", b->arch->name);
        if (st != PS_OK)
            return st;
    }
    return PS_OK;
}

static ps_status positive(ps_build *b, ps_hkey id, uint32_t v) {
    char key[KEY_MAX];
    if (v == 0)
        return ps_error_set(b->err, PS_E_DATA, hkey_name(b, id, key), "is zero");
    return PS_OK;
}

static ps_status positive_f(ps_build *b, ps_hkey id) {
    char key[KEY_MAX];
    if (b->h[id].kv != NULL && !((float)b->h[id].f64 > 0)) /* as a float: that is what is computed with */
        return ps_error_set(b->err, PS_E_DATA, hkey_name(b, id, key), "value %g is not positive",
                            b->h[id].f64);
    return PS_OK;
}

ps_status ps_build_keys(ps_build *b) {
    const ps_arch *arch = b->arch;
    ps_status st = PS_OK;
    for (unsigned i = 0; i < PS_HKEY_COUNT && st == PS_OK; i++) {
        uint32_t bit = 1u << i;
        if ((arch->hkeys_required | arch->hkeys_optional) & bit)
            st = read_hkey(b, (ps_hkey)i, (arch->hkeys_required & bit) != 0);
    }
    uint32_t n_fixed;
    const ps_fixed_key *fixed = ps_fixed_keys(&n_fixed);
    for (uint32_t i = 0; i < n_fixed && st == PS_OK; i++)
        if (fixed[i].archs & (1u << arch->id))
            st = check_fixed(b, &fixed[i]);
    if (st == PS_OK)
        st = check_unknown(b);
    if (st != PS_OK)
        return st;

    static const ps_hkey counts[] = {
        PS_HKEY_BLOCK_COUNT,  PS_HKEY_CONTEXT_LENGTH,    PS_HKEY_EMBEDDING_LENGTH,
        PS_HKEY_KEY_LENGTH,   PS_HKEY_VALUE_LENGTH,      PS_HKEY_VOCAB_SIZE,
        PS_HKEY_EXPERT_COUNT, PS_HKEY_EXPERT_USED_COUNT, PS_HKEY_EXPERT_FEED_FORWARD_LENGTH};
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (b->h[counts[i]].kv != NULL && (st = positive(b, counts[i], b->h[counts[i]].u32)) != PS_OK)
            return st;
    static const ps_hkey reals[] = {PS_HKEY_RMS_EPS, PS_HKEY_ROPE_BASE};
    for (unsigned i = 0; i < sizeof reals / sizeof reals[0]; i++)
        if ((st = positive_f(b, reals[i])) != PS_OK)
            return st;

    ps_model *m = b->model;
    m->n_layers = b->h[PS_HKEY_BLOCK_COUNT].u32;
    m->n_ctx_train = b->h[PS_HKEY_CONTEXT_LENGTH].u32;
    m->n_embd = b->h[PS_HKEY_EMBEDDING_LENGTH].u32;
    m->norm_eps = (float)b->h[PS_HKEY_RMS_EPS].f64;
    m->embed_scale = arch->embed_sqrt_scale ? sqrtf((float)m->n_embd) : 1.0f;
    m->glu = arch->glu;
    m->rope_style = arch->rope_style;
    m->moe_norm_topk = arch->moe_norm_topk;
    if (m->norm_eps == 0.0f) {
        char key[KEY_MAX];
        return ps_error_set(b->err, PS_E_DATA, hkey_name(b, PS_HKEY_RMS_EPS, key), "is zero as a float");
    }
    /* Every layer has tensors, so this also bounds the memory taken by the size of the file. */
    if (m->n_layers > b->gguf->n_tensors) {
        char key[KEY_MAX];
        return ps_error_set(b->err, PS_E_DATA, hkey_name(b, PS_HKEY_BLOCK_COUNT, key),
                            "%" PRIu32 " layers, but the file holds %" PRIu64 " tensors", m->n_layers,
                            b->gguf->n_tensors);
    }
    return PS_OK;
}

/* Value of a LAYERS key for layer l. */
static ps_status layer_value(ps_build *b, ps_hkey id, uint32_t l, uint32_t *out) {
    const ps_hvalue *h = &b->h[id];
    if (h->kv->type != PS_GGUF_ARRAY) {
        *out = h->u32;
        return PS_OK;
    }
    char key[KEY_MAX];
    hkey_name(b, id, key);
    if (h->kv->count != b->model->n_layers)
        return ps_error_at(b->err, PS_E_DATA, key, h->kv->offset,
                           "%" PRIu64 " elements for %" PRIu32 " layers", h->kv->count, b->model->n_layers);
    return elem_u32(b, h->kv, key, l, out);
}

/* Position scale outside sliding layers: 1/factor for linear scaling. As in llama.cpp a factor without a type
 * is linear, 0 means none, and type "none" turns a factor off. original_context_length matters only to the
 * types refused here. */
static ps_status rope_scale(ps_build *b, float *out) {
    const ps_hvalue *type = &b->h[PS_HKEY_ROPE_SCALING_TYPE];
    const ps_hvalue *factor = &b->h[PS_HKEY_ROPE_SCALING_FACTOR];
    ps_hkey id = PS_HKEY_ROPE_SCALING_FACTOR;
    char key[KEY_MAX], text[32];
    *out = 1.0f;
    if (factor->kv == NULL) {
        factor = &b->h[PS_HKEY_ROPE_SCALE_LINEAR];
        id = PS_HKEY_ROPE_SCALE_LINEAR;
    }
    if (type->kv != NULL) {
        ps_str s;
        ps_gguf_strings(type->kv, &s);
        ps_str_cut(s, text, sizeof text);
        if (strcmp(text, "none") == 0)
            return PS_OK;
        if (strcmp(text, "linear") != 0)
            return ps_build_refuse(b, false, PS_E_UNSUPPORTED, hkey_name(b, PS_HKEY_ROPE_SCALING_TYPE, key),
                                   "rope scaling \"%s\" is not supported, only \"linear\" and \"none\"",
                                   text);
    }
    if (factor->kv == NULL || factor->f64 == 0)
        return PS_OK;
    *out = (float)(1.0 / factor->f64);
    if (!(factor->f64 > 0) || !isfinite(*out) || *out == 0.0f)
        return ps_error_set(b->err, PS_E_DATA, hkey_name(b, id, key), "value %g is not a usable factor",
                            factor->f64);
    return PS_OK;
}

/* sliding_window_pattern: the period, or one truth value per layer; either way it must say what is computed. */
static ps_status check_pattern(ps_build *b) {
    const ps_gguf_kv *kv = b->h[PS_HKEY_SLIDING_PATTERN].kv;
    char key[KEY_MAX];
    if (kv == NULL)
        return PS_OK;
    hkey_name(b, PS_HKEY_SLIDING_PATTERN, key);
    if (kv->type != PS_GGUF_ARRAY) {
        uint32_t period = 0;
        ps_status st = elem_u32(b, kv, key, 0, &period);
        if (st != PS_OK)
            return st;
        if (period != b->arch->window_period)
            return ps_build_refuse(b, false, PS_E_UNSUPPORTED, key,
                                   "a period of %" PRIu32 " is not supported, only %" PRIu32, period,
                                   b->arch->window_period);
        return PS_OK;
    }
    if ((kv->elem_type != PS_GGUF_BOOL && !is_integer(kv->elem_type)) || kv->count != b->model->n_layers)
        return ps_error_at(b->err, PS_E_DATA, key, kv->offset, "is not one truth value per layer");
    for (uint32_t l = 0; l < b->model->n_layers; l++) {
        bool v = kv->elem_type == PS_GGUF_BOOL ? kv->value[l] != 0 : ps_gguf_elem_i64(kv, l) != 0;
        if (v != (b->layers[l].window != 0))
            return ps_build_refuse(b, false, PS_E_UNSUPPORTED, key,
                                   "layer %" PRIu32 " differs from the pattern of period %" PRIu32, l,
                                   b->arch->window_period);
    }
    return PS_OK;
}

/* n_head, n_head_kv and head sizes of layer l, and that their products stay below 2^31. */
static ps_status layer_heads(ps_build *b, uint32_t l) {
    ps_layer *y = &b->layers[l];
    const ps_model *m = b->model;
    char key[KEY_MAX];
    ps_status st;
    if ((st = layer_value(b, PS_HKEY_HEAD_COUNT, l, &y->n_head)) != PS_OK)
        return st;
    y->n_head_kv = y->n_head;
    if (b->h[PS_HKEY_HEAD_COUNT_KV].kv != NULL &&
        (st = layer_value(b, PS_HKEY_HEAD_COUNT_KV, l, &y->n_head_kv)) != PS_OK)
        return st;
    bool no_q = y->n_head == 0;
    if (no_q || y->n_head_kv == 0)
        return ps_error_set(b->err, PS_E_UNSUPPORTED,
                            hkey_name(b, no_q ? PS_HKEY_HEAD_COUNT : PS_HKEY_HEAD_COUNT_KV, key),
                            "layer %" PRIu32 " has no %sheads; layers without attention are not supported", l,
                            no_q ? "" : "KV ");
    if (y->n_head % y->n_head_kv != 0)
        return ps_error_set(b->err, PS_E_DATA, hkey_name(b, PS_HKEY_HEAD_COUNT_KV, key),
                            "layer %" PRIu32 ": %" PRIu32 " heads are not a multiple of %" PRIu32 " KV heads",
                            l, y->n_head, y->n_head_kv);
    if (b->h[PS_HKEY_KEY_LENGTH].kv == NULL || b->h[PS_HKEY_VALUE_LENGTH].kv == NULL) {
        uint32_t n_head0 = b->layers[0].n_head;
        if (m->n_embd % n_head0 != 0)
            return ps_error_set(b->err, PS_E_DATA, hkey_name(b, PS_HKEY_HEAD_COUNT, key),
                                "%" PRIu32 " heads do not divide the width %" PRIu32
                                " and no key and value length is given",
                                n_head0, m->n_embd);
        y->head_dim_k = y->head_dim_v = m->n_embd / n_head0;
    }
    if (b->h[PS_HKEY_KEY_LENGTH].kv != NULL)
        y->head_dim_k = b->h[PS_HKEY_KEY_LENGTH].u32;
    if (b->h[PS_HKEY_VALUE_LENGTH].kv != NULL)
        y->head_dim_v = b->h[PS_HKEY_VALUE_LENGTH].u32;
    if (y->head_dim_k % 2 != 0)
        return ps_error_set(b->err, PS_E_UNSUPPORTED, hkey_name(b, PS_HKEY_KEY_LENGTH, key),
                            "an odd head size (%" PRIu32 ") is not supported", y->head_dim_k);
    if ((uint64_t)y->n_head * y->head_dim_k > INT_LIMIT || (uint64_t)y->n_head * y->head_dim_v > INT_LIMIT)
        return ps_error_set(b->err, PS_E_DATA, hkey_name(b, PS_HKEY_HEAD_COUNT, key),
                            "layer %" PRIu32 ": %" PRIu32 " heads of size %" PRIu32 " are too wide", l,
                            y->n_head, y->head_dim_k > y->head_dim_v ? y->head_dim_k : y->head_dim_v);
    if (y->head_dim_k > PS_MAX_HEAD_DIM || y->head_dim_v > PS_MAX_HEAD_DIM) {
        const bool k = y->head_dim_k > PS_MAX_HEAD_DIM;
        return ps_error_set(b->err, PS_E_UNSUPPORTED,
                            hkey_name(b, k ? PS_HKEY_KEY_LENGTH : PS_HKEY_VALUE_LENGTH, key),
                            "a head size (%" PRIu32 ") above %d is not supported",
                            k ? y->head_dim_k : y->head_dim_v, PS_MAX_HEAD_DIM);
    }
    return PS_OK;
}

static ps_status layer_ffn(ps_build *b, uint32_t l) {
    ps_layer *y = &b->layers[l];
    char key[KEY_MAX];
    ps_status st;
    if (!b->arch->moe) {
        if ((st = layer_value(b, PS_HKEY_FEED_FORWARD_LENGTH, l, &y->n_ff)) != PS_OK)
            return st;
        if (y->n_ff == 0)
            return ps_error_set(b->err, PS_E_UNSUPPORTED, hkey_name(b, PS_HKEY_FEED_FORWARD_LENGTH, key),
                                "layer %" PRIu32 " has no feed-forward block", l);
        return PS_OK;
    }
    y->n_expert = b->h[PS_HKEY_EXPERT_COUNT].u32;
    y->n_expert_used = b->h[PS_HKEY_EXPERT_USED_COUNT].u32;
    y->n_ff_expert = b->h[PS_HKEY_EXPERT_FEED_FORWARD_LENGTH].u32;
    if (y->n_expert_used > y->n_expert)
        return ps_error_set(b->err, PS_E_DATA, hkey_name(b, PS_HKEY_EXPERT_USED_COUNT, key),
                            "%" PRIu32 " of %" PRIu32 " experts cannot be used", y->n_expert_used,
                            y->n_expert);
    if (y->n_expert > PS_MAX_EXPERTS || y->n_expert_used > PS_MAX_EXPERTS_USED) {
        const bool all = y->n_expert > PS_MAX_EXPERTS;
        return ps_error_set(b->err, PS_E_UNSUPPORTED,
                            hkey_name(b, all ? PS_HKEY_EXPERT_COUNT : PS_HKEY_EXPERT_USED_COUNT, key),
                            "%" PRIu32 " is above %d, the most that is supported",
                            all ? y->n_expert : y->n_expert_used, all ? PS_MAX_EXPERTS : PS_MAX_EXPERTS_USED);
    }
    return PS_OK;
}

ps_status ps_build_layers(ps_build *b) {
    ps_model *m = b->model;
    const ps_arch *arch = b->arch;
    char key[KEY_MAX];
    float scale;
    ps_status st;
    if ((st = rope_scale(b, &scale)) != PS_OK)
        return st;
    b->layers = ps_arena_array(b->arena, m->n_layers, sizeof *b->layers);
    if (b->layers == NULL)
        return ps_build_nomem(b);
    m->layers = b->layers;
    const ps_hvalue *base = &b->h[PS_HKEY_ROPE_BASE], *dims = &b->h[PS_HKEY_ROPE_DIMS];
    uint32_t window = b->h[PS_HKEY_SLIDING_WINDOW].u32;
    if (arch->window_period != 0 && (st = positive(b, PS_HKEY_SLIDING_WINDOW, window)) != PS_OK)
        return st;
    for (uint32_t l = 0; l < m->n_layers; l++) {
        ps_layer *y = &b->layers[l];
        if ((st = layer_heads(b, l)) != PS_OK || (st = layer_ffn(b, l)) != PS_OK)
            return st;
        bool slides = arch->window_period != 0 && (l + 1) % arch->window_period != 0;
        y->window = slides || arch->window_everywhere ? window : 0;
        y->rope_base = slides ? arch->window_rope_base : base->kv != NULL ? (float)base->f64 : 10000.0f;
        y->rope_scale = slides ? 1.0f : scale;
        y->rope_dims = dims->kv != NULL ? dims->u32 : y->head_dim_k;
        if (y->rope_dims == 0 || y->rope_dims % 2 != 0 || y->rope_dims > y->head_dim_k)
            return ps_error_set(b->err, PS_E_DATA, hkey_name(b, PS_HKEY_ROPE_DIMS, key),
                                "%" PRIu32 " rotated elements of a head of %" PRIu32, y->rope_dims,
                                y->head_dim_k);
        double width = y->head_dim_k;
        if (arch->wide_scale_layers != 0 && m->n_layers == arch->wide_scale_layers)
            width = (double)m->n_embd / y->n_head;
        y->attn_scale = (float)(1.0 / sqrt(width));
        const ps_hvalue *as = &b->h[PS_HKEY_ATTN_SCALE];
        if (as->kv != NULL && (float)as->f64 != y->attn_scale &&
            (st = ps_build_refuse(b, false, PS_E_UNSUPPORTED, hkey_name(b, PS_HKEY_ATTN_SCALE, key),
                                  "value %g is not supported, only %g", as->f64, (double)y->attn_scale)) !=
                PS_OK)
            return st;
    }
    return check_pattern(b);
}
