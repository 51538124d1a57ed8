/* Matrix products of float types. Rows of halves at odd places, and floats (two products each), are rare: small tiles do. */
#include "kernels/cuda/matmul.cuh"

namespace psc {
PSC_MATMUL_NARROW(matmul_f16, half_f16);
PSC_MATMUL_NARROW(matmul_bf16, half_bf16);
const matmul_family matmul_f16_any = {{{}, {}, {}, {}, matmul_of<half_f16_any, tile_small>(0.5f), {}}};
const matmul_family matmul_f32 = {{{}, {}, {}, {}, matmul_of<half_f32, tile_split>(0.5f), {}}};
} // namespace psc
