/* The rig of a machine with a GPU: see gpu_rig.h. Times are the device's own, but for calls whose cost is the caller's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/clock.h"
#include "profile/gpu_rig_internal.h"
#ifdef PS_HAVE_CUDA
#include "kernels/cuda/cuda_kernels.h"
#endif

static bool is_gpu_task(const ps_task *t) {
    if (t->measure == PS_MEASURE_KERNEL) {
        const ps_kernel *k = ps_kernel_find(t->point.kernel);
        return k != NULL && k->spec.device == PS_DEV_CUDA;
    }
    return t->measure >= PS_MEASURE_PACED;
}

static ps_status gpu_prepare(void *rig, const ps_task *task, ps_error *err) {
    ps_gpu_rig *r = rig;
    r->task = task;
    if (!is_gpu_task(task)) {
        if (!ps_gpu_is_beside(task))
            return r->cpu->prepare(r->cpu_rig, task, err);
        r->cpu_task = *task;
        r->cpu_task.point.beside = PS_BESIDE_IDLE; /* for all that it knows */
        ps_status ready = ps_gpu_timer_before(r, err);
        if (ready == PS_OK)
            ready = r->cpu->prepare(r->cpu_rig, &r->cpu_task, err);
        return ready == PS_OK ? ps_gpu_beside_prepare(r, err) : ready;
    }
    ps_status status = ps_gpu_timer_before(r, err);
    if (status != PS_OK)
        return status;
    switch (task->measure) {
    case PS_MEASURE_KERNEL:
        status = ps_gpu_prepare_kernel(r, task, err);
        return status == PS_OK && ps_gpu_is_beside(task) ? ps_gpu_beside_prepare(r, err) : status;
    case PS_MEASURE_COPY:
    case PS_MEASURE_TOGETHER:
    case PS_MEASURE_PACED:
        if (task->bus == PS_BUS_DIRECT)
            status = ps_gpu_prepare_direct(
                r, task->measure == PS_MEASURE_COPY ? task->bytes : PS_GPU_PIECE_BYTES, err);
        if (status == PS_OK && task->kind == PS_HOST_KIND_REGISTERED && task->measure == PS_MEASURE_COPY) {
            uint8_t *device;
            status = ps_device_host_register(r->device, r->plain, PS_GPU_BUS_BYTES, &device, err);
            r->locked = status == PS_OK ? r->plain : r->locked;
        }
        if (status == PS_OK && task->measure == PS_MEASURE_PACED)
            status = ps_gpu_prepare_paced(r, err);
        if (status == PS_OK && task->measure != PS_MEASURE_COPY)
            status = ps_streams_data(r->machine, &r->stream_data, &r->stream_bytes, err);
        if (status == PS_OK && task->measure != PS_MEASURE_COPY)
            status = ps_streams_start(r->machine, 0, task->point.n_threads, r->stream_data, r->stream_bytes,
                                      &r->streams, err);
        if (status == PS_OK && task->measure == PS_MEASURE_COPY)
            status = ps_gpu_timer_compare(r, ps_gpu_run_copies,
                                          (uint32_t)(ps_gpu_copy_bytes(r) / task->bytes), err);
        return status;
    case PS_MEASURE_GRAPH_NODE:
    case PS_MEASURE_GRAPH_LAUNCH:
        return ps_gpu_capture_small(r, N_NODES, err);
    case PS_MEASURE_HBM:
        ps_gpu_forget_mirrored(r);
        return PS_OK;
    case PS_MEASURE_HBM_FULL:
        return ps_gpu_prepare_full(r, err);
    default:
        return PS_OK;
    }
}

static ps_status gpu_sample(void *rig, ps_rig_sample *out, ps_error *err) {
    ps_gpu_rig *r = rig;
    if (ps_gpu_is_beside(r->task))
        return ps_gpu_beside_sample(r, out, err);
    if (!is_gpu_task(r->task))
        return r->cpu->sample(r->cpu_rig, out, err);
    *out = (ps_rig_sample){0};
    switch (r->task->measure) {
    case PS_MEASURE_KERNEL:
        return ps_gpu_sample_kernel(r, out, err);
    case PS_MEASURE_COPY:
        return ps_gpu_sample_copy(r, out, err);
    case PS_MEASURE_TOGETHER:
    case PS_MEASURE_PACED:
        return ps_gpu_sample_together(r, out, err);
    case PS_MEASURE_HBM:
        return ps_gpu_sample_hbm(r, out, err);
    case PS_MEASURE_LAUNCH:
        return ps_gpu_sample_launch(r, out, err);
    case PS_MEASURE_GRAPH_NODE:
        return ps_gpu_sample_graph_node(r, out, err);
    case PS_MEASURE_GRAPH_LAUNCH:
        return ps_gpu_sample_graph_launch(r, out, err);
    case PS_MEASURE_EVENT_WAIT:
        return ps_gpu_sample_event_wait(r, out, err);
    case PS_MEASURE_TO_CPU:
    case PS_MEASURE_TO_GPU:
        return ps_gpu_sample_handover(r, out, err);
    case PS_MEASURE_LOCK:
        return ps_gpu_sample_lock(r, out, err);
    case PS_MEASURE_MAP:
        return ps_gpu_sample_map(r, false, out, err);
    case PS_MEASURE_UNMAP:
        return ps_gpu_sample_map(r, true, out, err);
    case PS_MEASURE_EVENT_RECORD:
        return ps_gpu_sample_event_record(r, out, err);
    case PS_MEASURE_LEVEL:
        return ps_gpu_sample_level(r, out, err);
    case PS_MEASURE_HBM_FULL:
        return ps_gpu_sample_full(r, out, err);
    default:
        return ps_error_set(err, PS_E_INTERNAL, "gpu", "not a measure of a GPU");
    }
}

