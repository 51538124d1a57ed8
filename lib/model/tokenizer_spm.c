/* SentencePiece: encoding of one stretch of text without special tokens.
 *
 * The text is escaped (a space is U+2581), cut into characters, and neighbours whose joined text is a token
 * are merged, the highest score first and the leftmost of equal ones. A symbol is named by its first byte, and
 * the bytes of its text are those up to the next symbol. */
#include "model/tokenizer_internal.h"

/* A queue entry is (order, place), where a lower order is a higher score. */
static uint32_t order_of_score(float score) {
    score += 0.0F; /* -0 counts as 0 */
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? bits : ~(bits | 0x80000000U); /* never PS_ID_NONE: the vocabulary holds no NaN */
}

typedef struct spm_text {
    const char *s;
    uint32_t len;
    uint32_t *next; /* of a symbol's first byte: that of the next, len at the end; PS_ID_NONE: merged away */
    uint32_t *prev; /* PS_ID_NONE at the start */
    uint32_t
        *pending; /* order under which a symbol's merge with the next is queued, PS_ID_NONE if it is not */
} spm_text;

static bool queue_pair(ps_encoder *e, spm_text *x, uint32_t left) {
    if (left == PS_ID_NONE)
        return true;
    uint32_t right = x->next[left];
    x->pending[left] = PS_ID_NONE;
    if (right == x->len || x->next[right] - left > e->t->info.max_token_bytes)
        return true;
    uint32_t id = ps_strtab_find(&e->t->vocab, x->s + left, x->next[right] - left);
    if (id == PS_ID_NONE)
        return true;
    x->pending[left] = order_of_score(ps_tokenizer_score(e->t, (int32_t)id));
    return ps_heap_push(&e->heap, (uint64_t)x->pending[left] << 32 | left);
}

static bool merge_all(ps_encoder *e, spm_text *x) {
    e->heap.n = 0;
    for (uint32_t i = 0; i < x->len; i = x->next[i])
        if (!queue_pair(e, x, i))
            return false;
    while (e->heap.n != 0) {
        uint64_t key = ps_heap_pop(&e->heap);
        uint32_t left = (uint32_t)key;
        /* An old entry with the score of the present one stands for it: they sort alike. */
        if (x->next[left] == PS_ID_NONE || x->pending[left] != key >> 32)
            continue;
        uint32_t right = x->next[left];
        x->next[left] = x->next[right];
        if (x->next[right] != x->len)
            x->prev[x->next[right]] = left;
        x->next[right] = PS_ID_NONE;
        if (!queue_pair(e, x, x->prev[left]) || !queue_pair(e, x, left))
            return false;
    }
    return true;
}

static uint32_t escape(uint8_t *out, const char *text, uint64_t len, bool space_before) {
    static const uint8_t mark[3] = {0xE2, 0x96, 0x81};
    uint32_t n = 0;
    for (uint64_t i = space_before ? 0 : 1; i <= len; i++) {
        uint8_t c = i == 0 ? ' ' : (uint8_t)text[i - 1];
        if (c == ' ') {
            memcpy(out + n, mark, sizeof mark);
            n += 3;
        } else {
            out[n++] = c;
        }
    }
    return n;
}

/* Length of a character by its first byte alone: what follows is not looked at. */
static uint32_t char_len(uint8_t lead) {
    return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

bool ps_encode_spm(ps_encoder *e, const char *text, uint64_t len, bool space_before) {
    if (!ps_encoder_reserve(e, 0, (len + 1) * 3))
        return false;
    spm_text x = {.s = (const char *)e->text, .len = escape(e->text, text, len, space_before)};
    if (!ps_encoder_reserve(e, (uint64_t)x.len * 3, 0))
        return false;
    x.next = e->cells;
    x.prev = e->cells + x.len;
    x.pending = x.prev + x.len;
    for (uint32_t i = 0, before = PS_ID_NONE; i < x.len; before = i, i = x.next[i]) {
        uint32_t n = char_len((uint8_t)x.s[i]);
        x.next[i] = x.len - i < n ? x.len : i + n;
        x.prev[i] = before;
    }
    if (!merge_all(e, &x))
        return false;
    for (uint32_t i = 0; i < x.len; i = x.next[i]) {
        uint32_t end = x.next[i], id = ps_strtab_find(&e->t->vocab, x.s + i, end - i);
        if (id != PS_ID_NONE) {
            if (!ps_tokens_push(e->out, (int32_t)id))
                return false;
            continue;
        }
        for (uint32_t b = i; b < end; b++)
            if (!ps_tokens_push(e->out, (int32_t)e->t->byte_id[(uint8_t)x.s[b]]))
                return false;
    }
    return true;
}
