/* Levels with a GPU: families, memory, residents. See build.h.
 *
 * Of the budget, base (context, libraries, the executor's own) comes first; the work arena holds KV, buffers, slots and scratch
 * of the tier that takes most; resident weights take the rest. The work arena depends on what is resident (less is streamed) and
 * the other way round: a few rounds, beginning with nothing resident, find a pair that fits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "plan/bounds.h"
#include "plan/build.h"
#include "plan/memory.h"

/* Beside context and libraries a run takes what graphs and launches allocate in the driver: 29 MB were seen on an H200. */
enum { RUN_BYTES = 32 << 20 };
enum { MAX_TIERS = 32, DEFAULT_STEP = 16384, MIN_STEP = 512, FIT_ROUNDS = 5 };
static const double base_margin = 1.02; /* over what the meter showed: it must not be under */
static const double work_share = 1.0 / 3;

static uint64_t handles(uint64_t bytes) {
    return bytes > UINT64_MAX - PS_VRAM_ALIGN ? UINT64_MAX / 2
                                              : (bytes + PS_VRAM_ALIGN - 1) / PS_VRAM_ALIGN * PS_VRAM_ALIGN;
}

static uint64_t base_bytes(const ps_profile *p) {
    return (uint64_t)((double)p->gpu.base_bytes * base_margin) + PS_VRAM_OWN + RUN_BYTES;
}

static uint64_t longest_step(const ps_plan_request *q, const ps_level_request *lr) {
    uint64_t most = q->max_step_tokens ? q->max_step_tokens : DEFAULT_STEP, all;
    if (most > PS_PLAN_MAX_TOKENS)
        most = PS_PLAN_MAX_TOKENS;
    return ps_mul_u64(lr->bucket_tokens, lr->n_seqs, &all) && all < most ? all : most;
}

static uint32_t tiers_up_to(uint64_t most, uint32_t *out) {
    uint32_t n = 0;
    for (uint64_t t = 1; t < most && n < MAX_TIERS - 1; t *= 2)
        out[n++] = (uint32_t)t;
    out[n++] = (uint32_t)most;
    return n;
}

/* One level tried out: its KV homes, and what is resident. */
typedef struct trial {
    ps_building b; /* of its own: what is tried leaves nothing in the plan */
    ps_plan plan;
    const ps_level_request *lr;
    ps_gpu_choice c;
    ps_kv_home *kv;
    uint64_t kv_end[PS_SPACE_COUNT];
} trial;

static void trial_close(trial *t) {
    free(t->b.programs);
    ps_arena_free(t->b.work);
    ps_arena_free(t->plan.arena);
    free(t->kv);
    *t = (trial){0};
}

static ps_status trial_open(trial *t, ps_building *b, const ps_level_request *lr) {
    *t = (trial){.lr = lr, .b = {.q = b->q, .err = b->err, .work = ps_arena_new(UINT64_MAX)}};
    t->plan.arena = ps_arena_new(UINT64_MAX);
    t->kv = calloc(b->q->model->n_layers, sizeof *t->kv);
    if (!t->b.work || !t->plan.arena || !t->kv)
        return ps_build_no_memory(b->err);
    return PS_OK;
}

/* Nothing that was tried is kept. */
static ps_status trial_again(trial *t) {
    free(t->b.programs);
    ps_arena_free(t->b.work);
    ps_arena_free(t->plan.arena);
    t->b.programs = NULL;
    t->b.n_programs = t->b.room = 0;
    t->b.work = ps_arena_new(UINT64_MAX);
    t->plan.arena = ps_arena_new(UINT64_MAX);
    t->b.plan = &t->plan;
    return t->b.work && t->plan.arena ? PS_OK : ps_build_no_memory(t->b.err);
}

static void homes(const ps_building *b, const ps_level_request *lr, uint32_t max_step, uint32_t n_vram,
                  ps_kv_home *kv, uint64_t out_end[PS_SPACE_COUNT]) {
    uint64_t tile = max_step < PS_TILE_TOKENS ? max_step : PS_TILE_TOKENS;
    ps_memory_kv(b->q->model, lr->bucket_tokens, tile, lr->n_seqs, n_vram, kv, out_end);
}

