/* The nearest budget and context: see nearest.h. */
#include "plan/nearest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "plan/memory.h"
#include "plan/search.h"

#define MIB ((uint64_t)1 << 20)
#define GIB 0x1p30
#define MOST_BYTES ((uint64_t)1 << 50)
enum { CONTEXT_STEP = 256 };

/* What is looked for is counted: contexts in steps of 256 tokens, budgets in PS_VRAM_ALIGN beside base. */
typedef struct nearest {
    const ps_plan_request *request;
    ps_too_small *too_small;
    bool context;        /* what is looked for: a context, otherwise a budget */
    ps_search *found;    /* of the level as asked for, where a family is forced; NULL: not yet */
    uint64_t work_bytes; /* of the family where it last fitted */
    ps_building b;       /* of searches; its errors go to `tried` */
    ps_error tried, *err;
    ps_status status; /* other than of a level that fits or does not */
} nearest;

typedef bool fits_fn(nearest *s, uint64_t n);

/* Takes note of what is no answer. */
static bool is_yes(nearest *s, ps_status status) {
    if (status && status != PS_E_INFEASIBLE && !s->status) {
        s->status = status;
        if (s->err)
            *s->err = s->tried;
    }
    return status == PS_OK;
}

static ps_level_request level_of(const nearest *s, uint64_t n) {
    ps_level_request level = s->too_small->level;
    if (s->context) {
        level.bucket_tokens = n * CONTEXT_STEP;
    } else {
        level.budget_bytes = ps_gpu_base_bytes(s->request->profile) + n * PS_VRAM_ALIGN;
        snprintf(level.budget, sizeof level.budget, "%llu", (unsigned long long)level.budget_bytes);
    }
    return level;
}

/* By planning it. *out_why: what is short; where nothing is, what host memory is needed. */
static bool is_planned(nearest *s, uint64_t n, ps_too_small *out_why) {
    ps_level_request level = level_of(s, n);
    ps_plan_request one = *s->request;
    ps_plan *plan = NULL;
    *out_why = (ps_too_small){0};
    if (s->status || n == 0)
        return false;
    one.levels = &level;
    one.n_levels = 1;
    ps_status status = ps_build_plan(&one, &plan, NULL, out_why, &s->tried);
    if (!status)
        out_why->is.needed_bytes = plan->levels[0].peak_host_bytes;
    ps_plan_free(plan);
    return is_yes(s, status);
}

static bool planned(nearest *s, uint64_t n) {
    ps_too_small why;
    return is_planned(s, n, &why);
}

/* ---- by the layout of memory ---- */

/* Everything of a level that is in host memory, without a GPU. */
static bool host_layout(nearest *s, uint64_t n) {
    ps_level_request lr = level_of(s, n);
    ps_level level = {0};
    ps_plan plan = {.arena = ps_arena_new(UINT64_MAX)};
    ps_building b = {.q = s->request, .plan = &plan, .work = ps_arena_new(UINT64_MAX), .err = &s->tried};
    uint64_t kv;
    ps_status status = plan.arena && b.work ? PS_OK : ps_build_no_memory(&s->tried);
    if (!status)
        status = ps_host_build(&b, &lr, false, &level, &kv);
    free(b.programs);
    ps_arena_free(b.work);
    ps_arena_free(plan.arena);
    return is_yes(s, status) && level.peak_host_bytes <= s->too_small->is.memory_bytes;
}

/* The family that is forced. */
static bool family_layout(nearest *s, uint64_t n) {
    ps_level_request lr = level_of(s, n);
    ps_schedule c;
    ps_search *search = s->context ? NULL : s->found;
    ps_status status = search ? PS_OK : ps_search_new(&s->b, &lr, &search);
    if (!status)
        status = ps_search_family(search, &lr, s->request->family, &c);
    if (!status)
        s->work_bytes = c.work_bytes;
    if (s->context)
        ps_search_free(search);
    else
        s->found = search;
    return is_yes(s, status);
}

/* The least of any schedule. */
static ps_status least_of(nearest *s, const ps_level_request *lr, uint64_t *out_work, uint64_t *out_all) {
    ps_status status = ps_gpu_least(&s->b, lr, out_work, out_all);
    if (!is_yes(s, status)) /* a cache of more than 2^64 bytes, where it is no error */
        *out_work = *out_all = MOST_BYTES;
    return s->status;
}

static bool vram_layout(nearest *s, uint64_t n) {
    ps_level_request lr = level_of(s, n);
    uint64_t work, all, base = ps_gpu_base_bytes(s->request->profile);
    if (s->request->forced)
        return family_layout(s, n);
    return !least_of(s, &lr, &work, &all) && lr.budget_bytes >= base && all <= lr.budget_bytes - base;
}

/* ---- looking ---- */

/* Between `yes`, which fits, and `no`, which does not, the last that fits beside one that does not. */
static uint64_t between(nearest *s, fits_fn *fits, uint64_t yes, uint64_t no) {
    while (!s->status && (yes > no ? yes - no > 1 : no - yes > 1)) {
        uint64_t mid = yes > no ? no + (yes - no) / 2 : yes + (no - yes) / 2;
        if (fits(s, mid))
            yes = mid;
        else
            no = mid;
    }
    return yes;
}

/* The last below `no` that fits, which is near the guess. */
static uint64_t most_near(nearest *s, fits_fn *fits, uint64_t guess, uint64_t no) {
    uint64_t yes = 0, step = 1;
    if (guess == 0 || fits(s, guess)) {
        for (yes = guess; no - yes > step && fits(s, yes + step); step *= 2)
            yes += step;
        no = no - yes > step ? yes + step : no;
    } else {
        for (no = guess; no > step && !fits(s, no - step); step *= 2)
            no -= step;
        yes = no > step ? no - step : 0;
    }
    return between(s, fits, yes, no);
}

