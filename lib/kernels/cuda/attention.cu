/* ATTENTION for few rows: the positions are cut into chunks of a fixed length, a block each, and the chunks' results are
 * joined in ascending order. A block serves the query heads of one KV head for all of a span's rows (attention.cuh), so
 * that K and V are read once. Queries and weights are two halves each, which keeps what floats would. */
#include "kernels/cuda/attention.cuh"

namespace psc {
namespace {

enum { CHUNK = PS_CUDA_ATTN_CHUNK, UNIT = 16, JOIN_WARPS = 8, MAX_STAGES = 3 };

/* Sixteen positions at a time are a warp's, its next ones on the way. Every warp has its own places in shared memory and
 * its own sums: none waits for another before the end. */
template <int DIM_, int MT_> struct split_shape {
    static constexpr int DIM = DIM_, MT = MT_, WARPS = DIM_ > 128 ? 2 : 4, THREADS = 32 * WARPS;
    static constexpr int LD = DIM + 8, ROWS = 16 * MT, UNITS = CHUNK / (UNIT * WARPS);
    static constexpr int PLACE = 2 * UNIT * LD; /* halves: a unit's K, then V */
    static constexpr size_t query_bytes = 2 * (size_t)(2 * ROWS * LD),
                            stage_bytes = 2 * (size_t)(WARPS * PLACE);
    static constexpr size_t fixed_bytes =
        sizeof(float) * ROWS * (2 * WARPS + 1) + 1024; /* static, and the system's */
};

__device__ __forceinline__ void wait_stages(uint32_t stages) {
    if (stages == 3)
        copies_wait<2>();
    else if (stages == 2)
        copies_wait<1>();
    else
        copies_wait<0>();
}

/* Block (chunk, KV head and tile of rows, span). */
template <class S> __global__ void __launch_bounds__(S::THREADS) attn_split(attn_args a, uint32_t stages) {
    constexpr int DIM = S::DIM, MT = S::MT, LD = S::LD, DT = DIM / 8, WARPS = S::WARPS, ROWS = S::ROWS;
    extern __shared__ __align__(16) __half split_shared[]; /* queries, high and low [2][ROWS][LD]; places */
    __shared__ float2 red[WARPS][ROWS];
    __shared__ float mults[ROWS];
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;"); /* attn_join starts once all blocks have, and waits */
#endif
    const ps_seq_span sp = a.spans[blockIdx.z];
    const uint32_t group = a.n_head / a.n_head_kv, n_packed = sp.n_rows * group;
    const uint32_t r0 = blockIdx.y % a.row_tiles * ROWS, kv = a.head0 + blockIdx.y / a.row_tiles;
    if (r0 >= n_packed)
        return;
    const uint32_t first_pos = sp.pos0 + r0 / group,
                   last_pos = sp.pos0 + (min(r0 + ROWS, n_packed) - 1) / group;
    const uint32_t base = (base_chunk(a, sp) + blockIdx.x) * CHUNK, from = first_seen(first_pos, a.window),
                   every_from = first_seen(last_pos, a.window);
    if (base > last_pos || base + CHUNK <= from)
        return; /* none of these rows sees the chunk */
    const uint32_t tid = threadIdx.x, warp = tid / 32, lane = tid & 31;
    const uint64_t nk = (uint64_t)a.n_head_kv * a.dk, nv = (uint64_t)a.n_head_kv * a.dv;
    const kv_head k = {sp.k + (uint64_t)kv * a.dk, nk, a.dk, sp.kv_rows, from, last_pos + 1},
                  v = {sp.v + (uint64_t)kv * a.dv, nv, a.dv, sp.kv_rows, from, last_pos + 1};
    __half *const places = split_shared + 2 * ROWS * LD;
    const uint32_t mine = shared_address(places + warp * stages * S::PLACE);
    uint32_t put = 0, put_at = mine;
    const auto ask = [&]() {
        const uint32_t p0 = base + (put * WARPS + warp) * UNIT;
        if (put < S::UNITS && p0 <= last_pos && p0 + UNIT > from) {
            copy_tile<DIM, UNIT, 32>(put_at, k, p0, lane);
            copy_tile<DIM, UNIT, 32>(put_at + 2 * UNIT * LD, v, p0, lane);
        }
        copies_commit();
        put++;
        put_at += 2 * S::PLACE;
        put_at = put_at == mine + stages * 2 * S::PLACE ? mine : put_at;
    };
    for (uint32_t i = 0; i + 1 < stages; i++)
        ask();

#pragma unroll 4
    for (uint32_t r = warp; r < ROWS; r += WARPS) {
        const uint32_t at = r0 + r;
        const float *q = at < n_packed
                             ? row_f32(a.q, sp.row0 + at / group) + (uint64_t)(kv * group + at % group) * a.dk
                             : nullptr;
        const float mult =
            put_query<DIM, true>(split_shared + r * LD, split_shared + (ROWS + r) * LD, q, a.dk, a.factor);
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
            st.last[mt][h] = sp.pos0 + min(r0 + r, n_packed - 1) / group;
        }
#pragma unroll
        for (int dt = 0; dt < DT; dt++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[mt][dt][e] = 0;
    }

    const uint32_t qa = shared_address(split_shared) + 2 * ((lane & 15) * LD + (lane >> 4) * 8);
    const uint32_t k_at = 2 * (((lane >> 4) * 8 + (lane & 7)) * LD + ((lane >> 3) & 1) * 8),
                   v_at = 2 * (UNIT * LD + (lane & 15) * LD + (lane >> 4) * 8);
    uint32_t place = mine;
    for (uint32_t u = 0; u < S::UNITS; u++) {
        const uint32_t p0 = base + (u * WARPS + warp) * UNIT;
        ask();
        wait_stages(stages);
        __syncwarp();
        if (p0 <= last_pos && p0 + UNIT > from) {
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
            if (p0 + UNIT - 1 > first_pos || p0 < every_from)
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

    /* The warps' sums, brought to the highest top of the row, in the warps' order. */
    copies_wait<0>();
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = quad_sum(st.sum[mt][h]);
            if ((lane & 3) == 0)
                red[warp][16 * mt + 8 * h + lane / 4] = make_float2(st.top[mt][h], sum);
        }
    __syncthreads();                   /* all places are free as well */
    float *const os = (float *)places; /* [WARPS][ROWS][DIM] */
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t r = 16 * mt + 8 * h + lane / 4;
            if (r0 + r >= n_packed)
                continue;
            float top = red[0][r].x;
#pragma unroll
            for (int w = 1; w < WARPS; w++)
                top = fmaxf(top, red[w][r].x);
            const float scale = st.top[mt][h] == -INFINITY ? 0.0f : power2(st.top[mt][h] - top);
            float *to = os + (warp * ROWS + r) * DIM + 2 * (lane & 3);
#pragma unroll
            for (int dt = 0; dt < DT; dt++)
                *(float2 *)(to + 8 * dt) =
                    make_float2(o[mt][dt][2 * h] * scale, o[mt][dt][2 * h + 1] * scale);
        }
    __syncthreads();
    const uint32_t n_rows = min((uint32_t)ROWS, n_packed - r0), across = a.dv / 4;
    for (uint32_t i = tid; i < n_rows * across; i += S::THREADS) {
        const uint32_t r = i / across, e = i % across * 4, at = r0 + r;
        float4 sum = *(const float4 *)(os + r * DIM + e);
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            const float4 x = *(const float4 *)(os + (w * ROWS + r) * DIM + e);
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
        *(float4 *)(part_at(a, sp.row0 + at / group, kv * group + at % group, blockIdx.x) + e) = sum;
    }
    for (uint32_t r = tid; r < n_rows; r += S::THREADS) {
        float top = red[0][r].x, sum = 0;
#pragma unroll
        for (int w = 1; w < WARPS; w++)
            top = fmaxf(top, red[w][r].x);
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            sum += red[w][r].x == -INFINITY ? 0.0f : red[w][r].y * power2(red[w][r].x - top);
        const uint32_t at = r0 + r;
        top_sum_at(a, sp.row0 + at / group, kv * group + at % group)[blockIdx.x] = make_float2(top, sum);
    }
}

/* Block (32 elements, query head, span and row): the chunks' weights first, then each warp joins the chunks whose number
 * from position 0 leaves its own when divided by JOIN_WARPS, then the warps are joined. */
__global__ void __launch_bounds__(32 * JOIN_WARPS) attn_join(attn_args a) {
    extern __shared__ float weight[]; /* [n_chunks] */
    __shared__ float so[JOIN_WARPS][32], red[JOIN_WARPS];
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const ps_seq_span sp = a.spans[blockIdx.z / a.span_rows];
    const uint32_t i = blockIdx.z % a.span_rows, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    if (i >= sp.n_rows)
        return;
    const uint32_t base = base_chunk(a, sp), c0 = first_seen(sp.pos0 + i, a.window) / CHUNK,
                   c1 = (sp.pos0 + i) / CHUNK + 1; /* chunks from position 0 */
    const uint32_t e = blockIdx.x * 32 + lane, row = sp.row0 + i;
    const uint32_t head = a.head0 * (a.n_head / a.n_head_kv) + blockIdx.y;
    const float2 *ts = top_sum_at(a, row, head);
    float best = -INFINITY;
    for (uint32_t c = c0 + threadIdx.x; c < c1; c += 32 * JOIN_WARPS)
        best = fmaxf(best, ts[c - base].x);
#pragma unroll
    for (int o = 16; o; o >>= 1)
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, o));
    if (lane == 0)
        red[warp] = best;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < JOIN_WARPS; k++)
        best = fmaxf(best, red[k]);
    __syncthreads();
    float sum = 0;
    for (uint32_t c = c0 / (32 * JOIN_WARPS) * (32 * JOIN_WARPS) + threadIdx.x; c < c1;
         c += 32 * JOIN_WARPS) {
        if (c < c0)
            continue;
        const float2 v = ts[c - base];
        const float w = v.x == -INFINITY ? 0.0f : power2(v.x - best);
        weight[c - base] = w;
        sum = fmaf(w, v.y, sum);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (lane == 0)
        red[warp] = sum;
    __syncthreads();
    float o = 0;
#pragma unroll 8
    for (uint32_t c = c0 + (warp + JOIN_WARPS - c0 % JOIN_WARPS) % JOIN_WARPS; c < c1; c += JOIN_WARPS)
        o = fmaf(weight[c - base], e < a.dv ? part_at(a, row, head, c - base)[e] : 0.0f, o);
    so[warp][lane] = o;
    __syncthreads();
    if (warp)
        return;
    sum = 0, o = 0;
#pragma unroll
    for (int k = 0; k < JOIN_WARPS; k++)
        sum += red[k], o += so[k][lane];
    const float v = o / sum;
    if (a.fmt == PS_FMT_Q8)
        quantize_group(a.y, row, (head * a.dv + blockIdx.x * 32) / 32, v);
    else if (e < a.dv)
        row_f32(a.y, row)[head * a.dv + e] = v;
}

