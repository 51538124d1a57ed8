/* cuBLAS, opened by dlopen. The few declarations stand here: names, types and values are cuBLAS's own
 * (cublas_api.h; the same in versions 12 and 13). */
#include "kernels/cuda/blas.cuh"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

#include "kernels/cuda/cuda_kernels.h"

namespace {

typedef struct cublasContext *handle_t;
enum { STATUS_SUCCESS = 0, STATUS_NOT_INITIALIZED = 1, STATUS_ALLOC_FAILED = 3, STATUS_NOT_SUPPORTED = 15 };
enum { OP_N = 0, OP_T = 1 };
enum { ATOMICS_NOT_ALLOWED = 0 };
enum { DEFAULT_MATH = 0, DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };
enum { COMPUTE_32F = 68 };
enum { GEMM_DEFAULT = -1 };

/* X(member, "symbol", parameters) */
#define BLAS_FUNCTIONS(X)                                                                                    \
    X(create, "cublasCreate_v2", (handle_t *))                                                               \
    X(destroy, "cublasDestroy_v2", (handle_t))                                                               \
    X(set_stream, "cublasSetStream_v2", (handle_t, cudaStream_t))                                            \
    X(set_workspace, "cublasSetWorkspace_v2", (handle_t, void *, size_t))                                    \
    X(set_math_mode, "cublasSetMathMode", (handle_t, int))                                                   \
    X(set_atomics_mode, "cublasSetAtomicsMode", (handle_t, int))                                             \
    X(gemm, "cublasGemmEx",                                                                                  \
      (handle_t, int transa, int transb, int m, int n, int k, const void *alpha, const void *a, int a_type,  \
       int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,          \
       int compute_type, int algorithm))

} // namespace

struct ps_cuda_blas {
    void *library;
    handle_t handle;
#define MEMBER(name, symbol, parameters) int(*name) parameters;
    BLAS_FUNCTIONS(MEMBER)
#undef MEMBER
};

extern "C" ps_status ps_cuda_blas_open(struct ps_cuda_blas **out, ps_error *err) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
    ps_status status = PS_OK;
    int s = 0;
    *out = NULL;
    ps_cuda_blas *b = (ps_cuda_blas *)calloc(1, sizeof *b);
    if (!b)
        return ps_error_set(err, PS_E_NOMEM, "cublas", "out of memory");
    for (const char *name : names)
        if (!b->library)
            b->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!b->library) {
        status = ps_error_set(err, PS_E_UNAVAILABLE, "cublas", "neither %s nor %s can be opened", names[0],
                              names[1]);
        goto failed;
    }
#define FIND(name, symbol, parameters)                                                                       \
    if (!(b->name = (int(*) parameters)dlsym(b->library, symbol))) {                                         \
        status = ps_error_set(err, PS_E_UNAVAILABLE, "cublas", "the library has no %s", symbol);             \
        goto failed;                                                                                         \
    }
    BLAS_FUNCTIONS(FIND)
#undef FIND
    s = b->create(&b->handle);
    s = s ? s : b->set_atomics_mode(b->handle, ATOMICS_NOT_ALLOWED);
    s = s ? s : b->set_math_mode(b->handle, DEFAULT_MATH | DISALLOW_REDUCED_PRECISION_REDUCTION);
    if (s) {
        status = ps_error_set(err, s == STATUS_ALLOC_FAILED ? PS_E_NOMEM : PS_E_OS, "cublas",
                              "cannot be initialised: status %d", s);
        if (err)
            err->sys_code = s;
        goto failed;
    }
    *out = b;
    return PS_OK;
failed:
    ps_cuda_blas_close(b);
    return status;
}

extern "C" void ps_cuda_blas_close(struct ps_cuda_blas *blas) {
    if (!blas)
        return;
    if (blas->handle)
        blas->destroy(blas->handle);
    if (blas->library)
        dlclose(blas->library);
    free(blas);
}

namespace psc {

cudaError_t blas_multiply(ps_cuda_blas *blas, cudaStream_t stream, uint8_t *workspace,
                          uint64_t workspace_bytes, uint32_t m, uint32_t n, uint32_t k, const void *a,
                          uint64_t lda, const void *b, uint64_t ldb, float beta, float *c, uint64_t ldc) {
    if (m > INT_MAX || n > INT_MAX || k > INT_MAX || lda > INT_MAX || ldb > INT_MAX || ldc > INT_MAX)
        return cudaErrorNotSupported;
    const float alpha = 1;
    /* A new stream takes the workspace away, so it is set after it, every time. cuBLAS counts columns first. */
    int s = blas->set_stream(blas->handle, stream);
    s = s ? s : blas->set_workspace(blas->handle, workspace, workspace_bytes);
    s = s ? s
          : blas->gemm(blas->handle, OP_T, OP_N, (int)m, (int)n, (int)k, &alpha, a, CUDA_R_16F, (int)lda, b,
                       CUDA_R_16F, (int)ldb, &beta, c, CUDA_R_32F, (int)ldc, COMPUTE_32F, GEMM_DEFAULT);
    return s == STATUS_SUCCESS           ? cudaSuccess
           : s == STATUS_ALLOC_FAILED    ? cudaErrorMemoryAllocation
           : s == STATUS_NOT_INITIALIZED ? cudaErrorNotReady
           : s == STATUS_NOT_SUPPORTED   ? cudaErrorNotSupported
                                         : cudaErrorUnknown;
}

} // namespace psc
