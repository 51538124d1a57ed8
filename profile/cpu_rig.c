/* Measurements on the CPUs of this machine.
 *
 * A sample of a kernel is a run of back-to-back instructions on the hot team, with a barrier before each and one
 * between phases, items handed out by the executor's rule: the time of one instruction in a step. Runs are long
 * enough (about 150 us) for the clock not to matter. */
#include "profile/cpu_rig.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "core/clock.h"
#include "kernels/kernel.h"
#include "machine/pool.h"
#include "machine/spread.h"
#include "profile/operands.h"
#include "profile/streams.h"

enum {
    SAMPLE_NS = 150000,
    LONG_NS = 5000000, /* such a call has warmed all it can */
    WARM_CALLS = 16,   /* of shorter ones: results come in as many sets */
    MAX_CALLS = 1024,  /* in one sample */
    MAX_PHASES = 8,
    BARRIERS = 200, /* where others need the CPUs each may cost a time slice */
    WAKES = 4,
    PROBES = 3,
    PROBE_ROUNDS = 10000, /* about 30 us */
    DRAM_CHUNK = 1 << 18,
    DRAM_CHUNKS_PER_THREAD = 64, /* in one sample: 16 MB per thread */
};
#define MIB ((uint64_t)1 << 20)

/* Of each thread: how often the system took its CPU away during a sample. On its own cache lines. */
typedef struct thread_note {
    _Alignas(128) uint64_t preempted;
    uint64_t sum; /* keeps reads alive */
    uint64_t probe_ns;
} thread_note;

struct ps_cpu_rig {
    const ps_machine *machine;
    ps_operands *operands;
    ps_cpu_level level;
    const ps_task *task;
    const ps_kernel *kernel;
    const ps_cpu_variant *variant;
    ps_pool **pools; /* [n_allowed + 1], made when first asked for */
    ps_pool *pool;   /* of the task */
    bool step_open;
    bool *verified; /* [kernels of the registry] */
    ps_spread *spreads;
    thread_note *notes;
    uint64_t call0; /* of the next sample: operands go on where the last one ended */
    uint32_t n_calls;
    uint8_t *stream_data; /* for streams and the DRAM ceiling */
    uint64_t stream_bytes, stream_at;
    ps_streams *streams;
    hwloc_bitmap_t free_cpus; /* where our own thread may run when no streams do; NULL: it was not bound */
    /* What a job leaves behind. */
    uint64_t job_ns;
    uint64_t beside_bytes;
};

uint64_t ps_cpu_cold_bytes(const ps_machine *m, const ps_model *model, bool quick) {
    /* Caches drop any line, not the oldest: of n times their size a share h still comes from them, 1 - h = 1 - exp(-n (1 - h)): 42% of 1.5, 20%
     * of 2, 6% of 3, 2% of 4 times. */
    uint64_t most = (quick ? 3 : 4) * m->l3_bytes;
    if (most < 256 * MIB)
        most = 256 * MIB;
    if (most > 2048 * MIB)
        most = 2048 * MIB;
    if (model && model->weight_bytes < most)
        most = model->weight_bytes > 16 * MIB ? model->weight_bytes : 16 * MIB;
    return most < m->memory_free_bytes / 4 ? most : m->memory_free_bytes / 4;
}

ps_status ps_cpu_rig_new(const ps_cpu_config *config, ps_cpu_rig **out, ps_error *err) {
    uint32_t n_kernels;
    ps_kernel_table(&n_kernels);
    *out = NULL;
    ps_cpu_rig *r = calloc(1, sizeof *r);
    if (!r)
        return ps_error_set(err, PS_E_NOMEM, "cpu", "no memory for the rig");
    r->machine = config->machine;
    r->level = ps_cpu_level_detect();
    const uint32_t n = config->machine->n_allowed;
    r->pools = calloc(n + 1, sizeof(ps_pool *));
    r->verified = calloc(n_kernels + 1, sizeof *r->verified);
    r->spreads = calloc((size_t)MAX_CALLS * MAX_PHASES, sizeof *r->spreads);
    r->notes = aligned_alloc(128, (size_t)n * sizeof *r->notes);
    ps_status st = r->pools && r->verified && r->spreads && r->notes
                       ? PS_OK
                       : ps_error_set(err, PS_E_NOMEM, "cpu", "no memory for the rig");
    if (st == PS_OK)
        st = ps_operands_new(config->cold_bytes ? config->cold_bytes
                                                : ps_cpu_cold_bytes(config->machine, config->model, false),
                             config->model, &r->operands, err);
    if (st != PS_OK)
        ps_cpu_rig_free(r);
    else
        *out = r;
    return st;
}

