/* The table of emitters. */
#include "emit/emit.h"

#include <string.h>

static const ps_emitter table[] = {
#define EMITTER_ROW(id_, name_, input_, model_, trace_, ending_, help_)                                      \
    {name_, PS_EMIT_##input_, (model_) != 0, (trace_) != 0, ending_, help_, ps_emit_##id_},
    PS_EMITTER_LIST(EMITTER_ROW)
#undef EMITTER_ROW
};

const ps_emitter *ps_emitters(uint32_t *out_n) {
    *out_n = sizeof table / sizeof table[0];
    return table;
}

const ps_emitter *ps_emitter_find(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}
