/* Row operations on the CPU: item counts, the plain ones (embedding, gather, sampling), and the variant
 * tables. The vector ones are in row_ops_body.h. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu_ops.h"

#include "kernels/cpu/row_ops_body.h"

uint64_t ps_cpu_rmsnorm_items(const ps_kargs *a, uint32_t phase) {
    (void)phase;
    return a->n_tokens;
}
uint64_t ps_cpu_rope_items(const ps_kargs *a, uint32_t phase) {
    (void)phase;
    return a->n_tokens;
}
uint64_t ps_cpu_kv_store_items(const ps_kargs *a, uint32_t phase) {
    (void)phase;
    uint64_t n = 0;
    for (uint32_t s = 0; s < a->n_spans; s++)
        n += a->spans[s].n_rows;
    return n;
}
uint64_t ps_cpu_glu_items(const ps_kargs *a, uint32_t phase) {
    (void)phase;
    return a->n_tokens * ((a->src[0].cols + PS_GLU_BLOCK - 1) / PS_GLU_BLOCK);
}
uint64_t ps_cpu_add_items(const ps_kargs *a, uint32_t phase) {
    (void)phase;
    return a->n_tokens;
}
uint64_t ps_cpu_convert_items(const ps_kargs *a, uint32_t phase) {
    (void)phase;
    return a->n_tokens;
}
uint64_t ps_cpu_moe_route_items(const ps_kargs *a, uint32_t phase) {
    (void)phase;
    return a->n_tokens;
}

static uint64_t token_items(const ps_kargs *a, uint32_t phase) {
    (void)phase;
    return a->n_tokens;
}

static void embed_run(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread) {
    (void)phase;
    (void)thread;
    const ps_warg *w = &a->w[0];
    const float scale = a->model->embed_scale;
    for (uint64_t t = first; t < first + n; t++) {
        float *out = (float *)(void *)((uint8_t *)a->dst.data + t * a->dst.row_bytes);
        assert(a->tokens[t] >= 0 && (uint64_t)a->tokens[t] < w->rows);
        ps_dequantize_row(w->type, w->data + (uint64_t)a->tokens[t] * w->row_bytes, out, w->cols);
        for (uint64_t i = 0; i < w->cols; i++)
            out[i] *= scale;
    }
}

static void gather_run(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread) {
    (void)phase;
    (void)thread;
    for (uint64_t t = first; t < first + n; t++)
        memcpy((uint8_t *)a->dst.data + t * a->dst.row_bytes,
               (const uint8_t *)a->src[0].data + a->outputs[t] * a->src[0].row_bytes, a->src[0].cols * 4);
}

static void sample_run(const ps_kargs *a, uint32_t phase, uint64_t first, uint64_t n, uint32_t thread) {
    (void)phase;
    (void)thread;
    for (uint64_t t = first; t < first + n; t++) {
        const uint8_t *row = (const uint8_t *)a->src[0].data + t * a->src[0].row_bytes;
        const int32_t id =
            a->samplers[t] == NULL ? -1 : ps_sampler_pick(a->samplers[t], (const float *)(const void *)row);
        memcpy((uint8_t *)a->dst.data + t * a->dst.row_bytes, &id, sizeof id);
    }
}

#if defined(__x86_64__)
#define PS_VARIANTS(name, phases)                                                                            \
    const ps_cpu_variant ps_cpu_##name[PS_CPU_VEC_LEVELS] = {                                                \
        {PS_CPU_GENERIC, phases, ps_cpu_##name##_items, ps_cpu_##name##_run_generic},                        \
        {PS_CPU_AVX2, phases, ps_cpu_##name##_items, ps_cpu_##name##_run_avx2},                              \
        {PS_CPU_AVX512, phases, ps_cpu_##name##_items, ps_cpu_##name##_run_avx512},                          \
    };
#else
#define PS_VARIANTS(name, phases)                                                                            \
    const ps_cpu_variant ps_cpu_##name[PS_CPU_VEC_LEVELS] = {                                                \
        {PS_CPU_GENERIC, phases, ps_cpu_##name##_items, ps_cpu_##name##_run_generic},                        \
    };
#endif
PS_CPU_VEC_OPS(PS_VARIANTS)

#define PS_PLAIN_VARIANT(name, phases)                                                                       \
    const ps_cpu_variant ps_cpu_##name[1] = {{PS_CPU_GENERIC, phases, token_items, name##_run}};
PS_CPU_PLAIN_OPS(PS_PLAIN_VARIANT)