void ps_cpu_rig_free(ps_cpu_rig *r) {
    if (!r)
        return;
    ps_streams_stop(r->streams);
    hwloc_bitmap_free(r->free_cpus);
    if (r->stream_data)
        munmap(r->stream_data, r->stream_bytes);
    for (uint32_t i = 0; r->pools && i <= r->machine->n_allowed; i++)
        ps_pool_free(r->pools[i]);
    ps_operands_free(r->operands);
    free(r->pools);
    free(r->verified);
    free(r->spreads);
    free(r->notes);
    free(r);
}

static void cpu_describe(void *rig, ps_profile_topology *out, uint8_t machine_hash[PS_HASH_BYTES]) {
    const ps_cpu_rig *r = rig;
    const ps_machine *m = r->machine;
    *out = (ps_profile_topology){.n_packages = m->n_packages,
                                 .n_cores = m->n_cores,
                                 .n_threads = m->n_threads,
                                 .n_numa = m->n_numa,
                                 .n_p_cores = m->n_p_cores,
                                 .n_e_cores = m->n_e_cores,
                                 .l2_bytes = m->l2_bytes,
                                 .l3_bytes = m->l3_bytes,
                                 .memory_bytes = m->memory_bytes,
                                 .memlock_bytes = m->memlock_bytes,
                                 .cpu_quota = m->cpu_quota,
                                 .n_allowed = m->n_allowed};
    snprintf(out->cpu_model, sizeof out->cpu_model, "%s", m->cpu_model);
    snprintf(out->cpu_level, sizeof out->cpu_level, "%s", ps_cpu_level_name(r->level));
    ps_machine_hash(m, machine_hash);
}

static ps_status need_pool(ps_cpu_rig *r, uint32_t n_threads, ps_error *err) {
    if (n_threads <= r->machine->n_allowed && r->pools[n_threads]) {
        r->pool = r->pools[n_threads];
        return PS_OK;
    }
    ps_status st = ps_pool_new(r->machine, n_threads, &r->pool, err);
    if (st == PS_OK)
        r->pools[n_threads] = r->pool;
    return st;
}

static uint64_t preemptions(void) {
    struct rusage u;
    return getrusage(RUSAGE_THREAD, &u) == 0 ? (uint64_t)u.ru_nivcsw : 0;
}

/* All threads: n_calls instructions back to back. */
static void kernel_job(void *ctx, uint32_t thread) {
    ps_cpu_rig *r = ctx;
    const ps_cpu_variant *v = r->variant;
    ps_spread *spread = r->spreads;
    const uint64_t before = preemptions();
    ps_pool_barrier(r->pool, thread);
    uint64_t t0 = 0, beside = 0;
    if (thread == 0) {
        beside = r->streams ? ps_streams_bytes(r->streams) : 0;
        t0 = ps_clock_ns();
    }
    for (uint32_t c = 0; c < r->n_calls; c++) {
        ps_kargs a;
        ps_seq_span span;
        ps_operands_args(r->operands, r->call0 + c, &a, &span);
        ps_pool_barrier(r->pool, thread);
        bool behind = false; /* a phase that has items: the others take no barrier */
        for (uint32_t phase = 0; phase < v->n_phases; phase++, spread++) {
            const uint64_t n_items = v->n_items(&a, phase);
            uint64_t first, n;
            if (n_items == 0)
                continue;
            if (behind)
                ps_pool_barrier(r->pool, thread);
            behind = true;
            while (ps_spread_take(spread, n_items, a.n_threads, &first, &n))
                v->run(&a, phase, first, n, thread);
        }
    }
    ps_pool_barrier(r->pool, thread);
    if (thread == 0) {
        r->job_ns = ps_clock_ns() - t0;
        r->beside_bytes = r->streams ? ps_streams_bytes(r->streams) - beside : 0;
    }
    r->notes[thread].preempted = preemptions() - before;
}

