/* Schedules tried out: see trial.h. */
#include "plan/trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "plan/bounds.h"
#include "plan/memory.h"

enum { DEFAULT_STEP = 16384 };

/* What decides a tier's program. All bytes are set. */
typedef struct key {
    ps_rule rule;
    ps_resident_mix mix;
    uint32_t tokens, n_kv, n_threads, spare;
} key;

/* What was found: each once it is asked for. */
typedef struct entry {
    key of;
    uint64_t work_bytes; /* UINT64_MAX: no program */
    double empty_s, full_s;
    bool has_work, has_empty, has_full;
} entry;

struct ps_trial {
    ps_building b; /* of its own: what is tried leaves nothing in the plan */
    ps_plan plan;
    ps_level_request lr;
    ps_arena *arena; /* as long as the trial */
    ps_resident_units units;
    uint64_t *kv_bytes;
    ps_kv_home *kv;
    uint64_t kv_end[PS_SPACE_COUNT];
    uint32_t n_kv, tile; /* of kv; tile 0: none yet */
    bool exactly;
    ps_resident_set set; /* model NULL: none yet */
    entry *entries;
    uint32_t *slots; /* hash table of indices + 1 */
    uint32_t n, room;
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
    ps_arena_free(t->arena);
    free(t->kv);
    if (t->set.model)
        ps_resident_free(&t->set);
    free(t->entries);
    free(t->slots);
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
    t->room = 64;
    t->entries = calloc(t->room, sizeof *t->entries);
    t->slots = calloc(2 * (size_t)t->room, sizeof *t->slots);
    ps_status status = t->kv && t->kv_bytes && t->entries && t->slots ? PS_OK : ps_build_no_memory(b->err);
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

static uint32_t hash_of(const key *k) {
    uint32_t words[sizeof *k / 4], h = 2166136261u;
    memcpy(words, k, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        h = (h ^ words[i]) * 16777619u;
    return h ^ h >> 15;
}

/* The entry of a key, made where there is none; NULL: no memory. It stays where it is until the next call. */
static entry *entry_of(ps_trial *t, const key *k) {
    uint32_t mask = 2 * t->room - 1, i = hash_of(k) & mask;
    for (; t->slots[i]; i = (i + 1) & mask)
        if (memcmp(&t->entries[t->slots[i] - 1].of, k, sizeof *k) == 0)
            return &t->entries[t->slots[i] - 1];
    if (t->n == t->room) {
        entry *grown = realloc(t->entries, 2 * (size_t)t->room * sizeof *grown);
        uint32_t *slots = calloc(4 * (size_t)t->room, sizeof *slots);
        if (grown)
            t->entries = grown;
        if (!grown || !slots) {
            free(slots);
            return NULL;
        }
        free(t->slots);
        t->slots = slots;
        t->room *= 2;
        mask = 2 * t->room - 1;
        for (uint32_t e = 0; e < t->n; e++) {
            for (i = hash_of(&t->entries[e].of) & mask; t->slots[i]; i = (i + 1) & mask)
                ;
            t->slots[i] = e + 1;
        }
        for (i = hash_of(k) & mask; t->slots[i]; i = (i + 1) & mask)
            ;
    }
    t->entries[t->n] = (entry){.of = *k};
    t->slots[i] = ++t->n;
    return &t->entries[t->n - 1];
}

/* Nothing that was tried is kept. */
static ps_status again(ps_trial *t) {
    free(t->b.programs);
    ps_arena_free(t->b.work);
    ps_arena_free(t->plan.arena);
    t->b.programs = NULL;
    t->b.n_programs = t->b.room = 0;
    t->b.work = ps_arena_new(UINT64_MAX);
    t->plan.arena = ps_arena_new(UINT64_MAX);
    return t->b.work && t->plan.arena ? PS_OK : ps_build_no_memory(t->b.err);
}

static ps_status settle(ps_trial *t, const key *k, uint32_t max_step) {
    uint32_t tile = max_step < PS_TILE_TOKENS ? max_step : PS_TILE_TOKENS;
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

static key key_of(const ps_schedule *s, const ps_rule *rule, uint32_t tokens) {
    key k;
    memset(&k, 0, sizeof k);
    k.rule = *rule;
    k.mix = s->mix;
    k.tokens = tokens;
    k.n_kv = s->n_kv;
    k.n_threads = s->n_threads;
    return k;
}

/* Fill in what is wanted of a tier. */
static ps_status find(ps_trial *t, const ps_schedule *s, const ps_rule *rule, uint32_t tokens, bool work,
                      bool empty, bool full, entry *out) {
    key k = key_of(s, rule, tokens);
    entry *e = entry_of(t, &k);
    if (!e)
        return ps_build_no_memory(t->b.err);
    work = work && !e->has_work;
    empty = empty && !e->has_empty;
    full = full && !e->has_full;
    if (!work && !empty && !full) {
        *out = *e;
        return PS_OK;
    }
    ps_status status = again(t);
    if (!status)
        status = settle(t, &k, s->max_step);
    if (status)
        return status;
    ps_level_request at = t->lr;
    at.n_threads = s->n_threads;
    ps_lower_request r = ps_build_request(t->b.q, &at, tokens);
    r.cache = t->b.cache;
    const ps_level level = {.budget_bytes = 1, /* that there is a GPU */
                            .kv = t->kv,
                            .n_resident = t->set.n,
                            .resident = t->set.pieces};
    ps_placing placing;
    ps_error *err = t->b.err;
    r.level = &level;
    status = ps_rule_place(rule, &r, &t->set, t->kv, t->b.work, &placing, err);
    r.place = &placing;
    r.max_direct = placing.max_direct;
    if (!status && work) {
        ps_tier tier = {0};
        uint64_t end[2] = {0, 0}, none[2] = {0, 0};
        status = ps_build_tier(&t->b, &r, t->b.work, none, &tier, end);
        e->work_bytes = status ? UINT64_MAX : end[PS_SPACE_VRAM];
        e->has_work = true;
    }
    if (!status && (empty || full)) {
        ps_program p;
        const ps_program *program = &p;
        if (work)
            program = &t->b.programs[t->b.n_programs - 1].program;
        else
            status = ps_lower(&r, t->plan.arena, &p, err);
        uint64_t after = tokens <= t->lr.n_seqs ? 1 : tokens;
        if (!status && empty) {
            status = ps_build_step_s(&r, program, after, &e->empty_s, err);
            e->has_empty = true;
        }
        if (!status && full) {
            uint64_t all = t->lr.bucket_tokens > after ? t->lr.bucket_tokens : after;
            status = ps_build_step_s(&r, program, all, &e->full_s, err);
            e->has_full = true;
        }
    }
    if (status == PS_E_NOMEM)
        return status;
    if (status) { /* a point of the space that has no program */
        e->work_bytes = UINT64_MAX;
        e->empty_s = e->full_s = INFINITY;
        e->has_work = e->has_empty = e->has_full = true;
        if (err)
            *err = (ps_error){0};
    }
    *out = *e;
    return PS_OK;
}

ps_status ps_trial_tier_s(ps_trial *t, const ps_schedule *s, const ps_rule *rule, uint32_t tokens,
                          double *out_empty_s, double *out_full_s) {
    entry e;
    ps_status status = find(t, s, rule, tokens, false, true, true, &e);
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
        entry e;
        ps_status status = find(t, s, &rule, tiers[i], true, false, false, &e);
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

ps_status ps_trial_time(ps_trial *t, ps_schedule *s) {
    const ps_plan_request *q = t->b.q;
    uint32_t decode = ps_decode_tokens(&t->lr, s->max_step),
             prompt = ps_prompt_tokens(q, &t->lr, s->max_step);
    double output = q->output_tokens ? (double)q->output_tokens : PS_PLAN_OUTPUT;
    ps_rule second = ps_schedule_rule(q, &t->lr, s, prompt);
    entry a, b;
    ps_status status = find(t, s, &s->decode, decode, false, true, true, &a);
    if (!status)
        status = find(t, s, &second, prompt, false, true, false, &b);
    if (status)
        return status;
    s->decode_s = (a.empty_s + a.full_s) / 2;
    s->prompt_s = (double)t->lr.n_seqs * ceil(prompt_of(q, &t->lr) / prompt) * b.empty_s;
    s->workload_s = output * ceil((double)t->lr.n_seqs / decode) * s->decode_s + s->prompt_s;
    return PS_OK;
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
        key k = key_of(s, &rule, tokens[i]);
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
