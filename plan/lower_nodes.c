/* Nodes of the layers: the model's operations cut up and copied around as a placing says. See lower_int.h.
 *
 * Streamed weights: a copy into a slot stands right behind the last reader of what the slot held, so the order of the
 * program is the order in which slots come free, and the bus runs ahead as far as there are slots. Over tiles every
 * streamed matrix has a slot of its own: the copies of a feed-forward block stand in the attention block before it, those
 * of an attention block in the feed-forward block of the layer before. */
#include <string.h>

#include "plan/lower_int.h"

/* Most ranges that one product is cut into: what the checker follows. */
enum { MAX_RANGES = 16, TAG_CPU = 100, MOE_WEIGHTS = 3 };

typedef struct context {
    const ps_lower_request *r;
    uint32_t layer;
    const ps_stream *own, *next;
    uint32_t cursor; /* in own */
    bool tiles;
    ps_node_list *out;
} context;

static bool over_tiles(const ps_lower_request *r) {
    return r->max_tokens > PS_TILE_TOKENS;
}

static const ps_layer_place *place_of(const ps_lower_request *r, uint32_t layer) {
    return r->place ? &r->place->layers[layer] : NULL;
}

static void put(ps_node_list *out, const ps_node *node) {
    if (out->n == PS_MAX_NODES)
        out->overflow = true;
    else
        out->nodes[out->n++] = *node;
}

static ps_node blank(ps_op op, ps_queue queue, ps_shard_kind shard, uint32_t layer) {
    ps_node n = {.in = {.op = op, .queue = queue, .shard = shard, .dst = PS_NO_BUFFER}, .layer = layer};
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        n.in.w[i] = PS_ROLE_NONE;
    for (int i = 0; i < PS_OP_MAX_SRC; i++) {
        n.in.src[i] = PS_NO_BUFFER;
        n.src[i].value = PS_VALUE_NONE;
    }
    n.dst.value = PS_VALUE_NONE;
    return n;
}

/* The operation as a whole. On the GPU its weights are taken for resident. */
static ps_node whole(const ps_op_desc *d, const ps_shard *shard, ps_queue queue) {
    ps_node n = blank(d->op, queue, shard->kind, shard->layer);
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        n.in.w[i] = d->w[i];
        n.in.at[i] = d->w[i] != PS_ROLE_NONE && queue == PS_QUEUE_GPU ? PS_AT_VRAM : PS_AT_HOST;
    }
    for (int s = 0; s < PS_OP_MAX_SRC; s++)
        n.src[s].value = d->src[s];
    n.dst = (ps_operand){.value = d->dst, .cols = d->rows};
    return n;
}

static ps_node copy_of(const ps_stream_item *item, uint32_t layer, bool ahead, ps_when when) {
    ps_node n = blank(PS_OP_COPY, PS_QUEUE_H2D, item->shard, layer);
    n.in.w[0] = item->role;
    n.in.row0 = item->row0;
    n.in.n_rows = item->n_rows;
    n.in.col0 = item->col0;
    n.in.n_cols = item->n_cols;
    n.in.ahead = ahead;
    n.in.when = when;
    n.in.dst = (uint16_t)item->slot;
    return n;
}

static const ps_stream_item *find_slot(const ps_stream *s, uint32_t from, uint32_t slot) {
    for (uint32_t i = from; s && i < s->n; i++)
        if (s->items[i].slot == slot)
            return &s->items[i];
    return NULL;
}

/* The slot of item i of this layer has had its last reader: copy what it holds next. */
static void refill(context *c, uint32_t i) {
    if (c->tiles)
        return;
    uint32_t slot = c->own->items[i].slot;
    const ps_stream_item *item = find_slot(c->own, i + 1, slot);
    bool ahead = !item;
    if (!item)
        item = find_slot(c->next, 0, slot);
    if (item) {
        ps_node n = copy_of(item, c->layer, ahead, PS_WHEN_EVERY);
        put(c->out, &n);
    }
}

