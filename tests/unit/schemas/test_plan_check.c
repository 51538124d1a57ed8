/* The checker: safe plans pass, and each rule refuses exactly what breaks it. */
#include <criterion/criterion.h>
#include <string.h>

#include "core/clock.h"
#include "plan_broken.h"

Test(plan_check, safe_plans_pass) {
    const mb_shape *shapes[] = {&mb_llama_small, &mb_qwen3_small, &mb_qwen3moe_small, &mb_gemma3_small};
    for (int i = 0; i < 4; i++) {
        plan_case c;
        plan_case_open(&c, shapes[i]);
        ps_error err = {0};
        must(ps_plan_match_model(c.plan, c.model, &err), &err);
        for (uint32_t l = 0; l < c.plan->n_levels; l++)
            must(ps_plan_check(c.plan, &c.plan->levels[l], c.model, &err), &err);
        plan_case_close(&c);
    }
}

Test(plan_check, safe_plans_with_a_gpu_pass) {
    const mb_shape *shapes[] = {&plan_case_wide, &plan_case_biased, &mb_qwen3_small, &mb_qwen3moe_small,
                                &mb_gemma3_small};
    for (int i = 0; i < 5; i++)
        for (uint32_t program = 2; program <= 6; program++) {
            plan_case c;
            ps_error err = {0};
            if (program == 5 && shapes[i]->n_ff < 1024 && shapes[i]->n_expert == 0)
                continue; /* too narrow to be cut by columns */
            pb_config level = plan_case_level(program);
            plan_case_open_with(&c, shapes[i], &level, 1);
            must(ps_plan_check(c.plan, c.plan->levels, c.model, &err), &err);
            must(ps_plan_check_change(c.plan, c.plan->levels, c.plan->levels, c.model, &err), &err);
            plan_case_close(&c);
        }
}

/* ---- one test per rule: each breaks one thing and sees its message ---- */

/* Give a buffer of the outputs the rows of the step, at the end of the arena, where there is room. */
static void more_rows(broken *b, uint16_t i) {
    b->program->buffers[i].rows = PS_ROWS_STEP;
    for (uint32_t t = 0; t < b->level->n_tiers; t++) {
        b->level->tiers[t].buffer_offset[i] = b->level->host_arena_bytes;
    }
    b->level->host_arena_bytes += 1 << 20;
}

RULE(read_before_write, mb_llama_small, 0, "is read before it is written",
     swap(find(&b, PS_OP_RMSNORM, 0), find(&b, PS_OP_CONVERT, 0));)

RULE(product_left_out, mb_llama_small, 0, "executed already",
     *find(&b, PS_OP_MATMUL, 1) = *find(&b, PS_OP_MATMUL, 0);)
RULE(store_before_rope, mb_llama_small, 0, "holds k of attn 0, not k of attn 0",
     swap(find(&b, PS_OP_ROPE, 1), find(&b, PS_OP_KV_STORE, 0));)
RULE(product_before_its_convert, mb_llama_small, 0, "holds norm of attn 0, not norm of ffn 0",
     swap(find(&b, PS_OP_CONVERT, 2), find(&b, PS_OP_MATMUL, 4));)
RULE(converted_twice, mb_llama_small, 0, "are written twice",
     swap(find(&b, PS_OP_CONVERT, 2), find(&b, PS_OP_RMSNORM, 1));)
RULE(unknown_operation, mb_llama_small, 0, "no such operation with these weights",
     find(&b, PS_OP_MATMUL, 0)->w[0] = PS_ROLE_ATTN_OUT;)
RULE(wrong_shard, mb_llama_small, 0, "has no such operation",
     find(&b, PS_OP_MATMUL, 0)->shard = PS_SHARD_FFN;)
RULE(no_such_shard, mb_llama_small, 0, "the model has no shard moe in layer 0",
     find(&b, PS_OP_MATMUL, 0)->shard = PS_SHARD_MOE;)
RULE(layer_left_out, mb_llama_small, 0, "operations before it are missing",
     b.program->blocks[1].n_layers = 1;)
