/* KV caches on the move: into slots and home again within a step, and from one level's homes to another's.
 *
 * A layer's cache of one sequence is two planes, K and V, of `rows` rows; position p is in row p % rows. */
#include <string.h>

#include "core/checked.h"
#include "runtime-min/engine_internal.h"

typedef struct plane {
    uint64_t offset, row_bytes;
} plane;

static void planes_of(const ps_engine *e, uint32_t layer, uint64_t rows, plane out[2]) {
    const ps_layer *l = &e->model->layers[layer];
    out[0] = (plane){0, (uint64_t)l->n_head_kv * l->head_dim_k * 2};
    out[1] =
        (plane){(rows * out[0].row_bytes + 63) & ~(uint64_t)63, (uint64_t)l->n_head_kv * l->head_dim_v * 2};
}

/* Rows that positions [from, to) lie in, as at most two runs. to - from is at most `rows`. */
static uint32_t runs_of(uint64_t from, uint64_t to, uint64_t rows, uint64_t begin[2], uint64_t n[2]) {
    if (from >= to)
        return 0;
    begin[0] = from % rows;
    n[0] = to - from < rows - begin[0] ? to - from : rows - begin[0];
    begin[1] = 0;
    n[1] = to - from - n[0];
    return n[1] != 0 ? 2 : 1;
}

static ps_status copy_rows(ps_engine *e, ps_stream stream, uint8_t *dst, const uint8_t *src,
                           const plane planes[2], uint64_t from, uint64_t to, uint64_t rows, ps_error *err) {
    uint64_t begin[2], n[2];
    uint32_t n_runs = runs_of(from, to, rows, begin, n);
    ps_status status = PS_OK;
    for (uint32_t r = 0; r < n_runs; r++)
        for (int p = 0; p < 2 && status == PS_OK; p++) {
            uint64_t at = planes[p].offset + begin[r] * planes[p].row_bytes;
            status = ps_device_copy(e->run.device, stream, dst + at, 0, src + at, 0,
                                    n[r] * planes[p].row_bytes, 1, err);
        }
    return status;
}

/* h2d: the rows that the step's sequences held before it. d2h: those of this step; of this tile alone where the copy runs in
 * every tile. */
ps_status ps_run_copy_kv(ps_engine *e, const ps_run_step *step, const ps_run_op *op, uint32_t tile,
                         ps_error *err) {
    const ps_kv_home *home = &e->level->kv[op->layer];
    const bool back = op->instr->queue == PS_QUEUE_D2H;
    plane planes[2];
    planes_of(e, op->layer, home->rows, planes);
    uint32_t row0 = 0, n_rows = step->n_tokens;
    if (step->n_tiles > 1 && op->instr->when == PS_WHEN_EVERY) {
        row0 = tile * PS_TILE_TOKENS;
        n_rows = ps_run_tile_rows(step, tile);
    }
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < step->n_spans && status == PS_OK; i++) {
        const ps_seq_span *s = &step->spans[i];
        uint64_t at = home->bytes * step->span_slot[i], from = 0, to = s->pos0;
        if (back) {
            uint32_t begin = s->row0 > row0 ? s->row0 : row0;
            uint32_t end = s->row0 + s->n_rows < row0 + n_rows ? s->row0 + s->n_rows : row0 + n_rows;
            if (begin >= end)
                continue;
            from = s->pos0 + (begin - s->row0);
            to = s->pos0 + (end - s->row0);
        }
        if (to - from > home->rows)
            from = to - home->rows;
        status = back ? copy_rows(e, PS_STREAM_D2H, op->kv + at, op->kv_slot + at, planes, from, to,
                                  home->rows, err)
                      : copy_rows(e, PS_STREAM_H2D, op->kv_slot + at, op->kv + at, planes, from, to,
                                  home->rows, err);
    }
    return status;
}

/* ---- between levels ---- */

static bool same_home(const ps_kv_home *a, const ps_kv_home *b) {
    return a->space == b->space && a->offset == b->offset && a->rows == b->rows && a->bytes == b->bytes;
}

