/* Rules of the checker that need more than one field changed: limits of what it follows, sums joined again, columns that
 * buffers do not have, ends of a step, and the structure of programs and levels. docs/checker-rules.md lists all rules. */
#include "plan_broken.h"
#include "schemas/check_sums.h"
#include "schemas/plan_fields.h"

/* ---- more of a plan than its builder made ---- */

static void *more(broken *b, const void *old, uint64_t n_old, uint64_t n, uint64_t size) {
    void *p = ps_arena_array(b->c.plan->arena, n, size);
    cr_assert_not_null(p);
    memcpy(p, old, n_old * size);
    return p;
}

/* Another buffer, behind everything in its arena, at every tier of the program. */
static uint16_t add_buffer(broken *b, ps_plan_buffer buffer) {
    ps_program *p = b->program;
    uint32_t at = p->n_buffers;
    p->buffers = more(b, p->buffers, at, at + 1, sizeof *p->buffers);
    p->buffers[p->n_buffers++] = buffer;
    bool vram = buffer.space == PS_SPACE_VRAM;
    for (uint32_t l = 0; l < b->c.plan->n_levels; l++) {
        ps_level *level = &b->c.plan->levels[l];
        for (uint32_t t = 0; t < level->n_tiers; t++) {
            ps_tier *tier = &level->tiers[t];
            if (&b->c.plan->programs[tier->program] != p)
                continue;
            tier->buffer_offset = more(b, tier->buffer_offset, at, at + 1, sizeof *tier->buffer_offset);
            tier->buffer_offset[at] = vram ? level->vram_work_bytes : level->host_arena_bytes;
        }
        level->host_arena_bytes += vram ? 0 : 16 << 20;
        level->vram_work_bytes += vram ? PS_VRAM_ALIGN : 0;
    }
    return (uint16_t)at;
}

static uint16_t like(broken *b, uint16_t buffer, uint32_t col0, uint32_t cols) {
    ps_plan_buffer copy = b->program->buffers[buffer];
    copy.col0 = col0;
    copy.cols = cols;
    return add_buffer(b, copy);
}

/* Room for n more instructions, of all tiers. */
static void more_instrs(broken *b, uint32_t n) {
    ps_program *p = b->program;
    p->instrs = more(b, p->instrs, p->n_instrs, p->n_instrs + n, sizeof *p->instrs);
    for (uint32_t l = 0; l < b->c.plan->n_levels; l++)
        for (uint32_t t = 0; t < b->c.plan->levels[l].n_tiers; t++) {
            ps_tier *tier = &b->c.plan->levels[l].tiers[t];
            if (&b->c.plan->programs[tier->program] == p)
                tier->predicted =
                    more(b, tier->predicted, p->n_instrs, p->n_instrs + n, sizeof *tier->predicted);
        }
}

/* A kernel like another, with another format of its result. */
static uint32_t kernel_to(broken *b, uint32_t id, ps_fmt out) {
    ps_plan *p = b->c.plan;
    ps_kernel_spec k = *ps_kernel_specs_find(p->kernels, p->n_kernels, id);
    p->kernels = more(b, p->kernels, p->n_kernels, p->n_kernels + 1, sizeof *p->kernels);
    k.id = p->kernels[p->n_kernels - 1].id + 1;
    k.out_fmt = out;
    snprintf(k.name, sizeof k.name, "another");
    p->kernels[p->n_kernels++] = k;
    return k.id;
}

/* The part of the head's product on a queue of program 2. */
static ps_instr *head_part(broken *b, ps_queue queue) {
    for (uint32_t i = 0; i < b->program->n_instrs; i++) {
        ps_instr *in = &b->program->instrs[i];
        if (in->op == PS_OP_MATMUL && in->shard == PS_SHARD_HEAD && in->queue == queue)
            return in;
    }
    cr_assert_fail("no such part");
    return NULL;
}

