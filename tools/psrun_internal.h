/* What the modes of psrun share. */
#ifndef PS_TOOLS_PSRUN_INTERNAL_H
#define PS_TOOLS_PSRUN_INTERNAL_H

#include "core/json.h"
#include "core/options.h"
#include "runtime-min/pinstripe.h"

typedef struct psrun_vram psrun_vram;

typedef struct psrun {
    const ps_command *command;
    const ps_opt_value *values;
    ps_engine *engine;
    psrun_vram *vram;
    char *
        input; /* prompt, lines of prompts or token ids, read before the engine is opened; a NUL follows. NULL: --bench */
    uint64_t input_bytes;
} psrun;

static inline const ps_opt_value *psrun_option(const psrun *r, const char *name) {
    return ps_options_get(r->command, r->values, name);
}

enum { PSRUN_PROMPT_MAX_BYTES = 64 << 20, PSRUN_IDS_MAX_BYTES = 1 << 30 };

/* Prompt to token ids, from malloc: a conversation by the model's template, or the text as it is. */
ps_status psrun_encode(const psrun *r, const char *text, uint64_t len, int32_t **out, uint64_t *out_n,
                       ps_error *err);
/* What the options say of sampling. */
ps_sampler_params psrun_sampling(const psrun *r);

/* ps_engine_eval, then a line for each change of level. */
ps_status psrun_eval(const psrun *r, const ps_eval_item *items, uint32_t n_items, ps_error *err);

/* psrun_vram.c: the meter, levels by signal and by what others leave.
 * Block SIGUSR1 and SIGUSR2, which the meter's thread takes: before any thread is there. */
void psrun_vram_block_signals(void);
/* Start the meter's thread of an open engine, as the options say. */
ps_status psrun_vram_start(psrun *r, ps_error *err);
/* Read the meter rarely from now on: speed is measured. */
void psrun_vram_calm(const psrun *r);
/* Say what changed since the last call; between evaluations. */
void psrun_vram_note(const psrun *r);
/* The peak, and a warning if it was above the budget. */
void psrun_vram_end(const psrun *r);
/* Device, memory and what went over the bus, as fields of the object that is open. */
void psrun_vram_json(const psrun *r, ps_json *j);
/* End the thread; before the engine is closed. */
void psrun_vram_free(psrun *r);
/* For tests: the number in the file `path`, what others take of an emulated device. */
uint64_t psrun_emulated_others(void *path);

/* psrun_parallel.c: every line of a file is a prompt, several sequences at once. */
ps_status psrun_parallel(const psrun *r, ps_error *err);
/* psrun.c: whose times the plan predicts: "this machine", "another machine" or "synthetic". */
const char *psrun_predictions_of(const ps_engine_info *info);
/* psrun_bench.c: prefill and decode on random tokens, medians with quartiles. */
ps_status psrun_bench(const psrun *r, ps_error *err);
/* psrun_teacher.c: logits of every position of a given token sequence. */
ps_status psrun_teacher(const psrun *r, ps_error *err);

#endif
