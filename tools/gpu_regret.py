#!/usr/bin/env python3
"""What the planner's choice costs against the best: each family forced and measured beside the schedule that psplan picks.

Usage: gpu_regret.py --bin BUILD --profile FILE --model FILE [--budgets MIB,...] [--device NAME] [--json FILE] [--repeat N]
                     [--short N] [--long N] [--few N] [--limit SECONDS]
For each budget four cells: a prefill of --few (64) and of --short (1024) tokens, decode behind the latter, and decode behind --long
(16384). Untraced runs. For each cell a line: the choice, the best family, how far apart, and prediction against measurement; at the end
the errors of all predictions, the share of the reachable bound, and peak VRAM against its prediction.
Exit 0: the choice is within 3% of the best measured in every cell, predictions within 5% in the median and 15% at worst, peak VRAM
predicted 0 to 10% over; 1: not, or a run failed; with --limit what there was no time for is left out and said.
"""
import argparse
import json
import os
import statistics
import sys
import time

from gpu_common import psrun, read_json, run, write_json

FAMILIES = ["auto", "gpu", "direct", "static", "dynamic", "split"]


def one(o, budget, family, context, prompt, steps):
    """Plan and run: figures of prefill and decode, or {"error": ...}; None: this family does not fit."""
    plan = os.path.join(o.work, f"regret-{budget}-{family}-{context}.plan")
    command = [f"{o.bin}/psplan", "-p", o.profile, "-b", f"{budget}MiB", "-c", str(context), "-f", "binary", "--json", "-o", plan, o.model]
    rc, out, err, _ = run(command + (["--force", family] if family != "auto" else []), 90)
    if rc != 0:
        return None if rc == 1 and "bytes short" in err else {"error": err[-300:]}
    level = json.loads(out)["levels"][0]
    rc, out, err, _ = psrun(o, ["-p", plan, "-b", f"{budget}MiB", "--bench", "--bench-prompt", str(prompt), "--bench-decode", str(steps), "--repeat",
                                str(o.repeat), "--json", o.model], 120)
    os.unlink(plan)
    if rc != 0:
        return {"error": err[-300:]}
    d, memory = json.loads(out), level["memory"]
    tiers = {t["max_tokens"]: t for t in level["tiers"]}
    tier = tiers[min(t for t in tiers if t >= prompt)] if any(t >= prompt for t in tiers) else tiers[max(tiers)]
    return {"prefill": {"measured_s": d["prefill"]["median_s"], "predicted_s": d["prefill"]["predicted_s"],
                        "reachable_s": tier["reachable_bound_s"] * max(1, prompt / tier["max_tokens"])},
            "decode": {"measured_s": d["decode"]["median_s"] / steps, "predicted_s": d["decode"]["predicted_s"] / steps,
                       "reachable_s": tiers[min(tiers)]["reachable_bound_s"]},
            "peak_vram_bytes": d["peak_vram_bytes"],
            "predicted_vram_bytes": memory["vram_base_bytes"] + memory["vram_work_bytes"] + memory["vram_weight_bytes"]}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--bin", required=True)
    a.add_argument("--profile", required=True)
    a.add_argument("--model", required=True)
    a.add_argument("--budgets", default="3072,8192")
    a.add_argument("--families", default=",".join(FAMILIES))
    a.add_argument("--device", default="cuda")
    a.add_argument("--json")
    a.add_argument("--repeat", type=int, default=3)
    a.add_argument("--few", type=int, default=64)
    a.add_argument("--short", type=int, default=1024)
    a.add_argument("--long", type=int, default=16384)
    a.add_argument("--steps", type=int, default=16)
    a.add_argument("--limit", type=float, default=1e9)
    o = a.parse_args()
    o.work = os.path.dirname(o.json or o.profile) or "."
    start = time.time()
    # (cell, context, prompt, what of it counts); runs of one context and prompt are made once
    short, long = o.short * 2 + o.steps, o.long + o.short * 2 + o.steps
    cells = [(f"prefill {o.few}", short, o.few, "prefill"), (f"prefill {o.short}", short, o.short, "prefill"),
             (f"decode at {o.short}", short, o.short, "decode"), (f"decode at {o.long}", long, o.long, "decode")]
    done = read_json(o.json, {}) if o.json else {}
    runs, rows, failed, left_out = done.get("runs", {}), [], 0, 0
    for budget in o.budgets.split(","):
        for context, prompt in sorted({c[1:3] for c in cells}):
            for family in o.families.split(","):
                key = f"{budget} {context} {prompt} {family}"
                if key in runs:
                    continue
                if time.time() - start > o.limit - 30:
                    print(f"not run: {key}: the time is up", flush=True)
                    left_out += 1
                    continue
                t = time.time()
                runs[key] = one(o, budget, family, context, prompt, o.steps)
                r = runs[key]
                if r and "error" in r:
                    failed += 1
                print(f"{key}: " + ("does not fit" if r is None else r["error"] if "error" in r else
                                    f"prefill {r['prefill']['measured_s']:.4f} s, decode {r['decode']['measured_s'] * 1e3:.2f} ms")
                      + f" ({time.time() - t:.0f} s)", flush=True)
                write_json(o.json, {"model": o.model, "runs": runs})
        for cell, context, prompt, what in cells:
            got = {f: runs.get(f"{budget} {context} {prompt} {f}") for f in o.families.split(",")}
            got = {f: r for f, r in got.items() if r and "error" not in r}
            if "auto" not in got or len(got) < 2:
                continue
            best = min(got, key=lambda f, w=what, g=got: g[f][w]["measured_s"])
            ours, most = got["auto"][what], got[best][what]["measured_s"]
            rows.append({"budget_mib": int(budget), "cell": cell, "best": best, "regret_frac": ours["measured_s"] / most - 1,
                         "off_frac": ours["predicted_s"] / ours["measured_s"] - 1,
                         "reachable_frac": ours["reachable_s"] / ours["measured_s"]})
            r = rows[-1]
            met = r["regret_frac"] <= 0.03
            failed += not met
            print(f"{'ok    ' if met else 'FAILED'} {budget} MiB, {cell}: {ours['measured_s']:.5f} s, best {best} {most:.5f} s: "
                  f"{100 * r['regret_frac']:+.1f}%; predicted {100 * r['off_frac']:+.1f}%; {100 * r['reachable_frac']:.0f}% of the "
                  "reachable bound", flush=True)
    off = [abs(r[w]["predicted_s"] / r[w]["measured_s"] - 1) for r in runs.values() if r and "error" not in r for w in ("prefill", "decode")]
    vram = [r["predicted_vram_bytes"] / r["peak_vram_bytes"] - 1 for r in runs.values() if r and r.get("peak_vram_bytes")]
    summary = {}
    if off:
        summary = {"regret_worst_frac": max((r["regret_frac"] for r in rows), default=None), "off_median_frac": statistics.median(off),
                   "off_worst_frac": max(off), "vram_over_min_frac": min(vram, default=None), "vram_over_max_frac": max(vram, default=None)}
        met = summary["off_median_frac"] <= 0.05 and summary["off_worst_frac"] <= 0.15
        failed += not met
        print(f"{'ok    ' if met else 'FAILED'} predictions, {len(off)} figures of all families: off by {100 * summary['off_median_frac']:.1f}% "
              f"in the median, {100 * summary['off_worst_frac']:.1f}% at worst")
        met = bool(vram) and min(vram) >= 0 and max(vram) <= 0.10
        failed += not met
        print(f"{'ok    ' if met else 'FAILED'} peak VRAM predicted " + (f"{100 * min(vram):.1f}% to {100 * max(vram):.1f}% over" if vram else "?"))
    write_json(o.json, {"model": o.model, "runs": runs, "cells": rows, "summary": summary, "left_out": left_out})
    return 1 if failed or not off else 0


if __name__ == "__main__":
    sys.exit(main())
