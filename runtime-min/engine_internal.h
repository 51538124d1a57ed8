/* Inside the runtime: what the engine holds, shared by loading, execution, verification and trace.
 *
 * A tier's program is resolved once, at load: each instruction of each layer becomes a ps_run_op with kernel
 * variant and operand addresses filled in. A step copies an op's arguments, patches what only the step knows
 * (token count, positions, tile, KV spans) and runs it. */
#ifndef PS_RUNTIME_ENGINE_INTERNAL_H
#define PS_RUNTIME_ENGINE_INTERNAL_H

#include "core/arena.h"
#include "kernels/kernel.h"
#include "machine/pool.h"
#include "machine/spread.h"
#include "model/chat.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "runtime-min/pinstripe.h"
#include "schemas/plan.h"
#include "schemas/trace.h"

/* One instruction of one layer, resolved. */
typedef struct ps_run_op {
    const ps_instr *instr;
    const ps_kernel *kernel;
    const ps_cpu_variant *variant;
    uint32_t instr_index; /* in program->instrs */
    uint32_t layer;
    bool barrier;                              /* it waits for an instruction since the last barrier */
    ps_rows rows;                              /* which rows it works on */
    ps_rows src_rows[PS_OP_MAX_SRC], dst_rows; /* of the operands' buffers: tiles move inside STEP ones */
    ps_kargs args;
} ps_run_op;

/* Consecutive ops that run together: a ONCE block, or one layer of a LAYERS block. */
typedef struct ps_run_segment {
    uint32_t op0, n_ops;
    uint32_t n_phases; /* of all its ops together */
    bool over_tiles;
} ps_run_segment;

typedef struct ps_run_tier {
    const ps_tier *tier;
    const ps_program *program;
    uint32_t n_ops;
    ps_run_op *ops;
    uint32_t n_segments, tail_segment; /* the tail begins with GATHER, at a segment of its own */
    ps_run_segment *segments;
} ps_run_tier;

/* One pass of the team over some segments of a step. Set by the calling thread before the team starts. */
typedef struct ps_run_step {
    const ps_run_tier *tier;
    uint32_t segment0, segment_end;
    uint32_t n_tokens, n_tiles, n_outputs;
    const int32_t *tokens;
    const uint32_t *positions;
    const uint32_t *outputs;
    ps_sampler *const *samplers;
    bool wants_sample;
    uint32_t n_spans;
    const ps_seq_span *spans;  /* k, v and kv_rows are filled in per layer */
    const uint32_t *span_slot; /* sequence number of each span */
    uint64_t event0;           /* index of the pass's first instruction in the expanded stream */
} ps_run_step;

struct ps_session {
    ps_engine *engine;
    uint32_t slot;
    uint64_t length;
    ps_sampler *sampler;
};

struct ps_engine {
    ps_arena *arena; /* holds everything below that is not a handle */
    ps_gguf *gguf;
    ps_model *model;
    ps_plan *plan;
    ps_tokenizer *tokenizer;
    ps_chat *chat; /* NULL if the template is missing or unknown: chat_error says why */
    ps_error chat_error;
    ps_machine *machine;
    ps_pool *pool;
    const ps_level *level;
    uint32_t level_index;
    ps_engine_info info;
    ps_engine_stats stats;
    bool verify;
    uint8_t *host_arena;
    uint32_t n_tiers;
    ps_run_tier *tiers;

    /* Step data, sized for the longest step. */
    uint32_t *positions, *outputs, *span_slot;
    float **output_logits;    /* where each output row's logits go, NULL: nowhere */
    int32_t **output_sampled; /* where its sampled token goes, NULL: nowhere */
    ps_sampler **samplers;
    int32_t *tokens;
    ps_seq_span *spans;        /* [n_sessions] */
    ps_seq_span *thread_spans; /* [n_threads x n_sessions] */
    uint32_t *item_done;       /* [n_sessions] tokens of each item already evaluated */
    ps_spread *spreads;        /* one per phase of the stream of the longest step */
    ps_session *sessions;      /* [n_sessions], engine NULL where free */

    bool tracing;
    ps_trace trace;                         /* arena: trace_arena */
    uint64_t trace_start_ns, trace_step_ns; /* of the trace, of the step in progress */
    uint64_t trace_steps_capacity;
    uint64_t n_events;  /* room per thread */
    uint64_t *event_ns; /* [n_threads][n_events][start, end] of the step, from its start */
};

enum { PS_RUN_MAX_PHASES = 8 };

/* resolve.c: fill engine->tiers from the level. */
ps_status ps_engine_resolve(ps_engine *engine, ps_error *err);
/* Instructions, and kernel phases, that segments [begin, end) of a step make. */
uint64_t ps_run_n_instrs(const ps_run_tier *tier, uint32_t begin, uint32_t end, uint32_t n_tiles);
uint64_t ps_run_n_phases(const ps_run_tier *tier, uint32_t begin, uint32_t end, uint32_t n_tiles);

/* execute.c: one pass on the whole team. */
void ps_engine_run(ps_engine *engine, ps_run_step *step);
/* Arguments of an op for tile `tile` of a step; spans: room for step->n_spans. False: nothing to do. */
bool ps_run_op_args(const ps_engine *engine, const ps_run_step *step, const ps_run_op *op, uint32_t tile,
                    ps_kargs *out, ps_seq_span *spans);

/* verify.c: one pass on the calling thread, each op compared with its reference. */
ps_status ps_engine_run_verified(ps_engine *engine, ps_run_step *step, ps_error *err);

/* record.c: append a step to the trace out of engine->event_ns. */
ps_status ps_engine_record(ps_engine *engine, const ps_run_step *step, uint64_t kv_len, uint64_t start_ns,
                           uint64_t end_ns, double predicted_s, ps_error *err);

#endif
