/* Plan to YAML: sections in a fixed order, one instruction per line, names instead of numbers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "schemas/plan_fields.h"

enum { NAME_BYTES = 64 };

/* Names of a program's buffers: value.format, or slot, then ".vram", then ".2", ".3" where that is taken. */
static void name_buffers(const ps_program *program, char (*names)[NAME_BYTES]) {
    for (uint32_t i = 0; i < program->n_buffers; i++) {
        const ps_plan_buffer *b = &program->buffers[i];
        uint32_t same = 1;
        for (uint32_t k = 0; k < i; k++) {
            const ps_plan_buffer *o = &program->buffers[k];
            same += o->rows == PS_ROWS_SLOT ? b->rows == PS_ROWS_SLOT
                                            : o->value == b->value && o->fmt == b->fmt &&
                                                  o->space == b->space && b->rows != PS_ROWS_SLOT;
        }
        int n = b->rows == PS_ROWS_SLOT
                    ? snprintf(names[i], NAME_BYTES, "slot")
                    : snprintf(names[i], NAME_BYTES, "%s.%s%s", ps_value_name(b->value), ps_fmt_name(b->fmt),
                               b->space == PS_SPACE_VRAM ? ".vram" : "");
        if (same > 1)
            snprintf(names[i] + n, NAME_BYTES - (size_t)n, ".%u", same);
    }
}

/* Where the weights are, left out where all are in host memory. */
static void write_places(ps_text *t, const ps_instr *in, uint32_t n_w, char (*names)[NAME_BYTES]) {
    bool all_host = true;
    for (uint32_t i = 0; i < n_w; i++)
        all_host = all_host && in->at[i] == PS_AT_HOST;
    for (uint32_t i = 0; i < n_w && !all_host; i++)
        ps_text_printf(t, "%s%s%s", i == 0 ? ", at: [" : ", ",
                       in->at[i] == PS_AT_HOST   ? "host"
                       : in->at[i] == PS_AT_VRAM ? "vram"
                                                 : names[in->at[i] - PS_AT_SLOT],
                       i + 1 == n_w ? "]" : "");
}

static void write_instr(ps_text *t, const ps_plan *plan, const ps_instr *in, char (*names)[NAME_BYTES]) {
    ps_text_printf(t, "          - {op: %s, queue: %s, shard: %s", ps_op_get(in->op)->name,
                   ps_queue_name(in->queue), ps_shard_kind_name(in->shard));
    if (in->kernel != 0)
        ps_text_printf(t, ", kernel: %s",
                       ps_kernel_specs_find(plan->kernels, plan->n_kernels, in->kernel)->name);
    /* Operands have positions: an absent one before a present one is written "none". */
    uint32_t n_w = 0, n_src = 0;
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        n_w = in->w[i] != PS_ROLE_NONE ? i + 1 : n_w;
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++)
        n_src = in->src[i] != PS_NO_BUFFER ? i + 1 : n_src;
    for (uint32_t i = 0; i < n_w; i++)
        ps_text_printf(t, "%s%s%s", i == 0 ? ", w: [" : ", ",
                       in->w[i] != PS_ROLE_NONE ? ps_role_get(in->w[i])->name : "none",
                       i + 1 == n_w ? "]" : "");
    write_places(t, in, n_w, names);
    if (in->n_rows != 0)
        ps_text_printf(t, ", rows: [%" PRIu64 ", %" PRIu64 "]", in->row0, in->n_rows);
    if (in->n_cols != 0)
        ps_text_printf(t, ", cols: [%" PRIu64 ", %" PRIu64 "]", in->col0, in->n_cols);
    if (in->part != PS_MOE_PART_ALL)
        ps_text_printf(t, ", part: %s", ps_names_part.name_of(in->part));
    if (in->when != PS_WHEN_EVERY)
        ps_text_printf(t, ", when: %s", ps_names_when.name_of(in->when));
    if (in->ahead)
        ps_write_str(t, ", ahead: true");
    if (in->kv != PS_KV_HOME)
        ps_text_printf(t, ", kv: %s", names[in->kv - PS_KV_SLOT]);
    for (uint32_t i = 0; i < n_src; i++)
        ps_text_printf(t, "%s%s%s", i == 0 ? ", src: [" : ", ",
                       in->src[i] != PS_NO_BUFFER ? names[in->src[i]] : "none", i + 1 == n_src ? "]" : "");
    if (in->dst != PS_NO_BUFFER)
        ps_text_printf(t, ", dst: %s", names[in->dst]);
    for (uint32_t i = 0; i < in->n_waits; i++)
        ps_text_printf(t, "%s%u%s", i == 0 ? ", wait: [" : ", ", in->wait[i],
                       i + 1 == in->n_waits ? "]" : "");
    ps_text_printf(t, "}\n");
}

