/* The gpu section of a machine profile. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "schemas/kernel_fields.h"
#include "schemas/profile_fields.h"

#define F(member, type) PS_FIELD(ps_profile_gpu, member, #member, type)
static const ps_field head_rows[] = {
    F(name, CHARS),         F(uuid, CHARS),
    F(driver, CHARS),       F(cc_major, U32),
    F(cc_minor, U32),       F(n_multiprocessors, U32),
    F(vram_bytes, U64),     F(l2_bytes, U64),
    F(pcie_gen, U32),       F(pcie_width, U32),
    F(base_bytes, U64),     F(context_bytes, U64),
    F(modules_bytes, U64),  F(blas_bytes, U64),
    F(meter, CHARS),        PS_FIELD_NAMED(ps_profile_gpu, timer, "timer", &ps_names_timer),
    F(timer_reason, CHARS), F(timer_gap_s, F64),
};
#undef F
static const ps_field copy_rows[] = {
    PS_FIELD_NAMED(ps_profile_copy, bus, "bus", &ps_names_bus),
    PS_FIELD_NAMED(ps_profile_copy, kind, "kind", &ps_names_host_kind),
    PS_FIELD(ps_profile_copy, bytes, "bytes", U64),
    PS_STAT_ROWS(ps_profile_copy, bw_bytes_per_s., "_bytes_per_s"),
};
/* Two quantities in a row: the bus's figures, then those of the CPU's reads. */
#define SIDE(record, member, text)                                                                           \
    PS_FIELD(record, member.n, text "n", U32),                                                               \
        PS_FIELD(record, member.median, text "median_bytes_per_s", F64),                                     \
        PS_FIELD(record, member.q1, text "q1_bytes_per_s", F64),                                             \
        PS_FIELD(record, member.q3, text "q3_bytes_per_s", F64),                                             \
        PS_FIELD_NAMED(record, member.stop, text "stop", &ps_names_stop),                                    \
        PS_FIELD(record, member.noisy, text "noisy", BOOL)
static const ps_field together_rows[] = {
    PS_FIELD_NAMED(ps_profile_together, bus, "bus", &ps_names_bus),
    PS_FIELD(ps_profile_together, n_threads, "n_threads", U32),
    SIDE(ps_profile_together, bus_bytes_per_s, "bus_"),
    SIDE(ps_profile_together, dram_bytes_per_s, "dram_"),
};
static const ps_field paced_rows[] = {
    PS_FIELD_NAMED(ps_profile_paced, bus, "bus", &ps_names_bus),
    PS_FIELD(ps_profile_paced, n_threads, "n_threads", U32),
    PS_FIELD(ps_profile_paced, share_frac, "share_frac", F64),
    SIDE(ps_profile_paced, bus_bytes_per_s, "bus_"),
    SIDE(ps_profile_paced, dram_bytes_per_s, "dram_"),
};
#undef SIDE
static const ps_field check_rows[] = {
    PS_FIELD(ps_profile_check, kernel, "kernel", U32),
    PS_FIELD(ps_profile_check, n, "n", U32),
    PS_FIELD(ps_profile_check, median_frac, "median_frac", F64),
    PS_FIELD(ps_profile_check, worst_frac, "worst_frac", F64),
};
static const ps_fields head_fields = PS_FIELDS(head_rows), copy_fields = PS_FIELDS(copy_rows),
                       together_fields = PS_FIELDS(together_rows), paced_fields = PS_FIELDS(paced_rows),
                       check_fields = PS_FIELDS(check_rows);

#define ROW(member, name, label, unit) {#member, label, offsetof(ps_profile_gpu, member), PS_UNIT_##unit},
const ps_gpu_stat_row ps_gpu_stat_rows[PS_GPU_STAT_COUNT] = {PS_GPU_STAT_LIST(ROW, ROW)};
#undef ROW

static bool is_optional(uint32_t row) {
    return ps_gpu_stat_rows[row].offset >= offsetof(ps_profile_gpu, event_record_s);
}

