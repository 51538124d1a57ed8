/* The checker: walks the expanded stream of every tier of a level and proves it safe for a model.
 *
 * What a step computes is fixed by the model's operation lists: each operation reads the latest earlier result
 * of the values it names, and its own result gets a number. The walk follows which number every buffer
 * holds; an instruction must read exactly the numbers its operation wants. All accesses to the same bytes that
 * conflict must be ordered by waits and queues, so the result does not depend on timing. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/checked.h"
#include "schemas/check_state.h"
#include "schemas/instruction_set.h"
#include "schemas/plan_check.h"
#include "schemas/plan_fields.h"

/* An operation executed by parts, until the parts are all there. */
typedef struct open_op {
    uint32_t op, tile, n_parts;
    ps_part parts[PS_CHECK_PARTS];
} open_op;

enum { MAX_OPEN_OPS = 16, OP_TODO = 0, OP_PARTLY, OP_DONE };

typedef struct kv_state {
    uint32_t n_stored; /* tiles */
    ps_accesses writers, readers;
} kv_state;

typedef struct checker {
    const ps_plan *plan;
    const ps_level *level;
    const ps_tier *tier;
    const ps_program *program;
    const ps_model *model;
    const ps_check_model *cm;
    uint32_t n_tiles;
    uint8_t *done; /* [cm->n_ops * n_tiles] */
    uint64_t n_done;
    open_op open[MAX_OPEN_OPS];
    uint32_t n_open;
    kv_state *kv; /* [n_layers] */
    ps_check_state state;
    ps_cursor cursor;
    bool gathered;
    uint16_t gather_src;
    uint32_t gather_id;
    ps_error *err;
} checker;

