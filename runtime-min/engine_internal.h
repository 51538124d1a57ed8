/* Inside the runtime: what the engine holds, shared by loading, execution, verification and trace.
 *
 * A tier's program is resolved when a level is entered: each instruction of each layer becomes a ps_run_op with kernel
 * and operand addresses filled in. A schedule expands a tier for a number of tiles and says, for each instruction, what it
 * must wait for: barriers of the team, events between the device's queues, points between CPU and device. A pass runs a
 * schedule, or its tail: the team walks the CPU's entries, the calling thread (thread 0) enqueues the device's. */
#ifndef PS_RUNTIME_ENGINE_INTERNAL_H
#define PS_RUNTIME_ENGINE_INTERNAL_H

#include "core/arena.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/kernel.h"
#include "machine/device.h"
#include "machine/pool.h"
#include "machine/spread.h"
#include "model/chat.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "runtime-min/pinstripe.h"
#include "runtime-min/weights.h"
#include "schemas/plan.h"
#include "schemas/trace.h"

typedef enum ps_run_kind {
    PS_RUN_KERNEL,
    PS_RUN_COPY_WEIGHT,
    PS_RUN_COPY_VALUE,
    PS_RUN_COPY_KV,
} ps_run_kind;

enum {
    PS_RUN_MAX_PHASES = 8,
    PS_RUN_NO_SPANS = UINT32_MAX,
    PS_RUN_GRAPH_TOKENS = 8, /* most rows of a step that becomes a graph */
    PS_RUN_GRAPHS = 16,      /* most graphs kept */
    /* A graph whose kernels wait for the CPU must fit into the driver's queues: its launch would wait for room in them, on the thread
     * that the CPU's work needs. 1,100 nodes were launched and 2,000 hung on an H200. Longer ones go in parts, two on the way. */
    PS_RUN_GRAPH_NODES = 1100,
    PS_RUN_PART_NODES = 500,
    PS_RUN_PARTS = 16, /* at most */
    PS_RUN_KEYS = 64,  /* shapes of steps remembered, to make a graph of one that comes again */
    /* Events of the device: those of a pass as a whole, those of the window of enqueued work, those of a schedule, and in a
     * trace the times of instructions. */
    PS_EVENT_JOIN = 0,    /* [PS_STREAM_COUNT] */
    PS_EVENT_LAST = 4,    /* behind all work of a pass */
    PS_EVENT_ZERO = 5,    /* start of a traced step */
    PS_EVENT_COPIED = 6,  /* d2h in front of a signal */
    PS_EVENT_WINDOW = 8,  /* [PS_RUN_WINDOW] */
    PS_EVENT_ORDER = 32,  /* [PS_RUN_ORDER_EVENTS] */
    PS_EVENT_TIME = 2048, /* [2 * PS_RUN_TIMED] */
    PS_RUN_ORDER_EVENTS = PS_EVENT_TIME - PS_EVENT_ORDER,
    PS_RUN_TIMED = (PS_DEVICE_EVENTS - PS_EVENT_TIME) / 2,
    PS_RUN_CHUNK = 8, /* instructions between two events of the window */
    PS_RUN_WINDOW =
        16, /* chunks enqueued and not ended, at most: it bounds how much runs on after a request to stop,
                           and keeps launch queues from filling up */
};

/* One instruction of one layer, resolved. Queue cpu: addresses of the host; others: of the device. */
typedef struct ps_run_op {
    const ps_instr *instr;
    ps_run_kind kind;
    const ps_kernel *kernel;       /* NULL for copies */
    const ps_cpu_variant *variant; /* queue cpu only */
    uint32_t instr_index;          /* in program->instrs */
    uint32_t layer;
    ps_rows rows;                              /* which rows it works on */
    ps_rows src_rows[PS_OP_MAX_SRC], dst_rows; /* of the operands' buffers: tiles move inside STEP ones */
    ps_kargs args;
    uint8_t *kv;           /* KV_STORE, ATTENTION: the cache of sequence 0 */
    uint32_t span_set;     /* queue gpu: which of the step block's sets of spans; PS_RUN_NO_SPANS: none */
    uint64_t direct_bytes; /* queue gpu: weights that it reads from the host, experts apart */
    /* COPY of a weight: this range of it to dst.data. Of KV: between the home in the host arena and the slot. */
    const ps_weight *weight;
    ps_weight_range range;
    uint8_t *kv_slot;
    uint32_t copy_from, copy_to; /* COPY of a value: first column in each buffer */
} ps_run_op;

