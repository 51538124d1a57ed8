/* The search: see search.h.
 *
 * Points stand on the scale of VRAM beside base, at even distances. Every per_cell-th is searched in full: families, then moves
 * from the best. A level takes the best of those at or below its budget (what their bounds rule out is not looked at), and of
 * the points from the last of these on, which take over the schedules of the two that they are between with as much
 * resident as fits. So that a larger budget is never slower, nothing between two points may be faster than the second. */
#include "plan/search.h"

#include <stdlib.h>
#include <string.h>

#include "plan/climb.h"

enum { POINTS = 64, CELLS = 10, FEW_LAYERS = 4 };

static uint64_t point_bytes(const ps_search *s, uint64_t n) {
    return n == 0 ? s->least : (s->least / s->apart + n) * s->apart;
}

/* The last point at or below; false: there is none. */
static bool point_below(const ps_search *s, uint64_t avail, uint64_t *out) {
    if (avail < s->least)
        return false;
    *out = avail / s->apart - s->least / s->apart;
    return true;
}

static found *lookup(ps_search *s, uint64_t n, uint32_t n_threads, ps_path path, bool alone) {
    for (uint32_t i = 0; i < s->n_found; i++)
        if (!s->found[i].alone == !alone && s->found[i].point == n && s->found[i].n_threads == n_threads &&
            s->found[i].path == path)
            return &s->found[i];
    return NULL;
}

/* What is resident at a point, or between, with the schedule of the point that was searched. */
static ps_status refill(ps_search *s, const ps_schedule *from, uint64_t avail, ps_schedule *out, bool *fits) {
    enum { ROUNDS = 3 };
    *out = *from;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t work;
        *fits = ps_trial_fill(s->trial, out, avail);
        ps_status status = *fits ? ps_trial_work(s->trial, out, false, &work) : PS_OK;
        if (status || !*fits)
            return status;
        work = work == UINT64_MAX ? work : work + out->extra_bytes;
        if (work <= out->work_bytes)
            return ps_climb_time(s, out);
        out->work_bytes = work; /* it grows with what is resident */
    }
    *fits = false;
    return PS_OK;
}

static ps_status keep(ps_search *s, const found *new) {
    if (s->n_found == s->room) {
        uint32_t room = s->room ? 2 * s->room : 32;
        found *grown = realloc(s->found, room * sizeof *grown);
        if (!grown)
            return ps_build_no_memory(s->b->err);
        s->found = grown;
        s->room = room;
    }
    s->found[s->n_found++] = *new;
    return PS_OK;
}

/* A point that is searched in full, by itself. */
static ps_status by_itself(ps_search *s, uint64_t n, uint32_t n_threads, ps_path path, found *out) {
    const found *f = lookup(s, n, n_threads, path, true);
    if (f) {
        *out = *f;
        return PS_OK;
    }
    *out = (found){.point = n, .n_threads = n_threads, .path = path, .alone = true};
    ps_status status = ps_climb_in_full(s, point_bytes(s, n), n_threads, path, &out->s, &out->feasible);
    return status ? status : keep(s, out);
}

/* The same, also from what its neighbours have found. */
static ps_status at_base(ps_search *s, uint64_t n, uint32_t n_threads, ps_path path, found *out) {
    const found *f = lookup(s, n, n_threads, path, false);
    if (f) {
        *out = *f;
        return PS_OK;
    }
    ps_status status = by_itself(s, n, n_threads, path, out);
    ps_schedule best = out->s;
    bool better = false;
    for (int i = -1; i <= 1 && !status; i += 2) {
        found next;
        ps_schedule c;
        bool fits = false;
        if (i < 0 && n < s->per_cell)
            continue;
        status = by_itself(s, i < 0 ? n - s->per_cell : n + s->per_cell, n_threads, path, &next);
        if (!status && next.feasible)
            status = refill(s, &next.s, point_bytes(s, n), &c, &fits);
        if (!status && fits && (!out->feasible || c.workload_s < best.workload_s * PS_CLEARLY)) {
            best = c;
            better = true;
        }
    }
    bool fits = false;
    if (!status && better)
        status = ps_climb_moves(s, &best, path, point_bytes(s, n));
    if (!status && better)
        status = ps_climb_verify(s, &best, point_bytes(s, n), &fits);
    if (!status && fits && (!out->feasible || best.workload_s < out->s.workload_s)) {
        out->s = best;
        out->feasible = true;
    }
    out->alone = false;
    return status ? status : keep(s, out);
}

