/* Operands with random content. Activations and KV come in a few sets that calls take in turn; weights in as many
 * as fit in the cold memory. */
#include "profile/operands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"
#include "kernels/ref/ref.h"

enum {
    NORMALS = 8191,   /* prime, so that rows do not repeat */
    UNIQUE_ROWS = 16, /* activation rows after these repeat them */
    MAX_SETS = 16,
    MAX_SELECTION_ROWS = 512, /* of experts, all sets together */
    MAX_ID_SETS = 1 << 14,
    MAX_KVS = 1 << 16,
    WARM_KV_TOKENS = 64,
    HEAD_DIM = 128,
};
static const uint64_t dst_cold_bytes =
    16u << 20; /* results of all sets together: what a layer writes in between */
static const uint64_t kv_warm_bytes = 256u << 20; /* at most, KV of all sets of long steps together */
static const uint64_t large_page_bytes = 2u << 20;
static const uint64_t unique_weight_bytes = 1u << 20;

/* Memory that only grows. */
typedef struct area {
    uint8_t *data;
    uint64_t bytes;
} area;

struct ps_operands {
    uint64_t cold_bytes;
    const ps_model *given;
    float *normals; /* [NORMALS], standard */
    uint64_t rng;
    ps_model model;
    ps_layer layer;
    area weights, acts, kv, misc, scratch;
    ps_dtype weights_type; /* what `weights` is filled with */
    uint64_t n_fills;
    uint64_t weights_used, weights_filled,
        weights_made;               /* bytes: of this point; with content; of them unique */
    uint64_t kv_filled, n_kv_fills; /* bytes of `kv` that hold random numbers; times that they changed */
    /* Where the calls of the points before ended, in weights and KV: what lies behind was read longest ago. */
    uint64_t weights_at, kv_at;
    uint64_t first_weight, first_kv; /* of call 0 */
    void (*moving)(void *ctx, uint8_t *data);
    void *moving_ctx;
    ps_kargs args; /* of call 0 */
    uint64_t weight_stride, n_weights;
    uint64_t weight_offset[PS_OP_MAX_WEIGHTS]; /* of each operand in a copy */
    uint64_t src_stride, dst_stride, kv_stride;
    uint32_t n_srcs, n_dsts, n_kvs;
    uint64_t kv_v_offset;
    uint32_t kv_rows, pos0;
    uint64_t misc_stride; /* token ids */
    uint32_t n_ids;       /* sets of them */
    ps_sampler **samplers;
    uint32_t n_samplers;
};

