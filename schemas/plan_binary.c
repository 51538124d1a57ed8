/* Binary plan: a header, a table of sections, and per section an array of fixed-size little-endian records.
 *
 *   0   magic "PSPL" | version u32 | total bytes u64 | hash of bytes 32 .. total (16 bytes)
 *   32  sections u32 | zero u32
 *   40  per section: id u32 | records u32 | offset u64 | bytes u64
 *   then the sections in the order of the table, each at a multiple of 64, zeros between
 *
 * The same plan has exactly one binary form: anything else is refused. */
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/checked.h"
#include "core/hash.h"
#include "schemas/plan_fields.h"

static const ps_field placement_rows[] = {
    {"placement", PS_FIELD_ENUM, 0, sizeof(ps_placement), &ps_names_placement}};
static const ps_field offset_rows[] = {{"buffer_offset", PS_FIELD_U64, 0, sizeof(uint64_t), NULL}};
static const ps_field period_rows[] = {{"block_period_s", PS_FIELD_F64, 0, sizeof(double), NULL}};
static const ps_field level_count_rows[] = {PS_FIELD(ps_level, n_resident, "n_resident", U32),
                                            PS_FIELD(ps_level, n_tiers, "n_tiers", U32)};
static const ps_fields placement_fields = PS_FIELDS(placement_rows), offset_fields = PS_FIELDS(offset_rows),
                       period_fields = PS_FIELDS(period_rows),
                       level_count_fields = PS_FIELDS(level_count_rows);

/* X(NAME, fields, C type): sections in file order; ids count from 1. */
#define SECTION_LIST(X)                                                                                      \
    X(HEAD, ps_plan_head_fields, ps_plan)                                                                    \
    X(COUNTS, ps_plan_count_fields, ps_plan)                                                                 \
    X(SHARDS, ps_plan_shard_fields, ps_plan_shard)                                                           \
    X(KERNELS, ps_kernel_spec_fields, ps_kernel_spec)                                                        \
    X(PROGRAMS, ps_plan_program_fields, ps_program)                                                          \
    X(BUFFERS, ps_plan_buffer_fields, ps_plan_buffer)                                                        \
    X(BLOCKS, ps_plan_block_fields, ps_block)                                                                \
    X(INSTRS, ps_plan_instr_fields, ps_instr)                                                                \
    X(ENTRIES, ps_plan_entry_fields, ps_slot_entry)                                                          \
    X(LEVELS, ps_plan_level_fields, ps_level)                                                                \
    X(LEVEL_COUNTS, level_count_fields, ps_level)                                                            \
    X(PLACEMENT, placement_fields, ps_placement)                                                             \
    X(KV, ps_plan_kv_fields, ps_kv_home)                                                                     \
    X(RESIDENT, ps_plan_resident_fields, ps_resident)                                                        \
    X(TIERS, ps_plan_tier_fields, ps_tier)                                                                   \
    X(OFFSETS, offset_fields, uint64_t)                                                                      \
    X(PERIODS_EMPTY, period_fields, double)                                                                  \
    X(PERIODS_FULL, period_fields, double)                                                                   \
    X(PREDICTED, ps_plan_prediction_fields, ps_prediction)
enum {
#define SECTION_ENUM(name, fields, type) S_##name,
    SECTION_LIST(SECTION_ENUM)
#undef SECTION_ENUM
        N_SECTIONS
};
typedef struct section_row {
    const ps_fields *fields;
    size_t record_bytes; /* of the C struct */
} section_row;
static const section_row section_rows[N_SECTIONS] = {
#define SECTION_ROW(name, fields, type) [S_##name] = {&(fields), sizeof(type)},
    SECTION_LIST(SECTION_ROW)
#undef SECTION_ROW
};

enum { HEADER_BYTES = 40, SECTION_BYTES = 24, HASHED_FROM = 32, SECTION_ALIGN = 64 };

typedef struct layout {
    uint64_t count[N_SECTIONS], offset[N_SECTIONS], bytes[N_SECTIONS];
    uint64_t total;
} layout;

/* Offsets from counts. False on overflow. */
static bool lay_out(layout *l) {
    uint64_t at = HEADER_BYTES + N_SECTIONS * SECTION_BYTES;
    for (uint32_t i = 0; i < N_SECTIONS; i++) {
        if (l->count[i] > UINT32_MAX || !ps_align_u64(at, SECTION_ALIGN, &l->offset[i]) ||
            !ps_mul_u64(l->count[i], ps_fields_binary_bytes(section_rows[i].fields), &l->bytes[i]) ||
            !ps_add_u64(l->offset[i], l->bytes[i], &at))
            return false;
    }
    l->total = at;
    return true;
}

