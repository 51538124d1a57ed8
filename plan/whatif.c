/* Scales a machine profile: see whatif.h. Every quantity is multiplied by a factor that falls, or rises, with the rates asked
 * for, and is 1 where nothing is. */
#include "plan/whatif.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/cost.h"
#include "plan/lower.h"

/* New rate over old. */
typedef struct ratios {
    double bus, dram, hbm, gpu, cpu;
} ratios;

typedef struct scaling {
    const ps_profile *from;
    const ps_cost_model *cost; /* of `from` */
    ratios by;
    uint32_t n_threads; /* allowed after */
    uint32_t largest;   /* team that was measured */
    double
        memory_total; /* bytes a second that host memory was seen to give these threads and the bus together */
} scaling;

/* ---- copies ---- */

static void *copy_of(const void *data, size_t n, size_t size) {
    void *to = malloc(n * size > 0 ? n * size : 1);
    if (to && n)
        memcpy(to, data, n * size);
    return to;
}

/* All of `p`, with room for n_more points. */
static ps_profile *copy_profile(const ps_profile *p, uint32_t n_more) {
    ps_profile *c = copy_of(p, 1, sizeof *p);
    if (!c)
        return NULL;
    c->note = p->note ? strdup(p->note) : NULL;
    c->dram = copy_of(p->dram, p->n_dram, sizeof *p->dram);
    c->kernels = copy_of(p->kernels, p->n_kernels, sizeof *p->kernels);
    c->points = malloc(((size_t)p->n_points + n_more + 1) * sizeof *p->points);
    c->gpu.copies = copy_of(p->gpu.copies, p->gpu.n_copies, sizeof *p->gpu.copies);
    c->gpu.together = copy_of(p->gpu.together, p->gpu.n_together, sizeof *p->gpu.together);
    c->gpu.paced = copy_of(p->gpu.paced, p->gpu.n_paced, sizeof *p->gpu.paced);
    c->gpu.checks = copy_of(p->gpu.checks, p->gpu.n_checks, sizeof *p->gpu.checks);
    if ((p->note && !c->note) || !c->dram || !c->kernels || !c->points || !c->gpu.copies ||
        !c->gpu.together || !c->gpu.paced || !c->gpu.checks) {
        ps_profile_free(c);
        return NULL;
    }
    if (p->n_points)
        memcpy(c->points, p->points, p->n_points * sizeof *p->points);
    return c;
}

static void scale(ps_stat *s, double by) {
    s->median *= by;
    s->q1 *= by;
    s->q3 *= by;
}

/* ---- points ---- */

/* Does it read weights or a cache? */
static bool reads(ps_op op) {
    return op == PS_OP_MATMUL || op == PS_OP_MOE_DISPATCH || op == PS_OP_ATTENTION;
}

typedef struct work {
    double held, moved, flops; /* bytes of weights or KV, bytes of activations */
} work;

static double act_bytes(ps_fmt fmt, double rows, uint64_t cols) {
    return fmt < PS_FMT_COUNT ? rows * (double)ps_fmt_row_bytes(fmt, cols) : 0;
}

static work work_of(const ps_kernel_spec *k, const ps_profile_point *p) {
    const ps_dtype_info *type = ps_dtype_find((uint32_t)k->wtype);
    double per = type ? (double)type->block_bytes / type->block_elems : 0, t = p->n_tokens;
    double rows = (double)p->rows, cols = (double)p->cols, kv = (double)p->kv_len, heads = p->heads_kv;
    work w = {0, act_bytes(k->in_fmt, t, p->cols), 0};
    switch (k->op) {
    case PS_OP_MATMUL:
        w = (work){per * rows * cols, w.moved + act_bytes(k->out_fmt, t, p->rows), 2 * t * rows * cols};
        break;
    case PS_OP_MOE_DISPATCH:
        w.held = heads > 0 ? per * 3 * heads * (1 - pow(1 - fmin(kv / heads, 1), t)) * rows * cols : 0;
        w.moved *= 2;
        w.flops = 6 * t * kv * rows * cols;
        break;
    case PS_OP_ATTENTION:
        w.held = 4 * kv * heads * cols; /* keys and values, f16 */
        w.moved = t * 8 * rows * cols;
        w.flops = 4 * fmax(t * kv - t * (t - 1) / 2, 0) * rows * cols;
        break;
    case PS_OP_GLU:
    case PS_OP_ADD:
        w.moved = 2 * w.moved + act_bytes(k->out_fmt, t, p->cols);
        break;
    default:
        w.moved += act_bytes(k->out_fmt, t, p->cols);
    }
    return w;
}

