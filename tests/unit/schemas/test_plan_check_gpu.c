/* The checker on plans with a GPU: each rule of slots, residents, KV in slots, partial sums, parts and tiles refuses exactly
 * what breaks it. Programs are those of tests/plan_builder.h: 3 stream, 4 over tiles, 5 split, 6 ranges. */
#include "plan_broken.h"

static ps_instr *product(broken *b, ps_role role, uint32_t nth) {
    for (uint32_t i = 0; i < b->program->n_instrs; i++)
        if (b->program->instrs[i].op == PS_OP_MATMUL && b->program->instrs[i].w[0] == role && nth-- == 0)
            return &b->program->instrs[i];
    cr_assert_fail("no such product");
    return NULL;
}

/* Of all layers' shards. */
static void place(broken *b, ps_placement p) {
    for (uint32_t i = 1; i + 1 < b->c.plan->n_shards; i++)
        b->level->placement[i] = p;
}

/* A copy of a weight to where `like` has its own. */
static ps_instr *insert_fetch(broken *b, ps_instr *at, ps_role role, uint16_t slot, ps_shard_kind shard) {
    ps_instr *in = insert(b, at);
    *in = (ps_instr){.op = PS_OP_COPY,
                     .queue = PS_QUEUE_H2D,
                     .shard = shard,
                     .w = {role, PS_ROLE_NONE, PS_ROLE_NONE},
                     .src = {PS_NO_BUFFER, PS_NO_BUFFER, PS_NO_BUFFER},
                     .dst = slot,
                     .n_waits = 1,
                     .wait = {1}};
    return in;
}

/* ---- slots ---- */

RULE_GPU(slot_is_empty, plan_case_wide, 3, "holds no weight", drop(&b, find_fetch(&b, PS_ROLE_ATTN_Q, 0));)
RULE_GPU(slot_of_another_layer, plan_case_wide, 3, "of ffn_gate.weight of layer 0, not this range",
         find_fetch(&b, PS_ROLE_FFN_GATE, 0)->ahead = false;)
RULE_GPU(slot_of_other_rows, plan_case_wide, 3, "holds rows 0 to 62 of attn_q.weight",
         find_fetch(&b, PS_ROLE_ATTN_Q, 0)->n_rows = 63;)
RULE_GPU(slot_read_before_the_copy_ended, plan_case_wide, 3,
         "may still be written by the instruction 2 before", {
             ps_instr *convert = product(&b, PS_ROLE_ATTN_Q, 0) - 1;
             convert->wait[0] = 2; /* not for the copy, which is between */
         })
RULE_GPU(copy_while_the_slot_is_read, plan_case_wide, 3, "may still be read by the instruction 1 before", {
    ps_instr *copy = find_fetch(&b, PS_ROLE_FFN_GATE, 0);
    copy->n_waits = copy->wait[0] = 0;
})
RULE_GPU(slot_too_small, plan_case_wide, 3, "has 256 bytes, the range has",
         b.program->buffers[find_fetch(&b, PS_ROLE_ATTN_Q, 0)->dst].cols = 256;)
RULE_GPU(slots_share_bytes, plan_case_wide, 3, "holds no weight", {
    uint16_t k = find_fetch(&b, PS_ROLE_ATTN_K, 0)->dst;
    ps_instr *copy = find_fetch(&b, PS_ROLE_ATTN_K, 0);
    /* k comes before q is used, to the same place */
    ps_instr *at = product(&b, PS_ROLE_ATTN_Q, 0);
    ps_instr kept = *copy;
    drop(&b, copy);
    *insert(&b, at) = kept;
    b.tier->buffer_offset[k] = b.tier->buffer_offset[find_fetch(&b, PS_ROLE_ATTN_Q, 0)->dst];
    b.level->tiers[0] = *b.tier;
    b.level->n_tiers = 1;
})
RULE_GPU(slot_and_destination_share_bytes, plan_case_wide, 3, "and the destination share bytes", {
    ps_instr *q = product(&b, PS_ROLE_ATTN_Q, 0);
    b.tier->buffer_offset[q->dst] = b.tier->buffer_offset[q->at[0] - PS_AT_SLOT];
})
RULE_GPU(copy_of_no_use, plan_case_wide, 3, "shard attn has no use for ffn_norm.weight", {
    ps_instr *copy = find_fetch(&b, PS_ROLE_ATTN_NORM, 0);
    copy->w[0] = PS_ROLE_FFN_NORM;
})
RULE_GPU(copy_outside, plan_case_wide, 3, "rows 60 to 64 are outside", {
    find_fetch(&b, PS_ROLE_ATTN_Q, 0)->row0 = 60;
    find_fetch(&b, PS_ROLE_ATTN_Q, 0)->n_rows = 5;
})
RULE_GPU(copy_on_queue_gpu, plan_case_wide, 3, "cannot run on queue gpu",
         find_fetch(&b, PS_ROLE_ATTN_Q, 0)->queue = PS_QUEUE_GPU;)