static void count_records(const ps_plan *plan, uint64_t count[N_SECTIONS]) {
    memset(count, 0, N_SECTIONS * sizeof *count);
    count[S_HEAD] = count[S_COUNTS] = 1;
    count[S_SHARDS] = plan->n_shards;
    count[S_KERNELS] = plan->n_kernels;
    count[S_PROGRAMS] = plan->n_programs;
    for (uint32_t i = 0; i < plan->n_programs; i++) {
        count[S_BUFFERS] += plan->programs[i].n_buffers;
        count[S_BLOCKS] += plan->programs[i].n_blocks;
        count[S_INSTRS] += plan->programs[i].n_instrs;
        count[S_ENTRIES] += plan->programs[i].n_entries;
    }
    count[S_LEVELS] = count[S_LEVEL_COUNTS] = plan->n_levels;
    count[S_PLACEMENT] = (uint64_t)plan->n_levels * plan->n_shards;
    count[S_KV] = (uint64_t)plan->n_levels * plan->n_layers;
    for (uint32_t i = 0; i < plan->n_levels; i++) {
        const ps_level *level = &plan->levels[i];
        count[S_RESIDENT] += level->n_resident;
        count[S_TIERS] += level->n_tiers;
        for (uint32_t k = 0; k < level->n_tiers; k++) {
            const ps_program *program = &plan->programs[level->tiers[k].program];
            count[S_OFFSETS] += program->n_buffers;
            count[S_PERIODS_EMPTY] += program->n_blocks;
            count[S_PERIODS_FULL] += program->n_blocks;
            count[S_PREDICTED] += program->n_instrs;
        }
    }
}

typedef struct writer {
    uint8_t *data;
    uint64_t at[N_SECTIONS];
} writer;

static void put(writer *w, uint32_t section, const void *records, uint32_t n) {
    const section_row *row = &section_rows[section];
    for (uint32_t i = 0; i < n; i++) {
        ps_fields_put(w->data + w->at[section], row->fields, (const char *)records + i * row->record_bytes);
        w->at[section] += ps_fields_binary_bytes(row->fields);
    }
}

static void put_all(writer *w, const ps_plan *plan) {
    put(w, S_HEAD, plan, 1);
    put(w, S_COUNTS, plan, 1);
    put(w, S_SHARDS, plan->shards, plan->n_shards);
    put(w, S_KERNELS, plan->kernels, plan->n_kernels);
    put(w, S_PROGRAMS, plan->programs, plan->n_programs);
    for (uint32_t i = 0; i < plan->n_programs; i++) {
        const ps_program *p = &plan->programs[i];
        put(w, S_BUFFERS, p->buffers, p->n_buffers);
        put(w, S_BLOCKS, p->blocks, p->n_blocks);
        put(w, S_INSTRS, p->instrs, p->n_instrs);
        put(w, S_ENTRIES, p->entries, p->n_entries);
    }
    put(w, S_LEVELS, plan->levels, plan->n_levels);
    put(w, S_LEVEL_COUNTS, plan->levels, plan->n_levels);
    for (uint32_t i = 0; i < plan->n_levels; i++) {
        const ps_level *level = &plan->levels[i];
        put(w, S_PLACEMENT, level->placement, plan->n_shards);
        put(w, S_KV, level->kv, plan->n_layers);
        put(w, S_RESIDENT, level->resident, level->n_resident);
        put(w, S_TIERS, level->tiers, level->n_tiers);
        for (uint32_t k = 0; k < level->n_tiers; k++) {
            const ps_tier *tier = &level->tiers[k];
            const ps_program *p = &plan->programs[tier->program];
            put(w, S_OFFSETS, tier->buffer_offset, p->n_buffers);
            put(w, S_PERIODS_EMPTY, tier->block_period_empty_s, p->n_blocks);
            put(w, S_PERIODS_FULL, tier->block_period_full_s, p->n_blocks);
            put(w, S_PREDICTED, tier->predicted, p->n_instrs);
        }
    }
}

