/* A schedule for exactly so much VRAM: families, then moves from the best of them as long as one gains. See climb.h. */
#include "plan/climb.h"

#include <stddef.h>
#include <string.h>

enum { MIN_STEP = 512, FIT_ROUNDS = 8, VERIFY_ROUNDS = 6, PASSES = 6 };
static const double work_share = 1.0 / 3;
static const double another_path = 0.997; /* what another order of residents must gain */

ps_status ps_climb_time(ps_search *s, ps_schedule *c) {
    s->looked_at++;
    return ps_trial_time(s->trial, c);
}

/* Where only something faster than below_s is of use: infinite for others, or their time. */
static ps_status time_below(ps_search *s, ps_schedule *c, double below_s) {
    s->looked_at++;
    return ps_trial_time_below(s->trial, c, below_s);
}

/* Nothing resident but what must be. False in *out: not even that fits. */
static ps_status bare(ps_search *s, ps_schedule *c, uint64_t avail, bool exact, bool *out) {
    memset(&c->mix, 0, sizeof c->mix);
    c->n_kv = 0;
    ps_status status = ps_trial_work(s->trial, c, exact, &c->work_bytes);
    uint64_t small = ps_round_up(ps_trial_units(s->trial)->small_bytes, PS_VRAM_ALIGN), work = c->work_bytes;
    *out = !status && work != UINT64_MAX && ps_round_up(work, PS_VRAM_ALIGN) <= avail &&
           small <= avail - ps_round_up(work, PS_VRAM_ALIGN);
    return status;
}

/* Mix and work arena that go together: each changes the other. The work arena grows until what is then resident needs no more,
 * beginning with c->work_bytes; where that was too much, once with what is needed. False in *out: nothing fits. */
static ps_status fit(ps_search *s, ps_schedule *c, uint64_t avail, bool exact, bool *out) {
    ps_schedule kept = *c;
    *out = false;
    for (int round = 0; round < FIT_ROUNDS && ps_trial_fill(s->trial, c, avail); round++) {
        uint64_t now;
        ps_status status = ps_trial_work(s->trial, c, exact, &now);
        if (status)
            return status;
        if (now == UINT64_MAX)
            break;
        now += exact ? 0 : c->extra_bytes;
        if (now > c->work_bytes && *out)
            break; /* what was to gain does not fit */
        if (now > c->work_bytes) {
            c->work_bytes = now;
            continue;
        }
        kept = *c;
        *out = true;
        if (now + PS_VRAM_ALIGN > c->work_bytes)
            break;
        c->work_bytes = now;
    }
    *c = kept;
    return *out ? PS_OK : bare(s, c, avail, exact, out);
}

static uint32_t shorter_step(uint32_t step) { /* the next lower power of two */
    uint32_t to = 1;
    while (to * 2 < step)
        to *= 2;
    return to;
}

/* The longest step whose work arena leaves enough for weights, nothing resident. */
static ps_status shorten(ps_search *s, ps_schedule *c, uint64_t avail) {
    for (;;) {
        memset(&c->mix, 0, sizeof c->mix);
        c->n_kv = 0;
        ps_status status = ps_trial_work(s->trial, c, false, &c->work_bytes);
        uint64_t small = ps_trial_units(s->trial)->small_bytes, work = c->work_bytes;
        if (status)
            return status;
        bool tight = work > (uint64_t)((double)avail * work_share);
        bool never = work == UINT64_MAX ||
                     ps_round_up(work, PS_VRAM_ALIGN) + ps_round_up(small, PS_VRAM_ALIGN) > avail;
        if (!tight || c->max_step <= (never ? PS_PLAN_DECODE_TOKENS : MIN_STEP))
            return PS_OK;
        c->max_step = shorter_step(c->max_step);
    }
}

void ps_climb_family_rules(const ps_search *s, ps_family f, ps_schedule *c) {
    uint32_t outputs = s->b->q->max_outputs ? s->b->q->max_outputs : s->lr.n_seqs;
    uint32_t decode = ps_decode_tokens(&s->lr, c->max_step),
             prompt = ps_prompt_tokens(s->b->q, &s->lr, c->max_step);
    c->decode = ps_family_rule(f, decode, outputs < decode ? outputs : decode);
    c->prompt = ps_family_rule(f, prompt, outputs < prompt ? outputs : prompt);
}

