/* Status, checked arithmetic, arena, text, JSON, hash. */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/checked.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/status.h"
#include "core/text.h"
#include "core/utf8.h"

Test(status, exit_codes_and_line) {
    cr_assert_eq(ps_status_exit_code(PS_OK), 0);
    cr_assert_eq(ps_status_exit_code(PS_E_INFEASIBLE), 1);
    cr_assert_eq(ps_status_exit_code(PS_E_USAGE), 64);
    cr_assert_eq(ps_status_exit_code(PS_E_PERM), 77);
    cr_assert_str_eq(ps_status_name(PS_E_DATA), "E_DATA");
    ps_error err;
    char line[600];
    cr_assert_eq(ps_error_at(&err, PS_E_DATA, "key\nx", 12, "bad %d", 7), PS_E_DATA);
    ps_error_prefix(&err, "a.gguf");
    cr_assert_str_eq(ps_error_format(&err, line, sizeof line), "a.gguf: key?x: bad 7 (byte 12)");
    cr_assert_eq(ps_error_errno(&err, PS_E_IO, "f", ENOENT, "cannot open"), PS_E_NOINPUT);
    cr_assert_eq(ps_error_errno(&err, PS_E_CANTCREATE, "f", ENOENT, "cannot create"), PS_E_CANTCREATE);
    cr_assert_eq(ps_error_errno(NULL, PS_E_IO, "f", EACCES, "x"), PS_E_PERM);
}

Test(status, lines_stay_lines) {
    ps_error err;
    char line[600], longer[sizeof err.message + 8];
    ps_error_set(&err, PS_E_DATA, "a\xc2\x9bz\xe2\x80\xae\x9b\xc3\xa9", "m\x1b[31m\n");
    cr_assert_str_eq(ps_error_format(&err, line, sizeof line), "a??z????\xc3\xa9: m?[31m?");
    memset(longer, 'm', sizeof longer); /* a character that does not fit whole */
    memcpy(longer + sizeof err.message - 2, "\xc3\xa9", 3);
    ps_error_set(&err, PS_E_DATA, "", "%s", longer);
    cr_assert_eq(err.message[sizeof err.message - 2], '?');
}

