/* The rig of the CPUs of this machine: kernels of lib/kernels on the thread pool of lib/machine, run as the
 * executor runs them. */
#ifndef PS_PROFILE_CPU_RIG_H
#define PS_PROFILE_CPU_RIG_H

#include "machine/topology.h"
#include "model/model.h"
#include "profile/rig.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_cpu_config {
    const ps_machine *machine; /* borrowed, live */
    const ps_model *model;     /* NULL, or whose conventions the operands follow; borrowed */
    uint64_t cold_bytes;       /* memory that weights cycle through; 0: ps_cpu_cold_bytes */
} ps_cpu_config;

typedef struct ps_cpu_rig ps_cpu_rig;

/* Errors: PS_E_NOMEM. The rig is used by the thread that made it. */
ps_status ps_cpu_rig_new(const ps_cpu_config *config, ps_cpu_rig **out, ps_error *err);
void ps_cpu_rig_free(ps_cpu_rig *rig);
extern const ps_rig_ops ps_cpu_rig_ops;

/* Memory that weights cycle through: four times the last-level cache (quick: three times), at least 256 MB, at most a
 * quarter of free memory and 2 GB; for a model what its weights take, up to the former. */
uint64_t ps_cpu_cold_bytes(const ps_machine *machine, const ps_model *model, bool quick);

#ifdef __cplusplus
}
#endif
#endif
