/* A report of one level as a page that stands alone: no scripts, nothing from elsewhere. Sizes of pictures and tables are bounded
 * by constants, whatever the plan and the trace hold; text from them is escaped. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/utf8.h"
#include "emit/html_internal.h"

enum { MAX_TEXT = 256, MAX_LEVELS = 64 };

void ps_html_text(ps_text *t, const char *s) {
    size_t n = strnlen(s, MAX_TEXT);
    for (size_t i = 0; i < n;) {
        uint32_t cp, len = ps_utf8_sequence(s + i, n - i, &cp);
        switch (s[i]) {
        case '&':
            ps_text_printf(t, "&amp;");
            break;
        case '<':
            ps_text_printf(t, "&lt;");
            break;
        case '>':
            ps_text_printf(t, "&gt;");
            break;
        case '"':
            ps_text_printf(t, "&quot;");
            break;
        case '\'':
            ps_text_printf(t, "&#39;");
            break;
        default:
            if (len && ps_utf8_is_plain(cp))
                ps_text_put(t, s + i, len);
            else
                ps_text_printf(t, "?");
        }
        i += len ? len : 1;
    }
}

void ps_html_bytes(ps_text *t, uint64_t bytes) {
    char buf[32];
    ps_text_printf(t, "%s", ps_format_bytes((double)bytes, buf));
}

void ps_html_time(ps_text *t, double s) {
    static const char *const units[] = {"ns", "us", "ms", "s"};
    int u = 0;
    for (s *= 1e9; u < 3 && s >= 999.5; u++)
        s /= 1000;
    ps_text_printf(t, "%.3g %s", s >= 999.5 ? round(s) : s, units[u]);
}

void ps_html_ratio(ps_text *t, double a, double b) {
    double v = b > 0 ? a / b : 0;
    if (!(b > 0))
        ps_text_printf(t, "-");
    else if (v > 0 && v < 0.01)
        ps_text_printf(t, "&lt;0.01");
    else if (v >= 999.5)
        ps_text_printf(t, "&gt;1000");
    else
        ps_text_printf(t, "%.3g", v);
}

typedef struct report {
    const ps_plan *plan;
    const ps_trace *trace;
    const ps_level *level;
    uint32_t level_index;
    bool *moe;                  /* [n_layers] */
    uint32_t n_tiers, tiers[2]; /* that are drawn: a short and a long step */
} report;

static const char style[] =
    "body{font:14px/1.45 system-ui,sans-serif;margin:24px;color:#222;background:#fff;max-width:1300px}"
    "h1{font-size:22px}h2{font-size:17px;margin-top:28px}table{border-collapse:collapse;margin:10px 0}"
    "td,th{padding:2px 12px 2px "
    "0;text-align:right;white-space:nowrap}td:first-child,th:first-child,td.l,th.l{text-align:left}"
    "th{font-weight:600;border-bottom:1px solid "
    "#999}table{display:block;max-width:100%;overflow-x:auto}svg{display:block;max-width:100%;height:auto;"
    "margin:8px "
    "0}"
    "svg text{font-size:11px;fill:#444}svg text.w{fill:#fff}svg "
    "text.e{text-anchor:end}.a{stroke:#ddd;fill:none}"
    ".k{display:inline-block;width:10px;height:10px}.n{color:#666}.b{font-weight:600}";

/* Placement as a colour; how much of a shard lies in VRAM as height. */
static const char *const placement_colours[PS_PLACE_COUNT] = {[PS_PLACE_VRAM] = "#393",
                                                              [PS_PLACE_STREAM] = "#e90",
                                                              [PS_PLACE_DIRECT] = "#27c",
                                                              [PS_PLACE_HOST] = "#999",
                                                              [PS_PLACE_SPLIT] = "#74c"};

