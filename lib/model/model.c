/* Opening a model: from the architecture row and the file to weights with roles; surveys of what stands
 * against it. */
#include "model/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/utf8.h"
#include "model/arch.h"

/* The arena that holds everything, itself included in what it frees. */
typedef struct model_box {
    ps_model model; /* first: a ps_model * is a model_box * */
    ps_arena *arena;
} model_box;

typedef struct survey_box {
    ps_survey survey; /* first */
    ps_arena *arena;
} survey_box;

ps_status ps_build_nomem(ps_build *b) {
    return ps_error_set(b->err, PS_E_NOMEM, "model", "out of memory");
}

const char *ps_str_cut(ps_str s, char *buf, size_t size) {
    size_t n = s.len < size - 1 ? (size_t)s.len : size - 1;
    memcpy(buf, s.data, n);
    buf[n] = '\0';
    return buf;
}

/* Add to the survey's list; texts come from `e`, which has them cleaned of control characters. */
static ps_status note(ps_build *b, const ps_error *e) {
    ps_survey *s = b->survey;
    s->n_refused++;
    if (s->n_refusals == PS_SURVEY_MAX_REFUSALS)
        return PS_OK;
    ps_refusal *r = &b->refusals[s->n_refusals];
    r->status = e->status;
    r->subject = ps_arena_strdup(b->arena, e->subject);
    r->message = ps_arena_strdup(b->arena, e->message);
    if (r->subject == NULL || r->message == NULL)
        return ps_build_nomem(b);
    s->n_refusals++;
    return PS_OK;
}

ps_status ps_build_refuse(ps_build *b, bool needed, ps_status status, const char *subject, const char *fmt,
                          ...) {
    char text[sizeof b->err->message];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (b->survey == NULL)
        return ps_error_set(b->err, status, subject, "%s", text);
    ps_error e;
    (void)ps_error_set(&e, status, subject, "%s", text);
    b->incomplete |= needed;
    return note(b, &e);
}

/* "blk.<l>.<role>" or "<role>"; PS_ROLE_NONE if it is neither. */
static ps_role role_of(ps_str name, uint64_t *out_layer) {
    const char *p = name.data;
    uint64_t len = name.len;
    bool per_layer = len > 4 && memcmp(p, "blk.", 4) == 0;
    *out_layer = 0;
    if (per_layer) {
        uint64_t i = 4, l = 0;
        for (; i < len && p[i] >= '0' && p[i] <= '9' && i < 14; i++)
            l = l * 10 + (uint64_t)(p[i] - '0');
        if (i == 4 || i == len || p[i] != '.' || (p[4] == '0' && i > 5))
            return PS_ROLE_NONE;
        p += i + 1;
        len -= i + 1;
        *out_layer = l;
    }
    for (unsigned r = 0; r < PS_ROLE_COUNT; r++) {
        const ps_role_info *info = ps_role_get((ps_role)r);
        if (info->per_layer == per_layer && strlen(info->name) == len && memcmp(info->name, p, len) == 0)
            return (ps_role)r;
    }
    return PS_ROLE_NONE;
}

static uint64_t extent(const ps_model *m, const ps_layer *y, ps_extent e) {
    switch (e) {
    case PS_EXT_ONE:
        return 1;
    case PS_EXT_EMBD:
        return m->n_embd;
    case PS_EXT_VOCAB:
        return m->n_vocab;
    case PS_EXT_Q:
        return (uint64_t)y->n_head * y->head_dim_k;
    case PS_EXT_K:
        return (uint64_t)y->n_head_kv * y->head_dim_k;
    case PS_EXT_V:
        return (uint64_t)y->n_head_kv * y->head_dim_v;
    case PS_EXT_O:
        return (uint64_t)y->n_head * y->head_dim_v;
    case PS_EXT_HEAD_K:
        return y->head_dim_k;
    case PS_EXT_FF:
        return y->n_ff;
    case PS_EXT_FF_EXPERT:
        return y->n_ff_expert;
    case PS_EXT_EXPERT:
        return y->n_expert;
    case PS_EXT_HALF_ROPE:
        return y->rope_dims / 2;
    }
    return 0;
}

