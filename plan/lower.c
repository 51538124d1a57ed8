/* Lowering: see lower.h.
 *
 * Each layer's operations become nodes (lower_nodes.c), these instructions (lower_list.c); layers whose shapes, windows
 * and places are alike and that follow each other become one block. */
#include "plan/lower.h"

#include <stdlib.h>
#include <string.h>

#include "plan/lower_int.h"

ps_lower_request ps_lower_request_of(const ps_level *level, const ps_tier *tier, const ps_model *model,
                                     const ps_profile *profile, const ps_cost_model *cost) {
    return (ps_lower_request){.model = model,
                              .profile = profile,
                              .cost = cost,
                              .n_threads = level->n_threads,
                              .max_tokens = tier->max_tokens,
                              .max_outputs = tier->max_outputs,
                              .n_seqs = level->n_seqs,
                              .bucket_tokens = level->bucket_tokens,
                              .level = level->budget_bytes ? level : NULL,
                              .max_direct = tier->max_direct};
}

static bool same_instr(const ps_instr *a, const ps_instr *b) {
    bool same = a->op == b->op && a->queue == b->queue && a->kernel == b->kernel && a->shard == b->shard &&
                a->row0 == b->row0 && a->n_rows == b->n_rows && a->col0 == b->col0 &&
                a->n_cols == b->n_cols && a->part == b->part && a->when == b->when && a->ahead == b->ahead &&
                a->kv == b->kv && a->dst == b->dst;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        same = same && a->w[i] == b->w[i] && a->at[i] == b->at[i];
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        same = same && a->src[i] == b->src[i];
    return same;
}

static bool same_list(const ps_lowered *a, const ps_lowered *b) {
    bool same = a->n == b->n;
    for (uint32_t i = 0; same && i < a->n; i++)
        same = same_instr(&a->instr[i], &b->instr[i]);
    return same;
}

/* Layers run the same instructions in the same time if shapes, window, weight types and places are alike. */
bool ps_layers_alike(const ps_model *m, uint32_t la, uint32_t lb) {
    const ps_layer *x = &m->layers[la], *y = &m->layers[lb];
    bool same = x->window == y->window && x->n_head == y->n_head && x->n_head_kv == y->n_head_kv &&
                x->head_dim_k == y->head_dim_k && x->head_dim_v == y->head_dim_v && x->n_ff == y->n_ff &&
                x->n_expert == y->n_expert && x->n_expert_used == y->n_expert_used &&
                x->n_ff_expert == y->n_ff_expert;
    for (int i = 0; same && i < PS_ROLE_COUNT; i++) {
        const ps_weight *a = x->w[i], *b = y->w[i];
        same = (a != NULL) == (b != NULL) && (!a || (a->type == b->type && a->cols == b->cols &&
                                                     a->rows == b->rows && a->experts == b->experts));
    }
    return same;
}

static bool alike(const ps_lower_request *r, uint32_t la, uint32_t lb) {
    return (r->kinds ? r->kinds[la] == r->kinds[lb] : ps_layers_alike(r->model, la, lb)) &&
           (!r->place || memcmp(&r->place->layers[la], &r->place->layers[lb], sizeof *r->place->layers) == 0);
}

uint64_t ps_instr_cols(const ps_model *model, uint32_t layer, const ps_instr *in, const ps_program *p) {
    uint64_t cols = in->dst != PS_NO_BUFFER ? p->buffers[in->dst].cols : 0;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        if (in->src[i] != PS_NO_BUFFER && p->buffers[in->src[i]].cols > cols)
            cols = p->buffers[in->src[i]].cols;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        const ps_weight *w = in->w[i] != PS_ROLE_NONE ? ps_model_weight(model, layer, in->w[i]) : NULL;
        if (w && w->cols > cols)
            cols = w->cols;
    }
    return cols;
}

static ps_status set_waits(const ps_lower_request *r, ps_program *p, ps_error *err) {
    bool *uses_scratch = calloc(p->n_instrs ? p->n_instrs : 1, sizeof *uses_scratch);
    if (!uses_scratch)
        return ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u instructions", p->n_instrs);
    for (uint32_t i = 0; i < p->n_instrs; i++) {
        const ps_kernel_spec *k = ps_cost_kernel(r->cost, p->instrs[i].kernel);
        uses_scratch[i] =
            k && (k->scratch.base || k->scratch.per_token || k->scratch.per_token_col || k->scratch.per_col ||
                  k->scratch.per_thread || k->scratch.per_thread_col || k->scratch.per_token_col_chunk);
    }
    ps_status status = ps_deps_waits(p, uses_scratch, err);
    free(uses_scratch);
    return status;
}

