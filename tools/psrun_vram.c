/* What psrun has to do with device memory while it runs: a thread reads the meter, answers signals, and watches what other
 * processes take; the main thread says what changed, between evaluations.
 *
 * SIGUSR1 and SIGUSR2 are blocked in all threads and taken by this one, so there is no handler and no global. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "machine/device.h"
#include "psrun_internal.h"

enum {
    READ_NS = 10 * 1000 * 1000,  /* between two readings of the meter */
    CALM_NS = 200 * 1000 * 1000, /* while speed is measured: the thread takes a core from the team */
    READ_SHARE = 20,             /* but at most one part in so many of a core's time */
    WATCH_NS = 50 * 1000 * 1000, /* between two looks at what others take */
    N_LOOKS = 20                 /* what is free counts as free after so many of them */
};
static const uint64_t margin_bytes = (uint64_t)32 << 20; /* of what is free, to grow into */

struct psrun_vram {
    const psrun *r;
    uint64_t watch_bytes; /* TOTAL; 0: no watch */
    pthread_t thread;
    bool started, has_meter, quiet;
    _Atomic bool stop, calm;
    _Atomic uint64_t peak, level_peak; /* of the run; since the main thread looked last */
    _Atomic uint64_t refused_at;       /* budget that the engine is in after it could not change; 0: seen */

    /* The thread's own. */
    uint64_t most_bytes;     /* what SIGUSR1 made the most that the watch asks for */
    uint64_t asked_bytes;    /* last request */
    uint64_t looks[N_LOOKS]; /* bytes left to us, the latest ones */
    uint32_t n_looks;        /* filled; 0: none yet, or from the beginning after a refusal */
    uint32_t at;             /* next one */
    bool looked;
    uint64_t allowed_bytes; /* what the watch finds, at first the budget of the load */
    uint32_t n_short;       /* looks in a row that show more than is left */

    /* The main thread's own. */
    uint32_t n_changes, n_refused;
    uint64_t change_ns, budget_bytes;
    char budget[24];
    uint64_t over_bytes, over_budget_bytes; /* the worst reading above the budget of its time; 0: none */
};

static void raise_to(_Atomic uint64_t *at, uint64_t value) {
    uint64_t old = atomic_load_explicit(at, memory_order_relaxed);
    while (old < value && !atomic_compare_exchange_weak(at, &old, value))
        ;
}

static bool read_meter(psrun_vram *v, uint64_t *process, uint64_t *all, uint64_t *total) {
    if (!v->has_meter || ps_engine_vram_used(v->r->engine, process, all, total, NULL) != PS_OK)
        return false;
    raise_to(&v->peak, *process);
    raise_to(&v->level_peak, *process);
    return true;
}

static void say(const psrun_vram *v, const char *text) {
    if (!v->quiet)
        fprintf(stderr, "psrun: %s\n", text);
}

/* What others leave of the total. False where it cannot be told. *out_used: by this process. */
static bool read_left(psrun_vram *v, uint64_t *out_used, uint64_t *out_left) {
    uint64_t before, after, all, total, unused;
    if (!read_meter(v, &before, &all, &total) || !read_meter(v, &after, &unused, &total))
        return false;
    if (before != after) /* we are changing ourselves */
        return false;
    uint64_t others = all > before ? all - before : 0;
    *out_used = before;
    *out_left = v->watch_bytes > others ? v->watch_bytes - others : 0;
    return true;
}

static void ask(psrun_vram *v, uint64_t bytes) {
    v->asked_bytes = bytes;
    ps_engine_request_bytes(v->r->engine, bytes);
}

/* Under a watch a signal moves within what others leave: SIGUSR1 lowers the most that is asked for, SIGUSR2 raises it again,
 * and may take the margin that the watch itself keeps. */
static void on_signal(psrun_vram *v, int number) {
    const bool grow = number == SIGUSR2;
    const uint64_t to = ps_engine_next_budget(v->r->engine, grow ? 1 : -1);
    uint64_t used, left = v->looks[(v->at + N_LOOKS - 1) % N_LOOKS]; /* where it cannot be told now */
    if (to == 0) {
        say(v, grow ? "SIGUSR2: the plan has no larger budget to change to"
                    : "SIGUSR1: the plan has no smaller budget to change to");
        return;
    }
    if (grow && v->watch_bytes != 0) {
        (void)read_left(v, &used, &left);
        if (to > left) {
            if (!v->quiet)
                fprintf(
                    stderr,
                    "psrun: SIGUSR2: the next larger budget is %.1f MiB, but others leave %.1f MiB of VRAM\n",
                    (double)to * 0x1p-20, (double)left * 0x1p-20);
            return;
        }
        v->allowed_bytes = to > v->allowed_bytes ? to : v->allowed_bytes;
    }
    v->most_bytes = !grow || to > v->most_bytes ? to : v->most_bytes;
    ask(v, to);
}

/* What others leave of the total goes down at once and up only when it has stayed there for N_LOOKS looks, and then by a
 * margin less: so a process that comes and goes does not make levels flap. */
