/* Kernels beside the bus: copies, or a GPU kernel's direct reads, that go on all the while a kernel of the GPU or of the CPUs is
 * measured, and whose own rate is taken in the same moments. The bus gets its work ahead of time, so that no CPU is needed to
 * feed it; each piece ends with the time by the device. */
#include <math.h>

#include "core/clock.h"
#include "profile/gpu_rig_internal.h"

enum {
    EV_REF = 60,
    EV_BEGUN = 61,
    EV_PIECE = 64,
    MOST_PIECES = 480,
    SPARE_PIECES = 8,
    N_TRIES = 5,
    LEAST_PIECES = 16,
    N_HANDLES = 4
};
#define PIECE_BYTES ((uint64_t)4 << 20) /* as copies of a run are cut, or longer ones */

static bool is_cpu(const ps_task *t) {
    const ps_kernel *k = ps_kernel_find(t->point.kernel);
    return k == NULL || k->spec.device == PS_DEV_CPU;
}

bool ps_gpu_is_beside(const ps_task *t) {
    const ps_beside b = t->point.beside;
    return t->measure == PS_MEASURE_KERNEL &&
           (b == PS_BESIDE_H2D || b == PS_BESIDE_D2H || (b == PS_BESIDE_DIRECT && is_cpu(t)));
}

static ps_stream stream_of(const ps_gpu_rig *r) {
    return r->task->point.beside == PS_BESIDE_H2D   ? PS_STREAM_H2D
           : r->task->point.beside == PS_BESIDE_D2H ? PS_STREAM_D2H
                                                    : PS_STREAM_COMPUTE;
}

/* n pieces of work for the bus, one behind the other, the time after each. */
static ps_status enqueue_pieces(ps_gpu_rig *r, uint32_t n, ps_error *err) {
    const ps_stream stream = stream_of(r);
    uint8_t *vram = ps_vram_base(r->spare);
    ps_status status = ps_device_time(r->device, stream, EV_REF, err);
    for (uint32_t i = 0; i < n && status == PS_OK; i++) {
        const uint64_t at = i * PIECE_BYTES % PS_GPU_BUS_BYTES;
        if (stream == PS_STREAM_COMPUTE)
            status = ps_gpu_enqueue_call(r, i % r->n_calls, err);
        else if (stream == PS_STREAM_H2D)
            status = ps_device_copy(r->device, stream, vram + at, 0, r->pinned + at, 0, PIECE_BYTES, 1, err);
        else
            status = ps_device_copy(r->device, stream, r->pinned + at, 0, vram + at, 0, PIECE_BYTES, 1, err);
        if (status == PS_OK)
            status = ps_device_time(r->device, stream, EV_PIECE + i, err);
        if (status == PS_OK && i == 0)
            status = ps_device_record(r->device, stream, EV_BEGUN, err);
    }
    return status;
}

/* When piece i had passed, in seconds from the beginning. */
static ps_status piece_end(ps_gpu_rig *r, uint32_t i, double *out_s, ps_error *err) {
    return ps_device_elapsed(r->device, EV_REF, EV_PIECE + i, out_s, err);
}

/* The GPU's kernel while copies run. *out_covered: until its end. */
static ps_status beside_gpu(ps_gpu_rig *r, uint32_t n, ps_rig_sample *out, bool *out_covered, ps_error *err) {
    double from = 0, to = 0, before = 0, end = 0, bytes = 0;
    ps_status status = enqueue_pieces(r, n, err);
    if (status == PS_OK)
        status = ps_device_wait(r->device, PS_STREAM_COMPUTE, EV_BEGUN, err);
    if (status == PS_OK)
        status = ps_gpu_start_time(r, err);
    if (status == PS_OK)
        status = ps_gpu_run_calls(r, err);
    status = ps_gpu_timed(r, &out->value, status, err);
    out->value /= r->n_calls;
    if (status == PS_OK)
        status = ps_device_elapsed(r->device, EV_REF, EV_FROM, &from, err);
    if (status == PS_OK)
        status = ps_device_elapsed(r->device, EV_REF, EV_TO, &to, err);
    for (uint32_t i = 0; i < n && status == PS_OK; i++, before = end) {
        status = piece_end(r, i, &end, err);
        const double shared = fmin(end, to) - fmax(before, from);
        if (status == PS_OK && shared > 0 && end > before)
            bytes += shared / (end - before) * (double)PIECE_BYTES;
    }
    *out_covered = end >= to;
    out->beside_bytes_per_s = to > from ? bytes / (to - from) : 0;
    return status;
}

