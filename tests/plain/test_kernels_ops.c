/* Sweep over the registry's CPU kernels other than matrix products: every row at every level this machine
 * has, against the double-precision reference, on one table of cases. Outputs are poisoned first, every buffer
 * ends at a page that may not be touched, and items are run in one go, one by one backwards and as if by
 * several threads: the bits must be the same. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/kernel.h"
#include "kernels/moe_rule.h"

/* What fills the sources. */
typedef enum fill { RANDOM, HUGE_VALUES, TINY_VALUES, ZERO_ROWS, EQUAL, OUTLIERS, N_FILLS } fill;
static const char *const fill_names[] = {"random", "huge", "tiny", "zero rows", "equal", "outliers"};

/* One case: T tokens, and the shape that the operation reads from it. */
typedef struct shape {
    uint32_t tokens, cols; /* cols: row length of the row operations */
    uint32_t group;        /* RMSNORM: length of the weight; 0: cols */
    uint32_t n_head, n_kv, dk, dv, window, rope_dims;
    uint32_t kv_rows; /* 0: as many as positions */
    uint32_t pos0, n_spans;
    uint32_t experts, used;
    bool residual;
    uint32_t ff, expert0, n_experts; /* MOE_DISPATCH: hidden width, range of experts */
    ps_dtype down;                   /* type of the down matrices; F32 (0) here means that of the others */
    ps_moe_part part;
    uint32_t direct;
    bool resident, tables, holes; /* every third expert resident; addresses one by one; negative selections */
} shape;

static uint64_t rng = 1;
static uint32_t rnd(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33);
}
static float uniform(void) {
    return (float)rnd() / 1073741824.0f - 1.0f;
}

/* Memory that ends at a forbidden page. All of a case is given back together. */
static struct {
    void *map;
    size_t size;
} maps[512];
static int n_maps;

static void *guarded(uint64_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bytes = (bytes + 63) / 64 * 64; /* all buffers are made of 64-byte lines */
    const size_t body = (bytes + page - 1) / page * page;
    uint8_t *map = mmap(NULL, body + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + body, page, PROT_NONE) != 0 || n_maps == 512) {
        fprintf(stderr, "cannot map %" PRIu64 " bytes\n", bytes);
        exit(71);
    }
    maps[n_maps].map = map;
    maps[n_maps++].size = body + page;
    return map + body - bytes;
}

static void release(void) {
    while (n_maps)
        n_maps--, munmap(maps[n_maps].map, maps[n_maps].size);
}

static ps_xarg new_act(ps_fmt fmt, uint64_t cols, uint64_t rows) {
    ps_xarg x = {.fmt = fmt, .cols = cols, .row_bytes = ps_fmt_row_bytes(fmt, cols)};
    x.data = guarded(x.row_bytes * rows);
    memset(x.data, 0xA5, x.row_bytes * rows);
    return x;
}

static void fill_act(const ps_xarg *x, uint64_t rows, fill how) {
    for (uint64_t t = 0; t < rows; t++) {
        float *row = (float *)(void *)((uint8_t *)x->data + t * x->row_bytes);
        for (uint64_t i = 0; i < x->cols; i++) {
            float v = uniform();
            if (how == HUGE_VALUES)
                v *= 1e18f;
            else if (how == TINY_VALUES)
                v *= 1e-24f;
            else if (how == ZERO_ROWS && t % 2 == 0)
                v = 0;
            else if (how == EQUAL)
                v = 0.75f;
            else if (how == OUTLIERS && rnd() % 37 == 0)
                v *= 3000;
            row[i] = v;
        }
    }
}

/* A case made concrete. */
typedef struct instance {
    ps_model model;
    ps_layer layer;
    ps_kargs a;
    ps_seq_span spans[4], ref_spans[4];
    int32_t tokens[128];
    uint32_t positions[128], outputs[128];
    ps_sampler *samplers[128];
    uint32_t resident[PS_MOE_WORDS];
    const uint8_t *experts[3][64];
    uint64_t out_rows;
} instance;

static ps_warg new_experts(ps_dtype type, uint64_t cols, uint64_t rows, uint64_t experts) {
    ps_warg w = {.type = type, .cols = cols, .rows = rows, .experts = experts};
    ps_dtype_bytes(type, cols, &w.row_bytes);
    uint8_t *data = guarded(w.row_bytes * rows * experts);
    float *f = calloc(cols, sizeof *f);
    if (!f)
        exit(71);
    for (uint64_t r = 0; r < rows * experts; r++) {
        for (uint64_t i = 0; i < cols; i++)
            f[i] = uniform() + 0.25f;
        ps_quantize_row(type, f, data + r * w.row_bytes, cols);
    }
    free(f);
    w.data = data;
    return w;
}

