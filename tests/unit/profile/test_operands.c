/* Operands: what a call finds in caches must not hang on how many calls were made before it. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "profile/operands.h"

enum { COLD = 8 << 20 };

static const ps_kernel *kernel_of(ps_op op, ps_dtype type) {
    uint32_t n;
    const ps_kernel *k = ps_kernel_table(&n);
    for (uint32_t i = 0; i < n; i++)
        if (k[i].spec.op == op && k[i].spec.wtype == type && k[i].spec.device == PS_DEV_CPU &&
            k[i].spec.min_tokens <= 1)
            return &k[i];
    return NULL;
}

static ps_operands *operands(void) {
    ps_operands *o;
    ps_error err = {0};
    cr_assert_eq(ps_operands_new(COLD, NULL, &o, &err), PS_OK);
    return o;
}

static ps_kargs args(const ps_operands *o, uint64_t i, ps_seq_span *span) {
    ps_kargs a;
    ps_operands_args(o, i, &a, span);
    return a;
}

Test(operands, weights_go_on_behind_those_that_were_read) {
    ps_operands *o = operands();
    ps_error err = {0};
    ps_seq_span span;
    const ps_kernel *k = kernel_of(PS_OP_MATMUL, PS_DTYPE_Q8_0);
    ps_profile_point p = {.kernel = k->spec.id, .rows = 256, .cols = 1024, .n_tokens = 1, .n_threads = 1};
    cr_assert_eq(ps_operands_set(o, k, &p, &err), PS_OK);
    const uint64_t stride = (uint64_t)(args(o, 1, &span).w[0].data - args(o, 0, &span).w[0].data);
    const uint8_t *next = args(o, 5, &span).w[0].data;
    cr_expect_eq(COLD / stride, 30);
    ps_operands_used(o, 5);
    cr_assert_eq(ps_operands_set(o, k, &p, &err), PS_OK);
    cr_expect_eq(args(o, 0, &span).w[0].data, next);
    /* Another shape begins behind them too, and the last copy is followed by the first. */
    p.rows = 96;
    cr_assert_eq(ps_operands_set(o, k, &p, &err), PS_OK);
    const uint8_t *first = args(o, 0, &span).w[0].data;
    cr_expect(first >= next && first < next + stride);
    uint64_t n = 1;
    while (args(o, n, &span).w[0].data != first && n <= COLD)
        n++;
    cr_expect_gt(n * 96 * 1024, COLD / 2, "%lu copies", n);
    ps_operands_free(o);
}

Test(operands, caches_of_single_tokens_go_on_as_well) {
    ps_operands *o = operands();
    ps_error err = {0};
    ps_seq_span first, next;
    const ps_kernel *k = kernel_of(PS_OP_ATTENTION, PS_DTYPE_NONE);
    const ps_profile_point p = {.kernel = k->spec.id,
                                .rows = 8,
                                .cols = 64,
                                .heads_kv = 2,
                                .kv_len = 512,
                                .n_tokens = 1,
                                .n_threads = 1};
    cr_assert_eq(ps_operands_set(o, k, &p, &err), PS_OK);
    args(o, 7, &next);
    ps_operands_used(o, 7);
    cr_assert_eq(ps_operands_set(o, k, &p, &err), PS_OK);
    args(o, 0, &first);
    cr_expect_eq(first.k, next.k);
    ps_operands_free(o);
}

/* Copies of experts by selections of them: all that calls read together is more than a cache of that size holds. */
Test(operands, experts_are_cold) {
    ps_operands *o = operands();
    ps_error err = {0};
    ps_seq_span span;
    const ps_kernel *k = kernel_of(PS_OP_MOE_DISPATCH, PS_DTYPE_Q4_0);
    const ps_profile_point p = {.kernel = k->spec.id,
                                .rows = 256,
                                .cols = 256,
                                .heads_kv = 32,
                                .kv_len = 2,
                                .n_tokens = 1,
                                .n_threads = 1};
    cr_assert_eq(ps_operands_set(o, k, &p, &err), PS_OK);
    enum { CALLS = 1000, EXPERTS = 32 };
    const uint8_t *base = NULL, *last = NULL;
    for (int i = 0; i < CALLS; i++) {
        const uint8_t *w = args(o, (uint64_t)i, &span).w[0].data;
        base = !base || w < base ? w : base;
        last = !last || w > last ? w : last;
    }
    const ps_warg w = args(o, 0, &span).w[0];
    const uint64_t expert_bytes = w.row_bytes * w.rows,
                   n_places = (uint64_t)(last - base) / expert_bytes + EXPERTS;
    bool *read = calloc(n_places, sizeof *read);
    uint64_t n = 0;
    for (int i = 0; i < CALLS; i++) {
        const ps_kargs a = args(o, (uint64_t)i, &span);
        for (uint32_t e = 0; e < p.kv_len; e++) {
            int32_t expert;
            memcpy(&expert, (const uint8_t *)a.src[1].data + 8 * e, sizeof expert);
            const uint64_t at = (uint64_t)(a.w[0].data - base) / expert_bytes + (uint64_t)expert;
            cr_assert_lt(at, n_places);
            n += !read[at];
            read[at] = true;
        }
    }
    cr_expect_gt(3 * n * expert_bytes, COLD / 2, "%lu experts read", n);
    free(read);
    ps_operands_free(o);
}

Test(operands, rows_of_tokens_are_cold) {
    ps_operands *o = operands();
    ps_error err = {0};
    ps_seq_span span;
    const ps_kernel *k = kernel_of(PS_OP_EMBED, PS_DTYPE_F16);
    const ps_profile_point p = {.kernel = k->spec.id, .cols = 512, .n_tokens = 8, .n_threads = 1};
    cr_assert_eq(ps_operands_set(o, k, &p, &err), PS_OK);
    const uint64_t n_rows = args(o, 0, &span).w[0].rows;
    bool *read = calloc(n_rows, sizeof *read);
    uint64_t n = 0;
    for (uint64_t i = 0; i < 1024; i++) {
        const ps_kargs a = args(o, i, &span);
        for (uint32_t t = 0; t < p.n_tokens; t++) {
            cr_assert(a.tokens[t] >= 0 && (uint64_t)a.tokens[t] < n_rows);
            n += !read[a.tokens[t]];
            read[a.tokens[t]] = true;
        }
    }
    cr_expect_gt(n, n_rows / 2, "%lu of %lu rows", n, n_rows);
    free(read);
    ps_operands_free(o);
}
