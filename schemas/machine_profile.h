/* Machine profile: what pstune measured, in SI units. Document "pinstripe-profile", YAML. */
#ifndef PS_SCHEMAS_MACHINE_PROFILE_H
#define PS_SCHEMAS_MACHINE_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/hash.h"
#include "core/status.h"
#include "model/kernel_spec.h"
#include "schemas/facts.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PS_PROFILE_VERSION = 3, PS_PROFILE_MAX_BYTES = 4 << 20 };

/* One measured quantity. X(NAME, "name"): why sampling stopped. */
#define PS_STOP_LIST(X)                                                                                      \
    X(CONVERGED, "converged") /* confidence interval of the median under the target */                       \
    X(TIME_CAP, "time_cap")                                                                                  \
    X(SAMPLE_CAP, "sample_cap")
typedef enum ps_stop {
#define PS_STOP_ENUM(name, text) PS_STOP_##name,
    PS_STOP_LIST(PS_STOP_ENUM)
#undef PS_STOP_ENUM
        PS_STOP_COUNT
} ps_stop;

/* median and quartiles of n samples, in the unit the holder's name says. */
typedef struct ps_stat {
    uint32_t n;
    double median, q1, q3;
    ps_stop stop;
    bool noisy; /* it could not be shown to repeat: docs/pstune.md */
} ps_stat;

typedef struct ps_profile_topology {
    char cpu_model[96];
    uint32_t n_packages, n_cores, n_threads, n_numa;
    uint32_t n_p_cores, n_e_cores; /* kinds; all cores are P where there is one kind */
    uint64_t l2_bytes, l3_bytes, memory_bytes, memlock_bytes; /* memlock: UINT64_MAX if unlimited */
    double cpu_quota;   /* CPUs' worth of time the cgroup allows; 0 if unlimited */
    uint32_t n_allowed; /* threads this process may use: affinity, cpuset and quota together */
    char cpu_level[16]; /* highest kernel variant: "avx512" */
    char gpu_name[96];  /* "" without a GPU */
} ps_profile_topology;

/* DRAM read rate of `n_threads` together. */
typedef struct ps_profile_dram {
    uint32_t n_threads;
    ps_stat bw_bytes_per_s;
} ps_profile_dram;

/* What ran beside the measured kernel. */
#define PS_BESIDE_LIST(X) X(IDLE, "idle") X(MEMORY, "memory") X(H2D, "h2d") X(D2H, "d2h") X(DIRECT, "direct")
typedef enum ps_beside {
#define PS_BESIDE_ENUM(name, text) PS_BESIDE_##name,
    PS_BESIDE_LIST(PS_BESIDE_ENUM)
#undef PS_BESIDE_ENUM
        PS_BESIDE_COUNT
} ps_beside;

/* One point of a kernel curve: time of one instruction in a step as the executor runs it, a barrier before it and
 * between its phases included (docs/pstune.md).
 * rows, cols: of the weight (MATMUL); other operations: rows 0, cols elements of a row (EMBED, RMSNORM, ROPE, KV_STORE,
 * GLU, ADD, CONVERT, GATHER; MOE_ROUTE: experts; SAMPLE: vocabulary). ATTENTION: rows = n_head, cols = head_dim,
 * heads_kv, kv_len = positions in the cache once the step is stored, no window. MOE_DISPATCH: rows = n_ff_expert,
 * cols = n_embd. Both MOE: heads_kv = experts, kv_len = used experts per token. Kernels of device cuda: n_threads 0, weights
 * in VRAM with cold L2; `beside` DIRECT: weights in page-locked host memory. */
typedef struct ps_profile_point {
    uint32_t kernel; /* catalogue id */
    uint64_t rows, cols;
    uint32_t heads_kv;
    uint64_t kv_len;
    uint32_t n_tokens, n_threads;
    ps_beside beside;
    ps_stat time_s;
    double beside_bytes_per_s; /* rate of what ran beside, measured at the same time; 0 when idle */
} ps_profile_point;

/* How host memory is held that the GPU copies from or reads. X(NAME, "name") */
#define PS_HOST_KIND_LIST(X)                                                                                 \
    X(PINNED, "pinned") X(REGISTERED, "registered") X(PAGEABLE, "pageable") X(STAGED, "staged")
typedef enum ps_host_kind {
#define PS_HOST_KIND_ENUM(name, text) PS_HOST_KIND_##name,
    PS_HOST_KIND_LIST(PS_HOST_KIND_ENUM)
#undef PS_HOST_KIND_ENUM
        PS_HOST_KIND_COUNT
} ps_host_kind;

/* What moves bytes between host and GPU. X(NAME, "name") */
#define PS_BUS_LIST(X)                                                                                       \
    X(H2D, "h2d")                                                                                            \
    X(D2H, "d2h")       /* copies */                                                                         \
    X(DIRECT, "direct") /* a GPU kernel that reads page-locked host memory */
typedef enum ps_bus {
#define PS_BUS_ENUM(name, text) PS_BUS_##name,
    PS_BUS_LIST(PS_BUS_ENUM)
#undef PS_BUS_ENUM
        PS_BUS_COUNT
} ps_bus;

