/* Whole plans: the checker accepts what is planned for models of every architecture, the same request gives the same
 * bytes, predictions keep the bounds, memory is what the parts add up to, and what cannot be is refused in words. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../../model_builder.h"
#include "plan/bounds.h"
#include "plan/explain.h"
#include "plan/memory.h"
#include "plan/planner.h"
#include "synthetic_profile.h"

/* The registry may not have these yet; the planner does not care. */
static const ps_kernel_spec moe_rows[] = {
    {.id = 1000000,
     .name = "test.moe.q8_0",
     .op = PS_OP_MOE_DISPATCH,
     .wtype = PS_DTYPE_Q8_0,
     .in_fmt = PS_FMT_F32,
     .out_fmt = PS_FMT_F32,
     .device = PS_DEV_CPU,
     .min_tokens = 1,
     .max_tokens = UINT32_MAX,
     .scratch = {.per_token_col = 8}},
};

typedef struct opened {
    mb b;
    ps_gguf *gguf;
    ps_model *model;
    ps_profile *profile;
    ps_cost_model *cost;
} opened;

static bool has_moe(void) {
    uint32_t n;
    const ps_kernel *t = ps_kernel_table(&n);
    for (uint32_t i = 0; i < n; i++)
        if (t[i].spec.op == PS_OP_MOE_DISPATCH && t[i].spec.wtype == PS_DTYPE_Q8_0)
            return true;
    return false;
}

static opened open_built(mb b) {
    opened o = {.b = b};
    ps_error e = {0};
    uint64_t size;
    const uint8_t *data = mb_finish(&o.b, &size);
    cr_assert_eq(ps_gguf_open_memory(data, size, "test.gguf", &o.gguf, &e), PS_OK, "%s", e.message);
    cr_assert_eq(ps_model_open(o.gguf, &o.model, &e), PS_OK, "%s: %s", e.subject, e.message);
    o.profile = syn_profile_with(moe_rows, has_moe() ? 0 : 1);
    cr_assert_eq(ps_cost_model_new(o.profile, &o.cost, &e), PS_OK);
    return o;
}

static opened open_shape(const mb_shape *shape) {
    mb b;
    mb_model(&b, shape);
    return open_built(b);
}

static void close_all(opened *o) {
    ps_cost_model_free(o->cost);
    ps_profile_free(o->profile);
    ps_model_close(o->model);
    ps_gguf_close(o->gguf);
    mb_free(&o->b);
}

static ps_level_request host(uint64_t context, uint32_t seqs, uint32_t threads) {
    return (ps_level_request){
        .budget = "host", .bucket_tokens = context, .n_seqs = seqs, .n_threads = threads};
}

static ps_plan_request request(const opened *o, const ps_level_request *levels, uint32_t n) {
    return (ps_plan_request){.model = o->model,
                             .profile = o->profile,
                             .cost = o->cost,
                             .levels = levels,
                             .n_levels = n,
                             .tool = "test",
                             .created = "2026-11-29T00:00:00Z"};
}

