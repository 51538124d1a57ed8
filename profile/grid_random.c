/* Points off every grid, at random: what a profile is held against. */
#include <math.h>
#include <stdlib.h>

#include "profile/grid_internal.h"

static const double most_flops = 20e9, most_weight_bytes = 512e6;

static uint64_t next_u64(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint32_t below(uint64_t *rng, uint32_t n) {
    return (uint32_t)(next_u64(rng) % n);
}

/* Log-uniform from lo to hi, a multiple of `step`. */
static uint64_t between(uint64_t *rng, double lo, double hi, uint64_t step) {
    const double u = (double)(next_u64(rng) >> 11) / 9007199254740992.0;
    const uint64_t v = (uint64_t)(lo * pow(hi / lo, u)) / step * step;
    return v < step ? step : v;
}

/* Shapes as models have them. */
static void random_shape(uint64_t *rng, ps_op op, ps_profile_point *p) {
    static const uint32_t heads[] = {64, 128, 256}, experts[] = {8, 16, 32, 64};
    switch (op) {
    case PS_OP_MATMUL:
        p->rows = between(rng, 256, 16384, 32);
        p->cols = between(rng, 512, 8192, 256);
        break;
    case PS_OP_ATTENTION:
        p->cols = heads[below(rng, 3)];
        p->heads_kv = 2u << below(rng, 3);
        p->rows = p->heads_kv * (1 + (uint64_t)below(rng, 8));
        break;
    case PS_OP_MOE_DISPATCH:
        p->rows = between(rng, 512, 2048, 256);
        p->cols = between(rng, 1024, 4096, 256);
        p->heads_kv = experts[below(rng, 4)];
        p->kv_len = 2 + below(rng, 7);
        break;
    case PS_OP_MOE_ROUTE:
        p->cols = p->heads_kv = experts[below(rng, 4)];
        p->kv_len = 2 + below(rng, 7);
        break;
    case PS_OP_SAMPLE:
        p->cols = between(rng, 32000, 160000, 256);
        break;
    default:
        p->cols = between(rng, 512, 8192, 256);
        break;
    }
}

static bool random_model_shape(uint64_t *rng, const ps_model *m, const ps_kernel_spec *k, ps_profile_point *p,
                               bool *out_output) {
    const ps_shard *s = &m->shards[below(rng, m->n_shards)];
    const ps_op_desc *op = &s->ops[below(rng, s->n_ops)];
    if (op->op != k->op || ps_grid_weight_type(m, s->layer, op) != k->wtype)
        return false;
    *p = ps_grid_shape_of(m, s->layer, op);
    *out_output = ps_grid_is_output(op->dst);
    return true;
}

static bool random_point(uint64_t *rng, const ps_grid_config *c, ps_profile_point *p) {
    const ps_kernel_spec *k = &c->kernels[below(rng, c->n_kernels)];
    bool output = k->op == PS_OP_GATHER || k->op == PS_OP_SAMPLE;
    *p = (ps_profile_point){0};
    if (k->device != PS_DEV_CPU)
        return false;
    if (!c->model)
        random_shape(rng, k->op, p);
    else if (!random_model_shape(rng, c->model, k, p, &output))
        return false;
    const double lo = k->min_tokens ? k->min_tokens : 1, most = output ? 8 : 512;
    const double hi = k->max_tokens < most ? k->max_tokens : most;
    if (lo > hi)
        return false;
    p->kernel = k->id;
    p->n_tokens = (uint32_t)between(rng, lo, hi + 0.99, 1);
    p->n_threads = 1 + below(rng, c->n_threads);
    if (k->op == PS_OP_ATTENTION) {
        double most_kv = c->model && c->model->n_ctx_train < 16384 ? c->model->n_ctx_train : 16384;
        if (most_kv < p->n_tokens)
            most_kv = p->n_tokens;
        p->kv_len = between(rng, p->n_tokens < 128 ? 128 : p->n_tokens, most_kv, 1);
    }
    if (k->op == PS_OP_MOE_DISPATCH && p->kv_len > p->heads_kv)
        return false;
    double bytes, flops;
    ps_profile_point all = *p;
    if (k->op == PS_OP_MOE_DISPATCH) /* all experts lie in memory */
        all.kv_len = all.heads_kv;
    ps_point_work(k, &all, &bytes, &flops);
    if (bytes > most_weight_bytes)
        return false;
    ps_point_work(k, p, &bytes, &flops);
    return flops <= most_flops;
}

ps_status ps_grid_random(const ps_grid_config *config, uint64_t seed, uint32_t n, ps_task **out_tasks,
                         uint32_t *out_n, ps_error *err) {
    ps_grid g = {.config = config};
    uint64_t rng = seed;
    /* A model may have few operations that our kernels have, but not none: the bound is for safety only. */
    for (uint32_t tries = 0; g.n < n && tries < 100000 + 10000 * n && !g.failed; tries++) {
        ps_profile_point p;
        if (!random_point(&rng, config, &p))
            continue;
        for (uint32_t i = 0; i < config->n_kernels; i++)
            if (config->kernels[i].id == p.kernel)
                ps_grid_point(&g, &config->kernels[i], p, false);
        ps_grid_dedupe(&g);
    }
    if (g.failed) {
        free(g.tasks);
        return ps_error_set(err, PS_E_NOMEM, "grid", "no memory for %u tasks", n);
    }
    *out_tasks = g.tasks;
    *out_n = g.n;
    return PS_OK;
}
