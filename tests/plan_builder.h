/* Plans for tests, made from a model's own operation lists: simple and safe, not good. Programs, as far as they are asked for:
 *   0 plain    everything on the cpu queue, one tile
 *   1 tiled    the same over tiles
 *   2 gpu      feed-forward shards resident on the GPU, the head's product split between CPU and GPU
 *   3 stream   attention's weights fetched into slots, feed-forward's a layer ahead with entries; KV in a slot
 *   4 the same over tiles
 *   5 split    attention direct; hidden columns of the feed-forward block, or experts, on GPU and CPU at the same time
 *   6 ranges   attention resident; the feed-forward block streamed by ranges of rows or experts
 * Buffers of attention and of feed-forward share bytes. */
#ifndef PS_TESTS_PLAN_BUILDER_H
#define PS_TESTS_PLAN_BUILDER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "model/model.h"
#include "schemas/plan.h"

enum {
    PB_MAX_KERNELS = 64,
    PB_MAX_BUFFERS = 96,
    PB_MAX_INSTRS = 128,
    PB_MAX_BLOCKS = 16,
    PB_MAX_RESIDENT = 512
};

typedef struct pb_config {
    bool gpu;
    uint64_t bucket_tokens;
    uint32_t n_seqs, n_threads, n_tiers;
    uint32_t tiers[20];    /* max_tokens, ascending */
    uint32_t programs[20]; /* of each tier */
    bool kv_in_vram;       /* homes of every other layer */
} pb_config;

typedef struct pb {
    const ps_model *model;
    ps_arena *arena;
    ps_plan *plan;
    ps_program *program; /* being built */
    uint16_t slot[32];   /* 1 + buffer of its slots */
} pb;

static inline void *pb_array(pb *b, uint64_t n, uint64_t size) {
    void *p = ps_arena_array(b->arena, n, size);
    if (p == NULL)
        abort();
    return p;
}

static inline uint32_t pb_kernel(pb *b, ps_op op, ps_dtype wtype, ps_fmt in, ps_fmt out,
                                 ps_processor device) {
    ps_plan *p = b->plan;
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        const ps_kernel_spec *k = &p->kernels[i];
        if (k->op == op && k->wtype == wtype && k->in_fmt == in && k->out_fmt == out && k->device == device)
            return k->id;
    }
    if (p->n_kernels == PB_MAX_KERNELS)
        abort();
    ps_kernel_spec *k = &p->kernels[p->n_kernels++];
    const ps_dtype_info *type = wtype == PS_DTYPE_NONE ? NULL : ps_dtype_find(wtype);
    *k = (ps_kernel_spec){.id = p->n_kernels * 3,
                          .op = op,
                          .wtype = wtype,
                          .in_fmt = in,
                          .out_fmt = out,
                          .device = device,
                          .min_tokens = 1,
                          .max_tokens = UINT32_MAX};
    snprintf(k->name, sizeof k->name, "%s.%s.%s.%s.%s", ps_processor_name(device), ps_op_get(op)->name,
             type != NULL ? type->name : "none", ps_fmt_name(in), ps_fmt_name(out));
    if (op == PS_OP_MATMUL && device == PS_DEV_CPU)
        k->scratch = (ps_scratch_coef){.base = 64, .per_token = 8, .per_token_col = 1, .per_thread = 16};
    if (op == PS_OP_ATTENTION && device == PS_DEV_CUDA)
        k->scratch = (ps_scratch_coef){.base = 64, .kv_chunk = 4096, .per_token_col_chunk = 1};
    return k->id;
}

