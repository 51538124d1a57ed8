/* Where the weights of a level are for one tier: what the families decide and lowering follows. */
#ifndef PS_PLAN_PLACE_H
#define PS_PLAN_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where weights are and who computes with them: resident in VRAM; streamed through slots; read by the GPU from host
 * memory; in host memory for the CPU. */
typedef enum ps_where { PS_WHERE_VRAM, PS_WHERE_STREAM, PS_WHERE_DIRECT, PS_WHERE_HOST } ps_where;

/* Consecutive hidden columns of a feed-forward block, experts, or rows of the output matrix. */
typedef struct ps_place_part {
    ps_where where;
    uint64_t first, n;
} ps_place_part;

enum { PS_MAX_PARTS = 40 };

/* One layer. Parts of the feed-forward block ascend and are the whole of it; at most one is HOST, at most one STREAM, at
 * most one DIRECT. A VRAM part is a resident piece of each matrix. Experts that are VRAM come first. Of the others the CPU
 * has its HOST part where some are streamed; otherwise, with DIRECT or VRAM parts, the rule of ps_moe_part decides. */
typedef struct ps_layer_place {
    ps_where attn;
    bool
        kv_slot; /* the GPU computes attention in a KV slot, filled from a home in host memory and brought back */
    bool kv_host; /* its cache is at home in host memory: such layers take another time */
    uint32_t n_parts;
    ps_place_part part[PS_MAX_PARTS];
} ps_layer_place;

/* All of a tier. */
typedef struct ps_placing {
    ps_layer_place *layers; /* [n_layers]; alike layers are equal byte for byte */
    uint32_t n_head;
    ps_place_part head[PS_MAX_PARTS];
    uint32_t n_slots;       /* in rotation for products; experts take two sets of three */
    uint64_t range_bytes;   /* most bytes of a streamed range, but for ranges of one row or expert */
    bool carry;             /* slots stay filled across the end of a step */
    uint64_t kv_slot_bytes; /* the largest layer's KV of all sequences, where a layer has kv_slot */
    uint32_t max_direct;    /* of the tier */
} ps_placing;

#ifdef __cplusplus
}
#endif
#endif
