#!/usr/bin/env python3
"""Writes tests/golden/dequant.bin: packed blocks and the floats that PyPI's `gguf` makes of them.

    python3 tests/golden/make_dequant.py        (needs gguf and numpy)

Records, little-endian: name[8] | n_blocks u32 | block_bytes u32 | block_elems u32 | blocks | floats.
Block bytes are random; the half-precision scales also take extreme finite values (zero of both signs,
subnormal, smallest normal, largest). No scale is infinite or NaN.
"""
import os
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# Byte offsets of the half-precision scales in a block.
SCALES = {T.F32: [], T.F16: [], T.BF16: [], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2],
          T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
EXTREMES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00, 0x2E66]


def finite_halfs(rng, n):
    h = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    return np.where((h & 0x7C00) == 0x7C00, h & 0x83FF, h).astype(np.uint16)


def blocks_of(rng, t):
    elems, size = GGML_QUANT_SIZES[t]
    n = {1: 256, 32: 33}.get(elems, 12)
    if t == T.F32:
        v = rng.integers(0, 1 << 32, n, dtype=np.uint32)
        return np.where((v & 0x7F800000) == 0x7F800000, v & 0x807FFFFF, v).astype(np.uint32).view(np.uint8).reshape(n, 4)
    if t == T.F16:
        return np.concatenate([np.array(EXTREMES, np.uint16), finite_halfs(rng, n)]).view(np.uint8).reshape(-1, 2)
    if t == T.BF16:
        v = rng.integers(0, 1 << 16, n, dtype=np.uint16)
        return np.where((v & 0x7F80) == 0x7F80, v & 0x807F, v).astype(np.uint16).view(np.uint8).reshape(-1, 2)
    b = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for k, at in enumerate(SCALES[t]):
        h = finite_halfs(rng, n)
        # every extreme once per scale, and shifted against each other where there are two
        for i, e in enumerate(EXTREMES[:n]):
            h[(i + 3 * k) % n] = e
        b[:, at:at + 2] = h.view(np.uint8).reshape(n, 2)
    return b


def main():
    rng = np.random.default_rng(20240611)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dequant.bin")
    with open(path, "wb") as f:
        for t in SCALES:
            elems, size = GGML_QUANT_SIZES[t]
            b = blocks_of(rng, t)
            out = dequantize(np.ascontiguousarray(b), t).astype(np.float32).reshape(-1)
            assert out.size == b.shape[0] * elems and np.isfinite(out).all()
            f.write(struct.pack("<8sIII", t.name.encode(), b.shape[0], size, elems))
            f.write(b.tobytes())
            f.write(out.tobytes())
    print(path, os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
