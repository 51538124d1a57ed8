/* Special tokens: which of them end generation, and cutting them out of a text.
 *
 * Precedence is by length, not by place: of all special tokens the longest takes its occurrences first, from
 * left to right, then the next in what is left over. Instead of a pass over the text per token (Gemma has
 * 6,000) each position is queued under the longest token that begins there; one whose token no longer fits
 * between what is taken comes back under the longest that does. */
#include <stdlib.h>

#include "core/checked.h"
#include "model/tokenizer_internal.h"

/* Roles that llama.cpp gives tokens by their text where no key names them.
 * EOG: ends generation. The others: the first text of the list that the vocabulary has gets the role. */
enum {
    ROLE_EOG = 1,
    ROLE_EOT = 2,
    ROLE_EOM = 4,
    ROLE_PRE = 8,
    ROLE_SUF = 16,
    ROLE_MID = 32,
    ROLE_PAD = 64,
    ROLE_REPO = 128,
    ROLE_SEP = 256,
    ROLE_SHOWN = 512
};

typedef struct known_token {
    const char *text;
    uint32_t roles;
} known_token;

static const known_token known[] = {
    {"<|eot_id|>", ROLE_EOG | ROLE_EOT},
    {"<|im_end|>", ROLE_EOG | ROLE_EOT},
    {"<|end|>", ROLE_EOG | ROLE_EOT},
    {"<end_of_turn>", ROLE_EOG | ROLE_EOT},
    {"<|endoftext|>", ROLE_EOG | ROLE_EOT},
    {"<|end_of_text|>", ROLE_EOG | ROLE_EOT},
    {"<EOT>", ROLE_EOG | ROLE_EOT},
    {"_<EOT>", ROLE_EOG | ROLE_EOT},
    {"[EOT]", ROLE_EOG | ROLE_EOT},
    {"<｜end▁of▁sentence｜>", ROLE_EOG | ROLE_EOT},
    {"<end_of_utterance>", ROLE_EOG | ROLE_EOT},
    {"<|eom_id|>", ROLE_EOG | ROLE_EOM},
    {"<|return|>", ROLE_EOG},
    {"<|call|>", ROLE_EOG},
    {"<|calls|>", ROLE_EOG},
    {"<|flush|>", ROLE_EOG},
    {"</s>", ROLE_EOG},
    {"[EOS]", ROLE_EOG},
    {"<eos>", ROLE_EOG},
    {"<turn|>", ROLE_EOG},
    {"<|tool_response>", ROLE_EOG},
    {"[e~[", ROLE_EOG},
    {"<|fim_prefix|>", ROLE_PRE},
    {"<fim-prefix>", ROLE_PRE},
    {"<fim_prefix>", ROLE_PRE},
    {"<｜fim▁begin｜>", ROLE_PRE},
    {"<PRE>", ROLE_PRE},
    {"▁<PRE>", ROLE_PRE},
    {"<|code_prefix|>", ROLE_PRE},
    {"<|prefix|>", ROLE_PRE},
    {"<|fim_suffix|>", ROLE_SUF},
    {"<fim-suffix>", ROLE_SUF},
    {"<fim_suffix>", ROLE_SUF},
    {"<｜fim▁hole｜>", ROLE_SUF},
    {"<SUF>", ROLE_SUF},
    {"▁<SUF>", ROLE_SUF},
    {"<|code_suffix|>", ROLE_SUF},
    {"<|suffix|>", ROLE_SUF},
    {"<|fim_middle|>", ROLE_MID},
    {"<fim-middle>", ROLE_MID},
    {"<fim_middle>", ROLE_MID},
    {"<｜fim▁end｜>", ROLE_MID},
    {"<MID>", ROLE_MID},
    {"▁<MID>", ROLE_MID},
    {"<|code_middle|>", ROLE_MID},
    {"<|middle|>", ROLE_MID},
    {"<|fim_pad|>", ROLE_PAD},
    {"<fim-pad>", ROLE_PAD},
    {"<fim_pad>", ROLE_PAD},
    {"<PAD>", ROLE_PAD},
    {"[PAD]", ROLE_PAD},
    {"<|fim_repo|>", ROLE_REPO},
    {"<|repo_name|>", ROLE_REPO},
    {"<fim-repo>", ROLE_REPO},
    {"<REPO>", ROLE_REPO},
    {"<reponame>", ROLE_REPO},
    {"<|file_sep|>", ROLE_SEP},
    {"<|channel|>", ROLE_SHOWN},
    {"<|message|>", ROLE_SHOWN},
    {"<|start|>", ROLE_SHOWN},
    {"<|constrain|>", ROLE_SHOWN},
};

