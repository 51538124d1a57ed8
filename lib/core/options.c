/* Command-line options from one table: parser, --help text and man page. */
#include "core/options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/text.h"

bool ps_parse_size(const char *text, uint64_t *out) {
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *end;
    errno = 0;
    unsigned long long whole = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    uint64_t thousandths = 0;
    if (*end == '.') {
        uint64_t scale = 100;
        for (end++; isdigit((unsigned char)*end); end++, scale /= 10)
            thousandths += (uint64_t)(*end - '0') * scale;
    }
    static const char units[] = "KMGT";
    unsigned shift = 0;
    if (*end != '\0' && *end != 'B') {
        const char *unit = strchr(units, toupper((unsigned char)*end));
        if (unit == NULL)
            return false;
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (*end == 'i')
            end++;
    }
    if (*end == 'B')
        end++;
    if (*end != '\0')
        return false;
    uint64_t bytes, part;
    if (!ps_mul_u64(whole, (uint64_t)1 << shift, &bytes))
        return false;
    part = thousandths * ((uint64_t)1 << shift) / 1000; /* below 1000 * 2^40 */
    return ps_add_u64(bytes, part, out);
}

static ps_status bad_value(ps_error *err, const ps_option *o, const char *text, const char *want) {
    char subject[80];
    snprintf(subject, sizeof subject, "--%s", o->name);
    return ps_error_set(err, PS_E_USAGE, subject, "'%.60s' is not %s", text, want);
}

static ps_status check_range(ps_error *err, const ps_option *o, const char *text, double v) {
    if ((o->min == 0 && o->max == 0) || (v >= o->min && v <= o->max))
        return PS_OK;
    char subject[80];
    snprintf(subject, sizeof subject, "--%s", o->name);
    return ps_error_set(err, PS_E_USAGE, subject, "%.60s is outside %.10g to %.10g", text, o->min, o->max);
}

/* Text to value; used for the command line and for defaults alike. */
static ps_status convert(const ps_option *o, const char *text, ps_opt_value *v, ps_error *err) {
    v->text = text;
    char *end;
    switch (o->type) {
    case PS_OPT_FLAG:
        v->u64 = 1;
        return PS_OK;
    case PS_OPT_TEXT:
        return PS_OK;
    case PS_OPT_U64:
        errno = 0;
        v->u64 = strtoull(text, &end, 10);
        if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0)
            return bad_value(err, o, text, "a whole number");
        v->f64 = (double)v->u64;
        return check_range(err, o, text, v->f64);
    case PS_OPT_F64:
        v->f64 = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(v->f64))
            return bad_value(err, o, text, "a number");
        return check_range(err, o, text, v->f64);
    case PS_OPT_SIZE:
        if (!ps_parse_size(text, &v->u64))
            return bad_value(err, o, text, "a size such as 512MiB or 2GiB");
        v->f64 = (double)v->u64;
        return check_range(err, o, text, v->f64);
    }
    return ps_error_set(err, PS_E_INTERNAL, o->name, "unknown option type");
}

static const ps_option *find_long(const ps_command *c, const char *name, size_t len) {
    for (uint32_t i = 0; i < c->n_options; i++)
        if (strlen(c->options[i].name) == len && memcmp(c->options[i].name, name, len) == 0)
            return &c->options[i];
    return NULL;
}

static const ps_option *find_short(const ps_command *c, char name) {
    for (uint32_t i = 0; i < c->n_options; i++)
        if (c->options[i].short_name != 0 && c->options[i].short_name == name)
            return &c->options[i];
    return NULL;
}

static ps_status usage(ps_error *err, const ps_command *c, const char *subject, const char *what) {
    return ps_error_set(err, PS_E_USAGE, subject, "%s; try '%s --help'", what, c->name);
}

