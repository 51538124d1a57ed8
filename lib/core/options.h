/* Command-line options from one table: the same rows drive parser, --help and man page. */
#ifndef PS_CORE_OPTIONS_H
#define PS_CORE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* FLAG takes no value. U64, F64, SIZE ("2GiB", "512MB", "4096": bytes; suffixes K M G T are powers of 1024 with
 * or without i and B) are range-checked. TEXT is any string. */
typedef enum ps_opt_type { PS_OPT_FLAG, PS_OPT_TEXT, PS_OPT_U64, PS_OPT_F64, PS_OPT_SIZE } ps_opt_type;

typedef struct ps_option {
    const char *name; /* long name without dashes */
    char short_name;  /* 0 if none */
    ps_opt_type type;
    const char *metavar; /* "FILE"; NULL for flags */
    const char *def;     /* default as text, NULL: not set */
    double min, max;     /* of numbers and sizes; both 0: unbounded */
    const char *help;    /* one sentence */
} ps_option;

typedef struct ps_opt_value {
    bool set;         /* given on the command line */
    const char *text; /* as given or the default; NULL if neither */
    uint64_t u64;     /* U64 and SIZE; FLAG: 1 if given */
    double f64;       /* F64, U64 and SIZE */
} ps_opt_value;

typedef struct ps_command {
    const char *name;     /* "psplan" or "psplan inspect" */
    const char *synopsis; /* "[OPTIONS] MODEL.gguf" */
    const char *summary;  /* one line */
    const char
        *details; /* text for --help and man page, filled; lines that begin with a space stay. NULL if none */
    const char *examples; /* lines, NULL if none */
    const ps_option *options;
    uint32_t n_options;
    uint32_t min_args, max_args; /* positional arguments */
} ps_command;

/* Parse argv[1..]. values: one per row of the table. positional: room for command->max_args pointers.
 * "--" ends options; "--name=value", "--name value", "-n value" and "-nvalue" are understood; no
 * abbreviations; with --help, --man or --version arguments may be missing. Errors: PS_E_USAGE naming the
 * option. Allocates nothing. */
ps_status ps_options_parse(const ps_command *command, int argc, char *const *argv, ps_opt_value *values,
                           const char **positional, uint32_t *out_n_positional, ps_error *err);
/* Value of an option by name; the name must be in the table (an assert otherwise). */
const ps_opt_value *ps_options_get(const ps_command *command, const ps_opt_value *values, const char *name);
/* Help, in lines of 80 columns but for examples and synopsis, and man page (troff, section 1): text from malloc, or NULL when out
 * of memory. */
char *ps_options_help(const ps_command *command);
char *ps_options_man(const ps_command *command);
/* "2GiB" and the like to bytes. False if malformed or above UINT64_MAX. */
bool ps_parse_size(const char *text, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif
