/* pstune show --svg: rooflines of CPU and GPU, copy rates by size, and what slows what down, in one picture. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "profile/grid.h"
#include "pstune_internal.h"

enum {
    WIDTH = 860,
    PLOT_HEIGHT = 360,
    LEFT = 80,
    RIGHT = 190,
    TOP = 44,
    BOTTOM = 48,
    BAR = 18,
    MAX_BARS = 64
};

/* A plot with logarithmic axes, `top` pixels below the picture's. Limits are powers of ten, or of two for bytes. */
typedef struct plot {
    double top, x0, x1, y0, y1;
} plot;

static double x_of(const plot *p, double v) {
    return LEFT + log(v / p->x0) / log(p->x1 / p->x0) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const plot *p, double v) {
    return p->top + TOP + (1 - log(v / p->y0) / log(p->y1 / p->y0)) * (PLOT_HEIGHT - TOP - BOTTOM);
}

/* A profile's own texts: anything may be in them. */
static void put_text(ps_text *t, const char *s) {
    for (; *s; s++)
        if (*s == '<' || *s == '>' || *s == '&' || *s == '"')
            ps_text_printf(t, "&#%d;", *s);
        else
            ps_text_printf(t, "%c", (unsigned char)*s < 0x20 || (unsigned char)*s >= 0x7f ? '?' : *s);
}

static void heading(ps_text *t, double top, const char *text) {
    ps_text_printf(t, "<text class=\"h\" x=\"%d\" y=\"%.0f\">%s</text>\n", LEFT, top + 26, text);
}

static void grid_line(ps_text *t, const plot *p, bool vertical, double at, const char *label) {
    if (vertical)
        ps_text_printf(
            t, "<path class=\"g\" d=\"M%.1f %.1fV%.1f\"/><text class=\"m\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
            x_of(p, at), y_of(p, p->y1), y_of(p, p->y0), x_of(p, at), y_of(p, p->y0) + 15, label);
    else
        ps_text_printf(
            t, "<path class=\"g\" d=\"M%d %.1fH%d\"/><text class=\"e\" x=\"%d\" y=\"%.1f\">%s</text>\n", LEFT,
            y_of(p, at), WIDTH - RIGHT, LEFT - 6, y_of(p, at) + 4, label);
}

static const char *si(double v, char buf[24]) {
    static const char *const prefix[] = {"", " k", " M", " G", " T", " P"};
    int i = 0;
    for (; v >= 999.5 && i < 5; i++)
        v /= 1000;
    snprintf(buf, 24, "%.3g%s", v, prefix[i]);
    return buf;
}

static void y_grid(ps_text *t, const plot *p, const char *unit) {
    char number[24], label[40];
    for (double v = p->y0; v <= p->y1 * 1.001; v *= 10) {
        snprintf(label, sizeof label, "%s%s", si(v, number), unit);
        grid_line(t, p, false, v, label);
    }
}

static void legend(ps_text *t, const plot *p, int row, const char *class, const char *text) {
    const double y = p->top + TOP + 10 + 17 * row;
    ps_text_printf(
        t, "<path class=\"l %s\" d=\"M%d %.1fh16\"/><text class=\"s\" x=\"%d\" y=\"%.1f\">%s</text>\n", class,
        WIDTH - RIGHT + 12, y, WIDTH - RIGHT + 34, y + 4, text);
}

/* Bytes and FLOPs per second of one device's kernels: a point each, under a roof. */
typedef struct roof {
    const char *class, *name;
    double memory_bytes_per_s, flops_per_s;
    bool gpu;
    uint32_t n_threads; /* CPU: of the points that are shown */
} roof;

static bool shown(const roof *r, const ps_profile_point *q) {
    return q->beside == PS_BESIDE_IDLE && q->time_s.n &&
           (r->gpu ? q->n_threads == 0 : q->n_threads == r->n_threads);
}

/* FLOPs per byte and FLOPs per second of a point; false where it has neither. */
static bool work_of(const ps_profile *p, const ps_profile_point *q, double *out_intensity, double *out_rate) {
    const ps_kernel_spec *k = ps_tune_kernel(p, q->kernel);
    double bytes = 0, flops = 0;
    if (k)
        ps_point_work(k, q, &bytes, &flops);
    *out_intensity = flops / bytes;
    *out_rate = flops / q->time_s.median;
    return bytes > 0 && flops > 0 && isfinite(*out_intensity) && isfinite(*out_rate) && *out_rate > 0;
}

static double decade_below(double v) {
    return pow(10, floor(log10(v)));
}

static double decade_above(double v) {
    return pow(10, ceil(log10(v) + 1e-9));
}

