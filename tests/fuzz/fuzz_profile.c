/* Machine profile reader: any bytes are an error, or a profile whose text reads back as the same text. */
#include <stdlib.h>
#include <string.h>

#include "schemas/machine_profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ps_profile *p, *q;
    ps_error err;
    if (ps_profile_parse((const char *)data, size, "fuzz", &p, &err) != PS_OK)
        return 0;
    char *text, *again;
    uint64_t n, n2;
    if (ps_profile_format(p, &text, &n, &err) != PS_OK ||
        ps_profile_parse(text, n, "again", &q, &err) != PS_OK ||
        ps_profile_format(q, &again, &n2, &err) != PS_OK || n != n2 || memcmp(text, again, n) != 0)
        abort();
    free(text);
    free(again);
    ps_profile_free(p);
    ps_profile_free(q);
    return 0;
}
