/* Schedules tried out: see trial.h. */
#include "plan/trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "plan/bounds.h"
#include "plan/known.h"
#include "plan/memory.h"

enum { DEFAULT_STEP = 16384 };

/* What decides a tier's program. All bytes are set. */
typedef struct key {
    ps_rule rule;
    ps_resident_mix mix;
    uint32_t tokens, n_kv, n_threads, tile; /* tile: of the caches, 0 where it makes no difference */
} key;

typedef struct words {
    uint64_t *at;
    size_t n, room;
} words;

struct ps_trial {
    ps_building b; /* of its own: what is tried leaves nothing in the plan */
    ps_plan plan;
    ps_level_request lr;
    bool twin;       /* arena, kv_bytes, kinds and known are another's */
    ps_arena *arena; /* as long as the trial */
    ps_resident_units units;
    uint64_t *kv_bytes;
    ps_kv_home *kv;
    uint64_t kv_end[PS_SPACE_COUNT];
    uint32_t n_kv, tile; /* of kv; tile 0: none yet */
    bool exactly;
    bool windows;        /* layers have them: how large a cache is depends on the tile */
    ps_resident_set set; /* model NULL: none yet */
    uint32_t *kinds;     /* [n_layers] the first layer that is like this one but for where its weights are */
    ps_known *known;
    words words; /* a key that is being written */
    struct {
        words of; /* what decided it, but for the tokens; none: there is no program */
        uint32_t program;
    } tiles; /* the program of a step over tiles, of building b: their number makes no difference to it */
};

uint64_t ps_longest_step(const ps_plan_request *q, const ps_level_request *lr) {
    uint64_t most = q->max_step_tokens ? q->max_step_tokens : DEFAULT_STEP, all;
    if (most > PS_PLAN_MAX_TOKENS)
        most = PS_PLAN_MAX_TOKENS;
    return ps_mul_u64(lr->bucket_tokens, lr->n_seqs, &all) && all < most ? all : most;
}

uint32_t ps_tiers_up_to(uint64_t most, uint32_t *out) {
    uint32_t n = 0;
    for (uint64_t t = 1; t < most && n < PS_MAX_TIERS - 1; t *= 2)
        out[n++] = (uint32_t)t;
    out[n++] = (uint32_t)most;
    return n;
}

static uint32_t tier_for(uint32_t max_step, double tokens) {
    uint32_t sizes[PS_MAX_TIERS], n = ps_tiers_up_to(max_step, sizes), i = 0;
    while (i + 1 < n && sizes[i] < tokens)
        i++;
    return sizes[i];
}

static double prompt_of(const ps_plan_request *q, const ps_level_request *lr) {
    return fmin(q->prompt_tokens ? (double)q->prompt_tokens : PS_PLAN_PROMPT, (double)lr->bucket_tokens);
}

uint32_t ps_decode_tokens(const ps_level_request *lr, uint32_t max_step) {
    return tier_for(max_step, lr->n_seqs);
}

uint32_t ps_prompt_tokens(const ps_plan_request *q, const ps_level_request *lr, uint32_t max_step) {
    return tier_for(max_step, prompt_of(q, lr));
}

static uint32_t outputs_of(const ps_plan_request *q, const ps_level_request *lr, uint32_t tokens) {
    uint32_t n = q->max_outputs ? q->max_outputs : lr->n_seqs;
    return n < tokens ? n : tokens;
}

ps_rule ps_schedule_rule(const ps_plan_request *q, const ps_level_request *lr, const ps_schedule *s,
                         uint32_t tokens) {
    uint32_t decode = ps_decode_tokens(lr, s->max_step), prompt = ps_prompt_tokens(q, lr, s->max_step);
    if (tokens == decode || (tokens <= PS_PLAN_DECODE_TOKENS && decode <= PS_PLAN_DECODE_TOKENS))
        return s->decode;
    bool few = tokens <= PS_PLAN_DECODE_TOKENS, tiles = tokens > PS_TILE_TOKENS;
    if (few == (prompt <= PS_PLAN_DECODE_TOKENS) && tiles == (prompt > PS_TILE_TOKENS))
        return s->prompt;
    ps_family family = (ps_family)(few ? s->decode.family : s->prompt.family);
    if (tokens > ps_family_max_step(family))
        family = PS_FAMILY_GPU;
    return ps_family_rule(family, tokens, outputs_of(q, lr, tokens));
}

