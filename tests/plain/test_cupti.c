/* CUPTI against a library that plays its part: sums of records, and an error for all that cannot be trusted. Then the GPU rig on
 * the emulated device with that library as its timer: known times come back, the difference to events is recorded, and every
 * failure ends in events with the reason. */
#include "profile/cupti.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "core/clock.h"
#include "fake_cupti.h"
#include "kernels/kernel.h"
#include "profile/cpu_rig.h"
#include "profile/gpu_rig.h"
#include "profile/grid.h"
#include "profile/sweep.h"

enum { KERNEL = 10, COPY = 1 };
static const char *library, *old_library;
static fake_cupti_state *fake;
static fake_cupti_put_call *put;

static void reset(void) {
    memset(fake, 0, sizeof *fake);
    fake->version = 130001;
}

static ps_cupti *open_fake(void) {
    ps_cupti *c = NULL;
    ps_error err = {0};
    CHECK(ps_cupti_open(library, NULL, &c, &err) == PS_OK, "%s: %s", err.subject, err.message);
    if (!c)
        exit(1);
    CHECK(ps_cupti_on(c, &err) == PS_OK, "%s", err.message);
    return c;
}

static void refused(ps_status want, const char *words, int line) {
    ps_cupti *c = NULL;
    ps_error err = {0};
    ps_status got = ps_cupti_open(library, NULL, &c, &err);
    if (got == PS_OK)
        got = ps_cupti_on(c, &err);
    CHECK(got == want && strstr(err.message, words), "line %d: %s: %s", line, ps_status_name(got),
          err.message);
    bool on = false;
    for (int i = 0; i < 64; i++)
        on |= fake->on[i];
    CHECK(!on, "line %d: something was left on", line);
    ps_cupti_close(c);
    reset();
}

static void test_open(void) {
    ps_cupti *c = NULL, *d = NULL;
    ps_error err = {0};
    CHECK(ps_cupti_open("/nonexistent/libcupti.so.13", NULL, &c, &err) == PS_E_UNAVAILABLE, "%s",
          err.message);
    CHECK(ps_cupti_open("libm.so.6", NULL, &c, &err) == PS_E_UNAVAILABLE, "%s", err.message);
    CHECK(strstr(err.message, "cuptiGetVersion"), "%s", err.message);
    CHECK(ps_cupti_open(old_library, NULL, &c, &err) == PS_E_UNAVAILABLE &&
              strstr(err.message, "cuptiActivityGetNumDroppedRecords"),
          "%s", err.message);
    static const uint32_t strange[] = {0, 17, 100, 129999, 140000, 999999};
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
        fake->version = strange[i];
        refused(PS_E_UNAVAILABLE, "not known", __LINE__);
    }
    static const uint32_t known[] = {18, 28, 130001, 130401};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        fake->version = known[i];
        CHECK(ps_cupti_open(library, NULL, &c, &err) == PS_OK && ps_cupti_version(c) == known[i], "%u: %s",
              known[i], err.message);
        CHECK(ps_cupti_open(library, NULL, &d, &err) == PS_E_USAGE && !d, "two at once");
        ps_cupti_close(c);
    }
    reset();
    fake->version_code = 999;
    refused(PS_E_OS, "cuptiGetVersion", __LINE__);
    fake->callbacks_code = 15;
    refused(PS_E_UNAVAILABLE, "initialised", __LINE__);
    fake->enable_code = 35;
    refused(PS_E_PERM, "administrators", __LINE__);
    fake->enable_code = 40;
    refused(PS_E_PERM, "administrators", __LINE__);
    fake->enable_code = 35; /* the first kind is taken, the last one is not */
    fake->enable_fails_for = 2;
    refused(PS_E_PERM, "administrators", __LINE__);
    fake->enable_code = 43;
    refused(PS_E_UNAVAILABLE, "not supported", __LINE__);
    fake->enable_code = 39;
    refused(PS_E_UNAVAILABLE, "another tool", __LINE__);
    ps_cupti_close(NULL);
}

