/* Records of the plan as tables, shared by its YAML and binary forms. Private to schemas/. */
#ifndef PS_SCHEMAS_PLAN_FIELDS_H
#define PS_SCHEMAS_PLAN_FIELDS_H

#include "schemas/fields.h"
#include "schemas/kernel_fields.h"
#include "schemas/plan.h"

extern const ps_fields ps_plan_head_fields;       /* ps_plan, without counts */
extern const ps_fields ps_plan_count_fields;      /* ps_plan: the counts */
extern const ps_fields ps_plan_shard_fields;      /* ps_plan_shard */
extern const ps_fields ps_plan_buffer_fields;     /* ps_plan_buffer */
extern const ps_fields ps_plan_block_fields;      /* ps_block */
extern const ps_fields ps_plan_instr_fields;      /* ps_instr: the binary form; YAML has its own */
extern const ps_fields ps_plan_program_fields;    /* ps_program: the counts */
extern const ps_fields ps_plan_entry_fields;      /* ps_slot_entry */
extern const ps_fields ps_plan_resident_fields;   /* ps_resident */
extern const ps_fields ps_plan_level_fields;      /* ps_level, without its counts */
extern const ps_fields ps_plan_kv_fields;         /* ps_kv_home */
extern const ps_fields ps_plan_tier_fields;       /* ps_tier: the scalars */
extern const ps_fields ps_plan_prediction_fields; /* ps_prediction */

/* The two readers proper, without the file and without validation. */
ps_status ps_plan_parse_yaml(const char *text, uint64_t size, const char *label, ps_plan **out,
                             ps_error *err);
ps_status ps_plan_parse_binary(const uint8_t *data, uint64_t size, const char *label, ps_plan **out,
                               ps_error *err);

/* Validation of the parts; ps_plan_validate does all. */
ps_status ps_plan_validate_head(const ps_plan *plan, ps_error *err);
ps_status ps_plan_validate_program(const ps_plan *plan, const ps_program *program, ps_error *err);
ps_status ps_plan_validate_level(const ps_plan *plan, const ps_level *level, ps_error *err);

#define PS_PLAN_MAGIC "PSPL"

#endif
