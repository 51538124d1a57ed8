/* The rule that splits a mixture's experts between two sides, against a plain second version of it; and the scaled half
 * format of the reference. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/moe_rule.h"
#include "kernels/ref/ref.h"

enum { TOKENS = 8, USED = 4, EXPERTS = 70 };

typedef struct entry {
    int32_t expert;
    float weight;
} entry;
typedef struct selection {
    entry e[TOKENS][8]; /* rows of 64 bytes */
} selection;

static uint64_t rng = 7;
static uint32_t rnd(uint32_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

static ps_kargs args_of(selection *s, const uint32_t *resident, uint32_t max_direct) {
    return (ps_kargs){.n_tokens = TOKENS,
                      .n_rows = EXPERTS,
                      .w = {{.experts = EXPERTS}},
                      .src = {{0}, {.data = s, .fmt = PS_FMT_SEL, .cols = USED, .row_bytes = 64}},
                      .resident = resident,
                      .max_direct = max_direct};
}

/* Distinct experts per token, as a router makes them, some of them -1. */
static void fill(selection *s, uint32_t n_experts) {
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < USED; k++) {
            int32_t e;
            bool again;
            do {
                e = (int32_t)rnd(n_experts);
                again = false;
                for (int j = 0; j < k; j++)
                    again = again || s->e[t][j].expert == e;
            } while (again);
            s->e[t][k] = (entry){rnd(9) == 0 ? -1 : e, 1};
        }
}

static bool named(const selection *s, int32_t e) {
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < USED; k++)
            if (s->e[t][k].expert == e)
                return true;
    return false;
}

/* The rule as model/ops.h says it, expert by expert. */
static void plain(const ps_kargs *a, const selection *s, bool out[EXPERTS]) {
    uint32_t direct = 0;
    for (int32_t e = 0; e < EXPERTS; e++) {
        const bool sel = named(s, e);
        bool near = sel && a->resident && (a->resident[e / 32] >> e % 32 & 1);
        if (sel && !near && direct < a->max_direct)
            near = true, direct++;
        out[e] = sel && (a->part == PS_MOE_PART_ALL || near == (a->part == PS_MOE_PART_NEAR)) &&
                 (uint64_t)e >= a->row0 && (uint64_t)e < a->row0 + a->n_rows;
    }
}

Test(moe_rule, as_said_in_words) {
    selection s = {0};
    for (int round = 0; round < 2000; round++) {
        uint32_t resident[PS_MOE_WORDS] = {0}, bits[PS_MOE_WORDS];
        for (int i = 0; i < 3; i++)
            resident[i] = rnd(2) ? rnd(1u << 31) & rnd(1u << 31) : 0;
        fill(&s, round % 2 ? EXPERTS : 9);
        ps_kargs a = args_of(&s, round % 3 ? resident : NULL, round % 5 == 0 ? UINT32_MAX : rnd(12));
        a.part = (ps_moe_part)rnd(PS_MOE_PART_COUNT);
        if (round % 4 == 0) {
            a.row0 = rnd(EXPERTS);
            a.n_rows = rnd(EXPERTS - (uint32_t)a.row0 + 1);
        }
        bool want[EXPERTS];
        plain(&a, &s, want);
        ps_moe_select(&a, bits);
        for (int32_t e = 0; e < EXPERTS; e++)
            cr_assert_eq(ps_moe_takes(bits, e), want[e], "round %d, expert %d", round, e);
        for (uint32_t e = EXPERTS; e < PS_MAX_EXPERTS; e++)
            cr_assert(!ps_moe_takes(bits, e));
        cr_assert(!ps_moe_takes(bits, -1));
        cr_assert(!ps_moe_takes(bits, PS_MAX_EXPERTS));
    }
}