/* A tier of a level: places, program, memory; times where they are wanted. */
static ps_status build_tier(ps_building *b, const ps_level_request *lr, const ps_gpu_choice *c,
                            const ps_resident_set *set, const ps_kv_home *kv, const uint64_t kv_end[2],
                            uint32_t tokens, bool with_times, ps_arena *arena, ps_tier *tier,
                            uint64_t out_end[2]) {
    ps_lower_request r = ps_build_request(b->q, lr, tokens);
    ps_placing placing;
    /* What costs ask of a level, which is not there yet. */
    const ps_level level = {.budget_bytes = lr->budget_bytes,
                            .kv = (ps_kv_home *)(uintptr_t)kv,
                            .n_resident = set->n,
                            .resident = set->pieces};
    r.level = &level;
    ps_family family = tokens <= PS_PLAN_DECODE_TOKENS ? c->few : c->many;
    ps_status status = ps_family_place(family, &r, set, kv, b->work, &placing, b->err);
    r.place = &placing;
    r.max_direct = placing.max_direct;
    if (!status)
        status = ps_build_tier(b, &r, arena, kv_end, tier, out_end);
    if (!status && with_times) {
        status = ps_build_predict(b, &r, &b->programs[tier->program].program, tier);
        if (!status)
            ps_bounds(&r, &tier->raw_bound_s, &tier->reachable_bound_s);
    }
    return status;
}

/* Bytes of the work arena but for KV. The longest tier need not take most: kernels for fewer rows can want more scratch. Of the
 * tiers of few rows the last one does. */
static ps_status work_bytes(trial *t, const ps_resident_set *set, uint64_t *out) {
    uint32_t tiers[MAX_TIERS], n = tiers_up_to(t->c.max_step, tiers);
    ps_status status = trial_again(t);
    uint64_t end[2] = {0, 0}, none[2] = {0, 0};
    for (uint32_t i = 0; i < n && !status; i++) {
        ps_tier tier = {0};
        if (i + 1 < n && tiers[i + 1] <= PS_PLAN_DECODE_TOKENS)
            continue;
        status = build_tier(&t->b, t->lr, &t->c, set, t->kv, none, tiers[i], false, t->b.work, &tier, end);
    }
    *out = end[PS_SPACE_VRAM];
    return status;
}

/* How much is for weights when the work arena without KV takes `work`, and how many layers have attention and KV in VRAM.
 * False: not even the small weights fit. */
static bool divide(trial *t, uint64_t avail, uint64_t work, uint64_t *out_weights, uint32_t *out_attn) {
    const ps_model *m = t->b.q->model;
    uint64_t small = ps_resident_small_bytes(m), weights = small, kv = 0;
    uint32_t n = 0;
    if (handles(work) > avail || handles(small) > avail - handles(work))
        return false;
    for (; n < m->n_layers; n++) {
        uint64_t bytes, attn = ps_resident_attn_bytes(m, n);
        if (!ps_mul_u64(t->kv[n].bytes, t->lr->n_seqs, &bytes) ||
            !ps_align_u64(bytes, PS_RESIDENT_ALIGN, &bytes) || kv + bytes < kv ||
            handles(work + kv + bytes) > avail ||
            handles(weights + attn) > avail - handles(work + kv + bytes))
            break;
        kv += bytes;
        weights += attn;
    }
    *out_attn = n;
    *out_weights = n < m->n_layers ? handles(weights) : avail - handles(work + kv);
    return true;
}

static uint32_t shorter(uint32_t step) { /* the next lower power of two */
    uint32_t to = 1;
    while (to * 2 < step)
        to *= 2;
    return to;
}

/* The longest step whose work arena leaves enough for weights, nothing resident. *out_work: bytes there. */
static ps_status shorten(trial *t, uint64_t avail, const ps_resident_set *none, uint64_t *out_work) {
    for (;;) {
        homes(&t->b, t->lr, t->c.max_step, 0, t->kv, t->kv_end);
        if (t->kv_end[PS_SPACE_HOST] == UINT64_MAX)
            return ps_error_set(t->b.err, PS_E_INFEASIBLE, "kv cache", "exceeds 2^64 bytes");
        ps_status status = work_bytes(t, none, out_work);
        bool tight = *out_work > (uint64_t)((double)avail * work_share);
        bool never = handles(*out_work) + handles(ps_resident_small_bytes(t->b.q->model)) > avail;
        if (status && status != PS_E_INFEASIBLE)
            return status;
        if ((!status && !tight) || t->c.max_step <= (never || status ? PS_PLAN_DECODE_TOKENS : MIN_STEP))
            return status;
        t->c.max_step = shorter(t->c.max_step);
    }
}

