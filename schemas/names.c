/* Spelling of every enumeration that documents use. */
#include <stddef.h>
#include <string.h>

#include "model/dtype.h"
#include "model/kernel_spec.h"
#include "model/model.h"
#include "model/ops.h"
#include "schemas/fields.h"
#include "schemas/machine_profile.h"
#include "schemas/plan.h"
#include "schemas/trace.h"

#define NAME_ROW(id, text) text,
static const char *const queue_names[] = {PS_QUEUE_LIST(NAME_ROW)};
static const char *const space_names[] = {PS_SPACE_LIST(NAME_ROW)};
static const char *const placement_names[] = {PS_PLACEMENT_LIST(NAME_ROW)};
static const char *const rows_names[] = {PS_ROWS_LIST(NAME_ROW)};
static const char *const loop_names[] = {PS_LOOP_LIST(NAME_ROW)};
static const char *const stop_names[] = {PS_STOP_LIST(NAME_ROW)};
static const char *const beside_names[] = {PS_BESIDE_LIST(NAME_ROW)};
static const char *const when_names[] = {PS_WHEN_LIST(NAME_ROW)};
static const char *const part_names[] = {PS_MOE_PART_LIST(NAME_ROW)};
static const char *const host_kind_names[] = {PS_HOST_KIND_LIST(NAME_ROW)};
static const char *const bus_names[] = {PS_BUS_LIST(NAME_ROW)};
static const char *const timer_names[] = {PS_TIMER_LIST(NAME_ROW)};
static const char *const source_names[PS_TRACE_SOURCE_COUNT] = {"simulated", "measured"};
#undef NAME_ROW

#define NAME_OF(function, table)                                                                             \
    static const char *function(uint32_t v) {                                                                \
        return v < sizeof(table) / sizeof((table)[0]) ? (table)[v] : NULL;                                   \
    }
NAME_OF(name_of_queue, queue_names)
NAME_OF(name_of_space, space_names)
NAME_OF(name_of_placement, placement_names)
NAME_OF(name_of_rows, rows_names)
NAME_OF(name_of_loop, loop_names)
NAME_OF(name_of_stop, stop_names)
NAME_OF(name_of_beside, beside_names)
NAME_OF(name_of_when, when_names)
NAME_OF(name_of_part, part_names)
NAME_OF(name_of_host_kind, host_kind_names)
NAME_OF(name_of_bus, bus_names)
NAME_OF(name_of_timer, timer_names)
NAME_OF(name_of_source, source_names)
#undef NAME_OF

static const char *name_of_op(uint32_t v) {
    return v < PS_OP_COUNT ? ps_op_get((ps_op)v)->name : NULL;
}

static const char *name_of_dtype(uint32_t v) {
    const ps_dtype_info *info = v == PS_DTYPE_NONE ? NULL : ps_dtype_find(v);
    return v == PS_DTYPE_NONE ? "none" : info != NULL ? info->name : NULL;
}

static const char *name_of_fmt(uint32_t v) {
    return v < PS_FMT_COUNT ? ps_fmt_name((ps_fmt)v) : NULL;
}

static const char *name_of_device(uint32_t v) {
    return v < PS_DEV_COUNT ? ps_processor_name((ps_processor)v) : NULL;
}

static const char *name_of_value(uint32_t v) {
    return v < PS_VALUE_COUNT ? ps_value_name((ps_value)v) : NULL;
}

static const char *name_of_shard_kind(uint32_t v) {
    return v < PS_SHARD_KIND_COUNT ? ps_shard_kind_name((ps_shard_kind)v) : NULL;
}

static const char *name_of_role(uint32_t v) {
    return v < PS_ROLE_COUNT ? ps_role_get((ps_role)v)->name : v == PS_ROLE_NONE ? "none" : NULL;
}

const ps_names ps_names_op = {"operation", PS_OP_COUNT, name_of_op};
const ps_names ps_names_dtype = {"tensor type", PS_DTYPE_NONE + 1, name_of_dtype};
const ps_names ps_names_fmt = {"format", PS_FMT_COUNT, name_of_fmt};
const ps_names ps_names_device = {"device", PS_DEV_COUNT, name_of_device};
const ps_names ps_names_value = {"value", PS_VALUE_COUNT, name_of_value};
const ps_names ps_names_shard_kind = {"shard kind", PS_SHARD_KIND_COUNT, name_of_shard_kind};
const ps_names ps_names_role = {"tensor role", PS_ROLE_COUNT + 1, name_of_role};
const ps_names ps_names_queue = {"queue", PS_QUEUE_COUNT, name_of_queue};
const ps_names ps_names_space = {"space", PS_SPACE_COUNT, name_of_space};
const ps_names ps_names_placement = {"placement", PS_PLACE_COUNT, name_of_placement};
const ps_names ps_names_rows = {"row count", PS_ROWS_COUNT, name_of_rows};
const ps_names ps_names_loop = {"loop", PS_LOOP_COUNT, name_of_loop};
const ps_names ps_names_stop = {"stop reason", PS_STOP_COUNT, name_of_stop};
const ps_names ps_names_beside = {"neighbour", PS_BESIDE_COUNT, name_of_beside};
const ps_names ps_names_when = {"time in the loop", PS_WHEN_COUNT, name_of_when};
const ps_names ps_names_part = {"part of the experts", PS_MOE_PART_COUNT, name_of_part};
const ps_names ps_names_host_kind = {"kind of host memory", PS_HOST_KIND_COUNT, name_of_host_kind};
const ps_names ps_names_bus = {"way over the bus", PS_BUS_COUNT, name_of_bus};
const ps_names ps_names_timer = {"timer", PS_TIMER_COUNT, name_of_timer};
const ps_names ps_names_trace_source = {"source", PS_TRACE_SOURCE_COUNT, name_of_source};

const char *ps_stop_name(ps_stop stop) {
    const char *name = name_of_stop((uint32_t)stop);
    return name ? name : "?";
}

const char *ps_beside_name(ps_beside beside) {
    const char *name = name_of_beside((uint32_t)beside);
    return name ? name : "?";
}

const char *ps_bus_name(ps_bus bus) {
    const char *name = name_of_bus((uint32_t)bus);
    return name ? name : "?";
}

const char *ps_host_kind_name(ps_host_kind kind) {
    const char *name = name_of_host_kind((uint32_t)kind);
    return name ? name : "?";
}

uint32_t ps_names_find(const ps_names *names, const char *text) {
    for (uint32_t i = 0; i < names->count; i++) {
        const char *name = names->name_of(i);
        if (name != NULL && strcmp(name, text) == 0)
            return i;
    }
    return names->count;
}

const char *ps_queue_name(ps_queue q) {
    const char *name = name_of_queue((uint32_t)q);
    return name != NULL ? name : "unknown";
}

const char *ps_space_name(ps_space s) {
    const char *name = name_of_space((uint32_t)s);
    return name != NULL ? name : "unknown";
}

const char *ps_placement_name(ps_placement p) {
    const char *name = name_of_placement((uint32_t)p);
    return name != NULL ? name : "unknown";
}