/* The machine that the plan was made for, as far as the plan tells. */
static void machine(const ps_plan *p, bool gpu, ps_text *t) {
    const char *names[] = {p->facts.cpu_model, gpu ? p->facts.gpu_name : ""};
    for (int i = 0; i < 2; i++)
        if (names[i][0]) {
            ps_text_printf(t, "%s<bdi>", i && names[0][0] ? ", " : "");
            ps_html_text(t, names[i]);
            ps_text_printf(t, "</bdi>");
        }
    ps_text_printf(t, names[0][0] || names[1][0] ? "." : "");
}

static void header(const report *r, ps_text *t) {
    const ps_plan *p = r->plan;
    const ps_level *l = r->level;
    char hex[PS_HASH_HEX];
    ps_text_printf(t, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                      "'unsafe-inline'\">"
                      "<title>");
    ps_html_text(t, p->model_name);
    ps_text_printf(t, ", budget ");
    ps_html_text(t, l->budget);
    ps_text_printf(t, "</title>\n<style>%s", style);
    ps_html_svg_style(t);
    for (int i = 0; i < PS_PLACE_COUNT; i++)
        ps_text_printf(t, ".p%d{fill:%s;background:%s}", i, placement_colours[i], placement_colours[i]);
    ps_text_printf(t, "</style></head><body>\n<h1><bdi>");
    ps_html_text(t, p->model_name);
    ps_text_printf(t, "</bdi></h1>\n<p>");
    ps_html_text(t, p->arch);
    ps_text_printf(t, ", %u layers. Budget ", p->n_layers);
    ps_html_text(t, l->budget);
    ps_text_printf(t, ", context %llu, %u sequence%s, %u thread%s. Host memory at most ",
                   (unsigned long long)l->bucket_tokens, l->n_seqs, l->n_seqs == 1 ? "" : "s", l->n_threads,
                   l->n_threads == 1 ? "" : "s");
    ps_html_bytes(t, l->peak_host_bytes);
    ps_text_printf(t, ".</p>\n<p>");
    machine(p, l->budget_bytes != 0, t);
    ps_text_printf(t, "%s</p>\n<p class=\"n\">plan of ",
                   p->synthetic_profile ? " The machine profile is synthetic: its times are made up." : "");
    ps_html_text(t, p->tool);
    ps_text_printf(t, ", ");
    ps_html_text(t, p->created);
    ps_text_printf(t, "; model %s", ps_hash_hex(p->model_hash, hex));
    ps_text_printf(t, ", profile %s", ps_hash_hex(p->profile_hash, hex));
    if (r->trace) {
        ps_text_printf(t, "; %s trace of ", r->trace->source == PS_TRACE_MEASURED ? "measured" : "simulated");
        ps_html_text(t, r->trace->tool);
        ps_text_printf(t, ", ");
        ps_html_text(t, r->trace->created);
        ps_text_printf(t, ", weights: ");
        ps_html_text(t, r->trace->weights);
    }
    ps_text_printf(t, "</p>\n");
}

/* The first tier that holds a token of every sequence. */
static uint32_t decode_tier(const ps_level *l) {
    uint32_t t = 0;
    while (t + 1 < l->n_tiers && l->tiers[t].max_tokens < l->n_seqs)
        t++;
    return t;
}

static double tokens_per_s(uint64_t tokens, double s) {
    return s > 0 ? (double)tokens / s : 0;
}

static void put_rate(ps_text *t, double v) {
    ps_text_printf(t, v >= 1000 && v < 1e9 ? "%.0f" : "%.4g", v);
}