/* The last below `no` that fits into host memory, of which a level needs about evenly more with its context: `most` of it at
 * `no`, `least` in any case. */
static uint64_t most_in_host(nearest *s, uint64_t guess, uint64_t no, uint64_t least, uint64_t most) {
    enum { ROUNDS = 6 };
    const uint64_t memory = s->too_small->is.memory_bytes;
    uint64_t yes = 0, n = guess;
    for (int round = 0; round < ROUNDS && no - yes > 1 && !s->status; round++) {
        ps_too_small why;
        n = n <= yes ? yes + 1 : n >= no ? no - 1 : n;
        if (is_planned(s, n, &why)) {
            yes = n;
            least = why.is.needed_bytes;
        } else {
            no = n;
            most = why.is.needed_bytes;
        }
        double frac = most > least && memory > least ? (double)(memory - least) / (double)(most - least) : 0;
        n = yes + (uint64_t)((double)(no - yes) * (frac < 1 ? frac : 1));
    }
    return between(s, planned, yes, no);
}

/* In steps; 0: none. */
static uint64_t longest_context(nearest *s) {
    const ps_too_small *t = s->too_small;
    const ps_model *m = s->request->model;
    uint64_t no = (t->level.bucket_tokens + CONTEXT_STEP - 1) / CONTEXT_STEP, always;
    if (!ps_add_u64(m->weight_bytes, ps_memory_program_bytes(m, 1, t->level.n_seqs), &always) ||
        (!t->vram && always > t->is.memory_bytes))
        return 0;
    s->context = true;
    uint64_t guess = between(s, t->vram ? vram_layout : host_layout, 0, no);
    if (!t->vram)
        return most_in_host(s, guess, no, always, t->is.needed_bytes);
    return guess ? most_near(s, planned, guess, no) : 0;
}

/* The least budget and its parts, into s->too_small->is. */
static void least_budget(nearest *s) {
    ps_shortage *is = &s->too_small->is;
    const ps_level_request *lr = &s->too_small->level;
    uint64_t work = 0, all = 0, small = ps_resident_small_bytes(s->request->model),
             base = ps_gpu_base_bytes(s->request->profile);
    s->context = false;
    if (least_of(s, lr, &work, &all))
        return;
    if (s->request->forced && work < MOST_BYTES) {
        uint64_t n = all / PS_VRAM_ALIGN, no = n - 1, step = 1;
        for (; !family_layout(s, n) && !s->status && n < MOST_BYTES / PS_VRAM_ALIGN; step *= 2) {
            no = n;
            n += step;
        }
        n = between(s, family_layout, n, no);
        (void)family_layout(s, n); /* for its work arena */
        work = s->work_bytes;
        all = n * PS_VRAM_ALIGN;
    }
    ps_too_small why = {.vram = true};
    uint64_t n = all / PS_VRAM_ALIGN;
    bool fits = false;
    while (work < MOST_BYTES && why.vram && !fits && !s->status) {
        fits = is_planned(s, n, &why);
        n += !fits && why.vram;
    }
    is->needed_bytes = base + n * PS_VRAM_ALIGN;
    is->nearest_budget_bytes = fits ? (is->needed_bytes + MIB - 1) / MIB * MIB : 0;
    const char *name = base >= work && base >= small ? "CUDA context and libraries"
                       : work >= small               ? "activations and slots"
                                                     : "norms and routers";
    is->largest_bytes = base >= work && base >= small ? base : work >= small ? work : small;
    snprintf(is->largest, sizeof is->largest, "%s", name);
}

/* ---- in words ---- */

static ps_status explain(const ps_too_small *t, ps_error *err) {
    const ps_shortage *x = &t->is;
    char context[80] = "no context fits", budget[80] = "host memory is short as well";
    unsigned long long short_by = x->needed_bytes > x->memory_bytes ? x->needed_bytes - x->memory_bytes : 0;
    if (x->nearest_context)
        snprintf(context, sizeof context, "a context of %llu would fit",
                 (unsigned long long)x->nearest_context);
    if (x->nearest_budget_bytes)
        snprintf(budget, sizeof budget, "%lluMiB would do",
                 (unsigned long long)(x->nearest_budget_bytes / MIB));
    if (t->vram)
        return ps_error_set(
            err, PS_E_INFEASIBLE, t->level.budget,
            "context %llu needs %llu bytes of VRAM: %llu bytes short; the largest part is the %s "
            "with %.2f GiB; %s; %s",
            (unsigned long long)t->level.bucket_tokens, (unsigned long long)x->needed_bytes, short_by,
            x->largest, (double)x->largest_bytes / GIB, budget, context);
    return ps_error_set(
        err, PS_E_INFEASIBLE, "host memory",
        "context %llu needs %.2f GiB, the machine has %.2f GiB: %llu bytes short; the largest part "
        "is the %s with %.2f GiB; %s",
        (unsigned long long)t->level.bucket_tokens, (double)x->needed_bytes / GIB,
        (double)x->memory_bytes / GIB, short_by, x->largest, (double)x->largest_bytes / GIB, context);
}

ps_status ps_nearest(const ps_plan_request *request, ps_too_small *too_small, ps_error *err) {
    nearest s = {.request = request, .too_small = too_small, .err = err};
    s.b = (ps_building){.q = request, .cache = calloc(1, sizeof *s.b.cache), .err = &s.tried};
    if (!s.b.cache)
        return ps_build_no_memory(err);
    if (too_small->vram)
        least_budget(&s);
    if (!s.status)
        too_small->is.nearest_context = longest_context(&s) * CONTEXT_STEP;
    ps_search_free(s.found);
    free(s.b.cache);
    return s.status ? s.status : explain(too_small, err);
}
