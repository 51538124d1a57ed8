/* Cost model: time of one kernel call from the points of a machine profile.
 *
 * Points of one kernel are a sparse grid over tokens, KV heads, columns, rows and KV length, one grid per thread
 * count. The barrier that each call of a team pays is taken off first and put back last. A query is answered by going through the
 * dimensions one by one: between the two measured values that enclose it, log(time) is linear in log(dimension), or time in the
 * dimension where that is less: fixed overhead plus work is a line, and both ways stay above a curve that turns from one slope to a
 * steeper one. KV length is always a line. Beyond the last measured value time grows with the work: the call's bytes or FLOPs,
 * whichever take longer at the best rates of the kernel's own points. A mixture is taken by distinct experts and tokens for each. Never by the nearest neighbour: it favours small
 * shapes. Thread counts that were measured on few points only are reached from the fullest grid by the measured
 * ratio. */
#ifndef PS_PLAN_COST_H
#define PS_PLAN_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "schemas/machine_profile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How much of an answer was measured, best first. X(NAME, "name") */
#define PS_COST_QUALITY_LIST(X)                                                                              \
    X(MEASURED, "measured")         /* a point of the profile */                                             \
    X(INTERPOLATED, "interpolated") /* between points in every dimension */                                  \
    X(EXTRAPOLATED, "extrapolated") /* beyond the points in some dimension */                                \
    X(ASSUMED, "assumed")           /* kernel not in the profile: ceilings only */
typedef enum ps_cost_quality {
#define PS_COST_QUALITY_ENUM(name, text) PS_COST_##name,
    PS_COST_QUALITY_LIST(PS_COST_QUALITY_ENUM)
#undef PS_COST_QUALITY_ENUM
        PS_COST_QUALITY_COUNT
} ps_cost_quality;
const char *ps_cost_quality_name(ps_cost_quality quality);

/* Meaning of rows, cols, heads_kv and kv_len per operation: ps_profile_point. kv_len may be a fraction. */
typedef struct ps_cost_query {
    uint32_t kernel;
    uint64_t rows, cols;
    uint32_t heads_kv;
    double kv_len;
    uint64_t n_tokens;
    uint32_t n_threads;
    ps_beside beside;
} ps_cost_query;

typedef struct ps_cost {
    double time_s;
    ps_cost_quality quality;
} ps_cost;

typedef struct ps_cost_model ps_cost_model;

/* Index of a profile's points; profile is borrowed and must outlive it. The result is immutable: any
 * thread. Errors: PS_E_NOMEM. */
ps_status ps_cost_model_new(const ps_profile *profile, ps_cost_model **out, ps_error *err);
void ps_cost_model_free(ps_cost_model *model);

/* What a point of a profile answers. */
static inline ps_cost_query ps_cost_query_of(const ps_profile_point *p) {
    return (ps_cost_query){.kernel = p->kernel,
                           .rows = p->rows,
                           .cols = p->cols,
                           .heads_kv = p->heads_kv,
                           .kv_len = (double)p->kv_len,
                           .n_tokens = p->n_tokens,
                           .n_threads = p->n_threads,
                           .beside = p->beside};
}

/* Time of one call; *out is written and true returned if the kernel has points beside `beside`. */
bool ps_cost_lookup(const ps_cost_model *model, const ps_cost_query *query, ps_cost *out);

/* A choice that costs decide: what decides it, and what was chosen. */
enum { PS_COST_CHOICE_WORDS = 7 };
typedef struct ps_cost_choice {
    uint64_t key[PS_COST_CHOICE_WORDS];
    uint32_t chosen;
    bool used;
} ps_cost_choice;

/* The same, from what was asked before where it was. NULL: no cache. Zeros are an empty one; one thread at a time. */
enum { PS_COST_CACHE = 4096, PS_COST_CHOICES = 2048 };
typedef struct ps_cost_cache {
    struct {
        ps_cost_query query;
        ps_cost cost;
        bool used, found;
    } at[PS_COST_CACHE];
    ps_cost_choice choice[PS_COST_CHOICES];
} ps_cost_cache;
/* The place of a choice in the cache: it is there, or `used` is false and the caller fills in the rest. */
ps_cost_choice *ps_cost_choice_at(ps_cost_cache *cache, const uint64_t key[PS_COST_CHOICE_WORDS]);
bool ps_cost_lookup_cached(const ps_cost_model *model, ps_cost_cache *cache, const ps_cost_query *query,
                           ps_cost *out);

/* Ceilings for bounds and for kernels without points; 0 if the profile has none.
 * DRAM read rate of n_threads together: interpolated, beyond the last thread count constant; at least what a product of as
 * many threads or fewer reached on weights larger than the caches. */
double ps_cost_dram_bytes_per_s(const ps_cost_model *model, uint32_t n_threads);
/* The same without the products: what ps_cost_together was measured like. */
double ps_cost_dram_seen(const ps_cost_model *model, uint32_t n_threads); /* these products alone; 0: none */
/* Of products and experts, where none is that large the largest measured; 0: none. */
double ps_cost_dram_cold(const ps_cost_model *model, uint32_t n_threads);
double ps_cost_dram_alone(const ps_cost_model *model, uint32_t n_threads);
/* Best rate of any product measured with n_threads, and the share of n_threads in the best rate of larger teams: a
 * coarse grid holds for some teams only products of few tokens, which are far from the ceiling. Where n_threads were not
 * measured at all, the best rate of any team, scaled up by the ratio of threads where that is above 1. */
double ps_cost_matmul_flops_per_s(const ps_cost_model *model, uint32_t n_threads);

/* Of a profile with a GPU (cost_gpu.c). Rate of one way over the bus in pieces of `bytes`, from page-locked memory:
 * between measured sizes the time is a line; 0 if nothing was measured. */
double ps_cost_bus_bytes_per_s(const ps_cost_model *model, ps_bus bus, double bytes);
/* Rates of bus and DRAM while both are busy and n_threads read: interpolated in threads. Without points: alone. */
void ps_cost_together(const ps_cost_model *model, ps_bus bus, uint32_t n_threads, double *out_bus,
                      double *out_dram);
/* The same with copies held at shares of the bus's rate: the shares that were measured, ascending, at most `room`; and the rates at one
 * of them. False: not measured. */
uint32_t ps_cost_shares(const ps_cost_model *model, ps_bus bus, double *out, uint32_t room);
bool ps_cost_paced(const ps_cost_model *model, ps_bus bus, double share_frac, uint32_t n_threads,
                   double *out_bus, double *out_dram);
const ps_profile *ps_cost_profile(const ps_cost_model *model);
/* Row of its profile's catalogue by id; NULL if unknown. */
const ps_kernel_spec *ps_cost_kernel(const ps_cost_model *model, uint32_t id);

#ifdef __cplusplus
}
#endif
#endif
