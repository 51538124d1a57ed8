/* The cost model against functions whose values are known, on points it was given and on those it was not. */
#include <criterion/criterion.h>
#include <math.h>

#include "plan/cost.h"

/* A profile of hand-made points; kernel 1 is a product, 2 attention, 3 another product. */
typedef struct hand {
    ps_profile p;
    ps_kernel_spec kernels[3];
    ps_profile_point points[512];
    ps_profile_dram dram[3];
    ps_cost_model *cost;
} hand;

static void put(hand *h, ps_profile_point point, double t) {
    cr_assert_lt(h->p.n_points, 512);
    point.time_s = (ps_stat){.n = 5, .median = t, .q1 = t, .q3 = t};
    h->points[h->p.n_points++] = point;
}

static hand *new_hand(void) {
    hand *h = calloc(1, sizeof *h);
    h->kernels[0] = (ps_kernel_spec){.id = 1, .op = PS_OP_MATMUL, .min_tokens = 1, .max_tokens = 4096};
    h->kernels[1] = (ps_kernel_spec){.id = 2, .op = PS_OP_ATTENTION, .min_tokens = 1, .max_tokens = 4096};
    h->kernels[2] = (ps_kernel_spec){.id = 3, .op = PS_OP_MATMUL, .min_tokens = 1, .max_tokens = 4096};
    h->p = (ps_profile){.kernels = h->kernels, .n_kernels = 3, .points = h->points, .dram = h->dram};
    return h;
}

static void open_hand(hand *h) {
    ps_error err;
    cr_assert_eq(ps_cost_model_new(&h->p, &h->cost, &err), PS_OK);
}

static void free_hand(hand *h) {
    ps_cost_model_free(h->cost);
    free(h);
}

static ps_cost ask(const hand *h, ps_cost_query q) {
    ps_cost c = {0, PS_COST_QUALITY_COUNT};
    cr_assert(ps_cost_lookup(h->cost, &q, &c), "no answer");
    cr_assert(isfinite(c.time_s) && c.time_s > 0);
    return c;
}

/* A power law in every dimension is met exactly between points and, where it is the work, beyond them. */
Test(cost, power_law_is_exact) {
    hand *h = new_hand();
    const uint32_t tokens[] = {1, 16, 256};
    const uint64_t sizes[] = {256, 2048, 8192};
    for (int t = 0; t < 3; t++)
        for (int r = 0; r < 3; r++)
            for (int c = 0; c < 3; c++)
                put(h,
                    (ps_profile_point){.kernel = 1,
                                       .rows = sizes[r],
                                       .cols = sizes[c],
                                       .n_tokens = tokens[t],
                                       .n_threads = 4},
                    1e-9 * tokens[t] * (double)sizes[r] * (double)sizes[c]);
    open_hand(h);
    ps_cost c =
        ask(h, (ps_cost_query){.kernel = 1, .rows = 2048, .cols = 256, .n_tokens = 16, .n_threads = 4});
    cr_assert_eq(c.quality, PS_COST_MEASURED);
    cr_assert_float_eq(c.time_s, 1e-9 * 16 * 2048 * 256, 1e-15);
    c = ask(h, (ps_cost_query){.kernel = 1, .rows = 1000, .cols = 3000, .n_tokens = 7, .n_threads = 4});
    cr_assert_eq(c.quality, PS_COST_INTERPOLATED);
    cr_assert_float_eq(c.time_s / (1e-9 * 7 * 1000 * 3000), 1, 1e-9);
    c = ask(h, (ps_cost_query){.kernel = 1, .rows = 32768, .cols = 64, .n_tokens = 2048, .n_threads = 4});
    cr_assert_eq(c.quality, PS_COST_EXTRAPOLATED);
    cr_assert_float_eq(c.time_s / (1e-9 * 2048 * 32768.0 * 64), 1, 1e-9);
    free_hand(h);
}

/* Never the nearest neighbour: close to a small shape, the answer still grows with the shape. */
Test(cost, is_not_nearest_neighbour) {
    hand *h = new_hand();
    put(h, (ps_profile_point){.kernel = 1, .rows = 256, .cols = 256, .n_tokens = 1, .n_threads = 1}, 1e-5);
    put(h, (ps_profile_point){.kernel = 1, .rows = 4096, .cols = 256, .n_tokens = 1, .n_threads = 1}, 32e-5);
    open_hand(h);
    double last = 0;
    for (uint64_t rows = 256; rows <= 4096; rows += 64) {
        double t =
            ask(h, (ps_cost_query){.kernel = 1, .rows = rows, .cols = 256, .n_tokens = 1, .n_threads = 1})
                .time_s;
        cr_assert_gt(t, last);
        last = t;
    }
    free_hand(h);
}

