/* Which instructions of a stream are certain to have ended when another starts. Private to the checker.
 *
 * What has ended before instruction i: whatever had ended before its predecessor in the same queue started, that
 * predecessor itself where the queue is serial, everything i waits for, and whatever had ended before those.
 * Kept as all instructions below `upto` and a bit for each of the WINDOW before i; what lies between
 * counts as not ended, which can refuse a safe plan and never accept an unsafe one. */
#ifndef PS_SCHEMAS_CHECK_ORDER_H
#define PS_SCHEMAS_CHECK_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "schemas/plan.h"

enum { PS_ORDER_WINDOW = 256, PS_ORDER_WORDS = PS_ORDER_WINDOW / 64 };

typedef struct ps_ended {
    uint64_t upto;
    uint64_t bits[PS_ORDER_WORDS]; /* bit k: instruction i - 1 - k has ended */
} ps_ended;

typedef struct ps_order {
    uint64_t now;                    /* the instruction being looked at */
    ps_ended ended[PS_ORDER_WINDOW]; /* of instruction i at i % WINDOW */
    uint64_t last[PS_QUEUE_COUNT];   /* 1 + latest instruction of each queue, 0: none */
} ps_order;

void ps_order_start(ps_order *o);
/* Instruction `in` is the next of the stream. */
void ps_order_enter(ps_order *o, const ps_instr *in);
/* Has instruction `before` ended when the one being looked at starts? */
bool ps_order_ended(const ps_order *o, uint64_t before);
void ps_order_leave(ps_order *o);

#endif
