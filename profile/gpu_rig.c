/* Measurements on a GPU. Times are the device's own, between two events, but for calls whose cost is the caller's.
 *
 * A kernel is measured as a run of calls inside one graph (few tokens) or enqueued one by one (many tokens), each call on
 * other weights, so that together they are far larger than the L2 cache. Operands are made in host memory and mirrored to
 * VRAM; `direct` leaves the weights in host memory, page-locked. */
#include "profile/gpu_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "core/clock.h"
#include "kernels/kernel.h"
#include "profile/operands.h"
#include "profile/streams.h"
#ifdef PS_HAVE_CUDA
#include "kernels/cuda/cuda_kernels.h"
#endif

#define MIB ((uint64_t)1 << 20)
enum {
    MAX_CALLS = 256, /* of a kernel in one sample */
    FEW_TOKENS = 8,  /* up to here calls are nodes of a graph */
    EV_FROM = 0,     /* timed */
    EV_TO = 1,
    EV_A = 2, /* plain */
    EV_B = 3,
    N_LAUNCHES = 200,
    N_NODES = 100,
    N_HANDOVERS = 50,
    SMALL_COLS = 1024,
};
static const uint64_t bus_bytes = (uint64_t)64 << 20, window_bytes = (uint64_t)256 << 20,
                      piece_bytes = 16 << 20;
static const uint64_t vram_bytes = (uint64_t)3 << 30;

struct ps_gpu_rig {
    const ps_machine *machine;
    const ps_model *model;
    ps_device *device;
    const ps_rig_ops *cpu;
    void *cpu_rig;
    ps_profile_gpu info;
    struct ps_cuda_blas *blas;
    ps_operands *operands;
    bool *verified;              /* [kernels of the registry] */
    ps_vram_range *vram, *spare; /* spare: for mapping and release */
    uint8_t *pinned, *d_pinned;  /* bus_bytes */
    uint8_t *plain;              /* bus_bytes, pageable */
    uint64_t *d_base;            /* a zero in VRAM that flags are counted from */
    uint64_t epoch;
    uint8_t *stream_data; /* for the CPUs' reads */
    uint64_t stream_bytes;
    ps_streams *streams;
    const ps_task *task;
    /* The kernel of the task and where its operands are on the device. */
    const ps_kernel *kernel;
    ps_operand_area area[PS_OPERAND_AREAS];
    uint8_t *d_area[PS_OPERAND_AREAS];
    uint8_t *d_spans;
    ps_seq_span *spans; /* [MAX_CALLS] as on the device */
    struct {
        uint64_t version, bytes; /* 0: nothing */
        const uint8_t *at;
    } mirrored[PS_OPERAND_AREAS]; /* weights and KV that are in VRAM */
    uint8_t *locked;              /* other memory that is page-locked for a task */
    uint8_t *weights, *d_weights; /* weights that are page-locked, until they move */
    uint32_t n_calls;
    ps_device_graph *graph;
    int emulated_status; /* of kernels on the emulated device */
};

/* ---- one kernel call ---- */

typedef struct emulated_call {
    ps_gpu_rig *rig;
    ps_op op;
    ps_kargs args;
} emulated_call;

static void run_emulated(void *payload) {
    const emulated_call *c = payload;
    ps_status status = ps_ref_run(c->op, &c->args, NULL);
    if (status != PS_OK)
        __atomic_store_n(&c->rig->emulated_status, (int)status, __ATOMIC_RELEASE);
}

static ps_status launch(ps_gpu_rig *r, const ps_kernel *kernel, const ps_kargs *a, uint64_t kv_bound,
                        ps_error *err) {
    if (r->info.name[0] != '\0' && ps_device_get_info(r->device)->emulated) {
        emulated_call call = {r, kernel->spec.op, *a};
        return ps_device_enqueue(r->device, PS_STREAM_COMPUTE, run_emulated, &call, sizeof call, err);
    }
#ifdef PS_HAVE_CUDA
    ps_cuda_on on = {.stream = ps_device_stream(r->device, PS_STREAM_COMPUTE),
                     .kv_bound = (uint32_t)kv_bound,
                     .span_rows = a->n_tokens,
                     .blas = r->blas};
    return ps_cuda_launch(kernel->spec.id, a, &on, err);
#else
    (void)kv_bound;
    return ps_error_set(err, PS_E_INTERNAL, kernel->spec.name, "built without CUDA");
#endif
}

