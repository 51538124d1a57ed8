/* A profile scaled to other rates: nothing asked for changes nothing, what is asked for is exact, no point gets faster than the
 * new ceilings allow or slower with more of anything, and every result is a valid profile that can be planned with. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "gpu_case.h"
#include "plan/whatif.h"
#include "synthetic_profile.h"

#define GIB ((uint64_t)1 << 30)
static const char dense_path[] = "fixtures/profiles/h200-minitron-8b-f16.yaml",
                  moe_path[] = "fixtures/profiles/h200-qwen3-30b-a3b-q4_0.yaml",
                  cpu_path[] = "fixtures/profiles/vm-2-cores.yaml";

static ps_profile *load(const char *path) {
    ps_error e = {0};
    ps_profile *p = NULL;
    cr_assert_eq(ps_profile_read(path, &p, &e), PS_OK, "%s: %s", e.subject, e.message);
    return p;
}

static ps_profile *whatif(const ps_profile *p, const ps_whatif *w) {
    ps_error e = {0};
    ps_profile *out = NULL;
    cr_assert_eq(ps_profile_whatif(p, w, &out, &e), PS_OK, "%s: %s", e.subject, e.message);
    cr_assert_eq(ps_profile_validate(out, &e), PS_OK, "%s: %s", e.subject, e.message);
    return out;
}

static ps_cost_model *cost_of(const ps_profile *p) {
    ps_cost_model *c = NULL;
    cr_assert_eq(ps_cost_model_new(p, &c, NULL), PS_OK);
    return c;
}

static char *text_of(const ps_profile *p) {
    ps_error e = {0};
    char *text = NULL;
    uint64_t n;
    cr_assert_eq(ps_profile_format(p, &text, &n, &e), PS_OK, "%s: %s", e.subject, e.message);
    return text;
}

static void near(double a, double b, const char *what) {
    cr_assert(fabs(a - b) <= 1e-9 * fabs(b), "%s: %.12g, not %.12g", what, a, b);
}

static void identity(ps_profile *p) {
    ps_profile *same = whatif(p, &(ps_whatif){0});
    char *a = text_of(p), *b = text_of(same);
    cr_assert_str_eq(a, b);
    free(a);
    free(b);
    ps_profile_free(same);
    ps_profile_free(p);
}
Test(whatif, identity) {
    identity(load(dense_path));
    identity(load(moe_path));
    identity(load(cpu_path));
    identity(gp_profile());
    identity(syn_profile());
}

/* Asking for what is there changes the note and the mark, no number. */
Test(whatif, as_it_is) {
    ps_profile *p = load(moe_path);
    ps_cost_model *c = cost_of(p);
    ps_profile *w =
        whatif(p, &(ps_whatif){.pcie_bytes_per_s = ps_cost_bus_bytes_per_s(c, PS_BUS_H2D, 16 << 20),
                               .dram_bytes_per_s = ps_cost_dram_bytes_per_s(c, 16),
                               .hbm_bytes_per_s = p->gpu.hbm_read_bytes_per_s.median,
                               .gpu_flops_per_s = p->gpu.matmul_flops_per_s.median,
                               .n_threads = 16,
                               .vram_bytes = p->gpu.vram_bytes});
    cr_assert_eq(w->n_points, p->n_points);
    for (uint32_t i = 0; i < p->n_points; i++)
        near(w->points[i].time_s.median, p->points[i].time_s.median, "point");
    for (uint32_t i = 0; i < p->gpu.n_copies; i++)
        near(w->gpu.copies[i].bw_bytes_per_s.median, p->gpu.copies[i].bw_bytes_per_s.median, "copy");
    for (uint32_t i = 0; i < p->gpu.n_together; i++)
        near(w->gpu.together[i].bus_bytes_per_s.median, p->gpu.together[i].bus_bytes_per_s.median,
             "together");
    cr_assert(w->synthetic && !p->synthetic);
    cr_assert_neq(memcmp(w->machine_hash, p->machine_hash, PS_HASH_BYTES), 0);
    cr_assert(strncmp(w->note, "synthetic", 9) == 0 && strstr(w->note, p->note));
    ps_cost_model_free(c);
    ps_profile_free(w);
    ps_profile_free(p);
}

static const ps_whatif laptop = {.pcie_bytes_per_s = 13e9,
                                 .dram_bytes_per_s = 55e9,
                                 .hbm_bytes_per_s = 230e9,
                                 .gpu_flops_per_s = 40e12,
                                 .cpu_flops_per_s = 700e9,
                                 .vram_bytes = 8 * GIB,
                                 .memory_bytes = 32 * GIB,
                                 .n_threads = 8};

