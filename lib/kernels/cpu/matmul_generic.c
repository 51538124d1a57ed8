/* Matrix products in plain C: every processor, and what the vector levels are read against. */
#include "kernels/cpu/matmul_int.h"

enum { GROUP = PS_Q8_GROUP };

/* Group g (32 weights) of the row at w as integers q and factors: weight[i] = d[i / 16] * q[i] + m. */
typedef struct group {
    int8_t q[GROUP];
    float d[2], m;
} group;

static inline void nibbles(const uint8_t *p, int8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)(p[i] & 15);
        q[i + 16] = (int8_t)(p[i] >> 4);
    }
}

static inline void fifth_bits(const uint8_t *p, int8_t *q) {
    uint32_t h = mm_load_u32(p);
    for (int i = 0; i < GROUP; i++)
        q[i] = (int8_t)(q[i] | (int8_t)((h >> i & 1u) << 4));
}

static inline void shift_down(int8_t *q, int by) {
    for (int i = 0; i < GROUP; i++)
        q[i] = (int8_t)(q[i] - by);
}

/* type is a constant at every call, so that one branch is left of the switch. */
static inline __attribute__((always_inline)) void load_group(ps_dtype type, const uint8_t *w, uint64_t g,
                                                             group *out) {
    const uint8_t *b = w + (mm_is_super(type) ? g / 8 : g) * mm_block_bytes(type);
    uint32_t j = (uint32_t)(g % 8);
    float d = 0;
    out->m = 0;
    switch (type) {
    case PS_DTYPE_Q4_0:
        d = ps_f16_to_f32(mm_load_u16(b));
        nibbles(b + 2, out->q);
        shift_down(out->q, 8);
        break;
    case PS_DTYPE_Q4_1:
        d = ps_f16_to_f32(mm_load_u16(b));
        out->m = ps_f16_to_f32(mm_load_u16(b + 2));
        nibbles(b + 4, out->q);
        break;
    case PS_DTYPE_Q5_0:
        d = ps_f16_to_f32(mm_load_u16(b));
        nibbles(b + 6, out->q);
        fifth_bits(b + 2, out->q);
        shift_down(out->q, 16);
        break;
    case PS_DTYPE_Q5_1:
        d = ps_f16_to_f32(mm_load_u16(b));
        out->m = ps_f16_to_f32(mm_load_u16(b + 2));
        nibbles(b + 8, out->q);
        fifth_bits(b + 4, out->q);
        break;
    case PS_DTYPE_Q8_0:
        d = ps_f16_to_f32(mm_load_u16(b));
        memcpy(out->q, b + 2, GROUP);
        break;
    case PS_DTYPE_Q4_K:
    case PS_DTYPE_Q5_K: {
        uint32_t sm[4];
        mm_unpack_k_scales(b + 4, sm);
        d = ps_f16_to_f32(mm_load_u16(b)) * (float)(sm[j / 4] >> 8 * (j % 4) & 255);
        out->m = -(ps_f16_to_f32(mm_load_u16(b + 2)) * (float)(sm[2 + j / 4] >> 8 * (j % 4) & 255));
        const uint8_t *ql = b + (type == PS_DTYPE_Q4_K ? 16 : 48) + j / 2 * GROUP;
        for (int i = 0; i < GROUP; i++)
            out->q[i] = (int8_t)(ql[i] >> 4 * (j & 1) & 15);
        if (type == PS_DTYPE_Q5_K)
            for (int i = 0; i < GROUP; i++)
                out->q[i] = (int8_t)(out->q[i] | (int8_t)((b[16 + i] >> j & 1) << 4));
        break;
    }
    case PS_DTYPE_Q6_K: {
        const uint8_t *ql = b + j / 4 * 64 + (j & 1) * GROUP, *qh = b + 128 + j / 4 * GROUP;
        const int8_t *sc = (const int8_t *)b + 192 + 2 * j;
        for (int i = 0; i < GROUP; i++)
            out->q[i] = (int8_t)((ql[i] >> 2 * (j & 2) & 15) | ((qh[i] >> 2 * (j & 3) & 3) << 4));
        shift_down(out->q, 32);
        d = ps_f16_to_f32(mm_load_u16(b + 208));
        out->d[0] = d * (float)sc[0];
        out->d[1] = d * (float)sc[1];
        return;
    }
    default:
        break;
    }
    out->d[0] = out->d[1] = d;
}

static inline __attribute__((always_inline)) void dot_q8(ps_dtype type, const uint8_t *w, uint64_t row_bytes,
                                                         uint64_t cols, uint32_t nr, uint64_t ahead,
                                                         const uint8_t *x, uint64_t x_bytes, uint32_t nt,
                                                         float *out) {
    (void)ahead;
    for (uint32_t r = 0; r < nr; r++, w += row_bytes) {
        for (uint32_t t = 0; t < nt; t++)
            out[t * MM_NR + r] = 0;
        for (uint64_t g = 0; g < cols / GROUP; g++) {
            group wg;
            load_group(type, w, g, &wg);
            for (uint32_t t = 0; t < nt; t++) {
                const uint8_t *row = x + t * x_bytes;
                const int8_t *q = (const int8_t *)row + g * GROUP;
                float d = ((const float *)(const void *)(row + ps_q8_d_offset(cols)))[g];
                float s = ((const float *)(const void *)(row + ps_q8_s_offset(cols)))[g];
                int32_t lo = 0, hi = 0;
                for (int i = 0; i < 16; i++) {
                    lo += wg.q[i] * q[i];
                    hi += wg.q[i + 16] * q[i + 16];
                }
                float sum = wg.d[0] * (float)lo + wg.d[1] * (float)hi;
                out[t * MM_NR + r] += sum * d + wg.m * s;
            }
        }
    }
}

