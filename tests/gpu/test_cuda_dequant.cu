/* Weights as halves (lib/kernels/cuda/dequant.cuh) against ps_dequantize_row, on the host: every type, every place that a
 * load may have in its slot, pieces and columns. Needs no GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "kernels/cuda/dequant.cuh"
#include "model/dtype.h"

static int n_failed;

static float uniform() {
    return (float)rand() / (float)RAND_MAX * 2.0f - 0.9f;
}

/* limit: of an element's error, in parts of the largest weight of its group of 32. */
template <class W> static void check(const char *name, ps_dtype type, double limit) {
    const uint32_t cols = 64 * W::UNITS;
    std::vector<float> f(cols), want(cols);
    std::vector<uint8_t> slot(W::BYTES + 64);
    double worst = 0;
    for (int round = 0; round < 20; round++)
        for (uint32_t lead = 0; lead < 16; lead += W::ALIGN) {
            for (float &v : f)
                v = uniform() * (round % 2 ? 0.02f : 1.0f);
            uint8_t *load = (uint8_t *)(((uintptr_t)slot.data() + 15) / 16 * 16) + lead;
            ps_quantize_row(type, f.data(), load, cols);
            ps_dequantize_row(type, load, want.data(), cols);
            std::vector<int> made(cols);
            const float scale = W::SCALED ? 4096.0f : 1.0f;
            for (uint32_t unit = 0; unit < W::UNITS; unit++)
                for (uint32_t part = 0; part < 4; part++) {
                    uint32_t out[8] = {}, low[8] = {};
                    W::make(load, unit, part, scale, out, low);
                    for (uint32_t i = 0; i < 16; i++) {
                        const uint32_t col = W::column(unit, W::piece(part, i / 8)) + i % 8;
                        const auto half = [&](const uint32_t *w) {
                            return (double)ps_f16_to_f32((uint16_t)(w[i / 2] >> 16 * (i & 1)));
                        };
                        const double got = (half(out) + (W::SPLIT ? half(low) : 0)) / (double)scale;
                        double most = 0;
                        for (uint32_t k = col / 32 * 32; k < col / 32 * 32 + 32; k++)
                            most = fmax(most, fabs((double)want[k]));
                        const double e = fabs(got - (double)want[col]) / (most > 0 ? most : 1);
                        worst = e > worst || isnan(e) ? e : worst;
                        made[col]++;
                    }
                }
            for (int n : made)
                if (n != 1) {
                    printf("FAILED %s: a column is made %d times\n", name, n);
                    n_failed++;
                    return;
                }
        }
    if (!(worst <= limit))
        n_failed++;
    printf("%-6s worst element %.2e of its group's largest, at most %.2e: %s\n", name, worst, limit,
           worst <= limit ? "passed" : "FAILED");
}

int main() {
    const double half = 1.0 / 2048;
    check<psc::half_q4_0>("q4_0", PS_DTYPE_Q4_0, half);
    check<psc::half_q4_1>("q4_1", PS_DTYPE_Q4_1, half);
    check<psc::half_q5_0>("q5_0", PS_DTYPE_Q5_0, half);
    check<psc::half_q5_1>("q5_1", PS_DTYPE_Q5_1, half);
    check<psc::half_q8_0>("q8_0", PS_DTYPE_Q8_0, half);
    check<psc::half_q4_k>("q4_k", PS_DTYPE_Q4_K, 3 * half);
    check<psc::half_q5_k>("q5_k", PS_DTYPE_Q5_K, 3 * half);
    check<psc::half_q6_k>("q6_k", PS_DTYPE_Q6_K, 2 * half);
    check<psc::half_f16_any>("f16", PS_DTYPE_F16, 0);
    check<psc::half_bf16>("bf16", PS_DTYPE_BF16, 0);
    check<psc::half_f32>("f32", PS_DTYPE_F32, 1e-6);
    return n_failed != 0;
}