static ps_plan *build(const ps_plan_request *r) {
    ps_error e = {0};
    ps_plan *plan = NULL;
    cr_assert_eq(ps_plan_build(r, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
    return plan;
}

static void check(const ps_plan *plan, const ps_model *model) {
    ps_error e = {0};
    cr_assert_eq(ps_plan_match_model(plan, model, &e), PS_OK, "%s: %s", e.subject, e.message);
    for (uint32_t i = 0; i < plan->n_levels; i++)
        cr_assert_eq(ps_plan_check(plan, &plan->levels[i], model, &e), PS_OK, "%s: %s", e.subject, e.message);
}

/* Every architecture, lengths above a tile too, several sequences: accepted, and bounded from below. */
static void plan_of(const mb_shape *shape) {
    opened o = open_shape(shape);
    const ps_level_request levels[] = {host(300, 1, 8), host(8192, 1, 8), host(1024, 5, 3)};
    ps_plan_request r = request(&o, levels, 3);
    r.max_step_tokens = 8192;
    ps_plan *plan = build(&r);
    check(plan, o.model);
    cr_assert_eq(plan->n_levels, 3);
    for (uint32_t l = 0; l < plan->n_levels; l++) {
        const ps_level *level = &plan->levels[l];
        uint64_t most = level->bucket_tokens * level->n_seqs;
        cr_assert_eq(level->tiers[level->n_tiers - 1].max_tokens, most < 8192 ? most : 8192);
        cr_assert_eq(level->tiers[0].max_tokens, 1);
        for (uint32_t t = 0; t < level->n_tiers; t++) {
            const ps_tier *tier = &level->tiers[t];
            cr_assert_gt(tier->raw_bound_s, 0);
            cr_assert_geq(tier->step_full_s, tier->raw_bound_s,
                          "level %u, %u tokens: %g s is under the bound %g s", l, tier->max_tokens,
                          tier->step_full_s, tier->raw_bound_s);
            cr_assert_float_eq(tier->reachable_bound_s - tier->raw_bound_s, 5e-6 * o.model->n_layers, 1e-12);
            cr_assert_geq(tier->step_full_s, tier->step_empty_s * (1 - 1e-9));
            bool tiles = plan->programs[tier->program].blocks[1].over_tiles;
            cr_assert_eq(tiles, tier->max_tokens > PS_TILE_TOKENS);
            cr_assert_eq(tier->max_outputs,
                         tier->max_tokens < level->n_seqs ? tier->max_tokens : level->n_seqs);
        }
    }
    ps_plan_free(plan);
    close_all(&o);
}

Test(planner, llama) {
    plan_of(&mb_llama_small);
}
Test(planner, qwen3) {
    plan_of(&mb_qwen3_small);
}
Test(planner, qwen3moe) {
    plan_of(&mb_qwen3moe_small);
}
Test(planner, gemma3) {
    plan_of(&mb_gemma3_small);
}

static uint64_t random_state;
static uint32_t rnd(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

/* Random tiny models with a different type in every layer: all accepted, deterministic, bounded. */
Test(planner, random_models) {
    static const ps_dtype types[] = {PS_DTYPE_Q4_0, PS_DTYPE_Q8_0, PS_DTYPE_Q4_1,
                                     PS_DTYPE_F16,  PS_DTYPE_F32,  PS_DTYPE_Q5_0};
    random_state = 5;
    for (int run = 0; run < 25; run++) {
        mb_shape s = {.arch = rnd(2) ? "llama" : "qwen3",
                      .n_layers = 1 + rnd(9),
                      .n_embd = 64 * (1 + rnd(3)),
                      .n_ff = 32 * (1 + rnd(8)),
                      .head_dim = 32,
                      .n_vocab = 32 * (1 + rnd(20)),
                      .tied = (int)rnd(2),
                      .type = types[rnd(6)],
                      .output_type = types[rnd(6)]};
        s.n_head_kv = 1 + rnd(3);
        s.n_head = s.n_head_kv * (1 + rnd(3));
        s.qk_norm = strcmp(s.arch, "qwen3") == 0;
        mb b;
        mb_model(&b, &s);
        for (uint32_t l = 0; l < s.n_layers; l++) { /* as quantisers mix types */
            char name[64];
            snprintf(name, sizeof name, "blk.%u.attn_v.weight", l);
            mb_tensor(&b, name, types[rnd(6)], s.n_embd, (uint64_t)s.n_head_kv * s.head_dim, 0);
            snprintf(name, sizeof name, "blk.%u.ffn_down.weight", l);
            mb_tensor(&b, name, types[rnd(6)], s.n_ff, s.n_embd, 0);
        }
        opened o = open_built(b);
        ps_level_request levels[] = {host(1 + rnd(3000), 1 + rnd(3), 1 + rnd(8)), host(1 + rnd(9000), 1, 8)};
        ps_plan_request r = request(&o, levels, 2);
        r.max_step_tokens = 1 + rnd(9000);
        r.max_outputs = rnd(2) ? 0 : 1 + rnd(64);
        ps_plan *plan = build(&r), *again = build(&r);
        check(plan, o.model);
        ps_error e;
        uint8_t *x, *y;
        char *yaml, *yaml2;
        uint64_t nx, ny;
        cr_assert_eq(ps_plan_to_binary(plan, &x, &nx, &e), PS_OK, "%s: %s", e.subject, e.message);
        cr_assert_eq(ps_plan_to_binary(again, &y, &ny, &e), PS_OK);
        cr_assert(nx == ny && memcmp(x, y, nx) == 0);
        cr_assert_eq(ps_plan_to_yaml(plan, &yaml, &nx, &e), PS_OK);
        cr_assert_eq(ps_plan_to_yaml(again, &yaml2, &ny, &e), PS_OK);
        cr_assert(nx == ny && memcmp(yaml, yaml2, nx) == 0);
        for (uint32_t l = 0; l < plan->n_levels; l++)
            for (uint32_t t = 0; t < plan->levels[l].n_tiers; t++)
                cr_assert_geq(plan->levels[l].tiers[t].step_full_s, plan->levels[l].tiers[t].raw_bound_s,
                              "run %d: %u heads, %u KV heads, width %u, %u tokens of %llu, %u threads: %g s "
                              "is under %g s",
                              run, s.n_head, s.n_head_kv, s.n_embd, plan->levels[l].tiers[t].max_tokens,
                              (unsigned long long)plan->levels[l].bucket_tokens, plan->levels[l].n_threads,
                              plan->levels[l].tiers[t].step_full_s, plan->levels[l].tiers[t].raw_bound_s);
        free(x);
        free(y);
        free(yaml);
        free(yaml2);
        ps_plan_free(plan);
        ps_plan_free(again);
        close_all(&o);
    }
}

/* More threads are never slower on a machine where no kernel is. */
Test(planner, time_does_not_grow_with_threads) {
    opened o = open_shape(&mb_llama3_8b);
    ps_level_request levels[8];
    for (uint32_t i = 0; i < 8; i++)
        levels[i] = host(4096, 1, i + 1);
    ps_plan_request r = request(&o, levels, 8);
    ps_plan *plan = build(&r);
    check(plan, o.model);
    for (uint32_t l = 1; l < plan->n_levels; l++)
        for (uint32_t t = 0; t < plan->levels[l].n_tiers; t++) {
            cr_assert_leq(plan->levels[l].tiers[t].step_full_s,
                          plan->levels[l - 1].tiers[t].step_full_s * (1 + 1e-9));
            cr_assert_leq(plan->levels[l].tiers[t].step_empty_s,
                          plan->levels[l - 1].tiers[t].step_empty_s * (1 + 1e-9));
        }
    ps_plan_free(plan);
    close_all(&o);
}

/* Programs are shared, layers that are alike make one block. */
Test(planner, programs_and_blocks_are_shared) {
    opened o = open_shape(&mb_llama3_8b);
    ps_level_request level = host(4096, 1, 8);
    ps_plan_request r = request(&o, &level, 1);
    ps_plan *plan = build(&r);
    cr_assert_leq(plan->n_programs, 4);
    for (uint32_t p = 0; p < plan->n_programs; p++) {
        cr_assert_eq(plan->programs[p].n_blocks, 3);
        cr_assert_eq(plan->programs[p].blocks[1].n_layers, 32);
    }
    ps_plan_free(plan);
    close_all(&o);
}

/* Few tokens: the norm writes what the products read, in one buffer, and nothing is converted. */
Test(planner, formats_follow_the_products) {
    opened o = open_shape(&mb_llama3_8b);
    ps_level_request level = host(4096, 1, 8);
    ps_plan_request r = request(&o, &level, 1);
    ps_plan *plan = build(&r);
    const ps_program *p = &plan->programs[plan->levels[0].tiers[0].program];
    uint32_t n_q8 = 0;
    for (uint32_t i = 0; i < p->n_instrs; i++) {
        cr_assert_neq(p->instrs[i].op, PS_OP_CONVERT);
        if (p->instrs[i].op == PS_OP_MATMUL)
            n_q8 += p->buffers[p->instrs[i].src[0]].fmt == PS_FMT_Q8;
    }
    cr_assert_eq(n_q8, 8);
    ps_plan_free(plan);
    close_all(&o);
}

/* A layer whose products want both formats: the value is made once, converted once, and lives in two buffers. */
Test(planner, two_formats_of_one_value) {
    mb b;
    mb_model(&b, &mb_llama_small);
    mb_tensor(&b, "blk.0.attn_v.weight", PS_DTYPE_F32, 64, 32, 0);
    mb_tensor(&b, "blk.1.attn_v.weight", PS_DTYPE_F32, 64, 32, 0);
    opened o = open_built(b);
    ps_level_request level = host(512, 1, 8);
    ps_plan_request r = request(&o, &level, 1);
    ps_plan *plan = build(&r);
    check(plan, o.model);
    const ps_program *p = &plan->programs[plan->levels[0].tiers[0].program];
    uint32_t n_convert = 0, n_norm = 0;
    for (uint32_t i = 0; i < p->n_instrs; i++)
        n_convert += p->instrs[i].op == PS_OP_CONVERT;
    for (uint32_t i = 0; i < p->n_buffers; i++)
        n_norm += p->buffers[i].value == PS_VALUE_NORM;
    cr_assert_eq(n_convert, 1);
    cr_assert_eq(n_norm, 2);
    ps_plan_free(plan);
    close_all(&o);
}

/* The caches of a level against tables by hand. A row of a sequence is heads * (K + V elements) * 2 bytes; a window keeps its own rows
 * and a tile's, never more than the context; K and V planes are rounded up to 64 bytes, of which none here needs it. */
typedef struct kv_table {
    const char *what;
    const mb_shape *shape;
    uint32_t window;      /* of every layer of a llama; 0: as the shape says */
    uint64_t kv_heads[2]; /* of two layers; 0: as the shape says */
    uint64_t context, max_step;
    uint32_t seqs, n_layers;
    uint64_t rows[8], bytes[8]; /* a sequence's */
    uint64_t all;               /* of all sequences */
} kv_table;

static const kv_table kv_tables[] = {
    /* gemma3: five layers with a window of 16, one full; one KV head of 32: 128 bytes a row */
    {"window and full",
     &mb_gemma3_small,
     0,
     {0},
     4096,
     2048,
     3,
     7,
     {2064, 2064, 2064, 2064, 2064, 4096, 2064},
     {264192, 264192, 264192, 264192, 264192, 524288, 264192},
     6328320},
    {"a tile below the window's own rows", /* steps of 8: 16 + 8 */
     &mb_gemma3_small,
     0,
     {0},
     4096,
     8,
     1,
     7,
     {24, 24, 24, 24, 24, 4096, 24},
     {3072, 3072, 3072, 3072, 3072, 524288, 3072},
     542720},
    {"a context that the window holds",
     &mb_gemma3_small,
     0,
     {0},
     64,
     64,
     2,
     7,
     {64, 64, 64, 64, 64, 64, 64},
     {8192, 8192, 8192, 8192, 8192, 8192, 8192},
     114688},
    /* llama: two KV heads of 16: 128 bytes a row */
    {"full everywhere", &mb_llama_small, 0, {0}, 1000, 0, 1, 2, {1000, 1000}, {128000, 128000}, 256000},
    {"a window everywhere", &mb_llama_small, 100, {0}, 1000, 64, 2, 2, {164, 164}, {20992, 20992}, 83968},
    {"layers of other widths",
     &mb_llama_small,
     0,
     {2, 4},
     1000,
     0,
     3,
     2,
     {1000, 1000},
     {128000, 256000},
     1152000},
    {"both of it", &mb_llama_small, 100, {4, 1}, 1000, 64, 1, 2, {164, 164}, {41984, 10496}, 52480},
};

Test(planner, kv_by_hand) {
    for (size_t i = 0; i < sizeof kv_tables / sizeof kv_tables[0]; i++) {
        const kv_table *t = &kv_tables[i];
        mb b;
        mb_model(&b, t->shape);
        if (t->window)
            mb_u32(&b, "llama.attention.sliding_window", t->window);
        if (t->kv_heads[0]) {
            mb_array(&b, "llama.attention.head_count_kv", PS_GGUF_U64, t->kv_heads, 2, 8);
            for (int l = 0; l < 2; l++)
                for (int v = 0; v < 2; v++) {
                    char name[32];
                    snprintf(name, sizeof name, "blk.%d.attn_%c.weight", l, v ? 'v' : 'k');
                    mb_tensor(&b, name, PS_DTYPE_Q4_0, 64, 16 * t->kv_heads[l], 0);
                }
        }
        opened o = open_built(b);
        ps_level_request level = host(t->context, t->seqs, 4);
        ps_plan_request r = request(&o, &level, 1);
        r.max_step_tokens = t->max_step;
        ps_plan *plan = build(&r);
        uint64_t all = 0;
        cr_assert_eq(plan->n_layers, t->n_layers, "%s", t->what);
        for (uint32_t l = 0; l < t->n_layers; l++) {
            const ps_kv_home *kv = &plan->levels[0].kv[l];
            cr_assert_eq(kv->rows, t->rows[l], "%s: layer %u has %llu rows", t->what, l,
                         (unsigned long long)kv->rows);
            cr_assert_eq(kv->bytes, t->bytes[l], "%s: layer %u has %llu bytes", t->what, l,
                         (unsigned long long)kv->bytes);
            all += kv->bytes * t->seqs;
        }
        cr_assert_eq(all, t->all, "%s: %llu bytes", t->what, (unsigned long long)all);
        /* Nothing else is before the buffers, but for alignment. */
        const ps_kv_home *last = &plan->levels[0].kv[t->n_layers - 1];
        cr_assert_lt(last->offset + last->bytes * t->seqs - all, t->n_layers * (uint64_t)PS_ARENA_ALIGN, "%s",
                     t->what);
        ps_plan_free(plan);
        close_all(&o);
    }
}

/* Peak = weights + arena + program; the arena holds KV, buffers and scratch without overlap of the three. */
Test(planner, memory_adds_up) {
    opened o = open_shape(&mb_gemma3_small);
    ps_level_request level = host(4096, 3, 4);
    ps_plan_request r = request(&o, &level, 1);
    ps_plan *plan = build(&r);
    const ps_level *l = &plan->levels[0];
    uint64_t kv_end = 0;
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        uint64_t rows = o.model->layers[i].window ? 16 + 2048 : 4096;
        cr_assert_eq(l->kv[i].rows, rows);
        cr_assert_eq(l->kv[i].bytes, rows * 1 * 32 * 2 * 2);
        cr_assert_geq(l->kv[i].offset, kv_end);
        kv_end = l->kv[i].offset + 3 * l->kv[i].bytes;
    }
    cr_assert_eq(l->peak_host_bytes,
                 l->host_arena_bytes + o.model->weight_bytes + ps_memory_program_bytes(o.model, 4, 3));
    uint64_t end = 0;
    for (uint32_t t = 0; t < l->n_tiers; t++) {
        const ps_program *p = &plan->programs[l->tiers[t].program];
        for (uint32_t b = 0; b < p->n_buffers; b++) {
            uint64_t b_end =
                l->tiers[t].buffer_offset[b] + ps_memory_buffer_bytes(&p->buffers[b], &l->tiers[t]);
            cr_assert_geq(l->tiers[t].buffer_offset[b], kv_end);
            cr_assert_leq(b_end, l->tiers[t].scratch_offset);
        }
        uint64_t t_end = l->tiers[t].scratch_offset + l->tiers[t].scratch_bytes;
        end = t_end > end ? t_end : end;
    }
    cr_assert_eq(end, l->host_arena_bytes);
    ps_plan_free(plan);
    close_all(&o);
}

/* Buffers share memory: a layer's map is far below the sum of its buffers. */
Test(planner, buffers_share_memory) {
    opened o = open_shape(&mb_llama3_8b);
    ps_level_request level = host(4096, 1, 8);
    ps_plan_request r = request(&o, &level, 1);
    ps_plan *plan = build(&r);
    const ps_level *l = &plan->levels[0];
    const ps_tier *t = &l->tiers[l->n_tiers - 1];
    const ps_program *p = &plan->programs[t->program];
    uint64_t sum = 0, low = UINT64_MAX;
    for (uint32_t b = 0; b < p->n_buffers; b++) {
        sum += ps_memory_buffer_bytes(&p->buffers[b], t);
        low = t->buffer_offset[b] < low ? t->buffer_offset[b] : low;
    }
    cr_assert_lt(t->scratch_offset - low, sum * 8 / 10);
    ps_plan_free(plan);
    close_all(&o);
}

/* The step of a trace equals the plan's prediction, event by event in the first round. */
Test(planner, simulated_trace_equals_prediction) {
    opened o = open_shape(&mb_gemma3_small);
    ps_level_request level = host(8192, 1, 8);
    ps_plan_request r = request(&o, &level, 1);
    r.max_step_tokens = 8192;
    ps_plan *plan = build(&r);
    const ps_level *l = &plan->levels[0];
    for (uint32_t t = 0; t < l->n_tiers; t++) {
        ps_trace_step step;
        ps_error e;
        cr_assert_eq(ps_plan_simulate_step(plan, 0, t, o.model, o.profile, o.cost, 0, &step, &e), PS_OK);
        cr_assert_float_eq(step.step_s / l->tiers[t].step_empty_s, 1, 1e-9);
        cr_assert_eq(step.n_events, ps_program_length(&plan->programs[l->tiers[t].program],
                                                      (l->tiers[t].max_tokens + 2047) / 2048));
        cr_assert_float_eq(step.events[0].start_s, SYN_START_NS * 1e-9, 1e-12);
        const ps_prediction *p = &l->tiers[t].predicted[1]; /* first of the first layer */
        for (uint32_t i = 0; i < step.n_events; i++)
            if (step.events[i].instr == 1) {
                cr_assert_float_eq(step.events[i].end_s - step.events[i].start_s,
                                   p->end_empty_s - p->start_empty_s, 1e-12);
                break;
            }
        free(step.events);
    }
    ps_plan_free(plan);
    close_all(&o);
}

Test(planner, explain_adds_up) {
    opened o = open_shape(&mb_llama3_8b);
    ps_level_request level = host(4096, 1, 8);
    ps_plan_request r = request(&o, &level, 1);
    ps_plan *plan = build(&r);
    const ps_tier *t = &plan->levels[0].tiers[0];
    ps_lower_request lr = {.model = o.model,
                           .profile = o.profile,
                           .cost = o.cost,
                           .n_threads = 8,
                           .max_tokens = 1,
                           .max_outputs = 1,
                           .n_seqs = 1,
                           .bucket_tokens = 4096};
    ps_explain e;
    ps_explain_tier(&lr, &plan->programs[t->program], 4096, &e);
    double ops = 0, shards = 0, quality = 0, kernels = 0;
    for (int i = 0; i < PS_OP_COUNT; i++)
        ops += e.op_s[i];
    for (int i = 0; i < PS_SHARD_KIND_COUNT; i++)
        shards += e.shard_s[i];
    for (int i = 0; i < PS_COST_QUALITY_COUNT; i++)
        quality += e.quality_s[i];
    for (uint32_t i = 0; i < e.n_kernels; i++)
        kernels += e.kernels[i].time_s;
    cr_assert_float_eq(e.step_s / t->step_full_s, 1, 1e-9);
    cr_assert_float_eq((ops + e.start_s) / e.step_s, 1, 1e-9);
    cr_assert_float_eq(shards, ops, 1e-12);
    cr_assert_float_eq(quality, ops, 1e-12);
    cr_assert_float_eq(kernels, ops, 1e-12);
    ps_plan_free(plan);
    close_all(&o);
}

static ps_status refused(const ps_plan_request *r, ps_shortage *s, ps_error *e) {
    ps_plan *plan = NULL;
    ps_status status = ps_plan_build(r, &plan, s, e);
    cr_assert_null(plan);
    return status;
}

Test(planner, refusals) {
    opened o = open_shape(&mb_llama_small);
    ps_error e;
    ps_level_request level = host(32769, 1, 8);
    ps_plan_request r = request(&o, &level, 1);
    cr_assert_eq(refused(&r, NULL, &e), PS_E_USAGE);
    cr_assert(strstr(e.message, "32769") && strstr(e.message, "32768"), "%s", e.message);
    level = host(1024, 1, 9);
    cr_assert_eq(refused(&r, NULL, &e), PS_E_USAGE);
    cr_assert(strstr(e.message, "8"), "%s", e.message);
    level = host(1024, 1, 8);
    level.budget_bytes = 2ull << 30;
    cr_assert_eq(refused(&r, NULL, &e), PS_E_UNAVAILABLE);
    level = host(0, 1, 8);
    cr_assert_eq(refused(&r, NULL, &e), PS_E_USAGE);
    r.n_levels = 0;
    cr_assert_eq(refused(&r, NULL, &e), PS_E_USAGE);
    close_all(&o);
}

/* A catalogue without a kernel for the weights: refused by operation, type and tensor. */
Test(planner, missing_kernel) {
    opened o = open_shape(&mb_llama_small);
    ps_error e;
    ps_level_request level = host(1024, 1, 8);
    ps_plan_request r = request(&o, &level, 1);
    uint32_t n = 0;
    for (uint32_t i = 0; i < o.profile->n_kernels; i++)
        if (o.profile->kernels[i].op != PS_OP_MATMUL || o.profile->kernels[i].wtype != PS_DTYPE_Q4_0)
            o.profile->kernels[n++] = o.profile->kernels[i];
    o.profile->n_kernels = n;
    uint32_t n_points = 0;
    for (uint32_t i = 0; i < o.profile->n_points; i++)
        for (uint32_t k = 0; k < n; k++)
            if (o.profile->kernels[k].id == o.profile->points[i].kernel) {
                o.profile->points[n_points++] = o.profile->points[i];
                break;
            }
    o.profile->n_points = n_points;
    ps_status status = refused(&r, NULL, &e);
    cr_assert_eq(status, PS_E_UNSUPPORTED, "%s: %s", ps_status_name(status), e.message);
    cr_assert(strstr(e.message, "matmul") && strstr(e.message, "Q4_0") && strstr(e.message, "attn_q") &&
                  strstr(e.message, "layer 0"),
              "%s", e.message);
    close_all(&o);
}

/* R15: largest consumer, bytes short, the context that does fit, and it does. */
Test(planner, infeasible) {
    opened o = open_shape(&mb_llama3_8b);
    ps_error e;
    ps_shortage s;
    ps_level_request level = host(32768, 4, 8);
    ps_plan_request r = request(&o, &level, 1);
    r.memory_bytes = 8ull << 30;
    cr_assert_eq(refused(&r, &s, &e), PS_E_INFEASIBLE);
    cr_assert_str_eq(s.largest, "kv cache");
    cr_assert_gt(s.needed_bytes, s.memory_bytes);
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%llu bytes short", (unsigned long long)(s.needed_bytes - s.memory_bytes));
    cr_assert(strstr(e.message, bytes), "%s", e.message);
    cr_assert(s.nearest_context >= 256 && s.nearest_context < 32768);
    level.bucket_tokens = s.nearest_context;
    ps_plan *plan = build(&r);
    ps_plan_free(plan);
    level.bucket_tokens = s.nearest_context + 256;
    cr_assert_eq(refused(&r, &s, &e), PS_E_INFEASIBLE);
    r.memory_bytes = 1ull << 30;
    cr_assert_eq(refused(&r, &s, &e), PS_E_INFEASIBLE);
    cr_assert_str_eq(s.largest, "weights");
    cr_assert_eq(s.nearest_context, 0);
    close_all(&o);
}
