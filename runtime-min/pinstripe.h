/* Pinstripe's runtime: execute a plan on a model.
 *
 *   engine    a model file, a plan and one level of it at a time: weights, programs, thread team, arenas, the GPU. It
 *             owns everything it opened. One call at a time; sessions of an engine count as the engine. Calls that say
 *             so may come from any thread meanwhile.
 *   session   one timeline: the KV cache of one sequence and its sampler. Belongs to an engine, which must
 *             outlive it.
 *
 * Nothing here prints, exits or keeps globals. Every fallible call returns a ps_status and fills a ps_error
 * (NULL is allowed). After the engine is open nothing is allocated per token, except where a trace is on and where a
 * step of a new shape becomes a graph. */
#ifndef PINSTRIPE_H
#define PINSTRIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "kernels/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_engine ps_engine;
typedef struct ps_session ps_session;

typedef struct ps_engine_options {
    const char *model_path; /* GGUF; any member of a split */
    const char *plan_path;  /* YAML or binary */
    /* Name of a budget of the plan, or its size in another spelling. NULL: of those with a level for the threads, sessions and context
     * below, the largest that the GPU holds beside what other processes take; without a GPU the plan's budget without VRAM. */
    const char *budget;
    /* Not 0: no budget above it. Instead of one that is, or of NULL, the largest with VRAM that is not. Where other processes leave less of
     * it, the largest that fits in what they leave; PS_E_INFEASIBLE where none does. */
    uint64_t vram_limit_bytes;
    /* Tokens a session must hold. 0: budgets with a GPU begin with the plan's smallest bucket and go on to larger ones as
     * sessions grow, others take the largest. */
    uint64_t context;
    uint32_t n_sessions; /* sessions open at once; 0: 1 */
    uint32_t n_threads;  /* the plan must have a level for it; 0: as many as plan and machine allow */
    bool verify;         /* run every instruction also through the reference kernels (slow) */
    /* "auto" (NULL): a GPU if the level needs one; "cuda": that or nothing; "emulated": host memory and threads stand in
     * for a GPU, for tests; "none". */
    const char *device;
    uint64_t emulated_bytes,
        emulated_base_bytes;     /* VRAM of an emulated device (0: 8 GiB), and what its context takes */
    const char *hold;            /* how to hold weights in host memory, by name; NULL: the best that works */
    uint64_t lock_limit_bytes;   /* page-lock at most this much for weights; 0: what the machine allows */
    uint64_t memory_limit_bytes; /* host memory for weights; 0: what is free */
    bool fixed_level;            /* stay in the level chosen at load: nothing is set aside for changes */
    /* For tests: what other processes take of an emulated device, asked at each reading of its meter and when VRAM is
     * mapped; any thread. NULL: nothing. */
    uint64_t (*emulated_others)(void *ctx);
    void *emulated_others_ctx;
    /* Asked before every call to the driver, by its name: true makes it fail. For tests; NULL: never. */
    bool (*device_fault)(void *ctx, const char *call);
    void *device_fault_ctx;
} ps_engine_options;

typedef struct ps_engine_info {
    const char *model_name, *arch, *budget, *cpu_level;
    const char *weights;      /* how weights are held in host memory, for example "mapped file" */
    const char *weights_why;  /* the same in a sentence, with the reason */
    const char *level_why;    /* of the level that the engine was opened with: why that one */
    const char *device;       /* name of the GPU; "none" */
    const char *meter;        /* how device memory is metered; "none" */
    uint64_t budget_bytes;    /* of the level, 0 without a GPU */
    uint64_t vram_base_bytes; /* metered before the arenas were made: context, modules, libraries */
    uint64_t vram_work_bytes, vram_weight_bytes; /* the level's arenas */
    uint32_t n_vocab, n_layers, n_threads, n_sessions;
    uint32_t level_seqs; /* sequences of the level */
    uint64_t context;    /* tokens a session can hold: the largest bucket that the engine can change to */
    uint64_t bucket;     /* tokens it can hold in the level it is in */
    uint32_t max_step_tokens; /* longest step of a program; longer evaluations become several steps */
    uint64_t weight_bytes, arena_bytes;
    uint64_t load_ns;
    bool other_machine; /* the plan's profile is of another machine: predictions are not this one's */
    /* What of the profile's machine, and of its GPU where one takes part, is not as it is here, by name; "" : nothing. Without
     * other_machine it is this machine as it was before. */
    const char *differences;
    bool synthetic_profile; /* the plan was made from a profile that nobody measured */
} ps_engine_info;

/* Open, check and load. The level is the smallest of the budget that holds context and sessions, with the
 * most threads this process may use. Errors: PS_E_NOINPUT, PS_E_DATA (malformed model or plan, or a plan
 * that the checker refuses), PS_E_UNSUPPORTED, PS_E_MISMATCH (plan of another model or kernel set),
 * PS_E_USAGE (no such budget, context or threads in the plan), PS_E_UNAVAILABLE (no GPU where the level needs one),
 * PS_E_INFEASIBLE (the meter shows more than the budget), PS_E_NOMEM, PS_E_OS. */
ps_status ps_engine_open(const ps_engine_options *options, ps_engine **out, ps_error *err);
/* Sessions must be freed before. NULL is allowed. */
void ps_engine_close(ps_engine *engine);
/* Valid while the engine is open; what belongs to the level changes with it. */
const ps_engine_info *ps_engine_get_info(const ps_engine *engine);

/* Text to token ids. add_special: begin-of-text as the model wants it; parse_special: names of special
 * tokens in the text become those tokens (never for text of strangers). On PS_OK the caller frees
 * *out_tokens (from malloc, never NULL). */
