/* The simulator: order, overlap and contention by hand-computed cases, and the closed form for loops against the full
 * expansion on random programs of all four queues. */
#include <criterion/criterion.h>
#include <math.h>

#include "plan/simulate.h"

typedef struct toy {
    ps_program p;
    ps_instr instrs[64];
    ps_block blocks[8];
    double work[64];
} toy;

static void add(toy *t, ps_queue q, double work, const uint32_t *waits, uint32_t n_waits) {
    ps_instr *in = &t->instrs[t->p.n_instrs];
    *in = (ps_instr){.queue = q, .dst = PS_NO_BUFFER, .n_waits = n_waits};
    for (uint32_t i = 0; i < n_waits; i++)
        in->wait[i] = waits[i];
    t->work[t->p.n_instrs++] = work;
    t->blocks[t->p.n_blocks - 1].n_instrs++;
}

static void block(toy *t, uint32_t rounds, bool over_tiles) {
    t->p.instrs = t->instrs;
    t->p.blocks = t->blocks;
    t->blocks[t->p.n_blocks++] = (ps_block){.loop = rounds > 1 ? PS_LOOP_LAYERS : PS_LOOP_ONCE,
                                            .n_layers = rounds,
                                            .over_tiles = over_tiles,
                                            .instr0 = t->p.n_instrs};
}

#define WAITS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4
#define NO_WAITS NULL, 0

static double end_of(const ps_sim *s, ps_sim_time **out_times) {
    ps_error err;
    uint64_t n;
    double end;
    cr_assert_eq(ps_simulate_all(s, out_times, &n, &end, &err), PS_OK);
    return end;
}

Test(simulate, one_queue_is_a_sum) {
    toy t = {0};
    block(&t, 1, false);
    add(&t, PS_QUEUE_CPU, 1, NO_WAITS);
    add(&t, PS_QUEUE_CPU, 2, WAITS(1));
    add(&t, PS_QUEUE_CPU, 3, NO_WAITS); /* in order even without a wait */
    ps_sim s = {.program = &t.p, .n_tiles = 1, .work_s = t.work, .start_s = 0.5};
    ps_sim_time *times;
    double end = end_of(&s, &times);
    cr_assert_float_eq(end, 6.5, 1e-12);
    cr_assert_float_eq(times[2].start_s, 3.5, 1e-12);
    free(times);
}

/* A copy runs beside the CPU, the GPU starts when its copy is done, the CPU waits for the GPU. */
Test(simulate, queues_overlap_and_wait) {
    toy t = {0};
    block(&t, 1, false);
    add(&t, PS_QUEUE_H2D, 4, NO_WAITS);
    add(&t, PS_QUEUE_CPU, 3, NO_WAITS);
    add(&t, PS_QUEUE_GPU, 2, WAITS(2));
    add(&t, PS_QUEUE_CPU, 1, WAITS(1));
    add(&t, PS_QUEUE_D2H, 5, WAITS(2));
    ps_sim s = {.program = &t.p, .n_tiles = 1, .work_s = t.work};
    ps_sim_time *times;
    double end = end_of(&s, &times);
    cr_assert_float_eq(end, 11, 1e-12);
    cr_assert_float_eq(times[1].end_s, 3, 1e-12);
    cr_assert_float_eq(times[2].start_s, 4, 1e-12);
    cr_assert_float_eq(times[3].start_s, 6, 1e-12);
    cr_assert_float_eq(times[4].start_s, 6, 1e-12);
    free(times);
}

/* While CPU and H2D run together the copy goes at 1/2 and the CPU at 3/4. */
static double contended(void *ctx, const ps_instr *const running[PS_QUEUE_COUNT], ps_queue q) {
    (void)ctx;
    if (!running[PS_QUEUE_CPU] || !running[PS_QUEUE_H2D])
        return 1;
    return q == PS_QUEUE_H2D ? 0.5 : q == PS_QUEUE_CPU ? 0.75 : 1;
}

