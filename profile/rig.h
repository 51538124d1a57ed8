/* A rig is where quantities are measured: the CPUs of this machine, or a made-up machine whose true speeds are known
 * (null). The sweep knows a rig only by this table of functions. */
#ifndef PS_PROFILE_RIG_H
#define PS_PROFILE_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "model/kernel_spec.h"
#include "schemas/machine_profile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a task measures. X(NAME, "name", unit of a sample) */
#define PS_MEASURE_LIST(X)                                                                                   \
    X(KERNEL, "kernel", "s")         /* one instruction as the executor runs it, barriers included */        \
    X(DRAM, "dram read", "B/s")      /* of point.n_threads together */                                       \
    X(BARRIER, "barrier", "s")       /* one barrier of point.n_threads */                                    \
    X(POOL_START, "pool start", "s") /* from a sleeping team to the end of an empty job */                   \
    X(PACED, "paced bus and dram",                                                                           \
      "B/s")                           /* as TOGETHER, copies held at share_frac of the bus's rate alone */  \
    X(COPY, "bus", "B/s")              /* task.bus in pieces of task.bytes, alone */                         \
    X(TOGETHER, "bus and dram", "B/s") /* task.bus beside point.n_threads that read DRAM, both flat out */   \
    X(HBM, "vram read", "B/s")                                                                               \
    X(LAUNCH, "launch", "s")             /* of a kernel: the calling thread's time */                        \
    X(GRAPH_NODE, "graph node", "s")     /* a small kernel inside a graph */                                 \
    X(GRAPH_LAUNCH, "graph launch", "s") /* the calling thread's time */                                     \
    X(EVENT_WAIT, "event wait", "s") /* end of work on one stream to the start of what waits on another */   \
    X(TO_CPU, "hand-over to the cpu", "s")                                                                   \
    X(TO_GPU, "hand-over to the gpu", "s")                                                                   \
    X(LOCK, "page-locking", "B/s")                                                                           \
    X(MAP, "mapping of vram", "s")                                                                           \
    X(UNMAP, "release of vram", "s")                                                                         \
    X(EVENT_RECORD, "event record", "s")  /* the calling thread's time */                                    \
    X(LEVEL, "change of level", "B/s")    /* mapped, filled over the bus, released */                        \
    X(HBM_FULL, "vram read, full", "B/s") /* the last of it, once all that a budget could take is mapped */
typedef enum ps_measure {
#define PS_MEASURE_ENUM(name, text, unit) PS_MEASURE_##name,
    PS_MEASURE_LIST(PS_MEASURE_ENUM)
#undef PS_MEASURE_ENUM
        PS_MEASURE_COUNT
} ps_measure;

typedef struct ps_task {
    ps_measure measure;
    ps_profile_point point; /* KERNEL: all but the results; others: n_threads */
    ps_bus bus;             /* COPY, TOGETHER, PACED */
    ps_host_kind kind;      /* COPY */
    uint64_t bytes;         /* COPY */
    double share_frac;      /* PACED */
    double cost_s;          /* a guess of one call, to order and to budget */
    bool essential;         /* done before the others: without it a kernel would have no curve at all */
} ps_task;

typedef struct ps_rig_sample {
    double value;
    double beside_bytes_per_s; /* of what ran beside, 0 if nothing did; TOGETHER, PACED: the DRAM reads' */
    bool disturbed;            /* the system took a CPU away meanwhile */
} ps_rig_sample;

typedef struct ps_rig_ops {
    const char *name;
    bool synthetic;
    /* The machine as the profile describes it, and its hash. */
    void (*describe)(void *rig, ps_profile_topology *out, uint8_t machine_hash[PS_HASH_BYTES]);
    /* Its GPU, without quantities and tables; NULL where rigs of this kind have none, name "" where this one has none. */
    void (*describe_gpu)(void *rig, ps_profile_gpu *out); /* its link as it is now */
    /* How the GPU's times were taken so far: timer, reason, gap, and rows of checks, of which there is room for one per kernel
     * and one more; those that are there are kept or replaced. NULL: as describe_gpu said. */
    void (*describe_timer)(void *rig, ps_profile_gpu *out);
    /* Make ready for one task: operands, verification on first use, warm-up. Errors end the sweep. */
    ps_status (*prepare)(void *rig, const ps_task *task, ps_error *err);
    /* One sample, in the unit of the measure. */
    ps_status (*sample)(void *rig, ps_rig_sample *out, ps_error *err);
    /* After the last sample of a task. */
    void (*finish)(void *rig);
    /* Seconds that a fixed piece of arithmetic takes: tells a clock that changed. */
    double (*clock_probe)(void *rig);
    /* Time as the rig sees it, from any start; the null rig's passes without anybody waiting. */
    uint64_t (*now_ns)(void *rig);
} ps_rig_ops;

#ifdef __cplusplus
}
#endif
#endif
