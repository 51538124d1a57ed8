/* Plan reader, binary. Size and checksum of the header are put right first, or nothing would get past them. */
#include "plan_roundtrip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ps_plan *p;
    ps_error err;
    if (ps_plan_parse(data, size, "fuzz", &p, &err) == PS_OK)
        ps_plan_free(p);
    if (size < 40)
        return 0;
    uint8_t *copy = malloc(size);
    if (copy == NULL)
        return 0;
    memcpy(copy, data, size);
    memcpy(copy, "PSPL", 4);
    for (int i = 0; i < 8; i++)
        copy[8 + i] = (uint8_t)((uint64_t)size >> 8 * i);
    ps_hash_bytes(copy + 32, size - 32, copy + 16);
    if (ps_plan_parse(copy, size, "fuzz", &p, &err) == PS_OK) {
        plan_roundtrip(p);
        ps_plan_free(p);
    }
    free(copy);
    return 0;
}
