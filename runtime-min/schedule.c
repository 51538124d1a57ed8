/* The order of a tier's instructions, worked out once: for a number of tiles the stream is expanded, and each instruction
 * that runs gets what it must wait for, no more.
 *
 * What has ended is known as one number per queue: everything of that queue before an index of the stream. On queues gpu,
 * h2d and d2h an instruction ends before the next one starts. On queue cpu they may overlap, but all threads walk it in
 * order, so once the last of them has come to the end of an instruction, all before it have ended too. */
#include <stdlib.h>
#include <string.h>

#include "runtime-min/engine_internal.h"

#define NOWHERE UINT32_MAX

typedef struct known {
    uint32_t before[PS_QUEUE_COUNT]; /* instructions of the queue below this index have ended */
} known;

typedef struct item {
    uint32_t op, tile, entry; /* entry: in its list, NOWHERE: it does not run */
    uint32_t last;            /* the instruction at or before it in its queue that runs, NOWHERE: none */
    ps_queue queue;
    known end; /* once it has ended, this is known to have ended */
} item;

typedef struct builder {
    const ps_run_tier *t;
    ps_run_schedule *s;
    item *items;
    known now[PS_QUEUE_COUNT]; /* what is known to have ended when the next one of a queue starts */
    uint32_t last[PS_QUEUE_COUNT];
    uint32_t last_scratch; /* latest instruction of queue cpu that uses scratch */
    uint32_t *
        awaited; /* [entries, cpu then dev] index of the awaited instruction of the other side, NOWHERE: none */
} builder;

static void merge(known *into, const known *from) {
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        if (from->before[q] > into->before[q])
            into->before[q] = from->before[q];
}

static bool uses_scratch(const ps_run_op *op) {
    const ps_scratch_coef *c = &op->kernel->spec.scratch;
    return (c->base | c->per_token | c->per_token_col | c->per_col | c->per_thread | c->per_thread_col |
            c->per_token_col_chunk) != 0;
}

static ps_run_entry *entry_of(const builder *b, uint32_t index) {
    const item *it = &b->items[index];
    return it->queue == PS_QUEUE_CPU ? &b->s->cpu[it->entry] : &b->s->dev[it->entry];
}

/* Instructions that must have ended before item i, the latest of each queue; NOWHERE: none. */
static void find_needs(const builder *b, uint32_t i, uint32_t need[PS_QUEUE_COUNT]) {
    const ps_run_op *op = &b->t->ops[b->items[i].op];
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        need[q] = NOWHERE;
    for (uint32_t w = 0; w < op->instr->n_waits; w++) {
        if (op->instr->wait[w] > i)
            continue; /* before the stream */
        const item *target = &b->items[i - op->instr->wait[w]];
        if (target->last == NOWHERE)
            continue;
        uint32_t *n = &need[target->queue];
        if (*n == NOWHERE || target->last > *n)
            *n = target->last;
    }
    if (op->instr->queue == PS_QUEUE_CPU && uses_scratch(op) && b->last_scratch != NOWHERE &&
        (need[PS_QUEUE_CPU] == NOWHERE || need[PS_QUEUE_CPU] < b->last_scratch))
        need[PS_QUEUE_CPU] = b->last_scratch;
}

/* Needs that are known to be met, or are met once another one is, are dropped. */
static void reduce_needs(const builder *b, const known *now, uint32_t need[PS_QUEUE_COUNT]) {
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        if (need[q] != NOWHERE && need[q] < now->before[q])
            need[q] = NOWHERE;
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        for (int other = 0; other < PS_QUEUE_COUNT && need[q] != NOWHERE; other++)
            if (other != q && need[other] != NOWHERE && b->items[need[other]].end.before[q] > need[q])
                need[q] = NOWHERE;
}

