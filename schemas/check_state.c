/* Contents of buffers, and races between instructions that touch the same bytes. */
#include "schemas/check_state.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"

bool ps_buffer_bytes(const ps_plan_buffer *buffer, const ps_tier *tier, uint64_t *out_bytes) {
    if (buffer->rows == PS_ROWS_SLOT) {
        *out_bytes = buffer->cols;
        return true;
    }
    uint64_t rows = buffer->rows == PS_ROWS_OUTPUTS ? tier->max_outputs : tier->max_tokens;
    if (buffer->rows == PS_ROWS_TILE && rows > PS_TILE_TOKENS)
        rows = PS_TILE_TOKENS;
    return ps_mul_u64(rows, ps_fmt_row_bytes(buffer->fmt, buffer->cols), out_bytes);
}

bool ps_check_overlap(const ps_check_state *s, uint32_t a, uint32_t b) {
    const ps_buffer_state *x = &s->buffers[a], *y = &s->buffers[b];
    return a != b && s->program->buffers[a].space == s->program->buffers[b].space && x->begin < y->end &&
           y->begin < x->end;
}

static bool init_contents(ps_check_state *s, ps_buffer_state *b, const ps_plan_buffer *buffer) {
    if (buffer->rows == PS_ROWS_SLOT) {
        b->slot = ps_arena_array(s->arena, 1, sizeof *b->slot);
        return b->slot != NULL;
    }
    b->cells = ps_arena_array(s->arena, buffer->rows == PS_ROWS_STEP ? s->n_tiles : 1, sizeof *b->cells);
    return b->cells != NULL;
}

typedef struct extent {
    uint64_t begin, end;
    ps_space space;
    uint32_t buffer;
} extent;

static int compare_extents(const void *a, const void *b) {
    const extent *x = a, *y = b;
    if (x->space != y->space)
        return x->space < y->space ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Which buffers share bytes: by place, so that only neighbours are compared. Twice: to count, then to list. */
static bool find_overlaps(ps_check_state *s, ps_arena *arena) {
    uint32_t n = s->program->n_buffers, at = 0;
    extent *list = ps_arena_array(arena, n, sizeof *list);
    if (list == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++)
        list[i] = (extent){s->buffers[i].begin, s->buffers[i].end, s->program->buffers[i].space, i};
    if (n != 0)
        qsort(list, n, sizeof *list, compare_extents);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = i + 1; k < n && list[k].space == list[i].space && list[k].begin < list[i].end;
                 k++) {
                uint32_t pair[2] = {list[i].buffer, list[k].buffer};
                for (int x = 0; x < 2 && ps_check_overlap(s, pair[0], pair[1]); x++) {
                    ps_buffer_state *b = &s->buffers[pair[x]];
                    if (pass == 1)
                        s->overlaps[b->overlap0 + b->n_overlaps] = pair[1 - x];
                    b->n_overlaps++;
                }
            }
        for (uint32_t i = 0; i < n && pass == 0; i++) {
            s->buffers[i].overlap0 = at;
            at += s->buffers[i].n_overlaps;
            s->buffers[i].n_overlaps = 0;
        }
        if (pass == 0 && (s->overlaps = ps_arena_array(arena, at, sizeof *s->overlaps)) == NULL)
            return false;
    }
    return true;
}

bool ps_check_state_init(ps_check_state *s, ps_arena *arena, const ps_program *program, const ps_tier *tier,
                         uint32_t n_tiles) {
    uint32_t n = program->n_buffers;
    s->program = program;
    s->arena = arena;
    s->n_tiles = n_tiles;
    ps_order_start(&s->order);
    s->buffers = ps_arena_array(arena, n, sizeof *s->buffers);
    if (s->buffers == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        ps_buffer_state *b = &s->buffers[i];
        uint64_t bytes = 0;
        if (!ps_buffer_bytes(&program->buffers[i], tier, &bytes))
            return false;
        b->begin = tier->buffer_offset[i];
        b->end = b->begin + bytes;
        b->epoch = 1;
        b->overwritten_by = UINT32_MAX;
        if (!init_contents(s, b, &program->buffers[i]))
            return false;
    }
    return find_overlaps(s, arena);
}

static ps_cell *cell_of(const ps_check_state *s, uint16_t buffer, uint32_t tile) {
    return &s->buffers[buffer].cells[s->program->buffers[buffer].rows == PS_ROWS_STEP ? tile : 0];
}

static bool cell_alive(const ps_check_state *s, uint16_t buffer, const ps_cell *cell) {
    return cell->epoch == s->buffers[buffer].epoch;
}

static bool is(const ps_segment *g, uint32_t tile, uint32_t id, uint32_t sum) {
    return g->tile == tile && g->id == id && g->sum == sum;
}

