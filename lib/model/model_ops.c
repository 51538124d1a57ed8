/* Shards and the operations of each, their costs, and the size of the KV cache. */
#include "model/model.h"

#include <math.h>

#include "core/checked.h"
#include "model/arch.h"

/* Most operations of one shard: norm, q, k, v, 2 head norms, 2 ropes, store, attention, out, post-norm. */
enum { MAX_OPS = 12 };

typedef struct op_list {
    const ps_layer *layer; /* NULL for global shards */
    const ps_model *model;
    ps_op_desc ops[MAX_OPS];
    uint32_t n;
} op_list;

static bool has(const op_list *o, ps_role role) {
    return (ps_role_get(role)->per_layer ? o->layer->w[role] : o->model->w[role]) != NULL;
}

static ps_role if_has(const op_list *o, ps_role role) {
    return has(o, role) ? role : PS_ROLE_NONE;
}

static void add(op_list *o, ps_op_desc d) {
    /* Fields left out of the initialiser are 0, which is a role of its own. */
    for (unsigned i = ps_op_get(d.op)->n_weights; i < PS_OP_MAX_WEIGHTS; i++)
        d.w[i] = PS_ROLE_NONE;
    o->ops[o->n++] = d;
}

static void add_norm(op_list *o, ps_role w, ps_value src, ps_value residual, ps_value dst, uint32_t cols) {
    add(o,
        (ps_op_desc){
            .op = PS_OP_RMSNORM, .w = {w}, .src = {src, residual}, .dst = dst, .cols = cols, .rows = cols});
}

static void add_matmul(op_list *o, ps_role w, ps_role bias, ps_value src, ps_value residual, ps_value dst) {
    const ps_weight *m = ps_role_get(w)->per_layer ? o->layer->w[w] : o->model->w[w];
    ps_role b = bias == PS_ROLE_NONE ? PS_ROLE_NONE : if_has(o, bias);
    add(o, (ps_op_desc){.op = PS_OP_MATMUL,
                        .w = {w, b},
                        .src = {src, residual},
                        .dst = dst,
                        .cols = (uint32_t)m->cols,
                        .rows = (uint32_t)m->rows});
}

static void attention_ops(op_list *o) {
    const ps_layer *y = o->layer;
    uint32_t q = y->n_head * y->head_dim_k, k = y->n_head_kv * y->head_dim_k, embd = o->model->n_embd;
    uint32_t att = y->n_head * y->head_dim_v;
    ps_role freqs = if_has(o, PS_ROLE_ROPE_FREQS);
    add_norm(o, PS_ROLE_ATTN_NORM, PS_VALUE_X, PS_VALUE_NONE, PS_VALUE_NORM, embd);
    add_matmul(o, PS_ROLE_ATTN_Q, PS_ROLE_ATTN_Q_BIAS, PS_VALUE_NORM, PS_VALUE_NONE, PS_VALUE_Q);
    add_matmul(o, PS_ROLE_ATTN_K, PS_ROLE_ATTN_K_BIAS, PS_VALUE_NORM, PS_VALUE_NONE, PS_VALUE_K);
    add_matmul(o, PS_ROLE_ATTN_V, PS_ROLE_ATTN_V_BIAS, PS_VALUE_NORM, PS_VALUE_NONE, PS_VALUE_V);
    if (has(o, PS_ROLE_ATTN_Q_NORM))
        add_norm(o, PS_ROLE_ATTN_Q_NORM, PS_VALUE_Q, PS_VALUE_NONE, PS_VALUE_Q, q);
    if (has(o, PS_ROLE_ATTN_K_NORM))
        add_norm(o, PS_ROLE_ATTN_K_NORM, PS_VALUE_K, PS_VALUE_NONE, PS_VALUE_K, k);
    add(o, (ps_op_desc){
               .op = PS_OP_ROPE, .w = {freqs}, .src = {PS_VALUE_Q}, .dst = PS_VALUE_Q, .cols = q, .rows = q});
    add(o, (ps_op_desc){
               .op = PS_OP_ROPE, .w = {freqs}, .src = {PS_VALUE_K}, .dst = PS_VALUE_K, .cols = k, .rows = k});
    add(o,
        (ps_op_desc){.op = PS_OP_KV_STORE, .src = {PS_VALUE_K, PS_VALUE_V}, .dst = PS_VALUE_NONE, .cols = k});
    add(o, (ps_op_desc){
               .op = PS_OP_ATTENTION, .src = {PS_VALUE_Q}, .dst = PS_VALUE_ATT, .cols = q, .rows = att});
    if (has(o, PS_ROLE_ATTN_POST_NORM)) {
        add_matmul(o, PS_ROLE_ATTN_OUT, PS_ROLE_ATTN_OUT_BIAS, PS_VALUE_ATT, PS_VALUE_NONE, PS_VALUE_PROJ);
        add_norm(o, PS_ROLE_ATTN_POST_NORM, PS_VALUE_PROJ, PS_VALUE_X, PS_VALUE_X, embd);
    } else
        add_matmul(o, PS_ROLE_ATTN_OUT, PS_ROLE_ATTN_OUT_BIAS, PS_VALUE_ATT, PS_VALUE_X, PS_VALUE_X);
}

