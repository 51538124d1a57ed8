/* Limits that the operating system puts on this process, read from /proc and the cgroup file systems.
 * For lib/machine, and for programs that ask for nothing else; split from topology.c so that it can be tested without hwloc. */
#ifndef PS_MACHINE_LIMITS_H
#define PS_MACHINE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PS_LIMIT_CPUS = 4096 }; /* CPU numbers above this are not looked at */

typedef struct ps_cpu_mask {
    uint64_t word[PS_LIMIT_CPUS / 64];
} ps_cpu_mask;

static inline bool ps_cpu_mask_has(const ps_cpu_mask *m, uint32_t cpu) {
    return cpu < PS_LIMIT_CPUS && (m->word[cpu / 64] >> (cpu % 64) & 1) != 0;
}

typedef struct ps_limits {
    double cpu_quota;       /* CPUs' worth of time: the least over all groups above us; 0 if unlimited */
    ps_cpu_mask allowed;    /* affinity and every cpuset above us */
    uint64_t memlock_bytes; /* UINT64_MAX if unlimited */
    uint64_t memory_bytes, memory_free_bytes; /* of the machine, or of our memory cgroup where that is less */
    char cpu_model[96];                       /* "" if /proc/cpuinfo has none */
} ps_limits;

/* root: "" for the live system, otherwise a folder with recorded proc/ and sys/.
 * Errors name the file: PS_E_NOINPUT (proc missing), PS_E_DATA (text that is not understood), PS_E_NOMEM. */
ps_status ps_limits_read(const char *root, ps_limits *out, ps_error *err);

/* Called with every file that ps_limits_read looks at (path below root, and its text, of files about more than limits
 * only the lines that count): what a record of a machine is made of. An error of `visit` ends it. */
typedef ps_status (*ps_limits_visit)(void *ctx, const char *path, const char *text, ps_error *err);
ps_status ps_limits_each_file(const char *root, ps_limits_visit visit, void *ctx, ps_error *err);

/* "0-3,8" to a mask; false if malformed. Blank text is an empty mask. */
bool ps_cpu_list_parse(const char *text, ps_cpu_mask *out);

#ifdef __cplusplus
}
#endif
#endif
