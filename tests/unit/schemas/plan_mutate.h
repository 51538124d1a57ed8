/* Random changes of plans, and what becomes of them: refused by the checker, or judged by the shadow executor
 * (plan_shadow.h). */
#ifndef PS_TESTS_PLAN_MUTATE_H
#define PS_TESTS_PLAN_MUTATE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan_shadow.h"

static inline const char *judge_level(const ps_plan *p, const ps_level *l, const ps_model *m,
                                      uint32_t n_schedules, uint64_t seed, char buf[200]) {
    buf[0] = '\0';
    for (uint32_t t = 0; t < l->n_tiers && buf[0] == '\0'; t++)
        shadow_judge(p, l, &l->tiers[t], m, l->tiers[t].max_tokens, n_schedules, seed, buf);
    return buf;
}

static inline uint64_t below(uint64_t *seed, uint64_t n) {
    return n == 0 ? 0 : shadow_random(seed) % n;
}

/* Of what plans with a GPU have besides. */
static inline void mutate_weights(ps_level *l, ps_tier *t, ps_program *g, ps_instr *in, const ps_instr *in2,
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

/* Counts and sizes of the level and the tier, and instructions that are not there, twice, or elsewhere. */
static inline void mutate_sizes(ps_plan *p, ps_level *l, ps_tier *t, ps_program *g, uint64_t *seed) {
    uint32_t at = (uint32_t)below(seed, g->n_instrs), block = 0, n_move;
    ps_instr *in = &g->instrs[at], kept = *in;
    ps_kv_home *kv = &l->kv[below(seed, p->n_layers)];
    while (g->blocks[block].instr0 + g->blocks[block].n_instrs <= at)
        block++;
    switch (below(seed, 14)) {
    case 0: /* one wait less */
        if (in->n_waits != 0) {
            uint32_t w = (uint32_t)below(seed, in->n_waits--);
            memmove(&in->wait[w], &in->wait[w + 1], (in->n_waits - w) * sizeof in->wait[0]);
            in->wait[in->n_waits] = 0;
        }
        break;
    case 1: /* all waits further or nearer by one */
        n_move = below(seed, 2) == 0 ? 1 : UINT32_MAX;
        for (uint32_t w = 0; w < in->n_waits; w++)
            in->wait[w] += n_move;
        break;
    case 2:
        t->max_tokens += (uint32_t)below(seed, 5) - 2;
        break;
    case 3:
        t->max_outputs += (uint32_t)below(seed, 3) - 1;
        break;
    case 4:
        l->n_seqs += (uint32_t)below(seed, 3) - 1;
        break;
    case 5:
        l->bucket_tokens += below(seed, 5) - 2;
        break;
    case 6:
        kv->bytes += 64 * below(seed, 3) - 64;
        break;
    case 7:
        kv->offset += 64 * below(seed, 9) - 256;
        break;
    case 8:
        kv->space = (ps_space)below(seed, 2);
        break;
    case 9:
        if (below(seed, 2) == 0)
            l->vram_work_bytes -= PS_VRAM_ALIGN;
        else
            l->vram_weight_bytes -= PS_VRAM_ALIGN * below(seed, 2);
        break;
    case 10:
        l->budget_bytes -= below(seed, 64) << 20;
        break;
    case 11:
        t->max_direct = (uint32_t)below(seed, 9);
        l->n_threads += (uint32_t)below(seed, 3) - 1;
        break;
    case 12: /* left out: the next one of the block in its place, too */
        if (at + 1 < g->blocks[block].instr0 + g->blocks[block].n_instrs)
            in[0] = in[1];
        break;
    default: /* moved by some places within its block */
        n_move = (uint32_t)below(seed, 5);
        for (; n_move != 0 && at + 1 < g->blocks[block].instr0 + g->blocks[block].n_instrs; n_move--, at++)
            g->instrs[at] = g->instrs[at + 1];
        g->instrs[at] = kept;
        break;
    }
}

/* One random change of a plan's structures, near what is there, so that a good part stays well-formed. */
static inline void mutate(ps_plan *p, ps_level *l, uint64_t *seed) {
    ps_tier *t = &l->tiers[below(seed, l->n_tiers)];
    ps_program *g = &p->programs[t->program];
    ps_instr *in = &g->instrs[below(seed, g->n_instrs)], *in2 = &g->instrs[below(seed, g->n_instrs)];
    uint64_t n = g->n_buffers, b = below(seed, n), b2 = below(seed, n), k;
    ps_instr swap;
    if (below(seed, 3) == 0 && (g->n_entries != 0 || l->budget_bytes != 0)) {
        mutate_weights(l, t, g, in, in2, seed);
        return;
    }
    if (below(seed, 4) == 0) {
        mutate_sizes(p, l, t, g, seed);
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

/* Take waits away one by one as long as the checker accepts it: what is left is what it insists on. */
static inline uint32_t relax(ps_plan *p, ps_level *l, const ps_model *m) {
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

/* What became of mutants. */
typedef struct tally {
    uint32_t refused, accepted, too_large;
    uint32_t refused_judged,
        refused_unsafe; /* of those refused: how many the judge looked at, and found unsafe */
    uint32_t n_reasons;
    struct {
        char message[64];
        uint32_t n;
    } reasons[64]; /* why mutants were refused in which the judge sees no danger */
} tally;

/* Mutants of a test: as many as it asks for, a fifth of that where sanitizers slow everything down, or PS_MUTANTS' share of it:
 * PS_MUTANTS=N makes all tests together about N. */
static inline uint32_t mutants(uint32_t usual) {
    enum { ALL = 3400 }; /* about what all tests ask for together where nothing is said */
    const char *want = getenv("PS_MUTANTS");
#if defined(__SANITIZE_ADDRESS__)
    usual = (usual + 4) / 5;
#endif
    return want != NULL ? (uint32_t)((uint64_t)usual * strtoull(want, NULL, 10) / ALL) + 1 : usual;
}

static inline void count_reason(tally *n, const char *message) {
    char kind[64];
    size_t k = 0;
    for (const char *c = message; *c != '\0' && k + 1 < sizeof kind; c++)
        if (*c < '0' || *c > '9')
            kind[k++] = *c;
    kind[k] = '\0';
    for (uint32_t i = 0; i < n->n_reasons; i++)
        if (strcmp(n->reasons[i].message, kind) == 0) {
            n->reasons[i].n++;
            return;
        }
    if (n->n_reasons == sizeof n->reasons / sizeof n->reasons[0])
        return;
    memcpy(n->reasons[n->n_reasons].message, kind, sizeof kind);
    n->reasons[n->n_reasons++].n = 1;
}

static inline void judge_mutant(ps_plan *p, ps_level *l, const ps_model *m, uint32_t n_schedules,
                                uint64_t seed, tally *n) {
    char why[200];
    ps_error err = {0}, ignored;
    if (ps_plan_check(p, l, m, &err) != PS_OK) {
        /* That the judge sees most of these shows that it can tell. What it does not know of (placement)
         * and what the checker is stricter about make up the rest. */
        if (n->refused++ % 4 == 0 && ps_plan_validate(p, &ignored) == PS_OK) {
            judge_level(p, l, m, n_schedules, seed, why);
            bool large = strcmp(why, shadow_too_large) == 0;
            n->refused_judged += !large;
            n->refused_unsafe += why[0] != '\0' && !large;
            if (why[0] == '\0')
                count_reason(n, err.message);
        }
        return;
    }
    n->accepted++;
    judge_level(p, l, m, n_schedules, seed, why);
    if (strcmp(why, shadow_too_large) == 0)
        n->too_large++;
    else
        cr_assert_str_eq(why, "", "accepted, but: %s (seed %llu)", why, (unsigned long long)seed);
}

/* In numbers, and what the checker refused without need. */
static inline void show_tally(const char *what, const tally *n) {
    fprintf(stderr, "%s: %u accepted (%u too large to judge), %u refused, %u of %u judged unsafe\n", what,
            n->accepted, n->too_large, n->refused, n->refused_unsafe, n->refused_judged);
    for (uint32_t i = 0; i < n->n_reasons && getenv("PS_MUTANTS") != NULL; i++)
        fprintf(stderr, "  %u safe ones: %s\n", n->reasons[i].n, n->reasons[i].message);
}

#endif
