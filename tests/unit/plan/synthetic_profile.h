/* A complete machine profile of a made-up machine whose true speeds are known, for tests of the planner: 8 threads,
 * 10 GB/s and 40 GFLOP/s each, DRAM full at 6 threads. Marked synthetic. The catalogue is the registry's own. */
#ifndef PS_TESTS_SYNTHETIC_PROFILE_H
#define PS_TESTS_SYNTHETIC_PROFILE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernel.h"
#include "schemas/machine_profile.h"

enum { SYN_THREADS = 8, SYN_BARRIER_NS = 2000, SYN_START_NS = 20000 };

static inline double syn_bw(uint32_t threads) {
    return 10e9 * (threads < 6 ? threads : 6);
}

static inline double syn_flops(uint32_t threads) {
    return 40e9 * threads;
}

/* True time of a call. */
static inline double syn_time(const ps_kernel_spec *k, const ps_profile_point *p) {
    double t = p->n_tokens, rows = (double)p->rows, cols = (double)p->cols, kv = (double)p->kv_len;
    const ps_dtype_info *info = ps_dtype_find((uint32_t)k->wtype);
    double per = info ? (double)info->block_bytes / info->block_elems : 4;
    double bytes = 0, flops = t * cols * 8;
    if (k->op == PS_OP_MATMUL) {
        bytes = rows * cols * per;
        flops = t * rows * (2 * cols + 2);
        if (k->in_fmt == PS_FMT_F32)
            flops *= 1.5; /* the integer family is faster */
    } else if (k->op == PS_OP_ATTENTION) {
        bytes = 4 * kv * p->heads_kv * cols;
        flops = (t * kv - t * (t - 1) / 2) * rows * (4 * cols + 5);
    } else if (k->op == PS_OP_MOE_DISPATCH) {
        bytes = per * 3 * p->heads_kv * (1 - pow(1 - kv / p->heads_kv, t)) * rows * cols;
        flops = 8 * t * kv * rows * cols;
    } else if (k->op == PS_OP_EMBED || k->op == PS_OP_KV_STORE) {
        bytes = t * cols * 8;
    } else if (k->op == PS_OP_RMSNORM) {
        bytes = cols * 4;
    }
    return fmax(bytes / syn_bw(p->n_threads), flops / syn_flops(p->n_threads)) + SYN_BARRIER_NS * 1e-9;
}

typedef struct syn_shape {
    uint64_t rows, cols;
    uint32_t heads_kv;
    uint64_t kv_len;
} syn_shape;

static inline void syn_add(ps_profile *p, uint32_t *room, ps_profile_point point, const ps_kernel_spec *k) {
    if (p->n_points == *room) {
        *room = *room ? *room * 2 : 1024;
        p->points = realloc(p->points, *room * sizeof *p->points);
        if (!p->points)
            abort();
    }
    double t = syn_time(k, &point);
    point.kernel = k->id;
    point.time_s = (ps_stat){.n = 9, .median = t, .q1 = t, .q3 = t};
    p->points[p->n_points++] = point;
}

static inline ps_stat syn_stat(double v) {
    return (ps_stat){.n = 9, .median = v, .q1 = v, .q3 = v};
}

