/* ATTENTION for many rows: a block takes a tile of packed query rows of one KV head (attention.cuh), walks the tiles of K
 * and V that any of them sees and keeps running sums, all products on tensor cores. No scratch. */
#include "kernels/cuda/attention.cuh"

namespace psc {
namespace {

/* A warp has 16 * MT rows, tiles of K and V have BN positions. STAGES tiles are in shared memory: K and V of a tile are
 * stages of their own, in turn. */
template <int DIM_, int MT_, int WARPS_, int BN_, int STAGES_> struct flash_shape {
    static constexpr int DIM = DIM_, MT = MT_, WARPS = WARPS_, BN = BN_, STAGES = STAGES_;
    static constexpr int LD = DIM + 8, BM = 16 * MT * WARPS, THREADS = 32 * WARPS;
    static constexpr size_t bytes = 2 * (size_t)LD * (BM + STAGES * BN);
};
/* few: for few rows, where what counts is how much of K and V is on its way; small: for GPUs with little shared memory. Up to
 * 128 elements all three give the same bits. */
template <int DIM> struct flash_shapes {
    typedef flash_shape<DIM, 2, 4, 64, 3> big;
    typedef flash_shape<DIM, 1, 4, 64, 4> few;
    typedef flash_shape<DIM, 1, 4, 64, 2> small;
    static constexpr bool same_bits = true;
};
template <> struct flash_shapes<256> {
    typedef flash_shape<256, 1, 8, 64, 2> big;
    typedef flash_shape<256, 1, 2, 32, 2> small;
    typedef small few;
    static constexpr bool same_bits = false;
};

/* Quantised groups of a thread's row (lib/model/dtype.h), its four threads together: codes to `to` in shared memory, d and s
 * to the row's planes. */
template <int DT>
__device__ __forceinline__ void quantize_row(const attn_args &a, const float (&o)[DT][4], int h, float inv,
                                             uint8_t *to, uint64_t row, uint32_t at, bool store) {
    const uint32_t lane = threadIdx.x & 31, quad = 0xfu << (lane & 28), col = 2 * (lane & 3);
    float *d_plane = (float *)(a.y.data + row * a.y.stride + (((uint64_t)a.y.cols + 63) & ~63ull));
    float *s_plane = (float *)((uint8_t *)d_plane + (((uint64_t)a.y.cols / 32 * 4 + 63) & ~63ull));
#pragma unroll
    for (int g = 0; g < DT / 4; g++) {
        if (32 * g >= (int)a.dv)
            break;
        float v[8], amax = 0;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = o[4 * g + k / 2][2 * h + k % 2] * inv;
            amax = fmaxf(amax, fabsf(v[k]));
        }
        amax = fmaxf(amax, __shfl_xor_sync(quad, amax, 1));
        amax = fmaxf(amax, __shfl_xor_sync(quad, amax, 2));
        /* 127 / amax must not leave the range of floats: then a power of two comes first. */
        const float pre = amax < 1e-30f ? 0x1p100f : 1.0f,
                    scale = amax > 0 ? __fdiv_rn(127.0f, __fmul_rn(amax, pre)) : 0.0f;
        int q[8], total = 0;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            q[k] = __float2int_rn(__fmul_rn(__fmul_rn(v[k], pre), scale));
            total += q[k];
        }
        total += __shfl_xor_sync(quad, total, 1);
        total += __shfl_xor_sync(quad, total, 2);
#pragma unroll
        for (int k = 0; k < 4; k++)
            *(uint16_t *)(to + 32 * g + 8 * k + col) =
                (uint16_t)((q[2 * k] & 255) | (q[2 * k + 1] & 255) << 8);
        if (store && (lane & 3) == 0) {
            const float d = __fdiv_rn(amax, 127.0f);
            d_plane[at / 32 + g] = d;
            s_plane[at / 32 + g] = __fmul_rn(d, (float)total);
        }
    }
}

/* A warp's rows, in the format wanted: element (row, col) and its neighbour are o[mt][col / 8][2 * h + 0, 1]. `own`: the
 * warp's queries in shared memory, not needed any more, LD halves for each row: formats of less than 4 bytes go through it,
 * so that memory gets 16 bytes at a time. */
