/* What the checker accepts is safe under every schedule that was tried, and what is unsafe in the ways that
 * mutations make it is refused: thousands of mutants of valid plans, fixed seeds, judged by plan_shadow.h. */
#include <criterion/criterion.h>
#include <string.h>

#include "core/hash.h"
#include "plan_case.h"
#include "plan_shadow.h"

/* Of each of a dozen plans with a GPU; a hunt compiles this file with more of them and another seed. */
#ifndef MUTANTS
#define MUTANTS 150
#endif
#ifndef SEED
#define SEED 4711
#endif

static const mb_shape *const shapes[] = {&mb_llama_small, &mb_qwen3_small, &mb_qwen3moe_small,
                                         &mb_gemma3_small};

/* Small steps, so that the judge is quick. */
static const pb_config small_levels[] = {
    {.bucket_tokens = 48, .n_seqs = 2, .n_threads = 2, .n_tiers = 2, .tiers = {1, 6}, .programs = {0, 0}},
    {.gpu = true,
     .bucket_tokens = 64,
     .n_seqs = 1,
     .n_threads = 2,
     .n_tiers = 2,
     .tiers = {1, 5},
     .programs = {2, 2}},
};
static const pb_config tiled_levels[] = {
    {.bucket_tokens = 4200,
     .n_seqs = 1,
     .n_threads = 2,
     .n_tiers = 2,
     .tiers = {2048, 4100},
     .programs = {1, 1}},
};

static const char *judge_level(const ps_plan *p, const ps_level *l, const ps_model *m, uint32_t n_schedules,
                               uint64_t seed, char buf[200]) {
    buf[0] = '\0';
    for (uint32_t t = 0; t < l->n_tiers && buf[0] == '\0'; t++)
        shadow_judge(p, l, &l->tiers[t], m, l->tiers[t].max_tokens, n_schedules, seed, buf);
    return buf;
}

Test(plan_shadow, the_judge_passes_valid_plans) {
    char why[200];
    for (int i = 0; i < 4; i++) {
        plan_case c;
        plan_case_open_with(&c, shapes[i], small_levels, 2);
        for (uint32_t l = 0; l < 2; l++)
            cr_assert_str_eq(judge_level(c.plan, &c.plan->levels[l], c.model, 20, 7, why), "");
        plan_case_close(&c);
        plan_case_open_with(&c, shapes[i], tiled_levels, 1);
        cr_assert_str_eq(judge_level(c.plan, &c.plan->levels[0], c.model, 1, 7, why), "");
        plan_case_close(&c);
    }
}

static const mb_shape *const gpu_shapes[] = {&plan_case_wide, &mb_qwen3moe_small, &mb_gemma3_small,
                                             &plan_case_biased};

/* Streamed, split and ranged weights; over tiles for one model, since that is slow. */
static bool fits(const mb_shape *shape, uint32_t program) {
    return program != 5 || shape->n_expert != 0 || shape->n_ff >= 1024;
}

Test(plan_shadow, the_judge_passes_valid_plans_with_a_gpu) {
    char why[200];
    for (int i = 0; i < 4; i++)
        for (uint32_t program = 2; program <= 6; program++) {
            plan_case c;
            if (!fits(gpu_shapes[i], program) || (program == 4 && i % 3 == 0))
                continue;
            pb_config level = plan_case_level(program);
            plan_case_open_with(&c, gpu_shapes[i], &level, 1);
            judge_level(c.plan, c.plan->levels, c.model, program == 4 ? 1 : 20, 7, why);
            cr_assert_str_eq(why, "", "%s, program %u: %s", gpu_shapes[i]->arch, program, why);
            plan_case_close(&c);
        }
}

static uint64_t below(uint64_t *seed, uint64_t n) {
    return n == 0 ? 0 : shadow_random(seed) % n;
}

