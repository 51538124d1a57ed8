/* The walk of one tier's stream: what its parts share. Private to the checker.
 *
 *   plan_check.c    streams and tiers, the end of a step
 *   check_instr.c   kernels, rows, operands, scratch: what an instruction may be by itself
 *   check_flow.c    operations, their parts and sums, reads and writes of values
 *   check_memory.c  weights, slots, KV caches */
#ifndef PS_SCHEMAS_CHECK_WALK_H
#define PS_SCHEMAS_CHECK_WALK_H

#include "core/arena.h"
#include "schemas/check_state.h"
#include "schemas/check_sums.h"
#include "schemas/instruction_set.h"
#include "schemas/plan_check.h"

enum { PS_KV_NOWHERE = 0xffff }; /* of ps_kv_state.where */

/* KV of a layer: where this step's rows go, and who is at the home. */
typedef struct ps_kv_state {
    uint32_t n_stored; /* tiles */
    uint16_t where;    /* PS_KV_HOME, PS_KV_SLOT + b; NOWHERE before the first store */
    bool home;         /* all rows of the step are in the home */
    ps_accesses writers, readers;
} ps_kv_state;

typedef struct ps_walk {
    const ps_plan *plan;
    const ps_level *level;
    const ps_tier *tier;
    const ps_program *program;
    const ps_model *model;
    const ps_check_model *cm;
    const ps_check_pieces *pieces;
    uint32_t n_tiles;
    uint32_t *done; /* [n_ops * n_tiles] 0: not begun, DONE, or 1 + place in `open` */
    uint64_t n_done;
    ps_open_op **open;
    uint32_t n_open, open_cap;
    uint32_t *free_open; /* [open_cap] places not in use */
    uint32_t n_free;
    ps_kv_state *kv; /* [n_layers] */
    ps_check_state state;
    ps_sums sums;
    ps_arena *arena; /* of this stream */
    ps_cursor cursor;
    bool gathered;
    uint16_t gather_src;
    uint32_t gather_id;
    ps_error *err;
} ps_walk;

enum { PS_OP_DONE = -1 };

/* The instruction being looked at, and what is known of it. */
typedef struct ps_here {
    const ps_instr *in;
    const ps_instruction_rule *rule;
    uint32_t layer, tile;
    uint32_t shard;        /* in the model's list; UINT32_MAX: none of that kind and layer */
    uint32_t weight_layer; /* COPY of a weight: of the weight; otherwise layer */
    bool outputs;          /* its rows are the step's outputs, not its tokens */
} ps_here;

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
ps_status
ps_walk_fail(const ps_walk *c, const ps_here *h, const char *fmt, ...);

static inline const ps_plan_buffer *ps_walk_buffer(const ps_walk *c, uint16_t b) {
    return &c->program->buffers[b];
}

static inline bool ps_is_weight_copy(const ps_instr *in) {
    return in->op == PS_OP_COPY && in->w[0] != PS_ROLE_NONE;
}

static inline bool ps_is_kv_copy(const ps_instr *in) {
    return in->op == PS_OP_COPY && in->w[0] == PS_ROLE_NONE && in->kv != PS_KV_HOME;
}

/* check_instr.c: queue, kernel, formats, rows, spaces, scratch. Sets h->outputs. */
ps_status ps_walk_check_instr(const ps_walk *c, ps_here *h);

/* check_flow.c: what it computes, reads and writes. */
ps_status ps_walk_flow(ps_walk *c, const ps_here *h);

/* check_memory.c */
ps_status ps_walk_entries(ps_walk *c);                               /* slots as a step begins */
ps_status ps_walk_check_entries(const ps_walk *c, const ps_here *h); /* they hold their entries */
ps_status ps_walk_check_tail(const ps_walk *c);                      /* the tail can run again */
ps_status ps_walk_weights(ps_walk *c, const ps_here *h); /* the weights that an instruction uses */
ps_status ps_walk_copy_weight(ps_walk *c, const ps_here *h);
ps_status ps_walk_copy_kv(ps_walk *c, const ps_here *h);
ps_status ps_walk_use_kv(ps_walk *c, const ps_here *h);
/* Are all rows of the step at home, of every layer? */
ps_status ps_walk_kv_home(const ps_walk *c, const ps_here *h);
/* Words for a race on a slot or a KV cache. */
ps_status ps_walk_race(const ps_walk *c, const ps_here *h, ps_check_why why, const char *what,
                       uint64_t other);

#endif
