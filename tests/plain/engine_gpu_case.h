/* Plans with a GPU for tests of the engine, made from a model's operation lists by plain rules: where each block runs, where
 * its weights are, how the caches get there. Safe and complete, not good. Waits are worked out from who touches what. */
#ifndef PS_TESTS_ENGINE_GPU_CASE_H
#define PS_TESTS_ENGINE_GPU_CASE_H

#include "core/arena.h"
#include "core/checked.h"
#include "engine_case.h"
#include "kernels/kernel.h"

enum {
    GC_MAX_INSTRS = 256,
    GC_MAX_BUFFERS = 128,
    GC_MAX_BLOCKS = 8,
    GC_MAX_KERNELS = 256,
    GC_MAX_RESIDENT = 4096
};

typedef enum gc_kv { GC_KV_VRAM, GC_KV_HOST, GC_KV_SLOT } gc_kv;

/* One level. */
typedef struct gc_level {
    const char *budget;
    uint64_t budget_bytes, bucket_tokens;
    uint32_t n_seqs, n_threads, n_tiers;
    uint32_t tiers[8];
    bool resident_attn,
        resident_ffn; /* weights of these blocks (and with resident_ffn the head's) are resident */
    bool stream;      /* other matrices go through slots; otherwise they are read direct */
    uint32_t n_slots; /* in turn; 0: one for each matrix of a layer */
    bool carry;       /* n_slots 0: slots are filled with the next layer's weight, and across steps */
    uint32_t cut;     /* matrices in slots: in so many ranges of rows; 0: 1 */
    bool ffn_on_cpu;  /* feed-forward blocks on the cpu queue */
    bool split_moe;   /* experts near and far; max_direct of the tier 2 */
    gc_kv kv;
} gc_level;

typedef struct gc {
    const ps_model *model;
    ps_arena *arena;
    ps_plan *plan;
    const gc_level *level;
    ps_program *p;
    bool tiled;
    uint32_t n_used; /* slots in turn */
} gc;

static inline void *gc_array(gc *g, uint64_t n, uint64_t size) {
    void *p = ps_arena_array(g->arena, n, size);
    if (p == NULL)
        abort();
    return p;
}

static inline uint32_t gc_kernel(gc *g, ps_op op, ps_dtype wtype, ps_fmt in, ps_fmt out, ps_queue q) {
    const ps_kernel *k =
        ps_kernel_choose(op, wtype, in, out, q == PS_QUEUE_GPU ? PS_DEV_CUDA : PS_DEV_CPU, 1);
    if (k == NULL) {
        fprintf(stderr, "no kernel for %s %s %s\n", ps_op_get(op)->name, ps_fmt_name(in), ps_fmt_name(out));
        abort();
    }
    ps_plan *p = g->plan;
    uint32_t i = 0;
    while (i < p->n_kernels && p->kernels[i].id < k->spec.id)
        i++;
    if (i < p->n_kernels && p->kernels[i].id == k->spec.id)
        return k->spec.id;
    if (p->n_kernels == GC_MAX_KERNELS)
        abort();
    memmove(p->kernels + i + 1, p->kernels + i, (p->n_kernels - i) * sizeof *p->kernels);
    p->kernels[i] = k->spec;
    p->n_kernels++;
    return k->spec.id;
}

/* which: 0, or another number for a second buffer of the same kind (partial sums). */
static inline uint16_t gc_buffer(gc *g, ps_value v, ps_fmt fmt, ps_space space, uint32_t cols,
                                 uint32_t which) {
    ps_rows rows =
        v == PS_VALUE_LAST || v == PS_VALUE_LAST_NORM || v == PS_VALUE_LOGITS || v == PS_VALUE_TOKENS
            ? PS_ROWS_OUTPUTS
        : v == PS_VALUE_X ? PS_ROWS_STEP
                          : PS_ROWS_TILE;
    for (uint32_t i = 0; i < g->p->n_buffers; i++) {
        const ps_plan_buffer *b = &g->p->buffers[i];
        if (b->value == v && b->fmt == fmt && b->space == space && b->cols == cols && which-- == 0)
            return (uint16_t)i;
    }
    if (g->p->n_buffers == GC_MAX_BUFFERS || which != 0)
        abort();
    g->p->buffers[g->p->n_buffers] = (ps_plan_buffer){v, space, fmt, rows, 0, cols};
    return (uint16_t)g->p->n_buffers++;
}

