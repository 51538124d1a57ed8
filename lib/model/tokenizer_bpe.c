/* Byte-level BPE: the merge table, and encoding of one stretch of text without special tokens.
 *
 * A word's symbols are ids of texts, so a merge is one look-up of a pair of ids. The queue holds (rank, place),
 * the lowest rank first and the leftmost of equal ones; an entry whose pair has changed meanwhile is recognised
 * because the merge of its rank no longer fits the symbols in place. */
#include <stdlib.h>

#include "core/checked.h"
#include "model/tokenizer_internal.h"

#define KEY_MERGES "tokenizer.ggml.merges"

static uint32_t find_any(const ps_tokenizer *t, const char *s, uint64_t len) {
    uint32_t id = ps_strtab_find(&t->vocab, s, len);
    if (id != PS_ID_NONE)
        return id;
    id = ps_strtab_find(&t->extras, s, len);
    return id == PS_ID_NONE ? PS_ID_NONE : t->vocab.n + id;
}

/* Id of a text that may be in neither table; it becomes an extra then. PS_ID_NONE: out of memory. */
static uint32_t intern(ps_tokenizer *t, ps_str *extra_text, const char *s, uint64_t len) {
    uint32_t id = find_any(t, s, len);
    if (id != PS_ID_NONE)
        return id;
    char *copy = ps_arena_strndup(t->arena, s, len);
    if (copy == NULL)
        return PS_ID_NONE;
    uint32_t index = t->extras.n;
    extra_text[index] = (ps_str){copy, len};
    if (ps_strtab_add(&t->extras, index) != index)
        return PS_ID_NONE;
    t->extras.n++;
    return t->vocab.n + index;
}

/* The two parts of a merge, "left right"; a left part may itself begin with a space. */
static bool merge_parts(ps_str merge, ps_str *left, ps_str *right) {
    const char *space = merge.len < 3 ? NULL : memchr(merge.data + 1, ' ', (size_t)(merge.len - 2));
    if (space == NULL || merge.len > 2 * PS_TOKEN_MAX_BYTES + 1)
        return false;
    *left = (ps_str){merge.data, (uint64_t)(space - merge.data)};
    *right = (ps_str){space + 1, merge.len - left->len - 1};
    return true;
}

static void join_parts(ps_str left, ps_str right, char *out) {
    memcpy(out, left.data, (size_t)left.len);
    memcpy(out + left.len, right.data, (size_t)right.len);
}

/* Fill merges[] with vocabulary ids, PS_ID_NONE where a text is not a token; count those. */
static ps_status resolve_merges(ps_tokenizer *t, const ps_str *texts, uint64_t *out_missing, ps_error *err) {
    char joined[2 * PS_TOKEN_MAX_BYTES];
    for (uint32_t i = 0; i < t->n_merges; i++) {
        ps_str left, right;
        if (!merge_parts(texts[i], &left, &right))
            return ps_error_set(err, PS_E_DATA, KEY_MERGES, "merge %u is not two texts with a space between",
                                i);
        join_parts(left, right, joined);
        ps_merge *m = &t->merges[i];
        m->left = ps_strtab_find(&t->vocab, left.data, left.len);
        m->right = ps_strtab_find(&t->vocab, right.data, right.len);
        m->result = ps_strtab_find(&t->vocab, joined, left.len + right.len);
        *out_missing +=
            (uint64_t)(m->left == PS_ID_NONE) + (m->right == PS_ID_NONE) + (m->result == PS_ID_NONE);
    }
    return PS_OK;
}

static bool intern_merges(ps_tokenizer *t, const ps_str *texts, ps_str *extra_text) {
    char joined[2 * PS_TOKEN_MAX_BYTES];
    for (uint32_t i = 0; i < t->n_merges; i++) {
        ps_merge *m = &t->merges[i];
        ps_str left, right;
        if (m->left != PS_ID_NONE && m->right != PS_ID_NONE && m->result != PS_ID_NONE)
            continue;
        if (!merge_parts(texts[i], &left, &right))
            return false;
        join_parts(left, right, joined);
        m->left = intern(t, extra_text, left.data, left.len);
        m->right = intern(t, extra_text, right.data, right.len);
        m->result = intern(t, extra_text, joined, left.len + right.len);
        if (m->left == PS_ID_NONE || m->right == PS_ID_NONE || m->result == PS_ID_NONE)
            return false;
    }
    return true;
}