static ps_warg new_weight(ps_dtype type, uint64_t cols, uint64_t rows) {
    return new_experts(type, cols, rows, 1);
}

/* Selections of distinct experts, any order, positive weights. */
static ps_xarg new_selection(const shape *s) {
    const ps_xarg x = new_act(PS_FMT_SEL, s->used, s->tokens);
    for (uint32_t t = 0; t < s->tokens; t++) {
        uint8_t *row = (uint8_t *)x.data + t * x.row_bytes;
        for (uint32_t k = 0; k < s->used; k++) {
            int32_t e = (int32_t)(rnd() % s->experts), other = -1;
            for (uint32_t j = 0; j < k; j++) {
                memcpy(&other, row + 8 * j, sizeof other);
                if (other == e)
                    e = (e + 1) % (int32_t)s->experts, j = UINT32_MAX;
            }
            if (s->holes && (t + k) % 4 == 0)
                e = -1 - (int32_t)k;
            const float w = 1.25f + uniform();
            memcpy(row + 8 * k, &e, sizeof e);
            memcpy(row + 8 * k + 4, &w, sizeof w);
        }
    }
    return x;
}

/* Each expert that is taken gets memory of its own; there is no other way to them, and none to those that are not. */
static void scatter_experts(instance *n) {
    ps_kargs *a = &n->a;
    uint32_t taken[PS_MOE_WORDS];
    ps_moe_select(a, taken);
    for (int i = 0; i < 3; i++) {
        const uint64_t bytes = a->w[i].rows * a->w[i].row_bytes;
        memset(n->experts[i], 0, sizeof n->experts[i]);
        for (uint64_t e = 0; e < a->w[i].experts; e++)
            if (ps_moe_takes(taken, (int64_t)e)) {
                uint8_t *data = guarded(bytes);
                memcpy(data, a->w[i].data + e * bytes, bytes);
                n->experts[i][e] = data;
            }
        a->experts[i] = n->experts[i];
        a->w[i].data = NULL;
    }
}

static uint16_t *new_plane(uint64_t elems, bool random) {
    uint16_t *p = guarded(elems * 2);
    for (uint64_t i = 0; i < elems; i++)
        p[i] = random ? ps_f32_to_f16(uniform()) : 0x7e00; /* NaN: never to be read */
    return p;
}

static void make_spans(instance *n, const shape *s, bool filled) {
    n->a.n_spans = s->n_spans;
    uint32_t row0 = 0;
    for (uint32_t i = 0; i < s->n_spans; i++) {
        ps_seq_span *sp = &n->spans[i];
        *sp = (ps_seq_span){.row0 = row0, .n_rows = s->tokens / s->n_spans, .pos0 = s->pos0 + 7 * i};
        if (i + 1 == s->n_spans)
            sp->n_rows = s->tokens - row0;
        row0 += sp->n_rows;
        const uint32_t end = sp->pos0 + sp->n_rows;
        sp->kv_rows = s->kv_rows ? s->kv_rows : end;
        const uint64_t nk = (uint64_t)s->n_kv * s->dk, nv = (uint64_t)s->n_kv * s->dv;
        sp->k = new_plane(nk * sp->kv_rows, false);
        sp->v = new_plane(nv * sp->kv_rows, false);
        n->ref_spans[i] = *sp;
        if (!filled) {
            n->ref_spans[i].k = new_plane(nk * sp->kv_rows, false);
            n->ref_spans[i].v = new_plane(nv * sp->kv_rows, false);
            continue;
        }
        const uint32_t first = sp->pos0 + 1 > s->window && s->window ? sp->pos0 + 1 - s->window : 0;
        for (uint32_t p = first; p < end; p++) {
            for (uint64_t c = 0; c < nk; c++)
                sp->k[p % sp->kv_rows * nk + c] = ps_f32_to_f16(uniform());
            for (uint64_t c = 0; c < nv; c++)
                sp->v[p % sp->kv_rows * nv + c] = ps_f32_to_f16(uniform());
        }
    }
    n->a.spans = n->spans;
}

