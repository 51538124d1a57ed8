/* The nearest budget and context: see nearest.h. */
#include "plan/nearest.h"

#include <stdio.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
enum { CONTEXT_STEP = 256 };
#define MOST_MIB ((uint64_t)1 << 30)

typedef struct search {
    const ps_plan_request *request;
    ps_level_request level;
    bool context;     /* what is looked for: a context, otherwise a budget */
    ps_status status; /* other than of a level that fits or does not */
    ps_error *err;
} search;

static ps_status plan_one(const ps_plan_request *request, const ps_level_request *level,
                          ps_shortage *shortage, ps_error *err) {
    ps_plan_request one = *request;
    ps_plan *plan = NULL;
    one.levels = level;
    one.n_levels = 1;
    ps_status status = ps_plan_build(&one, &plan, shortage, err);
    ps_plan_free(plan);
    return status;
}

/* Does it fit with n MiB, or n steps of context? */
static bool fits(search *s, uint64_t n) {
    ps_level_request level = s->level;
    if (s->status || n == 0)
        return false;
    if (s->context) {
        level.bucket_tokens = n * CONTEXT_STEP;
    } else {
        level.budget_bytes = n * MIB;
        snprintf(level.budget, sizeof level.budget, "%lluMiB", (unsigned long long)n);
    }
    ps_error err = {0};
    ps_status status = plan_one(s->request, &level, NULL, &err);
    if (status && status != PS_E_INFEASIBLE) {
        s->status = status;
        if (s->err)
            *s->err = err;
    }
    return status == PS_OK;
}

/* Between `yes`, which fits, and `no`, which does not, the last that fits beside one that does not. */
static uint64_t between(search *s, uint64_t yes, uint64_t no) {
    while (yes > no ? yes - no > 1 : no - yes > 1) {
        uint64_t mid = yes > no ? no + (yes - no) / 2 : yes + (no - yes) / 2;
        if (fits(s, mid))
            yes = mid;
        else
            no = mid;
    }
    return yes;
}

/* In MiB; guess: what the planner thinks. 0: none. */
static uint64_t least_budget(search *s, uint64_t guess) {
    uint64_t no = s->level.budget_bytes / MIB, yes = guess > no ? guess : no + 1, step = 16;
    s->context = false;
    while (!fits(s, yes)) {
        no = yes;
        if (s->status || yes > MOST_MIB)
            return 0;
        yes += step;
        step *= 2;
    }
    return yes - no > 1 && !fits(s, yes - 1) ? yes : between(s, yes, no);
}

/* In steps; guess: what the planner thinks, 0 if it knows none. */
static uint64_t longest_context(search *s, uint64_t guess) {
    uint64_t no = (s->level.bucket_tokens + CONTEXT_STEP - 1) / CONTEXT_STEP;
    s->context = true;
    return fits(s, guess) ? between(s, guess, no) : between(s, 0, guess != 0 ? guess : no);
}

static ps_status explain(const search *s, const char *subject, const ps_shortage *x, ps_error *err) {
    char context[80] = "no context fits";
    unsigned long long short_by = x->needed_bytes > x->memory_bytes ? x->needed_bytes - x->memory_bytes : 0;
    if (x->nearest_context)
        snprintf(context, sizeof context, "a context of %llu would fit",
                 (unsigned long long)x->nearest_context);
    if (x->nearest_budget_bytes)
        return ps_error_set(
            err, PS_E_INFEASIBLE, subject,
            "context %llu needs %llu bytes of VRAM: %llu bytes short; the largest part is the %s "
            "with %.2f GB; %lluMiB would do; %s",
            (unsigned long long)s->level.bucket_tokens, (unsigned long long)x->needed_bytes, short_by,
            x->largest, (double)x->largest_bytes / 1e9, (unsigned long long)(x->nearest_budget_bytes / MIB),
            context);
    return ps_error_set(
        err, PS_E_INFEASIBLE, subject,
        "context %llu needs %.2f GB, the machine has %.2f GB: %llu bytes short; the largest part "
        "is the %s with %.2f GB; %s",
        (unsigned long long)s->level.bucket_tokens, (double)x->needed_bytes / 1e9,
        (double)x->memory_bytes / 1e9, short_by, x->largest, (double)x->largest_bytes / 1e9, context);
}

ps_status ps_plan_nearest(const ps_plan_request *request, ps_shortage *shortage, ps_error *err) {
    search s = {.request = request, .err = err};
    ps_shortage found;
    ps_error why = {0};
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < request->n_levels && status == PS_OK; i++) {
        s.level = request->levels[i];
        found = (ps_shortage){0};
        status = plan_one(request, &s.level, &found, &why);
    }
    if (status != PS_E_INFEASIBLE) {
        if (status && err)
            *err = why;
        return status;
    }
    if (found.nearest_budget_bytes != 0) { /* VRAM is short */
        found.nearest_budget_bytes = least_budget(&s, found.nearest_budget_bytes / MIB) * MIB;
        if (found.nearest_budget_bytes != 0)
            found.needed_bytes = found.nearest_budget_bytes;
    }
    found.nearest_context = longest_context(&s, found.nearest_context / CONTEXT_STEP) * CONTEXT_STEP;
    if (s.status)
        return s.status;
    *shortage = found;
    return explain(&s, why.subject, &found, err);
}