/* An instruction in the expanded stream. Points count from 1, in stream order, on each side. */
typedef struct ps_run_entry {
    uint32_t op, tile; /* of tier->ops, of the step */
    uint32_t index;    /* in the expanded stream */
    uint32_t point;    /* its end is this point of its side; 0: nobody on the other side waits for it */
    uint32_t await;    /* point of the other side that it waits for; 0: none */
    uint32_t spread;   /* cpu: the first of its spreads */
    uint16_t record;   /* device: event behind it; 0: none */
    uint16_t wait[2];  /* device: events it waits for; 0: none */
    bool body[2];      /* that event is of the body, this entry of the tail */
    bool barrier;      /* cpu: the team meets before it */
} ps_run_entry;

typedef struct ps_run_schedule {
    uint32_t n_tiles;
    uint32_t length; /* instructions of the stream, those that do not run included */
    uint32_t n_cpu, n_dev;
    ps_run_entry *cpu, *dev;
    uint32_t cpu_tail, dev_tail, tail_index; /* where the tail begins */
    uint32_t cpu_points, dev_points;
    uint32_t cpu_tail_points, dev_tail_points; /* of these, before the tail */
    uint32_t n_spreads;
} ps_run_schedule;

typedef struct ps_run_tier {
    const ps_tier *tier;
    const ps_program *program;
    uint32_t n_ops;
    ps_run_op *ops;
    uint32_t *block_op; /* [program->n_blocks] first op of each block's first layer */
    uint32_t n_span_sets;
    bool has_device, has_kv_copies, has_weight_copies,
        light_cpu; /* light: no CPU work that a team is needed for */
    uint32_t first_tiles, n_schedules;
    ps_run_schedule *schedules; /* for first_tiles, first_tiles + 1, ... tiles */
} ps_run_tier;

/* One pass of the team over a schedule or a part of it. Set by the calling thread before the team starts. */
typedef struct ps_run_step {
    const ps_run_tier *tier;
    const ps_run_schedule *schedule;
    uint32_t cpu_begin, cpu_end, dev_begin, dev_end; /* of the schedule's entries */
    uint32_t cpu_point0, dev_point0;                 /* points up to these passed before */
    bool tail_only;
    uint32_t n_tokens, n_tiles, n_outputs, first_output;
    const int32_t *tokens;
    const uint32_t *positions;
    const uint32_t *outputs; /* from first_output on */
    ps_sampler *const *samplers;
    bool wants_sample;
    uint32_t n_spans, span_rows; /* span_rows: most of one span */
    uint64_t kv_end;             /* no span ends above it */
    const ps_seq_span *spans;    /* k, v and kv_rows are filled in per layer */
    const uint32_t *span_slot;   /* sequence number of each span */
} ps_run_step;

/* Steps that the same graph serves. */
typedef struct ps_graph_key {
    const ps_run_tier *tier;
    uint32_t n_tokens, n_spans, span_rows, n_outputs;
} ps_graph_key;

/* Bytes of weights that the device takes from the host in a pass. */
typedef struct ps_run_traffic {
    uint64_t copied, direct;
} ps_run_traffic;

/* A traced instruction of a graph: its index in the stream, its events. */
typedef struct ps_run_timed {
    uint32_t index, begin, end;
} ps_run_timed;

typedef struct ps_run_graph {
    ps_graph_key key;
    ps_run_timed *timed; /* [n_timed], from malloc */
    uint32_t n_timed, n_parts;
    ps_device_graph *part[PS_RUN_PARTS];
    uint32_t first[PS_RUN_PARTS]; /* index in the stream of each part's first entry */
    ps_run_traffic traffic;
    uint64_t used; /* number of the step that used it last */
} ps_run_graph;

