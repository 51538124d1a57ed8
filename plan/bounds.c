/* Raw and reachable bound: see bounds.h. */
#include "plan/bounds.h"

#include <math.h>

static const double barriers_per_layer_s = 5e-6, hand_over_per_layer_s = 15e-6;

/* Shares of the host's work that are tried for the CPU. */
enum { SHARES = 1000 };

ps_step_work ps_step_work_of(const ps_lower_request *r, uint64_t kv_len) {
    const ps_model *m = r->model;
    ps_step_work w = {0};
    /* As the cost of attention takes it: a token each for some sequences, or a run of tokens of one. */
    double seqs = r->max_tokens <= r->n_seqs ? (double)r->max_tokens : 1;
    uint64_t per_seq = seqs > 1 ? 1 : r->max_tokens;
    if (r->level && r->max_tokens > r->bucket_tokens) { /* prompts of several sequences */
        seqs = (double)r->max_tokens / (double)r->bucket_tokens;
        per_seq = r->bucket_tokens;
    }
    for (uint32_t s = 0; s < m->n_shards; s++)
        for (uint32_t i = 0; i < m->shards[s].n_ops; i++) {
            const ps_op_desc *d = &m->shards[s].ops[i];
            bool head = m->shards[s].kind == PS_SHARD_HEAD;
            uint64_t tokens = head ? r->max_outputs : r->max_tokens;
            double bytes = ps_op_weight_bytes(m, m->shards[s].layer, d, tokens), flops;
            w.weight_bytes += bytes;
            if (d->op == PS_OP_ATTENTION) {
                flops = seqs * ps_op_flops(m, m->shards[s].layer, d, per_seq, kv_len);
                w.attention_flops += flops;
            } else {
                flops = ps_op_flops(m, m->shards[s].layer, d, tokens, kv_len);
                if (d->op == PS_OP_MOE_DISPATCH) {
                    w.expert_bytes += bytes;
                    for (int k = 0; k < PS_OP_MAX_WEIGHTS; k++) {
                        const ps_weight *x = ps_model_weight(m, m->shards[s].layer, d->w[k]);
                        w.all_expert_bytes += x ? (double)x->bytes : 0;
                    }
                }
                if (m->shards[s].kind == PS_SHARD_ATTN) {
                    w.attn_bytes += bytes;
                    w.attn_matrix_flops += flops;
                }
            }
            w.flops += flops;
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

static double over(double amount, double rate) {
    return rate > 0 ? amount / rate : 0;
}

/* With a GPU. What the budget leaves beside context and libraries holds what every step reads first (all but experts, and
 * the KV), then experts. What is left on the host is divided between CPU and bus. */
static void gpu_bounds(const ps_lower_request *r, double room, double *out_raw_s, double *out_reachable_s) {
    const ps_profile_gpu *g = &r->profile->gpu;
    ps_step_work w = ps_step_work_of(r, r->bucket_tokens);
    double always = w.weight_bytes - w.expert_bytes + w.kv_bytes, held = fmin(room, always);
    double experts = w.all_expert_bytes > 0 ? fmin((room - held) / w.all_expert_bytes, 1) : 0;
    double resident = held + experts * w.expert_bytes, all = always + w.expert_bytes, left = all - resident;
    double product_flops = w.flops - w.attention_flops, left_share = all > 0 ? left / all : 0;
    double dram = ps_cost_dram_bytes_per_s(r->cost, r->n_threads),
           cpu_rate = ps_cost_matmul_flops_per_s(r->cost, r->n_threads), bus_both = 0, dram_both = 0;
    for (int i = 0; i < 2; i++) { /* copies or direct reads, whichever bring more beside the CPU */
        double b, d;
        ps_cost_together(r->cost, i ? PS_BUS_DIRECT : PS_BUS_H2D, r->n_threads, &b, &d);
        if (b + d > bus_both + dram_both) {
            bus_both = b;
            dram_both = d;
        }
    }
    double bus = fmax(ps_cost_bus_bytes_per_s(r->cost, PS_BUS_H2D, 16 << 20),
                      ps_cost_bus_bytes_per_s(r->cost, PS_BUS_DIRECT, 16 << 20));
    /* Attention stands between one layer's experts or columns and the next's: the CPU waits for it. */
    double serial = fmax(over(w.attn_bytes + w.kv_bytes, g->hbm_read_bytes_per_s.median),
                         over(w.attn_matrix_flops, g->matmul_flops_per_s.median) +
                             over(w.attention_flops, g->attention_flops_per_s.median)) +
                    hand_over_per_layer_s * r->model->n_layers;
    double raw = INFINITY, reachable = INFINITY;
    for (int i = 0; i <= SHARES; i++) {
        double f = (double)i / SHARES, cpu_flops = f * left_share * product_flops;
        double t_cpu = fmax(over(f * left, i == SHARES ? dram : dram_both), over(cpu_flops, cpu_rate));
        double t_bus = over((1 - f) * left, i == 0 ? bus : bus_both);
        double t_gpu = fmax(over(resident + (1 - f) * left, g->hbm_read_bytes_per_s.median),
                            over(product_flops - cpu_flops, g->matmul_flops_per_s.median) +
                                over(w.attention_flops, g->attention_flops_per_s.median));
        double t = fmax(fmax(t_cpu, t_bus), t_gpu);
        raw = fmin(raw, t);
        reachable = fmin(reachable, i && left > 0 ? t + serial : t);
    }
    *out_raw_s = raw;
    *out_reachable_s = reachable;
}

double ps_bound_in_vram(const ps_lower_request *r) {
    double raw, reachable;
    gpu_bounds(r, INFINITY, &raw, &reachable);
    return raw;
}

double ps_bound_hand_over_s(const ps_lower_request *r) {
    return (r->level ? hand_over_per_layer_s : barriers_per_layer_s) * r->model->n_layers;
}

void ps_bounds(const ps_lower_request *r, double *out_raw_s, double *out_reachable_s) {
    if (r->level) {
        gpu_bounds(r, fmax((double)r->level->budget_bytes - (double)r->profile->gpu.base_bytes, 0), out_raw_s,
                   out_reachable_s);
        return;
    }
    ps_step_work w = ps_step_work_of(r, r->bucket_tokens);
    double bw = ps_cost_dram_bytes_per_s(r->cost, r->n_threads),
           rate = ps_cost_matmul_flops_per_s(r->cost, r->n_threads);
    double raw = bw > 0 ? (w.weight_bytes + w.kv_bytes) / bw : 0;
    if (rate > 0)
        raw = fmax(raw, w.flops / rate);
    *out_raw_s = raw;
    *out_reachable_s = raw + barriers_per_layer_s * r->model->n_layers;
}