/* The instruction being looked at, and what is known of it. */
typedef struct here {
    const ps_instr *in;
    const ps_instruction_rule *rule;
    uint32_t layer, tile;
    uint32_t shard; /* in the model's list; UINT32_MAX: none of that kind and layer */
    bool outputs;   /* its rows are the step's outputs, not its tokens */
} here;

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static ps_status
fail(const checker *c, const here *h, const char *fmt, ...) {
    char message[256], subject[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    int n = snprintf(subject, sizeof subject, "level %s/%llu/%u/%u", c->level->budget,
                     (unsigned long long)c->level->bucket_tokens, c->level->n_seqs, c->level->n_threads);
    if (c->tier != NULL)
        n += snprintf(subject + n, sizeof subject - (size_t)n, ", tier %u", c->tier->max_tokens);
    if (h != NULL)
        snprintf(subject + n, sizeof subject - (size_t)n, ", block %u layer %u tile %u, instruction %u (%s)",
                 c->cursor.block, h->layer, h->tile,
                 c->program->blocks[c->cursor.block].instr0 + c->cursor.instr, ps_op_get(h->in->op)->name);
    return ps_error_set(c->err, PS_E_DATA, subject, "%s", message);
}

/* ---- kernels, spaces and rows ---- */

static const ps_plan_buffer *buffer_at(const checker *c, uint16_t b) {
    return &c->program->buffers[b];
}

static ps_status check_kernel(const checker *c, const here *h) {
    const ps_instr *in = h->in;
    const ps_queue_rule *queue = ps_queue_rule_get(in->queue);
    if (!(h->rule->queues >> in->queue & 1))
        return fail(c, h, "the operation cannot run on queue %s", ps_queue_name(in->queue));
    if (in->op == PS_OP_COPY)
        return in->w[0] == PS_ROLE_NONE ? PS_OK : fail(c, h, "copies of weights are not in version 0");
    const ps_kernel_spec *k = ps_kernel_specs_find(c->plan->kernels, c->plan->n_kernels, in->kernel);
    if (k->op != in->op || k->device != queue->device)
        return fail(c, h, "kernel %s is for %s on %s", k->name, ps_op_get(k->op)->name,
                    ps_processor_name(k->device));
    const ps_weight *w = in->w[0] != PS_ROLE_NONE ? ps_model_weight(c->model, h->layer, in->w[0]) : NULL;
    if (in->w[0] != PS_ROLE_NONE && w == NULL)
        return fail(c, h, "the model has no %s here", ps_role_get(in->w[0])->name);
    if (k->wtype != (w != NULL ? w->type : PS_DTYPE_NONE))
        return fail(c, h, "kernel %s does not take the type of the weights", k->name);
    ps_fmt in_fmt = in->src[0] != PS_NO_BUFFER ? buffer_at(c, in->src[0])->fmt : PS_FMT_NONE;
    ps_fmt out_fmt = in->dst != PS_NO_BUFFER ? buffer_at(c, in->dst)->fmt : PS_FMT_NONE;
    if (k->in_fmt != in_fmt || k->out_fmt != out_fmt)
        return fail(c, h, "kernel %s goes from %s to %s, the buffers are %s and %s", k->name,
                    ps_fmt_name(k->in_fmt), ps_fmt_name(k->out_fmt), ps_fmt_name(in_fmt),
                    ps_fmt_name(out_fmt));
    ps_fmt src1 = h->rule->src1_fmt != PS_FMT_NONE ? h->rule->src1_fmt : in_fmt;
    if (in->src[1] != PS_NO_BUFFER && buffer_at(c, in->src[1])->fmt != src1)
        return fail(c, h, "the second source must be %s", ps_fmt_name(src1));
    if (in->src[2] != PS_NO_BUFFER && buffer_at(c, in->src[2])->fmt != PS_FMT_F32)
        return fail(c, h, "the third source must be f32");
    return PS_OK;
}

/* Weights of a shard are where its placement says; a queue must be able to read them there. */
static ps_status check_placement(const checker *c, const here *h) {
    if (h->in->w[0] == PS_ROLE_NONE || h->shard == UINT32_MAX)
        return PS_OK;
    ps_placement p = c->level->placement[h->shard];
    bool ok = h->in->queue == PS_QUEUE_CPU
                  ? p == PS_PLACE_HOST || p == PS_PLACE_SPLIT
                  : p == PS_PLACE_VRAM || p == PS_PLACE_DIRECT || p == PS_PLACE_SPLIT;
    return ok ? PS_OK
              : fail(c, h, "weights placed \"%s\" are not for queue %s", ps_placement_name(p),
                     ps_queue_name(h->in->queue));
}

static uint64_t longest_row(const checker *c, const here *h) {
    uint64_t cols = h->in->dst != PS_NO_BUFFER ? buffer_at(c, h->in->dst)->cols : 0;
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++)
        if (h->in->src[i] != PS_NO_BUFFER && buffer_at(c, h->in->src[i])->cols > cols)
            cols = buffer_at(c, h->in->src[i])->cols;
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        const ps_weight *w =
            h->in->w[i] != PS_ROLE_NONE ? ps_model_weight(c->model, h->layer, h->in->w[i]) : NULL;
        if (w != NULL && w->cols > cols)
            cols = w->cols;
    }
    return cols;
}

static ps_status check_scratch(const checker *c, const here *h) {
    const ps_kernel_spec *k = ps_kernel_specs_find(c->plan->kernels, c->plan->n_kernels, h->in->kernel);
    if (k == NULL)
        return PS_OK;
    uint64_t rows = h->outputs ? c->tier->max_outputs : c->tier->max_tokens;
    if (rows > PS_TILE_TOKENS && !h->outputs)
        rows = PS_TILE_TOKENS;
    uint64_t need =
        ps_scratch_bytes(&k->scratch, rows, longest_row(c, h), c->level->n_threads, c->level->bucket_tokens);
    if (h->in->queue != PS_QUEUE_CPU && need != 0)
        return fail(c, h, "kernels with scratch run on the cpu queue only in version 0");
    return need <= c->tier->scratch_bytes
               ? PS_OK
               : fail(c, h, "needs %llu bytes of scratch, the tier has %llu", (unsigned long long)need,
                      (unsigned long long)c->tier->scratch_bytes);
}

