/* A brute-force judge of plans, built on nothing of the checker: it runs a tier's stream under many random
 * schedules that queues and waits allow, over a shadow of both arenas in which every 4-byte word carries a
 * label: which operation of the model made it, for which tile, in which format, which word of the value it is, and the
 * sum of random numbers that stand for the parts of the operation that are in it (so only a sum of all parts, each once,
 * is the result). Words of slots say which weight's range, words of caches which position.
 * Every source word is compared with what the operation must read, when the instruction starts and again when it
 * ends; from start to end its destination holds garbage (unless it works in place). Afterwards the tail runs again, or the step
 * ends without it. One more run, in the order of the stream, looks for races: nobody touches a word before those that it must not
 * meet there have ended under every schedule (plan_shadow_order.h), so what no random schedule hits is found all the same. */
#ifndef PS_TESTS_PLAN_SHADOW_H
#define PS_TESTS_PLAN_SHADOW_H

#include "plan_shadow_order.h"

/* ---- operations ---- */

/* Number of the operation that makes what operation `number` reads as value v: the latest before it. */
static inline uint32_t shadow_maker(const shadow *s, uint32_t number, ps_value v) {
    uint32_t found = UINT32_MAX - 1;
    for (uint32_t k = 0; k < number; k++)
        if (s->ops[k]->dst == v)
            found = k;
    return found;
}

static inline int shadow_residual(ps_op op) {
    return op == PS_OP_MATMUL ? 1 : op == PS_OP_MOE_DISPATCH ? 2 : -1;
}

static inline ps_value shadow_value(const shadow *s, uint16_t b) {
    return b == PS_NO_BUFFER ? PS_VALUE_NONE : s->program->buffers[b].value;
}

/* The operation an instruction is, by number; false if none. */
static inline bool shadow_find(const shadow *s, const shadow_item *it, uint32_t *number) {
    *number = 0;
    for (uint32_t i = 0; i < s->model->n_shards; i++)
        for (uint32_t o = 0; o < s->model->shards[i].n_ops; o++, (*number)++) {
            const ps_op_desc *d = &s->model->shards[i].ops[o];
            bool same = s->model->shards[i].kind == it->in->shard && s->model->shards[i].layer == it->layer &&
                        d->op == it->in->op;
            for (int j = 0; same && j < PS_OP_MAX_WEIGHTS; j++)
                same = d->w[j] == it->in->w[j] ||
                       (d->op == PS_OP_MATMUL && j == 1 && it->in->w[j] == PS_ROLE_NONE);
            for (int j = 0; same && j < PS_OP_MAX_SRC; j++) {
                ps_value v = shadow_value(s, it->in->src[j]);
                same = v == d->src[j] || (j == shadow_residual(d->op) && (v == PS_VALUE_NONE || v == d->dst));
            }
            if (same && d->dst == shadow_value(s, it->in->dst))
                return true;
        }
    return false;
}

/* Parts of an operation: pieces of the inner dimension, experts of both sides; then the bias and the residual. */
enum { SHADOW_BIAS = 1 << 19, SHADOW_PLUS };

static inline uint32_t shadow_parts(const shadow *s, uint32_t number) {
    const ps_op_desc *d = s->ops[number];
    if (d->op == PS_OP_MATMUL)
        return (d->cols + SHADOW_ATOM - 1) / SHADOW_ATOM;
    return d->op == PS_OP_MOE_DISPATCH ? 2 * s->model->layers[s->op_layer[number]].n_expert : 1;
}

static inline uint64_t shadow_part(uint32_t number, uint32_t part) {
    return shadow_mix(number + 1, part + 77) | 1;
}

static inline uint64_t shadow_full(const shadow *s, uint32_t number) {
    const ps_op_desc *d = s->ops[number];
    uint64_t sum = 0;
    int plus = shadow_residual(d->op);
    for (uint32_t k = 0; k < shadow_parts(s, number); k++)
        sum += shadow_part(number, k);
    if (d->op == PS_OP_MATMUL && d->w[1] != PS_ROLE_NONE)
        sum += shadow_part(number, SHADOW_BIAS);
    if (plus >= 0 && d->src[plus] != PS_VALUE_NONE)
        sum += shadow_part(number, SHADOW_PLUS);
    return sum;
}