RULE(wrong_width, mb_llama_small, 0, "has 64 columns from 64 on, the operation makes 96", {
    uint16_t gate = buffer(&b, PS_VALUE_GATE, PS_FMT_F32, PS_SPACE_HOST);
    b.program->buffers[gate].col0 = b.program->buffers[gate].cols = 64;
})
RULE(too_narrow, mb_llama_small, 0, "has columns 0 to 63, 0 to 95 are written",
     b.program->buffers[buffer(&b, PS_VALUE_GATE, PS_FMT_F32, PS_SPACE_HOST)].cols = 64;)
RULE(live_buffers_overlap, mb_llama_small, 0, "overwrote it", {
    b.tier->buffer_offset[buffer(&b, PS_VALUE_V, PS_FMT_F32, PS_SPACE_HOST)] =
        b.tier->buffer_offset[buffer(&b, PS_VALUE_K, PS_FMT_F32, PS_SPACE_HOST)];
})
RULE(source_and_destination_overlap, mb_llama_small, 0, "and the destination share bytes", {
    b.tier->buffer_offset[buffer(&b, PS_VALUE_NORM, PS_FMT_Q8, PS_SPACE_HOST)] =
        b.tier->buffer_offset[buffer(&b, PS_VALUE_NORM, PS_FMT_F32, PS_SPACE_HOST)];
})
RULE(in_place_where_it_must_not, mb_llama_small, 0, "source 0 cannot be the destination",
     find(&b, PS_OP_ATTENTION, 0)->dst = find(&b, PS_OP_ATTENTION, 0)->src[0];)
RULE(missing_source, mb_llama_small, 0, "source 1 is missing", find(&b, PS_OP_GLU, 0)->src[1] = PS_NO_BUFFER;)
RULE(buffer_outside_arena, mb_llama_small, 0, "outside the host arena", {
    b.tier->buffer_offset[buffer(&b, PS_VALUE_X, PS_FMT_F32, PS_SPACE_HOST)] = b.level->host_arena_bytes - 64;
})
RULE(buffer_in_kv, mb_llama_small, 0, "shares bytes with the KV cache of layer 1", {
    b.tier->buffer_offset[buffer(&b, PS_VALUE_TOKENS, PS_FMT_I32, PS_SPACE_HOST)] =
        b.level->kv[1].offset + b.level->kv[1].bytes - 64;
})
RULE(buffer_in_scratch, mb_llama_small, 0, "shares bytes with the scratch", {
    b.tier->buffer_offset[buffer(&b, PS_VALUE_TOKENS, PS_FMT_I32, PS_SPACE_HOST)] = b.tier->scratch_offset;
})
RULE(scratch_too_small, mb_llama_small, 0, "bytes of scratch, the tier has", b.tier->scratch_bytes = 64;)
RULE(scratch_outside, mb_llama_small, 0, "scratch: outside the host arena", b.tier->scratch_bytes += 64;)
RULE(scratch_in_kv, mb_llama_small, 0, "scratch: shares bytes with the KV cache of layer 0",
     b.tier->scratch_offset = 0;)
RULE(kv_too_short, mb_llama_small, 0, "kv of layer 1: 1023 rows, the bucket needs 1024",
     b.level->kv[1].rows--;)
RULE(kv_wrong_bytes, mb_llama_small, 0, "bytes, its rows need", b.level->kv[1].bytes -= 64;)
RULE(kv_outside, mb_llama_small, 0, "kv of layer 1: outside the host arena",
     b.level->host_arena_bytes = b.level->kv[1].offset + b.level->kv[1].bytes - 64;)
RULE(kv_overlap, mb_llama_small, 0, "kv: layers 0 and 1 share bytes", b.level->kv[1].offset = 64;)
RULE(kv_elsewhere, mb_llama_small, 2, "the layer's KV cache is in vram", {
    b.level->kv[0].space = PS_SPACE_VRAM;
    b.level->kv[0].offset = b.level->vram_work_bytes;
    b.level->vram_work_bytes += PS_VRAM_ALIGN;
})
RULE(attention_before_store, mb_llama_small, 0, "does not hold the tile's tokens yet",
     swap(find(&b, PS_OP_KV_STORE, 0), find(&b, PS_OP_ATTENTION, 0));)