void ps_trial_free(ps_trial *t) {
    if (!t)
        return;
    free(t->b.programs);
    ps_arena_free(t->b.work);
    ps_arena_free(t->plan.arena);
    free(t->kv);
    if (t->set.model)
        ps_resident_free(&t->set);
    free(t->words.at);
    free(t->tiles.of.at);
    if (!t->twin) {
        free(t->kinds);
        ps_known_free(t->known);
        ps_arena_free(t->arena);
    }
    free(t);
}

ps_status ps_trial_new(ps_building *b, const ps_level_request *lr, ps_trial **out) {
    const ps_model *m = b->q->model;
    ps_trial *t = calloc(1, sizeof *t);
    if (!t)
        return ps_build_no_memory(b->err);
    t->lr = *lr;
    t->b = (ps_building){.q = b->q, .err = b->err, .plan = &t->plan, .cache = b->cache};
    t->arena = ps_arena_new(UINT64_MAX);
    t->kv = calloc(m->n_layers, sizeof *t->kv);
    t->kv_bytes = t->arena ? ps_arena_array(t->arena, m->n_layers, sizeof *t->kv_bytes) : NULL;
    t->kinds = calloc(m->n_layers, sizeof *t->kinds);
    t->known = ps_known_new();
    ps_status status = t->kv && t->kv_bytes && t->kinds && t->known ? PS_OK : ps_build_no_memory(b->err);
    for (uint32_t l = 0; l < m->n_layers && !status; l++)
        t->windows |= m->layers[l].window != 0;
    for (uint32_t l = 1; l < m->n_layers && !status; l++)
        while (t->kinds[l] < l && !ps_layers_alike(m, t->kinds[l], l))
            t->kinds[l]++;
    if (!status)
        status = ps_resident_units_of(m, t->arena, &t->units, b->err);
    if (!status) {
        uint64_t longest = ps_longest_step(b->q, lr), ends[PS_SPACE_COUNT];
        ps_memory_kv(m, lr->bucket_tokens, longest < PS_TILE_TOKENS ? longest : PS_TILE_TOKENS, lr->n_seqs, 0,
                     t->kv, ends);
        if (ends[PS_SPACE_HOST] == UINT64_MAX)
            status = ps_error_set(b->err, PS_E_INFEASIBLE, "kv cache", "exceeds 2^64 bytes");
    }
    for (uint32_t l = 0; l < m->n_layers && !status; l++) {
        t->kv_bytes[l] = t->kv[l].bytes * lr->n_seqs;
        ps_align_u64(t->kv_bytes[l], PS_RESIDENT_ALIGN, &t->kv_bytes[l]);
    }
    if (status) {
        ps_trial_free(t);
        return status;
    }
    *out = t;
    return PS_OK;
}

ps_status ps_trial_twin(const ps_trial *of, ps_building *b, ps_trial **out) {
    ps_trial *t = calloc(1, sizeof *t);
    if (!t)
        return ps_build_no_memory(b->err);
    t->lr = of->lr;
    t->b = (ps_building){.q = b->q, .err = b->err, .plan = &t->plan, .cache = b->cache};
    t->twin = true;
    t->arena = of->arena;
    t->units = of->units;
    t->kv_bytes = of->kv_bytes;
    t->exactly = of->exactly;
    t->windows = of->windows;
    t->kinds = of->kinds;
    t->known = of->known;
    t->kv = calloc(b->q->model->n_layers, sizeof *t->kv);
    if (!t->kv) {
        ps_trial_free(t);
        return ps_build_no_memory(b->err);
    }
    *out = t;
    return PS_OK;
}

void ps_trial_exactly(ps_trial *t) {
    t->exactly = true;
}

const ps_resident_units *ps_trial_units(const ps_trial *t) {
    return &t->units;
}

const uint64_t *ps_trial_kv_bytes(const ps_trial *t) {
    return t->kv_bytes;
}

/* ---- one tier ---- */

/* Nothing that was tried is kept. */
static ps_status anew(ps_trial *t) {
    free(t->b.programs);
    ps_arena_free(t->b.work);
    ps_arena_free(t->plan.arena);
    t->b.programs = NULL;
    t->b.n_programs = t->b.room = 0;
    t->tiles.of.n = 0;
    t->b.work = ps_arena_new(UINT64_MAX);
    t->plan.arena = ps_arena_new(UINT64_MAX);
    return t->b.work && t->plan.arena ? PS_OK : ps_build_no_memory(t->b.err);
}