/* A product's rows [row0, row0 + n_rows) over columns [col0, col0 + n_cols), from where its weights are. Zeros: all. */
static void product(context *c, ps_node n, ps_where where, uint64_t row0, uint64_t n_rows, uint64_t col0,
                    uint64_t n_cols) {
    n.in.row0 = row0;
    n.in.n_rows = n_rows;
    n.in.col0 = col0;
    n.in.n_cols = n_cols;
    if (where != PS_WHERE_STREAM) {
        n.in.at[0] = where == PS_WHERE_VRAM ? PS_AT_VRAM : PS_AT_HOST;
        put(c->out, &n);
        return;
    }
    while (c->cursor < c->own->n && c->own->items[c->cursor].role == n.in.w[0]) {
        const ps_stream_item *item = &c->own->items[c->cursor];
        n.in.row0 = item->row0;
        n.in.n_rows = item->n_rows;
        n.in.at[0] = (uint16_t)(PS_AT_SLOT + item->slot);
        put(c->out, &n);
        refill(c, c->cursor++);
    }
}

static void attention_nodes(context *c, const ps_shard *shard) {
    const ps_layer_place *at = place_of(c->r, c->layer);
    ps_where where = at ? at->attn : PS_WHERE_HOST;
    ps_queue queue = where == PS_WHERE_HOST ? PS_QUEUE_CPU : PS_QUEUE_GPU;
    bool slot = at && at->kv_slot && where != PS_WHERE_HOST;
    ps_node kv = blank(PS_OP_COPY, PS_QUEUE_H2D, PS_SHARD_ATTN, c->layer);
    kv.in.kv = PS_KV_SLOT + PS_SLOT_KV;
    kv.in.when = c->tiles ? PS_WHEN_FIRST : PS_WHEN_EVERY;
    if (slot)
        put(c->out, &kv);
    for (uint32_t i = 0; i < shard->n_ops; i++) {
        const ps_op_desc *d = &shard->ops[i];
        ps_node n = whole(d, shard, queue);
        if (slot && (d->op == PS_OP_KV_STORE || d->op == PS_OP_ATTENTION))
            n.in.kv = PS_KV_SLOT + PS_SLOT_KV;
        if (d->op == PS_OP_MATMUL)
            product(c, n, where, 0, 0, 0, 0);
        else
            put(c->out, &n);
        if (slot && !c->tiles && d->op == PS_OP_ATTENTION) {
            kv.in.queue = PS_QUEUE_D2H;
            put(c->out, &kv);
        }
    }
}

/* Over tiles the KV slot goes home while the feed-forward block runs. */
static void bring_kv_home(context *c) {
    const ps_layer_place *at = place_of(c->r, c->layer);
    if (!c->tiles || !at || !at->kv_slot || at->attn == PS_WHERE_HOST)
        return;
    ps_node kv = blank(PS_OP_COPY, PS_QUEUE_D2H, PS_SHARD_ATTN, c->layer);
    kv.in.kv = PS_KV_SLOT + PS_SLOT_KV;
    kv.in.when = PS_WHEN_FIRST;
    put(c->out, &kv);
}

/* Does the GPU take part in the layer's feed-forward block? */
static bool gpu_part(const ps_layer_place *at) {
    for (uint32_t i = 0; at && i < at->n_parts; i++)
        if (at->part[i].where != PS_WHERE_HOST)
            return true;
    return false;
}

static void join(context *c, ps_shard_kind shard, ps_value v, uint32_t cols) {
    ps_node n = blank(PS_OP_ADD, PS_QUEUE_GPU, shard, c->layer);
    n.src[0] = (ps_operand){.value = v};
    n.src[1] = (ps_operand){.value = v, .tag = TAG_CPU};
    n.dst = (ps_operand){.value = v, .cols = cols};
    put(c->out, &n);
}

/* Hidden columns of one part: gate and up by rows, the activation on the slice, down by columns. first: its partial sum
 * takes the operation's residual; others on the GPU add to the sum so far, the CPU's stands by itself. */
