/* The few instructions that CUDA C++ has no word for, with what stands for them before compute capability 8.0: asynchronous
 * copies into shared memory, fragments of tensor cores and their products, streaming loads. And what differs where kernels
 * are compiled for the host (tests/cuda_host), where every lane is a fibre: PS_CUDA_ON_HOST is the compute capability that
 * is played there. */
#ifndef PS_KERNELS_CUDA_PTX_CUH
#define PS_KERNELS_CUDA_PTX_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* PS_ARCH: compute capability times 100 of the code that is being made; 0 in the host's part of a compilation by nvcc.
 * PS_LAUNCH(kernel, grid, block, shared bytes, stream)(arguments): a launch.
 * PS_DYNAMIC_SHARED(align, type, name): the block's dynamic shared memory. */
#ifdef PS_CUDA_ON_HOST
#include "cuda_host.h"
#define PS_ARCH PS_CUDA_ON_HOST
#define PS_LAUNCH(kernel, grid, block, shared, stream) cuda_host::launcher(kernel, grid, block, shared)
#define PS_DYNAMIC_SHARED(align, type, name) type *const name = (type *)cuda_host::dynamic_shared()
#else
#ifdef __CUDA_ARCH__
#define PS_ARCH __CUDA_ARCH__
#else
#define PS_ARCH 0
#endif
#define PS_LAUNCH(kernel, grid, block, shared, stream) kernel<<<grid, block, shared, stream>>>
#define PS_DYNAMIC_SHARED(align, type, name)                                                                 \
    extern __shared__ __align__(align)                                                                       \
    type name[]
#endif

namespace psc {

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes to shared memory, of which the first `bytes` (even, 0 to 16) are read from src and the others are zero. Both
 * addresses are multiples of 16. Asynchronous from 8.0 on: there after copy_wait. */
__device__ __forceinline__ void copy_async(void *dst, const void *src, uint32_t bytes) {
#ifdef PS_CUDA_ON_HOST
    cuda_host::copy_later(dst, src, bytes);
#elif PS_ARCH >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(dst)), "l"(src),
                 "r"(bytes)
                 : "memory");
#else
    uint4 v = make_uint4(0, 0, 0, 0);
    if (bytes == 16) {
        v = *(const uint4 *)src;
    } else {
        uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            if (2 * i < bytes)
                w[i / 2] |= (uint32_t)((const uint16_t *)src)[i] << 16 * (i & 1);
        v = make_uint4(w[0], w[1], w[2], w[3]);
    }
    *(uint4 *)dst = v;
#endif
}
/* The same for rows that are read a little at a time, in steps of the inner dimension: the L2 cache fetches the 256 bytes
 * around, so that device memory is read in whole lines and the next steps find theirs in the cache. */
__device__ __forceinline__ void copy_async_row(void *dst, const void *src, uint32_t bytes) {
#if PS_ARCH >= 800 && !defined PS_CUDA_ON_HOST
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(dst)),
                 "l"(src), "r"(bytes)
                 : "memory");
#else
    copy_async(dst, src, bytes);
#endif
}
/* All 16 bytes, or zeros. */
__device__ __forceinline__ void copy_or_zero(void *dst, const void *src, bool there) {
#ifdef PS_CUDA_ON_HOST
    cuda_host::copy_later(dst, src, there ? 16 : 0);
#elif PS_ARCH >= 800
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, %2, 0;\ncp.async.cg.shared.global [%0], [%1], 16, p;\n}\n" ::"r"(
            shared_address(dst)),
        "l"(src), "r"((uint32_t)there)
        : "memory");
#else
    *(uint4 *)dst = there ? *(const uint4 *)src : make_uint4(0, 0, 0, 0);
#endif
}
/* The same to an address of shared memory; src must be an address all the same. */
__device__ __forceinline__ void copy_or_zero(uint32_t dst, const void *src, bool there) {
#ifdef PS_CUDA_ON_HOST
    cuda_host::copy_later((void *)(uintptr_t)dst, src, there ? 16 : 0);
#elif PS_ARCH >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(there ? 16 : 0));
#else
    const uint4 v = there ? __ldg((const uint4 *)src) : make_uint4(0, 0, 0, 0);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
#endif
}
/* What this thread asked for since the last commit is a group. */
__device__ __forceinline__ void copy_commit() {
#ifdef PS_CUDA_ON_HOST
    cuda_host::copies_commit();
#elif PS_ARCH >= 800
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}
/* Until at most N of this thread's groups are under way. */
template <int N> __device__ __forceinline__ void copy_wait() {
#ifdef PS_CUDA_ON_HOST
    cuda_host::copies_wait(N);
#elif PS_ARCH >= 800
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
#endif
}

/* Four 8 x 8 matrices of halves; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
#ifdef PS_CUDA_ON_HOST
    cuda_host::load_matrices(r, address, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#endif
}
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t address) {
#ifdef PS_CUDA_ON_HOST
    cuda_host::load_matrices(r, address, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#endif
}

/* c[16 x 8] += a[16 x 16] . b[16 x 8], halves into floats. Lane (g, i) = (lane / 4, lane % 4) holds of a rows g (words 0, 2) and
 * g + 8 (1, 3), columns 2 i and 2 i + 1 (0, 1) and 8 more (2, 3); of b column g; of c rows g (0, 1) and g + 8, columns 2 i, 2 i + 1. */
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef PS_CUDA_ON_HOST
    cuda_host::multiply(c, a, b0, b1);
#elif PS_ARCH >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

/* 2^x, approximately; 0 for -infinity. */
__device__ __forceinline__ float power2(float x) {
#ifdef PS_CUDA_ON_HOST
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* The line of 128 bytes around an address of global memory will be read. */
__device__ __forceinline__ void prefetch(const void *p) {
#ifdef PS_CUDA_ON_HOST
    (void)p;
#else
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
#endif
}

/* 16 bytes that are read once. */
__device__ __forceinline__ uint4 load_stream(const void *p) {
#ifdef PS_CUDA_ON_HOST
    return *(const uint4 *)p;
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
#endif
}

/* The same where `takes`; elsewhere v stays what it was. */
__device__ __forceinline__ void load_stream_if(bool takes, const void *p, uint4 &v) {
#ifdef PS_CUDA_ON_HOST
    if (takes)
        v = *(const uint4 *)p;
#else
    asm volatile("{\n\t.reg .pred t;\n\tsetp.ne.u32 t, %5, 0;\n\t"
                 "@t ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n\t}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(p), "r"((uint32_t)takes));
#endif
}

/* The next kernel of the stream may begin; this one waits for what the one before has written. Both only where a launch
 * says so, from 9.0 on. */
__device__ __forceinline__ void launch_dependents() {
#if PS_ARCH >= 900 && !defined PS_CUDA_ON_HOST
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_dependencies() {
#if PS_ARCH >= 900 && !defined PS_CUDA_ON_HOST
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace psc
#endif
