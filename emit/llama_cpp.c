/* Flags of llama.cpp that place a level's whole resident tensors where the plan has them.
 *
 * What llama.cpp does (common/arg.cpp, llama-model.cpp, llama-model-loader.cpp): -ngl N puts the last N - 1 layers, their KV
 * and the output layer on the GPU; the token embedding stays on the host, and a head tied to it is a second copy of the
 * tensor in the output layer. -ot PATTERN=BUFFER overrides that for tensors in whose name std::regex_search finds the
 * pattern, the first that does; --n-cpu-moe N is N such patterns for the experts of the first N layers. A tensor is never divided.
 * Patterns are kept to what ECMAScript and POSIX expressions write alike, so that they are tried here by regexec. */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/text.h"
#include "emit/emit.h"

enum { MAX_LAYERS = 512 /* LLAMA_MAX_LAYERS */, MAX_SUFFIXES = 128, MAX_RULES = 2 * MAX_SUFFIXES };
#define NO_LAYER UINT32_MAX
/* What --n-cpu-moe N adds for each of its layers. Later releases take ffn_gate_up_exps as well, earlier ones do not: the
 * flag is neither trusted to move fused experts to the host nor used where it would. */
#define MOE_PATTERN "blk\\.%u\\.ffn_(up|down|gate)_exps"

/* A tensor of the file. */
typedef struct place {
    bool used;          /* some weight of the model lies in it */
    uint32_t layer;     /* NO_LAYER: of none */
    const char *suffix; /* of its name, behind "blk.N." */
    uint64_t suffix_len;
    uint64_t need, have;      /* bytes of its weights; of those that are resident as a whole */
    uint64_t vram;            /* bytes of all its resident pieces */
    bool by_columns, experts; /* how the pieces cut it */
    bool want, base, moe;     /* on the GPU: in the plan, by -ngl alone; left to --n-cpu-moe */
    bool said;                /* in a comment */
} place;

/* Tensors of one suffix. */
typedef struct group {
    const char *suffix;
    uint64_t len;
    bool want[2];        /* some are wanted on the host, on the GPU */
    bool mixed_used;     /* it is part of a rule already */
    bool in[MAX_LAYERS]; /* layers whose tensor an override has to move */
} group;

typedef struct rule {
    char *pattern;
    bool gpu;
} rule;

typedef struct emit {
    const ps_plan *plan;
    const ps_level *level;
    const ps_model *model;
    place *tensors;
    uint64_t n;
    uint32_t gpu_layers, cpu_moe;
    uint32_t n_rules;
    rule rules[MAX_RULES];
    group groups[2][MAX_SUFFIXES]; /* to be moved to the host, to the GPU */
    uint32_t n_groups[2];
} emit;

static uint64_t add(uint64_t a, uint64_t b) {
    uint64_t sum;
    return ps_add_u64(a, b, &sum) ? sum : UINT64_MAX;
}

