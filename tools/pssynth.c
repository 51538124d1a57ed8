/* pssynth: writes synthetic GGUF models of any supported architecture, for tests and measurements. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "core/options.h"
#include "core/text.h"
#include "pssynth.h"

#define NUMBER_ROW(field, option, lo, hi, text)                                                              \
    {option, 0, PS_OPT_U64, "N", NULL, lo, hi, text " (the preset's)."},
static const ps_option options[] = {
    {"preset", 'p', PS_OPT_TEXT, "NAME", NULL, 0, 0, "Start from this shape (tiny-llama)."},
    {"arch", 'a', PS_OPT_TEXT, "NAME", NULL, 0, 0, "Start from the tiny shape of this architecture."},
    {"type", 't', PS_OPT_TEXT, "TYPE", NULL, 0, 0, "Type of all matrices, embedding and output too."},
    {"embed-type", 0, PS_OPT_TEXT, "TYPE", NULL, 0, 0, "Type of the token embedding."},
    {"output-type", 0, PS_OPT_TEXT, "TYPE", NULL, 0, 0, "Type of the output matrix."},
    SYNTH_NUMBERS(NUMBER_ROW){"rope-base", 0, PS_OPT_F64, "X", NULL, 1, 1e9, "Rope's theta (the preset's)."},
    {"rope-linear", 0, PS_OPT_F64, "X", NULL, 1, 1e6, "Linear rope scaling by this factor."},
    {"rope-freqs", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "With Llama 3.1's frequency factors (llama)."},
    {"biases", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "With biases on all products (llama)."},
    {"tied", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Output matrix is the token embedding."},
    {"no-tokenizer", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Write no vocabulary."},
    {"sparse", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Full length, real header, weights a hole."},
    {"seed", 's', PS_OPT_U64, "N", "1", 0, 0, "Seed of the weights."},
    PS_CLI_ROWS};
#undef NUMBER_ROW
enum { N_OPTIONS = sizeof options / sizeof options[0] };

static const ps_command command = {
    .name = "pssynth",
    .synopsis = "[OPTIONS] OUT.gguf",
    .summary = "Write a synthetic model: right shapes, random weights, the same bytes for the same options.",
    .details =
        "Presets: tiny-llama, tiny-qwen3, tiny-qwen3moe, tiny-gemma3, minitron-8b-f16, llama3-8b-q4_0,\n"
        "llama3-70b, qwen3-30b-a3b-q4_0. Types: F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K.\n"
        "Norms, biases and routers are F32.",
    .examples = "  pssynth --arch qwen3moe --type Q8_0 tiny.gguf\n"
                "  pssynth --preset llama3-70b --sparse 70b.gguf",
    .options = options,
    .n_options = N_OPTIONS,
    .min_args = 0,
    .max_args = 1,
};

static const ps_opt_value *get(const ps_opt_value *values, const char *name) {
    return ps_options_get(&command, values, name);
}

static ps_status get_type(const ps_opt_value *values, const char *name, ps_dtype *out, ps_error *err) {
    const ps_opt_value *v = get(values, name);
    if (!v->set)
        return PS_OK;
    const ps_dtype_info *info = ps_dtype_by_name(v->text);
    if (info == NULL || !ps_dtype_computable((ps_dtype)info->id)) {
        char option[32];
        snprintf(option, sizeof option, "--%s", name);
        return ps_error_set(err, PS_E_USAGE, option, "'%s' is not a type that weights can be made of",
                            v->text);
    }
    *out = (ps_dtype)info->id;
    return PS_OK;
}

static ps_status get_preset(const ps_opt_value *values, synth_shape *shape, ps_error *err) {
    const ps_opt_value *preset = get(values, "preset"), *arch = get(values, "arch");
    char name[64] = "tiny-llama";
    if (preset->set && arch->set)
        return ps_error_set(err, PS_E_USAGE, "--arch", "a preset has its own architecture");
    if (preset->set)
        snprintf(name, sizeof name, "%s", preset->text);
    if (arch->set && synth_arch_by_name(arch->text) == 0)
        return ps_error_set(err, PS_E_USAGE, "--arch", "'%s' is not known", arch->text);
    if (arch->set)
        snprintf(name, sizeof name, "tiny-%s", arch->text);
    const synth_shape *found = synth_preset(name);
    if (found == NULL)
        return ps_error_set(err, PS_E_USAGE, "--preset", "'%s' is not known", name);
    *shape = *found;
    return PS_OK;
}

static ps_status get_shape(const ps_opt_value *values, synth_shape *shape, ps_error *err) {
    ps_status status = get_preset(values, shape, err);
    if (status != PS_OK)
        return status;
#define NUMBER_SET(field, option, lo, hi, text)                                                              \
    if (get(values, option)->set)                                                                            \
        shape->field = get(values, option)->u64;
    SYNTH_NUMBERS(NUMBER_SET)
#undef NUMBER_SET
    if (get(values, "rope-base")->set)
        shape->rope_base = (float)get(values, "rope-base")->f64;
    if (get(values, "rope-linear")->set)
        shape->rope_linear = (float)get(values, "rope-linear")->f64;
    shape->rope_freqs = get(values, "rope-freqs")->set;
    shape->biases = get(values, "biases")->set;
    shape->tied = shape->tied || get(values, "tied")->set;
    status = get_type(values, "type", &shape->type, err);
    if (status == PS_OK && get(values, "type")->set)
        shape->embed_type = shape->output_type = shape->type;
    if (status == PS_OK)
        status = get_type(values, "embed-type", &shape->embed_type, err);
    if (status == PS_OK)
        status = get_type(values, "output-type", &shape->output_type, err);
    return status;
}

static volatile sig_atomic_t stop_signal;

static void on_signal(int number) {
    stop_signal = number;
}

int main(int argc, char **argv) {
    ps_opt_value values[N_OPTIONS];
    const char *path = NULL;
    uint32_t n_args = 0;
    ps_error err;
    synth_shape shape;
    uint64_t bytes = 0;
    ps_status status = ps_options_parse(&command, argc, argv, values, &path, &n_args, &err);
    if (status == PS_OK && ps_cli_answer(&command, values))
        return ps_cli_finish("pssynth", PS_OK, &err);
    if (status == PS_OK && n_args == 0)
        status = ps_error_set(&err, PS_E_USAGE, "OUT.gguf", "no file to write was given; see --help");
    if (status == PS_OK)
        status = get_shape(values, &shape, &err);
    const struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* the write fails with EFBIG, and is said */
    if (status == PS_OK)
        status = synth_write(path, &shape, get(values, "seed")->u64, get(values, "sparse")->set,
                             get(values, "no-tokenizer")->set, &stop_signal, &bytes, &err);
    if (stop_signal != 0 &&
        status != PS_OK) { /* nothing is left behind: end as the signal would have ended us */
        signal(stop_signal, SIG_DFL);
        raise(stop_signal);
    }
    if (status == PS_OK) {
        char size[32];
        ps_cli_name(stderr, path);
        fprintf(stderr, ": %s, %s\n", shape.preset, ps_format_bytes((double)bytes, size));
    }
    return ps_cli_finish("pssynth", status, &err);
}
