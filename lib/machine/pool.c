/* Thread pool of the CPU queue.
 *
 * One primitive carries everything: a line, a 32-bit value alone on its cache lines that one thread sets
 * and others wait for. Waiting spins, then sleeps on a futex, so that a thread whose partner was pushed off its
 * CPU by somebody else does not burn that CPU in turn. It never yields: on a busy machine a yield gives a whole
 * time slice away (measured at load 17 on two cores: half the tokens per second), a futex wakes up at once.
 *
 *   start      set by thread 0, one more per job; the team waits for it
 *   arrive[t]  set by thread t to its count of barriers once its whole subtree has come: thread t gathers
 *              threads FAN*t+1 .. FAN*t+FAN, so the cost grows with the logarithm of the team
 *   release    set by thread 0 when all have come; the team waits for it
 *
 *   ended[t]   set by thread t to the number of the job once it is through with it
 *
 * An abandoned job is the exception: its barriers let everybody go, counts then differ from thread to thread, and thread 0
 * sets all of them back to 0 once everybody has ended the job. The lines change their values too when a job is abandoned: a
 * flag beside them would not keep a thread awake that is between its last look and its sleep.
 *
 * The end of a job is the gathering half of a barrier; the next start is its release. Values are compared for
 * equality: nobody can get two rounds ahead, since every round needs everybody. */
#include "machine/pool.h"

#include <errno.h>
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#define ps_pause() _mm_pause()
#elif defined(__aarch64__)
#define ps_pause() __asm__ volatile("isb" ::: "memory")
#else
#define ps_pause() ((void)0)
#endif

enum {
    LINE_BYTES = 128, /* two cache lines: the neighbour is prefetched with it */
    FAN = 8,
    SPIN_NS = 200000, /* longer than any gap between instructions when nobody interferes */
    IDLE_SPIN_NS = 2000,
    PAUSES_PER_CLOCK = 32,
};

static const uint32_t VOID_BIT = 1u << 31; /* of a line's value: its job was abandoned */

typedef struct pool_line {
    _Alignas(LINE_BYTES) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
} pool_line;

typedef struct pool_thread {
    pool_line arrive, ended;
    _Alignas(LINE_BYTES) ps_pool *pool;
    uint32_t index;
    uint32_t round; /* barriers passed; only its own thread touches it */
    pthread_t handle;
    hwloc_bitmap_t cpus; /* to be bound to; NULL: leave it to the system */
} pool_thread;

struct ps_pool {
    pool_line start, release;
    _Alignas(LINE_BYTES) _Atomic bool hot; /* a step is open */
    _Atomic bool abandoned;                /* the job that runs */
    ps_pool_job job;                       /* NULL: end */
    void *ctx;
    uint32_t n_threads, n_started;
    hwloc_topology_t topology;
    _Atomic uint32_t n_bound;
    /* The caller is bound while a step is open only: outside it is the application's thread. */
    cpu_set_t *caller_set, *caller_saved;
    size_t set_bytes;
    bool caller_bound;
    pool_thread *threads;
};

