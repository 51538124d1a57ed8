/* psplan: plans how a model runs on a machine. Commands: plan (the default), inspect, emit, check, whatif. */
#include "psplan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"inspect", psplan_inspect}, {"emit", psplan_emit}, {"check", psplan_check},
    {"whatif", psplan_whatif},   {"plan", psplan_plan},
};

PS_CLI_GUARD("psplan")

int main(int argc, char **argv) {
    ps_cli_guard();
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return psplan_plan(argc, argv);
}

int psplan_finish(ps_status status, const ps_error *err) {
    return ps_cli_finish("psplan", status, err);
}

ps_status psplan_print(char *text, ps_error *err) {
    if (!text)
        return ps_error_set(err, PS_E_NOMEM, "output", "out of memory");
    ps_status status =
        fputs(text, stdout) < 0 ? ps_error_set(err, PS_E_IO, "standard output", "cannot write") : PS_OK;
    free(text);
    return status;
}

bool psplan_parse(const ps_command *c, int argc, char **argv, ps_opt_value *values, const char **args,
                  uint32_t *out_n_args, int *out_exit) {
    ps_error err = {0};
    ps_status status = ps_options_parse(c, argc, argv, values, args, out_n_args, &err);
    if (ps_cli_answer(c, values)) { /* whatever else is wrong */
        status = PS_OK;
    } else if (status == PS_OK) {
        return true;
    }
    *out_exit = psplan_finish(status, &err);
    return false;
}

ps_status psplan_check_output(const char *path, const char *input, const char *other_input, ps_error *err) {
    if (ps_file_is_same(path, input) || ps_file_is_same(path, other_input))
        return ps_error_set(err, PS_E_USAGE, path, "is an input; writing there would destroy it");
    return ps_file_check_output(path, err);
}

ps_status psplan_model_open(const char *path, psplan_model *m, ps_error *err) {
    ps_status status = ps_gguf_open(path, &m->gguf, err);
    if (status == PS_OK) {
        status = ps_model_open(m->gguf, &m->model, err);
        if (status != PS_OK && strncmp(err->subject, path, strlen(path)) != 0)
            ps_error_prefix(err, path);
    }
    return status;
}

void psplan_model_close(psplan_model *m) {
    ps_model_close(m->model);
    if (m->gguf)
        ps_gguf_close(m->gguf);
    *m = (psplan_model){0};
}

ps_status psplan_profile_read(const char *path, ps_profile **out, ps_error *err) {
    if (path)
        return ps_profile_read(path, out, err);
    char buf[4096];
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    int n = -1;
    if (data && data[0] == '/')
        n = snprintf(buf, sizeof buf, "%s/pinstripe/profile.yaml", data);
    else if (home && home[0])
        n = snprintf(buf, sizeof buf, "%s/.local/share/pinstripe/profile.yaml", home);
    if (n < 0 || (size_t)n >= sizeof buf)
        return ps_error_set(err, PS_E_NOINPUT, "profile",
                            "no --profile, and no home folder to look for one in");
    ps_status status = ps_profile_read(buf, out, err);
    if (status == PS_E_NOINPUT)
        return ps_error_set(err, PS_E_NOINPUT, buf,
                            "no machine profile here: run pstune once, or give --profile");
    return status;
}

char *psplan_time(double s, char *buf) {
    static const char *const units[] = {"ns", "us", "ms", "s"};
    int u = 0;
    for (s *= 1e9; u < 3 && s >= 999.5; u++)
        s /= 1000;
    snprintf(buf, 32, "%.*f %s", s < 9.995 ? 2 : s < 99.95 ? 1 : 0, s, units[u]);
    return buf;
}
