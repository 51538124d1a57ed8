/* What every program's main does alike: the option rows of help, man page and version, and the error line. */
#ifndef PS_TOOLS_CLI_H
#define PS_TOOLS_CLI_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/options.h"
#include "core/status.h"
#include "core/text.h"

/* Rows for the end of an option table. */
#define PS_CLI_ROWS                                                                                          \
    {"help", 'h', PS_OPT_FLAG, NULL, NULL, 0, 0, "Show this help."},                                         \
        {"man", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print the source of the man page."},                      \
        {"version", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Show the version."},

/* Mapped files can become shorter, or unreadable, under a program that reads them; the kernel says so by SIGBUS only. One
 * line and an exit code instead of a crash. Use once per program, at file level; ps_cli_guard() at the start of main. */
#define PS_CLI_GUARD(program)                                                                                \
    static void on_bus_error(int number) {                                                                   \
        static const char line[] = program ": a mapped file was cut short or cannot be read any more\n";     \
        (void)number;                                                                                        \
        if (write(STDERR_FILENO, line, sizeof line - 1) < 0)                                                 \
            _exit(71);                                                                                       \
        _exit(74);                                                                                           \
    }                                                                                                        \
    static void ps_cli_guard(void) {                                                                         \
        const struct sigaction action = {.sa_handler = on_bus_error};                                        \
        sigaction(SIGBUS, &action, NULL);                                                                    \
        signal(SIGXFSZ, SIG_IGN); /* the write fails with EFBIG, and is said */                              \
    }

/* Answer --help, --man or --version on standard output. True if one was given. */
static inline bool ps_cli_answer(const ps_command *c, const ps_opt_value *values) {
    bool help = ps_options_get(c, values, "help")->set, man = ps_options_get(c, values, "man")->set;
    if (help || man) {
        char *text = man ? ps_options_man(c) : ps_options_help(c);
        fputs(text != NULL ? text : "", stdout);
        free(text);
        return true;
    }
    if (!ps_options_get(c, values, "version")->set)
        return false;
    printf("%s %s\n", c->name, PS_VERSION_STRING);
    return true;
}

/* A file name on a line for people. */
static inline void ps_cli_name(FILE *out, const char *name) {
    ps_text *t = ps_text_new();
    ps_text_put_plain(t, name);
    char *text = ps_text_end(t, NULL);
    fputs(text != NULL ? text : "?", out);
    free(text);
}

/* One line for a failure, nothing for success; the exit code either way. */
static inline int ps_cli_finish(const char *program, ps_status status, const ps_error *err) {
    if (fflush(stdout) != 0 && status == PS_OK) {
        fprintf(stderr, "%s: standard output: cannot write\n", program);
        return ps_status_exit_code(PS_E_IO);
    }
    if (status != PS_OK) {
        char line[600];
        fprintf(stderr, "%s: %s\n", program, ps_error_format(err, line, sizeof line));
    }
    return ps_status_exit_code(status);
}

#endif