uint32_t ps_check_content(const ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t col,
                          uint32_t *out_sum) {
    *out_sum = 0;
    if (s->buffers[buffer].cells == NULL)
        return 0;
    const ps_cell *cell = cell_of(s, buffer, tile);
    if (!cell_alive(s, buffer, cell))
        return 0;
    for (uint32_t i = 0; i < cell->n; i++) {
        const ps_segment *g = &cell->segments[i];
        if (g->cols.begin > col || col >= g->cols.end || g->tile != tile)
            continue;
        *out_sum = g->sum;
        return g->id;
    }
    return 0;
}

bool ps_check_holds(const ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id) {
    const ps_plan_buffer *b = &s->program->buffers[buffer];
    if (s->buffers[buffer].cells == NULL)
        return false;
    const ps_cell *cell = cell_of(s, buffer, tile);
    uint32_t at = b->col0;
    for (uint32_t i = 0; cell_alive(s, buffer, cell) && i < cell->n; i++) {
        const ps_segment *g = &cell->segments[i];
        if (g->cols.begin != at || !is(g, tile, id, 0))
            return false;
        at = g->cols.end;
    }
    return at == b->col0 + b->cols;
}

static ps_check_why compare(const ps_segment *g, uint32_t tile, uint32_t id, uint32_t sum, uint64_t *other) {
    *other = g->id;
    if (g->tile != tile)
        return PS_WHY_EMPTY;
    if (g->id != id)
        return PS_WHY_STALE;
    return g->sum == sum ? PS_WHY_OK : PS_WHY_SUM;
}

ps_check_why ps_check_read(ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id, uint32_t sum,
                           ps_part cols, uint64_t *other) {
    ps_cell *cell = cell_of(s, buffer, tile);
    uint32_t at = cols.begin;
    bool any = false;
    for (uint32_t i = 0; cell_alive(s, buffer, cell) && i < cell->n; i++) {
        ps_segment *g = &cell->segments[i];
        if (g->cols.end <= cols.begin || cols.end <= g->cols.begin)
            continue;
        ps_check_why why = compare(g, tile, id, sum, other);
        if (why != PS_WHY_OK)
            return why;
        any = true;
        if (g->cols.begin > at)
            return PS_WHY_PARTIAL;
        at = g->cols.end;
        if (!ps_accesses_ended(&g->writers, &s->order, other))
            return PS_WHY_WRITE_RACE;
        if (!ps_accesses_add(&g->readers, &s->order))
            return PS_WHY_CROWDED;
    }
    if (!any)
        return PS_WHY_EMPTY;
    if (at < cols.end)
        return PS_WHY_PARTIAL;
    return ps_accesses_add(&s->buffers[buffer].accesses, &s->order) ? PS_WHY_OK : PS_WHY_CROWDED;
}

/* Everything that shares bytes with the buffer holds nothing from now on, and nobody may be at it. */
static ps_check_why overwrite_others(ps_check_state *s, uint16_t buffer, uint64_t *other) {
    const ps_buffer_state *b = &s->buffers[buffer];
    for (uint32_t i = 0; i < b->n_overlaps; i++) {
        ps_buffer_state *o = &s->buffers[s->overlaps[b->overlap0 + i]];
        if (!ps_accesses_ended(&o->accesses, &s->order, other))
            return PS_WHY_SHARED_RACE;
        o->epoch++;
        o->overwritten_by = buffer;
    }
    return PS_WHY_OK;
}

/* Neighbours with the same content become one segment; false when too many accesses are open. */
static bool merge(ps_check_state *s, ps_segment *list, uint32_t *n) {
    uint32_t kept = 0;
    for (uint32_t i = 1; i < *n; i++) {
        ps_segment *last = &list[kept], *g = &list[i];
        if (last->cols.end == g->cols.begin && is(g, last->tile, last->id, last->sum)) {
            last->cols.end = g->cols.end;
            if (!ps_accesses_join(&last->writers, &g->writers, &s->order) ||
                !ps_accesses_join(&last->readers, &g->readers, &s->order))
                return false;
        } else if (++kept != i) {
            list[kept] = *g;
        }
    }
    *n = *n != 0 ? kept + 1 : 0;
    return true;
}

static ps_check_why store(ps_check_state *s, ps_cell *cell, ps_segment *list, uint32_t n) {
    if (n > PS_CHECK_PARTS && (!merge(s, list, &n) || n > PS_CHECK_PARTS))
        return PS_WHY_CROWDED;
    if (n > cell->cap) {
        uint32_t cap = cell->cap != 0 ? 2 * cell->cap : 1;
        while (cap < n)
            cap *= 2;
        cell->segments = ps_arena_array(s->arena, cap, sizeof *cell->segments);
        if (cell->segments == NULL) {
            cell->n = cell->cap = 0;
            return PS_WHY_NOMEM;
        }
        cell->cap = cap;
    }
    memcpy(cell->segments, list, n * sizeof *list);
    cell->n = n;
    return PS_WHY_OK;
}

