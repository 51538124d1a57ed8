/* Losses of a tier: parts that add up to the step, queues as busy as the simulated stream says, and what a wait is for. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <string.h>

#include "gpu_case.h"
#include "plan/loss.h"
#include "plan/whatif.h"

#define GIB ((uint64_t)1 << 30)

/* Busy seconds of each queue over every instruction of the simulated stream. */
static void busy_of(const ps_trace_step *step, double out[PS_QUEUE_COUNT]) {
    memset(out, 0, PS_QUEUE_COUNT * sizeof *out);
    for (uint32_t i = 0; i < step->n_events; i++)
        out[step->events[i].queue] += step->events[i].end_s - step->events[i].start_s;
}

static void check_tier(const ps_plan *plan, const gpu_case *c, const ps_profile *profile,
                       const ps_cost_model *cost, uint32_t level, uint32_t tier, const char *what) {
    const ps_level *l = &plan->levels[level];
    const ps_tier *t = &l->tiers[tier];
    ps_lower_request r = ps_lower_request_of(l, t, c->model, profile, cost);
    ps_loss e;
    ps_error err = {0};
    ps_loss_of(&r, plan, t, &e);
    double sum = e.ideal_s + e.budget_s + e.serial_s + e.waits_s + e.rates_s;
    cr_assert_float_eq(sum / t->step_full_s, 1, 1e-9, "%s, %u tokens", what, t->max_tokens);
    const double parts[] = {e.ideal_s, e.budget_s, e.serial_s, e.hand_over_s, e.waits_s, e.rates_s, e.link_s};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        cr_assert(isfinite(parts[i]) && parts[i] >= 0, "%s, %u tokens, part %zu: %g", what, t->max_tokens, i,
                  parts[i]);
    cr_assert_leq(e.hand_over_s, e.serial_s);
    if (t->step_full_s >= t->reachable_bound_s)
        cr_assert_float_eq((e.ideal_s + e.budget_s + e.serial_s) / t->reachable_bound_s, 1, 1e-9, "%s", what);
    double waits = 0;
    for (int q = 0; q < PS_QUEUE_COUNT; q++) {
        cr_assert_leq(e.busy_s[q], e.busy_s[e.busiest]);
        cr_assert_geq(e.wait_for_s[q], 0);
        waits += e.wait_for_s[q];
    }
    cr_assert_float_eq(waits, fmax(t->step_full_s - e.busy_s[e.busiest], 0), 1e-9 * t->step_full_s);
    if (t->max_tokens > 2048 || plan->n_layers > 40) /* long streams */
        return;
    ps_trace_step step;
    double busy[PS_QUEUE_COUNT];
    uint64_t kv = l->bucket_tokens - (t->max_tokens <= l->n_seqs ? 1 : t->max_tokens);
    cr_assert_eq(ps_plan_simulate_step(plan, level, tier, c->model, profile, cost, kv, &step, &err), PS_OK);
    busy_of(&step, busy);
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        cr_assert_float_eq(busy[q], e.busy_s[q], 0.03 * t->step_full_s, "%s, %u tokens, %s: %g, not %g", what,
                           t->max_tokens, ps_queue_name((ps_queue)q), e.busy_s[q], busy[q]);
    free(step.events);
}

/* forced: PS_FAMILY_COUNT: none. */
static ps_plan *plan_for(const gpu_case *c, const ps_profile *p, const ps_cost_model *cost, uint64_t budget,
                         ps_family forced) {
    ps_error e = {0};
    ps_plan *plan = NULL;
    ps_level_request level = gc_level(budget, 4096, 1, p->topology.n_allowed);
    ps_plan_request r = gc_request(c, &level, 1);
    r.profile = p;
    r.cost = cost;
    r.forced = forced != PS_FAMILY_COUNT;
    r.family = forced;
    ps_status status = ps_plan_build(&r, &plan, NULL, &e);
    cr_assert(status == PS_OK || status == PS_E_INFEASIBLE, "%s: %s", e.subject, e.message);
    return plan;
}

