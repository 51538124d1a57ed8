/* Levels, tiers and programs of a plan: see planner.h. */
#include "plan/planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/checked.h"
#include "plan/bounds.h"
#include "plan/build.h"
#include "plan/memory.h"
#include "plan/nearest.h"
#include "plan/search.h"

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

ps_status ps_host_build(ps_building *b, const ps_level_request *lr, bool with_times, ps_level *level,
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

/* The level's programs are built, but the machine has not the memory. */
static ps_status infeasible(ps_building *b, const ps_level_request *lr, const ps_level *level,
                            uint64_t kv_bytes, uint64_t memory, ps_too_small *out) {
    *out =
        (ps_too_small){.level = *lr, .is = {.needed_bytes = level->peak_host_bytes, .memory_bytes = memory}};
    const struct {
        const char *name;
        uint64_t bytes;
    } parts[] = {
        {"weights", b->q->model->weight_bytes},
        {"kv cache", kv_bytes},
        {"activations and scratch", kv_bytes == UINT64_MAX ? 0 : level->host_arena_bytes - kv_bytes}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].bytes > out->is.largest_bytes) {
            out->is.largest_bytes = parts[i].bytes;
            snprintf(out->is.largest, sizeof out->is.largest, "%s", parts[i].name);
        }
    return ps_error_set(b->err, PS_E_INFEASIBLE, "host memory", "does not fit");
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
    ps_profile_facts(q->profile, &plan->facts);
    plan->n_layers = m->n_layers;
    plan->n_shards = m->n_shards;
    plan->shards = ps_arena_array(plan->arena, m->n_shards, sizeof *plan->shards);
    if (!plan->shards)
        return ps_build_no_memory(b->err);
    for (uint32_t s = 0; s < m->n_shards; s++)
        plan->shards[s] = (ps_plan_shard){m->shards[s].kind, m->shards[s].layer, m->shards[s].weight_bytes};
    return ps_profile_hash(q->profile, plan->profile_hash, b->err);
}

double ps_plan_workload_s(const ps_plan_request *q, const ps_level *l) {
    double prompt =
               fmin(q->prompt_tokens ? (double)q->prompt_tokens : PS_PLAN_PROMPT, (double)l->bucket_tokens),
           output = q->output_tokens ? (double)q->output_tokens : PS_PLAN_OUTPUT;
    uint32_t decode = 0, fill = 0;
    while (decode + 1 < l->n_tiers && l->tiers[decode].max_tokens < l->n_seqs)
        decode++;
    while (fill + 1 < l->n_tiers && l->tiers[fill].max_tokens < prompt)
        fill++;
    const ps_tier *a = &l->tiers[decode], *b = &l->tiers[fill];
    return output * ceil((double)l->n_seqs / a->max_tokens) * (a->step_empty_s + a->step_full_s) / 2 +
           (double)l->n_seqs * ceil(prompt / b->max_tokens) * b->step_empty_s;
}

/* ---- levels without a GPU ---- */

/* The workload with a team, as ps_plan_workload_s has it, without building the level. */
static ps_status host_workload(ps_building *b, const ps_level_request *lr, double *out_s) {
    uint32_t sizes[MAX_TIERS], n = ps_plan_tiers(b->q, lr, sizes), at[2] = {0, 0};
    double prompt = b->q->prompt_tokens ? (double)b->q->prompt_tokens : PS_PLAN_PROMPT, step[2][2];
    prompt = fmin(prompt, (double)lr->bucket_tokens);
    while (at[0] + 1 < n && sizes[at[0]] < lr->n_seqs)
        at[0]++;
    while (at[1] + 1 < n && sizes[at[1]] < prompt)
        at[1]++;
    for (int i = 0; i < 2; i++) {
        ps_arena *arena = ps_arena_new(UINT64_MAX);
        ps_lower_request r = ps_build_request(b->q, lr, sizes[at[i]]);
        ps_program p;
        ps_status status = arena ? ps_lower(&r, arena, &p, b->err) : ps_build_no_memory(b->err);
        uint64_t after = r.max_tokens <= r.n_seqs ? 1 : r.max_tokens;
        for (int full = 0; full < 2 - i && !status; full++)
            status = ps_build_step_s(&r, &p, full && r.bucket_tokens > after ? r.bucket_tokens : after,
                                     &step[i][full], b->err);
        ps_arena_free(arena);
        if (status)
            return status;
    }
    double output = b->q->output_tokens ? (double)b->q->output_tokens : PS_PLAN_OUTPUT;
    *out_s = output * ceil((double)lr->n_seqs / sizes[at[0]]) * (step[0][0] + step[0][1]) / 2 +
             (double)lr->n_seqs * ceil(prompt / sizes[at[1]]) * step[1][0];
    return PS_OK;
}

