/* Thread pool: every job reaches every thread once, barriers order everything, nothing is lost when threads
 * sleep or are more than the CPUs. Made to run under TSan too. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "machine/pool.h"

static int failures;

#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            fprintf(stderr, "%s:%d: " #cond ": ", __FILE__, __LINE__);                                       \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fprintf(stderr, "\n");                                                                           \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

enum { MAX_THREADS = 96, BARRIERS_PER_JOB = 3 };

/* Plain (not atomic) slots: TSan reports any that the pool does not order. */
typedef struct work {
    ps_pool *pool;
    uint32_t n;
    struct {
        uint64_t jobs, value;
        char pad[112];
    } slot[MAX_THREADS];
    uint64_t bad;
    _Atomic uint64_t bad_seen;
} work;

static void job_barriers(void *ctx, uint32_t thread) {
    work *w = ctx;
    w->slot[thread].jobs++;
    for (int b = 0; b < BARRIERS_PER_JOB; b++) {
        w->slot[thread].value++;
        ps_pool_barrier(w->pool, thread);
        /* A neighbour's value of this round must be visible, and none may have gone on. */
        const uint32_t other = (thread + 1) % w->n;
        if (w->slot[other].value != w->slot[thread].value)
            atomic_fetch_add(&w->bad_seen, 1);
        ps_pool_barrier(w->pool, thread);
    }
}

static void job_plain(void *ctx, uint32_t thread) {
    work *w = ctx;
    w->slot[thread].jobs++;
}

/* jobs jobs on n threads; a step is open for stretches, and now and then the team is left to fall asleep. Where others
 * keep the CPUs busy each barrier may cost a turn of theirs: after ten seconds a fiftieth of the jobs will do. */
static void run_team(const ps_machine *m, uint32_t n, uint64_t jobs, bool barriers) {
    const uint64_t deadline_ns = ps_clock_ns() + 10000000000u, least = jobs / 50;
    ps_error err = {0};
    work *w = calloc(1, sizeof *w);
    CHECK(w, "no memory");
    if (!w)
        return;
    CHECK(ps_pool_new(m, n, &w->pool, &err) == PS_OK, "%s: %s", err.subject, err.message);
    if (!w->pool) {
        free(w);
        return;
    }
    w->n = n;
    CHECK(ps_pool_threads(w->pool) == n, "%u", ps_pool_threads(w->pool));
    bool open = false;
    for (uint64_t j = 0; j < jobs; j++) {
        if (j % 97 == 0) {
            if (open)
                ps_pool_step_end(w->pool);
            else
                ps_pool_step_begin(w->pool);
            open = !open;
        }
        if (j % 4999 == 4998)
            usleep(2000); /* longer than anybody spins */
        ps_pool_run(w->pool, barriers ? job_barriers : job_plain, w);
        if (w->slot[n - 1].jobs != j + 1)
            w->bad++;
        if (j + 1 >= least && j % 64 == 0 && ps_clock_ns() > deadline_ns && j + 1 < jobs) {
            printf("%u threads: %llu of %llu jobs in ten seconds\n", n, (unsigned long long)(j + 1),
                   (unsigned long long)jobs);
            jobs = j + 1;
        }
    }
    if (open)
        ps_pool_step_end(w->pool);
    ps_pool_free(w->pool);
    for (uint32_t t = 0; t < n; t++) {
        CHECK(w->slot[t].jobs == jobs, "thread %u of %u ran %lu of %lu jobs", t, n,
              (unsigned long)w->slot[t].jobs, (unsigned long)jobs);
        if (barriers)
            CHECK(w->slot[t].value == jobs * BARRIERS_PER_JOB, "thread %u of %u", t, n);
    }
    CHECK(w->bad == 0, "%u threads: %lu jobs came back before all had run", n, (unsigned long)w->bad);
    CHECK(w->bad_seen == 0, "%u threads: %lu barriers let a thread through early", n,
          (unsigned long)w->bad_seen);
    free(w);
}

/* A pool made by one thread of the application while another is used: no shared state between pools. */
static void *second_pool(void *arg) {
    run_team(arg, 2, 1000, true);
    return NULL;
}

