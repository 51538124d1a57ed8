/* Choice of the next token from logits: greedy, temperature, top-k, top-p, min-p, with a seed. */
#ifndef PS_KERNELS_SAMPLER_H
#define PS_KERNELS_SAMPLER_H

#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* temperature 0: greedy, ties to the lower id. top_k 0: all. top_p 1, min_p 0: off. Filters apply in the
 * order top_k, top_p, min_p to probabilities at temperature 1, then temperature, then one draw. */
typedef struct ps_sampler_params {
    float temperature;
    uint32_t top_k;
    float top_p, min_p;
    uint64_t seed;
} ps_sampler_params;

typedef struct ps_sampler ps_sampler;

/* Errors: PS_E_USAGE naming the parameter, PS_E_NOMEM. One thread at a time. */
ps_status ps_sampler_new(const ps_sampler_params *params, uint32_t n_vocab, ps_sampler **out, ps_error *err);
void ps_sampler_free(ps_sampler *sampler);
/* Token chosen from n_vocab logits; advances the generator by one draw unless greedy. Allocates nothing. */
int32_t ps_sampler_pick(ps_sampler *sampler, const float *logits);

#ifdef __cplusplus
}
#endif
#endif
