/* Registry look-ups, costs counted by hand, and values that floating point makes special. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/kernel.h"

#define COUNT(...) +1
enum { N_CUDA = PS_CUDA_KERNELS(COUNT) };

Test(registry, few_tokens_and_many_have_their_own_rows) {
    const ps_kernel *one =
        ps_kernel_choose(PS_OP_ATTENTION, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, PS_DEV_CPU, 1);
    const ps_kernel *many =
        ps_kernel_choose(PS_OP_ATTENTION, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, PS_DEV_CPU, 512);
    cr_assert_not_null(one);
    cr_assert_not_null(many);
    cr_assert_neq(one->spec.id, many->spec.id);
    cr_assert_null(ps_kernel_choose(PS_OP_RMSNORM, PS_DTYPE_Q4_K, PS_FMT_F32, PS_FMT_F32, PS_DEV_CPU, 1));
    cr_assert_null(ps_kernel_choose(PS_OP_SAMPLE, PS_DTYPE_NONE, PS_FMT_F16, PS_FMT_I32, PS_DEV_CUDA, 1));
    const ps_kernel *few =
        ps_kernel_choose(PS_OP_MOE_DISPATCH, PS_DTYPE_Q4_0, PS_FMT_Q8, PS_FMT_F32, PS_DEV_CUDA, 8);
    const ps_kernel *more =
        ps_kernel_choose(PS_OP_MOE_DISPATCH, PS_DTYPE_Q4_0, PS_FMT_F16S, PS_FMT_F32, PS_DEV_CUDA, 9);
    cr_assert_not_null(few);
    cr_assert_not_null(more);
    cr_assert_eq(few->spec.id, 2202);
    cr_assert_eq(more->spec.id, 2502);
}

Test(registry, a_variant_for_every_level) {
    uint32_t n;
    const ps_kernel *t = ps_kernel_table(&n);
    for (uint32_t i = 0; i < n; i++)
        for (int level = 0; level < PS_CPU_LEVEL_COUNT; level++) {
            const ps_cpu_variant *v = ps_kernel_variant(&t[i], (ps_cpu_level)level);
            if (t[i].spec.device != PS_DEV_CPU) {
                cr_assert_null(v);
                continue;
            }
            cr_assert_not_null(v);
            cr_assert_leq((int)v->level, level);
        }
}

/* CUDA rows are in every build, with or without a CUDA compiler, so that plans made elsewhere match. */
Test(registry, cuda_rows_are_there) {
    uint32_t n, n_cuda = 0;
    const ps_kernel *t = ps_kernel_table(&n);
    for (uint32_t i = 0; i < n; i++) {
        n_cuda += t[i].spec.device == PS_DEV_CUDA;
        cr_assert(strncmp(t[i].spec.name, t[i].spec.device == PS_DEV_CUDA ? "cuda." : "cpu.", 4) == 0);
        cr_assert_lt(strlen(t[i].spec.name), PS_KERNEL_NAME_MAX - 1);
    }
    cr_assert_eq(n_cuda, N_CUDA);
    const ps_kernel *k = ps_kernel_choose(PS_OP_MATMUL, PS_DTYPE_Q4_0, PS_FMT_Q8, PS_FMT_F32, PS_DEV_CUDA, 1);
    cr_assert_not_null(k);
    cr_assert_eq(k->spec.device, PS_DEV_CUDA);
    cr_assert_neq(
        k->spec.id,
        ps_kernel_choose(PS_OP_MATMUL, PS_DTYPE_Q4_0, PS_FMT_Q8, PS_FMT_F32, PS_DEV_CPU, 1)->spec.id);
}

/* Scratch of the attention over parts of the KV cache, as the launcher needs it and as the row asks for it. */
Test(registry, cuda_attention_scratch_is_enough) {
    const ps_kernel *k =
        ps_kernel_choose(PS_OP_ATTENTION, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, PS_DEV_CUDA, 1);
    cr_assert_not_null(k);
    static const uint32_t heads[] = {1, 8, 14, 64}, dims[] = {8, 64, 80, 128, 256},
                          kv[] = {1, 127, 129, 16384};
    for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++)
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
            for (size_t b = 0; b < sizeof kv / sizeof kv[0]; b++) {
                const ps_layer l = {.n_head = heads[h], .head_dim_k = dims[d], .head_dim_v = dims[d]};
                const uint64_t asked = ps_scratch_bytes(&k->spec.scratch, 3, heads[h] * dims[d], 1, kv[b]);
                cr_assert_geq(asked, ps_cuda_attn_scratch(&l, 3, kv[b]));
                cr_assert_gt(ps_scratch_bytes(&k->spec.scratch, 3, heads[h] * dims[d], 1,
                                              kv[b] + k->spec.scratch.kv_chunk),
                             asked);
            }
}

