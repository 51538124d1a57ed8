/* The expanded instruction stream of a program. Order: blocks; within a block layers; within a layer tiles;
 * within a tile instructions. */
#include <stddef.h>

#include "core/checked.h"
#include "schemas/plan.h"

static uint32_t tiles_of(const ps_cursor *c, const ps_block *b) {
    return b->over_tiles ? c->n_tiles : 1;
}

/* Leave blocks behind that run no instruction at all. */
static void skip_empty(ps_cursor *c) {
    while (c->block < c->program->n_blocks) {
        const ps_block *b = &c->program->blocks[c->block];
        if (b->n_instrs != 0 && b->n_layers != 0 && tiles_of(c, b) != 0)
            return;
        c->block++;
    }
}

void ps_cursor_start(ps_cursor *c, const ps_program *program, uint32_t n_tiles) {
    *c = (ps_cursor){.program = program, .n_tiles = n_tiles};
    skip_empty(c);
}

const ps_instr *ps_cursor_get(const ps_cursor *c, uint32_t *out_layer) {
    if (c->block >= c->program->n_blocks)
        return NULL;
    const ps_block *b = &c->program->blocks[c->block];
    if (out_layer != NULL)
        *out_layer = b->layer0 + c->round;
    return &c->program->instrs[b->instr0 + c->instr];
}

void ps_cursor_next(ps_cursor *c) {
    if (c->block >= c->program->n_blocks)
        return;
    const ps_block *b = &c->program->blocks[c->block];
    c->index++;
    if (++c->instr < b->n_instrs)
        return;
    c->instr = 0;
    if (++c->tile < tiles_of(c, b))
        return;
    c->tile = 0;
    if (++c->round < b->n_layers)
        return;
    c->round = 0;
    c->block++;
    skip_empty(c);
}

double ps_cursor_later_s(const ps_cursor *c, double period_s) {
    bool over = c->block < c->program->n_blocks && c->program->blocks[c->block].over_tiles;
    return period_s * (c->round + (over ? (double)c->tile / c->n_tiles : 0));
}

uint64_t ps_program_length(const ps_program *program, uint32_t n_tiles) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < program->n_blocks; i++) {
        const ps_block *b = &program->blocks[i];
        uint64_t n;
        if (!ps_mul_u64(b->n_instrs, b->n_layers, &n) || !ps_mul_u64(n, b->over_tiles ? n_tiles : 1, &n) ||
            !ps_add_u64(sum, n, &sum))
            return UINT64_MAX;
    }
    return sum;
}
