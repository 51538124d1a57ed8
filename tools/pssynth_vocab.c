/* A small made-up vocabulary: every byte, common English words and their beginnings, then letter strings.
 *
 * Byte-level BPE for llama and qwen3: each token longer than a byte has the one merge that makes it.
 * SentencePiece for gemma3: scores fall with the token number, so earlier pieces merge first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pssynth.h"

enum { MAX_PIECE = 32, N_BYTES = 256 };

/* Metadata types of GGUF. */
enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9 };
/* Token types of GGUF. */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_BYTE = 6 };

void synth_put_u32(ps_text *text, uint32_t v) {
    const uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    ps_text_put(text, b, 4);
}

void synth_put_u64(ps_text *text, uint64_t v) {
    synth_put_u32(text, (uint32_t)v);
    synth_put_u32(text, (uint32_t)(v >> 32));
}

void synth_put_str(ps_text *text, const char *s) {
    synth_put_u64(text, strlen(s));
    ps_text_put(text, s, strlen(s));
}

static void put_key(synth_keys *k, const char *key, uint32_t type) {
    synth_put_str(k->text, key);
    synth_put_u32(k->text, type);
    k->n++;
}

void synth_key_u32(synth_keys *k, const char *key, uint32_t v) {
    put_key(k, key, GGUF_U32);
    synth_put_u32(k->text, v);
}

void synth_key_f32(synth_keys *k, const char *key, float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    put_key(k, key, GGUF_F32);
    synth_put_u32(k->text, bits);
}

void synth_key_bool(synth_keys *k, const char *key, bool v) {
    put_key(k, key, GGUF_BOOL);
    ps_text_put(k->text, v ? "\1" : "\0", 1);
}

void synth_key_str(synth_keys *k, const char *key, const char *v) {
    put_key(k, key, GGUF_STRING);
    synth_put_str(k->text, v);
}

void synth_key_array(synth_keys *k, const char *key, uint32_t type, uint64_t count) {
    put_key(k, key, GGUF_ARRAY);
    synth_put_u32(k->text, type);
    synth_put_u64(k->text, count);
}

static const char *const words[] = {
    "the",   "of",    "and",   "to",    "in",    "is",     "that", "it",    "was",   "for",    "on",
    "are",   "as",    "with",  "his",   "they",  "at",     "be",   "this",  "have",  "from",   "or",
    "one",   "had",   "by",    "word",  "but",   "not",    "what", "all",   "were",  "we",     "when",
    "your",  "can",   "said",  "there", "use",   "an",     "each", "which", "she",   "do",     "how",
    "their", "if",    "will",  "up",    "other", "about",  "out",  "many",  "then",  "them",   "these",
    "so",    "some",  "her",   "would", "make",  "like",   "him",  "into",  "time",  "has",    "look",
    "two",   "more",  "write", "go",    "see",   "number", "no",   "way",   "could", "people", "my",
    "than",  "first", "water", "been",  "call",  "who",    "now",  "find",  "long",  "down",   "day",
};
enum { N_WORDS = sizeof words / sizeof words[0] };

/* The i-th string of small letters of length 2 and up, in order of length. */
static void letters(uint64_t i, char out[MAX_PIECE]) {
    uint64_t count = 26 * 26;
    int len = 2;
    while (i >= count) {
        i -= count;
        count *= 26;
        len++;
    }
    out[len] = '\0';
    while (len-- > 0) {
        out[len] = (char)('a' + i % 26);
        i /= 26;
    }
}

/* Longer tokens in the order of their merges: for each word " w", " wo", " wor", ... that is new, then
 * letter strings. Each is its predecessor without the last letter, plus that letter. */
typedef struct pieces {
    const char *space;  /* how a space is written */
    uint32_t word, len; /* next: the first `len` letters of words[word] */
    uint64_t letters;   /* then the letters-th string */
} pieces;

static bool is_new(uint32_t word, uint32_t len) {
    for (uint32_t i = 0; i < word; i++)
        if (strncmp(words[i], words[word], len) == 0)
            return false;
    return true;
}