/* A copy within queue gpu, before `at`. */
static ps_instr *insert_copy(broken *b, ps_instr *at, ps_shard_kind shard, uint16_t from, uint16_t to) {
    ps_instr *in = insert(b, at);
    *in = (ps_instr){.op = PS_OP_COPY,
                     .queue = PS_QUEUE_GPU,
                     .shard = shard,
                     .w = {PS_ROLE_NONE, PS_ROLE_NONE, PS_ROLE_NONE},
                     .src = {from, PS_NO_BUFFER, PS_NO_BUFFER},
                     .dst = to,
                     .n_waits = 1,
                     .wait = {1}};
    return in;
}

/* Every instruction waits for the one before it alone. */
static void in_turn(broken *b) {
    for (uint32_t i = 0; i < b->program->n_instrs; i++) {
        b->program->instrs[i].n_waits = 1;
        memset(b->program->instrs[i].wait, 0, sizeof b->program->instrs[i].wait);
        b->program->instrs[i].wait[0] = 1;
    }
}

static void largest_tier_alone(broken *b) {
    b->level->tiers[0] = *b->tier;
    b->level->n_tiers = 1;
    b->tier = &b->level->tiers[0];
}

/* ---- columns ---- */

RULE(range_into_blocks_of_32, mb_llama_small, 2, "a range of columns needs a destination in f32 or f16", {
    ps_instr *part = head_part(&b, PS_QUEUE_GPU);
    part->kernel = kernel_to(&b, part->kernel, PS_FMT_Q8);
    b.program->buffers[part->dst].fmt = PS_FMT_Q8;
})
RULE(copied_range_into_blocks_of_32, mb_llama_small, 2,
     "a range of columns needs a destination in f32 or f16", {
         ps_instr *copy = head_part(&b, PS_QUEUE_GPU) - 1;
         cr_assert(copy->op == PS_OP_COPY && b.program->buffers[copy->dst].fmt == PS_FMT_Q8);
         copy->n_rows = 32;
     })
RULE(copy_into_another_format, mb_llama_small, 2, "copy keeps the format, convert changes it",
     b.program->buffers[find(&b, PS_OP_COPY, 0)->dst].fmt = PS_FMT_F16;)
RULE(copy_before_the_first_column, mb_llama_small, 2, "the destination begins at column 32", {
    ps_instr *copy = find(&b, PS_OP_COPY, 0);
    copy->dst = like(&b, copy->dst, 32, 32);
    copy->n_rows = 32;
})
RULE(copy_of_other_columns, mb_llama_small, 2, "source and destination must hold the same columns", {
    ps_instr *copy = find(&b, PS_OP_COPY, 0);
    copy->dst = like(&b, copy->dst, 0, 32);
})
RULE(columns_that_the_source_has_not, mb_llama_small, 2, "has columns 0 to 31, 0 to 63 are read", {
    ps_instr *copy = find(&b, PS_OP_COPY, 0);
    copy->src[0] = like(&b, copy->src[0], 0, 32);
    copy->n_rows = 64;
})
RULE(third_source_in_another_format, mb_qwen3moe_small, 0, "the third source must be f32",
     find(&b, PS_OP_MOE_DISPATCH, 0)->src[2] = find(&b, PS_OP_MOE_DISPATCH, 0)->src[0];)

/* ---- limits of what it follows ---- */

/* 18 single rows with gaps between them, `two` into two buffers in turn. */
static void many_parts(broken *b, bool two) {
    more_instrs(b, 40);
    if (!two) /* which would be a part more of the operation */
        drop(b, head_part(b, PS_QUEUE_GPU));
    in_turn(b);
    ps_instr *at = head_part(b, PS_QUEUE_CPU), kept = *at;
    uint16_t dst[2] = {kept.dst, two ? like(b, kept.dst, 0, b->program->buffers[kept.dst].cols) : kept.dst};
    for (uint32_t i = 0; i < 18; i++) {
        ps_instr *in = insert(b, head_part(b, PS_QUEUE_CPU) + i);
        *in = kept;
        in->row0 = 2 * (uint64_t)i;
        in->n_rows = 1;
        in->dst = dst[i % 2];
    }
}
RULE(too_many_parts_of_a_buffer, mb_llama_small, 2, "(logits) is used by too many instructions at once",
     many_parts(&b, false);)