/* One sample with n kernels of 1000 ns, 500 ns apart, the first `over` of them shadowed by a copy. */
static ps_status sample(ps_cupti *c, uint32_t n, uint32_t multiple, ps_cupti_sum *out, ps_error *err) {
    ps_status st = ps_cupti_begin(c, err);
    if (st != PS_OK)
        return st;
    const uint64_t t0 = ps_clock_ns();
    for (uint32_t i = 0; i < n; i++)
        put(KERNEL, t0 + 1500u * i, t0 + 1500u * i + 1000);
    while (ps_clock_ns() < t0 + 1500u * n)
        ;
    return ps_cupti_end(c, multiple, out, err);
}

static bool near(double a, double b) {
    return fabs(a - b) < 1e-12;
}

static void test_sums(void) {
    ps_cupti_sum s = {0};
    ps_error err = {0};
    reset();
    ps_cupti *c = open_fake();
    for (int thread = 0; thread < 2; thread++) {
        fake->by_thread = thread;
        CHECK(sample(c, 100, 50, &s, &err) == PS_OK, "%s", err.message);
        CHECK(s.n_kernels == 100 && s.n_copies == 0 && near(s.busy_s, 100e-6) && near(s.span_s, 149.5e-6),
              "%u, %u, %g, %g", s.n_kernels, s.n_copies, s.busy_s, s.span_s);
    }
    /* More than one buffer holds. */
    CHECK(sample(c, 8000, 8000, &s, &err) == PS_OK && s.n_kernels == 8000 && near(s.busy_s, 8e-3), "%s, %g",
          err.message, s.busy_s);
    /* Kernels and a copy at once, one within the other, and one after it; other kinds do not count. */
    CHECK(ps_cupti_begin(c, &err) == PS_OK, "%s", err.message);
    const uint64_t t = ps_clock_ns();
    put(KERNEL, t + 100, t + 400);
    put(COPY, t + 200, t + 900);
    put(KERNEL, t + 300, t + 350);
    put(COPY, t + 900, t + 1000);
    put(17, t, t + 5000);
    CHECK(ps_cupti_end(c, 2, &s, &err) == PS_OK, "%s", err.message);
    CHECK(s.n_kernels == 2 && s.n_copies == 2 && near(s.busy_s, 900e-9) && near(s.span_s, 900e-9),
          "%u, %u, %g, %g", s.n_kernels, s.n_copies, s.busy_s, s.span_s);
    /* What was before a sample is not part of it; what comes late is. */
    put(KERNEL, t, t + 10);
    CHECK(sample(c, 3, 3, &s, &err) == PS_OK && s.n_kernels == 3, "%s, %u", err.message, s.n_kernels);
    fake->hold = true;
    CHECK(sample(c, 3, 3, &s, &err) == PS_OK && s.n_kernels == 3, "%s, %u", err.message, s.n_kernels);
    fake->hold = false;
    CHECK(ps_cupti_off(c, &err) == PS_OK && ps_cupti_begin(c, &err) == PS_E_USAGE, "%s", err.message);
    CHECK(ps_cupti_end(c, 0, &s, &err) == PS_E_USAGE, "%s", err.message);
    ps_cupti_close(c);
}

static void expect_bad(ps_cupti *c, uint32_t n, uint32_t multiple, ps_status want, const char *words,
                       int line) {
    ps_cupti_sum s = {0};
    ps_error err = {0};
    const ps_status got = sample(c, n, multiple, &s, &err);
    CHECK(got == want && strstr(err.message, words), "line %d: %s: %s", line, ps_status_name(got),
          err.message);
    const uint32_t version = fake->version;
    bool on[64];
    memcpy(on, fake->on, sizeof on);
    reset();
    fake->version = version;
    memcpy(fake->on, on, sizeof on);
    CHECK(sample(c, 4, 4, &s, &err) == PS_OK && s.n_kernels == 4, "line %d: the next sample: %s, %u", line,
          err.message, s.n_kernels);
}

