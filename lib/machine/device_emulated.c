/* The emulated device: VRAM is address space that is opened and closed page by page, so that a touch outside of what is mapped
 * faults; each stream is a lane, a thread that carries out what is enqueued in order.
 *
 * A lane counts what was enqueued on it and what is done. To record an event is to note lane and count; to wait for it is to
 * wait until that lane has done so much. A graph is a list of work per lane, its counts relative to the launch; what was
 * captured on the copy streams runs on two lanes of its own, since a graph's branches are in no order with those streams. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#include "core/clock.h"
#include "machine/device_driver.h"

enum {
    N_LANES = 5, /* the streams, then the branches of graphs */
    LOOKS = 64,  /* of an await before it sleeps */
    NAP_FIRST_NS = 10000,
    NAP_LAST_NS = 200000,
    MOST_SPILLED = 16, /* stretches */
};
static const uint64_t default_bytes = (uint64_t)8 << 30;

typedef enum work_kind {
    WORK_COPY,
    WORK_CALL,
    WORK_WAIT,
    WORK_TIME,
    WORK_SIGNAL,
    WORK_AWAIT,
    WORK_HOLD,
    WORK_GRAPH
} work_kind;

typedef struct work work;
typedef struct graph graph;
struct work {
    work *next;
    work_kind kind;
    union {
        struct {
            uint8_t *dst;
            const uint8_t *src;
            uint64_t dst_pitch, src_pitch, row_bytes, rows;
        } copy;
        void (*call)(void *payload);
        struct {
            uint32_t lane;
            uint64_t count; /* in a graph: since its launch */
        } wait;
        struct {
            uint32_t event;
            uint64_t count; /* in a graph: of its lane, since the launch, once this is done */
        } time;
        struct {
            const uint64_t *base;
            uint64_t add;
        } flag;
        struct {
            uint64_t *clock, after_ns;
        } hold;
        struct {
            const graph *graph;
            uint64_t start[N_LANES]; /* what each lane's count was at the launch */
        } launch;
    };
    _Alignas(max_align_t) uint8_t payload[];
};

typedef struct work_list {
    work *first, **end;
    uint64_t n;
} work_list;

struct graph {
    ps_device_graph graph;
    work_list lists[N_LANES];
};

typedef struct emulated emulated;
typedef struct lane {
    emulated *device;
    uint32_t index;
    bool started;
    pthread_t thread;
    pthread_cond_t filled;
    work_list queue;
    uint64_t enqueued, done;
} lane;

typedef struct event {
    uint32_t lane;
    uint64_t count;
    uint64_t time_ns;
} event;

struct emulated {
    ps_device device;
    pthread_mutex_t lock; /* of the lanes and events */
    pthread_cond_t moved; /* a lane has done something and somebody waits */
    uint32_t n_waiting;
    bool quit;
    lane lanes[N_LANES];
    event events[PS_DEVICE_EVENTS];
    graph *capture; /* NULL: none */
    _Atomic uint64_t mapped;
    struct {
        const uint8_t *from, *to; /* NULL: free */
    } spilled[MOST_SPILLED];      /* under the lock */
};

static bool refuse(ps_device *d, const char *call, ps_status as, ps_error *err) {
    if (!ps_device_fault(d, call))
        return false;
    ps_error_set(err, as, d->info.name, "%s was refused", call);
    return true;
}

/* ---- lanes ---- */
static void list_put(work_list *list, work *w) {
    if (!list->first)
        list->end = &list->first;
    w->next = NULL;
    *list->end = w;
    list->end = &w->next;
    list->n++;
}

static void list_free(work_list *list) {
    while (list->first) {
        work *w = list->first;
        list->first = w->next;
        free(w);
    }
    list->n = 0;
}

/* Until the CPU's flag has come so far or the device is poisoned. The host only stores to it, so this looks again and again:
 * a few times at once, then ever more seldom. */
static void await_flag(const ps_device *d, uint64_t value) {
    struct timespec nap = {0, NAP_FIRST_NS};
    for (int i = 0; __atomic_load_n(&d->flags->cpu, __ATOMIC_ACQUIRE) < value && !ps_device_poisoned(d);
         i++) {
        if (i < LOOKS)
            continue;
        nanosleep(&nap, NULL);
        if (nap.tv_nsec < NAP_LAST_NS)
            nap.tv_nsec += nap.tv_nsec / 8;
    }
}

