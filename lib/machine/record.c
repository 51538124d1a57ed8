/* Record of a live machine: hwloc's export, and the files that limits and signs come from, without what tells whose it is. */
#include "machine/record.h"

#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/text.h"
#include "machine/limits.h"
#include "machine/signs.h"
#include "machine/topology.h"

enum { PATH_BYTES = 4096, MAX_NAMES = 64, NAME_BYTES = 256 };

/* ---- hwloc's infos ---- */
static bool is_kept(const char *name, size_t len) {
    static const char *const kept[] = {"Architecture",    "Backend",    "CPUVendor",        "CPUFamilyNumber",
                                       "CPUModelNumber",  "CPUModel",   "CPUStepping",      "CoreType",
                                       "FrequencyMaxMHz", "Inclusive",  "FrequencyBaseMHz", "LinuxCapacity",
                                       "hwlocVersion",    "MemoryMode", "ClusterMode"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (strlen(kept[i]) == len && !memcmp(kept[i], name, len))
            return true;
    return false;
}

uint32_t ps_record_scrub_xml(char *xml) {
    static const char open[] = "<info ", name_is[] = "name=\"";
    uint32_t n = 0;
    char *to = xml;
    for (char *p = xml; *p;) {
        char *end = strncmp(p, open, sizeof open - 1) == 0 ? strchr(p, '>') : NULL;
        if (!end) {
            *to++ = *p++;
            continue;
        }
        const char *name = strstr(p, name_is);
        if (name)
            name += sizeof name_is - 1;
        if (name && name < end && is_kept(name, strcspn(name, "\""))) {
            while (p <= end)
                *to++ = *p++;
            continue;
        }
        n++;
        p = end + 1;
        p += *p == '\n'; /* its line, and the blanks before it */
        while (to > xml && to[-1] == ' ')
            to--;
    }
    *to = 0;
    return n;
}

/* ---- names of groups ---- */
struct ps_record_names {
    uint32_t n;
    char name[MAX_NAMES][NAME_BYTES];
};

ps_record_names *ps_record_names_new(void) {
    return calloc(1, sizeof(ps_record_names));
}

void ps_record_names_free(ps_record_names *names) {
    free(names);
}

/* Index of a part of a path, or names->n. */
static uint32_t find_name(const ps_record_names *names, const char *part, size_t len) {
    uint32_t i = 0;
    while (i < names->n && (strlen(names->name[i]) != len || memcmp(names->name[i], part, len) != 0))
        i++;
    return i;
}

/* Parts of the paths that files of a record lie at, which tell nothing. */
static bool is_plain(const char *part, size_t len) {
    static const char *const plain[] = {"proc", "self", "sys", "fs", "cgroup"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strlen(plain[i]) == len && !memcmp(plain[i], part, len))
            return true;
    return false;
}

static bool note_path(ps_record_names *names, const char *path, size_t len) {
    for (size_t at = 0; at < len;) {
        size_t n = 0;
        while (at + n < len && path[at + n] != '/')
            n++;
        const bool dots = n <= 2 && strspn(path + at, ".") >= n; /* "..": outside of this namespace */
        if (n != 0 && !dots && !is_plain(path + at, n) && find_name(names, path + at, n) == names->n) {
            if (names->n == MAX_NAMES || n >= NAME_BYTES)
                return false;
            memcpy(names->name[names->n++], path + at, n);
        }
        at += n + 1;
    }
    return true;
}

bool ps_record_names_note(ps_record_names *names, const char *text, bool mountinfo) {
    for (const char *p = text; *p;) {
        const size_t line = strcspn(p, "\n");
        const char *path = p;
        /* cgroup: after the second colon; mountinfo: the fourth word. */
        for (int skip = mountinfo ? 3 : 2; path && skip > 0; skip--) {
            path = memchr(path, mountinfo ? ' ' : ':', line - (size_t)(path - p));
            path = path ? path + 1 : NULL;
        }
        if (path) {
            size_t len = line - (size_t)(path - p);
            const char *end = mountinfo ? memchr(path, ' ', len) : NULL;
            if (!note_path(names, path, end ? (size_t)(end - path) : len))
                return false;
        }
        p += line + (p[line] == '\n');
    }
    return true;
}

char *ps_record_rename(const ps_record_names *names, const char *text) {
    ps_text *t = ps_text_new();
    for (const char *p = text; *p;) {
        if (*p != '/') {
            ps_text_put(t, p++, 1);
            continue;
        }
        const char *part = p + 1;
        const size_t len = strcspn(part, "/ \n");
        const uint32_t i = find_name(names, part, len);
        if (len != 0 && i < names->n)
            ps_text_printf(t, "/g%u", i + 1);
        else
            ps_text_put(t, p, len + 1);
        p = part + len;
    }
    return ps_text_end(t, NULL);
}

/* ---- files ---- */
static ps_status make_folder(const char *path, bool may_exist, ps_error *err) {
    if (mkdir(path, 0777) == 0 || (may_exist && errno == EEXIST))
        return PS_OK;
    return ps_error_errno(err, PS_E_CANTCREATE, path, errno, "cannot create this folder");
}

static ps_status write_file(const char *dir, const char *path, const char *text, ps_error *err) {
    char full[PATH_BYTES];
    const int n = snprintf(full, sizeof full, "%s%s", dir, path);
    if (n < 0 || (size_t)n >= sizeof full)
        return ps_error_set(err, PS_E_CANTCREATE, dir, "path is too long");
    for (char *p = strchr(full + strlen(dir) + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        const ps_status st = make_folder(full, true, err);
        *p = '/';
        if (st != PS_OK)
            return st;
    }
    return ps_file_write_atomic(full, text, strlen(text), err);
}

typedef struct recording {
    const char *dir;
    ps_record_names *names;
} recording;

static ps_status note_file(void *ctx, const char *path, const char *text, ps_error *err) {
    const recording *r = ctx;
    const bool mountinfo = strcmp(path, "/proc/self/mountinfo") == 0;
    if ((mountinfo || strcmp(path, "/proc/self/cgroup") == 0) &&
        !ps_record_names_note(r->names, text, mountinfo))
        return ps_error_set(err, PS_E_UNSUPPORTED, path, "more than %d names of groups, or a longer one",
                            MAX_NAMES);
    return PS_OK;
}

static ps_status record_file(void *ctx, const char *path, const char *text, ps_error *err) {
    const recording *r = ctx;
    char *new_path = ps_record_rename(r->names, path), *new_text = NULL;
    const bool paths = strcmp(path, "/proc/self/mountinfo") == 0 || strcmp(path, "/proc/self/cgroup") == 0;
    if (paths)
        new_text = ps_record_rename(r->names, text);
    const ps_status st = !new_path || (paths && !new_text)
                             ? ps_error_set(err, PS_E_NOMEM, path, "no memory for its text")
                             : write_file(r->dir, new_path, paths ? new_text : text, err);
    free(new_path);
    free(new_text);
    return st;
}

static ps_status record_topology(const ps_machine *machine, const char *dir, ps_error *err) {
    char *xml = NULL, *text = NULL;
    int size = 0;
    if (hwloc_topology_export_xmlbuffer(machine->hwloc, &xml, &size, 0) != 0)
        return ps_error_errno(err, PS_E_IO, dir, errno, "cannot export the topology");
    text = size > 0 ? strndup(xml, (size_t)size) : NULL;
    hwloc_free_xmlbuffer(machine->hwloc, xml);
    if (!text)
        return ps_error_set(err, PS_E_NOMEM, dir, "no memory for the topology");
    ps_record_scrub_xml(text);
    const ps_status st = write_file(dir, "/hwloc.xml", text, err);
    free(text);
    return st;
}

ps_status ps_machine_record(const ps_machine *machine, const char *dir, ps_error *err) {
    recording r = {.dir = dir, .names = ps_record_names_new()};
    ps_status st = r.names ? make_folder(dir, false, err)
                           : ps_error_set(err, PS_E_NOMEM, dir, "no memory for the names of groups");
    if (st == PS_OK)
        st = record_topology(machine, dir, err);
    if (st == PS_OK)
        st = ps_limits_each_file("", note_file, &r, err);
    if (st == PS_OK)
        st = ps_limits_each_file("", record_file, &r, err);
    if (st == PS_OK)
        st = ps_signs_each_file("", record_file, &r, err);
    ps_record_names_free(r.names);
    return st;
}
