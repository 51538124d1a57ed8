/* Waits and buffer conflicts: a hand-made layer, and random programs against a brute-force proof that the waits order
 * every hazard, that none is superfluous, and that buffers said not to conflict can share memory. */
#include <criterion/criterion.h>
#include <string.h>

#include "plan/deps.h"

enum { NONE = PS_NO_BUFFER, MAX_INSTRS = 64, MAX_BUFFERS = 16, MAX_STREAM = 512 };

typedef struct toy {
    ps_program p;
    ps_instr instrs[MAX_INSTRS];
    ps_block blocks[8];
    ps_plan_buffer buffers[MAX_BUFFERS];
    bool scratch[MAX_INSTRS];
} toy;

static ps_instr *add(toy *t, ps_op op, uint16_t s0, uint16_t s1, uint16_t dst) {
    ps_instr *in = &t->instrs[t->p.n_instrs++];
    *in = (ps_instr){.op = op, .queue = PS_QUEUE_CPU, .src = {s0, s1, NONE}, .dst = dst};
    t->blocks[t->p.n_blocks - 1].n_instrs++;
    return in;
}

static void block(toy *t, uint32_t rounds, bool over_tiles) {
    t->p.instrs = t->instrs;
    t->p.blocks = t->blocks;
    t->p.buffers = t->buffers;
    t->p.n_buffers = MAX_BUFFERS;
    t->blocks[t->p.n_blocks++] =
        (ps_block){.n_layers = rounds, .over_tiles = over_tiles, .instr0 = t->p.n_instrs};
}

enum { X, NORM, Q, K, V, ATT, GATE, UP, ACT, LAST, LOGITS, TOKENS };

/* A decoder layer three times between embedding and head. */
static void layers(toy *t) {
    *t = (toy){0};
    block(t, 1, false);
    add(t, PS_OP_EMBED, NONE, NONE, X);
    block(t, 3, false);
    add(t, PS_OP_RMSNORM, X, NONE, NORM);   /* 1 */
    add(t, PS_OP_MATMUL, NORM, NONE, Q);    /* 2 */
    add(t, PS_OP_MATMUL, NORM, NONE, K);    /* 3 */
    add(t, PS_OP_MATMUL, NORM, NONE, V);    /* 4 */
    add(t, PS_OP_ROPE, Q, NONE, Q);         /* 5 */
    add(t, PS_OP_ROPE, K, NONE, K);         /* 6 */
    add(t, PS_OP_KV_STORE, K, V, NONE);     /* 7 */
    add(t, PS_OP_ATTENTION, Q, NONE, ATT);  /* 8 */
    add(t, PS_OP_MATMUL, ATT, X, X);        /* 9 */
    add(t, PS_OP_RMSNORM, X, NONE, NORM);   /* 10 */
    add(t, PS_OP_MATMUL, NORM, NONE, GATE); /* 11 */
    add(t, PS_OP_MATMUL, NORM, NONE, UP);   /* 12 */
    add(t, PS_OP_GLU, GATE, UP, ACT);       /* 13 */
    add(t, PS_OP_MATMUL, ACT, X, X);        /* 14 */
    block(t, 1, false);
    add(t, PS_OP_GATHER, X, NONE, LAST);
    add(t, PS_OP_MATMUL, LAST, NONE, LOGITS);
    add(t, PS_OP_SAMPLE, LOGITS, NONE, TOKENS);
}

static void want(const toy *t, uint32_t i, const uint32_t *waits, uint32_t n) {
    cr_assert_eq(t->instrs[i].n_waits, n, "instruction %u has %u waits", i, t->instrs[i].n_waits);
    for (uint32_t k = 0; k < n; k++)
        cr_assert_eq(t->instrs[i].wait[k], waits[k], "instruction %u waits for %u", i, t->instrs[i].wait[k]);
}
#define WANT(t, i, ...)                                                                                      \
    want(t, i, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4)

Test(deps, layer_waits_are_the_true_ones) {
    toy t;
    ps_error err;
    layers(&t);
    cr_assert_eq(ps_deps_waits(&t.p, t.scratch, &err), PS_OK, "%s", err.message);
    want(&t, 0, NULL, 0);
    WANT(&t, 1, 1);
    WANT(&t, 2, 1); /* q, k and v wait for the norm and not for each other */
    WANT(&t, 3, 2);
    WANT(&t, 4, 3);
    WANT(&t, 5, 3);
    WANT(&t, 6, 3);
    WANT(&t, 7, 1, 3);
    WANT(&t, 8, 1, 3);
    WANT(&t, 9, 1);
    WANT(&t, 10, 1);
    WANT(&t, 11, 1);
    WANT(&t, 12, 2);
    WANT(&t, 13, 1, 2);
    WANT(&t, 14, 1);
    WANT(&t, 15, 1);
}

