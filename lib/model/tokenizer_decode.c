/* Token ids to bytes: single pieces, whole sequences, and the UTF-8 hold-back for streaming. */
#include <stdlib.h>

#include "core/checked.h"
#include "model/tokenizer_internal.h"

/* Bytes go to buf while there is room and are counted all the same. */
typedef struct sink {
    char *buf;
    uint64_t cap, n;
} sink;

static void put(sink *out, const char *s, uint64_t len) {
    if (out->n < out->cap) {
        uint64_t room = out->cap - out->n;
        memcpy(out->buf + out->n, s, (size_t)(len < room ? len : room));
    }
    out->n += len;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* "<0x41>" -> 'A'; the vocabulary was checked to hold digits there. */
static char byte_of(ps_str text) {
    return (char)(hex_digit(text.data[3]) << 4 | hex_digit(text.data[4]));
}

static void put_unescaped(sink *out, ps_str text) {
    const char *s = text.data, *end = text.data + text.len;
    while (s < end) {
        const char *mark = memchr(s, 0xE2, (size_t)(end - s));
        if (mark == NULL)
            mark = end;
        put(out, s, (uint64_t)(mark - s));
        s = mark;
        if (s == end)
            break;
        bool space = end - s >= 3 && memcmp(s, "\xE2\x96\x81", 3) == 0;
        put(out, space ? " " : s, 1);
        s += space ? 3 : 1;
    }
}

/* Byte-level BPE writes each byte as a character. One that stands for no byte shows as llama.cpp shows it. */
static void put_bytes_of(sink *out, ps_str text) {
    static const char hex[] = "0123456789abcdef";
    for (uint64_t i = 0; i < text.len;) {
        uint32_t took, cp = ps_utf8_decode((const uint8_t *)text.data + i, text.len - i, &took);
        int byte = ps_cp_to_byte(cp);
        i += took;
        if (byte >= 0) {
            char c = (char)byte;
            put(out, &c, 1);
            continue;
        }
        uint8_t utf8[4];
        uint32_t n = ps_utf8_encode(cp, utf8);
        put(out, "[UNK_BYTE_0x", 12);
        for (uint32_t k = 0; k < n; k++) {
            char digits[2] = {hex[utf8[k] >> 4], hex[utf8[k] & 15]};
            put(out, digits, 2);
        }
        put(out, text.data, text.len);
        put(out, "]", 1);
    }
}

uint64_t ps_tokenizer_piece(const ps_tokenizer *t, int32_t token, bool special, char *buf, uint64_t cap) {
    sink out = {buf, cap, 0};
    uint32_t attr = ps_tokenizer_attr(t, token);
    ps_str text = ps_tokenizer_text(t, token);
    if (attr & (PS_TOKEN_CONTROL | PS_TOKEN_UNKNOWN)) {
        if (special)
            put(&out, text.data, text.len);
    } else if (attr & PS_TOKEN_USER_DEFINED) {
        put(&out, text.data, text.len);
    } else if (attr & PS_TOKEN_NORMAL) {
        if (t->spm)
            put_unescaped(&out, text);
        else
            put_bytes_of(&out, text);
    } else if (attr & PS_TOKEN_BYTE) {
        char c = byte_of(text);
        put(&out, &c, 1);
    }
    return out.n;
}

uint64_t ps_tokenizer_max_piece(const ps_tokenizer *t) {
    return t->max_piece;
}

/* The three passes that llama.cpp makes over the text of models with clean_spaces, in place; each keeps the
 * first byte as it is and looks at the input of the pass. Returns the new length. */
static uint64_t drop_before_punct(char *s, uint64_t n) {
    uint64_t to = n != 0;
    char before = n != 0 ? s[0] : 0;
    for (uint64_t i = 1; i < n; i++) {
        char c = s[i];
        if (before == ' ' && (c == '?' || c == '!' || c == '.' || c == ','))
            to--;
        s[to++] = before = c;
    }
    return to;
}

/* " ' " loses both spaces. */
static uint64_t drop_around_quote(char *s, uint64_t n) {
    uint64_t to = n != 0;
    char before = n != 0 ? s[0] : 0;
    for (uint64_t i = 1; i < n; i++) {
        char c = s[i];
        if (c == '\'' && i + 1 < n && before == ' ' && s[i + 1] == ' ') {
            to--;
            i++;
            before = 0;
        } else {
            before = c;
        }
        s[to++] = c;
    }
    return to;
}

/* " 's", " 'm", " 're", " 've" lose the space. */
static uint64_t drop_before_suffix(char *s, uint64_t n) {
    uint64_t to = n != 0;
    char before = n != 0 ? s[0] : 0;
    for (uint64_t i = 1; i < n; i++) {
        char c = s[i], a = i + 1 < n ? s[i + 1] : 0, b = i + 2 < n ? s[i + 2] : 0;
        if (before == ' ' && c == '\'' && (a == 's' || a == 'm' || ((a == 'r' || a == 'v') && b == 'e')))
            to--;
        s[to++] = before = c;
    }
    return to;
}

ps_status ps_tokenizer_decode(const ps_tokenizer *t, const int32_t *tokens, uint64_t n, uint32_t flags,
                              char **out_text, uint64_t *out_len, ps_error *err) {
    const ps_tokenizer_info *info = &t->info;
    bool strip = info->add_space_prefix, special = (flags & PS_DECODE_SHOW_SPECIAL) != 0;
    for (uint64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= info->n_vocab)
            return ps_error_set(err, PS_E_USAGE, "tokens", "%d is outside the vocabulary of %u", tokens[i],
                                info->n_vocab);
    if ((flags & PS_DECODE_REMOVE_SPECIAL) && info->add_bos && n != 0 && tokens[0] == info->bos) {
        strip = false;
        tokens++;
        n--;
    }
    if ((flags & PS_DECODE_REMOVE_SPECIAL) && info->add_eos && n != 0 && tokens[n - 1] == info->eos)
        n--;
    uint64_t size = 1, at = 0;
    for (uint64_t i = 0; i < n; i++)
        if (!ps_add_u64(size, ps_tokenizer_piece(t, tokens[i], special, NULL, 0), &size))
            return ps_error_set(err, PS_E_NOMEM, "tokens", "text too long");
    char *text = size > SIZE_MAX ? NULL : malloc((size_t)size);
    if (text == NULL)
        return ps_error_set(err, PS_E_NOMEM, "tokens", "no memory for %llu bytes of text",
                            (unsigned long long)size);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len = ps_tokenizer_piece(t, tokens[i], special, text + at, size - at);
        if (i == 0 && strip && len != 0 && text[0] == ' ')
            memmove(text, text + 1, (size_t)--len);
        at += len;
    }
    if (info->clean_spaces)
        at = drop_before_suffix(text, drop_around_quote(text, drop_before_punct(text, at)));
    text[at] = 0;
    *out_text = text;
    *out_len = at;
    return PS_OK;
}