static void hidden_part(context *c, const ps_shard *shard, const ps_op_desc *const ops[4],
                        const ps_place_part *part, uint32_t tag, bool all, bool first) {
    bool cpu = part->where == PS_WHERE_HOST;
    ps_queue queue = cpu ? PS_QUEUE_CPU : PS_QUEUE_GPU;
    for (int k = 0; k < 4; k++) {
        ps_node n = whole(ops[k], shard, queue);
        uint64_t begin = all ? 0 : part->first, count = all ? 0 : part->n;
        if (!all && k < 3)
            n.dst = (ps_operand){ops[k]->dst, tag, (uint32_t)part->first, (uint32_t)part->n};
        if (!all && k >= 2)
            n.src[0].tag = tag;
        if (!all && k == 2)
            n.src[1].tag = tag;
        if (k < 2) {
            product(c, n, part->where, begin, count, 0, 0);
        } else if (k == 2) {
            put(c->out, &n);
        } else {
            if (!first && !all)
                n.src[1] = (ps_operand){.value = cpu ? PS_VALUE_NONE : ops[k]->dst};
            if (cpu && !all) {
                n.src[1].value = PS_VALUE_NONE;
                n.dst.tag = TAG_CPU;
            }
            if (begin != 0) { /* the bias is in the part that begins at 0 */
                n.in.w[1] = PS_ROLE_NONE;
                n.in.at[1] = PS_AT_HOST;
            }
            product(c, n, part->where, 0, 0, begin, count);
        }
    }
}

static void dense_nodes(context *c, const ps_shard *shard) {
    const ps_layer_place *at = place_of(c->r, c->layer);
    bool gpu = gpu_part(at);
    uint32_t i = 0;
    for (; i < shard->n_ops && shard->ops[i].op != PS_OP_MATMUL; i++) {
        ps_node n = whole(&shard->ops[i], shard, gpu ? PS_QUEUE_GPU : PS_QUEUE_CPU);
        put(c->out, &n);
    }
    const ps_op_desc *ops[4] = {&shard->ops[i], &shard->ops[i + 1], &shard->ops[i + 2], &shard->ops[i + 3]};
    static const ps_place_part host = {PS_WHERE_HOST, 0, 0};
    uint32_t n_parts = at ? at->n_parts : 1;
    const ps_place_part *parts = at ? at->part : &host;
    bool cpu = false, first = true;
    for (int pass = 0; pass < 2; pass++) /* the CPU's part first: the GPU hands over before its own work */
        for (uint32_t p = 0; p < n_parts; p++) {
            bool host_part = parts[p].where == PS_WHERE_HOST;
            if (host_part != (pass == 0))
                continue;
            hidden_part(c, shard, ops, &parts[p], 1 + p, n_parts == 1, !host_part && first);
            cpu |= host_part && n_parts > 1;
            first = first && host_part;
        }
    if (cpu)
        join(c, shard->kind, ops[3]->dst, ops[3]->rows);
    for (i += 4; i < shard->n_ops; i++) {
        ps_node n = whole(&shard->ops[i], shard, gpu ? PS_QUEUE_GPU : PS_QUEUE_CPU);
        put(c->out, &n);
    }
}

/* One dispatch. far: the CPU's part; add: it takes the sum so far. */
static ps_node dispatch(const ps_op_desc *d, const ps_shard *shard, ps_moe_part part, bool vram) {
    ps_node n = whole(d, shard, part == PS_MOE_PART_FAR ? PS_QUEUE_CPU : PS_QUEUE_GPU);
    n.in.part = part;
    for (int i = 0; i < MOE_WEIGHTS; i++)
        n.in.at[i] = vram ? PS_AT_VRAM : PS_AT_HOST;
    if (part == PS_MOE_PART_FAR) {
        n.src[2].value = PS_VALUE_NONE;
        n.dst.tag = TAG_CPU;
    }
    return n;
}