RULE(too_many_parts_of_an_operation, mb_llama_small, 2, "in more than 16 parts", many_parts(&b, true);)
RULE(too_many_readers_at_once, mb_llama_small, 2, "is used by too many instructions at once", {
    more_instrs(&b, 80);
    ps_instr kept = *head_part(&b, PS_QUEUE_CPU);
    for (uint32_t i = 0; i < 40; i++) { /* all wait for what made their source, none for another */
        ps_instr *in = insert(&b, head_part(&b, PS_QUEUE_CPU) + i);
        *in = kept;
        in->row0 = i;
        in->n_rows = 1;
        in->wait[0] = 3 + i;
    }
})
RULE(more_instructions_than_operations, mb_llama_small, 0,
     "far more instructions than the model has operations", {
         enum { N = 8000 };
         more_instrs(&b, N);
         ps_block *last = &b.program->blocks[b.program->n_blocks - 1];
         for (uint32_t i = 0; i < N; i++)
             b.program->instrs[b.program->n_instrs + i] = b.program->instrs[b.program->n_instrs - 1];
         b.program->n_instrs += N;
         last->n_instrs += N;
     })

/* Their numbers end there. */
Test(plan_check, too_many_different_sums) {
    ps_sums *sums = calloc(1, sizeof *sums);
    ps_arena *arena = ps_arena_new(UINT64_MAX);
    for (uint32_t i = 0; i < PS_CHECK_SUMS; i++) {
        ps_sum sum = {.n = 1, .sides = PS_SIDES, .parts = {{i, i + 7}}};
        cr_assert_eq(ps_sum_number(sums, arena, &sum), i + 1);
        cr_assert_eq(ps_sum_number(sums, arena, &sum), i + 1, "a sum has one number");
    }
    ps_sum other = {.n = 1, .sides = PS_SIDE_FAR, .parts = {{0, 7}}};
    cr_assert_eq(ps_sum_number(sums, arena, &other), 0, "more than 1024 different partial sums");
    ps_arena_free(arena);
    free(sums);
}

/* ---- sums ---- */

RULE_GPU(sum_made_twice, plan_case_wide, 5, "the sum was made before", {
    ps_instr *add = find(&b, PS_OP_ADD, 0);
    uint16_t other = like(&b, add->dst, 0, b.program->buffers[add->dst].cols);
    ps_instr first = *add;
    first.dst = other;
    *insert(&b, add) = first;
    in_turn(&b);
})
RULE_GPU(columns_joined_twice, plan_case_wide, 5, "columns 0 to 63 are joined twice", {
    ps_instr first = *find(&b, PS_OP_ADD, 0);
    more_instrs(&b, 3);
    uint16_t half[3];
    for (int i = 0; i < 3; i++)
        half[i] = like(&b, i == 2 ? first.dst : first.src[i], 0, 32);
    ps_instr joined = first;
    joined.src[0] = half[0];
    joined.src[1] = half[1];
    joined.dst = half[2];
    *insert(&b, find(&b, PS_OP_ADD, 0)) = joined;
    for (int i = 0; i < 2; i++)
        insert_copy(&b, find(&b, PS_OP_ADD, 0), first.shard, first.src[i], half[i])->n_rows = 32;
    in_turn(&b);
})
RULE_GPU(sum_into_another_value, plan_case_wide, 5, "the destination is not of the sum's value",
         find(&b, PS_OP_ADD, 0)->dst = buffer(&b, PS_VALUE_NORM, PS_FMT_F32, PS_SPACE_VRAM);)
RULE_GPU(add_of_other_columns, plan_case_wide, 5, "source 1 and the destination must have the same columns", {
    ps_instr *add = find(&b, PS_OP_ADD, 0);
    add->src[1] = like(&b, add->src[1], 0, 32);
})

/* ---- tiles, KV ---- */

