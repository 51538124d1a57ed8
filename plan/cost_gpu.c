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

/* Rates of both sides at one number of threads. */
typedef struct both {
    uint32_t n_threads;
    double bus, dram;
} both;

/* Of the rows seen so far the nearest at or below, and above, a number of threads; n_threads 0: none. */
static void see(both *below, both *above, uint32_t n_threads, uint32_t row_threads, const ps_stat *bus,
                const ps_stat *dram) {
    if (!(bus->median > 0) || !(dram->median > 0))
        return;
    both now = {row_threads, bus->median, dram->median};
    if (row_threads <= n_threads && row_threads > below->n_threads)
        *below = now;
    if (row_threads > n_threads && (above->n_threads == 0 || row_threads < above->n_threads))
        *above = now;
}

/* At n_threads between two rows; beyond them the nearest. */
static both between(const ps_cost_model *model, both below, both above, uint32_t n_threads) {
    both a = below.n_threads ? below : above, b = below.n_threads && above.n_threads ? above : a, r = a;
    if (a.n_threads != b.n_threads) {
        double f = log((double)n_threads / a.n_threads) / log((double)b.n_threads / a.n_threads);
        r.bus = exp(log(a.bus) * (1 - f) + log(b.bus) * f);
        r.dram = exp(log(a.dram) * (1 - f) + log(b.dram) * f);
    }
    double alone = ps_cost_dram_alone(model, n_threads);
    if (alone > 0 && r.dram > alone)
        r.dram = alone;
    return r;
}

void ps_cost_together(const ps_cost_model *model, ps_bus bus, uint32_t n_threads, double *out_bus,
                      double *out_dram) {
    const ps_profile_gpu *g = &ps_cost_profile(model)->gpu;
    both below = {0}, above = {0};
    for (uint32_t i = 0; i < g->n_together; i++)
        if (g->together[i].bus == bus)
            see(&below, &above, n_threads, g->together[i].n_threads, &g->together[i].bus_bytes_per_s,
                &g->together[i].dram_bytes_per_s);
    if (!below.n_threads && !above.n_threads) {
        *out_bus = ps_cost_bus_bytes_per_s(model, bus, 16 << 20);
        *out_dram = ps_cost_dram_alone(model, n_threads);
        return;
    }
    both r = between(model, below, above, n_threads);
    *out_bus = r.bus;
    *out_dram = r.dram;
}

bool ps_cost_paced(const ps_cost_model *model, ps_bus bus, double share_frac, uint32_t n_threads,
                   double *out_bus, double *out_dram) {
    const ps_profile_gpu *g = &ps_cost_profile(model)->gpu;
    both below = {0}, above = {0};
    for (uint32_t i = 0; i < g->n_paced; i++)
        if (g->paced[i].bus == bus && g->paced[i].share_frac == share_frac)
            see(&below, &above, n_threads, g->paced[i].n_threads, &g->paced[i].bus_bytes_per_s,
                &g->paced[i].dram_bytes_per_s);
    if (!below.n_threads && !above.n_threads)
        return false;
    both r = between(model, below, above, n_threads);
    *out_bus = r.bus;
    *out_dram = r.dram;
    return true;
}

uint32_t ps_cost_shares(const ps_cost_model *model, ps_bus bus, double *out, uint32_t room) {
    const ps_profile_gpu *g = &ps_cost_profile(model)->gpu;
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_paced; i++) {
        double share = g->paced[i].share_frac;
        uint32_t at = 0;
        while (at < n && out[at] < share)
            at++;
        if (g->paced[i].bus != bus || (at < n && out[at] == share) || n == room)
            continue;
        for (uint32_t k = n++; k > at; k--)
            out[k] = out[k - 1];
        out[at] = share;
    }
    return n;
}