static inline __attribute__((always_inline)) void dequant(ps_dtype type, const uint8_t *w, float *dst,
                                                          uint64_t n) {
    for (uint64_t g = 0; g < n / GROUP; g++, dst += GROUP) {
        group wg;
        load_group(type, w, g, &wg);
        for (int i = 0; i < GROUP; i++)
            dst[i] = wg.d[i / 16] * (float)wg.q[i] + wg.m;
    }
}

#define DEFINE_QUANT(name)                                                                                   \
    static void dot_q8_##name(const uint8_t *w, uint64_t row_bytes, uint64_t cols, uint32_t nr,              \
                              uint64_t ahead, const uint8_t *x, uint64_t x_bytes, uint32_t nt, float *out) { \
        dot_q8(PS_DTYPE_##name, w, row_bytes, cols, nr, ahead, x, x_bytes, nt, out);                         \
    }                                                                                                        \
    static void dequant_##name(const uint8_t *w, float *dst, uint64_t n) {                                   \
        dequant(PS_DTYPE_##name, w, dst, n);                                                                 \
    }
MM_QUANT_LIST(DEFINE_QUANT)

static inline __attribute__((always_inline)) float load_float(ps_dtype type, const uint8_t *w, uint64_t i) {
    if (type == PS_DTYPE_F16)
        return ps_f16_to_f32(mm_load_u16(w + i * 2));
    if (type == PS_DTYPE_BF16)
        return ps_bf16_to_f32(mm_load_u16(w + i * 2));
    float v;
    memcpy(&v, w + i * 4, sizeof v);
    return v;
}

/* Eight running sums, so that rounding grows with cols / 8 and compilers can use vectors. */
static inline __attribute__((always_inline)) void dot_float(ps_dtype type, const uint8_t *w,
                                                            uint64_t row_bytes, uint64_t cols, uint32_t nr,
                                                            uint64_t ahead, const uint8_t *x,
                                                            uint64_t x_bytes, uint32_t nt, float *out) {
    (void)ahead;
    for (uint32_t r = 0; r < nr; r++, w += row_bytes)
        for (uint32_t t = 0; t < nt; t++) {
            const float *row = (const float *)(const void *)(x + t * x_bytes);
            float sum[8] = {0};
            uint64_t i = 0;
            for (; i + 8 <= cols; i += 8)
                for (uint32_t j = 0; j < 8; j++)
                    sum[j] += load_float(type, w, i + j) * row[i + j];
            for (; i < cols; i++)
                sum[i % 8] += load_float(type, w, i) * row[i];
            out[t * MM_NR + r] =
                ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
        }
}

#define DEFINE_FLOAT(name)                                                                                   \
    static void dot_float_##name(const uint8_t *w, uint64_t row_bytes, uint64_t cols, uint32_t nr,           \
                                 uint64_t ahead, const uint8_t *x, uint64_t x_bytes, uint32_t nt,            \
                                 float *out) {                                                               \
        dot_float(PS_DTYPE_##name, w, row_bytes, cols, nr, ahead, x, x_bytes, nt, out);                      \
    }                                                                                                        \
    static void dequant_##name(const uint8_t *w, float *dst, uint64_t n) {                                   \
        for (uint64_t i = 0; i < n; i++)                                                                     \
            dst[i] = load_float(PS_DTYPE_##name, w, i);                                                      \
    }
MM_FLOAT_LIST(DEFINE_FLOAT)

/* 8 rows by 4 tokens: sums that compilers keep in vectors. */
enum { TILE_ROWS = 8, TILE_TOKENS = 4 };

static void turn(const float *rows, uint64_t ld, uint64_t n, float *panel) {
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t r = 0; r < TILE_ROWS; r++)
            panel[i * TILE_ROWS + r] = rows[r * ld + i];
}

static void tile(const float *panel, uint64_t n, const uint8_t *x, uint64_t x_bytes, uint32_t nt,
                 float *out) {
    for (uint32_t t = 0; t < nt; t++, x += x_bytes, out += TILE_ROWS) {
        const float *row = (const float *)(const void *)x;
        float sum[TILE_ROWS] = {0};
        for (uint64_t i = 0; i < n; i++)
            for (uint32_t r = 0; r < TILE_ROWS; r++)
                sum[r] += panel[i * TILE_ROWS + r] * row[i];
        memcpy(out, sum, sizeof sum);
    }
}

const mm_ops ps_mm_ops_generic = {
    .tile_rows = TILE_ROWS,
    .tile_tokens = TILE_TOKENS,
    .tile = tile,
    .turn = turn,
#define ROW(name) [PS_DTYPE_##name] = dot_q8_##name,
    .dot_q8 = {MM_QUANT_LIST(ROW)},
#undef ROW
#define ROW(name) [PS_DTYPE_##name] = dot_float_##name,
    .dot_float = {MM_FLOAT_LIST(ROW)},
#undef ROW
#define ROW(name) [PS_DTYPE_##name] = dequant_##name,
    .dequant = {MM_QUANT_LIST(ROW) MM_FLOAT_LIST(ROW)},
#undef ROW
};
