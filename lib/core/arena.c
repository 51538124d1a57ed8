/* Bump allocator over a list of chunks; chunks double up to 1 MiB. */
#include "core/arena.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"

enum { ARENA_ALIGN = 16, ARENA_FIRST_CHUNK = 4096, ARENA_MAX_CHUNK = 1 << 20 };

typedef struct chunk {
    struct chunk *next;
    uint64_t size, used; /* payload bytes behind this header */
} chunk;

struct ps_arena {
    chunk *chunks; /* newest first */
    uint64_t limit, used, next_size;
};

static uint64_t chunk_header(void) {
    return (sizeof(chunk) + ARENA_ALIGN - 1) & ~(uint64_t)(ARENA_ALIGN - 1);
}

ps_arena *ps_arena_new(uint64_t limit_bytes) {
    ps_arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL)
        return NULL;
    arena->limit = limit_bytes;
    arena->next_size = ARENA_FIRST_CHUNK;
    return arena;
}

void ps_arena_free(ps_arena *arena) {
    if (arena == NULL)
        return;
    for (chunk *c = arena->chunks; c != NULL;) {
        chunk *next = c->next;
        free(c);
        c = next;
    }
    free(arena);
}

void *ps_arena_alloc(ps_arena *arena, uint64_t size) {
    uint64_t need, total, bytes;
    if (!ps_align_u64(size == 0 ? 1 : size, ARENA_ALIGN, &need) || !ps_add_u64(arena->used, need, &total) ||
        total > arena->limit)
        return NULL;
    chunk *c = arena->chunks;
    if (c == NULL || need > c->size - c->used) {
        uint64_t payload = need > arena->next_size ? need : arena->next_size;
        if (!ps_add_u64(payload, chunk_header(), &bytes) || bytes > SIZE_MAX)
            return NULL;
        c = calloc(1, (size_t)bytes);
        if (c == NULL)
            return NULL;
        c->size = payload;
        c->next = arena->chunks;
        arena->chunks = c;
        if (arena->next_size < ARENA_MAX_CHUNK)
            arena->next_size *= 2;
    }
    void *p = (char *)c + chunk_header() + c->used;
    c->used += need;
    arena->used = total;
    return p;
}

void *ps_arena_array(ps_arena *arena, uint64_t n, uint64_t size) {
    uint64_t bytes;
    if (!ps_mul_u64(n, size, &bytes))
        return NULL;
    return ps_arena_alloc(arena, bytes);
}

char *ps_arena_strndup(ps_arena *arena, const char *s, uint64_t len) {
    uint64_t bytes;
    if (!ps_add_u64(len, 1, &bytes))
        return NULL;
    char *p = ps_arena_alloc(arena, bytes);
    if (p != NULL && len != 0)
        memcpy(p, s, (size_t)len);
    return p;
}

char *ps_arena_strdup(ps_arena *arena, const char *s) {
    return ps_arena_strndup(arena, s, strlen(s));
}

uint64_t ps_arena_used(const ps_arena *arena) {
    return arena->used;
}
