/* What the files that read and write a machine profile share. Private to schemas/. */
#ifndef PS_SCHEMAS_PROFILE_FIELDS_H
#define PS_SCHEMAS_PROFILE_FIELDS_H

#include "schemas/fields.h"
#include "schemas/machine_profile.h"

/* n, median, quartiles and why sampling stopped, of the ps_stat `member` of `record`; "" : it is the record. */
#define PS_STAT_ROWS(record, member, unit)                                                                   \
    PS_FIELD(record, member n, "n", U32), PS_FIELD(record, member median, "median" unit, F64),               \
        PS_FIELD(record, member q1, "q1" unit, F64), PS_FIELD(record, member q3, "q3" unit, F64),            \
        PS_FIELD_NAMED(record, member stop, "stop", &ps_names_stop),                                         \
        PS_FIELD(record, member noisy, "noisy", BOOL)
#define PS_NO_MEMBER

/* A ps_stat alone: in seconds, or in the unit of the key that holds it. */
extern const ps_fields ps_profile_stat_fields, ps_profile_plain_stat_fields;
/* Semantic check of a quantity, also that it is one a machine can have; n 0 is allowed while the profile is not complete. */
ps_status ps_profile_check_stat(const ps_stat *s, ps_unit unit, bool complete, const char *subject,
                                ps_error *err);
void ps_profile_write_stat(ps_text *t, uint32_t indent, const char *key, const ps_fields *fields,
                           const ps_stat *s);

/* The gpu section: nothing at all where the machine has none. Reading fills profile->gpu, whose arrays come from malloc
 * and belong to the profile, filled or not. */
ps_status ps_profile_gpu_read(const ps_yaml_doc *doc, const ps_yaml_node *root, ps_profile *profile,
                              ps_error *err);
void ps_profile_gpu_write(ps_text *t, const ps_profile_gpu *gpu);
ps_status ps_profile_gpu_validate(const ps_profile *profile, ps_error *err);

#endif
