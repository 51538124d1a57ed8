/* The tokenizers of real model files against llama.cpp, and how long opening them takes.
 * Skipped (77) if a file is neither in $PS_MODELS nor in the cache. */
#include <unistd.h>

#include "../tokenizer_golden.h"
#include "core/clock.h"

static const struct real {
    const char *golden, *file;
} reals[] = {
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
    {"gemma3", "gemma-3-270m-q4_k_m.gguf"},
};

static void model_path(const char *file, char *path, size_t size) {
    const char *models = getenv("PS_MODELS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (models != NULL)
        snprintf(path, size, "%s/%s", models, file);
    else if (cache != NULL)
        snprintf(path, size, "%s/pinstripe/%s", cache, file);
    else
        snprintf(path, size, "%s/.cache/pinstripe/%s", home == NULL ? "" : home, file);
}

/* Fastest of a few, so that a busy machine does not count. */
static double open_ms(const ps_gguf *gguf) {
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        ps_tokenizer *t = NULL;
        uint64_t start = ps_clock_ns();
        if (ps_tokenizer_open(gguf, &t, NULL) != PS_OK)
            return 1e9;
        double ms = (double)(ps_clock_ns() - start) / 1e6;
        ps_tokenizer_close(t);
        best = ms < best ? ms : best;
    }
    return best;
}

int main(void) {
    unsigned wrong = 0, skipped = 0;
    for (unsigned i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        char path[512];
        ps_gguf *gguf = NULL;
        ps_tokenizer *t = NULL;
        ps_error err = {0};
        unsigned n = 0;
        model_path(reals[i].file, path, sizeof path);
        if (access(path, R_OK) != 0) {
            printf("SKIP: no %s\n", path);
            skipped++;
            continue;
        }
        if (ps_gguf_open(path, &gguf, &err) != PS_OK || ps_tokenizer_open(gguf, &t, &err) != PS_OK) {
            fprintf(stderr, "FAIL: %s: %s: %s\n", path, err.subject, err.message);
            wrong++;
        } else {
            wrong += tg_check(t, reals[i].golden, &n);
            if (n < 500) {
                fprintf(stderr, "FAIL: %s: only %u strings\n", reals[i].golden, n);
                wrong++;
            }
            printf("%s: %u strings, opened in %.1f ms\n", reals[i].golden, n, open_ms(gguf));
        }
        ps_tokenizer_close(t);
        ps_gguf_close(gguf);
    }
    printf("%u differences\n", wrong);
    return wrong != 0 ? 1 : skipped != 0 ? 77 : 0;
}