static void futex_wait(_Atomic uint32_t *value, uint32_t seen) {
    /* Returns at once if *value != seen; spurious returns are fine, every caller looks again. */
    syscall(SYS_futex, value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void line_wake(pool_line *l) {
    if (atomic_load(&l->sleepers) != 0)
        syscall(SYS_futex, &l->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void line_set(pool_line *l, uint32_t value) {
    /* Sequentially consistent on both sides: either the sleeper is seen here, or it sees the new value. */
    atomic_store(&l->value, value);
    line_wake(l);
}

/* Sleep while the value is `seen`, unless *hot turned true (NULL: not looked at). */
static void line_sleep(pool_line *l, uint32_t seen, const _Atomic bool *hot) {
    atomic_fetch_add(&l->sleepers, 1);
    if (atomic_load(&l->value) == seen && !(hot && atomic_load(hot)))
        futex_wait(&l->value, seen);
    atomic_fetch_sub(&l->sleepers, 1);
}

/* Spin until the value is no longer `seen`, at most about spin_ns. */
static bool line_spin(const pool_line *l, uint32_t seen, uint64_t spin_ns) {
    uint64_t until = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_PER_CLOCK; i++) {
            if (atomic_load_explicit(&l->value, memory_order_acquire) != seen)
                return true;
            ps_pause();
        }
        const uint64_t now = ps_clock_ns();
        if (until == 0)
            until = now + spin_ns;
        else if (now >= until)
            return false;
    }
}

/* Wait until the value is `want`; it is want - 1 until then. Or until *gone is true. */
static void line_wait(pool_line *l, uint32_t want, const _Atomic bool *gone) {
    const uint32_t seen = want - 1;
    if (line_spin(l, seen, SPIN_NS))
        return;
    while (atomic_load_explicit(&l->value, memory_order_acquire) == seen && !atomic_load(gone))
        line_sleep(l, seen, gone);
}

/* Wait for the next job: as line_wait while a step is open, else sleep after a moment. A step that opens wakes
 * the sleepers so that they spin by the time the first job comes. */
static void wait_start(ps_pool *p, uint32_t want) {
    pool_line *l = &p->start;
    const uint32_t seen = want - 1;
    while (atomic_load_explicit(&l->value, memory_order_acquire) == seen) {
        if (atomic_load_explicit(&p->hot, memory_order_relaxed)) {
            if (line_spin(l, seen, SPIN_NS))
                return;
            line_sleep(l, seen, NULL);
        } else {
            if (line_spin(l, seen, IDLE_SPIN_NS))
                return;
            line_sleep(l, seen, &p->hot);
        }
    }
}

/* Wait for the subtree below `thread`; everybody but thread 0 then tells its parent. */
static void gather(ps_pool *p, uint32_t thread) {
    pool_thread *me = &p->threads[thread];
    const uint32_t round = ++me->round;
    const uint64_t first = (uint64_t)thread * FAN + 1;
    for (uint64_t c = first; c < first + FAN && c < p->n_threads; c++)
        line_wait(&p->threads[c].arrive, round, &p->abandoned);
    if (thread != 0)
        line_set(&me->arrive, round);
}

void ps_pool_barrier(ps_pool *pool, uint32_t thread) {
    if (pool->n_threads == 1 || atomic_load(&pool->abandoned))
        return;
    /* Read before arriving: the release cannot move until this thread has come. */
    const uint32_t next = atomic_load_explicit(&pool->release.value, memory_order_relaxed) + 1;
    gather(pool, thread);
    if (thread == 0)
        line_set(&pool->release, next);
    else
        line_wait(&pool->release, next, &pool->abandoned);
}

/* Give the line a value that nobody waits for, and wake whoever sleeps on it. */
static void line_void(pool_line *l) {
    atomic_fetch_xor(&l->value, VOID_BIT);
    line_wake(l);
}

void ps_pool_abandon(ps_pool *pool) {
    if (atomic_exchange(&pool->abandoned, true))
        return; /* voided already: a second time would bring the old values back */
    line_void(&pool->release);
    for (uint32_t t = 0; t < pool->n_threads; t++)
        line_void(&pool->threads[t].arrive);
}

/* Thread 0, at the end of an abandoned job: everybody is out of it, and counts begin anew. */
static void settle(ps_pool *p) {
    const uint32_t job = atomic_load_explicit(&p->start.value, memory_order_relaxed);
    for (uint32_t t = 1; t < p->n_threads; t++) {
        pool_line *l = &p->threads[t].ended; /* it may be at the job before last, if it was slow to start */
        for (uint32_t at; (at = atomic_load(&l->value)) != job;)
            if (!line_spin(l, at, SPIN_NS))
                line_sleep(l, at, NULL);
    }
    for (uint32_t t = 0; t < p->n_threads; t++) {
        p->threads[t].round = 0;
        atomic_store(&p->threads[t].arrive.value, 0);
    }
    atomic_store(&p->release.value, 0);
    atomic_store(&p->abandoned, false);
}

static void *team_main(void *arg) {
    pool_thread *me = arg;
    ps_pool *p = me->pool;
    if (me->cpus && hwloc_set_cpubind(p->topology, me->cpus, HWLOC_CPUBIND_THREAD) == 0)
        atomic_fetch_add(&p->n_bound, 1);
    for (uint32_t round = 1;; round++) {
        wait_start(p, round);
        if (!p->job)
            return NULL;
        p->job(p->ctx, me->index);
        gather(p, me->index);
        line_set(&me->ended, round);
    }
}

void ps_pool_run(ps_pool *pool, ps_pool_job job, void *ctx) {
    if (pool->n_threads == 1) {
        job(ctx, 0);
        return;
    }
    pool->job = job;
    pool->ctx = ctx;
    line_set(&pool->start, atomic_load_explicit(&pool->start.value, memory_order_relaxed) + 1);
    job(ctx, 0);
    gather(pool, 0);
    if (atomic_load(&pool->abandoned))
        settle(pool);
}

void ps_pool_step_begin(ps_pool *pool) {
    if (pool->n_threads == 1)
        return;
    atomic_store(&pool->hot, true);
    if (atomic_load(&pool->start.sleepers) != 0)
        syscall(SYS_futex, &pool->start.value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    pool->caller_bound = pool->caller_set && sched_getaffinity(0, pool->set_bytes, pool->caller_saved) == 0 &&
                         sched_setaffinity(0, pool->set_bytes, pool->caller_set) == 0;
}

void ps_pool_step_end(ps_pool *pool) {
    if (pool->n_threads == 1)
        return;
    atomic_store(&pool->hot, false);
    if (pool->caller_bound)
        sched_setaffinity(0, pool->set_bytes, pool->caller_saved);
    pool->caller_bound = false;
}

uint32_t ps_pool_threads(const ps_pool *pool) {
    return pool->n_threads;
}

uint32_t ps_pool_bound(const ps_pool *pool) {
    return atomic_load(&pool->n_bound);
}

/* Where thread t of the team may run. With a CPU to each thread it gets that one. Where a quota and not the
 * CPUs limits us, the others belong to other containers that would choose the same first ones: then it may move
 * among all allowed CPUs of one NUMA node. NULL with *out_ok false: out of memory. */
static hwloc_bitmap_t thread_cpus(const ps_machine *m, uint32_t t, bool *out_ok) {
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    *out_ok = set != NULL;
    if (!set)
        return NULL;
    const ps_cpu *own = &m->cpus[t];
    if (m->n_allowed == m->n_cpus) {
        hwloc_bitmap_set(set, own->os_index);
        return set;
    }
    for (uint32_t i = 0; i < m->n_cpus; i++)
        if (m->cpus[i].numa == own->numa)
            hwloc_bitmap_set(set, m->cpus[i].os_index);
    return set;
}

static ps_status prepare_caller(ps_pool *p, ps_error *err) {
    const hwloc_bitmap_t cpus = p->threads[0].cpus;
    const int last = hwloc_bitmap_last(cpus);
    const int possible = (int)sysconf(_SC_NPROCESSORS_CONF);
    const size_t n = (size_t)(last + 1 > possible ? last + 1 : possible) + 1024;
    p->set_bytes = CPU_ALLOC_SIZE(n);
    p->caller_set = CPU_ALLOC(n);
    p->caller_saved = CPU_ALLOC(n);
    if (!p->caller_set || !p->caller_saved ||
        hwloc_cpuset_to_glibc_sched_affinity(p->topology, cpus, p->caller_set, p->set_bytes) != 0)
        return ps_error_set(err, PS_E_NOMEM, "", "no memory for the thread pool");
    return PS_OK;
}

ps_status ps_pool_new(const ps_machine *machine, uint32_t n_threads, ps_pool **out, ps_error *err) {
    ps_status st = PS_OK;
    *out = NULL;
    if (n_threads == 0 || n_threads > machine->n_allowed)
        return ps_error_set(err, PS_E_USAGE, "threads", "%u asked for, this process may use 1 to %u",
                            n_threads, machine->n_allowed);
    ps_pool *p = aligned_alloc(LINE_BYTES, sizeof *p);
    if (!p)
        return ps_error_set(err, PS_E_NOMEM, "", "no memory for the thread pool");
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    p->topology = machine->hwloc;
    p->threads = aligned_alloc(LINE_BYTES, n_threads * sizeof *p->threads);
    if (!p->threads) {
        st = ps_error_set(err, PS_E_NOMEM, "", "no memory for a pool of %u threads", n_threads);
        goto done;
    }
    memset(p->threads, 0, n_threads * sizeof *p->threads);
    const bool bind = ps_machine_is_live(machine) && n_threads > 1;
    for (uint32_t t = 0; t < n_threads; t++) {
        bool ok = true;
        p->threads[t].pool = p;
        p->threads[t].index = t;
        if (bind)
            p->threads[t].cpus = thread_cpus(machine, t, &ok);
        if (!ok) {
            st = ps_error_set(err, PS_E_NOMEM, "", "no memory for a pool of %u threads", n_threads);
            goto done;
        }
    }
    if (bind && (st = prepare_caller(p, err)) != PS_OK)
        goto done;
    p->n_started = 1;
    for (uint32_t t = 1; t < n_threads; t++) {
        const int e = pthread_create(&p->threads[t].handle, NULL, team_main, &p->threads[t]);
        if (e != 0) {
            st = ps_error_errno(err, PS_E_OS, "threads", e, "cannot start thread %u of %u", t + 1, n_threads);
            goto done;
        }
        p->n_started++;
    }
done:
    if (st == PS_OK)
        *out = p;
    else
        ps_pool_free(p);
    return st;
}

void ps_pool_free(ps_pool *pool) {
    if (!pool)
        return;
    if (pool->n_started > 1) {
        pool->job = NULL;
        line_set(&pool->start, atomic_load_explicit(&pool->start.value, memory_order_relaxed) + 1);
        for (uint32_t t = 1; t < pool->n_started; t++)
            pthread_join(pool->threads[t].handle, NULL);
    }
    if (pool->caller_set)
        CPU_FREE(pool->caller_set);
    if (pool->caller_saved)
        CPU_FREE(pool->caller_saved);
    for (uint32_t t = 0; pool->threads && t < pool->n_threads; t++)
        hwloc_bitmap_free(pool->threads[t].cpus);
    free(pool->threads);
    free(pool);
}
