/* The HTML report: its size whatever the plan holds, text of files escaped, a trace matched to its plan. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../plan/gpu_case.h"
#include "emit/emit.h"
#include "emit/html_internal.h"

#define MIB ((uint64_t)1 << 20)

static ps_plan *build(const gpu_case *c, uint64_t budget, uint64_t max_step) {
    ps_level_request levels[2] = {gc_level(0, 32768, 1, 8), gc_level(budget, 32768, 1, 8)};
    snprintf(levels[0].budget, sizeof levels[0].budget, "host");
    ps_plan_request r = gc_request(c, levels, 2);
    r.max_step_tokens = max_step;
    ps_plan *plan = NULL;
    ps_error e = {0};
    cr_assert_eq(ps_plan_build(&r, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
    return plan;
}

static char *report(const ps_plan *plan, uint32_t level, const ps_trace *trace, uint64_t *size) {
    char *out = NULL;
    ps_error e = {0};
    ps_emit_source source = {.plan = plan, .trace = trace, .level = level};
    cr_assert_eq(ps_emit_html(&source, &out, size, &e), PS_OK, "%s: %s", e.subject, e.message);
    cr_assert_eq(strlen(out), *size);
    return out;
}

/* Tags that must be closed are, in order; nothing is loaded from anywhere, nothing runs. */
static void well_formed(const char *html) {
    static const char *const closed[] = {"html",  "head", "title", "style", "body", "h1",  "h2",
                                         "table", "svg",  "text",  "bdi",   "p",    "span"};
    static const char *const never[] = {"<script", "<img",  "<link",  "<iframe", "href", "src=",
                                        "url(",    "http:", "https:", " on",     "nan",  "inf\""};
    const char *stack[16];
    uint32_t depth = 0;
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
        const char *at = strstr(html, never[i]);
        if (at && strcmp(never[i], " on") == 0)
            for (; at && !(strchr("abcdefghijklmnopqrstuvwxyz", at[3]) && strcspn(at + 3, "= <") &&
                           at[3 + strcspn(at + 3, "= <")] == '=');
                 at = strstr(at + 1, " on"))
                ;
        cr_assert_null(at, "%s: %.60s", never[i], at);
    }
    for (const char *p = html; (p = strchr(p, '<')) != NULL; p++) {
        bool end = p[1] == '/';
        const char *name = p + 1 + end;
        size_t len = strcspn(name, " >/");
        for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++) {
            if (strlen(closed[i]) != len || memcmp(closed[i], name, len) != 0)
                continue;
            if (!end) {
                cr_assert_lt(depth, 16);
                stack[depth++] = closed[i];
            } else {
                cr_assert(depth && stack[depth - 1] == closed[i], "%s: %.80s", depth ? stack[depth - 1] : "-",
                          p);
                depth--;
            }
        }
    }
    cr_assert_eq(depth, 0);
}

static uint32_t count(const char *text, const char *what) {
    uint32_t n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p += strlen(what))
        n++;
    return n;
}

/* What the table of steps says, the pictures say too: their axes end where the plan's steps do. */
static void axes_end_with_the_step(const char *html, const ps_level *l) {
    const char *at = html;
    for (int k = 0; k < 2; k++) {
        ps_text *t = ps_text_new();
        uint64_t size;
        ps_text_printf(t, "class=\"e\">");
        ps_html_time(t, l->tiers[k ? l->n_tiers - 1 : 0].step_full_s);
        ps_text_printf(t, "</text>");
        char *end = ps_text_end(t, &size);
        at = strstr(at, "<title>the whole step</title>");
        cr_assert_not_null(at);
        const char *found = strstr(at, "class=\"e\">");
        cr_assert(found && strncmp(found, end, size) == 0, "%.30s, %s", found ? found : "-", end);
        free(end);
        at++;
    }
}

Test(html, size_and_structure) {
    static const mb_shape *const shapes[] = {&mb_llama_small, &mb_gemma3_small, &mb_llama3_8b,
                                             &mb_qwen3_30b_a3b};
    for (int i = 0; i < 4; i++) {
        gpu_case c = gc_shape(shapes[i]);
        ps_plan *plan = build(&c, i < 2 ? 1000 * MIB : 6000 * MIB, 16384);
        for (uint32_t l = 0; l < plan->n_levels; l++) {
            uint64_t size;
            char *html = report(plan, l, NULL, &size);
            well_formed(html);
            cr_assert_lt(size, 1000000);
            cr_assert_eq(strstr(html, "<h2>VRAM</h2>") != NULL, plan->levels[l].budget_bytes != 0);
            cr_assert_eq(count(html, "attn of layer "), plan->n_layers);
            cr_assert_eq(count(html, "kv of layer "), plan->n_layers);
            cr_assert_eq(count(html, "<h2>A step of "), 2);
            cr_assert_eq(count(html, "<h2>Levels of the plan</h2>"), plan->n_levels > 1);
            cr_assert_eq(count(html, "<tr class=\"b\"><td>"), plan->n_levels > 1); /* this one */
            cr_assert_eq(count(html, "<title>the whole step</title>"), 2);
            cr_assert_eq(count(html, "<title>one layer</title>"), 2);
            cr_assert(strstr(html, ">gpu</text>") != NULL || l == 0);
            axes_end_with_the_step(html, &plan->levels[l]);
            free(html);
        }
        ps_plan_free(plan);
        gc_close(&c);
    }
}

