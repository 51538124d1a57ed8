/* Trace: when each instruction of a step started and ended, measured or simulated. Document
 * "pinstripe-trace", JSON, one step record per step. */
#ifndef PS_SCHEMAS_TRACE_H
#define PS_SCHEMAS_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/hash.h"
#include "core/status.h"
#include "schemas/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PS_TRACE_VERSION = 0, PS_TRACE_MAX_BYTES = 1 << 30 };

typedef enum ps_trace_source { PS_TRACE_SIMULATED, PS_TRACE_MEASURED, PS_TRACE_SOURCE_COUNT } ps_trace_source;

/* One executed instruction. Times are seconds from the start of its step. */
typedef struct ps_trace_event {
    uint64_t index; /* in the expanded stream */
    uint32_t instr; /* in program->instrs */
    uint32_t layer, tile;
    ps_queue queue;
    ps_op op;
    double start_s, end_s;
    double predicted_start_s, predicted_end_s; /* of the plan; equal to start/end when simulated */
} ps_trace_event;

typedef struct ps_trace_step {
    uint32_t level, tier, n_tokens;
    uint64_t kv_len; /* before the step, longest sequence */
    double start_s;  /* from the start of the trace */
    double step_s, predicted_s;
    uint32_t n_events;
    ps_trace_event *events;
} ps_trace_step;

typedef struct ps_trace {
    uint32_t version;
    ps_trace_source source;
    char tool[32], created[32], model_name[96], budget[24];
    uint8_t model_hash[PS_HASH_BYTES], profile_hash[PS_HASH_BYTES];
    char weights
        [160]; /* how weights are held in host memory, and why: "page-locked slabs (17.3 GB, read at 5.1 GB/s)" */
    uint32_t n_steps;
    ps_trace_step *steps;
    void *arena;
} ps_trace;

ps_status ps_trace_read(const char *path, ps_trace **out, ps_error *err);
ps_status ps_trace_parse(const char *text, uint64_t size, const char *label, ps_trace **out, ps_error *err);
ps_status ps_trace_to_json(const ps_trace *trace, char **out, uint64_t *out_size, ps_error *err);
ps_status ps_trace_write(const ps_trace *trace, const char *path, ps_error *err);
void ps_trace_free(ps_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