/* A family by itself. *out: it fits. */
ps_status ps_climb_family(ps_search *s, ps_family f, uint64_t avail, uint32_t n_threads, ps_path path,
                          bool exact, ps_schedule *c, bool *out) {
    memset(c, 0, sizeof *c);
    c->n_threads = n_threads;
    c->path = path == PS_PATH_COUNT ? PS_PATH_ALL_ATTN_HEAD_NEXT : path;
    c->kv_policy = PS_KV_POLICY_WITH_ATTN;
    c->base_bytes = ps_gpu_base_bytes(s->b->q->profile);
    uint64_t most = ps_longest_step(s->b->q, &s->lr), limit = ps_family_max_step(f);
    c->max_step = (uint32_t)(most < limit ? most : limit);
    c->workload_s = INFINITY;
    ps_climb_family_rules(s, f, c);
    *out = false;
    ps_status status = shorten(s, c, avail);
    while (!status) {
        ps_climb_family_rules(s, f, c);
        status = fit(s, c, avail, exact, out);
        if (status || *out || c->max_step <= PS_PLAN_DECODE_TOKENS)
            break;
        /* Products of resident weights can want more scratch than streamed ones: shorter steps take less. */
        c->max_step = shorter_step(c->max_step);
        ps_climb_family_rules(s, f, c);
        memset(&c->mix, 0, sizeof c->mix);
        c->n_kv = 0;
        status = ps_trial_work(s->trial, c, exact, &c->work_bytes);
    }
    if (!status && *out)
        status = ps_climb_time(s, c);
    *out = *out && isfinite(c->workload_s);
    if (!*out)
        c->workload_s = INFINITY;
    return status;
}

/* ---- moves ---- */

/* What a move changes. */
enum { TIMES = 1, WORK = 2, SHAPE = 4 };

/* One coordinate of a schedule: `to` values of it are tried in turn, or it goes up and down. */
typedef struct move {
    uint32_t *at;
    int32_t *shift; /* instead: by `by` */
    int32_t by;
    uint32_t to;
    int changes;
} move;

enum { MAX_MOVES = 128 };

static void add_value(move *m, uint32_t *n, uint32_t *at, uint32_t to, int changes) {
    if (*n < MAX_MOVES && *at != to)
        m[(*n)++] = (move){.at = at, .to = to, .changes = changes};
}

static void add_shift(move *m, uint32_t *n, int32_t *at, int changes) {
    static const int32_t by[] = {8, -8, 2, -2, 1, -1};
    for (size_t i = 0; i < sizeof by / sizeof by[0] && *n < MAX_MOVES; i++)
        m[(*n)++] = (move){.shift = at, .by = by[i], .changes = changes};
}

