/* Levels, tiers and programs of a plan: see planner.h. */
#include "plan/planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/checked.h"
#include "plan/bounds.h"
#include "plan/lower.h"
#include "plan/memory.h"
#include "plan/simulate.h"

enum { MAX_TIERS = 32, MAX_STEP_TOKENS = 65536 };

/* A program of the plan with what all its tiers share. */
typedef struct built_program {
    ps_program program;
    bool *conflict;
} built_program;

typedef struct building {
    const ps_plan_request *q;
    ps_plan *plan;
    ps_arena *work; /* of things that end with the build */
    built_program *programs;
    uint32_t n_programs, room;
    ps_error *err;
} building;

static ps_status no_memory(ps_error *err) {
    return ps_error_set(err, PS_E_NOMEM, "plan", "out of memory");
}

static int compare_levels(const void *pa, const void *pb) {
    const ps_level_request *a = pa, *b = pb;
    if (a->budget_bytes != b->budget_bytes)
        return a->budget_bytes < b->budget_bytes ? -1 : 1;
    if (a->bucket_tokens != b->bucket_tokens)
        return a->bucket_tokens < b->bucket_tokens ? -1 : 1;
    if (a->n_seqs != b->n_seqs)
        return a->n_seqs < b->n_seqs ? -1 : 1;
    if (a->n_threads != b->n_threads)
        return a->n_threads < b->n_threads ? -1 : 1;
    return 0;
}

uint32_t ps_plan_tiers(const ps_plan_request *q, const ps_level_request *level, uint32_t *out) {
    uint64_t most = q->max_step_tokens ? q->max_step_tokens : PS_TILE_TOKENS, all;
    if (most > MAX_STEP_TOKENS)
        most = MAX_STEP_TOKENS;
    if (ps_mul_u64(level->bucket_tokens, level->n_seqs, &all) && all < most)
        most = all;
    uint32_t n = 0;
    for (uint64_t t = 1; t < most && n < MAX_TIERS - 1; t *= 2)
        out[n++] = (uint32_t)t;
    out[n++] = (uint32_t)most;
    return n;
}

static ps_lower_request tier_request(const ps_plan_request *q, const ps_level_request *level,
                                     uint32_t max_tokens) {
    uint32_t outputs = q->max_outputs ? q->max_outputs : level->n_seqs;
    return (ps_lower_request){
        .model = q->model,
        .profile = q->profile,
        .cost = q->cost,
        .n_threads = level->n_threads,
        .max_tokens = max_tokens,
        .max_outputs = outputs < max_tokens ? outputs : max_tokens,
        .n_seqs = level->n_seqs,
        .bucket_tokens = level->bucket_tokens,
    };
}

static bool same_program(const ps_program *a, const ps_program *b) {
    if (a->n_buffers != b->n_buffers || a->n_instrs != b->n_instrs || a->n_blocks != b->n_blocks)
        return false;
    for (uint32_t i = 0; i < a->n_buffers; i++) {
        const ps_plan_buffer *x = &a->buffers[i], *y = &b->buffers[i];
        if (x->value != y->value || x->space != y->space || x->fmt != y->fmt || x->rows != y->rows ||
            x->cols != y->cols)
            return false;
    }
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        const ps_block *x = &a->blocks[i], *y = &b->blocks[i];
        if (x->loop != y->loop || x->layer0 != y->layer0 || x->n_layers != y->n_layers ||
            x->over_tiles != y->over_tiles || x->instr0 != y->instr0 || x->n_instrs != y->n_instrs)
            return false;
    }
    for (uint32_t i = 0; i < a->n_instrs; i++) {
        const ps_instr *x = &a->instrs[i], *y = &b->instrs[i];
        bool same = x->op == y->op && x->queue == y->queue && x->kernel == y->kernel &&
                    x->shard == y->shard && x->row0 == y->row0 && x->n_rows == y->n_rows &&
                    x->dst == y->dst && x->n_waits == y->n_waits;
        for (int k = 0; same && k < PS_OP_MAX_WEIGHTS; k++)
            same = x->w[k] == y->w[k];
        for (int k = 0; same && k < PS_OP_MAX_SRC; k++)
            same = x->src[k] == y->src[k];
        for (uint32_t k = 0; same && k < x->n_waits; k++)
            same = x->wait[k] == y->wait[k];
        if (!same)
            return false;
    }
    return true;
}

