/* Interpolation over the points of a machine profile. */
#include "plan/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Dimensions of a kernel's grid, outermost first: points are sorted by them, so that each step of the
 * recursion works on a contiguous range. */
enum { DIM_TOKENS, DIM_HEADS, DIM_COLS, DIM_ROWS, DIM_KV, N_DIMS };

/* Exponent of the GPU's time beyond the measured range: above it time grows like the work; below it as between the two lowest
 * values, where there are two, as calls that small are mostly overhead. Tokens below and KV length on both sides
 * follow a line instead; a call on fewer tokens than the only ones measured is not assumed to be faster. What the CPU takes grows
 * with the work of the call by its bytes and FLOPs: a product of one token does not get faster with fewer heads that share a cache. */
static const struct {
    double above, below;
} growth[N_DIMS] = {
    [DIM_TOKENS] = {1, 0}, [DIM_HEADS] = {1, 1}, [DIM_COLS] = {1, 1}, [DIM_ROWS] = {1, 1}, [DIM_KV] = {1, 1},
};

typedef struct point {
    uint32_t kernel, op;
    ps_beside beside;
    uint32_t n_threads;
    double dim[N_DIMS];
    double time_s;
} point;

/* Points [first, first + n) of one kernel, neighbour and thread count. */
typedef struct group {
    uint32_t kernel, op;
    const ps_kernel_spec *spec; /* NULL: not in the catalogue */
    ps_beside beside;
    uint32_t n_threads;
    uint32_t first, n;
    uint32_t fullest; /* group of the same kernel and neighbour with the most points */
    /* Of a team of CPUs, 0 else: what every call pays, and seconds per byte and per FLOP at the best of its points. */
    double barrier_s, byte_s, flop_s;
} group;

enum { MAX_READS = 16 };

/* Rates at which products read weights: the best of each number of threads. */
typedef struct reads {
    uint32_t n;
    struct {
        uint32_t n_threads;
        double bytes_per_s;
    } at[MAX_READS];
} reads;

struct ps_cost_model {
    const ps_profile *profile;
    const ps_kernel_spec *
        *kernels; /* [n_kernels] by id; of equal ids the first of the catalogue comes first */
    uint32_t n_points, n_groups;
    point *points;
    double *times;  /* [n_points] */
    double *ratios; /* [n_points]: time over that of the kernel's fullest group at the same coordinates */
    group *groups;  /* in the order of the points */
    reads seen;     /* products on weights larger than any cache */
    reads cold;     /* and experts; or the largest that there are */
};

#define QUALITY_NAME(name, text) text,
static const char *const quality_names[] = {PS_COST_QUALITY_LIST(QUALITY_NAME)};
#undef QUALITY_NAME

const char *ps_cost_quality_name(ps_cost_quality quality) {
    return quality < PS_COST_QUALITY_COUNT ? quality_names[quality] : "?";
}

/* The grid's coordinates. A dimension an operation does not have is stored as 0 or 1 alike. Attention's rows are query
 * heads: taken per KV head, as only that varies freely; and of its KV length what T causal rows see on average, so
 * that work is the product of all coordinates. Of a mixture it is the distinct experts that tokens are expected to select, and tokens for
 * each of them: so 8 of 128 experts and 2 of 8 lie on one curve. */
static void coordinates(double dim[N_DIMS], uint32_t op, double tokens, double heads_kv, double cols,
                        double rows, double kv_len) {
    if (op == PS_OP_ATTENTION && heads_kv > 0)
        rows /= heads_kv;
    if (op == PS_OP_ATTENTION)
        kv_len -= (tokens - 1) / 2;
    if (op == PS_OP_MOE_DISPATCH && heads_kv >= 1 && kv_len > 0) {
        double pairs = tokens * kv_len;
        heads_kv *= 1 - pow(1 - fmin(kv_len / heads_kv, 1), tokens);
        tokens = pairs / heads_kv;
        kv_len = 1;
    }
    dim[DIM_TOKENS] = fmax(tokens, 1);
    dim[DIM_HEADS] = fmax(heads_kv, 1);
    dim[DIM_COLS] = fmax(cols, 1);
    dim[DIM_ROWS] = fmax(rows, 1);
    dim[DIM_KV] = fmax(kv_len, 1);
}

