/* Raw and reachable bound: see bounds.h. */
#include "plan/bounds.h"

#include <math.h>

static const double barriers_per_layer_s = 5e-6;

ps_step_work ps_step_work_of(const ps_lower_request *r, uint64_t kv_len) {
    const ps_model *m = r->model;
    ps_step_work w = {0};
    /* As the cost of attention takes it: a token each for some sequences, or a run of tokens of one. */
    double seqs = r->max_tokens <= r->n_seqs ? (double)r->max_tokens : 1;
    uint64_t per_seq = seqs > 1 ? 1 : r->max_tokens;
    for (uint32_t s = 0; s < m->n_shards; s++)
        for (uint32_t i = 0; i < m->shards[s].n_ops; i++) {
            const ps_op_desc *d = &m->shards[s].ops[i];
            bool head = m->shards[s].kind == PS_SHARD_HEAD;
            uint64_t tokens = head ? r->max_outputs : r->max_tokens;
            w.weight_bytes += ps_op_weight_bytes(m, m->shards[s].layer, d, tokens);
            if (d->op == PS_OP_ATTENTION)
                w.flops += seqs * ps_op_flops(m, m->shards[s].layer, d, per_seq, kv_len);
            else
                w.flops += ps_op_flops(m, m->shards[s].layer, d, tokens, kv_len);
        }
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const ps_layer *y = &m->layers[l];
        double row = 2.0 * y->n_head_kv * ((double)y->head_dim_k + y->head_dim_v); /* f16 */
        double held = (double)kv_len;
        if (y->window && held > (double)y->window + (double)per_seq)
            held = (double)y->window + (double)per_seq;
        w.kv_bytes += seqs * held * row + (double)r->max_tokens * row;
    }
    return w;
}

void ps_bounds(const ps_lower_request *r, double *out_raw_s, double *out_reachable_s) {
    ps_step_work w = ps_step_work_of(r, r->bucket_tokens);
    double bw = ps_cost_dram_bytes_per_s(r->cost, r->n_threads),
           rate = ps_cost_matmul_flops_per_s(r->cost, r->n_threads);
    double raw = bw > 0 ? (w.weight_bytes + w.kv_bytes) / bw : 0;
    if (rate > 0)
        raw = fmax(raw, w.flops / rate);
    *out_raw_s = raw;
    *out_reachable_s = raw + barriers_per_layer_s * r->model->n_layers;
}
