/* Weights in host memory: see weights.h. The file's data is covered by chunks, each a run of neighbouring tensors; a chunk is
 * page-locked memory of ours, a page-locked mapping of the file, or just the mapping that ps_gguf has. */
#include "runtime-min/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/clock.h"

enum {
    PAGE = 4096,
    READ_BYTES = 8 << 20, /* of one read */
    N_READERS = 4,
    RING_PIECES = 4,
    RING_BYTES = 16 << 20, /* of a piece */
    RING_EVENT = PS_DEVICE_EVENTS - RING_PIECES,
};
static const uint64_t chunk_bytes = (uint64_t)1 << 30; /* a chunk ends with the tensor that crosses this */
static const uint64_t tmpfs_magic = 0x01021994, hugetlbfs_magic = 0x958458f6;

/* File bytes [begin, end), whole pages; weights are at host + (offset - begin). */
typedef struct chunk {
    uint32_t file;
    uint64_t begin, end;
    uint8_t *host, *device; /* device: NULL where the device cannot read it */
} chunk;

struct ps_weights {
    const ps_model *model;
    ps_device *device;
    ps_hold hold;
    char why[160];
    uint32_t n_chunks;
    chunk *chunks;  /* in file order; none for MAPPED, STAGED and DISK */
    uint8_t **maps; /* [n_files] own mappings of the files, REGISTERED */
    uint8_t *ring, *ring_device;
    uint32_t ring_next;
    bool ring_used[RING_PIECES];
};

static const ps_gguf_tensor *tensor_of(const ps_weights *w, const ps_weight *weight) {
    return &w->model->gguf->tensors[weight->tensor];
}

static const chunk *chunk_of(const ps_weights *w, const ps_gguf_tensor *t) {
    uint32_t lo = 0, hi = w->n_chunks;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        const chunk *c = &w->chunks[mid];
        if (c->file < t->file || (c->file == t->file && c->end <= t->offset))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < w->n_chunks ? &w->chunks[lo] : NULL;
}

ps_hold ps_weights_hold(const ps_weights *w) {
    return w->hold;
}

const char *ps_weights_why(const ps_weights *w) {
    return w->why;
}

const uint8_t *ps_weights_host(const ps_weights *w, const ps_weight *weight) {
    const ps_gguf_tensor *t = tensor_of(w, weight);
    const chunk *c = chunk_of(w, t);
    return c != NULL ? c->host + (t->offset - c->begin) : ps_gguf_data(w->model->gguf, t);
}

const uint8_t *ps_weights_device(const ps_weights *w, const ps_weight *weight) {
    const ps_gguf_tensor *t = tensor_of(w, weight);
    const chunk *c = chunk_of(w, t);
    return c != NULL && c->device != NULL ? c->device + (t->offset - c->begin) : NULL;
}

/* ---- chunks ---- */

static int compare_offsets(const void *pa, const void *pb) {
    const ps_gguf_tensor *a = *(const ps_gguf_tensor *const *)pa, *b = *(const ps_gguf_tensor *const *)pb;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Cover all tensors of the file. Tensors that share a page are in one chunk, so chunks never overlap. */
static ps_status cover(ps_weights *w, ps_error *err) {
    const ps_gguf *g = w->model->gguf;
    const ps_gguf_tensor **order = calloc(g->n_tensors ? g->n_tensors : 1, sizeof *order);
    w->chunks = calloc(g->n_tensors ? g->n_tensors : 1, sizeof *w->chunks);
    if (order == NULL || w->chunks == NULL) {
        free(order);
        return ps_error_set(err, PS_E_NOMEM, g->files[0].path, "no memory for %llu tensors",
                            (unsigned long long)g->n_tensors);
    }
    for (uint64_t i = 0; i < g->n_tensors; i++)
        order[i] = &g->tensors[i];
    qsort(order, g->n_tensors, sizeof *order, compare_offsets);
    chunk *c = NULL;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const ps_gguf_tensor *t = order[i];
        uint64_t begin = t->offset & ~(uint64_t)(PAGE - 1),
                 end = (t->offset + t->bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
        if (t->bytes == 0)
            continue;
        if (c == NULL || c->file != t->file || (begin >= c->end && end - c->begin > chunk_bytes)) {
            c = &w->chunks[w->n_chunks++];
            *c = (chunk){.file = t->file, .begin = begin, .end = end};
        }
        c->end = end > c->end ? end : c->end;
    }
    free(order);
    return PS_OK;
}

static uint64_t covered(const ps_weights *w) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < w->n_chunks; i++)
        sum += w->chunks[i].end - w->chunks[i].begin;
    return sum;
}

