/* Weights where instructions look for them, what slots hold, and KV caches. */
#include <stdio.h>

#include "core/checked.h"
#include "schemas/check_walk.h"

ps_status ps_walk_race(const ps_walk *c, const ps_here *h, ps_check_why why, const char *what,
                       uint64_t other) {
    unsigned long long back = (unsigned long long)(c->cursor.index - other);
    switch (why) {
    case PS_WHY_OK:
        return PS_OK;
    case PS_WHY_WRITE_RACE:
        return ps_walk_fail(c, h, "%s may still be written by the instruction %llu before", what, back);
    case PS_WHY_READ_RACE:
        return ps_walk_fail(c, h, "%s may still be read by the instruction %llu before", what, back);
    case PS_WHY_SHARED_RACE:
        return ps_walk_fail(c, h, "bytes of %s may still be in use by the instruction %llu before", what,
                            back);
    default:
        return ps_walk_fail(c, h, "%s is used by too many instructions at once", what);
    }
}

static ps_status slot_race(const ps_walk *c, const ps_here *h, ps_check_why why, uint16_t b, uint64_t other) {
    char what[32];
    snprintf(what, sizeof what, "slot %u", b);
    return ps_walk_race(c, h, why, what, other);
}

static ps_slot *slot_of(const ps_walk *c, uint16_t b) {
    return c->state.buffers[b].slot;
}

/* ---- ranges ---- */

static bool same_range(const ps_weight_range *a, const ps_weight_range *b) {
    return a->role == b->role && a->layer == b->layer && a->row0 == b->row0 && a->n_rows == b->n_rows &&
           a->col0 == b->col0 && a->n_cols == b->n_cols;
}

/* The range of weight i that an instruction takes: rows and columns of a product's matrix, rows (or experts) of a copied
 * weight, experts of all three of a mixture, everything of others. Columns that are all are 0. */
static ps_status weight_range(const ps_walk *c, const ps_here *h, uint32_t i, ps_weight_range *out) {
    const ps_instr *in = h->in;
    const ps_role_info *role = ps_role_get(in->w[i]);
    const ps_weight *w = ps_model_weight(c->model, h->weight_layer, in->w[i]);
    if (w == NULL)
        return ps_walk_fail(c, h, "the model has no %s here", role->name);
    uint64_t rows = w->experts > 1 ? w->experts : w->rows;
    *out = (ps_weight_range){in->w[i], role->per_layer ? h->weight_layer : 0, 0, rows, 0, 0};
    bool cut = (in->op == PS_OP_MATMUL && i == 0) || in->op == PS_OP_COPY ||
               (in->op == PS_OP_MOE_DISPATCH && w->experts > 1);
    if (cut && in->n_rows != 0) {
        out->row0 = in->row0;
        out->n_rows = in->n_rows;
    }
    if (!ps_range_ok(out->row0, out->n_rows, rows))
        return ps_walk_fail(c, h, "rows %llu to %llu are outside", (unsigned long long)in->row0,
                            (unsigned long long)(in->row0 + in->n_rows - 1));
    if (!cut || in->n_cols == 0)
        return PS_OK;
    if (!ps_range_ok(in->col0, in->n_cols, w->cols))
        return ps_walk_fail(c, h, "columns %llu to %llu are outside", (unsigned long long)in->col0,
                            (unsigned long long)(in->col0 + in->n_cols - 1));
    if (in->n_cols != w->cols) {
        out->col0 = in->col0;
        out->n_cols = in->n_cols;
    }
    return PS_OK;
}

/* Columns of a weight that stays where it is in the file: at blocks of every type. */
static ps_status check_host_columns(const ps_walk *c, const ps_here *h, const ps_weight_range *range) {
    const ps_weight *w = ps_model_weight(c->model, range->layer, range->role);
    bool ok = range->n_cols == 0 ||
              (range->col0 % PS_COLUMN_STEP == 0 &&
               (range->n_cols % PS_COLUMN_STEP == 0 || range->col0 + range->n_cols == w->cols));
    return ok ? PS_OK
              : ps_walk_fail(c, h, "columns %llu to %llu of %s are not at multiples of %d",
                             (unsigned long long)range->col0,
                             (unsigned long long)(range->col0 + range->n_cols - 1),
                             ps_role_get(range->role)->name, PS_COLUMN_STEP);
}

/* ---- placement ---- */