/* Ranges of rows, experts and columns are inside the operation. */
static inline bool shadow_inside(const shadow *s, const ps_instr *in, uint32_t number) {
    const ps_op_desc *d = s->ops[number];
    uint64_t rows = in->op == PS_OP_MOE_DISPATCH ? shadow_parts(s, number) / 2 : d->rows;
    return in->row0 <= rows && in->n_rows <= rows - in->row0 && in->col0 <= d->cols &&
           in->n_cols <= d->cols - in->col0;
}

/* What an instruction adds up, and how many parts that is. */
static inline uint64_t shadow_own(const shadow *s, const ps_instr *in, uint32_t number, uint64_t *n) {
    const ps_op_desc *d = s->ops[number];
    uint64_t sum = 0;
    *n = 0;
    if (d->op == PS_OP_MATMUL) {
        uint64_t begin = in->col0, end = in->n_cols != 0 ? begin + in->n_cols : d->cols;
        for (uint64_t k = begin / SHADOW_ATOM; k * SHADOW_ATOM < end; k++, ++*n)
            sum += shadow_part(number, (uint32_t)k);
        if (in->w[1] != PS_ROLE_NONE && begin == 0)
            sum += shadow_part(number, SHADOW_BIAS);
    } else if (d->op == PS_OP_MOE_DISPATCH) {
        uint64_t end = in->n_rows != 0 ? in->row0 + in->n_rows : shadow_parts(s, number) / 2;
        for (uint64_t e = in->row0; e < end; e++)
            for (uint32_t side = 0; side < 2; side++)
                if (in->part == PS_MOE_PART_ALL || (in->part == PS_MOE_PART_FAR) == (side == 1)) {
                    sum += shadow_part(number, (uint32_t)(2 * e + side));
                    ++*n;
                }
    } else {
        sum = shadow_part(number, 0);
        *n = 1;
    }
    return sum;
}

/* ---- one instruction, at its start or its end ---- */

static inline ps_fmt shadow_fmt(const shadow *s, uint16_t b) {
    return b == PS_NO_BUFFER ? PS_FMT_NONE : s->program->buffers[b].fmt;
}

/* The kernel computes this operation on this device from weights and rows as they are. */
static inline void shadow_kernel(shadow *s, uint32_t i) {
    const shadow_item *it = &s->items[i];
    const ps_instr *in = it->in;
    const ps_kernel_spec *k = NULL;
    if (s->level->budget_bytes == 0 && in->queue != PS_QUEUE_CPU)
        shadow_fail(s, i, "needs a GPU without a budget for it");
    if (in->op == PS_OP_COPY)
        return;
    for (uint32_t n = 0; n < s->plan->n_kernels; n++)
        if (s->plan->kernels[n].id == in->kernel)
            k = &s->plan->kernels[n];
    const ps_weight *w = in->w[0] != PS_ROLE_NONE ? ps_model_weight(s->model, it->layer, in->w[0]) : NULL;
    if (k == NULL || k->op != in->op || k->device != (in->queue == PS_QUEUE_GPU ? PS_DEV_CUDA : PS_DEV_CPU) ||
        k->wtype != (w != NULL ? w->type : PS_DTYPE_NONE))
        shadow_fail(s, i, "its kernel is for something else");
    else if (k->in_fmt != shadow_fmt(s, in->src[0]) || k->out_fmt != shadow_fmt(s, in->dst))
        shadow_fail(s, i, "its kernel takes rows of another format");
}