/* Of what plans with a GPU have besides. */
static void mutate_weights(ps_level *l, ps_tier *t, ps_program *g, ps_instr *in, const ps_instr *in2,
                           uint64_t *seed) {
    ps_resident *r = l->n_resident != 0 ? &l->resident[below(seed, l->n_resident)] : NULL;
    ps_slot_entry *e = g->n_entries != 0 ? &g->entries[below(seed, g->n_entries)] : NULL;
    uint32_t b = (uint32_t)below(seed, g->n_buffers);
    uint64_t k = below(seed, PS_OP_MAX_WEIGHTS);
    switch (below(seed, 16)) {
    case 0:
        in->at[k] = (uint16_t)below(seed, 3);
        break;
    case 1:
        in->at[k] = in2->at[below(seed, PS_OP_MAX_WEIGHTS)];
        break;
    case 2:
        in->ahead = !in->ahead;
        break;
    case 3:
        in->when = (ps_when)below(seed, PS_WHEN_COUNT);
        break;
    case 4:
        in->part = (ps_moe_part)below(seed, PS_MOE_PART_COUNT);
        break;
    case 5:
        in->kv = in->kv != 0 ? 0 : in2->kv;
        break;
    case 6:
        in->col0 = 256 * below(seed, 4);
        in->n_cols = 256 * below(seed, 4);
        break;
    case 7:
        in->src[below(seed, 3)] = below(seed, 2) == 0 ? PS_NO_BUFFER : in2->dst;
        break;
    case 8:
        if (e != NULL)
            e->range.layer = (uint32_t)below(seed, 3);
        else if (in->op == PS_OP_COPY)
            in->dst = in2->dst;
        break;
    case 9:
        if (e != NULL && below(seed, 2) == 0)
            g->n_entries--;
        else if (e != NULL)
            e->range.n_rows -= 1;
        break;
    case 10:
        if (r != NULL)
            r->offset += 256 * below(seed, 5) - 512;
        break;
    case 11:
        if (r != NULL)
            r->range.n_rows -= below(seed, 2);
        else
            l->n_resident = 0;
        break;
    case 12:
        if (r != NULL)
            r->range.layer = (uint32_t)below(seed, 3);
        break;
    case 13:
        t->vram_scratch_offset = t->buffer_offset[b] / 256 * 256;
        break;
    case 14:
        g->buffers[b].col0 = 256 * (uint32_t)below(seed, 3);
        break;
    default:
        if (g->buffers[b].rows == PS_ROWS_SLOT)
            g->buffers[b].cols -= 256 * (uint32_t)below(seed, 2);
        else
            in->w[k] = in2->w[below(seed, PS_OP_MAX_WEIGHTS)];
        break;
    }
}

/* One random change of a plan's structures, near what is there, so that a good part stays well-formed. */
static void mutate(ps_plan *p, ps_level *l, uint64_t *seed) {
    ps_tier *t = &l->tiers[below(seed, l->n_tiers)];
    ps_program *g = &p->programs[t->program];
    ps_instr *in = &g->instrs[below(seed, g->n_instrs)], *in2 = &g->instrs[below(seed, g->n_instrs)];
    uint64_t n = g->n_buffers, b = below(seed, n), b2 = below(seed, n), k;
    ps_instr swap;
    if (below(seed, 3) == 0 && (g->n_entries != 0 || l->budget_bytes != 0)) {
        mutate_weights(l, t, g, in, in2, seed);
        return;
    }
    switch (below(seed, 20)) {
    case 0:
        in->n_waits = 0;
        memset(in->wait, 0, sizeof in->wait);
        break;
    case 1:
    case 2:
        if (in->n_waits != 0)
            in->wait[in->n_waits - 1] += (uint32_t)below(seed, 5);
        break;
    case 3:
        in->src[below(seed, 3)] = (uint16_t)b;
        break;
    case 4:
        in->dst = (uint16_t)b;
        break;
    case 5:
    case 6:
        t->buffer_offset[b] = t->buffer_offset[b2];
        break;
    case 7:
    case 8:
        t->buffer_offset[b] += 64 * below(seed, 40) - 64 * 20;
        break;
    case 9:
        t->scratch_offset = t->buffer_offset[b];
        break;
    case 10:
        t->scratch_bytes -= 64 * below(seed, 4);
        break;
    case 11:
        in->row0 = below(seed, 130);
        in->n_rows = below(seed, 130);
        break;
    case 12:
        swap = *in;
        *in = *in2;
        *in2 = swap;
        break;
    case 13:
        swap = *in;
        in[0] = in[in + 1 < g->instrs + g->n_instrs];
        in[in + 1 < g->instrs + g->n_instrs] = swap;
        break;
    case 14:
        in->queue = (ps_queue)below(seed, PS_QUEUE_COUNT);
        break;
    case 15:
        in->kernel = p->kernels[below(seed, p->n_kernels)].id;
        break;
    case 16:
        g->buffers[b].cols += 32 * (uint32_t)below(seed, 3) - 32;
        break;
    case 17:
        k = below(seed, p->n_layers);
        if (below(seed, 2) == 0)
            l->kv[k].offset = t->buffer_offset[b];
        else
            l->kv[k].rows -= below(seed, 3);
        break;
    case 18:
        k = below(seed, g->n_blocks);
        if (below(seed, 2) == 0)
            g->blocks[k].over_tiles = !g->blocks[k].over_tiles;
        else
            g->blocks[k].n_layers -= below(seed, 2);
        break;
    default:
        if (below(seed, 2) == 0)
            l->host_arena_bytes -= 64 * below(seed, 8);
        else
            g->buffers[b].rows = (ps_rows)below(seed, PS_ROWS_COUNT);
        break;
    }
}