RULE_GPU(copy_for_another_placement, plan_case_wide, 3, "weights placed \"vram\" are not used from a slot",
         place(&b, PS_PLACE_VRAM);)
RULE_GPU(copy_of_columns_within_blocks, plan_case_wide, 5, "are not at blocks and 16 bytes", {
    ps_instr *copy = find_fetch(&b, PS_ROLE_FFN_DOWN, 0);
    copy->col0 += 32;
})

/* ---- entries ---- */

RULE_GPU(entry_missing, plan_case_wide, 3, "holds no weight", b.program->n_entries = 0;)
RULE_GPU(entry_of_another_layer, plan_case_wide, 3, "of layer 1, not this range",
         b.program->entries[0].range.layer = 1;)
RULE_GPU(entry_not_there_at_the_end, plan_case_wide, 3, "does not hold its entry again when the step may end",
         {
             uint16_t slot = find_fetch(&b, PS_ROLE_FFN_GATE, 0)->dst;
             insert_fetch(&b, find(&b, PS_OP_GATHER, 0), PS_ROLE_FFN_UP, slot, PS_SHARD_FFN);
         })
RULE_GPU(entry_copied_by_the_tail, plan_case_wide, 3, "is an entry: the tail may be left out or run again", {
    uint16_t slot = find_fetch(&b, PS_ROLE_FFN_GATE, 0)->dst;
    insert_fetch(&b, find(&b, PS_OP_GATHER, 0) + 1, PS_ROLE_FFN_GATE, slot, PS_SHARD_FFN);
})
RULE_GPU(entry_overwritten_by_the_tail, plan_case_wide, 3,
         "does not hold its entry again when the step may end", {
             uint16_t slot = find_fetch(&b, PS_ROLE_ATTN_Q, 0)->dst,
                      entry = find_fetch(&b, PS_ROLE_FFN_NORM, 0)->dst;
             insert_fetch(&b, find(&b, PS_OP_GATHER, 0) + 1, PS_ROLE_ATTN_NORM, slot, PS_SHARD_ATTN);
             b.level->tiers[0] = *b.tier;
             b.level->n_tiers = 1;
             b.level->tiers[0].buffer_offset[entry] = b.level->tiers[0].buffer_offset[slot];
             /* the entry comes back before the tail */
             insert_fetch(&b, find(&b, PS_OP_GATHER, 0), PS_ROLE_FFN_NORM, entry, PS_SHARD_FFN);
             for (uint32_t i = 0; i < b.program->n_instrs;
                  i++) /* and nothing else is in its place while it is wanted */
                 if (b.program->instrs[i].op == PS_OP_RMSNORM && b.program->instrs[i].shard == PS_SHARD_FFN) {
                     insert_fetch(&b, &b.program->instrs[i], PS_ROLE_FFN_NORM, entry, PS_SHARD_FFN);
                     break;
                 }
         })
RULE_GPU(entry_of_no_slot, plan_case_wide, 3, "entry 0: slot: buffer 0 is no slot",
         b.program->entries[0].slot = 0;)
RULE_GPU(entries_descend, plan_case_wide, 3, "entry 1: slot: slots must ascend",
         b.program->entries[1].slot = b.program->entries[0].slot;)
RULE_GPU(entry_larger_than_its_slot, plan_case_wide, 3, "is no range of a weight, or larger than the slot",
         b.program->entries[0].range.role = PS_ROLE_FFN_GATE;
         b.program->entries[0].range.n_rows = 1024;)
RULE_GPU(tail_overwrites_what_it_read, plan_case_wide, 3,
         "the tail reads what was there before it and overwrites it", {
             ps_instr *norm = find(&b, PS_OP_RMSNORM, 2);
             uint16_t slot = find_fetch(&b, PS_ROLE_ATTN_NORM, 0)->dst;
             cr_assert_eq(norm->w[0], PS_ROLE_OUTPUT_NORM);
             norm->queue = PS_QUEUE_GPU;
             norm->kernel = find(&b, PS_OP_RMSNORM, 0)->kernel;
             norm->at[0] = (uint16_t)(PS_AT_SLOT + slot);
             b.level->placement[b.c.plan->n_shards - 1] = PS_PLACE_SPLIT;
             insert_fetch(&b, norm + 1, PS_ROLE_ATTN_NORM, slot, PS_SHARD_ATTN);
             insert_fetch(&b, find(&b, PS_OP_GATHER, 0), PS_ROLE_OUTPUT_NORM, slot, PS_SHARD_HEAD);
         })

