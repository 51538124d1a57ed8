/* ATTENTION for few rows: the positions are cut into chunks of a fixed length, a block each, and the chunks' results are
 * joined in ascending order. A block serves the query heads of one KV head for all of a span's rows (attention.cuh), so
 * that K and V are read once. Queries and weights are two halves each, which keeps what floats would. */
#include "kernels/cuda/attention.cuh"

namespace psc {
namespace {

enum { CHUNK = PS_CUDA_ATTN_CHUNK, UNIT = 16, JOIN_WARPS = 8, JOIN_BATCH = 8, MAX_STAGES = 3 };

/* Sixteen positions at a time are a warp's, its next ones on the way. Every warp has its own places in shared memory and
 * its own sums: none waits for another before the end of a chunk. */
template <int DIM_, int MT_> struct split_shape {
    static constexpr int DIM = DIM_, MT = MT_, WARPS = DIM_ > 128 ? 2 : 4, THREADS = 32 * WARPS;
    static constexpr int LD = DIM + 8, ROWS = 16 * MT, UNITS = CHUNK / (UNIT * WARPS);
    static constexpr int PLACE = 2 * UNIT * LD; /* halves: a unit's K, then V */
    /* Queries, high and low [2][ROWS][LD] halves; at the end of a chunk sums [WARPS][8][LD] floats. */
    static constexpr size_t query_bytes = 2 * (size_t)(2 * ROWS * LD),
                            sum_bytes = 4 * (size_t)(WARPS * 8 * LD);
    static constexpr size_t front_bytes = query_bytes > sum_bytes ? query_bytes : sum_bytes;
    static constexpr size_t stage_bytes = 2 * (size_t)(WARPS * PLACE);
    static constexpr size_t fixed_bytes =
        sizeof(float) * ROWS * (2 * WARPS + 1) + 1024; /* static, and the system's */
};

__device__ __forceinline__ void wait_stages(uint32_t stages) {
    if (stages == 3)
        copy_wait<2>();
    else if (stages == 2)
        copy_wait<1>();
    else
        copy_wait<0>();
}

/* A chunk of positions for a tile of rows of one KV head. */
struct split_item {
    uint32_t
        number; /* (chunk, span, KV head and tile), the last fastest: what lies together is read together */
    uint32_t chunk, kv, r0, n_packed, row0, pos0, kv_rows;
    uint32_t base, first_pos, last_pos,
        from; /* positions: of the chunk; of the first and last row; first that any sees */
    const uint16_t *k, *v;
};

/* The item `number`, or the next one after it in steps of `step` that has anything to do; false if there is none. */
template <class S>
__device__ __forceinline__ bool find_item(const attn_args &a, uint32_t number, uint32_t step, split_item &x) {
    const uint32_t group = a.n_head / a.n_head_kv, across = a.n_heads_kv * a.row_tiles,
                   n = a.n_chunks * a.n_spans * across;
    for (; number < n; number += step) {
        const uint32_t y = number % across, t = number / across;
        const ps_seq_span *sp = a.spans + t % a.n_spans;
        x.n_packed = sp->n_rows * group;
        x.r0 = y % a.row_tiles * S::ROWS;
        if (x.r0 >= x.n_packed)
            continue;
        x.pos0 = sp->pos0;
        x.chunk = t / a.n_spans;
        x.base = (first_seen(x.pos0, a.window) / CHUNK + x.chunk) * CHUNK;
        x.first_pos = x.pos0 + x.r0 / group;
        x.last_pos = x.pos0 + (min(x.r0 + S::ROWS, x.n_packed) - 1) / group;
        x.from = first_seen(x.first_pos, a.window);
        if (x.base > x.last_pos || x.base + CHUNK <= x.from)
            continue; /* none of these rows sees the chunk */
        x.number = number;
        x.kv = a.head0 + y / a.row_tiles;
        x.row0 = sp->row0, x.kv_rows = sp->kv_rows;
        x.k = sp->k + (uint64_t)x.kv * a.dk, x.v = sp->v + (uint64_t)x.kv * a.dv;
        return true;
    }
    return false;
}

/* Blocks stay and take every gridDim.x-th item; what the next item needs of K and V is on its way before the one at hand
 * has ended, so that memory is never idle. */
template <class S> __global__ void __launch_bounds__(S::THREADS) attn_split(attn_args a, uint32_t stages) {
    constexpr int DIM = S::DIM, MT = S::MT, LD = S::LD, DT = DIM / 8, WARPS = S::WARPS, ROWS = S::ROWS;
    PS_DYNAMIC_SHARED(16, __half, split_shared); /* front, places */
    __shared__ float2 red[WARPS][ROWS];
    __shared__ float mults[ROWS];
    const uint32_t group = a.n_head / a.n_head_kv, tid = threadIdx.x, warp = tid / 32, lane = tid & 31;
    split_item ahead;    /* what is asked for next */
    launch_dependents(); /* attn_join may come, and waits */
    bool more = find_item<S>(a, blockIdx.x, gridDim.x, ahead);
    wait_dependencies(); /* spans have been there for long, but not q, K and V */
    if (!more)
        return;
    split_item x = ahead; /* what is computed */
    const uint64_t nk = (uint64_t)a.n_head_kv * a.dk, nv = (uint64_t)a.n_head_kv * a.dv;
    const uint32_t mine =
        shared_address(split_shared) + (uint32_t)S::front_bytes + warp * stages * 2 * S::PLACE;
    uint32_t put = 0, put_at = mine;
    const auto ask = [&]() {
        if (put == S::UNITS && more) {
            more = find_item<S>(a, ahead.number + gridDim.x, gridDim.x, ahead);
            put = 0;
        }
        const uint32_t p0 = ahead.base + (put * WARPS + warp) * UNIT;
        if (more && p0 <= ahead.last_pos && p0 + UNIT > ahead.from) {
            const kv_head k = {ahead.k, nk, a.dk, ahead.kv_rows, ahead.from, ahead.last_pos + 1},
                          v = {ahead.v, nv, a.dv, ahead.kv_rows, ahead.from, ahead.last_pos + 1};
            copy_tile<DIM, UNIT, 32>(put_at, k, p0, lane);
            copy_tile<DIM, UNIT, 32>(put_at + 2 * UNIT * LD, v, p0, lane);
        }
        copy_commit();
        put++;
        put_at += 2 * S::PLACE;
        put_at = put_at == mine + stages * 2 * S::PLACE ? mine : put_at;
    };
    for (uint32_t i = 0; i + 1 < stages; i++)
        ask();

    const uint32_t qa = shared_address(split_shared) + 2 * ((lane & 15) * LD + (lane >> 4) * 8);
    const uint32_t k_at = 2 * (((lane >> 4) * 8 + (lane & 7)) * LD + ((lane >> 3) & 1) * 8),
                   v_at = 2 * (UNIT * LD + (lane & 15) * LD + (lane >> 4) * 8);
    uint32_t place = mine;
    for (bool again = true; again; again = find_item<S>(a, x.number + gridDim.x, gridDim.x, x)) {
#pragma unroll 4
        for (uint32_t r = warp; r < ROWS; r += WARPS) {
            const uint32_t at = x.r0 + r;
            const float *q = at < x.n_packed ? row_f32(a.q, x.row0 + at / group) +
                                                   (uint64_t)(x.kv * group + at % group) * a.dk
                                             : nullptr;
            const float mult = put_query<DIM, true>(split_shared + r * LD, split_shared + (ROWS + r) * LD, q,
                                                    a.dk, a.factor);
            if (lane == 0)
                mults[r] = mult;
        }
        __syncthreads();
        row_state<MT> st;
        float o[MT][DT][4];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t r = 16 * mt + 8 * h + lane / 4;
                st.top[mt][h] = -INFINITY, st.sum[mt][h] = 0, st.mult[mt][h] = mults[r];
                st.last[mt][h] = x.pos0 + min(x.r0 + r, x.n_packed - 1) / group;
            }
#pragma unroll
            for (int dt = 0; dt < DT; dt++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    o[mt][dt][e] = 0;
        }
        const uint32_t every_from = first_seen(x.last_pos, a.window);
#pragma unroll 1
        for (uint32_t u = 0; u < S::UNITS; u++) {
            const uint32_t p0 = x.base + (u * WARPS + warp) * UNIT;
            ask();
            wait_stages(stages);
            __syncwarp();
            if (p0 <= x.last_pos && p0 + UNIT > x.from) {
                float s[MT][2][4], low[MT][2][4];
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
#pragma unroll
                    for (int nt = 0; nt < 2; nt++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            s[mt][nt][e] = low[mt][nt][e] = 0;
#pragma unroll
                for (int kk = 0; kk < DIM / 16; kk++) {
                    uint32_t b[4];
                    load_matrices(b, place + k_at + 2 * (16 * kk));
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        uint32_t q[4];
                        load_matrices(q, qa + 2 * (16 * mt * LD + 16 * kk));
                        multiply(s[mt][0], q, b[0], b[1]);
                        multiply(s[mt][1], q, b[2], b[3]);
                        load_matrices(q, qa + 2 * ((ROWS + 16 * mt) * LD + 16 * kk));
                        multiply(low[mt][0], q, b[0], b[1]);
                        multiply(low[mt][1], q, b[2], b[3]);
                    }
                }
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
#pragma unroll
                    for (int nt = 0; nt < 2; nt++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            s[mt][nt][e] += low[mt][nt][e];
                if (p0 + UNIT - 1 > x.first_pos || p0 < every_from)
                    mask_tile<MT, 2>(s, st, p0, a.window);
                softmax_tile<MT, 2, DT>(s, o, st);
                uint32_t hi[MT][4], lo[MT][4];
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float w0 = s[mt][i / 2][i % 2 * 2], w1 = s[mt][i / 2][i % 2 * 2 + 1];
                        hi[mt][i] = pack(w0, w1);
                        const float2 h = __half22float2(*(const __half2 *)&hi[mt][i]);
                        lo[mt][i] = pack(w0 - h.x, w1 - h.y);
                    }
#pragma unroll
                for (int np = 0; np < DIM / 16; np++) {
                    uint32_t b[4];
                    load_transposed(b, place + v_at + 2 * (16 * np));
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        multiply(o[mt][2 * np], hi[mt], b[0], b[1]);
                        multiply(o[mt][2 * np + 1], hi[mt], b[2], b[3]);
                        multiply(o[mt][2 * np], lo[mt], b[0], b[1]);
                        multiply(o[mt][2 * np + 1], lo[mt], b[2], b[3]);
                    }
                }
            }
            __syncwarp(); /* the place is free */
            place += 2 * S::PLACE;
            place = place == mine + stages * 2 * S::PLACE ? mine : place;
        }

