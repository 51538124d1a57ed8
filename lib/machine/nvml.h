/* NVML, the library of nvidia-smi, opened at run time: device memory of this process and of all, driver, link, clocks. Where it
 * is not there, or does not know, the answer says so; a figure is never made up.
 *
 * A ps_nvml is one GPU. After ps_nvml_open (and ps_nvml_meter_end, for the meter) all calls may come from any thread. */
#ifndef PS_MACHINE_NVML_H
#define PS_MACHINE_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "machine/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_nvml ps_nvml;

enum { PS_NVML_PROCESSES = 256 }; /* most that are looked at */
#define PS_NVML_UNKNOWN UINT64_MAX

typedef struct ps_nvml_process {
    uint32_t pid;   /* in the namespace of the driver: in a container seldom ours */
    uint64_t bytes; /* PS_NVML_UNKNOWN: it does not say */
} ps_nvml_process;

/* uuid: "GPU-..." or "MIG-...", as ps_device_info has it; GPUs are never matched by index, whose order CUDA and NVML do
 * not share. library: NULL is libnvidia-ml.so.1; tests name another. Errors: PS_E_UNAVAILABLE (no library, no driver, no such
 * GPU), PS_E_PERM, PS_E_OS with NVML's code. */
ps_status ps_nvml_open(const char *uuid, const char *library, ps_nvml **out, ps_error *err);
void ps_nvml_close(ps_nvml *nvml); /* NULL is allowed */
/* Version of the display driver, "" if unknown. */
void ps_nvml_driver(const ps_nvml *nvml, char *out, uint64_t size);
/* Memory of the whole GPU; *out_used includes what the driver keeps for itself. Errors: PS_E_PERM, PS_E_UNAVAILABLE (NVML does
 * not say, or contradicts itself), PS_E_OS. */
ps_status ps_nvml_memory(const ps_nvml *nvml, uint64_t *out_used, uint64_t *out_total, ps_error *err);
/* Processes with a compute context, at most PS_NVML_PROCESSES. Errors as above. */
ps_status ps_nvml_processes(const ps_nvml *nvml, ps_nvml_process *out, uint32_t *out_n, ps_error *err);
/* The PCIe link as it is now, and what it can do. */
void ps_nvml_link(const ps_nvml *nvml, ps_device_link *out);
/* Clocks as they are now, 0 where unknown. *out_slowed: NVML's reasons for running slower, as bits; without the one for being
 * idle. */
void ps_nvml_clocks(const ps_nvml *nvml, uint64_t *out_sm_hz, uint64_t *out_memory_hz, uint64_t *out_slowed);

/* The meter of one process. Begin before the process makes its context, end after; between the two, NVML is asked what is
 * new, since in a container our own process id may mean nothing to it.
 * had_context: the process had one before begin. */
void ps_nvml_meter_begin(ps_nvml *nvml);
void ps_nvml_meter_end(ps_nvml *nvml, bool had_context);
/* What the process takes: NVML's figure for it (PS_METER_PROCESS); where it has none the change of the whole device's use since
 * begin (PS_METER_DEVICE), or with a context from before that, its whole use (PS_METER_WHOLE). Errors as ps_nvml_memory. */
ps_status ps_nvml_meter_read(const ps_nvml *nvml, uint64_t *out_bytes, ps_meter *out_how, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
