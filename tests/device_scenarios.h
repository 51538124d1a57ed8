/* What any device must do, whatever its driver: a table of scenarios, run by plain/test_device.c on the emulated device
 * and by gpu/test_cuda_device.cu on a GPU. The includer defines, before including, how work gets onto a stream:
 *   static ps_status scenario_scale(device, stream, dst, src, n, mul, add, err)   dst[i] = src[i] * mul + add, uint32_t
 *   static ps_status scenario_delay(device, stream, us, err)                      nothing, for about us microseconds
 * Both ask ps_device_fault("launch") where the driver does not ask by itself. Valid as C17 and C++17. */
#ifndef PS_TESTS_DEVICE_SCENARIOS_H
#define PS_TESTS_DEVICE_SCENARIOS_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "machine/device.h"

static int scenario_failures;

#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                                       \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fprintf(stderr, "\n");                                                                           \
            scenario_failures++;                                                                             \
        }                                                                                                    \
    } while (0)
#define OK(call)                                                                                             \
    do {                                                                                                     \
        ps_error err_;                                                                                       \
        memset(&err_, 0, sizeof err_);                                                                       \
        ps_error *err = &err_;                                                                               \
        const ps_status st_ = (call);                                                                        \
        CHECK(st_ == PS_OK, "%s: %s: %s", ps_status_name(st_), err_.subject, err_.message);                  \
    } while (0)
/* The call must fail so, and say why. */
#define FAILS(status, call)                                                                                  \
    do {                                                                                                     \
        ps_error err_;                                                                                       \
        memset(&err_, 0, sizeof err_);                                                                       \
        ps_error *err = &err_;                                                                               \
        const ps_status st_ = (call);                                                                        \
        CHECK(st_ == (status), "%s: %s: %s", ps_status_name(st_), err_.subject, err_.message);               \
        CHECK(err_.message[0], "no message");                                                                \
    } while (0)

#define SCENARIO_MIB ((uint64_t)1 << 20)
static const ps_stream scenario_streams[PS_STREAM_COUNT] = {PS_STREAM_COMPUTE, PS_STREAM_H2D, PS_STREAM_D2H};

static uint32_t scenario_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void scenario_nap(long ns) {
    struct timespec t;
    t.tv_sec = 0;
    t.tv_nsec = ns;
    nanosleep(&t, NULL);
}

/* The host's side of a flag: until it has come so far; false after ten seconds. Naps are longer than a hand-over takes. */
static bool scenario_flag_reaches(ps_device *d, uint64_t value) {
    const uint64_t *flag = ps_device_flag(d, PS_FLAG_GPU), begin = ps_clock_ns();
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) < value) {
        const uint64_t waited = ps_clock_ns() - begin;
        if (waited > 10000000000u)
            return false;
        if (waited > 20000)
            scenario_nap(2000);
    }
    return true;
}

static void scenario_raise(ps_device *d, uint64_t value) {
    __atomic_store_n(ps_device_flag(d, PS_FLAG_CPU), value, __ATOMIC_RELEASE);
}

static uint32_t *scenario_host(ps_device *d, uint64_t bytes, uint32_t **out_device) {
    void *host = NULL;
    uint8_t *at = NULL;
    OK(ps_device_host_alloc(d, bytes, &host, &at, err));
    if (!host || !at) {
        fprintf(stderr, "no host memory: the scenarios cannot go on\n");
        exit(1);
    }
    for (uint64_t i = 0; i < bytes / 4; i++)
        if (((const uint32_t *)host)[i] != 0) {
            CHECK(false, "host memory is not zeroed");
            break;
        }
    *out_device = (uint32_t *)(void *)at;
    return (uint32_t *)host;
}

static ps_vram_range *scenario_vram(ps_device *d, uint64_t bytes) {
    ps_vram_range *range = NULL;
    OK(ps_vram_reserve(d, bytes, &range, err));
    if (range)
        OK(ps_vram_resize(range, bytes, err));
    if (!range || ps_vram_mapped(range) != bytes) {
        fprintf(stderr, "no VRAM: the scenarios cannot go on\n");
        exit(1);
    }
    return range;
}

