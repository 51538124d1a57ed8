/* Limits of this process: affinity, cpuset and CPU quota of cgroup v1 and v2 with all groups above ours,
 * lockable memory, free memory.
 *
 * Which group we are in: /proc/self/cgroup, lines "id:controllers:path" (v2: "0::path"). Where a hierarchy
 * is mounted: /proc/self/mountinfo, "id parent dev root mountpoint options... - fstype source superoptions".
 * A group's folder is mountpoint + (path without root); limits of every folder up to the mount point hold. */
#include "machine/limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, TEXT_LIMIT = 4 << 20 };

/* Whole text of root + path from malloc; *out NULL with PS_OK if the file is not there. Files in /proc say
 * they are empty, so it is read until it ends. */
static ps_status read_text(const char *root, const char *path, char **out, ps_error *err) {
    ps_status st = PS_OK;
    char full[PATH_BYTES];
    char *text = NULL;
    size_t size = 0, cap = 0;
    *out = NULL;
    const int len = snprintf(full, sizeof full, "%s%s", root, path);
    if (len < 0 || (size_t)len >= sizeof full)
        return ps_error_set(err, PS_E_DATA, path, "path is too long");
    FILE *f = fopen(full, "re");
    if (!f) {
        if (errno == ENOENT || errno == ENOTDIR || errno == EACCES)
            return PS_OK;
        return ps_error_errno(err, PS_E_OS, full, errno, "cannot open");
    }
    for (;;) {
        if (cap - size < 2) {
            const size_t want = cap ? cap * 2 : 4096;
            char *grown = want <= TEXT_LIMIT ? realloc(text, want) : NULL;
            if (!grown) {
                st = ps_error_set(err, PS_E_NOMEM, full, "cannot hold the text of this file");
                goto done;
            }
            text = grown;
            cap = want;
        }
        const size_t got = fread(text + size, 1, cap - size - 1, f);
        size += got;
        if (got == 0)
            break;
    }
    /* Some cgroup files answer a read with an error where the controller is not active: as if absent. */
    if (ferror(f))
        goto done;
    text[size] = 0;
    *out = text;
    text = NULL;
done:
    fclose(f);
    free(text);
    return st;
}

bool ps_cpu_list_parse(const char *text, ps_cpu_mask *out) {
    memset(out, 0, sizeof *out);
    const char *p = text;
    while (*p == ' ' || *p == '\t' || *p == '\n')
        p++;
    while (*p) {
        char *end;
        if (*p < '0' || *p > '9')
            return false;
        const unsigned long first = strtoul(p, &end, 10);
        unsigned long last = first;
        if (*end == '-') {
            p = end + 1;
            if (*p < '0' || *p > '9')
                return false;
            last = strtoul(p, &end, 10);
        }
        if (last < first)
            return false;
        for (unsigned long i = first; i <= last && i < PS_LIMIT_CPUS; i++)
            out->word[i / 64] |= (uint64_t)1 << (i % 64);
        p = end;
        if (*p == ',')
            p++;
        else if (*p == '\n' || *p == 0)
            break;
        else
            return false;
    }
    return true;
}

static void mask_and(ps_cpu_mask *m, const ps_cpu_mask *other) {
    for (size_t i = 0; i < sizeof m->word / sizeof m->word[0]; i++)
        m->word[i] &= other->word[i];
}

static bool mask_empty(const ps_cpu_mask *m) {
    for (size_t i = 0; i < sizeof m->word / sizeof m->word[0]; i++)
        if (m->word[i])
            return false;
    return true;
}

/* Text after "key" and blanks or a colon at the start of a line; NULL if no line has it. */
static const char *find_key(const char *text, const char *key) {
    const size_t len = strlen(key);
    for (const char *p = text; p && *p;) {
        if (!strncmp(p, key, len) && (p[len] == ':' || p[len] == ' ' || p[len] == '\t')) {
            p += len;
            while (*p == ':' || *p == ' ' || *p == '\t')
                p++;
            return p;
        }
        p = strchr(p, '\n');
        if (p)
            p++;
    }
    return NULL;
}

/* Where a controller's hierarchy is mounted and which folder of it is ours, as a path below root; the
 * mount point is its first mount_len characters. */
typedef struct cgroup_place {
    char path[PATH_BYTES];
    size_t mount_len;
    bool found;
} cgroup_place;

/* True if the comma-separated list holds the word. */
static bool list_has(const char *list, size_t len, const char *word) {
    const size_t n = strlen(word);
    for (const char *p = list; p < list + len;) {
        const char *comma = memchr(p, ',', (size_t)(list + len - p));
        const size_t item = comma ? (size_t)(comma - p) : (size_t)(list + len - p);
        if (item == n && !memcmp(p, word, n))
            return true;
        p += item + 1;
    }
    return false;
}