ps_status ps_plan_to_binary(const ps_plan *plan, uint8_t **out, uint64_t *out_size, ps_error *err) {
    *out = NULL;
    layout l;
    ps_status status = ps_plan_validate(plan, err);
    if (status != PS_OK)
        return status;
    count_records(plan, l.count);
    if (!lay_out(&l) || l.total > PS_PLAN_MAX_BYTES)
        return ps_error_set(err, PS_E_DATA, "plan", "its binary form would be larger than %d bytes",
                            PS_PLAN_MAX_BYTES);
    uint8_t *data = calloc(1, (size_t)l.total);
    if (data == NULL)
        return ps_error_set(err, PS_E_NOMEM, "plan", "no memory for its binary form");
    memcpy(data, PS_PLAN_MAGIC, 4);
    ps_put_u32(data + 4, plan->version);
    ps_put_u64(data + 8, l.total);
    ps_put_u32(data + 32, N_SECTIONS);
    writer w = {.data = data};
    for (uint32_t i = 0; i < N_SECTIONS; i++) {
        uint8_t *row = data + HEADER_BYTES + i * SECTION_BYTES;
        ps_put_u32(row, i + 1);
        ps_put_u32(row + 4, (uint32_t)l.count[i]);
        ps_put_u64(row + 8, l.offset[i]);
        ps_put_u64(row + 16, l.bytes[i]);
        w.at[i] = l.offset[i];
    }
    put_all(&w, plan);
    ps_hash_bytes(data + HASHED_FROM, l.total - HASHED_FROM, data + 16);
    *out = data;
    *out_size = l.total;
    return PS_OK;
}

typedef struct reader {
    const uint8_t *data;
    const char *label;
    ps_arena *arena;
    layout l;
    uint32_t used[N_SECTIONS]; /* records already handed out */
    void *records[N_SECTIONS];
    ps_error *err;
} reader;

static ps_status refuse(const reader *r, uint64_t offset, const char *what) {
    return ps_error_at(r->err, PS_E_DATA, r->label, offset, "%s", what);
}

static ps_status read_header(reader *r, uint64_t size) {
    uint8_t hash[PS_HASH_BYTES];
    if (size < HEADER_BYTES + N_SECTIONS * SECTION_BYTES)
        return refuse(r, size, "shorter than the header of a binary plan");
    uint32_t version = ps_get_u32(r->data + 4);
    if (version != PS_PLAN_VERSION)
        return ps_error_at(r->err, PS_E_UNSUPPORTED, r->label, 4,
                           "plan version %u, this program reads version %d", version, PS_PLAN_VERSION);
    if (ps_get_u64(r->data + 8) != size)
        return refuse(r, 8, "the size in the header is not the size of the file");
    ps_hash_bytes(r->data + HASHED_FROM, size - HASHED_FROM, hash);
    if (memcmp(hash, r->data + 16, PS_HASH_BYTES) != 0)
        return refuse(r, 16, "checksum mismatch: the file is damaged");
    if (ps_get_u32(r->data + 32) != N_SECTIONS || ps_get_u32(r->data + 36) != 0)
        return refuse(r, 32, "wrong number of sections");
    for (uint32_t i = 0; i < N_SECTIONS; i++) {
        const uint8_t *row = r->data + HEADER_BYTES + i * SECTION_BYTES;
        if (ps_get_u32(row) != i + 1)
            return refuse(r, (uint64_t)(row - r->data), "sections out of order");
        r->l.count[i] = ps_get_u32(row + 4);
    }
    if (!lay_out(&r->l) || r->l.total != size)
        return refuse(r, HEADER_BYTES, "sections do not fill the file");
    uint64_t end = HEADER_BYTES + N_SECTIONS * SECTION_BYTES;
    for (uint32_t i = 0; i < N_SECTIONS; i++) {
        const uint8_t *row = r->data + HEADER_BYTES + i * SECTION_BYTES;
        if (ps_get_u64(row + 8) != r->l.offset[i] || ps_get_u64(row + 16) != r->l.bytes[i])
            return refuse(r, (uint64_t)(row - r->data), "section not where its size puts it");
        for (; end < r->l.offset[i]; end++)
            if (r->data[end] != 0)
                return refuse(r, end, "padding is not zero");
        end = r->l.offset[i] + r->l.bytes[i];
    }
    return PS_OK;
}

static ps_status read_section(reader *r, uint32_t section, void *records) {
    const section_row *row = &section_rows[section];
    uint64_t at = r->l.offset[section], bytes = ps_fields_binary_bytes(row->fields);
    ps_status status = PS_OK;
    for (uint64_t i = 0; status == PS_OK && i < r->l.count[section]; i++, at += bytes)
        status = ps_fields_get(r->data + at, at, r->label, row->fields,
                               (char *)records + i * row->record_bytes, r->err);
    return status;
}

/* Every section becomes one array; LEVEL_COUNTS fills the array of LEVELS, HEAD and COUNTS fill the plan. */
static ps_status read_sections(reader *r, ps_plan *plan) {
    if (r->l.count[S_HEAD] != 1 || r->l.count[S_COUNTS] != 1 ||
        r->l.count[S_LEVEL_COUNTS] != r->l.count[S_LEVELS])
        return refuse(r, HEADER_BYTES, "sections of wrong length");
    r->records[S_HEAD] = r->records[S_COUNTS] = plan;
    for (uint32_t i = 0; i < N_SECTIONS; i++) {
        if (i == S_LEVEL_COUNTS)
            r->records[i] = r->records[S_LEVELS];
        if (r->records[i] == NULL)
            r->records[i] = ps_arena_array(r->arena, r->l.count[i], section_rows[i].record_bytes);
        if (r->records[i] == NULL)
            return ps_error_set(r->err, PS_E_NOMEM, r->label, "no memory for a plan");
        ps_status status = read_section(r, i, r->records[i]);
        if (status != PS_OK)
            return status;
    }
    return PS_OK;
}