static void exact(const char *path) {
    ps_profile *p = load(path), *w = whatif(p, &laptop);
    ps_cost_model *c = cost_of(w), *was = cost_of(p);
    near(ps_cost_bus_bytes_per_s(c, PS_BUS_H2D, 16 << 20), 13e9, "bus");
    near(ps_cost_bus_bytes_per_s(c, PS_BUS_DIRECT, 16 << 20),
         ps_cost_bus_bytes_per_s(was, PS_BUS_DIRECT, 16 << 20) * 13e9 /
             ps_cost_bus_bytes_per_s(was, PS_BUS_H2D, 16 << 20),
         "direct");
    near(ps_cost_dram_alone(c, 8) / ps_cost_dram_alone(was, 8), 55e9 / ps_cost_dram_bytes_per_s(was, 8),
         "dram");
    near(w->gpu.hbm_read_bytes_per_s.median, 230e9, "hbm");
    near(w->gpu.matmul_flops_per_s.median, 40e12, "gpu flops");
    near(w->gpu.attention_flops_per_s.median,
         p->gpu.attention_flops_per_s.median * 40e12 / p->gpu.matmul_flops_per_s.median, "attention");
    cr_assert_eq(w->gpu.vram_bytes, 8 * GIB);
    cr_assert_eq(w->topology.memory_bytes, 32 * GIB);
    cr_assert_eq(w->topology.n_allowed, 8);
    cr_assert_eq(w->gpu.uuid[0], '\0');
    /* Start-up stays: a small piece loses less than a large one. */
    double small =
        ps_cost_bus_bytes_per_s(c, PS_BUS_H2D, 4096) / ps_cost_bus_bytes_per_s(was, PS_BUS_H2D, 4096);
    cr_assert(small > 0.5 && small < 1, "%g", small);
    ps_cost_model_free(c);
    ps_cost_model_free(was);
    ps_profile_free(w);
    ps_profile_free(p);
}
Test(whatif, rates_are_exact) {
    exact(dense_path);
    exact(moe_path);
}

static const ps_profile_point *same_point(const ps_profile *p, const ps_profile_point *x) {
    for (uint32_t i = 0; i < p->n_points; i++) {
        const ps_profile_point *y = &p->points[i];
        if (y->kernel == x->kernel && y->rows == x->rows && y->cols == x->cols &&
            y->heads_kv == x->heads_kv && y->kv_len == x->kv_len && y->n_tokens == x->n_tokens &&
            y->n_threads == x->n_threads && y->beside == x->beside)
            return y;
    }
    return NULL;
}

/* Products against the new ceilings, by figures of their own: bytes of the matrix, two operations an element and row. */
static void no_faster_than_ceilings(const char *path, const ps_whatif *wish) {
    ps_profile *p = load(path), *w = whatif(p, wish);
    ps_cost_model *c = cost_of(w), *was = cost_of(p);
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_points; i++) {
        const ps_profile_point *x = &w->points[i], *y = same_point(p, x);
        const ps_kernel_spec *k = ps_catalogue_find(w, x->kernel);
        const ps_dtype_info *type = ps_dtype_find((uint32_t)k->wtype);
        if (k->op != PS_OP_MATMUL || !type)
            continue;
        double elems = (double)x->rows * (double)x->cols,
               bytes = elems * type->block_bytes / type->block_elems;
        bool gpu = k->device == PS_DEV_CUDA, direct = x->beside == PS_BESIDE_DIRECT;
        double rate = direct ? ps_cost_bus_bytes_per_s(c, PS_BUS_DIRECT, 1e12)
                      : gpu  ? w->gpu.hbm_read_bytes_per_s.median
                             : ps_cost_dram_bytes_per_s(c, x->n_threads);
        double rate0 = direct ? ps_cost_bus_bytes_per_s(was, PS_BUS_DIRECT, 1e12)
                       : gpu  ? p->gpu.hbm_read_bytes_per_s.median
                              : ps_cost_dram_bytes_per_s(was, x->n_threads);
        if (!y || y->time_s.median >= bytes / rate0) {
            cr_assert_geq(x->time_s.median, bytes / rate * (1 - 1e-9), "%s %s, %u tokens, %u threads", path,
                          k->name, x->n_tokens, x->n_threads);
            n++;
        }
        if (gpu && y->time_s.median >= 2 * elems * x->n_tokens / p->gpu.matmul_flops_per_s.median)
            cr_assert_geq(x->time_s.median,
                          2 * elems * x->n_tokens / w->gpu.matmul_flops_per_s.median * (1 - 1e-9));
    }
    cr_assert_gt(n, 20);
    ps_cost_model_free(c);
    ps_cost_model_free(was);
    ps_profile_free(w);
    ps_profile_free(p);
}
Test(whatif, no_faster_than_ceilings) {
    const ps_whatif slow = {.hbm_bytes_per_s = 100e9},
                    fast = {.hbm_bytes_per_s = 40e12, .dram_bytes_per_s = 500e9};
    no_faster_than_ceilings(dense_path, &laptop);
    no_faster_than_ceilings(moe_path, &laptop);
    no_faster_than_ceilings(moe_path, &slow);
    no_faster_than_ceilings(moe_path, &fast);
}

