/* The GPU rig's kernels: operands mirrored to VRAM, or left page-locked for direct reads; calls timed by the device.
 *
 * A kernel is measured as a run of calls inside one graph (few tokens) or enqueued one by one (many tokens), each call on
 * other weights, so that together they are far larger than the L2 cache. */
#include <stdlib.h>
#include <string.h>

#include "profile/gpu_rig_internal.h"
#ifdef PS_HAVE_CUDA
#include "kernels/cuda/cuda_kernels.h"
#endif

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

ps_status ps_gpu_launch(ps_gpu_rig *r, const ps_kernel *kernel, const ps_kargs *a, uint64_t kv_bound,
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
uint64_t ps_gpu_enough(const ps_gpu_rig *r, uint64_t n) {
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

void ps_gpu_forget_mirrored(ps_gpu_rig *r) {
    memset(r->mirrored, 0, sizeof r->mirrored);
}

void ps_gpu_weights_moving(void *rig, uint8_t *data) {
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
ps_status ps_gpu_mirror(ps_gpu_rig *r, const ps_kernel *kernel, bool direct, ps_error *err) {
    static const int order[PS_OPERAND_AREAS] = {PS_OPERAND_WEIGHTS, PS_OPERAND_KV, PS_OPERAND_ACTS,
                                                PS_OPERAND_MISC, PS_OPERAND_SCRATCH};
    uint64_t at = 0;
    uint8_t *base = r->d_room;
    ps_status status = PS_OK;
    ps_operands_areas(r->operands, r->area);
    r->d_spans = base;
    at = (MAX_CALLS * sizeof(ps_seq_span) + 255) & ~(uint64_t)255;
    for (int k = 0; k < PS_OPERAND_AREAS; k++) {
        const ps_operand_area *x = &r->area[order[k]];
        r->d_area[order[k]] = base + at;
        at += ((k < 2 ? x->room : x->bytes) + 255) & ~(uint64_t)255;
    }
    uint64_t need = (PS_GPU_KEPT_BYTES + at + PS_VRAM_HANDLE - 1) / PS_VRAM_HANDLE * PS_VRAM_HANDLE;
    if (need > PS_GPU_VRAM_BYTES)
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

ps_status ps_gpu_enqueue_call(ps_gpu_rig *r, uint32_t i, ps_error *err) {
    ps_kargs a;
    device_args(r, i, &a);
    return ps_gpu_launch(r, r->kernel, &a, r->task->point.kv_len ? r->task->point.kv_len : a.n_tokens, err);
}

ps_status ps_gpu_enqueue_calls(ps_gpu_rig *r, uint32_t n, ps_error *err) {
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < n && status == PS_OK; i++)
        status = ps_gpu_enqueue_call(r, i, err);
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
    v->status = ps_gpu_mirror(r, kernel, false, v->err);
    ps_kargs a;
    device_args(r, 0, &a);
    if (v->status == PS_OK)
        v->status =
            ps_gpu_launch(r, kernel, &a, a.n_spans ? r->spans[0].pos0 + r->spans[0].n_rows : 0, v->err);
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
    n = ps_gpu_enough(r, n);
    return n < 2 ? 2 : n > MAX_CALLS ? MAX_CALLS : (uint32_t)n;
}

/* The calls of a sample as a graph, launched once to warm up. */
ps_status ps_gpu_capture_calls(ps_gpu_rig *r, ps_error *err) {
    ps_status status = ps_device_capture_begin(r->device, err);
    if (status == PS_OK)
        status = ps_gpu_enqueue_calls(r, r->n_calls, err);
    if (status == PS_OK)
        status = ps_device_capture_end(r->device, &r->graph, err);
    else
        ps_device_capture_abort(r->device);
    if (status == PS_OK)
        status = ps_device_graph_launch(r->device, r->graph, err);
    return status == PS_OK ? ps_device_sync(r->device, err) : status;
}

ps_status ps_gpu_run_calls(ps_gpu_rig *r, ps_error *err) {
    return r->graph != NULL ? ps_device_graph_launch(r->device, r->graph, err)
                            : ps_gpu_enqueue_calls(r, r->n_calls, err);
}

ps_status ps_gpu_prepare_kernel(ps_gpu_rig *r, const ps_task *task, ps_error *err) {
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
        status = ps_gpu_mirror(r, r->kernel, task->point.beside == PS_BESIDE_DIRECT, err);
    if (status != PS_OK)
        return status;
    r->n_calls = choose_calls(r);
    if (task->point.n_tokens <= FEW_TOKENS) {
        status = ps_gpu_capture_calls(r, err);
    } else {
        status = ps_gpu_enqueue_calls(r, r->n_calls < 2 ? r->n_calls : 2, err);
        if (status == PS_OK)
            status = ps_device_sync(r->device, err);
    }
    return status == PS_OK ? ps_gpu_timer_compare(r, ps_gpu_run_calls, r->n_calls, err) : status;
}

ps_status ps_gpu_timed(ps_gpu_rig *r, double *out_s, ps_status enqueued, ps_error *err) {
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

ps_status ps_gpu_start_time(ps_gpu_rig *r, ps_error *err) {
    return ps_device_time(r->device, PS_STREAM_COMPUTE, EV_FROM, err);
}

ps_status ps_gpu_sample_kernel(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err) {
    double s = 0;
    ps_status status = ps_gpu_timer_sample(r, ps_gpu_run_calls, r->n_calls, &s, err);
    out->value = s / r->n_calls;
    return status;
}
