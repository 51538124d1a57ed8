/* A machine profile with a GPU for tests: the ceilings of an H200 machine (PCIe 5 x16, 16 cores) as plain programs measured
 * them, marked synthetic, with this build's own kernel catalogue. Kernels have no curves: costs are assumed from the
 * ceilings. */
#ifndef PS_TESTS_GPU_PROFILE_H
#define PS_TESTS_GPU_PROFILE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernel.h"
#include "schemas/machine_profile.h"

static inline ps_stat gp_stat(double median) {
    return (ps_stat){
        .n = 31, .median = median, .q1 = median * 0.99, .q3 = median * 1.01, .stop = PS_STOP_CONVERGED};
}

/* From malloc: ps_profile_free. */
static inline ps_profile *gp_profile(void) {
    static const struct {
        uint32_t threads;
        double dram, direct, beside;
    } rates[] = {/* DRAM alone; a GPU kernel's direct reads and the CPU's reads at the same time */
                 {1, 9.5e9, 52e9, 9e9},
                 {2, 22e9, 51e9, 17e9},
                 {4, 30e9, 49e9, 33e9},
                 {8, 68e9, 45e9, 57e9},
                 {16, 105e9, 40e9, 82e9}};
    static const struct {
        uint64_t bytes;
        double rate;
    } copies[] = {{4 << 10, 0.85e9}, {32 << 10, 7.8e9}, {256 << 10, 30e9}, {2 << 20, 48e9}, {16 << 20, 52e9}};
    enum { N_RATES = sizeof rates / sizeof rates[0], N_COPIES = sizeof copies / sizeof copies[0] };
    ps_profile *p = calloc(1, sizeof *p);
    uint32_t n_kernels;
    const ps_kernel *kernels = ps_kernel_table(&n_kernels);
    if (p == NULL)
        abort();
    p->version = PS_PROFILE_VERSION;
    snprintf(p->tool, sizeof p->tool, "test");
    snprintf(p->created, sizeof p->created, "2026-01-02T03:04:05Z");
    snprintf(p->mode, sizeof p->mode, "default");
    p->complete = p->synthetic = true;
    memset(p->machine_hash, 0x5a, PS_HASH_BYTES);
    ps_kernel_set_hash(p->kernel_set);
    p->topology = (ps_profile_topology){.cpu_model = "16 cores",
                                        .n_packages = 1,
                                        .n_cores = 16,
                                        .n_threads = 16,
                                        .n_numa = 1,
                                        .n_p_cores = 16,
                                        .l2_bytes = 2 << 20,
                                        .l3_bytes = 105 << 20,
                                        .memory_bytes = (uint64_t)128 << 30,
                                        .memlock_bytes = UINT64_MAX,
                                        .n_allowed = 16,
                                        .cpu_level = "amx",
                                        .gpu_name = "H200-like"};
    p->barrier_s = gp_stat(1.5e-6);
    p->pool_start_s = gp_stat(2.0e-5);
    p->n_dram = N_RATES;
    p->dram = calloc(N_RATES, sizeof *p->dram);
    p->n_kernels = n_kernels;
    p->kernels = calloc(n_kernels, sizeof *p->kernels);
    p->points = calloc(1, sizeof *p->points);
    ps_profile_gpu *g = &p->gpu;
    *g = (ps_profile_gpu){.name = "H200-like",
                          .uuid = "GPU-0",
                          .driver = "580.0",
                          .cc_major = 9,
                          .n_multiprocessors = 132,
                          .vram_bytes = (uint64_t)141 << 30,
                          .l2_bytes = 50 << 20,
                          .pcie_gen = 5,
                          .pcie_width = 16,
                          .base_bytes = (uint64_t)600 << 20,
                          .meter = "emulated",
                          .hbm_read_bytes_per_s = gp_stat(4.54e12),
                          .matmul_flops_per_s = gp_stat(6e14),
                          .attention_flops_per_s = gp_stat(3e14),
                          .launch_s = gp_stat(4.6e-6),
                          .graph_node_s = gp_stat(1.05e-6),
                          .graph_launch_s = gp_stat(2.5e-6),
                          .event_wait_s = gp_stat(2e-6),
                          .to_cpu_s = gp_stat(1.9e-6),
                          .to_gpu_s = gp_stat(1.9e-6),
                          .lock_bytes_per_s = gp_stat(3.6e10),
                          .map_s = gp_stat(7e-5),
                          .unmap_s = gp_stat(6e-5),
                          .n_copies = 2 * N_COPIES,
                          .n_together = 2 * N_RATES};
    g->copies = calloc(g->n_copies, sizeof *g->copies);
    g->together = calloc(g->n_together, sizeof *g->together);
    if (p->dram == NULL || p->kernels == NULL || p->points == NULL || g->copies == NULL ||
        g->together == NULL)
        abort();
    for (uint32_t i = 0; i < n_kernels; i++)
        p->kernels[i] = kernels[i].spec;
    for (uint32_t i = 0; i < N_RATES; i++) {
        p->dram[i] = (ps_profile_dram){rates[i].threads, gp_stat(rates[i].dram)};
        g->together[i] = (ps_profile_together){PS_BUS_H2D, rates[i].threads, gp_stat(rates[i].direct * 1.1),
                                               gp_stat(rates[i].beside)};
        g->together[N_RATES + i] = (ps_profile_together){PS_BUS_DIRECT, rates[i].threads,
                                                         gp_stat(rates[i].direct), gp_stat(rates[i].beside)};
    }
    for (uint32_t i = 0; i < N_COPIES; i++) {
        g->copies[i] =
            (ps_profile_copy){PS_BUS_H2D, PS_HOST_KIND_PINNED, copies[i].bytes, gp_stat(copies[i].rate)};
        g->copies[N_COPIES + i] = (ps_profile_copy){PS_BUS_D2H, PS_HOST_KIND_PINNED, copies[i].bytes,
                                                    gp_stat(copies[i].rate * 1.05)};
    }
    return p;
}

#endif
