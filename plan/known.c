/* A hash table behind a lock: see known.h. */
#include "plan/known.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/hash.h"

typedef struct entry {
    const void *key;
    size_t n_bytes;
    uint64_t hash;
    ps_tier_known value;
} entry;

struct ps_known {
    pthread_mutex_t lock;
    ps_arena *keys;
    entry *entries;
    uint32_t *slots; /* [2 * room] indices + 1 */
    uint32_t n, room;
};

ps_known *ps_known_new(void) {
    enum { ROOM = 64 };
    ps_known *k = calloc(1, sizeof *k);
    if (!k)
        return NULL;
    if (pthread_mutex_init(&k->lock, NULL) != 0) {
        free(k);
        return NULL;
    }
    k->room = ROOM;
    k->keys = ps_arena_new(UINT64_MAX);
    k->entries = calloc(k->room, sizeof *k->entries);
    k->slots = calloc(2 * (size_t)k->room, sizeof *k->slots);
    if (k->keys && k->entries && k->slots)
        return k;
    ps_known_free(k);
    return NULL;
}

void ps_known_free(ps_known *k) {
    if (!k)
        return;
    pthread_mutex_destroy(&k->lock);
    ps_arena_free(k->keys);
    free(k->entries);
    free(k->slots);
    free(k);
}

static uint64_t hash_of(const void *key, size_t n_bytes) {
    uint8_t digest[PS_HASH_BYTES];
    uint64_t h;
    ps_hash_bytes(key, n_bytes, digest);
    memcpy(&h, digest, sizeof h);
    return h;
}

/* The slot of a key, or the empty one where it would be. */
static uint32_t *slot_of(const ps_known *k, const void *key, size_t n_bytes, uint64_t hash) {
    uint32_t mask = 2 * k->room - 1, i = (uint32_t)hash & mask;
    for (; k->slots[i]; i = (i + 1) & mask) {
        const entry *e = &k->entries[k->slots[i] - 1];
        if (e->hash == hash && e->n_bytes == n_bytes && memcmp(e->key, key, n_bytes) == 0)
            break;
    }
    return &k->slots[i];
}

static bool grow(ps_known *k) {
    entry *entries = realloc(k->entries, 2 * (size_t)k->room * sizeof *entries);
    if (entries)
        k->entries = entries;
    uint32_t *slots = calloc(4 * (size_t)k->room, sizeof *slots);
    if (!entries || !slots) {
        free(slots);
        return false;
    }
    free(k->slots);
    k->slots = slots;
    k->room *= 2;
    for (uint32_t i = 0; i < k->n; i++) {
        const entry *e = &k->entries[i];
        *slot_of(k, e->key, e->n_bytes, e->hash) = i + 1;
    }
    return true;
}

ps_tier_known ps_known_get(ps_known *k, const void *key, size_t n_bytes) {
    const uint64_t hash = hash_of(key, n_bytes);
    ps_tier_known found = {0};
    pthread_mutex_lock(&k->lock);
    uint32_t at = *slot_of(k, key, n_bytes, hash);
    if (at)
        found = k->entries[at - 1].value;
    pthread_mutex_unlock(&k->lock);
    return found;
}

bool ps_known_put(ps_known *k, const void *key, size_t n_bytes, const ps_tier_known *more) {
    const uint64_t hash = hash_of(key, n_bytes);
    bool ok = true;
    pthread_mutex_lock(&k->lock);
    uint32_t *slot = slot_of(k, key, n_bytes, hash);
    if (!*slot) {
        char *own = NULL;
        ok = (k->n < k->room || grow(k)) && (own = ps_arena_strndup(k->keys, key, n_bytes)) != NULL;
        if (ok) {
            k->entries[k->n] = (entry){.key = own, .n_bytes = n_bytes, .hash = hash};
            slot = slot_of(k, key, n_bytes, hash);
            *slot = ++k->n;
        }
    }
    if (ok) {
        ps_tier_known *to = &k->entries[*slot - 1].value;
        if (more->has_work)
            to->work_bytes = more->work_bytes;
        if (more->has_empty)
            to->empty_s = more->empty_s;
        if (more->has_full)
            to->full_s = more->full_s;
        if (more->least_s > to->least_s)
            to->least_s = more->least_s;
        to->has_work |= more->has_work;
        to->has_empty |= more->has_empty;
        to->has_full |= more->has_full;
    }
    pthread_mutex_unlock(&k->lock);
    return ok;
}
