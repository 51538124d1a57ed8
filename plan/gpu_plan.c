/* The levels of a plan that have a GPU: what they share. Each is searched by itself; then they agree on teams and a path for
 * resident weights, and are built from the one with the least resident to the one with the most. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/bounds.h"
#include "plan/build.h"
#include "plan/crew.h"
#include "plan/search.h"

/* Chosen each by itself, and what they share. order: by what is resident. */
typedef struct gpu_levels {
    uint32_t n, n_searches;
    const uint32_t *at;
    uint32_t *order, *of; /* of: each level's search */
    uint32_t *team;       /* threads that each level uses */
    ps_schedule *choice;
    ps_search **search;
    uint64_t looked_at; /* beside what each search has looked at */
} gpu_levels;

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

/* ---- on several threads ---- */

/* Something to do for levels: a search does it for one after the other, and searches beside each other. */
typedef struct each each;
struct each {
    ps_building *b;
    const ps_level_request *levels;
    gpu_levels *g;
    ps_status (*of_level)(const each *e,
                          uint32_t i); /* writes nothing but what is level i's, and its search's */
    const bool *only;                  /* these levels; NULL: all */
    void *more;
    ps_status *status; /* [n] */
};

static void each_of_search(void *ctx, uint32_t worker, uint32_t search) {
    each *e = ctx;
    (void)worker;
    for (uint32_t i = 0; i < e->g->n; i++)
        if (e->g->of[i] == search && (!e->only || e->only[i]) && (e->status[i] = e->of_level(e, i)) != PS_OK)
            break;
}

/* The first level's error of those that have one. *out_at: which. */
static ps_status each_run(each *e, uint32_t *out_at) {
    ps_status status = PS_OK;
    e->status = calloc(e->g->n, sizeof *e->status);
    if (!e->status)
        return ps_build_no_memory(e->b->err);
    ps_crew_run(e->b->q->n_workers, e->g->n_searches, each_of_search, e);
    for (uint32_t i = 0; i < e->g->n && !status; i++)
        if ((status = e->status[i]) != PS_OK) {
            *out_at = i;
            if (e->b->err)
                *e->b->err = *ps_search_error(e->g->search[e->g->of[i]]);
        }
    free(e->status);
    return status;
}

/* Pieces of the searches, each once, for where there are more threads than searches: what they find is then known. */
typedef struct ahead {
    const gpu_levels *g;
    uint32_t n, room;
    struct {
        uint32_t search, n_threads;
        ps_search_piece piece;
    } * at;
} ahead;

static void do_piece(void *ctx, uint32_t worker, uint32_t i) {
    const ahead *a = ctx;
    (void)worker;
    ps_search_ahead(a->g->search[a->at[i].search], a->at[i].n_threads, &a->at[i].piece);
}

static bool add_piece(ahead *a, uint32_t level, const ps_search_piece *p) {
    const uint32_t search = a->g->of[level], n_threads = a->g->team[level];
    for (uint32_t i = 0; i < a->n; i++)
        if (a->at[i].search == search && a->at[i].n_threads == n_threads &&
            a->at[i].piece.avail_bytes == p->avail_bytes && a->at[i].piece.in_full == p->in_full)
            return true;
    if (a->n == a->room) {
        uint32_t room = a->room ? 2 * a->room : 64;
        void *grown = realloc(a->at, room * sizeof *a->at);
        if (!grown)
            return false;
        a->at = grown;
        a->room = room;
    }
    a->at[a->n].search = search;
    a->at[a->n].n_threads = n_threads;
    a->at[a->n++].piece = *p;
    return true;
}

static ps_status look_ahead(const each *e) {
    const gpu_levels *g = e->g;
    ahead a = {.g = g};
    bool ok = true;
    if (e->b->q->forced || ps_crew_size(e->b->q->n_workers, UINT32_MAX) <= g->n_searches)
        return PS_OK;
    for (uint32_t k = 0, found = 1; found && ok; k++) { /* the long ones of all levels first */
        found = 0;
        for (uint32_t i = 0; i < g->n && ok; i++) {
            ps_search_piece p;
            if ((e->only && !e->only[i]) ||
                !ps_search_piece_at(g->search[g->of[i]], &e->levels[g->at[i]], k, &p))
                continue;
            ok = add_piece(&a, i, &p);
            found++;
        }
    }
    if (ok)
        ps_crew_run(e->b->q->n_workers, a.n, do_piece, &a);
    free(a.at);
    return ok ? PS_OK : ps_build_no_memory(e->b->err);
}