static bool intern_bytes(ps_tokenizer *t, ps_str *extra_text) {
    for (uint32_t b = 0; b < 256; b++) {
        uint8_t text[4];
        char raw = (char)b;
        t->byte_id[b] = intern(t, extra_text, (char *)text, ps_utf8_encode(ps_byte_to_cp((uint8_t)b), text));
        t->raw_byte_id[b] = ps_strtab_find(&t->vocab, &raw, 1);
        if (t->byte_id[b] == PS_ID_NONE)
            return false;
    }
    return true;
}

/* The first of two equal pairs counts. False when ids were made to collide. */
static bool index_pairs(ps_tokenizer *t) {
    for (uint32_t m = 0; m < t->n_merges; m++) {
        const ps_merge *x = &t->merges[m];
        uint64_t i = ps_pair_hash(x->left, x->right) & t->pair_mask, probes = 0;
        for (; t->pair_slots[i] != 0; i = (i + 1) & t->pair_mask) {
            const ps_merge *y = &t->merges[t->pair_slots[i] - 1];
            if ((y->left == x->left && y->right == x->right) || ++probes > 1024)
                break;
        }
        if (t->pair_slots[i] == 0)
            t->pair_slots[i] = m + 1;
        else if (probes > 1024)
            return false;
    }
    return true;
}

ps_status ps_tokenizer_load_merges(ps_tokenizer *t, const ps_gguf *gguf, ps_error *err) {
    const ps_gguf_kv *kv = ps_gguf_find(gguf, KEY_MERGES);
    if (kv == NULL)
        return ps_error_set(err, PS_E_DATA, KEY_MERGES, "missing, but the model is gpt2");
    if (kv->type != PS_GGUF_ARRAY || kv->elem_type != PS_GGUF_STRING || kv->count > INT32_MAX / 4)
        return ps_error_set(err, PS_E_DATA, KEY_MERGES, "not an array of at most %d strings", INT32_MAX / 4);
    t->n_merges = (uint32_t)kv->count;
    uint64_t slots = 16, missing = 0;
    while (slots < kv->count * 2)
        slots *= 2;
    ps_status status = PS_E_NOMEM;
    ps_str *texts = malloc((size_t)(kv->count + 1) * sizeof *texts);
    t->merges = ps_arena_array(t->arena, kv->count, sizeof *t->merges);
    t->pair_slots = ps_arena_array(t->arena, slots, sizeof *t->pair_slots);
    t->pair_mask = slots - 1;
    if (texts == NULL || t->merges == NULL || t->pair_slots == NULL)
        goto done;
    ps_gguf_strings(kv, texts);
    status = resolve_merges(t, texts, &missing, err);
    if (status != PS_OK)
        goto done;
    status = PS_E_NOMEM;
    ps_str *extra_text = ps_arena_array(t->arena, missing + 256, sizeof *extra_text);
    t->extras.text = extra_text;
    if (extra_text == NULL || !ps_strtab_init(&t->extras, t->arena, missing + 256) ||
        !intern_merges(t, texts, extra_text) || !intern_bytes(t, extra_text))
        goto done;
    status = index_pairs(t) ? PS_OK : ps_error_set(err, PS_E_DATA, KEY_MERGES, "pairs made to collide");
done:
    free(texts);
    return status == PS_E_NOMEM ? ps_error_set(err, status, KEY_MERGES, "no memory for the merge table")
                                : status;
}

/* Emit a symbol. One that is no token falls apart into the bytes of its encoded text; those that are no
 * token of their own vanish, as in llama.cpp. */
static bool emit(ps_encoder *e, uint32_t id) {
    const ps_tokenizer *t = e->t;
    if (id < t->vocab.n)
        return ps_tokens_push(e->out, (int32_t)id);
    ps_str text = t->extras.text[id - t->vocab.n];
    for (uint64_t i = 0; i < text.len; i++) {
        uint32_t raw = t->raw_byte_id[(uint8_t)text.data[i]];
        if (raw != PS_ID_NONE && !ps_tokens_push(e->out, (int32_t)raw))
            return false;
    }
    return true;
}