/* The program for a request: one already built, or a new one. */
static ps_status find_program(building *b, const ps_lower_request *r, uint32_t *out_index) {
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    ps_program p;
    ps_status status = arena ? ps_lower(r, arena, &p, b->err) : no_memory(b->err);
    if (status)
        goto done;
    for (uint32_t i = 0; i < b->n_programs; i++)
        if (same_program(&b->programs[i].program, &p)) {
            *out_index = i;
            goto done;
        }
    if (b->n_programs == b->room) {
        uint32_t room = b->room ? b->room * 2 : 8;
        built_program *grown = realloc(b->programs, room * sizeof *grown);
        if (!grown) {
            status = no_memory(b->err);
            goto done;
        }
        b->programs = grown;
        b->room = room;
    }
    built_program *to = &b->programs[b->n_programs];
    to->program = p;
    to->program.buffers = ps_arena_array(b->plan->arena, p.n_buffers, sizeof *p.buffers);
    to->program.instrs = ps_arena_array(b->plan->arena, p.n_instrs, sizeof *p.instrs);
    to->program.blocks = ps_arena_array(b->plan->arena, p.n_blocks, sizeof *p.blocks);
    to->conflict = ps_arena_array(b->work, (uint64_t)p.n_buffers * p.n_buffers, sizeof *to->conflict);
    if (!to->program.buffers || !to->program.instrs || !to->program.blocks || !to->conflict) {
        status = no_memory(b->err);
        goto done;
    }
    memcpy(to->program.buffers, p.buffers, p.n_buffers * sizeof *p.buffers);
    memcpy(to->program.instrs, p.instrs, p.n_instrs * sizeof *p.instrs);
    memcpy(to->program.blocks, p.blocks, p.n_blocks * sizeof *p.blocks);
    status = ps_deps_conflicts(&to->program, to->conflict, b->err);
    if (!status)
        *out_index = b->n_programs++;
done:
    ps_arena_free(arena);
    return status;
}

