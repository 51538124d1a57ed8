/* A GPU as the runtime and the profiler use it: one range of VRAM per arena, page-locked host memory, three streams,
 * events, flags for the hand-over with the CPU, graphs, and the meter. Two drivers stand behind it: CUDA, and an emulated
 * device whose VRAM is host memory and whose streams are threads, so that everything above it runs, and is tested,
 * on machines without a GPU.
 *
 * Calls on one device come from one thread at a time, unless they say "any thread"; a call makes the device the
 * thread's current one. Work is enqueued in order on each stream and runs asynchronously. A call that fails leaves the
 * device usable for ps_device_close. What frees memory, releases VRAM or makes a graph may wait for all that is
 * enqueued: not while an await is pending that this thread has to answer.
 *
 * Errors of all calls that take a ps_error: PS_E_OS with CUDA's code (which may be that of work enqueued earlier),
 * PS_E_NOMEM, PS_E_USAGE for calls that break the rules here, and what they say themselves. */
#ifndef PS_MACHINE_DEVICE_H
#define PS_MACHINE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_device ps_device;
typedef struct ps_vram_range ps_vram_range;
typedef struct ps_device_graph ps_device_graph;

/* Streams: the queues gpu, h2d and d2h of a program. X(NAME, "name") */
#define PS_STREAM_LIST(X) X(COMPUTE, "compute") X(H2D, "h2d") X(D2H, "d2h")
typedef enum ps_stream {
#define PS_STREAM_ENUM(name, text) PS_STREAM_##name,
    PS_STREAM_LIST(PS_STREAM_ENUM)
#undef PS_STREAM_ENUM
        PS_STREAM_COUNT
} ps_stream;
const char *ps_stream_name(ps_stream stream);

/* How the meter knows what it says. X(NAME, "name") */
#define PS_METER_LIST(X)                                                                                     \
    X(PROCESS, "nvml, this process") /* NVML's per-process figure */                                         \
    X(DEVICE, "device, since start") /* change of the whole device's use: others on it count too */          \
    X(WHOLE, "device, in all")       /* its whole use: where even that change cannot be known */             \
    X(EMULATED, "emulated")
typedef enum ps_meter {
#define PS_METER_ENUM(name, text) PS_METER_##name,
    PS_METER_LIST(PS_METER_ENUM)
#undef PS_METER_ENUM
        PS_METER_COUNT
} ps_meter;
const char *ps_meter_name(ps_meter meter);

enum {
    PS_DEVICE_EVENTS = 4096, /* events 0 .. n-1 of a device */
    PS_DEVICE_FLAGS = 2,     /* PS_FLAG_*: 64-bit words in mapped host memory, each a cache line of its own */
    PS_FLAG_GPU = 0,         /* written by the device (ps_device_signal), read by the CPU */
    PS_FLAG_CPU = 1,         /* written by the CPU, read by the device (ps_device_await) */
    PS_VRAM_HANDLE = 16 << 20
};

typedef struct ps_device_options {
    uint32_t index;               /* of the GPUs that CUDA shows */
    bool emulated;                /* no GPU: host memory and threads */
    uint64_t emulated_bytes;      /* its VRAM; 0: 8 GiB */
    uint64_t emulated_base_bytes; /* what its context takes by its meter */
    /* A driver that spills: VRAM mapped beyond so many bytes is system memory, copied at 1 GB/s. 0: it never does. */
    uint64_t emulated_spill_bytes;
    bool emulated_integrated; /* it says that it shares the system's memory */
    /* Asked before every call to the driver by its name (CUDA's; emulated: the name below without ps_device_ or ps_),
     * on the calling thread; true makes it fail as if the driver had refused. What only frees is not asked for: it
     * reports nothing. NULL: never. */
    bool (*fault)(void *ctx, const char *call);
    void *fault_ctx;
    /* What other processes take of an emulated device: asked at each reading of the meter, and when VRAM is mapped. Any
     * thread. NULL: nothing. */
    uint64_t (*emulated_others)(void *ctx);
    void *emulated_others_ctx;
} ps_device_options;

/* A PCIe link: now, and what both ends can do; 0 where unknown. Idle links often rest at a lower generation. */
typedef struct ps_device_link {
    uint32_t gen, width, max_gen, max_width;
} ps_device_link;