static void make(instance *n, const ps_kernel_spec *k, const shape *s, fill how) {
    memset(n, 0, sizeof *n);
    n->model = (ps_model){.norm_eps = 1e-5f, .embed_scale = 1.5f, .rope_style = PS_ROPE_NORMAL};
    /* Alternate what is a choice of the model, by the shape: both kinds come up in every sweep. */
    n->model.glu = s->residual ? PS_GLU_GELU_TANH : PS_GLU_SILU;
    n->model.rope_style = s->residual ? PS_ROPE_NEOX : PS_ROPE_NORMAL;
    n->model.moe_norm_topk = s->residual;
    n->layer = (ps_layer){.n_head = s->n_head,
                          .n_head_kv = s->n_kv,
                          .head_dim_k = s->dk,
                          .head_dim_v = s->dv,
                          .window = s->window,
                          .rope_dims = s->rope_dims,
                          .rope_base = 10000.0f,
                          .rope_scale = s->residual ? 0.125f : 1.0f,
                          .attn_scale = how == EQUAL ? 0.0f : 1.0f / sqrtf((float)s->dk)};
    ps_kargs *a = &n->a;
    *a = (ps_kargs){.model = &n->model, .layer = &n->layer, .n_tokens = s->tokens};
    uint64_t in_cols = s->cols, out_cols = s->cols;
    switch (k->op) {
    case PS_OP_EMBED:
        in_cols = 0;
        a->w[0] = new_weight(k->wtype, s->cols, 17);
        for (uint32_t t = 0; t < s->tokens; t++)
            n->tokens[t] = t == 0 ? 16 : (int32_t)(rnd() % 17);
        a->tokens = n->tokens;
        break;
    case PS_OP_RMSNORM:
        a->w[0] = new_weight(PS_DTYPE_F32, s->group ? s->group : s->cols, 1);
        break;
    case PS_OP_ROPE:
        in_cols = out_cols = (uint64_t)s->n_head * s->dk;
        if (k->wtype != PS_DTYPE_NONE) {
            a->w[0] = new_weight(PS_DTYPE_F32, s->rope_dims / 2, 1);
            float *f = (float *)(uintptr_t)a->w[0].data;
            for (uint32_t i = 0; i < s->rope_dims / 2; i++)
                f[i] = 1.0f + 7.0f * fabsf(f[i]);
        }
        for (uint32_t t = 0; t < s->tokens; t++)
            n->positions[t] = s->pos0 + t * 997 + (t == 1 ? 100000 : 0);
        a->positions = n->positions;
        break;
    case PS_OP_KV_STORE:
        in_cols = (uint64_t)s->n_kv * s->dk;
        make_spans(n, s, false);
        break;
    case PS_OP_ATTENTION:
        in_cols = (uint64_t)s->n_head * s->dk;
        out_cols = (uint64_t)s->n_head * s->dv;
        make_spans(n, s, true);
        a->n_rows = s->n_kv;
        break;
    case PS_OP_MOE_ROUTE:
        in_cols = s->experts;
        out_cols = s->used;
        break;
    case PS_OP_MOE_DISPATCH:
        a->w[0] = new_experts(k->wtype, s->cols, s->ff, s->experts);
        a->w[1] = new_experts(k->wtype, s->cols, s->ff, s->experts);
        a->w[2] = new_experts(s->down ? s->down : k->wtype, s->ff, s->cols, s->experts);
        a->row0 = s->expert0;
        a->n_rows = s->n_experts ? s->n_experts : s->experts;
        a->src[1] = new_selection(s);
        if (s->residual) {
            a->src[2] = new_act(PS_FMT_F32, s->cols, s->tokens);
            fill_act(&a->src[2], s->tokens, RANDOM);
        }
        a->part = s->part;
        a->max_direct = s->direct;
        if (s->resident) {
            for (uint32_t e = 0; e < s->experts; e += 3)
                n->resident[e / 32] |= 1u << e % 32;
            a->resident = n->resident;
        }
        if (s->tables)
            scatter_experts(n);
        break;
    case PS_OP_SAMPLE:
        out_cols = 1;
        for (uint32_t t = 0; t < s->tokens; t++)
            if (ps_sampler_new(&(ps_sampler_params){.top_p = 1}, (uint32_t)in_cols, &n->samplers[t], NULL))
                exit(71);
        a->samplers = n->samplers;
        break;
    default:
        break;
    }
    n->out_rows = s->tokens;
    if (in_cols) {
        const uint64_t rows = s->tokens + (k->op == PS_OP_GATHER ? 5 : 0);
        a->src[0] = new_act(PS_FMT_F32, in_cols, rows);
        fill_act(&a->src[0], rows, how);
        if (k->in_fmt == PS_FMT_Q8) {
            ps_kargs c = {
                .n_tokens = s->tokens, .src = {a->src[0]}, .dst = new_act(PS_FMT_Q8, in_cols, rows)};
            if (ps_ref_run(PS_OP_CONVERT, &c, NULL) != PS_OK)
                exit(71);
            a->src[0] = c.dst;
        }
        for (uint32_t t = 0; t < s->tokens; t++)
            n->outputs[t] = (uint32_t)(rnd() % rows);
        a->outputs = n->outputs;
    }
    const bool two = k->op == PS_OP_GLU || k->op == PS_OP_ADD || (k->op == PS_OP_RMSNORM && s->residual);
    if (two || k->op == PS_OP_KV_STORE) {
        a->src[1] = new_act(PS_FMT_F32, two ? in_cols : (uint64_t)s->n_kv * s->dv, s->tokens);
        fill_act(&a->src[1], s->tokens, how == TINY_VALUES || how == HUGE_VALUES ? RANDOM : how);
    }
    if (k->out_fmt != PS_FMT_NONE)
        a->dst = new_act(k->out_fmt, out_cols, s->tokens);
}

