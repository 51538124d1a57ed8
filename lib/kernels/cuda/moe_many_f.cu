/* Products of MOE_DISPATCH for many tokens: float weights. */
#include "kernels/cuda/moe_many.cuh"

namespace psc {
const many_family many_f[MANY_F] = {PS_MANY_FAMILY(F32, tile::f32), PS_MANY_FAMILY(F16, tile::f16),
                                    PS_MANY_FAMILY(BF16, tile::bf16)};
} // namespace psc