static void moe_nodes(context *c, const ps_shard *shard) {
    const ps_layer_place *at = place_of(c->r, c->layer);
    bool gpu = gpu_part(at), host = false, stream = false;
    uint64_t resident = 0;
    for (uint32_t p = 0; at && p < at->n_parts; p++) {
        host |= at->part[p].where == PS_WHERE_HOST;
        stream |= at->part[p].where == PS_WHERE_STREAM;
        resident += at->part[p].where == PS_WHERE_VRAM ? at->part[p].n : 0;
    }
    for (uint32_t i = 0; i < shard->n_ops; i++) {
        const ps_op_desc *d = &shard->ops[i];
        if (d->op != PS_OP_MOE_DISPATCH || !gpu) {
            ps_node n = whole(d, shard, gpu ? PS_QUEUE_GPU : PS_QUEUE_CPU);
            put(c->out, &n);
            continue;
        }
        if (host && !stream) {
            ps_node far = dispatch(d, shard, PS_MOE_PART_FAR, false);
            put(c->out, &far);
            ps_node near = dispatch(d, shard, PS_MOE_PART_NEAR, resident != 0);
            put(c->out, &near);
            join(c, shard->kind, d->dst, d->rows);
            continue;
        }
        if (host) { /* the last experts, the others coming through slots */
            ps_node cpu = whole(d, shard, PS_QUEUE_CPU);
            const ps_place_part *last = &at->part[at->n_parts - 1];
            cpu.in.row0 = last->first;
            cpu.in.n_rows = last->n;
            cpu.src[2].value = PS_VALUE_NONE;
            cpu.dst.tag = TAG_CPU;
            put(c->out, &cpu);
        }
        ps_node n = dispatch(d, shard, PS_MOE_PART_ALL, resident != 0);
        if (!stream) {
            put(c->out, &n);
            continue;
        }
        if (resident) {
            n.in.n_rows = resident;
            put(c->out, &n);
        }
        while (c->cursor + MOE_WEIGHTS <= c->own->n) {
            const ps_stream_item *items = &c->own->items[c->cursor];
            n.in.row0 = items[0].row0;
            n.in.n_rows = items[0].n_rows;
            for (int k = 0; k < MOE_WEIGHTS; k++)
                n.in.at[k] = (uint16_t)(PS_AT_SLOT + items[k].slot);
            put(c->out, &n);
            for (int k = 0; k < MOE_WEIGHTS; k++)
                refill(c, c->cursor++);
        }
        if (host)
            join(c, shard->kind, d->dst, d->rows);
    }
}

/* Copies for items of `shard` at the start of a block over tiles. */
static void copies_ahead(context *c, const ps_stream *s, ps_shard_kind kind, bool not_kind, bool ahead) {
    for (uint32_t i = 0; s && i < s->n; i++)
        if ((s->items[i].shard == kind) != not_kind) {
            ps_node n = copy_of(&s->items[i], c->layer, ahead, PS_WHEN_FIRST);
            put(c->out, &n);
        }
}

void ps_nodes_of_layer(const ps_lower_request *r, uint32_t layer, int which, const ps_stream *own,
                       const ps_stream *next, ps_node_list *out) {
    const ps_model *m = r->model;
    context c = {.r = r, .layer = layer, .own = own, .next = next, .tiles = which >= 0, .out = out};
    const ps_shard *attn = &m->shards[1 + 2 * (uint64_t)layer], *ffn = attn + 1;
    out->n = 0;
    if (!c.tiles) /* slots that this layer leaves alone */
        for (uint32_t i = 0; next && i < next->n; i++)
            if (find_slot(next, 0, next->items[i].slot) == &next->items[i] &&
                !find_slot(own, 0, next->items[i].slot)) {
                ps_node n = copy_of(&next->items[i], layer, true, PS_WHEN_EVERY);
                put(out, &n);
            }
    if (which != 1) {
        if (c.tiles)
            copies_ahead(&c, own, PS_SHARD_ATTN, true, false);
        attention_nodes(&c, attn);
    }
    if (which == 0)
        return;
    if (c.tiles) {
        while (c.cursor < own->n && own->items[c.cursor].shard == PS_SHARD_ATTN)
            c.cursor++;
        bring_kv_home(&c);
        copies_ahead(&c, next, PS_SHARD_ATTN, false, true);
    }
    if (ffn->kind == PS_SHARD_MOE)
        moe_nodes(&c, ffn);
    else
        dense_nodes(&c, ffn);
}