/* The next n records of a section, NULL if it has fewer. */
static void *take(reader *r, uint32_t section, uint64_t n) {
    if (n > r->l.count[section] - r->used[section])
        return NULL;
    char *p = (char *)r->records[section] + r->used[section] * section_rows[section].record_bytes;
    r->used[section] += (uint32_t)n;
    return p;
}

static bool connect_level(reader *r, const ps_plan *plan, ps_level *level) {
    level->placement = take(r, S_PLACEMENT, plan->n_shards);
    level->kv = take(r, S_KV, plan->n_layers);
    level->resident = take(r, S_RESIDENT, level->n_resident);
    level->tiers = take(r, S_TIERS, level->n_tiers);
    if (level->placement == NULL || level->kv == NULL || level->resident == NULL || level->tiers == NULL)
        return false;
    for (uint32_t k = 0; k < level->n_tiers; k++) {
        ps_tier *tier = &level->tiers[k];
        if (tier->program >= plan->n_programs)
            return false;
        const ps_program *p = &plan->programs[tier->program];
        tier->buffer_offset = take(r, S_OFFSETS, p->n_buffers);
        tier->block_period_empty_s = take(r, S_PERIODS_EMPTY, p->n_blocks);
        tier->block_period_full_s = take(r, S_PERIODS_FULL, p->n_blocks);
        tier->predicted = take(r, S_PREDICTED, p->n_instrs);
        if (tier->buffer_offset == NULL || tier->block_period_empty_s == NULL ||
            tier->block_period_full_s == NULL || tier->predicted == NULL)
            return false;
    }
    return true;
}

/* Hand the arrays out to their holders; every record must find one. */
static bool connect_all(reader *r, ps_plan *plan) {
    plan->shards = take(r, S_SHARDS, plan->n_shards);
    plan->kernels = take(r, S_KERNELS, plan->n_kernels);
    plan->programs = take(r, S_PROGRAMS, plan->n_programs);
    plan->levels = take(r, S_LEVELS, plan->n_levels);
    if (plan->shards == NULL || plan->kernels == NULL || plan->programs == NULL || plan->levels == NULL)
        return false;
    for (uint32_t i = 0; i < plan->n_programs; i++) {
        ps_program *p = &plan->programs[i];
        p->buffers = take(r, S_BUFFERS, p->n_buffers);
        p->blocks = take(r, S_BLOCKS, p->n_blocks);
        p->instrs = take(r, S_INSTRS, p->n_instrs);
        p->entries = take(r, S_ENTRIES, p->n_entries);
        if (p->buffers == NULL || p->blocks == NULL || p->instrs == NULL || p->entries == NULL)
            return false;
    }
    for (uint32_t i = 0; i < plan->n_levels; i++)
        if (!connect_level(r, plan, &plan->levels[i]))
            return false;
    r->used[S_HEAD] = r->used[S_COUNTS] = 1;
    r->used[S_LEVEL_COUNTS] = r->used[S_LEVELS];
    for (uint32_t i = 0; i < N_SECTIONS; i++)
        if (r->used[i] != r->l.count[i])
            return false;
    return true;
}

ps_status ps_plan_parse_binary(const uint8_t *data, uint64_t size, const char *label, ps_plan **out,
                               ps_error *err) {
    reader r = {.data = data, .label = label, .err = err};
    ps_status status = read_header(&r, size);
    if (status != PS_OK)
        return status;
    /* A struct takes at most four times its record: ps_tier, whose arrays are sections of their own. */
    r.arena = ps_arena_new(size * 4 + (1 << 16));
    ps_plan *plan = r.arena != NULL ? ps_arena_alloc(r.arena, sizeof *plan) : NULL;
    if (plan == NULL) {
        ps_arena_free(r.arena);
        return ps_error_set(err, PS_E_NOMEM, label, "no memory for a plan");
    }
    plan->version = PS_PLAN_VERSION;
    plan->arena = r.arena;
    status = read_sections(&r, plan);
    if (status == PS_OK && !connect_all(&r, plan))
        status = refuse(&r, HEADER_BYTES, "counts do not fit the sections");
    if (status != PS_OK) {
        ps_arena_free(r.arena);
        return status;
    }
    *out = plan;
    return PS_OK;
}