/* Where a placement lets weights be used: queue cpu, and on queue gpu from host, VRAM or a slot. */
enum { USE_CPU = 1, USE_HOST = 2, USE_VRAM = 4, USE_SLOT = 8, USE_GPU = USE_HOST | USE_VRAM | USE_SLOT };
static const uint8_t placement_uses[PS_PLACE_COUNT] = {
    [PS_PLACE_VRAM] = USE_VRAM,
    [PS_PLACE_STREAM] = USE_VRAM | USE_SLOT,
    [PS_PLACE_DIRECT] = USE_VRAM | USE_HOST,
    [PS_PLACE_HOST] = USE_CPU,
    [PS_PLACE_SPLIT] = USE_CPU | USE_GPU,
};

static ps_status check_placement(const ps_walk *c, const ps_here *h, uint32_t use, const char *what) {
    if (h->shard == UINT32_MAX)
        return ps_walk_fail(c, h, "the model has no shard %s in layer %u", ps_shard_kind_name(h->in->shard),
                            h->weight_layer);
    ps_placement p = c->level->placement[h->shard];
    uint32_t uses = placement_uses[p], queue = h->in->queue == PS_QUEUE_CPU ? USE_CPU : USE_GPU;
    if ((uses & queue) == 0)
        return ps_walk_fail(c, h, "weights placed \"%s\" are not for queue %s", ps_placement_name(p),
                            ps_queue_name(h->in->queue));
    return (uses & use) != 0
               ? PS_OK
               : ps_walk_fail(c, h, "weights placed \"%s\" are not used from %s", ps_placement_name(p), what);
}

/* ---- weights of an instruction ---- */

static ps_status read_slot(ps_walk *c, const ps_here *h, uint16_t b, const ps_weight_range *range) {
    ps_slot *slot = slot_of(c, b);
    uint64_t other = 0;
    if (!ps_slot_alive(&c->state, b) || slot->kind != PS_SLOT_WEIGHT)
        return ps_walk_fail(c, h, "slot %u holds no weight", b);
    if (!same_range(&slot->range, range))
        return ps_walk_fail(c, h, "slot %u holds rows %llu to %llu of %s of layer %u, not this range", b,
                            (unsigned long long)slot->range.row0,
                            (unsigned long long)(slot->range.row0 + slot->range.n_rows - 1),
                            ps_role_get(slot->range.role)->name, slot->range.layer);
    if (c->gathered && !slot->in_tail)
        slot->tail = slot->filled;
    ps_check_why why = ps_slot_read(&c->state, b, &other);
    return slot_race(c, h, why, b, other);
}

static ps_status check_resident(const ps_walk *c, const ps_here *h, const ps_weight_range *range) {
    uint64_t bytes;
    if (!ps_weight_range_bytes(c->model, range, &bytes, NULL))
        return ps_walk_fail(c, h, "columns of %s are not at blocks and %d bytes",
                            ps_role_get(range->role)->name, PS_SLOT_ROW_ALIGN);
    /* A mixture takes what is resident from VRAM and the rest from the host, where its placement lets it. */
    bool mixture = h->in->op == PS_OP_MOE_DISPATCH;
    if (mixture && (placement_uses[c->level->placement[h->shard]] & USE_HOST) != 0)
        return PS_OK;
    ps_weight_range r = *range;
    for (uint64_t i = 0; mixture && i < range->n_rows; i++) {
        r.row0 = range->row0 + i;
        r.n_rows = 1;
        if (!ps_check_pieces_hold(c->pieces, &r))
            return ps_walk_fail(c, h, "expert %llu of %s is not resident", (unsigned long long)r.row0,
                                ps_role_get(range->role)->name);
    }
    return mixture || ps_check_pieces_hold(c->pieces, range)
               ? PS_OK
               : ps_walk_fail(c, h, "no resident piece holds this range of %s of layer %u",
                              ps_role_get(range->role)->name, range->layer);
}

static ps_status use_weight(ps_walk *c, const ps_here *h, uint32_t i) {
    const ps_instr *in = h->in;
    ps_weight_range range;
    ps_status status = weight_range(c, h, i, &range);
    if (status != PS_OK)
        return status;
    if (in->queue == PS_QUEUE_CPU) {
        if (in->at[i] != PS_AT_HOST)
            return ps_walk_fail(c, h, "queue cpu finds weights in host memory only");
        status = check_placement(c, h, USE_CPU, "queue cpu");
        return status == PS_OK ? check_host_columns(c, h, &range) : status;
    }
    if (in->at[i] == PS_AT_HOST) {
        status = check_placement(c, h, USE_HOST, "host memory");
        return status == PS_OK ? check_host_columns(c, h, &range) : status;
    }
    if (in->at[i] == PS_AT_VRAM) {
        status = check_placement(c, h, USE_VRAM, "VRAM");
        return status == PS_OK ? check_resident(c, h, &range) : status;
    }
    status = check_placement(c, h, USE_SLOT, "a slot");
    return status == PS_OK ? read_slot(c, h, (uint16_t)(in->at[i] - PS_AT_SLOT), &range) : status;
}

