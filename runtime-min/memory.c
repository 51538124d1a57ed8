/* The engine's memory: the device, page-locked host arena, the ranges of VRAM, resident pieces, tables of experts. All of
 * it is made at load for the largest level that may be entered; entering a level maps and fills what that one wants. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"
#include "runtime-min/engine_internal.h"

static bool uses_gpu(const ps_instr *in) {
    return in->queue != PS_QUEUE_CPU;
}

/* A kernel of the device reads weights in host memory. */
static bool reads_direct(const ps_instr *in) {
    if (in->queue != PS_QUEUE_GPU)
        return false;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        if (in->w[i] != PS_ROLE_NONE &&
            (in->at[i] == PS_AT_HOST || (in->op == PS_OP_MOE_DISPATCH && in->at[i] < PS_AT_SLOT)))
            return true;
    return false;
}

static bool any_instr(const ps_engine *e, const ps_level *l, bool (*test)(const ps_instr *)) {
    for (uint32_t t = 0; t < l->n_tiers; t++) {
        const ps_program *p = &e->plan->programs[l->tiers[t].program];
        for (uint32_t i = 0; i < p->n_instrs; i++)
            if (test(&p->instrs[i]))
                return true;
    }
    return false;
}

static bool is_blas(const ps_kernel_spec *k) {
    return k->device == PS_DEV_CUDA && strstr(k->name, ".gemm.") != NULL;
}

bool ps_engine_level_uses_gpu(const ps_engine *e) {
    return any_instr(e, e->level, uses_gpu);
}

ps_status ps_engine_open_device(ps_engine *e, const ps_engine_options *o, ps_error *err) {
    bool emulated = o->device != NULL && strcmp(o->device, "emulated") == 0;
    ps_device_options d = {.emulated = emulated,
                           .emulated_bytes = o->emulated_bytes,
                           .emulated_base_bytes = o->emulated_base_bytes,
                           .emulated_others = o->emulated_others,
                           .emulated_others_ctx = o->emulated_others_ctx,
                           .fault = o->device_fault,
                           .fault_ctx = o->device_fault_ctx};
    ps_status status = ps_device_open(&d, &e->run.device, err);
    if (status != PS_OK)
        return status;
    e->has_device = true;
    /* Naps cost up to a tenth of a millisecond at the end of a wait; an emulated device needs the cores itself. */
    e->run.spin_ns = emulated || ps_device_get_info(e->run.device)->display ? 200000 : 20000000;
    e->info.device = ps_device_get_info(e->run.device)->name;
    if (emulated)
        return PS_OK;
    if (ps_device_fault(e->run.device, "load"))
        return ps_error_set(err, PS_E_OS, "kernels", "loading failed");
#ifdef PS_HAVE_CUDA
    status = ps_cuda_load_all(err);
    for (uint32_t i = 0; i < e->plan->n_kernels && status == PS_OK && e->run.blas == NULL; i++)
        if (is_blas(&e->plan->kernels[i]))
            status = ps_cuda_blas_open(&e->run.blas, err);
    return status;
#else
    (void)is_blas;
    return PS_OK;
#endif
}

/* ---- sizes ---- */