/* Bytes or calls of a sample: the emulated device's speeds mean nothing, so a sixteenth of them will do there. */
static uint64_t enough(const ps_gpu_rig *r, uint64_t n) {
    if (!ps_device_get_info(r->device)->emulated)
        return n;
    return n / 16 ? n / 16 : 1;
}

static void *moved(const ps_gpu_rig *r, const void *p) {
    for (int i = 0; i < PS_OPERAND_AREAS; i++)
        if (p != NULL && (const uint8_t *)p >= r->area[i].data &&
            (const uint8_t *)p < r->area[i].data + r->area[i].bytes)
            return r->d_area[i] + ((const uint8_t *)p - r->area[i].data);
    return NULL;
}

/* Arguments of call i with the device's addresses. */
static void device_args(const ps_gpu_rig *r, uint32_t i, ps_kargs *a) {
    ps_seq_span span;
    ps_operands_args(r->operands, i, a, &span);
    for (int w = 0; w < PS_OP_MAX_WEIGHTS; w++)
        a->w[w].data = moved(r, a->w[w].data);
    for (int s = 0; s < PS_OP_MAX_SRC; s++)
        a->src[s].data = moved(r, a->src[s].data);
    a->dst.data = moved(r, a->dst.data);
    a->tokens = moved(r, a->tokens);
    a->positions = moved(r, a->positions);
    a->outputs = moved(r, a->outputs);
    a->scratch = moved(r, a->scratch);
    if (a->n_spans != 0)
        a->spans = (const ps_seq_span *)(const void *)(r->d_spans + i % MAX_CALLS * sizeof(ps_seq_span));
}

static void forget_mirrored(ps_gpu_rig *r) {
    memset(r->mirrored, 0, sizeof r->mirrored);
}

static void weights_moving(void *rig, uint8_t *data) {
    ps_gpu_rig *r = rig;
    if (r->weights != data)
        return;
    ps_device_host_unregister(r->device, data);
    r->weights = NULL;
}

static ps_status lock_weights(ps_gpu_rig *r, const ps_operand_area *x, ps_error *err) {
    if (r->weights == x->data)
        return PS_OK;
    ps_status status =
        ps_device_host_register(r->device, x->data, (x->room + 4095) & ~(uint64_t)4095, &r->d_weights, err);
    if (status == PS_OK)
        r->weights = x->data;
    return status;
}

/* Copy what a kernel reads of area i to where it is on the device: of weights and KV only what is not there. */
static ps_status mirror_area(ps_gpu_rig *r, int i, ps_error *err) {
    const ps_operand_area *x = &r->area[i];
    uint64_t done = 0;
    if (i == PS_OPERAND_WEIGHTS || i == PS_OPERAND_KV) {
        if (r->mirrored[i].version == x->version && r->mirrored[i].at == r->d_area[i])
            done = r->mirrored[i].bytes;
        else
            r->mirrored[i].bytes = 0;
    }
    if (done >= x->inputs)
        return PS_OK;
    ps_status status = ps_device_copy(r->device, PS_STREAM_COMPUTE, r->d_area[i] + done, 0, x->data + done, 0,
                                      x->inputs - done, 1, err);
    r->mirrored[i].version = status == PS_OK ? x->version : 0;
    r->mirrored[i].bytes = x->inputs;
    r->mirrored[i].at = r->d_area[i];
    return status;
}