Test(simulate, contention_changes_speed_at_every_start_and_end) {
    toy t = {0};
    block(&t, 1, false);
    add(&t, PS_QUEUE_CPU, 3, NO_WAITS); /* beside the copy until 4: 3 of work at 3/4 */
    add(&t, PS_QUEUE_H2D, 5, NO_WAITS); /* 2 done at 4, then the last 3 alone: ends at 7 */
    ps_sim s = {.program = &t.p, .n_tiles = 1, .work_s = t.work, .speed = contended};
    ps_sim_time *times;
    double end = end_of(&s, &times);
    cr_assert_float_eq(end, 7, 1e-12);
    cr_assert_float_eq(times[0].end_s, 4, 1e-12);
    free(times);
}

Test(simulate, waits_before_the_stream_wait_for_nothing_and_bad_work_is_refused) {
    toy t = {0};
    ps_error err;
    uint64_t n;
    ps_sim_time *times;
    block(&t, 3, false);
    add(&t, PS_QUEUE_CPU, 1, WAITS(2));
    ps_sim s = {.program = &t.p, .n_tiles = 1, .work_s = t.work};
    double end = end_of(&s, &times);
    cr_assert_float_eq(end, 3, 1e-12);
    free(times);
    t.work[0] = NAN;
    cr_assert_eq(ps_simulate_all(&s, &times, &n, &end, &err), PS_E_USAGE);
    t.work[0] = -1;
    cr_assert_eq(ps_simulate_all(&s, &times, &n, &end, &err), PS_E_USAGE);
}

static uint64_t random_state;
static uint32_t rnd(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

/* prologue, a long block, another, an epilogue */
static void random_program(toy *t, bool cpu_only) {
    const uint32_t rounds[] = {1, 2 + rnd(60), 1 + rnd(40), 1};
    *t = (toy){0};
    for (int b = 0; b < 4; b++) {
        block(t, rounds[b], rounds[b] > 1 && rnd(3) == 0);
        uint32_t n = 1 + rnd(9);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t w[3], n_waits = 0, d = 0;
            while (n_waits < 3 && rnd(3) != 0)
                w[n_waits++] = d += 1 + rnd(6);
            add(t, cpu_only ? PS_QUEUE_CPU : (ps_queue)rnd(PS_QUEUE_COUNT), (1 + rnd(1000)) * 1e-6, w,
                n_waits);
        }
    }
}

static void closed_form_equals_expansion(bool cpu_only, ps_sim_speed speed, uint64_t seed) {
    toy t;
    random_state = seed;
    for (int i = 0; i < 400; i++) {
        random_program(&t, cpu_only);
        ps_sim s = {
            .program = &t.p, .n_tiles = 1 + rnd(3), .work_s = t.work, .start_s = 1e-5, .speed = speed};
        ps_sim_time *all, first[64];
        ps_sim_block blocks[8];
        ps_error err;
        double end = end_of(&s, &all), closed;
        cr_assert_eq(ps_simulate(&s, first, blocks, &closed, &err), PS_OK);
        cr_assert_float_eq(closed / end, 1, 1e-9, "program %d: %.17g and %.17g", i, closed, end);
        uint64_t at = 0;
        for (uint32_t b = 0; b < t.p.n_blocks; b++) {
            const ps_block *k = &t.p.blocks[b];
            uint64_t round = (uint64_t)k->n_instrs * (k->over_tiles ? s.n_tiles : 1);
            for (uint32_t j = 0; j < k->n_instrs; j++) {
                cr_assert_float_eq(first[k->instr0 + j].start_s, all[at + j].start_s, 1e-9 * end,
                                   "program %d", i);
                cr_assert_float_eq(first[k->instr0 + j].end_s, all[at + j].end_s, 1e-9 * end, "program %d",
                                   i);
            }
            if (cpu_only) /* every round is the first, later by whole periods */
                for (uint64_t r = 1; r < k->n_layers; r++)
                    cr_assert_float_eq(all[at + r * round].start_s,
                                       first[k->instr0].start_s + (double)r * blocks[b].period_s, 1e-9 * end);
            at += round * k->n_layers;
        }
        free(all);
    }
}

Test(simulate, closed_form_on_the_cpu_queue) {
    closed_form_equals_expansion(true, NULL, 1);
}

Test(simulate, closed_form_on_four_queues) {
    closed_form_equals_expansion(false, NULL, 2);
}

Test(simulate, closed_form_under_contention) {
    closed_form_equals_expansion(false, contended, 3);
}