RULE(gather_of_one_tile, mb_llama_small, 1, "must read rows of the step", {
    ps_instr *gather = find(&b, PS_OP_GATHER, 0);
    ps_plan_buffer tile = b.program->buffers[gather->src[0]];
    tile.rows = PS_ROWS_TILE;
    gather->src[0] = add_buffer(&b, tile);
})
RULE(outputs_in_a_block_over_tiles, mb_llama_small, 1, "rows of the outputs in a block over tiles", {
    ps_program *p = b.program;
    p->blocks[p->n_blocks] = p->blocks[p->n_blocks - 1];
    p->blocks[p->n_blocks - 1].n_instrs = 1; /* gather */
    p->blocks[p->n_blocks].instr0++;
    p->blocks[p->n_blocks].n_instrs--;
    p->blocks[p->n_blocks++].over_tiles = true;
})
RULE(ring_loses_positions, mb_gemma3_small, 1, "the KV ring has lost positions to a later tile", {
    /* the keys of all tiles are stored before the first tile attends; q waits in a buffer of the step */
    ps_program *p = b.program;
    ps_instr *store = find(&b, PS_OP_KV_STORE, 0);
    uint32_t at = (uint32_t)(store - p->instrs) - p->blocks[1].instr0 + 1;
    uint16_t q = find(&b, PS_OP_ATTENTION, 0)->src[0];
    ps_plan_buffer whole = p->buffers[q];
    whole.rows = PS_ROWS_STEP;
    uint16_t kept = add_buffer(&b, whole);
    for (uint32_t i = 0; i < p->n_instrs; i++) {
        for (int k = 0; k < PS_OP_MAX_SRC; k++)
            p->instrs[i].src[k] = p->instrs[i].src[k] == q ? kept : p->instrs[i].src[k];
        p->instrs[i].dst = p->instrs[i].dst == q ? kept : p->instrs[i].dst;
    }
    memmove(&p->blocks[3], &p->blocks[2], (p->n_blocks - 2) * sizeof *p->blocks);
    p->n_blocks++;
    p->blocks[2] = p->blocks[1];
    p->blocks[2].instr0 += at;
    p->blocks[2].n_instrs -= at;
    p->blocks[1].n_instrs = at;
    p->blocks[1].n_layers = 1;
    p->blocks[2].n_layers = 1;
})
RULE_GPU(stored_over_its_source, plan_case_wide, 3, "source 0 and the slot share bytes", {
    ps_instr *store = find(&b, PS_OP_KV_STORE, 0);
    largest_tier_alone(&b);
    b.tier->buffer_offset[store->src[0]] = b.tier->buffer_offset[store->kv - PS_KV_SLOT];
})

/* ---- the end of a step ---- */

RULE_GPU(rows_of_the_step_behind_gather, plan_case_wide, 3,
         "only rows of the outputs can be worked on behind gather", {
             uint16_t x = find(&b, PS_OP_GATHER, 0)->src[0];
             insert_copy(&b, find(&b, PS_OP_GATHER, 0) + 1, PS_SHARD_HEAD, x, like(&b, x, 0, 64));
         })
RULE(partly_executed, mb_llama_small, 2, "matmul of shard head 0 is partly executed for tile 0", {
    drop(&b, find(&b, PS_OP_SAMPLE, 0));
    drop(&b, head_part(&b, PS_QUEUE_CPU));
    in_turn(&b);
})
RULE(results_overwritten, mb_llama_small, 2, "no host buffer holds the logits at the end", {
    ps_instr *sample = find(&b, PS_OP_SAMPLE, 0), *norm = find(&b, PS_OP_RMSNORM, 2);
    cr_assert_eq(norm->w[0], PS_ROLE_OUTPUT_NORM);
    uint16_t over = like(&b, norm->src[0], 0, 64), logits = sample->src[0];
    for (uint32_t t = 0; t < b.level->n_tiers; t++)
        b.level->tiers[t].buffer_offset[over] = b.level->tiers[t].buffer_offset[logits];
    ps_program *p = b.program; /* at the very end */
    ps_instr *last = insert_copy(&b, sample, PS_SHARD_HEAD, norm->src[0], over);
    swap(last, last + 1);
    cr_assert_eq(&p->instrs[p->n_instrs - 1], last + 1);
    in_turn(&b);
})

/* ---- levels, entries ---- */