/* The families at exactly so many bytes: below the first point that is searched in full every step of VRAM adds what could not be done
 * before, so that schedules of other points may be bad ones. */
static ps_status add_families(ps_search *s, uint64_t avail, uint32_t n_threads, ps_path path, ps_schedule *c,
                              uint32_t *n) {
    ps_status status = PS_OK;
    for (int f = 0; f < PS_FAMILY_COUNT && !status; f++) {
        bool fits = false;
        status = ps_climb_family(s, (ps_family)f, avail, n_threads, path, true, &c[*n], &fits);
        *n += !status && fits;
    }
    return status;
}

/* The fastest of n candidates that really fits, is faster than below_s and not faster than not_below_s. Candidates are used up. */
static ps_status best_of(ps_search *s, ps_schedule *c, uint32_t n, uint64_t avail, double not_below_s,
                         double below_s, bool shares, ps_schedule *out, bool *feasible) {
    *feasible = false;
    while (n) {
        uint32_t least = 0;
        for (uint32_t i = 1; i < n; i++)
            least = c[i].workload_s < c[least].workload_s ? i : least;
        if (c[least].workload_s >= (*feasible ? out->workload_s : below_s))
            return PS_OK;
        bool fits = false;
        ps_status status = shares ? ps_climb_shares(s, &c[least]) : PS_OK;
        if (!status)
            status = ps_climb_verify(s, &c[least], avail, &fits);
        if (status)
            return status;
        if (fits && isfinite(c[least].workload_s) && c[least].workload_s >= not_below_s &&
            (!*feasible || c[least].workload_s < out->workload_s)) {
            *out = c[least];
            *feasible = true;
        }
        c[least] = c[--n];
    }
    return PS_OK;
}

/* A point between two of them: their schedules with what is then resident, as far as that is not faster than the next one. */
static ps_status at_point(ps_search *s, uint64_t n, uint32_t n_threads, ps_path path, found *out) {
    if (n % s->per_cell == 0)
        return at_base(s, n, n_threads, path, out);
    const found *f = lookup(s, n, n_threads, path, false);
    found bases[2];
    if (f) {
        *out = *f;
        return PS_OK;
    }
    for (uint64_t i = 0; i < 2; i++) {
        ps_status status = at_base(s, (n / s->per_cell + i) * s->per_cell, n_threads, path, &bases[i]);
        if (status)
            return status;
    }
    *out = (found){.point = n, .n_threads = n_threads, .path = path};
    const uint64_t avail = point_bytes(s, n);
    ps_schedule c[2 + PS_FAMILY_COUNT];
    uint32_t n_c = 0;
    ps_status status = PS_OK;
    for (int i = 0; i < 2 && !status; i++) {
        bool fits = false;
        if (bases[i].feasible)
            status = refill(s, &bases[i].s, avail, &c[n_c], &fits);
        n_c += !status && fits;
    }
    if (!status)
        status = add_families(s, avail, n_threads, path, c, &n_c);
    if (!status)
        status = best_of(s, c, n_c, avail, bases[1].feasible ? bases[1].s.workload_s : 0, INFINITY, true,
                         &out->s, &out->feasible);
    return status ? status : keep(s, out);
}

static void take(const found *f, ps_schedule *best, bool *feasible) {
    if (f->feasible && (!*feasible || f->s.workload_s < best->workload_s)) {
        *best = f->s;
        *feasible = true;
    }
}

