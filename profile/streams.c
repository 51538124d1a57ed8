/* Memory streams. */
#include "profile/streams.h"

#include <errno.h>
#include <hwloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK_BYTES = 1 << 16, LINE_BYTES = 64 };
#define MIB ((uint64_t)1 << 20)

/* A line comes whole whatever is read of it. Reading all its words kept so few lines on their way that a core got 8.3 GB/s where this
 * gets 15.5 (Sapphire Rapids in a virtual machine). */
uint64_t ps_stream_read(const uint8_t *data, uint64_t bytes) {
    const uint64_t *p = (const uint64_t *)(const void *)data;
    const uint64_t n = bytes / LINE_BYTES, step = LINE_BYTES / sizeof *p;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += p[i * step];
    return sum;
}

ps_status ps_streams_data(const ps_machine *machine, uint8_t **data, uint64_t *bytes, ps_error *err) {
    if (*data)
        return PS_OK;
    uint64_t n = 4 * machine->l3_bytes;
    if (n < 256 * MIB)
        n = 256 * MIB;
    if (n > machine->memory_free_bytes / 8)
        n = machine->memory_free_bytes / 8;
    n = (n + MIB - 1) / MIB * MIB;
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return ps_error_set(err, PS_E_NOMEM, "dram", "no memory for %llu bytes", (unsigned long long)n);
    (void)madvise(p, n,
                  MADV_HUGEPAGE); /* a ceiling: without the cost of address translation where possible */
    memset(p, 0x5a, n);
    *data = p;
    *bytes = n;
    return PS_OK;
}

typedef struct stream {
    _Alignas(128) _Atomic uint64_t bytes;
    ps_streams *all;
    pthread_t handle;
    uint64_t from;
    hwloc_bitmap_t cpus;
} stream;

struct ps_streams {
    const uint8_t *data;
    uint64_t bytes;
    hwloc_topology_t topology;
    _Atomic bool stop;
    _Atomic uint64_t sink;
    uint32_t n_started, n;
    stream *streams;
};

static void *stream_main(void *arg) {
    stream *me = arg;
    ps_streams *s = me->all;
    uint64_t at = me->from, sum = 0;
    hwloc_set_cpubind(s->topology, me->cpus, HWLOC_CPUBIND_THREAD);
    while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
        sum += ps_stream_read(s->data + at, CHUNK_BYTES);
        atomic_store_explicit(&me->bytes,
                              atomic_load_explicit(&me->bytes, memory_order_relaxed) + CHUNK_BYTES,
                              memory_order_relaxed);
        at += CHUNK_BYTES;
        if (at + CHUNK_BYTES > s->bytes)
            at = 0;
    }
    atomic_fetch_add(&s->sink, sum); /* so that the reads are not for nothing */
    return NULL;
}

ps_status ps_streams_start(const ps_machine *machine, uint32_t first, uint32_t n, const uint8_t *data,
                           uint64_t bytes, ps_streams **out, ps_error *err) {
    ps_status st = PS_OK;
    *out = NULL;
    ps_streams *s = calloc(1, sizeof *s);
    if (s)
        s->streams = aligned_alloc(128, (n ? n : 1) * sizeof *s->streams);
    if (!s || !s->streams) {
        free(s);
        return ps_error_set(err, PS_E_NOMEM, "streams", "no memory for %u streams", n);
    }
    memset(s->streams, 0, (n ? n : 1) * sizeof *s->streams);
    s->data = data;
    s->bytes = bytes;
    s->topology = machine->hwloc;
    s->n = n;
    for (uint32_t i = 0; i < n; i++) {
        stream *me = &s->streams[i];
        me->all = s;
        me->from = bytes / n * i / CHUNK_BYTES * CHUNK_BYTES;
        me->cpus = hwloc_bitmap_alloc();
        if (!me->cpus) {
            st = ps_error_set(err, PS_E_NOMEM, "streams", "no memory for %u streams", n);
            break;
        }
        hwloc_bitmap_only(me->cpus, machine->cpus[first + i].os_index);
        const int e = pthread_create(&me->handle, NULL, stream_main, me);
        if (e != 0) {
            st = ps_error_errno(err, PS_E_OS, "streams", e, "cannot start stream %u of %u", i + 1, n);
            break;
        }
        s->n_started++;
    }
    if (st != PS_OK)
        ps_streams_stop(s);
    else
        *out = s;
    return st;
}

uint64_t ps_streams_bytes(const ps_streams *s) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->n; i++)
        sum += atomic_load_explicit(&s->streams[i].bytes, memory_order_relaxed);
    return sum;
}

void ps_streams_stop(ps_streams *s) {
    if (!s)
        return;
    atomic_store(&s->stop, true);
    for (uint32_t i = 0; i < s->n_started; i++)
        pthread_join(s->streams[i].handle, NULL);
    for (uint32_t i = 0; i < s->n; i++)
        hwloc_bitmap_free(s->streams[i].cpus);
    free(s->streams);
    free(s);
}