/* The program as it grows. */
typedef struct assembly {
    ps_lowering lo;
    ps_arena *work;
    ps_node_list nodes;
    ps_lowered now, before;
    ps_stream *streams; /* [n_layers] */
    ps_block *blocks;
    ps_instr *instrs;
    uint32_t n_blocks, n_instrs, room;
} assembly;

/* Append a list as a block. */
static ps_status add_block(assembly *a, const ps_lowered *list, ps_loop loop, uint32_t layer0,
                           bool over_tiles) {
    if (list->n > a->room - a->n_instrs) {
        uint32_t room = a->room * 2 + list->n;
        ps_instr *grown = realloc(a->instrs, room * sizeof *grown);
        if (!grown)
            return ps_error_set(a->lo.err, PS_E_NOMEM, "program", "no memory for %u instructions", room);
        a->instrs = grown;
        a->room = room;
    }
    a->blocks[a->n_blocks++] = (ps_block){.loop = loop,
                                          .layer0 = layer0,
                                          .n_layers = 1,
                                          .over_tiles = over_tiles,
                                          .instr0 = a->n_instrs,
                                          .n_instrs = list->n};
    memcpy(&a->instrs[a->n_instrs], list->instr, list->n * sizeof list->instr[0]);
    a->n_instrs += list->n;
    return PS_OK;
}

static const ps_stream *next_stream(const assembly *a, uint32_t layer) {
    const ps_lower_request *r = a->lo.r;
    if (layer + 1 < r->model->n_layers)
        return &a->streams[layer + 1];
    return r->place && r->place->carry ? &a->streams[0] : NULL;
}

/* The layers of a step of one tile: those that follow each other and are alike, what they copy ahead included, are one
 * block. */
static ps_status add_layers(assembly *a, bool over_tiles) {
    const ps_lower_request *r = a->lo.r;
    ps_status status = PS_OK;
    uint32_t last = r->model->n_layers - 1, x_before = UINT32_MAX;
    for (uint32_t l = 0; l <= last && !status; l++) {
        ps_block *b = &a->blocks[a->n_blocks - 1];
        bool follows = b->loop == PS_LOOP_LAYERS && alike(r, l - 1, l);
        const ps_stream *next = next_stream(a, l);
        bool ahead_alike = follows && (!next || !next->n || next_stream(a, l - 1)->items == next->items) &&
                           (next != NULL) == (next_stream(a, l - 1) != NULL);
        if (follows && ahead_alike && x_before == a->lo.x_spaces) {
            b->n_layers++; /* the same again, without a look */
            continue;
        }
        uint32_t x_in = a->lo.x_spaces;
        ps_nodes_of_layer(r, l, -1, &a->streams[l], next, &a->nodes);
        status = ps_lower_list(&a->lo, &a->nodes, true, &a->now);
        if (status)
            break;
        x_before = x_in;
        if (follows && same_list(&a->before, &a->now)) {
            b->n_layers++;
            continue;
        }
        status = add_block(a, &a->now, PS_LOOP_LAYERS, l, over_tiles);
        ps_lowered swap = a->before;
        a->before = a->now;
        a->now = swap;
    }
    return status;
}

/* Longer steps with a GPU go shard by shard: each block of a layer sees all tiles before the next begins. */
static ps_status add_shards(assembly *a) {
    ps_status status = PS_OK;
    for (uint32_t l = 0; l < a->lo.r->model->n_layers && !status; l++)
        for (int which = 0; which < 2 && !status; which++) {
            ps_nodes_of_layer(a->lo.r, l, which, &a->streams[l], next_stream(a, l), &a->nodes);
            status = ps_lower_list(&a->lo, &a->nodes, true, &a->now);
            if (!status)
                status = add_block(a, &a->now, PS_LOOP_LAYERS, l, true);
        }
    return status;
}

