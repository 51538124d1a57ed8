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
 * PS_E_INFEASIBLE. One thread at a time; each search may have its own. */
ps_status ps_search_new(ps_building *b, const ps_level_request *lr, ps_search **out);
void ps_search_free(ps_search *s);
/* What the search's last error was. */
const ps_error *ps_search_error(const ps_search *s);

/* Another search for the same levels that has found nothing yet, for another thread; what is known of schedules both know. s lives
 * longer. Errors: PS_E_NOMEM. */
ps_status ps_search_twin(const ps_search *s, ps_search **out, ps_error *err);

/* Part of what ps_search_solve looks at: a point in full, or the families there. */
typedef struct ps_search_piece {
    uint64_t avail_bytes; /* beside base */
    bool in_full;
} ps_search_piece;
/* Pieces for a level, from 0 on, the longest first. False: there are no more. */
bool ps_search_piece_at(const ps_search *s, const ps_level_request *lr, uint32_t i, ps_search_piece *out);
/* Do a piece, on any thread and beside others, but not beside other calls of the search. It changes nothing but how much is left to find
 * out. Errors are for whoever comes to them. */
void ps_search_ahead(const ps_search *s, uint32_t n_threads, const ps_search_piece *piece);
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