        /* The warps' sums, brought to the highest top of the row, in the warps' order; 8 rows at a time. */
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float sum = quad_sum(st.sum[mt][h]);
                if ((lane & 3) == 0)
                    red[warp][16 * mt + 8 * h + lane / 4] = make_float2(st.top[mt][h], sum);
            }
        __syncthreads(); /* the queries are free as well */
        float *const os = (float *)split_shared;
        const uint32_t across = a.dv / 4;
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t r8 = 16 * mt + 8 * h, r = r8 + lane / 4;
                if (x.r0 + r8 >= x.n_packed)
                    continue;
                const uint32_t n_rows = min(8u, x.n_packed - x.r0 - r8);
                float top = red[0][r].x;
#pragma unroll
                for (int w = 1; w < WARPS; w++)
                    top = fmaxf(top, red[w][r].x);
                const float scale = st.top[mt][h] == -INFINITY ? 0.0f : power2(st.top[mt][h] - top);
                float *to = os + (warp * 8 + lane / 4) * LD + 2 * (lane & 3);
#pragma unroll
                for (int dt = 0; dt < DT; dt++)
                    *(float2 *)(to + 8 * dt) =
                        make_float2(o[mt][dt][2 * h] * scale, o[mt][dt][2 * h + 1] * scale);
                __syncthreads();
                for (uint32_t i = tid; i < n_rows * across; i += S::THREADS) {
                    const uint32_t j = i / across, e = i % across * 4, at = x.r0 + r8 + j;
                    float4 sum = *(const float4 *)(os + j * LD + e);
#pragma unroll
                    for (int w = 1; w < WARPS; w++) {
                        const float4 y = *(const float4 *)(os + (w * 8 + j) * LD + e);
                        sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
                    }
                    *(float4 *)(part_at(a, x.row0 + at / group, x.kv * group + at % group, x.chunk) + e) =
                        sum;
                }
                if (tid < n_rows) {
                    const uint32_t j = r8 + tid, at = x.r0 + j;
                    float best = red[0][j].x, sum = 0;
#pragma unroll
                    for (int w = 1; w < WARPS; w++)
                        best = fmaxf(best, red[w][j].x);
#pragma unroll
                    for (int w = 0; w < WARPS; w++)
                        sum += red[w][j].x == -INFINITY ? 0.0f : red[w][j].y * power2(red[w][j].x - best);
                    top_sum_at(a, x.row0 + at / group, x.kv * group + at % group)[x.chunk] =
                        make_float2(best, sum);
                }
                __syncthreads(); /* sums and red are free */
            }
    }
    copy_wait<0>();
}

