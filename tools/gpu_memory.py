#!/usr/bin/env python3
"""The memory promise on a GPU: the meter never above the budget, and levels that follow what others take.

Usage: gpu_memory.py --bin BUILD --profile FILE --model FILE [--budgets GIB,...] [--context N] [--ballast PROGRAM] [--json FILE]
  budgets   for each: plan (all in one file), prefill of a full context and some decode steps; psrun samples the meter every
            10 ms and its peak must not be above the budget
  ballast   vram_ballast takes 1, then 2 GiB and gives them back while psrun generates under --watch-vram 6GiB: the number of
            generated tokens must be what was asked for, and every change must have been made
Exit 0: kept; 1: not.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--bin", required=True)
    a.add_argument("--profile", required=True)
    a.add_argument("--model", required=True)
    a.add_argument("--budgets", default="1.5,2,3,4,8")
    a.add_argument("--context", type=int, default=16384)
    a.add_argument("--ballast")
    a.add_argument("--tokens", type=int, default=120)
    a.add_argument("--json")
    o = a.parse_args()
    failed, results = 0, []
    names = [f"{int(float(b) * 1024)}MiB" for b in o.budgets.split(",")]
    plan = os.path.join(os.path.dirname(o.profile) or ".", "memory.plan")
    subprocess.run([f"{o.bin}/psplan", "-p", o.profile, "-b", ",".join(names), "-c", str(o.context), "-f", "binary", "-o", plan,
                    o.model], check=True, stdout=subprocess.DEVNULL)
    for name in names:
        start = time.time()
        p = subprocess.run([f"{o.bin}/psrun", "-p", plan, "-b", name, "--bench", "--bench-prompt", str(o.context - 8), "--bench-decode",
                            "8", "--repeat", "1", "--json", o.model], capture_output=True, text=True, check=False, timeout=240)
        if p.returncode != 0:
            failed += 1
            print(f"FAILED {name}: exit {p.returncode}: {p.stderr.strip()[-300:]}", flush=True)
            continue
        d, mib = json.loads(p.stdout), int(name[:-3])
        peak = d["peak_vram_bytes"]
        ok = 0 < peak <= mib << 20
        failed += not ok
        results.append({"budget_mib": mib, "peak_vram_bytes": peak, "ok": ok, "prefill_s": d["prefill"]["median_s"],
                        "decode_tokens_per_s": d["decode"]["tokens_per_s"]})
        print(f"{'ok    ' if ok else 'FAILED'} {name}, context {o.context} full: peak {peak / 2**20:.1f} MiB ({peak / (mib << 20) * 100:.1f}%), "
              f"prefill {d['prefill']['median_s']:.2f} s, decode {d['decode']['tokens_per_s']:.1f} tok/s, {time.time() - start:.0f} s", flush=True)
    if o.ballast: # 6 GiB less what the ballast and its context take: 5, 4, 3 GiB and back
        plan = os.path.join(os.path.dirname(o.profile) or ".", "ballast.plan")
        subprocess.run([f"{o.bin}/psplan", "-p", o.profile, "-b", "3GiB,4GiB,5GiB", "-c", str(o.context), "-f", "binary", "-o", plan,
                        o.model], check=True, stdout=subprocess.DEVNULL)
        run = subprocess.Popen([f"{o.bin}/psrun", "-p", plan, "--watch-vram", "6GiB", "--raw", "-m", "a b c d e f g h",
                                "-n", str(o.tokens), "--json", o.model], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(6)
        b = subprocess.run([o.ballast, "1024:2", "2048:2", "1024:2", "0:1"], capture_output=True, text=True, check=False)
        out, err = run.communicate(timeout=200)
        changes = [l for l in err.splitlines() if re.search(r"\bms\b", l) and "budget" in l]
        print("\n".join(changes))
        n = json.loads(out)["generated_tokens"] if run.returncode == 0 else 0
        ok = run.returncode == 0 and n == o.tokens and len(changes) >= 4 and b.returncode == 0
        failed += not ok
        results.append({"watch_vram": "6GiB", "ok": ok, "tokens": n, "changes": changes, "ballast": b.stdout.splitlines()})
        print(f"{'ok    ' if ok else 'FAILED'} --watch-vram 6GiB: {n} of {o.tokens} tokens, {len(changes)} changes of level"
              + ("" if run.returncode == 0 else f", exit {run.returncode}: {err.strip()[-300:]}"))
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
