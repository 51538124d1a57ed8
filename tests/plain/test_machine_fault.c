/* Topology, limits, pool and sweep when memory runs out: a clean error each time, nothing left behind. */
#include <stdio.h>
#include <stdlib.h>

#include "fault.h"
#include "machine/pool.h"
#include "machine/topology.h"
#include "profile/grid.h"
#include "profile/null_rig.h"
#include "profile/operands.h"
#include "profile/sweep.h"

static const char *outcome(ps_status st, bool injected, const ps_error *err) {
    if (st == PS_OK)
        return ps_fault_hit() && injected ? "succeeded although a call failed" : NULL;
    if (!injected)
        return "failed although no call did";
    return err->message[0] ? NULL : "an error without a message";
}

static const char *machine_body(void *ctx, bool injected) {
    ps_machine *m = NULL;
    ps_error err = {0};
    const ps_status st = ps_machine_open(ctx, &m, &err);
    if ((st == PS_OK) != (m != NULL))
        return "result and status differ";
    ps_machine_close(m);
    return outcome(st, injected, &err);
}

static const char *pool_body(void *ctx, bool injected) {
    ps_pool *p = NULL;
    ps_error err = {0};
    const ps_status st = ps_pool_new(ctx, 1, &p, &err);
    if ((st == PS_OK) != (p != NULL))
        return "result and status differ";
    ps_pool_free(p);
    return outcome(st, injected, &err);
}

static const ps_kernel_spec kernels[] = {
    {.id = 1,
     .name = "a",
     .op = PS_OP_MATMUL,
     .wtype = PS_DTYPE_Q4_0,
     .in_fmt = PS_FMT_Q8,
     .out_fmt = PS_FMT_F32,
     .device = PS_DEV_CPU,
     .min_tokens = 1,
     .max_tokens = 8},
    {.id = 2,
     .name = "b",
     .op = PS_OP_ADD,
     .wtype = PS_DTYPE_NONE,
     .in_fmt = PS_FMT_F32,
     .out_fmt = PS_FMT_F32,
     .device = PS_DEV_CPU,
     .min_tokens = 1,
     .max_tokens = 1024},
};

static ps_status save(void *ctx, const ps_profile *profile, ps_error *err) {
    (void)ctx;
    char *text = NULL;
    uint64_t size;
    const ps_status st = ps_profile_format(profile, &text, &size, err);
    free(text);
    return st;
}

static const char *sweep_body(void *ctx, bool injected) {
    (void)ctx;
    ps_error err = {0};
    ps_task *tasks = NULL;
    ps_null_rig *rig = NULL;
    ps_sweep_result result = {0};
    ps_sweep_config config = {.ops = &ps_null_rig_ops,
                              .kernels = kernels,
                              .n_kernels = 2,
                              .mode = "quick",
                              .tool = "test",
                              .created = "2026-01-01T00:00:00Z",
                              .limit_s = 2,
                              .max_task_s = 0.005,
                              .save_every_s = 0.5,
                              .save = save};
    const ps_grid_config grid = {.kernels = kernels, .n_kernels = 2, .n_threads = 2, .quick = true};
    const ps_null_config null = {
        .seed = 1, .n_threads = 2, .noise_frac = 0.01, .kernels = kernels, .n_kernels = 2};
    ps_status st = ps_grid_make(&grid, &tasks, &config.n_tasks, &err);
    if (st == PS_OK)
        st = ps_null_rig_new(&null, &rig, &err);
    config.tasks = tasks;
    config.rig = rig;
    if (st == PS_OK)
        st = ps_sweep_run(&config, &result, &err);
    const bool complete = result.profile && result.profile->complete;
    ps_sweep_free(&result);
    ps_null_rig_free(rig);
    free(tasks);
    if (complete != (st == PS_OK))
        return "a complete profile and success must come together";
    return outcome(st, injected, &err);
}

/* Operands of a product and of attention. */
static const char *operands_body(void *ctx, bool injected) {
    const ps_profile_point *p = ctx;
    ps_operands *o = NULL;
    ps_error err = {0};
    ps_status st = ps_operands_new(1 << 20, NULL, &o, &err);
    const ps_kernel *k = ps_kernel_find(p->kernel);
    if (st == PS_OK && !k)
        st = ps_error_set(&err, PS_E_INTERNAL, "test", "no such kernel");
    if (st == PS_OK)
        st = ps_operands_set(o, k, p, &err);
    ps_operands_free(o);
    return outcome(st, injected, &err);
}

int main(void) {
    ps_error err = {0};
    ps_machine *machine = NULL;
    uint64_t n;
    unsigned bad = 0;
    bad += ps_fault_sweep("machine", machine_body, (void *)"fixtures/machines/quota-v2", &n);
    if (ps_machine_open("fixtures/machines/two-sockets", &machine, &err) != PS_OK) {
        fprintf(stderr, "%s: %s\n", err.subject, err.message);
        return 1;
    }
    bad += ps_fault_sweep("pool", pool_body, machine, &n);
    ps_machine_close(machine);
    bad += ps_fault_sweep("sweep", sweep_body, NULL, &n);
    const ps_kernel *k = ps_kernel_choose(PS_OP_MATMUL, PS_DTYPE_Q4_0, PS_FMT_Q8, PS_FMT_F32, PS_DEV_CPU, 1);
    ps_profile_point point = {
        .kernel = k ? k->spec.id : 0, .rows = 64, .cols = 64, .n_tokens = 1, .n_threads = 1};
    bad += ps_fault_sweep("operands of a product", operands_body, &point, &n);
    k = ps_kernel_choose(PS_OP_SAMPLE, PS_DTYPE_NONE, PS_FMT_F32, PS_FMT_I32, PS_DEV_CPU, 1);
    point = (ps_profile_point){.kernel = k ? k->spec.id : 0, .cols = 64, .n_tokens = 2, .n_threads = 1};
    bad += ps_fault_sweep("operands of sampling", operands_body, &point, &n);
    if (bad == 0)
        printf("ok\n");
    return bad != 0;
}
