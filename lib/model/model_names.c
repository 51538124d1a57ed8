/* Names of roles, values and shard kinds, as plans, messages and tools spell them. */
#include "model/model.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

static const ps_role_info roles[PS_ROLE_COUNT] = {
#define PS_ROLE_ROW(id, text, layer, suffix)                                                                 \
    [PS_ROLE_##id] = {.name = text suffix, .per_layer = (layer) != 0},
    PS_ROLE_LIST(PS_ROLE_ROW)
#undef PS_ROLE_ROW
};

static const char *const values[PS_VALUE_COUNT] = {
#define PS_VALUE_ROW(id, text) [PS_VALUE_##id] = (text),
    PS_VALUE_LIST(PS_VALUE_ROW)
#undef PS_VALUE_ROW
};

static const char *const shard_kinds[PS_SHARD_KIND_COUNT] = {
    [PS_SHARD_EMBED] = "embed", [PS_SHARD_ATTN] = "attn", [PS_SHARD_FFN] = "ffn",
    [PS_SHARD_MOE] = "moe",     [PS_SHARD_HEAD] = "head",
};

const ps_role_info *ps_role_get(ps_role role) {
    assert((unsigned)role < PS_ROLE_COUNT);
    return &roles[role];
}

ps_role ps_role_by_name(const char *name) {
    for (unsigned i = 0; name != NULL && i < PS_ROLE_COUNT; i++)
        if (strcmp(roles[i].name, name) == 0)
            return (ps_role)i;
    return PS_ROLE_NONE;
}

const char *ps_value_name(ps_value v) {
    return (unsigned)v < PS_VALUE_COUNT ? values[v] : "unknown";
}

const char *ps_shard_kind_name(ps_shard_kind kind) {
    return (unsigned)kind < PS_SHARD_KIND_COUNT ? shard_kinds[kind] : "unknown";
}
