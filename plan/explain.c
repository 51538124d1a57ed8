/* Time of a tier taken apart: see explain.h. */
#include "plan/explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int most_time_first(const void *pa, const void *pb) {
    const ps_explain_kernel *a = pa, *b = pb;
    if (a->time_s != b->time_s)
        return a->time_s < b->time_s ? 1 : -1;
    return a->kernel < b->kernel ? -1 : a->kernel > b->kernel;
}

/* Fastest kernel for the same operation and weights from another input format. */
static uint32_t rival_of(const ps_lower_request *r, const ps_program *p, uint32_t instr, uint32_t layer,
                         double *out_s) {
    const ps_kernel_spec *mine = ps_catalogue_find(r->profile, p->instrs[instr].kernel);
    ps_instr in = p->instrs[instr];
    if (!mine)
        return 0;
    uint16_t b = in.dst != PS_NO_BUFFER ? in.dst : in.src[0];
    uint64_t tokens = ps_lower_tokens(r, b != PS_NO_BUFFER ? p->buffers[b].rows : PS_ROWS_TILE);
    uint32_t best = 0;
    for (uint32_t i = 0; i < r->profile->n_kernels; i++) {
        const ps_kernel_spec *k = &r->profile->kernels[i];
        if (k->op != mine->op || k->wtype != mine->wtype || k->device != mine->device ||
            k->in_fmt == mine->in_fmt || tokens < k->min_tokens || tokens > k->max_tokens)
            continue;
        ps_cost_query q = ps_lower_query(r->model, layer, &in, p);
        ps_cost c;
        q.kernel = k->id;
        q.n_tokens = tokens;
        q.n_threads = in.queue == PS_QUEUE_CPU ? r->n_threads : 0;
        if (ps_cost_lookup(r->cost, &q, &c) && (best == 0 || c.time_s < *out_s)) {
            best = k->id;
            *out_s = c.time_s;
        }
    }
    return best;
}

void ps_explain_tier(const ps_lower_request *r, const ps_program *p, uint64_t kv_len, ps_explain *out) {
    *out = (ps_explain){.start_s = r->profile->pool_start_s.median};
    double n_tiles = r->max_tokens > PS_TILE_TOKENS ? ceil((double)r->max_tokens / PS_TILE_TOKENS) : 1;
    out->step_s = out->start_s;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const ps_block *block = &p->blocks[b];
        double times = block->n_layers * (block->over_tiles ? n_tiles : 1);
        for (uint32_t i = block->instr0; i < block->instr0 + block->n_instrs; i++) {
            const ps_instr *in = &p->instrs[i];
            ps_cost c = ps_instr_cost(r, p, i, block->layer0, kv_len);
            double t = c.time_s * times;
            out->step_s += t;
            if (in->when != PS_WHEN_EVERY && n_tiles > 1 && block->over_tiles) {
                out->step_s -= t; /* in one tile of them all */
                t /= n_tiles;
                out->step_s += t;
            }
            out->queue_s[in->queue] += t;
            out->op_s[in->op] += t;
            out->shard_s[in->shard] += t;
            out->quality_s[c.quality] += t;
            uint32_t k = 0;
            if (!in->kernel)
                continue;
            while (k < out->n_kernels && out->kernels[k].kernel != in->kernel)
                k++;
            if (k == out->n_kernels) {
                if (k == PS_EXPLAIN_MAX_KERNELS)
                    continue;
                out->kernels[out->n_kernels++] = (ps_explain_kernel){.kernel = in->kernel, .op = in->op};
            }
            ps_explain_kernel *e = &out->kernels[k];
            double rival_s = 0;
            uint32_t rival = rival_of(r, p, i, block->layer0, &rival_s);
            e->n_calls += (uint64_t)times;
            e->time_s += t;
            e->quality = c.quality > e->quality ? c.quality : e->quality;
            if (rival) {
                e->rival = rival;
                e->rival_s += rival_s * times;
            }
        }
    }
    qsort(out->kernels, out->n_kernels, sizeof out->kernels[0], most_time_first);
}
