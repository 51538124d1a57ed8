/* Matrix products of 6-bit and 8-bit types. */
#include "kernels/cuda/matmul.cuh"

namespace psc {
PSC_MATMUL_FAMILY(matmul_q8_0, half_q8_0);
PSC_MATMUL_NARROW(matmul_q6_k, half_q6_k);
} // namespace psc
