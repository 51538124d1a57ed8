/* Which level of its plan an engine opens with, and why. */
#include <stdio.h>
#include <string.h>

#include "runtime-min/engine_internal.h"

/* What is looked for among a plan's levels. */
typedef struct choice {
    const ps_engine *e;
    const ps_engine_options *o;
    uint32_t n_sessions;
    bool none; /* not one level is as asked for: then all count, to say what is wrong */
} choice;

/* Can this process run a level as it is asked to? */
static bool is_asked(const choice *c, const ps_level *l) {
    return l->n_threads <= c->e->machine->n_allowed &&
           (c->o->n_threads == 0 || l->n_threads == c->o->n_threads) && l->n_seqs >= c->n_sessions &&
           l->bucket_tokens >= c->o->context;
}

static bool counts(const choice *c, const ps_level *l) {
    return c->none || is_asked(c, l);
}

static choice choice_of(const ps_engine *e, const ps_engine_options *o) {
    choice c = {.e = e, .o = o, .n_sessions = o->n_sessions == 0 ? 1 : o->n_sessions, .none = true};
    for (uint32_t i = 0; i < e->plan->n_levels; i++)
        c.none = c.none && !is_asked(&c, &e->plan->levels[i]);
    return c;
}

/* Prefer the smallest bucket that holds the context, then the fewest sequences, then the most threads. Without a context:
 * the smallest bucket where the level can change to larger ones (with a GPU), else the largest. */
static bool better(const ps_level *a, const ps_level *b, bool want_largest) {
    if (a->bucket_tokens != b->bucket_tokens)
        return want_largest ? a->bucket_tokens > b->bucket_tokens : a->bucket_tokens < b->bucket_tokens;
    if (a->n_seqs != b->n_seqs)
        return a->n_seqs < b->n_seqs;
    return a->n_threads > b->n_threads;
}

/* The first budget without VRAM, else the first; of those that count. */
static const char *plain_budget(const choice *c) {
    const ps_plan *p = c->e->plan;
    const ps_level *first = NULL;
    for (uint32_t i = 0; i < p->n_levels; i++) {
        const ps_level *l = &p->levels[i];
        if (!counts(c, l))
            continue;
        if (l->budget_bytes == 0)
            return l->budget;
        first = first == NULL ? l : first;
    }
    return first != NULL ? first->budget : "";
}

enum { WHY_BYTES = 96 };

/* The budget to open with; NULL: none is small enough. limit: of VRAM; 0: none is set. why: in words. */
static const char *choose_budget(const choice *c, uint64_t limit, char why[WHY_BYTES]) {
    const ps_plan *p = c->e->plan;
    const char *named = c->o->budget != NULL ? ps_plan_budget_name(p, c->o->budget) : NULL;
    const ps_level *best = NULL;
    bool above = false, vram = false, other = false, passed = false;
    for (uint32_t i = 0; i < p->n_levels; i++) {
        const ps_level *l = &p->levels[i];
        above = above ||
                (limit != 0 && named != NULL && strcmp(l->budget, named) == 0 && l->budget_bytes > limit);
        vram = vram || l->budget_bytes != 0;
        other = other || strcmp(l->budget, p->levels[0].budget) != 0;
        if (counts(c, l) && l->budget_bytes != 0 && l->budget_bytes <= limit &&
            (best == NULL || l->budget_bytes > best->budget_bytes))
            best = l;
    }
    for (uint32_t i = 0; i < p->n_levels; i++)
        passed = passed || (best != NULL && p->levels[i].budget_bytes > best->budget_bytes &&
                            p->levels[i].budget_bytes <= limit);
    if (named != NULL && !above) {
        snprintf(why, WHY_BYTES, "budget as asked for");
        return named;
    }
    if (best != NULL) {
        snprintf(why, WHY_BYTES, "largest budget within %.2f GiB of VRAM%s", (double)limit * 0x1p-30,
                 passed ? " that has such a level" : "");
        return best->budget;
    }
    if (vram && c->o->vram_limit_bytes != 0)
        return NULL;
    const char *plain = plain_budget(c); /* where that has VRAM, the meter says by how much it is too large */
    snprintf(why, WHY_BYTES, "%s",
             !other ? "the plan's only budget"
             : vram ? "no VRAM budget can be taken"
                    : "first budget of the plan");
    return plain;
}

enum { LIST_BYTES = 160 };

/* "2GiB, 4GiB, host": a plan's budgets, or "1, 2": the thread counts of one; as many as fit into text. budget: NULL for all. */
static const char *list_of(const ps_plan *p, const char *budget, char text[LIST_BYTES]) {
    size_t n = 0;
    for (uint32_t i = 0; i < p->n_levels && n < LIST_BYTES - 32; i++) {
        const ps_level *l = &p->levels[i];
        bool said = budget != NULL && strcmp(l->budget, budget) != 0;
        for (uint32_t k = 0; k < i && !said; k++)
            said = strcmp(p->levels[k].budget, l->budget) == 0 &&
                   (budget == NULL || p->levels[k].n_threads == l->n_threads);
        if (said)
            continue;
        n += (size_t)snprintf(text + n, LIST_BYTES - n, "%s", n ? ", " : "");
        n += (size_t)(budget == NULL ? snprintf(text + n, LIST_BYTES - n, "%.24s", l->budget)
                                     : snprintf(text + n, LIST_BYTES - n, "%u", l->n_threads));
    }
    return text;
}

