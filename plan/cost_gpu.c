/* Rates of the bus, alone and beside the CPU, from a profile's tables. See cost.h. */
#include <math.h>

#include "plan/cost.h"

double ps_cost_bus_bytes_per_s(const ps_cost_model *model, ps_bus bus, double bytes) {
    const ps_profile_gpu *g = &ps_cost_profile(model)->gpu;
    const ps_profile_copy *below = NULL, *above = NULL;
    for (uint32_t i = 0; i < g->n_copies; i++) {
        const ps_profile_copy *c = &g->copies[i];
        if (c->bus != bus || c->kind != PS_HOST_KIND_PINNED || !(c->bw_bytes_per_s.median > 0))
            continue;
        if ((double)c->bytes <= bytes && (!below || c->bytes > below->bytes))
            below = c;
        if ((double)c->bytes > bytes && (!above || c->bytes < above->bytes))
            above = c;
    }
    if (!below && !above) { /* a kernel's own reads may be known from what ran beside the CPU only */
        double best = 0;
        for (uint32_t i = 0; i < g->n_together; i++)
            if (g->together[i].bus == bus)
                best = fmax(best, g->together[i].bus_bytes_per_s.median);
        return best > 0 || bus != PS_BUS_DIRECT ? best : ps_cost_bus_bytes_per_s(model, PS_BUS_H2D, bytes);
    }
    if (!above)
        return below->bw_bytes_per_s.median;
    double t1 = (double)above->bytes / above->bw_bytes_per_s.median;
    if (!below) /* smaller than any measured: mostly start-up */
        return bytes / t1;
    double t0 = (double)below->bytes / below->bw_bytes_per_s.median;
    double f = (bytes - (double)below->bytes) / (double)(above->bytes - below->bytes);
    return bytes / (t0 + f * (t1 - t0));
}

void ps_cost_together(const ps_cost_model *model, ps_bus bus, uint32_t n_threads, double *out_bus,
                      double *out_dram) {
    const ps_profile_gpu *g = &ps_cost_profile(model)->gpu;
    const ps_profile_together *below = NULL, *above = NULL;
    for (uint32_t i = 0; i < g->n_together; i++) {
        const ps_profile_together *t = &g->together[i];
        if (t->bus != bus || !(t->bus_bytes_per_s.median > 0) || !(t->dram_bytes_per_s.median > 0))
            continue;
        if (t->n_threads <= n_threads && (!below || t->n_threads > below->n_threads))
            below = t;
        if (t->n_threads > n_threads && (!above || t->n_threads < above->n_threads))
            above = t;
    }
    if (!below && !above) {
        *out_bus = ps_cost_bus_bytes_per_s(model, bus, 16 << 20);
        *out_dram = ps_cost_dram_alone(model, n_threads);
        return;
    }
    const ps_profile_together *a = below ? below : above, *b = below && above ? above : a;
    double f = a == b ? 0 : log((double)n_threads / a->n_threads) / log((double)b->n_threads / a->n_threads);
    *out_bus = exp(log(a->bus_bytes_per_s.median) * (1 - f) + log(b->bus_bytes_per_s.median) * f);
    *out_dram = exp(log(a->dram_bytes_per_s.median) * (1 - f) + log(b->dram_bytes_per_s.median) * f);
    double alone = ps_cost_dram_alone(model, n_threads);
    if (alone > 0 && *out_dram > alone)
        *out_dram = alone;
}
