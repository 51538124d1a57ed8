/* Kernels beside a busy bus, on the emulated device: kernels of both sides, each beside copies both ways, the CPUs' beside direct reads
 * too. Both sides' rates are there, the kernels' results were verified, and the range that copies go to is free again. And copies
 * that are held back beside readers: they keep their pace. The device's driver spills beyond 4 GiB: the last of its memory is
 * read as slowly as that is. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "kernels/kernel.h"
#include "profile/cpu_rig.h"
#include "profile/gpu_rig.h"
#include "profile/sweep.h"

#define PIECE_BYTES ((uint64_t)4 << 20)
static const ps_beside neighbours[] = {PS_BESIDE_IDLE, PS_BESIDE_H2D, PS_BESIDE_D2H, PS_BESIDE_DIRECT};

int main(void) {
    ps_machine *machine = NULL;
    ps_cpu_rig *cpu = NULL;
    ps_device *device = NULL;
    ps_gpu_rig *rig = NULL;
    ps_sweep_result result = {0};
    ps_error err = {0};
    const ps_kernel *ours =
                        ps_kernel_choose(PS_OP_MATMUL, PS_DTYPE_F16, PS_FMT_F32, PS_FMT_F32, PS_DEV_CPU, 1),
                    *its = ps_kernel_choose(PS_OP_GLU, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, PS_DEV_CUDA, 1),
                    *many =
                        ps_kernel_choose(PS_OP_GLU, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_F32, PS_DEV_CUDA, 64);
    ps_status st = ps_machine_open(NULL, &machine, &err);
    if (st == PS_OK)
        st = ps_cpu_rig_new(&(ps_cpu_config){.machine = machine, .cold_bytes = 1 << 20}, &cpu, &err);
    if (st == PS_OK)
        st = ps_device_open(&(ps_device_options){.emulated = true,
                                                 .emulated_base_bytes = 64 << 20,
                                                 .emulated_spill_bytes = (uint64_t)4 << 30},
                            &device, &err);
    if (st == PS_OK)
        st = ps_gpu_rig_new(
            &(ps_gpu_config){
                .machine = machine, .device = device, .cpu_ops = &ps_cpu_rig_ops, .cpu_rig = cpu},
            &rig, &err);
    CHECK(st == PS_OK && ours && its && many && ours->spec.id < its->spec.id, "%s: %s", err.subject,
          err.message);
    if (failures)
        return 1;
    ps_kernel_spec specs[2] = {ours->spec, its->spec};
    ps_task tasks[24];
    uint32_t n = 0;
    for (int b = 0; b < 4; b++) {
        tasks[n++] = (ps_task){.measure = PS_MEASURE_KERNEL,
                               .point = {.kernel = ours->spec.id,
                                         .rows = 512,
                                         .cols = 512,
                                         .n_tokens = 1,
                                         .n_threads = 1,
                                         .beside = neighbours[b]},
                               .cost_s = 1e-4};
        for (uint32_t t = 1; t <= 64 && neighbours[b] != PS_BESIDE_DIRECT; t *= 64) /* in a graph and not */
            tasks[n++] = (ps_task){
                .measure = PS_MEASURE_KERNEL,
                .point = {.kernel = its->spec.id, .cols = 4096, .n_tokens = t, .beside = neighbours[b]},
                .cost_s = 1e-4};
    }
    for (int bus = PS_BUS_H2D; bus <= PS_BUS_D2H; bus++)
        tasks[n++] = (ps_task){.measure = PS_MEASURE_PACED,
                               .point = {.n_threads = 1},
                               .bus = (ps_bus)bus,
                               .share_frac = 0.05,
                               .cost_s = 1e-3};
    tasks[n++] =
        (ps_task){.measure = PS_MEASURE_COPY, .bus = PS_BUS_H2D, .bytes = PIECE_BYTES, .cost_s = 1e-3};
    tasks[n++] = (ps_task){.measure = PS_MEASURE_LEVEL, .point = {.n_threads = 1}, .cost_s = 1e-3};
    tasks[n++] = (ps_task){.measure = PS_MEASURE_HBM, .point = {.n_threads = 1}, .cost_s = 1e-3};
    tasks[n++] = (ps_task){.measure = PS_MEASURE_HBM_FULL, .point = {.n_threads = 1}, .cost_s = 1e-3};
    tasks[n++] = (ps_task){.measure = PS_MEASURE_MAP, .point = {.n_threads = 1}, .cost_s = 1e-3};
    st = ps_sweep_run(&(ps_sweep_config){.ops = &ps_gpu_rig_emulated_ops,
                                         .rig = rig,
                                         .kernels = specs,
                                         .n_kernels = 2,
                                         .tasks = tasks,
                                         .n_tasks = n,
                                         .mode = "model",
                                         .tool = "test",
                                         .created = "2026-01-01T00:00:00Z",
                                         .limit_s = 120, /* never met: each task has its own */
                                         .max_task_s = 0.05},
                      &result, &err);
    CHECK(st == PS_OK, "%s: %s", err.subject, err.message);
    const ps_profile *p = result.profile;
    uint32_t n_beside = 0;
    for (uint32_t i = 0; st == PS_OK && i < p->n_points; i++) {
        const ps_profile_point *q = &p->points[i];
        CHECK(q->time_s.n > 0 && q->time_s.median > 0, "kernel %u beside %d", q->kernel, (int)q->beside);
        CHECK((q->beside_bytes_per_s > 1e6) == (q->beside != PS_BESIDE_IDLE),
              "kernel %u, %u tokens, beside %d: %g B/s", q->kernel, q->n_tokens, (int)q->beside,
              q->beside_bytes_per_s);
        n_beside += q->beside != PS_BESIDE_IDLE;
    }
    CHECK(st != PS_OK || (p->n_points == 10 && n_beside == 7), "%u points", p->n_points);
    CHECK(st != PS_OK || (p->gpu.n_paced == 2 && p->gpu.n_copies == 1), "%u paced", p->gpu.n_paced);
    for (uint32_t i = 0; st == PS_OK && i < p->gpu.n_paced; i++) {
        const ps_profile_paced *x = &p->gpu.paced[i];
        CHECK(x->bus == (i ? PS_BUS_D2H : PS_BUS_H2D) && x->n_threads == 1 && x->share_frac == 0.05, "row %u",
              i);
        CHECK(x->dram_bytes_per_s.n > 0 && x->dram_bytes_per_s.median > 1e6, "%g B/s read",
              x->dram_bytes_per_s.median);
        /* A twentieth; the machine may have other work, now or when the rate alone was taken. */
        CHECK(x->bus_bytes_per_s.median > 1e6 &&
                  x->bus_bytes_per_s.median < 0.3 * p->gpu.copies[0].bw_bytes_per_s.median,
              "%g B/s, %g B/s alone", x->bus_bytes_per_s.median, p->gpu.copies[0].bw_bytes_per_s.median);
    }
    /* Read and written at 1 GB/s each, but for what its first pages are. */
    CHECK(st != PS_OK || (p->gpu.hbm_full_bytes_per_s.n && p->gpu.hbm_full_bytes_per_s.median < 2.1e9 &&
                          p->gpu.hbm_read_bytes_per_s.n),
          "%g B/s when full, %g before", p->gpu.hbm_full_bytes_per_s.median,
          p->gpu.hbm_read_bytes_per_s.median);
    CHECK(st != PS_OK || (p->gpu.level_bytes_per_s.n && p->gpu.map_s.n), "the spare range is free again");
    ps_sweep_free(&result);
    ps_gpu_rig_free(rig);
    ps_device_close(device);
    ps_cpu_rig_free(cpu);
    ps_machine_close(machine);
    printf("%u failures\n", failures);
    return failures != 0;
}
