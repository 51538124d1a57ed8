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

/* How much of something the bus brings (or the GPU reads over it); the CPU does the rest. BALANCED: as much as lets both end
 * together by the profile's rates; AFTER_ATTENTION: that, once all attention is resident, else nothing. */
typedef enum ps_share { PS_SHARE_NONE, PS_SHARE_ALL, PS_SHARE_BALANCED, PS_SHARE_AFTER_ATTENTION } ps_share;

/* Where one tier finds what is not resident: a point of the space that the search moves in. Families are points of it. All
 * bytes are set, so that equal rules are equal byte for byte. */
typedef struct ps_rule {
    uint32_t family; /* it began as */
    uint32_t
        attn; /* ps_where of attention weights: STREAM, DIRECT or HOST. HOST only where KV is in host memory */
    uint32_t bus, head_bus; /* STREAM or DIRECT, for feed-forward blocks and head */
    uint32_t ffn, head;     /* ps_share */
    int32_t ffn_shift;      /* more columns than the share says, in units of ps_rule_ffn_unit, */
    int32_t ffn_shift_more; /* and in layers of which more is resident than of the others */
    int32_t head_shift;     /* more rows, in units of ps_rule_head_unit */
    int32_t direct_shift;   /* more experts of a layer that the GPU reads itself */
    uint32_t n_slots;       /* as in ps_placing */
    uint64_t range_bytes;
} ps_rule;

/* The family's rule for steps of max_tokens rows and max_outputs rows of logits. */
ps_rule ps_family_rule(ps_family family, uint64_t max_tokens, uint32_t max_outputs);
uint64_t ps_rule_ffn_unit(const ps_model *model, uint32_t layer);
uint64_t ps_rule_head_unit(const ps_model *model);

/* Most tokens of a step: families whose CPU takes part in long steps do them by one tile. */
uint64_t ps_family_max_step(ps_family family);

/* Where everything is for the tier that `r` asks for (r->place is not read). kv: homes of the level. *out: arrays from
 * arena. Errors: PS_E_NOMEM. Pure; any thread. */
ps_status ps_rule_place(const ps_rule *rule, const ps_lower_request *r, const ps_resident_set *resident,
                        const ps_kv_home *kv, ps_arena *arena, ps_placing *out, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