/* Time over KV length is a line through the points and beyond both ends. */
Test(cost, kv_length_is_a_line) {
    hand *h = new_hand();
    const uint64_t kv[] = {128, 1024, 8192};
    for (int i = 0; i < 3; i++)
        put(h,
            (ps_profile_point){.kernel = 2,
                               .rows = 8,
                               .cols = 64,
                               .heads_kv = 2,
                               .kv_len = kv[i],
                               .n_tokens = 1,
                               .n_threads = 2},
            5e-6 + 1e-9 * (double)kv[i]);
    open_hand(h);
    const double at[] = {40, 128, 500, 1024, 4000.5, 8192, 100000};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        ps_cost c = ask(h, (ps_cost_query){.kernel = 2,
                                           .rows = 8,
                                           .cols = 64,
                                           .heads_kv = 2,
                                           .kv_len = at[i],
                                           .n_tokens = 1,
                                           .n_threads = 2});
        cr_assert_float_eq(c.time_s / (5e-6 + 1e-9 * at[i]), 1, 1e-9, "at %g", at[i]);
        cr_assert_eq(c.quality, at[i] < 128 || at[i] > 8192                      ? PS_COST_EXTRAPOLATED
                                : at[i] == 128 || at[i] == 1024 || at[i] == 8192 ? PS_COST_MEASURED
                                                                                 : PS_COST_INTERPOLATED);
    }
    free_hand(h);
}

/* Threads measured on one shape only: the ratio carries over to the other shapes. */
Test(cost, thread_scaling_carries_over) {
    hand *h = new_hand();
    for (uint64_t rows = 256; rows <= 16384; rows *= 4)
        put(h, (ps_profile_point){.kernel = 1, .rows = rows, .cols = 512, .n_tokens = 1, .n_threads = 8},
            1e-9 * (double)rows);
    for (uint32_t threads = 1; threads <= 4; threads *= 2)
        put(h,
            (ps_profile_point){.kernel = 1, .rows = 1024, .cols = 512, .n_tokens = 1, .n_threads = threads},
            1e-9 * 1024 * pow(8.0 / threads, 0.5));
    open_hand(h);
    double last = INFINITY;
    for (uint32_t threads = 1; threads <= 16; threads++) {
        double t =
            ask(h,
                (ps_cost_query){.kernel = 1, .rows = 4096, .cols = 512, .n_tokens = 1, .n_threads = threads})
                .time_s;
        double want = 1e-9 * 4096 * pow(8.0 / fmin(threads, 8), 0.5);
        cr_assert_float_eq(t / want, 1, 1e-6, "%u threads: %g, not %g", threads, t, want);
        cr_assert_leq(t, last * (1 + 1e-12));
        last = t;
    }
    free_hand(h);
}

/* A kernel measured with one team borrows the scaling of another of its operation. */
Test(cost, thread_scaling_is_borrowed) {
    hand *h = new_hand();
    put(h, (ps_profile_point){.kernel = 1, .rows = 512, .cols = 512, .n_tokens = 1, .n_threads = 4}, 1e-4);
    put(h, (ps_profile_point){.kernel = 3, .rows = 512, .cols = 512, .n_tokens = 1, .n_threads = 4}, 2e-4);
    put(h, (ps_profile_point){.kernel = 3, .rows = 512, .cols = 512, .n_tokens = 1, .n_threads = 1}, 6e-4);
    open_hand(h);
    ps_cost c = ask(h, (ps_cost_query){.kernel = 1, .rows = 512, .cols = 512, .n_tokens = 1, .n_threads = 1});
    cr_assert_float_eq(c.time_s, 3e-4, 1e-12);
    cr_assert_eq(c.quality, PS_COST_EXTRAPOLATED);
    free_hand(h);
}