static void test_faults(void) {
    reset();
    ps_cupti *c = open_fake();
    expect_bad(c, 0, 1, PS_E_DATA, "missing", __LINE__);
    expect_bad(c, 7, 2, PS_E_DATA, "missing", __LINE__);
    fake->lose_every = 5;
    expect_bad(c, 20, 20, PS_E_DATA, "missing", __LINE__);
    fake->drops = 3;
    expect_bad(c, 4, 4, PS_E_DATA, "lost 3", __LINE__);
    fake->senseless = true;
    expect_bad(c, 4, 4, PS_E_DATA, "no sense", __LINE__);
    fake->broken = true;
    expect_bad(c, 4, 4, PS_E_DATA, "cannot be read", __LINE__);
    fake->endless = true;
    expect_bad(c, 4, 4, PS_E_DATA, "cannot be read", __LINE__);
    expect_bad(c, PS_CUPTI_RECORDS + 1, 1, PS_E_DATA, "room", __LINE__);
    fake->flush_code = 999;
    expect_bad(c, 4, 4, PS_E_OS, "cuptiActivityFlushAll", __LINE__);
    fake->timestamp_code = 13;
    expect_bad(c, 4, 4, PS_E_OS, "cuptiGetTimestamp", __LINE__);
    fake->disable_code = 999;
    ps_error err = {0};
    CHECK(ps_cupti_off(c, &err) == PS_E_OS, "%s", err.message);
    ps_cupti_close(c);
    /* Records that come when nobody listens any more. */
    put(KERNEL, 1, 2);
    ps_cupti_sum s;
    reset();
    c = open_fake();
    CHECK(sample(c, 2, 2, &s, &err) == PS_OK && s.n_kernels == 2, "%s", err.message);
    ps_cupti_close(c);
}

/* ---- the rig ---- */
/* Asked before every call to the emulated device: where it runs kernels, the fake library records kernels of CALL_NS, whatever
 * the device really takes. */
enum { CALL_NS = 30000, GAP_NS = 1000 };
typedef struct player {
    bool capturing;
    uint32_t n_captured, n_samples, fail_at;
} player;

static void play(uint32_t n) {
    uint64_t t = ps_clock_ns();
    for (uint32_t i = 0; i < n; i++, t += CALL_NS + GAP_NS)
        put(KERNEL, t, t + CALL_NS);
    const struct timespec pause = {0, 1000};
    while (ps_clock_ns() < t)
        nanosleep(&pause, NULL);
}

static bool on_call(void *ctx, const char *call) {
    player *p = ctx;
    if (strcmp(call, "capture_begin") == 0) {
        p->capturing = true;
        p->n_captured = 0;
    } else if (strcmp(call, "capture_end") == 0) {
        p->capturing = false;
    } else if (strcmp(call, "enqueue") == 0 && p->capturing) {
        p->n_captured++;
    } else if (strcmp(call, "enqueue") == 0) {
        play(1);
    } else if (strcmp(call, "graph_launch") == 0) {
        p->n_samples++;
        if (p->fail_at && p->n_samples >= p->fail_at)
            fake->n_dropped = 9;
        play(p->n_captured);
    }
    return false;
}