/* Until after_ns past the time at *clock; 0: write that time. Poison ends it. */
static void hold(const ps_device *d, uint64_t *clock, uint64_t after_ns) {
    const uint64_t now = ps_clock_ns();
    if (after_ns == 0) {
        *clock = now;
        return;
    }
    const uint64_t until = *clock < now ? *clock + after_ns : now + after_ns;
    for (uint64_t t = now; t < until && !ps_device_poisoned(d); t = ps_clock_ns()) {
        const uint64_t left = until - t;
        const struct timespec nap = {0, left < NAP_LAST_NS ? (long)left : NAP_LAST_NS};
        nanosleep(&nap, NULL);
    }
}

/* Is some of what a copy touches VRAM that the driver keeps in system memory? */
static bool is_spilled(emulated *e, const uint8_t *at, uint64_t bytes) {
    bool yes = false;
    if (e->device.options.emulated_spill_bytes == 0)
        return false;
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < MOST_SPILLED; i++)
        yes |= e->spilled[i].from != NULL && at < e->spilled[i].to && e->spilled[i].from < at + bytes;
    pthread_mutex_unlock(&e->lock);
    return yes;
}

static void copy_rows(emulated *e, const work *w) {
    for (uint64_t r = 0; r < w->copy.rows; r++)
        memmove(w->copy.dst + r * w->copy.dst_pitch, w->copy.src + r * w->copy.src_pitch, w->copy.row_bytes);
    const uint64_t last = w->copy.rows - 1, ns = w->copy.rows * w->copy.row_bytes;
    if (is_spilled(e, w->copy.dst, last * w->copy.dst_pitch + w->copy.row_bytes) ||
        is_spilled(e, w->copy.src, last * w->copy.src_pitch + w->copy.row_bytes))
        nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
}

/* Carry one thing out; start: counts at the launch of the graph that it is part of, NULL outside of graphs. */
static void carry_out(emulated *e, work *w, const uint64_t *start) {
    switch (w->kind) {
    case WORK_COPY:
        copy_rows(e, w);
        break;
    case WORK_CALL:
        w->call(w->payload);
        break;
    case WORK_WAIT: {
        const lane *other = &e->lanes[w->wait.lane];
        const uint64_t count = w->wait.count + (start ? start[w->wait.lane] : 0);
        pthread_mutex_lock(&e->lock);
        e->n_waiting++;
        while (other->done < count)
            pthread_cond_wait(&e->moved, &e->lock);
        e->n_waiting--;
        pthread_mutex_unlock(&e->lock);
        break;
    }
    case WORK_TIME:
        pthread_mutex_lock(&e->lock);
        e->events[w->time.event].time_ns = ps_clock_ns();
        pthread_mutex_unlock(&e->lock);
        break;
    case WORK_SIGNAL:
        __atomic_store_n(&e->device.flags->gpu, __atomic_load_n(w->flag.base, __ATOMIC_ACQUIRE) + w->flag.add,
                         __ATOMIC_RELEASE);
        break;
    case WORK_AWAIT:
        await_flag(&e->device, __atomic_load_n(w->flag.base, __ATOMIC_ACQUIRE) + w->flag.add);
        break;
    case WORK_HOLD:
        hold(&e->device, w->hold.clock, w->hold.after_ns);
        break;
    case WORK_GRAPH:
        break;
    }
}

static void lane_moved(emulated *e, lane *l) {
    pthread_mutex_lock(&e->lock);
    l->done++;
    if (e->n_waiting > 0)
        pthread_cond_broadcast(&e->moved);
    pthread_mutex_unlock(&e->lock);
}

