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

typedef struct ps_gpu_config {
    const ps_machine *machine; /* borrowed, live */
    const ps_model *model;     /* NULL, or whose conventions the operands follow; borrowed */
    ps_device *device;         /* borrowed; nothing else uses it meanwhile */
    const ps_rig_ops *cpu_ops; /* of the rig for all that is not the GPU's */
    void *cpu_rig;
} ps_gpu_config;

typedef struct ps_gpu_rig ps_gpu_rig;

/* Loads every kernel and reads the meter before it takes memory of its own: base_bytes of the profile. Errors:
 * PS_E_NOMEM, those of the device. The rig is used by the thread that made it. */
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
