/* Ranges of weights: their bytes, the resident piece that holds one, and what a COPY of one moves. */
#include <stddef.h>

#include "core/checked.h"
#include "schemas/plan.h"

bool ps_weight_range_bytes(const ps_model *model, const ps_weight_range *range, uint64_t *out_bytes,
                           uint64_t *out_row_bytes) {
    if ((unsigned)range->role >= PS_ROLE_COUNT ||
        range->layer >= (ps_role_get(range->role)->per_layer ? model->n_layers : 1))
        return false;
    const ps_weight *w = ps_model_weight(model, range->layer, range->role);
    if (w == NULL)
        return false;
    bool several = w->experts > 1;
    uint64_t cols = range->n_cols != 0 ? range->n_cols : w->cols, begin, row, bytes;
    if (range->n_rows == 0 || !ps_range_ok(range->row0, range->n_rows, several ? w->experts : w->rows) ||
        !ps_range_ok(range->col0, cols, w->cols) || !ps_dtype_bytes(w->type, cols, &row))
        return false;
    if (cols != w->cols) {
        if (several || range->col0 % PS_COLUMN_STEP != 0 ||
            (cols % PS_COLUMN_STEP != 0 && range->col0 + cols != w->cols) ||
            !ps_dtype_bytes(w->type, range->col0, &begin) || begin % PS_SLOT_ROW_ALIGN != 0 ||
            row % PS_SLOT_ROW_ALIGN != 0)
            return false;
    }
    if (!ps_mul_u64(row, range->n_rows, &bytes) || (several && !ps_mul_u64(bytes, w->rows, &bytes)))
        return false;
    *out_bytes = bytes;
    if (out_row_bytes != NULL)
        *out_row_bytes = row;
    return true;
}

static bool holds(const ps_weight_range *piece, const ps_weight_range *range) {
    if (piece->role != range->role || piece->layer != range->layer || range->row0 < piece->row0 ||
        !ps_range_ok(range->row0 - piece->row0, range->n_rows, piece->n_rows))
        return false;
    if (piece->n_cols == 0)
        return true;
    return range->n_cols != 0 && range->col0 >= piece->col0 &&
           ps_range_ok(range->col0 - piece->col0, range->n_cols, piece->n_cols);
}

const ps_resident *ps_level_find_resident(const ps_level *level, const ps_weight_range *range) {
    for (uint32_t i = 0; i < level->n_resident; i++)
        if (holds(&level->resident[i].range, range))
            return &level->resident[i];
    return NULL;
}

uint32_t ps_instr_weight_layer(const ps_plan *plan, const ps_instr *instr, uint32_t layer) {
    if ((unsigned)instr->w[0] >= PS_ROLE_COUNT || !ps_role_get(instr->w[0])->per_layer)
        return 0;
    if (!instr->ahead)
        return layer;
    return layer + 1 < plan->n_layers ? layer + 1 : 0;
}

bool ps_instr_runs(const ps_instr *instr, uint32_t tile, uint32_t n_tiles) {
    switch (instr->when) {
    case PS_WHEN_FIRST:
        return tile == 0;
    case PS_WHEN_LAST:
        return tile + 1 == n_tiles;
    default:
        return true;
    }
}
