/* The CUDA driver of device.h: CUDA's runtime (linked statically; it opens libcuda by itself where there is one), and of the
 * driver's own interface the functions of virtual memory. Toolkit 12.0 or newer.
 *
 * Every call that can be reported goes through CALL or DRIVER, which ask options.fault first. A call that only frees goes
 * straight through: there is nobody to tell. */
#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine/device_driver.h"
#include "machine/device_link.h"
#include "machine/nvml.h"

namespace {

/* X(name, parameters): functions of the driver, taken from it at open. */
#define DRIVER_LIST(X)                                                                                       \
    X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                 \
    X(cuMemAddressFree, (CUdeviceptr, size_t))                                                               \
    X(cuMemCreate,                                                                                           \
      (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))             \
    X(cuMemRelease, (CUmemGenericAllocationHandle))                                                          \
    X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))             \
    X(cuMemUnmap, (CUdeviceptr, size_t))                                                                     \
    X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                                \
    X(cuMemGetAllocationGranularity,                                                                         \
      (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))                             \
    X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                                           \
    X(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))

enum { BASE_ALIGN = 2 << 20, LOOKS = 256 };

struct device_cuda {
    ps_device device;
#define DRIVER_MEMBER(name, parameters) CUresult(CUDAAPI *name) parameters;
    DRIVER_LIST(DRIVER_MEMBER)
#undef DRIVER_MEMBER
    int index;
    pthread_t thread; /* the last that called; CUDA's current device belongs to a thread */
    bool have_thread;
    CUmemAllocationProp memory;
    CUmemAccessDesc access;
    cudaStream_t streams[PS_STREAM_COUNT];
    uint8_t *d_flags;
    /* Made at their first record. One index can have both kinds: last is the one recorded last. */
    cudaEvent_t plain[PS_DEVICE_EVENTS], timed[PS_DEVICE_EVENTS], last[PS_DEVICE_EVENTS];
    ps_nvml *nvml; /* NULL: not there */
    char bus_id[32];
};

struct graph_cuda {
    ps_device_graph graph;
    cudaGraphExec_t exec;
};

device_cuda *of(ps_device *d) {
    return reinterpret_cast<device_cuda *>(d);
}

/* ---- calls ---- */
/* What a call that is made to fail says: what the driver would say where memory is short, or memory of that kind is not
 * taken; else that it does not know. Codes of driver and runtime are the same numbers. */
int injected(const char *call) {
    if (!strcmp(call, "cudaHostRegister"))
        return cudaErrorNotSupported;
    if (!strcmp(call, "cudaHostAlloc") || !strcmp(call, "cuMemCreate") ||
        !strcmp(call, "cuMemAddressReserve"))
        return cudaErrorMemoryAllocation;
    return cudaErrorUnknown;
}

ps_status status_of(int code) {
    switch (code) {
    case cudaErrorMemoryAllocation:
        return PS_E_NOMEM;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
        return PS_E_UNAVAILABLE;
    default:
        return PS_E_OS;
    }
}

ps_status called(const ps_device *d, const char *call, int code, ps_error *err) {
    if (code == cudaSuccess)
        return PS_OK;
    (void)cudaGetLastError(); /* or the next launch would be blamed for it */
    ps_error_set(err, status_of(code), d->info.name[0] ? d->info.name : "GPU", "%s: %s", call,
                 cudaGetErrorString((cudaError_t)code));
    if (err)
        err->sys_code = code;
    return status_of(code);
}

