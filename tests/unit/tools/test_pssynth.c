/* Synthetic models: understood by lib/model, the right shapes and sizes, the same bytes for the same seed, weights
 * of the wanted spread. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "model/gguf.h"
#include "model/model.h"
#include "tools/pssynth.h"

static char dir[64], path[96];

static void make_dir(void) {
    snprintf(dir, sizeof dir, "/tmp/ps-synth-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/model.gguf", dir);
}

static void remove_dir(void) {
    unlink(path);
    cr_assert_eq(rmdir(dir), 0, "nothing but the model is left");
}

TestSuite(pssynth, .init = make_dir, .fini = remove_dir, .timeout = 120);

static const ps_dtype types[] = {PS_DTYPE_F32,  PS_DTYPE_F16,  PS_DTYPE_BF16, PS_DTYPE_Q4_0,
                                 PS_DTYPE_Q4_1, PS_DTYPE_Q5_0, PS_DTYPE_Q5_1, PS_DTYPE_Q8_0,
                                 PS_DTYPE_Q4_K, PS_DTYPE_Q5_K, PS_DTYPE_Q6_K};
enum { N_TYPES = sizeof types / sizeof types[0] };

static void write_model(const synth_shape *shape, uint64_t seed, bool sparse) {
    ps_error err;
    uint64_t bytes;
    char line[600];
    ps_status s = synth_write(path, shape, seed, sparse, false, NULL, &bytes, &err);
    cr_assert_eq(s, PS_OK, "%s: %s", shape->preset, ps_error_format(&err, line, sizeof line));
    struct stat st;
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq((uint64_t)st.st_size, bytes);
}

/* Opens the file as a model; returns the number of its parameters and bytes of its tensors. */
static uint64_t open_model(const synth_shape *shape, uint64_t *out_bytes) {
    ps_gguf *g;
    ps_model *m;
    ps_error err = {0};
    cr_assert_eq(ps_gguf_open(path, &g, &err), PS_OK, "%s: %s: %s", shape->preset, err.subject, err.message);
    cr_assert_eq(ps_model_open(g, &m, &err), PS_OK, "%s: %s: %s", shape->preset, err.subject, err.message);
    cr_assert_eq(m->n_layers, shape->n_layers);
    cr_assert_eq(m->n_vocab, shape->n_vocab);
    cr_assert_eq(m->tied_output, shape->tied);
    cr_assert_str_eq(m->arch_name, synth_arch_name(shape->arch));
    uint64_t n_params = m->n_params;
    *out_bytes = g->data_bytes;
    ps_model_close(m);
    ps_gguf_close(g);
    return n_params;
}

Test(pssynth, tiny_models_of_every_type) {
    uint64_t bytes;
    unsigned n = 0;
    const synth_shape *preset;
    for (uint32_t i = 0; (preset = synth_preset_at(i)) != NULL; i++) {
        if (strncmp(preset->preset, "tiny-", 5) != 0)
            continue;
        struct stat st;
        write_model(preset, 1, false);
        open_model(preset, &bytes);
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_lt(st.st_size, 2000000, "%s", preset->preset);
        for (int t = 0; t < N_TYPES; t++) {
            synth_shape shape = *preset;
            shape.type = shape.embed_type = shape.output_type = types[t];
            write_model(&shape, 1, false);
            open_model(&shape, &bytes);
        }
        n++;
    }
    cr_assert_eq(n, 4);
}

/* Sizes by hand from the shapes: parameters by the formula beside each; bytes at 18/32 for Q4_0, 210/256 for the Q6_K
 * output, 4 for norms and routers. */
Test(pssynth, large_presets) {
    static const struct {
        const char *preset;
        uint64_t n_params;
        double data_gb;
    } want[] = {
        /* 2*131072*4096 + 40*(2*4096*4096 + 2*4096*1024 + 3*4096*11520 + 2*4096) + 4096 */
        {"minitron-8b-f16", 8414105600ull, 16.8289},
        /* 2*128256*4096 + 32*(2*4096*4096 + 2*4096*1024 + 3*4096*14336 + 2*4096) + 4096 */
        {"llama3-8b-q4_0", 8030261248ull, 4.6534},
        /* 2*128256*8192 + 80*(2*8192*8192 + 2*8192*1024 + 3*8192*28672 + 2*8192) + 8192 */
        {"llama3-70b", 70553706496ull, 39.9619},
        /* 2*151936*2048 + 48*(2*2048*4096 + 2*2048*512 + 128*2048 + 128*3*2048*768 + 2*2048 + 2*128) + 2048 */
        {"qwen3-30b-a3b-q4_0", 30532122624ull, 17.2985},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const synth_shape *shape = synth_preset(want[i].preset);
        uint64_t bytes;
        write_model(shape, 1, true);
        cr_assert_eq(open_model(shape, &bytes), want[i].n_params, "%s", want[i].preset);
        cr_assert_float_eq((double)bytes / 1e9, want[i].data_gb, 0.001, "%s: %.4f", want[i].preset,
                           (double)bytes / 1e9);
        struct stat st;
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_lt((uint64_t)st.st_blocks * 512, 32u << 20, "%s: weights are a hole", want[i].preset);
    }
    cr_assert_null(synth_preset("tiny"));
}