static void rooflines(ps_text *t, const ps_profile *p, double top) {
    roof roofs[2] = {{.class = "c", .name = "CPU"}, {.class = "u", .name = "GPU", .gpu = true}};
    plot area = {.top = top, .x0 = DBL_MAX, .y0 = DBL_MAX};
    char number[24], label[64];
    for (uint32_t i = 0; i < p->n_dram; i++)
        if (p->dram[i].bw_bytes_per_s.n && p->dram[i].n_threads >= roofs[0].n_threads) {
            roofs[0].n_threads = p->dram[i].n_threads;
            roofs[0].memory_bytes_per_s = p->dram[i].bw_bytes_per_s.median;
        }
    roofs[1].memory_bytes_per_s = p->gpu.hbm_read_bytes_per_s.n ? p->gpu.hbm_read_bytes_per_s.median : 0;
    uint32_t n = 0;
    for (int d = 0; d < 2; d++)
        for (uint32_t i = 0; i < p->n_points; i++) {
            double x, y;
            if (!shown(&roofs[d], &p->points[i]) || !work_of(p, &p->points[i], &x, &y))
                continue;
            n++;
            area.x0 = fmin(area.x0, x);
            area.x1 = fmax(area.x1, x);
            area.y0 = fmin(area.y0, y);
            area.y1 = fmax(area.y1, y);
            roofs[d].flops_per_s = fmax(roofs[d].flops_per_s, y);
        }
    heading(t, top, "Rooflines: FLOP/s over FLOPs per byte, each kernel and shape a point");
    if (!n)
        return;
    area.x0 = decade_below(area.x0);
    area.x1 = decade_above(area.x1);
    area.y0 = decade_below(area.y0);
    area.y1 = decade_above(area.y1);
    y_grid(t, &area, "F/s");
    for (double v = area.x0; v <= area.x1 * 1.001; v *= 10)
        grid_line(t, &area, true, v, si(v, number));
    for (int d = 0, row = 0; d < 2; d++) {
        const roof *r = &roofs[d];
        for (uint32_t i = 0; i < p->n_points; i++) {
            double x, y;
            if (shown(r, &p->points[i]) && work_of(p, &p->points[i], &x, &y))
                ps_text_printf(t, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>\n", r->class,
                               x_of(&area, x), y_of(&area, y));
        }
        if (!(r->memory_bytes_per_s > 0) || !(r->flops_per_s > 0))
            continue;
        const double ridge = r->flops_per_s / r->memory_bytes_per_s;
        const double from = fmax(area.x0, area.y0 / r->memory_bytes_per_s),
                     knee = fmin(fmax(ridge, from), area.x1);
        ps_text_printf(t, "<path class=\"l %s\" d=\"M%.1f %.1fL%.1f %.1fH%d\"/>\n", r->class,
                       x_of(&area, from), y_of(&area, fmin(from * r->memory_bytes_per_s, r->flops_per_s)),
                       x_of(&area, knee), y_of(&area, fmin(knee * r->memory_bytes_per_s, r->flops_per_s)),
                       WIDTH - RIGHT);
        snprintf(label, sizeof label, "%s: %sB/s", r->name, si(r->memory_bytes_per_s, number));
        legend(t, &area, row++, r->class, label);
        snprintf(label, sizeof label, "%sF/s at best", si(r->flops_per_s, number));
        ps_text_printf(t, "<text class=\"s\" x=\"%d\" y=\"%.1f\">%s</text>\n", WIDTH - RIGHT + 34,
                       area.top + TOP + 14 + 17 * row++, label);
    }
}

static void copies(ps_text *t, const ps_profile_gpu *g, double top) {
    plot area = {.top = top, .x0 = DBL_MAX, .y0 = DBL_MAX};
    char label[48];
    int row = 0;
    for (uint32_t i = 0; i < g->n_copies; i++) {
        area.x0 = fmin(area.x0, (double)g->copies[i].bytes);
        area.x1 = fmax(area.x1, (double)g->copies[i].bytes);
        area.y0 = fmin(area.y0, g->copies[i].bw_bytes_per_s.median);
        area.y1 = fmax(area.y1, g->copies[i].bw_bytes_per_s.median);
    }
    heading(t, top, "Bus: rate by bytes of one piece");
    if (!(area.x0 > 0) || !(area.y0 > 0) || g->n_copies == 0) {
        ps_text_printf(t, "<text x=\"%d\" y=\"%.0f\">not measured</text>\n", LEFT, top + TOP + 20);
        return;
    }
    area.x0 = exp2(floor(log2(area.x0)));
    area.x1 = exp2(floor(log2(area.x1)) + 1);
    area.y0 = decade_below(area.y0);
    area.y1 = decade_above(area.y1);
    y_grid(t, &area, "B/s");
    for (double v = area.x0; v <= area.x1; v *= 4) {
        snprintf(label, sizeof label, v >= 1 << 20 ? "%.0f MiB" : "%.0f KiB",
                 v / (v >= 1 << 20 ? 1 << 20 : 1024));
        grid_line(t, &area, true, v, label);
    }
    for (int bus = 0; bus < PS_BUS_COUNT; bus++)
        for (int kind = 0; kind < PS_HOST_KIND_COUNT; kind++) {
            char class[8];
            uint32_t n = 0;
            snprintf(class, sizeof class, "k%d", bus * PS_HOST_KIND_COUNT + kind);
            for (uint32_t i = 0; i < g->n_copies; i++) { /* the profile has them in order of size */
                const ps_profile_copy *c = &g->copies[i];
                if ((int)c->bus != bus || (int)c->kind != kind || !c->bw_bytes_per_s.n)
                    continue;
                if (n++ == 0)
                    ps_text_printf(t, "<path class=\"l %s\" d=\"M", class);
                ps_text_printf(t, "%s%.1f %.1f", n > 1 ? "L" : "", x_of(&area, (double)c->bytes),
                               y_of(&area, c->bw_bytes_per_s.median));
            }
            if (!n)
                continue;
            ps_text_printf(t, "h3\"/>\n");
            snprintf(label, sizeof label, "%s, %s", ps_bus_name((ps_bus)bus),
                     ps_host_kind_name((ps_host_kind)kind));
            legend(t, &area, row++, class, label);
        }
}

