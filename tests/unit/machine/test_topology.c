/* Topology and limits, on recorded machines and on this one. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine/device_link.h"
#include "machine/limits.h"
#include "machine/record.h"
#include "machine/topology.h"

#define GIB ((uint64_t)1 << 30)

static ps_machine *open_fixture(const char *name) {
    char path[256];
    ps_machine *m = NULL;
    ps_error err = {0};
    snprintf(path, sizeof path, "fixtures/machines/%s", name);
    cr_assert_eq(ps_machine_open(path, &m, &err), PS_OK, "%s: %s %s", name, err.subject, err.message);
    return m;
}

/* One row per recorded machine. */
static const struct expected {
    const char *name, *model;
    uint32_t packages, cores, threads, numa, p, e, n_cpus, n_allowed;
    double quota;
    uint64_t l2, l3, memory, memory_free, memlock;
    uint32_t first_cpus[8]; /* os indices, best first */
} machines[] = {
    {"quota-v2",
     "AMD EPYC 9654 96-Core Processor",
     1,
     96,
     96,
     1,
     96,
     0,
     96,
     7,
     7.65,
     1 << 20,
     32 << 20,
     16 * GIB,
     14 * GIB,
     65536,
     {0, 1, 2, 3, 4, 5, 6, 7}},
    {"quota-v1",
     "AMD EPYC 9654 96-Core Processor",
     1,
     96,
     96,
     1,
     96,
     0,
     96,
     7,
     7.65,
     1 << 20,
     32 << 20,
     384 * GIB,
     300 * GIB,
     65536,
     {0, 1, 2, 3, 4, 5, 6, 7}},
    {"quota-half",
     "Intel(R) Xeon(R) CPU",
     1,
     4,
     4,
     1,
     4,
     0,
     4,
     1,
     0.5,
     1 << 20,
     32 << 20,
     8 * GIB,
     6 * GIB,
     8388608,
     {0, 1, 2, 3}},
    {"cpuset-smt",
     "AMD Ryzen 7 5800X 8-Core Processor",
     1,
     8,
     16,
     1,
     8,
     0,
     7,
     7,
     0,
     512 << 10,
     32 << 20,
     64 * GIB,
     50 * GIB,
     UINT64_MAX,
     {4, 5, 6, 15, 12, 13, 14}},
    {"hybrid-pe",
     "13th Gen Intel(R) Core(TM) i5-13500",
     1,
     14,
     20,
     1,
     6,
     8,
     20,
     20,
     0,
     1280 << 10,
     24 << 20,
     32 * GIB,
     28 * GIB,
     UINT64_MAX,
     {0, 2, 4, 6, 8, 10, 12, 13}},
    {"two-sockets",
     "Intel(R) Xeon(R) Gold 6226R",
     2,
     8,
     16,
     2,
     8,
     0,
     16,
     16,
     0,
     1 << 20,
     22 << 20,
     192 * GIB,
     180 * GIB,
     UINT64_MAX,
     {0, 1, 2, 3, 4, 5, 6, 7}},
    {"two-ccd",
     "AMD Ryzen 9 7900X 12-Core Processor",
     1,
     12,
     24,
     1,
     12,
     0,
     8,
     8,
     0,
     1 << 20,
     32 << 20,
     64 * GIB,
     50 * GIB,
     UINT64_MAX,
     {4, 5, 6, 7, 16, 17, 18, 19}},
};