/* ---- VRAM ---- */
static void scenario_sizes(ps_device *d) {
    const uint64_t handle = PS_VRAM_HANDLE, most = 8 * handle;
    ps_vram_range *range = NULL;
    OK(ps_vram_reserve(d, most, &range, err));
    if (!range)
        return;
    uint8_t *base = ps_vram_base(range);
    CHECK((uintptr_t)base % 4096 == 0, "%p", (void *)base);
    CHECK(ps_vram_mapped(range) == 0, "%" PRIu64, ps_vram_mapped(range));
    uint32_t *d_host, *host = scenario_host(d, most, &d_host);
    uint64_t before = 0, used = 0, all = 0, total = 0;
    ps_meter how = PS_METER_COUNT;
    OK(ps_device_vram_used(d, &before, &how, err));
    CHECK(how < PS_METER_COUNT, "%d", how);
    OK(ps_device_vram_all(d, &all, &total, err));
    CHECK(all <= total && total > 0, "%" PRIu64 " of %" PRIu64, all, total);
    CHECK(before <= all, "%" PRIu64 " of %" PRIu64, before, all);
    static const uint32_t sizes[] = {3, 5, 2, 8, 8, 0, 1, 7, 0};
    uint64_t kept = 0; /* handles whose content is known */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const uint64_t bytes = sizes[i] * handle;
        OK(ps_vram_resize(range, bytes, err));
        CHECK(ps_vram_mapped(range) == bytes && ps_vram_base(range) == base, "%zu", i);
        OK(ps_device_vram_used(d, &used, &how, err));
        const int64_t off = (int64_t)(used - before - bytes);
        CHECK(d_host && (ps_device_get_info(d)->emulated
                             ? off == 0
                             : off >= -(int64_t)(8 * SCENARIO_MIB) && off <= (int64_t)(8 * SCENARIO_MIB)),
              "size %zu: the meter (%s) is off by %" PRId64, i, ps_meter_name(how), off);
        if (kept > sizes[i])
            kept = sizes[i];
        /* What stayed is as it was. */
        memset(host, 0, most);
        if (kept > 0)
            OK(ps_device_copy(d, PS_STREAM_D2H, host, 0, base, 0, kept * handle, 1, err));
        OK(ps_device_sync(d, err));
        uint64_t bad = 0;
        for (uint64_t k = 0; k < kept * handle / 4; k++)
            bad += host[k] != (uint32_t)k * 2654435761u;
        CHECK(bad == 0, "size %zu: %" PRIu64 " words are lost", i, bad);
        for (uint64_t k = 0; k < bytes / 4; k++)
            host[k] = (uint32_t)k * 2654435761u;
        if (bytes > 0)
            OK(ps_device_copy(d, PS_STREAM_H2D, base, 0, host, 0, bytes, 1, err));
        OK(ps_device_sync(d, err));
        kept = sizes[i];
    }
    FAILS(PS_E_USAGE, ps_vram_resize(range, handle + 4096, err));
    FAILS(PS_E_USAGE, ps_vram_resize(range, most + handle, err));
    ps_vram_range *other = NULL;
    FAILS(PS_E_USAGE, ps_vram_reserve(d, 4096, &other, err));
    FAILS(PS_E_USAGE, ps_vram_reserve(d, 0, &other, err));
    /* More than there is: refused, and nothing is lost or kept. */
    OK(ps_vram_resize(range, handle, err));
    OK(ps_vram_reserve(d, (total / handle + 64) * handle, &other, err));
    if (other) {
        OK(ps_vram_resize(other, 2 * handle, err));
        FAILS(PS_E_NOMEM, ps_vram_resize(other, (total / handle + 64) * handle, err));
        CHECK(ps_vram_mapped(other) == 2 * handle, "%" PRIu64, ps_vram_mapped(other));
        OK(ps_vram_resize(other, 3 * handle, err));
        ps_vram_free(other);
    }
    OK(ps_device_vram_used(d, &used, &how, err));
    CHECK(used <= before + handle + 8 * SCENARIO_MIB, "%" PRIu64 " after %" PRIu64, used, before);
    ps_vram_free(range);
    ps_vram_free(NULL);
    ps_device_host_free(d, host);
    ps_device_host_free(d, NULL);
}

