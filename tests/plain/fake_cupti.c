/* A CUPTI that says what the test wants: libcupti.so in small, for test_cupti. With FAKE_OLD a call is missing. Records are of the
 * form of CUDA 13.0, larger than what is read of them. */
#include "fake_cupti.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct record {
    uint32_t kind;
    uint32_t about[3];
    uint64_t start, end;
    uint8_t more[112]; /* kernels of CUDA 13.0 have 224 bytes, copies fewer: any will do */
} record;
typedef void request_call(uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void complete_call(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid);

fake_cupti_state fake_cupti;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static request_call *request;
static complete_call *complete;
static record *waiting;
static size_t n_waiting, room, n_put;

fake_cupti_put_call fake_cupti_put;
void fake_cupti_put(uint32_t kind, uint64_t start_ns, uint64_t end_ns) {
    pthread_mutex_lock(&lock);
    if (kind < 64 && fake_cupti.on[kind] &&
        !(fake_cupti.lose_every && ++n_put % fake_cupti.lose_every == 0)) {
        if (n_waiting == room) {
            room = room ? 2 * room : 64;
            waiting = (record *)realloc(waiting, room * sizeof *waiting);
            if (!waiting)
                abort();
        }
        memset(&waiting[n_waiting], 0xa5, sizeof *waiting);
        waiting[n_waiting].kind = kind;
        waiting[n_waiting].start = fake_cupti.senseless ? 12345 : start_ns;
        waiting[n_waiting].end = end_ns;
        n_waiting++;
    }
    pthread_mutex_unlock(&lock);
}

static void *deliver(void *arg) {
    pthread_mutex_lock(&lock);
    record *all = waiting;
    size_t n = n_waiting, done = 0;
    waiting = NULL;
    n_waiting = room = 0;
    pthread_mutex_unlock(&lock);
    if (n) {
        fake_cupti.n_dropped += fake_cupti.drops;
        fake_cupti.drops = 0;
    }
    while (done < n && request && complete) {
        uint8_t *buffer = NULL;
        size_t bytes = 0, most = 0;
        request(&buffer, &bytes, &most);
        if (!buffer || bytes < sizeof(record)) {
            fake_cupti.n_refused_buffers++;
            break;
        }
        size_t here = bytes / sizeof(record) < n - done ? bytes / sizeof(record) : n - done;
        /* Later ones first: streams come in any order. */
        for (size_t i = 0; i < here; i++)
            memcpy(buffer + i * sizeof(record), &all[n - 1 - done - i], sizeof(record));
        done += here;
        complete(&fake_cupti, 7, buffer, bytes, here * sizeof(record));
    }
    free(all);
    return arg;
}

int cuptiGetVersion(uint32_t *out);
int cuptiGetVersion(uint32_t *out) {
    *out = fake_cupti.version;
    return fake_cupti.version_code;
}
int cuptiGetTimestamp(uint64_t *out);
int cuptiGetTimestamp(uint64_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *out = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return fake_cupti.timestamp_code;
}
int cuptiActivityRegisterCallbacks(request_call *on_request, complete_call *on_complete);
int cuptiActivityRegisterCallbacks(request_call *on_request, complete_call *on_complete) {
    request = on_request;
    complete = on_complete;
    return fake_cupti.callbacks_code;
}
static int toggle(uint32_t kind, bool on, int code) {
    if (code != 0 && (fake_cupti.enable_fails_for == 0 || fake_cupti.enable_fails_for == kind || !on))
        return code;
    fake_cupti.on[kind % 64] = on;
    fake_cupti.n_toggles++;
    return 0;
}
int cuptiActivityEnable(uint32_t kind);
int cuptiActivityEnable(uint32_t kind) {
    return toggle(kind, true, fake_cupti.enable_code);
}
int cuptiActivityDisable(uint32_t kind);
int cuptiActivityDisable(uint32_t kind) {
    return toggle(kind, false, fake_cupti.disable_code);
}
int cuptiActivityFlushAll(uint32_t flags);
int cuptiActivityFlushAll(uint32_t flags) {
    if (fake_cupti.flush_code != 0)
        return fake_cupti.flush_code;
    if (fake_cupti.hold && flags == 0)
        return 0;
    pthread_t thread;
    if (fake_cupti.by_thread && pthread_create(&thread, NULL, deliver, NULL) == 0)
        pthread_join(thread, NULL);
    else
        deliver(NULL);
    return 0;
}
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **out);
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **out) {
    uint8_t *next = *out ? (uint8_t *)*out + sizeof(record) : buffer;
    if (fake_cupti.broken)
        next = buffer + valid - 8;
    else if (fake_cupti.endless)
        next = buffer;
    else if (next + sizeof(record) > buffer + valid)
        return 12;
    *out = next;
    return 0;
}
#ifndef FAKE_OLD
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *out);
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *out) {
    (void)stream;
    *out = context ? fake_cupti.n_dropped : 0;
    if (context)
        fake_cupti.n_dropped = 0;
    return 0;
}
#endif
