/* Shared by the files of pstune. */
#ifndef PS_TOOLS_PSTUNE_INTERNAL_H
#define PS_TOOLS_PSTUNE_INTERNAL_H

#include "core/json.h"
#include "core/options.h"
#include "schemas/machine_profile.h"

/* Print an error as one line on stderr; returns the exit code. */
int ps_tune_fail(const ps_error *err);
/* Parse arguments; true: go on. Otherwise *out_exit is the exit code (help, version and man are printed). */
bool ps_tune_parse(const ps_command *command, int argc, char **argv, ps_opt_value *values, const char **args,
                   uint32_t *out_n_args, int *out_exit);

/* What people read of a profile: machine, ceilings, and (all: every, otherwise one line per kernel) points. */
void ps_tune_print(const ps_profile *profile, bool all);
/* The whole profile as JSON fields of the object that is open. */
void ps_tune_json(ps_json *j, const ps_profile *profile);
/* Print finished JSON on stdout; returns the exit code. */
int ps_tune_json_out(ps_json *j);

int ps_tune_measure(int argc, char **argv);
int ps_tune_show(int argc, char **argv);
int ps_tune_record(int argc, char **argv);

#endif