/* What is bound follows its ceiling, what is not does not. */
Test(whatif, bound_points_follow) {
    ps_profile *p = load(dense_path),
               *w = whatif(p, &(ps_whatif){.hbm_bytes_per_s = p->gpu.hbm_read_bytes_per_s.median / 10}),
               *f = whatif(p, &(ps_whatif){.gpu_flops_per_s = p->gpu.matmul_flops_per_s.median / 10}),
               *b = whatif(p, &(ps_whatif){.pcie_bytes_per_s = 5e9}),
               *d = whatif(p, &(ps_whatif){.dram_bytes_per_s = 6.3e9});
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_points; i++) {
        const ps_profile_point *x = &p->points[i];
        const ps_kernel_spec *k = ps_catalogue_find(p, x->kernel);
        if (k->op != PS_OP_MATMUL)
            continue;
        double t = x->time_s.median, hbm = w->points[i].time_s.median / t,
               flops = f->points[i].time_s.median / t, bus = b->points[i].time_s.median / t,
               dram = d->points[i].time_s.median / t;
        bool large = x->rows * x->cols > 4096 * 4096;
        if (k->device == PS_DEV_CPU) {
            cr_assert(hbm == 1 && flops == 1 && bus == 1);
            cr_assert(x->n_tokens > 1 || !large || x->n_threads < 16 || dram > 5, "%s: %g", k->name, dram);
            n += dram > 5;
        } else if (x->beside == PS_BESIDE_DIRECT) {
            cr_assert(hbm == 1 && (dram == 1 || dram > 1) && bus > 5, "%s: %g %g %g", k->name, hbm, dram,
                      bus);
        } else if (x->n_tokens == 1 && large) {
            cr_assert(hbm > 8 && hbm <= 10.0001 && bus == 1 && dram == 1, "%s: %g", k->name, hbm);
        } else if (x->n_tokens >= 2048 && large) {
            cr_assert(flops > 8 && flops <= 10.0001 && hbm < 2 && bus == 1, "%s: %g %g", k->name, flops, hbm);
        }
    }
    cr_assert_gt(n, 2);
    ps_profile_free(w);
    ps_profile_free(f);
    ps_profile_free(b);
    ps_profile_free(d);
    ps_profile_free(p);
}

static double *field(ps_whatif *w, int i) {
    double *const fields[] = {&w->pcie_bytes_per_s, &w->dram_bytes_per_s, &w->hbm_bytes_per_s,
                              &w->gpu_flops_per_s, &w->cpu_flops_per_s};
    return fields[i];
}

/* More of any rate: no point slower, no rate of copies or beside the CPU less. */
static void monotone(const char *path) {
    static const double steps[] = {0.25, 0.9, 1, 1.5};
    ps_profile *p = load(path);
    for (int i = 0; i < 5; i++) {
        ps_profile *last = NULL;
        for (size_t s = 0; s < 4; s++) {
            ps_whatif w = laptop;
            w.cpu_flops_per_s = 700e9;
            *field(&w, i) *= steps[s];
            ps_profile *now = whatif(p, &w);
            for (uint32_t k = 0; last && k < now->n_points; k++)
                cr_assert_leq(now->points[k].time_s.median, last->points[k].time_s.median * (1 + 1e-12));
            for (uint32_t k = 0; last && k < now->gpu.n_copies; k++)
                cr_assert_geq(now->gpu.copies[k].bw_bytes_per_s.median,
                              last->gpu.copies[k].bw_bytes_per_s.median * (1 - 1e-12));
            for (uint32_t k = 0; last && k < now->gpu.n_together; k++) {
                cr_assert_geq(now->gpu.together[k].bus_bytes_per_s.median,
                              last->gpu.together[k].bus_bytes_per_s.median * (1 - 1e-12));
                cr_assert_geq(now->gpu.together[k].dram_bytes_per_s.median,
                              last->gpu.together[k].dram_bytes_per_s.median * (1 - 1e-12));
            }
            ps_profile_free(last);
            last = now;
        }
        ps_profile_free(last);
    }
    ps_profile_free(p);
}
Test(whatif, more_is_never_slower) {
    monotone(dense_path);
    monotone(moe_path);
}