/* Which rows it works on: the tokens of one tile, or the outputs. */
static ps_status check_rows(const checker *c, here *h) {
    const ps_instr *in = h->in;
    const ps_block *block = &c->program->blocks[c->cursor.block];
    uint32_t n_outputs = 0, n = 0;
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++)
        if (in->src[i] != PS_NO_BUFFER && (n++, buffer_at(c, in->src[i])->rows == PS_ROWS_OUTPUTS))
            n_outputs++;
    if (in->op == PS_OP_GATHER) {
        h->outputs = true;
        if (block->over_tiles || block->loop != PS_LOOP_ONCE)
            return fail(c, h, "must be in a block that runs once");
        if (n_outputs != 0 || buffer_at(c, in->dst)->rows != PS_ROWS_OUTPUTS)
            return fail(c, h, "must go from rows of the step to rows of the outputs");
        return buffer_at(c, in->src[0])->rows == PS_ROWS_STEP || c->n_tiles == 1
                   ? PS_OK
                   : fail(c, h, "must read rows of the step");
    }
    if (in->dst != PS_NO_BUFFER && (n++, buffer_at(c, in->dst)->rows == PS_ROWS_OUTPUTS))
        n_outputs++;
    h->outputs = n != 0 && n_outputs == n;
    if (n_outputs != 0 && !h->outputs)
        return fail(c, h, "mixes rows of the step with rows of the outputs");
    if (h->outputs && block->over_tiles)
        return fail(c, h, "rows of the outputs in a block over tiles");
    if (!h->outputs && !block->over_tiles && c->n_tiles > 1)
        return fail(c, h, "a step of %u tiles needs it in a block over tiles", c->n_tiles);
    return PS_OK;
}

static ps_status check_operands(const checker *c, const here *h) {
    const ps_instr *in = h->in;
    const ps_queue_rule *queue = ps_queue_rule_get(in->queue);
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++) {
        if (in->src[i] == PS_NO_BUFFER && (h->rule->src_needed >> i & 1) != 0)
            return fail(c, h, "source %u is missing", i);
        if (in->src[i] == PS_NO_BUFFER)
            continue;
        if (!(queue->src >> buffer_at(c, in->src[i])->space & 1))
            return fail(c, h, "queue %s does not read from %s", ps_queue_name(in->queue),
                        ps_space_name(buffer_at(c, in->src[i])->space));
        if (in->dst == PS_NO_BUFFER)
            continue;
        const ps_buffer_state *s = &c->state.buffers[in->src[i]], *d = &c->state.buffers[in->dst];
        bool same = in->src[i] == in->dst;
        if (same && !(h->rule->src_in_place >> i & 1))
            return fail(c, h, "source %u cannot be the destination", i);
        if (!same && buffer_at(c, in->src[i])->space == buffer_at(c, in->dst)->space && s->begin < d->end &&
            d->begin < s->end)
            return fail(c, h, "source %u and the destination share bytes", i);
    }
    if (in->dst != PS_NO_BUFFER && !(queue->dst >> buffer_at(c, in->dst)->space & 1))
        return fail(c, h, "queue %s does not write to %s", ps_queue_name(in->queue),
                    ps_space_name(buffer_at(c, in->dst)->space));
    return PS_OK;
}

/* ---- which operation of the model it is ---- */

static bool same_operation(const checker *c, const ps_instr *in, const ps_op_desc *op) {
    if (in->op != op->op)
        return false;
    for (uint32_t i = 0; i < ps_op_get(op->op)->n_weights; i++)
        if (in->w[i] != op->w[i])
            return false;
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++)
        if ((in->src[i] != PS_NO_BUFFER ? buffer_at(c, in->src[i])->value : PS_VALUE_NONE) != op->src[i])
            return false;
    return (in->dst != PS_NO_BUFFER ? buffer_at(c, in->dst)->value : PS_VALUE_NONE) == op->dst;
}

