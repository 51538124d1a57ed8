/* The instructions that matrix products are made of: asynchronous copies into shared memory, fragments, and products of
 * fragments; with what stands for them before compute capability 8.0. */
#ifndef PS_KERNELS_CUDA_MMA_CUH
#define PS_KERNELS_CUDA_MMA_CUH

#include <cuda_fp16.h>
#include <stdint.h>

namespace psc {

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes to shared memory, of which the first `bytes` (even, 0 to 16) are read from src and the others are zero. Both
 * addresses are multiples of 16. */
__device__ __forceinline__ void copy_async(uint8_t *dst, const uint8_t *src, uint32_t bytes) {
#if __CUDA_ARCH__ >= 800
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
                w[i / 2] |= (uint32_t) * (const uint16_t *)(src + 2 * i) << 16 * (i & 1);
        v = make_uint4(w[0], w[1], w[2], w[3]);
    }
    *(uint4 *)dst = v;
#endif
}
/* All 16 bytes, or zeros. */
__device__ __forceinline__ void copy_or_zero(uint8_t *dst, const uint8_t *src, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, %2, 0;\ncp.async.cg.shared.global [%0], [%1], 16, p;\n}\n" ::"r"(
            shared_address(dst)),
        "l"(src), "r"((uint32_t)there)
        : "memory");
#else
    *(uint4 *)dst = there ? *(const uint4 *)src : make_uint4(0, 0, 0, 0);
#endif
}
__device__ __forceinline__ void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}
/* Until at most N of this thread's groups are under way. */
template <int N> __device__ __forceinline__ void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
#endif
}

/* Four 8 x 8 matrices of halves; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* c[16 x 8] += a[16 x 16] . b[16 x 8], halves into floats. */
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

/* Tiles in shared memory: rows of 64 halves, 8 pieces of 16 bytes; piece c of row r lies at piece c ^ r % 8, so that
 * eight rows of a column of pieces lie in different banks. */
__device__ __forceinline__ uint32_t piece_at(uint32_t row, uint32_t piece) {
    return row * 128 + ((piece ^ (row & 7)) << 4);
}

/* What the compiler shall neither work out ahead of its use nor again at every use. */
__device__ __forceinline__ uint32_t held_back(uint32_t v) {
    asm volatile("" : "+r"(v));
    return v;
}

} // namespace psc
#endif