typedef struct tally {
    uint32_t refused, accepted;
    uint32_t refused_judged,
        refused_unsafe; /* of those refused: how many the judge looked at, and found unsafe */
} tally;

static void judge_mutant(ps_plan *p, ps_level *l, const ps_model *m, uint32_t n_schedules, uint64_t seed,
                         tally *n) {
    char why[200];
    ps_error err = {0};
    if (ps_plan_check(p, l, m, &err) != PS_OK) {
        /* That the judge sees most of these shows that it can tell. What it does not know of (kernels, placement)
         * and what the checker is stricter about make up the rest. */
        if (n->refused++ % 8 == 0 && ps_plan_validate(p, &err) == PS_OK) {
            n->refused_judged++;
            judge_level(p, l, m, n_schedules, seed, why);
            n->refused_unsafe += why[0] != '\0' && strcmp(why, shadow_too_large) != 0;
        }
        return;
    }
    n->accepted++;
    judge_level(p, l, m, n_schedules, seed, why);
    if (strcmp(why, shadow_too_large) == 0)
        return;
    cr_assert_str_eq(why, "", "accepted, but: %s (seed %llu)", why, (unsigned long long)seed);
}

/* Take waits away one by one as long as the checker accepts it: what is left is what it insists on. */
static uint32_t relax(ps_plan *p, ps_level *l, const ps_model *m) {
    ps_program *g = &p->programs[l->tiers[0].program];
    uint32_t n_free = 0;
    ps_error err;
    for (uint32_t i = 0; i < g->n_instrs; i++) {
        ps_instr old = g->instrs[i];
        ps_instr *in = &g->instrs[i];
        in->n_waits = 0;
        memset(in->wait, 0, sizeof in->wait);
        bool done = ps_plan_check(p, l, m, &err) == PS_OK;
        n_free += done;
        for (uint32_t d = 10; !done && d >= 2; d--) {
            in->n_waits = 1;
            in->wait[0] = d;
            done = ps_plan_check(p, l, m, &err) == PS_OK;
        }
        if (!done)
            *in = old;
    }
    return n_free;
}

/* Plans with as few waits as the checker lets through are safe; and so are their mutants that it lets through. */
static void run_relaxed(const mb_shape *shape, uint32_t program, uint32_t n_mutants, uint32_t n_schedules,
                        uint64_t seed, tally *n) {
    plan_case c;
    ps_error err;
    char why[200];
    uint8_t *binary;
    uint64_t size;
    const pb_config level = plan_case_level(program);
    plan_case_open_with(&c, shape, &level, 1);
    uint32_t n_instrs = c.plan->programs[program].n_instrs, n_free = relax(c.plan, c.plan->levels, c.model);
    judge_level(c.plan, c.plan->levels, c.model, 8 * n_schedules, seed, why);
    cr_assert_str_eq(why, "", "%s, program %u with few waits: %s", shape->arch, program, why);
    cr_assert_gt(n_free * 8, n_instrs, "%s, program %u: %u of %u wait for nothing", shape->arch, program,
                 n_free, n_instrs);
    cr_assert_eq(ps_plan_to_binary(c.plan, &binary, &size, &err), PS_OK);
    for (uint32_t k = 0; k < n_mutants; k++) {
        ps_plan *p;
        cr_assert_eq(ps_plan_parse(binary, size, "p", &p, &err), PS_OK);
        for (uint64_t changes = 1 + below(&seed, 2); changes != 0; changes--)
            mutate(p, p->levels, &seed);
        judge_mutant(p, p->levels, c.model, n_schedules, seed, n);
        ps_plan_free(p);
    }
    free(binary);
    plan_case_close(&c);
}

static void run_mutants(const pb_config *levels, uint32_t n_levels, uint32_t n_mutants, uint32_t n_schedules,
                        uint64_t seed, tally *n) {
    for (int i = 0; i < 4; i++) {
        plan_case c;
        ps_error err;
        uint8_t *binary;
        uint64_t size;
        plan_case_open_with(&c, shapes[i], levels, n_levels);
        cr_assert_eq(ps_plan_to_binary(c.plan, &binary, &size, &err), PS_OK);
        for (uint32_t k = 0; k < n_mutants; k++) {
            ps_plan *p;
            cr_assert_eq(ps_plan_parse(binary, size, "p", &p, &err), PS_OK);
            ps_level *l = &p->levels[k % n_levels];
            for (uint64_t changes = 1 + below(&seed, 2); changes != 0; changes--)
                mutate(p, l, &seed);
            judge_mutant(p, l, c.model, n_schedules, seed, n);
            ps_plan_free(p);
        }
        free(binary);
        plan_case_close(&c);
    }
}

