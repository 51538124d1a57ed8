/* A plan while it is built. Private to the planner. */
#ifndef PS_PLAN_BUILD_H
#define PS_PLAN_BUILD_H

#include "core/arena.h"
#include "plan/family.h"
#include "plan/lower.h"
#include "plan/planner.h"
#include "plan/simulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A program of the plan with what all its tiers share. */
typedef struct ps_built_program {
    ps_program program;
    bool *conflict;
} ps_built_program;

/* A level that does not fit, as asked for, and what is short. n_seqs 0: none is known. */
typedef struct ps_too_small {
    ps_level_request level;
    bool vram;      /* the budget; otherwise host memory */
    ps_shortage is; /* without what would fit; for VRAM memory_bytes alone */
} ps_too_small;

typedef struct ps_building {
    const ps_plan_request *q;
    ps_plan *plan;
    ps_arena *work;       /* of things that end with the build */
    ps_cost_cache *cache; /* NULL: none */
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
/* The same for a tier whose program is one of the building's. */
ps_status ps_build_places(ps_building *b, const ps_lower_request *r, ps_arena *arena,
                          const uint64_t kv_end[2], ps_tier *tier, uint64_t out_end[2]);
/* Times of a tier: simulated at an empty and at a full bucket. */
ps_status ps_build_predict(ps_building *b, const ps_lower_request *r, const ps_program *p, ps_tier *tier);
/* A request without a place for a tier of a level. */
ps_lower_request ps_build_request(const ps_plan_request *q, const ps_level_request *level,
                                  uint32_t max_tokens);

/* Time of a step of a program when sequences hold kv_len positions after it. */
ps_status ps_build_step_s(const ps_lower_request *r, const ps_program *p, uint64_t kv_len, double *out_s,
                          ps_error *err);
/* The same with the times of the whole stream: see ps_simulate_all. */
ps_status ps_build_stream(const ps_lower_request *r, const ps_program *p, uint64_t kv_len,
                          ps_sim_time **out_times, uint64_t *out_n, double *out_s, ps_error *err);
/* Two of them, unless their mean is most_s or more at any rate, by what the queues have to do: then both are INFINITY, and
 * *out_least_s is what it is at least. */
ps_status ps_build_both_s(const ps_lower_request *r, const ps_program *p, const uint64_t kv_len[2],
                          double most_s, double out_s[2], double *out_least_s, ps_error *err);

/* How a level with a GPU is run: a point of the space that the search moves in, and what it comes to. */
typedef struct ps_schedule {
    ps_rule decode,
        prompt; /* for a token of every sequence, and for the workload's prompt; other tiers: ps_schedule_rule */
    uint32_t path, kv_policy; /* ps_path, ps_kv_policy */
    uint32_t max_step, n_threads;
    ps_resident_mix left_out; /* never resident, though there may be room */
    /* What that comes to with the bytes that there are. */
    ps_resident_mix mix;
    uint32_t n_kv; /* layers whose KV is in VRAM */
    uint64_t base_bytes, work_bytes,
        extra_bytes; /* work_bytes: of the work arena but for KV; extra: of these, what tiers
                                                    need that are not looked at in passing */
    double decode_s, prompt_s, workload_s; /* of a step, of all prompts, of all */
} ps_schedule;

/* As ps_plan_search, but for what is said where a level does not fit: that it does not, and which in *too_small. */
ps_status ps_build_plan(const ps_plan_request *q, ps_plan **out, ps_plan_report *report,
                        ps_too_small *too_small, ps_error *err);
/* Programs, offsets and sizes of a level without a GPU; times only where `level` is wanted for a plan. *out_kv_end: end of the
 * caches, UINT64_MAX where they overflow. */
ps_status ps_host_build(ps_building *b, const ps_level_request *lr, bool with_times, ps_level *level,
                        uint64_t *out_kv_end);

/* Bytes that a level has before any arena. */
uint64_t ps_gpu_base_bytes(const ps_profile *p);
/* The rule of the level's tier number `tier` (beyond the last: nothing is done): the schedule's, or, of a tier that the search did not look
 * at, the fastest. Of b only request, error and cache are used. */
ps_status ps_gpu_rule(ps_building *b, const ps_level_request *lr, const ps_schedule *schedule,
                      const ps_resident_set *resident, uint32_t tier, ps_rule *out);
/* The level by its schedule. resident: the set as grown for it; rules: of its tiers, NULL for the schedule's. */
ps_status ps_gpu_build(ps_building *b, const ps_level_request *lr, const ps_schedule *schedule,
                       const ps_resident_set *resident, const ps_rule *rules, ps_level *level);
/* The least bytes beside base with which there is a schedule. */
ps_status ps_gpu_least(ps_building *b, const ps_level_request *lr, uint64_t *out_work, uint64_t *out_all);

/* All levels with a GPU, into out[]: at[n] gives their places among the levels asked for, which ascend. reports: NULL, or one for
 * each. */
ps_status ps_gpu_plan(ps_building *b, const ps_level_request *levels, const uint32_t *at, uint32_t n,
                      ps_level *out, ps_level_report *reports, uint64_t *looked_at, ps_too_small *too_small);

#ifdef __cplusplus
}
#endif
#endif