static double over(double amount, double rate) {
    return rate > 0 ? amount / rate : 0;
}

/* Best rate of a product by n_threads: their share in what larger teams reached, or beyond the largest as many times more. */
static double cpu_peak(const ps_profile *p, uint32_t n_threads, uint32_t largest) {
    double best = 0;
    for (uint32_t i = 0; i < p->n_points; i++) {
        const ps_profile_point *x = &p->points[i];
        const ps_kernel_spec *k = ps_catalogue_find(p, x->kernel);
        if (k->op != PS_OP_MATMUL || x->beside != PS_BESIDE_IDLE || !(x->time_s.median > 0) ||
            x->n_threads < (n_threads < largest ? n_threads : largest))
            continue;
        best = fmax(best, work_of(k, x).flops / x->time_s.median * n_threads / x->n_threads);
    }
    return best;
}

/* What becomes of a point's time. n_threads: of the point after; another team than before shares out the same work. */
static double cpu_factor(const scaling *s, const ps_kernel_spec *k, const ps_profile_point *p,
                         uint32_t n_threads) {
    double t = p->time_s.median, cpu = s->by.cpu * n_threads / p->n_threads, dram = s->by.dram;
    if (!reads(k->op)) { /* what is not waiting for the others is the cores' */
        double wait = fmin(s->from->barrier_s.median, t);
        return (wait + (t - wait) / cpu) / t;
    }
    double ceiling = ps_cost_dram_bytes_per_s(s->cost, p->n_threads);
    work w = work_of(k, p);
    double read = over(w.held, ceiling);
    double least = fmin(over(w.flops, ps_cost_matmul_flops_per_s(s->cost, p->n_threads)), t);
    if (n_threads != p->n_threads && ceiling > 0)
        dram *= ps_cost_dram_bytes_per_s(s->cost, n_threads) / ceiling;
    if (read < t / 2)
        return fmax(t / cpu, read / dram) / t;
    read = fmin(read, t);
    return fmax(read / dram + (t - read) / cpu, least / cpu) / t;
}

static double gpu_factor(const scaling *s, const ps_kernel_spec *k, const ps_profile_point *p) {
    const ps_profile_gpu *g = &s->from->gpu;
    work w = work_of(k, p);
    bool direct = p->beside == PS_BESIDE_DIRECT;
    double rate = k->op == PS_OP_ATTENTION ? g->attention_flops_per_s.median : g->matmul_flops_per_s.median;
    double bus = direct ? over(w.held, ps_cost_bus_bytes_per_s(s->cost, PS_BUS_DIRECT, 1e12)) : 0;
    double vram = over(w.moved + (direct ? 0 : w.held), g->hbm_read_bytes_per_s.median);
    double sums = reads(k->op) ? over(w.flops, rate) : 0;
    double before = fmax(fmax(bus, vram), sums), t = p->time_s.median;
    double after = fmax(fmax(bus / s->by.bus, vram / s->by.hbm), sums / s->by.gpu);
    if (!(before > 0))
        return 1;
    double part = fmin(before, t);
    if (sums >= fmax(bus, vram))
        part = fmax(part, t - g->graph_node_s.median);
    double least = fmax(fmax(fmin(bus, t) / s->by.bus, fmin(vram, t) / s->by.hbm), fmin(sums, t) / s->by.gpu);
    return fmax(t - part + part * after / before, least) / t;
}

