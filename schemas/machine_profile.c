/* Machine profile: YAML reader, writer, validation. */
#include "schemas/machine_profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "schemas/fields.h"
#include "schemas/kernel_fields.h"
#include "schemas/profile_fields.h"
#include "schemas/yaml_doc.h"

#define F(record, member, text, type) PS_FIELD(record, member, text, type)

static const ps_field head_rows[] = {
    F(ps_profile, tool, "tool", CHARS),
    F(ps_profile, created, "created", CHARS),
    F(ps_profile, mode, "mode", CHARS),
    F(ps_profile, complete, "complete", BOOL),
    F(ps_profile, synthetic, "synthetic", BOOL),
    F(ps_profile, machine_hash, "machine_hash", HASH),
    F(ps_profile, kernel_set, "kernel_set", HASH),
};

static const ps_field topology_rows[] = {
    F(ps_profile_topology, cpu_model, "cpu_model", CHARS),
    F(ps_profile_topology, n_packages, "n_packages", U32),
    F(ps_profile_topology, n_cores, "n_cores", U32),
    F(ps_profile_topology, n_threads, "n_threads", U32),
    F(ps_profile_topology, n_numa, "n_numa", U32),
    F(ps_profile_topology, n_p_cores, "n_p_cores", U32),
    F(ps_profile_topology, n_e_cores, "n_e_cores", U32),
    F(ps_profile_topology, l2_bytes, "l2_bytes", U64),
    F(ps_profile_topology, l3_bytes, "l3_bytes", U64),
    F(ps_profile_topology, memory_bytes, "memory_bytes", U64),
    F(ps_profile_topology, memlock_bytes, "memlock_bytes", U64),
    F(ps_profile_topology, cpu_quota, "cpu_quota", F64),
    F(ps_profile_topology, n_allowed, "n_allowed", U32),
    F(ps_profile_topology, cpu_level, "cpu_level", CHARS),
    F(ps_profile_topology, gpu_name, "gpu_name", CHARS),
};

static const ps_field stat_rows[] = {PS_STAT_ROWS(ps_stat, PS_NO_MEMBER, "_s")};
static const ps_field plain_stat_rows[] = {PS_STAT_ROWS(ps_stat, PS_NO_MEMBER, "")};

static const ps_field dram_rows[] = {
    F(ps_profile_dram, n_threads, "n_threads", U32),
    PS_STAT_ROWS(ps_profile_dram, bw_bytes_per_s., "_bytes_per_s"),
};

static const ps_field point_rows[] = {
    F(ps_profile_point, kernel, "kernel", U32),
    F(ps_profile_point, rows, "rows", U64),
    F(ps_profile_point, cols, "cols", U64),
    F(ps_profile_point, heads_kv, "heads_kv", U32),
    F(ps_profile_point, kv_len, "kv_len", U64),
    F(ps_profile_point, n_tokens, "n_tokens", U32),
    F(ps_profile_point, n_threads, "n_threads", U32),
    PS_FIELD_NAMED(ps_profile_point, beside, "beside", &ps_names_beside),
    PS_STAT_ROWS(ps_profile_point, time_s., "_s"),
    F(ps_profile_point, beside_bytes_per_s, "beside_bytes_per_s", F64),
};

static const ps_fields head_fields = PS_FIELDS(head_rows), topology_fields = PS_FIELDS(topology_rows),
                       dram_fields = PS_FIELDS(dram_rows), point_fields = PS_FIELDS(point_rows);
const ps_fields ps_profile_stat_fields = PS_FIELDS(stat_rows),
                ps_profile_plain_stat_fields = PS_FIELDS(plain_stat_rows);

/* A table of records from malloc. */
typedef struct table_row {
    const char *key;
    const ps_fields *fields;
    size_t record_bytes, array_offset, count_offset;
} table_row;
static const table_row tables[] = {
    {"dram", &dram_fields, sizeof(ps_profile_dram), offsetof(ps_profile, dram), offsetof(ps_profile, n_dram)},
    {"kernels", &ps_kernel_spec_fields, sizeof(ps_kernel_spec), offsetof(ps_profile, kernels),
     offsetof(ps_profile, n_kernels)},
    {"points", &point_fields, sizeof(ps_profile_point), offsetof(ps_profile, points),
     offsetof(ps_profile, n_points)},
};
enum { N_TABLES = sizeof tables / sizeof tables[0] };

