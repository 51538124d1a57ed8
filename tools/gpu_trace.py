#!/usr/bin/env python3
"""Figures of a measured trace (psrun --trace): how busy the queues were, and what a layer costs beyond its parts.

Usage: gpu_trace.py TRACE.json [--json]. For the steps of each tier (the first one of each, which warms up, left out where there
are more): median step, share of it that each queue is busy, and for steps with a CPU part in their layers
  overhead_us   (step - sum over layers of the longer of the CPU's and the GPU's busy time in that layer) / layers
  host_us, gpu_us   medians over the layers of the CPU's and the GPU's busy time
"""
import json
import statistics
import sys


def union(spans):
    total, end = 0.0, -1.0
    for a, b in sorted(spans):
        total += max(0.0, b - max(a, end))
        end = max(end, b)
    return total


def figures(step):
    c = {name: i for i, name in enumerate(step["columns"])}
    queues, layers = {}, {}
    for r in step["rows"]:
        a, b, q, layer = r[c["start_s"]], r[c["end_s"]], r[c["queue"]], r[c["layer"]]
        queues.setdefault(q, []).append((a, b))
        layers.setdefault(layer, {}).setdefault(q, []).append((a, b))
    out = {"step_s": step["step_s"], "predicted_s": step["predicted_s"],
           "busy": {q: union(s) / step["step_s"] for q, s in queues.items()}}
    both = [l for l in layers.values() if union(l.get("cpu", [])) > 1e-6 and "gpu" in l]
    if len(both) > 1:
        longer = sum(max(union(l.get("cpu", [])), union(l.get("gpu", []))) for l in layers.values())
        out["overhead_us"] = (step["step_s"] - longer) / len(layers) * 1e6
        out["host_us"] = statistics.median(union(l["cpu"]) for l in both) * 1e6
        out["gpu_us"] = statistics.median(union(l["gpu"]) for l in both) * 1e6
    return out


def tiers(path):
    """One row per level, tier and number of tokens."""
    with open(path, encoding="utf-8") as f:
        trace = json.load(f)
    found, rows = {}, []
    for step in trace["steps"]:
        found.setdefault((step["level"], step["tier"], step["n_tokens"]), []).append(figures(step))
    for (level, tier, tokens), steps in sorted(found.items()):
        steps = steps[1:] or steps
        row = {"level": level, "tier": tier, "n_tokens": tokens, "n": len(steps)}
        for key in ("step_s", "predicted_s", "overhead_us", "host_us", "gpu_us"):
            values = [s[key] for s in steps if key in s]
            if values:
                row[key] = statistics.median(values)
        row["busy"] = {q: statistics.median(s["busy"].get(q, 0.0) for s in steps) for q in steps[0]["busy"]}
        rows.append(row)
    return rows


def main():
    rows = tiers(sys.argv[1])
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=1))
        return
    for r in rows:
        busy = ", ".join(f"{q} {100 * b:.1f}%" for q, b in sorted(r["busy"].items()))
        more = f", {r['overhead_us']:.1f} us a layer beyond the longer part" if "overhead_us" in r else ""
        print(f"{r['n_tokens']} tokens, {r['n']} steps: {r['step_s'] * 1e3:.2f} ms, busy: {busy}{more}")


if __name__ == "__main__":
    main()