/* The profile of a few kernels' points, timed like that; NULL: the rig could not be made, *out says why. */
static ps_profile *measure(ps_gpu_timer_choice choice, uint32_t fail_at, ps_status *out, ps_error *err) {
    static player p;
    p = (player){.fail_at = fail_at};
    ps_machine *machine = NULL;
    ps_cpu_rig *cpu = NULL;
    ps_device *device = NULL;
    ps_gpu_rig *rig = NULL;
    ps_kernel_spec specs[3];
    ps_task tasks[9];
    uint32_t n_tasks = 0;
    ps_sweep_result result = {0};
    static const ps_op ops[] = {PS_OP_ADD, PS_OP_GLU, PS_OP_RMSNORM};
    for (int i = 0; i < 3; i++) {
        const ps_dtype type = ops[i] == PS_OP_RMSNORM ? PS_DTYPE_F32 : PS_DTYPE_NONE;
        const ps_kernel *k = ps_kernel_choose(ops[i], type, PS_FMT_F32, PS_FMT_F32, PS_DEV_CUDA, 1);
        if (!k)
            abort();
        uint32_t at = (uint32_t)i; /* ascending ids */
        for (; at > 0 && specs[at - 1].id > k->spec.id; at--)
            specs[at] = specs[at - 1];
        specs[at] = k->spec;
    }
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t t = 1; t <= 16; t *= 4)
            tasks[n_tasks++] = (ps_task){.measure = PS_MEASURE_KERNEL,
                                         .point = {.kernel = specs[i].id, .cols = 256, .n_tokens = t},
                                         .cost_s = 1e-3};
    *out = ps_machine_open(NULL, &machine, err);
    if (*out == PS_OK)
        *out = ps_cpu_rig_new(&(ps_cpu_config){.machine = machine, .cold_bytes = 1 << 20}, &cpu, err);
    if (*out == PS_OK)
        *out = ps_device_open(
            &(ps_device_options){
                .emulated = true, .emulated_base_bytes = 64 << 20, .fault = on_call, .fault_ctx = &p},
            &device, err);
    if (*out == PS_OK)
        *out = ps_gpu_rig_new(&(ps_gpu_config){.machine = machine,
                                               .device = device,
                                               .cpu_ops = &ps_cpu_rig_ops,
                                               .cpu_rig = cpu,
                                               .timer = choice,
                                               .cupti_library = library},
                              &rig, err);
    if (*out == PS_OK)
        *out = ps_sweep_run(&(ps_sweep_config){.ops = &ps_gpu_rig_emulated_ops,
                                               .rig = rig,
                                               .kernels = specs,
                                               .n_kernels = 3,
                                               .tasks = tasks,
                                               .n_tasks = n_tasks,
                                               .mode = "model",
                                               .tool = "test",
                                               .created = "2026-01-01T00:00:00Z",
                                               .limit_s = 20,
                                               .max_task_s = 0.02},
                            &result, err);
    ps_gpu_rig_free(rig);
    ps_device_close(device);
    ps_cpu_rig_free(cpu);
    ps_machine_close(machine);
    if (*out != PS_OK)
        ps_sweep_free(&result);
    return result.profile;
}

static void expect_events(const char *words, uint32_t fail_at, int line) {
    ps_status st = PS_OK;
    ps_error err = {0};
    ps_profile *p = measure(PS_GPU_TIMER_AUTO, fail_at, &st, &err);
    CHECK(p && st == PS_OK, "line %d: %s: %s", line, err.subject, err.message);
    if (p) {
        CHECK(p->gpu.timer == PS_TIMER_EVENTS && strstr(p->gpu.timer_reason, words), "line %d: %d, %s", line,
              (int)p->gpu.timer, p->gpu.timer_reason);
        CHECK(p->n_points == 9, "line %d: %u points", line, p->n_points);
        for (uint32_t i = 0; i < p->n_points; i++)
            CHECK(p->points[i].time_s.n > 0, "line %d: point %u", line, i);
    }
    ps_profile_free(p);
    reset();
}

static bool plausible_gap(const ps_profile *p) {
    return p->gpu.timer_gap_s >= GAP_NS * 1e-9 * 0.9 && p->gpu.timer_gap_s < 1e-3;
}

