/* Names, units and texts that pstune's commands share. */
#include <stdio.h>

#include "pstune_internal.h"

const char *const ps_tune_beside_names[PS_BESIDE_COUNT] = {
#define BESIDE_NAME(name, text) text,
    PS_BESIDE_LIST(BESIDE_NAME)
#undef BESIDE_NAME
};
const char *const ps_tune_stop_names[PS_STOP_COUNT] = {
#define STOP_NAME(name, text) text,
    PS_STOP_LIST(STOP_NAME)
#undef STOP_NAME
};
const char *const ps_tune_bus_names[PS_BUS_COUNT] = {
#define BUS_NAME(name, text) text,
    PS_BUS_LIST(BUS_NAME)
#undef BUS_NAME
};
const char *const ps_tune_kind_names[PS_HOST_KIND_COUNT] = {
#define KIND_NAME(name, text) text,
    PS_HOST_KIND_LIST(KIND_NAME)
#undef KIND_NAME
};

const ps_tune_quantity ps_tune_gpu[PS_TUNE_N_GPU] = {
#define QUANTITY(member, label, unit)                                                                        \
    { #member, label, offsetof(ps_profile_gpu, member), PS_TUNE_##unit }
    QUANTITY(hbm_read_bytes_per_s, "memory", BYTES_PER_S),
    QUANTITY(matmul_flops_per_s, "products, best", FLOPS),
    QUANTITY(attention_flops_per_s, "attention, best", FLOPS),
    QUANTITY(launch_s, "launch of a kernel", SECONDS),
    QUANTITY(graph_node_s, "kernel in a graph", SECONDS),
    QUANTITY(graph_launch_s, "launch of a graph", SECONDS),
    QUANTITY(event_wait_s, "wait for an event", SECONDS),
    QUANTITY(to_cpu_s, "hand-over to the CPU", SECONDS),
    QUANTITY(to_gpu_s, "hand-over to the GPU", SECONDS),
    QUANTITY(lock_bytes_per_s, "page-locking", BYTES_PER_S),
    QUANTITY(map_s, "mapping 16 MiB", SECONDS),
    QUANTITY(unmap_s, "releasing 16 MiB", SECONDS),
#undef QUANTITY
};

const ps_stat *ps_tune_gpu_stat(const ps_profile_gpu *gpu, int i) {
    return (const ps_stat *)(const void *)((const char *)gpu + ps_tune_gpu[i].at);
}

const ps_kernel_spec *ps_tune_kernel(const ps_profile *p, uint32_t id) {
    uint32_t lo = 0, hi = p->n_kernels;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (p->kernels[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < p->n_kernels && p->kernels[lo].id == id ? &p->kernels[lo] : NULL;
}

const char *ps_tune_time_text(double s, char buf[24]) {
    if (s < 1e-6)
        snprintf(buf, 24, "%.0f ns", s * 1e9);
    else if (s < 1e-3)
        snprintf(buf, 24, "%.2f us", s * 1e6);
    else if (s < 1)
        snprintf(buf, 24, "%.3f ms", s * 1e3);
    else
        snprintf(buf, 24, "%.3f s", s);
    return buf;
}

const char *ps_tune_value_text(double value, ps_tune_unit unit, char buf[24]) {
    if (unit == PS_TUNE_SECONDS)
        return ps_tune_time_text(value, buf);
    if (unit == PS_TUNE_FLOPS)
        snprintf(buf, 24, "%.1f TF/s", value * 1e-12);
    else
        snprintf(buf, 24, "%.2f GB/s", value * 1e-9);
    return buf;
}
