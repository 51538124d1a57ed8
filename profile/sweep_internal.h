/* Between sweep.c and sweep_result.c: where a task's result is in a profile. */
#ifndef PS_PROFILE_SWEEP_INTERNAL_H
#define PS_PROFILE_SWEEP_INTERNAL_H

#include "profile/grid.h"
#include "profile/sweep.h"

typedef struct ps_slot {
    ps_stat *stat;
    ps_stat *other; /* of the reads of TOGETHER and PACED; NULL */
    double *beside; /* of a kernel; NULL */
} ps_slot;

/* A task whose sample is of two sides, bus and reads. */
static inline bool ps_sweep_both(ps_measure m) {
    return m == PS_MEASURE_TOGETHER || m == PS_MEASURE_PACED;
}

/* add: a row is made where there is none; the tables have room for all tasks. False: it is not there. */
bool ps_slot_find(ps_profile *profile, const ps_task *task, bool add, ps_slot *out);
/* No results at all; tables keep their room. */
void ps_sweep_clear(ps_profile *profile);
/* Tables in the order of the document, best rates from the points. */
void ps_sweep_order(ps_profile *profile);
/* As it is stored: five digits, quartiles four. */
double ps_sweep_stored(double value);
double ps_sweep_stored_quartile(double value);

#endif
