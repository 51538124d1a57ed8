/* The option table: parsing, ranges, help and man page. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/options.h"

static const ps_option rows[] = {
    {"help", 'h', PS_OPT_FLAG, NULL, NULL, 0, 0, "Show this help."},
    {"budget", 'b', PS_OPT_SIZE, "SIZE", NULL, 1, 1e15, "Memory to use."},
    {"threads", 't', PS_OPT_U64, "N", "4", 1, 64, "Threads to use."},
    {"rate", 0, PS_OPT_F64, "X", NULL, -1, 1, "A number."},
    {"out", 'o', PS_OPT_TEXT, "FILE", NULL, 0, 0, "Where to write."},
};
static const ps_command cmd = {"prog", "[OPTIONS] IN", "Do it.", "Details.", "  prog x", rows, 5, 1, 2};

static ps_status parse(ps_opt_value *v, const char **pos, uint32_t *n, ps_error *err, const char *line) {
    static char buf[200];
    char *argv[16] = {"prog"};
    int argc = 1;
    snprintf(buf, sizeof buf, "%s", line);
    for (char *p = strtok(buf, " "); p != NULL; p = strtok(NULL, " "))
        argv[argc++] = p;
    return ps_options_parse(&cmd, argc, argv, v, pos, n, err);
}

Test(options, forms) {
    ps_opt_value v[5];
    const char *pos[2];
    uint32_t n;
    ps_error err;
    cr_assert_eq(parse(v, pos, &n, &err, "in --budget=2GiB -t8 --rate -0.5 -o f -- -x"), PS_OK);
    cr_assert_eq(ps_options_get(&cmd, v, "budget")->u64, 2ull << 30);
    cr_assert_eq(ps_options_get(&cmd, v, "threads")->u64, 8);
    cr_assert_eq(ps_options_get(&cmd, v, "rate")->f64, -0.5);
    cr_assert_str_eq(ps_options_get(&cmd, v, "out")->text, "f");
    cr_assert_eq(n, 2);
    cr_assert_str_eq(pos[1], "-x");
    cr_assert_eq(parse(v, pos, &n, &err, "in"), PS_OK);
    cr_assert_eq(ps_options_get(&cmd, v, "threads")->u64, 4);
    cr_assert(!ps_options_get(&cmd, v, "threads")->set);
    cr_assert_eq(parse(v, pos, &n, &err, "--help"), PS_OK);
}

Test(options, errors_name_the_option) {
    static const struct {
        const char *line, *want;
    } cases[] = {
        {"in --nope", "--nope: unknown option"},
        {"in -z", "-z: unknown option"},
        {"in --threads", "--threads: a value"},
        {"in --threads=0", "--threads: 0 is outside"},
        {"in --threads 65", "--threads: 65"},
        {"in --threads x", "--threads: 'x' is not a whole"},
        {"in --threads -1", "'-1' is not a whole"},
        {"in --budget 0", "--budget: 0 is outside"},
        {"in --budget 5Q", "not a size"},
        {"in --help=1", "takes no value"},
        {"in --rate nan", "is not a number"},
        {"a b c", "c: unexpected argument"},
        {"", "argument is missing"},
        {"in --budget 99999999999999999999", "not a size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ps_opt_value v[5];
        const char *pos[2];
        uint32_t n;
        ps_error err;
        char line[600];
        cr_assert_eq(parse(v, pos, &n, &err, cases[i].line), PS_E_USAGE, "%s", cases[i].line);
        cr_assert_not_null(strstr(ps_error_format(&err, line, sizeof line), cases[i].want), "%s: %s",
                           cases[i].line, line);
    }
}

Test(options, sizes) {
    uint64_t v;
    cr_assert(ps_parse_size("4096", &v) && v == 4096);
    cr_assert(ps_parse_size("1.5GiB", &v) && v == 3ull << 29);
    cr_assert(ps_parse_size("512MB", &v) && v == 512ull << 20);
    cr_assert(ps_parse_size("2g", &v) && v == 2ull << 30);
    cr_assert(ps_parse_size("7B", &v) && v == 7);
    cr_assert(!ps_parse_size("", &v) && !ps_parse_size("-1", &v) && !ps_parse_size("1GiBx", &v));
    cr_assert(!ps_parse_size("99999999T", &v));
}

/* In one line, from malloc. */
static char *joined(const char *text) {
    char *out = malloc(strlen(text) + 1), *to = out;
    for (; *text; text++)
        if ((*text != ' ' && *text != '\n') || (to > out && to[-1] != ' '))
            *to++ = *text == '\n' ? ' ' : *text;
    *to = '\0';
    return out;
}

Test(options, help_and_man_hold_every_row) {
    char *help = ps_options_help(&cmd), *man = ps_options_man(&cmd), *filled = joined(help);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_not_null(strstr(help, rows[i].name));
        cr_assert_not_null(strstr(filled, rows[i].help));
        cr_assert_not_null(strstr(man, rows[i].name));
    }
    cr_assert_not_null(strstr(help, "[4]"));
    cr_assert_not_null(strstr(man, ".SH EXIT STATUS"));
    free(filled);
    free(help);
    free(man);
}

Test(options, help_is_filled_to_80_columns) {
    static const ps_option long_rows[] = {
        {"name", 'n', PS_OPT_TEXT, "WORDS", "a default of some words", 0, 0,
         "Words enough that they cannot stand in the columns that are left to them, however one breaks "
         "them."},
        {"a-name-that-is-longer-than-its-column", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Short."},
        {"link", 0, PS_OPT_FLAG, NULL, NULL, 0, 0,
         "a.word.that.is.longer.than.the.columns.that.are.left.stays.whole and others."},
    };
    static const ps_command c = {
        .name = "prog",
        .synopsis = "[OPTIONS]",
        .summary =
            "A summary that goes on and on, and on and on, until there are more than eighty columns of it.",
        .details =
            "Two lines\nare one. Kinds:\n  one: of which there is so much to say that it needs more than a "
            "single line\n  two: short",
        .options = long_rows,
        .n_options = 3,
    };
    char *help = ps_options_help(&c);
    cr_assert_str_eq(help, "Usage: prog [OPTIONS]\n"
                           "A summary that goes on and on, and on and on, until there are more than eighty\n"
                           "columns of it.\n\n"
                           "Two lines are one. Kinds:\n"
                           "  one: of which there is so much to say that it needs more than a single line\n"
                           "  two: short\n\n"
                           "Options:\n"
                           "  -n, --name WORDS              Words enough that they cannot stand in the\n"
                           "                                columns that are left to them, however one\n"
                           "                                breaks them. [a default of some words]\n"
                           "      --a-name-that-is-longer-than-its-column\n"
                           "                                Short.\n"
                           "      --link                    "
                           "a.word.that.is.longer.than.the.columns.that.are.left.stays.whole\n"
                           "                                and others.\n");
    free(help);
}
