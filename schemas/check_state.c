/* Contents of buffers, and races between instructions that touch the same bytes. */
#include "schemas/check_state.h"

#include "core/checked.h"

bool ps_buffer_bytes(const ps_plan_buffer *buffer, const ps_tier *tier, uint64_t *out_bytes) {
    uint64_t rows = buffer->rows == PS_ROWS_OUTPUTS ? tier->max_outputs : tier->max_tokens;
    if (buffer->rows == PS_ROWS_TILE && rows > PS_TILE_TOKENS)
        rows = PS_TILE_TOKENS;
    return ps_mul_u64(rows, ps_fmt_row_bytes(buffer->fmt, buffer->cols), out_bytes);
}

static bool share_bytes(const ps_check_state *s, uint32_t a, uint32_t b) {
    const ps_buffer_state *x = &s->buffers[a], *y = &s->buffers[b];
    return a != b && s->program->buffers[a].space == s->program->buffers[b].space && x->begin < y->end &&
           y->begin < x->end;
}

bool ps_check_state_init(ps_check_state *s, ps_arena *arena, const ps_program *program, const ps_tier *tier,
                         uint32_t n_tiles) {
    uint32_t n = program->n_buffers, n_overlaps = 0;
    s->program = program;
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
        b->cells =
            ps_arena_array(arena, program->buffers[i].rows == PS_ROWS_STEP ? n_tiles : 1, sizeof *b->cells);
        if (b->cells == NULL)
            return false;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++)
            n_overlaps += share_bytes(s, i, k);
    s->overlaps = ps_arena_array(arena, n_overlaps, sizeof *s->overlaps);
    if (s->overlaps == NULL)
        return false;
    n_overlaps = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->buffers[i].overlap0 = n_overlaps;
        for (uint32_t k = 0; k < n; k++)
            if (share_bytes(s, i, k))
                s->overlaps[n_overlaps++] = k;
        s->buffers[i].n_overlaps = n_overlaps - s->buffers[i].overlap0;
    }
    return true;
}

bool ps_accesses_add(ps_accesses *a, const ps_order *order) {
    /* What has ended before this instruction has ended before whatever waits for this one, so it need not
     * be kept. */
    uint32_t kept = 0;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->at[i] != order->now && !ps_order_ended(order, a->at[i]))
            a->at[kept++] = a->at[i];
    a->n = kept;
    if (kept == PS_CHECK_ACCESSES)
        return false;
    a->at[a->n++] = order->now;
    return true;
}

bool ps_accesses_ended(const ps_accesses *a, const ps_order *order, uint64_t *out) {
    for (uint32_t i = 0; i < a->n; i++)
        if (a->at[i] != order->now && !ps_order_ended(order, a->at[i])) {
            *out = a->at[i];
            return false;
        }
    return true;
}

static ps_cell *cell_of(const ps_check_state *s, uint16_t buffer, uint32_t tile) {
    return &s->buffers[buffer].cells[s->program->buffers[buffer].rows == PS_ROWS_STEP ? tile : 0];
}

static bool alive(const ps_check_state *s, uint16_t buffer, const ps_cell *cell, uint32_t tile) {
    return cell->epoch == s->buffers[buffer].epoch && cell->id != 0 && cell->tile == tile;
}

uint32_t ps_check_content(const ps_check_state *s, uint16_t buffer, uint32_t tile) {
    const ps_cell *cell = cell_of(s, buffer, tile);
    return alive(s, buffer, cell, tile) ? cell->id : 0;
}

bool ps_check_holds(const ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id) {
    const ps_cell *cell = cell_of(s, buffer, tile);
    return alive(s, buffer, cell, tile) && cell->id == id && cell->n_parts == 0;
}

/* Are columns [begin, end) all inside one part (parts are merged), or all outside? */
static bool inside(const ps_cell *cell, uint64_t begin, uint64_t end) {
    for (uint32_t i = 0; i < cell->n_parts; i++)
        if (cell->parts[i].begin <= begin && end <= cell->parts[i].end)
            return true;
    return false;
}

static bool outside(const ps_cell *cell, uint64_t begin, uint64_t end) {
    for (uint32_t i = 0; i < cell->n_parts; i++)
        if (cell->parts[i].begin < end && begin < cell->parts[i].end)
            return false;
    return true;
}