/* The most weights that fit beside the work arena, which they change: a few rounds, beginning with a work arena of `work`
 * bytes. False in *out_found: no round did. */
static ps_status fit_weights(trial *t, uint64_t avail, uint64_t work, ps_resident_set *set, bool *out_found) {
    ps_resident_set grown = {0};
    uint64_t best = 0;
    ps_status status = PS_OK;
    *out_found = false;
    for (int round = 0; round < FIT_ROUNDS && !status; round++) {
        uint64_t weights, now;
        uint32_t n_attn;
        if (!divide(t, avail, work, &weights, &n_attn))
            break;
        ps_resident_free(&grown);
        status = ps_resident_init(&grown, t->b.q->model, t->b.err);
        if (!status)
            status = ps_resident_grow(&grown, weights, n_attn, t->b.err);
        homes(&t->b, t->lr, t->c.max_step, grown.n_attn, t->kv, t->kv_end);
        if (!status)
            status = work_bytes(t, &grown, &now);
        if (status)
            break;
        uint64_t all = handles(t->kv_end[PS_SPACE_VRAM] + now);
        if (all <= avail && handles(grown.bytes) <= avail - all) {
            if (!*out_found || grown.bytes > best) {
                ps_resident_free(set);
                *set = grown;
                grown = (ps_resident_set){0};
                best = set->bytes;
                t->c.weight_bytes = handles(best);
                t->c.n_attn = set->n_attn;
                *out_found = true;
            }
            if (now + PS_VRAM_ALIGN > work)
                break; /* nothing more to be had */
        }
        work = now > work && *out_found ? work : now;
    }
    ps_resident_free(&grown);
    return status;
}

/* Find what fits for the choice's families: its max_step, weight_bytes, n_attn, and its workload's time. */
static ps_status fit(trial *t, ps_resident_set *set) {
    const ps_plan_request *q = t->b.q;
    ps_resident_set none = {0};
    uint64_t base = base_bytes(q->profile), work = 0;
    uint64_t avail =
        t->lr->budget_bytes > base ? (t->lr->budget_bytes - base) / PS_VRAM_ALIGN * PS_VRAM_ALIGN : 0;
    t->c.base_bytes = base;
    uint64_t most = longest_step(q, t->lr), limit = ps_family_max_step(t->c.many);
    t->c.max_step = (uint32_t)(most < limit ? most : limit);
    bool found = false;
    ps_status status = ps_resident_init(&none, q->model, t->b.err);
    if (!status)
        status = shorten(t, avail, &none, &work);
    while (!status && !found) {
        status = fit_weights(t, avail, work, set, &found);
        if (status || found || t->c.max_step <= PS_PLAN_DECODE_TOKENS)
            break;
        /* Products of resident weights can want more scratch than streamed ones: shorter steps take less. */
        t->c.max_step = shorter(t->c.max_step);
        homes(&t->b, t->lr, t->c.max_step, 0, t->kv, t->kv_end);
        status = work_bytes(t, &none, &work);
    }
    ps_resident_free(&none);
    if (!status && !found)
        status = ps_error_set(t->b.err, PS_E_INFEASIBLE, t->lr->budget, "does not fit");
    if (!status)
        homes(&t->b, t->lr, t->c.max_step, set->n_attn, t->kv, t->kv_end);
    return status;
}

/* Predicted time of the workload's output, one token per sequence and step, at half the bucket, and of its prompt. */
static ps_status workload(trial *t, const ps_resident_set *set, double *out_few, double *out_many) {
    const ps_plan_request *q = t->b.q;
    double prompt = q->prompt_tokens ? (double)q->prompt_tokens : PS_PLAN_PROMPT;
    double output = q->output_tokens ? (double)q->output_tokens : PS_PLAN_OUTPUT;
    double longest = (double)t->lr->bucket_tokens;
    uint32_t sizes[MAX_TIERS], n = tiers_up_to(t->c.max_step, sizes), decode = 0, fill = 0;
    while (decode + 1 < n && sizes[decode] < t->lr->n_seqs)
        decode++;
    prompt = fmin(prompt, longest);
    while (fill + 1 < n && sizes[fill] < prompt)
        fill++;
    ps_status status = trial_again(t);
    ps_tier a = {0}, b = {0};
    uint64_t end[2] = {0, 0};
    if (!status)
        status =
            build_tier(&t->b, t->lr, &t->c, set, t->kv, t->kv_end, sizes[decode], true, t->b.work, &a, end);
    if (!status)
        status =
            build_tier(&t->b, t->lr, &t->c, set, t->kv, t->kv_end, sizes[fill], true, t->b.work, &b, end);
    double rounds = ceil((double)t->lr->n_seqs / sizes[decode]);
    *out_few = output * rounds * (a.step_empty_s + a.step_full_s) / 2;
    *out_many = (double)t->lr->n_seqs * ceil(prompt / sizes[fill]) * b.step_empty_s;
    return status;
}

