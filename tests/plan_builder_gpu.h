/* Programs of plan_builder.h in which weights are resident, read direct, streamed or split. Every instruction waits
 * for the one before it (and over those that do not run in every tile for the one before these), so order is never
 * in question; tests take waits away. Included by plan_builder.h alone. */
#ifndef PS_TESTS_PLAN_BUILDER_GPU_H
#define PS_TESTS_PLAN_BUILDER_GPU_H

/* Slots: attention's weights, feed-forward's weights, KV. */
enum { PB_SLOT_ATTN = 0, PB_SLOT_FFN = 12, PB_SLOT_KV = 24 };

/* Where a shard's weights are. NOW: copied into slots just before use; AHEAD: once used, the next layer's are copied into the
 * same slot, and entries hold layer 0's. */
typedef enum pb_where { PB_VRAM, PB_DIRECT, PB_NOW, PB_AHEAD } pb_where;

static inline uint64_t pb_align(uint64_t n, uint64_t align) {
    return (n + align - 1) / align * align;
}

static inline uint16_t pb_slot(pb *b, uint32_t k, uint64_t bytes) {
    ps_program *p = b->program;
    uint32_t size = (uint32_t)pb_align(bytes, PS_RESIDENT_ALIGN);
    if (b->slot[k] == 0) {
        if (p->n_buffers == PB_MAX_BUFFERS)
            abort();
        p->buffers[p->n_buffers] =
            (ps_plan_buffer){PS_VALUE_NONE, PS_SPACE_VRAM, PS_FMT_NONE, PS_ROWS_SLOT, 0, size};
        b->slot[k] = (uint16_t)(1 + p->n_buffers++);
    }
    ps_plan_buffer *slot = &p->buffers[b->slot[k] - 1];
    slot->cols = slot->cols > size ? slot->cols : size;
    return (uint16_t)(b->slot[k] - 1);
}

static inline ps_weight_range pb_whole(pb *b, ps_role role, uint32_t layer) {
    const ps_weight *w = ps_model_weight(b->model, layer, role);
    return (ps_weight_range){
        role, ps_role_get(role)->per_layer ? layer : 0, 0, w->experts > 1 ? w->experts : w->rows, 0, 0};
}

static inline uint64_t pb_range_bytes(pb *b, const ps_weight_range *range) {
    uint64_t bytes;
    if (!ps_weight_range_bytes(b->model, range, &bytes, NULL))
        abort();
    return bytes;
}

/* A copy of a range into slot k. */
static inline ps_instr *pb_fetch(pb *b, ps_shard_kind shard, ps_weight_range range, uint32_t k) {
    uint16_t slot = pb_slot(b, k, pb_range_bytes(b, &range));
    ps_instr *in = pb_instr(b, PS_OP_COPY, PS_QUEUE_H2D, shard);
    in->w[0] = range.role;
    in->row0 = range.row0;
    in->n_rows = range.n_rows;
    in->col0 = range.col0;
    in->n_cols = range.n_cols;
    in->dst = slot;
    return in;
}

static inline void pb_entry(pb *b, uint32_t k, ps_weight_range range) {
    ps_program *p = b->program;
    if (p->entries == NULL)
        p->entries = pb_array(b, PB_SLOT_KV, sizeof *p->entries);
    uint16_t slot = pb_slot(b, k, pb_range_bytes(b, &range));
    uint32_t at = p->n_entries++;
    for (; at > 0 && p->entries[at - 1].slot > slot; at--)
        p->entries[at] = p->entries[at - 1];
    p->entries[at] = (ps_slot_entry){slot, range};
}

/* A kernel's activation copy: same value and format, other space, on queue gpu. */
static inline uint16_t pb_cross(pb *b, ps_shard_kind shard, uint16_t from, ps_space to) {
    const ps_plan_buffer f = b->program->buffers[from];
    ps_instr *in = pb_instr(b, PS_OP_COPY, PS_QUEUE_GPU, shard);
    in->src[0] = from;
    in->dst = pb_slice(b, f.value, f.fmt, to, f.rows, f.col0, f.cols);
    return in->dst;
}

