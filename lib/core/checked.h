/* Checked arithmetic on sizes: every size in Pinstripe is a uint64_t and every sum or product of
 * sizes that come from input goes through here. */
#ifndef PS_CORE_CHECKED_H
#define PS_CORE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* Each returns true and writes *out, or returns false and leaves *out alone on overflow. */
static inline bool ps_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    if (a > UINT64_MAX - b)
        return false;
    *out = a + b;
    return true;
}

static inline bool ps_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    if (a != 0 && b > UINT64_MAX / a)
        return false;
    *out = a * b;
    return true;
}

/* Round up to a multiple of `align`, a power of two. */
static inline bool ps_align_u64(uint64_t a, uint64_t align, uint64_t *out) {
    uint64_t sum;
    if (!ps_add_u64(a, align - 1, &sum))
        return false;
    *out = sum & ~(align - 1);
    return true;
}

/* True if [offset, offset + size) lies inside [0, total). */
static inline bool ps_range_ok(uint64_t offset, uint64_t size, uint64_t total) {
    return offset <= total && size <= total - offset;
}

#endif
