#!/usr/bin/env python3
"""Writes tests/golden/inventory-*.txt: keys and tensors of the real models as PyPI's `gguf` reads them.

    python3 tests/golden/make_inventory.py MODEL.gguf...

Lines:  key NAME TYPE ELEMENT_TYPE COUNT   (types by number; 9 is an array)
        tensor NAME TYPE FILE_OFFSET BYTES DIMS...
"""
import os
import sys

from gguf import GGUFReader, GGUFValueType

OUT = os.path.dirname(os.path.abspath(__file__))


def main():
    for path in sys.argv[1:]:
        r = GGUFReader(path)
        name = os.path.basename(path).removesuffix(".gguf")
        with open(os.path.join(OUT, "inventory-%s.txt" % name), "w") as f:
            for field in r.fields.values():
                if field.name.startswith("GGUF."):
                    continue  # the reader's own entries for the header
                t = field.types[0]
                elem = field.types[-1] if t == GGUFValueType.ARRAY else t
                f.write("key %s %d %d %d\n" % (field.name, t, elem, len(field.data) if t == GGUFValueType.ARRAY else 1))
            for t in r.tensors:
                f.write("tensor %s %d %d %d %s\n" % (t.name, t.tensor_type, t.data_offset, t.n_bytes,
                                                      " ".join(str(int(d)) for d in t.shape)))


if __name__ == "__main__":
    main()
