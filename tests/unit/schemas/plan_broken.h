/* A plan with one thing broken, and what the checker says of it. */
#ifndef PS_TESTS_PLAN_BROKEN_H
#define PS_TESTS_PLAN_BROKEN_H

#include <criterion/criterion.h>
#include <string.h>

#include "plan_case.h"

static inline void must(ps_status status, const ps_error *err) {
    char line[600];
    cr_assert_eq(status, PS_OK, "%s", ps_error_format(err, line, sizeof line));
}

typedef struct broken {
    plan_case c;
    ps_level *level;
    ps_tier *tier; /* the largest of the level */
    ps_program *program;
} broken;

static inline void open_level(broken *b, const mb_shape *shape, uint32_t level) {
    plan_case_open(&b->c, shape);
    b->level = &b->c.plan->levels[level];
    b->tier = &b->level->tiers[b->level->n_tiers - 1];
    b->program = &b->c.plan->programs[b->tier->program];
}

static inline void refused(broken *b, const char *message) {
    ps_error err = {0};
    char line[600];
    ps_status status = ps_plan_check(b->c.plan, b->level, b->c.model, &err);
    ps_error_format(&err, line, sizeof line);
    cr_assert_neq(status, PS_OK, "accepted; wanted: %s", message);
    cr_assert(strstr(line, message) != NULL, "wanted \"%s\", got \"%s\"", message, line);
    plan_case_close(&b->c);
}

/* The nth instruction with this operation. */
static inline ps_instr *find(broken *b, ps_op op, uint32_t nth) {
    for (uint32_t i = 0; i < b->program->n_instrs; i++)
        if (b->program->instrs[i].op == op && nth-- == 0)
            return &b->program->instrs[i];
    cr_assert_fail("no such instruction");
    return NULL;
}

static inline uint16_t buffer(broken *b, ps_value v, ps_fmt fmt, ps_space space) {
    for (uint32_t i = 0; i < b->program->n_buffers; i++)
        if (b->program->buffers[i].value == v && b->program->buffers[i].fmt == fmt &&
            b->program->buffers[i].space == space)
            return (uint16_t)i;
    cr_assert_fail("no such buffer");
    return 0;
}

static inline void swap(ps_instr *a, ps_instr *b) {
    ps_instr t = *a;
    *a = *b;
    *b = t;
}

/* The nth copy of a weight, by role. */
static inline ps_instr *find_fetch(broken *b, ps_role role, uint32_t nth) {
    for (uint32_t i = 0; i < b->program->n_instrs; i++)
        if (b->program->instrs[i].op == PS_OP_COPY && b->program->instrs[i].w[0] == role && nth-- == 0)
            return &b->program->instrs[i];
    cr_assert_fail("no such copy");
    return NULL;
}

/* The nth copy of KV: 0 in, 1 out. */
static inline ps_instr *find_kv(broken *b, uint32_t nth) {
    for (uint32_t i = 0; i < b->program->n_instrs; i++)
        if (b->program->instrs[i].op == PS_OP_COPY && b->program->instrs[i].kv != 0 && nth-- == 0)
            return &b->program->instrs[i];
    cr_assert_fail("no such copy");
    return NULL;
}

/* Make room for an instruction at the place of `at`, in the same block; it waits for the one before. The tier's arrays
 * have room behind (pb_tier). */
static inline ps_instr *insert(broken *b, ps_instr *at) {
    ps_program *p = b->program;
    uint32_t k = (uint32_t)(at - p->instrs), block = 0;
    while (p->blocks[block].instr0 + p->blocks[block].n_instrs <= k)
        block++;
    memmove(at + 1, at, (p->n_instrs - k) * sizeof *at);
    p->n_instrs++;
    p->blocks[block].n_instrs++;
    for (uint32_t i = block + 1; i < p->n_blocks; i++)
        p->blocks[i].instr0++;
    return at;
}

static inline void drop(broken *b, ps_instr *at) {
    ps_program *p = b->program;
    uint32_t k = (uint32_t)(at - p->instrs), block = 0;
    while (p->blocks[block].instr0 + p->blocks[block].n_instrs <= k)
        block++;
    p->n_instrs--;
    memmove(at, at + 1, (p->n_instrs - k) * sizeof *at);
    p->blocks[block].n_instrs--;
    for (uint32_t i = block + 1; i < p->n_blocks; i++)
        p->blocks[i].instr0--;
}

#define RULE(name, shape, level_index, message, ...)                                                         \
    Test(plan_check, name) {                                                                                 \
        broken b;                                                                                            \
        open_level(&b, &(shape), level_index);                                                               \
        __VA_ARGS__                                                                                          \
        refused(&b, message);                                                                                \
    }

#define RULE_GPU(name, shape, kind, message, ...)                                                            \
    Test(plan_check_gpu, name) {                                                                             \
        broken b;                                                                                            \
        const pb_config config = plan_case_level(kind);                                                      \
        plan_case_open_with(&b.c, &(shape), &config, 1);                                                     \
        b.level = b.c.plan->levels;                                                                          \
        b.tier = &b.level->tiers[b.level->n_tiers - 1];                                                      \
        b.program = &b.c.plan->programs[b.tier->program];                                                    \
        __VA_ARGS__                                                                                          \
        refused(&b, message);                                                                                \
    }

#endif