/* The operation of the shard that it executes and that is not finished for this tile; by its number. */
static ps_status find_operation(const checker *c, const here *h, uint32_t *out) {
    if (h->shard == UINT32_MAX)
        return fail(c, h, "the model has no shard %s in layer %u", ps_shard_kind_name(h->in->shard),
                    h->layer);
    const ps_shard *shard = &c->model->shards[h->shard];
    bool done_before = false;
    for (uint32_t i = 0; i < shard->n_ops; i++) {
        uint32_t op = c->cm->op0[h->shard] + i;
        if (!same_operation(c, h->in, &shard->ops[i]))
            continue;
        if (c->done[(uint64_t)op * c->n_tiles + h->tile] != OP_DONE) {
            *out = op;
            return PS_OK;
        }
        done_before = true;
    }
    return fail(c, h,
                done_before ? "shard %s has this operation executed already"
                            : "shard %s has no such operation with these weights and values",
                ps_shard_kind_name(h->in->shard));
}

/* Columns of the destination that it writes. */
static ps_status find_columns(const checker *c, const here *h, const ps_op_desc *op, ps_part *out) {
    const ps_instr *in = h->in;
    uint64_t cols = op != NULL ? op->rows : buffer_at(c, in->dst)->cols, unit = 1, end;
    *out = (ps_part){0, cols};
    if (in->n_rows == 0)
        return PS_OK;
    if (h->rule->range == PS_RANGE_NONE)
        return fail(c, h, "the operation takes no range");
    if (h->rule->range == PS_RANGE_HEADS) {
        const ps_layer *layer = &c->model->layers[h->layer];
        unit = layer->n_head_kv != 0 ? cols / layer->n_head_kv : cols;
    }
    if (!ps_add_u64(in->row0, in->n_rows, &end) || !ps_mul_u64(end, unit, &end) || end > cols)
        return fail(c, h, "rows %llu to %llu are outside", (unsigned long long)in->row0,
                    (unsigned long long)(in->row0 + in->n_rows - 1));
    *out = (ps_part){in->row0 * unit, end};
    bool whole = out->begin == 0 && out->end == cols;
    ps_fmt fmt = buffer_at(c, in->dst)->fmt;
    if (!whole && fmt != PS_FMT_F32 && fmt != PS_FMT_F16)
        return fail(c, h, "a range of columns needs a destination in f32 or f16");
    return PS_OK;
}

/* Mark columns of an operation as executed, each once. */
static ps_status mark_done(checker *c, const here *h, uint32_t op, ps_part part, uint64_t cols) {
    uint8_t *done = &c->done[(uint64_t)op * c->n_tiles + h->tile];
    if (*done == OP_TODO && part.begin == 0 && part.end == cols) {
        *done = OP_DONE;
        c->n_done++;
        return PS_OK;
    }
    open_op *o = NULL;
    for (uint32_t i = 0; i < c->n_open && o == NULL; i++)
        if (c->open[i].op == op && c->open[i].tile == h->tile)
            o = &c->open[i];
    if (o == NULL) {
        if (c->n_open == MAX_OPEN_OPS)
            return fail(c, h, "more than %d operations executed by parts at once", MAX_OPEN_OPS);
        o = &c->open[c->n_open++];
        *o = (open_op){.op = op, .tile = h->tile};
        *done = OP_PARTLY;
    }
    uint64_t covered = part.end - part.begin;
    for (uint32_t i = 0; i < o->n_parts; i++) {
        if (o->parts[i].begin < part.end && part.begin < o->parts[i].end)
            return fail(c, h, "rows %llu to %llu are executed twice", (unsigned long long)part.begin,
                        (unsigned long long)part.end - 1);
        covered += o->parts[i].end - o->parts[i].begin;
    }
    if (o->n_parts == PS_CHECK_PARTS)
        return fail(c, h, "in more than %d parts", PS_CHECK_PARTS);
    o->parts[o->n_parts++] = part;
    if (covered == cols) {
        *done = OP_DONE;
        c->n_done++;
        *o = c->open[--c->n_open];
    }
    return PS_OK;
}

