/* Rows of the instruction set. */
#include "schemas/instruction_set.h"

#include <assert.h>

static const ps_instruction_rule rules[PS_OP_COUNT] = {
#define RULE_ROW(op, queues_, range_, needed, in_place, fmt, through)                                        \
    [PS_OP_##op] = {.queues = (queues_),                                                                     \
                    .range = PS_RANGE_##range_,                                                              \
                    .src_needed = (needed),                                                                  \
                    .src_in_place = (in_place),                                                              \
                    .src1_fmt = PS_FMT_##fmt,                                                                \
                    .passes_through = (through)},
    PS_INSTRUCTION_LIST(RULE_ROW)
#undef RULE_ROW
};

/* Every operation has its row. */
enum {
#define COUNT_ROW(op, queues, range, needed, in_place, fmt, through) ROW_OF_##op,
    PS_INSTRUCTION_LIST(COUNT_ROW)
#undef COUNT_ROW
        N_ROWS
};
_Static_assert((int)N_ROWS == (int)PS_OP_COUNT, "an operation without a rule, or one too many");

enum { HOST = 1 << PS_SPACE_HOST, VRAM = 1 << PS_SPACE_VRAM };
static const ps_queue_rule queues[PS_QUEUE_COUNT] = {
    [PS_QUEUE_CPU] = {HOST, HOST, PS_DEV_CPU, 0},
    [PS_QUEUE_GPU] = {HOST | VRAM, HOST | VRAM, PS_DEV_CUDA, 1},
    [PS_QUEUE_H2D] = {HOST, VRAM, PS_DEV_COUNT, 1},
    [PS_QUEUE_D2H] = {VRAM, HOST, PS_DEV_COUNT, 1},
};

const ps_instruction_rule *ps_instruction_rule_get(ps_op op) {
    assert((unsigned)op < PS_OP_COUNT);
    return &rules[op];
}

const ps_queue_rule *ps_queue_rule_get(ps_queue queue) {
    assert((unsigned)queue < PS_QUEUE_COUNT);
    return &queues[queue];
}
