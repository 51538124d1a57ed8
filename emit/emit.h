/* Emitters: one row per target, one file each. What goes in is a plan or a trace, what comes out is text or bytes. */
#ifndef PS_EMIT_EMIT_H
#define PS_EMIT_EMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "schemas/plan.h"
#include "schemas/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(id, "name", what goes in, needs the model?, may take a trace?, ending of the file it makes, "meaning") */
#define PS_EMITTER_LIST(X)                                                                                   \
    X(yaml, "yaml", PLAN, 0, 0, ".yaml", "the plan as YAML")                                                 \
    X(binary, "binary", PLAN, 0, 0, ".bin", "the plan in its binary form")                                   \
    X(timeline, "timeline", TRACE, 0, 0, ".timeline.json", "a trace for chrome://tracing and Perfetto")      \
    X(llama_cpp, "llama.cpp", PLAN, 1, 0, ".llama.cpp.args",                                                 \
      "flags that place a level's whole resident tensors likewise; needs MODEL.gguf")                        \
    X(html, "html", PLAN, 0, 1, ".html",                                                                     \
      "a report of a level: schedule, memory, bounds; with --trace as measured")

typedef enum ps_emit_input { PS_EMIT_PLAN, PS_EMIT_TRACE } ps_emit_input;

/* What an emitter works on, all borrowed; NULL is what its row does not ask for. */
typedef struct ps_emit_source {
    const ps_plan *plan;
    const ps_trace *trace; /* html: may be NULL */
    const ps_model *model; /* of the plan: ps_plan_match_model and ps_plan_check have passed */
    uint32_t level;        /* of the plan, for emitters of one level */
} ps_emit_source;

/* Output from malloc. Errors: PS_E_NOMEM, and those of the emitter. Any thread. */
typedef ps_status (*ps_emit_fn)(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err);

typedef struct ps_emitter {
    const char *name;
    ps_emit_input input;
    bool needs_model, takes_trace; /* takes_trace: beside a plan */
    const char *ending, *help;
    ps_emit_fn emit;
} ps_emitter;

const ps_emitter *ps_emitters(uint32_t *out_n);
/* NULL if unknown. */
const ps_emitter *ps_emitter_find(const char *name);

ps_status ps_emit_yaml(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err);
ps_status ps_emit_binary(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err);
/* Trace Event Format: a process per step kind (measured, predicted), a thread per queue, complete events ("ph": "X")
 * with ts and dur in microseconds; args hold layer, tile, instruction, and the prediction where it was measured. */
ps_status ps_emit_timeline(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err);
/* Lines of flags, quoted for a shell and for xargs, and lines of comment that begin with '#': what the flags place, and
 * what of the level they cannot say. The patterns are tried on the file's tensor names before they are given out.
 * Errors: PS_E_UNSUPPORTED where llama.cpp cannot hold the model or no pattern tells its tensors apart. */
ps_status ps_emit_llama_cpp(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err);
/* One page, no scripts, nothing from elsewhere, text escaped, below 1 MB: tiers with bounds, map of VRAM, placements by layer, lanes
 * of a short and a long step. trace (may be NULL): of this plan; then those lanes and tables are the trace's, predicted against
 * measured. Errors: PS_E_MISMATCH (another plan's trace). */
ps_status ps_emit_html(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
