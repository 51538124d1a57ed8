/* An NVML that says what the test wants: libnvidia-ml.so.1 in small, for test_nvml. With FAKE_OLD the calls are missing that
 * older drivers do not have. */
#include "fake_nvml.h"

#include <stdio.h>
#include <string.h>

fake_nvml_state fake_nvml;

int nvmlInit_v2(void);
int nvmlInit_v2(void) {
    fake_nvml.n_open++;
    return fake_nvml.init_code;
}
int nvmlShutdown(void);
int nvmlShutdown(void) {
    fake_nvml.n_open--;
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    if (strcmp(uuid, fake_nvml.uuid) != 0)
        return 6;
    *out = &fake_nvml;
    return 0;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size);
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    snprintf(out, size, "580.1");
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *total_free_used);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *total_free_used) {
    (void)device;
    total_free_used[0] = fake_nvml.total;
    total_free_used[1] = fake_nvml.free;
    total_free_used[2] = fake_nvml.used;
    return fake_nvml.memory_code;
}
static int processes(unsigned *n, fake_nvml_process *out) {
    if (fake_nvml.processes_code != 0)
        return fake_nvml.processes_code;
    if (*n < fake_nvml.n_processes) {
        *n = fake_nvml.n_processes;
        return 7;
    }
    *n = fake_nvml.n_processes;
    memcpy(out, fake_nvml.processes, fake_nvml.n_processes * sizeof *out);
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *n, fake_nvml_process *out);
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *n, fake_nvml_process *out) {
    (void)device;
    fake_nvml.calls_v2++;
    return processes(n, out);
}
#ifndef FAKE_OLD
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, fake_nvml_process *out);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, fake_nvml_process *out) {
    (void)device;
    fake_nvml.calls_v3++;
    return processes(n, out);
}
int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *out);
int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *out) {
    (void)device;
    *out = 4;
    return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *out);
int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *out) {
    (void)device;
    *out = 5;
    return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *out);
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *out) {
    (void)device;
    *out = 16;
    return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *out);
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *out) {
    (void)device;
    *out = 16;
    return 0;
}
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *out);
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *out) {
    (void)device;
    *out = which == 1 ? 1980 : which == 2 ? 3201 : 0;
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out) {
    (void)device;
    *out = 0x41;
    return 0;
}
#endif
