/* A level with a GPU from its schedule: programs, memory, placements; and the least that there must be for one. See build.h.
 *
 * Of the budget, base (context, libraries, the executor's own) comes first; the work arena holds KV, buffers, slots and scratch
 * of the tier that takes most; resident weights take the rest. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "plan/bounds.h"
#include "plan/build.h"
#include "plan/memory.h"
#include "plan/trial.h"

/* Beside context and libraries a run takes what graphs and launches allocate in the driver: 29 MB were seen on an H200. */
enum { RUN_BYTES = 32 << 20 };
static const double base_margin = 1.02; /* over what the meter showed: it must not be under */

static uint64_t handles(uint64_t bytes) {
    return bytes > UINT64_MAX - PS_VRAM_ALIGN ? UINT64_MAX / 2
                                              : (bytes + PS_VRAM_ALIGN - 1) / PS_VRAM_ALIGN * PS_VRAM_ALIGN;
}

uint64_t ps_gpu_base_bytes(const ps_profile *p) {
    return (uint64_t)((double)p->gpu.base_bytes * base_margin) + PS_VRAM_OWN + RUN_BYTES;
}

/* A tier of a level: places, program, memory, times. */
static ps_status build_tier(ps_building *b, const ps_level_request *lr, const ps_rule *rule,
                            const ps_resident_set *set, const ps_kv_home *kv, const uint64_t kv_end[2],
                            uint32_t tokens, ps_arena *arena, ps_tier *tier, uint64_t out_end[2]) {
    ps_lower_request r = ps_build_request(b->q, lr, tokens);
    r.cache = b->cache;
    ps_placing placing;
    /* What costs ask of a level, which is not there yet. */
    const ps_level level = {.budget_bytes = lr->budget_bytes,
                            .kv = (ps_kv_home *)(uintptr_t)kv,
                            .n_resident = set->n,
                            .resident = set->pieces};
    r.level = &level;
    ps_status status = ps_rule_place(rule, &r, set, kv, b->work, &placing, b->err);
    r.place = &placing;
    r.max_direct = placing.max_direct;
    if (!status)
        status = ps_build_tier(b, &r, arena, kv_end, tier, out_end);
    if (!status)
        status = ps_build_predict(b, &r, &b->programs[tier->program].program, tier);
    if (!status)
        ps_bounds(&r, &tier->raw_bound_s, &tier->reachable_bound_s);
    return status;
}

/* The least for a GPU to take part: steps of few rows whose weights it reads from the host, or, where that is asked for, streams;
 * nothing resident but small weights. */
ps_status ps_gpu_least(ps_building *b, const ps_level_request *lr, uint64_t *out_work, uint64_t *out_all) {
    const bool streams = b->q->forced && b->q->family == PS_FAMILY_GPU;
    ps_trial *t = NULL;
    ps_schedule s;
    uint64_t least = UINT64_MAX, most = ps_longest_step(b->q, lr);
    uint32_t outputs = b->q->max_outputs ? b->q->max_outputs : lr->n_seqs;
    ps_status status = ps_trial_new(b, lr, &t);
    memset(&s, 0, sizeof s);
    s.n_threads = lr->n_threads;
    s.max_step = (uint32_t)(most < PS_PLAN_DECODE_TOKENS ? most : PS_PLAN_DECODE_TOKENS);
    s.decode = s.prompt = ps_family_rule(streams ? PS_FAMILY_GPU : PS_FAMILY_DIRECT, s.max_step,
                                         outputs < s.max_step ? outputs : s.max_step);
    if (!status)
        status = ps_trial_work(t, &s, true, &least);
    ps_trial_free(t);
    *out_work = least;
    *out_all = least > UINT64_MAX / 4 ? UINT64_MAX / 4 / PS_VRAM_ALIGN * PS_VRAM_ALIGN
                                      : handles(least) + handles(ps_resident_small_bytes(b->q->model));
    return status;
}

