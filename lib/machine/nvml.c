/* NVML by dlopen: its header is not everywhere, so what is used of its interface is written down here. */
#include "machine/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From NVIDIA's nvml.h; the interface is stable, new forms of a call get a new name. */
typedef struct nvml_device_st *nvml_device;
enum {
    NVML_SUCCESS = 0,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_CLOCK_SM = 1,
    NVML_CLOCK_MEMORY = 2,
    NVML_IDLE = 1 /* bit of the reasons for a low clock */
};
typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;
typedef struct nvml_process {
    unsigned pid;
    unsigned long long used; /* ~0: not available */
    unsigned gpu_instance, compute_instance;
} nvml_process;

/* X(member, "symbol", type of its parameters); all of them return an int. */
#define NVML_NEEDED(X)                                                                                       \
    X(init, "nvmlInit_v2", (void))                                                                           \
    X(shutdown, "nvmlShutdown", (void))                                                                      \
    X(by_uuid, "nvmlDeviceGetHandleByUUID", (const char *, nvml_device *))
#define NVML_WELCOME(X)                                                                                      \
    X(driver, "nvmlSystemGetDriverVersion", (char *, unsigned))                                              \
    X(memory, "nvmlDeviceGetMemoryInfo", (nvml_device, nvml_memory *))                                       \
    X(processes3, "nvmlDeviceGetComputeRunningProcesses_v3", (nvml_device, unsigned *, nvml_process *))      \
    X(processes2, "nvmlDeviceGetComputeRunningProcesses_v2", (nvml_device, unsigned *, nvml_process *))      \
    X(link_gen, "nvmlDeviceGetCurrPcieLinkGeneration", (nvml_device, unsigned *))                            \
    X(link_width, "nvmlDeviceGetCurrPcieLinkWidth", (nvml_device, unsigned *))                               \
    X(max_link_gen, "nvmlDeviceGetMaxPcieLinkGeneration", (nvml_device, unsigned *))                         \
    X(max_link_width, "nvmlDeviceGetMaxPcieLinkWidth", (nvml_device, unsigned *))                            \
    X(clock, "nvmlDeviceGetClockInfo", (nvml_device, int, unsigned *))                                       \
    X(slowed, "nvmlDeviceGetCurrentClocksThrottleReasons", (nvml_device, unsigned long long *))

struct ps_nvml {
    void *library;
    bool initialised;
    nvml_device device;
#define NVML_MEMBER(name, symbol, parameters) int(*name) parameters;
    NVML_NEEDED(NVML_MEMBER)
    NVML_WELCOME(NVML_MEMBER)
#undef NVML_MEMBER
    char uuid[96];
    /* The meter. */
    bool have_before, have_pid, had_context;
    uint64_t used_before;
    uint32_t pid, n_before;
    ps_nvml_process before[PS_NVML_PROCESSES];
};

static ps_status failed(const ps_nvml *nvml, int code, const char *call, ps_error *err) {
    ps_status st = PS_E_OS;
    const char *why = "failed";
    switch (code) {
    case NVML_NOT_SUPPORTED:
        st = PS_E_UNAVAILABLE, why = "is not supported here";
        break;
    case NVML_NO_PERMISSION:
        st = PS_E_PERM, why = "is not permitted";
        break;
    case NVML_NOT_FOUND:
        st = PS_E_UNAVAILABLE, why = "does not find it";
        break;
    case NVML_DRIVER_NOT_LOADED:
        st = PS_E_UNAVAILABLE, why = "finds no driver";
        break;
    default:
        break;
    }
    ps_error_set(err, st, nvml->uuid, "NVML: %s %s (%d)", call, why, code);
    if (err)
        err->sys_code = code;
    return st;
}

ps_status ps_nvml_open(const char *uuid, const char *library, ps_nvml **out, ps_error *err) {
    ps_nvml *nvml = (ps_nvml *)calloc(1, sizeof *nvml);
    if (!nvml)
        return ps_error_set(err, PS_E_NOMEM, "NVML", "no memory");
    snprintf(nvml->uuid, sizeof nvml->uuid, "%s", uuid);
    ps_status st = PS_OK;
    const char *name = library ? library : "libnvidia-ml.so.1";
    nvml->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library) {
        st = ps_error_set(err, PS_E_UNAVAILABLE, name, "NVML is not on this machine");
        goto end;
    }
    /* POSIX lets a data pointer hold a function's address, ISO C has no cast for it. */
