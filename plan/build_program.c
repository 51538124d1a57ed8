/* Programs of a plan, shared by tiers and levels, and the tiers made of them. See build.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "plan/build.h"
#include "plan/memory.h"

ps_status ps_build_no_memory(ps_error *err) {
    return ps_error_set(err, PS_E_NOMEM, "plan", "out of memory");
}

static bool same_program(const ps_program *a, const ps_program *b) {
    if (a->n_buffers != b->n_buffers || a->n_instrs != b->n_instrs || a->n_blocks != b->n_blocks ||
        a->n_entries != b->n_entries)
        return false;
    for (uint32_t i = 0; i < a->n_entries; i++) {
        const ps_slot_entry *x = &a->entries[i], *y = &b->entries[i];
        if (x->slot != y->slot || x->range.role != y->range.role || x->range.layer != y->range.layer ||
            x->range.row0 != y->range.row0 || x->range.n_rows != y->range.n_rows ||
            x->range.col0 != y->range.col0 || x->range.n_cols != y->range.n_cols)
            return false;
    }
    for (uint32_t i = 0; i < a->n_buffers; i++) {
        const ps_plan_buffer *x = &a->buffers[i], *y = &b->buffers[i];
        if (x->value != y->value || x->space != y->space || x->fmt != y->fmt || x->rows != y->rows ||
            x->col0 != y->col0 || x->cols != y->cols)
            return false;
    }
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        const ps_block *x = &a->blocks[i], *y = &b->blocks[i];
        if (x->loop != y->loop || x->layer0 != y->layer0 || x->n_layers != y->n_layers ||
            x->over_tiles != y->over_tiles || x->instr0 != y->instr0 || x->n_instrs != y->n_instrs)
            return false;
    }
    for (uint32_t i = 0; i < a->n_instrs; i++) {
        const ps_instr *x = &a->instrs[i], *y = &b->instrs[i];
        bool same = x->op == y->op && x->queue == y->queue && x->kernel == y->kernel &&
                    x->shard == y->shard && x->row0 == y->row0 && x->n_rows == y->n_rows &&
                    x->col0 == y->col0 && x->n_cols == y->n_cols && x->part == y->part &&
                    x->when == y->when && x->ahead == y->ahead && x->kv == y->kv && x->dst == y->dst &&
                    x->n_waits == y->n_waits;
        for (int k = 0; same && k < PS_OP_MAX_WEIGHTS; k++)
            same = x->w[k] == y->w[k] && x->at[k] == y->at[k];
        for (int k = 0; same && k < PS_OP_MAX_SRC; k++)
            same = x->src[k] == y->src[k];
        for (uint32_t k = 0; same && k < x->n_waits; k++)
            same = x->wait[k] == y->wait[k];
        if (!same)
            return false;
    }
    return true;
}

ps_status ps_build_program(ps_building *b, const ps_lower_request *r, uint32_t *out_index) {
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    ps_program p;
    ps_status status = arena ? ps_lower(r, arena, &p, b->err) : ps_build_no_memory(b->err);
    if (status)
        goto done;
    for (uint32_t i = 0; i < b->n_programs; i++)
        if (same_program(&b->programs[i].program, &p)) {
            *out_index = i;
            goto done;
        }
    if (b->n_programs == b->room) {
        uint32_t room = b->room ? b->room * 2 : 8;
        ps_built_program *grown = realloc(b->programs, room * sizeof *grown);
        if (!grown) {
            status = ps_build_no_memory(b->err);
            goto done;
        }
        b->programs = grown;
        b->room = room;
    }
    ps_built_program *to = &b->programs[b->n_programs];
    to->program = p;
    to->program.buffers = ps_arena_array(b->plan->arena, p.n_buffers, sizeof *p.buffers);
    to->program.instrs = ps_arena_array(b->plan->arena, p.n_instrs, sizeof *p.instrs);
    to->program.blocks = ps_arena_array(b->plan->arena, p.n_blocks, sizeof *p.blocks);
    to->program.entries = ps_arena_array(b->plan->arena, p.n_entries, sizeof *p.entries);
    to->conflict = ps_arena_array(b->work, (uint64_t)p.n_buffers * p.n_buffers, sizeof *to->conflict);
    if (!to->program.buffers || !to->program.instrs || !to->program.blocks || !to->program.entries ||
        !to->conflict) {
        status = ps_build_no_memory(b->err);
        goto done;
    }
    memcpy(to->program.buffers, p.buffers, p.n_buffers * sizeof *p.buffers);
    memcpy(to->program.instrs, p.instrs, p.n_instrs * sizeof *p.instrs);
    memcpy(to->program.blocks, p.blocks, p.n_blocks * sizeof *p.blocks);
    if (p.n_entries)
        memcpy(to->program.entries, p.entries, p.n_entries * sizeof *p.entries);
    status = ps_deps_conflicts(&to->program, to->conflict, b->err);
    if (!status)
        *out_index = b->n_programs++;
done:
    ps_arena_free(arena);
    return status;
}

/* What a simulation works on: one allocation each. */
typedef struct simulated {
    double *work, *bus_share;
    ps_sim_time *times;
    ps_sim_block *blocks;
    ps_contention contention;
    ps_sim sim;
} simulated;

