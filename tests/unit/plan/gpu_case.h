/* Plans for a machine with a GPU, for tests: a model in memory, and a profile whose catalogue has every kernel that the
 * planner asks for, made up where the registry has none yet. */
#ifndef PS_TESTS_GPU_CASE_H
#define PS_TESTS_GPU_CASE_H

#include "../../gpu_profile.h"
#include "../../model_builder.h"
#include "plan/planner.h"

typedef struct gpu_case {
    mb b;
    ps_gguf *gguf;
    ps_model *model;
    ps_profile *profile;
    ps_cost_model *cost;
} gpu_case;

static inline bool gc_has(const ps_profile *p, const ps_kernel_spec *k) {
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        const ps_kernel_spec *x = &p->kernels[i];
        if (x->op == k->op && x->wtype == k->wtype && x->device == k->device && x->in_fmt == k->in_fmt &&
            x->out_fmt == k->out_fmt && x->min_tokens <= k->min_tokens && x->max_tokens >= k->max_tokens)
            return true;
    }
    return false;
}

static inline void gc_add(ps_profile *p, ps_op op, ps_dtype type, ps_fmt in, ps_fmt out, uint32_t min) {
    ps_kernel_spec k = {.id = 900000 + p->n_kernels,
                        .op = op,
                        .wtype = type,
                        .in_fmt = in,
                        .out_fmt = out,
                        .device = PS_DEV_CUDA,
                        .min_tokens = min,
                        .max_tokens = UINT32_MAX,
                        .scratch = {.per_token_col = op == PS_OP_MOE_DISPATCH ? 64 : 0}};
    snprintf(k.name, sizeof k.name, "test.%s.%u", ps_op_get(op)->name, k.id);
    if (!gc_has(p, &k))
        p->kernels[p->n_kernels++] = k;
}

static inline ps_profile *gc_profile(void) {
    static const ps_dtype types[] = {PS_DTYPE_F32,  PS_DTYPE_F16,  PS_DTYPE_BF16, PS_DTYPE_Q4_0,
                                     PS_DTYPE_Q4_1, PS_DTYPE_Q5_0, PS_DTYPE_Q8_0, PS_DTYPE_Q6_K};
    ps_profile *p = gp_profile();
    p->kernels = realloc(p->kernels, (p->n_kernels + 64) * sizeof *p->kernels);
    if (!p->kernels)
        abort();
    gc_add(p, PS_OP_RMSNORM, PS_DTYPE_F32, PS_FMT_F32, PS_FMT_F16S, 1);
    gc_add(p, PS_OP_GLU, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F16S, 1);
    gc_add(p, PS_OP_CONVERT, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F16S, 1);
    gc_add(p, PS_OP_ATTENTION, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, 9);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        gc_add(p, PS_OP_MATMUL, types[i], PS_FMT_F16S, PS_FMT_F32, 9);
        gc_add(p, PS_OP_MOE_DISPATCH, types[i], PS_FMT_F16S, PS_FMT_F32, 9);
    }
    return p;
}

static inline gpu_case gc_open(mb b) {
    gpu_case c = {.b = b};
    ps_error e = {0};
    uint64_t size;
    const uint8_t *data = mb_finish(&c.b, &size);
    if (ps_gguf_open_memory(data, size, "test.gguf", &c.gguf, &e) || ps_model_open(c.gguf, &c.model, &e)) {
        fprintf(stderr, "%s: %s\n", e.subject, e.message);
        abort();
    }
    c.profile = gc_profile();
    if (ps_cost_model_new(c.profile, &c.cost, &e))
        abort();
    return c;
}

static inline gpu_case gc_shape(const mb_shape *shape) {
    mb b;
    mb_model(&b, shape);
    return gc_open(b);
}

static inline void gc_close(gpu_case *c) {
    ps_cost_model_free(c->cost);
    ps_profile_free(c->profile);
    ps_model_close(c->model);
    ps_gguf_close(c->gguf);
    mb_free(&c->b);
}

static inline ps_level_request gc_level(uint64_t bytes, uint64_t context, uint32_t seqs, uint32_t threads) {
    ps_level_request l = {
        .budget_bytes = bytes, .bucket_tokens = context, .n_seqs = seqs, .n_threads = threads};
    if (bytes == 0)
        snprintf(l.budget, sizeof l.budget, "host");
    else
        snprintf(l.budget, sizeof l.budget, "%lluMiB", (unsigned long long)(bytes >> 20));
    return l;
}

static inline ps_plan_request gc_request(const gpu_case *c, const ps_level_request *levels, uint32_t n) {
    return (ps_plan_request){.model = c->model,
                             .profile = c->profile,
                             .cost = c->cost,
                             .levels = levels,
                             .n_levels = n,
                             .tool = "test",
                             .created = "2026-11-29T00:00:00Z"};
}

#endif
