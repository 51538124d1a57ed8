/* Reads tests/golden/tokenizer (see make.py there) and holds a tokenizer against it. */
#ifndef PS_TESTS_TOKENIZER_GOLDEN_H
#define PS_TESTS_TOKENIZER_GOLDEN_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "gguf_build.h"
#include "model/tokenizer.h"

#define TG_FOLDER "tests/golden/tokenizer/"

static inline char *tg_read(const char *name) {
    char path[256], *data;
    uint64_t size;
    ps_error err;
    snprintf(path, sizeof path, TG_FOLDER "%s", name);
    if (ps_file_read(path, UINT64_MAX, &data, &size, &err) != PS_OK) {
        fprintf(stderr, "%s: %s\n", path, err.message);
        abort();
    }
    return data;
}

/* The next line of *p, without its newline, NUL-terminated in place; NULL at the end. */
static inline char *tg_line(char **p) {
    char *line = *p, *end = strchr(line, '\n');
    if (end == NULL)
        return NULL;
    *end = '\0';
    *p = end + 1;
    return line;
}

/* Undo \xHH in place; returns the length. */
static inline uint64_t tg_unescape(char *s) {
    char *to = s, *from = s;
    while (*from != '\0') {
        unsigned v;
        if (from[0] == '\\' && sscanf(from, "\\x%2x", &v) == 1) {
            *to++ = (char)v;
            from += 4;
        } else {
            *to++ = *from++;
        }
    }
    return (uint64_t)(to - s);
}

static inline uint64_t tg_fnv(const char *s, uint64_t n, uint64_t h) {
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)s[i]) * 0x100000001B3U;
    return h;
}
#define TG_FNV_START 0xCBF29CE484222325U

/* Ids of "12 5 7", up to `end`. */
static inline bool tg_same_ids(const ps_tokens *got, uint64_t from, const char *want) {
    uint64_t i = from;
    for (; *want != '\0' && *want != ';'; i++) {
        char *after;
        long id = strtol(want, &after, 10);
        if (after == want || i >= got->n || got->ids[i] != id)
            return false;
        want = *after == ' ' ? after + 1 : after;
    }
    return i == got->n;
}

static inline void tg_complain(const char *name, unsigned line, const char *what, const ps_tokens *got) {
    fprintf(stderr, "FAIL: %s line %u: %s; got", name, line, what);
    for (uint64_t i = 0; got != NULL && i < got->n; i++)
        fprintf(stderr, " %d", got->ids[i]);
    fputc('\n', stderr);
}

/* One string against its line "plain;full;four hashes". Returns the number of differences. */
static inline unsigned tg_check_string(const ps_tokenizer *t, const char *name, unsigned line, const char *s,
                                       uint64_t len, const char *want) {
    static const uint32_t decode_flags[4] = {0, PS_DECODE_SHOW_SPECIAL, PS_DECODE_REMOVE_SPECIAL,
                                             PS_DECODE_REMOVE_SPECIAL | PS_DECODE_SHOW_SPECIAL};
    unsigned wrong = 0;
    ps_tokens plain = {0}, full = {0};
    ps_error err;
    if (ps_tokenizer_encode(t, s, len, 0, &plain, &err) != PS_OK ||
        ps_tokenizer_encode(t, s, len, PS_ENCODE_ADD_SPECIAL | PS_ENCODE_PARSE_SPECIAL, &full, &err) !=
            PS_OK) {
        tg_complain(name, line, err.message, NULL);
        wrong++;
    } else if (strcmp(want, "-") != 0) {
        const char *second = strchr(want, ';') + 1, *third = strchr(second, ';') + 1;
        if (!tg_same_ids(&plain, 0, want)) {
            tg_complain(name, line, "ids differ", &plain);
            wrong++;
        }
        bool bos = *second == '+', same = bos || *second == '=';
        if (!tg_same_ids(&full, bos, same ? want : second) ||
            (bos && full.ids[0] != ps_tokenizer_get_info(t)->bos)) {
            tg_complain(name, line, "ids with special tokens differ", &full);
            wrong++;
        }
        for (unsigned i = 0; i < 4; i++) {
            const ps_tokens *ids = i == 0 ? &plain : &full;
            char *text = NULL;
            uint64_t n;
            unsigned long hash = strtoul(third + 9 * i, NULL, 16);
            if (ps_tokenizer_decode(t, ids->ids, ids->n, decode_flags[i], &text, &n, &err) != PS_OK ||
                (uint32_t)tg_fnv(text, n, TG_FNV_START) != hash) {
                fprintf(stderr, "FAIL: %s line %u: decoded (flags %u) to '%s'\n", name, line, decode_flags[i],
                        text == NULL ? "" : text);
                wrong++;
            }
            free(text);
        }
    }
    ps_tokens_free(&plain);
    ps_tokens_free(&full);
    return wrong;
}