/* Every machine of fixtures/profiles, with and without a GPU: memory of the machine permitting. */
Test(loss, of_all_machines) {
    static const mb_shape *const shapes[] = {&mb_llama3_8b, &mb_qwen3_30b_a3b};
    gpu_case c[2] = {gc_shape(shapes[0]), gc_shape(shapes[1])};
    uint32_t n = 0;
    DIR *d = opendir("fixtures/profiles");
    cr_assert_not_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        char path[512];
        ps_error e = {0};
        ps_profile *p = NULL;
        ps_cost_model *cost = NULL;
        if (strlen(f->d_name) < 5 || strcmp(f->d_name + strlen(f->d_name) - 5, ".yaml") != 0)
            continue;
        snprintf(path, sizeof path, "fixtures/profiles/%s", f->d_name);
        cr_assert_eq(ps_profile_read(path, &p, &e), PS_OK, "%s", e.message);
        cr_assert_eq(ps_cost_model_new(p, &cost, &e), PS_OK);
#ifdef __SANITIZE_ADDRESS__ /* where it takes a minute */
        const int last = 1;
#else
        const int last = 2;
#endif
        for (int m = 0; m < 2; m++)
            for (int b = 0; b <= (p->gpu.name[0] ? last : 0); b++) {
                ps_plan *plan = plan_for(&c[m], p, cost,
                                         b == 0   ? 0
                                         : b == 1 ? 3 * GIB
                                                  : 7 * GIB,
                                         PS_FAMILY_COUNT);
                for (uint32_t t = 0; plan && t < plan->levels[0].n_tiers; t += 3, n++)
                    check_tier(plan, &c[m], p, cost, 0, t, f->d_name);
                ps_plan_free(plan);
            }
        ps_cost_model_free(cost);
        ps_profile_free(p);
    }
    closedir(d);
    cr_assert_gt(n, 60);
    gc_close(&c[0]);
    gc_close(&c[1]);
}

static ps_loss first_tier(const gpu_case *c, const ps_profile *p, uint64_t budget, ps_family forced) {
    ps_error e = {0};
    ps_cost_model *cost = NULL;
    cr_assert_eq(ps_cost_model_new(p, &cost, &e), PS_OK);
    ps_plan *plan = plan_for(c, p, cost, budget, forced);
    cr_assert_not_null(plan);
    ps_lower_request r = ps_lower_request_of(plan->levels, plan->levels->tiers, c->model, p, cost);
    ps_loss loss;
    ps_loss_of(&r, plan, plan->levels->tiers, &loss);
    ps_plan_free(plan);
    ps_cost_model_free(cost);
    return loss;
}

/* Decode: the less VRAM the more of it is the budget's doing, none with enough of it; the link is idle then, and twice as long in
 * use where it is half as fast. */
Test(loss, of_budget_and_link) {
    gpu_case c = gc_shape(&mb_llama3_8b);
    ps_error e = {0};
    ps_profile *p = NULL, *slow = NULL;
    cr_assert_eq(ps_profile_read("fixtures/profiles/h200-minitron-8b-f16.yaml", &p, &e), PS_OK, "%s",
                 e.message);
    double last = INFINITY;
    for (uint64_t gib = 2; gib <= 8; gib *= 2) {
        ps_loss x = first_tier(&c, p, gib * GIB, PS_FAMILY_COUNT);
        cr_assert_lt(x.budget_s, last, "%llu GiB", (unsigned long long)gib);
        last = x.budget_s;
        cr_assert(gib < 8 || x.link_s == 0, "%g s", x.link_s);
    }
    cr_assert_lt(last, 1e-6);
    ps_whatif wish = {.pcie_bytes_per_s = 26e9};
    cr_assert_eq(ps_profile_whatif(p, &wish, &slow, &e), PS_OK, "%s", e.message);
    ps_loss fast = first_tier(&c, p, 3 * GIB, PS_FAMILY_DIRECT),
            half = first_tier(&c, slow, 3 * GIB, PS_FAMILY_DIRECT);
    cr_assert_geq(half.budget_s, fast.budget_s * (1 - 1e-9)); /* the CPU may take over */
    cr_assert_float_eq(half.ideal_s, fast.ideal_s, 1e-12);
    cr_assert(fast.link_s > 0.8 * fast.step_s && fast.link_s <= fast.step_s * 1.1, "%g of %g s", fast.link_s,
              fast.step_s);
    cr_assert(half.link_s > 1.8 * fast.link_s && half.link_s < 2.3 * fast.link_s, "%g, %g s", half.link_s,
              fast.link_s);
    ps_profile_free(slow);
    ps_profile_free(p);
    gc_close(&c);
}