/* One option argument; *i moves past a value that is an argument of its own. */
static ps_status parse_option(const ps_command *c, int argc, char *const *argv, int *i, ps_opt_value *values,
                              ps_error *err) {
    const char *arg = argv[*i], *inline_value = NULL;
    const ps_option *o;
    if (arg[1] == '-') {
        const char *equals = strchr(arg, '=');
        size_t len = equals != NULL ? (size_t)(equals - arg) - 2 : strlen(arg + 2);
        o = find_long(c, arg + 2, len);
        if (equals != NULL)
            inline_value = equals + 1;
    } else {
        o = find_short(c, arg[1]);
        if (arg[2] != '\0')
            inline_value = arg + 2;
    }
    if (o == NULL)
        return usage(err, c, arg, "unknown option");
    ps_opt_value *v = &values[o - c->options];
    v->set = true;
    if (o->type == PS_OPT_FLAG) {
        if (inline_value != NULL)
            return usage(err, c, arg, "this option takes no value");
        return convert(o, "", v, err);
    }
    if (inline_value == NULL) {
        if (*i + 1 >= argc)
            return usage(err, c, arg, "a value is missing");
        inline_value = argv[++*i];
    }
    return convert(o, inline_value, v, err);
}

ps_status ps_options_parse(const ps_command *c, int argc, char *const *argv, ps_opt_value *values,
                           const char **positional, uint32_t *out_n_positional, ps_error *err) {
    for (uint32_t i = 0; i < c->n_options; i++) {
        values[i] = (ps_opt_value){0};
        if (c->options[i].def != NULL) {
            ps_status status = convert(&c->options[i], c->options[i].def, &values[i], err);
            if (status != PS_OK)
                return status;
        }
    }
    uint32_t n = 0;
    bool options_ended = false;
    for (int i = 1; i < argc; i++) {
        if (!options_ended && strcmp(argv[i], "--") == 0) {
            options_ended = true;
        } else if (!options_ended && argv[i][0] == '-' && argv[i][1] != '\0') {
            ps_status status = parse_option(c, argc, argv, &i, values, err);
            if (status != PS_OK)
                return status;
        } else if (n == c->max_args) {
            return usage(err, c, argv[i], "unexpected argument");
        } else {
            positional[n++] = argv[i];
        }
    }
    /* These are answered without the arguments that a run needs. */
    static const char *const answers[] = {"help", "man", "version"};
    bool answered = false;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        const ps_option *o = find_long(c, answers[i], strlen(answers[i]));
        answered |= o != NULL && values[o - c->options].set;
    }
    if (n < c->min_args && !answered)
        return usage(err, c, "", "an argument is missing");
    *out_n_positional = n;
    return PS_OK;
}

const ps_opt_value *ps_options_get(const ps_command *c, const ps_opt_value *values, const char *name) {
    const ps_option *o = find_long(c, name, strlen(name));
    assert(o != NULL);
    return &values[o - c->options];
}

enum { HELP_COLUMNS = 80, HELP_INDENT = 32 };

/* Words that fill lines of HELP_COLUMNS; where the line is, and where the next ones begin. */
typedef struct fill {
    ps_text *t;
    size_t at, indent;
    bool begun; /* the line has a word */
} fill;

static void fill_word(fill *f, const char *word, size_t n) {
    if (f->begun && f->at + 1 + n > HELP_COLUMNS) {
        ps_text_printf(f->t, "\n%*s", (int)f->indent, "");
        f->at = f->indent;
        f->begun = false;
    }
    ps_text_printf(f->t, "%s%.*s", f->begun ? " " : "", (int)n, word);
    f->at += n + f->begun;
    f->begun = true;
}

/* A line that begins with a space stays a line of its own; other ends of lines are spaces. */
static void fill_text(fill *f, const char *s) {
    for (size_t n; *s != '\0'; s += n) {
        n = strcspn(s, " \n");
        if (n != 0) {
            fill_word(f, s, n);
            continue;
        }
        n = 1;
        if (s[0] == '\n' && s[1] == ' ') {
            n += strspn(s + 1, " ");
            ps_text_put(f->t, s, n);
            *f = (fill){f->t, n - 1, n + 1, false};
        }
    }
}

static void put_filled(ps_text *t, const char *s) {
    fill f = {.t = t};
    fill_text(&f, s);
    ps_text_printf(t, "\n");
}

