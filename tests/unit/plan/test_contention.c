/* How CPU and bus slow each other down, by the share of the bus that is asked for: from a profile's rows to the speeds of the
 * simulator, by hand-computed cases. */
#include <criterion/criterion.h>
#include <math.h>

#include "gpu_case.h"
#include "plan/lower.h"

static void near(double a, double b, const char *what) {
    cr_assert_lt(fabs(a - b), 1e-9 * fabs(b) + 1e-12, "%s: %g, not %g", what, a, b);
}

enum { THREADS = 8 };
static const double bus_alone = 20e9, dram_alone = 100e9;

/* One number of threads. Flat out the reads keep 60% and copies in 80%; at half of the bus's rate 90% and all of it. */
static ps_profile *made(bool paced) {
    ps_profile *p = gc_profile();
    ps_profile_gpu *g = &p->gpu;
    p->n_points = 0;
    p->n_dram = 1;
    p->dram[0] = (ps_profile_dram){THREADS, gp_stat(dram_alone)};
    g->n_copies = 2;
    for (uint32_t i = 0; i < 2; i++)
        g->copies[i] =
            (ps_profile_copy){i ? PS_BUS_D2H : PS_BUS_H2D, PS_HOST_KIND_PINNED, 16 << 20, gp_stat(bus_alone)};
    g->n_together = 3;
    for (uint32_t i = 0; i < 3; i++)
        g->together[i] =
            (ps_profile_together){(ps_bus)i, THREADS, gp_stat(0.8 * bus_alone), gp_stat(0.6 * dram_alone)};
    g->paced = calloc(2, sizeof *g->paced);
    g->n_paced = paced ? 2 : 0;
    for (uint32_t i = 0; i < 2; i++)
        g->paced[i] = (ps_profile_paced){(ps_bus)i, THREADS, 0.5, gp_stat(0.5 * bus_alone),
                                         gp_stat((i ? 0.5 : 0.9) * dram_alone)};
    return p;
}

static ps_contention of(ps_profile *p, ps_cost_model **cost) {
    ps_error err = {0};
    cr_assert_eq(ps_cost_model_new(p, cost, &err), PS_OK, "%s", err.message);
    return ps_contention_of(*cost, THREADS);
}

Test(contention, follows_the_shares_that_were_measured) {
    ps_profile *p = made(true);
    ps_cost_model *cost;
    const ps_contention c = of(p, &cost);
    const ps_slowing *h2d = &c.by[PS_BUS_H2D], *d2h = &c.by[PS_BUS_D2H], *direct = &c.by[PS_BUS_DIRECT];
    cr_assert_eq(h2d->n, 2);
    cr_assert_eq(direct->n, 1, "direct reads were measured flat out alone");
    near(ps_slowing_cpu(h2d, 0), 1, "nothing on the bus");
    near(ps_slowing_cpu(h2d, 0.25), 0.95, "a quarter");
    near(ps_slowing_cpu(h2d, 0.5), 0.9, "half");
    near(ps_slowing_cpu(h2d, 0.75), 0.75, "three quarters");
    near(ps_slowing_cpu(h2d, 1), 0.6, "all");
    near(ps_slowing_bus(h2d, 0.5), 1, "half of the bus keeps its pace");
    /* Flat out both get no more than their part of the 76 GB/s that were seen of the 120 they ask for. */
    near(ps_slowing_bus(h2d, 0.75), (1 + 76.0 / 120) / 2, "three quarters of the bus");
    near(ps_slowing_bus(h2d, 1), 76.0 / 120, "all of the bus");
    near(ps_slowing_cpu(direct, 0.5), 0.8, "direct reads are a line");
    /* Half of the bus back home was measured to slow readers more than all of it: noise, and never believed. */
    near(ps_slowing_cpu(d2h, 0.5), 0.6, "never more than flat out");
    for (double s = 0, last = 1; s <= 1; s += 0.01) {
        cr_assert_leq(ps_slowing_cpu(h2d, s), last + 1e-12, "at %g", s);
        last = ps_slowing_cpu(h2d, s);
    }
    ps_cost_model_free(cost);
    ps_profile_free(p);
    p = made(false);
    const ps_contention flat = of(p, &cost);
    near(ps_slowing_cpu(&flat.by[PS_BUS_H2D], 0.5), 0.8, "without paced rows a line");
    ps_cost_model_free(cost);
    ps_profile_free(p);
}

