/* The GPU rig's small costs: launches, graphs, events, hand-over, page-locking, mapping; and the rate of VRAM. */
#include "core/clock.h"
#include "profile/gpu_rig_internal.h"

/* A kernel that hardly does anything: a sum of one short row. */
static ps_status launch_small(ps_gpu_rig *r, ps_error *err) {
    const ps_kernel *k = ps_kernel_choose(PS_OP_ADD, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, PS_DEV_CUDA, 1);
    if (k == NULL)
        return ps_error_set(err, PS_E_INTERNAL, "gpu", "there is no sum");
    uint8_t *x = r->d_room + MIB;
    ps_xarg row = {.data = x, .fmt = PS_FMT_F32, .cols = SMALL_COLS, .row_bytes = SMALL_COLS * 4};
    ps_kargs a = {.n_tokens = 1, .src = {row, row}, .dst = row, .n_threads = 1};
    a.dst.data = x + SMALL_COLS * 4;
    return ps_gpu_launch(r, k, &a, 0, err);
}

ps_status ps_gpu_capture_small(ps_gpu_rig *r, uint32_t n, ps_error *err) {
    ps_status status = ps_device_capture_begin(r->device, err);
    for (uint32_t i = 0; i < n && status == PS_OK; i++)
        status = launch_small(r, err);
    if (status != PS_OK) {
        ps_device_capture_abort(r->device);
        return status;
    }
    status = ps_device_capture_end(r->device, &r->graph, err);
    if (status == PS_OK)
        status = ps_device_graph_launch(r->device, r->graph, err);
    return status == PS_OK ? ps_device_sync(r->device, err) : status;
}

ps_status ps_gpu_sample_launch(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    uint64_t t0 = ps_clock_ns();
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < N_LAUNCHES && status == PS_OK; i++)
        status = launch_small(r, err);
    out->value = (double)(ps_clock_ns() - t0) * 1e-9 / N_LAUNCHES;
    return status == PS_OK ? ps_device_sync(r->device, err) : status;
}

ps_status ps_gpu_sample_graph_node(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    double s = 0;
    ps_status status = ps_gpu_start_time(r, err);
    if (status == PS_OK)
        status = ps_device_graph_launch(r->device, r->graph, err);
    status = ps_gpu_timed(r, &s, status, err);
    out->value = s / N_NODES;
    return status;
}

ps_status ps_gpu_sample_graph_launch(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    uint64_t t0 = ps_clock_ns();
    ps_status status = ps_device_graph_launch(r->device, r->graph, err);
    out->value = (double)(ps_clock_ns() - t0) * 1e-9;
    return status == PS_OK ? ps_device_sync(r->device, err) : status;
}

ps_status ps_gpu_sample_event_wait(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    double s = 0;
    ps_status status = ps_gpu_start_time(r, err);
    for (int i = 0; i < N_HANDOVERS && status == PS_OK; i++) {
        status = ps_device_record(r->device, PS_STREAM_COMPUTE, EV_A, err);
        if (status == PS_OK)
            status = ps_device_wait(r->device, PS_STREAM_H2D, EV_A, err);
        if (status == PS_OK)
            status = ps_device_record(r->device, PS_STREAM_H2D, EV_B, err);
        if (status == PS_OK)
            status = ps_device_wait(r->device, PS_STREAM_COMPUTE, EV_B, err);
    }
    status = ps_gpu_timed(r, &s, status, err);
    out->value = s / (2 * N_HANDOVERS);
    return status;
}

ps_status ps_gpu_sample_event_record(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    uint64_t t0 = ps_clock_ns();
    ps_status status = PS_OK;
    for (int i = 0; i < N_LAUNCHES && status == PS_OK; i++)
        status = ps_device_record(r->device, PS_STREAM_COMPUTE, EV_A, err);
    out->value = (double)(ps_clock_ns() - t0) * 1e-9 / N_LAUNCHES;
    return status == PS_OK ? ps_device_sync(r->device, err) : status;
}

/* There and back many times, everything enqueued ahead: half of a round is one way. */
ps_status ps_gpu_sample_handover(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    uint64_t *gpu = ps_device_flag(r->device, PS_FLAG_GPU), *cpu = ps_device_flag(r->device, PS_FLAG_CPU);
    ps_status status = PS_OK;
    for (uint64_t i = 1; i <= N_HANDOVERS && status == PS_OK; i++) {
        status = ps_device_signal(r->device, PS_STREAM_COMPUTE, r->d_base, r->epoch + i, err);
        if (status == PS_OK)
            status = ps_device_await(r->device, PS_STREAM_COMPUTE, r->d_base, r->epoch + i, err);
    }
    uint64_t t0 = 0;
    for (uint64_t i = 1; i <= N_HANDOVERS && status == PS_OK; i++) {
        const uint64_t start = ps_clock_ns();
        while (__atomic_load_n(gpu, __ATOMIC_ACQUIRE) < r->epoch + i && status == PS_OK)
            if (ps_clock_ns() - start > 2000000000u)
                status = ps_error_set(err, PS_E_OS, "hand-over", "the device did not answer within 2 s");
        t0 = i == 1 ? ps_clock_ns() : t0;
        __atomic_store_n(cpu, r->epoch + i, __ATOMIC_RELEASE);
    }
    out->value = (double)(ps_clock_ns() - t0) * 1e-9 / (2 * (N_HANDOVERS - 1));
    r->epoch += N_HANDOVERS;
    if (status != PS_OK)
        ps_device_poison(r->device);
    return status == PS_OK ? ps_device_sync(r->device, err) : status;
}