/* A step of a large model on the scaled machine, the best that the planner finds. */
static double workload(gpu_case *c, const ps_profile *p, uint64_t budget) {
    ps_error e = {0};
    ps_level_request level = gc_level(budget, 4096, 1, p->topology.n_allowed);
    ps_cost_model *cost = cost_of(p);
    ps_plan_request r = gc_request(c, &level, 1);
    r.profile = p;
    r.cost = cost;
    ps_plan *plan = NULL;
    cr_assert_eq(ps_plan_build(&r, &plan, NULL, &e), PS_OK, "%s: %s", e.subject, e.message);
    const ps_level *l = &plan->levels[0];
    double t = 0;
    for (uint32_t i = 0; i < l->n_tiers; i++)
        if (l->tiers[i].max_tokens == 1 || l->tiers[i].max_tokens == 1024)
            t += (l->tiers[i].max_tokens == 1 ? 256 : 1) *
                 (l->tiers[i].step_empty_s + l->tiers[i].step_full_s) / 2;
    cr_assert(isfinite(t) && t > 0);
    ps_plan_free(plan);
    ps_cost_model_free(cost);
    return t;
}

/* The planner's choice among what it tries is within a few percent of the best: with more of a rate it may lose that much. */
Test(whatif, plans_gain_from_more) {
    gpu_case c = gc_shape(&mb_qwen3_30b_a3b);
    ps_profile *p = load(moe_path);
    for (int i = 0; i < 3; i++) {
        double last = INFINITY, first = 0;
        for (int s = 0; s < 3; s++) {
            ps_whatif w = laptop;
            *field(&w, i) *= 0.5 * (1 << s);
            if (i == 0)
                w.dram_bytes_per_s = 80e9;
            ps_profile *q = whatif(p, &w);
            double t = workload(&c, q, 4 * GIB);
            cr_assert_leq(t, last * 1.03, "rate %d, step %d: %g after %g", i, s, t, last);
            first = s ? first : t;
            last = t;
            ps_profile_free(q);
        }
        cr_assert_lt(last, first, "rate %d", i);
    }
    ps_profile_free(p);
    gc_close(&c);
}

Test(whatif, threads) {
    ps_profile *p = load(moe_path), *few = whatif(p, &(ps_whatif){.n_threads = 4}),
               *many = whatif(p, &(ps_whatif){.n_threads = 24});
    ps_cost_model *c = cost_of(p), *a = cost_of(few), *b = cost_of(many);
    for (uint32_t i = 0; i < p->n_points; i++) {
        const ps_profile_point *x = &p->points[i];
        const ps_kernel_spec *k = ps_catalogue_find(p, x->kernel);
        if (k->device != PS_DEV_CPU || x->n_threads != 16)
            continue;
        ps_cost_query q = {x->kernel,         x->rows,     x->cols, x->heads_kv,
                           (double)x->kv_len, x->n_tokens, 4,       x->beside};
        ps_cost at4, at24;
        cr_assert(ps_cost_lookup(a, &q, &at4));
        q.n_threads = 24;
        cr_assert(ps_cost_lookup(b, &q, &at24));
        cr_assert(at4.quality == PS_COST_MEASURED && at4.time_s >= x->time_s.median &&
                      at4.time_s <= 4.001 * x->time_s.median,
                  "%s: %g %g", k->name, at4.time_s, x->time_s.median);
        cr_assert(at24.time_s <= x->time_s.median * 1.0001 &&
                      at24.time_s >= x->time_s.median * 16 / 24 * 0.999,
                  "%s: %g %g", k->name, at24.time_s, x->time_s.median);
    }
    cr_assert_lt(ps_cost_matmul_flops_per_s(a, 4), 0.3 * ps_cost_matmul_flops_per_s(c, 16));
    cr_assert_gt(ps_cost_matmul_flops_per_s(b, 24), 1.2 * ps_cost_matmul_flops_per_s(c, 16));
    ps_cost_model_free(a);
    ps_cost_model_free(b);
    ps_cost_model_free(c);
    ps_profile_free(few);
    ps_profile_free(many);
    ps_profile_free(p);
}

