/* Structure of a plan: what both readers and both writers insist on, and what the checker may rely on. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "schemas/plan_fields.h"

static ps_status prefixed(ps_status status, ps_error *err, const char *kind, uint32_t i) {
    char prefix[48];
    if (status != PS_OK) {
        snprintf(prefix, sizeof prefix, "%s %u", kind, i);
        ps_error_prefix(err, prefix);
    }
    return status;
}

ps_status ps_plan_validate_head(const ps_plan *plan, ps_error *err) {
    if (plan->version != PS_PLAN_VERSION)
        return ps_error_set(err, PS_E_UNSUPPORTED, "pinstripe-plan",
                            "plan version %u, this program knows version %d", plan->version, PS_PLAN_VERSION);
    ps_status status = ps_fields_validate(&ps_plan_head_fields, plan, err);
    if (status != PS_OK)
        return status;
    if (plan->n_layers == 0 || plan->n_shards == 0 || plan->n_programs == 0 || plan->n_levels == 0)
        return ps_error_set(err, PS_E_DATA, "plan", "layers, shards, programs and levels must not be empty");
    for (uint32_t i = 0; i < plan->n_shards; i++) {
        const ps_plan_shard *s = &plan->shards[i];
        status = ps_fields_validate(&ps_plan_shard_fields, s, err);
        if (status == PS_OK && s->layer >= plan->n_layers)
            status = ps_error_set(err, PS_E_DATA, "layer", "%u of %u", s->layer, plan->n_layers);
        if (status != PS_OK)
            return prefixed(status, err, "shard", i);
    }
    return ps_kernel_specs_validate(plan->kernels, plan->n_kernels, err);
}

static ps_status check_slot(const ps_plan_buffer *b, ps_error *err) {
    if (b->value != PS_VALUE_NONE || b->fmt != PS_FMT_NONE || b->space != PS_SPACE_VRAM || b->col0 != 0)
        return ps_error_set(err, PS_E_DATA, "rows",
                            "a slot is in vram, without value, format and first column");
    if (b->cols == 0 || b->cols % PS_RESIDENT_ALIGN != 0)
        return ps_error_set(err, PS_E_DATA, "cols", "bytes of a slot are a multiple of %d",
                            PS_RESIDENT_ALIGN);
    return PS_OK;
}

static ps_status check_buffer(const ps_plan_buffer *b, ps_error *err) {
    ps_status status = ps_fields_validate(&ps_plan_buffer_fields, b, err);
    if (status != PS_OK)
        return status;
    if (b->rows == PS_ROWS_SLOT)
        return check_slot(b, err);
    if (b->value == PS_VALUE_NONE || b->fmt == PS_FMT_NONE)
        return ps_error_set(err, PS_E_DATA, "value", "a buffer needs a value and a format");
    if (b->cols == 0)
        return ps_error_set(err, PS_E_DATA, "cols", "must not be zero");
    if (b->col0 > UINT32_MAX - b->cols)
        return ps_error_set(err, PS_E_DATA, "col0", "columns end behind 2^32");
    if (b->fmt == PS_FMT_Q8 && (b->cols % PS_Q8_GROUP != 0 || b->col0 % PS_Q8_GROUP != 0))
        return ps_error_set(err, PS_E_DATA, "cols", "must be a multiple of %d in q8", PS_Q8_GROUP);
    return PS_OK;
}

static ps_status check_waits(const ps_instr *in, ps_error *err) {
    if (in->n_waits > PS_MAX_WAITS)
        return ps_error_set(err, PS_E_DATA, "wait", "%u waits, at most %d", in->n_waits, PS_MAX_WAITS);
    for (uint32_t i = 0; i < PS_MAX_WAITS; i++) {
        if (i >= in->n_waits && in->wait[i] != 0)
            return ps_error_set(err, PS_E_DATA, "wait", "entries behind the last must be zero");
        if (i < in->n_waits && in->wait[i] <= (i == 0 ? 0 : in->wait[i - 1]))
            return ps_error_set(err, PS_E_DATA, "wait", "distances must ascend from 1");
    }
    return PS_OK;
}

/* An operand's buffer: one of the program, and a slot where it must be one. */
static ps_status check_buffer_index(uint32_t b, bool allowed, bool slot, const ps_program *program,
                                    const char *what, ps_error *err) {
    if (b == PS_NO_BUFFER)
        return PS_OK;
    if (!allowed)
        return ps_error_set(err, PS_E_DATA, what, "the operation has no such operand");
    if (b >= program->n_buffers)
        return ps_error_set(err, PS_E_DATA, what, "buffer %u of %u", b, program->n_buffers);
    if ((program->buffers[b].rows == PS_ROWS_SLOT) != slot)
        return ps_error_set(err, PS_E_DATA, what, "buffer %u is %s slot", b, slot ? "no" : "a");
    return PS_OK;
}