/* ---- accesses ---- */

static const char *content_name(const checker *c, uint32_t id, char buf[64]) {
    if (id == 0 || id > c->cm->n_ops)
        return "nothing";
    const ps_check_op *op = &c->cm->ops[id - 1];
    const ps_shard *shard = &c->model->shards[op->shard];
    snprintf(buf, 64, "%s of %s %u", ps_value_name(op->desc->dst), ps_shard_kind_name(shard->kind),
             shard->layer);
    return buf;
}

static ps_status explain(const checker *c, const here *h, ps_check_why why, uint16_t buffer, uint32_t id,
                         uint64_t other) {
    char name[64], held[64];
    const char *value = ps_value_name(buffer_at(c, buffer)->value);
    uint64_t back = c->cursor.index - other;
    switch (why) {
    case PS_WHY_OK:
        return PS_OK;
    case PS_WHY_EMPTY:
        if (c->state.buffers[buffer].overwritten_by != UINT32_MAX)
            return fail(c, h, "buffer %u (%s) is read after buffer %u overwrote it", buffer, value,
                        c->state.buffers[buffer].overwritten_by);
        return fail(c, h, "buffer %u (%s) is read before it is written", buffer, value);
    case PS_WHY_STALE:
        return fail(c, h, "buffer %u (%s) holds %s, not %s", buffer, value,
                    content_name(c, (uint32_t)other, held), content_name(c, id, name));
    case PS_WHY_PARTIAL:
        return fail(c, h, "buffer %u (%s) is read where it is not written yet", buffer, value);
    case PS_WHY_WRITE_RACE:
        return fail(c, h, "buffer %u (%s) may still be written by the instruction %llu before", buffer, value,
                    (unsigned long long)back);
    case PS_WHY_READ_RACE:
        return fail(c, h, "buffer %u (%s) may still be read by the instruction %llu before", buffer, value,
                    (unsigned long long)back);
    case PS_WHY_SHARED_RACE:
        return fail(c, h, "bytes of buffer %u (%s) may still be in use by the instruction %llu before",
                    buffer, value, (unsigned long long)back);
    case PS_WHY_TWICE:
        return fail(c, h, "columns of buffer %u (%s) are written twice", buffer, value);
    case PS_WHY_CROWDED:
        return fail(c, h, "buffer %u (%s) is used by too many instructions at once", buffer, value);
    }
    return fail(c, h, "unknown reason %d", (int)why);
}

/* Source s wants content id; only GATHER reads other tiles than its own. */
static ps_status read_source(checker *c, const here *h, uint32_t s, uint32_t id, ps_part range) {
    uint16_t buffer = h->in->src[s];
    uint32_t first = h->tile, n = h->in->op == PS_OP_GATHER ? c->n_tiles : 1;
    if (range.end > buffer_at(c, buffer)->cols)
        return fail(c, h, "buffer %u has %u columns, %llu are read", buffer, buffer_at(c, buffer)->cols,
                    (unsigned long long)range.end);
    for (uint32_t tile = first; tile < first + n; tile++) {
        uint64_t other = 0;
        bool in_place = buffer == h->in->dst;
        ps_check_why why =
            ps_check_read(&c->state, buffer, tile, id, range.begin, range.end, in_place, &other);
        if (why != PS_WHY_OK)
            return explain(c, h, why, buffer, id, other);
    }
    return PS_OK;
}