Test(plan_shadow, accepted_mutants_are_safe) {
    tally n = {0};
    run_mutants(small_levels, 2, 800, 6, 12345, &n);
    cr_assert_gt(n.accepted, 200, "%u accepted, %u refused", n.accepted, n.refused);
    cr_assert_gt(n.refused, 1500, "%u accepted, %u refused", n.accepted, n.refused);
    cr_assert_gt(n.refused_unsafe * 2, n.refused_judged, "%u of %u", n.refused_unsafe, n.refused_judged);
}

Test(plan_shadow, accepted_mutants_over_tiles_are_safe) {
    tally n = {0};
    run_mutants(tiled_levels, 1, 12, 1, 777, &n);
    cr_assert_gt(n.accepted, 2, "%u accepted, %u refused", n.accepted, n.refused);
    cr_assert_gt(n.refused, 20, "%u accepted, %u refused", n.accepted, n.refused);
}

static void change_bytes(const mb_shape *shape, const pb_config *levels, uint32_t n_levels,
                         uint32_t n_mutants, tally *n) {
    plan_case c;
    ps_error err;
    uint8_t *binary;
    uint64_t size, seed = 99;
    uint32_t refused_by_reader = 0;
    plan_case_open_with(&c, shape, levels, n_levels);
    cr_assert_eq(ps_plan_to_binary(c.plan, &binary, &size, &err), PS_OK);
    for (uint32_t k = 0; k < n_mutants; k++) {
        ps_plan *p;
        uint64_t at[3], n_at = 1 + below(&seed, 3);
        uint8_t old[3];
        for (uint64_t i = 0; i < n_at; i++) {
            at[i] = 32 + below(&seed, size - 32);
            old[i] = binary[at[i]];
            binary[at[i]] =
                below(&seed, 2) == 0 ? (uint8_t)(old[i] + below(&seed, 5) - 2) : (uint8_t)below(&seed, 256);
        }
        ps_hash_bytes(binary + 32, size - 32, binary + 16);
        if (ps_plan_parse(binary, size, "p", &p, &err) == PS_OK) {
            for (uint32_t l = 0; l < p->n_levels; l++)
                judge_mutant(p, &p->levels[l], c.model, 4, seed, n);
            ps_plan_free(p);
        } else {
            refused_by_reader++;
        }
        for (uint64_t i = n_at; i-- > 0;)
            binary[at[i]] = old[i];
    }
    cr_assert_gt(refused_by_reader, n_mutants / 4);
    free(binary);
    plan_case_close(&c);
}

Test(plan_shadow, changed_bytes_of_a_binary_plan) {
    tally n = {0};
    change_bytes(&mb_llama_small, small_levels, 2, 8000, &n);
    cr_assert_gt(n.accepted, 400, "%u accepted, %u refused", n.accepted, n.refused);
    cr_assert_gt(n.refused, 200, "%u accepted, %u refused", n.accepted, n.refused);
}

Test(plan_shadow, changed_bytes_of_a_binary_plan_with_a_gpu) {
    tally n = {0};
    for (uint32_t program = 3; program <= 6; program++) {
        const pb_config level = plan_case_level(program);
        if (program != 4)
            change_bytes(&mb_qwen3moe_small, &level, 1, 1200, &n);
    }
    cr_assert_gt(n.accepted, 200, "%u accepted, %u refused", n.accepted, n.refused);
    cr_assert_gt(n.refused, 100, "%u accepted, %u refused", n.accepted, n.refused);
}

Test(plan_shadow, accepted_mutants_with_a_gpu_are_safe) {
    tally n = {0};
    for (int i = 0; i < 4; i++)
        for (uint32_t program = 2; program <= 6; program++)
            if (fits(gpu_shapes[i], program) && program != 4)
                run_relaxed(gpu_shapes[i], program, MUTANTS, 4, SEED + program, &n);
    fprintf(stderr, "gpu: %u accepted, %u refused, %u of %u judged unsafe\n", n.accepted, n.refused,
            n.refused_unsafe, n.refused_judged);
    cr_assert_gt(n.accepted, 2 * MUTANTS, "%u accepted, %u refused", n.accepted, n.refused);
    cr_assert_gt(n.refused, 4 * MUTANTS, "%u accepted, %u refused", n.accepted, n.refused);
    cr_assert_gt(n.refused_unsafe * 2, n.refused_judged, "%u of %u", n.refused_unsafe, n.refused_judged);
}

Test(plan_shadow, accepted_mutants_with_a_gpu_over_tiles_are_safe) {
    tally n = {0};
    run_relaxed(&mb_qwen3moe_small, 4, 40, 1, 815, &n);
    cr_assert_gt(n.accepted, 4, "%u accepted, %u refused", n.accepted, n.refused);
    cr_assert_gt(n.refused, 10, "%u accepted, %u refused", n.accepted, n.refused);
}