typedef struct ps_device_info {
    char name[96], uuid[48], driver[32]; /* driver: version of the display driver, "" if NVML is not there */
    uint32_t cc_major, cc_minor, n_multiprocessors;
    uint64_t vram_bytes, l2_bytes;
    bool integrated, emulated;
    bool display; /* drives a screen, or WDDM: waits rather sleep than spin */
} ps_device_info;

/* options: copied. Without a GPU it returns at once. Errors: PS_E_UNAVAILABLE (no GPU, no driver, too old, built without
 * CUDA, compute capability below 7.5), PS_E_UNSUPPORTED (the GPU shares the system's memory: there is none of its own to plan
 * for, and all that is said here of two memories and a bus between them is not so). */
ps_status ps_device_open(const ps_device_options *options, ps_device **out, ps_error *err);
/* Poisons, so that nothing waits for the CPU any more, lets what is enqueued end, and frees everything that is still
 * allocated from it: ranges, host memory, graphs. NULL is allowed. */
void ps_device_close(ps_device *device);
/* The first half of it, for callers with memory of their own that the device may still read: nothing is enqueued or runs any
 * more, and nothing but freeing may follow. NULL is allowed. */
void ps_device_finish(ps_device *device);
const ps_device_info *ps_device_get_info(const ps_device *device);
/* The link as it is now: under load where something has just been copied. Any thread, about a millisecond. */
void ps_device_read_link(const ps_device *device, ps_device_link *out);
/* cudaStream_t of a stream, for ps_cuda_on; NULL for emulated devices: enqueue functions instead. */
void *ps_device_stream(const ps_device *device, ps_stream stream);
/* Whether a driver call would be made to fail now: for calls that the caller makes itself (kernel launches). */
bool ps_device_fault(const ps_device *device, const char *call);

/* ---- VRAM ---- */
/* Reserve `bytes` (a multiple of PS_VRAM_HANDLE) of addresses; nothing is mapped yet. Base never moves and is a multiple
 * of 4 KiB. */
ps_status ps_vram_reserve(ps_device *device, uint64_t bytes, ps_vram_range **out, ps_error *err);
/* Map or release at the tail so that [0, bytes) is mapped, a multiple of PS_VRAM_HANDLE. What is released must not be
 * in use; what stays keeps its content, what comes has any. A growth that fails leaves what was mapped before; a release that
 * fails leaves ps_vram_mapped. PS_E_NOMEM: no VRAM left. */
ps_status ps_vram_resize(ps_vram_range *range, uint64_t bytes, ps_error *err);
uint8_t *ps_vram_base(const ps_vram_range *range);
uint64_t ps_vram_mapped(const ps_vram_range *range);
void ps_vram_free(ps_vram_range *range); /* NULL is allowed */

/* ---- host memory that the device can read and write ---- */
/* Page-locked and mapped, zeroed, a multiple of the page size; *out_device is its address on the device. Zeroing costs:
 * for slabs of weights register fresh mappings. Errors: PS_E_NOMEM (limit or no memory). */
ps_status ps_device_host_alloc(ps_device *device, uint64_t bytes, void **out, uint8_t **out_device,
                               ps_error *err);
void ps_device_host_free(ps_device *device, void *host); /* NULL is allowed */
/* Page-lock memory of the caller (whole pages; read-only mappings where the device can) and map it.
 * PS_E_UNSUPPORTED where the driver refuses such memory. */
ps_status ps_device_host_register(ps_device *device, void *host, uint64_t bytes, uint8_t **out_device,
                                  ps_error *err);
void ps_device_host_unregister(ps_device *device, void *host); /* NULL is allowed */

/* ---- streams ---- */
/* Asynchronous copy of `rows` rows of row_bytes each; pitches are distances between rows. Addresses of VRAM ranges or of
 * page-locked memory (pageable memory works too, but may block). rows 1: pitches are ignored. */
ps_status ps_device_copy(ps_device *device, ps_stream stream, void *dst, uint64_t dst_pitch, const void *src,
                         uint64_t src_pitch, uint64_t row_bytes, uint64_t rows, ps_error *err);
/* Emulated devices only: run fn(payload) on the stream; `bytes` of payload are copied. Kernels are enqueued so. */
ps_status ps_device_enqueue(ps_device *device, ps_stream stream, void (*fn)(void *payload),
                            const void *payload, uint64_t bytes, ps_error *err);
/* Record event `event` on a stream; make a stream wait for the latest record of it (never recorded: nothing to wait for).
 * Both may be captured: a record in a capture is an order inside that graph and nothing outside of it. */
