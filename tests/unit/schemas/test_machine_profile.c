/* Machine profile: write and read back, and everything that is refused, with its place. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "tests/profile_builder.h"

static char *text_of(const ps_profile *p, uint64_t *size) {
    char *text, line[600];
    ps_error err = {0};
    cr_assert_eq(ps_profile_format(p, &text, size, &err), PS_OK, "%s",
                 ps_error_format(&err, line, sizeof line));
    return text;
}

Test(machine_profile, reading_what_was_written_gives_the_same_text_and_values) {
    ps_profile *p = pf_profile(100), *q;
    uint64_t n, n2;
    ps_error err = {0};
    char line[600], *text = text_of(p, &n);
    cr_assert_eq(ps_profile_parse(text, n, "p.yaml", &q, &err), PS_OK, "%s",
                 ps_error_format(&err, line, sizeof line));
    char *again = text_of(q, &n2);
    cr_assert_eq(n, n2);
    cr_assert_str_eq(text, again);
    cr_assert_str_eq(q->topology.cpu_model, p->topology.cpu_model);
    cr_assert_str_eq(q->note, p->note);
    cr_assert_eq(q->topology.memlock_bytes, UINT64_MAX);
    cr_assert_eq(q->n_points, 100);
    for (uint32_t i = 0; i < 100; i++) {
        cr_assert_eq(q->points[i].time_s.median, p->points[i].time_s.median);
        cr_assert_eq(q->points[i].beside_bytes_per_s, p->points[i].beside_bytes_per_s);
        cr_assert_eq(q->points[i].beside, p->points[i].beside);
        cr_assert_eq(q->points[i].time_s.noisy, p->points[i].time_s.noisy);
    }
    cr_assert_eq(q->kernels[39].id, 1039);
    cr_assert_eq(q->kernels[39].scratch.per_thread_col, 12);
    uint8_t h1[PS_HASH_BYTES], h2[PS_HASH_BYTES];
    cr_assert_eq(ps_profile_hash(p, h1, &err), PS_OK);
    cr_assert_eq(ps_profile_hash(q, h2, &err), PS_OK);
    cr_assert_arr_eq(h1, h2, PS_HASH_BYTES);
    q->points[3].time_s.median *= 1.0000001;
    cr_assert_eq(ps_profile_hash(q, h2, &err), PS_OK);
    cr_assert_neq(memcmp(h1, h2, PS_HASH_BYTES), 0);
    free(text);
    free(again);
    ps_profile_free(p);
    ps_profile_free(q);
}

Test(machine_profile, the_default_profile_stays_under_256_KB) {
    ps_profile *p = pf_profile(1400);
    uint64_t n;
    char *text = text_of(p, &n);
    cr_assert_lt(n, 256 * 1024, "%llu", (unsigned long long)n);
    free(text);
    ps_profile_free(p);
}

Test(machine_profile, files) {
    char path[] = "/tmp/ps-profile-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    ps_profile *p = pf_profile(3), *q;
    ps_error err = {0};
    cr_assert_eq(ps_profile_write(p, path, &err), PS_OK);
    cr_assert_eq(ps_profile_read(path, &q, &err), PS_OK);
    ps_profile_free(q);
    p->barrier_s.median = -1;
    cr_assert_eq(ps_profile_write(p, path, &err), PS_E_DATA);
    cr_assert(strstr(err.subject, path) != NULL);
    cr_assert_eq(ps_profile_read(path, &q, &err), PS_OK); /* the old file is still there */
    ps_profile_free(q);
    ps_profile_free(p);
    unlink(path);
    cr_assert_eq(ps_profile_read(path, &q, &err), PS_E_NOINPUT);
    cr_assert_null(q);
    cr_assert_eq(ps_profile_read("/tmp", &q, &err), PS_E_NOINPUT);
}

/* The text with one piece replaced; the piece must be there. */
static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    cr_assert_not_null(at, "\"%s\" is not in the text", from);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    size_t head = (size_t)(at - text);
    memcpy(out, text, head);
    strcpy(out + head, to);
    strcat(out, at + strlen(from));
    return out;
}

