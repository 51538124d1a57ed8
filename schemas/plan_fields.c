/* One row per field of the plan's records. */
#include "schemas/plan_fields.h"

#define F(record, member, type) PS_FIELD(record, member, #member, type)
#define N(record, member, names) PS_FIELD_NAMED(record, member, #member, &ps_names_##names)

static const ps_field head_rows[] = {
    F(ps_plan, tool, CHARS),
    F(ps_plan, created, CHARS),
    F(ps_plan, arch, CHARS),
    F(ps_plan, model_name, CHARS),
    F(ps_plan, model_hash, HASH),
    F(ps_plan, profile_hash, HASH),
    F(ps_plan, machine_hash, HASH),
    F(ps_plan, kernel_set, HASH),
    F(ps_plan, synthetic_profile, BOOL),
    F(ps_plan, n_layers, U32),
    PS_FIELD(ps_plan, facts.cpu_model, "cpu_model", CHARS),
    PS_FIELD(ps_plan, facts.n_allowed, "n_allowed", U32),
    PS_FIELD(ps_plan, facts.memory_bytes, "memory_bytes", U64),
    PS_FIELD(ps_plan, facts.gpu_name, "gpu_name", CHARS),
    PS_FIELD(ps_plan, facts.gpu_hash, "gpu_hash", HASH),
    PS_FIELD(ps_plan, facts.gpu_driver, "gpu_driver", CHARS),
    PS_FIELD(ps_plan, facts.vram_bytes, "vram_bytes", U64),
};
static const ps_field count_rows[] = {
    F(ps_plan, n_shards, U32),
    F(ps_plan, n_kernels, U32),
    F(ps_plan, n_programs, U32),
    F(ps_plan, n_levels, U32),
};
static const ps_field shard_rows[] = {
    N(ps_plan_shard, kind, shard_kind),
    F(ps_plan_shard, layer, U32),
    F(ps_plan_shard, weight_bytes, U64),
};
static const ps_field buffer_rows[] = {
    N(ps_plan_buffer, value, value), N(ps_plan_buffer, space, space), N(ps_plan_buffer, fmt, fmt),
    N(ps_plan_buffer, rows, rows),   F(ps_plan_buffer, col0, U32),    F(ps_plan_buffer, cols, U32),
};
static const ps_field block_rows[] = {
    N(ps_block, loop, loop),       F(ps_block, layer0, U32), F(ps_block, n_layers, U32),
    F(ps_block, over_tiles, BOOL), F(ps_block, instr0, U32), F(ps_block, n_instrs, U32),
};
static const ps_field instr_rows[] = {
    N(ps_instr, op, op),       N(ps_instr, queue, queue),
    F(ps_instr, kernel, U32),  N(ps_instr, shard, shard_kind),
    N(ps_instr, w[0], role),   N(ps_instr, w[1], role),
    N(ps_instr, w[2], role),   F(ps_instr, at[0], U16),
    F(ps_instr, at[1], U16),   F(ps_instr, at[2], U16),
    F(ps_instr, kv, U16),      F(ps_instr, row0, U64),
    F(ps_instr, n_rows, U64),  F(ps_instr, col0, U64),
    F(ps_instr, n_cols, U64),  N(ps_instr, part, part),
    N(ps_instr, when, when),   F(ps_instr, ahead, BOOL),
    F(ps_instr, src[0], U16),  F(ps_instr, src[1], U16),
    F(ps_instr, src[2], U16),  F(ps_instr, dst, U16),
    F(ps_instr, n_waits, U32), F(ps_instr, wait[0], U32),
    F(ps_instr, wait[1], U32), F(ps_instr, wait[2], U32),
    F(ps_instr, wait[3], U32), F(ps_instr, wait[4], U32),
    F(ps_instr, wait[5], U32),
};
_Static_assert(PS_OP_MAX_WEIGHTS == 3 && PS_OP_MAX_SRC == 3 && PS_OP_MAX_DST == 1 && PS_MAX_WAITS == 6,
               "instr_rows lists every element");
