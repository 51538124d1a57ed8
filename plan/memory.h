/* Memory of a level by simulated allocation: exact sizes, offsets in the arenas, and the resident peak. */
#ifndef PS_PLAN_MEMORY_H
#define PS_PLAN_MEMORY_H

#include <stdint.h>

#include "plan/lower.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What psrun holds besides weights and arena, measured (docs/psplan.md): the program with its libraries, tokenizer tables per
 * token of the vocabulary, a sampler's per token and sequence, and a thread's stack and buffers. The file's header,
 * mapped like the weights, comes on top. */
enum {
    PS_HOST_BASE_BYTES = 12 << 20,
    PS_HOST_BYTES_PER_VOCAB = 32,
    PS_HOST_BYTES_PER_VOCAB_SEQ = 8,
    PS_HOST_BYTES_PER_THREAD = 256 << 10,
};

/* Offsets of a tier's buffers in one space from `base` on: buffers whose contents are never needed at the same time share
 * memory. Largest first, each in the smallest gap that holds it. conflict: see ps_deps_conflicts. max_tokens
 * and max_outputs of the tier are set. *out_end: end of the last buffer. Errors: PS_E_NOMEM, PS_E_INFEASIBLE when
 * sizes overflow. */
ps_status ps_memory_place(const ps_program *program, const bool *conflict, ps_tier *tier, ps_space space,
                          uint64_t base, uint64_t *out_end, ps_error *err);

/* Bytes of a buffer at a tier; UINT64_MAX on overflow. */
uint64_t ps_memory_buffer_bytes(const ps_plan_buffer *buffer, const ps_tier *tier);

/* Most scratch any instruction of that queue needs at this tier. UINT64_MAX on overflow. */
uint64_t ps_memory_scratch(const ps_lower_request *r, const ps_program *program, ps_queue queue);

/* KV homes of every layer from offset 0 of their arenas: the first n_vram layers in VRAM, the others in host memory.
 * out_end: their ends; that of the host UINT64_MAX on overflow. */
void ps_memory_kv(const ps_model *model, uint64_t bucket_tokens, uint64_t tile_tokens, uint32_t n_seqs,
                  uint32_t n_vram, ps_kv_home *kv, uint64_t out_end[PS_SPACE_COUNT]);

/* What psrun itself needs, see above. */
uint64_t ps_memory_program_bytes(const ps_model *model, uint32_t n_threads, uint32_t n_seqs);

#ifdef __cplusplus
}
#endif
#endif
