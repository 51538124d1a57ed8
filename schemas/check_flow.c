/* Operations of the model: which one an instruction executes and how much of it, what it reads for that and what it
 * leaves behind. */
#include <stdio.h>

#include "core/checked.h"
#include "schemas/check_walk.h"

static ps_part columns_of(const ps_plan_buffer *b) {
    return (ps_part){b->col0, b->col0 + b->cols};
}

static bool same_part(ps_part a, ps_part b) {
    return a.begin == b.begin && a.end == b.end;
}

/* Which source may hold the residual, or a partial sum of the same operation; PS_OP_MAX_SRC: none. */
static uint32_t residual_source(ps_op op) {
    return op == PS_OP_MATMUL ? 1 : op == PS_OP_MOE_DISPATCH ? 2 : PS_OP_MAX_SRC;
}

/* ---- which operation of the model it is ---- */

static ps_value value_of(const ps_walk *c, uint16_t buffer) {
    return buffer != PS_NO_BUFFER ? ps_walk_buffer(c, buffer)->value : PS_VALUE_NONE;
}

static bool same_operation(const ps_walk *c, const ps_instr *in, const ps_op_desc *op) {
    if (in->op != op->op)
        return false;
    for (uint32_t i = 0; i < ps_op_get(op->op)->n_weights; i++) {
        bool bias_left_out = in->op == PS_OP_MATMUL && i == 1 && in->col0 != 0; /* it is another part's */
        if (in->w[i] != (bias_left_out ? PS_ROLE_NONE : op->w[i]))
            return false;
    }
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++) {
        ps_value v = value_of(c, in->src[i]);
        if (v != op->src[i] && !(i == residual_source(in->op) && (v == PS_VALUE_NONE || v == op->dst)))
            return false;
    }
    return value_of(c, in->dst) == op->dst;
}

/* The operation of the shard that it executes and that is not finished for this tile; by its number. */
static ps_status find_operation(const ps_walk *c, const ps_here *h, uint32_t *out) {
    if (h->shard == UINT32_MAX)
        return ps_walk_fail(c, h, "the model has no shard %s in layer %u", ps_shard_kind_name(h->in->shard),
                            h->layer);
    const ps_shard *shard = &c->model->shards[h->shard];
    bool done_before = false;
    for (uint32_t i = 0; i < shard->n_ops; i++) {
        uint32_t op = c->cm->op0[h->shard] + i;
        if (!same_operation(c, h->in, &shard->ops[i]))
            continue;
        if (c->done[(uint64_t)op * c->n_tiles + h->tile] != (uint32_t)PS_OP_DONE) {
            *out = op;
            return PS_OK;
        }
        done_before = true;
    }
    return ps_walk_fail(c, h,
                        done_before ? "shard %s has this operation executed already"
                                    : "shard %s has no such operation with these weights and values",
                        ps_shard_kind_name(h->in->shard));
}

/* ---- how much of it ---- */

/* Rows or heads in columns of the destination. */
static ps_status cut_columns(const ps_walk *c, const ps_here *h, uint64_t cols, uint64_t unit, ps_part *out) {
    uint64_t end;
    if (!ps_add_u64(h->in->row0, h->in->n_rows, &end) || !ps_mul_u64(end, unit, &end) || end > cols)
        return ps_walk_fail(c, h, "rows %llu to %llu are outside", (unsigned long long)h->in->row0,
                            (unsigned long long)(h->in->row0 + h->in->n_rows - 1));
    *out = (ps_part){(uint32_t)(h->in->row0 * unit), (uint32_t)end};
    return PS_OK;
}

/* Columns of the result that it writes. */
static ps_status find_columns(const ps_walk *c, const ps_here *h, const ps_op_desc *op, ps_part *out) {
    const ps_instr *in = h->in;
    *out = (ps_part){0, op->rows};
    if (in->op == PS_OP_GLU)
        *out = columns_of(ps_walk_buffer(c, in->dst));
    if (in->n_rows == 0 || h->rule->range == PS_RANGE_EXPERTS)
        return PS_OK;
    uint64_t unit = 1;
    if (h->rule->range == PS_RANGE_HEADS) {
        const ps_layer *layer = &c->model->layers[h->layer];
        unit = layer->n_head_kv != 0 ? op->rows / layer->n_head_kv : op->rows;
    }
    return cut_columns(c, h, op->rows, unit, out);
}

