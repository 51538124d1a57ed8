/* 128-bit content hash (XXH3), for identity, not for security. */
#ifndef PS_CORE_HASH_H
#define PS_CORE_HASH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PS_HASH_BYTES = 16, PS_HASH_HEX = 33 };

typedef struct ps_hash ps_hash;
/* Streaming: NULL when out of memory. One thread at a time. */
ps_hash *ps_hash_new(void);
void ps_hash_add(ps_hash *h, const void *data, uint64_t size);
void ps_hash_add_u64(ps_hash *h, uint64_t value); /* little-endian */
/* Writes the digest (canonical, big-endian) and frees h. */
void ps_hash_end(ps_hash *h, uint8_t out[PS_HASH_BYTES]);

void ps_hash_bytes(const void *data, uint64_t size, uint8_t out[PS_HASH_BYTES]);
/* 32 lower-case hex digits and a NUL; returns buf. */
char *ps_hash_hex(const uint8_t hash[PS_HASH_BYTES], char buf[PS_HASH_HEX]);
/* Returns 0 and fills out, or -1 if `hex` is not 32 hex digits. */
int ps_hash_parse(const char *hex, uint8_t out[PS_HASH_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
