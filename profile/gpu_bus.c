/* The GPU rig's bus: copies by size and kind of host memory, direct reads, and both beside CPUs that read memory. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "profile/gpu_rig_internal.h"

/* Enqueue `total` bytes over the bus in pieces on stream h2d or d2h, joined to the compute stream's events. period_ns: a piece
 * begins that long after the one before began, or when it has ended; the last one takes as long. 0: without a pause. */
static ps_status enqueue_copies(ps_gpu_rig *r, ps_bus bus, const uint8_t *host, uint64_t bytes,
                                uint64_t total, uint64_t period_ns, ps_error *err) {
    ps_stream stream = bus == PS_BUS_D2H ? PS_STREAM_D2H : PS_STREAM_H2D;
    uint8_t *vram = r->d_room;
    ps_status status = ps_device_record(r->device, PS_STREAM_COMPUTE, EV_A, err);
    if (status == PS_OK)
        status = ps_device_wait(r->device, stream, EV_A, err);
    if (status == PS_OK && period_ns != 0)
        status = ps_device_hold(r->device, stream, r->d_clock, 0, err);
    for (uint64_t done = 0; done < total && status == PS_OK; done += bytes) {
        uint64_t at = done % (PS_GPU_BUS_BYTES / bytes * bytes);
        status = bus == PS_BUS_D2H
                     ? ps_device_copy(r->device, stream, (uint8_t *)(uintptr_t)host + at, 0, vram + at, 0,
                                      bytes, 1, err)
                     : ps_device_copy(r->device, stream, vram + at, 0, host + at, 0, bytes, 1, err);
        if (status == PS_OK && period_ns != 0)
            status = ps_device_hold(r->device, stream, r->d_clock, (done / bytes + 1) * period_ns, err);
    }
    if (status == PS_OK)
        status = ps_device_record(r->device, stream, EV_B, err);
    return status == PS_OK ? ps_device_wait(r->device, PS_STREAM_COMPUTE, EV_B, err) : status;
}

/* Pageable memory through a ring of two page-locked pieces, as the runtime stages it. */
static ps_status enqueue_staged(ps_gpu_rig *r, uint64_t bytes, uint64_t total, ps_error *err) {
    ps_status status = PS_OK;
    for (uint64_t done = 0, i = 0; done < total && status == PS_OK; done += bytes, i++) {
        uint32_t event = EV_A + (uint32_t)(i % 2);
        uint8_t *ring = r->pinned + i % 2 * (PS_GPU_BUS_BYTES / 2);
        bool passed = i < 2;
        while (status == PS_OK && !passed)
            status = ps_device_passed(r->device, event, &passed, err);
        memcpy(ring, r->plain + done % (PS_GPU_BUS_BYTES / bytes * bytes), bytes);
        if (status == PS_OK)
            status = ps_device_copy(r->device, PS_STREAM_COMPUTE, r->d_room, 0, ring, 0, bytes, 1, err);
        if (status == PS_OK)
            status = ps_device_record(r->device, PS_STREAM_COMPUTE, event, err);
    }
    return status;
}

/* Pieces of a sample, and all that it moves. */
static uint32_t n_pieces(const ps_gpu_rig *r) {
    const uint64_t n = PS_GPU_BUS_BYTES / r->task->bytes;
    return r->task->bus == PS_BUS_DIRECT ? r->n_calls : (uint32_t)ps_gpu_enough(r, n < 256 ? n : 256);
}

uint64_t ps_gpu_copy_bytes(const ps_gpu_rig *r) {
    return n_pieces(r) * r->task->bytes;
}

ps_status ps_gpu_run_copies(ps_gpu_rig *r, ps_error *err) {
    const ps_task *t = r->task;
    if (t->bus == PS_BUS_DIRECT)
        return ps_gpu_enqueue_calls(r, r->n_calls, err);
    if (t->kind == PS_HOST_KIND_STAGED)
        return enqueue_staged(r, t->bytes, ps_gpu_copy_bytes(r), err);
    return enqueue_copies(r, t->bus, t->kind == PS_HOST_KIND_PINNED ? r->pinned : r->plain, t->bytes,
                          ps_gpu_copy_bytes(r), 0, err);
}

ps_status ps_gpu_sample_copy(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    double s = 0;
    ps_status status = ps_gpu_timer_sample(r, ps_gpu_run_copies, n_pieces(r), &s, err);
    out->value = (double)ps_gpu_copy_bytes(r) / s;
    return status;
}

/* Wait without taking a CPU from those who read memory. */
static ps_status sleep_until(ps_gpu_rig *r, uint32_t event, ps_error *err) {
    bool passed = false;
    ps_status status = PS_OK;
    while (status == PS_OK && !passed) {
        status = ps_device_passed(r->device, event, &passed, err);
        const struct timespec pause = {0, 30000};
        if (status == PS_OK && !passed)
            nanosleep(&pause, NULL);
    }
    return status;
}