enum { N_KNOWN = sizeof known / sizeof known[0] };

/* The roles that one token holds, where they are stored, and what they mean besides. */
enum { ID_EOT, ID_EOM, ID_PRE, ID_SUF, ID_MID, ID_PAD, ID_REPO, ID_SEP, N_ROLE_IDS };

static const struct role_key {
    const char *key, *old_key;
    uint32_t role;
    bool ends; /* ends generation */
} role_keys[N_ROLE_IDS] = {
    [ID_EOT] = {"tokenizer.ggml.eot_token_id", NULL, ROLE_EOT, true},
    [ID_EOM] = {"tokenizer.ggml.eom_token_id", NULL, ROLE_EOM, true},
    [ID_PRE] = {"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id", ROLE_PRE, false},
    [ID_SUF] = {"tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id", ROLE_SUF, false},
    [ID_MID] = {"tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id", ROLE_MID, false},
    [ID_PAD] = {"tokenizer.ggml.fim_pad_token_id", NULL, ROLE_PAD, true},
    [ID_REPO] = {"tokenizer.ggml.fim_rep_token_id", NULL, ROLE_REPO, true},
    [ID_SEP] = {"tokenizer.ggml.fim_sep_token_id", NULL, ROLE_SEP, true},
};

static void set_eog(ps_tokenizer *t, int32_t id, bool on) {
    if (id >= 0 && on)
        t->eog[id / 64] |= (uint64_t)1 << (id % 64);
    else if (id >= 0)
        t->eog[id / 64] &= ~((uint64_t)1 << (id % 64));
}

static int32_t find(const ps_tokenizer *t, const char *text) {
    return ps_tokenizer_find(t, text, strlen(text));
}

/* An id from a key; left alone if the key is absent. */
static ps_status read_id(const ps_tokenizer *t, const ps_gguf *gguf, const char *key, int32_t *id,
                         ps_error *err) {
    uint32_t value;
    bool found;
    ps_status status = ps_gguf_get_u32(gguf, key, &value, &found, err);
    if (status != PS_OK || !found)
        return status;
    if (value >= t->vocab.n)
        return ps_error_set(err, PS_E_DATA, key, "token %u is outside the vocabulary of %u", value,
                            t->vocab.n);
    *id = (int32_t)value;
    return PS_OK;
}

