/* Every way of holding weights gives the same bytes: in host memory, on the (emulated) device, and through copies of whole
 * ranges, columns and experts; and each is refused where it does not apply. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime-min/weights.h"
#include "tools/pssynth.h"

static int failures;
static void expect(bool ok, const char *what, const char *how) {
    if (!ok) {
        printf("FAIL: %s (%s)\n", what, how);
        failures++;
    }
}

typedef struct fixture {
    char path[64];
    ps_gguf *gguf;
    ps_model *model;
    ps_device *device;
    ps_vram_range *vram;
} fixture;

static void must(ps_status status, ps_error *err) {
    char line[400];
    if (status != PS_OK) {
        printf("FAIL: %s\n", ps_error_format(err, line, sizeof line));
        exit(1);
    }
}

/* n_vocab 0: the preset's. */
static void fixture_open(fixture *f, const char *folder, const char *preset, uint32_t n_vocab) {
    ps_error err = {0};
    uint64_t bytes;
    synth_shape shape = *synth_preset(preset);
    if (n_vocab != 0) {
        shape.n_vocab = n_vocab;
        shape.embed_type = PS_DTYPE_F32;
    }
    snprintf(f->path, sizeof f->path, "%s/ps-weights-%d.gguf", folder, (int)getpid());
    must(synth_write(f->path, &shape, 3, false, true, NULL, &bytes, &err), &err);
    must(ps_gguf_open(f->path, &f->gguf, &err), &err);
    must(ps_model_open(f->gguf, &f->model, &err), &err);
    must(ps_device_open(&(ps_device_options){.emulated = true, .emulated_bytes = 1u << 30}, &f->device, &err),
         &err);
    must(ps_vram_reserve(f->device, 64 << 20, &f->vram, &err), &err);
    must(ps_vram_resize(f->vram, 64 << 20, &err), &err);
}

static void fixture_close(fixture *f) {
    ps_vram_free(f->vram);
    ps_device_close(f->device);
    ps_model_close(f->model);
    ps_gguf_close(f->gguf);
    unlink(f->path);
}

/* Copies [row0, +n_rows) x [col0, +n_cols) and holds it against the file's bytes, row by row. */
static void check_copy(fixture *f, ps_weights *w, const ps_weight *weight, uint64_t row0, uint64_t n_rows,
                       uint64_t col0, uint64_t n_cols, const char *how) {
    ps_error err = {0};
    const uint8_t *file = ps_model_weight_data(f->model, weight);
    uint64_t unit = weight->experts > 1 ? weight->rows : 1,
             row_bytes = weight->bytes / (weight->rows * weight->experts);
    uint64_t part = row_bytes, start = 0;
    if (n_cols != 0) {
        ps_dtype_bytes(weight->type, n_cols, &part);
        ps_dtype_bytes(weight->type, col0, &start);
    }
    uint8_t *to = ps_vram_base(f->vram);
    memset(to, 0xEE, n_rows * unit * part + 1);
    must(ps_weights_copy(w, weight, row0, n_rows, col0, n_cols, to, &err), &err);
    must(ps_device_sync(f->device, &err), &err);
    bool same = true;
    for (uint64_t r = 0; r < n_rows * unit; r++)
        same = same && memcmp(to + r * part, file + (row0 * unit + r) * row_bytes + start, part) == 0;
    expect(same, "a copy holds the range's bytes", how);
    expect(to[n_rows * unit * part] == 0xEE, "a copy ends with the range", how);
}

