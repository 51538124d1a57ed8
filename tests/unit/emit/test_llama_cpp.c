/* Flags for llama.cpp: what they put on the GPU, found by a model of llama.cpp's loader of the test's own, is what the plan
 * holds there whole, for every architecture and family, with a tied head and with fused tensors. */
#include <criterion/criterion.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "../plan/gpu_case.h"
#include "emit/emit.h"

#define MIB ((uint64_t)1 << 20)

typedef struct flags {
    uint32_t ngl, n_cpu_moe, n_rules;
    uint64_t c, np, b, ub, t;
    struct {
        regex_t regex;
        bool gpu;
    } rules[64];
} flags;

static uint64_t number(const char *line, const char *flag, uint64_t old) {
    size_t n = strlen(flag);
    return strncmp(line, flag, n) == 0 && line[n] == ' ' ? strtoull(line + n + 1, NULL, 10) : old;
}

/* Every line is a comment or one flag; patterns hold nothing that the option or a shell would take apart. */
static flags parse(char *text) {
    flags f = {0};
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (line[0] == '#')
            continue;
        cr_assert_eq(line[0], '-', "%s", line);
        f.ngl = (uint32_t)number(line, "-ngl", f.ngl);
        f.n_cpu_moe = (uint32_t)number(line, "--n-cpu-moe", f.n_cpu_moe);
        f.c = number(line, "-c", f.c);
        f.np = number(line, "-np", f.np);
        f.b = number(line, "-b", f.b);
        f.ub = number(line, "-ub", f.ub);
        f.t = number(line, "-t", f.t);
        if (strncmp(line, "-ot '", 5) != 0)
            continue;
        char *pattern = line + 5, *value = strchr(pattern, '='), *end = value ? strchr(value, '\'') : NULL;
        cr_assert(end && end[1] == 0 && f.n_rules < 64, "%s", line);
        *value++ = *end = 0;
        cr_assert_null(strpbrk(pattern, ",=' \t\""), "%s", pattern);
        cr_assert(strcmp(value, "CPU") == 0 || strcmp(value, "CUDA0") == 0, "%s", value);
        cr_assert_eq(regcomp(&f.rules[f.n_rules].regex, pattern, REG_EXTENDED | REG_NOSUB), 0, "%s", pattern);
        f.rules[f.n_rules++].gpu = strcmp(value, "CUDA0") == 0;
    }
    return f;
}

/* Where llama.cpp puts a tensor of that name: layer `layer` of the model, -1 for the input, n_layers for the output. */
static bool loads_on_gpu(const flags *f, const char *name, int layer, int n_layers, bool new_moe) {
    for (uint32_t i = 0; i < f->n_cpu_moe; i++) {
        char pattern[80];
        regex_t regex;
        snprintf(pattern, sizeof pattern,
                 new_moe ? "blk\\.%u\\.ffn_(up|down|gate|gate_up)_(ch|)exps"
                         : "blk\\.%u\\.ffn_(up|down|gate)_exps",
                 i);
        cr_assert_eq(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
        int found = regexec(&regex, name, 0, NULL, 0);
        regfree(&regex);
        if (found == 0)
            return false;
    }
    for (uint32_t i = 0; i < f->n_rules; i++)
        if (regexec(&f->rules[i].regex, name, 0, NULL, 0) == 0)
            return f->rules[i].gpu;
    int start = n_layers + 1 - (int)f->ngl;
    return layer >= 0 && layer >= (start > 0 ? start : 0);
}

/* Bytes of a tensor's weights, and how many of them the level holds. The planner's pieces are disjoint. A tied head counts, not
 * the embedding in the same tensor. */
static void held(const ps_model *m, const ps_level *l, uint64_t tensor, uint64_t *all, uint64_t *in_vram) {
    *all = *in_vram = 0;
    for (int r = 0; r < PS_ROLE_COUNT; r++)
        for (uint32_t i = 0; i < (ps_role_get((ps_role)r)->per_layer ? m->n_layers : 1); i++) {
            const ps_weight *w = ps_model_weight(m, i, (ps_role)r);
            if (!w || w->tensor != tensor || (r == PS_ROLE_TOKEN_EMBD && m->tied_output))
                continue;
            *all += w->bytes;
            for (uint32_t p = 0; p < l->n_resident; p++) {
                uint64_t bytes;
                if ((int)l->resident[p].range.role != r || l->resident[p].range.layer != i)
                    continue;
                cr_assert(ps_weight_range_bytes(m, &l->resident[p].range, &bytes, NULL));
                *in_vram += bytes;
            }
        }
}

/* Bytes of KV in VRAM if the last n layers are there, and bytes that are elsewhere than in the plan. */
static uint64_t kv_of(const ps_plan *plan, const ps_level *l, uint32_t n, uint64_t *elsewhere) {
    uint64_t vram = 0;
    *elsewhere = 0;
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        bool here = i + n >= plan->n_layers;
        vram += here ? l->kv[i].bytes * l->n_seqs : 0;
        *elsewhere += here != (l->kv[i].space == PS_SPACE_VRAM) ? l->kv[i].bytes * l->n_seqs : 0;
    }
    return vram;
}

