/* What search.c and climb.c share: the state of a search, and schedules at a given number of bytes. */
#ifndef PS_PLAN_CLIMB_H
#define PS_PLAN_CLIMB_H

#include <math.h>

#include "plan/search.h"
#include "plan/trial.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Better by more than what predictions are good for: of near equals the simpler stays. */
#define PS_CLEARLY 0.9995

/* What was found at a point. */
typedef struct found {
    uint64_t point;
    uint32_t n_threads;
    ps_path path;
    bool alone; /* without what its neighbours found */
    bool feasible;
    ps_schedule s;
} found;

struct ps_search {
    ps_building *b;  /* &own */
    ps_building own; /* request, error and cache */
    ps_error error;
    ps_trial *trial;
    ps_level_request lr;
    uint64_t least, apart; /* the first point, and the distance of the others: multiples of PS_VRAM_ALIGN */
    uint64_t last;         /* the last point: with that everything is resident */
    bool small;            /* so few points that each is searched in full, from more beginnings */
    bool mixes;            /* and any mix of residents may be, as no other level follows */
    uint64_t per_cell;     /* points from one that is searched in full to the next */
    found *found;
    uint32_t n_found, room;
    uint64_t looked_at;
};

static inline uint64_t ps_round_up(uint64_t bytes, uint64_t unit) {
    return bytes > UINT64_MAX / 2 ? UINT64_MAX / 2 / unit * unit : (bytes + unit - 1) / unit * unit;
}

/* Below: avail is the VRAM beside base, a multiple of PS_VRAM_ALIGN; path: the order of residents, PS_PATH_COUNT: any. Errors of all:
 * PS_E_NOMEM and what lowering a tier can say. */

/* Predict a schedule's workload, whose mix and work arena are set. */
ps_status ps_climb_time(ps_search *s, ps_schedule *c);
/* A family's rules into a schedule whose max_step is set. */
void ps_climb_family_rules(const ps_search *s, ps_family f, ps_schedule *c);
/* A family by itself. exact: with the work arena of all its tiers. *out: it fits. */
ps_status ps_climb_family(ps_search *s, ps_family f, uint64_t avail, uint32_t n_threads, ps_path path,
                          bool exact, ps_schedule *c, bool *out);
/* Moves from *best, as long as one gains. */
ps_status ps_climb_moves(ps_search *s, ps_schedule *best, ps_path path, uint64_t avail);
/* Fractions alone, moved until none gets better. */
ps_status ps_climb_shares(ps_search *s, ps_schedule *best);
/* All tiers looked at: the work arena that the schedule really has, and what is resident beside it. *out: it fits. */
ps_status ps_climb_verify(ps_search *s, ps_schedule *c, uint64_t avail, bool *out);
/* The best schedule that is found with exactly so many bytes and threads. */
ps_status ps_climb_in_full(ps_search *s, uint64_t avail, uint32_t n_threads, ps_path path, ps_schedule *out,
                           bool *feasible);

#ifdef __cplusplus
}
#endif
#endif