/* The weights of one operation: fetched now, or there already; *k: the slots in use so far. Sets `at` once the
 * instruction is there. */
static inline void pb_fetch_all(pb *b, const ps_shard *s, const ps_op_desc *op, pb_where where, bool tiled,
                                uint32_t first, uint32_t k) {
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        if (op->w[i] == PS_ROLE_NONE || where < PB_NOW)
            continue;
        uint32_t slot = first + k++;
        if (where == PB_AHEAD)
            pb_entry(b, slot, pb_whole(b, op->w[i], 0));
        else
            pb_fetch(b, s->kind, pb_whole(b, op->w[i], s->layer), slot)->when =
                tiled ? PS_WHEN_FIRST : PS_WHEN_EVERY;
    }
}

static inline void pb_fetch_next(pb *b, const ps_shard *s, const ps_op_desc *op, bool tiled, uint32_t first,
                                 uint32_t k) {
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        if (op->w[i] == PS_ROLE_NONE)
            continue;
        if (ps_role_get(op->w[i])->per_layer) {
            ps_instr *in = pb_fetch(b, s->kind, pb_whole(b, op->w[i], s->layer), first + k);
            in->ahead = true;
            in->when = tiled ? PS_WHEN_LAST : PS_WHEN_EVERY;
        }
        k++;
    }
}

static inline ps_instr *pb_kv_copy(pb *b, ps_queue queue, ps_when when) {
    ps_instr *in = pb_instr(b, PS_OP_COPY, queue, PS_SHARD_ATTN);
    in->kv = (uint16_t)(PS_KV_SLOT + pb_slot(b, PB_SLOT_KV, 1)); /* as large as it must be: pb_kv_slots */
    in->when = when;
    return in;
}

/* A shard on the GPU. kv_slot: KV comes into a slot and goes home again. */
static inline void pb_gpu_shard(pb *b, const ps_shard *s, pb_where where, bool kv_slot, bool tiled) {
    uint32_t first = s->kind == PS_SHARD_ATTN ? PB_SLOT_ATTN : PB_SLOT_FFN, k = 0;
    for (uint32_t o = 0; o < s->n_ops; o++) {
        const ps_op_desc *op = &s->ops[o];
        uint32_t had = k;
        pb_fetch_all(b, s, op, where, tiled, first, had);
        if (kv_slot && op->op == PS_OP_KV_STORE)
            pb_kv_copy(b, PS_QUEUE_H2D, tiled ? PS_WHEN_FIRST : PS_WHEN_EVERY);
        ps_instr *in = pb_op(b, s, o, PS_QUEUE_GPU);
        for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++)
            if (op->w[i] != PS_ROLE_NONE)
                in->at[i] = where == PB_VRAM     ? PS_AT_VRAM
                            : where == PB_DIRECT ? PS_AT_HOST
                                                 : (uint16_t)(PS_AT_SLOT + pb_slot(b, first + k++, 1));
        if (kv_slot && (op->op == PS_OP_KV_STORE || op->op == PS_OP_ATTENTION))
            in->kv = (uint16_t)(PS_KV_SLOT + pb_slot(b, PB_SLOT_KV, 1));
        if (where == PB_AHEAD)
            pb_fetch_next(b, s, op, tiled, first, had);
        if (kv_slot && op->op == PS_OP_ATTENTION)
            pb_kv_copy(b, PS_QUEUE_D2H, tiled ? PS_WHEN_LAST : PS_WHEN_EVERY);
    }
}

/* ---- split: hidden columns, experts ---- */

static inline uint32_t pb_find_op(const ps_shard *s, ps_op op, uint32_t nth) {
    for (uint32_t o = 0; o < s->n_ops; o++)
        if (s->ops[o].op == op && nth-- == 0)
            return o;
    abort();
}