void ps_nodes_of_embed(const ps_lower_request *r, const ps_stream *first, ps_node_list *out) {
    const ps_shard *shard = &r->model->shards[0];
    const ps_layer_place *at = place_of(r, 0);
    out->n = 0;
    for (uint32_t i = 0; i < shard->n_ops; i++) {
        ps_node n = whole(&shard->ops[i], shard, PS_QUEUE_CPU);
        put(out, &n);
    }
    if (at && at->attn != PS_WHERE_HOST) { /* by a kernel: it does not queue behind weights */
        ps_node n = blank(PS_OP_COPY, PS_QUEUE_GPU, PS_SHARD_EMBED, 0);
        n.src[0].value = PS_VALUE_X;
        n.dst = (ps_operand){.value = PS_VALUE_X, .cols = r->model->n_embd};
        put(out, &n);
    }
    if (!r->place || r->place->carry)
        return;
    for (uint32_t i = 0; first && i < first->n; i++) {
        const ps_stream_item *item = &first->items[i];
        if (over_tiles(r) ? item->shard == PS_SHARD_ATTN : find_slot(first, 0, item->slot) == item) {
            ps_node n = copy_of(item, 0, false, over_tiles(r) ? PS_WHEN_FIRST : PS_WHEN_EVERY);
            put(out, &n);
        }
    }
}

/* ---- what is streamed ---- */

/* One matrix, or experts of three, to be cut into `ranges`. */
typedef struct streamed {
    ps_shard_kind shard;
    ps_role role[MOE_WEIGHTS];
    uint32_t n_roles;
    uint64_t row0, n_rows, col0, n_cols, rows; /* rows: of the whole weight */
    uint64_t bytes;                            /* of the largest role's range */
    uint64_t ranges;
} streamed;

static bool add_streamed(const ps_lower_request *r, uint32_t layer, streamed *list, uint32_t *n,
                         ps_shard_kind shard, ps_role role, uint64_t row0, uint64_t n_rows, uint64_t col0,
                         uint64_t n_cols) {
    const ps_weight *w = ps_model_weight(r->model, layer, role);
    if (!w)
        return true;
    uint64_t rows = w->experts > 1 ? w->experts : w->rows, bytes;
    n_rows = n_rows ? n_rows : rows;
    ps_weight_range range = {role, ps_role_get(role)->per_layer ? layer : 0, row0, n_rows, col0, n_cols};
    if (!ps_weight_range_bytes(r->model, &range, &bytes, NULL))
        return false;
    uint64_t ranges = (bytes + r->place->range_bytes - 1) / r->place->range_bytes;
    ranges = ranges > MAX_RANGES ? MAX_RANGES : ranges ? ranges : 1;
    list[(*n)++] = (streamed){.shard = shard,
                              .role = {role},
                              .n_roles = 1,
                              .row0 = row0,
                              .n_rows = n_rows,
                              .col0 = col0,
                              .n_cols = n_cols,
                              .rows = rows,
                              .bytes = bytes,
                              .ranges = ranges > n_rows ? n_rows : ranges};
    return true;
}

/* As many ranges in all as fill rotations of n slots: the largest are cut further. */
static void even_out(streamed *list, uint32_t n, uint32_t n_slots) {
    for (;;) {
        uint64_t total = 0;
        streamed *most = NULL;
        for (uint32_t i = 0; i < n; i++) {
            total += list[i].ranges;
            if (list[i].ranges < list[i].n_rows && list[i].ranges < MAX_RANGES &&
                (!most || list[i].bytes / list[i].ranges > most->bytes / most->ranges))
                most = &list[i];
        }
        if (total % n_slots == 0 || !most)
            return;
        most->ranges++;
    }
}

