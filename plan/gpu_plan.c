/* The levels of a plan that have a GPU: what they share. Each is searched by itself; then they agree on teams and a path for
 * resident weights, and are built from the one with the least resident to the one with the most. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/bounds.h"
#include "plan/build.h"
#include "plan/search.h"

/* Chosen each by itself, and what they share. order: by what is resident. */
typedef struct gpu_levels {
    uint32_t n, n_searches;
    const uint32_t *at;
    uint32_t *order, *of; /* of: each level's search */
    uint32_t *team;       /* threads that each level uses */
    ps_schedule *choice;
    ps_search **search;
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
        const ps_schedule *c = &g->choice[i];
        status = ps_resident_grow(&set, &c->mix, b->err);
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

static bool fewer(const ps_resident_mix *a, const ps_resident_mix *b) {
    return a->n_attn + (uint64_t)a->n_head + a->n_ffn < b->n_attn + (uint64_t)b->n_head + b->n_ffn;
}

static void order_levels(gpu_levels *g) {
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t k = i;
        for (; k > 0 && fewer(&g->choice[i].mix, &g->choice[g->order[k - 1]].mix); k--)
            g->order[k] = g->order[k - 1];
        g->order[k] = i;
    }
}

static ps_status choose(ps_building *b, const ps_level_request *levels, gpu_levels *g, uint32_t i,
                        ps_path path) {
    const ps_level_request *lr = &levels[g->at[i]];
    ps_search *s = g->search[g->of[i]];
    return b->q->forced ? ps_search_family(s, lr, b->q->family, &g->choice[i])
                        : ps_search_solve(s, lr, path, g->team[i], &g->choice[i]);
}

/* The levels for which so many threads are allowed with another team, if that is faster over all of them: levels that a run
 * changes between have one team. */
static ps_status try_team(ps_building *b, const ps_level_request *levels, gpu_levels *g, uint32_t allowed,
                          uint32_t n_threads) {
    gpu_levels with = *g;
    double gain = 0;
    uint32_t n = 0;
    ps_status status = PS_OK;
    with.choice = calloc(g->n, sizeof *with.choice);
    with.team = calloc(g->n, sizeof *with.team);
    if (!with.choice || !with.team)
        status = ps_build_no_memory(b->err);
    for (uint32_t i = 0; i < g->n && !status; i++) {
        if (levels[g->at[i]].n_threads != allowed)
            continue;
        with.team[i] = n_threads;
        status = choose(b, levels, &with, i, PS_PATH_COUNT);
        gain += status ? 0 : log(with.choice[i].workload_s / g->choice[i].workload_s);
        n++;
    }
    for (uint32_t i = 0; i < g->n && !status && gain < n * log(PS_SEARCH_TEAM); i++)
        if (with.team[i]) {
            g->choice[i] = with.choice[i];
            g->team[i] = n_threads;
        }
    free(with.choice);
    free(with.team);
    return status;
}

/* Teams smaller than what is allowed: the one that does the same schedules fastest, and where there are few levels the next of
 * those that were measured, unless it is far behind; and those of levels with fewer threads. */
static ps_status smaller_teams(ps_building *b, const ps_level_request *levels, gpu_levels *g,
                               uint32_t allowed) {
    enum { FEW_LEVELS = 2 };
    const ps_profile *p = b->q->profile;
    const double far_behind = log(1.05);
    double best = log(PS_SEARCH_TEAM);
    uint32_t same = 0, next = 0, group = 0;
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < g->n; i++)
        group += levels[g->at[i]].n_threads == allowed;
    for (uint32_t n = allowed - 1; n > 0 && !status; n--) {
        double sum = 0, s;
        bool measured = false;
        if (!ps_search_is_team(n, p->topology.n_allowed))
            continue;
        for (uint32_t i = 0; i < g->n && !status; i++)
            if (levels[g->at[i]].n_threads == allowed) {
                status = ps_search_with_team(g->search[g->of[i]], &g->choice[i], n, &s);
                sum += status ? 0 : log(s / g->choice[i].workload_s) / group;
            }
        for (uint32_t i = 0; i < p->n_dram; i++)
            measured |= p->dram[i].n_threads == n;
        if (sum < best) {
            best = sum;
            same = n;
        }
        if (measured && !next && group <= FEW_LEVELS && sum < far_behind)
            next = n;
        if (sum > far_behind) /* and those below are further behind */
            break;
    }
    if (!status && same)
        status = try_team(b, levels, g, allowed, same);
    if (!status && next && next != same)
        status = try_team(b, levels, g, allowed, next);
    for (uint32_t i = 0; i < g->n && !status; i++) {
        bool seen = g->team[i] == same || g->team[i] == next || levels[g->at[i]].n_threads >= allowed;
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = g->team[k] == g->team[i] && levels[g->at[k]].n_threads < allowed;
        if (!seen)
            status = try_team(b, levels, g, allowed, g->team[i]);
    }
    return status;
}