/* Some things that were tried are kept, as long as they are few: the program of steps over tiles may be asked for again. */
static ps_status again(ps_trial *t) {
    enum { KEPT_BYTES = 4 << 20 };
    const bool few = t->b.work && t->plan.arena && t->tiles.of.n &&
                     ps_arena_used(t->b.work) + ps_arena_used(t->plan.arena) < KEPT_BYTES;
    return few ? PS_OK : anew(t);
}

static uint32_t tile_of(uint32_t max_step) {
    return max_step < PS_TILE_TOKENS ? max_step : PS_TILE_TOKENS;
}

static ps_status settle(ps_trial *t, const key *k, uint32_t max_step) {
    uint32_t tile = tile_of(max_step);
    if (!t->tile || t->n_kv != k->n_kv || t->tile != tile) {
        ps_memory_kv(t->b.q->model, t->lr.bucket_tokens, tile, t->lr.n_seqs, k->n_kv, t->kv, t->kv_end);
        t->tile = tile;
        t->n_kv = k->n_kv;
    }
    if (t->set.model && memcmp(&t->set.mix, &k->mix, sizeof k->mix) == 0)
        return PS_OK;
    if (t->set.model)
        ps_resident_free(&t->set);
    ps_status status = ps_resident_init(&t->set, t->b.q->model, t->b.err);
    return status ? status : ps_resident_grow(&t->set, &k->mix, t->b.err);
}

static key key_of(const ps_trial *t, const ps_schedule *s, const ps_rule *rule, uint32_t tokens) {
    key k;
    memset(&k, 0, sizeof k);
    k.rule = *rule;
    k.mix = s->mix;
    k.tokens = tokens;
    k.n_kv = s->n_kv;
    k.n_threads = s->n_threads;
    if (t->windows && tokens > PS_PLAN_DECODE_TOKENS) /* steps of few rows fill no cache's slot */
        k.tile = tile_of(s->max_step);
    return k;
}

static bool add_words(words *w, const uint64_t *more, size_t n) {
    if (n > w->room - w->n) {
        size_t room = 2 * w->room + n;
        uint64_t *grown = realloc(w->at, room * sizeof *grown);
        if (!grown)
            return false;
        w->at = grown;
        w->room = room;
    }
    memcpy(w->at + w->n, more, n * sizeof *more);
    w->n += n;
    return true;
}

static bool add_parts(words *t, const ps_place_part *parts, uint32_t n) {
    bool ok = true;
    for (uint32_t i = 0; i < n && ok; i++)
        ok = add_words(t, (const uint64_t[]){parts[i].where, parts[i].first, parts[i].n}, 3);
    return ok;
}

static bool streams(const ps_place_part *parts, uint32_t n) {
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= parts[i].where == PS_WHERE_STREAM;
    return any;
}

static bool same_place(const ps_layer_place *a, const ps_layer_place *b) {
    return a->attn == b->attn && a->kv_slot == b->kv_slot && a->kv_host == b->kv_host &&
           a->n_parts == b->n_parts && memcmp(a->part, b->part, a->n_parts * sizeof a->part[0]) == 0;
}

/* What decides a tier's program once everything has its place: rules often come to the same places. For the work arena it is of no
 * account how many layers follow each other alike, once they are so many that the rounds of their block that are looked at
 * (deps.c) are all in the middle; steps over tiles have a block for each layer. */
static bool key_of_places(ps_trial *t, const key *k, const ps_placing *p, bool work) {
    enum { MANY = 16 };
    const uint32_t n_layers = t->b.q->model->n_layers,
                   many = work && k->tokens <= PS_TILE_TOKENS ? MANY : UINT32_MAX;
    bool slots = streams(p->head, p->n_head);
    for (uint32_t l = 0; l < n_layers && !slots; l++)
        slots = p->layers[l].attn == PS_WHERE_STREAM || streams(p->layers[l].part, p->layers[l].n_parts);
    words *w = &t->words;
    w->n = 0;
    bool ok = add_words(w,
                        (const uint64_t[]){k->tokens, work, k->n_threads, slots ? p->n_slots : 0,
                                           slots ? p->range_bytes : 0, p->carry, p->kv_slot_bytes, p->n_head},
                        8) &&
              add_parts(w, p->head, p->n_head);
    if (ok && !work) /* times also depend on what is resident, and on where caches are */
        ok = add_words(
            w, (const uint64_t[]){p->max_direct, k->mix.n_attn, k->mix.n_head, k->mix.n_ffn, k->n_kv}, 5);
    for (uint32_t l = 0, next; l < n_layers && ok; l = next) {
        const ps_layer_place *at = &p->layers[l];
        for (next = l + 1;
             next < n_layers && t->kinds[next] == t->kinds[l] && same_place(at, &p->layers[next]);)
            next++;
        ok = add_words(w,
                       (const uint64_t[]){t->kinds[l], next - l < many ? next - l : many, at->attn,
                                          at->kv_slot, at->kv_host, at->n_parts},
                       6) &&
             add_parts(w, at->part, at->n_parts);
    }
    return ok;
}

