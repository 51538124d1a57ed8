/* Opening a tokenizer, look-ups, and the outer loop of encoding. */
#include "model/tokenizer.h"

#include <stdlib.h>

#include "core/checked.h"
#include "model/tokenizer_internal.h"

#define KEY_MODEL "tokenizer.ggml.model"
#define KEY_PRE "tokenizer.ggml.pre"
#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define KEY_SCORES "tokenizer.ggml.scores"

/* Defaults of each model where the file names no id, and how it treats text. */
typedef struct token_model {
    const char *name;
    bool spm, add_bos, add_space_prefix;
    int32_t bos, eos, unk, pad;
} token_model;

static const token_model models[] = {
    {"gpt2", false, false, false, PS_TOKEN_NONE, 1, 2, 0},
    {"llama", true, true, true, 1, 2, 0, PS_TOKEN_NONE},
};

/* token_type of the file -> attributes; 5 (unused) and unknown types have none. */
static const uint8_t attr_of_type[] = {
    0, PS_TOKEN_NORMAL, PS_TOKEN_UNKNOWN, PS_TOKEN_CONTROL, PS_TOKEN_USER_DEFINED, 0, PS_TOKEN_BYTE};

static ps_status no_memory(ps_error *err) {
    return ps_error_set(err, PS_E_NOMEM, KEY_TOKENS, "no memory for the vocabulary");
}

/* An optional array of the vocabulary's length; NULL if absent. */
static ps_status find_array(const ps_gguf *gguf, const char *key, uint32_t n, ps_gguf_type a, ps_gguf_type b,
                            const ps_gguf_kv **out, ps_error *err) {
    const ps_gguf_kv *kv = ps_gguf_find(gguf, key);
    *out = kv;
    if (kv == NULL)
        return PS_OK;
    if (kv->type != PS_GGUF_ARRAY || (kv->elem_type != a && kv->elem_type != b))
        return ps_error_set(err, PS_E_DATA, key, "not an array of 32-bit numbers of the right kind");
    if (kv->count < n)
        return ps_error_set(err, PS_E_DATA, key, "%llu entries for %u tokens", (unsigned long long)kv->count,
                            n);
    return PS_OK;
}

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f');
}

static ps_status load_types(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err) {
    const ps_gguf_kv *types;
    ps_status status = find_array(gguf, KEY_TYPES, t->vocab.n, PS_GGUF_I32, PS_GGUF_U32, &types, err);
    if (status != PS_OK)
        return status;
    t->attr = ps_arena_alloc(t->arena, t->vocab.n);
    if (t->attr == NULL)
        return no_memory(err);
    for (uint32_t i = 0; i < t->vocab.n; i++) {
        uint32_t type = 1;
        if (types != NULL)
            memcpy(&type, types->value + (uint64_t)i * 4, 4);
        t->attr[i] = type < sizeof attr_of_type ? attr_of_type[type] : 0;
        ps_str text = t->vocab.text[i];
        if (t->attr[i] == PS_TOKEN_BYTE && (text.len < 5 || !is_hex(text.data[3]) || !is_hex(text.data[4])))
            return ps_error_set(err, PS_E_DATA, KEY_TOKENS, "token %u is of type byte but not like <0x41>",
                                i);
    }
    return PS_OK;
}

static ps_status load_scores(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err) {
    const ps_gguf_kv *scores;
    ps_status status = find_array(gguf, KEY_SCORES, t->vocab.n, PS_GGUF_F32, PS_GGUF_I32, &scores, err);
    if (status != PS_OK || scores == NULL)
        return status;
    t->scores = scores->value;
    t->scores_int = scores->elem_type == PS_GGUF_I32;
    for (uint32_t i = 0; i < t->vocab.n; i++) {
        float score = ps_tokenizer_score(t, (int32_t)i);
        if (score != score)
            return ps_error_set(err, PS_E_DATA, KEY_SCORES, "score of token %u is not a number", i);
    }
    return PS_OK;
}