static inline void shadow_scratch(shadow *s, uint32_t i) {
    const shadow_item *it = &s->items[i];
    bool gpu = it->in->queue == PS_QUEUE_GPU;
    for (uint32_t k = 0; k < s->plan->n_kernels; k++) {
        if (s->plan->kernels[k].id != it->in->kernel)
            continue;
        uint64_t cols = 0, rows = s->n_tokens < PS_TILE_TOKENS ? s->n_tokens : PS_TILE_TOKENS;
        for (int j = 0; j < PS_OP_MAX_WEIGHTS; j++) {
            const ps_weight *w =
                it->in->w[j] != PS_ROLE_NONE ? ps_model_weight(s->model, it->layer, it->in->w[j]) : NULL;
            uint64_t n = w == NULL ? 0 : j == 0 && it->in->n_cols != 0 ? it->in->n_cols : w->cols;
            cols = n > cols ? n : cols;
        }
        for (int j = 0; j <= PS_OP_MAX_SRC; j++) {
            uint16_t b = j < PS_OP_MAX_SRC ? it->in->src[j] : it->in->dst;
            if (b != PS_NO_BUFFER && s->program->buffers[b].cols > cols)
                cols = s->program->buffers[b].cols;
            if (b != PS_NO_BUFFER && s->program->buffers[b].rows == PS_ROWS_OUTPUTS)
                rows = s->tier->max_outputs;
        }
        uint64_t bytes = ps_scratch_bytes(&s->plan->kernels[k].scratch, rows, cols, s->level->n_threads,
                                          s->level->bucket_tokens);
        for (uint64_t w = 0; w < bytes / 4; w++) {
            uint64_t at = (gpu ? s->tier->vram_scratch_offset : s->tier->scratch_offset) / 4 + w;
            if (at >= s->n_words[gpu]) {
                shadow_fail(s, i, "scratch outside the arena");
                return;
            }
            shadow_meet(s, i, gpu ? PS_SPACE_VRAM : PS_SPACE_HOST, at, true, true);
            s->words[gpu][at].label = SHADOW_GARBAGE;
        }
    }
}

static inline void shadow_copy_kv(shadow *s, uint32_t i, bool end) {
    const shadow_item *it = &s->items[i];
    uint16_t slot = it->in->kv;
    if (s->level->kv[it->layer].space != PS_SPACE_HOST)
        shadow_fail(s, i, "KV is not in host memory");
    else if (it->in->queue == PS_QUEUE_H2D) {
        shadow_kv(s, i, it->layer, 0, PS_KV_HOME, SHADOW_KV_BEFORE, 0);
        shadow_kv(s, i, it->layer, 0, slot, SHADOW_KV_BEFORE, end ? 1 : 2);
    } else {
        shadow_kv(s, i, it->layer, 0, slot, SHADOW_KV_STEP, 0);
        shadow_kv(s, i, it->layer, 0, PS_KV_HOME, SHADOW_KV_STEP, end ? 1 : 2);
    }
}

/* COPY, CONVERT and ADD take what their sources hold, whatever it is. */
static inline void shadow_pass(shadow *s, uint32_t i, bool end) {
    const shadow_item *it = &s->items[i];
    const ps_instr *in = it->in;
    const ps_plan_buffer *to = &s->program->buffers[in->dst];
    uint64_t begin = to->col0, stop = (uint64_t)to->col0 + to->cols, sum = 0;
    uint32_t op = UINT32_MAX;
    if (in->n_rows != 0) {
        begin = in->row0;
        stop = in->row0 + in->n_rows;
    }
    if (!shadow_has(s, i, in->dst, begin, stop))
        return;
    for (int j = 0; j < (in->op == PS_OP_ADD ? 2 : 1) && s->wrong[0] == '\0'; j++) {
        uint64_t one = 0;
        if (in->src[j] == PS_NO_BUFFER) {
            shadow_fail(s, i, "a source is missing");
            return;
        }
        const ps_plan_buffer *from = &s->program->buffers[in->src[j]];
        if (from->value != to->value)
            shadow_fail(s, i, "another value");
        if (!shadow_has(s, i, in->src[j], begin, stop))
            return;
        bool plain = in->n_rows != 0;
        shadow_read(s, i, shadow_area(s, in->src[j], it->tile, plain ? begin : UINT64_MAX, stop), &op,
                    it->tile, &one);
        sum += one;
    }
    if (op >= s->op_total)
        shadow_fail(s, i, "passes on what is no value");
    if (end || in->op != PS_OP_ADD || (in->src[0] != in->dst && in->src[1] != in->dst))
        shadow_write(s, i, shadow_area(s, in->dst, it->tile, in->n_rows != 0 ? begin : UINT64_MAX, stop), op,
                     it->tile, sum, !end);
}