/* ---- copies ---- */
static void scenario_copies(ps_device *d) {
    enum { BYTES = 1 << 20 };
    ps_vram_range *range = scenario_vram(d, PS_VRAM_HANDLE);
    uint8_t *vram = ps_vram_base(range);
    uint32_t *d_in, *d_out;
    uint8_t *in = (uint8_t *)scenario_host(d, BYTES, &d_in),
            *out = (uint8_t *)scenario_host(d, BYTES, &d_out);
    uint8_t *page = (uint8_t *)mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
            *d_page = NULL;
    CHECK(page != MAP_FAILED, "mmap");
    FAILS(PS_E_USAGE, ps_device_host_register(d, page + 16, 4096, &d_page, err));
    FAILS(PS_E_USAGE, ps_device_host_register(d, page, 100, &d_page, err));
    OK(ps_device_host_register(d, page, BYTES, &d_page, err));
    FAILS(PS_E_USAGE, ps_device_host_register(d, page, 4096, &d_page, err));
    uint32_t seed = 1;
    static const uint64_t rows_of[] = {1, 2, 7, 64}, bytes_of[] = {1, 16, 513, 4096};
    for (int s = 0; s < PS_STREAM_COUNT; s++)
        for (int r = 0; r < 4; r++)
            for (int b = 0; b < 4; b++) {
                const ps_stream stream = scenario_streams[s];
                const uint64_t rows = rows_of[r], bytes = bytes_of[b], gap = 48 * (uint64_t)(1 + r);
                const uint64_t host_pitch = bytes + gap, vram_pitch = bytes + 2 * gap,
                               off = 32 * (uint64_t)s + 16;
                uint8_t *src = b % 2 ? in : page;
                for (uint64_t i = 0; i < BYTES; i++)
                    src[i] = (uint8_t)scenario_random(&seed);
                memset(out, 0xee, BYTES);
                /* In at a pitch, on inside VRAM at another, out without gaps; then all of it. */
                OK(ps_device_copy(d, stream, vram + off, vram_pitch, src + 8, host_pitch, bytes, rows, err));
                OK(ps_device_copy(d, stream, vram + 4 * SCENARIO_MIB, bytes, vram + off, vram_pitch, bytes,
                                  rows, err));
                OK(ps_device_copy(d, stream, out, bytes + 4, vram + 4 * SCENARIO_MIB, bytes, bytes, rows,
                                  err));
                OK(ps_device_sync(d, err));
                uint64_t bad = 0;
                for (uint64_t i = 0; i < rows; i++) {
                    bad += memcmp(out + i * (bytes + 4), src + 8 + i * host_pitch, bytes) != 0;
                    for (int g = 0; g < 4; g++)
                        bad += out[i * (bytes + 4) + bytes + (uint64_t)g] != 0xee;
                }
                CHECK(bad == 0, "%" PRIu64 " rows of %" PRIu64 " x %" PRIu64 " on %s", bad, rows, bytes,
                      ps_stream_name(stream));
            }
    OK(ps_device_copy(d, PS_STREAM_H2D, vram, 0, in, 0, BYTES, 1, err));
    OK(ps_device_sync(d, err));
    OK(ps_device_copy(d, PS_STREAM_D2H, out, 0, vram, 0, BYTES, 1, err));
    OK(ps_device_copy(d, PS_STREAM_D2H, out, 0, vram, 0, 0, 1, err));
    OK(ps_device_copy(d, PS_STREAM_D2H, out, 0, vram, 0, BYTES, 0, err));
    OK(ps_device_sync(d, err));
    CHECK(memcmp(in, out, BYTES) == 0, "whole");
    FAILS(PS_E_USAGE, ps_device_copy(d, PS_STREAM_H2D, vram, 8, in, 16, 16, 2, err));
    FAILS(PS_E_USAGE, ps_device_copy(d, PS_STREAM_COUNT, vram, 8, in, 16, 16, 2, err));
    OK(ps_device_check(d, err));
    ps_device_host_unregister(d, page);
    munmap(page, BYTES);
    ps_device_host_free(d, in);
    ps_device_host_free(d, out);
    ps_vram_free(range);
}

/* ---- events ---- */
enum { PIPE_WORDS = 4096, PIPE_SLOTS = 3, PIPE_STEPS = 300, EVENT_IN = 0, EVENT_DONE = 8, EVENT_OUT = 16 };

typedef struct scenario_pipe {
    ps_vram_range *range;
    uint32_t *vram, *in, *d_in, *out, *d_out;
} scenario_pipe;

static scenario_pipe scenario_pipe_new(ps_device *d, uint32_t steps) {
    scenario_pipe p;
    p.range = scenario_vram(d, PS_VRAM_HANDLE);
    p.vram = (uint32_t *)(void *)ps_vram_base(p.range);
    p.in = scenario_host(d, (uint64_t)steps * PIPE_WORDS * 4, &p.d_in);
    p.out = scenario_host(d, (uint64_t)steps * PIPE_WORDS * 4, &p.d_out);
    return p;
}

static void scenario_pipe_free(ps_device *d, scenario_pipe *p) {
    ps_device_host_free(d, p->in);
    ps_device_host_free(d, p->out);
    ps_vram_free(p->range);
}

/* Copy in, compute, copy out over a ring of slots, each on its stream, with random delays: `steps` times. Ends joined to the
 * compute stream; begins by forking from it. */
static void scenario_pipe_enqueue(ps_device *d, const scenario_pipe *p, uint32_t steps, uint32_t *seed,
                                  uint32_t max_us) {
    OK(ps_device_record(d, PS_STREAM_COMPUTE, 100, err));
    OK(ps_device_wait(d, PS_STREAM_H2D, 100, err));
    OK(ps_device_wait(d, PS_STREAM_D2H, 100, err));
    for (uint32_t i = 0; i < steps; i++) {
        const uint32_t slot = i % PIPE_SLOTS;
        uint32_t *a = p->vram + (uint64_t)slot * PIPE_WORDS,
                 *b = p->vram + (uint64_t)(PIPE_SLOTS + slot) * PIPE_WORDS;
        const uint64_t at = (uint64_t)i * PIPE_WORDS, bytes = PIPE_WORDS * 4;
        if (i >= PIPE_SLOTS)
            OK(ps_device_wait(d, PS_STREAM_H2D, EVENT_DONE + slot, err));
        if (max_us && scenario_random(seed) % 4 == 0)
            OK(scenario_delay(d, PS_STREAM_H2D, scenario_random(seed) % max_us, err));
        OK(ps_device_copy(d, PS_STREAM_H2D, a, 0, p->in + at, 0, bytes, 1, err));
        OK(ps_device_record(d, PS_STREAM_H2D, EVENT_IN + slot, err));
        OK(ps_device_wait(d, PS_STREAM_COMPUTE, EVENT_IN + slot, err));
        if (i >= PIPE_SLOTS)
            OK(ps_device_wait(d, PS_STREAM_COMPUTE, EVENT_OUT + slot, err));
        if (max_us && scenario_random(seed) % 4 == 0)
            OK(scenario_delay(d, PS_STREAM_COMPUTE, scenario_random(seed) % max_us, err));
        OK(scenario_scale(d, PS_STREAM_COMPUTE, b, a, PIPE_WORDS, 3 + i, i, err));
        OK(ps_device_record(d, PS_STREAM_COMPUTE, EVENT_DONE + slot, err));
        OK(ps_device_wait(d, PS_STREAM_D2H, EVENT_DONE + slot, err));
        if (max_us && scenario_random(seed) % 4 == 0)
            OK(scenario_delay(d, PS_STREAM_D2H, scenario_random(seed) % max_us, err));
        OK(ps_device_copy(d, PS_STREAM_D2H, p->out + at, 0, b, 0, bytes, 1, err));
        OK(ps_device_record(d, PS_STREAM_D2H, EVENT_OUT + slot, err));
    }
    OK(ps_device_record(d, PS_STREAM_H2D, 101, err));
    OK(ps_device_record(d, PS_STREAM_D2H, 102, err));
    OK(ps_device_wait(d, PS_STREAM_COMPUTE, 101, err));
    OK(ps_device_wait(d, PS_STREAM_COMPUTE, 102, err));
}