Test(cost, unknown_kernels_and_broken_points_give_no_answer) {
    hand *h = new_hand();
    put(h, (ps_profile_point){.kernel = 1, .rows = 8, .cols = 8, .n_tokens = 1, .n_threads = 1}, NAN);
    put(h, (ps_profile_point){.kernel = 1, .rows = 8, .cols = 8, .n_tokens = 1, .n_threads = 1}, 0);
    open_hand(h);
    ps_cost c;
    cr_assert_not(ps_cost_lookup(
        h->cost, &(ps_cost_query){.kernel = 1, .rows = 8, .cols = 8, .n_tokens = 1, .n_threads = 1}, &c));
    cr_assert_not(ps_cost_lookup(h->cost, &(ps_cost_query){.kernel = 77, .n_tokens = 1, .n_threads = 1}, &c));
    cr_assert_eq(ps_cost_dram_bytes_per_s(h->cost, 4), 0);
    cr_assert_eq(ps_cost_matmul_flops_per_s(h->cost, 4), 0);
    free_hand(h);
}

Test(cost, ceilings) {
    hand *h = new_hand();
    h->dram[0] = (ps_profile_dram){1, {.median = 10e9}};
    h->dram[1] = (ps_profile_dram){4, {.median = 40e9}};
    h->dram[2] = (ps_profile_dram){8, {.median = 50e9}};
    h->p.n_dram = 3;
    put(h, (ps_profile_point){.kernel = 1, .rows = 1000, .cols = 1000, .n_tokens = 100, .n_threads = 4},
        1e-3); /* 200 GFLOP/s */
    put(h, (ps_profile_point){.kernel = 3, .rows = 1000, .cols = 1000, .n_tokens = 1, .n_threads = 4}, 1e-3);
    open_hand(h);
    cr_assert_float_eq(ps_cost_dram_bytes_per_s(h->cost, 4), 40e9, 1);
    cr_assert_float_eq(ps_cost_dram_bytes_per_s(h->cost, 2), 20e9, 1e3);
    cr_assert_float_eq(ps_cost_dram_bytes_per_s(h->cost, 64), 50e9, 1);
    cr_assert_float_eq(ps_cost_matmul_flops_per_s(h->cost, 4), 200e9, 1e3);
    cr_assert_float_eq(ps_cost_matmul_flops_per_s(h->cost, 8), 400e9, 1e3); /* a ceiling: scaled up */
    cr_assert_float_eq(ps_cost_matmul_flops_per_s(h->cost, 1), 200e9, 1e3); /* and never down */
    /* A team measured with single tokens only: its share of what a larger one reached. */
    free_hand(h);
    h = new_hand();
    put(h, (ps_profile_point){.kernel = 1, .rows = 1000, .cols = 1000, .n_tokens = 100, .n_threads = 4},
        1e-3);
    put(h, (ps_profile_point){.kernel = 3, .rows = 1000, .cols = 1000, .n_tokens = 1, .n_threads = 2}, 1e-3);
    open_hand(h);
    cr_assert_float_eq(ps_cost_matmul_flops_per_s(h->cost, 2), 100e9, 1e3);
    free_hand(h);
}

/* Fixed overhead plus work is a line: exact between points and below the fewest tokens; a curve that turns from one
 * slope to a steeper one is never promised to be faster than it is. */
Test(cost, overhead_plus_work) {
    hand *h = new_hand();
    const uint32_t tokens[] = {64, 512, 2048};
    for (int i = 0; i < 3; i++) {
        put(h,
            (ps_profile_point){.kernel = 1, .rows = 512, .cols = 512, .n_tokens = tokens[i], .n_threads = 2},
            1e-3 + 1e-5 * tokens[i]);
        put(h,
            (ps_profile_point){.kernel = 3, .rows = 512, .cols = 512, .n_tokens = tokens[i], .n_threads = 2},
            fmax(3e-3, 1e-5 * tokens[i]));
    }
    open_hand(h);
    for (uint32_t t = 16; t <= 2048; t += 16) {
        ps_cost_query q = {.kernel = 1, .rows = 512, .cols = 512, .n_tokens = t, .n_threads = 2};
        cr_assert_float_eq(ask(h, q).time_s / (1e-3 + 1e-5 * t), 1, 1e-9, "%u tokens", t);
        q.kernel = 3;
        if (t >= 64)
            cr_assert_geq(ask(h, q).time_s, fmax(3e-3, 1e-5 * t) * (1 - 1e-9), "%u tokens", t);
    }
    free_hand(h);
}

