/* The part of a device that both drivers share: the rules of device.h, what is allocated from a device, the flags, and
 * what may be captured when. */
#include "machine/device.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/checked.h"
#include "machine/device_driver.h"

struct ps_vram_range {
    ps_device *device;
    uint8_t *base;
    uint64_t bytes, mapped;
    ps_vram_range *next;
};

struct ps_device_block {
    void *host;
    uint64_t bytes;
    bool registered; /* the caller's memory */
    ps_device_block *next;
};

const char *ps_meter_name(ps_meter meter) {
    static const char *const names[PS_METER_COUNT] = {
#define PS_METER_NAME(name, text) text,
        PS_METER_LIST(PS_METER_NAME)
#undef PS_METER_NAME
    };
    return (unsigned)meter < PS_METER_COUNT ? names[meter] : "?";
}

const char *ps_stream_name(ps_stream stream) {
    static const char *const names[PS_STREAM_COUNT] = {
#define PS_STREAM_NAME(name, text) text,
        PS_STREAM_LIST(PS_STREAM_NAME)
#undef PS_STREAM_NAME
    };
    return (unsigned)stream < PS_STREAM_COUNT ? names[stream] : "?";
}

static ps_status misuse(const ps_device *device, ps_error *err, const char *what) {
    return ps_error_set(err, PS_E_USAGE, device->info.name, "%s", what);
}

ps_status ps_device_open(const ps_device_options *options, ps_device **out, ps_error *err) {
    ps_device_event *events = (ps_device_event *)calloc(PS_DEVICE_EVENTS, sizeof *events);
    if (!events)
        return ps_error_set(err, PS_E_NOMEM, "device", "no memory for its events");
    const ps_status st = options->emulated ? ps_device_emulated_open(options, out, err)
                                           : ps_device_cuda_open(options, out, err);
    if (st != PS_OK) {
        free(events);
        return st;
    }
    (*out)->events = events;
    const ps_device_info *info = &(*out)->info;
    if (!info->integrated)
        return PS_OK;
    ps_error_set(
        err, PS_E_UNSUPPORTED, info->name,
        "shares the system's memory: without VRAM of its own there is nothing to plan for it, the CPU "
        "does it all");
    ps_device_close(*out);
    *out = NULL;
    return PS_E_UNSUPPORTED;
}

static void drop_range(ps_vram_range *range) {
    ps_device *d = range->device;
    uint64_t left = 0;
    if (range->mapped > 0)
        (void)d->driver->unmap(d, range->base, range->mapped, false, &left, NULL);
    d->driver->unreserve(d, range->base, range->bytes);
    free(range);
}

static void drop_block(ps_device *d, ps_device_block *block) {
    if (block->registered)
        d->driver->host_unregister(d, block->host);
    else
        d->driver->host_free(d, block->host, block->bytes);
    free(block);
}

void ps_device_finish(ps_device *device) {
    if (!device)
        return;
    device->options.fault = NULL; /* nobody can be told any more, and what follows has to be done */
    ps_device_poison(device);
    ps_device_capture_abort(device);
    (void)device->driver->sync(device, NULL); /* if the device is lost, so is what was enqueued */
}

void ps_device_close(ps_device *device) {
    if (!device)
        return;
    ps_device_finish(device);
    while (device->graphs)
        ps_device_graph_free(device, device->graphs);
    while (device->ranges)
        ps_vram_free(device->ranges);
    while (device->blocks) {
        ps_device_block *block = device->blocks;
        device->blocks = block->next;
        drop_block(device, block);
    }
    free(device->events);
    device->driver->close(device);
}

const ps_device_info *ps_device_get_info(const ps_device *device) {
    return &device->info;
}

void ps_device_read_link(const ps_device *device, ps_device_link *out) {
    *out = (ps_device_link){0};
    if (device->driver->link)
        device->driver->link(device, out);
}

void *ps_device_stream(const ps_device *device, ps_stream stream) {
    return (unsigned)stream < PS_STREAM_COUNT ? device->driver->stream(device, stream) : NULL;
}

