/* The order of resident weights: see resident.h. */
#include "plan/resident.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"

/* Steps in which the head and a layer's feed-forward block become resident. More make budgets fit closer; each level of
 * a plan can add a piece, and a product, per step. */
enum { HEAD_STEPS = 16, HEAD_ROWS = 64, FFN_STEPS = 16, EXPERT_STEPS = 32, COLUMN_STEP = 256 };

static const ps_role attn_roles[] = {PS_ROLE_ATTN_Q, PS_ROLE_ATTN_K, PS_ROLE_ATTN_V, PS_ROLE_ATTN_OUT};
enum { N_ATTN = sizeof attn_roles / sizeof attn_roles[0] };

bool ps_resident_is_small(ps_role role) {
    switch (role) {
    case PS_ROLE_TOKEN_EMBD: /* gathered on the host */
    case PS_ROLE_OUTPUT:
    case PS_ROLE_ATTN_Q:
    case PS_ROLE_ATTN_K:
    case PS_ROLE_ATTN_V:
    case PS_ROLE_ATTN_OUT:
    case PS_ROLE_FFN_GATE:
    case PS_ROLE_FFN_UP:
    case PS_ROLE_FFN_DOWN:
    case PS_ROLE_FFN_GATE_EXPS:
    case PS_ROLE_FFN_UP_EXPS:
    case PS_ROLE_FFN_DOWN_EXPS:
        return false;
    default:
        return role < PS_ROLE_COUNT;
    }
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + PS_RESIDENT_ALIGN - 1) / PS_RESIDENT_ALIGN * PS_RESIDENT_ALIGN;
}

static uint64_t weight_rows(const ps_weight *w) {
    return w->experts > 1 ? w->experts : w->rows;
}

/* Bytes of a range, aligned; UINT64_MAX if it is none. */
static uint64_t range_bytes(const ps_model *m, ps_role role, uint32_t layer, uint64_t row0, uint64_t n_rows,
                            uint64_t col0, uint64_t n_cols) {
    ps_weight_range r = {role, layer, row0, n_rows, col0, n_cols};
    uint64_t bytes;
    return ps_weight_range_bytes(m, &r, &bytes, NULL) && bytes < UINT64_MAX / 2 ? aligned(bytes) : UINT64_MAX;
}

uint64_t ps_resident_small_bytes(const ps_model *m) {
    uint64_t sum = 0;
    for (int role = 0; role < PS_ROLE_COUNT; role++) {
        uint32_t n = ps_role_get((ps_role)role)->per_layer ? m->n_layers : 1;
        for (uint32_t l = 0; l < n && ps_resident_is_small((ps_role)role); l++) {
            const ps_weight *w = ps_model_weight(m, l, (ps_role)role);
            sum += w ? aligned(w->bytes) : 0;
        }
    }
    return sum;
}

uint64_t ps_resident_attn_bytes(const ps_model *m, uint32_t layer) {
    uint64_t sum = 0;
    for (int i = 0; i < N_ATTN; i++) {
        const ps_weight *w = ps_model_weight(m, layer, attn_roles[i]);
        sum += w ? aligned(w->bytes) : 0;
    }
    return sum;
}

/* May the layer's block be cut at multiples of `step`? */
static bool step_fits(const ps_model *m, uint32_t layer, uint64_t n, uint64_t step) {
    const ps_weight *down = ps_model_weight(m, layer, PS_ROLE_FFN_DOWN);
    uint64_t rest = n % step ? n % step : step;
    return down && range_bytes(m, PS_ROLE_FFN_DOWN, layer, 0, down->rows, 0, step) != UINT64_MAX &&
           range_bytes(m, PS_ROLE_FFN_DOWN, layer, 0, down->rows, n - rest, rest) != UINT64_MAX;
}

uint64_t ps_ffn_step(const ps_model *m, uint32_t layer) {
    uint64_t n = m->layers[layer].n_ff;
    for (uint64_t step = COLUMN_STEP; step < n && step <= 16 * COLUMN_STEP; step *= 2)
        if (step_fits(m, layer, n, step))
            return step;
    return 0;
}