/* What the programs do with the weights of each shard decides how its placement is called. */
static ps_status name_places(ps_building *b, ps_level *level) {
    enum { CPU = 1, HOST = 2, VRAM = 4, SLOT = 8 };
    const ps_model *m = b->q->model;
    uint8_t *uses = ps_arena_array(b->work, m->n_shards, 1);
    if (!uses)
        return ps_build_no_memory(b->err);
    for (uint32_t t = 0; t < level->n_tiers; t++) {
        const ps_program *p = &b->programs[level->tiers[t].program].program;
        for (uint32_t k = 0; k < p->n_blocks; k++)
            for (uint32_t i = p->blocks[k].instr0; i < p->blocks[k].instr0 + p->blocks[k].n_instrs; i++) {
                const ps_instr *in = &p->instrs[i];
                uint8_t use = in->op == PS_OP_COPY && in->w[0] != PS_ROLE_NONE ? SLOT : 0;
                for (int w = 0; w < PS_OP_MAX_WEIGHTS && in->op != PS_OP_COPY; w++)
                    if (in->w[w] != PS_ROLE_NONE)
                        use |= in->queue == PS_QUEUE_CPU ? CPU
                               : in->at[w] == PS_AT_HOST ? HOST
                               : in->at[w] == PS_AT_VRAM ? VRAM
                                                         : SLOT;
                for (uint32_t l = 0; l < p->blocks[k].n_layers && use; l++) {
                    uint32_t layer = p->blocks[k].layer0 + l;
                    if (in->ahead)
                        layer = layer + 1 < m->n_layers ? layer + 1 : 0;
                    for (uint32_t s = 0; s < m->n_shards; s++)
                        if (m->shards[s].kind == in->shard && m->shards[s].layer == layer)
                            uses[s] |= use;
                }
            }
    }
    for (uint32_t s = 0; s < m->n_shards; s++) {
        const ps_layer *y = &m->layers[m->shards[s].layer];
        bool experts_out = false; /* "vram" says that all experts are there */
        if (m->shards[s].kind == PS_SHARD_MOE) {
            uint64_t held = 0;
            for (uint32_t i = 0; i < level->n_resident; i++)
                if (level->resident[i].range.role == PS_ROLE_FFN_GATE_EXPS &&
                    level->resident[i].range.layer == m->shards[s].layer)
                    held += level->resident[i].range.n_rows;
            experts_out = held < y->n_expert;
        }
        level->placement[s] = uses[s] == VRAM && !experts_out             ? PS_PLACE_VRAM
                              : uses[s] == CPU || uses[s] == 0            ? PS_PLACE_HOST
                              : !(uses[s] & (CPU | HOST)) && !experts_out ? PS_PLACE_STREAM
                              : !(uses[s] & (CPU | SLOT))                 ? PS_PLACE_DIRECT
                                                                          : PS_PLACE_SPLIT;
    }
    return PS_OK;
}

/* Time of a tier's step in an empty and a full context together. */
static ps_status rule_s(ps_building *b, const ps_level_request *lr, const ps_rule *rule,
                        const ps_resident_set *set, const ps_kv_home *kv, uint32_t tokens, double *out_s) {
    ps_lower_request r = ps_build_request(b->q, lr, tokens);
    ps_placing placing;
    ps_program p;
    const ps_level level = {.budget_bytes = lr->budget_bytes,
                            .kv = (ps_kv_home *)(uintptr_t)kv,
                            .n_resident = set->n,
                            .resident = set->pieces};
    uint64_t after = tokens <= lr->n_seqs ? 1 : tokens;
    double empty = 0, full = 0;
    r.cache = b->cache;
    r.level = &level;
    ps_status status = ps_rule_place(rule, &r, set, kv, b->work, &placing, b->err);
    r.place = &placing;
    r.max_direct = placing.max_direct;
    if (!status)
        status = ps_lower(&r, b->work, &p, b->err);
    if (!status)
        status = ps_build_step_s(&r, &p, after, &empty, b->err);
    if (!status)
        status =
            ps_build_step_s(&r, &p, lr->bucket_tokens > after ? lr->bucket_tokens : after, &full, b->err);
    *out_s = empty + full;
    return status;
}