/* Put the operands' areas where the kernel looks for them. What is kept from task to task comes first, with room to grow. */
static ps_status mirror(ps_gpu_rig *r, const ps_kernel *kernel, bool direct, ps_error *err) {
    static const int order[PS_OPERAND_AREAS] = {PS_OPERAND_WEIGHTS, PS_OPERAND_KV, PS_OPERAND_ACTS,
                                                PS_OPERAND_MISC, PS_OPERAND_SCRATCH};
    uint64_t at = 0;
    uint8_t *base = ps_vram_base(r->vram);
    ps_status status = PS_OK;
    ps_operands_areas(r->operands, r->area);
    r->d_spans = base;
    at = (MAX_CALLS * sizeof(ps_seq_span) + 255) & ~(uint64_t)255;
    for (int k = 0; k < PS_OPERAND_AREAS; k++) {
        const ps_operand_area *x = &r->area[order[k]];
        r->d_area[order[k]] = base + at;
        at += ((k < 2 ? x->room : x->bytes) + 255) & ~(uint64_t)255;
    }
    uint64_t need = (at + PS_VRAM_HANDLE - 1) / PS_VRAM_HANDLE * PS_VRAM_HANDLE;
    if (need > vram_bytes)
        return ps_error_set(err, PS_E_NOMEM, kernel->spec.name, "operands of %llu bytes",
                            (unsigned long long)need);
    if (need > ps_vram_mapped(r->vram))
        status = ps_vram_resize(r->vram, need, err);
    for (int i = 0; i < PS_OPERAND_AREAS && status == PS_OK; i++) {
        if (i != PS_OPERAND_WEIGHTS || !direct) {
            status = mirror_area(r, i, err);
            continue;
        }
        status = lock_weights(r, &r->area[i], err);
        r->d_area[i] = r->d_weights;
    }
    for (uint32_t i = 0; i < MAX_CALLS && status == PS_OK; i++) {
        ps_kargs a;
        ps_operands_args(r->operands, i, &a, &r->spans[i]);
        r->spans[i].k = moved(r, r->spans[i].k);
        r->spans[i].v = moved(r, r->spans[i].v);
    }
    if (status == PS_OK)
        status = ps_device_copy(r->device, PS_STREAM_COMPUTE, r->d_spans, 0, r->spans, 0,
                                MAX_CALLS * sizeof(ps_seq_span), 1, err);
    return status == PS_OK ? ps_device_sync(r->device, err) : status;
}

static ps_status enqueue_calls(ps_gpu_rig *r, uint32_t n, ps_error *err) {
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < n && status == PS_OK; i++) {
        ps_kargs a;
        device_args(r, i, &a);
        status = launch(r, r->kernel, &a, r->task->point.kv_len ? r->task->point.kv_len : a.n_tokens, err);
    }
    return status;
}

/* For ps_operands_verify: call 0 on the device, results brought back into the operands' own memory. */
typedef struct verification {
    ps_gpu_rig *rig;
    ps_status status;
    ps_error *err;
} verification;

static void verify_run(void *ctx, const ps_kernel *kernel) {
    verification *v = ctx;
    ps_gpu_rig *r = v->rig;
    v->status = mirror(r, kernel, false, v->err);
    ps_kargs a;
    device_args(r, 0, &a);
    if (v->status == PS_OK)
        v->status = launch(r, kernel, &a, a.n_spans ? r->spans[0].pos0 + r->spans[0].n_rows : 0, v->err);
    for (int i = PS_OPERAND_ACTS; i <= PS_OPERAND_KV && v->status == PS_OK; i++)
        if (r->area[i].bytes != 0)
            v->status = ps_device_copy(r->device, PS_STREAM_COMPUTE, r->area[i].data, 0, r->d_area[i], 0,
                                       r->area[i].bytes, 1, v->err);
    if (v->status == PS_OK)
        v->status = ps_device_sync(r->device, v->err);
}

/* Calls of a sample: together far more weights than the cache holds, and no more than takes some milliseconds. */
static uint32_t choose_calls(const ps_gpu_rig *r) {
    ps_kargs a, b;
    ps_seq_span span;
    ps_operands_args(r->operands, 0, &a, &span);
    ps_operands_args(r->operands, 1, &b, &span);
    uint64_t stride = 0, l2 = ps_device_get_info(r->device)->l2_bytes;
    if (a.w[0].data != NULL && b.w[0].data > a.w[0].data)
        stride = (uint64_t)(b.w[0].data - a.w[0].data);
    uint64_t n = stride != 0 ? 2 * l2 / stride + 1 : 32;
    uint64_t most = r->task->cost_s > 0 ? (uint64_t)(5e-3 / r->task->cost_s) : MAX_CALLS;
    n = n < 8 ? 8 : n;
    n = n < most ? n : most;
    n = enough(r, n);
    return n < 2 ? 2 : n > MAX_CALLS ? MAX_CALLS : (uint32_t)n;
}