/* The buffer for columns [col0, col0 + cols) of a value. */
static inline uint16_t pb_slice(pb *b, ps_value value, ps_fmt fmt, ps_space space, ps_rows rows,
                                uint32_t col0, uint32_t cols) {
    ps_program *p = b->program;
    for (uint32_t i = 0; i < p->n_buffers; i++)
        if (p->buffers[i].value == value && p->buffers[i].fmt == fmt && p->buffers[i].space == space &&
            p->buffers[i].col0 == col0 && p->buffers[i].cols == cols)
            return (uint16_t)i;
    if (p->n_buffers == PB_MAX_BUFFERS)
        abort();
    p->buffers[p->n_buffers] = (ps_plan_buffer){value, space, fmt, rows, col0, cols};
    return (uint16_t)p->n_buffers++;
}

static inline uint16_t pb_buffer(pb *b, ps_value value, ps_fmt fmt, ps_space space, ps_rows rows,
                                 uint32_t cols) {
    return pb_slice(b, value, fmt, space, rows, 0, cols);
}

/* Columns of a value in any layer of its kind; rows it has. */
static inline ps_rows pb_rows(pb *b, ps_value v) {
    (void)b;
    if (v == PS_VALUE_LAST || v == PS_VALUE_LAST_NORM || v == PS_VALUE_LOGITS || v == PS_VALUE_TOKENS)
        return PS_ROWS_OUTPUTS;
    return v == PS_VALUE_X ? PS_ROWS_STEP : PS_ROWS_TILE;
}

static inline ps_instr *pb_instr(pb *b, ps_op op, ps_queue queue, ps_shard_kind shard) {
    ps_program *p = b->program;
    if (p->n_instrs == PB_MAX_INSTRS)
        abort();
    ps_instr *in = &p->instrs[p->n_instrs++];
    *in = (ps_instr){.op = op, .queue = queue, .shard = shard, .dst = PS_NO_BUFFER};
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        in->w[i] = PS_ROLE_NONE;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        in->src[i] = PS_NO_BUFFER;
    in->n_waits = 1; /* each for the one before it; the first of the stream for nothing */
    in->wait[0] = 1;
    p->blocks[p->n_blocks - 1].n_instrs++;
    return in;
}

static inline void pb_block(pb *b, ps_loop loop, uint32_t layer0, uint32_t n_layers, bool over_tiles) {
    ps_program *p = b->program;
    if (p->n_blocks == PB_MAX_BLOCKS)
        abort();
    p->blocks[p->n_blocks++] = (ps_block){.loop = loop,
                                          .layer0 = layer0,
                                          .n_layers = n_layers,
                                          .over_tiles = over_tiles,
                                          .instr0 = p->n_instrs};
}

static inline ps_space pb_space(ps_queue q) {
    return q == PS_QUEUE_GPU ? PS_SPACE_VRAM : PS_SPACE_HOST;
}

/* Columns of the value that op source i has: from the operation of the shard that makes it, or n_embd. */
static inline uint32_t pb_src_cols(const ps_shard *s, uint32_t o, uint32_t i, const ps_model *m) {
    ps_value v = s->ops[o].src[i];
    for (uint32_t k = o; k-- > 0;)
        if (s->ops[k].dst == v)
            return s->ops[k].rows;
    return m->n_embd;
}

/* Products of quantised weights take q8. */
static inline ps_fmt pb_src_fmt(const ps_op_desc *op, ps_dtype wtype, uint32_t i) {
    if (op->op == PS_OP_MOE_DISPATCH && i == 1)
        return PS_FMT_SEL;
    bool product = op->op == PS_OP_MATMUL || op->op == PS_OP_MOE_DISPATCH;
    return i == 0 && product && wtype != PS_DTYPE_F32 && wtype != PS_DTYPE_F16 ? PS_FMT_Q8 : PS_FMT_F32;
}

