/* Dependences of a program, found on its expanded stream (two rounds of each block, and one tile or two, show every
 * neighbourhood an instruction can have), and buffer conflicts from the order that the waits guarantee. */
#include "plan/deps.h"

#include <stdlib.h>
#include <string.h>

#include "schemas/instruction_set.h"

/* What has ended when an instruction starts: on queues whose instructions end in order all up to one of them; on the
 * CPU's all up to one, and of the WINDOW instructions before this one those with their bit set. */
enum { WINDOW = 256, WORDS = WINDOW / 64, MAX_LIST = 96, MAX_USES = 12 };
/* Rounds of a block in the shortened streams that waits and conflicts are found on. Waits reach two rounds back within a block,
 * and into an earlier block's last rounds: after a few rounds each knows of the same before it. */
enum { ROUNDS = 2, CONFLICT_ROUNDS = 8 };

typedef struct ended {
    uint32_t upto[PS_QUEUE_COUNT]; /* every instruction of the queue before this place in the stream */
    uint64_t bits[WORDS];          /* bit d - 1: the instruction d before */
} ended;

/* Where an instruction of the stream comes from. */
typedef struct place {
    uint32_t block, layer;
    uint32_t back; /* distance to the same instruction of the round (or tile) before, 0 in the first */
    bool last;     /* round and tile of the block */
    bool runs;     /* it is not one that this tile leaves out (ps_when) */
} place;

typedef struct stream {
    const ps_program *p;
    bool mixed; /* more queues than the CPU's take part */
    uint32_t n, tiles, rounds;
    uint32_t *ids;
    place *places;
    uint32_t *prev;     /* in its queue; UINT32_MAX: none */
    uint32_t *next_cpu; /* [n + 1] first instruction of the CPU's queue at or behind a place */
    ended *ended;
} stream;

typedef struct list {
    uint32_t n, at[MAX_LIST];
} list;

static bool list_add(list *l, uint32_t at) {
    if (l->n == MAX_LIST)
        return false;
    l->at[l->n++] = at;
    return true;
}

static uint32_t kept_rounds(const ps_block *b, uint32_t rounds) {
    return b->n_layers < rounds ? b->n_layers : rounds;
}

static const ps_instr *instr_at(const stream *s, uint32_t e) {
    return &s->p->instrs[s->ids[e]];
}

static void stream_free(stream *s) {
    free(s->ids);
    free(s->places);
    free(s->prev);
    free(s->next_cpu);
    free(s->ended);
}

/* The program's stream with at most `rounds` rounds per block. */
static ps_status stream_expand(stream *s, const ps_program *p, uint32_t tiles, uint32_t rounds,
                               ps_error *err) {
    *s = (stream){.p = p, .tiles = tiles, .rounds = rounds};
    uint64_t n = 0;
    for (uint32_t b = 0; b < p->n_blocks; b++)
        n += (uint64_t)kept_rounds(&p->blocks[b], rounds) * (p->blocks[b].over_tiles ? tiles : 1u) *
             p->blocks[b].n_instrs;
    for (uint32_t i = 0; i < p->n_instrs; i++)
        s->mixed |= p->instrs[i].queue != PS_QUEUE_CPU;
    if (n < UINT32_MAX / 64) {
        s->ids = calloc(n + 1, sizeof *s->ids);
        s->places = calloc(n + 1, sizeof *s->places);
        s->prev = calloc(n + 1, sizeof *s->prev);
        s->next_cpu = calloc(n + 1, sizeof *s->next_cpu);
        s->ended = calloc(n + 1, sizeof *s->ended);
    }
    if (!s->ids || !s->places || !s->prev || !s->next_cpu || !s->ended) {
        stream_free(s);
        return ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u instructions", p->n_instrs);
    }
    uint32_t last[PS_QUEUE_COUNT];
    memset(last, 0xff, sizeof last);
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const ps_block *block = &p->blocks[b];
        uint32_t n_tiles = block->over_tiles ? tiles : 1, times = kept_rounds(block, rounds) * n_tiles;
        for (uint32_t r = 0; r < times; r++)
            for (uint32_t k = 0; k < block->n_instrs; k++) {
                uint32_t e = s->n++;
                const ps_instr *in = &p->instrs[block->instr0 + k];
                s->places[e] = (place){.block = b,
                                       .layer = block->layer0 + r / n_tiles,
                                       .back = r ? block->n_instrs : 0,
                                       .last = r + 1 == times,
                                       .runs = !block->over_tiles || ps_instr_runs(in, r % n_tiles, n_tiles)};
                s->ids[e] = block->instr0 + k;
                s->prev[e] = last[in->queue];
                last[in->queue] = e;
            }
    }
    s->next_cpu[s->n] = s->n;
    for (uint32_t e = s->n; e-- > 0;)
        s->next_cpu[e] = instr_at(s, e)->queue == PS_QUEUE_CPU ? e : s->next_cpu[e + 1];
    return PS_OK;
}

