/* Random weights, made directly as packed blocks at the speed of the generator.
 *
 * A block is random quants beside a head (scales, offsets) drawn from a table of N_HEADS ready-made ones. Heads have
 * both signs and offsets sit in the middle of the range, so elements have mean 0 and the wanted standard deviation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pssynth.h"

enum { N_VALUES = 4096, N_HEADS = 256, MAX_HEAD = 18, MAX_BLOCK = 256 };

/* Layout of a quantised block: where the quants and the head lie, the mean square of an element in units of
 * d (without the block's own factor), and where the middle of the range is. */
typedef struct block_layout {
    ps_dtype type;
    uint16_t quants_at, quants_bytes, head_at, head_bytes;
    float mean_square, middle;
} block_layout;

/* Mean of sc^2 for sc uniform in 32..63. */
#define SC_SQUARE 2341.5f

static const block_layout layouts[] = {
    {PS_DTYPE_Q4_0, 2, 16, 0, 2, 21.5f, 0},
    {PS_DTYPE_Q4_1, 4, 16, 0, 4, 21.25f, 7.5f},
    {PS_DTYPE_Q5_0, 2, 20, 0, 2, 85.5f, 0},
    {PS_DTYPE_Q5_1, 4, 20, 0, 4, 85.25f, 15.5f},
    {PS_DTYPE_Q8_0, 2, 32, 0, 2, 5461.5f, 0},
    {PS_DTYPE_Q4_K, 16, 128, 0, 16, 21.25f * SC_SQUARE, 7.5f},
    {PS_DTYPE_Q5_K, 16, 160, 0, 16, 85.25f * SC_SQUARE, 15.5f},
    {PS_DTYPE_Q6_K, 0, 192, 192, 18, 341.5f * SC_SQUARE, 0},
};

struct synth_stream {
    uint64_t state[4]; /* xoshiro256++ (Blackman, Vigna) */
    synth_fill fill;
    ps_dtype type;
    const block_layout *layout; /* NULL: values */
    uint32_t value_bytes;
    uint64_t n_done, n; /* elements of FREQS */
    uint8_t values[N_VALUES][4];
    uint8_t heads[N_HEADS][MAX_HEAD];
};

static uint64_t rotl(uint64_t x, int k) {
    return x << k | x >> (64 - k);
}

