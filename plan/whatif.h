/* What if the machine were another: a machine profile scaled to other rates, as a profile. */
#ifndef PS_PLAN_WHATIF_H
#define PS_PLAN_WHATIF_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "schemas/machine_profile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is asked for; 0 and false: as it is. Rates are ceilings as the planner takes them from a profile. */
typedef struct ps_whatif {
    double pcie_bytes_per_s; /* host to device, page-locked, in the largest pieces measured */
    double dram_bytes_per_s; /* all allowed threads together (ps_cost_dram_bytes_per_s) */
    double hbm_bytes_per_s;  /* reads of the GPU's own memory */
    double gpu_flops_per_s;  /* best product of the GPU; attention's best rate goes along */
    double cpu_flops_per_s; /* best product of all allowed threads (their share in the best of the profile) */
    uint64_t vram_bytes, memory_bytes;
    uint32_t n_threads; /* cores, one thread each, all of them allowed */
    bool no_gpu;        /* of a machine without one nothing is asked */
} ps_whatif;

/* The profile of the machine that `profile`'s would be. Nothing asked for: an equal copy. Otherwise it is marked synthetic,
 * has a machine hash of its own, and its note says what was scaled:
 * - bus: ceilings by the ratio, smaller pieces keep their start-up time; beside the CPU's reads the bus gives way where both
 *   together would have more than the host memory has;
 * - DRAM: its table, the reads beside the bus, and of CPU products, experts and attention the part that reading takes where it
 *   is half of the time or more; the rest is the cores' and follows cpu_flops_per_s;
 * - GPU: of each point the part that the most used of VRAM, arithmetic and, of direct points, bus explains; what it does
 *   not explain is start-up and stays. Points bound by arithmetic scale whole, but for a launch;
 * - threads: points of the largest team again for the team asked for where it was not measured, its arithmetic shared out anew
 *   and its reads at the DRAM rate of that many; more threads than measured: products, experts and attention only.
 * More of any rate never makes a point slower, and no point is faster than the new ceilings allow unless it was so before.
 * VRAM and memory change sizes alone. Hand-overs, launches, barriers stay.
 *
 * profile: borrowed, valid. On PS_OK the caller frees *out with ps_profile_free; it passes ps_profile_validate. Errors: PS_E_USAGE
 * (not finite or negative, a bus that the host memory cannot feed, VRAM below what context and libraries take),
 * PS_E_UNAVAILABLE (of a GPU that the profile does not have, a rate that was not measured), PS_E_NOMEM. Pure; any thread. */
ps_status ps_profile_whatif(const ps_profile *profile, const ps_whatif *wish, ps_profile **out,
                            ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