static void rule_moves(const ps_search *s, const ps_schedule *c, ps_rule *r, uint32_t tokens, move *m,
                       uint32_t *n) {
    const ps_resident_units *u = ps_trial_units(s->trial);
    bool few = tokens <= PS_PLAN_DECODE_TOKENS, tiles = tokens > PS_TILE_TOKENS;
    bool moe = u->model->layers[0].n_expert != 0;
    bool attn = c->mix.n_attn < u->model->n_layers, ffn = c->mix.n_ffn < u->n_ffn,
         head = c->mix.n_head < u->n_head;
    if (tiles) /* the CPU has no part, and there are no slots in turn */
        attn = ffn = false;
    if (ffn) {
        add_value(m, n, &r->ffn, PS_SHARE_BALANCED, WORK);
        add_value(m, n, &r->ffn, PS_SHARE_ALL, WORK);
        add_value(m, n, &r->ffn, PS_SHARE_NONE, WORK);
        if (few) {
            add_value(m, n, &r->bus, PS_WHERE_DIRECT, WORK);
            add_value(m, n, &r->bus, PS_WHERE_STREAM, WORK);
        }
        if (moe && r->bus == PS_WHERE_DIRECT && r->ffn == PS_SHARE_BALANCED)
            add_shift(m, n, &r->direct_shift, TIMES);
        else if (!moe || r->bus == PS_WHERE_STREAM) {
            add_shift(m, n, &r->ffn_shift, r->bus == PS_WHERE_STREAM ? WORK : TIMES);
            if (c->mix.n_ffn % u->model->n_layers)
                add_shift(m, n, &r->ffn_shift_more, r->bus == PS_WHERE_STREAM ? WORK : TIMES);
        }
    }
    if (attn) {
        add_value(m, n, &r->attn, PS_WHERE_STREAM, WORK);
        if (few)
            add_value(m, n, &r->attn, PS_WHERE_DIRECT, WORK);
        add_value(m, n, &r->attn, PS_WHERE_HOST, WORK);
    }
    if (head) {
        add_value(m, n, &r->head, PS_SHARE_BALANCED, WORK);
        add_value(m, n, &r->head, PS_SHARE_ALL, WORK);
        add_value(m, n, &r->head, PS_SHARE_NONE, WORK);
        if (few) {
            add_value(m, n, &r->head_bus, PS_WHERE_DIRECT, WORK);
            add_value(m, n, &r->head_bus, PS_WHERE_STREAM, WORK);
        }
        add_shift(m, n, &r->head_shift, r->head_bus == PS_WHERE_STREAM ? WORK : TIMES);
    }
    if (attn || ffn) {
        static const uint32_t slots[] = {2, 3, 4};
        for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++)
            add_value(m, n, &r->n_slots, slots[i], WORK);
    }
}

/* All moves from *c, whose fields they point into. */
static uint32_t moves_of(const ps_search *s, ps_schedule *c, ps_path path, move *m) {
    enum { NEVER = 3 }; /* the head: that gains next to nothing where it is a small part */
    const ps_resident_units *u = ps_trial_units(s->trial);
    uint32_t n = 0;
    bool all = c->mix.n_attn == u->model->n_layers && c->mix.n_head == u->n_head && c->mix.n_ffn == u->n_ffn;
    if (!all || c->n_kv < u->model->n_layers) {
        for (uint32_t p = 0; p < PS_PATH_COUNT; p++)
            if (path == PS_PATH_COUNT && !all && (s->small || p % PS_PATH_HEADS != NEVER))
                add_value(m, &n, &c->path, p, SHAPE);
        for (uint32_t k = 0; k < PS_KV_POLICY_COUNT; k++)
            add_value(m, &n, &c->kv_policy, k, SHAPE);
    }
    uint32_t decode = ps_decode_tokens(&s->lr, c->max_step),
             prompt = ps_prompt_tokens(s->b->q, &s->lr, c->max_step);
    rule_moves(s, c, &c->decode, decode, m, &n);
    if (prompt != decode)
        rule_moves(s, c, &c->prompt, prompt, m, &n);
    uint32_t shorter = shorter_step(c->max_step);
    if (!all && shorter >= MIN_STEP && shorter >= prompt)
        add_value(m, &n, &c->max_step, shorter, SHAPE);
    return n;
}

/* What a changed schedule comes to, if it is faster than below_s; else infinite, or that. */
static ps_status look_at(ps_search *s, ps_schedule *c, int changes, uint64_t avail, double below_s) {
    bool fits = true;
    ps_status status = PS_OK;
    c->workload_s = INFINITY;
    if (changes != TIMES) {
        uint64_t before = c->work_bytes;
        status = ps_trial_work(s->trial, c, false, &c->work_bytes);
        if (!status && c->work_bytes != UINT64_MAX)
            c->work_bytes += c->extra_bytes;
        if (!status && (changes == SHAPE || c->work_bytes != before))
            status = fit(s, c, avail, false, &fits);
    }
    return status || !fits || c->work_bytes == UINT64_MAX ? status : time_below(s, c, below_s);
}

/* Take c instead of *best where it is clearly better; nothing where they are the same. */
static ps_status consider(ps_search *s, ps_schedule *best, ps_schedule *c, int changes, uint64_t avail,
                          bool *out_better) {
    if (memcmp(c, best, sizeof *c) == 0)
        return PS_OK;
    const double below_s = best->workload_s * (c->path == best->path ? PS_CLEARLY : another_path);
    ps_status status = look_at(s, c, changes, avail, below_s);
    if (!status && c->workload_s < below_s) {
        *best = *c;
        *out_better = true;
    }
    return status;
}