/* extra: rows to add to the catalogue, their ids above the registry's. The caller frees it with ps_profile_free. */
static inline ps_profile *syn_profile_with(const ps_kernel_spec *extra, uint32_t n_extra) {
    static const uint32_t tokens[] = {1, 2, 4, 8, 9, 16, 64, 256, 512, 2048};
    static const uint32_t threads[] = {1, 2, 4, 8};
    static const syn_shape mats[] = {
        {64, 64, 0, 0},     {512, 64, 0, 0},    {64, 512, 0, 0},    {512, 512, 0, 0},   {2048, 2048, 0, 0},
        {8192, 2048, 0, 0}, {2048, 8192, 0, 0}, {8192, 8192, 0, 0}, {49152, 512, 0, 0}, {131072, 8192, 0, 0}};
    static const syn_shape atts[] = {
        {1, 16, 1, 128},   {1, 16, 1, 8192},   {1, 128, 1, 128},  {1, 128, 1, 8192}, {8, 16, 1, 128},
        {8, 16, 1, 8192},  {8, 128, 1, 128},   {8, 128, 1, 8192}, {64, 16, 1, 128},  {64, 16, 1, 8192},
        {64, 128, 1, 128}, {64, 128, 1, 8192}, {8, 16, 8, 128},   {8, 16, 8, 8192},  {8, 128, 8, 128},
        {8, 128, 8, 8192}, {64, 16, 8, 128},   {64, 16, 8, 8192}, {64, 128, 8, 128}, {64, 128, 8, 8192}};
    static const syn_shape moes[] = {{512, 1024, 8, 2}, {768, 2048, 128, 8}};
    static const syn_shape rows[] = {{0, 64, 0, 0}, {0, 512, 0, 0}, {0, 8192, 0, 0}, {0, 65536, 0, 0}};
    ps_profile *p = calloc(1, sizeof *p);
    uint32_t n = 0, room = 0;
    const ps_kernel *table = ps_kernel_table(&n);
    if (!p || !(p->kernels = calloc(n + n_extra, sizeof *p->kernels)) ||
        !(p->dram = calloc(4, sizeof *p->dram)))
        abort();
    p->version = PS_PROFILE_VERSION;
    snprintf(p->tool, sizeof p->tool, "synthetic");
    snprintf(p->created, sizeof p->created, "2026-11-29T00:00:00Z");
    snprintf(p->mode, sizeof p->mode, "default");
    p->complete = p->synthetic = true;
    p->topology = (ps_profile_topology){.cpu_model = "made-up machine",
                                        .n_packages = 1,
                                        .n_cores = SYN_THREADS,
                                        .n_threads = SYN_THREADS,
                                        .n_numa = 1,
                                        .n_p_cores = SYN_THREADS,
                                        .l2_bytes = 1 << 20,
                                        .l3_bytes = 16 << 20,
                                        .memory_bytes = 64ull << 30,
                                        .memlock_bytes = UINT64_MAX,
                                        .n_allowed = SYN_THREADS,
                                        .cpu_level = "avx2"};
    ps_hash_bytes(&p->topology, sizeof p->topology, p->machine_hash);
    for (int i = 0; i < 4; i++)
        p->dram[p->n_dram++] = (ps_profile_dram){threads[i], syn_stat(syn_bw(threads[i]))};
    p->barrier_s = syn_stat(SYN_BARRIER_NS * 1e-9);
    p->pool_start_s = syn_stat(SYN_START_NS * 1e-9);
    for (uint32_t k = 0; k < n + n_extra; k++) {
        const ps_kernel_spec *spec = k < n ? &table[k].spec : &extra[k - n];
        p->kernels[p->n_kernels++] = *spec;
        if (spec->device != PS_DEV_CPU) /* in the catalogue, not measured */
            continue;
        const syn_shape *shapes = rows;
        size_t n_shapes = sizeof rows / sizeof rows[0];
        if (spec->op == PS_OP_MATMUL) {
            shapes = mats;
            n_shapes = sizeof mats / sizeof mats[0];
        } else if (spec->op == PS_OP_ATTENTION) {
            shapes = atts;
            n_shapes = sizeof atts / sizeof atts[0];
        } else if (spec->op == PS_OP_MOE_DISPATCH) {
            shapes = moes;
            n_shapes = sizeof moes / sizeof moes[0];
        }
        for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++)
            for (size_t s = 0; s < n_shapes; s++)
                for (size_t h = 0; h < 4; h++) {
                    ps_profile_point point = {.rows = shapes[s].rows,
                                              .cols = shapes[s].cols,
                                              .heads_kv = shapes[s].heads_kv,
                                              .kv_len = shapes[s].kv_len,
                                              .n_tokens = tokens[t],
                                              .n_threads = threads[h]};
                    if (tokens[t] < spec->min_tokens || tokens[t] > spec->max_tokens)
                        continue;
                    if (spec->op == PS_OP_ATTENTION && point.kv_len < tokens[t])
                        point.kv_len = tokens[t];
                    if (spec->op == PS_OP_MOE_ROUTE)
                        point.heads_kv = (uint32_t)point.cols, point.kv_len = 8;
                    bool twice = false; /* where KV lengths were raised to the tokens */
                    for (uint32_t i = p->n_points; i-- > 0 && spec->op == PS_OP_ATTENTION &&
                                                   p->points[i].kernel == spec->id && !twice;) {
                        const ps_profile_point *o = &p->points[i];
                        twice = o->rows == point.rows && o->cols == point.cols &&
                                o->heads_kv == point.heads_kv && o->kv_len == point.kv_len &&
                                o->n_tokens == point.n_tokens && o->n_threads == point.n_threads;
                    }
                    if (twice)
                        continue;
                    syn_add(p, &room, point, spec);
                }
    }
    ps_kernel_spec_hash(p->kernels, p->n_kernels, p->kernel_set);
    return p;
}

static inline ps_profile *syn_profile(void) {
    return syn_profile_with(NULL, 0);
}

#endif