/* Rate of one way over the bus in pieces of `bytes`, alone. */
typedef struct ps_profile_copy {
    ps_bus bus;
    ps_host_kind kind;
    uint64_t bytes;
    ps_stat bw_bytes_per_s;
} ps_profile_copy;

/* Bus and CPU at once, both flat out, both measured at the same time: n_threads read DRAM beside it. */
typedef struct ps_profile_together {
    ps_bus bus;
    uint32_t n_threads;
    ps_stat bus_bytes_per_s, dram_bytes_per_s;
} ps_profile_together;

/* The same with copies held at a share of what the bus gives alone: each begins on time by the device's clock, never sooner. */
typedef struct ps_profile_paced {
    ps_bus bus; /* H2D, D2H */
    uint32_t n_threads;
    double share_frac; /* above 0, below 1 */
    ps_stat bus_bytes_per_s, dram_bytes_per_s;
} ps_profile_paced;

/* Quantities of a GPU that stand alone, each a ps_stat of ps_profile_gpu, in the order of the document.
 * M(member, NAME, "label", UNIT): measured by itself, PS_MEASURE_NAME; D(...): the best of its kernels' points. */
#define PS_GPU_STAT_LIST(M, D)                                                                                  \
    M(hbm_read_bytes_per_s, HBM, "memory", BYTES_PER_S)                                                         \
    D(matmul_flops_per_s, MATMUL, "products, best", FLOPS)                                                      \
    D(attention_flops_per_s, ATTENTION, "attention, best", FLOPS)                                               \
    M(launch_s, LAUNCH, "launch of a kernel", SECONDS)                                                          \
    M(graph_node_s, GRAPH_NODE, "kernel in a graph", SECONDS)                                                   \
    M(graph_launch_s, GRAPH_LAUNCH, "launch of a graph", SECONDS)                                               \
    M(event_wait_s, EVENT_WAIT, "wait for an event", SECONDS)                                                   \
    M(to_cpu_s, TO_CPU, "hand-over to the CPU", SECONDS)                                                        \
    M(to_gpu_s, TO_GPU, "hand-over to the GPU", SECONDS)                                                        \
    M(lock_bytes_per_s, LOCK, "page-locking", BYTES_PER_S)                                                      \
    M(map_s, MAP, "mapping 16 MiB", SECONDS)                                                                    \
    M(unmap_s, UNMAP, "releasing 16 MiB", SECONDS)                                                              \
    /* From here on left out where they were not measured. Level: bytes mapped, filled and released again. */   \
    M(event_record_s, EVENT_RECORD, "record of an event", SECONDS)                                              \
    M(level_bytes_per_s, LEVEL, "change of level", BYTES_PER_S)                                                 \
    /* The last of all memory that a budget could take: far below hbm_read, the driver keeps some elsewhere. */ \
    M(hbm_full_bytes_per_s, HBM_FULL, "memory, when full", BYTES_PER_S)

/* What tells the time of kernels and copies on the GPU. X(NAME, "name") */
#define PS_TIMER_LIST(X)                                                                                     \
    X(EVENTS, "events") /* CUDA events around a run of calls */                                              \
    X(CUPTI, "cupti")   /* start and end of each, as CUPTI recorded them */
typedef enum ps_timer {
#define PS_TIMER_ENUM(name, text) PS_TIMER_##name,
    PS_TIMER_LIST(PS_TIMER_ENUM)
#undef PS_TIMER_ENUM
        PS_TIMER_COUNT
} ps_timer;

/* Both timers on the same points of one kernel, those over 20 us: time by CUPTI / time by events - 1. */
typedef struct ps_profile_check {
    uint32_t kernel;                /* catalogue id; 0: copies over the bus */
    uint32_t n;                     /* points */
    double median_frac, worst_frac; /* signed; worst: the one furthest from 0 */
} ps_profile_check;

typedef struct ps_profile_gpu {
    char name[96], uuid[48], driver[32]; /* name "" : no GPU, all else 0 */
    uint32_t cc_major, cc_minor, n_multiprocessors;
    uint64_t vram_bytes, l2_bytes;
    uint32_t pcie_gen, pcie_width; /* under load */
    uint64_t base_bytes; /* by the meter: context, modules and cuBLAS, without any allocation of ours */
    /* Its parts in the order in which they come; their sum, or all 0 where they are not known apart. */
    uint64_t context_bytes, modules_bytes, blas_bytes;
    char meter[32];         /* how it was read: ps_meter_name */
    ps_timer timer;         /* of kernels' points and of copies of 1 MiB and more */
    char timer_reason[160]; /* EVENTS: why not CUPTI; "" otherwise */
    double timer_gap_s;     /* CUPTI: between kernels of a graph, part of every kernel's time; else 0 */
    /* Best rates are of f16 kernels; hand-over: end of a kernel to the CPU's next instruction, and back. */
#define PS_GPU_STAT_MEMBER(member, name, label, unit) ps_stat member;
    PS_GPU_STAT_LIST(PS_GPU_STAT_MEMBER, PS_GPU_STAT_MEMBER)
#undef PS_GPU_STAT_MEMBER
    uint32_t n_copies;
    ps_profile_copy *copies;
    uint32_t n_together;
    ps_profile_together *together;
    uint32_t n_paced;
    ps_profile_paced *paced; /* none where not measured */
    uint32_t n_checks;
    ps_profile_check *checks; /* ascending kernel; none without CUPTI */
} ps_profile_gpu;

