/* From the model's operation lists to programs: kernels, formats, buffers, blocks and waits. */
#ifndef PS_PLAN_LOWER_H
#define PS_PLAN_LOWER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/status.h"
#include "model/model.h"
#include "plan/cost.h"
#include "plan/deps.h"
#include "plan/place.h"
#include "schemas/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a position's keys and values in a layer's cache, as halves. */
static inline double ps_kv_row_bytes(const ps_layer *y) {
    return 2.0 * y->n_head_kv * ((double)y->head_dim_k + y->head_dim_v);
}

/* What one tier of one level asks for. All borrowed. */
typedef struct ps_lower_request {
    const ps_model *model;
    const ps_profile *profile;
    const ps_cost_model *cost;
    ps_cost_cache *cache; /* of it; NULL: none */
    const uint32_t
        *kinds; /* [n_layers] the first layer that each is like (ps_layers_alike); NULL: not known */
    uint32_t n_threads;
    uint64_t max_tokens; /* of a step; above PS_TILE_TOKENS layers run over tiles */
    uint32_t max_outputs;
    uint32_t n_seqs;
    uint64_t bucket_tokens;
    const ps_placing *place; /* NULL: everything in host memory, for the CPU */
    const ps_level
        *level;          /* with a GPU, for costs: its resident pieces and KV homes; NULL: none takes part */
    uint32_t max_direct; /* of the tier, for costs */
} ps_lower_request;

/* Steps of at most this many rows take the GPU's kernels for few rows, and may read weights direct. */
enum { PS_PLAN_DECODE_TOKENS = 8 };

/* The request that a tier of a plan answers, for costs. plan, model, profile, cost: borrowed by the result. */
ps_lower_request ps_lower_request_of(const ps_level *level, const ps_tier *tier, const ps_model *model,
                                     const ps_profile *profile, const ps_cost_model *cost);

/* Tokens an instruction works on at once: those of a tile, or output rows. */
uint64_t ps_lower_tokens(const ps_lower_request *r, ps_rows rows);

/* Program for the request, from `arena`; the same request gives the same program, waits included.
 * Errors: PS_E_UNSUPPORTED naming operation, type and layer where
 * the catalogue has no kernel; PS_E_NOMEM; PS_E_INTERNAL. */
ps_status ps_lower(const ps_lower_request *r, ps_arena *arena, ps_program *out, ps_error *err);

/* Are two layers alike but for where their weights are? */
bool ps_layers_alike(const ps_model *model, uint32_t a, uint32_t b);

/* Row of the catalogue by id; NULL if unknown. */
const ps_kernel_spec *ps_catalogue_find(const ps_profile *profile, uint32_t id);

/* Shape of an instruction as the profile's points have it, but for kv_len and tokens. layer: of its block. */
ps_cost_query ps_lower_query(const ps_model *model, uint32_t layer, const ps_instr *in, const ps_program *p);

/* Distinct experts that one execution of a MOE_DISPATCH is expected to meet: selected by its tokens in all (never 0); of these,
 * that it takes from where its processor has them (VRAM or slots; the CPU: host memory), and that the GPU reads direct. */
typedef struct ps_expert_share {
    double distinct, there, direct;
} ps_expert_share;
ps_expert_share ps_instr_experts(const ps_lower_request *r, const ps_program *p, const ps_instr *in,
                                 uint32_t layer);

/* Predicted time of one execution of an instruction for the first layer of its block, alone on the machine,
 * when sequences hold kv_len positions after the step. Steps over tiles: mean over the tiles. */
ps_cost ps_instr_cost(const ps_lower_request *r, const ps_program *p, uint32_t instr, uint32_t layer,
                      uint64_t kv_len);

/* Time of a product or mixture from the points; beside DIRECT it is known for all few rows where it is for one. */
bool ps_cost_of_product(const ps_lower_request *r, const ps_cost_query *q, ps_cost *out);

/* What the CPU reads weights at, at most, where the model is too large for caches and the profile has products on weights
 * that no cache holds; 0: no such limit. No CPU product is predicted faster. */
double ps_cost_cold_bytes_per_s(const ps_lower_request *r);

/* How fast CPU and bus go while the other is busy too, as fractions of alone, by the share of the bus's rate that is asked of it:
 * `n` shares, ascending, the last 1, what was measured at each; at none of it both are 1, and between shares it is a line. */
enum { PS_CONTENTION_SHARES = 8 };
typedef struct ps_slowing {
    uint32_t n;
    double share[PS_CONTENTION_SHARES], cpu[PS_CONTENTION_SHARES], bus[PS_CONTENTION_SHARES];
} ps_slowing;
typedef struct ps_contention {
    ps_slowing by[PS_BUS_COUNT];
    /* For ps_instr_speed, borrowed: of each instruction of `instrs` the share of the bus's rate it asks for. NULL: all of it. */
    const ps_instr *instrs;
    const double *bus_share;
} ps_contention;
ps_contention ps_contention_of(const ps_cost_model *cost, uint32_t n_threads);
double ps_slowing_cpu(const ps_slowing *s, double share);
double ps_slowing_bus(const ps_slowing *s, double share);
/* Share of the bus's rate that an instruction asks for which alone takes time_s, its hand-over included: of a copy, or of a GPU
 * instruction's reads of the host's memory. 0: none. */
double ps_instr_bus_share(const ps_lower_request *r, const ps_program *p, uint32_t instr, uint32_t layer,
                          uint64_t kv_len, double time_s);
/* For ps_sim: ctx is a ps_contention. CPU instructions that read weights, copies, and GPU instructions that read the
 * host slow each other down. */
double ps_instr_speed(void *ctx, const ps_instr *const running[PS_QUEUE_COUNT], ps_queue q);

/* Longest row among weights, sources and destination: what scratch is sized by. */
uint64_t ps_instr_cols(const ps_model *model, uint32_t layer, const ps_instr *in, const ps_program *p);

#ifdef __cplusplus
}
#endif
#endif