/* Path of our group in the hierarchy of `controller` ("" for v2) from the text of /proc/self/cgroup. */
static bool group_path(const char *cgroup, const char *controller, char *out, size_t cap) {
    for (const char *p = cgroup; p && *p;) {
        const char *end = strchr(p, '\n');
        const size_t line = end ? (size_t)(end - p) : strlen(p);
        const char *c1 = memchr(p, ':', line);
        const char *c2 = c1 ? memchr(c1 + 1, ':', line - (size_t)(c1 + 1 - p)) : NULL;
        if (c2) {
            const size_t list_len = (size_t)(c2 - c1 - 1);
            const bool v2 = *controller == 0;
            if (v2 ? (c1 - p == 1 && *p == '0' && list_len == 0) : list_has(c1 + 1, list_len, controller)) {
                const size_t n = line - (size_t)(c2 + 1 - p);
                if (n + 1 > cap)
                    return false;
                memcpy(out, c2 + 1, n);
                out[n] = 0;
                return true;
            }
        }
        p = end ? end + 1 : NULL;
    }
    return false;
}

/* mountinfo writes blanks and backslashes as \ooo. */
static void unescape(char *s) {
    char *w = s;
    for (const char *r = s; *r;) {
        if (r[0] == '\\' && r[1] >= '0' && r[1] <= '3' && r[2] >= '0' && r[2] <= '7' && r[3] >= '0' &&
            r[3] <= '7') {
            *w++ = (char)((r[1] - '0') * 64 + (r[2] - '0') * 8 + (r[3] - '0'));
            r += 4;
        } else {
            *w++ = *r++;
        }
    }
    *w = 0;
}

/* Find mount and folder. controller "" means the v2 hierarchy. */
static void find_place(const char *cgroup, const char *mountinfo, const char *controller, cgroup_place *out) {
    char group[PATH_BYTES], mount_root[PATH_BYTES], mount_point[PATH_BYTES];
    out->found = false;
    if (!cgroup || !mountinfo || !group_path(cgroup, controller, group, sizeof group))
        return;
    for (const char *p = mountinfo; p && *p;) {
        char line[PATH_BYTES * 2], fstype[32], options[1024];
        const char *end = strchr(p, '\n');
        const size_t n = end ? (size_t)(end - p) : strlen(p);
        if (n < sizeof line) {
            memcpy(line, p, n);
            line[n] = 0;
            const char *tail = strstr(line, " - ");
            if (tail && sscanf(tail, " - %31s %*s %1023s", fstype, options) == 2 &&
                sscanf(line, "%*s %*s %*s %4095s %4095s", mount_root, mount_point) == 2 &&
                (*controller ? !strcmp(fstype, "cgroup") && list_has(options, strlen(options), controller)
                             : !strcmp(fstype, "cgroup2"))) {
                unescape(mount_root);
                unescape(mount_point);
                /* Our folder as seen below the mount; a group outside the mount (or in another cgroup
                 * namespace, "/..") is only known by the mount point's own limits. */
                const char *rest = group;
                const size_t root_len = strcmp(mount_root, "/") ? strlen(mount_root) : 0;
                if (root_len) {
                    if (!strncmp(group, mount_root, root_len) &&
                        (group[root_len] == '/' || group[root_len] == 0))
                        rest = group + root_len;
                    else
                        rest = "";
                }
                if (!strncmp(rest, "/..", 3) || !strcmp(rest, "/"))
                    rest = "";
                const int len = snprintf(out->path, sizeof out->path, "%s%s", mount_point, rest);
                if (len > 0 && (size_t)len < sizeof out->path) {
                    out->mount_len = strlen(mount_point);
                    out->found = true;
                    return;
                }
            }
        }
        p = end ? end + 1 : NULL;
    }
}

/* Called with the text of one file of a group and of its partner (or NULL). */
typedef ps_status (*group_fn)(void *ctx, const char *file, const char *text, const char *partner,
                              ps_error *err);