/* Every computable weight type can be embedded, multiplied and used by experts. */
Test(registry, all_computable_types) {
    static const ps_dtype types[] = {PS_DTYPE_F32,  PS_DTYPE_F16,  PS_DTYPE_BF16, PS_DTYPE_Q4_0,
                                     PS_DTYPE_Q4_1, PS_DTYPE_Q5_0, PS_DTYPE_Q5_1, PS_DTYPE_Q8_0,
                                     PS_DTYPE_Q4_K, PS_DTYPE_Q5_K, PS_DTYPE_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const ps_fmt in = i < 3 ? PS_FMT_F32 : PS_FMT_Q8;
        cr_assert(ps_dtype_computable(types[i]));
        cr_assert_not_null(ps_kernel_choose(PS_OP_EMBED, types[i], PS_FMT_NONE, PS_FMT_F32, PS_DEV_CPU, 1));
        cr_assert_not_null(ps_kernel_choose(PS_OP_MATMUL, types[i], in, PS_FMT_F32, PS_DEV_CPU, 1));
        cr_assert_not_null(ps_kernel_choose(PS_OP_MOE_DISPATCH, types[i], in, PS_FMT_F32, PS_DEV_CPU, 1));
    }
}

Test(registry, the_hash_is_of_the_set) {
    uint8_t a[16], b[16], part[16];
    uint32_t n;
    ps_kernel_set_hash(a);
    ps_kernel_set_hash(b);
    cr_assert_arr_eq(a, b, 16);
    ps_kernel_spec_hash(&ps_kernel_table(&n)->spec, 1, part);
    cr_assert_arr_neq(a, part, 16);
}

Test(cost, matmul_by_hand) {
    uint8_t byte = 0;
    const ps_kernel *k = ps_kernel_choose(PS_OP_MATMUL, PS_DTYPE_Q4_0, PS_FMT_Q8, PS_FMT_F32, PS_DEV_CPU, 2);
    cr_assert_not_null(k);
    const ps_kargs a = {
        .n_tokens = 2,
        .row0 = 10,
        .n_rows = 100,
        .w = {{.data = &byte, .type = PS_DTYPE_Q4_0, .cols = 64, .rows = 200, .row_bytes = 36}},
        .src = {{.data = &byte, .fmt = PS_FMT_Q8, .cols = 64}},
        .dst = {.data = &byte, .fmt = PS_FMT_F32, .cols = 200}};
    double bytes, flops;
    ps_kernel_cost(k, &a, &bytes, &flops);
    cr_assert_float_eq(flops, 2.0 * 2 * 100 * 64, 0.5);
    /* weights, two Q8 rows of 64 + 2*4*2, two times 100 floats */
    cr_assert_float_eq(bytes, 100 * 36 + 2 * (64 + 16) + 2 * 100 * 4, 0.5);
}

/* Half of the columns of a wider matrix, and activations as scaled halves. */
Test(cost, matmul_of_a_range_of_columns_by_hand) {
    uint8_t byte = 0;
    const ps_kernel *k = ps_kernel_choose(PS_OP_MATMUL, PS_DTYPE_Q4_0, PS_FMT_Q8, PS_FMT_F32, PS_DEV_CPU, 2);
    ps_kargs a = {.n_tokens = 3,
                  .n_rows = 100,
                  .w = {{.data = &byte, .type = PS_DTYPE_Q4_0, .cols = 64, .rows = 100, .row_bytes = 72}},
                  .src = {{.data = &byte, .fmt = PS_FMT_F16S, .cols = 64},
                          {.data = &byte, .fmt = PS_FMT_F32, .cols = 100}},
                  .dst = {.data = &byte, .fmt = PS_FMT_F32, .cols = 100}};
    double bytes, flops;
    ps_kernel_cost(k, &a, &bytes, &flops);
    cr_assert_float_eq(flops, 2.0 * 3 * 100 * 64 + 3 * 100, 0.5);
    cr_assert_float_eq(bytes, 100 * 36 + 3 * (64 * 2 + 4) + 2 * 3 * 100 * 4, 0.5);
}

