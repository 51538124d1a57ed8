/* The plan as YAML: the schema's own writer. */
#include "emit/emit.h"

ps_status ps_emit_yaml(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err) {
    return ps_plan_to_yaml(source->plan, out, out_size, err);
}