/* One pair of families. */
static ps_status try_families(ps_building *b, const ps_level_request *lr, ps_family few, ps_family many,
                              ps_gpu_choice *out, double *out_few, double *out_many) {
    trial t;
    ps_resident_set set = {0};
    ps_status status = trial_open(&t, b, lr);
    t.c = (ps_gpu_choice){.few = few, .many = many};
    if (!status)
        status = fit(&t, &set);
    if (!status)
        status = workload(&t, &set, out_few, out_many);
    *out = t.c;
    out->workload_s = *out_few + *out_many;
    ps_resident_free(&set);
    trial_close(&t);
    return status;
}

/* Why no family fits the budget. */
static ps_status too_small(ps_building *b, const ps_level_request *lr, ps_shortage *shortage) {
    const ps_profile *p = b->q->profile;
    ps_error *err = b->err;
    trial t;
    ps_resident_set none = {0};
    ps_shortage s = {.memory_bytes = lr->budget_bytes};
    uint64_t work = 0, small = ps_resident_small_bytes(b->q->model), base = base_bytes(p);
    ps_level_request at = *lr;
    ps_status status = ps_resident_init(&none, b->q->model, err);
    for (uint64_t context = lr->bucket_tokens; context && !status; context /= 2) {
        at.bucket_tokens = context;
        uint64_t most = longest_step(b->q, &at);
        status = trial_open(&t, b, &at);
        t.c = (ps_gpu_choice){.few = PS_FAMILY_DIRECT, .many = PS_FAMILY_GPU};
        t.c.max_step = (uint32_t)(most < PS_PLAN_DECODE_TOKENS ? most : PS_PLAN_DECODE_TOKENS);
        homes(&t.b, &at, t.c.max_step, 0, t.kv, t.kv_end);
        if (!status)
            status = work_bytes(&t, &none, &work);
        trial_close(&t);
        uint64_t need = base + handles(work) + handles(small);
        if (context == lr->bucket_tokens) {
            s.needed_bytes = need;
            s.largest_bytes = base;
            snprintf(s.largest, sizeof s.largest, "context and libraries");
            if (work > s.largest_bytes || small > s.largest_bytes) {
                s.largest_bytes = work > small ? work : small;
                snprintf(s.largest, sizeof s.largest, "%s",
                         work > small ? "activations and slots" : "norms and routers");
            }
        } else if (need <= lr->budget_bytes) {
            s.nearest_context = context;
            break;
        }
    }
    ps_resident_free(&none);
    if (status)
        return status;
    s.nearest_budget_bytes = (s.needed_bytes + (1 << 20) - 1) >> 20 << 20;
    if (shortage)
        *shortage = s;
    char fits[64] = "no context fits";
    if (s.nearest_context)
        snprintf(fits, sizeof fits, "a context of %llu would fit", (unsigned long long)s.nearest_context);
    uint64_t short_by = s.needed_bytes > lr->budget_bytes ? s.needed_bytes - lr->budget_bytes : 0;
    return ps_error_set(
        err, PS_E_INFEASIBLE, lr->budget,
        "context %llu needs at least %.2f GB of VRAM: %llu bytes short; the largest part is %s with "
        "%.2f GB; %lluMiB would do; %s",
        (unsigned long long)lr->bucket_tokens, (double)s.needed_bytes / 1e9, (unsigned long long)short_by,
        s.largest, (double)s.largest_bytes / 1e9, (unsigned long long)(s.nearest_budget_bytes >> 20), fits);
}

/* Better by more than what predictions are good for: of near equals the simpler stays. */
static bool better(double a, double b) {
    return a < b * 0.999;
}