static void scenario_pipe_fill(scenario_pipe *p, uint32_t steps, uint32_t *seed) {
    for (uint64_t i = 0; i < (uint64_t)steps * PIPE_WORDS; i++) {
        p->in[i] = scenario_random(seed);
        p->out[i] = 0;
    }
}

static uint64_t scenario_pipe_bad(const scenario_pipe *p, uint32_t steps) {
    uint64_t bad = 0;
    for (uint32_t i = 0; i < steps; i++)
        for (uint64_t k = (uint64_t)i * PIPE_WORDS; k < (uint64_t)(i + 1) * PIPE_WORDS; k++)
            bad += p->out[k] != p->in[k] * (3 + i) + i;
    return bad;
}

static void scenario_events(ps_device *d) {
    uint32_t seed = 7;
    scenario_pipe p = scenario_pipe_new(d, PIPE_STEPS);
    scenario_pipe_fill(&p, PIPE_STEPS, &seed);
    bool passed = false;
    OK(ps_device_passed(d, 4000, &passed, err));
    CHECK(passed, "an event that was never recorded");
    OK(ps_device_wait(d, PS_STREAM_H2D, 4000, err));
    OK(ps_device_time(d, PS_STREAM_COMPUTE, 200, err));
    scenario_pipe_enqueue(d, &p, PIPE_STEPS, &seed, 300);
    OK(scenario_delay(d, PS_STREAM_COMPUTE, 2000, err));
    OK(ps_device_time(d, PS_STREAM_COMPUTE, 201, err));
    OK(ps_device_record(d, PS_STREAM_COMPUTE, 103, err));
    OK(ps_device_sync(d, err));
    CHECK(scenario_pipe_bad(&p, PIPE_STEPS) == 0, "%" PRIu64 " words", scenario_pipe_bad(&p, PIPE_STEPS));
    double s = -1;
    OK(ps_device_passed(d, 103, &passed, err));
    CHECK(passed, "after sync");
    OK(ps_device_elapsed(d, 200, 201, &s, err));
    CHECK(s >= 1e-3 && s < 60, "%g s", s);
    OK(ps_device_elapsed(d, 201, 200, &s, err));
    CHECK(s <= -1e-3, "%g s", s);
    FAILS(PS_E_USAGE, ps_device_elapsed(d, 103, 201, &s, err));
    FAILS(PS_E_USAGE, ps_device_record(d, PS_STREAM_H2D, PS_DEVICE_EVENTS, err));
    FAILS(PS_E_USAGE, ps_device_wait(d, PS_STREAM_H2D, PS_DEVICE_EVENTS, err));
    FAILS(PS_E_USAGE, ps_device_passed(d, PS_DEVICE_EVENTS, &passed, err));
    /* An event passes only once what is before it has ended: the await holds it back. */
    uint32_t *d_base, *base = scenario_host(d, 4096, &d_base);
    OK(ps_device_await(d, PS_STREAM_D2H, (const uint64_t *)(const void *)d_base, 5, err));
    OK(ps_device_record(d, PS_STREAM_D2H, 104, err));
    OK(ps_device_time(d, PS_STREAM_D2H, 105, err));
    scenario_nap(2000000);
    OK(ps_device_passed(d, 104, &passed, err));
    CHECK(!passed, "before the flag was raised");
    OK(ps_device_check(d, err));
    FAILS(PS_E_USAGE, ps_device_elapsed(d, 200, 105, &s, err));
    scenario_raise(d, 5);
    const uint64_t until = ps_clock_ns() + 10000000000u;
    for (passed = false; !passed && ps_clock_ns() < until; scenario_nap(100000))
        OK(ps_device_passed(d, 104, &passed, err));
    CHECK(passed, "after the flag was raised");
    OK(ps_device_sync(d, err));
    ps_device_heal(d);
    /* Work that is held back goes on by the device's clock: not before its time, at once where that is over, and never longer
     * than was asked for, whatever the clock's word holds. */
    uint64_t *clock = (uint64_t *)(void *)d_base;
    OK(ps_device_time(d, PS_STREAM_H2D, 210, err));
    OK(ps_device_hold(d, PS_STREAM_H2D, clock, 0, err));
    OK(ps_device_hold(d, PS_STREAM_H2D, clock, 20000000, err));
    OK(ps_device_time(d, PS_STREAM_H2D, 211, err));
    OK(ps_device_hold(d, PS_STREAM_H2D, clock, 10000000, err));
    OK(ps_device_time(d, PS_STREAM_H2D, 212, err));
    OK(ps_device_sync(d, err));
    OK(ps_device_elapsed(d, 210, 211, &s, err));
    CHECK(s >= 19.9e-3 && s < 10, "held for %g s instead of 20 ms", s);
    OK(ps_device_elapsed(d, 211, 212, &s, err));
    CHECK(s < 5, "held for %g s though the time was over", s);
    memset(base, 0xff, 4096);
    OK(ps_device_hold(d, PS_STREAM_H2D, clock, 1000000, err));
    OK(ps_device_time(d, PS_STREAM_H2D, 213, err));
    OK(ps_device_sync(d, err));
    OK(ps_device_elapsed(d, 212, 213, &s, err));
    CHECK(s < 60, "held for %g s by a clock that is none", s);
    FAILS(PS_E_USAGE, ps_device_hold(d, PS_STREAM_H2D, clock, PS_DEVICE_MOST_HOLD_NS + 1, err));
    ps_device_host_free(d, base);
    scenario_pipe_free(d, &p);
}