RULE(gpu_without_vram, mb_llama_small, 2, "a level without VRAM has queue cpu alone", {
    /* everything that the GPU touches is in host memory: nothing but the budget forbids it */
    for (uint32_t i = 0; i < b.program->n_buffers; i++)
        if (b.program->buffers[i].space == PS_SPACE_VRAM) {
            b.program->buffers[i].space = PS_SPACE_HOST;
            for (uint32_t t = 0; t < b.level->n_tiers; t++)
                b.level->tiers[t].buffer_offset[i] = b.level->host_arena_bytes;
            b.level->host_arena_bytes += 1 << 20;
        }
    for (uint32_t i = 0; i < b.program->n_instrs; i++) {
        if (b.program->instrs[i].op == PS_OP_COPY)
            b.program->instrs[i].queue = PS_QUEUE_GPU;
        for (int w = 0; w < PS_OP_MAX_WEIGHTS; w++)
            b.program->instrs[i].at[w] = PS_AT_HOST;
    }
    for (uint32_t i = 0; i < b.c.plan->n_shards; i++)
        b.level->placement[i] = PS_PLACE_SPLIT;
    b.level->n_resident = 0;
    b.level->budget_bytes = b.level->vram_work_bytes = b.level->vram_weight_bytes = 0;
    for (uint32_t t = 0; t < b.level->n_tiers; t++)
        b.level->tiers[t].vram_scratch_offset = b.level->tiers[t].vram_scratch_bytes = 0;
})
RULE_GPU(entry_of_all_columns, plan_case_wide, 3, "all columns are written as none",
         b.program->entries[0].range.n_cols = 64;)
RULE_GPU(entries_share_bytes, plan_case_wide, 3, "entries of slots", {
    largest_tier_alone(&b);
    b.tier->buffer_offset[b.program->entries[1].slot] = b.tier->buffer_offset[b.program->entries[0].slot];
})
RULE_GPU(entry_of_no_rows, plan_case_wide, 3, "entry 0: rows: not a range",
         b.program->entries[0].range.n_rows = 0;)
RULE_GPU(entry_of_a_column_without_columns, plan_case_wide, 3, "entry 0: cols: not a range",
         b.program->entries[0].range.col0 = 256;)
RULE_GPU(entry_of_no_layer, plan_case_wide, 3, "of layer 99", b.program->entries[0].range.layer = 99;)
RULE_GPU(entry_of_no_role, plan_case_wide, 3, "entry 0: role: a range is of a weight",
         b.program->entries[0].range.role = PS_ROLE_NONE;)

Test(plan_check, plan_of_another_shape) {
    plan_case c, other;
    ps_error err = {0};
    plan_case_open(&c, &mb_llama_small);
    plan_case_open(&other, &mb_gemma3_small);
    cr_assert_eq(ps_plan_check(c.plan, c.plan->levels, other.model, &err), PS_E_MISMATCH);
    cr_assert_not_null(strstr(err.message, "it is for 2 layers and 6 shards, the model has 7 and 16"), "%s",
                       err.message);
    plan_case_close(&c);
    plan_case_close(&other);
}

/* ---- structure ---- */

RULE(other_version, mb_llama_small, 0, "plan version 1, this program knows version 2", b.c.plan->version = 1;)
RULE(nothing_in_it, mb_llama_small, 0, "layers, shards, programs and levels must not be empty",
     b.c.plan->n_levels = 0;)
RULE(layer_of_a_shard, mb_llama_small, 0, "shard 1: layer: 7 of 2", b.c.plan->shards[1].layer = 7;)
RULE(buffer_of_nothing, mb_llama_small, 0, "buffer 0: value: a buffer needs a value and a format",
     b.program->buffers[0].value = PS_VALUE_NONE;)
RULE(buffer_without_columns, mb_llama_small, 0, "buffer 0: cols: must not be zero",
     b.program->buffers[0].cols = 0;)
RULE(blocks_of_32_cut, mb_llama_small, 0, "must be a multiple of 32 in q8",
     b.program->buffers[buffer(&b, PS_VALUE_NORM, PS_FMT_Q8, PS_SPACE_HOST)].cols = 33;)