static ps_status cut(const ps_lower_request *r, uint32_t layer, const streamed *list, uint32_t n,
                     uint32_t n_slots, ps_arena *arena, ps_stream *out, ps_error *err) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += list[i].ranges * list[i].n_roles;
    ps_stream_item *items = ps_arena_array(arena, out->n + total + 1, sizeof *items);
    if (!items)
        return ps_error_set(err, PS_E_NOMEM, "program", "no memory for layer %u", layer);
    if (out->n)
        memcpy(items, out->items, out->n * sizeof *items);
    out->items = items;
    uint32_t number = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < list[i].ranges; k++, number++)
            for (uint32_t w = 0; w < list[i].n_roles; w++) {
                ps_stream_item *item = &out->items[out->n++];
                uint64_t begin = list[i].n_rows * k / list[i].ranges,
                         end = list[i].n_rows * (k + 1) / list[i].ranges;
                bool moe = list[i].n_roles > 1;
                *item = (ps_stream_item){.shard = list[i].shard,
                                         .role = list[i].role[w],
                                         .row0 = list[i].row0 + begin,
                                         .n_rows = end - begin,
                                         .col0 = list[i].col0,
                                         .n_cols = list[i].n_cols};
                ps_weight_range range = {item->role,   layer,      item->row0,
                                         item->n_rows, item->col0, item->n_cols};
                if (!ps_weight_range_bytes(r->model, &range, &item->bytes, NULL))
                    return ps_error_set(err, PS_E_INTERNAL, "program", "%s of layer %u cannot be cut so",
                                        ps_role_get(item->role)->name, layer);
                if (item->n_rows == list[i].rows)
                    item->n_rows = 0; /* all */
                if (over_tiles(r))
                    item->slot = moe                            ? PS_SLOT_FFN + w
                                 : item->shard == PS_SHARD_ATTN ? PS_SLOT_ATTN + number
                                                                : PS_SLOT_FFN + number;
                else
                    item->slot = moe ? PS_SLOT_MOE + (number % 2) * MOE_WEIGHTS + w
                                     : PS_SLOT_ROTATE + number % n_slots;
            }
    return PS_OK;
}

ps_status ps_stream_of(const ps_lower_request *r, uint32_t layer, ps_arena *arena, ps_stream *out,
                       ps_error *err) {
    static const ps_role attn[] = {PS_ROLE_ATTN_Q, PS_ROLE_ATTN_K, PS_ROLE_ATTN_V, PS_ROLE_ATTN_OUT};
    static const ps_role experts[] = {PS_ROLE_FFN_GATE_EXPS, PS_ROLE_FFN_UP_EXPS, PS_ROLE_FFN_DOWN_EXPS};
    *out = (ps_stream){0};
    if (!r->place)
        return PS_OK;
    const ps_layer_place *at = &r->place->layers[layer];
    streamed list[8], moe[4];
    uint32_t n = 0, n_moe = 0, n_attn = 0;
    bool ok = true;
    for (int i = 0; i < 4 && at->attn == PS_WHERE_STREAM; i++)
        ok = ok && add_streamed(r, layer, list, &n, PS_SHARD_ATTN, attn[i], 0, 0, 0, 0);
    n_attn = n;
    for (uint32_t p = 0; p < at->n_parts; p++) {
        const ps_place_part *part = &at->part[p];
        if (part->where != PS_WHERE_STREAM)
            continue;
        bool all = at->n_parts == 1;
        if (r->model->layers[layer].n_expert) {
            for (int w = 0; w < MOE_WEIGHTS; w++) {
                ok = ok && add_streamed(r, layer, moe, &n_moe, PS_SHARD_MOE, experts[w], part->first, part->n,
                                        0, 0);
                if (ok && w && moe[w].bytes > moe[0].bytes) {
                    moe[0].bytes = moe[w].bytes;
                    moe[0].ranges = moe[w].ranges;
                }
                moe[0].role[w] = experts[w];
            }
            moe[0].n_roles = MOE_WEIGHTS;
            n_moe = 1;
        } else {
            ok = ok &&
                 add_streamed(r, layer, list, &n, PS_SHARD_FFN, PS_ROLE_FFN_GATE, part->first, part->n, 0,
                              0) &&
                 add_streamed(r, layer, list, &n, PS_SHARD_FFN, PS_ROLE_FFN_UP, part->first, part->n, 0, 0) &&
                 add_streamed(r, layer, list, &n, PS_SHARD_FFN, PS_ROLE_FFN_DOWN, 0, 0, all ? 0 : part->first,
                              all ? 0 : part->n);
        }
    }
    if (!ok)
        return ps_error_set(err, PS_E_INTERNAL, "program", "what layer %u streams is no range", layer);
    if (over_tiles(r)) { /* one slot each */
        for (uint32_t i = 0; i < n; i++)
            list[i].ranges = 1;
        moe[0].ranges = 1;
        ps_status status = cut(r, layer, list, n_attn, 1, arena, out, err);
        if (!status)
            status = cut(r, layer, list + n_attn, n - n_attn, 1, arena, out, err);
        return status ? status : cut(r, layer, moe, n_moe, 1, arena, out, err);
    }
    even_out(list, n, r->place->n_slots);
    even_out(moe, n_moe, 2);
    ps_status status = cut(r, layer, list, n, r->place->n_slots, arena, out, err);
    return status ? status : cut(r, layer, moe, n_moe, 2, arena, out, err);
}