ps_status ps_walk_weights(ps_walk *c, const ps_here *h) {
    const ps_instr *in = h->in;
    if (in->op == PS_OP_COPY)
        return PS_OK;
    ps_status status = PS_OK;
    for (uint32_t i = 0; status == PS_OK && i < PS_OP_MAX_WEIGHTS; i++)
        if (in->w[i] != PS_ROLE_NONE)
            status = use_weight(c, h, i);
    /* A mixture finds all three matrices of an expert in one kind of place. */
    for (uint32_t i = 1; status == PS_OK && in->op == PS_OP_MOE_DISPATCH && i < PS_OP_MAX_WEIGHTS; i++)
        if ((in->at[i] < PS_AT_SLOT || in->at[0] < PS_AT_SLOT) && in->at[i] != in->at[0])
            status = ps_walk_fail(c, h, "all experts' matrices are in places of one kind");
    return status;
}

/* ---- copies of weights, entries ---- */

static bool shard_uses(const ps_shard *shard, ps_role role) {
    for (uint32_t i = 0; i < shard->n_ops; i++)
        for (uint32_t k = 0; k < PS_OP_MAX_WEIGHTS; k++)
            if (shard->ops[i].w[k] == role)
                return true;
    return false;
}

static bool is_entry(const ps_walk *c, uint16_t b) {
    for (uint32_t i = 0; i < c->program->n_entries; i++)
        if (c->program->entries[i].slot == b)
            return true;
    return false;
}

static ps_status fill_slot(ps_walk *c, const ps_here *h, uint16_t b) {
    ps_slot *slot = slot_of(c, b);
    uint64_t other = 0;
    if (ps_slot_alive(&c->state, b) && slot->kind == PS_SLOT_KV && slot->stored && !slot->brought)
        return ps_walk_fail(c, h, "slot %u has KV of layer %u that is not home yet", b, slot->layer);
    ps_check_why why = ps_slot_fill(&c->state, b, &other);
    return slot_race(c, h, why, b, other);
}

ps_status ps_walk_copy_weight(ps_walk *c, const ps_here *h) {
    ps_weight_range range;
    uint64_t bytes;
    uint16_t b = h->in->dst;
    ps_status status = weight_range(c, h, 0, &range);
    if (status == PS_OK)
        status = check_placement(c, h, USE_SLOT, "a slot");
    if (status != PS_OK)
        return status;
    if (!shard_uses(&c->model->shards[h->shard], range.role))
        return ps_walk_fail(c, h, "shard %s has no use for %s", ps_shard_kind_name(h->in->shard),
                            ps_role_get(range.role)->name);
    if (!ps_weight_range_bytes(c->model, &range, &bytes, NULL))
        return ps_walk_fail(c, h, "columns of %s are not at blocks and %d bytes",
                            ps_role_get(range.role)->name, PS_SLOT_ROW_ALIGN);
    if (bytes > ps_walk_buffer(c, b)->cols)
        return ps_walk_fail(c, h, "slot %u has %u bytes, the range has %llu", b, ps_walk_buffer(c, b)->cols,
                            (unsigned long long)bytes);
    if (c->gathered && is_entry(c, b))
        return ps_walk_fail(c, h, "slot %u is an entry: the tail may be left out or run again", b);
    if ((status = fill_slot(c, h, b)) != PS_OK)
        return status;
    slot_of(c, b)->kind = PS_SLOT_WEIGHT;
    slot_of(c, b)->range = range;
    slot_of(c, b)->in_tail = c->gathered;
    return PS_OK;
}

