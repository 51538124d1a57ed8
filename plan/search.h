/* The search for the schedule of a level with a GPU: docs/psplan.md, "Search". Private to the planner.
 *
 * What is searched depends on the model, the machine, the workload and points on the scale of bytes, not on the budget: a
 * larger budget or team has every candidate of a smaller one. */
#ifndef PS_PLAN_SEARCH_H
#define PS_PLAN_SEARCH_H

#include "plan/trial.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_search ps_search;

/* For all levels of the context and the sequences of lr. The building's request is borrowed. Errors: PS_E_NOMEM,
 * PS_E_INFEASIBLE. One thread at a time. */
ps_status ps_search_new(ps_building *b, const ps_level_request *lr, ps_search **out);
void ps_search_free(ps_search *s);
/* From now on for the only level of its plan: what is resident need not be on a path that others share. Of models of few layers
 * that makes a difference; of others it changes nothing. */
void ps_search_alone(ps_search *s);
bool ps_search_same(const ps_search *s, const ps_level_request *lr);

/* The schedule for a budget and a team. path: PS_PATH_COUNT for any. Errors: PS_E_NOMEM, PS_E_INFEASIBLE. */
ps_status ps_search_solve(ps_search *s, const ps_level_request *lr, ps_path path, uint32_t n_threads,
                          ps_schedule *out);
/* The workload's time when another team follows a schedule. */
ps_status ps_search_with_team(ps_search *s, const ps_schedule *c, uint32_t n_threads, double *out_s);
/* The families by themselves, as --force would have them: infinite where one does not fit. */
ps_status ps_search_families(ps_search *s, const ps_level_request *lr, ps_schedule out[PS_FAMILY_COUNT]);
/* One family by itself. Errors: PS_E_INFEASIBLE. */
ps_status ps_search_family(ps_search *s, const ps_level_request *lr, ps_family family, ps_schedule *out);
/* A schedule that needs more_bytes less: less resident. False: there is nothing to leave out. */
bool ps_search_less(ps_search *s, const ps_level_request *lr, uint64_t more_bytes, ps_schedule *c);
/* Budgets from which on the schedule is another one: at most 16, ascending. Errors: PS_E_NOMEM, PS_E_INFEASIBLE. */
ps_status ps_search_changes(ps_search *s, const ps_level_request *lr, uint64_t *out, uint32_t *out_n);
/* Teams that are tried below a larger one: all small ones, then by halves. A smaller one must be faster by this factor. */
bool ps_search_is_team(uint32_t n_threads, uint32_t n_allowed);
#define PS_SEARCH_TEAM 0.999
/* Schedules looked at so far. */
uint64_t ps_search_looked_at(const ps_search *s);

#ifdef __cplusplus
}
#endif
#endif
