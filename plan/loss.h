/* Where the predicted time of a tier's step goes, from what could be done with everything in VRAM to what the plan takes. */
#ifndef PS_PLAN_LOSS_H
#define PS_PLAN_LOSS_H

#include "plan/lower.h"

#ifdef __cplusplus
extern "C" {
#endif

/* At the full bucket, seconds. step_s = ideal_s + budget_s + serial_s + waits_s + rates_s where the step takes at least its
 * reachable bound; a faster one (a model that fits in the caches) has no serial, waits and rates and only as much of the others as is left. */
typedef struct ps_loss {
    double step_s;
    double ideal_s; /* raw bound with all weights and KV in VRAM; without a GPU: the raw bound */
    double
        budget_s; /* raw bound of this budget beyond that: what stays on the host comes at the link's and the CPU's rates */
    double serial_s;    /* reachable beyond raw: what cannot overlap, hand-overs included */
    double hand_over_s; /* of serial_s: hand-overs, or barriers, as the bound counts them */
    double waits_s;     /* the busiest queue idles, beyond serial_s */
    double rates_s;     /* the rest: kernels and copies below the ceilings, work that no bound counts */
    double busy_s[PS_QUEUE_COUNT]; /* predicted, beside each other */
    double link_s; /* what the bus would take alone for the weights that go over it, copied or read direct */
    ps_queue busiest;
    double wait_for_s
        [PS_QUEUE_COUNT]; /* idle time of the busiest queue by whose work it waits for; its own: start-up, order */
} ps_loss;

/* r: the tier's request (ps_lower_request_of). Pure; any thread. */
void ps_loss_of(const ps_lower_request *r, const ps_plan *plan, const ps_tier *tier, ps_loss *out);

#ifdef __cplusplus
}
#endif
#endif
