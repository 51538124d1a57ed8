/* The sweep: measures a list of tasks on a rig within a time limit and builds the machine profile from them. */
#ifndef PS_PROFILE_SWEEP_H
#define PS_PROFILE_SWEEP_H

#include "profile/rig.h"
#include "profile/stats.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_sweep_config {
    const ps_rig_ops *ops;
    void *rig;
    const ps_kernel_spec *kernels; /* the catalogue, ascending id */
    uint32_t n_kernels;
    const ps_task *tasks; /* see grid.h; any order */
    uint32_t n_tasks;
    const char *mode;           /* "quick", "default", "model" */
    const char *tool, *created; /* as in ps_profile */
    const char *note;           /* put before what the sweep notes itself; NULL if none */
    double limit_s;             /* for everything; no task starts that would not end within it */
    double max_task_s;          /* at most for one task */
    double save_every_s;
    double fill_s;            /* what making new weights may take, until one has shown it; 0: little */
    const ps_profile *resume; /* points to keep, from an interrupted run; NULL if none */
    /* Each may be NULL. progress: frac 0 to 1. save: profile with complete == false. stop: true ends the sweep. */
    void (*progress)(void *ctx, double frac, const char *label);
    ps_status (*save)(void *ctx, const ps_profile *profile, ps_error *err);
    bool (*stop)(void *ctx);
    void *ctx;
} ps_sweep_config;

typedef struct ps_sweep_result {
    ps_profile *profile; /* complete unless stopped; owned by the result */
    uint32_t n_measured, n_resumed, n_left_out, n_noisy;
    bool stopped;
} ps_sweep_result;

/* All in config is borrowed for the call. The result is freed with ps_sweep_free, also after an error or a stop,
 * when it holds what was measured until then. Essential tasks are done first, then
 * the others, cheapest first, those of a weight type together; each
 * gets an equal share of what time is left. Tasks there is no time for are left out and counted in the profile's note.
 * Errors: PS_E_NOMEM, those of the rig and of save. One thread. */
ps_status ps_sweep_run(const ps_sweep_config *config, ps_sweep_result *out, ps_error *err);
void ps_sweep_free(ps_sweep_result *result);

/* True if `old` may be resumed: unfinished, same mode, kernel set and machine, and its note starts with ours. */
bool ps_sweep_can_resume(const ps_profile *old, const ps_sweep_config *config);

#ifdef __cplusplus
}
#endif
#endif