static void next_piece(pieces *p, char out[MAX_PIECE]) {
    while (p->word < N_WORDS) {
        uint32_t word = p->word, len = ++p->len;
        if (words[word][len - 1] == '\0') {
            p->word++;
            p->len = 0;
        } else if (is_new(word, len)) {
            snprintf(out, MAX_PIECE, "%s%.*s", p->space, (int)len, words[word]);
            return;
        }
    }
    letters(p->letters++, out);
}

/* The printable character that stands for a byte in byte-level BPE (GPT-2's table), as UTF-8. */
static void byte_char(unsigned byte, char out[4]) {
    static const unsigned ranges[3][2] = {{33, 126}, {161, 172}, {174, 255}};
    unsigned code = 256;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = false;
        for (int r = 0; r < 3; r++)
            printable = printable || (b >= ranges[r][0] && b <= ranges[r][1]);
        if (b == byte && printable)
            code = byte;
        else if (b != byte && !printable)
            code++;
    }
    if (code < 128) {
        out[0] = (char)code;
        out[1] = '\0';
    } else {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        out[2] = '\0';
    }
}

typedef struct bpe_kind {
    unsigned archs;
    const char *pre;
    const char *specials[8]; /* the vocabulary's last tokens */
    uint32_t bos, eos;       /* index into specials */
    bool add_bos;
    const char *chat_template;
} bpe_kind;