/* The sources of operation `number`; *sum: with what a partial sum or the residual adds to it. */
static inline void shadow_sources(shadow *s, uint32_t i, uint32_t number, uint64_t begin, uint64_t stop,
                                  uint64_t *sum) {
    const shadow_item *it = &s->items[i];
    const ps_instr *in = it->in;
    const ps_op_desc *d = s->ops[number];
    for (int j = 0; j < PS_OP_MAX_SRC && s->wrong[0] == '\0'; j++) {
        if (in->src[j] == PS_NO_BUFFER)
            continue;
        uint32_t maker = d->src[j] != PS_VALUE_NONE ? shadow_maker(s, number, d->src[j]) : UINT32_MAX - 1;
        uint32_t n = in->op == PS_OP_GATHER ? s->n_tiles : 1;
        bool columns = in->op == PS_OP_GLU || (in->op == PS_OP_MATMUL && j == 1);
        uint64_t first = columns ? begin : 0, last = columns               ? stop
                                                     : maker < s->op_total ? s->ops[maker]->rows
                                                                           : 0;
        if (j == shadow_residual(in->op)) {
            uint32_t op = UINT32_MAX;
            uint64_t one = 0;
            last = columns ? stop : d->rows;
            if (!shadow_has(s, i, in->src[j], first, last))
                return;
            shadow_read(s, i, shadow_area(s, in->src[j], it->tile, first, last), &op, it->tile, &one);
            if (op >= s->op_total || (op != number && (op != maker || one != s->full[op]))) {
                shadow_fail(s, i, "the residual is neither that nor a partial sum");
                return;
            }
            *sum += op == number ? one : shadow_part(number, SHADOW_PLUS);
            continue;
        }
        if (maker >= s->op_total) {
            shadow_fail(s, i, "reads what nobody makes");
            return;
        }
        if (in->op == PS_OP_MATMUL && j == 0 && in->n_cols != 0) {
            first = in->col0;
            last = in->col0 + in->n_cols;
        }
        const ps_plan_buffer *buf = &s->program->buffers[in->src[j]];
        if (buf->col0 != first || buf->col0 + buf->cols != last) { /* kernels take rows as they lie */
            if (!(columns && in->op == PS_OP_MATMUL))
                shadow_fail(s, i, "source %d has other columns", j);
            return;
        }
        for (uint32_t t = it->tile; t < it->tile + n; t++) {
            uint64_t full = s->full[maker];
            shadow_read(s, i, shadow_area(s, in->src[j], t, UINT64_MAX, 0), &maker, t, &full);
        }
    }
}

