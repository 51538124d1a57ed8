/* The synthetic profile of the planner's tests: valid, and read back as written. With an argument it is written there,
 * for the scripts of tests/cli. */
#include <stdio.h>
#include <string.h>

#include "../unit/plan/synthetic_profile.h"

int main(int argc, char **argv) {
    ps_error err = {0};
    char line[600], *text = NULL, *again = NULL;
    uint64_t size = 0, size2 = 0;
    ps_profile *p = syn_profile(), *back = NULL;
    ps_status status = ps_profile_validate(p, &err);
    if (!status)
        status = ps_profile_format(p, &text, &size, &err);
    if (!status)
        status = ps_profile_parse(text, size, "synthetic", &back, &err);
    if (!status)
        status = ps_profile_format(back, &again, &size2, &err);
    if (!status && (size != size2 || memcmp(text, again, size) != 0))
        status = ps_error_set(&err, PS_E_INTERNAL, "synthetic", "reads back differently");
    if (!status && argc > 1)
        status = ps_profile_write(p, argv[1], &err);
    if (status)
        fprintf(stderr, "%s\n", ps_error_format(&err, line, sizeof line));
    free(text);
    free(again);
    ps_profile_free(p);
    ps_profile_free(back);
    return status ? 1 : 0;
}