/* The same instructions as a trace: measured at twice the prediction. */
static ps_trace trace_of(const gpu_case *c, const ps_plan *plan, ps_trace_step *steps, uint32_t n) {
    ps_trace t = {.source = PS_TRACE_MEASURED, .n_steps = n, .steps = steps};
    ps_error e = {0};
    snprintf(t.tool, sizeof t.tool, "test");
    snprintf(t.weights, sizeof t.weights, "mapped <file>");
    memcpy(t.model_hash, plan->model_hash, PS_HASH_BYTES);
    memcpy(t.profile_hash, plan->profile_hash, PS_HASH_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(
            ps_plan_simulate_step(plan, 1, i ? 4 : 0, c->model, c->profile, c->cost, 100, &steps[i], &e),
            PS_OK);
        steps[i].step_s *= 2;
        for (uint32_t k = 0; k < steps[i].n_events; k++) {
            steps[i].events[k].start_s *= 2;
            steps[i].events[k].end_s *= 2;
        }
    }
    return t;
}

Test(html, predicted_against_measured) {
    gpu_case c = gc_shape(&mb_qwen3_30b_a3b);
    ps_plan *plan = build(&c, 4000 * MIB, 2048);
    ps_trace_step steps[2];
    ps_trace t = trace_of(&c, plan, steps, 2);
    uint64_t size;
    char *html = report(plan, 1, &t, &size);
    well_formed(html);
    cr_assert_lt(size, 1000000);
    cr_assert(strstr(html, ">gpu predicted<") && strstr(html, ">gpu measured<") &&
              strstr(html, "mapped &lt;file&gt;"));
    /* Both steps, and every operation of theirs, are predicted at half of what was measured. */
    uint32_t rows = 0;
    for (int s = 0; s < 2; s++) {
        bool seen[PS_QUEUE_COUNT][PS_OP_COUNT] = {{false}};
        for (uint32_t i = 0; i < steps[s].n_events; i++)
            seen[steps[s].events[i].queue][steps[s].events[i].op] = true;
        for (int i = 0; i < PS_QUEUE_COUNT * PS_OP_COUNT; i++)
            rows += seen[i / PS_OP_COUNT][i % PS_OP_COUNT];
    }
    cr_assert_eq(count(html, "<td>0.5</tr>"), rows + 2, "%u rows", rows);
    free(html);
    /* Not of the plan: other hashes, levels, tiers. */
    char *out = NULL;
    ps_error e = {0};
    ps_emit_source source = {.plan = plan, .trace = &t, .level = 1};
    t.model_hash[0] ^= 1;
    cr_assert_eq(ps_emit_html(&source, &out, &size, &e), PS_E_MISMATCH);
    t.model_hash[0] ^= 1;
    steps[1].tier = plan->levels[1].n_tiers;
    cr_assert_eq(ps_emit_html(&source, &out, &size, &e), PS_E_MISMATCH);
    steps[1].tier = 4;
    steps[1].level = 2;
    cr_assert_eq(ps_emit_html(&source, &out, &size, &e), PS_E_MISMATCH);
    steps[1].level = 1;
    /* Events that are of no instruction of the plan, at times beyond all sense. */
    for (uint32_t i = 0; i < steps[0].n_events; i++) {
        steps[0].events[i].instr = UINT32_MAX - i;
        steps[0].events[i].end_s = i % 2 ? 1e300 : steps[0].events[i].start_s;
    }
    html = report(plan, 1, &t, &size);
    cr_assert_lt(size, 1000000);
    free(html);
    for (int i = 0; i < 2; i++)
        free(steps[i].events);
    ps_plan_free(plan);
    gc_close(&c);
}