RULE(kernel_of_another_operation, mb_llama_small, 0, "is for rope on cpu",
     find(&b, PS_OP_GLU, 0)->kernel = find(&b, PS_OP_ROPE, 0)->kernel;)
RULE(kernel_of_another_type, mb_llama_small, 0, "does not take the type of the weights",
     find(&b, PS_OP_MATMUL, 0)->kernel = b.program->instrs[b.program->n_instrs - 2].kernel;)
RULE(kernel_of_another_format, mb_llama_small, 0, "the buffers are f32 and f32",
     find(&b, PS_OP_MATMUL, 0)->src[0] = buffer(&b, PS_VALUE_NORM, PS_FMT_F32, PS_SPACE_HOST);)
RULE(residual_in_another_format, mb_llama_small, 0, "the second source must be f32", {
    ps_instr *out = find(&b, PS_OP_MATMUL, 3);
    out->src[1] = out->src[0];
})
RULE(kernel_of_another_device, mb_llama_small, 2, "on cuda", {
    uint32_t gpu = 0;
    for (uint32_t i = 0; i < b.program->n_instrs; i++)
        if (b.program->instrs[i].queue == PS_QUEUE_GPU && b.program->instrs[i].op == PS_OP_RMSNORM)
            gpu = b.program->instrs[i].kernel;
    find(&b, PS_OP_RMSNORM, 0)->kernel = gpu;
})
RULE(wrong_queue, mb_llama_small, 2, "cannot run on queue cpu", {
    ps_instr *copy = find(&b, PS_OP_COPY, 0);
    copy->queue = PS_QUEUE_CPU;
    copy->src[0] = copy->dst = 0;
    copy->dst = 1;
})
RULE(queue_reads_elsewhere, mb_llama_small, 2, "queue d2h does not read from host",
     find(&b, PS_OP_COPY, 1)->src[0] = buffer(&b, PS_VALUE_NORM, PS_FMT_F32, PS_SPACE_HOST);)
RULE(queue_writes_elsewhere, mb_llama_small, 2, "queue h2d does not write to host",
     find(&b, PS_OP_COPY, 0)->dst = buffer(&b, PS_VALUE_NORM, PS_FMT_F32, PS_SPACE_HOST);)
RULE(placement, mb_llama_small, 2, "weights placed \"host\" are not for queue gpu", {
    for (uint32_t i = 0; i < b.c.plan->n_shards; i++)
        b.level->placement[i] = PS_PLACE_HOST;
})
RULE(placement_of_direct, mb_llama_small, 2, "weights placed \"direct\" are not for queue cpu", {
    for (uint32_t i = 0; i < b.c.plan->n_shards; i++)
        b.level->placement[i] = PS_PLACE_DIRECT;
})
RULE(copy_of_another_value, mb_llama_small, 2, "must hold the same value",
     find(&b, PS_OP_COPY, 0)->dst = buffer(&b, PS_VALUE_NORM, PS_FMT_F32, PS_SPACE_VRAM);)
