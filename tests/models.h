/* Where the real model files are: $PS_MODELS, else $XDG_CACHE_HOME/pinstripe, else ~/.cache/pinstripe. */
#ifndef PS_TESTS_MODELS_H
#define PS_TESTS_MODELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TEST_SMOLLM2 "SmolLM2-135M-Instruct.Q4_1.gguf"
#define TEST_GEMMA3 "gemma-3-270m-q4_k_m.gguf"

/* Path of `file`; false, with a line that says SKIP, when it is not there: the test then ends with 77 if nothing
 * else failed. */
static inline bool test_model_path(const char *file, char *path, size_t size) {
    const char *models = getenv("PS_MODELS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (models != NULL)
        snprintf(path, size, "%s/%s", models, file);
    else if (cache != NULL)
        snprintf(path, size, "%s/pinstripe/%s", cache, file);
    else
        snprintf(path, size, "%s/.cache/pinstripe/%s", home == NULL ? "" : home, file);
    if (access(path, R_OK) == 0)
        return true;
    printf("SKIP: no %s\n", path);
    return false;
}

#endif