Test(pssynth, variants_of_llama) {
    synth_shape shape = *synth_preset("tiny-llama");
    uint64_t bytes;
    shape.biases = shape.rope_freqs = shape.tied = true;
    write_model(&shape, 1, false);
    open_model(&shape, &bytes);
    shape.rope_freqs = false;
    shape.rope_linear = 4.0f;
    write_model(&shape, 1, false);
    open_model(&shape, &bytes);
}

static char *read_model(uint64_t *size) {
    char *data;
    ps_error err;
    cr_assert_eq(ps_file_read(path, 1 << 26, &data, size, &err), PS_OK);
    return data;
}

Test(pssynth, same_seed_same_bytes) {
    const synth_shape *shape = synth_preset("tiny-qwen3moe");
    uint64_t n[3];
    char *data[3];
    for (int i = 0; i < 3; i++) {
        write_model(shape, i == 2 ? 8 : 7, false);
        data[i] = read_model(&n[i]);
    }
    cr_assert(n[0] == n[1] && n[0] == n[2]);
    cr_assert_eq(memcmp(data[0], data[1], n[0]), 0);
    cr_assert_neq(memcmp(data[0], data[2], n[0]), 0);
    for (int i = 0; i < 3; i++)
        free(data[i]);
}

/* Matrices: mean 0 and a standard deviation of 1/sqrt(row), within what a sample of this size allows and the
 * variation of scales adds; norms near 1. */
Test(pssynth, spread_of_weights) {
    for (int k = 0; k < N_TYPES; k++) {
        synth_shape shape = *synth_preset("tiny-llama");
        ps_gguf *g;
        ps_error err;
        shape.type = types[k];
        write_model(&shape, 5, false);
        cr_assert_eq(ps_gguf_open(path, &g, &err), PS_OK);
        const ps_gguf_tensor *t = ps_gguf_find_tensor(g, "blk.1.ffn_up.weight");
        uint64_t n = t->dims[0] * t->dims[1];
        float *x = malloc(n * sizeof *x);
        ps_dequantize_row(t->type, ps_gguf_data(g, t), x, n);
        double sum = 0, square = 0;
        for (uint64_t i = 0; i < n; i++) {
            sum += (double)x[i];
            square += (double)x[i] * (double)x[i];
        }
        double mean = sum / (double)n, sd = sqrt(square / (double)n), want = 1 / sqrt((double)t->dims[0]);
        const char *name = ps_dtype_find((uint32_t)types[k])->name;
        cr_assert(fabs(mean) < 0.02 * want, "%s: mean %g", name, mean / want);
        cr_assert(fabs(sd / want - 1) < 0.04, "%s: deviation %g", name, sd / want);
        t = ps_gguf_find_tensor(g, "blk.1.ffn_norm.weight");
        ps_dequantize_row(t->type, ps_gguf_data(g, t), x, t->dims[0]);
        for (uint64_t i = 0; i < t->dims[0]; i++)
            cr_assert(fabsf(x[i] - 1) < 0.4f);
        free(x);
        ps_gguf_close(g);
    }
}

Test(pssynth, refusals) {
    synth_shape shape = *synth_preset("tiny-llama");
    ps_error err;
    uint64_t bytes;
    shape.n_embd = 288;
    cr_assert_eq(synth_write(path, &shape, 1, false, false, NULL, &bytes, &err), PS_E_USAGE);
    cr_assert_str_eq(err.subject, "output.weight", "%s", err.subject);
    shape = *synth_preset("tiny-llama");
    shape.n_head_kv = 3;
    cr_assert_eq(synth_write(path, &shape, 1, false, false, NULL, &bytes, &err), PS_E_USAGE);
    cr_assert_eq(
        synth_write("/nonexistent/x.gguf", synth_preset("tiny-llama"), 1, false, false, NULL, &bytes, &err),
        PS_E_CANTCREATE);
}