static const char *const other_keys[] = {"pinstripe-profile", "topology", "dram", "barrier_s", "pool_start_s",
                                         "kernels",           "points",   "note", "gpu",       NULL};

static ps_status read_note(const ps_yaml_doc *doc, const ps_yaml_node *root, ps_profile *p, ps_error *err) {
    const ps_yaml_node *node = ps_yaml_find(root, "note");
    if (node == NULL)
        return PS_OK;
    ps_status status = ps_yaml_want(doc, node, PS_YAML_SCALAR, err);
    if (status != PS_OK)
        return status;
    p->note = strdup(node->text);
    return p->note != NULL ? PS_OK : ps_yaml_error(doc, node, PS_E_NOMEM, err, "no memory");
}

static ps_status read_table(const ps_yaml_doc *doc, const ps_yaml_node *root, const table_row *t,
                            ps_profile *p, ps_error *err) {
    const ps_yaml_node *node, *rows;
    ps_status status = ps_yaml_need(doc, root, t->key, PS_YAML_MAP, &node, err);
    if (status == PS_OK)
        status = ps_fields_open_table(doc, node, t->fields, &rows, err);
    if (status != PS_OK)
        return status;
    void *array = calloc(rows->n == 0 ? 1 : rows->n, t->record_bytes);
    if (array == NULL)
        return ps_yaml_error(doc, rows, PS_E_NOMEM, err, "no memory for %u rows", rows->n);
    /* The profile owns the array from here on, filled or not. */
    memcpy((char *)p + t->array_offset, &array, sizeof array);
    memcpy((char *)p + t->count_offset, &rows->n, sizeof rows->n);
    return ps_fields_read_rows(doc, rows, t->fields, array, t->record_bytes, err);
}

static ps_status read_root(const ps_yaml_doc *doc, ps_profile *p, ps_error *err) {
    const ps_yaml_node *root = ps_yaml_root(doc), *node;
    ps_status status = ps_yaml_need(doc, root, "pinstripe-profile", PS_YAML_SCALAR, &node, err);
    if (status == PS_OK)
        status = ps_read_u32(doc, node, &p->version, err);
    if (status != PS_OK)
        return status;
    if (p->version != PS_PROFILE_VERSION)
        return ps_yaml_error(doc, node, PS_E_UNSUPPORTED, err,
                             "profile version %u, this program reads version %d", p->version,
                             PS_PROFILE_VERSION);
    status = ps_fields_read_map(doc, root, &head_fields, other_keys, p, err);
    if (status == PS_OK)
        status = ps_yaml_need(doc, root, "topology", PS_YAML_MAP, &node, err);
    if (status == PS_OK)
        status = ps_fields_read_map(doc, node, &topology_fields, NULL, &p->topology, err);
    if (status == PS_OK)
        status = ps_yaml_need(doc, root, "barrier_s", PS_YAML_MAP, &node, err);
    if (status == PS_OK)
        status = ps_fields_read_map(doc, node, &ps_profile_stat_fields, NULL, &p->barrier_s, err);
    if (status == PS_OK)
        status = ps_yaml_need(doc, root, "pool_start_s", PS_YAML_MAP, &node, err);
    if (status == PS_OK)
        status = ps_fields_read_map(doc, node, &ps_profile_stat_fields, NULL, &p->pool_start_s, err);
    if (status == PS_OK)
        status = ps_profile_gpu_read(doc, root, p, err);
    for (uint32_t i = 0; status == PS_OK && i < N_TABLES; i++)
        status = read_table(doc, root, &tables[i], p, err);
    return status == PS_OK ? read_note(doc, root, p, err) : status;
}