/* The plan's levels side by side, this one in bold. */
static void levels_table(const report *r, ps_text *t) {
    const ps_plan *p = r->plan;
    uint32_t n = p->n_levels < MAX_LEVELS ? p->n_levels : MAX_LEVELS;
    if (p->n_levels == 1)
        return;
    bool gpu = p->levels[p->n_levels - 1].budget_bytes != 0; /* ascending */
    ps_text_printf(t,
                   "<h2>Levels of the plan</h2>\n<table><tr><th>budget<th>context<th>sequences<th>threads%s"
                   "<th>decode, tokens/s<th>longest step<th>tokens/s</tr>\n",
                   gpu ? "<th>VRAM<th>weights there" : "");
    for (uint32_t i = 0; i < n; i++) {
        const ps_level *l = &p->levels[i];
        const ps_tier *one = &l->tiers[decode_tier(l)], *last = &l->tiers[l->n_tiers - 1];
        uint64_t vram;
        if (!ps_add_u64(l->vram_base_bytes, l->vram_work_bytes, &vram) ||
            !ps_add_u64(vram, l->vram_weight_bytes, &vram))
            vram = UINT64_MAX;
        ps_text_printf(t, "<tr%s><td>", i == r->level_index ? " class=\"b\"" : "");
        ps_html_text(t, l->budget);
        ps_text_printf(t, "<td>%llu<td>%u<td>%u<td>", (unsigned long long)l->bucket_tokens, l->n_seqs,
                       l->n_threads);
        if (gpu) {
            ps_html_bytes(t, vram);
            ps_text_printf(t, "<td>");
            ps_html_bytes(t, l->vram_weight_bytes);
            ps_text_printf(t, "<td>");
        }
        put_rate(t,
                 tokens_per_s(one->max_tokens < l->n_seqs ? one->max_tokens : l->n_seqs, one->step_full_s));
        ps_text_printf(t, "<td>%u<td>", last->max_tokens);
        put_rate(t, tokens_per_s(last->max_tokens, last->step_full_s));
        ps_text_printf(t, "</tr>\n");
    }
    ps_text_printf(t, "</table>\n<p class=\"n\">Predicted, context full.%s</p>\n",
                   n < p->n_levels ? " The first levels." : "");
}

static int compare_steps(const void *a, const void *b) {
    const ps_trace_step *x = *(const ps_trace_step *const *)a, *y = *(const ps_trace_step *const *)b;
    return (x->step_s > y->step_s) - (x->step_s < y->step_s);
}

/* The step of the trace that took the median time of its tier; NULL if it has none. *out_n: how many. */
static ps_status median_step(const report *r, uint32_t tier, const ps_trace_step **out, uint32_t *out_n,
                             ps_error *err) {
    *out = NULL;
    *out_n = 0;
    if (!r->trace)
        return PS_OK;
    const ps_trace_step **steps = calloc((size_t)r->trace->n_steps + 1, sizeof *steps);
    if (!steps)
        return ps_error_set(err, PS_E_NOMEM, "html", "out of memory");
    for (uint32_t i = 0; i < r->trace->n_steps; i++)
        if (r->trace->steps[i].level == r->level_index && r->trace->steps[i].tier == tier)
            steps[(*out_n)++] = &r->trace->steps[i];
    qsort(steps, *out_n, sizeof *steps, compare_steps);
    if (*out_n)
        *out = steps[*out_n / 2];
    free(steps);
    return PS_OK;
}