static ps_status choose_level(const each *e, uint32_t i) {
    const gpu_levels *g = e->g;
    const ps_level_request *lr = &e->levels[g->at[i]];
    ps_search *s = g->search[g->of[i]];
    const ps_path *path = e->more;
    return e->b->q->forced ? ps_search_family(s, lr, e->b->q->family, &g->choice[i])
                           : ps_search_solve(s, lr, *path, g->team[i], &g->choice[i]);
}

/* The schedules of the levels (only: of these; NULL: all), with the teams that g has for them. *out_at: which has none. */
static ps_status choose(ps_building *b, const ps_level_request *levels, gpu_levels *g, const bool *only,
                        ps_path path, uint32_t *out_at) {
    each e = {.b = b, .levels = levels, .g = g, .of_level = choose_level, .only = only, .more = &path};
    ps_status status = path == PS_PATH_COUNT ? look_ahead(&e) : PS_OK;
    return status ? status : each_run(&e, out_at);
}

/* ---- what levels share ---- */

/* The levels for which so many threads are allowed with another team, if that is faster over all of them: levels that a run
 * changes between have one team. */
static ps_status try_team(ps_building *b, const ps_level_request *levels, gpu_levels *g, uint32_t allowed,
                          uint32_t n_threads) {
    gpu_levels with = *g;
    double gain = 0;
    uint32_t n = 0, at;
    ps_status status = PS_OK;
    bool *only = calloc(g->n, sizeof *only);
    with.choice = calloc(g->n, sizeof *with.choice);
    with.team = calloc(g->n, sizeof *with.team);
    if (!only || !with.choice || !with.team)
        status = ps_build_no_memory(b->err);
    for (uint32_t i = 0; i < g->n && !status; i++) {
        only[i] = levels[g->at[i]].n_threads == allowed;
        with.team[i] = only[i] ? n_threads : 0;
    }
    if (!status)
        status = choose(b, levels, &with, only, PS_PATH_COUNT, &at);
    for (uint32_t i = 0; i < g->n && !status; i++)
        if (only[i]) {
            gain += log(with.choice[i].workload_s / g->choice[i].workload_s);
            n++;
        }
    for (uint32_t i = 0; i < g->n && !status && gain < n * log(PS_SEARCH_TEAM); i++)
        if (with.team[i]) {
            g->choice[i] = with.choice[i];
            g->team[i] = n_threads;
        }
    free(only);
    free(with.choice);
    free(with.team);
    return status;
}

/* The workload of a level's schedule with teams of other sizes. */
typedef struct same_schedules {
    uint32_t n_threads;
    double *s; /* [levels] */
} same_schedules;

static ps_status time_with_team(const each *e, uint32_t i) {
    const same_schedules *m = e->more;
    return ps_search_with_team(e->g->search[e->g->of[i]], &e->g->choice[i], m->n_threads, &m->s[i]);
}

/* Teams smaller than what is allowed: the one that does the same schedules fastest, and where there are few levels the next of
 * those that were measured, unless it is far behind; and those of levels with fewer threads. */