ps_check_why ps_check_read(ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id, uint64_t begin,
                           uint64_t end, bool in_place, uint64_t *other) {
    ps_cell *cell = cell_of(s, buffer, tile);
    if (!alive(s, buffer, cell, tile))
        return PS_WHY_EMPTY;
    *other = cell->id;
    bool old = cell->id != id && cell->n_parts != 0 && cell->before == id;
    if (cell->id != id && !old)
        return PS_WHY_STALE;
    if (old ? !outside(cell, begin, end) : cell->n_parts != 0 && !inside(cell, begin, end))
        return PS_WHY_PARTIAL;
    if (!ps_accesses_ended(old ? &cell->makers : &cell->writers, &s->order, other))
        return PS_WHY_WRITE_RACE;
    bool ok = ps_accesses_add(&s->buffers[buffer].accesses, &s->order);
    if (!old)
        ok = ok && ps_accesses_add(&cell->readers, &s->order);
    else if (!in_place) /* columns that the same instruction writes are written by no other */
        ok = ok && ps_accesses_add(&cell->others, &s->order);
    return ok ? PS_WHY_OK : PS_WHY_CROWDED;
}

static ps_check_why add_part(ps_cell *cell, uint64_t begin, uint64_t end, uint64_t cols) {
    if (!outside(cell, begin, end))
        return PS_WHY_TWICE;
    uint32_t n = cell->n_parts;
    for (uint32_t i = 0; i < n;) { /* merge with neighbours */
        ps_part p = cell->parts[i];
        if (p.end == begin || end == p.begin) {
            begin = p.begin < begin ? p.begin : begin;
            end = p.end > end ? p.end : end;
            cell->parts[i] = cell->parts[--n];
        } else {
            i++;
        }
    }
    if (n == PS_CHECK_PARTS)
        return PS_WHY_CROWDED;
    cell->parts[n++] = (ps_part){begin, end};
    cell->n_parts = n == 1 && begin == 0 && end == cols ? 0 : n;
    return PS_WHY_OK;
}

ps_check_why ps_check_write(ps_check_state *s, uint16_t buffer, uint32_t tile, uint32_t id, uint64_t begin,
                            uint64_t end, uint64_t *other) {
    ps_buffer_state *b = &s->buffers[buffer];
    ps_cell *cell = cell_of(s, buffer, tile);
    uint64_t cols = s->program->buffers[buffer].cols;
    for (uint32_t i = 0; i < b->n_overlaps; i++) {
        ps_buffer_state *o = &s->buffers[s->overlaps[b->overlap0 + i]];
        if (!ps_accesses_ended(&o->accesses, &s->order, other))
            return PS_WHY_SHARED_RACE;
        o->epoch++;
        o->overwritten_by = buffer;
    }
    bool live = alive(s, buffer, cell, tile);
    bool more = live && cell->id == id && cell->n_parts != 0;
    if (live && cell->id == id && !more)
        return PS_WHY_TWICE;
    if (!more) {
        /* A new content, whole or its first part: everybody who touched the old one must have ended. Where
         * another buffer overwrote it, that write came after them, and has been looked at above. */
        bool overwritten = cell->epoch != b->epoch;
        if (!overwritten && !ps_accesses_ended(&cell->writers, &s->order, other))
            return PS_WHY_WRITE_RACE;
        if (!overwritten && !(ps_accesses_ended(&cell->readers, &s->order, other) &&
                              ps_accesses_ended(&cell->others, &s->order, other)))
            return PS_WHY_READ_RACE;
        cell->makers = cell->writers;
        cell->before = live && cell->n_parts == 0 ? cell->id : 0;
        cell->id = id;
        cell->tile = tile;
        cell->epoch = b->epoch;
        cell->n_parts = 0;
        cell->writers.n = cell->readers.n = cell->others.n = 0;
        if (begin == 0 && end == cols)
            cell->before = 0;
        else
            cell->parts[cell->n_parts++] = (ps_part){begin, end};
    } else {
        if (!ps_accesses_ended(&cell->others, &s->order, other))
            return PS_WHY_READ_RACE;
        ps_check_why why = add_part(cell, begin, end, cols);
        if (why != PS_WHY_OK)
            return why;
    }
    bool ok = ps_accesses_add(&cell->writers, &s->order) && ps_accesses_add(&b->accesses, &s->order);
    return ok ? PS_WHY_OK : PS_WHY_CROWDED;
}
