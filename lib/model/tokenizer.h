/* Tokenizers of GGUF files: text to token ids and back, equal to llama.cpp's.
 *
 * Two models: `gpt2` (byte-level BPE behind a pre-tokenizer, tokenizer.ggml.pre) and `llama`
 * (SentencePiece: merges by score, bytes as fallback). A model or pre-tokenizer that is not in the tables is
 * refused by name.
 *
 *   text -> special tokens cut out (longest first) -> the rest: words (pre-tokenizer) -> bytes -> merges
 *
 * A ps_tokenizer points into the GGUF mapping (token texts, scores), so the ps_gguf must outlive it. It is
 * immutable once open: any thread may use it. Memory is bounded by a constant times the vocabulary's bytes in
 * the file, and for encoding by a constant times the text (up to 40 bytes a byte of the longest unbroken
 * piece). Encoding n bytes takes O(n log n). */
#ifndef PS_MODEL_TOKENIZER_H
#define PS_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "model/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_tokenizer ps_tokenizer;

enum {
    PS_TOKEN_NONE = -1,
    PS_TOKEN_MAX_BYTES = 4096,     /* longer tokens are refused */
    PS_ENCODE_MAX_BYTES = 1 << 30, /* longer texts are refused */
    PS_UTF8_TAIL_BYTES = 3         /* most bytes a ps_utf8_stream holds back */
};

/* Attributes of a token, a set. */
typedef enum ps_token_attr {
    PS_TOKEN_UNKNOWN = 1,      /* stands for what cannot be encoded; hidden in text */
    PS_TOKEN_NORMAL = 2,       /* a piece of text */
    PS_TOKEN_CONTROL = 4,      /* steers the model, never text: found only when special tokens are parsed */
    PS_TOKEN_USER_DEFINED = 8, /* text that is always one token */
    PS_TOKEN_BYTE = 16,        /* "<0xXX>": one byte */
    PS_TOKEN_RSTRIP = 32       /* swallows white space after it */
} ps_token_attr;

/* Ids are PS_TOKEN_NONE where the vocabulary has no such token. */
typedef struct ps_tokenizer_info {
    const char *model; /* "gpt2", "llama" */
    const char *pre;   /* row of the pre-tokenizer table, "" for llama */
    uint32_t n_vocab;
    uint32_t n_special; /* tokens that are cut out of text before merging: control, user-defined, unknown */
    uint32_t max_token_bytes;
    int32_t bos, eos, eot, eom, unk, pad;
    bool add_bos, add_eos; /* what PS_ENCODE_ADD_SPECIAL adds */
    bool add_space_prefix; /* llama: text after nothing or after a special token gets a space before it */
    bool clean_spaces;     /* ps_tokenizer_decode takes spaces before punctuation out (old BPE models) */
} ps_tokenizer_info;

/* Open the vocabulary of a GGUF. gguf is borrowed and must outlive the tokenizer.
 * Errors name the key: PS_E_DATA (missing, of a wrong type or length, duplicate token, malformed merge, id
 * outside the vocabulary), PS_E_UNSUPPORTED (model or pre-tokenizer not in the tables), PS_E_NOMEM. */
ps_status ps_tokenizer_open(const ps_gguf *gguf, ps_tokenizer **out, ps_error *err);
void ps_tokenizer_close(ps_tokenizer *t);
const ps_tokenizer_info *ps_tokenizer_get_info(const ps_tokenizer *t);

/* Text of a token as it stands in the vocabulary (byte-level BPE: encoded), {NULL, 0} if out of range. */
ps_str ps_tokenizer_text(const ps_tokenizer *t, int32_t token);
/* ps_token_attr bits, 0 if out of range. */
uint32_t ps_tokenizer_attr(const ps_tokenizer *t, int32_t token);
float ps_tokenizer_score(const ps_tokenizer *t, int32_t token);
/* Token whose text is exactly these bytes, e.g. "<|im_start|>"; PS_TOKEN_NONE if there is none. */
int32_t ps_tokenizer_find(const ps_tokenizer *t, const char *text, uint64_t len);
/* True if generation ends with this token (eos, eot and their kin). */
bool ps_tokenizer_is_eog(const ps_tokenizer *t, int32_t token);

/* Growing list of ids; start with {0}. */
typedef struct ps_tokens {
    int32_t *ids; /* from malloc */
    uint64_t n, cap;
} ps_tokens;
void ps_tokens_free(ps_tokens *tokens);

enum {
    PS_ENCODE_ADD_SPECIAL = 1,  /* bos and eos as the model wants them */
    PS_ENCODE_PARSE_SPECIAL = 2 /* control tokens written in the text become those tokens */
};

/* Append the tokens of text[0..len) (any bytes) to *out. On an error *out keeps what it held.
 * Bytes that are not UTF-8 are read as U+FFFD by byte-level BPE and kept as bytes by SentencePiece.
 * Errors: PS_E_USAGE (too long), PS_E_NOMEM. Any thread. */
ps_status ps_tokenizer_encode(const ps_tokenizer *t, const char *text, uint64_t len, uint32_t flags,
                              ps_tokens *out, ps_error *err);

/* Bytes of one token, for streaming: not always whole UTF-8. Without `special`, control and unknown tokens
 * are empty. Writes at most cap bytes and returns how many there are; 0 for an id out of range. */
uint64_t ps_tokenizer_piece(const ps_tokenizer *t, int32_t token, bool special, char *buf, uint64_t cap);
/* Most bytes that ps_tokenizer_piece gives for any token. */
uint64_t ps_tokenizer_max_piece(const ps_tokenizer *t);

enum {
    PS_DECODE_REMOVE_SPECIAL = 1, /* leave out a bos or eos that encoding would have added */
    PS_DECODE_SHOW_SPECIAL = 2    /* write control tokens as text */
};

/* Text of a whole sequence, with the space prefix taken off and spaces cleaned where the model says so.
 * On PS_OK the caller frees *out_text (NUL after the last byte). Errors: PS_E_USAGE (id out of range),
 * PS_E_NOMEM. */
ps_status ps_tokenizer_decode(const ps_tokenizer *t, const int32_t *tokens, uint64_t n, uint32_t flags,
                              char **out_text, uint64_t *out_len, ps_error *err);

/* Holds back a UTF-8 sequence that the next piece may complete; start with {0}. */
typedef struct ps_utf8_stream {
    uint8_t tail[PS_UTF8_TAIL_BYTES];
    uint32_t n;
} ps_utf8_stream;
/* Append a piece and move what can be shown now to out (room for len + PS_UTF8_TAIL_BYTES); bytes that can
 * never become UTF-8 pass through. Returns the bytes written. */
uint64_t ps_utf8_stream_push(ps_utf8_stream *s, const char *piece, uint64_t len, char *out);
/* What is left at the end of a text; out has room for PS_UTF8_TAIL_BYTES. */
uint64_t ps_utf8_stream_flush(ps_utf8_stream *s, char *out);

/* Name of row i of the pre-tokenizer table, NULL past the last. */
const char *ps_tokenizer_pre_name(uint32_t i);

#ifdef __cplusplus
}
#endif
#endif