static void ffn_ops(op_list *o) {
    const ps_layer *y = o->layer;
    uint32_t embd = o->model->n_embd;
    add_norm(o, PS_ROLE_FFN_NORM, PS_VALUE_X, PS_VALUE_NONE, PS_VALUE_NORM, embd);
    if (y->n_expert != 0) {
        add_matmul(o, PS_ROLE_FFN_ROUTER, PS_ROLE_NONE, PS_VALUE_NORM, PS_VALUE_NONE, PS_VALUE_ROUTER);
        add(o, (ps_op_desc){.op = PS_OP_MOE_ROUTE,
                            .src = {PS_VALUE_ROUTER},
                            .dst = PS_VALUE_SEL,
                            .cols = y->n_expert,
                            .rows = y->n_expert_used});
        add(o, (ps_op_desc){.op = PS_OP_MOE_DISPATCH,
                            .w = {PS_ROLE_FFN_GATE_EXPS, PS_ROLE_FFN_UP_EXPS, PS_ROLE_FFN_DOWN_EXPS},
                            .src = {PS_VALUE_NORM, PS_VALUE_SEL, PS_VALUE_X},
                            .dst = PS_VALUE_X,
                            .cols = embd,
                            .rows = embd});
        return;
    }
    add_matmul(o, PS_ROLE_FFN_GATE, PS_ROLE_FFN_GATE_BIAS, PS_VALUE_NORM, PS_VALUE_NONE, PS_VALUE_GATE);
    add_matmul(o, PS_ROLE_FFN_UP, PS_ROLE_FFN_UP_BIAS, PS_VALUE_NORM, PS_VALUE_NONE, PS_VALUE_UP);
    add(o, (ps_op_desc){.op = PS_OP_GLU,
                        .src = {PS_VALUE_GATE, PS_VALUE_UP},
                        .dst = PS_VALUE_ACT,
                        .cols = y->n_ff,
                        .rows = y->n_ff});
    if (has(o, PS_ROLE_FFN_POST_NORM)) {
        add_matmul(o, PS_ROLE_FFN_DOWN, PS_ROLE_FFN_DOWN_BIAS, PS_VALUE_ACT, PS_VALUE_NONE, PS_VALUE_PROJ);
        add_norm(o, PS_ROLE_FFN_POST_NORM, PS_VALUE_PROJ, PS_VALUE_X, PS_VALUE_X, embd);
    } else
        add_matmul(o, PS_ROLE_FFN_DOWN, PS_ROLE_FFN_DOWN_BIAS, PS_VALUE_ACT, PS_VALUE_X, PS_VALUE_X);
}

static void embed_ops(op_list *o) {
    uint32_t embd = o->model->n_embd;
    add(o, (ps_op_desc){
               .op = PS_OP_EMBED, .w = {PS_ROLE_TOKEN_EMBD}, .dst = PS_VALUE_X, .cols = embd, .rows = embd});
}

static void head_ops(op_list *o) {
    uint32_t embd = o->model->n_embd;
    add(o, (ps_op_desc){
               .op = PS_OP_GATHER, .src = {PS_VALUE_X}, .dst = PS_VALUE_LAST, .cols = embd, .rows = embd});
    add_norm(o, PS_ROLE_OUTPUT_NORM, PS_VALUE_LAST, PS_VALUE_NONE, PS_VALUE_LAST_NORM, embd);
    add_matmul(o, PS_ROLE_OUTPUT, PS_ROLE_NONE, PS_VALUE_LAST_NORM, PS_VALUE_NONE, PS_VALUE_LOGITS);
    add(o, (ps_op_desc){.op = PS_OP_SAMPLE,
                        .src = {PS_VALUE_LOGITS},
                        .dst = PS_VALUE_TOKENS,
                        .cols = o->model->n_vocab,
                        .rows = 1});
}