/* Give tensor t its role: type and shape checks. y: its layer (layer 0 for global roles). */
static ps_status take_tensor(ps_build *b, uint64_t t, ps_role role, uint32_t l) {
    const ps_gguf_tensor *tensor = &b->gguf->tensors[t];
    const ps_role_shape *shape = ps_role_shape_get(role);
    char name[96];
    ps_status st;
    ps_str_cut(tensor->name, name, sizeof name);
    const ps_dtype_info *type = ps_dtype_find((uint32_t)tensor->type);
    if (shape->vector ? tensor->type != PS_DTYPE_F32 : !ps_dtype_computable(tensor->type)) {
        st = ps_build_refuse(b, false, PS_E_UNSUPPORTED, name, "type %s is not supported here%s",
                             type != NULL ? type->name : "unknown", shape->vector ? ", only F32" : "");
        if (st != PS_OK)
            return st;
    }
    const ps_layer *y = &b->layers[l];
    uint64_t want[3] = {extent(b->model, y, shape->cols), extent(b->model, y, shape->rows),
                        extent(b->model, y, shape->experts)};
    if (tensor->dims[0] != want[0] || tensor->dims[1] != want[1] || tensor->dims[2] != want[2] ||
        tensor->dims[3] != 1)
        return ps_build_refuse(b, true, PS_E_DATA, name,
                               "shape [%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
                               "], but the hyper-parameters say [%" PRIu64 " %" PRIu64 " %" PRIu64 " 1]",
                               tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3], want[0],
                               want[1], want[2]);
    ps_weight *w = &b->weights[t];
    *w = (ps_weight){.tensor = (uint32_t)t,
                     .type = tensor->type,
                     .cols = want[0],
                     .rows = want[1],
                     .experts = want[2],
                     .bytes = tensor->bytes};
    if (ps_role_get(role)->per_layer)
        b->layers[l].w[role] = w;
    else
        b->model->w[role] = w;
    uint64_t n = want[0] * want[1] * want[2]; /* the reader has checked that this does not wrap */
    if (!ps_add_u64(b->model->weight_bytes, tensor->bytes, &b->model->weight_bytes) ||
        !ps_add_u64(b->model->n_params, n, &b->model->n_params))
        return ps_error_set(b->err, PS_E_DATA, name, "the sizes of all tensors do not fit 64 bits");
    return PS_OK;
}