/* ---- KV ---- */

RULE_GPU(kv_not_fetched, plan_case_wide, 3, "does not hold KV of layer 0", drop(&b, find_kv(&b, 0));)
RULE_GPU(kv_not_brought_home, plan_case_wide, 3, "has KV of layer 0 that is not home yet",
         drop(&b, find_kv(&b, 1));)
RULE_GPU(kv_not_home_at_the_end, plan_case_wide, 3, "KV of layer 2 is not home", {
    /* the last layer in a block of its own, without the copy home */
    ps_program *p = b.program;
    ps_block *layers = &p->blocks[1];
    uint32_t n = layers->n_instrs;
    cr_assert_leq(p->n_instrs + n, PB_MAX_INSTRS);
    memmove(&p->instrs[layers->instr0 + 2 * n], &p->instrs[layers->instr0 + n],
            (p->n_instrs - layers->instr0 - n) * sizeof *p->instrs);
    memcpy(&p->instrs[layers->instr0 + n], &p->instrs[layers->instr0], n * sizeof *p->instrs);
    memmove(&p->blocks[2], &p->blocks[1], (p->n_blocks - 1) * sizeof *p->blocks);
    p->n_blocks++;
    p->n_instrs += n;
    p->blocks[1].n_layers = 2;
    p->blocks[2].layer0 = 2;
    p->blocks[2].n_layers = 1;
    for (uint32_t i = 2; i < p->n_blocks; i++)
        p->blocks[i].instr0 += n;
    drop(&b, find_kv(&b, 3));
})
RULE_GPU(kv_home_too_early, plan_case_wide, 3,
         "KV goes home once, when the rows of all tiles are in the slot",
         swap(find_kv(&b, 1), find(&b, PS_OP_KV_STORE, 0));)
RULE_GPU(kv_home_twice, plan_case_wide, 3, "KV goes home once", {
    ps_instr *out = find_kv(&b, 1);
    ps_instr kept = *out;
    *insert(&b, out) = kept;
})
RULE_GPU(kv_home_while_it_is_stored, plan_case_wide, 3, "may still be written by the instruction 2 before", {
    ps_instr *out = find_kv(&b, 1);
    out->n_waits = out->wait[0] = 0;
})
RULE_GPU(kv_slot_too_small, plan_case_wide, 3, "the layer's KV has",
         b.program->buffers[find_kv(&b, 0)->kv - PS_KV_SLOT].cols = 256;)
RULE_GPU(kv_stored_at_home, plan_case_wide, 3, "the tile's tokens were stored in another place",
         find(&b, PS_OP_KV_STORE, 0)->kv = PS_KV_HOME;)
RULE_GPU(kv_moved_by_the_tail, plan_case_wide, 3, "KV is moved before gather", {
    ps_instr kept = *find_kv(&b, 0);
    *insert(&b, find(&b, PS_OP_GATHER, 0) + 1) = kept;
})
RULE_GPU(kv_of_another_shard, plan_case_wide, 3, "KV is of shard attn", find_kv(&b, 0)->shard = PS_SHARD_FFN;)
RULE_GPU(kv_home_is_in_vram, plan_case_wide, 3, "the layer's KV cache is in vram", {
    b.level->kv[0].space = PS_SPACE_VRAM;
    b.level->kv[0].offset = b.level->vram_work_bytes;
    b.level->vram_work_bytes += PS_VRAM_ALIGN;
})
RULE_GPU(kv_on_queue_gpu, plan_case_wide, 3, "cannot run on queue gpu", find_kv(&b, 0)->queue = PS_QUEUE_GPU;)
RULE_GPU(kv_slot_overwritten, plan_case_wide, 3, "has KV of layer 0 that is not home yet", {
    uint16_t slot = (uint16_t)(find_kv(&b, 0)->kv - PS_KV_SLOT);
    insert_fetch(&b, find_kv(&b, 1), PS_ROLE_ATTN_NORM, slot, PS_SHARD_ATTN);
})

/* ---- tiles ---- */

