/* Plans of the planner, of every family and with every kind of model, and thousands of their mutants: what the checker accepts
 * an executor over shadow memory finds safe under every schedule (../schemas/plan_shadow.h). Levels change into each other with
 * what must stay resident where it is. PS_MUTANTS=10000 runs that many, PS_SEED=N others. */
#include <criterion/criterion.h>

#include "../schemas/plan_case.h"
#include "../schemas/plan_mutate.h"
#include "gpu_case.h"

#define MIB ((uint64_t)1 << 20)

static uint64_t first_seed(uint64_t usual) {
    const char *want = getenv("PS_SEED");
    return want != NULL ? usual + strtoull(want, NULL, 10) * 1000003 : usual;
}

/* With weights enough that a budget holds some of them, and the smallest activations. */
static const mb_shape wide = {.arch = "llama",
                              .n_layers = 3,
                              .n_embd = 256,
                              .n_ff = 8192,
                              .n_head = 4,
                              .n_head_kv = 2,
                              .head_dim = 16,
                              .n_vocab = 128,
                              .rope_freqs = 1,
                              .ffn_bias = 1,
                              .type = PS_DTYPE_F16,
                              .output_type = PS_DTYPE_Q8_0};
static const mb_shape mixture = {.arch = "qwen3moe",
                                 .n_layers = 3,
                                 .n_embd = 256,
                                 .n_head = 4,
                                 .n_head_kv = 2,
                                 .head_dim = 32,
                                 .n_vocab = 128,
                                 .n_expert = 16,
                                 .n_expert_used = 2,
                                 .n_ff_expert = 1024,
                                 .qk_norm = 1,
                                 .type = PS_DTYPE_Q8_0,
                                 .output_type = PS_DTYPE_F16};

/* The least budget of a family. */
static uint64_t least(ps_plan_request r, const ps_level_request *wanted) {
    ps_level_request level = *wanted;
    ps_shortage s = {0};
    ps_plan *plan = NULL;
    level.budget_bytes = MIB;
    r.levels = &level;
    r.n_levels = 1;
    cr_assert_eq(ps_plan_build(&r, &plan, &s, NULL), PS_E_INFEASIBLE);
    return s.nearest_budget_bytes;
}