static void *lane_main(void *arg) {
    lane *l = (lane *)arg;
    emulated *e = l->device;
    prctl(PR_SET_NAME, "ps-lane");
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns: naps are short */
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (!l->queue.first && !e->quit)
            pthread_cond_wait(&l->filled, &e->lock);
        work *w = l->queue.first;
        if (w)
            l->queue.first = w->next;
        pthread_mutex_unlock(&e->lock);
        if (!w)
            return NULL;
        if (w->kind == WORK_GRAPH) {
            for (work *part = w->launch.graph->lists[l->index].first; part;) {
                work *next = part->next; /* once all is done the graph may be freed */
                carry_out(e, part, w->launch.start);
                lane_moved(e, l);
                part = next;
            }
        } else {
            carry_out(e, w, NULL);
            lane_moved(e, l);
        }
        free(w);
    }
}

/* ---- enqueueing ---- */
static ps_status new_work(ps_device *d, const char *call, work_kind kind, uint64_t payload_bytes, work **out,
                          ps_error *err) {
    if (refuse(d, call, PS_E_OS, err))
        return PS_E_OS;
    work *w = payload_bytes > SIZE_MAX / 2 ? NULL : (work *)malloc(sizeof *w + payload_bytes);
    if (!w)
        return ps_error_set(err, PS_E_NOMEM, d->info.name, "no memory to enqueue work");
    memset(w, 0, sizeof *w);
    w->kind = kind;
    *out = w;
    return PS_OK;
}

/* What a stream's work runs on: itself, or in a capture the branch of a graph. */
static uint32_t lane_of(const emulated *e, ps_stream stream) {
    return e->capture && stream != PS_STREAM_COMPUTE ? (uint32_t)stream + PS_STREAM_COUNT - 1
                                                     : (uint32_t)stream;
}

/* Everything that is on the stream, or in its part of the capture, by now. */
static uint64_t count_of(const emulated *e, ps_stream stream) {
    const uint32_t index = lane_of(e, stream);
    return e->capture ? e->capture->lists[index].n : e->lanes[index].enqueued;
}

/* Hand work over to a stream, or to the capture. */
static void put(emulated *e, ps_stream stream, work *w) {
    const uint32_t index = lane_of(e, stream);
    if (e->capture) {
        list_put(&e->capture->lists[index], w);
        return;
    }
    lane *l = &e->lanes[index];
    pthread_mutex_lock(&e->lock);
    list_put(&l->queue, w);
    l->enqueued++;
    pthread_cond_signal(&l->filled);
    pthread_mutex_unlock(&e->lock);
}

static ps_status emulated_copy(ps_device *d, ps_stream stream, void *dst, uint64_t dst_pitch, const void *src,
                               uint64_t src_pitch, uint64_t row_bytes, uint64_t rows, ps_error *err) {
    work *w = NULL;
    const ps_status st = new_work(d, "copy", WORK_COPY, 0, &w, err);
    if (st != PS_OK)
        return st;
    w->copy.dst = (uint8_t *)dst;
    w->copy.src = (const uint8_t *)src;
    w->copy.dst_pitch = dst_pitch;
    w->copy.src_pitch = src_pitch;
    w->copy.row_bytes = row_bytes;
    w->copy.rows = rows;
    put((emulated *)d, stream, w);
    return PS_OK;
}

static ps_status emulated_enqueue(ps_device *d, ps_stream stream, void (*fn)(void *payload),
                                  const void *payload, uint64_t bytes, ps_error *err) {
    work *w = NULL;
    const ps_status st = new_work(d, "enqueue", WORK_CALL, bytes, &w, err);
    if (st != PS_OK)
        return st;
    w->call = fn;
    if (bytes > 0)
        memcpy(w->payload, payload, bytes);
    put((emulated *)d, stream, w);
    return PS_OK;
}

static ps_status emulated_record(ps_device *d, ps_stream stream, uint32_t index, bool timed, ps_error *err) {
    emulated *e = (emulated *)d;
    if (timed) {
        work *w = NULL;
        const ps_status st = new_work(d, "time", WORK_TIME, 0, &w, err);
        if (st != PS_OK)
            return st;
        w->time.event = index;
        w->time.count = count_of(e, stream) + 1;
        put(e, stream, w);
        if (e->capture) { /* passes with the launches to come: until then there is nothing to wait for */
            e->events[index] = (event){0};
            return PS_OK;
        }
    } else if (refuse(d, "record", PS_E_OS, err)) {
        return PS_E_OS;
    }
    e->events[index].lane = lane_of(e, stream);
    e->events[index].count = count_of(e, stream);
    return PS_OK;
}

