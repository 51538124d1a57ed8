/* The plan: for every level (budget, context bucket, sequences, threads) and token tier a program over
 * four queues. Document "pinstripe-plan", YAML or binary; both hold the same meaning.
 *
 * A program is a list of blocks. A block runs its instructions once, or once per layer of a run of layers
 * whose shapes and kernels are alike, or once per tile of a long step. Instructions name buffers by number;
 * each tier gives the buffers' offsets in the arenas, so tiers share programs.
 * Instruction set version 0: free to change until it has run on a GPU. */
#ifndef PS_SCHEMAS_PLAN_H
#define PS_SCHEMAS_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/hash.h"
#include "core/status.h"
#include "model/kernel_spec.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PS_PLAN_VERSION = 0, /* of document and instruction set */
    PS_PLAN_MAX_BYTES = 64 << 20,
    PS_TILE_TOKENS = 2048,
    PS_PLAN_MAX_TOKENS = 65536,   /* of a tier */
    PS_PLAN_MAX_BUFFERS = 1024,   /* of a program */
    PS_PLAN_MAX_STREAM = 1 << 24, /* instructions of a step, loops and tiles expanded */
    PS_ARENA_ALIGN = 64,          /* of every offset into an arena */
    PS_MAX_WAITS = 6,
    PS_NO_BUFFER = 0xffff,
};

#define PS_QUEUE_LIST(X) X(CPU, "cpu") X(GPU, "gpu") X(H2D, "h2d") X(D2H, "d2h")
typedef enum ps_queue {
#define PS_QUEUE_ENUM(name, text) PS_QUEUE_##name,
    PS_QUEUE_LIST(PS_QUEUE_ENUM)
#undef PS_QUEUE_ENUM
        PS_QUEUE_COUNT
} ps_queue;

#define PS_SPACE_LIST(X) X(HOST, "host") X(VRAM, "vram")
typedef enum ps_space {
#define PS_SPACE_ENUM(name, text) PS_SPACE_##name,
    PS_SPACE_LIST(PS_SPACE_ENUM)
#undef PS_SPACE_ENUM
        PS_SPACE_COUNT
} ps_space;

#define PS_PLACEMENT_LIST(X)                                                                                 \
    X(VRAM, "vram") X(STREAM, "stream") X(DIRECT, "direct") X(HOST, "host") X(SPLIT, "split")
typedef enum ps_placement {
#define PS_PLACEMENT_ENUM(name, text) PS_PLACE_##name,
    PS_PLACEMENT_LIST(PS_PLACEMENT_ENUM)
#undef PS_PLACEMENT_ENUM
        PS_PLACE_COUNT
} ps_placement;

/* How many rows a buffer has: tokens of the whole step, tokens of a tile, or rows with wanted logits. */
#define PS_ROWS_LIST(X) X(STEP, "step") X(TILE, "tile") X(OUTPUTS, "outputs")
typedef enum ps_rows {
#define PS_ROWS_ENUM(name, text) PS_ROWS_##name,
    PS_ROWS_LIST(PS_ROWS_ENUM)
#undef PS_ROWS_ENUM
        PS_ROWS_COUNT
} ps_rows;

typedef struct ps_plan_buffer {
    ps_value value; /* what it holds; one value may live in buffers of several formats */
    ps_space space;
    ps_fmt fmt;
    ps_rows rows;
    uint32_t cols;
} ps_plan_buffer;

/* X(NAME, bit, "name") */
#define PS_LOOP_LIST(X) X(ONCE, "once") X(LAYERS, "layers")
typedef enum ps_loop {
#define PS_LOOP_ENUM(name, text) PS_LOOP_##name,
    PS_LOOP_LIST(PS_LOOP_ENUM)
#undef PS_LOOP_ENUM
        PS_LOOP_COUNT
} ps_loop;

/* Predicted time of an instruction in the first round of its block, seconds from the start of the block;
 * round i of n is later by i times the block's period. Linear in KV length: at empty and at full bucket. */
typedef struct ps_prediction {
    double start_empty_s, end_empty_s;
    double start_full_s, end_full_s;
} ps_prediction;