Test(cost, attention_with_a_window_by_hand) {
    uint8_t byte = 0;
    const ps_kernel *k =
        ps_kernel_choose(PS_OP_ATTENTION, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, PS_DEV_CPU, 3);
    const ps_layer l = {.n_head = 4, .n_head_kv = 2, .head_dim_k = 8, .head_dim_v = 16, .window = 4};
    const ps_seq_span span = {.n_rows = 3, .pos0 = 2, .kv_rows = 8};
    const ps_kargs a = {.layer = &l,
                        .n_tokens = 3,
                        .n_rows = 2,
                        .n_spans = 1,
                        .spans = &span,
                        .src = {{.data = &byte, .fmt = PS_FMT_F32, .cols = 32}},
                        .dst = {.data = &byte, .fmt = PS_FMT_F32, .cols = 64}};
    double bytes, flops;
    ps_kernel_cost(k, &a, &bytes, &flops);
    /* Positions 2, 3, 4 see 3, 4 and 4 keys: 11 pairs; keys 0 to 4 are read, once per KV head. */
    cr_assert_float_eq(flops, 4 * 11 * (2 * (8 + 16) + 1), 0.5);
    cr_assert_float_eq(bytes, 3 * 32 * 4 + 3 * 64 * 4 + 2 * 5 * (8 + 16) * 2, 0.5);
}

Test(cost, experts_count_once) {
    uint8_t byte = 0;
    const ps_kernel *k =
        ps_kernel_choose(PS_OP_MOE_DISPATCH, PS_DTYPE_F32, PS_FMT_F32, PS_FMT_F32, PS_DEV_CPU, 2);
    struct {
        int32_t e;
        float w;
    } sel[2][8] = {{{1, 1}, {3, 1}}, {{3, 1}, {0, 1}}};
    const ps_kargs a = {.n_tokens = 2,
                        .row0 = 1,
                        .n_rows = 3,
                        .w = {{.data = &byte, .cols = 4, .rows = 6, .row_bytes = 16, .experts = 4},
                              {.data = &byte, .cols = 4, .rows = 6, .row_bytes = 16, .experts = 4},
                              {.data = &byte, .cols = 6, .rows = 4, .row_bytes = 24, .experts = 4}},
                        .src = {{.data = &byte, .fmt = PS_FMT_F32, .cols = 4},
                                {.data = sel, .fmt = PS_FMT_SEL, .cols = 2, .row_bytes = 64}},
                        .dst = {.data = &byte, .fmt = PS_FMT_F32, .cols = 4}};
    double bytes, flops;
    ps_kernel_cost(k, &a, &bytes, &flops);
    /* Expert 0 is outside the range; 1 and 3 are read once, with one and two tokens. */
    cr_assert_float_eq(bytes, 2 * (2 * 6 * 16 + 4 * 24) + 2 * 4 * 4 + 2 * 2 * 8 + 2 * 4 * 4, 0.5);
    cr_assert_float_eq(flops, 3 * (2.0 * 3 * 24 + 8 * 6 + 2 * 4), 0.5);
    /* Of all four, 3 is resident and 0 is read direct: 1 is left for the host, once. */
    const uint32_t resident = 1u << 3;
    ps_kargs far = a;
    far.row0 = 0, far.n_rows = 4, far.part = PS_MOE_PART_FAR, far.resident = &resident, far.max_direct = 1;
    ps_kernel_cost(k, &far, &bytes, &flops);
    cr_assert_float_eq(bytes, 2 * 6 * 16 + 4 * 24 + 2 * 4 * 4 + 2 * 2 * 8 + 2 * 4 * 4, 0.5);
    cr_assert_float_eq(flops, 2.0 * 3 * 24 + 8 * 6 + 2 * 4, 0.5);
    far.part = PS_MOE_PART_NEAR;
    ps_kernel_cost(k, &far, &bytes, &flops);
    cr_assert_float_eq(flops, 3 * (2.0 * 3 * 24 + 8 * 6 + 2 * 4), 0.5);
}

/* Run a row operation of one row of 64 elements at every level this machine has; the callback judges. */
static _Alignas(64) float x[64], y[64], out[128];
static _Alignas(64) uint8_t scratch[4096];