/* Roles of tokens, by key and by text, and the end-of-generation set. */
static ps_status assign_roles(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err) {
    int32_t ids[N_ROLE_IDS];
    for (uint32_t r = 0; r < N_ROLE_IDS; r++) {
        const struct role_key *k = &role_keys[r];
        ids[r] = PS_TOKEN_NONE;
        ps_status status = read_id(t, gguf, k->key, &ids[r], err);
        if (status == PS_OK && k->old_key != NULL)
            status = read_id(t, gguf, k->old_key, &ids[r], err);
        if (status != PS_OK)
            return status;
        for (uint32_t i = 0; i < N_KNOWN && ids[r] == PS_TOKEN_NONE; i++) {
            int32_t id = known[i].roles & k->role ? find(t, known[i].text) : PS_TOKEN_NONE;
            if (id == PS_TOKEN_NONE)
                continue;
            ids[r] = id;
            t->attr[id] |= PS_TOKEN_CONTROL;
        }
        set_eog(t, k->ends ? ids[r] : PS_TOKEN_NONE, true);
    }
    t->info.eot = ids[ID_EOT];
    t->info.eom = ids[ID_EOM];
    for (uint32_t i = 0; i < N_KNOWN; i++) {
        int32_t id = find(t, known[i].text);
        if (id == PS_TOKEN_NONE)
            continue;
        if (known[i].roles & ROLE_EOG) {
            set_eog(t, id, true);
            t->attr[id] |= PS_TOKEN_CONTROL;
        }
        if (known[i].roles & ROLE_SHOWN)
            t->attr[id] = PS_TOKEN_USER_DEFINED;
    }
    set_eog(t, t->info.eos, true);
    return PS_OK;
}

/* Vocabularies in which a text of the list above means something else. */
static void apply_exceptions(ps_tokenizer *t) {
    bool call = ps_tokenizer_is_eog(t, find(t, "<|call|>")) || ps_tokenizer_is_eog(t, find(t, "<|calls|>"));
    bool pair = ps_tokenizer_is_eog(t, find(t, "<|return|>")) || ps_tokenizer_is_eog(t, find(t, "<|flush|>"));
    int32_t end = find(t, "<|end|>"), s = find(t, "</s>");
    if (call && pair && ps_tokenizer_is_eog(t, end)) {
        set_eog(t, end, false);
        t->attr[end] = PS_TOKEN_USER_DEFINED;
    }
    if (ps_tokenizer_is_eog(t, find(t, "<|tool_response>")) && ps_tokenizer_is_eog(t, s)) {
        set_eog(t, s, false);
        t->attr[s] = PS_TOKEN_NORMAL;
    }
}

/* Phi-3's tokens swallow the white space after them, but for these. */
static ps_status apply_rstrip(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err) {
    static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};
    ps_str name = {0};
    bool found, phi3 = false;
    ps_status status = ps_gguf_get_str(gguf, "general.name", &name, &found, err);
    if (status != PS_OK || !found)
        return status;
    for (uint64_t i = 0; i + 4 <= name.len; i++) {
        const char *p = name.data + i;
        bool phi = (p[0] | 32) == 'p' && (p[1] | 32) == 'h' && (p[2] | 32) == 'i';
        phi3 = phi3 || (phi && (p[3] == '3' || (p[3] == '-' && i + 5 <= name.len && p[4] == '3')));
    }
    for (uint32_t i = 0; phi3 && i < t->info.n_special; i++)
        t->attr[t->special[i]] |= PS_TOKEN_RSTRIP;
    int32_t s = phi3 ? find(t, "</s>") : PS_TOKEN_NONE;
    if (s != PS_TOKEN_NONE)
        t->attr[s] |= PS_TOKEN_RSTRIP;
    for (uint32_t i = 0; phi3 && i < sizeof plain / sizeof plain[0]; i++) {
        int32_t id = find(t, plain[i]);
        if (id != PS_TOKEN_NONE)
            t->attr[id] &= (uint8_t)~PS_TOKEN_RSTRIP;
    }
    return PS_OK;
}

typedef struct special_entry {
    ps_str text;
    uint32_t id, rank;
} special_entry;