RULE(gpu_scratch, mb_llama_small, 2, "needs 64 bytes of VRAM scratch, the tier has 0", {
    for (uint32_t i = 0; i < b.c.plan->n_kernels; i++)
        if (b.c.plan->kernels[i].device == PS_DEV_CUDA)
            b.c.plan->kernels[i].scratch.base = 64;
})
/* Rows of the head's product: 0 to 63 on the CPU, 64 to 127 on the GPU. */
RULE(rows_twice, mb_llama_small, 2, "rows 0 to 63 are executed twice", {
    for (uint32_t i = 0; i < b.program->n_instrs; i++)
        if (b.program->instrs[i].queue != PS_QUEUE_CPU && b.program->instrs[i].row0 == 64) {
            b.program->instrs[i].row0 = 60;
            b.program->instrs[i].n_rows = 68;
        }
})
RULE(rows_left_out, mb_llama_small, 2, "is read where it is not written yet", {
    for (uint32_t i = 0; i < b.program->n_instrs; i++)
        if (b.program->instrs[i].queue != PS_QUEUE_CPU && b.program->instrs[i].row0 == 64) {
            b.program->instrs[i].row0 = 65;
            b.program->instrs[i].n_rows = 63;
        }
})
RULE(rows_outside, mb_llama_small, 2, "rows 64 to 128 are outside", {
    for (uint32_t i = 0; i < b.program->n_instrs; i++)
        if (b.program->instrs[i].queue == PS_QUEUE_GPU && b.program->instrs[i].row0 == 64)
            b.program->instrs[i].n_rows = 65;
})
RULE(range_on_operation_without, mb_llama_small, 0, "the operation takes no range",
     find(&b, PS_OP_GLU, 0)->n_rows = 1;)
RULE(copied_twice, mb_llama_small, 2, "is read where it is not written yet", {
    ps_instr *back = find(&b, PS_OP_COPY, 3);
    back->row0 = 32;
    back->n_rows = 96;
})
RULE(copy_without_wait, mb_llama_small, 2, "may still be written by the instruction 1 before", {
    ps_instr *copy = find(&b, PS_OP_COPY, 0);
    copy->n_waits = copy->wait[0] = 0;
})
RULE(gpu_without_wait, mb_llama_small, 2, "may still be written by the instruction 1 before", {
    ps_instr *norm = find(&b, PS_OP_COPY, 0) + 1;
    cr_assert_eq(norm->queue, PS_QUEUE_GPU);
    norm->n_waits = norm->wait[0] = 0;
})
RULE(sample_waits_for_one_part_only, mb_llama_small, 2, "may still be written by the instruction 2 before", {
    ps_instr *sample = find(&b, PS_OP_SAMPLE, 0);
    /* the copy back waits for the GPU alone, so the CPU's part is not covered by it */
    sample->n_waits = 1;
    sample->wait[1] = 0;
})
RULE(cpu_instructions_may_overlap, mb_llama_small, 0, "may still be written by the instruction 1 before", {
    ps_instr *norm = find(&b, PS_OP_RMSNORM, 0) + 1;
    norm->n_waits = norm->wait[0] = 0;
})
RULE(write_while_read, mb_llama_small, 0, "may still be", {
    /* the feed-forward norm no longer waits for attention's products of the old norm, nor anything between */
    for (uint32_t i = 0; i < b.program->n_instrs; i++)
        if (b.program->instrs[i].op == PS_OP_ATTENTION)
            b.program->instrs[i].n_waits = b.program->instrs[i].wait[0] = 0;
})
RULE(bytes_shared_without_wait, mb_llama_small, 0, "may still be in use by the instruction 1 before", {
    /* the product of v goes where that of k goes, and does not wait for it */
    find(&b, PS_OP_MATMUL, 2)->wait[0] = 2;
    b.tier = &b.level->tiers[0];
    b.tier->buffer_offset[buffer(&b, PS_VALUE_V, PS_FMT_F32, PS_SPACE_HOST)] =
        b.tier->buffer_offset[buffer(&b, PS_VALUE_K, PS_FMT_F32, PS_SPACE_HOST)];
})
RULE(first_tile_alone, mb_llama_small, 1, "needs it in a block over tiles",
     b.program->blocks[1].over_tiles = false;)
RULE(outputs_over_tiles, mb_llama_small, 1, "must be in a block that runs once",
     b.program->blocks[2].over_tiles = true;)
RULE(outputs_mixed_with_step, mb_llama_small, 0, "mixes rows",
     more_rows(&b, buffer(&b, PS_VALUE_LAST_NORM, PS_FMT_Q8, PS_SPACE_HOST));)
RULE(gather_within_the_step, mb_llama_small, 0, "from rows of the step to rows of the outputs",
     more_rows(&b, buffer(&b, PS_VALUE_LAST, PS_FMT_F32, PS_SPACE_HOST));)