static uint64_t next(uint64_t s[4]) {
    uint64_t result = rotl(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

/* splitmix64: spreads (seed, index) over the state. */
static uint64_t spread(uint64_t *x) {
    uint64_t z = *x += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float unit(uint64_t s[4]) {
    return (float)(next(s) >> 40) * 0x1p-24f;
}

static void put_half(uint8_t *p, float v) {
    uint16_t h = ps_f32_to_f16(v);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* Table of values: bell-shaped (twelve uniforms) about `mean`, each with its mirror image. */
static void make_values(synth_stream *s, float mean, float sigma) {
    for (int i = 0; i < N_VALUES / 2; i++) {
        float bell = -6.0f;
        for (int k = 0; k < 12; k++)
            bell += unit(s->state);
        float v = mean + sigma * bell;
        ps_quantize_row(s->type, &v, s->values[i], 1);
        v = mean - sigma * bell;
        ps_quantize_row(s->type, &v, s->values[i + N_VALUES / 2], 1);
    }
}

/* Eight scales of 6 bits in 32..63, the mins equal to them, in the packing of Q4_K and Q5_K. */
static void make_k_scales(synth_stream *s, uint8_t *p) {
    uint64_t r = next(s->state);
    unsigned sc[8];
    for (int g = 0; g < 8; g++)
        sc[g] = 32 | (unsigned)(r >> (5 * g) & 31);
    for (int j = 0; j < 4; j++) {
        p[j] = p[j + 4] = (uint8_t)(sc[j] | sc[j + 4] >> 4 << 6);
        p[j + 8] = (uint8_t)((sc[j + 4] & 15) * 17);
    }
}

static void make_heads(synth_stream *s, float sigma) {
    const block_layout *l = s->layout;
    /* d varies by a factor of 0.75 to 1.25, whose mean square is 1 + 1/48. */
    float d0 = sigma / sqrtf(l->mean_square * (1.0f + 1.0f / 48.0f));
    for (int i = 0; i < N_HEADS; i++) {
        uint8_t *head = s->heads[i];
        float d = d0 * (0.75f + 0.5f * unit(s->state));
        if (i % 2 != 0)
            d = -d;
        if (l->type == PS_DTYPE_Q6_K) {
            for (int g = 0; g < 16; g++) {
                int sc = 32 + (int)(next(s->state) & 31);
                head[g] = (uint8_t)(next(s->state) & 1 ? sc : -sc);
            }
            put_half(head + 16, d);
            continue;
        }
        put_half(head, d);
        if (l->type == PS_DTYPE_Q4_K || l->type == PS_DTYPE_Q5_K) {
            put_half(head + 2, d * l->middle);
            make_k_scales(s, head + 4);
        } else if (l->middle != 0) {
            put_half(head + 2, -d * l->middle);
        }
    }
}

synth_stream *synth_stream_new(const synth_tensor *tensor, uint64_t seed, uint64_t index) {
    synth_stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    uint64_t x = seed;
    x = spread(&x) + index;
    for (int i = 0; i < 4; i++)
        s->state[i] = spread(&x);
    s->fill = tensor->fill;
    s->type = tensor->type;
    s->n = tensor->dims[0];
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i].type == tensor->type)
            s->layout = &layouts[i];
    if (s->layout != NULL) {
        make_heads(s, tensor->scale);
    } else {
        s->value_bytes = ps_dtype_find((uint32_t)tensor->type)->block_bytes;
        if (s->fill == SYNTH_ONES)
            make_values(s, tensor->scale, 0.05f * tensor->scale);
        else
            make_values(s, 0, s->fill == SYNTH_MATRIX ? tensor->scale : 0.1f);
    }
    return s;
}

void synth_stream_free(synth_stream *s) {
    free(s);
}

static void fill_blocks(synth_stream *s, uint8_t *dst, uint64_t n_blocks, uint64_t block_bytes) {
    const block_layout *l = s->layout;
    uint64_t state[4];
    memcpy(state, s->state, sizeof state);
    for (uint64_t b = 0; b < n_blocks; b++, dst += block_bytes) {
        uint8_t *q = dst + l->quants_at;
        unsigned i = 0;
        for (; i + 8 <= l->quants_bytes; i += 8) {
            uint64_t r = next(state);
            memcpy(q + i, &r, 8);
        }
        uint64_t r = next(state);
        memcpy(q + i, &r, l->quants_bytes - i);
        memcpy(dst + l->head_at, s->heads[r >> 56], l->head_bytes);
        /* -128 has no counterpart and no quantiser makes it. */
        if (l->type == PS_DTYPE_Q8_0)
            for (i = 0; i < 32; i++)
                q[i] = (uint8_t)(q[i] + (q[i] == 0x80));
    }
    memcpy(s->state, state, sizeof state);
}

static void fill_values(synth_stream *s, uint8_t *dst, uint64_t n) {
    uint32_t bytes = s->value_bytes;
    uint64_t i = 0;
    while (i < n) {
        uint64_t r = next(s->state);
        for (int k = 0; k < 5 && i < n; k++, i++, r >>= 12)
            memcpy(dst + i * bytes, s->values[r & (N_VALUES - 1)], bytes == 2 ? 2 : 4);
    }
}

/* Divisors of the rope frequencies as Llama 3.1 has them (factor 8, wavelengths between 8192/4 and 8192). */
static float freq_divisor(uint64_t i, uint64_t half) {
    double freq = pow(500000.0, -(double)i / (double)half);
    double wavelength = 6.283185307179586 / freq;
    if (wavelength < 8192.0 / 4)
        return 1.0f;
    if (wavelength > 8192.0)
        return 8.0f;
    double smooth = (8192.0 / wavelength - 1) / (4 - 1);
    return (float)(1 / ((1 - smooth) / 8 + smooth));
}

void synth_stream_next(synth_stream *s, uint8_t *dst, uint64_t bytes) {
    if (s->layout != NULL) {
        uint64_t block = ps_dtype_find((uint32_t)s->type)->block_bytes;
        fill_blocks(s, dst, bytes / block, block);
    } else if (s->fill == SYNTH_FREQS) {
        for (uint64_t i = 0; i < bytes / 4; i++, s->n_done++) {
            float v = freq_divisor(s->n_done, s->n);
            memcpy(dst + 4 * i, &v, 4);
        }
    } else {
        fill_values(s, dst, bytes / s->value_bytes);
    }
}