static uint64_t bytes_of(const ps_weight *w) {
    return w != NULL ? w->bytes : 0;
}

/* Roles of a layer belong to the attention or to the feed-forward shard by their place in the list. */
static uint64_t layer_bytes(const ps_layer *y, ps_role first, ps_role end) {
    uint64_t sum = 0; /* part of the model's weight_bytes, which fit */
    for (unsigned r = first; r < (unsigned)end; r++)
        sum += bytes_of(y->w[r]);
    return sum;
}

static ps_status put_shard(ps_build *b, ps_shard *s, ps_shard_kind kind, uint32_t l, uint64_t bytes,
                           const ps_layer *layer, void (*fill)(op_list *)) {
    op_list list = {.layer = layer, .model = b->model, .n = 0};
    fill(&list);
    ps_op_desc *ops = ps_arena_array(b->arena, list.n, sizeof *ops);
    if (ops == NULL)
        return ps_build_nomem(b);
    for (uint32_t i = 0; i < list.n; i++)
        ops[i] = list.ops[i];
    *s = (ps_shard){.kind = kind, .layer = l, .weight_bytes = bytes, .n_ops = list.n, .ops = ops};
    return PS_OK;
}

ps_status ps_build_shards(ps_build *b) {
    ps_model *m = b->model;
    m->n_shards = 2 * m->n_layers + 2; /* n_layers is below 2^31 and below the number of tensors */
    ps_shard *s = ps_arena_array(b->arena, m->n_shards, sizeof *s);
    if (s == NULL)
        return ps_build_nomem(b);
    m->shards = s;
    uint64_t embed = bytes_of(m->w[PS_ROLE_TOKEN_EMBD]) + bytes_of(m->w[PS_ROLE_ROPE_FREQS]);
    uint64_t head =
        bytes_of(m->w[PS_ROLE_OUTPUT_NORM]) + (m->tied_output ? 0 : bytes_of(m->w[PS_ROLE_OUTPUT]));
    ps_status st = put_shard(b, s++, PS_SHARD_EMBED, 0, embed, NULL, embed_ops);
    for (uint32_t l = 0; l < m->n_layers && st == PS_OK; l++) {
        const ps_layer *y = &m->layers[l];
        st = put_shard(b, s++, PS_SHARD_ATTN, l, layer_bytes(y, PS_ROLE_ATTN_NORM, PS_ROLE_FFN_NORM), y,
                       attention_ops);
        if (st == PS_OK)
            st = put_shard(b, s++, y->n_expert != 0 ? PS_SHARD_MOE : PS_SHARD_FFN, l,
                           layer_bytes(y, PS_ROLE_FFN_NORM, PS_ROLE_COUNT), y, ffn_ops);
    }
    if (st == PS_OK)
        st = put_shard(b, s, PS_SHARD_HEAD, 0, head, NULL, head_ops);
    return st;
}

uint64_t ps_model_kv_rows(const ps_model *model, uint32_t l, uint64_t n_ctx, uint64_t tile_tokens) {
    uint64_t window = model->layers[l].window, ring;
    if (window == 0 || !ps_add_u64(window, tile_tokens, &ring))
        return n_ctx;
    return ring < n_ctx ? ring : n_ctx;
}

uint64_t ps_model_kv_bytes(const ps_model *model, uint32_t l, uint64_t rows) {
    const ps_layer *y = &model->layers[l];
    uint64_t k, v, sum;
    if (!ps_mul_u64(rows, 2 * (uint64_t)y->n_head_kv * y->head_dim_k, &k) || !ps_align_u64(k, 64, &k) ||
        !ps_mul_u64(rows, 2 * (uint64_t)y->n_head_kv * y->head_dim_v, &v) || !ps_align_u64(v, 64, &v) ||
        !ps_add_u64(k, v, &sum))
        return UINT64_MAX;
    return sum;
}

/* Pairs (row, visible position) of T causal rows, the last of which sees n_kv positions: row t sees
 * n_kv - (T-1-t), at most `window` of them. */
