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

/* All kernels of this program, from malloc, the caller frees it. Errors: PS_E_NOMEM. */
ps_status ps_tune_catalogue(ps_kernel_spec **out, uint32_t *out_n, ps_error *err);
/* A kernel of the profile's catalogue; NULL if it is not there. */
const ps_kernel_spec *ps_tune_kernel(const ps_profile *profile, uint32_t id);

/* "12.3 us" and the like; returns buf. */
const char *ps_tune_time_text(double s, char buf[24]);
/* "4096x14336", "4608" of what has no rows, "32x128/8 kv 1024"; returns buf. */
enum { PS_TUNE_SHAPE = 96 };
const char *ps_tune_shape_text(const ps_profile_point *p, char buf[PS_TUNE_SHAPE]);
/* The same for any unit: "12.30 GB/s". */
const char *ps_tune_value_text(double value, ps_unit unit, char buf[24]);

/* How many times slower something is beside something else: the median of n ratios. */
typedef struct ps_tune_slowdown {
    char what[64];
    double times;
    uint32_t n;
} ps_tune_slowdown;
/* Of kernels by neighbour and threads, then of bus and DRAM; from malloc, the caller frees it. False: out of memory. */
bool ps_tune_slowdowns(const ps_profile *profile, ps_tune_slowdown **out, uint32_t *out_n);

/* Rooflines, copy rates by size and slowdowns as one SVG picture, written atomically. Errors: PS_E_NOMEM and those of
 * ps_file_write_atomic. */
ps_status ps_tune_svg(const ps_profile *profile, const char *path, ps_error *err);

/* What people read of a profile: machine, ceilings, and (all: every, otherwise one line per kernel) points. */
void ps_tune_print(const ps_profile *profile, bool all);
/* The whole profile as JSON fields of the object that is open. */
void ps_tune_json(ps_json *j, const ps_profile *profile);
/* Print finished JSON on stdout; returns the exit code. */
int ps_tune_json_out(ps_json *j);

int ps_tune_measure(int argc, char **argv);
int ps_tune_show(int argc, char **argv);
/* Record this machine in a new folder; returns the exit code. */
int ps_tune_gather(const char *folder);
int ps_tune_check(int argc, char **argv);
int ps_tune_diff(int argc, char **argv);

#endif