RULE(too_many_buffers, mb_llama_small, 0, "buffers: 1025, at most 1024", b.program->n_buffers = 1025;)
RULE(seven_waits, mb_llama_small, 0, "wait: 7 waits, at most 6", find(&b, PS_OP_GLU, 0)->n_waits = 7;)
RULE(wait_behind_the_last, mb_llama_small, 0, "wait: entries behind the last must be zero",
     find(&b, PS_OP_GLU, 0)->wait[1] = 5;)
RULE(waits_descend, mb_llama_small, 0, "wait: distances must ascend from 1", {
    find(&b, PS_OP_GLU, 0)->n_waits = 2;
    find(&b, PS_OP_GLU, 0)->wait[1] = 1;
})
RULE(operand_of_nothing, mb_llama_small, 0, "src: the operation has no such operand",
     find(&b, PS_OP_GLU, 0)->src[2] = 0;)
RULE(operand_outside, mb_llama_small, 0, "src: buffer 999 of", find(&b, PS_OP_GLU, 0)->src[0] = 999;)
RULE(destination_missing, mb_llama_small, 0, "dst: glu needs a destination",
     find(&b, PS_OP_GLU, 0)->dst = PS_NO_BUFFER;)
RULE(weight_of_a_glu, mb_llama_small, 0, "w: glu takes at most 0 weights",
     find(&b, PS_OP_GLU, 0)->w[0] = PS_ROLE_FFN_UP;)
RULE(weight_of_another_model, mb_llama_small, 0, "the model has no ffn_up_exps.weight here",
     find(&b, PS_OP_MATMUL, 0)->w[0] = PS_ROLE_FFN_UP_EXPS;)
RULE_GPU(copy_of_a_weight_of_another_model, plan_case_wide, 3, "the model has no ffn_up_exps.weight here",
         find_fetch(&b, PS_ROLE_FFN_UP, 0)->w[0] = PS_ROLE_FFN_UP_EXPS;)
RULE_GPU(copy_for_no_shard, plan_case_wide, 3, "the model has no shard moe in layer 0",
         find_fetch(&b, PS_ROLE_ATTN_Q, 0)->shard = PS_SHARD_MOE;)
RULE(kernel_left_out, mb_llama_small, 0, "kernel: every operation but copy has a kernel",
     find(&b, PS_OP_GLU, 0)->kernel = 0;)
RULE(kernel_of_no_list, mb_llama_small, 0, "kernel: 9999 is not in the plan's list",
     find(&b, PS_OP_GLU, 0)->kernel = 9999;)
RULE(rows_that_wrap, mb_llama_small, 0, "rows: not a range", {
    find(&b, PS_OP_MATMUL, 0)->row0 = UINT64_MAX;
    find(&b, PS_OP_MATMUL, 0)->n_rows = 2;
})
RULE(blocks_with_a_gap, mb_llama_small, 0, "instrs: blocks must hold the instructions one after the other",
     b.program->blocks[1].instr0++;)
RULE(once_with_layers, mb_llama_small, 0, "layers: a block that runs once has none",
     b.program->blocks[0].n_layers = 2;)
RULE(layers_outside, mb_llama_small, 0, "layers: 3 from 0 on, the model has 2",
     b.program->blocks[1].n_layers = 3;)
RULE(instructions_in_no_block, mb_llama_small, 0, "instructions are in blocks", b.program->n_blocks--;)
RULE(endless_stream, mb_llama_small, 0, "blocks: more than 16777216 instructions in a step", {
    b.c.plan->n_layers = 1 << 24;
    b.program->blocks[1].n_layers = 1 << 24;
})
RULE(ends_before_it_starts, mb_llama_small, 0, "predicted: an instruction ends before it starts", {
    b.tier->predicted[2].end_full_s = 1;
    b.tier->predicted[2].start_full_s = 2;
})
RULE(time_is_no_number, mb_llama_small, 0, "step times: times must be finite and not negative",
     b.tier->raw_bound_s = -1;)
RULE(level_of_no_threads, mb_llama_small, 0, "bucket, sequences, threads and tiers must not be zero",
     b.level->n_threads = 0;)