/* Texts of all tokens; an empty one is called [EMPTY_id], so that it cannot match inside a text. */
static ps_status load_texts(ps_tokenizer *t, const ps_gguf_kv *kv, ps_error *err) {
    uint32_t n = t->vocab.n;
    ps_str *text = ps_arena_array(t->arena, n, sizeof *text);
    if (text == NULL || !ps_strtab_init(&t->vocab, t->arena, n))
        return no_memory(err);
    ps_gguf_strings(kv, text);
    t->vocab.text = text;
    for (uint32_t i = 0; i < n; i++) {
        if (text[i].len > PS_TOKEN_MAX_BYTES)
            return ps_error_set(err, PS_E_UNSUPPORTED, KEY_TOKENS, "token %u has %llu bytes, more than %d", i,
                                (unsigned long long)text[i].len, PS_TOKEN_MAX_BYTES);
        if (text[i].len == 0) {
            char name[32] = "[EMPTY_";
            uint64_t len = 7, digits = 1;
            for (uint32_t v = i; v >= 10; v /= 10)
                digits++;
            for (uint64_t d = digits, v = i; d-- > 0; v /= 10)
                name[len + d] = (char)('0' + v % 10);
            len += digits;
            name[len++] = ']';
            text[i].data = ps_arena_strndup(t->arena, name, len);
            text[i].len = len;
            if (text[i].data == NULL)
                return no_memory(err);
        }
        if (text[i].len > t->info.max_token_bytes)
            t->info.max_token_bytes = (uint32_t)text[i].len;
    }
    uint32_t at, added = ps_strtab_fill(&t->vocab, n, &at);
    if (added == n)
        return PS_OK;
    if (at == PS_ID_NONE)
        return ps_error_set(err, PS_E_DATA, KEY_TOKENS, "texts made to collide, at token %u", added);
    return ps_error_set(err, PS_E_DATA, KEY_TOKENS, "tokens %u and %u have the same text", at, added);
}

ps_status ps_tokenizer_load_vocab(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err) {
    const ps_gguf_kv *kv = ps_gguf_find(gguf, KEY_TOKENS);
    if (kv == NULL)
        return ps_error_set(err, PS_E_DATA, KEY_TOKENS, "missing");
    if (kv->type != PS_GGUF_ARRAY || kv->elem_type != PS_GGUF_STRING)
        return ps_error_set(err, PS_E_DATA, KEY_TOKENS, "not an array of strings");
    if (kv->count == 0 || kv->count > INT32_MAX / 4)
        return ps_error_set(err, PS_E_DATA, KEY_TOKENS, "%llu tokens, not 1 to %d",
                            (unsigned long long)kv->count, INT32_MAX / 4);
    t->info.n_vocab = t->vocab.n = (uint32_t)kv->count;
    ps_status status = load_texts(t, kv, err);
    if (status == PS_OK)
        status = load_types(t, gguf, err);
    if (status == PS_OK)
        status = load_scores(t, gguf, err);
    return status;
}

/* The token of a lone byte: "<0x41>", else the byte itself, else the unknown token. */
static ps_status load_byte_tokens(ps_tokenizer *t, ps_error *err) {
    static const char hex[] = "0123456789ABCDEF";
    for (uint32_t b = 0; b < 256; b++) {
        char name[6] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>'}, raw = (char)b;
        uint32_t id = ps_strtab_find(&t->vocab, name, sizeof name);
        if (id == PS_ID_NONE)
            id = ps_strtab_find(&t->vocab, &raw, 1);
        if (id == PS_ID_NONE && t->info.unk == PS_TOKEN_NONE)
            return ps_error_set(err, PS_E_DATA, KEY_TOKENS, "neither a token <0x%02X> nor an unknown token",
                                b);
        t->byte_id[b] = id == PS_ID_NONE ? (uint32_t)t->info.unk : id;
    }
    return PS_OK;
}