Test(deps, users_of_scratch_exclude_each_other) {
    toy t;
    ps_error err;
    layers(&t);
    t.scratch[2] = t.scratch[3] = t.scratch[4] = true;
    cr_assert_eq(ps_deps_waits(&t.p, t.scratch, &err), PS_OK);
    WANT(&t, 2, 1);
    WANT(&t, 3, 1);
    WANT(&t, 4, 1);
}

Test(deps, reading_what_nothing_wrote_is_an_error) {
    toy t = {0};
    ps_error err;
    block(&t, 1, false);
    add(&t, PS_OP_GLU, GATE, UP, ACT);
    cr_assert_eq(ps_deps_waits(&t.p, t.scratch, &err), PS_E_INTERNAL);
}

static bool conflicts(const bool *c, int a, int b) {
    cr_assert_eq(c[a * MAX_BUFFERS + b], c[b * MAX_BUFFERS + a]);
    return c[a * MAX_BUFFERS + b];
}

Test(deps, layer_conflicts) {
    toy t;
    ps_error err;
    bool c[MAX_BUFFERS * MAX_BUFFERS] = {0};
    layers(&t);
    cr_assert_eq(ps_deps_waits(&t.p, t.scratch, &err), PS_OK);
    cr_assert_eq(ps_deps_conflicts(&t.p, c, &err), PS_OK);
    for (int b = NORM; b <= TOKENS; b++)
        cr_assert(conflicts(c, X, b), "the residual stream lives all along, beside %d", b);
    cr_assert(conflicts(c, NORM, Q) && conflicts(c, Q, K) && conflicts(c, K, V) && conflicts(c, Q, ATT));
    cr_assert(conflicts(c, GATE, UP) && conflicts(c, UP, ACT) && conflicts(c, NORM, GATE));
    cr_assert_not(conflicts(c, Q, GATE)); /* attention is over when the gate is written */
    cr_assert_not(conflicts(c, ATT, ACT));
    cr_assert_not(conflicts(c, K, ATT)); /* stored before attention starts */
    cr_assert_not(conflicts(c, NORM, ACT));
    cr_assert(conflicts(c, LAST, LOGITS) && conflicts(c, LOGITS, TOKENS));
    cr_assert_not(conflicts(c, LOGITS, GATE));
    cr_assert_not(conflicts(c, LAST, TOKENS));
}

/* ---- random programs ---- */
static uint64_t random_state;
static uint32_t rnd(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static void random_program(toy *t) {
    bool written[MAX_BUFFERS] = {false};
    *t = (toy){0};
    for (int b = 0; b < 3; b++) {
        block(t, b == 1 ? 1 + rnd(rnd(4) ? 3 : 14) : 1, b == 1 && rnd(3) == 0);
        uint32_t n = 2 + rnd(8);
        for (uint32_t i = 0; i < n; i++) {
            uint16_t src[2] = {NONE, NONE};
            for (int s = 0; s < 2; s++) {
                uint16_t v = (uint16_t)rnd(8);
                if (written[v] && rnd(4))
                    src[s] = v;
            }
            uint16_t dst = (uint16_t)rnd(8);
            uint32_t kind = rnd(8);
            t->scratch[t->p.n_instrs] = rnd(4) == 0;
            if (kind == 0)
                add(t, PS_OP_KV_STORE, src[0], src[1], NONE);
            else
                add(t, kind == 1 ? PS_OP_ATTENTION : PS_OP_ADD, src[0], src[1], dst);
            if (kind != 0)
                written[dst] = true;
        }
    }
}

/* The real expansion with `tiles` tiles. */
static uint32_t expand(const toy *t, uint32_t tiles, uint32_t out[MAX_STREAM]) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < t->p.n_blocks; b++)
        for (uint32_t r = 0; r < t->blocks[b].n_layers * (t->blocks[b].over_tiles ? tiles : 1); r++)
            for (uint32_t k = 0; k < t->blocks[b].n_instrs; k++) {
                cr_assert_lt(n, MAX_STREAM);
                out[n++] = t->blocks[b].instr0 + k;
            }
    return n;
}

static bool before[MAX_STREAM][MAX_STREAM]; /* [a][b]: a has ended when b starts */

static void close_order(const toy *t, const uint32_t *s, uint32_t n) {
    memset(before, 0, sizeof before);
    for (uint32_t b = 0; b < n; b++)
        for (uint32_t w = 0; w < t->instrs[s[b]].n_waits; w++) {
            uint32_t d = t->instrs[s[b]].wait[w];
            if (d > b)
                continue;
            before[b - d][b] = true;
            for (uint32_t a = 0; a < b - d; a++)
                before[a][b] |= before[a][b - d];
        }
}

static bool touches(const ps_instr *in, uint16_t b, bool write) {
    if (write)
        return in->dst == b;
    return in->dst == b || in->src[0] == b || in->src[1] == b;
}