/* Near and far share nothing and are all, also cut into ranges; the order of rows and slots does not matter. */
Test(moe_rule, each_expert_in_one_part) {
    selection s = {0};
    static const uint32_t directs[] = {0, 1, 5, 1000};
    for (int round = 0; round < 500; round++) {
        uint32_t resident[PS_MOE_WORDS] = {rnd(1u << 31), 0, rnd(64)};
        uint32_t near[PS_MOE_WORDS], far[PS_MOE_WORDS], all[PS_MOE_WORDS], again[PS_MOE_WORDS];
        fill(&s, EXPERTS);
        ps_kargs a = args_of(&s, resident, directs[round % 4]);
        ps_moe_select(&a, all);
        a.part = PS_MOE_PART_FAR;
        ps_moe_select(&a, far);
        a.part = PS_MOE_PART_NEAR;
        ps_moe_select(&a, near);
        uint32_t n_direct = 0;
        for (int w = 0; w < PS_MOE_WORDS; w++) {
            cr_assert_eq(near[w] & far[w], 0);
            cr_assert_eq(near[w] | far[w], all[w]);
            n_direct += (uint32_t)__builtin_popcount(near[w] & ~resident[w]);
        }
        cr_assert_leq(n_direct, directs[round % 4]);
        if (directs[round % 4] == 1000)
            for (int w = 0; w < PS_MOE_WORDS; w++)
                cr_assert_eq(far[w], 0);
        selection turned = {0};
        for (int t = 0; t < TOKENS; t++)
            for (int k = 0; k < USED; k++)
                turned.e[TOKENS - 1 - t][USED - 1 - k] = s.e[t][k];
        a.src[1].data = &turned;
        ps_moe_select(&a, again);
        cr_assert_arr_eq(again, near, sizeof near);
        uint32_t parts[PS_MOE_WORDS] = {0};
        for (a.row0 = 0; a.row0 < EXPERTS; a.row0 += a.n_rows) {
            uint32_t range[PS_MOE_WORDS];
            a.n_rows = 1 + rnd(EXPERTS - (uint32_t)a.row0);
            ps_moe_select(&a, range);
            for (int w = 0; w < PS_MOE_WORDS; w++) {
                cr_assert_eq(range[w] & parts[w], 0);
                parts[w] |= range[w];
            }
        }
        cr_assert_arr_eq(parts, near, sizeof near);
    }
}

static void store_half(const float *x, uint64_t n, uint16_t *h, float *scale, double *back) {
    static _Alignas(64) uint8_t row[512];
    double in[64];
    const ps_xarg to = {.data = row, .fmt = PS_FMT_F16S, .cols = n, .row_bytes = sizeof row};
    for (uint64_t i = 0; i < n; i++)
        in[i] = (double)x[i];
    memset(row, 0x5a, sizeof row);
    ps_ref_store(&to, 0, 0, n, in);
    ps_ref_load(&to, 0, 0, n, back);
    memcpy(h, row, n * 2);
    memcpy(scale, row + ps_f16s_scale_offset(n), 4);
    cr_assert_eq(row[ps_f16s_scale_offset(n) + 4], 0x5a);
}

Test(scaled_half, the_least_power_of_two) {
    static const struct {
        float most, scale;
    } cases[] = {{0, 1},     {1, 1},     {32768, 1}, {32768.5f, 2},
                 {65536, 2}, {65537, 4}, {1e6f, 32}, {3e38f, 0x1p113f}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float x[40] = {0}, scale;
        uint16_t h[40];
        double back[40];
        x[7] = -cases[i].most, x[33] = cases[i].most / 3;
        store_half(x, 40, h, &scale, back);
        cr_assert_eq(scale, cases[i].scale, "largest %g: scale %g", (double)cases[i].most, (double)scale);
        for (int k = 0; k < 40; k++)
            cr_assert_leq(fabs(back[k] - (double)x[k]), fabs((double)x[k]) / 2048, "element %d", k);
    }
    /* What is not finite stays so, and spoils no other element. */
    float x[3] = {INFINITY, NAN, 5}, scale;
    uint16_t h[3];
    double back[3];
    store_half(x, 3, h, &scale, back);
    cr_assert_eq(scale, 1);
    cr_assert(isinf(back[0]) && isnan(back[1]));
    cr_assert_eq(back[2], 5);
}