static uint64_t next_u64(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void free_samplers(ps_operands *o) {
    for (uint32_t i = 0; i < o->n_samplers; i++)
        ps_sampler_free(o->samplers[i]);
    free(o->samplers);
    o->samplers = NULL;
    o->n_samplers = 0;
}

static void area_free(area *a) {
    if (a->data)
        munmap(a->data, a->bytes);
    *a = (area){0};
}

/* At least `bytes`, zeroed when new. Small pages for weights, which a run reads through a file mapping; large ones for all
 * else, as in the runtime's arena: which lines of a cache small ones share is another matter in every process. */
static ps_status area_need(area *a, uint64_t bytes, bool large, ps_error *err) {
    if (bytes == 0)
        bytes = 1;
    if (large)
        bytes = (bytes + large_page_bytes - 1) / large_page_bytes * large_page_bytes;
    if (a->bytes >= bytes)
        return PS_OK;
    area_free(a);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return ps_error_set(err, PS_E_NOMEM, "operands", "no memory for %llu bytes",
                            (unsigned long long)bytes);
#ifdef MADV_NOHUGEPAGE
    madvise(p, bytes, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); /* only advice: not every system has both */
#endif
    *a = (area){.data = p, .bytes = bytes};
    return PS_OK;
}

static void weights_move(ps_operands *o) {
    if (o->moving && o->weights.data)
        o->moving(o->moving_ctx, o->weights.data);
}

void ps_operands_watch(ps_operands *o, void (*moving)(void *ctx, uint8_t *data), void *ctx) {
    o->moving = moving;
    o->moving_ctx = ctx;
}

ps_status ps_operands_new(uint64_t cold_bytes, const ps_model *model, ps_operands **out, ps_error *err) {
    ps_operands *o = calloc(1, sizeof *o);
    *out = o;
    if (o)
        o->normals = malloc(NORMALS * sizeof *o->normals);
    if (!o || !o->normals) {
        ps_operands_free(o);
        *out = NULL;
        return ps_error_set(err, PS_E_NOMEM, "operands", "no memory for random numbers");
    }
    o->cold_bytes = cold_bytes;
    o->given = model;
    o->rng = 1;
    o->weights_type = PS_DTYPE_NONE;
    for (uint32_t i = 0; i < NORMALS; i++) {
        const double u = ((double)(next_u64(&o->rng) >> 12) + 0.5) / 4503599627370496.0;
        const double v = ((double)(next_u64(&o->rng) >> 12) + 0.5) / 4503599627370496.0;
        o->normals[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
    return PS_OK;
}

void ps_operands_free(ps_operands *o) {
    if (!o)
        return;
    free_samplers(o);
    weights_move(o);
    area_free(&o->weights);
    area_free(&o->acts);
    area_free(&o->kv);
    area_free(&o->misc);
    area_free(&o->scratch);
    free(o->normals);
    free(o);
}

static uint64_t up64(uint64_t v) {
    return (v + 63) & ~(uint64_t)63;
}

/* Smallest step at which a tensor may start: whole blocks, aligned as in a file. */
static uint64_t weight_step(const ps_dtype_info *t) {
    uint64_t step = t->block_bytes;
    while (step % 32 != 0)
        step += t->block_bytes;
    return step;
}

/* The unique stretch, from the beginning. */
static ps_status make_weights(ps_operands *o, ps_dtype type, ps_error *err) {
    const ps_dtype_info *info = ps_dtype_find(type);
    const uint64_t step = weight_step(info);
    uint64_t bytes = unique_weight_bytes / step * step;
    if (bytes > o->weights.bytes)
        bytes = o->weights.bytes / step * step;
    const uint64_t block = 256; /* elements, a multiple of every type's block */
    float *values = malloc(block * sizeof *values);
    if (!values)
        return ps_error_set(err, PS_E_NOMEM, "operands", "no memory for random weights");
    const uint64_t chunk = block / info->block_elems * info->block_bytes;
    for (uint64_t at = 0; at + chunk <= bytes; at += chunk) {
        for (uint64_t i = 0; i < block; i++)
            values[i] = 0.02f * o->normals[next_u64(&o->rng) % NORMALS];
        ps_quantize_row(type, values, o->weights.data + at, block);
    }
    free(values);
    o->weights_made = o->weights_filled = bytes / chunk * chunk; /* whole chunks are whole blocks */
    o->weights_type = type;
    o->weights_at = 0; /* written from the beginning */
    o->n_fills++;
    return PS_OK;
}

/* Fill what is used with blocks of random weights: a stretch is made, the rest copies it. */
static ps_status fill_weights(ps_operands *o, ps_dtype type, ps_error *err) {
    if (o->weights_type != type) {
        ps_status st = make_weights(o, type, err);
        if (st != PS_OK)
            return st;
    }
    const uint64_t made = o->weights_made;
    for (uint64_t at = o->weights_filled; at < o->weights_used; at = o->weights_filled) {
        const uint64_t left = o->weights_used - at, n = made - at % made;
        memcpy(o->weights.data + at, o->weights.data + at % made, left < n ? left : n);
        o->weights_filled += left < n ? left : n;
    }
    return PS_OK;
}

/* In pieces of any length; the scale of F16S is the whole row's. */
static ps_status fill_act(ps_operands *o, const ps_xarg *x, uint64_t n_rows, ps_error *err) {
    const uint64_t piece = x->fmt == PS_FMT_F16S ? x->cols : 256;
    double *row = malloc(piece * sizeof *row);
    if (!row)
        return ps_error_set(err, PS_E_NOMEM, "operands", "no memory for a row");
    for (uint64_t t = 0; t < n_rows; t++) {
        uint8_t *to = (uint8_t *)x->data + t * x->row_bytes;
        if (t >= UNIQUE_ROWS) {
            memcpy(to, (uint8_t *)x->data + t % UNIQUE_ROWS * x->row_bytes, x->row_bytes);
            continue;
        }
        for (uint64_t c = 0; c < x->cols; c += piece) {
            const uint64_t n = x->cols - c < piece ? x->cols - c : piece;
            const uint64_t from = next_u64(&o->rng) % NORMALS;
            for (uint64_t i = 0; i < n; i++)
                row[i] = (double)o->normals[(from + i) % NORMALS];
            ps_ref_store(x, t, c, n, row);
        }
    }
    free(row);
    return PS_OK;
}

/* Distinct random experts with weights that sum to 1. */
static void fill_selection(ps_operands *o, const ps_xarg *x, uint64_t n_rows, uint32_t n_expert) {
    for (uint64_t t = 0; t < n_rows; t++) {
        uint8_t *row = (uint8_t *)x->data + t * x->row_bytes;
        const float weight = 1.0f / (float)x->cols;
        for (uint64_t k = 0; k < x->cols; k++) {
            int32_t e;
            bool taken;
            do {
                e = (int32_t)(next_u64(&o->rng) % n_expert);
                taken = false;
                for (uint64_t j = 0; j < k && !taken; j++) {
                    int32_t other;
                    memcpy(&other, row + 8 * j, sizeof other);
                    taken = other == e;
                }
            } while (taken);
            memcpy(row + 8 * k, &e, sizeof e);
            memcpy(row + 8 * k + 4, &weight, sizeof weight);
        }
    }
}

/* What an operation takes, from its kernel and point. */
typedef struct layout {
    uint64_t w_rows[PS_OP_MAX_WEIGHTS], w_cols[PS_OP_MAX_WEIGHTS], w_experts; /* rows 0: none */
    uint64_t src_cols[PS_OP_MAX_SRC];                                         /* 0: none */
    ps_fmt src_fmt[PS_OP_MAX_SRC];
    uint64_t dst_cols;
    uint64_t kv_row; /* elements of a K or V row; 0: no KV */
} layout;

static bool lay_out(const ps_operands *o, const ps_kernel_spec *k, const ps_profile_point *p, layout *l) {
    *l = (layout){.w_experts = 1, .src_cols = {p->cols}, .dst_cols = p->cols};
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        l->src_fmt[i] = k->in_fmt;
    switch (k->op) {
    case PS_OP_EMBED:
        l->src_cols[0] = 0;
        l->w_cols[0] = p->cols;
        return true; /* rows: as many as fit in the cold memory */
    case PS_OP_RMSNORM:
        l->w_rows[0] = 1;
        l->w_cols[0] = p->cols;
        return true;
    case PS_OP_MATMUL:
        l->w_rows[0] = p->rows;
        l->w_cols[0] = p->cols;
        l->dst_cols = p->rows;
        return true;
    case PS_OP_ROPE:
        if (k->wtype != PS_DTYPE_NONE) {
            l->w_rows[0] = 1;
            l->w_cols[0] = o->layer.head_dim_k / 2;
        }
        return true;
    case PS_OP_CONVERT:
    case PS_OP_GATHER:
        return true;
    case PS_OP_KV_STORE:
        l->src_cols[1] = p->cols;
        l->dst_cols = 0;
        l->kv_row = p->cols;
        return true;
    case PS_OP_ATTENTION:
        l->src_cols[0] = l->dst_cols = p->rows * p->cols;
        l->kv_row = p->heads_kv * p->cols;
        return true;
    case PS_OP_GLU:
    case PS_OP_ADD:
        l->src_cols[1] = p->cols;
        return true;
    case PS_OP_MOE_ROUTE:
        l->dst_cols = p->kv_len;
        return true;
    case PS_OP_MOE_DISPATCH:
        l->w_rows[0] = l->w_rows[1] = l->w_cols[2] = p->rows;
        l->w_cols[0] = l->w_cols[1] = l->w_rows[2] = p->cols;
        l->w_experts = p->heads_kv;
        l->src_cols[1] = p->kv_len;
        l->src_fmt[1] = PS_FMT_SEL;
        return true;
    case PS_OP_SAMPLE:
        l->dst_cols = 1;
        return true;
    case PS_OP_COPY:
    case PS_OP_COUNT:
        break;
    }
    return false;
}

/* A model and layer with the conventions of the given one, or of a Llama. */
static void set_model(ps_operands *o, const ps_kernel_spec *k, const ps_profile_point *p) {
    const ps_model *g = o->given;
    uint32_t head = g ? g->layers[0].head_dim_k : HEAD_DIM;
    while (head > 2 && p->cols % head != 0)
        head /= 2;
    o->model = (ps_model){.n_layers = 1,
                          .n_embd = (uint32_t)p->cols,
                          .n_vocab = (uint32_t)p->cols,
                          .n_ctx_train = 1u << 20,
                          .norm_eps = g ? g->norm_eps : 1e-5f,
                          .embed_scale = g ? g->embed_scale : 1,
                          .glu = g ? g->glu : PS_GLU_SILU,
                          .rope_style = g ? g->rope_style : PS_ROPE_NORMAL,
                          .moe_norm_topk = g ? g->moe_norm_topk : true,
                          .layers = &o->layer};
    o->layer = (ps_layer){.n_head = (uint32_t)(p->cols / head),
                          .n_head_kv = (uint32_t)(p->cols / head),
                          .head_dim_k = head,
                          .head_dim_v = head,
                          .rope_dims = head,
                          .rope_base = g ? g->layers[0].rope_base : 10000,
                          .rope_scale = 1,
                          .attn_scale = 1.0f / sqrtf((float)head)};
    if (k->op == PS_OP_ATTENTION) {
        o->layer.n_head = (uint32_t)p->rows;
        o->layer.n_head_kv = p->heads_kv;
        o->layer.head_dim_k = o->layer.head_dim_v = (uint32_t)p->cols;
        o->layer.attn_scale = 1.0f / sqrtf((float)p->cols);
    }
    if (k->op == PS_OP_MOE_DISPATCH || k->op == PS_OP_MOE_ROUTE) {
        o->layer.n_expert = p->heads_kv;
        o->layer.n_expert_used = (uint32_t)p->kv_len;
        o->layer.n_ff_expert = (uint32_t)p->rows;
    }
}

static ps_status set_weights(ps_operands *o, const ps_kernel_spec *k, layout *l, ps_error *err) {
    o->n_weights = 1;
    o->weight_stride = o->weights_used = 0;
    if (k->wtype == PS_DTYPE_NONE || k->op == PS_OP_ROPE) /* rope's factors are not random: set_misc */
        return PS_OK;
    const ps_dtype_info *info = ps_dtype_find(k->wtype);
    const uint64_t step = weight_step(info);
    uint64_t row_bytes;
    if (k->op == PS_OP_EMBED) {
        if (!ps_dtype_bytes(k->wtype, l->w_cols[0], &row_bytes))
            return ps_error_set(err, PS_E_UNSUPPORTED, k->name, "rows of %llu elements are no whole blocks",
                                (unsigned long long)l->w_cols[0]);
        l->w_rows[0] = o->cold_bytes / row_bytes + 1;
    }
    uint64_t total = 0;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++) {
        uint64_t bytes;
        if (l->w_rows[i] == 0)
            continue;
        if (!ps_dtype_bytes(k->wtype, l->w_cols[i], &row_bytes) ||
            !ps_mul_u64(row_bytes, l->w_rows[i], &bytes) || !ps_mul_u64(bytes, l->w_experts, &bytes) ||
            bytes > UINT64_MAX / 8)
            return ps_error_set(err, PS_E_UNSUPPORTED, k->name, "rows of %llu elements are no whole blocks",
                                (unsigned long long)l->w_cols[i]);
        o->weight_offset[i] = total;
        total += (bytes + step - 1) / step * step;
        o->args.w[i] = (ps_warg){.type = k->wtype,
                                 .cols = l->w_cols[i],
                                 .rows = l->w_rows[i],
                                 .experts = l->w_experts,
                                 .row_bytes = row_bytes};
    }
    if (total == 0)
        return PS_OK;
    const uint64_t bytes = total > o->cold_bytes ? total : o->cold_bytes;
    if (o->weights.bytes < bytes) {
        o->weights_type = PS_DTYPE_NONE;
        weights_move(o);
    }
    ps_status st = area_need(&o->weights, bytes, false, err);
    o->weights_used = bytes;
    if (st == PS_OK)
        st = fill_weights(o, k->wtype, err);
    if (st != PS_OK)
        return st;
    o->weight_stride = total;
    o->n_weights = bytes / total;
    o->first_weight = (o->weights_at + total - 1) / total % o->n_weights;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        if (o->args.w[i].rows)
            o->args.w[i].data = o->weights.data + o->weight_offset[i];
    return PS_OK;
}

/* Sets of a mixture's sources: selections of experts differ from call to call, often enough that what they read is cold. */
static uint32_t selections(const ps_operands *o, const ps_profile_point *p, uint64_t src_bytes) {
    const double used = (double)p->kv_len / p->heads_kv * p->n_tokens;
    const uint64_t read = (uint64_t)((double)o->weight_stride * (used < 1 ? used : 1)) + 1;
    uint64_t n = o->cold_bytes / read + 1;
    n = n < MAX_SELECTION_ROWS / p->n_tokens ? n : MAX_SELECTION_ROWS / p->n_tokens;
    n = n < MAX_SETS ? MAX_SETS : n;
    n = n < dst_cold_bytes / src_bytes ? n : dst_cold_bytes / src_bytes;
    if (n > 1 && n % 2 == 0)
        n--; /* not in step with the copies of the weights */
    return n < 1 ? 1 : (uint32_t)n;
}

/* Sources are what the instruction before has just written: one set, warm. Results go where a whole layer has been
 * written since: sets in turn. */
static ps_status set_activations(ps_operands *o, const ps_kernel_spec *k, const ps_profile_point *p,
                                 const layout *l, ps_error *err) {
    uint64_t src_bytes = 0, dst_bytes = 0, offset[PS_OP_MAX_SRC];
    for (int i = 0; i < PS_OP_MAX_SRC; i++) {
        offset[i] = src_bytes;
        if (l->src_cols[i] == 0)
            continue;
        ps_xarg *x = &o->args.src[i];
        *x = (ps_xarg){.fmt = l->src_fmt[i],
                       .cols = l->src_cols[i],
                       .row_bytes = ps_fmt_row_bytes(l->src_fmt[i], l->src_cols[i])};
        src_bytes += up64(x->row_bytes * p->n_tokens);
    }
    if (l->dst_cols) {
        o->args.dst = (ps_xarg){
            .fmt = k->out_fmt, .cols = l->dst_cols, .row_bytes = ps_fmt_row_bytes(k->out_fmt, l->dst_cols)};
        dst_bytes = up64(o->args.dst.row_bytes * p->n_tokens);
    }
    const uint64_t fit = dst_bytes ? dst_cold_bytes / dst_bytes : 1;
    o->n_dsts = (uint32_t)(fit < 1 ? 1 : fit > MAX_SETS ? MAX_SETS : fit);
    o->n_srcs = k->op == PS_OP_MOE_DISPATCH ? selections(o, p, src_bytes) : 1;
    o->src_stride = src_bytes;
    o->dst_stride = dst_bytes;
    ps_status st = area_need(&o->acts, src_bytes * o->n_srcs + dst_bytes * o->n_dsts, true, err);
    if (st != PS_OK)
        return st;
    for (int i = 0; i < PS_OP_MAX_SRC; i++) {
        ps_xarg *x = &o->args.src[i];
        if (x->cols == 0)
            continue;
        x->data = o->acts.data + offset[i];
        for (uint32_t s = 0; s < o->n_srcs; s++) {
            ps_xarg in_set = *x;
            in_set.data = o->acts.data + s * src_bytes + offset[i];
            if (x->fmt == PS_FMT_SEL)
                fill_selection(o, &in_set, p->n_tokens, p->heads_kv);
            else
                st = fill_act(o, &in_set, p->n_tokens, err);
            if (st != PS_OK)
                return st;
        }
    }
    if (dst_bytes)
        o->args.dst.data = o->acts.data + src_bytes * o->n_srcs;
    return PS_OK;
}

static ps_status set_kv(ps_operands *o, const ps_kernel_spec *k, const ps_profile_point *p, const layout *l,
                        ps_error *err) {
    o->n_kvs = 1;
    o->kv_stride = 0;
    if (l->kv_row == 0)
        return PS_OK;
    const uint64_t rows = k->op == PS_OP_KV_STORE ? p->n_tokens : p->kv_len;
    if (rows < p->n_tokens || rows > UINT32_MAX)
        return ps_error_set(err, PS_E_INTERNAL, k->name, "%u tokens do not fit in %llu KV rows", p->n_tokens,
                            (unsigned long long)rows);
    const uint64_t plane = up64(rows * l->kv_row * 2);
    /* Few tokens: the whole model has been read since a layer's cache was last used. Many: what they attend to they have
     * just stored, as many caches as layers. */
    const bool few = p->n_tokens < WARM_KV_TOKENS;
    const uint64_t cold = o->cold_bytes / 2; /* weights are read in between */
    const uint64_t room = few || cold < kv_warm_bytes ? cold : kv_warm_bytes;
    const uint64_t wanted = few ? MAX_KVS : o->given ? o->given->n_layers : 32, fit = room / (2 * plane);
    o->n_kvs = (uint32_t)(fit < wanted ? (fit ? fit : 1) : wanted);
    o->kv_stride = 2 * plane;
    o->kv_v_offset = plane;
    o->kv_rows = (uint32_t)rows;
    o->pos0 = (uint32_t)(rows - p->n_tokens);
    const uint64_t bytes = o->kv_stride * o->n_kvs;
    if (o->kv.bytes < bytes)
        o->kv_filled = o->kv_at = 0;
    /* All that any point of few tokens may want, so that it is filled once. */
    ps_status st = area_need(&o->kv, few && bytes < room ? room : bytes, true, err);
    if (st != PS_OK)
        return st;
    o->first_kv = few ? (o->kv_at + o->kv_stride - 1) / o->kv_stride % o->n_kvs : 0;
    /* Any cache will do, whatever its shape was: only what was never used is filled. */
    o->n_kv_fills += o->kv_filled == 0;
    uint16_t table[NORMALS];
    for (uint32_t i = 0; i < NORMALS; i++)
        table[i] = ps_f32_to_f16(o->normals[i]);
    for (uint64_t at = o->kv_filled; at < bytes; at += sizeof table)
        memcpy(o->kv.data + at, table, bytes - at < sizeof table ? bytes - at : sizeof table);
    o->kv_filled = bytes > o->kv_filled ? bytes : o->kv_filled;
    return PS_OK;
}

/* Token ids, positions, output rows, samplers. */
static ps_status set_misc(ps_operands *o, const ps_kernel_spec *k, const ps_profile_point *p, const layout *l,
                          ps_error *err) {
    const uint64_t n = p->n_tokens;
    o->misc_stride = up64(n * 4);
    o->n_ids = MAX_SETS;
    if (k->op == PS_OP_EMBED) { /* rows are found in the cold memory anew each time */
        const uint64_t sets = o->cold_bytes / (l->w_rows[0] ? n * o->args.w[0].row_bytes : 1);
        o->n_ids = sets < MAX_SETS ? MAX_SETS : sets < MAX_ID_SETS ? (uint32_t)sets : MAX_ID_SETS;
    }
    const uint64_t factors = l->w_rows[0] && k->op == PS_OP_ROPE ? l->w_cols[0] : 0;
    ps_status st = area_need(&o->misc, o->misc_stride * (o->n_ids + 1) + factors * sizeof(float), true, err);
    if (st != PS_OK)
        return st;
    if (factors) {
        float *f = (float *)(void *)(o->misc.data + o->misc_stride * (o->n_ids + 1));
        for (uint64_t i = 0; i < factors; i++)
            f[i] = 1 + 7 * (float)i / (float)factors; /* divisors as in Llama 3: 1 to 8 */
        o->args.w[0] = (ps_warg){.data = (const uint8_t *)f,
                                 .type = PS_DTYPE_F32,
                                 .cols = factors,
                                 .rows = 1,
                                 .experts = 1,
                                 .row_bytes = factors * sizeof(float)};
    }
    uint32_t *rows = (uint32_t *)(void *)(o->misc.data + o->misc_stride * o->n_ids);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = i;
    o->args.positions = o->args.outputs = rows;
    if (k->op == PS_OP_EMBED)
        for (uint32_t s = 0; s < o->n_ids; s++) {
            int32_t *ids = (int32_t *)(void *)(o->misc.data + o->misc_stride * s);
            for (uint64_t i = 0; i < n; i++)
                ids[i] = (int32_t)(next_u64(&o->rng) % l->w_rows[0]);
        }
    o->args.tokens = (const int32_t *)(const void *)o->misc.data;
    if (k->op != PS_OP_SAMPLE)
        return PS_OK;
    o->samplers = calloc(n, sizeof(ps_sampler *));
    if (!o->samplers)
        return ps_error_set(err, PS_E_NOMEM, k->name, "no memory for %llu samplers", (unsigned long long)n);
    const ps_sampler_params params = {.temperature = 0, .top_p = 1, .seed = 1};
    for (; o->n_samplers < n; o->n_samplers++) {
        st = ps_sampler_new(&params, (uint32_t)p->cols, &o->samplers[o->n_samplers], err);
        if (st != PS_OK)
            return st;
    }
    o->args.samplers = o->samplers;
    return PS_OK;
}

ps_status ps_operands_set(ps_operands *o, const ps_kernel *kernel, const ps_profile_point *point,
                          ps_error *err) {
    const ps_kernel_spec *k = &kernel->spec;
    layout l;
    free_samplers(o);
    set_model(o, k, point);
    if (point->n_tokens == 0 || !lay_out(o, k, point, &l))
        return ps_error_set(err, PS_E_UNSUPPORTED, k->name, "there are no operands for it at this point");
    o->args = (ps_kargs){.model = &o->model, .layer = &o->layer, .n_tokens = point->n_tokens};
    ps_status st = set_weights(o, k, &l, err);
    if (st == PS_OK)
        st = set_activations(o, k, point, &l, err);
    if (st == PS_OK)
        st = set_kv(o, k, point, &l, err);
    if (st == PS_OK)
        st = set_misc(o, k, point, &l, err);
    if (st != PS_OK)
        return st;
    uint64_t cols = o->args.dst.cols;
    for (int i = 0; i < PS_OP_MAX_SRC; i++)
        cols = o->args.src[i].cols > cols ? o->args.src[i].cols : cols;
    for (int i = 0; i < PS_OP_MAX_WEIGHTS; i++)
        cols = o->args.w[i].cols > cols ? o->args.w[i].cols : cols;
    const uint64_t scratch =
        ps_scratch_bytes(&k->scratch, point->n_tokens, cols, point->n_threads, point->kv_len);
    if (scratch > UINT64_MAX / 2)
        return ps_error_set(err, PS_E_NOMEM, k->name, "scratch of %llu bytes", (unsigned long long)scratch);
    st = area_need(&o->scratch, scratch, true, err);
    o->args.scratch = o->scratch.data;
    o->args.n_threads = point->n_threads;
    o->args.n_rows = k->op == PS_OP_MATMUL         ? point->rows
                     : k->op == PS_OP_ATTENTION    ? point->heads_kv
                     : k->op == PS_OP_MOE_DISPATCH ? point->heads_kv
                                                   : 0;
    return st;
}

void ps_operands_areas(const ps_operands *o, ps_operand_area out[PS_OPERAND_AREAS]) {
    const area *areas[PS_OPERAND_AREAS] = {&o->weights, &o->acts, &o->kv, &o->misc, &o->scratch};
    for (int i = 0; i < PS_OPERAND_AREAS; i++)
        out[i] = (ps_operand_area){.data = areas[i]->data,
                                   .bytes = areas[i]->bytes,
                                   .inputs = areas[i]->bytes,
                                   .room = areas[i]->bytes};
    out[PS_OPERAND_WEIGHTS].inputs = out[PS_OPERAND_WEIGHTS].bytes = o->weights_used;
    out[PS_OPERAND_WEIGHTS].version = o->n_fills;
    out[PS_OPERAND_ACTS].inputs = o->src_stride * o->n_srcs;
    out[PS_OPERAND_ACTS].bytes = o->src_stride * o->n_srcs + o->dst_stride * o->n_dsts;
    out[PS_OPERAND_KV].inputs = out[PS_OPERAND_KV].bytes = o->kv_stride * o->n_kvs;
    out[PS_OPERAND_KV].version = o->n_kv_fills;
    out[PS_OPERAND_SCRATCH].inputs = 0;
}

void ps_operands_args(const ps_operands *o, uint64_t i, ps_kargs *a, ps_seq_span *span) {
    *a = o->args;
    const uint64_t weights = (o->first_weight + i) % o->n_weights * o->weight_stride;
    for (int w = 0; w < PS_OP_MAX_WEIGHTS; w++)
        if (a->w[w].data)
            a->w[w].data += weights;
    for (int s = 0; s < PS_OP_MAX_SRC; s++)
        if (a->src[s].data)
            a->src[s].data = (uint8_t *)a->src[s].data + i % o->n_srcs * o->src_stride;
    if (a->dst.data)
        a->dst.data = (uint8_t *)a->dst.data + i % o->n_dsts * o->dst_stride;
    a->tokens = (const int32_t *)(const void *)(o->misc.data + i % o->n_ids * o->misc_stride);
    if (o->kv_stride) {
        uint8_t *k = o->kv.data + (o->first_kv + i) % o->n_kvs * o->kv_stride;
        *span = (ps_seq_span){.n_rows = a->n_tokens,
                              .pos0 = o->pos0,
                              .kv_rows = o->kv_rows,
                              .k = (uint16_t *)(void *)k,
                              .v = (uint16_t *)(void *)(k + o->kv_v_offset)};
        a->spans = span;
        a->n_spans = 1;
    }
}

void ps_operands_used(ps_operands *o, uint64_t n_calls) {
    if (o->n_weights > 0 && o->weight_stride > 0)
        o->weights_at = (o->first_weight + n_calls) % o->n_weights * o->weight_stride;
    if (o->n_kvs > 1 && o->args.n_tokens < WARM_KV_TOKENS)
        o->kv_at = (o->first_kv + n_calls) % o->n_kvs * o->kv_stride;
}

/* A small shape of each operation that still has several items, blocks and heads. */
static ps_profile_point small_point(const ps_kernel_spec *k, uint32_t n_threads) {
    ps_profile_point p = {.kernel = k->id, .cols = 512, .n_threads = n_threads};
    p.n_tokens = k->min_tokens > 3 ? k->min_tokens : k->max_tokens < 3 ? k->max_tokens : 3;
    switch (k->op) {
    case PS_OP_MATMUL:
        p.rows = 72;
        break;
    case PS_OP_ATTENTION:
        p.rows = 6;
        p.cols = 64;
        p.heads_kv = 2;
        p.kv_len = p.n_tokens + 70;
        break;
    case PS_OP_MOE_DISPATCH:
        p.rows = 256;
        p.heads_kv = 6;
        p.kv_len = 2;
        break;
    case PS_OP_MOE_ROUTE:
        p.cols = p.heads_kv = 16;
        p.kv_len = 4;
        break;
    default:
        break;
    }
    return p;
}

/* ||out - ref|| / ||ref|| over rows of an activation, or over halfs. */
static double difference(const ps_xarg *out, const ps_xarg *ref, uint64_t n_rows) {
    double diff = 0, norm = 0, a[256], b[256];
    for (uint64_t t = 0; t < n_rows; t++)
        for (uint64_t c = 0; c < out->cols; c += 256) {
            const uint64_t n = out->cols - c < 256 ? out->cols - c : 256;
            ps_ref_load(out, t, c, n, a);
            ps_ref_load(ref, t, c, n, b);
            for (uint64_t i = 0; i < n; i++) {
                diff += (a[i] - b[i]) * (a[i] - b[i]);
                norm += b[i] * b[i];
            }
        }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

ps_status ps_operands_verify(ps_operands *o, const ps_kernel *kernel, uint32_t n_threads,
                             void (*run)(void *ctx, const ps_kernel *kernel), void *ctx, ps_error *err) {
    const ps_kernel_spec *k = &kernel->spec;
    const ps_profile_point p = small_point(k, n_threads);
    ps_kargs a;
    ps_seq_span span;
    double off = 0;
    uint8_t *copy = NULL;
    /* The whole cold memory is filled later, when times are taken. */
    const uint64_t cold = o->cold_bytes;
    if (o->weights.bytes == 0)
        o->cold_bytes = unique_weight_bytes;
    o->kv_at = 0; /* what is stored is looked for in the first cache */
    ps_status st = ps_operands_set(o, kernel, &p, err);
    o->cold_bytes = cold;
    if (st != PS_OK)
        return st;
    run(ctx, kernel);
    ps_operands_args(o, 0, &a, &span);
    const uint64_t bytes = k->op == PS_OP_KV_STORE ? o->kv_stride : a.dst.row_bytes * p.n_tokens;
    copy = calloc(1, bytes ? bytes : 1);
    if (!copy)
        return ps_error_set(err, PS_E_NOMEM, k->name, "no memory to verify it");
    if (k->op == PS_OP_KV_STORE) {
        const ps_xarg out = {.data = o->kv.data, .fmt = PS_FMT_F16, .cols = p.cols, .row_bytes = p.cols * 2};
        memcpy(copy, o->kv.data, bytes); /* what the kernel stored */
        const ps_xarg got = {.data = copy, .fmt = PS_FMT_F16, .cols = p.cols, .row_bytes = p.cols * 2};
        memset(o->kv.data, 0, bytes);
        st = ps_ref_run(k->op, &a, err);
        off = difference(&got, &out, 2 * (uint64_t)p.n_tokens); /* both planes, which need no padding here */
    } else {
        ps_xarg got = a.dst;
        a.dst.data = copy;
        st = ps_ref_run(k->op, &a, err);
        off = difference(&got, &a.dst, p.n_tokens);
    }
    o->n_kv_fills += o->kv_stride != 0; /* it holds what was stored, which is as good as random */
    free(copy);
    if (st == PS_OK && !(off <= (double)kernel->tolerance))
        st = ps_error_set(err, PS_E_INTERNAL, k->name,
                          "differs from the reference by %.3g, more than its tolerance %.3g: not timed", off,
                          (double)kernel->tolerance);
    return st;
}