/* The destination has room for these columns of a value of `cols`. */
static ps_status check_destination(const ps_walk *c, const ps_here *h, ps_part range, uint32_t cols) {
    if (h->in->dst == PS_NO_BUFFER)
        return PS_OK;
    const ps_plan_buffer *b = ps_walk_buffer(c, h->in->dst);
    ps_part has = columns_of(b);
    bool slices = h->in->op == PS_OP_MATMUL || h->in->op == PS_OP_GLU || h->in->op == PS_OP_ADD;
    if (has.end > cols || (!slices && b->cols != cols))
        return ps_walk_fail(c, h, "the destination has %u columns from %u on, the operation makes %u",
                            b->cols, b->col0, cols);
    if (range.begin < has.begin || has.end < range.end)
        return ps_walk_fail(c, h, "the destination has columns %u to %u, %u to %u are written", has.begin,
                            has.end - 1, range.begin, range.end - 1);
    if (!same_part(range, has) && b->fmt != PS_FMT_F32 && b->fmt != PS_FMT_F16)
        return ps_walk_fail(c, h, "a range of columns needs a destination in f32 or f16");
    return PS_OK;
}

/* What of the inner dimension, or of the experts, it takes; *out_inner: how much there is. */
static ps_status find_inner(const ps_walk *c, const ps_here *h, const ps_op_desc *op, ps_sum *out,
                            uint32_t *out_inner) {
    const ps_instr *in = h->in;
    uint64_t begin = 0, n = 0, end;
    *out = (ps_sum){.n = 1, .sides = PS_SIDES};
    *out_inner = 1;
    if (in->op == PS_OP_MATMUL) {
        *out_inner = op->cols;
        begin = in->col0;
        n = in->n_cols;
    } else if (in->op == PS_OP_MOE_DISPATCH) {
        *out_inner = c->model->layers[h->layer].n_expert;
        begin = in->row0;
        n = in->n_rows;
        if (in->part != PS_MOE_PART_ALL) {
            out->sides = in->part == PS_MOE_PART_NEAR ? PS_SIDE_NEAR : PS_SIDE_FAR;
            if (n != 0)
                return ps_walk_fail(c, h, "parts near and far are of all experts");
            if (in->queue != (in->part == PS_MOE_PART_NEAR ? PS_QUEUE_GPU : PS_QUEUE_CPU))
                return ps_walk_fail(c, h, "near runs on queue gpu, far on queue cpu");
        }
    }
    if (n == 0)
        n = *out_inner;
    if (!ps_add_u64(begin, n, &end) || end > *out_inner)
        return ps_walk_fail(c, h, "%s %llu to %llu are outside",
                            in->op == PS_OP_MATMUL ? "columns" : "experts", (unsigned long long)begin,
                            (unsigned long long)(begin + n - 1));
    out->parts[0] = (ps_part){(uint32_t)begin, (uint32_t)end};
    return PS_OK;
}

static ps_status too_many(const ps_walk *c, const ps_here *h) {
    return ps_walk_fail(c, h, "in more than %d parts", PS_CHECK_PARTS);
}

/* What is executed of an operation that is neither done nor about to be done in one go. */
static ps_open_op *open_of(ps_walk *c, uint32_t *done) {
    if (*done != 0)
        return c->open[*done - 1];
    if (c->n_free == 0 && c->n_open == c->open_cap) {
        uint32_t cap = c->open_cap != 0 ? 2 * c->open_cap : 16;
        ps_open_op **open = ps_arena_array(c->arena, cap, sizeof(ps_open_op *));
        uint32_t *free_open = ps_arena_array(c->arena, cap, sizeof *free_open);
        if (open == NULL || free_open == NULL)
            return NULL;
        for (uint32_t i = 0; i < c->n_open; i++)
            open[i] = c->open[i];
        c->open = open;
        c->free_open = free_open;
        c->open_cap = cap;
    }
    uint32_t place = c->n_free != 0 ? c->free_open[--c->n_free] : c->n_open;
    if (place == c->n_open) {
        c->open[place] = ps_arena_array(c->arena, 1, sizeof(ps_open_op));
        if (c->open[place] == NULL)
            return NULL;
        c->n_open++;
    }
    *c->open[place] = (ps_open_op){0};
    *done = place + 1;
    return c->open[place];
}

