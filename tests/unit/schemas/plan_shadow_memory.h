/* Memory of the shadow executor (plan_shadow.h): words of both arenas with what they hold, rectangles of buffers, slots, KV
 * caches and weights. Built on nothing of the checker. */
#ifndef PS_TESTS_PLAN_SHADOW_MEMORY_H
#define PS_TESTS_PLAN_SHADOW_MEMORY_H

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

static inline uint64_t shadow_mix(uint64_t a, uint64_t b) {
    uint64_t h = (a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9ull;
    return (h ^ h >> 29) * 0x94d049bb133111ebull;
}

typedef struct shadow_item { /* one instruction of the expanded stream */
    const ps_instr *in;
    uint32_t layer, tile;
    bool over_tiles, runs, started, ended;
    uint64_t seen; /* hash of all that it read when it started */
} shadow_item;

/* What 4 bytes hold: a word of a value's row, of a weight's range or of a cache; of a value also which parts of it are
 * summed up so far. */
typedef struct shadow_word {
    uint64_t label, sum;
} shadow_word;

/* Who was at a word last: 1 + item, 0: none; readers since its last write as a list in `pool`. */
typedef struct shadow_users {
    uint32_t writer, readers;
    bool scratch; /* written as scratch, which its users leave to each other in turn */
} shadow_users;

typedef struct shadow_reader {
    uint32_t item, next; /* next: 1 + place in `pool` */
} shadow_reader;

typedef struct shadow {
    const ps_plan *plan;
    const ps_level *level;
    const ps_tier *tier;
    const ps_program *program;
    const ps_model *model;
    uint32_t n_tokens, n_tiles;
    shadow_word *words[2]; /* of the host and VRAM work arena */
    uint64_t n_words[2];
    shadow_item *items;
    uint32_t n_items;
    uint32_t op_total;
    const ps_op_desc **ops; /* [op_total] */
    uint32_t *op_layer;     /* [op_total] */
    uint64_t *full;         /* [op_total] sum of all parts */
    uint64_t *executed;     /* [op_total * n_tiles]: columns times parts */
    uint64_t seen;          /* of the instruction being stepped */
    uint32_t phase;         /* which words of large ranges are looked at, 0 to 15 */
    bool spread;            /* a token of each sequence; otherwise all are of sequence `seq` */
    uint32_t seq;
    uint64_t *
        before; /* [n_items rows of n_set words] items that have ended when one starts; plan_shadow_order.h */
    uint64_t n_set;
    shadow_users *users[2]; /* of every word while races are looked for, else NULL */
    shadow_reader *pool;
    uint32_t n_pool, pool_cap;
    char wrong[200]; /* "" while all is well */
} shadow;

enum { SHADOW_GARBAGE = 1, SHADOW_MAX_BYTES = 64 << 20, SHADOW_ATOM = 32 };

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

/* The word at `at` of an arena, or NULL with a failure. */
static inline shadow_word *shadow_at(shadow *s, uint32_t i, ps_space space, uint64_t at) {
    if (at < s->n_words[space])
        return &s->words[space][at];
    shadow_fail(s, i, "outside the arena");
    return NULL;
}

static inline bool shadow_ended_before(const shadow *s, uint32_t item, uint32_t i) {
    return item == i || (s->before[i * s->n_set + item / 64] >> (item % 64) & 1) != 0;
}

/* Item i touches a word: whoever it must not meet there has ended. */
static inline void shadow_meet(shadow *s, uint32_t i, ps_space space, uint64_t at, bool write, bool scratch) {
    if (s->users[space] == NULL || i >= s->n_items || at >= s->n_words[space])
        return;
    shadow_users *u = &s->users[space][at];
    if (u->writer != 0 && !(scratch && u->scratch) && !shadow_ended_before(s, u->writer - 1, i))
        shadow_fail(s, i, "item %u may still write there", u->writer - 1);
    if (!write) {
        if (u->readers != 0 && s->pool[u->readers - 1].item == i)
            return;
        if (s->n_pool == s->pool_cap) {
            s->pool_cap = s->pool_cap != 0 ? 2 * s->pool_cap : 4096;
            s->pool = realloc(s->pool, s->pool_cap * sizeof *s->pool);
            if (s->pool == NULL)
                abort();
        }
        s->pool[s->n_pool] = (shadow_reader){i, u->readers};
        u->readers = ++s->n_pool;
        return;
    }
    for (uint32_t r = u->readers; r != 0; r = s->pool[r - 1].next)
        if (!shadow_ended_before(s, s->pool[r - 1].item, i))
            shadow_fail(s, i, "item %u may still read there", s->pool[r - 1].item);
    *u = (shadow_users){i + 1, 0, scratch};
}

static inline uint64_t shadow_label(uint32_t op, uint32_t tile, ps_fmt fmt, uint64_t row, uint64_t unit) {
    return (uint64_t)(op + 2) << 40 | (uint64_t)tile << 34 | (uint64_t)fmt << 30 | row << 19 |
           (unit & 0x7ffff);
}

static inline uint32_t shadow_op_of(uint64_t label) {
    return label >> 56 != 0 ? UINT32_MAX - 2 : (uint32_t)(label >> 40) - 2;
}

/* Words of a rectangle of a buffer: rows of the tile, words [w0, w1) of each. */
typedef struct shadow_rect {
    ps_space space;
    ps_fmt fmt;
    uint64_t word0, stride, rows, w0, w1, first_row;
    uint64_t unit0; /* label of word 0 of a row: the same for equal columns of a value in f32 and f16 */
} shadow_rect;

static inline uint32_t shadow_tile_rows(const shadow *s, uint32_t tile) {
    uint32_t left = s->n_tokens - tile * PS_TILE_TOKENS;
    return left < PS_TILE_TOKENS ? left : PS_TILE_TOKENS;
}

/* Columns [begin, end) of the value; all that the buffer has where begin is UINT64_MAX. */
static inline shadow_rect shadow_area(const shadow *s, uint16_t b, uint32_t tile, uint64_t begin,
                                      uint64_t end) {
    const ps_plan_buffer *buf = &s->program->buffers[b];
    shadow_rect r = {.space = buf->space, .fmt = buf->fmt, .word0 = s->tier->buffer_offset[b] / 4};
    bool plain = buf->fmt == PS_FMT_F32 || buf->fmt == PS_FMT_F16;
    uint64_t bytes = buf->fmt == PS_FMT_F16 ? 2 : 4;
    r.stride = ps_fmt_row_bytes(buf->fmt, buf->cols) / 4;
    r.rows = buf->rows == PS_ROWS_OUTPUTS ? s->tier->max_outputs : shadow_tile_rows(s, tile);
    r.first_row = buf->rows == PS_ROWS_STEP ? (uint64_t)tile * PS_TILE_TOKENS : 0;
    r.unit0 = plain ? buf->col0 * bytes / 4 : buf->col0 * 7 + buf->cols * 13;
    r.w1 = plain ? (buf->cols * bytes + 3) / 4 : r.stride;
    if (begin != UINT64_MAX) {
        r.w0 = (begin - buf->col0) * bytes / 4;
        r.w1 = ((end - buf->col0) * bytes + 3) / 4;
    }
    return r;
}

/* A buffer that the executor would run past: columns outside it. */
static inline bool shadow_has(shadow *s, uint32_t i, uint16_t b, uint64_t begin, uint64_t end) {
    const ps_plan_buffer *buf = &s->program->buffers[b];
    if (begin >= buf->col0 && end <= (uint64_t)buf->col0 + buf->cols)
        return true;
    shadow_fail(s, i, "columns %llu to %llu are not in buffer %u", (unsigned long long)begin,
                (unsigned long long)end, b);
    return false;
}

static inline void shadow_saw(shadow *s, shadow_word w) {
    s->seen = shadow_mix(s->seen, w.label ^ shadow_mix(w.sum, 3));
}

/* Every word is of `op` (UINT32_MAX: of one operation, as the first says) and of one sum, *sum (0: as the first). */
static inline void shadow_read(shadow *s, uint32_t i, shadow_rect r, uint32_t *op, uint32_t tile,
                               uint64_t *sum) {
    for (uint64_t y = 0; y < r.rows; y++)
        for (uint64_t w = r.w0; w < r.w1; w++) {
            const shadow_word *at = shadow_at(s, i, r.space, r.word0 + (r.first_row + y) * r.stride + w);
            if (at == NULL)
                return;
            shadow_meet(s, i, r.space, r.word0 + (r.first_row + y) * r.stride + w, false, false);
            if (*op == UINT32_MAX)
                *op = shadow_op_of(at->label);
            if (*sum == 0)
                *sum = at->sum;
            uint64_t label = shadow_label(*op, tile, r.fmt, y, r.unit0 + w);
            if (at->label != label || at->sum != *sum) {
                shadow_fail(s, i, "reads %llx, wants %llx%s", (unsigned long long)at->label,
                            (unsigned long long)label, at->label == label ? ", another sum" : "");
                return;
            }
            shadow_saw(s, *at);
        }
}

/* Write words of op, or garbage. */
static inline void shadow_write(shadow *s, uint32_t i, shadow_rect r, uint32_t op, uint32_t tile,
                                uint64_t sum, bool garbage) {
    for (uint64_t y = 0; y < r.rows; y++)
        for (uint64_t w = r.w0; w < r.w1; w++) {
            shadow_word *at = shadow_at(s, i, r.space, r.word0 + (r.first_row + y) * r.stride + w);
            if (at == NULL)
                return;
            shadow_meet(s, i, r.space, r.word0 + (r.first_row + y) * r.stride + w, true, false);
            *at = (shadow_word){garbage ? SHADOW_GARBAGE : shadow_label(op, tile, r.fmt, y, r.unit0 + w),
                                garbage ? 0 : sum};
        }
}

/* ---- weights and slots ---- */

/* The range of weight k that an instruction takes, and its bytes; false when it is outside. */
static inline bool shadow_range(const shadow *s, const shadow_item *it, int k, ps_weight_range *r,
                                uint64_t *bytes) {
    const ps_instr *in = it->in;
    uint32_t layer = it->layer;
    if (in->op == PS_OP_COPY && in->ahead)
        layer = (layer + 1) % s->plan->n_layers;
    if (!ps_role_get(in->w[k])->per_layer)
        layer = 0;
    const ps_weight *w = ps_model_weight(s->model, layer, in->w[k]);
    if (w == NULL)
        return false;
    uint64_t rows = w->experts > 1 ? w->experts : w->rows, cols = w->cols;
    *r = (ps_weight_range){in->w[k], layer, 0, rows, 0, 0};
    bool moe = in->op == PS_OP_MOE_DISPATCH && w->experts > 1;
    if ((moe || in->op == PS_OP_COPY || (in->op == PS_OP_MATMUL && k == 0)) && in->n_rows != 0) {
        r->row0 = in->row0;
        r->n_rows = in->n_rows;
    }
    if ((in->op == PS_OP_COPY || (in->op == PS_OP_MATMUL && k == 0)) && in->n_cols != 0 &&
        in->n_cols != cols) {
        r->col0 = in->col0;
        cols = r->n_cols = in->n_cols;
    }
    if (r->row0 > rows || r->n_rows > rows - r->row0 || r->col0 > w->cols || cols > w->cols - r->col0 ||
        !ps_dtype_bytes(w->type, cols, bytes))
        return false;
    *bytes *= r->n_rows * (w->experts > 1 ? w->rows : 1);
    return true;
}

static inline uint64_t shadow_weight_label(const ps_weight_range *r, uint64_t word) {
    uint64_t h = shadow_mix(shadow_mix(r->role, r->layer), shadow_mix(r->row0, r->n_rows));
    return shadow_mix(shadow_mix(h, shadow_mix(r->col0, r->n_cols)), word) >> 8 | 0xfeull << 56;
}

/* Every word of a range's first and last 64 KiB and of all small ones, one of 16 of what is between: everything in an arena begins
 * at a multiple of 16 words, so whatever runs into a range does so at its edges or meets one of these. */
static inline uint64_t shadow_next(const shadow *s, uint64_t w, uint64_t n) {
    enum { EDGE = 16384, STEP = 16 };
    if (n <= 4 * EDGE || w + 1 < EDGE || w + EDGE >= n)
        return w + 1;
    uint64_t next = (w / STEP + 1) * STEP + s->phase;
    return next < n - EDGE ? next : n - EDGE;
}

/* 0: compare a slot's words with the range's; 1: write them; 2: garbage. */
static inline void shadow_slot(shadow *s, uint32_t i, uint16_t slot, const ps_weight_range *r, uint64_t bytes,
                               int mode) {
    uint64_t n = (bytes + 3) / 4;
    for (uint64_t w = 0; w < n && s->wrong[0] == '\0'; w = shadow_next(s, w, n)) {
        shadow_word *at = shadow_at(s, i, PS_SPACE_VRAM, s->tier->buffer_offset[slot] / 4 + w);
        if (at == NULL)
            return;
        shadow_meet(s, i, PS_SPACE_VRAM, s->tier->buffer_offset[slot] / 4 + w, mode != 0, false);
        uint64_t label = shadow_weight_label(r, w);
        if (mode == 0 && at->label != label)
            shadow_fail(s, i, "slot %u does not hold the weight at word %llu", slot, (unsigned long long)w);
        if (mode == 0)
            shadow_saw(s, *at);
        else
            *at = (shadow_word){mode == 1 ? label : SHADOW_GARBAGE, 0};
    }
}

static inline bool shadow_resident(const shadow *s, const ps_weight_range *r) {
    for (uint32_t k = 0; k < s->level->n_resident; k++) {
        const ps_weight_range *p = &s->level->resident[k].range;
        bool rows = p->row0 <= r->row0 && r->row0 + r->n_rows <= p->row0 + p->n_rows;
        bool cols = p->n_cols == 0 ||
                    (r->n_cols != 0 && p->col0 <= r->col0 && r->col0 + r->n_cols <= p->col0 + p->n_cols);
        if (p->role == r->role && p->layer == r->layer && rows && cols)
            return true;
    }
    return false;
}

/* Every weight is where the instruction looks for it. */
static inline void shadow_weights(shadow *s, uint32_t i) {
    const shadow_item *it = &s->items[i];
    const ps_instr *in = it->in;
    for (int k = 0; k < PS_OP_MAX_WEIGHTS; k++) {
        ps_weight_range r;
        uint64_t bytes;
        if (in->w[k] == PS_ROLE_NONE)
            continue;
        if (!shadow_range(s, it, k, &r, &bytes))
            shadow_fail(s, i, "range outside the weight");
        else if (in->queue == PS_QUEUE_CPU && in->at[k] != PS_AT_HOST)
            shadow_fail(s, i, "the CPU cannot reach the weight");
        else if (in->at[k] == PS_AT_VRAM && in->op != PS_OP_MOE_DISPATCH && !shadow_resident(s, &r))
            shadow_fail(s, i, "the weight is not resident");
        else if (in->at[k] >= PS_AT_SLOT)
            shadow_slot(s, i, (uint16_t)(in->at[k] - PS_AT_SLOT), &r, bytes, 0);
        if (s->wrong[0] != '\0')
            return;
    }
}

/* ---- KV caches ---- */

typedef enum shadow_kv_mode {
    SHADOW_KV_ATTEND,
    SHADOW_KV_STORE,
    SHADOW_KV_SPOIL,
    SHADOW_KV_BEFORE,
    SHADOW_KV_STEP
} shadow_kv_mode;

/* Tokens of the step that a sequence has. */
static inline uint64_t shadow_tokens_of(const shadow *s, uint32_t seq) {
    if (s->spread)
        return seq < s->n_tokens ? 1 : 0;
    return seq == s->seq ? s->n_tokens : 0;
}

/* One sequence's cache, at home or in a slot (the instruction's kv). ATTEND: what the tile sees is there. STORE, SPOIL: the
 * tile's rows are written, or garbage. BEFORE, STEP: positions before the step, or the step's last ones that the cache holds:
 * write 0: they are there; 1: written; 2: garbage. */
static inline void shadow_kv_of(shadow *s, uint32_t i, uint32_t layer, uint32_t tile, uint16_t place,
                                shadow_kv_mode mode, int write, uint32_t seq) {
    const ps_kv_home *kv = &s->level->kv[layer];
    const ps_layer *l = &s->model->layers[layer];
    uint64_t width[2] = {(uint64_t)l->n_head_kv * l->head_dim_k / 2,
                         (uint64_t)l->n_head_kv * l->head_dim_v / 2};
    uint64_t plane[2] = {0, (kv->rows * width[0] * 4 + 63) / 64 * 16};
    ps_space space = place == PS_KV_HOME ? kv->space : PS_SPACE_VRAM;
    uint64_t base = (place == PS_KV_HOME ? kv->offset : s->tier->buffer_offset[place - PS_KV_SLOT]) / 4 +
                    kv->bytes * seq / 4;
    uint64_t n = shadow_tokens_of(s, seq);
    uint64_t pos0 = s->level->bucket_tokens > n ? s->level->bucket_tokens - n : 0;
    uint64_t rows = s->spread ? n : shadow_tile_rows(s, tile);
    uint64_t begin = pos0 + (uint64_t)tile * PS_TILE_TOKENS, end = begin + rows;
    if (kv->rows == 0) {
        shadow_fail(s, i, "no KV rows");
        return;
    }
    if (mode == SHADOW_KV_ATTEND)
        begin = l->window != 0 && begin + 1 > l->window ? begin + 1 - l->window : 0;
    if (mode == SHADOW_KV_BEFORE) {
        begin = pos0 > kv->rows ? pos0 - kv->rows : 0;
        end = pos0;
    } else if (n == 0) {
        return;
    } else if (mode == SHADOW_KV_STEP) {
        end = pos0 + n;
        begin = n > kv->rows ? end - kv->rows : pos0;
    }
    bool look = mode == SHADOW_KV_ATTEND || (mode >= SHADOW_KV_BEFORE && write == 0);
    bool spoil = mode == SHADOW_KV_SPOIL || write == 2;
    for (uint64_t p = begin; p < end; p++)
        for (int x = 0; x < 2; x++)
            for (uint64_t w = 0; w < width[x]; w++) {
                uint64_t where = base + plane[x] + p % kv->rows * width[x] + w;
                shadow_word *at = shadow_at(s, i, space, where);
                if (at == NULL)
                    return;
                shadow_meet(s, i, space, where, !look, false);
                uint64_t label = 0xffull << 56 | (uint64_t)seq << 50 | (uint64_t)layer << 44 | p << 20 |
                                 (uint64_t)x << 19 | w;
                if (look && at->label != label) {
                    shadow_fail(s, i, "KV of position %llu of sequence %u is not there",
                                (unsigned long long)p, seq);
                    return;
                }
                if (look)
                    shadow_saw(s, *at);
                else
                    *at = (shadow_word){spoil ? SHADOW_GARBAGE : label, 0};
            }
}

static inline void shadow_kv(shadow *s, uint32_t i, uint32_t layer, uint32_t tile, uint16_t place,
                             shadow_kv_mode mode, int write) {
    for (uint32_t seq = 0; seq < s->level->n_seqs && s->wrong[0] == '\0'; seq++)
        shadow_kv_of(s, i, layer, tile, place, mode, write, seq);
}

#endif