/* The team for a level without a GPU: all threads, unless fewer are clearly faster. */
static ps_status host_team(ps_building *b, ps_level_request *lr) {
    double best, s;
    ps_level_request try = *lr;
    ps_status status = host_workload(b, lr, &best);
    for (uint32_t n = lr->n_threads - 1; n > 0 && !status; n--) {
        if (!ps_search_is_team(n, b->q->profile->topology.n_allowed))
            continue;
        try.n_threads = n;
        status = host_workload(b, &try, &s);
        if (!status && s < best * PS_SEARCH_TEAM) {
            best = s;
            lr->n_threads = n;
        }
    }
    return status;
}

/* Is the plan's level already there, but for its name? */
static bool known_level(const ps_plan *plan, const ps_level *l) {
    for (uint32_t i = 0; i < plan->n_levels; i++) {
        const ps_level *x = &plan->levels[i];
        if (x->budget_bytes == l->budget_bytes && x->bucket_tokens == l->bucket_tokens &&
            x->n_seqs == l->n_seqs && x->n_threads == l->n_threads)
            return true;
    }
    return false;
}

/* Put a level where it belongs among the plan's, which ascend; its report likewise. */
static void add_level(ps_plan *plan, const ps_level *l, ps_plan_report *report, const ps_level_report *r) {
    uint32_t i = plan->n_levels++;
    for (; i > 0; i--) {
        const ps_level *x = &plan->levels[i - 1];
        const ps_level_request a = {.budget_bytes = x->budget_bytes,
                                    .bucket_tokens = x->bucket_tokens,
                                    .n_seqs = x->n_seqs,
                                    .n_threads = x->n_threads},
                               b = {.budget_bytes = l->budget_bytes,
                                    .bucket_tokens = l->bucket_tokens,
                                    .n_seqs = l->n_seqs,
                                    .n_threads = l->n_threads};
        if (compare_levels(&a, &b) <= 0)
            break;
        plan->levels[i] = *x;
        if (report)
            report->levels[i] = report->levels[i - 1];
    }
    plan->levels[i] = *l;
    if (report) {
        report->levels[i] = *r;
        report->n_levels = plan->n_levels;
    }
}

/* Build every level asked for, in order, into the plan. */
static ps_status build_levels(ps_building *b, const ps_level_request *levels, ps_plan_report *report,
                              ps_too_small *too_small) {
    const ps_plan_request *q = b->q;
    uint64_t memory = q->memory_bytes ? q->memory_bytes : q->profile->topology.memory_bytes;
    uint32_t *at = calloc(q->n_levels, sizeof *at), n = 0; /* those with a GPU */
    uint64_t looked_at = 0;
    ps_level *built = calloc(q->n_levels, sizeof *built);
    ps_level_report *reports = calloc(q->n_levels, sizeof *reports);
    ps_status status = at && built && reports ? PS_OK : ps_build_no_memory(b->err);
    for (uint32_t i = 0; i < q->n_levels && !status; i++) /* host levels come first: their budget is 0 */
        if (levels[i].budget_bytes && (i == 0 || compare_levels(&levels[i - 1], &levels[i]) != 0))
            at[n++] = i;
    for (uint32_t i = 0; i < q->n_levels && !status && !levels[i].budget_bytes; i++) {
        if (i && compare_levels(&levels[i - 1], &levels[i]) == 0)
            continue;
        ps_level level = {0};
        ps_level_request lr = levels[i];
        uint64_t kv_bytes = 0;
        status = host_team(b, &lr);
        if (!status)
            status = ps_host_build(b, &lr, true, &level, &kv_bytes);
        if (!status && memory && level.peak_host_bytes > memory)
            status = infeasible(b, &levels[i], &level, kv_bytes, memory, too_small);
        if (status || known_level(b->plan, &level))
            continue;
        ps_level_report r = {.bucket_tokens = lr.bucket_tokens,
                             .n_seqs = lr.n_seqs,
                             .asked_threads = levels[i].n_threads,
                             .n_threads = lr.n_threads,
                             .chosen = {.feasible = true, .workload_s = ps_plan_workload_s(q, &level)}};
        memcpy(r.budget, lr.budget, sizeof r.budget);
        add_level(b->plan, &level, report, &r);
    }
    if (!status && n)
        status = ps_gpu_plan(b, levels, at, n, built, report ? reports : NULL, &looked_at, too_small);
    for (uint32_t i = 0; i < n && !status; i++) {
        if (memory && built[i].peak_host_bytes > memory) {
            uint64_t kv_bytes = 0;
            for (uint32_t l = 0; l < q->model->n_layers; l++)
                if (built[i].kv[l].space == PS_SPACE_HOST)
                    kv_bytes += built[i].kv[l].bytes * built[i].n_seqs;
            status = infeasible(b, &levels[at[i]], &built[i], kv_bytes, memory, too_small);
        }
        if (!status && !known_level(b->plan, &built[i]))
            add_level(b->plan, &built[i], report, &reports[i]);
    }
    if (report)
        report->looked_at = looked_at;
    free(at);
    free(built);
    free(reports);
    return status;
}

