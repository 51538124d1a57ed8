/* The parts of the checker that need no walk: plan against model, and regions of the arenas. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/checked.h"
#include "schemas/check_state.h"
#include "schemas/plan_check.h"
#include "schemas/plan_fields.h"

static ps_status match_shape(const ps_plan *plan, const ps_model *model, ps_error *err) {
    if (plan->n_layers != model->n_layers || plan->n_shards != model->n_shards)
        return ps_error_set(err, PS_E_MISMATCH, "plan",
                            "it is for %u layers and %u shards, the model has %u and %u", plan->n_layers,
                            plan->n_shards, model->n_layers, model->n_shards);
    for (uint32_t i = 0; i < plan->n_shards; i++)
        if (plan->shards[i].kind != model->shards[i].kind ||
            plan->shards[i].layer != model->shards[i].layer ||
            plan->shards[i].weight_bytes != model->shards[i].weight_bytes)
            return ps_error_set(err, PS_E_MISMATCH, "plan", "shard %u is not the model's", i);
    return PS_OK;
}

ps_status ps_plan_match_model(const ps_plan *plan, const ps_model *model, ps_error *err) {
    if (memcmp(plan->model_hash, model->gguf->hash, PS_HASH_BYTES) != 0) {
        char have[PS_HASH_HEX], want[PS_HASH_HEX];
        return ps_error_set(err, PS_E_MISMATCH, "plan", "it is for model %s (%s), this is %s",
                            ps_hash_hex(plan->model_hash, want), plan->model_name,
                            ps_hash_hex(model->gguf->hash, have));
    }
    return match_shape(plan, model, err);
}

/* Number every operation, and find for each value it reads the latest operation that made it. */
static ps_status index_model(const ps_model *model, ps_arena *arena, ps_check_model *cm, ps_error *err) {
    uint32_t latest[PS_VALUE_COUNT] = {0};
    uint64_t n = 0;
    for (uint32_t s = 0; s < model->n_shards; s++)
        n += model->shards[s].n_ops;
    cm->ops = n < UINT32_MAX ? ps_arena_array(arena, n, sizeof *cm->ops) : NULL;
    cm->op0 = ps_arena_array(arena, model->n_shards, sizeof *cm->op0);
    cm->shard_of =
        ps_arena_array(arena, (uint64_t)model->n_layers * PS_SHARD_KIND_COUNT, sizeof *cm->shard_of);
    if (cm->ops == NULL || cm->op0 == NULL || cm->shard_of == NULL)
        return ps_error_set(err, PS_E_NOMEM, "plan", "no memory to check it");
    cm->n_ops = (uint32_t)n;
    memset(cm->shard_of, 0xff, (size_t)model->n_layers * PS_SHARD_KIND_COUNT * sizeof *cm->shard_of);
    uint32_t number = 0;
    for (uint32_t s = 0; s < model->n_shards; s++) {
        const ps_shard *shard = &model->shards[s];
        cm->op0[s] = number;
        cm->shard_of[(uint64_t)shard->layer * PS_SHARD_KIND_COUNT + shard->kind] = s;
        cm->n_body_ops += shard->kind == PS_SHARD_HEAD ? 0 : shard->n_ops;
        for (uint32_t i = 0; i < shard->n_ops; i++, number++) {
            ps_check_op *op = &cm->ops[number];
            op->desc = &shard->ops[i];
            op->shard = s;
            for (uint32_t k = 0; k < PS_OP_MAX_SRC; k++)
                op->src[k] = op->desc->src[k] != PS_VALUE_NONE ? latest[op->desc->src[k]] : 0;
            if (op->desc->dst != PS_VALUE_NONE)
                latest[op->desc->dst] = number + 1;
        }
    }
    return PS_OK;
}

typedef struct region {
    uint64_t begin, end;
    ps_space space;
    uint32_t layer;
} region;

