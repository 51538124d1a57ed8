/* The executor of the CPU queue: the whole team walks the operations of a pass together, takes items of
 * each phase, and meets at barriers only where the program says that something must be finished. */
#include "core/clock.h"
#include "runtime-min/engine_internal.h"

/* Rows of tile `tile` of a step: tiles are PS_TILE_TOKENS long, the last one shorter. */
static uint32_t tile_rows(const ps_run_step *step, uint32_t tile) {
    uint32_t row0 = tile * PS_TILE_TOKENS;
    uint32_t left = step->n_tokens - row0;
    return left < PS_TILE_TOKENS ? left : PS_TILE_TOKENS;
}

/* The parts of the step's sequences that lie in [row0, row0 + n_rows), with this layer's caches. */
static uint32_t layer_spans(const ps_engine *e, const ps_run_step *step, uint32_t layer, uint32_t row0,
                            uint32_t n_rows, ps_seq_span *out) {
    const ps_kv_home *home = &e->level->kv[layer];
    const ps_layer *l = &e->model->layers[layer];
    uint64_t k_bytes = (home->rows * l->n_head_kv * l->head_dim_k * 2 + 63) & ~(uint64_t)63;
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_spans; i++) {
        const ps_seq_span *s = &step->spans[i];
        uint32_t begin = s->row0 > row0 ? s->row0 : row0;
        uint32_t end = s->row0 + s->n_rows < row0 + n_rows ? s->row0 + s->n_rows : row0 + n_rows;
        if (begin >= end)
            continue;
        uint8_t *k = e->host_arena + home->offset + home->bytes * step->span_slot[i];
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
    *a = op->args;
    uint32_t row0 = 0;
    if (op->rows == PS_ROWS_OUTPUTS) {
        a->n_tokens = step->n_outputs;
        a->outputs = step->outputs;
        a->samplers = step->samplers;
        return op->instr->op != PS_OP_SAMPLE || step->wants_sample;
    }
    if (step->n_tiles > 1) {
        row0 = tile * PS_TILE_TOKENS;
        a->n_tokens = tile_rows(step, tile);
        for (int i = 0; i < PS_OP_MAX_SRC; i++)
            if (a->src[i].data != NULL && op->src_rows[i] == PS_ROWS_STEP)
                a->src[i].data = (uint8_t *)a->src[i].data + row0 * a->src[i].row_bytes;
        if (a->dst.data != NULL && op->dst_rows == PS_ROWS_STEP)
            a->dst.data = (uint8_t *)a->dst.data + row0 * a->dst.row_bytes;
    } else {
        a->n_tokens = step->n_tokens;
    }
    a->tokens = step->tokens + row0;
    a->positions = step->positions + row0;
    if (op->instr->op == PS_OP_KV_STORE || op->instr->op == PS_OP_ATTENTION) {
        a->n_spans = layer_spans(e, step, op->layer, row0, a->n_tokens, spans);
        a->spans = spans;
    }
    return true;
}

typedef struct team_job {
    ps_engine *engine;
    const ps_run_step *step;
    uint64_t start_ns;
} team_job;

/* All threads: one op. `spread` is the op's first; an op uses one per phase. Phases without items take no barrier. */
static void run_op(ps_pool *pool, const ps_run_op *op, const ps_kargs *a, ps_spread *spread,
                   uint32_t thread) {
    bool behind = false; /* a phase that has items */
    for (uint32_t phase = 0; phase < op->variant->n_phases; phase++) {
        uint64_t n_items = op->variant->n_items(a, phase), first, n;
        if (n_items == 0)
            continue;
        if (behind)
            ps_pool_barrier(pool, thread);
        behind = true;
        while (ps_spread_take(&spread[phase], n_items, a->n_threads, &first, &n))
            op->variant->run(a, phase, first, n, thread);
    }
}

static void team_run(void *ctx, uint32_t thread) {
    const team_job *job = ctx;
    ps_engine *e = job->engine;
    const ps_run_step *step = job->step;
    ps_seq_span *spans = e->thread_spans + (uint64_t)thread * e->info.n_sessions;
    ps_spread *spread = e->spreads;
    uint64_t *event = e->tracing ? e->event_ns + 2 * (thread * e->n_events + step->event0) : NULL;
    for (uint32_t s = step->segment0; s < step->segment_end; s++) {
        const ps_run_segment *seg = &step->tier->segments[s];
        uint32_t n_tiles = seg->over_tiles ? step->n_tiles : 1;
        for (uint32_t tile = 0; tile < n_tiles; tile++) {
            for (uint32_t i = 0; i < seg->n_ops; i++) {
                const ps_run_op *op = &step->tier->ops[seg->op0 + i];
                ps_kargs a;
                bool due = ps_run_op_args(e, step, op, tile, &a, spans);
                if (op->barrier)
                    ps_pool_barrier(e->pool, thread);
                if (event != NULL)
                    event[0] = ps_clock_ns() - job->start_ns;
                if (due)
                    run_op(e->pool, op, &a, spread, thread);
                if (event != NULL) {
                    event[1] = ps_clock_ns() - job->start_ns;
                    event += 2;
                }
                spread += op->variant->n_phases;
            }
        }
    }
}

void ps_engine_run(ps_engine *e, ps_run_step *step) {
    uint64_t n = ps_run_n_phases(step->tier, step->segment0, step->segment_end, step->n_tiles);
    for (uint64_t i = 0; i < n; i++)
        e->spreads[i].next = 0;
    team_job job = {e, step, e->trace_step_ns};
    ps_pool_run(e->pool, team_run, &job);
}
