/* What the project uses of cuBLAS: opened at run time, so that its headers and libraries are not needed to build. */
#ifndef PS_KERNELS_CUDA_BLAS_CUH
#define PS_KERNELS_CUDA_BLAS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

struct ps_cuda_blas;

namespace psc {

/* c[n x m] = a[m x k] . b[n x k] + beta * c: a and b halves, c floats; rows lda, ldb, ldc elements apart. Sums in floats. The
 * library works in `workspace` alone. */
cudaError_t blas_multiply(ps_cuda_blas *blas, cudaStream_t stream, uint8_t *workspace,
                          uint64_t workspace_bytes, uint32_t m, uint32_t n, uint32_t k, const void *a,
                          uint64_t lda, const void *b, uint64_t ldb, float beta, float *c, uint64_t ldc);

} // namespace psc
#endif
