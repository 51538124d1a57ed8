/* MOE_DISPATCH for many tokens:
 *
 *   sort     (token, slot) pairs that the call takes, by expert, within an expert by pair; and the tiles of the products
 *   gate, up act(gate x) * up x of every pair, as halfs times a power of two
 *   scales   one power of two per row of those
 *   down     of every pair, as floats, a slice of columns at a time
 *   gather   a token's row: what is added, then its pairs in ascending order of expert, one after the other
 *
 * The order of a row's sum depends neither on tiles, slices and chunks nor on how the experts are cut into ranges, where each
 * range adds to the one before. Scratch, per token: 8 bytes for each element of the longest row for hidden rows, and as many
 * and PS_CUDA_MOE_MANY_ROOM for the slice; where the hidden rows of all pairs need more (used * n_ff > 4 * longest row), the sorted pairs are done a
 * chunk after the other. */
#include "kernels/cuda/moe_many.cuh"

namespace psc {
namespace {

enum { SORT_THREADS = 1024, SORT_LOADS = 4, NO_ROW = -1, GATHER_THREADS = 128 };

struct sort_args {
    choice of;
    uint32_t tile;   /* pairs of a tile */
    uint32_t *row;   /* of each sorted pair: its token */
    uint32_t *place; /* of each pair: where it is among the sorted ones, or NO_ROW */
    many_tile *tiles;
    uint32_t *n_tiles;
};

/* Sums of a block's threads; shared: 32. */
__device__ __forceinline__ uint32_t block_count(uint32_t v, uint32_t *shared) {
    const uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    if (lane == 0)
        shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = lane < blockDim.x / 32 ? shared[lane] : 0;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    return v;
}

/* Experts of pairs p, p + step, ..., as many as are on their way at a time; -1 from `end` on. */
__device__ __forceinline__ void sort_load(const choice &c, uint32_t p, uint32_t step, uint32_t end,
                                          int32_t (&e)[SORT_LOADS]) {
#pragma unroll
    for (int i = 0; i < SORT_LOADS; i++, p += step)
        e[i] = p < end ? selection_row(c, p / c.used)[p % c.used].expert : -1;
}

/* A block per expert of the range, which finds all by itself: every block counts the selections of all experts, so it knows
 * where its own begin. Counts do not depend on the order of atomics; places are given in order of pairs. */
__global__ void __launch_bounds__(SORT_THREADS) sort(sort_args a) {
    enum { WARPS = SORT_THREADS / 32 };
    __shared__ uint32_t count[PS_MAX_EXPERTS], selected[32], taken[32], shared[32], starts[WARPS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, pairs = a.of.n_tokens * a.of.used,
                   me = a.of.first + blockIdx.x;
    for (uint32_t i = threadIdx.x; i < PS_MAX_EXPERTS; i += SORT_THREADS)
        count[i] = 0;
    __syncthreads();
    int32_t e[SORT_LOADS];
    for (uint32_t p = threadIdx.x; p < pairs; p += SORT_THREADS * SORT_LOADS) {
        sort_load(a.of, p, SORT_THREADS, pairs, e);
#pragma unroll
        for (int i = 0; i < SORT_LOADS; i++)
            if (e[i] >= 0 && (uint32_t)e[i] < a.of.n_experts)
                atomicAdd(&count[e[i]], 1u);
    }
    __syncthreads();
    for (uint32_t w = warp; w < 32; w += WARPS) {
        const uint32_t bits = __ballot_sync(0xffffffffu, count[32 * w + lane] > 0);
        if (lane == 0)
            selected[w] = bits;
    }
    __syncthreads();
    if (warp == 0)
        taken[lane] = part_word(a.of, selected[lane]);
    __syncthreads();
    uint32_t before = 0, tiles_before = 0, tiles = 0;
    for (uint32_t i = threadIdx.x; i < PS_MAX_EXPERTS; i += SORT_THREADS) {
        const uint32_t n = taken[i / 32] >> i % 32 & 1 ? count[i] : 0, t = (n + a.tile - 1) / a.tile;
        before += i < me ? n : 0;
        tiles_before += i < me ? t : 0;
        tiles += t;
    }
    before = block_count(before, shared);
    tiles_before = block_count(tiles_before, shared);
    tiles = block_count(tiles, shared);
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0)
            *a.n_tiles = tiles;
        for (uint32_t p = threadIdx.x; p < pairs; p += SORT_THREADS)
            if (!ps_moe_takes(taken, selection_row(a.of, p / a.of.used)[p % a.of.used].expert))
                a.place[p] = (uint32_t)NO_ROW;
    }
    if (me >= PS_MAX_EXPERTS || !(taken[me / 32] >> me % 32 & 1))
        return;
    const uint32_t n = count[me];
    for (uint32_t i = threadIdx.x; i * a.tile < n; i += SORT_THREADS)
        a.tiles[tiles_before + i] = {me, before + i * a.tile, min(a.tile, n - i * a.tile)};
    /* A warp's pairs lie one behind the other. */
    const uint32_t per_warp = (pairs + SORT_THREADS - 1) / SORT_THREADS * 32, from = warp * per_warp,
                   to = min(pairs, from + per_warp);
    uint32_t mine = 0;
    for (uint32_t p = from + lane; p < to; p += 32 * SORT_LOADS) {
        sort_load(a.of, p, 32, to, e);
#pragma unroll
        for (int i = 0; i < SORT_LOADS; i++)
            mine += e[i] == (int32_t)me;
    }
#pragma unroll
    for (int o = 16; o; o >>= 1)
        mine += __shfl_xor_sync(0xffffffffu, mine, o);
    if (lane == 0)
        starts[warp] = mine;
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++)
        before += starts[w];
    for (uint32_t p0 = from; p0 < to; p0 += 32 * SORT_LOADS) {
        sort_load(a.of, p0 + lane, 32, to, e);
#pragma unroll
        for (int i = 0; i < SORT_LOADS; i++) {
            const bool here = e[i] == (int32_t)me;
            const uint32_t p = p0 + 32 * i + lane, all = __ballot_sync(0xffffffffu, here);
            const uint32_t at = before + (uint32_t)__popc(all & ((1u << lane) - 1));
            if (here)
                a.row[at] = p / a.of.used, a.place[p] = at;
            before += (uint32_t)__popc(all);
        }
    }
}