Test(contention, the_simulator_slows_by_what_is_asked_of_the_bus) {
    ps_profile *p = made(true);
    ps_cost_model *cost;
    ps_contention c = of(p, &cost);
    ps_instr in[4] = {
        0}; /* a product of the CPU, a copy in, one home, a product of the GPU that reads the host */
    double share[4] = {0, 0.5, 0.25, 0.5};
    for (int i = 0; i < 4; i++) {
        in[i].queue = i == 0 ? PS_QUEUE_CPU : i == 1 ? PS_QUEUE_H2D : i == 2 ? PS_QUEUE_D2H : PS_QUEUE_GPU;
        for (int k = 0; k < PS_OP_MAX_WEIGHTS; k++)
            in[i].w[k] = PS_ROLE_NONE;
    }
    in[0].w[0] = in[3].w[0] = PS_ROLE_FFN_DOWN;
    in[3].at[0] = PS_AT_HOST;
    c.instrs = in;
    c.bus_share = share;
    const ps_instr *run[PS_QUEUE_COUNT] = {0};
    run[PS_QUEUE_CPU] = &in[0];
    near(ps_instr_speed(&c, run, PS_QUEUE_CPU), 1, "alone");
    run[PS_QUEUE_H2D] = &in[1];
    near(ps_instr_speed(&c, run, PS_QUEUE_CPU), 0.9, "beside half a bus");
    near(ps_instr_speed(&c, run, PS_QUEUE_H2D), 1, "half a bus");
    c.bus_share = NULL;
    near(ps_instr_speed(&c, run, PS_QUEUE_CPU), 0.6, "beside all of it");
    near(ps_instr_speed(&c, run, PS_QUEUE_H2D), 76.0 / 120, "all of it");
    c.bus_share = share;
    run[PS_QUEUE_GPU] = &in[3]; /* both ask for half: there is room */
    near(ps_instr_speed(&c, run, PS_QUEUE_CPU), 0.8, "beside direct reads too");
    near(ps_instr_speed(&c, run, PS_QUEUE_GPU), ps_slowing_bus(&c.by[PS_BUS_DIRECT], 0.5), "both fit");
    share[1] = 1;
    near(ps_instr_speed(&c, run, PS_QUEUE_GPU), 1 / 1.5, "one and a half buses");
    near(ps_instr_speed(&c, run, PS_QUEUE_H2D), 1 / 1.5, "one and a half buses");
    run[PS_QUEUE_GPU] = run[PS_QUEUE_H2D] = NULL;
    run[PS_QUEUE_D2H] = &in[2];
    near(ps_instr_speed(&c, run, PS_QUEUE_CPU), 0.8, "KV on its way home");
    in[0].w[0] = PS_ROLE_NONE;
    near(ps_instr_speed(&c, run, PS_QUEUE_CPU), 1, "what reads no weights is not in the way");
    ps_cost_model_free(cost);
    ps_profile_free(p);
}

/* Mixtures of which VRAM holds some experts, and the GPU reads others where they are: those ask for the bus, and get less of it
 * beside a copy. Returns how many there are. */
