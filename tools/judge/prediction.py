#!/usr/bin/env python3
"""Predicted against measured step time: rounds of pstune --quick --model, psplan and psrun --bench in turn, since the speed
of a shared machine drifts; the median of the rounds' ratios counts.

Usage: prediction.py MODEL.gguf [--bin build/release] [--rounds N] [--context N]
Exit 1 if the median of predicted / measured is off by more than 15% for decode or a 512-token prefill.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
p = argparse.ArgumentParser()
p.add_argument("model")
p.add_argument("--bin", default=os.path.join(here, "../../build/release"))
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--context", type=int, default=4096)
a = p.parse_args()


def run(program, *args):
    return subprocess.run([os.path.join(a.bin, program), *map(str, args)], check=True, capture_output=True, text=True).stdout


ratios = {"prefill": [], "decode": []}
with tempfile.TemporaryDirectory() as folder:
    profile, plan = os.path.join(folder, "profile.yaml"), os.path.join(folder, "plan.yaml")
    for i in range(a.rounds):
        run("pstune", "--fresh", "--quick", "--model", a.model, "--output", profile)
        run("psplan", "--profile", profile, "--context", a.context, "--output", plan, a.model)
        r = json.loads(run("psrun", "--quiet", "--json", "--bench", "--repeat", 5, "--plan", plan, a.model))
        for kind, list_ in ratios.items():
            list_.append(r[kind]["predicted_s"] / r[kind]["median_s"])
        print(f"round {i + 1}: prefill {ratios['prefill'][-1]:.3f}, decode {ratios['decode'][-1]:.3f}", file=sys.stderr)

ok = True
for kind, list_ in ratios.items():
    median = statistics.median(list_)
    ok &= abs(median - 1) <= 0.15
    print(f"{kind:8} predicted / measured: median {median:.3f}, {min(list_):.3f} to {max(list_):.3f} of {len(list_)} rounds")
sys.exit(0 if ok else 1)