static int compare_regions(const void *a, const void *b) {
    const region *x = a, *y = b;
    if (x->space != y->space)
        return x->space < y->space ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static int compare_u64(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b;
}

static int compare_pieces(const void *a, const void *b) {
    const ps_weight_range *x = ((const ps_check_piece *)a)->range, *y = ((const ps_check_piece *)b)->range;
    int order = compare_u64(x->role, y->role);
    if (order == 0)
        order = compare_u64(x->layer, y->layer);
    if (order == 0)
        order = compare_u64(x->row0, y->row0);
    if (order == 0)
        order = compare_u64(x->n_rows, y->n_rows);
    return order != 0 ? order : compare_u64(x->col0, y->col0);
}

static bool same_weight(const ps_weight_range *a, const ps_weight_range *b) {
    return a->role == b->role && a->layer == b->layer;
}

bool ps_check_pieces_init(ps_check_pieces *p, ps_arena *arena, const ps_level *level) {
    p->n = level->n_resident;
    p->pieces = ps_arena_array(arena, p->n, sizeof *p->pieces);
    if (p->pieces == NULL)
        return false;
    for (uint32_t i = 0; i < p->n; i++)
        p->pieces[i].range = &level->resident[i].range;
    qsort(p->pieces, p->n, sizeof *p->pieces, compare_pieces);
    for (uint32_t i = 0; i < p->n; i++) {
        const ps_weight_range *r = p->pieces[i].range;
        p->pieces[i].reach = r->row0 + r->n_rows; /* inside its weight */
        if (i != 0 && same_weight(p->pieces[i - 1].range, r) && p->pieces[i - 1].reach > p->pieces[i].reach)
            p->pieces[i].reach = p->pieces[i - 1].reach;
    }
    return true;
}

bool ps_check_pieces_hold(const ps_check_pieces *p, const ps_weight_range *range) {
    uint32_t low = 0, high = p->n; /* behind the last piece that may hold it */
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        const ps_weight_range *r = p->pieces[mid].range;
        if (r->role < range->role || (r->role == range->role && r->layer < range->layer) ||
            (same_weight(r, range) && r->row0 <= range->row0))
            low = mid + 1;
        else
            high = mid;
    }
    for (uint32_t i = low; i-- > 0;) {
        const ps_check_piece *piece = &p->pieces[i];
        if (!same_weight(piece->range, range) || piece->reach < range->row0 + range->n_rows)
            return false;
        ps_level one = {.n_resident = 1, .resident = &(ps_resident){.range = *piece->range}};
        if (ps_level_find_resident(&one, range) != NULL)
            return true;
    }
    return false;
}

/* Resident pieces: ranges of weights, inside their arena, apart. They ascend. */
static ps_status check_resident(const ps_level *level, const ps_model *model, ps_error *err) {
    uint64_t end = 0;
    for (uint32_t i = 0; i < level->n_resident; i++) {
        const ps_resident *r = &level->resident[i];
        char subject[32];
        uint64_t bytes;
        snprintf(subject, sizeof subject, "resident piece %u", i);
        if (!ps_weight_range_bytes(model, &r->range, &bytes, NULL))
            return ps_error_set(err, PS_E_DATA, subject, "no range of a weight of the model");
        if (r->range.n_cols == ps_model_weight(model, r->range.layer, r->range.role)->cols)
            return ps_error_set(err, PS_E_DATA, subject, "all columns are written as none");
        if (!ps_range_ok(r->offset, bytes, level->vram_weight_bytes))
            return ps_error_set(err, PS_E_DATA, subject, "outside the VRAM weight arena");
        if (r->offset < end)
            return ps_error_set(err, PS_E_DATA, subject, "shares bytes with the one before");
        end = r->offset + bytes;
    }
    return PS_OK;
}

static ps_status check_budget(const ps_level *level, ps_error *err) {
    uint64_t sum;
    if (!ps_add_u64(level->vram_base_bytes, level->vram_work_bytes, &sum) ||
        !ps_add_u64(sum, level->vram_weight_bytes, &sum) || sum > level->budget_bytes)
        return ps_error_set(
            err, PS_E_DATA, "budget", "base %llu, work arena %llu and weight arena %llu are more than %llu",
            (unsigned long long)level->vram_base_bytes, (unsigned long long)level->vram_work_bytes,
            (unsigned long long)level->vram_weight_bytes, (unsigned long long)level->budget_bytes);
    return PS_OK;
}

static uint64_t arena_bytes(const ps_level *level, ps_space space) {
    return space == PS_SPACE_VRAM ? level->vram_work_bytes : level->host_arena_bytes;
}