static ps_status write_destination(checker *c, const here *h, uint32_t id, ps_part range) {
    uint64_t other = 0;
    ps_check_why why = ps_check_write(&c->state, h->in->dst, h->tile, id, range.begin, range.end, &other);
    return why == PS_WHY_OK ? PS_OK : explain(c, h, why, h->in->dst, id, other);
}

/* The layer's KV cache. A ring that is shorter than the bucket loses old positions to new ones. */
static ps_status use_kv(checker *c, const here *h) {
    if (h->in->op != PS_OP_KV_STORE && h->in->op != PS_OP_ATTENTION)
        return PS_OK;
    const ps_kv_home *home = &c->level->kv[h->layer];
    kv_state *kv = &c->kv[h->layer];
    bool ring = home->rows < c->level->bucket_tokens;
    uint64_t other = 0;
    if (!(ps_queue_rule_get(h->in->queue)->src >> home->space & 1))
        return fail(c, h, "the layer's KV cache is in %s", ps_space_name(home->space));
    if (h->in->op == PS_OP_KV_STORE) {
        if (kv->n_stored != h->tile)
            return fail(c, h, "tiles must be stored in order, each once");
        if (!ps_accesses_ended(&kv->writers, &c->state.order, &other) ||
            (ring && !ps_accesses_ended(&kv->readers, &c->state.order, &other)))
            return fail(c, h, "the KV cache may still be in use by the instruction %llu before",
                        (unsigned long long)(c->cursor.index - other));
        kv->n_stored++;
        return ps_accesses_add(&kv->writers, &c->state.order) ? PS_OK
                                                              : fail(c, h, "too many uses of the KV cache");
    }
    if (kv->n_stored <= h->tile)
        return fail(c, h, "the KV cache does not hold the tile's tokens yet");
    if (ring && kv->n_stored != h->tile + 1)
        return fail(c, h, "the KV ring has lost positions to a later tile");
    if (!ps_accesses_ended(&kv->writers, &c->state.order, &other))
        return fail(c, h, "the KV cache may still be written by the instruction %llu before",
                    (unsigned long long)(c->cursor.index - other));
    return ps_accesses_add(&kv->readers, &c->state.order) ? PS_OK
                                                          : fail(c, h, "too many uses of the KV cache");
}

/* ---- one instruction ---- */

/* COPY and CONVERT: dst takes over the content of src[0]. */
static ps_status pass_through(checker *c, const here *h) {
    const ps_plan_buffer *s = buffer_at(c, h->in->src[0]), *d = buffer_at(c, h->in->dst);
    if (s->value != d->value || s->cols != d->cols)
        return fail(c, h, "source and destination must hold the same value, with as many columns");
    if ((s->fmt == d->fmt) != (h->in->op == PS_OP_COPY))
        return fail(c, h, "copy keeps the format, convert changes it");
    if (c->gathered && !h->outputs)
        return fail(c, h, "only rows of the outputs can be worked on behind gather");
    ps_part range;
    ps_status status = find_columns(c, h, NULL, &range);
    if (status != PS_OK)
        return status;
    uint32_t id = ps_check_content(&c->state, h->in->src[0], h->tile);
    status = read_source(c, h, 0, id, range);
    return status == PS_OK ? write_destination(c, h, id, range) : status;
}

static ps_status before_gather(checker *c, const here *h, uint32_t id) {
    if (c->n_done != (uint64_t)c->cm->n_body_ops * c->n_tiles)
        return fail(c, h, "operations before it are missing: a step without outputs ends here");
    c->gathered = true;
    c->gather_src = h->in->src[0];
    c->gather_id = id;
    return PS_OK;
}