/* Columns or experts of a layer that become resident at a time; *out_n: of all. */
static uint64_t ffn_unit(const ps_model *m, uint32_t layer, uint64_t *out_n) {
    const ps_layer *y = &m->layers[layer];
    *out_n = y->n_expert ? y->n_expert : y->n_ff;
    if (y->n_expert)
        return (*out_n + EXPERT_STEPS - 1) / EXPERT_STEPS;
    uint64_t step = ps_ffn_step(m, layer);
    return step == 0 ? *out_n : (*out_n / FFN_STEPS + step) / step * step;
}

static uint64_t ffn_bytes(const ps_model *m, uint32_t layer, uint64_t first, uint64_t n) {
    uint64_t sum = 0;
    if (m->layers[layer].n_expert) {
        static const ps_role roles[] = {PS_ROLE_FFN_GATE_EXPS, PS_ROLE_FFN_UP_EXPS, PS_ROLE_FFN_DOWN_EXPS};
        for (int i = 0; i < 3; i++)
            sum += range_bytes(m, roles[i], layer, first, n, 0, 0);
        return sum;
    }
    bool all = n == m->layers[layer].n_ff;
    const ps_weight *down = ps_model_weight(m, layer, PS_ROLE_FFN_DOWN);
    return range_bytes(m, PS_ROLE_FFN_GATE, layer, first, n, 0, 0) +
           range_bytes(m, PS_ROLE_FFN_UP, layer, first, n, 0, 0) +
           range_bytes(m, PS_ROLE_FFN_DOWN, layer, 0, down->rows, all ? 0 : first, all ? 0 : n);
}

ps_status ps_resident_init(ps_resident_set *set, const ps_model *model, ps_error *err) {
    *set = (ps_resident_set){.model = model};
    set->ffn = calloc(model->n_layers, sizeof *set->ffn);
    return set->ffn ? PS_OK : ps_error_set(err, PS_E_NOMEM, "resident weights", "out of memory");
}

void ps_resident_free(ps_resident_set *set) {
    free(set->pieces);
    free(set->ffn);
    *set = (ps_resident_set){0};
}

static bool add_piece(ps_resident_set *set, ps_role role, uint32_t layer, uint64_t row0, uint64_t n_rows,
                      uint64_t col0, uint64_t n_cols) {
    if (set->n == set->room) {
        uint32_t room = set->room ? set->room * 2 : 256;
        ps_resident *grown = realloc(set->pieces, room * sizeof *grown);
        if (!grown)
            return false;
        set->pieces = grown;
        set->room = room;
    }
    set->pieces[set->n++] =
        (ps_resident){.range = {role, layer, row0, n_rows, col0, n_cols}, .offset = set->bytes};
    set->bytes += range_bytes(set->model, role, layer, row0, n_rows, col0, n_cols);
    return true;
}

static bool add_small(ps_resident_set *set) {
    const ps_model *m = set->model;
    bool ok = true;
    for (int i = 0; i < PS_ROLE_COUNT && ok; i++) {
        ps_role role = (ps_role)i;
        uint32_t n = ps_role_get(role)->per_layer ? m->n_layers : 1;
        for (uint32_t l = 0; l < n && ok && ps_resident_is_small(role); l++) {
            const ps_weight *w = ps_model_weight(m, l, role);
            ok = !w || add_piece(set, role, l, 0, weight_rows(w), 0, 0);
        }
    }
    set->small = ok;
    return ok;
}