static ps_status emulated_wait(ps_device *d, ps_stream stream, uint32_t index, ps_error *err) {
    emulated *e = (emulated *)d;
    work *w = NULL;
    const ps_status st = new_work(d, "wait", WORK_WAIT, 0, &w, err);
    if (st != PS_OK)
        return st;
    w->wait.lane = e->events[index].lane;
    w->wait.count = e->events[index].count;
    put(e, stream, w);
    return PS_OK;
}

static bool has_passed(const emulated *e, const event *ev) {
    return e->lanes[ev->lane].done >= ev->count;
}

static ps_status emulated_passed(ps_device *d, uint32_t index, bool *out, ps_error *err) {
    emulated *e = (emulated *)d;
    if (refuse(d, "passed", PS_E_OS, err))
        return PS_E_OS;
    pthread_mutex_lock(&e->lock);
    *out = has_passed(e, &e->events[index]);
    pthread_mutex_unlock(&e->lock);
    return PS_OK;
}

static ps_status emulated_elapsed(ps_device *d, uint32_t from, uint32_t to, double *out_s, ps_error *err) {
    emulated *e = (emulated *)d;
    if (refuse(d, "elapsed", PS_E_OS, err))
        return PS_E_OS;
    pthread_mutex_lock(&e->lock);
    const event a = e->events[from], b = e->events[to];
    const bool passed = has_passed(e, &a) && has_passed(e, &b) && a.time_ns != 0 && b.time_ns != 0;
    pthread_mutex_unlock(&e->lock);
    if (!passed)
        return ps_error_set(err, PS_E_USAGE, d->info.name, "an event has not passed yet");
    *out_s = b.time_ns >= a.time_ns ? (double)(b.time_ns - a.time_ns) * 1e-9
                                    : -(double)(a.time_ns - b.time_ns) * 1e-9;
    return PS_OK;
}

static ps_status emulated_sync(ps_device *d, ps_error *err) {
    emulated *e = (emulated *)d;
    if (refuse(d, "sync", PS_E_OS, err))
        return PS_E_OS;
    pthread_mutex_lock(&e->lock);
    e->n_waiting++;
    for (uint32_t l = 0; l < N_LANES; l++)
        while (e->lanes[l].done < e->lanes[l].enqueued)
            pthread_cond_wait(&e->moved, &e->lock);
    e->n_waiting--;
    pthread_mutex_unlock(&e->lock);
    return PS_OK;
}

static ps_status emulated_check(ps_device *d, ps_error *err) {
    return refuse(d, "check", PS_E_OS, err) ? PS_E_OS : PS_OK;
}

static ps_status put_flag(ps_device *d, ps_stream stream, const char *call, work_kind kind,
                          const uint64_t *base, uint64_t add, ps_error *err) {
    work *w = NULL;
    const ps_status st = new_work(d, call, kind, 0, &w, err);
    if (st != PS_OK)
        return st;
    w->flag.base = base;
    w->flag.add = add;
    put((emulated *)d, stream, w);
    return PS_OK;
}

static ps_status emulated_signal(ps_device *d, ps_stream stream, const uint64_t *base, uint64_t add,
                                 ps_error *err) {
    return put_flag(d, stream, "signal", WORK_SIGNAL, base, add, err);
}

static ps_status emulated_await(ps_device *d, ps_stream stream, const uint64_t *base, uint64_t add,
                                ps_error *err) {
    return put_flag(d, stream, "await", WORK_AWAIT, base, add, err);
}

static ps_status emulated_hold(ps_device *d, ps_stream stream, uint64_t *clock, uint64_t after_ns,
                               ps_error *err) {
    work *w = NULL;
    const ps_status st = new_work(d, "hold", WORK_HOLD, 0, &w, err);
    if (st != PS_OK)
        return st;
    w->hold.clock = clock;
    w->hold.after_ns = after_ns;
    put((emulated *)d, stream, w);
    return PS_OK;
}

