/* Progress line on stderr with time left; silent unless stderr is a terminal. */
#ifndef PS_CORE_PROGRESS_H
#define PS_CORE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_progress {
    FILE *out; /* NULL: silent */
    uint64_t start_ns, last_ns;
    double done_frac;
} ps_progress;

/* Draws on `out` when it is a terminal, otherwise stays silent. One thread at a time. */
void ps_progress_start(ps_progress *p, FILE *out);
/* done_frac: 0 to 1. label: what is going on. Redraws at most every 100 ms, one row of the terminal at most. */
void ps_progress_update(ps_progress *p, double done_frac, const char *label);
/* Clear the line. */
void ps_progress_end(ps_progress *p);

#ifdef __cplusplus
}
#endif
#endif
