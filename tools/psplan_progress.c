/* psplan's progress line: the planner tells how far it is, and a thread draws that once it has taken a second, on a terminal alone. */
#include <errno.h>
#include <time.h>

#include "psplan.h"

enum { FIRST_MS = 1000, REDRAW_MS = 200 };

static struct timespec after_ms(long ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

static void *draw(void *arg) {
    psplan_progress *p = arg;
    struct timespec next = after_ms(FIRST_MS);
    pthread_mutex_lock(&p->lock);
    while (!p->ended) {
        if (pthread_cond_timedwait(&p->wake, &p->lock, &next) != ETIMEDOUT || p->ended)
            continue;
        ps_progress_update(&p->line, p->done_frac, p->label);
        next = after_ms(REDRAW_MS);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

void psplan_progress_start(psplan_progress *p) {
    pthread_condattr_t a;
    *p = (psplan_progress){.label = "", .to = 1};
    ps_progress_start(&p->line, stderr);
    if (p->line.out == NULL || pthread_condattr_init(&a) != 0)
        return;
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    p->on = pthread_mutex_init(&p->lock, NULL) == 0 && pthread_cond_init(&p->wake, &a) == 0 &&
            pthread_create(&p->thread, NULL, draw, p) == 0;
    pthread_condattr_destroy(&a);
}

void psplan_progress_part(psplan_progress *p, double from, double to) {
    p->from = from;
    p->to = to;
}

void psplan_progress_tell(void *ctx, double done_frac, const char *label) {
    psplan_progress *p = ctx;
    if (!p->on)
        return;
    pthread_mutex_lock(&p->lock);
    const double all = p->from + (p->to - p->from) * done_frac;
    p->done_frac = all > p->done_frac ? all : p->done_frac; /* never back */
    p->label = label;
    pthread_mutex_unlock(&p->lock);
}

void psplan_progress_end(psplan_progress *p) {
    if (!p->on)
        return;
    pthread_mutex_lock(&p->lock);
    p->ended = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    p->on = false;
    if (p->line.last_ns != 0) /* there is a line */
        ps_progress_end(&p->line);
}
