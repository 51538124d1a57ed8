/* The table of kernels, made from the lists that each folder of kernels exports, and its look-ups. Every build
 * has all rows, whatever it can run, so that a kernel set has the same hash everywhere. */
#include <string.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/kernel.h"

#define OP_SPEC(id_, name_, op_, wtype_, in_, out_, min_, max_, tol_, var_, base_, tok_, tokcol_, col_,      \
                thr_, thrcol_)                                                                               \
    {                                                                                                        \
        .id = id_, .name = name_, .op = PS_OP_##op_, .wtype = PS_DTYPE_##wtype_, .in_fmt = PS_FMT_##in_,     \
        .out_fmt = PS_FMT_##out_, .device = PS_DEV_CPU, .min_tokens = min_, .max_tokens = max_,              \
        .scratch = {base_, tok_, tokcol_, col_, thr_, thrcol_},                                              \
    }
#define MM_SPEC(id_, name_, wtype_, in_, min_, max_, tol_, family_)                                          \
    {                                                                                                        \
        .id = id_, .name = name_, .op = PS_OP_MATMUL, .wtype = PS_DTYPE_##wtype_, .in_fmt = PS_FMT_##in_,    \
        .out_fmt = PS_FMT_F32, .device = PS_DEV_CPU, .min_tokens = min_, .max_tokens = max_,                 \
        .scratch = PS_MM_SCRATCH_##family_,                                                                  \
    }
/* Launchers are found by id: ps_cuda_launch. */
#define CUDA_SPEC(id_, name_, op_, wtype_, in_, out_, min_, max_, tol_, launcher_, base_, tok_, tokcol_,     \
                  col_, thr_, thrcol_, chunk_, chunkcol_)                                                    \
    {                                                                                                        \
        .id = id_, .name = name_, .op = PS_OP_##op_, .wtype = PS_DTYPE_##wtype_, .in_fmt = PS_FMT_##in_,     \
        .out_fmt = PS_FMT_##out_, .device = PS_DEV_CUDA, .min_tokens = min_, .max_tokens = max_,             \
        .scratch = {base_, tok_, tokcol_, col_, thr_, thrcol_, chunk_, chunkcol_},                           \
    }

/* The specs alone, one behind the other, as the chooser and the hash take them. */
static const ps_kernel_spec specs[] = {
#define OP_SPEC_ROW(...) OP_SPEC(__VA_ARGS__),
    PS_CPU_OP_KERNELS(OP_SPEC_ROW)
#define MM_SPEC_ROW(...) MM_SPEC(__VA_ARGS__),
        PS_CPU_MATMUL_KERNELS(MM_SPEC_ROW)
#define CUDA_SPEC_ROW(...) CUDA_SPEC(__VA_ARGS__),
            PS_CUDA_KERNELS(CUDA_SPEC_ROW)};

static const ps_kernel table[] = {
#define OP_KERNEL_ROW(id_, name_, op_, wtype_, in_, out_, min_, max_, tol_, var_, ...)                       \
    {.spec = OP_SPEC(id_, name_, op_, wtype_, in_, out_, min_, max_, tol_, var_, __VA_ARGS__),               \
     .tolerance = tol_,                                                                                      \
     .n_variants = sizeof ps_cpu_##var_ / sizeof ps_cpu_##var_[0],                                           \
     .variants = ps_cpu_##var_},
    PS_CPU_OP_KERNELS(OP_KERNEL_ROW)
#define MM_KERNEL_ROW(id_, name_, wtype_, in_, min_, max_, tol_, family_)                                    \
    {.spec = MM_SPEC(id_, name_, wtype_, in_, min_, max_, tol_, family_),                                    \
     .tolerance = tol_,                                                                                      \
     .n_variants = PS_MM_N_##family_,                                                                        \
     .variants = ps_mm_variants_##family_},
        PS_CPU_MATMUL_KERNELS(MM_KERNEL_ROW)
#define CUDA_KERNEL_ROW(id_, name_, op_, wtype_, in_, out_, min_, max_, tol_, launcher_, ...)                \
    {.spec = CUDA_SPEC(id_, name_, op_, wtype_, in_, out_, min_, max_, tol_, launcher_, __VA_ARGS__),        \
     .tolerance = tol_},
            PS_CUDA_KERNELS(CUDA_KERNEL_ROW)};

enum { N_KERNELS = sizeof table / sizeof table[0] };

const ps_kernel *ps_kernel_table(uint32_t *out_n) {
    *out_n = N_KERNELS;
    return table;
}

const ps_kernel *ps_kernel_find(uint32_t id) {
    uint32_t lo = 0, hi = N_KERNELS;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (table[mid].spec.id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < N_KERNELS && table[lo].spec.id == id ? &table[lo] : NULL;
}

const ps_kernel *ps_kernel_by_name(const char *name) {
    for (uint32_t i = 0; i < N_KERNELS; i++)
        if (strcmp(table[i].spec.name, name) == 0)
            return &table[i];
    return NULL;
}

const ps_kernel *ps_kernel_choose(ps_op op, ps_dtype wtype, ps_fmt in, ps_fmt out, ps_processor device,
                                  uint32_t n_tokens) {
    const ps_kernel_spec *spec =
        ps_kernel_spec_choose(specs, N_KERNELS, op, wtype, in, out, device, n_tokens);
    return spec ? &table[spec - specs] : NULL;
}

const ps_cpu_variant *ps_kernel_variant(const ps_kernel *kernel, ps_cpu_level level) {
    const ps_cpu_variant *best = NULL;
    for (uint32_t i = 0; i < kernel->n_variants; i++)
        if (kernel->variants[i].level <= level)
            best = &kernel->variants[i];
    return best;
}

void ps_kernel_set_hash(uint8_t out[16]) {
    ps_kernel_spec_hash(specs, N_KERNELS, out);
}

bool ps_kernel_set_is_own(const uint8_t set[16]) {
    uint8_t own[16];
    ps_kernel_set_hash(own);
    return memcmp(own, set, sizeof own) == 0;
}

void ps_kernel_run_serial(const ps_kernel *kernel, ps_cpu_level level, const ps_kargs *a) {
    const ps_cpu_variant *v = ps_kernel_variant(kernel, level);
    for (uint32_t phase = 0; phase < v->n_phases; phase++) {
        const uint64_t n = v->n_items(a, phase);
        if (n)
            v->run(a, phase, 0, n, 0);
    }
}
