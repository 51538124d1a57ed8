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

enum { PSRUN_PROMPT_MAX_BYTES = 64 << 20 };

/* Prompt to token ids, from malloc: a conversation by the model's template, or the text as it is. */
ps_status psrun_encode(const psrun *r, const char *text, uint64_t len, int32_t **out, uint64_t *out_n,
                       ps_error *err);
/* What the options say of sampling. */
ps_sampler_params psrun_sampling(const psrun *r);

/* psrun_parallel.c: every line of a file is a prompt, several sequences at once. */
ps_status psrun_parallel(const psrun *r, ps_error *err);
/* psrun_bench.c: prefill and decode on random tokens, medians with quartiles. */
ps_status psrun_bench(const psrun *r, ps_error *err);
/* psrun_teacher.c: logits of every position of a given token sequence. */
ps_status psrun_teacher(const psrun *r, ps_error *err);

#endif
