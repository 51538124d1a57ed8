/* Products of MOE_DISPATCH for many tokens: weights in super-blocks of 256. */
#include "kernels/cuda/moe_many.cuh"

namespace psc {
const many_family many_k[MANY_K] = {PS_MANY_FAMILY(Q4_K, tile::q4_k), PS_MANY_FAMILY(Q5_K, tile::q5_k),
                                    PS_MANY_FAMILY(Q6_K, tile::q6_k)};
} // namespace psc
