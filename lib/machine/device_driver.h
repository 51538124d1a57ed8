/* What stands between device.h and a driver: the state that device.c keeps for both, and the table of functions that a driver
 * is. Drivers get arguments that device.c has checked; they embed ps_device (and ps_device_graph) as their first member. */
#ifndef PS_MACHINE_DEVICE_DRIVER_H
#define PS_MACHINE_DEVICE_DRIVER_H

#include "machine/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One page of mapped host memory. The poison lies beside the CPU's flag: one 16-byte read over the bus sees both. */
typedef struct ps_device_flags {
    uint64_t gpu, pad_gpu[15];
    uint64_t cpu, poison, pad_cpu[14];
} ps_device_flags;

typedef struct ps_device_driver {
    /* Frees all of the driver's own, device included. Ranges, host memory, graphs and a capture are gone by then. */
    void (*close)(ps_device *device);
    void *(*stream)(const ps_device *device, ps_stream stream);
    ps_status (*reserve)(ps_device *device, uint64_t bytes, uint8_t **out_base, ps_error *err);
    void (*unreserve)(ps_device *device, uint8_t *base, uint64_t bytes);
    /* Whole handles. map: all or nothing. unmap: from the end, *out_left is how many bytes from `at` on are still mapped;
     * ask false: nobody can be told, so options.fault is not asked. */
    ps_status (*map)(ps_device *device, uint8_t *at, uint64_t bytes, ps_error *err);
    ps_status (*unmap)(ps_device *device, uint8_t *at, uint64_t bytes, bool ask, uint64_t *out_left,
                       ps_error *err);
    ps_status (*host_alloc)(ps_device *device, uint64_t bytes, void **out, uint8_t **out_device,
                            ps_error *err);
    void (*host_free)(ps_device *device, void *host, uint64_t bytes);
    ps_status (*host_register)(ps_device *device, void *host, uint64_t bytes, uint8_t **out_device,
                               ps_error *err);
    void (*host_unregister)(ps_device *device, void *host);
    ps_status (*copy)(ps_device *device, ps_stream stream, void *dst, uint64_t dst_pitch, const void *src,
                      uint64_t src_pitch, uint64_t row_bytes, uint64_t rows, ps_error *err);
    ps_status (*enqueue)(ps_device *device, ps_stream stream, void (*fn)(void *payload), const void *payload,
                         uint64_t bytes, ps_error *err); /* NULL: none */
    ps_status (*record)(ps_device *device, ps_stream stream, uint32_t event, bool timed, ps_error *err);
    ps_status (*wait)(ps_device *device, ps_stream stream, uint32_t event, ps_error *err);
    ps_status (*passed)(ps_device *device, uint32_t event, bool *out, ps_error *err);
    ps_status (*elapsed)(ps_device *device, uint32_t from, uint32_t to, double *out_s, ps_error *err);
    ps_status (*sync)(ps_device *device, ps_error *err);
    ps_status (*check)(ps_device *device, ps_error *err);
    ps_status (*signal)(ps_device *device, ps_stream stream, const uint64_t *d_base, uint64_t add,
                        ps_error *err);
    ps_status (*await)(ps_device *device, ps_stream stream, const uint64_t *d_base, uint64_t add,
                       ps_error *err);
    ps_status (*hold)(ps_device *device, ps_stream stream, uint64_t *d_clock, uint64_t after_ns,
                      ps_error *err);
    ps_status (*capture_begin)(ps_device *device, ps_error *err);
    ps_status (*capture_end)(ps_device *device, ps_device_graph **out,
                             ps_error *err); /* ends it on errors too */
    void (*capture_abort)(ps_device *device);
    ps_status (*graph_launch)(ps_device *device, ps_device_graph *graph, ps_error *err);
    void (*graph_free)(ps_device *device, ps_device_graph *graph);
    void (*link)(const ps_device *device, ps_device_link *out); /* NULL: there is none */
    ps_status (*vram_used)(ps_device *device, uint64_t *out_bytes, ps_meter *out_how, ps_error *err);
    ps_status (*vram_all)(ps_device *device, uint64_t *out_used, uint64_t *out_total, ps_error *err);
} ps_device_driver;

/* Where an event was recorded last: never, on a stream as it runs, in a capture. */
typedef enum ps_device_where { PS_EVENT_NONE, PS_EVENT_RUN, PS_EVENT_CAPTURED } ps_device_where;

/* What is known of an event; for a record in a capture what comes before it there. */
typedef struct ps_device_event {
    ps_device_where where;
    bool timed;
    uint32_t capture; /* number of the capture */
    uint32_t clock[PS_STREAM_COUNT];
} ps_device_event;

typedef struct ps_device_block ps_device_block; /* host memory */

struct ps_device_graph {
    ps_device_graph *next;
};

struct ps_device {
    const ps_device_driver *driver;
    ps_device_options options;
    ps_device_info info;
    ps_device_flags *flags; /* the driver's, zeroed */
    /* From here on device.c's own. */
    ps_vram_range *ranges;
    ps_device_block *blocks;
    ps_device_graph *graphs;
    ps_device_event *events; /* PS_DEVICE_EVENTS */
    struct {
        bool open, spoiled;
        uint32_t number;
        bool joined[PS_STREAM_COUNT];
        uint32_t clock[PS_STREAM_COUNT]
                      [PS_STREAM_COUNT]; /* [s][t]: how much of t's work comes before what s does next */
    } capture;
};

/* The drivers' ways in; *out has driver, info and flags filled, options copied. ps_device_cuda_open is in cuda/device_cuda.cu
 * or, in builds without CUDA, in device_nocuda.c. */
ps_status ps_device_cuda_open(const ps_device_options *options, ps_device **out, ps_error *err);
ps_status ps_device_emulated_open(const ps_device_options *options, ps_device **out, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