/* Everything instruction i reads and writes, at its start or its end. */
static inline void shadow_touch(shadow *s, uint32_t i, bool end) {
    const shadow_item *it = &s->items[i];
    const ps_instr *in = it->in;
    uint32_t number;
    uint64_t begin = 0, stop, unit = 1, parts, sum;
    shadow_kernel(s, i);
    shadow_scratch(s, i);
    if (in->op == PS_OP_COPY && in->w[0] != PS_ROLE_NONE) {
        ps_weight_range r;
        uint64_t bytes;
        if (!shadow_range(s, it, 0, &r, &bytes))
            shadow_fail(s, i, "range outside the weight");
        else
            shadow_slot(s, i, in->dst, &r, bytes, end ? 1 : 2);
        return;
    }
    if (in->op == PS_OP_COPY && in->kv != PS_KV_HOME) {
        shadow_copy_kv(s, i, end);
        return;
    }
    if (s->n_tiles > 1 && !it->over_tiles && in->op != PS_OP_GATHER &&
        !(in->dst != PS_NO_BUFFER && s->program->buffers[in->dst].rows == PS_ROWS_OUTPUTS)) {
        shadow_fail(s, i, "works on the first tile alone");
        return;
    }
    if (in->op == PS_OP_COPY || in->op == PS_OP_CONVERT || in->op == PS_OP_ADD) {
        shadow_pass(s, i, end);
        return;
    }
    if (!shadow_find(s, it, &number)) {
        shadow_fail(s, i, "is no operation of the model");
        return;
    }
    const ps_op_desc *d = s->ops[number];
    stop = d->rows;
    if (!shadow_inside(s, in, number)) {
        shadow_fail(s, i, "range outside the operation");
        return;
    }
    if (in->op == PS_OP_GLU) {
        begin = s->program->buffers[in->dst].col0;
        stop = begin + s->program->buffers[in->dst].cols;
    } else if (in->n_rows != 0 && in->op != PS_OP_MOE_DISPATCH) {
        if (in->op == PS_OP_ATTENTION)
            unit = d->rows / s->model->layers[it->layer].n_head_kv;
        begin = in->row0 * unit;
        stop = (in->row0 + in->n_rows) * unit;
    }
    if (stop > d->rows) {
        shadow_fail(s, i, "range outside the operation");
        return;
    }
    sum = shadow_own(s, in, number, &parts);
    shadow_weights(s, i);
    shadow_sources(s, i, number, begin, stop, &sum);
    if (in->op == PS_OP_ATTENTION)
        shadow_kv(s, i, it->layer, it->tile, in->kv, SHADOW_KV_ATTEND, 0);
    if (in->op == PS_OP_KV_STORE)
        shadow_kv(s, i, it->layer, it->tile, in->kv, end ? SHADOW_KV_STORE : SHADOW_KV_SPOIL, 1);
    bool in_place =
        in->dst != PS_NO_BUFFER && (in->src[0] == in->dst || in->src[1] == in->dst || in->src[2] == in->dst);
    if (in->dst != PS_NO_BUFFER && (!in_place || end) && shadow_has(s, i, in->dst, begin, stop)) {
        const ps_plan_buffer *to = &s->program->buffers[in->dst];
        bool whole = begin == to->col0 && stop == (uint64_t)to->col0 + to->cols;
        shadow_write(s, i, shadow_area(s, in->dst, it->tile, whole ? UINT64_MAX : begin, stop), number,
                     it->tile, sum, !end);
    }
    if (end)
        s->executed[number * s->n_tiles + it->tile] += d->rows != 0 ? (stop - begin) * parts : 1;
}

/* What it read when it started must still be there when it ends. */
static inline void shadow_step(shadow *s, uint32_t i, bool end) {
    if (!s->items[i].runs || s->wrong[0] != '\0')
        return;
    s->seen = 0;
    shadow_touch(s, i, end);
    if (!end)
        s->items[i].seen = s->seen;
    else if (s->items[i].seen != s->seen)
        shadow_fail(s, i, "a source changed meanwhile");
}

/* ---- schedules ---- */

static inline bool shadow_uses_scratch(const shadow *s, uint32_t kernel) {
    for (uint32_t k = 0; k < s->plan->n_kernels; k++)
        if (s->plan->kernels[k].id == kernel)
            return ps_scratch_bytes(&s->plan->kernels[k].scratch, 1, 64, 1, 0) != 0;
    return false;
}

static inline bool shadow_can_start(const shadow *s, uint32_t i) {
    const ps_instr *in = s->items[i].in;
    bool runs = s->items[i].runs;
    for (uint32_t w = 0; runs && w < in->n_waits; w++)
        if (in->wait[w] <= i && !s->items[i - in->wait[w]].ended)
            return false;
    for (uint32_t j = i; j-- > 0;)
        if (s->items[j].in->queue == in->queue) {
            if (!(in->queue == PS_QUEUE_CPU && runs ? s->items[j].started : s->items[j].ended))
                return false;
            break;
        }
    if (in->queue != PS_QUEUE_CPU || !shadow_uses_scratch(s, in->kernel))
        return true;
    for (uint32_t j = 0; j < s->n_items; j++)
        if (s->items[j].started && !s->items[j].ended && s->items[j].in->queue == PS_QUEUE_CPU &&
            shadow_uses_scratch(s, s->items[j].in->kernel))
            return false;
    return true;
}

