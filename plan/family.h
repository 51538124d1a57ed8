/* The five families: rules that say, for what is resident at a level, where a tier finds everything else. */
#ifndef PS_PLAN_FAMILY_H
#define PS_PLAN_FAMILY_H

#include "plan/lower.h"
#include "plan/resident.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, "name"), simplest first: of equals the first is taken.
 * GPU      the GPU computes everything, what is not resident is streamed
 * DIRECT   the same, but steps of few rows read it from host memory
 * STATIC   what is not resident is computed by the CPU
 * DYNAMIC  attention is streamed, and as much of the feed-forward blocks as the bus brings while the CPU does the rest
 * SPLIT    every block is shared out between VRAM, the bus and the CPU: steps of few rows read direct, longer ones stream, as
 *          much as balances what the CPU does with so many rows; steps over tiles leave the CPU out */
#define PS_FAMILY_LIST(X)                                                                                    \
    X(GPU, "gpu") X(DIRECT, "direct") X(STATIC, "static") X(DYNAMIC, "dynamic") X(SPLIT, "split")
typedef enum ps_family {
#define PS_FAMILY_ENUM(name, text) PS_FAMILY_##name,
    PS_FAMILY_LIST(PS_FAMILY_ENUM)
#undef PS_FAMILY_ENUM
        PS_FAMILY_COUNT
} ps_family;
const char *ps_family_name(ps_family family);
ps_family ps_family_by_name(const char *name); /* PS_FAMILY_COUNT if unknown */

/* Most tokens of a step: families whose CPU takes part in long steps do them by one tile. */
uint64_t ps_family_max_step(ps_family family);

/* Where everything is for the tier that `r` asks for (r->place is not read). kv: homes of the level. *out: arrays from
 * arena. Errors: PS_E_NOMEM. Pure; any thread. */
ps_status ps_family_place(ps_family family, const ps_lower_request *r, const ps_resident_set *resident,
                          const ps_kv_home *kv, ps_arena *arena, ps_placing *out, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
