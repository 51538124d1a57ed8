/* The plan: for every level (budget, context bucket, sequences, threads) and token tier a program over
 * four queues. Document "pinstripe-plan", YAML or binary; both hold the same meaning.
 *
 * A program is a list of blocks. A block runs its instructions once, or once per layer of a run of layers
 * whose shapes and kernels are alike, or once per tile of a long step. Instructions name buffers by number;
 * each tier gives the buffers' offsets in the arenas, so tiers share programs. Instruction set version 1:
 * docs/instruction-set.md says what every field means, one table (instruction_set.h) serves all its readers. */
#ifndef PS_SCHEMAS_PLAN_H
#define PS_SCHEMAS_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/hash.h"
#include "core/status.h"
#include "model/kernel_spec.h"
#include "model/model.h"
#include "schemas/facts.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PS_PLAN_VERSION = 2, /* of the document; the instruction set is of version 1 */
    PS_PLAN_MAX_BYTES = 64 << 20,
    PS_TILE_TOKENS = 2048,
    PS_PLAN_MAX_TOKENS = 65536,   /* of a tier */
    PS_PLAN_MAX_BUFFERS = 1024,   /* of a program */
    PS_PLAN_MAX_TIERS = 64,       /* of a level */
    PS_PLAN_MAX_BUDGETS = 256,    /* of a plan */
    PS_PLAN_MAX_STREAM = 1 << 24, /* instructions of a step, loops and tiles expanded */
    PS_ARENA_ALIGN = 64,          /* of every offset into an arena */
    PS_VRAM_ALIGN = 16 << 20,     /* of the sizes of both VRAM arenas: what one mapping handle holds */
    PS_VRAM_OWN = 16 << 20, /* VRAM that the executor takes beside the arenas: step data, tables of experts */
    PS_RESIDENT_ALIGN = 256, /* of every resident piece */
    PS_SLOT_ROW_ALIGN = 16,  /* of rows of a weight that is copied, in columns' bytes: see ps_weight_range */
    PS_COLUMN_STEP =
        256, /* of columns at which a range of a weight begins or, before the end of a row, ends */
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

/* How many rows a buffer has: tokens of the whole step, tokens of a tile, rows with wanted logits; or it is a slot:
 * `cols` bytes without a value and a format of its own, filled by COPY with a weight or with a layer's KV. */
#define PS_ROWS_LIST(X) X(STEP, "step") X(TILE, "tile") X(OUTPUTS, "outputs") X(SLOT, "slot")
typedef enum ps_rows {
#define PS_ROWS_ENUM(name, text) PS_ROWS_##name,
    PS_ROWS_LIST(PS_ROWS_ENUM)
#undef PS_ROWS_ENUM
        PS_ROWS_COUNT
} ps_rows;

typedef struct ps_plan_buffer {
    ps_value value; /* what it holds; one value may live in buffers of several formats; NONE for slots */
    ps_space space; /* slots: VRAM */
    ps_fmt fmt;     /* slots: NONE */
    ps_rows rows;
    uint32_t col0,
        cols; /* it holds columns [col0, col0 + cols) of the value: less than all where the work on the others
                            is another queue's. Slots: 0 and bytes, a multiple of PS_RESIDENT_ALIGN */
} ps_plan_buffer;

/* X(NAME, bit, "name") */
#define PS_LOOP_LIST(X) X(ONCE, "once") X(LAYERS, "layers")
typedef enum ps_loop {
#define PS_LOOP_ENUM(name, text) PS_LOOP_##name,
    PS_LOOP_LIST(PS_LOOP_ENUM)
#undef PS_LOOP_ENUM
        PS_LOOP_COUNT
} ps_loop;

/* Predicted time of an instruction in the first round and tile of its block, seconds from the start of the step; what comes later
 * in the block is so by ps_cursor_later_s. Linear in KV length: at empty and at full bucket. */
typedef struct ps_prediction {
    double start_empty_s, end_empty_s;
    double start_full_s, end_full_s;
} ps_prediction;

/* In which tiles of a layer an instruction of a block over tiles runs; in the others it is nothing, ended as soon as the
 * instructions before it in its queue have. X(NAME, "name") */
#define PS_WHEN_LIST(X) X(EVERY, "every") X(FIRST, "first") X(LAST, "last")
typedef enum ps_when {
#define PS_WHEN_ENUM(name, text) PS_WHEN_##name,
    PS_WHEN_LIST(PS_WHEN_ENUM)
#undef PS_WHEN_ENUM
        PS_WHEN_COUNT
} ps_when;

