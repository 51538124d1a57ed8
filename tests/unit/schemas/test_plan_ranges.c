/* Ranges of weights: bytes, residents, layers of copies, tiles. */
#include <criterion/criterion.h>

#include "plan_case.h"

typedef struct bytes_case {
    ps_role role;
    uint32_t layer;
    uint64_t row0, n_rows, col0, n_cols;
    uint64_t bytes, row_bytes; /* 0: refused */
} bytes_case;

static void bytes_are(const mb_shape *shape, const bytes_case *cases, uint32_t n) {
    plan_case c;
    plan_case_open(&c, shape);
    for (uint32_t i = 0; i < n; i++) {
        const bytes_case *x = &cases[i];
        ps_weight_range r = {x->role, x->layer, x->row0, x->n_rows, x->col0, x->n_cols};
        uint64_t bytes = 0, row = 0;
        bool ok = ps_weight_range_bytes(c.model, &r, &bytes, &row);
        cr_assert_eq(ok, x->bytes != 0, "case %u", i);
        cr_assert_eq(bytes, x->bytes, "case %u: %llu", i, (unsigned long long)bytes);
        cr_assert_eq(row, x->row_bytes, "case %u: %llu", i, (unsigned long long)row);
        cr_assert_eq(ps_weight_range_bytes(c.model, &r, &bytes, NULL), ok, "case %u", i);
    }
    plan_case_close(&c);
}

/* FFN_GATE 2048 x 512, FFN_DOWN 512 x 2048. */
Test(plan_ranges, bytes_of_dense_weights) {
    mb_shape shape = mb_llama_small;
    shape.n_embd = 512;
    shape.n_ff = 2048;
    shape.head_dim = 128;
    const bytes_case q4_0[] = {
        {PS_ROLE_FFN_GATE, 1, 0, 2048, 0, 0, 2048 * 288, 288},
        {PS_ROLE_FFN_GATE, 1, 0, 2048, 0, 512, 2048 * 288, 288},
        {PS_ROLE_FFN_GATE, 0, 2047, 1, 0, 0, 288, 288},
        {PS_ROLE_FFN_DOWN, 0, 16, 8, 256, 512, 8 * 288, 288},
        {PS_ROLE_FFN_DOWN, 0, 16, 8, 1792, 256, 8 * 144, 144},
        {PS_ROLE_FFN_GATE, 0, 2047, 2, 0, 0, 0, 0},               /* rows outside */
        {PS_ROLE_FFN_GATE, 0, UINT64_MAX, 2, 0, 0, 0, 0},         /* overflow */
        {PS_ROLE_FFN_GATE, 0, 0, 0, 0, 0, 0, 0},                  /* no rows */
        {PS_ROLE_FFN_DOWN, 0, 0, 1, 1792, 512, 0, 0},             /* columns outside */
        {PS_ROLE_FFN_DOWN, 0, 0, 1, 128, 256, 0, 0},              /* begins within a step */
        {PS_ROLE_FFN_DOWN, 0, 0, 1, 0, 128, 0, 0},                /* ends within a step */
        {PS_ROLE_FFN_DOWN, 0, 0, 1, 1, 0, 0, 0},                  /* all columns from 1 on */
        {PS_ROLE_FFN_DOWN, 0, 0, 1, 256, UINT64_MAX - 255, 0, 0}, /* overflow */
        {PS_ROLE_FFN_DOWN, 2, 0, 1, 0, 0, 0, 0},                  /* no such layer */
        {PS_ROLE_FFN_DOWN_EXPS, 0, 0, 1, 0, 0, 0, 0},             /* no such weight */
        {PS_ROLE_OUTPUT, 1, 0, 1, 0, 0, 0, 0},                    /* of no layer */
        {PS_ROLE_NONE, 0, 0, 1, 0, 0, 0, 0},
    };
    bytes_are(&shape, q4_0, sizeof q4_0 / sizeof q4_0[0]);
    shape.type =
        PS_DTYPE_Q6_K; /* 210 bytes a block of 256: rows at multiples of 16 bytes every 2048 columns */
    const bytes_case q6_k[] = {
        {PS_ROLE_FFN_DOWN, 0, 0, 3, 0, 0, 3 * 1680, 1680},
        {PS_ROLE_FFN_DOWN, 0, 0, 3, 0, 256, 0, 0},
        {PS_ROLE_FFN_GATE, 0, 0, 3, 0, 0, 3 * 420, 420}, /* whole rows may have any length */
    };
    bytes_are(&shape, q6_k, sizeof q6_k / sizeof q6_k[0]);
}