/* The gap is a difference of two medians: where others take the cores meanwhile it drowns, and is measured again. */
static void test_rig(void) {
    enum { TRIES = 5 };
    ps_status st = PS_OK;
    ps_error err = {0};
    ps_profile *p = NULL;
    for (int i = 0; i < TRIES && st == PS_OK && (!p || !plausible_gap(p)); i++) {
        ps_profile_free(p);
        reset();
        p = measure(PS_GPU_TIMER_CUPTI, 0, &st, &err);
    }
    CHECK(p && st == PS_OK, "%s: %s", err.subject, err.message);
    if (!p)
        return;
    const ps_profile_gpu *g = &p->gpu;
    CHECK(g->timer == PS_TIMER_CUPTI && g->timer_reason[0] == '\0', "%d %s", (int)g->timer, g->timer_reason);
    CHECK(g->context_bytes == 64 << 20 && g->modules_bytes == 0 && g->base_bytes == 64 << 20, "base");
    for (uint32_t i = 0; i < p->n_points; i++) {
        const double want = CALL_NS * 1e-9 + g->timer_gap_s;
        CHECK(fabs(p->points[i].time_s.median / want - 1) < 1e-4, "point %u: %g, not %g", i,
              p->points[i].time_s.median, want);
    }
    /* A gap and an event that both hold what the player pauses: what it really takes is not less than what it records. */
    CHECK(plausible_gap(p), "%g", g->timer_gap_s);
    CHECK(g->n_checks == 3, "%u", g->n_checks);
    for (uint32_t i = 0; i < g->n_checks; i++)
        CHECK(g->checks[i].n >= 3 && g->checks[i].median_frac > -1 &&
                  g->checks[i].worst_frac <=
                      (CALL_NS * 1e-9 + g->timer_gap_s) / ((CALL_NS + GAP_NS) * 1e-9) - 0.999,
              "%u points, %g, %g with a gap of %g s", g->checks[i].n, g->checks[i].median_frac,
              g->checks[i].worst_frac, g->timer_gap_s);
    CHECK(fake->n_toggles >= 3 * 2 * 9, "events are taken with CUPTI off: %d toggles", fake->n_toggles);
    for (int i = 0; i < 64; i++)
        CHECK(!fake->on[i], "kind %d is on at the end", i);
    ps_profile_free(p);

    reset();
    p = measure(PS_GPU_TIMER_EVENTS, 0, &st, &err);
    CHECK(p && p->gpu.timer == PS_TIMER_EVENTS && strstr(p->gpu.timer_reason, "asked for") &&
              p->gpu.n_checks == 0 && fake->n_toggles == 0,
          "events on request");
    ps_profile_free(p);

    reset();
    fake->version = 140000;
    expect_events("not known", 0, __LINE__);
    fake->enable_code = 35;
    expect_events("administrators", 0, __LINE__);
    fake->callbacks_code = 27;
    expect_events("not supported", 0, __LINE__);
    fake->senseless = true;
    expect_events("no sense", 0, __LINE__);
    fake->lose_every = 7;
    expect_events("missing", 0, __LINE__);
    fake->broken = true;
    expect_events("cannot be read", 0, __LINE__);
    fake->flush_code = 999;
    expect_events("cuptiActivityFlushAll", 0, __LINE__);
    expect_events("CUPTI for the first", 60, __LINE__); /* in the middle of the sweep */

    fake->enable_code = 35;
    p = measure(PS_GPU_TIMER_CUPTI, 0, &st, &err);
    CHECK(!p && st == PS_E_PERM, "where nothing else will do: %s", ps_status_name(st));
    ps_profile_free(p);
    reset();
    fake->version = 1;
    p = measure(PS_GPU_TIMER_CUPTI, 0, &st, &err);
    CHECK(!p && st == PS_E_UNAVAILABLE, "where nothing else will do: %s", ps_status_name(st));
    ps_profile_free(p);
}

int main(void) {
    library = FAKE_CUPTI;
    old_library = FAKE_CUPTI_OLD;
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        printf("%s\n", dlerror());
        return 1;
    }
    fake = dlsym(handle, "fake_cupti");
    void *at = dlsym(handle, "fake_cupti_put");
    memcpy(&put, &at, sizeof at);
    if (!fake || !put)
        return 1;
    reset();
    test_open();
    test_sums();
    test_faults();
    test_rig();
    printf("%u failures\n", failures);
    return failures != 0;
}
