/* XXH3-128 through Debian's libxxhash, used header-only so that nothing is linked. */
#include "core/hash.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct ps_hash {
    XXH3_state_t *state;
};

ps_hash *ps_hash_new(void) {
    ps_hash *h = malloc(sizeof *h);
    if (h == NULL)
        return NULL;
    h->state = XXH3_createState();
    if (h->state == NULL) {
        free(h);
        return NULL;
    }
    (void)XXH3_128bits_reset(h->state);
    return h;
}

void ps_hash_add(ps_hash *h, const void *data, uint64_t size) {
    if (size != 0)
        (void)XXH3_128bits_update(h->state, data, (size_t)size);
}

void ps_hash_add_u64(ps_hash *h, uint64_t value) {
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(value >> (8 * i));
    ps_hash_add(h, b, sizeof b);
}

static void put(XXH128_hash_t digest, uint8_t out[PS_HASH_BYTES]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, digest);
    memcpy(out, canonical.digest, PS_HASH_BYTES);
}

void ps_hash_end(ps_hash *h, uint8_t out[PS_HASH_BYTES]) {
    put(XXH3_128bits_digest(h->state), out);
    (void)XXH3_freeState(h->state);
    free(h);
}

void ps_hash_bytes(const void *data, uint64_t size, uint8_t out[PS_HASH_BYTES]) {
    put(XXH3_128bits(data, (size_t)size), out);
}

char *ps_hash_hex(const uint8_t hash[PS_HASH_BYTES], char buf[PS_HASH_HEX]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < PS_HASH_BYTES; i++) {
        buf[2 * i] = digits[hash[i] >> 4];
        buf[2 * i + 1] = digits[hash[i] & 15];
    }
    buf[2 * PS_HASH_BYTES] = '\0';
    return buf;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int ps_hash_parse(const char *hex, uint8_t out[PS_HASH_BYTES]) {
    uint8_t bytes[PS_HASH_BYTES];
    for (int i = 0; i < PS_HASH_BYTES; i++) {
        int hi = hex_value(hex[2 * i]);
        int lo = hi < 0 ? -1 : hex_value(hex[2 * i + 1]);
        if (lo < 0)
            return -1;
        bytes[i] = (uint8_t)(hi << 4 | lo);
    }
    if (hex[2 * PS_HASH_BYTES] != '\0')
        return -1;
    memcpy(out, bytes, sizeof bytes);
    return 0;
}