static double beside_factor(const scaling *s, ps_beside beside) {
    return beside == PS_BESIDE_MEMORY ? s->by.dram : beside == PS_BESIDE_IDLE ? 1 : s->by.bus;
}

/* Is this point to be had again with the team that is asked for? A smaller one does everything in more time, a larger one
 * products, experts and attention in less. What was measured stays. */
static bool shared_out(const scaling *s, const ps_profile_point *p) {
    if (s->n_threads == s->largest || p->n_threads != s->largest || !(p->time_s.median > 0))
        return false;
    ps_cost_query q = ps_cost_query_of(p);
    q.n_threads = s->n_threads;
    ps_cost c;
    if (s->n_threads > s->largest)
        return reads(ps_catalogue_find(s->from, p->kernel)->op);
    return ps_cost_lookup(s->cost, &q, &c) && c.quality != PS_COST_MEASURED;
}

static void scale_points(const scaling *s, ps_profile *to) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->from->n_points; i++) {
        const ps_profile_point *p = &s->from->points[i];
        const ps_kernel_spec *k = ps_catalogue_find(s->from, p->kernel);
        bool gpu = k->device == PS_DEV_CUDA, measured = p->time_s.median > 0;
        if (gpu && to->gpu.name[0] == '\0')
            continue;
        ps_profile_point *x = &to->points[n++];
        *x = *p;
        x->beside_bytes_per_s *= beside_factor(s, p->beside);
        if (measured)
            scale(&x->time_s, gpu ? gpu_factor(s, k, p) : cpu_factor(s, k, p, p->n_threads));
        if (!shared_out(s, p))
            continue;
        to->points[n] = *x;
        to->points[n].time_s = p->time_s;
        to->points[n].n_threads = s->n_threads;
        scale(&to->points[n++].time_s, cpu_factor(s, k, p, s->n_threads));
    }
    to->n_points = n;
}

/* ---- bus and DRAM ---- */

/* A piece's time is its start-up, what the ceiling does not explain, and the rest; the first stays. */
static void scale_copies(const scaling *s, ps_profile_gpu *g) {
    for (uint32_t i = 0; i < g->n_copies; i++) {
        ps_profile_copy *c = &g->copies[i];
        double ceiling = ps_cost_bus_bytes_per_s(s->cost, c->bus, 1e12), rate = c->bw_bytes_per_s.median;
        if (!(rate > 0) || !(ceiling > 0) || s->by.bus == 1)
            continue;
        double start = fmax(1 / rate - 1 / ceiling, 0); /* for each byte of this size of piece */
        scale(&c->bw_bytes_per_s, 1 / (start + (1 / rate - start) / s->by.bus) / rate);
    }
}

static void scale_both(const scaling *s, ps_stat *bus, ps_stat *dram) {
    double by = s->by.bus, room = s->memory_total - dram->median;
    if (by > s->by.dram && bus->median > 0)
        by = fmin(by, fmax(s->by.dram * room / bus->median, s->by.dram));
    scale(bus, by);
    scale(dram, s->by.dram);
}

static void scale_together(const scaling *s, ps_profile_gpu *g) {
    for (uint32_t i = 0; i < g->n_together; i++)
        scale_both(s, &g->together[i].bus_bytes_per_s, &g->together[i].dram_bytes_per_s);
    for (uint32_t i = 0; i < g->n_paced; i++)
        scale_both(s, &g->paced[i].bus_bytes_per_s, &g->paced[i].dram_bytes_per_s);
}

static double memory_total(const scaling *s) {
    const ps_profile_gpu *g = &s->from->gpu;
    double most = ps_cost_dram_bytes_per_s(s->cost, s->n_threads), fastest = 0, bus, dram;
    for (int b = 0; b < PS_BUS_COUNT && g->name[0]; b++)
        fastest = fmax(fastest, ps_cost_bus_bytes_per_s(s->cost, (ps_bus)b, 1e12));
    if (g->n_together == 0) /* nothing says that they are in each other's way */
        return most + fastest;
    for (uint32_t i = 0; i < g->n_together; i++) {
        ps_cost_together(s->cost, g->together[i].bus, s->n_threads, &bus, &dram);
        most = fmax(most, bus + dram);
    }
    return fmax(most, fastest);
}

