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
    const ps_device_options options = {
        .emulated = true, .emulated_bytes = 512 * SCENARIO_MIB, .emulated_base_bytes = SCENARIO_MIB};
    scenarios_run(&options);
    return scenario_failures != 0;
}