RULE(too_many_tiers, mb_llama_small, 0, "tiers: 65, at most 64", b.level->n_tiers = 65;)
RULE(tier_of_no_tokens, mb_llama_small, 0, "max_tokens: must be from 1 to 65536, is 0",
     b.level->tiers[0].max_tokens = 0;)
RULE(tiers_descend, mb_llama_small, 0, "max_tokens: tiers must ascend", b.level->tiers[2].max_tokens = 8;)
RULE(tier_of_no_program, mb_llama_small, 0, "program: 99 of 3", b.tier->program = 99;)
RULE(outputs_above_tokens, mb_llama_small, 0, "max_outputs: must be from 1 to max_tokens, is 513",
     b.tier->max_outputs = 513;)
RULE(offset_unaligned, mb_llama_small, 0, "is no multiple of 64", b.tier->buffer_offset[0] += 32;)
RULE(scratch_unaligned, mb_llama_small, 0, "scratch_offset: no multiple of 64", b.tier->scratch_offset += 8;)
RULE_GPU(vram_scratch_unaligned, plan_case_wide, 6, "vram_scratch_offset: no multiple of 256",
         b.tier->vram_scratch_offset += 64;)
RULE(kv_unaligned, mb_llama_small, 0, "kv of layer 1: offset: no multiple of 64", b.level->kv[1].offset += 8;)
RULE(placement_of_no_name, mb_llama_small, 0, "placement: unknown placement of shard 1",
     b.level->placement[1] = (ps_placement)77;)

/* Of all levels together: what a reader refuses. */
static void invalid(const char *message, void (*change)(ps_plan *)) {
    plan_case c;
    ps_error err = {0};
    char line[600];
    plan_case_open(&c, &mb_llama_small);
    cr_assert_eq(ps_plan_validate(c.plan, &err), PS_OK);
    change(c.plan);
    cr_assert_eq(ps_plan_validate(c.plan, &err), PS_E_DATA, "accepted; wanted: %s", message);
    ps_error_format(&err, line, sizeof line);
    cr_assert(strstr(line, message) != NULL, "wanted \"%s\", got \"%s\"", message, line);
    plan_case_close(&c);
}
static void levels_swapped(ps_plan *p) {
    ps_level first = p->levels[0];
    p->levels[0] = p->levels[1];
    p->levels[1] = first;
}
static void bytes_of_host(ps_plan *p) {
    p->levels[2].budget_bytes = 0;
    p->levels[2].bucket_tokens = 1 << 20;
}
static void two_names(ps_plan *p) {
    p->levels[1].budget_bytes = p->levels[2].budget_bytes;
    p->levels[1].bucket_tokens = 1;
    snprintf(p->levels[1].budget, sizeof p->levels[1].budget, "2048MiB");
}
static void name_again(ps_plan *p) {
    p->levels[1].budget_bytes = 1 << 20;
    memcpy(p->levels[1].budget, p->levels[2].budget, sizeof p->levels[1].budget);
}
static void many_budgets(ps_plan *p) {
    ps_level *levels = ps_arena_array(p->arena, PS_PLAN_MAX_BUDGETS + 1, sizeof *levels);
    for (uint32_t i = 0; i <= PS_PLAN_MAX_BUDGETS; i++) {
        levels[i] = p->levels[2];
        levels[i].budget_bytes += (uint64_t)i << 20;
        snprintf(levels[i].budget, sizeof levels[i].budget, "%u", i);
    }
    p->levels = levels;
    p->n_levels = PS_PLAN_MAX_BUDGETS + 1;
}
Test(plan_check, levels_descend) {
    invalid("levels must ascend by budget, bucket, sequences, threads", levels_swapped);
}
Test(plan_check, budget_without_bytes) {
    invalid("with 0 bytes: host, and it alone, has none", bytes_of_host);
}
Test(plan_check, two_names_of_a_budget) {
    invalid("\"2048MiB\" and \"2GiB\" have the same bytes", two_names);
}
Test(plan_check, a_name_of_two_budgets) {
    invalid("\"2GiB\" has other bytes before", name_again);
}
Test(plan_check, too_many_budgets) {
    invalid("more than 256 of them", many_budgets);
}