static inline ps_instr *pb_op(pb *b, const ps_shard *s, uint32_t o, ps_queue queue) {
    const ps_op_desc *op = &s->ops[o];
    ps_processor device = queue == PS_QUEUE_GPU ? PS_DEV_CUDA : PS_DEV_CPU;
    ps_space space = pb_space(queue);
    ps_dtype wtype = PS_DTYPE_NONE;
    if (op->w[0] != PS_ROLE_NONE)
        wtype = ps_model_weight(b->model, s->layer, op->w[0])->type;
    if (op->src[0] != PS_VALUE_NONE && pb_src_fmt(op, wtype, 0) == PS_FMT_Q8) {
        bool fresh = true; /* converted already for an operation of this shard before? */
        for (uint32_t k = o; k-- > 0 && s->ops[k].dst != op->src[0];)
            fresh = fresh && !(s->ops[k].src[0] == op->src[0] && s->ops[k].op == PS_OP_MATMUL &&
                               ps_model_weight(b->model, s->layer, s->ops[k].w[0])->type != PS_DTYPE_F32);
        uint32_t cols = pb_src_cols(s, o, 0, b->model);
        ps_rows rows = pb_rows(b, op->src[0]);
        uint16_t from = pb_buffer(b, op->src[0], PS_FMT_F32, space, rows, cols);
        uint16_t to = pb_buffer(b, op->src[0], PS_FMT_Q8, space, rows, cols);
        if (fresh) {
            ps_instr *c = pb_instr(b, PS_OP_CONVERT, queue, s->kind);
            c->kernel = pb_kernel(b, PS_OP_CONVERT, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_Q8, device);
            c->src[0] = from;
            c->dst = to;
        }
    }
    ps_instr *in = pb_instr(b, op->op, queue, s->kind);
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        in->w[i] = op->w[i];
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        in->at[i] = queue == PS_QUEUE_GPU && op->w[i] != PS_ROLE_NONE ? PS_AT_VRAM : PS_AT_HOST;
    ps_fmt in_fmt = PS_FMT_NONE, out_fmt = PS_FMT_NONE;
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++) {
        if (op->src[i] == PS_VALUE_NONE)
            continue;
        ps_fmt fmt = pb_src_fmt(op, wtype, i);
        in->src[i] =
            pb_buffer(b, op->src[i], fmt, space, pb_rows(b, op->src[i]), pb_src_cols(s, o, i, b->model));
        in_fmt = i == 0 ? fmt : in_fmt;
    }
    if (op->dst != PS_VALUE_NONE) {
        out_fmt = op->op == PS_OP_MOE_ROUTE ? PS_FMT_SEL : op->op == PS_OP_SAMPLE ? PS_FMT_I32 : PS_FMT_F32;
        in->dst = pb_buffer(b, op->dst, out_fmt, space, pb_rows(b, op->dst), op->rows);
    }
    in->kernel = pb_kernel(b, op->op, wtype, in_fmt, out_fmt, device);
    return in;
}

static inline ps_instr *pb_copy(pb *b, ps_value v, ps_fmt fmt, uint32_t cols, bool to_vram,
                                ps_shard_kind shard) {
    ps_instr *in = pb_instr(b, PS_OP_COPY, to_vram ? PS_QUEUE_H2D : PS_QUEUE_D2H, shard);
    in->src[0] = pb_buffer(b, v, fmt, to_vram ? PS_SPACE_HOST : PS_SPACE_VRAM, pb_rows(b, v), cols);
    in->dst = pb_buffer(b, v, fmt, to_vram ? PS_SPACE_VRAM : PS_SPACE_HOST, pb_rows(b, v), cols);
    return in;
}

static inline void pb_shard(pb *b, const ps_shard *s, ps_queue queue) {
    if (queue == PS_QUEUE_GPU)
        pb_copy(b, PS_VALUE_X, PS_FMT_F32, b->model->n_embd, true, s->kind);
    for (uint32_t o = 0; o < s->n_ops; o++)
        pb_op(b, s, o, queue);
    if (queue == PS_QUEUE_GPU)
        pb_copy(b, PS_VALUE_X, PS_FMT_F32, b->model->n_embd, false, s->kind);
}