/* Slots that are filled before the step begins: what layer 0 finds first in each. */
static ps_status add_entries(const assembly *a, ps_arena *arena, ps_program *out, ps_error *err) {
    const ps_lower_request *r = a->lo.r;
    const ps_stream *s = &a->streams[0];
    if (!r->place || !r->place->carry || !s->n)
        return PS_OK;
    out->entries = ps_arena_array(arena, PS_MAX_SLOTS, sizeof *out->entries);
    if (!out->entries)
        return ps_error_set(err, PS_E_NOMEM, "program", "no memory for its entries");
    for (uint32_t b = 0; b < out->n_buffers; b++) {
        uint32_t i = 0;
        while (i < s->n && a->lo.slot[s->items[i].slot] != b + 1)
            i++;
        if (out->buffers[b].rows != PS_ROWS_SLOT || i == s->n)
            continue;
        const ps_stream_item *item = &s->items[i];
        const ps_weight *w = ps_model_weight(r->model, 0, item->role);
        out->entries[out->n_entries++] = (ps_slot_entry){.slot = (uint16_t)b,
                                                         .range = {.role = item->role,
                                                                   .row0 = item->row0,
                                                                   .n_rows = item->n_rows     ? item->n_rows
                                                                             : w->experts > 1 ? w->experts
                                                                                              : w->rows,
                                                                   .col0 = item->col0,
                                                                   .n_cols = item->n_cols}};
    }
    return PS_OK;
}

ps_status ps_lower(const ps_lower_request *r, ps_arena *arena, ps_program *out, ps_error *err) {
    const ps_model *m = r->model;
    ps_status status = PS_OK;
    assembly *a = calloc(1, sizeof *a);
    if (!a)
        return ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u layers", m->n_layers);
    bool over_tiles = r->max_tokens > PS_TILE_TOKENS;
    *out = (ps_program){0};
    status = ps_lowering_init(&a->lo, r, err);
    a->room = 4 * PS_MAX_LIST;
    a->work = ps_arena_new(UINT64_MAX);
    a->nodes.nodes = malloc(PS_MAX_NODES * sizeof *a->nodes.nodes);
    a->now.instr = malloc(PS_MAX_LIST * sizeof *a->now.instr);
    a->before.instr = malloc(PS_MAX_LIST * sizeof *a->before.instr);
    a->blocks = calloc(2 * (uint64_t)m->n_layers + 2, sizeof *a->blocks);
    a->instrs = malloc(a->room * sizeof *a->instrs);
    a->streams = calloc(m->n_layers, sizeof *a->streams);
    if (status)
        goto done;
    if (!a->work || !a->nodes.nodes || !a->now.instr || !a->before.instr || !a->blocks || !a->instrs ||
        !a->streams) {
        status = ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u layers", m->n_layers);
        goto done;
    }
    for (uint32_t l = 0; l < m->n_layers && !status; l++)
        if (l && alike(r, l - 1, l))
            a->streams[l] = a->streams[l - 1];
        else
            status = ps_stream_of(r, l, a->work, &a->streams[l], err);
    if (!status) {
        ps_nodes_of_embed(r, &a->streams[0], &a->nodes);
        status = ps_lower_list(&a->lo, &a->nodes, true, &a->now);
    }
    if (!status)
        status = add_block(a, &a->now, PS_LOOP_ONCE, 0, over_tiles);
    if (!status)
        status = over_tiles && r->place ? add_shards(a) : add_layers(a, over_tiles);
    if (!status)
        status = ps_nodes_of_head(r, &a->nodes, err);
    if (!status)
        status = ps_lower_list(&a->lo, &a->nodes, false, &a->now);
    if (!status)
        status = add_block(a, &a->now, PS_LOOP_ONCE, 0, false);
    if (status)
        goto done;

    *out = (ps_program){.n_buffers = a->lo.n_buffers, .n_instrs = a->n_instrs, .n_blocks = a->n_blocks};
    out->buffers = ps_arena_array(arena, a->lo.n_buffers, sizeof *out->buffers);
    out->instrs = ps_arena_array(arena, a->n_instrs, sizeof *out->instrs);
    out->blocks = ps_arena_array(arena, a->n_blocks, sizeof *out->blocks);
    if (!out->buffers || !out->instrs || !out->blocks) {
        status = ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u instructions", a->n_instrs);
        goto done;
    }
    memcpy(out->buffers, a->lo.buffers, a->lo.n_buffers * sizeof *out->buffers);
    memcpy(out->instrs, a->instrs, a->n_instrs * sizeof *out->instrs);
    memcpy(out->blocks, a->blocks, a->n_blocks * sizeof *out->blocks);
    status = add_entries(a, arena, out, err);
    if (!status)
        status = set_waits(r, out, err);
done:
    ps_arena_free(a->work);
    free(a->lo.gpu_kernels);
    free(a->nodes.nodes);
    free(a->now.instr);
    free(a->before.instr);
    free(a->blocks);
    free(a->instrs);
    free(a->streams);
    free(a);
    return status;
}