RULE_GPU(slot_refilled_in_the_first_tile, plan_case_wide, 4, "of layer 1, not this range",
         find_fetch(&b, PS_ROLE_FFN_NORM, 0)->when = PS_WHEN_FIRST;)
RULE_GPU(kv_fetched_in_every_tile, plan_case_wide, 4, "KV is copied in before rows of the step are stored", {
    find_kv(&b, 0)->when = PS_WHEN_EVERY;
    b.level->tiers[0] = *b.tier;
    b.level->n_tiers = 1;
})
RULE_GPU(kv_home_in_the_first_tile, plan_case_wide, 4, "when the rows of all tiles are in the slot",
         find_kv(&b, 1)->when = PS_WHEN_FIRST;)
RULE_GPU(when_of_a_kernel, plan_case_wide, 4, "when: only copies of weights and KV leave out tiles",
         find(&b, PS_OP_GLU, 0)->when = PS_WHEN_FIRST;)
RULE_GPU(when_without_tiles, plan_case_wide, 3, "is in a block without tiles",
         find_fetch(&b, PS_ROLE_ATTN_Q, 0)->when = PS_WHEN_FIRST;)
/* The one before a copy that runs in the last tile only: in other tiles the copy is nothing and orders nothing. */
RULE_GPU(wait_for_what_does_not_run, plan_case_wide, 4, "may still be", {
    ps_instr *after = find_kv(&b, 1) + 1;
    cr_assert_eq(after->when, PS_WHEN_FIRST);
    after = after + 1; /* convert, behind the copies of KV and of the matrix */
    cr_assert_eq(after->op, PS_OP_CONVERT);
    cr_assert_eq(after->n_waits, 3);
    after->queue = PS_QUEUE_CPU; /* on a queue of its own, so that only waits count */
    after->kernel = 0;
    for (uint32_t i = 0; i < b.program->n_instrs; i++)
        if (b.program->instrs[i].op == PS_OP_CONVERT && b.program->instrs[i].queue == PS_QUEUE_CPU &&
            b.program->instrs[i].kernel != 0)
            after->kernel = b.program->instrs[i].kernel;
    for (uint32_t i = 0; i < b.program->n_buffers; i++) /* where it can read */
        if (i == after->src[0] || i == after->dst) {
            b.program->buffers[i].space = PS_SPACE_HOST;
            for (uint32_t t = 0; t < b.level->n_tiers; t++) {
                b.level->tiers[t].buffer_offset[i] = b.level->host_arena_bytes;
            }
            b.level->host_arena_bytes += 2 << 20;
        }
    after->n_waits = 1;
    after->wait[1] = after->wait[2] = 0;
})

/* ---- residents ---- */

RULE_GPU(not_resident, plan_case_wide, 6, "no resident piece holds this range of", b.level->n_resident--;)
RULE_GPU(resident_in_part, plan_case_wide, 6,
         "no resident piece holds this range of attn_q.weight of layer 0", {
             for (uint32_t i = 0; i < b.level->n_resident; i++)
                 if (b.level->resident[i].range.role == PS_ROLE_ATTN_Q)
                     b.level->resident[i].range.n_rows--;
         })
RULE_GPU(residents_share_bytes, plan_case_wide, 6, "resident piece 2: shares bytes with the one before",
         b.level->resident[2].offset -= 256;)
RULE_GPU(resident_outside, plan_case_wide, 6, "outside the VRAM weight arena",
         b.level->resident[b.level->n_resident - 1].offset = b.level->vram_weight_bytes;)
RULE_GPU(resident_of_no_weight, plan_case_wide, 6, "no range of a weight of the model",
         b.level->resident[0].range.role = PS_ROLE_FFN_UP_EXPS;)
RULE_GPU(resident_of_all_columns, plan_case_wide, 6, "all columns are written as none",
         b.level->resident[1].range.n_cols = 64;)
RULE_GPU(residents_descend, plan_case_wide, 6, "resident piece 1: offset: offsets must ascend",
         b.level->resident[1].offset = 0;)
RULE_GPU(resident_unaligned, plan_case_wide, 6, "resident piece 1: offset: no multiple of 256",
         b.level->resident[1].offset += 64;)