/* The best of all points at or below `avail`. */
static ps_status best_below(ps_search *s, uint64_t avail, uint32_t n_threads, ps_path path, ps_schedule *best,
                            bool *feasible) {
    uint64_t n, bytes = avail < s->last ? avail : s->last;
    ps_status status = PS_OK;
    found f;
    *feasible = false;
    if (!point_below(s, bytes, &n))
        return PS_OK;
    uint64_t first = n / s->per_cell * s->per_cell;
    for (uint64_t i = first;; i -= s->per_cell) {
        double bound = 0;
        if (*feasible)
            status = ps_trial_bound(s->trial, point_bytes(s, i), n_threads, &bound);
        if (!status && *feasible && bound >= best->workload_s)
            break;
        if (!status)
            status = at_base(s, i, n_threads, path, &f);
        if (status)
            return status;
        take(&f, best, feasible);
        if (i == 0)
            break;
    }
    for (uint64_t i = first + 1; i <= n; i++) {
        status = at_point(s, i, n_threads, path, &f);
        if (status)
            return status;
        take(&f, best, feasible);
    }
    if (bytes == point_bytes(s, n))
        return PS_OK;
    /* And between that point and the next, in the smallest steps: nor faster than the next. */
    found at, next;
    status = at_point(s, n, n_threads, path, &at);
    if (!status)
        status = at_point(s, n + 1, n_threads, path, &next);
    double not_below_s = !status && next.feasible ? next.s.workload_s : 0;
    for (uint64_t b = point_bytes(s, n) + PS_VRAM_ALIGN; b <= bytes && !status && at.feasible;
         b += PS_VRAM_ALIGN) {
        ps_schedule c[1 + PS_FAMILY_COUNT];
        uint32_t n_c = 0;
        bool fits = false;
        f = at;
        status = refill(s, &at.s, b, &c[0], &fits);
        n_c += !status && fits;
        if (!status && (n < s->per_cell || b == bytes))
            status = add_families(s, b, n_threads, path, c, &n_c);
        if (!status)
            status = best_of(s, c, n_c, b, not_below_s, *feasible ? best->workload_s : INFINITY, false, &f.s,
                             &f.feasible);
        if (!status)
            take(&f, best, feasible);
    }
    return status;
}

/* ---- outside ---- */

ps_status ps_search_new(ps_building *b, const ps_level_request *lr, ps_search **out) {
    ps_search *s = calloc(1, sizeof *s);
    if (!s)
        return ps_build_no_memory(b->err);
    s->own = (ps_building){.q = b->q, .err = &s->error, .cache = calloc(1, sizeof *s->own.cache)};
    s->b = &s->own;
    s->lr = *lr;
    ps_status status = s->own.cache ? ps_trial_new(s->b, lr, &s->trial) : ps_build_no_memory(&s->error);
    uint64_t work = 0, kv = 0, weights = 0;
    if (!status)
        status = ps_gpu_least(s->b, lr, &work, &s->least);
    if (!status) {
        const ps_resident_units *u = ps_trial_units(s->trial);
        for (uint32_t l = 0; l < u->model->n_layers; l++) {
            kv += ps_trial_kv_bytes(s->trial)[l];
            weights += u->attn_bytes[l];
        }
        for (uint32_t i = 0; i < u->n_head; i++)
            weights += u->head_bytes[i];
        for (uint64_t i = 0; i < u->n_ffn; i++)
            weights += u->ffn_bytes[i];
        s->apart = ps_round_up(weights / POINTS, PS_VRAM_ALIGN);
        s->apart = s->apart ? s->apart : PS_VRAM_ALIGN;
        /* Steps of all lengths, when all is resident. */
        ps_schedule c;
        memset(&c, 0, sizeof c);
        c.n_threads = lr->n_threads;
        c.max_step = (uint32_t)ps_longest_step(b->q, lr);
        ps_climb_family_rules(s, PS_FAMILY_GPU, &c);
        c.mix = (ps_resident_mix){u->model->n_layers, u->n_head, u->n_ffn};
        c.n_kv = u->model->n_layers;
        status = ps_trial_work(s->trial, &c, true, &work);
        if (!status && work == UINT64_MAX)
            work = 0;
        uint64_t parts = 3 * work; /* a third of what there is for the work arena lets steps be long */
        uint64_t all =
            ps_round_up(kv + work, PS_VRAM_ALIGN) + ps_round_up(weights + u->small_bytes, PS_VRAM_ALIGN);
        all = all > parts ? all : parts;
        s->per_cell = ps_round_up(all, s->apart) / s->apart / CELLS;
        s->per_cell =
            s->per_cell && (u->model->n_layers > FEW_LAYERS || s->apart > PS_VRAM_ALIGN) ? s->per_cell : 1;
        s->small = s->per_cell == 1;
        if (s->small)
            ps_trial_exactly(s->trial);
        s->last = ps_round_up(all, s->apart * s->per_cell) + s->apart * s->per_cell;
        s->last = s->last > s->least ? s->last : s->least;
    }
    if (status) {
        if (b->err)
            *b->err = s->error;
        ps_search_free(s);
        return status;
    }
    *out = s;
    return PS_OK;
}

void ps_search_free(ps_search *s) {
    if (!s)
        return;
    ps_trial_free(s->trial);
    free(s->own.cache);
    free(s->found);
    free(s);
}

const ps_error *ps_search_error(const ps_search *s) {
    return &s->error;
}