static uint64_t align_up(uint64_t n, uint64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* Experts' addresses and resident bits of each layer, one behind the other. */
static ps_status size_tables(ps_engine *e, ps_error *err) {
    uint64_t at = 0;
    e->expert_offset = ps_arena_array(e->arena, e->model->n_layers, sizeof *e->expert_offset);
    if (e->expert_offset == NULL)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for tables of experts");
    for (uint32_t l = 0; l < e->model->n_layers; l++) {
        uint64_t n = e->model->layers[l].n_expert;
        e->expert_offset[l] = n == 0 || !e->has_device ? UINT64_MAX : at;
        if (e->expert_offset[l] != UINT64_MAX)
            at += align_up(n * sizeof(uint64_t) * PS_OP_MAX_WEIGHTS + (n + 31) / 32 * 4, 64);
    }
    e->run.tables_bytes = at;
    return PS_OK;
}

/* The step block of the longest step: see ps_device_fill_block. A layer has one set of spans, or two where a slot stands
 * in for its home. */
static uint64_t block_bytes(const ps_engine *e) {
    uint64_t tiles = (e->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
    uint64_t spans = 2 * (uint64_t)e->model->n_layers * tiles * e->info.n_sessions;
    return align_up(256 + 8 * e->max_tokens + spans * sizeof(ps_seq_span), 256);
}

static ps_status host_alloc(ps_engine *e, uint64_t bytes, uint8_t **out, uint8_t **d_out, const char *what,
                            ps_error *err) {
    void *p = NULL;
    uint8_t *d = NULL;
    ps_status status = ps_device_host_alloc(e->run.device, bytes, &p, &d, err);
    if (status != PS_OK) {
        ps_error_prefix(err, what);
        return status;
    }
    *out = p;
    if (d_out != NULL)
        *d_out = d;
    return PS_OK;
}

/* The host arena is zero pages until it is used; large pages where the system has them. */
static ps_status map_arena(ps_engine *e, ps_error *err) {
    void *p = mmap(NULL, (size_t)e->host_arena_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for an arena of %llu bytes",
                            (unsigned long long)e->host_arena_bytes);
    (void)madvise(p, (size_t)e->host_arena_bytes,
                  MADV_HUGEPAGE); /* an optimisation only: it may not be offered */
    e->host_arena = p;
    return PS_OK;
}

static const char *const hold_names[] = {
#define HOLD_NAME(name, text, direct) text,
    PS_HOLD_LIST(HOLD_NAME)
#undef HOLD_NAME
};

static ps_status open_weights(ps_engine *e, const ps_engine_options *o, ps_error *err) {
    ps_weights_options w = {.device = e->run.device,
                            .machine = e->machine,
                            .lock_limit_bytes = o->lock_limit_bytes,
                            .memory_limit_bytes = o->memory_limit_bytes,
                            .force = o->hold};
    for (uint32_t i = 0; i < e->plan->n_levels; i++)
        w.needs_direct |= e->reachable[i] && any_instr(e, &e->plan->levels[i], reads_direct);
    ps_status status = ps_weights_open(e->model, &w, &e->weights, err);
    if (status != PS_OK)
        return status;
    const ps_hold hold = ps_weights_hold(e->weights);
    e->weights_direct = hold == PS_HOLD_SLABS || hold == PS_HOLD_REGISTERED;
    e->info.weights = hold_names[hold];
    e->info.weights_why = ps_weights_why(e->weights);
    /* Read a mapped file ahead, so that the first step does not fault it in page by page. */
    for (uint32_t i = 0; hold == PS_HOLD_MAPPED && i < e->gguf->n_files; i++)
        (void)madvise((void *)(uintptr_t)e->gguf->files[i].data, (size_t)e->gguf->files[i].size,
                      MADV_WILLNEED);
    return PS_OK;
}

static ps_status reserve_vram(ps_engine *e, uint64_t work, uint64_t weight, ps_error *err) {
    ps_run_device *r = &e->run;
    r->block_bytes = block_bytes(e);
    uint64_t own = align_up(r->block_bytes + r->tables_bytes, PS_VRAM_HANDLE);
    ps_status status = ps_vram_reserve(r->device, own, &r->own, err);
    if (status == PS_OK)
        status = ps_vram_resize(r->own, own, err);
    if (status == PS_OK && work != 0)
        status = ps_vram_reserve(r->device, align_up(work, PS_VRAM_HANDLE), &r->work, err);
    if (status == PS_OK && weight != 0)
        status = ps_vram_reserve(r->device, align_up(weight, PS_VRAM_HANDLE), &r->weight, err);
    if (status == PS_OK)
        status = host_alloc(e, r->block_bytes, &r->block, NULL, "step block", err);
    if (status == PS_OK && r->tables_bytes != 0)
        status = host_alloc(e, r->tables_bytes, &r->tables, NULL, "tables of experts", err);
    if (status != PS_OK)
        return status;
    r->d_block = ps_vram_base(r->own);
    r->d_tables = r->d_block + r->block_bytes;
    r->d_work = r->work != NULL ? ps_vram_base(r->work) : NULL;
    r->d_weight = r->weight != NULL ? ps_vram_base(r->weight) : NULL;
    return PS_OK;
}

ps_status ps_engine_open_memory(ps_engine *e, const ps_engine_options *o, ps_error *err) {
    uint64_t work = 0, weight = 0, n_resident = 0;
    for (uint32_t i = 0; i < e->plan->n_levels; i++) {
        const ps_level *l = &e->plan->levels[i];
        if (!e->reachable[i])
            continue;
        uint64_t tokens = l->tiers[l->n_tiers - 1].max_tokens;
        e->max_tokens = tokens > e->max_tokens ? tokens : e->max_tokens;
        e->host_arena_bytes =
            l->host_arena_bytes > e->host_arena_bytes ? l->host_arena_bytes : e->host_arena_bytes;
        work = l->vram_work_bytes > work ? l->vram_work_bytes : work;
        weight = l->vram_weight_bytes > weight ? l->vram_weight_bytes : weight;
        n_resident = l->n_resident > n_resident ? l->n_resident : n_resident;
    }
    ps_status status = size_tables(e, err);
    if (status != PS_OK)
        return status;
    if (!e->has_device) {
        status = e->host_arena_bytes != 0 ? map_arena(e, err) : PS_OK;
        return status == PS_OK ? open_weights(e, o, err) : status;
    }
    ps_meter how = PS_METER_COUNT;
    status = ps_device_vram_used(e->run.device, &e->info.vram_base_bytes, &how, err);
    if (status != PS_OK)
        return status;
    e->info.meter = ps_meter_name(how);
    e->run.loaded = ps_arena_array(e->arena, n_resident, sizeof *e->run.loaded);
    e->run.timed_index = ps_arena_array(e->arena, PS_RUN_TIMED, sizeof *e->run.timed_index);
    e->run.graph_timed = ps_arena_array(e->arena, 2 * PS_RUN_TIMED, sizeof *e->run.graph_timed);
    if (e->run.loaded == NULL || e->run.timed_index == NULL || e->run.graph_timed == NULL)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for %llu resident pieces",
                            (unsigned long long)n_resident);
    status = host_alloc(e, e->host_arena_bytes != 0 ? e->host_arena_bytes : 1, &e->host_arena,
                        &e->d_host_arena, "host arena", err);
    if (status == PS_OK)
        status = reserve_vram(e, work, weight, err);
    if (status == PS_OK)
        status = open_weights(e, o, err);
    if (status == PS_OK)
        status = ps_engine_kv_plan_stage(e, err);
    if (status == PS_OK && e->stage_bytes != 0)
        status = host_alloc(e, e->stage_bytes, &e->stage, NULL, "KV on the way between levels", err);
    return status;
}

/* ---- entering a level ---- */

static bool same_piece(const ps_resident *a, const ps_resident *b) {
    const ps_weight_range *x = &a->range, *y = &b->range;
    return a->offset == b->offset && x->role == y->role && x->layer == y->layer && x->row0 == y->row0 &&
           x->n_rows == y->n_rows && x->col0 == y->col0 && x->n_cols == y->n_cols;
}

/* The pieces that are in VRAM already: the first ones of the list that did not change, as far as the arena is mapped. */
static void keep_loaded(ps_engine *e) {
    ps_run_device *r = &e->run;
    uint64_t mapped = r->weight != NULL ? ps_vram_mapped(r->weight) : 0, n = 0, bytes;
    while (n < r->n_loaded && n < e->level->n_resident && same_piece(&r->loaded[n], &e->level->resident[n]) &&
           ps_weight_range_bytes(e->model, &r->loaded[n].range, &bytes, NULL) &&
           ps_range_ok(r->loaded[n].offset, bytes, mapped))
        n++;
    r->n_loaded = n;
}

static ps_status load_pieces(ps_engine *e, ps_error *err) {
    ps_run_device *r = &e->run;
    const ps_level *l = e->level;
    ps_status status = PS_OK;
    for (uint64_t i = r->n_loaded; i < l->n_resident && status == PS_OK; i++) {
        const ps_weight_range *range = &l->resident[i].range;
        const ps_weight *w = ps_model_weight(e->model, range->layer, range->role);
        if (w == NULL)
            return ps_error_set(err, PS_E_DATA, e->info.budget, "resident piece %llu: no such weight",
                                (unsigned long long)i);
        status = ps_weights_copy(e->weights, w, range->row0, range->n_rows, range->col0, range->n_cols,
                                 r->d_weight + l->resident[i].offset, err);
        r->loaded[i] = l->resident[i];
    }
    if (status == PS_OK)
        status = ps_device_sync(r->device, err);
    r->n_loaded = status == PS_OK ? l->n_resident : 0;
    return status;
}

/* Addresses of each expert's three matrices: in VRAM where all three are, else where the device reads them in host memory. */
static ps_status fill_tables(ps_engine *e, ps_error *err) {
    static const ps_role roles[PS_OP_MAX_WEIGHTS] = {PS_ROLE_FFN_GATE_EXPS, PS_ROLE_FFN_UP_EXPS,
                                                     PS_ROLE_FFN_DOWN_EXPS};
    ps_run_device *r = &e->run;
    if (r->tables_bytes == 0)
        return PS_OK;
    memset(r->tables, 0, r->tables_bytes);
    for (uint32_t i = 0; i < e->level->n_resident; i++) { /* VRAM first */
        const ps_weight_range *p = &e->level->resident[i].range;
        for (int m = 0; m < PS_OP_MAX_WEIGHTS; m++) {
            if (p->role != roles[m] || p->n_cols != 0 || e->expert_offset[p->layer] == UINT64_MAX)
                continue;
            const ps_weight *w = ps_model_weight(e->model, p->layer, p->role);
            uint64_t *at =
                (uint64_t *)(void *)(r->tables + e->expert_offset[p->layer]) + (uint64_t)m * w->experts;
            for (uint64_t k = 0; k < p->n_rows; k++)
                at[p->row0 + k] =
                    (uintptr_t)(r->d_weight + e->level->resident[i].offset + k * (w->bytes / w->experts));
        }
    }
    for (uint32_t l = 0; l < e->model->n_layers; l++) {
        if (e->expert_offset[l] == UINT64_MAX)
            continue;
        uint64_t n = e->model->layers[l].n_expert;
        uint64_t *at = (uint64_t *)(void *)(r->tables + e->expert_offset[l]);
        uint32_t *bits = (uint32_t *)(void *)(at + PS_OP_MAX_WEIGHTS * n);
        for (uint64_t x = 0; x < n; x++) {
            if (at[x] != 0 && at[n + x] != 0 && at[2 * n + x] != 0) {
                bits[x / 32] |= 1u << x % 32;
                continue;
            }
            for (uint64_t m = 0; m < PS_OP_MAX_WEIGHTS; m++) {
                const ps_weight *w = ps_model_weight(e->model, l, roles[m]);
                const uint8_t *d = w != NULL ? ps_weights_device(e->weights, w) : NULL;
                at[m * n + x] = d != NULL ? (uintptr_t)(d + x * (w->bytes / n)) : 0;
            }
        }
    }
    return ps_device_copy(r->device, PS_STREAM_H2D, r->d_tables, 0, r->tables, 0, r->tables_bytes, 1, err);
}

static ps_status resize(ps_vram_range *range, uint64_t bytes, bool grow, ps_error *err) {
    if (range == NULL || (bytes > ps_vram_mapped(range)) != grow)
        return PS_OK;
    return ps_vram_resize(range, bytes, err);
}

ps_status ps_engine_meter(ps_engine *e, ps_error *err) {
    if (!e->has_device)
        return PS_OK;
    uint64_t used;
    ps_meter how;
    ps_status status = ps_device_vram_used(e->run.device, &used, &how, err);
    if (status != PS_OK)
        return status;
    e->stats.vram_peak_bytes = used > e->stats.vram_peak_bytes ? used : e->stats.vram_peak_bytes;
    if (e->level->budget_bytes != 0 && used > e->level->budget_bytes)
        return ps_error_set(
            err, PS_E_INFEASIBLE, e->info.budget, "the budget is %llu bytes, but the meter (%s) shows %llu",
            (unsigned long long)e->level->budget_bytes, e->info.meter, (unsigned long long)used);
    return PS_OK;
}

static uint64_t mapped(const ps_vram_range *range) {
    return range != NULL ? ps_vram_mapped(range) : 0;
}

/* Whether arenas of so many bytes can be had beside what other processes have. Asked before anything is given back, so that
 * a change which fails can be undone. */
static ps_status others_leave(const ps_engine *e, uint64_t bytes, ps_error *err) {
    uint64_t used, total, have = mapped(e->run.work) + mapped(e->run.weight);
    if (bytes <= have || ps_device_vram_all(e->run.device, &used, &total, NULL) != PS_OK)
        return PS_OK; /* where nothing is known the driver will tell */
    uint64_t left = total > used ? total - used : 0;
    return bytes - have <= left
               ? PS_OK
               : ps_error_set(err, PS_E_NOMEM, e->info.budget,
                              "needs %llu more bytes of VRAM, but processes on the GPU leave %llu",
                              (unsigned long long)(bytes - have), (unsigned long long)left);
}

/* What the meter will show once the level is there, before any of it is. */
static ps_status foresee(const ps_engine *e, ps_error *err) {
    const ps_level *l = e->level;
    uint64_t arenas = ps_vram_mapped(e->run.own) + l->vram_work_bytes + l->vram_weight_bytes;
    if (l->budget_bytes == 0 || e->info.vram_base_bytes + arenas <= l->budget_bytes)
        return others_leave(e, l->vram_work_bytes + l->vram_weight_bytes, err);
    return ps_error_set(err, PS_E_INFEASIBLE, e->info.budget,
                        "the budget is %llu bytes, but context, modules and libraries take %llu here and the "
                        "plan's arenas %llu",
                        (unsigned long long)l->budget_bytes, (unsigned long long)e->info.vram_base_bytes,
                        (unsigned long long)arenas);
}

/* Counters of a pass, and a trace's readings of one, for the longest schedule. They only grow. */
static ps_status size_passes(ps_engine *e, ps_error *err) {
    uint64_t n_spreads = 1, n_points = 1, n_events = 1;
    for (uint32_t t = 0; t < e->n_tiers; t++)
        for (uint32_t i = 0; i < e->tiers[t].n_schedules; i++) {
            const ps_run_schedule *s = &e->tiers[t].schedules[i];
            n_spreads = s->n_spreads > n_spreads ? s->n_spreads : n_spreads;
            n_points = s->cpu_points > n_points ? s->cpu_points : n_points;
            n_events = s->length > n_events ? s->length : n_events;
        }
    void *p;
    if (n_spreads > e->n_spreads) {
        if ((p = realloc(e->spreads, n_spreads * sizeof *e->spreads)) == NULL)
            return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for %llu phases",
                                (unsigned long long)n_spreads);
        e->spreads = p;
        e->n_spreads = n_spreads;
    }
    if (n_points > e->n_points) {
        if ((p = realloc(e->point_done, n_points * sizeof *e->point_done)) == NULL)
            return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for %llu points",
                                (unsigned long long)n_points);
        e->point_done = p;
        e->n_points = n_points;
    }
    if (n_events > e->n_events && e->event_ns != NULL) {
        if ((p = realloc(e->event_ns, 2 * sizeof(uint64_t) * n_events * e->info.n_threads)) == NULL)
            return ps_error_set(err, PS_E_NOMEM, "trace", "no memory for %llu events",
                                (unsigned long long)n_events);
        e->event_ns = p;
    }
    e->n_events = n_events > e->n_events ? n_events : e->n_events;
    return PS_OK;
}

