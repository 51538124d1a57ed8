/* Inventory of the real models (keys, tensors, types, offsets, sizes) against what PyPI's `gguf` reads
 * (tests/golden/make_inventory.py). Skipped (77) where a file is missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../models.h"
#include "core/file.h"
#include "core/text.h"
#include "model/gguf.h"

/* The golden file's text, from our reader. NULL when out of memory. */
static char *inventory(const ps_gguf *g, uint64_t *size) {
    ps_text *t = ps_text_new();
    for (uint64_t i = 0; i < g->n_kv; i++) {
        const ps_gguf_kv *kv = &g->kv[i];
        ps_text_printf(t, "key %.*s %d %d %llu\n", (int)kv->key.len, kv->key.data, (int)kv->type,
                       (int)kv->elem_type, (unsigned long long)kv->count);
    }
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const ps_gguf_tensor *w = &g->tensors[i];
        ps_text_printf(t, "tensor %.*s %d %llu %llu", (int)w->name.len, w->name.data, (int)w->type,
                       (unsigned long long)w->offset, (unsigned long long)w->bytes);
        for (uint32_t d = 0; d < w->n_dims; d++)
            ps_text_printf(t, " %llu", (unsigned long long)w->dims[d]);
        ps_text_printf(t, "\n");
    }
    return ps_text_end(t, size);
}

/* Prints the first line that differs. */
static unsigned compare(const char *name, const char *got, const char *want) {
    while (*want != '\0' || *got != '\0') {
        size_t g = strcspn(got, "\n"), w = strcspn(want, "\n");
        if (g != w || memcmp(got, want, g) != 0) {
            fprintf(stderr, "FAIL: %s: '%.*s' should be '%.*s'\n", name, (int)g, got, (int)w, want);
            return 1;
        }
        got += g + (got[g] != '\0');
        want += w + (want[w] != '\0');
    }
    return 0;
}

int main(void) {
    static const struct {
        const char *file, *golden;
    } models[] = {
        {TEST_SMOLLM2, "tests/golden/inventory-SmolLM2-135M-Instruct.Q4_1.txt"},
        {TEST_GEMMA3, "tests/golden/inventory-gemma-3-270m-q4_k_m.txt"},
    };
    unsigned wrong = 0, skipped = 0;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char path[512], *want = NULL, *got = NULL;
        uint64_t want_size, got_size;
        ps_gguf *g = NULL;
        ps_error err = {0};
        if (!test_model_path(models[i].file, path, sizeof path)) {
            skipped++;
            continue;
        }
        if (ps_gguf_open(path, &g, &err) != PS_OK ||
            ps_file_read(models[i].golden, 1 << 20, &want, &want_size, &err) != PS_OK ||
            (got = inventory(g, &got_size)) == NULL) {
            fprintf(stderr, "FAIL: %s: %s: %s\n", path, err.subject, err.message);
            wrong++;
        } else {
            wrong += compare(models[i].file, got, want);
            printf("%s: %llu keys, %llu tensors\n", models[i].file, (unsigned long long)g->n_kv,
                   (unsigned long long)g->n_tensors);
        }
        free(got);
        free(want);
        ps_gguf_close(g);
    }
    return wrong != 0 ? 1 : skipped != 0 ? 77 : 0;
}