const ps_stat *ps_gpu_stat(const ps_profile_gpu *g, uint32_t row) {
    return (const ps_stat *)(const void *)((const char *)g + ps_gpu_stat_rows[row].offset);
}

/* The keys that are no fields of the head, for the check of unknown ones. */
#define ROW(member, name, label, unit) #member,
static const char *const other_keys[] = {PS_GPU_STAT_LIST(ROW, ROW) "copies", "together", "paced",
                                         "timer_checks", NULL};
#undef ROW

static ps_status read_table(const ps_yaml_doc *doc, const ps_yaml_node *map, const char *key,
                            const ps_fields *fields, size_t record_bytes, void **out, uint32_t *out_n,
                            ps_error *err) {
    const ps_yaml_node *node, *rows;
    ps_status status = ps_yaml_need(doc, map, key, PS_YAML_MAP, &node, err);
    if (status == PS_OK)
        status = ps_fields_open_table(doc, node, fields, &rows, err);
    if (status != PS_OK)
        return status;
    *out = calloc(rows->n == 0 ? 1 : rows->n, record_bytes);
    if (*out == NULL)
        return ps_yaml_error(doc, rows, PS_E_NOMEM, err, "no memory for %u rows", rows->n);
    *out_n = rows->n;
    return ps_fields_read_rows(doc, rows, fields, *out, record_bytes, err);
}

ps_status ps_profile_gpu_read(const ps_yaml_doc *doc, const ps_yaml_node *root, ps_profile *p,
                              ps_error *err) {
    const ps_yaml_node *map = ps_yaml_find(root, "gpu"), *node;
    ps_profile_gpu *g = &p->gpu;
    if (map == NULL)
        return PS_OK;
    ps_status status = ps_yaml_want(doc, map, PS_YAML_MAP, err);
    if (status == PS_OK)
        status = ps_fields_read_map(doc, map, &head_fields, other_keys, g, err);
    if (status == PS_OK && g->name[0] == '\0')
        status = ps_yaml_error(doc, map, PS_E_DATA, err, "a GPU needs a name");
    for (uint32_t i = 0; status == PS_OK && i < PS_GPU_STAT_COUNT; i++) {
        if (is_optional(i) && ps_yaml_find(map, ps_gpu_stat_rows[i].key) == NULL)
            continue;
        status = ps_yaml_need(doc, map, ps_gpu_stat_rows[i].key, PS_YAML_MAP, &node, err);
        if (status == PS_OK)
            status = ps_fields_read_map(doc, node, &ps_profile_plain_stat_fields, NULL,
                                        (char *)g + ps_gpu_stat_rows[i].offset, err);
    }
    void *copies = NULL, *together = NULL, *paced = NULL, *checks = NULL;
    if (status == PS_OK)
        status = read_table(doc, map, "copies", &copy_fields, sizeof *g->copies, &copies, &g->n_copies, err);
    g->copies = copies;
    if (status == PS_OK)
        status = read_table(doc, map, "together", &together_fields, sizeof *g->together, &together,
                            &g->n_together, err);
    g->together = together;
    if (status == PS_OK && ps_yaml_find(map, "paced") != NULL)
        status = read_table(doc, map, "paced", &paced_fields, sizeof *g->paced, &paced, &g->n_paced, err);
    g->paced = paced;
    if (status == PS_OK)
        status = read_table(doc, map, "timer_checks", &check_fields, sizeof *g->checks, &checks, &g->n_checks,
                            err);
    g->checks = checks;
    return status;
}

