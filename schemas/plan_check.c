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
#include "schemas/check_walk.h"

ps_status ps_walk_fail(const ps_walk *c, const ps_here *h, const char *fmt, ...) {
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

static ps_status check_instruction(ps_walk *c, const ps_instr *in, uint32_t layer) {
    ps_here h = {.in = in,
                 .rule = ps_instruction_rule_get(in->op),
                 .layer = layer,
                 .tile = c->cursor.tile,
                 .weight_layer = layer};
    if (ps_is_weight_copy(in))
        h.weight_layer = ps_instr_weight_layer(c->plan, in, layer);
    h.shard = c->cm->shard_of[(uint64_t)h.weight_layer * PS_SHARD_KIND_COUNT + in->shard];
    ps_status status = ps_walk_check_instr(c, &h);
    if (status == PS_OK)
        status = ps_walk_weights(c, &h);
    return status == PS_OK ? ps_walk_flow(c, &h) : status;
}

/* ---- a whole stream ---- */

static ps_status check_missing(const ps_walk *c) {
    for (uint32_t op = 0; op < c->cm->n_ops; op++)
        for (uint32_t tile = 0; tile < (op < c->cm->n_body_ops ? c->n_tiles : 1); tile++)
            if (c->done[(uint64_t)op * c->n_tiles + tile] != (uint32_t)PS_OP_DONE) {
                const ps_shard *s = &c->model->shards[c->cm->ops[op].shard];
                return ps_walk_fail(c, NULL, "%s of shard %s %u is %s executed for tile %u",
                                    ps_op_get(c->cm->ops[op].desc->op)->name, ps_shard_kind_name(s->kind),
                                    s->layer,
                                    c->done[(uint64_t)op * c->n_tiles + tile] != 0 ? "partly" : "not", tile);
            }
    return PS_OK;
}

/* What must outlive the program: what GATHER read, for further passes of the tail, and the results. */
static ps_status check_end(const ps_walk *c) {
    ps_status status = check_missing(c);
    if (status == PS_OK)
        status = ps_walk_check_entries(c, NULL);
    if (status == PS_OK)
        status = ps_walk_check_tail(c);
    if (status != PS_OK)
        return status;
    for (uint32_t tile = 0; c->gathered && tile < c->n_tiles; tile++)
        if (!ps_check_holds(&c->state, c->gather_src, tile, c->gather_id))
            return ps_walk_fail(c, NULL, "buffer %u, which gather reads, is overwritten before the end",
                                c->gather_src);
    for (uint32_t op = c->cm->n_body_ops; op < c->cm->n_ops; op++) {
        ps_value value = c->cm->ops[op].desc->dst;
        bool found = value != PS_VALUE_LOGITS && value != PS_VALUE_TOKENS;
        for (uint32_t b = 0; !found && b < c->program->n_buffers; b++)
            found = c->program->buffers[b].space == PS_SPACE_HOST &&
                    ps_check_holds(&c->state, (uint16_t)b, 0, op + 1);
        if (!found)
            return ps_walk_fail(c, NULL, "no host buffer holds the %s at the end", ps_value_name(value));
    }
    return PS_OK;
}

static bool start_stream(ps_walk *c, ps_arena *arena, uint32_t n_tiles) {
    c->arena = arena;
    c->n_tiles = n_tiles;
    c->n_done = 0;
    c->open = NULL;
    c->free_open = NULL;
    c->n_open = c->open_cap = c->n_free = 0;
    c->gathered = false;
    memset(&c->sums, 0, sizeof c->sums);
    c->done = ps_arena_array(arena, (uint64_t)c->cm->n_ops * n_tiles, sizeof *c->done);
    c->kv = ps_arena_array(arena, c->model->n_layers, sizeof *c->kv);
    if (c->done == NULL || c->kv == NULL)
        return false;
    for (uint32_t l = 0; l < c->model->n_layers; l++)
        c->kv[l].where = PS_KV_NOWHERE;
    return ps_check_state_init(&c->state, arena, c->program, c->tier, n_tiles);
}

enum { MAX_INSTRS_PER_OP = 64 };

static ps_status check_stream(ps_walk *c, uint32_t n_tiles) {
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    ps_status status = PS_OK;
    if (arena == NULL)
        return ps_error_set(c->err, PS_E_NOMEM, "plan", "no memory to check it");
    /* Pieces of matrices, and copies of them, are many; more than this per operation is no plan. */
    if (ps_program_length(c->program, n_tiles) / MAX_INSTRS_PER_OP > (uint64_t)c->cm->n_ops * n_tiles) {
        status = ps_walk_fail(c, NULL, "far more instructions than the model has operations");
        goto done;
    }
    if (!start_stream(c, arena, n_tiles)) {
        status = ps_error_set(c->err, PS_E_NOMEM, "plan", "no memory to check it");
        goto done;
    }
    status = ps_walk_entries(c);
    const ps_instr *in;
    uint32_t layer;
    ps_cursor_start(&c->cursor, c->program, n_tiles);
    while (status == PS_OK && (in = ps_cursor_get(&c->cursor, &layer)) != NULL) {
        bool over_tiles = c->program->blocks[c->cursor.block].over_tiles;
        bool runs = ps_instr_runs(in, c->cursor.tile, over_tiles ? n_tiles : 1);
        ps_order_enter(&c->state.order, in, runs);
        if (runs)
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
static ps_status check_tier(ps_walk *c, uint32_t least_tokens) {
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
                              const ps_check_model *cm, const ps_check_pieces *pieces, ps_error *err) {
    ps_walk *c = calloc(1, sizeof *c); /* too large for a stack that may be small */
    if (c == NULL)
        return ps_error_set(err, PS_E_NOMEM, "plan", "no memory to check it");
    ps_status status = PS_OK;
    c->plan = plan;
    c->level = level;
    c->model = model;
    c->cm = cm;
    c->pieces = pieces;
    c->err = err;
    for (uint32_t i = 0; status == PS_OK && i < level->n_tiers; i++) {
        c->tier = &level->tiers[i];
        c->program = &plan->programs[c->tier->program];
        status = check_tier(c, i == 0 ? 1 : level->tiers[i - 1].max_tokens + 1);
    }
    free(c);
    return status;
}