/* The bytes of the work arena. Steps of more tiles than the last ones, all else alike, have its program. */
static ps_status work_of(ps_trial *t, const ps_lower_request *r, uint64_t *out) {
    ps_tier tier = {0};
    uint64_t end[2] = {0, 0}, none[2] = {0, 0};
    const words *w = &t->words; /* the tokens, and all the rest */
    words *of = &t->tiles.of;
    ps_status status = PS_OK;
    if (r->max_tokens <= PS_TILE_TOKENS) {
        status = ps_build_tier(&t->b, r, t->b.work, none, &tier, end);
    } else {
        if (of->n != w->n - 1 || memcmp(of->at, w->at + 1, of->n * sizeof *of->at) != 0) {
            of->n = 0;
            status = ps_build_program(&t->b, r, &t->tiles.program);
            if (!status && !add_words(of, w->at + 1, w->n - 1))
                status = ps_build_no_memory(t->b.err);
        }
        tier.program = t->tiles.program;
        if (!status)
            status = ps_build_places(&t->b, r, t->b.work, none, &tier, end);
    }
    *out = status ? UINT64_MAX : end[PS_SPACE_VRAM];
    return status;
}

/* What is wanted of a tier whose places are settled, by lowering it. */
static ps_status lower_and_try(ps_trial *t, const ps_lower_request *r, bool work, bool empty, bool full,
                               double most_s, ps_tier_known *e) {
    ps_error *err = t->b.err;
    ps_program p;
    ps_status status = PS_OK;
    uint64_t after = r->max_tokens <= t->lr.n_seqs ? 1 : r->max_tokens,
             all = t->lr.bucket_tokens > after ? t->lr.bucket_tokens : after;
    if (work) {
        status = work_of(t, r, &e->work_bytes);
        e->has_work = true;
    }
    if (status == PS_E_NOMEM || (!empty && !full))
        return status;
    status = ps_lower(r, t->plan.arena, &p, err);
    double s[2] = {INFINITY, INFINITY};
    e->has_empty = empty;
    e->has_full = full;
    if (!status && empty && full) {
        status = ps_build_both_s(r, &p, (const uint64_t[]){after, all}, most_s, s, &e->least_s, err);
        e->has_empty = e->has_full = status || isfinite(s[0]); /* or it was not worth while */
    } else if (!status) {
        status = ps_build_step_s(r, &p, empty ? after : all, empty ? &s[0] : &s[1], err);
    }
    e->empty_s = status ? INFINITY : s[0];
    e->full_s = status ? INFINITY : s[1];
    return status;
}

/* Fill in what is wanted of a tier: its work arena, or times. Both times may be left out where their mean is most_s or more. */
static ps_status find(ps_trial *t, const ps_schedule *s, const ps_rule *rule, uint32_t tokens, bool work,
                      bool empty, bool full, double most_s, ps_tier_known *out) {
    key k = key_of(t, s, rule, tokens);
    *out = ps_known_get(t->known, &k, sizeof k);
    work = work && !out->has_work;
    empty = empty && !out->has_empty;
    full = full && !out->has_full;
    if ((!work && !empty && !full) || (empty && full && out->least_s >= most_s))
        return PS_OK;
    ps_status status = again(t);
    if (!status)
        status = settle(t, &k, s->max_step);
    if (status)
        return status;
    ps_level_request at = t->lr;
    at.n_threads = s->n_threads;
    ps_lower_request r = ps_build_request(t->b.q, &at, tokens);
    r.cache = t->b.cache;
    r.kinds = t->kinds;
    const ps_level level = {.budget_bytes = 1, /* that there is a GPU */
                            .kv = t->kv,
                            .n_resident = t->set.n,
                            .resident = t->set.pieces};
    ps_placing placing;
    r.level = &level;
    status = ps_rule_place(rule, &r, &t->set, t->kv, t->b.work, &placing, t->b.err);
    if (status)
        return status;
    r.place = &placing;
    r.max_direct = placing.max_direct;
    if (!key_of_places(t, &k, &placing, work))
        return ps_build_no_memory(t->b.err);
    const size_t n_bytes = t->words.n * sizeof *t->words.at;
    ps_tier_known e = ps_known_get(t->known, t->words.at, n_bytes);
    const bool slow = empty && full && !e.has_empty && e.least_s >= most_s;
    if (!slow && ((work && !e.has_work) || (empty && !e.has_empty) || (full && !e.has_full))) {
        e = (ps_tier_known){0};
        status = lower_and_try(t, &r, work, empty, full, most_s, &e);
        if (status == PS_E_NOMEM)
            return status;
        if (status && t->b.err) /* a point of the space that has no program */
            *t->b.err = (ps_error){0};
        if (!ps_known_put(t->known, t->words.at, n_bytes, &e))
            return ps_build_no_memory(t->b.err);
    }
    if (!ps_known_put(t->known, &k, sizeof k, &e))
        return ps_build_no_memory(t->b.err);
    *out = ps_known_get(t->known, &k, sizeof k);
    return PS_OK;
}