typedef struct ps_instr {
    ps_op op;
    ps_queue queue;
    uint32_t kernel;     /* id in the plan's kernel list; 0 for COPY */
    ps_shard_kind shard; /* with the block's layer: the shard it belongs to */
    ps_role w[PS_OP_MAX_WEIGHTS];
    uint64_t row0, n_rows;       /* MATMUL: rows of w[0]; MOE_DISPATCH: experts; ATTENTION: KV heads; COPY:
                                    rows. n_rows 0 means all (then row0 is 0) */
    uint16_t src[PS_OP_MAX_SRC]; /* buffer numbers, PS_NO_BUFFER where unused */
    uint16_t dst;
    uint32_t n_waits;
    uint32_t wait[PS_MAX_WAITS]; /* distances back in the expanded stream (1 = the instruction before),
                                    ascending; see below */
} ps_instr;

/* Order. An instruction starts when all it waits for have ended; a distance that reaches before the start of the
 * stream waits for nothing. Instructions of a queue start in their order: on gpu, h2d and d2h each ends before
 * the next starts; on cpu they may overlap, except that two that use scratch never do.
 * Rows. A buffer of STEP rows holds all tokens of the step; in a block over tiles an instruction works on the rows of
 * its tile. Outside such blocks, and apart from the outputs, an instruction works on tile 0 alone, so only steps
 * of one tile can do with them. GATHER reads the STEP rows of all tiles. */

typedef struct ps_block {
    ps_loop loop;
    uint32_t layer0, n_layers; /* LAYERS: the layers it runs for; ONCE: 0 and 1 */
    bool over_tiles;           /* within each layer, all tiles of the step in order */
    uint32_t instr0, n_instrs; /* in program->instrs */
} ps_block;

typedef struct ps_program {
    uint32_t n_buffers;
    ps_plan_buffer *buffers;
    uint32_t n_instrs;
    ps_instr *instrs;
    uint32_t n_blocks;
    ps_block *blocks;
} ps_program;

/* Rules that the executor relies on besides data flow: a program has exactly one GATHER, in a ONCE block; the
 * instructions from it to the end (its tail: final norm, head, SAMPLE) may be run several times in a step,
 * each time for other rows, so the buffer that GATHER reads stays intact to the end of the program. A step
 * that wants no logits leaves the tail out. */

/* A program made concrete for steps of up to max_tokens new tokens. */
typedef struct ps_tier {
    uint32_t max_tokens;
    uint32_t program;        /* index into plan->programs */
    uint32_t max_outputs;    /* rows of OUTPUTS buffers */
    uint64_t *buffer_offset; /* [program->n_buffers] bytes into the buffer's arena, multiples of 64 */
    uint64_t scratch_offset, scratch_bytes; /* in the host arena, shared by all instructions in turn */
    double step_empty_s, step_full_s;       /* predicted step of max_tokens at empty / full bucket */
    double raw_bound_s, reachable_bound_s;  /* at the full bucket; see docs/plan-format.md */
    double *block_period_empty_s, *block_period_full_s; /* [program->n_blocks] */
    ps_prediction *predicted;                           /* [program->n_instrs] */
} ps_tier;

typedef struct ps_kv_home {
    ps_space space;
    uint64_t offset; /* in that arena, of sequence 0; sequence s follows at s * bytes */
    uint64_t rows;   /* positions held per sequence (ring for sliding windows) */
    uint64_t bytes;  /* per sequence, both planes */
} ps_kv_home;

typedef struct ps_level {
    char budget[24];        /* "host", or as asked: "2GiB" */
    uint64_t budget_bytes;  /* VRAM promise; 0 for host */
    uint64_t bucket_tokens; /* KV length up to this */
    uint32_t n_seqs, n_threads;
    uint64_t host_arena_bytes, vram_arena_bytes;
    uint64_t peak_host_bytes; /* weights, arena and all: predicted resident memory */
    ps_placement *placement;  /* [plan->n_shards] */
    ps_kv_home *kv;           /* [plan->n_layers] */
    uint32_t n_tiers;
    ps_tier *tiers; /* ascending max_tokens */
} ps_level;