RULE(tile_buffer_for_all_tiles, mb_llama_small, 1, "is read before it is written",
     b.program->buffers[buffer(&b, PS_VALUE_X, PS_FMT_F32, PS_SPACE_HOST)].rows = PS_ROWS_TILE;)
RULE(gather_source_overwritten, mb_llama_small, 0, "which gather reads, is overwritten before the end", {
    b.tier->buffer_offset[buffer(&b, PS_VALUE_TOKENS, PS_FMT_I32, PS_SPACE_HOST)] =
        b.tier->buffer_offset[buffer(&b, PS_VALUE_X, PS_FMT_F32, PS_SPACE_HOST)];
})

RULE(gather_twice, mb_llama_small, 0, "executed already",
     *find(&b, PS_OP_RMSNORM, 2) = *find(&b, PS_OP_GATHER, 0);)
RULE(sample_left_out, mb_llama_small, 0, "sample of shard head 0 is not executed", {
    b.program->n_instrs--;
    b.program->blocks[2].n_instrs--;
})
RULE(model_of_other_shape, mb_llama_small, 0, "shard 1 is not the model's",
     b.c.plan->shards[1].weight_bytes++;)

Test(plan_check, plan_for_another_model) {
    plan_case c;
    ps_error err = {0};
    plan_case_open(&c, &mb_llama_small);
    c.plan->model_hash[3] ^= 1;
    cr_assert_eq(ps_plan_match_model(c.plan, c.model, &err), PS_E_MISMATCH);
    cr_assert(strstr(err.message, "it is for model") != NULL);
    plan_case_close(&c);
}

Test(plan_check, places_are_named) {
    broken b;
    ps_error err = {0};
    open_level(&b, &mb_llama_small, 0);
    find(&b, PS_OP_GLU, 0)->src[1] = PS_NO_BUFFER;
    cr_assert_eq(ps_plan_check(b.c.plan, b.level, b.c.model, &err), PS_E_DATA);
    cr_assert_str_eq(err.subject,
                     "level host/1024/1/2, tier 1, block 1 layer 0 tile 0, instruction 16 (glu)");
    plan_case_close(&b.c);
}

/* 100 layers, 17 tiers up to 65536 tokens. The bound is loose: the machine is shared with other builds. */
Test(plan_check, large_plans_are_quick) {
    mb_shape shape = mb_llama_small;
    shape.n_layers = 100;
    pb_config level = {.bucket_tokens = 65536, .n_seqs = 1, .n_threads = 16, .n_tiers = 17};
    for (uint32_t i = 0; i < 17; i++) {
        level.tiers[i] = 1u << i;
        level.programs[i] = level.tiers[i] > PS_TILE_TOKENS;
    }
    plan_case c;
    ps_error err = {0};
    plan_case_open_with(&c, &shape, &level, 1);
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t start = ps_clock_ns();
        must(ps_plan_check(c.plan, &c.plan->levels[0], c.model, &err), &err);
        uint64_t ns = ps_clock_ns() - start;
        best = ns < best ? ns : best;
    }
    fprintf(stderr, "check: %.1f ms\n", (double)best * 1e-6);
    cr_assert_lt(best, 5000000000); /* loose: sanitized builds on busy machines run this too */
    uint8_t *binary;
    uint64_t size;
    cr_assert_eq(ps_plan_to_binary(c.plan, &binary, &size, &err), PS_OK);
    best = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        ps_plan *p;
        uint64_t start = ps_clock_ns();
        cr_assert_eq(ps_plan_parse(binary, size, "p", &p, &err), PS_OK);
        uint64_t ns = ps_clock_ns() - start;
        best = ns < best ? ns : best;
        ps_plan_free(p);
    }
    fprintf(stderr, "load: %.2f ms, %llu bytes\n", (double)best * 1e-6, (unsigned long long)size);
    cr_assert_lt(best, 100000000);
    free(binary);
    plan_case_close(&c);
}