static uint32_t partly_resident(ps_family family) {
    gpu_case c = gc_shape(&mb_qwen3_30b_a3b);
    ps_level_request level = gc_level((uint64_t)8800 << 20, 2048, 1, THREADS);
    ps_plan_request q = gc_request(&c, &level, 1);
    ps_error e = {0};
    ps_plan *plan = NULL;
    uint32_t n = 0;
    q.forced = true;
    q.family = family;
    q.max_step_tokens = 8;
    cr_assert_eq(ps_plan_build(&q, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
    const ps_level *l = &plan->levels[0];
    for (uint32_t t = 0; t < l->n_tiers; t++) {
        const ps_program *p = &plan->programs[l->tiers[t].program];
        const ps_lower_request r = ps_lower_request_of(l, &l->tiers[t], c.model, c.profile, c.cost);
        double rate = ps_cost_bus_bytes_per_s(c.cost, PS_BUS_DIRECT, 16 << 20), share[PS_QUEUE_COUNT] = {0};
        for (uint32_t b = 0; b < p->n_blocks; b++)
            for (uint32_t k = p->blocks[b].instr0; k < p->blocks[b].instr0 + p->blocks[b].n_instrs; k++) {
                const ps_instr *in = &p->instrs[k];
                uint32_t layer = p->blocks[b].layer0;
                if (in->op != PS_OP_MOE_DISPATCH || in->queue != PS_QUEUE_GPU || in->at[0] != PS_AT_VRAM)
                    continue;
                double direct = ps_instr_experts(&r, p, in, layer).direct,
                       expert = 3.0 * (double)ps_model_weight(c.model, layer, in->w[0])->bytes / 128,
                       time_s = ps_instr_cost(&r, p, k, layer, 1).time_s;
                share[0] = ps_instr_bus_share(&r, p, k, layer, 1, time_s);
                near(share[0], fmin(direct * expert / (rate * time_s), 1), "of the bus");
                if (direct < 1e-9)
                    continue;
                n++;
                ps_contention by = ps_contention_of(c.cost, THREADS);
                const ps_instr both[2] = {*in, {.queue = PS_QUEUE_H2D}},
                               *run[PS_QUEUE_COUNT] = {[PS_QUEUE_GPU] = &both[0], [PS_QUEUE_H2D] = &both[1]};
                share[1] = 1;
                by.instrs = both;
                by.bus_share = share;
                near(ps_instr_speed(&by, run, PS_QUEUE_GPU), 1 / (1 + share[0]), "beside a copy");
            }
    }
    ps_plan_free(plan);
    gc_close(&c);
    return n;
}

Test(contention, mixtures_partly_in_vram_ask_for_the_bus) {
    cr_assert_gt(partly_resident(PS_FAMILY_SPLIT), 0);
    cr_assert_gt(partly_resident(PS_FAMILY_DIRECT), 0);
}

/* Attention of the GPU over a cache in host memory asks for the bus, more the longer the cache; one over VRAM does not. */
Test(contention, attention_over_the_host_s_cache_asks_for_the_bus) {
    gpu_case c = gc_shape(&mb_llama3_8b);
    ps_level_request level = gc_level((uint64_t)2400 << 20, 32768, 1, THREADS);
    ps_plan_request q = gc_request(&c, &level, 1);
    ps_error e = {0};
    ps_plan *plan = NULL;
    uint32_t n_host = 0, n_vram = 0;
    q.forced = true;
    q.family = PS_FAMILY_DIRECT;
    q.max_step_tokens = 8;
    cr_assert_eq(ps_plan_build(&q, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
    const ps_level *l = &plan->levels[0];
    const ps_program *p = &plan->programs[l->tiers[0].program];
    const ps_lower_request r = ps_lower_request_of(l, &l->tiers[0], c.model, c.profile, c.cost);
    double rate = ps_cost_bus_bytes_per_s(c.cost, PS_BUS_DIRECT, 16 << 20);
    for (uint32_t b = 0; b < p->n_blocks; b++)
        for (uint32_t k = p->blocks[b].instr0; k < p->blocks[b].instr0 + p->blocks[b].n_instrs; k++) {
            const ps_instr *in = &p->instrs[k];
            if (in->op != PS_OP_ATTENTION || in->queue != PS_QUEUE_GPU || in->kv != PS_KV_HOME)
                continue;
            for (uint32_t y = p->blocks[b].layer0; y < p->blocks[b].layer0 + p->blocks[b].n_layers; y++) {
                const bool host = l->kv[y].space == PS_SPACE_HOST;
                const ps_layer *m = &c.model->layers[y];
                n_host += host, n_vram += !host;
                for (uint64_t kv = 1024; kv <= 32768; kv *= 4) {
                    double time_s = ps_instr_cost(&r, p, k, y, kv).time_s,
                           bytes = 2.0 * m->n_head_kv * (double)(m->head_dim_k + m->head_dim_v) * (double)kv;
                    near(ps_instr_bus_share(&r, p, k, y, kv, time_s),
                         host ? fmin(bytes / (rate * time_s), 1) : 0, "of the bus");
                }
            }
        }
    cr_assert_gt(n_host, 0);
    cr_assert_gt(n_vram, 0);
    ps_plan_free(plan);
    gc_close(&c);
}
