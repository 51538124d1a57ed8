/* Bytes and FLOPs of a point: to order and to budget a sweep, for the null rig, and for what lies beyond measured points. */
#include <math.h>

#include "schemas/machine_profile.h"

static double weight_bytes(ps_dtype type, double elems) {
    const ps_dtype_info *info = ps_dtype_find(type);
    return info ? elems * info->block_bytes / info->block_elems : elems * 4;
}

static double act_bytes(ps_fmt fmt, double elems) {
    return fmt == PS_FMT_F16 ? elems * 2 : fmt == PS_FMT_Q8 ? elems * 1.25 : elems * 4;
}

void ps_point_work(const ps_kernel_spec *k, const ps_profile_point *p, double *out_bytes, double *out_flops) {
    const double t = p->n_tokens, rows = (double)p->rows, cols = (double)p->cols, kv = (double)p->kv_len;
    double bytes = act_bytes(k->in_fmt, t * cols) + act_bytes(k->out_fmt, t * cols);
    double flops = t * cols * 4;
    switch (k->op) {
    case PS_OP_MATMUL:
        bytes = weight_bytes(k->wtype, rows * cols) + act_bytes(k->in_fmt, t * cols) +
                act_bytes(k->out_fmt, t * rows);
        flops = 2 * t * rows * cols;
        break;
    case PS_OP_ATTENTION: {
        /* Position i of t new ones sees kv - t + i + 1: t * kv - t (t - 1) / 2 pairs, two products each. */
        const double pairs = t * kv - t * (t - 1) / 2;
        bytes = 4 * kv * p->heads_kv * cols + t * rows * cols * 8;
        flops = pairs * rows * cols * 4;
        break;
    }
    case PS_OP_MOE_DISPATCH: {
        /* rows: expert width, heads_kv: experts, kv_len: used; expected distinct experts under uniform routing */
        const double experts = p->heads_kv, used = kv;
        const double distinct = experts * (1 - pow(1 - used / experts, t));
        bytes = weight_bytes(k->wtype, 3 * distinct * rows * cols) + t * cols * 8;
        flops = 6 * t * used * rows * cols;
        break;
    }
    case PS_OP_EMBED:
        bytes += weight_bytes(k->wtype, t * cols);
        break;
    case PS_OP_SAMPLE:
    case PS_OP_MOE_ROUTE:
        flops = t * cols * 8;
        break;
    case PS_OP_RMSNORM:
    case PS_OP_ROPE:
    case PS_OP_KV_STORE:
    case PS_OP_GLU:
    case PS_OP_ADD:
    case PS_OP_CONVERT:
    case PS_OP_GATHER:
    case PS_OP_COPY:
    case PS_OP_COUNT:
        break;
    }
    *out_bytes = bytes;
    *out_flops = flops;
}
