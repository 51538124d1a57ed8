/* Trace: JSON out and in, and what is refused. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "tests/trace_builder.h"

Test(trace_document, reading_what_was_written_gives_the_same_text) {
    ps_trace *t = tr_trace(200), *u;
    ps_error err = {0};
    char *text, *again, line[600];
    uint64_t n, n2;
    cr_assert_eq(ps_trace_to_json(t, &text, &n, &err), PS_OK);
    cr_assert_eq(ps_trace_parse(text, n, "t.json", &u, &err), PS_OK, "%s",
                 ps_error_format(&err, line, sizeof line));
    cr_assert_eq(ps_trace_to_json(u, &again, &n2, &err), PS_OK);
    cr_assert_eq(n, n2);
    cr_assert_str_eq(text, again);
    cr_assert_str_eq(u->model_name, t->model_name);
    cr_assert_eq(u->steps[0].events[77].end_s, t->steps[0].events[77].end_s);
    cr_assert_eq(u->steps[1].n_events, 0);
    cr_assert_eq(u->steps[1].step_s, t->steps[1].step_s);
    free(text);
    free(again);
    ps_trace_free(t);
    ps_trace_free(u);
}

Test(trace_document, files) {
    char path[] = "/tmp/ps-trace-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    ps_trace *t = tr_trace(5), *u;
    ps_error err = {0};
    cr_assert_eq(ps_trace_write(t, path, &err), PS_OK);
    cr_assert_eq(ps_trace_read(path, &u, &err), PS_OK);
    ps_trace_free(u);
    ps_trace_free(t);
    unlink(path);
    cr_assert_eq(ps_trace_read(path, &u, &err), PS_E_NOINPUT);
}

Test(trace_document, refused) {
    static const struct {
        const char *from, *to, *error;
    } changes[] = {
        {"\"pinstripe-trace\": 0", "\"pinstripe-trace\": 9", "trace version 9"},
        {"\"measured\"", "\"guessed\"", "source: unknown source \"guessed\""},
        {"\"tier\": 0", "\"tier\": \"0\"", "tier: must be a whole number"},
        {"\"kv_len\": 100", "\"kv\": 100", "unknown key \"kv\""},
        {"\"instr\", \"layer\"", "\"layer\", \"instr\"", "column 2 must be \"instr\""},
        {"\"embed\"", "\"embedd\"", "unknown operation \"embedd\""},
        {"[0, 0, 0, 0, \"cpu\", \"embed\", 0,", "[0, 0, 0, 0, \"cpu\", \"embed\", 1,",
         "ends before it starts"},
        {"[0, 0, 0, 0, \"cpu\", \"embed\", 0,", "[0, 0, 0, 0, \"cpu\", \"embed\", -1,",
         "ends before it starts"},
        {"\"step_s\": ", "\"step_s\": -", "must not be negative"},
        {"\n}\n", "\n", "line"},
    };
    ps_trace *t = tr_trace(3), *u;
    ps_error err = {0};
    char *text, line[600];
    uint64_t n;
    cr_assert_eq(ps_trace_to_json(t, &text, &n, &err), PS_OK);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        const char *at = strstr(text, changes[i].from);
        cr_assert_not_null(at, "%s", changes[i].from);
        char *bad = malloc(n + 100);
        sprintf(bad, "%.*s%s%s", (int)(at - text), text, changes[i].to, at + strlen(changes[i].from));
        ps_status status = ps_trace_parse(bad, strlen(bad), "t.json", &u, &err);
        ps_error_format(&err, line, sizeof line);
        cr_expect_neq(status, PS_OK, "%s", changes[i].to);
        cr_expect_null(u);
        cr_expect(strstr(line, changes[i].error) != NULL, "wanted \"%s\", got \"%s\"", changes[i].error,
                  line);
        free(bad);
    }
    free(text);
    t->steps[0].events[1].end_s = -1;
    cr_assert_eq(ps_trace_to_json(t, &text, &n, &err), PS_E_DATA);
    cr_assert_str_eq(err.subject, "step 0: event 1: start_s");
    ps_trace_free(t);
}
