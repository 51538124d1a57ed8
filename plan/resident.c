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

#define PATH_ROW(name, quarters, head, text) {quarters, head, text},
static const struct {
    uint8_t quarters, head;
    const char *name;
} paths[] = {PS_PATH_LIST(PATH_ROW)};
#undef PATH_ROW
#define KV_NAME(name, text) text,
static const char *const kv_names[] = {PS_KV_POLICY_LIST(KV_NAME)};
#undef KV_NAME

const char *ps_path_name(ps_path path) {
    return path < PS_PATH_COUNT ? paths[path].name : "?";
}

const char *ps_kv_policy_name(ps_kv_policy policy) {
    return policy < PS_KV_POLICY_COUNT ? kv_names[policy] : "?";
}

static uint64_t head_unit(const ps_model *m) {
    return (m->w[PS_ROLE_OUTPUT]->rows / HEAD_STEPS + HEAD_ROWS) / HEAD_ROWS * HEAD_ROWS;
}

/* Rows of the head that its first n steps are. */
static uint64_t head_rows(const ps_model *m, uint32_t n) {
    uint64_t rows = n * head_unit(m), all = m->w[PS_ROLE_OUTPUT]->rows;
    return rows < all ? rows : all;
}

/* A walk over the slices of feed-forward blocks in the order in which they become resident: the first of every layer, then
 * the second, ... */
typedef struct ffn_walk {
    const ps_model *model;
    uint64_t *unit, *all; /* [n_layers] columns or experts of a slice, and of the layer; one allocation */
    uint64_t step;
    uint32_t next;
    /* the slice */
    uint32_t layer;
    uint64_t first, n;
} ffn_walk;

static bool walk_open(ffn_walk *w, const ps_model *m) {
    *w = (ffn_walk){.model = m, .unit = calloc(m->n_layers, 2 * sizeof(uint64_t))};
    if (!w->unit)
        return false;
    w->all = w->unit + m->n_layers;
    for (uint32_t l = 0; l < m->n_layers; l++)
        w->unit[l] = ffn_unit(m, l, &w->all[l]);
    return true;
}

static bool walk_next(ffn_walk *w) {
    for (uint32_t left_out = 0; left_out <= w->model->n_layers; left_out++) {
        if (w->next == w->model->n_layers) {
            w->next = 0;
            w->step++;
        }
        uint32_t l = w->next++;
        uint64_t first = w->step * w->unit[l];
        if (w->unit[l] == 0 || first >= w->all[l])
            continue;
        w->layer = l;
        w->first = first;
        w->n = w->all[l] - first < w->unit[l] ? w->all[l] - first : w->unit[l];
        return true;
    }
    return false;
}

ps_status ps_resident_copy(const ps_resident_set *set, ps_resident_set *out, ps_error *err) {
    const uint32_t n_layers = set->model->n_layers;
    *out = *set;
    out->room = set->n;
    out->pieces = calloc(set->n ? set->n : 1, sizeof *out->pieces);
    out->ffn = calloc(n_layers, sizeof *out->ffn);
    if (!out->pieces || !out->ffn) {
        ps_resident_free(out);
        *out = (ps_resident_set){0};
        return ps_error_set(err, PS_E_NOMEM, "resident weights", "out of memory");
    }
    if (set->n)
        memcpy(out->pieces, set->pieces, set->n * sizeof *out->pieces);
    memcpy(out->ffn, set->ffn, n_layers * sizeof *out->ffn);
    return PS_OK;
}

ps_status ps_resident_grow(ps_resident_set *set, const ps_resident_mix *mix, ps_error *err) {
    const ps_model *m = set->model;
    ffn_walk walk = {0};
    uint64_t *to = calloc(m->n_layers, sizeof *to);
    bool ok = to != NULL && walk_open(&walk, m);
    if (ok && !set->small)
        ok = add_small(set);
    for (; ok && set->n_attn < mix->n_attn; set->n_attn++)
        for (int i = 0; i < N_ATTN && ok; i++) {
            const ps_weight *w = ps_model_weight(m, set->n_attn, attn_roles[i]);
            ok = !w || add_piece(set, attn_roles[i], set->n_attn, 0, weight_rows(w), 0, 0);
        }
    uint64_t rows = head_rows(m, mix->n_head);
    if (ok && rows > set->head_rows) {
        ok = add_piece(set, PS_ROLE_OUTPUT, 0, set->head_rows, rows - set->head_rows, 0, 0);
        set->head_rows = rows;
    }
    if (ok) {
        memcpy(to, set->ffn, m->n_layers * sizeof *to);
        for (uint64_t i = 0; i < mix->n_ffn && walk_next(&walk); i++)
            if (walk.first + walk.n > to[walk.layer])
                to[walk.layer] = walk.first + walk.n;
        ok = add_ffn(set, to);
    }
    free(to);
    free(walk.unit);
    if (!ok)
        return ps_error_set(err, PS_E_NOMEM, "resident weights", "out of memory");
    set->mix.n_attn = set->n_attn;
    set->mix.n_head = mix->n_head > set->mix.n_head ? mix->n_head : set->mix.n_head;
    set->mix.n_ffn = mix->n_ffn > set->mix.n_ffn ? mix->n_ffn : set->mix.n_ffn;
    return PS_OK;
}