static inline uint16_t gc_slot(gc *g, uint64_t bytes) {
    if (g->p->n_buffers == GC_MAX_BUFFERS)
        abort();
    g->p->buffers[g->p->n_buffers] = (ps_plan_buffer){
        PS_VALUE_NONE, PS_SPACE_VRAM, PS_FMT_NONE, PS_ROWS_SLOT, 0, (uint32_t)((bytes + 255) / 256 * 256)};
    return (uint16_t)g->p->n_buffers++;
}

static inline void gc_block(gc *g, ps_loop loop, uint32_t n_layers, bool tiled) {
    g->p->blocks[g->p->n_blocks++] = (ps_block){
        .loop = loop, .layer0 = 0, .n_layers = n_layers, .over_tiles = tiled, .instr0 = g->p->n_instrs};
}

static inline ps_instr *gc_instr(gc *g, ps_op op, ps_queue q, ps_shard_kind shard) {
    if (g->p->n_instrs == GC_MAX_INSTRS)
        abort();
    ps_instr *in = &g->p->instrs[g->p->n_instrs++];
    *in = (ps_instr){.op = op, .queue = q, .shard = shard, .dst = PS_NO_BUFFER};
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        in->w[i] = PS_ROLE_NONE;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        in->src[i] = PS_NO_BUFFER;
    g->p->blocks[g->p->n_blocks - 1].n_instrs++;
    return in;
}

static inline bool gc_resident(const gc *g, ps_shard_kind kind) {
    return kind == PS_SHARD_ATTN ? g->level->resident_attn : kind != PS_SHARD_EMBED && g->level->resident_ffn;
}

static inline bool gc_shard_on_cpu(const gc *g, ps_shard_kind kind) {
    return kind == PS_SHARD_EMBED || (g->level->ffn_on_cpu && (kind == PS_SHARD_FFN || kind == PS_SHARD_MOE));
}

/* Where a value lives: x and what the CPU touches in host memory where the CPU takes part in layers. */
static inline ps_space gc_space(const gc *g, ps_value v, ps_queue q) {
    bool shared = g->level->ffn_on_cpu || g->level->split_moe;
    if (q == PS_QUEUE_CPU || v == PS_VALUE_LOGITS || v == PS_VALUE_TOKENS)
        return PS_SPACE_HOST;
    if (v == PS_VALUE_X && shared)
        return PS_SPACE_HOST;
    if ((v == PS_VALUE_NORM || v == PS_VALUE_SEL) && g->level->split_moe)
        return PS_SPACE_HOST;
    return PS_SPACE_VRAM;
}

static inline uint32_t gc_src_cols(const ps_shard *s, uint32_t o, uint32_t i, const ps_model *m) {
    for (uint32_t k = o; k-- > 0;)
        if (s->ops[k].dst == s->ops[o].src[i])
            return s->ops[k].rows;
    return m->n_embd;
}

static inline ps_fmt gc_src_fmt(const ps_op_desc *op, ps_dtype wtype, uint32_t i) {
    if (op->op == PS_OP_MOE_DISPATCH && i == 1)
        return PS_FMT_SEL;
    bool product = op->op == PS_OP_MATMUL || op->op == PS_OP_MOE_DISPATCH;
    return i == 0 && product && wtype != PS_DTYPE_F32 && wtype != PS_DTYPE_F16 && wtype != PS_DTYPE_BF16
               ? PS_FMT_Q8
               : PS_FMT_F32;
}

static inline uint64_t gc_range_bytes(gc *g, const ps_weight_range *r) {
    uint64_t bytes;
    if (!ps_weight_range_bytes(g->model, r, &bytes, NULL))
        abort();
    return bytes;
}

/* A copy of rows [row0, row0 + n) of a weight into a slot. */
static inline ps_instr *gc_copy(gc *g, const ps_shard *s, ps_role role, uint64_t row0, uint64_t n,
                                uint16_t slot, bool ahead) {
    ps_instr *c = gc_instr(g, PS_OP_COPY, PS_QUEUE_H2D, s->kind);
    c->w[0] = role;
    c->row0 = row0;
    c->n_rows = n;
    c->dst = slot;
    c->ahead = ahead;
    c->when = g->tiled && s->kind != PS_SHARD_HEAD ? (ahead ? PS_WHEN_LAST : PS_WHEN_FIRST) : PS_WHEN_EVERY;
    return c;
}