ps_status ps_gpu_choose(ps_building *b, const ps_level_request *lr, ps_gpu_choice *out,
                        ps_shortage *shortage) {
    const ps_plan_request *q = b->q;
    ps_gpu_choice choice[PS_FAMILY_COUNT], mixed;
    double few[PS_FAMILY_COUNT], many[PS_FAMILY_COUNT], x, y;
    int best = -1, best_few = -1, best_many = -1;
    ps_status status = PS_OK;
    for (int f = 0; f < PS_FAMILY_COUNT; f++) {
        ps_family family = (ps_family)f;
        if (q->forced && q->family != family)
            continue;
        status = try_families(b, lr, family, family, &choice[f], &few[f], &many[f]);
        if (status == PS_E_INFEASIBLE)
            continue;
        if (status)
            return status;
        if (best < 0 || better(choice[f].workload_s, choice[best].workload_s))
            best = f;
        if (best_few < 0 || better(few[f], few[best_few]))
            best_few = f;
        if (best_many < 0 || better(many[f], many[best_many]))
            best_many = f;
    }
    if (best < 0)
        return too_small(b, lr, shortage);
    *out = choice[best];
    if (best_few == best_many || lr->n_seqs > PS_PLAN_DECODE_TOKENS) /* then decoding is a long step itself */
        return PS_OK;
    status = try_families(b, lr, (ps_family)best_few, (ps_family)best_many, &mixed, &x, &y);
    if (!status && better(mixed.workload_s, out->workload_s))
        *out = mixed;
    return status == PS_E_INFEASIBLE ? PS_OK : status;
}

/* What the programs do with the weights of each shard decides how its placement is called. */
static ps_status name_places(ps_building *b, ps_level *level) {
    enum { CPU = 1, HOST = 2, VRAM = 4, SLOT = 8 };
    const ps_model *m = b->q->model;
    uint8_t *uses = ps_arena_array(b->work, m->n_shards, 1);
    if (!uses)
        return ps_build_no_memory(b->err);
    for (uint32_t t = 0; t < level->n_tiers; t++) {
        const ps_program *p = &b->programs[level->tiers[t].program].program;
        for (uint32_t k = 0; k < p->n_blocks; k++)
            for (uint32_t i = p->blocks[k].instr0; i < p->blocks[k].instr0 + p->blocks[k].n_instrs; i++) {
                const ps_instr *in = &p->instrs[i];
                uint8_t use = in->op == PS_OP_COPY && in->w[0] != PS_ROLE_NONE ? SLOT : 0;
                for (int w = 0; w < PS_OP_MAX_WEIGHTS && in->op != PS_OP_COPY; w++)
                    if (in->w[w] != PS_ROLE_NONE)
                        use |= in->queue == PS_QUEUE_CPU ? CPU
                               : in->at[w] == PS_AT_HOST ? HOST
                               : in->at[w] == PS_AT_VRAM ? VRAM
                                                         : SLOT;
                for (uint32_t l = 0; l < p->blocks[k].n_layers && use; l++) {
                    uint32_t layer = p->blocks[k].layer0 + l;
                    if (in->ahead)
                        layer = layer + 1 < m->n_layers ? layer + 1 : 0;
                    for (uint32_t s = 0; s < m->n_shards; s++)
                        if (m->shards[s].kind == in->shard && m->shards[s].layer == layer)
                            uses[s] |= use;
                }
            }
    }
    for (uint32_t s = 0; s < m->n_shards; s++) {
        const ps_layer *y = &m->layers[m->shards[s].layer];
        bool experts_out = false; /* "vram" says that all experts are there */
        if (m->shards[s].kind == PS_SHARD_MOE) {
            uint64_t held = 0;
            for (uint32_t i = 0; i < level->n_resident; i++)
                if (level->resident[i].range.role == PS_ROLE_FFN_GATE_EXPS &&
                    level->resident[i].range.layer == m->shards[s].layer)
                    held += level->resident[i].range.n_rows;
            experts_out = held < y->n_expert;
        }
        level->placement[s] = uses[s] == VRAM && !experts_out             ? PS_PLACE_VRAM
                              : uses[s] == CPU || uses[s] == 0            ? PS_PLACE_HOST
                              : !(uses[s] & (CPU | HOST)) && !experts_out ? PS_PLACE_STREAM
                              : !(uses[s] & (CPU | SLOT))                 ? PS_PLACE_DIRECT
                                                                          : PS_PLACE_SPLIT;
    }
    return PS_OK;
}

