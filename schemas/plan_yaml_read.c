/* YAML to plan. Numbers that must agree across sections (indices, counts) are looked up here; everything
 * else about structure is plan_validate's. */
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/checked.h"
#include "schemas/plan_fields.h"
#include "schemas/yaml_doc.h"

/* Structs per byte of text: the tightest is an instruction, ~160 bytes for at least 40 of text. */
enum { ARENA_BYTES_PER_BYTE = 8, ARENA_BYTES_EXTRA = 1 << 16 };

/* Names of a list, sorted, each with its number. */
typedef struct name_entry {
    const char *name;
    uint32_t value;
} name_entry;
typedef struct name_index {
    name_entry *entries;
    uint32_t n;
} name_index;

typedef struct reader {
    const ps_yaml_doc *doc;
    ps_arena *arena;
    ps_plan *plan;
    name_index kernels;
    ps_error *err;
} reader;

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const name_entry *)a)->name, ((const name_entry *)b)->name);
}

static const name_entry *find_entry(const name_index *index, const char *name) {
    name_entry key = {name, 0};
    return index->n == 0 ? NULL : bsearch(&key, index->entries, index->n, sizeof key, compare_entries);
}

static ps_status no_memory(const reader *r, const ps_yaml_node *node) {
    return ps_yaml_error(r->doc, node, PS_E_NOMEM, r->err, "no memory");
}

/* The rows of table map[key] as an arena array. */
static ps_status read_table(const reader *r, const ps_yaml_node *map, const char *key,
                            const ps_fields *fields, size_t record_bytes, void **out, uint32_t *out_n) {
    const ps_yaml_node *node, *rows;
    ps_status status = ps_yaml_need(r->doc, map, key, PS_YAML_MAP, &node, r->err);
    if (status == PS_OK)
        status = ps_fields_open_table(r->doc, node, fields, &rows, r->err);
    if (status != PS_OK)
        return status;
    *out_n = rows->n;
    *out = ps_arena_array(r->arena, rows->n, record_bytes);
    if (*out == NULL)
        return no_memory(r, rows);
    return ps_fields_read_rows(r->doc, rows, fields, *out, record_bytes, r->err);
}

/* The same with a count that another section fixes. */
static ps_status read_counted(const reader *r, const ps_yaml_node *map, const char *key,
                              const ps_fields *fields, size_t record_bytes, uint32_t want, void **out) {
    uint32_t n = 0;
    ps_status status = read_table(r, map, key, fields, record_bytes, out, &n);
    if (status == PS_OK && n != want)
        status = ps_yaml_error(r->doc, ps_yaml_find(map, key), PS_E_DATA, r->err, "must have %u rows, has %u",
                               want, n);
    return status;
}

/* The elements of sequence map[key], `want` of them (UINT32_MAX: any number). */
static ps_status open_list(const reader *r, const ps_yaml_node *map, const char *key, uint32_t want,
                           const ps_yaml_node **out) {
    ps_status status = ps_yaml_need(r->doc, map, key, PS_YAML_SEQ, out, r->err);
    if (status == PS_OK && want != UINT32_MAX && (*out)->n != want)
        status =
            ps_yaml_error(r->doc, *out, PS_E_DATA, r->err, "must have %u values, has %u", want, (*out)->n);
    return status;
}

static ps_status read_f64_list(const reader *r, const ps_yaml_node *map, const char *key, uint32_t want,
                               double **out) {
    const ps_yaml_node *list;
    ps_status status = open_list(r, map, key, want, &list);
    if (status != PS_OK)
        return status;
    *out = ps_arena_array(r->arena, want, sizeof **out);
    if (*out == NULL)
        return no_memory(r, list);
    double *v = *out;
    for (const ps_yaml_node *e = list->first; status == PS_OK && e != NULL; e = e->next)
        status = ps_yaml_f64(r->doc, e, v++, r->err);
    return status;
}

