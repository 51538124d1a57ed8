/* A brute-force judge of plans, built on nothing of the checker: it runs a tier's stream under many random
 * schedules that queues and waits allow, over a shadow of both arenas in which every 4-byte word carries a
 * label: which operation of the model made it, for which tile, in which format, which word of the buffer it is.
 * Every source word is compared with what the operation must read, when the instruction starts and again when it
 * ends; from start to end its destination holds garbage (unless it works in place). */
#ifndef PS_TESTS_PLAN_SHADOW_H
#define PS_TESTS_PLAN_SHADOW_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "schemas/plan.h"

static inline uint64_t shadow_random(uint64_t *state) { /* xorshift64* */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

typedef struct shadow_item { /* one instruction of the expanded stream */
    const ps_instr *in;
    uint32_t layer, tile;
    bool over_tiles, once, started, ended;
} shadow_item;

typedef struct shadow {
    const ps_plan *plan;
    const ps_level *level;
    const ps_tier *tier;
    const ps_program *program;
    const ps_model *model;
    uint32_t n_tokens, n_tiles;
    uint64_t *words[2]; /* of the host and VRAM arena */
    uint64_t n_words[2];
    shadow_item *items;
    uint32_t n_items;
    uint32_t op_total;
    uint32_t *executed; /* [op_total * n_tiles]: columns written, of all instructions */
    char wrong[200];    /* "" while all is well */
} shadow;

enum { SHADOW_GARBAGE = 1, SHADOW_MAX_BYTES = 64 << 20 };

static inline void shadow_fail(shadow *s, uint32_t i, const char *fmt, ...) {
    if (s->wrong[0] != '\0')
        return;
    char text[120];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(s->wrong, sizeof s->wrong, "item %u (%s layer %u tile %u): %s", i,
             i < s->n_items ? ps_op_get(s->items[i].in->op)->name : "end",
             i < s->n_items ? s->items[i].layer : 0, i < s->n_items ? s->items[i].tile : 0, text);
}

static inline uint64_t shadow_label(uint32_t op, uint32_t tile, ps_fmt fmt, uint64_t word) {
    return (uint64_t)(op + 2) << 40 | (uint64_t)tile << 34 | (uint64_t)fmt << 30 | word;
}

/* Words of a rectangle of a buffer: rows of the tile, words [w0, w1) of each. */
typedef struct shadow_rect {
    ps_space space;
    uint64_t word0, stride, rows, w0, w1, first_row;
} shadow_rect;

static inline uint32_t shadow_tile_rows(const shadow *s, uint32_t tile) {
    uint32_t left = s->n_tokens - tile * PS_TILE_TOKENS;
    return left < PS_TILE_TOKENS ? left : PS_TILE_TOKENS;
}

static inline shadow_rect shadow_area(const shadow *s, uint16_t b, uint32_t tile) {
    const ps_plan_buffer *buf = &s->program->buffers[b];
    shadow_rect r = {.space = buf->space, .word0 = s->tier->buffer_offset[b] / 4};
    r.stride = ps_fmt_row_bytes(buf->fmt, buf->cols) / 4;
    r.w1 = r.stride;
    r.rows = buf->rows == PS_ROWS_OUTPUTS ? s->tier->max_outputs : shadow_tile_rows(s, tile);
    r.first_row = buf->rows == PS_ROWS_STEP ? (uint64_t)tile * PS_TILE_TOKENS : 0;
    return r;
}

static inline void shadow_columns(shadow_rect *r, ps_fmt fmt, uint64_t begin, uint64_t end) {
    uint64_t bytes = fmt == PS_FMT_F16 ? 2 : 4;
    r->w0 = begin * bytes / 4;
    r->w1 = (end * bytes + 3) / 4;
}

/* mode 0: compare with labels of op; 1: write them; 2: write garbage. */
static inline void shadow_touch(shadow *s, uint32_t i, shadow_rect r, uint32_t op, uint32_t tile, ps_fmt fmt,
                                int mode) {
    for (uint64_t y = 0; y < r.rows; y++)
        for (uint64_t w = r.w0; w < r.w1; w++) {
            uint64_t at = r.word0 + (r.first_row + y) * r.stride + w;
            if (at >= s->n_words[r.space]) {
                shadow_fail(s, i, "outside the arena");
                return;
            }
            uint64_t label = shadow_label(op, tile, fmt, y * r.stride + w);
            if (mode == 0 && s->words[r.space][at] != label) {
                shadow_fail(s, i, "reads %llx, wants %llx", (unsigned long long)s->words[r.space][at],
                            (unsigned long long)label);
                return;
            }
            if (mode != 0)
                s->words[r.space][at] = mode == 1 ? label : SHADOW_GARBAGE;
        }
}

/* Rows of the last sequence's cache. Positions below the step's are there from before. */
static inline void shadow_kv(shadow *s, uint32_t i, int mode) {
    const shadow_item *it = &s->items[i];
    const ps_kv_home *kv = &s->level->kv[it->layer];
    const ps_layer *l = &s->model->layers[it->layer];
    uint64_t width[2] = {(uint64_t)l->n_head_kv * l->head_dim_k / 2,
                         (uint64_t)l->n_head_kv * l->head_dim_v / 2};
    uint64_t plane[2] = {0, (kv->rows * width[0] * 4 + 63) / 64 * 16};
    uint64_t base = (kv->offset + kv->bytes * (s->level->n_seqs - 1)) / 4;
    uint64_t pos0 = s->level->bucket_tokens > s->n_tokens ? s->level->bucket_tokens - s->n_tokens : 0;
    uint64_t first = pos0 + (uint64_t)it->tile * PS_TILE_TOKENS, end = first + shadow_tile_rows(s, it->tile);
    if (kv->rows == 0) {
        shadow_fail(s, i, "no KV rows");
        return;
    }
    bool load = mode == 0, fill = mode == 3; /* 3: what was there before the step */
    uint64_t begin = first;
    if (load)
        begin = l->window != 0 && first + 1 > l->window ? first + 1 - l->window : 0;
    if (fill) {
        begin = pos0 > kv->rows ? pos0 - kv->rows : 0;
        end = pos0;
    }
    for (uint64_t p = begin; p < end; p++)
        for (int x = 0; x < 2; x++)
            for (uint64_t w = 0; w < width[x]; w++) {
                uint64_t at = base + plane[x] + p % kv->rows * width[x] + w;
                if (at >= s->n_words[kv->space]) {
                    shadow_fail(s, i, "KV outside the arena");
                    return;
                }
                uint64_t label = 0xffull << 56 | (uint64_t)it->layer << 44 | p << 20 | (uint64_t)x << 19 | w;
                if (load && s->words[kv->space][at] != label) {
                    shadow_fail(s, i, "KV of position %llu is not there", (unsigned long long)p);
                    return;
                }
                if (!load)
                    s->words[kv->space][at] = mode == 2 ? SHADOW_GARBAGE : label;
            }
}

/* Number of the operation that makes what operation (shard, k) reads as value v: the latest before it. */
static inline uint32_t shadow_maker(const ps_model *m, uint32_t shard, uint32_t k, ps_value v) {
    uint32_t number = 0, found = UINT32_MAX;
    for (uint32_t i = 0; i <= shard; i++)
        for (uint32_t o = 0; o < m->shards[i].n_ops && !(i == shard && o == k); o++, number++)
            if (m->shards[i].ops[o].dst == v)
                found = number;
    return found;
}

/* The operation an instruction is, as shard and index; false if none. */
static inline bool shadow_find(const shadow *s, const shadow_item *it, uint32_t *shard, uint32_t *k,
                               uint32_t *number) {
    *number = 0;
    for (uint32_t i = 0; i < s->model->n_shards; i++)
        for (uint32_t o = 0; o < s->model->shards[i].n_ops; o++, (*number)++) {
            const ps_op_desc *d = &s->model->shards[i].ops[o];
            bool same = s->model->shards[i].kind == it->in->shard && s->model->shards[i].layer == it->layer &&
                        d->op == it->in->op;
            for (int j = 0; same && j < PS_OP_MAX_WEIGHTS; j++)
                same = d->w[j] == it->in->w[j];
            for (int j = 0; same && j < PS_OP_MAX_SRC; j++)
                same =
                    d->src[j] == (it->in->src[j] == PS_NO_BUFFER ? PS_VALUE_NONE
                                                                 : s->program->buffers[it->in->src[j]].value);
            same = same && d->dst == (it->in->dst == PS_NO_BUFFER ? PS_VALUE_NONE
                                                                  : s->program->buffers[it->in->dst].value);
            if (same) {
                *shard = i;
                *k = o;
                return true;
            }
        }
    return false;
}

static inline void shadow_scratch(shadow *s, uint32_t i) {
    const shadow_item *it = &s->items[i];
    if (it->in->queue != PS_QUEUE_CPU)
        return;
    for (uint32_t k = 0; k < s->plan->n_kernels; k++) {
        if (s->plan->kernels[k].id != it->in->kernel)
            continue;
        uint64_t cols = 0, rows = s->n_tokens < PS_TILE_TOKENS ? s->n_tokens : PS_TILE_TOKENS;
        for (int j = 0; j < PS_OP_MAX_WEIGHTS; j++)
            if (it->in->w[j] != PS_ROLE_NONE &&
                ps_model_weight(s->model, it->layer, it->in->w[j])->cols > cols)
                cols = ps_model_weight(s->model, it->layer, it->in->w[j])->cols;
        for (int j = 0; j <= PS_OP_MAX_SRC; j++) {
            uint16_t b = j < PS_OP_MAX_SRC ? it->in->src[j] : it->in->dst;
            if (b != PS_NO_BUFFER && s->program->buffers[b].cols > cols)
                cols = s->program->buffers[b].cols;
            if (b != PS_NO_BUFFER && s->program->buffers[b].rows == PS_ROWS_OUTPUTS)
                rows = s->tier->max_outputs;
        }
        uint64_t bytes = ps_scratch_bytes(&s->plan->kernels[k].scratch, rows, cols, s->level->n_threads, s->level->bucket_tokens);
        for (uint64_t w = 0; w < bytes / 4; w++) {
            uint64_t at = s->tier->scratch_offset / 4 + w;
            if (at >= s->n_words[0]) {
                shadow_fail(s, i, "scratch outside the arena");
                return;
            }
            s->words[0][at] = SHADOW_GARBAGE;
        }
    }
}

/* Everything instruction i reads and writes, at its start or its end. */
static inline void shadow_step(shadow *s, uint32_t i, bool end) {
    const shadow_item *it = &s->items[i];
    const ps_instr *in = it->in;
    uint32_t shard, k, number;
    shadow_scratch(s, i);
    if (s->n_tiles > 1 && !it->over_tiles && in->op != PS_OP_GATHER &&
        !(in->dst != PS_NO_BUFFER && s->program->buffers[in->dst].rows == PS_ROWS_OUTPUTS)) {
        shadow_fail(s, i, "works on the first tile alone");
        return;
    }
    if (in->op == PS_OP_COPY || in->op == PS_OP_CONVERT) {
        const ps_plan_buffer *from = &s->program->buffers[in->src[0]], *to = &s->program->buffers[in->dst];
        shadow_rect r = shadow_area(s, in->src[0], it->tile), d = shadow_area(s, in->dst, it->tile);
        if (in->n_rows != 0) {
            shadow_columns(&r, from->fmt, in->row0, in->row0 + in->n_rows);
            shadow_columns(&d, to->fmt, in->row0, in->row0 + in->n_rows);
        }
        uint64_t at = r.word0 + r.first_row * r.stride + r.w0;
        number = at < s->n_words[r.space] ? (uint32_t)(s->words[r.space][at] >> 40) - 2 : 0;
        shadow_touch(s, i, r, number, it->tile, from->fmt, 0);
        shadow_touch(s, i, d, number, it->tile, to->fmt, end ? 1 : 2);
        return;
    }
    if (!shadow_find(s, it, &shard, &k, &number)) {
        shadow_fail(s, i, "is no operation of the model");
        return;
    }
    const ps_op_desc *d = &s->model->shards[shard].ops[k];
    uint64_t begin = 0, stop = d->rows, unit = 1;
    if (in->n_rows != 0) {
        if (in->op == PS_OP_ATTENTION)
            unit = d->rows / s->model->layers[it->layer].n_head_kv;
        begin = in->row0 * unit;
        stop = (in->row0 + in->n_rows) * unit;
        if (stop > d->rows) {
            shadow_fail(s, i, "range outside the weight");
            return;
        }
    }
    bool in_place = false;
    for (int j = 0; j < PS_OP_MAX_SRC; j++) {
        if (in->src[j] == PS_NO_BUFFER)
            continue;
        ps_fmt fmt = s->program->buffers[in->src[j]].fmt;
        uint32_t maker = shadow_maker(s->model, shard, k, d->src[j]);
        in_place |= in->src[j] == in->dst;
        uint32_t n = in->op == PS_OP_GATHER ? s->n_tiles : 1;
        for (uint32_t t = it->tile; t < it->tile + n; t++) {
            shadow_rect r = shadow_area(s, in->src[j], t);
            if (in->op == PS_OP_MATMUL && j == 1)
                shadow_columns(&r, fmt, begin, stop);
            shadow_touch(s, i, r, maker, t, fmt, 0);
        }
    }
    if (in->op == PS_OP_ATTENTION)
        shadow_kv(s, i, 0);
    if (in->op == PS_OP_KV_STORE)
        shadow_kv(s, i, end ? 1 : 2);
    if (in->dst != PS_NO_BUFFER) {
        shadow_rect r = shadow_area(s, in->dst, it->tile);
        ps_fmt fmt = s->program->buffers[in->dst].fmt;
        if (in->n_rows != 0)
            shadow_columns(&r, fmt, begin, stop);
        if (!in_place || end)
            shadow_touch(s, i, r, number, it->tile, fmt, end ? 1 : 2);
    }
    if (end)
        s->executed[number * s->n_tiles + it->tile] += (uint32_t)(d->rows != 0 ? stop - begin : 1);
}

static inline bool shadow_uses_scratch(const shadow *s, uint32_t kernel) {
    for (uint32_t k = 0; k < s->plan->n_kernels; k++)
        if (s->plan->kernels[k].id == kernel)
            return ps_scratch_bytes(&s->plan->kernels[k].scratch, 1, 64, 1, 0) != 0;
    return false;
}

static inline bool shadow_can_start(const shadow *s, uint32_t i) {
    const ps_instr *in = s->items[i].in;
    for (uint32_t w = 0; w < in->n_waits; w++)
        if (in->wait[w] <= i && !s->items[i - in->wait[w]].ended)
            return false;
    for (uint32_t j = i; j-- > 0;)
        if (s->items[j].in->queue == in->queue) {
            if (!(in->queue == PS_QUEUE_CPU ? s->items[j].started : s->items[j].ended))
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

/* One schedule: start whatever can start before anything ends, most of the time. */
static inline void shadow_run(shadow *s, uint64_t *seed) {
    uint32_t n_ended = 0, low = 0;
    uint32_t eagerness = (uint32_t)(shadow_random(seed) % 4);
    while (n_ended < s->n_items && s->wrong[0] == '\0') {
        uint32_t can[512], running[512], n_can = 0, n_running = 0;
        while (low < s->n_items && s->items[low].ended)
            low++;
        for (uint32_t i = low; i < s->n_items && i < low + 400; i++) {
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

static inline void shadow_finish(shadow *s) {
    uint32_t number = 0;
    for (uint32_t i = 0; i < s->model->n_shards; i++)
        for (uint32_t o = 0; o < s->model->shards[i].n_ops; o++, number++) {
            const ps_op_desc *d = &s->model->shards[i].ops[o];
            bool head = s->model->shards[i].kind == PS_SHARD_HEAD;
            for (uint32_t t = 0; t < (head ? 1 : s->n_tiles); t++)
                if (s->executed[number * s->n_tiles + t] != (d->rows != 0 ? d->rows : 1))
                    shadow_fail(s, s->n_items, "operation %u executed on %u of %u columns", number,
                                s->executed[number * s->n_tiles + t], d->rows);
            if (d->dst != PS_VALUE_LOGITS && d->dst != PS_VALUE_TOKENS)
                continue;
            bool found = false;
            for (uint32_t b = 0; b < s->program->n_buffers && s->wrong[0] == '\0'; b++) {
                if (s->program->buffers[b].value != d->dst || s->program->buffers[b].space != PS_SPACE_HOST)
                    continue;
                shadow_touch(s, s->n_items, shadow_area(s, (uint16_t)b, 0), number, 0,
                             s->program->buffers[b].fmt, 0);
                found = found || s->wrong[0] == '\0';
                s->wrong[0] = '\0';
            }
            if (!found)
                shadow_fail(s, s->n_items, "%s is not in a host buffer", ps_value_name(d->dst));
        }
    for (uint32_t i = 0; i < s->n_items; i++) /* the tail may run again */
        if (s->items[i].in->op == PS_OP_GATHER) {
            shadow_item again = s->items[i];
            again.started = again.ended = true;
            uint32_t shard, k;
            if (!shadow_find(s, &again, &shard, &k, &number))
                continue;
            uint16_t src = again.in->src[0];
            for (uint32_t t = 0; t < s->n_tiles; t++)
                shadow_touch(s, i, shadow_area(s, src, t),
                             shadow_maker(s->model, shard, k, s->program->buffers[src].value), t,
                             s->program->buffers[src].fmt, 0);
        }
}

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

/* Judge a tier for steps of n_tokens under `n_schedules` schedules. Returns "" or what went wrong (static until the
 * next call in `buf`). */
static inline const char *shadow_judge(const ps_plan *plan, const ps_level *level, const ps_tier *tier,
                                       const ps_model *model, uint32_t n_tokens, uint32_t n_schedules,
                                       uint64_t seed, char buf[200]) {
    shadow s = {.plan = plan, .level = level, .tier = tier, .model = model, .n_tokens = n_tokens};
    buf[0] = '\0';
    s.program = &plan->programs[tier->program];
    if (shadow_extent(&s, PS_SPACE_HOST) > SHADOW_MAX_BYTES || shadow_extent(&s, PS_SPACE_VRAM) > SHADOW_MAX_BYTES)
        return buf; /* a mutant that puts something far out in an arena far larger than it needs: too slow to shadow */
    s.n_tiles = (n_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
    s.n_items = (uint32_t)ps_program_length(s.program, s.n_tiles);
    s.items = calloc(s.n_items + 1, sizeof *s.items);
    for (uint32_t i = 0; i < model->n_shards; i++)
        s.op_total += model->shards[i].n_ops;
    s.executed = calloc((size_t)s.op_total * s.n_tiles, sizeof *s.executed);
    for (int a = 0; a < 2; a++)
        s.n_words[a] = shadow_extent(&s, (ps_space)a) / 4;
    for (int a = 0; a < 2; a++) {
        s.words[a] = calloc(s.n_words[a] + 1, sizeof(uint64_t));
        if (s.words[a] == NULL || s.items == NULL || s.executed == NULL)
            abort();
    }
    for (uint32_t run = 0; run < n_schedules && s.wrong[0] == '\0'; run++) {
        ps_cursor c;
        uint32_t layer, n = 0;
        ps_cursor_start(&c, s.program, s.n_tiles);
        for (const ps_instr *in; (in = ps_cursor_get(&c, &layer)) != NULL; ps_cursor_next(&c)) {
            const ps_block *b = &s.program->blocks[c.block];
            s.items[n++] = (shadow_item){.in = in,
                                         .layer = layer,
                                         .tile = c.tile,
                                         .over_tiles = b->over_tiles,
                                         .once = b->loop == PS_LOOP_ONCE};
        }
        memset(s.executed, 0, (size_t)s.op_total * s.n_tiles * sizeof *s.executed);
        for (int a = 0; a < 2; a++)
            memset(s.words[a], 0, s.n_words[a] * sizeof(uint64_t));
        for (uint32_t l = 0; l < model->n_layers && s.n_items != 0;
             l++) { /* the caches as earlier steps left them */
            shadow_item keep = s.items[0];
            s.items[0].layer = l;
            s.items[0].tile = 0;
            shadow_kv(&s, 0, 3);
            s.items[0] = keep;
        }
        shadow_run(&s, &seed);
        if (s.wrong[0] == '\0')
            shadow_finish(&s);
    }
    snprintf(buf, 200, "%s", s.wrong);
    free(s.items);
    free(s.executed);
    free(s.words[0]);
    free(s.words[1]);
    return buf;
}

#endif