ps_status ps_trial_tier_s(ps_trial *t, const ps_schedule *s, const ps_rule *rule, uint32_t tokens,
                          double *out_empty_s, double *out_full_s) {
    ps_tier_known e;
    ps_status status = find(t, s, rule, tokens, false, true, true, INFINITY, &e);
    if (!status) {
        *out_empty_s = e.empty_s;
        *out_full_s = e.full_s;
    }
    return status;
}

/* ---- a schedule ---- */

/* The longest tier need not take most: kernels for fewer rows can want more scratch. Of the tiers of few rows the last one
 * does. */
ps_status ps_trial_work(ps_trial *t, const ps_schedule *asked, bool exact, uint64_t *out) {
    ps_schedule class = *asked, *s = &class;
    if (!exact &&
        !t->exactly) { /* of each kind none, half or all: how much exactly makes next to no difference */
        const ps_resident_units *u = &t->units;
        uint32_t n_layers = u->model->n_layers;
        class.n_threads = t->lr.n_threads;
        class.mix.n_attn = asked->mix.n_attn == 0          ? 0
                           : asked->mix.n_attn == n_layers ? n_layers
                                                           : (n_layers + 1) / 2;
        class.mix.n_head = asked->mix.n_head == 0           ? 0
                           : asked->mix.n_head == u->n_head ? u->n_head
                                                            : (u->n_head + 1) / 2;
        class.mix.n_ffn = asked->mix.n_ffn == 0          ? 0
                          : asked->mix.n_ffn == u->n_ffn ? u->n_ffn
                                                         : (u->n_ffn + 1) / 2;
        class.n_kv = asked->n_kv == 0 ? 0 : asked->n_kv == n_layers ? n_layers : (n_layers + 1) / 2;
    }
    uint32_t tiers[PS_MAX_TIERS], n = ps_tiers_up_to(s->max_step, tiers);
    *out = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 < n && tiers[i + 1] <= PS_PLAN_DECODE_TOKENS)
            continue;
        if (!exact && i + 1 < n && tiers[i] > 2 * PS_PLAN_DECODE_TOKENS)
            continue;
        ps_rule rule = ps_schedule_rule(t->b.q, &t->lr, s, tiers[i]);
        ps_tier_known e;
        ps_status status = find(t, s, &rule, tiers[i], true, false, false, INFINITY, &e);
        if (status)
            return status;
        *out = e.work_bytes > *out ? e.work_bytes : *out;
    }
    return PS_OK;
}

bool ps_trial_fill(const ps_trial *t, ps_schedule *s, uint64_t avail_bytes) {
    const ps_resident_room room = {
        .room_bytes = avail_bytes, .work_bytes = s->work_bytes, .kv_bytes = t->kv_bytes};
    return s->work_bytes != UINT64_MAX &&
           ps_resident_fill(&t->units, (ps_path)s->path, (ps_kv_policy)s->kv_policy, &s->left_out, &room,
                            &s->mix, &s->n_kv);
}