static double visible_pairs(uint64_t t, uint64_t n_kv, uint64_t window) {
    if (n_kv < t)
        n_kv = t;
    double rows = (double)t, first = (double)(n_kv - t + 1), last = (double)n_kv, w = (double)window;
    if (window == 0 || last <= w)
        return rows * (first + last) / 2;
    if (first >= w)
        return rows * w;
    double growing = w - first; /* rows that still see less than the window */
    return growing * (first + w - 1) / 2 + (rows - growing) * w;
}

/* Counts per element follow the operation as ops.h defines it, one per add, multiply, divide or square root;
 * an exponential or tanh is counted as ops, too, one each. Products: 2 per multiply-add (Kaplan et al. 2020,
 * Scaling Laws for Neural Language Models, table 1; attention: 2 * visible * width for q.k and again for
 * the sum over v, there per context position). */
double ps_op_flops(const ps_model *model, uint32_t layer, const ps_op_desc *op, uint64_t n_tokens,
                   uint64_t n_kv) {
    const ps_layer *y = layer < model->n_layers ? &model->layers[layer] : NULL;
    double t = (double)n_tokens, cols = op->cols, rows = op->rows;
    bool plus = op->src[1] != PS_VALUE_NONE;
    switch (op->op) {
    case PS_OP_EMBED:
        return model->embed_scale != 1.0f ? t * rows : 0;
    case PS_OP_RMSNORM: /* square, sum, times 1/rms, times weight, residual */
        return t * cols * (plus ? 5 : 4);
    case PS_OP_MATMUL:
        return t * rows * (2 * cols + (op->w[1] != PS_ROLE_NONE) + plus);
    case PS_OP_ROPE: /* per pair 4 multiplies, 2 adds */
        return y != NULL ? t * (cols / y->head_dim_k) * y->rope_dims * 3 : 0;
    case PS_OP_ATTENTION: { /* per head and pair: q.k, weighted v, and scale, max, subtract, exp, sum */
        if (y == NULL)
            return 0;
        double per_pair = 2.0 * y->head_dim_k + 2.0 * y->head_dim_v + 5;
        return visible_pairs(n_tokens, n_kv, y->window) * y->n_head * per_pair;
    }
    case PS_OP_GLU: /* SiLU: negate, exp, add, divide; tanh-GELU: x*(0.5+0.5*tanh(x*(a+b*x*x))); times up */
        return t * rows * (model->glu == PS_GLU_SILU ? 5 : 9);
    case PS_OP_ADD:
        return t * rows;
    case PS_OP_CONVERT: /* Q8: magnitude, scale, round, sum */
        return t * cols * 4;
    case PS_OP_MOE_ROUTE: /* softmax, and one comparison per expert and pick */
        return t * cols * (4 + rows);
    case PS_OP_MOE_DISPATCH: {
        if (y == NULL)
            return 0;
        double ff = y->n_ff_expert, act = model->glu == PS_GLU_SILU ? 5 : 9;
        double per_expert = 4 * cols * ff + act * ff + 2 * ff * rows + 2 * rows;
        return t * (y->n_expert_used * per_expert + (op->src[2] != PS_VALUE_NONE ? rows : 0));
    }
    case PS_OP_SAMPLE:
        return t * cols;
    case PS_OP_KV_STORE:
    case PS_OP_GATHER:
    case PS_OP_COPY:
    case PS_OP_COUNT:
        return 0;
    }
    return 0;
}

double ps_op_weight_bytes(const ps_model *model, uint32_t layer, const ps_op_desc *op, uint64_t n_tokens) {
    double sum = 0;
    for (unsigned i = 0; i < ps_op_get(op->op)->n_weights; i++) {
        const ps_weight *w = ps_model_weight(model, layer, op->w[i]);
        if (w == NULL)
            continue;
        double bytes = (double)w->bytes, t = (double)n_tokens;
        if (op->op == PS_OP_EMBED) { /* a row per token, as if all differ */
            double row = bytes / (double)w->rows;
            bytes = t * row < bytes ? t * row : bytes;
        } else if (op->op == PS_OP_MOE_DISPATCH) {
            double miss = 1 - (double)model->layers[layer].n_expert_used / (double)w->experts;
            bytes *= 1 - pow(miss, t);
        }
        sum += bytes;
    }
    return sum;
}
