/* What this machine has and what this process may use of it: hwloc topology and limits of the operating
 * system (affinity, cpuset, cgroup v1 and v2 quota, RLIMIT_MEMLOCK, free memory). */
#ifndef PS_MACHINE_TOPOLOGY_H
#define PS_MACHINE_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/hash.h"
#include "core/status.h"
#include "machine/signs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One hardware thread this process may run on, best first: one per core before SMT siblings, P before E. */
typedef struct ps_cpu {
    uint32_t os_index, core, package, numa;
    uint32_t smt;  /* rank among the allowed threads of its core, 0 for the first */
    uint32_t kind; /* 0 performance, 1 efficiency */
} ps_cpu;

typedef struct ps_machine {
    char cpu_model[96];
    uint32_t n_packages, n_cores, n_threads, n_numa, n_p_cores, n_e_cores; /* of the whole machine */
    uint64_t l2_bytes, l3_bytes;                                           /* of one cache */
    uint64_t memory_bytes, memory_free_bytes, memlock_bytes; /* memlock: UINT64_MAX if unlimited */
    double cpu_quota;                                        /* CPUs' worth of time, 0 if unlimited */
    uint32_t n_cpus;                                         /* allowed by affinity and cpuset */
    ps_cpu *cpus;                                            /* [n_cpus] */
    uint32_t n_allowed; /* threads to use at most: min(n_cpus, max(1, floor(quota))) */
    ps_signs signs;
    void *hwloc; /* hwloc_topology_t, private */
} ps_machine;

/* root: NULL for the live machine, or a folder with a recorded one: hwloc.xml (hwloc's own export), and
 * proc/self/{status,limits,cgroup,mountinfo}, proc/meminfo, sys/fs/cgroup/... and what signs.h reads, as they stand below "/".
 * Errors name the file: PS_E_OS, PS_E_NOMEM, PS_E_NOINPUT, PS_E_DATA. The result is immutable: any thread. */
ps_status ps_machine_open(const char *root, ps_machine **out, ps_error *err);
void ps_machine_close(ps_machine *machine);
/* Write a record of the live machine into a new folder `dir` (its parent exists), for ps_machine_open: topology, limits,
 * memory sizes and signs, nothing else of the system: no host or user name, serial number, address or UUID, and groups of processes
 * under made-up names. Errors: PS_E_CANTCREATE, PS_E_OS, PS_E_IO, PS_E_NOMEM. */
ps_status ps_machine_record(const ps_machine *machine, const char *dir, ps_error *err);
/* True unless it was opened from a record: only then can threads be bound. */
bool ps_machine_is_live(const ps_machine *machine);

/* Hash over what decides whether a profile still fits: CPU model, packages, cores, threads, kinds, caches and
 * the number of threads allowed. Profiles and plans carry it (machine_hash). */
void ps_machine_hash(const ps_machine *machine, uint8_t out[PS_HASH_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