static void drop_chunks(ps_weights *w) {
    for (uint32_t i = 0; i < w->n_chunks; i++) {
        chunk *c = &w->chunks[i];
        if (c->host == NULL || c->device == NULL)
            continue;
        if (w->maps != NULL)
            ps_device_host_unregister(w->device, c->host);
        else
            ps_device_host_free(w->device, c->host);
    }
    for (uint32_t i = 0; w->maps != NULL && i < w->model->gguf->n_files; i++)
        if (w->maps[i] != NULL)
            munmap(w->maps[i], (size_t)w->model->gguf->files[i].size);
    free(w->maps);
    free(w->chunks);
    w->maps = NULL;
    w->chunks = NULL;
    w->n_chunks = 0;
}

/* ---- reading into slabs ---- */

/* All readers: pieces of all chunks are taken one by one. */
typedef struct reading {
    const ps_weights *w;
    const int *fds; /* [n_files] */
    atomic_uint_fast64_t next;
    atomic_int failed; /* errno of the first failure */
    atomic_uint failed_file;
} reading;

static int read_piece(const reading *r, const chunk *c, uint64_t at, uint64_t bytes) {
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(r->fds[c->file], c->host + (at - c->begin) + done, (size_t)(bytes - done),
                          (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        done += (uint64_t)n;
        if (n == 0 || done % PAGE != 0) /* the end of the file is in its last page */
            return at + done >= r->w->model->gguf->files[c->file].size ? 0 : EIO;
    }
    return 0;
}

static void *reader_main(void *ctx) {
    reading *r = ctx;
    for (;;) {
        uint64_t piece = atomic_fetch_add(&r->next, 1);
        const chunk *c = NULL;
        for (uint32_t i = 0; i < r->w->n_chunks && c == NULL; i++) {
            uint64_t n = (r->w->chunks[i].end - r->w->chunks[i].begin + READ_BYTES - 1) / READ_BYTES;
            if (piece < n)
                c = &r->w->chunks[i];
            else
                piece -= n;
        }
        if (c == NULL || atomic_load(&r->failed) != 0)
            return NULL;
        uint64_t at = c->begin + piece * READ_BYTES, left = c->end - at;
        int e = read_piece(r, c, at, left < READ_BYTES ? left : READ_BYTES);
        if (e != 0) {
            int none = 0;
            if (atomic_compare_exchange_strong(&r->failed, &none, e))
                atomic_store(&r->failed_file, c->file);
            return NULL;
        }
    }
}

/* Is most of the file in the page cache already? Then reading around it would be slower. */
static bool is_cached(const ps_gguf_file *f) {
    uint64_t pages = (f->size + PAGE - 1) / PAGE, seen = 0, tried = 0;
    for (uint64_t i = 0; i < 64; i++) {
        unsigned char in = 0;
        uint64_t page = pages * i / 64;
        if (page < pages && mincore((void *)(uintptr_t)(f->data + page * PAGE), PAGE, &in) == 0) {
            tried++;
            seen += in & 1;
        }
    }
    return tried != 0 && seen * 2 > tried;
}

static ps_status read_all(ps_weights *w, bool *out_direct, ps_error *err) {
    const ps_gguf *g = w->model->gguf;
    int *fds = calloc(g->n_files, sizeof *fds);
    ps_status status = fds == NULL ? ps_error_set(err, PS_E_NOMEM, g->files[0].path, "no memory") : PS_OK;
    *out_direct = true;
    for (uint32_t i = 0; fds != NULL && i < g->n_files; i++)
        fds[i] = -1;
    for (uint32_t i = 0; status == PS_OK && i < g->n_files; i++) {
        if (!is_cached(&g->files[i]))
            fds[i] = open(g->files[i].path, O_RDONLY | O_CLOEXEC | O_DIRECT);
        if (fds[i] < 0) {
            *out_direct = false;
            fds[i] = open(g->files[i].path, O_RDONLY | O_CLOEXEC);
        }
        if (fds[i] < 0)
            status = ps_error_errno(err, PS_E_NOINPUT, g->files[i].path, errno, "cannot open");
    }
    if (status == PS_OK) {
        reading r = {.w = w, .fds = fds};
        pthread_t threads[N_READERS];
        uint32_t n = 0;
        while (n < N_READERS - 1 && pthread_create(&threads[n], NULL, reader_main, &r) == 0)
            n++;
        reader_main(&r);
        while (n > 0)
            pthread_join(threads[--n], NULL);
        int e = atomic_load(&r.failed);
        if (e != 0)
            status = ps_error_errno(err, PS_E_IO, g->files[atomic_load(&r.failed_file)].path, e,
                                    "cannot read the weights");
    }
    for (uint32_t i = 0; fds != NULL && i < g->n_files; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(fds);
    return status;
}

/* ---- the ways to hold them ---- */

static ps_status hold_slabs(ps_weights *w, ps_error *err) {
    ps_status status = cover(w, err);
    for (uint32_t i = 0; status == PS_OK && i < w->n_chunks; i++) {
        chunk *c = &w->chunks[i];
        void *host = NULL;
        status = ps_device_host_alloc(w->device, c->end - c->begin, &host, &c->device, err);
        c->host = host;
    }
    uint64_t start_ns = ps_clock_ns();
    bool direct = false;
    if (status == PS_OK)
        status = read_all(w, &direct, err);
    if (status != PS_OK)
        return status;
    double s = (double)(ps_clock_ns() - start_ns) * 1e-9, bytes = (double)covered(w);
    snprintf(w->why, sizeof w->why, "page-locked slabs (%.2f GiB, %s at %.1f GB/s)", bytes * 0x1p-30,
             direct ? "direct reads" : "read through the page cache", s > 0 ? bytes / s * 1e-9 : 0);
    return PS_OK;
}

static bool in_memory_file(const char *path) {
    struct statfs s;
    return statfs(path, &s) == 0 &&
           ((uint64_t)s.f_type == tmpfs_magic || (uint64_t)s.f_type == hugetlbfs_magic);
}

/* The pages of a tmpfs file are its only home, so the mapping itself is page-locked. Shared and writable, since a private
 * one would be copied page by page when it is locked; nothing writes to it. */
static ps_status hold_registered(ps_weights *w, ps_error *err) {
    const ps_gguf *g = w->model->gguf;
    ps_status status = cover(w, err);
    if (status != PS_OK)
        return status;
    w->maps = calloc(g->n_files, sizeof *w->maps);
    if (w->maps == NULL)
        return ps_error_set(err, PS_E_NOMEM, g->files[0].path, "no memory");
    for (uint32_t i = 0; i < g->n_files; i++) {
        int fd = open(g->files[i].path, O_RDWR | O_CLOEXEC);
        void *p = fd < 0 ? MAP_FAILED
                         : mmap(NULL, (size_t)g->files[i].size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        int e = errno;
        if (fd >= 0)
            close(fd);
        if (p == MAP_FAILED)
            return ps_error_errno(err, PS_E_UNSUPPORTED, g->files[i].path, e,
                                  "cannot map the file to page-lock it");
        w->maps[i] = p;
    }
    for (uint32_t i = 0; i < w->n_chunks; i++) {
        chunk *c = &w->chunks[i];
        c->host = w->maps[c->file] + c->begin;
        status = ps_device_host_register(w->device, c->host, c->end - c->begin, &c->device, err);
        if (status != PS_OK)
            return status;
    }
    snprintf(w->why, sizeof w->why, "registered mapping (%.2f GiB of a file in memory)",
             (double)covered(w) * 0x1p-30);
    return PS_OK;
}

static ps_status hold_staged(ps_weights *w, const char *reason, ps_error *err) {
    void *ring = NULL;
    ps_status status =
        ps_device_host_alloc(w->device, (uint64_t)RING_PIECES * RING_BYTES, &ring, &w->ring_device, err);
    w->ring = ring;
    if (status == PS_OK)
        snprintf(w->why, sizeof w->why, "%s of %d MiB: %s",
                 w->hold == PS_HOLD_DISK ? "read in plan order through a staging ring"
                                         : "mapped file behind a staging ring",
                 RING_PIECES * (RING_BYTES >> 20), reason);
    return status;
}

static const char *const hold_names[PS_HOLD_COUNT] = {
#define HOLD_NAME(name, text, direct) [PS_HOLD_##name] = (text),
    PS_HOLD_LIST(HOLD_NAME)
#undef HOLD_NAME
};

static ps_hold hold_by_name(const char *name) {
    uint32_t i = 0;
    while (i < PS_HOLD_COUNT && strcmp(hold_names[i], name) != 0)
        i++;
    return (ps_hold)i;
}

/* Try the ways in order of what they give; remember why one was passed over. */
static ps_status choose(ps_weights *w, const ps_weights_options *o, ps_error *err) {
    const ps_gguf *g = w->model->gguf;
    uint64_t needed = 0;
    for (uint32_t i = 0; i < g->n_files; i++)
        needed += g->files[i].size;
    uint64_t memory = o->memory_limit_bytes ? o->memory_limit_bytes
                      : o->machine != NULL  ? o->machine->memory_free_bytes
                                            : UINT64_MAX;
    ps_hold force = o->force != NULL ? hold_by_name(o->force) : PS_HOLD_COUNT;
    if (o->force != NULL && force == PS_HOLD_COUNT)
        return ps_error_set(err, PS_E_USAGE, "weights", "there is no way to hold them called \"%.40s\"",
                            o->force);
    bool lockable = o->lock_limit_bytes == 0 || needed <= o->lock_limit_bytes;
    char reason[96] = "";
    ps_error why = {0};
    if (force != PS_HOLD_COUNT ? force == PS_HOLD_REGISTERED : lockable && in_memory_file(g->files[0].path)) {
        w->hold = PS_HOLD_REGISTERED;
        if (hold_registered(w, &why) == PS_OK)
            return PS_OK;
        drop_chunks(w);
        snprintf(reason, sizeof reason, "%.90s", why.message);
    }
    if (force != PS_HOLD_COUNT ? force == PS_HOLD_SLABS : lockable && needed <= memory) {
        w->hold = PS_HOLD_SLABS;
        ps_status status = hold_slabs(w, &why);
        if (status == PS_OK)
            return PS_OK;
        drop_chunks(w);
        if (status != PS_E_NOMEM) { /* a file that cannot be read is not a matter of memory */
            if (err != NULL)
                *err = why;
            return status;
        }
        snprintf(reason, sizeof reason, "%.90s", why.message);
    }
    if (!lockable)
        snprintf(reason, sizeof reason, "at most %.2f GiB may be page-locked",
                 (double)o->lock_limit_bytes * 0x1p-30);
    else if (needed > memory)
        snprintf(reason, sizeof reason, "%.2f GiB of weights, %.2f GiB of memory", (double)needed * 0x1p-30,
                 (double)memory * 0x1p-30);
    if (force != PS_HOLD_COUNT && (force == PS_HOLD_SLABS || force == PS_HOLD_REGISTERED))
        return ps_error_set(err, PS_E_UNAVAILABLE, g->files[0].path, "weights cannot be held as %s: %s",
                            o->force, reason);
    if (o->needs_direct)
        return ps_error_set(
            err, PS_E_UNAVAILABLE, g->files[0].path,
            "the plan lets the GPU read weights in host memory, which needs %.2f GiB page-locked: %s",
            (double)needed * 0x1p-30, reason);
    w->hold = force != PS_HOLD_COUNT ? force : needed > memory ? PS_HOLD_DISK : PS_HOLD_STAGED;
    if (w->hold == PS_HOLD_MAPPED)
        return ps_error_set(err, PS_E_USAGE, "weights", "a mapped file alone is for runs without a GPU");
    return hold_staged(w, reason[0] ? reason : "as asked for", err);
}

ps_status ps_weights_open(const ps_model *model, const ps_weights_options *o, ps_weights **out,
                          ps_error *err) {
    *out = NULL;
    ps_weights *w = calloc(1, sizeof *w);
    if (w == NULL)
        return ps_error_set(err, PS_E_NOMEM, "weights", "no memory");
    w->model = model;
    w->device = o->device;
    ps_status status = PS_OK;
    if (o->device == NULL) {
        w->hold = PS_HOLD_MAPPED;
        snprintf(w->why, sizeof w->why, "mapped file");
    } else {
        status = choose(w, o, err);
    }
    if (status != PS_OK)
        ps_weights_close(w);
    else
        *out = w;
    return status;
}

void ps_weights_close(ps_weights *w) {
    if (w == NULL)
        return;
    drop_chunks(w);
    if (w->ring != NULL)
        ps_device_host_free(w->device, w->ring);
    free(w);
}

/* ---- copies ---- */

/* Wait until the piece of the ring has left it. */
static ps_status await_piece(ps_weights *w, uint32_t piece, ps_error *err) {
    bool passed = !w->ring_used[piece];
    ps_status status = PS_OK;
    while (status == PS_OK && !passed) {
        status = ps_device_passed(w->device, RING_EVENT + piece, &passed, err);
        if (status == PS_OK && !passed) {
            struct timespec pause = {0, 20000};
            nanosleep(&pause, NULL);
        }
    }
    return status;
}

/* Fill `to` with n_rows rows of row_bytes from byte `at` of the tensor, pitch apart in the file. */
static ps_status fill(const ps_weights *w, const ps_gguf_tensor *t, uint8_t *to, uint64_t at, uint64_t pitch,
                      uint64_t row_bytes, uint64_t n_rows, int fd, ps_error *err) {
    const ps_gguf_file *f = &w->model->gguf->files[t->file];
    const bool whole = row_bytes == pitch;
    for (uint64_t i = 0; i < (whole ? 1 : n_rows); i++) {
        uint64_t bytes = whole ? row_bytes * n_rows : row_bytes, from = t->offset + at + i * pitch, done = 0;
        if (fd < 0) {
            memcpy(to + i * row_bytes, f->data + from, (size_t)bytes);
            continue;
        }
        while (done < bytes) {
            ssize_t n = pread(fd, to + i * row_bytes + done, (size_t)(bytes - done), (off_t)(from + done));
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                return ps_error_errno(err, PS_E_IO, f->path, n < 0 ? errno : EIO, "cannot read the weights");
            done += (uint64_t)n;
        }
    }
    return PS_OK;
}

static ps_status copy_staged(ps_weights *w, const ps_gguf_tensor *t, uint64_t at, uint64_t pitch,
                             uint64_t row_bytes, uint64_t n_rows, uint8_t *dst, ps_error *err) {
    const char *path = w->model->gguf->files[t->file].path;
    int fd = w->hold == PS_HOLD_DISK ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (w->hold == PS_HOLD_DISK && fd < 0)
        return ps_error_errno(err, PS_E_NOINPUT, path, errno, "cannot open");
    ps_status status = PS_OK;
    if (row_bytes ==
        pitch) { /* without gaps: rows of any length, so that a piece of the ring holds several */
        n_rows *= row_bytes;
        pitch = row_bytes = 1;
    } else if (row_bytes > RING_BYTES) {
        status = ps_error_set(err, PS_E_UNSUPPORTED, path,
                              "a row of weights is longer than a piece of the staging ring");
    }
    for (uint64_t row = 0; status == PS_OK && row < n_rows;) {
        uint64_t n = RING_BYTES / row_bytes;
        n = n < n_rows - row ? n : n_rows - row;
        uint32_t piece = w->ring_next;
        uint8_t *from = w->ring + (uint64_t)piece * RING_BYTES;
        status = await_piece(w, piece, err);
        if (status == PS_OK)
            status = fill(w, t, from, at + row * pitch, pitch, row_bytes, n, fd, err);
        if (status == PS_OK)
            status = ps_device_copy(w->device, PS_STREAM_H2D, dst + row * row_bytes, 0, from, 0,
                                    n * row_bytes, 1, err);
        if (status == PS_OK)
            status = ps_device_record(w->device, PS_STREAM_H2D, RING_EVENT + piece, err);
        w->ring_used[piece] = true;
        w->ring_next = (piece + 1) % RING_PIECES;
        row += n;
    }
    if (fd >= 0) {
        (void)posix_fadvise(fd, (off_t)(t->offset + at), (off_t)(pitch * n_rows), POSIX_FADV_DONTNEED);
        close(fd);
    }
    return status;
}

ps_status ps_weights_copy(ps_weights *w, const ps_weight *weight, uint64_t row0, uint64_t n_rows,
                          uint64_t col0, uint64_t n_cols, uint8_t *dst, ps_error *err) {
    const ps_gguf_tensor *t = tensor_of(w, weight);
    uint64_t units =
        weight->experts > 1 ? weight->experts : weight->rows; /* rows of several experts count experts */
    uint64_t pitch = weight->bytes / units, at, start, bytes = pitch;
    uint64_t rows_per_unit = weight->experts > 1 ? weight->rows : 1;
    if (n_cols != 0 && n_cols != weight->cols) {
        if (!ps_dtype_bytes(weight->type, col0, &start) || !ps_dtype_bytes(weight->type, n_cols, &bytes))
            return ps_error_set(err, PS_E_USAGE, "weights",
                                "a range of columns does not fit the type's blocks");
        pitch /= rows_per_unit;
        at = row0 * rows_per_unit * pitch + start;
        n_rows *= rows_per_unit;
    } else {
        at = row0 * pitch;
    }
    if (w->ring != NULL)
        return copy_staged(w, t, at, pitch, bytes, n_rows, dst, err);
    const uint8_t *from = ps_weights_host(w, weight) + at;
    if (bytes == pitch)
        return ps_device_copy(w->device, PS_STREAM_H2D, dst, 0, from, 0, pitch * n_rows, 1, err);
    return ps_device_copy(w->device, PS_STREAM_H2D, dst, bytes, from, pitch, bytes, n_rows, err);
}