ps_status ps_resident_units_of(const ps_model *m, ps_arena *arena, ps_resident_units *out, ps_error *err) {
    ffn_walk w;
    uint64_t most = 0;
    if (!walk_open(&w, m))
        return ps_error_set(err, PS_E_NOMEM, "resident weights", "out of memory");
    *out = (ps_resident_units){.model = m, .small_bytes = ps_resident_small_bytes(m)};
    for (uint32_t l = 0; l < m->n_layers; l++)
        most += w.unit[l] ? (w.all[l] + w.unit[l] - 1) / w.unit[l] : 0;
    while (head_rows(m, out->n_head) < m->w[PS_ROLE_OUTPUT]->rows)
        out->n_head++;
    out->attn_bytes = ps_arena_array(arena, m->n_layers, sizeof *out->attn_bytes);
    out->head_bytes = ps_arena_array(arena, out->n_head, sizeof *out->head_bytes);
    out->ffn_bytes = ps_arena_array(arena, most + 1, sizeof *out->ffn_bytes);
    bool ok = out->attn_bytes && out->head_bytes && out->ffn_bytes;
    for (uint32_t l = 0; l < m->n_layers && ok; l++)
        out->attn_bytes[l] = ps_resident_attn_bytes(m, l);
    for (uint32_t i = 0; i < out->n_head && ok; i++)
        out->head_bytes[i] =
            range_bytes(m, PS_ROLE_OUTPUT, 0, head_rows(m, i), head_rows(m, i + 1) - head_rows(m, i), 0, 0);
    while (ok && out->n_ffn < most && walk_next(&w))
        out->ffn_bytes[out->n_ffn++] = ffn_bytes(m, w.layer, w.first, w.n);
    free(w.unit);
    return ok ? PS_OK : ps_error_set(err, PS_E_NOMEM, "resident weights", "out of memory");
}

static uint64_t up(uint64_t bytes) {
    return bytes > UINT64_MAX - PS_VRAM_ALIGN ? UINT64_MAX / 2
                                              : (bytes + PS_VRAM_ALIGN - 1) / PS_VRAM_ALIGN * PS_VRAM_ALIGN;
}

/* Does it fit? */
static bool fits(const ps_resident_room *room, uint64_t kv, uint64_t weights) {
    uint64_t work = up(room->work_bytes + kv);
    return work <= room->room_bytes && up(weights) <= room->room_bytes - work;
}

static uint64_t without(uint64_t all, uint64_t left_out) {
    return all > left_out ? all - left_out : 0;
}

bool ps_resident_fill(const ps_resident_units *u, ps_path path, ps_kv_policy policy,
                      const ps_resident_mix *left_out, const ps_resident_room *room, ps_resident_mix *out,
                      uint32_t *out_kv) {
    enum { A, H, F, MOST_KINDS = 5 };
    const uint32_t first = (u->model->n_layers * paths[path].quarters + 3) / 4;
    int kind[MOST_KINDS], n = 0;
    if (paths[path].head == 0)
        kind[n++] = H;
    if (first)
        kind[n++] = A;
    if (paths[path].head == 1)
        kind[n++] = H;
    kind[n++] = F;
    if (first < u->model->n_layers)
        kind[n++] = A;
    if (paths[path].head == 2)
        kind[n++] = H;
    const ps_model *m = u->model;
    const uint32_t n_attn = (uint32_t)without(m->n_layers, left_out->n_attn),
                   n_head = (uint32_t)without(u->n_head, left_out->n_head);
    const uint64_t n_ffn = without(u->n_ffn, left_out->n_ffn);
    uint64_t weights = u->small_bytes, kv = 0;
    uint32_t n_kv = 0, kv_limit = policy == PS_KV_POLICY_FIRST  ? m->n_layers
                                  : policy == PS_KV_POLICY_HALF ? (m->n_layers + 1) / 2
                                                                : 0;
    memset(out, 0, sizeof *out);
    if (!fits(room, 0, weights))
        return false;
    while (n_kv < kv_limit && fits(room, kv + room->kv_bytes[n_kv], weights))
        kv += room->kv_bytes[n_kv++];
    bool more = true;
    for (int p = 0; p < n && more; p++) {
        if (kind[p] == A) {
            uint32_t to = out->n_attn < first ? first : m->n_layers;
            to = to < n_attn ? to : n_attn;
            while (more && out->n_attn < to) {
                bool with = policy == PS_KV_POLICY_WITH_ATTN;
                uint64_t cache = with ? room->kv_bytes[out->n_attn] : 0;
                more = fits(room, kv + cache, weights + u->attn_bytes[out->n_attn]);
                if (!more)
                    break;
                kv += cache;
                n_kv += with;
                weights += u->attn_bytes[out->n_attn++];
            }
        } else if (kind[p] == H) {
            while (more && out->n_head < n_head) {
                more = fits(room, kv, weights + u->head_bytes[out->n_head]);
                if (more)
                    weights += u->head_bytes[out->n_head++];
            }
        } else {
            while (more && out->n_ffn < n_ffn) {
                more = fits(room, kv, weights + u->ffn_bytes[out->n_ffn]);
                if (more)
                    weights += u->ffn_bytes[out->n_ffn++];
            }
        }
    }
    *out_kv = n_kv;
    return true;
}
