/* What the kernels' tests use of CUDA's runtime and of cuBLAS, on the host. Device memory has its exact size. */
#include <stdlib.h>

#include "cuda_host.h"
#include "kernels/cuda/blas.cuh"
#include "kernels/cuda/cuda_kernels.h"

extern "C" {

cudaError_t cudaGetDeviceCount(int *n) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = 3;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (PS_CUDA_ON_HOST >= 900 ? 227 : 64) << 10;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (PS_CUDA_ON_HOST >= 900 ? 228 : 64) << 10;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = PS_CUDA_ON_HOST / 100;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = PS_CUDA_ON_HOST / 10 % 10;
        break;
    default:
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *) {
    memset(out, 0, sizeof *out);
    out->ptxVersion = out->binaryVersion = PS_CUDA_ON_HOST / 10;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) {
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *, int, size_t,
                                                                   unsigned) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *, int, size_t) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    return cudaSuccess;
}
const char *cudaGetErrorName(cudaError_t e) {
    return e == cudaSuccess ? "cudaSuccess" : "an error";
}
const char *cudaGetErrorString(cudaError_t e) {
    return cudaGetErrorName(e);
}
cudaError_t cudaDeviceSynchronize() {
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **out, size_t bytes) {
    return posix_memalign(out, 256, bytes) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p) {
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
    return cudaMalloc(out, bytes);
}
cudaError_t cudaFreeHost(void *p) {
    return cudaFree(p);
}
cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned) {
    *out = host;
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind) {
    memcpy(dst, src, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *dst, int value, size_t bytes) {
    memset(dst, value, bytes);
    return cudaSuccess;
}

ps_status ps_cuda_blas_open(ps_cuda_blas **out, ps_error *) {
    *out = (ps_cuda_blas *)malloc(1);
    return *out ? PS_OK : PS_E_NOMEM;
}
void ps_cuda_blas_close(ps_cuda_blas *blas) {
    free(blas);
}
}

namespace psc {

cudaError_t blas_multiply(ps_cuda_blas *, cudaStream_t, uint8_t *, uint64_t, uint32_t m, uint32_t n,
                          uint32_t k, const void *a, uint64_t lda, const void *b, uint64_t ldb, float beta,
                          float *c, uint64_t ldc) {
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t i = 0; i < m; i++) {
            const __half *x = (const __half *)a + i * lda, *y = (const __half *)b + j * ldb;
            float sum = 0;
            for (uint32_t p = 0; p < k; p++)
                sum += __half2float(x[p]) * __half2float(y[p]);
            c[j * ldc + i] = sum + (beta != 0 ? beta * c[j * ldc + i] : 0);
        }
    return cudaSuccess;
}

} // namespace psc