#define NVML_LOAD(name, symbol, parameters)                                                                  \
    do {                                                                                                     \
        void *at = dlsym(nvml->library, symbol);                                                             \
        memcpy(&nvml->name, &at, sizeof at);                                                                 \
    } while (0);
    NVML_NEEDED(NVML_LOAD)
    NVML_WELCOME(NVML_LOAD)
#undef NVML_LOAD
    if (!nvml->init || !nvml->shutdown || !nvml->by_uuid) {
        st = ps_error_set(err, PS_E_UNAVAILABLE, name, "NVML is too old");
        goto end;
    }
    int code = nvml->init();
    if (code != NVML_SUCCESS) {
        st = failed(nvml, code, "nvmlInit_v2", err);
        goto end;
    }
    nvml->initialised = true;
    code = nvml->by_uuid(nvml->uuid, &nvml->device);
    if (code != NVML_SUCCESS)
        st = failed(nvml, code, "nvmlDeviceGetHandleByUUID", err);
end:
    if (st != PS_OK) {
        ps_nvml_close(nvml);
        return st;
    }
    *out = nvml;
    return PS_OK;
}

void ps_nvml_close(ps_nvml *nvml) {
    if (!nvml)
        return;
    if (nvml->initialised)
        (void)nvml->shutdown();
    if (nvml->library)
        dlclose(nvml->library);
    free(nvml);
}

void ps_nvml_driver(const ps_nvml *nvml, char *out, uint64_t size) {
    char text[96] = "";
    if (!nvml->driver || nvml->driver(text, sizeof text) != NVML_SUCCESS)
        text[0] = '\0';
    text[sizeof text - 1] = '\0';
    snprintf(out, size, "%s", text);
}

