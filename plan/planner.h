/* The planner: model + profile + what is asked for -> plan. Reads no weights. */
#ifndef PS_PLAN_PLANNER_H
#define PS_PLAN_PLANNER_H

#include <stdint.h>

#include "core/status.h"
#include "model/model.h"
#include "plan/cost.h"
#include "plan/family.h"
#include "schemas/machine_profile.h"
#include "schemas/plan.h"
#include "schemas/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One level to plan. budget_bytes 0: no GPU takes part (budget "host"). */
typedef struct ps_level_request {
    char budget[24];
    uint64_t budget_bytes;
    uint64_t bucket_tokens;
    uint32_t n_seqs, n_threads;
} ps_level_request;

enum { PS_PLAN_PROMPT = 1024, PS_PLAN_OUTPUT = 256 };

/* All borrowed for the call. */
typedef struct ps_plan_request {
    const ps_model *model;
    const ps_profile *profile;
    const ps_cost_model *cost;      /* of that profile */
    const ps_level_request *levels; /* any order, equal ones are planned once */
    uint32_t n_levels;
    /* Told now and then how much of the call is done, about, from 0 to 1, and what is going on; on the caller's thread. NULL: nobody. */
    void (*progress)(void *ctx, double done_frac, const char *label);
    void *progress_ctx;
    uint64_t
        max_step_tokens;   /* largest tier, at most 65536; 0: PS_TILE_TOKENS, with a GPU 16384 where it leaves
                                 room for weights. Never above the level's context
                                 times its sequences */
    uint32_t max_outputs;  /* rows of logits at once; 0: one per sequence */
    uint64_t memory_bytes; /* host memory that may be used; 0: all the profile's machine has */
    bool forced; /* levels with a GPU: of `family`; otherwise what is predicted fastest for the workload */
    ps_family family;
    uint32_t prompt_tokens, output_tokens; /* the workload of a sequence; 0: PS_PLAN_PROMPT, PS_PLAN_OUTPUT */
    uint32_t n_workers;         /* threads to plan on; 0: the caller's alone. The plan is the same bytes */
    const char *tool, *created; /* as in ps_plan */
} ps_plan_request;

/* Why the first level that does not fit does not, and what by itself would, the other wishes unchanged. Exact: see plan/nearest.h. */
typedef struct ps_shortage {
    uint64_t needed_bytes; /* all bytes of the level in host memory; of VRAM the least budget that would do */
    uint64_t memory_bytes; /* what there is: host memory, or the budget */
    char largest[48];      /* what takes most: "weights", "kv cache", "context and libraries" ... */
    uint64_t largest_bytes;
    uint64_t nearest_context;      /* longest context that fits, a multiple of 256; 0: none */
    uint64_t nearest_budget_bytes; /* of VRAM: needed_bytes in whole MiB; 0 where host memory is short */
} ps_shortage;

/* A way to run a level, and what it is predicted to come to: a step of one token per sequence, in the mean of an empty and a
 * full context; all prompts of the workload; all of it. */
typedef struct ps_candidate {
    bool feasible;
    double decode_s, prompt_s, workload_s;
} ps_candidate;

/* How a level came about. */
typedef struct ps_level_report {
    char budget[24];
    uint64_t budget_bytes, bucket_tokens;
    uint32_t n_seqs, asked_threads, n_threads; /* threads that were allowed, and that are used */
    ps_candidate chosen;
    /* With a GPU: */
    ps_candidate family[PS_FAMILY_COUNT]; /* each by itself */
    ps_rule decode, prompt;               /* of the chosen */
    ps_path path;
    bool own_mix; /* what is resident is a mix on no path: some of a kind is left out though there is room */
    ps_kv_policy kv_policy;
    uint64_t left_bytes; /* of the budget: what the schedule does without, as it gains nothing */
    bool smaller;        /* it is the schedule of a smaller budget of the plan, or of fewer threads */
} ps_level_report;

/* levels: as many as the plan has, in their order; from malloc, the caller frees it. */
typedef struct ps_plan_report {
    uint32_t n_levels;
    ps_level_report *levels;
    uint64_t looked_at; /* schedules */
} ps_plan_report;

/* As ps_plan_build, and how it came about. report: may be NULL; written on PS_OK. */
ps_status ps_plan_search(const ps_plan_request *request, ps_plan **out, ps_plan_report *report,
                         ps_shortage *shortage, ps_error *err);

/* VRAM budgets at which the schedule of the request's first level (its context, sequences, threads) changes: ascending, from the
 * least that is feasible to all that is of use, within the profile's card. out holds 16; returns how many in *out_n.
 * Errors: as ps_plan_build. */
ps_status ps_plan_auto_budgets(const ps_plan_request *request, uint64_t *out, uint32_t *out_n, ps_error *err);

/* Predicted time of the request's workload on a level. */
double ps_plan_workload_s(const ps_plan_request *request, const ps_level *level);

/* Build a plan. On PS_OK the caller frees *out with ps_plan_free; the same request gives the same plan.
 * shortage: may be NULL; written with PS_E_INFEASIBLE, all 0 where no number can be told. Errors: PS_E_USAGE (context beyond the model's, threads
 * beyond the profile's, no levels), PS_E_UNSUPPORTED (no kernel), PS_E_UNAVAILABLE (a budget without a GPU),
 * PS_E_INFEASIBLE, PS_E_NOMEM. Pure; any thread. */
ps_status ps_plan_build(const ps_plan_request *request, ps_plan **out, ps_shortage *shortage, ps_error *err);

/* Token tiers of a level, ascending: 1, 2, 4, ... and at last the most tokens a step can have. out holds 32;
 * returns how many. */
uint32_t ps_plan_tiers(const ps_plan_request *request, const ps_level_request *level, uint32_t *out);

/* One step of a tier, every instruction, as simulated at kv_len positions before the step: appended to nothing, a
 * record of its own in *out, its events from malloc (the caller frees out->events). Errors: PS_E_NOMEM. */
ps_status ps_plan_simulate_step(const ps_plan *plan, uint32_t level, uint32_t tier, const ps_model *model,
                                const ps_profile *profile, const ps_cost_model *cost, uint64_t kv_len,
                                ps_trace_step *out, ps_error *err);

static inline void ps_plan_tell(const ps_plan_request *request, double done_frac, const char *label) {
    if (request->progress)
        request->progress(request->progress_ctx, done_frac, label);
}

#ifdef __cplusplus
}
#endif
#endif