/* ---- what is asked for ---- */

static ps_status ratio(double wish, double now, const char *what, double *out, ps_error *err) {
    *out = 1;
    if (wish == 0)
        return PS_OK;
    if (!isfinite(wish) || wish < 0)
        return ps_error_set(err, PS_E_USAGE, what, "must be a finite rate above 0");
    if (!(now > 0))
        return ps_error_set(err, PS_E_UNAVAILABLE, what, "the profile has no measured rate to scale");
    *out = wish / now;
    return isfinite(*out) && *out >= 1e-6 && *out <= 1e6
               ? PS_OK
               : ps_error_set(err, PS_E_USAGE, what, "%g is not within a factor of a million of %g", wish,
                              now);
}

static ps_status find_ratios(const ps_whatif *w, scaling *s, ps_error *err) {
    const ps_profile *p = s->from;
    const ps_profile_gpu *g = &p->gpu;
    bool asks_gpu =
        w->pcie_bytes_per_s != 0 || w->hbm_bytes_per_s != 0 || w->gpu_flops_per_s != 0 || w->vram_bytes != 0;
    if (asks_gpu && g->name[0] == '\0')
        return ps_error_set(err, PS_E_UNAVAILABLE, "gpu", "the profile has none to change");
    if (w->vram_bytes && w->vram_bytes <= g->base_bytes)
        return ps_error_set(err, PS_E_USAGE, "vram", "CUDA context and libraries alone take %llu bytes",
                            (unsigned long long)g->base_bytes);
    double bus = g->name[0] ? ps_cost_bus_bytes_per_s(s->cost, PS_BUS_H2D, 1e12) : 0;
    ps_status status =
        ratio(w->dram_bytes_per_s, ps_cost_dram_bytes_per_s(s->cost, s->n_threads), "dram", &s->by.dram, err);
    if (!status)
        status =
            ratio(w->cpu_flops_per_s, cpu_peak(p, s->n_threads, s->largest), "cpu-flops", &s->by.cpu, err);
    if (!status)
        status = ratio(w->pcie_bytes_per_s, bus, "pcie", &s->by.bus, err);
    if (!status)
        status = ratio(w->hbm_bytes_per_s, g->hbm_read_bytes_per_s.median, "hbm", &s->by.hbm, err);
    if (!status)
        status = ratio(w->gpu_flops_per_s, g->matmul_flops_per_s.median, "gpu-flops", &s->by.gpu, err);
    double fastest = 0, limit = s->memory_total * s->by.dram;
    for (int b = 0; b < PS_BUS_COUNT && g->name[0]; b++)
        fastest = fmax(fastest, ps_cost_bus_bytes_per_s(s->cost, (ps_bus)b, 1e12));
    if (status || fastest * s->by.bus <= limit)
        return status;
    if (w->pcie_bytes_per_s != 0 && w->pcie_bytes_per_s > limit)
        return ps_error_set(err, PS_E_USAGE, "pcie",
                            "host memory of %.1f GB/s cannot feed a bus of %.1f GB/s: ask for more of dram",
                            limit / 1e9, w->pcie_bytes_per_s / 1e9);
    if (w->pcie_bytes_per_s == 0)
        s->by.bus = limit / fastest;
    return PS_OK;
}

/* ---- note ---- */

typedef struct note {
    char *text;
    size_t size, used;
} note;

__attribute__((format(printf, 2, 3))) static void say(note *n, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int k = vsnprintf(n->text + n->used, n->size - n->used, format, args);
    va_end(args);
    if (k > 0 && n->used + (size_t)k < n->size)
        n->used += (size_t)k;
}