/* One schedule of items [from, to): start whatever can start before anything ends, most of the time. */
static inline void shadow_run(shadow *s, uint32_t from, uint32_t to, uint64_t *seed) {
    uint32_t n_ended = 0, low = from;
    uint32_t eagerness = (uint32_t)(shadow_random(seed) % 4);
    while (n_ended < to - from && s->wrong[0] == '\0') {
        uint32_t can[512], running[512], n_can = 0, n_running = 0;
        while (low < to && s->items[low].ended)
            low++;
        for (uint32_t i = low; i < to && i < low + 400; i++) {
            if (s->items[i].ended)
                continue;
            if (s->items[i].started)
                running[n_running++] = i;
            else if (shadow_can_start(s, i))
                can[n_can++] = i;
        }
        if (n_can != 0 && (n_running == 0 || eagerness == 0 || shadow_random(seed) % 8 < 2 * eagerness + 1)) {
            uint32_t i = can[shadow_random(seed) % n_can];
            s->items[i].started = true;
            shadow_step(s, i, false);
        } else {
            uint32_t i = running[shadow_random(seed) % n_running];
            shadow_step(s, i, true);
            s->items[i].ended = true;
            n_ended++;
        }
    }
}

/* Slots hold their entries, and caches the step's rows. */
static inline void shadow_end_of_step(shadow *s) {
    for (uint32_t k = 0; k < s->program->n_entries; k++) {
        const ps_slot_entry *e = &s->program->entries[k];
        uint64_t bytes;
        if (ps_weight_range_bytes(s->model, &e->range, &bytes, NULL))
            shadow_slot(s, s->n_items, e->slot, &e->range, bytes, 0);
    }
    for (uint32_t l = 0; l < s->model->n_layers; l++) {
        shadow_kv(s, s->n_items, l, 0, PS_KV_HOME, SHADOW_KV_STEP, 0);
        for (uint32_t seq = 0; seq < s->level->n_seqs && s->wrong[0] == '\0'; seq++)
            if (shadow_tokens_of(s, seq) == 0) /* and what others had is still theirs */
                shadow_kv_of(s, s->n_items, l, 0, PS_KV_HOME, SHADOW_KV_BEFORE, 0, seq);
    }
}

/* Everything executed once, and the results where the caller finds them. */
static inline void shadow_results(shadow *s) {
    for (uint32_t number = 0; number < s->op_total; number++) {
        const ps_op_desc *d = s->ops[number];
        bool head = d->op == PS_OP_GATHER || d->op == PS_OP_SAMPLE || d->dst == PS_VALUE_LOGITS ||
                    d->dst == PS_VALUE_LAST_NORM;
        uint64_t all = d->rows != 0 ? (uint64_t)d->rows * shadow_parts(s, number) : 1;
        for (uint32_t t = 0; t < (head ? 1 : s->n_tiles); t++)
            if (s->executed[number * s->n_tiles + t] != all)
                shadow_fail(s, s->n_items, "operation %u executed %llu of %llu", number,
                            (unsigned long long)s->executed[number * s->n_tiles + t],
                            (unsigned long long)all);
        if (d->dst != PS_VALUE_LOGITS && d->dst != PS_VALUE_TOKENS)
            continue;
        bool found = false;
        for (uint32_t b = 0; b < s->program->n_buffers && s->wrong[0] == '\0'; b++) {
            const ps_plan_buffer *buf = &s->program->buffers[b];
            if (buf->value != d->dst || buf->space != PS_SPACE_HOST || buf->cols != d->rows)
                continue;
            uint32_t op = number;
            uint64_t sum = s->full[number];
            shadow_read(s, s->n_items, shadow_area(s, (uint16_t)b, 0, UINT64_MAX, 0), &op, 0, &sum);
            found = found || s->wrong[0] == '\0';
            s->wrong[0] = '\0';
        }
        if (!found)
            shadow_fail(s, s->n_items, "%s is not in a host buffer", ps_value_name(d->dst));
    }
}

/* ---- a tier ---- */

