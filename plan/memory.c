/* Simulated allocation: see memory.h. */
#include "plan/memory.h"

#include <stdlib.h>

#include "core/checked.h"

/* Of offsets in each arena: what buffers of host memory need, and slots. */
static const uint64_t aligns[PS_SPACE_COUNT] = {
    [PS_SPACE_HOST] = PS_ARENA_ALIGN, [PS_SPACE_VRAM] = PS_RESIDENT_ALIGN};

uint64_t ps_memory_buffer_bytes(const ps_plan_buffer *buffer, const ps_tier *tier) {
    if (buffer->rows == PS_ROWS_SLOT)
        return buffer->cols;
    uint64_t rows = buffer->rows == PS_ROWS_OUTPUTS ? tier->max_outputs : tier->max_tokens, bytes;
    if (buffer->rows == PS_ROWS_TILE && rows > PS_TILE_TOKENS)
        rows = PS_TILE_TOKENS;
    return ps_mul_u64(rows, ps_fmt_row_bytes(buffer->fmt, buffer->cols), &bytes) ? bytes : UINT64_MAX;
}

typedef struct placed {
    uint32_t buffer;
    uint64_t offset, bytes;
} placed;

static int largest_first(const void *pa, const void *pb) {
    const placed *a = pa, *b = pb;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

static int lowest_first(const void *pa, const void *pb) {
    const placed *a = pa, *b = pb;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

ps_status ps_memory_place(const ps_program *p, const bool *conflict, ps_tier *tier, ps_space space,
                          uint64_t base, uint64_t *out_end, ps_error *err) {
    uint32_t all = p->n_buffers, n = 0;
    uint64_t end = base;
    placed *sorted = calloc(all ? all : 1, sizeof *sorted), *in_way = calloc(all ? all : 1, sizeof *in_way);
    ps_status status = PS_OK;
    if (!sorted || !in_way) {
        status = ps_error_set(err, PS_E_NOMEM, "memory map", "no memory for %u buffers", all);
        goto done;
    }
    for (uint32_t i = 0; i < all; i++)
        if (p->buffers[i].space == space)
            sorted[n++] = (placed){.buffer = i, .bytes = ps_memory_buffer_bytes(&p->buffers[i], tier)};
    qsort(sorted, n, sizeof *sorted, largest_first);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_in_way = 0;
        for (uint32_t k = 0; k < i; k++)
            if (conflict[(uint64_t)sorted[i].buffer * all + sorted[k].buffer])
                in_way[n_in_way++] = sorted[k];
        qsort(in_way, n_in_way, sizeof *in_way, lowest_first);
        uint64_t best = UINT64_MAX, best_gap = UINT64_MAX, at = base, top;
        for (uint32_t k = 0; k < n_in_way; k++) {
            uint64_t gap = in_way[k].offset > at ? in_way[k].offset - at : 0;
            if (gap >= sorted[i].bytes && gap < best_gap) {
                best = at;
                best_gap = gap;
            }
            if (in_way[k].offset + in_way[k].bytes > at)
                at = in_way[k].offset + in_way[k].bytes;
        }
        if (best == UINT64_MAX)
            best = at;
        if (!ps_add_u64(best, sorted[i].bytes, &top) || !ps_align_u64(top, aligns[space], &top)) {
            status = ps_error_set(err, PS_E_INFEASIBLE, "memory map",
                                  "buffers of %u tokens exceed 2^64 bytes", tier->max_tokens);
            goto done;
        }
        sorted[i].offset = tier->buffer_offset[sorted[i].buffer] = best;
        sorted[i].bytes = top - best;
        end = top > end ? top : end;
    }
    *out_end = end;
done:
    free(sorted);
    free(in_way);
    return status;
}

uint64_t ps_memory_scratch(const ps_lower_request *r, const ps_program *p, ps_queue queue) {
    uint64_t most = 0;
    for (uint32_t b = 0; b < p->n_blocks; b++)
        for (uint32_t i = p->blocks[b].instr0; i < p->blocks[b].instr0 + p->blocks[b].n_instrs; i++) {
            const ps_instr *in = &p->instrs[i];
            const ps_kernel_spec *k =
                in->queue == queue && in->kernel ? ps_cost_kernel(r->cost, in->kernel) : NULL;
            if (!k)
                continue;
            uint16_t buf = in->dst != PS_NO_BUFFER ? in->dst : in->src[0];
            uint64_t tokens = ps_lower_tokens(r, buf != PS_NO_BUFFER ? p->buffers[buf].rows : PS_ROWS_TILE);
            uint64_t bytes =
                ps_scratch_bytes(&k->scratch, tokens, ps_instr_cols(r->model, p->blocks[b].layer0, in, p),
                                 r->n_threads, r->bucket_tokens);
            most = bytes > most ? bytes : most;
        }
    return most;
}

void ps_memory_kv(const ps_model *m, uint64_t bucket_tokens, uint64_t tile_tokens, uint32_t n_seqs,
                  uint32_t n_vram, ps_kv_home *kv, uint64_t out_end[PS_SPACE_COUNT]) {
    out_end[PS_SPACE_HOST] = out_end[PS_SPACE_VRAM] = 0;
    for (uint32_t l = 0; l < m->n_layers; l++) {
        ps_space space = l < n_vram ? PS_SPACE_VRAM : PS_SPACE_HOST;
        uint64_t all, *at = &out_end[space];
        kv[l] = (ps_kv_home){.space = space, .offset = *at};
        kv[l].rows = ps_model_kv_rows(m, l, bucket_tokens, tile_tokens);
        kv[l].bytes = ps_model_kv_bytes(m, l, kv[l].rows);
        if (!ps_mul_u64(kv[l].bytes, n_seqs, &all) || !ps_add_u64(*at, all, at) ||
            !ps_align_u64(*at, aligns[space], at)) {
            out_end[PS_SPACE_HOST] = UINT64_MAX;
            return;
        }
    }
}

uint64_t ps_memory_program_bytes(const ps_model *m, uint32_t n_threads, uint32_t n_seqs) {
    uint64_t header = 0;
    for (uint32_t i = 0; i < m->gguf->n_files; i++)
        header += m->gguf->files[i].size;
    header = header > m->gguf->data_bytes ? header - m->gguf->data_bytes : 0;
    return PS_HOST_BASE_BYTES + header +
           (uint64_t)m->n_vocab * (PS_HOST_BYTES_PER_VOCAB + (uint64_t)n_seqs * PS_HOST_BYTES_PER_VOCAB_SEQ) +
           (uint64_t)n_threads * PS_HOST_BYTES_PER_THREAD;
}