static void simulated_close(simulated *s) {
    free(s->work);
    free(s->bus_share);
    free(s->times);
    free(s->blocks);
}

static ps_status simulated_open(simulated *s, const ps_lower_request *r, const ps_program *p, ps_error *err) {
    *s = (simulated){.work = calloc(p->n_instrs, sizeof *s->work),
                     .bus_share = calloc(p->n_instrs, sizeof *s->bus_share),
                     .times = calloc(p->n_instrs, sizeof *s->times),
                     .blocks = calloc(p->n_blocks, sizeof *s->blocks),
                     .contention = ps_contention_of(r->cost, r->n_threads)};
    s->contention.instrs = p->instrs;
    s->contention.bus_share = s->bus_share;
    s->sim = (ps_sim){.program = p,
                      .n_tiles = (uint32_t)((r->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS),
                      .work_s = s->work,
                      .start_s = r->profile->pool_start_s.median,
                      .speed = r->level ? ps_instr_speed : NULL,
                      .alone_is_idle = true,
                      .speed_ctx = &s->contention};
    return s->work && s->bus_share && s->times && s->blocks ? PS_OK : ps_build_no_memory(err);
}

static void simulated_load(simulated *s, const ps_lower_request *r, const ps_program *p, uint64_t kv_len) {
    for (uint32_t i = 0; i < p->n_blocks; i++)
        for (uint32_t k = p->blocks[i].instr0; k < p->blocks[i].instr0 + p->blocks[i].n_instrs; k++) {
            s->work[k] = ps_instr_cost(r, p, k, p->blocks[i].layer0, kv_len).time_s;
            if (r->level)
                s->bus_share[k] = ps_instr_bus_share(r, p, k, p->blocks[i].layer0, kv_len, s->work[k]);
        }
}

static ps_status simulated_run(simulated *s, const ps_lower_request *r, const ps_program *p, uint64_t kv_len,
                               double *out_s, ps_error *err) {
    simulated_load(s, r, p, kv_len);
    return ps_simulate(&s->sim, s->times, s->blocks, out_s, err);
}

ps_status ps_build_step_s(const ps_lower_request *r, const ps_program *p, uint64_t kv_len, double *out_s,
                          ps_error *err) {
    simulated s;
    ps_status status = simulated_open(&s, r, p, err);
    if (!status)
        status = simulated_run(&s, r, p, kv_len, out_s, err);
    simulated_close(&s);
    return status;
}

ps_status ps_build_stream(const ps_lower_request *r, const ps_program *p, uint64_t kv_len,
                          ps_sim_time **out_times, uint64_t *out_n, double *out_s, ps_error *err) {
    simulated s;
    ps_status status = simulated_open(&s, r, p, err);
    if (!status) {
        simulated_load(&s, r, p, kv_len);
        status = ps_simulate_all(&s.sim, out_times, out_n, out_s, err);
    }
    simulated_close(&s);
    return status;
}

/* What the busiest queue takes by itself, of a step of one tile: no instruction is faster beside others than alone. */
static double busiest_s(const simulated *s, const ps_program *p) {
    double sum[PS_QUEUE_COUNT] = {0}, most = 0;
    for (uint32_t i = 0; i < p->n_blocks; i++)
        for (uint32_t k = p->blocks[i].instr0; k < p->blocks[i].instr0 + p->blocks[i].n_instrs; k++)
            sum[p->instrs[k].queue] += s->work[k] * p->blocks[i].n_layers;
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        most = sum[q] > most ? sum[q] : most;
    return s->sim.start_s + most;
}

ps_status ps_build_both_s(const ps_lower_request *r, const ps_program *p, const uint64_t kv_len[2],
                          double most_s, double out_s[2], double *out_least_s, ps_error *err) {
    static const double rounding = 1 - 1e-6;
    simulated s;
    double least[2] = {0, 0};
    ps_status status = simulated_open(&s, r, p, err);
    for (int i = 0; i < 2 && !status && isfinite(most_s) && s.sim.n_tiles == 1; i++) {
        simulated_load(&s, r, p, kv_len[i]);
        least[i] = busiest_s(&s, p) * rounding;
    }
    out_s[0] = out_s[1] = INFINITY;
    for (int i = 1; i >= 0 && !status && (least[0] + least[1]) / 2 < most_s; i--) {
        status = simulated_run(&s, r, p, kv_len[i], &out_s[i], err);
        least[i] = status ? 0 : out_s[i] * rounding;
    }
    *out_least_s = (least[0] + least[1]) / 2;
    if (!isfinite(out_s[0]))
        out_s[1] = INFINITY;
    simulated_close(&s);
    return status;
}

ps_status ps_build_predict(ps_building *b, const ps_lower_request *r, const ps_program *p, ps_tier *tier) {
    simulated s;
    ps_status status = simulated_open(&s, r, p, b->err);
    uint64_t empty = r->max_tokens <= r->n_seqs ? 1 : r->max_tokens; /* positions after a step from nothing */
    for (int full = 0; full < 2 && !status; full++) {
        uint64_t kv_len = full && r->bucket_tokens > empty ? r->bucket_tokens : empty;
        status = simulated_run(&s, r, p, kv_len, full ? &tier->step_full_s : &tier->step_empty_s, b->err);
        for (uint32_t i = 0; i < p->n_blocks && !status; i++) {
            (full ? tier->block_period_full_s : tier->block_period_empty_s)[i] = s.blocks[i].period_s;
            for (uint32_t k = p->blocks[i].instr0; k < p->blocks[i].instr0 + p->blocks[i].n_instrs; k++) {
                ps_prediction *to = &tier->predicted[k];
                *(full ? &to->start_full_s : &to->start_empty_s) = s.times[k].start_s;
                *(full ? &to->end_full_s : &to->end_empty_s) = s.times[k].end_s;
            }
        }
    }
    simulated_close(&s);
    return status;
}

ps_status ps_build_tier(ps_building *b, const ps_lower_request *r, ps_arena *arena, const uint64_t kv_end[2],
                        ps_tier *tier, uint64_t out_end[2]) {
    ps_status status = ps_build_program(b, r, &tier->program);
    return status ? status : ps_build_places(b, r, arena, kv_end, tier, out_end);
}

ps_status ps_build_places(ps_building *b, const ps_lower_request *r, ps_arena *arena,
                          const uint64_t kv_end[2], ps_tier *tier, uint64_t out_end[2]) {
    ps_status status = PS_OK;
    const ps_built_program *bp = &b->programs[tier->program];
    const ps_program *p = &bp->program;
    tier->max_tokens = (uint32_t)r->max_tokens;
    tier->max_outputs = r->max_outputs;
    tier->max_direct = r->max_direct;
    tier->buffer_offset = ps_arena_array(arena, p->n_buffers, sizeof *tier->buffer_offset);
    tier->block_period_empty_s = ps_arena_array(arena, p->n_blocks, sizeof(double));
    tier->block_period_full_s = ps_arena_array(arena, p->n_blocks, sizeof(double));
    tier->predicted = ps_arena_array(arena, p->n_instrs, sizeof *tier->predicted);
    if (!tier->buffer_offset || !tier->block_period_empty_s || !tier->block_period_full_s || !tier->predicted)
        return ps_build_no_memory(b->err);
    for (int s = 0; s < PS_SPACE_COUNT; s++) {
        uint64_t end, *offset = s == PS_SPACE_HOST ? &tier->scratch_offset : &tier->vram_scratch_offset,
                      *bytes = s == PS_SPACE_HOST ? &tier->scratch_bytes : &tier->vram_scratch_bytes;
        status = ps_memory_place(p, bp->conflict, tier, (ps_space)s, kv_end[s], &end, b->err);
        if (status)
            return status;
        *bytes = ps_memory_scratch(r, p, s == PS_SPACE_HOST ? PS_QUEUE_CPU : PS_QUEUE_GPU);
        *offset = s == PS_SPACE_HOST || *bytes ? end : 0;
        if (!ps_add_u64(end, *bytes, &end))
            return ps_error_set(b->err, PS_E_INFEASIBLE, "memory map", "scratch exceeds 2^64 bytes");
        out_end[s] = end > out_end[s] ? end : out_end[s];
    }
    return PS_OK;
}