bool ps_device_fault(const ps_device *device, const char *call) {
    return device->options.fault && device->options.fault(device->options.fault_ctx, call);
}

/* ---- VRAM ---- */
ps_status ps_vram_reserve(ps_device *device, uint64_t bytes, ps_vram_range **out, ps_error *err) {
    if (bytes == 0 || bytes % PS_VRAM_HANDLE != 0)
        return misuse(device, err, "a range of VRAM must be a multiple of 16 MiB");
    ps_vram_range *range = (ps_vram_range *)calloc(1, sizeof *range);
    if (!range)
        return ps_error_set(err, PS_E_NOMEM, device->info.name, "no memory for a range");
    const ps_status st = device->driver->reserve(device, bytes, &range->base, err);
    if (st != PS_OK) {
        free(range);
        return st;
    }
    range->device = device;
    range->bytes = bytes;
    range->next = device->ranges;
    device->ranges = range;
    *out = range;
    return PS_OK;
}

ps_status ps_vram_resize(ps_vram_range *range, uint64_t bytes, ps_error *err) {
    ps_device *d = range->device;
    if (bytes > range->bytes || bytes % PS_VRAM_HANDLE != 0)
        return misuse(d, err, "the mapped part of a range must be a multiple of 16 MiB inside it");
    if (d->capture.open)
        return misuse(d, err, "a range cannot change in a capture");
    if (bytes > range->mapped) {
        const ps_status st = d->driver->map(d, range->base + range->mapped, bytes - range->mapped, err);
        if (st == PS_OK)
            range->mapped = bytes;
        return st;
    }
    if (bytes == range->mapped)
        return PS_OK;
    uint64_t left = range->mapped - bytes;
    const ps_status st = d->driver->unmap(d, range->base + bytes, range->mapped - bytes, true, &left, err);
    range->mapped = bytes + left;
    return st;
}

uint8_t *ps_vram_base(const ps_vram_range *range) {
    return range->base;
}

uint64_t ps_vram_mapped(const ps_vram_range *range) {
    return range->mapped;
}

void ps_vram_free(ps_vram_range *range) {
    if (!range)
        return;
    ps_vram_range **at = &range->device->ranges;
    while (*at != range)
        at = &(*at)->next;
    *at = range->next;
    drop_range(range);
}

/* ---- host memory ---- */
static ps_status new_block(ps_device *d, void *host, uint64_t bytes, bool registered, uint8_t **out_device,
                           void **out_host, ps_error *err) {
    if (d->capture.open)
        return misuse(d, err, "host memory cannot be page-locked in a capture");
    ps_device_block *block = (ps_device_block *)calloc(1, sizeof *block);
    if (!block)
        return ps_error_set(err, PS_E_NOMEM, d->info.name, "no memory for a block");
    const ps_status st = registered ? d->driver->host_register(d, host, bytes, out_device, err)
                                    : d->driver->host_alloc(d, bytes, &host, out_device, err);
    if (st != PS_OK) {
        free(block);
        return st;
    }
    block->host = host;
    block->bytes = bytes;
    block->registered = registered;
    block->next = d->blocks;
    d->blocks = block;
    *out_host = host;
    return PS_OK;
}

static void free_block(ps_device *d, const void *host, bool registered) {
    for (ps_device_block **at = &d->blocks; *at; at = &(*at)->next) {
        ps_device_block *block = *at;
        if (block->host != host || block->registered != registered)
            continue;
        *at = block->next;
        drop_block(d, block);
        return;
    }
}

ps_status ps_device_host_alloc(ps_device *device, uint64_t bytes, void **out, uint8_t **out_device,
                               ps_error *err) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t whole;
    if (bytes == 0)
        return misuse(device, err, "a block of host memory cannot be empty");
    if (!ps_align_u64(bytes, page, &whole))
        return ps_error_set(err, PS_E_NOMEM, device->info.name, "a block of host memory is too large");
    return new_block(device, NULL, whole, false, out_device, out, err);
}