/* Of the families' rules, and the schedule's own, the one whose program for a tier is fastest within the work arena that there is,
 * and with the homes and residents that there are. */
static ps_status best_rule(ps_building *b, const ps_level_request *lr, const ps_resident_set *set,
                           const ps_kv_home *kv, const uint64_t kv_end[2], uint32_t tokens, uint64_t most,
                           ps_rule *rule) {
    ps_rule tried[PS_FAMILY_COUNT + 1] = {*rule};
    uint32_t outputs = b->q->max_outputs ? b->q->max_outputs : lr->n_seqs, n = 1;
    double best = INFINITY;
    ps_status status = PS_OK;
    for (int f = 0; f < PS_FAMILY_COUNT; f++)
        if (tokens <= ps_family_max_step((ps_family)f))
            tried[n++] = ps_family_rule((ps_family)f, tokens, outputs < tokens ? outputs : tokens);
    for (uint32_t i = 0; i < n && !status; i++) {
        bool again = false;
        for (uint32_t k = 0; k < i; k++)
            again |= memcmp(&tried[k].attn, &tried[i].attn, sizeof tried[k] - offsetof(ps_rule, attn)) == 0;
        if (again)
            continue;
        ps_tier tier = {0};
        uint64_t end[2] = {0, 0};
        double s = INFINITY;
        ps_plan plan = {.arena = ps_arena_new(UINT64_MAX)};
        ps_building trial = {
            .q = b->q, .err = b->err, .cache = b->cache, .plan = &plan, .work = ps_arena_new(UINT64_MAX)};
        status = trial.work && plan.arena ? rule_s(&trial, lr, &tried[i], set, kv, tokens, &s)
                                          : ps_build_no_memory(b->err);
        /* Its memory, if it is worth it. The schedule's own was looked at. */
        if (!status && i && s < best * 0.999)
            status = build_tier(&trial, lr, &tried[i], set, kv, kv_end, tokens, trial.work, &tier, end);
        free(trial.programs);
        ps_arena_free(trial.work);
        ps_arena_free(plan.arena);
        if (status && status != PS_E_NOMEM && i) { /* no program by that rule */
            status = PS_OK;
            continue;
        }
        if (status || (i && handles(end[PS_SPACE_VRAM]) > most) || !(s < best * 0.999))
            continue;
        best = s;
        *rule = tried[i];
    }
    return status;
}

/* The homes of a level's caches. */
static void homes_of(const ps_building *b, const ps_level_request *lr, const ps_schedule *schedule,
                     ps_kv_home *kv, uint64_t out_end[PS_SPACE_COUNT]) {
    ps_memory_kv(b->q->model, lr->bucket_tokens,
                 schedule->max_step < PS_TILE_TOKENS ? schedule->max_step : PS_TILE_TOKENS, lr->n_seqs,
                 schedule->n_kv, kv, out_end);
}

ps_status ps_gpu_rule(ps_building *b, const ps_level_request *asked, const ps_schedule *schedule,
                      const ps_resident_set *resident, uint32_t tier, ps_rule *out) {
    uint32_t sizes[PS_MAX_TIERS], decode = ps_decode_tokens(asked, schedule->max_step),
                                  prompt = ps_prompt_tokens(b->q, asked, schedule->max_step);
    uint64_t kv_end[2];
    ps_level_request lr = *asked;
    lr.n_threads = schedule->n_threads;
    if (tier >= ps_tiers_up_to(schedule->max_step, sizes))
        return PS_OK;
    *out = ps_schedule_rule(b->q, &lr, schedule, sizes[tier]);
    if (b->q->forced || sizes[tier] == decode || sizes[tier] == prompt)
        return PS_OK;
    ps_kv_home *kv = calloc(b->q->model->n_layers, sizeof *kv);
    if (!kv)
        return ps_build_no_memory(b->err);
    homes_of(b, &lr, schedule, kv, kv_end);
    uint64_t room = lr.budget_bytes > schedule->base_bytes ? lr.budget_bytes - schedule->base_bytes : 0,
             most = room > handles(resident->bytes) ? room - handles(resident->bytes) : 0;
    ps_status status = best_rule(b, &lr, resident, kv, kv_end, sizes[tier], most, out);
    free(kv);
    return status;
}