ps_status ps_plan_auto_budgets(const ps_plan_request *q, uint64_t *out, uint32_t *out_n, ps_error *err) {
    ps_status status = q->profile->gpu.name[0]
                           ? PS_OK
                           : ps_error_set(err, PS_E_UNAVAILABLE, "auto",
                                          "the profile's machine has no GPU; use --budget host");
    ps_plan_request r = *q;
    ps_level_request level = q->n_levels ? q->levels[0] : (ps_level_request){0};
    level.budget_bytes = 1;
    r.levels = &level;
    r.n_levels = 1;
    if (!status)
        status = check_request(&r, err);
    ps_building b = {.q = &r, .err = err, .cache = calloc(1, sizeof *b.cache)};
    if (!status && !b.cache)
        status = ps_build_no_memory(err);
    ps_search *s = NULL;
    if (!status)
        status = ps_search_new(&b, &level, &s);
    if (!status) {
        status = ps_search_changes(s, &level, out, out_n);
        if (status && err)
            *err = *ps_search_error(s);
    }
    ps_search_free(s);
    free(b.cache);
    return status;
}

ps_status ps_plan_build(const ps_plan_request *q, ps_plan **out, ps_shortage *shortage, ps_error *err) {
    return ps_plan_search(q, out, NULL, shortage, err);
}

ps_status ps_plan_search(const ps_plan_request *q, ps_plan **out, ps_plan_report *report,
                         ps_shortage *shortage, ps_error *err) {
    ps_too_small too_small = {0};
    ps_status status = ps_build_plan(q, out, report, &too_small, err);
    if (status == PS_E_INFEASIBLE && too_small.level.n_seqs != 0)
        status = ps_nearest(q, &too_small, err);
    if (status == PS_E_INFEASIBLE && shortage)
        *shortage = too_small.is;
    return status;
}

ps_status ps_build_plan(const ps_plan_request *q, ps_plan **out, ps_plan_report *report,
                        ps_too_small *too_small, ps_error *err) {
    ps_status status = check_request(q, err);
    ps_plan_report to = {0};
    if (status)
        return status;
    ps_building b = {
        .q = q, .err = err, .work = ps_arena_new(UINT64_MAX), .cache = calloc(1, sizeof *b.cache)};
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    ps_level_request *levels = calloc(q->n_levels, sizeof *levels);
    b.plan = arena ? ps_arena_alloc(arena, sizeof *b.plan) : NULL;
    if (report)
        to.levels = calloc(q->n_levels, sizeof *to.levels);
    if (!b.work || !b.cache || !levels || !b.plan || (report && !to.levels)) {
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
    status = build_levels(&b, levels, report ? &to : NULL, too_small);
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
    if (report) {
        *report = to;
        to.levels = NULL;
    }
done:
    free(to.levels);
    free(levels);
    free(b.cache);
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
    uint64_t n = 0, after = kv_len + (t->max_tokens <= l->n_seqs ? 1 : t->max_tokens);
    uint32_t n_tiles = (t->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
    ps_sim_time *times = NULL;
    double end_s = 0;
    ps_trace_event *events = NULL;
    ps_status status = ps_build_stream(&r, p, after, &times, &n, &end_s, err);
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
    free(times);
    free(events);
    return status;
}
