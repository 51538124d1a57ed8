/* Predicted time of an instruction of a lowered program. */
#include <math.h>

#include "plan/lower.h"

/* Positions that T causal rows see on average when the last sees kv_len, at most `window` each (0: all). */
static double mean_visible(double t, double kv_len, double window) {
    double first = kv_len - t + 1, last = kv_len;
    if (window <= 0 || last <= window)
        return (first + last) / 2;
    if (first >= window)
        return window;
    double growing = window - first;
    return (growing * (first + window - 1) / 2 + (t - growing) * window) / t;
}

/* Time of a call whose kernel has no points: all bytes it touches at the DRAM ceiling or its FLOPs at the best
 * product's rate, whichever is longer, and a barrier. */
static double assumed(const ps_lower_request *r, const ps_program *p, const ps_instr *in, uint32_t layer,
                      const ps_cost_query *q, double tokens) {
    double bytes = 0, flops = 0;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        if (in->src[i] != PS_NO_BUFFER)
            bytes +=
                tokens * (double)ps_fmt_row_bytes(p->buffers[in->src[i]].fmt, p->buffers[in->src[i]].cols);
    if (in->dst != PS_NO_BUFFER)
        bytes += tokens * (double)ps_fmt_row_bytes(p->buffers[in->dst].fmt, p->buffers[in->dst].cols);
    ps_op_desc d = {.op = in->op,
                    .w = {in->w[0], in->w[1], in->w[2]},
                    .cols = (uint32_t)q->cols,
                    .rows = (uint32_t)q->rows};
    if (in->op == PS_OP_ATTENTION)
        bytes += q->kv_len * q->heads_kv * (double)q->cols * 4;
    else
        bytes += ps_op_weight_bytes(r->model, layer, &d, (uint64_t)tokens);
    if (in->op != PS_OP_EMBED)
        flops = ps_op_flops(r->model, layer, &d, (uint64_t)tokens, (uint64_t)q->kv_len);
    double bw = ps_cost_dram_bytes_per_s(r->cost, r->n_threads),
           rate = ps_cost_matmul_flops_per_s(r->cost, r->n_threads);
    double t = bw > 0 ? bytes / bw : 0;
    if (rate > 0)
        t = fmax(t, flops / rate);
    return t + r->profile->barrier_s.median;
}

static ps_cost one(const ps_lower_request *r, const ps_program *p, const ps_instr *in, uint32_t layer,
                   ps_cost_query q, double tokens) {
    ps_cost c = {0, PS_COST_ASSUMED};
    q.n_tokens = (uint64_t)fmax(tokens, 1);
    if (ps_cost_lookup(r->cost, &q, &c))
        return c;
    return (ps_cost){assumed(r, p, in, layer, &q, fmax(tokens, 1)), PS_COST_ASSUMED};
}

ps_cost ps_instr_cost(const ps_lower_request *r, const ps_program *p, uint32_t instr, uint32_t layer,
                      uint64_t kv_len) {
    const ps_instr *in = &p->instrs[instr];
    ps_cost_query q = ps_lower_query(r->model, layer, in, p);
    q.n_threads = r->n_threads;
    uint16_t b = in->dst != PS_NO_BUFFER ? in->dst : in->src[0];
    ps_rows rows = b != PS_NO_BUFFER ? p->buffers[b].rows : PS_ROWS_TILE;
    double tokens = (double)ps_lower_tokens(r, rows);
    bool tiles = r->max_tokens > PS_TILE_TOKENS;
    if (in->op != PS_OP_ATTENTION)
        return one(r, p, in, layer, q, tokens);

    /* Points were measured with T rows of one sequence, the last seeing kv_len, without a window: asked for is the
     * point whose rows see as much on average. A step of at most one token per sequence reads each sequence's cache. */
    double window = r->model->layers[layer].window;
    double seqs = r->max_tokens <= r->n_seqs ? (double)r->max_tokens : 1;
    uint64_t n_tiles = tiles ? (r->max_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS : 1;
    ps_cost sum = {0, PS_COST_MEASURED};
    for (uint64_t i = 0; i < n_tiles; i++) {
        double tile = (double)i;
        double t = seqs > 1 ? 1
                   : tiles  ? fmin(PS_TILE_TOKENS, (double)r->max_tokens - tile * PS_TILE_TOKENS)
                            : tokens;
        double before = fmax((double)kv_len - (double)r->max_tokens / seqs, 0);
        double after = before + (seqs > 1 ? 1 : fmin((tile + 1) * PS_TILE_TOKENS, (double)r->max_tokens));
        q.kv_len = mean_visible(t, after, window) + (t - 1) / 2;
        ps_cost c = one(r, p, in, layer, q, t);
        sum.time_s += c.time_s * seqs / (double)n_tiles;
        sum.quality = c.quality > sum.quality ? c.quality : sum.quality;
    }
    return sum;
}
