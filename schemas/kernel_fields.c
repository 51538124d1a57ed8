/* Kernel catalogues in documents. */
#include "schemas/kernel_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER(member, text, type) PS_FIELD(ps_kernel_spec, member, text, type)
static const ps_field kernel_rows[] = {
    NUMBER(id, "id", U32),
    NUMBER(name, "name", CHARS),
    PS_FIELD_NAMED(ps_kernel_spec, op, "op", &ps_names_op),
    PS_FIELD_NAMED(ps_kernel_spec, wtype, "wtype", &ps_names_dtype),
    PS_FIELD_NAMED(ps_kernel_spec, in_fmt, "in_fmt", &ps_names_fmt),
    PS_FIELD_NAMED(ps_kernel_spec, out_fmt, "out_fmt", &ps_names_fmt),
    PS_FIELD_NAMED(ps_kernel_spec, device, "device", &ps_names_device),
    NUMBER(min_tokens, "min_tokens", U32),
    NUMBER(max_tokens, "max_tokens", U32),
    NUMBER(scratch.base, "scratch_base", U64),
    NUMBER(scratch.per_token, "scratch_per_token", U64),
    NUMBER(scratch.per_token_col, "scratch_per_token_col", U64),
    NUMBER(scratch.per_col, "scratch_per_col", U64),
    NUMBER(scratch.per_thread, "scratch_per_thread", U64),
    NUMBER(scratch.per_thread_col, "scratch_per_thread_col", U64),
    NUMBER(scratch.kv_chunk, "scratch_kv_chunk", U64),
    NUMBER(scratch.per_token_col_chunk, "scratch_per_token_col_chunk", U64),
};
#undef NUMBER
const ps_fields ps_kernel_spec_fields = PS_FIELDS(kernel_rows);

static bool plain_name(const char *s) {
    bool ok = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z');
    for (; ok && *s != '\0'; s++)
        ok = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') ||
             strchr("._-+", *s) != NULL;
    return ok;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

ps_status ps_kernel_specs_validate(const ps_kernel_spec *specs, uint32_t n, ps_error *err) {
    char subject[32];
    for (uint32_t i = 0; i < n; i++) {
        const ps_kernel_spec *k = &specs[i];
        snprintf(subject, sizeof subject, "kernel %u", k->id);
        ps_status status = ps_fields_validate(&ps_kernel_spec_fields, k, err);
        if (status != PS_OK) {
            ps_error_prefix(err, subject);
            return status;
        }
        if (!plain_name(k->name))
            return ps_error_set(err, PS_E_DATA, subject, "its name must be letters, digits and . _ - +");
        if (i != 0 && k->id <= specs[i - 1].id)
            return ps_error_set(err, PS_E_DATA, subject, "ids must ascend");
        if (k->min_tokens > k->max_tokens)
            return ps_error_set(err, PS_E_DATA, subject, "min_tokens above max_tokens");
    }
    const char **names = malloc((n == 0 ? 1 : n) * sizeof *names);
    if (names == NULL)
        return ps_error_set(err, PS_E_NOMEM, "kernels", "no memory to compare %u names", n);
    for (uint32_t i = 0; i < n; i++)
        names[i] = specs[i].name;
    qsort(names, n, sizeof *names, by_name);
    ps_status status = PS_OK;
    for (uint32_t i = 1; status == PS_OK && i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = ps_error_set(err, PS_E_DATA, names[i], "two kernels of one name");
    free(names);
    return status;
}

const ps_kernel_spec *ps_kernel_specs_find(const ps_kernel_spec *specs, uint32_t n, uint32_t id) {
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (specs[mid].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && specs[low].id == id ? &specs[low] : NULL;
}