/* Families' rules for a tier as moves. */
static ps_status try_rules(ps_search *s, ps_schedule *best, uint64_t avail, bool *out_better) {
    for (int f = 0; f < PS_FAMILY_COUNT; f++)
        for (int which = 0; which < 2; which++) {
            ps_schedule c = *best, rules = *best;
            if (which && ps_prompt_tokens(s->b->q, &s->lr, best->max_step) > ps_family_max_step((ps_family)f))
                continue;
            ps_climb_family_rules(s, (ps_family)f, &rules);
            if (which)
                c.prompt = rules.prompt;
            else
                c.decode = rules.decode;
            ps_status status = consider(s, best, &c, WORK, avail, out_better);
            if (status)
                return status;
        }
    return PS_OK;
}

/* What brings feed-forward columns, and how many, at once: of nothing it makes no difference by what. `more`: in layers of which
 * more is resident. */
static const struct {
    uint32_t bus, share;
    int32_t shift, more;
} by_bus[] = {{PS_WHERE_DIRECT, PS_SHARE_BALANCED, 0, 0}, {PS_WHERE_STREAM, PS_SHARE_BALANCED, 0, 0},
              {PS_WHERE_DIRECT, PS_SHARE_ALL, 0, 0},      {PS_WHERE_STREAM, PS_SHARE_ALL, 0, 0},
              {PS_WHERE_STREAM, PS_SHARE_NONE, 1, 1},     {PS_WHERE_STREAM, PS_SHARE_NONE, 2, 2},
              {PS_WHERE_STREAM, PS_SHARE_NONE, 1, 0},     {PS_WHERE_DIRECT, PS_SHARE_NONE, 1, 0},
              {PS_WHERE_DIRECT, PS_SHARE_NONE, 1, 1}};
enum { BY_BUS_ANY = 6, BY_BUS = sizeof by_bus / sizeof by_bus[0] };

static void set_bus(ps_rule *r, size_t i) {
    r->bus = by_bus[i].bus;
    r->ffn = by_bus[i].share;
    r->ffn_shift = by_bus[i].shift;
    r->ffn_shift_more = by_bus[i].more;
}

static ps_status try_bus(ps_search *s, ps_schedule *best, uint64_t avail, bool *out_better) {
    const ps_resident_units *u = ps_trial_units(s->trial);
    if (best->mix.n_ffn == u->n_ffn || ps_decode_tokens(&s->lr, best->max_step) > PS_PLAN_DECODE_TOKENS)
        return PS_OK;
    const size_t n = s->small ? BY_BUS : BY_BUS_ANY;
    static const uint32_t attns[] = {0, PS_WHERE_HOST, PS_WHERE_STREAM, PS_WHERE_DIRECT}; /* 0: as it is */
    bool attn = s->small && best->mix.n_attn < u->model->n_layers;
    for (size_t k = 0; k < n * (attn ? sizeof attns / sizeof attns[0] : 1); k++) {
        ps_schedule c = *best;
        size_t i = k % n;
        if (by_bus[i].shift && u->model->layers[0].n_expert)
            continue;
        c.decode.attn = attns[k / n] ? attns[k / n] : c.decode.attn;
        set_bus(&c.decode, i);
        ps_status status = consider(s, best, &c, WORK, avail, out_better);
        if (status)
            return status;
    }
    return PS_OK;
}

/* Two knobs at once, as neither gains by itself: the head last to become resident, and meanwhile read direct, left to the CPU
 * or streamed. */