static bool write_program(ps_text *t, const ps_plan *plan, const ps_program *program) {
    char(*names)[NAME_BYTES] = malloc((program->n_buffers == 0 ? 1 : program->n_buffers) * sizeof *names);
    if (names == NULL)
        return false;
    name_buffers(program, names);
    ps_text_printf(t, "  - buffers:%s\n", program->n_buffers == 0 ? " []" : "");
    for (uint32_t i = 0; i < program->n_buffers; i++) {
        ps_text_printf(t, "      - {name: %s, ", names[i]);
        ps_fields_write_flow(t, &ps_plan_buffer_fields, &program->buffers[i]);
        ps_write_str(t, "}\n");
    }
    ps_write_str(t, "    blocks:\n");
    for (uint32_t i = 0; i < program->n_blocks; i++) {
        const ps_block *b = &program->blocks[i];
        if (b->loop == PS_LOOP_LAYERS)
            ps_text_printf(t, "      - loop: layers\n        layers: [%u, %u]\n", b->layer0, b->n_layers);
        else
            ps_write_str(t, "      - loop: once\n");
        ps_text_printf(t, "        over_tiles: %s\n        instrs:\n", b->over_tiles ? "true" : "false");
        for (uint32_t k = 0; k < b->n_instrs; k++)
            write_instr(t, plan, &program->instrs[b->instr0 + k], names);
    }
    ps_text_printf(t, "    entries:%s\n", program->n_entries == 0 ? " []" : "");
    for (uint32_t i = 0; i < program->n_entries; i++) {
        const ps_slot_entry *e = &program->entries[i];
        ps_text_printf(t, "      - {slot: %s, role: %s, layer: %u, rows: [%" PRIu64 ", %" PRIu64 "]",
                       names[e->slot], ps_role_get(e->range.role)->name, e->range.layer, e->range.row0,
                       e->range.n_rows);
        if (e->range.n_cols != 0)
            ps_text_printf(t, ", cols: [%" PRIu64 ", %" PRIu64 "]", e->range.col0, e->range.n_cols);
        ps_write_str(t, "}\n");
    }
    free(names);
    return true;
}

static void write_f64_list(ps_text *t, const char *key, const double *v, uint32_t n) {
    ps_text_printf(t, "        %s: [", key);
    for (uint32_t i = 0; i < n; i++) {
        ps_write_str(t, i == 0 ? "" : ", ");
        ps_write_f64(t, v[i]);
    }
    ps_write_str(t, "]\n");
}

static void write_tier(ps_text *t, const ps_plan *plan, const ps_tier *tier) {
    const ps_program *program = &plan->programs[tier->program];
    ps_write_str(t, "      -\n");
    ps_fields_write_lines(t, 8, &ps_plan_tier_fields, tier);
    ps_write_str(t, "        buffer_offset: [");
    for (uint32_t i = 0; i < program->n_buffers; i++)
        ps_text_printf(t, "%s%" PRIu64, i == 0 ? "" : ", ", tier->buffer_offset[i]);
    ps_write_str(t, "]\n");
    write_f64_list(t, "block_period_empty_s", tier->block_period_empty_s, program->n_blocks);
    write_f64_list(t, "block_period_full_s", tier->block_period_full_s, program->n_blocks);
    ps_write_str(t, "        predicted:\n");
    ps_fields_write_table(t, 10, &ps_plan_prediction_fields, tier->predicted, program->n_instrs,
                          sizeof *tier->predicted);
}

static void write_level(ps_text *t, const ps_plan *plan, const ps_level *level) {
    ps_write_str(t, "  -\n");
    ps_fields_write_lines(t, 4, &ps_plan_level_fields, level);
    ps_write_str(t, "    placement: [");
    for (uint32_t i = 0; i < plan->n_shards; i++)
        ps_text_printf(t, "%s%s", i == 0 ? "" : ", ", ps_placement_name(level->placement[i]));
    ps_write_str(t, "]\n    kv:\n");
    ps_fields_write_table(t, 6, &ps_plan_kv_fields, level->kv, plan->n_layers, sizeof *level->kv);
    ps_write_str(t, "    resident:\n");
    ps_fields_write_table(t, 6, &ps_plan_resident_fields, level->resident, level->n_resident,
                          sizeof *level->resident);
    ps_write_str(t, "    tiers:\n");
    for (uint32_t i = 0; i < level->n_tiers; i++)
        write_tier(t, plan, &level->tiers[i]);
}

ps_status ps_plan_to_yaml(const ps_plan *plan, char **out, uint64_t *out_size, ps_error *err) {
    *out = NULL;
    ps_status status = ps_plan_validate(plan, err);
    if (status != PS_OK)
        return status;
    ps_text *t = ps_text_new();
    ps_text_printf(t, "# Pinstripe plan; SI units; docs/plan-format.md describes it.\npinstripe-plan: %u\n",
                   plan->version);
    ps_fields_write_lines(t, 0, &ps_plan_head_fields, plan);
    ps_write_str(t, "shards:\n");
    ps_fields_write_table(t, 2, &ps_plan_shard_fields, plan->shards, plan->n_shards, sizeof *plan->shards);
    ps_write_str(t, "kernels:\n");
    ps_fields_write_table(t, 2, &ps_kernel_spec_fields, plan->kernels, plan->n_kernels,
                          sizeof *plan->kernels);
    ps_write_str(t, "programs:\n");
    bool ok = true;
    for (uint32_t i = 0; ok && i < plan->n_programs; i++)
        ok = write_program(t, plan, &plan->programs[i]);
    ps_write_str(t, "levels:\n");
    for (uint32_t i = 0; ok && i < plan->n_levels; i++)
        write_level(t, plan, &plan->levels[i]);
    char *text = ps_text_end(t, out_size);
    if (!ok || text == NULL) {
        free(text);
        return ps_error_set(err, PS_E_NOMEM, "plan", "no memory for its text");
    }
    if (*out_size > PS_PLAN_MAX_BYTES) {
        free(text);
        return ps_error_set(err, PS_E_DATA, "plan", "its YAML form would be larger than %d bytes",
                            PS_PLAN_MAX_BYTES);
    }
    *out = text;
    return PS_OK;
}
