/* Matrix products on the CPU against double precision: every type, family and level of this machine,
 * many shapes, row ranges, token counts and kinds of data; results independent of how items are
 * spread; nothing read or written outside the operands (pages without access lie right behind them). */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/matmul.h"

static const ps_kernel kernels[] = {
#define ROW(id_, name_, type, fmt, lo, hi, tol, family)                                                      \
    {.spec = {.id = id_,                                                                                     \
              .name = name_,                                                                                 \
              .op = PS_OP_MATMUL,                                                                            \
              .wtype = PS_DTYPE_##type,                                                                      \
              .in_fmt = PS_FMT_##fmt,                                                                        \
              .out_fmt = PS_FMT_F32,                                                                         \
              .device = PS_DEV_CPU,                                                                          \
              .min_tokens = lo,                                                                              \
              .max_tokens = hi,                                                                              \
              .scratch = PS_MM_SCRATCH_##family},                                                            \
     .tolerance = tol,                                                                                       \
     .n_variants = PS_MM_N_##family,                                                                         \
     .variants = ps_mm_variants_##family},
    PS_CPU_MATMUL_KERNELS(ROW)
#undef ROW
};

static uint64_t rng_state = 88172645463325252ull;
static uint32_t rnd(void) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}
static double uniform(void) {
    return (rnd() + 0.5) / 4294967296.0;
}
static float normal(void) {
    return (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

/* Memory whose last byte is the last one before a page without access. */
typedef struct guarded {
    uint8_t *map, *data;
    size_t map_bytes;
} guarded;

static guarded guarded_new(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    guarded g = {.map_bytes = body + page};
    void *map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect((uint8_t *)map + body, page, PROT_NONE) != 0) {
        perror("mmap");
        exit(1);
    }
    g.map = map;
    g.data = g.map + body - bytes;
    return g;
}
static void guarded_free(guarded *g) {
    munmap(g->map, g->map_bytes);
}

/* Kinds of data. */
#define DATA_LIST(X)                                                                                         \
    X(NORMAL, "normal")                                                                                      \
    X(ZERO, "zero activations")                                                                              \
    X(ONE_HOT, "one element each")                                                                           \
    X(HUGE_X, "huge activations")                                                                            \
    X(TINY, "tiny activations")                                                                              \
    X(WIDE, "wide range of activations")                                                                     \
    X(DENORMAL, "some denormal activations")                                                                 \
    X(SMALL_D, "denormal half scales")                                                                       \
    X(LARGE_D, "largest half scales")                                                                        \
    X(SATURATED, "every integer at its end")                                                                 \
    X(ZERO_W, "zero weights")
typedef enum data_kind {
#define ENUM(name, text) DATA_##name,
    DATA_LIST(ENUM)
#undef ENUM
        DATA_COUNT
} data_kind;
static const char *const data_names[] = {
#define NAME(name, text) text,
    DATA_LIST(NAME)
#undef NAME
};

static void put_half(uint8_t *p, data_kind kind, bool minimum) {
    float v = minimum ? 0.2f * normal() : (float)(0.01 + 0.1 * uniform()) * (rnd() & 1 ? 1.0f : -1.0f);
    uint16_t h = ps_f32_to_f16(v);
    if (kind == DATA_SMALL_D)
        h = (uint16_t)(rnd() % 40 + 1) | (uint16_t)(rnd() & 0x8000);
    else if (kind == DATA_LARGE_D)
        h = (uint16_t)(0x7b00 + rnd() % 256) | (uint16_t)(rnd() & 0x8000);
    memcpy(p, &h, 2);
}

/* Random bytes are valid blocks once the half-precision scales are sane. */
static void fill_weights(ps_dtype type, uint8_t *w, uint64_t n, data_kind kind) {
    const ps_dtype_info *info = ps_dtype_find(type);
    uint64_t blocks = n / info->block_elems;
    for (uint64_t b = 0; b < blocks; b++, w += info->block_bytes) {
        float v = normal() * (kind == DATA_LARGE_D ? 1000.0f : 0.05f);
        uint16_t h = type == PS_DTYPE_BF16 ? ps_f32_to_bf16(v) : ps_f32_to_f16(v);
        if (kind == DATA_ZERO_W) {
            memset(w, 0, info->block_bytes);
            continue;
        }
        if (kind == DATA_SMALL_D && type == PS_DTYPE_F16)
            h &= 0x83ff;
        if (type == PS_DTYPE_F32) {
            memcpy(w, &v, 4);
        } else if (type == PS_DTYPE_F16 || type == PS_DTYPE_BF16) {
            memcpy(w, &h, 2);
        } else {
            int saturated = rnd() & 1 ? 0xff : (type == PS_DTYPE_Q8_0 ? 0x80 : 0);
            for (uint32_t i = 0; i < info->block_bytes; i++)
                w[i] = (uint8_t)(kind == DATA_SATURATED ? (uint32_t)saturated : rnd());
            if (type == PS_DTYPE_Q6_K) {
                put_half(w + 208, kind, false);
                continue;
            }
            put_half(w, kind, false);
            if (type != PS_DTYPE_Q4_0 && type != PS_DTYPE_Q5_0 && type != PS_DTYPE_Q8_0)
                put_half(w + 2, kind, true);
        }
    }
}

static void fill_activations(float *x, uint64_t n, data_kind kind) {
    uint64_t hot = rnd() % n;
    for (uint64_t i = 0; i < n; i++) {
        float v = normal();
        switch (kind) {
        case DATA_ZERO:
            v = 0;
            break;
        case DATA_ONE_HOT:
            v = i == hot ? v : 0.0f;
            break;
        case DATA_HUGE_X:
            v *= 1e20f;
            break;
        case DATA_TINY:
            v *= 1e-20f;
            break;
        case DATA_WIDE:
            v *= expf(4.0f * normal());
            break;
        case DATA_DENORMAL:
            if (rnd() & 1)
                v *= 1e-40f;
            break;
        case DATA_SATURATED:
            v = rnd() % 8 ? 1.0f : -1.0f;
            break;
        default:
            break;
        }
        x[i] = v;
    }
}

/* As the Q8 format says; x is replaced by what the row stands for. */
static void quantise(float *x, uint8_t *row, uint64_t n) {
    for (uint64_t g = 0; g < n / 32; g++) {
        float top = 0, d, s;
        int32_t sum = 0;
        for (int i = 0; i < 32; i++)
            top = fmaxf(top, fabsf(x[g * 32 + (uint64_t)i]));
        d = top / 127.0f;
        for (uint64_t i = g * 32; i < g * 32 + 32; i++) {
            int q = d > 0 ? (int)lrintf(fminf(fmaxf(x[i] / d, -127.0f), 127.0f)) : 0;
            ((int8_t *)row)[i] = (int8_t)q;
            sum += q;
            x[i] = (float)q; /* times d, in double, below */
        }
        s = d * (float)sum;
        memcpy(row + ps_q8_d_offset(n) + g * 4, &d, 4);
        memcpy(row + ps_q8_s_offset(n) + g * 4, &s, 4);
    }
}

static double activation(const ps_kargs *a, const float *x, uint64_t t, uint64_t i) {
    if (a->src[0].fmt != PS_FMT_Q8)
        return x[t * a->src[0].cols + i];
    float d;
    memcpy(&d,
           (const uint8_t *)a->src[0].data + t * a->src[0].row_bytes + ps_q8_d_offset(a->src[0].cols) +
               i / 32 * 4,
           4);
    return (double)x[t * a->src[0].cols + i] * d;
}

typedef struct shape {
    uint64_t cols, rows, row0, n_rows;
    uint32_t n_tokens;
    bool bias, residual, in_place;
    data_kind kind;
    uint64_t before,
        behind; /* the weights are these columns of a wider matrix, with so many at their sides */
} shape;

/* Items of every phase handed out forwards in one go (step 0), or backwards in pieces of `step`. */
static void execute(const ps_cpu_variant *v, ps_kargs *a, uint32_t n_threads, uint64_t step) {
    a->n_threads = n_threads;
    for (uint32_t phase = 0; phase < v->n_phases; phase++) {
        uint64_t n = v->n_items(a, phase);
        if (step == 0) {
            if (n)
                v->run(a, phase, 0, n, 0);
            continue;
        }
        uint32_t thread = 0;
        for (uint64_t end = n; end > 0;) {
            uint64_t k = end < step ? end : step;
            v->run(a, phase, end - k, k, thread++ % n_threads);
            end -= k;
        }
    }
}

static int check(const ps_kernel *kernel, const shape *s, bool verbose) {
    const ps_kernel_spec *spec = &kernel->spec;
    uint64_t w_row, w_before, w_behind, bad = 0;
    if (!ps_dtype_bytes(spec->wtype, s->before + s->cols + s->behind, &w_row) ||
        !ps_dtype_bytes(spec->wtype, s->before, &w_before) ||
        !ps_dtype_bytes(spec->wtype, s->behind, &w_behind))
        return 1;
    uint64_t x_row = ps_fmt_row_bytes(spec->in_fmt, s->cols), y_row = ps_fmt_row_bytes(PS_FMT_F32, s->rows);
    enum { MAX_THREADS = 5 };
    uint64_t longest = s->cols > s->rows ? s->cols : s->rows;
    uint64_t scratch_bytes = ps_scratch_bytes(&spec->scratch, s->n_tokens, longest, MAX_THREADS, 0);
    guarded w = guarded_new(w_row * s->rows - w_behind), x = guarded_new(x_row * s->n_tokens);
    guarded y = guarded_new(y_row * s->n_tokens), res = guarded_new(y_row * s->n_tokens);
    guarded bias = guarded_new(s->rows * 4), scratch = guarded_new(scratch_bytes);
    float *plain = malloc(s->cols * s->n_tokens * sizeof *plain);
    float *wf = malloc(s->cols * sizeof *wf);
    double *ref = malloc(s->n_rows * s->n_tokens * sizeof *ref);
    float *first = malloc(s->n_rows * s->n_tokens * sizeof *first);
    if (!plain || !wf || !ref || !first)
        exit(1);
    fill_weights(spec->wtype, w.data, (s->before + s->cols + s->behind) * s->rows - s->behind, s->kind);
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        float *row = plain + t * s->cols;
        fill_activations(row, s->cols, s->kind);
        if (spec->in_fmt == PS_FMT_Q8)
            quantise(row, x.data + t * x_row, s->cols);
        else
            memcpy(x.data + t * x_row, row, s->cols * 4);
    }
    float unit = s->kind == DATA_HUGE_X ? 1e19f : s->kind == DATA_TINY ? 1e-21f : 1.0f;
    for (uint64_t i = 0; i < s->rows; i++) {
        float b = s->kind == DATA_SMALL_D || s->kind == DATA_ZERO ? 0.0f : unit * normal();
        memcpy(bias.data + i * 4, &b, 4);
    }
    for (uint32_t t = 0; t < s->n_tokens; t++)
        for (uint64_t i = 0; i < s->rows; i++) {
            float v = s->kind == DATA_SMALL_D || s->kind == DATA_ZERO ? 0.0f : unit * normal();
            memcpy(res.data + t * y_row + i * 4, &v, 4);
        }
    ps_kargs a = {
        .n_tokens = s->n_tokens,
        .row0 = s->row0,
        .n_rows = s->n_rows,
        .w = {{.data = w.data + w_before,
               .type = spec->wtype,
               .cols = s->cols,
               .rows = s->rows,
               .experts = 1,
               .row_bytes = w_row}},
        .src = {{.data = x.data, .fmt = spec->in_fmt, .cols = s->cols, .row_bytes = x_row}},
        .dst = {.data = y.data, .fmt = PS_FMT_F32, .cols = s->rows, .row_bytes = y_row},
        .scratch = scratch.data,
    };
    if (s->bias)
        a.w[1] = (ps_warg){.data = bias.data,
                           .type = PS_DTYPE_F32,
                           .cols = s->rows,
                           .rows = 1,
                           .experts = 1,
                           .row_bytes = s->rows * 4};
    if (s->residual)
        a.src[1] = (ps_xarg){
            .data = s->in_place ? y.data : res.data, .fmt = PS_FMT_F32, .cols = s->rows, .row_bytes = y_row};

    double ref_norm = 0;
    for (uint64_t r = 0; r < s->n_rows; r++) {
        ps_dequantize_row(spec->wtype, a.w[0].data + (s->row0 + r) * w_row, wf, s->cols);
        for (uint32_t t = 0; t < s->n_tokens; t++) {
            double sum = 0, spread = 0;
            float b = 0, v = 0;
            for (uint64_t i = 0; i < s->cols; i++) {
                double term = wf[i] * activation(&a, plain, t, i);
                sum += term;
                spread += term * term;
            }
            if (s->bias)
                memcpy(&b, bias.data + (s->row0 + r) * 4, 4);
            if (s->residual)
                memcpy(&v, res.data + t * y_row + (s->row0 + r) * 4, 4);
            ref[t * s->n_rows + r] = sum + b + v;
            /* Where terms happen to cancel, errors are held against what their sum is on average. */
            ref_norm += fmax((sum + b + v) * (sum + b + v), spread);
        }
    }
    ps_cpu_level best = ps_cpu_level_detect();
    for (uint32_t i = 0; i < kernel->n_variants && kernel->variants[i].level <= best; i++) {
        const ps_cpu_variant *v = &kernel->variants[i];
        static const uint32_t spread[][2] = {{1, 0}, {MAX_THREADS, 1}, {2, 3}}; /* threads, step */
        double err_norm = 0;
        bool moved = false, outside = false;
        for (uint32_t pass = 0; pass < sizeof spread / sizeof *spread; pass++) {
            memset(y.data, 0x7f, y_row * s->n_tokens);
            if (s->in_place)
                for (uint32_t t = 0; t < s->n_tokens; t++)
                    memcpy(y.data + t * y_row + s->row0 * 4, res.data + t * y_row + s->row0 * 4,
                           s->n_rows * 4);
            memset(scratch.data, 0xff, scratch_bytes);
            execute(v, &a, spread[pass][0], spread[pass][1]);
            for (uint32_t t = 0; t < s->n_tokens; t++) {
                const uint8_t *row = y.data + t * y_row;
                for (uint64_t b = 0; b < y_row; b++)
                    if ((b < s->row0 * 4 || b >= (s->row0 + s->n_rows) * 4) && row[b] != 0x7f)
                        outside = true;
                const float *got = (const float *)(const void *)row + s->row0;
                float *keep = first + t * s->n_rows;
                if (pass == 0) {
                    memcpy(keep, got, s->n_rows * 4);
                    for (uint64_t r = 0; r < s->n_rows; r++) {
                        double e = got[r] - ref[t * s->n_rows + r];
                        err_norm += e * e;
                    }
                } else if (memcmp(keep, got, s->n_rows * 4) != 0) {
                    moved = true;
                }
            }
        }
        double err = ref_norm > 0 ? sqrt(err_norm / ref_norm) : sqrt(err_norm);
        /* Below these levels nothing is rounded to bfloat16. */
        double limit = v->level < PS_CPU_AVX512BF16 ? 1e-5 : (double)kernel->tolerance;
        if (!(err <= limit) || moved || outside) {
            printf(
                "FAIL %s %s: cols %llu rows %llu+%llu of %llu tokens %u bias %d residual %d, %s: error %.3g"
                " limit %.3g%s%s\n",
                spec->name, ps_cpu_level_name(v->level), (unsigned long long)s->cols,
                (unsigned long long)s->row0, (unsigned long long)s->n_rows, (unsigned long long)s->rows,
                s->n_tokens, s->bias, s->residual + s->in_place, data_names[s->kind], err, limit,
                moved ? ", depends on how items are spread" : "", outside ? ", wrote outside" : "");
            bad++;
        }
        if (verbose && s->kind == DATA_NORMAL)
            printf("%-22s %-8s cols %4llu tokens %3u: %.2e\n", spec->name, ps_cpu_level_name(v->level),
                   (unsigned long long)s->cols, s->n_tokens, err);
    }
    free(first);
    free(ref);
    free(wf);
    free(plain);
    guarded *all[] = {&w, &x, &y, &res, &bias, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        guarded_free(all[i]);
    return bad != 0;
}

/* Columns [col0, col0 + n) of a row of activations as a row of their own. */
static void slice(ps_fmt fmt, const uint8_t *in, uint64_t cols, uint64_t col0, uint64_t n, uint8_t *out) {
    if (fmt != PS_FMT_Q8) {
        memcpy(out, in + col0 * 4, n * 4);
        return;
    }
    memcpy(out, in + col0, n);
    memcpy(out + ps_q8_d_offset(n), in + ps_q8_d_offset(cols) + col0 / 32 * 4, n / 32 * 4);
    memcpy(out + ps_q8_s_offset(n), in + ps_q8_s_offset(cols) + col0 / 32 * 4, n / 32 * 4);
}

/* The whole inner dimension is the sum of its ranges, each added to the sum of those before it; the bias is in the
 * first. */
static int check_ranges(const ps_kernel *kernel, uint32_t n_tokens) {
    enum { COLS = 1280, ROWS = 53, RANGES = 3 };
    static const uint64_t ends[RANGES + 1] = {0, 256, 1024, COLS};
    const ps_kernel_spec *spec = &kernel->spec;
    const uint64_t x_row = ps_fmt_row_bytes(spec->in_fmt, COLS), y_row = ps_fmt_row_bytes(PS_FMT_F32, ROWS);
    const uint64_t scratch_bytes = ps_scratch_bytes(&spec->scratch, n_tokens, COLS, 1, 0);
    uint64_t w_row, before;
    int bad = 0;
    if (!ps_dtype_bytes(spec->wtype, COLS, &w_row))
        return 1;
    guarded w = guarded_new(w_row * ROWS), x = guarded_new(x_row * n_tokens),
            part = guarded_new(x_row * n_tokens);
    guarded y = guarded_new(y_row * n_tokens), sum = guarded_new(y_row * n_tokens);
    guarded bias = guarded_new(ROWS * 4), scratch = guarded_new(scratch_bytes);
    float plain[COLS];
    fill_weights(spec->wtype, w.data, COLS * ROWS, DATA_NORMAL);
    for (uint64_t i = 0; i < ROWS; i++) {
        const float b = normal();
        memcpy(bias.data + i * 4, &b, 4);
    }
    for (uint32_t t = 0; t < n_tokens; t++) {
        fill_activations(plain, COLS, DATA_NORMAL);
        if (spec->in_fmt == PS_FMT_Q8)
            quantise(plain, x.data + t * x_row, COLS);
        else
            memcpy(x.data + t * x_row, plain, sizeof plain);
    }
    const ps_kargs whole = {
        .n_tokens = n_tokens,
        .n_rows = ROWS,
        .w = {{.data = w.data,
               .type = spec->wtype,
               .cols = COLS,
               .rows = ROWS,
               .experts = 1,
               .row_bytes = w_row},
              {.data = bias.data,
               .type = PS_DTYPE_F32,
               .cols = ROWS,
               .rows = 1,
               .experts = 1,
               .row_bytes = ROWS * 4}},
        .src = {{.data = x.data, .fmt = spec->in_fmt, .cols = COLS, .row_bytes = x_row}},
        .dst = {.data = y.data, .fmt = PS_FMT_F32, .cols = ROWS, .row_bytes = y_row},
        .scratch = scratch.data,
        .n_threads = 1,
    };
    for (uint32_t i = 0; i < kernel->n_variants && kernel->variants[i].level <= ps_cpu_level_detect(); i++) {
        const ps_cpu_level level = kernel->variants[i].level;
        ps_kernel_run_serial(kernel, level, &whole);
        for (uint32_t k = 0; k < RANGES; k++) {
            ps_kargs a = whole;
            const uint64_t n = ends[k + 1] - ends[k];
            if (!ps_dtype_bytes(spec->wtype, ends[k], &before))
                return 1;
            a.w[0].data = w.data + before;
            a.w[0].cols = n;
            a.src[0] = (ps_xarg){.data = part.data,
                                 .fmt = spec->in_fmt,
                                 .cols = n,
                                 .row_bytes = ps_fmt_row_bytes(spec->in_fmt, n)};
            for (uint32_t t = 0; t < n_tokens; t++)
                slice(spec->in_fmt, x.data + t * x_row, COLS, ends[k], n, part.data + t * a.src[0].row_bytes);
            a.dst.data = sum.data;
            if (k > 0) {
                a.w[1].data = NULL;
                a.src[1] = a.dst;
            }
            ps_kernel_run_serial(kernel, level, &a);
        }
        double diff = 0, norm = 0;
        for (uint32_t t = 0; t < n_tokens; t++)
            for (uint32_t r = 0; r < ROWS; r++) {
                float u, v;
                memcpy(&u, y.data + t * y_row + r * 4, 4);
                memcpy(&v, sum.data + t * y_row + r * 4, 4);
                diff += ((double)u - v) * ((double)u - v);
                norm += (double)u * u;
            }
        if (!(sqrt(diff / norm) <= 1e-5)) {
            printf("FAIL %s %s: sum of ranges of columns, tokens %u: error %.3g\n", spec->name,
                   ps_cpu_level_name(level), n_tokens, sqrt(diff / norm));
            bad = 1;
        }
    }
    guarded *all[] = {&w, &x, &part, &y, &sum, &bias, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        guarded_free(all[i]);
    return bad;
}

int main(int argc, char **argv) {
    bool verbose = argc > 1 && strcmp(argv[1], "-v") == 0;
    static const uint32_t tokens[] = {1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 130};
    static const uint64_t cols32[] = {32, 96, 544, 576, 1056, 1536}, cols256[] = {256, 512, 768, 1280, 2048};
    static const uint64_t cols1[] = {1, 7, 31, 33, 100, 576, 1030};
    static const struct {
        uint64_t rows, row0, n_rows;
    } ranges[] = {{70, 0, 70}, {70, 3, 37}, {1, 0, 1}, {64, 32, 32}, {53, 16, 33}, {100, 99, 1}, {9, 1, 6}};
    int failures = 0, checks = 0;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        const ps_kernel *kernel = &kernels[k];
        uint32_t block = ps_dtype_find(kernel->spec.wtype)->block_elems;
        const uint64_t *cols = block == 256 ? cols256 : block == 32 ? cols32 : cols1;
        size_t n_cols = block == 256  ? sizeof cols256 / 8
                        : block == 32 ? sizeof cols32 / 8
                                      : sizeof cols1 / 8;
        uint32_t n = 0; /* walks shapes, ranges and options past each other */
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
            for (uint32_t rep = 0; rep < 3; rep++, n++) {
                shape s = {.cols = cols[n % n_cols],
                           .n_tokens = tokens[t],
                           .bias = n & 1,
                           .residual = n & 2,
                           .in_place = (n & 6) == 6};
                if (rep == 2) {
                    s.before = block * (n % 3);
                    s.behind = block * (1 + n % 5);
                }
                size_t r = n % (sizeof ranges / sizeof *ranges);
                s.rows = ranges[r].rows, s.row0 = ranges[r].row0, s.n_rows = ranges[r].n_rows;
                failures += check(kernel, &s, verbose);
                checks++;
            }
        for (uint32_t kind = 1; kind < DATA_COUNT; kind++, n++) {
            shape s = {.cols = cols[n % n_cols],
                       .n_tokens = n & 1 ? 18 : 3,
                       .rows = 40,
                       .n_rows = 40,
                       .bias = n & 1,
                       .residual = n & 2,
                       .kind = (data_kind)kind};
            failures += check(kernel, &s, verbose);
            checks++;
        }
        shape prompt = {.cols = block == 256 ? 768 : 576, .n_tokens = 512, .rows = 48, .n_rows = 48};
        failures += check(kernel, &prompt, verbose);
        checks++;
        failures += check_ranges(kernel, 1) + check_ranges(kernel, 5) + check_ranges(kernel, 70);
        checks += 3;
        shape none = {.cols = 256, .n_tokens = 4, .rows = 8, .n_rows = 0};
        failures += check(kernel, &none, verbose);
        checks++;
    }
    printf("matmul: %d checks up to level %s, %d failed\n", checks, ps_cpu_level_name(ps_cpu_level_detect()),
           failures);
    return failures ? 1 : 0;
}