static void add_cpu(builder *b, uint32_t i, uint32_t need[PS_QUEUE_COUNT]) {
    const ps_run_op *op = &b->t->ops[b->items[i].op];
    ps_run_entry *e = &b->s->cpu[b->items[i].entry];
    known *now = &b->now[PS_QUEUE_CPU];
    for (int q = PS_QUEUE_CPU + 1; q < PS_QUEUE_COUNT; q++) {
        if (need[q] == NOWHERE)
            continue;
        /* All points of the device are made on one stream, in stream order: the latest stands for all. */
        uint32_t *latest = &b->awaited[b->items[i].entry];
        if (*latest == NOWHERE || need[q] > *latest)
            *latest = need[q];
        entry_of(b, need[q])->point = 1;
        merge(now, &b->items[need[q]].end);
    }
    if (need[PS_QUEUE_CPU] != NOWHERE && need[PS_QUEUE_CPU] >= now->before[PS_QUEUE_CPU]) {
        e->barrier = true;
        now->before[PS_QUEUE_CPU] = i;
    }
    if (op->instr->op == PS_OP_SAMPLE) { /* from here on a step cannot be given up: thread 0 says so first */
        e->barrier = true;
        now->before[PS_QUEUE_CPU] = i;
    }
    e->spread = b->s->n_spreads;
    b->s->n_spreads += op->variant->n_phases;
    b->items[i].end = *now;
    b->items[i].end.before[PS_QUEUE_CPU] = i + 1;
    if (uses_scratch(op))
        b->last_scratch = i;
}

static void add_dev(builder *b, uint32_t i, ps_queue queue, const uint32_t need[PS_QUEUE_COUNT]) {
    ps_run_entry *e = &b->s->dev[b->items[i].entry];
    known *now = &b->now[queue];
    int n = 0;
    for (int q = 0; q < PS_QUEUE_COUNT; q++) {
        if (need[q] == NOWHERE || q == (int)queue)
            continue;
        merge(now, &b->items[need[q]].end);
        if (q == PS_QUEUE_CPU) {
            b->awaited[b->s->n_cpu + b->items[i].entry] = need[q];
            entry_of(b, need[q])->point = 1;
        } else {
            entry_of(b, need[q])->record = 1;
            e->wait[n++] = (uint16_t)q; /* for now: which queue; the event is numbered later */
            b->awaited[b->s->n_cpu + b->s->n_dev * (uint32_t)n + b->items[i].entry] = need[q];
        }
    }
    b->items[i].end = *now;
    b->items[i].end.before[queue] = i + 1;
    *now = b->items[i].end;
}

/* Points in stream order on each side, events in turn; then what waits for them. */
static ps_status number(builder *b, ps_error *err) {
    ps_run_schedule *s = b->s;
    uint32_t n_events = 0;
    for (uint32_t k = 0; k < s->n_cpu; k++)
        if (s->cpu[k].point != 0)
            s->cpu[k].point = ++s->cpu_points;
    for (uint32_t k = 0; k < s->n_dev; k++) {
        if (s->dev[k].point != 0)
            s->dev[k].point = ++s->dev_points;
        for (int w = 0; w < 2; w++) {
            if (s->dev[k].wait[w] == 0)
                continue;
            uint32_t target = b->awaited[s->n_cpu + s->n_dev * (uint32_t)(w + 1) + k];
            uint32_t event = entry_of(b, target)->spread; /* device entries: number of their event */
            if (n_events - event >= PS_RUN_ORDER_EVENTS)
                return ps_error_set(err, PS_E_UNSUPPORTED, "plan",
                                    "instruction %u of a step waits for one too far back", s->dev[k].index);
            s->dev[k].wait[w] = (uint16_t)(PS_EVENT_ORDER + event % PS_RUN_ORDER_EVENTS);
            s->dev[k].body[w] = target < s->tail_index && s->dev[k].index >= s->tail_index;
        }
        if (s->dev[k].record != 0) {
            s->dev[k].spread = n_events;
            s->dev[k].record = (uint16_t)(PS_EVENT_ORDER + n_events++ % PS_RUN_ORDER_EVENTS);
        }
    }
    for (uint32_t k = 0; k < s->n_cpu; k++)
        if (b->awaited[k] != NOWHERE)
            s->cpu[k].await = entry_of(b, b->awaited[k])->point;
    for (uint32_t k = 0; k < s->n_dev; k++)
        if (b->awaited[s->n_cpu + k] != NOWHERE)
            s->dev[k].await = entry_of(b, b->awaited[s->n_cpu + k])->point;
    for (uint32_t k = 0; k < s->n_cpu && s->cpu[k].index < s->tail_index; k++) {
        s->cpu_tail = k + 1;
        s->cpu_tail_points = s->cpu[k].point != 0 ? s->cpu[k].point : s->cpu_tail_points;
    }
    for (uint32_t k = 0; k < s->n_dev && s->dev[k].index < s->tail_index; k++) {
        s->dev_tail = k + 1;
        s->dev_tail_points = s->dev[k].point != 0 ? s->dev[k].point : s->dev_tail_points;
    }
    return PS_OK;
}

