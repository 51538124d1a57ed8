/* What stays in VRAM, in the one order that all levels of a plan share, so that a smaller level's pieces are the first of a
 * larger one's: small weights of all layers; attention layer by layer; the head by rows; then feed-forward blocks, a slice
 * of columns (or some experts) of every layer in turn, so that layers stay alike. */
#ifndef PS_PLAN_RESIDENT_H
#define PS_PLAN_RESIDENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "schemas/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How far the order has been followed. */
typedef struct ps_resident_set {
    const ps_model *model; /* borrowed */
    uint32_t n, room;
    ps_resident *pieces; /* from malloc; ascending offset */
    uint64_t bytes;      /* end of the last piece */
    bool small;          /* small weights are in */
    uint32_t n_attn;     /* layers whose attention is */
    uint64_t head_rows;
    uint64_t *ffn; /* [n_layers] hidden columns or experts, from the first on; from malloc */
} ps_resident_set;

/* Empty set. Errors: PS_E_NOMEM. */
ps_status ps_resident_init(ps_resident_set *set, const ps_model *model, ps_error *err);
void ps_resident_free(ps_resident_set *set);
/* Follow the order as far as `bytes` in all hold. What one call adds of a matrix is one piece. n_attn: attention of at most
 * so many layers; nothing behind it unless that is all of them. Errors: PS_E_NOMEM. */
ps_status ps_resident_grow(ps_resident_set *set, uint64_t bytes, uint32_t n_attn, ps_error *err);

/* Bytes of the small weights, which every level with a GPU needs; of a layer's attention matrices. */
uint64_t ps_resident_small_bytes(const ps_model *model);
uint64_t ps_resident_attn_bytes(const ps_model *model, uint32_t layer);
/* A weight that is small: norms, biases, routers, rope factors. */
bool ps_resident_is_small(ps_role role);
/* Columns at which a layer's feed-forward block may be cut; 0: not at all. */
uint64_t ps_ffn_step(const ps_model *model, uint32_t layer);

#ifdef __cplusplus
}
#endif
#endif