/* What a COPY moves: a value, a weight or KV. */
typedef enum moved { MOVES_NOTHING, MOVES_VALUE, MOVES_WEIGHT, MOVES_KV } moved;

static moved moved_by(const ps_instr *in) {
    if (in->op != PS_OP_COPY)
        return MOVES_NOTHING;
    return in->w[0] != PS_ROLE_NONE ? MOVES_WEIGHT : in->kv != PS_KV_HOME ? MOVES_KV : MOVES_VALUE;
}

static ps_status check_operands(const ps_program *program, const ps_instr *in, moved moves, ps_error *err) {
    const ps_op_info *op = ps_op_get(in->op);
    ps_status status = PS_OK;
    bool has_src = moves == MOVES_NOTHING || moves == MOVES_VALUE;
    for (uint32_t i = 0; status == PS_OK && i < PS_OP_MAX_SRC; i++)
        status = check_buffer_index(in->src[i], has_src && i < op->n_src, false, program, "src", err);
    if (status == PS_OK && moves == MOVES_VALUE && in->src[0] == PS_NO_BUFFER)
        status = ps_error_set(err, PS_E_DATA, "src", "copy needs a source, a weight or a slot of KV");
    bool has_dst = op->n_dst != 0 && moves != MOVES_KV;
    if (status == PS_OK)
        status = check_buffer_index(in->dst, has_dst, moves == MOVES_WEIGHT, program, "dst", err);
    if (status == PS_OK && has_dst && in->dst == PS_NO_BUFFER)
        status = ps_error_set(err, PS_E_DATA, "dst", "%s needs a destination", op->name);
    return status;
}

static ps_status check_weights(const ps_program *program, const ps_instr *in, ps_error *err) {
    const ps_op_info *op = ps_op_get(in->op);
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        if (i >= op->n_weights && in->w[i] != PS_ROLE_NONE)
            return ps_error_set(err, PS_E_DATA, "w", "%s takes at most %u weights", op->name, op->n_weights);
        if (in->at[i] != PS_AT_HOST && (in->w[i] == PS_ROLE_NONE || in->op == PS_OP_COPY))
            return ps_error_set(err, PS_E_DATA, "at", "only for weights that a kernel uses");
        if (in->at[i] < PS_AT_SLOT)
            continue;
        ps_status status =
            check_buffer_index((uint32_t)in->at[i] - PS_AT_SLOT, true, true, program, "at", err);
        if (status != PS_OK)
            return status;
    }
    if (in->kv == PS_KV_HOME)
        return PS_OK;
    if (in->op != PS_OP_KV_STORE && in->op != PS_OP_ATTENTION && moved_by(in) != MOVES_KV)
        return ps_error_set(err, PS_E_DATA, "kv", "only kv_store, attention and copies of KV have one");
    return check_buffer_index((uint32_t)in->kv - PS_KV_SLOT, true, true, program, "kv", err);
}