void ps_device_host_free(ps_device *device, void *host) {
    if (host)
        free_block(device, host, false);
}

ps_status ps_device_host_register(ps_device *device, void *host, uint64_t bytes, uint8_t **out_device,
                                  ps_error *err) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes == 0 || bytes % page != 0 || (uintptr_t)host % page != 0)
        return misuse(device, err, "only whole pages can be page-locked");
    for (const ps_device_block *b = device->blocks; b; b = b->next)
        if ((uintptr_t)host < (uintptr_t)b->host + b->bytes && (uintptr_t)b->host < (uintptr_t)host + bytes)
            return misuse(device, err, "these pages are page-locked already");
    void *same;
    return new_block(device, host, bytes, true, out_device, &same, err);
}

void ps_device_host_unregister(ps_device *device, void *host) {
    if (host)
        free_block(device, host, true);
}

/* ---- streams ---- */
/* Before work is enqueued on a stream: is it allowed there now? */
static ps_status may_enqueue(ps_device *d, ps_stream stream, ps_error *err) {
    if ((unsigned)stream >= PS_STREAM_COUNT)
        return misuse(d, err, "no such stream");
    if (!d->capture.open)
        return PS_OK;
    if (d->capture.spoiled)
        return misuse(d, err, "the capture was spoiled by an error");
    if (!d->capture.joined[stream]) {
        d->capture.spoiled = true;
        return ps_error_set(err, PS_E_USAGE, d->info.name, "stream %s has not joined the capture",
                            ps_stream_name(stream));
    }
    return PS_OK;
}

/* After it was: what came of it. */
static ps_status enqueued(ps_device *d, ps_stream stream, ps_status st) {
    if (!d->capture.open)
        return st;
    if (st == PS_OK)
        d->capture.clock[stream][stream]++;
    else
        d->capture.spoiled = true;
    return st;
}

static ps_status in_capture(const ps_device *d, ps_error *err) {
    return misuse(d, err, "only enqueueing is allowed in a capture");
}

ps_status ps_device_copy(ps_device *device, ps_stream stream, void *dst, uint64_t dst_pitch, const void *src,
                         uint64_t src_pitch, uint64_t row_bytes, uint64_t rows, ps_error *err) {
    ps_status st = may_enqueue(device, stream, err);
    if (st != PS_OK)
        return st;
    if (rows > 1 && (dst_pitch < row_bytes || src_pitch < row_bytes))
        return misuse(device, err, "rows of a copy overlap");
    if (rows == 0 || row_bytes == 0)
        return PS_OK;
    /* Rows without gaps are one row. */
    uint64_t whole;
    if (rows > 1 && dst_pitch == row_bytes && src_pitch == row_bytes && ps_mul_u64(rows, row_bytes, &whole))
        row_bytes = whole, rows = 1;
    st = device->driver->copy(device, stream, dst, dst_pitch, src, src_pitch, row_bytes, rows, err);
    return enqueued(device, stream, st);
}

ps_status ps_device_enqueue(ps_device *device, ps_stream stream, void (*fn)(void *payload),
                            const void *payload, uint64_t bytes, ps_error *err) {
    if (!device->driver->enqueue)
        return misuse(device, err, "only emulated devices run functions");
    ps_status st = may_enqueue(device, stream, err);
    if (st == PS_OK)
        st = enqueued(device, stream, device->driver->enqueue(device, stream, fn, payload, bytes, err));
    return st;
}

static ps_status record(ps_device *d, ps_stream stream, uint32_t event, bool timed, ps_error *err) {
    if (event >= PS_DEVICE_EVENTS)
        return misuse(d, err, "no such event");
    ps_status st = may_enqueue(d, stream, err);
    if (st == PS_OK)
        st = enqueued(d, stream, d->driver->record(d, stream, event, timed, err));
    if (st != PS_OK)
        return st;
    ps_device_event *e = &d->events[event];
    e->where = d->capture.open ? PS_EVENT_CAPTURED : PS_EVENT_RUN;
    e->timed = timed;
    if (d->capture.open) {
        e->capture = d->capture.number;
        for (int s = 0; s < PS_STREAM_COUNT; s++)
            e->clock[s] = d->capture.clock[stream][s];
    }
    return PS_OK;
}