/* ---- hand-over ---- */
/* Words of the shared block: the value that goes to and fro. */
enum { WORD_BASE = 0, WORD_TO_CPU = 64, WORD_TO_GPU = 128, PINGS_AHEAD = 50 };

static void scenario_ping_enqueue(ps_device *d, uint32_t *d_block, uint32_t n) {
    const uint64_t *d_base = (const uint64_t *)(const void *)(d_block + WORD_BASE);
    for (uint32_t i = 1; i <= n; i++) {
        OK(scenario_scale(d, PS_STREAM_COMPUTE, d_block + WORD_TO_CPU, d_block + WORD_TO_GPU, 1, 5, 1, err));
        OK(ps_device_signal(d, PS_STREAM_COMPUTE, d_base, i, err));
        OK(ps_device_await(d, PS_STREAM_COMPUTE, d_base, i, err));
    }
}

/* The CPU's part of it: what it gets is five times what it gave, plus 1; it gives that times 7, plus 3. */
static bool scenario_ping_answer(ps_device *d, uint32_t *block, uint64_t base, uint32_t n, uint32_t *value) {
    for (uint32_t i = 1; i <= n; i++) {
        if (!scenario_flag_reaches(d, base + i)) {
            CHECK(false, "no signal %u of %u after %" PRIu64, i, n, base);
            ps_device_poison(d);
            return false;
        }
        const uint32_t got = block[WORD_TO_CPU];
        CHECK(got == *value * 5 + 1, "signal %u after %" PRIu64 ": %u, given %u", i, base, got, *value);
        *value = got * 7 + 3;
        block[WORD_TO_GPU] = *value;
        scenario_raise(d, base + i);
    }
    return true;
}

static void scenario_ping_pong(ps_device *d) {
    uint32_t *d_block, *block = scenario_host(d, 4096, &d_block), value = 1;
    block[WORD_TO_GPU] = value;
    uint64_t *base = (uint64_t *)(void *)(block + WORD_BASE);
    const uint64_t t0 = ps_clock_ns();
    bool on = true;
    for (uint32_t i = 0; i < 1000 / PINGS_AHEAD && on; i++) {
        *base = (uint64_t)i * PINGS_AHEAD;
        scenario_ping_enqueue(d, d_block, PINGS_AHEAD);
        on = scenario_ping_answer(d, block, *base, PINGS_AHEAD, &value);
        OK(ps_device_sync(d, err)); /* the base may change now */
    }
    printf("  1000 hand-overs to and fro: %.1f us each\n", (double)(ps_clock_ns() - t0) * 1e-6);
    ps_device_heal(d);
    CHECK(*ps_device_flag(d, PS_FLAG_GPU) == 0 && *ps_device_flag(d, PS_FLAG_CPU) == 0, "healed");

    /* In a graph, launched again with a larger base, numbers past 32 bits included. */
    ps_device_graph *graph = NULL;
    OK(ps_device_capture_begin(d, err));
    scenario_ping_enqueue(d, d_block, 10);
    OK(ps_device_capture_end(d, &graph, err));
    for (uint32_t i = 0; i < 100 && on && graph; i++) {
        *base = 4294967200u + (uint64_t)i * 10;
        OK(ps_device_graph_launch(d, graph, err));
        on = scenario_ping_answer(d, block, *base, 10, &value);
        OK(ps_device_sync(d, err));
    }
    ps_device_graph_free(d, graph);
    ps_device_graph_free(d, NULL);
    ps_device_heal(d);
    ps_device_host_free(d, block);
}