/* Of a family, or for the host alone where that is PS_FAMILY_COUNT: with the least budget, and with more. */
static ps_plan *plan_of(const gpu_case *c, int family, uint64_t context, uint32_t seqs, uint64_t max_step) {
    bool gpu = family < PS_FAMILY_COUNT;
    ps_level_request levels[2] = {gc_level(0, context, seqs, 2)};
    ps_plan_request r = gc_request(c, levels, 1);
    ps_plan *plan = NULL;
    ps_error e = {0};
    r.forced = gpu;
    r.family = (ps_family)(family % PS_FAMILY_COUNT);
    r.max_step_tokens = max_step;
    if (gpu) {
        uint64_t bytes = least(r, levels);
        levels[0] = gc_level(bytes, context, seqs, 2);
        levels[1] = gc_level(bytes + 16 * MIB, context, seqs, 2);
        r.n_levels = 2;
    }
    cr_assert_eq(ps_plan_build(&r, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
    return plan;
}

static const char *name_of(int family) {
    return family < PS_FAMILY_COUNT ? ps_family_name((ps_family)family) : "host";
}

/* What instructions of the plans do, so that nothing is left out unseen. */
typedef struct covered {
    uint32_t copies, ahead, slots, direct, resident, near, ranges, columns, adds, kv_slots, kv_vram, tiles;
} covered;

static void cover(const ps_plan *p, covered *v) {
    for (uint32_t g = 0; g < p->n_programs; g++) {
        for (uint32_t i = 0; i < p->programs[g].n_instrs; i++) {
            const ps_instr *in = &p->programs[g].instrs[i];
            bool weight = in->w[0] != PS_ROLE_NONE && in->op != PS_OP_COPY;
            v->copies += in->op == PS_OP_COPY && in->w[0] != PS_ROLE_NONE;
            v->ahead += in->ahead;
            v->slots += weight && in->at[0] >= PS_AT_SLOT;
            v->direct += weight && in->queue == PS_QUEUE_GPU && in->at[0] == PS_AT_HOST;
            v->resident += weight && in->at[0] == PS_AT_VRAM;
            v->near += in->part == PS_MOE_PART_NEAR;
            v->ranges += weight && in->n_rows != 0;
            v->columns += weight && in->n_cols != 0;
            v->adds += in->op == PS_OP_ADD;
            v->kv_slots += in->kv != PS_KV_HOME;
        }
        for (uint32_t b = 0; b < p->programs[g].n_blocks; b++)
            v->tiles += p->programs[g].blocks[b].over_tiles;
    }
    for (uint32_t l = 0; l < p->n_levels; l++)
        for (uint32_t k = 0; k < p->n_layers; k++)
            v->kv_vram += p->levels[l].kv[k].space == PS_SPACE_VRAM;
}

static void judge_plan(const ps_plan *p, const ps_model *m, uint32_t n_schedules, const char *what) {
    char why[200];
    for (uint32_t l = 0; l < p->n_levels; l++) {
        judge_level(p, &p->levels[l], m, n_schedules, 11, why);
        cr_assert_str_eq(why, "", "%s, level %u: %s", what, l, why);
    }
}

static void run_mutants(const ps_plan *plan, const ps_model *m, uint32_t n_mutants, uint64_t seed, tally *n) {
    ps_error err;
    uint8_t *binary;
    uint64_t size;
    cr_assert_eq(ps_plan_to_binary(plan, &binary, &size, &err), PS_OK, "%s: %s", err.subject, err.message);
    for (uint32_t k = 0; k < n_mutants; k++) {
        ps_plan *p;
        cr_assert_eq(ps_plan_parse(binary, size, "p", &p, &err), PS_OK);
        ps_level *l = &p->levels[k % p->n_levels];
        for (uint64_t changes = 1 + below(&seed, 2); changes != 0; changes--)
            mutate(p, l, &seed);
        judge_mutant(p, l, m, 1, seed, n);
        ps_plan_free(p);
    }
    free(binary);
}

static void families(const mb_shape *shape, uint32_t n_mutants, tally *n, covered *v, uint64_t seed) {
    gpu_case c = gc_shape(shape);
    for (int family = 0; family <= PS_FAMILY_COUNT; family++)
        for (uint32_t seqs = 1; seqs <= 3; seqs += 2) {
            ps_plan *plan = plan_of(&c, family, 64, seqs, 5);
            cover(plan, v);
            judge_plan(plan, c.model, 2, name_of(family));
            run_mutants(plan, c.model, n_mutants, seed + (uint64_t)family * 2 + seqs, n);
            ps_plan_free(plan);
        }
    gc_close(&c);
}

/* A plan of a family with as few waits as the checker lets through is safe, and so are its mutants that it lets through. */
static void relaxed(const mb_shape *shape, int family, tally *n, uint64_t seed) {
    gpu_case c = gc_shape(shape);
    ps_plan *plan = plan_of(&c, family, 64, 1, 5);
    plan->levels[0].tiers[0] = plan->levels[0].tiers[plan->levels[0].n_tiers - 1];
    plan->levels[0].n_tiers = plan->n_levels = 1;
    uint32_t n_free = relax(plan, plan->levels, c.model);
    cr_assert_gt(n_free, 0, "%s: %u wait for nothing", name_of(family), n_free);
    judge_plan(plan, c.model, 2, name_of(family));
    run_mutants(plan, c.model, mutants(10), seed, n);
    ps_plan_free(plan);
    gc_close(&c);
}

static void expect_both(const char *what, const tally *n) {
    uint32_t all = n->accepted + n->refused;
    show_tally(what, n);
    if (all >= 100) /* fewer, where sanitizers are slow, may by chance be none */
        cr_assert_gt(n->accepted * 12, all, "%u accepted, %u refused", n->accepted, n->refused);
    cr_assert_gt(n->refused * 3, all, "%u accepted, %u refused", n->accepted, n->refused);
    cr_assert_geq(n->refused_unsafe * 2, n->refused_judged, "%u of %u", n->refused_unsafe, n->refused_judged);
}

Test(plan_mutants, small) {
    static const mb_shape *const shapes[] = {&plan_case_wide, &mb_qwen3moe_small, &mb_gemma3_small,
                                             &mb_qwen3_small, &plan_case_biased};
    tally n = {0};
    covered v = {0};
    for (uint64_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        families(shapes[i], mutants(10), &n, &v, first_seed(i));
    expect_both("planned, small", &n);
}
Test(plan_mutants, dense) {
    tally n = {0};
    covered v = {0};
    families(&wide, mutants(10), &n, &v, first_seed(101));
    expect_both("planned, dense", &n);
    cr_assert(v.copies && v.ahead && v.slots && v.direct && v.resident && v.ranges && v.columns && v.adds);
}
Test(plan_mutants, mixtures) {
    tally n = {0};
    covered v = {0};
    families(&mixture, mutants(10), &n, &v, first_seed(103));
    expect_both("planned, mixtures", &n);
    cr_assert(v.copies && v.ahead && v.slots && v.resident && v.near && v.ranges && v.adds && v.kv_vram);
}

Test(plan_mutants, few_waits) {
    static const int of[] = {PS_FAMILY_GPU, PS_FAMILY_DYNAMIC, PS_FAMILY_SPLIT, PS_FAMILY_COUNT};
    tally n = {0};
    for (uint64_t i = 0; i < 4; i++) {
        relaxed(&wide, of[i], &n, first_seed(300) + i);
        relaxed(&mixture, of[i], &n, first_seed(310) + i);
        relaxed(&mb_gemma3_small, of[i], &n, first_seed(320) + i);
    }
    expect_both("planned, with few waits", &n);
}

/* Above 2048 tokens: blocks over tiles. Slow to judge, so few of them, and the largest tier alone. */
Test(plan_mutants, tiles) {
    static const int of[] = {PS_FAMILY_DYNAMIC, PS_FAMILY_SPLIT, PS_FAMILY_COUNT};
    tally n = {0};
    covered v = {0};
    gpu_case c = gc_shape(&mb_qwen3moe_small);
    for (int i = 0; i < 3; i++) {
        ps_plan *plan = plan_of(&c, of[i], 4200, 1, 4200);
        cover(plan, &v);
        for (uint32_t l = 0; l < plan->n_levels; l++) {
            plan->levels[l].tiers[0] = plan->levels[l].tiers[plan->levels[l].n_tiers - 1];
            plan->levels[l].n_tiers = 1;
        }
        judge_plan(plan, c.model, 1, name_of(of[i]));
        run_mutants(plan, c.model, mutants(6), first_seed(200) + (uint64_t)i, &n);
        ps_plan_free(plan);
    }
    gc_close(&c);
    show_tally("planned, over tiles", &n);
    cr_assert(v.tiles && n.refused != 0);
}

/* ---- levels that change into each other ---- */

enum { UNIT = PS_RESIDENT_ALIGN };

/* What a unit of the weight arena holds, piece by piece from `first` on. */
static void load(uint64_t *arena, const ps_model *m, const ps_level *l, uint32_t first) {
    for (uint32_t i = first; i < l->n_resident; i++) {
        const ps_resident *r = &l->resident[i];
        uint64_t bytes;
        cr_assert(ps_weight_range_bytes(m, &r->range, &bytes, NULL));
        for (uint64_t k = 0; k * UNIT < bytes; k++)
            arena[r->offset / UNIT + k] = shadow_weight_label(&r->range, k);
    }
}

static bool holds(const uint64_t *arena, const ps_model *m, const ps_level *l) {
    for (uint32_t i = 0; i < l->n_resident; i++) {
        const ps_resident *r = &l->resident[i];
        uint64_t bytes;
        cr_assert(ps_weight_range_bytes(m, &r->range, &bytes, NULL));
        for (uint64_t k = 0; k * UNIT < bytes; k++)
            if (arena[r->offset / UNIT + k] != shadow_weight_label(&r->range, k))
                return false;
    }
    return true;
}

/* Pieces are inside the arena and the model, and apart. */
static bool sound(const ps_model *m, const ps_level *l) {
    uint64_t end = 0, bytes;
    for (uint32_t i = 0; i < l->n_resident; i++) {
        const ps_resident *r = &l->resident[i];
        if (r->offset % UNIT != 0 || r->offset < end || !ps_weight_range_bytes(m, &r->range, &bytes, NULL) ||
            r->offset > l->vram_weight_bytes || bytes > l->vram_weight_bytes - r->offset)
            return false;
        end = r->offset + bytes;
    }
    return true;
}

/* What is behind the new arena is given back, pieces that both have stay, the others are loaded. */
static bool change_is_safe(const ps_model *m, const ps_level *from, const ps_level *to) {
    uint64_t bytes =
        from->vram_weight_bytes > to->vram_weight_bytes ? from->vram_weight_bytes : to->vram_weight_bytes;
    uint64_t *arena = calloc(bytes / UNIT + 1, sizeof *arena);
    cr_assert_not_null(arena);
    load(arena, m, from, 0);
    memset(arena + to->vram_weight_bytes / UNIT, 0, (bytes - to->vram_weight_bytes) / UNIT * sizeof *arena);
    load(arena, m, to, from->n_resident < to->n_resident ? from->n_resident : to->n_resident);
    bool safe = holds(arena, m, to) && from->n_seqs <= to->n_seqs;
    free(arena);
    return safe;
}

static void mutate_residents(ps_level *l, uint64_t *seed) {
    ps_resident *r = &l->resident[below(seed, l->n_resident)], *x = &l->resident[below(seed, l->n_resident)];
    ps_weight_range range = r->range;
    switch (below(seed, 7)) {
    case 0:
        r->offset += UNIT * below(seed, 3) - UNIT;
        break;
    case 1:
        r->range.n_rows -= 1;
        break;
    case 2:
        r->range = x->range;
        x->range = range;
        break;
    case 3:
        l->n_resident -= (uint32_t)below(seed, 3);
        break;
    case 4:
        l->vram_weight_bytes += PS_VRAM_ALIGN * below(seed, 3) - PS_VRAM_ALIGN;
        break;
    case 5:
        r->range.layer = x->range.layer;
        break;
    default:
        l->n_seqs += (uint32_t)below(seed, 3) - 1;
        break;
    }
}

Test(plan_mutants, changes_of_level) {
    static const mb_shape *const shapes[] = {&wide, &mixture};
    uint32_t accepted = 0, refused = 0, unsafe = 0;
    uint64_t seed = first_seed(4242);
    for (int i = 0; i < 2; i++) {
        gpu_case c = gc_shape(shapes[i]);
        ps_plan *plan = plan_of(&c, i == 0 ? PS_FAMILY_STATIC : PS_FAMILY_SPLIT, 64, 2, 5), *p;
        ps_error err = {0};
        uint8_t *binary;
        uint64_t size;
        cr_assert_eq(ps_plan_to_binary(plan, &binary, &size, &err), PS_OK);
        cr_assert_lt(plan->levels[0].n_resident, plan->levels[1].n_resident);
        for (uint32_t k = 0; k < mutants(200); k++) {
            cr_assert_eq(ps_plan_parse(binary, size, "p", &p, &err), PS_OK);
            const ps_level *from = &p->levels[k % 2], *to = &p->levels[1 - k % 2];
            if (k > 1)
                mutate_residents(&p->levels[below(&seed, 2)], &seed);
            bool both = sound(c.model, from) && sound(c.model, to);
            bool safe = both && change_is_safe(c.model, from, to);
            if (ps_plan_check_change(p, from, to, c.model, &err) == PS_OK) {
                accepted += both;
                cr_assert(!both || safe, "accepted a change that is not safe (mutant %u)", k);
            } else {
                cr_assert_gt(k, 1, "%s", err.message);
                refused++;
                unsafe += both && !safe;
            }
            ps_plan_free(p);
        }
        free(binary);
        ps_plan_free(plan);
        gc_close(&c);
    }
    fprintf(stderr, "changes of level: %u accepted, %u refused, %u of them unsafe\n", accepted, refused,
            unsafe);
    cr_assert(accepted > 20 && refused > 20 && 4 * unsafe > refused);
}