/* Call fn for `file` in our folder and every folder above, up to the mount point. */
static ps_status walk_groups(const char *root, const cgroup_place *place, const char *file,
                             const char *partner, group_fn fn, void *ctx, ps_error *err) {
    if (!place->found)
        return PS_OK;
    char dir[PATH_BYTES];
    strcpy(dir, place->path);
    for (;;) {
        char path[PATH_BYTES + 64];
        char *text = NULL, *partner_text = NULL;
        snprintf(path, sizeof path, "%s/%s", dir, partner ? partner : file);
        ps_status st = partner ? read_text(root, path, &partner_text, err) : PS_OK;
        snprintf(path, sizeof path, "%s/%s", dir, file);
        if (st == PS_OK)
            st = read_text(root, path, &text, err);
        if (st == PS_OK && text)
            st = fn(ctx, path, text, partner_text, err);
        free(text);
        free(partner_text);
        if (st != PS_OK)
            return st;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < place->mount_len)
            return PS_OK;
        *slash = 0;
    }
}

static void take_quota(ps_limits *l, double quota_us, double period_us) {
    const double quota = quota_us / period_us;
    if (l->cpu_quota == 0 || quota < l->cpu_quota)
        l->cpu_quota = quota;
}

/* v2 cpu.max: "max 100000" or "765000 100000". */
static ps_status on_cpu_max(void *ctx, const char *file, const char *text, const char *partner,
                            ps_error *err) {
    ps_limits *l = ctx;
    (void)partner;
    long long quota, period;
    if (!strncmp(text, "max", 3))
        return PS_OK;
    if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0)
        return ps_error_set(err, PS_E_DATA, file, "is not 'quota period'");
    take_quota(l, (double)quota, (double)period);
    return PS_OK;
}

/* v1: cpu.cfs_quota_us, -1 if unlimited, with cpu.cfs_period_us. */
static ps_status on_cfs_quota(void *ctx, const char *file, const char *text, const char *partner,
                              ps_error *err) {
    ps_limits *l = ctx;
    long long quota, period;
    if (sscanf(text, "%lld", &quota) != 1)
        return ps_error_set(err, PS_E_DATA, file, "is not a number");
    if (quota < 0)
        return PS_OK;
    if (!partner || sscanf(partner, "%lld", &period) != 1 || quota == 0 || period <= 0)
        return ps_error_set(err, PS_E_DATA, file, "quota without a usable cpu.cfs_period_us");
    take_quota(l, (double)quota, (double)period);
    return PS_OK;
}

static ps_status on_cpuset(void *ctx, const char *file, const char *text, const char *partner,
                           ps_error *err) {
    ps_limits *l = ctx;
    (void)partner;
    ps_cpu_mask m;
    if (!ps_cpu_list_parse(text, &m))
        return ps_error_set(err, PS_E_DATA, file, "is not a list of CPUs");
    if (!mask_empty(&m)) /* empty: whatever the group above has */
        mask_and(&l->allowed, &m);
    return PS_OK;
}

/* Memory limit of a group and its usage; clean file pages of the group count as free, as the kernel drops
 * them first. partner: memory.stat. */
static ps_status on_memory_limit(void *ctx, const char *file, const char *text, const char *partner,
                                 ps_error *err) {
    ps_limits *l = ctx;
    (void)partner;
    unsigned long long limit;
    if (!strncmp(text, "max", 3))
        return PS_OK;
    if (sscanf(text, "%llu", &limit) != 1)
        return ps_error_set(err, PS_E_DATA, file, "is not a number of bytes");
    if (limit < l->memory_bytes)
        l->memory_bytes = limit;
    return PS_OK;
}

static ps_status on_memory_usage(void *ctx, const char *file, const char *text, const char *partner,
                                 ps_error *err) {
    ps_limits *l = ctx;
    unsigned long long usage, cache = 0;
    if (sscanf(text, "%llu", &usage) != 1)
        return ps_error_set(err, PS_E_DATA, file, "is not a number of bytes");
    const char *v = partner ? find_key(partner, "total_inactive_file") : NULL;
    if (!v && partner)
        v = find_key(partner, "inactive_file");
    if (v && sscanf(v, "%llu", &cache) != 1)
        return ps_error_set(err, PS_E_DATA, file, "memory.stat beside it has no number for inactive_file");
    const uint64_t used = usage > cache ? usage - cache : 0;
    const uint64_t left = l->memory_bytes > used ? l->memory_bytes - used : 0;
    if (left < l->memory_free_bytes)
        l->memory_free_bytes = left;
    return PS_OK;
}

