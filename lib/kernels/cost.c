/* What one call of a kernel costs: bytes moved once (weights, activations, KV) and FLOPs. */
#include "kernels/kernel.h"
#include "kernels/moe_rule.h"

/* Bytes of n rows of an activation without the padding of rows. */
static double act_bytes(const ps_xarg *x, uint64_t n, uint64_t cols) {
    static const double per_elem[PS_FMT_COUNT] = {
        [PS_FMT_F32] = 4, [PS_FMT_F16] = 2,
        [PS_FMT_I32] = 4, [PS_FMT_Q8] = 1 + 8.0 / PS_Q8_GROUP, /* int8, and two floats per group */
        [PS_FMT_SEL] = 8, [PS_FMT_F16S] = 2,
    };
    const double per_row = x->fmt == PS_FMT_F16S ? 4 : 0; /* its scale */
    return x->data ? (double)n * ((double)cols * per_elem[x->fmt] + per_row) : 0;
}

/* Attention of one span: visible (row, position) pairs, and positions that some row sees. */
static void span_pairs(const ps_layer *l, const ps_seq_span *sp, double *out_pairs, double *out_positions) {
    const uint64_t w = l->window;
    double pairs = 0;
    for (uint64_t i = 0; i < sp->n_rows; i++) {
        const uint64_t n = sp->pos0 + i + 1;
        pairs += (double)(w && n > w ? w : n);
    }
    const uint64_t end = (uint64_t)sp->pos0 + sp->n_rows, n0 = (uint64_t)sp->pos0 + 1;
    *out_pairs = pairs;
    *out_positions = (double)(end - (w && n0 > w ? n0 - w : 0));
}

/* Experts that the call takes, and selections of these. */
static void moe_counts(const ps_kargs *a, double *out_distinct, double *out_pairs) {
    uint32_t taken[PS_MOE_WORDS];
    *out_distinct = *out_pairs = 0;
    ps_moe_select(a, taken);
    for (int64_t e = 0; e < PS_MAX_EXPERTS; e++)
        *out_distinct += ps_moe_takes(taken, e);
    for (uint64_t t = 0; t < a->n_tokens; t++)
        for (uint64_t k = 0; k < a->src[1].cols; k++) {
            int32_t e;
            memcpy(&e, (const uint8_t *)a->src[1].data + t * a->src[1].row_bytes + 8 * k, sizeof e);
            *out_pairs += ps_moe_takes(taken, e);
        }
}

/* Bytes of the columns of a row: less than row_bytes where they are a range of a wider matrix. */
static double weight_row_bytes(const ps_warg *w) {
    uint64_t bytes;
    return ps_dtype_bytes(w->type, w->cols, &bytes) ? (double)bytes : (double)w->row_bytes;
}

void ps_kernel_cost(const ps_kernel *kernel, const ps_kargs *a, double *out_bytes, double *out_flops) {
    const ps_op op = kernel->spec.op;
    const double t = a->n_tokens, rows = (double)a->n_rows;
    double bytes = act_bytes(&a->dst, a->n_tokens, a->dst.cols), flops = 0;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        bytes += act_bytes(&a->src[i], a->n_tokens, a->src[i].cols);
    const double elems = t * (double)a->src[0].cols;
    switch (op) {
    case PS_OP_EMBED: /* T rows of the table; one product per element for the scale */
        bytes += t * (double)a->w[0].row_bytes;
        flops = t * (double)a->w[0].cols;
        break;
    case PS_OP_RMSNORM: /* square, add, times the scale, times the weight, residual */
        bytes += (double)a->w[0].row_bytes;
        flops = elems * (a->src[1].data ? 5 : 4);
        break;
    case PS_OP_MATMUL: /* a multiply-add per weight and token; the sources' and destination's range */
        bytes = rows * weight_row_bytes(&a->w[0]) + act_bytes(&a->src[0], a->n_tokens, a->src[0].cols) +
                act_bytes(&a->src[1], a->n_tokens, a->n_rows) + act_bytes(&a->dst, a->n_tokens, a->n_rows) +
                (a->w[1].data ? rows * 4 : 0);
        flops = 2 * t * rows * (double)a->w[0].cols + (a->w[1].data ? t * rows : 0) +
                (a->src[1].data ? t * rows : 0);
        break;
    case PS_OP_ROPE: /* per pair four products and two sums: 3 per element; angles are per row, not per head */
        flops = elems / (double)a->layer->head_dim_k * 3 * (double)a->layer->rope_dims;
        break;
    case PS_OP_KV_STORE: /* writes half of what it reads */
        bytes *= 1.5;
        break;
    case PS_OP_ATTENTION: {
        /* q.k and p.v: a multiply-add per visible pair, head and element; the exponential counts as one.
         * K and V are read once per KV head. */
        const ps_layer *l = a->layer;
        const uint32_t group = l->n_head / l->n_head_kv; /* divides evenly */
        const double heads = rows * group;
        bytes = act_bytes(&a->src[0], a->n_tokens, (uint64_t)heads * l->head_dim_k) +
                act_bytes(&a->dst, a->n_tokens, (uint64_t)heads * l->head_dim_v);
        for (uint32_t s = 0; s < a->n_spans; s++) {
            double pairs, positions;
            span_pairs(l, &a->spans[s], &pairs, &positions);
            flops += heads * pairs * (2.0 * (l->head_dim_k + l->head_dim_v) + 1);
            bytes += 2 * rows * positions * (l->head_dim_k + l->head_dim_v);
        }
        break;
    }
    case PS_OP_GLU: /* exponential, division and three to eight products and sums: counted as 8 */
        flops = 8 * elems;
        break;
    case PS_OP_ADD:
        flops = elems;
        break;
    case PS_OP_CONVERT: /* to Q8: compare, multiply, add to the sum */
        flops = kernel->spec.out_fmt == PS_FMT_Q8 ? 3 * elems : 0;
        break;
    case PS_OP_GATHER: /* only the wanted rows are read; n_tokens counts those */
        break;
    case PS_OP_MOE_ROUTE: /* softmax, and one comparison per expert and selection */
        flops = elems * (4 + (double)a->dst.cols);
        break;
    case PS_OP_MOE_DISPATCH: {
        double distinct, pairs;
        moe_counts(a, &distinct, &pairs);
        for (int i = 0; i < 3; i++) {
            bytes += distinct * (double)a->w[i].rows * (double)a->w[i].row_bytes;
            flops += 2 * pairs * (double)a->w[i].rows * (double)a->w[i].cols;
        }
        /* Activation of the hidden layer, and the weighted sum of the outputs. */
        flops += 8 * pairs * (double)a->w[0].rows + 2 * pairs * (double)a->w[2].rows;
        break;
    }
    case PS_OP_SAMPLE: /* greedy: one comparison per logit; others a few passes more */
        flops = elems;
        break;
    default:
        break;
    }
    *out_bytes = bytes;
    *out_flops = flops;
}
