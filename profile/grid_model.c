/* The grid for one model: every distinct shape of its operations, with every kernel that could run it. */
#include "profile/grid_internal.h"

/* Token counts: all tiers up to 512 where steps come in any size; results of a step (last rows) are few. */
static const uint32_t step_tokens[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
static const uint32_t step_tokens_quick[] = {1, 8, 64, 512};
static const uint32_t output_tokens[] = {1, 2, 4, 8};

ps_dtype ps_grid_weight_type(const ps_model *m, uint32_t layer, const ps_op_desc *op) {
    const ps_weight *w = op->w[0] == PS_ROLE_NONE ? NULL : ps_model_weight(m, layer, op->w[0]);
    return w ? w->type : PS_DTYPE_NONE;
}

/* Shape of an operation in the terms of a point (kv_len of attention apart). */
ps_profile_point ps_grid_shape_of(const ps_model *m, uint32_t layer, const ps_op_desc *op) {
    ps_profile_point p = {.cols = op->cols};
    const ps_layer *l = layer < m->n_layers ? &m->layers[layer] : NULL;
    switch (op->op) {
    case PS_OP_MATMUL:
        p.rows = op->rows;
        break;
    case PS_OP_ATTENTION:
        p.rows = l->n_head;
        p.cols = l->head_dim_k;
        p.heads_kv = l->n_head_kv;
        break;
    case PS_OP_MOE_DISPATCH:
        p.rows = l->n_ff_expert;
        p.heads_kv = l->n_expert;
        p.kv_len = l->n_expert_used;
        break;
    case PS_OP_MOE_ROUTE:
        p.heads_kv = l->n_expert;
        p.kv_len = l->n_expert_used;
        break;
    case PS_OP_EMBED:
        p.cols = m->n_embd;
        break;
    default:
        break;
    }
    return p;
}

bool ps_grid_is_output(ps_value v) {
    return v == PS_VALUE_LAST || v == PS_VALUE_LAST_NORM || v == PS_VALUE_LOGITS || v == PS_VALUE_TOKENS;
}

static void add_at(ps_grid *g, const ps_kernel_spec *k, ps_profile_point p, uint64_t n_ctx) {
    /* Single tokens and long prompts on all threads: what most steps are. */
    const bool essential = p.n_threads == g->config->n_threads && (p.n_tokens == 1 || p.n_tokens == 512);
    if (k->op != PS_OP_ATTENTION) {
        ps_grid_point(g, k, p, essential);
        return;
    }
    /* Time is linear in KV length: the ends of what is likely, more for single tokens, where it matters most. */
    static const uint64_t lens[] = {256, 1024, 4096, 16384};
    p.kv_len = p.n_tokens < 32 ? 32 : p.n_tokens;
    ps_grid_point(g, k, p, essential);
    const uint64_t least = p.kv_len;
    for (uint32_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        if (lens[i] <= least || lens[i] > n_ctx || (p.n_tokens > 1 && i % 2 == 0))
            continue;
        p.kv_len = lens[i];
        ps_grid_point(g, k, p, essential);
    }
}

static void add_op(ps_grid *g, uint32_t layer, const ps_op_desc *op) {
    const ps_grid_config *c = g->config;
    const ps_model *m = c->model;
    const ps_dtype type = ps_grid_weight_type(m, layer, op);
    ps_profile_point p = ps_grid_shape_of(m, layer, op);
    const uint32_t *tokens = c->quick ? step_tokens_quick : step_tokens;
    uint32_t n_tokens = c->quick ? sizeof step_tokens_quick / 4 : sizeof step_tokens / 4;
    if (ps_grid_is_output(op->dst)) {
        tokens = output_tokens;
        n_tokens = c->quick ? 1 : sizeof output_tokens / 4;
    }
    uint32_t threads[PS_GRID_THREADS];
    const uint32_t n_threads = ps_grid_threads(c->n_threads, true, threads);
    for (uint32_t i = 0; i < c->n_kernels; i++) {
        const ps_kernel_spec *k = &c->kernels[i];
        if (k->op != op->op || k->device != PS_DEV_CPU || k->wtype != type)
            continue;
        for (uint32_t t = 0; t < n_tokens; t++) {
            if (tokens[t] < k->min_tokens || tokens[t] > k->max_tokens)
                continue;
            p.n_tokens = tokens[t];
            p.n_threads = c->n_threads;
            add_at(g, k, p, m->n_ctx_train);
            if (tokens[t] != 1 &&
                tokens[t] != 512) /* few tokens share memory, many do not: teams scale otherwise */
                continue;
            for (uint32_t h = 0; h + 1 < n_threads; h++) {
                p.n_threads = threads[h];
                add_at(g, k, p, m->n_ctx_train);
            }
            for (uint32_t h = 1; h < c->n_threads && k->op == PS_OP_MATMUL && !c->quick; h *= 2) {
                p.n_threads = h;
                add_at(g, k, p, m->n_ctx_train);
                p.beside = PS_BESIDE_MEMORY;
                add_at(g, k, p, m->n_ctx_train);
                p.beside = PS_BESIDE_IDLE;
            }
        }
    }
}

void ps_grid_add_model(ps_grid *g) {
    const ps_model *m = g->config->model;
    for (uint32_t s = 0; s < m->n_shards; s++) {
        /* Layers repeat: ps_grid_make drops what is there already. */
        for (uint32_t o = 0; o < m->shards[s].n_ops; o++)
            add_op(g, m->shards[s].layer, &m->shards[s].ops[o]);
        if (g->n > 100000) /* some hundred layers of one shape: keep the list short on the way */
            ps_grid_dedupe(g);
    }
}