/* The device as the engine uses it. */
typedef struct ps_run_device {
    ps_device *device;
    ps_vram_range *work, *weight, *own;
    uint8_t *d_work, *d_weight;
    struct ps_cuda_blas *blas;
    /* Step block: *d_block is what the page-locked *block was when the pass began. Layout: step_block_layout(). */
    uint8_t *block, *d_block;
    uint64_t block_bytes;                        /* room */
    uint64_t block_used;                         /* of this pass */
    uint64_t at_positions, at_outputs, at_spans; /* of this pass */
    uint64_t spin_ns;                            /* how long a wait for the device spins before it naps */
    uint64_t base, next_base;                    /* flags = base + point; grows from pass to pass */
    uint8_t *d_tables; /* in `own`, behind the block: experts' addresses and resident bits */
    uint8_t *tables;   /* the same bytes, page-locked */
    uint64_t tables_bytes;
    const ps_run_tier *slots; /* the tier whose exit state the slots hold; NULL: none */
    ps_run_graph graphs[PS_RUN_GRAPHS];
    uint32_t n_graphs, n_keys;
    ps_graph_key keys[PS_RUN_KEYS];
    uint64_t n_loaded; /* resident pieces in VRAM, the first of this level's list */
    ps_resident *loaded;
    /* Enqueueing of the pass in progress. */
    uint32_t next;                  /* entry */
    uint64_t chunks, chunks_passed; /* recorded, known to have ended */
    uint32_t in_chunk;
    bool as_graph;                /* the pass is launched as one, */
    uint32_t parts, parts_passed; /* of it so many parts are launched, are known to have ended */
    bool capturing;               /* what is enqueued becomes part of a graph */
    bool loose;                   /* the copy streams have work that the compute stream has not waited for */
    bool used_d2h;                /* in this pass */
    bool ended;                   /* all of the pass is enqueued, PS_EVENT_LAST behind it */
    ps_run_traffic traffic;       /* of this pass */
    uint64_t final;               /* what the device's flag is when the pass has ended */
    uint64_t looked_ns, progress_ns, progress_flag;
    int emulated_status;            /* status of a reference that failed, atomic; 0: none */
    uint64_t n_timed, n_timed_read; /* of this step: entries with times, those already read */
    uint32_t *timed_index;          /* [PS_RUN_TIMED] their index in the stream */
    ps_run_timed *graph_timed;      /* [2 * PS_RUN_TIMED] of the graph being captured */
    uint32_t graph_events, n_graph_timed, last_time[PS_STREAM_COUNT];
    uint32_t capture_part; /* of the graph being captured, from 1 */
    uint8_t recorded_in
        [PS_EVENT_TIME]; /* the part in which each event was recorded; others have ended where it begins */
    const ps_run_graph *graph; /* of the pass, if it is one */
    int64_t zero_ns;           /* PS_EVENT_ZERO, from the start of the step */
} ps_run_device;

struct ps_session {
    ps_engine *engine;
    uint32_t slot;
    uint64_t length;
    ps_sampler *sampler;
};

/* Where KV of a layer waits while a level changes; bytes 0: it stays where it is. */
typedef struct ps_kv_stage {
    uint64_t offset, bytes; /* of sequence 0; per sequence */
} ps_kv_stage;

/* Why a pass ends early; set by thread 0 alone. */
enum { PS_ABORT_NONE = 0, PS_ABORT_STOP, PS_ABORT_ERROR };
#define PS_NO_REQUEST UINT64_MAX

struct ps_engine {
    ps_arena *arena;       /* holds what lives as long as the engine */
    ps_arena *level_arena; /* what belongs to the level: ops, schedules */
    ps_gguf *gguf;
    ps_model *model;
    ps_plan *plan;
    ps_tokenizer *tokenizer;
    ps_chat *chat; /* NULL if the template is missing or unknown: chat_error says why */
    ps_error chat_error;
    ps_machine *machine;
    ps_pool *pool;
    ps_weights *weights;
    bool weights_direct;   /* the device reads them where they are */
    const ps_level *level; /* NULL while none is entered */
    uint32_t level_index;
    bool *reachable;       /* [plan->n_levels] the level may be changed to */
    char differences[400]; /* info.differences */
    ps_engine_info info;
    char level_why[256];
    ps_engine_stats stats;
    bool verify;
    bool has_device; /* run.device is open */
    ps_run_device run;
    uint8_t *host_arena, *d_host_arena; /* d_: its address on the device */
    uint64_t host_arena_bytes;          /* of the largest level that may be entered */
    uint8_t *stage;                     /* page-locked, for KV on the way from one level to another */
    uint64_t stage_bytes;
    ps_kv_stage *kv_stage;   /* [n_layers] */
    uint64_t *expert_offset; /* [n_layers] in the tables; UINT64_MAX: no experts */
    uint32_t n_tiers;
    ps_run_tier *tiers;