static bool str_is(ps_str s, const char *text) {
    return s.len == strlen(text) && memcmp(s.data, text, (size_t)s.len) == 0;
}

/* Model and pre-tokenizer by name; refused if not in the tables. */
static ps_status choose_model(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err) {
    ps_str name, pre = {"default", 7};
    bool found;
    const token_model *model = NULL;
    ps_status status = ps_gguf_get_str(gguf, KEY_MODEL, &name, NULL, err);
    if (status != PS_OK)
        return status;
    for (uint32_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (str_is(name, models[i].name))
            model = &models[i];
    if (model == NULL)
        return ps_error_set(err, PS_E_UNSUPPORTED, KEY_MODEL, "tokenizer '%.*s' is not supported",
                            (int)(name.len < 64 ? name.len : 64), name.data);
    t->spm = model->spm;
    t->info = (ps_tokenizer_info){.model = model->name,
                                  .pre = "",
                                  .bos = model->bos,
                                  .eos = model->eos,
                                  .eot = PS_TOKEN_NONE,
                                  .eom = PS_TOKEN_NONE,
                                  .unk = model->unk,
                                  .pad = model->pad,
                                  .add_bos = model->add_bos,
                                  .add_space_prefix = model->add_space_prefix};
    if (t->spm)
        return PS_OK;
    status = ps_gguf_get_str(gguf, KEY_PRE, &pre, &found, err);
    if (status != PS_OK)
        return status;
    t->pre = ps_pre_find(pre);
    if (t->pre == NULL)
        return ps_error_set(err, PS_E_UNSUPPORTED, KEY_PRE, "pre-tokenizer '%.*s' is not supported",
                            (int)(pre.len < 64 ? pre.len : 64), pre.data);
    t->info.pre = t->pre->name;
    t->info.add_bos = t->pre->add_bos;
    t->info.clean_spaces = t->pre->clean_spaces;
    return PS_OK;
}

static ps_status load_flags(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err) {
    bool found;
    ps_status status = ps_gguf_get_bool(gguf, "tokenizer.ggml.add_bos_token", &t->info.add_bos, &found, err);
    if (status == PS_OK)
        status = ps_gguf_get_bool(gguf, "tokenizer.ggml.add_eos_token", &t->info.add_eos, &found, err);
    if (status == PS_OK)
        status =
            ps_gguf_get_bool(gguf, "tokenizer.ggml.add_space_prefix", &t->info.add_space_prefix, &found, err);
    if (status == PS_OK && t->info.add_bos && t->info.bos == PS_TOKEN_NONE)
        status =
            ps_error_set(err, PS_E_DATA, "tokenizer.ggml.bos_token_id", "missing, but texts begin with it");
    if (status == PS_OK && t->info.add_eos && t->info.eos == PS_TOKEN_NONE)
        status =
            ps_error_set(err, PS_E_DATA, "tokenizer.ggml.eos_token_id", "missing, but texts end with it");
    return status;
}

ps_status ps_tokenizer_open(const ps_gguf *gguf, ps_tokenizer **out, ps_error *err) {
    *out = NULL;
    ps_tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return no_memory(err);
    ps_status status = PS_E_NOMEM;
    t->arena = ps_arena_new(UINT64_MAX);
    status = t->arena == NULL ? no_memory(err) : choose_model(t, gguf, err);
    if (status == PS_OK)
        status = ps_tokenizer_load_vocab(t, gguf, err);
    if (status == PS_OK)
        status = ps_tokenizer_load_special(t, gguf, err);
    if (status == PS_OK)
        status = load_flags(t, gguf, err);
    if (status == PS_OK)
        status = t->spm ? load_byte_tokens(t, err) : ps_tokenizer_load_merges(t, gguf, err);
    if (status != PS_OK) {
        /* The typed getters of the reader have named the file already. */
        const char *path = gguf->files[0].path;
        if (err != NULL && strncmp(err->subject, path, strlen(path)) != 0)
            ps_error_prefix(err, path);
        ps_tokenizer_close(t);
        return status;
    }
    for (uint32_t i = 0; i < t->vocab.n; i++) {
        uint64_t n = ps_tokenizer_piece(t, (int32_t)i, true, NULL, 0);
        t->max_piece = n > t->max_piece ? n : t->max_piece;
    }
    *out = t;
    return PS_OK;
}

void ps_tokenizer_close(ps_tokenizer *t) {
    if (t == NULL)
        return;
    ps_arena_free(t->arena);
    free(t);
}

const ps_tokenizer_info *ps_tokenizer_get_info(const ps_tokenizer *t) {
    return &t->info;
}

static bool in_vocab(const ps_tokenizer *t, int32_t token) {
    return token >= 0 && (uint32_t)token < t->vocab.n;
}

ps_str ps_tokenizer_text(const ps_tokenizer *t, int32_t token) {
    return in_vocab(t, token) ? t->vocab.text[token] : (ps_str){NULL, 0};
}

uint32_t ps_tokenizer_attr(const ps_tokenizer *t, int32_t token) {
    return in_vocab(t, token) ? t->attr[token] : 0;
}

float ps_tokenizer_score(const ps_tokenizer *t, int32_t token) {
    if (!in_vocab(t, token) || t->scores == NULL)
        return 0.0F;
    int32_t whole;
    float score;
    memcpy(&whole, t->scores + (uint64_t)token * 4, 4);
    memcpy(&score, &whole, 4);
    return t->scores_int ? (float)whole : score;
}

int32_t ps_tokenizer_find(const ps_tokenizer *t, const char *text, uint64_t len) {
    uint32_t id = ps_strtab_find(&t->vocab, text, len);
    return id == PS_ID_NONE ? PS_TOKEN_NONE : (int32_t)id;
}

bool ps_tokenizer_is_eog(const ps_tokenizer *t, int32_t token) {
    return in_vocab(t, token) && (t->eog[token / 64] >> (token % 64) & 1) != 0;
}

/* One stretch between special tokens. */
static bool encode_stretch(ps_encoder *e, const char *text, uint64_t len, bool after_special) {
    if (len == 0)
        return true;
    return e->t->spm ? ps_encode_spm(e, text, len, e->t->info.add_space_prefix && after_special)
                     : ps_encode_bpe(e, text, len);
}

ps_status ps_tokenizer_encode(const ps_tokenizer *t, const char *text, uint64_t len, uint32_t flags,
                              ps_tokens *out, ps_error *err) {
    if (len > PS_ENCODE_MAX_BYTES)
        return ps_error_set(err, PS_E_USAGE, "text", "%llu bytes, more than %d", (unsigned long long)len,
                            PS_ENCODE_MAX_BYTES);
    ps_encoder e = {.t = t, .out = out};
    ps_special_hit *hits = NULL;
    uint64_t n_hits = 0, n_before = out->n, at = 0;
    bool special = (flags & PS_ENCODE_ADD_SPECIAL) != 0, after_special = true;
    bool ok = ps_special_partition(t, text, len, (flags & PS_ENCODE_PARSE_SPECIAL) != 0, &hits, &n_hits);
    if (ok && special && t->info.add_bos)
        ok = ps_tokens_push(out, t->info.bos);
    for (uint64_t i = 0; ok && i < n_hits; i++) {
        ok = encode_stretch(&e, text + at, hits[i].pos - at, after_special) &&
             ps_tokens_push(out, (int32_t)hits[i].id);
        after_special = true;
        at = hits[i].end;
    }
    ok = ok && encode_stretch(&e, text + at, len - at, after_special);
    if (ok && special && t->info.add_eos)
        ok = ps_tokens_push(out, t->info.eos);
    free(hits);
    free(e.heap.keys);
    free(e.cells);
    free(e.text);
    if (ok)
        return PS_OK;
    out->n = n_before;
    return ps_error_set(err, PS_E_NOMEM, "text", "no memory to encode %llu bytes", (unsigned long long)len);
}
