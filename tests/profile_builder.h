/* A machine profile for tests: made up, complete, with as many points as asked for. */
#ifndef PS_TESTS_PROFILE_BUILDER_H
#define PS_TESTS_PROFILE_BUILDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schemas/machine_profile.h"

static inline ps_stat pf_stat(double median) {
    return (ps_stat){.n = 31,
                     .median = median,
                     .q1 = median * 0.9871234567,
                     .q3 = median * 1.01234567891,
                     .stop = PS_STOP_CONVERGED};
}

/* A GPU for the profile: 8 GiB, two sizes of copies, three thread counts beside them. */
static inline void pf_add_gpu(ps_profile *p) {
    ps_profile_gpu *g = &p->gpu;
    snprintf(p->topology.gpu_name, sizeof p->topology.gpu_name, "Test GPU");
    *g = (ps_profile_gpu){.name = "Test GPU",
                          .uuid = "GPU-0",
                          .driver = "999.1",
                          .cc_major = 8,
                          .cc_minor = 9,
                          .n_multiprocessors = 24,
                          .vram_bytes = (uint64_t)8 << 30,
                          .l2_bytes = 24 << 20,
                          .pcie_gen = 4,
                          .pcie_width = 8,
                          .base_bytes = 400 << 20,
                          .meter = "emulated",
                          .context_bytes = 300 << 20,
                          .modules_bytes = 20 << 20,
                          .blas_bytes = 80 << 20,
                          .timer = PS_TIMER_CUPTI,
                          .timer_gap_s = 9e-7};
    g->hbm_read_bytes_per_s = pf_stat(2.5e11);
    g->matmul_flops_per_s = pf_stat(6e13);
    g->attention_flops_per_s = pf_stat(3e13);
    g->launch_s = pf_stat(4e-6);
    g->graph_node_s = pf_stat(1e-6);
    g->graph_launch_s = pf_stat(3e-6);
    g->event_wait_s = pf_stat(2e-6);
    g->to_cpu_s = pf_stat(2e-6);
    g->to_gpu_s = pf_stat(3e-6);
    g->lock_bytes_per_s = pf_stat(3e10);
    g->map_s = pf_stat(7e-5);
    g->unmap_s = pf_stat(3e-5);
    g->event_record_s = pf_stat(1e-6);
    g->level_bytes_per_s = pf_stat(9e9);
    g->hbm_full_bytes_per_s = pf_stat(2.4e11);
    g->n_copies = 2;
    g->n_together = 3;
    g->copies = calloc(g->n_copies, sizeof *g->copies);
    g->together = calloc(g->n_together, sizeof *g->together);
    g->n_paced = 4;
    g->paced = calloc(g->n_paced, sizeof *g->paced);
    g->n_checks = 1;
    g->checks = calloc(g->n_checks, sizeof *g->checks);
    if (g->copies == NULL || g->together == NULL || g->paced == NULL || g->checks == NULL)
        abort();
    g->checks[0] = (ps_profile_check){0, 7, -0.0125, 0.03};
    g->copies[0] = (ps_profile_copy){PS_BUS_H2D, PS_HOST_KIND_PINNED, 16 << 20, pf_stat(1.3e10)};
    g->copies[1] = (ps_profile_copy){PS_BUS_D2H, PS_HOST_KIND_PINNED, 16 << 20, pf_stat(1.31e10)};
    for (uint32_t i = 0; i < g->n_together; i++)
        g->together[i] =
            (ps_profile_together){PS_BUS_DIRECT, 1u << i, pf_stat(1.2e10 - 1e8 * i), pf_stat(1e10 * (i + 1))};
    for (uint32_t i = 0; i < g->n_paced; i++)
        g->paced[i] = (ps_profile_paced){i < 2 ? PS_BUS_H2D : PS_BUS_D2H, 1 + i % 2, 0.5, pf_stat(6e9),
                                         pf_stat(1e10 * (i % 2 + 1))};
}

static inline ps_profile *pf_profile(uint32_t n_points) {
    ps_profile *p = calloc(1, sizeof *p);
    if (p == NULL)
        abort();
    p->version = PS_PROFILE_VERSION;
    snprintf(p->tool, sizeof p->tool, "pstune 0.1.0");
    snprintf(p->created, sizeof p->created, "2026-01-02T03:04:05Z");
    snprintf(p->mode, sizeof p->mode, "default");
    p->complete = true;
    p->synthetic = true;
    memset(p->machine_hash, 0x5a, PS_HASH_BYTES);
    memset(p->kernel_set, 0x1e, PS_HASH_BYTES);
    p->topology = (ps_profile_topology){.cpu_model = "Test \"CPU\" @ 3\\GHz \xc2\xb5",
                                        .n_packages = 1,
                                        .n_cores = 16,
                                        .n_threads = 32,
                                        .n_numa = 1,
                                        .n_p_cores = 16,
                                        .l2_bytes = 1 << 20,
                                        .l3_bytes = 32 << 20,
                                        .memory_bytes = (uint64_t)64 << 30,
                                        .memlock_bytes = UINT64_MAX,
                                        .cpu_quota = 7.65,
                                        .n_allowed = 7,
                                        .cpu_level = "avx512"};
    p->barrier_s = pf_stat(1.5e-6);
    p->pool_start_s = pf_stat(2.5e-5);
    p->n_dram = 3;
    p->n_kernels = 40;
    p->n_points = n_points;
    p->dram = calloc(p->n_dram, sizeof *p->dram);
    p->kernels = calloc(p->n_kernels, sizeof *p->kernels);
    p->points = calloc(n_points + 1, sizeof *p->points);
    p->note = strdup("line one\nline \"two\": a\tb");
    if (p->dram == NULL || p->kernels == NULL || p->points == NULL || p->note == NULL)
        abort();
    for (uint32_t i = 0; i < p->n_dram; i++)
        p->dram[i] =
            (ps_profile_dram){.n_threads = 1u << i, .bw_bytes_per_s = pf_stat(1.2345678e10 * (i + 1))};
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        ps_kernel_spec *k = &p->kernels[i];
        *k = (ps_kernel_spec){.id = 1000 + i,
                              .op = PS_OP_MATMUL,
                              .wtype = PS_DTYPE_Q4_K,
                              .in_fmt = PS_FMT_Q8,
                              .out_fmt = PS_FMT_F32,
                              .min_tokens = 1,
                              .max_tokens = UINT32_MAX,
                              .scratch = {.per_token = 4, .per_thread_col = 12}};
        snprintf(k->name, sizeof k->name, "cpu.matmul.q4_k.q8.%u", i);
    }
    for (uint32_t i = 0; i < n_points; i++) {
        ps_profile_point *q = &p->points[i];
        *q = (ps_profile_point){.kernel = 1000 + i % 40,
                                .rows = 14336,
                                .cols = 4096,
                                .n_tokens = 1u << i % 12,
                                .n_threads = 16,
                                .beside = i % 3 == 0 ? PS_BESIDE_MEMORY : PS_BESIDE_IDLE,
                                .time_s = pf_stat(1.23456789012e-4 * (i + 1) / 7)};
        q->beside_bytes_per_s = q->beside == PS_BESIDE_IDLE ? 0 : 2.3456789012345e10 / (i + 3);
        q->time_s.noisy = i % 5 == 0;
    }
    return p;
}

#endif