static void check_all(fixture *f, const ps_weights_options *o, ps_hold want) {
    ps_error err = {0};
    ps_weights *w;
    must(ps_weights_open(f->model, o, &w, &err), &err);
    const char *how = ps_weights_why(w);
    expect(ps_weights_hold(w) == want, "held as asked for", how);
    for (uint32_t l = 0; l < f->model->n_layers; l++)
        for (int role = 0; role < PS_ROLE_COUNT; role++) {
            const ps_weight *t = f->model->layers[l].w[role];
            if (t == NULL)
                continue;
            const uint8_t *file = ps_model_weight_data(f->model, t), *device = ps_weights_device(w, t);
            expect(memcmp(ps_weights_host(w, t), file, t->bytes) == 0, "host bytes", how);
            bool direct = want == PS_HOLD_SLABS || want == PS_HOLD_REGISTERED;
            expect((device != NULL) == direct, "the device reads it or not", how);
            expect(device == NULL || ((uintptr_t)device % 16 == 0 && memcmp(device, file, t->bytes) == 0),
                   "device bytes", how);
            if (want == PS_HOLD_MAPPED)
                continue;
            uint64_t units = t->experts > 1 ? t->experts : t->rows;
            check_copy(f, w, t, 0, units, 0, 0, how);
            if (units > 2)
                check_copy(f, w, t, 1, units - 2, 0, 0, how);
            if (t->cols >= 64 && t->rows > 1)
                check_copy(f, w, t, 0, units, 32, 32, how);
        }
    ps_weights_close(w);
}

static void check_preset(const char *folder, const char *preset, bool in_memory) {
    fixture f = {0};
    ps_error err = {0};
    ps_weights *w;
    fixture_open(&f, folder, preset, 0);
    ps_weights_options o = {.device = f.device};
    check_all(&f, &(ps_weights_options){0}, PS_HOLD_MAPPED);
    check_all(&f, &o, in_memory ? PS_HOLD_REGISTERED : PS_HOLD_SLABS);
    o.force = "page-locked slabs";
    check_all(&f, &o, PS_HOLD_SLABS);
    o = (ps_weights_options){.device = f.device, .lock_limit_bytes = 1000};
    check_all(&f, &o, PS_HOLD_STAGED);
    o = (ps_weights_options){.device = f.device, .lock_limit_bytes = 1000, .memory_limit_bytes = 1000};
    check_all(&f, &o, PS_HOLD_DISK);
    o.needs_direct = true;
    expect(ps_weights_open(f.model, &o, &w, &err) == PS_E_UNAVAILABLE &&
               strstr(err.message, "page-locked") != NULL && w == NULL,
           "direct reads need page-locking", err.message);
    o = (ps_weights_options){.device = f.device, .force = "by magic"};
    expect(ps_weights_open(f.model, &o, &w, &err) == PS_E_USAGE, "an unknown way", err.message);
    /* A file that was cut short is an error of reading, not of memory. */
    expect(truncate(f.path, 5000) == 0, "truncate", f.path);
    o.force = "page-locked slabs";
    expect(ps_weights_open(f.model, &o, &w, &err) == PS_E_IO && strstr(err.subject, "ps-weights") != NULL,
           "a file cut short", err.message);
    fixture_close(&f);
}

/* A matrix of more than one piece of the staging ring, and of more pieces than it has. */
static void check_ring(void) {
    fixture f = {0};
    ps_error err = {0};
    ps_weights *w;
    fixture_open(&f, "/tmp", "tiny-llama", 75000);
    const ps_weight *t = f.model->w[PS_ROLE_TOKEN_EMBD];
    ps_weights_options o = {.device = f.device, .lock_limit_bytes = 1};
    must(ps_vram_resize(f.vram, 0, &err), &err);
    ps_vram_free(f.vram);
    must(ps_vram_reserve(f.device, 128 << 20, &f.vram, &err), &err);
    must(ps_vram_resize(f.vram, 128 << 20, &err), &err);
    for (int disk = 0; disk < 2; disk++) {
        o.memory_limit_bytes = disk ? 1 : 0;
        must(ps_weights_open(f.model, &o, &w, &err), &err);
        expect(t->bytes > (uint64_t)70 << 20, "the matrix is larger than the ring", "staged");
        check_copy(&f, w, t, 0, t->rows, 0, 0, ps_weights_why(w));
        check_copy(&f, w, t, 7, t->rows - 9, 32, 32, ps_weights_why(w));
        ps_weights_close(w);
    }
    fixture_close(&f);
}

int main(void) {
    check_ring();
    check_preset("/tmp", "tiny-llama", false);
    check_preset("/tmp", "tiny-qwen3moe", false);
    if (access("/dev/shm", W_OK) == 0)
        check_preset("/dev/shm", "tiny-qwen3moe", true);
    printf("%d failures\n", failures);
    return failures != 0;
}