/* KV homes: large enough for the bucket, inside their arenas, apart from each other. Sorted into `out`. */
static ps_status check_kv(const ps_level *level, const ps_model *model, region *out, ps_error *err) {
    uint32_t most = level->tiers[level->n_tiers - 1].max_tokens;
    uint32_t tile = most < PS_TILE_TOKENS ? most : PS_TILE_TOKENS;
    for (uint32_t l = 0; l < model->n_layers; l++) {
        const ps_kv_home *kv = &level->kv[l];
        char subject[32];
        uint64_t bytes;
        snprintf(subject, sizeof subject, "kv of layer %u", l);
        if (kv->rows < ps_model_kv_rows(model, l, level->bucket_tokens, tile) || kv->rows > UINT32_MAX)
            return ps_error_set(err, PS_E_DATA, subject, "%llu rows, the bucket needs %llu",
                                (unsigned long long)kv->rows,
                                (unsigned long long)ps_model_kv_rows(model, l, level->bucket_tokens, tile));
        if (kv->bytes != ps_model_kv_bytes(model, l, kv->rows))
            return ps_error_set(err, PS_E_DATA, subject, "%llu bytes, its rows need %llu",
                                (unsigned long long)kv->bytes,
                                (unsigned long long)ps_model_kv_bytes(model, l, kv->rows));
        if (!ps_mul_u64(kv->bytes, level->n_seqs, &bytes) ||
            !ps_range_ok(kv->offset, bytes, arena_bytes(level, kv->space)))
            return ps_error_set(err, PS_E_DATA, subject, "outside the %s arena", ps_space_name(kv->space));
        out[l] = (region){kv->offset, kv->offset + bytes, kv->space, l};
    }
    qsort(out, model->n_layers, sizeof *out, compare_regions);
    for (uint32_t i = 1; i < model->n_layers; i++)
        if (out[i].space == out[i - 1].space && out[i].begin < out[i - 1].end)
            return ps_error_set(err, PS_E_DATA, "kv", "layers %u and %u share bytes", out[i - 1].layer,
                                out[i].layer);
    return PS_OK;
}

/* A region that shares bytes with [begin, end), or NULL. Regions are sorted and apart. */
static const region *find_region(const region *kv, uint32_t n, ps_space space, uint64_t begin, uint64_t end) {
    uint32_t low = 0, high = n; /* first region of that space that ends behind `begin` */
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (kv[mid].space < space || (kv[mid].space == space && kv[mid].end <= begin))
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && kv[low].space == space && kv[low].begin < end ? &kv[low] : NULL;
}

/* Scratch of one arena. */
static ps_status check_scratch(const ps_level *level, ps_space space, uint64_t offset, uint64_t bytes,
                               const region *kv, uint32_t n_kv, ps_error *err) {
    const char *subject = space == PS_SPACE_VRAM ? "VRAM scratch" : "scratch";
    if (!ps_range_ok(offset, bytes, arena_bytes(level, space)))
        return ps_error_set(err, PS_E_DATA, subject, "outside the %s arena", ps_space_name(space));
    const region *hit = find_region(kv, n_kv, space, offset, offset + bytes);
    return bytes == 0 || hit == NULL ? PS_OK
                                     : ps_error_set(err, PS_E_DATA, subject,
                                                    "shares bytes with the KV cache of layer %u", hit->layer);
}

/* Buffers and scratch of a tier: inside their arenas, apart from every KV home, scratch apart from buffers. */
static ps_status check_tier_regions(const ps_plan *plan, const ps_level *level, const ps_tier *tier,
                                    const region *kv, uint32_t n_kv, ps_error *err) {
    const ps_program *program = &plan->programs[tier->program];
    ps_status status =
        check_scratch(level, PS_SPACE_HOST, tier->scratch_offset, tier->scratch_bytes, kv, n_kv, err);
    if (status == PS_OK)
        status = check_scratch(level, PS_SPACE_VRAM, tier->vram_scratch_offset, tier->vram_scratch_bytes, kv,
                               n_kv, err);
    if (status != PS_OK)
        return status;
    for (uint32_t i = 0; i < program->n_buffers; i++) {
        const ps_plan_buffer *b = &program->buffers[i];
        bool vram = b->space == PS_SPACE_VRAM;
        uint64_t begin = tier->buffer_offset[i], bytes;
        uint64_t scratch = vram ? tier->vram_scratch_offset : tier->scratch_offset;
        uint64_t scratch_bytes = vram ? tier->vram_scratch_bytes : tier->scratch_bytes;
        char subject[48];
        snprintf(subject, sizeof subject, "buffer %u (%s)", i,
                 b->rows == PS_ROWS_SLOT ? "slot" : ps_value_name(b->value));
        if (!ps_buffer_bytes(b, tier, &bytes) || !ps_range_ok(begin, bytes, arena_bytes(level, b->space)))
            return ps_error_set(err, PS_E_DATA, subject, "outside the %s arena", ps_space_name(b->space));
        const region *hit = find_region(kv, n_kv, b->space, begin, begin + bytes);
        if (bytes != 0 && hit != NULL)
            return ps_error_set(err, PS_E_DATA, subject, "shares bytes with the KV cache of layer %u",
                                hit->layer);
        if (scratch_bytes != 0 && begin < scratch + scratch_bytes && scratch < begin + bytes)
            return ps_error_set(err, PS_E_DATA, subject, "shares bytes with the %sscratch",
                                vram ? "VRAM " : "");
    }
    return PS_OK;
}

