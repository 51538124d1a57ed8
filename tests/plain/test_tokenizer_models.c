/* The tokenizers of real model files against llama.cpp, and how long opening them takes.
 * Skipped (77) if a file is neither in $PS_MODELS nor in the cache. */
#include <time.h>

#include "../models.h"
#include "../tokenizer_golden.h"

static const struct real {
    const char *golden, *file;
} reals[] = {
    {"smollm2", TEST_SMOLLM2},
    {"gemma3", TEST_GEMMA3},
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const double open_limit_ms = 1000.0;
#else
static const double open_limit_ms = 60.0;
#endif

/* Processor time, the least of a few: other work on the machine should not count. */
static double open_ms(const ps_gguf *gguf) {
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        ps_tokenizer *t = NULL;
        struct timespec from, to;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        if (ps_tokenizer_open(gguf, &t, NULL) != PS_OK)
            return 1e9;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
        ps_tokenizer_close(t);
        double ms = (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) * 1e-6;
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
        if (!test_model_path(reals[i].file, path, sizeof path)) {
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
            double ms = open_ms(gguf);
            printf("%s: %u strings, opened in %.1f ms\n", reals[i].golden, n, ms);
            if (ms > open_limit_ms) {
                fprintf(stderr, "FAIL: %s: opening takes more than %.0f ms\n", reals[i].golden,
                        open_limit_ms);
                wrong++;
            }
        }
        ps_tokenizer_close(t);
        ps_gguf_close(gguf);
    }
    printf("%u differences\n", wrong);
    return wrong != 0 ? 1 : skipped != 0 ? 77 : 0;
}
