/* The emulated device when memory runs out: a clean error each time, nothing left behind. */
#include <stdio.h>

#include "fault.h"
#include "machine/device.h"

static void add_one(void *payload) {
    uint32_t *const *at = payload;
    ++**at;
}

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        if ((st = (call)) != PS_OK)                                                                          \
            goto end;                                                                                        \
    } while (0)

static const char *device_body(void *ctx, bool injected) {
    (void)ctx;
    const ps_device_options options = {.emulated = true, .emulated_bytes = 8 * (uint64_t)PS_VRAM_HANDLE};
    ps_device *d = NULL;
    ps_vram_range *range = NULL;
    ps_device_graph *graph = NULL;
    ps_error err = {0};
    void *host = NULL;
    uint8_t *d_host = NULL;
    uint32_t *cell = NULL, got = 0;
    ps_status st = PS_OK;
    TRY(ps_device_open(&options, &d, &err));
    TRY(ps_vram_reserve(d, 2 * (uint64_t)PS_VRAM_HANDLE, &range, &err));
    TRY(ps_vram_resize(range, PS_VRAM_HANDLE, &err));
    TRY(ps_device_host_alloc(d, 4096, &host, &d_host, &err));
    cell = (uint32_t *)(void *)ps_vram_base(range);
    *(uint32_t *)host = 40;
    TRY(ps_device_copy(d, PS_STREAM_COMPUTE, cell, 0, host, 0, 4, 1, &err));
    TRY(ps_device_enqueue(d, PS_STREAM_COMPUTE, add_one, &cell, sizeof cell, &err));
    TRY(ps_device_capture_begin(d, &err));
    TRY(ps_device_enqueue(d, PS_STREAM_COMPUTE, add_one, &cell, sizeof cell, &err));
    TRY(ps_device_record(d, PS_STREAM_COMPUTE, 0, &err));
    TRY(ps_device_wait(d, PS_STREAM_D2H, 0, &err));
    TRY(ps_device_copy(d, PS_STREAM_D2H, host, 0, cell, 0, 4, 1, &err));
    TRY(ps_device_time(d, PS_STREAM_D2H, 2, &err));
    TRY(ps_device_record(d, PS_STREAM_D2H, 1, &err));
    TRY(ps_device_wait(d, PS_STREAM_COMPUTE, 1, &err));
    TRY(ps_device_capture_end(d, &graph, &err));
    TRY(ps_device_graph_launch(d, graph, &err));
    TRY(ps_device_sync(d, &err));
    got = *(const uint32_t *)host;
end:
    ps_device_close(d);
    if (st == PS_OK) {
        if (ps_fault_hit() && injected)
            return "succeeded although a call failed";
        return got == 42 ? NULL : "a wrong result";
    }
    if (!injected)
        return "failed although no call did";
    return err.message[0] ? NULL : "an error without a message";
}

int main(void) {
    uint64_t n = 0;
    unsigned wrong = ps_fault_sweep("device", device_body, NULL, &n);
    if (n < 15) {
        fprintf(stderr, "only %llu calls were seen\n", (unsigned long long)n);
        wrong++;
    }
    return wrong != 0;
}