/* The head with the first half of the vocabulary on the CPU, the rest on the GPU, both at once. */
static inline void pb_split_head(pb *b, const ps_shard *s) {
    for (uint32_t o = 0; o < s->n_ops; o++) {
        if (s->ops[o].op != PS_OP_MATMUL) {
            pb_op(b, s, o, PS_QUEUE_CPU);
            continue;
        }
        uint64_t half = s->ops[o].rows / 2, rest = s->ops[o].rows - half;
        ps_instr *cpu = pb_op(b, s, o, PS_QUEUE_CPU); /* with its convert, if any */
        ps_instr part = *cpu;
        b->program->n_instrs--; /* taken back, to go behind the GPU's */
        b->program->blocks[b->program->n_blocks - 1].n_instrs--;
        ps_fmt fmt = b->program->buffers[part.src[0]].fmt;
        pb_copy(b, s->ops[o].src[0], fmt, b->program->buffers[part.src[0]].cols, true, s->kind);
        ps_instr *gpu = pb_instr(b, PS_OP_MATMUL, PS_QUEUE_GPU, s->kind);
        gpu->w[0] = part.w[0];
        gpu->w[1] = part.w[1];
        gpu->src[0] = pb_buffer(b, s->ops[o].src[0], fmt, PS_SPACE_VRAM, PS_ROWS_OUTPUTS, s->ops[o].cols);
        gpu->dst = pb_buffer(b, s->ops[o].dst, PS_FMT_F32, PS_SPACE_VRAM, PS_ROWS_OUTPUTS, s->ops[o].rows);
        gpu->kernel = pb_kernel(b, PS_OP_MATMUL, ps_model_weight(b->model, 0, part.w[0])->type, fmt,
                                PS_FMT_F32, PS_DEV_CUDA);
        gpu->row0 = half;
        gpu->n_rows = rest;
        cpu = pb_instr(b, PS_OP_MATMUL, PS_QUEUE_CPU, s->kind);
        *cpu = part;
        cpu->row0 = 0;
        cpu->n_rows = half;
        cpu->wait[0] = 3; /* what made the source; copy and GPU go on meanwhile */
        ps_instr *back = pb_copy(b, s->ops[o].dst, PS_FMT_F32, s->ops[o].rows, false, s->kind);
        back->row0 = half;
        back->n_rows = rest;
        back->wait[0] = 2;
        ps_instr *next = pb_op(b, s, ++o, PS_QUEUE_CPU); /* sample */
        next->n_waits = 2;
        next->wait[1] = 2;
    }
}

static inline const ps_shard *pb_find(const ps_model *m, ps_shard_kind kind, uint32_t layer) {
    for (uint32_t i = 0; i < m->n_shards; i++)
        if (m->shards[i].kind == kind && m->shards[i].layer == layer)
            return &m->shards[i];
    return NULL;
}

#include "tests/plan_builder_gpu.h"

static inline void pb_layer(pb *b, uint32_t kind) {
    const ps_model *m = b->model;
    const ps_shard *attn = pb_find(m, PS_SHARD_ATTN, 0), *ffn = pb_find(m, PS_SHARD_FFN, 0);
    bool moe = ffn == NULL;
    ffn = moe ? pb_find(m, PS_SHARD_MOE, 0) : ffn;
    if (kind <= 2) {
        pb_shard(b, attn, PS_QUEUE_CPU);
        pb_shard(b, ffn, kind == 2 ? PS_QUEUE_GPU : PS_QUEUE_CPU);
        return;
    }
    if (kind <= 4) {
        pb_gpu_shard(b, attn, PB_NOW, true, kind == 4);
        pb_gpu_shard(b, ffn, PB_AHEAD, false, kind == 4);
    } else if (kind == 5) {
        pb_gpu_shard(b, attn, PB_DIRECT, false, false);
        (moe ? pb_split_moe : pb_split_ffn)(b, ffn);
    } else {
        pb_gpu_shard(b, attn, PB_VRAM, false, false);
        pb_ranges_shard(b, ffn);
    }
}