/* What NAME.meta says of the vocabulary. */
static inline unsigned tg_check_meta(const ps_tokenizer *t, const char *name) {
    char file[64];
    snprintf(file, sizeof file, "%s.meta", name);
    char *meta = tg_read(file), *want_text = meta;
    uint64_t hash[2] = {TG_FNV_START, TG_FNV_START};
    const ps_tokenizer_info *info = ps_tokenizer_get_info(t);
    char *piece = (char *)malloc(ps_tokenizer_max_piece(t) + 1);
    char *got = NULL;
    size_t got_n = 0;
    FILE *f = open_memstream(&got, &got_n);
    for (uint32_t i = 0; i < info->n_vocab; i++)
        for (int special = 0; special < 2; special++) {
            uint64_t n = ps_tokenizer_piece(t, (int32_t)i, special != 0, piece, ps_tokenizer_max_piece(t));
            char len = (char)(n & 255);
            hash[special] = tg_fnv(piece, n, tg_fnv(&len, 1, hash[special]));
        }
    fprintf(f,
            "n_vocab %u\nbos %d\neos %d\nadd_bos %d\nadd_eos %d\npieces %016" PRIx64
            "\npieces_special %016" PRIx64 "\neog",
            info->n_vocab, info->bos, info->eos, info->add_bos, info->add_eos, hash[0], hash[1]);
    for (uint32_t i = 0; i < info->n_vocab; i++)
        if (ps_tokenizer_is_eog(t, (int32_t)i))
            fprintf(f, " %u", i);
    fputc('\n', f);
    fclose(f);
    unsigned wrong = strcmp(got, want_text) != 0;
    if (wrong)
        fprintf(stderr, "FAIL: %s: vocabulary is\n%sinstead of\n%s", file, got, want_text);
    free(got);
    free(piece);
    free(meta);
    return wrong;
}

/* All strings against NAME.ids. *out_n: strings compared. */
static inline unsigned tg_check(const ps_tokenizer *t, const char *name, unsigned *out_n) {
    char file[64];
    snprintf(file, sizeof file, "%s.ids", name);
    char *strings = tg_read("strings.txt"), *ids = tg_read(file), *s_at = strings, *i_at = ids, *s, *want;
    unsigned wrong = tg_check_meta(t, name);
    *out_n = 0;
    while ((s = tg_line(&s_at)) != NULL && (want = tg_line(&i_at)) != NULL) {
        uint64_t len = tg_unescape(s);
        wrong += tg_check_string(t, file, ++*out_n, s, len, want);
    }
    if (s != NULL || tg_line(&i_at) != NULL) {
        fprintf(stderr, "FAIL: %s: not as many lines as strings.txt\n", file);
        wrong++;
    }
    free(strings);
    free(ids);
    return wrong;
}

/* Texts with their place, for the vocabulary below. */
static inline int tg_by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The vocabulary of merges.txt under a pre-tokenizer, as write_vocab of make.py makes it. */
static inline void tg_build_vocab(gguf_build *b, const char *pre) {
    static const char *const special[8] = {"Hello",
                                           "\xC4\xA0world",
                                           "fooBar",
                                           "\xC4\xA0quick",
                                           "\xC3\x83\xC5\x83\xC3\xA2\xC4\xA6\xC2\xA2",
                                           "<|endoftext|>",
                                           "<b>",
                                           "</b>"};
    char *text = tg_read("merges.txt"), *at = text, *line;
    size_t n = 0, cap = 1 << 16, n_tokens = 0;
    char **merges = (char **)malloc(cap * sizeof *merges), **joined = (char **)malloc(cap * sizeof *joined);
    char **tokens = (char **)malloc(cap * sizeof *tokens);
    if (merges == NULL || joined == NULL || tokens == NULL)
        abort();
    while ((line = tg_line(&at)) != NULL && n < cap) {
        merges[n] = line;
        joined[n] = strdup(line);
        char *space = strchr(joined[n] + 1, ' ');
        memmove(space, space + 1, strlen(space));
        n++;
    }
    qsort(joined, n, sizeof *joined, tg_by_text);
    for (size_t i = 0; i < n; i++) {
        bool again = i > 0 && strcmp(joined[i], joined[i - 1]) == 0;
        for (int k = 0; k < 8; k++)
            again = again || strcmp(joined[i], special[k]) == 0;
        if (!again)
            tokens[n_tokens++] = joined[i];
    }
    gb_head(b, 3, 0, 7);
    gb_kv_str(b, "tokenizer.ggml.model", "gpt2");
    gb_kv_str(b, "tokenizer.ggml.pre", pre);
    gb_kv_array(b, "tokenizer.ggml.tokens", 8, 256 + n_tokens + 8);
    for (unsigned byte = 0, next = 256; byte < 256; byte++) {
        bool own = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
        unsigned cp = own ? byte : next++;
        char utf8[3] = {(char)cp, 0, 0};
        if (cp >= 0x80) {
            utf8[0] = (char)(0xC0 | cp >> 6);
            utf8[1] = (char)(0x80 | (cp & 0x3F));
        }
        gb_str(b, utf8);
    }
    for (size_t i = 0; i < n_tokens; i++)
        gb_str(b, tokens[i]);
    for (int k = 0; k < 8; k++)
        gb_str(b, special[k]);
    gb_kv_array(b, "tokenizer.ggml.token_type", 5, 256 + n_tokens + 8);
    for (size_t i = 0; i < 256 + n_tokens + 5; i++)
        gb_u32(b, 1);
    gb_u32(b, 3);
    gb_u32(b, 4);
    gb_u32(b, 4);
    gb_kv_array(b, "tokenizer.ggml.merges", 8, n);
    for (size_t i = 0; i < n; i++)
        gb_str(b, merges[i]);
    gb_kv_u32(b, "tokenizer.ggml.bos_token_id", (uint32_t)(256 + n_tokens + 5));
    gb_kv_u32(b, "tokenizer.ggml.eos_token_id", (uint32_t)(256 + n_tokens + 5));
    for (size_t i = 0; i < n; i++)
        free(joined[i]);
    free(joined);
    free(merges);
    free(tokens);
    free(text);
}

#endif