Test(topology, recorded_machines) {
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        const struct expected *x = &machines[i];
        ps_machine *m = open_fixture(x->name);
        cr_expect_str_eq(m->cpu_model, x->model);
        cr_expect_eq(m->n_packages, x->packages, "%s: %u packages", x->name, m->n_packages);
        cr_expect_eq(m->n_cores, x->cores, "%s: %u cores", x->name, m->n_cores);
        cr_expect_eq(m->n_threads, x->threads, "%s: %u threads", x->name, m->n_threads);
        cr_expect_eq(m->n_numa, x->numa, "%s: %u nodes", x->name, m->n_numa);
        cr_expect_eq(m->n_p_cores, x->p, "%s: %u P", x->name, m->n_p_cores);
        cr_expect_eq(m->n_e_cores, x->e, "%s: %u E", x->name, m->n_e_cores);
        cr_expect_eq(m->n_cpus, x->n_cpus, "%s: %u CPUs", x->name, m->n_cpus);
        cr_expect_eq(m->n_allowed, x->n_allowed, "%s: %u allowed", x->name, m->n_allowed);
        cr_expect_float_eq(m->cpu_quota, x->quota, 1e-9, "%s: quota %g", x->name, m->cpu_quota);
        cr_expect_eq(m->l2_bytes, x->l2, "%s: L2 %lu", x->name, (unsigned long)m->l2_bytes);
        cr_expect_eq(m->l3_bytes, x->l3, "%s: L3 %lu", x->name, (unsigned long)m->l3_bytes);
        cr_expect_eq(m->memory_bytes, x->memory, "%s: memory %lu", x->name, (unsigned long)m->memory_bytes);
        cr_expect_eq(m->memory_free_bytes, x->memory_free, "%s: free %lu", x->name,
                     (unsigned long)m->memory_free_bytes);
        cr_expect_eq(m->memlock_bytes, x->memlock, "%s: memlock %lu", x->name,
                     (unsigned long)m->memlock_bytes);
        for (uint32_t c = 0; c < 8 && c < m->n_cpus; c++)
            cr_expect_eq(m->cpus[c].os_index, x->first_cpus[c], "%s: CPU %u is %u", x->name, c,
                         m->cpus[c].os_index);
        cr_expect_not(ps_machine_is_live(m));
        ps_machine_close(m);
    }
}

Test(topology, order_of_hybrid_and_siblings) {
    ps_machine *m = open_fixture("hybrid-pe");
    /* Six P cores, eight E cores, then the P cores' siblings. */
    for (uint32_t c = 0; c < 20; c++) {
        cr_expect_eq(m->cpus[c].smt, c < 14 ? 0 : 1);
        cr_expect_eq(m->cpus[c].kind, c >= 6 && c < 14 ? 1 : 0);
    }
    cr_expect_eq(m->cpus[14].os_index, 1);
    ps_machine_close(m);

    m = open_fixture("two-sockets");
    for (uint32_t c = 0; c < 16; c++) {
        cr_expect_eq(m->cpus[c].package, c / 4 % 2);
        cr_expect_eq(m->cpus[c].numa, c / 4 % 2);
        cr_expect_eq(m->cpus[c].smt, c / 8);
    }
    ps_machine_close(m);
}

Test(topology, damaged_or_missing_records_name_the_file) {
    ps_machine *m = NULL;
    ps_error err = {0};
    cr_expect_eq(ps_machine_open("fixtures/machines/bad-quota", &m, &err), PS_E_DATA);
    cr_expect_str_eq(err.subject, "/sys/fs/cgroup/a/cpu.max");
    cr_expect_null(m);
    cr_expect_eq(ps_machine_open("fixtures/machines/no-such-machine", &m, &err), PS_E_NOINPUT);
    cr_expect_null(m);
}

/* What a GPU's use depends on: WSL and WDDM, the driver, links and their places. */
Test(topology, signs_of_wsl_and_links) {
    char text[128];
    ps_machine *m = open_fixture("wsl2");
    cr_expect(m->signs.wsl && m->signs.wddm);
    cr_expect_eq(m->signs.n_gpus, 0);
    cr_expect_str_eq(ps_signs_text(&m->signs, text, sizeof text),
                     "WSL: page-locking is bounded, the GPU is reached through WDDM");
    cr_expect_eq(m->memlock_bytes, 65536);
    ps_machine_close(m);

    m = open_fixture("slow-link");
    cr_expect(!m->signs.wsl && !m->signs.wddm);
    cr_expect_str_eq(ps_signs_text(&m->signs, text, sizeof text), "");
    cr_expect_str_eq(m->signs.driver, "580.95.05");
    cr_assert_eq(m->signs.n_gpus, 2);
    const ps_pci_gpu *display = &m->signs.gpus[0], *card = &m->signs.gpus[1];
    cr_expect_str_eq(display->id, "0000:03:00.0");
    cr_expect(display->gen == 0 && display->width == 0 && display->max_gen == 0 && display->numa == -1);
    cr_expect_str_eq(card->id, "0000:af:00.0");
    cr_expect(card->vendor == 0x10de && card->gen == 3 && card->width == 8 && card->max_gen == 5 &&
              card->max_width == 16 && card->numa == 1);
    ps_machine_close(m);

    m = open_fixture("quota-v2"); /* knows nothing of all this */
    cr_expect(!m->signs.wsl && !m->signs.wddm && m->signs.n_gpus == 0 && m->signs.driver[0] == 0);
    ps_machine_close(m);
}

