/* Opening GGUF files: mapping, the members of a split, the tensor index, the hash. */
#include "model/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/file.h"
#include "core/hash.h"
#include "model/gguf_internal.h"

/* "-00002-of-00005.gguf" */
enum { SPLIT_SUFFIX_LEN = 20 };

typedef struct gguf_impl {
    ps_gguf pub; /* first: a ps_gguf * is a gguf_impl * */
    ps_gguf_part first;
    ps_gguf_tensor_list list;
    const ps_gguf_tensor **tensor_index; /* sorted by name */
    /* One per opened file, grown together. */
    ps_gguf_file *files;
    ps_file_map *maps; /* NULL for memory: nothing to unmap */
    uint32_t n_files;
} gguf_impl;

void ps_gguf_close(ps_gguf *gguf) {
    if (gguf == NULL)
        return;
    gguf_impl *g = (gguf_impl *)gguf;
    for (uint32_t i = 0; i < g->n_files; i++) {
        if (g->maps != NULL)
            ps_file_map_close(&g->maps[i]);
        free((char *)(uintptr_t)g->files[i].path);
    }
    free(g->files);
    free(g->maps);
    free(g->list.items);
    free(g->tensor_index);
    ps_gguf_part_free(&g->first);
    free(g);
}

static int compare_tensor(const void *a, const void *b) {
    const ps_gguf_tensor *x = *(const ps_gguf_tensor *const *)a, *y = *(const ps_gguf_tensor *const *)b;
    int c = ps_str_compare(x->name, y->name);
    return c != 0 ? c : (x > y) - (x < y);
}

static ps_status index_tensors(gguf_impl *g, ps_error *err) {
    uint64_t n = g->list.n;
    if (n == 0)
        return PS_OK;
    const char *path = g->files[0].path;
    g->tensor_index = malloc((size_t)n * sizeof *g->tensor_index);
    if (g->tensor_index == NULL)
        return ps_error_set(err, PS_E_NOMEM, path, "no memory for the tensor index");
    for (uint64_t i = 0; i < n; i++) {
        g->tensor_index[i] = &g->list.items[i];
        if (!ps_add_u64(g->pub.data_bytes, g->list.items[i].bytes, &g->pub.data_bytes))
            return ps_error_set(err, PS_E_DATA, path, "the sum of the tensors' bytes overflows");
    }
    qsort(g->tensor_index, (size_t)n, sizeof *g->tensor_index, compare_tensor);
    for (uint64_t i = 1; i < n; i++) {
        const ps_gguf_tensor *t = g->tensor_index[i];
        if (ps_str_compare(g->tensor_index[i - 1]->name, t->name) == 0) {
            char name[128];
            ps_error_set(err, PS_E_DATA, ps_str_clip(t->name, name), "the tensor is there twice");
            ps_error_prefix(err, g->files[t->file].path);
            return PS_E_DATA;
        }
    }
    return PS_OK;
}

static void hash_part(ps_hash *h, const ps_gguf_part *part) {
    ps_hash_add_u64(h, part->size);
    ps_hash_add_u64(h, part->data_offset);
    ps_hash_add(h, part->data, part->data_offset);
}

/* Room for one more file. */
static ps_status grow_files(gguf_impl *g, bool mapped, const char *path, ps_error *err) {
    size_t n = (size_t)g->n_files + 1;
    if ((n & (n - 1)) != 0) /* capacity is a power of two: grown when n is one */
        return PS_OK;
    ps_gguf_file *files = realloc(g->files, 2 * n * sizeof *files);
    if (files == NULL)
        return ps_error_set(err, PS_E_NOMEM, path, "no memory");
    g->files = files;
    if (!mapped)
        return PS_OK;
    ps_file_map *maps = realloc(g->maps, 2 * n * sizeof *maps);
    if (maps == NULL)
        return ps_error_set(err, PS_E_NOMEM, path, "no memory");
    g->maps = maps;
    return PS_OK;
}

static ps_status add_file(gguf_impl *g, const char *path, const ps_file_map *borrowed, ps_error *err) {
    ps_status status = grow_files(g, borrowed == NULL, path, err);
    if (status != PS_OK)
        return status;
    char *copy = strdup(path);
    if (copy == NULL)
        return ps_error_set(err, PS_E_NOMEM, path, "no memory");
    ps_file_map map;
    if (borrowed != NULL) {
        map = *borrowed;
    } else {
        status = ps_file_map_open(path, &map, err);
        if (status != PS_OK) {
            free(copy);
            return status;
        }
        g->maps[g->n_files] = map;
    }
    g->files[g->n_files] = (ps_gguf_file){copy, map.size, map.data};
    g->n_files++;
    return PS_OK;
}

/* Parse file i into `part`. */
static ps_status parse_file(gguf_impl *g, uint32_t i, ps_gguf_part *part, ps_error *err) {
    const ps_gguf_file *f = &g->files[i];
    return ps_gguf_part_parse(f->path, f->data, f->size, i, &g->list, part, err);
}

/* Path of member `no` beside the member `no_given` called `path`: from malloc, NULL with *status set. */
static char *sibling_path(const char *path, uint32_t no_given, uint32_t no, uint32_t count, ps_status *status,
                          ps_error *err) {
    size_t len = strlen(path);
    char suffix[32];
    snprintf(suffix, sizeof suffix, "-%05u-of-%05u.gguf", no_given + 1, count);
    if (len < SPLIT_SUFFIX_LEN || strcmp(path + len - SPLIT_SUFFIX_LEN, suffix) != 0) {
        *status = ps_error_set(err, PS_E_DATA, path,
                               "is file %u of a split into %u, so its name must end in %s for the others to "
                               "be found",
                               no_given + 1, count, suffix);
        return NULL;
    }
    char *out = strdup(path);
    if (out == NULL) {
        *status = ps_error_set(err, PS_E_NOMEM, path, "no memory");
        return NULL;
    }
    snprintf(suffix, sizeof suffix, "-%05u-of-%05u.gguf", no + 1, count);
    memcpy(out + len - SPLIT_SUFFIX_LEN, suffix, SPLIT_SUFFIX_LEN);
    return out;
}