static ps_status check_ranges(const ps_instr *in, moved moves, ps_error *err) {
    uint64_t end;
    if ((in->n_rows == 0 && in->row0 != 0) || !ps_add_u64(in->row0, in->n_rows, &end) ||
        (moves == MOVES_KV && in->n_rows != 0))
        return ps_error_set(err, PS_E_DATA, "rows", "not a range");
    if ((in->n_cols == 0 && in->col0 != 0) || !ps_add_u64(in->col0, in->n_cols, &end))
        return ps_error_set(err, PS_E_DATA, "cols", "not a range");
    if (in->n_cols != 0 && in->op != PS_OP_MATMUL && moves != MOVES_WEIGHT)
        return ps_error_set(err, PS_E_DATA, "cols", "only matmul and copies of weights have columns");
    if ((unsigned)in->part >= PS_MOE_PART_COUNT ||
        (in->part != PS_MOE_PART_ALL && in->op != PS_OP_MOE_DISPATCH))
        return ps_error_set(err, PS_E_DATA, "part", "only moe_dispatch has parts");
    if ((unsigned)in->when >= PS_WHEN_COUNT ||
        (in->when != PS_WHEN_EVERY && moves != MOVES_WEIGHT && moves != MOVES_KV))
        return ps_error_set(err, PS_E_DATA, "when", "only copies of weights and KV leave out tiles");
    if (in->ahead && (moves != MOVES_WEIGHT || !ps_role_get(in->w[0])->per_layer))
        return ps_error_set(err, PS_E_DATA, "ahead", "only copies of a layer's weights go ahead");
    return PS_OK;
}

static ps_status check_instr(const ps_plan *plan, const ps_program *program, const ps_instr *in,
                             ps_error *err) {
    ps_status status = ps_fields_validate(&ps_plan_instr_fields, in, err);
    if (status != PS_OK)
        return status;
    moved moves = moved_by(in);
    if ((in->op == PS_OP_COPY) != (in->kernel == 0))
        return ps_error_set(err, PS_E_DATA, "kernel", "every operation but copy has a kernel");
    if (in->kernel != 0 && ps_kernel_specs_find(plan->kernels, plan->n_kernels, in->kernel) == NULL)
        return ps_error_set(err, PS_E_DATA, "kernel", "%u is not in the plan's list", in->kernel);
    status = check_weights(program, in, err);
    if (status == PS_OK)
        status = check_operands(program, in, moves, err);
    if (status == PS_OK)
        status = check_ranges(in, moves, err);
    return status == PS_OK ? check_waits(in, err) : status;
}

static ps_status check_block(const ps_plan *plan, const ps_program *program, const ps_block *b,
                             uint32_t instr0, ps_error *err) {
    ps_status status = ps_fields_validate(&ps_plan_block_fields, b, err);
    if (status != PS_OK)
        return status;
    if (b->instr0 != instr0 || b->n_instrs == 0 || b->n_instrs > program->n_instrs - instr0)
        return ps_error_set(err, PS_E_DATA, "instrs",
                            "blocks must hold the instructions one after the other");
    if (b->loop == PS_LOOP_ONCE && (b->layer0 != 0 || b->n_layers != 1))
        return ps_error_set(err, PS_E_DATA, "layers", "a block that runs once has none");
    if (b->n_layers == 0 || !ps_range_ok(b->layer0, b->n_layers, plan->n_layers))
        return ps_error_set(err, PS_E_DATA, "layers", "%u from %u on, the model has %u", b->n_layers,
                            b->layer0, plan->n_layers);
    for (uint32_t i = 0; !b->over_tiles && i < b->n_instrs; i++)
        if (program->instrs[instr0 + i].when != PS_WHEN_EVERY)
            return ps_error_set(err, PS_E_DATA, "when", "instruction %u is in a block without tiles",
                                instr0 + i);
    return PS_OK;
}

static ps_status check_range(const ps_plan *plan, const ps_weight_range *r, ps_error *err) {
    uint64_t end;
    if ((unsigned)r->role >= PS_ROLE_COUNT)
        return ps_error_set(err, PS_E_DATA, "role", "a range is of a weight");
    if (r->layer >= (ps_role_get(r->role)->per_layer ? plan->n_layers : 1))
        return ps_error_set(err, PS_E_DATA, "layer", "%s of layer %u", ps_role_get(r->role)->name, r->layer);
    if (r->n_rows == 0 || !ps_add_u64(r->row0, r->n_rows, &end))
        return ps_error_set(err, PS_E_DATA, "rows", "not a range");
    if ((r->n_cols == 0 && r->col0 != 0) || !ps_add_u64(r->col0, r->n_cols, &end))
        return ps_error_set(err, PS_E_DATA, "cols", "not a range");
    return PS_OK;
}