static void gpu_finish(void *rig) {
    ps_gpu_rig *r = rig;
    if (ps_gpu_is_beside(r->task))
        ps_gpu_beside_finish(r);
    if (!is_gpu_task(r->task)) {
        r->cpu->finish(r->cpu_rig);
        return;
    }
    (void)ps_device_sync(r->device, NULL); /* an error has been said, or comes with the next task */
    ps_gpu_timer_after(r);
    ps_streams_stop(r->streams);
    r->streams = NULL;
    ps_vram_free(r->full);
    r->full = NULL;
    ps_device_graph_free(r->device, r->graph);
    r->graph = NULL;
    ps_device_host_unregister(r->device, r->locked);
    r->locked = NULL;
    if (r->task->measure == PS_MEASURE_COPY || r->task->measure == PS_MEASURE_TOGETHER ||
        r->task->measure == PS_MEASURE_PACED)
        ps_gpu_forget_mirrored(r); /* copies went over it */
}

static void gpu_describe(void *rig, ps_profile_topology *out, uint8_t machine_hash[PS_HASH_BYTES]) {
    ps_gpu_rig *r = rig;
    r->cpu->describe(r->cpu_rig, out, machine_hash);
}

static void gpu_describe_gpu(void *rig, ps_profile_gpu *out) {
    ps_gpu_rig *r = rig;
    ps_device_link link;
    ps_device_read_link(r->device, &link);
    r->info.pcie_gen = link.gen;
    r->info.pcie_width = link.width;
    *out = r->info;
}

static void gpu_describe_timer(void *rig, ps_profile_gpu *out) {
    ps_gpu_timer_describe(rig, out);
}

static double gpu_clock_probe(void *rig) {
    ps_gpu_rig *r = rig;
    return r->cpu->clock_probe(r->cpu_rig);
}

static uint64_t gpu_now(void *rig) {
    ps_gpu_rig *r = rig;
    return r->cpu->now_ns(r->cpu_rig);
}

#define RIG_OPS(is_synthetic)                                                                                \
    {                                                                                                        \
        .name = "gpu", .synthetic = (is_synthetic), .describe = gpu_describe,                                \
        .describe_gpu = gpu_describe_gpu, .describe_timer = gpu_describe_timer, .prepare = gpu_prepare,      \
        .sample = gpu_sample, .finish = gpu_finish, .clock_probe = gpu_clock_probe, .now_ns = gpu_now,       \
    }
const ps_rig_ops ps_gpu_rig_ops = RIG_OPS(false), ps_gpu_rig_emulated_ops = RIG_OPS(true);

bool ps_gpu_rig_has_blas(const ps_gpu_rig *rig) {
    return rig->blas != NULL || ps_device_get_info(rig->device)->emulated;
}

/* Everything a run has loaded before it takes memory: context, kernels, cuBLAS, metered one after the other. What the meter says
 * at the end is the base. */
static ps_status read_base(ps_gpu_rig *r, ps_error *err) {
    uint64_t context, modules;
    ps_meter how;
    ps_status status = ps_device_vram_used(r->device, &context, &how, err);
    modules = context;
#ifdef PS_HAVE_CUDA
    if (status == PS_OK && !ps_device_get_info(r->device)->emulated) {
        ps_error none = {0};
        status = ps_cuda_load_all(err);
        if (status == PS_OK)
            status = ps_device_vram_used(r->device, &modules, &how, err);
        if (status == PS_OK && ps_cuda_blas_open(&r->blas, &none) != PS_OK)
            r->blas = NULL; /* its kernels are then not measured, so never planned */
    }
#endif
    if (status == PS_OK)
        status = ps_device_vram_used(r->device, &r->info.base_bytes, &how, err);
    if (status != PS_OK)
        return status;
    snprintf(r->info.meter, sizeof r->info.meter, "%s", ps_meter_name(how));
    /* On a device-wide meter somebody else may have given memory back meanwhile: then the parts are not known. */
    if (context <= modules && modules <= r->info.base_bytes) {
        r->info.context_bytes = context;
        r->info.modules_bytes = modules - context;
        r->info.blas_bytes = r->info.base_bytes - modules;
    }
    return PS_OK;
}

