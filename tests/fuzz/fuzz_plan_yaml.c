/* Plan reader, YAML. */
#include "plan_roundtrip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ps_plan *p;
    ps_error err;
    if (size >= 4 && memcmp(data, "PSPL", 4) == 0)
        return 0; /* the other form has a target of its own */
    if (ps_plan_parse(data, size, "fuzz", &p, &err) == PS_OK) {
        plan_roundtrip(p);
        ps_plan_free(p);
    }
    return 0;
}