template <int MT, int DT, int LD>
__device__ __forceinline__ void store_rows(const attn_args &a, const float (&o)[MT][DT][4],
                                           const row_state<MT> &st, const ps_seq_span &sp, uint32_t kv,
                                           uint32_t group, uint32_t r0, __half *own) {
    const uint32_t lane = threadIdx.x & 31, col = 2 * (lane & 3), n_packed = sp.n_rows * group;
    __syncwarp();
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float inv = 1.0f / quad_sum(st.sum[mt][h]);
            const uint32_t mine = 16 * mt + 8 * h + lane / 4, r = min(r0 + mine, n_packed - 1);
            const bool store = r0 + mine < n_packed;
            const uint64_t row = sp.row0 + r / group;
            const uint32_t at = (kv * group + r % group) * a.dv;
            if (a.fmt == PS_FMT_Q8) {
                quantize_row<DT>(a, o[mt], h, inv, (uint8_t *)(own + mine * LD), row, at, store);
                continue;
            }
#pragma unroll
            for (int dt = 0; dt < DT; dt++) {
                const uint32_t c = 8 * dt + col;
                const float v0 = o[mt][dt][2 * h] * inv, v1 = o[mt][dt][2 * h + 1] * inv;
                if (c >= a.dv)
                    break;
                const float lim = 65504.0f;
                if (a.fmt ==
                    PS_FMT_F16S) /* f16s_finish chooses the scale; a mean of halves is one, but for its rounding */
                    *(uint32_t *)(own + mine * LD + c) =
                        pack(fminf(fmaxf(v0, -lim), lim), fminf(fmaxf(v1, -lim), lim));
                else if (store)
                    *(float2 *)(row_f32(a.y, row) + at + c) = make_float2(v0, v1);
            }
        }
    if (a.fmt == PS_FMT_F32)
        return;
    __syncwarp();
    const uint32_t bytes = a.fmt == PS_FMT_Q8 ? 1 : 2, across = a.dv * bytes / 16,
                   n = min(16u * MT, n_packed - r0);
    for (uint32_t i = lane; i < n * across; i += 32) {
        const uint32_t j = i / across, c = i % across, r = r0 + j;
        *(uint4 *)(a.y.data + (sp.row0 + r / group) * a.y.stride + (kv * group + r % group) * a.dv * bytes +
                   16 * c) = *(const uint4 *)((const uint8_t *)(own + j * LD) + 16 * c);
    }
}

/* Block (KV head, tile of rows, the last first: they see most; span). */
template <class S> __global__ void __launch_bounds__(S::THREADS) attn_flash(attn_args a) {
    constexpr int DIM = S::DIM, MT = S::MT, BN = S::BN, LD = S::LD, NT = BN / 8, DT = DIM / 8;
    PS_DYNAMIC_SHARED(16, __half, flash_shared); /* queries [BM][LD]; stages [STAGES][BN][LD] */
    const ps_seq_span sp = a.spans[blockIdx.z];
    const uint32_t group = a.n_head / a.n_head_kv, n_packed = sp.n_rows * group,
                   n_tiles = (n_packed + S::BM - 1) / S::BM;
    if (blockIdx.y >= n_tiles)
        return;
    const uint32_t tid = threadIdx.x, warp = tid / 32, lane = tid & 31, kv = a.head0 + blockIdx.x;
    const uint32_t block0 = (n_tiles - 1 - blockIdx.y) * S::BM, r0 = block0 + warp * 16 * MT;
    const uint32_t end = sp.pos0 + (min(block0 + S::BM, n_packed) - 1) / group + 1,
                   begin = first_seen(sp.pos0 + block0 / group, a.window);
    const uint64_t nk = (uint64_t)a.n_head_kv * a.dk, nv = (uint64_t)a.n_head_kv * a.dv;
    const kv_head k = {sp.k + (uint64_t)kv * a.dk, nk, a.dk, sp.kv_rows, begin, end},
                  v = {sp.v + (uint64_t)kv * a.dv, nv, a.dv, sp.kv_rows, begin, end};
    const uint32_t t0 = begin / BN, n_stages = 2 * ((end - 1) / BN + 1 - t0);
    const uint32_t stages = shared_address(flash_shared + S::BM * LD);
    uint32_t put = 0, put_slot = stages; /* next stage to ask for, and its place */
    const uint32_t stages_end = stages + S::STAGES * (BN * LD * 2);
    const auto next_slot = [&](uint32_t slot) {
        return slot + BN * LD * 2 == stages_end ? stages : slot + BN * LD * 2;
    };
    const auto ask = [&](bool values) { /* put is odd where values: known when compiled */
                                        if (put < n_stages)
                                            copy_tile<DIM, BN, S::THREADS>(put_slot, values ? v : k,
                                                                           (t0 + put / 2) * BN, tid);
                                        copy_commit();
                                        put++;
                                        put_slot = next_slot(put_slot);
    };
#pragma unroll
    for (int i = 0; i < S::STAGES - 1; i++)
        ask(i & 1);

    row_state<MT> st;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t r = min(r0 + 16 * mt + 8 * h + lane / 4, n_packed - 1);
            st.top[mt][h] = -INFINITY, st.sum[mt][h] = 0, st.mult[mt][h] = 1;
            st.last[mt][h] = sp.pos0 + r / group;
        }
    __half *qs = flash_shared + warp * 16 * MT * LD; /* the warp's own */
