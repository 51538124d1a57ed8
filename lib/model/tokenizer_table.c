/* String table, queue and buffers of the tokenizer. */
#include <stdlib.h>

#include "core/checked.h"
#include "model/tokenizer_internal.h"

/* With at most half of the slots used, a chain this long means keys made to collide. */
enum { MAX_PROBES = 1024 };

static uint64_t load_u64(const char *p, uint64_t n) {
    uint64_t v = 0;
    memcpy(&v, p, (size_t)n);
    return v;
}

uint64_t ps_strtab_hash(const char *s, uint64_t len) {
    const uint64_t k = 0x9E3779B97F4A7C15U;
    uint64_t h = len * k;
    for (; len >= 8; s += 8, len -= 8) {
        h = (h ^ load_u64(s, 8)) * k;
        h ^= h >> 32;
    }
    if (len != 0)
        h = (h ^ load_u64(s, len)) * k;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9U;
    return h ^ h >> 32;
}

bool ps_strtab_init(ps_strtab *tab, ps_arena *arena, uint64_t cap) {
    uint64_t slots = 16;
    while (slots < cap * 2)
        slots *= 2;
    tab->slots = ps_arena_array(arena, slots, sizeof *tab->slots);
    tab->mask = slots - 1;
    return tab->slots != NULL;
}

static bool same_text(const ps_strtab *tab, uint64_t slot, const char *s, uint64_t len) {
    const ps_str *text = &tab->text[(uint32_t)slot - 1];
    return text->len == len && memcmp(text->data, s, (size_t)len) == 0;
}

uint32_t ps_strtab_find(const ps_strtab *tab, const char *s, uint64_t len) {
    uint64_t hash = ps_strtab_hash(s, len);
    for (uint64_t i = hash & tab->mask;; i = (i + 1) & tab->mask) {
        uint64_t slot = tab->slots[i];
        if (slot == 0)
            return PS_ID_NONE;
        if (slot >> 32 == hash >> 32 && same_text(tab, slot, s, len))
            return (uint32_t)slot - 1;
    }
}

static uint32_t add_hashed(ps_strtab *tab, uint32_t index, uint64_t hash) {
    const ps_str *text = &tab->text[index];
    for (uint64_t i = hash & tab->mask, probes = 0; probes < MAX_PROBES; i = (i + 1) & tab->mask, probes++) {
        uint64_t slot = tab->slots[i];
        if (slot == 0) {
            tab->slots[i] = (hash & ~(uint64_t)UINT32_MAX) | (index + 1U);
            return index;
        }
        if (slot >> 32 == hash >> 32 && same_text(tab, slot, text->data, text->len))
            return (uint32_t)slot - 1;
    }
    return PS_ID_NONE;
}

uint32_t ps_strtab_add(ps_strtab *tab, uint32_t index) {
    return add_hashed(tab, index, ps_strtab_hash(tab->text[index].data, tab->text[index].len));
}

uint32_t ps_strtab_fill(ps_strtab *tab, uint32_t n, uint32_t *out_at) {
    /* A table larger than the caches: its slots are asked for well before they are needed. */
    enum { AHEAD = 16 };
    uint64_t hash[AHEAD];
    for (uint64_t i = 0; i < (uint64_t)n + AHEAD; i++) {
        if (i >= AHEAD) {
            uint32_t index = (uint32_t)(i - AHEAD), at = add_hashed(tab, index, hash[i % AHEAD]);
            if (at != index) {
                *out_at = at;
                return index;
            }
        }
        if (i < n) {
            hash[i % AHEAD] = ps_strtab_hash(tab->text[i].data, tab->text[i].len);
            __builtin_prefetch(&tab->slots[hash[i % AHEAD] & tab->mask], 1);
        }
    }
    return n;
}

/* Grow *data to hold `need` elements of `size` bytes, doubling. */
static bool grow(void *data, uint64_t *cap, uint64_t need, uint64_t size) {
    if (need <= *cap)
        return true;
    uint64_t want = *cap < 64 ? 64 : *cap, bytes;
    while (want < need)
        want = want > UINT64_MAX / 2 ? need : want * 2;
    void **slot = data;
    if (!ps_mul_u64(want, size, &bytes) || bytes > SIZE_MAX)
        return false;
    void *p = realloc(*slot, (size_t)bytes);
    if (p == NULL)
        return false;
    *slot = p;
    *cap = want;
    return true;
}

bool ps_heap_push(ps_heap *h, uint64_t key) {
    void *keys = h->keys;
    bool ok = grow(&keys, &h->cap, h->n + 1, sizeof *h->keys);
    h->keys = keys;
    if (!ok)
        return false;
    uint64_t i = h->n++;
    while (i > 0 && h->keys[(i - 1) / 2] > key) {
        h->keys[i] = h->keys[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->keys[i] = key;
    return true;
}

uint64_t ps_heap_pop(ps_heap *h) {
    uint64_t top = h->keys[0], last = h->keys[--h->n], i = 0;
    for (uint64_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->keys[child + 1] < h->keys[child])
            child++;
        if (h->keys[child] >= last)
            break;
        h->keys[i] = h->keys[child];
    }
    if (h->n != 0)
        h->keys[i] = last;
    return top;
}

bool ps_tokens_push(ps_tokens *tokens, int32_t id) {
    void *ids = tokens->ids;
    bool ok = grow(&ids, &tokens->cap, tokens->n + 1, sizeof *tokens->ids);
    tokens->ids = ids;
    if (ok)
        tokens->ids[tokens->n++] = id;
    return ok;
}

void ps_tokens_free(ps_tokens *tokens) {
    free(tokens->ids);
    *tokens = (ps_tokens){0};
}

bool ps_encoder_reserve(ps_encoder *e, uint64_t n_cells, uint64_t text_bytes) {
    void *cells = e->cells, *text = e->text;
    bool ok = grow(&cells, &e->cells_cap, n_cells, sizeof *e->cells) &&
              grow(&text, &e->text_cap, text_bytes, sizeof *e->text);
    e->cells = cells;
    e->text = text;
    return ok;
}
