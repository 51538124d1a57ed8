#!/usr/bin/env python3
"""Speed against llama.cpp on the same machine, threads and file: prefill and decode of both in turn, medians of the
pairwise ratios. The peer comes from PyPI (pip install llama-cpp-python) and is no part of this repository.

Usage: speed.py MODEL.gguf PLAN [--psrun PATH] [--python PYTHON_WITH_LLAMA_CPP] [--threads N] [--rounds N]
                [--prompt N] [--decode N] [--json]
Exit 1 if decode is below 0.9 or prefill below 0.8 of the peer's speed. The peer gets the better of its two attention
paths, measured in the same run.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))
p = argparse.ArgumentParser()
p.add_argument("model")
p.add_argument("plan")
p.add_argument("--psrun", default=os.path.join(here, "../../build/release/psrun"))
p.add_argument("--python", default=sys.executable)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--rounds", type=int, default=9)
p.add_argument("--prompt", type=int, default=512)
p.add_argument("--decode", type=int, default=64)
p.add_argument("--json", action="store_true")
a = p.parse_args()


def start_peer(flash):
    args = [a.python, os.path.join(here, "peer_bench.py"), a.model, a.threads, a.prompt, a.decode, flash]
    peer = subprocess.Popen([str(x) for x in args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if peer.stdout.readline().strip() != "ready":
        sys.exit("speed.py: the peer did not start")
    return peer


def peer_round(peer):
    peer.stdin.write("go\n")
    peer.stdin.flush()
    return json.loads(peer.stdout.readline())


def own_round():
    out = subprocess.run([a.psrun, "--bench", "--json", "--quiet", "--repeat", "1", "--plan", a.plan, "--threads", str(a.threads),
                          "--bench-prompt", str(a.prompt), "--bench-decode", str(a.decode), a.model],
                         check=True, capture_output=True, text=True).stdout
    r = json.loads(out)
    return {k + "_s": r[k]["median_s"] for k in ("prefill", "decode")} | {
        k + "_predicted_s": r[k]["predicted_s"] for k in ("prefill", "decode")}


peers = [start_peer(0), start_peer(1)]
rounds = [(own_round(), [peer_round(x) for x in peers]) for _ in range(a.rounds)]
for peer in peers:
    peer.stdin.close()
    peer.wait()

result, ok = {}, True
for kind, n, target in (("prefill", a.prompt, 0.8), ("decode", a.decode, 0.9)):
    key = kind + "_s"
    medians = [statistics.median(r[1][i][key] for r in rounds) for i in range(2)]
    flash = 0 if medians[0] <= medians[1] else 1
    ratios = [r[1][flash][key] / r[0][key] for r in rounds]
    own = statistics.median(r[0][key] for r in rounds)
    predicted = statistics.median(r[0][kind + "_predicted_s"] for r in rounds)
    q = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    result[kind] = {"ratio": statistics.median(ratios), "ratio_q1": q[0], "ratio_q3": q[2], "own_tokens_per_s": n / own,
                    "peer_tokens_per_s": n / medians[flash], "peer_flash_attention": bool(flash),
                    "predicted_over_measured": predicted / own, "target": target}
    ok &= result[kind]["ratio"] >= target
if a.json:
    print(json.dumps(result, indent=2))
else:
    print(f"{'':8} {'ours':>9} {'llama.cpp':>10} tokens/s   ratio (quartiles)      target   predicted/measured")
    for kind, r in result.items():
        print(f"{kind:8} {r['own_tokens_per_s']:9.1f} {r['peer_tokens_per_s']:10.1f}            {r['ratio']:.3f} "
              f"({r['ratio_q1']:.3f} to {r['ratio_q3']:.3f})  {r['target']:.1f}      {r['predicted_over_measured']:.3f}")
sys.exit(0 if ok else 1)
