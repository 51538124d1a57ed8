#!/usr/bin/env python3
"""Bits and numerics of a GPU run, against goldens of this repository.

Usage: gpu_numerics.py --bin BUILD --work DIR [--models DIR] [--device NAME] [--json FILE]
Needs Python alone; numpy makes it many times faster. Three parts:
  bits      one family, several budgets (resident, streamed, direct in other shares), ten runs each of the first: all logits
            must be the same bytes
  numerics  each family on the real models that are in --models: positions whose best token differs from the float32
            reference, of those where its two best are 0.05 or more apart, and the divergence over its 8 best tokens; limits are
            llama.cpp's figures of tests/golden/numerics (plus 2 in 10,000 and 1e-5)
  tiny      each family on tiny dense and MoE models: logits against the host plan's
Exit 0: all within limits; 1: not.
"""
import argparse
import array
import hashlib
import math
import os
import subprocess
import sys

from gpu_common import base_bytes, on, read_json, write_json

try:
    import numpy
except ImportError:
    numpy = None

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FAMILIES = ["gpu", "direct", "static", "dynamic", "split"]
REAL = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}


def must(command):
    p = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if p.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {p.returncode}: {p.stderr.strip()[-300:]}")
    return p.stdout


class Run:
    def __init__(self, o):
        self.o = o
        self.failed, self.results = 0, []

    def note(self, ok, what, **figures):
        self.failed += not ok
        self.results.append({"what": what, "ok": bool(ok), **figures})
        write_json(self.o.json, self.results)
        text = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
        print(f"{'ok    ' if ok else 'FAILED'} {what}: {text}", flush=True)

    def path(self, name):
        return os.path.join(self.o.work, name)

    def profile(self, model):
        """A profile of this machine with this model's shapes; short, since only its catalogue matters here."""
        out = self.path(os.path.basename(model) + ".yaml")
        if not os.path.exists(out):
            must([f"{self.o.bin}/pstune", "--quick", "--model", model, "--time", "8", "--device", self.o.device, "-o", out])
        return out

    def base(self, model):
        return base_bytes(self.profile(model))

    def logits(self, model, family, budget, ids, window, chunk, context=256):
        plan, out = self.path("n.plan"), self.path("n.f32")
        command = [f"{self.o.bin}/psplan", "-p", self.profile(model), "-c", str(context), "-f", "binary", "--outputs",
                   str(min(chunk, 128)), "-o", plan, "-b", budget, model]
        must(command + (["--force", family] if family else []))
        run = [f"{self.o.bin}/psrun", "-q", "-p", plan, "--teacher-force", ids, "--window", str(window), "--chunk", str(chunk),
               "--logits-out", out]
        must(run + (on(self.o.device) if family else []) + [model])
        with open(out, "rb") as f:
            return f.read()


def floats(data):
    if numpy is not None:
        return numpy.frombuffer(data, dtype=numpy.float32)
    a = array.array("f")
    a.frombytes(data)
    return a


def likeliest(row):
    """Index of the largest, and log of the sum of exponentials."""
    if numpy is not None:
        top = int(row.argmax())
        return top, float(numpy.log(numpy.exp(row.astype(numpy.float64) - float(row[top])).sum())) + float(row[top])
    top = row.index(max(row))
    return top, math.log(sum(math.exp(x - row[top]) for x in row)) + row[top]


def write_ids(path, tokens):
    with open(path, "wb") as f:
        array.array("i", tokens).tofile(f)