/* The level in the order of its budget's, and all the reasons. */
static void note_why(ps_engine *e, const ps_engine_options *o, const char *budget_why, bool largest) {
    char context[64], threads[48] = "all threads that it has";
    if (o->context != 0)
        snprintf(context, sizeof context, "smallest context of at least %llu",
                 (unsigned long long)o->context);
    else
        snprintf(context, sizeof context, "its %s context", largest ? "largest" : "smallest");
    if (o->n_threads != 0)
        snprintf(threads, sizeof threads, "threads as asked for");
    snprintf(e->level_why, sizeof e->level_why, "%s, %s, %s", budget_why, context, threads);
    e->info.level_why = e->level_why;
}

static ps_status choose_level(ps_engine *e, const ps_engine_options *o, uint64_t limit, ps_error *err) {
    const ps_plan *p = e->plan;
    const choice c = choice_of(e, o);
    char why[WHY_BYTES];
    const char *budget = choose_budget(&c, limit, why);
    if (budget == NULL)
        return ps_error_set(err, PS_E_INFEASIBLE, o->plan_path, "has no VRAM budget of at most %llu bytes",
                            (unsigned long long)limit);
    uint64_t most_tokens = 0;
    bool budget_known = false, threads_fit = false, sessions_fit = false, largest = false;
    for (uint32_t i = 0; i < p->n_levels; i++) {
        const ps_level *l = &p->levels[i];
        if (strcmp(l->budget, budget) != 0)
            continue;
        budget_known = true;
        if (l->n_threads > e->machine->n_allowed || (o->n_threads != 0 && l->n_threads != o->n_threads))
            continue;
        threads_fit = true;
        if (l->n_seqs < c.n_sessions)
            continue;
        sessions_fit = true;
        most_tokens = l->bucket_tokens > most_tokens ? l->bucket_tokens : most_tokens;
        largest = o->context == 0 && (l->budget_bytes == 0 || o->fixed_level);
        if (is_asked(&c, l) && (e->level == NULL || better(l, e->level, largest))) {
            e->level = l;
            e->level_index = i;
        }
    }
    if (e->level != NULL) {
        e->info.n_sessions = c.n_sessions;
        note_why(e, o, why, largest);
        return PS_OK;
    }
    if (!budget_known)
        return ps_error_set(err, PS_E_USAGE, o->plan_path, "has no budget '%.24s'; its budgets are %s",
                            budget, list_of(p, NULL, (char[LIST_BYTES]){0}));
    if (!threads_fit && o->n_threads != 0 && o->n_threads <= e->machine->n_allowed)
        return ps_error_set(err, PS_E_USAGE, o->plan_path,
                            "budget '%.24s' has no level for %u thread%s; its levels are for %s", budget,
                            o->n_threads, o->n_threads == 1 ? "" : "s",
                            list_of(p, budget, (char[LIST_BYTES]){0}));
    if (!threads_fit && o->n_threads != 0)
        return ps_error_set(err, PS_E_USAGE, "threads", "%u asked for, this process may use %u", o->n_threads,
                            e->machine->n_allowed);
    if (!threads_fit)
        return ps_error_set(err, PS_E_USAGE, o->plan_path,
                            "needs %s threads, this process may use %u; plan with --threads %u",
                            list_of(p, budget, (char[LIST_BYTES]){0}), e->machine->n_allowed,
                            e->machine->n_allowed);
    if (!sessions_fit)
        return ps_error_set(err, PS_E_USAGE, o->plan_path, "has no level for %u sequences", c.n_sessions);
    return ps_error_set(err, PS_E_USAGE, o->plan_path,
                        "has no level for a context of %llu tokens; the largest is %llu",
                        (unsigned long long)o->context, (unsigned long long)most_tokens);
}

ps_status ps_engine_choose(ps_engine *e, const ps_engine_options *o, uint64_t *out_limit, ps_error *err) {
    const char *want = o->device != NULL ? o->device : "auto";
    const bool none = strcmp(want, "none") == 0, any = strcmp(want, "auto") == 0;
    const choice c = choice_of(e, o);
    bool vram = false, host = false;
    ps_status status = PS_OK;
    if (!none && !any && strcmp(want, "cuda") != 0 && strcmp(want, "emulated") != 0)
        return ps_error_set(err, PS_E_USAGE, "device", "'%.32s' is none of auto, cuda, emulated, none", want);
    for (uint32_t i = 0; i < e->plan->n_levels; i++) {
        const ps_level *l = &e->plan->levels[i];
        vram = vram || (counts(&c, l) && l->budget_bytes != 0);
        host = host || (counts(&c, l) && l->budget_bytes == 0);
    }
    e->info.device = e->info.meter = "none";
    *out_limit = o->vram_limit_bytes;
    if (o->budget == NULL && *out_limit == 0 && vram && !none) {
        status = ps_engine_open_device(e, o, err);
        if (status == PS_OK)
            *out_limit = ps_device_get_info(e->run.device)->vram_bytes;
        else if ((status != PS_E_UNAVAILABLE && status != PS_E_UNSUPPORTED) || !host || !any)
            return status;
    }
    if ((status = choose_level(e, o, *out_limit, err)) != PS_OK)
        return status;
    if (!ps_engine_level_uses_gpu(e))
        return none || any
                   ? PS_OK
                   : ps_error_set(err, PS_E_USAGE, "device",
                                  "no GPU takes part in the plan's budget '%.24s': '%s' has nothing to do",
                                  e->level->budget, want);
    if (none)
        return ps_error_set(err, PS_E_UNAVAILABLE, e->level->budget,
                            "this budget's programs need a GPU, and none may be used");
    return e->has_device ? PS_OK : ps_engine_open_device(e, o, err);
}
