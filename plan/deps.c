/* Dependences of a program, found on its expanded stream (two rounds of each block, and one tile or two, show every
 * neighbourhood an instruction can have), and buffer conflicts from the order that the waits guarantee. */
#include "plan/deps.h"

#include <stdlib.h>
#include <string.h>

/* Ancestors are kept as a window of bits per instruction: bit d - 1 set: the instruction d before has ended
 * when this one starts. What lies further back counts as ordered only through a cut (below). */
enum { WINDOW = 256, WORDS = WINDOW / 64, MAX_LIST = 48 };
/* Rounds of a block in the shortened stream that waits are found on. */
enum { ROUNDS = 2 };
typedef struct bits {
    uint64_t w[WORDS];
} bits;

static bool bit_get(const bits *b, uint32_t distance) {
    return distance >= 1 && distance <= WINDOW && (b->w[(distance - 1) / 64] >> ((distance - 1) % 64) & 1);
}

/* Add the instruction `distance` back and all that is known to be before it. */
static void bits_add(bits *b, const bits *from, uint32_t distance) {
    if (distance > WINDOW)
        return;
    b->w[(distance - 1) / 64] |= (uint64_t)1 << ((distance - 1) % 64);
    uint32_t word = distance / 64, shift = distance % 64;
    for (uint32_t i = WORDS; i-- > word;) {
        uint64_t v = from->w[i - word] << shift;
        if (shift && i > word)
            v |= from->w[i - word - 1] >> (64 - shift);
        b->w[i] |= v;
    }
}

typedef struct list {
    uint32_t n, at[MAX_LIST];
} list;

static bool list_add(list *l, uint32_t at) {
    if (l->n == MAX_LIST)
        return false;
    l->at[l->n++] = at;
    return true;
}

/* Where an instruction of the shortened stream comes from. */
typedef struct place {
    uint32_t block;
    uint32_t back; /* distance to the same instruction of the round (or tile) before, 0 in the first */
    bool last;     /* round and tile of the block */
} place;

static uint32_t kept_rounds(const ps_block *b, uint32_t rounds) {
    return b->n_layers < rounds ? b->n_layers : rounds;
}

/* The instructions of the program in the order of the stream with at most `rounds` rounds per block, and the place of each (out_places may be NULL),
 * both from malloc. NULL when out of memory. */
static uint32_t *expand(const ps_program *p, uint32_t tiles, uint32_t rounds, uint32_t *out_n,
                        place **out_places) {
    uint64_t n = 0;
    for (uint32_t b = 0; b < p->n_blocks; b++)
        n += kept_rounds(&p->blocks[b], rounds) * (p->blocks[b].over_tiles ? tiles : 1u) *
             p->blocks[b].n_instrs;
    uint32_t *ids = n < UINT32_MAX / 64 ? calloc(n ? n : 1, sizeof *ids) : NULL;
    place *places = ids && out_places ? calloc(n ? n : 1, sizeof *places) : NULL;
    if (!ids || (out_places && !places)) {
        free(ids);
        return NULL;
    }
    if (out_places)
        *out_places = places;
    uint32_t at = 0;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const ps_block *block = &p->blocks[b];
        uint32_t times = kept_rounds(block, rounds) * (block->over_tiles ? tiles : 1u);
        for (uint32_t r = 0; r < times; r++)
            for (uint32_t k = 0; k < block->n_instrs; k++) {
                if (places)
                    places[at] = (place){b, r ? block->n_instrs : 0, r + 1 == times};
                ids[at++] = block->instr0 + k;
            }
    }
    *out_n = at;
    return ids;
}

/* Does the instruction read / write buffer b? */
static bool reads(const ps_instr *in, uint16_t b) {
    for (int s = 0; s < PS_OP_MAX_SRC; s++)
        if (in->src[s] == b)
            return true;
    return false;
}

/* Last writer, and the readers since. */
typedef struct resource {
    uint32_t writer; /* UINT32_MAX: none */
    list readers;
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

static int descending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Distance in the whole stream between two instructions of the shortened one. 0 if it depends on the number of tiles,
 * or on the round: such a wait cannot be written down. */
static uint32_t true_distance(const ps_program *p, const place *places, uint32_t from, uint32_t to) {
    uint64_t d = to - from;
    uint32_t b = places[from].block;
    if (b == places[to].block)
        return to - from;
    if (!places[from].last)
        return 0;
    for (b++; b < places[to].block; b++) {
        if (p->blocks[b].over_tiles)
            return 0;
        if (p->blocks[b].n_layers > ROUNDS)
            d += (uint64_t)(p->blocks[b].n_layers - ROUNDS) * p->blocks[b].n_instrs;
    }
    return d <= UINT32_MAX ? (uint32_t)d : 0;
}

/* Reduce the candidates of event e (nearest first: a further one can never make a nearer one superfluous). */
static void reduce(ps_program *p, const place *places, ps_instr *in, uint32_t e, list *c, bits *ancestors,
                   bool *overflow) {
    qsort(c->at, c->n, sizeof c->at[0], descending);
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t d = e - c->at[i];
        if (bit_get(&ancestors[e], d))
            continue;
        bits_add(&ancestors[e], &ancestors[c->at[i]], d);
        d = true_distance(p, places, c->at[i], e);
        if (d)
            keep_wait(in, d, overflow);
        else
            *overflow = true;
    }
}