bool ps_search_same(const ps_search *s, const ps_level_request *lr) {
    return s->lr.bucket_tokens == lr->bucket_tokens && s->lr.n_seqs == lr->n_seqs;
}

void ps_search_alone(ps_search *s) {
    s->mixes = s->small;
}

uint64_t ps_search_looked_at(const ps_search *s) {
    return s->looked_at;
}

static uint64_t avail_of(const ps_search *s, const ps_level_request *lr) {
    uint64_t base = ps_gpu_base_bytes(s->b->q->profile);
    return lr->budget_bytes > base ? (lr->budget_bytes - base) / PS_VRAM_ALIGN * PS_VRAM_ALIGN : 0;
}

bool ps_search_is_team(uint32_t n, uint32_t allowed) {
    uint32_t power = 1;
    while (power * 2 <= n)
        power *= 2;
    return n <= 16 || n == power || n == power + power / 2 || n + 1 == allowed;
}

ps_status ps_search_solve(ps_search *s, const ps_level_request *lr, ps_path path, uint32_t n_threads,
                          ps_schedule *out) {
    bool feasible;
    ps_status status = best_below(s, avail_of(s, lr), n_threads, path, out, &feasible);
    return status || feasible ? status : ps_error_set(s->b->err, PS_E_INFEASIBLE, lr->budget, "does not fit");
}

/* The base below a budget and three neighbours, as far as the one behind the base behind it; then the families, at each point from there
 * to the one behind the budget, and at the budget. */
bool ps_search_piece_at(const ps_search *s, const ps_level_request *lr, uint32_t i, ps_search_piece *out) {
    enum { BASES = 4 };
    static const int bases[BASES] = {0, 1, 2, -1};
    uint64_t n, avail = avail_of(s, lr), bytes = avail < s->last ? avail : s->last;
    if (!point_below(s, bytes, &n))
        return false;
    const uint64_t first = n / s->per_cell * s->per_cell, at = first + 1 + (i - (uint64_t)BASES);
    out->in_full = i < BASES;
    if (i < BASES)
        out->avail_bytes = point_bytes(s, bases[i] < 0 ? first - (first ? s->per_cell : 0)
                                                       : first + (uint64_t)bases[i] * s->per_cell);
    else
        out->avail_bytes = at > n + 1 ? bytes : point_bytes(s, at);
    return i < BASES || at <= n + 2;
}

ps_status ps_search_twin(const ps_search *s, ps_search **out, ps_error *err) {
    ps_search *x = calloc(1, sizeof *x);
    if (!x)
        return ps_build_no_memory(err);
    *x = *s;
    x->own = (ps_building){.q = s->b->q, .err = &x->error, .cache = calloc(1, sizeof *x->own.cache)};
    x->b = &x->own;
    x->error = (ps_error){0};
    x->trial = NULL;
    x->found = NULL;
    x->n_found = x->room = 0;
    x->looked_at = 0;
    ps_status status =
        x->own.cache ? ps_trial_twin(s->trial, x->b, &x->trial) : ps_build_no_memory(&x->error);
    if (status) {
        if (err)
            *err = x->error;
        ps_search_free(x);
        return status;
    }
    *out = x;
    return PS_OK;
}

void ps_search_ahead(const ps_search *s, uint32_t n_threads, const ps_search_piece *piece) {
    ps_search *x = NULL;
    ps_schedule c[PS_FAMILY_COUNT];
    uint32_t n = 0;
    bool feasible;
    if (ps_search_twin(s, &x, NULL) != PS_OK)
        return;
    if (piece->in_full)
        (void)ps_climb_in_full(x, piece->avail_bytes, n_threads, PS_PATH_COUNT, &c[0], &feasible);
    else
        (void)add_families(x, piece->avail_bytes, n_threads, PS_PATH_COUNT, c, &n);
    ps_search_free(x);
}

ps_status ps_search_with_team(ps_search *s, const ps_schedule *c, uint32_t n_threads, double *out_s) {
    ps_schedule with = *c;
    with.n_threads = n_threads;
    ps_status status = ps_climb_time(s, &with);
    *out_s = with.workload_s;
    return status;
}

ps_status ps_search_family(ps_search *s, const ps_level_request *lr, ps_family family, ps_schedule *out) {
    bool fits = false;
    uint64_t avail = avail_of(s, lr);
    ps_status status = PS_OK;
    if (avail >= s->least)
        status = ps_climb_family(s, family, avail, lr->n_threads, PS_PATH_COUNT, true, out, &fits);
    return status || fits ? status : ps_error_set(s->b->err, PS_E_INFEASIBLE, lr->budget, "does not fit");
}