/* Block (32 elements, query head, span and row): each warp joins the chunks whose number from position 0 leaves its own
 * when divided by JOIN_WARPS, in ascending order, then the warps are joined. */
__global__ void __launch_bounds__(32 * JOIN_WARPS) attn_join(attn_args a) {
    __shared__ float so[JOIN_WARPS][32];
    __shared__ float2 red[JOIN_WARPS];
    const ps_seq_span sp = a.spans[blockIdx.z / a.span_rows];
    const uint32_t i = blockIdx.z % a.span_rows, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    launch_dependents();
    wait_dependencies();
    if (i >= sp.n_rows)
        return;
    const uint32_t base = base_chunk(a, sp), c0 = first_seen(sp.pos0 + i, a.window) / CHUNK,
                   c1 = (sp.pos0 + i) / CHUNK + 1; /* chunks from position 0 */
    const uint32_t e = blockIdx.x * 32 + lane, row = sp.row0 + i;
    const uint32_t head = a.head0 * (a.n_head / a.n_head_kv) + blockIdx.y;
    const float2 *ts = top_sum_at(a, row, head);
    const float *part = part_at(a, row, head, 0) + (e < a.dv ? e : 0);
    float top = -INFINITY, sum = 0, o = 0;
    for (uint32_t c = c0 + (warp + JOIN_WARPS - c0 % JOIN_WARPS) % JOIN_WARPS; c < c1;
         c += JOIN_WARPS * JOIN_BATCH) {
        float2 t[JOIN_BATCH];
        float v[JOIN_BATCH];
#pragma unroll
        for (int k = 0; k < JOIN_BATCH; k++) { /* all on their way before the first is used */
            const uint32_t d = c + JOIN_WARPS * k;
            t[k] = d < c1 ? ts[d - base] : make_float2(-INFINITY, 0);
            v[k] = d < c1 ? part[(uint64_t)(d - base) * a.dv] : 0;
        }
        float best = top;
#pragma unroll
        for (int k = 0; k < JOIN_BATCH; k++)
            best = fmaxf(best, t[k].x);
        const float from = best == -INFINITY ? 0.0f : best, keep = power2(top - from);
        sum *= keep, o *= keep, top = best;
#pragma unroll
        for (int k = 0; k < JOIN_BATCH; k++) {
            const float w = power2(t[k].x - from);
            sum = fmaf(w, t[k].y, sum);
            o = fmaf(w, v[k], o);
        }
    }
    so[warp][lane] = o;
    if (lane == 0)
        red[warp] = make_float2(top, sum);
    __syncthreads();
    if (warp)
        return;
    top = -INFINITY, sum = 0, o = 0;
#pragma unroll
    for (int k = 0; k < JOIN_WARPS; k++)
        top = fmaxf(top, red[k].x);
#pragma unroll
    for (int k = 0; k < JOIN_WARPS; k++) {
        const float w = red[k].x == -INFINITY ? 0.0f : power2(red[k].x - top);
        sum = fmaf(w, red[k].y, sum);
        o = fmaf(w, so[k][lane], o);
    }
    const float v = o / sum;
    if (a.fmt == PS_FMT_Q8)
        quantize_group(a.y, row, (head * a.dv + blockIdx.x * 32) / 32, v);
    else if (e < a.dv)
        row_f32(a.y, row)[head * a.dv + e] = v;
}