#define CODE(d, fn, ...) (ps_device_fault(d, #fn) ? injected(#fn) : (int)fn(__VA_ARGS__))
#define CALL(d, fn, ...) called(d, #fn, CODE(d, fn, __VA_ARGS__), err)
#define DRIVER(c, fn, ...)                                                                                   \
    called(&(c)->device, #fn,                                                                                \
           ps_device_fault(&(c)->device, #fn) ? injected(#fn) : (int)(c)->fn(__VA_ARGS__), err)
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        const ps_status st_ = (call);                                                                        \
        if (st_ != PS_OK)                                                                                    \
            return st_;                                                                                      \
    } while (0)

/* Make the device the thread's current one. */
ps_status use(device_cuda *c, ps_error *err) {
    int now = -1;
    if (c->have_thread && pthread_equal(c->thread, pthread_self()) && cudaGetDevice(&now) == cudaSuccess &&
        now == c->index)
        return PS_OK;
    TRY(CALL(&c->device, cudaSetDevice, c->index));
    c->thread = pthread_self();
    c->have_thread = true;
    return PS_OK;
}

/* ---- hand-over ---- */
/* One thread each. A signal comes after everything that the stream did before: the fence makes that visible to the host first.
 * The base is read anew at every launch, past all caches. */
__global__ void signal_kernel(uint64_t *flag, const uint64_t *base, uint64_t add) {
    const uint64_t value = *(const volatile uint64_t *)base + add;
    __threadfence_system();
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

/* flags: the CPU's flag and the poison, read at once. */
__global__ void await_kernel(const uint64_t *flags, const uint64_t *base, uint64_t add) {
    const uint64_t value = *(const volatile uint64_t *)base + add;
    for (uint32_t i = 0;; i++) {
        uint64_t flag, poison;
        asm volatile("ld.volatile.v2.u64 {%0, %1}, [%2];" : "=l"(flag), "=l"(poison) : "l"(flags) : "memory");
        if (flag >= value || poison != 0)
            break;
        if (i >= LOOKS)
            __nanosleep(100);
    }
    __threadfence_system();
}

__device__ uint64_t device_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

/* Never longer than after_ns from its own beginning, whatever is at `clock`. */
__global__ void hold_kernel(volatile uint64_t *clock, uint64_t after_ns) {
    const uint64_t begin = device_ns(), from = *clock;
    if (after_ns == 0) {
        *clock = begin;
        return;
    }
    const uint64_t until = (from < begin ? from : begin) + after_ns;
    while (device_ns() < until)
        __nanosleep(200);
}

ps_status cuda_signal(ps_device *d, ps_stream stream, const uint64_t *d_base, uint64_t add, ps_error *err) {
    device_cuda *c = of(d);
    TRY(use(c, err));
    uint64_t *flag = (uint64_t *)(c->d_flags + offsetof(ps_device_flags, gpu));
    void *args[] = {&flag, &d_base, &add};
    return CALL(d, cudaLaunchKernel, (const void *)signal_kernel, dim3(1), dim3(1), args, 0,
                c->streams[stream]);
}

ps_status cuda_await(ps_device *d, ps_stream stream, const uint64_t *d_base, uint64_t add, ps_error *err) {
    device_cuda *c = of(d);
    TRY(use(c, err));
    const uint64_t *flags = (const uint64_t *)(c->d_flags + offsetof(ps_device_flags, cpu));
    void *args[] = {&flags, &d_base, &add};
    return CALL(d, cudaLaunchKernel, (const void *)await_kernel, dim3(1), dim3(1), args, 0,
                c->streams[stream]);
}

ps_status cuda_hold(ps_device *d, ps_stream stream, uint64_t *d_clock, uint64_t after_ns, ps_error *err) {
    device_cuda *c = of(d);
    TRY(use(c, err));
    void *args[] = {&d_clock, &after_ns};
    return CALL(d, cudaLaunchKernel, (const void *)hold_kernel, dim3(1), dim3(1), args, 0,
                c->streams[stream]);
}
static_assert(offsetof(ps_device_flags, poison) == offsetof(ps_device_flags, cpu) + 8 &&
                  offsetof(ps_device_flags, cpu) % 16 == 0,
              "one read sees both");

/* ---- VRAM ---- */
ps_status cuda_reserve(ps_device *d, uint64_t bytes, uint8_t **out_base, ps_error *err) {
    device_cuda *c = of(d);
    CUdeviceptr at = 0;
    TRY(use(c, err));
    TRY(DRIVER(c, cuMemAddressReserve, &at, bytes, BASE_ALIGN, 0, 0));
    *out_base = (uint8_t *)at;
    return PS_OK;
}

void cuda_unreserve(ps_device *d, uint8_t *base, uint64_t bytes) {
    (void)use(of(d), nullptr);
    (void)of(d)->cuMemAddressFree((CUdeviceptr)base, bytes);
}

/* Give back [at, at + bytes) from its end, a handle at a time; the handles were released once mapped, so that this frees them. */
void unmap_all(device_cuda *c, CUdeviceptr at, uint64_t bytes) {
    for (uint64_t end = bytes; end > 0; end -= PS_VRAM_HANDLE)
        (void)c->cuMemUnmap(at + end - PS_VRAM_HANDLE, PS_VRAM_HANDLE);
}

ps_status cuda_map(ps_device *d, uint8_t *where, uint64_t bytes, ps_error *err) {
    device_cuda *c = of(d);
    const CUdeviceptr at = (CUdeviceptr)where;
    TRY(use(c, err));
    ps_status st = PS_OK;
    uint64_t done = 0;
    while (done < bytes && st == PS_OK) {
        CUmemGenericAllocationHandle handle;
        st = DRIVER(c, cuMemCreate, &handle, PS_VRAM_HANDLE, &c->memory, 0);
        if (st != PS_OK)
            break;
        st = DRIVER(c, cuMemMap, at + done, PS_VRAM_HANDLE, 0, handle, 0);
        (void)c->cuMemRelease(handle); /* the mapping keeps it */
        if (st == PS_OK)
            done += PS_VRAM_HANDLE;
    }
    if (st == PS_OK)
        st = DRIVER(c, cuMemSetAccess, at, bytes, &c->access, 1);
    if (st != PS_OK)
        unmap_all(c, at, done);
    return st;
}

ps_status cuda_unmap(ps_device *d, uint8_t *where, uint64_t bytes, bool ask, uint64_t *out_left,
                     ps_error *err) {
    device_cuda *c = of(d);
    const CUdeviceptr at = (CUdeviceptr)where;
    *out_left = bytes;
    if (!ask) {
        (void)use(c, nullptr);
        unmap_all(c, at, bytes);
        *out_left = 0;
        return PS_OK;
    }
    TRY(use(c, err));
    for (; *out_left > 0; *out_left -= PS_VRAM_HANDLE)
        TRY(DRIVER(c, cuMemUnmap, at + *out_left - PS_VRAM_HANDLE, PS_VRAM_HANDLE));
    return PS_OK;
}

/* ---- host memory ---- */
ps_status cuda_host_alloc(ps_device *d, uint64_t bytes, void **out, uint8_t **out_device, ps_error *err) {
    void *host = nullptr, *at = nullptr;
    TRY(use(of(d), err));
    TRY(CALL(d, cudaHostAlloc, &host, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    const ps_status st = CALL(d, cudaHostGetDevicePointer, &at, host, 0);
    if (st != PS_OK) {
        (void)cudaFreeHost(host);
        return st;
    }
    memset(host, 0, bytes);
    *out = host;
    *out_device = (uint8_t *)at;
    return PS_OK;
}

void cuda_host_free(ps_device *d, void *host, uint64_t bytes) {
    (void)bytes;
    (void)use(of(d), nullptr);
    (void)cudaFreeHost(host);
}

ps_status cuda_host_register(ps_device *d, void *host, uint64_t bytes, uint8_t **out_device, ps_error *err) {
    device_cuda *c = of(d);
    const unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable;
    void *at = nullptr;
    TRY(use(c, err));
    const bool refused = ps_device_fault(d, "cudaHostRegister");
    int code = refused ? injected("cudaHostRegister") : (int)cudaHostRegister(host, bytes, flags);
    if (code != cudaSuccess && code != cudaErrorMemoryAllocation && !refused) {
        /* A mapping that we may only read cannot be locked for writing; some devices take it as it is. */
        int can = 0;
        (void)cudaGetLastError();
        if (cudaDeviceGetAttribute(&can, cudaDevAttrHostRegisterReadOnlySupported, c->index) == cudaSuccess &&
            can)
            code = (int)cudaHostRegister(host, bytes, flags | cudaHostRegisterReadOnly);
    }
    const ps_status st = called(d, "cudaHostRegister", code, err);
    if (st != PS_OK) {
        const bool kind = code == cudaErrorNotSupported || code == cudaErrorInvalidValue ||
                          code == cudaErrorOperatingSystem;
        if (kind && err)
            err->status = PS_E_UNSUPPORTED;
        return kind ? PS_E_UNSUPPORTED : st;
    }
    const ps_status got = CALL(d, cudaHostGetDevicePointer, &at, host, 0);
    if (got != PS_OK) {
        (void)cudaHostUnregister(host);
        return got;
    }
    *out_device = (uint8_t *)at;
    return PS_OK;
}

void cuda_host_unregister(ps_device *d, void *host) {
    (void)use(of(d), nullptr);
    (void)cudaHostUnregister(host);
}

/* ---- streams ---- */
void *cuda_stream(const ps_device *d, ps_stream stream) {
    return reinterpret_cast<const device_cuda *>(d)->streams[stream];
}

ps_status cuda_copy(ps_device *d, ps_stream stream, void *dst, uint64_t dst_pitch, const void *src,
                    uint64_t src_pitch, uint64_t row_bytes, uint64_t rows, ps_error *err) {
    device_cuda *c = of(d);
    TRY(use(c, err));
    if (rows == 1)
        return CALL(d, cudaMemcpyAsync, dst, src, row_bytes, cudaMemcpyDefault, c->streams[stream]);
    return CALL(d, cudaMemcpy2DAsync, dst, dst_pitch, src, src_pitch, row_bytes, rows, cudaMemcpyDefault,
                c->streams[stream]);
}

ps_status cuda_record(ps_device *d, ps_stream stream, uint32_t index, bool timed, ps_error *err) {
    device_cuda *c = of(d);
    cudaEvent_t *event = timed ? &c->timed[index] : &c->plain[index];
    TRY(use(c, err));
    if (!*event)
        TRY(CALL(d, cudaEventCreateWithFlags, event, timed ? cudaEventDefault : cudaEventDisableTiming));
    /* In a capture: a node that takes the time at every launch. */
    if (timed && d->capture.open)
        TRY(CALL(d, cudaEventRecordWithFlags, *event, c->streams[stream], cudaEventRecordExternal));
    else
        TRY(CALL(d, cudaEventRecord, *event, c->streams[stream]));
    c->last[index] = *event;
    return PS_OK;
}

ps_status cuda_wait(ps_device *d, ps_stream stream, uint32_t index, ps_error *err) {
    device_cuda *c = of(d);
    TRY(use(c, err));
    return CALL(d, cudaStreamWaitEvent, c->streams[stream], c->last[index], 0);
}

ps_status cuda_passed(ps_device *d, uint32_t index, bool *out, ps_error *err) {
    device_cuda *c = of(d);
    TRY(use(c, err));
    const int code = CODE(d, cudaEventQuery, c->last[index]);
    *out = code == cudaSuccess;
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return PS_OK;
    }
    return called(d, "cudaEventQuery", code, err);
}

ps_status cuda_elapsed(ps_device *d, uint32_t from, uint32_t to, double *out_s, ps_error *err) {
    device_cuda *c = of(d);
    float ms = 0;
    TRY(use(c, err));
    const int code = CODE(d, cudaEventElapsedTime, &ms, c->timed[from], c->timed[to]);
    /* InvalidResourceHandle: one was captured and its graph not launched yet. */
    if (code == cudaErrorNotReady || code == cudaErrorInvalidResourceHandle) {
        (void)cudaGetLastError();
        return ps_error_set(err, PS_E_USAGE, d->info.name, "an event has not passed yet");
    }
    *out_s = (double)ms * 1e-3;
    return called(d, "cudaEventElapsedTime", code, err);
}

ps_status cuda_sync(ps_device *d, ps_error *err) {
    device_cuda *c = of(d);
    TRY(use(c, err));
    for (cudaStream_t stream : c->streams)
        TRY(CALL(d, cudaStreamSynchronize, stream));
    return PS_OK;
}

ps_status cuda_check(ps_device *d, ps_error *err) {
    device_cuda *c = of(d);
    TRY(use(c, err));
    for (cudaStream_t stream : c->streams) {
        const int code = CODE(d, cudaStreamQuery, stream);
        if (code == cudaErrorNotReady)
            (void)cudaGetLastError();
        else
            TRY(called(d, "cudaStreamQuery", code, err));
    }
    return PS_OK;
}

/* ---- graphs ---- */
ps_status cuda_capture_begin(ps_device *d, ps_error *err) {
    device_cuda *c = of(d);
    TRY(use(c, err));
    /* Relaxed: device.c holds the rules, and a kernel that is loaded late must not spoil it. */
    return CALL(d, cudaStreamBeginCapture, c->streams[PS_STREAM_COMPUTE], cudaStreamCaptureModeRelaxed);
}

void cuda_capture_abort(ps_device *d) {
    device_cuda *c = of(d);
    cudaGraph_t graph = nullptr;
    (void)use(c, nullptr);
    (void)cudaStreamEndCapture(c->streams[PS_STREAM_COMPUTE], &graph);
    if (graph)
        (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
}

ps_status cuda_capture_end(ps_device *d, ps_device_graph **out, ps_error *err) {
    device_cuda *c = of(d);
    ps_status st = use(c, err);
    graph_cuda *g = (graph_cuda *)calloc(1, sizeof *g);
    if (st == PS_OK && !g)
        st = ps_error_set(err, PS_E_NOMEM, d->info.name, "no memory for a graph");
    cudaGraph_t graph = nullptr;
    if (st == PS_OK)
        st = CALL(d, cudaStreamEndCapture, c->streams[PS_STREAM_COMPUTE], &graph);
    if (!graph) /* it was not ended */
        cuda_capture_abort(d);
    if (st == PS_OK)
        st = CALL(d, cudaGraphInstantiate, &g->exec, graph, 0);
    if (st == PS_OK) /* what it needs on the device is taken now, not at its first launch */
        st = CALL(d, cudaGraphUpload, g->exec, c->streams[PS_STREAM_COMPUTE]);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (st != PS_OK) {
        if (g && g->exec)
            (void)cudaGraphExecDestroy(g->exec);
        free(g);
        return st;
    }
    *out = &g->graph;
    return PS_OK;
}

ps_status cuda_graph_launch(ps_device *d, ps_device_graph *graph, ps_error *err) {
    device_cuda *c = of(d);
    TRY(use(c, err));
    return CALL(d, cudaGraphLaunch, reinterpret_cast<graph_cuda *>(graph)->exec,
                c->streams[PS_STREAM_COMPUTE]);
}

void cuda_graph_free(ps_device *d, ps_device_graph *graph) {
    graph_cuda *g = reinterpret_cast<graph_cuda *>(graph);
    (void)use(of(d), nullptr);
    (void)cudaGraphExecDestroy(g->exec);
    free(g);
}

/* ---- meter ---- */
/* From any thread: without use(), which remembers its caller. */
ps_status whole_device(ps_device *d, uint64_t *out_used, uint64_t *out_total, ps_error *err) {
    size_t free_bytes = 0, total = 0;
    int now = -1;
    if (cudaGetDevice(&now) != cudaSuccess || now != of(d)->index)
        TRY(CALL(d, cudaSetDevice, of(d)->index));
    TRY(CALL(d, cudaMemGetInfo, &free_bytes, &total));
    if (total == 0 || free_bytes > total)
        return ps_error_set(err, PS_E_UNAVAILABLE, d->info.name, "CUDA reports %zu bytes free of %zu",
                            free_bytes, total);
    *out_used = total - free_bytes;
    *out_total = total;
    return PS_OK;
}

void cuda_link(const ps_device *d, ps_device_link *out) {
    const device_cuda *c = reinterpret_cast<const device_cuda *>(d);
    ps_device_link by_nvml = {}, by_sysfs = {};
    if (c->nvml)
        ps_nvml_link(c->nvml, &by_nvml);
    ps_device_link_sysfs("", c->bus_id, &by_sysfs);
    out->gen = by_nvml.gen ? by_nvml.gen : by_sysfs.gen;
    out->width = by_nvml.width ? by_nvml.width : by_sysfs.width;
    out->max_gen = by_nvml.max_gen ? by_nvml.max_gen : by_sysfs.max_gen;
    out->max_width = by_nvml.max_width ? by_nvml.max_width : by_sysfs.max_width;
}

ps_status cuda_vram_used(ps_device *d, uint64_t *out_bytes, ps_meter *out_how, ps_error *err) {
    uint64_t total;
    if (of(d)->nvml && ps_nvml_meter_read(of(d)->nvml, out_bytes, out_how, nullptr) == PS_OK)
        return PS_OK;
    TRY(whole_device(d, out_bytes, &total, err));
    *out_how = PS_METER_WHOLE;
    return PS_OK;
}

ps_status cuda_vram_all(ps_device *d, uint64_t *out_used, uint64_t *out_total, ps_error *err) {
    if (of(d)->nvml && ps_nvml_memory(of(d)->nvml, out_used, out_total, nullptr) == PS_OK)
        return PS_OK;
    return whole_device(d, out_used, out_total, err);
}

/* ---- life ---- */
void cuda_close(ps_device *d) {
    device_cuda *c = of(d);
    if (c->have_thread)
        (void)use(c, nullptr);
    for (int i = 0; i < PS_DEVICE_EVENTS; i++) {
        if (c->plain[i])
            (void)cudaEventDestroy(c->plain[i]);
        if (c->timed[i])
            (void)cudaEventDestroy(c->timed[i]);
    }
    for (cudaStream_t stream : c->streams)
        if (stream)
            (void)cudaStreamDestroy(stream);
    if (d->flags)
        (void)cudaFreeHost(d->flags);
    (void)cudaGetLastError();
    ps_nvml_close(c->nvml);
    free(c);
}

const ps_device_driver driver = {
    .close = cuda_close,
    .stream = cuda_stream,
    .reserve = cuda_reserve,
    .unreserve = cuda_unreserve,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .copy = cuda_copy,
    .enqueue = nullptr,
    .record = cuda_record,
    .wait = cuda_wait,
    .passed = cuda_passed,
    .elapsed = cuda_elapsed,
    .sync = cuda_sync,
    .check = cuda_check,
    .signal = cuda_signal,
    .await = cuda_await,
    .hold = cuda_hold,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .capture_abort = cuda_capture_abort,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .link = cuda_link,
    .vram_used = cuda_vram_used,
    .vram_all = cuda_vram_all,
};

/* ---- opening ---- */
ps_status driver_function(const ps_device *d, const char *name, void **out, ps_error *err) {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    TRY(CALL(d, cudaGetDriverEntryPointByVersion, name, out, 12000, cudaEnableDefault, &found));
#else
    TRY(CALL(d, cudaGetDriverEntryPoint, name, out, cudaEnableDefault, &found));
#endif
    if (found != cudaDriverEntryPointSuccess || !*out)
        return ps_error_set(err, PS_E_UNAVAILABLE, d->info.name, "its driver is too old: it has no %s", name);
    return PS_OK;
}

ps_status attribute(device_cuda *c, cudaDeviceAttr which, uint32_t *out, ps_error *err) {
    int value = 0;
    TRY(CALL(&c->device, cudaDeviceGetAttribute, &value, which, c->index));
    *out = value > 0 ? (uint32_t)value : 0;
    return PS_OK;
}

/* What the device is; nothing of this makes a context. */
ps_status look(device_cuda *c, char bus_id[32], ps_error *err) {
    ps_device *d = &c->device;
    ps_device_info *info = &d->info;
    int n = 0;
    const int code = CODE(d, cudaGetDeviceCount, &n);
    if (code != cudaSuccess) {
        const ps_status st = called(d, "cudaGetDeviceCount", code, err);
        if (st == PS_E_NOMEM)
            return st;
        if (code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice)
            ps_error_set(err, PS_E_UNAVAILABLE, "GPU", "%s",
                         code == cudaErrorNoDevice ? "there is none"
                                                   : "no NVIDIA driver, or one that is too old");
        if (err) {
            err->status = PS_E_UNAVAILABLE;
            err->sys_code = code;
        }
        return PS_E_UNAVAILABLE;
    }
    if (d->options.index >= (uint32_t)n)
        return ps_error_set(err, PS_E_UNAVAILABLE, "GPU", "there is no GPU %u, CUDA shows %d",
                            d->options.index, n);
    c->index = (int)d->options.index;
    cudaDeviceProp p;
    TRY(CALL(d, cudaGetDeviceProperties, &p, c->index));
    snprintf(info->name, sizeof info->name, "%.95s", p.name);
    const unsigned char *u = (const unsigned char *)p.uuid.bytes;
    snprintf(info->uuid, sizeof info->uuid,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
             u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    info->cc_major = (uint32_t)p.major;
    info->cc_minor = (uint32_t)p.minor;
    if (info->cc_major * 10 + info->cc_minor < 75)
        return ps_error_set(err, PS_E_UNAVAILABLE, info->name, "compute capability %u.%u is below 7.5",
                            info->cc_major, info->cc_minor);
    info->n_multiprocessors = (uint32_t)p.multiProcessorCount;
    info->l2_bytes = (uint64_t)p.l2CacheSize;
    info->vram_bytes = p.totalGlobalMem;
    info->integrated = p.integrated != 0;
    uint32_t limited = 0;
    TRY(attribute(c, cudaDevAttrKernelExecTimeout, &limited,
                  err)); /* a screen, or WDDM, must not wait for a kernel */
    info->display = limited != 0;
    return CALL(d, cudaDeviceGetPCIBusId, bus_id, 32, c->index);
}

void find_nvml(device_cuda *c) {
    ps_device_info *info = &c->device.info;
    if (ps_nvml_open(info->uuid, nullptr, &c->nvml, nullptr) != PS_OK) {
        /* A slice of a GPU has a name of its own kind. */
        char slice[sizeof info->uuid];
        memcpy(slice, info->uuid, sizeof slice);
        memcpy(slice, "MIG", 3);
        if (ps_nvml_open(slice, nullptr, &c->nvml, nullptr) != PS_OK) {
            c->nvml = nullptr;
            return;
        }
        memcpy(info->uuid, slice, sizeof slice);
    }
    ps_nvml_driver(c->nvml, info->driver, sizeof info->driver);
}

ps_status prepare(device_cuda *c, ps_error *err) {
    ps_device *d = &c->device;
    TRY(look(c, c->bus_id, err));
    for (char *p = c->bus_id; *p; p++) /* sysfs has small letters */
        if (*p >= 'A' && *p <= 'F')
            *p = (char)(*p - 'A' + 'a');
    find_nvml(c);
    if (c->nvml)
        ps_nvml_meter_begin(c->nvml);
#define DRIVER_LOAD(name, parameters) TRY(driver_function(d, #name, (void **)&c->name, err));
    DRIVER_LIST(DRIVER_LOAD)
#undef DRIVER_LOAD
    unsigned flags = 0;
    int had_context = 0, can = 0;
    TRY(DRIVER(c, cuDevicePrimaryCtxGetState, c->index, &flags, &had_context));
    TRY(DRIVER(c, cuDeviceGetAttribute, &can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
               c->index));
    if (!can)
        return ps_error_set(err, PS_E_UNAVAILABLE, d->info.name,
                            "its memory cannot be mapped piece by piece");
    flags = d->info.display ? cudaDeviceScheduleBlockingSync : cudaDeviceScheduleSpin;
    TRY(CALL(d, cudaInitDevice, c->index, flags | cudaDeviceMapHost, cudaInitDeviceFlagsAreValid));
    TRY(use(c, err));

    c->memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    c->memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    c->memory.location.id = c->index;
    c->access.location = c->memory.location;
    c->access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    size_t step = 0;
    TRY(DRIVER(c, cuMemGetAllocationGranularity, &step, &c->memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    if (step == 0 || PS_VRAM_HANDLE % step != 0)
        return ps_error_set(err, PS_E_UNAVAILABLE, d->info.name,
                            "its memory is mapped in pieces of %zu bytes", step);
    for (cudaStream_t &stream : c->streams)
        TRY(CALL(d, cudaStreamCreateWithFlags, &stream, cudaStreamNonBlocking));
    void *host = nullptr, *at = nullptr;
    TRY(CALL(d, cudaHostAlloc, &host, sizeof(ps_device_flags), cudaHostAllocMapped | cudaHostAllocPortable));
    memset(host, 0, sizeof(ps_device_flags));
    d->flags = (ps_device_flags *)host;
    TRY(CALL(d, cudaHostGetDevicePointer, &at, host, 0));
    c->d_flags = (uint8_t *)at;
    /* Loaded now, not between two tokens. */
    cudaFuncAttributes loaded;
    TRY(CALL(d, cudaFuncGetAttributes, &loaded, (const void *)signal_kernel));
    TRY(CALL(d, cudaFuncGetAttributes, &loaded, (const void *)await_kernel));
    TRY(CALL(d, cudaFuncGetAttributes, &loaded, (const void *)hold_kernel));

    if (c->nvml)
        ps_nvml_meter_end(c->nvml, had_context != 0);
    return PS_OK;
}

} // namespace

extern "C" ps_status ps_device_cuda_open(const ps_device_options *options, ps_device **out, ps_error *err) {
    device_cuda *c = (device_cuda *)calloc(1, sizeof *c);
    if (!c)
        return ps_error_set(err, PS_E_NOMEM, "GPU", "no memory for a device");
    c->device.driver = &driver;
    c->device.options = *options;
    const ps_status st = prepare(c, err);
    if (st != PS_OK) {
        c->device.options.fault = nullptr;
        cuda_close(&c->device);
        return st;
    }
    *out = &c->device;
    return PS_OK;
}