/* Add the waits that steps of `tiles` tiles need. */
static ps_status add_waits(ps_program *p, const bool *uses_scratch, uint32_t tiles, ps_error *err) {
    ps_status status = PS_OK;
    uint32_t n = 0;
    uint32_t kv = p->n_buffers;         /* the layer's KV cache, as one more resource */
    uint32_t scratch_user = UINT32_MAX; /* the latest */
    place *places = NULL;
    uint32_t *ids = expand(p, tiles, ROUNDS, &n, &places);
    bits *ancestors = ids ? calloc(n ? n : 1, sizeof *ancestors) : NULL;
    resource *res = calloc((uint64_t)p->n_buffers + 1, sizeof *res);
    if (!ids || !ancestors || !res) {
        status = ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u instructions", p->n_instrs);
        goto done;
    }
    for (uint32_t b = 0; b <= p->n_buffers; b++)
        res[b].writer = UINT32_MAX;
    bool overflow = false;
    for (uint32_t e = 0; e < n && !overflow; e++) {
        ps_instr *in = &p->instrs[ids[e]];
        list c = {0};
        bool ok = true;
        for (int s = 0; s < PS_OP_MAX_SRC; s++) {
            if (in->src[s] == PS_NO_BUFFER)
                continue;
            resource *r = &res[in->src[s]];
            if (r->writer == UINT32_MAX) {
                status = ps_error_set(err, PS_E_INTERNAL, "program",
                                      "instruction %u (%s) reads buffer %u unwritten", ids[e],
                                      ps_op_get(in->op)->name, in->src[s]);
                goto done;
            }
            ok = ok && list_add(&c, r->writer);
        }
        if (in->op == PS_OP_ATTENTION && res[kv].writer != UINT32_MAX)
            ok = ok && list_add(&c, res[kv].writer);
        for (int target = 0; target < 2; target++) { /* what it overwrites: its destination, its KV cache */
            uint32_t b = target == 0 ? (in->dst == PS_NO_BUFFER ? UINT32_MAX : in->dst)
                                     : (in->op == PS_OP_KV_STORE ? kv : UINT32_MAX);
            if (b == UINT32_MAX)
                continue;
            if (res[b].writer != UINT32_MAX)
                ok = ok && list_add(&c, res[b].writer);
            for (uint32_t i = 0; i < res[b].readers.n; i++)
                ok = ok && list_add(&c, res[b].readers.at[i]);
            res[b].writer = e;
            res[b].readers.n = 0;
        }
        for (int s = 0; s < PS_OP_MAX_SRC; s++)
            if (in->src[s] != PS_NO_BUFFER && in->src[s] != in->dst)
                ok = ok && list_add(&res[in->src[s]].readers, e);
        if (in->op == PS_OP_ATTENTION)
            ok = ok && list_add(&res[kv].readers, e);
        /* Rounds of an instruction follow each other, so what is ordered with one round is ordered with all of
         * them, however many there are. The residual stream sees to that anyway. */
        if (places[e].back)
            ok = ok && list_add(&c, e - places[e].back);
        if (uses_scratch[ids[e]]) {
            if (scratch_user != UINT32_MAX)
                ok = ok && list_add(&c, scratch_user);
            scratch_user = e;
        }
        if (!ok) {
            status = ps_error_set(err, PS_E_INTERNAL, "program", "instruction %u depends on too many others",
                                  ids[e]);
            goto done;
        }
        reduce(p, places, in, e, &c, ancestors, &overflow);
    }
    if (overflow)
        status = ps_error_set(
            err, PS_E_INTERNAL, "program",
            "the waits of an instruction cannot be written down: more than %d, or across a loop over "
            "tiles",
            PS_MAX_WAITS);
done:
    free(ids);
    free(places);
    free(ancestors);
    free(res);
    return status;
}

static bool over_tiles(const ps_program *p) {
    for (uint32_t b = 0; b < p->n_blocks; b++)
        if (p->blocks[b].over_tiles)
            return true;
    return false;
}

ps_status ps_deps_waits(ps_program *p, const bool *uses_scratch, ps_error *err) {
    for (uint32_t i = 0; i < p->n_instrs; i++)
        p->instrs[i].n_waits = 0;
    ps_status status = add_waits(p, uses_scratch, 1, err);
    return status || !over_tiles(p) ? status : add_waits(p, uses_scratch, 2, err);
}