struct scale_args {
    uint8_t *hidden, *exponents;
    uint64_t hidden_stride, exponents_stride;
    float *scale;
    uint32_t ff, n_rows;
};

/* A warp per hidden row: its exponents become one. They are 0 unless a value is beyond 32768. Rows that no pair has hold
 * anything and become anything: nobody reads them. */
__global__ void __launch_bounds__(256) scales(scale_args a) {
    const uint32_t lane = threadIdx.x & 31, row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= a.n_rows)
        return;
    const uint8_t *exponents = a.exponents + row * a.exponents_stride;
    const uint32_t blocks = (a.ff + MANY_BLOCK_COLS - 1) / MANY_BLOCK_COLS;
    int most = 0;
    for (uint32_t b = lane; b < blocks; b += 32)
        most = max(most, (int)exponents[b]);
#pragma unroll
    for (int o = 16; o; o >>= 1)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, o));
    most = min(most, 127);
    if (lane == 0)
        a.scale[row] = ldexpf(1.0f, most);
    __half *h = (__half *)(a.hidden + row * a.hidden_stride);
    for (uint32_t i = lane; most > 0 && i < a.ff; i += 32)
        h[i] = __float2half_rn(ldexpf(__half2float(h[i]), (int)exponents[i / MANY_BLOCK_COLS] - most));
}

struct gather_args {
    choice of;
    const uint32_t *place;
    uint32_t chunk0, chunk_n;
    const float *part; /* a row of n_cols per pair of the chunk */
    uint32_t col0, n_cols;
    rows before, y; /* before: what is added, or no data */
    bool fours;
};