ps_status ps_search_families(ps_search *s, const ps_level_request *lr, ps_schedule out[PS_FAMILY_COUNT]) {
    for (int f = 0; f < PS_FAMILY_COUNT; f++) {
        bool fits;
        ps_status status = ps_climb_family(s, (ps_family)f, avail_of(s, lr), lr->n_threads, PS_PATH_COUNT,
                                           true, &out[f], &fits);
        if (status)
            return status;
        if (!fits)
            out[f].workload_s = out[f].decode_s = out[f].prompt_s = INFINITY;
    }
    return PS_OK;
}

bool ps_search_less(ps_search *s, const ps_level_request *lr, uint64_t more_bytes, ps_schedule *c) {
    enum { ROUNDS = 1000 };
    uint64_t before = c->mix.n_attn + (uint64_t)c->mix.n_head + c->mix.n_ffn + c->n_kv, after = before;
    for (int i = 0; i < ROUNDS && after >= before; i++) {
        c->work_bytes += ps_round_up(more_bytes, PS_VRAM_ALIGN);
        if (!ps_trial_fill(s->trial, c, avail_of(s, lr)))
            return false;
        after = c->mix.n_attn + (uint64_t)c->mix.n_head + c->mix.n_ffn + c->n_kv;
    }
    return after < before;
}

/* The same rules, whatever is resident. */
static bool same_schedule(const ps_schedule *a, const ps_schedule *b) {
    return memcmp(&a->decode, &b->decode, sizeof a->decode) == 0 &&
           memcmp(&a->prompt, &b->prompt, sizeof a->prompt) == 0 &&
           memcmp(&a->left_out, &b->left_out, sizeof a->left_out) == 0 && a->path == b->path &&
           a->kv_policy == b->kv_policy && a->max_step == b->max_step;
}

ps_status ps_search_changes(ps_search *s, const ps_level_request *lr, uint64_t *out, uint32_t *out_n) {
    enum { MOST = 8, MOST_CELLS = 64 };
    const ps_resident_units *u = ps_trial_units(s->trial);
    uint64_t base = ps_gpu_base_bytes(s->b->q->profile),
             card = ps_profile_fast_vram_bytes(&s->b->q->profile->gpu),
             least = ps_round_up(base + s->least, 1 << 20);
    struct {
        uint64_t bytes;
        double gain;
    } at[MOST_CELLS];
    uint32_t n = 0;
    ps_schedule before = {0};
    bool all = false;
    for (uint64_t i = 0; !all && n < MOST_CELLS && (i == 0 || point_bytes(s, i) <= s->last);
         i += s->per_cell) {
        found f;
        uint64_t bytes = ps_round_up(base + point_bytes(s, i), 1 << 20);
        if (i && card && bytes > card)
            break;
        ps_plan_tell(s->b->q, (double)point_bytes(s, i) / (double)s->last, "looking for budgets");
        ps_status status = at_point(s, i, lr->n_threads, PS_PATH_COUNT, &f);
        if (status)
            return status;
        if (!f.feasible)
            continue;
        all = f.s.mix.n_attn == u->model->n_layers && f.s.mix.n_head == u->n_head &&
              f.s.mix.n_ffn == u->n_ffn && f.s.n_kv == u->model->n_layers;
        if (n && same_schedule(&f.s, &before) && !all)
            continue;
        if (n && f.s.workload_s >= before.workload_s) /* nothing gained */
            continue;
        at[n].bytes = i == 0 ? least : bytes;
        at[n].gain = n ? before.workload_s / f.s.workload_s : INFINITY;
        before = f.s;
        n++;
    }
    if (n == 0)
        return ps_error_set(s->b->err, PS_E_INFEASIBLE, "auto", "no budget of the card holds a schedule");
    while (n > MOST) { /* those that gain least, but for the first and the last */
        uint32_t worst = 1;
        for (uint32_t i = 1; i + 1 < n; i++)
            if (at[i].gain < at[worst].gain)
                worst = i;
        at[worst + 1].gain *= at[worst].gain;
        memmove(&at[worst], &at[worst + 1], (n - worst - 1) * sizeof at[0]);
        n--;
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = at[i].bytes;
    *out_n = n;
    return PS_OK;
}
