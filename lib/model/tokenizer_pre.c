/* Pre-tokenizers: which pieces of a text byte-level BPE may merge inside.
 *
 * Each row of the table is a list of stages, and each stage cuts the pieces of the one before it. A stage is
 * a function from a position to the end of the piece that starts there, so splitting takes no memory. They
 * follow what llama.cpp does for the model's regular expression rather than the expression itself; where the
 * two differ it is said. */
#include "model/tokenizer_internal.h"

/* A code point with its class; past the end: class AT_END. */
enum { AT_END = -1 };

typedef struct glyph {
    uint32_t cp, len;
    int class; /* ps_cpclass or AT_END */
} glyph;

static glyph glyph_at(const ps_split_text *text, uint64_t pos, uint64_t end) {
    glyph g = {UINT32_MAX, 0, AT_END};
    if (pos < end) {
        g.cp = ps_utf8_decode(text->s + pos, end - pos, &g.len);
        g.class = (int)ps_cp_class(g.cp);
    }
    return g;
}

static uint32_t lower_ascii(uint32_t cp) {
    return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
}

static bool is_newline(uint32_t cp) {
    return cp == '\r' || cp == '\n';
}

/* End of the run of `class` from pos on. */
static uint64_t run_of(const ps_split_text *text, uint64_t pos, uint64_t end, int class) {
    for (;;) {
        glyph g = glyph_at(text, pos, end);
        if (g.class != class)
            return pos;
        pos += g.len;
    }
}

/* Bytes of an English contraction that begins with g at pos ("'s", "'re"), 0 if there is none. */
static uint64_t contraction(const ps_split_text *text, uint64_t pos, uint64_t end, glyph g, bool any_case) {
    if (g.cp != '\'')
        return 0;
    glyph x = glyph_at(text, pos + g.len, end), y = glyph_at(text, pos + g.len + x.len, end);
    uint32_t a = any_case ? lower_ascii(x.cp) : x.cp, b = any_case ? lower_ascii(y.cp) : y.cp;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return g.len + x.len;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return g.len + x.len + y.len;
    return 0;
}