ps_status ps_device_record(ps_device *device, ps_stream stream, uint32_t event, ps_error *err) {
    return record(device, stream, event, false, err);
}

ps_status ps_device_time(ps_device *device, ps_stream stream, uint32_t event, ps_error *err) {
    return record(device, stream, event, true, err);
}

ps_status ps_device_wait(ps_device *device, ps_stream stream, uint32_t event, ps_error *err) {
    if (event >= PS_DEVICE_EVENTS || (unsigned)stream >= PS_STREAM_COUNT)
        return misuse(device, err, "no such event or stream");
    const ps_device_event *e = &device->events[event];
    if (!device->capture.open) {
        if (e->where == PS_EVENT_NONE)
            return PS_OK;
        if (e->where == PS_EVENT_CAPTURED && !e->timed)
            return misuse(device, err, "an event recorded in a capture cannot be waited for outside of it");
        return device->driver->wait(device, stream, event, err);
    }
    if (device->capture.spoiled)
        return may_enqueue(device, stream, err);
    if (e->where != PS_EVENT_CAPTURED || e->capture != device->capture.number || e->timed) {
        device->capture.spoiled = true;
        return misuse(device, err, "in a capture only events recorded in it can be waited for, without time");
    }
    const ps_status st = enqueued(device, stream, device->driver->wait(device, stream, event, err));
    if (st == PS_OK) {
        device->capture.joined[stream] = true;
        for (int s = 0; s < PS_STREAM_COUNT; s++)
            if (device->capture.clock[stream][s] < e->clock[s])
                device->capture.clock[stream][s] = e->clock[s];
    }
    return st;
}

ps_status ps_device_passed(ps_device *device, uint32_t event, bool *out, ps_error *err) {
    if (event >= PS_DEVICE_EVENTS)
        return misuse(device, err, "no such event");
    if (device->capture.open)
        return in_capture(device, err);
    const ps_device_event *e = &device->events[event];
    if (e->where == PS_EVENT_CAPTURED && !e->timed)
        return misuse(device, err, "an event recorded in a capture without time never passes outside of it");
    if (e->where == PS_EVENT_NONE) {
        *out = true;
        return PS_OK;
    }
    return device->driver->passed(device, event, out, err);
}

ps_status ps_device_elapsed(ps_device *device, uint32_t from, uint32_t to, double *out_s, ps_error *err) {
    if (from >= PS_DEVICE_EVENTS || to >= PS_DEVICE_EVENTS)
        return misuse(device, err, "no such event");
    if (device->capture.open)
        return in_capture(device, err);
    if (!device->events[from].timed || !device->events[to].timed)
        return misuse(device, err, "an event was recorded without time");
    return device->driver->elapsed(device, from, to, out_s, err);
}

ps_status ps_device_sync(ps_device *device, ps_error *err) {
    return device->capture.open ? in_capture(device, err) : device->driver->sync(device, err);
}

ps_status ps_device_check(ps_device *device, ps_error *err) {
    return device->capture.open ? in_capture(device, err) : device->driver->check(device, err);
}

/* ---- hand-over ---- */
ps_status ps_device_signal(ps_device *device, ps_stream stream, const uint64_t *d_base, uint64_t add,
                           ps_error *err) {
    ps_status st = may_enqueue(device, stream, err);
    if (st == PS_OK)
        st = enqueued(device, stream, device->driver->signal(device, stream, d_base, add, err));
    return st;
}

ps_status ps_device_await(ps_device *device, ps_stream stream, const uint64_t *d_base, uint64_t add,
                          ps_error *err) {
    ps_status st = may_enqueue(device, stream, err);
    if (st == PS_OK)
        st = enqueued(device, stream, device->driver->await(device, stream, d_base, add, err));
    return st;
}