/* Each count of threads that is allowed for some level, ascending. */
static ps_status choose_teams(ps_building *b, const ps_level_request *levels, gpu_levels *g) {
    ps_status status = PS_OK;
    for (uint32_t before = 0; !status;) {
        uint32_t allowed = UINT32_MAX;
        for (uint32_t i = 0; i < g->n; i++)
            if (levels[g->at[i]].n_threads > before && levels[g->at[i]].n_threads < allowed)
                allowed = levels[g->at[i]].n_threads;
        if (allowed == UINT32_MAX)
            break;
        status = smaller_teams(b, levels, g, allowed);
        before = allowed;
    }
    return status;
}

/* All levels of a plan take one path: the one with which they are fastest, of those that one of them would take. */
static ps_status agree(ps_building *b, const ps_level_request *levels, gpu_levels *g) {
    bool wanted[PS_PATH_COUNT] = {false};
    uint32_t n = 0;
    ps_schedule *best = calloc(g->n, sizeof *best);
    double least = INFINITY;
    ps_status status = best ? PS_OK : ps_build_no_memory(b->err);
    for (uint32_t i = 0; i < g->n && !status; i++) {
        n += !wanted[g->choice[i].path];
        wanted[g->choice[i].path] = true;
    }
    wanted[PS_PATH_ALL_ATTN_HEAD_NEXT] = true; /* the plainest in any case */
    for (int p = 0; p < PS_PATH_COUNT && n > 1 && !status; p++) {
        double sum = 0;
        for (uint32_t i = 0; i < g->n && wanted[p] && !status; i++) {
            status = choose(b, levels, g, i, (ps_path)p);
            sum += log(g->choice[i].workload_s);
        }
        if (status == PS_E_INFEASIBLE) { /* this way one of them has none */
            status = PS_OK;
            continue;
        }
        if (!status && wanted[p] && sum < least) {
            least = sum;
            memcpy(best, g->choice, g->n * sizeof *best);
        }
    }
    if (!status && n > 1 && !isfinite(least))
        status = ps_error_set(b->err, PS_E_INTERNAL, "plan", "the levels have no path in common");
    if (!status && n > 1)
        memcpy(g->choice, best, g->n * sizeof *best);
    free(best);
    return status;
}

/* A larger budget is never slower: where what was built for a smaller one of the same context, sequences and team is faster, it
 * is taken as it is. Levels come in order of budgets. */
static ps_status no_slower(ps_building *b, const ps_level_request *levels, const gpu_levels *g, ps_level *out,
                           bool *smaller) {
    for (uint32_t i = 1; i < g->n; i++)
        for (uint32_t k = 0; k < g->n; k++) {
            const ps_level_request *x = &levels[g->at[k]], *y = &levels[g->at[i]];
            if (k == i || x->bucket_tokens != y->bucket_tokens || x->n_seqs != y->n_seqs ||
                out[k].n_threads != out[i].n_threads || x->budget_bytes > y->budget_bytes ||
                !(ps_plan_workload_s(b->q, &out[k]) < ps_plan_workload_s(b->q, &out[i])))
                continue;
            ps_level *l = &out[i];
            ps_tier *tiers = ps_arena_array(b->plan->arena, out[k].n_tiers, sizeof *tiers);
            if (!tiers)
                return ps_build_no_memory(b->err);
            memcpy(tiers, out[k].tiers, out[k].n_tiers * sizeof *tiers);
            *l = out[k];
            l->tiers = tiers;
            memcpy(l->budget, y->budget, sizeof l->budget);
            l->budget_bytes = y->budget_bytes;
            for (uint32_t t = 0; t < l->n_tiers; t++) { /* of this budget */
                ps_lower_request r =
                    ps_lower_request_of(l, &tiers[t], b->q->model, b->q->profile, b->q->cost);
                ps_bounds(&r, &tiers[t].raw_bound_s, &tiers[t].reachable_bound_s);
            }
            g->choice[i] = g->choice[k];
            smaller[i] = true;
        }
    return PS_OK;
}

static ps_status open_searches(ps_building *b, const ps_level_request *levels, gpu_levels *g) {
    ps_plan_tell(b->q, 0, "searching");
    for (uint32_t i = 0; i < g->n; i++) {
        const ps_level_request *lr = &levels[g->at[i]];
        uint32_t k = 0;
        while (k < g->n_searches && !ps_search_same(g->search[k], lr))
            k++;
        g->of[i] = k;
        if (k < g->n_searches)
            continue;
        ps_status status = ps_search_new(b, lr, &g->search[k]);
        if (status)
            return status;
        g->n_searches++;
        if (g->n == 1)
            ps_search_alone(g->search[k]);
    }
    return PS_OK;
}

