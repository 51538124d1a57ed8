/* CUDA kernels on the host, for tests: every lane of a block is a fibre, blocks run one after the other, and what lanes do
 * together (barriers, shuffles, fragments of tensor cores) is done once all have come. Between two such points lanes run
 * in an order that changes from point to point; asynchronous copies arrive as late as they may. So a barrier that is missing, a copy that nobody
 * waits for, or lanes that wait at different barriers show, in the same way every time. Device memory is malloc's: address sanitizers see each step outside.
 *
 * Included by lib/kernels/cuda/ptx.cuh where PS_CUDA_ON_HOST is defined. Takes CUDA's own headers for its types and for half arithmetic. One
 * thread of the process at a time. */
#ifndef PS_TESTS_CUDA_HOST_H
#define PS_TESTS_CUDA_HOST_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

namespace cuda_host {

struct place {
    dim3 thread, block;
};
extern place now;                  /* the lane that runs */
extern dim3 block_size, grid_size; /* of the launch */

/* Run body as every lane of every block. Prints and ends the process with 70 where lanes wait for each other in vain. */
void run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body);
/* At a multiple of 128 bytes, below 4 GiB; poisoned at each block's start. */
void *dynamic_shared();

/* A word and its address in shared memory are 32 bits: such programs are linked to low addresses. */
void copy_later(void *dst, const void *src, uint32_t bytes);
void copies_commit();
void copies_wait(uint32_t n_under_way);
void load_matrices(uint32_t (&r)[4], uint32_t address, bool transposed);
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

/* What a lane brings to a meeting of its warp, and takes away. */
struct slot {
    uint64_t value;
    uint32_t word[10];
};
/* Until all lanes of the mask have come with a value each. Slots of all, [32], there until the same lanes meet again. */
const slot *exchange(uint32_t mask, uint64_t value);
/* Until all lanes of the block that have not ended have come; the or of what they brought. */
int meet_block(int value);

template <class... PARAMS> struct launch {
    void (*kernel)(PARAMS...);
    dim3 grid, block;
    size_t shared_bytes;
    void operator()(PARAMS... args) const {
        run(grid, block, shared_bytes, [&] { kernel(args...); });
    }
};
template <class... PARAMS>
launch<PARAMS...> launcher(void (*kernel)(PARAMS...), dim3 grid, dim3 block, size_t shared_bytes) {
    return {kernel, grid, block, shared_bytes};
}

template <class T> inline uint64_t bits_of(T v) {
    static_assert(sizeof v <= 8, "a word or two");
    uint64_t u = 0;
    memcpy(&u, &v, sizeof v);
    return u;
}
template <class T> inline T of_bits(uint64_t u) {
    T v;
    memcpy(&v, &u, sizeof v);
    return v;
}
inline uint32_t lane() {
    return now.thread.x & 31;
}

} // namespace cuda_host

#define threadIdx (cuda_host::now.thread)
#define blockIdx (cuda_host::now.block)
#define blockDim (cuda_host::block_size)
#define gridDim (cuda_host::grid_size)

/* ---- what lanes do together ---- */
inline void __syncthreads() {
    (void)cuda_host::meet_block(0);
}
inline int __syncthreads_or(int v) {
    return cuda_host::meet_block(v);
}
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
    (void)cuda_host::exchange(mask, 0);
}
template <class T> inline T __shfl_sync(uint32_t mask, T v, int from) {
    return cuda_host::of_bits<T>(cuda_host::exchange(mask, cuda_host::bits_of(v))[from & 31].value);
}
template <class T> inline T __shfl_xor_sync(uint32_t mask, T v, int with) {
    return __shfl_sync(mask, v, (int)cuda_host::lane() ^ with);
}
template <class T> inline T __shfl_up_sync(uint32_t mask, T v, uint32_t by) {
    const uint32_t lane = cuda_host::lane();
    return __shfl_sync(mask, v, (int)(lane >= by ? lane - by : lane));
}
inline uint32_t __ballot_sync(uint32_t mask, int v) {
    const cuda_host::slot *all = cuda_host::exchange(mask, v != 0);
    uint32_t b = 0;
    for (uint32_t i = 0; i < 32; i++)
        b |= (mask >> i & 1) && all[i].value ? 1u << i : 0;
    return b;
}
inline int __any_sync(uint32_t mask, int v) {
    return __ballot_sync(mask, v) != 0;
}

/* ---- one lane's ---- */
template <class T> inline T __ldg(const T *p) {
    return *p;
}
inline size_t __cvta_generic_to_shared(const void *p) {
    return (size_t)p;
}
inline float __uint_as_float(uint32_t u) {
    return cuda_host::of_bits<float>(u);
}
inline uint32_t __float_as_uint(float f) {
    return (uint32_t)cuda_host::bits_of(f);
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline int __float2int_rn(float f) {
    return (int)nearbyintf(f);
}
inline int __popc(uint32_t v) {
    return __builtin_popcount(v);
}
inline int __ffs(int v) {
    return __builtin_ffs(v);
}
inline uint32_t __funnelshift_r(uint32_t lo, uint32_t hi, uint32_t by) {
    return (uint32_t)(((uint64_t)hi << 32 | lo) >> (by & 31));
}
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
    const uint64_t both = (uint64_t)y << 32 | x;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++)
        c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
inline uint32_t __vsub4(uint32_t a, uint32_t b) {
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(uint8_t)((a >> 8 * i) - (b >> 8 * i)) << 8 * i;
    return r;
}
inline __half2 __hfma2(__half2 x, __half2 a, __half2 b) { /* a double holds the exact sum of these */
    const auto one = [](__half f, __half g, __half h) {
        return __double2half((double)__half2float(f) * (double)__half2float(g) + (double)__half2float(h));
    };
    return __halves2half2(one(x.x, a.x, b.x), one(x.y, a.y, b.y));
}
inline void sincospif(float x, float *sine, float *cosine) {
    const double a = M_PI * fmod((double)x, 2.0);
    *sine = (float)sin(a), *cosine = (float)cos(a);
}
template <class T> inline T atomicAdd(T *p, T v) {
    const T old = *p;
    *p = old + v;
    return old;
}
inline uint32_t atomicOr(uint32_t *p, uint32_t v) {
    const uint32_t old = *p;
    *p = old | v;
    return old;
}
inline int min(int a, int b) {
    return a < b ? a : b;
}
inline uint32_t min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}
inline uint64_t min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
inline int max(int a, int b) {
    return a > b ? a : b;
}
inline uint32_t max(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}
inline uint64_t max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
#endif