/* Block t. */
__global__ void __launch_bounds__(GATHER_THREADS) gather(gather_args a) {
    __shared__ uint32_t from[32];
    __shared__ float weight[32];
    __shared__ uint32_t n_shared;
    const uint32_t t = blockIdx.x, lane = threadIdx.x & 31;
    if (threadIdx.x < 32) {
        const uint32_t p =
            lane < a.of.used ? a.place[(uint64_t)t * a.of.used + lane] - a.chunk0 : (uint32_t)NO_ROW;
        const bool here = lane < a.of.used && p < a.chunk_n;
        const uint32_t all = __ballot_sync(0xffffffffu, here);
        uint32_t rank = 0;
        for (uint32_t k = 0; k < a.of.used; k++) {
            const uint32_t other = __shfl_sync(0xffffffffu, p, (int)k);
            rank += (all >> k & 1) && other < p;
        }
        if (here)
            from[rank] = p, weight[rank] = selection_row(a.of, t)[lane].weight;
        if (lane == 0)
            n_shared = (uint32_t)__popc(all);
    }
    __syncthreads();
    const uint32_t n = n_shared;
    float *y = row_f32(a.y, t) + a.col0;
    const float *before = a.before.data ? row_f32(a.before, t) + a.col0 : nullptr;
    if (a.fours) {
        for (uint32_t i = threadIdx.x; i < a.n_cols / 4; i += GATHER_THREADS) {
            float4 v = before ? ((const float4 *)before)[i] : make_float4(0, 0, 0, 0);
#pragma unroll 4
            for (uint32_t k = 0; k < n; k++) {
                const float4 x = ((const float4 *)(a.part + (uint64_t)from[k] * a.n_cols))[i];
                const float w = weight[k];
                v = make_float4(fmaf(w, x.x, v.x), fmaf(w, x.y, v.y), fmaf(w, x.z, v.z), fmaf(w, x.w, v.w));
            }
            ((float4 *)y)[i] = v;
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < a.n_cols; i += GATHER_THREADS) {
        float v = before ? before[i] : 0.0f;
        for (uint32_t k = 0; k < n; k++)
            v = fmaf(weight[k], a.part[(uint64_t)from[k] * a.n_cols + i], v);
        y[i] = v;
    }
}

const many_family *family_of(ps_dtype type) {
    for (const many_family &f : many_f)
        if (f.type == type)
            return &f;
    for (const many_family &f : many_q)
        if (f.type == type)
            return &f;
    for (const many_family &f : many_k)
        if (f.type == type)
            return &f;
    return nullptr;
}

uint64_t up_to(uint64_t n, uint64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* Warps of a block and stages of weights: as many as leave room for a second block, where the device has it. */
struct shape {
    uint32_t warps, raw_stages, shared;
};
cudaError_t shape_of(const many_family &f, int size, shape *out) {
    int device = 0, block = 0, all = 0;
    cudaError_t e = cudaGetDevice(&device);
    e = e ? e : cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    e = e ? e : cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (e)
        return e;
    const uint32_t slack = 2048; /* what the kernel declares, and what the system takes */
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t stages = f.raw_stages[size]; stages >= 1; stages = stages > 1 ? 1 : 0)
            for (uint32_t warps = MANY_WARPS; warps >= 2; warps /= 2) {
                const uint32_t shared = many_tokens[size] * MANY_X_ROW * many_x_stages(many_tokens[size]) +
                                        warps * stages * 32 * f.raw_row;
                /* Blocks of the largest tiles have the registers of a multiprocessor to themselves. */
                const bool two = size + 1 < MANY_SIZES && stages > 1 && warps >= 4 &&
                                 2 * (shared + slack) <= (uint32_t)all;
                if (shared + slack > (uint32_t)block || (pass == 0 && !two))
                    continue;
                *out = {warps, stages, shared};
                return cudaFuncSetAttribute((const void *)f.kernel[size],
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
            }
    return cudaErrorNotSupported;
}

/* The product of one chunk of pairs with rows [row0, row0 + n_rows) of the experts' matrices. */
cudaError_t product(const many_family &f, int size, const many_args &args, uint32_t most_tiles,
                    cudaStream_t stream) {
    shape s;
    if (cudaError_t e = shape_of(f, size, &s))
        return e;
    many_args a = args;
    a.raw_stages = s.raw_stages;
    const uint32_t cols = s.warps * (a.up.bytes ? 16 : 32);
    PS_LAUNCH(f.kernel[size], dim3((a.n_rows + cols - 1) / cols, most_tiles), 32 * s.warps, s.shared, stream)
    (a);
    return cudaGetLastError();
}

cudaError_t load_all() {
    cudaError_t e = load(sort);
    e = e ? e : load(scales);
    e = e ? e : load(gather);
    const many_family *const lists[] = {many_f, many_q, many_k};
    const int n[] = {MANY_F, MANY_Q, MANY_K};
    for (int l = 0; l < 3; l++)
        for (int i = 0; i < n[l]; i++)
            for (many_fn k : lists[l][i].kernel)
                e = e ? e : load(k);
    return e;
}

/* The parts of the scratch: PS_CUDA_MOE_MANY says how large it is. */
struct layout {
    uint32_t *n_tiles, *row, *place;
    float *scale;
    many_tile *tiles;
    uint8_t *hidden, *exponents;
    float *part;
    uint64_t hidden_stride, exponents_stride;
    uint32_t chunk, slice; /* pairs; columns */
};
layout layout_of(const ps_kargs *a, uint32_t pairs, uint32_t ff, uint32_t out, uint32_t most_tiles) {
    uint64_t longest = a->dst.cols;
    for (const ps_warg &w : a->w)
        longest = w.cols > longest ? w.cols : longest;
    for (const ps_xarg &x : a->src)
        longest = x.cols > longest ? x.cols : longest;
    const uint64_t room = PS_CUDA_MOE_MANY_COL / 2 * a->n_tokens * longest;
    const uint64_t part_room = room + PS_CUDA_MOE_MANY_ROOM;
    layout l;
    uint8_t *at = a->scratch;
    const auto take = [&](uint64_t bytes) {
        uint8_t *p = at;
        at += up_to(bytes, 256);
        return p;
    };
    l.n_tiles = (uint32_t *)take(4);
    l.row = (uint32_t *)take(4ull * pairs);
    l.place = (uint32_t *)take(4ull * pairs);
    l.scale = (float *)take(4ull * pairs);
    l.tiles = (many_tile *)take(most_tiles * sizeof(many_tile));
    l.hidden_stride = up_to(2ull * ff, 64);
    l.exponents_stride = up_to((ff + MANY_BLOCK_COLS - 1) / MANY_BLOCK_COLS, 16);
    const uint64_t most = room / (l.hidden_stride + l.exponents_stride);
    l.chunk = (uint32_t)(most < pairs ? most : pairs);
    l.hidden = take(l.chunk * (l.hidden_stride + l.exponents_stride));
    l.exponents = l.hidden + l.chunk * l.hidden_stride;
    l.part = (float *)take(part_room);
    const uint64_t cols = part_room / 4 / (l.chunk ? l.chunk : 1);
    l.slice = cols >= out ? out : (uint32_t)(cols >= 256 ? cols / 256 * 256 : cols / 4 * 4);
    return l;
}

} // namespace

cudaError_t launch_moe_many(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a)
        return load_all();
    if (a->n_tokens == 0)
        return cudaSuccess;
    const many_family *in = family_of(a->w[0].type), *down = family_of(a->w[2].type);
    const uint64_t used = a->src[1].cols, ff = a->w[0].rows, out = a->w[2].rows, pairs = a->n_tokens * used;
    if (!in || !down || a->w[1].type != a->w[0].type || used == 0 || used > PS_CUDA_MAX_USED ||
        a->src[0].fmt != PS_FMT_F16S || a->w[0].experts > PS_MAX_EXPERTS || pairs > INT32_MAX || out == 0 ||
        a->row0 + a->n_rows > a->w[0].experts)
        return cudaErrorNotSupported;
    const choice of = choice_of(a);
    /* As many tokens in a tile as an expert has on average, and half of that again. */
    const uint64_t mean = pairs / a->w[0].experts, wanted = mean + mean / 2;
    int size = wanted <= 32 ? 0 : wanted <= 64 ? 1 : 2;
    shape s;
    while (size > 0 && (shape_of(*in, size, &s) == cudaErrorNotSupported ||
                        shape_of(*down, size, &s) == cudaErrorNotSupported))
        size--; /* a device with less shared memory */
    const uint32_t tile = many_tokens[size];
    const uint64_t most_tiles = pairs / tile + (pairs < a->n_rows ? pairs : a->n_rows);
    if (most_tiles > 65535)
        return cudaErrorNotSupported;
    const layout l = layout_of(a, (uint32_t)pairs, (uint32_t)ff, (uint32_t)out, (uint32_t)most_tiles);
    if (l.chunk == 0 || l.slice == 0)
        return cudaErrorNotSupported;
    const cudaStream_t stream = stream_of(on);
    PS_LAUNCH(sort, a->n_rows ? (uint32_t)a->n_rows : 1, SORT_THREADS, 0, stream)
    ({of, tile, l.row, l.place, l.tiles, l.n_tiles});
    const experts none = {nullptr, nullptr, 0, 0};
    const ps_xarg &x = a->src[0];
    const bool fours = out % 4 == 0 && (uintptr_t)a->dst.data % 16 == 0 &&
                       (uintptr_t)a->src[2].data % 16 == 0 && a->dst.row_bytes % 16 == 0 &&
                       a->src[2].row_bytes % 16 == 0;
    for (uint32_t chunk0 = 0; chunk0 < pairs; chunk0 += l.chunk) {
        const uint32_t chunk_n = (uint32_t)(pairs - chunk0 < l.chunk ? pairs - chunk0 : l.chunk);
        many_args ga = {
            experts_of(a, 0), experts_of(a, 1), (uint32_t)a->w[0].cols, 0, (uint32_t)ff, l.tiles, l.n_tiles,
            chunk0,           chunk_n};
        ga.x = (const uint8_t *)x.data, ga.x_stride = x.row_bytes, ga.x_row = l.row;
        ga.scale = ga.x + ps_f16s_scale_offset(x.cols), ga.scale_stride = x.row_bytes;
        ga.y = l.hidden, ga.y_stride = l.hidden_stride;
        ga.exponents = l.exponents, ga.exponents_stride = l.exponents_stride;
        ga.silu = a->model->glu == PS_GLU_SILU;
        cudaError_t e = most_tiles ? product(*in, size, ga, (uint32_t)most_tiles, stream) : cudaSuccess;
        if (e)
            return e;
        PS_LAUNCH(scales, (chunk_n + 7) / 8, 256, 0, stream)
        ({l.hidden, l.exponents, l.hidden_stride, l.exponents_stride, l.scale, (uint32_t)ff, chunk_n});
        for (uint32_t col0 = 0; col0 < out; col0 += l.slice) {
            const uint32_t n_cols = out - col0 < l.slice ? (uint32_t)out - col0 : l.slice;
            many_args da = {experts_of(a, 2), none,      (uint32_t)ff, col0,   n_cols,
                            l.tiles,          l.n_tiles, chunk0,       chunk_n};
            da.x = l.hidden, da.x_stride = l.hidden_stride;
            da.scale = (const uint8_t *)l.scale, da.scale_stride = 4;
            da.y = (uint8_t *)l.part, da.y_stride = 4ull * n_cols;
            e = most_tiles ? product(*down, size, da, (uint32_t)most_tiles, stream) : cudaSuccess;
            if (e)
                return e;
            PS_LAUNCH(gather, a->n_tokens, GATHER_THREADS, 0, stream)
            ({of, l.place, chunk0, chunk_n, l.part, col0, n_cols, rows_of(chunk0 ? a->dst : a->src[2]),
              rows_of(a->dst), fours && n_cols % 4 == 0 && col0 % 4 == 0});
        }
    }
    return cudaGetLastError();
}

} // namespace psc