Test(status, prefix_never_overflows) {
    ps_error err;
    char longer[400], line[800];
    memset(longer, 'p', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    ps_error_set(&err, PS_E_DATA, longer, "m");
    ps_error_prefix(&err, longer);
    cr_assert_lt(strlen(err.subject), sizeof err.subject);
    ps_error_set(&err, PS_E_DATA, "tensor t", "m");
    ps_error_prefix(&err, longer);
    cr_assert_not_null(strstr(ps_error_format(&err, line, sizeof line), ": tensor t: m"));
}

Test(checked, edges) {
    uint64_t v = 5;
    cr_assert(ps_add_u64(UINT64_MAX, 0, &v) && v == UINT64_MAX);
    cr_assert(!ps_add_u64(UINT64_MAX, 1, &v) && v == UINT64_MAX);
    cr_assert(ps_mul_u64(0, UINT64_MAX, &v) && v == 0);
    cr_assert(!ps_mul_u64((uint64_t)1 << 32, (uint64_t)1 << 32, &v));
    cr_assert(ps_align_u64(1, 64, &v) && v == 64);
    cr_assert(!ps_align_u64(UINT64_MAX - 3, 64, &v));
    cr_assert(ps_range_ok(10, 0, 10) && !ps_range_ok(11, 0, 10) && !ps_range_ok(1, UINT64_MAX, 10));
}

Test(arena, zeroed_aligned_and_limited) {
    ps_arena *a = ps_arena_new(1 << 16);
    for (int i = 0; i < 100; i++) {
        unsigned char *p = ps_arena_alloc(a, (uint64_t)i * 7);
        cr_assert_not_null(p);
        cr_assert_eq((uintptr_t)p % 16, 0);
        for (int k = 0; k < i * 7; k++)
            cr_assert_eq(p[k], 0);
        memset(p, 0xff, (size_t)i * 7);
    }
    cr_assert_null(ps_arena_alloc(a, 1 << 16));
    cr_assert_null(ps_arena_array(a, UINT64_MAX, 2));
    cr_assert_null(ps_arena_alloc(a, UINT64_MAX));
    cr_assert_str_eq(ps_arena_strndup(a, "hello", 4), "hell");
    cr_assert_leq(ps_arena_used(a), 1 << 16);
    ps_arena_free(a);
    ps_arena_free(NULL);
}

Test(text, grows) {
    ps_text *t = ps_text_new();
    for (int i = 0; i < 1000; i++)
        ps_text_printf(t, "%d,", i);
    char big[5000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    ps_text_printf(t, "%s", big);
    uint64_t size;
    char *s = ps_text_end(t, &size);
    cr_assert_eq(size, 3890 + 4999);
    cr_assert_eq(strlen(s), size);
    free(s);
}

Test(json, values_and_escapes) {
    ps_json *j = ps_json_new(0);
    ps_json_object(j, NULL);
    ps_json_str(j, "s", "a\"\\\n\xff\xc3\xa9");
    ps_json_f64(j, "d", 0.1);
    ps_json_f64(j, "n", (double)NAN);
    ps_json_array(j, "a");
    ps_json_u64(j, NULL, UINT64_MAX);
    ps_json_i64(j, NULL, -1);
    ps_json_bool(j, NULL, true);
    ps_json_close(j);
    ps_json_object(j, "e");
    ps_json_close(j);
    ps_json_close(j);
    char *s = ps_json_end(j, NULL);
    cr_assert_str_eq(s, "{\"s\":\"a\\\"\\\\\\u000a\xef\xbf\xbd\xc3\xa9\",\"d\":0.1,\"n\":null,"
                        "\"a\":[18446744073709551615,-1,true],\"e\":{}}\n");
    free(s);
}

Test(json, wrong_nesting_is_null) {
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    cr_assert_null(ps_json_end(j, NULL));
    j = ps_json_new(2);
    ps_json_close(j);
    cr_assert_null(ps_json_end(j, NULL));
}

Test(json, doubles_read_back) {
    const double values[] = {0.1, 1e-300, 123456789.123456789, 5e-324, 1.7976931348623157e308, 1.0 / 3};
    char buf[32];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        cr_assert_eq(strtod(ps_format_f64(values[i], buf), NULL), values[i]);
}

Test(hash, streaming_equals_whole_and_hex_round_trips) {
    uint8_t a[PS_HASH_BYTES], b[PS_HASH_BYTES];
    char hex[PS_HASH_HEX];
    ps_hash_bytes("hello world", 11, a);
    ps_hash *h = ps_hash_new();
    ps_hash_add(h, "hello ", 6);
    ps_hash_add(h, "world", 5);
    ps_hash_end(h, b);
    cr_assert_arr_eq(a, b, sizeof a);
    /* XXH3-128 of "hello world", from the xxhsum program */
    cr_assert_str_eq(ps_hash_hex(a, hex), "df8d09e93f874900a99b8775cc15b6c7");
    cr_assert_eq(ps_hash_parse(hex, b), 0);
    cr_assert_arr_eq(a, b, sizeof a);
    cr_assert_eq(ps_hash_parse("df8d", b), -1);
    cr_assert_eq(ps_hash_parse("zf8d09e93f874900a99b8775cc15b6c7", b), -1);
}

Test(file, is_same_sees_through_links_and_an_output_stays_what_it_is) {
    char dir[] = "/tmp/pinstripe-core-XXXXXX", a[64], link_to_a[64], missing[64], pipe_path[64];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(a, sizeof a, "%s/a", dir);
    snprintf(link_to_a, sizeof link_to_a, "%s/link", dir);
    snprintf(missing, sizeof missing, "%s/missing", dir);
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", dir);
    ps_error err;
    cr_assert_eq(ps_file_write_atomic(a, "old", 3, &err), PS_OK);
    cr_assert_eq(symlink(a, link_to_a), 0);
    cr_assert_eq(mkfifo(pipe_path, 0600), 0);
    cr_assert(ps_file_is_same(a, a) && ps_file_is_same(a, link_to_a));
    cr_assert(!ps_file_is_same(a, pipe_path) && !ps_file_is_same(a, missing));
    cr_assert(!ps_file_is_same(missing, missing) && !ps_file_is_same(NULL, a) && !ps_file_is_same(a, NULL));
    cr_assert_eq(ps_file_check_output(a, &err), PS_OK);
    cr_assert_eq(ps_file_check_output(missing, &err), PS_OK);
    cr_assert_eq(ps_file_check_output("", &err), PS_E_CANTCREATE);
    cr_assert_eq(ps_file_check_output("/nowhere-at-all/file", &err), PS_E_CANTCREATE);
    cr_assert_eq(ps_file_write_atomic(dir, "new", 3, &err), PS_E_CANTCREATE);
    cr_assert_eq(ps_file_write_atomic(pipe_path, "new", 3, &err), PS_E_CANTCREATE);
    cr_assert_str_eq(err.subject, pipe_path);
    struct stat st;
    cr_assert(stat(pipe_path, &st) == 0 && S_ISFIFO(st.st_mode));
    /* Through a link: the link stays, its file is replaced. */
    cr_assert_eq(ps_file_write_atomic(link_to_a, "new!", 4, &err), PS_OK);
    cr_assert(lstat(link_to_a, &st) == 0 && S_ISLNK(st.st_mode));
    char *data;
    uint64_t size;
    cr_assert_eq(ps_file_read(a, 100, &data, &size, &err), PS_OK);
    cr_assert_str_eq(data, "new!");
    free(data);
    unlink(a);
    unlink(link_to_a);
    unlink(pipe_path);
    cr_assert_eq(rmdir(dir), 0); /* no temporary file was left */
}

Test(utf8, decodes_what_is_well_formed) {
    static const struct {
        const char *s;
        uint32_t len, cp;
    } cases[] = {{"a", 1, 'a'},
                 {"\xc2\x80", 2, 0x80},
                 {"\xdf\xbf", 2, 0x7ff},
                 {"\xe0\xa0\x80", 3, 0x800},
                 {"\xed\x9f\xbf", 3, 0xd7ff},
                 {"\xee\x80\x80", 3, 0xe000},
                 {"\xf0\x90\x80\x80", 4, 0x10000},
                 {"\xf4\x8f\xbf\xbf", 4, 0x10ffff},
                 {"\x80", 0, 0},             /* continues nothing */
                 {"\xc1\xbf", 0, 0},         /* over-long */
                 {"\xe0\x9f\xbf", 0, 0},     /* over-long */
                 {"\xed\xa0\x80", 0, 0},     /* a surrogate */
                 {"\xf0\x8f\xbf\xbf", 0, 0}, /* over-long */
                 {"\xf4\x90\x80\x80", 0, 0}, /* beyond Unicode */
                 {"\xf5\x80\x80\x80", 0, 0},
                 {"\xe2\x82", 0, 0}, /* ends too early */
                 {"\xe2\x28\xa1", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t cp = 0;
        cr_assert_eq(ps_utf8_sequence(cases[i].s, strlen(cases[i].s), &cp), cases[i].len, "case %zu", i);
        cr_assert_eq(cp, cases[i].cp, "case %zu", i);
        for (uint32_t n = 0; n < cases[i].len; n++) /* no byte is read that may not be */
            cr_assert_eq(ps_utf8_sequence(cases[i].s, n, &cp), 0, "case %zu, %u bytes", i, n);
    }
}

Test(text, what_is_not_plain_is_escaped) {
    ps_text *t = ps_text_new();
    ps_text_put_plain(t, "na\xc3\xafve \xf0\x9f\x98\x80\n\x1b[31m\x7f \xc2\x9b\xe2\x80\xae \x9b\xe2\x82");
    ps_text_put_plain(t, "");
    char *s = ps_text_end(t, NULL);
    cr_assert_str_eq(s, "na\xc3\xafve \xf0\x9f\x98\x80\\x0a\\x1b[31m\\x7f \\u009b\\u202e \\x9b\\xe2\\x82");
    free(s);
    ps_text_put_plain(NULL, "x");
}

Test(text, sizes_are_in_powers_of_1024) {
    static const struct {
        double bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.00 KiB"},
                 {10239, "10.0 KiB"},
                 {1023.4 * 1024, "1023 KiB"},
                 {1023.6 * 1024, "1.00 MiB"},
                 {150e9, "140 GiB"},
                 {0x1p40 * 5000, "5000 TiB"},
                 {0x1p64, "16777216 TiB"}};
    char buf[32];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert_str_eq(ps_format_bytes(cases[i].bytes, buf), cases[i].text, "case %zu: %s", i, buf);
}

Test(utf8, plain_is_what_keeps_its_line) {
    cr_assert(ps_utf8_is_plain('a') && ps_utf8_is_plain(0xe9) && ps_utf8_is_plain(0x1f600));
    static const uint32_t not_plain[] = {0, '\n', 0x1b, 0x7f, 0x85, 0x2028, 0x202e, 0x2066, 0xfffe};
    for (size_t i = 0; i < sizeof not_plain / sizeof not_plain[0]; i++)
        cr_assert(!ps_utf8_is_plain(not_plain[i]), "U+%04X", (unsigned)not_plain[i]);
}