/* Relative distance over all rows, ||out - ref|| / ||ref||; infinite if an element is not finite where the
 * reference is. */
static double distance(const ps_xarg *out, const ps_xarg *ref, uint64_t rows) {
    double diff = 0, norm = 0;
    for (uint64_t t = 0; t < rows; t++) {
        const uint8_t *o = (const uint8_t *)out->data + t * out->row_bytes;
        const uint8_t *r = (const uint8_t *)ref->data + t * ref->row_bytes;
        for (uint64_t i = 0; i < out->cols; i++) {
            double x, y;
            if (out->fmt == PS_FMT_Q8) {
                const float *od = (const float *)(const void *)(o + ps_q8_d_offset(out->cols));
                const float *rd = (const float *)(const void *)(r + ps_q8_d_offset(out->cols));
                x = (double)od[i / 32] * (double)(int8_t)o[i];
                y = (double)rd[i / 32] * (double)(int8_t)r[i];
            } else if (out->fmt == PS_FMT_F16) {
                x = (double)ps_f16_to_f32(((const uint16_t *)(const void *)o)[i]);
                y = (double)ps_f16_to_f32(((const uint16_t *)(const void *)r)[i]);
                if (isinf(x) && x == y)
                    continue;
            } else if (out->fmt == PS_FMT_I32) {
                x = ((const int32_t *)(const void *)o)[i];
                y = ((const int32_t *)(const void *)r)[i];
            } else if (out->fmt == PS_FMT_SEL) {
                if (((const int32_t *)(const void *)o)[2 * i] != ((const int32_t *)(const void *)r)[2 * i])
                    return INFINITY;
                x = (double)((const float *)(const void *)o)[2 * i + 1];
                y = (double)((const float *)(const void *)r)[2 * i + 1];
            } else {
                x = (double)((const float *)(const void *)o)[i];
                y = (double)((const float *)(const void *)r)[i];
            }
            if (!isfinite(x) || !isfinite(y))
                return INFINITY;
            diff += (x - y) * (x - y);
            norm += y * y;
        }
    }
    return diff == 0 ? 0 : sqrt(diff / norm);
}

/* s = d * sum(q) must hold exactly as the format says, to a rounding. */
static bool q8_sums_hold(const ps_xarg *x, uint64_t rows) {
    for (uint64_t t = 0; t < rows; t++) {
        const uint8_t *row = (const uint8_t *)x->data + t * x->row_bytes;
        const float *d = (const float *)(const void *)(row + ps_q8_d_offset(x->cols));
        const float *s = (const float *)(const void *)(row + ps_q8_s_offset(x->cols));
        for (uint64_t g = 0; g < x->cols / 32; g++) {
            int sum = 0;
            for (int i = 0; i < 32; i++)
                sum += (int8_t)row[g * 32 + (uint64_t)i];
            if (fabs((double)s[g] - (double)d[g] * sum) > 1e-6 * fabs((double)s[g]))
                return false;
        }
    }
    return true;
}

static int failures, cases;

static void fail(const ps_kernel *k, ps_cpu_level level, const shape *s, fill how, const char *what,
                 double v) {
    failures++;
    if (failures < 40)
        printf("FAIL %s level %s T=%u cols=%u heads %u/%u x %u/%u window %u pos %u fill %s: %s %g\n",
               k->spec.name, ps_cpu_level_name(level), s->tokens, s->cols, s->n_head, s->n_kv, s->dk, s->dv,
               s->window, s->pos0, fill_names[how], what, v);
}

/* Bytes that a call wrote: the destination, or the caches. */
static uint64_t snapshot(const instance *n, const ps_kernel_spec *k, const shape *s, uint8_t *out) {
    uint64_t at = 0;
    if (k->op == PS_OP_KV_STORE) {
        for (uint32_t i = 0; i < n->a.n_spans; i++) {
            const uint64_t nk = 2u * n->spans[i].kv_rows * s->n_kv * s->dk,
                           nv = 2u * n->spans[i].kv_rows * s->n_kv * s->dv;
            if (out)
                memcpy(out + at, n->a.spans[i].k, nk), memcpy(out + at + nk, n->a.spans[i].v, nv);
            at += nk + nv;
        }
        return at;
    }
    if (out)
        memcpy(out, n->a.dst.data, n->a.dst.row_bytes * s->tokens);
    return n->a.dst.row_bytes * s->tokens;
}

