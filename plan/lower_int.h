/* Between the operations of a model and instructions: nodes, which have queues, places and ranges, but neither kernels
 * nor formats nor buffers. Private to lowering. */
#ifndef PS_PLAN_LOWER_INT_H
#define PS_PLAN_LOWER_INT_H

#include "plan/lower.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A value, or columns of one, or a partial sum: tag tells apart what lives side by side under one name. */
typedef struct ps_operand {
    ps_value value; /* NONE: there is none */
    uint32_t tag, col0, cols;
} ps_operand;

/* instr: op, queue, shard, weights, ranges, part, when, ahead. Slots have numbers instead of buffers: in at, in kv, and,
 * for a COPY of a weight, in dst. Sources and destination are the operands. */
typedef struct ps_node {
    ps_instr in;
    uint32_t layer;
    ps_operand src[PS_OP_MAX_SRC], dst;
    ps_fmt in_fmt;
} ps_node;

enum {
    PS_MAX_NODES = 1024, /* of a list */
    PS_MAX_SLOTS = 96,
    PS_SLOT_ROTATE = 0, /* numbers of slots: products of a layer in turn; */
    PS_SLOT_MOE = 16,   /* two sets of gate, up and down experts; */
    PS_SLOT_ATTN = 32,  /* over tiles: one of each matrix of the attention block, */
    PS_SLOT_FFN = 40,   /* and of the feed-forward block; */
    PS_SLOT_HEAD = 64,  /* the output matrix; */
    PS_SLOT_KV = 95
};

typedef struct ps_node_list {
    uint32_t n;
    ps_node *nodes; /* [PS_MAX_NODES] */
    bool overflow;
} ps_node_list;

/* What is streamed for a layer, in the order of use. */
typedef struct ps_stream_item {
    ps_shard_kind shard;
    ps_role role;
    uint64_t row0, n_rows, col0, n_cols; /* n_cols 0: all */
    uint64_t bytes;
    uint32_t slot;
} ps_stream_item;

typedef struct ps_stream {
    uint32_t n;
    ps_stream_item *items;
} ps_stream;

/* What the layer streams under the request's placing, into *out (items from arena). Errors: PS_E_NOMEM, PS_E_INTERNAL. */
ps_status ps_stream_of(const ps_lower_request *r, uint32_t layer, ps_arena *arena, ps_stream *out,
                       ps_error *err);

/* Nodes of a layer's shards. own, next: what it and the next layer stream (next NULL: nothing is copied ahead).
 * which: 0 the attention block, 1 the feed-forward block, for steps over tiles; -1 both. */
void ps_nodes_of_layer(const ps_lower_request *r, uint32_t layer, int which, const ps_stream *own,
                       const ps_stream *next, ps_node_list *out);
/* The block before the layers: embedding, X to where the first layer wants it, first copies where slots are not carried. */
void ps_nodes_of_embed(const ps_lower_request *r, const ps_stream *first, ps_node_list *out);
ps_status ps_nodes_of_head(const ps_lower_request *r, ps_node_list *out, ps_error *err);

/* A list lowered to instructions, their slots still by number until the end of the program. */
enum { PS_MAX_LIST = PS_MAX_NODES * 2, PS_MAX_LOWER_BUFFERS = 512 };
typedef struct ps_lowered {
    uint32_t n;
    ps_instr *instr; /* [PS_MAX_LIST] */
} ps_lowered;

/* Where the residual stream is at hand, in f32: bit s: in space s. */
typedef struct ps_lowering {
    const ps_lower_request *r;
    ps_plan_buffer buffers[PS_MAX_LOWER_BUFFERS];
    uint32_t tags[PS_MAX_LOWER_BUFFERS]; /* of the operands in them */
    uint32_t n_buffers;
    uint16_t slot[PS_MAX_SLOTS];     /* buffer of each slot + 1; 0: not made yet */
    uint32_t x_spaces;               /* as above, between lists; 0: nowhere */
    uint32_t *gpu_kernels;           /* of the catalogue, by operation; from malloc */
    uint32_t first[PS_OP_COUNT + 1]; /* where each operation's begin */
    uint8_t outs[2][PS_OP_COUNT]
                [PS_FMT_COUNT]; /* by GPU or not, and input: formats that some kernel writes, as bit sets */
    ps_error *err;
} ps_lowering;

/* Index the catalogue. Errors: PS_E_NOMEM. */
ps_status ps_lowering_init(ps_lowering *lo, const ps_lower_request *r, ps_error *err);
/* Choose formats, kernels and buffers for a list. x_out: the residual stream goes on to other lists. Errors:
 * PS_E_UNSUPPORTED (no kernel), PS_E_INTERNAL. */
ps_status ps_lower_list(ps_lowering *lo, ps_node_list *nodes, bool x_out, ps_lowered *out);

#ifdef __cplusplus
}
#endif
#endif