/* Thread 0 gives up at some point; the others come through different numbers of barriers. */
typedef struct giving_up {
    ps_pool *pool;
    uint32_t after;
    _Atomic uint32_t gone, ended;
} giving_up;

static void job_abandoned(void *ctx, uint32_t thread) {
    giving_up *g = ctx;
    for (uint32_t i = 0; i < 20 && !atomic_load(&g->gone); i++) {
        if (thread == 0 && i == g->after) {
            atomic_store(&g->gone, 1);
            ps_pool_abandon(g->pool);
        }
        ps_pool_barrier(g->pool, thread);
    }
    atomic_fetch_add(&g->ended, 1);
}

static void run_abandoned(const ps_machine *m, uint32_t n) {
    ps_error err;
    ps_pool *pool = NULL;
    CHECK(ps_pool_new(m, n, &pool, &err) == PS_OK, "%s", err.message);
    if (!pool)
        return;
    for (uint32_t i = 0; i < 60; i++) {
        giving_up g = {.pool = pool, .after = i % 23};
        ps_pool_step_begin(pool);
        ps_pool_run(pool, job_abandoned, &g);
        ps_pool_step_end(pool);
        CHECK(g.ended == n, "%u of %u threads ended", g.ended, n);
    }
    ps_pool_free(pool);
}

static void job_many_barriers(void *ctx, uint32_t thread) {
    work *w = ctx;
    for (int i = 0; i < 10000; i++)
        ps_pool_barrier(w->pool, thread);
}

static void report_cost(const ps_machine *m, uint32_t n) {
    ps_error err = {0};
    work *w = calloc(1, sizeof *w);
    if (!w || ps_pool_new(m, n, &w->pool, &err) != PS_OK) {
        free(w);
        return;
    }
    double best = 1e9;
    ps_pool_step_begin(w->pool);
    for (int i = 0; i < 5; i++) {
        const uint64_t t0 = ps_clock_ns();
        ps_pool_run(w->pool, job_many_barriers, w);
        const double ns = (double)(ps_clock_ns() - t0) / 10000;
        if (ns < best)
            best = ns;
    }
    ps_pool_step_end(w->pool);
    printf("%u threads: %.0f ns per barrier (best of 5)\n", n, best);
    ps_pool_free(w->pool);
    free(w);
}

int main(void) {
    ps_machine *live = NULL, *wide = NULL;
    ps_error err = {0};
    if (ps_machine_open(NULL, &live, &err) != PS_OK ||
        ps_machine_open("fixtures/machines/two-sockets", &wide, &err) != PS_OK) {
        fprintf(stderr, "%s: %s\n", err.subject, err.message);
        return 1;
    }
    ps_pool *none = NULL;
    CHECK(ps_pool_new(live, live->n_allowed + 1, &none, &err) == PS_E_USAGE && !none, "above the limit");
    CHECK(ps_pool_new(live, 0, &none, &err) == PS_E_USAGE && !none, "no threads");

    for (uint32_t n = 1; n <= live->n_allowed;
         n = n < live->n_allowed && n * 2 > live->n_allowed ? live->n_allowed : n * 2)
        run_team(live, n, 100000 / BARRIERS_PER_JOB, true);
    run_team(live, live->n_allowed, 100000, false);
    /* More threads than CPUs, more than one level of the gathering tree: on a recorded machine. */
    for (uint32_t n = 3; n <= 16; n += 4)
        run_team(wide, n, 300, true);
    run_team(wide, 16, 1000, false);

    run_abandoned(live, live->n_allowed);
    run_abandoned(wide, 11);
    pthread_t other;
    if (pthread_create(&other, NULL, second_pool, wide) == 0) {
        run_team(wide, 3, 1000, true);
        pthread_join(other, NULL);
    }
    for (uint32_t n = 1; n <= live->n_allowed; n *= 2)
        report_cost(live, n);
    ps_machine_close(live);
    ps_machine_close(wide);
    if (failures == 0)
        printf("ok\n");
    return failures != 0;
}
