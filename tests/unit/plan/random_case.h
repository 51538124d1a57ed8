/* Random models and machines for tests of the search: the same number gives the same case. */
#ifndef PS_TESTS_RANDOM_CASE_H
#define PS_TESTS_RANDOM_CASE_H

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "gpu_case.h"
#include "plan/whatif.h"

#define RC_MIB ((uint64_t)1 << 20)

typedef struct rc_random {
    uint64_t state;
} rc_random;

static inline uint64_t rc_next(rc_random *r) { /* splitmix64 */
    uint64_t z = (r->state += 0x9e3779b97f4a7c15ull);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static inline uint64_t rc_below(rc_random *r, uint64_t n) {
    return rc_next(r) % n;
}

static inline uint64_t rc_from(rc_random *r, uint64_t least, uint64_t most) {
    return least + rc_below(r, most - least + 1);
}

static inline double rc_unit(rc_random *r) {
    return (double)(rc_next(r) >> 11) * 0x1p-53;
}

/* A factor between 1/by and by. */
static inline double rc_factor(rc_random *r, double by) {
    return exp((2 * rc_unit(r) - 1) * log(by));
}

/* most_layers and widths set how large it gets. */
static inline mb_shape rc_shape(rc_random *r, uint32_t most_layers, uint32_t most_embd) {
    static const ps_dtype types[] = {PS_DTYPE_F16, PS_DTYPE_Q4_0, PS_DTYPE_Q8_0, PS_DTYPE_Q4_0};
    mb_shape s = {.arch = "llama", .head_dim = 128};
    s.n_layers = (uint32_t)rc_from(r, 1, most_layers);
    s.n_embd = 512 * (uint32_t)rc_from(r, 1, most_embd / 512);
    s.n_head_kv = 1u << rc_below(r, 3);
    s.n_head = s.n_head_kv * (uint32_t)rc_from(r, 1, 4);
    s.n_vocab = 1024 * (uint32_t)rc_from(r, 1, 64);
    s.type = types[rc_below(r, 4)];
    s.output_type = rc_below(r, 2) ? s.type : PS_DTYPE_Q6_K;
    s.tied = rc_below(r, 4) == 0;
    if (rc_below(r, 3) == 0) {
        s.arch = "qwen3moe";
        s.qk_norm = 1;
        s.n_expert = 8u << rc_below(r, 4);
        s.n_expert_used = 1 + (uint32_t)rc_below(r, s.n_expert / 4);
        s.n_ff_expert = 256 * (uint32_t)rc_from(r, 1, 4);
    } else {
        s.n_ff = 256 * (uint32_t)rc_from(r, 2, 40);
    }
    if (s.type == PS_DTYPE_F16 && s.n_expert > 32)
        s.type = PS_DTYPE_Q4_0;
    return s;
}

/* One of the fixtures, or the made-up machine, with rates of its own; NULL: one that cannot be (a bus that the memory does not
 * feed). synthetic: only machines whose rates are consistent. */
static inline ps_profile *rc_profile(rc_random *r) {
    static const char *const files[] = {"desktop", "gaming-laptop", "h200-minitron-8b-f16", "workstation",
                                        "h200-qwen3-30b-a3b-q4_0"};
    ps_error e = {0};
    ps_profile *from = NULL, *to = NULL;
    uint64_t which = rc_below(r, 7);
    if (which < 5) {
        char path[128];
        snprintf(path, sizeof path, "fixtures/profiles/%s.yaml", files[which]);
        cr_assert_eq(ps_profile_read(path, &from, &e), PS_OK, "%s: %s", path, e.message);
    } else {
        from = gc_profile();
    }
    ps_cost_model *cost;
    cr_assert_eq(ps_cost_model_new(from, &cost, &e), PS_OK);
    ps_whatif w = {0};
    if (rc_below(r, 4)) {
        w.dram_bytes_per_s = ps_cost_dram_bytes_per_s(cost, from->topology.n_allowed) * rc_factor(r, 2);
        w.pcie_bytes_per_s = ps_cost_bus_bytes_per_s(cost, PS_BUS_H2D, 1e12) * rc_factor(r, 3);
        w.hbm_bytes_per_s = from->gpu.hbm_read_bytes_per_s.median * rc_factor(r, 3);
        w.gpu_flops_per_s = from->gpu.matmul_flops_per_s.median * rc_factor(r, 4);
    }
    ps_cost_model_free(cost);
    ps_status status = ps_profile_whatif(from, &w, &to, &e);
    if (status == PS_E_USAGE) { /* the bus: as fast as it was */
        w.pcie_bytes_per_s = 0;
        status = ps_profile_whatif(from, &w, &to, &e);
    }
    cr_assert_eq(status, PS_OK, "%s: %s", e.subject, e.message);
    ps_profile_free(from);
    return to;
}

static inline gpu_case rc_case(rc_random *r, uint32_t most_layers, uint32_t most_embd) {
    ps_error e = {0};
    mb_shape shape = rc_shape(r, most_layers, most_embd);
    gpu_case c = gc_shape(&shape);
    ps_cost_model_free(c.cost);
    ps_profile_free(c.profile);
    c.profile = rc_profile(r);
    cr_assert_eq(ps_cost_model_new(c.profile, &c.cost, &e), PS_OK);
    return c;
}

#endif
