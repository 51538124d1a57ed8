/* The VRAM of a level as a map: the whole budget, then each arena at its own scale. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "emit/html_internal.h"
#include "schemas/check_state.h"

enum { WIDTH = 1160, LEFT = 110, ROW = 26 };

/* What bytes are for: shard kinds first, so that one is a class too. */
enum { BASE = PS_SHARD_KIND_COUNT, KV, BUFFER, SLOT, SCRATCH, FREE, CLASS_COUNT };
static const char *const class_names[CLASS_COUNT] = {[PS_SHARD_EMBED] = "embedding",
                                                     [PS_SHARD_ATTN] = "attention",
                                                     [PS_SHARD_FFN] = "feed-forward",
                                                     [PS_SHARD_MOE] = "experts",
                                                     [PS_SHARD_HEAD] = "head",
                                                     [BASE] = "CUDA context and libraries",
                                                     [KV] = "KV cache",
                                                     [BUFFER] = "activations",
                                                     [SLOT] = "slots",
                                                     [SCRATCH] = "scratch",
                                                     [FREE] = "not used by the plan"};

/* A row of the map: pixels take the class that was entered last, so a picture's size does not depend on the number of pieces. */
typedef struct strip {
    uint64_t bytes; /* of all pixels */
    uint8_t pixel[WIDTH];
} strip;

static void enter(strip *s, uint64_t offset, uint64_t bytes, uint8_t what) {
    uint64_t end;
    if (!s->bytes || !bytes || !ps_add_u64(offset, bytes, &end) || end > s->bytes)
        return;
    int x = (int)((double)offset / (double)s->bytes * WIDTH),
        y = (int)((double)end / (double)s->bytes * WIDTH);
    if (x >= WIDTH)
        return;
    y = y > x ? y : x + 1;
    memset(s->pixel + x, what, (size_t)((y < WIDTH ? y : WIDTH) - x));
}

static void start(strip *s, uint64_t bytes) {
    s->bytes = bytes;
    memset(s->pixel, FREE, sizeof s->pixel);
}

static void draw(ps_text *t, const strip *s, int y, const char *name) {
    ps_text_printf(t, "<text x=\"0\" y=\"%d\">%s</text>\n", y + 15, name);
    for (int x = 0, n; x < WIDTH; x += n) {
        for (n = 1; x + n < WIDTH && s->pixel[x + n] == s->pixel[x];)
            n++;
        ps_text_printf(
            t, "<rect class=\"m%d\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"><title>%s</title></rect>\n",
            s->pixel[x], LEFT + x, y, n, ROW - 6, class_names[s->pixel[x]]);
    }
}

static void enter_kv(strip *s, const ps_plan *plan, const ps_level *level) {
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        uint64_t bytes;
        if (level->kv[i].space == PS_SPACE_VRAM && ps_mul_u64(level->kv[i].bytes, level->n_seqs, &bytes))
            enter(s, level->kv[i].offset, bytes, KV);
    }
}

static void enter_buffers(strip *s, const ps_plan *plan, const ps_tier *tier) {
    const ps_program *p = &plan->programs[tier->program];
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        uint64_t bytes;
        if (p->buffers[i].space == PS_SPACE_VRAM && ps_buffer_bytes(&p->buffers[i], tier, &bytes))
            enter(s, tier->buffer_offset[i], bytes, p->buffers[i].rows == PS_ROWS_SLOT ? SLOT : BUFFER);
    }
    enter(s, tier->vram_scratch_offset, tier->vram_scratch_bytes, SCRATCH);
}

static ps_shard_kind kind_of(ps_role role, bool moe) {
    switch (role) {
    case PS_ROLE_TOKEN_EMBD:
    case PS_ROLE_ROPE_FREQS:
        return PS_SHARD_EMBED;
    case PS_ROLE_OUTPUT:
    case PS_ROLE_OUTPUT_NORM:
        return PS_SHARD_HEAD;
    default:
        return role < PS_ROLE_FFN_NORM ? PS_SHARD_ATTN : moe ? PS_SHARD_MOE : PS_SHARD_FFN;
    }
}

ps_html_resident ps_html_piece(const ps_plan *plan, const ps_level *level, const bool *moe, uint32_t i) {
    const ps_resident *r = &level->resident[i];
    uint64_t end = i + 1 < level->n_resident ? r[1].offset : level->vram_weight_bytes;
    bool layer_moe = r->range.layer < plan->n_layers && moe[r->range.layer];
    return (ps_html_resident){kind_of(r->range.role, layer_moe), r->offset,
                              end > r->offset ? end - r->offset : 0};
}