static inline uint16_t gc_next_slot(gc *g, uint64_t bytes) {
    if (g->level->n_slots == 0)
        return gc_slot(g, bytes);
    uint32_t want = g->n_used++ % g->level->n_slots, found = 0;
    want += g->level->kv == GC_KV_SLOT; /* the caches' comes first */
    for (uint32_t i = 0; i < g->p->n_buffers; i++)
        if (g->p->buffers[i].rows == PS_ROWS_SLOT && g->p->buffers[i].cols != 1 && found++ == want) {
            uint32_t cols = (uint32_t)((bytes + 255) / 256 * 256);
            g->p->buffers[i].cols = cols > g->p->buffers[i].cols ? cols : g->p->buffers[i].cols;
            return (uint16_t)i;
        }
    return gc_slot(g, bytes);
}

static inline void gc_op(gc *g, const ps_shard *s, uint32_t o, ps_queue q) {
    const ps_op_desc *op = &s->ops[o];
    const ps_weight *w = op->w[0] != PS_ROLE_NONE ? ps_model_weight(g->model, s->layer, op->w[0]) : NULL;
    ps_dtype wtype = w != NULL ? w->type : PS_DTYPE_NONE;
    ps_instr base = {.op = op->op};
    ps_fmt in_fmt = PS_FMT_NONE, out_fmt = PS_FMT_NONE;
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++) {
        base.src[i] = PS_NO_BUFFER;
        if (op->src[i] == PS_VALUE_NONE)
            continue;
        ps_fmt fmt = gc_src_fmt(op, wtype, i);
        uint32_t cols = i == 1 && op->op == PS_OP_MOE_DISPATCH ? g->model->layers[s->layer].n_expert_used
                                                               : gc_src_cols(s, o, i, g->model);
        ps_space space = gc_space(g, op->src[i], q);
        base.src[i] = gc_buffer(g, op->src[i], fmt, space, cols, 0);
        in_fmt = i == 0 ? fmt : in_fmt;
        if (fmt != PS_FMT_Q8)
            continue;
        bool fresh = true; /* converted for an operation before? */
        for (uint32_t k = o; k-- > 0 && s->ops[k].dst != op->src[0];) {
            const ps_weight *v =
                s->ops[k].op == PS_OP_MATMUL ? ps_model_weight(g->model, s->layer, s->ops[k].w[0]) : NULL;
            fresh = fresh && !(v != NULL && s->ops[k].src[0] == op->src[0] &&
                               gc_src_fmt(&s->ops[k], v->type, 0) == PS_FMT_Q8);
        }
        if (fresh) {
            ps_instr *c = gc_instr(g, PS_OP_CONVERT, q, s->kind);
            c->kernel = gc_kernel(g, PS_OP_CONVERT, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_Q8, q);
            c->src[0] = gc_buffer(g, op->src[i], PS_FMT_F32, space, cols, 0);
            c->dst = base.src[i];
        }
    }
    if (op->dst != PS_VALUE_NONE) {
        out_fmt = op->op == PS_OP_MOE_ROUTE ? PS_FMT_SEL : op->op == PS_OP_SAMPLE ? PS_FMT_I32 : PS_FMT_F32;
        base.dst = gc_buffer(g, op->dst, out_fmt, gc_space(g, op->dst, q), op->rows, 0);
    } else {
        base.dst = PS_NO_BUFFER;
    }
    const bool on_gpu = q == PS_QUEUE_GPU, resident = on_gpu && gc_resident(g, s->kind);
    const bool stream = on_gpu && !resident && g->level->stream && op->op == PS_OP_MATMUL;
    const uint64_t rows = w != NULL ? w->rows : 0;
    uint32_t parts = stream && g->level->cut > 1 ? g->level->cut : 1;
    bool split = op->op == PS_OP_MOE_DISPATCH && g->level->split_moe;
    if (split)
        parts = 2;
    for (uint32_t part = 0; part < parts; part++) {
        uint64_t row0 = rows * part / parts, n = rows * (part + 1) / parts - row0;
        ps_queue queue = split && part == 1 ? PS_QUEUE_CPU : q;
        uint16_t slot = PS_NO_BUFFER;
        if (stream) {
            ps_weight_range r = {.role = op->w[0], .layer = s->layer, .row0 = row0, .n_rows = n};
            slot = gc_next_slot(g, gc_range_bytes(g, &r));
            if (!g->level->carry || s->kind == PS_SHARD_HEAD)
                gc_copy(g, s, op->w[0], row0, n, slot, false);
            else
                g->p->entries[g->p->n_entries++] = (ps_slot_entry){slot, r};
        }
        ps_instr *in = gc_instr(g, op->op, queue, s->kind);
        in->kernel = gc_kernel(g, op->op, wtype, in_fmt, out_fmt, queue);
        in->dst = base.dst;
        for (int i = 0; i < PS_OP_MAX_SRC; i++)
            in->src[i] = base.src[i];
        for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
            in->w[i] = op->w[i];
            if (op->w[i] != PS_ROLE_NONE && ps_model_weight(g->model, s->layer, op->w[i]) != NULL)
                in->at[i] = queue != PS_QUEUE_GPU ? PS_AT_HOST
                            : stream && i == 0    ? (uint16_t)(PS_AT_SLOT + slot)
                            : resident            ? PS_AT_VRAM
                                                  : PS_AT_HOST;
        }
        if (stream && parts > 1) {
            in->row0 = row0;
            in->n_rows = n;
        }
        if (op->op == PS_OP_KV_STORE || op->op == PS_OP_ATTENTION)
            in->kv = g->level->kv == GC_KV_SLOT && on_gpu ? PS_KV_SLOT + 0 : PS_KV_HOME;
        if (split) { /* the near part with the residual goes into a buffer of its own, the far part is added to it */
            uint16_t sum = gc_buffer(g, op->dst, PS_FMT_F32, PS_SPACE_HOST, op->rows, 1);
            in->part = part == 0 ? PS_MOE_PART_NEAR : PS_MOE_PART_FAR;
            if (part == 0)
                in->dst = sum;
            else
                in->src[2] = sum;
        }
        if (stream && g->level->carry && s->kind != PS_SHARD_HEAD)
            gc_copy(g, s, op->w[0], row0, n, slot, true);
    }
}