static ps_status tier_table(const report *r, ps_text *t, ps_error *err) {
    bool measured = r->trace && r->trace->source == PS_TRACE_MEASURED;
    ps_text_printf(
        t,
        "<h2>Steps</h2>\n<table><tr><th>tokens<th>step, empty<th>step, full<th>tokens/s, full<th>raw "
        "bound<th>%% raw<th>reachable bound<th>%% reachable%s</tr>\n",
        measured ? "<th>steps traced<th>median<th>its prediction<th>predicted / measured" : "");
    for (uint32_t i = 0; i < r->level->n_tiers; i++) {
        const ps_tier *x = &r->level->tiers[i];
        ps_text_printf(t, "<tr><td>%u<td>", x->max_tokens);
        ps_html_time(t, x->step_empty_s);
        ps_text_printf(t, "<td>");
        ps_html_time(t, x->step_full_s);
        ps_text_printf(t, "<td>");
        put_rate(t, tokens_per_s(x->max_tokens, x->step_full_s));
        for (int k = 0; k < 2; k++) {
            double bound = k ? x->reachable_bound_s : x->raw_bound_s;
            ps_text_printf(t, "<td>");
            ps_html_time(t, bound);
            ps_text_printf(t, "<td>%.3g%%", x->step_full_s > 0 ? 100 * bound / x->step_full_s : 0);
        }
        if (measured) {
            const ps_trace_step *s;
            uint32_t n;
            ps_status status = median_step(r, i, &s, &n, err);
            if (status)
                return status;
            ps_text_printf(t, "<td>%u<td>", n);
            if (s) {
                ps_html_time(t, s->step_s);
                ps_text_printf(t, "<td>");
                ps_html_time(t, s->predicted_s);
                ps_text_printf(t, "<td>");
                ps_html_ratio(t, s->predicted_s, s->step_s);
            } else {
                ps_text_printf(t, "-<td>-<td>-");
            }
        }
        ps_text_printf(t, "</tr>\n");
    }
    ps_text_printf(t, "</table>\n<p class=\"n\">Empty: the first step; full: the sequences hold the whole "
                      "context after it. "
                      "Percentages: the bounds there over the full step.</p>\n");
    return PS_OK;
}

/* Rows of the picture of placements: a kind of shard, or where KV lives. */
static void cell(ps_text *t, uint32_t x, int y, double width, double share, int placement, const char *title,
                 uint32_t layer, uint64_t bytes, bool gpu) {
    double h = 22 * fmin(fmax(share, 0), 1);
    ps_text_printf(t,
                   "<rect class=\"p%d\" x=\"%.6g\" y=\"%d\" width=\"%.4g\" height=\"22\" "
                   "opacity=\".35\"><title>%s of layer %u: ",
                   placement, 110 + x * width, y, width - 1, title, layer);
    ps_html_bytes(t, bytes);
    ps_text_printf(t, ", %s", ps_placement_name((ps_placement)placement));
    if (gpu)
        ps_text_printf(t, ", %.0f%% in VRAM", 100 * fmin(share, 1));
    ps_text_printf(t, "</title></rect>");
    if (h > 0)
        ps_text_printf(t, "<rect class=\"p%d\" x=\"%.6g\" y=\"%.4g\" width=\"%.4g\" height=\"%.4g\"/>",
                       placement, 110 + x * width, y + 22 - h, width - 1, h);
    ps_text_printf(t, "\n");
}