struct limits {
    uint32_t per_block, per_sm; /* bytes of shared memory */
    bool early; /* attn_join may start before attn_split has ended: both have the instructions for it */
};
cudaError_t limits_of(limits *out) {
    int device, block, sm;
    cudaFuncAttributes join;
    cudaError_t e = cudaGetDevice(&device);
    e = e ? e : cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    e = e ? e : cudaDeviceGetAttribute(&sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    e = e ? e : cudaFuncGetAttributes(&join, (const void *)attn_join);
    if (e == cudaSuccess)
        *out = {(uint32_t)block, (uint32_t)sm, join.ptxVersion >= 90 && join.binaryVersion >= 90};
    return e;
}

/* Stages of a block: two blocks to a multiprocessor if each has two stages then, else one; 0: none fits. */
template <class S> uint32_t stages_of(const limits &l) {
    const size_t need = S::query_bytes + S::fixed_bytes;
    for (uint32_t stages = MAX_STAGES; stages >= 2; stages--)
        if (2 * (need + stages * S::stage_bytes) <= l.per_sm)
            return stages;
    for (uint32_t stages = MAX_STAGES; stages >= 1; stages--)
        if (need + stages * S::stage_bytes <= l.per_block)
            return stages;
    return 0;
}

template <class S>
cudaError_t run_shape(attn_args a, uint32_t stages, uint32_t n_heads_kv, uint32_t n_spans,
                      cudaStream_t stream) {
    const size_t bytes = S::query_bytes + stages * S::stage_bytes;
    if (cudaError_t e =
            cudaFuncSetAttribute(attn_split<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes))
        return e;
    a.row_tiles = (a.span_rows * (a.n_head / a.n_head_kv) + S::ROWS - 1) / S::ROWS;
    attn_split<S>
        <<<dim3(a.n_chunks, n_heads_kv * a.row_tiles, n_spans), S::THREADS, bytes, stream>>>(a, stages);
    return cudaGetLastError();
}

/* Two tiles of rows in a block where that saves reading K and V again; a row's bits are the same. The sums of a block take
 * the place of its stages: at least one stage per tile of rows. */
template <int DIM>
cudaError_t run(const attn_args &a, const limits &l, uint32_t n_heads_kv, uint32_t n_spans,
                cudaStream_t stream) {
    typedef split_shape<DIM, 1> one;
    typedef split_shape<DIM, DIM <= 128 ? 2 : 1> two;
    const uint32_t s1 = stages_of<one>(l), s2 = stages_of<two>(l);
    if (two::MT == 2 && s2 >= 2 && a.span_rows * (a.n_head / a.n_head_kv) > one::ROWS)
        return run_shape<two>(a, s2, n_heads_kv, n_spans, stream);
    return s1 ? run_shape<one>(a, s1, n_heads_kv, n_spans, stream) : cudaErrorNotSupported;
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
        e = run<64>(args, lim, n, a->n_spans, s);
    else if (dim <= 80)
        e = run<80>(args, lim, n, a->n_spans, s);
    else if (dim <= 96)
        e = run<96>(args, lim, n, a->n_spans, s);
    else if (dim <= 128)
        e = run<128>(args, lim, n, a->n_spans, s);
    else if (dim <= TC_MAX_DIM)
        e = run<256>(args, lim, n, a->n_spans, s);
    else
        e = run_attn_wide(args, true, n, a->n_spans, s);
    if (e)
        return e;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3((l->head_dim_v + 31) / 32, n * (l->n_head / l->n_head_kv), a->n_spans * on->span_rows);
    config.blockDim = dim3(32 * JOIN_WARPS);
    config.dynamicSmemBytes = args.n_chunks * sizeof(float);
    config.stream = s;
    config.attrs = &early;
    config.numAttrs = lim.early ? 1 : 0;
    return cudaLaunchKernelEx(&config, attn_join, args);
}

} // namespace psc