    /* Step data, sized for the longest step of all levels that may be entered. */
    uint64_t max_tokens;
    uint32_t *positions, *outputs, *span_slot;
    float **output_logits;    /* where each output row's logits go, NULL: nowhere */
    int32_t **output_sampled; /* where its sampled token goes, NULL: nowhere */
    ps_sampler **samplers;
    int32_t *tokens;
    ps_seq_span *spans;        /* [n_sessions] */
    ps_seq_span *thread_spans; /* [n_threads x n_sessions] */
    uint32_t *item_done;       /* [n_sessions] tokens of each item already evaluated */
    ps_spread *spreads;        /* [n_spreads] */
    uint32_t *point_done;      /* [n_points] threads that came to the end of each CPU point's instruction */
    uint64_t n_spreads, n_points;
    ps_session *sessions; /* [n_sessions], engine NULL where free */

    bool broken; /* the device failed: nothing more can be evaluated */
    int abort;   /* PS_ABORT_*, atomic; after a pass that returned PS_OK, PS_ABORT_STOP: it was given up */
    ps_error abort_err; /* of PS_ABORT_ERROR */
    uint64_t request;   /* VRAM that the engine is asked to keep to, atomic; PS_NO_REQUEST: none */
    uint64_t asked;     /* what was asked for last, atomic */
    bool fixed_level;   /* of the options */
    bool in_team;       /* a pass is on the team */
    bool again;         /* the step to come was given up before */
    bool no_stop;       /* the step must not be given up: it has sampled, or could not be run again */
    uint64_t need_tokens, longest; /* longest session: when the evaluation has ended, now */

    bool tracing;
    ps_trace trace;                         /* arena: trace_arena */
    uint64_t trace_start_ns, trace_step_ns; /* of the trace, of the step in progress */
    uint64_t trace_steps_capacity;
    uint64_t n_events; /* room per thread */
    uint64_t *
        event_ns; /* [n_threads][n_events][start, end] of the step, from its start; UINT64_MAX, 0: it took no part */
};

/* memory.c: device, arenas, weights in VRAM, tables. */
/* Does a program of engine->level need the GPU? */
bool ps_engine_level_uses_gpu(const ps_engine *engine);
/* Errors: PS_E_UNAVAILABLE where there is none. */
ps_status ps_engine_open_device(ps_engine *engine, const ps_engine_options *options, ps_error *err);
/* Host arena and VRAM for all levels that may be entered; weights in host memory. */
ps_status ps_engine_open_memory(ps_engine *engine, const ps_engine_options *options, ps_error *err);
/* Make engine->level's arenas and resident pieces as it wants them, then resolve it. */
ps_status ps_engine_enter_level(ps_engine *engine, ps_error *err);
void ps_engine_close_memory(ps_engine *engine);
/* Level and device. Where nothing is said of budgets the card comes first: the largest budget that it holds is taken, of those with
 * a level for the threads, sessions and context asked for; and the plan's CPU schedules where there is no card. *out_limit: of
 * VRAM, 0 where none is known. */
ps_status ps_engine_choose(ps_engine *engine, const ps_engine_options *options, uint64_t *out_limit,
                           ps_error *err);

/* Figures of the meter into info and stats; PS_E_INFEASIBLE if it shows more than the budget. */
ps_status ps_engine_meter(ps_engine *engine, ps_error *err);

/* resolve.c: fill engine->tiers from the level. */
ps_status ps_engine_resolve(ps_engine *engine, ps_error *err);
/* Arguments of an operand in host memory, whatever the queue: for verification. */
ps_warg ps_run_host_weight(const ps_engine *engine, const ps_instr *instr, uint32_t layer, int i,
                           const ps_kargs *like);

/* schedule.c: expand and order a tier for n_tiles. */
ps_status ps_engine_schedule(ps_engine *engine, ps_run_tier *tier, uint32_t n_tiles, ps_run_schedule *out,
                             ps_error *err);
const ps_run_schedule *ps_run_schedule_for(const ps_run_tier *tier, uint32_t n_tiles);

/* execute.c: one pass. */
ps_status ps_engine_run(ps_engine *engine, ps_run_step *step, ps_error *err);
/* Arguments of an op for tile `tile` of a step; spans: room for step->n_spans, used by queue cpu. False: nothing to do. */
bool ps_run_op_args(const ps_engine *engine, const ps_run_step *step, const ps_run_op *op, uint32_t tile,
                    ps_kargs *out, ps_seq_span *spans);
/* The parts of the step's sequences in [row0, row0 + n_rows) with the cache of `layer` that begins at kv. */
uint32_t ps_run_spans(const ps_engine *engine, const ps_run_step *step, uint32_t layer, uint8_t *kv,
                      uint32_t row0, uint32_t n_rows, ps_seq_span *out);