ps_status ps_engine_encode(const ps_engine *engine, const char *text, uint64_t len, bool add_special,
                           bool parse_special, int32_t **out_tokens, uint64_t *out_n, ps_error *err);
/* A conversation as the model's own chat template wants it. roles[i] is "system", "user" or "assistant"; an
 * opening for the assistant's next turn is appended. PS_E_UNSUPPORTED if the model has no template or one
 * that is not known. Otherwise as ps_engine_encode. */
ps_status ps_engine_encode_chat(const ps_engine *engine, const char *const *roles,
                                const char *const *contents, uint32_t n_messages, int32_t **out_tokens,
                                uint64_t *out_n, ps_error *err);
/* Bytes of a token as they stand in running text: part of a UTF-8 character at times, none for control
 * tokens. Writes at most `capacity` bytes; returns how many the token has. */
uint32_t ps_engine_piece(const ps_engine *engine, int32_t token, char *out, uint32_t capacity);
/* True if generation ends with this token. */
bool ps_engine_is_end(const ps_engine *engine, int32_t token);

/* PS_E_UNAVAILABLE when n_sessions are open already. */
ps_status ps_session_new(ps_engine *engine, const ps_sampler_params *sampling, ps_session **out,
                         ps_error *err);
void ps_session_free(ps_session *session);
/* Tokens in the KV cache. */
uint64_t ps_session_length(const ps_session *session);
/* Forget all tokens; the sampler goes on. */
void ps_session_reset(ps_session *session);

typedef struct ps_eval_item {
    ps_session *session;
    const int32_t *tokens; /* new tokens of this session, at least one */
    uint32_t n_tokens;
    float *logits;    /* NULL, or [n_vocab] for the last token, or [n_tokens x n_vocab] */
    bool all_logits;  /* logits holds a row for every token */
    int32_t *sampled; /* NULL, or the token the session's sampler picks after the last one */
} ps_eval_item;

/* Evaluate new tokens of several sessions together, in as few steps as the plan's tiers allow. A session may
 * appear once. Errors: PS_E_USAGE (token out of range, context full: nothing has been evaluated),
 * PS_E_MISMATCH (verify mode: an instruction differs from its reference), PS_E_DATA (a token is to be sampled from logits that
 * are not finite), PS_E_NOMEM (tracing). */
ps_status ps_engine_eval(ps_engine *engine, const ps_eval_item *items, uint32_t n_items, ps_error *err);

typedef struct ps_engine_stats {
    uint64_t n_steps, n_tokens; /* evaluated so far */
    uint64_t step_ns;           /* time in steps */
    double predicted_s;         /* what the plan predicted for those steps */
    uint64_t n_verified;        /* instructions compared in verify mode */
    double worst_verify;        /* largest error as a fraction of the kernel's tolerance */
    uint64_t vram_peak_bytes;   /* the meter's highest reading at load and at changes of level */
    uint64_t copied_bytes;      /* weights copied to the GPU in steps */
    uint64_t direct_bytes;      /* weights that the GPU read from host memory in steps, apart from experts */
    uint64_t n_graph_steps;     /* steps that were launched as a graph */
    uint32_t n_graphs;          /* graphs kept now: a long step is several, one behind the other */
    uint32_t n_graph_shapes;    /* shapes of steps that they serve */
    uint32_t n_changes;         /* changes of level */
    uint32_t n_refused;         /* requested changes that failed for want of VRAM; the engine went on */
    uint64_t change_ns;         /* time in changes, failed ones included */
    uint32_t n_abandoned;       /* steps given up for a change and run again */
} ps_engine_stats;
void ps_engine_get_stats(const ps_engine *engine, ps_engine_stats *out);

/* Change to the level of another budget of the plan (by name or size) that holds the longest session, with the same sequences and
 * threads. KV is kept; the next evaluation goes on where the last one ended. Errors: PS_E_USAGE (no such level, or none that
 * can be changed to), PS_E_INFEASIBLE (the meter), PS_E_NOMEM (VRAM taken by others), PS_E_OS; after the last three the
 * engine is in the smallest level it could get, or unusable if the error says so. */
ps_status ps_engine_set_budget(ps_engine *engine, const char *budget, ps_error *err);
/* Ask for the level with the largest budget of at most `bytes` (or the smallest there is): an evaluation in progress stops
 * at its next instruction, changes the level, and runs the abandoned step again; otherwise the next evaluation changes first.
 * A change that fails but leaves the engine usable is counted as refused, and the evaluation goes on.
 * Any thread, and signal handlers. */
void ps_engine_request_bytes(ps_engine *engine, uint64_t bytes);
/* Bytes of the next smaller (-1) or larger (1) budget that can be changed to, seen from the one last asked for; 0: there is
 * none. Asks for nothing. Any thread, and signal handlers. */
uint64_t ps_engine_next_budget(const ps_engine *engine, int direction);
/* Device memory of this process as the meter has it, and of the whole device. Any thread. PS_E_UNAVAILABLE: no GPU takes part. */
ps_status ps_engine_vram_used(const ps_engine *engine, uint64_t *out_process, uint64_t *out_device,
                              uint64_t *out_device_total, ps_error *err);

/* Record the steps from now on (see docs/trace-format.md). */
ps_status ps_engine_trace_start(ps_engine *engine, ps_error *err);
/* Stop recording and write the trace to a file, atomically. */
ps_status ps_engine_trace_write(ps_engine *engine, const char *path, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