/* Instructions of a block in the stream: of so many rounds. */
static uint64_t block_length(const stream *s, uint32_t b, uint32_t rounds) {
    const ps_block *block = &s->p->blocks[b];
    return (uint64_t)kept_rounds(block, rounds) * (block->over_tiles ? s->tiles : 1u) * block->n_instrs;
}

/* What e waits for `wait` before it in the whole stream: in its block rounds count from the first, in those before it from the
 * last. UINT32_MAX: nothing, or a round that was left out. first: of e's block. */
static uint32_t waited_for(const stream *s, uint32_t e, uint32_t first, uint32_t wait) {
    if (wait <= e - first)
        return e - wait;
    uint64_t back = wait - (e - first);
    for (uint32_t b = s->places[e].block; b-- > 0;) {
        uint64_t kept = block_length(s, b, s->rounds), all = block_length(s, b, UINT32_MAX);
        first -= (uint32_t)kept;
        if (back <= all)
            return back <= kept ? first + (uint32_t)(kept - back) : UINT32_MAX;
        back -= all;
    }
    return UINT32_MAX;
}

static bool bit_get(const ended *a, uint32_t distance) {
    return distance >= 1 && distance <= WINDOW && (a->bits[(distance - 1) / 64] >> ((distance - 1) % 64) & 1);
}

/* Has f ended when e starts, as far as is known? */
static bool known(const stream *s, uint32_t e, uint32_t f) {
    return f < s->ended[e].upto[instr_at(s, f)->queue] || bit_get(&s->ended[e], e - f);
}

/* All that had ended when f started has ended when e starts. */
static void inherit(stream *s, uint32_t e, uint32_t f) {
    ended *a = &s->ended[e];
    const ended *b = &s->ended[f];
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        a->upto[q] = b->upto[q] > a->upto[q] ? b->upto[q] : a->upto[q];
    uint32_t distance = e - f, word = distance / 64, shift = distance % 64;
    for (uint32_t i = WORDS; distance <= WINDOW && i-- > word;) {
        uint64_t v = b->bits[i - word] << shift;
        if (shift && i > word)
            v |= b->bits[i - word - 1] >> (64 - shift);
        a->bits[i] |= v;
    }
}

/* f itself has ended when e starts. */
static void learn(stream *s, uint32_t e, uint32_t f) {
    ended *a = &s->ended[e];
    ps_queue q = instr_at(s, f)->queue;
    inherit(s, e, f);
    if (q != PS_QUEUE_CPU) {
        a->upto[q] = f + 1 > a->upto[q] ? f + 1 : a->upto[q];
        return;
    }
    if (e - f <= WINDOW)
        a->bits[(e - f - 1) / 64] |= (uint64_t)1 << ((e - f - 1) % 64);
    for (uint32_t c; (c = s->next_cpu[a->upto[PS_QUEUE_CPU]]) < e && (c == f || bit_get(a, e - c));)
        a->upto[PS_QUEUE_CPU] = c + 1;
}

/* What the queue alone says when e is entered. Programs of the CPU's queue alone are kept free of it: their waits say
 * all. */
static void enter(stream *s, uint32_t e) {
    if (!s->mixed || s->prev[e] == UINT32_MAX)
        return;
    if (ps_queue_rule_get(instr_at(s, e)->queue)->serial)
        learn(s, e, s->prev[e]);
    else
        inherit(s, e, s->prev[e]);
}

/* Columns [begin, end) of a buffer, or a layer's KV home (resource n_buffers + layer). Programs of the CPU's queue alone
 * take all homes as one: the residual stream orders their layers anyway. */
typedef struct use {
    uint32_t resource;
    uint64_t begin, end;
    bool writes, fills; /* fills: a write that starts a new content */
} use;

