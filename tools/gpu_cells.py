#!/usr/bin/env python3
"""End-to-end runs on a GPU: the cells of the peers' table, every forced family in turn, prefill and decode and peak VRAM.

Usage: gpu_cells.py --bin BUILD --profile FILE --models DIR [--cells NAME,...] [--families F,...] [--json FILE] [--repeat N]
                    [--device NAME] [--tiny]
--tiny: tiny models of the same architectures, small budgets and few tokens: to try the script where there is no such GPU.
A family "auto" is what psplan picks by itself. Models are synthetic (pssynth presets that state a context of 40960 tokens, written to DIR unless they are there). For each cell and family: psplan --force, then
psrun --bench --json. Prints a line per run and per cell the best prefill and decode of all families against the peers'
(the better of llama.cpp b6097 hand-placed and the artifact of pipelined sharding, on an H200 with PCIe 5 x16 and 16 cores).
Exit 0: no run failed and none was above its budget; speed is reported, not judged, since peers were measured elsewhere.
"""
import argparse
import json
import os
import sys

from gpu_common import base_bytes, psrun, run, write_json

# name, preset, context, budget MiB, threads, sequences, prompt, decode steps, peers' prefill s, peers' decode tokens/s (all sequences)
CELLS = [
    ("8b-1k-2.8", "minitron-8b-f16", 2048, 2867, 0, 1, 1024, 32, 0.39, 5.1),
    ("8b-1k-8.8", "minitron-8b-f16", 2048, 9011, 0, 1, 1024, 32, 0.29, 9.0),
    ("8b-16k-8.9", "minitron-8b-f16", 18432, 9113, 0, 1, 16384, 16, 1.83, 5.0),
    ("30b-1k-2.8", "qwen3-30b-a3b-q4_0", 2048, 2867, 0, 1, 1024, 64, 0.81, 24.5),
    ("30b-1k-8.8", "qwen3-30b-a3b-q4_0", 2048, 9011, 0, 1, 1024, 64, 0.70, 33.9),
    ("30b-16k-8.9", "qwen3-30b-a3b-q4_0", 18432, 9113, 0, 1, 16384, 32, 9.6, 32.3),
    ("30b-1k-2.8-t4", "qwen3-30b-a3b-q4_0", 2048, 2867, 4, 1, 1024, 32, 0.88, 13.8),
    ("30b-1k-2.8-t8", "qwen3-30b-a3b-q4_0", 2048, 2867, 8, 1, 1024, 32, 0.80, 24.1),
    ("30b-1k-2.8-s4", "qwen3-30b-a3b-q4_0", 2048, 2867, 0, 4, 1024, 32, 3.0, 51),
    ("30b-1k-2.8-s16", "qwen3-30b-a3b-q4_0", 2048, 2867, 0, 16, 1024, 16, 12.5, 31),
    ("30b-1k-8.8-s4", "qwen3-30b-a3b-q4_0", 2048, 9011, 0, 4, 1024, 32, 2.6, 65),
    ("30b-1k-8.8-s16", "qwen3-30b-a3b-q4_0", 2048, 9011, 0, 16, 1024, 16, 11.0, 81),
]
FAMILIES = ["gpu", "direct", "static", "dynamic", "split"]
TINY = {"minitron-8b-f16": "tiny-llama", "qwen3-30b-a3b-q4_0": "tiny-qwen3moe"}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--bin", required=True)
    a.add_argument("--profile", required=True)
    a.add_argument("--models", required=True)
    a.add_argument("--cells")
    a.add_argument("--families", default=",".join(FAMILIES))
    a.add_argument("--json")
    a.add_argument("--repeat", default="3")
    a.add_argument("--threads", type=int, default=0, help="instead of the cells' own")
    a.add_argument("--timeout", type=float, default=120)
    a.add_argument("--device", default="cuda")
    a.add_argument("--tiny", action="store_true")
    o = a.parse_args()
    wanted = o.cells.split(",") if o.cells else [c[0] for c in CELLS]
    results, failed = [], 0
    for name, preset, context, mib, threads, seqs, prompt, steps, peer_prefill, peer_decode in CELLS:
        if name not in wanted:
            continue
        threads = o.threads or threads
        if o.tiny:
            preset, context, prompt, steps = TINY[preset], 512, 8, 4
            mib, threads = (base_bytes(o.profile) >> 20) + 80 + mib // 200, min(threads, 1)
        model = os.path.join(o.models, preset + ".gguf")
        if not os.path.exists(model):
            rc, _, err, s = run([f"{o.bin}/pssynth", "--preset", preset, "--n-ctx", "40960", model], 600)
            print(f"{preset}: written in {s:.1f} s" if rc == 0 else f"{preset}: {err}", flush=True)
            if rc != 0:
                return 1
        best = {}
        for family in o.families.split(","):
            plan = os.path.join(o.models, f"{name}-{family}.plan")
            command = [f"{o.bin}/psplan", "--profile", o.profile, "--budget", f"{mib}MiB", "--context", str(context),
                       "--parallel", str(seqs), "--workload", f"prompt={prompt},output=256", "--format", "binary", "--output", plan, model]
            if family != "auto":
                command[1:1] = ["--force", family]
            if threads:
                command[1:1] = ["--threads", str(threads)]
            rc, out, err, plan_s = run(command, 60)
            row = {"cell": name, "family": family, "plan_s": plan_s}
            if rc == 0:
                rc, out, err, _ = psrun(o, ["--plan", plan, "--budget", f"{mib}MiB", "--bench", "--parallel", str(seqs), "--bench-prompt",
                                            str(prompt), "--bench-decode", str(steps), "--repeat", o.repeat, "--json", model], o.timeout)
            results.append(row)
            if os.path.exists(plan):
                os.unlink(plan)
            if rc != 0:
                row["error"] = err[-300:]
                failed += rc != 1 or "bytes short" not in err
                write_json(o.json, results)
                print(f"{name:16} {family:8} exit {rc}: {err[-200:]}", flush=True)
                continue
            d = json.loads(out)
            row.update(prefill_s=d["prefill"]["median_s"], prefill_predicted_s=d["prefill"]["predicted_s"],
                       decode_tokens_per_s=d["decode"]["tokens_per_s"],
                       decode_step_s=d["decode"]["median_s"] / steps, decode_predicted_s=d["decode"]["predicted_s"] / steps,
                       load_s=d["load_s"], peak_vram_bytes=d.get("peak_vram_bytes", 0), budget_bytes=mib << 20, detail=d)
            write_json(o.json, results)
            over = row["peak_vram_bytes"] > row["budget_bytes"]
            failed += over
            print(f"{name:16} {family:8} prefill {row['prefill_s']:8.4f} s (predicted {row['prefill_predicted_s']:.4f})  decode "
                  f"{row['decode_tokens_per_s']:8.2f} tok/s (step {row['decode_step_s'] * 1e3:.2f} ms, predicted "
                  f"{row['decode_predicted_s'] * 1e3:.2f})  peak {row['peak_vram_bytes'] / 2**20:.0f} MiB{' OVER' if over else ''}",
                  flush=True)
            for key, better in (("prefill_s", min), ("decode_tokens_per_s", max)):
                best[key] = better(best[key], row[key]) if key in best else row[key]
        if best:
            p, t = peer_prefill / best["prefill_s"], best["decode_tokens_per_s"] / peer_decode
            print(f"{name:16} best     prefill {best['prefill_s']:.4f} s = {p:.2f}x peers, decode "
                  f"{best['decode_tokens_per_s']:.2f} tok/s = {t:.2f}x peers", flush=True)
            results.append({"cell": name, "family": "best", **best, "prefill_times_peers": p, "decode_times_peers": t})
    write_json(o.json, results)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