static inline const ps_shard *gc_find(const ps_model *m, ps_shard_kind kind) {
    for (uint32_t i = 0; i < m->n_shards; i++)
        if (m->shards[i].kind == kind)
            return &m->shards[i];
    return NULL;
}

static inline void gc_shard(gc *g, ps_shard_kind kind) {
    const ps_shard *s = gc_find(g->model, kind);
    bool kv_slot = kind == PS_SHARD_ATTN && g->level->kv == GC_KV_SLOT;
    if (kv_slot) {
        ps_instr *c = gc_instr(g, PS_OP_COPY, PS_QUEUE_H2D, kind);
        c->kv = PS_KV_SLOT + 0;
        c->when = g->tiled ? PS_WHEN_FIRST : PS_WHEN_EVERY;
    }
    for (uint32_t o = 0; o < s->n_ops; o++)
        gc_op(g, s, o,
              gc_shard_on_cpu(g, kind) || s->ops[o].op == PS_OP_SAMPLE ? PS_QUEUE_CPU : PS_QUEUE_GPU);
    if (kv_slot) {
        ps_instr *c = gc_instr(g, PS_OP_COPY, PS_QUEUE_D2H, kind);
        c->kv = PS_KV_SLOT + 0;
        c->when = g->tiled ? PS_WHEN_LAST : PS_WHEN_EVERY;
    }
}

/* ---- waits ---- */

enum { GC_MAX_RES = GC_MAX_BUFFERS + 256 };

typedef struct gc_touch {
    uint32_t writer, reader[PS_QUEUE_COUNT]; /* index + 1; 0: none */
} gc_touch;

static inline void gc_add_wait(ps_instr *in, uint32_t distance) {
    uint32_t i = 0;
    while (i < in->n_waits && in->wait[i] < distance)
        i++;
    if (i < in->n_waits && in->wait[i] == distance)
        return;
    if (in->n_waits == PS_MAX_WAITS)
        abort();
    memmove(in->wait + i + 1, in->wait + i, (in->n_waits - i) * sizeof *in->wait);
    in->wait[i] = distance;
    in->n_waits++;
}

