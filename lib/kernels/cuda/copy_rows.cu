/* COPY on queue gpu: values between VRAM and mapped host memory, by threads instead of a copy engine, so that they never
 * queue behind weight copies. */
#include "kernels/cuda/launch.cuh"

namespace psc {
namespace {

constexpr uint32_t COPY_THREADS = 256, COPY_UNROLL = 4, COPY_MAX_BLOCKS = 1024;

/* Block (piece of COPY_THREADS * COPY_UNROLL elements, row and every gridDim.y-th after it). `across` elements of type T per
 * row, strides in elements. COPY_UNROLL loads are in flight per thread: the bus answers after a microsecond or more. */
template <class T>
__global__ void __launch_bounds__(COPY_THREADS)
    copy_rows(T *dst, uint64_t dst_stride, const T *src, uint64_t src_stride, uint64_t across,
              uint64_t n_rows) {
    const uint64_t piece = (uint64_t)gridDim.x * COPY_THREADS * COPY_UNROLL;
    for (uint64_t r = blockIdx.y; r < n_rows; r += gridDim.y) {
        const T *from = src + r * src_stride;
        T *to = dst + r * dst_stride;
        for (uint64_t i = blockIdx.x * (uint64_t)(COPY_THREADS * COPY_UNROLL) + threadIdx.x; i < across;
             i += piece) {
            T v[COPY_UNROLL];
#pragma unroll
            for (uint32_t k = 0; k < COPY_UNROLL; k++)
                if (i + k * COPY_THREADS < across)
                    v[k] = from[i + k * COPY_THREADS];
#pragma unroll
            for (uint32_t k = 0; k < COPY_UNROLL; k++)
                if (i + k * COPY_THREADS < across)
                    to[i + k * COPY_THREADS] = v[k];
        }
    }
}

template <class T>
void run_copy(void *dst, uint64_t dst_stride, const void *src, uint64_t src_stride, uint64_t row_bytes,
              uint64_t n_rows, cudaStream_t stream) {
    const uint64_t across = row_bytes / sizeof(T), pieces = (across - 1) / (COPY_THREADS * COPY_UNROLL) + 1;
    const uint32_t x = (uint32_t)(pieces < COPY_MAX_BLOCKS ? pieces : COPY_MAX_BLOCKS),
                   most = COPY_MAX_BLOCKS / x;
    const uint32_t y = (uint32_t)(n_rows < most ? n_rows : most);
    PS_LAUNCH(copy_rows<T>, dim3(x, y), COPY_THREADS, 0, stream)
    ((T *)dst, dst_stride / sizeof(T), (const T *)src, src_stride / sizeof(T), across, n_rows);
}

} // namespace

cudaError_t load_copy_rows() {
    cudaError_t e = load(copy_rows<uint4>);
    e = e ? e : load(copy_rows<uint32_t>);
    return e ? e : load(copy_rows<uint8_t>);
}
} // namespace psc

extern "C" ps_status ps_cuda_copy_rows(void *dst, uint64_t dst_stride, const void *src, uint64_t src_stride,
                                       uint64_t row_bytes, uint64_t n_rows, void *stream, ps_error *err) {
    if (row_bytes == 0 || n_rows == 0)
        return PS_OK;
    if (row_bytes > (UINT64_MAX >> 8) / n_rows)
        return ps_error_set(err, PS_E_UNSUPPORTED, "copy", "more bytes than there are addresses");
    if (n_rows == 1)
        dst_stride = src_stride = row_bytes;
    const uint64_t all = (uint64_t)dst | dst_stride | (uint64_t)src | src_stride | row_bytes;
    const cudaStream_t s = (cudaStream_t)stream;
    if (all % 16 == 0)
        psc::run_copy<uint4>(dst, dst_stride, src, src_stride, row_bytes, n_rows, s);
    else if (all % 4 == 0)
        psc::run_copy<uint32_t>(dst, dst_stride, src, src_stride, row_bytes, n_rows, s);
    else
        psc::run_copy<uint8_t>(dst, dst_stride, src, src_stride, row_bytes, n_rows, s);
    const cudaError_t e = cudaGetLastError();
    if (e == cudaSuccess)
        return PS_OK;
    const ps_status st =
        ps_error_set(err, PS_E_OS, "copy", "%s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
    if (err)
        err->sys_code = (int)e;
    return st;
}