static inline void pb_program(pb *b, ps_program *p, uint32_t kind) {
    const ps_model *m = b->model;
    bool tiled = kind == 1 || kind == 4;
    b->program = p;
    memset(b->slot, 0, sizeof b->slot);
    p->buffers = pb_array(b, PB_MAX_BUFFERS, sizeof *p->buffers);
    p->instrs = pb_array(b, PB_MAX_INSTRS, sizeof *p->instrs);
    p->blocks = pb_array(b, PB_MAX_BLOCKS, sizeof *p->blocks);
    pb_block(b, PS_LOOP_ONCE, 0, 1, tiled);
    pb_shard(b, pb_find(m, PS_SHARD_EMBED, 0), PS_QUEUE_CPU);
    if (kind > 2)
        pb_copy(b, PS_VALUE_X, PS_FMT_F32, m->n_embd, true, PS_SHARD_EMBED);
    pb_block(b, PS_LOOP_LAYERS, 0, m->n_layers, tiled);
    pb_layer(b, kind);
    if (kind > 2) {
        pb_block(b, PS_LOOP_ONCE, 0, 1, tiled);
        pb_copy(b, PS_VALUE_X, PS_FMT_F32, m->n_embd, false, PS_SHARD_EMBED);
    }
    pb_block(b, PS_LOOP_ONCE, 0, 1, false);
    if (kind == 2)
        pb_split_head(b, pb_find(m, PS_SHARD_HEAD, 0));
    else
        pb_shard(b, pb_find(m, PS_SHARD_HEAD, 0), PS_QUEUE_CPU);
    pb_wait_over(p);
}

static inline bool pb_is_attention(ps_value v) {
    return v == PS_VALUE_Q || v == PS_VALUE_K || v == PS_VALUE_V || v == PS_VALUE_ATT;
}

static inline bool pb_is_ffn(ps_value v) {
    return v == PS_VALUE_GATE || v == PS_VALUE_UP || v == PS_VALUE_ACT || v == PS_VALUE_ROUTER ||
           v == PS_VALUE_SEL;
}

static inline uint64_t pb_bytes(const ps_plan_buffer *buffer, const ps_tier *t) {
    if (buffer->rows == PS_ROWS_SLOT)
        return buffer->cols;
    uint64_t rows = buffer->rows == PS_ROWS_OUTPUTS ? t->max_outputs : t->max_tokens;
    if (buffer->rows == PS_ROWS_TILE && rows > PS_TILE_TOKENS)
        rows = PS_TILE_TOKENS;
    return rows * ps_fmt_row_bytes(buffer->fmt, buffer->cols);
}