/* ---- graphs ---- */
static void graph_drop(graph *g) {
    for (uint32_t l = 0; l < N_LANES; l++)
        list_free(&g->lists[l]);
    free(g);
}

static ps_status emulated_capture_begin(ps_device *d, ps_error *err) {
    if (refuse(d, "capture_begin", PS_E_OS, err))
        return PS_E_OS;
    graph *g = (graph *)calloc(1, sizeof *g);
    if (!g)
        return ps_error_set(err, PS_E_NOMEM, d->info.name, "no memory for a graph");
    ((emulated *)d)->capture = g;
    return PS_OK;
}

static void emulated_capture_abort(ps_device *d) {
    emulated *e = (emulated *)d;
    graph_drop(e->capture);
    e->capture = NULL;
}

static ps_status emulated_capture_end(ps_device *d, ps_device_graph **out, ps_error *err) {
    emulated *e = (emulated *)d;
    if (refuse(d, "capture_end", PS_E_OS, err)) {
        emulated_capture_abort(d);
        return PS_E_OS;
    }
    *out = &e->capture->graph;
    e->capture = NULL;
    return PS_OK;
}

static ps_status emulated_graph_launch(ps_device *d, ps_device_graph *opaque, ps_error *err) {
    emulated *e = (emulated *)d;
    const graph *g = (const graph *)opaque;
    work *parts[N_LANES] = {NULL};
    ps_status st = PS_OK;
    for (uint32_t l = 0; l < N_LANES && st == PS_OK; l++)
        if (g->lists[l].n > 0)
            st = new_work(d, "graph_launch", WORK_GRAPH, 0, &parts[l], err);
    if (st != PS_OK) {
        for (uint32_t l = 0; l < N_LANES; l++)
            free(parts[l]);
        return st;
    }
    pthread_mutex_lock(&e->lock);
    for (uint32_t l = 0; l < N_LANES; l++) {
        if (!parts[l])
            continue;
        parts[l]->launch.graph = g;
        for (uint32_t k = 0; k < N_LANES; k++)
            parts[l]->launch.start[k] = e->lanes[k].enqueued;
    }
    for (uint32_t l = 0; l < N_LANES; l++) {
        if (!parts[l])
            continue;
        for (const work *w = g->lists[l].first; w; w = w->next)
            if (w->kind == WORK_TIME) {
                e->events[w->time.event].lane = l;
                e->events[w->time.event].count = e->lanes[l].enqueued + w->time.count;
            }
        list_put(&e->lanes[l].queue, parts[l]);
        e->lanes[l].enqueued += g->lists[l].n;
        pthread_cond_signal(&e->lanes[l].filled);
    }
    pthread_mutex_unlock(&e->lock);
    return PS_OK;
}

static void emulated_graph_free(ps_device *d, ps_device_graph *opaque) {
    (void)d;
    graph_drop((graph *)opaque);
}

/* ---- memory ---- */
static ps_status emulated_reserve(ps_device *d, uint64_t bytes, uint8_t **out_base, ps_error *err) {
    if (refuse(d, "vram_reserve", PS_E_NOMEM, err))
        return PS_E_NOMEM;
    void *at = MAP_FAILED;
    if (bytes <= SIZE_MAX)
        at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return ps_error_set(err, PS_E_NOMEM, d->info.name, "cannot reserve %.0f MiB of addresses",
                            (double)bytes / 0x1p20);
    *out_base = (uint8_t *)at;
    return PS_OK;
}

static void emulated_unreserve(ps_device *d, uint8_t *base, uint64_t bytes) {
    (void)d;
    munmap(base, bytes);
}

/* What other processes take, in so far as it can be: VRAM that we have is ours. */
static uint64_t others(const ps_device *d) {
    if (d->options.emulated_others == NULL)
        return 0;
    const uint64_t own = atomic_load(&((const emulated *)d)->mapped) + d->options.emulated_base_bytes;
    const uint64_t bytes = d->options.emulated_others(d->options.emulated_others_ctx);
    return bytes < d->info.vram_bytes - own ? bytes : d->info.vram_bytes - own;
}

