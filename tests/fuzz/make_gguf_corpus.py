#!/usr/bin/env python3
"""Writes the seed corpus of fuzz_gguf: small GGUF files, well-formed and not, into tests/fuzz/corpus/gguf."""
import os
import struct

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "gguf")
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
FMT = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
# ggml id: (elements, bytes) of a block, of types that are computed with and some that are only sized
TYPES = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
         12: (256, 144), 13: (256, 176), 14: (256, 210), 10: (256, 84), 39: (32, 17), 40: (64, 36), 24: (1, 1)}


def s(text):
    b = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(b)) + b


def kv(key, t, v):
    return s(key) + struct.pack("<I", t) + (s(v) if t == STR else struct.pack("<" + FMT[t], v))


def arr(key, t, vs, count=None):
    body = b"".join(s(v) if t == STR else struct.pack("<" + FMT[t], v) for v in vs)
    return s(key) + struct.pack("<IIQ", ARR, t, len(vs) if count is None else count) + body


def tensor(name, dims, t, offset):
    return s(name) + struct.pack("<I", len(dims)) + struct.pack("<%dQ" % len(dims), *dims) + struct.pack("<IQ", t, offset)


def gguf(kvs=(), tensors=(), data=b"", version=3, align=32, n_kv=None, n_tensors=None, magic=b"GGUF"):
    b = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors, len(kvs) if n_kv is None else n_kv)
    b += b"".join(kvs) + b"".join(tensors)
    return b + b"\0" * (-len(b) % align) + data


def rows(types, width=256):
    """One tensor of two rows per type, with data."""
    tensors, data = [], b""
    for t in types:
        elems, size = TYPES[t]
        n = 2 * width // elems * size
        tensors.append(tensor("blk.0.t%d.weight" % t, [width, 2], t, len(data)))
        data += bytes((i * 37 + t) & 0x7B for i in range(n))
        data += b"\0" * (-len(data) % 32)
    return tensors, data


def main():
    os.makedirs(OUT, exist_ok=True)
    arch = kv("general.architecture", STR, "llama")
    scalars = [kv("s%d" % t, t, {F32: 1.5, F64: 2.5, BOOL: True, STR: "text"}.get(t, 7)) for t in range(13) if t != ARR]
    arrays = [arr("a%d" % t, t, ["x", "", "long"] if t == STR else [{F32: 1.5, F64: 2.5, BOOL: True}.get(t, 7)] * 5)
              for t in range(13) if t != ARR]
    one = [tensor("t", [8], 0, 0)]
    files = {
        "empty": b"", "magic-only": b"GGUF", "wrong-magic": gguf(magic=b"GGML"), "nothing-v2": gguf(version=2),
        "scalars": gguf([arch] + scalars), "arrays": gguf([arch] + arrays), "arrays-v2": gguf(arrays, version=2),
        "version-1": gguf(version=1), "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + b"\0" * 32,
        "huge-counts": gguf(n_tensors=1 << 60, n_kv=1 << 60) + b"\0" * 64,
        "huge-array": gguf([arr("ids", U64, [], (1 << 61) + 1)]), "huge-strings": gguf([arr("tokens", STR, [], 1 << 60)]),
        "nested": gguf([s("n") + struct.pack("<IIQIQ", ARR, ARR, 1, U8, 1) + b"\1"]),
        "duplicate-key": gguf([arch, arch]), "duplicate-tensor": gguf([], one + [tensor("t", [8], 0, 32)], b"\0" * 64),
        "empty-key": gguf([kv("", U32, 1)]), "alignment-0": gguf([kv("general.alignment", U32, 0)]),
        "alignment-64": gguf([kv("general.alignment", U32, 64)], [tensor("t", [8], 0, 64)], b"\0" * 96, align=64),
        "alignment-array": gguf([arr("general.alignment", U32, [32, 32])]),
        "zero-dim": gguf([], [tensor("t", [8, 0], 0, 0)], b"\0" * 64),
        "wrapping-dims": gguf([], [tensor("t", [1 << 32, 1 << 32], 0, 0)], b"\0" * 64),
        "removed-type": gguf([], [tensor("t", [256], 36, 0)], b"\0" * 512),
        "overlap": gguf([], [tensor("a", [16], 0, 0), tensor("b", [8], 0, 32)], b"\0" * 64),
        "past-end": gguf([], [tensor("t", [8], 0, 1 << 40)], b"\0" * 64),
        "backwards": gguf([], [tensor("a", [8], 0, 32), tensor("b", [8], 0, 0)], b"\0" * 64),
        "split-1-of-3": gguf([kv("split.no", U16, 0), kv("split.count", U16, 3), kv("split.tensors.count", I32, 1)], one, b"\0" * 32),
        "joined": gguf([], one, b"\0" * 32) + gguf([], one, b"\0" * 32),
        "scalar-tensor": gguf([], [tensor("t", [], 0, 0)], b"\0" * 32),
    }
    for name, types in {"floats": [0, 1, 30, 24], "q4-q5": [2, 3, 6, 7, 8], "k": [12, 13, 14, 10], "fp4": [39, 40]}.items():
        t, data = rows(types)
        files["tensors-" + name] = gguf([arch], t, data)
    for name, data in files.items():
        with open(os.path.join(OUT, name), "wb") as f:
            f.write(data)
    print(len(files), "files,", sum(len(d) for d in files.values()), "bytes")


if __name__ == "__main__":
    main()