typedef struct ps_plan_shard {
    ps_shard_kind kind;
    uint32_t layer;
    uint64_t weight_bytes;
} ps_plan_shard;

typedef struct ps_plan {
    uint32_t version;
    char tool[32], created[32];
    char arch[32], model_name[96];
    uint8_t model_hash[PS_HASH_BYTES], profile_hash[PS_HASH_BYTES];
    uint8_t machine_hash[PS_HASH_BYTES], kernel_set[PS_HASH_BYTES];
    bool synthetic_profile;
    uint32_t n_layers, n_shards;
    ps_plan_shard *shards;
    uint32_t n_kernels;
    ps_kernel_spec *kernels; /* those that the programs use, ascending id */
    uint32_t n_programs;
    ps_program *programs;
    uint32_t n_levels;
    ps_level *levels; /* ascending budget, bucket, sequences, threads */
    void *arena;      /* ps_arena that everything above comes from, the ps_plan itself too */
} ps_plan;

/* Read YAML or binary (told apart by the first bytes), into private memory, structure checked: indices in
 * range, names known, versions. Not yet proven safe: see ps_plan_check. Memory is bounded by a constant
 * times the file. Errors carry file, line and column or offset: PS_E_DATA, PS_E_UNSUPPORTED, ... */
ps_status ps_plan_read(const char *path, ps_plan **out, ps_error *err);
ps_status ps_plan_parse(const void *data, uint64_t size, const char *label, ps_plan **out, ps_error *err);
/* Structure alone, as both readers and both writers check it. Names what is wrong, without a file: PS_E_DATA,
 * PS_E_UNSUPPORTED (version), PS_E_NOMEM. */
ps_status ps_plan_validate(const ps_plan *plan, ps_error *err);
/* Text or bytes from malloc. The same plan gives the same bytes; YAML -> binary -> YAML is the identity. */
ps_status ps_plan_to_yaml(const ps_plan *plan, char **out, uint64_t *out_size, ps_error *err);
ps_status ps_plan_to_binary(const ps_plan *plan, uint8_t **out, uint64_t *out_size, ps_error *err);
/* Frees plan->arena. NULL is allowed. */
void ps_plan_free(ps_plan *plan);

/* Prove one level safe for `model`: every shard's operations executed once, in data-flow order, as the
 * model's own operation lists say; no read of a buffer before it is written or after it is overwritten; no
 * two live buffers overlap; arenas, KV and scratch inside their sizes; every row range inside its
 * tensor; waits point backwards and order every hazard between queues; kernels fit operands' types and
 * formats. Errors: PS_E_DATA naming level, tier, block and instruction. Pure; any thread. */
ps_status ps_plan_check(const ps_plan *plan, const ps_level *level, const ps_model *model, ps_error *err);
/* That plan and model belong together (hashes, layers, shards): PS_E_MISMATCH otherwise. */
ps_status ps_plan_match_model(const ps_plan *plan, const ps_model *model, ps_error *err);

/* Walk of the expanded instruction stream of a tier for a step of n_tokens, used by simulator, checker,
 * executor and trace alike, so that numbers agree. */
typedef struct ps_cursor {
    const ps_program *program;
    uint32_t n_tiles;
    uint32_t block, round, tile, instr; /* position; round counts layers of a block */
    uint64_t index;                     /* in the expanded stream */
} ps_cursor;
void ps_cursor_start(ps_cursor *c, const ps_program *program, uint32_t n_tiles);
/* The instruction at the cursor, or NULL at the end; *out_layer: its layer. */
const ps_instr *ps_cursor_get(const ps_cursor *c, uint32_t *out_layer);
void ps_cursor_next(ps_cursor *c);
/* Number of instructions in the whole stream. UINT64_MAX on overflow. */
uint64_t ps_program_length(const ps_program *program, uint32_t n_tiles);

const char *ps_queue_name(ps_queue q);
const char *ps_space_name(ps_space s);
const char *ps_placement_name(ps_placement p);

#ifdef __cplusplus
}
#endif
#endif