/* One content of a buffer: from the write that starts it to its last access. */
typedef struct range {
    uint16_t buffer;
    uint32_t first, last, n_accesses;
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

static ps_status add_conflicts(const ps_program *p, uint32_t tiles, bool *conflict, ps_error *err) {
    ps_status status = PS_OK;
    uint32_t n = 0, n_ranges = 0, n_active = 0;
    uint32_t *ids = expand(p, tiles, UINT32_MAX, &n, NULL);
    bits *ancestors = ids ? calloc(n ? n : 1, sizeof *ancestors) : NULL;
    /* bound[e]: everything before that index has ended when e starts, and when anything after e starts. */
    uint32_t *bound = ids ? calloc((uint64_t)n + 1, sizeof *bound) : NULL;
    uint32_t *current = calloc(p->n_buffers ? p->n_buffers : 1, sizeof *current);
    range *ranges = ids ? calloc(n ? n : 1, sizeof *ranges) : NULL;
    uint32_t *active = ids ? calloc(n ? n : 1, sizeof *active) : NULL;
    if (!ids || !ancestors || !bound || !current || !ranges || !active) {
        status = ps_error_set(err, PS_E_NOMEM, "program", "no memory for %u instructions", p->n_instrs);
        goto done;
    }
    int64_t joined = -1; /* the latest instruction that all before it are ancestors of */
    for (uint32_t e = 0; e < n; e++) {
        const ps_instr *in = &p->instrs[ids[e]];
        for (uint32_t w = 0; w < in->n_waits; w++)
            if (in->wait[w] <= e)
                bits_add(&ancestors[e], &ancestors[e - in->wait[w]], in->wait[w]);
        bool all = true;
        for (int64_t k = (int64_t)e - 1; all && k >= joined && k >= 0; k--)
            all = bit_get(&ancestors[e], (uint32_t)(e - k));
        if (all)
            joined = e;
        if (joined == e)
            bound[e] = e;
        else if (joined >= 0 && bit_get(&ancestors[e], (uint32_t)(e - joined)))
            bound[e] = (uint32_t)joined + 1;
        for (uint32_t w = 0; w < in->n_waits; w++) /* at least what those it waits for had before them */
            if (in->wait[w] <= e && bound[e - in->wait[w]] > bound[e])
                bound[e] = bound[e - in->wait[w]];
    }
    for (uint32_t e = n; e-- > 1;)
        if (bound[e - 1] > bound[e])
            bound[e - 1] = bound[e];
    for (uint32_t b = 0; b < p->n_buffers; b++)
        current[b] = UINT32_MAX;
    uint16_t kept = PS_NO_BUFFER; /* what GATHER reads: the tail may be run again */
    for (uint32_t e = 0; e < n; e++) {
        const ps_instr *in = &p->instrs[ids[e]];
        for (int s = 0; s < PS_OP_MAX_SRC; s++)
            if (in->src[s] != PS_NO_BUFFER && current[in->src[s]] != UINT32_MAX) {
                range_add(&ranges[current[in->src[s]]], e);
                ranges[current[in->src[s]]].open = false;
            }
        if (in->op == PS_OP_GATHER)
            kept = in->src[0];
        if (in->dst == PS_NO_BUFFER)
            continue;
        if (reads(in, in->dst) && current[in->dst] != UINT32_MAX) /* in place: the same content goes on */
            continue;
        bool partial = in->n_rows != 0;
        if (partial && current[in->dst] != UINT32_MAX && ranges[current[in->dst]].open) {
            range_add(&ranges[current[in->dst]], e);
            continue;
        }
        current[in->dst] = n_ranges;
        ranges[n_ranges] = (range){.buffer = in->dst, .first = e, .open = partial};
        range_add(&ranges[n_ranges++], e);
    }
    if (kept != PS_NO_BUFFER && current[kept] != UINT32_MAX && n)
        range_add(&ranges[current[kept]], n - 1);
    /* Ranges are in order of their first write: compare each with those still active there. */
    for (uint32_t i = 0; i < n_ranges; i++) {
        const range *b = &ranges[i];
        uint32_t kept_active = 0;
        for (uint32_t k = 0; k < n_active; k++) {
            const range *a = &ranges[active[k]];
            if (a->last < bound[b->first])
                continue; /* before b and all that follows */
            active[kept_active++] = active[k];
            if (a->buffer == b->buffer)
                continue;
            bool ordered = !a->overflow;
            for (uint32_t j = 0; ordered && j < a->n_accesses; j++)
                ordered = a->access[j] < bound[b->first] ||
                          (a->access[j] < b->first && bit_get(&ancestors[b->first], b->first - a->access[j]));
            if (!ordered)
                conflict[(uint64_t)a->buffer * p->n_buffers + b->buffer] =
                    conflict[(uint64_t)b->buffer * p->n_buffers + a->buffer] = true;
        }
        n_active = kept_active;
        active[n_active++] = i;
    }
done:
    free(ids);
    free(ancestors);
    free(bound);
    free(current);
    free(ranges);
    free(active);
    return status;
}

ps_status ps_deps_conflicts(const ps_program *p, bool *conflict, ps_error *err) {
    ps_status status = add_conflicts(p, 1, conflict, err);
    return status || !over_tiles(p) ? status : add_conflicts(p, 2, conflict, err);
}