static void poison(const instance *n, const ps_kernel_spec *k, const shape *s) {
    if (n->a.dst.data)
        memset(n->a.dst.data, 0xA5, n->a.dst.row_bytes * s->tokens);
    for (uint32_t i = 0; k->op == PS_OP_KV_STORE && i < n->a.n_spans; i++) {
        memset(n->spans[i].k, 0x7e, 2u * n->spans[i].kv_rows * s->n_kv * s->dk);
        memset(n->spans[i].v, 0x7e, 2u * n->spans[i].kv_rows * s->n_kv * s->dv);
    }
}

/* Run all items: 0 in one call; 1 one by one from the last, on the last thread; 2 dealt to three threads. */
static void run_items(const ps_cpu_variant *v, const ps_kargs *a, int how) {
    for (uint32_t phase = 0; phase < v->n_phases; phase++) {
        const uint64_t n = v->n_items(a, phase);
        if (how == 0) {
            if (n)
                v->run(a, phase, 0, n, 0);
            continue;
        }
        for (uint64_t i = 0; i < n; i++)
            v->run(a, phase, how == 1 ? n - 1 - i : i, 1,
                   how == 1 ? a->n_threads - 1 : (uint32_t)(i % a->n_threads));
    }
}

static void check(const ps_kernel *k, ps_cpu_level top, const shape *s, fill how) {
    static instance n;
    make(&n, &k->spec, s, how);
    uint64_t longest = n.a.dst.cols;
    for (int i = 0; i < 3; i++) {
        longest = n.a.src[i].cols > longest ? n.a.src[i].cols : longest;
        longest = n.a.w[i].cols > longest ? n.a.w[i].cols : longest;
    }
    const uint64_t bytes = snapshot(&n, &k->spec, s, NULL);
    uint8_t *first = malloc(bytes + 1), *again = malloc(bytes + 1);
    if (!first || !again)
        exit(71);
    /* Reference. */
    ps_kargs r = n.a;
    r.spans = n.ref_spans;
    if (r.dst.data)
        r.dst = new_act(r.dst.fmt, r.dst.cols, s->tokens);
    ps_error err;
    if (ps_ref_run(k->spec.op, &r, &err) != PS_OK) {
        fail(k, PS_CPU_GENERIC, s, how, err.message, 0);
        goto done;
    }
    for (uint32_t i = 0; i < k->n_variants; i++) {
        const ps_cpu_variant *v = &k->variants[i];
        if (v->level > top)
            continue;
        for (int split = 0; split < 3; split++) {
            n.a.n_threads = split == 0 ? 1 : 3;
            const uint64_t scratch = ps_scratch_bytes(&k->spec.scratch, s->tokens, longest, n.a.n_threads, 0);
            n.a.scratch = scratch ? guarded(scratch) : NULL;
            if (scratch)
                memset(n.a.scratch, 0xFF, scratch);
            poison(&n, &k->spec, s);
            run_items(v, &n.a, split);
            snapshot(&n, &k->spec, s, split == 0 ? first : again);
            if (split && memcmp(first, again, bytes) != 0)
                fail(k, v->level, s, how, "bits depend on how items are shared out", split);
        }
        cases++;
        if (k->spec.op == PS_OP_KV_STORE) {
            for (uint32_t j = 0; j < n.a.n_spans; j++) {
                const ps_seq_span *x = &n.spans[j], *y = &n.ref_spans[j];
                for (uint64_t p = x->pos0; p < (uint64_t)x->pos0 + x->n_rows; p++) {
                    const uint64_t nk = (uint64_t)s->n_kv * s->dk, nv = (uint64_t)s->n_kv * s->dv,
                                   at = p % x->kv_rows;
                    if (memcmp(x->k + at * nk, y->k + at * nk, nk * 2) ||
                        memcmp(x->v + at * nv, y->v + at * nv, nv * 2))
                        fail(k, v->level, s, how, "wrong row of position", (double)p);
                }
            }
            continue;
        }
        const double d = distance(&n.a.dst, &r.dst, s->tokens);
        /* Float experts with quantised down matrices round the hidden layer to Q8 too. */
        const bool rounded = k->spec.op == PS_OP_MOE_DISPATCH && s->down == PS_DTYPE_Q6_K;
        if (!(d <= (rounded ? 2e-2 : (double)k->tolerance)))
            fail(k, v->level, s, how, "distance", d);
        if (k->spec.out_fmt == PS_FMT_Q8 && !q8_sums_hold(&n.a.dst, s->tokens))
            fail(k, v->level, s, how, "plane s is not d*sum(q)", 0);
    }
done:
    for (uint32_t t = 0; t < s->tokens; t++)
        ps_sampler_free(n.samplers[t]);
    free(first);
    free(again);
    release();
}