static ps_status smaller_teams(ps_building *b, const ps_level_request *levels, gpu_levels *g,
                               uint32_t allowed) {
    enum { FEW_LEVELS = 2 };
    const ps_profile *p = b->q->profile;
    const double far_behind = log(1.05);
    double best = log(PS_SEARCH_TEAM);
    uint32_t same = 0, next = 0, group = 0, at;
    bool *only = calloc(g->n, sizeof *only);
    same_schedules times = {.s = calloc(g->n, sizeof *times.s)};
    each e = {.b = b, .levels = levels, .g = g, .of_level = time_with_team, .only = only, .more = &times};
    ps_status status = only && times.s ? PS_OK : ps_build_no_memory(b->err);
    for (uint32_t i = 0; i < g->n && !status; i++) {
        only[i] = levels[g->at[i]].n_threads == allowed;
        group += only[i];
    }
    for (uint32_t n = allowed - 1; n > 0 && !status; n--) {
        double sum = 0;
        bool measured = false;
        if (!ps_search_is_team(n, p->topology.n_allowed))
            continue;
        times.n_threads = n;
        status = each_run(&e, &at);
        for (uint32_t i = 0; i < g->n && !status; i++)
            if (only[i])
                sum += log(times.s[i] / g->choice[i].workload_s) / group;
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
    free(only);
    free(times.s);
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

/* Levels' schedules on one path: every path by searches of its own, beside each other. */
typedef struct on_paths {
    const ps_level_request *levels;
    const gpu_levels *g;
    uint32_t n;
    ps_path path[PS_PATH_COUNT];
    ps_schedule *choice; /* [n * levels] */
    ps_status *status;   /* the same */
    struct {
        ps_error err;
        uint64_t looked_at;
    } * of; /* [n * searches] */
} on_paths;

static void choose_on_path(void *ctx, uint32_t worker, uint32_t task) {
    on_paths *o = ctx;
    const gpu_levels *g = o->g;
    const uint32_t search = task % g->n_searches, p = task / g->n_searches;
    ps_search *s = NULL;
    (void)worker;
    ps_status status = ps_search_twin(g->search[search], &s, &o->of[task].err);
    for (uint32_t i = 0; i < g->n; i++) {
        const size_t at = (size_t)p * g->n + i;
        if (g->of[i] != search)
            continue;
        if (!status)
            status = ps_search_solve(s, &o->levels[g->at[i]], o->path[p], g->team[i], &o->choice[at]);
        o->status[at] = status;
        if (status)
            break;
    }
    if (s) {
        if (status)
            o->of[task].err = *ps_search_error(s);
        o->of[task].looked_at = ps_search_looked_at(s);
    }
    ps_search_free(s);
}

/* All levels of a plan take one path: the one with which they are fastest, of those that one of them would take. */
static ps_status agree(ps_building *b, const ps_level_request *levels, gpu_levels *g) {
    bool wanted[PS_PATH_COUNT] = {false};
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        n += !wanted[g->choice[i].path];
        wanted[g->choice[i].path] = true;
    }
    if (n <= 1)
        return PS_OK;
    wanted[PS_PATH_ALL_ATTN_HEAD_NEXT] = true;      /* the plainest in any case */
    ps_plan_tell(b->q, 0.25, "agreeing on a path"); /* of many levels most of the time */
    on_paths o = {.levels = levels, .g = g};
    for (int p = 0; p < PS_PATH_COUNT; p++)
        if (wanted[p])
            o.path[o.n++] = (ps_path)p;
    o.choice = calloc((size_t)o.n * g->n, sizeof *o.choice);
    o.status = calloc((size_t)o.n * g->n, sizeof *o.status);
    o.of = calloc((size_t)o.n * g->n_searches, sizeof *o.of);
    ps_status status = o.choice && o.status && o.of ? PS_OK : ps_build_no_memory(b->err);
    if (!status)
        ps_crew_run(b->q->n_workers, o.n * g->n_searches, choose_on_path, &o);
    double least = INFINITY;
    const ps_schedule *best = NULL;
    for (uint32_t p = 0; p < o.n && !status; p++) {
        const ps_schedule *choice = &o.choice[(size_t)p * g->n];
        double sum = 0;
        for (uint32_t i = 0; i < g->n && !status; i++) {
            status = o.status[(size_t)p * g->n + i];
            sum += status ? 0 : log(choice[i].workload_s);
            if (status && status != PS_E_INFEASIBLE && b->err)
                *b->err = o.of[p * g->n_searches + g->of[i]].err;
        }
        if (status == PS_E_INFEASIBLE) { /* this way one of them has none */
            status = PS_OK;
            continue;
        }
        if (!status && sum < least) {
            least = sum;
            best = choice;
        }
    }
    for (uint32_t t = 0; t < o.n * g->n_searches && o.of; t++)
        g->looked_at += o.of[t].looked_at;
    if (!status && !best)
        status = ps_error_set(b->err, PS_E_INTERNAL, "plan", "the levels have no path in common");
    if (!status)
        memcpy(g->choice, best, g->n * sizeof *best);
    free(o.choice);
    free(o.status);
    free(o.of);
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

/* ---- building ---- */

/* Rules of all tiers, found beside each other: by themselves they depend on a level's schedule and residents alone. */
typedef struct rule_finding {
    ps_building *b;
    const ps_level_request *levels;
    const gpu_levels *g;
    const ps_resident_set *sets;    /* [n] as grown for each level */
    ps_rule (*rules)[PS_MAX_TIERS]; /* [n] */
    ps_status (*status)[PS_MAX_TIERS];
    ps_error (*errors)[PS_MAX_TIERS]; /* [n] */
    ps_cost_cache *caches;            /* of each worker */
} rule_finding;

static void find_rule(void *ctx, uint32_t worker, uint32_t task) {
    rule_finding *f = ctx;
    const uint32_t i = task % f->g->n, tier = task / f->g->n;
    ps_building own = {.q = f->b->q, .err = &f->errors[i][tier], .cache = &f->caches[worker]};
    f->status[i][tier] =
        ps_gpu_rule(&own, &f->levels[f->g->at[i]], &f->g->choice[i], &f->sets[i], tier, &f->rules[i][tier]);
}

/* The resident pieces of every level are the first of the next larger one's: sets are grown in that order, from one to
 * the next. *out_over: level whose work arena came out larger than it was chosen for, and by how much. */
static ps_status build_gpu_levels(ps_building *b, const ps_level_request *levels, const gpu_levels *g,
                                  ps_level *out, uint32_t *out_over, uint64_t *out_bytes) {
    const uint32_t n_tasks = g->n * PS_MAX_TIERS, n_workers = ps_crew_size(b->q->n_workers, n_tasks);
    ps_resident_set set = {0};
    rule_finding f = {.b = b, .levels = levels, .g = g};
    ps_resident_set *sets = calloc(g->n, sizeof *sets);
    f.rules = calloc(g->n, sizeof *f.rules);
    f.status = calloc(g->n, sizeof *f.status);
    f.errors = calloc(g->n, sizeof *f.errors);
    f.caches = calloc(n_workers, sizeof *f.caches);
    f.sets = sets;
    ps_status status =
        sets && f.rules && f.status && f.errors && f.caches ? PS_OK : ps_build_no_memory(b->err);
    *out_over = UINT32_MAX;
    if (!status)
        status = ps_resident_init(&set, b->q->model, b->err);
    for (uint32_t k = 0; k < g->n && !status; k++) {
        status = ps_resident_grow(&set, &g->choice[g->order[k]].mix, b->err);
        if (!status)
            status = ps_resident_copy(&set, &sets[g->order[k]], b->err);
    }
    ps_resident_free(&set);
    if (!status && !b->q->forced)
        ps_crew_run(n_workers, n_tasks, find_rule, &f);
    for (uint32_t k = 0; k < g->n && !status && *out_over == UINT32_MAX; k++) {
        uint32_t i = g->order[k];
        ps_level *level = &out[i];
        for (uint32_t t = 0; t < PS_MAX_TIERS && !status; t++)
            if ((status = f.status[i][t]) != PS_OK && b->err)
                *b->err = f.errors[i][t];
        if (!status)
            status = ps_gpu_build(b, &levels[g->at[i]], &g->choice[i], &sets[i],
                                  b->q->forced ? NULL : f.rules[i], level);
        uint64_t all = level->vram_base_bytes + level->vram_work_bytes + level->vram_weight_bytes;
        if (!status && all > level->budget_bytes) {
            *out_over = i;
            *out_bytes = all - level->budget_bytes;
        }
    }
    for (uint32_t i = 0; i < g->n && sets; i++)
        if (sets[i].model)
            ps_resident_free(&sets[i]);
    free(sets);
    free(f.rules);
    free(f.status);
    free(f.errors);
    free(f.caches);
    return status;
}

static ps_candidate candidate_of(const ps_schedule *s) {
    return (ps_candidate){isfinite(s->workload_s), s->decode_s, s->prompt_s, s->workload_s};
}

/* Levels as they were built, and what is said of them. */
typedef struct built_levels {
    const ps_level *out;
    const bool *smaller;
    ps_level_report *reports;
} built_levels;

static ps_status report_level(const each *e, uint32_t i) {
    const gpu_levels *g = e->g;
    const built_levels *of = e->more;
    const ps_level_request *lr = &e->levels[g->at[i]];
    const ps_level *level = &of->out[i];
    ps_level_report *r = &of->reports[i];
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
                           .smaller = of->smaller[i]};
    memcpy(r->budget, lr->budget, sizeof r->budget);
    r->chosen.workload_s = ps_plan_workload_s(e->b->q, level);
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
    for (uint32_t i = 0; i < g->n && !status; i++)
        g->team[i] = levels[g->at[i]].n_threads;
    uint32_t failed = 0;
    if (!status)
        status = choose(b, levels, g, NULL, PS_PATH_COUNT, &failed);
    if (status == PS_E_INFEASIBLE)
        *too_small = (ps_too_small){.level = levels[g->at[failed]],
                                    .vram = true,
                                    .is.memory_bytes = levels[g->at[failed]].budget_bytes};
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
        ps_plan_tell(b->q, 0.9, "building levels");
        status = build_gpu_levels(b, levels, g, out, &over, &bytes);
        settled = over == UINT32_MAX;
        if (status || settled)
            break;
        if (!ps_search_less(g->search[g->of[over]], &levels[g->at[over]], bytes, &g->choice[over]))
            break;
    }
    if (!status && !settled)
        status = ps_error_set(b->err, PS_E_INTERNAL, "plan", "the levels' memory does not settle");
    ps_plan_tell(b->q, 0.97, "comparing families");
    if (!status && !b->q->forced)
        status = no_slower(b, levels, g, out, smaller);
    built_levels of = {out, smaller, reports};
    each say = {.b = b, .levels = levels, .g = g, .of_level = report_level, .more = &of};
    if (!status && reports)
        status = each_run(&say, &failed);
    *looked_at += g->looked_at;
    for (uint32_t i = 0; i < g->n_searches; i++)
        *looked_at += ps_search_looked_at(g->search[i]);
    free(smaller);
    free_gpu_levels(g);
    return status;
}