/* Mark a rectangle of an operation as executed, once. */
static ps_status mark_executed(ps_walk *c, const ps_here *h, uint32_t number, ps_rect rect) {
    bool twice;
    ps_open_op *o = open_of(c, &c->done[(uint64_t)number * c->n_tiles + h->tile]);
    if (o == NULL)
        return ps_error_set(c->err, PS_E_NOMEM, "plan", "no memory to check it");
    if (ps_open_execute(o, rect, &twice))
        return PS_OK;
    return twice ? ps_walk_fail(c, h, "rows %u to %u are executed twice", rect.cols.begin, rect.cols.end - 1)
                 : too_many(c, h);
}

/* The result's columns are whole: with all of the inner dimension and the residual. */
static ps_status mark_finished(ps_walk *c, const ps_here *h, uint32_t number, ps_part cols) {
    bool twice, all;
    uint32_t *done = &c->done[(uint64_t)number * c->n_tiles + h->tile];
    if (*done == (uint32_t)PS_OP_DONE)
        return ps_walk_fail(c, h, "the sum was made before");
    ps_open_op *o = open_of(c, done);
    if (o == NULL)
        return ps_error_set(c->err, PS_E_NOMEM, "plan", "no memory to check it");
    if (!ps_open_finish(o, cols, c->cm->ops[number].desc->rows, &twice, &all))
        return twice ? ps_walk_fail(c, h, "columns %u to %u are joined twice", cols.begin, cols.end - 1)
                     : too_many(c, h);
    if (all) {
        c->free_open[c->n_free++] = *done - 1;
        *done = (uint32_t)PS_OP_DONE;
        c->n_done++;
    }
    return PS_OK;
}

/* ---- accesses ---- */

static const char *content_name(const ps_walk *c, uint32_t id, char buf[64]) {
    if (id == 0 || id > c->cm->n_ops)
        return "nothing";
    const ps_check_op *op = &c->cm->ops[id - 1];
    const ps_shard *shard = &c->model->shards[op->shard];
    snprintf(buf, 64, "%s of %s %u", ps_value_name(op->desc->dst), ps_shard_kind_name(shard->kind),
             shard->layer);
    return buf;
}

static ps_status explain_content(const ps_walk *c, const ps_here *h, ps_check_why why, uint16_t buffer,
                                 uint32_t id, uint64_t other) {
    char name[64], held[64];
    const char *value = ps_value_name(ps_walk_buffer(c, buffer)->value);
    switch (why) {
    case PS_WHY_EMPTY:
        if (c->state.buffers[buffer].overwritten_by != UINT32_MAX)
            return ps_walk_fail(c, h, "buffer %u (%s) is read after buffer %u overwrote it", buffer, value,
                                c->state.buffers[buffer].overwritten_by);
        return ps_walk_fail(c, h, "buffer %u (%s) is read before it is written", buffer, value);
    case PS_WHY_STALE:
        return ps_walk_fail(c, h, "buffer %u (%s) holds %s, not %s", buffer, value,
                            content_name(c, (uint32_t)other, held), content_name(c, id, name));
    case PS_WHY_SUM:
        return ps_walk_fail(c, h, "buffer %u (%s) holds another sum of %s than is wanted", buffer, value,
                            content_name(c, id, name));
    case PS_WHY_PARTIAL:
        return ps_walk_fail(c, h, "buffer %u (%s) is read where it is not written yet", buffer, value);
    default:
        return ps_walk_fail(c, h, "columns of buffer %u (%s) are written twice", buffer, value);
    }
}