static void scenario_poison(ps_device *d) {
    uint32_t *d_block, *block = scenario_host(d, 4096, &d_block);
    const uint64_t *d_base = (const uint64_t *)(const void *)d_block;
    ps_device_graph *graph = NULL;
    OK(ps_device_capture_begin(d, err));
    OK(ps_device_await(d, PS_STREAM_COMPUTE, d_base, 3, err));
    OK(ps_device_capture_end(d, &graph, err));
    for (int round = 0; round < 3; round++) {
        for (int s = 0; s < PS_STREAM_COUNT; s++)
            OK(ps_device_await(d, scenario_streams[s], d_base, 7, err));
        OK(ps_device_graph_launch(d, graph, err));
        OK(ps_device_record(d, PS_STREAM_COMPUTE, 1, err));
        scenario_nap(1000000);
        bool passed = true;
        OK(ps_device_passed(d, 1, &passed, err));
        CHECK(!passed, "nothing was raised");
        CHECK(!ps_device_poisoned(d), "not yet");
        ps_device_poison(d);
        CHECK(ps_device_poisoned(d), "now");
        OK(ps_device_sync(d, err));
        OK(ps_device_await(d, PS_STREAM_H2D, d_base, 9, err)); /* later ones end as well */
        OK(ps_device_sync(d, err));
        ps_device_heal(d);
        CHECK(!ps_device_poisoned(d), "healed");
        OK(ps_device_signal(d, PS_STREAM_COMPUTE, d_base, 2, err));
        CHECK(scenario_flag_reaches(d, 2), "a signal after healing");
        OK(ps_device_sync(d, err));
        ps_device_heal(d);
    }
    /* Closing must not wait for a CPU that never comes: what is left here ends with the device. */
    OK(ps_device_await(d, PS_STREAM_COMPUTE, d_base, 11, err));
    OK(ps_device_graph_launch(d, graph, err));
    (void)block; /* freed with the device, as the graph is */
}

/* ---- graphs ---- */
static void scenario_replay(ps_device *d) {
    enum { STEPS = 24 };
    uint32_t seed = 3;
    scenario_pipe p = scenario_pipe_new(d, STEPS);
    ps_device_graph *graph = NULL, *timed = NULL;
    OK(ps_device_capture_begin(d, err));
    scenario_pipe_enqueue(d, &p, STEPS, &seed, 100);
    OK(ps_device_capture_end(d, &graph, err));
    CHECK(p.out[0] == 0, "a capture runs nothing");
    for (int round = 0; round < 20 && graph; round++) {
        scenario_pipe_fill(&p, STEPS, &seed);
        if (round % 3 == 2) { /* directly, the same */
            scenario_pipe_enqueue(d, &p, STEPS, &seed, 100);
        } else {
            OK(ps_device_graph_launch(d, graph, err));
            if (round % 3 == 1) /* again behind it: the results are the same */
                OK(ps_device_graph_launch(d, graph, err));
        }
        OK(ps_device_sync(d, err));
        CHECK(scenario_pipe_bad(&p, STEPS) == 0, "round %d: %" PRIu64 " words", round,
              scenario_pipe_bad(&p, STEPS));
    }
    /* A graph stands between what is before and after it on the compute stream. */
    uint32_t *v = p.vram, *d_cell, *cell = scenario_host(d, 4096, &d_cell);
    cell[0] = 1;
    OK(ps_device_capture_begin(d, err));
    OK(ps_device_time(d, PS_STREAM_COMPUTE, 300, err));
    OK(scenario_delay(d, PS_STREAM_COMPUTE, 2000, err));
    OK(scenario_scale(d, PS_STREAM_COMPUTE, v, v, 1, 3, 1, err));
    OK(ps_device_time(d, PS_STREAM_COMPUTE, 301, err));
    OK(ps_device_capture_end(d, &timed, err));
    OK(ps_device_copy(d, PS_STREAM_COMPUTE, v, 0, cell, 0, 4, 1, err));
    uint32_t want = 1;
    for (int i = 0; i < 5 && timed; i++) {
        OK(scenario_scale(d, PS_STREAM_COMPUTE, v, v, 1, 1, 5, err));
        OK(ps_device_graph_launch(d, timed, err));
        want = (want + 5) * 3 + 1;
    }
    OK(ps_device_copy(d, PS_STREAM_COMPUTE, cell + 1, 0, v, 0, 4, 1, err));
    OK(ps_device_sync(d, err));
    CHECK(cell[1] == want, "%u, want %u", cell[1], want);
    double s = -1;
    OK(ps_device_elapsed(d, 300, 301, &s, err));
    CHECK(s >= 1e-3 && s < 10, "%g s in the graph", s);
    ps_device_graph_free(d, timed);
    ps_device_graph_free(d, graph);
    ps_device_host_free(d, cell);
    scenario_pipe_free(d, &p);
}