static const struct {
    const char *from, *to, *error;
    ps_status status;
} changes[] = {
    {"pinstripe-profile: 3", "pinstripe-profile: 2",
     "p.yaml: pinstripe-profile: profile version 2, this program reads version 3 (line 2, column 20)",
     PS_E_UNSUPPORTED},
    {"tool:", "tol:", "p.yaml: unknown key \"tol\" (line 3, column 1)", PS_E_DATA},
    {"mode: \"default\"\n", "", "p.yaml: key \"mode\" is missing (line 2, column 1)", PS_E_DATA},
    {"complete: true", "complete: yes",
     "p.yaml: complete: must be true or false, is \"yes\" (line 6, column 11)", PS_E_DATA},
    {"complete: true", "complete: \"true\"", "p.yaml: complete: must be true or false", PS_E_DATA},
    {"n_cores: 16", "n_cores: 16.0", "n_cores: must be a whole number from 0 to 4294967295, is \"16.0\"",
     PS_E_DATA},
    {"n_cores: 16", "n_cores: 4294967296", "n_cores: must be a whole number", PS_E_DATA},
    {"n_cores: 16", "n_cores: -1", "n_cores: must be a whole number", PS_E_DATA},
    {"n_cores: 16", "n_cores: 016", "n_cores: must be a whole number", PS_E_DATA},
    {"n_cores: 16", "n_cores: [16]", "n_cores: must be a single value, is a sequence", PS_E_DATA},
    {"n_cores: 16", "n_cores: 16\n  n_cores: 16", "key \"n_cores\" given twice", PS_E_DATA},
    {"n_cores: 16", "n_cores: &a 16", "anchors are not accepted", PS_E_DATA},
    {"n_cores: 16", "n_cores: *a", "aliases are not accepted", PS_E_DATA},
    {"n_cores: 16", "n_cores: !!int 16", "tags are not accepted", PS_E_DATA},
    {"cpu_quota: 7.65", "cpu_quota: .nan", "cpu_quota: must be a finite number, is \".nan\"", PS_E_DATA},
    {"cpu_quota: 7.65", "cpu_quota: 1e999", "cpu_quota: must be a finite number", PS_E_DATA},
    {"cpu_quota: 7.65", "cpu_quota: 0x10", "cpu_quota: must be a finite number", PS_E_DATA},
    {"cpu_quota: 7.65", "cpu_quota: -1", "topology: cpu_quota: must not be negative", PS_E_DATA},
    {"n_allowed: 7", "n_allowed: 33", "n_allowed: must be from 1 to n_threads (32), is 33", PS_E_DATA},
    {"machine_hash: \"5a", "machine_hash: \"5", "machine_hash: must be 32 hexadecimal digits", PS_E_DATA},
    {"cpu_level: \"avx512\"", "cpu_level: \"0123456789abcdef\"", "cpu_level: text longer than 15 bytes",
     PS_E_DATA},
    {"cpu_level: \"avx512\"", "cpu_level: \"a\\x07b\"", "cpu_level: control characters", PS_E_DATA},
    {"cpu_level: \"avx512\"", "cpu_level: \"a\\0b\"", "NUL character in text", PS_E_DATA},
    {"columns: [n_threads,", "columns: [threads,", "columns: column 1 must be \"n_threads\"", PS_E_DATA},
    {"columns: [id, name,", "columns: [id,", "column 2 must be \"name\"", PS_E_DATA},
    {", converged, false]", ", converged]", "must be a sequence of 7 values", PS_E_DATA},
    {", converged, false]", ", bored, false]", "unknown stop reason \"bored\"", PS_E_DATA},
    {"[1000, \"cpu.", "[1001, \"cpu.", "kernel 1001: ids must ascend", PS_E_DATA},
    {"q8.0\", matmul", "q8.1\", matmul", "two kernels of one name", PS_E_DATA},
    {"q8.0\", matmul", "q8.0 \", matmul", "its name must be letters", PS_E_DATA},
    {"matmul, Q4_K", "matmul, Q4_L", "unknown tensor type \"Q4_L\"", PS_E_DATA},
    {"- [1000,14336", "- [999,14336", "points row 0: kernel 999 is not in the catalogue (line ", PS_E_DATA},
    {"idle", "idle2", "unknown neighbour \"idle2\"", PS_E_DATA},
    {"barrier_s: {n: 31", "barrier_s: {n: 0", "barrier_s: has no samples", PS_E_DATA},
    {"barrier_s: {n: 31, median_s: 1.5e-06, q1_s: 1.4806851850500002e-06, q3_s: 1.518518518365e-06",
     "barrier_s: {n: 31, median_s: 1e+308, q1_s: 1e+308, q3_s: 1e+308",
     "p.yaml: barrier_s: 1e+308 s is beyond any sense: from 1e-12 to 86400 (line ", PS_E_DATA},
    {"barrier_s: {n: 31, median_s: ", "barrier_s: {n: 31, median_s: 1", "must lie between the quartiles",
     PS_E_DATA},
    {"barrier_s: {", "barrier_s: 1 # {", "barrier_s: must be a mapping, is a single value", PS_E_DATA},
    {"barrier_s:", "---\nbarrier_s:", "a second document in the file", PS_E_DATA},
    {"note: ", "%YAML 1.1\n---\nnote: ", "line 10", PS_E_DATA},
    {"note: ", "note: \xff", "UTF-8", PS_E_DATA},
};