static ps_status read_u64_list(const reader *r, const ps_yaml_node *map, const char *key, uint32_t want,
                               uint64_t **out) {
    const ps_yaml_node *list;
    ps_status status = open_list(r, map, key, want, &list);
    if (status != PS_OK)
        return status;
    *out = ps_arena_array(r->arena, want, sizeof **out);
    if (*out == NULL)
        return no_memory(r, list);
    uint64_t *v = *out;
    for (const ps_yaml_node *e = list->first; status == PS_OK && e != NULL; e = e->next)
        status = ps_yaml_u64(r->doc, e, UINT64_MAX, v++, r->err);
    return status;
}

static ps_status read_buffer_name(const reader *r, const ps_yaml_node *node, const name_index *buffers,
                                  bool none_allowed, uint16_t *out) {
    ps_status status = ps_yaml_want(r->doc, node, PS_YAML_SCALAR, r->err);
    if (status != PS_OK)
        return status;
    const name_entry *entry = find_entry(buffers, node->text);
    if (entry == NULL && !(none_allowed && strcmp(node->text, "none") == 0))
        return ps_yaml_error(r->doc, node, PS_E_DATA, r->err, "no buffer is called \"%.60s\"", node->text);
    *out = entry != NULL ? (uint16_t)entry->value : PS_NO_BUFFER;
    return PS_OK;
}

/* Elements of an optional operand list; the caller knows what each is. */
typedef ps_status (*element_reader)(const reader *r, const ps_yaml_node *node, const name_index *buffers,
                                    void *out);

static ps_status read_role_element(const reader *r, const ps_yaml_node *node, const name_index *buffers,
                                   void *out) {
    (void)buffers;
    uint32_t role;
    ps_status status = ps_read_name(r->doc, node, &ps_names_role, &role, r->err);
    if (status == PS_OK)
        *(ps_role *)out = (ps_role)role;
    return status;
}

static ps_status read_src_element(const reader *r, const ps_yaml_node *node, const name_index *buffers,
                                  void *out) {
    return read_buffer_name(r, node, buffers, true, out);
}

static ps_status read_wait_element(const reader *r, const ps_yaml_node *node, const name_index *buffers,
                                   void *out) {
    (void)buffers;
    return ps_read_u32(r->doc, node, out, r->err);
}

static ps_status read_u64_element(const reader *r, const ps_yaml_node *node, const name_index *buffers,
                                  void *out) {
    (void)buffers;
    return ps_yaml_u64(r->doc, node, UINT64_MAX, out, r->err);
}

static ps_status read_operands(const reader *r, const ps_yaml_node *map, const char *key, uint32_t max,
                               const name_index *buffers, element_reader read, void *out, size_t stride,
                               uint32_t *out_n) {
    const ps_yaml_node *list = ps_yaml_find(map, key);
    *out_n = 0;
    if (list == NULL)
        return PS_OK;
    ps_status status = ps_yaml_want(r->doc, list, PS_YAML_SEQ, r->err);
    if (status == PS_OK && (list->n == 0 || list->n > max))
        return ps_yaml_error(r->doc, list, PS_E_DATA, r->err, "must have 1 to %u values, has %u", max,
                             list->n);
    char *at = out;
    for (const ps_yaml_node *e = list->first; status == PS_OK && e != NULL; e = e->next, at += stride)
        status = read(r, e, buffers, at);
    *out_n = list->n;
    return status;
}

/* An optional pair: the first and how many, at least one. */
static ps_status read_range(const reader *r, const ps_yaml_node *map, const char *key, uint64_t *out_first,
                            uint64_t *out_n) {
    uint64_t range[2] = {0, 0};
    uint32_t n;
    ps_status status = read_operands(r, map, key, 2, NULL, read_u64_element, range, sizeof range[0], &n);
    if (status == PS_OK && ps_yaml_find(map, key) != NULL && (n != 2 || range[1] == 0))
        status = ps_yaml_error(r->doc, ps_yaml_find(map, key), PS_E_DATA, r->err,
                               "must be the first and how many, at least one");
    *out_first = range[0];
    *out_n = range[1];
    return status;
}