/* Times of a tier: simulated at an empty and at a full bucket. */
static ps_status predict(building *b, const ps_lower_request *r, const ps_program *p, ps_tier *tier) {
    double *work = calloc(p->n_instrs, sizeof *work);
    ps_sim_time *times = calloc(p->n_instrs, sizeof *times);
    ps_sim_block *blocks = calloc(p->n_blocks, sizeof *blocks);
    ps_status status = work && times && blocks ? PS_OK : no_memory(b->err);
    uint64_t empty = r->max_tokens <= r->n_seqs ? 1 : r->max_tokens; /* positions after a step from nothing */
    for (int full = 0; full < 2 && !status; full++) {
        uint64_t kv_len = full && r->bucket_tokens > empty ? r->bucket_tokens : empty;
        for (uint32_t i = 0; i < p->n_blocks; i++)
            for (uint32_t k = p->blocks[i].instr0; k < p->blocks[i].instr0 + p->blocks[i].n_instrs; k++)
                work[k] = ps_instr_cost(r, p, k, p->blocks[i].layer0, kv_len).time_s;
        ps_sim sim = {.program = p,
                      .n_tiles = (uint32_t)((r->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS),
                      .work_s = work,
                      .start_s = r->profile->pool_start_s.median};
        status = ps_simulate(&sim, times, blocks, full ? &tier->step_full_s : &tier->step_empty_s, b->err);
        for (uint32_t i = 0; i < p->n_blocks && !status; i++) {
            (full ? tier->block_period_full_s : tier->block_period_empty_s)[i] = blocks[i].period_s;
            for (uint32_t k = p->blocks[i].instr0; k < p->blocks[i].instr0 + p->blocks[i].n_instrs; k++) {
                double start = times[k].start_s - blocks[i].start_s, end = times[k].end_s - blocks[i].start_s;
                start = start > 0 ? start : 0;
                end = end > start ? end : start;
                ps_prediction *to = &tier->predicted[k];
                *(full ? &to->start_full_s : &to->start_empty_s) = start;
                *(full ? &to->end_full_s : &to->end_empty_s) = end;
            }
        }
    }
    free(work);
    free(times);
    free(blocks);
    return status;
}

/* Programs, offsets and sizes of a level; times only where `level` is wanted for a plan. */
static ps_status build_level(building *b, const ps_level_request *lr, bool with_times, ps_level *level,
                             uint64_t *out_kv_end) {
    const ps_model *m = b->q->model;
    ps_arena *arena = with_times ? b->plan->arena : b->work;
    uint32_t sizes[MAX_TIERS];
    uint32_t n_tiers = ps_plan_tiers(b->q, lr, sizes);
    memcpy(level->budget, lr->budget, sizeof level->budget);
    level->budget_bytes = lr->budget_bytes;
    level->bucket_tokens = lr->bucket_tokens;
    level->n_seqs = lr->n_seqs;
    level->n_threads = lr->n_threads;
    level->n_tiers = n_tiers;
    level->placement = ps_arena_array(arena, m->n_shards, sizeof *level->placement);
    level->kv = ps_arena_array(arena, m->n_layers, sizeof *level->kv);
    level->tiers = ps_arena_array(arena, n_tiers, sizeof *level->tiers);
    if (!level->placement || !level->kv || !level->tiers)
        return no_memory(b->err);
    for (uint32_t s = 0; s < m->n_shards; s++)
        level->placement[s] = PS_PLACE_HOST;
    uint64_t tile = sizes[n_tiers - 1] < PS_TILE_TOKENS ? sizes[n_tiers - 1] : PS_TILE_TOKENS;
    uint64_t kv_end, arena_end;
    ps_memory_kv(m, lr->bucket_tokens, tile, lr->n_seqs, level->kv, &kv_end);
    arena_end = kv_end;
    for (uint32_t t = 0; t < n_tiers && kv_end != UINT64_MAX; t++) {
        ps_tier *tier = &level->tiers[t];
        ps_lower_request r = tier_request(b->q, lr, sizes[t]);
        ps_status status = find_program(b, &r, &tier->program);
        if (status)
            return status;
        const built_program *bp = &b->programs[tier->program];
        const ps_program *p = &bp->program;
        tier->max_tokens = sizes[t];
        tier->max_outputs = r.max_outputs;
        tier->buffer_offset = ps_arena_array(arena, p->n_buffers, sizeof *tier->buffer_offset);
        tier->block_period_empty_s = ps_arena_array(arena, p->n_blocks, sizeof(double));
        tier->block_period_full_s = ps_arena_array(arena, p->n_blocks, sizeof(double));
        tier->predicted = ps_arena_array(arena, p->n_instrs, sizeof *tier->predicted);
        if (!tier->buffer_offset || !tier->block_period_empty_s || !tier->block_period_full_s ||
            !tier->predicted)
            return no_memory(b->err);
        uint64_t end;
        status = ps_memory_place(p, bp->conflict, tier, kv_end, &end, b->err);
        if (status)
            return status;
        tier->scratch_offset = end;
        tier->scratch_bytes = ps_memory_scratch(&r, p);
        if (!ps_add_u64(end, tier->scratch_bytes, &end))
            return ps_error_set(b->err, PS_E_INFEASIBLE, "memory map", "scratch exceeds 2^64 bytes");
        arena_end = end > arena_end ? end : arena_end;
        if (with_times) {
            status = predict(b, &r, p, tier);
            if (status)
                return status;
            ps_bounds(&r, &tier->raw_bound_s, &tier->reachable_bound_s);
        }
    }
    level->host_arena_bytes = arena_end;
    if (!ps_add_u64(arena_end, m->weight_bytes, &level->peak_host_bytes) ||
        !ps_add_u64(level->peak_host_bytes, ps_memory_program_bytes(m, lr->n_threads, lr->n_seqs),
                    &level->peak_host_bytes))
        level->peak_host_bytes = UINT64_MAX;
    *out_kv_end = kv_end;
    return PS_OK;
}

/* Longest context, a multiple of 256, that fits with the other wishes unchanged; 0 if not even 256 does. */
static uint64_t nearest_context(building *b, const ps_level_request *lr, uint64_t memory) {
    uint64_t lo = 0, hi = lr->bucket_tokens / 256; /* in units; lo fits, hi does not */
    while (hi - lo > 1) {
        ps_level_request try = *lr;
        ps_level level = {0};
        uint64_t kv, mid = lo + (hi - lo) / 2;
        ps_error *err = b->err;
        try.bucket_tokens = mid * 256;
        b->err = NULL;
        bool fits = build_level(b, &try, false, &level, &kv) == PS_OK && level.peak_host_bytes <= memory;
        b->err = err;
        if (fits)
            lo = mid;
        else
            hi = mid;
    }
    return lo * 256;
}

static ps_status infeasible(building *b, const ps_level_request *lr, const ps_level *level, uint64_t kv_bytes,
                            uint64_t memory, ps_shortage *shortage) {
    ps_shortage s = {.needed_bytes = level->peak_host_bytes, .memory_bytes = memory};
    const struct {
        const char *name;
        uint64_t bytes;
    } parts[] = {
        {"weights", b->q->model->weight_bytes},
        {"kv cache", kv_bytes},
        {"activations and scratch", kv_bytes == UINT64_MAX ? 0 : level->host_arena_bytes - kv_bytes}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].bytes > s.largest_bytes) {
            s.largest_bytes = parts[i].bytes;
            snprintf(s.largest, sizeof s.largest, "%s", parts[i].name);
        }
    s.nearest_context = nearest_context(b, lr, memory);
    if (shortage)
        *shortage = s;
    char fits[64] = "no context fits";
    if (s.nearest_context)
        snprintf(fits, sizeof fits, "a context of %llu would fit", (unsigned long long)s.nearest_context);
    return ps_error_set(
        b->err, PS_E_INFEASIBLE, "host memory",
        "context %llu needs %.2f GB, the machine has %.2f GB: %llu bytes short; the largest part is the "
        "%s with %.2f GB; %s",
        (unsigned long long)lr->bucket_tokens, (double)s.needed_bytes / 1e9, (double)memory / 1e9,
        (unsigned long long)(s.needed_bytes - memory), s.largest, (double)s.largest_bytes / 1e9, fits);
}

