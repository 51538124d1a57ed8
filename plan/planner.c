/* Levels, tiers and programs of a plan: see planner.h. */
#include "plan/planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/checked.h"
#include "plan/bounds.h"
#include "plan/build.h"
#include "plan/memory.h"
#include "plan/simulate.h"

enum { MAX_TIERS = 32, MAX_STEP_TOKENS = 65536 };

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

ps_lower_request ps_build_request(const ps_plan_request *q, const ps_level_request *level,
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

/* Programs, offsets and sizes of a level; times only where `level` is wanted for a plan. */
static ps_status build_level(ps_building *b, const ps_level_request *lr, bool with_times, ps_level *level,
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
        return ps_build_no_memory(b->err);
    for (uint32_t s = 0; s < m->n_shards; s++)
        level->placement[s] = PS_PLACE_HOST;
    uint64_t tile = sizes[n_tiers - 1] < PS_TILE_TOKENS ? sizes[n_tiers - 1] : PS_TILE_TOKENS;
    uint64_t ends[PS_SPACE_COUNT], arena_end[PS_SPACE_COUNT], kv_end;
    ps_memory_kv(m, lr->bucket_tokens, tile, lr->n_seqs, 0, level->kv, ends);
    kv_end = ends[PS_SPACE_HOST];
    memcpy(arena_end, ends, sizeof arena_end);
    for (uint32_t t = 0; t < n_tiers && kv_end != UINT64_MAX; t++) {
        ps_tier *tier = &level->tiers[t];
        ps_lower_request r = ps_build_request(b->q, lr, sizes[t]);
        ps_status status = ps_build_tier(b, &r, arena, ends, tier, arena_end);
        if (status)
            return status;
        if (with_times) {
            status = ps_build_predict(b, &r, &b->programs[tier->program].program, tier);
            if (status)
                return status;
            ps_bounds(&r, &tier->raw_bound_s, &tier->reachable_bound_s);
        }
    }
    level->host_arena_bytes = arena_end[PS_SPACE_HOST];
    if (!ps_add_u64(level->host_arena_bytes, m->weight_bytes, &level->peak_host_bytes) ||
        !ps_add_u64(level->peak_host_bytes, ps_memory_program_bytes(m, lr->n_threads, lr->n_seqs),
                    &level->peak_host_bytes))
        level->peak_host_bytes = UINT64_MAX;
    *out_kv_end = kv_end;
    return PS_OK;
}

/* Longest context, a multiple of 256, that fits with the other wishes unchanged; 0 if not even 256 does. */
static uint64_t nearest_context(ps_building *b, const ps_level_request *lr, uint64_t memory) {
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

static ps_status infeasible(ps_building *b, const ps_level_request *lr, const ps_level *level,
                            uint64_t kv_bytes, uint64_t memory, ps_shortage *shortage) {
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
        if (l->budget_bytes != 0 && !q->profile->gpu.name[0])
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
static ps_status collect_kernels(ps_building *b) {
    const ps_profile *profile = b->q->profile;
    ps_plan *plan = b->plan;
    plan->kernels = ps_arena_array(plan->arena, profile->n_kernels, sizeof *plan->kernels);
    if (!plan->kernels)
        return ps_build_no_memory(b->err);
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

static ps_status fill_head(ps_building *b) {
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
        return ps_build_no_memory(b->err);
    for (uint32_t s = 0; s < m->n_shards; s++)
        plan->shards[s] = (ps_plan_shard){m->shards[s].kind, m->shards[s].layer, m->shards[s].weight_bytes};
    return ps_profile_hash(q->profile, plan->profile_hash, b->err);
}

/* Levels with a GPU, chosen each by itself, and what they share. order: by the bytes that are resident. */
typedef struct gpu_levels {
    uint32_t n;
    uint32_t *at, *order;
    ps_gpu_choice *choice;
} gpu_levels;

/* The resident pieces of every level are the first of the next larger one's: sets are grown in that order, from one to
 * the next. *out_over: level whose work arena came out larger than it was chosen for, and by how much. */
static ps_status build_gpu_levels(ps_building *b, const ps_level_request *levels, const gpu_levels *g,
                                  ps_level *out, uint32_t *out_over, uint64_t *out_bytes) {
    ps_resident_set set;
    ps_status status = ps_resident_init(&set, b->q->model, b->err);
    *out_over = UINT32_MAX;
    for (uint32_t k = 0; k < g->n && !status && *out_over == UINT32_MAX; k++) {
        uint32_t i = g->order[k];
        ps_level *level = &out[i];
        const ps_gpu_choice *c = &g->choice[i];
        status = ps_resident_grow(&set, c->weight_bytes, c->n_attn, b->err);
        if (!status)
            status = ps_gpu_build(b, &levels[g->at[i]], c, &set, level);
        uint64_t all = level->vram_base_bytes + level->vram_work_bytes + level->vram_weight_bytes;
        if (!status && all > level->budget_bytes) {
            *out_over = i;
            *out_bytes = all - level->budget_bytes;
        }
    }
    ps_resident_free(&set);
    return status;
}

static void order_levels(gpu_levels *g) {
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t k = i;
        for (; k > 0; k--) {
            const ps_gpu_choice *x = &g->choice[g->order[k - 1]], *y = &g->choice[i];
            if (x->n_attn < y->n_attn || (x->n_attn == y->n_attn && x->weight_bytes <= y->weight_bytes))
                break;
            g->order[k] = g->order[k - 1];
        }
        g->order[k] = i;
    }
}

/* A larger budget is never slower: where what was chosen for a smaller one of the same context, sequences and threads is
 * predicted to be faster, it is taken as it is. Levels come in order of their budgets. */
static void no_slower(const ps_level_request *levels, const gpu_levels *g) {
    for (uint32_t i = 1; i < g->n; i++)
        for (uint32_t k = 0; k < i; k++) {
            const ps_level_request *x = &levels[g->at[k]], *y = &levels[g->at[i]];
            if (x->bucket_tokens == y->bucket_tokens && x->n_seqs == y->n_seqs &&
                x->n_threads == y->n_threads && x->budget_bytes < y->budget_bytes &&
                g->choice[k].workload_s < g->choice[i].workload_s)
                g->choice[i] = g->choice[k];
        }
}

/* All levels with a GPU, into out[]: `at` gives their places among the levels asked for. */
static ps_status plan_gpu(ps_building *b, const ps_level_request *levels, gpu_levels *g, ps_level *out,
                          ps_shortage *shortage) {
    enum { TRIES = 16 };
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < g->n && !status; i++)
        status = ps_gpu_choose(b, &levels[g->at[i]], &g->choice[i], shortage);
    if (!status && !b->q->forced)
        no_slower(levels, g);
    ps_building kept = *b;
    for (int round = 0; round < TRIES && !status; round++) {
        uint32_t over;
        uint64_t bytes = 0;
        b->n_programs = kept.n_programs; /* of an earlier round */
        memset(out, 0, g->n * sizeof *out);
        order_levels(g);
        status = build_gpu_levels(b, levels, g, out, &over, &bytes);
        if (status || over == UINT32_MAX)
            return status;
        ps_gpu_choice *c = &g->choice[over];
        bytes = (bytes + PS_VRAM_ALIGN - 1) / PS_VRAM_ALIGN * PS_VRAM_ALIGN;
        if (bytes >= c->weight_bytes)
            break;
        c->weight_bytes -= bytes;
    }
    return status ? status
                  : ps_error_set(b->err, PS_E_INTERNAL, "plan", "the levels' memory does not settle");
}

/* Build every level asked for, in order, into the plan. */
static ps_status build_levels(ps_building *b, const ps_level_request *levels, ps_shortage *shortage) {
    const ps_plan_request *q = b->q;
    uint64_t memory = q->memory_bytes ? q->memory_bytes : q->profile->topology.memory_bytes;
    gpu_levels g = {.at = calloc(q->n_levels, sizeof *g.at),
                    .order = calloc(q->n_levels, sizeof *g.order),
                    .choice = calloc(q->n_levels, sizeof *g.choice)};
    ps_level *built = calloc(q->n_levels, sizeof *built);
    ps_status status = g.at && g.order && g.choice && built ? PS_OK : ps_build_no_memory(b->err);
    for (uint32_t i = 0; i < q->n_levels && !status; i++) /* host levels come first: their budget is 0 */
        if (levels[i].budget_bytes && (i == 0 || compare_levels(&levels[i - 1], &levels[i]) != 0))
            g.at[g.n++] = i;
    for (uint32_t i = 0; i < q->n_levels && !status && !levels[i].budget_bytes; i++) {
        if (i && compare_levels(&levels[i - 1], &levels[i]) == 0)
            continue;
        ps_level *level = &b->plan->levels[b->plan->n_levels];
        uint64_t kv_bytes = 0;
        status = build_level(b, &levels[i], true, level, &kv_bytes);
        if (!status && memory && level->peak_host_bytes > memory)
            status = infeasible(b, &levels[i], level, kv_bytes, memory, shortage);
        b->plan->n_levels += !status;
    }
    if (!status && g.n)
        status = plan_gpu(b, levels, &g, built, shortage);
    for (uint32_t i = 0; i < g.n && !status; i++) {
        if (memory && built[i].peak_host_bytes > memory) {
            uint64_t kv_bytes = 0;
            for (uint32_t l = 0; l < q->model->n_layers; l++)
                if (built[i].kv[l].space == PS_SPACE_HOST)
                    kv_bytes += built[i].kv[l].bytes * built[i].n_seqs;
            status = infeasible(b, &levels[g.at[i]], &built[i], kv_bytes, memory, shortage);
        }
        if (!status)
            b->plan->levels[b->plan->n_levels++] = built[i];
    }
    free(g.at);
    free(g.order);
    free(g.choice);
    free(built);
    return status;
}

ps_status ps_plan_build(const ps_plan_request *q, ps_plan **out, ps_shortage *shortage, ps_error *err) {
    ps_status status = check_request(q, err);
    if (status)
        return status;
    ps_building b = {.q = q, .err = err, .work = ps_arena_new(UINT64_MAX)};
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    ps_level_request *levels = calloc(q->n_levels, sizeof *levels);
    b.plan = arena ? ps_arena_alloc(arena, sizeof *b.plan) : NULL;
    if (!b.work || !levels || !b.plan) {
        status = ps_build_no_memory(err);
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
        status = ps_build_no_memory(err);
        goto done;
    }
    status = build_levels(&b, levels, shortage);
    if (status)
        goto done;
    status = collect_kernels(&b);
    if (status)
        goto done;
    b.plan->n_programs = b.n_programs;
    b.plan->programs = ps_arena_array(arena, b.n_programs, sizeof *b.plan->programs);
    if (!b.plan->programs) {
        status = ps_build_no_memory(err);
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
    ps_lower_request r = ps_lower_request_of(l, t, model, profile, cost);
    ps_contention contention = ps_contention_of(cost, l->n_threads);
    uint64_t n = 0, after = kv_len + (t->max_tokens <= l->n_seqs ? 1 : t->max_tokens);
    uint32_t n_tiles = (t->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
    ps_sim_time *times = NULL;
    double end_s = 0;
    double *work = calloc(p->n_instrs ? p->n_instrs : 1, sizeof *work);
    ps_trace_event *events = NULL;
    ps_status status = work ? PS_OK : ps_build_no_memory(err);
    for (uint32_t i = 0; i < p->n_blocks && !status; i++)
        for (uint32_t k = p->blocks[i].instr0; k < p->blocks[i].instr0 + p->blocks[i].n_instrs; k++)
            work[k] = ps_instr_cost(&r, p, k, p->blocks[i].layer0, after).time_s;
    ps_sim sim = {.program = p,
                  .n_tiles = n_tiles,
                  .work_s = work,
                  .start_s = profile->pool_start_s.median,
                  .speed = r.level ? ps_instr_speed : NULL,
                  .speed_ctx = &contention};
    if (!status)
        status = ps_simulate_all(&sim, &times, &n, &end_s, err);
    if (!status && (n > UINT32_MAX || !(events = calloc(n ? n : 1, sizeof *events))))
        status = ps_build_no_memory(err);
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
