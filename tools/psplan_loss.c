/* What psplan says of each tier's step: how busy the queues are, and what the step takes beyond everything in VRAM. */
#include <math.h>

#include "plan/loss.h"
#include "psplan.h"

static ps_loss loss_of(const psplan_view *v, const ps_level *l, const ps_tier *tier) {
    ps_loss loss;
    ps_lower_request r = ps_lower_request_of(l, tier, v->model, v->profile, v->cost);
    ps_loss_of(&r, v->plan, tier, &loss);
    return loss;
}

static double percent(double part, double whole) {
    return whole > 0 ? 100 * part / whole : 0;
}

/* The queue, another than the busiest, for whose work it waits longest; the busiest itself where it waits for none. */
static ps_queue waits_most_for(const ps_loss *e) {
    ps_queue most = e->busiest;
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        if ((ps_queue)q != e->busiest && e->wait_for_s[q] > 0 &&
            (most == e->busiest || e->wait_for_s[q] > e->wait_for_s[most]))
            most = (ps_queue)q;
    return most;
}

void psplan_loss_table(const psplan_view *v, const ps_level *l, ps_text *t) {
    bool gpu = l->budget_bytes != 0;
    ps_text_printf(t, "  %8s", "tokens");
    for (int q = 0; q < (gpu ? PS_QUEUE_COUNT : 1); q++)
        ps_text_printf(t, "  %5s", ps_queue_name((ps_queue)q));
    if (gpu)
        ps_text_printf(t, "  %5s | %7s  %6s", "link", "in vram", "budget");
    else
        ps_text_printf(t, " | %7s", "raw");
    ps_text_printf(t, "  %9s  %6s  %6s  %6s\n", gpu ? "hand-over" : "barriers", "serial", "waits", "rates");
    for (uint32_t i = 0; i < l->n_tiers; i++) {
        const ps_tier *r = &l->tiers[i];
        ps_loss e = loss_of(v, l, r);
        ps_text_printf(t, "  %8u", r->max_tokens);
        for (int q = 0; q < (gpu ? PS_QUEUE_COUNT : 1); q++)
            ps_text_printf(t, "  %4.0f%%", percent(e.busy_s[q], e.step_s));
        if (gpu)
            ps_text_printf(t, "  %4.0f%%", percent(e.link_s, e.step_s));
        ps_text_printf(t, " | %6.0f%%", percent(e.ideal_s, e.step_s));
        if (gpu)
            ps_text_printf(t, "  %5.0f%%", percent(e.budget_s, e.step_s));
        ps_text_printf(t, "  %8.0f%%", percent(e.hand_over_s, e.step_s));
        ps_text_printf(t, "  %5.0f%%  %5.0f%%  %5.0f%%", percent(e.serial_s - e.hand_over_s, e.step_s),
                       percent(e.waits_s, e.step_s), percent(e.rates_s, e.step_s));
        ps_queue other = waits_most_for(&e);
        bool said = fmin(percent(e.waits_s, e.step_s), percent(e.wait_for_s[other], e.step_s)) >= 0.5;
        if (gpu && other != e.busiest && said) /* what rounds to 0% is no wait */
            ps_text_printf(t, "  %s waits for %s", ps_queue_name(e.busiest), ps_queue_name(other));
        ps_text_printf(t, "\n");
    }
}

void psplan_loss_json(const psplan_view *v, const ps_level *l, const ps_tier *tier, ps_json *j) {
    ps_loss e = loss_of(v, l, tier);
    ps_json_object(j, "busy_s");
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        ps_json_f64(j, ps_queue_name((ps_queue)q), e.busy_s[q]);
    ps_json_f64(j, "link", e.link_s);
    ps_json_close(j);
    ps_json_object(j, "loss");
    ps_json_f64(j, "in_vram_s", e.ideal_s);
    ps_json_f64(j, "budget_s", e.budget_s);
    ps_json_f64(j, "hand_over_s", e.hand_over_s);
    ps_json_f64(j, "serial_s", e.serial_s - e.hand_over_s);
    ps_json_f64(j, "waits_s", e.waits_s);
    ps_json_f64(j, "rates_s", e.rates_s);
    ps_json_str(j, "busiest", ps_queue_name(e.busiest));
    ps_json_object(j, "busiest_waits_for_s");
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        ps_json_f64(j, ps_queue_name((ps_queue)q), e.wait_for_s[q]);
    ps_json_close(j);
    ps_json_close(j);
}
