/* The plan as YAML: the schema's own writer. */
#include "emit/emit.h"

ps_status ps_emit_yaml(const void *plan, char **out, uint64_t *out_size, ps_error *err) {
    return ps_plan_to_yaml(plan, out, out_size, err);
}