void ps_profile_gpu_write(ps_text *t, const ps_profile_gpu *g) {
    if (g->name[0] == '\0')
        return;
    ps_write_str(t, "gpu:\n");
    ps_fields_write_lines(t, 2, &head_fields, g);
    for (uint32_t i = 0; i < PS_GPU_STAT_COUNT; i++)
        if (!is_optional(i) || ps_gpu_stat(g, i)->n != 0)
            ps_profile_write_stat(t, 2, ps_gpu_stat_rows[i].key, &ps_profile_plain_stat_fields,
                                  ps_gpu_stat(g, i));
    ps_write_str(t, "  copies:\n");
    ps_fields_write_table(t, 4, &copy_fields, g->copies, g->n_copies, sizeof *g->copies);
    ps_write_str(t, "  together:\n");
    ps_fields_write_table(t, 4, &together_fields, g->together, g->n_together, sizeof *g->together);
    if (g->n_paced != 0) {
        ps_write_str(t, "  paced:\n");
        ps_fields_write_table(t, 4, &paced_fields, g->paced, g->n_paced, sizeof *g->paced);
    }
    ps_write_str(t, "  timer_checks:\n");
    ps_fields_write_table(t, 4, &check_fields, g->checks, g->n_checks, sizeof *g->checks);
}

bool ps_profile_spills(const ps_profile_gpu *g) {
    double bus = 0;
    for (uint32_t i = 0; i < g->n_copies; i++)
        if (g->copies[i].bus == PS_BUS_H2D && g->copies[i].bw_bytes_per_s.median > bus)
            bus = g->copies[i].bw_bytes_per_s.median;
    const double full = g->hbm_full_bytes_per_s.median;
    /* Over the bus it cannot come faster than that; a copy's reads and writes together at most twice. */
    return g->hbm_full_bytes_per_s.n != 0 && full < g->hbm_read_bytes_per_s.median / 4 &&
           (bus == 0 || full < 2.5 * bus);
}

uint64_t ps_profile_fast_vram_bytes(const ps_profile_gpu *g) {
    return ps_profile_spills(g) ? g->vram_bytes / 8 * 7 : g->vram_bytes;
}

static ps_status check_tables(const ps_profile *p, ps_error *err) {
    const ps_profile_gpu *g = &p->gpu;
    char subject[48];
    ps_status status = PS_OK;
    for (uint32_t i = 0; status == PS_OK && i < g->n_copies; i++) {
        const ps_profile_copy *c = &g->copies[i], *b = i != 0 ? c - 1 : NULL;
        snprintf(subject, sizeof subject, "gpu copies row %u", i);
        if (c->bytes == 0 || (unsigned)c->bus >= PS_BUS_COUNT || (unsigned)c->kind >= PS_HOST_KIND_COUNT ||
            (b && (c->bus < b->bus || (c->bus == b->bus &&
                                       (c->kind < b->kind || (c->kind == b->kind && c->bytes <= b->bytes))))))
            return ps_error_set(err, PS_E_DATA, subject, "bus, kind and bytes must be known and ascend");
        status = ps_profile_check_stat(&c->bw_bytes_per_s, PS_UNIT_BYTES_PER_S, p->complete, subject, err);
    }
    for (uint32_t i = 0; status == PS_OK && i < g->n_together; i++) {
        const ps_profile_together *c = &g->together[i], *b = i != 0 ? c - 1 : NULL;
        snprintf(subject, sizeof subject, "gpu together row %u", i);
        if (c->n_threads == 0 || (unsigned)c->bus >= PS_BUS_COUNT ||
            (b && (c->bus < b->bus || (c->bus == b->bus && c->n_threads <= b->n_threads))))
            return ps_error_set(err, PS_E_DATA, subject, "bus and threads must be known and ascend");
        status = ps_profile_check_stat(&c->bus_bytes_per_s, PS_UNIT_BYTES_PER_S, p->complete, subject, err);
        if (status == PS_OK)
            status =
                ps_profile_check_stat(&c->dram_bytes_per_s, PS_UNIT_BYTES_PER_S, p->complete, subject, err);
    }
    for (uint32_t i = 0; status == PS_OK && i < g->n_paced; i++) {
        const ps_profile_paced *c = &g->paced[i], *b = i != 0 ? c - 1 : NULL;
        snprintf(subject, sizeof subject, "gpu paced row %u", i);
        if (!(c->share_frac > 0 && c->share_frac < 1))
            return ps_error_set(err, PS_E_DATA, subject, "share_frac must lie between 0 and 1");
        if (c->n_threads == 0 || (c->bus != PS_BUS_H2D && c->bus != PS_BUS_D2H) ||
            (b && (c->bus < b->bus ||
                   (c->bus == b->bus && (c->n_threads < b->n_threads ||
                                         (c->n_threads == b->n_threads && c->share_frac <= b->share_frac))))))
            return ps_error_set(err, PS_E_DATA, subject,
                                "bus (h2d, d2h), threads and share must be known and ascend");
        status = ps_profile_check_stat(&c->bus_bytes_per_s, PS_UNIT_BYTES_PER_S, p->complete, subject, err);
        if (status == PS_OK)
            status =
                ps_profile_check_stat(&c->dram_bytes_per_s, PS_UNIT_BYTES_PER_S, p->complete, subject, err);
    }
    for (uint32_t i = 0; status == PS_OK && i < g->n_checks; i++) {
        const ps_profile_check *c = &g->checks[i];
        snprintf(subject, sizeof subject, "gpu timer_checks row %u", i);
        if (c->n == 0 || (i != 0 && c->kernel <= c[-1].kernel) ||
            (c->kernel != 0 && ps_kernel_specs_find(p->kernels, p->n_kernels, c->kernel) == NULL))
            return ps_error_set(err, PS_E_DATA, subject, "kernels must be known and ascend, n above zero");
        if (!isfinite(c->median_frac) || !isfinite(c->worst_frac) ||
            fabs(c->worst_frac) < fabs(c->median_frac))
            return ps_error_set(err, PS_E_DATA, subject,
                                "the worst difference cannot be less than the median");
    }
    return status;
}