ps_status ps_gpu_rig_new(const ps_gpu_config *c, ps_gpu_rig **out, ps_error *err) {
    uint32_t n_kernels;
    ps_kernel_table(&n_kernels);
    *out = NULL;
    ps_gpu_rig *r = calloc(1, sizeof *r);
    if (r == NULL)
        return ps_error_set(err, PS_E_NOMEM, "gpu", "no memory for the rig");
    r->machine = c->machine;
    r->model = c->model;
    r->device = c->device;
    r->cpu = c->cpu_ops;
    r->cpu_rig = c->cpu_rig;
    const ps_device_info *d = ps_device_get_info(c->device);
    r->info = (ps_profile_gpu){.cc_major = d->cc_major,
                               .cc_minor = d->cc_minor,
                               .n_multiprocessors = d->n_multiprocessors ? d->n_multiprocessors : 1,
                               .vram_bytes = d->vram_bytes,
                               .l2_bytes = d->l2_bytes};
    snprintf(r->info.name, sizeof r->info.name, "%s", d->name);
    snprintf(r->info.uuid, sizeof r->info.uuid, "%s", d->uuid);
    snprintf(r->info.driver, sizeof r->info.driver, "%s", d->driver);
    r->verified = calloc(n_kernels + 1, sizeof *r->verified);
    r->spans = calloc(MAX_CALLS, sizeof *r->spans);
    void *plain = mmap(NULL, PS_GPU_BUS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->plain = plain != MAP_FAILED ? plain : NULL;
    ps_status status = r->verified && r->spans && r->plain
                           ? PS_OK
                           : ps_error_set(err, PS_E_NOMEM, "gpu", "no memory for the rig");
    if (status == PS_OK)
        status = read_base(r, err);
    if (status == PS_OK)
        status = ps_gpu_timer_open(r, c, err);
    uint64_t cold = 4 * d->l2_bytes > 128 * MIB ? 4 * d->l2_bytes : 128 * MIB;
    if (d->emulated)
        cold = MIB; /* there is no cache to be cold */
    if (status == PS_OK)
        status = ps_operands_new(cold, c->model, &r->operands, err);
    if (status == PS_OK)
        ps_operands_watch(r->operands, ps_gpu_weights_moving, r);
    void *pinned = NULL;
    if (status == PS_OK)
        status = ps_device_host_alloc(r->device, PS_GPU_BUS_BYTES, &pinned, &r->d_pinned, err);
    r->pinned = pinned;
    if (status == PS_OK)
        status = ps_vram_reserve(r->device, PS_GPU_VRAM_BYTES, &r->vram, err);
    if (status == PS_OK)
        status = ps_vram_resize(r->vram, 2 * PS_GPU_WINDOW_BYTES + PS_VRAM_HANDLE, err);
    if (status == PS_OK)
        status = ps_vram_reserve(r->device, (uint64_t)16 * PS_VRAM_HANDLE, &r->spare, err);
    if (status == PS_OK) {
        for (uint64_t i = 0; i < PS_GPU_BUS_BYTES;
             i += 8) { /* data like that of weights: neither zero nor the same */
            uint64_t v = i * 0x9e3779b97f4a7c15u;
            memcpy(r->pinned + i, &v, 8);
            memcpy(r->plain + i, &v, 8);
        }
        /* The zero that flags count from: before all that tasks write, which may grow at its other end. */
        r->d_base = (uint64_t *)(void *)ps_vram_base(r->vram);
        r->d_clock = r->d_base + 16;
        r->d_room = ps_vram_base(r->vram) + PS_GPU_KEPT_BYTES;
        uint64_t *zero = (uint64_t *)(void *)r->pinned;
        const uint64_t keep = *zero;
        *zero = 0;
        status = ps_device_copy(r->device, PS_STREAM_COMPUTE, r->d_base, 0, zero, 0, 8, 1, err);
        if (status == PS_OK)
            status = ps_device_sync(r->device, err);
        *zero = keep;
    }
    if (status != PS_OK)
        ps_gpu_rig_free(r);
    else
        *out = r;
    return status;
}

void ps_gpu_rig_free(ps_gpu_rig *r) {
    if (r == NULL)
        return;
    ps_streams_stop(r->streams);
    ps_device_graph_free(r->device, r->graph);
    ps_gpu_timer_close(r);
    if (r->weights != NULL)
        ps_gpu_weights_moving(r, r->weights);
    ps_device_host_unregister(r->device, r->locked);
    ps_vram_free(r->vram);
    ps_vram_free(r->spare);
    ps_vram_free(r->full);
    ps_device_host_free(r->device, r->pinned);
#ifdef PS_HAVE_CUDA
    ps_cuda_blas_close(r->blas);
#endif
    if (r->plain != NULL)
        munmap(r->plain, PS_GPU_BUS_BYTES);
    if (r->stream_data != NULL)
        munmap(r->stream_data, r->stream_bytes);
    ps_operands_free(r->operands);
    free(r->verified);
    free(r->spans);
    free(r);
}
