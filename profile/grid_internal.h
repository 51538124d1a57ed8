/* Shared by grid.c and grid_model.c. */
#ifndef PS_PROFILE_GRID_INTERNAL_H
#define PS_PROFILE_GRID_INTERNAL_H

#include "profile/grid.h"

enum { PS_GRID_TOKENS = 16, PS_GRID_THREADS = 40 };

typedef struct ps_grid {
    const ps_grid_config *config;
    uint32_t n, room;
    bool failed; /* out of memory */
    ps_task *tasks;
} ps_grid;

void ps_grid_add(ps_grid *g, ps_task task);
/* Adds a point of kernel k unless it is too much work for what it tells. */
void ps_grid_point(ps_grid *g, const ps_kernel_spec *k, ps_profile_point p, bool essential);
/* 1, 2, 4, ... below `most`, and `most`; few: 1, about half and `most`. out holds PS_GRID_THREADS. */
uint32_t ps_grid_threads(uint32_t most, bool few, uint32_t *out);
/* Threads of a kernel that runs beside memory streams on the remaining ones: a power of two up to half. */
uint32_t ps_grid_beside_threads(uint32_t most);
void ps_grid_add_model(ps_grid *g);
/* grid_gpu.c: the GPU's kernels (of any model, or of the model's shapes), bus and small costs. */
void ps_grid_add_gpu(ps_grid *g);
/* Shape of an operation of a model as a point has it (kv_len of attention apart), and the type of its weight. */
ps_profile_point ps_grid_shape_of(const ps_model *m, uint32_t layer, const ps_op_desc *op);
ps_dtype ps_grid_weight_type(const ps_model *m, uint32_t layer, const ps_op_desc *op);
bool ps_grid_is_output(ps_value v);
/* Sorts and drops tasks that are there twice. */
void ps_grid_dedupe(ps_grid *g);

#endif