/* Of a paced sample: it takes as long as one flat out, and no pause is longer than a device is held back. */
static uint64_t paced_pieces(const ps_gpu_rig *r) {
    const uint64_t all = PS_GPU_WINDOW_BYTES / PS_GPU_PACED_BYTES,
                   n = ps_gpu_enough(r, (uint64_t)((double)all * r->task->share_frac)),
                   most = PS_DEVICE_MOST_HOLD_NS / r->period_ns;
    return n < most ? n : most;
}

ps_status ps_gpu_prepare_paced(ps_gpu_rig *r, ps_error *err) {
    const uint64_t n = ps_gpu_enough(r, PS_GPU_BUS_BYTES / PS_GPU_PACED_BYTES);
    double s = 0;
    ps_status status = ps_gpu_start_time(r, err);
    if (status == PS_OK)
        status =
            enqueue_copies(r, r->task->bus, r->pinned, PS_GPU_PACED_BYTES, n * PS_GPU_PACED_BYTES, 0, err);
    status = ps_gpu_timed(r, &s, status, err);
    const double period_ns = s / (double)n / r->task->share_frac * 1e9;
    r->period_ns = period_ns < 1                                ? 1
                   : period_ns < (double)PS_DEVICE_MOST_HOLD_NS ? (uint64_t)period_ns
                                                                : PS_DEVICE_MOST_HOLD_NS;
    return status;
}

ps_status ps_gpu_sample_together(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    const bool direct = r->task->bus == PS_BUS_DIRECT;
    const bool paced = r->task->measure == PS_MEASURE_PACED;
    const uint64_t piece = paced ? PS_GPU_PACED_BYTES : PS_GPU_PIECE_BYTES;
    double s = 0;
    uint64_t total = direct  ? r->n_calls * piece
                     : paced ? paced_pieces(r) * piece
                             : ps_gpu_enough(r, PS_GPU_WINDOW_BYTES / piece) * piece;
    ps_status status = ps_gpu_start_time(r, err);
    if (status == PS_OK)
        status =
            direct ? ps_gpu_enqueue_calls(r, r->n_calls, err)
                   : enqueue_copies(r, r->task->bus, r->pinned, piece, total, paced ? r->period_ns : 0, err);
    if (status == PS_OK)
        status = ps_device_time(r->device, PS_STREAM_COMPUTE, EV_TO, err);
    if (status == PS_OK)
        status = sleep_until(r, EV_FROM, err);
    uint64_t read = ps_streams_bytes(r->streams), t0 = ps_clock_ns();
    if (status == PS_OK)
        status = sleep_until(r, EV_TO, err);
    /* On a machine with other work the readers may not have run at all yet: their rate is then that of a longer while. */
    const struct timespec pause = {0, 1000000};
    for (int i = 0; i < 2000 && status == PS_OK && ps_streams_bytes(r->streams) == read; i++)
        nanosleep(&pause, NULL);
    read = ps_streams_bytes(r->streams) - read;
    double host_s = (double)(ps_clock_ns() - t0) * 1e-9;
    if (status == PS_OK)
        status = ps_device_elapsed(r->device, EV_FROM, EV_TO, &s, err);
    out->value = s > 0 ? (double)total / s : 0;
    out->beside_bytes_per_s = host_s > 0 ? (double)read / host_s : 0;
    return status;
}

/* Direct reads are those of the kernel that a run would use: a product of one token with F16 weights. */
ps_status ps_gpu_prepare_direct(ps_gpu_rig *r, uint64_t bytes, ps_error *err) {
    const ps_kernel *k = ps_kernel_choose(PS_OP_MATMUL, PS_DTYPE_F16, PS_FMT_F32, PS_FMT_F32, PS_DEV_CUDA, 1);
    if (k == NULL)
        return ps_error_set(err, PS_E_INTERNAL, "gpu", "there is no product of F16 weights");
    const uint64_t cols = bytes >= 8192 * 8 ? 4096 : 256;
    ps_profile_point p = {
        .kernel = k->spec.id, .rows = bytes / (cols * 2), .cols = cols, .n_tokens = 1, .n_threads = 1};
    p.rows = p.rows == 0 ? 1 : p.rows;
    r->kernel = k;
    ps_status status = ps_operands_set(r->operands, k, &p, err);
    if (status == PS_OK)
        status = ps_gpu_mirror(r, k, true, err);
    uint64_t n = PS_GPU_BUS_BYTES / bytes;
    n = n < 4 ? 4 : n > MAX_CALLS ? MAX_CALLS : n;
    r->n_calls = (uint32_t)ps_gpu_enough(r, n);
    return status;
}
