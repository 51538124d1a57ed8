/* Progress line with time left. */
#include "core/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "core/clock.h"

enum { PROGRESS_REDRAW_NS = 100000000, PROGRESS_BAR = 24 };

void ps_progress_start(ps_progress *p, FILE *out) {
    *p = (ps_progress){.out = out != NULL && isatty(fileno(out)) ? out : NULL, .start_ns = ps_clock_ns()};
}

/* Columns of the terminal; 80 where it does not say. */
static size_t columns(FILE *out) {
    struct winsize size = {0};
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void ps_progress_update(ps_progress *p, double done_frac, const char *label) {
    if (p->out == NULL)
        return;
    uint64_t now = ps_clock_ns();
    if (p->last_ns != 0 && now - p->last_ns < PROGRESS_REDRAW_NS)
        return;
    p->last_ns = now;
    p->done_frac = done_frac < 0 ? 0 : done_frac > 1 ? 1 : done_frac;
    int filled = (int)(p->done_frac * PROGRESS_BAR);
    char bar[PROGRESS_BAR + 1];
    for (int i = 0; i < PROGRESS_BAR; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[PROGRESS_BAR] = '\0';
    double spent_s = (double)(now - p->start_ns) * 1e-9;
    char left[32] = "", line[128];
    if (p->done_frac > 0.02)
        snprintf(left, sizeof left, "  %.0f s left", spent_s / p->done_frac * (1 - p->done_frac));
    snprintf(line, sizeof line, "[%s] %3.0f%%%s  %.40s", bar, 100 * p->done_frac, left, label);
    /* A line that wraps could not be cleared. */
    fprintf(p->out, "\r\033[K%.*s", (int)columns(p->out) - 1, line);
    fflush(p->out);
}

void ps_progress_end(ps_progress *p) {
    if (p->out != NULL) {
        fprintf(p->out, "\r\033[K");
        fflush(p->out);
    }
    p->out = NULL;
}
