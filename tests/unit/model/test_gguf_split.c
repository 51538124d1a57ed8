/* Split files: opened at any member, every inconsistency refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../gguf_build.h"
#include "core/file.h"
#include "model/gguf.h"

static char dir[64];

static void make_dir(void) {
    snprintf(dir, sizeof dir, "/tmp/ps-split-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void remove_dir(void) {
    char path[160];
    for (unsigned i = 1; i <= 4; i++) {
        snprintf(path, sizeof path, "%s/m-%05u-of-00003.gguf", dir, i);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/joined.gguf", dir);
    unlink(path);
    cr_assert_eq(rmdir(dir), 0);
}

TestSuite(gguf_split, .init = make_dir, .fini = remove_dir);

static const char *member(unsigned no) {
    static char path[160];
    snprintf(path, sizeof path, "%s/m-%05u-of-00003.gguf", dir, no + 1);
    return path;
}

/* Member `no` of 3: two tensors "t<no>.a", "t<no>.b" (or `name` for the first). */
static void build(gguf_build *b, unsigned no, unsigned says_no, unsigned says_count, const char *name) {
    char a[16], c[16];
    snprintf(a, sizeof a, "t%u.a", no);
    snprintf(c, sizeof c, "t%u.b", no);
    gb_head(b, 3, 2, no == 0 ? 4 : 3);
    gb_kv_int(b, "split.no", 2, says_no, 2);
    gb_kv_int(b, "split.count", 2, says_count, 2);
    gb_kv_int(b, "split.tensors.count", 5, 6, 4);
    if (no == 0)
        gb_kv_str(b, "general.architecture", "llama");
    gb_tensor_1d(b, name != NULL ? name : a, 8, 0, 0);
    gb_tensor_1d(b, c, 8 + no, 0, 32);
    gb_pad(b, 32);
    gb_zeros(b, 64);
    b->data[b->n - 64] = (uint8_t)(no + 1);
}

static void write_member(unsigned no, unsigned says_no, unsigned says_count, const char *name) {
    gguf_build b = {0};
    ps_error err;
    build(&b, no, says_no, says_count, name);
    gb_zeros(&b, no * 32);
    cr_assert_eq(ps_file_write_atomic(member(no), b.data, b.n, &err), PS_OK);
    gb_free(&b);
}

static void expect_error(const char *path, ps_status want, const char *part) {
    ps_gguf *g = NULL;
    ps_error err;
    char line[600] = "";
    ps_status s = ps_gguf_open(path, &g, &err);
    if (s != PS_OK)
        ps_error_format(&err, line, sizeof line);
    cr_assert_eq(s, want, "%s (%s)", ps_status_name(s), line);
    cr_assert_not_null(strstr(line, part), "'%s' in: %s", part, line);
}

Test(gguf_split, any_member_opens_the_whole) {
    uint8_t hash[16];
    for (unsigned i = 0; i < 3; i++)
        write_member(i, i, 3, NULL);
    for (unsigned i = 0; i < 3; i++) {
        ps_gguf *g = NULL;
        ps_error err = {0};
        cr_assert_eq(ps_gguf_open(member(i), &g, &err), PS_OK, "%s: %s", err.subject, err.message);
        cr_assert_eq(g->n_files, 3);
        cr_assert_eq(g->n_tensors, 6);
        cr_assert_not_null(ps_gguf_find(g, "general.architecture"), "metadata is the first member's");
        for (unsigned k = 0; k < 3; k++) {
            char name[16];
            snprintf(name, sizeof name, "t%u.a", k);
            const ps_gguf_tensor *t = ps_gguf_find_tensor(g, name);
            cr_assert_eq(t, &g->tensors[2 * k], "tensors are in file order");
            cr_assert_eq(t->file, k);
            cr_assert_eq(ps_gguf_data(g, t)[0], k + 1);
            cr_assert_str_eq(g->files[k].path, member(k));
        }
        if (i == 0)
            memcpy(hash, g->hash, 16);
        cr_assert_eq(memcmp(hash, g->hash, 16), 0, "the hash does not depend on the member opened");
        ps_gguf_close(g);
    }
}

Test(gguf_split, missing_member) {
    write_member(0, 0, 3, NULL);
    write_member(2, 2, 3, NULL);
    expect_error(member(0), PS_E_NOINPUT, "m-00002-of-00003.gguf: cannot open");
    expect_error(member(2), PS_E_NOINPUT, "m-00002-of-00003.gguf: cannot open");
}

Test(gguf_split, member_that_says_otherwise) {
    write_member(0, 0, 3, NULL);
    write_member(1, 2, 3, NULL);
    write_member(2, 2, 3, NULL);
    expect_error(member(0), PS_E_DATA, "m-00002-of-00003.gguf: says it is file 3 of a split into 3");
    write_member(1, 1, 4, NULL);
    expect_error(member(0), PS_E_DATA, "m-00002-of-00003.gguf: says it is file 2 of a split into 4");
    /* Opened at a member whose own number does not agree with its name. */
    write_member(1, 0, 3, NULL);
    expect_error(member(1), PS_E_DATA, "its name must end in -00001-of-00003.gguf");
    write_member(1, 7, 3, NULL);
    expect_error(member(1), PS_E_DATA, "split.no: file 7 of a split into 3");
}

Test(gguf_split, tensor_count_and_duplicates) {
    write_member(0, 0, 3, NULL);
    write_member(1, 1, 3, NULL);
    write_member(2, 2, 3, "t0.a");
    expect_error(member(0), PS_E_DATA, "m-00003-of-00003.gguf: t0.a: the tensor is there twice");
    gguf_build b = {0};
    ps_error err;
    gb_head(&b, 3, 0, 2);
    gb_kv_int(&b, "split.no", 2, 2, 2);
    gb_kv_int(&b, "split.count", 2, 3, 2);
    cr_assert_eq(ps_file_write_atomic(member(2), b.data, b.n, &err), PS_OK);
    gb_free(&b);
    expect_error(member(1), PS_E_DATA, "split.tensors.count: says 6 tensors, the files hold 4");
}

Test(gguf_split, name_does_not_tell_the_others) {
    gguf_build b = {0};
    ps_error err;
    char path[160];
    build(&b, 0, 0, 3, NULL);
    snprintf(path, sizeof path, "%s/joined.gguf", dir);
    cr_assert_eq(ps_file_write_atomic(path, b.data, b.n, &err), PS_OK);
    expect_error(path, PS_E_DATA, "must end in -00001-of-00003.gguf");
    /* From memory there are no others. */
    ps_gguf *g;
    cr_assert_eq(ps_gguf_open_memory(b.data, b.n, "mem", &g, &err), PS_E_UNSUPPORTED);
    gb_free(&b);
}

Test(gguf_split, joined_by_cat) {
    gguf_build b = {0};
    ps_error err;
    char path[160];
    for (unsigned i = 0; i < 3; i++)
        build(&b, i, i, 3, NULL);
    snprintf(path, sizeof path, "%s/joined.gguf", dir);
    cr_assert_eq(ps_file_write_atomic(path, b.data, b.n, &err), PS_OK);
    expect_error(path, PS_E_DATA, "files of a split were joined byte by byte");
    gb_free(&b);
}