static ps_status check_entries(const ps_plan *plan, const ps_program *program, ps_error *err) {
    for (uint32_t i = 0; i < program->n_entries; i++) {
        const ps_slot_entry *e = &program->entries[i];
        ps_status status = PS_OK;
        if (i != 0 && e->slot <= program->entries[i - 1].slot)
            status = ps_error_set(err, PS_E_DATA, "slot", "slots must ascend");
        else if (e->slot >= program->n_buffers || program->buffers[e->slot].rows != PS_ROWS_SLOT)
            status = ps_error_set(err, PS_E_DATA, "slot", "buffer %u is no slot", e->slot);
        if (status == PS_OK)
            status = check_range(plan, &e->range, err);
        if (status != PS_OK)
            return prefixed(status, err, "entry", i);
    }
    return PS_OK;
}

ps_status ps_plan_validate_program(const ps_plan *plan, const ps_program *program, ps_error *err) {
    ps_status status = PS_OK;
    if (program->n_buffers > PS_PLAN_MAX_BUFFERS)
        return ps_error_set(err, PS_E_DATA, "buffers", "%u, at most %d", program->n_buffers,
                            PS_PLAN_MAX_BUFFERS);
    for (uint32_t i = 0; i < program->n_buffers; i++)
        if ((status = check_buffer(&program->buffers[i], err)) != PS_OK)
            return prefixed(status, err, "buffer", i);
    for (uint32_t i = 0; i < program->n_instrs; i++)
        if ((status = check_instr(plan, program, &program->instrs[i], err)) != PS_OK)
            return prefixed(status, err, "instruction", i);
    uint32_t instr0 = 0;
    for (uint32_t i = 0; i < program->n_blocks; i++) {
        if ((status = check_block(plan, program, &program->blocks[i], instr0, err)) != PS_OK)
            return prefixed(status, err, "block", i);
        instr0 += program->blocks[i].n_instrs;
    }
    if (instr0 != program->n_instrs || instr0 == 0)
        return ps_error_set(err, PS_E_DATA, "blocks", "%u of %u instructions are in blocks", instr0,
                            program->n_instrs);
    if (ps_program_length(program, PS_PLAN_MAX_TOKENS / PS_TILE_TOKENS) > PS_PLAN_MAX_STREAM)
        return ps_error_set(err, PS_E_DATA, "blocks", "more than %d instructions in a step",
                            PS_PLAN_MAX_STREAM);
    return check_entries(plan, program, err);
}

static ps_status check_times(const double *times, uint32_t n, const char *what, ps_error *err) {
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(times[i]) || times[i] < 0)
            return ps_error_set(err, PS_E_DATA, what, "times must be finite and not negative");
    return PS_OK;
}

static ps_status check_predictions(const ps_tier *tier, const ps_program *program, ps_error *err) {
    for (uint32_t i = 0; i < program->n_instrs; i++) {
        const ps_prediction *p = &tier->predicted[i];
        const double times[] = {p->start_empty_s, p->end_empty_s, p->start_full_s, p->end_full_s};
        ps_status status = check_times(times, 4, "predicted", err);
        if (status == PS_OK && (p->end_empty_s < p->start_empty_s || p->end_full_s < p->start_full_s))
            status = ps_error_set(err, PS_E_DATA, "predicted", "an instruction ends before it starts");
        if (status != PS_OK)
            return prefixed(status, err, "instruction", i);
    }
    return PS_OK;
}