ps_status ps_walk_entries(ps_walk *c) {
    for (uint32_t i = 0; i < c->program->n_entries; i++) {
        const ps_slot_entry *e = &c->program->entries[i];
        uint64_t bytes;
        ps_slot *slot = slot_of(c, e->slot);
        const ps_weight *w;
        if (!ps_weight_range_bytes(c->model, &e->range, &bytes, NULL) ||
            bytes > ps_walk_buffer(c, e->slot)->cols)
            return ps_walk_fail(
                c, NULL, "the entry of slot %u is no range of a weight, or larger than the slot", e->slot);
        w = ps_model_weight(c->model, e->range.layer, e->range.role);
        if (e->range.n_cols == w->cols)
            return ps_walk_fail(c, NULL, "the entry of slot %u: all columns are written as none", e->slot);
        *slot = (ps_slot){
            .kind = PS_SLOT_WEIGHT, .range = e->range, .epoch = c->state.buffers[e->slot].epoch, .filled = 1};
        for (uint32_t k = 0; k < i; k++)
            if (ps_check_overlap(&c->state, c->program->entries[k].slot, e->slot))
                return ps_walk_fail(c, NULL, "entries of slots %u and %u share bytes",
                                    c->program->entries[k].slot, e->slot);
    }
    return PS_OK;
}

ps_status ps_walk_check_entries(const ps_walk *c, const ps_here *h) {
    for (uint32_t i = 0; i < c->program->n_entries; i++) {
        const ps_slot_entry *e = &c->program->entries[i];
        const ps_slot *slot = slot_of(c, e->slot);
        if (!ps_slot_alive(&c->state, e->slot) || slot->kind != PS_SLOT_WEIGHT ||
            !same_range(&slot->range, &e->range))
            return ps_walk_fail(c, h, "slot %u does not hold its entry again when the step may end", e->slot);
    }
    return PS_OK;
}

ps_status ps_walk_check_tail(const ps_walk *c) {
    for (uint32_t b = 0; b < c->program->n_buffers; b++) {
        const ps_slot *slot = c->state.buffers[b].slot;
        if (slot == NULL || slot->tail == 0)
            continue;
        if (!ps_slot_alive(&c->state, (uint16_t)b) || slot->tail != slot->filled)
            return ps_walk_fail(c, NULL, "slot %u: the tail reads what was there before it and overwrites it",
                                b);
    }
    return PS_OK;
}

/* ---- KV caches ---- */

static const char *const kv_name = "the KV cache";

static bool is_ring(const ps_walk *c, uint32_t layer) {
    return c->level->kv[layer].rows < c->level->bucket_tokens;
}

static ps_status at_home(ps_walk *c, const ps_here *h, ps_accesses *list) {
    return ps_accesses_add(list, &c->state.order) ? PS_OK : ps_walk_race(c, h, PS_WHY_CROWDED, kv_name, 0);
}

/* Rows of the step go into the home: nobody else may write there, nor read what a ring loses. */
static ps_status write_home(ps_walk *c, const ps_here *h) {
    ps_kv_state *kv = &c->kv[h->layer];
    uint64_t other = 0;
    if (!ps_accesses_ended(&kv->writers, &c->state.order, &other))
        return ps_walk_race(c, h, PS_WHY_WRITE_RACE, kv_name, other);
    if (is_ring(c, h->layer) && !ps_accesses_ended(&kv->readers, &c->state.order, &other))
        return ps_walk_race(c, h, PS_WHY_READ_RACE, kv_name, other);
    return at_home(c, h, &kv->writers);
}

static ps_status read_home(ps_walk *c, const ps_here *h) {
    ps_kv_state *kv = &c->kv[h->layer];
    uint64_t other = 0;
    if (!ps_accesses_ended(&kv->writers, &c->state.order, &other))
        return ps_walk_race(c, h, PS_WHY_WRITE_RACE, kv_name, other);
    return at_home(c, h, &kv->readers);
}

static ps_status check_kv_slot(const ps_walk *c, const ps_here *h, uint16_t b) {
    const ps_slot *slot = slot_of(c, b);
    return ps_slot_alive(&c->state, b) && slot->kind == PS_SLOT_KV && slot->layer == h->layer
               ? PS_OK
               : ps_walk_fail(c, h, "slot %u does not hold KV of layer %u", b, h->layer);
}

