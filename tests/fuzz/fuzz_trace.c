/* Trace reader: any bytes are an error, or a trace whose text reads back as the same text. */
#include <stdlib.h>
#include <string.h>

#include "schemas/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ps_trace *t, *u;
    ps_error err;
    if (ps_trace_parse((const char *)data, size, "fuzz", &t, &err) != PS_OK)
        return 0;
    char *text, *again;
    uint64_t n, n2;
    if (ps_trace_to_json(t, &text, &n, &err) != PS_OK ||
        ps_trace_parse(text, n, "again", &u, &err) != PS_OK ||
        ps_trace_to_json(u, &again, &n2, &err) != PS_OK || n != n2 || memcmp(text, again, n) != 0)
        abort();
    free(text);
    free(again);
    ps_trace_free(t);
    ps_trace_free(u);
    return 0;
}
