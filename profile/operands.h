/* Operands for one kernel at one point of a curve: weights, activations, KV and everything else an instruction
 * takes, with random content, in enough copies that caches are as cold as in a run. */
#ifndef PS_PROFILE_OPERANDS_H
#define PS_PROFILE_OPERANDS_H

#include "kernels/kernel.h"
#include "schemas/machine_profile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_operands ps_operands;

/* cold_bytes: memory that weights cycle through: copies of a matrix are laid one behind the other in it, each call
 * takes the next, so that by the time one comes again that much has been read in between, as in a run of a model of
 * that size. Raised where a single operand needs more.
 * model: NULL, or whose conventions (rope, activation, routing, head size) operations follow; borrowed. */
ps_status ps_operands_new(uint64_t cold_bytes, const ps_model *model, ps_operands **out, ps_error *err);
void ps_operands_free(ps_operands *o);

/* Lay out operands of `kernel` at `point` for a team of point->n_threads. Valid until the next call.
 * Errors: PS_E_NOMEM, PS_E_UNSUPPORTED (an operation without operands here). One thread. */
ps_status ps_operands_set(ps_operands *o, const ps_kernel *kernel, const ps_profile_point *point,
                          ps_error *err);

/* The stretches of memory that the arguments point into (those of the sequence too), for a device that has copies of them:
 * weights, activations, KV, token ids and the like, scratch. data may be NULL and bytes 0. Valid until the next set; weights
 * stay where they are until `moving` (ps_operands_watch) says otherwise. */
enum {
    PS_OPERAND_WEIGHTS,
    PS_OPERAND_ACTS,
    PS_OPERAND_KV,
    PS_OPERAND_MISC,
    PS_OPERAND_SCRATCH,
    PS_OPERAND_AREAS
};
typedef struct ps_operand_area {
    uint8_t *data;
    uint64_t bytes;   /* that this point uses */
    uint64_t inputs;  /* of these, from the first: what has content that a kernel reads */
    uint64_t room;    /* bytes that there are */
    uint64_t version; /* WEIGHTS and KV: another one where content that was there before is another */
} ps_operand_area;
void ps_operands_areas(const ps_operands *o, ps_operand_area out[PS_OPERAND_AREAS]);
/* moving(ctx, data): called before the weights' memory is given back, by whatever call does that. One watcher. */
void ps_operands_watch(ps_operands *o, void (*moving)(void *ctx, uint8_t *data), void *ctx);

/* n_calls of this point were made, from call 0 on: the next point's first weights and KV are those behind them, which were
 * read longest ago. Without it each point begins where the one before began. */
void ps_operands_used(ps_operands *o, uint64_t n_calls);

/* Arguments of call number `i`. span: room for the sequence of that call, as long as *a is used. Any thread. */
void ps_operands_args(const ps_operands *o, uint64_t i, ps_kargs *a, ps_seq_span *span);

/* Hold the kernel against the double-precision reference on operands of a small shape, run by `run` (call 0 of what
 * ps_operands_args gives). Errors: PS_E_INTERNAL naming kernel and difference; those of ps_operands_set. */
ps_status ps_operands_verify(ps_operands *o, const ps_kernel *kernel, uint32_t n_threads,
                             void (*run)(void *ctx, const ps_kernel *kernel), void *ctx, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
