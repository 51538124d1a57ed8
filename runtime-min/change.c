/* Levels at run time: which can be changed to, what a request asks for, and the change itself. KV goes into page-locked
 * host memory, the arenas become those of the new level, and KV comes back in its layout. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "runtime-min/engine_internal.h"

ps_status ps_engine_find_reachable(ps_engine *e, ps_error *err) {
    const ps_plan *p = e->plan;
    e->reachable = ps_arena_array(e->arena, p->n_levels, sizeof *e->reachable);
    if (e->reachable == NULL)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for %u levels", p->n_levels);
    e->reachable[e->level_index] = true;
    for (uint32_t i = 0; i < p->n_levels && e->level->budget_bytes != 0 && !e->fixed_level; i++) {
        const ps_level *l = &p->levels[i];
        if (i == e->level_index || l->budget_bytes == 0 || l->n_threads != e->level->n_threads ||
            l->n_seqs != e->level->n_seqs)
            continue;
        /* A level that the checker refuses is an error, as at load: the plan is damaged. That it cannot be changed to
         * is not. */
        ps_status status = ps_plan_check(p, l, e->model, err);
        if (status != PS_OK)
            return status;
        e->reachable[i] = ps_plan_check_change(p, e->level, l, e->model, NULL) == PS_OK &&
                          ps_plan_check_change(p, l, e->level, e->model, NULL) == PS_OK;
    }
    return PS_OK;
}

uint32_t ps_engine_level_for_tokens(const ps_engine *e, uint64_t tokens) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < e->plan->n_levels; i++) {
        const ps_level *l = &e->plan->levels[i];
        if (e->reachable[i] && l->budget_bytes == e->level->budget_bytes && l->bucket_tokens >= tokens &&
            (best == UINT32_MAX || l->bucket_tokens < e->plan->levels[best].bucket_tokens))
            best = i;
    }
    return best;
}

/* The level with the largest budget of at most `bytes` that holds the sessions, else the smallest that does. Of one budget's
 * levels the bucket of now, else the smallest that will do. */
static uint32_t level_for_bytes(const ps_engine *e, uint64_t bytes) {
    uint64_t need = e->need_tokens;
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < e->plan->n_levels; i++) {
        const ps_level *l = &e->plan->levels[i], *b = best == UINT32_MAX ? NULL : &e->plan->levels[best];
        if (!e->reachable[i] || l->bucket_tokens < need)
            continue;
        if (b == NULL) {
            best = i;
            continue;
        }
        bool fits = l->budget_bytes <= bytes, b_fits = b->budget_bytes <= bytes;
        if (fits != b_fits) {
            best = fits ? i : best;
        } else if (l->budget_bytes != b->budget_bytes) {
            best = (l->budget_bytes > b->budget_bytes) == fits ? i : best;
        } else {
            bool now = l->bucket_tokens == e->level->bucket_tokens,
                 b_now = b->bucket_tokens == e->level->bucket_tokens;
            best = (now && !b_now) || (now == b_now && l->bucket_tokens < b->bucket_tokens) ? i : best;
        }
    }
    return best;
}

ps_status ps_engine_leave_room(ps_engine *e, uint64_t limit_bytes, bool promised, ps_error *err) {
    uint64_t own, all, total;
    ps_meter how;
    if (limit_bytes == 0 || !e->has_device || ps_device_vram_used(e->run.device, &own, &how, NULL) != PS_OK ||
        (how != PS_METER_PROCESS && how != PS_METER_EMULATED) ||
        ps_device_vram_all(e->run.device, &all, &total, NULL) != PS_OK)
        return PS_OK;
    uint64_t others = all > own ? all - own : 0, left = limit_bytes > others ? limit_bytes - others : 0;
    if (e->level->budget_bytes <= left)
        return PS_OK;
    uint32_t to = level_for_bytes(e, left);
    if (to != UINT32_MAX && e->plan->levels[to].budget_bytes < e->level->budget_bytes) {
        e->level_index = to;
        e->level = &e->plan->levels[to];
        e->info.budget = e->level->budget;
        e->asked = e->level->budget_bytes;
        snprintf(e->level_why, sizeof e->level_why,
                 "largest budget of those that other processes leave room for");
    }
    return !promised || e->level->budget_bytes <= left
               ? PS_OK
               : ps_error_set(err, PS_E_INFEASIBLE, e->info.budget,
                              "needs %llu bytes of VRAM and no smaller budget can be taken, but of %llu "
                              "bytes other processes leave %llu",
                              (unsigned long long)e->level->budget_bytes, (unsigned long long)limit_bytes,
                              (unsigned long long)left);
}

/* Only a smaller budget is worth giving a step up; a larger one can wait for its end. */
bool ps_engine_must_stop(const ps_engine *e) {
    uint64_t request = __atomic_load_n(&e->request, __ATOMIC_RELAXED);
    if (request >= e->level->budget_bytes || e->no_stop)
        return false;
    uint32_t to = level_for_bytes(e, request);
    return to != UINT32_MAX && e->plan->levels[to].budget_bytes < e->level->budget_bytes;
}

void ps_engine_request_bytes(ps_engine *e, uint64_t bytes) {
    if (bytes == PS_NO_REQUEST)
        bytes--;
    __atomic_store_n(&e->asked, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&e->request, bytes, __ATOMIC_RELEASE);
}