static const ps_field program_rows[] = {
    F(ps_program, n_buffers, U32),
    F(ps_program, n_instrs, U32),
    F(ps_program, n_blocks, U32),
    F(ps_program, n_entries, U32),
};
static const ps_field entry_rows[] = {
    F(ps_slot_entry, slot, U16),         N(ps_slot_entry, range.role, role),
    F(ps_slot_entry, range.layer, U32),  F(ps_slot_entry, range.row0, U64),
    F(ps_slot_entry, range.n_rows, U64), F(ps_slot_entry, range.col0, U64),
    F(ps_slot_entry, range.n_cols, U64),
};
static const ps_field resident_rows[] = {
    PS_FIELD_NAMED(ps_resident, range.role, "role", &ps_names_role),
    PS_FIELD(ps_resident, range.layer, "layer", U32),
    PS_FIELD(ps_resident, range.row0, "row0", U64),
    PS_FIELD(ps_resident, range.n_rows, "n_rows", U64),
    PS_FIELD(ps_resident, range.col0, "col0", U64),
    PS_FIELD(ps_resident, range.n_cols, "n_cols", U64),
    F(ps_resident, offset, U64),
};
static const ps_field level_rows[] = {
    F(ps_level, budget, CHARS),        F(ps_level, budget_bytes, U64),
    F(ps_level, bucket_tokens, U64),   F(ps_level, n_seqs, U32),
    F(ps_level, n_threads, U32),       F(ps_level, host_arena_bytes, U64),
    F(ps_level, vram_work_bytes, U64), F(ps_level, vram_weight_bytes, U64),
    F(ps_level, vram_base_bytes, U64), F(ps_level, peak_host_bytes, U64),
};
static const ps_field kv_rows[] = {
    N(ps_kv_home, space, space),
    F(ps_kv_home, offset, U64),
    F(ps_kv_home, rows, U64),
    F(ps_kv_home, bytes, U64),
};
static const ps_field tier_rows[] = {
    F(ps_tier, max_tokens, U32),         F(ps_tier, program, U32),       F(ps_tier, max_outputs, U32),
    F(ps_tier, scratch_offset, U64),     F(ps_tier, scratch_bytes, U64), F(ps_tier, vram_scratch_offset, U64),
    F(ps_tier, vram_scratch_bytes, U64), F(ps_tier, max_direct, U32),    F(ps_tier, step_empty_s, F64),
    F(ps_tier, step_full_s, F64),        F(ps_tier, raw_bound_s, F64),   F(ps_tier, reachable_bound_s, F64),
};
static const ps_field prediction_rows[] = {
    F(ps_prediction, start_empty_s, F64),
    F(ps_prediction, end_empty_s, F64),
    F(ps_prediction, start_full_s, F64),
    F(ps_prediction, end_full_s, F64),
};

const ps_fields ps_plan_head_fields = PS_FIELDS(head_rows);
const ps_fields ps_plan_count_fields = PS_FIELDS(count_rows);
const ps_fields ps_plan_shard_fields = PS_FIELDS(shard_rows);
const ps_fields ps_plan_buffer_fields = PS_FIELDS(buffer_rows);
const ps_fields ps_plan_block_fields = PS_FIELDS(block_rows);
const ps_fields ps_plan_instr_fields = PS_FIELDS(instr_rows);
const ps_fields ps_plan_program_fields = PS_FIELDS(program_rows);
const ps_fields ps_plan_entry_fields = PS_FIELDS(entry_rows);
const ps_fields ps_plan_resident_fields = PS_FIELDS(resident_rows);
const ps_fields ps_plan_level_fields = PS_FIELDS(level_rows);
const ps_fields ps_plan_kv_fields = PS_FIELDS(kv_rows);
const ps_fields ps_plan_tier_fields = PS_FIELDS(tier_rows);
const ps_fields ps_plan_prediction_fields = PS_FIELDS(prediction_rows);
