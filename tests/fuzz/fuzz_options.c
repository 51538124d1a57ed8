/* Option tables: any argument vector. The input is the arguments, separated by NUL bytes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ps_option rows[] = {
    {"help", 'h', PS_OPT_FLAG, NULL, NULL, 0, 0, "Show this help."},
    {"budget", 'b', PS_OPT_SIZE, "SIZE", NULL, 1, 1e15, "Memory to use."},
    {"threads", 't', PS_OPT_U64, "N", "4", 1, 64, "Threads to use."},
    {"rate", 'r', PS_OPT_F64, "X", NULL, -1, 1, "A number."},
    {"any", 0, PS_OPT_F64, "X", NULL, 0, 0, "An unbounded number."},
    {"out", 'o', PS_OPT_TEXT, "FILE", NULL, 0, 0, "Where to write."},
};
enum { N_ROWS = sizeof rows / sizeof *rows, MAX_ARGS = 64 };
static const ps_command command = {"fuzz", "[OPTIONS] [A] [B]", "Fuzz.", NULL, NULL, rows, N_ROWS, 0, 2};

static void need(bool ok) {
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    need(text != NULL);
    if (size != 0)
        memcpy(text, data, size);
    text[size] = '\0';
    char *argv[MAX_ARGS + 1];
    argv[0] = (char *)"fuzz";
    int argc = 1;
    for (size_t at = 0; at < size && argc < MAX_ARGS; at += strlen(text + at) + 1)
        argv[argc++] = text + at;

    ps_opt_value values[N_ROWS];
    const char *positional[2];
    uint32_t n = 0;
    ps_error err = {0};
    ps_status status = ps_options_parse(&command, argc, argv, values, positional, &n, &err);
    if (status == PS_OK) {
        need(n <= 2);
        for (int i = 0; i < N_ROWS; i++) {
            const ps_opt_value *v = &values[i];
            need(!v->set || v->text != NULL);
            if (v->text != NULL && rows[i].type != PS_OPT_FLAG && rows[i].type != PS_OPT_TEXT) {
                need(isfinite(v->f64));
                need(rows[i].max == 0 || (v->f64 >= rows[i].min && v->f64 <= rows[i].max));
            }
        }
    } else {
        char line[600];
        need(status == PS_E_USAGE && err.message[0] != '\0');
        need(strchr(ps_error_format(&err, line, sizeof line), '\n') == NULL);
    }
    uint64_t bytes;
    (void)ps_parse_size(text, &bytes);
    free(text);
    return 0;
}