ps_status ps_gpu_sample_lock(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    uint8_t *device;
    uint64_t t0 = ps_clock_ns();
    ps_status status = ps_device_host_register(r->device, r->plain, PS_GPU_BUS_BYTES, &device, err);
    out->value = (double)PS_GPU_BUS_BYTES / ((double)(ps_clock_ns() - t0) * 1e-9);
    if (status == PS_OK)
        ps_device_host_unregister(r->device, r->plain);
    return status;
}

ps_status ps_gpu_sample_map(ps_gpu_rig *r, bool unmap, ps_rig_sample *out, ps_error *err) {
    enum { HANDLES = 8 };
    uint64_t t0 = ps_clock_ns();
    ps_status status = ps_vram_resize(r->spare, (uint64_t)HANDLES * PS_VRAM_HANDLE, err);
    uint64_t t1 = ps_clock_ns();
    if (status == PS_OK)
        status = ps_vram_resize(r->spare, 0, err);
    out->value = (double)(unmap ? ps_clock_ns() - t1 : t1 - t0) * 1e-9 / HANDLES;
    return status;
}

ps_status ps_gpu_sample_level(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    const uint64_t bytes = ps_gpu_enough(r, 4) * PS_VRAM_HANDLE; /* of the page-locked memory that there is */
    const uint64_t t0 = ps_clock_ns();
    ps_status status = ps_vram_resize(r->spare, bytes, err);
    if (status == PS_OK)
        status =
            ps_device_copy(r->device, PS_STREAM_H2D, ps_vram_base(r->spare), 0, r->pinned, 0, bytes, 1, err);
    if (status == PS_OK)
        status = ps_device_sync(r->device, err);
    const ps_status released = ps_vram_resize(r->spare, 0, status == PS_OK ? err : NULL);
    out->value = (double)bytes / ((double)(ps_clock_ns() - t0) * 1e-9);
    return status == PS_OK ? released : status;
}

/* Bytes of VRAM read and written per second: 2 * half of it from x on. */
static ps_status sample_vram(ps_gpu_rig *r, uint8_t *x, uint64_t half, ps_rig_sample *out, ps_error *err) {
    double s = 0;
    ps_status status = ps_gpu_start_time(r, err);
    for (int i = 0; i < 4 && status == PS_OK; i++)
        status = ps_device_copy(r->device, PS_STREAM_COMPUTE, x + half, 0, x, 0, half, 1, err);
    status = ps_gpu_timed(r, &s, status, err);
    out->value = 8.0 * (double)half / s; /* read and written */
    return status;
}

ps_status ps_gpu_sample_hbm(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    return sample_vram(r, r->d_room, ps_gpu_enough(r, PS_GPU_WINDOW_BYTES), out, err);
}

ps_status ps_gpu_prepare_full(ps_gpu_rig *r, ps_error *err) {
    uint64_t used, total;
    ps_status status = ps_device_vram_all(r->device, &used, &total, err);
    if (status != PS_OK)
        return status;
    uint64_t left = total > used ? total - used : 0;
    left = left > total / 16 ? (left - total / 16) / PS_VRAM_HANDLE * PS_VRAM_HANDLE : 0;
    left = left < 2 * PS_VRAM_HANDLE ? 2 * PS_VRAM_HANDLE : left;
    status = ps_vram_reserve(r->device, left, &r->full, err);
    while (status == PS_OK) {
        status = ps_vram_resize(r->full, left, err);
        if (status != PS_E_NOMEM || left == 2 * PS_VRAM_HANDLE)
            break;
        left = left / 8 * 7 / PS_VRAM_HANDLE * PS_VRAM_HANDLE; /* somebody was quicker */
        left = left < 2 * PS_VRAM_HANDLE ? 2 * PS_VRAM_HANDLE : left;
        status = PS_OK;
    }
    return status;
}

ps_status ps_gpu_sample_full(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    const uint64_t mapped = ps_vram_mapped(r->full);
    uint64_t half = ps_gpu_enough(r, PS_GPU_WINDOW_BYTES);
    half = half < mapped / 2 ? half : mapped / 2;
    return sample_vram(r, ps_vram_base(r->full) + mapped - 2 * half, half, out, err);
}