static void scenario_capture_rules(ps_device *d) {
    ps_vram_range *range = scenario_vram(d, PS_VRAM_HANDLE);
    uint8_t *v = ps_vram_base(range);
    uint32_t *d_block, *block = scenario_host(d, 4096, &d_block);
    ps_device_graph *graph = NULL;
    bool passed;
    double s;
    FAILS(PS_E_USAGE, ps_device_capture_end(d, &graph, err));
    ps_device_capture_abort(d);
    OK(ps_device_record(d, PS_STREAM_H2D, 1, err));
    /* A stream that has not joined. */
    OK(ps_device_capture_begin(d, err));
    FAILS(PS_E_USAGE, ps_device_capture_begin(d, err));
    FAILS(PS_E_USAGE, ps_device_copy(d, PS_STREAM_H2D, v, 0, block, 0, 64, 1, err));
    FAILS(PS_E_USAGE, ps_device_copy(d, PS_STREAM_COMPUTE, v, 0, block, 0, 64, 1, err)); /* spoiled */
    FAILS(PS_E_USAGE, ps_device_capture_end(d, &graph, err));
    /* An event from outside. */
    OK(ps_device_capture_begin(d, err));
    FAILS(PS_E_USAGE, ps_device_wait(d, PS_STREAM_COMPUTE, 1, err));
    ps_device_capture_abort(d);
    /* A stream that is not joined again. */
    OK(ps_device_capture_begin(d, err));
    OK(ps_device_record(d, PS_STREAM_COMPUTE, 2, err));
    OK(ps_device_wait(d, PS_STREAM_D2H, 2, err));
    OK(ps_device_copy(d, PS_STREAM_D2H, block, 0, v, 0, 64, 1, err));
    FAILS(PS_E_USAGE, ps_device_capture_end(d, &graph, err));
    FAILS(PS_E_USAGE, ps_device_wait(d, PS_STREAM_H2D, 2, err)); /* an order inside the graph only */
    FAILS(PS_E_USAGE, ps_device_passed(d, 2, &passed, err));
    /* Nothing but enqueueing. */
    OK(ps_device_capture_begin(d, err));
    FAILS(PS_E_USAGE, ps_device_sync(d, err));
    FAILS(PS_E_USAGE, ps_device_check(d, err));
    FAILS(PS_E_USAGE, ps_device_passed(d, 1, &passed, err));
    FAILS(PS_E_USAGE, ps_device_elapsed(d, 1, 1, &s, err));
    FAILS(PS_E_USAGE, ps_vram_resize(range, 0, err));
    void *host;
    uint8_t *at;
    FAILS(PS_E_USAGE, ps_device_host_alloc(d, 4096, &host, &at, err));
    OK(ps_device_time(d, PS_STREAM_COMPUTE, 3, err));
    FAILS(PS_E_USAGE, ps_device_wait(d, PS_STREAM_H2D, 3, err));
    ps_device_capture_abort(d);
    /* An empty graph, and all is well again. */
    OK(ps_device_capture_begin(d, err));
    OK(ps_device_capture_end(d, &graph, err));
    if (graph)
        OK(ps_device_graph_launch(d, graph, err));
    block[0] = 77;
    OK(ps_device_copy(d, PS_STREAM_H2D, v, 0, block, 0, 4, 1, err));
    OK(ps_device_sync(d, err));
    OK(ps_device_copy(d, PS_STREAM_D2H, block + 1, 0, v, 0, 4, 1, err));
    OK(ps_device_sync(d, err));
    CHECK(block[1] == 77, "%u", block[1]);
    ps_device_graph_free(d, graph);
    ps_device_host_free(d, block);
    ps_vram_free(range);
}

/* ---- faults ---- */
typedef struct scenario_fault {
    uint64_t n, fail_at; /* the call that fails, from 1; 0: none */
    char name[64];
} scenario_fault;

static bool scenario_fault_ask(void *ctx, const char *call) {
    scenario_fault *f = (scenario_fault *)ctx;
    if (++f->n != f->fail_at)
        return false;
    snprintf(f->name, sizeof f->name, "%s", call);
    return true;
}

