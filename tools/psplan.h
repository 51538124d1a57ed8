/* Inside of psplan: one function per command, and what they share. */
#ifndef PS_TOOLS_PSPLAN_H
#define PS_TOOLS_PSPLAN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "cli.h"
#include "core/json.h"
#include "core/options.h"
#include "core/progress.h"
#include "core/status.h"
#include "core/text.h"
#include "plan/planner.h"

/* argv[0] is the command's name. Each returns the exit code. */
int psplan_plan(int argc, char **argv);
int psplan_inspect(int argc, char **argv);
int psplan_emit(int argc, char **argv);
int psplan_check(int argc, char **argv);
int psplan_whatif(int argc, char **argv);

/* Parse; true to go on. False: help, man page or version was printed or a usage error reported, *out_exit is set. */
bool psplan_parse(const ps_command *c, int argc, char **argv, ps_opt_value *values, const char **args,
                  uint32_t *out_n_args, int *out_exit);
int psplan_finish(ps_status status, const ps_error *err); /* ps_cli_finish */
/* Print text from malloc and free it; NULL: out of memory. */
ps_status psplan_print(char *text, ps_error *err);

/* A model file opened for planning. Zero-initialise; psplan_model_close frees what is there. */
typedef struct psplan_model {
    ps_gguf *gguf;
    ps_model *model;
} psplan_model;
ps_status psplan_model_open(const char *path, psplan_model *m, ps_error *err);
void psplan_model_close(psplan_model *m);

/* Refuse an output path that cannot be replaced by a file, or that is one of the inputs (NULL: none). */
ps_status psplan_check_output(const char *path, const char *input, const char *other_input, ps_error *err);

/* Read a profile; path NULL: the default place ($XDG_DATA_HOME/pinstripe/profile.yaml, or ~/.local/share/...). */
ps_status psplan_profile_read(const char *path, ps_profile **out, ps_error *err);

/* Items of a comma-separated list, each copied into out[i] (23 characters at most). */
enum { PSPLAN_MAX_LIST = 32, PSPLAN_ITEM_BYTES = 72 };
ps_status psplan_split_list(const char *option, const char *text,
                            char out[PSPLAN_MAX_LIST][PSPLAN_ITEM_BYTES], uint32_t *out_n, ps_error *err);
/* gpu, direct, static, dynamic or split. Errors: PS_E_USAGE, as of all parsers here. */
ps_status psplan_parse_family(const char *text, ps_family *out, ps_error *err);

/* Tokens of a sequence (0: as usual), and how many sequences. */
typedef struct psplan_workload {
    uint32_t prompt, output, parallel;
} psplan_workload;
/* --workload: "prompt=1024,output=256,parallel=1", in any order, some of them or all, each once; and --parallel, which must not
 * say otherwise. */
ps_status psplan_parse_workload(const ps_opt_value *workload, const ps_opt_value *parallel,
                                psplan_workload *out, ps_error *err);

/* Budgets, each size once; bytes 0: without a GPU. Zero-initialise. */
typedef struct psplan_budgets {
    char name[PSPLAN_MAX_LIST][24];
    uint64_t bytes[PSPLAN_MAX_LIST];
    bool spelled[PSPLAN_MAX_LIST]; /* the name is as given, not made from a range */
    uint32_t n;
    bool automatic; /* and those where the schedule changes */
} psplan_budgets;
/* Add the budgets of a list: sizes, ranges as 2GiB-8GiB or 2GiB-8GiB/1GiB, auto, host. */
ps_status psplan_parse_budgets(const char *text, psplan_budgets *b, ps_error *err);
/* Add the budgets at which the schedule of that level changes (ps_plan_auto_budgets). */
ps_status psplan_auto_budgets(const ps_plan_request *like, const ps_level_request *level, psplan_budgets *b,
                              ps_error *err);

/* Threads of a level where none are asked for: all that the profile allows, with a GPU from eight on one less. */
uint32_t psplan_default_threads(const ps_profile *profile, uint64_t budget_bytes);

/* Threads to plan on: as many as this process may use. */
uint32_t psplan_workers(void);

/* "12.3 ms": three significant digits, for people. buf holds 32; returns buf. */
char *psplan_time(double s, char *buf);

/* A line on standard error while planning, from its second second on; none where that is no terminal. One thread at a time, but for the
 * one that draws. */
typedef struct psplan_progress {
    ps_progress line;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    bool on, ended;
    double from, to, done_frac;
    const char *label;
} psplan_progress;
void psplan_progress_start(psplan_progress *p);
/* What is told from now on is of this part of all. */
void psplan_progress_part(psplan_progress *p, double from, double to);
/* For ps_plan_request: ctx is a psplan_progress. */
void psplan_progress_tell(void *ctx, double done_frac, const char *label);
/* Clear the line; what was not started or has ended stays so. */
void psplan_progress_end(psplan_progress *p);

/* What the plan command shows. */
typedef struct psplan_view {
    const ps_plan *plan;
    const ps_model *model;
    const ps_profile *profile;
    const ps_cost_model *cost;
    const char *model_path, *output_path; /* output NULL: none was written */
    const ps_plan_report *report;         /* NULL: none */
} psplan_view;
/* Bytes of the model's weights that a step is expected to find elsewhere than in VRAM: copied, read by the GPU from host memory,
 * read by the CPU. Of experts those that its tokens are expected to select; copies bring what they bring. */
typedef struct psplan_found {
    double copied, direct, host;
} psplan_found;
psplan_found psplan_find_weights(const psplan_view *v, const ps_level *level, const ps_tier *t);
/* Of a level's tiers: busy queues and losses (plan/loss.h), as a table and as members of a tier's object. */
void psplan_loss_table(const psplan_view *v, const ps_level *l, ps_text *t);
void psplan_loss_json(const psplan_view *v, const ps_level *l, const ps_tier *tier, ps_json *j);
/* The level's candidates: families and what was found. */
void psplan_candidates(const psplan_view *v, uint32_t level, ps_text *t);
void psplan_table(const psplan_view *v, ps_text *t);
void psplan_json(const psplan_view *v, ps_json *j);
/* Where the time goes and why. Errors: PS_E_NOMEM. */
ps_status psplan_explain(const psplan_view *v, ps_text *t, ps_error *err);
ps_status psplan_explain_json(const psplan_view *v, ps_json *j, ps_error *err);

#endif