static ps_status emulated_map(ps_device *d, uint8_t *at, uint64_t bytes, ps_error *err) {
    emulated *e = (emulated *)d;
    const uint64_t used = atomic_load(&e->mapped) + d->options.emulated_base_bytes + others(d);
    if (refuse(d, "vram_resize", PS_E_NOMEM, err))
        return PS_E_NOMEM;
    if (bytes > d->info.vram_bytes - used || mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0)
        return ps_error_set(err, PS_E_NOMEM, d->info.name, "cannot map %.0f MiB of VRAM beside %.0f MiB",
                            (double)bytes / 0x1p20, (double)used / 0x1p20);
    const uint64_t before = atomic_fetch_add(&e->mapped, bytes), most = d->options.emulated_spill_bytes;
    if (most == 0 || before + bytes <= most)
        return PS_OK;
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < MOST_SPILLED; i++)
        if (e->spilled[i].from == NULL) {
            e->spilled[i].from = at + (before < most ? most - before : 0);
            e->spilled[i].to = at + bytes;
            break;
        }
    pthread_mutex_unlock(&e->lock);
    return PS_OK;
}

static ps_status emulated_unmap(ps_device *d, uint8_t *at, uint64_t bytes, bool ask, uint64_t *out_left,
                                ps_error *err) {
    emulated *e = (emulated *)d;
    *out_left = bytes;
    if (ask && refuse(d, "vram_resize", PS_E_OS, err))
        return PS_E_OS;
    if (madvise(at, bytes, MADV_DONTNEED) != 0 || mprotect(at, bytes, PROT_NONE) != 0)
        return ps_error_errno(err, PS_E_OS, d->info.name, errno, "cannot release VRAM");
    atomic_fetch_sub(&e->mapped, bytes);
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < MOST_SPILLED; i++)
        if (e->spilled[i].from != NULL && e->spilled[i].to > at && e->spilled[i].from < at + bytes) {
            e->spilled[i].to = at; /* a range is released from its end */
            if (e->spilled[i].from >= at)
                e->spilled[i].from = NULL;
        }
    pthread_mutex_unlock(&e->lock);
    *out_left = 0;
    return PS_OK;
}

static ps_status emulated_host_alloc(ps_device *d, uint64_t bytes, void **out, uint8_t **out_device,
                                     ps_error *err) {
    if (refuse(d, "host_alloc", PS_E_NOMEM, err))
        return PS_E_NOMEM;
    void *at = MAP_FAILED;
    if (bytes <= SIZE_MAX)
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return ps_error_set(err, PS_E_NOMEM, d->info.name, "no %.0f MiB of host memory",
                            (double)bytes / 0x1p20);
    *out = at;
    *out_device = (uint8_t *)at;
    return PS_OK;
}

static void emulated_host_free(ps_device *d, void *host, uint64_t bytes) {
    (void)d;
    munmap(host, bytes);
}

static ps_status emulated_host_register(ps_device *d, void *host, uint64_t bytes, uint8_t **out_device,
                                        ps_error *err) {
    (void)bytes;
    if (refuse(d, "host_register", PS_E_UNSUPPORTED, err))
        return PS_E_UNSUPPORTED;
    *out_device = (uint8_t *)host;
    return PS_OK;
}

static void emulated_host_unregister(ps_device *d, void *host) {
    (void)d;
    (void)host;
}

static ps_status emulated_vram_used(ps_device *d, uint64_t *out_bytes, ps_meter *out_how, ps_error *err) {
    if (refuse(d, "vram_used", PS_E_UNAVAILABLE, err))
        return PS_E_UNAVAILABLE;
    *out_bytes = d->options.emulated_base_bytes + atomic_load(&((emulated *)d)->mapped);
    *out_how = PS_METER_EMULATED;
    return PS_OK;
}

static ps_status emulated_vram_all(ps_device *d, uint64_t *out_used, uint64_t *out_total, ps_error *err) {
    if (refuse(d, "vram_all", PS_E_UNAVAILABLE, err))
        return PS_E_UNAVAILABLE;
    *out_used = d->options.emulated_base_bytes + atomic_load(&((emulated *)d)->mapped) + others(d);
    *out_total = d->info.vram_bytes;
    return PS_OK;
}