ps_status ps_trial_time_below(ps_trial *t, ps_schedule *s, double below_s) {
    const ps_plan_request *q = t->b.q;
    uint32_t decode = ps_decode_tokens(&t->lr, s->max_step),
             prompt = ps_prompt_tokens(q, &t->lr, s->max_step);
    double output = q->output_tokens ? (double)q->output_tokens : PS_PLAN_OUTPUT;
    const double steps = output * ceil((double)t->lr.n_seqs / decode),
                 prompts = (double)t->lr.n_seqs * ceil(prompt_of(q, &t->lr) / prompt);
    ps_rule second = ps_schedule_rule(q, &t->lr, s, prompt);
    ps_tier_known a, b;
    /* What is left for decoding, if the prompt's time is known already. */
    const key k = key_of(t, s, &second, prompt);
    b = ps_known_get(t->known, &k, sizeof k);
    const double left_s = below_s - (b.has_empty && isfinite(b.empty_s) ? prompts * b.empty_s : 0);
    ps_status status = find(t, s, &s->decode, decode, false, true, true, left_s / steps, &a);
    if (!status && !(a.has_empty && a.has_full)) {
        s->decode_s = s->prompt_s = s->workload_s = INFINITY;
        return PS_OK;
    }
    if (!status)
        status = find(t, s, &second, prompt, false, true, false, INFINITY, &b);
    if (status)
        return status;
    s->decode_s = (a.empty_s + a.full_s) / 2;
    s->prompt_s = prompts * b.empty_s;
    s->workload_s = steps * s->decode_s + s->prompt_s;
    return PS_OK;
}

ps_status ps_trial_time(ps_trial *t, ps_schedule *s) {
    return ps_trial_time_below(t, s, INFINITY);
}

ps_status ps_trial_bound(ps_trial *t, uint64_t avail_bytes, uint32_t n_threads, double *out_s) {
    const ps_plan_request *q = t->b.q;
    double output = q->output_tokens ? (double)q->output_tokens : PS_PLAN_OUTPUT, prompt_s = INFINITY;
    uint32_t longest = (uint32_t)ps_longest_step(q, &t->lr), decode = ps_decode_tokens(&t->lr, longest);
    const ps_level level = {.budget_bytes = q->profile->gpu.base_bytes + avail_bytes};
    ps_level_request at = t->lr;
    at.n_threads = n_threads;
    ps_lower_request r = ps_build_request(q, &at, decode);
    r.cache = t->b.cache;
    r.level = &level;
    uint64_t after = decode <= t->lr.n_seqs ? 1 : decode;
    double decode_s = (ps_search_bound(&r, after) +
                       ps_search_bound(&r, after > t->lr.bucket_tokens ? after : t->lr.bucket_tokens)) /
                      2;
    uint32_t tokens = ps_prompt_tokens(q, &t->lr, longest);
    for (int i = 0; i < 2; i++, tokens /= 2) { /* shorter steps read all weights more often */
        if (tokens == 0)
            break;
        r = ps_build_request(q, &at, tokens);
        r.cache = t->b.cache;
        r.level = &level;
        prompt_s = fmin(prompt_s, (double)t->lr.n_seqs * ceil(prompt_of(q, &t->lr) / tokens) *
                                      ps_search_bound(&r, tokens <= t->lr.n_seqs ? 1 : tokens));
    }
    *out_s = output * ceil((double)t->lr.n_seqs / decode) * decode_s + prompt_s;
    return PS_OK;
}

ps_status ps_trial_uses_cpu(ps_trial *t, const ps_schedule *s, bool *out) {
    uint32_t tokens[2] = {ps_decode_tokens(&t->lr, s->max_step),
                          ps_prompt_tokens(t->b.q, &t->lr, s->max_step)};
    *out = false;
    for (int i = 0; i < 2; i++) {
        ps_rule rule = ps_schedule_rule(t->b.q, &t->lr, s, tokens[i]);
        key k = key_of(t, s, &rule, tokens[i]);
        ps_status status = again(t);
        if (!status)
            status = settle(t, &k, s->max_step);
        ps_lower_request r = ps_build_request(t->b.q, &t->lr, tokens[i]);
        ps_placing placing;
        if (!status)
            status = ps_rule_place(&rule, &r, &t->set, t->kv, t->b.work, &placing, t->b.err);
        if (status)
            return status;
        for (uint32_t l = 0; l < t->b.q->model->n_layers; l++) {
            *out |= placing.layers[l].attn == PS_WHERE_HOST;
            for (uint32_t p = 0; p < placing.layers[l].n_parts; p++)
                *out |= placing.layers[l].part[p].where == PS_WHERE_HOST;
        }
        for (uint32_t p = 0; p < placing.n_head; p++)
            *out |= placing.head[p].where == PS_WHERE_HOST;
    }
    return PS_OK;
}