/* No other -ngl puts more of the KV where the plan has it within the plan's VRAM; what is elsewhere is said. */
static void check_kv(const ps_plan *plan, const ps_level *l, uint32_t ngl, const char *text,
                     const char *what) {
    uint64_t planned = 0, elsewhere, best;
    cr_assert(ngl >= 1 && ngl <= plan->n_layers + 1, "%s: -ngl %u", what, ngl);
    for (uint32_t i = 0; i < plan->n_layers; i++)
        planned += l->kv[i].space == PS_SPACE_VRAM ? l->kv[i].bytes * l->n_seqs : 0;
    cr_assert_leq(kv_of(plan, l, ngl - 1, &best), planned, "%s", what);
    for (uint32_t n = 0; n <= plan->n_layers; n++)
        cr_assert(kv_of(plan, l, n, &elsewhere) > planned || elsewhere >= best, "%s: -ngl %u, not %u", what,
                  n + 1, ngl);
    cr_assert_eq(best != 0, strstr(text, "bytes of KV") != NULL, "%s\n%s", what, text);
}

typedef struct seen {
    uint64_t whole, partial, on_gpu, rules, moe;
} seen;

/* Tensor by tensor, and in bytes. */
static seen compare(const ps_plan *plan, uint32_t level, const ps_model *m, const char *what) {
    const ps_level *l = &plan->levels[level];
    seen s = {0};
    char *text = NULL;
    uint64_t size;
    ps_error e = {0};
    ps_emit_source source = {.plan = plan, .model = m, .level = level};
    cr_assert_eq(ps_emit_llama_cpp(&source, &text, &size, &e), PS_OK, "%s: %s: %s", what, e.subject,
                 e.message);
    cr_assert_eq(strlen(text), size);
    char *copy = strdup(text);
    flags f = parse(copy);
    for (uint64_t i = 0; i < m->gguf->n_tensors; i++) {
        const ps_gguf_tensor *t = &m->gguf->tensors[i];
        char name[128];
        int layer = (int)m->n_layers;
        uint64_t all, in_vram;
        snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.data);
        sscanf(name, "blk.%d.", &layer);
        if (strncmp(name, "token_embd.", 11) == 0 && !m->tied_output)
            layer = -1;
        held(m, l, i, &all, &in_vram);
        for (int new_moe = 0; new_moe < 2; new_moe++) {
            bool gpu = loads_on_gpu(&f, name, layer, (int)m->n_layers, new_moe);
            if (strncmp(name, "rope_freqs.", 11) == 0) /* a copy with each layer: all of them */
                cr_assert_eq(gpu, loads_on_gpu(&f, name, 0, (int)m->n_layers, new_moe), "%s: %s", what, name);
            cr_assert_eq(gpu, all != 0 && in_vram == all, "%s: %s: %s\n%s", what, name,
                         gpu ? "on the GPU" : "not on the GPU", text);
            s.on_gpu += gpu && new_moe ? all : 0;
        }
        s.whole += in_vram == all ? in_vram : 0;
        s.partial += in_vram == all ? 0 : in_vram;
    }
    cr_assert_eq(s.whole, s.on_gpu, "%s", what);
    s.rules = f.n_rules;
    s.moe = f.n_cpu_moe;
    cr_assert_eq(f.c, l->bucket_tokens * l->n_seqs);
    cr_assert_eq(f.np, l->n_seqs);
    cr_assert_eq(f.t, l->n_threads);
    cr_assert(f.b == l->tiers[l->n_tiers - 1].max_tokens && f.ub <= f.b && f.ub <= PS_TILE_TOKENS);
    cr_assert((s.partial != 0) == (strstr(text, "in part in VRAM") != NULL), "%s\n%s", what, text);
    if (!l->budget_bytes)
        cr_assert(f.ngl == 0 && f.n_rules == 0 && strstr(text, "--device none"), "%s", text);
    else
        check_kv(plan, l, f.ngl, text, what);
    for (uint32_t i = 0; i < f.n_rules; i++)
        regfree(&f.rules[i].regex);
    free(copy);
    free(text);
    return s;
}

