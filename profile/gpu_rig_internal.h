/* Between the files of the GPU rig: kernels, bus, small costs, and the rig itself. */
#ifndef PS_PROFILE_GPU_RIG_INTERNAL_H
#define PS_PROFILE_GPU_RIG_INTERNAL_H

#include "kernels/kernel.h"
#include "profile/cupti.h"
#include "profile/gpu_rig.h"
#include "profile/operands.h"
#include "profile/streams.h"

#define MIB ((uint64_t)1 << 20)
/* Host memory that copies cycle through; what a sample beside the CPUs moves; its pieces; all VRAM of the rig. */
#define PS_GPU_BUS_BYTES ((uint64_t)64 << 20)
#define PS_GPU_WINDOW_BYTES ((uint64_t)256 << 20)
#define PS_GPU_PIECE_BYTES ((uint64_t)16 << 20)
#define PS_GPU_PACED_BYTES ((uint64_t)4 << 20) /* pieces of a bus that is held back */
#define PS_GPU_VRAM_BYTES ((uint64_t)3 << 30)
#define PS_GPU_KEPT_BYTES ((uint64_t)4096) /* at its start: d_base, d_clock; what tasks write lies behind */
enum {
    MAX_CALLS = 256, /* of a kernel in one sample */
    FEW_TOKENS = 8,  /* up to here calls are nodes of a graph */
    EV_FROM = 0,     /* timed */
    EV_TO = 1,
    EV_A = 2, /* plain */
    EV_B = 3,
    N_LAUNCHES = 200,
    N_NODES = 100,
    N_HANDOVERS = 50,
    SMALL_COLS = 1024,
};

enum { PS_GPU_TIMER_VALUES = 16, PS_GPU_TIMER_POINTS = 5 };
typedef struct ps_gpu_difference {
    uint32_t n;
    const ps_task *task[PS_GPU_TIMER_POINTS]; /* a task is visited more than once */
    double frac[PS_GPU_TIMER_POINTS];         /* by CUPTI / by events - 1 */
} ps_gpu_difference;
typedef struct ps_gpu_timer {
    bool required;    /* events will not do */
    ps_cupti *cupti;  /* NULL: events */
    char reason[160]; /* why */
    bool calibrated;
    double gap_s;                   /* from one node of a graph to the next */
    uint32_t n_points;              /* timed by CUPTI */
    double spent_s;                 /* on timing both ways */
    ps_gpu_difference *differences; /* [kernels of the registry + 1], the last: copies */
    /* Of this task: one call by events (0: not timed so), and by CUPTI. */
    double by_events_s, values[PS_GPU_TIMER_VALUES];
    uint32_t n_values;
} ps_gpu_timer;

struct ps_gpu_rig {
    const ps_machine *machine;
    const ps_model *model;
    ps_device *device;
    const ps_rig_ops *cpu;
    void *cpu_rig;
    ps_profile_gpu info;
    struct ps_cuda_blas *blas;
    ps_operands *operands;
    bool *verified;              /* [kernels of the registry] */
    ps_vram_range *vram, *spare; /* spare: for mapping and release */
    ps_vram_range *full;         /* all that is left, while HBM_FULL is measured */
    uint8_t *pinned, *d_pinned;  /* PS_GPU_BUS_BYTES */
    uint8_t *plain;              /* PS_GPU_BUS_BYTES, pageable */
    uint64_t *d_base;            /* a zero in VRAM that flags are counted from; kept from task to task */
    uint64_t *d_clock;           /* in VRAM: when a paced sample began */
    uint8_t *d_room;             /* VRAM that tasks write to, up to vram's end */
    uint64_t period_ns;          /* of its pieces */
    uint64_t epoch;
    uint8_t *stream_data; /* for the CPUs' reads */
    uint64_t stream_bytes;
    ps_streams *streams;
    const ps_task *task;
    /* The kernel of the task and where its operands are on the device. */
    const ps_kernel *kernel;
    ps_operand_area area[PS_OPERAND_AREAS];
    uint8_t *d_area[PS_OPERAND_AREAS];
    uint8_t *d_spans;
    ps_seq_span *spans; /* [MAX_CALLS] as on the device */
    struct {
        uint64_t version, bytes; /* 0: nothing */
        const uint8_t *at;
    } mirrored[PS_OPERAND_AREAS]; /* weights and KV that are in VRAM */
    uint8_t *locked;              /* other memory that is page-locked for a task */
    uint8_t *weights, *d_weights; /* weights that are page-locked, until they move */
    uint32_t n_calls;
    ps_device_graph *graph;
    ps_gpu_timer timer;
    ps_task cpu_task;    /* what the rig of the CPUs is told of one that is beside the bus */
    uint32_t n_pieces;   /* of the bus's work beside a sample */
    double piece_s;      /* of one, alone */
    int emulated_status; /* of kernels on the emulated device */
};