/* Shapes by operation class. Rows that need multiples of 32 (Q8) or 256 (K quantisations) skip what is not. */
static const shape row_shapes[] = {
    {.tokens = 1, .cols = 32, .experts = 4, .used = 2},
    {.tokens = 1, .cols = 576, .experts = 128, .used = 8, .residual = true},
    {.tokens = 2, .cols = 1536, .experts = 8, .used = 8},
    {.tokens = 3, .cols = 1, .experts = 1, .used = 1, .residual = true},
    {.tokens = 5, .cols = 33, .experts = 60, .used = 4},
    {.tokens = 7, .cols = 640, .group = 64, .experts = 16, .used = 1, .residual = true},
    {.tokens = 17, .cols = 2080, .group = 16, .experts = 33, .used = 5},
    {.tokens = 33, .cols = 96, .group = 24, .experts = 5, .used = 3, .residual = true},
    {.tokens = 70, .cols = 256, .experts = 64, .used = 6},
    {.tokens = 4, .cols = 4096, .group = 1, .experts = 256, .used = 8, .residual = true},
};

static const shape head_shapes[] = {
    {.tokens = 1, .n_head = 9, .n_kv = 3, .dk = 64, .dv = 64, .rope_dims = 64, .pos0 = 1000, .n_spans = 1},
    {.tokens = 1,
     .n_head = 4,
     .n_kv = 1,
     .dk = 256,
     .dv = 256,
     .rope_dims = 256,
     .pos0 = 0,
     .n_spans = 1,
     .residual = true},
    {.tokens = 2, .n_head = 4, .n_kv = 4, .dk = 8, .dv = 16, .rope_dims = 4, .pos0 = 3, .n_spans = 2},
    {.tokens = 3,
     .n_head = 32,
     .n_kv = 2,
     .dk = 80,
     .dv = 40,
     .rope_dims = 20,
     .pos0 = 500,
     .n_spans = 1,
     .residual = true},
    {.tokens = 5,
     .n_head = 2,
     .n_kv = 1,
     .dk = 1024,
     .dv = 1024,
     .rope_dims = 1024,
     .pos0 = 70,
     .n_spans = 1},
    {.tokens = 6,
     .n_head = 8,
     .n_kv = 8,
     .dk = 33,
     .dv = 1,
     .rope_dims = 32,
     .pos0 = 600,
     .n_spans = 3,
     .residual = true},
    {.tokens = 9,
     .n_head = 6,
     .n_kv = 2,
     .dk = 96,
     .dv = 96,
     .rope_dims = 96,
     .pos0 = 4000,
     .n_spans = 1,
     .window = 300,
     .kv_rows = 400},
    {.tokens = 16,
     .n_head = 9,
     .n_kv = 3,
     .dk = 64,
     .dv = 64,
     .rope_dims = 64,
     .pos0 = 100,
     .n_spans = 1,
     .residual = true},
    {.tokens = 17, .n_head = 5, .n_kv = 1, .dk = 20, .dv = 12, .rope_dims = 10, .pos0 = 0, .n_spans = 2},
    {.tokens = 33,
     .n_head = 4,
     .n_kv = 1,
     .dk = 256,
     .dv = 256,
     .rope_dims = 256,
     .pos0 = 777,
     .n_spans = 1,
     .window = 512,
     .kv_rows = 600,
     .residual = true},
    {.tokens = 50, .n_head = 3, .n_kv = 1, .dk = 512, .dv = 512, .rope_dims = 512, .pos0 = 5, .n_spans = 1},
    {.tokens = 64,
     .n_head = 14,
     .n_kv = 2,
     .dk = 64,
     .dv = 64,
     .rope_dims = 64,
     .pos0 = 0,
     .n_spans = 1,
     .window = 7,
     .kv_rows = 80,
     .residual = true},
    {.tokens = 70,
     .n_head = 8,
     .n_kv = 4,
     .dk = 128,
     .dv = 128,
     .rope_dims = 128,
     .pos0 = 31,
     .n_spans = 4,
     .window = 64},
    {.tokens = 70,
     .n_head = 2,
     .n_kv = 2,
     .dk = 16,
     .dv = 16,
     .rope_dims = 16,
     .pos0 = 200,
     .n_spans = 1,
     .residual = true},
    {.tokens = 70, .n_head = 1, .n_kv = 1, .dk = 2, .dv = 2, .rope_dims = 2, .pos0 = 0, .n_spans = 1},
};