static ps_status check_regions(const ps_plan *plan, const ps_level *level, const ps_model *model,
                               ps_arena *arena, ps_error *err) {
    region *kv = ps_arena_array(arena, model->n_layers, sizeof *kv);
    if (kv == NULL)
        return ps_error_set(err, PS_E_NOMEM, "plan", "no memory to check it");
    ps_status status = check_budget(level, err);
    if (status == PS_OK)
        status = check_resident(level, model, err);
    if (status == PS_OK)
        status = check_kv(level, model, kv, err);
    for (uint32_t i = 0; status == PS_OK && i < level->n_tiers; i++) {
        status = check_tier_regions(plan, level, &level->tiers[i], kv, model->n_layers, err);
        if (status != PS_OK) {
            char prefix[32];
            snprintf(prefix, sizeof prefix, "tier %u", level->tiers[i].max_tokens);
            ps_error_prefix(err, prefix);
        }
    }
    if (status != PS_OK) {
        char prefix[96];
        snprintf(prefix, sizeof prefix, "level %s/%llu/%u/%u", level->budget,
                 (unsigned long long)level->bucket_tokens, level->n_seqs, level->n_threads);
        ps_error_prefix(err, prefix);
    }
    return status;
}

ps_status ps_plan_check(const ps_plan *plan, const ps_level *level, const ps_model *model, ps_error *err) {
    ps_check_model cm = {0};
    ps_check_pieces pieces = {0};
    ps_status status = ps_plan_validate_head(plan, err);
    for (uint32_t i = 0; status == PS_OK && i < plan->n_programs; i++)
        status = ps_plan_validate_program(plan, &plan->programs[i], err);
    if (status == PS_OK)
        status = ps_plan_validate_level(plan, level, err);
    if (status == PS_OK)
        status = match_shape(plan, model, err);
    if (status != PS_OK)
        return status;
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    if (arena == NULL)
        return ps_error_set(err, PS_E_NOMEM, "plan", "no memory to check it");
    status = check_regions(plan, level, model, arena, err);
    if (status == PS_OK)
        status = index_model(model, arena, &cm, err);
    if (status == PS_OK && !ps_check_pieces_init(&pieces, arena, level))
        status = ps_error_set(err, PS_E_NOMEM, "plan", "no memory to check it");
    if (status == PS_OK)
        status = ps_plan_check_tiers(plan, level, model, &cm, &pieces, err);
    ps_arena_free(arena);
    return status;
}

/* Fewer bytes of weights, or as many and fewer pieces. */
static bool holds_less(const ps_level *a, const ps_level *b) {
    return a->vram_weight_bytes != b->vram_weight_bytes ? a->vram_weight_bytes < b->vram_weight_bytes
                                                        : a->n_resident < b->n_resident;
}

static bool same_piece(const ps_resident *a, const ps_resident *b) {
    const ps_weight_range *x = &a->range, *y = &b->range;
    return a->offset == b->offset && same_weight(x, y) && x->row0 == y->row0 && x->n_rows == y->n_rows &&
           x->col0 == y->col0 && x->n_cols == y->n_cols;
}

static bool is_level_of(const ps_plan *plan, const ps_level *level) {
    for (uint32_t i = 0; i < plan->n_levels; i++)
        if (level == &plan->levels[i])
            return true;
    return false;
}

ps_status ps_plan_check_change(const ps_plan *plan, const ps_level *from, const ps_level *to,
                               const ps_model *model, ps_error *err) {
    char subject[160];
    snprintf(subject, sizeof subject, "from level %s/%llu/%u/%u to %s/%llu/%u/%u", from->budget,
             (unsigned long long)from->bucket_tokens, from->n_seqs, from->n_threads, to->budget,
             (unsigned long long)to->bucket_tokens, to->n_seqs, to->n_threads);
    if (!is_level_of(plan, from) || !is_level_of(plan, to) || plan->n_layers != model->n_layers)
        return ps_error_set(err, PS_E_DATA, subject, "levels of another plan or model");
    if (to->n_seqs < from->n_seqs)
        return ps_error_set(err, PS_E_DATA, subject, "KV of %u sequences has no home, there is room for %u",
                            from->n_seqs, to->n_seqs);
    const ps_level *less = holds_less(from, to) ? from : to, *more = less == from ? to : from;
    if (less->n_resident > more->n_resident)
        return ps_error_set(err, PS_E_DATA, subject, "the smaller weight arena has more resident pieces");
    for (uint32_t i = 0; i < less->n_resident; i++)
        if (!same_piece(&less->resident[i], &more->resident[i]))
            return ps_error_set(err, PS_E_DATA, subject, "resident piece %u is not the same in both", i);
    return PS_OK;
}