def bits(run, model, ids, n, label):
    base = run.base(model)
    size = os.path.getsize(model)
    budgets = [base + (160 << 20), base + (160 << 20) + size // 2, base + (224 << 20) + 2 * size]
    for chunk in (1, n):
        seen = {}
        for family in ("gpu", "direct"):
            for b in budgets:
                try:
                    data = run.logits(model, family, f"{b >> 20}MiB", ids, n, chunk)
                except RuntimeError as e:
                    if "bytes short" in str(e):
                        continue
                    raise
                seen.setdefault(hashlib.sha256(data).hexdigest(), []).append(f"{family} {b >> 20} MiB")
        first = [hashlib.sha256(run.logits(model, "direct", f"{budgets[0] >> 20}MiB", ids, n, chunk)).hexdigest() for _ in range(run.o.runs)]
        run.note(len(seen) == 1 and len(set(first)) == 1, f"bits, {label}, steps of {chunk}", placements=sum(map(len, seen.values())),
                 different=len(seen), runs=run.o.runs, different_runs=len(set(first)))


def tiny_model(run, preset):
    model, ids, n = run.path(preset + ".gguf"), run.path("tiny.ids"), 48
    must([f"{run.o.bin}/pssynth", "--preset", preset, model])
    write_ids(ids, [(i * 37 + 11) % 250 for i in range(n)])
    return model, ids, n


def tiny(run, preset):
    model, ids, n = tiny_model(run, preset)
    budget = f"{(run.base(model) + (224 << 20)) >> 20}MiB"
    for chunk in (1, n):
        ref = [float(x) for x in floats(run.logits(model, "", "host", ids, n, chunk))]
        norm = math.sqrt(sum(x * x for x in ref))
        for family in FAMILIES:
            got = floats(run.logits(model, family, budget, ids, n, chunk))
            off = math.sqrt(sum((x - y) ** 2 for x, y in zip(got, ref))) / norm
            run.note(len(got) == len(ref) and off < 0.05, f"{preset}, {family}, steps of {chunk}", relative_difference=off)


def coarse_kl(log_prob, best, row, total):
    kl, p_rest, q_rest = 0.0, 1.0, 1.0
    for lp, b in zip(log_prob, best):
        p, q = math.exp(lp), float(row[b]) - total
        kl += p * (lp - q)
        p_rest -= p
        q_rest -= math.exp(q)
    p_rest = max(p_rest, 1e-12)
    return kl + p_rest * math.log(p_rest / max(q_rest, 1e-12))


def real_ids(run, name):
    ids = run.path(name + ".ids")
    write_ids(ids, [r[0] for r in read_json(os.path.join(ROOT, "tests/golden/numerics", name + "-top.json"))["rows"]])
    return ids


def real(run, name, model):
    golden = read_json(os.path.join(ROOT, "tests/golden/numerics", name + "-top.json"))
    rows, window = golden["rows"], golden["window"]
    ids = real_ids(run, name)
    clear = sum(r[1] >= golden["gap"] for r in rows)
    peer, peer_kl = golden["llama_cpp"]["disagree"], golden["llama_cpp"]["coarse_kl_mean"]
    for chunk in (window, 1):
        for family in FAMILIES:
            # Half of the weights have no room, so that every placement of the family takes part.
            budget = f"{(run.base(model) + (176 << 20) + os.path.getsize(model) // 2) >> 20}MiB"
            data = floats(run.logits(model, family, budget, ids, window, chunk))
            n_vocab, differ, kl = len(data) // len(rows), 0, 0.0
            for i, (_, gap, best, log_prob) in enumerate(rows):
                row = data[i * n_vocab:(i + 1) * n_vocab]
                top, total = likeliest(row)
                differ += gap >= golden["gap"] and top != best[0]
                kl += coarse_kl(log_prob, best, row, total) / len(rows)
            ok = differ <= peer + 2e-4 * clear + 1 and kl <= 1.1 * peer_kl + 1e-5
            run.note(ok, f"{name}, {family}, steps of {chunk}", differ=differ, of_clear=clear, llama_cpp=peer, kl=kl, llama_cpp_kl=peer_kl)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--bin", required=True)
    a.add_argument("--work", required=True)
    a.add_argument("--models")
    a.add_argument("--device", default="cuda")
    a.add_argument("--parts", default="tiny,bits,real")
    a.add_argument("--only", help="of the real models: smollm2 or gemma3")
    a.add_argument("--runs", type=int, default=10, help="of one placement, for bits")
    a.add_argument("--json")
    run = Run(a.parse_args())
    os.makedirs(run.o.work, exist_ok=True)
    parts = run.o.parts.split(",")
    for preset in ("tiny-llama", "tiny-qwen3moe"):
        if "tiny" in parts:
            tiny(run, preset)
    if "bits" in parts and not run.o.only:
        model, ids, n = tiny_model(run, "tiny-qwen3moe")
        bits(run, model, ids, n, "tiny-qwen3moe")
    for name, file in REAL.items():
        path = os.path.join(run.o.models or "", file)
        if run.o.only not in (None, name) or not {"real", "bits"} & set(parts):
            continue
        if run.o.models and os.path.exists(path):
            if "real" in parts:
                real(run, name, path)
            if "bits" in parts:
                bits(run, path, real_ids(run, name), 128, name)
        else:
            print(f"not run: {name} is not in {run.o.models}", flush=True)
    write_json(run.o.json, run.results)
    print(f"{run.failed} failed of {len(run.results)}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