static ps_status prepare_kernel(ps_gpu_rig *r, const ps_task *task, ps_error *err) {
    uint32_t n_kernels;
    const ps_kernel *table = ps_kernel_table(&n_kernels);
    r->kernel = ps_kernel_find(task->point.kernel);
    if (r->kernel == NULL)
        return ps_error_set(err, PS_E_INTERNAL, "gpu", "kernel %u is not in this build", task->point.kernel);
    bool *verified = &r->verified[r->kernel - table];
    ps_status status = PS_OK;
    if (!*verified) {
        verification v = {r, PS_OK, err};
        status = ps_operands_verify(r->operands, r->kernel, 1, verify_run, &v, err);
        if (v.status != PS_OK)
            status = v.status;
    }
    if (status == PS_OK) {
        *verified = true;
        ps_profile_point point = task->point;
        point.n_threads = 1;
        status = ps_operands_set(r->operands, r->kernel, &point, err);
    }
    if (status == PS_OK)
        status = mirror(r, r->kernel, task->point.beside == PS_BESIDE_DIRECT, err);
    if (status != PS_OK)
        return status;
    r->n_calls = choose_calls(r);
    if (task->point.n_tokens <= FEW_TOKENS) {
        status = ps_device_capture_begin(r->device, err);
        if (status == PS_OK)
            status = enqueue_calls(r, r->n_calls, err);
        if (status == PS_OK)
            status = ps_device_capture_end(r->device, &r->graph, err);
        else
            ps_device_capture_abort(r->device);
        if (status == PS_OK)
            status = ps_device_graph_launch(r->device, r->graph, err); /* warm-up */
    } else {
        status = enqueue_calls(r, r->n_calls < 2 ? r->n_calls : 2, err);
    }
    return status == PS_OK ? ps_device_sync(r->device, err) : status;
}

static ps_status timed(ps_gpu_rig *r, double *out_s, ps_status enqueued, ps_error *err) {
    ps_status status =
        enqueued == PS_OK ? ps_device_time(r->device, PS_STREAM_COMPUTE, EV_TO, err) : enqueued;
    if (status == PS_OK)
        status = ps_device_sync(r->device, err);
    if (status == PS_OK)
        status = ps_device_elapsed(r->device, EV_FROM, EV_TO, out_s, err);
    if (status == PS_OK && __atomic_load_n(&r->emulated_status, __ATOMIC_ACQUIRE) != PS_OK)
        status = ps_error_set(err, PS_E_INTERNAL, "gpu", "a kernel failed on the emulated device");
    if (status == PS_OK && !(*out_s > 0))
        *out_s = 1e-9; /* below the resolution of events */
    return status;
}

static ps_status start_time(ps_gpu_rig *r, ps_error *err) {
    return ps_device_time(r->device, PS_STREAM_COMPUTE, EV_FROM, err);
}

static ps_status sample_kernel(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    double s = 0;
    ps_status status = start_time(r, err);
    if (status == PS_OK)
        status = r->graph != NULL ? ps_device_graph_launch(r->device, r->graph, err)
                                  : enqueue_calls(r, r->n_calls, err);
    status = timed(r, &s, status, err);
    out->value = s / r->n_calls;
    return status;
}

/* ---- bus ---- */

/* Enqueue `total` bytes over the bus in pieces on stream h2d or d2h, joined to the compute stream's events. */
static ps_status enqueue_copies(ps_gpu_rig *r, ps_bus bus, const uint8_t *host, uint64_t bytes,
                                uint64_t total, ps_error *err) {
    ps_stream stream = bus == PS_BUS_D2H ? PS_STREAM_D2H : PS_STREAM_H2D;
    uint8_t *vram = ps_vram_base(r->vram);
    ps_status status = ps_device_record(r->device, PS_STREAM_COMPUTE, EV_A, err);
    if (status == PS_OK)
        status = ps_device_wait(r->device, stream, EV_A, err);
    for (uint64_t done = 0; done < total && status == PS_OK; done += bytes) {
        uint64_t at = done % (bus_bytes / bytes * bytes);
        status = bus == PS_BUS_D2H
                     ? ps_device_copy(r->device, stream, (uint8_t *)(uintptr_t)host + at, 0, vram + at, 0,
                                      bytes, 1, err)
                     : ps_device_copy(r->device, stream, vram + at, 0, host + at, 0, bytes, 1, err);
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
        uint8_t *ring = r->pinned + i % 2 * (bus_bytes / 2);
        bool passed = i < 2;
        while (status == PS_OK && !passed)
            status = ps_device_passed(r->device, event, &passed, err);
        memcpy(ring, r->plain + done % (bus_bytes / bytes * bytes), bytes);
        if (status == PS_OK)
            status = ps_device_copy(r->device, PS_STREAM_COMPUTE, ps_vram_base(r->vram), 0, ring, 0, bytes, 1,
                                    err);
        if (status == PS_OK)
            status = ps_device_record(r->device, PS_STREAM_COMPUTE, event, err);
    }
    return status;
}