static int compare_u64(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

static int compare_pieces(const void *a, const void *b) {
    const ps_weight_range *x = *(const ps_weight_range *const *)a, *y = *(const ps_weight_range *const *)b;
    int order = compare_u64(x->role, y->role);
    order = order ? order : compare_u64(x->layer, y->layer);
    order = order ? order : compare_u64(x->row0, y->row0);
    order = order ? order : compare_u64(x->n_rows, y->n_rows);
    return order ? order : compare_u64(x->col0, y->col0);
}

/* Whether pieces of one weight, sorted, cover it: whole rows one behind the other, or columns of all rows. */
static bool covered(const ps_weight *w, const ps_weight_range *const *pieces, uint32_t n) {
    uint64_t rows = w->experts > 1 ? w->experts : w->rows, row_end = 0, col_end = 0;
    for (uint32_t i = 0; i < n; i++) {
        const ps_weight_range *p = pieces[i];
        uint64_t cols = p->n_cols ? p->n_cols : w->cols;
        if (cols == w->cols && p->row0 <= row_end && add(p->row0, p->n_rows) > row_end)
            row_end = add(p->row0, p->n_rows);
        if (p->n_rows == rows && p->col0 <= col_end && add(p->col0, cols) > col_end)
            col_end = add(p->col0, cols);
    }
    return row_end >= rows || col_end >= w->cols;
}

/* Enter a weight of the model into its tensor. A tied head is the copy of the embedding that llama.cpp puts into the output
 * layer; what only gathers rows stays on the host in both. */
static ps_status enter(emit *e, ps_role role, uint32_t layer, ps_error *err) {
    const ps_weight *w = ps_model_weight(e->model, layer, role);
    if (!w || (role == PS_ROLE_TOKEN_EMBD && e->model->tied_output))
        return PS_OK;
    if (w->tensor >= e->n)
        return ps_error_set(err, PS_E_DATA, ps_role_get(role)->name, "a weight outside the file");
    place *t = &e->tensors[w->tensor];
    const ps_gguf_tensor *tensor = &e->model->gguf->tensors[w->tensor];
    char prefix[24];
    t->used = true;
    t->need = add(t->need, w->bytes);
    t->layer = NO_LAYER;
    t->suffix = tensor->name.data;
    t->suffix_len = tensor->name.len;
    t->experts = t->experts || w->experts > 1;
    if (ps_role_get(role)->per_layer) {
        size_t len = (size_t)snprintf(prefix, sizeof prefix, "blk.%u.", layer);
        t->layer = layer;
        if (tensor->name.len <= len || memcmp(tensor->name.data, prefix, len) != 0)
            return ps_error_set(err, PS_E_UNSUPPORTED, ps_role_get(role)->name,
                                "its tensor in layer %u is not named %s...", layer, prefix);
        t->suffix += len;
        t->suffix_len -= len;
    }
    return PS_OK;
}

static ps_status find_places(emit *e, ps_error *err) {
    const ps_level *l = e->level;
    ps_status status = PS_OK;
    for (int r = 0; r < PS_ROLE_COUNT && !status; r++)
        for (uint32_t i = 0; i < (ps_role_get((ps_role)r)->per_layer ? e->model->n_layers : 1) && !status;
             i++)
            status = enter(e, (ps_role)r, i, err);
    if (status)
        return status;
    const ps_weight_range **pieces = calloc((size_t)l->n_resident + 1, sizeof *pieces);
    if (!pieces)
        return ps_error_set(err, PS_E_NOMEM, "llama.cpp", "out of memory");
    for (uint32_t i = 0; i < l->n_resident; i++)
        pieces[i] = &l->resident[i].range;
    qsort(pieces, l->n_resident, sizeof *pieces, compare_pieces);
    for (uint32_t i = 0, n; i < l->n_resident && !status; i += n) {
        const ps_weight_range *first = pieces[i];
        const ps_weight *w = ps_model_weight(e->model, first->layer, first->role);
        for (n = 0; i + n < l->n_resident && pieces[i + n]->role == first->role &&
                    pieces[i + n]->layer == first->layer;)
            n++;
        if (!w || w->tensor >= e->n || !e->tensors[w->tensor].used)
            continue; /* the embedding beside a tied head */
        place *t = &e->tensors[w->tensor];
        for (uint32_t k = 0; k < n; k++) {
            uint64_t bytes;
            if (!ps_weight_range_bytes(e->model, pieces[i + k], &bytes, NULL)) {
                status = ps_error_set(err, PS_E_DATA, "resident", "no range of a weight of the model");
                break;
            }
            t->vram = add(t->vram, bytes);
            t->by_columns = t->by_columns || pieces[i + k]->n_cols != 0;
        }
        if (covered(w, &pieces[i], n))
            t->have = add(t->have, w->bytes);
    }
    free(pieces);
    for (uint64_t i = 0; i < e->n; i++)
        e->tensors[i].want = e->tensors[i].used && e->tensors[i].have >= e->tensors[i].need;
    return status;
}

static uint64_t kv_bytes(const emit *e, uint32_t layer) {
    uint64_t bytes;
    return ps_mul_u64(e->level->kv[layer].bytes, e->level->n_seqs, &bytes) ? bytes : UINT64_MAX;
}

/* As many layers from the end on as leave the fewest bytes of KV elsewhere than the plan, and take no more VRAM for KV. */
static void choose_layers(emit *e) {
    uint32_t n = e->model->n_layers;
    uint64_t in_plan = 0, here = 0, best, misplaced;
    for (uint32_t i = 0; i < n; i++)
        in_plan = add(in_plan, e->level->kv[i].space == PS_SPACE_VRAM ? kv_bytes(e, i) : 0);
    best = misplaced = in_plan;
    for (uint32_t i = n; i-- > 0;) {
        uint64_t bytes = kv_bytes(e, i);
        here = add(here, bytes);
        if (here > in_plan)
            break;
        misplaced = e->level->kv[i].space == PS_SPACE_VRAM ? misplaced - bytes : add(misplaced, bytes);
        if (misplaced <= best) {
            best = misplaced;
            e->gpu_layers = n - i;
        }
    }
}

static bool starts_with(const place *t, const char *text) {
    return t->suffix_len >= strlen(text) && memcmp(t->suffix, text, strlen(text)) == 0;
}

/* Where -ngl puts a tensor. */
static void place_by_layers(emit *e) {
    bool gpu = e->level->budget_bytes != 0;
    for (uint64_t i = 0; i < e->n; i++) {
        place *t = &e->tensors[i];
        bool first = t->used && t->layer == NO_LAYER && starts_with(t, "rope_freqs.");
        if (t->layer != NO_LAYER)
            t->base = e->model->n_layers - t->layer <= e->gpu_layers;
        else if (first) /* a copy wherever a layer is */
            t->base = e->gpu_layers == e->model->n_layers;
        else
            t->base = !starts_with(t, "token_embd.") || e->model->tied_output;
        t->base = t->base && gpu && t->used;
        if (first && e->gpu_layers != 0 && e->gpu_layers != e->model->n_layers)
            t->base = !t->want; /* on both sides: say where */
    }
}

/* What every release's --n-cpu-moe moves, and what some do. */
static bool is_moe(const place *t) {
    return t->used && t->layer != NO_LAYER &&
           (starts_with(t, "ffn_up_exps") || starts_with(t, "ffn_down_exps") ||
            starts_with(t, "ffn_gate_exps"));
}

static bool may_be_moe(const place *t) {
    return is_moe(t) || (t->used && t->layer != NO_LAYER &&
                         (starts_with(t, "ffn_gate_up_exps") || starts_with(t, "ffn_up_chexps") ||
                          starts_with(t, "ffn_down_chexps") || starts_with(t, "ffn_gate_chexps")));
}

/* The most first layers none of whose experts are on the GPU, up to the last that -ngl would put there. */
static void choose_cpu_moe(emit *e) {
    uint32_t n = e->model->n_layers, last = 0;
    for (uint64_t i = 0; i < e->n; i++)
        if (may_be_moe(&e->tensors[i]) && e->tensors[i].want && e->tensors[i].layer < n)
            n = e->tensors[i].layer;
    for (uint64_t i = 0; i < e->n; i++) {
        const place *t = &e->tensors[i];
        if (is_moe(t) && t->base && t->layer < n && t->layer + 1 > last)
            last = t->layer + 1;
    }
    e->cpu_moe = last;
    for (uint64_t i = 0; i < e->n; i++)
        e->tensors[i].moe = is_moe(&e->tensors[i]) && e->tensors[i].layer < last;
}

/* A suffix or name as a pattern. Bytes that could mean something to a shell, to llama.cpp's option or in a pattern match as
 * "any"; trying all patterns tells whether that is too much. */
static void put_name(ps_text *t, const char *name, uint64_t len) {
    for (uint64_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)name[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
        ps_text_printf(t, c == '.' ? "\\." : plain ? "%c" : ".", c);
    }
}

static ps_status add_rule(emit *e, ps_text *text, bool gpu, ps_error *err) {
    rule *r = &e->rules[e->n_rules];
    r->pattern = ps_text_end(text, NULL);
    r->gpu = gpu;
    if (!r->pattern)
        return ps_error_set(err, PS_E_NOMEM, "llama.cpp", "out of memory");
    e->n_rules++;
    return PS_OK;
}

static bool same_suffix(const group *g, const place *t) {
    return g->len == t->suffix_len && memcmp(g->suffix, t->suffix, g->len) == 0;
}

/* Layers' tensors that are to be moved, by suffix; whether all of that suffix have the same place. */
static ps_status collect_groups(emit *e, ps_error *err) {
    for (uint64_t i = 0; i < e->n; i++) {
        const place *t = &e->tensors[i];
        if (t->layer == NO_LAYER || !t->used || t->want == t->base || t->moe)
            continue;
        group *groups = e->groups[t->want];
        uint32_t g = 0;
        while (g < e->n_groups[t->want] && !same_suffix(&groups[g], t))
            g++;
        if (g == MAX_SUFFIXES)
            return ps_error_set(err, PS_E_UNSUPPORTED, "tensors", "more than %d kinds in a layer",
                                MAX_SUFFIXES);
        if (g == e->n_groups[t->want])
            groups[e->n_groups[t->want]++] = (group){.suffix = t->suffix, .len = t->suffix_len};
        groups[g].in[t->layer] = true;
    }
    for (int side = 0; side < 2; side++)
        for (uint32_t g = 0; g < e->n_groups[side]; g++)
            for (uint64_t i = 0; i < e->n; i++)
                if (e->tensors[i].layer != NO_LAYER && e->tensors[i].used &&
                    same_suffix(&e->groups[side][g], &e->tensors[i]))
                    e->groups[side][g].want[e->tensors[i].want] = true;
    return PS_OK;
}

static bool same_layers(const group *a, const group *b) {
    bool all_a = !(a->want[0] && a->want[1]), all_b = !(b->want[0] && b->want[1]);
    return all_a == all_b && (all_a || memcmp(a->in, b->in, sizeof a->in) == 0);
}

/* One rule for all suffixes that are moved in the same layers. */
static ps_status layer_rules(emit *e, bool gpu, ps_error *err) {
    ps_status status = PS_OK;
    for (uint32_t g = 0; g < e->n_groups[gpu] && !status; g++) {
        group *first = &e->groups[gpu][g];
        if (first->mixed_used)
            continue;
        ps_text *t = ps_text_new();
        const char *separator = "";
        ps_text_printf(t, "^blk\\.");
        if (first->want[0] && first->want[1]) {
            ps_text_printf(t, "(");
            for (uint32_t l = 0; l < e->model->n_layers; l++)
                if (first->in[l]) {
                    ps_text_printf(t, "%s%u", separator, l);
                    separator = "|";
                }
            ps_text_printf(t, ")");
        } else {
            ps_text_printf(t, "[0-9]+");
        }
        ps_text_printf(t, "\\.(");
        separator = "";
        for (uint32_t k = g; k < e->n_groups[gpu]; k++) {
            group *other = &e->groups[gpu][k];
            if (other->mixed_used || !same_layers(first, other))
                continue;
            ps_text_printf(t, "%s", separator);
            put_name(t, other->suffix, other->len);
            separator = "|";
            if (k != g)
                other->mixed_used = true;
        }
        first->mixed_used = true;
        ps_text_printf(t, ")$");
        status = add_rule(e, t, gpu, err);
    }
    return status;
}

static ps_status make_rules(emit *e, ps_error *err) {
    ps_status status = collect_groups(e, err);
    for (int gpu = 0; gpu < 2 && !status; gpu++)
        status = layer_rules(e, gpu != 0, err);
    for (uint64_t i = 0; i < e->n && !status; i++) {
        const place *p = &e->tensors[i];
        if (!p->used || p->layer != NO_LAYER || p->want == p->base)
            continue;
        if (e->n_rules == MAX_RULES)
            return ps_error_set(err, PS_E_UNSUPPORTED, "tensors", "too many without a layer");
        ps_text *t = ps_text_new();
        ps_text_printf(t, "^");
        put_name(t, p->suffix, p->suffix_len);
        ps_text_printf(t, "$");
        status = add_rule(e, t, p->want, err);
    }
    return status;
}

/* Mark in `where` what a pattern finds: 2 for the GPU, 1 for the host, what was found before stays. */
static ps_status try_pattern(const emit *e, const char *pattern, bool gpu, uint8_t *where, ps_error *err) {
    regex_t regex;
    if (regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return ps_error_set(err, PS_E_INTERNAL, "llama.cpp", "a pattern is no regular expression: %.80s",
                            pattern);
    for (uint64_t i = 0; i < e->n; i++) {
        ps_str name = e->model->gguf->tensors[i].name;
        char text[256];
        if (where[i] || name.len >= sizeof text)
            continue;
        memcpy(text, name.data, name.len);
        text[name.len] = 0;
        if (regexec(&regex, text, 0, NULL, 0) == 0)
            where[i] = gpu ? 2 : 1;
    }
    regfree(&regex);
    return PS_OK;
}

/* All patterns, in the order they are given, on all names of the file: each tensor is where the plan has it. */
static ps_status try_rules(const emit *e, ps_error *err) {
    ps_status status = PS_OK;
    uint8_t *where = calloc(e->n + 1, 1);
    if (!where)
        return ps_error_set(err, PS_E_NOMEM, "llama.cpp", "out of memory");
    for (uint32_t l = 0; l < e->cpu_moe && !status; l++) {
        char pattern[64];
        snprintf(pattern, sizeof pattern, MOE_PATTERN, l);
        status = try_pattern(e, pattern, false, where, err);
    }
    for (uint32_t r = 0; r < e->n_rules && !status; r++)
        status = try_pattern(e, e->rules[r].pattern, e->rules[r].gpu, where, err);
    for (uint64_t i = 0; i < e->n && !status; i++) {
        const place *t = &e->tensors[i];
        if (t->used && t->want != (where[i] ? where[i] == 2 : t->base)) {
            ps_str name = e->model->gguf->tensors[i].name;
            char clean[64];
            size_t n = 0;
            for (; n < name.len && n + 1 < sizeof clean; n++)
                clean[n] = (char)(name.data[n] >= ' ' && name.data[n] <= '~' ? name.data[n] : '?');
            clean[n] = 0;
            status = ps_error_set(err, PS_E_UNSUPPORTED, clean, "no pattern tells it from other tensors");
        }
    }
    free(where);
    return status;
}

/* Layers as "0-3,7"; `in` by layer. */
static void put_layers(ps_text *t, const bool *in, uint32_t n) {
    const char *separator = "";
    for (uint32_t i = 0; i < n; i++) {
        uint32_t last = i;
        if (!in[i])
            continue;
        while (last + 1 < n && in[last + 1])
            last++;
        ps_text_printf(t, last > i ? "%s%u-%u" : "%s%u", separator, i, last);
        separator = ",";
        i = last;
    }
}

static unsigned long long llu(uint64_t v) {
    return v;
}

/* Tensors of which VRAM holds a part: one line per kind. */
static void say_partial(const emit *e, ps_text *t) {
    for (uint64_t i = 0; i < e->n; i++) {
        const place *p = &e->tensors[i];
        if (p->said || !p->used || p->want || !p->vram)
            continue;
        uint64_t bytes = 0, all = 0, n = 0;
        bool in[MAX_LAYERS] = {0}, columns = false;
        for (uint64_t k = i; k < e->n; k++) {
            place *q = &e->tensors[k];
            if (!q->used || q->want || !q->vram || (q->layer == NO_LAYER) != (p->layer == NO_LAYER) ||
                q->suffix_len != p->suffix_len || memcmp(q->suffix, p->suffix, p->suffix_len) != 0)
                continue;
            q->said = true;
            bytes = add(bytes, q->vram);
            all = add(all, q->need);
            columns = columns || q->by_columns;
            n++;
            if (q->layer != NO_LAYER)
                in[q->layer] = true;
        }
        ps_text_printf(t, "# not expressed: %llu of %llu bytes of %llu tensor%s ", llu(bytes), llu(all),
                       llu(n), n == 1 ? "" : "s");
        for (uint64_t k = 0; k < p->suffix_len; k++)
            ps_text_printf(t, "%c", p->suffix[k] > ' ' && p->suffix[k] <= '~' ? p->suffix[k] : '?');
        if (p->layer != NO_LAYER) {
            ps_text_printf(t, " (layers ");
            put_layers(t, in, e->model->n_layers);
            ps_text_printf(t, ")");
        }
        ps_text_printf(t, ": %s in part in VRAM in the plan, the whole tensor%s in host memory here\n",
                       p->experts ? "experts"
                       : columns  ? "columns"
                                  : "rows",
                       n == 1 ? "" : "s");
    }
}

static void say_kv(const emit *e, ps_text *t) {
    for (int vram = 1; vram >= 0; vram--) {
        bool in[MAX_LAYERS] = {0}, any = false;
        uint64_t bytes = 0;
        for (uint32_t l = 0; l < e->model->n_layers; l++) {
            bool here = e->model->n_layers - l <= e->gpu_layers,
                 there = e->level->kv[l].space == PS_SPACE_VRAM;
            if (here == there || there != (vram != 0))
                continue;
            in[l] = any = true;
            bytes = add(bytes, kv_bytes(e, l));
        }
        if (!any)
            continue;
        ps_text_printf(t, "# not expressed: %llu bytes of KV of layers ", llu(bytes));
        put_layers(t, in, e->model->n_layers);
        ps_text_printf(t, ": in %s in the plan, in %s here (-ngl counts layers from the last one)\n",
                       vram ? "VRAM" : "host memory", vram ? "host memory" : "VRAM");
    }
}

/* Bytes of a weight that an instruction reads or copies, in one layer. */
static uint64_t bytes_of(const emit *e, const ps_tier *tier, const ps_instr *in, uint32_t layer, int w) {
    const ps_weight *x = ps_model_weight(e->model, layer, in->w[w]);
    uint64_t rows, bytes;
    if (!x)
        return 0;
    rows = x->experts > 1 ? x->experts : x->rows;
    if (in->op == PS_OP_MOE_DISPATCH && in->part == PS_MOE_PART_NEAR)
        return x->experts ? x->bytes / x->experts * (tier->max_direct < rows ? tier->max_direct : rows) : 0;
    ps_weight_range range = {in->w[w], ps_role_get(in->w[w])->per_layer ? layer : 0, 0, rows, 0, 0};
    if ((w == 0 || in->op == PS_OP_MOE_DISPATCH) && in->n_rows) {
        range.row0 = in->row0;
        range.n_rows = in->n_rows;
    }
    if (w == 0 && in->n_cols && in->n_cols != x->cols) {
        range.col0 = in->col0;
        range.n_cols = in->n_cols;
    }
    return ps_weight_range_bytes(e->model, &range, &bytes, NULL) ? bytes : 0;
}

/* What a step of a tier takes from host memory by the bus. */
static void say_bus(const emit *e, const ps_tier *tier, ps_text *t) {
    const ps_program *p = &e->plan->programs[tier->program];
    uint64_t copied = 0, direct = 0,
             n_tiles = (tier->max_tokens + (uint64_t)PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
    for (uint32_t b = 0; b < p->n_blocks; b++)
        for (uint32_t l = 0; l < p->blocks[b].n_layers; l++)
            for (uint32_t i = p->blocks[b].instr0; i < p->blocks[b].instr0 + p->blocks[b].n_instrs; i++) {
                const ps_instr *in = &p->instrs[i];
                uint32_t layer = ps_instr_weight_layer(e->plan, in, p->blocks[b].layer0 + l);
                bool near = in->op == PS_OP_MOE_DISPATCH && in->part == PS_MOE_PART_NEAR;
                for (int w = 0; w < PS_OP_MAX_WEIGHTS && in->queue != PS_QUEUE_CPU; w++) {
                    if ((unsigned)in->w[w] >= PS_ROLE_COUNT)
                        continue;
                    uint64_t bytes = bytes_of(e, tier, in, layer, w), all;
                    if (in->op == PS_OP_COPY) {
                        uint64_t times = p->blocks[b].over_tiles && in->when == PS_WHEN_EVERY ? n_tiles : 1;
                        copied = add(copied, ps_mul_u64(bytes, times, &all) ? all : UINT64_MAX);
                    } else if (near || in->at[w] == PS_AT_HOST) {
                        direct = add(direct, bytes);
                    }
                }
            }
    if (direct)
        ps_text_printf(t,
                       "# not expressed: direct reads: in a step of %u token%s the GPU reads up to %llu "
                       "bytes of weights where "
                       "they lie in host memory; the CPU computes with them here\n",
                       tier->max_tokens, tier->max_tokens == 1 ? "" : "s", llu(direct));
    if (copied)
        ps_text_printf(
            t,
            "# not expressed: streaming: a step of %u token%s copies %llu bytes of weights through slots in "
            "VRAM; "
            "llama.cpp copies host weights for batches of 32 tokens and more, one tensor at a time\n",
            tier->max_tokens, tier->max_tokens == 1 ? "" : "s", llu(copied));
}

static void put_comments(const emit *e, ps_text *t) {
    const ps_level *l = e->level;
    uint64_t gpu = 0, host = 0, n = 0;
    for (uint64_t i = 0; i < e->n; i++) {
        const place *p = &e->tensors[i];
        gpu = add(gpu, p->want ? p->need : 0);
        host = add(host, p->used && !p->want ? p->need : 0);
        n += p->want;
    }
    if (e->model->tied_output && e->model->w[PS_ROLE_TOKEN_EMBD])
        host = add(host, e->tensors[e->model->w[PS_ROLE_TOKEN_EMBD]->tensor].want
                             ? e->model->w[PS_ROLE_TOKEN_EMBD]->bytes
                             : 0);
    char budget[sizeof l->budget];
    for (size_t i = 0; i < sizeof budget; i++)
        budget[i] =
            (char)(l->budget[i] == 0 || (l->budget[i] >= ' ' && l->budget[i] <= '~') ? l->budget[i] : '?');
    budget[sizeof budget - 1] = 0;
    ps_text_printf(t, "# llama.cpp flags for budget %s, context %llu, %u sequence%s, %u thread%s\n", budget,
                   llu(l->bucket_tokens), l->n_seqs, l->n_seqs == 1 ? "" : "s", l->n_threads,
                   l->n_threads == 1 ? "" : "s");
    ps_text_printf(t, "# use: grep -v '^#' THIS_FILE | xargs llama-server -m MODEL.gguf\n");
    ps_text_printf(t, "# weights on the GPU: %llu bytes of %llu whole tensors; in host memory: %llu bytes\n",
                   llu(gpu), llu(n), llu(host));
    ps_text_printf(t, "# patterns tried on the file's %llu tensor names\n", llu(e->n));
    if (!l->budget_bytes)
        return;
    ps_text_printf(
        t, "# CUDA0 is the first GPU's name in llama.cpp's CUDA backend; other backends have other names\n");
    ps_text_printf(t,
                   "# VRAM of the plan: %llu bytes of base, %llu of work arena, %llu of weights; llama.cpp "
                   "sizes its own "
                   "buffers\n",
                   llu(l->vram_base_bytes), llu(l->vram_work_bytes), llu(l->vram_weight_bytes));
    say_partial(e, t);
    say_kv(e, t);
    say_bus(e, &l->tiers[0], t);
    if (l->n_tiers > 1 && l->tiers[l->n_tiers - 1].program != l->tiers[0].program)
        say_bus(e, &l->tiers[l->n_tiers - 1], t);
}

static void put_flags(const emit *e, ps_text *t) {
    const ps_level *l = e->level;
    uint32_t most = l->tiers[l->n_tiers - 1].max_tokens;
    uint64_t context;
    if (!ps_mul_u64(l->bucket_tokens, l->n_seqs, &context))
        context = UINT64_MAX;
    if (l->budget_bytes)
        ps_text_printf(t, "-ngl %u\n", e->gpu_layers + 1);
    else
        ps_text_printf(t, "--device none\n-ngl 0\n");
    if (e->cpu_moe)
        ps_text_printf(t, "--n-cpu-moe %u\n", e->cpu_moe);
    for (uint32_t r = 0; r < e->n_rules; r++)
        ps_text_printf(t, "-ot '%s=%s'\n", e->rules[r].pattern, e->rules[r].gpu ? "CUDA0" : "CPU");
    ps_text_printf(t, "-c %llu\n", llu(context));
    /* Always: later servers take four sequences where none are asked for. */
    ps_text_printf(t, "-np %u\n-b %u\n-ub %u\n-t %u\n", l->n_seqs, most,
                   most < PS_TILE_TOKENS ? most : PS_TILE_TOKENS, l->n_threads);
}

ps_status ps_emit_llama_cpp(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err) {
    if (source->model->n_layers > MAX_LAYERS)
        return ps_error_set(err, PS_E_UNSUPPORTED, "llama.cpp", "holds %d layers, the model has %u",
                            MAX_LAYERS, source->model->n_layers);
    emit *e = calloc(1, sizeof *e);
    place *tensors = calloc(source->model->gguf->n_tensors + 1, sizeof *tensors);
    ps_status status = PS_OK;
    if (!e || !tensors) {
        status = ps_error_set(err, PS_E_NOMEM, "llama.cpp", "out of memory");
        goto done;
    }
    e->plan = source->plan;
    e->level = &source->plan->levels[source->level];
    e->model = source->model;
    e->tensors = tensors;
    e->n = source->model->gguf->n_tensors;
    for (uint64_t i = 0; i < e->n; i++)
        tensors[i].layer = NO_LAYER;
    status = find_places(e, err);
    if (status)
        goto done;
    choose_layers(e);
    place_by_layers(e);
    choose_cpu_moe(e);
    status = make_rules(e, err);
    if (!status)
        status = try_rules(e, err);
    if (status)
        goto done;
    ps_text *t = ps_text_new();
    put_comments(e, t);
    put_flags(e, t);
    *out = ps_text_end(t, out_size);
    if (!*out)
        status = ps_error_set(err, PS_E_NOMEM, "llama.cpp", "out of memory");
done:
    for (uint32_t r = 0; e && r < e->n_rules; r++)
        free(e->rules[r].pattern);
    free(tensors);
    free(e);
    return status;
}
