/* The operation table: one row per line of PS_OP_LIST. */
#include "model/ops.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

static const ps_op_info ops[PS_OP_COUNT] = {
#define PS_OP_ROW(id, text, nw, ns, nd)                                                                      \
    [PS_OP_##id] = {.name = (text), .n_weights = nw, .n_src = ns, .n_dst = nd},
    PS_OP_LIST(PS_OP_ROW)
#undef PS_OP_ROW
};

#define PS_OP_FITS(id, text, nw, ns, nd)                                                                     \
    static_assert((nw) <= PS_OP_MAX_WEIGHTS && (ns) <= PS_OP_MAX_SRC && (nd) <= PS_OP_MAX_DST,               \
                  "operand counts of " text);
PS_OP_LIST(PS_OP_FITS)
#undef PS_OP_FITS

const ps_op_info *ps_op_get(ps_op op) {
    assert((unsigned)op < PS_OP_COUNT);
    return &ops[op];
}

ps_op ps_op_by_name(const char *name) {
    for (unsigned i = 0; name != NULL && i < PS_OP_COUNT; i++)
        if (strcmp(ops[i].name, name) == 0)
            return (ps_op)i;
    return PS_OP_COUNT;
}