/* Where what a check found wrong is, by its subject: a key, or "<table> row <i>", both perhaps of "gpu". */
static void find_place(const ps_yaml_node *root, ps_error *err) {
    const char *subject = err->subject;
    char key[40];
    unsigned row = 0;
    if (strncmp(subject, "gpu: ", 5) == 0)
        subject += 5;
    const bool in_gpu = subject != err->subject;
    if (in_gpu && strncmp(subject, "gpu ", 4) == 0)
        subject += 4;
    const int n = sscanf(subject, "%39s row %u", key, &row);
    const ps_yaml_node *node = in_gpu ? ps_yaml_find(root, "gpu") : root;
    node = n >= 1 && node != NULL && node->kind == PS_YAML_MAP ? ps_yaml_find(node, key) : NULL;
    if (n == 2 && node != NULL && node->kind == PS_YAML_MAP) {
        node = ps_yaml_find(node, "rows");
        node = node != NULL && row < node->n ? node->first : NULL;
        for (; node != NULL && row > 0; row--)
            node = node->next;
    }
    if (node != NULL) {
        err->line = node->line;
        err->column = node->column;
    }
}

ps_status ps_profile_parse(const char *text, uint64_t size, const char *label, ps_profile **out,
                           ps_error *err) {
    *out = NULL;
    if (size > PS_PROFILE_MAX_BYTES)
        return ps_error_set(err, PS_E_DATA, label, "larger than %d bytes", PS_PROFILE_MAX_BYTES);
    ps_yaml_doc *doc = NULL;
    ps_profile *p = calloc(1, sizeof *p);
    if (p == NULL)
        return ps_error_set(err, PS_E_NOMEM, label, "no memory for a profile");
    ps_status status = ps_yaml_load(text, size, label, &doc, err);
    if (status == PS_OK)
        status = read_root(doc, p, err);
    if (status == PS_OK) {
        status = ps_profile_validate(p, err);
        if (status != PS_OK && err != NULL) {
            find_place(ps_yaml_root(doc), err);
            ps_error_prefix(err, label);
        }
    }
    ps_yaml_free(doc);
    if (status == PS_OK)
        *out = p;
    else
        ps_profile_free(p);
    return status;
}

ps_status ps_profile_read(const char *path, ps_profile **out, ps_error *err) {
    char *text;
    uint64_t size;
    *out = NULL;
    ps_status status = ps_file_read(path, PS_PROFILE_MAX_BYTES, &text, &size, err);
    if (status != PS_OK)
        return status;
    status = ps_profile_parse(text, size, path, out, err);
    free(text);
    return status;
}

void ps_profile_free(ps_profile *profile) {
    if (profile == NULL)
        return;
    free(profile->dram);
    free(profile->kernels);
    free(profile->points);
    free(profile->note);
    free(profile->gpu.copies);
    free(profile->gpu.together);
    free(profile->gpu.paced);
    free(profile->gpu.checks);
    free(profile);
}

/* Beyond these a value is none of a machine's, and sums of many would overflow: a call of a day, a thousandth of a nanosecond; a byte
 * or an operation per second, 10^18 of them. */
static const struct {
    double least, most;
    const char *unit;
} sense[] = {[PS_UNIT_SECONDS] = {1e-12, 86400, "s"},
             [PS_UNIT_BYTES_PER_S] = {1, 1e18, "B/s"},
             [PS_UNIT_FLOPS] = {1, 1e18, "FLOP/s"}};

ps_status ps_profile_check_stat(const ps_stat *s, ps_unit unit, bool complete, const char *subject,
                                ps_error *err) {
    if (s->n == 0 && !complete && s->median == 0 && s->q1 == 0 && s->q3 == 0)
        return PS_OK;
    if (s->n == 0)
        return ps_error_set(err, PS_E_DATA, subject, "has no samples");
    if (!(isfinite(s->median) && isfinite(s->q1) && isfinite(s->q3) && s->q1 > 0))
        return ps_error_set(err, PS_E_DATA, subject, "median and quartiles must be finite and above zero");
    if (!(s->q1 <= s->median && s->median <= s->q3))
        return ps_error_set(err, PS_E_DATA, subject, "the median must lie between the quartiles");
    if (s->q1 < sense[unit].least || s->q3 > sense[unit].most)
        return ps_error_set(err, PS_E_DATA, subject, "%g %s is beyond any sense: from %g to %g",
                            s->q1 < sense[unit].least ? s->q1 : s->q3, sense[unit].unit, sense[unit].least,
                            sense[unit].most);
    if ((unsigned)s->stop >= PS_STOP_COUNT)
        return ps_error_set(err, PS_E_DATA, subject, "unknown stop reason %u", (unsigned)s->stop);
    return PS_OK;
}