static void legend(ps_text *t, const uint64_t *bytes) {
    ps_text_printf(t, "<table><tr><th>VRAM<th>bytes</tr>\n");
    for (int i = 0; i < CLASS_COUNT; i++)
        if (bytes[i]) {
            ps_text_printf(t, "<tr><td><span class=\"k m%d\"></span> %s<td>", i, class_names[i]);
            ps_html_bytes(t, bytes[i]);
            ps_text_printf(t, "</tr>\n");
        }
    ps_text_printf(t, "</table>\n");
}

static void map_style(ps_text *t) {
    static const char *const colours[CLASS_COUNT] = {
        [PS_SHARD_EMBED] = "#777", [PS_SHARD_ATTN] = "#c43", [PS_SHARD_FFN] = "#27c", [PS_SHARD_MOE] = "#74c",
        [PS_SHARD_HEAD] = "#393",  [BASE] = "#999",          [KV] = "#e9a",           [BUFFER] = "#5aa",
        [SLOT] = "#e90",           [SCRATCH] = "#bb5",       [FREE] = "#eee"};
    ps_text_printf(t, "<style>");
    for (int i = 0; i < CLASS_COUNT; i++)
        ps_text_printf(t, ".m%d{fill:%s;background:%s}", i, colours[i], colours[i]);
    ps_text_printf(t, "</style>\n");
}

ps_status ps_html_memory(ps_text *t, const ps_plan *plan, const ps_level *level, const uint32_t *tiers,
                         uint32_t n_tiers, const bool *moe, ps_error *err) {
    strip *s = calloc(1, sizeof *s);
    uint64_t by_class[CLASS_COUNT] = {0}, work = level->vram_base_bytes, weights, used = 0, all, kv = 0;
    if (!s)
        return ps_error_set(err, PS_E_NOMEM, "html", "out of memory");
    map_style(t);
    if (!ps_add_u64(work, level->vram_work_bytes, &weights))
        weights = UINT64_MAX;
    ps_text_printf(t,
                   "<svg viewBox=\"0 0 %d %u\" width=\"%d\" height=\"%u\" role=\"img\"><title>VRAM</title>\n",
                   LEFT + WIDTH + 10, ROW * (2 + n_tiers), LEFT + WIDTH + 10, ROW * (2 + n_tiers));
    start(s, level->budget_bytes);
    enter(s, 0, level->vram_base_bytes, BASE);
    enter(s, work, level->vram_work_bytes, BUFFER);
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        uint64_t bytes, at;
        if (level->kv[i].space != PS_SPACE_VRAM || !ps_mul_u64(level->kv[i].bytes, level->n_seqs, &bytes))
            continue;
        if (ps_add_u64(work, level->kv[i].offset, &at))
            enter(s, at, bytes, KV);
        kv = ps_add_u64(kv, bytes, &all) ? all : kv;
    }
    for (uint32_t i = 0; i < level->n_resident; i++) {
        ps_html_resident r = ps_html_piece(plan, level, moe, i);
        uint64_t at;
        if (ps_add_u64(weights, r.offset, &at))
            enter(s, at, r.bytes, (uint8_t)r.kind);
        by_class[r.kind] = ps_add_u64(by_class[r.kind], r.bytes, &all) ? all : by_class[r.kind];
    }
    draw(t, s, 0, "budget");
    for (uint32_t i = 0; i < n_tiers; i++) {
        char name[40];
        start(s, level->vram_work_bytes);
        enter_buffers(s, plan, &level->tiers[tiers[i]]);
        enter_kv(s, plan, level);
        snprintf(name, sizeof name, "work, step %u", level->tiers[tiers[i]].max_tokens);
        draw(t, s, ROW * (int)(1 + i), name);
    }
    start(s, level->vram_weight_bytes);
    for (uint32_t i = 0; i < level->n_resident; i++) {
        ps_html_resident r = ps_html_piece(plan, level, moe, i);
        enter(s, r.offset, r.bytes, (uint8_t)r.kind);
    }
    draw(t, s, ROW * (int)(1 + n_tiers), "weights");
    ps_text_printf(t, "</svg>\n");
    by_class[BASE] = level->vram_base_bytes;
    by_class[KV] = kv;
    by_class[BUFFER] = level->vram_work_bytes > kv ? level->vram_work_bytes - kv : 0;
    for (int i = 0; i < CLASS_COUNT; i++)
        used = ps_add_u64(used, by_class[i], &all) ? all : UINT64_MAX;
    by_class[FREE] = level->budget_bytes > used ? level->budget_bytes - used : 0;
    legend(t, by_class);
    ps_text_printf(
        t,
        "<p>In the work arena also <span class=\"k m%d\"></span> slots and <span class=\"k "
        "m%d\"></span> scratch, which count as activations and take turns in the same bytes. A piece "
        "of weights reaches "
        "to the next one, the last to the arena's end; a piece below a pixel has one.</p>\n",
        SLOT, SCRATCH);
    free(s);
    return PS_OK;
}