/* 1 s on the CPU, 3 s on the GPU, which waits for it, 2 s on the CPU, which waits for the GPU: the GPU is the busiest and idles
 * for 3 s, first for the CPU. Four layers, one behind the other. */
Test(loss, names_what_a_queue_waits_for) {
    gpu_case c = gc_shape(&mb_llama_small);
    ps_instr instrs[3] = {{.op = PS_OP_ADD, .queue = PS_QUEUE_CPU, .n_waits = 1, .wait = {1}},
                          {.op = PS_OP_ADD, .queue = PS_QUEUE_GPU, .n_waits = 1, .wait = {1}},
                          {.op = PS_OP_ADD, .queue = PS_QUEUE_CPU, .n_waits = 1, .wait = {1}}};
    for (int i = 0; i < 3; i++)
        for (int w = 0; w < PS_OP_MAX_WEIGHTS; w++)
            instrs[i].w[w] = PS_ROLE_NONE;
    ps_block block = {.loop = PS_LOOP_LAYERS, .n_layers = 4, .n_instrs = 3};
    ps_program program = {.n_instrs = 3, .instrs = instrs, .n_blocks = 1, .blocks = &block};
    ps_prediction times[3] = {{0, 1, 0, 1}, {1, 4, 1, 4}, {4, 6, 4, 6}};
    double period = 6;
    ps_tier tier = {.max_tokens = 1,
                    .step_full_s = 24,
                    .raw_bound_s = 5,
                    .reachable_bound_s = 8,
                    .block_period_full_s = &period,
                    .predicted = times};
    ps_plan plan = {.n_programs = 1, .programs = &program, .n_layers = c.model->n_layers};
    ps_lower_request r = {.model = c.model, .profile = c.profile, .cost = c.cost, .max_tokens = 1};
    ps_loss e;
    ps_loss_of(&r, &plan, &tier, &e);
    cr_assert_float_eq(e.busy_s[PS_QUEUE_CPU], 12, 1e-12);
    cr_assert_float_eq(e.busy_s[PS_QUEUE_GPU], 12, 1e-12);
    instrs[2].queue = PS_QUEUE_D2H;
    ps_loss_of(&r, &plan, &tier, &e);
    cr_assert_eq(e.busiest, PS_QUEUE_GPU);
    cr_assert_float_eq(e.busy_s[PS_QUEUE_GPU], 12, 1e-12);
    cr_assert_float_eq(e.wait_for_s[PS_QUEUE_CPU], 12, 1e-12);
    cr_assert_float_eq(e.wait_for_s[PS_QUEUE_D2H], 0, 1e-12);
    cr_assert_float_eq(e.ideal_s, 5, 1e-12);
    cr_assert_float_eq(e.serial_s, 3, 1e-12);
    cr_assert_float_eq(e.waits_s, 9, 1e-12);
    cr_assert_float_eq(e.rates_s, 7, 1e-12);
    /* What it waits for may be of the round before: without the first instruction the GPU starts with the round, and idles
     * for what d2h does in the one before. */
    block.instr0 = 1;
    block.n_instrs = 2;
    times[1] = (ps_prediction){0, 3, 0, 3};
    times[2] = (ps_prediction){3, 5, 3, 5};
    period = 5;
    tier.step_full_s = 20;
    ps_loss_of(&r, &plan, &tier, &e);
    cr_assert_float_eq(e.busy_s[PS_QUEUE_GPU], 12, 1e-12);
    cr_assert_float_eq(e.wait_for_s[PS_QUEUE_D2H], 8, 1e-12);
    gc_close(&c);
}

/* No step of a model that no cache holds is under what is reachable, also where the GPU is the busiest: its cache alone takes a
 * third of this step. */
