/* Emitters: one row per target, one file each. What goes in is a document, what comes out is text or bytes. */
#ifndef PS_EMIT_EMIT_H
#define PS_EMIT_EMIT_H

#include <stdint.h>

#include "core/status.h"
#include "schemas/plan.h"
#include "schemas/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, what goes in, ending of the file it makes, "meaning") */
#define PS_EMITTER_LIST(X)                                                                                   \
    X(yaml, PLAN, ".yaml", "the plan as YAML")                                                               \
    X(binary, PLAN, ".bin", "the plan in its binary form")                                                   \
    X(timeline, TRACE, ".timeline.json", "a trace for chrome://tracing and Perfetto")

typedef enum ps_emit_input { PS_EMIT_PLAN, PS_EMIT_TRACE } ps_emit_input;

/* doc: a ps_plan or ps_trace, as the row's input says. Output from malloc. Errors: PS_E_NOMEM. Any thread. */
typedef ps_status (*ps_emit_fn)(const void *doc, char **out, uint64_t *out_size, ps_error *err);

typedef struct ps_emitter {
    const char *name;
    ps_emit_input input;
    const char *ending, *help;
    ps_emit_fn emit;
} ps_emitter;

const ps_emitter *ps_emitters(uint32_t *out_n);
/* NULL if unknown. */
const ps_emitter *ps_emitter_find(const char *name);

ps_status ps_emit_yaml(const void *plan, char **out, uint64_t *out_size, ps_error *err);
ps_status ps_emit_binary(const void *plan, char **out, uint64_t *out_size, ps_error *err);
/* Trace Event Format: a process per step kind (measured, predicted), a thread per queue, complete events ("ph": "X")
 * with ts and dur in microseconds; args hold layer, tile, instruction, and the prediction where it was measured. */
ps_status ps_emit_timeline(const void *trace, char **out, uint64_t *out_size, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
