/* Schedules tried out: how much of the work arena a tier needs under a rule, and how long its steps take. What was found is
 * kept, since a search asks for the same again and again. Private to the planner. */
#ifndef PS_PLAN_TRIAL_H
#define PS_PLAN_TRIAL_H

#include "plan/build.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PS_MAX_TIERS = 32 };

typedef struct ps_trial ps_trial;

/* For levels of the context and the sequences of lr; building, its request and lr are borrowed. Errors: PS_E_NOMEM,
 * PS_E_INFEASIBLE (a cache of more than 2^64 bytes). One thread at a time. */
ps_status ps_trial_new(ps_building *b, const ps_level_request *lr, ps_trial **out);
/* Another one for the same levels, for another thread: what either finds out both know. It has building's error and cache; all else
 * is borrowed from t, which lives longer. Errors: PS_E_NOMEM. */
ps_status ps_trial_twin(const ps_trial *t, ps_building *b, ps_trial **out);
void ps_trial_free(ps_trial *t);
const ps_resident_units *ps_trial_units(const ps_trial *t);
const uint64_t *ps_trial_kv_bytes(const ps_trial *t); /* [n_layers] of all sequences, aligned */

/* From now on work arenas are those of exactly what is resident, also in passing: where 16 MiB decide. */
void ps_trial_exactly(ps_trial *t);

/* Tiers of steps of at most `most` tokens; and of these the one for a token of every sequence, and for a prompt. */
uint32_t ps_tiers_up_to(uint64_t most, uint32_t *out);
uint32_t ps_decode_tokens(const ps_level_request *lr, uint32_t max_step);
uint32_t ps_prompt_tokens(const ps_plan_request *q, const ps_level_request *lr, uint32_t max_step);
uint64_t ps_longest_step(const ps_plan_request *q, const ps_level_request *lr);
/* The rule that a schedule has for a tier. */
ps_rule ps_schedule_rule(const ps_plan_request *q, const ps_level_request *lr, const ps_schedule *s,
                         uint32_t tokens);

/* Bytes of the work arena but for KV: of all tiers (exact), or of those that mostly need most. *out UINT64_MAX: a tier has no
 * program. Errors: PS_E_NOMEM. */
ps_status ps_trial_work(ps_trial *t, const ps_schedule *s, bool exact, uint64_t *out);
/* The schedule's mix and n_kv such that all fits into avail_bytes beside base, given work_bytes of it. */
bool ps_trial_fill(const ps_trial *t, ps_schedule *s, uint64_t avail_bytes);
/* The schedule's predicted times, infinite where there is no program. Errors: PS_E_NOMEM. */
ps_status ps_trial_time(ps_trial *t, ps_schedule *s);
/* The same, or infinite where the workload takes below_s or longer. */
ps_status ps_trial_time_below(ps_trial *t, ps_schedule *s, double below_s);
/* Times of one tier under a rule, with the residents and homes of s. */
ps_status ps_trial_tier_s(ps_trial *t, const ps_schedule *s, const ps_rule *rule, uint32_t tokens,
                          double *out_empty_s, double *out_full_s);
/* No schedule with that many bytes and threads is predicted to do the workload faster. */
ps_status ps_trial_bound(ps_trial *t, uint64_t avail_bytes, uint32_t n_threads, double *out_s);
/* Does a tier's program leave the CPU any weights? */
ps_status ps_trial_uses_cpu(ps_trial *t, const ps_schedule *s, bool *out);

#ifdef __cplusplus
}
#endif
#endif