/* ---- life ---- */
static void *emulated_stream(const ps_device *d, ps_stream stream) {
    (void)d;
    (void)stream;
    return NULL;
}

static void emulated_close(ps_device *d) {
    emulated *e = (emulated *)d;
    ps_device_poison(d); /* an await never ends by itself */
    pthread_mutex_lock(&e->lock);
    e->quit = true;
    for (uint32_t l = 0; l < N_LANES; l++)
        pthread_cond_signal(&e->lanes[l].filled);
    pthread_mutex_unlock(&e->lock);
    for (uint32_t l = 0; l < N_LANES; l++)
        if (e->lanes[l].started)
            pthread_join(e->lanes[l].thread, NULL);
    for (uint32_t l = 0; l < N_LANES; l++)
        pthread_cond_destroy(&e->lanes[l].filled);
    pthread_cond_destroy(&e->moved);
    pthread_mutex_destroy(&e->lock);
    free(d->flags);
    free(e);
}

static const ps_device_driver driver = {
    .close = emulated_close,
    .stream = emulated_stream,
    .reserve = emulated_reserve,
    .unreserve = emulated_unreserve,
    .map = emulated_map,
    .unmap = emulated_unmap,
    .host_alloc = emulated_host_alloc,
    .host_free = emulated_host_free,
    .host_register = emulated_host_register,
    .host_unregister = emulated_host_unregister,
    .copy = emulated_copy,
    .enqueue = emulated_enqueue,
    .record = emulated_record,
    .wait = emulated_wait,
    .passed = emulated_passed,
    .elapsed = emulated_elapsed,
    .sync = emulated_sync,
    .check = emulated_check,
    .signal = emulated_signal,
    .await = emulated_await,
    .hold = emulated_hold,
    .capture_begin = emulated_capture_begin,
    .capture_end = emulated_capture_end,
    .capture_abort = emulated_capture_abort,
    .graph_launch = emulated_graph_launch,
    .graph_free = emulated_graph_free,
    .vram_used = emulated_vram_used,
    .vram_all = emulated_vram_all,
};

ps_status ps_device_emulated_open(const ps_device_options *options, ps_device **out, ps_error *err) {
    const uint64_t bytes = options->emulated_bytes ? options->emulated_bytes : default_bytes;
    if (options->emulated_base_bytes > bytes)
        return ps_error_set(err, PS_E_USAGE, "emulated", "its context takes more than its VRAM");
    emulated *e = (emulated *)calloc(1, sizeof *e);
    if (!e)
        return ps_error_set(err, PS_E_NOMEM, "emulated", "no memory for a device");
    ps_device *d = &e->device;
    d->driver = &driver;
    d->options = *options;
    snprintf(d->info.name, sizeof d->info.name, "emulated");
    snprintf(d->info.uuid, sizeof d->info.uuid, "emulated");
    d->info.n_multiprocessors = 1;
    d->info.vram_bytes = bytes;
    d->info.emulated = true;
    d->info.integrated = options->emulated_integrated;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->moved, NULL);
    for (uint32_t l = 0; l < N_LANES; l++) {
        e->lanes[l].device = e;
        e->lanes[l].index = l;
        pthread_cond_init(&e->lanes[l].filled, NULL);
    }
    ps_status st = PS_OK;
    d->flags = (ps_device_flags *)aligned_alloc(128, sizeof *d->flags);
    if (!d->flags)
        st = ps_error_set(err, PS_E_NOMEM, "emulated", "no memory for its flags");
    else
        memset(d->flags, 0, sizeof *d->flags);
    /* Signals are for the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (uint32_t l = 0; l < N_LANES && st == PS_OK; l++) {
        if (refuse(d, "open", PS_E_OS, err)) {
            st = PS_E_OS;
            break;
        }
        const int rc = pthread_create(&e->lanes[l].thread, NULL, lane_main, &e->lanes[l]);
        if (rc != 0)
            st = ps_error_errno(err, PS_E_OS, "emulated", rc, "cannot start a lane");
        else
            e->lanes[l].started = true;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (st != PS_OK) {
        if (d->flags)
            emulated_close(d);
        else
            free(e);
        return st;
    }
    *out = d;
    return PS_OK;
}