uint64_t ps_engine_next_budget(const ps_engine *e, int direction) {
    uint64_t asked = __atomic_load_n(&e->asked, __ATOMIC_RELAXED), least = UINT64_MAX, at = 0, best = 0;
    for (uint32_t i = 0; i < e->plan->n_levels; i++) { /* the budget that `asked` stands for */
        uint64_t b = e->plan->levels[i].budget_bytes;
        if (!e->reachable[i])
            continue;
        at = b <= asked && b > at ? b : at;
        least = b < least ? b : least;
    }
    at = at == 0 ? least : at;
    for (uint32_t i = 0; i < e->plan->n_levels; i++) {
        uint64_t b = e->plan->levels[i].budget_bytes;
        if (!e->reachable[i] || (direction < 0 ? b >= at : b <= at))
            continue;
        if (best == 0 || (direction < 0 ? b > best : b < best))
            best = b;
    }
    return best;
}

static ps_status change(ps_engine *e, uint32_t to, ps_error *err) {
    const ps_level *from = e->level;
    ps_status status = ps_device_sync(e->run.device, err);
    if (status == PS_OK)
        status = ps_engine_kv_save(e, err);
    if (status != PS_OK) {
        e->broken = true;
        return status;
    }
    e->run.loose = false;
    e->level = &e->plan->levels[to];
    status = ps_engine_enter_level(e, err);
    /* Back to where it was, or to the smallest that can be had: KV waits in the stage. */
    for (uint32_t i = 0; status != PS_OK && i <= e->plan->n_levels; i++) {
        uint32_t other = i == 0 ? (uint32_t)(from - e->plan->levels) : i - 1;
        if (!e->reachable[other] || other == to || e->plan->levels[other].bucket_tokens < e->longest)
            continue;
        ps_error again = {0};
        e->level = &e->plan->levels[other];
        if (ps_engine_enter_level(e, &again) == PS_OK && ps_engine_kv_restore(e, from, &again) == PS_OK)
            return status;
    }
    if (status == PS_OK)
        status = ps_engine_kv_restore(e, from, err);
    if (status != PS_OK) {
        e->broken = true;
        return status;
    }
    e->stats.n_changes++;
    return PS_OK;
}

ps_status ps_engine_change_level(ps_engine *e, uint32_t to, ps_error *err) {
    if (to == e->level_index)
        return PS_OK;
    uint64_t start_ns = ps_clock_ns();
    ps_status status = change(e, to, err);
    e->stats.change_ns += ps_clock_ns() - start_ns;
    return status;
}

ps_status ps_engine_obey_request(ps_engine *e, ps_error *err) {
    uint64_t request = __atomic_load_n(&e->request, __ATOMIC_ACQUIRE);
    /* A step that was given up is run before anything grows: so it ends, however often others change their mind. */
    if (request == PS_NO_REQUEST || (e->again && request >= e->level->budget_bytes))
        return PS_OK;
    uint32_t to = level_for_bytes(e, request);
    uint64_t asked = request;
    (void)__atomic_compare_exchange_n(&e->request, &request, PS_NO_REQUEST, false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_RELAXED); /* a newer one stays */
    if (to == UINT32_MAX)
        return PS_OK;
    ps_status status = ps_engine_change_level(e, to, err);
    if (status == PS_OK || e->broken)
        return status;
    /* Others took the VRAM first: a wish that cannot be met is no reason to end an evaluation. */
    e->stats.n_refused++;
    (void)__atomic_compare_exchange_n(&e->asked, &asked, e->level->budget_bytes, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED); /* likewise */
    if (err != NULL)
        *err = (ps_error){0};
    return PS_OK;
}

/* Tokens of the longest session. */
static uint64_t longest_session(const ps_engine *e) {
    uint64_t longest = 0;
    for (uint32_t i = 0; i < e->info.n_sessions; i++)
        if (e->sessions[i].engine != NULL && e->sessions[i].length > longest)
            longest = e->sessions[i].length;
    return longest;
}

ps_status ps_engine_set_budget(ps_engine *e, const char *budget, ps_error *err) {
    if (e->broken)
        return ps_error_set(err, PS_E_UNAVAILABLE, "engine", "the GPU failed before: open the engine again");
    e->need_tokens = e->longest = longest_session(e);
    budget = ps_plan_budget_name(e->plan, budget);
    uint32_t best = UINT32_MAX;
    bool known = false;
    for (uint32_t i = 0; i < e->plan->n_levels; i++) {
        const ps_level *l = &e->plan->levels[i];
        if (strcmp(l->budget, budget) != 0)
            continue;
        known = true;
        if (!e->reachable[i] || l->bucket_tokens < e->longest)
            continue;
        const ps_level *b = best == UINT32_MAX ? NULL : &e->plan->levels[best];
        bool now = l->bucket_tokens == e->level->bucket_tokens;
        if (b == NULL || now ||
            (b->bucket_tokens != e->level->bucket_tokens && l->bucket_tokens < b->bucket_tokens))
            best = i;
    }
    if (!known)
        return ps_error_set(err, PS_E_USAGE, "budget", "the plan has none named '%.24s'", budget);
    if (best == UINT32_MAX)
        return ps_error_set(err, PS_E_USAGE, "budget",
                            "'%.24s' has no level that can be changed to and holds %llu tokens", budget,
                            (unsigned long long)e->longest);
    __atomic_store_n(&e->asked, e->plan->levels[best].budget_bytes, __ATOMIC_RELAXED);
    return ps_engine_change_level(e, best, err);
}