/* Slices that were added to the counts in `to` become pieces. */
static bool add_ffn(ps_resident_set *set, const uint64_t *to) {
    const ps_model *m = set->model;
    bool ok = true;
    for (uint32_t l = 0; l < m->n_layers && ok; l++) {
        uint64_t first = set->ffn[l], n = to[l] - first;
        if (!n)
            continue;
        if (m->layers[l].n_expert) {
            ok = add_piece(set, PS_ROLE_FFN_GATE_EXPS, l, first, n, 0, 0) &&
                 add_piece(set, PS_ROLE_FFN_UP_EXPS, l, first, n, 0, 0) &&
                 add_piece(set, PS_ROLE_FFN_DOWN_EXPS, l, first, n, 0, 0);
        } else {
            bool all = n == m->layers[l].n_ff;
            ok = add_piece(set, PS_ROLE_FFN_GATE, l, first, n, 0, 0) &&
                 add_piece(set, PS_ROLE_FFN_UP, l, first, n, 0, 0) &&
                 add_piece(set, PS_ROLE_FFN_DOWN, l, 0, ps_model_weight(m, l, PS_ROLE_FFN_DOWN)->rows,
                           all ? 0 : first, all ? 0 : n);
        }
        set->ffn[l] = to[l];
    }
    return ok;
}

ps_status ps_resident_grow(ps_resident_set *set, uint64_t bytes, uint32_t n_attn, ps_error *err) {
    const ps_model *m = set->model;
    uint64_t left = bytes > set->bytes ? bytes - set->bytes : 0, need;
    uint64_t *to = malloc(m->n_layers * sizeof *to);
    bool ok = to != NULL;
    if (ok && !set->small) {
        need = ps_resident_small_bytes(m);
        if (need > left)
            goto done;
        left -= need;
        ok = add_small(set);
    }
    for (; ok && set->n_attn < m->n_layers && set->n_attn < n_attn; set->n_attn++) {
        need = ps_resident_attn_bytes(m, set->n_attn);
        if (need > left)
            goto done;
        left -= need;
        for (int i = 0; i < N_ATTN && ok; i++) {
            const ps_weight *w = ps_model_weight(m, set->n_attn, attn_roles[i]);
            ok = !w || add_piece(set, attn_roles[i], set->n_attn, 0, weight_rows(w), 0, 0);
        }
    }
    if (!ok || set->n_attn < m->n_layers || n_attn < m->n_layers)
        goto done;
    const ps_weight *head = m->w[PS_ROLE_OUTPUT];
    uint64_t row0 = set->head_rows, unit = (head->rows / HEAD_STEPS + HEAD_ROWS) / HEAD_ROWS * HEAD_ROWS;
    bool full = false;
    while (set->head_rows < head->rows && !full) {
        uint64_t n = head->rows - set->head_rows < unit ? head->rows - set->head_rows : unit;
        need = range_bytes(m, PS_ROLE_OUTPUT, 0, set->head_rows, n, 0, 0);
        if (need > left) {
            full = true;
        } else {
            left -= need;
            set->head_rows += n;
        }
    }
    if (set->head_rows > row0)
        ok = add_piece(set, PS_ROLE_OUTPUT, 0, row0, set->head_rows - row0, 0, 0);
    memcpy(to, set->ffn, m->n_layers * sizeof *to);
    for (bool more = ok && !full; more;) {
        /* The next slice is of the layer that has the fewest, the lowest of these. */
        uint32_t l = UINT32_MAX;
        uint64_t fewest = UINT64_MAX, n;
        for (uint32_t i = 0; i < m->n_layers; i++) {
            uint64_t u = ffn_unit(m, i, &n), steps = to[i] / (u ? u : 1);
            if (to[i] < n && steps < fewest) {
                fewest = steps;
                l = i;
            }
        }
        if (l == UINT32_MAX)
            break;
        uint64_t u = ffn_unit(m, l, &n), add = n - to[l] < u ? n - to[l] : u;
        need = ffn_bytes(m, l, to[l], add);
        more = need <= left;
        if (more) {
            left -= need;
            to[l] += add;
        }
    }
    if (ok)
        ok = add_ffn(set, to);
done:
    free(to);
    return ok ? PS_OK : ps_error_set(err, PS_E_NOMEM, "resident weights", "out of memory");
}