static ps_status try_head_last(ps_search *s, ps_schedule *best, ps_path path, uint64_t avail,
                               bool *out_better) {
    enum { LAST = 2, NEVER = 3, HEADS = 3, PATHS = 3 };
    static const uint32_t heads[HEADS] = {PS_SHARE_ALL, PS_SHARE_NONE, PS_SHARE_ALL};
    for (uint32_t i = 0; i < 2 * PATHS * HEADS && path == PS_PATH_COUNT; i++) {
        uint32_t of = best->path / PS_PATH_HEADS * PS_PATH_HEADS, which = i / HEADS % PATHS;
        const uint32_t to[PATHS] = {of + LAST, of + NEVER, best->path};
        ps_schedule c = *best;
        if (!s->small && (i >= HEADS || best->path == to[0] || best->mix.n_head == 0))
            break; /* where the head is a small part */
        c.path = to[which];
        if (i >= PATHS * HEADS) /* and the caches on the host: what is computed there needs them there */
            c.kv_policy = PS_KV_POLICY_NONE;
        c.decode.head = heads[i % HEADS];
        c.decode.head_shift = 0;
        if (ps_decode_tokens(&s->lr, c.max_step) <= PS_PLAN_DECODE_TOKENS)
            c.decode.head_bus = i % HEADS == 2 ? PS_WHERE_STREAM : PS_WHERE_DIRECT;
        ps_status status = consider(s, best, &c, SHAPE, avail, out_better);
        if (status)
            return status;
    }
    return PS_OK;
}

ps_status ps_climb_moves(ps_search *s, ps_schedule *best, ps_path path, uint64_t avail) {
    move moves[MAX_MOVES];
    bool more = true;
    for (int pass = 0; pass < (s->small ? PASSES : PASSES / 2) && more; pass++) {
        more = false;
        ps_status status = try_rules(s, best, avail, &more);
        if (!status)
            status = try_bus(s, best, avail, &more);
        if (!status)
            status = try_head_last(s, best, path, avail, &more);
        if (status)
            return status;
        ps_schedule from = *best;
        uint32_t n = moves_of(s, &from, path, moves);
        for (uint32_t i = 0; i < n; i++) {
            /* Moves point into `from`: as offsets they work on any schedule. */
            size_t offset = (size_t)((char *)(moves[i].shift ? (void *)moves[i].shift : (void *)moves[i].at) -
                                     (char *)&from);
            for (bool again = true; again;) {
                ps_schedule c = *best;
                if (moves[i].shift)
                    *(int32_t *)((char *)&c + offset) += moves[i].by;
                else
                    *(uint32_t *)((char *)&c + offset) = moves[i].to;
                bool better = false;
                status = consider(s, best, &c, moves[i].changes, avail, &better);
                if (status)
                    return status;
                more = more || better;
                again = better && moves[i].shift;
            }
        }
    }
    return PS_OK;
}

/* ---- mixes ---- */

/* The best few schedules so far, fastest first, no two with the same residents and homes. */
enum { BEGINNINGS = 4 };
typedef struct beginnings {
    uint32_t n;
    ps_schedule at[BEGINNINGS + 1];
} beginnings;

static bool same_residents(const ps_schedule *a, const ps_schedule *b) {
    return memcmp(&a->mix, &b->mix, sizeof a->mix) == 0 && a->n_kv == b->n_kv;
}

static void keep_beginning(beginnings *of, const ps_schedule *c) {
    if (!isfinite(c->workload_s))
        return;
    for (uint32_t i = 0; i < of->n; i++)
        if (same_residents(&of->at[i], c)) {
            if (of->at[i].workload_s <= c->workload_s)
                return;
            of->n--;
            memmove(&of->at[i], &of->at[i + 1], (of->n - i) * sizeof *c);
            break;
        }
    uint32_t i = of->n;
    for (; i > 0 && c->workload_s < of->at[i - 1].workload_s; i--)
        of->at[i] = of->at[i - 1];
    of->at[i] = *c;
    of->n = of->n < BEGINNINGS ? of->n + 1 : BEGINNINGS;
}

/* Exactly this mix, under the rules of `rules` and of each family for decoding; where its work arena leaves no room for that, with
 * what fits. Those that cannot come among the best few are timed, and no more. */
