/* Files, text and JSON of lib/core when calls fail: a clean error, nothing leaked, no file half-written. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/options.h"
#include "fault.h"

static char folder[] = "/tmp/pinstripe-core.XXXXXX";
static char path[64];
static const char old_text[] = "what was there before";
static const char new_text[] = "what is written now, which is longer than before";

static unsigned entries(void) {
    unsigned n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    if (d != NULL)
        closedir(d);
    return n;
}

static bool holds(const char *want) {
    char buf[200];
    FILE *f = fopen(path, "rb");
    size_t n = f != NULL ? fread(buf, 1, sizeof buf, f) : 0;
    if (f != NULL)
        fclose(f);
    return n == strlen(want) && memcmp(buf, want, n) == 0;
}

static void put_old(void) {
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(old_text, 1, sizeof old_text - 1, f) != sizeof old_text - 1)
        exit(1);
    fclose(f);
}

static const char *write_body(void *ctx, bool injected) {
    (void)ctx;
    ps_error err = {0};
    put_old();
    ps_status status = ps_file_write_atomic(path, new_text, sizeof new_text - 1, &err);
    if (status != PS_OK && !injected)
        return "failed without an injected failure";
    if (entries() != 1)
        return "a temporary file was left";
    if (status == PS_OK)
        return holds(new_text) ? NULL : "success, but the new text is not there";
    if (err.message[0] == '\0' || err.status != status)
        return "no error was recorded";
    return holds(old_text) ? NULL : "failure, but the old text is gone";
}

/* The same where the file system has no files without a name. */
static const char *write_named_body(void *ctx, bool injected) {
    ps_fault_no_tmpfile(true);
    const char *complaint = write_body(ctx, injected);
    ps_fault_no_tmpfile(false);
    return complaint;
}

static const char *read_body(void *ctx, bool injected) {
    (void)ctx;
    ps_error err = {0};
    char *data = NULL;
    uint64_t size;
    ps_status status = ps_file_read(path, 1 << 20, &data, &size, &err);
    if (status != PS_OK)
        return !injected ? "failed without an injected failure" : data != NULL ? "data with an error" : NULL;
    bool good = size == sizeof new_text - 1 && memcmp(data, new_text, size) == 0 && data[size] == '\0';
    free(data);
    return good ? NULL : "read something else";
}

static const char *map_body(void *ctx, bool injected) {
    (void)ctx;
    ps_error err = {0};
    ps_file_map map;
    if (ps_file_map_open(path, &map, &err) != PS_OK)
        return injected ? NULL : "failed without an injected failure";
    bool good = map.size == sizeof new_text - 1 && memcmp(map.data, new_text, map.size) == 0;
    ps_file_map_close(&map);
    return good ? NULL : "mapped something else";
}

static const char *text_body(void *ctx, bool injected) {
    (void)ctx;
    ps_json *j = ps_json_new(2);
    ps_json_array(j, NULL);
    for (int i = 0; i < 200; i++)
        ps_json_str(j, NULL, "a string that makes the buffer grow");
    ps_json_close(j);
    uint64_t size = 0;
    char *text = ps_json_end(j, &size);
    const char *complaint = text == NULL && !injected              ? "no text"
                            : text != NULL && strlen(text) != size ? "wrong size"
                                                                   : NULL;
    free(text);
    return complaint;
}

static const char *arena_body(void *ctx, bool injected) {
    (void)ctx;
    ps_arena *a = ps_arena_new(1 << 24);
    bool ok = a != NULL;
    for (int i = 0; i < 100 && ok; i++)
        ok = ps_arena_alloc(a, (uint64_t)i * 1000) != NULL;
    ps_arena_free(a);
    uint8_t digest[PS_HASH_BYTES];
    ps_hash *h = ps_hash_new();
    if (h != NULL)
        ps_hash_end(h, digest);
    return (ok && h != NULL) || injected ? NULL : "no memory without a failure";
}

static const char *help_body(void *ctx, bool injected) {
    (void)ctx;
    static const ps_option rows[] = {{"help", 'h', PS_OPT_FLAG, NULL, NULL, 0, 0, "Show this help."}};
    static const ps_command command = {"x", "", "X.", "Details.", "  x", rows, 1, 0, 0};
    char *help = ps_options_help(&command), *man = ps_options_man(&command);
    bool ok = help != NULL && man != NULL;
    free(help);
    free(man);
    return ok || injected ? NULL : "no text";
}

/* What injected failures do not reach. */
static unsigned plain_cases(void) {
    unsigned bad = 0;
    ps_error err;
    char *data;
    uint64_t size;
    ps_file_map map;
    bad += ps_file_read(folder, 100, &data, &size, &err) != PS_E_NOINPUT;
    bad += ps_file_read("/nonexistent/x", 100, &data, &size, &err) != PS_E_NOINPUT;
    bad += ps_file_read(path, 3, &data, &size, &err) != PS_E_DATA;
    bad += ps_file_write_atomic("/nonexistent/x", "a", 1, &err) != PS_E_CANTCREATE;
    bad += ps_file_write_atomic(folder, "a", 1, &err) == PS_OK; /* a folder cannot be replaced */
    char fifo[80];
    snprintf(fifo, sizeof fifo, "%s/pipe", folder);
    if (mkfifo(fifo, 0600) == 0) {
        bad += ps_file_map_open(fifo, &map, &err) != PS_E_NOINPUT; /* and does not wait for a writer */
        unlink(fifo);
    }
    chmod(path, 0640);
    struct stat st;
    bad += ps_file_write_atomic(path, "", 0, &err) != PS_OK || stat(path, &st) != 0 ||
           (st.st_mode & 0777) != 0640;
    bad += ps_file_map_open(path, &map, &err) != PS_OK || map.size != 0 || map.data != NULL;
    ps_file_map_close(&map);
    if (bad != 0)
        printf("%u plain cases failed\n", bad);
    return bad;
}

int main(void) {
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/f", folder);
    static const struct {
        const char *name;
        ps_fault_body body;
    } sweeps[] = {{"write", write_body}, {"write, named", write_named_body},
                  {"read", read_body},   {"map", map_body},
                  {"json", text_body},   {"arena", arena_body},
                  {"help", help_body}};
    unsigned bad = 0;
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++) {
        uint64_t calls = 0;
        bad += ps_fault_sweep(sweeps[i].name, sweeps[i].body, NULL, &calls);
        total += calls;
        bad += calls == 0;
    }
    bad += plain_cases();
    printf("%llu injected failures\n", (unsigned long long)total);
    unlink(path);
    rmdir(folder);
    return bad != 0;
}