/* Bytes of a character that begins with this lead, 1 for what begins none. */
static uint32_t wanted(uint8_t lead) {
    return lead >= 0xC2 && lead < 0xE0   ? 2
           : lead >= 0xE0 && lead < 0xF0 ? 3
           : lead >= 0xF0 && lead < 0xF5 ? 4
                                         : 1;
}

uint64_t ps_utf8_stream_push(ps_utf8_stream *s, const char *piece, uint64_t len, char *out) {
    uint64_t n = s->n + len;
    memcpy(out, s->tail, s->n);
    if (len != 0)
        memmove(out + s->n, piece, (size_t)len);
    s->n = 0;
    /* An unfinished character can only be among the last three bytes. */
    for (uint32_t back = 1; back <= PS_UTF8_TAIL_BYTES && back <= n; back++) {
        uint8_t c = (uint8_t)out[n - back];
        if ((c & 0xC0) == 0x80)
            continue;
        if (wanted(c) > back) {
            memcpy(s->tail, out + n - back, back);
            s->n = back;
        }
        break;
    }
    return n - s->n;
}

uint64_t ps_utf8_stream_flush(ps_utf8_stream *s, char *out) {
    uint64_t n = s->n;
    memcpy(out, s->tail, (size_t)n);
    s->n = 0;
    return n;
}