static ps_status look_at_mix(ps_search *s, const ps_schedule *rules, const ps_resident_mix *mix,
                             uint64_t avail, beginnings *of) {
    const ps_resident_units *u = ps_trial_units(s->trial);
    const uint32_t n_layers = u->model->n_layers;
    ps_schedule exact = *rules;
    exact.path = PS_PATH_ALL_ATTN_HEAD_NEXT;
    exact.left_out =
        (ps_resident_mix){n_layers - mix->n_attn, u->n_head - mix->n_head, u->n_ffn - mix->n_ffn};
    exact.mix = *mix;
    exact.n_kv = exact.kv_policy == PS_KV_POLICY_WITH_ATTN ? mix->n_attn
                 : exact.kv_policy == PS_KV_POLICY_FIRST   ? n_layers
                 : exact.kv_policy == PS_KV_POLICY_HALF    ? (n_layers + 1) / 2
                                                           : 0;
    const bool few = ps_decode_tokens(&s->lr, rules->max_step) <= PS_PLAN_DECODE_TOKENS,
               shares = few && !u->model->layers[0].n_expert && mix->n_ffn < u->n_ffn;
    for (int f = -1; f < PS_FAMILY_COUNT + (shares ? BY_BUS - BY_BUS_ANY : 0); f++) {
        ps_schedule c = exact;
        if (f >= PS_FAMILY_COUNT) { /* a slice of each layer by the bus */
            set_bus(&c.decode, (size_t)(f - PS_FAMILY_COUNT + BY_BUS_ANY));
            c.decode.head = PS_SHARE_NONE;
        } else if (f >= 0) {
            ps_climb_family_rules(s, (ps_family)f, &c);
            c.prompt = rules->prompt;
        }
        ps_status status = ps_climb_time(s, &c);
        if (!status && (of->n < BEGINNINGS || c.workload_s < of->at[of->n - 1].workload_s))
            status = look_at(s, &c, SHAPE, avail, INFINITY);
        else
            continue;
        if (status)
            return status;
        keep_beginning(of, &c);
    }
    return PS_OK;
}

/* Every number of attention layers with none, half and all of the head, and of the feed-forward blocks what then fits, a slice less,
 * and as much as leaves layers alike; under every policy of caches. From the best of these, moves. */
static ps_status try_mixes(ps_search *s, ps_schedule *best, uint64_t avail) {
    enum { HEADS = 3, SLICES = 3 };
    const ps_resident_units *u = ps_trial_units(s->trial);
    const uint32_t n_layers = u->model->n_layers, heads[HEADS] = {0, u->n_head / 2, u->n_head};
    beginnings of = {0};
    for (uint32_t i = 0; i < PS_KV_POLICY_COUNT * (n_layers + 1) * HEADS; i++) {
        const uint32_t h = i % HEADS;
        if (h && heads[h] == heads[h - 1])
            continue;
        ps_schedule c = *best;
        ps_resident_mix mix = {i / HEADS % (n_layers + 1), heads[h], u->n_ffn};
        c.kv_policy = i / HEADS / (n_layers + 1);
        c.path = PS_PATH_ALL_ATTN_HEAD_NEXT;
        c.left_out = (ps_resident_mix){n_layers - mix.n_attn, u->n_head - mix.n_head, 0};
        c.work_bytes = 1; /* the least there is */
        if (!ps_trial_fill(s->trial, &c, avail) || c.mix.n_attn < mix.n_attn || c.mix.n_head < mix.n_head)
            continue;
        const uint64_t most = c.mix.n_ffn,
                       slices[SLICES] = {most, most - (most > 0), most / n_layers * n_layers};
        for (uint32_t k = 0; k < SLICES; k++) {
            mix.n_ffn = slices[k];
            ps_status status = k && slices[k] == slices[k - 1] ? PS_OK : look_at_mix(s, &c, &mix, avail, &of);
            if (status)
                return status;
        }
    }
    for (uint32_t i = 0; i < of.n; i++) {
        ps_status status = ps_climb_moves(s, &of.at[i], PS_PATH_COUNT, avail);
        if (status)
            return status;
        if (of.at[i].workload_s < best->workload_s * PS_CLEARLY)
            *best = of.at[i];
    }
    return PS_OK;
}