static ps_status placements(const report *r, ps_text *t, ps_error *err) {
    const ps_plan *p = r->plan;
    const ps_level *l = r->level;
    uint32_t n = p->n_layers < PS_HTML_MAX_LAYERS ? p->n_layers : PS_HTML_MAX_LAYERS;
    double width = fmin(1160.0 / n, 60);
    uint64_t *held =
        calloc((size_t)PS_SHARD_KIND_COUNT * p->n_layers, sizeof *held); /* bytes in VRAM, of shards */
    if (!held)
        return ps_error_set(err, PS_E_NOMEM, "html", "out of memory");
    for (uint32_t i = 0; i < l->n_resident; i++) {
        ps_html_resident piece = ps_html_piece(p, l, r->moe, i);
        uint64_t *at = &held[(size_t)piece.kind * p->n_layers + l->resident[i].range.layer];
        if (l->resident[i].range.layer < p->n_layers && !ps_add_u64(*at, piece.bytes, at))
            *at = UINT64_MAX;
    }
    ps_text_printf(t, "<h2>Placement</h2>\n<p>");
    bool gpu = l->budget_bytes != 0, drawn[PS_PLACE_COUNT] = {false};
    for (uint32_t i = 0; i < p->n_shards; i++)
        drawn[l->placement[i]] = true;
    for (uint32_t i = 0; i < p->n_layers; i++)
        drawn[l->kv[i].space == PS_SPACE_VRAM ? PS_PLACE_VRAM : PS_PLACE_HOST] = true;
    for (int i = 0; i < PS_PLACE_COUNT; i++)
        if (drawn[i])
            ps_text_printf(t, "<span class=\"k p%d\"></span> %s &nbsp; ", i,
                           ps_placement_name((ps_placement)i));
    ps_text_printf(t, "%s%s</p>\n", gpu ? "Height: share of the bytes in VRAM." : "",
                   n < p->n_layers ? " The first layers." : "");
    ps_text_printf(t, "<svg viewBox=\"0 0 1280 92\" width=\"1280\" height=\"92\" "
                      "role=\"img\"><title>placement by layer</title>\n"
                      "<text x=\"0\" y=\"15\">attention</text><text x=\"0\" y=\"41\">feed-forward</text>"
                      "<text x=\"0\" y=\"67\">KV cache</text>\n");
    for (uint32_t i = 0; i < p->n_shards; i++) {
        const ps_plan_shard *s = &p->shards[i];
        uint64_t bytes = held[(size_t)s->kind * p->n_layers + s->layer];
        double share = s->weight_bytes ? (double)bytes / (double)s->weight_bytes : 0;
        bool attention = s->kind == PS_SHARD_ATTN;
        if (s->layer < n && (attention || s->kind == PS_SHARD_FFN || s->kind == PS_SHARD_MOE))
            cell(t, s->layer, attention ? 0 : 26, width, share, (int)l->placement[i],
                 ps_shard_kind_name(s->kind), s->layer, s->weight_bytes, gpu);
    }
    for (uint32_t i = 0; i < n; i++) {
        bool vram = l->kv[i].space == PS_SPACE_VRAM;
        cell(t, i, 52, width, vram, vram ? PS_PLACE_VRAM : PS_PLACE_HOST, "kv", i, l->kv[i].bytes, gpu);
        if (i % (n > 64 ? 16 : n > 24 ? 4 : 1) == 0)
            ps_text_printf(t, "<text x=\"%.5g\" y=\"88\">%u</text>\n", 110 + i * width, i);
    }
    ps_text_printf(t, "</svg>\n<table><tr><th>shard<th class=\"l\">placement<th>weights%s</tr>\n",
                   gpu ? "<th>in VRAM" : "");
    for (uint32_t i = 0, rows = 0; i < p->n_shards && rows < 16; i++) {
        const ps_plan_shard *s = &p->shards[i];
        if (s->kind != PS_SHARD_EMBED && s->kind != PS_SHARD_HEAD)
            continue;
        rows++;
        ps_text_printf(t, "<tr><td>%s<td class=\"l\">%s<td>", ps_shard_kind_name(s->kind),
                       ps_placement_name(l->placement[i]));
        ps_html_bytes(t, s->weight_bytes);
        if (gpu) {
            ps_text_printf(t, "<td>");
            ps_html_bytes(t, held[(size_t)s->kind * p->n_layers + s->layer]);
        }
        ps_text_printf(t, "</tr>\n");
    }
    ps_text_printf(t, "</table>\n");
    free(held);
    return PS_OK;
}

static ps_status lanes(const report *r, uint32_t tier, ps_text *t, ps_error *err) {
    ps_html_tier h = {.plan = r->plan, .level = r->level, .tier = tier};
    uint32_t n, tokens = r->level->tiers[tier].max_tokens;
    ps_status status = median_step(r, tier, &h.step, &n, err);
    if (status)
        return status;
    h.measured = h.step && r->trace->source == PS_TRACE_MEASURED;
    ps_text_printf(t, "<h2>A step of ");
    if (h.step)
        ps_text_printf(t, "%u token%s after %llu token%s</h2>\n<p>The median of %u traced steps of this tier",
                       h.step->n_tokens, h.step->n_tokens == 1 ? "" : "s", (unsigned long long)h.step->kv_len,
                       h.step->kv_len == 1 ? "" : "s", n);
    else
        ps_text_printf(t, "%u token%s, context full</h2>\n<p>As predicted%s", tokens, tokens == 1 ? "" : "s",
                       tokens > PS_TILE_TOKENS
                           ? "; the plan holds times of each layer's first tile, the others are drawn at "
                             "equal distances behind it"
                           : "");
    ps_text_printf(t, ". A pixel shows the operation that fills most of it.</p>\n");
    return ps_html_lanes(t, &h, err);
}

