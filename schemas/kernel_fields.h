/* The row of a kernel catalogue as profile and plan write it. Private to schemas/. */
#ifndef PS_SCHEMAS_KERNEL_FIELDS_H
#define PS_SCHEMAS_KERNEL_FIELDS_H

#include "model/kernel_spec.h"
#include "schemas/fields.h"

extern const ps_fields ps_kernel_spec_fields;

/* A catalogue: ids ascending, names plain and unique, enumerations in range. Names the kernel. */
ps_status ps_kernel_specs_validate(const ps_kernel_spec *specs, uint32_t n, ps_error *err);
/* Row of an id by binary search, NULL if absent. */
const ps_kernel_spec *ps_kernel_specs_find(const ps_kernel_spec *specs, uint32_t n, uint32_t id);

#endif