/* Two ceilings, of bytes and of FLOPs, with a barrier on top: answers follow them across the ridge, in tokens and in shapes, also with a
 * team of one, which has no barrier and was measured on one shape only. */
static double roofline_s(const ps_kernel_spec *k, const ps_profile_point *p) {
    double bytes, flops;
    ps_point_work(k, p, &bytes, &flops);
    return fmax(bytes / (5e9 * p->n_threads), flops / (20e9 * p->n_threads)) + (p->n_threads > 1 ? 2e-6 : 0);
}

Test(cost, ceilings_and_barriers_are_followed) {
    hand *h = new_hand();
    h->p.topology.n_allowed = 2;
    h->p.barrier_s = (ps_stat){.n = 9, .median = 2e-6, .q1 = 2e-6, .q3 = 2e-6};
    const uint32_t tokens[] = {1, 8, 32, 128, 512};
    const uint64_t sizes[] = {64, 512, 4096};
    for (int t = 0; t < 5; t++)
        for (int r = 0; r < 3; r++)
            for (int c = 0; c < 3; c++)
                for (uint32_t n = 1; n <= 2; n++) {
                    ps_profile_point p = {.kernel = 1,
                                          .rows = sizes[r],
                                          .cols = sizes[c],
                                          .n_tokens = tokens[t],
                                          .n_threads = n};
                    if (n == 2 || (r == 1 && c == 1))
                        put(h, p, roofline_s(&h->kernels[0], &p));
                }
    open_hand(h);
    for (uint32_t t = 1; t <= 512; t = t * 3 / 2 + 1)
        for (uint64_t rows = 64; rows <= 4096; rows = rows * 7 / 4)
            for (uint64_t cols = 96; cols <= 4096; cols = cols * 9 / 4)
                for (uint32_t n = 1; n <= 2; n++) {
                    ps_profile_point p = {
                        .kernel = 1, .rows = rows, .cols = cols, .n_tokens = t, .n_threads = n};
                    ps_cost c =
                        ask(h, (ps_cost_query){
                                   .kernel = 1, .rows = rows, .cols = cols, .n_tokens = t, .n_threads = n});
                    double truth = roofline_s(&h->kernels[0], &p);
                    cr_assert_float_eq(
                        c.time_s / truth, 1, 0.25, "%llux%llu, %u tokens, %u threads: %g, not %g",
                        (unsigned long long)rows, (unsigned long long)cols, t, n, c.time_s, truth);
                }
    free_hand(h);
}

/* Mixtures of other numbers of experts lie on the curves of distinct experts and of tokens for each. */
Test(cost, mixtures_of_other_experts) {
    static const struct {
        uint32_t experts, used;
    } had[] = {{32, 4}, {8, 2}, {64, 8}}, asked[] = {{128, 8}, {16, 2}, {64, 6}, {8, 2}};
    hand *h = new_hand();
    h->kernels[2].op = PS_OP_MOE_DISPATCH;
    const uint32_t tokens[] = {1, 32, 512};
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < 3; t++) {
            ps_profile_point p = {.kernel = 3,
                                  .rows = 768,
                                  .cols = 2048,
                                  .heads_kv = had[i].experts,
                                  .kv_len = had[i].used,
                                  .n_tokens = tokens[t],
                                  .n_threads = 1};
            put(h, p, roofline_s(&h->kernels[2], &p));
        }
    open_hand(h);
    for (int i = 0; i < 4; i++)
        for (uint32_t t = 1; t <= 512; t *= 2) {
            ps_profile_point p = {.kernel = 3,
                                  .rows = 1024,
                                  .cols = 1024,
                                  .heads_kv = asked[i].experts,
                                  .kv_len = asked[i].used,
                                  .n_tokens = t,
                                  .n_threads = 1};
            ps_cost c = ask(h, (ps_cost_query){.kernel = 3,
                                               .rows = p.rows,
                                               .cols = p.cols,
                                               .heads_kv = p.heads_kv,
                                               .kv_len = (double)p.kv_len,
                                               .n_tokens = t,
                                               .n_threads = 1});
            double truth = roofline_s(&h->kernels[2], &p);
            cr_assert_float_eq(c.time_s / truth, 1, 0.2, "%u of %u, %u tokens: %g, not %g", asked[i].used,
                               asked[i].experts, t, c.time_s, truth);
        }
    free_hand(h);
}
