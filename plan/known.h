/* What is known of tiers that were tried: a map from what decides it, as bytes. Private to the planner. */
#ifndef PS_PLAN_KNOWN_H
#define PS_PLAN_KNOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Each once it was asked for. work_bytes UINT64_MAX, times INFINITY: there is no such program. least_s: the mean of both times is no
 * less, where they were not worth finding out. */
typedef struct ps_tier_known {
    uint64_t work_bytes;
    double empty_s, full_s, least_s;
    bool has_work, has_empty, has_full;
} ps_tier_known;

typedef struct ps_known ps_known;

/* NULL: out of memory. The caller frees it. All below: any thread. */
ps_known *ps_known_new(void);
void ps_known_free(ps_known *known);
/* What was put in under that key; all false where nothing was. */
ps_tier_known ps_known_get(ps_known *known, const void *key, size_t n_bytes);
/* Add what is known in `more`. False: out of memory. */
bool ps_known_put(ps_known *known, const void *key, size_t n_bytes, const ps_tier_known *more);

#ifdef __cplusplus
}
#endif
#endif