RULE_GPU(expert_not_resident, mb_qwen3moe_small, 2, "expert 7 of ffn_gate_exps.weight is not resident", {
    for (uint32_t i = 0; i < b.level->n_resident; i++)
        if (b.level->resident[i].range.role == PS_ROLE_FFN_GATE_EXPS)
            b.level->resident[i].range.n_rows = 7;
})
RULE_GPU(cpu_looks_into_vram, plan_case_wide, 5, "queue cpu finds weights in host memory only", {
    for (uint32_t i = 0; i < b.program->n_instrs; i++)
        if (b.program->instrs[i].queue == PS_QUEUE_CPU && b.program->instrs[i].w[0] == PS_ROLE_FFN_GATE)
            b.program->instrs[i].at[0] = PS_AT_VRAM;
})
RULE_GPU(resident_shard_read_direct, plan_case_wide, 6,
         "weights placed \"vram\" are not used from host memory",
         product(&b, PS_ROLE_ATTN_Q, 0)->at[0] = PS_AT_HOST;)
RULE_GPU(direct_shard_in_a_slot, plan_case_wide, 3, "weights placed \"direct\" are not used from a slot",
         place(&b, PS_PLACE_DIRECT);)
RULE_GPU(host_shard_on_the_gpu, plan_case_wide, 6, "weights placed \"host\" are not for queue gpu",
         place(&b, PS_PLACE_HOST);)

/* ---- partial sums ---- */

RULE_GPU(part_left_out, plan_case_wide, 5, "holds another sum of x of ffn 0 than is wanted", {
    ps_instr *down = product(&b, PS_ROLE_FFN_DOWN, 1);
    drop(&b, down);
})
RULE_GPU(part_twice, plan_case_wide, 5, "the partial sums are not apart", {
    ps_instr *down = product(&b, PS_ROLE_FFN_DOWN, 0), *chained = product(&b, PS_ROLE_FFN_DOWN, 1);
    chained->src[0] = down->src[0];
    chained->col0 = 0;
    chained->at[0] = PS_AT_VRAM;
})
RULE_GPU(residual_twice, plan_case_wide, 5, "the residual is in both partial sums", {
    for (uint32_t i = 0; i < b.program->n_instrs; i++)
        if (b.program->instrs[i].queue == PS_QUEUE_CPU && b.program->instrs[i].w[0] == PS_ROLE_FFN_DOWN) {
            /* attention's result, brought to the host before */
            ps_instr *add = &b.program->instrs[i];
            add->src[1] = add->dst;
            ps_instr *copy = insert(&b, find(&b, PS_OP_RMSNORM, 1));
            *copy = (ps_instr){.op = PS_OP_COPY,
                               .queue = PS_QUEUE_GPU,
                               .shard = PS_SHARD_FFN,
                               .w = {PS_ROLE_NONE, PS_ROLE_NONE, PS_ROLE_NONE},
                               .src = {product(&b, PS_ROLE_FFN_DOWN, 0)->dst, PS_NO_BUFFER, PS_NO_BUFFER},
                               .dst = b.program->instrs[i + 1].dst,
                               .n_waits = 1,
                               .wait = {1}};
            break;
        }
})
RULE_GPU(residual_missing, plan_case_wide, 5, "the residual is in no part of the sum",
         product(&b, PS_ROLE_FFN_DOWN, 0)->src[1] = PS_NO_BUFFER;)
RULE_GPU(residual_missing_in_the_whole, plan_case_wide, 3, "the residual is in no part of the sum",
         product(&b, PS_ROLE_FFN_DOWN, 0)->src[1] = PS_NO_BUFFER;)
RULE_GPU(sum_not_joined, plan_case_wide, 5, "holds another sum of x of ffn 0 than is wanted",
         drop(&b, find(&b, PS_OP_ADD, 0));)
RULE_GPU(add_of_no_sums, plan_case_wide, 5, "source 1 is no partial sum", {
    ps_instr *add = find(&b, PS_OP_ADD, 0);
    for (uint32_t i = 0; i < b.program->n_buffers; i++)
        if (b.program->buffers[i].value == PS_VALUE_NORM && b.program->buffers[i].fmt == PS_FMT_F32 &&
            b.program->buffers[i].space == PS_SPACE_HOST)
            add->src[1] = (uint16_t)i;
})
RULE_GPU(add_of_rows, plan_case_wide, 5, "the operation takes no range", find(&b, PS_OP_ADD, 0)->n_rows = 3;)
RULE_GPU(add_of_another_shard, plan_case_wide, 5, "are no partial sums of one operation of shard attn",
         find(&b, PS_OP_ADD, 0)->shard = PS_SHARD_ATTN;)