static ps_status check_tier(const ps_plan *plan, const ps_tier *tier, ps_error *err) {
    ps_status status = ps_fields_validate(&ps_plan_tier_fields, tier, err);
    if (status != PS_OK)
        return status;
    if (tier->max_tokens == 0 || tier->max_tokens > PS_PLAN_MAX_TOKENS)
        return ps_error_set(err, PS_E_DATA, "max_tokens", "must be from 1 to %d, is %u", PS_PLAN_MAX_TOKENS,
                            tier->max_tokens);
    if (tier->program >= plan->n_programs)
        return ps_error_set(err, PS_E_DATA, "program", "%u of %u", tier->program, plan->n_programs);
    if (tier->max_outputs == 0 || tier->max_outputs > tier->max_tokens)
        return ps_error_set(err, PS_E_DATA, "max_outputs", "must be from 1 to max_tokens, is %u",
                            tier->max_outputs);
    const ps_program *program = &plan->programs[tier->program];
    for (uint32_t i = 0; i < program->n_buffers; i++) {
        uint32_t align = program->buffers[i].rows == PS_ROWS_SLOT ? PS_RESIDENT_ALIGN : PS_ARENA_ALIGN;
        if (tier->buffer_offset[i] % align != 0)
            return ps_error_set(err, PS_E_DATA, "buffer_offset", "offset of buffer %u is no multiple of %u",
                                i, align);
    }
    if (tier->scratch_offset % PS_ARENA_ALIGN != 0)
        return ps_error_set(err, PS_E_DATA, "scratch_offset", "no multiple of %d", PS_ARENA_ALIGN);
    if (tier->vram_scratch_offset % PS_RESIDENT_ALIGN != 0)
        return ps_error_set(err, PS_E_DATA, "vram_scratch_offset", "no multiple of %d", PS_RESIDENT_ALIGN);
    if (tier->max_direct > PS_MAX_EXPERTS)
        return ps_error_set(err, PS_E_DATA, "max_direct", "%u, at most %d", tier->max_direct, PS_MAX_EXPERTS);
    const double times[] = {tier->step_empty_s, tier->step_full_s, tier->raw_bound_s,
                            tier->reachable_bound_s};
    status = check_times(times, 4, "step times", err);
    if (status == PS_OK)
        status = check_times(tier->block_period_empty_s, program->n_blocks, "block_period_empty_s", err);
    if (status == PS_OK)
        status = check_times(tier->block_period_full_s, program->n_blocks, "block_period_full_s", err);
    return status == PS_OK ? check_predictions(tier, program, err) : status;
}

static ps_status check_residents(const ps_plan *plan, const ps_level *level, ps_error *err) {
    for (uint32_t i = 0; i < level->n_resident; i++) {
        const ps_resident *r = &level->resident[i];
        ps_status status = check_range(plan, &r->range, err);
        if (status == PS_OK && r->offset % PS_RESIDENT_ALIGN != 0)
            status = ps_error_set(err, PS_E_DATA, "offset", "no multiple of %d", PS_RESIDENT_ALIGN);
        if (status == PS_OK && i != 0 && r->offset <= level->resident[i - 1].offset)
            status = ps_error_set(err, PS_E_DATA, "offset", "offsets must ascend");
        if (status != PS_OK)
            return prefixed(status, err, "resident piece", i);
    }
    return PS_OK;
}

ps_status ps_plan_validate_level(const ps_plan *plan, const ps_level *level, ps_error *err) {
    ps_status status = ps_fields_validate(&ps_plan_level_fields, level, err);
    if (status != PS_OK)
        return status;
    if (level->bucket_tokens == 0 || level->n_seqs == 0 || level->n_threads == 0 || level->n_tiers == 0)
        return ps_error_set(err, PS_E_DATA, "level", "bucket, sequences, threads and tiers must not be zero");
    if (level->n_tiers > PS_PLAN_MAX_TIERS)
        return ps_error_set(err, PS_E_DATA, "tiers", "%u, at most %d", level->n_tiers, PS_PLAN_MAX_TIERS);
    if (level->vram_work_bytes % PS_VRAM_ALIGN != 0 || level->vram_weight_bytes % PS_VRAM_ALIGN != 0)
        return ps_error_set(err, PS_E_DATA, "vram", "both arenas are multiples of %d bytes", PS_VRAM_ALIGN);
    for (uint32_t i = 0; i < plan->n_shards; i++)
        if ((unsigned)level->placement[i] >= PS_PLACE_COUNT)
            return ps_error_set(err, PS_E_DATA, "placement", "unknown placement of shard %u", i);
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        status = ps_fields_validate(&ps_plan_kv_fields, &level->kv[i], err);
        if (status == PS_OK && level->kv[i].offset % PS_ARENA_ALIGN != 0)
            status = ps_error_set(err, PS_E_DATA, "offset", "no multiple of %d", PS_ARENA_ALIGN);
        if (status != PS_OK)
            return prefixed(status, err, "kv of layer", i);
    }
    if ((status = check_residents(plan, level, err)) != PS_OK)
        return status;
    for (uint32_t i = 0; i < level->n_tiers; i++) {
        status = check_tier(plan, &level->tiers[i], err);
        if (status == PS_OK && i != 0 && level->tiers[i].max_tokens <= level->tiers[i - 1].max_tokens)
            status = ps_error_set(err, PS_E_DATA, "max_tokens", "tiers must ascend");
        if (status != PS_OK)
            return prefixed(status, err, "tier", i);
    }
    return PS_OK;
}

