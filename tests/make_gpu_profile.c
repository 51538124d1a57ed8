/* Writes the machine profile of tests/gpu_profile.h, for scripts: make_gpu_profile FILE. */
#include <stdio.h>

#include "gpu_profile.h"

int main(int argc, char **argv) {
    ps_error err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: make_gpu_profile FILE\n");
        return 64;
    }
    ps_profile *p = gp_profile();
    ps_status status = ps_profile_write(p, argv[1], &err);
    if (status)
        fprintf(stderr, "%s: %s\n", err.subject, err.message);
    ps_profile_free(p);
    return status ? 73 : 0;
}