Test(topology, a_link_below_its_best_is_said) {
    static const struct {
        ps_device_link link;
        const char *text;
    } rows[] = {
        {{5, 16, 5, 16}, ""},
        {{3, 16, 5, 16}, "its link runs at PCIe 3 x16, it can do 5 x16"},
        {{4, 8, 4, 16}, "its link runs at PCIe 4 x8, it can do 4 x16"},
        {{0, 0, 5, 16}, ""}, /* unknown is not slow */
        {{3, 8, 0, 0}, ""},
        {{4, 16, 3, 16}, ""},
    };
    char text[96];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_str_eq(ps_device_link_text(&rows[i].link, text, sizeof text), rows[i].text);
    ps_device_link l;
    ps_device_link_sysfs("fixtures/machines/slow-link", "0000:af:00.0", &l);
    cr_expect_str_eq(ps_device_link_text(&l, text, sizeof text),
                     "its link runs at PCIe 3 x8, it can do 5 x16");
}

Test(topology, live_machine_agrees_with_the_system) {
    ps_machine *m = NULL;
    ps_error err = {0};
    cr_assert_eq(ps_machine_open(NULL, &m, &err), PS_OK, "%s %s", err.subject, err.message);
    cr_expect(ps_machine_is_live(m));
    cr_expect_eq(m->n_threads, (uint32_t)sysconf(_SC_NPROCESSORS_ONLN));
    cr_expect_geq(m->n_allowed, 1);
    cr_expect_leq(m->n_allowed, m->n_cpus);
    cr_expect_leq(m->n_cpus, m->n_threads);
    cr_expect_gt(m->memory_bytes, m->memory_free_bytes);
    cr_expect_gt(m->memory_free_bytes, 0);
    cr_expect_gt(m->cpu_model[0], 0);
    ps_machine_close(m);
}

/* Text of a file, "" if there is none. */
static void text_of(const char *path, char *out, size_t size) {
    FILE *f = fopen(path, "re");
    out[0] = 0;
    if (!f)
        return;
    out[fread(out, 1, size - 1, f)] = 0;
    out[strcspn(out, "\n")] = 0;
    fclose(f);
}

/* No file of the record may hold it. */
static void expect_absent(const char *dir, const char *what, const char *secret) {
    char command[512];
    if (strlen(secret) < 2 ||
        strpbrk(secret, "'\n")) /* a machine without it, or a name that is in every file */
        return;
    snprintf(command, sizeof command, "! grep -rqFwi -- '%s' %s && ! find %s | grep -qFwi -- '%s'", secret,
             dir, dir, secret);
    cr_expect_eq(system(command), 0, "%s is in the record: %s", what, secret);
}

Test(record, infos_that_tell_whose_machine_it_is_go) {
    char xml[] = "<topology>\n"
                 "  <object type=\"Machine\">\n"
                 "    <info name=\"HostName\" value=\"annas-laptop\"/>\n"
                 "    <info name=\"DMIProductSerial\" value=\"PF2ABCDE\"/>\n"
                 "    <info name=\"DMIProductUUID\" value=\"4c4c4544-0042\"/>\n"
                 "    <info name=\"OSVersion\" value=\"#1 built by anna\"/>\n"
                 "    <info name=\"CPUModel\" value=\"Some > CPU\"/>\n"
                 "    <info value=\"52:54:00:12:34:56\" name=\"Address\"/>\n"
                 "    <info name=\"CPUModelSerial\" value=\"77\"/>\n"
                 "  </object>\n"
                 "</topology>\n";
    cr_expect_eq(ps_record_scrub_xml(xml), 6);
    cr_expect_str_eq(xml, "<topology>\n"
                          "  <object type=\"Machine\">\n"
                          "    <info name=\"CPUModel\" value=\"Some > CPU\"/>\n"
                          "  </object>\n"
                          "</topology>\n");
    char cut[] = "<info name=\"HostName"; /* no end: left as it is, and read no further */
    cr_expect_eq(ps_record_scrub_xml(cut), 0);
}

Test(record, groups_get_other_names) {
    ps_record_names *names = ps_record_names_new();
    cr_assert_not_null(names);
    cr_assert(ps_record_names_note(names, "4:memory:/docker/c0ffee\n0::/user-anna.slice/../sys\n", false));
    cr_assert(ps_record_names_note(
        names, "41 39 0:31 /docker/c0ffee /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", true));
    char *text = ps_record_rename(names, "/sys/fs/cgroup/user-anna.slice/docker/x c0ffee /c0ffee\n/dockers");
    cr_expect_str_eq(text, "/sys/fs/cgroup/g3/g1/x c0ffee /g2\n/dockers");
    free(text);
    char many[2048] = "0::";
    for (int i = 0; i < 100; i++)
        snprintf(many + strlen(many), 16, "/n%d", i);
    cr_expect_not(ps_record_names_note(names, many, false), "more names than there is room for");
    ps_record_names_free(names);
}