static void say_rate(note *n, const char *what, double before, double by, double unit, const char *unit_name,
                     const char *scaled) {
    if (by != 1)
        say(n, "; %s %.4g to %.4g %s (%s)", what, before / unit, before * by / unit, unit_name, scaled);
}

static char *make_note(const ps_whatif *w, const scaling *s) {
    const ps_profile *p = s->from;
    const ps_profile_gpu *g = &p->gpu;
    note n = {.size = (p->note ? strlen(p->note) : 0) + 2048};
    n.text = malloc(n.size);
    if (!n.text)
        return NULL;
    n.text[0] = '\0';
    say(&n, "synthetic: what-if of a %s profile", p->synthetic ? "synthetic" : "measured");
    if (w->n_threads)
        say(&n, "; %u to %u threads%s", p->topology.n_allowed, w->n_threads,
            w->n_threads != s->largest ? " (work of the largest team shared out anew)" : "");
    say_rate(&n, "DRAM", ps_cost_dram_bytes_per_s(s->cost, s->n_threads), s->by.dram, 1e9, "GB/s",
             "table, reads beside the bus, CPU points bound by reading");
    say_rate(&n, "CPU", cpu_peak(p, s->n_threads, s->largest), s->by.cpu, 1e9, "GFLOP/s",
             "CPU points but for reading and barriers");
    if (w->no_gpu)
        say(&n, "; no GPU");
    if (g->name[0] && !w->no_gpu) {
        say_rate(&n, "bus", ps_cost_bus_bytes_per_s(s->cost, PS_BUS_H2D, 1e12), s->by.bus, 1e9, "GB/s",
                 "copies, reads beside the CPU's, direct points; start-up as it was");
        say_rate(&n, "VRAM", g->hbm_read_bytes_per_s.median, s->by.hbm, 1e9, "GB/s",
                 "GPU points bound by it");
        say_rate(&n, "GPU products", g->matmul_flops_per_s.median, s->by.gpu, 1e12, "TFLOP/s",
                 "GPU points bound by arithmetic, attention likewise");
    }
    if (w->vram_bytes)
        say(&n, "; VRAM of %.4g GiB", (double)w->vram_bytes / (1 << 30));
    if (w->memory_bytes)
        say(&n, "; memory of %.4g GiB", (double)w->memory_bytes / (1 << 30));
    say(&n, "; all else as it was: hand-overs, launches, barriers, kernels");
    if (p->note)
        say(&n, "\nof it: %s", p->note);
    return n.text;
}

/* ---- the machine ---- */

/* "NAME (what-if)", cut where there is no room. */
static void rename_part(char *name, size_t size) {
    static const char mark[] = " (what-if)";
    size_t n = strlen(name);
    if (n >= sizeof mark - 1 && strcmp(name + n - (sizeof mark - 1), mark) == 0)
        return;
    if (n + sizeof mark > size)
        n = size - sizeof mark;
    while (n && ((unsigned char)name[n] & 0xC0) == 0x80) /* not inside a character */
        n--;
    memcpy(name + n, mark, sizeof mark);
}

static void change_machine(const ps_whatif *w, ps_profile *to) {
    ps_profile_topology *t = &to->topology;
    ps_profile_gpu *g = &to->gpu;
    rename_part(t->cpu_model, sizeof t->cpu_model);
    if (w->n_threads) {
        t->n_packages = t->n_numa = 1;
        t->n_cores = t->n_threads = t->n_p_cores = t->n_allowed = w->n_threads;
        t->n_e_cores = 0;
        t->cpu_quota = 0;
    }
    if (w->memory_bytes)
        t->memory_bytes = w->memory_bytes;
    if (w->no_gpu) {
        free(g->copies);
        free(g->together);
        free(g->paced);
        free(g->checks);
        *g = (ps_profile_gpu){0};
        t->gpu_name[0] = '\0';
    }
    if (g->name[0]) {
        rename_part(g->name, sizeof g->name);
        memcpy(t->gpu_name, g->name, sizeof t->gpu_name);
        g->uuid[0] = '\0';
        if (w->vram_bytes)
            g->vram_bytes = w->vram_bytes;
        if (w->pcie_bytes_per_s != 0)
            g->pcie_gen = g->pcie_width = 0;
    }
    struct { /* no padding: hashed */
        uint8_t machine[PS_HASH_BYTES];
        double rates[5];
        uint64_t sizes[4];
    } is = {.rates = {w->pcie_bytes_per_s, w->dram_bytes_per_s, w->hbm_bytes_per_s, w->gpu_flops_per_s,
                      w->cpu_flops_per_s},
            .sizes = {w->vram_bytes, w->memory_bytes, w->n_threads, w->no_gpu}};
    memcpy(is.machine, to->machine_hash, sizeof is.machine);
    ps_hash_bytes(&is, sizeof is, to->machine_hash);
    to->synthetic = true;
}