ps_status ps_engine_kv_plan_stage(ps_engine *e, ps_error *err) {
    e->kv_stage = ps_arena_array(e->arena, e->model->n_layers, sizeof *e->kv_stage);
    if (e->kv_stage == NULL)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for KV caches");
    for (uint32_t l = 0; l < e->model->n_layers; l++) {
        const ps_kv_home *home = &e->level->kv[l];
        uint64_t most = 0;
        bool stays = home->space == PS_SPACE_HOST;
        for (uint32_t i = 0; i < e->plan->n_levels; i++) {
            if (!e->reachable[i])
                continue;
            const ps_kv_home *other = &e->plan->levels[i].kv[l];
            most = other->bytes > most ? other->bytes : most;
            stays = stays && same_home(home, other);
        }
        uint32_t n = 0;
        for (uint32_t i = 0; i < e->plan->n_levels; i++)
            n += e->reachable[i];
        if (stays || n < 2)
            continue;
        e->kv_stage[l] = (ps_kv_stage){e->stage_bytes, most};
        uint64_t bytes;
        if (!ps_mul_u64(most, e->info.n_sessions, &bytes) ||
            !ps_add_u64(e->stage_bytes, bytes, &e->stage_bytes))
            return ps_error_set(err, PS_E_NOMEM, e->info.budget,
                                "KV caches of more bytes than can be counted");
    }
    return PS_OK;
}

static uint8_t *home_of(const ps_engine *e, const ps_level *level, uint32_t layer, uint32_t slot) {
    const ps_kv_home *home = &level->kv[layer];
    uint8_t *arena = home->space == PS_SPACE_VRAM ? e->run.d_work : e->host_arena;
    return arena + home->offset + home->bytes * slot;
}

/* Between the stage and a level's home, positions [from, to). The stage has the layout of level `staged`. */
static ps_status move_layer(ps_engine *e, uint32_t layer, const ps_session *s, const ps_level *staged,
                            const ps_level *at, bool to_stage, uint64_t from, ps_error *err) {
    const ps_kv_home *home = &at->kv[layer];
    uint8_t *stage = e->stage + e->kv_stage[layer].offset + e->kv_stage[layer].bytes * s->slot;
    uint8_t *there = home_of(e, at, layer, s->slot);
    plane here[2], stage_planes[2];
    planes_of(e, layer, home->rows, here);
    planes_of(e, layer, staged->kv[layer].rows, stage_planes);
    ps_status status = PS_OK;
    /* Both are rings: a run ends where either wraps. */
    for (uint64_t p = from; p < s->length && status == PS_OK;) {
        uint64_t a = p % home->rows, b = p % staged->kv[layer].rows, n = s->length - p;
        n = n < home->rows - a ? n : home->rows - a;
        n = n < staged->kv[layer].rows - b ? n : staged->kv[layer].rows - b;
        for (int i = 0; i < 2 && status == PS_OK; i++) {
            uint8_t *x = there + here[i].offset + a * here[i].row_bytes;
            uint8_t *y = stage + stage_planes[i].offset + b * stage_planes[i].row_bytes;
            uint64_t bytes = n * here[i].row_bytes;
            if (home->space == PS_SPACE_VRAM)
                status = ps_device_copy(e->run.device, to_stage ? PS_STREAM_D2H : PS_STREAM_H2D,
                                        to_stage ? y : x, 0, to_stage ? x : y, 0, bytes, 1, err);
            else
                memcpy(to_stage ? y : x, to_stage ? x : y, bytes);
        }
        p += n;
    }
    return status;
}

/* First position that the cache of a layer still holds. */
static uint64_t first_held(const ps_session *s, uint64_t rows) {
    return s->length > rows ? s->length - rows : 0;
}

static ps_status move_all(ps_engine *e, const ps_level *staged, const ps_level *at, bool to_stage,
                          ps_error *err) {
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < e->info.n_sessions; i++) {
        const ps_session *s = &e->sessions[i];
        for (uint32_t l = 0; s->engine != NULL && l < e->model->n_layers && status == PS_OK; l++) {
            if (e->kv_stage[l].bytes == 0)
                continue;
            uint64_t a = first_held(s, staged->kv[l].rows), b = first_held(s, at->kv[l].rows);
            status = move_layer(e, l, s, staged, at, to_stage, a > b ? a : b, err);
        }
    }
    if (status == PS_OK && e->has_device)
        status = ps_device_sync(e->run.device, err);
    return status;
}

ps_status ps_engine_kv_save(ps_engine *e, ps_error *err) {
    return move_all(e, e->level, e->level, true, err);
}

ps_status ps_engine_kv_restore(ps_engine *e, const ps_level *from, ps_error *err) {
    return move_all(e, from, e->level, false, err);
}