RULE_GPU(source_is_no_slice, plan_case_wide, 5, "source 0 must have columns 256 to 511, it has 0 to 255",
         { product(&b, PS_ROLE_FFN_DOWN, 1)->src[0] = product(&b, PS_ROLE_FFN_DOWN, 0)->src[0]; })
RULE_GPU(slices_of_different_columns, plan_case_wide, 5,
         "source 1 and the destination must have the same columns",
         find(&b, PS_OP_GLU, 1)->src[1] = find(&b, PS_OP_GLU, 0)->src[1];)
RULE_GPU(slice_of_the_wrong_rows, plan_case_wide, 5,
         "the destination has columns 0 to 255, 0 to 511 are written",
         product(&b, PS_ROLE_FFN_GATE, 0)->n_rows = 512;
         product(&b, PS_ROLE_FFN_GATE, 0)->at[0] = PS_AT_HOST;)
RULE_GPU(columns_of_the_host_within_a_step, plan_case_wide, 5, "are not at multiples of 256", {
    ps_instr *down = product(&b, PS_ROLE_FFN_DOWN, 1);
    const ps_plan_buffer *slice = &b.program->buffers[down->src[0]];
    for (uint32_t i = 0; i < b.program->n_buffers; i++) /* gate, up and act, too */
        if (b.program->buffers[i].col0 == 256 && &b.program->buffers[i] != slice)
            b.program->buffers[i].col0 = 288;
    b.program->buffers[down->src[0]].col0 = 288;
    product(&b, PS_ROLE_FFN_GATE, 1)->row0 = product(&b, PS_ROLE_FFN_UP, 1)->row0 = 288;
    down->col0 = 288;
})
RULE_GPU(columns_outside, plan_case_wide, 5, "columns 256 to 1279 are outside",
         { product(&b, PS_ROLE_FFN_DOWN, 1)->n_cols = 1024; })
RULE_GPU(rows_of_a_part_twice, plan_case_wide, 5, "rows 0 to 255 are executed twice", {
    /* the direct part takes the resident one's rows again, in slices of its own */
    for (uint32_t i = 0; i < b.program->n_buffers; i++)
        if (b.program->buffers[i].col0 == 256)
            b.program->buffers[i].col0 = 0;
    product(&b, PS_ROLE_FFN_GATE, 1)->row0 = product(&b, PS_ROLE_FFN_UP, 1)->row0 = 0;
})
RULE_GPU(written_by_both, plan_case_wide, 6, "(gate) are written twice", {
    ps_instr *gate = product(&b, PS_ROLE_FFN_GATE, 1);
    gate->row0--;
    find_fetch(&b, PS_ROLE_FFN_GATE, 1)->row0--;
})

/* The bias is in the part whose columns begin at 0 and in no other. */
RULE_GPU(bias_in_another_part, plan_case_biased, 5, "has no such operation with these weights and values",
         product(&b, PS_ROLE_FFN_DOWN, 1)->w[1] = PS_ROLE_FFN_DOWN_BIAS;)
RULE_GPU(bias_left_out, plan_case_biased, 5, "has no such operation with these weights and values",
         product(&b, PS_ROLE_FFN_DOWN, 0)->w[1] = PS_ROLE_NONE;
         product(&b, PS_ROLE_FFN_DOWN, 0)->at[1] = 0;)

/* ---- experts ---- */

RULE_GPU(near_on_the_cpu, mb_qwen3moe_small, 5, "near runs on queue gpu, far on queue cpu",
         find(&b, PS_OP_MOE_DISPATCH, 1)->part = PS_MOE_PART_NEAR;)
RULE_GPU(near_and_all, mb_qwen3moe_small, 5, "rows 0 to 63 are executed twice",
         find(&b, PS_OP_MOE_DISPATCH, 1)->part = PS_MOE_PART_ALL;
         find(&b, PS_OP_MOE_DISPATCH, 1)->n_rows = 7;)
RULE_GPU(near_of_some, mb_qwen3moe_small, 5, "parts near and far are of all experts",
         find(&b, PS_OP_MOE_DISPATCH, 0)->n_rows = 4;)
RULE_GPU(far_left_out, mb_qwen3moe_small, 5, "source 1 is no partial sum",
         drop(&b, find(&b, PS_OP_MOE_DISPATCH, 1));)
RULE_GPU(expert_of_a_range_not_resident, mb_qwen3moe_small, 6,
         "expert 2 of ffn_gate_exps.weight is not resident", find(&b, PS_OP_MOE_DISPATCH, 0)->n_rows = 3;)