static ps_status check_request(const ps_plan_request *q, ps_error *err) {
    const ps_model *m = q->model;
    if (q->n_levels == 0)
        return ps_error_set(err, PS_E_USAGE, "plan", "no level is asked for");
    for (uint32_t i = 0; i < q->n_levels; i++) {
        const ps_level_request *l = &q->levels[i];
        if (l->budget_bytes != 0)
            return ps_error_set(err, PS_E_UNAVAILABLE, l->budget,
                                "the profile's machine has no GPU; use --budget host");
        if (l->bucket_tokens == 0 || l->n_seqs == 0 || l->n_threads == 0)
            return ps_error_set(err, PS_E_USAGE, "plan", "context, sequences and threads must not be zero");
        if (m->n_ctx_train && l->bucket_tokens > m->n_ctx_train)
            return ps_error_set(err, PS_E_USAGE, "context", "%llu is beyond the model's %u tokens",
                                (unsigned long long)l->bucket_tokens, m->n_ctx_train);
        if (l->n_threads > q->profile->topology.n_allowed)
            return ps_error_set(err, PS_E_USAGE, "threads",
                                "%u is more than the %u the profile's machine allows", l->n_threads,
                                q->profile->topology.n_allowed);
    }
    if (q->max_step_tokens > MAX_STEP_TOKENS)
        return ps_error_set(err, PS_E_USAGE, "step", "%llu tokens, at most %d",
                            (unsigned long long)q->max_step_tokens, MAX_STEP_TOKENS);
    return PS_OK;
}