static ps_status explain(const ps_walk *c, const ps_here *h, ps_check_why why, uint16_t buffer, uint32_t id,
                         uint64_t other) {
    if (why == PS_WHY_OK)
        return PS_OK;
    if (why == PS_WHY_NOMEM)
        return ps_error_set(c->err, PS_E_NOMEM, "plan", "no memory to check it");
    if (why == PS_WHY_EMPTY || why == PS_WHY_STALE || why == PS_WHY_SUM || why == PS_WHY_PARTIAL ||
        why == PS_WHY_TWICE)
        return explain_content(c, h, why, buffer, id, other);
    char what[64];
    snprintf(what, sizeof what, "buffer %u (%s)", buffer, ps_value_name(ps_walk_buffer(c, buffer)->value));
    return ps_walk_race(c, h, why, what, other);
}

/* Source s holds content id, in these columns; only GATHER reads other tiles than its own. */
static ps_status read_source(ps_walk *c, const ps_here *h, uint32_t s, uint32_t id, uint32_t sum,
                             ps_part cols) {
    uint16_t buffer = h->in->src[s];
    ps_part has = columns_of(ps_walk_buffer(c, buffer));
    uint32_t first = h->tile, n = h->in->op == PS_OP_GATHER ? c->n_tiles : 1;
    if (cols.begin < has.begin || has.end < cols.end)
        return ps_walk_fail(c, h, "buffer %u has columns %u to %u, %u to %u are read", buffer, has.begin,
                            has.end - 1, cols.begin, cols.end - 1);
    for (uint32_t tile = first; tile < first + n; tile++) {
        uint64_t other = 0;
        ps_check_why why = ps_check_read(&c->state, buffer, tile, id, sum, cols, &other);
        if (why == PS_WHY_STALE && id == 0)
            why = PS_WHY_PARTIAL; /* nothing in the first column, something in others */
        if (why != PS_WHY_OK)
            return explain(c, h, why, buffer, id, other);
    }
    return PS_OK;
}

static ps_status write_destination(ps_walk *c, const ps_here *h, uint32_t id, uint32_t sum, ps_part cols) {
    uint64_t other = 0;
    ps_check_why why = ps_check_write(&c->state, h->in->dst, h->tile, id, sum, cols, &other);
    return explain(c, h, why, h->in->dst, id, other);
}

/* ---- values that pass through, and sums ---- */

/* COPY and CONVERT: dst takes over the content of src[0]: columns of the value that both buffers have. */
static ps_status pass_through(ps_walk *c, const ps_here *h) {
    const ps_plan_buffer *s = ps_walk_buffer(c, h->in->src[0]), *d = ps_walk_buffer(c, h->in->dst);
    ps_part cols = columns_of(d);
    if (s->value != d->value)
        return ps_walk_fail(c, h, "source and destination must hold the same value");
    if ((s->fmt == d->fmt) != (h->in->op == PS_OP_COPY))
        return ps_walk_fail(c, h, "copy keeps the format, convert changes it");
    if (c->gathered && !h->outputs)
        return ps_walk_fail(c, h, "only rows of the outputs can be worked on behind gather");
    if (h->in->n_rows != 0) {
        ps_status status = cut_columns(c, h, cols.end, 1, &cols);
        if (status != PS_OK)
            return status;
        if (cols.begin < d->col0)
            return ps_walk_fail(c, h, "the destination begins at column %u", d->col0);
        if (d->fmt != PS_FMT_F32 && d->fmt != PS_FMT_F16 &&
            !(same_part(cols, columns_of(d)) && same_part(cols, columns_of(s))))
            return ps_walk_fail(c, h, "a range of columns needs a destination in f32 or f16");
    } else if (!same_part(columns_of(s), cols)) {
        return ps_walk_fail(c, h, "source and destination must hold the same columns");
    }
    uint32_t sum, id = ps_check_content(&c->state, h->in->src[0], h->tile, cols.begin, &sum);
    ps_status status = read_source(c, h, 0, id, sum, cols);
    return status == PS_OK ? write_destination(c, h, id, sum, cols) : status;
}