struct limits {
    uint32_t per_block, per_sm, n_sm; /* bytes of shared memory; multiprocessors */
    bool early;                       /* launch_early */
};
cudaError_t limits_of(limits *out) {
    int device, block, sm, n;
    cudaError_t e = cudaGetDevice(&device);
    e = e ? e : cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    e = e ? e : cudaDeviceGetAttribute(&sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    e = e ? e : cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    e = e ? e : may_be_early(attn_join, &out->early);
    if (e == cudaSuccess)
        out->per_block = (uint32_t)block, out->per_sm = (uint32_t)sm, out->n_sm = (uint32_t)n;
    return e;
}

/* Stages of a block: two blocks to a multiprocessor if each has two stages then, else one; 0: none fits. */
template <class S> uint32_t stages_of(const limits &l, uint32_t *blocks_per_sm) {
    const size_t need = S::front_bytes + S::fixed_bytes;
    *blocks_per_sm = 2;
    for (uint32_t stages = MAX_STAGES; stages >= 2; stages--)
        if (2 * (need + stages * S::stage_bytes) <= l.per_sm)
            return stages;
    *blocks_per_sm = 1;
    for (uint32_t stages = MAX_STAGES; stages >= 1; stages--)
        if (need + stages * S::stage_bytes <= l.per_block)
            return stages;
    return 0;
}

template <class S> cudaError_t run_shape(attn_args a, const limits &l, cudaStream_t stream) {
    uint32_t per_sm;
    const uint32_t stages = stages_of<S>(l, &per_sm);
    if (stages == 0)
        return cudaErrorNotSupported;
    const size_t bytes = S::front_bytes + stages * S::stage_bytes;
    if (cudaError_t e = cudaFuncSetAttribute((const void *)attn_split<S>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes))
        return e;
    a.row_tiles = (a.span_rows * (a.n_head / a.n_head_kv) + S::ROWS - 1) / S::ROWS;
    const uint64_t items = (uint64_t)a.n_chunks * a.n_spans * a.n_heads_kv * a.row_tiles;
    if (items > INT32_MAX)
        return cudaErrorNotSupported;
    const uint32_t blocks = l.n_sm * per_sm;
    return launch_early(attn_split<S>, dim3(items < blocks ? (uint32_t)items : blocks), S::THREADS, bytes,
                        l.early, stream, a, stages);
}

/* Two tiles of rows in a block where that saves reading K and V again; a row's bits are the same. */
template <int DIM> cudaError_t run(const attn_args &a, const limits &l, cudaStream_t stream) {
    typedef split_shape<DIM, 1> one;
    typedef split_shape<DIM, DIM <= 128 ? 2 : 1> two;
    uint32_t per_sm;
    if (a.span_rows * (a.n_head / a.n_head_kv) > one::ROWS && stages_of<two>(l, &per_sm))
        return run_shape<two>(a, l, stream);
    return run_shape<one>(a, l, stream);
}

template <int DIM> cudaError_t load_dim() {
    cudaError_t e = load(attn_split<split_shape<DIM, 1>>);
    return e ? e : load(attn_split<split_shape<DIM, DIM <= 128 ? 2 : 1>>);
}

} // namespace