/* Expand the stream into items and empty entries. */
static ps_status expand(builder *b, ps_arena *arena, ps_error *err) {
    ps_run_schedule *s = b->s;
    const ps_run_tier *t = b->t;
    uint32_t last[PS_QUEUE_COUNT] = {NOWHERE, NOWHERE, NOWHERE, NOWHERE}, layer;
    s->tail_index = NOWHERE;
    ps_cursor c;
    ps_cursor_start(&c, t->program, s->n_tiles);
    for (const ps_instr *in; (in = ps_cursor_get(&c, &layer)) != NULL; ps_cursor_next(&c)) {
        const ps_block *block = &t->program->blocks[c.block];
        item *it = &b->items[c.index];
        *it = (item){.op = t->block_op[c.block] + c.round * block->n_instrs + c.instr,
                     .tile = c.tile,
                     .entry = NOWHERE,
                     .queue = in->queue};
        if (in->op == PS_OP_GATHER)
            s->tail_index = (uint32_t)c.index;
        if (!block->over_tiles || ps_instr_runs(in, c.tile, s->n_tiles)) {
            it->entry = in->queue == PS_QUEUE_CPU ? s->n_cpu++ : s->n_dev++;
            last[in->queue] = (uint32_t)c.index;
        }
        it->last = last[in->queue];
    }
    if (s->tail_index == NOWHERE)
        return ps_error_set(err, PS_E_DATA, "plan", "tier %u has no gather instruction", t->tier->max_tokens);
    s->cpu = ps_arena_array(arena, s->n_cpu, sizeof *s->cpu);
    s->dev = ps_arena_array(arena, s->n_dev, sizeof *s->dev);
    b->awaited = malloc(((size_t)s->n_cpu + 3 * (size_t)s->n_dev + 1) * sizeof *b->awaited);
    if (s->cpu == NULL || s->dev == NULL || b->awaited == NULL)
        return ps_error_set(err, PS_E_NOMEM, "plan", "no memory for a schedule of %u instructions",
                            s->length);
    memset(b->awaited, 0xff, ((size_t)s->n_cpu + 3 * (size_t)s->n_dev) * sizeof *b->awaited);
    return PS_OK;
}

ps_status ps_engine_schedule(ps_engine *e, ps_run_tier *t, uint32_t n_tiles, ps_run_schedule *out,
                             ps_error *err) {
    uint64_t length = ps_program_length(t->program, n_tiles);
    *out = (ps_run_schedule){.n_tiles = n_tiles, .length = (uint32_t)length};
    builder b = {.t = t, .s = out, .last_scratch = NOWHERE};
    b.items = length <= PS_PLAN_MAX_STREAM ? malloc((size_t)length * sizeof *b.items) : NULL;
    ps_status status = b.items == NULL
                           ? ps_error_set(err, PS_E_NOMEM, "plan", "no memory to order %llu instructions",
                                          (unsigned long long)length)
                           : expand(&b, e->level_arena, err);
    for (uint32_t i = 0; status == PS_OK && i < out->length; i++) {
        const item *it = &b.items[i];
        if (it->entry == NOWHERE)
            continue;
        uint32_t need[PS_QUEUE_COUNT];
        ps_run_entry *entry = entry_of(&b, i);
        *entry = (ps_run_entry){.op = it->op, .tile = it->tile, .index = i};
        find_needs(&b, i, need);
        if (it->queue != PS_QUEUE_CPU)
            need[it->queue] = NOWHERE; /* the queue itself sees to it */
        reduce_needs(&b, &b.now[it->queue], need);
        if (it->queue == PS_QUEUE_CPU)
            add_cpu(&b, i, need);
        else
            add_dev(&b, i, it->queue, need);
    }
    if (status == PS_OK)
        status = number(&b, err);
    free(b.items);
    free(b.awaited);
    return status;
}