/* Where an instruction finds a weight. HOST: in host memory (on queue gpu: read `direct` by the kernel). VRAM: in the
 * level's resident pieces, one of which holds the whole range; MOE_DISPATCH: experts that are not resident are
 * read from the host. SLOT + b: in slot b, which holds exactly the instruction's range. */
enum { PS_AT_HOST = 0, PS_AT_VRAM = 1, PS_AT_SLOT = 2 };
/* Which memory KV_STORE, ATTENTION and a COPY of KV use: the layer's home, or slot b. */
enum { PS_KV_HOME = 0, PS_KV_SLOT = 1 };

typedef struct ps_instr {
    ps_op op;
    ps_queue queue;
    uint32_t kernel;     /* id in the plan's kernel list; 0 for COPY */
    ps_shard_kind shard; /* with the block's layer: the shard it belongs to */
    ps_role w[PS_OP_MAX_WEIGHTS];
    uint16_t at[PS_OP_MAX_WEIGHTS]; /* PS_AT_HOST, PS_AT_VRAM, PS_AT_SLOT + buffer; 0 where w is NONE */
    uint64_t row0,
        n_rows; /* MATMUL: rows of w[0]; MOE_DISPATCH: experts; ATTENTION: KV heads; COPY of a weight:
                                    its rows, or experts where it has several; COPY of a value: columns.
                                    n_rows 0 means all (then row0 is 0) */
    uint64_t col0,
        n_cols;       /* MATMUL, COPY of a weight: columns of w[0], the inner dimension, multiples of 256 but
                                    for the end; n_cols 0 means all. A MATMUL of fewer makes a partial sum */
    ps_moe_part part; /* MOE_DISPATCH */
    ps_when when;
    bool ahead;                  /* COPY of a weight: of the next layer, of layer 0 behind the last */
    uint16_t kv;                 /* KV_STORE, ATTENTION, COPY of KV: PS_KV_HOME, PS_KV_SLOT + buffer */
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

/* A range of a weight: what a resident piece or a slot holds. Its rows lie one behind the other, each the bytes of its
 * columns, as in the file (ps_weight_range_bytes). Rows of a weight of several experts count experts. */
typedef struct ps_weight_range {
    ps_role role;
    uint32_t layer;        /* 0 for roles without layer */
    uint64_t row0, n_rows; /* never 0 rows */
    uint64_t col0, n_cols; /* n_cols 0: all */
} ps_weight_range;

/* What a slot holds when a step begins, and again when it ends: so copies go on across the end of a step. The executor
 * fills the slots itself where the step before was another program's, or none. */
typedef struct ps_slot_entry {
    uint16_t slot;
    ps_weight_range range;
} ps_slot_entry;

typedef struct ps_program {
    uint32_t n_buffers;
    ps_plan_buffer *buffers;
    uint32_t n_instrs;
    ps_instr *instrs;
    uint32_t n_blocks;
    ps_block *blocks;
    uint32_t n_entries;
    ps_slot_entry *entries; /* ascending slot */
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
    uint64_t *buffer_offset; /* [program->n_buffers] bytes into the buffer's arena, multiples of 64 (slots: of
                                PS_RESIDENT_ALIGN); VRAM: the work arena */
    uint64_t scratch_offset,
        scratch_bytes; /* in the host arena, shared by all instructions of queue cpu in turn */
    uint64_t vram_scratch_offset,
        vram_scratch_bytes; /* in the VRAM work arena, for those of queue gpu; offset a
                                                         multiple of PS_RESIDENT_ALIGN */
    uint32_t max_direct;    /* MOE_DISPATCH of part NEAR and FAR: experts that the GPU reads from the host */
    double step_empty_s, step_full_s;      /* predicted step of max_tokens at empty / full bucket */
    double raw_bound_s, reachable_bound_s; /* at the full bucket; see docs/plan-format.md */
    double *block_period_empty_s, *block_period_full_s; /* [program->n_blocks] */
    ps_prediction *predicted;                           /* [program->n_instrs] */
} ps_tier;

typedef struct ps_kv_home {
    ps_space space;
    uint64_t offset; /* in that arena, of sequence 0; sequence s follows at s * bytes */
    uint64_t rows;   /* positions held per sequence (ring for sliding windows) */
    uint64_t bytes;  /* per sequence, both planes */
} ps_kv_home;

/* A piece of a weight that stays in VRAM between steps. */
typedef struct ps_resident {
    ps_weight_range range;
    uint64_t offset; /* in the VRAM weight arena, a multiple of PS_RESIDENT_ALIGN */
} ps_resident;

typedef struct ps_level {
    char budget[24];        /* "host", or as asked: "2GiB" */
    uint64_t budget_bytes;  /* VRAM promise; 0 for host */
    uint64_t bucket_tokens; /* KV length up to this */
    uint32_t n_seqs, n_threads;
    uint64_t host_arena_bytes;
    uint64_t vram_work_bytes,
        vram_weight_bytes; /* two arenas: buffers, slots, scratch and KV; resident pieces. Multiples
                                                    of PS_VRAM_ALIGN; with vram_base_bytes at most budget_bytes */
    uint64_t
        vram_base_bytes; /* context, modules and libraries, as the profile's meter has them, and PS_VRAM_OWN */
    uint64_t peak_host_bytes; /* weights, arena and all: predicted resident memory */
    ps_placement *placement;  /* [plan->n_shards]: for people, and what the checker holds queues to */
    ps_kv_home *kv;           /* [plan->n_layers]; VRAM homes are in the work arena */
    uint32_t n_resident;
    ps_resident *resident; /* ascending offset, apart from each other. Of two levels of a plan with different
                              vram_weight_bytes, those of the smaller come first in the larger, at the same
                              offsets, so that shrinking frees the tail */
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
    ps_facts facts; /* of the profile's machine: what has changed since is warned about by name */
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
/* Text or bytes from malloc. The same plan gives the same bytes; YAML -> binary -> YAML is the identity. Errors: those
 * of ps_plan_validate, PS_E_DATA above PS_PLAN_MAX_BYTES, which nobody could read. */
ps_status ps_plan_to_yaml(const ps_plan *plan, char **out, uint64_t *out_size, ps_error *err);
ps_status ps_plan_to_binary(const ps_plan *plan, uint8_t **out, uint64_t *out_size, ps_error *err);
/* The plan's spelling of a budget that is named, or that is a size ("2048MiB" for "2GiB"); what was given where it has none. */
const char *ps_plan_budget_name(const ps_plan *plan, const char *name);
/* Frees plan->arena. NULL is allowed. */
void ps_plan_free(ps_plan *plan);

/* Prove one level safe for `model`, as docs/instruction-set.md says ("What the checker proves"): every operation of the
 * model executed once, in data-flow order, with its weights where it looks for them; no read of a buffer or slot before
 * it is filled or after it is overwritten; waits and queues order every hazard; all inside arenas and budget; kernels fit.
 * Time and memory are linear in the expanded streams. Errors: PS_E_DATA naming level, tier, block and instruction.
 * Pure; any thread. */
ps_status ps_plan_check(const ps_plan *plan, const ps_level *level, const ps_model *model, ps_error *err);
/* That plan and model belong together (hashes, layers, shards): PS_E_MISMATCH otherwise. */
ps_status ps_plan_match_model(const ps_plan *plan, const ps_model *model, ps_error *err);
/* Prove the change from one level to another legal, both checked by themselves: the same plan, KV of `from`'s sequences
 * fits in `to` (as many sequences; to's bucket may be smaller, then the runtime refuses while a sequence is longer), and
 * the resident pieces of the level with the smaller weight arena are the first ones of the other's. Errors: PS_E_DATA
 * naming both levels. Pure; any thread. */
ps_status ps_plan_check_change(const ps_plan *plan, const ps_level *from, const ps_level *to,
                               const ps_model *model, ps_error *err);

/* Bytes of a range of a weight as it lies in a slot or a resident piece; *out_row_bytes (may be NULL): stride of its
 * rows. False: outside the weight, columns not at blocks of its type or at PS_SLOT_ROW_ALIGN bytes, or overflow. */
bool ps_weight_range_bytes(const ps_model *model, const ps_weight_range *range, uint64_t *out_bytes,
                           uint64_t *out_row_bytes);
/* The piece of the level that holds all of `range`; NULL if none. */
const ps_resident *ps_level_find_resident(const ps_level *level, const ps_weight_range *range);
/* The layer whose weight a COPY moves, from the layer of its round. */
uint32_t ps_instr_weight_layer(const ps_plan *plan, const ps_instr *instr, uint32_t layer);
/* Whether an instruction runs in a tile (ps_when). */
bool ps_instr_runs(const ps_instr *instr, uint32_t tile, uint32_t n_tiles);

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
/* By how much what stands at the cursor is predicted later than in the first round and tile of its block, whose period is given in
 * seconds: rounds by whole periods, tiles at equal distances in each. */
double ps_cursor_later_s(const ps_cursor *c, double period_s);
/* Number of instructions in the whole stream. UINT64_MAX on overflow. */
uint64_t ps_program_length(const ps_program *program, uint32_t n_tiles);

const char *ps_queue_name(ps_queue q);
const char *ps_space_name(ps_space s);
const char *ps_placement_name(ps_placement p);

#ifdef __cplusplus
}
#endif
#endif
