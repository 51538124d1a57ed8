/* Opening a plan, whichever form it has, and matching it with a model. */
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/file.h"
#include "core/options.h"
#include "schemas/plan_fields.h"

ps_status ps_plan_parse(const void *data, uint64_t size, const char *label, ps_plan **out, ps_error *err) {
    *out = NULL;
    if (size > PS_PLAN_MAX_BYTES)
        return ps_error_set(err, PS_E_DATA, label, "larger than %d bytes", PS_PLAN_MAX_BYTES);
    bool binary = size >= 4 && memcmp(data, PS_PLAN_MAGIC, 4) == 0;
    ps_plan *plan = NULL;
    ps_status status = binary ? ps_plan_parse_binary(data, size, label, &plan, err)
                              : ps_plan_parse_yaml(data, size, label, &plan, err);
    if (status != PS_OK)
        return status;
    status = ps_plan_validate(plan, err);
    if (status != PS_OK) {
        ps_error_prefix(err, label);
        ps_plan_free(plan);
        return status;
    }
    *out = plan;
    return PS_OK;
}

ps_status ps_plan_read(const char *path, ps_plan **out, ps_error *err) {
    char *data;
    uint64_t size;
    *out = NULL;
    ps_status status = ps_file_read(path, PS_PLAN_MAX_BYTES, &data, &size, err);
    if (status != PS_OK)
        return status;
    status = ps_plan_parse(data, size, path, out, err);
    free(data);
    return status;
}

const char *ps_plan_budget_name(const ps_plan *p, const char *name) {
    uint64_t bytes;
    for (uint32_t i = 0; i < p->n_levels; i++)
        if (strcmp(p->levels[i].budget, name) == 0)
            return p->levels[i].budget;
    for (uint32_t i = 0; i < p->n_levels && ps_parse_size(name, &bytes) && bytes != 0; i++)
        if (p->levels[i].budget_bytes == bytes)
            return p->levels[i].budget;
    return name;
}

void ps_plan_free(ps_plan *plan) {
    if (plan != NULL)
        ps_arena_free(plan->arena);
}