static void look(psrun_vram *v) {
    uint64_t used, left;
    if (!read_left(v, &used, &left))
        return;
    uint64_t refused_at = atomic_exchange(&v->refused_at, 0);
    if (refused_at != 0) {
        v->n_looks = 0;
        v->allowed_bytes = v->asked_bytes = refused_at;
    }
    do { /* the first look stands for all */
        v->looks[v->at] = left;
        v->at = (v->at + 1) % N_LOOKS;
        v->n_looks += v->n_looks < N_LOOKS;
    } while (!v->looked && v->n_looks < N_LOOKS);
    v->looked = true;
    uint64_t least = left;
    for (uint32_t i = 0; i < v->n_looks; i++) {
        uint64_t one = v->looks[(v->at + N_LOOKS - 1 - i) % N_LOOKS];
        least = one < least ? one : least;
    }
    uint64_t margin = least < v->watch_bytes ? margin_bytes : 0; /* none where nobody else is */
    uint64_t grown = v->n_looks == N_LOOKS && least > margin ? least - margin : 0;
    uint64_t bytes = left < v->allowed_bytes ? left : v->allowed_bytes;
    v->allowed_bytes = bytes = grown > bytes ? grown : bytes;
    bytes = bytes < v->most_bytes ? bytes : v->most_bytes;
    if (bytes != v->asked_bytes)
        ask(v, bytes);
    v->n_short = used > left ? v->n_short + 1 : 0;
    if (v->n_short == N_LOOKS && !v->quiet)
        fprintf(
            stderr,
            "psrun: warning: %.1f MiB of VRAM in use, but others leave %.1f MiB and the plan has no smaller "
            "budget\n",
            (double)used * 0x1p-20, (double)left * 0x1p-20);
}

static void *watch(void *arg) {
    psrun_vram *v = arg;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    uint64_t next_look_ns = 0;
    while (!atomic_load(&v->stop)) {
        uint64_t process, all, total, start_ns = ps_clock_ns();
        if (v->watch_bytes != 0 && start_ns >= next_look_ns) {
            look(v);
            next_look_ns = start_ns + WATCH_NS;
        } else {
            (void)read_meter(v, &process, &all, &total);
        }
        uint64_t wait_ns = (ps_clock_ns() - start_ns) * READ_SHARE;
        wait_ns = wait_ns < READ_NS ? READ_NS : wait_ns < WATCH_NS ? wait_ns : WATCH_NS;
        const uint64_t now_ns = ps_clock_ns();
        if (v->watch_bytes == 0 && atomic_load(&v->calm))
            wait_ns = CALM_NS;
        if (v->watch_bytes != 0 && now_ns + wait_ns > next_look_ns)
            wait_ns = next_look_ns > now_ns ? next_look_ns - now_ns : 0;
        const struct timespec wait = {.tv_nsec = (long)wait_ns};
        int number = sigtimedwait(&set, NULL, &wait);
        if (number > 0 && !atomic_load(&v->stop))
            on_signal(v, number);
    }
    return NULL;
}

void psrun_vram_block_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void note_budget(psrun_vram *v, const ps_engine_info *info) {
    snprintf(v->budget, sizeof v->budget, "%s", info->budget);
    v->budget_bytes = info->budget_bytes;
}

ps_status psrun_vram_start(psrun *r, ps_error *err) {
    const ps_engine_info *info = ps_engine_get_info(r->engine);
    uint64_t process, all, total, watch_bytes = psrun_option(r, "watch-vram")->u64;
    bool has_meter = ps_engine_vram_used(r->engine, &process, &all, &total, NULL) == PS_OK;
    if (watch_bytes != 0) {
        if (!has_meter)
            return ps_error_set(err, PS_E_UNAVAILABLE, "--watch-vram", "no GPU takes part in this budget");
        if (strcmp(info->meter, ps_meter_name(PS_METER_PROCESS)) != 0 &&
            strcmp(info->meter, ps_meter_name(PS_METER_EMULATED)) != 0)
            return ps_error_set(err, PS_E_UNAVAILABLE, "--watch-vram",
                                "the meter here (%s) cannot tell this process from others on the GPU",
                                info->meter);
        if (watch_bytes > total)
            return ps_error_set(err, PS_E_USAGE, "--watch-vram", "the GPU has %" PRIu64 " bytes", total);
    }
    psrun_vram *v = r->vram = calloc(1, sizeof *v);
    if (v == NULL)
        return ps_error_set(err, PS_E_NOMEM, "meter", "no memory");
    ps_engine_stats stats;
    ps_engine_get_stats(r->engine, &stats);
    v->r = r;
    v->watch_bytes = watch_bytes;
    v->has_meter = has_meter;
    v->quiet = psrun_option(r, "quiet")->set;
    v->asked_bytes = v->allowed_bytes = info->budget_bytes;
    v->most_bytes = UINT64_MAX;
    note_budget(v, info);
    raise_to(&v->peak, stats.vram_peak_bytes);
    int bad = pthread_create(&v->thread, NULL, watch, v);
    if (bad != 0)
        return ps_error_errno(err, PS_E_OS, "meter", bad, "cannot start its thread");
    v->started = true;
    return PS_OK;
}

