/* The scenarios of devices on a GPU. test_cuda_device [INDEX]: of the GPUs that CUDA shows. 77 without one. */
#include <cuda_runtime.h>

#include "machine/device.h"

__global__ void scale(uint32_t *dst, const uint32_t *src, uint32_t n, uint32_t mul, uint32_t add) {
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        dst[i] = src[i] * mul + add;
}

__global__ void delay(uint32_t us) {
    uint64_t t0, t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    } while (t - t0 < us * 1000ull);
}

static ps_status launched(ps_device *d, ps_error *err) {
    const cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? PS_OK
                               : ps_error_set(err, PS_E_OS, ps_device_get_info(d)->name, "launch: %s",
                                              cudaGetErrorString(code));
}

static ps_status scenario_scale(ps_device *d, ps_stream stream, uint32_t *dst, const uint32_t *src,
                                uint32_t n, uint32_t mul, uint32_t add, ps_error *err) {
    if (ps_device_fault(d, "launch"))
        return ps_error_set(err, PS_E_OS, ps_device_get_info(d)->name, "launch was refused");
    scale<<<(n + 255) / 256, 256, 0, (cudaStream_t)ps_device_stream(d, stream)>>>(dst, src, n, mul, add);
    return launched(d, err);
}

static ps_status scenario_delay(ps_device *d, ps_stream stream, uint32_t us, ps_error *err) {
    delay<<<1, 1, 0, (cudaStream_t)ps_device_stream(d, stream)>>>(us);
    return launched(d, err);
}

#include "../device_scenarios.h"

int main(int argc, char **argv) {
    ps_device_options options = {};
    options.index = argc > 1 ? (uint32_t)strtoul(argv[1], nullptr, 10) : 0;
    ps_device *d = nullptr;
    ps_error err = {};
    uint64_t t0 = ps_clock_ns();
    const ps_status st = ps_device_open(&options, &d, &err);
    if (st == PS_E_UNAVAILABLE) {
        fprintf(stderr, "skipped: %s: %s (%.1f ms)\n", err.subject, err.message,
                (double)(ps_clock_ns() - t0) * 1e-6);
        return 77;
    }
    CHECK(st == PS_OK, "%s: %s", err.subject, err.message);
    if (!d)
        return 1;
    const ps_device_info *i = ps_device_get_info(d);
    ps_device_link link;
    ps_device_read_link(d, &link);
    CHECK(link.gen <= link.max_gen && link.width <= link.max_width, "PCIe %u x%u of %u x%u", link.gen,
          link.width, link.max_gen, link.max_width);
    printf("%s, %s, driver %s, capability %u.%u, %u multiprocessors, %.1f GiB, L2 %.0f MiB, PCIe %u x%u%s%s; "
           "opened in %.0f ms\n",
           i->name, i->uuid, i->driver, i->cc_major, i->cc_minor, i->n_multiprocessors,
           (double)i->vram_bytes / 0x1p30, (double)i->l2_bytes / 0x1p20, link.gen, link.width,
           i->integrated ? ", integrated" : "", i->display ? ", display" : "",
           (double)(ps_clock_ns() - t0) * 1e-6);
    CHECK(i->cc_major * 10 + i->cc_minor >= 75 && i->vram_bytes > 0 && i->n_multiprocessors > 0 &&
              !i->emulated,
          "info");
    uint64_t used = 0, all = 0, total = 0;
    ps_meter how = PS_METER_COUNT;
    OK(ps_device_vram_used(d, &used, &how, err));
    OK(ps_device_vram_all(d, &all, &total, err));
    t0 = ps_clock_ns();
    for (int k = 0; k < 10; k++)
        OK(ps_device_vram_used(d, &used, &how, err));
    printf("meter: %s, %.1f MiB of this process, %.1f of %.1f MiB in all; a reading takes %.0f us\n",
           ps_meter_name(how), (double)used / 0x1p20, (double)all / 0x1p20, (double)total / 0x1p20,
           (double)(ps_clock_ns() - t0) * 1e-4);
    CHECK(used > 0, "a context takes memory");
    CHECK(how != PS_METER_EMULATED, "a real meter");
    ps_device_close(d);
    return scenarios_run(&options) != 0;
}
