#!/usr/bin/env python3
"""PyTorch's attention with its flash backend, on the shapes of bench_prefill in bench_cuda_kernels.cu: one sequence,
causal, 32 query heads over 8 KV heads of 128 halves. A JSON line per shape, medians in milliseconds.
Exit 77: no PyTorch, or no GPU that it sees."""
import json
import statistics
import sys

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as e:
    print(f"bench_torch_attention: {e}", file=sys.stderr)
    sys.exit(77)
if not torch.cuda.is_available():
    print("bench_torch_attention: no GPU", file=sys.stderr)
    sys.exit(77)


def measure(tokens):
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, heads, tokens, 128, device="cuda", dtype=torch.float16) for heads in (32, 8, 8))
    options = {"is_causal": True, "enable_gqa": True}
    try:
        F.scaled_dot_product_attention(q, k, v, **options)
    except (TypeError, RuntimeError):  # no grouped queries: K and V are repeated, outside of what is timed
        k, v = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
        del options["enable_gqa"]
    for _ in range(3):
        F.scaled_dot_product_attention(q, k, v, **options)
    ms = []
    for _ in range(15):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(4):
            F.scaled_dot_product_attention(q, k, v, **options)
        end.record()
        end.synchronize()
        ms.append(start.elapsed_time(end) / 4)
    return statistics.median(ms)


with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    for tokens in (1024, 4096, 16384):
        t = measure(tokens)
        print(json.dumps({
            "kernel": "torch.sdpa.flash", "torch": torch.__version__, "shape": f"32/8 heads of 128, {tokens} tokens",
            "ms": round(t, 4), "tflop_per_s": round(2 * 128 * 2 * 32 * tokens * (tokens + 1) / 2 / t / 1e9, 1)}))