static void run_row(const char *name, ps_cpu_level level) {
    static ps_model model = {.norm_eps = 1e-6f};
    static _Alignas(64) float ones[64];
    for (int i = 0; i < 64; i++)
        ones[i] = 1;
    const ps_kernel *k = ps_kernel_by_name(name);
    cr_assert_not_null(k);
    const bool norm = k->spec.op == PS_OP_RMSNORM, two = k->spec.op == PS_OP_GLU;
    const ps_kargs a = {
        .model = &model,
        .n_tokens = 1,
        .n_threads = 1,
        .scratch = scratch,
        .w = {{.data = norm ? (const uint8_t *)ones : NULL, .cols = 64, .rows = 1, .row_bytes = 256}},
        .src = {{.data = x, .fmt = PS_FMT_F32, .cols = 64, .row_bytes = 256},
                {.data = two ? y : NULL, .fmt = PS_FMT_F32, .cols = 64, .row_bytes = 256}},
        .dst = {.data = out,
                .fmt = k->spec.out_fmt,
                .cols = k->spec.op == PS_OP_MOE_ROUTE ? 8 : 64,
                .row_bytes = 512}};
    memset(out, 0x5A, sizeof out);
    ps_kernel_run_serial(k, level, &a);
}

static void set(float *v, float value) {
    for (int i = 0; i < 64; i++)
        v[i] = value;
}

Test(traps, nan_does_not_vanish) {
    for (int level = 0; level <= (int)ps_cpu_level_detect(); level++) {
        static const char *const names[] = {"cpu.rmsnorm.f32", "cpu.glu.f32"};
        for (int i = 0; i < 2; i++) {
            set(x, 0.5f), set(y, 1);
            x[13] = NAN;
            run_row(names[i], (ps_cpu_level)level);
            cr_assert(isnan(out[13]), "%s", names[i]);
        }
        /* A group of 32 with a NaN or an infinity: its d says so; the other group is untouched. */
        set(x, 0.5f);
        x[40] = level % 2 ? NAN : -INFINITY;
        run_row("cpu.convert.q8", (ps_cpu_level)level);
        const float *d = (const float *)(const void *)((const uint8_t *)out + ps_q8_d_offset(64));
        cr_assert(isfinite(d[0]) && d[0] > 0);
        cr_assert(!isfinite(d[1]));
    }
}

Test(traps, zeros_stay_zeros) {
    for (int level = 0; level <= (int)ps_cpu_level_detect(); level++) {
        set(x, 0), set(y, 3);
        static const char *const names[] = {"cpu.rmsnorm.f32", "cpu.glu.f32"};
        for (int i = 0; i < 2; i++) {
            run_row(names[i], (ps_cpu_level)level);
            for (int c = 0; c < 64; c++)
                cr_assert_eq(out[c], 0);
        }
        run_row("cpu.convert.q8", (ps_cpu_level)level);
        for (int c = 0; c < 64; c++)
            cr_assert_eq(((const int8_t *)out)[c], 0);
    }
}

Test(traps, activation_at_the_ends) {
    for (int level = 0; level <= (int)ps_cpu_level_detect(); level++) {
        set(y, 1);
        for (int i = 0; i < 64; i++)
            x[i] = i % 2 ? 3e38f : -3e38f;
        x[2] = -100, x[4] = -88.5f, x[6] = -1e4f;
        run_row("cpu.glu.f32", (ps_cpu_level)level);
        for (int i = 0; i < 64; i++) {
            if (i % 2)
                cr_assert_float_eq(out[i], 3e38f, 1e32f);
            else
                cr_assert(out[i] <= 0 && out[i] > -1e-30f, "act(%g) = %g", (double)x[i], (double)out[i]);
        }
    }
}

/* Squares that overflow or vanish in float. */
Test(traps, norm_of_the_very_large_and_small) {
    for (int level = 0; level <= (int)ps_cpu_level_detect(); level++) {
        set(x, 1e30f);
        run_row("cpu.rmsnorm.f32", (ps_cpu_level)level);
        cr_assert_float_eq(out[5], 1, 1e-5);
        set(x, 1e-30f);
        run_row("cpu.rmsnorm.f32", (ps_cpu_level)level);
        cr_assert_float_eq(out[5] * 1e27f, 1, 1e-5); /* 1e-30 / sqrt(1e-6) */
    }
}

/* Selections are distinct and in range whatever the logits are. */
Test(traps, router) {
    for (int level = 0; level <= (int)ps_cpu_level_detect(); level++)
        for (int kind = 0; kind < 4; kind++) {
            const float v[] = {0, NAN, -INFINITY, 1e38f};
            set(x, v[kind]);
            run_row("cpu.moe_route", (ps_cpu_level)level);
            const int32_t *sel = (const int32_t *)(const void *)out;
            for (int k = 0; k < 8; k++)
                cr_assert_eq(sel[2 * k], k, "equal logits: the lower experts, in order");
            if (kind == 0 || kind == 3)
                cr_assert_float_eq(out[1], 1.0f / 64, 1e-6);
        }
}