static int by_length(const void *a, const void *b) {
    const special_entry *x = a, *y = b;
    if (x->text.len != y->text.len)
        return x->text.len > y->text.len ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int by_text(const void *a, const void *b) {
    const special_entry *x = a, *y = b;
    uint64_t n = x->text.len < y->text.len ? x->text.len : y->text.len;
    int c = memcmp(x->text.data, y->text.data, (size_t)n);
    return c != 0 ? c : (x->text.len > y->text.len) - (x->text.len < y->text.len);
}

static bool is_special(uint32_t attr) {
    return (attr & (PS_TOKEN_CONTROL | PS_TOKEN_USER_DEFINED | PS_TOKEN_UNKNOWN)) != 0;
}

static bool index_special(ps_tokenizer *t) {
    uint32_t n = 0;
    for (uint32_t id = 0; id < t->vocab.n; id++)
        n += is_special(t->attr[id]);
    special_entry *entries = malloc((size_t)(n + 1) * sizeof *entries);
    t->special = ps_arena_array(t->arena, n, sizeof *t->special);
    t->special_rank = ps_arena_array(t->arena, n, sizeof *t->special_rank);
    t->special_by_rank = ps_arena_array(t->arena, n, sizeof *t->special_by_rank);
    bool ok = entries != NULL && t->special != NULL && t->special_rank != NULL && t->special_by_rank != NULL;
    if (ok) {
        n = 0;
        for (uint32_t id = 0; id < t->vocab.n; id++)
            if (is_special(t->attr[id]))
                entries[n++] = (special_entry){t->vocab.text[id], id, 0};
        qsort(entries, n, sizeof *entries, by_length);
        for (uint32_t i = 0; i < n; i++) {
            entries[i].rank = i;
            t->special_by_rank[i] = entries[i].id;
        }
        qsort(entries, n, sizeof *entries, by_text);
        for (uint32_t i = 0; i < n; i++) {
            t->special[i] = entries[i].id;
            t->special_rank[i] = entries[i].rank;
            t->special_first[(uint8_t)entries[i].text.data[0] + 1]++;
        }
        for (uint32_t b = 0; b < 256; b++)
            t->special_first[b + 1] += t->special_first[b];
        t->info.n_special = n;
    }
    free(entries);
    return ok;
}

ps_status ps_tokenizer_load_special(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err) {
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id"};
    int32_t *const ids[] = {&t->info.bos, &t->info.eos, &t->info.unk, &t->info.pad};
    t->eog = ps_arena_array(t->arena, t->vocab.n / 64 + 1, sizeof *t->eog);
    if (t->eog == NULL)
        return ps_error_set(err, PS_E_NOMEM, "tokenizer", "no memory for the special tokens");
    for (uint32_t i = 0; i < 4; i++) {
        if (*ids[i] >= 0 && (uint32_t)*ids[i] >= t->vocab.n) /* a default of the model */
            *ids[i] = PS_TOKEN_NONE;
        ps_status status = read_id(t, gguf, keys[i], ids[i], err);
        if (status != PS_OK)
            return status;
    }
    ps_status status = assign_roles(t, gguf, err);
    if (status != PS_OK)
        return status;
    apply_exceptions(t);
    if (!index_special(t))
        return ps_error_set(err, PS_E_NOMEM, "tokenizer", "no memory for the special tokens");
    return apply_rstrip(t, gguf, err);
}

/* Entry of the longest special token of at most `max` bytes that s begins with, PS_ID_NONE if none. */
static uint32_t longest_at(const ps_tokenizer *t, const char *s, uint64_t max, bool parse_special) {
    uint32_t best = PS_ID_NONE;
    if (max == 0)
        return best;
    uint32_t lo = t->special_first[(uint8_t)s[0]], hi = t->special_first[(uint8_t)s[0] + 1];
    for (uint64_t depth = 1; lo < hi; depth++) {
        /* Entries lo to hi begin with the first `depth` bytes; one that ends there comes first. */
        uint32_t id = t->special[lo];
        if (t->vocab.text[id].len == depth) {
            if (parse_special || !(t->attr[id] & (PS_TOKEN_CONTROL | PS_TOKEN_UNKNOWN)))
                best = lo;
            lo++;
        }
        if (depth == max)
            break;
        uint8_t want = (uint8_t)s[depth];
        uint32_t bound[2];
        for (uint32_t side = 0; side < 2; side++) { /* first entry whose byte is >= want, and > want */
            uint32_t a = lo, b = hi;
            while (a < b) {
                uint32_t mid = a + (b - a) / 2;
                uint8_t got = (uint8_t)t->vocab.text[t->special[mid]].data[depth];
                if (got < want || (side == 1 && got == want))
                    a = mid + 1;
                else
                    b = mid;
            }
            bound[side] = a;
        }
        lo = bound[0];
        hi = bound[1];
    }
    return best;
}

static bool is_c_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Taken ranges by position: free_end[] would cost a word a byte, so they are kept as a bit per byte. */
static bool taken(const uint64_t *bits, uint64_t pos) {
    return (bits[pos / 64] >> (pos % 64) & 1) != 0;
}

static int by_pos(const void *a, const void *b) {
    const ps_special_hit *x = a, *y = b;
    return (x->pos > y->pos) - (x->pos < y->pos);
}

typedef struct hit_list {
    ps_special_hit *items;
    uint64_t n, cap;
} hit_list;

static ps_special_hit *add_hit(hit_list *list) {
    if (list->n == list->cap) {
        uint64_t cap = list->cap == 0 ? 16 : list->cap * 2;
        ps_special_hit *items = realloc(list->items, (size_t)cap * sizeof *items);
        if (items == NULL)
            return NULL;
        list->items = items;
        list->cap = cap;
    }
    return &list->items[list->n++];
}

/* Take the occurrence that heads the queue, or queue its position again under a shorter token. */
static bool place(const ps_tokenizer *t, const char *text, uint64_t len, bool parse_special, ps_heap *heap,
                  uint64_t *bits, hit_list *hits) {
    uint64_t key = ps_heap_pop(heap), pos = key & UINT32_MAX;
    uint32_t id = t->special_by_rank[key >> 32];
    uint64_t need = t->vocab.text[id].len, room = 0;
    while (room < need && !taken(bits, pos + room))
        room++;
    if (room < need) {
        uint32_t entry = longest_at(t, text + pos, room, parse_special);
        return entry == PS_ID_NONE || ps_heap_push(heap, (uint64_t)t->special_rank[entry] << 32 | pos);
    }
    uint64_t end = pos + need;
    while ((t->attr[id] & PS_TOKEN_RSTRIP) && end < len && !taken(bits, end) && is_c_space(text[end]))
        end++;
    for (uint64_t i = pos; i < end; i++)
        bits[i / 64] |= (uint64_t)1 << (i % 64);
    ps_special_hit *hit = add_hit(hits);
    if (hit != NULL)
        *hit = (ps_special_hit){(uint32_t)pos, (uint32_t)end, id};
    return hit != NULL;
}

bool ps_special_partition(const ps_tokenizer *t, const char *text, uint64_t len, bool parse_special,
                          ps_special_hit **out, uint64_t *out_n) {
    ps_heap heap = {0};
    hit_list hits = {0};
    uint64_t *bits = NULL;
    bool ok = true;
    for (uint64_t pos = 0; pos < len && ok; pos++) {
        uint32_t entry = longest_at(t, text + pos, len - pos, parse_special);
        if (entry != PS_ID_NONE)
            ok = ps_heap_push(&heap, (uint64_t)t->special_rank[entry] << 32 | pos);
    }
    if (heap.n != 0) {
        bits = calloc((size_t)(len / 64 + 1), sizeof *bits);
        ok = ok && bits != NULL;
    }
    while (ok && heap.n != 0)
        ok = place(t, text, len, parse_special, &heap, bits, &hits);
    if (ok && hits.n > 1)
        qsort(hits.items, (size_t)hits.n, sizeof *hits.items, by_pos);
    free(heap.keys);
    free(bits);
    if (!ok) {
        free(hits.items);
        hits = (hit_list){0};
    }
    *out = hits.items;
    *out_n = hits.n;
    return ok;
}