RULE_GPU(experts_twice, mb_qwen3moe_small, 6, "the partial sums are not apart", place(&b, PS_PLACE_SPLIT);
         find(&b, PS_OP_MOE_DISPATCH, 0)->n_rows = 3;)
RULE_GPU(experts_left_out, mb_qwen3moe_small, 6, "holds another sum of x of moe 0 than is wanted",
         find(&b, PS_OP_MOE_DISPATCH, 0)->n_rows = 1;)
RULE_GPU(experts_outside, mb_qwen3moe_small, 6, "rows 0 to 8 are outside",
         find(&b, PS_OP_MOE_DISPATCH, 0)->n_rows = 9;)
RULE_GPU(experts_in_different_places, mb_qwen3moe_small, 6, "all experts' matrices are in places of one kind",
         place(&b, PS_PLACE_SPLIT);
         find(&b, PS_OP_MOE_DISPATCH, 1)->at[2] = PS_AT_VRAM;)
RULE_GPU(selection_of_the_wrong_kind, mb_qwen3moe_small, 5, "the second source must be sel",
         find(&b, PS_OP_MOE_DISPATCH, 1)->src[1] = find(&b, PS_OP_MOE_DISPATCH, 1)->src[0];)

/* ---- memory ---- */

RULE_GPU(vram_scratch_too_small, plan_case_wide, 6, "bytes of VRAM scratch, the tier has 64",
         b.tier->vram_scratch_bytes = 64;)
RULE_GPU(vram_scratch_outside, plan_case_wide, 6, "VRAM scratch: outside the vram arena",
         b.tier->vram_scratch_offset = b.level->vram_work_bytes;)
RULE_GPU(vram_scratch_in_kv, plan_case_wide, 6, "VRAM scratch: shares bytes with the KV cache of layer 1",
         b.tier->vram_scratch_offset = b.level->kv[1].offset;)
RULE_GPU(vram_scratch_in_a_buffer, plan_case_wide, 6, "shares bytes with the VRAM scratch",
         b.tier->vram_scratch_offset = b.tier->buffer_offset[find(&b, PS_OP_GLU, 0)->dst] / 256 * 256;)
RULE_GPU(slot_in_kv, plan_case_wide, 6, "(slot): shares bytes with the KV cache of layer 1",
         b.tier->buffer_offset[find_fetch(&b, PS_ROLE_FFN_GATE, 0)->dst] = b.level->kv[1].offset / 256 * 256;)
RULE_GPU(over_budget, plan_case_wide, 6, "budget: base 0, work arena",
         b.level->budget_bytes = b.level->vram_work_bytes + b.level->vram_weight_bytes - 1;)
RULE_GPU(over_budget_with_its_base, plan_case_wide, 6, "budget: base", b.level->vram_base_bytes = UINT64_MAX;)
RULE_GPU(arena_in_parts_of_a_handle, plan_case_wide, 6, "vram: both arenas are multiples of 16777216 bytes",
         b.level->vram_work_bytes -= 4096;)
RULE_GPU(slot_offset_unaligned, plan_case_wide, 6, "is no multiple of 256",
         b.tier->buffer_offset[find_fetch(&b, PS_ROLE_FFN_GATE, 0)->dst] += 64;)

/* ---- one form ---- */

RULE_GPU(slot_in_the_host, plan_case_wide, 3, "a slot is in vram, without value, format and first column",
         b.program->buffers[find_fetch(&b, PS_ROLE_ATTN_Q, 0)->dst].space = PS_SPACE_HOST;)
RULE_GPU(slot_size_unaligned, plan_case_wide, 3, "bytes of a slot are a multiple of 256",
         b.program->buffers[find_fetch(&b, PS_ROLE_ATTN_Q, 0)->dst].cols += 64;)
RULE_GPU(slot_as_a_source, plan_case_wide, 3, "is a slot",
         find(&b, PS_OP_GLU, 0)->src[1] = find_fetch(&b, PS_ROLE_ATTN_Q, 0)->dst;)
RULE_GPU(weight_into_a_value, plan_case_wide, 3, "is no slot",
         find_fetch(&b, PS_ROLE_ATTN_Q, 0)->dst = find(&b, PS_OP_GLU, 0)->dst;)
RULE_GPU(at_of_nothing, plan_case_wide, 3, "at: only for weights that a kernel uses",
         find(&b, PS_OP_GLU, 0)->at[0] = PS_AT_VRAM;)
RULE_GPU(at_of_a_copy, plan_case_wide, 3, "at: only for weights that a kernel uses",
         find_fetch(&b, PS_ROLE_ATTN_Q, 0)->at[0] = PS_AT_VRAM;)