static ps_status sample_copy(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    const ps_task *t = r->task;
    uint64_t n = bus_bytes / t->bytes < 256 ? bus_bytes / t->bytes : 256, total = enough(r, n) * t->bytes;
    double s = 0;
    ps_status status = start_time(r, err);
    if (status != PS_OK)
        return status;
    if (t->bus == PS_BUS_DIRECT)
        status = enqueue_calls(r, r->n_calls, err);
    else if (t->kind == PS_HOST_KIND_STAGED)
        status = enqueue_staged(r, t->bytes, total, err);
    else
        status = enqueue_copies(r, t->bus, t->kind == PS_HOST_KIND_PINNED ? r->pinned : r->plain, t->bytes,
                                total, err);
    status = timed(r, &s, status, err);
    out->value = (double)(t->bus == PS_BUS_DIRECT ? r->n_calls * t->bytes : total) / s;
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

static ps_status sample_together(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    const bool direct = r->task->bus == PS_BUS_DIRECT;
    double s = 0;
    uint64_t total = direct ? r->n_calls * piece_bytes : enough(r, window_bytes / piece_bytes) * piece_bytes;
    ps_status status = start_time(r, err);
    if (status == PS_OK)
        status = direct ? enqueue_calls(r, r->n_calls, err)
                        : enqueue_copies(r, r->task->bus, r->pinned, piece_bytes, total, err);
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

static ps_status need_stream_data(ps_gpu_rig *r, ps_error *err) {
    if (r->stream_data != NULL)
        return PS_OK;
    uint64_t bytes = 2 * r->machine->l3_bytes;
    bytes = bytes < 256 * MIB ? 256 * MIB : bytes;
    if (bytes > r->machine->memory_free_bytes / 8)
        bytes = r->machine->memory_free_bytes / 8;
    bytes = (bytes + MIB - 1) / MIB * MIB;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return ps_error_set(err, PS_E_NOMEM, "dram", "no memory for %llu bytes", (unsigned long long)bytes);
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* only advice */
    memset(p, 0x5a, bytes);
    r->stream_data = p;
    r->stream_bytes = bytes;
    return PS_OK;
}

/* Direct reads are those of the kernel that a run would use: a product of one token with F16 weights. */
static ps_status prepare_direct(ps_gpu_rig *r, uint64_t bytes, ps_error *err) {
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
        status = mirror(r, k, true, err);
    uint64_t n = bus_bytes / bytes;
    n = n < 4 ? 4 : n > MAX_CALLS ? MAX_CALLS : n;
    r->n_calls = (uint32_t)enough(r, n);
    return status;
}

/* ---- small costs ---- */

/* A kernel that hardly does anything: a sum of one short row. */
static ps_status launch_small(ps_gpu_rig *r, ps_error *err) {
    const ps_kernel *k = ps_kernel_choose(PS_OP_ADD, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, PS_DEV_CUDA, 1);
    if (k == NULL)
        return ps_error_set(err, PS_E_INTERNAL, "gpu", "there is no sum");
    uint8_t *x = ps_vram_base(r->vram) + MIB;
    ps_xarg row = {.data = x, .fmt = PS_FMT_F32, .cols = SMALL_COLS, .row_bytes = SMALL_COLS * 4};
    ps_kargs a = {.n_tokens = 1, .src = {row, row}, .dst = row, .n_threads = 1};
    a.dst.data = x + SMALL_COLS * 4;
    return launch(r, k, &a, 0, err);
}

static ps_status capture_small(ps_gpu_rig *r, uint32_t n, ps_error *err) {
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

static ps_status sample_launch(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    uint64_t t0 = ps_clock_ns();
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < N_LAUNCHES && status == PS_OK; i++)
        status = launch_small(r, err);
    out->value = (double)(ps_clock_ns() - t0) * 1e-9 / N_LAUNCHES;
    return status == PS_OK ? ps_device_sync(r->device, err) : status;
}

static ps_status sample_graph_node(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    double s = 0;
    ps_status status = start_time(r, err);
    if (status == PS_OK)
        status = ps_device_graph_launch(r->device, r->graph, err);
    status = timed(r, &s, status, err);
    out->value = s / N_NODES;
    return status;
}

static ps_status sample_graph_launch(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    uint64_t t0 = ps_clock_ns();
    ps_status status = ps_device_graph_launch(r->device, r->graph, err);
    out->value = (double)(ps_clock_ns() - t0) * 1e-9;
    return status == PS_OK ? ps_device_sync(r->device, err) : status;
}

static ps_status sample_event_wait(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    double s = 0;
    ps_status status = start_time(r, err);
    for (int i = 0; i < N_HANDOVERS && status == PS_OK; i++) {
        status = ps_device_record(r->device, PS_STREAM_COMPUTE, EV_A, err);
        if (status == PS_OK)
            status = ps_device_wait(r->device, PS_STREAM_H2D, EV_A, err);
        if (status == PS_OK)
            status = ps_device_record(r->device, PS_STREAM_H2D, EV_B, err);
        if (status == PS_OK)
            status = ps_device_wait(r->device, PS_STREAM_COMPUTE, EV_B, err);
    }
    status = timed(r, &s, status, err);
    out->value = s / (2 * N_HANDOVERS);
    return status;
}

/* There and back many times, everything enqueued ahead: half of a round is one way. */
static ps_status sample_handover(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
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

static ps_status sample_lock(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    uint8_t *device;
    uint64_t t0 = ps_clock_ns();
    ps_status status = ps_device_host_register(r->device, r->plain, bus_bytes, &device, err);
    out->value = (double)bus_bytes / ((double)(ps_clock_ns() - t0) * 1e-9);
    if (status == PS_OK)
        ps_device_host_unregister(r->device, r->plain);
    return status;
}

static ps_status sample_map(ps_gpu_rig *r, bool unmap, ps_rig_sample *out, ps_error *err) {
    enum { HANDLES = 8 };
    uint64_t t0 = ps_clock_ns();
    ps_status status = ps_vram_resize(r->spare, (uint64_t)HANDLES * PS_VRAM_HANDLE, err);
    uint64_t t1 = ps_clock_ns();
    if (status == PS_OK)
        status = ps_vram_resize(r->spare, 0, err);
    out->value = (double)(unmap ? ps_clock_ns() - t1 : t1 - t0) * 1e-9 / HANDLES;
    return status;
}

static ps_status sample_hbm(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    const uint64_t half = enough(r, window_bytes);
    uint8_t *x = ps_vram_base(r->vram);
    double s = 0;
    ps_status status = start_time(r, err);
    for (int i = 0; i < 4 && status == PS_OK; i++)
        status = ps_device_copy(r->device, PS_STREAM_COMPUTE, x + half, 0, x, 0, half, 1, err);
    status = timed(r, &s, status, err);
    out->value = 8.0 * (double)half / s; /* read and written */
    return status;
}

/* ---- the rig ---- */

static bool is_gpu_task(const ps_task *t) {
    if (t->measure == PS_MEASURE_KERNEL) {
        const ps_kernel *k = ps_kernel_find(t->point.kernel);
        return k != NULL && k->spec.device == PS_DEV_CUDA;
    }
    return t->measure >= PS_MEASURE_COPY;
}

static ps_status gpu_prepare(void *rig, const ps_task *task, ps_error *err) {
    ps_gpu_rig *r = rig;
    r->task = task;
    if (!is_gpu_task(task))
        return r->cpu->prepare(r->cpu_rig, task, err);
    ps_status status = PS_OK;
    switch (task->measure) {
    case PS_MEASURE_KERNEL:
        return prepare_kernel(r, task, err);
    case PS_MEASURE_COPY:
    case PS_MEASURE_TOGETHER:
        if (task->bus == PS_BUS_DIRECT)
            status = prepare_direct(r, task->measure == PS_MEASURE_COPY ? task->bytes : piece_bytes, err);
        if (status == PS_OK && task->kind == PS_HOST_KIND_REGISTERED && task->measure == PS_MEASURE_COPY) {
            uint8_t *device;
            status = ps_device_host_register(r->device, r->plain, bus_bytes, &device, err);
            r->locked = status == PS_OK ? r->plain : r->locked;
        }
        if (status == PS_OK && task->measure == PS_MEASURE_TOGETHER)
            status = need_stream_data(r, err);
        if (status == PS_OK && task->measure == PS_MEASURE_TOGETHER)
            status = ps_streams_start(r->machine, 0, task->point.n_threads, r->stream_data, r->stream_bytes,
                                      &r->streams, err);
        return status;
    case PS_MEASURE_GRAPH_NODE:
    case PS_MEASURE_GRAPH_LAUNCH:
        return capture_small(r, N_NODES, err);
    case PS_MEASURE_HBM:
        forget_mirrored(r);
        return PS_OK;
    default:
        return PS_OK;
    }
}

static ps_status gpu_sample(void *rig, ps_rig_sample *out, ps_error *err) {
    ps_gpu_rig *r = rig;
    if (!is_gpu_task(r->task))
        return r->cpu->sample(r->cpu_rig, out, err);
    *out = (ps_rig_sample){0};
    switch (r->task->measure) {
    case PS_MEASURE_KERNEL:
        return sample_kernel(r, out, err);
    case PS_MEASURE_COPY:
        return sample_copy(r, out, err);
    case PS_MEASURE_TOGETHER:
        return sample_together(r, out, err);
    case PS_MEASURE_HBM:
        return sample_hbm(r, out, err);
    case PS_MEASURE_LAUNCH:
        return sample_launch(r, out, err);
    case PS_MEASURE_GRAPH_NODE:
        return sample_graph_node(r, out, err);
    case PS_MEASURE_GRAPH_LAUNCH:
        return sample_graph_launch(r, out, err);
    case PS_MEASURE_EVENT_WAIT:
        return sample_event_wait(r, out, err);
    case PS_MEASURE_TO_CPU:
    case PS_MEASURE_TO_GPU:
        return sample_handover(r, out, err);
    case PS_MEASURE_LOCK:
        return sample_lock(r, out, err);
    case PS_MEASURE_MAP:
        return sample_map(r, false, out, err);
    case PS_MEASURE_UNMAP:
        return sample_map(r, true, out, err);
    default:
        return ps_error_set(err, PS_E_INTERNAL, "gpu", "not a measure of a GPU");
    }
}

static void gpu_finish(void *rig) {
    ps_gpu_rig *r = rig;
    if (!is_gpu_task(r->task)) {
        r->cpu->finish(r->cpu_rig);
        return;
    }
    (void)ps_device_sync(r->device, NULL); /* an error has been said, or comes with the next task */
    ps_streams_stop(r->streams);
    r->streams = NULL;
    ps_device_graph_free(r->device, r->graph);
    r->graph = NULL;
    ps_device_host_unregister(r->device, r->locked);
    r->locked = NULL;
    if (r->task->measure == PS_MEASURE_COPY || r->task->measure == PS_MEASURE_TOGETHER)
        forget_mirrored(r); /* copies went over it */
}

static void gpu_describe(void *rig, ps_profile_topology *out, uint8_t machine_hash[PS_HASH_BYTES]) {
    ps_gpu_rig *r = rig;
    r->cpu->describe(r->cpu_rig, out, machine_hash);
}

static void gpu_describe_gpu(void *rig, ps_profile_gpu *out) {
    *out = ((ps_gpu_rig *)rig)->info;
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
        .describe_gpu = gpu_describe_gpu, .prepare = gpu_prepare, .sample = gpu_sample,                      \
        .finish = gpu_finish, .clock_probe = gpu_clock_probe, .now_ns = gpu_now,                             \
    }
const ps_rig_ops ps_gpu_rig_ops = RIG_OPS(false), ps_gpu_rig_emulated_ops = RIG_OPS(true);

bool ps_gpu_rig_has_blas(const ps_gpu_rig *rig) {
    return rig->blas != NULL || ps_device_get_info(rig->device)->emulated;
}

/* Everything a run has loaded before it takes memory: kernels, cuBLAS. Then what the meter says is the base. */
static ps_status read_base(ps_gpu_rig *r, ps_error *err) {
    ps_status status = PS_OK;
#ifdef PS_HAVE_CUDA
    if (!ps_device_get_info(r->device)->emulated) {
        ps_error none = {0};
        status = ps_cuda_load_all(err);
        if (status == PS_OK && ps_cuda_blas_open(&r->blas, &none) != PS_OK)
            r->blas = NULL; /* its kernels are then not measured, so never planned */
    }
#endif
    ps_meter how;
    if (status == PS_OK)
        status = ps_device_vram_used(r->device, &r->info.base_bytes, &how, err);
    if (status == PS_OK)
        snprintf(r->info.meter, sizeof r->info.meter, "%s", ps_meter_name(how));
    return status;
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
                               .l2_bytes = d->l2_bytes,
                               .pcie_gen = d->pcie_gen,
                               .pcie_width = d->pcie_width};
    snprintf(r->info.name, sizeof r->info.name, "%s", d->name);
    snprintf(r->info.uuid, sizeof r->info.uuid, "%s", d->uuid);
    snprintf(r->info.driver, sizeof r->info.driver, "%s", d->driver);
    r->verified = calloc(n_kernels + 1, sizeof *r->verified);
    r->spans = calloc(MAX_CALLS, sizeof *r->spans);
    void *plain = mmap(NULL, bus_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->plain = plain != MAP_FAILED ? plain : NULL;
    ps_status status = r->verified && r->spans && r->plain
                           ? PS_OK
                           : ps_error_set(err, PS_E_NOMEM, "gpu", "no memory for the rig");
    if (status == PS_OK)
        status = read_base(r, err);
    uint64_t cold = 4 * d->l2_bytes > 128 * MIB ? 4 * d->l2_bytes : 128 * MIB;
    if (d->emulated)
        cold = MIB; /* there is no cache to be cold */
    if (status == PS_OK)
        status = ps_operands_new(cold, c->model, &r->operands, err);
    if (status == PS_OK)
        ps_operands_watch(r->operands, weights_moving, r);
    void *pinned = NULL;
    if (status == PS_OK)
        status = ps_device_host_alloc(r->device, bus_bytes, &pinned, &r->d_pinned, err);
    r->pinned = pinned;
    if (status == PS_OK)
        status = ps_vram_reserve(r->device, vram_bytes, &r->vram, err);
    if (status == PS_OK)
        status = ps_vram_resize(r->vram, 2 * window_bytes + PS_VRAM_HANDLE, err);
    if (status == PS_OK)
        status = ps_vram_reserve(r->device, (uint64_t)16 * PS_VRAM_HANDLE, &r->spare, err);
    if (status == PS_OK) {
        for (uint64_t i = 0; i < bus_bytes;
             i += 8) { /* data like that of weights: neither zero nor the same */
            uint64_t v = i * 0x9e3779b97f4a7c15u;
            memcpy(r->pinned + i, &v, 8);
            memcpy(r->plain + i, &v, 8);
        }
        /* The zero that flags count from: behind what everything else uses. */
        r->d_base = (uint64_t *)(void *)(ps_vram_base(r->vram) + 2 * window_bytes);
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
    if (r->weights != NULL)
        weights_moving(r, r->weights);
    ps_device_host_unregister(r->device, r->locked);
    ps_vram_free(r->vram);
    ps_vram_free(r->spare);
    ps_device_host_free(r->device, r->pinned);
#ifdef PS_HAVE_CUDA
    ps_cuda_blas_close(r->blas);
#endif
    if (r->plain != NULL)
        munmap(r->plain, bus_bytes);
    if (r->stream_data != NULL)
        munmap(r->stream_data, r->stream_bytes);
    ps_operands_free(r->operands);
    free(r->verified);
    free(r->spans);
    free(r);
}