/* A little more of one kind, or less, for what then fits of the others: as long as that gains. */
static ps_status exchange(ps_search *s, ps_schedule *best, uint64_t avail) {
    enum { ROUNDS = 3 };
    const ps_resident_units *u = ps_trial_units(s->trial);
    const int n_layers = (int)u->model->n_layers, n_head = (int)u->n_head;
    const struct {
        int attn, head, ffn;
    } by[] = {{0, 0, -1}, {0, 0, 1},         {0, 0, -n_layers}, {0, 0, n_layers}, {-1, 0, 0},
              {1, 0, 0},  {0, -n_head, 0},   {0, n_head, 0},    {-1, 0, 1},       {-1, 0, n_layers},
              {1, 0, -1}, {1, 0, -n_layers}, {0, -n_head, 1},   {0, n_head, -1}};
    for (int round = 0; round < ROUNDS; round++) {
        beginnings of = {0};
        for (uint32_t i = 0; i < PS_KV_POLICY_COUNT * (uint32_t)(sizeof by / sizeof by[0]); i++) {
            const size_t k = i / PS_KV_POLICY_COUNT;
            const int64_t a = (int64_t)best->mix.n_attn + by[k].attn,
                          h = (int64_t)best->mix.n_head + by[k].head,
                          f = (int64_t)best->mix.n_ffn + by[k].ffn;
            if (a < 0 || a > n_layers || h < 0 || h > n_head || f < 0 || f > (int64_t)u->n_ffn)
                continue;
            const ps_resident_mix mix = {(uint32_t)a, (uint32_t)h, (uint64_t)f};
            ps_schedule c = *best;
            c.kv_policy = i % PS_KV_POLICY_COUNT;
            ps_status status = look_at_mix(s, &c, &mix, avail, &of);
            if (status)
                return status;
        }
        bool more = false;
        for (uint32_t i = 0; i < of.n; i++) {
            ps_status status = ps_climb_moves(s, &of.at[i], PS_PATH_COUNT, avail);
            if (status)
                return status;
            if (of.at[i].workload_s < best->workload_s * PS_CLEARLY) {
                *best = of.at[i];
                more = true;
            }
        }
        if (!more)
            break;
    }
    return PS_OK;
}

/* Fractions alone, moved until none gets better. */
ps_status ps_climb_shares(ps_search *s, ps_schedule *best) {
    enum { ROUNDS = 2 };
    const ps_resident_units *u = ps_trial_units(s->trial);
    bool moe = u->model->layers[0].n_expert != 0, more = true;
    uint32_t decode = ps_decode_tokens(&s->lr, best->max_step),
             prompt = ps_prompt_tokens(s->b->q, &s->lr, best->max_step);
    for (int round = 0; round < ROUNDS && more; round++) {
        more = false;
        for (int which = 0; which < (prompt != decode ? 2 : 1); which++) {
            const ps_rule *r = which ? &best->prompt : &best->decode;
            bool ffn = best->mix.n_ffn < u->n_ffn && (which ? prompt : decode) <= PS_TILE_TOKENS,
                 direct = moe && r->bus == PS_WHERE_DIRECT && r->ffn == PS_SHARE_BALANCED;
            size_t at[3];
            int n = 0;
            if (ffn && direct)
                at[n++] = offsetof(ps_rule, direct_shift);
            if (ffn && !direct && r->ffn != PS_SHARE_ALL && (!moe || r->bus == PS_WHERE_STREAM)) {
                at[n++] = offsetof(ps_rule, ffn_shift);
                if (best->mix.n_ffn % u->model->n_layers)
                    at[n++] = offsetof(ps_rule, ffn_shift_more);
            }
            for (int i = 0; i < n; i++)
                for (int by = -1; by <= 1; by += 2)
                    for (bool again = true; again;) {
                        ps_schedule c = *best;
                        *(int32_t *)((char *)(which ? &c.prompt : &c.decode) + at[i]) += by;
                        ps_status status = time_below(s, &c, best->workload_s * PS_CLEARLY);
                        if (status)
                            return status;
                        again = c.workload_s < best->workload_s * PS_CLEARLY;
                        if (again) {
                            *best = c;
                            more = true;
                        }
                    }
        }
    }
    return PS_OK;
}