static int compare_ids(const void *pa, const void *pb) {
    const ps_kernel_spec *a = pa, *b = pb;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Copies of the catalogue rows that the programs use. */
static ps_status collect_kernels(building *b) {
    const ps_profile *profile = b->q->profile;
    ps_plan *plan = b->plan;
    plan->kernels = ps_arena_array(plan->arena, profile->n_kernels, sizeof *plan->kernels);
    if (!plan->kernels)
        return no_memory(b->err);
    for (uint32_t i = 0; i < profile->n_kernels; i++) {
        bool used = false;
        for (uint32_t p = 0; p < b->n_programs && !used; p++)
            for (uint32_t k = 0; k < b->programs[p].program.n_instrs && !used; k++)
                used = b->programs[p].program.instrs[k].kernel == profile->kernels[i].id;
        if (used)
            plan->kernels[plan->n_kernels++] = profile->kernels[i];
    }
    qsort(plan->kernels, plan->n_kernels, sizeof *plan->kernels, compare_ids);
    return PS_OK;
}

static ps_status fill_head(building *b) {
    const ps_plan_request *q = b->q;
    const ps_model *m = q->model;
    ps_plan *plan = b->plan;
    plan->version = PS_PLAN_VERSION;
    snprintf(plan->tool, sizeof plan->tool, "%s", q->tool ? q->tool : "psplan");
    snprintf(plan->created, sizeof plan->created, "%s", q->created ? q->created : "");
    snprintf(plan->arch, sizeof plan->arch, "%s", m->arch_name);
    snprintf(plan->model_name, sizeof plan->model_name, "%s", m->name);
    memcpy(plan->model_hash, m->gguf->hash, sizeof plan->model_hash);
    memcpy(plan->machine_hash, q->profile->machine_hash, sizeof plan->machine_hash);
    memcpy(plan->kernel_set, q->profile->kernel_set, sizeof plan->kernel_set);
    plan->synthetic_profile = q->profile->synthetic;
    plan->n_layers = m->n_layers;
    plan->n_shards = m->n_shards;
    plan->shards = ps_arena_array(plan->arena, m->n_shards, sizeof *plan->shards);
    if (!plan->shards)
        return no_memory(b->err);
    for (uint32_t s = 0; s < m->n_shards; s++)
        plan->shards[s] = (ps_plan_shard){m->shards[s].kind, m->shards[s].layer, m->shards[s].weight_bytes};
    return ps_profile_hash(q->profile, plan->profile_hash, b->err);
}

ps_status ps_plan_build(const ps_plan_request *q, ps_plan **out, ps_shortage *shortage, ps_error *err) {
    ps_status status = check_request(q, err);
    if (status)
        return status;
    building b = {.q = q, .err = err, .work = ps_arena_new(UINT64_MAX)};
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    ps_level_request *levels = calloc(q->n_levels, sizeof *levels);
    b.plan = arena ? ps_arena_alloc(arena, sizeof *b.plan) : NULL;
    if (!b.work || !levels || !b.plan) {
        status = no_memory(err);
        goto done;
    }
    b.plan->arena = arena;
    memcpy(levels, q->levels, q->n_levels * sizeof *levels);
    qsort(levels, q->n_levels, sizeof *levels, compare_levels);
    status = fill_head(&b);
    if (status)
        goto done;
    b.plan->levels = ps_arena_array(arena, q->n_levels, sizeof *b.plan->levels);
    if (!b.plan->levels) {
        status = no_memory(err);
        goto done;
    }
    uint64_t memory = q->memory_bytes ? q->memory_bytes : q->profile->topology.memory_bytes;
    for (uint32_t i = 0; i < q->n_levels; i++) {
        if (i && compare_levels(&levels[i - 1], &levels[i]) == 0)
            continue;
        ps_level *level = &b.plan->levels[b.plan->n_levels];
        uint64_t kv_bytes = 0;
        status = build_level(&b, &levels[i], true, level, &kv_bytes);
        if (status)
            goto done;
        if (memory && level->peak_host_bytes > memory) {
            status = infeasible(&b, &levels[i], level, kv_bytes, memory, shortage);
            goto done;
        }
        b.plan->n_levels++;
    }
    status = collect_kernels(&b);
    if (status)
        goto done;
    b.plan->n_programs = b.n_programs;
    b.plan->programs = ps_arena_array(arena, b.n_programs, sizeof *b.plan->programs);
    if (!b.plan->programs) {
        status = no_memory(err);
        goto done;
    }
    for (uint32_t i = 0; i < b.n_programs; i++)
        b.plan->programs[i] = b.programs[i].program;
    *out = b.plan;
    arena = NULL;
done:
    free(levels);
    free(b.programs);
    ps_arena_free(b.work);
    ps_arena_free(arena);
    return status;
}

ps_status ps_plan_simulate_step(const ps_plan *plan, uint32_t level, uint32_t tier, const ps_model *model,
                                const ps_profile *profile, const ps_cost_model *cost, uint64_t kv_len,
                                ps_trace_step *out, ps_error *err) {
    const ps_level *l = &plan->levels[level];
    const ps_tier *t = &l->tiers[tier];
    const ps_program *p = &plan->programs[t->program];
    ps_lower_request r = {.model = model,
                          .profile = profile,
                          .cost = cost,
                          .n_threads = l->n_threads,
                          .max_tokens = t->max_tokens,
                          .max_outputs = t->max_outputs,
                          .n_seqs = l->n_seqs,
                          .bucket_tokens = l->bucket_tokens};
    uint64_t n = 0, after = kv_len + (t->max_tokens <= l->n_seqs ? 1 : t->max_tokens);
    uint32_t n_tiles = (t->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
    ps_sim_time *times = NULL;
    double end_s = 0;
    double *work = calloc(p->n_instrs ? p->n_instrs : 1, sizeof *work);
    ps_trace_event *events = NULL;
    ps_status status = work ? PS_OK : no_memory(err);
    for (uint32_t i = 0; i < p->n_blocks && !status; i++)
        for (uint32_t k = p->blocks[i].instr0; k < p->blocks[i].instr0 + p->blocks[i].n_instrs; k++)
            work[k] = ps_instr_cost(&r, p, k, p->blocks[i].layer0, after).time_s;
    ps_sim sim = {.program = p, .n_tiles = n_tiles, .work_s = work, .start_s = profile->pool_start_s.median};
    if (!status)
        status = ps_simulate_all(&sim, &times, &n, &end_s, err);
    if (!status && (n > UINT32_MAX || !(events = calloc(n ? n : 1, sizeof *events))))
        status = no_memory(err);
    if (!status) {
        ps_cursor c;
        uint32_t layer;
        ps_cursor_start(&c, p, n_tiles);
        for (const ps_instr *in; (in = ps_cursor_get(&c, &layer)) && c.index < n; ps_cursor_next(&c))
            events[c.index] = (ps_trace_event){.index = c.index,
                                               .instr = (uint32_t)(in - p->instrs),
                                               .layer = layer,
                                               .tile = c.tile,
                                               .queue = in->queue,
                                               .op = in->op,
                                               .start_s = times[c.index].start_s,
                                               .end_s = times[c.index].end_s,
                                               .predicted_start_s = times[c.index].start_s,
                                               .predicted_end_s = times[c.index].end_s};
        *out = (ps_trace_step){.level = level,
                               .tier = tier,
                               .n_tokens = t->max_tokens,
                               .kv_len = kv_len,
                               .step_s = end_s,
                               .predicted_s = end_s,
                               .n_events = (uint32_t)n,
                               .events = events};
        events = NULL;
    }
    free(work);
    free(times);
    free(events);
    return status;
}