static ps_candidate candidate_of(const ps_schedule *s) {
    return (ps_candidate){isfinite(s->workload_s), s->decode_s, s->prompt_s, s->workload_s};
}

static ps_status report_level(ps_building *b, const ps_level_request *lr, const gpu_levels *g, uint32_t i,
                              const ps_level *level, bool smaller, ps_level_report *r) {
    ps_schedule families[PS_FAMILY_COUNT];
    const ps_schedule *c = &g->choice[i];
    ps_status status = ps_search_families(g->search[g->of[i]], lr, families);
    *r = (ps_level_report){.budget_bytes = lr->budget_bytes,
                           .bucket_tokens = lr->bucket_tokens,
                           .n_seqs = lr->n_seqs,
                           .asked_threads = lr->n_threads,
                           .n_threads = level->n_threads,
                           .chosen = candidate_of(c),
                           .decode = c->decode,
                           .prompt = c->prompt,
                           .path = (ps_path)c->path,
                           .own_mix = c->left_out.n_attn || c->left_out.n_head || c->left_out.n_ffn,
                           .kv_policy = (ps_kv_policy)c->kv_policy,
                           .smaller = smaller};
    memcpy(r->budget, lr->budget, sizeof r->budget);
    r->chosen.workload_s = ps_plan_workload_s(b->q, level);
    r->left_bytes =
        lr->budget_bytes - level->vram_base_bytes - level->vram_work_bytes - level->vram_weight_bytes;
    for (int f = 0; f < PS_FAMILY_COUNT && !status; f++)
        r->family[f] = candidate_of(&families[f]);
    return status;
}

static void free_gpu_levels(gpu_levels *g) {
    for (uint32_t i = 0; i < g->n_searches; i++)
        ps_search_free(g->search[i]);
    free(g->order);
    free(g->of);
    free(g->team);
    free(g->choice);
    free(g->search);
}

ps_status ps_gpu_plan(ps_building *b, const ps_level_request *levels, const uint32_t *at, uint32_t n,
                      ps_level *out, ps_level_report *reports, uint64_t *looked_at, ps_too_small *too_small) {
    const uint32_t tries = 16 + 4 * n;
    gpu_levels levels_of = {.n = n,
                            .at = at,
                            .order = calloc(n, sizeof *levels_of.order),
                            .of = calloc(n, sizeof *levels_of.of),
                            .team = calloc(n, sizeof *levels_of.team),
                            .choice = calloc(n, sizeof *levels_of.choice),
                            .search = calloc(n, sizeof *levels_of.search)},
               *g = &levels_of;
    bool *smaller = calloc(n, sizeof *smaller), settled = false;
    ps_status status = smaller && g->order && g->of && g->team && g->choice && g->search
                           ? open_searches(b, levels, g)
                           : ps_build_no_memory(b->err);
    for (uint32_t i = 0; i < g->n && !status; i++) {
        g->team[i] = levels[g->at[i]].n_threads;
        status = choose(b, levels, g, i, PS_PATH_COUNT);
        if (status == PS_E_INFEASIBLE)
            *too_small = (ps_too_small){
                .level = levels[g->at[i]], .vram = true, .is.memory_bytes = levels[g->at[i]].budget_bytes};
    }
    if (!status && !b->q->forced)
        status = choose_teams(b, levels, g);
    if (!status && !b->q->forced)
        status = agree(b, levels, g);
    ps_building kept = *b;
    for (uint32_t round = 0; round < tries && !status && !settled; round++) {
        uint32_t over;
        uint64_t bytes = 0;
        b->n_programs = kept.n_programs; /* of an earlier round */
        memset(out, 0, g->n * sizeof *out);
        order_levels(g);
        /* About a third of the time, of few levels and of many. */
        ps_plan_tell(b->q, 0.35, "building levels");
        status = build_gpu_levels(b, levels, g, out, &over, &bytes);
        settled = over == UINT32_MAX;
        if (status || settled)
            break;
        if (!ps_search_less(g->search[g->of[over]], &levels[g->at[over]], bytes, &g->choice[over]))
            break;
    }
    if (!status && !settled)
        status = ps_error_set(b->err, PS_E_INTERNAL, "plan", "the levels' memory does not settle");
    ps_plan_tell(b->q, 0.9, "comparing families");
    if (!status && !b->q->forced)
        status = no_slower(b, levels, g, out, smaller);
    for (uint32_t i = 0; i < g->n && !status && reports; i++)
        status = report_level(b, &levels[g->at[i]], g, i, &out[i], smaller[i], &reports[i]);
    for (uint32_t i = 0; i < g->n_searches; i++)
        *looked_at += ps_search_looked_at(g->search[i]);
    free(smaller);
    free_gpu_levels(g);
    return status;
}
