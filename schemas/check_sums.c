/* Partial sums, and parts of operations. */
#include "schemas/check_sums.h"

#include <string.h>

static bool meet(ps_part a, ps_part b) {
    return a.begin < b.end && b.begin < a.end;
}

/* Insert a part that meets none, neighbours merged; false when there are too many. */
static bool insert_part(ps_part *parts, uint32_t *n, ps_part p) {
    uint32_t at = 0;
    while (at < *n && parts[at].end < p.begin)
        at++;
    if (at < *n && parts[at].end == p.begin) { /* goes on where that one ends */
        parts[at].end = p.end;
        if (at + 1 < *n && parts[at + 1].begin == p.end) {
            parts[at].end = parts[at + 1].end;
            memmove(&parts[at + 1], &parts[at + 2], (*n - at - 2) * sizeof *parts);
            --*n;
        }
        return true;
    }
    if (at < *n && parts[at].begin == p.end) {
        parts[at].begin = p.begin;
        return true;
    }
    if (*n == PS_CHECK_PARTS)
        return false;
    memmove(&parts[at + 1], &parts[at], (*n - at) * sizeof *parts);
    parts[at] = p;
    ++*n;
    return true;
}

static bool same_sum(const ps_sum *a, const ps_sum *b) {
    return a->n == b->n && a->sides == b->sides && a->residual == b->residual &&
           memcmp(a->parts, b->parts, a->n * sizeof a->parts[0]) == 0;
}

static uint32_t hash_sum(const ps_sum *s) {
    uint32_t h = 2166136261u ^ s->sides ^ (s->residual ? 256u : 0); /* FNV-1a over words */
    for (uint32_t i = 0; i < s->n; i++) {
        h = (h ^ s->parts[i].begin) * 16777619u;
        h = (h ^ s->parts[i].end) * 16777619u;
    }
    return h ^ h >> 15;
}

uint32_t ps_sum_number(ps_sums *s, ps_arena *arena, const ps_sum *sum) {
    uint32_t at = hash_sum(sum) % (2 * PS_CHECK_SUMS);
    while (s->table[at] != 0) {
        if (same_sum(s->sums[s->table[at] - 1], sum))
            return s->table[at];
        at = (at + 1) % (2 * PS_CHECK_SUMS);
    }
    ps_sum *copy = s->n < PS_CHECK_SUMS ? ps_arena_array(arena, 1, sizeof *copy) : NULL;
    if (copy == NULL)
        return 0;
    *copy = *sum;
    s->sums[s->n++] = copy;
    s->table[at] = (uint16_t)s->n;
    return s->n;
}

static ps_join join_sides(const ps_sum *a, const ps_sum *b, ps_sum *out) {
    if ((a->sides & b->sides) != 0 || a->n != b->n ||
        memcmp(a->parts, b->parts, a->n * sizeof a->parts[0]) != 0)
        return PS_JOIN_TWICE;
    out->sides = a->sides | b->sides;
    return PS_JOIN_OK;
}

ps_join ps_sum_join(const ps_sum *a, const ps_sum *b, ps_sum *out) {
    *out = *a;
    out->residual = a->residual || b->residual;
    if (a->residual && b->residual)
        return PS_JOIN_RESIDUAL;
    if (a->sides != b->sides)
        return join_sides(a, b, out);
    for (uint32_t i = 0; i < b->n; i++) {
        for (uint32_t k = 0; k < a->n; k++)
            if (meet(a->parts[k], b->parts[i]))
                return PS_JOIN_TWICE;
        if (!insert_part(out->parts, &out->n, b->parts[i]))
            return PS_JOIN_CROWDED;
    }
    return PS_JOIN_OK;
}

bool ps_sum_covers(const ps_sum *sum, uint32_t inner) {
    return sum->sides == PS_SIDES && sum->n == 1 && sum->parts[0].begin == 0 && sum->parts[0].end == inner;
}

static bool same_part(ps_part a, ps_part b) {
    return a.begin == b.begin && a.end == b.end;
}

static bool grow(ps_part *a, ps_part b) {
    if (a->end == b.begin)
        a->end = b.end;
    else if (b.end == a->begin)
        a->begin = b.begin;
    else
        return false;
    return true;
}

/* Two rectangles that make one. */
static bool merge_rects(ps_rect *a, const ps_rect *b) {
    if (a->sides != b->sides)
        return false;
    if (same_part(a->inner, b->inner))
        return grow(&a->cols, b->cols);
    return same_part(a->cols, b->cols) && grow(&a->inner, b->inner);
}

bool ps_open_execute(ps_open_op *o, ps_rect rect, bool *twice) {
    *twice = false;
    for (uint32_t i = 0; i < o->n_rects; i++)
        if (meet(o->rects[i].cols, rect.cols) && meet(o->rects[i].inner, rect.inner) &&
            (o->rects[i].sides & rect.sides) != 0) {
            *twice = true;
            return false;
        }
    for (uint32_t i = 0; i < o->n_rects;) {
        if (merge_rects(&rect, &o->rects[i])) {
            o->rects[i] = o->rects[--o->n_rects];
            i = 0; /* the larger one may fit to those before */
        } else {
            i++;
        }
    }
    if (o->n_rects == PS_CHECK_PARTS)
        return false;
    o->rects[o->n_rects++] = rect;
    return true;
}

bool ps_open_finish(ps_open_op *o, ps_part part, uint32_t cols, bool *twice, bool *all) {
    *twice = *all = false;
    for (uint32_t i = 0; i < o->n_whole; i++)
        if (meet(o->whole[i], part)) {
            *twice = true;
            return false;
        }
    if (!insert_part(o->whole, &o->n_whole, part))
        return false;
    *all = o->n_whole == 1 && o->whole[0].begin == 0 && o->whole[0].end == cols;
    return true;
}
