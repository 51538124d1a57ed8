/* The executor of a pass. The whole team walks the CPU's entries together, takes items of each phase, meets at barriers
 * only where the schedule says that something must be finished, and waits for points of the device. Thread 0 enqueues the
 * device's entries meanwhile, or has launched them all as a graph before.
 *
 * A pass may end early (an error, a change of level): thread 0 says so, the others leave at their next look. */
#include <time.h>

#include "core/clock.h"
#include "runtime-min/engine_internal.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#else
#define PAUSE() ((void)0)
#endif

uint32_t ps_run_tile_rows(const ps_run_step *step, uint32_t tile) {
    uint32_t row0 = tile * PS_TILE_TOKENS;
    uint32_t left = step->n_tokens - row0;
    return left < PS_TILE_TOKENS ? left : PS_TILE_TOKENS;
}

uint32_t ps_run_spans(const ps_engine *e, const ps_run_step *step, uint32_t layer, uint8_t *kv, uint32_t row0,
                      uint32_t n_rows, ps_seq_span *out) {
    const ps_kv_home *home = &e->level->kv[layer]; /* a slot has the same layout */
    const ps_layer *l = &e->model->layers[layer];
    uint64_t k_bytes = (home->rows * l->n_head_kv * l->head_dim_k * 2 + 63) & ~(uint64_t)63;
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_spans; i++) {
        const ps_seq_span *s = &step->spans[i];
        uint32_t begin = s->row0 > row0 ? s->row0 : row0;
        uint32_t end = s->row0 + s->n_rows < row0 + n_rows ? s->row0 + s->n_rows : row0 + n_rows;
        if (begin >= end)
            continue;
        uint8_t *k = kv + home->bytes * step->span_slot[i];
        out[n++] = (ps_seq_span){.row0 = begin - row0,
                                 .n_rows = end - begin,
                                 .pos0 = s->pos0 + (begin - s->row0),
                                 .kv_rows = (uint32_t)home->rows,
                                 .k = (uint16_t *)(void *)k,
                                 .v = (uint16_t *)(void *)(k + k_bytes)};
    }
    return n;
}

bool ps_run_op_args(const ps_engine *e, const ps_run_step *step, const ps_run_op *op, uint32_t tile,
                    ps_kargs *a, ps_seq_span *spans) {
    const bool on_cpu = op->instr->queue == PS_QUEUE_CPU;
    *a = op->args;
    if (op->rows == PS_ROWS_OUTPUTS) {
        a->n_tokens = step->n_outputs;
        a->outputs = on_cpu ? step->outputs
                            : (const uint32_t *)(const void *)(e->run.d_block + e->run.at_outputs) +
                                  step->first_output;
        a->samplers = step->samplers;
        return op->instr->op != PS_OP_SAMPLE || step->wants_sample;
    }
    uint32_t row0 = 0;
    a->n_tokens = step->n_tokens;
    if (step->n_tiles > 1) {
        row0 = tile * PS_TILE_TOKENS;
        a->n_tokens = ps_run_tile_rows(step, tile);
        for (int i = 0; i < PS_OP_MAX_SRC; i++)
            if (a->src[i].data != NULL && op->src_rows[i] == PS_ROWS_STEP)
                a->src[i].data = (uint8_t *)a->src[i].data + row0 * a->src[i].row_bytes;
        if (a->dst.data != NULL && op->dst_rows == PS_ROWS_STEP)
            a->dst.data = (uint8_t *)a->dst.data + row0 * a->dst.row_bytes;
    }
    a->tokens = step->tokens + row0;
    a->positions =
        (on_cpu ? step->positions : (const uint32_t *)(const void *)(e->run.d_block + e->run.at_positions)) +
        row0;
    if (op->kv == NULL || op->kind != PS_RUN_KERNEL)
        return true;
    if (on_cpu) {
        a->n_spans = ps_run_spans(e, step, op->layer, op->kv, row0, a->n_tokens, spans);
        a->spans = spans;
    } else { /* made for all layers when the pass began; spans outside of the tile have no rows */
        a->n_spans = step->n_spans;
        a->spans = (const ps_seq_span *)(const void *)(e->run.d_block + e->run.at_spans) +
                   ((uint64_t)tile * step->tier->n_span_sets + op->span_set) * step->n_spans;
    }
    return true;
}

typedef struct team_job {
    ps_engine *engine;
    const ps_run_step *step;
    uint64_t start_ns;
    uint32_t n_threads; /* that walk it */
    bool has_device;
} team_job;

void ps_engine_abort(ps_engine *e, int why, const ps_error *err) {
    if (__atomic_load_n(&e->abort, __ATOMIC_RELAXED) != PS_ABORT_NONE)
        return;
    if (err != NULL)
        e->abort_err = *err;
    __atomic_store_n(&e->abort, why, __ATOMIC_RELEASE);
    if (e->has_device)
        ps_device_poison(e->run.device);
    if (e->in_team)
        ps_pool_abandon(e->pool);
}

static bool aborted(const ps_engine *e) {
    return __atomic_load_n(&e->abort, __ATOMIC_ACQUIRE) != PS_ABORT_NONE;
}

/* Until the device has come to a point of this pass. Thread 0 looks after the device meanwhile. Where it takes long, as in
 * long steps, waiting lets others have the core. */