/* Instruction `at` (index + 1) must have ended: of queues whose instructions end in order the latest will do. */
static inline void gc_need(uint32_t need[PS_QUEUE_COUNT], const ps_instr *const *stream, uint32_t at,
                           ps_instr *in, uint32_t index) {
    if (at == 0)
        return;
    ps_queue q = stream[at - 1]->queue;
    need[q] = at > need[q] ? at : need[q];
    if (q == PS_QUEUE_CPU)
        gc_add_wait(in, index + 1 - at);
}

static inline void gc_waits(gc *g, uint32_t n_tiles) {
    static const ps_instr *stream[1 << 16];
    static gc_touch touch[GC_MAX_RES];
    memset(touch, 0, sizeof touch);
    ps_cursor c;
    uint32_t layer;
    ps_cursor_start(&c, g->p, n_tiles);
    for (const ps_instr *in; (in = ps_cursor_get(&c, &layer)) != NULL; ps_cursor_next(&c)) {
        uint32_t i = (uint32_t)c.index, need[PS_QUEUE_COUNT] = {0};
        stream[i] = in;
        ps_instr *self = &g->p->instrs[in - g->p->instrs];
        const ps_block *b = &g->p->blocks[c.block];
        if (b->over_tiles && !ps_instr_runs(in, c.tile, n_tiles))
            continue;
        uint32_t reads[16], writes[4], n_reads = 0, n_writes = 0;
        for (int k = 0; k < PS_OP_MAX_SRC; k++)
            if (in->src[k] != PS_NO_BUFFER)
                reads[n_reads++] = in->src[k];
        for (int k = 0; k < PS_OP_MAX_WEIGHTS; k++)
            if (in->at[k] >= PS_AT_SLOT)
                reads[n_reads++] = in->at[k] - PS_AT_SLOT;
        if (in->dst != PS_NO_BUFFER)
            writes[n_writes++] = in->dst;
        const bool kv_copy = in->op == PS_OP_COPY && in->w[0] == PS_ROLE_NONE && in->src[0] == PS_NO_BUFFER;
        uint32_t slot = in->kv >= PS_KV_SLOT ? in->kv - (uint32_t)PS_KV_SLOT : GC_MAX_BUFFERS + layer,
                 home = GC_MAX_BUFFERS + layer;
        if (kv_copy) {
            bool back = in->queue == PS_QUEUE_D2H;
            reads[n_reads++] = back ? slot : home;
            writes[n_writes++] = back ? home : slot;
        } else if (in->op == PS_OP_KV_STORE) {
            writes[n_writes++] = slot;
        } else if (in->op == PS_OP_ATTENTION) {
            reads[n_reads++] = slot;
        }
        for (uint32_t k = 0; k < n_reads; k++)
            gc_need(need, stream, touch[reads[k]].writer, self, i);
        for (uint32_t k = 0; k < n_writes; k++) {
            gc_need(need, stream, touch[writes[k]].writer, self, i);
            for (int q = 0; q < PS_QUEUE_COUNT; q++)
                gc_need(need, stream, touch[writes[k]].reader[q], self, i);
        }
        for (int q = 0; q < PS_QUEUE_COUNT; q++)
            if (need[q] != 0 && q != (int)in->queue && q != PS_QUEUE_CPU)
                gc_add_wait(self, i + 1 - need[q]);
        for (uint32_t k = 0; k < n_reads; k++)
            touch[reads[k]].reader[in->queue] = i + 1;
        for (uint32_t k = 0; k < n_writes; k++) {
            touch[writes[k]] = (gc_touch){.writer = i + 1};
            if (in->op == PS_OP_KV_STORE || kv_copy)
                touch[writes[k]].writer = i + 1;
        }
    }
}

