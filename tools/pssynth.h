/* Parts of pssynth: the shape of a synthetic model, its tensors, its vocabulary, its random weights. */
#ifndef PS_TOOLS_PSSYNTH_H
#define PS_TOOLS_PSSYNTH_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "core/text.h"
#include "model/dtype.h"

/* Numbers of a shape that an option each can change: X(field, "option", smallest, largest, "help") */
#define SYNTH_NUMBERS(X)                                                                                     \
    X(n_layers, "n-layers", 1, 4096, "Layers")                                                               \
    X(n_embd, "n-embd", 32, 1 << 20, "Width of the residual stream")                                         \
    X(n_ff, "n-ff", 32, 1 << 20, "Width of the dense feed-forward block")                                    \
    X(n_head, "n-head", 1, 4096, "Attention heads")                                                          \
    X(n_head_kv, "n-head-kv", 1, 4096, "Key and value heads")                                                \
    X(head_dim, "head-dim", 2, 4096, "Elements of a head")                                                   \
    X(n_vocab, "n-vocab", 512, 1 << 21, "Tokens of the vocabulary")                                          \
    X(n_ctx, "n-ctx", 16, 1 << 24, "Context length the file states")                                         \
    X(n_expert, "n-expert", 1, 1024, "Experts of a layer")                                                   \
    X(n_expert_used, "n-expert-used", 1, 1024, "Experts used per token")                                     \
    X(n_ff_expert, "n-ff-expert", 32, 1 << 20, "Width of an expert")                                         \
    X(window, "window", 1, 1 << 24, "Sliding window in tokens")

typedef enum synth_arch { SYNTH_LLAMA = 1, SYNTH_QWEN3 = 2, SYNTH_QWEN3MOE = 4, SYNTH_GEMMA3 = 8 } synth_arch;

typedef struct synth_shape {
    const char *preset;
    synth_arch arch;
    uint64_t n_layers, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, n_ctx;
    uint64_t n_expert, n_expert_used, n_ff_expert; /* qwen3moe */
    uint64_t window;                               /* gemma3; llama if not 0 */
    float rope_base, rms_eps;
    float rope_linear; /* linear rope scaling factor, 0: none */
    bool rope_freqs;   /* with the frequency factors of Llama 3.1 */
    bool biases;       /* with biases on every product */
    bool tied;         /* no output matrix of its own */
    ps_dtype type, embed_type, output_type;
} synth_shape;

/* Row of the preset table by name, NULL if unknown; i-th row, NULL past the last. */
const synth_shape *synth_preset(const char *name);
const synth_shape *synth_preset_at(uint32_t i);
const char *synth_arch_name(synth_arch arch);
synth_arch synth_arch_by_name(const char *name); /* 0 if unknown */

typedef enum synth_fill { SYNTH_MATRIX, SYNTH_ONES, SYNTH_SMALL, SYNTH_FREQS } synth_fill;

typedef struct synth_tensor {
    char name[64];
    ps_dtype type;
    uint32_t n_dims;
    uint64_t dims[3];
    uint64_t bytes, offset; /* in the data part */
    synth_fill fill;
    float scale; /* MATRIX: standard deviation of its elements; ONES: their mean */
} synth_tensor;

/* Tensors of a shape in file order, with offsets. *out from malloc. Errors: PS_E_USAGE when the shape does
 * not fit together (naming the option or tensor), PS_E_NOMEM. */
ps_status synth_tensors(const synth_shape *shape, synth_tensor **out, uint64_t *out_n, uint64_t *out_bytes,
                        ps_error *err);

/* Metadata writer: counts the keys it appends to `text`. */
typedef struct synth_keys {
    ps_text *text;
    uint64_t n;
} synth_keys;
void synth_put_u32(ps_text *text, uint32_t v);
void synth_put_u64(ps_text *text, uint64_t v);
void synth_put_str(ps_text *text, const char *s);
void synth_key_u32(synth_keys *k, const char *key, uint32_t v);
void synth_key_f32(synth_keys *k, const char *key, float v);
void synth_key_bool(synth_keys *k, const char *key, bool v);
void synth_key_str(synth_keys *k, const char *key, const char *v);
/* Head of an array of ggml's metadata type `type`; its `count` elements follow. */
void synth_key_array(synth_keys *k, const char *key, uint32_t type, uint64_t count);

/* Tokenizer of n_vocab tokens: byte-level BPE, or SentencePiece for gemma3. With `none` only its absence. */
ps_status synth_vocab(synth_keys *k, synth_arch arch, uint64_t n_vocab, bool none, ps_error *err);

/* Random weights of one tensor, a function of (seed, index, tensor) alone, in pieces. */
typedef struct synth_stream synth_stream;
synth_stream *synth_stream_new(const synth_tensor *tensor, uint64_t seed,
                               uint64_t index); /* NULL: no memory */
void synth_stream_free(synth_stream *s);
/* The next `bytes` of the tensor, whole blocks. */
void synth_stream_next(synth_stream *s, uint8_t *dst, uint64_t bytes);

/* Write the whole file; it replaces `path` only when complete. sparse: the weights are a hole. stop: not 0 as soon as the
 * write is to end, with nothing left behind; NULL: never. */
ps_status synth_write(const char *path, const synth_shape *shape, uint64_t seed, bool sparse, bool no_vocab,
                      const volatile sig_atomic_t *stop, uint64_t *out_bytes, ps_error *err);

#endif