/* The table of PS_GPU_STAT_LIST as data. */
typedef enum ps_unit { PS_UNIT_SECONDS, PS_UNIT_BYTES_PER_S, PS_UNIT_FLOPS } ps_unit;
#define PS_GPU_STAT_COUNT_ROW(member, name, label, unit) +1
enum { PS_GPU_STAT_COUNT = PS_GPU_STAT_LIST(PS_GPU_STAT_COUNT_ROW, PS_GPU_STAT_COUNT_ROW) };
#undef PS_GPU_STAT_COUNT_ROW
typedef struct ps_gpu_stat_row {
    const char *key, *label; /* key: in the document */
    size_t offset;           /* of the ps_stat in ps_profile_gpu */
    ps_unit unit;
} ps_gpu_stat_row;
extern const ps_gpu_stat_row ps_gpu_stat_rows[PS_GPU_STAT_COUNT];
const ps_stat *ps_gpu_stat(const ps_profile_gpu *gpu, uint32_t row);

/* Spelling in documents; "?" for a value that is none. */
const char *ps_stop_name(ps_stop stop);
const char *ps_beside_name(ps_beside beside);
const char *ps_bus_name(ps_bus bus);
const char *ps_host_kind_name(ps_host_kind kind);

typedef struct ps_profile {
    uint32_t version;
    char tool[32];                       /* "pstune 0.1.0" */
    char created[32];                    /* ISO 8601, UTC */
    char mode[16];                       /* "quick", "default", "model", "quick-model" */
    bool complete;                       /* false while a run can still be resumed */
    bool synthetic;                      /* made by the null device or by hand, not measured */
    uint8_t machine_hash[PS_HASH_BYTES]; /* ps_machine_hash: a plan made elsewhere is noticed by it */
    uint8_t kernel_set[PS_HASH_BYTES];   /* ps_kernel_set_hash */
    ps_profile_topology topology;
    uint32_t n_dram;
    ps_profile_dram *dram;
    ps_profile_gpu gpu;
    ps_stat barrier_s;    /* one barrier of n_allowed threads */
    ps_stat pool_start_s; /* waking the pool for a step */
    uint32_t n_kernels;
    ps_kernel_spec *kernels; /* the catalogue, ascending id */
    uint32_t n_points;
    ps_profile_point *points;
    char *note; /* free text: interference, throttling; may be NULL */
} ps_profile;

/* Bytes (weights, activations, KV) and FLOPs of one call of a kernel at a point, from its shape alone. */
void ps_point_work(const ps_kernel_spec *kernel, const ps_profile_point *point, double *out_bytes,
                   double *out_flops);

/* A profile and its arrays and note each come from malloc, also where pstune builds one itself; ps_profile_free
 * frees them all. Quantities with n == 0 are allowed while `complete` is false: not measured yet.
 *
 * Read and validate. On PS_OK the caller frees with ps_profile_free. Errors carry file, line and column,
 * key: PS_E_DATA, PS_E_UNSUPPORTED (other version), PS_E_NOINPUT, PS_E_PERM, PS_E_NOMEM. */
ps_status ps_profile_read(const char *path, ps_profile **out, ps_error *err);
ps_status ps_profile_parse(const char *text, uint64_t size, const char *label, ps_profile **out,
                           ps_error *err);
/* Write atomically. The same profile gives the same bytes. */
ps_status ps_profile_write(const ps_profile *profile, const char *path, ps_error *err);
/* Text from malloc, NUL-terminated. */
ps_status ps_profile_format(const ps_profile *profile, char **out_text, uint64_t *out_size, ps_error *err);
/* Semantic checks that reading also makes: finite positive times, known kernels, sorted catalogue... */
ps_status ps_profile_validate(const ps_profile *profile, ps_error *err);
void ps_profile_free(ps_profile *profile);
/* Does device memory become as slow as the bus once it is full? Then the driver spills it to system memory without a word. */
bool ps_profile_spills(const ps_profile_gpu *gpu);
/* Device memory that budgets may take without reaching what is slow: all of it, or where it spills seven eighths. pstune reads below
 * the last sixteenth, and where what is slow begins before that is not known. */
uint64_t ps_profile_fast_vram_bytes(const ps_profile_gpu *gpu);
/* What its machine was like. */
void ps_profile_facts(const ps_profile *profile, ps_facts *out);
/* Hash of the canonical text: plans name the profile by it. */
ps_status ps_profile_hash(const ps_profile *profile, uint8_t out[PS_HASH_BYTES], ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
