/* Matrix products of 4-bit types. */
#include "kernels/cuda/matmul.cuh"

namespace psc {
PSC_MATMUL_FAMILY(matmul_q4_0, half_q4_0);
PSC_MATMUL_FAMILY(matmul_q4_1, half_q4_1);
PSC_MATMUL_FAMILY(matmul_q4_k, half_q4_k);
} // namespace psc