ps_status ps_engine_enter_level(ps_engine *e, ps_error *err) {
    ps_run_device *r = &e->run;
    const ps_level *l = e->level;
    ps_status status = PS_OK;
    e->level_index = (uint32_t)(l - e->plan->levels);
    e->info.budget = l->budget;
    e->info.budget_bytes = l->budget_bytes;
    e->info.bucket = l->bucket_tokens;
    e->info.level_seqs = l->n_seqs;
    e->info.arena_bytes = l->host_arena_bytes;
    e->info.vram_work_bytes = l->vram_work_bytes;
    e->info.vram_weight_bytes = l->vram_weight_bytes;
    e->info.max_step_tokens = l->tiers[l->n_tiers - 1].max_tokens;
    if (e->has_device) {
        ps_device_drop_graphs(e);
        r->slots = NULL;
        status = foresee(e, err);
        for (int grow = 0; grow < 2 && status == PS_OK; grow++) { /* give back before taking */
            status = resize(r->weight, l->vram_weight_bytes, grow != 0, err);
            if (status == PS_OK)
                status = resize(r->work, l->vram_work_bytes, grow != 0, err);
        }
        if (status == PS_OK)
            keep_loaded(e);
        if (status == PS_OK)
            status = fill_tables(e, err);
        if (status == PS_OK)
            status = load_pieces(e, err);
    }
    ps_arena_free(e->level_arena);
    e->level_arena = NULL;
    if (status != PS_OK)
        return status;
    e->level_arena = ps_arena_new(UINT64_MAX);
    if (e->level_arena == NULL)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory");
    status = ps_engine_resolve(e, err);
    if (status == PS_OK)
        status = size_passes(e, err);
    if (status == PS_OK)
        status = ps_engine_meter(e, err);
    if (status != PS_OK)
        return status;
    e->info.context = l->bucket_tokens;
    for (uint32_t i = 0; i < e->plan->n_levels; i++) {
        const ps_level *other = &e->plan->levels[i];
        if (e->reachable[i] && other->budget_bytes == l->budget_bytes &&
            other->bucket_tokens > e->info.context)
            e->info.context = other->bucket_tokens;
    }
    return PS_OK;
}

void ps_engine_close_memory(ps_engine *e) {
    ps_run_device *r = &e->run;
    if (e->has_device) {
        ps_device_finish(r->device); /* weights are still there */
        ps_device_drop_graphs(e);
    }
    ps_weights_close(e->weights);
#ifdef PS_HAVE_CUDA
    if (r->blas != NULL)
        ps_cuda_blas_close(r->blas);
#endif
    if (!e->has_device && e->host_arena != NULL)
        munmap(e->host_arena, (size_t)e->host_arena_bytes);
    ps_device_close(r->device); /* with ranges and page-locked memory */
    ps_arena_free(e->level_arena);
}