static void add_use(use *out, uint32_t *n, const ps_program *p, uint16_t b, bool writes, bool fills) {
    const ps_plan_buffer *buf = &p->buffers[b];
    out[(*n)++] =
        (use){b, buf->col0, buf->rows == PS_ROWS_SLOT ? 1 : (uint64_t)buf->col0 + (buf->cols ? buf->cols : 1),
              writes, fills};
}

/* What an instruction reads and writes, reads first. */
static uint32_t uses_of(const stream *st, uint32_t e, use out[MAX_USES]) {
    const ps_program *p = st->p;
    const ps_instr *in = instr_at(st, e);
    uint32_t n = 0, home = p->n_buffers + (st->mixed ? st->places[e].layer : 0);
    for (int s = 0; s < PS_OP_MAX_SRC; s++)
        if (in->src[s] != PS_NO_BUFFER)
            add_use(out, &n, p, in->src[s], false, false);
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        if (in->at[i] >= PS_AT_SLOT)
            add_use(out, &n, p, (uint16_t)(in->at[i] - PS_AT_SLOT), false, false);
    bool of_kv = in->op == PS_OP_COPY && in->w[0] == PS_ROLE_NONE && in->kv >= PS_KV_SLOT;
    if (in->op == PS_OP_ATTENTION || in->op == PS_OP_KV_STORE) {
        bool store = in->op == PS_OP_KV_STORE;
        if (in->kv >= PS_KV_SLOT)
            add_use(out, &n, p, (uint16_t)(in->kv - PS_KV_SLOT), store, false);
        else
            out[n++] = (use){home, 0, 1, store, store};
    } else if (of_kv) {
        bool in_slot = in->queue == PS_QUEUE_H2D;
        add_use(out, &n, p, (uint16_t)(in->kv - PS_KV_SLOT), in_slot, in_slot);
        out[n++] = (use){home, 0, 1, !in_slot, !in_slot};
    }
    if (in->dst != PS_NO_BUFFER && !of_kv) {
        add_use(out, &n, p, in->dst, true, true);
        if (p->buffers[in->dst].rows != PS_ROWS_SLOT && in->n_rows &&
            (in->op == PS_OP_MATMUL || in->op == PS_OP_COPY)) {
            out[n - 1].begin = in->row0;
            out[n - 1].end = in->row0 + in->n_rows;
        }
    }
    return n;
}

/* Uses of a resource that a later use may still have to wait for. */
typedef struct resource {
    bool written;
    uint32_t n;
    struct {
        uint32_t event;
        uint64_t begin, end;
        bool writes;
    } at[MAX_LIST];
} resource;

static void keep_wait(ps_instr *in, uint32_t distance, bool *overflow) {
    uint32_t i = 0;
    while (i < in->n_waits && in->wait[i] < distance)
        i++;
    if (i < in->n_waits && in->wait[i] == distance)
        return;
    if (in->n_waits == PS_MAX_WAITS) {
        *overflow = true;
        return;
    }
    memmove(&in->wait[i + 1], &in->wait[i], (in->n_waits - i) * sizeof in->wait[0]);
    in->wait[i] = distance;
    in->n_waits++;
}

/* By insertion: lists are short, and mostly in order already. */
static void sort_descending(list *l) {
    for (uint32_t i = 1; i < l->n; i++) {
        uint32_t x = l->at[i], k = i;
        for (; k > 0 && l->at[k - 1] < x; k--)
            l->at[k] = l->at[k - 1];
        l->at[k] = x;
    }
}

/* Distance in the whole stream between two instructions of the shortened one. 0 if it depends on the number of tiles,
 * or on the round: such a wait cannot be written down. */
static uint32_t true_distance(const stream *s, uint32_t from, uint32_t to) {
    uint64_t d = to - from;
    uint32_t b = s->places[from].block;
    if (b == s->places[to].block)
        return to - from;
    if (!s->places[from].last)
        return 0;
    for (b++; b < s->places[to].block; b++) {
        if (s->p->blocks[b].over_tiles)
            return 0;
        if (s->p->blocks[b].n_layers > ROUNDS)
            d += (uint64_t)(s->p->blocks[b].n_layers - ROUNDS) * s->p->blocks[b].n_instrs;
    }
    return d <= UINT32_MAX ? (uint32_t)d : 0;
}

/* `from`, or a later instruction that ends after it, from which the distance to `to` can be written down: best another
 * round of the same one (in tiles that leave it out it ends with what was before it in its queue). */