Test(deps, random_programs_are_ordered) {
    static toy t;
    uint32_t s[MAX_STREAM];
    uint32_t n_ordered = 0;
    random_state = 7;
    for (int run = 0; run < 300; run++) {
        ps_error err;
        random_program(&t);
        ps_status status = ps_deps_waits(&t.p, t.scratch, &err);
        if (status == PS_E_INTERNAL && strstr(err.message, "cannot be written down"))
            continue;
        n_ordered++;
        cr_assert_eq(status, PS_OK, "%s", err.message);
        uint32_t n = expand(&t, 1 + rnd(3), s);
        close_order(&t, s, n);
        for (uint32_t b = 0; b < n; b++)
            for (uint32_t a = 0; a < b; a++) {
                const ps_instr *x = &t.instrs[s[a]], *y = &t.instrs[s[b]];
                bool hazard = t.scratch[s[a]] && t.scratch[s[b]];
                for (uint16_t v = 0; v < 8; v++)
                    hazard = hazard || (touches(x, v, true) && touches(y, v, false)) ||
                             (touches(x, v, false) && touches(y, v, true));
                hazard = hazard ||
                         (x->op == PS_OP_KV_STORE && (y->op == PS_OP_ATTENTION || y->op == PS_OP_KV_STORE)) ||
                         (x->op == PS_OP_ATTENTION && y->op == PS_OP_KV_STORE);
                cr_assert(!hazard || before[a][b], "run %d: %u and %u are not ordered", run, a, b);
            }
    }
    cr_assert_gt(n_ordered, 150);
}

/* No wait of a program without loops follows from the others. */
Test(deps, waits_are_reduced) {
    static toy t;
    uint32_t s[MAX_STREAM];
    random_state = 11;
    for (int run = 0; run < 200; run++) {
        ps_error err;
        random_program(&t);
        for (uint32_t b = 0; b < t.p.n_blocks; b++) {
            t.blocks[b].n_layers = 1;
            t.blocks[b].over_tiles = false;
        }
        if (ps_deps_waits(&t.p, t.scratch, &err) != PS_OK)
            continue;
        uint32_t n = expand(&t, 1, s);
        close_order(&t, s, n);
        for (uint32_t b = 0; b < n; b++)
            for (uint32_t i = 0; i < t.instrs[s[b]].n_waits; i++)
                for (uint32_t j = 0; j < t.instrs[s[b]].n_waits; j++) {
                    uint32_t x = b - t.instrs[s[b]].wait[i], y = b - t.instrs[s[b]].wait[j];
                    cr_assert_not(x < y && before[x][y], "run %d: instruction %u waits for %u twice", run, b,
                                  x);
                }
    }
}

/* Buffers that do not conflict: give them one memory cell and run every order the waits allow at its worst: each value
 * read must still be the one written to that buffer. */
Test(deps, buffers_without_conflict_can_share) {
    static toy t;
    uint32_t s[MAX_STREAM];
    uint32_t n_shared = 0;
    random_state = 13;
    for (int run = 0; run < 300; run++) {
        ps_error err;
        static bool c[MAX_BUFFERS * MAX_BUFFERS];
        memset(c, 0, sizeof c);
        random_program(&t);
        if (ps_deps_waits(&t.p, t.scratch, &err) != PS_OK)
            continue;
        cr_assert_eq(ps_deps_conflicts(&t.p, c, &err), PS_OK);
        uint32_t n = expand(&t, 1 + rnd(3), s);
        close_order(&t, s, n);
        for (uint16_t x = 0; x < 8; x++)
            for (uint16_t y = 0; y < 8; y++) {
                if (x == y || c[x * MAX_BUFFERS + y])
                    continue;
                /* For each write of y: every access of x before it in the stream has ended, unless x is written again
                 * before it is next read (then what it held is over); and no read of x after it sees it gone. */
                bool gone = false; /* y was written after x's last write */
                bool any = false;
                for (uint32_t b = 0; b < n; b++) {
                    const ps_instr *in = &t.instrs[s[b]];
                    bool x_read = in->src[0] == x || in->src[1] == x;
                    cr_assert_not(x_read && gone, "run %d: %u reads %u, which %u overwrote", run, b, x, y);
                    if (in->dst == x)
                        gone = false;
                    if (in->dst != y)
                        continue;
                    gone = true;
                    any = true;
                    for (uint32_t a = 0; a < b; a++)
                        if (touches(&t.instrs[s[a]], x, false))
                            cr_assert(before[a][b], "run %d: %u may still use %u when %u writes %u", run, a,
                                      x, b, y);
                    cr_assert_not(x_read, "run %d: %u reads %u and writes %u", run, b, x, y);
                }
                n_shared += any;
            }
    }
    cr_assert_gt(n_shared, 500);
}