static ps_status check_topology(const ps_profile_topology *t, ps_error *err) {
    ps_status status = ps_fields_validate(&topology_fields, t, err);
    if (status == PS_OK && (t->n_cores == 0 || t->n_threads < t->n_cores || t->n_packages == 0))
        status = ps_error_set(err, PS_E_DATA, "n_threads", "packages, cores and threads do not fit together");
    if (status == PS_OK && (t->n_allowed == 0 || t->n_allowed > t->n_threads))
        status = ps_error_set(err, PS_E_DATA, "n_allowed", "must be from 1 to n_threads (%u), is %u",
                              t->n_threads, t->n_allowed);
    if (status == PS_OK && !(t->cpu_quota >= 0))
        status = ps_error_set(err, PS_E_DATA, "cpu_quota", "must not be negative");
    if (status == PS_OK && t->memory_bytes == 0)
        status = ps_error_set(err, PS_E_DATA, "memory_bytes", "must not be zero");
    if (status != PS_OK)
        ps_error_prefix(err, "topology");
    return status;
}

static ps_status check_dram(const ps_profile *p, ps_error *err) {
    char subject[48];
    for (uint32_t i = 0; i < p->n_dram; i++) {
        snprintf(subject, sizeof subject, "dram row %u", i);
        if (p->dram[i].n_threads == 0 || (i != 0 && p->dram[i].n_threads <= p->dram[i - 1].n_threads))
            return ps_error_set(err, PS_E_DATA, subject, "n_threads must ascend from 1");
        ps_status status =
            ps_profile_check_stat(&p->dram[i].bw_bytes_per_s, PS_UNIT_BYTES_PER_S, p->complete, subject, err);
        if (status != PS_OK)
            return status;
    }
    if (p->complete && p->n_dram == 0)
        return ps_error_set(err, PS_E_DATA, "dram", "a complete profile has at least one row");
    return PS_OK;
}

static ps_status check_points(const ps_profile *p, ps_error *err) {
    char subject[48];
    for (uint32_t i = 0; i < p->n_points; i++) {
        const ps_profile_point *q = &p->points[i];
        snprintf(subject, sizeof subject, "points row %u", i);
        if (ps_kernel_specs_find(p->kernels, p->n_kernels, q->kernel) == NULL)
            return ps_error_set(err, PS_E_DATA, subject, "kernel %u is not in the catalogue", q->kernel);
        bool cuda = ps_kernel_specs_find(p->kernels, p->n_kernels, q->kernel)->device == PS_DEV_CUDA;
        if (q->n_tokens == 0 || (q->n_threads == 0) != cuda)
            return ps_error_set(err, PS_E_DATA, subject,
                                "n_tokens must not be zero, n_threads is zero for kernels of the GPU alone");
        if (cuda && p->gpu.name[0] == '\0')
            return ps_error_set(err, PS_E_DATA, subject, "kernel %u is of a GPU, the profile has none",
                                q->kernel);
        if ((unsigned)q->beside >= PS_BESIDE_COUNT)
            return ps_error_set(err, PS_E_DATA, subject, "unknown neighbour %u", (unsigned)q->beside);
        if (!isfinite(q->beside_bytes_per_s) || q->beside_bytes_per_s < 0 ||
            (q->beside == PS_BESIDE_IDLE && q->beside_bytes_per_s != 0))
            return ps_error_set(err, PS_E_DATA, subject,
                                "beside_bytes_per_s must be finite, not negative, and 0 when idle");
        ps_status status = ps_profile_check_stat(&q->time_s, PS_UNIT_SECONDS, p->complete, subject, err);
        if (status != PS_OK)
            return status;
    }
    return PS_OK;
}

