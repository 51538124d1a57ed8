/* Signs of a machine, from /proc, /dev and sysfs. */
#include "machine/signs.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, LINE_BYTES = 256 };
static const char release_path[] = "/proc/sys/kernel/osrelease", dxg_path[] = "/dev/dxg",
                  driver_path[] = "/sys/module/nvidia/version", pci_path[] = "/sys/bus/pci/devices";
static const char wsl_word[] = "microsoft";

/* First line of root + path, without its end; false if there is none. */
static bool read_line(const char *root, const char *path, char *out, size_t size) {
    char full[PATH_BYTES];
    const int n = snprintf(full, sizeof full, "%s%s", root, path);
    FILE *f = n > 0 && (size_t)n < sizeof full ? fopen(full, "re") : NULL;
    if (!f)
        return false;
    const bool ok = fgets(out, (int)size, f) != NULL;
    fclose(f);
    if (ok)
        out[strcspn(out, "\r\n")] = 0;
    return ok;
}

static bool exists(const char *root, const char *path) {
    char full[PATH_BYTES];
    const int n = snprintf(full, sizeof full, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof full && access(full, F_OK) == 0;
}

static bool has_word(const char *text, const char *word) {
    for (; *text; text++) {
        size_t i = 0;
        while (word[i] && tolower((unsigned char)text[i]) == word[i])
            i++;
        if (!word[i])
            return true;
    }
    return false;
}

uint32_t ps_pci_gen(unsigned long gt_per_s) {
    static const unsigned long of_gen[] = {2, 5, 8, 16, 32, 64}; /* of 1 (2.5), 2, ... */
    for (uint32_t g = 0; g < sizeof of_gen / sizeof *of_gen; g++)
        if (gt_per_s == of_gen[g])
            return g + 1;
    return 0;
}

/* What is recorded of a GPU, and looked at. */
static const char *const pci_files[] = {
    "class",          "vendor",         "current_link_speed", "current_link_width",
    "max_link_speed", "max_link_width", "numa_node"};

static bool pci_line(const char *root, const char *id, const char *file, char *out, size_t size) {
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/%s/%s", pci_path, id, file);
    return n > 0 && (size_t)n < sizeof path && read_line(root, path, out, size);
}

static unsigned long pci_number(const char *root, const char *id, const char *file, int base) {
    char line[LINE_BYTES];
    return pci_line(root, id, file, line, sizeof line) && isdigit((unsigned char)line[0])
               ? strtoul(line, NULL, base)
               : 0;
}

/* A link that is down has width 0 or 63. */
static uint32_t pci_width(const char *root, const char *id, const char *file) {
    const unsigned long width = pci_number(root, id, file, 10);
    return width <= 32 ? (uint32_t)width : 0;
}

void ps_pci_read(const char *root, const char *id, ps_pci_gpu *g) {
    char line[LINE_BYTES];
    memset(g, 0, sizeof *g);
    snprintf(g->id, sizeof g->id, "%s", id);
    g->vendor = (uint32_t)pci_number(root, g->id, "vendor", 16);
    g->gen = ps_pci_gen(pci_number(root, g->id, "current_link_speed", 10));
    g->width = pci_width(root, g->id, "current_link_width");
    g->max_gen = ps_pci_gen(pci_number(root, g->id, "max_link_speed", 10));
    g->max_width = pci_width(root, g->id, "max_link_width");
    const bool near =
        pci_line(root, g->id, "numa_node", line, sizeof line) && isdigit((unsigned char)line[0]);
    g->numa = near ? (int32_t)strtol(line, NULL, 10) : -1;
}

static int by_id(const void *a, const void *b) {
    return strcmp(((const ps_pci_gpu *)a)->id, ((const ps_pci_gpu *)b)->id);
}

/* Classes 0x03 (display) and 0x12 (processing accelerators). */
static void find_gpus(const char *root, ps_signs *s) {
    char full[PATH_BYTES];
    const int n = snprintf(full, sizeof full, "%s%s", root, pci_path);
    DIR *dir = n > 0 && (size_t)n < sizeof full ? opendir(full) : NULL;
    if (!dir)
        return;
    for (const struct dirent *e; (e = readdir(dir)) != NULL && s->n_gpus < PS_SIGNS_GPUS;) {
        ps_pci_gpu *g = &s->gpus[s->n_gpus];
        if (!isxdigit((unsigned char)e->d_name[0]) || strlen(e->d_name) >= sizeof g->id)
            continue;
        const unsigned long class = pci_number(root, e->d_name, "class", 16) >> 16;
        if (class != 0x03 && class != 0x12)
            continue;
        ps_pci_read(root, e->d_name, g);
        s->n_gpus++;
    }
    closedir(dir);
    qsort(s->gpus, s->n_gpus, sizeof *s->gpus, by_id);
}

void ps_signs_read(const char *root, ps_signs *out) {
    char line[LINE_BYTES];
    memset(out, 0, sizeof *out);
    out->wsl = read_line(root, release_path, line, sizeof line) && has_word(line, wsl_word);
    out->wddm = exists(root, dxg_path);
    if (read_line(root, driver_path, line, sizeof line))
        snprintf(out->driver, sizeof out->driver, "%.31s", line);
    find_gpus(root, out);
}

static ps_status visit_line(const char *root, const char *path, ps_limits_visit visit, void *ctx,
                            ps_error *err) {
    char line[LINE_BYTES + 1];
    if (!read_line(root, path, line, LINE_BYTES))
        return PS_OK;
    strcat(line, "\n");
    return visit(ctx, path, line, err);
}

ps_status ps_signs_each_file(const char *root, ps_limits_visit visit, void *ctx, ps_error *err) {
    ps_signs s;
    ps_signs_read(root, &s);
    ps_status st = PS_OK;
    if (s.wsl) { /* people name their kernels after themselves */
        char word[sizeof wsl_word + 1];
        snprintf(word, sizeof word, "%s\n", wsl_word);
        st = visit(ctx, release_path, word, err);
    }
    if (st == PS_OK && s.wddm)
        st = visit(ctx, dxg_path, "", err);
    if (st == PS_OK)
        st = visit_line(root, driver_path, visit, ctx, err);
    for (uint32_t i = 0; i < s.n_gpus && st == PS_OK; i++)
        for (size_t f = 0; f < sizeof pci_files / sizeof *pci_files && st == PS_OK; f++) {
            char path[PATH_BYTES];
            snprintf(path, sizeof path, "%s/%s/%s", pci_path, s.gpus[i].id, pci_files[f]);
            st = visit_line(root, path, visit, ctx, err);
        }
    return st;
}

const char *ps_signs_text(const ps_signs *s, char *buf, uint64_t size) {
    snprintf(buf, size, "%s%s%s", s->wsl ? "WSL: page-locking is bounded" : "", s->wsl && s->wddm ? ", " : "",
             s->wddm ? "the GPU is reached through WDDM" : "");
    return buf;
}