static ps_status count_passed(ps_gpu_rig *r, uint32_t n, uint32_t *passed, ps_error *err) {
    ps_status status = PS_OK;
    bool yes = true;
    while (status == PS_OK && *passed < n && yes) {
        status = ps_device_passed(r->device, EV_PIECE + *passed, &yes, err);
        *passed += status == PS_OK && yes;
    }
    return status;
}

/* Pieces that pass while the CPUs' kernel is measured, at least: their number is known to half a one. */
static uint32_t least_pieces(const ps_gpu_rig *r) {
    return ps_device_get_info(r->device)->emulated ? 3 : LEAST_PIECES;
}

/* The CPUs' kernel while the bus is busy: samples of it, from the end of a piece on. */
static ps_status beside_cpu(ps_gpu_rig *r, uint32_t n, ps_rig_sample *out, bool *out_covered, ps_error *err) {
    uint32_t before = 0, after, n_samples = 0;
    double s = 0, sum = 0;
    bool disturbed = false;
    ps_status status = enqueue_pieces(r, n, err);
    while (status == PS_OK && before == 0)
        status = count_passed(r, n, &before, err);
    after = before;
    const uint64_t t0 = ps_clock_ns();
    do {
        if (status != PS_OK)
            break;
        status = r->cpu->sample(r->cpu_rig, out, err);
        s = (double)(ps_clock_ns() - t0) * 1e-9;
        sum += out->value;
        disturbed |= out->disturbed;
        n_samples++;
    } while (s < least_pieces(r) * r->piece_s);
    if (status == PS_OK)
        status = count_passed(r, n, &after, err);
    *out_covered = after < n;
    out->value = n_samples ? sum / n_samples : 0;
    out->disturbed = disturbed;
    out->beside_bytes_per_s = s > 0 ? (after - before + 0.5) * (double)PIECE_BYTES / s : 0;
    const ps_status ended = ps_device_sync(r->device, status == PS_OK ? err : NULL);
    return status == PS_OK ? ended : status;
}

ps_status ps_gpu_beside_sample(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    const bool cpu = is_cpu(r->task);
    ps_status status = PS_OK;
    bool covered = false;
    for (int i = 0; i < N_TRIES && status == PS_OK && !covered; i++) {
        *out = (ps_rig_sample){0};
        status = (cpu ? beside_cpu : beside_gpu)(r, r->n_pieces, out, &covered, err);
        if (!covered &&
            r->n_pieces < MOST_PIECES) /* the bus ran dry: what was measured is not what was asked for */
            r->n_pieces = 2 * r->n_pieces < MOST_PIECES ? 2 * r->n_pieces : MOST_PIECES;
    }
    out->disturbed |= !covered;
    return status;
}

/* How many pieces outlast the kernel: by its time alone and that of some pieces alone. */
ps_status ps_gpu_beside_prepare(ps_gpu_rig *r, ps_error *err) {
    const bool cpu = is_cpu(r->task);
    double kernel_s = 0, pieces_s = 0;
    ps_rig_sample alone = {0};
    ps_status status = ps_vram_resize(r->spare, (uint64_t)N_HANDLES * PS_VRAM_HANDLE, err);
    if (status == PS_OK && r->task->point.beside == PS_BESIDE_DIRECT)
        status = ps_gpu_prepare_direct(r, PIECE_BYTES, err);
    const uint64_t t0 = ps_clock_ns();
    if (status == PS_OK && cpu)
        status = r->cpu->sample(r->cpu_rig, &alone, err);
    kernel_s = (double)(ps_clock_ns() - t0) * 1e-9;
    if (status == PS_OK && !cpu) {
        status = ps_gpu_start_time(r, err);
        if (status == PS_OK)
            status = ps_gpu_run_calls(r, err);
        status = ps_gpu_timed(r, &kernel_s, status, err);
    }
    if (status == PS_OK)
        status = enqueue_pieces(r, SPARE_PIECES, err);
    if (status == PS_OK)
        status = ps_device_sync(r->device, err);
    if (status == PS_OK)
        status = piece_end(r, SPARE_PIECES - 1, &pieces_s, err);
    r->piece_s = pieces_s / SPARE_PIECES;
    double n = pieces_s > 0 ? 2 * kernel_s / r->piece_s + SPARE_PIECES : SPARE_PIECES;
    n += cpu ? least_pieces(r) : 0;
    r->n_pieces = n < MOST_PIECES ? (uint32_t)n : MOST_PIECES;
    return status;
}

void ps_gpu_beside_finish(ps_gpu_rig *r) {
    (void)ps_device_sync(r->device, NULL); /* an error has been said, or comes with the next task */
    (void)ps_vram_resize(r->spare, 0, NULL);
    if (r->task->point.beside == PS_BESIDE_DIRECT)
        ps_gpu_forget_mirrored(r);
}