static inline void gc_program(gc *g, ps_program *p, bool tiled) {
    const ps_model *m = g->model;
    g->p = p;
    g->tiled = tiled;
    g->n_used = 0;
    p->buffers = gc_array(g, GC_MAX_BUFFERS, sizeof *p->buffers);
    p->instrs = gc_array(g, GC_MAX_INSTRS, sizeof *p->instrs);
    p->blocks = gc_array(g, GC_MAX_BLOCKS, sizeof *p->blocks);
    p->entries = gc_array(g, GC_MAX_BUFFERS, sizeof *p->entries);
    if (g->level->kv == GC_KV_SLOT) { /* slot 0, as large as the largest home */
        uint64_t most = 0;
        for (uint32_t l = 0; l < m->n_layers; l++) {
            uint64_t rows = ps_model_kv_rows(m, l, g->level->bucket_tokens, PS_TILE_TOKENS);
            uint64_t bytes = ps_model_kv_bytes(m, l, rows) * g->level->n_seqs;
            most = bytes > most ? bytes : most;
        }
        gc_slot(g, most);
    }
    gc_block(g, PS_LOOP_ONCE, 1, tiled);
    gc_shard(g, PS_SHARD_EMBED);
    if (gc_space(g, PS_VALUE_X, PS_QUEUE_GPU) == PS_SPACE_VRAM) {
        ps_instr *c = gc_instr(g, PS_OP_COPY, PS_QUEUE_GPU, PS_SHARD_EMBED);
        c->src[0] = gc_buffer(g, PS_VALUE_X, PS_FMT_F32, PS_SPACE_HOST, m->n_embd, 0);
        c->dst = gc_buffer(g, PS_VALUE_X, PS_FMT_F32, PS_SPACE_VRAM, m->n_embd, 0);
    }
    gc_block(g, PS_LOOP_LAYERS, m->n_layers, tiled);
    gc_shard(g, PS_SHARD_ATTN);
    gc_shard(g, gc_find(m, PS_SHARD_FFN) != NULL ? PS_SHARD_FFN : PS_SHARD_MOE);
    gc_block(g, PS_LOOP_ONCE, 1, false);
    gc_shard(g, PS_SHARD_HEAD);
    gc_waits(g, 1);
    if (tiled) {
        gc_waits(g, 2);
        gc_waits(g, 3);
    }
}

/* ---- levels ---- */

static inline void gc_tier(gc *g, ps_level *l, ps_tier *t, uint64_t at0[2]) {
    const ps_program *p = &g->plan->programs[t->program];
    t->max_outputs = t->max_tokens < 4 ? t->max_tokens : 4;
    t->max_direct = 2;
    t->buffer_offset = gc_array(g, p->n_buffers, sizeof *t->buffer_offset);
    t->block_period_empty_s = gc_array(g, p->n_blocks, sizeof(double));
    t->block_period_full_s = gc_array(g, p->n_blocks, sizeof(double));
    t->predicted = gc_array(g, p->n_instrs, sizeof *t->predicted);
    uint64_t at[2] = {at0[0], at0[1]};
    uint64_t tile = t->max_tokens < PS_TILE_TOKENS ? t->max_tokens : PS_TILE_TOKENS;
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        const ps_plan_buffer *b = &p->buffers[i];
        uint64_t rows = b->rows == PS_ROWS_OUTPUTS ? t->max_outputs
                        : b->rows == PS_ROWS_TILE  ? tile
                                                   : t->max_tokens;
        uint64_t bytes = b->rows == PS_ROWS_SLOT ? b->cols : rows * ps_fmt_row_bytes(b->fmt, b->cols);
        at[b->space] = (at[b->space] + 255) / 256 * 256;
        t->buffer_offset[i] = at[b->space];
        at[b->space] += bytes;
    }
    uint64_t cols = g->model->n_vocab;
    for (uint32_t i = 0; i < g->model->n_layers; i++)
        cols = g->model->layers[i].n_ff > cols ? g->model->layers[i].n_ff : cols;
    for (uint32_t i = 0; i < g->plan->n_kernels; i++) {
        const ps_kernel_spec *k = &g->plan->kernels[i];
        uint64_t *bytes = k->device == PS_DEV_CPU ? &t->scratch_bytes : &t->vram_scratch_bytes;
        uint64_t need = ps_scratch_bytes(&k->scratch, tile, cols, l->n_threads, l->bucket_tokens);
        *bytes = need > *bytes ? need : *bytes;
    }
    for (int s = 0; s < 2; s++)
        at[s] = (at[s] + 255) / 256 * 256;
    t->scratch_offset = at[0];
    t->vram_scratch_offset = at[1];
    at[0] += t->scratch_bytes;
    at[1] += t->vram_scratch_bytes;
    l->host_arena_bytes = at[0] > l->host_arena_bytes ? at[0] : l->host_arena_bytes;
    l->vram_work_bytes = at[1] > l->vram_work_bytes ? at[1] : l->vram_work_bytes;
    t->step_empty_s = t->step_full_s = 1e-3 * t->max_tokens;
    t->raw_bound_s = t->reachable_bound_s = 0.5e-3 * t->max_tokens;
}