/* Mixtures: several rounds (32 experts used), ranges of experts, down matrices of another class. */
static const shape moe_shapes[] = {
    {.tokens = 1, .cols = 256, .ff = 256, .experts = 8, .used = 2},
    {.tokens = 1, .cols = 32, .ff = 96, .experts = 4, .used = 4, .residual = true},
    {.tokens = 3, .cols = 512, .ff = 256, .experts = 5, .used = 1, .residual = true},
    {.tokens = 25, .cols = 256, .ff = 512, .experts = 3, .used = 2},
    {.tokens = 5, .cols = 256, .ff = 256, .experts = 40, .used = 32, .residual = true},
    {.tokens = 1, .cols = 256, .ff = 256, .experts = 33, .used = 32},
    {.tokens = 17,
     .cols = 256,
     .ff = 256,
     .experts = 9,
     .used = 4,
     .expert0 = 2,
     .n_experts = 5,
     .residual = true},
    {.tokens = 9, .cols = 256, .ff = 256, .experts = 3, .used = 2, .down = PS_DTYPE_F16},
    {.tokens = 9, .cols = 256, .ff = 256, .experts = 3, .used = 2, .down = PS_DTYPE_Q6_K, .residual = true},
    {.tokens = 20, .cols = 7, .ff = 33, .experts = 4, .used = 2},
    /* Parts, tables of addresses, selections that name nobody; few pairs and many; parts without an expert. */
    {.tokens = 1,
     .cols = 256,
     .ff = 256,
     .experts = 20,
     .used = 8,
     .part = PS_MOE_PART_FAR,
     .direct = 3,
     .tables = true},
    {.tokens = 4,
     .cols = 256,
     .ff = 256,
     .experts = 14,
     .used = 8,
     .part = PS_MOE_PART_FAR,
     .direct = 2,
     .resident = true,
     .tables = true,
     .residual = true},
    {.tokens = 3,
     .cols = 256,
     .ff = 256,
     .experts = 14,
     .used = 8,
     .part = PS_MOE_PART_NEAR,
     .direct = 2,
     .resident = true},
    {.tokens = 23,
     .cols = 256,
     .ff = 256,
     .experts = 12,
     .used = 6,
     .part = PS_MOE_PART_FAR,
     .direct = 4,
     .tables = true,
     .holes = true,
     .residual = true},
    {.tokens = 2, .cols = 256, .ff = 256, .experts = 16, .used = 4, .holes = true},
    {.tokens = 2,
     .cols = 256,
     .ff = 256,
     .experts = 9,
     .used = 3,
     .part = PS_MOE_PART_FAR,
     .direct = 100,
     .residual = true},
    {.tokens = 2, .cols = 256, .ff = 256, .experts = 9, .used = 3, .part = PS_MOE_PART_NEAR, .tables = true},
    {.tokens = 40, .cols = 256, .ff = 256, .experts = 9, .used = 4, .part = PS_MOE_PART_NEAR},
    {.tokens = 6,
     .cols = 256,
     .ff = 256,
     .experts = 34,
     .used = 32,
     .expert0 = 7,
     .n_experts = 25,
     .part = PS_MOE_PART_FAR,
     .direct = 9,
     .resident = true,
     .tables = true,
     .holes = true},
};

static bool fits(const ps_kernel_spec *k, const shape *s, bool heads) {
    if (k->op == PS_OP_MATMUL)
        return false;
    const ps_dtype_info *info = k->wtype == PS_DTYPE_NONE ? NULL : ps_dtype_find(k->wtype);
    if ((k->op == PS_OP_MOE_DISPATCH) != (s->ff != 0))
        return false;
    if (s->ff)
        return !heads && s->cols % info->block_elems == 0 && s->ff % info->block_elems == 0;
    if (heads != (k->op == PS_OP_ROPE || k->op == PS_OP_KV_STORE || k->op == PS_OP_ATTENTION))
        return false;
    const uint64_t out = heads ? (uint64_t)s->n_head * s->dv : s->cols;
    if (k->out_fmt == PS_FMT_Q8 && out % PS_Q8_GROUP != 0)
        return false;
    if (k->op == PS_OP_EMBED && s->cols % info->block_elems != 0)
        return false;
    return k->op != PS_OP_ROPE || s->rope_dims <= s->dk;
}

/* Values that make sense for an operation. */
static bool fill_fits(const ps_kernel_spec *k, fill how) {
    switch (k->op) {
    case PS_OP_EMBED:
        return how == RANDOM;
    case PS_OP_ATTENTION: /* scores that are equal, moderate and in the hundreds; queries of tiny values are equal */
        return how == RANDOM || how == EQUAL || how == OUTLIERS;
    case PS_OP_MOE_DISPATCH: /* gate times up, both as large as the input: the same */
        return how == RANDOM || how == OUTLIERS;
    case PS_OP_GLU: /* products of huge values would overflow */
        return how != HUGE_VALUES || k->out_fmt != PS_FMT_NONE;
    default:
        return true;
    }
}

