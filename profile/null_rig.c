/* A made-up machine. Truth: an instruction takes as long as the slower of its bytes at the memory's rate and its
 * FLOPs at the threads' rate, plus a barrier; beside memory streams the rates are lower. */
#include "profile/null_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "profile/grid.h"

enum { DEFAULT_THREADS = 8 };
static const double dram_one_bytes_per_s = 9e9, dram_all_bytes_per_s = 38e9, flops_one_per_s = 45e9;
static const double barrier_base_s = 180e-9, barrier_thread_s = 35e-9, pool_start_s = 12e-6;
static const double contended_frac = 0.62,
                    beside_frac = 0.55; /* what kernel and stream keep of their rates */
static const double sample_least_s = 200e-6, prepare_s = 1e-3;

struct ps_null_rig {
    ps_null_config config;
    const ps_task *task;
    uint64_t rng, now_ns, n_samples, n_prepares;
};

static uint64_t next_u64(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* In (0, 1). */
static double next_unit(uint64_t *state) {
    return ((double)(next_u64(state) >> 12) + 0.5) / 4503599627370496.0;
}

static double next_normal(uint64_t *state) { /* Box-Muller */
    const double r = sqrt(-2 * log(next_unit(state)));
    return r * cos(6.283185307179586 * next_unit(state));
}

ps_status ps_null_rig_new(const ps_null_config *config, ps_null_rig **out, ps_error *err) {
    ps_null_rig *r = calloc(1, sizeof *r);
    *out = r;
    if (!r)
        return ps_error_set(err, PS_E_NOMEM, "null", "no memory for the null rig");
    r->config = *config;
    if (r->config.n_threads == 0)
        r->config.n_threads = DEFAULT_THREADS;
    return PS_OK;
}

void ps_null_rig_free(ps_null_rig *rig) {
    free(rig);
}

uint64_t ps_null_samples(const ps_null_rig *rig) {
    return rig->n_samples;
}

/* The made-up GPU: bus, memory, arithmetic, and what small things cost. */
static const double bus_bytes_per_s = 25e9, hbm_bytes_per_s = 400e9, gpu_flops_per_s = 60e12,
                    copy_start_s = 4e-6, bus_keep_frac = 0.9, dram_keep_frac = 0.8, gpu_kernel_s = 2e-6,
                    gpu_beside_times = 1.08;
enum { NULL_BASE_MIB = 480 };

static double gpu_truth(const ps_task *t, double *beside) {
    const double dram = dram_one_bytes_per_s * t->point.n_threads;
    switch (t->measure) {
    case PS_MEASURE_COPY: {
        const double kept = t->kind == PS_HOST_KIND_PAGEABLE ? 0.3 : t->kind == PS_HOST_KIND_STAGED ? 0.6 : 1;
        return (double)t->bytes / (copy_start_s + (double)t->bytes / (kept * bus_bytes_per_s));
    }
    case PS_MEASURE_TOGETHER:
        *beside = dram_keep_frac * fmin(dram, dram_all_bytes_per_s);
        return bus_keep_frac * bus_bytes_per_s;
    case PS_MEASURE_PACED: /* a bus that is not full keeps its pace, and takes less of the readers' */
        *beside =
            (1 - (1 - dram_keep_frac) * t->share_frac * t->share_frac) * fmin(dram, dram_all_bytes_per_s);
        return t->share_frac * bus_bytes_per_s;
    case PS_MEASURE_HBM:
        return hbm_bytes_per_s;
    case PS_MEASURE_LAUNCH:
        return 4e-6;
    case PS_MEASURE_GRAPH_NODE:
        return 1e-6;
    case PS_MEASURE_GRAPH_LAUNCH:
        return 3e-6;
    case PS_MEASURE_EVENT_WAIT:
    case PS_MEASURE_TO_CPU:
    case PS_MEASURE_TO_GPU:
        return 2e-6;
    case PS_MEASURE_LOCK:
        return 20e9;
    case PS_MEASURE_MAP:
        return 7e-5;
    case PS_MEASURE_UNMAP:
        return 5e-5;
    case PS_MEASURE_EVENT_RECORD:
        return 1e-6;
    case PS_MEASURE_LEVEL:
        return 12e9;
    case PS_MEASURE_HBM_FULL:
        return hbm_bytes_per_s;
    default:
        return 0;
    }
}

static double dram_bytes_per_s(uint32_t n_threads) {
    return fmin(dram_one_bytes_per_s * n_threads, dram_all_bytes_per_s);
}

double ps_null_truth(const ps_null_rig *rig, const ps_task *task, double *out_beside_bytes_per_s) {
    const ps_profile_point *p = &task->point;
    const double barrier_s = p->n_threads > 1 ? barrier_base_s + barrier_thread_s * p->n_threads : 5e-9;
    double beside = 0, value = 0;
    switch (task->measure) {
    case PS_MEASURE_DRAM:
        value = dram_bytes_per_s(p->n_threads);
        break;
    case PS_MEASURE_BARRIER:
        value = barrier_s;
        break;
    case PS_MEASURE_POOL_START:
        value = pool_start_s;
        break;
    case PS_MEASURE_KERNEL:
    case PS_MEASURE_COUNT: {
        const ps_kernel_spec *k = NULL;
        for (uint32_t i = 0; i < rig->config.n_kernels && !k; i++)
            if (rig->config.kernels[i].id == p->kernel)
                k = &rig->config.kernels[i];
        if (!k)
            break;
        double bytes, flops;
        ps_point_work(k, p, &bytes, &flops);
        if (k->device == PS_DEV_CUDA) {
            value = fmax(bytes / (p->beside == PS_BESIDE_DIRECT ? bus_bytes_per_s : hbm_bytes_per_s),
                         flops / gpu_flops_per_s) +
                    gpu_kernel_s;
            if (p->beside == PS_BESIDE_H2D || p->beside == PS_BESIDE_D2H) {
                value *= gpu_beside_times;
                beside = bus_keep_frac * bus_bytes_per_s;
            }
            break;
        }
        /* Each type has a speed of its own, so that a mix-up of kernels shows. */
        const double type_frac = 0.6 + 0.4 * (double)((k->id * 2654435761u) >> 24) / 255;
        const double keep = p->beside == PS_BESIDE_IDLE ? 1 : contended_frac;
        beside = p->beside == PS_BESIDE_IDLE ? 0 : beside_frac * dram_one_bytes_per_s;
        value = fmax(bytes / (dram_bytes_per_s(p->n_threads) * keep),
                     flops / (flops_one_per_s * type_frac * p->n_threads)) +
                barrier_s;
        break;
    }
    default:
        value = gpu_truth(task, &beside);
        break;
    }
    if (out_beside_bytes_per_s)
        *out_beside_bytes_per_s = beside;
    return value;
}

static void null_describe(void *rig, ps_profile_topology *out, uint8_t machine_hash[PS_HASH_BYTES]) {
    const ps_null_rig *r = rig;
    const uint32_t n = r->config.n_threads;
    memset(out, 0, sizeof *out);
    snprintf(out->cpu_model, sizeof out->cpu_model, "null device, %u threads", n);
    out->n_packages = out->n_numa = 1;
    out->n_cores = out->n_threads = out->n_p_cores = out->n_allowed = n;
    out->l2_bytes = 1 << 20;
    out->l3_bytes = 32 << 20;
    out->memory_bytes = (uint64_t)32 << 30;
    out->memlock_bytes = UINT64_MAX;
    snprintf(out->cpu_level, sizeof out->cpu_level, "generic");
    ps_hash_bytes(out->cpu_model, strlen(out->cpu_model), machine_hash);
}

static void null_describe_gpu(void *rig, ps_profile_gpu *out) {
    const ps_null_rig *r = rig;
    if (!r->config.gpu)
        return;
    *out = (ps_profile_gpu){.cc_major = 8,
                            .cc_minor = 9,
                            .n_multiprocessors = 46,
                            .vram_bytes = (uint64_t)12 << 30,
                            .l2_bytes = 36 << 20,
                            .pcie_gen = 4,
                            .pcie_width = 16,
                            .base_bytes = (uint64_t)NULL_BASE_MIB << 20};
    snprintf(out->name, sizeof out->name, "null GPU");
    snprintf(out->uuid, sizeof out->uuid, "GPU-null");
    snprintf(out->meter, sizeof out->meter, "emulated");
    snprintf(out->timer_reason, sizeof out->timer_reason, "a made-up GPU");
}

static ps_status null_prepare(void *rig, const ps_task *task, ps_error *err) {
    (void)err;
    ps_null_rig *r = rig;
    r->task = task;
    r->now_ns += (uint64_t)(prepare_s * 1e9);
    /* The noise of a task depends on the task and on when it is visited. */
    uint8_t h[PS_HASH_BYTES];
    ps_profile_point key = task->point;
    memset(&key.time_s, 0, sizeof key.time_s);
    char text[256];
    const int n =
        snprintf(text, sizeof text, "%u|%u|%llu|%llu|%u|%llu|%u|%u|%u|%llu|%u|%u|%llu|%llu", task->measure,
                 key.kernel, (unsigned long long)key.rows, (unsigned long long)key.cols, key.heads_kv,
                 (unsigned long long)key.kv_len, key.n_tokens, key.n_threads, key.beside,
                 (unsigned long long)r->config.seed, task->bus, task->kind, (unsigned long long)task->bytes,
                 (unsigned long long)r->n_prepares++);
    ps_hash_bytes(text, (uint64_t)n, h);
    memcpy(&r->rng, h, sizeof r->rng);
    return PS_OK;
}

/* How many times slower everything is at this moment. */
static double busy(const ps_null_rig *r) {
    const ps_null_config *c = &r->config;
    if (!(c->busy_period_s > 0))
        return 1;
    return fmod((double)r->now_ns * 1e-9, c->busy_period_s) < c->busy_frac * c->busy_period_s ? c->busy_times
                                                                                              : 1;
}

static ps_status null_sample(void *rig, ps_rig_sample *out, ps_error *err) {
    ps_null_rig *r = rig;
    if (r->config.fail_after != 0 && r->n_samples >= r->config.fail_after)
        return ps_error_set(err, PS_E_OS, "null", "failed after %llu samples, as asked",
                            (unsigned long long)r->n_samples);
    r->n_samples++;
    double beside;
    const double truth = ps_null_truth(r, r->task, &beside);
    double factor = busy(r) * exp(r->config.noise_frac * next_normal(&r->rng));
    const double u = next_unit(&r->rng);
    if (u < r->config.outlier_frac) {
        factor *= 1.5 + 3.5 * next_unit(&r->rng);
    } else if (u < r->config.outlier_frac + r->config.disturbed_frac) {
        factor *= 1.2 + 1.8 * next_unit(&r->rng);
        out->disturbed = true;
    }
    /* Rates fall where times grow. */
    const ps_measure m = r->task->measure;
    const bool rate = m == PS_MEASURE_DRAM || m == PS_MEASURE_COPY || m == PS_MEASURE_TOGETHER ||
                      m == PS_MEASURE_PACED || m == PS_MEASURE_HBM || m == PS_MEASURE_LOCK ||
                      m == PS_MEASURE_LEVEL || m == PS_MEASURE_HBM_FULL;
    out->value = rate ? truth / factor : truth * factor;
    out->beside_bytes_per_s = beside * exp(r->config.noise_frac * next_normal(&r->rng));
    r->now_ns += (uint64_t)(fmax(rate ? sample_least_s : out->value, sample_least_s) * 1e9);
    return PS_OK;
}

static void null_finish(void *rig) {
    ps_null_rig *r = rig;
    r->task = NULL;
}

static double null_clock_probe(void *rig) {
    ps_null_rig *r = rig;
    r->now_ns += 200000;
    return 1e-4 * (r->config.busy_clock ? busy(r) : 1);
}

static uint64_t null_now(void *rig) {
    return ((const ps_null_rig *)rig)->now_ns;
}

const ps_rig_ops ps_null_rig_ops = {
    .name = "null",
    .synthetic = true,
    .describe = null_describe,
    .describe_gpu = null_describe_gpu,
    .prepare = null_prepare,
    .sample = null_sample,
    .finish = null_finish,
    .clock_probe = null_clock_probe,
    .now_ns = null_now,
};