/* Of the families, the one whose program for a tier is fastest within the work arena that there is, and with the homes
 * and residents that there are. */
static ps_status best_family(trial *t, const ps_gpu_choice *choice, const ps_resident_set *set,
                             const ps_kv_home *kv, const uint64_t kv_end[2], uint32_t tokens, uint64_t most,
                             ps_gpu_choice *out) {
    double best = INFINITY;
    ps_family chosen = tokens <= PS_PLAN_DECODE_TOKENS ? choice->few : choice->many;
    ps_status status = PS_OK;
    for (int f = 0; f < PS_FAMILY_COUNT && !status; f++) {
        ps_tier tier = {0};
        uint64_t end[2] = {0, 0};
        ps_gpu_choice c = *choice;
        c.few = c.many = (ps_family)f;
        if (tokens > ps_family_max_step(c.many) || (tokens > PS_PLAN_DECODE_TOKENS && f == PS_FAMILY_DIRECT))
            continue; /* long steps of DIRECT are those of GPU */
        status = build_tier(&t->b, t->lr, &c, set, kv, kv_end, tokens, true, t->b.work, &tier, end);
        double s = tier.step_empty_s + tier.step_full_s;
        if (status || ((ps_family)f != chosen && handles(end[PS_SPACE_VRAM]) > most) || !(s < best * 0.999))
            continue;
        best = s;
        *out = c;
    }
    return status;
}

ps_status ps_gpu_build(ps_building *b, const ps_level_request *lr, const ps_gpu_choice *choice,
                       const ps_resident_set *resident, ps_level *level) {
    const ps_model *m = b->q->model;
    ps_arena *arena = b->plan->arena;
    uint32_t sizes[MAX_TIERS];
    uint64_t kv_end[2], end[2];
    memcpy(level->budget, lr->budget, sizeof level->budget);
    level->budget_bytes = lr->budget_bytes;
    level->bucket_tokens = lr->bucket_tokens;
    level->n_seqs = lr->n_seqs;
    level->n_threads = lr->n_threads;
    level->n_tiers = tiers_up_to(choice->max_step, sizes);
    level->placement = ps_arena_array(arena, m->n_shards, sizeof *level->placement);
    level->kv = ps_arena_array(arena, m->n_layers, sizeof *level->kv);
    level->tiers = ps_arena_array(arena, level->n_tiers, sizeof *level->tiers);
    level->resident = ps_arena_array(arena, resident->n, sizeof *level->resident);
    if (!level->placement || !level->kv || !level->tiers || !level->resident)
        return ps_build_no_memory(b->err);
    level->n_resident = resident->n;
    if (resident->n)
        memcpy(level->resident, resident->pieces, resident->n * sizeof *level->resident);
    homes(b, lr, choice->max_step, choice->n_attn, level->kv, kv_end);
    memcpy(end, kv_end, sizeof end);
    uint64_t most = lr->budget_bytes - choice->base_bytes - handles(resident->bytes);
    trial tried;
    ps_status status = trial_open(&tried, b, lr);
    if (!status)
        status = trial_again(&tried);
    for (uint32_t t = 0; t < level->n_tiers && !status; t++) {
        ps_gpu_choice c = *choice;
        if (!b->q->forced)
            status = best_family(&tried, choice, resident, level->kv, kv_end, sizes[t], most, &c);
        if (!status)
            status = build_tier(b, lr, &c, resident, level->kv, kv_end, sizes[t], true, arena,
                                &level->tiers[t], end);
    }
    trial_close(&tried);
    if (status)
        return status;
    level->host_arena_bytes = end[PS_SPACE_HOST];
    level->vram_work_bytes = handles(end[PS_SPACE_VRAM]);
    level->vram_weight_bytes = handles(resident->bytes);
    level->vram_base_bytes = choice->base_bytes;
    if (!ps_add_u64(level->host_arena_bytes, m->weight_bytes, &level->peak_host_bytes) ||
        !ps_add_u64(level->peak_host_bytes, ps_memory_program_bytes(m, lr->n_threads, lr->n_seqs),
                    &level->peak_host_bytes))
        level->peak_host_bytes = UINT64_MAX;
    return name_places(b, level);
}
