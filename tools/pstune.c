/* pstune: measure this machine once, for the planner. Commands: none (measure, or gather), show, diff, check. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "pstune_internal.h"

int ps_tune_fail(const ps_error *err) {
    char line[600];
    fprintf(stderr, "pstune: %s\n", ps_error_format(err, line, sizeof line));
    return ps_status_exit_code(err->status);
}

static int print_text(char *text) {
    if (!text) {
        fprintf(stderr, "pstune: out of memory\n");
        return ps_status_exit_code(PS_E_NOMEM);
    }
    fputs(text, stdout);
    free(text);
    return 0;
}

bool ps_tune_parse(const ps_command *command, int argc, char **argv, ps_opt_value *values, const char **args,
                   uint32_t *out_n_args, int *out_exit) {
    ps_error err = {0};
    const ps_status st = ps_options_parse(command, argc, argv, values, args, out_n_args, &err);
    /* Help is given whatever else is wrong. */
    if (ps_options_get(command, values, "help")->set)
        *out_exit = print_text(ps_options_help(command));
    else if (ps_options_get(command, values, "man")->set)
        *out_exit = print_text(ps_options_man(command));
    else if (ps_options_get(command, values, "version")->set)
        *out_exit = printf("pstune %s\n", PS_VERSION_STRING) > 0 ? 0 : ps_status_exit_code(PS_E_IO);
    else if (st != PS_OK)
        *out_exit = ps_tune_fail(&err);
    else
        return true;
    return false;
}

int ps_tune_json_out(ps_json *j) {
    return print_text(ps_json_end(j, NULL));
}

PS_CLI_GUARD("pstune")

int main(int argc, char **argv) {
    ps_cli_guard();
    int code;
    if (argc > 1 && !strcmp(argv[1], "show"))
        code = ps_tune_show(argc - 1, argv + 1);
    else if (argc > 1 && !strcmp(argv[1], "diff"))
        code = ps_tune_diff(argc - 1, argv + 1);
    else if (argc > 1 && !strcmp(argv[1], "check"))
        code = ps_tune_check(argc - 1, argv + 1);
    else
        code = ps_tune_measure(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        fprintf(stderr, "pstune: standard output: cannot write\n");
        code = ps_status_exit_code(PS_E_IO);
    }
    return code;
}