RULE_GPU(at_outside, plan_case_wide, 3, "at: buffer 65533 of",
         product(&b, PS_ROLE_ATTN_Q, 0)->at[0] = 0xffff;)
RULE_GPU(kv_of_a_product, plan_case_wide, 3, "kv: only kv_store, attention and copies of KV have one",
         product(&b, PS_ROLE_ATTN_Q, 0)->kv = find_kv(&b, 0)->kv;)
RULE_GPU(columns_of_a_norm, plan_case_wide, 3, "cols: only matmul and copies of weights have columns",
         find(&b, PS_OP_RMSNORM, 0)->n_cols = 64;)
RULE_GPU(column_without_columns, plan_case_wide, 3, "cols: not a range",
         product(&b, PS_ROLE_ATTN_Q, 0)->col0 = 256;)
RULE_GPU(part_of_a_product, plan_case_wide, 3, "part: only moe_dispatch has parts",
         product(&b, PS_ROLE_ATTN_Q, 0)->part = PS_MOE_PART_NEAR;)
RULE_GPU(product_ahead, plan_case_wide, 3, "ahead: only copies of a layer's weights go ahead",
         product(&b, PS_ROLE_ATTN_Q, 0)->ahead = true;)
RULE_GPU(ahead_of_no_layer, plan_case_wide, 3, "ahead: only copies of a layer's weights go ahead",
         find_fetch(&b, PS_ROLE_ROPE_FREQS, 0)->ahead = true;)
RULE_GPU(copy_of_nothing, plan_case_wide, 3, "src: copy needs a source, a weight or a slot of KV",
         find_kv(&b, 0)->kv = PS_KV_HOME;
         find_kv(&b, 0)->dst = find(&b, PS_OP_GLU, 0)->dst;)
RULE_GPU(columns_of_a_value_overflow, plan_case_wide, 3, "col0: columns end behind 2^32",
         b.program->buffers[0].col0 = UINT32_MAX;)
RULE_GPU(too_many_direct, mb_qwen3moe_small, 5, "max_direct: 1025, at most 1024", b.tier->max_direct = 1025;)

/* ---- between levels ---- */

static void change_refused(plan_case *c, const ps_level *from, const ps_level *to, const char *message) {
    ps_error err = {0};
    cr_assert_eq(ps_plan_check_change(c->plan, from, to, c->model, &err), PS_E_DATA, "accepted; wanted: %s",
                 message);
    cr_assert(strstr(err.message, message) != NULL, "wanted \"%s\", got \"%s\"", message, err.message);
}

Test(plan_check_gpu, changes_of_level) {
    plan_case c;
    ps_error err = {0};
    pb_config levels[] = {plan_case_level(2), plan_case_level(2), plan_case_level(0)};
    plan_case_open_with(&c, &plan_case_wide, levels, 3);
    ps_level *less = &c.plan->levels[0], *more = &c.plan->levels[1], *host = &c.plan->levels[2];
    less->n_resident -= 3;
    must(ps_plan_check_change(c.plan, less, more, c.model, &err), &err);
    must(ps_plan_check_change(c.plan, more, less, c.model, &err), &err);
    must(ps_plan_check_change(c.plan, more, host, c.model, &err), &err);
    must(ps_plan_check_change(c.plan, host, less, c.model, &err), &err);
    more->vram_weight_bytes += PS_VRAM_ALIGN;
    must(ps_plan_check_change(c.plan, less, more, c.model, &err), &err);

    less->resident[2].offset += 256;
    change_refused(&c, less, more, "resident piece 2 is not the same in both");
    change_refused(&c, more, less, "resident piece 2 is not the same in both");
    less->resident[2].offset -= 256;
    less->resident[0].range.layer = 1;
    change_refused(&c, less, more, "resident piece 0 is not the same in both");
    less->resident[0].range.layer = 0;
    less->vram_weight_bytes += 2 * PS_VRAM_ALIGN;
    change_refused(&c, less, more, "the smaller weight arena has more resident pieces");
    less->vram_weight_bytes -= 2 * PS_VRAM_ALIGN;
    more->n_seqs = 1;
    change_refused(&c, less, more, "KV of 2 sequences has no home, there is room for 1");
    must(ps_plan_check_change(c.plan, more, less, c.model, &err), &err);
    ps_level other = *more;
    change_refused(&c, less, &other, "levels of another plan or model");
    plan_case_close(&c);
}
