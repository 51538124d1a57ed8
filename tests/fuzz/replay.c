/* Runs a fuzz target over the files of its corpus, where libFuzzer is not linked in. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 64;
    }
    DIR *dir = opendir(argv[1]);
    if (dir == NULL) {
        fprintf(stderr, "%s: cannot open corpus\n", argv[1]);
        return 66;
    }
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        char *data;
        uint64_t size;
        ps_error err;
        if (ps_file_read(path, UINT64_MAX, &data, &size, &err) != PS_OK) {
            char line[600];
            fprintf(stderr, "%s\n", ps_error_format(&err, line, sizeof line));
            closedir(dir);
            return 66;
        }
        /* An exact-size copy, so that a sanitizer sees a read past the end. */
        uint8_t *copy = malloc(size == 0 ? 1 : (size_t)size);
        if (copy == NULL)
            abort();
        memcpy(copy, data, (size_t)size);
        free(data);
        LLVMFuzzerTestOneInput(copy, (size_t)size);
        free(copy);
        n++;
    }
    closedir(dir);
    printf("%u inputs replayed\n", n);
    return n == 0 ? 1 : 0; /* an empty corpus tests nothing */
}
