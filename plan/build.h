/* A plan while it is built. Private to the planner. */
#ifndef PS_PLAN_BUILD_H
#define PS_PLAN_BUILD_H

#include "core/arena.h"
#include "plan/lower.h"
#include "plan/planner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A program of the plan with what all its tiers share. */
typedef struct ps_built_program {
    ps_program program;
    bool *conflict;
} ps_built_program;

typedef struct ps_building {
    const ps_plan_request *q;
    ps_plan *plan;
    ps_arena *work; /* of things that end with the build */
    ps_built_program *programs;
    uint32_t n_programs, room;
    ps_error *err;
} ps_building;

ps_status ps_build_no_memory(ps_error *err);
/* The program for a request: one already built, or a new one. */
ps_status ps_build_program(ps_building *b, const ps_lower_request *r, uint32_t *out_index);
/* Program, offsets and scratch of a tier, its arrays from arena. kv_end: per space, where KV ends and the rest begins;
 * out_end: raised to where the tier ends. */
ps_status ps_build_tier(ps_building *b, const ps_lower_request *r, ps_arena *arena, const uint64_t kv_end[2],
                        ps_tier *tier, uint64_t out_end[2]);
/* Times of a tier: simulated at an empty and at a full bucket. */
ps_status ps_build_predict(ps_building *b, const ps_lower_request *r, const ps_program *p, ps_tier *tier);
/* A request without a place for a tier of a level. */
ps_lower_request ps_build_request(const ps_plan_request *q, const ps_level_request *level,
                                  uint32_t max_tokens);

/* A level with a GPU, in three steps. First each level by itself: families, longest step, and how much of VRAM is for
 * weights. Then, all levels known, the resident pieces that they share; last the level itself. */
typedef struct ps_gpu_choice {
    ps_family few, many; /* for steps of at most PS_PLAN_DECODE_TOKENS rows, and for longer ones */
    uint32_t max_step;
    uint64_t base_bytes, weight_bytes; /* of the arena of resident pieces, a multiple of PS_VRAM_ALIGN */
    uint32_t n_attn;                   /* layers whose attention and KV are in VRAM */
    double workload_s;                 /* predicted */
} ps_gpu_choice;
ps_status ps_gpu_choose(ps_building *b, const ps_level_request *lr, ps_gpu_choice *out,
                        ps_shortage *shortage);
/* resident: the set as grown for this level. */
ps_status ps_gpu_build(ps_building *b, const ps_level_request *lr, const ps_gpu_choice *choice,
                       const ps_resident_set *resident, ps_level *level);

#ifdef __cplusplus
}
#endif
#endif