/* The product of rows or columns of a weight, into a slice of its value or all of it. */
static inline ps_instr *pb_product(pb *b, const ps_shard *s, uint32_t o, ps_queue queue, uint16_t src,
                                   uint16_t residual, uint16_t dst) {
    const ps_op_desc *op = &s->ops[o];
    const ps_weight *w = ps_model_weight(b->model, s->layer, op->w[0]);
    const ps_plan_buffer *from = &b->program->buffers[src];
    ps_instr *in = pb_instr(b, PS_OP_MATMUL, queue, s->kind);
    in->w[0] = op->w[0];
    in->w[1] = op->w[1];
    in->src[0] = src;
    in->src[1] = residual;
    in->dst = dst;
    in->kernel = pb_kernel(b, PS_OP_MATMUL, w->type, from->fmt, PS_FMT_F32,
                           queue == PS_QUEUE_GPU ? PS_DEV_CUDA : PS_DEV_CPU);
    if (from->cols != w->cols) {
        in->col0 = from->col0;
        in->n_cols = from->cols;
        in->w[1] = in->col0 == 0 ? op->w[1] : PS_ROLE_NONE;
    }
    return in;
}

static inline uint16_t pb_converted(pb *b, const ps_shard *s, uint16_t from, ps_dtype type, ps_queue queue) {
    const ps_plan_buffer f = b->program->buffers[from];
    if (type == PS_DTYPE_F32 || type == PS_DTYPE_F16)
        return from;
    ps_instr *in = pb_instr(b, PS_OP_CONVERT, queue, s->kind);
    in->src[0] = from;
    in->dst = pb_slice(b, f.value, PS_FMT_Q8, f.space, f.rows, f.col0, f.cols);
    in->kernel = pb_kernel(b, PS_OP_CONVERT, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_Q8,
                           queue == PS_QUEUE_GPU ? PS_DEV_CUDA : PS_DEV_CPU);
    return in->dst;
}

/* A product of hidden columns, its weights where they are: for NOW fetched into slot k. */
static inline void pb_hidden_product(pb *b, const ps_shard *s, uint32_t o, ps_queue queue, pb_where where,
                                     uint32_t k, ps_weight_range range, uint16_t src, uint16_t residual,
                                     uint16_t dst) {
    if (where == PB_NOW)
        pb_fetch(b, s->kind, range, PB_SLOT_FFN + k);
    ps_instr *in = pb_product(b, s, o, queue, src, residual, dst);
    in->at[0] = where == PB_NOW    ? (uint16_t)(PS_AT_SLOT + pb_slot(b, PB_SLOT_FFN + k, 1))
                : where == PB_VRAM ? PS_AT_VRAM
                                   : PS_AT_HOST;
    in->row0 = range.n_cols == 0 ? range.row0 : 0;
    in->n_rows = range.n_cols == 0 ? range.n_rows : 0;
}

/* Hidden columns [begin, begin + n) on a queue: gate and up by rows, the activation, a partial sum of down. */
static inline void pb_hidden(pb *b, const ps_shard *s, ps_queue queue, pb_where where, uint16_t norm,
                             uint32_t begin, uint32_t n, uint16_t residual, uint16_t sum) {
    uint32_t gate = pb_find_op(s, PS_OP_MATMUL, 0), down = pb_find_op(s, PS_OP_MATMUL, 2);
    uint16_t half[3];
    const ps_value values[3] = {PS_VALUE_GATE, PS_VALUE_UP, PS_VALUE_ACT};
    for (uint32_t i = 0; i < 3; i++)
        half[i] = pb_slice(b, values[i], PS_FMT_F32, pb_space(queue), PS_ROWS_TILE, begin, n);
    for (uint32_t i = 0; i < 2; i++)
        pb_hidden_product(b, s, gate + i, queue, where, i,
                          (ps_weight_range){s->ops[gate + i].w[0], s->layer, begin, n, 0, 0}, norm,
                          PS_NO_BUFFER, half[i]);
    ps_instr *act = pb_instr(b, PS_OP_GLU, queue, s->kind);
    act->src[0] = half[0];
    act->src[1] = half[1];
    act->dst = half[2];
    act->kernel = pb_kernel(b, PS_OP_GLU, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32,
                            queue == PS_QUEUE_GPU ? PS_DEV_CUDA : PS_DEV_CPU);
    ps_dtype type = ps_model_weight(b->model, s->layer, s->ops[down].w[0])->type;
    uint16_t in = pb_converted(b, s, half[2], type, queue);
    pb_hidden_product(b, s, down, queue, where, 2,
                      (ps_weight_range){s->ops[down].w[0], s->layer, 0, s->ops[down].rows, begin, n}, in,
                      residual, sum);
}

