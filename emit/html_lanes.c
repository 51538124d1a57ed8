/* Lanes of a step: one per queue, as predicted and, where a trace is given, as measured. The size of a picture does not depend
 * on the number of instructions: a pixel shows the operation that fills most of it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emit/html_internal.h"

enum { WIDTH = 1160, LEFT = 110, LANE = 20, MAX_DETAIL = 320 };
/* An idle pixel is one that is busy for less than this share. */
#define IDLE 0.25

typedef struct event {
    uint64_t index;
    uint32_t instr, layer, tile;
    ps_queue queue;
    ps_op op;
    double start[2], end[2]; /* predicted, measured */
} event;

typedef void (*event_fn)(void *ctx, const event *e);

/* Call fn for every instruction that runs. Outside of a trace rounds and tiles follow the first as ps_cursor_later_s has them. */
static void each_event(const ps_html_tier *h, event_fn fn, void *ctx) {
    if (h->step) {
        for (uint32_t i = 0; i < h->step->n_events; i++) {
            const ps_trace_event *x = &h->step->events[i];
            event e = {.index = x->index,
                       .instr = x->instr,
                       .layer = x->layer,
                       .tile = x->tile,
                       .queue = x->queue,
                       .op = x->op,
                       .start = {x->predicted_start_s, x->start_s},
                       .end = {x->predicted_end_s, x->end_s}};
            fn(ctx, &e);
        }
        return;
    }
    const ps_tier *tier = &h->level->tiers[h->tier];
    const ps_program *p = &h->plan->programs[tier->program];
    uint32_t n_tiles = (tier->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS, layer;
    ps_cursor c;
    ps_cursor_start(&c, p, n_tiles);
    for (const ps_instr *in; (in = ps_cursor_get(&c, &layer)) != NULL; ps_cursor_next(&c)) {
        if (p->blocks[c.block].over_tiles && !ps_instr_runs(in, c.tile, n_tiles))
            continue;
        uint32_t instr = (uint32_t)(in - p->instrs);
        double later = ps_cursor_later_s(&c, tier->block_period_full_s[c.block]);
        event e = {.index = c.index,
                   .instr = instr,
                   .layer = layer,
                   .tile = c.tile,
                   .queue = in->queue,
                   .op = in->op,
                   .start = {later + tier->predicted[instr].start_full_s, 0},
                   .end = {later + tier->predicted[instr].end_full_s, 0}};
        fn(ctx, &e);
    }
}

/* What all events of a step add up to. */
typedef struct sums {
    double end; /* of the last, of both kinds */
    struct {
        uint64_t n;
        double s[2];
    } op[PS_QUEUE_COUNT][PS_OP_COUNT];
} sums;

static void add_sums(void *ctx, const event *e) {
    sums *s = ctx;
    for (int k = 0; k < 2; k++) {
        s->end = e->end[k] > s->end ? e->end[k] : s->end;
        s->op[e->queue][e->op].s[k] += e->end[k] - e->start[k];
    }
    s->op[e->queue][e->op].n++;
}

/* Busy share of every pixel of every lane: whole pixels by where they begin and end, the rest at once. */
typedef struct lanes {
    double scale; /* pixels per second */
    double whole[2][PS_QUEUE_COUNT][PS_OP_COUNT][WIDTH + 2], part[2][PS_QUEUE_COUNT][PS_OP_COUNT][WIDTH + 2];
} lanes;

static void add_lanes(void *ctx, const event *e) {
    lanes *l = ctx;
    for (int k = 0; k < 2; k++) {
        double a = fmin(fmax(e->start[k] * l->scale, 0), WIDTH),
               b = fmin(fmax(e->end[k] * l->scale, a), WIDTH);
        int x = (int)a, y = (int)b;
        double *whole = l->whole[k][e->queue][e->op], *part = l->part[k][e->queue][e->op];
        if (x == y) {
            part[x] += b - a;
            continue;
        }
        part[x] += x + 1 - a;
        part[y] += b - y;
        whole[x + 1] += 1;
        whole[y] -= 1;
    }
}

static void label(ps_text *t, double x, int y, const char *class_name, const char *text) {
    ps_text_printf(t, "<text x=\"%.5g\" y=\"%d\"%s%s%s>%s</text>", x, y, class_name ? " class=\"" : "",
                   class_name ? class_name : "", class_name ? "\"" : "", text);
}

static void axis(ps_text *t, double span, int y) {
    for (int i = 0; i <= 5; i++) {
        double x = LEFT + WIDTH * i / 5.0;
        ps_text_printf(t, "<path class=\"a\" d=\"M%.5g 0v%d\"/><text x=\"%.5g\" y=\"%d\"%s>", x, y, x, y + 13,
                       i == 5 ? " class=\"e\"" : "");
        ps_html_time(t, span * i / 5);
        ps_text_printf(t, "</text>");
    }
}

static void open_svg(ps_text *t, int height, const char *title) {
    ps_text_printf(t,
                   "<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\"><title>%s</title>\n",
                   LEFT + WIDTH + 10, height, LEFT + WIDTH + 10, height, title);
}

/* One lane from its pixels: runs of the same operation, a path per operation. */
static void draw_lane(ps_text *t, const lanes *l, int k, int q, int y) {
    uint8_t best[WIDTH + 1];
    double whole[PS_OP_COUNT] = {0};
    for (int x = 0; x < WIDTH; x++) {
        double most = 0, all = 0;
        best[x] = PS_OP_COUNT;
        for (int op = 0; op < PS_OP_COUNT; op++) {
            whole[op] += l->whole[k][q][op][x];
            double busy = whole[op] + l->part[k][q][op][x];
            all += busy;
            if (busy > most) {
                most = busy;
                best[x] = (uint8_t)op;
            }
        }
        if (all < IDLE)
            best[x] = PS_OP_COUNT;
    }
    best[WIDTH] = PS_OP_COUNT;
    for (int op = 0; op < PS_OP_COUNT; op++) {
        bool any = false;
        for (int x = 0, n; x < WIDTH; x += n) {
            for (n = 1; x + n < WIDTH && best[x + n] == best[x];)
                n++;
            if (best[x] != op)
                continue;
            if (!any)
                ps_text_printf(t, "<path class=\"o%d\" d=\"", op);
            any = true;
            ps_text_printf(t, "M%d %dh%dv%dh-%dz", LEFT + x, y, n, LANE - 4, n);
        }
        if (any)
            ps_text_printf(t, "\"/>\n");
    }
}

static bool queue_used(const sums *s, int q) {
    for (int op = 0; op < PS_OP_COUNT; op++)
        if (s->op[q][op].n)
            return true;
    return false;
}

static int count_rows(const ps_html_tier *h, const sums *s) {
    int n = 0;
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        n += queue_used(s, q) ? (h->measured ? 2 : 1) : 0;
    return n;
}

static void row_label(ps_text *t, const ps_html_tier *h, int q, int k, int y) {
    char text[48];
    snprintf(text, sizeof text, "%s%s", ps_queue_name((ps_queue)q),
             !h->measured ? ""
             : k          ? " measured"
                          : " predicted");
    label(t, 0, y + 13, NULL, text);
}

static ps_status whole_step(ps_text *t, const ps_html_tier *h, const sums *s, ps_error *err) {
    lanes *l = calloc(1, sizeof *l);
    if (!l)
        return ps_error_set(err, PS_E_NOMEM, "html", "out of memory");
    int y = 0, height = count_rows(h, s) * LANE;
    l->scale = s->end > 0 ? WIDTH / s->end : 0;
    each_event(h, add_lanes, l);
    open_svg(t, height + 18, "the whole step");
    axis(t, s->end, height);
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        for (int k = 0; queue_used(s, q) && k < (h->measured ? 2 : 1); k++, y += LANE) {
            row_label(t, h, q, k, y);
            draw_lane(t, l, k, q, y + 2);
        }
    ps_text_printf(t, "</svg>\n");
    free(l);
    return PS_OK;
}

/* One round of a block, or its first tile: the events whose index lies in a range. */
typedef struct detail {
    uint64_t first, last; /* index */
    uint32_t n;
    event events[MAX_DETAIL];
} detail;

static void add_detail(void *ctx, const event *e) {
    detail *d = ctx;
    if (e->index >= d->first && e->index <= d->last && d->n < MAX_DETAIL)
        d->events[d->n++] = *e;
}

static void detail_bar(ps_text *t, const ps_html_tier *h, const event *e, int k, double from, double scale,
                       int y) {
    const ps_program *p = &h->plan->programs[h->level->tiers[h->tier].program];
    double x = (e->start[k] - from) * scale, w = (e->end[k] - e->start[k]) * scale;
    ps_text_printf(t, "<rect class=\"o%d\" x=\"%.6g\" y=\"%d\" width=\"%.5g\" height=\"%d\"><title>",
                   (int)e->op, LEFT + x, y, fmax(w, 0.5), LANE - 4);
    ps_text_printf(t, "%s, layer %u: ", ps_op_get(e->op)->name, e->layer);
    ps_html_time(t, e->end[k] - e->start[k]);
    if (h->measured) {
        ps_text_printf(t, k ? ", predicted " : ", measured ");
        ps_html_time(t, e->end[1 - k] - e->start[1 - k]);
    }
    if (e->instr < p->n_instrs) {
        const ps_instr *in = &p->instrs[e->instr];
        for (int w2 = 0; w2 < PS_OP_MAX_WEIGHTS; w2++)
            if ((unsigned)in->w[w2] < PS_ROLE_COUNT)
                ps_text_printf(t, "%s%s %s", w2 ? ", " : "; ", ps_role_get(in->w[w2])->name,
                               in->at[w2] == PS_AT_HOST   ? "in host memory"
                               : in->at[w2] == PS_AT_VRAM ? "in VRAM"
                                                          : "in a slot");
        for (uint32_t i = 0; in->op != PS_OP_COPY && i < h->plan->n_kernels; i++)
            if (h->plan->kernels[i].id == in->kernel) {
                ps_text_printf(t, "; ");
                ps_html_text(t, h->plan->kernels[i].name);
                break;
            }
    }
    ps_text_printf(t, "</title></rect>");
    if (w > 8.0 * (double)strlen(ps_op_get(e->op)->name))
        label(t, LEFT + x + 2, y + 12, "w", ps_op_get(e->op)->name);
    ps_text_printf(t, "\n");
}

/* The middle round of the block with the most layers, then the most instructions. */
static ps_status one_round(ps_text *t, const ps_html_tier *h, const sums *s, ps_error *err) {
    const ps_tier *tier = &h->level->tiers[h->tier];
    const ps_program *p = &h->plan->programs[tier->program];
    uint32_t tokens = h->step && h->step->n_tokens ? h->step->n_tokens : tier->max_tokens;
    uint64_t n_tiles = ((uint64_t)tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS, at = 0, first = 0, last = 0;
    uint32_t most = 0, length = 0, layer = 0;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const ps_block *x = &p->blocks[b];
        uint64_t round = x->n_instrs * (x->over_tiles ? n_tiles : 1);
        if (x->n_layers > most || (x->n_layers == most && x->n_instrs > length)) {
            most = x->n_layers;
            length = x->n_instrs;
            layer = x->layer0 + x->n_layers / 2;
            first = at + round * (x->n_layers / 2);
            last = first + x->n_instrs - 1;
        }
        at += round * x->n_layers; /* at most PS_PLAN_MAX_STREAM */
    }
    detail *d = calloc(1, sizeof *d);
    if (!d)
        return ps_error_set(err, PS_E_NOMEM, "html", "out of memory");
    d->first = first;
    d->last = last;
    each_event(h, add_detail, d);
    double from[2] = {INFINITY, INFINITY}, span = 0; /* predicted and measured begin together */
    for (uint32_t i = 0; i < d->n; i++)
        for (int k = 0; k < 2; k++)
            from[k] = fmin(from[k], d->events[i].start[k]);
    for (uint32_t i = 0; i < d->n; i++)
        for (int k = 0; k < (h->measured ? 2 : 1); k++)
            span = fmax(span, d->events[i].end[k] - from[k]);
    if (span > 0) {
        int y = 0, height = count_rows(h, s) * LANE;
        ps_text_printf(t, "<p>Layer %u%s%s:</p>\n", layer, n_tiles > 1 ? ", its first tile" : "",
                       last - first >= MAX_DETAIL ? ", the first instructions" : "");
        open_svg(t, height + 18, "one layer");
        axis(t, span, height);
        for (int q = 0; q < PS_QUEUE_COUNT; q++)
            for (int k = 0; queue_used(s, q) && k < (h->measured ? 2 : 1); k++, y += LANE) {
                row_label(t, h, q, k, y);
                for (uint32_t i = 0; i < d->n; i++)
                    if ((int)d->events[i].queue == q)
                        detail_bar(t, h, &d->events[i], k, from[k], WIDTH / span, y + 2);
            }
        ps_text_printf(t, "</svg>\n");
    }
    free(d);
    return PS_OK;
}

static void table(ps_text *t, const ps_html_tier *h, const sums *s) {
    ps_text_printf(t, "<table><tr><th>queue<th class=\"l\">operation<th>times<th>predicted%s</tr>\n",
                   h->measured ? "<th>measured<th>predicted / measured" : "<th>share of the step");
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        for (int op = 0; op < PS_OP_COUNT; op++) {
            if (!s->op[q][op].n)
                continue;
            const double *v = s->op[q][op].s;
            ps_text_printf(t, "<tr><td>%s<td class=\"l\"><span class=\"k o%d\"></span> %s<td>%llu<td>",
                           ps_queue_name((ps_queue)q), op, ps_op_get((ps_op)op)->name,
                           (unsigned long long)s->op[q][op].n);
            ps_html_time(t, v[0]);
            ps_text_printf(t, "<td>");
            if (h->measured) {
                ps_html_time(t, v[1]);
                ps_text_printf(t, "<td>");
                ps_html_ratio(t, v[0], v[1]);
            } else {
                ps_text_printf(t, "%.1f%%", s->end > 0 ? 100 * v[0] / s->end : 0);
            }
            ps_text_printf(t, "</tr>\n");
        }
    ps_text_printf(t, "</table>\n");
}

void ps_html_svg_style(ps_text *t) {
    static const char *const colours[PS_OP_COUNT] = {
        [PS_OP_EMBED] = "#777",  [PS_OP_RMSNORM] = "#b8a",   [PS_OP_MATMUL] = "#27c",
        [PS_OP_ROPE] = "#8b6",   [PS_OP_KV_STORE] = "#a95",  [PS_OP_ATTENTION] = "#c43",
        [PS_OP_GLU] = "#5aa",    [PS_OP_ADD] = "#99b",       [PS_OP_CONVERT] = "#bb5",
        [PS_OP_GATHER] = "#555", [PS_OP_MOE_ROUTE] = "#d7a", [PS_OP_MOE_DISPATCH] = "#74c",
        [PS_OP_SAMPLE] = "#333", [PS_OP_COPY] = "#e90"};
    for (int op = 0; op < PS_OP_COUNT; op++)
        ps_text_printf(t, ".o%d{fill:%s;background:%s}", op, colours[op] ? colours[op] : "#000",
                       colours[op] ? colours[op] : "#000");
}

ps_status ps_html_lanes(ps_text *t, const ps_html_tier *h, ps_error *err) {
    sums s = {0};
    each_event(h, add_sums, &s);
    ps_status status = whole_step(t, h, &s, err);
    if (!status)
        status = one_round(t, h, &s, err);
    if (!status)
        table(t, h, &s);
    return status;
}