static inline void gc_residents(gc *g, ps_level *l, const gc_level *want) {
    l->resident = gc_array(g, GC_MAX_RESIDENT, sizeof *l->resident);
    uint64_t at = 0;
    for (int pass = 0; pass < 2; pass++) { /* attention first, so that a level without the rest is a prefix */
        for (uint32_t i = 0; i < g->model->n_shards; i++) {
            const ps_shard *s = &g->model->shards[i];
            bool attn = s->kind == PS_SHARD_ATTN;
            if (s->kind == PS_SHARD_EMBED || attn != (pass == 0) ||
                (want->ffn_on_cpu && s->kind != PS_SHARD_HEAD && !attn) ||
                !(attn ? want->resident_attn : want->resident_ffn))
                continue;
            for (uint32_t o = 0; o < s->n_ops; o++)
                for (int w = 0; w < PS_OP_MAX_WEIGHTS; w++) {
                    ps_role role = s->ops[o].w[w];
                    const ps_weight *weight =
                        role != PS_ROLE_NONE ? ps_model_weight(g->model, s->layer, role) : NULL;
                    if (weight == NULL)
                        continue;
                    ps_resident piece = {
                        .range = {.role = role,
                                  .layer = ps_role_get(role)->per_layer ? s->layer : 0,
                                  .n_rows = weight->experts > 1 ? weight->experts : weight->rows},
                        .offset = at};
                    bool known = false; /* shared between layers: rope factors */
                    for (uint32_t k = 0; k < l->n_resident; k++)
                        known |= l->resident[k].range.role == role &&
                                 l->resident[k].range.layer == piece.range.layer;
                    if (known)
                        continue;
                    if (want->split_moe && weight->experts > 1)
                        piece.range.n_rows /= 2; /* the others are read direct, or are the CPU's */
                    if (l->n_resident == GC_MAX_RESIDENT)
                        abort();
                    l->resident[l->n_resident++] = piece;
                    at += (gc_range_bytes(g, &piece.range) + PS_RESIDENT_ALIGN - 1) / PS_RESIDENT_ALIGN *
                          PS_RESIDENT_ALIGN;
                }
        }
    }
    l->vram_weight_bytes = (at + PS_VRAM_ALIGN - 1) / PS_VRAM_ALIGN * PS_VRAM_ALIGN;
}

static inline void gc_fill_level(gc *g, ps_level *l, const gc_level *want) {
    const ps_model *m = g->model;
    g->level = want;
    snprintf(l->budget, sizeof l->budget, "%s", want->budget);
    l->budget_bytes = want->budget_bytes;
    l->bucket_tokens = want->bucket_tokens;
    l->n_seqs = want->n_seqs;
    l->n_threads = want->n_threads;
    l->placement = gc_array(g, m->n_shards, sizeof *l->placement);
    l->kv = gc_array(g, m->n_layers, sizeof *l->kv);
    for (uint32_t i = 0; i < m->n_shards; i++) {
        ps_shard_kind k = m->shards[i].kind;
        l->placement[i] = gc_shard_on_cpu(g, k)                  ? PS_PLACE_HOST
                          : want->split_moe && k == PS_SHARD_MOE ? PS_PLACE_SPLIT
                          : gc_resident(g, k)                    ? PS_PLACE_VRAM
                          : want->stream                         ? PS_PLACE_SPLIT
                                                                 : PS_PLACE_DIRECT;
    }
    uint64_t at[2] = {0, 0};
    uint32_t most =
        want->tiers[want->n_tiers - 1] < PS_TILE_TOKENS ? want->tiers[want->n_tiers - 1] : PS_TILE_TOKENS;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        ps_kv_home *kv = &l->kv[i];
        kv->space = want->kv == GC_KV_VRAM ? PS_SPACE_VRAM : PS_SPACE_HOST;
        kv->offset = at[kv->space];
        kv->rows = ps_model_kv_rows(m, i, want->bucket_tokens, most);
        kv->bytes = ps_model_kv_bytes(m, i, kv->rows);
        at[kv->space] += kv->bytes * want->n_seqs;
    }
    uint32_t first = g->plan->n_programs;
    gc_program(g, &g->plan->programs[g->plan->n_programs++], false);
    gc_program(g, &g->plan->programs[g->plan->n_programs++], true);
    l->n_tiers = want->n_tiers;
    l->tiers = gc_array(g, want->n_tiers, sizeof *l->tiers);
    for (uint32_t i = 0; i < want->n_tiers; i++) {
        l->tiers[i].max_tokens = want->tiers[i];
        l->tiers[i].program = first + (want->tiers[i] > PS_TILE_TOKENS);
        gc_tier(g, l, &l->tiers[i], at);
    }
    gc_residents(g, l, want);
    l->vram_work_bytes = (l->vram_work_bytes + PS_VRAM_ALIGN - 1) / PS_VRAM_ALIGN * PS_VRAM_ALIGN;
    l->vram_base_bytes = PS_VRAM_OWN + (64 << 20);
    l->peak_host_bytes = m->weight_bytes + l->host_arena_bytes;
}

