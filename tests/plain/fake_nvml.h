/* What the fake NVML says; see fake_nvml.c. */
#ifndef PS_TESTS_FAKE_NVML_H
#define PS_TESTS_FAKE_NVML_H

typedef struct fake_nvml_process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} fake_nvml_process;

typedef struct fake_nvml_state {
    int init_code, memory_code, processes_code, n_open;
    char uuid[64];
    unsigned long long total, free, used;
    unsigned n_processes;
    fake_nvml_process processes[300];
    int calls_v2, calls_v3;
} fake_nvml_state;

#endif
