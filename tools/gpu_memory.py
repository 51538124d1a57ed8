#!/usr/bin/env python3
"""The memory promise on a GPU: the meter never above the budget, and levels that follow what others take.

Usage: gpu_memory.py --bin BUILD --profile FILE --model FILE [--parts budgets,ballast] [--budgets MIB,...] [--context N]
                     [--ballast PROGRAM] [--levels MIB,...] [--total MIB] [--device NAME] [--json FILE]
  budgets   for each: plan (all in one file), prefill of a full context and some decode steps; psrun samples the meter every
            10 ms and its peak must not be above the budget
  ballast   psrun generates under --watch-vram while another process takes 1, then 2 GiB and gives them back (the program
            --ballast; on the emulated device a file that says so): the number of generated tokens must be what was asked for, every
            change made, and each smaller level reached within KV bytes / link rate + 100 ms
Exit 0: kept; 1: not.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time

from gpu_common import kill, on, run, taking_part, write_json


def budgets(o, note):
    names = [f"{b}MiB" for b in o.budgets.split(",")]
    plan = os.path.join(o.work, "memory.plan")
    rc, _, err, _ = run([f"{o.bin}/psplan", "-p", o.profile, "-b", ",".join(names), "-c", str(o.context), "-f", "binary", "-o", plan,
                       *taking_part(o.device), o.model], 60)
    if rc != 0:
        note(False, f"plan for {o.budgets} MiB", error=err[-300:])
        return
    for name in names:
        rc, out, err, s = run([f"{o.bin}/psrun", "-p", plan, "-b", name, *on(o.device), "--bench", "--bench-prompt", str(o.context - 8),
                               "--bench-decode", "8", "--repeat", "1", "--json", o.model], o.timeout)
        if rc != 0:
            note(False, name, error=f"exit {rc}: {err[-300:]}")
            continue
        d, mib = json.loads(out), int(name[:-3])
        peak = d["peak_vram_bytes"]
        note(0 < peak <= mib << 20, f"{name}, context {o.context} full", peak_mib=peak / 2**20, of_budget=peak / (mib << 20),
             prefill_s=d["prefill"]["median_s"], decode_tokens_per_s=d["decode"]["tokens_per_s"], seconds=s)


def take_emulated(path, total, levels, wait_s):
    """What other processes take: room for each smaller level in turn, then all of it again."""
    for mib in [total - l - 24 for l in levels[-2::-1]] + [0]:
        time.sleep(wait_s)
        with open(path + ".new", "w", encoding="utf-8") as f:
            f.write(f"{mib << 20}\n")
        os.replace(path + ".new", path)


def ballast(o, note):
    plan, levels = os.path.join(o.work, "ballast.plan"), [int(l) for l in o.levels.split(",")]
    rc, out, err, _ = run([f"{o.bin}/psplan", "-p", o.profile, "-b", ",".join(f"{l}MiB" for l in levels), "-c", str(o.context), "-f", "binary",
                           "--json", "-o", plan, *taking_part(o.device), o.model], 60)
    if rc != 0:
        note(False, "plan", error=err[-300:])
        return
    kv = max(l["memory"]["vram_kv_bytes"] for l in json.loads(out)["levels"])
    command = [f"{o.bin}/psrun", "-p", plan, *on(o.device), "--watch-vram", f"{o.total}MiB", "--raw", "-m", "a b c d e f g h",
               "-n", str(o.tokens), "--json", o.model]
    others = os.path.join(o.work, "others")
    if o.device == "emulated":
        with open(others, "w", encoding="utf-8") as f:
            f.write("0\n")
        command += ["--emulated-others", others]
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=os.setpgrp)
    late = threading.Timer(o.timeout, kill, [p])
    late.start()
    took = []
    if o.device == "emulated":
        took = ["emulated"]
        taker = threading.Thread(target=take_emulated, args=(others, o.total, levels, o.wait))
        taker.start()
        taker.join()
    else:
        time.sleep(o.wait)
        rc, said, _, _ = run([o.ballast, "1024:2", "2048:2", "1024:2", "0:1"], 60)
        took = said.splitlines() if rc == 0 else []
    out, err = p.communicate()
    late.cancel()
    changes = [(m.group(1), m.group(2), float(m.group(3)))
               for m in re.finditer(r"budget (\S+), was (\S+): changed in ([\d.]+) ms", err)]
    size = lambda b: float(re.match(r"[\d.]+", b).group()) * (1024 if "GiB" in b else 1)
    down = [ms for now, was, ms in changes if size(now) < size(was)]
    n = json.loads(out)["generated_tokens"] if p.returncode == 0 else 0
    most = kv / (o.link * 1e9) * 1e3 + 100
    most_tokens = o.tokens
    if p.returncode == 0 and n < o.tokens: # the model may have ended by itself
        _, said, _, _ = run([f"{o.bin}/psrun", "-p", plan, "-b", f"{levels[-1]}MiB", *on(o.device), *command[command.index("--raw"):command.index(o.model)], o.model],
                            o.timeout)
        most_tokens = json.loads(said)["generated_tokens"] if said else o.tokens
    note(p.returncode == 0 and n == most_tokens and bool(took), f"--watch-vram {o.total} MiB: no token lost or repeated", tokens=n, of=most_tokens,
         **({} if p.returncode == 0 else {"error": f"exit {p.returncode}: {err[-300:]}"}))
    note(len(down) >= 2 and len(changes) > len(down), "levels follow what others take, both ways", changes=len(changes), down=len(down))
    note(bool(down) and max(down) <= most, "a smaller level in time", slowest_ms=max(down, default=-1), limit_ms=most, kv_mib=kv / 2**20)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--bin", required=True)
    a.add_argument("--profile", required=True)
    a.add_argument("--model", required=True)
    a.add_argument("--parts", default="budgets,ballast")
    a.add_argument("--budgets", default="1536,2048,3072,4096,8192")
    a.add_argument("--context", type=int, default=16384)
    a.add_argument("--ballast", help="the program vram_ballast")
    a.add_argument("--levels", default="3072,4096,5120", help="of the plan under --watch-vram")
    a.add_argument("--total", type=int, default=6144, help="what --watch-vram takes the card to have, MiB")
    a.add_argument("--link", type=float, default=50, help="GB/s that KV goes home at")
    a.add_argument("--wait", type=float, default=6, help="seconds until psrun has loaded")
    a.add_argument("--tokens", type=int, default=120)
    a.add_argument("--timeout", type=float, default=200)
    a.add_argument("--device", default="cuda")
    a.add_argument("--json")
    o = a.parse_args()
    o.work = os.path.dirname(o.json or o.profile) or "."
    results = []

    def note(ok, what, **figures):
        results.append({"what": what, "ok": bool(ok), **figures})
        text = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
        print(f"{'ok    ' if ok else 'FAILED'} {what}: {text}", flush=True)
        write_json(o.json, results)

    if "budgets" in o.parts:
        budgets(o, note)
    if "ballast" in o.parts and (o.ballast or o.device == "emulated"):
        ballast(o, note)
    return 1 if not results or not all(r["ok"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
