/* Builds the GGUF of a small vocabulary from a few fields, well-formed or not, for tests of the tokenizer. */
#ifndef PS_TESTS_TOKENIZER_BUILD_H
#define PS_TESTS_TOKENIZER_BUILD_H

#include <stdio.h>

#include "gguf_build.h"
#include "model/tokenizer.h"

enum { TB_MAX = 64 };

/* What is NULL or 0 is left out; numbers that may be 0 are written TB(n). Tokens 0 to 255 are the bytes: "<0xXX>" of type 6 for llama, the
 * characters of byte-level BPE for gpt2, unless no_bytes. Then come `tokens`, up to a NULL. */
typedef struct tb_spec {
    const char *model, *pre, *name;
    const char *tokens[TB_MAX];
    uint32_t types[TB_MAX]; /* 0: normal */
    float scores[TB_MAX];
    const char *merges[TB_MAX];
    int64_t bos, eos, unk, eot, add_bos, add_eos, add_space_prefix;
    bool no_bytes, no_tokens, no_merges, short_types, short_scores;
    uint32_t tokens_type, types_type, scores_type, merges_type; /* element type if not the right one */
} tb_spec;

#define TB(n) ((int64_t)(n) + 1)

static inline void tb_byte_name(bool spm, unsigned byte, unsigned *next, char out[8]) {
    if (spm) {
        snprintf(out, 8, "<0x%02X>", byte);
        return;
    }
    bool own = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    unsigned cp = own ? byte : 256 + (*next)++;
    if (cp < 0x80)
        snprintf(out, 8, "%c", (int)cp);
    else
        snprintf(out, 8, "%c%c", (int)(0xC0 | cp >> 6), (int)(0x80 | (cp & 0x3F)));
}

static inline void tb_opt_int(gguf_build *b, uint64_t *n_kv, const char *key, int64_t v, bool flag) {
    if (v == 0)
        return;
    gb_kv_int(b, key, flag ? 7 : 4, (uint64_t)(v - 1), flag ? 1 : 4);
    (*n_kv)++;
}

static inline void tb_build(gguf_build *b, const tb_spec *s) {
    bool spm = s->model != NULL && strcmp(s->model, "llama") == 0;
    uint64_t n_kv = 0, n_bytes = s->no_bytes ? 0 : 256, n = 0, n_merges = 0;
    unsigned next = 0;
    while (n < TB_MAX && s->tokens[n] != NULL)
        n++;
    while (n_merges < TB_MAX && s->merges[n_merges] != NULL)
        n_merges++;
    gb_head(b, 3, 0, 0); /* the count is put in at the end */
    if (s->model != NULL) {
        gb_kv_str(b, "tokenizer.ggml.model", s->model);
        n_kv++;
    }
    if (s->pre != NULL) {
        gb_kv_str(b, "tokenizer.ggml.pre", s->pre);
        n_kv++;
    }
    if (s->name != NULL) {
        gb_kv_str(b, "general.name", s->name);
        n_kv++;
    }
    if (!s->no_tokens && s->tokens_type != 0) {
        gb_kv_array(b, "tokenizer.ggml.tokens", s->tokens_type, 1);
        gb_u32(b, 0);
        n_kv++;
    } else if (!s->no_tokens) {
        gb_kv_array(b, "tokenizer.ggml.tokens", 8, n_bytes + n);
        for (unsigned i = 0; i < n_bytes; i++) {
            char name[8];
            tb_byte_name(spm, i, &next, name);
            gb_str(b, name);
        }
        for (uint64_t i = 0; i < n; i++)
            gb_str(b, s->tokens[i]);
        n_kv++;
    }
    uint64_t n_types = n_bytes + n - s->short_types, n_scores = n_bytes + n - s->short_scores;
    gb_kv_array(b, "tokenizer.ggml.token_type", s->types_type != 0 ? s->types_type : 5, n_types);
    for (uint64_t i = 0; i < n_types; i++)
        gb_u32(b, i < n_bytes ? (spm ? 6 : 1) : s->types[i - n_bytes] == 0 ? 1 : s->types[i - n_bytes]);
    gb_kv_array(b, "tokenizer.ggml.scores", s->scores_type != 0 ? s->scores_type : 6, n_scores);
    for (uint64_t i = 0; i < n_scores; i++) {
        float score = i < n_bytes ? 0.0F : s->scores[i - n_bytes];
        gb_raw(b, &score, 4);
    }
    n_kv += 2;
    if (s->merges_type != 0 && !s->no_merges) {
        gb_kv_array(b, "tokenizer.ggml.merges", s->merges_type, 1);
        gb_u32(b, 0);
        n_kv++;
    } else if (!s->no_merges) {
        gb_kv_array(b, "tokenizer.ggml.merges", 8, n_merges);
        for (uint64_t i = 0; i < n_merges; i++)
            gb_str(b, s->merges[i]);
        n_kv++;
    }
    tb_opt_int(b, &n_kv, "tokenizer.ggml.bos_token_id", s->bos, false);
    tb_opt_int(b, &n_kv, "tokenizer.ggml.eos_token_id", s->eos, false);
    tb_opt_int(b, &n_kv, "tokenizer.ggml.unknown_token_id", s->unk, false);
    tb_opt_int(b, &n_kv, "tokenizer.ggml.eot_token_id", s->eot, false);
    tb_opt_int(b, &n_kv, "tokenizer.ggml.add_bos_token", s->add_bos, true);
    tb_opt_int(b, &n_kv, "tokenizer.ggml.add_eos_token", s->add_eos, true);
    tb_opt_int(b, &n_kv, "tokenizer.ggml.add_space_prefix", s->add_space_prefix, true);
    memcpy(b->data + 16, &n_kv, 8);
}

/* Opened pair with the bytes under it; close with tb_close. */
typedef struct tb_opened {
    gguf_build bytes;
    ps_gguf *gguf;
    ps_tokenizer *t;
    ps_status status;
    ps_error err;
} tb_opened;

static inline tb_opened tb_open(const tb_spec *s) {
    tb_opened o = {{0}, NULL, NULL, PS_OK, {0}};
    tb_build(&o.bytes, s);
    o.status = ps_gguf_open_memory(o.bytes.data, o.bytes.n, "built", &o.gguf, &o.err);
    if (o.status == PS_OK)
        o.status = ps_tokenizer_open(o.gguf, &o.t, &o.err);
    return o;
}

static inline void tb_close(tb_opened *o) {
    ps_tokenizer_close(o->t);
    ps_gguf_close(o->gguf);
    gb_free(&o->bytes);
}

/* Ids as text, "256 97"; buf is big enough or the text is cut. */
static inline const char *tb_encode(const ps_tokenizer *t, const char *text, uint64_t len, uint32_t flags,
                                    char *buf, size_t size) {
    ps_tokens ids = {0};
    ps_error err;
    buf[0] = '\0';
    if (ps_tokenizer_encode(t, text, len, flags, &ids, &err) != PS_OK)
        snprintf(buf, size, "%s", err.message);
    for (uint64_t i = 0, at = 0; i < ids.n && at < size; i++)
        at += (uint64_t)snprintf(buf + at, size - at, i == 0 ? "%d" : " %d", ids.ids[i]);
    ps_tokens_free(&ids);
    return buf;
}

#endif