ps_status ps_nvml_memory(const ps_nvml *nvml, uint64_t *out_used, uint64_t *out_total, ps_error *err) {
    if (!nvml->memory)
        return failed(nvml, NVML_NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo", err);
    nvml_memory m = {0};
    const int code = nvml->memory(nvml->device, &m);
    if (code != NVML_SUCCESS)
        return failed(nvml, code, "nvmlDeviceGetMemoryInfo", err);
    /* Some drivers report nothing free, or nothing at all, where they mean that they do not know. */
    if (m.total == 0 || m.used > m.total || (m.free == 0 && m.used < m.total))
        return ps_error_set(err, PS_E_UNAVAILABLE, nvml->uuid,
                            "NVML contradicts itself: %llu bytes used, %llu free, %llu in all", m.used,
                            m.free, m.total);
    *out_used = m.used;
    *out_total = m.total;
    return PS_OK;
}

ps_status ps_nvml_processes(const ps_nvml *nvml, ps_nvml_process *out, uint32_t *out_n, ps_error *err) {
    static const char call[] = "nvmlDeviceGetComputeRunningProcesses";
    if (!nvml->processes3 && !nvml->processes2)
        return failed(nvml, NVML_NOT_SUPPORTED, call, err);
    nvml_process *list = (nvml_process *)calloc(PS_NVML_PROCESSES, sizeof *list);
    if (!list)
        return ps_error_set(err, PS_E_NOMEM, nvml->uuid, "no memory for the list of processes");
    unsigned n = PS_NVML_PROCESSES;
    const int code = nvml->processes3 ? nvml->processes3(nvml->device, &n, list)
                                      : nvml->processes2(nvml->device, &n, list);
    if (code == NVML_SUCCESS) {
        if (n > PS_NVML_PROCESSES)
            n = PS_NVML_PROCESSES;
        for (unsigned i = 0; i < n; i++) {
            out[i].pid = list[i].pid;
            /* A process that is listed has a context, and that is never empty. */
            out[i].bytes = list[i].used == 0 || list[i].used == ~0ull ? PS_NVML_UNKNOWN : list[i].used;
        }
        *out_n = n;
    }
    free(list);
    return code == NVML_SUCCESS ? PS_OK : failed(nvml, code, call, err);
}

static uint32_t number(const ps_nvml *nvml, int (*get)(nvml_device, unsigned *)) {
    unsigned value = 0;
    return get && get(nvml->device, &value) == NVML_SUCCESS ? value : 0;
}

void ps_nvml_link(const ps_nvml *nvml, ps_device_link *out) {
    out->gen = number(nvml, nvml->link_gen);
    out->width = number(nvml, nvml->link_width);
    out->max_gen = number(nvml, nvml->max_link_gen);
    out->max_width = number(nvml, nvml->max_link_width);
}

static uint64_t clock_hz(const ps_nvml *nvml, int which) {
    unsigned mhz = 0;
    return nvml->clock && nvml->clock(nvml->device, which, &mhz) == NVML_SUCCESS ? mhz * (uint64_t)1000000
                                                                                 : 0;
}

void ps_nvml_clocks(const ps_nvml *nvml, uint64_t *out_sm_hz, uint64_t *out_memory_hz, uint64_t *out_slowed) {
    *out_sm_hz = clock_hz(nvml, NVML_CLOCK_SM);
    *out_memory_hz = clock_hz(nvml, NVML_CLOCK_MEMORY);
    unsigned long long reasons = 0;
    *out_slowed = nvml->slowed && nvml->slowed(nvml->device, &reasons) == NVML_SUCCESS
                      ? reasons & ~(unsigned long long)NVML_IDLE
                      : 0;
}

/* ---- the meter ---- */
static const ps_nvml_process *find(const ps_nvml_process *list, uint32_t n, uint32_t pid) {
    for (uint32_t i = 0; i < n; i++)
        if (list[i].pid == pid)
            return &list[i];
    return NULL;
}

void ps_nvml_meter_begin(ps_nvml *nvml) {
    uint64_t total;
    nvml->have_pid = false;
    nvml->have_before = ps_nvml_memory(nvml, &nvml->used_before, &total, NULL) == PS_OK;
    if (ps_nvml_processes(nvml, nvml->before, &nvml->n_before, NULL) != PS_OK)
        nvml->n_before = PS_NVML_PROCESSES + 1; /* unknown: nothing is new */
}

/* Which of the listed processes is this one? By its id; else, in a container, the one that came with the context, if just one
 * did; with a context from before, the only one that there is. */
void ps_nvml_meter_end(ps_nvml *nvml, bool had_context) {
    ps_nvml_process now[PS_NVML_PROCESSES];
    uint32_t n = 0, n_new = 0, last_new = 0;
    nvml->had_context = had_context;
    if (ps_nvml_processes(nvml, now, &n, NULL) != PS_OK)
        return;
    const uint32_t self = (uint32_t)getpid();
    if (find(now, n, self)) {
        nvml->pid = self;
        nvml->have_pid = true;
        return;
    }
    if (nvml->n_before <= PS_NVML_PROCESSES)
        for (uint32_t i = 0; i < n; i++)
            if (!find(nvml->before, nvml->n_before, now[i].pid)) {
                n_new++;
                last_new = now[i].pid;
            }
    if (!had_context && n_new == 1) {
        nvml->pid = last_new;
        nvml->have_pid = true;
    } else if (had_context && n == 1) {
        nvml->pid = now[0].pid;
        nvml->have_pid = true;
    }
}

ps_status ps_nvml_meter_read(const ps_nvml *nvml, uint64_t *out_bytes, ps_meter *out_how, ps_error *err) {
    if (nvml->have_pid) {
        ps_nvml_process now[PS_NVML_PROCESSES];
        uint32_t n = 0;
        const ps_nvml_process *own = NULL;
        if (ps_nvml_processes(nvml, now, &n, NULL) == PS_OK)
            own = find(now, n, nvml->pid);
        if (own && own->bytes != PS_NVML_UNKNOWN) {
            *out_bytes = own->bytes;
            *out_how = PS_METER_PROCESS;
            return PS_OK;
        }
    }
    uint64_t used, total;
    const ps_status st = ps_nvml_memory(nvml, &used, &total, err);
    if (st != PS_OK)
        return st;
    if (nvml->have_before && !nvml->had_context) {
        *out_bytes = used > nvml->used_before ? used - nvml->used_before : 0;
        *out_how = PS_METER_DEVICE;
    } else {
        *out_bytes = used;
        *out_how = PS_METER_WHOLE;
    }
    return PS_OK;
}
