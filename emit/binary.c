/* The plan in its binary form: the schema's own writer. */
#include "emit/emit.h"

ps_status ps_emit_binary(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err) {
    uint8_t *bytes = NULL;
    ps_status status = ps_plan_to_binary(source->plan, &bytes, out_size, err);
    if (!status)
        *out = (char *)bytes;
    return status;
}