static inline ps_instr *pb_join(pb *b, const ps_shard *s, uint16_t sum, uint16_t other) {
    ps_instr *in = pb_instr(b, PS_OP_ADD, PS_QUEUE_GPU, s->kind);
    in->src[0] = in->dst = sum;
    in->src[1] = other;
    in->kernel = pb_kernel(b, PS_OP_ADD, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, PS_DEV_CUDA);
    return in;
}

/* The feed-forward block's hidden columns (1024 or more): 256 from VRAM, 256 direct, then streamed, the last 256 on the
 * CPU. */
static inline void pb_split_ffn(pb *b, const ps_shard *s) {
    uint32_t n_ff = b->model->layers[s->layer].n_ff, down = pb_find_op(s, PS_OP_MATMUL, 2);
    ps_dtype type = ps_model_weight(b->model, s->layer, PS_ROLE_FFN_GATE)->type;
    uint16_t norm = pb_op(b, s, 0, PS_QUEUE_GPU)->dst;
    uint16_t host_norm = pb_cross(b, s->kind, norm, PS_SPACE_HOST);
    uint16_t gpu_in = pb_converted(b, s, norm, type, PS_QUEUE_GPU);
    uint16_t cpu_in = pb_converted(b, s, host_norm, type, PS_QUEUE_CPU);
    ps_value v = s->ops[down].dst;
    uint16_t sum = pb_slice(b, v, PS_FMT_F32, PS_SPACE_VRAM, pb_rows(b, v), 0, b->model->n_embd);
    uint16_t host_sum = pb_slice(b, v, PS_FMT_F32, PS_SPACE_HOST, pb_rows(b, v), 0, b->model->n_embd);
    uint16_t residual = s->ops[down].src[1] == PS_VALUE_NONE ? PS_NO_BUFFER : sum; /* X, in place */
    pb_hidden(b, s, PS_QUEUE_GPU, PB_VRAM, gpu_in, 0, 256, residual, sum);
    pb_hidden(b, s, PS_QUEUE_GPU, PB_DIRECT, gpu_in, 256, 256, sum, sum);
    pb_hidden(b, s, PS_QUEUE_GPU, PB_NOW, gpu_in, 512, n_ff - 768, sum, sum);
    pb_hidden(b, s, PS_QUEUE_CPU, PB_DIRECT, cpu_in, n_ff - 256, 256, PS_NO_BUFFER, host_sum);
    pb_join(b, s, sum, host_sum);
    for (uint32_t o = down + 1; o < s->n_ops; o++)
        pb_op(b, s, o, PS_QUEUE_GPU);
}

/* Near experts on the GPU, far ones on the CPU. */
static inline void pb_split_moe(pb *b, const ps_shard *s) {
    uint32_t last = s->n_ops - 1;
    for (uint32_t o = 0; o < last; o++)
        pb_op(b, s, o, PS_QUEUE_GPU);
    ps_instr *near = pb_op(b, s, last, PS_QUEUE_GPU);
    near->part = PS_MOE_PART_NEAR;
    ps_instr kept = *near; /* behind the copies, for the CPU to begin early */
    b->program->n_instrs--;
    b->program->blocks[b->program->n_blocks - 1].n_instrs--;
    uint16_t from = kept.src[0], sel = pb_cross(b, s->kind, kept.src[1], PS_SPACE_HOST);
    uint16_t norm = pb_cross(b, s->kind, from, PS_SPACE_HOST);
    *pb_instr(b, PS_OP_MOE_DISPATCH, PS_QUEUE_GPU, s->kind) = kept;
    const ps_plan_buffer *f = &b->program->buffers[from];
    ps_instr *far = pb_instr(b, PS_OP_MOE_DISPATCH, PS_QUEUE_CPU, s->kind);
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        far->w[i] = kept.w[i];
    far->part = PS_MOE_PART_FAR;
    far->src[0] = norm;
    far->src[1] = sel;
    far->dst = pb_slice(b, PS_VALUE_X, PS_FMT_F32, PS_SPACE_HOST, PS_ROWS_STEP, 0, b->model->n_embd);
    far->kernel = pb_kernel(b, PS_OP_MOE_DISPATCH, ps_model_weight(b->model, s->layer, kept.w[0])->type,
                            f->fmt, PS_FMT_F32, PS_DEV_CPU);
    pb_join(b, s, kept.dst, far->dst);
}