/* Readings since the last call were taken under the budget of then, or of now: the larger one counts. */
static void judge_peak(psrun_vram *v, uint64_t now_bytes) {
    uint64_t most = v->budget_bytes > now_bytes ? v->budget_bytes : now_bytes;
    uint64_t peak = atomic_exchange(&v->level_peak, 0);
    if (most != 0 && peak > most && peak - most > v->over_bytes - v->over_budget_bytes) {
        v->over_bytes = peak;
        v->over_budget_bytes = most;
    }
}

void psrun_vram_calm(const psrun *r) {
    atomic_store(&r->vram->calm, true);
}

ps_status psrun_eval(const psrun *r, const ps_eval_item *items, uint32_t n_items, ps_error *err) {
    ps_status status = ps_engine_eval(r->engine, items, n_items, err);
    if (status == PS_OK)
        psrun_vram_note(r);
    return status;
}

void psrun_vram_note(const psrun *r) {
    psrun_vram *v = r->vram;
    ps_engine_stats stats;
    ps_engine_get_stats(r->engine, &stats);
    if (stats.n_changes == v->n_changes && stats.n_refused == v->n_refused)
        return;
    const ps_engine_info *info = ps_engine_get_info(r->engine);
    double ms = (double)(stats.change_ns - v->change_ns) * 1e-6;
    judge_peak(v, info->budget_bytes);
    if (stats.n_refused != v->n_refused) {
        atomic_store(&v->refused_at, info->budget_bytes);
        if (!v->quiet)
            fprintf(stderr, "psrun: no VRAM for a larger budget; at %s after %.1f ms\n", info->budget, ms);
    } else if (!v->quiet && strcmp(v->budget, info->budget) == 0) {
        fprintf(stderr, "psrun: room for %" PRIu64 " tokens in %.1f ms\n", info->bucket, ms);
    } else if (!v->quiet) {
        fprintf(stderr, "psrun: budget %s, was %s: changed in %.1f ms\n", info->budget, v->budget, ms);
    }
    note_budget(v, info);
    v->n_changes = stats.n_changes;
    v->n_refused = stats.n_refused;
    v->change_ns = stats.change_ns;
}

void psrun_vram_end(const psrun *r) {
    psrun_vram *v = r->vram;
    if (v == NULL || !v->has_meter)
        return;
    uint64_t process, all, total;
    psrun_vram_note(r);
    (void)read_meter(v, &process, &all, &total);
    judge_peak(v, v->budget_bytes);
    if (v->quiet)
        return;
    fprintf(stderr, "VRAM       %6.1f MiB at most, budget %s\n", (double)atomic_load(&v->peak) * 0x1p-20,
            v->budget);
    if (v->over_bytes != 0)
        fprintf(stderr, "psrun: warning: %.1f MiB of VRAM were in use under a budget of %.1f MiB\n",
                (double)v->over_bytes * 0x1p-20, (double)v->over_budget_bytes * 0x1p-20);
}

void psrun_vram_json(const psrun *r, ps_json *j) {
    psrun_vram *v = r->vram;
    const ps_engine_info *info = ps_engine_get_info(r->engine);
    ps_engine_stats s;
    uint64_t process, all, total;
    ps_engine_get_stats(r->engine, &s);
    ps_json_str(j, "device", info->device);
    ps_json_str(j, "weights_held", info->weights);
    if (!v->has_meter)
        return;
    (void)read_meter(v, &process, &all, &total);
    ps_json_str(j, "meter", info->meter);
    ps_json_u64(j, "budget_bytes", info->budget_bytes);
    ps_json_u64(j, "peak_vram_bytes", atomic_load(&v->peak));
    ps_json_u64(j, "vram_base_bytes", info->vram_base_bytes);
    ps_json_u64(j, "vram_work_bytes", info->vram_work_bytes);
    ps_json_u64(j, "vram_weight_bytes", info->vram_weight_bytes);
    ps_json_u64(j, "context_bucket", info->bucket);
    ps_json_u64(j, "steps", s.n_steps);
    ps_json_u64(j, "graph_steps", s.n_graph_steps);
    ps_json_u64(j, "graphs", s.n_graphs);
    ps_json_u64(j, "copied_bytes", s.copied_bytes);
    ps_json_u64(j, "direct_bytes", s.direct_bytes);
    ps_json_u64(j, "level_changes", s.n_changes);
    ps_json_f64(j, "level_change_s", (double)s.change_ns * 1e-9);
    ps_json_u64(j, "steps_run_again", s.n_abandoned);
}

void psrun_vram_free(psrun *r) {
    psrun_vram *v = r->vram;
    if (v == NULL)
        return;
    if (v->started) {
        atomic_store(&v->stop, true);
        pthread_kill(v->thread, SIGUSR1); /* ends its wait */
        pthread_join(v->thread, NULL);
    }
    free(v);
    r->vram = NULL;
}

uint64_t psrun_emulated_others(void *path) {
    FILE *f = fopen(path, "r");
    uint64_t bytes = 0;
    if (f == NULL)
        return 0;
    if (fscanf(f, "%" SCNu64, &bytes) != 1)
        bytes = 0;
    fclose(f);
    return bytes;
}