ps_status ps_walk_copy_kv(ps_walk *c, const ps_here *h) {
    const ps_kv_home *home = &c->level->kv[h->layer];
    ps_kv_state *kv = &c->kv[h->layer];
    uint16_t b = (uint16_t)(h->in->kv - PS_KV_SLOT);
    ps_slot *slot = slot_of(c, b);
    uint64_t bytes = UINT64_MAX, other = 0;
    if (h->shard == UINT32_MAX || h->in->shard != PS_SHARD_ATTN)
        return ps_walk_fail(c, h, "KV is of shard attn");
    if (home->space != PS_SPACE_HOST)
        return ps_walk_fail(c, h, "the layer's KV cache is in %s", ps_space_name(home->space));
    if (c->gathered)
        return ps_walk_fail(c, h, "KV is moved before gather: the tail may be left out or run again");
    if (!ps_mul_u64(home->bytes, c->level->n_seqs, &bytes) || bytes > ps_walk_buffer(c, b)->cols)
        return ps_walk_fail(c, h, "slot %u has %u bytes, the layer's KV has %llu", b,
                            ps_walk_buffer(c, b)->cols, (unsigned long long)bytes);
    if (h->in->queue == PS_QUEUE_H2D) {
        if (kv->n_stored != 0)
            return ps_walk_fail(c, h, "KV is copied in before rows of the step are stored");
        ps_status status = fill_slot(c, h, b);
        if (status != PS_OK)
            return status;
        slot->kind = PS_SLOT_KV;
        slot->layer = h->layer;
        return read_home(c, h);
    }
    ps_status status = check_kv_slot(c, h, b);
    if (status != PS_OK)
        return status;
    if (kv->where != h->in->kv || kv->n_stored != c->n_tiles || slot->brought)
        return ps_walk_fail(c, h, "KV goes home once, when the rows of all tiles are in the slot");
    ps_check_why why = ps_slot_read(&c->state, b, &other);
    status = slot_race(c, h, why, b, other);
    if (status == PS_OK)
        status = write_home(c, h);
    slot->brought = kv->home = true;
    return status;
}

static ps_status store_kv(ps_walk *c, const ps_here *h) {
    ps_kv_state *kv = &c->kv[h->layer];
    uint64_t other = 0;
    if (kv->n_stored != h->tile)
        return ps_walk_fail(c, h, "tiles must be stored in order, each once");
    if (kv->where != PS_KV_NOWHERE && kv->where != h->in->kv)
        return ps_walk_fail(c, h, "tiles of a layer are stored in one place");
    kv->where = h->in->kv;
    kv->n_stored++;
    if (h->in->kv == PS_KV_HOME) {
        kv->home = kv->n_stored == c->n_tiles;
        return write_home(c, h);
    }
    uint16_t b = (uint16_t)(h->in->kv - PS_KV_SLOT);
    slot_of(c, b)->stored = true;
    ps_check_why why = ps_slot_store(&c->state, b, is_ring(c, h->layer), &other);
    return slot_race(c, h, why, b, other);
}

static ps_status attend(ps_walk *c, const ps_here *h) {
    ps_kv_state *kv = &c->kv[h->layer];
    uint64_t other = 0;
    if (kv->n_stored <= h->tile)
        return ps_walk_fail(c, h, "the KV cache does not hold the tile's tokens yet");
    if (kv->where != h->in->kv)
        return ps_walk_fail(c, h, "the tile's tokens were stored in another place");
    if (is_ring(c, h->layer) && kv->n_stored != h->tile + 1)
        return ps_walk_fail(c, h, "the KV ring has lost positions to a later tile");
    if (h->in->kv == PS_KV_HOME)
        return read_home(c, h);
    uint16_t b = (uint16_t)(h->in->kv - PS_KV_SLOT);
    ps_check_why why = ps_slot_read(&c->state, b, &other);
    return slot_race(c, h, why, b, other);
}

ps_status ps_walk_use_kv(ps_walk *c, const ps_here *h) {
    const ps_instr *in = h->in;
    if (in->op != PS_OP_KV_STORE && in->op != PS_OP_ATTENTION)
        return PS_OK;
    ps_space space = in->kv == PS_KV_HOME ? c->level->kv[h->layer].space : PS_SPACE_VRAM;
    const ps_queue_rule *queue = ps_queue_rule_get(in->queue);
    if (!((in->op == PS_OP_KV_STORE ? queue->dst : queue->src) >> space & 1))
        return ps_walk_fail(c, h, "the layer's KV cache is in %s", ps_space_name(space));
    if (in->kv != PS_KV_HOME) {
        ps_status status = check_kv_slot(c, h, (uint16_t)(in->kv - PS_KV_SLOT));
        if (status != PS_OK)
            return status;
    }
    return in->op == PS_OP_KV_STORE ? store_kv(c, h) : attend(c, h);
}

ps_status ps_walk_kv_home(const ps_walk *c, const ps_here *h) {
    for (uint32_t l = 0; l < c->model->n_layers; l++)
        if (!c->kv[l].home)
            return ps_walk_fail(c, h, "KV of layer %u is not home", l);
    return PS_OK;
}