/* All tiers looked at: the work arena that the schedule really has. */
ps_status ps_climb_verify(ps_search *s, ps_schedule *c, uint64_t avail, bool *out) {
    *out = false;
    for (int round = 0; round < VERIFY_ROUNDS; round++) {
        uint64_t exact, passing;
        ps_status status = ps_trial_work(s->trial, c, true, &exact);
        if (!status)
            status = ps_trial_work(s->trial, c, false, &passing);
        if (status || exact == UINT64_MAX)
            return status;
        ps_schedule with = *c;
        c->extra_bytes = exact > passing ? exact - passing : 0;
        with.work_bytes = exact;
        if (ps_trial_fill(s->trial, &with, avail) && with.mix.n_attn >= c->mix.n_attn &&
            with.mix.n_head >= c->mix.n_head && with.mix.n_ffn >= c->mix.n_ffn && with.n_kv >= c->n_kv) {
            c->work_bytes = exact;
            *out = true;
            return PS_OK;
        }
        /* Less resident. */
        uint64_t work = exact + (uint64_t)round * PS_VRAM_ALIGN;
        c->work_bytes = work;
        if (!ps_trial_fill(s->trial, c, avail))
            break;
        status = ps_climb_time(s, c);
        if (status)
            return status;
    }
    ps_status status = bare(s, c, avail, true, out);
    return status || !*out ? status : ps_climb_time(s, c);
}

/* The best schedule that is found with exactly so many bytes and threads. */
ps_status ps_climb_in_full(ps_search *s, uint64_t avail, uint32_t n_threads, ps_path path, ps_schedule *out,
                           bool *feasible) {
    static const ps_path elsewhere[] = {PS_PATH_HALF_ATTN_HEAD_NEXT, PS_PATH_NO_ATTN_HEAD_LAST};
    static const double worth_a_climb = 1.03;
    ps_schedule c[PS_FAMILY_COUNT], mixed;
    int best = -1, few = -1, many = -1;
    *feasible = false;
    for (int f = 0; f < PS_FAMILY_COUNT; f++) {
        bool fits;
        ps_status status = ps_climb_family(s, (ps_family)f, avail, n_threads, path, false, &c[f], &fits);
        if (status)
            return status;
        if (!fits)
            continue;
        if (best < 0 || c[f].workload_s < c[best].workload_s * PS_CLEARLY)
            best = f;
        if (few < 0 || c[f].decode_s < c[few].decode_s * PS_CLEARLY)
            few = f;
        if (many < 0 || c[f].prompt_s < c[many].prompt_s * PS_CLEARLY)
            many = f;
    }
    if (best < 0)
        return PS_OK;
    *out = c[best];
    ps_status status = PS_OK;
    if (few != many) {
        mixed = c[many];
        mixed.decode = c[few].decode;
        status = look_at(s, &mixed, SHAPE, avail, out->workload_s * PS_CLEARLY);
        if (!status && mixed.workload_s < out->workload_s * PS_CLEARLY)
            *out = mixed;
    }
    if (!status)
        status = ps_climb_moves(s, out, path, avail);
    /* Other beginnings: the best family with another order of residents. Moves of one knob may not lead there. */
    ps_schedule other = {.workload_s = INFINITY};
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0] && !status && path == PS_PATH_COUNT; i++) {
        other.workload_s = s->small ? INFINITY : other.workload_s;
        for (int f = 0; f < PS_FAMILY_COUNT && !status; f++) {
            ps_schedule x = c[f];
            if (!isfinite(x.workload_s))
                continue;
            x.path = elsewhere[i];
            status = look_at(s, &x, SHAPE, avail, other.workload_s);
            if (!status && x.workload_s < other.workload_s)
                other = x;
        }
        if (!s->small && i + 1 < sizeof elsewhere / sizeof elsewhere[0])
            continue;
        if (!status && other.workload_s < out->workload_s * (s->small ? INFINITY : worth_a_climb))
            status = ps_climb_moves(s, &other, path, avail);
        if (!status && other.workload_s < out->workload_s * another_path)
            *out = other;
    }
    if (!status && s->mixes && path == PS_PATH_COUNT)
        status = try_mixes(s, out, avail);
    if (!status && s->mixes && path == PS_PATH_COUNT)
        status = exchange(s, out, avail);
    if (!status)
        status = ps_climb_verify(s, out, avail, feasible);
    for (int f = 0; f < PS_FAMILY_COUNT && !status && !*feasible;
         f++) { /* the scratch of some tier was too much */
        status = ps_climb_family(s, (ps_family)f, avail, n_threads, path, true, out, feasible);
    }
    return status;
}