/* Number of the joined sum, 0 where it is the whole result. */
static ps_status number_sum(ps_walk *c, const ps_here *h, const ps_op_desc *op, const ps_sum *sum,
                            uint32_t inner, uint32_t *out) {
    uint32_t residual = residual_source(op->op);
    bool needs = residual < PS_OP_MAX_SRC && op->src[residual] != PS_VALUE_NONE;
    *out = 0;
    if (ps_sum_covers(sum, inner)) {
        if (needs && !sum->residual)
            return ps_walk_fail(c, h, "the residual is in no part of the sum");
        return PS_OK;
    }
    *out = ps_sum_number(&c->sums, c->arena, sum);
    return *out != 0 ? PS_OK : ps_walk_fail(c, h, "more than %d different partial sums", PS_CHECK_SUMS);
}

static ps_status join(const ps_walk *c, const ps_here *h, const ps_sum *a, const ps_sum *b, ps_sum *out) {
    switch (ps_sum_join(a, b, out)) {
    case PS_JOIN_OK:
        return PS_OK;
    case PS_JOIN_TWICE:
        return ps_walk_fail(c, h, "the partial sums are not apart");
    case PS_JOIN_RESIDUAL:
        return ps_walk_fail(c, h, "the residual is in both partial sums");
    default:
        return too_many(c, h);
    }
}

/* ADD of two partial sums of one operation. */
static ps_status add_sums(ps_walk *c, const ps_here *h) {
    const ps_instr *in = h->in;
    uint32_t sums[2], ids[2], number = 0;
    ps_part cols = columns_of(ps_walk_buffer(c, in->dst));
    for (uint32_t i = 0; i < 2; i++) {
        if (!same_part(columns_of(ps_walk_buffer(c, in->src[i])), cols))
            return ps_walk_fail(c, h, "source %u and the destination must have the same columns", i);
        ids[i] = ps_check_content(&c->state, in->src[i], h->tile, cols.begin, &sums[i]);
        if (ids[i] == 0 || sums[i] == 0)
            return ps_walk_fail(c, h, "source %u is no partial sum", i);
    }
    const ps_check_op *op = &c->cm->ops[ids[0] - 1];
    if (ids[0] != ids[1] || op->shard != h->shard)
        return ps_walk_fail(c, h, "the sources are no partial sums of one operation of shard %s",
                            ps_shard_kind_name(in->shard));
    if (value_of(c, in->dst) != op->desc->dst)
        return ps_walk_fail(c, h, "the destination is not of the sum's value");
    ps_status status = check_destination(c, h, cols, op->desc->rows);
    ps_sum joined;
    if (status == PS_OK)
        status = join(c, h, c->sums.sums[sums[0] - 1], c->sums.sums[sums[1] - 1], &joined);
    uint32_t inner = op->desc->op == PS_OP_MATMUL ? op->desc->cols : c->model->layers[h->layer].n_expert;
    if (status == PS_OK)
        status = number_sum(c, h, op->desc, &joined, inner, &number);
    for (uint32_t i = 0; status == PS_OK && i < 2; i++)
        status = read_source(c, h, i, ids[i], sums[i], cols);
    if (status == PS_OK)
        status = write_destination(c, h, ids[0], number, cols);
    return status == PS_OK && number == 0 ? mark_finished(c, h, ids[0] - 1, cols) : status;
}

/* ---- operations ---- */

static ps_status before_gather(ps_walk *c, const ps_here *h, uint32_t id) {
    if (c->n_done != (uint64_t)c->cm->n_body_ops * c->n_tiles)
        return ps_walk_fail(c, h, "operations before it are missing: a step without outputs ends here");
    ps_status status = ps_walk_kv_home(c, h);
    if (status == PS_OK)
        status = ps_walk_check_entries(c, h);
    c->gathered = true;
    c->gather_src = h->in->src[0];
    c->gather_id = id;
    return status;
}