ps_status ps_device_record(ps_device *device, ps_stream stream, uint32_t event, ps_error *err);
ps_status ps_device_wait(ps_device *device, ps_stream stream, uint32_t event, ps_error *err);
/* Has the latest record of the event passed? PS_OK: *out says; otherwise the device's error. Never blocks. Not in a
 * capture. */
ps_status ps_device_passed(ps_device *device, uint32_t event, bool *out, ps_error *err);
/* As ps_device_record, with the time; in a capture it is taken anew at each launch, and cannot be waited for inside. */
ps_status ps_device_time(ps_device *device, ps_stream stream, uint32_t event, ps_error *err);
/* Seconds between two timed records that have both passed. */
ps_status ps_device_elapsed(ps_device *device, uint32_t from, uint32_t to, double *out_s, ps_error *err);
/* Everything enqueued has ended. Not in a capture. */
ps_status ps_device_sync(ps_device *device, ps_error *err);
/* The device's error, if it has one. Never blocks. Not in a capture. */
ps_status ps_device_check(ps_device *device, ps_error *err);

/* ---- hand-over ---- */
/* Flags only grow. *d_base is a uint64_t in memory that the device reads when the work runs, so that a graph can be
 * launched again with a larger base. Signal: PS_FLAG_GPU = *d_base + add, once everything before it on the stream has ended
 * and is visible to the host. Await: until PS_FLAG_CPU >= *d_base + add, or the device is poisoned; what the CPU wrote
 * before is visible to what follows on the stream. */
ps_status ps_device_signal(ps_device *device, ps_stream stream, const uint64_t *d_base, uint64_t add,
                           ps_error *err);
ps_status ps_device_await(ps_device *device, ps_stream stream, const uint64_t *d_base, uint64_t add,
                          ps_error *err);
/* Hold what follows on the stream back by the device's own clock. d_clock: a uint64_t in VRAM. after_ns 0: the time is
 * written there; otherwise work goes on once it is after_ns past that, at once where it is already, and never later than after_ns
 * from now, so that nothing has to end it. PS_E_USAGE above PS_DEVICE_MOST_HOLD_NS. */
#define PS_DEVICE_MOST_HOLD_NS ((uint64_t)2000000000)
ps_status ps_device_hold(ps_device *device, ps_stream stream, uint64_t *d_clock, uint64_t after_ns,
                         ps_error *err);
/* The host's side: addresses of PS_FLAG_GPU and PS_FLAG_CPU. Read with acquire, write with release. */
uint64_t *ps_device_flag(ps_device *device, uint32_t flag);
/* End every wait on the device, now and later: its results are void. Any thread. */
void ps_device_poison(ps_device *device);
bool ps_device_poisoned(const ps_device *device);
/* After ps_device_sync: as new, flags 0. Events and graphs stay. */
void ps_device_heal(ps_device *device);

/* ---- graphs ---- */
/* Between begin and end everything enqueued on any stream is captured instead of run. It begins on the compute stream;
 * another stream takes part from its first wait for an event recorded in the capture (before that it is PS_E_USAGE), and
 * the compute stream must wait for its last work before the end. What is captured holds addresses and numbers as they
 * were then. Nothing but enqueueing is allowed meanwhile. An error of enqueueing spoils the capture: only abort, or end,
 * which then fails, remain. */
ps_status ps_device_capture_begin(ps_device *device, ps_error *err);
ps_status ps_device_capture_end(ps_device *device, ps_device_graph **out, ps_error *err);
/* Drop a capture; nothing if none is open. Capture_end has ended it, with whatever result. */
void ps_device_capture_abort(ps_device *device);
/* On the compute stream: after what is before it there, before what follows there. Its branches run beside the other
 * streams, in no order with them. */
ps_status ps_device_graph_launch(ps_device *device, ps_device_graph *graph, ps_error *err);
void ps_device_graph_free(ps_device *device, ps_device_graph *graph); /* not while it runs; NULL is allowed */

/* ---- meter ---- */
/* Device memory of this process, context and libraries included, and of all processes. Any thread, at any time, about a
 * millisecond. PS_E_UNAVAILABLE: no figure can be had. */
ps_status ps_device_vram_used(ps_device *device, uint64_t *out_bytes, ps_meter *out_how, ps_error *err);
ps_status ps_device_vram_all(ps_device *device, uint64_t *out_used, uint64_t *out_total, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