static inline void pb_tier(pb *b, ps_level *level, ps_tier *t, uint64_t arena0[2]) {
    const ps_program *p = &b->plan->programs[t->program];
    t->max_outputs = t->max_tokens < 4 ? t->max_tokens : 4;
    t->buffer_offset = pb_array(b, p->n_buffers, sizeof *t->buffer_offset);
    t->block_period_empty_s = pb_array(b, p->n_blocks, sizeof *t->block_period_empty_s);
    t->block_period_full_s = pb_array(b, p->n_blocks, sizeof *t->block_period_full_s);
    t->predicted = pb_array(b, PB_MAX_INSTRS, sizeof *t->predicted);
    uint64_t used[2] = {arena0[0], arena0[1]};
    /* attention and feed-forward side by side in one place, then everything else */
    for (int pass = 0; pass < 2; pass++) {
        uint64_t att[2] = {used[0], used[1]}, ffn[2] = {used[0], used[1]};
        for (uint32_t i = 0; i < p->n_buffers; i++) {
            const ps_plan_buffer *buf = &p->buffers[i];
            bool a = pb_is_attention(buf->value), f = pb_is_ffn(buf->value);
            uint64_t *at = a ? &att[buf->space] : f ? &ffn[buf->space] : &used[buf->space];
            if ((pass == 0) != (a || f))
                continue;
            *at = buf->rows == PS_ROWS_SLOT ? pb_align(*at, PS_RESIDENT_ALIGN) : *at;
            t->buffer_offset[i] = *at;
            *at += pb_bytes(buf, t);
        }
        for (int s = 0; s < 2 && pass == 0; s++)
            used[s] = att[s] > ffn[s] ? att[s] : ffn[s];
    }
    uint64_t rows = t->max_tokens < PS_TILE_TOKENS ? t->max_tokens : PS_TILE_TOKENS;
    for (uint32_t i = 0; i < b->plan->n_kernels; i++) {
        uint64_t longest = b->model->n_vocab, need;
        for (uint32_t l = 0; l < b->model->n_layers; l++)
            longest = b->model->layers[l].n_ff > longest ? b->model->layers[l].n_ff : longest;
        need = ps_scratch_bytes(&b->plan->kernels[i].scratch, rows, longest, level->n_threads,
                                level->bucket_tokens);
        uint64_t *most =
            b->plan->kernels[i].device == PS_DEV_CUDA ? &t->vram_scratch_bytes : &t->scratch_bytes;
        *most = need > *most ? need : *most;
    }
    t->scratch_offset = used[0];
    used[0] += t->scratch_bytes;
    if (level->budget_bytes != 0) {
        t->vram_scratch_offset = pb_align(used[1], PS_RESIDENT_ALIGN);
        used[1] = t->vram_scratch_offset + t->vram_scratch_bytes;
    } else {
        t->vram_scratch_bytes = 0;
    }
    t->max_direct = t->program == 5 ? 1 : 0;
    level->host_arena_bytes = used[0] > level->host_arena_bytes ? used[0] : level->host_arena_bytes;
    level->vram_work_bytes = used[1] > level->vram_work_bytes ? used[1] : level->vram_work_bytes;
    for (uint32_t i = 0; i < p->n_instrs; i++)
        t->predicted[i] = (ps_prediction){i * 1e-6, i * 1e-6 + 0.9e-6, i * 1.1e-6, i * 1.1e-6 + 1e-6 / 3};
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        t->block_period_empty_s[i] = p->blocks[i].n_instrs * 1e-6;
        t->block_period_full_s[i] = p->blocks[i].n_instrs * 1.1e-6;
    }
    t->step_empty_s = 1e-3 * t->max_tokens;
    t->step_full_s = 1.1e-3 * t->max_tokens;
    t->raw_bound_s = 0.5e-3 * t->max_tokens;
    t->reachable_bound_s = 0.7e-3 * t->max_tokens;
}

static inline void pb_level(pb *b, ps_level *level, const pb_config *c) {
    const ps_model *m = b->model;
    snprintf(level->budget, sizeof level->budget, "%s", c->gpu ? "2GiB" : "host");
    level->budget_bytes = c->gpu ? (uint64_t)2 << 30 : 0;
    level->bucket_tokens = c->bucket_tokens;
    level->n_seqs = c->n_seqs;
    level->n_threads = c->n_threads;
    level->placement = pb_array(b, m->n_shards, sizeof *level->placement);
    level->kv = pb_array(b, m->n_layers, sizeof *level->kv);
    uint64_t at[2] = {0, 0};
    uint32_t most = c->tiers[c->n_tiers - 1] < PS_TILE_TOKENS ? c->tiers[c->n_tiers - 1] : PS_TILE_TOKENS;
    for (uint32_t l = 0; l < m->n_layers; l++) {
        ps_kv_home *kv = &level->kv[l];
        kv->space = c->kv_in_vram && l % 2 != 0 ? PS_SPACE_VRAM : PS_SPACE_HOST;
        kv->offset = at[kv->space];
        kv->rows = ps_model_kv_rows(m, l, c->bucket_tokens, most);
        kv->bytes = ps_model_kv_bytes(m, l, kv->rows);
        at[kv->space] += kv->bytes * c->n_seqs;
    }
    level->n_tiers = c->n_tiers;
    level->tiers = pb_array(b, c->n_tiers, sizeof *level->tiers);
    for (uint32_t i = 0; i < c->n_tiers; i++) {
        level->tiers[i].max_tokens = c->tiers[i];
        level->tiers[i].program = c->programs[i];
    }
    pb_kv_slots(b, level);
    for (uint32_t i = 0; i < c->n_tiers; i++)
        pb_tier(b, level, &level->tiers[i], at);
    for (uint32_t i = 0; i < m->n_shards; i++)
        level->placement[i] = pb_placement(b, level, &m->shards[i]);
    level->vram_work_bytes = pb_align(level->vram_work_bytes, PS_VRAM_ALIGN);
    if (c->gpu)
        pb_residents(b, level);
    level->peak_host_bytes = m->weight_bytes + level->host_arena_bytes;
}

