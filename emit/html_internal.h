/* Inside of the HTML report: escaped text, numbers for people, and the pictures. */
#ifndef PS_EMIT_HTML_INTERNAL_H
#define PS_EMIT_HTML_INTERNAL_H

#include "core/text.h"
#include "emit/emit.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Layers that are drawn one by one; pictures and tables end there and say so. */
enum { PS_HTML_MAX_LAYERS = 256 };

/* What the pictures of one tier show. step: of the trace, or NULL: as the plan predicts it at the full bucket. */
typedef struct ps_html_tier {
    const ps_plan *plan;
    const ps_level *level;
    uint32_t tier; /* of the level */
    const ps_trace_step *step;
    bool measured; /* the step's times were measured */
} ps_html_tier;

/* Text from a file: markup escaped, what is not UTF-8 or is a control character as '?'. At most 256 bytes of it. */
void ps_html_text(ps_text *t, const char *s);
/* "1.23 MB", "4.56 ms" */
void ps_html_bytes(ps_text *t, uint64_t bytes);
void ps_html_time(ps_text *t, double s);
/* a / b with three digits, below 0.01 and above 1000 no more than that; "-" where there is no b. */
void ps_html_ratio(ps_text *t, double a, double b);

/* Where each shard's bytes are: resident extents by layer and kind. Without the model a piece's bytes are those up to the next
 * piece, alignment included. */
typedef struct ps_html_resident {
    ps_shard_kind kind;
    uint64_t offset, bytes;
} ps_html_resident;
ps_html_resident ps_html_piece(const ps_plan *plan, const ps_level *level, const bool *moe, uint32_t i);

/* Style sheet of the pictures' classes. */
void ps_html_svg_style(ps_text *t);
/* The whole step as lanes, one round of its longest block in detail, and the table of its operations. Errors: PS_E_NOMEM. */
ps_status ps_html_lanes(ps_text *t, const ps_html_tier *tier, ps_error *err);
/* VRAM: base, work arena with KV and buffers of the tiers, resident pieces. moe: [n_layers], whether its block is a mixture.
 * Errors: PS_E_NOMEM. */
ps_status ps_html_memory(ps_text *t, const ps_plan *plan, const ps_level *level, const uint32_t *tiers,
                         uint32_t n_tiers, const bool *moe, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
