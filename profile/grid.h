/* Which points a sweep measures. */
#ifndef PS_PROFILE_GRID_H
#define PS_PROFILE_GRID_H

#include "model/model.h"
#include "profile/rig.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a grid is made for. */
typedef struct ps_grid_config {
    const ps_kernel_spec *kernels; /* the catalogue; without gpu, rows of device cuda are passed over */
    uint32_t n_kernels;
    uint32_t n_threads;    /* most threads: 1, 2, 4, ... and this are measured */
    bool gpu;              /* kernels of device cuda, bus and hand-over as well */
    bool blas;             /* those that use cuBLAS too */
    bool quick;            /* fewer shapes, token counts and thread counts */
    const ps_model *model; /* NULL: a grid for any model; otherwise just the shapes of its operations */
} ps_grid_config;

/* Tasks without duplicates in *out_tasks (from malloc, the caller frees it), ceilings and barriers included.
 * Errors: PS_E_NOMEM. */
ps_status ps_grid_make(const ps_grid_config *config, ps_task **out_tasks, uint32_t *out_n, ps_error *err);

/* n points of CPU kernels that no grid has, for config->kernels, n_threads and, if there is one, model: shapes (or the model's), tokens up
 * to 512, KV up to 16K and threads at random, the same for the same seed. As above. */
ps_status ps_grid_random(const ps_grid_config *config, uint64_t seed, uint32_t n, ps_task **out_tasks,
                         uint32_t *out_n, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