Test(html, ratios) {
    static const struct {
        double a, b;
        const char *text;
    } cases[] = {{1, 2, "0.5"}, {4.52e-5, 1, "&lt;0.01"}, {0, 1, "0"},
                 {1, 0, "-"},   {3e6, 1, "&gt;1000"},     {2, 3, "0.667"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ps_text *t = ps_text_new();
        uint64_t size;
        ps_html_ratio(t, cases[i].a, cases[i].b);
        char *text = ps_text_end(t, &size);
        cr_assert_str_eq(text, cases[i].text);
        free(text);
    }
}

/* Where bars stand: 1160 pixels from 110 on, 20 a lane, for the longer of prediction and measurement. */
Test(html, lanes) {
    gpu_case c = gc_shape(&mb_llama_small);
    ps_plan *plan = build(&c, 1000 * MIB, 64);
    ps_trace_event events[2] = {{.index = 0,
                                 .queue = PS_QUEUE_GPU,
                                 .op = PS_OP_MATMUL,
                                 .start_s = 1,
                                 .end_s = 3,
                                 .predicted_end_s = 2},
                                {.index = 1,
                                 .queue = PS_QUEUE_H2D,
                                 .op = PS_OP_COPY,
                                 .start_s = 3,
                                 .end_s = 4,
                                 .predicted_start_s = 2,
                                 .predicted_end_s = 3}};
    ps_trace_step step = {
        .level = 1, .n_tokens = 1, .step_s = 4, .predicted_s = 3, .n_events = 2, .events = events};
    ps_trace t = {.source = PS_TRACE_MEASURED, .n_steps = 1, .steps = &step};
    memcpy(t.model_hash, plan->model_hash, PS_HASH_BYTES);
    memcpy(t.profile_hash, plan->profile_hash, PS_HASH_BYTES);
    uint64_t size;
    char *html = report(plan, 1, &t, &size);
    static const char *const bars[] = {"M110 2h580v16h-580z\"/>", "M400 22h580v16h-580z\"/>",
                                       "M690 42h290v16h-290z\"/>", "M980 62h290v16h-290z\"/>"};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(count(html, bars[i]), 1, "%s", bars[i]);
    cr_assert_eq(count(html, "<path class=\"o"), 4);
    free(html);
    ps_plan_free(plan);
    gc_close(&c);
}

Test(html, hostile_text_and_numbers) {
    gpu_case c = gc_shape(&mb_llama_small);
    ps_plan *plan = build(&c, 1000 * MIB, 64);
    uint64_t size;
    snprintf(plan->model_name, sizeof plan->model_name,
             "</title><script src='http://x'>\"&\x01\xff\xe2\x80\xae\xc3\xa9\xe2\x82</script>");
    snprintf(plan->arch, sizeof plan->arch, "<b onload=x>");
    snprintf(plan->facts.cpu_model, sizeof plan->facts.cpu_model, "CPU <b onload=y>");
    snprintf(plan->facts.gpu_name, sizeof plan->facts.gpu_name, "<svg/onload=2>");
    snprintf(plan->levels[1].budget, sizeof plan->levels[1].budget, "<svg/onload=1>");
    snprintf(plan->kernels[0].name, sizeof plan->kernels[0].name, "<i>");
    for (uint32_t i = 0; i < plan->n_kernels; i++)
        snprintf(plan->kernels[i].name, sizeof plan->kernels[i].name, "<i>%u", i);
    char *html = report(plan, 1, NULL, &size);
    cr_assert(!strstr(html, "<script") && !strstr(html, "<b ") && !strstr(html, "<svg/") &&
              !strstr(html, "<i>"));
    cr_assert(
        strstr(html,
               "&lt;/title&gt;&lt;script src=&#39;http://x&#39;&gt;&quot;&amp;???\xc3\xa9??&lt;/script&gt;"),
        "%.600s", strstr(html, "<title>"));
    cr_assert(strstr(html, "<bdi>CPU &lt;b onload=y&gt;</bdi>, <bdi>&lt;svg/onload=2&gt;</bdi>."));
    free(html);
    html = report(plan, 0, NULL, &size); /* without a GPU there is none to name */
    cr_assert(strstr(html, "<bdi>CPU &lt;b onload=y&gt;</bdi>.") && !strstr(html, "onload=2"));
    free(html);
    /* Sizes and times that are no sense at all. */
    ps_level *l = &plan->levels[1];
    l->vram_base_bytes = l->vram_work_bytes = UINT64_MAX - 5;
    l->kv[0].bytes = l->kv[0].offset = UINT64_MAX;
    l->n_seqs = UINT32_MAX;
    for (uint32_t i = 0; i < l->n_resident; i++)
        l->resident[i].offset = UINT64_MAX - i;
    for (uint32_t i = 0; i < l->n_tiers; i++) {
        ps_tier *t = &l->tiers[i];
        t->step_full_s = 0;
        t->vram_scratch_bytes = UINT64_MAX;
        for (uint32_t k = 0; k < plan->programs[t->program].n_instrs; k++)
            t->predicted[k].end_full_s = k % 2 ? 1e300 : t->predicted[k].start_full_s;
    }
    html = report(plan, 1, NULL, &size);
    cr_assert_lt(size, 1000000);
    cr_assert(!strstr(html, "nan") && !strstr(html, "=\"inf"));
    free(html);
    ps_plan_free(plan);
    gc_close(&c);
}