ps_status ps_device_hold(ps_device *device, ps_stream stream, uint64_t *d_clock, uint64_t after_ns,
                         ps_error *err) {
    if (after_ns > PS_DEVICE_MOST_HOLD_NS)
        return misuse(device, err, "work cannot be held back for so long");
    ps_status st = may_enqueue(device, stream, err);
    if (st == PS_OK)
        st = enqueued(device, stream, device->driver->hold(device, stream, d_clock, after_ns, err));
    return st;
}

uint64_t *ps_device_flag(ps_device *device, uint32_t flag) {
    return flag == PS_FLAG_GPU ? &device->flags->gpu : flag == PS_FLAG_CPU ? &device->flags->cpu : NULL;
}

void ps_device_poison(ps_device *device) {
    __atomic_store_n(&device->flags->poison, 1, __ATOMIC_RELEASE);
}

bool ps_device_poisoned(const ps_device *device) {
    return __atomic_load_n(&device->flags->poison, __ATOMIC_ACQUIRE) != 0;
}

void ps_device_heal(ps_device *device) {
    __atomic_store_n(&device->flags->gpu, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&device->flags->cpu, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&device->flags->poison, 0, __ATOMIC_RELEASE);
}

/* ---- graphs ---- */
ps_status ps_device_capture_begin(ps_device *device, ps_error *err) {
    if (device->capture.open)
        return in_capture(device, err);
    const ps_status st = device->driver->capture_begin(device, err);
    if (st != PS_OK)
        return st;
    const uint32_t number = device->capture.number + 1;
    memset(&device->capture, 0, sizeof device->capture);
    device->capture.open = true;
    device->capture.number = number;
    device->capture.joined[PS_STREAM_COMPUTE] = true;
    return PS_OK;
}

ps_status ps_device_capture_end(ps_device *device, ps_device_graph **out, ps_error *err) {
    if (!device->capture.open)
        return misuse(device, err, "no capture is open");
    const uint32_t(*clock)[PS_STREAM_COUNT] = device->capture.clock;
    for (int s = 0; s < PS_STREAM_COUNT && !device->capture.spoiled; s++)
        if (clock[PS_STREAM_COMPUTE][s] < clock[s][s]) {
            ps_device_capture_abort(device);
            return ps_error_set(err, PS_E_USAGE, device->info.name,
                                "the compute stream does not wait for the last work of stream %s",
                                ps_stream_name((ps_stream)s));
        }
    if (device->capture.spoiled) {
        ps_device_capture_abort(device);
        return misuse(device, err, "the capture was spoiled by an error");
    }
    device->capture.open = false;
    const ps_status st = device->driver->capture_end(device, out, err);
    if (st == PS_OK) {
        (*out)->next = device->graphs;
        device->graphs = *out;
    }
    return st;
}

void ps_device_capture_abort(ps_device *device) {
    if (!device->capture.open)
        return;
    device->capture.open = false;
    device->driver->capture_abort(device);
}

ps_status ps_device_graph_launch(ps_device *device, ps_device_graph *graph, ps_error *err) {
    return device->capture.open ? in_capture(device, err) : device->driver->graph_launch(device, graph, err);
}

void ps_device_graph_free(ps_device *device, ps_device_graph *graph) {
    if (!graph)
        return;
    ps_device_graph **at = &device->graphs;
    while (*at != graph)
        at = &(*at)->next;
    *at = graph->next;
    device->driver->graph_free(device, graph);
}

/* ---- meter ---- */
ps_status ps_device_vram_used(ps_device *device, uint64_t *out_bytes, ps_meter *out_how, ps_error *err) {
    return device->driver->vram_used(device, out_bytes, out_how, err);
}

ps_status ps_device_vram_all(ps_device *device, uint64_t *out_used, uint64_t *out_total, ps_error *err) {
    return device->driver->vram_all(device, out_used, out_total, err);
}
