/* NVML against a library that plays its part: which process is ours, what to do where it does not know, and no figure where
 * there is none. The PCIe link from a recorded sysfs. */
#include "machine/nvml.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_nvml.h"
#include "machine/device_link.h"

static int failures;

#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                                       \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fprintf(stderr, "\n");                                                                           \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

static const char uuid[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";
static const uint64_t mib = 1 << 20;
static const char *library;
static fake_nvml_state *fake;

static void reset(void) {
    const int n_open = fake->n_open;
    memset(fake, 0, sizeof *fake);
    fake->n_open = n_open;
    snprintf(fake->uuid, sizeof fake->uuid, "%s", uuid);
    fake->total = 8192 * mib;
    fake->used = 500 * mib;
    fake->free = fake->total - fake->used;
}

static void set_used(uint64_t bytes) {
    fake->used = bytes;
    fake->free = fake->total - bytes;
}

static void add_process(unsigned pid, uint64_t bytes) {
    fake->processes[fake->n_processes++] = (fake_nvml_process){.pid = pid, .used = bytes};
}

static ps_nvml *open_fake(void) {
    ps_nvml *nvml = NULL;
    ps_error err = {0};
    CHECK(ps_nvml_open(uuid, library, &nvml, &err) == PS_OK, "%s: %s", err.subject, err.message);
    if (!nvml)
        exit(1);
    return nvml;
}

static void expect_meter(const ps_nvml *nvml, uint64_t bytes, ps_meter how, int line) {
    uint64_t got = 0;
    ps_meter got_how = PS_METER_COUNT;
    ps_error err = {0};
    CHECK(ps_nvml_meter_read(nvml, &got, &got_how, &err) == PS_OK, "line %d: %s", line, err.message);
    CHECK(got == bytes && got_how == how, "line %d: %" PRIu64 " %s", line, got, ps_meter_name(got_how));
}

static void test_open(void) {
    ps_nvml *nvml = NULL;
    ps_error err = {0};
    CHECK(ps_nvml_open(uuid, "/nonexistent/libnvidia-ml.so.1", &nvml, &err) == PS_E_UNAVAILABLE, "%s",
          err.message);
    CHECK(ps_nvml_open(uuid, "libm.so.6", &nvml, &err) == PS_E_UNAVAILABLE, "%s", err.message);
    reset();
    CHECK(ps_nvml_open("GPU-00000000-0000-0000-0000-000000000000", library, &nvml, &err) == PS_E_UNAVAILABLE,
          "%s", err.message);
    fake->init_code = 4;
    CHECK(ps_nvml_open(uuid, library, &nvml, &err) == PS_E_PERM, "%s", err.message);
    CHECK(strstr(err.message, "not permitted"), "%s", err.message);
    fake->init_code = 9;
    CHECK(ps_nvml_open(uuid, library, &nvml, &err) == PS_E_UNAVAILABLE, "%s", err.message);
    fake->init_code = 999;
    CHECK(ps_nvml_open(uuid, library, &nvml, &err) == PS_E_OS && err.sys_code == 999, "%s", err.message);
    ps_nvml_close(NULL);
}

static void test_memory(void) {
    reset();
    ps_nvml *nvml = open_fake();
    uint64_t used = 0, total = 0;
    ps_error err = {0};
    CHECK(ps_nvml_memory(nvml, &used, &total, &err) == PS_OK && used == 500 * mib && total == 8192 * mib,
          "%s", err.message);
    set_used(fake->total); /* full is an answer */
    CHECK(ps_nvml_memory(nvml, &used, &total, &err) == PS_OK && used == total, "%s", err.message);
    set_used(500 * mib);
    fake->free = 0; /* nothing free with most of it unused is none */
    CHECK(ps_nvml_memory(nvml, &used, &total, &err) == PS_E_UNAVAILABLE, "%s", err.message);
    fake->total = fake->used = 0;
    CHECK(ps_nvml_memory(nvml, &used, &total, &err) == PS_E_UNAVAILABLE, "%s", err.message);
    reset();
    fake->memory_code = 4;
    CHECK(ps_nvml_memory(nvml, &used, &total, &err) == PS_E_PERM, "%s", err.message);
    fake->memory_code = 3;
    CHECK(ps_nvml_memory(nvml, &used, &total, &err) == PS_E_UNAVAILABLE, "%s", err.message);
    ps_meter how;
    CHECK(ps_nvml_meter_read(nvml, &used, &how, &err) == PS_E_UNAVAILABLE, "%s", err.message);
    ps_nvml_close(nvml);
}

static void test_meter(void) {
    const unsigned self = (unsigned)getpid(), other = self + 1000, third = self + 2000;
    /* By our own id. */
    reset();
    add_process(other, 100 * mib);
    ps_nvml *nvml = open_fake();
    ps_nvml_meter_begin(nvml);
    add_process(self, 400 * mib);
    ps_nvml_meter_end(nvml, false);
    expect_meter(nvml, 400 * mib, PS_METER_PROCESS, __LINE__);
    fake->processes[1].used = 700 * mib;
    expect_meter(nvml, 700 * mib, PS_METER_PROCESS, __LINE__);
    /* Figures that are none: the change of the whole device since begin. */
    fake->processes[1].used = ~0ull;
    set_used(900 * mib);
    expect_meter(nvml, 400 * mib, PS_METER_DEVICE, __LINE__);
    fake->processes[1].used = 0;
    expect_meter(nvml, 400 * mib, PS_METER_DEVICE, __LINE__);
    set_used(100 * mib); /* others gave memory back: never below nothing */
    expect_meter(nvml, 0, PS_METER_DEVICE, __LINE__);
    fake->processes_code = 4;
    set_used(600 * mib);
    expect_meter(nvml, 100 * mib, PS_METER_DEVICE, __LINE__);
    ps_nvml_close(nvml);

    /* In a container: another id, the only one that is new. */
    reset();
    add_process(other, 100 * mib);
    nvml = open_fake();
    ps_nvml_meter_begin(nvml);
    add_process(third, 300 * mib);
    ps_nvml_meter_end(nvml, false);
    expect_meter(nvml, 300 * mib, PS_METER_PROCESS, __LINE__);
    ps_nvml_close(nvml);

    /* Two are new: it cannot be told which. */
    reset();
    nvml = open_fake();
    ps_nvml_meter_begin(nvml);
    add_process(other, 100 * mib);
    add_process(third, 300 * mib);
    set_used(950 * mib);
    ps_nvml_meter_end(nvml, false);
    expect_meter(nvml, 450 * mib, PS_METER_DEVICE, __LINE__);
    ps_nvml_close(nvml);

    /* None is listed; one that is there all along is not ours. */
    reset();
    add_process(other, 100 * mib);
    nvml = open_fake();
    ps_nvml_meter_begin(nvml);
    set_used(800 * mib);
    ps_nvml_meter_end(nvml, false);
    expect_meter(nvml, 300 * mib, PS_METER_DEVICE, __LINE__);
    ps_nvml_close(nvml);

    /* With a context from before begin, nothing is new: the only one there is, or all that is used. */
    reset();
    add_process(other, 100 * mib);
    nvml = open_fake();
    ps_nvml_meter_begin(nvml);
    ps_nvml_meter_end(nvml, true);
    expect_meter(nvml, 100 * mib, PS_METER_PROCESS, __LINE__);
    add_process(third, 100 * mib);
    ps_nvml_meter_begin(nvml);
    ps_nvml_meter_end(nvml, true);
    expect_meter(nvml, 500 * mib, PS_METER_WHOLE, __LINE__);
    ps_nvml_close(nvml);

    /* More than are looked at: no list. */
    reset();
    for (unsigned i = 0; i < 280; i++)
        add_process(other + i, mib);
    nvml = open_fake();
    ps_nvml_meter_begin(nvml);
    ps_nvml_meter_end(nvml, false);
    set_used(510 * mib);
    expect_meter(nvml, 10 * mib, PS_METER_DEVICE, __LINE__);
    ps_nvml_close(nvml);
}

static void test_figures(bool old) {
    reset();
    ps_nvml *nvml = open_fake();
    char driver[32];
    ps_device_link link = {9, 9, 9, 9};
    uint64_t sm = 9, memory = 9, slowed = 9;
    ps_nvml_driver(nvml, driver, sizeof driver);
    ps_nvml_link(nvml, &link);
    ps_nvml_clocks(nvml, &sm, &memory, &slowed);
    CHECK(strcmp(driver, "580.1") == 0, "%s", driver);
    CHECK(link.gen == (old ? 0u : 4u) && link.width == (old ? 0u : 16u) && link.max_gen == (old ? 0u : 5u) &&
              link.max_width == (old ? 0u : 16u),
          "%u x%u of %u x%u", link.gen, link.width, link.max_gen, link.max_width);
    CHECK(sm == (old ? 0u : 1980000000u) && memory == (old ? 0u : 3201000000u), "%" PRIu64 " %" PRIu64, sm,
          memory);
    CHECK(slowed == (old ? 0u : 0x40u), "%" PRIx64, slowed);
    ps_nvml_meter_begin(nvml);
    CHECK((old ? fake->calls_v2 : fake->calls_v3) == 1 && (old ? fake->calls_v3 : fake->calls_v2) == 0,
          "%d %d", fake->calls_v2, fake->calls_v3);
    ps_nvml_close(nvml);
}

static void put(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    CHECK(f, "%s", path);
    if (f) {
        fputs(text, f);
        fclose(f);
    }
}

static void test_link(void) {
    static const struct {
        const char *speed, *width;
        uint32_t gen, lanes;
    } rows[] = {
        {"2.5 GT/s PCIe\n", "4\n", 1, 4},    {"5.0 GT/s PCIe\n", "1\n", 2, 1},
        {"8.0 GT/s PCIe\n", "8\n", 3, 8},    {"16.0 GT/s PCIe\n", "16\n", 4, 16},
        {"32.0 GT/s PCIe\n", "16\n", 5, 16}, {"64.0 GT/s PCIe\n", "16\n", 6, 16},
        {"Unknown\n", "63\n", 0, 0},         {"", "0\n", 0, 0},
    };
    char root[] = "/tmp/ps-link-XXXXXX", dir[256];
    CHECK(mkdtemp(root), "mkdtemp");
    static const char *const parts[] = {"/sys", "/sys/bus", "/sys/bus/pci", "/sys/bus/pci/devices",
                                        "/sys/bus/pci/devices/0000:65:00.0"};
    for (size_t i = 0; i < 5; i++) {
        snprintf(dir, sizeof dir, "%s%s", root, parts[i]);
        CHECK(mkdir(dir, 0700) == 0, "%s", dir);
    }
    ps_device_link link = {9, 9, 9, 9};
    ps_device_link_sysfs(root, "0000:66:00.0", &link);
    CHECK(link.gen == 0 && link.width == 0 && link.max_gen == 0, "%u x%u", link.gen, link.width);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put(dir, "current_link_speed", rows[i].speed);
        put(dir, "current_link_width", rows[i].width);
        ps_device_link_sysfs(root, "0000:65:00.0", &link);
        CHECK(link.gen == rows[i].gen && link.width == rows[i].lanes, "row %zu: %u x%u", i, link.gen,
              link.width);
    }
    char path[512];
    snprintf(path, sizeof path, "%s/current_link_speed", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/current_link_width", dir);
    unlink(path);
    for (size_t i = 5; i-- > 0;) {
        snprintf(dir, sizeof dir, "%s%s", root, parts[i]);
        rmdir(dir);
    }
    rmdir(root);
}

int main(void) {
    static const char *const libraries[] = {FAKE_NVML, FAKE_NVML_OLD};
    for (int old = 0; old < 2; old++) {
        library = libraries[old];
        void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        CHECK(handle, "%s", dlerror());
        if (!handle)
            return 1;
        fake = dlsym(handle, "fake_nvml");
        CHECK(fake, "%s", dlerror());
        if (!fake)
            return 1;
        test_open();
        test_memory();
        test_meter();
        test_figures(old != 0);
        /* nvmlInit was undone as often as it succeeded: the three that failed must not be. */
        CHECK(fake->n_open == 3, "%d", fake->n_open);
        dlclose(handle);
    }
    test_link();
    return failures != 0;
}