static ps_status execute(checker *c, const here *h) {
    uint32_t number = 0;
    ps_part range;
    ps_status status = find_operation(c, h, &number);
    if (status != PS_OK)
        return status;
    const ps_check_op *op = &c->cm->ops[number];
    if (h->in->dst != PS_NO_BUFFER && buffer_at(c, h->in->dst)->cols != op->desc->rows)
        return fail(c, h, "the destination has %u columns, the operation makes %u",
                    buffer_at(c, h->in->dst)->cols, op->desc->rows);
    if (h->in->op == PS_OP_GATHER && (status = before_gather(c, h, op->src[0])) != PS_OK)
        return status;
    if ((status = find_columns(c, h, op->desc, &range)) != PS_OK || (status = use_kv(c, h)) != PS_OK)
        return status;
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++) {
        if (h->in->src[i] == PS_NO_BUFFER)
            continue;
        /* Only the residual of a product is read by the columns that are written; all else is read whole. */
        bool by_columns = h->in->op == PS_OP_MATMUL && i == 1;
        ps_part want = by_columns ? range : (ps_part){0, buffer_at(c, h->in->src[i])->cols};
        if ((status = read_source(c, h, i, op->src[i], want)) != PS_OK)
            return status;
    }
    if (h->in->dst != PS_NO_BUFFER && (status = write_destination(c, h, number + 1, range)) != PS_OK)
        return status;
    return mark_done(c, h, number, range, op->desc->rows);
}

static ps_status check_instruction(checker *c, const ps_instr *in, uint32_t layer) {
    here h = {.in = in, .rule = ps_instruction_rule_get(in->op), .layer = layer, .tile = c->cursor.tile};
    h.shard = c->cm->shard_of[(uint64_t)layer * PS_SHARD_KIND_COUNT + in->shard];
    ps_status status = check_operands(c, &h);
    if (status == PS_OK)
        status = check_kernel(c, &h);
    if (status == PS_OK)
        status = check_placement(c, &h);
    if (status == PS_OK)
        status = check_rows(c, &h);
    if (status == PS_OK)
        status = check_scratch(c, &h);
    if (status != PS_OK)
        return status;
    return h.rule->passes_through ? pass_through(c, &h) : execute(c, &h);
}

/* ---- a whole stream ---- */

static ps_status check_missing(const checker *c) {
    for (uint32_t op = 0; op < c->cm->n_ops; op++)
        for (uint32_t tile = 0; tile < (op < c->cm->n_body_ops ? c->n_tiles : 1); tile++)
            if (c->done[(uint64_t)op * c->n_tiles + tile] != OP_DONE) {
                const ps_shard *s = &c->model->shards[c->cm->ops[op].shard];
                return fail(c, NULL, "%s of shard %s %u is %s executed for tile %u",
                            ps_op_get(c->cm->ops[op].desc->op)->name, ps_shard_kind_name(s->kind), s->layer,
                            c->done[(uint64_t)op * c->n_tiles + tile] == OP_PARTLY ? "partly" : "not", tile);
            }
    return PS_OK;
}

/* What must outlive the program: what GATHER read, for further passes of the tail, and the results. */
static ps_status check_end(const checker *c) {
    ps_status status = check_missing(c);
    if (status != PS_OK)
        return status;
    for (uint32_t tile = 0; c->gathered && tile < c->n_tiles; tile++)
        if (!ps_check_holds(&c->state, c->gather_src, tile, c->gather_id))
            return fail(c, NULL, "buffer %u, which gather reads, is overwritten before the end",
                        c->gather_src);
    for (uint32_t op = c->cm->n_body_ops; op < c->cm->n_ops; op++) {
        ps_value value = c->cm->ops[op].desc->dst;
        bool found = value != PS_VALUE_LOGITS && value != PS_VALUE_TOKENS;
        for (uint32_t b = 0; !found && b < c->program->n_buffers; b++)
            found = c->program->buffers[b].space == PS_SPACE_HOST &&
                    ps_check_holds(&c->state, (uint16_t)b, 0, op + 1);
        if (!found)
            return fail(c, NULL, "no host buffer holds the %s at the end", ps_value_name(value));
    }
    return PS_OK;
}