static void slowdowns(ps_text *t, const ps_tune_slowdown *s, uint32_t n, double top) {
    double most = 1;
    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, s[i].times);
    heading(t, top, "Slowdowns: times slower than alone");
    for (uint32_t i = 0; i < n && i < MAX_BARS; i++) {
        const double y = top + TOP + BAR * i, width = fmax(s[i].times / most, 0) * 360;
        ps_text_printf(
            t,
            "<rect class=\"b\" x=\"%d\" y=\"%.0f\" width=\"%.1f\" height=\"%d\"/><text class=\"s\" x=\"%d\" "
            "y=\"%.0f\">%.2f  %s</text>\n",
            LEFT, y, width, BAR - 4, LEFT + 368, y + 12, s[i].times, s[i].what);
    }
    if (n > MAX_BARS)
        ps_text_printf(t, "<text x=\"%d\" y=\"%d\">and %u more: pstune show lists them</text>\n", LEFT,
                       (int)top + TOP + BAR * MAX_BARS + 12, n - MAX_BARS);
    else if (!n)
        ps_text_printf(t, "<text x=\"%d\" y=\"%.0f\">not measured</text>\n", LEFT, top + TOP + 12);
}

static const char style[] =
    "<style>svg{font:12px sans-serif;background:#fff}text{fill:#333}.h{font-size:14px;font-weight:bold}"
    ".m{text-anchor:middle;font-size:11px}.e{text-anchor:end;font-size:11px}.s{font-size:11px}.g{stroke:#ddd}"
    ".l{fill:none;stroke-width:2;stroke-linecap:round}circle.c{fill:#1f77b4;opacity:.5}circle.u{fill:#2ca02c;"
    "opacity:.5}"
    ".l.c{stroke:#1f77b4}.l.u{stroke:#2ca02c}.b{fill:#c44e52;opacity:.7}.k0{stroke:#1f77b4}.k1{stroke:#"
    "ff7f0e}"
    ".k2{stroke:#8c564b}.k3{stroke:#9467bd}.k4{stroke:#2ca02c}.k5{stroke:#d62728}.k6{stroke:#17becf}"
    ".k7{stroke:#bcbd22}.k8{stroke:#e377c2}.k9{stroke:#7f7f7f}.k10{stroke:#444}.k11{stroke:#a6761d}</"
    "style>\n";

ps_status ps_tune_svg(const ps_profile *p, const char *path, ps_error *err) {
    ps_tune_slowdown *s = NULL;
    uint32_t n = 0;
    if (!ps_tune_slowdowns(p, &s, &n))
        return ps_error_set(err, PS_E_NOMEM, path, "out of memory");
    const uint32_t bars = n < MAX_BARS ? n : MAX_BARS + 1;
    const int bus = p->gpu.n_copies ? PLOT_HEIGHT : 0; /* without a GPU there is nothing to draw */
    const int height = 40 + PLOT_HEIGHT + bus + TOP + BAR * (int)(bars ? bars : 1) + 20;
    ps_text *t = ps_text_new();
    ps_text_printf(
        t,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n%s"
        "<text class=\"h\" x=\"%d\" y=\"24\">",
        WIDTH, height, WIDTH, height, style, LEFT);
    put_text(t, p->topology.cpu_model);
    ps_text_printf(t, ", %u threads", p->topology.n_allowed);
    if (p->gpu.name[0]) {
        ps_text_printf(t, "; ");
        put_text(t, p->gpu.name);
    }
    ps_text_printf(t, p->synthetic ? " (made up)</text>\n" : "</text>\n");
    rooflines(t, p, 40);
    if (bus)
        copies(t, &p->gpu, 40 + PLOT_HEIGHT);
    slowdowns(t, s, n, 40 + PLOT_HEIGHT + bus);
    ps_text_printf(t, "</svg>\n");
    free(s);
    uint64_t size = 0;
    char *text = ps_text_end(t, &size);
    if (!text)
        return ps_error_set(err, PS_E_NOMEM, path, "out of memory");
    const ps_status status = ps_file_write_atomic(path, text, size, err);
    free(text);
    return status;
}
