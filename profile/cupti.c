/* CUPTI by dlopen: its headers are not everywhere, so what is used of its interface is written down here. */
#include "profile/cupti.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* From NVIDIA's cupti_activity.h and cupti_result.h. Records of kernels, copies and memsets have grown at their end from version
 * to version, but have begun like this from CUDA 12.0 to 13.4; cuptiActivityGetNextRecord knows their sizes. */
typedef struct cupti_record {
    uint32_t kind;
    uint32_t about[3]; /* kernels: registers and caches; copies: kinds and bytes */
    uint64_t start, end;
} cupti_record;
enum {
    VERSION_FIRST = 18, /* of CUDA 12.0; 12.9 has 28, 13.0 has 130001, 13.4 has 130401 */
    VERSION_LAST_OLD = 99,
    VERSION_FIRST_NEW = 130000,
    VERSION_END = 140000,
    CUPTI_SUCCESS = 0,
    CUPTI_LIMIT = 12, /* the end of a buffer */
    CUPTI_NOT_INITIALIZED = 15,
    CUPTI_NOT_SUPPORTED = 27,
    CUPTI_NOT_COMPATIBLE = 14,
    CUPTI_VIRTUALIZED = 33,
    CUPTI_PRIVILEGES = 35,
    CUPTI_LEGACY = 38,
    CUPTI_SUBSCRIBERS = 39,
    CUPTI_VIRTUALIZED_PRIVILEGES = 40,
    CUPTI_FIRST_DEVICE = 41, /* to 45: kinds of devices that it does not trace */
    CUPTI_LAST_DEVICE = 45,
    KIND_COPY = 1,
    KIND_MEMSET = 2,
    KIND_KERNEL = 3,
    KIND_CONCURRENT_KERNEL = 10,
    FLUSH_FORCED = 1,
    BUFFER_BYTES = 1 << 20,
    BUFFER_ALIGN = 4096,
    N_BUFFERS = 8,
    SLACK_NS = 2000000, /* CUPTI fits the GPU's clock to the host's now and then */
    LATE_TRIES = 20,    /* of 1 ms each, for records that are on their way */
};
static const uint32_t kinds[] = {KIND_CONCURRENT_KERNEL, KIND_COPY, KIND_MEMSET};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