/* Where a weight is: host, vram, or the slot of that name. */
static ps_status read_at_element(const reader *r, const ps_yaml_node *node, const name_index *buffers,
                                 void *out) {
    uint16_t buffer = 0, *at = out;
    ps_status status = ps_yaml_want(r->doc, node, PS_YAML_SCALAR, r->err);
    if (status != PS_OK)
        return status;
    if (strcmp(node->text, "host") == 0 || strcmp(node->text, "vram") == 0) {
        *at = node->text[0] == 'h' ? PS_AT_HOST : PS_AT_VRAM;
        return PS_OK;
    }
    status = read_buffer_name(r, node, buffers, false, &buffer);
    if (status == PS_OK && buffer > UINT16_MAX - PS_AT_SLOT)
        status = ps_yaml_error(r->doc, node, PS_E_DATA, r->err, "more buffers than a program has");
    *at = (uint16_t)(PS_AT_SLOT + buffer);
    return status;
}

static ps_status read_optional_name(const reader *r, const ps_yaml_node *map, const char *key,
                                    const ps_names *names, uint32_t *out) {
    const ps_yaml_node *node = ps_yaml_find(map, key);
    *out = 0;
    return node == NULL ? PS_OK : ps_read_name(r->doc, node, names, out, r->err);
}

/* The fields of an instruction that only programs with a GPU have. */
static ps_status read_places(const reader *r, const ps_yaml_node *map, const name_index *buffers,
                             ps_instr *in) {
    static const ps_field ahead_rows[] = {PS_FIELD(ps_instr, ahead, "ahead", BOOL)};
    static const ps_fields ahead_fields = PS_FIELDS(ahead_rows);
    const ps_yaml_node *ahead = ps_yaml_find(map, "ahead"), *kv = ps_yaml_find(map, "kv");
    uint32_t n, part = 0, when = 0;
    uint16_t buffer = 0;
    ps_status status = read_operands(r, map, "at", PS_OP_MAX_WEIGHTS, buffers, read_at_element, in->at,
                                     sizeof in->at[0], &n);
    if (status == PS_OK)
        status = read_optional_name(r, map, "part", &ps_names_part, &part);
    if (status == PS_OK)
        status = read_optional_name(r, map, "when", &ps_names_when, &when);
    if (status == PS_OK && ahead != NULL)
        status = ps_fields_read_one(r->doc, ahead, &ahead_fields.rows[0], in, r->err);
    if (status == PS_OK && kv != NULL) {
        status = read_buffer_name(r, kv, buffers, false, &buffer);
        in->kv = (uint16_t)(PS_KV_SLOT + buffer);
    }
    in->part = (ps_moe_part)part;
    in->when = (ps_when)when;
    return status;
}

static const ps_field instr_name_rows[] = {
    PS_FIELD_NAMED(ps_instr, op, "op", &ps_names_op),
    PS_FIELD_NAMED(ps_instr, queue, "queue", &ps_names_queue),
    PS_FIELD_NAMED(ps_instr, shard, "shard", &ps_names_shard_kind),
};
static const ps_fields instr_name_fields = PS_FIELDS(instr_name_rows);

