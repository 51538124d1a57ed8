/* Visits: a task is measured several times, minutes apart where there is time, since what a shared machine does in one moment
 * says little about the next. What disturbs only ever adds, so the quickest visits are nearest to the machine's own speed; that
 * two of them agree is the proof. */
#ifndef PS_PROFILE_VISITS_H
#define PS_PROFILE_VISITS_H

#include <stdbool.h>

#include "profile/stats.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PS_VISITS = 6 };

/* What one visit found. */
typedef struct ps_visit {
    ps_stat stat;   /* times, also of what is a rate */
    ps_stat other;  /* of what was measured at the same time, as times; n 0: nothing was */
    double beside;  /* rate of what ran beside */
    double clock_s; /* the clock's probe before it; 0: unknown */
    bool starved;   /* fewer than two samples were undisturbed: it proves nothing */
} ps_visit;

typedef struct ps_visits {
    uint32_t n;
    ps_visit visit[PS_VISITS];
} ps_visits;

/* Keeps the quickest where there is no more room. */
void ps_visits_add(ps_visits *visits, const ps_visit *visit);

/* True when nothing is left to find out: two visits that were not starved, at a clock that was not lowered, are within PS_VISITS_AGREE of the
 * quickest. clock_limit_s: probes above it mean a lowered clock; INFINITY where no limit is known. */
#define PS_VISITS_AGREE 0.10
#define PS_VISITS_NEAR 0.03
bool ps_visits_settled(const ps_visits *visits, double clock_limit_s);

/* One result of all visits: those at a lowered clock are discarded where others remain; of these the quickest, and where the
 * second agrees with it that one and all within PS_VISITS_NEAR of it, each weighing the same. A result of several visits is noisy unless it is settled, one of a single visit where that was
 * noisy or its clock lowered. visits->n at least 1. */
ps_visit ps_visits_result(const ps_visits *visits, double clock_limit_s);

/* What a lowered clock is: 8% above the quickest quarter's end of n probes; INFINITY for none. room holds n. */
double ps_clock_limit(const double *probes, uint32_t n, double *room);

#ifdef __cplusplus
}
#endif
#endif