/* The columns of source i that an operation reads, where its result's columns are `cols`. */
static ps_status source_columns(const ps_walk *c, const ps_here *h, uint32_t i, uint32_t id, ps_part cols,
                                const ps_sum *part, ps_part *out) {
    const ps_plan_buffer *b = ps_walk_buffer(c, h->in->src[i]);
    if (h->in->op == PS_OP_GLU || (h->in->op == PS_OP_MATMUL && i == 1)) {
        *out = cols;
        if (h->in->op == PS_OP_GLU && !same_part(columns_of(b), cols))
            return ps_walk_fail(c, h, "source %u and the destination must have the same columns", i);
        return PS_OK;
    }
    uint32_t width = id != 0 ? c->cm->ops[id - 1].desc->rows : b->cols;
    *out = h->in->op == PS_OP_MATMUL ? part->parts[0] : (ps_part){0, width};
    return same_part(columns_of(b), *out)
               ? PS_OK
               : ps_walk_fail(c, h, "source %u must have columns %u to %u, it has %u to %u", i, out->begin,
                              out->end - 1, b->col0, b->col0 + b->cols - 1);
}

/* The residual, or a partial sum that this one is added to: joined into *sum. */
static ps_status read_residual(ps_walk *c, const ps_here *h, uint32_t i, uint32_t number, ps_part cols,
                               ps_sum *sum) {
    const ps_check_op *op = &c->cm->ops[number];
    uint32_t had, id = ps_check_content(&c->state, h->in->src[i], h->tile, cols.begin, &had);
    ps_part want;
    ps_status status = source_columns(c, h, i, number + 1, cols, sum, &want);
    if (status != PS_OK)
        return status;
    if (id == number + 1 && had != 0) {
        ps_sum own = *sum;
        status = join(c, h, c->sums.sums[had - 1], &own, sum);
        return status == PS_OK ? read_source(c, h, i, id, had, want) : status;
    }
    sum->residual = true;
    return read_source(c, h, i, op->src[i], 0, want);
}

static ps_status execute(ps_walk *c, const ps_here *h) {
    uint32_t number = 0, inner = 0, sum_number = 0;
    ps_part cols;
    ps_sum sum;
    ps_status status = find_operation(c, h, &number);
    if (status != PS_OK)
        return status;
    const ps_check_op *op = &c->cm->ops[number];
    if (h->in->op == PS_OP_GATHER && (status = before_gather(c, h, op->src[0])) != PS_OK)
        return status;
    if ((status = find_columns(c, h, op->desc, &cols)) != PS_OK ||
        (status = check_destination(c, h, cols, op->desc->rows)) != PS_OK ||
        (status = find_inner(c, h, op->desc, &sum, &inner)) != PS_OK ||
        (status = ps_walk_use_kv(c, h)) != PS_OK)
        return status;
    ps_rect rect = {cols, sum.parts[0], sum.sides};
    ps_part own = sum.parts[0];
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++) {
        if (h->in->src[i] == PS_NO_BUFFER)
            continue;
        if (i == residual_source(h->in->op)) {
            status = read_residual(c, h, i, number, cols, &sum);
        } else {
            ps_sum alone = {.n = 1, .parts = {own}};
            ps_part want;
            status = source_columns(c, h, i, op->src[i], cols, &alone, &want);
            if (status == PS_OK)
                status = read_source(c, h, i, op->src[i], 0, want);
        }
        if (status != PS_OK)
            return status;
    }
    if ((status = number_sum(c, h, op->desc, &sum, inner, &sum_number)) != PS_OK)
        return status;
    if (h->in->dst != PS_NO_BUFFER &&
        (status = write_destination(c, h, number + 1, sum_number, cols)) != PS_OK)
        return status;
    uint32_t *done = &c->done[(uint64_t)number * c->n_tiles + h->tile];
    if (*done == 0 && sum_number == 0 && cols.begin == 0 && cols.end == op->desc->rows) {
        *done = (uint32_t)PS_OP_DONE; /* all at once */
        c->n_done++;
        return PS_OK;
    }
    status = mark_executed(c, h, number, rect);
    return status == PS_OK && sum_number == 0 ? mark_finished(c, h, number, cols) : status;
}

ps_status ps_walk_flow(ps_walk *c, const ps_here *h) {
    if (ps_is_weight_copy(h->in))
        return ps_walk_copy_weight(c, h);
    if (ps_is_kv_copy(h->in))
        return ps_walk_copy_kv(c, h);
    if (h->rule->passes_through)
        return pass_through(c, h);
    return h->in->op == PS_OP_ADD ? add_sums(c, h) : execute(c, h);
}