static uint32_t stand_in(const stream *s, uint32_t from, uint32_t to) {
    if (true_distance(s, from, to))
        return from;
    bool serial = ps_queue_rule_get(instr_at(s, from)->queue)->serial;
    for (int same = 1; same >= 0; same--)
        for (uint32_t g = from + 1; g < to; g++)
            if ((s->ids[g] == s->ids[from] || !same) && true_distance(s, g, to) &&
                ((serial && instr_at(s, g)->queue == instr_at(s, from)->queue) || known(s, g, from)))
                return g;
    return UINT32_MAX;
}

/* Reduce the candidates of event e (nearest first: a further one can never make a nearer one superfluous). */
static void reduce(stream *s, ps_instr *in, uint32_t e, list *c, bool *overflow) {
    sort_descending(c);
    for (uint32_t i = 0; i < c->n; i++) {
        if (known(s, e, c->at[i]))
            continue;
        uint32_t g = stand_in(s, c->at[i], e);
        if (g == UINT32_MAX) {
            *overflow = true;
            return;
        }
        learn(s, e, g);
        keep_wait(in, true_distance(s, g, e), overflow);
    }
}

static bool is_entry(const ps_program *p, uint32_t b) {
    for (uint32_t i = 0; i < p->n_entries; i++)
        if (p->entries[i].slot == b)
            return true;
    return false;
}

/* Candidates of one use, which is then added to its resource's. */
static bool follow(resource *r, const use *u, uint32_t e, list *c) {
    uint32_t kept = 0;
    bool ok = true;
    for (uint32_t i = 0; i < r->n; i++) {
        bool meets = r->at[i].begin < u->end && u->begin < r->at[i].end && r->at[i].event != e;
        if (meets && (u->writes || r->at[i].writes))
            ok = ok && list_add(c, r->at[i].event);
        if (u->writes && u->begin <= r->at[i].begin && r->at[i].end <= u->end)
            continue; /* whoever waits for this one has waited for that one */
        r->at[kept++] = r->at[i];
    }
    r->n = kept;
    r->written |= u->writes;
    if (r->n == MAX_LIST)
        return false;
    r->at[r->n].event = e;
    r->at[r->n].begin = u->begin;
    r->at[r->n].end = u->end;
    r->at[r->n++].writes = u->writes;
    return ok;
}

/* Add the waits that steps of `tiles` tiles need. */
static ps_status add_waits(ps_program *p, const bool *uses_scratch, uint32_t tiles, ps_error *err) {
    stream s;
    uint32_t scratch_user = UINT32_MAX, n_layers = 1; /* the latest */
    bool overflow = false;
    resource *res = NULL;
    ps_status status = stream_expand(&s, p, tiles, ROUNDS, err);
    if (status)
        return status;
    for (uint32_t e = 0; e < s.n; e++)
        n_layers = s.places[e].layer >= n_layers ? s.places[e].layer + 1 : n_layers;
    uint64_t n_res = (uint64_t)p->n_buffers + n_layers;
    res = malloc(n_res * sizeof *res);
    for (uint64_t i = 0; res && i < n_res; i++) { /* not their lists */
        res[i].written = false;
        res[i].n = 0;
    }
    if (!res)
        status = ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u instructions", p->n_instrs);
    for (uint32_t e = 0; e < s.n && !overflow && !status; e++) {
        ps_instr *in = &p->instrs[s.ids[e]];
        list c;
        bool ok = true;
        c.n = 0;
        enter(&s, e);
        if (!s.places[e].runs)
            continue;
        use uses[MAX_USES];
        uint32_t n_uses = uses_of(&s, e, uses);
        for (uint32_t i = 0; i < n_uses && !status; i++) {
            resource *r = &res[uses[i].resource];
            if (!r->written && !uses[i].writes && uses[i].resource < p->n_buffers &&
                !is_entry(p, uses[i].resource))
                status = ps_error_set(err, PS_E_INTERNAL, "program",
                                      "instruction %u (%s) reads buffer %u unwritten", s.ids[e],
                                      ps_op_get(in->op)->name, uses[i].resource);
            ok = ok && follow(r, &uses[i], e, &c);
        }
        /* Rounds of an instruction follow each other, so what is ordered with one round is ordered with all of
         * them, however many there are. The residual stream sees to that anyway. */
        if (s.places[e].back && (!s.mixed || in->queue == PS_QUEUE_CPU))
            ok = ok && list_add(&c, e - s.places[e].back);
        if (in->queue == PS_QUEUE_CPU && uses_scratch[s.ids[e]]) {
            if (scratch_user != UINT32_MAX)
                ok = ok && list_add(&c, scratch_user);
            scratch_user = e;
        }
        if (!ok && !status)
            status = ps_error_set(err, PS_E_INTERNAL, "program", "instruction %u depends on too many others",
                                  s.ids[e]);
        if (!status)
            reduce(&s, in, e, &c, &overflow);
        if (overflow)
            status = ps_error_set(err, PS_E_INTERNAL, "program",
                                  "the waits of instruction %u (%s) cannot be written down: more than %d, or "
                                  "across a loop over tiles",
                                  s.ids[e], ps_op_get(in->op)->name, PS_MAX_WAITS);
    }
    free(res);
    stream_free(&s);
    return status;
}