ps_status ps_profile_validate(const ps_profile *p, ps_error *err) {
    if (p->version != PS_PROFILE_VERSION)
        return ps_error_set(err, PS_E_UNSUPPORTED, "pinstripe-profile", "profile version %u, not %d",
                            p->version, PS_PROFILE_VERSION);
    ps_status status = ps_fields_validate(&head_fields, p, err);
    if (status == PS_OK)
        status = check_topology(&p->topology, err);
    if (status == PS_OK)
        status = ps_profile_check_stat(&p->barrier_s, PS_UNIT_SECONDS, p->complete, "barrier_s", err);
    if (status == PS_OK)
        status = ps_profile_check_stat(&p->pool_start_s, PS_UNIT_SECONDS, p->complete, "pool_start_s", err);
    if (status == PS_OK)
        status = check_dram(p, err);
    if (status == PS_OK)
        status = ps_kernel_specs_validate(p->kernels, p->n_kernels, err);
    if (status == PS_OK)
        status = check_points(p, err);
    if (status == PS_OK)
        status = ps_profile_gpu_validate(p, err);
    if (status == PS_OK && p->note != NULL && !ps_string_clean(p->note, true))
        status = ps_error_set(err, PS_E_DATA, "note", "control characters or broken UTF-8 in text");
    return status;
}

void ps_profile_write_stat(ps_text *t, uint32_t indent, const char *key, const ps_fields *fields,
                           const ps_stat *s) {
    ps_text_printf(t, "%*s%s: {", (int)indent, "", key);
    ps_fields_write_flow(t, fields, s);
    ps_write_str(t, "}\n");
}

ps_status ps_profile_format(const ps_profile *profile, char **out_text, uint64_t *out_size, ps_error *err) {
    *out_text = NULL;
    ps_status status = ps_profile_validate(profile, err);
    if (status != PS_OK)
        return status;
    ps_text *t = ps_text_new();
    ps_text_printf(t,
                   "# Pinstripe machine profile; SI units; docs/profile-format.md describes it.\n"
                   "pinstripe-profile: %u\n",
                   profile->version);
    ps_fields_write_lines(t, 0, &head_fields, profile);
    if (profile->note != NULL) {
        ps_write_str(t, "note: ");
        ps_write_quoted(t, profile->note);
        ps_write_str(t, "\n");
    }
    ps_write_str(t, "topology:\n");
    ps_fields_write_lines(t, 2, &topology_fields, &profile->topology);
    ps_profile_write_stat(t, 0, "barrier_s", &ps_profile_stat_fields, &profile->barrier_s);
    ps_profile_write_stat(t, 0, "pool_start_s", &ps_profile_stat_fields, &profile->pool_start_s);
    ps_profile_gpu_write(t, &profile->gpu);
    for (uint32_t i = 0; i < N_TABLES; i++) {
        void *array;
        uint32_t n;
        memcpy(&array, (const char *)profile + tables[i].array_offset, sizeof array);
        memcpy(&n, (const char *)profile + tables[i].count_offset, sizeof n);
        ps_text_printf(t, "%s:\n", tables[i].key);
        (tables[i].fields == &point_fields ? ps_fields_write_dense_table : ps_fields_write_table)(
            t, 2, tables[i].fields, array, n, tables[i].record_bytes);
    }
    *out_text = ps_text_end(t, out_size);
    return *out_text != NULL ? PS_OK : ps_error_set(err, PS_E_NOMEM, "profile", "no memory for its text");
}

ps_status ps_profile_write(const ps_profile *profile, const char *path, ps_error *err) {
    char *text;
    uint64_t size;
    ps_status status = ps_profile_format(profile, &text, &size, err);
    if (status != PS_OK) {
        ps_error_prefix(err, path);
        return status;
    }
    status = ps_file_write_atomic(path, text, size, err);
    free(text);
    return status;
}

void ps_profile_facts(const ps_profile *p, ps_facts *out) {
    *out = (ps_facts){.n_allowed = p->topology.n_allowed,
                      .memory_bytes = p->topology.memory_bytes,
                      .vram_bytes = p->gpu.vram_bytes};
    memcpy(out->cpu_model, p->topology.cpu_model, sizeof out->cpu_model);
    memcpy(out->gpu_name, p->gpu.name, sizeof out->gpu_name);
    memcpy(out->gpu_driver, p->gpu.driver, sizeof out->gpu_driver);
    ps_facts_gpu_hash(p->gpu.uuid, out->gpu_hash);
}

ps_status ps_profile_hash(const ps_profile *profile, uint8_t out[PS_HASH_BYTES], ps_error *err) {
    char *text;
    uint64_t size;
    ps_status status = ps_profile_format(profile, &text, &size, err);
    if (status != PS_OK)
        return status;
    ps_hash_bytes(text, size, out);
    free(text);
    return PS_OK;
}