/* Trace and plan belong together, and the trace stays inside of the plan. */
static ps_status match_trace(const ps_plan *plan, const ps_trace *trace, ps_error *err) {
    if (memcmp(plan->model_hash, trace->model_hash, PS_HASH_BYTES) != 0 ||
        memcmp(plan->profile_hash, trace->profile_hash, PS_HASH_BYTES) != 0)
        return ps_error_set(err, PS_E_MISMATCH, "trace", "it is of another model or profile than the plan");
    for (uint32_t s = 0; s < trace->n_steps; s++) {
        const ps_trace_step *x = &trace->steps[s];
        if (x->level >= plan->n_levels || x->tier >= plan->levels[x->level].n_tiers)
            return ps_error_set(err, PS_E_MISMATCH, "trace",
                                "step %u is of a level or tier that the plan has not", s);
    }
    return PS_OK;
}

/* With a trace, its shortest and longest tier; otherwise that of one token per sequence and the last. */
static void choose_tiers(report *r) {
    const ps_level *l = r->level;
    uint32_t first = l->n_tiers - 1, last = 0;
    for (uint32_t s = 0; r->trace && s < r->trace->n_steps; s++)
        if (r->trace->steps[s].level == r->level_index) {
            uint32_t tier = r->trace->steps[s].tier;
            first = tier < first ? tier : first;
            last = tier > last ? tier : last;
        }
    if (first > last || !r->trace) {
        first = decode_tier(l);
        last = l->n_tiers - 1;
    }
    r->tiers[r->n_tiers++] = first;
    if (last != first)
        r->tiers[r->n_tiers++] = last;
}

ps_status ps_emit_html(const ps_emit_source *source, char **out, uint64_t *out_size, ps_error *err) {
    report r = {.plan = source->plan,
                .trace = source->trace,
                .level = &source->plan->levels[source->level],
                .level_index = source->level};
    ps_status status = r.trace ? match_trace(r.plan, r.trace, err) : PS_OK;
    if (status)
        return status;
    r.moe = calloc(r.plan->n_layers, sizeof *r.moe);
    ps_text *t = ps_text_new();
    if (!r.moe) {
        status = ps_error_set(err, PS_E_NOMEM, "html", "out of memory");
        goto done;
    }
    for (uint32_t i = 0; i < r.plan->n_shards; i++)
        if (r.plan->shards[i].kind == PS_SHARD_MOE && r.plan->shards[i].layer < r.plan->n_layers)
            r.moe[r.plan->shards[i].layer] = true;
    choose_tiers(&r);
    header(&r, t);
    levels_table(&r, t);
    status = tier_table(&r, t, err);
    if (!status && r.level->budget_bytes) {
        ps_text_printf(t, "<h2>VRAM</h2>\n");
        status = ps_html_memory(t, r.plan, r.level, r.tiers, r.n_tiers, r.moe, err);
    }
    if (!status)
        status = placements(&r, t, err);
    for (uint32_t i = 0; i < r.n_tiers && !status; i++)
        status = lanes(&r, r.tiers[i], t, err);
    ps_text_printf(t, "</body></html>\n");
done:;
    char *text = ps_text_end(t, out_size);
    free(r.moe);
    if (!status && !text)
        status = ps_error_set(err, PS_E_NOMEM, "html", "out of memory");
    if (status)
        free(text);
    else
        *out = text;
    return status;
}