Test(machine_profile, what_is_wrong_is_named_with_its_place) {
    ps_profile *p = pf_profile(4);
    uint64_t n;
    char *text = text_of(p, &n);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char *bad = replaced(text, changes[i].from, changes[i].to), line[600];
        ps_profile *q;
        ps_error err = {0};
        ps_status status = ps_profile_parse(bad, strlen(bad), "p.yaml", &q, &err);
        ps_error_format(&err, line, sizeof line);
        cr_expect_eq(status, changes[i].status, "%s -> %s: %s", changes[i].from, changes[i].to, line);
        cr_expect_null(q);
        cr_expect(strstr(line, changes[i].error) != NULL, "%s -> %s: wanted \"%s\", got \"%s\"",
                  changes[i].from, changes[i].to, changes[i].error, line);
        cr_expect(strncmp(line, "p.yaml", 6) == 0, "%s", line);
        free(bad);
    }
    free(text);
    ps_profile_free(p);
}

Test(machine_profile, an_unfinished_profile_may_lack_samples) {
    ps_profile *p = pf_profile(2), *q;
    uint64_t n;
    ps_error err = {0};
    p->complete = false;
    memset(&p->barrier_s, 0, sizeof p->barrier_s);
    memset(&p->points[1].time_s, 0, sizeof p->points[1].time_s);
    char *text = text_of(p, &n);
    cr_assert_eq(ps_profile_parse(text, n, "p", &q, &err), PS_OK);
    cr_assert_not(q->complete);
    free(text);
    ps_profile_free(q);
    p->complete = true;
    cr_assert_eq(ps_profile_validate(p, &err), PS_E_DATA);
    ps_profile_free(p);
}

Test(machine_profile, truncated_text_is_refused) {
    ps_profile *p = pf_profile(2), *q;
    uint64_t n;
    ps_error err;
    char *text = text_of(p, &n);
    const char *points = strstr(text, "points:");
    for (uint64_t i = 0; i < (uint64_t)(points - text); i += 7) { /* every section is needed */
        cr_assert_neq(ps_profile_parse(text, i, "p", &q, &err), PS_OK, "%llu", (unsigned long long)i);
        cr_assert_null(q);
    }
    free(text);
    ps_profile_free(p);
}