ps_status ps_profile_whatif(const ps_profile *profile, const ps_whatif *asked_for, ps_profile **out,
                            ps_error *err) {
    ps_whatif wishes = *asked_for;
    const ps_whatif *wish = &wishes;
    if (wishes.no_gpu && (wish->pcie_bytes_per_s != 0 || wish->hbm_bytes_per_s != 0 ||
                          wish->gpu_flops_per_s != 0 || wish->vram_bytes != 0))
        return ps_error_set(err, PS_E_USAGE, "no-gpu", "nothing of a GPU can be asked for with it");
    wishes.no_gpu = wishes.no_gpu && profile->gpu.name[0]; /* nothing to leave out */
    scaling s = {.from = profile, .n_threads = profile->topology.n_allowed};
    ps_cost_model *cost = NULL;
    ps_profile *to = NULL;
    uint32_t n_more = 0;
    bool asked = wish->pcie_bytes_per_s != 0 || wish->dram_bytes_per_s != 0 || wish->hbm_bytes_per_s != 0 ||
                 wish->gpu_flops_per_s != 0 || wish->cpu_flops_per_s != 0 || wish->vram_bytes ||
                 wish->memory_bytes || wish->n_threads || wish->no_gpu;
    ps_status status = ps_cost_model_new(profile, &cost, err);
    if (status)
        return status;
    s.cost = cost;
    if (wish->n_threads)
        s.n_threads = wish->n_threads;
    for (uint32_t i = 0; i < profile->n_points; i++)
        if (profile->points[i].n_threads > s.largest)
            s.largest = profile->points[i].n_threads;
    for (uint32_t i = 0; i < profile->n_points; i++)
        n_more += shared_out(&s, &profile->points[i]);
    s.memory_total = memory_total(&s);
    status = find_ratios(wish, &s, err);
    if (!status && !(to = copy_profile(profile, n_more)))
        status = ps_error_set(err, PS_E_NOMEM, "profile", "no memory for a scaled copy");
    if (status || !asked)
        goto done;
    char *text = make_note(wish, &s);
    if (!text) {
        status = ps_error_set(err, PS_E_NOMEM, "profile", "no memory for its note");
        goto done;
    }
    free(to->note);
    to->note = text;
    change_machine(wish, to);
    for (uint32_t i = 0; i < to->n_dram; i++)
        scale(&to->dram[i].bw_bytes_per_s, s.by.dram);
    scale_copies(&s, &to->gpu);
    scale_together(&s, &to->gpu);
    scale(&to->gpu.hbm_full_bytes_per_s, ps_profile_spills(&profile->gpu) ? s.by.bus : s.by.hbm);
    scale(&to->gpu.hbm_read_bytes_per_s, s.by.hbm);
    scale(&to->gpu.matmul_flops_per_s, s.by.gpu);
    scale(&to->gpu.attention_flops_per_s, s.by.gpu);
    scale_points(&s, to);
    status = ps_profile_validate(to, err);
done:
    ps_cost_model_free(cost);
    if (status) {
        ps_profile_free(to);
        return status;
    }
    *out = to;
    return PS_OK;
}