static ps_status check_stream(checker *c, uint32_t n_tiles) {
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    ps_status status = PS_OK;
    if (arena == NULL)
        return ps_error_set(c->err, PS_E_NOMEM, "plan", "no memory to check it");
    c->n_tiles = n_tiles;
    c->n_done = c->n_open = 0;
    c->gathered = false;
    c->done = ps_arena_array(arena, (uint64_t)c->cm->n_ops * n_tiles, 1);
    c->kv = ps_arena_array(arena, c->model->n_layers, sizeof *c->kv);
    if (c->done == NULL || c->kv == NULL ||
        !ps_check_state_init(&c->state, arena, c->program, c->tier, n_tiles)) {
        status = ps_error_set(c->err, PS_E_NOMEM, "plan", "no memory to check it");
        goto done;
    }
    /* An instruction that is no operation of the model moves one; more than a few per operation is no plan. */
    if (ps_program_length(c->program, n_tiles) / 8 > (uint64_t)c->cm->n_ops * n_tiles) {
        status = fail(c, NULL, "far more instructions than the model has operations");
        goto done;
    }
    const ps_instr *in;
    uint32_t layer;
    ps_cursor_start(&c->cursor, c->program, n_tiles);
    while (status == PS_OK && (in = ps_cursor_get(&c->cursor, &layer)) != NULL) {
        ps_order_enter(&c->state.order, in);
        status = check_instruction(c, in, layer);
        ps_order_leave(&c->state.order);
        ps_cursor_next(&c->cursor);
    }
    if (status == PS_OK)
        status = check_end(c);
done:
    ps_arena_free(arena);
    return status;
}

static uint32_t tiles_of(uint32_t n_tokens) {
    return (n_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
}

/* Steps of a tier have more tokens than the tier below holds, so a range of tile counts, and the distances of waits
 * mean other instructions when the count differs. Not any more, though, once the longest distance stays within the
 * tiles of every block over tiles: then one more tile repeats what the tiles before it showed, and the largest
 * count stands for the rest. */
static ps_status check_tier(checker *c, uint32_t least_tokens) {
    uint32_t low = tiles_of(least_tokens), high = tiles_of(c->tier->max_tokens), shortest = 0,
             longest_wait = 0;
    for (uint32_t i = 0; i < c->program->n_blocks; i++) {
        const ps_block *b = &c->program->blocks[i];
        if (b->over_tiles && (shortest == 0 || b->n_instrs < shortest))
            shortest = b->n_instrs;
    }
    for (uint32_t i = 0; i < c->program->n_instrs; i++)
        for (uint32_t w = 0; w < c->program->instrs[i].n_waits; w++)
            if (c->program->instrs[i].wait[w] > longest_wait)
                longest_wait = c->program->instrs[i].wait[w];
    uint32_t settled = shortest != 0 ? longest_wait / shortest + 3 : low;
    ps_status status = PS_OK;
    for (uint32_t n = low; status == PS_OK && n < high && n <= settled; n++)
        status = check_stream(c, n);
    return status == PS_OK ? check_stream(c, high) : status;
}

ps_status ps_plan_check_tiers(const ps_plan *plan, const ps_level *level, const ps_model *model,
                              const ps_check_model *cm, ps_error *err) {
    checker *c = calloc(1, sizeof *c); /* too large for a stack that may be small */
    if (c == NULL)
        return ps_error_set(err, PS_E_NOMEM, "plan", "no memory to check it");
    ps_status status = PS_OK;
    for (uint32_t i = 0; status == PS_OK && i < level->n_tiers; i++) {
        *c = (checker){
            .plan = plan, .level = level, .tier = &level->tiers[i], .model = model, .cm = cm, .err = err};
        c->program = &plan->programs[c->tier->program];
        status = check_tier(c, i == 0 ? 1 : level->tiers[i - 1].max_tokens + 1);
    }
    free(c);
    return status;
}