static void wait_point(ps_engine *e, uint32_t point, uint32_t thread) {
    enum { SPINS = 64, NAP_NS = 50000 };
    const uint64_t *flag = ps_device_flag(e->run.device, PS_FLAG_GPU), want = e->run.base + point;
    uint64_t start_ns = 0;
    for (uint32_t spins = 1; __atomic_load_n(flag, __ATOMIC_ACQUIRE) < want && !aborted(e); spins++) {
        PAUSE();
        if (spins % SPINS != 0)
            continue;
        if (thread == 0)
            ps_device_pass_look(e);
        uint64_t now = ps_clock_ns();
        start_ns = start_ns == 0 ? now : start_ns;
        if (now - start_ns > e->run.spin_ns)
            nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
}

static void meet(const team_job *job, uint32_t thread) {
    if (job->n_threads > 1)
        ps_pool_barrier(job->engine->pool, thread);
}

/* All threads: one op. `spread` is the op's first; an op uses one per phase. Phases without items take no barrier. */
static void run_op(const team_job *job, const ps_run_op *op, const ps_kargs *a, ps_spread *spread,
                   uint32_t thread) {
    bool behind = false; /* a phase that has items */
    for (uint32_t phase = 0; phase < op->variant->n_phases; phase++) {
        uint64_t n_items = op->variant->n_items(a, phase), first, n;
        if (n_items == 0)
            continue;
        if (behind) {
            meet(job, thread);
            if (aborted(job->engine))
                return;
        }
        behind = true;
        while (ps_spread_take(&spread[phase], n_items, a->n_threads, &first, &n))
            op->variant->run(a, phase, first, n, thread);
    }
}

static void team_run(void *ctx, uint32_t thread) {
    const team_job *job = ctx;
    ps_engine *e = job->engine;
    const ps_run_step *step = job->step;
    const ps_run_schedule *s = step->schedule;
    ps_seq_span *spans = e->thread_spans + (uint64_t)thread * e->info.n_sessions;
    uint64_t *events = e->tracing ? e->event_ns + 2 * thread * e->n_events : NULL;
    for (uint32_t k = step->cpu_begin; k < step->cpu_end && !aborted(e); k++) {
        const ps_run_entry *entry = &s->cpu[k];
        const ps_run_op *op = &step->tier->ops[entry->op];
        ps_kargs a;
        if (thread == 0) {
            if (job->has_device)
                ps_device_pass_pump(e, step, entry->index);
            if (ps_engine_must_stop(e))
                ps_engine_abort(e, PS_ABORT_STOP, NULL);
            e->no_stop |= op->instr->op == PS_OP_SAMPLE;
        }
        bool due = ps_run_op_args(e, step, op, entry->tile, &a, spans);
        if (entry->barrier)
            meet(job, thread);
        if (entry->await > step->dev_point0)
            wait_point(e, entry->await, thread);
        if (aborted(e))
            break;
        if (events != NULL)
            events[2 * entry->index] = ps_clock_ns() - job->start_ns;
        if (due)
            run_op(job, op, &a, e->spreads + entry->spread, thread);
        if (events != NULL)
            events[2 * entry->index + 1] = ps_clock_ns() - job->start_ns;
        if (entry->point != 0 &&
            __atomic_add_fetch(&e->point_done[entry->point - 1], 1, __ATOMIC_ACQ_REL) == job->n_threads)
            __atomic_store_n(ps_device_flag(e->run.device, PS_FLAG_CPU), e->run.base + entry->point,
                             __ATOMIC_RELEASE);
    }
    if (thread == 0 && job->has_device)
        ps_device_pass_end(e, step);
}

ps_status ps_engine_run(ps_engine *e, ps_run_step *step, ps_error *err) {
    const ps_run_schedule *s = step->schedule;
    for (uint32_t i = 0; i < s->n_spreads; i++)
        e->spreads[i].next = 0;
    for (uint32_t i = 0; i < s->cpu_points; i++)
        e->point_done[i] = 0;
    __atomic_store_n(&e->abort, PS_ABORT_NONE, __ATOMIC_RELEASE);
    team_job job = {.engine = e,
                    .step = step,
                    .start_ns = e->trace_step_ns,
                    .n_threads = e->info.n_threads,
                    .has_device = step->dev_begin != step->dev_end};
    ps_status status = job.has_device ? ps_device_pass_begin(e, step, err) : PS_OK;
    if (status != PS_OK) {
        if (ps_device_pass_drain(e, NULL) != PS_OK)
            e->broken = true;
        return status;
    }
    if (step->tier->has_device && step->tier->light_cpu && step->n_tokens <= PS_RUN_GRAPH_TOKENS) {
        job.n_threads = 1; /* little to do: the others need not wake up */
        team_run(&job, 0);
    } else {
        e->in_team = job.n_threads > 1;
        ps_pool_run(e->pool, team_run, &job);
        e->in_team = false;
    }
    if (e->abort == PS_ABORT_NONE)
        return PS_OK;
    ps_error drain = {0};
    if (ps_device_pass_drain(e, &drain) != PS_OK)
        e->broken = true;
    if (e->abort == PS_ABORT_STOP && !e->broken)
        return PS_OK;
    if (err != NULL)
        *err = e->abort == PS_ABORT_STOP ? drain : e->abort_err;
    return e->abort == PS_ABORT_STOP ? drain.status : e->abort_err.status;
}