/* A record of this machine opens as the same machine. */
Test(topology, a_record_reads_back) {
    ps_machine *live = NULL, *recorded = NULL;
    ps_error err = {0};
    char dir[] = "/tmp/ps-record-XXXXXX", path[64], command[160], secret[256];
    uint8_t a[PS_HASH_BYTES], b[PS_HASH_BYTES];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/machine", dir);
    cr_assert_eq(ps_machine_open(NULL, &live, &err), PS_OK);
    cr_assert_eq(ps_machine_record(live, path, &err), PS_OK, "%s: %s", err.subject, err.message);
    cr_expect_eq(ps_machine_record(live, path, &err), PS_E_CANTCREATE, "a record is never written over");
    cr_assert_eq(ps_machine_open(path, &recorded, &err), PS_OK, "%s: %s", err.subject, err.message);
    ps_machine_hash(live, a);
    ps_machine_hash(recorded, b);
    cr_expect_arr_eq(a, b, sizeof a);
    cr_expect_eq(live->n_allowed, recorded->n_allowed);
    cr_expect_eq(live->n_cpus, recorded->n_cpus);
    cr_expect_eq(live->memory_bytes, recorded->memory_bytes);
    cr_expect_eq(live->memlock_bytes, recorded->memlock_bytes);
    cr_expect_float_eq(live->cpu_quota, recorded->cpu_quota, 1e-12);
    cr_expect_eq(live->memory_free_bytes > 0, recorded->memory_free_bytes > 0);
    cr_expect_str_eq(live->cpu_model, recorded->cpu_model);
    cr_expect_eq(memcmp(live->cpus, recorded->cpus, live->n_cpus * sizeof *live->cpus), 0);
    cr_expect_eq(live->signs.n_gpus, recorded->signs.n_gpus);
    cr_expect_eq(live->signs.wsl, recorded->signs.wsl);
    /* Whose machine it is stays out. */
    gethostname(secret, sizeof secret);
    secret[sizeof secret - 1] = 0;
    expect_absent(path, "the host's name", secret);
    const char *user = getenv("USER") ? getenv("USER") : getenv("LOGNAME");
    if (user)
        expect_absent(path, "the user's name", user);
    static const char *const files[] = {"/etc/machine-id",
                                        "/proc/sys/kernel/random/boot_id",
                                        "/sys/class/dmi/id/product_uuid",
                                        "/sys/class/dmi/id/product_serial",
                                        "/sys/class/dmi/id/board_serial",
                                        "/sys/class/dmi/id/chassis_serial",
                                        "/sys/class/net/eth0/address",
                                        "/proc/sys/kernel/version"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        text_of(files[i], secret, sizeof secret);
        expect_absent(path, files[i], secret);
    }
    snprintf(command, sizeof command, "! grep -rqiE 'serial|uuid|hostname|([0-9a-f]{2}:){5}' %s", path);
    cr_expect_eq(system(command), 0, "serial numbers, UUIDs, names or addresses in the record");
    ps_machine_close(live);
    ps_machine_close(recorded);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_expect_eq(system(command), 0);
}

Test(limits, cpu_lists) {
    ps_cpu_mask m;
    cr_assert(ps_cpu_list_parse("0-2,64,4095\n", &m));
    cr_expect_eq(m.word[0], 7);
    cr_expect_eq(m.word[1], 1);
    cr_expect(ps_cpu_mask_has(&m, 4095));
    cr_expect_not(ps_cpu_mask_has(&m, 4096));
    cr_assert(ps_cpu_list_parse("\n", &m));
    cr_expect_eq(m.word[0], 0);
    cr_assert(ps_cpu_list_parse("3-99999999999999999999999\n", &m)); /* clipped, not looped over */
    cr_expect(ps_cpu_mask_has(&m, 3) && ps_cpu_mask_has(&m, 4095));
    static const char *const bad[] = {"x", "1-", "-1", "3-1", "1;2", "1,,x", "0x3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_not(ps_cpu_list_parse(bad[i], &m), "%s", bad[i]);
}