Test(loss, nothing_beats_what_is_reachable) {
    gpu_case c = gc_shape(&mb_qwen3_30b_a3b);
    ps_profile *p = NULL;
    ps_cost_model *cost = NULL;
    ps_plan *plan = NULL;
    ps_error e = {0};
    cr_assert_eq(ps_profile_read("fixtures/profiles/desktop.yaml", &p, &e), PS_OK, "%s", e.message);
    cr_assert_eq(ps_cost_model_new(p, &cost, &e), PS_OK);
    ps_level_request level = gc_level(12 * GIB, 16384, 1, p->topology.n_allowed - 1);
    ps_plan_request r = gc_request(&c, &level, 1);
    r.profile = p;
    r.cost = cost;
    cr_assert_eq(ps_plan_build(&r, &plan, NULL, &e), PS_OK, "%s", e.message);
    for (uint32_t t = 0; t < plan->levels[0].n_tiers; t++) {
        const ps_tier *tier = &plan->levels[0].tiers[t];
        cr_assert_leq(tier->raw_bound_s, tier->reachable_bound_s);
        cr_assert_leq(tier->reachable_bound_s, tier->step_full_s * 1.001, "%u tokens: %g s, reachable %g s",
                      tier->max_tokens, tier->step_full_s, tier->reachable_bound_s);
    }
    ps_plan_free(plan);
    ps_cost_model_free(cost);
    ps_profile_free(p);
    gc_close(&c);
}

/* A reader of a plan puts rounds and tiles behind the first ones, as psrun's traces and reports do: first rounds where the
 * simulation has them, also where a block's copies begin in the one before; later ones about there; and the step's end. */
static void rounds_follow_the_first(const mb_shape *shape, const char *machine, uint64_t budget, bool early) {
    gpu_case c = gc_shape(shape);
    ps_profile *profile = NULL;
    ps_cost_model *cost = NULL;
    ps_error why = {0};
    cr_assert_eq(ps_profile_read(machine, &profile, &why), PS_OK, "%s", why.message);
    cr_assert_eq(ps_cost_model_new(profile, &cost, &why), PS_OK);
    ps_plan *plan = plan_for(&c, profile, cost, budget, PS_FAMILY_COUNT);
    double ahead = 0;
    const ps_level *l = plan->levels;
    for (uint32_t t = 0; t < l->n_tiers; t += t + 1 == l->n_tiers ? 1 : l->n_tiers - 1) {
        const ps_tier *tier = &l->tiers[t];
        const ps_program *p = &plan->programs[tier->program];
        ps_trace_step step;
        ps_error e = {0};
        uint64_t kv = l->bucket_tokens - (tier->max_tokens <= l->n_seqs ? 1 : tier->max_tokens);
        cr_assert_eq(ps_plan_simulate_step(plan, 0, t, c.model, profile, cost, kv, &step, &e), PS_OK);
        double last = 0, starts = step.events[0].start_s;
        uint32_t n = 0, layer;
        ps_cursor at;
        ps_cursor_start(&at, p, (tier->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS);
        for (const ps_instr *in; (in = ps_cursor_get(&at, &layer)) != NULL; ps_cursor_next(&at)) {
            const ps_prediction *f = &tier->predicted[in - p->instrs];
            if (at.instr == 0 && at.round == 0 &&
                at.tile == 0) { /* a block: where the periods before it end */
                ahead = fmax(ahead, (starts - f->start_full_s) / tier->step_full_s);
                starts += tier->block_period_full_s[at.block] * p->blocks[at.block].n_layers;
            }
            double later = ps_cursor_later_s(&at, tier->block_period_full_s[at.block]);
            last = fmax(last, later + f->end_full_s);
            if (at.tile != 0)
                continue;
            double start = f->start_full_s + later, frac = at.round == 0 ? 1e-9 : 0.02;
            cr_assert_float_eq(start, step.events[at.index].start_s, frac * tier->step_full_s,
                               "%u tokens, block %u, round %u, %s: %g, simulated %g of %g s",
                               tier->max_tokens, at.block, at.round, ps_op_get(in->op)->name, start,
                               step.events[at.index].start_s, tier->step_full_s);
            n++;
        }
        cr_assert_gt(n, 100);
        cr_assert_float_eq(last / tier->step_full_s, 1, 1e-9, "%u tokens: ends at %g, the step at %g s",
                           tier->max_tokens, last, tier->step_full_s);
        free(step.events);
    }
    cr_assert(!early || ahead > 0.02, "no block begins in the one before: %g", ahead);
    ps_plan_free(plan);
    ps_cost_model_free(cost);
    ps_profile_free(profile);
    gc_close(&c);
}

Test(loss, rounds_follow_the_first_by_their_periods) {
    rounds_follow_the_first(&mb_qwen3_30b_a3b, "fixtures/profiles/desktop.yaml", 3 * GIB, false);
    rounds_follow_the_first(&mb_llama3_8b, "fixtures/profiles/desktop.yaml", 8 * GIB, true);
}
