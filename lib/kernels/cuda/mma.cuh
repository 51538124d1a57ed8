/* How tiles of matrix products lie in shared memory. */
#ifndef PS_KERNELS_CUDA_MMA_CUH
#define PS_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/ptx.cuh"

namespace psc {

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