static inline uint64_t shadow_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Bytes of an arena up to the end of what the tier uses of it. */
static inline uint64_t shadow_extent(const shadow *s, ps_space space) {
    bool vram = space == PS_SPACE_VRAM;
    uint64_t end = vram ? s->tier->vram_scratch_offset + s->tier->vram_scratch_bytes
                        : s->tier->scratch_offset + s->tier->scratch_bytes;
    for (uint32_t i = 0; i < s->program->n_buffers; i++) {
        const ps_plan_buffer *b = &s->program->buffers[i];
        uint64_t rows = b->rows == PS_ROWS_OUTPUTS ? s->tier->max_outputs : s->tier->max_tokens;
        if (b->rows == PS_ROWS_TILE && rows > PS_TILE_TOKENS)
            rows = PS_TILE_TOKENS;
        uint64_t bytes = b->rows == PS_ROWS_SLOT ? b->cols : rows * ps_fmt_row_bytes(b->fmt, b->cols);
        if (b->space == space)
            end = shadow_max(end, s->tier->buffer_offset[i] + bytes);
    }
    for (uint32_t l = 0; l < s->model->n_layers; l++)
        if (s->level->kv[l].space == space)
            end = shadow_max(end, s->level->kv[l].offset + s->level->kv[l].bytes * s->level->n_seqs);
    uint64_t arena = vram ? s->level->vram_work_bytes : s->level->host_arena_bytes;
    return end < arena ? end : arena;
}

/* The stream, and memory as earlier steps left it. */
static inline void shadow_begin(shadow *s) {
    ps_cursor c;
    uint32_t layer, n = 0;
    ps_cursor_start(&c, s->program, s->n_tiles);
    for (const ps_instr *in; (in = ps_cursor_get(&c, &layer)) != NULL; ps_cursor_next(&c)) {
        const ps_block *b = &s->program->blocks[c.block];
        s->items[n++] =
            (shadow_item){.in = in,
                          .layer = layer,
                          .tile = c.tile,
                          .over_tiles = b->over_tiles,
                          .runs = in->when == PS_WHEN_EVERY ||
                                  (in->when == PS_WHEN_FIRST ? c.tile == 0 : c.tile + 1 == s->n_tiles)};
    }
    memset(s->executed, 0, (size_t)s->op_total * s->n_tiles * sizeof *s->executed);
    for (int a = 0; a < 2; a++)
        memset(s->words[a], 0, s->n_words[a] * sizeof *s->words[a]);
    for (uint32_t l = 0; l < s->model->n_layers; l++)
        shadow_kv(s, s->n_items, l, 0, PS_KV_HOME, SHADOW_KV_BEFORE, 1);
    for (uint32_t k = 0; k < s->program->n_entries; k++) {
        const ps_slot_entry *e = &s->program->entries[k];
        uint64_t bytes;
        if (ps_weight_range_bytes(s->model, &e->range, &bytes, NULL))
            shadow_slot(s, s->n_items, e->slot, &e->range, bytes, 1);
        else
            shadow_fail(s, s->n_items, "entry outside the weight");
    }
}

/* Residents are inside their arena and apart. */
static inline void shadow_residents(shadow *s) {
    for (uint32_t i = 0; i < s->level->n_resident; i++) {
        const ps_resident *a = &s->level->resident[i], *b;
        uint64_t bytes, other;
        if (!ps_weight_range_bytes(s->model, &a->range, &bytes, NULL) ||
            bytes > s->level->vram_weight_bytes || a->offset > s->level->vram_weight_bytes - bytes)
            shadow_fail(s, s->n_items, "resident piece %u is outside", i);
        for (uint32_t k = 0; k < i && s->wrong[0] == '\0'; k++) {
            b = &s->level->resident[k];
            if (ps_weight_range_bytes(s->model, &b->range, &other, NULL) && a->offset < b->offset + other &&
                b->offset < a->offset + bytes)
                shadow_fail(s, s->n_items, "resident pieces %u and %u share bytes", k, i);
        }
    }
}

/* The whole step in the order of its stream, looking for races. */
static inline void shadow_races(shadow *s) {
    shadow_begin(s);
    shadow_order(s);
    for (int a = 0; a < 2; a++)
        if ((s->users[a] = calloc(s->n_words[a] + 1, sizeof *s->users[a])) == NULL)
            abort();
    for (uint32_t i = 0; i < s->n_items && s->wrong[0] == '\0'; i++) {
        shadow_step(s, i, false);
        shadow_step(s, i, true);
    }
    for (int a = 0; a < 2; a++) {
        free(s->users[a]);
        s->users[a] = NULL;
    }
    free(s->pool);
    free(s->before);
    s->pool = NULL;
    s->before = NULL;
    s->n_pool = s->pool_cap = 0;
}