/* May columns be written, as far as who touches segment g goes? */
static ps_check_why may_replace(const ps_check_state *s, const ps_segment *g, const ps_segment *fresh,
                                uint64_t *other) {
    if (is(g, fresh->tile, fresh->id, fresh->sum))
        return PS_WHY_TWICE;
    if (!ps_accesses_ended(&g->writers, &s->order, other))
        return PS_WHY_WRITE_RACE;
    return ps_accesses_ended(&g->readers, &s->order, other) ? PS_WHY_OK : PS_WHY_READ_RACE;
}

ps_check_why ps_check_write(ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id, uint32_t sum,
                            ps_part cols, uint64_t *other) {
    ps_cell *cell = cell_of(s, buffer, tile);
    ps_check_why why = overwrite_others(s, buffer, other);
    ps_segment fresh = {.cols = cols, .id = id, .sum = sum, .tile = tile};
    uint32_t n = 0;
    bool put = false;
    if (why != PS_WHY_OK)
        return why;
    /* Where another buffer overwrote this one, that write came after everybody who touched the old content, and
     * has been looked at above. */
    if (!cell_alive(s, buffer, cell))
        cell->n = 0;
    cell->epoch = s->buffers[buffer].epoch;
    ps_accesses_add(&fresh.writers, &s->order);
    for (uint32_t i = 0; i < cell->n; i++) {
        ps_segment *g = &cell->segments[i];
        if (g->cols.end <= cols.begin || cols.end <= g->cols.begin) {
            if (!put && g->cols.begin >= cols.end) {
                s->spare[n++] = fresh;
                put = true;
            }
            s->spare[n++] = *g;
            continue;
        }
        if ((why = may_replace(s, g, &fresh, other)) != PS_WHY_OK)
            return why;
        if (g->cols.begin < cols.begin) {
            s->spare[n] = *g;
            s->spare[n++].cols.end = cols.begin;
        }
        if (g->cols.end > cols.end) {
            if (!put)
                s->spare[n++] = fresh;
            put = true;
            s->spare[n] = *g;
            s->spare[n++].cols.begin = cols.end;
        }
    }
    if (!put)
        s->spare[n++] = fresh;
    why = store(s, cell, s->spare, n);
    if (why != PS_WHY_OK)
        return why;
    return ps_accesses_add(&s->buffers[buffer].accesses, &s->order) ? PS_WHY_OK : PS_WHY_CROWDED;
}

/* ---- slots ---- */

bool ps_slot_alive(const ps_check_state *s, uint16_t buffer) {
    const ps_buffer_state *b = &s->buffers[buffer];
    return b->slot->kind != PS_SLOT_EMPTY && b->slot->epoch == b->epoch;
}

static bool touched(ps_check_state *s, uint16_t buffer, ps_accesses *list) {
    return ps_accesses_add(list, &s->order) && ps_accesses_add(&s->buffers[buffer].accesses, &s->order);
}

ps_check_why ps_slot_fill(ps_check_state *s, uint16_t buffer, uint64_t *other) {
    ps_buffer_state *b = &s->buffers[buffer];
    ps_check_why why = overwrite_others(s, buffer, other);
    if (why != PS_WHY_OK)
        return why;
    if (b->slot->epoch == b->epoch) {
        if (!ps_accesses_ended(&b->slot->writers, &s->order, other))
            return PS_WHY_WRITE_RACE;
        if (!ps_accesses_ended(&b->slot->readers, &s->order, other))
            return PS_WHY_READ_RACE;
    }
    *b->slot = (ps_slot){.epoch = b->epoch, .filled = b->slot->filled + 1, .tail = b->slot->tail};
    return touched(s, buffer, &b->slot->writers) ? PS_WHY_OK : PS_WHY_CROWDED;
}

ps_check_why ps_slot_read(ps_check_state *s, uint16_t buffer, uint64_t *other) {
    ps_slot *slot = s->buffers[buffer].slot;
    if (!ps_accesses_ended(&slot->writers, &s->order, other))
        return PS_WHY_WRITE_RACE;
    return touched(s, buffer, &slot->readers) ? PS_WHY_OK : PS_WHY_CROWDED;
}

ps_check_why ps_slot_store(ps_check_state *s, uint16_t buffer, bool ring, uint64_t *other) {
    ps_slot *slot = s->buffers[buffer].slot;
    if (!ps_accesses_ended(&slot->writers, &s->order, other))
        return PS_WHY_WRITE_RACE;
    if (ring && !ps_accesses_ended(&slot->readers, &s->order, other))
        return PS_WHY_READ_RACE;
    return touched(s, buffer, &slot->writers) ? PS_WHY_OK : PS_WHY_CROWDED;
}
