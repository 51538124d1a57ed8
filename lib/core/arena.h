/* Bump allocator: everything that lives and dies together comes from one arena. */
#ifndef PS_CORE_ARENA_H
#define PS_CORE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_arena ps_arena;

/* New arena that hands out at most `limit_bytes` in all (UINT64_MAX: no limit), so that a parser's
 * memory can be bounded by its input. NULL when out of memory. Not thread-safe. */
ps_arena *ps_arena_new(uint64_t limit_bytes);
/* Frees every allocation made from it. NULL is allowed. */
void ps_arena_free(ps_arena *arena);

/* `size` zeroed bytes aligned to 16, valid until the arena is freed; size 0 gives a valid pointer.
 * NULL when out of memory or over the limit. */
void *ps_arena_alloc(ps_arena *arena, uint64_t size);
/* `n` objects of `size` bytes, zeroed; NULL also when n * size overflows. */
void *ps_arena_array(ps_arena *arena, uint64_t n, uint64_t size);
/* Copy of `len` bytes with a NUL after them. */
char *ps_arena_strndup(ps_arena *arena, const char *s, uint64_t len);
char *ps_arena_strdup(ps_arena *arena, const char *s);
/* Bytes handed out so far (payload, rounded up to the alignment). */
uint64_t ps_arena_used(const ps_arena *arena);

#ifdef __cplusplus
}
#endif
#endif