static int compare_u64(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b;
}

static int compare_levels(const ps_level *a, const ps_level *b) {
    int c = compare_u64(a->budget_bytes, b->budget_bytes);
    if (c == 0)
        c = compare_u64(a->bucket_tokens, b->bucket_tokens);
    if (c == 0)
        c = compare_u64(a->n_seqs, b->n_seqs);
    return c != 0 ? c : compare_u64(a->n_threads, b->n_threads);
}

/* Budgets are chosen by name: each has one of its own, and "host" is the one without VRAM. Levels ascend, so those of one budget
 * stand together. firsts: the first level of every budget so far. */
static ps_status check_budget(const ps_level *level, const ps_level *firsts[PS_PLAN_MAX_BUDGETS], uint32_t *n,
                              ps_error *err) {
    const ps_level *last = *n ? firsts[*n - 1] : NULL;
    if (level->budget[0] == '\0' || (strcmp(level->budget, "host") == 0) != (level->budget_bytes == 0))
        return ps_error_set(err, PS_E_DATA, "budget",
                            "\"%.24s\" with %llu bytes: host, and it alone, has none", level->budget,
                            (unsigned long long)level->budget_bytes);
    if (last && last->budget_bytes == level->budget_bytes)
        return strcmp(last->budget, level->budget) == 0
                   ? PS_OK
                   : ps_error_set(err, PS_E_DATA, "budget", "\"%.24s\" and \"%.24s\" have the same bytes",
                                  last->budget, level->budget);
    for (uint32_t i = 0; i < *n; i++)
        if (strcmp(firsts[i]->budget, level->budget) == 0)
            return ps_error_set(err, PS_E_DATA, "budget", "\"%.24s\" has other bytes before", level->budget);
    if (*n == PS_PLAN_MAX_BUDGETS)
        return ps_error_set(err, PS_E_DATA, "budget", "more than %d of them", PS_PLAN_MAX_BUDGETS);
    firsts[(*n)++] = level;
    return PS_OK;
}

ps_status ps_plan_validate(const ps_plan *plan, ps_error *err) {
    const ps_level *budgets[PS_PLAN_MAX_BUDGETS];
    uint32_t n_budgets = 0;
    ps_status status = ps_plan_validate_head(plan, err);
    for (uint32_t i = 0; status == PS_OK && i < plan->n_programs; i++)
        status = prefixed(ps_plan_validate_program(plan, &plan->programs[i], err), err, "program", i);
    for (uint32_t i = 0; status == PS_OK && i < plan->n_levels; i++) {
        status = ps_plan_validate_level(plan, &plan->levels[i], err);
        if (status == PS_OK && i != 0 && compare_levels(&plan->levels[i - 1], &plan->levels[i]) >= 0)
            status = ps_error_set(err, PS_E_DATA, "budget_bytes",
                                  "levels must ascend by budget, bucket, sequences, threads");
        if (status == PS_OK)
            status = check_budget(&plan->levels[i], budgets, &n_budgets, err);
        status = prefixed(status, err, "level", i);
    }
    return status;
}
