/* CHECK for tests that are plain programs: says what failed and goes on; main returns whether `failures` is 0. */
#ifndef PS_TESTS_PLAIN_CHECK_H
#define PS_TESTS_PLAIN_CHECK_H

#include <stdio.h>

static unsigned failures;
#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            failures++;                                                                                      \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond);                                                \
            printf(__VA_ARGS__);                                                                             \
            putchar('\n');                                                                                   \
        }                                                                                                    \
    } while (0)

#endif
