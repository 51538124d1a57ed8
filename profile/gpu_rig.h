/* The rig of a machine with a GPU: bus, hand-over, launches and the kernels of device cuda on a live (or emulated) device;
 * everything else is the CPU rig's. */
#ifndef PS_PROFILE_GPU_RIG_H
#define PS_PROFILE_GPU_RIG_H

#include "machine/device.h"
#include "machine/topology.h"
#include "model/model.h"
#include "profile/rig.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is to tell the GPU's time. AUTO: CUPTI, and events where it cannot be had or trusted; the profile says which, and why.
 * CUPTI: nothing else, or it is an error. */
typedef enum ps_gpu_timer_choice {
    PS_GPU_TIMER_AUTO,
    PS_GPU_TIMER_CUPTI,
    PS_GPU_TIMER_EVENTS
} ps_gpu_timer_choice;

typedef struct ps_gpu_config {
    const ps_machine *machine; /* borrowed, live */
    const ps_model *model;     /* NULL, or whose conventions the operands follow; borrowed */
    ps_device *device;         /* borrowed; nothing else uses it meanwhile */
    const ps_rig_ops *cpu_ops; /* of the rig for all that is not the GPU's */
    void *cpu_rig;
    ps_gpu_timer_choice timer;
    const char *cupti_library; /* NULL: found as ps_cupti_open does, for a device that is real */
    const char *cuda_home;     /* a toolkit's folder; NULL: none is known */
} ps_gpu_config;

typedef struct ps_gpu_rig ps_gpu_rig;

/* Loads every kernel and reads the meter before it takes memory of its own: base_bytes of the profile. Errors:
 * PS_E_NOMEM, those of the device, those of ps_cupti_open where the timer must be CUPTI. The rig is used by the thread that made it. */
ps_status ps_gpu_rig_new(const ps_gpu_config *config, ps_gpu_rig **out, ps_error *err);
void ps_gpu_rig_free(ps_gpu_rig *rig); /* NULL is allowed */
/* The latter for emulated devices: what they give is marked synthetic. */
extern const ps_rig_ops ps_gpu_rig_ops, ps_gpu_rig_emulated_ops;
/* Whether cuBLAS was found: its kernels cannot be measured without. */
bool ps_gpu_rig_has_blas(const ps_gpu_rig *rig);

#ifdef __cplusplus
}
#endif
#endif
