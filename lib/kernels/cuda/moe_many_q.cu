/* Products of MOE_DISPATCH for many tokens: weights in blocks of 32. */
#include "kernels/cuda/moe_many.cuh"

namespace psc {
const many_family many_q[MANY_Q] = {PS_MANY_FAMILY(Q4_0, tile::q4_0), PS_MANY_FAMILY(Q4_1, tile::q4_1),
                                    PS_MANY_FAMILY(Q5_0, tile::q5_0), PS_MANY_FAMILY(Q5_1, tile::q5_1),
                                    PS_MANY_FAMILY(Q8_0, tile::q8_0)};
} // namespace psc