/* ---- ranges through slots ---- */

/* Rows or experts [row0, row0 + n) of all weights of a kernel, through rotating slots. */
static inline void pb_ranged(pb *b, const ps_shard *s, ps_instr in, uint64_t row0, uint64_t n, uint64_t col0,
                             uint64_t n_cols, uint32_t *k) {
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        if (in.w[i] == PS_ROLE_NONE)
            continue;
        ps_weight_range range = {in.w[i], s->layer, row0, n, col0, n_cols};
        if (in.op == PS_OP_MATMUL && i != 0)
            range = pb_whole(b, in.w[i], s->layer);
        uint32_t slot = PB_SLOT_FFN + (*k)++ % 6;
        pb_fetch(b, s->kind, range, slot);
        in.at[i] = (uint16_t)(PS_AT_SLOT + pb_slot(b, slot, 1));
    }
    in.row0 = row0;
    in.n_rows = n;
    in.col0 = col0;
    in.n_cols = n_cols;
    *pb_instr(b, in.op, PS_QUEUE_GPU, s->kind) = in;
}

/* A feed-forward block that streams: products in two ranges of rows, a mixture in three of experts, the first resident. */
static inline void pb_ranges_shard(pb *b, const ps_shard *s) {
    uint32_t k = 0;
    for (uint32_t o = 0; o < s->n_ops; o++) {
        ps_instr *made = pb_op(b, s, o, PS_QUEUE_GPU), in = *made;
        uint64_t rows = s->ops[o].op == PS_OP_MATMUL ? s->ops[o].rows : b->model->layers[s->layer].n_expert;
        if (in.op != PS_OP_MATMUL && in.op != PS_OP_MOE_DISPATCH)
            continue;
        if (in.op == PS_OP_MOE_DISPATCH) {
            made->n_rows = 2;
            in.src[2] = in.dst;
            pb_ranged(b, s, in, 2, 3, 0, 0, &k);
            pb_ranged(b, s, in, 5, rows - 5, 0, 0, &k);
            continue;
        }
        b->program->n_instrs--;
        b->program->blocks[b->program->n_blocks - 1].n_instrs--;
        pb_ranged(b, s, in, 0, rows / 4, 0, 0, &k);
        pb_ranged(b, s, in, rows / 4, rows - rows / 4, 0, 0, &k);
    }
}

/* ---- what a level needs for its programs ---- */

static inline void pb_piece(pb *b, ps_level *level, ps_weight_range range) {
    if (ps_level_find_resident(level, &range) != NULL)
        return;
    if (level->n_resident == PB_MAX_RESIDENT)
        abort();
    uint64_t at = level->vram_weight_bytes;
    level->resident[level->n_resident++] = (ps_resident){range, at};
    level->vram_weight_bytes = pb_align(at + pb_range_bytes(b, &range), PS_RESIDENT_ALIGN);
}

/* Pieces for everything that looks into VRAM; of near experts, some. */
static inline void pb_residents_of(pb *b, ps_level *level, const ps_instr *in, uint32_t layer) {
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        if (in->w[i] == PS_ROLE_NONE || in->at[i] != PS_AT_VRAM)
            continue;
        ps_weight_range range = pb_whole(b, in->w[i], layer);
        if ((in->op == PS_OP_MATMUL && i == 0) || in->op == PS_OP_MOE_DISPATCH) {
            range.row0 = in->row0;
            range.n_rows = in->n_rows != 0 ? in->n_rows : range.n_rows;
            range.col0 = in->col0;
            range.n_cols = in->n_cols;
        }
        if (in->part == PS_MOE_PART_NEAR) {
            range.row0 = 1;
            range.n_rows = 1;
            pb_piece(b, level, range);
            range.row0 = 4;
            range.n_rows = 2;
        }
        pb_piece(b, level, range);
    }
}