static void run_kernel(ps_cpu_rig *r, uint32_t n_calls) {
    r->n_calls = n_calls;
    memset(r->spreads, 0, (size_t)n_calls * r->variant->n_phases * sizeof *r->spreads);
    ps_pool_run(r->pool, kernel_job, r);
    r->call0 += n_calls;
}

/* For ps_operands_verify: call 0, by the team. */
static void verify_run(void *ctx, const ps_kernel *kernel) {
    ps_cpu_rig *r = ctx;
    r->variant = ps_kernel_variant(kernel, r->level);
    r->call0 = 0;
    run_kernel(r, 1);
}

/* Streams beside a team of one, which the pool does not bind: keep to the first CPU, as they keep to the others. */
static ps_status keep_to_first_cpu(ps_cpu_rig *r, ps_error *err) {
    const hwloc_topology_t topo = r->machine->hwloc;
    hwloc_bitmap_t first = hwloc_bitmap_alloc();
    r->free_cpus = hwloc_bitmap_alloc();
    ps_status st =
        first && r->free_cpus ? PS_OK : ps_error_set(err, PS_E_NOMEM, "cpu", "no memory for a CPU set");
    if (st == PS_OK) {
        hwloc_bitmap_only(first, r->machine->cpus[0].os_index);
        /* Where binding is not possible the streams are not bound either. */
        if (hwloc_get_cpubind(topo, r->free_cpus, HWLOC_CPUBIND_THREAD) != 0 ||
            hwloc_set_cpubind(topo, first, HWLOC_CPUBIND_THREAD) != 0) {
            hwloc_bitmap_free(r->free_cpus);
            r->free_cpus = NULL;
        }
    }
    hwloc_bitmap_free(first);
    return st;
}

static ps_status prepare_kernel(ps_cpu_rig *r, const ps_task *task, ps_error *err) {
    uint32_t n_kernels;
    const ps_kernel *table = ps_kernel_table(&n_kernels);
    r->kernel = ps_kernel_find(task->point.kernel);
    if (!r->kernel || r->kernel->spec.device != PS_DEV_CPU)
        return ps_error_set(err, PS_E_INTERNAL, "cpu", "kernel %u is not in this build", task->point.kernel);
    r->variant = ps_kernel_variant(r->kernel, r->level);
    if (r->variant->n_phases > MAX_PHASES)
        return ps_error_set(err, PS_E_INTERNAL, r->kernel->spec.name, "has %u phases, more than %d",
                            r->variant->n_phases, MAX_PHASES);
    bool *verified = &r->verified[r->kernel - table];
    if (!*verified) {
        ps_status st = ps_operands_verify(r->operands, r->kernel, task->point.n_threads, verify_run, r, err);
        if (st != PS_OK)
            return st;
        *verified = true;
    }
    ps_status st = ps_operands_set(r->operands, r->kernel, &task->point, err);
    if (st != PS_OK)
        return st;
    if (task->point.beside == PS_BESIDE_MEMORY) {
        st = ps_streams_data(r->machine, &r->stream_data, &r->stream_bytes, err);
        const uint32_t n = r->machine->n_allowed - task->point.n_threads;
        if (st == PS_OK && n == 0)
            st = ps_error_set(err, PS_E_INTERNAL, r->kernel->spec.name, "no CPU left for memory streams");
        if (st == PS_OK)
            st = ps_streams_start(r->machine, task->point.n_threads, n, r->stream_data, r->stream_bytes,
                                  &r->streams, err);
        if (st == PS_OK && task->point.n_threads == 1)
            st = keep_to_first_cpu(r, err);
    }
    return st;
}