/* A step, whole or without its tail; after a whole one the tail runs again. */
static inline void shadow_one(shadow *s, bool without_tail, uint64_t *seed) {
    uint32_t tail = 0;
    shadow_begin(s);
    while (tail < s->n_items && s->items[tail].in->op != PS_OP_GATHER)
        tail++;
    shadow_run(s, 0, without_tail ? tail : s->n_items, seed);
    if (s->wrong[0] == '\0')
        shadow_end_of_step(s);
    if (without_tail || s->wrong[0] != '\0')
        return;
    shadow_results(s);
    for (uint32_t i = tail; i < s->n_items; i++)
        s->items[i].started = s->items[i].ended = false;
    shadow_run(s, tail, s->n_items, seed);
    if (s->wrong[0] == '\0')
        shadow_end_of_step(s);
}

static inline void shadow_index(shadow *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->model->n_shards; i++)
        s->op_total += s->model->shards[i].n_ops;
    s->ops = calloc(s->op_total, sizeof *s->ops);
    s->op_layer = calloc(s->op_total, sizeof *s->op_layer);
    s->full = calloc(s->op_total, sizeof *s->full);
    if (s->ops == NULL || s->op_layer == NULL || s->full == NULL)
        abort();
    for (uint32_t i = 0; i < s->model->n_shards; i++)
        for (uint32_t o = 0; o < s->model->shards[i].n_ops; o++, n++) {
            s->ops[n] = &s->model->shards[i].ops[o];
            s->op_layer[n] = s->model->shards[i].layer;
        }
    for (n = 0; n < s->op_total; n++)
        s->full[n] = shadow_full(s, n);
}

static const char *const shadow_too_large = "too large to judge";

/* Judge a tier for steps of n_tokens under `n_schedules` schedules. Returns buf: "" or what went wrong. */
static inline const char *shadow_judge(const ps_plan *plan, const ps_level *level, const ps_tier *tier,
                                       const ps_model *model, uint32_t n_tokens, uint32_t n_schedules,
                                       uint64_t seed, char buf[200]) {
    shadow s = {.plan = plan, .level = level, .tier = tier, .model = model, .n_tokens = n_tokens};
    buf[0] = '\0';
    s.program = &plan->programs[tier->program];
    if (shadow_extent(&s, PS_SPACE_HOST) > SHADOW_MAX_BYTES ||
        shadow_extent(&s, PS_SPACE_VRAM) > SHADOW_MAX_BYTES) {
        snprintf(buf, 200, "%s",
                 shadow_too_large); /* say, a mutant that puts something far out in an arena */
        return buf;
    }
    s.n_tiles = (n_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
    s.n_items = (uint32_t)ps_program_length(s.program, s.n_tiles);
    s.items = calloc(s.n_items + 1, sizeof *s.items);
    shadow_index(&s);
    s.executed = calloc((size_t)s.op_total * s.n_tiles, sizeof *s.executed);
    for (int a = 0; a < 2; a++) {
        s.n_words[a] = shadow_extent(&s, (ps_space)a) / 4;
        s.words[a] = calloc(s.n_words[a] + 1, sizeof *s.words[a]);
        if (s.words[a] == NULL || s.items == NULL || s.executed == NULL)
            abort();
    }
    uint64_t used = level->vram_base_bytes + level->vram_work_bytes + level->vram_weight_bytes;
    if (used > level->budget_bytes || used < level->vram_base_bytes)
        shadow_fail(&s, s.n_items, "more than the budget");
    shadow_residents(&s);
    for (uint32_t run = 0; run <= n_schedules && s.wrong[0] == '\0'; run++) {
        s.seq = (uint32_t)(shadow_random(&seed) % level->n_seqs);
        s.phase = (uint32_t)(shadow_random(&seed) % 16);
        s.spread = n_tokens <= level->n_seqs && run % 2 == 1;
        if (run == n_schedules)
            shadow_races(&s);
        else
            shadow_one(&s, run % 4 == 3, &seed);
    }
    snprintf(buf, 200, "%s", s.wrong);
    free(s.items);
    free(s.executed);
    free(s.ops);
    free(s.op_layer);
    free(s.full);
    free(s.words[0]);
    free(s.words[1]);
    return buf;
}

#endif