/* ---- the head ---- */

ps_status ps_nodes_of_head(const ps_lower_request *r, ps_node_list *out, ps_error *err) {
    const ps_model *m = r->model;
    const ps_shard *shard = &m->shards[m->n_shards - 1];
    const ps_placing *at = r->place;
    static const ps_place_part host = {PS_WHERE_HOST, 0, 0};
    uint32_t n_parts = at ? at->n_head : 1;
    const ps_place_part *parts = at ? at->head : &host;
    /* X is where the last feed-forward block leaves it. */
    ps_queue last = at && gpu_part(&at->layers[m->n_layers - 1]) ? PS_QUEUE_GPU : PS_QUEUE_CPU;
    bool gpu = false;
    streamed list[PS_MAX_PARTS];
    uint32_t n_streamed = 0;
    ps_stream s = {0};
    ps_status status = PS_OK;
    out->n = 0;
    for (uint32_t p = 0; p < n_parts; p++) {
        gpu |= parts[p].where != PS_WHERE_HOST;
        if (parts[p].where == PS_WHERE_STREAM &&
            !add_streamed(r, 0, list, &n_streamed, PS_SHARD_HEAD, PS_ROLE_OUTPUT, parts[p].first, parts[p].n,
                          0, 0))
            return ps_error_set(err, PS_E_INTERNAL, "program", "what the head streams is no range");
    }
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    if (!arena)
        return ps_error_set(err, PS_E_NOMEM, "program", "no memory for the head");
    if (n_streamed)
        status = cut(r, 0, list, n_streamed, 2, arena, &s, err);
    for (uint32_t i = 0; i < s.n; i++)
        s.items[i].slot = PS_SLOT_HEAD + i % 2;
    context c = {.r = r, .own = &s, .out = out};
    for (uint32_t i = 0; i < shard->n_ops && !status; i++) {
        const ps_op_desc *d = &shard->ops[i];
        if (d->op != PS_OP_MATMUL) {
            ps_queue queue = d->op == PS_OP_GATHER   ? last
                             : d->op == PS_OP_SAMPLE ? PS_QUEUE_CPU
                             : gpu                   ? PS_QUEUE_GPU
                                                     : PS_QUEUE_CPU;
            ps_node n = whole(d, shard, queue);
            put(out, &n);
            for (uint32_t k = 0; k < s.n && k < 2 && d->op == PS_OP_GATHER; k++) {
                ps_node copy = copy_of(&s.items[k], 0, false, PS_WHEN_EVERY);
                put(out, &copy);
            }
            continue;
        }
        for (int pass = 0; pass < 2; pass++)
            for (uint32_t p = 0; p < n_parts; p++) {
                bool cpu = parts[p].where == PS_WHERE_HOST;
                if (cpu != (pass == 0))
                    continue;
                bool all = n_parts == 1;
                product(&c, whole(d, shard, cpu ? PS_QUEUE_CPU : PS_QUEUE_GPU), parts[p].where,
                        all ? 0 : parts[p].first, all ? 0 : parts[p].n, 0, 0);
            }
    }
    ps_arena_free(arena);
    return status;
}