typedef struct symbol {
    uint32_t id, next, prev; /* places, PS_ID_NONE at the ends; a merged-away symbol has id PS_ID_NONE */
} symbol;

static bool queue_pair(ps_encoder *e, const symbol *sym, uint32_t left, uint32_t right) {
    if (left == PS_ID_NONE || right == PS_ID_NONE)
        return true;
    uint32_t rank = ps_pair_find(e->t, sym[left].id, sym[right].id);
    return rank == PS_ID_NONE || ps_heap_push(&e->heap, (uint64_t)rank << 32 | left);
}

static bool merge_word(ps_encoder *e, symbol *sym, uint32_t n) {
    e->heap.n = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        if (!queue_pair(e, sym, i, i + 1))
            return false;
    while (e->heap.n != 0) {
        uint64_t key = ps_heap_pop(&e->heap);
        uint32_t left = (uint32_t)key, right = sym[left].next;
        const ps_merge *m = &e->t->merges[key >> 32];
        if (right == PS_ID_NONE || sym[left].id != m->left || sym[right].id != m->right)
            continue;
        sym[left].id = m->result;
        sym[left].next = sym[right].next;
        if (sym[right].next != PS_ID_NONE)
            sym[sym[right].next].prev = left;
        sym[right].id = PS_ID_NONE;
        if (!queue_pair(e, sym, sym[left].prev, left) || !queue_pair(e, sym, left, sym[left].next))
            return false;
    }
    return true;
}

/* A whole word that is a token, for pre-tokenizers that look there first. n: bytes of the word. */
static uint32_t whole_word(ps_encoder *e, uint32_t n, const uint8_t *bytes) {
    uint64_t len = 0;
    if (n > e->t->info.max_token_bytes)
        return PS_ID_NONE;
    uint8_t encoded[2 * PS_TOKEN_MAX_BYTES];
    for (uint32_t i = 0; i < n; i++)
        len += ps_utf8_encode(ps_byte_to_cp(bytes[i]), encoded + len);
    return ps_strtab_find(&e->t->vocab, (char *)encoded, len);
}

static bool encode_word(ps_encoder *e, const uint8_t *s, uint64_t len) {
    /* A byte that is no UTF-8 becomes the three of U+FFFD. */
    if (!ps_encoder_reserve(e, 0, len * 3))
        return false;
    uint32_t n = 0;
    for (uint64_t i = 0; i < len;) {
        uint32_t took, cp = ps_utf8_decode(s + i, len - i, &took);
        n += ps_utf8_encode(cp, e->text + n);
        i += took;
    }
    if (e->t->pre->ignore_merges) {
        uint32_t id = whole_word(e, n, e->text);
        if (id != PS_ID_NONE)
            return emit(e, id);
    }
    if (!ps_encoder_reserve(e, (uint64_t)n * 3, 0))
        return false;
    symbol *sym = (symbol *)e->cells;
    for (uint32_t i = 0; i < n; i++)
        sym[i] =
            (symbol){e->t->byte_id[e->text[i]], i + 1 < n ? i + 1 : PS_ID_NONE, i == 0 ? PS_ID_NONE : i - 1};
    if (!merge_word(e, sym, n))
        return false;
    for (uint32_t i = 0; i != PS_ID_NONE; i = sym[i].next)
        if (!emit(e, sym[i].id))
            return false;
    return true;
}

static bool encode_stage(ps_encoder *e, const ps_split_text *text, uint32_t stage, uint64_t pos,
                         uint64_t end) {
    const ps_pre *pre = e->t->pre;
    bool last = stage + 1 == PS_PRE_MAX_STAGES || pre->stage[stage + 1] == NULL;
    while (pos < end) {
        uint64_t stop = pre->stage[stage](text, pos, end);
        bool ok =
            last ? encode_word(e, text->s + pos, stop - pos) : encode_stage(e, text, stage + 1, pos, stop);
        if (!ok)
            return false;
        pos = stop;
    }
    return true;
}

bool ps_encode_bpe(ps_encoder *e, const char *text, uint64_t len) {
    ps_split_text view = {(const uint8_t *)text};
    return encode_stage(e, &view, 0, 0, len);
}