/* Open member `no` and append its tensors; *hash takes its header. */
static ps_status add_member(gguf_impl *g, const char *path, uint32_t no_given, uint32_t no, uint32_t count,
                            ps_hash *hash, ps_error *err) {
    ps_status status = PS_OK;
    ps_gguf_part part = {0};
    char *name = sibling_path(path, no_given, no, count, &status, err);
    if (name == NULL)
        return status;
    status = add_file(g, name, NULL, err);
    if (status == PS_OK)
        status = parse_file(g, no, &part, err);
    if (status == PS_OK && (part.split_count != count || part.split_no != no))
        status = ps_error_set(err, PS_E_DATA, name,
                              "says it is file %u of a split into %u where file %u of %u is wanted",
                              part.split_no + 1, part.split_count, no + 1, count);
    if (status == PS_OK) {
        hash_part(hash, &part);
        if (no == 0) {
            g->first = part;
            g->first.label = g->files[0].path;
            part = (ps_gguf_part){0};
        }
    }
    ps_gguf_part_free(&part);
    free(name);
    return status;
}

/* All members of a split whose member `given` (already parsed from `path`) was opened. */
static ps_status open_split(gguf_impl *g, const char *path, const ps_gguf_part *given, ps_hash *hash,
                            ps_error *err) {
    ps_status status = PS_OK;
    for (uint32_t no = 0; no < given->split_count && status == PS_OK; no++)
        status = add_member(g, path, given->split_no, no, given->split_count, hash, err);
    if (status == PS_OK && g->first.split_tensors != UINT64_MAX && g->first.split_tensors != g->list.n) {
        ps_error_set(err, PS_E_DATA, "split.tensors.count", "says %llu tensors, the files hold %llu",
                     (unsigned long long)g->first.split_tensors, (unsigned long long)g->list.n);
        ps_error_prefix(err, path);
        status = PS_E_DATA;
    }
    return status;
}

/* The given file, its siblings if it is part of a split, then index and hash. */
static ps_status open_all(gguf_impl *g, const char *path, const ps_file_map *borrowed, ps_error *err) {
    ps_status status = add_file(g, path, borrowed, err);
    if (status != PS_OK)
        return status;
    ps_hash *hash = ps_hash_new();
    if (hash == NULL)
        return ps_error_set(err, PS_E_NOMEM, path, "no memory");
    ps_gguf_part given;
    status = parse_file(g, 0, &given, err);
    if (status == PS_OK && given.split_count > 1 && borrowed != NULL) {
        status =
            ps_error_set(err, PS_E_UNSUPPORTED, path, "is one file of a split into %u", given.split_count);
        ps_gguf_part_free(&given);
    } else if (status == PS_OK && given.split_count > 1) {
        /* Which member this is, is known now: begin again with the first. The header alone was read. */
        ps_gguf_part_free(&given);
        ps_file_map_close(&g->maps[0]);
        free((char *)(uintptr_t)g->files[0].path);
        g->n_files = 0;
        g->list.n = 0;
        status = open_split(g, path, &given, hash, err);
    } else if (status == PS_OK) {
        g->first = given;
        hash_part(hash, &given);
    }
    if (status == PS_OK)
        status = index_tensors(g, err);
    ps_hash_add_u64(hash, g->n_files);
    ps_hash_end(hash, g->pub.hash);
    return status;
}

static ps_status open_any(const char *path, const ps_file_map *borrowed, ps_gguf **out, ps_error *err) {
    gguf_impl *g = calloc(1, sizeof *g);
    if (g == NULL)
        return ps_error_set(err, PS_E_NOMEM, path, "no memory");
    ps_status status = open_all(g, path, borrowed, err);
    if (status != PS_OK) {
        ps_gguf_close(&g->pub);
        return status;
    }
    g->pub.version = g->first.version;
    g->pub.alignment = g->first.alignment;
    g->pub.n_kv = g->first.n_kv;
    g->pub.kv = g->first.kv;
    g->pub.n_tensors = g->list.n;
    g->pub.tensors = g->list.items;
    g->pub.n_files = g->n_files;
    g->pub.files = g->files;
    *out = &g->pub;
    return PS_OK;
}

ps_status ps_gguf_open(const char *path, ps_gguf **out, ps_error *err) {
    return open_any(path, NULL, out, err);
}

ps_status ps_gguf_open_memory(const void *data, uint64_t size, const char *label, ps_gguf **out,
                              ps_error *err) {
    ps_file_map map = {data, size};
    return open_any(label, &map, out, err);
}

const ps_gguf_kv *ps_gguf_find(const ps_gguf *gguf, const char *key) {
    const gguf_impl *g = (const gguf_impl *)gguf;
    return ps_gguf_index_find(g->first.kv_index, g->first.n_kv, key);
}

const ps_gguf_tensor *ps_gguf_find_tensor(const ps_gguf *gguf, const char *name) {
    const gguf_impl *g = (const gguf_impl *)gguf;
    ps_str want = {name, strlen(name)};
    uint64_t lo = 0, hi = g->list.n;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        int c = ps_str_compare(g->tensor_index[mid]->name, want);
        if (c == 0)
            return g->tensor_index[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}