static bool over_tiles(const ps_program *p) {
    for (uint32_t b = 0; b < p->n_blocks; b++)
        if (p->blocks[b].over_tiles)
            return true;
    return false;
}

ps_status ps_deps_waits(ps_program *p, const bool *uses_scratch, ps_error *err) {
    for (uint32_t i = 0; i < p->n_instrs; i++) {
        p->instrs[i].n_waits = 0;
        memset(p->instrs[i].wait, 0, sizeof p->instrs[i].wait);
    }
    ps_status status = add_waits(p, uses_scratch, 1, err);
    return status || !over_tiles(p) ? status : add_waits(p, uses_scratch, 2, err);
}

/* One content of a buffer: from the write that starts it to its last access. */
typedef struct range {
    uint16_t buffer;
    uint32_t first, last, n_accesses;
    uint32_t
        n_starts; /* of the accesses: the writes before anything reads, any of which may be the first in time */
    uint32_t access[MAX_LIST];
    bool overflow; /* more accesses than listed: conflicts with all it meets */
    bool open;     /* only partial writes so far: a further one adds to it */
} range;

static void range_add(range *r, uint32_t e) {
    r->last = e;
    if (r->n_accesses == MAX_LIST)
        r->overflow = true;
    else
        r->access[r->n_accesses++] = e;
}

/* A content that e begins. Its list is left as it is: there are many, and most are short. */
static void range_begin(range *r, uint16_t buffer, uint32_t e, bool partial) {
    r->buffer = buffer;
    r->first = r->last = e;
    r->n_accesses = r->n_starts = 1;
    r->access[0] = e;
    r->overflow = false;
    r->open = partial;
}

/* Everything that a has been used for has ended when b's content begins. */
static bool apart(const stream *s, const range *a, const range *b) {
    if (a->overflow || b->n_starts > b->n_accesses)
        return false;
    for (uint32_t k = 0; k < b->n_starts; k++)
        for (uint32_t j = 0; j < a->n_accesses; j++)
            if (a->access[j] >= b->access[k] || !known(s, b->access[k], a->access[j]))
                return false;
    return true;
}

/* earliest[e]: what starts at e or behind it knows that all before that place has ended. */
static bool settle(const stream *s, uint32_t *earliest) {
    uint32_t *next[PS_QUEUE_COUNT] = {0};
    bool ok = true;
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        ok = ok && (next[q] = calloc((uint64_t)s->n + 1, sizeof *next[q])) != NULL;
    for (int q = 0; q < PS_QUEUE_COUNT && ok; q++) {
        next[q][s->n] = s->n;
        for (uint32_t e = s->n; e-- > 0;)
            next[q][e] = (int)instr_at(s, e)->queue == q ? e : next[q][e + 1];
    }
    uint32_t least = s->n;
    earliest[s->n] = s->n;
    for (uint32_t e = s->n; ok && e-- > 0;) {
        uint32_t own = e;
        for (int q = 0; q < PS_QUEUE_COUNT; q++) {
            uint32_t open = next[q][s->ended[e].upto[q]];
            own = open < own ? open : own;
        }
        least = own < least ? own : least;
        earliest[e] = least;
    }
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        free(next[q]);
    return ok;
}