#pragma unroll 4
    for (uint32_t i = 0; i < 16 * MT; i++) {
        const uint32_t r = r0 + i;
        const float *q = r < n_packed
                             ? row_f32(a.q, sp.row0 + r / group) + (uint64_t)(kv * group + r % group) * a.dk
                             : nullptr;
        const float mult = put_query<DIM, false>(qs + i * LD, nullptr, q, a.dk, a.factor);
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (i == 16 * mt + 8 * h + lane / 4)
                    st.mult[mt][h] = mult;
    }
    __syncwarp();

    /* What the warp's rows see: all of [every_first, every_last], nothing outside [some_first, some_last]. */
    const bool any = r0 < n_packed;
    const uint32_t w_first = sp.pos0 + min(r0, n_packed - 1) / group,
                   some_last = sp.pos0 + (min(r0 + 16 * MT, n_packed) - 1) / group;
    const uint32_t some_first = first_seen(w_first, a.window), every_first = first_seen(some_last, a.window);

    const uint32_t qa = shared_address(qs) + 2 * ((lane & 15) * LD + (lane >> 4) * 8);
    const uint32_t k_at = 2 * (((lane >> 4) * 8 + (lane & 7)) * LD + ((lane >> 3) & 1) * 8),
                   v_at = 2 * ((lane & 15) * LD + (lane >> 4) * 8);
    float o[MT][DT][4];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int dt = 0; dt < DT; dt++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[mt][dt][e] = 0;

    uint32_t slot = stages;
    for (uint32_t t = t0; t < t0 + n_stages / 2; t++) {
        const uint32_t p0 = t * BN;
        const bool sees = any && p0 <= some_last && p0 + BN > some_first;
        float s[MT][NT][4];
        copy_wait<S::STAGES - 2>();
        __syncthreads(); /* K is here for all, and the stage before is free */
        ask((S::STAGES - 1) & 1);
        if (sees) {
            const uint32_t ka = slot + k_at;
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[mt][nt][e] = 0;
#pragma unroll
            for (int kk = 0; kk < DIM / 16; kk++) {
                uint32_t q[MT][4];
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
                    load_matrices(q[mt], qa + 2 * (16 * mt * LD + 16 * kk));
#pragma unroll
                for (int np = 0; np < BN / 16; np++) {
                    uint32_t b[4];
                    load_matrices(b, ka + 2 * (16 * np * LD + 16 * kk));
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        multiply(s[mt][2 * np], q[mt], b[0], b[1]);
                        multiply(s[mt][2 * np + 1], q[mt], b[2], b[3]);
                    }
                }
            }
            if (p0 + BN - 1 > w_first || p0 < every_first)
                mask_tile<MT, NT>(s, st, p0, a.window);
            softmax_tile<MT, NT, DT>(s, o, st);
        }
        slot = next_slot(slot);
        copy_wait<S::STAGES - 2>();
        __syncthreads();
        ask(S::STAGES & 1);
        if (sees) {
            const uint32_t va = slot + v_at;
#pragma unroll
            for (int kk = 0; kk < BN / 16; kk++) {
                uint32_t w[MT][4];
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    w[mt][0] = pack(s[mt][2 * kk][0], s[mt][2 * kk][1]);
                    w[mt][1] = pack(s[mt][2 * kk][2], s[mt][2 * kk][3]);
                    w[mt][2] = pack(s[mt][2 * kk + 1][0], s[mt][2 * kk + 1][1]);
                    w[mt][3] = pack(s[mt][2 * kk + 1][2], s[mt][2 * kk + 1][3]);
                }
#pragma unroll
                for (int np = 0; np < DIM / 16; np++) {
                    uint32_t b[4];
                    load_transposed(b, va + 2 * (16 * kk * LD + 16 * np));
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        multiply(o[mt][2 * np], w[mt], b[0], b[1]);
                        multiply(o[mt][2 * np + 1], w[mt], b[2], b[3]);
                    }
                }
            }
        }
        slot = next_slot(slot);
    }
    if (any)
        store_rows<MT, DT, LD>(a, o, st, sp, kv, group, r0, qs);
}

/* Block (row of a span, span): F16S rows whose halves are the values: s is 2 where any is above 32768, else 1. */
__global__ void __launch_bounds__(256) f16s_finish(rows y, const ps_seq_span *spans) {
    const ps_seq_span sp = spans[blockIdx.y];
    if (blockIdx.x >= sp.n_rows)
        return;
    uint8_t *row = y.data + (uint64_t)(sp.row0 + blockIdx.x) * y.stride;
    __half2 *h = (__half2 *)row;
    bool over = false;
    for (uint32_t i = threadIdx.x; i < y.cols / 2; i += blockDim.x) {
        const float2 f = __half22float2(h[i]);
        over |= fmaxf(fabsf(f.x), fabsf(f.y)) > 32768.0f;
    }
    over = __syncthreads_or(over);
    if (over)
        for (uint32_t i = threadIdx.x; i < y.cols / 2; i += blockDim.x) {
            const float2 f = __half22float2(h[i]);
            h[i] = __floats2half2_rn(f.x * 0.5f, f.y * 0.5f);
        }
    if (threadIdx.x == 0)
        *(float *)(row + ((2 * (uint64_t)y.cols + 63) & ~63ull)) = over ? 2.0f : 1.0f;
}

