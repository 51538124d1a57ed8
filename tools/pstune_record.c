/* pstune record: this machine as a folder that tests can open, to contribute it. */
#include "machine/topology.h"
#include "pstune_internal.h"

static const ps_option options[] = {
    {"help", 'h', PS_OPT_FLAG, NULL, NULL, 0, 0, "Show this help."},
    {"man", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print the man page's source."},
    {"version", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Show the version."},
};

static const ps_command command = {
    .name = "pstune record",
    .synopsis = "[OPTIONS] FOLDER",
    .summary = "Record this machine's topology and limits in a new folder.",
    .details = "For a bug report or for fixtures/machines: hwloc's description, CPU and memory limits, and\n"
               "nothing else of the system.",
    .examples = "  pstune record my-laptop && tar czf my-laptop.tar.gz my-laptop",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .min_args = 1,
    .max_args = 1,
};

int ps_tune_record(int argc, char **argv) {
    ps_opt_value values[sizeof options / sizeof *options];
    const char *args[1] = {NULL};
    uint32_t n_args = 0;
    int code = 0;
    if (!ps_tune_parse(&command, argc, argv, values, args, &n_args, &code))
        return code;
    ps_machine *machine;
    ps_error err = {0};
    if (ps_machine_open(NULL, &machine, &err) != PS_OK)
        return ps_tune_fail(&err);
    if (ps_machine_record(machine, args[0], &err) != PS_OK)
        code = ps_tune_fail(&err);
    ps_machine_close(machine);
    return code;
}
