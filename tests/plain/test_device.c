/* The scenarios of devices on the emulated one; what is mapped and what is not; which error when there is no GPU. */
#include <signal.h>
#include <sys/wait.h>

#include "machine/device.h"

typedef struct scale_work {
    uint32_t *dst;
    const uint32_t *src;
    uint32_t n, mul, add;
} scale_work;

static void scale(void *payload) {
    const scale_work *w = payload;
    for (uint32_t i = 0; i < w->n; i++)
        w->dst[i] = w->src[i] * w->mul + w->add;
}

static ps_status scenario_scale(ps_device *d, ps_stream stream, uint32_t *dst, const uint32_t *src,
                                uint32_t n, uint32_t mul, uint32_t add, ps_error *err) {
    const scale_work w = {dst, src, n, mul, add};
    return ps_device_enqueue(d, stream, scale, &w, sizeof w, err);
}

static void delay(void *payload);
static ps_status scenario_delay(ps_device *d, ps_stream stream, uint32_t us, ps_error *err) {
    return ps_device_enqueue(d, stream, delay, &us, sizeof us, err);
}

#include "../device_scenarios.h"

static void delay(void *payload) {
    scenario_nap(*(const uint32_t *)payload * 1000L);
}

/* Does touching this byte kill? Asked of a child. */
static bool kills(volatile uint8_t *at) {
    const pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        at[0] = 1;
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void test_edges(void) {
    const ps_device_options options = {
        .emulated = true, .emulated_bytes = 100 * SCENARIO_MIB, .emulated_base_bytes = 30 * SCENARIO_MIB};
    ps_device *d = NULL;
    OK(ps_device_open(&options, &d, err));
    if (!d)
        return;
    CHECK(ps_device_get_info(d)->emulated && ps_device_get_info(d)->vram_bytes == options.emulated_bytes,
          "info");
    CHECK(ps_device_stream(d, PS_STREAM_COMPUTE) == NULL, "an emulated stream is no CUDA stream");
    ps_vram_range *range = NULL;
    OK(ps_vram_reserve(d, 8 * (uint64_t)PS_VRAM_HANDLE, &range, err));
    uint8_t *v = ps_vram_base(range);
    CHECK(kills(v), "nothing is mapped");
    OK(ps_vram_resize(range, 2 * (uint64_t)PS_VRAM_HANDLE, err));
    CHECK(!kills(v + 2 * PS_VRAM_HANDLE - 1), "mapped");
    CHECK(kills(v + 2 * PS_VRAM_HANDLE), "past the end");
    v[PS_VRAM_HANDLE] = 9;
    OK(ps_vram_resize(range, PS_VRAM_HANDLE, err));
    CHECK(kills(v + PS_VRAM_HANDLE), "released");
    OK(ps_vram_resize(range, 2 * (uint64_t)PS_VRAM_HANDLE, err));
    CHECK(v[PS_VRAM_HANDLE] == 0, "what was released is gone");
    /* Four handles beside 30 MiB are 94 of 100 MiB. */
    OK(ps_vram_resize(range, 4 * (uint64_t)PS_VRAM_HANDLE, err));
    FAILS(PS_E_NOMEM, ps_vram_resize(range, 5 * (uint64_t)PS_VRAM_HANDLE, err));
    uint64_t used = 0, total = 0;
    ps_meter how = PS_METER_COUNT;
    OK(ps_device_vram_used(d, &used, &how, err));
    CHECK(used == 94 * SCENARIO_MIB && how == PS_METER_EMULATED, "%" PRIu64 " %s", used, ps_meter_name(how));
    OK(ps_device_vram_all(d, &used, &total, err));
    CHECK(used == 94 * SCENARIO_MIB && total == 100 * SCENARIO_MIB, "%" PRIu64 " of %" PRIu64, used, total);
    ps_device_close(d);
}

/* VRAM beyond what there is, given all the same: slow, and only there; as fast as any again once it is released. */
static void test_spill(void) {
    const ps_device_options options = {.emulated = true,
                                       .emulated_bytes = 256 * SCENARIO_MIB,
                                       .emulated_spill_bytes = 3 * (uint64_t)PS_VRAM_HANDLE};
    ps_device *d = NULL;
    ps_vram_range *a = NULL, *b = NULL;
    double s[3] = {0};
    OK(ps_device_open(&options, &d, err));
    if (!d)
        return;
    OK(ps_vram_reserve(d, 4 * (uint64_t)PS_VRAM_HANDLE, &a, err));
    OK(ps_vram_resize(a, 2 * (uint64_t)PS_VRAM_HANDLE, err));
    OK(ps_vram_reserve(d, 4 * (uint64_t)PS_VRAM_HANDLE, &b, err));
    for (int i = 0; i < 2;
         i++) { /* with two handles the second of b is too much; without the first range it is not */
        uint8_t *v = ps_vram_base(b);
        OK(ps_vram_resize(b, 2 * (uint64_t)PS_VRAM_HANDLE, err));
        for (int part = 0; part < 2; part++) {
            OK(ps_device_time(d, PS_STREAM_COMPUTE, 0, err));
            OK(ps_device_copy(d, PS_STREAM_COMPUTE, v + part * PS_VRAM_HANDLE, 0,
                              v + part * PS_VRAM_HANDLE + 65536, 0, SCENARIO_MIB, 1, err));
            OK(ps_device_time(d, PS_STREAM_COMPUTE, 1, err));
            OK(ps_device_sync(d, err));
            OK(ps_device_elapsed(d, 0, 1, &s[2 * i == 2 ? 2 : part], err));
        }
        OK(ps_vram_resize(b, 0, err));
        OK(ps_vram_resize(a, 0, err));
    }
    CHECK(s[1] >= 1e-3, "%g s for a copy in spilled memory", s[1]);
    CHECK(s[0] > 0 && s[2] > 0, "times");
    ps_device_close(d);
}

/* A GPU without memory of its own is refused by what it says of itself, and nothing of it is left. */
static void test_integrated(void) {
    const ps_device_options options = {.emulated = true, .emulated_integrated = true};
    ps_device *d = NULL;
    ps_error why = {0};
    FAILS(PS_E_UNSUPPORTED, ps_device_open(&options, &d, err));
    CHECK(d == NULL, "a device that was refused");
    (void)ps_device_open(&options, &d, &why);
    CHECK(strstr(why.message, "shares the system's memory") != NULL, "%s", why.message);
}

/* Asks for a GPU where the build or the machine has none: says so, at once. */
static void test_absent(void) {
    const ps_device_options options = {.index = 1000};
    ps_device *d = NULL;
    const uint64_t t0 = ps_clock_ns();
    FAILS(PS_E_UNAVAILABLE, ps_device_open(&options, &d, err));
#ifndef PS_HAVE_CUDA
    ps_error without = {0};
    (void)ps_device_open(&options, &d, &without);
    CHECK(strcmp(without.message, "built without CUDA") == 0, "%s", without.message);
#endif
    CHECK(ps_clock_ns() - t0 < 5000000000u, "%.3f s", (double)(ps_clock_ns() - t0) * 1e-9);
    printf("no GPU: known after %.1f ms\n", (double)(ps_clock_ns() - t0) * 1e-6);
}

int main(void) {
    test_absent();
    test_edges();
    test_spill();
    test_integrated();
    const ps_device_options options = {
        .emulated = true, .emulated_bytes = 512 * SCENARIO_MIB, .emulated_base_bytes = SCENARIO_MIB};
    scenarios_run(&options);
    return scenario_failures != 0;
}