typedef void request_call(uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void complete_call(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid);
/* X(member, "symbol", parameters); all of them return an int. */
#define CUPTI_CALLS(X)                                                                                       \
    X(version_of, "cuptiGetVersion", (uint32_t *))                                                           \
    X(timestamp, "cuptiGetTimestamp", (uint64_t *))                                                          \
    X(callbacks, "cuptiActivityRegisterCallbacks", (request_call *, complete_call *))                        \
    X(enable, "cuptiActivityEnable", (uint32_t))                                                             \
    X(disable, "cuptiActivityDisable", (uint32_t))                                                           \
    X(flush, "cuptiActivityFlushAll", (uint32_t))                                                            \
    X(next, "cuptiActivityGetNextRecord", (uint8_t *, size_t, void **))                                      \
    X(dropped, "cuptiActivityGetNumDroppedRecords", (void *, uint32_t, size_t *))

typedef struct span {
    uint64_t start, end;
} span;

struct ps_cupti {
#define CUPTI_MEMBER(name, symbol, parameters) int(*name) parameters;
    CUPTI_CALLS(CUPTI_MEMBER)
#undef CUPTI_MEMBER
    char library[512];
    uint32_t version;
    bool registered, on, open; /* open: between begin and end */
    uint64_t begin_ns;
    /* Under the lock: CUPTI's threads bring records whenever they like. */
    uint8_t *buffers;
    bool lent[N_BUFFERS];
    bool starved, too_many,
        broken; /* no buffer was left; more records than room; the list of records had no end */
    uint64_t n_lost;
    void *context; /* whose records came last */
    uint32_t n, n_kernels, n_copies;
    span spans[PS_CUPTI_RECORDS];
};

/* CUPTI's callbacks have no argument of ours. NULL: nobody wants records. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ps_cupti *active;

/* ---- what CUPTI calls ---- */
static void on_request(uint8_t **buffer, size_t *bytes, size_t *most_records) {
    *buffer = NULL;
    *bytes = 0;
    *most_records = 0; /* as many as fit */
    pthread_mutex_lock(&lock);
    if (active) {
        for (uint32_t i = 0; i < N_BUFFERS && !*buffer; i++)
            if (!active->lent[i]) {
                active->lent[i] = true;
                *buffer = active->buffers + (size_t)i * BUFFER_BYTES;
                *bytes = BUFFER_BYTES;
            }
        active->starved |= !*buffer;
    }
    pthread_mutex_unlock(&lock);
}

static void take(ps_cupti *c, const cupti_record *r) {
    const bool kernel = r->kind == KIND_KERNEL || r->kind == KIND_CONCURRENT_KERNEL;
    if (!kernel && r->kind != KIND_COPY && r->kind != KIND_MEMSET)
        return;
    if (c->n == PS_CUPTI_RECORDS) {
        c->too_many = true;
        return;
    }
    c->spans[c->n++] = (span){r->start, r->end};
    c->n_kernels += kernel;
    c->n_copies += !kernel;
}

static void on_complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid) {
    (void)stream;
    (void)bytes;
    pthread_mutex_lock(&lock);
    ps_cupti *c = active;
    if (c && buffer) {
        c->context = context ? context : c->context;
        void *record = NULL;
        size_t n = 0;
        int code = CUPTI_SUCCESS;
        /* No record is smaller than its beginning: a list that goes on beyond that is none. */
        for (; valid && n <= BUFFER_BYTES / sizeof(cupti_record); n++) {
            code = c->next(buffer, valid, &record);
            if (code != CUPTI_SUCCESS)
                break;
            const uint8_t *at = (const uint8_t *)record;
            if (at < buffer || at + sizeof(cupti_record) > buffer + valid) {
                code = -1;
                break;
            }
            cupti_record begin;
            memcpy(&begin, at, sizeof begin);
            take(c, &begin);
        }
        c->broken |= valid && code != CUPTI_LIMIT;
        const size_t index = (size_t)(buffer - c->buffers) / BUFFER_BYTES;
        if (index < N_BUFFERS)
            c->lent[index] = false;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- opening ---- */
static ps_status failed(const ps_cupti *c, int code, const char *call, ps_error *err) {
    ps_status st = PS_E_OS;
    const char *why = "failed";
    if (code == CUPTI_PRIVILEGES || code == CUPTI_VIRTUALIZED_PRIVILEGES)
        st = PS_E_PERM, why = "is for administrators here (the driver's NVreg_RestrictProfilingToAdminUsers)";
    else if (code == CUPTI_NOT_SUPPORTED || code == CUPTI_NOT_COMPATIBLE || code == CUPTI_VIRTUALIZED ||
             code == CUPTI_LEGACY || (code >= CUPTI_FIRST_DEVICE && code <= CUPTI_LAST_DEVICE))
        st = PS_E_UNAVAILABLE, why = "is not supported by this device or driver";
    else if (code == CUPTI_NOT_INITIALIZED)
        st = PS_E_UNAVAILABLE, why = "cannot be initialised here";
    else if (code == CUPTI_SUBSCRIBERS)
        st = PS_E_UNAVAILABLE, why = "is in use by another tool in this process";
    ps_error_set(err, st, c->library, "%s %s (%d)", call, why, code);
    if (err)
        err->sys_code = code;
    return st;
}

static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
enum { N_NAMES = sizeof names / sizeof names[0], MODE = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE };

static void *try_folder(const char *folder, const char *below, char *path, size_t size) {
    void *library = NULL;
    for (int i = 0; i < N_NAMES && !library; i++) {
        const int n = snprintf(path, size, "%s/%s%s", folder, below, names[i]);
        if (n > 0 && (size_t)n < size)
            library = dlopen(path, MODE);
    }
    return library;
}

typedef struct look {
    char folders[8][400];
    int n;
} look;

/* Folders of the CUDA libraries that are loaded. */
static int note_folder(struct dl_phdr_info *info, size_t size, void *arg) {
    static const char *const of[] = {"libcudart.so", "libcublas", "libcuda.so", "libnvrtc", "libnvJitLink"};
    look *l = (look *)arg;
    (void)size;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    bool cuda = false;
    for (size_t i = 0; slash && i < sizeof of / sizeof of[0]; i++)
        cuda |= strncmp(slash + 1, of[i], strlen(of[i])) == 0;
    const size_t n = cuda ? (size_t)(slash - info->dlpi_name) : 0;
    if (n == 0 || n >= sizeof l->folders[0] || l->n == (int)(sizeof l->folders / sizeof l->folders[0]))
        return 0;
    memcpy(l->folders[l->n], info->dlpi_name, n);
    l->folders[l->n][n] = '\0';
    l->n++;
    return 0;
}

static void *find_library(const char *given, const char *home, char *path, size_t size) {
    static const char *const in_home[] = {"extras/CUPTI/lib64/", "lib64/", "lib/"};
    /* A toolkit's own folders, then those of its packages for Python. */
    static const char *const beside[] = {"", "../extras/CUPTI/lib64/", "../../../extras/CUPTI/lib64/",
                                         "../../cuda_cupti/lib/"};
    void *library = NULL;
    if (given) {
        snprintf(path, size, "%s", given);
        return dlopen(given, MODE);
    }
    for (int i = 0; i < N_NAMES && !library; i++) {
        snprintf(path, size, "%s", names[i]);
        library = dlopen(names[i], MODE);
    }
    for (size_t i = 0; home && i < sizeof in_home / sizeof in_home[0] && !library; i++)
        library = try_folder(home, in_home[i], path, size);
    look l = {.n = 0};
    if (!library)
        dl_iterate_phdr(note_folder, &l);
    for (int f = 0; f < l.n; f++)
        for (size_t i = 0; i < sizeof beside / sizeof beside[0] && !library; i++)
            library = try_folder(l.folders[f], beside[i], path, size);
    return library;
}

static ps_status load(ps_cupti *c, const char *library, const char *home, ps_error *err) {
    void *handle = find_library(library, home, c->library, sizeof c->library);
    if (!handle && library)
        return ps_error_set(err, PS_E_UNAVAILABLE, library, "CUPTI cannot be opened");
    if (!handle)
        return ps_error_set(err, PS_E_UNAVAILABLE, "libcupti.so", "CUPTI was not found");
        /* POSIX lets a data pointer hold a function's address, ISO C has no cast for it. */
#define CUPTI_LOAD(name, symbol, parameters)                                                                 \
    {                                                                                                        \
        void *at = dlsym(handle, symbol);                                                                    \
        if (!at)                                                                                             \
            return ps_error_set(err, PS_E_UNAVAILABLE, c->library, "CUPTI has no %s", symbol);               \
        memcpy(&c->name, &at, sizeof at);                                                                    \
    }
    CUPTI_CALLS(CUPTI_LOAD)
#undef CUPTI_LOAD
    const int code = c->version_of(&c->version);
    if (code != CUPTI_SUCCESS)
        return failed(c, code, "cuptiGetVersion", err);
    if (c->version < VERSION_FIRST || c->version >= VERSION_END ||
        (c->version > VERSION_LAST_OLD && c->version < VERSION_FIRST_NEW))
        return ps_error_set(
            err, PS_E_UNAVAILABLE, c->library,
            "the form of its records is not known (version %u, known are those of CUDA 12 and 13)",
            c->version);
    return PS_OK;
}

ps_status ps_cupti_open(const char *library, const char *home, ps_cupti **out, ps_error *err) {
    *out = NULL;
    ps_cupti *c = (ps_cupti *)calloc(1, sizeof *c);
    if (!c)
        return ps_error_set(err, PS_E_NOMEM, "CUPTI", "no memory");
    ps_status st = load(c, library, home, err);
    if (st == PS_OK)
        c->buffers = (uint8_t *)aligned_alloc(BUFFER_ALIGN, (size_t)N_BUFFERS * BUFFER_BYTES);
    if (st == PS_OK && !c->buffers)
        st = ps_error_set(err, PS_E_NOMEM, "CUPTI", "no memory for records");
    if (st == PS_OK) {
        pthread_mutex_lock(&lock);
        if (active)
            st = ps_error_set(err, PS_E_USAGE, "CUPTI", "is open already");
        else
            active = c;
        pthread_mutex_unlock(&lock);
    }
    if (st != PS_OK) {
        free(c->buffers);
        free(c);
        return st;
    }
    *out = c;
    return PS_OK;
}

void ps_cupti_close(ps_cupti *c) {
    if (!c)
        return;
    (void)ps_cupti_off(c, NULL);
    if (c->registered)
        (void)c->flush(FLUSH_FORCED);
    bool back = true;
    pthread_mutex_lock(&lock);
    active = NULL;
    for (uint32_t i = 0; i < N_BUFFERS; i++)
        back = back && !c->lent[i];
    pthread_mutex_unlock(&lock);
    if (back) /* what CUPTI still holds it may write to */
        free(c->buffers);
    free(c);
}

const char *ps_cupti_library(const ps_cupti *c) {
    return c->library;
}

uint32_t ps_cupti_version(const ps_cupti *c) {
    return c->version;
}

/* ---- recording ---- */
ps_status ps_cupti_on(ps_cupti *c, ps_error *err) {
    if (c->on)
        return PS_OK;
    if (!c->registered) {
        const int code = c->callbacks(on_request, on_complete);
        if (code != CUPTI_SUCCESS)
            return failed(c, code, "cuptiActivityRegisterCallbacks", err);
        c->registered = true;
    }
    for (uint32_t i = 0; i < N_KINDS; i++) {
        const int code = c->enable(kinds[i]);
        if (code == CUPTI_SUCCESS)
            continue;
        while (i-- > 0)
            (void)c->disable(kinds[i]);
        return failed(c, code, "cuptiActivityEnable", err);
    }
    c->on = true;
    return PS_OK;
}

ps_status ps_cupti_off(ps_cupti *c, ps_error *err) {
    if (!c->on)
        return PS_OK;
    int code = CUPTI_SUCCESS;
    for (uint32_t i = 0; i < N_KINDS; i++) {
        const int one = c->disable(kinds[i]);
        code = code == CUPTI_SUCCESS ? one : code;
    }
    c->on = c->open = false;
    return code == CUPTI_SUCCESS ? PS_OK : failed(c, code, "cuptiActivityDisable", err);
}

/* Records that CUPTI had no room for, since it was last asked. */
static void count_lost(ps_cupti *c) {
    size_t global = 0, own = 0;
    pthread_mutex_lock(&lock);
    void *context = c->context;
    pthread_mutex_unlock(&lock);
    if (c->dropped(NULL, 0, &global) != CUPTI_SUCCESS)
        global = 0;
    if (context && c->dropped(context, 0, &own) != CUPTI_SUCCESS)
        own = 0;
    pthread_mutex_lock(&lock);
    c->n_lost += global + own;
    pthread_mutex_unlock(&lock);
}

ps_status ps_cupti_begin(ps_cupti *c, ps_error *err) {
    if (!c->on)
        return ps_error_set(err, PS_E_USAGE, "CUPTI", "is not on");
    int code = c->flush(0); /* what was before */
    if (code != CUPTI_SUCCESS)
        return failed(c, code, "cuptiActivityFlushAll", err);
    count_lost(c);
    pthread_mutex_lock(&lock);
    c->n = c->n_kernels = c->n_copies = 0;
    c->n_lost = 0;
    c->starved = c->too_many = c->broken = false;
    pthread_mutex_unlock(&lock);
    code = c->timestamp(&c->begin_ns);
    if (code != CUPTI_SUCCESS)
        return failed(c, code, "cuptiGetTimestamp", err);
    c->open = true;
    return PS_OK;
}

static int by_start(const void *a, const void *b) {
    const span *x = (const span *)a, *y = (const span *)b;
    return x->start != y->start ? (x->start < y->start ? -1 : 1) : (x->end > y->end) - (x->end < y->end);
}

/* With the lock: are the records whole and of this while? */
static ps_status check(ps_cupti *c, uint64_t end_ns, uint32_t multiple, ps_error *err) {
    if (c->n_lost)
        return ps_error_set(err, PS_E_DATA, c->library, "CUPTI lost %llu records",
                            (unsigned long long)c->n_lost);
    if (c->broken)
        return ps_error_set(err, PS_E_DATA, c->library, "a buffer of records cannot be read to its end");
    if (c->starved || c->too_many)
        return ps_error_set(err, PS_E_DATA, c->library, "more records than there is room for");
    for (uint32_t i = 0; i < c->n; i++) {
        const span *s = &c->spans[i];
        if (s->start == 0 || s->end < s->start || s->start + SLACK_NS < c->begin_ns ||
            s->end > end_ns + SLACK_NS)
            return ps_error_set(err, PS_E_DATA, c->library,
                                "a record makes no sense: from %llu to %llu ns, taken from %llu to %llu",
                                (unsigned long long)s->start, (unsigned long long)s->end,
                                (unsigned long long)c->begin_ns, (unsigned long long)end_ns);
    }
    if (c->n == 0 || (multiple && (c->n_kernels == 0 || c->n_kernels % multiple != 0)))
        return ps_error_set(err, PS_E_DATA, c->library,
                            "%u records of kernels, %u of copies: some are missing", c->n_kernels,
                            c->n_copies);
    return PS_OK;
}

static void sum_up(ps_cupti *c, ps_cupti_sum *out) {
    qsort(c->spans, c->n, sizeof c->spans[0], by_start); /* streams bring theirs as they please */
    uint64_t busy = 0, until = c->spans[0].start;
    for (uint32_t i = 0; i < c->n; i++) {
        const uint64_t from = c->spans[i].start > until ? c->spans[i].start : until;
        if (c->spans[i].end > from) {
            busy += c->spans[i].end - from;
            until = c->spans[i].end;
        }
    }
    *out = (ps_cupti_sum){.n_kernels = c->n_kernels,
                          .n_copies = c->n_copies,
                          .busy_s = (double)busy * 1e-9,
                          .span_s = (double)(until - c->spans[0].start) * 1e-9};
}

ps_status ps_cupti_end(ps_cupti *c, uint32_t multiple, ps_cupti_sum *out, ps_error *err) {
    uint64_t end_ns = 0;
    if (!c->open)
        return ps_error_set(err, PS_E_USAGE, "CUPTI", "nothing was begun");
    c->open = false;
    int code = c->timestamp(&end_ns);
    if (code != CUPTI_SUCCESS)
        return failed(c, code, "cuptiGetTimestamp", err);
    ps_status st = PS_E_DATA;
    for (int i = 0; i < LATE_TRIES && st == PS_E_DATA; i++) {
        code = c->flush(i < LATE_TRIES / 2 ? 0 : FLUSH_FORCED);
        if (code != CUPTI_SUCCESS)
            return failed(c, code, "cuptiActivityFlushAll", err);
        count_lost(c);
        pthread_mutex_lock(&lock);
        st = check(c, end_ns, multiple, err);
        const bool late = st != PS_OK && !c->n_lost && !c->starved && !c->too_many && !c->broken;
        if (st == PS_OK)
            sum_up(c, out);
        pthread_mutex_unlock(&lock);
        if (st != PS_OK && !late)
            return st;
        const struct timespec pause = {0, 1000000};
        if (st != PS_OK)
            nanosleep(&pause, NULL);
    }
    return st;
}