cudaError_t launch_attn_split(const ps_kargs *a, const ps_cuda_on *on) {
    if (!a) {
        cudaError_t e = load_dim<64>();
        e = e ? e : load_dim<80>();
        e = e ? e : load_dim<96>();
        e = e ? e : load_dim<128>();
        e = e ? e : load_dim<256>();
        e = e ? e : load_attn_wide();
        return e ? e : load(attn_join);
    }
    const ps_layer *l = a->layer;
    if (!attn_fits(a) || a->dst.fmt == PS_FMT_F16S || a->n_spans * (uint64_t)on->span_rows > 65535)
        return cudaErrorNotSupported;
    if (a->n_spans == 0 || a->n_rows == 0 || on->span_rows == 0 || on->kv_bound == 0)
        return cudaSuccess;
    attn_args args = attn_args_of(a, on);
    limits lim;
    if (cudaError_t e = limits_of(&lim))
        return e;
    args.n_chunks = (on->kv_bound - 1) / CHUNK + 1;
    /* A span's rows see window + span_rows - 1 positions in a row, which touch one chunk more than they fill at most. */
    if (l->window && args.n_chunks > ((uint64_t)l->window + on->span_rows) / CHUNK + 2)
        args.n_chunks = (uint32_t)(((uint64_t)l->window + on->span_rows) / CHUNK + 2);
    const uint32_t dim = l->head_dim_k > l->head_dim_v ? l->head_dim_k : l->head_dim_v,
                   n = (uint32_t)a->n_rows;
    const cudaStream_t s = stream_of(on);
    cudaError_t e;
    if (dim <= 64)
        e = run<64>(args, lim, s);
    else if (dim <= 80)
        e = run<80>(args, lim, s);
    else if (dim <= 96)
        e = run<96>(args, lim, s);
    else if (dim <= 128)
        e = run<128>(args, lim, s);
    else if (dim <= TC_MAX_DIM)
        e = run<256>(args, lim, s);
    else
        e = run_attn_wide(args, true, n, a->n_spans, s);
    if (e)
        return e;
    return launch_early(
        attn_join,
        dim3((l->head_dim_v + 31) / 32, n * (l->n_head / l->n_head_kv), a->n_spans * on->span_rows),
        32 * JOIN_WARPS, 0, lim.early && dim <= TC_MAX_DIM, s, args);
}

} // namespace psc