/* The parts of what is taken before any weight, and how times were taken. */
static ps_status check_head(const ps_profile_gpu *g, ps_error *err) {
    uint64_t sum;
    if (g->base_bytes >= g->vram_bytes || !ps_add_u64(g->context_bytes, g->modules_bytes, &sum) ||
        !ps_add_u64(sum, g->blas_bytes, &sum) || (sum != 0 && sum != g->base_bytes))
        return ps_error_set(err, PS_E_DATA, "base_bytes",
                            "must be the sum of its parts where these are known, and less than vram_bytes");
    if (!(g->timer_gap_s >= 0))
        return ps_error_set(err, PS_E_DATA, "timer_gap_s", "must not be negative");
    if (g->timer == PS_TIMER_CUPTI && g->timer_reason[0] != '\0')
        return ps_error_set(err, PS_E_DATA, "timer_reason", "says why times are not CUPTI's, and they are");
    return PS_OK;
}

ps_status ps_profile_gpu_validate(const ps_profile *p, ps_error *err) {
    const ps_profile_gpu *g = &p->gpu;
    if (strcmp(g->name, p->topology.gpu_name) != 0)
        return ps_error_set(err, PS_E_DATA, "gpu", "topology and gpu section name different GPUs");
    if (g->name[0] == '\0')
        return g->n_copies == 0 && g->n_together == 0 && g->n_paced == 0 && g->n_checks == 0
                   ? PS_OK
                   : ps_error_set(err, PS_E_DATA, "gpu", "figures of a GPU without a name");
    ps_status status = ps_fields_validate(&head_fields, g, err);
    if (status == PS_OK && (g->vram_bytes == 0 || g->n_multiprocessors == 0))
        status = ps_error_set(err, PS_E_DATA, "vram_bytes", "memory and multiprocessors must not be zero");
    if (status == PS_OK)
        status = check_head(g, err);
    for (uint32_t i = 0; status == PS_OK && i < PS_GPU_STAT_COUNT; i++)
        status = ps_profile_check_stat(ps_gpu_stat(g, i), ps_gpu_stat_rows[i].unit,
                                       p->complete && !is_optional(i), ps_gpu_stat_rows[i].key, err);
    if (status == PS_OK)
        status = check_tables(p, err);
    if (status != PS_OK)
        ps_error_prefix(err, "gpu");
    return status;
}