/* One part on top of the other's result, and ranges of experts one on top of the other, are the whole. */
static void check_parts(const ps_kernel *k, ps_cpu_level top) {
    for (uint32_t tokens = 1; tokens <= 33; tokens = tokens * 5 + 1) {
        const shape s = {.tokens = tokens,
                         .cols = 256,
                         .ff = 256,
                         .experts = 14,
                         .used = 6,
                         .resident = true,
                         .direct = tokens % 4,
                         .residual = true};
        static instance n;
        make(&n, &k->spec, &s, RANDOM);
        const uint64_t bytes = ps_scratch_bytes(&k->spec.scratch, tokens, s.cols, 1, 0);
        const ps_xarg sums = new_act(PS_FMT_F32, s.cols, tokens);
        n.a.n_threads = 1;
        n.a.scratch = guarded(bytes);
        for (uint32_t i = 0; i < k->n_variants && k->variants[i].level <= top; i++) {
            cases++;
            ps_kernel_run_serial(k, k->variants[i].level, &n.a);
            for (int way = 0; way < 2; way++) {
                ps_kargs p = n.a;
                p.dst = sums;
                for (uint32_t piece = 0; piece < (way ? 3u : 2u); piece++) {
                    if (way == 0) {
                        p.part = piece ? PS_MOE_PART_NEAR : PS_MOE_PART_FAR;
                    } else {
                        p.row0 = piece ? p.row0 + p.n_rows : 0;
                        p.n_rows = piece == 2 ? s.experts - p.row0 : 3 + 4 * piece;
                    }
                    ps_kernel_run_serial(k, k->variants[i].level, &p);
                    p.src[2] = sums;
                }
                const double d = distance(&sums, &n.a.dst, tokens);
                if (!(d <= 1e-6))
                    fail(k, k->variants[i].level, &s, RANDOM, way ? "sum of ranges" : "sum of parts", d);
            }
        }
        release();
    }
}

static void check_table(ps_cpu_level top) {
    uint32_t n;
    const ps_kernel *t = ps_kernel_table(&n);
    for (uint32_t i = 0; i < n; i++) {
        const ps_kernel_spec *s = &t[i].spec;
        const ps_kernel *chosen =
            ps_kernel_choose(s->op, s->wtype, s->in_fmt, s->out_fmt, s->device, s->min_tokens);
        bool ok = (i == 0 || t[i - 1].spec.id < s->id) && ps_kernel_find(s->id) == &t[i] &&
                  ps_kernel_by_name(s->name) == &t[i];
        if (s->device == PS_DEV_CPU)
            ok = ok && t[i].n_variants > 0 && t[i].variants[0].level == PS_CPU_GENERIC && chosen == &t[i];
        else /* several rows may serve one purpose: profiles tell which is faster */
            ok = ok && t[i].n_variants == 0 && t[i].variants == NULL && chosen != NULL &&
                 chosen->spec.device == s->device && !ps_kernel_variant(&t[i], top);
        for (uint32_t j = 1; j < t[i].n_variants; j++)
            ok = ok && t[i].variants[j - 1].level < t[i].variants[j].level;
        if (!ok) {
            failures++;
            printf("FAIL row %u (%s) of the table\n", s->id, s->name);
        }
    }
    if (ps_kernel_find(999999) || ps_kernel_by_name("nothing") ||
        ps_kernel_choose(PS_OP_COPY, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, PS_DEV_CPU, 1)) {
        failures++;
        printf("FAIL unknown kernels are found\n");
    }
}

int main(void) {
    const ps_cpu_level top = ps_cpu_level_detect();
    uint32_t n;
    const ps_kernel *t = ps_kernel_table(&n);
    check_table(top);
    for (uint32_t i = 0; i < n; i++) {
        if (t[i].spec.device != PS_DEV_CPU)
            continue;
        const int before = cases;
        for (int how = 0; how < N_FILLS; how++) {
            if (!fill_fits(&t[i].spec, (fill)how))
                continue;
            for (uint32_t j = 0; j < sizeof row_shapes / sizeof row_shapes[0]; j++)
                if (fits(&t[i].spec, &row_shapes[j], false))
                    check(&t[i], top, &row_shapes[j], (fill)how);
            for (uint32_t j = 0; j < sizeof moe_shapes / sizeof moe_shapes[0]; j++)
                if (fits(&t[i].spec, &moe_shapes[j], false))
                    check(&t[i], top, &moe_shapes[j], (fill)how);
            for (uint32_t j = 0; j < sizeof head_shapes / sizeof head_shapes[0]; j++)
                if (fits(&t[i].spec, &head_shapes[j], true))
                    check(&t[i], top, &head_shapes[j], (fill)how);
        }
        if (t[i].spec.op == PS_OP_MOE_DISPATCH)
            check_parts(&t[i], top);
        if (cases == before && t[i].spec.op != PS_OP_MATMUL) {
            failures++;
            printf("FAIL no case for %s\n", t[i].spec.name);
        }
    }
    printf("%d cases up to level %s, %d failures\n", cases, ps_cpu_level_name(top), failures);
    return failures || !cases;
}
