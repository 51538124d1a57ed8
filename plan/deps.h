/* What must wait for what in a program, and which buffers may therefore share memory. */
#ifndef PS_PLAN_DEPS_H
#define PS_PLAN_DEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "schemas/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fill n_waits and wait of every instruction of `program` from its buffers, KV caches and scratch: all true
 * dependences (read after write, write after read, write after write) of every round of every block, reduced
 * transitively. uses_scratch: [program->n_instrs]; scratch is one range, so instructions that use it exclude each
 * other. An instruction's waits are those of the block's first and of its later rounds together. Errors: PS_E_NOMEM, PS_E_INTERNAL (more than PS_MAX_WAITS, or a read of what nothing wrote). */
ps_status ps_deps_waits(ps_program *program, const bool *uses_scratch, ps_error *err);

/* conflict: [n_buffers * n_buffers], set true where two buffers must not overlap: unless the waits order every
 * use of what one holds before the other is first written, for every pair of their contents. A buffer that
 * GATHER reads lives to the end of the program. Errors: as above. */
ps_status ps_deps_conflicts(const ps_program *program, bool *conflict, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
