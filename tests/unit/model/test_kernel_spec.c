#include <criterion/criterion.h>
#include <string.h>

#include "model/kernel_spec.h"
#include "model/model.h"

Test(kernel_spec, names_go_both_ways) {
    for (unsigned i = 0; i < PS_OP_COUNT; i++)
        cr_assert_eq(ps_op_by_name(ps_op_get((ps_op)i)->name), i);
    for (unsigned i = 0; i < PS_DEV_COUNT; i++)
        cr_assert_eq(ps_processor_by_name(ps_processor_name((ps_processor)i)), i);
    for (unsigned i = 0; i < PS_ROLE_COUNT; i++)
        cr_assert_eq(ps_role_by_name(ps_role_get((ps_role)i)->name), i);
    cr_assert_eq(ps_op_by_name("nonsense"), PS_OP_COUNT);
    cr_assert_eq(ps_op_by_name(NULL), PS_OP_COUNT);
    cr_assert_eq(ps_processor_by_name("gpu"), PS_DEV_COUNT);
    cr_assert_eq(ps_role_by_name("attn_q"), PS_ROLE_NONE);
    cr_assert_str_eq(ps_role_get(PS_ROLE_ATTN_Q_BIAS)->name, "attn_q.bias");
    cr_assert_str_eq(ps_value_name(PS_VALUE_X), "x");
    cr_assert_str_eq(ps_shard_kind_name(PS_SHARD_MOE), "moe");
    cr_assert_eq(ps_op_get(PS_OP_MOE_DISPATCH)->n_weights, 3);
}

Test(kernel_spec, scratch_by_hand) {
    ps_scratch_coef c = {
        .base = 100, .per_token = 3, .per_token_col = 2, .per_col = 5, .per_thread = 7, .per_thread_col = 1};
    /* 100 + 4*(3 + 10*2) + 10*5 + 2*(7 + 10*1) = 276, up to 320 */
    cr_assert_eq(ps_scratch_bytes(&c, 4, 10, 2, 0), 320);
    cr_assert_eq(ps_scratch_bytes(&(ps_scratch_coef){.base = 0}, 9, 9, 9, 0), 0);
    cr_assert_eq(ps_scratch_bytes(&(ps_scratch_coef){.base = 64}, 9, 9, 9, 0), 64);
    cr_assert_eq(ps_scratch_bytes(&c, UINT64_MAX, 10, 2, 0), UINT64_MAX);
    cr_assert_eq(ps_scratch_bytes(&c, 1, UINT64_MAX / 2, 2, 0), UINT64_MAX);
    cr_assert_eq(ps_scratch_bytes(&(ps_scratch_coef){.base = UINT64_MAX - 3}, 0, 0, 0, 0), UINT64_MAX);
}

static ps_kernel_spec spec(uint32_t id, uint32_t lo, uint32_t hi) {
    return (ps_kernel_spec){.id = id,
                            .op = PS_OP_MATMUL,
                            .wtype = PS_DTYPE_Q4_0,
                            .in_fmt = PS_FMT_Q8,
                            .out_fmt = PS_FMT_F32,
                            .device = PS_DEV_CPU,
                            .min_tokens = lo,
                            .max_tokens = hi};
}

static uint32_t chosen(const ps_kernel_spec *s, uint32_t n, uint64_t t) {
    const ps_kernel_spec *k =
        ps_kernel_spec_choose(s, n, PS_OP_MATMUL, PS_DTYPE_Q4_0, PS_FMT_Q8, PS_FMT_F32, PS_DEV_CPU, t);
    return k == NULL ? 0 : k->id;
}

Test(kernel_spec, choice_prefers_the_narrow_range_then_the_low_id) {
    ps_kernel_spec s[] = {spec(9, 1, 64), spec(5, 4, 64), spec(3, 4, 64), spec(7, 1, 2), spec(2, 32, 40)};
    s[4].in_fmt = PS_FMT_F32;
    cr_assert_eq(chosen(s, 5, 1), 7); /* same range start as 9, lower id */
    cr_assert_eq(chosen(s, 5, 3), 9);
    cr_assert_eq(chosen(s, 5, 4), 3);
    cr_assert_eq(chosen(s, 5, 32), 3); /* 2 wants other activations */
    cr_assert_eq(chosen(s, 5, 65), 0);
    cr_assert_eq(chosen(s, 5, 0), 0);
    cr_assert_eq(chosen(s, 0, 1), 0);
    cr_assert_null(
        ps_kernel_spec_choose(s, 5, PS_OP_MATMUL, PS_DTYPE_Q4_1, PS_FMT_Q8, PS_FMT_F32, PS_DEV_CPU, 1));
    cr_assert_null(
        ps_kernel_spec_choose(s, 5, PS_OP_MATMUL, PS_DTYPE_Q4_0, PS_FMT_Q8, PS_FMT_F32, PS_DEV_CUDA, 1));
}

Test(kernel_spec, hash_sees_every_field_and_the_order) {
    ps_kernel_spec s[2] = {spec(1, 1, 8), spec(2, 9, 64)};
    uint8_t base[16], h[16];
    strcpy(s[0].name, "cpu.matmul.a");
    ps_kernel_spec_hash(s, 2, base);
    ps_kernel_spec_hash(s, 2, h);
    cr_assert_arr_eq(base, h, 16);
    strcpy(s[0].name + 13, "rest"); /* behind the NUL: no meaning */
    ps_kernel_spec_hash(s, 2, h);
    cr_assert_arr_eq(base, h, 16);
#define CHANGES(statement)                                                                                   \
    do {                                                                                                     \
        ps_kernel_spec keep = s[0];                                                                          \
        s[0].statement;                                                                                      \
        ps_kernel_spec_hash(s, 2, h);                                                                        \
        cr_assert_neq(memcmp(base, h, 16), 0, #statement);                                                   \
        s[0] = keep;                                                                                         \
    } while (0)
    CHANGES(id = 3);
    CHANGES(name[4] = 'x');
    CHANGES(op = PS_OP_ADD);
    CHANGES(wtype = PS_DTYPE_F16);
    CHANGES(in_fmt = PS_FMT_F16);
    CHANGES(out_fmt = PS_FMT_F16);
    CHANGES(device = PS_DEV_CUDA);
    CHANGES(min_tokens = 2);
    CHANGES(max_tokens = 9);
    CHANGES(scratch.base = 1);
    CHANGES(scratch.per_token = 1);
    CHANGES(scratch.per_token_col = 1);
    CHANGES(scratch.per_col = 1);
    CHANGES(scratch.per_thread = 1);
    CHANGES(scratch.per_thread_col = 1);
    ps_kernel_spec swapped[2] = {s[1], s[0]};
    ps_kernel_spec_hash(swapped, 2, h);
    cr_assert_neq(memcmp(base, h, 16), 0);
    ps_kernel_spec_hash(s, 1, h);
    cr_assert_neq(memcmp(base, h, 16), 0);
}