/* A little of everything; whatever fails ends it, and the device is closed with all that is on it. *out_right: the result was. */
static ps_status scenario_everything(const ps_device_options *options, bool *out_right, ps_error *err) {
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        if ((st = (call)) != PS_OK)                                                                          \
            goto end;                                                                                        \
    } while (0)
    ps_device *d = NULL;
    ps_vram_range *range = NULL;
    ps_device_graph *graph = NULL;
    uint8_t *block_at = NULL, *page_at = NULL, *v = NULL;
    void *block_host = NULL;
    uint32_t *block = NULL;
    uint64_t *d_base = NULL, used = 0, total = 0;
    ps_meter how = PS_METER_COUNT;
    bool passed = false;
    double s = 0;
    ps_status st = PS_OK;
    uint8_t *page = (uint8_t *)mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return PS_E_NOMEM;
    memset(page, 0, 65536);
    ((uint32_t *)(void *)page)[0] = 5;
    *out_right = false;
    TRY(ps_device_open(options, &d, err));
    TRY(ps_vram_reserve(d, 4 * (uint64_t)PS_VRAM_HANDLE, &range, err));
    TRY(ps_vram_resize(range, 2 * (uint64_t)PS_VRAM_HANDLE, err));
    TRY(ps_device_host_alloc(d, 65536, &block_host, &block_at, err));
    TRY(ps_device_host_register(d, page, 65536, &page_at, err));
    v = ps_vram_base(range);
    block = (uint32_t *)block_host;
    d_base = (uint64_t *)(void *)block_at;
    scenario_raise(d, 100);
    TRY(ps_device_time(d, PS_STREAM_COMPUTE, 1, err));
    TRY(ps_device_copy(d, PS_STREAM_H2D, v, 64, page, 128, 64, 8, err));
    TRY(ps_device_record(d, PS_STREAM_H2D, 2, err));
    TRY(ps_device_wait(d, PS_STREAM_COMPUTE, 2, err));
    TRY(ps_device_await(d, PS_STREAM_COMPUTE, d_base, 3, err));
    TRY(scenario_scale(d, PS_STREAM_COMPUTE, (uint32_t *)(void *)v, (const uint32_t *)(const void *)v, 1, 3,
                       1, err));
    TRY(ps_device_signal(d, PS_STREAM_COMPUTE, d_base, 4, err));
    TRY(ps_device_hold(d, PS_STREAM_COMPUTE, (uint64_t *)(void *)(v + 65536), 0, err));
    TRY(ps_device_sync(d, err));
    TRY(ps_device_capture_begin(d, err));
    TRY(scenario_scale(d, PS_STREAM_COMPUTE, (uint32_t *)(void *)v, (const uint32_t *)(const void *)v, 1, 2,
                       1, err));
    TRY(ps_device_record(d, PS_STREAM_COMPUTE, 3, err));
    TRY(ps_device_wait(d, PS_STREAM_D2H, 3, err));
    TRY(ps_device_copy(d, PS_STREAM_D2H, block + 16, 0, v, 0, 4, 1, err));
    TRY(ps_device_record(d, PS_STREAM_D2H, 4, err));
    TRY(ps_device_wait(d, PS_STREAM_COMPUTE, 4, err));
    TRY(ps_device_signal(d, PS_STREAM_COMPUTE, d_base, 5, err));
    TRY(ps_device_time(d, PS_STREAM_COMPUTE, 5, err));
    TRY(ps_device_capture_end(d, &graph, err));
    TRY(ps_device_graph_launch(d, graph, err));
    TRY(ps_device_graph_launch(d, graph, err));
    TRY(ps_device_check(d, err));
    TRY(ps_device_sync(d, err));
    TRY(ps_device_passed(d, 5, &passed, err));
    TRY(ps_device_elapsed(d, 1, 5, &s, err));
    TRY(ps_device_vram_used(d, &used, &how, err));
    TRY(ps_device_vram_all(d, &used, &total, err));
    TRY(ps_vram_resize(range, PS_VRAM_HANDLE, err));
    *out_right = passed && block[16] == ((5 * 3 + 1) * 2 + 1) * 2 + 1 && *ps_device_flag(d, PS_FLAG_GPU) == 5;
end:
    if (st != PS_OK && d)
        ps_device_capture_abort(d);
    ps_device_close(d);
    munmap(page, 65536);
    return st;
#undef TRY
}

static void scenario_faults(const ps_device_options *base) {
    ps_device_options options = *base;
    scenario_fault f;
    memset(&f, 0, sizeof f);
    options.fault = scenario_fault_ask;
    options.fault_ctx = &f;
    bool right = false;
    OK(scenario_everything(&options, &right, err));
    CHECK(right, "the result without faults");
    const uint64_t n = f.n;
    CHECK(n > 30, "%" PRIu64 " calls", n);
    for (uint64_t k = 1; k <= n; k++) {
        memset(&f, 0, sizeof f);
        f.fail_at = k;
        ps_error e;
        memset(&e, 0, sizeof e);
        const ps_status st = scenario_everything(&options, &right, &e);
        CHECK(f.name[0], "call %" PRIu64 " never came", k);
        CHECK(st != PS_OK && !right, "call %" PRIu64 ", %s, failed: %s", k, f.name, ps_status_name(st));
        CHECK(e.message[0], "call %" PRIu64 ", %s, failed without a word", k, f.name);
    }
    printf("  each of %" PRIu64 " calls failed in turn\n", n);
    memset(&f, 0, sizeof f);
    OK(scenario_everything(&options, &right, err));
    CHECK(right, "the result after all faults");
}

/* ---- the table ---- */
static const struct {
    const char *name;
    void (*run)(ps_device *d);
} scenarios[] = {
    {"sizes", scenario_sizes},         {"copies", scenario_copies}, {"events", scenario_events},
    {"ping pong", scenario_ping_pong}, {"replay", scenario_replay}, {"capture rules", scenario_capture_rules},
    {"poison", scenario_poison},
};

/* Each on a device of its own, then the faults. Returns the number of checks that failed. */
static int scenarios_run(const ps_device_options *options) {
    alarm(300); /* a hang is a failure */
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        ps_device *d = NULL;
        const int before = scenario_failures;
        const uint64_t t0 = ps_clock_ns();
        OK(ps_device_open(options, &d, err));
        if (!d)
            return scenario_failures;
        scenarios[i].run(d);
        ps_device_close(d);
        printf("%s: %s, %.2f s\n", scenarios[i].name, scenario_failures == before ? "passed" : "FAILED",
               (double)(ps_clock_ns() - t0) * 1e-9);
        fflush(stdout);
    }
    const int before = scenario_failures;
    scenario_faults(options);
    ps_device_close(NULL);
    printf("faults: %s\n", scenario_failures == before ? "passed" : "FAILED");
    return scenario_failures;
}

#endif