Test(whatif, no_gpu) {
    ps_profile *p = load(moe_path), *w = whatif(p, &(ps_whatif){.no_gpu = true});
    cr_assert(w->gpu.name[0] == '\0' && w->topology.gpu_name[0] == '\0' && w->gpu.n_copies == 0);
    for (uint32_t i = 0; i < w->n_points; i++)
        cr_assert_gt(w->points[i].n_threads, 0);
    cr_assert_gt(w->n_points, 50);
    ps_profile_free(w);
    ps_profile_free(p);
    /* Of a machine that has none: nothing, whatever else is asked for. */
    uint8_t hash[2][PS_HASH_BYTES];
    p = load(cpu_path);
    for (int faster = 0; faster < 2; faster++) {
        for (int without = 0; without < 2; without++) {
            w = whatif(p, &(ps_whatif){.no_gpu = without, .memory_bytes = faster ? 8 * GIB : 0});
            cr_assert_eq(w->synthetic, faster || p->synthetic);
            memcpy(hash[without], w->machine_hash, sizeof hash[0]);
            ps_profile_free(w);
        }
        cr_assert_eq(memcmp(hash[0], hash[1], sizeof hash[0]), 0);
    }
    ps_profile_free(p);
}

/* A bus that memory cannot feed: lowered where only DRAM was asked for, refused where it was asked for. */
Test(whatif, memory_feeds_the_bus) {
    ps_profile *p = load(dense_path), *w = whatif(p, &(ps_whatif){.dram_bytes_per_s = 10e9}), *out = NULL;
    ps_cost_model *c = cost_of(w);
    ps_error e = {0};
    cr_assert_lt(ps_cost_bus_bytes_per_s(c, PS_BUS_H2D, 16 << 20), 25e9);
    cr_assert_eq(
        ps_profile_whatif(p, &(ps_whatif){.dram_bytes_per_s = 10e9, .pcie_bytes_per_s = 50e9}, &out, &e),
        PS_E_USAGE);
    ps_cost_model_free(c);
    ps_profile_free(w);
    ps_profile_free(p);
}

/* Memory with half the rate gives CPU and bus together half of what it gave at most, whatever the bus could do alone. */
Test(whatif, together_shares_the_memory) {
    ps_profile *p = load(dense_path);
    ps_cost_model *c = cost_of(p);
    ps_profile *w = whatif(p, &(ps_whatif){.dram_bytes_per_s = ps_cost_dram_bytes_per_s(c, 16) / 2});
    double most = ps_cost_dram_bytes_per_s(c, 16);
    for (uint32_t i = 0; i < p->gpu.n_together; i++)
        most = fmax(most,
                    p->gpu.together[i].bus_bytes_per_s.median + p->gpu.together[i].dram_bytes_per_s.median);
    for (uint32_t i = 0; i < w->gpu.n_together; i++) {
        const ps_profile_together *x = &w->gpu.together[i], *y = &p->gpu.together[i];
        near(x->dram_bytes_per_s.median, y->dram_bytes_per_s.median / 2, "reads");
        cr_assert_leq(x->bus_bytes_per_s.median + x->dram_bytes_per_s.median, most / 2 * (1 + 1e-9));
        cr_assert_geq(x->bus_bytes_per_s.median, y->bus_bytes_per_s.median / 2 * (1 - 1e-9));
    }
    ps_cost_model_free(c);
    ps_profile_free(w);
    ps_profile_free(p);
}

Test(whatif, refused) {
    static const struct {
        ps_whatif wish;
        ps_status status;
        bool gpu;
    } cases[] = {{{.pcie_bytes_per_s = -1}, PS_E_USAGE, true},
                 {{.dram_bytes_per_s = NAN}, PS_E_USAGE, true},
                 {{.hbm_bytes_per_s = INFINITY}, PS_E_USAGE, true},
                 {{.gpu_flops_per_s = 1}, PS_E_USAGE, true},
                 {{.cpu_flops_per_s = 1e300}, PS_E_USAGE, true},
                 {{.vram_bytes = 1 << 20}, PS_E_USAGE, true},
                 {{.vram_bytes = 8 * GIB, .no_gpu = true}, PS_E_USAGE, true},
                 {{.pcie_bytes_per_s = 1e9}, PS_E_UNAVAILABLE, false},
                 {{.no_gpu = true, .vram_bytes = 8 * GIB}, PS_E_USAGE, false}};
    ps_profile *gpu = load(dense_path), *cpu = load(cpu_path), *out = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ps_error e = {0};
        cr_assert_eq(ps_profile_whatif(cases[i].gpu ? gpu : cpu, &cases[i].wish, &out, &e), cases[i].status,
                     "case %zu: %s", i, e.message);
        cr_assert(out == NULL && e.message[0]);
    }
    ps_profile_free(gpu);
    ps_profile_free(cpu);
}