static ps_status read_meminfo(const char *root, ps_limits *l, ps_error *err) {
    char *text = NULL;
    unsigned long long total_kib, free_kib;
    ps_status st = read_text(root, "/proc/meminfo", &text, err);
    if (st != PS_OK)
        return st;
    if (!text)
        return ps_error_set(err, PS_E_NOINPUT, "/proc/meminfo", "not found");
    const char *total = find_key(text, "MemTotal");
    const char *avail = find_key(text, "MemAvailable");
    if (!avail) /* kernels before 3.14 */
        avail = find_key(text, "MemFree");
    if (!total || !avail || sscanf(total, "%llu", &total_kib) != 1 || sscanf(avail, "%llu", &free_kib) != 1 ||
        total_kib > UINT64_MAX / 1024 || free_kib > UINT64_MAX / 1024)
        st = ps_error_set(err, PS_E_DATA, "/proc/meminfo", "has no MemTotal and MemAvailable");
    else {
        l->memory_bytes = total_kib * 1024;
        l->memory_free_bytes = free_kib * 1024;
    }
    free(text);
    return st;
}

static ps_status read_self(const char *root, ps_limits *l, ps_error *err) {
    char *text = NULL;
    ps_status st = read_text(root, "/proc/self/status", &text, err);
    if (st != PS_OK)
        return st;
    const char *list = text ? find_key(text, "Cpus_allowed_list") : NULL;
    if (!list || !ps_cpu_list_parse(list, &l->allowed))
        st = ps_error_set(err, text ? PS_E_DATA : PS_E_NOINPUT, "/proc/self/status",
                          "has no Cpus_allowed_list");
    free(text);
    if (st != PS_OK)
        return st;

    text = NULL;
    st = read_text(root, "/proc/self/limits", &text, err);
    if (st != PS_OK)
        return st;
    const char *lock = text ? find_key(text, "Max locked memory") : NULL;
    unsigned long long bytes;
    l->memlock_bytes = UINT64_MAX;
    if (!lock)
        st = ps_error_set(err, text ? PS_E_DATA : PS_E_NOINPUT, "/proc/self/limits",
                          "has no line 'Max locked memory'");
    else if (strncmp(lock, "unlimited", 9) != 0) {
        if (sscanf(lock, "%llu", &bytes) != 1)
            st = ps_error_set(err, PS_E_DATA, "/proc/self/limits", "'Max locked memory' is not a number");
        else
            l->memlock_bytes = bytes;
    }
    free(text);
    return st;
}

static ps_status read_cpu_model(const char *root, ps_limits *l, ps_error *err) {
    char *text = NULL;
    const ps_status st = read_text(root, "/proc/cpuinfo", &text, err);
    l->cpu_model[0] = 0;
    const char *name = text ? find_key(text, "model name") : NULL;
    if (name) {
        size_t n = strcspn(name, "\n");
        if (n >= sizeof l->cpu_model)
            n = sizeof l->cpu_model - 1;
        memcpy(l->cpu_model, name, n);
        l->cpu_model[n] = 0;
    }
    free(text);
    return st;
}

/* Files to look at. v2 first: where both are mounted (hybrid), controllers live in one of them only.
 * The order matters in one way: a memory limit is known before usage is held against it. */
static const struct {
    const char *controller; /* "" for v2 */
    const char *file, *partner;
    group_fn fn;
} group_files[] = {
    {"", "cpu.max", NULL, on_cpu_max},
    {"", "cpuset.cpus.effective", NULL, on_cpuset},
    {"", "memory.max", NULL, on_memory_limit},
    {"cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us", on_cfs_quota},
    {"cpuset", "cpuset.cpus", NULL, on_cpuset},
    {"memory", "memory.limit_in_bytes", NULL, on_memory_limit},
};

/* Usage counts only where the group has a limit below the machine's memory. */
static const struct {
    const char *controller;
    const char *file;
} usage_files[] = {{"", "memory.current"}, {"memory", "memory.usage_in_bytes"}};

