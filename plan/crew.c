/* Threads that each take the next task: see crew.h. */
#include "plan/crew.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct crew {
    atomic_uint next;
    uint32_t n_tasks;
    ps_crew_task task;
    void *ctx;
} crew;

typedef struct member {
    crew *of;
    uint32_t worker;
    pthread_t thread;
} member;

static void *work(void *arg) {
    member *m = arg;
    for (uint32_t i; (i = atomic_fetch_add(&m->of->next, 1)) < m->of->n_tasks;)
        m->of->task(m->of->ctx, m->worker, i);
    return NULL;
}

uint32_t ps_crew_size(uint32_t n_threads, uint32_t n_tasks) {
    uint32_t n = n_threads < n_tasks ? n_threads : n_tasks;
    return n == 0 ? 1 : n > PS_CREW_MOST ? PS_CREW_MOST : n;
}

void ps_crew_run(uint32_t n_threads, uint32_t n_tasks, ps_crew_task task, void *ctx) {
    const uint32_t n = ps_crew_size(n_threads, n_tasks);
    crew c = {.n_tasks = n_tasks, .task = task, .ctx = ctx};
    member members[PS_CREW_MOST];
    uint32_t started = 1;
    members[0] = (member){.of = &c};
    for (bool ok = true; started < n && ok; started += ok) {
        members[started] = (member){.of = &c, .worker = started};
        ok = pthread_create(&members[started].thread, NULL, work, &members[started]) == 0;
    }
    work(&members[0]);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(members[i].thread, NULL);
}
