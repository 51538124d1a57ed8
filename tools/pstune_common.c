/* What pstune's commands share: kernels by id, numbers as text. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernel.h"
#include "pstune_internal.h"

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

const char *ps_tune_shape_text(const ps_profile_point *p, char buf[PS_TUNE_SHAPE]) {
    int n = p->rows ? snprintf(buf, PS_TUNE_SHAPE, "%llux%llu", (unsigned long long)p->rows,
                               (unsigned long long)p->cols)
                    : snprintf(buf, PS_TUNE_SHAPE, "%llu", (unsigned long long)p->cols);
    if (p->heads_kv)
        snprintf(buf + n, PS_TUNE_SHAPE - (size_t)n, "/%u kv %llu", p->heads_kv,
                 (unsigned long long)p->kv_len);
    return buf;
}

const char *ps_tune_value_text(double value, ps_unit unit, char buf[24]) {
    if (unit == PS_UNIT_SECONDS)
        return ps_tune_time_text(value, buf);
    if (unit == PS_UNIT_FLOPS)
        snprintf(buf, 24, "%.1f TF/s", value * 1e-12);
    else
        snprintf(buf, 24, "%.2f GB/s", value * 1e-9);
    return buf;
}

ps_status ps_tune_catalogue(ps_kernel_spec **out, uint32_t *out_n, ps_error *err) {
    const ps_kernel *table = ps_kernel_table(out_n);
    *out = malloc((*out_n ? *out_n : 1) * sizeof **out);
    if (!*out)
        return ps_error_set(err, PS_E_NOMEM, "kernels", "no memory for the catalogue");
    for (uint32_t i = 0; i < *out_n; i++)
        (*out)[i] = table[i].spec;
    return PS_OK;
}