template <class S> cudaError_t prepare() {
    return cudaFuncSetAttribute((const void *)attn_flash<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)S::bytes);
}

template <class S>
cudaError_t run_shape(const attn_args &a, uint32_t n_heads_kv, uint32_t n_spans, cudaStream_t stream) {
    if (cudaError_t e = prepare<S>())
        return e;
    const uint64_t tiles = ((uint64_t)a.span_rows * (a.n_head / a.n_head_kv) + S::BM - 1) / S::BM;
    if (tiles > 65535)
        return cudaErrorNotSupported;
    PS_LAUNCH(attn_flash<S>, dim3(n_heads_kv, (uint32_t)tiles, n_spans), S::THREADS, S::bytes, stream)(a);
    return cudaGetLastError();
}

/* Shared memory that a block of the current device can have. */
cudaError_t shared_limit(size_t *out) {
    int device, bytes;
    cudaError_t e = cudaGetDevice(&device);
    e = e ? e : cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    *out = e ? 0 : (size_t)bytes;
    return e;
}

template <int DIM>
cudaError_t run(const attn_args &a, uint32_t n_heads_kv, uint32_t n_spans, size_t limit,
                cudaStream_t stream) {
    typedef flash_shapes<DIM> F;
    const bool few = F::same_bits && (uint64_t)a.span_rows * (a.n_head / a.n_head_kv) <= F::few::BM;
    if (F::big::bytes <= limit && !few)
        return run_shape<typename F::big>(a, n_heads_kv, n_spans, stream);
    if (F::few::bytes <= limit && few)
        return run_shape<typename F::few>(a, n_heads_kv, n_spans, stream);
    return run_shape<typename F::small>(a, n_heads_kv, n_spans, stream);
}

template <class S> cudaError_t load_shape(size_t limit) {
    if (S::bytes > limit)
        return cudaSuccess;
    const cudaError_t e = load(attn_flash<S>);
    return e ? e : prepare<S>();
}
template <int DIM> cudaError_t load_dim(size_t limit) {
    typedef flash_shapes<DIM> F;
    cudaError_t e = load_shape<typename F::small>(limit);
    e = e ? e : load_shape<typename F::few>(limit);
    return e ? e : load_shape<typename F::big>(limit);
}

} // namespace

cudaError_t launch_attn_flash(const ps_kargs *a, const ps_cuda_on *on) {
    size_t limit;
    if (cudaError_t e = shared_limit(&limit))
        return e;
    if (!a) {
        cudaError_t e = load_dim<64>(limit);
        e = e ? e : load_dim<80>(limit);
        e = e ? e : load_dim<96>(limit);
        e = e ? e : load_dim<128>(limit);
        e = e ? e : load_dim<256>(limit);
        e = e ? e : load_attn_wide();
        return e ? e : load(f16s_finish);
    }
    const ps_layer *l = a->layer;
    /* The scale of an F16S row is of all its columns. */
    if (!attn_fits(a) || (a->dst.fmt == PS_FMT_F16S && a->n_rows != l->n_head_kv))
        return cudaErrorNotSupported;
    if (a->n_spans == 0 || a->n_rows == 0 || on->span_rows == 0)
        return cudaSuccess;
    attn_args args = attn_args_of(a, on);
    const cudaStream_t s = stream_of(on);
    const uint32_t dim = l->head_dim_k > l->head_dim_v ? l->head_dim_k : l->head_dim_v,
                   n = (uint32_t)a->n_rows;
    cudaError_t e;
    if (dim <= 64)
        e = run<64>(args, n, a->n_spans, limit, s);
    else if (dim <= 80)
        e = run<80>(args, n, a->n_spans, limit, s);
    else if (dim <= 96)
        e = run<96>(args, n, a->n_spans, limit, s);
    else if (dim <= 128)
        e = run<128>(args, n, a->n_spans, limit, s);
    else if (dim <= TC_MAX_DIM)
        e = run<256>(args, n, a->n_spans, limit, s);
    else
        e = run_attn_wide(args, false, n, a->n_spans, s);
    if (e || a->dst.fmt != PS_FMT_F16S)
        return e;
    PS_LAUNCH(f16s_finish, dim3(on->span_rows, a->n_spans), 256, 0, s)(args.y, a->spans);
    return cudaGetLastError();
}

} // namespace psc