ps_status ps_limits_read(const char *root, ps_limits *out, ps_error *err) {
    char *cgroup = NULL, *mountinfo = NULL;
    cgroup_place *place = NULL;
    memset(out, 0, sizeof *out);
    ps_status st = read_self(root, out, err);
    if (st == PS_OK)
        st = read_meminfo(root, out, err);
    if (st == PS_OK)
        st = read_cpu_model(root, out, err);
    if (st == PS_OK)
        st = read_text(root, "/proc/self/cgroup", &cgroup, err);
    if (st == PS_OK)
        st = read_text(root, "/proc/self/mountinfo", &mountinfo, err);
    if (st != PS_OK)
        goto done;
    place = malloc(sizeof *place);
    if (!place) {
        st = ps_error_set(err, PS_E_NOMEM, "", "cannot hold a path");
        goto done;
    }
    const uint64_t machine_bytes = out->memory_bytes;
    for (size_t i = 0; i < sizeof group_files / sizeof group_files[0] && st == PS_OK; i++) {
        find_place(cgroup, mountinfo, group_files[i].controller, place);
        st = walk_groups(root, place, group_files[i].file, group_files[i].partner, group_files[i].fn, out,
                         err);
    }
    if (out->memory_bytes < machine_bytes) {
        if (out->memory_free_bytes > out->memory_bytes)
            out->memory_free_bytes = out->memory_bytes;
        for (size_t i = 0; i < sizeof usage_files / sizeof usage_files[0] && st == PS_OK; i++) {
            find_place(cgroup, mountinfo, usage_files[i].controller, place);
            place->mount_len = place->found ? strlen(place->path) : 0; /* our own group only */
            st = walk_groups(root, place, usage_files[i].file, "memory.stat", on_memory_usage, out, err);
        }
    }
    if (st == PS_OK && mask_empty(&out->allowed))
        st = ps_error_set(err, PS_E_DATA, "/proc/self/status", "affinity and cpuset leave no CPU at all");
done:
    free(cgroup);
    free(mountinfo);
    free(place);
    return st;
}

typedef struct file_visit {
    ps_limits_visit visit;
    void *ctx;
} file_visit;

static ps_status on_visit(void *ctx, const char *file, const char *text, const char *partner, ps_error *err) {
    (void)partner;
    const file_visit *v = ctx;
    return v->visit(v->ctx, file, text, err);
}

/* Files of /proc and, where only some lines matter, what those start with or hold. */
static const struct {
    const char *path;
    const char *keys[4];
} proc_files[] = {
    {"/proc/self/status", {"Cpus_allowed_list"}},
    {"/proc/self/limits", {"Max locked memory"}},
    {"/proc/cpuinfo", {"model name"}},
    {"/proc/meminfo", {"MemTotal:", "MemFree:", "MemAvailable:"}},
    {"/proc/self/cgroup", {NULL}},
    {"/proc/self/mountinfo", {" - cgroup"}},
};

/* Keep the lines of `text` that hold one of the keys; no keys: all. */
static void keep_lines(char *text, const char *const *keys) {
    if (!keys[0])
        return;
    char *to = text;
    for (char *p = text; *p;) {
        char *end = strchr(p, '\n');
        const size_t n = end ? (size_t)(end + 1 - p) : strlen(p);
        bool keep = false;
        for (int k = 0; k < 4 && keys[k] && !keep; k++) {
            const char *at = strstr(p, keys[k]);
            keep = at && at < p + n;
        }
        if (keep) {
            memmove(to, p, n);
            to += n;
        }
        p += n;
    }
    *to = 0;
}

ps_status ps_limits_each_file(const char *root, ps_limits_visit visit, void *ctx, ps_error *err) {
    char *cgroup = NULL, *mountinfo = NULL;
    file_visit v = {visit, ctx};
    ps_status st = PS_OK;
    cgroup_place *place = malloc(sizeof *place);
    if (!place)
        return ps_error_set(err, PS_E_NOMEM, "", "cannot hold a path");
    for (size_t i = 0; i < sizeof proc_files / sizeof proc_files[0] && st == PS_OK; i++) {
        char *text;
        st = read_text(root, proc_files[i].path, &text, err);
        if (st == PS_OK && text) {
            keep_lines(text, proc_files[i].keys);
            st = visit(ctx, proc_files[i].path, text, err);
        }
        free(text);
    }
    if (st == PS_OK)
        st = read_text(root, "/proc/self/cgroup", &cgroup, err);
    if (st == PS_OK)
        st = read_text(root, "/proc/self/mountinfo", &mountinfo, err);
    for (size_t i = 0; i < sizeof group_files / sizeof group_files[0] && st == PS_OK; i++) {
        find_place(cgroup, mountinfo, group_files[i].controller, place);
        st = walk_groups(root, place, group_files[i].file, NULL, on_visit, &v, err);
        if (st == PS_OK && group_files[i].partner)
            st = walk_groups(root, place, group_files[i].partner, NULL, on_visit, &v, err);
    }
    for (size_t i = 0; i < sizeof usage_files / sizeof usage_files[0] && st == PS_OK; i++) {
        find_place(cgroup, mountinfo, usage_files[i].controller, place);
        place->mount_len = place->found ? strlen(place->path) : 0;
        st = walk_groups(root, place, usage_files[i].file, NULL, on_visit, &v, err);
        if (st == PS_OK)
            st = walk_groups(root, place, "memory.stat", NULL, on_visit, &v, err);
    }
    free(place);
    free(cgroup);
    free(mountinfo);
    return st;
}
