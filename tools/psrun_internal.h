/* What the modes of psrun share. */
#ifndef PS_TOOLS_PSRUN_INTERNAL_H
#define PS_TOOLS_PSRUN_INTERNAL_H

#include "core/options.h"
#include "runtime-min/pinstripe.h"

typedef struct psrun {
    const ps_command *command;
    const ps_opt_value *values;
    ps_engine *engine;
} psrun;

static inline const ps_opt_value *psrun_option(const psrun *r, const char *name) {
    return ps_options_get(r->command, r->values, name);
}

/* psrun_bench.c: prefill and decode on random tokens, medians with quartiles. */
ps_status psrun_bench(const psrun *r, ps_error *err);
/* psrun_teacher.c: logits of every position of a given token sequence. */
ps_status psrun_teacher(const psrun *r, ps_error *err);

#endif