static inline void pb_residents(pb *b, ps_level *level) {
    level->resident = pb_array(b, PB_MAX_RESIDENT, sizeof *level->resident);
    for (uint32_t t = 0; t < level->n_tiers; t++) {
        const ps_program *p = &b->plan->programs[level->tiers[t].program];
        for (uint32_t k = 0; k < p->n_blocks; k++)
            for (uint32_t l = 0; l < p->blocks[k].n_layers; l++)
                for (uint32_t i = 0; i < p->blocks[k].n_instrs; i++)
                    pb_residents_of(b, level, &p->instrs[p->blocks[k].instr0 + i], p->blocks[k].layer0 + l);
    }
    level->vram_weight_bytes = pb_align(level->vram_weight_bytes, PS_VRAM_ALIGN);
}

/* The narrowest placement that lets a shard's weights be used as the programs do. */
static inline ps_placement pb_placement(pb *b, const ps_level *level, const ps_shard *s) {
    bool cpu = false, host = false, vram = false, slot = false;
    for (uint32_t t = 0; t < level->n_tiers; t++) {
        const ps_program *p = &b->plan->programs[level->tiers[t].program];
        for (uint32_t k = 0; k < p->n_instrs; k++)
            for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
                const ps_instr *in = &p->instrs[k];
                if (in->shard != s->kind || in->w[i] == PS_ROLE_NONE || in->op == PS_OP_COPY)
                    continue;
                cpu |= in->queue == PS_QUEUE_CPU;
                host |= in->queue == PS_QUEUE_GPU && in->at[i] == PS_AT_HOST;
                vram |= in->at[i] == PS_AT_VRAM;
                slot |= in->at[i] >= PS_AT_SLOT;
            }
    }
    if (cpu)
        return host || vram || slot ? PS_PLACE_SPLIT : PS_PLACE_HOST;
    if (host)
        return slot ? PS_PLACE_SPLIT : PS_PLACE_DIRECT;
    return slot ? PS_PLACE_STREAM : PS_PLACE_VRAM;
}

/* KV slots of a level's programs hold the largest cache. */
static inline void pb_kv_slots(pb *b, ps_level *level) {
    uint64_t most = 0;
    for (uint32_t l = 0; l < b->model->n_layers; l++)
        most = level->kv[l].bytes * level->n_seqs > most ? level->kv[l].bytes * level->n_seqs : most;
    for (uint32_t t = 0; t < level->n_tiers; t++) {
        ps_program *p = &b->plan->programs[level->tiers[t].program];
        for (uint32_t i = 0; i < p->n_instrs; i++)
            if (p->instrs[i].kv != PS_KV_HOME && p->buffers[p->instrs[i].kv - PS_KV_SLOT].cols < most)
                p->buffers[p->instrs[i].kv - PS_KV_SLOT].cols = (uint32_t)pb_align(most, PS_RESIDENT_ALIGN);
    }
}

/* Waits over instructions that do not run in every tile reach the one before them as well. */
static inline void pb_wait_over(ps_program *p) {
    for (uint32_t k = 0; k < p->n_blocks; k++)
        for (uint32_t i = p->blocks[k].instr0 + 1; i < p->blocks[k].instr0 + p->blocks[k].n_instrs; i++) {
            ps_instr *in = &p->instrs[i];
            for (uint32_t back = 1;
                 back < i - p->blocks[k].instr0 + 1 && p->instrs[i - back].when != PS_WHEN_EVERY &&
                 in->n_waits == back && in->wait[back - 1] == back;
                 back++)
                in->wait[in->n_waits++] = back + 1;
        }
}

#endif