static ps_status read_instr(const reader *r, const ps_yaml_node *map, const name_index *buffers,
                            ps_instr *in) {
    static const char *const others[] = {"kernel", "w",  "at",  "rows", "cols", "part", "when",
                                         "ahead",  "kv", "src", "dst",  "wait", NULL};
    uint32_t n;
    for (uint32_t i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        in->w[i] = PS_ROLE_NONE;
    for (uint32_t i = 0; i < PS_OP_MAX_SRC; i++)
        in->src[i] = PS_NO_BUFFER;
    in->dst = PS_NO_BUFFER;
    ps_status status = ps_fields_read_map(r->doc, map, &instr_name_fields, others, in, r->err);
    if (status != PS_OK)
        return status;
    const ps_yaml_node *kernel = ps_yaml_find(map, "kernel"), *dst = ps_yaml_find(map, "dst");
    if (kernel != NULL) {
        status = ps_yaml_want(r->doc, kernel, PS_YAML_SCALAR, r->err);
        const name_entry *entry = status == PS_OK ? find_entry(&r->kernels, kernel->text) : NULL;
        if (status == PS_OK && entry == NULL)
            status = ps_yaml_error(r->doc, kernel, PS_E_DATA, r->err, "no kernel is called \"%.60s\"",
                                   kernel->text);
        if (status == PS_OK)
            in->kernel = r->plan->kernels[entry->value].id;
    }
    if (status == PS_OK && dst != NULL)
        status = read_buffer_name(r, dst, buffers, false, &in->dst);
    if (status == PS_OK)
        status = read_operands(r, map, "w", PS_OP_MAX_WEIGHTS, NULL, read_role_element, in->w,
                               sizeof in->w[0], &n);
    if (status == PS_OK)
        status = read_operands(r, map, "src", PS_OP_MAX_SRC, buffers, read_src_element, in->src,
                               sizeof in->src[0], &n);
    if (status == PS_OK)
        status = read_operands(r, map, "wait", PS_MAX_WAITS, NULL, read_wait_element, in->wait,
                               sizeof in->wait[0], &in->n_waits);
    if (status == PS_OK)
        status = read_range(r, map, "rows", &in->row0, &in->n_rows);
    if (status == PS_OK)
        status = read_range(r, map, "cols", &in->col0, &in->n_cols);
    return status == PS_OK ? read_places(r, map, buffers, in) : status;
}

static ps_status read_block(const reader *r, const ps_yaml_node *map, const name_index *buffers,
                            const ps_yaml_node **out_instrs, ps_block *block) {
    static const ps_field rows[] = {
        PS_FIELD_NAMED(ps_block, loop, "loop", &ps_names_loop),
        PS_FIELD(ps_block, over_tiles, "over_tiles", BOOL),
    };
    static const ps_fields fields = PS_FIELDS(rows);
    static const char *const others[] = {"layers", "instrs", NULL};
    (void)buffers;
    ps_status status = ps_fields_read_map(r->doc, map, &fields, others, block, r->err);
    if (status == PS_OK)
        status = open_list(r, map, "instrs", UINT32_MAX, out_instrs);
    if (status != PS_OK)
        return status;
    block->n_instrs = (*out_instrs)->n;
    block->n_layers = 1;
    const ps_yaml_node *layers = ps_yaml_find(map, "layers");
    if ((layers != NULL) != (block->loop == PS_LOOP_LAYERS))
        return ps_yaml_error(r->doc, map, PS_E_DATA, r->err,
                             "\"layers\" belongs to loop: layers, and only there");
    if (layers == NULL)
        return PS_OK;
    status = open_list(r, map, "layers", 2, &layers);
    if (status == PS_OK)
        status = ps_read_u32(r->doc, layers->first, &block->layer0, r->err);
    if (status == PS_OK)
        status = ps_read_u32(r->doc, layers->first->next, &block->n_layers, r->err);
    return status;
}

static ps_status index_names(const reader *r, const ps_yaml_node *where, name_index *index) {
    qsort(index->entries, index->n, sizeof *index->entries, compare_entries);
    for (uint32_t i = 1; i < index->n; i++)
        if (strcmp(index->entries[i - 1].name, index->entries[i].name) == 0)
            return ps_yaml_error(r->doc, where, PS_E_DATA, r->err, "two of the name \"%.60s\"",
                                 index->entries[i].name);
    return PS_OK;
}

static ps_status read_buffers(const reader *r, const ps_yaml_node *list, ps_program *program,
                              name_index *index) {
    static const char *const others[] = {"name", NULL};
    program->n_buffers = list->n;
    program->buffers = ps_arena_array(r->arena, list->n, sizeof *program->buffers);
    index->entries = ps_arena_array(r->arena, list->n, sizeof *index->entries);
    if (program->buffers == NULL || index->entries == NULL)
        return no_memory(r, list);
    ps_status status = PS_OK;
    for (const ps_yaml_node *e = list->first; status == PS_OK && e != NULL; e = e->next) {
        const ps_yaml_node *name;
        status = ps_fields_read_map(r->doc, e, &ps_plan_buffer_fields, others, &program->buffers[index->n],
                                    r->err);
        if (status == PS_OK)
            status = ps_yaml_need(r->doc, e, "name", PS_YAML_SCALAR, &name, r->err);
        if (status == PS_OK && strcmp(name->text, "none") == 0)
            status = ps_yaml_error(r->doc, name, PS_E_DATA, r->err, "\"none\" cannot be a name");
        if (status == PS_OK) {
            index->entries[index->n] = (name_entry){name->text, index->n};
            index->n++;
        }
    }
    return status == PS_OK ? index_names(r, list, index) : status;
}

static ps_status read_entries(const reader *r, const ps_yaml_node *map, const name_index *buffers,
                              ps_program *program) {
    static const ps_field rows[] = {
        PS_FIELD_NAMED(ps_slot_entry, range.role, "role", &ps_names_role),
        PS_FIELD(ps_slot_entry, range.layer, "layer", U32),
    };
    static const ps_fields fields = PS_FIELDS(rows);
    static const char *const others[] = {"slot", "rows", "cols", NULL};
    const ps_yaml_node *list, *slot;
    ps_status status = open_list(r, map, "entries", UINT32_MAX, &list);
    if (status != PS_OK)
        return status;
    program->n_entries = list->n;
    program->entries = ps_arena_array(r->arena, list->n, sizeof *program->entries);
    if (program->entries == NULL)
        return no_memory(r, list);
    ps_slot_entry *entry = program->entries;
    for (const ps_yaml_node *e = list->first; status == PS_OK && e != NULL; e = e->next, entry++) {
        status = ps_fields_read_map(r->doc, e, &fields, others, entry, r->err);
        if (status == PS_OK)
            status = ps_yaml_need(r->doc, e, "slot", PS_YAML_SCALAR, &slot, r->err);
        if (status == PS_OK)
            status = read_buffer_name(r, slot, buffers, false, &entry->slot);
        if (status == PS_OK)
            status = read_range(r, e, "rows", &entry->range.row0, &entry->range.n_rows);
        if (status == PS_OK)
            status = read_range(r, e, "cols", &entry->range.col0, &entry->range.n_cols);
    }
    return status;
}

static ps_status read_program(const reader *r, const ps_yaml_node *map, ps_program *program) {
    static const char *const keys[] = {"buffers", "blocks", "entries", NULL};
    static const ps_fields none = {0, NULL};
    const ps_yaml_node *buffers, *blocks, *instrs;
    name_index index = {NULL, 0};
    ps_status status = ps_fields_check_keys(r->doc, map, &none, keys, r->err);
    if (status == PS_OK)
        status = open_list(r, map, "buffers", UINT32_MAX, &buffers);
    if (status == PS_OK)
        status = read_buffers(r, buffers, program, &index);
    if (status == PS_OK)
        status = open_list(r, map, "blocks", UINT32_MAX, &blocks);
    if (status != PS_OK)
        return status;
    program->n_blocks = blocks->n;
    program->blocks = ps_arena_array(r->arena, blocks->n, sizeof *program->blocks);
    if (program->blocks == NULL)
        return no_memory(r, blocks);
    ps_block *block = program->blocks;
    for (const ps_yaml_node *e = blocks->first; status == PS_OK && e != NULL; e = e->next, block++) {
        block->instr0 = program->n_instrs;
        status = read_block(r, e, &index, &instrs, block);
        program->n_instrs +=
            status == PS_OK ? block->n_instrs : 0; /* no more than bytes of text: no overflow */
    }
    program->instrs =
        status == PS_OK ? ps_arena_array(r->arena, program->n_instrs, sizeof *program->instrs) : NULL;
    if (status == PS_OK && program->instrs == NULL)
        return no_memory(r, blocks);
    ps_instr *in = program->instrs;
    for (const ps_yaml_node *e = blocks->first; status == PS_OK && e != NULL; e = e->next)
        for (const ps_yaml_node *i = ps_yaml_find(e, "instrs")->first; status == PS_OK && i != NULL;
             i = i->next)
            status = read_instr(r, i, &index, in++);
    return status == PS_OK ? read_entries(r, map, &index, program) : status;
}

static ps_status read_tier(const reader *r, const ps_yaml_node *map, ps_tier *tier) {
    static const char *const others[] = {"buffer_offset", "block_period_empty_s", "block_period_full_s",
                                         "predicted", NULL};
    ps_status status = ps_fields_read_map(r->doc, map, &ps_plan_tier_fields, others, tier, r->err);
    if (status != PS_OK)
        return status;
    if (tier->program >= r->plan->n_programs)
        return ps_yaml_error(r->doc, ps_yaml_find(map, "program"), PS_E_DATA, r->err, "program %u of %u",
                             tier->program, r->plan->n_programs);
    const ps_program *program = &r->plan->programs[tier->program];
    void *predicted = NULL;
    status = read_u64_list(r, map, "buffer_offset", program->n_buffers, &tier->buffer_offset);
    if (status == PS_OK)
        status =
            read_f64_list(r, map, "block_period_empty_s", program->n_blocks, &tier->block_period_empty_s);
    if (status == PS_OK)
        status = read_f64_list(r, map, "block_period_full_s", program->n_blocks, &tier->block_period_full_s);
    if (status == PS_OK)
        status = read_counted(r, map, "predicted", &ps_plan_prediction_fields, sizeof *tier->predicted,
                              program->n_instrs, &predicted);
    tier->predicted = predicted;
    return status;
}

static ps_status read_placement(const reader *r, const ps_yaml_node *map, ps_level *level) {
    const ps_yaml_node *list;
    ps_status status = open_list(r, map, "placement", r->plan->n_shards, &list);
    if (status != PS_OK)
        return status;
    level->placement = ps_arena_array(r->arena, list->n, sizeof *level->placement);
    if (level->placement == NULL)
        return no_memory(r, list);
    ps_placement *p = level->placement;
    uint32_t v;
    for (const ps_yaml_node *e = list->first; status == PS_OK && e != NULL; e = e->next)
        if ((status = ps_read_name(r->doc, e, &ps_names_placement, &v, r->err)) == PS_OK)
            *p++ = (ps_placement)v;
    return status;
}

static ps_status read_level(const reader *r, const ps_yaml_node *map, ps_level *level) {
    static const char *const others[] = {"placement", "kv", "resident", "tiers", NULL};
    const ps_yaml_node *tiers;
    void *kv = NULL, *resident = NULL;
    ps_status status = ps_fields_read_map(r->doc, map, &ps_plan_level_fields, others, level, r->err);
    if (status == PS_OK)
        status = read_placement(r, map, level);
    if (status == PS_OK)
        status = read_counted(r, map, "kv", &ps_plan_kv_fields, sizeof *level->kv, r->plan->n_layers, &kv);
    level->kv = kv;
    if (status == PS_OK)
        status = read_table(r, map, "resident", &ps_plan_resident_fields, sizeof *level->resident, &resident,
                            &level->n_resident);
    level->resident = resident;
    if (status == PS_OK)
        status = open_list(r, map, "tiers", UINT32_MAX, &tiers);
    if (status != PS_OK)
        return status;
    level->n_tiers = tiers->n;
    level->tiers = ps_arena_array(r->arena, tiers->n, sizeof *level->tiers);
    if (level->tiers == NULL)
        return no_memory(r, tiers);
    ps_tier *tier = level->tiers;
    for (const ps_yaml_node *e = tiers->first; status == PS_OK && e != NULL; e = e->next)
        status = read_tier(r, e, tier++);
    return status;
}

static ps_status read_kernels(reader *r, const ps_yaml_node *root) {
    void *kernels = NULL;
    ps_status status = read_table(r, root, "kernels", &ps_kernel_spec_fields, sizeof *r->plan->kernels,
                                  &kernels, &r->plan->n_kernels);
    r->plan->kernels = kernels;
    if (status != PS_OK)
        return status;
    r->kernels.entries = ps_arena_array(r->arena, r->plan->n_kernels, sizeof *r->kernels.entries);
    if (r->kernels.entries == NULL)
        return no_memory(r, root);
    for (uint32_t i = 0; i < r->plan->n_kernels; i++)
        r->kernels.entries[r->kernels.n++] = (name_entry){r->plan->kernels[i].name, i};
    return index_names(r, ps_yaml_find(root, "kernels"), &r->kernels);
}

static ps_status read_root(reader *r) {
    static const char *const others[] = {"pinstripe-plan", "shards", "kernels", "programs", "levels", NULL};
    const ps_yaml_node *root = ps_yaml_root(r->doc), *node, *list;
    ps_plan *plan = r->plan;
    void *shards = NULL;
    ps_status status = ps_yaml_need(r->doc, root, "pinstripe-plan", PS_YAML_SCALAR, &node, r->err);
    if (status == PS_OK)
        status = ps_read_u32(r->doc, node, &plan->version, r->err);
    if (status == PS_OK && plan->version != PS_PLAN_VERSION)
        return ps_yaml_error(r->doc, node, PS_E_UNSUPPORTED, r->err,
                             "plan version %u, this program reads version %d", plan->version,
                             PS_PLAN_VERSION);
    if (status == PS_OK)
        status = ps_fields_read_map(r->doc, root, &ps_plan_head_fields, others, plan, r->err);
    if (status == PS_OK)
        status = read_table(r, root, "shards", &ps_plan_shard_fields, sizeof *plan->shards, &shards,
                            &plan->n_shards);
    plan->shards = shards;
    if (status == PS_OK)
        status = read_kernels(r, root);
    if (status == PS_OK)
        status = open_list(r, root, "programs", UINT32_MAX, &list);
    if (status != PS_OK)
        return status;
    plan->programs = ps_arena_array(r->arena, list->n, sizeof *plan->programs);
    if (plan->programs == NULL)
        return no_memory(r, list);
    plan->n_programs = list->n;
    ps_program *program = plan->programs;
    for (const ps_yaml_node *e = list->first; status == PS_OK && e != NULL; e = e->next)
        status = read_program(r, e, program++);
    if (status == PS_OK)
        status = open_list(r, root, "levels", UINT32_MAX, &list);
    if (status != PS_OK)
        return status;
    plan->levels = ps_arena_array(r->arena, list->n, sizeof *plan->levels);
    if (plan->levels == NULL)
        return no_memory(r, list);
    plan->n_levels = list->n;
    ps_level *level = plan->levels;
    for (const ps_yaml_node *e = list->first; status == PS_OK && e != NULL; e = e->next)
        status = read_level(r, e, level++);
    return status;
}

ps_status ps_plan_parse_yaml(const char *text, uint64_t size, const char *label, ps_plan **out,
                             ps_error *err) {
    ps_yaml_doc *doc = NULL;
    ps_status status = ps_yaml_load(text, size, label, &doc, err);
    if (status != PS_OK)
        return status;
    uint64_t limit = 0;
    bool fits =
        ps_mul_u64(size, ARENA_BYTES_PER_BYTE, &limit) && ps_add_u64(limit, ARENA_BYTES_EXTRA, &limit);
    ps_arena *arena = fits ? ps_arena_new(limit) : NULL;
    ps_plan *plan = arena != NULL ? ps_arena_alloc(arena, sizeof *plan) : NULL;
    if (plan == NULL) {
        status = ps_error_set(err, PS_E_NOMEM, label, "no memory for a plan");
    } else {
        reader r = {.doc = doc, .arena = arena, .plan = plan, .err = err};
        plan->arena = arena;
        status = read_root(&r);
    }
    ps_yaml_free(doc);
    if (status == PS_OK)
        *out = plan;
    else
        ps_arena_free(arena);
    return status;
}