ps_status ps_gpu_build(ps_building *b, const ps_level_request *asked, const ps_schedule *schedule,
                       const ps_resident_set *resident, const ps_rule *rules, ps_level *level) {
    const ps_model *m = b->q->model;
    ps_arena *arena = b->plan->arena;
    uint32_t sizes[PS_MAX_TIERS], decode = ps_decode_tokens(asked, schedule->max_step),
                                  prompt = ps_prompt_tokens(b->q, asked, schedule->max_step);
    uint64_t kv_end[2], end[2];
    ps_level_request at = *asked, *lr = &at;
    at.n_threads = schedule->n_threads;
    memcpy(level->budget, lr->budget, sizeof level->budget);
    level->budget_bytes = lr->budget_bytes;
    level->bucket_tokens = lr->bucket_tokens;
    level->n_seqs = lr->n_seqs;
    level->n_threads = lr->n_threads;
    level->n_tiers = ps_tiers_up_to(schedule->max_step, sizes);
    level->placement = ps_arena_array(arena, m->n_shards, sizeof *level->placement);
    level->kv = ps_arena_array(arena, m->n_layers, sizeof *level->kv);
    level->tiers = ps_arena_array(arena, level->n_tiers, sizeof *level->tiers);
    level->resident = ps_arena_array(arena, resident->n, sizeof *level->resident);
    if (!level->placement || !level->kv || !level->tiers || !level->resident)
        return ps_build_no_memory(b->err);
    level->n_resident = resident->n;
    if (resident->n)
        memcpy(level->resident, resident->pieces, resident->n * sizeof *level->resident);
    homes_of(b, lr, schedule, level->kv, kv_end);
    memcpy(end, kv_end, sizeof end);
    ps_status status = PS_OK;
    for (uint32_t t = 0; t < level->n_tiers && !status; t++) {
        ps_rule rule = rules ? rules[t] : ps_schedule_rule(b->q, lr, schedule, sizes[t]);
        status =
            build_tier(b, lr, &rule, resident, level->kv, kv_end, sizes[t], arena, &level->tiers[t], end);
    }
    if (status)
        return status;
    /* A tier that takes longer than two steps of the one before is of no use. */
    while (!b->q->forced && level->n_tiers > 1) {
        const ps_tier *last = &level->tiers[level->n_tiers - 1], *before = last - 1;
        double steps = ceil((double)last->max_tokens / before->max_tokens);
        if (before->max_tokens < decode || before->max_tokens < prompt ||
            last->step_empty_s <= steps * before->step_empty_s)
            break;
        level->n_tiers--;
    }
    level->host_arena_bytes = end[PS_SPACE_HOST];
    level->vram_work_bytes = handles(end[PS_SPACE_VRAM]);
    level->vram_weight_bytes = handles(resident->bytes);
    level->vram_base_bytes = schedule->base_bytes;
    if (!ps_add_u64(level->host_arena_bytes, m->weight_bytes, &level->peak_host_bytes) ||
        !ps_add_u64(level->peak_host_bytes, ps_memory_program_bytes(m, lr->n_threads, lr->n_seqs),
                    &level->peak_host_bytes))
        level->peak_host_bytes = UINT64_MAX;
    return name_places(b, level);
}
