/* Which instructions of a stream are certain to have ended when another starts. Private to the checker.
 *
 * What has ended before instruction i: whatever had ended before its predecessor in the same queue started, that
 * predecessor itself where the queue is serial, everything i waits for, and whatever had ended before those.
 * In a serial queue the end of an instruction is the end of all before it, so its latest says it all. Queue cpu is the
 * one that is not: its instructions have numbers of their own, and are kept as all below a number and a bit for each of
 * the WINDOW before. Waits are seen RECORDS back. What is out of sight counts as not ended, which can refuse a safe plan and
 * never accept an unsafe one. */
#ifndef PS_SCHEMAS_CHECK_ORDER_H
#define PS_SCHEMAS_CHECK_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "schemas/plan.h"

enum {
    PS_ORDER_RECORDS = 4096,
    PS_ORDER_WINDOW = 256,
    PS_ORDER_WORDS = PS_ORDER_WINDOW / 64,
    PS_CHECK_ACCESSES = 32 /* open uses of one thing by queue cpu */
};

typedef struct ps_ended {
    ps_queue queue;                /* of the instruction itself */
    uint32_t last[PS_QUEUE_COUNT]; /* 1 + latest ended; cpu: all numbers below have ended */
    uint32_t cpu;                  /* instructions of queue cpu before it: its own number, if it is one */
    uint64_t bits[PS_ORDER_WORDS]; /* bit k: number cpu - 1 - k has ended */
} ps_ended;

typedef struct ps_order {
    uint32_t now;                         /* the instruction being looked at; streams are below 2^24 */
    ps_ended ended[PS_ORDER_RECORDS];     /* of instruction i at i % RECORDS */
    ps_ended latest[PS_QUEUE_COUNT];      /* the record of each queue's latest instruction */
    uint32_t last[PS_QUEUE_COUNT];        /* 1 + its index, 0: none */
    uint32_t cpu_index[PS_ORDER_RECORDS]; /* of cpu number k at k % RECORDS, for messages */
} ps_order;

void ps_order_start(ps_order *o);
/* Instruction `in` is the next of the stream; where it does not run, it ends when its predecessor in the queue has. */
void ps_order_enter(ps_order *o, const ps_instr *in, bool runs);
void ps_order_leave(ps_order *o);

/* Instructions that touched something: the latest of serial queues, those of queue cpu that are not known to have ended. */
typedef struct ps_accesses {
    uint32_t last[PS_QUEUE_COUNT]; /* 1 + index, 0: none; cpu unused */
    uint32_t n;
    uint32_t cpu[PS_CHECK_ACCESSES]; /* numbers */
} ps_accesses;

/* Add the present instruction; false when too many are open at once. */
bool ps_accesses_add(ps_accesses *a, const ps_order *order);
/* Have all of them ended, the present one left aside? If not, *out is the index of one that has not. */
bool ps_accesses_ended(const ps_accesses *a, const ps_order *order, uint64_t *out);
/* All of `from` to `to` as well; false when too many are open at once. */
bool ps_accesses_join(ps_accesses *to, const ps_accesses *from, const ps_order *order);

#endif