static ps_status check_missing(ps_build *b, ps_role role, uint32_t l, const ps_weight *w) {
    if (w != NULL || (b->arch->roles_required >> role & 1) == 0)
        return PS_OK;
    const ps_role_info *info = ps_role_get(role);
    char name[64];
    if (info->per_layer)
        (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", l, info->name);
    else
        (void)snprintf(name, sizeof name, "%s", info->name);
    return ps_build_refuse(b, true, PS_E_DATA, name, "the tensor is missing");
}

/* Rows of the token embedding: the vocabulary. A vocab_size key must agree. */
static ps_status vocabulary(ps_build *b) {
    const ps_gguf_tensor *t = ps_gguf_find_tensor(b->gguf, ps_role_get(PS_ROLE_TOKEN_EMBD)->name);
    const ps_hvalue *key = &b->h[PS_HKEY_VOCAB_SIZE];
    if (t == NULL)
        return ps_error_set(b->err, PS_E_DATA, "token_embd.weight", "the tensor is missing");
    if (t->dims[1] == 0 || t->dims[1] > INT32_MAX)
        return ps_error_set(b->err, PS_E_DATA, "token_embd.weight", "%" PRIu64 " rows", t->dims[1]);
    b->model->n_vocab = (uint32_t)t->dims[1];
    if (key->kv != NULL && key->u32 != b->model->n_vocab)
        return ps_error_set(b->err, PS_E_DATA, "token_embd.weight",
                            "%" PRIu32 " rows, but %s.vocab_size is %" PRIu32, b->model->n_vocab,
                            b->arch->name, key->u32);
    return PS_OK;
}

static ps_status rope_factors(ps_build *b) {
    const ps_weight *w = b->model->w[PS_ROLE_ROPE_FREQS];
    if (w == NULL || w->type != PS_DTYPE_F32)
        return PS_OK;
    for (uint32_t l = 1; l < b->model->n_layers; l++)
        if (b->layers[l].rope_dims != b->layers[0].rope_dims)
            return ps_error_set(b->err, PS_E_UNSUPPORTED, "rope_freqs.weight",
                                "layers rotate different sizes");
    float *f = ps_arena_array(b->arena, w->cols, sizeof *f);
    if (f == NULL)
        return ps_build_nomem(b);
    memcpy(f, ps_model_weight_data(b->model, w), w->cols * sizeof *f);
    for (uint64_t i = 0; i < w->cols; i++)
        if (!isfinite(f[i]) || !(f[i] > 0.0f))
            return ps_error_set(b->err, PS_E_DATA, "rope_freqs.weight",
                                "factor %" PRIu64 " is %g; factors are finite and positive", i, (double)f[i]);
    b->model->rope_factors = f;
    b->model->n_rope_factors = (uint32_t)w->cols;
    return PS_OK;
}

ps_status ps_build_weights(ps_build *b) {
    const ps_gguf *g = b->gguf;
    ps_model *m = b->model;
    ps_status st;
    if (g->n_tensors > UINT32_MAX)
        return ps_error_set(b->err, PS_E_UNSUPPORTED, "tensors", "%" PRIu64 " are too many", g->n_tensors);
    b->weights = ps_arena_array(b->arena, g->n_tensors, sizeof *b->weights);
    if (b->weights == NULL)
        return ps_build_nomem(b);
    if ((st = vocabulary(b)) != PS_OK)
        return st;
    uint64_t roles = b->arch->roles_required | b->arch->roles_optional;
    for (uint64_t t = 0; t < g->n_tensors; t++) {
        uint64_t l;
        ps_role role = role_of(g->tensors[t].name, &l);
        char name[96];
        ps_str_cut(g->tensors[t].name, name, sizeof name);
        if (role == PS_ROLE_NONE || (roles >> role & 1) == 0)
            st = ps_build_refuse(b, false, PS_E_UNSUPPORTED, name,
                                 "the tensor has no role in architecture %s", b->arch->name);
        else if (l >= m->n_layers)
            st = ps_build_refuse(b, false, PS_E_UNSUPPORTED, name,
                                 "a tensor beyond the model's %" PRIu32 " layers", m->n_layers);
        else
            st = take_tensor(b, t, role, (uint32_t)l);
        if (st != PS_OK)
            return st;
    }
    for (unsigned r = 0; r < PS_ROLE_COUNT; r++) {
        bool per_layer = ps_role_get((ps_role)r)->per_layer;
        uint32_t n = per_layer ? m->n_layers : 1;
        for (uint32_t l = 0; l < n; l++) {
            st = check_missing(b, (ps_role)r, l, per_layer ? m->layers[l].w[r] : m->w[r]);
            if (st != PS_OK)
                return st;
        }
    }
    m->tied_output = m->w[PS_ROLE_OUTPUT] == NULL;
    if (m->tied_output)
        m->w[PS_ROLE_OUTPUT] = m->w[PS_ROLE_TOKEN_EMBD];
    return rope_factors(b);
}

/* general.name as well-formed text of one line: what is not is replaced, a sequence cut at the end is left out. */
static ps_status model_name(ps_build *b) {
    ps_str s = {"", 0};
    bool found;
    ps_status st = ps_gguf_get_str(b->gguf, "general.name", &s, &found, b->err);
    if (st != PS_OK)
        return st;
    char *name = b->model->name;
    size_t n = 0;
    for (uint64_t i = 0; i < s.len;) {
        uint32_t cp, len = ps_utf8_sequence(s.data + i, s.len - i, &cp);
        if (n + (len ? len : 1) >= sizeof b->model->name)
            break;
        if (len && ps_utf8_is_plain(cp)) {
            memcpy(name + n, s.data + i, len);
            n += len;
        } else {
            name[n++] = len ? ' ' : '?';
        }
        i += len ? len : 1;
    }
    name[n] = '\0';
    return PS_OK;
}

/* The architecture row, or a refusal by name (survey: b->arch stays NULL). */
static ps_status find_arch(ps_build *b) {
    ps_str s;
    bool found;
    char name[64];
    ps_status st = ps_gguf_get_str(b->gguf, "general.architecture", &s, &found, b->err);
    if (st != PS_OK)
        return st;
    if (!found)
        return ps_error_set(b->err, PS_E_DATA, "general.architecture", "the key is missing");
    b->arch = ps_arch_find(s);
    ps_str_cut(s, name, sizeof name);
    if (b->survey != NULL) {
        ps_error cleaned;
        (void)ps_error_set(&cleaned, PS_E_DATA, name, "-"); /* drops control characters */
        memcpy(b->survey->arch_name, cleaned.subject, sizeof b->survey->arch_name - 1);
        b->survey->arch_known = b->arch != NULL;
    }
    if (b->arch == NULL)
        return ps_error_set(b->err, PS_E_UNSUPPORTED, "general.architecture",
                            "architecture \"%s\" is not supported", name);
    return PS_OK;
}

static ps_status build(ps_build *b) {
    ps_status st;
    if ((st = find_arch(b)) != PS_OK)
        return st;
    b->model->gguf = b->gguf;
    b->model->arch = b->arch;
    b->model->arch_name = b->arch->name;
    b->kv_used = ps_arena_array(b->arena, b->gguf->n_kv, 1);
    if (b->kv_used == NULL)
        return ps_build_nomem(b);
    if ((st = model_name(b)) != PS_OK || (st = ps_build_keys(b)) != PS_OK ||
        (st = ps_build_layers(b)) != PS_OK || (st = ps_build_weights(b)) != PS_OK || b->incomplete)
        return st;
    return ps_build_shards(b);
}

ps_status ps_model_open(const ps_gguf *gguf, ps_model **out, ps_error *err) {
    ps_build b = {.gguf = gguf, .err = err};
    ps_status st;
    model_box *box = NULL;
    b.arena = ps_arena_new(UINT64_MAX);
    if (b.arena != NULL)
        box = ps_arena_alloc(b.arena, sizeof *box);
    if (box == NULL) {
        st = ps_build_nomem(&b);
        goto done;
    }
    box->arena = b.arena;
    b.model = &box->model;
    st = build(&b);
    if (st != PS_OK && st != PS_E_NOMEM && gguf->n_files > 0)
        ps_error_prefix(err, gguf->files[0].path);
done:
    if (st != PS_OK)
        ps_arena_free(b.arena);
    else
        *out = b.model;
    return st;
}

void ps_model_close(ps_model *model) {
    if (model != NULL)
        ps_arena_free(((model_box *)(void *)model)->arena);
}

static ps_status count_types(ps_build *b) {
    enum { N_IDS = 64 };
    ps_type_count by_id[N_IDS] = {{.n_tensors = 0}};
    uint32_t n = 0;
    for (uint64_t t = 0; t < b->gguf->n_tensors; t++) {
        const ps_gguf_tensor *tensor = &b->gguf->tensors[t];
        if ((unsigned)tensor->type >= N_IDS)
            continue; /* the reader lets only ids of the table through, all smaller */
        ps_type_count *c = &by_id[tensor->type];
        n += c->n_tensors++ == 0;
        c->bytes += tensor->bytes; /* at most gguf->data_bytes */
    }
    ps_type_count *types = ps_arena_array(b->arena, n, sizeof *types);
    if (types == NULL)
        return ps_build_nomem(b);
    b->survey->types = types;
    for (unsigned id = 0; id < N_IDS; id++)
        if (by_id[id].n_tensors != 0) {
            by_id[id].type = (ps_dtype)id;
            by_id[id].computable = ps_dtype_computable((ps_dtype)id);
            types[b->survey->n_types++] = by_id[id];
        }
    return PS_OK;
}

ps_status ps_model_survey(const ps_gguf *gguf, ps_survey **out, ps_error *err) {
    ps_error stop = {.status = PS_OK};
    ps_build b = {.gguf = gguf, .err = &stop};
    ps_status st;
    survey_box *box = NULL;
    b.arena = ps_arena_new(UINT64_MAX);
    if (b.arena != NULL)
        box = ps_arena_alloc(b.arena, sizeof *box);
    if (box != NULL) {
        b.model = ps_arena_alloc(b.arena, sizeof *b.model);
        b.refusals = ps_arena_array(b.arena, PS_SURVEY_MAX_REFUSALS, sizeof *b.refusals);
    }
    if (box == NULL || b.model == NULL || b.refusals == NULL) {
        st = ps_build_nomem(&b);
        goto done;
    }
    box->arena = b.arena;
    box->survey.gguf = gguf;
    box->survey.refusals = b.refusals;
    b.survey = &box->survey;
    st = count_types(&b);
    if (st != PS_OK)
        goto done;
    st = build(&b);
    if (st == PS_OK && !b.incomplete)
        box->survey.model = b.model;
    else if (st != PS_OK && st != PS_E_NOMEM) {
        ps_error e = stop; /* what ended it is one more refusal */
        st = note(&b, &e);
    }
done:
    if (st != PS_OK) {
        if (err != NULL)
            *err = stop;
        ps_arena_free(b.arena);
    } else
        *out = &box->survey;
    return st;
}

void ps_survey_close(ps_survey *survey) {
    if (survey != NULL)
        ps_arena_free(((survey_box *)(void *)survey)->arena);
}

const ps_weight *ps_model_weight(const ps_model *model, uint32_t layer, ps_role role) {
    if ((unsigned)role >= PS_ROLE_COUNT)
        return NULL;
    if (!ps_role_get(role)->per_layer)
        return model->w[role];
    return layer < model->n_layers ? model->layers[layer].w[role] : NULL;
}

const uint8_t *ps_model_weight_data(const ps_model *model, const ps_weight *w) {
    return ps_gguf_data(model->gguf, &model->gguf->tensors[w->tensor]);
}