char *ps_options_help(const ps_command *c) {
    ps_text *t = ps_text_new();
    ps_text_printf(t, "Usage: %s %s\n", c->name, c->synopsis);
    put_filled(t, c->summary);
    if (c->details != NULL) {
        ps_text_printf(t, "\n");
        put_filled(t, c->details);
    }
    ps_text_printf(t, "\nOptions:\n");
    for (uint32_t i = 0; i < c->n_options; i++) {
        const ps_option *o = &c->options[i];
        char left[64], def[80];
        char shorts[8] = "    ";
        if (o->short_name != 0)
            snprintf(shorts, sizeof shorts, "-%c, ", o->short_name);
        snprintf(left, sizeof left, "%s--%s%s%s", shorts, o->name, o->metavar != NULL ? " " : "",
                 o->metavar != NULL ? o->metavar : "");
        ps_text_printf(t, strlen(left) > 28 ? "  %s\n%32s" : "  %-28s  %.0s", left, "");
        fill f = {t, HELP_INDENT, HELP_INDENT, false};
        fill_text(&f, o->help);
        if (o->def != NULL) {
            snprintf(def, sizeof def, "[%s]", o->def);
            fill_word(&f, def, strlen(def));
        }
        ps_text_printf(t, "\n");
    }
    if (c->examples != NULL)
        ps_text_printf(t, "\nExamples:\n%s\n", c->examples);
    return ps_text_end(t, NULL);
}

/* Text for troff: backslashes and leading dots are escaped, '-' stays a minus. */
static void put_troff(ps_text *t, const char *s) {
    bool line_start = true;
    for (; *s != '\0'; s++) {
        if (line_start && (*s == '.' || *s == '\''))
            ps_text_printf(t, "\\&");
        if (*s == '\\')
            ps_text_printf(t, "\\e");
        else if (*s == '-')
            ps_text_printf(t, "\\-");
        else
            ps_text_printf(t, "%c", *s);
        line_start = *s == '\n';
    }
}

static void put_section(ps_text *t, const char *title, const char *before, const char *body,
                        const char *after) {
    ps_text_printf(t, ".SH %s\n%s", title, before);
    put_troff(t, body);
    ps_text_printf(t, "\n%s", after);
}

char *ps_options_man(const ps_command *c) {
    ps_text *t = ps_text_new();
    char page[64];
    snprintf(page, sizeof page, "%s", c->name);
    for (char *p = page; *p != '\0'; p++)
        *p = *p == ' ' ? '-' : *p;
    ps_text_printf(t, ".TH \"%s\" 1 \"\" \"pinstripe %s\" \"Pinstripe\"\n.SH NAME\n", page,
                   PS_VERSION_STRING);
    put_troff(t, page);
    ps_text_printf(t, " \\- ");
    put_troff(t, c->summary);
    ps_text_printf(t, "\n.SH SYNOPSIS\n.B ");
    put_troff(t, c->name);
    ps_text_printf(t, "\n");
    put_troff(t, c->synopsis);
    ps_text_printf(t, "\n");
    if (c->details != NULL)
        put_section(t, "DESCRIPTION", "", c->details, "");
    ps_text_printf(t, ".SH OPTIONS\n");
    for (uint32_t i = 0; i < c->n_options; i++) {
        const ps_option *o = &c->options[i];
        ps_text_printf(t, ".TP\n.B ");
        if (o->short_name != 0)
            ps_text_printf(t, "\\-%c, ", o->short_name);
        ps_text_printf(t, "\\-\\-");
        put_troff(t, o->name);
        if (o->metavar != NULL)
            ps_text_printf(t, " %s", o->metavar);
        ps_text_printf(t, "\n");
        put_troff(t, o->help);
        if (o->def != NULL) {
            ps_text_printf(t, " Default: ");
            put_troff(t, o->def);
            ps_text_printf(t, ".");
        }
        ps_text_printf(t, "\n");
    }
    if (c->examples != NULL)
        put_section(t, "EXAMPLES", ".nf\n", c->examples, ".fi\n");
    ps_text_printf(t, ".SH EXIT STATUS\n.TP\n.B 0\nsuccess\n");
    int last = 0;
    for (int s = 1; s < PS_STATUS_COUNT; s++) {
        int code = ps_status_exit_code((ps_status)s);
        if (code != last)
            ps_text_printf(t, "%s.TP\n.B %d\n%s", last ? "\n" : "", code, ps_status_text((ps_status)s));
        else
            ps_text_printf(t, "; %s", ps_status_text((ps_status)s));
        last = code;
    }
    ps_text_printf(t, "\n");
    return ps_text_end(t, NULL);
}