Test(plan_ranges, rows_of_experts_are_experts) {
    const bytes_case cases[] = {
        /* 8 experts of 32 x 64 in Q8_0 */
        {PS_ROLE_FFN_GATE_EXPS, 0, 0, 8, 0, 0, 8 * 32 * 68, 68},
        {PS_ROLE_FFN_GATE_EXPS, 1, 7, 1, 0, 64, 32 * 68, 68},
        {PS_ROLE_FFN_GATE_EXPS, 1, 7, 2, 0, 0, 0, 0},
        {PS_ROLE_FFN_DOWN_EXPS, 1, 3, 2, 0, 0, 2 * 64 * 34, 34},
    };
    bytes_are(&mb_qwen3moe_small, cases, sizeof cases / sizeof cases[0]);
}

Test(plan_ranges, the_resident_piece_holds_all_of_the_range) {
    ps_resident pieces[] = {
        {{PS_ROLE_FFN_UP, 3, 0, 100, 0, 0}, 0},
        {{PS_ROLE_FFN_UP, 3, 100, 50, 0, 0}, 256},
        {{PS_ROLE_FFN_DOWN, 3, 0, 64, 256, 512}, 512},
    };
    ps_level level = {.n_resident = 3, .resident = pieces};
    const struct {
        ps_weight_range range;
        int piece;
    } cases[] = {
        {{PS_ROLE_FFN_UP, 3, 0, 100, 0, 0}, 0},     {{PS_ROLE_FFN_UP, 3, 99, 1, 256, 256}, 0},
        {{PS_ROLE_FFN_UP, 3, 99, 2, 0, 0}, -1},     {{PS_ROLE_FFN_UP, 3, 149, 1, 0, 0}, 1},
        {{PS_ROLE_FFN_UP, 3, 149, 2, 0, 0}, -1},    {{PS_ROLE_FFN_UP, 2, 0, 1, 0, 0}, -1},
        {{PS_ROLE_FFN_DOWN, 3, 0, 64, 0, 0}, -1},   {{PS_ROLE_FFN_DOWN, 3, 8, 8, 256, 512}, 2},
        {{PS_ROLE_FFN_DOWN, 3, 8, 8, 512, 256}, 2}, {{PS_ROLE_FFN_DOWN, 3, 8, 8, 512, 512}, -1},
        {{PS_ROLE_FFN_DOWN, 3, 8, 8, 0, 256}, -1},  {{PS_ROLE_FFN_UP, 3, UINT64_MAX, 2, 0, 0}, -1},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert_eq(ps_level_find_resident(&level, &cases[i].range),
                     cases[i].piece < 0 ? NULL : &pieces[cases[i].piece], "case %u", i);
}

Test(plan_ranges, copies_ahead_wrap_to_layer_0) {
    ps_plan plan = {.n_layers = 3};
    ps_instr in = {.op = PS_OP_COPY, .w = {PS_ROLE_FFN_UP, PS_ROLE_NONE, PS_ROLE_NONE}};
    cr_assert_eq(ps_instr_weight_layer(&plan, &in, 1), 1);
    in.ahead = true;
    cr_assert_eq(ps_instr_weight_layer(&plan, &in, 1), 2);
    cr_assert_eq(ps_instr_weight_layer(&plan, &in, 2), 0);
    in.w[0] = PS_ROLE_OUTPUT; /* of no layer */
    cr_assert_eq(ps_instr_weight_layer(&plan, &in, 1), 0);
}

Test(plan_ranges, first_and_last_tiles) {
    ps_instr in = {.when = PS_WHEN_EVERY};
    for (uint32_t tile = 0; tile < 3; tile++) {
        in.when = PS_WHEN_EVERY;
        cr_assert(ps_instr_runs(&in, tile, 3));
        in.when = PS_WHEN_FIRST;
        cr_assert_eq(ps_instr_runs(&in, tile, 3), tile == 0);
        in.when = PS_WHEN_LAST;
        cr_assert_eq(ps_instr_runs(&in, tile, 3), tile == 2);
        cr_assert_eq(ps_instr_runs(&in, 0, 1), true);
    }
}