static ps_status add_conflicts(const ps_program *p, uint32_t tiles, bool *conflict, ps_error *err) {
    stream s;
    ps_status status = stream_expand(&s, p, tiles, CONFLICT_ROUNDS, err);
    if (status)
        return status;
    uint32_t n_ranges = 0, n_active = 0, room = s.n + p->n_buffers, first = 0;
    uint32_t *earliest = calloc((uint64_t)s.n + 1, sizeof *earliest);
    uint32_t *current = calloc(p->n_buffers ? p->n_buffers : 1, sizeof *current);
    range *ranges = malloc((room ? room : 1) * sizeof *ranges);
    uint32_t *active = calloc(room ? room : 1, sizeof *active);
    if (!earliest || !current || !ranges || !active) {
        status = ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u instructions", p->n_instrs);
        goto done;
    }
    for (uint32_t e = 0; e < s.n; e++) {
        const ps_instr *in = instr_at(&s, e);
        enter(&s, e);
        first = e && s.places[e].block != s.places[e - 1].block ? e : first;
        for (uint32_t w = 0; w < in->n_waits && s.places[e].runs; w++) {
            uint32_t of = waited_for(&s, e, first, in->wait[w]);
            if (of != UINT32_MAX)
                learn(&s, e, of);
        }
    }
    if (!settle(&s, earliest)) {
        status = ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u instructions", p->n_instrs);
        goto done;
    }
    for (uint32_t b = 0; b < p->n_buffers; b++)
        current[b] = UINT32_MAX;
    uint16_t kept = PS_NO_BUFFER; /* what GATHER reads: the tail may be run again */
    for (uint32_t e = 0; e < s.n; e++) {
        const ps_instr *in = instr_at(&s, e);
        use uses[MAX_USES];
        uint32_t n = s.places[e].runs ? uses_of(&s, e, uses) : 0;
        if (in->op == PS_OP_GATHER)
            kept = in->src[0];
        for (uint32_t i = 0; i < n; i++) {
            const use *u = &uses[i];
            if (u->resource >= p->n_buffers)
                continue;
            uint32_t *now = &current[u->resource];
            if (!u->fills) {
                if (*now != UINT32_MAX) {
                    range_add(&ranges[*now], e);
                    ranges[*now].open = false;
                }
                continue;
            }
            bool in_place = *now != UINT32_MAX && ranges[*now].last == e; /* the same content goes on */
            if (in_place)
                continue;
            const ps_plan_buffer *buf = &p->buffers[u->resource];
            bool partial = in->n_rows != 0 && buf->rows != PS_ROWS_SLOT;
            if (partial && *now != UINT32_MAX && ranges[*now].open) {
                range_add(&ranges[*now], e);
                ranges[*now].n_starts++;
                continue;
            }
            *now = n_ranges;
            range_begin(&ranges[n_ranges++], (uint16_t)u->resource, e, partial);
        }
    }
    if (kept != PS_NO_BUFFER && current[kept] != UINT32_MAX && s.n)
        range_add(&ranges[current[kept]], s.n - 1);
    /* Ranges are in order of their first write: compare each with those still active there. */
    for (uint32_t i = 0; i < n_ranges; i++) {
        const range *b = &ranges[i];
        uint32_t kept_active = 0;
        for (uint32_t k = 0; k < n_active; k++) {
            const range *a = &ranges[active[k]];
            if (a->last < earliest[b->first])
                continue; /* before b and all that follows */
            active[kept_active++] = active[k];
            bool *at = &conflict[(uint64_t)a->buffer * p->n_buffers + b->buffer];
            if (a->buffer != b->buffer && !*at && !apart(&s, a, b))
                *at = conflict[(uint64_t)b->buffer * p->n_buffers + a->buffer] = true;
        }
        n_active = kept_active;
        active[n_active++] = i;
    }
done:
    free(earliest);
    free(current);
    free(ranges);
    free(active);
    stream_free(&s);
    return status;
}

ps_status ps_deps_conflicts(const ps_program *p, bool *conflict, ps_error *err) {
    /* Entries are there before a step and after it. */
    for (uint32_t i = 0; i < p->n_entries; i++)
        for (uint32_t b = 0; b < p->n_buffers; b++)
            if (b != p->entries[i].slot)
                conflict[(uint64_t)p->entries[i].slot * p->n_buffers + b] =
                    conflict[(uint64_t)b * p->n_buffers + p->entries[i].slot] = true;
    ps_status status = add_conflicts(p, 1, conflict, err);
    return status || !over_tiles(p) ? status : add_conflicts(p, 2, conflict, err);
}