/* One plan with one level per config. Freed by ps_plan_free. */
static inline ps_plan *pb_plan(const ps_model *m, const pb_config *configs, uint32_t n_configs) {
    pb b = {.model = m, .arena = ps_arena_new(UINT64_MAX)};
    ps_plan *p = b.arena != NULL ? ps_arena_alloc(b.arena, sizeof *p) : NULL;
    if (p == NULL)
        abort();
    b.plan = p;
    p->arena = b.arena;
    p->version = PS_PLAN_VERSION;
    snprintf(p->tool, sizeof p->tool, "plan_builder \"1\"");
    snprintf(p->created, sizeof p->created, "2026-01-02T03:04:05Z");
    snprintf(p->arch, sizeof p->arch, "%s", m->arch_name);
    snprintf(p->model_name, sizeof p->model_name, "%s", m->name);
    memcpy(p->model_hash, m->gguf->hash, PS_HASH_BYTES);
    memset(p->profile_hash, 0xab, PS_HASH_BYTES);
    memset(p->machine_hash, 0x12, PS_HASH_BYTES);
    memset(p->kernel_set, 0x34, PS_HASH_BYTES);
    p->synthetic_profile = true;
    p->facts = (ps_facts){.cpu_model = "Test \"CPU\"",
                          .n_allowed = 7,
                          .memory_bytes = (uint64_t)64 << 30,
                          .gpu_name = "Test GPU",
                          .gpu_driver = "999.1",
                          .vram_bytes = (uint64_t)8 << 30};
    ps_facts_gpu_hash("GPU-0", p->facts.gpu_hash);
    p->n_layers = m->n_layers;
    p->n_shards = m->n_shards;
    p->shards = pb_array(&b, m->n_shards, sizeof *p->shards);
    for (uint32_t i = 0; i < m->n_shards; i++)
        p->shards[i] = (ps_plan_shard){m->shards[i].kind, m->shards[i].layer, m->shards[i].weight_bytes};
    p->kernels = pb_array(&b, PB_MAX_KERNELS, sizeof *p->kernels);
    p->n_programs = 2;
    for (uint32_t i = 0; i < n_configs; i++)
        for (uint32_t t = 0; t < configs[i].n_tiers; t++)
            if (configs[i].programs[t] >= p->n_programs)
                p->n_programs = configs[i].programs[t] + 1;
    p->programs = pb_array(&b, p->n_programs, sizeof *p->programs);
    for (uint32_t i = 0; i < p->n_programs; i++) {
        bool used = i <= 1; /* the others may be for models of other shapes: plain instead */
        for (uint32_t k = 0; k < n_configs; k++)
            for (uint32_t t = 0; t < configs[k].n_tiers; t++)
                used = used || configs[k].programs[t] == i;
        pb_program(&b, &p->programs[i], used ? i : 0);
    }
    p->n_levels = n_configs;
    p->levels = pb_array(&b, n_configs, sizeof *p->levels);
    for (uint32_t i = 0; i < n_configs; i++)
        pb_level(&b, &p->levels[i], &configs[i]);
    return p;
}

#endif
