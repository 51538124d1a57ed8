#!/usr/bin/env python3
"""Writes tests/golden/tiny-logits/NAME.bin: logits of llama.cpp for the tiny models of pssynth, one per architecture.

    python3 tests/golden/make_tiny_logits.py PSSYNTH      (needs llama-cpp-python 0.3.36 or newer, and numpy)

The models are F32 and so are llama.cpp's KV cache and products: a float32 reference. ids.bin holds the int32 tokens, all
evaluated in one batch from an empty context. NAME.bin holds float32 rows of the vocabulary's size for the positions in
POSITIONS. tests/cli/test_tiny_logits.sh makes the same models (the options are read from variants.txt) and compares.
"""
import os
import subprocess
import sys
import tempfile

import llama_cpp
import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny-logits")
# Beyond the window of tiny-gemma3, which is 64.
N_TOKENS, POSITIONS = 100, [0, 1, 49, 70, 99]
VARIANTS = {
    "llama": "--arch llama",
    "llama-extras": "--arch llama --biases --rope-freqs --rope-linear 2 --tied",
    "qwen3": "--arch qwen3 --head-dim 128",
    "qwen3moe": "--arch qwen3moe",
    "gemma3": "--arch gemma3",
}


def model_params():
    # Repacked weights are rounded to other formats on some CPUs; the reference keeps float32.
    p = DEFAULT_PARAMS()
    p.use_extra_bufts = False
    return p


DEFAULT_PARAMS = llama_cpp.llama_model_default_params
llama_cpp.llama_model_default_params = llama_cpp.llama_cpp.llama_model_default_params = model_params


def main():
    os.makedirs(OUT, exist_ok=True)
    ids = np.random.default_rng(1).integers(300, 1000, N_TOKENS).astype("<i4")
    ids.tofile(os.path.join(OUT, "ids.bin"))
    with open(os.path.join(OUT, "variants.txt"), "w") as f:
        f.write("positions %s\n" % " ".join(map(str, POSITIONS)))
        for name, options in VARIANTS.items():
            f.write("%s %s --type F32 --seed 1\n" % (name, options))
    for name, options in VARIANTS.items():
        with tempfile.TemporaryDirectory() as tmp:
            path = os.path.join(tmp, "m.gguf")
            subprocess.run([sys.argv[1], *options.split(), "--type", "F32", "--seed", "1", path], check=True)
            m = llama_cpp.Llama(path, n_ctx=256, n_batch=256, n_threads=1, verbose=False, logits_all=True, type_k=0, type_v=0)
            m.eval([int(i) for i in ids])
            rows = np.array(m.scores[:N_TOKENS], dtype="<f4")[POSITIONS]
            rows.tofile(os.path.join(OUT, name + ".bin"))
            print(name, rows.shape, "spread %.3f" % rows.std())


if __name__ == "__main__":
    main()
