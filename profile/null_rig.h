/* The null rig: a made-up machine whose speeds, contention and noise are known and the same every time, so that
 * the profiler itself can be tested. Its time passes without anybody waiting. */
#ifndef PS_PROFILE_NULL_RIG_H
#define PS_PROFILE_NULL_RIG_H

#include "profile/rig.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_null_config {
    uint64_t seed;
    uint32_t n_threads;            /* 0: 8 */
    double noise_frac;             /* sigma of the log-normal noise whose median is 1 */
    double outlier_frac;           /* share of samples that are 1.5 to 5 times too long */
    double disturbed_frac;         /* share that is 1.2 to 3 times too long and known to be disturbed */
    const ps_kernel_spec *kernels; /* borrowed */
    uint32_t n_kernels;
    bool gpu; /* a made-up GPU as well */
    /* Other work on the machine: for busy_frac of every busy_period_s all takes busy_times as long, which no sample says, only
     * the clock's probe where busy_clock is set. Period 0: never. */
    double busy_period_s, busy_frac, busy_times;
    bool busy_clock;
    uint64_t fail_after; /* samples until PS_E_OS, to test what then happens; 0: never */
} ps_null_config;

typedef struct ps_null_rig ps_null_rig;

ps_status ps_null_rig_new(const ps_null_config *config, ps_null_rig **out, ps_error *err);
void ps_null_rig_free(ps_null_rig *rig);
extern const ps_rig_ops ps_null_rig_ops;

/* True value of a task, and the true rate of what runs beside it (0 if nothing does). */
double ps_null_truth(const ps_null_rig *rig, const ps_task *task, double *out_beside_bytes_per_s);
/* Samples given so far. */
uint64_t ps_null_samples(const ps_null_rig *rig);

#ifdef __cplusplus
}
#endif
#endif