static int compare_points(const void *pa, const void *pb) {
    const point *a = pa, *b = pb;
    if (a->kernel != b->kernel)
        return a->kernel < b->kernel ? -1 : 1;
    if (a->beside != b->beside)
        return a->beside < b->beside ? -1 : 1;
    if (a->n_threads != b->n_threads)
        return a->n_threads < b->n_threads ? -1 : 1;
    for (int d = 0; d < N_DIMS; d++)
        if (a->dim[d] != b->dim[d])
            return a->dim[d] < b->dim[d] ? -1 : 1;
    return a->time_s < b->time_s ? -1 : a->time_s > b->time_s;
}

static const ps_kernel_spec *spec_of(const ps_profile *profile, uint32_t kernel) {
    for (uint32_t i = 0; i < profile->n_kernels; i++)
        if (profile->kernels[i].id == kernel)
            return &profile->kernels[i];
    return NULL;
}

static int compare_kernels(const void *pa, const void *pb) {
    const ps_kernel_spec *a = *(const ps_kernel_spec *const *)pa, *b = *(const ps_kernel_spec *const *)pb;
    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    return a < b ? -1 : a > b;
}

const ps_kernel_spec *ps_cost_kernel(const ps_cost_model *m, uint32_t id) {
    uint32_t lo = 0, hi = m->profile->n_kernels;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (m->kernels[mid]->id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < m->profile->n_kernels && m->kernels[lo]->id == id ? m->kernels[lo] : NULL;
}

static void fill_ratios(ps_cost_model *m);
static void fill_rates(ps_cost_model *m);

/* Bytes that a product or mixture can touch, *out_read: that one call is expected to read; 0: of another kind. */
static double footprint(const ps_cost_model *m, const ps_profile_point *p, bool *out_moe, double *out_read) {
    const ps_kernel_spec *k = spec_of(m->profile, p->kernel);
    *out_moe = k && k->op == PS_OP_MOE_DISPATCH && p->heads_kv > 0;
    const ps_dtype_info *type =
        k && (*out_moe || k->op == PS_OP_MATMUL) ? ps_dtype_find((uint32_t)k->wtype) : NULL;
    if (!type || p->n_threads == 0 || p->beside != PS_BESIDE_IDLE || !(p->time_s.median > 0))
        return 0;
    double bytes = (double)p->rows * (double)p->cols * type->block_bytes / type->block_elems;
    *out_read = bytes;
    if (!*out_moe)
        return bytes;
    bytes *= 3.0 * p->heads_kv;
    *out_read = bytes * (1 - pow(1 - (double)p->kv_len / p->heads_kv, p->n_tokens));
    return bytes;
}

static void note(reads *r, uint32_t n_threads, double bytes_per_s) {
    uint32_t i = 0;
    while (i < r->n && r->at[i].n_threads != n_threads)
        i++;
    if (i == MAX_READS)
        return;
    if (i == r->n) {
        r->at[r->n].n_threads = n_threads;
        r->at[r->n++].bytes_per_s = 0;
    }
    r->at[i].bytes_per_s = fmax(r->at[i].bytes_per_s, bytes_per_s);
}

/* A product of a few rows on weights that no cache holds shows what DRAM gives at least. Experts do so likewise, and where
 * nothing is that large, the largest half that there is comes next to it. */
static void note_reads(ps_cost_model *m) {
    double large = 2.0 * (double)m->profile->topology.l3_bytes, most = 0, read;
    bool moe;
    for (uint32_t i = 0; i < m->profile->n_points; i++)
        most = fmax(most, footprint(m, &m->profile->points[i], &moe, &read));
    for (uint32_t i = 0; i < m->profile->n_points; i++) {
        const ps_profile_point *p = &m->profile->points[i];
        double bytes = footprint(m, p, &moe, &read);
        if (bytes > 0 && bytes >= large && !moe)
            note(&m->seen, p->n_threads, read / p->time_s.median);
        if (bytes > 0 && bytes >= fmin(large, most / 2))
            note(&m->cold, p->n_threads, read / p->time_s.median);
    }
}

ps_status ps_cost_model_new(const ps_profile *profile, ps_cost_model **out, ps_error *err) {
    ps_status status = PS_OK;
    ps_cost_model *m = calloc(1, sizeof *m);
    if (m)
        m->points = calloc(profile->n_points ? profile->n_points : 1, sizeof *m->points);
    if (m)
        m->groups = calloc(profile->n_points ? profile->n_points : 1, sizeof *m->groups);
    if (m)
        m->times = calloc(profile->n_points ? profile->n_points : 1, sizeof *m->times);
    if (m)
        m->ratios = calloc(profile->n_points ? profile->n_points : 1, sizeof *m->ratios);
    if (m)
        m->kernels = calloc(profile->n_kernels ? profile->n_kernels : 1, sizeof *m->kernels);
    if (!m || !m->kernels || !m->points || !m->groups || !m->times || !m->ratios) {
        status = ps_error_set(err, PS_E_NOMEM, "profile", "no memory to index %u points", profile->n_points);
        goto done;
    }
    m->profile = profile;
    for (uint32_t i = 0; i < profile->n_kernels; i++)
        m->kernels[i] = &profile->kernels[i];
    qsort(m->kernels, profile->n_kernels, sizeof *m->kernels, compare_kernels);
    uint32_t kernel = UINT32_MAX, op = PS_OP_COUNT;
    for (uint32_t i = 0; i < profile->n_points; i++) {
        const ps_profile_point *p = &profile->points[i];
        if (!(p->time_s.median > 0) || !isfinite(p->time_s.median))
            continue;
        if (p->kernel != kernel) {
            const ps_kernel_spec *spec = spec_of(profile, kernel = p->kernel);
            op = spec ? (uint32_t)spec->op : PS_OP_COUNT;
        }
        point *to = &m->points[m->n_points++];
        *to = (point){.kernel = p->kernel,
                      .op = op,
                      .beside = p->beside,
                      .n_threads = p->n_threads,
                      .time_s = p->time_s.median};
        coordinates(to->dim, op, p->n_tokens, p->heads_kv, (double)p->cols, (double)p->rows,
                    (double)p->kv_len);
    }
    qsort(m->points, m->n_points, sizeof *m->points, compare_points);
    for (uint32_t i = 0; i < m->n_points; i++) {
        const point *p = &m->points[i];
        m->times[i] = p->time_s;
        group *g = m->n_groups ? &m->groups[m->n_groups - 1] : NULL;
        if (!g || g->kernel != p->kernel || g->beside != p->beside || g->n_threads != p->n_threads) {
            g = &m->groups[m->n_groups++];
            *g = (group){.kernel = p->kernel,
                         .op = p->op,
                         .spec = spec_of(profile, p->kernel),
                         .beside = p->beside,
                         .n_threads = p->n_threads,
                         .first = i};
        }
        g->n++;
    }
    fill_rates(m);
    fill_ratios(m);
    note_reads(m);
    *out = m;
    m = NULL;
done:
    ps_cost_model_free(m);
    return status;
}

const ps_profile *ps_cost_profile(const ps_cost_model *model) {
    return model->profile;
}

void ps_cost_model_free(ps_cost_model *model) {
    if (!model)
        return;
    free(model->kernels);
    free(model->points);
    free(model->times);
    free(model->ratios);
    free(model->groups);
    free(model);
}

static ps_cost_quality worse(ps_cost_quality a, ps_cost_quality b) {
    return a > b ? a : b;
}

/* The point that coordinates stand for. */
static ps_profile_point point_at(const group *g, const double *dim) {
    ps_profile_point p = {.kernel = g->kernel,
                          .rows = (uint64_t)dim[DIM_ROWS],
                          .cols = (uint64_t)dim[DIM_COLS],
                          .heads_kv = (uint32_t)dim[DIM_HEADS],
                          .kv_len = (uint64_t)dim[DIM_KV],
                          .n_tokens = (uint32_t)dim[DIM_TOKENS],
                          .n_threads = g->n_threads};
    if (g->op == PS_OP_ATTENTION) {
        p.rows = (uint64_t)(dim[DIM_ROWS] * dim[DIM_HEADS]);
        p.kv_len = (uint64_t)(dim[DIM_KV] + (dim[DIM_TOKENS] - 1) / 2);
    }
    return p;
}

/* Bytes and FLOPs at coordinates. A mixture is as many products of its tokens as experts. */
static void work_at(const group *g, const double *dim, double *bytes, double *flops) {
    ps_profile_point p = point_at(g, dim);
    if (g->op == PS_OP_MOE_DISPATCH) {
        p.heads_kv = 1;
        p.kv_len = 1;
    }
    ps_point_work(g->spec, &p, bytes, flops);
    if (g->op == PS_OP_MOE_DISPATCH) {
        *bytes *= dim[DIM_HEADS];
        *flops *= dim[DIM_HEADS];
    }
}

/* What a team pays for a barrier; only that of the largest is measured. */
static double barrier_of(const ps_profile *p, uint32_t n_threads) {
    return n_threads > 1 ? p->barrier_s.median : 0;
}

/* Barriers, rates, and times without the barriers. A barrier is never more than most of the quickest call. */
static void fill_rates(ps_cost_model *m) {
    for (uint32_t i = 0; i < m->n_groups; i++) {
        group *g = &m->groups[i];
        double least = INFINITY, bytes, flops;
        if (!g->spec || g->n_threads == 0)
            continue;
        for (uint32_t k = g->first; k < g->first + g->n; k++)
            least = fmin(least, m->times[k]);
        g->barrier_s = fmin(barrier_of(m->profile, g->n_threads), 0.8 * least);
        double byte_rate = 0, flop_rate = 0;
        for (uint32_t k = g->first; k < g->first + g->n; k++) {
            m->times[k] -= g->barrier_s;
            work_at(g, m->points[k].dim, &bytes, &flops);
            byte_rate = fmax(byte_rate, bytes / m->times[k]);
            flop_rate = fmax(flop_rate, flops / m->times[k]);
        }
        g->byte_s = byte_rate > 0 ? 1 / byte_rate : 0;
        g->flop_s = flop_rate > 0 ? 1 / flop_rate : 0;
    }
}

/* What the work takes at best: coordinates before d as in `slice`, d itself `at`, those behind as in q. 1 where that is not known. */
static double work_s(const group *g, const double *slice, const double *q, int d, double at) {
    double dim[N_DIMS], bytes, flops;
    if (!(g->flop_s > 0))
        return 1;
    for (int k = 0; k < N_DIMS; k++)
        dim[k] = k < d ? slice[k] : k == d ? at : q[k];
    work_at(g, dim, &bytes, &flops);
    const double s = fmax(bytes * g->byte_s, flops * g->flop_s);
    return s > 0 && isfinite(s) ? s : 1;
}

/* First index in [lo, hi) whose dimension d is above v (points are sorted by d inside the range). */
static uint32_t upper(const point *p, uint32_t lo, uint32_t hi, int d, double v) {
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (p[mid].dim[d] > v)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* Interpolate over the points [lo, hi), equal in all dimensions before d. value: per point, the time or a
 * ratio of times. grow: false for ratios, which stay as they are beyond the measured range. */
static double interpolate(const ps_cost_model *m, const group *g, const double *value, uint32_t lo,
                          uint32_t hi, int d, const double *q, bool grow, ps_cost_quality *quality) {
    if (d == N_DIMS) { /* the same point measured more than once: geometric mean */
        double sum = 0;
        for (uint32_t i = lo; i < hi; i++)
            sum += log(value[i]);
        return exp(sum / (hi - lo));
    }
    const point *p = m->points;
    uint32_t above0 = upper(p, lo, hi, d, q[d]); /* points at or below q end here */
    double v_below = above0 > lo ? p[above0 - 1].dim[d] : 0;
    if (above0 > lo && v_below == q[d]) {
        uint32_t first = upper(p, lo, hi, d, nextafter(q[d], 0));
        return interpolate(m, g, value, first, above0, d + 1, q, grow, quality);
    }
    /* The two runs of equal values to work from: around q, or the two nearest on one side. */
    uint32_t a_lo, a_hi, b_lo = 0, b_hi = 0;
    bool have_b = false, inside = false;
    if (above0 > lo) {
        a_hi = above0;
        a_lo = upper(p, lo, a_hi, d, nextafter(v_below, 0));
        if (above0 < hi) {
            b_lo = above0;
            b_hi = upper(p, b_lo, hi, d, p[above0].dim[d]);
            have_b = inside = true;
        } else if (a_lo > lo) {
            b_hi = a_lo;
            b_lo = upper(p, lo, b_hi, d, nextafter(p[a_lo - 1].dim[d], 0));
            have_b = true;
        }
    } else {
        a_lo = lo;
        a_hi = upper(p, lo, hi, d, p[lo].dim[d]);
        if (a_hi < hi) {
            b_lo = a_hi;
            b_hi = upper(p, b_lo, hi, d, p[a_hi].dim[d]);
            have_b = true;
        }
    }
    double xa = p[a_lo].dim[d], xb = have_b ? p[b_lo].dim[d] : 0;
    ps_cost_quality qa = *quality;
    double ya = interpolate(m, g, value, a_lo, a_hi, d + 1, q, grow, &qa);
    if (inside) {
        double yb = interpolate(m, g, value, b_lo, b_hi, d + 1, q, grow, &qa);
        *quality = worse(qa, PS_COST_INTERPOLATED);
        if (d == DIM_KV)
            return ya + (yb - ya) * (q[d] - xa) / (xb - xa);
        double f = log(q[d] / xa) / log(xb / xa);
        double power = exp(log(ya) + f * (log(yb) - log(ya)));
        double line = ya + (yb - ya) * (q[d] - xa) / (xb - xa);
        return fmin(power, line);
    }
    *quality = worse(qa, PS_COST_EXTRAPOLATED);
    if (!grow)
        return ya;
    if (have_b && (d == DIM_KV || (d == DIM_TOKENS && q[d] < xa))) {
        /* along the line through the two nearest, but never to nothing */
        ps_cost_quality ignored = PS_COST_MEASURED;
        double yb = interpolate(m, g, value, b_lo, b_hi, d + 1, q, grow, &ignored);
        double slope = fmax((yb - ya) / (xb - xa), 0);
        return fmax(ya + slope * (q[d] - xa), ya * fmin(1, q[d] / xa) * 0.5);
    }
    double exponent = q[d] > xa ? growth[d].above : growth[d].below;
    if (g->flop_s > 0) /* with the work */
        exponent =
            log(work_s(g, p[a_lo].dim, q, d, q[d]) / work_s(g, p[a_lo].dim, q, d, xa)) / log(q[d] / xa);
    if (q[d] < xa && have_b && exponent > 0) {
        ps_cost_quality ignored = PS_COST_MEASURED;
        double yb = interpolate(m, g, value, b_lo, b_hi, d + 1, q, grow, &ignored);
        exponent = fmin(fmax(log(yb / ya) / log(xb / xa), 0), exponent);
    }
    return ya * pow(q[d] / xa, exponent);
}

static double times_at(const ps_cost_model *m, const group *g, const double *q, ps_cost_quality *quality) {
    return interpolate(m, g, m->times, g->first, g->first + g->n, 0, q, true, quality);
}

/* Time of group g over that of its kernel's fullest group, at q: the ratio at g's own points, interpolated. */
static double ratio_at(const ps_cost_model *m, const group *g, const double *q, ps_cost_quality *quality) {
    if (&m->groups[g->fullest] == g)
        return 1;
    return interpolate(m, g, m->ratios, g->first, g->first + g->n, 0, q, false, quality);
}

static const group *group_of(const ps_cost_model *m, uint32_t kernel, ps_beside beside, uint32_t *out_n) {
    *out_n = 0;
    const group *first = NULL;
    for (uint32_t i = 0; i < m->n_groups; i++)
        if (m->groups[i].kernel == kernel && m->groups[i].beside == beside) {
            if (!first)
                first = &m->groups[i];
            ++*out_n;
        }
    return first;
}

static void fill_ratios(ps_cost_model *m) {
    for (uint32_t i = 0; i < m->n_groups;) {
        uint32_t end = i, fullest = i;
        for (; end < m->n_groups && m->groups[end].kernel == m->groups[i].kernel &&
               m->groups[end].beside == m->groups[i].beside;
             end++)
            if (m->groups[end].n >= m->groups[fullest].n)
                fullest = end;
        for (; i < end; i++) {
            group *g = &m->groups[i];
            g->fullest = fullest;
            for (uint32_t k = g->first; k < g->first + g->n; k++) {
                ps_cost_quality ignored = PS_COST_MEASURED;
                m->ratios[k] = m->times[k] / times_at(m, &m->groups[fullest], m->points[k].dim, &ignored);
            }
        }
    }
}

/* Time at n_threads over that of the fullest group, from the groups [g, g + n) of one kernel. A team larger than any
 * measured is not assumed to be faster, a smaller one shares its work out. */
static double thread_ratio(const ps_cost_model *m, const group *g, uint32_t n, uint32_t n_threads,
                           const double *q, ps_cost_quality *quality) {
    const group *a = NULL, *b = NULL; /* nearest at or below, nearest above; g ascends in threads */
    for (uint32_t i = 0; i < n; i++) {
        if (g[i].n_threads <= n_threads)
            a = &g[i];
        else if (!b)
            b = &g[i];
    }
    ps_cost_quality own = PS_COST_MEASURED;
    double ya = a ? ratio_at(m, a, q, &own) : 1;
    double yb = b ? ratio_at(m, b, q, &own) : 1;
    *quality = worse(*quality, own);
    if (a && a->n_threads == n_threads)
        return ya;
    if (a && b) {
        *quality = worse(*quality, PS_COST_INTERPOLATED);
        double f = log((double)n_threads / a->n_threads) / log((double)b->n_threads / a->n_threads);
        return exp(log(ya) + f * (log(yb) - log(ya)));
    }
    *quality = worse(*quality, PS_COST_EXTRAPOLATED);
    return a ? ya : yb * (double)b->n_threads / n_threads;
}

bool ps_cost_lookup(const ps_cost_model *m, const ps_cost_query *query, ps_cost *out) {
    uint32_t n;
    const group *g = group_of(m, query->kernel, query->beside, &n);
    if (!g)
        return false;
    double q[N_DIMS];
    coordinates(q, g->op, (double)query->n_tokens, query->heads_kv, (double)query->cols, (double)query->rows,
                query->kv_len);
    uint32_t n_threads = query->n_threads ? query->n_threads : 1;
    if (g->n_threads == 0) /* the GPU's: no team */
        n_threads = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (g[i].n_threads != n_threads)
            continue;
        ps_cost_quality own =
            PS_COST_MEASURED; /* measured with this team: no ratio where it has the points */
        double t = times_at(m, &g[i], q, &own);
        if (own <= PS_COST_INTERPOLATED && t > 0) {
            *out = (ps_cost){t + g[i].barrier_s, own};
            return true;
        }
    }
    const group *ref = &m->groups[g->fullest];
    ps_cost_quality quality = PS_COST_MEASURED;
    double t = times_at(m, ref, q, &quality);
    if (ref->n_threads != n_threads && n > 1) {
        t *= thread_ratio(m, g, n, n_threads, q, &quality);
    } else if (ref->n_threads != n_threads) {
        /* one thread count only: scale as the kernel of the same operation does that was measured with the most */
        const group *h = g;
        uint32_t nh = n;
        for (uint32_t i = 0; i < m->n_groups; i++) {
            uint32_t ni;
            if (m->groups[i].op != ref->op || m->groups[i].beside != ref->beside)
                continue;
            const group *start = group_of(m, m->groups[i].kernel, m->groups[i].beside, &ni);
            if (ni > nh) {
                h = start;
                nh = ni;
            }
        }
        quality = PS_COST_EXTRAPOLATED;
        t *= thread_ratio(m, h, nh, n_threads, q, &quality) /
             thread_ratio(m, h, nh, ref->n_threads, q, &quality);
    }
    if (!(t > 0) || !isfinite(t))
        return false;
    /* The team's own barrier, or that of the fullest grid. */
    double barrier_s = n_threads <= 1       ? 0
                       : ref->n_threads > 1 ? ref->barrier_s
                                            : fmin(barrier_of(m->profile, n_threads), t);
    for (uint32_t i = 0; i < n; i++)
        if (g[i].n_threads == n_threads)
            barrier_s = g[i].barrier_s;
    *out = (ps_cost){t + barrier_s, quality};
    return true;
}

bool ps_cost_lookup_cached(const ps_cost_model *m, ps_cost_cache *cache, const ps_cost_query *q,
                           ps_cost *out) {
    if (!cache)
        return ps_cost_lookup(m, q, out);
    uint64_t kv, h = q->kernel;
    memcpy(&kv, &q->kv_len, sizeof kv);
    const uint64_t parts[] = {
        q->rows, q->cols, kv, q->n_tokens, (uint64_t)q->heads_kv << 32 | q->n_threads, (uint64_t)q->beside};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        h = (h ^ parts[i]) * 0x9e3779b97f4a7c15ull ^ h >> 29;
    uint64_t at = (h ^ h >> 32) % PS_COST_CACHE;
    const ps_cost_query *x = &cache->at[at].query;
    bool same = cache->at[at].used && x->kernel == q->kernel && x->rows == q->rows && x->cols == q->cols &&
                x->heads_kv == q->heads_kv && x->n_tokens == q->n_tokens && x->n_threads == q->n_threads &&
                x->beside == q->beside && memcmp(&x->kv_len, &q->kv_len, sizeof kv) == 0;
    if (!same) {
        cache->at[at].query = *q;
        cache->at[at].used = true;
        cache->at[at].found = ps_cost_lookup(m, q, &cache->at[at].cost);
    }
    if (cache->at[at].found)
        *out = cache->at[at].cost;
    return cache->at[at].found;
}

ps_cost_choice *ps_cost_choice_at(ps_cost_cache *cache, const uint64_t key[PS_COST_CHOICE_WORDS]) {
    uint64_t h = 0;
    for (int i = 0; i < PS_COST_CHOICE_WORDS; i++)
        h = (h ^ key[i]) * 0x9e3779b97f4a7c15ull ^ h >> 29;
    ps_cost_choice *c = &cache->choice[(h ^ h >> 32) % PS_COST_CHOICES];
    if (!c->used || memcmp(c->key, key, sizeof c->key) != 0) {
        memcpy(c->key, key, sizeof c->key);
        c->used = false;
    }
    return c;
}

double ps_cost_dram_bytes_per_s(const ps_cost_model *m, uint32_t n_threads) {
    return fmax(ps_cost_dram_alone(m, n_threads), ps_cost_dram_seen(m, n_threads));
}

static double best_of(const reads *r, uint32_t n_threads) {
    double best = 0;
    for (uint32_t i = 0; i < r->n; i++)
        if (r->at[i].n_threads <= n_threads)
            best = fmax(best, r->at[i].bytes_per_s);
    return best;
}

double ps_cost_dram_seen(const ps_cost_model *m, uint32_t n_threads) {
    return best_of(&m->seen, n_threads);
}

double ps_cost_dram_cold(const ps_cost_model *m, uint32_t n_threads) {
    return best_of(&m->cold, n_threads);
}

double ps_cost_dram_alone(const ps_cost_model *m, uint32_t n_threads) {
    const ps_profile_dram *a = NULL, *b = NULL;
    for (uint32_t i = 0; i < m->profile->n_dram; i++) {
        const ps_profile_dram *d = &m->profile->dram[i];
        if (!(d->bw_bytes_per_s.median > 0))
            continue;
        if (d->n_threads <= n_threads && (!a || d->n_threads > a->n_threads))
            a = d;
        if (d->n_threads > n_threads && (!b || d->n_threads < b->n_threads))
            b = d;
    }
    if (!a && !b)
        return 0;
    if (!a)
        return b->bw_bytes_per_s.median; /* a ceiling: not scaled down */
    if (!b || a->n_threads == n_threads)
        return a->bw_bytes_per_s.median;
    double f = log((double)n_threads / a->n_threads) / log((double)b->n_threads / a->n_threads);
    return exp(log(a->bw_bytes_per_s.median) +
               f * (log(b->bw_bytes_per_s.median) - log(a->bw_bytes_per_s.median)));
}

double ps_cost_matmul_flops_per_s(const ps_cost_model *m, uint32_t n_threads) {
    bool measured = false;
    double best = 0, best_scaled = 0;
    for (uint32_t i = 0; i < m->n_points; i++) {
        const point *p = &m->points[i];
        if (p->op != PS_OP_MATMUL || p->beside != PS_BESIDE_IDLE || p->n_threads == 0)
            continue;
        double rate = 2 * p->dim[DIM_TOKENS] * p->dim[DIM_COLS] * p->dim[DIM_ROWS] / p->time_s;
        double ratio = (double)n_threads / p->n_threads;
        measured |= p->n_threads == n_threads;
        if (ratio <= 1)
            best = fmax(best, rate * ratio);
        best_scaled = fmax(best_scaled, rate * fmax(1, ratio));
    }
    return measured ? best : best_scaled;
}