/* All families and budgets; what was seen of them, added up. */
static seen families(const mb_shape *shape, const uint64_t *budgets, uint32_t n) {
    gpu_case c = gc_shape(shape);
    seen sum = {0};
    for (int f = 0; f < PS_FAMILY_COUNT; f++) {
        ps_level_request levels[8];
        for (uint32_t i = 0; i < n; i++)
            levels[i] = gc_level(budgets[i], 8192, f % 2 ? 2 : 1, 8);
        if (budgets[0] == 0)
            snprintf(levels[0].budget, sizeof levels[0].budget, "host");
        ps_plan_request r = gc_request(&c, levels, n);
        r.forced = true;
        r.family = (ps_family)f;
        ps_plan *plan = NULL;
        ps_error e = {0};
        cr_assert_eq(ps_plan_build(&r, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
        for (uint32_t i = 0; i < plan->n_levels; i++) {
            char what[64];
            snprintf(what, sizeof what, "%s, %s, %s", shape->arch, ps_family_name(r.family),
                     plan->levels[i].budget);
            seen s = compare(plan, i, c.model, what);
            sum.whole += s.whole;
            sum.partial += s.partial;
            sum.rules += s.rules;
            sum.moe += s.moe;
        }
        ps_plan_free(plan);
    }
    gc_close(&c);
    return sum;
}

Test(llama_cpp, small_models) {
    static const mb_shape *const shapes[] = {&mb_llama_small, &mb_qwen3_small, &mb_qwen3moe_small,
                                             &mb_gemma3_small};
    static const uint64_t budgets[] = {0, 760 * MIB, 1000 * MIB};
    for (int i = 0; i < 4; i++)
        cr_assert_gt(families(shapes[i], budgets, 3).whole, 0);
}

Test(llama_cpp, dense_8b) {
    static const uint64_t budgets[] = {0, 1300 * MIB, 2048 * MIB, 4096 * MIB, 12288 * MIB};
    seen s = families(&mb_llama3_8b, budgets, 5);
    cr_assert(s.whole && s.partial && s.rules);
}

/* A tied head in part, and as a whole. */
static mb_shape tied_8b(void) {
    mb_shape s = mb_llama3_8b;
    s.tied = 1;
    return s;
}
Test(llama_cpp, tied_8b) {
    static const uint64_t budgets[] = {1300 * MIB, 3000 * MIB, 3900 * MIB, 12288 * MIB};
    mb_shape shape = tied_8b();
    seen s = families(&shape, budgets, 4);
    cr_assert(s.whole && s.partial && s.rules);
}

Test(llama_cpp, mixture_30b) {
    static const uint64_t budgets[] = {1500 * MIB, 2800 * MIB, 8800 * MIB, 30000 * MIB};
    seen s = families(&mb_qwen3_30b_a3b, budgets, 4);
    cr_assert(s.whole && s.partial && s.moe);
}

Test(llama_cpp, gemma_270m) {
    static const uint64_t budgets[] = {760 * MIB, 900 * MIB, 1500 * MIB};
    cr_assert_gt(families(&mb_gemma3_270m, budgets, 3).whole, 0);
}

/* A model whose file has q, k and v in one tensor of a layer, and gate and up experts in one. */
typedef struct fused {
    ps_model model;
    ps_gguf gguf;
    ps_gguf_tensor *tensors;
    ps_layer *layers;
    ps_weight *weights;
    char (*names)[64];
} fused;

static void fuse(fused *f, const ps_model *m) {
    static const struct {
        const char *from, *to;
    } same[] = {{"attn_q", "attn_qkv"},
                {"attn_k", "attn_qkv"},
                {"attn_v", "attn_qkv"},
                {"ffn_gate", "ffn_up"}, /* both in one, as some dense models have them */
                {"ffn_gate_exps", "ffn_gate_up_exps"},
                {"ffn_up_exps", "ffn_gate_up_exps"}};
    const ps_gguf *g = m->gguf;
    uint32_t *map = calloc(g->n_tensors, sizeof *map), n = 0, n_weights = 0;
    f->tensors = calloc(g->n_tensors, sizeof *f->tensors);
    f->names = calloc(g->n_tensors, sizeof *f->names);
    f->layers = calloc(m->n_layers, sizeof *f->layers);
    f->weights = calloc((size_t)(m->n_layers + 1) * PS_ROLE_COUNT, sizeof *f->weights);
    cr_assert(map && f->tensors && f->names && f->layers && f->weights);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        char name[64], to[64], rest[64];
        uint32_t layer, k;
        snprintf(name, sizeof name, "%.*s", (int)g->tensors[i].name.len, g->tensors[i].name.data);
        snprintf(to, sizeof to, "%s", name);
        if (sscanf(name, "blk.%u.%63[a-z_0-9].weight", &layer, rest) == 2)
            for (size_t r = 0; r < sizeof same / sizeof same[0]; r++)
                if (strcmp(rest, same[r].from) == 0)
                    snprintf(to, sizeof to, "blk.%u.%s.weight", layer, same[r].to);
        for (k = 0; k < n && strcmp(f->names[k], to) != 0; k++)
            ;
        if (k == n) {
            snprintf(f->names[n], sizeof f->names[n], "%s", to);
            f->tensors[n] = g->tensors[i];
            f->tensors[n].name = (ps_str){f->names[n], strlen(to)};
            f->tensors[n++].bytes = 0;
        }
        f->tensors[k].bytes += g->tensors[i].bytes;
        map[i] = k;
    }
    f->gguf = *g;
    f->gguf.n_tensors = n;
    f->gguf.tensors = f->tensors;
    f->model = *m;
    f->model.gguf = &f->gguf;
    f->model.layers = f->layers;
    memcpy(f->layers, m->layers, m->n_layers * sizeof *f->layers);
    for (uint32_t l = 0; l <= m->n_layers; l++)
        for (int r = 0; r < PS_ROLE_COUNT; r++) {
            const ps_weight **w = l < m->n_layers ? &f->layers[l].w[r] : &f->model.w[r];
            if (!*w)
                continue;
            f->weights[n_weights] = **w;
            f->weights[n_weights].tensor = map[(*w)->tensor];
            *w = &f->weights[n_weights++];
        }
    free(map);
}

static void unfuse(fused *f) {
    free(f->tensors);
    free(f->names);
    free(f->layers);
    free(f->weights);
}

static void fused_model(const mb_shape *shape) {
    gpu_case c = gc_shape(shape);
    ps_level_request levels[] = {gc_level(1300 * MIB, 4096, 1, 8), gc_level(8800 * MIB, 4096, 1, 8),
                                 gc_level(30000 * MIB, 4096, 1, 8)};
    ps_plan_request r = gc_request(&c, levels, 3);
    ps_plan *plan = NULL;
    ps_error e = {0};
    fused f;
    cr_assert_eq(ps_plan_build(&r, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
    fuse(&f, c.model);
    cr_assert_eq(f.gguf.n_tensors, c.gguf->n_tensors - 3 * c.model->n_layers);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_gt(compare(plan, i, &f.model, "fused").whole, 0);
    /* A fused tensor of which one weight is missing is none that is there. */
    ps_level *l = &plan->levels[2];
    uint64_t before = compare(plan, 2, &f.model, "fused").on_gpu;
    for (uint32_t i = 0; i < l->n_resident; i++)
        if (l->resident[i].range.role == PS_ROLE_ATTN_K && l->resident[i].range.layer == 5) {
            memmove(&l->resident[i], &l->resident[i + 1], (l->n_resident - i - 1) * sizeof *l->resident);
            l->n_resident--;
            break;
        }
    seen s = compare(plan, 2, &f.model, "fused, without k");
    uint64_t all, in_vram;
    for (uint64_t i = 0; i < f.gguf.n_tensors; i++)
        if (strcmp(f.names[i], "blk.5.attn_qkv.weight") == 0)
            held(&f.model, l, i, &all, &in_vram);
    cr_assert_eq(s.on_gpu, before - all);
    cr_assert(s.partial == in_vram && s.rules >= 1);
    unfuse(&f);
    ps_plan_free(plan);
    gc_close(&c);
}

Test(llama_cpp, fused_names) {
    fused_model(&mb_qwen3_30b_a3b);
    fused_model(&mb_llama3_8b);
}

/* Names whose odd bytes a pattern cannot say: refused where that would move another tensor, quoted otherwise. */
Test(llama_cpp, hostile_names) {
    gpu_case c = gc_shape(&mb_llama3_8b);
    ps_level_request level = gc_level(2048 * MIB, 4096, 1, 8);
    ps_plan_request r = gc_request(&c, &level, 1);
    ps_plan *plan = NULL;
    ps_error e = {0};
    fused f;
    cr_assert_eq(ps_plan_build(&r, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
    fuse(&f, c.model);
    uint32_t down = UINT32_MAX, norm = UINT32_MAX;
    for (uint32_t i = 0; i < f.gguf.n_tensors; i++) {
        down = strcmp(f.names[i], "blk.31.ffn_down.weight") == 0 ? i : down;
        norm = strcmp(f.names[i], "blk.31.ffn_norm.weight") == 0 ? i : norm;
    }
    cr_assert(down != UINT32_MAX && norm != UINT32_MAX);
    f.tensors[down].name = (ps_str){"blk.31.x'$(ls),=\n", 16};
    compare(plan, 0, &f.model, "an odd name");
    f.tensors[norm].name = (ps_str){"blk.31.x\"$(ls),=\n", 16};
    char *out = NULL;
    uint64_t size;
    ps_emit_source source = {.plan = plan, .model = &f.model};
    cr_assert_eq(ps_emit_llama_cpp(&source, &out, &size, &e), PS_E_UNSUPPORTED);
    cr_assert(strstr(e.message, "no pattern") && !strchr(e.subject, '\n'), "%s: %s", e.subject, e.message);
    f.tensors[down].name = (ps_str){"ffn_down", 8};
    cr_assert_eq(ps_emit_llama_cpp(&source, &out, &size, &e), PS_E_UNSUPPORTED);
    cr_assert(strstr(e.message, "not named blk.31."), "%s", e.message);
    unfuse(&f);
    ps_plan_free(plan);
    gc_close(&c);
}