/* White space from pos on: \s+(?!\S) leaves the last one to the word that follows, unless it is alone. */
static uint64_t space_run(const ps_split_text *text, uint64_t pos, uint64_t end) {
    uint64_t last = pos, at = pos;
    uint32_t n = 0;
    for (;; n++) {
        glyph g = glyph_at(text, at, end);
        if (g.class != PS_CP_SPACE)
            return g.class != AT_END && n > 1 ? last : at;
        last = at;
        at += g.len;
    }
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static uint64_t split_gpt2(const ps_split_text *text, uint64_t pos, uint64_t end) {
    glyph g = glyph_at(text, pos, end);
    uint64_t n = contraction(text, pos, end, g, false);
    if (n != 0)
        return pos + n;
    if (g.cp == ' ') {
        glyph after = glyph_at(text, pos + g.len, end);
        if (after.class != PS_CP_SPACE && after.class != AT_END) {
            pos += g.len;
            g = after;
        }
    }
    if (g.class == PS_CP_SPACE)
        return space_run(text, pos, end);
    if (g.class == PS_CP_LETTER || g.class == PS_CP_NUMBER)
        return run_of(text, pos, end, g.class);
    while (g.class != AT_END && g.class != PS_CP_SPACE && g.class != PS_CP_LETTER &&
           g.class != PS_CP_NUMBER) {
        pos += g.len;
        g = glyph_at(text, pos, end);
    }
    return pos;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+      with `marks`, \p{M} counts as a letter. */
static uint64_t split_llama3_like(const ps_split_text *text, uint64_t pos, uint64_t end, uint32_t max_digits,
                                  bool marks) {
    glyph g = glyph_at(text, pos, end);
    uint64_t n = contraction(text, pos, end, g, true);
    if (n != 0)
        return pos + n;
    glyph after = glyph_at(text, pos + g.len, end);
#define WORDY(x) ((x).class == PS_CP_LETTER || (marks && (x).class == PS_CP_MARK))
    if (!is_newline(g.cp) && g.class != PS_CP_NUMBER && (WORDY(g) || WORDY(after))) {
        pos += g.len;
        for (g = after; WORDY(g); g = glyph_at(text, pos, end))
            pos += g.len;
        return pos;
    }
    if (g.class == PS_CP_NUMBER) {
        for (uint32_t i = 0; i < max_digits && g.class == PS_CP_NUMBER; i++) {
            pos += g.len;
            g = glyph_at(text, pos, end);
        }
        return pos;
    }
    if (g.cp == ' ' && after.class != PS_CP_SPACE && after.class != PS_CP_NUMBER && after.class != AT_END) {
        pos += g.len;
        g = after;
    }
    if (g.class != PS_CP_SPACE) {
        while (g.class != AT_END && g.class != PS_CP_SPACE && g.class != PS_CP_NUMBER && !WORDY(g)) {
            pos += g.len;
            g = glyph_at(text, pos, end);
        }
        for (; is_newline(g.cp); g = glyph_at(text, pos, end))
            pos += g.len;
        return pos;
    }
#undef WORDY
    uint64_t newline_end = 0;
    for (uint64_t at = pos; g.class == PS_CP_SPACE; g = glyph_at(text, at, end)) {
        at += g.len;
        if (is_newline(g.cp))
            newline_end = at;
    }
    return newline_end != 0 ? newline_end : space_run(text, pos, end);
}

static uint64_t split_llama3(const ps_split_text *text, uint64_t pos, uint64_t end) {
    return split_llama3_like(text, pos, end, 3, false);
}

static uint64_t split_qwen2(const ps_split_text *text, uint64_t pos, uint64_t end) {
    return split_llama3_like(text, pos, end, 1, false);
}

static uint64_t split_qwen35(const ps_split_text *text, uint64_t pos, uint64_t end) {
    return split_llama3_like(text, pos, end, 1, true);
}

/* Stages that set matches apart and leave what is between them whole. */
typedef bool (*member_fn)(const glyph *g);

static uint64_t isolate(const ps_split_text *text, uint64_t pos, uint64_t end, member_fn member,
                        uint64_t max_run) {
    glyph g = glyph_at(text, pos, end);
    bool in = member(&g);
    for (uint64_t n = 0; g.class != AT_END && member(&g) == in && (!in || n < max_run); n++) {
        pos += g.len;
        g = glyph_at(text, pos, end);
    }
    return pos;
}

static bool is_number(const glyph *g) {
    return g->class == PS_CP_NUMBER;
}

static bool is_line_feed(const glyph *g) {
    return g->cp == '\n';
}

/* [\p{P}$+<=>^~|]; Falcon's has the backtick too, which leaves no symbol of ASCII out. */
static bool is_punct_default(const glyph *g) {
    return g->class == PS_CP_PUNCT || (g->class == PS_CP_SYMBOL && g->cp < 0x80 && g->cp != '`');
}

static bool is_punct_falcon(const glyph *g) {
    return g->class == PS_CP_PUNCT || (g->class == PS_CP_SYMBOL && g->cp < 0x80);
}

static uint64_t split_digits(const ps_split_text *text, uint64_t pos, uint64_t end) {
    return isolate(text, pos, end, is_number, 1);
}

static uint64_t split_numbers(const ps_split_text *text, uint64_t pos, uint64_t end) {
    return isolate(text, pos, end, is_number, UINT64_MAX);
}

static uint64_t split_lines(const ps_split_text *text, uint64_t pos, uint64_t end) {
    return isolate(text, pos, end, is_line_feed, UINT64_MAX);
}

static uint64_t split_punct_default(const ps_split_text *text, uint64_t pos, uint64_t end) {
    return isolate(text, pos, end, is_punct_default, UINT64_MAX);
}

static uint64_t split_punct_falcon(const ps_split_text *text, uint64_t pos, uint64_t end) {
    return isolate(text, pos, end, is_punct_falcon, UINT64_MAX);
}

/* Bytes of three ASCII digits at pos, 0 if there are fewer. */
static uint64_t triple_at(const ps_split_text *text, uint64_t pos, uint64_t end) {
    uint64_t at = pos;
    for (uint32_t i = 0; i < 3; i++) {
        glyph g = glyph_at(text, at, end);
        if (g.class == AT_END || g.cp < '0' || g.cp > '9')
            return 0;
        at += g.len;
    }
    return at - pos;
}

/* [0-9][0-9][0-9] set apart */
static uint64_t split_triples(const ps_split_text *text, uint64_t pos, uint64_t end) {
    uint64_t n = triple_at(text, pos, end);
    if (n != 0)
        return pos + n;
    do
        pos += glyph_at(text, pos, end).len;
    while (pos < end && triple_at(text, pos, end) == 0);
    return pos;
}

/* Name, stages, a word that is a token is that token, bos by default, clean spaces. */
static const ps_pre pre_table[] = {
    {"default", {split_punct_default, split_gpt2, split_numbers, split_triples}, false, false, true},
    {"falcon", {split_punct_falcon, split_gpt2, split_triples}, false, false, true},

    {"gpt-2", {split_gpt2}, false, false, true},
    {"phi-2", {split_gpt2}, false, false, true},
    {"mpt", {split_gpt2}, false, false, true},
    {"olmo", {split_gpt2}, false, false, true},
    {"jais", {split_gpt2}, false, false, true},
    {"exaone4", {split_gpt2}, false, false, true},
    {"gigachat", {split_gpt2}, false, false, true},
    {"a.x-4.0", {split_gpt2}, false, false, true},
    {"mellum", {split_gpt2}, false, false, true},
    {"trillion", {split_gpt2}, false, false, false},
    {"granite-docling", {split_gpt2}, false, false, false},

    {"smollm", {split_digits, split_gpt2}, false, false, false},
    {"command-r", {split_digits, split_gpt2}, false, false, false},
    {"starcoder", {split_digits, split_gpt2}, false, false, true},
    {"refact", {split_digits, split_gpt2}, false, false, true},
    {"codeshell", {split_digits, split_gpt2}, false, false, true},
    {"exaone", {split_digits, split_gpt2}, false, false, true},
    {"minerva-7b", {split_digits, split_gpt2}, false, false, true},
    {"mellum2", {split_digits, split_gpt2}, false, false, true},

    {"llama-bpe", {split_llama3}, true, true, true},
    {"llama3", {split_llama3}, true, true, true},
    {"llama-v3", {split_llama3}, true, true, true},
    {"falcon3", {split_llama3}, true, true, true},
    {"falcon-h1", {split_llama3}, true, true, true},
    {"pixtral", {split_llama3}, true, true, true},
    {"midm-2.0", {split_llama3}, true, true, true},
    {"lfm2", {split_llama3}, true, true, true},
    {"glm4", {split_llama3}, true, false, true},
    {"glm5", {split_llama3}, true, false, true},
    {"chatglm-bpe", {split_llama3}, false, false, true},
    {"dbrx", {split_llama3}, false, false, true},
    {"smaug-bpe", {split_llama3}, false, false, true},

    {"qwen2", {split_qwen2}, false, false, false},
    {"deepseek-r1-qwen", {split_qwen2}, false, false, false},
    {"kormo", {split_qwen2}, false, false, false},
    {"f2llmv2", {split_qwen2}, false, false, false},
    {"hunyuan", {split_qwen2}, false, false, false},
    {"solar-open", {split_qwen2}, false, false, false},
    {"grok-2", {split_qwen2}, false, false, false},
    {"stablelm2", {split_qwen2}, false, false, true},
    {"megrez", {split_qwen2}, false, false, true},
    {"laguna", {split_lines, split_qwen2}, false, false, false},
    {"qwen35", {split_qwen35}, false, false, false},
};

enum { N_PRE = sizeof pre_table / sizeof pre_table[0] };

const ps_pre *ps_pre_find(ps_str name) {
    for (uint32_t i = 0; i < N_PRE; i++)
        if (strlen(pre_table[i].name) == name.len && memcmp(pre_table[i].name, name.data, name.len) == 0)
            return &pre_table[i];
    return NULL;
}

const char *ps_tokenizer_pre_name(uint32_t i) {
    return i < N_PRE ? pre_table[i].name : NULL;
}

/* Byte-level BPE writes bytes as printable characters: those of Latin-1 that are printable stand for
 * themselves, the others for U+0100 onwards in order. */
static bool stands_for_itself(uint32_t b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

uint32_t ps_byte_to_cp(uint8_t byte) {
    if (stands_for_itself(byte))
        return byte;
    return byte <= 0x20 ? 0x100U + byte : byte <= 0xA0 ? 0x100U + byte - 0x7F + 0x21 : 0x100U + 0x43;
}

int ps_cp_to_byte(uint32_t cp) {
    if (cp <= 0xFF)
        return stands_for_itself(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}
