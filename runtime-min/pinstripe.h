/* Pinstripe's runtime: execute a plan on a model.
 *
 *   engine    a model file, a plan and one level of it: weights, programs, thread team, arena. It owns
 *             everything it opened. One call at a time; sessions of an engine count as the engine.
 *   session   one timeline: the KV cache of one sequence and its sampler. Belongs to an engine, which must
 *             outlive it.
 *
 * Nothing here prints, exits or keeps globals. Every fallible call returns a ps_status and fills a ps_error
 * (NULL is allowed). After the engine is open nothing is allocated per token, except where a trace is on. */
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
    const char *budget;     /* name of a budget of the plan; NULL: its first */
    uint64_t context;       /* tokens a session must hold; 0: the plan's largest bucket */
    uint32_t n_sessions;    /* sessions open at once; 0: 1 */
    uint32_t n_threads;     /* 0: as many as plan and machine allow */
    bool verify;            /* run every instruction also through the reference kernels (slow) */
} ps_engine_options;

typedef struct ps_engine_info {
    const char *model_name, *arch, *budget, *cpu_level;
    const char *weights; /* how weights are held in host memory, for example "mapped file" */
    uint32_t n_vocab, n_layers, n_threads, n_sessions;
    uint64_t context;         /* tokens a session can hold */
    uint32_t max_step_tokens; /* longest step of a program; longer evaluations become several steps */
    uint64_t weight_bytes, arena_bytes;
    uint64_t load_ns;
    bool other_machine;     /* the plan's profile is of another machine: predictions are not this one's */
    bool synthetic_profile; /* the plan was made from a profile that nobody measured */
} ps_engine_info;

/* Open, check and load. The level is the smallest of the budget that holds context and sessions, with the
 * most threads this process may use. Errors: PS_E_NOINPUT, PS_E_DATA (malformed model or plan, or a plan
 * that the checker refuses), PS_E_UNSUPPORTED, PS_E_MISMATCH (plan of another model or kernel set),
 * PS_E_USAGE (no such budget, context or threads in the plan), PS_E_NOMEM, PS_E_OS. */
ps_status ps_engine_open(const ps_engine_options *options, ps_engine **out, ps_error *err);
/* Sessions must be freed before. NULL is allowed. */
void ps_engine_close(ps_engine *engine);
/* Valid while the engine is open. */
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
} ps_engine_stats;
void ps_engine_get_stats(const ps_engine *engine, ps_engine_stats *out);

/* Record the steps from now on (see docs/trace-format.md). */
ps_status ps_engine_trace_start(ps_engine *engine, ps_error *err);
/* Stop recording and write the trace to a file, atomically. */
ps_status ps_engine_trace_write(ps_engine *engine, const char *path, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
