/* What the files of the tokenizer share; nobody else includes it. */
#ifndef PS_MODEL_TOKENIZER_INTERNAL_H
#define PS_MODEL_TOKENIZER_INTERNAL_H

#include <string.h>

#include "core/arena.h"
#include "model/tokenizer.h"
#include "model/unicode_class.h"

enum { PS_ID_NONE = UINT32_MAX, PS_PRE_MAX_STAGES = 4 };

/* Strings -> their index, open addressing, sized once. */
typedef struct ps_strtab {
    const ps_str *text; /* [n] */
    uint64_t *slots;    /* hash tag in the upper half, index + 1 in the lower; 0 is empty */
    uint64_t mask;
    uint32_t n;
} ps_strtab;

uint64_t ps_strtab_hash(const char *s, uint64_t len);
/* Slots for up to `cap` strings. False when out of memory. */
bool ps_strtab_init(ps_strtab *tab, ps_arena *arena, uint64_t cap);
/* PS_ID_NONE if absent. */
uint32_t ps_strtab_find(const ps_strtab *tab, const char *s, uint64_t len);
/* Add tab->text[index], whose text is not in the table. The index in place if it is there already,
 * `index` if added, PS_ID_NONE when the table is degenerate (thousands of colliding strings). */
uint32_t ps_strtab_add(ps_strtab *tab, uint32_t index);
/* Add texts 0 to n - 1. n, or the first that could not be added, *out_at being what ps_strtab_add says of it. */
uint32_t ps_strtab_fill(ps_strtab *tab, uint32_t n, uint32_t *out_at);

/* One stage of a pre-tokenizer: the end of the piece that begins at pos, pos < result <= end. */
typedef struct ps_split_text {
    const uint8_t *s;
} ps_split_text;
typedef uint64_t (*ps_split_fn)(const ps_split_text *text, uint64_t pos, uint64_t end);

typedef struct ps_pre {
    const char *name;
    ps_split_fn stage[PS_PRE_MAX_STAGES]; /* each cuts the pieces of the one before; NULL after the last */
    bool ignore_merges;                   /* a word that is a token is that token, whatever the merges say */
    bool add_bos;                         /* default where the file does not say */
    bool clean_spaces;
} ps_pre;

/* NULL if the table has no such row. */
const ps_pre *ps_pre_find(ps_str name);

/* Merge `rank` turns (left, right) into result; ids of the vocabulary, or n_vocab + index into extras. */
typedef struct ps_merge {
    uint32_t left, right, result;
} ps_merge;

struct ps_tokenizer {
    ps_arena *arena;
    ps_tokenizer_info info;
    bool spm;
    ps_strtab vocab;
    uint8_t *attr;         /* [n_vocab] ps_token_attr bits */
    uint64_t *eog;         /* bit set [n_vocab] */
    const uint8_t *scores; /* unaligned f32 or i32 in the mapping, NULL: all 0 */
    bool scores_int;
    uint32_t *special;      /* [n_special] ids by text, for prefix search */
    uint32_t *special_rank; /* [n_special] of the same entry: place in order of precedence (longest first) */
    uint32_t *special_by_rank;
    uint32_t special_first[257]; /* entries of `special` whose first byte is below b */
    uint64_t max_piece;
    uint32_t byte_id[256]; /* gpt2: id of each byte's symbol (maybe an extra); llama: token of a lone byte */
    /* gpt2 */
    const ps_pre *pre;
    ps_strtab extras; /* texts that merges speak of and the vocabulary lacks */
    ps_merge *merges;
    uint32_t n_merges;
    uint32_t *pair_slots; /* merge + 1; 0 is empty */
    uint64_t pair_mask;
    uint32_t raw_byte_id[256]; /* token whose text is this one byte, PS_ID_NONE if none */
};

static inline uint64_t ps_pair_hash(uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15U;
    return h ^ h >> 29;
}

static inline uint32_t ps_pair_find(const ps_tokenizer *t, uint32_t left, uint32_t right) {
    for (uint64_t i = ps_pair_hash(left, right) & t->pair_mask;; i = (i + 1) & t->pair_mask) {
        uint32_t m = t->pair_slots[i];
        if (m == 0)
            return PS_ID_NONE;
        if (t->merges[m - 1].left == left && t->merges[m - 1].right == right)
            return m - 1;
    }
}

/* Character that stands for a byte in byte-level BPE, and back (-1: stands for none). */
uint32_t ps_byte_to_cp(uint8_t byte);
int ps_cp_to_byte(uint32_t cp);

/* Min-heap of keys, the only queue of this tokenizer: urgency in the upper half, place in the lower. */
typedef struct ps_heap {
    uint64_t *keys;
    uint64_t n, cap;
} ps_heap;
bool ps_heap_push(ps_heap *h, uint64_t key); /* false when out of memory */
uint64_t ps_heap_pop(ps_heap *h);            /* h->n > 0 */

/* Buffers of one call of ps_tokenizer_encode. */
typedef struct ps_encoder {
    const ps_tokenizer *t;
    ps_tokens *out;
    ps_heap heap;
    uint32_t *cells; /* gpt2: id, next, prev of each symbol; llama: next, prev, pending of each byte */
    uint64_t cells_cap;
    uint8_t *text; /* llama: escaped text; gpt2: a word in its encoded form */
    uint64_t text_cap;
} ps_encoder;

/* All return false only when out of memory. */
bool ps_tokens_push(ps_tokens *tokens, int32_t id);
bool ps_encoder_reserve(ps_encoder *e, uint64_t n_cells, uint64_t text_bytes);
bool ps_encode_bpe(ps_encoder *e, const char *text, uint64_t len);
bool ps_encode_spm(ps_encoder *e, const char *text, uint64_t len, bool space_before);

/* A special token found in a text: bytes [pos, end) are its. */
typedef struct ps_special_hit {
    uint32_t pos, end, id;
} ps_special_hit;
/* Hits in order of position, from malloc (NULL if none). */
bool ps_special_partition(const ps_tokenizer *t, const char *text, uint64_t len, bool parse_special,
                          ps_special_hit **out, uint64_t *out_n);

ps_status ps_tokenizer_load_vocab(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err);
ps_status ps_tokenizer_load_merges(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err);
ps_status ps_tokenizer_load_special(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err);

#endif