static const bpe_kind bpe_kinds[] = {
    {SYNTH_LLAMA,
     "llama-bpe",
     {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     0,
     4,
     true,
     "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
     "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
    {SYNTH_QWEN3 | SYNTH_QWEN3MOE,
     "qwen2",
     {"<|endoftext|>", "<|im_start|>", "<|im_end|>"},
     0,
     2,
     false,
     "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
     "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif "
     "%}"},
};

static void bpe_vocab(synth_keys *k, const bpe_kind *kind, uint64_t n_vocab) {
    char piece[MAX_PIECE], byte[4];
    uint32_t n_special = 0;
    while (kind->specials[n_special] != NULL)
        n_special++;
    uint64_t n_merges = n_vocab - N_BYTES - n_special;
    const pieces start = {.space = "\xc4\xa0"}; /* U+0120 stands for a space */
    synth_key_str(k, "tokenizer.ggml.model", "gpt2");
    synth_key_str(k, "tokenizer.ggml.pre", kind->pre);
    synth_key_array(k, "tokenizer.ggml.tokens", GGUF_STRING, n_vocab);
    for (unsigned b = 0; b < N_BYTES; b++) {
        byte_char(b, byte);
        synth_put_str(k->text, byte);
    }
    pieces p = start;
    for (uint64_t i = 0; i < n_merges; i++) {
        next_piece(&p, piece);
        synth_put_str(k->text, piece);
    }
    for (uint32_t i = 0; i < n_special; i++)
        synth_put_str(k->text, kind->specials[i]);
    synth_key_array(k, "tokenizer.ggml.token_type", GGUF_I32, n_vocab);
    for (uint64_t i = 0; i < n_vocab; i++)
        synth_put_u32(k->text, i < n_vocab - n_special ? TOKEN_NORMAL : TOKEN_CONTROL);
    synth_key_array(k, "tokenizer.ggml.merges", GGUF_STRING, n_merges);
    p = start;
    for (uint64_t i = 0; i < n_merges; i++) {
        char merge[MAX_PIECE + 2];
        next_piece(&p, piece);
        int len = (int)strlen(piece);
        snprintf(merge, sizeof merge, "%.*s %c", len - 1, piece, piece[len - 1]);
        synth_put_str(k->text, merge);
    }
    uint32_t first = (uint32_t)(n_vocab - n_special);
    synth_key_u32(k, "tokenizer.ggml.bos_token_id", first + kind->bos);
    synth_key_u32(k, "tokenizer.ggml.eos_token_id", first + kind->eos);
    synth_key_bool(k, "tokenizer.ggml.add_bos_token", kind->add_bos);
    synth_key_str(k, "tokenizer.chat_template", kind->chat_template);
}

/* Tokens 0..5 special, 256 bytes, a space, the printable characters, then pieces. */
static void spm_vocab(synth_keys *k, uint64_t n_vocab) {
    static const char *const specials[] = {"<pad>", "<eos>",           "<bos>",
                                           "<unk>", "<start_of_turn>", "<end_of_turn>"};
    enum { N_SPECIAL = sizeof specials / sizeof specials[0], FIRST_CHAR = N_SPECIAL + N_BYTES, UNKNOWN = 3 };
    static const char space[] = "\xe2\x96\x81"; /* U+2581 */
    uint64_t n = 0;
    synth_key_str(k, "tokenizer.ggml.model", "llama");
    synth_key_array(k, "tokenizer.ggml.tokens", GGUF_STRING, n_vocab);
    char piece[MAX_PIECE];
    for (; n < N_SPECIAL; n++)
        synth_put_str(k->text, specials[n]);
    for (unsigned b = 0; b < N_BYTES; b++, n++) {
        snprintf(piece, sizeof piece, "<0x%02X>", b);
        synth_put_str(k->text, piece);
    }
    synth_put_str(k->text, space);
    n++;
    for (char c = '!'; c <= '~'; c++, n++) {
        const char one[2] = {c, '\0'};
        synth_put_str(k->text, one);
    }
    pieces p = {.space = space};
    for (; n < n_vocab; n++) {
        next_piece(&p, piece);
        synth_put_str(k->text, piece);
    }
    synth_key_array(k, "tokenizer.ggml.scores", GGUF_F32, n_vocab);
    for (uint64_t i = 0; i < n_vocab; i++) {
        float score = i < FIRST_CHAR ? 0.0f : -(float)(i - FIRST_CHAR);
        uint32_t bits;
        memcpy(&bits, &score, 4);
        synth_put_u32(k->text, bits);
    }
    synth_key_array(k, "tokenizer.ggml.token_type", GGUF_I32, n_vocab);
    for (uint64_t i = 0; i < n_vocab; i++)
        synth_put_u32(k->text, i == UNKNOWN     ? TOKEN_UNKNOWN
                               : i < N_SPECIAL  ? TOKEN_CONTROL
                               : i < FIRST_CHAR ? TOKEN_BYTE
                                                : TOKEN_NORMAL);
    synth_key_u32(k, "tokenizer.ggml.bos_token_id", 2);
    synth_key_u32(k, "tokenizer.ggml.eos_token_id", 1);
    synth_key_u32(k, "tokenizer.ggml.unknown_token_id", UNKNOWN);
    synth_key_u32(k, "tokenizer.ggml.padding_token_id", 0);
    synth_key_bool(k, "tokenizer.ggml.add_bos_token", true);
    synth_key_bool(k, "tokenizer.ggml.add_eos_token", false);
    synth_key_bool(k, "tokenizer.ggml.add_space_prefix", false);
    synth_key_str(
        k, "tokenizer.chat_template",
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('user and assistant must take turns') }}{% endif %}"
        "{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}"
        "{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}");
}

ps_status synth_vocab(synth_keys *k, synth_arch arch, uint64_t n_vocab, bool none, ps_error *err) {
    if (none) {
        synth_key_str(k, "tokenizer.ggml.model", "no_vocab");
        return PS_OK;
    }
    if (arch == SYNTH_GEMMA3) {
        spm_vocab(k, n_vocab);
        return PS_OK;
    }
    for (size_t i = 0; i < sizeof bpe_kinds / sizeof bpe_kinds[0]; i++)
        if ((bpe_kinds[i].archs & (unsigned)arch) != 0) {
            bpe_vocab(k, &bpe_kinds[i], n_vocab);
            return PS_OK;
        }
    return ps_error_set(err, PS_E_INTERNAL, synth_arch_name(arch), "has no vocabulary");
}