ps_status ps_gpu_launch(ps_gpu_rig *r, const ps_kernel *kernel, const ps_kargs *a, uint64_t kv_bound,
                        ps_error *err);
/* Bytes or calls of a sample: the emulated device's speeds mean nothing, so a sixteenth of them will do there. */
uint64_t ps_gpu_enough(const ps_gpu_rig *r, uint64_t n);
void ps_gpu_forget_mirrored(ps_gpu_rig *r);
void ps_gpu_weights_moving(void *rig, uint8_t *data);
/* Put the operands' areas where the kernel looks for them. What is kept from task to task comes first, with room to grow. */
ps_status ps_gpu_mirror(ps_gpu_rig *r, const ps_kernel *kernel, bool direct, ps_error *err);
ps_status ps_gpu_enqueue_call(ps_gpu_rig *r, uint32_t i, ps_error *err);
ps_status ps_gpu_enqueue_calls(ps_gpu_rig *r, uint32_t n, ps_error *err);
ps_status ps_gpu_capture_calls(ps_gpu_rig *r, ps_error *err);
ps_status ps_gpu_prepare_kernel(ps_gpu_rig *r, const ps_task *task, ps_error *err);
ps_status ps_gpu_timed(ps_gpu_rig *r, double *out_s, ps_status enqueued, ps_error *err);
ps_status ps_gpu_start_time(ps_gpu_rig *r, ps_error *err);

/* What a sample enqueues: the calls of a kernel, the copies of the task. */
typedef ps_status ps_gpu_run(ps_gpu_rig *r, ps_error *err);
ps_status ps_gpu_run_calls(ps_gpu_rig *r, ps_error *err);
ps_status ps_gpu_run_copies(ps_gpu_rig *r, ps_error *err);
/* gpu_timer.c. before and compare: of each task, first and last in its preparation. Seconds of a sample of n_calls calls. */
ps_status ps_gpu_timer_open(ps_gpu_rig *r, const ps_gpu_config *config, ps_error *err);
void ps_gpu_timer_close(ps_gpu_rig *r);
ps_status ps_gpu_timer_before(ps_gpu_rig *r, ps_error *err);
ps_status ps_gpu_timer_compare(ps_gpu_rig *r, ps_gpu_run *run, uint32_t n_calls, ps_error *err);
ps_status ps_gpu_timer_sample(ps_gpu_rig *r, ps_gpu_run *run, uint32_t n_calls, double *out_s, ps_error *err);
void ps_gpu_timer_after(ps_gpu_rig *r);
void ps_gpu_timer_describe(const ps_gpu_rig *r, ps_profile_gpu *out);

ps_status ps_gpu_sample_kernel(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
ps_status ps_gpu_sample_copy(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
ps_status ps_gpu_sample_together(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
/* PACED: how far apart pieces begin, by the time of some without a pause while nobody reads. */
ps_status ps_gpu_prepare_paced(ps_gpu_rig *r, ps_error *err);
/* Direct reads are those of the kernel that a run would use: a product of one token with F16 weights. */
ps_status ps_gpu_prepare_direct(ps_gpu_rig *r, uint64_t bytes, ps_error *err);
ps_status ps_gpu_capture_small(ps_gpu_rig *r, uint32_t n, ps_error *err);
ps_status ps_gpu_sample_launch(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
ps_status ps_gpu_sample_graph_node(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
ps_status ps_gpu_sample_graph_launch(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
ps_status ps_gpu_sample_event_wait(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
/* There and back many times, everything enqueued ahead: half of a round is one way. */
ps_status ps_gpu_sample_handover(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
ps_status ps_gpu_sample_lock(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
ps_status ps_gpu_sample_map(ps_gpu_rig *r, bool unmap, ps_rig_sample *out, ps_error *err);
ps_status ps_gpu_sample_event_record(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
/* A level that comes and goes: mapped, filled over the bus, released. */
ps_status ps_gpu_sample_level(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
uint64_t ps_gpu_copy_bytes(const ps_gpu_rig *r);
/* gpu_beside.c: a kernel, of the CPUs too, while the bus is busy. prepare: behind what prepares the kernel alone. */
bool ps_gpu_is_beside(const ps_task *task);
ps_status ps_gpu_beside_prepare(ps_gpu_rig *r, ps_error *err);
ps_status ps_gpu_beside_sample(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
void ps_gpu_beside_finish(ps_gpu_rig *r);
/* Map what is left, but for a sixteenth of all for those who share the card; less where the driver refuses. */
ps_status ps_gpu_prepare_full(ps_gpu_rig *r, ps_error *err);
ps_status ps_gpu_sample_full(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);
ps_status ps_gpu_sample_hbm(ps_gpu_rig *r, ps_rig_sample *out, ps_error *err);

#endif