static ps_status cpu_prepare(void *rig, const ps_task *task, ps_error *err) {
    ps_cpu_rig *r = rig;
    r->task = task;
    r->call0 = 0;
    ps_status st = need_pool(r, task->point.n_threads, err);
    if (st == PS_OK && task->measure == PS_MEASURE_DRAM)
        st = ps_streams_data(r->machine, &r->stream_data, &r->stream_bytes, err);
    if (st == PS_OK && task->measure == PS_MEASURE_KERNEL)
        st = prepare_kernel(r, task, err);
    if (st != PS_OK || task->measure == PS_MEASURE_POOL_START)
        return st;
    ps_pool_step_begin(r->pool);
    r->step_open = true;
    if (task->measure == PS_MEASURE_KERNEL) {
        run_kernel(r, 1); /* warm-up: code, stacks, what sources and results take of the caches */
        const uint64_t warm = r->job_ns ? LONG_NS / r->job_ns : WARM_CALLS;
        if (warm > 0)
            run_kernel(r, warm < WARM_CALLS ? (uint32_t)warm : WARM_CALLS);
        r->job_ns /= warm > 0 ? r->n_calls : 1;
        const uint64_t calls = r->job_ns ? SAMPLE_NS / r->job_ns : MAX_CALLS;
        r->n_calls = calls < 1 ? 1 : calls > MAX_CALLS ? MAX_CALLS : (uint32_t)calls;
    }
    return PS_OK;
}

static void barrier_job(void *ctx, uint32_t thread) {
    ps_cpu_rig *r = ctx;
    const uint64_t before = preemptions();
    ps_pool_barrier(r->pool, thread);
    const uint64_t t0 = ps_clock_ns();
    for (int i = 0; i < BARRIERS; i++)
        ps_pool_barrier(r->pool, thread);
    if (thread == 0)
        r->job_ns = ps_clock_ns() - t0;
    r->notes[thread].preempted = preemptions() - before;
}

static void dram_job(void *ctx, uint32_t thread) {
    ps_cpu_rig *r = ctx;
    const uint64_t before = preemptions();
    const uint64_t n_chunks = r->stream_bytes / DRAM_CHUNK, n = r->task->point.n_threads;
    uint64_t sum = 0;
    ps_pool_barrier(r->pool, thread);
    const uint64_t t0 = ps_clock_ns();
    for (uint64_t i = 0; i < DRAM_CHUNKS_PER_THREAD; i++) {
        const uint64_t chunk = (r->stream_at + i * n + thread) % n_chunks;
        sum += ps_stream_read(r->stream_data + chunk * DRAM_CHUNK, DRAM_CHUNK);
    }
    ps_pool_barrier(r->pool, thread);
    if (thread == 0)
        r->job_ns = ps_clock_ns() - t0;
    r->notes[thread].sum = sum;
    r->notes[thread].preempted = preemptions() - before;
}

static void empty_job(void *ctx, uint32_t thread) {
    ps_cpu_rig *r = ctx;
    r->notes[thread].preempted = 0;
}

