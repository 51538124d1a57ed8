/* Matrix products of 5-bit types. */
#include "kernels/cuda/matmul.cuh"

namespace psc {
PSC_MATMUL_FAMILY(matmul_q5_0, half_q5_0);
PSC_MATMUL_FAMILY(matmul_q5_1, half_q5_1);
PSC_MATMUL_FAMILY(matmul_q5_k, half_q5_k);
} // namespace psc
