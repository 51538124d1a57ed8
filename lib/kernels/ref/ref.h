/* What the files of the reference share: activations and weights as double rows. */
#ifndef PS_KERNELS_REF_H
#define PS_KERNELS_REF_H

#include "kernels/kernel.h"

/* Elements [col0, col0 + n) of row t of an activation as doubles. I32 and the weights of SEL rows come as
 * their values. col0 is a multiple of 32 for Q8. */
void ps_ref_load(const ps_xarg *x, uint64_t t, uint64_t col0, uint64_t n, double *out);
/* The inverse; Q8: d = max|x|/127, q to nearest even, s = d*sum(q), all computed in double. Q8 ranges start and
 * end at multiples of 32; F16S is stored as a whole row. */
void ps_ref_store(const ps_xarg *x, uint64_t t, uint64_t col0, uint64_t n, const double *in);
/* Row `row` of expert `expert` of a weight as doubles; tmp: floats of one row. */
void ps_ref_weight_row(const ps_warg *w, uint64_t expert, uint64_t row, float *tmp, double *out);

ps_status ps_ref_attention(const ps_kargs *a, ps_error *err);
ps_status ps_ref_moe_dispatch(const ps_kargs *a, ps_error *err);
ps_status ps_ref_moe_route(const ps_kargs *a, ps_error *err);
/* act(g) of the model's gated unit. */
double ps_ref_act(ps_glu glu, double g);

#endif