static ps_status cpu_sample(void *rig, ps_rig_sample *out, ps_error *err) {
    ps_cpu_rig *r = rig;
    const uint32_t n_threads = r->task->point.n_threads;
    *out = (ps_rig_sample){0};
    switch (r->task->measure) {
    case PS_MEASURE_KERNEL:
        run_kernel(r, r->n_calls);
        out->value = (double)r->job_ns * 1e-9 / r->n_calls;
        out->beside_bytes_per_s = r->job_ns ? (double)r->beside_bytes / ((double)r->job_ns * 1e-9) : 0;
        break;
    case PS_MEASURE_BARRIER:
        ps_pool_run(r->pool, barrier_job, r);
        out->value = ((double)r->job_ns + 0.5) * 1e-9 / BARRIERS; /* a team of one has nothing to wait for */
        break;
    case PS_MEASURE_DRAM:
        ps_pool_run(r->pool, dram_job, r);
        r->stream_at += (uint64_t)DRAM_CHUNKS_PER_THREAD * n_threads;
        out->value = (double)DRAM_CHUNKS_PER_THREAD * DRAM_CHUNK * n_threads / ((double)r->job_ns * 1e-9);
        break;
    case PS_MEASURE_POOL_START: {
        /* A wake-up waits for whatever else runs on that CPU, which no counter tells: the least of a few. */
        uint64_t least = UINT64_MAX;
        for (int i = 0; i < WAKES; i++) {
            const struct timespec pause = {.tv_nsec = 1000000}; /* long enough for the team to fall asleep */
            nanosleep(&pause, NULL);
            const uint64_t t0 = ps_clock_ns();
            ps_pool_step_begin(r->pool);
            ps_pool_run(r->pool, empty_job, r);
            const uint64_t t = ps_clock_ns() - t0;
            least = t < least ? t : least;
            ps_pool_step_end(r->pool);
        }
        out->value = (double)least * 1e-9;
        break;
    }
    default:
        return ps_error_set(err, PS_E_INTERNAL, "cpu", "not a measure of CPUs");
    }
    for (uint32_t t = 0; t < n_threads; t++)
        out->disturbed |= r->notes[t].preempted != 0;
    return PS_OK;
}

static void cpu_finish(void *rig) {
    ps_cpu_rig *r = rig;
    if (r->task && r->task->measure == PS_MEASURE_KERNEL)
        ps_operands_used(r->operands, r->call0);
    if (r->step_open)
        ps_pool_step_end(r->pool);
    r->step_open = false;
    ps_streams_stop(r->streams);
    r->streams = NULL;
    if (r->free_cpus)
        hwloc_set_cpubind(r->machine->hwloc, r->free_cpus, HWLOC_CPUBIND_THREAD);
    hwloc_bitmap_free(r->free_cpus);
    r->free_cpus = NULL;
}

/* Chains of multiplications side by side: their time is cycles over clock, and more where somebody shares the core. */
static void probe_job(void *ctx, uint32_t thread) {
    ps_cpu_rig *r = ctx;
    uint64_t best = UINT64_MAX;
    for (int k = 0; k < PROBES; k++) {
        const uint64_t t0 = ps_clock_ns();
        uint64_t x[8];
        for (uint64_t c = 0; c < 8; c++)
            x[c] = t0 + c;
        for (int i = 0; i < PROBE_ROUNDS; i++)
            for (int c = 0; c < 8; c++)
                x[c] = x[c] * 0x9e3779b97f4a7c15u + 1;
        for (int c = 0; c < 8; c++)
            r->notes[thread].sum += x[c];
        const uint64_t t = ps_clock_ns() - t0;
        best = t < best ? t : best;
    }
    r->notes[thread].probe_ns = best;
}

/* On all threads at once: the slowest of them, each at its best. */
static double cpu_clock_probe(void *rig) {
    ps_cpu_rig *r = rig;
    uint32_t n = r->machine->n_allowed;
    ps_pool *before = r->pool;
    if (need_pool(r, n, NULL) == PS_OK) {
        ps_pool_run(r->pool, probe_job, r);
    } else { /* a machine that is short of threads says so when one is needed */
        n = 1;
        probe_job(r, 0);
    }
    r->pool = before;
    uint64_t slowest = 0;
    for (uint32_t t = 0; t < n; t++)
        slowest = r->notes[t].probe_ns > slowest ? r->notes[t].probe_ns : slowest;
    return (double)slowest * 1e-9;
}

static uint64_t cpu_now(void *rig) {
    (void)rig;
    return ps_clock_ns();
}

const ps_rig_ops ps_cpu_rig_ops = {
    .name = "cpu",
    .synthetic = false,
    .describe = cpu_describe,
    .prepare = cpu_prepare,
    .sample = cpu_sample,
    .finish = cpu_finish,
    .clock_probe = cpu_clock_probe,
    .now_ns = cpu_now,
};