/* Write the case's plan file: these levels, ascending. */
static inline void gc_write(const engine_case *c, const gc_level *levels, uint32_t n_levels) {
    ps_error err = {0};
    ps_gguf *gguf;
    ps_model *model;
    if (ps_gguf_open(c->model, &gguf, &err) != PS_OK || ps_model_open(gguf, &model, &err) != PS_OK)
        case_die("model", &err);
    gc g = {.model = model, .arena = ps_arena_new(UINT64_MAX)};
    ps_plan *p = g.plan = gc_array(&g, 1, sizeof *p);
    p->arena = g.arena;
    p->version = PS_PLAN_VERSION;
    snprintf(p->tool, sizeof p->tool, "test");
    snprintf(p->created, sizeof p->created, "2026-01-02T03:04:05Z");
    snprintf(p->arch, sizeof p->arch, "%s", model->arch_name);
    snprintf(p->model_name, sizeof p->model_name, "%s", model->name);
    memcpy(p->model_hash, model->gguf->hash, PS_HASH_BYTES);
    memset(p->profile_hash, 0xab, PS_HASH_BYTES);
    memset(p->machine_hash, 0x12, PS_HASH_BYTES);
    ps_kernel_set_hash(p->kernel_set);
    p->synthetic_profile = true;
    p->n_layers = model->n_layers;
    p->n_shards = model->n_shards;
    p->shards = gc_array(&g, model->n_shards, sizeof *p->shards);
    for (uint32_t i = 0; i < model->n_shards; i++)
        p->shards[i] =
            (ps_plan_shard){model->shards[i].kind, model->shards[i].layer, model->shards[i].weight_bytes};
    p->kernels = gc_array(&g, GC_MAX_KERNELS + 1, sizeof *p->kernels);
    p->programs = gc_array(&g, 2 * n_levels, sizeof *p->programs);
    p->n_levels = n_levels;
    p->levels = gc_array(&g, n_levels, sizeof *p->levels);
    for (uint32_t i = 0; i < n_levels; i++)
        gc_fill_level(&g, &p->levels[i], &levels[i]);
    uint8_t *binary;
    uint64_t size;
    if (ps_plan_to_binary(p, &binary, &size, &err) != PS_OK ||
        ps_file_write_atomic(c->plan, binary, size, &err) != PS_OK)
        case_die("plan", &err);
    free(binary);
    ps_plan_free(p);
    ps_model_close(model);
    ps_gguf_close(gguf);
}

static inline ps_status gc_try_open(const engine_case *c, const ps_engine_options *extra, ps_engine **out,
                                    ps_error *err) {
    ps_engine_options o = *extra;
    o.model_path = c->model;
    o.plan_path = c->plan;
    o.device = o.device != NULL ? o.device : "emulated";
    return ps_engine_open(&o, out, err);
}

static inline ps_engine *gc_open(const engine_case *c, const ps_engine_options *extra) {
    ps_engine *e;
    ps_error err = {0};
    if (gc_try_open(c, extra, &e, &err) != PS_OK)
        case_die("open", &err);
    return e;
}

#endif