uint32_t ps_run_tile_rows(const ps_run_step *step, uint32_t tile);
/* End the pass early: an error, or a stop. Thread 0. */
void ps_engine_abort(ps_engine *engine, int why, const ps_error *err);
/* Whether the step must be given up for a smaller budget. */
bool ps_engine_must_stop(const ps_engine *engine);

/* device_ops.c, device_pass.c: the device's side of a pass. All by thread 0. */
/* Fill the step block, and the slots where another program ran before; nothing but that is on the way. */
ps_status ps_device_pass_prepare(ps_engine *engine, const ps_run_step *step, ps_error *err);
/* The same, then join the streams or launch the step's graph. */
ps_status ps_device_pass_begin(ps_engine *engine, const ps_run_step *step, ps_error *err);
/* Enqueue what comes before stream index `before`, and more as far as the window allows. */
void ps_device_pass_pump(ps_engine *engine, const ps_run_step *step, uint32_t before);
/* Everything, then wait until all but copies into slots has ended. */
void ps_device_pass_end(ps_engine *engine, const ps_run_step *step);
/* What a waiting thread 0 does now and then: errors of the device, requests. */
void ps_device_pass_look(ps_engine *engine);
/* After an abort, or before memory is changed: nothing runs on the device any more. */
ps_status ps_device_pass_drain(ps_engine *engine, ps_error *err);
void ps_device_drop_graphs(ps_engine *engine);
/* One op on the device's queue, its tile's arguments filled in. */
ps_status ps_engine_enqueue_op(ps_engine *engine, const ps_run_step *step, const ps_run_op *op, uint32_t tile,
                               uint64_t kv_bound, ps_error *err);
/* The step block of a pass, in page-locked memory, and its copy to the device on the compute stream. */
void ps_device_fill_block(ps_engine *engine, const ps_run_step *step);
ps_status ps_device_send_block(ps_engine *engine, ps_error *err);
/* The clock of a traced step on the device; times of entries that have ended into event_ns (all: wait for them). */
ps_status ps_device_start_times(ps_engine *engine, ps_error *err);
ps_status ps_device_read_graph_times(ps_engine *engine, const ps_run_graph *graph, ps_error *err);
ps_status ps_device_read_times(ps_engine *engine, bool all, ps_error *err);

/* kv.c: copies of KV in a step, and between levels. */
ps_status ps_run_copy_kv(ps_engine *engine, const ps_run_step *step, const ps_run_op *op, uint32_t tile,
                         ps_error *err);
ps_status ps_engine_kv_save(ps_engine *engine, ps_error *err);
ps_status ps_engine_kv_restore(ps_engine *engine, const ps_level *from, ps_error *err);
/* Where KV waits between any two levels that may be entered; fills kv_stage and stage_bytes. */
ps_status ps_engine_kv_plan_stage(ps_engine *engine, ps_error *err);

/* change.c: levels at run time. */
/* Which levels may be entered from engine->level; each is checked. */
ps_status ps_engine_find_reachable(ps_engine *engine, ps_error *err);
/* Before memory is opened: of what may be entered, the largest budget that other processes leave of limit_bytes, else the
 * smallest, or PS_E_INFEASIBLE where the limit is promised; never a larger one than was chosen. Nothing without a limit, or where
 * the meter cannot tell processes apart. */
ps_status ps_engine_leave_room(ps_engine *engine, uint64_t limit_bytes, bool promised, ps_error *err);
ps_status ps_engine_change_level(ps_engine *engine, uint32_t level, ps_error *err);
/* The level for a bucket of at least `tokens`, same budget; UINT32_MAX: none. */
uint32_t ps_engine_level_for_tokens(const ps_engine *engine, uint64_t tokens);
/* Act on a request, if there is one. */
ps_status ps_engine_obey_request(ps_engine *engine, ps_error *err);

/* verify.c: one pass on the calling thread, each op compared with its reference. */
ps_status ps_engine_run_verified(ps_engine *engine, ps_run_step *step, ps_error *err);

/* record.c: append a step to the trace out of engine->event_ns. */
ps_status ps_engine_record(ps_engine *engine, const ps_run_step *step, uint64_t kv_len, uint64_t start_ns,
                           uint64_t end_ns, double predicted_s, ps_error *err);
void ps_engine_clear_events(ps_engine *engine, const ps_run_step *step);

#endif