Test(machine_profile, paced_copies_come_back_and_are_checked) {
    static const struct {
        const char *from, *to, *error;
    } wrong[] = {
        {"[h2d, 1, 0.5", "[h2d, 1, 1", "gpu: gpu paced row 0: share_frac must lie between 0 and 1"},
        {"[h2d, 1, 0.5", "[h2d, 1, 0", "gpu: gpu paced row 0: share_frac must lie between 0 and 1"},
        {"[h2d, 2, 0.5", "[h2d, 1, 0.5", "gpu paced row 1: bus (h2d, d2h), threads and share"},
        {"[h2d, 1, 0.5", "[direct, 1, 0.5", "gpu paced row 0: bus (h2d, d2h), threads and share"},
        {"columns: [bus, n_threads, share_frac, ", "columns: [bus, n_threads, ",
         "column 3 must be \"share_frac\""},
    };
    ps_profile *p = pf_profile(2), *q;
    ps_error err = {0};
    uint64_t n;
    char line[600];
    pf_add_gpu(p);
    char *text = text_of(p, &n);
    cr_assert_eq(ps_profile_parse(text, n, "p.yaml", &q, &err), PS_OK, "%s",
                 ps_error_format(&err, line, sizeof line));
    cr_assert_eq(q->gpu.n_paced, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const ps_profile_paced *a = &q->gpu.paced[i], *b = &p->gpu.paced[i];
        cr_assert(a->bus == b->bus && a->n_threads == b->n_threads && a->share_frac == 0.5);
        cr_assert_eq(a->bus_bytes_per_s.median, b->bus_bytes_per_s.median);
        cr_assert_eq(a->dram_bytes_per_s.q3, b->dram_bytes_per_s.q3);
    }
    ps_profile_free(q);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char *bad = replaced(text, wrong[i].from, wrong[i].to);
        cr_expect_eq(ps_profile_parse(bad, strlen(bad), "p.yaml", &q, &err), PS_E_DATA);
        cr_expect(strstr(ps_error_format(&err, line, sizeof line), wrong[i].error) != NULL, "%s: %s",
                  wrong[i].to, line);
        free(bad);
    }
    /* A profile from before there were any. */
    ps_profile_free(p);
    p = pf_profile(2);
    pf_add_gpu(p);
    p->gpu.n_paced = 0;
    free(text);
    text = text_of(p, &n);
    cr_assert_null(strstr(text, "paced"));
    cr_assert_eq(ps_profile_parse(text, n, "p.yaml", &q, &err), PS_OK);
    cr_assert_eq(q->gpu.n_paced, 0);
    ps_profile_free(q);
    ps_profile_free(p);
    free(text);
}

Test(machine_profile, memory_that_is_slow_once_it_is_full_is_recognised) {
    static const struct {
        double first, full, bus;
        bool spills;
    } cases[] = {{400e9, 390e9, 25e9, false},                            /* as it should be */
                 {400e9, 12e9, 25e9, true},   {400e9, 40e9, 25e9, true}, /* read and written over the bus */
                 {400e9, 90e9, 25e9, false}, /* slow, but faster than any bus: something else */
                 {400e9, 120e9, 25e9, false}, {60e9, 20e9, 25e9, false}};
    ps_profile *p = pf_profile(2);
    pf_add_gpu(p);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        p->gpu.hbm_read_bytes_per_s = pf_stat(cases[i].first);
        p->gpu.hbm_full_bytes_per_s = pf_stat(cases[i].full);
        for (uint32_t k = 0; k < p->gpu.n_copies; k++)
            p->gpu.copies[k].bw_bytes_per_s = pf_stat(cases[i].bus);
        cr_expect_eq(ps_profile_spills(&p->gpu), cases[i].spills, "case %zu", i);
        p->gpu.vram_bytes = (uint64_t)8 << 30;
        cr_expect_eq(ps_profile_fast_vram_bytes(&p->gpu), (uint64_t)(cases[i].spills ? 7 : 8) << 30);
    }
    p->gpu.hbm_full_bytes_per_s = (ps_stat){0};
    cr_expect(!ps_profile_spills(&p->gpu), "not measured");
    ps_profile_free(p);
}
