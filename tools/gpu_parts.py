"""The parts of gpu_check.py. Each is a function of the check: it runs programs within its limit and gives rows."""
import collections
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time

from gpu_common import on
from gpu_trace import tiers


class NotRun(Exception):
    """Why a part could not be run here; no failure."""


Scale = collections.namedtuple("Scale", "dense moe n_ctx few short long budgets streaming_mib context tune_s quick_s repeat")
REAL = Scale("minitron-8b-f16", "qwen3-30b-a3b-q4_0", 40960, 64, 1024, 16384, [3072, 8192], 3072, 2048, 200, 36, 3)
TINY = Scale("tiny-llama", "tiny-qwen3moe", 2048, 4, 8, 24, [150, 200], 150, 64, 6, 3, 1)
# Large enough that not all of them fits beside what any run takes.
TINY_SHAPES = {"tiny-llama": "--type F16 --n-embd 512 --n-ff 1536 --n-layers 5", "tiny-qwen3moe": "--type F16 --n-expert 128 --n-ff-expert 256"}

Part = collections.namedtuple("Part", "name limit_s about go real_only")
PARTS = []


def part(name, limit_s, about, real_only=False):
    def add(go):
        PARTS.append(Part(name, limit_s, about, go, real_only))
        return go
    return add


# ---- build and tests ----
@part("build", 420, "builds for this GPU", real_only=True)
def build(c):
    cap = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True,
                         check=True).stdout.splitlines()[0].replace(".", "")
    targets = ["test_cuda_device", "test_cuda_kernels", "bench_cuda_kernels", "vram_ballast", "bench_points", "pstune", "psplan", "psrun", "pssynth"]
    # Machine code for this GPU alone beside the PTX for 7.5: a full preset takes minutes.
    for command in (["cmake", "--preset", "gpu", "-B", c.o.build, f"-DCMAKE_CUDA_ARCHITECTURES=75-virtual;{cap}-real", *c.o.cmake],
                    ["cmake", "--build", c.o.build, "-j", str(os.cpu_count()), "-t", *targets]):
        rc, out, err, s = c.run(command)
        if rc != 0:
            print((out + err)[-3000:])
            c.failed("build", f"{command[1]}: exit {rc}")
            return
    c.row("build", f"{s:.0f} s")


def device_tests(c, label, env=None):
    rc, out, err, _ = c.run([c.tool("test_cuda_device")], 200, env={**os.environ, **(env or {})})
    passed, each = out.count(": passed"), re.search(r"each of (\d+) calls failed", out)
    c.row(f"device, {label}", f"{passed} scenarios passed", "all", rc == 0)
    c.row(f"device, {label}: calls made to fail", f"{each.group(1) if each else '?'} in turn", "an error, no hang", "faults: passed" in out)
    if rc != 0:
        print((out + err)[-2000:])


JIT = {"CUDA_FORCE_PTX_JIT": "1", "CUDA_CACHE_DISABLE": "1"}


@part("device", 120, "memory, streams, hand-over, graphs, meter; each CUDA call made to fail", real_only=True)
def device(c):
    device_tests(c, "native")


@part("device_ptx", 150, "the same from PTX for 7.5", real_only=True)
def device_ptx(c):
    device_tests(c, "ptx-7.5", JIT)


KERNELS = ("matmul.f matmul.bf matmul.q4 matmul.q5 matmul.q6 matmul.q8 gemm.f gemm.q4 gemm.q5 gemm.q6 gemm.q8 matvec.f32 matvec.f16 "
           "matvec.bf16 matvec.q4_0 matvec.q4_1 matvec.q5_0 matvec.q5_1 matvec.q8_0 matvec.q4_k matvec.q5_k matvec.q6_k rmsnorm rope "
           "kv_store attention.split attention.flash copy topk glu add convert gather moe_route argmax moe.f moe.bf moe.q4 moe.q5 moe.q6 "
           "moe.q8").split()


def sweep(c, label, before=(), more=(), env=None):
    """test_cuda_kernels for each name, all at once; each program's own end counts."""
    running, cases, bad, late = {}, 0, [], []
    for name in KERNELS:
        out = open(c.work(f"kernels-{label}-{name}"), "w+", encoding="utf-8")
        running[name] = (subprocess.Popen([*before, c.tool("test_cuda_kernels"), *more, f"cuda.{name}"], stdout=out, stderr=out,
                                          env={**os.environ, **(env or {})}, preexec_fn=os.setpgrp), out)
    for name, (p, out) in running.items():
        try:
            rc = p.wait(c.left())
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            rc = 124
        out.seek(0)
        text = out.read()
        out.close()
        found = re.findall(r"(\d+) cases, ", text)
        cases += int(found[-1]) if found else 0
        if rc == 124:
            late.append(name)
        elif rc != 0:
            bad.append(name)
            print("\n".join([f"== FAILED: {label} {name}"] + [l for l in text.splitlines() if re.search("FAILED|rror|ERROR|hazard", l)][:5]))
    c.row(f"kernels against the reference, {label}", f"{cases} cases, {len(bad)} of {len(KERNELS)} failed", "0 failed", not bad,
          failed=bad)
    if late:
        c.not_run(f"kernels, {label}: {len(late)}", "no time left for " + ", ".join(late))


@part("kernels", 200, "every kernel against the double-precision reference", real_only=True)
def kernels(c):
    sweep(c, "native")


@part("kernels_ptx", 300, "the same from PTX for 7.5", real_only=True)
def kernels_ptx(c):
    sweep(c, "ptx-7.5", env=JIT)


def sanitizer(c, tool):
    if not any(os.access(os.path.join(d, "compute-sanitizer"), os.X_OK) for d in os.environ["PATH"].split(":")):
        raise NotRun("compute-sanitizer is not here")
    rc, out, err, _ = c.run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", c.tool("test_cuda_kernels"), "--few", "cuda.add"], 60)
    if rc not in (0, 9):
        raise NotRun(f"the tool refuses this machine: {(out + err).strip().splitlines()[-1][:80]}")
    # Fewer cases: the tools slow kernels down a hundredfold.
    sweep(c, tool, before=["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"], more=["--few"])


@part("memcheck", 420, "compute-sanitizer: memory accesses", real_only=True)
def memcheck(c):
    sanitizer(c, "memcheck")


@part("racecheck", 420, "compute-sanitizer: races", real_only=True)
def racecheck(c):
    sanitizer(c, "racecheck")


@part("speed", 200, "speed of kernels against their targets, and attention beside PyTorch's", real_only=True)
def speed(c):
    rc, out, err, _ = c.run([c.tool("bench_cuda_kernels"), "--json"])
    rows = [json.loads(l.strip().rstrip(",")) for l in out.splitlines() if l.strip().startswith("{")]
    c.detail["speed"] = rows
    if rc not in (0, 1) or not rows:
        c.failed("bench_cuda_kernels", f"exit {rc}: {err[-200:]}")
    for r in rows:
        if r["met"] is not None:
            c.row(f"{r['kernel']}, {r['shape']}", f"{r['us']:.2f} us, {r['gb_per_s']:.0f} GB/s", f"<= {r['target_us']:.2f} us", r["met"])
    rc, out, err, _ = c.run([sys.executable, "tests/gpu/bench_torch_attention.py"], 90)
    if rc != 0:
        c.not_run("attention.flash beside PyTorch's", (err.splitlines() or ["?"])[-1])
        return
    for t in (json.loads(l) for l in out.splitlines() if l.startswith("{")):
        ours = [r["us"] for r in rows if "attention.flash" in r["kernel"] and r["shape"] == t["shape"]]
        if ours:
            share = t["ms"] * 1000 / ours[0]
            judged = t["shape"].endswith((", 4096 tokens", ", 16384 tokens"))
            c.row(f"attention.flash, {t['shape']}", f"{ours[0]:.0f} us, torch {t['ms'] * 1000:.0f} us", ">= 0.70 of torch's speed",
                  share >= 0.7 if judged else None, share=share)


def numerics_part(c, parts, *more):
    rc, results = c.script("gpu_numerics.py", "--parts", parts, "--work", c.work("numerics"), *more,
                           *(["--models", c.o.models] if c.o.models else []))
    for r in results or []:
        figures = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in r.items() if k in (
            "relative_difference", "differ", "of_clear", "kl", "placements", "different", "runs", "different_runs"))
        c.row(r["what"], figures, "within llama.cpp's" if "kl" in r else "0 different" if "runs" in r else "< 0.05", r["ok"], sure=True)
    if rc not in (0, 1) or not results:
        c.failed(parts, f"gpu_numerics.py: exit {rc}") if rc != 0 else c.not_run(parts, "no model")


@part("numerics_tiny", 200, "every family on tiny models against the host's logits")
def numerics_tiny(c):
    numerics_part(c, "tiny")


def real_model(c, name, parts, more=()):
    file = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}[name]
    if not c.o.models or not os.path.exists(os.path.join(c.o.models, file)):
        raise NotRun(f"{file} is not in {c.o.models}")
    numerics_part(c, parts, "--only", name, *more)


@part("numerics_smollm2", 240, "every family on SmolLM2 against the float32 reference", real_only=True)
def numerics_smollm2(c):
    real_model(c, "smollm2", "real")


@part("numerics_gemma3", 300, "every family on Gemma 3 against the float32 reference", real_only=True)
def numerics_gemma3(c):
    real_model(c, "gemma3", "real")


@part("bits", 200, "any mix of placements and ten runs: the same bits")
def bits(c):
    numerics_part(c, "bits", "--runs", "2" if c.emulated else "10")


@part("bits_real", 240, "the same with SmolLM2", real_only=True)
def bits_real(c):
    real_model(c, "smollm2", "bits", ["--runs", "10"])


# ---- models, profiles, ceilings ----
def model(c, preset):
    path = c.work(preset + ".gguf")
    if not os.path.exists(path):
        rc, _, err, s = c.run([c.tool("pssynth"), "--preset", preset, "--n-ctx", c.scale.n_ctx, *TINY_SHAPES.get(preset, "").split(), path + ".new"])
        if rc != 0:
            raise RuntimeError(f"pssynth: {err}")
        os.replace(path + ".new", path)
        c.row(f"{preset} written", f"{os.path.getsize(path) / s / 1e9:.2f} GB/s, {s:.0f} s")
    return path


def pstune(c, out, *options, seconds=None):
    timer = ["--timer", "events"] if c.state.get("timer") == "events" and "--timer" not in options else []
    cupti = ["--cupti", c.o.cupti] if c.o.cupti and "events" not in [*timer, *options] else []
    rc, _, err, s = c.run([c.tool("pstune"), "--device", c.o.device, *timer, *cupti, *options, "-o", out], seconds)
    if rc != 0:
        raise RuntimeError(f"pstune: exit {rc}: {err[-200:]}")
    return s


def profile(c, preset):
    path, file = c.work(preset + ".yaml"), model(c, preset)
    if not os.path.exists(path):
        pstune(c, path, "--quick", "--model", file, "--time", str(c.scale.quick_s), seconds=120)
    return path


@part("timer", 120, "CUPTI can be used; short profiles by it and by events")
def timer(c):
    paths = [c.work(f"timer-{t}.yaml") for t in ("events", "cupti")]
    seconds = "8" if c.emulated else "20"
    pstune(c, paths[0], "--quick", "--fresh", "--time", seconds, "--timer", "events", seconds=50)
    try:
        pstune(c, paths[1], "--quick", "--fresh", "--time", seconds, "--timer", "cupti", seconds=60)
    except RuntimeError as e:
        c.state["timer"] = "events"  # nothing after this is held up by it
        c.not_run("GPU time by CUPTI", str(e))
        return
    c.state["timer"] = "auto"
    g = show(c, paths[1])["gpu"]
    checks = g["timer_checks"]
    c.row("GPU time by CUPTI", f"gap {g['timer_gap_s'] * 1e9:.0f} ns, kernel in a graph {g['graph_node_s']['median'] * 1e9:.0f} ns", "it can be used", True)
    if checks:
        worst = max(checks, key=lambda k: abs(k["median_frac"]))
        c.row("CUPTI against events, quick", f"{sum(k['n'] for k in checks)} points, worst kernel {100 * worst['median_frac']:+.1f}%", "within 5% over 20 us",
              abs(worst["median_frac"]) <= 0.05, checks=checks)
    d = json.loads(c.run([c.tool("pstune"), "diff", "--json", *paths])[1])
    speeds = sorted(e["speed"] for e in d["entries"] if e["name"].startswith("cuda."))
    if speeds:
        c.row("kernels by CUPTI against by events", f"{len(speeds)} points, time {100 * (1 / statistics.median(speeds) - 1):+.1f}% in the median, "
              f"{100 * (1 / speeds[-1] - 1):+.0f}% to {100 * (1 / speeds[0] - 1):+.0f}%")


@part("models", 240, "synthetic models in real shapes, and a profile for each")
def models(c):
    for preset in (c.scale.dense, c.scale.moe):
        model(c, preset)
        p = profile(c, preset)
        shown = json.loads(c.run([c.tool("pstune"), "show", "--json", p])[1])
        g = shown["gpu"]
        c.row(f"VRAM before any weight, {preset}", f"{g['base_bytes'] / 2**20:.0f} MiB", "", None,
              context=g["context_bytes"], modules=g["modules_bytes"], blas=g["blas_bytes"], meter=g["meter"])


@part("probes", 150, "ceilings by plain programs", real_only=True)
def probes(c):
    if not c.o.probes:
        raise NotRun("--probes was not given")
    found = {"read": {}, "direct": {}}
    for name, flags in (("ceilings", ["-Xcompiler", "-mavx2,-pthread"]), ("direct", ["-Xcompiler", "-mavx2,-pthread", "-lcuda"])):
        program = c.work(name)
        rc, out, err, _ = c.run(["nvcc", "-O3", "-std=c++17", f"-arch=native", *flags, os.path.join(c.o.probes, name + ".cu"), "-o", program], 60)
        if rc != 0:
            c.failed(f"probe {name}", (out + err)[-200:])
            continue
        # The last thing that direct does may never answer: what it printed before is enough.
        rc, out, err, _ = c.run([program], 60 if name == "ceilings" else 30)
        found[name + "_output"] = out
    for m in re.finditer(r"CPU read +(\d+) threads: alone ([\d.]+) \| with H2D ([\d.]+) \(PCIe ([\d.]+)\) \| with D2H ([\d.]+) \(PCIe ([\d.]+)\)",
                         found.get("ceilings_output", "")):
        found["read"][m.group(1)] = {"alone": float(m.group(2)), "h2d": [float(m.group(4)), float(m.group(3))],
                                     "d2h": [float(m.group(6)), float(m.group(5))]}
    for m in re.finditer(r"CPU +(\d+) threads ([\d.]+) GB/s beside a kernel reading host memory at ([\d.]+)", found.get("direct_output", "")):
        found["direct"][m.group(1)] = [float(m.group(3)), float(m.group(2))]
    c.detail["probes"] = found
    for n, r in found["read"].items():
        d = found["direct"].get(n)
        c.row(f"probes, {n} threads, GB/s", f"read {r['alone']:.0f}; h2d {r['h2d'][0]:.0f} + {r['h2d'][1]:.0f}"
              + (f"; direct {d[0]:.0f} + {d[1]:.0f}" if d else ""))


# ---- runs ----
def plan(c, preset, budget_mib, context, family, out, *more):
    """Plan into `out`; the level as psplan --json gives it, None where the family does not fit."""
    rc, text, err, _ = c.run([c.tool("psplan"), "-p", profile(c, preset), "-b", f"{budget_mib}MiB", "-c", context, "-f", "binary", "--json", "-o", out,
                              *(["--force", family] if family else []), *more, model(c, preset)], 60)
    if rc != 0:
        raise RuntimeError(f"psplan: {err[-200:]}")
    return json.loads(text)["levels"][0]


def bench(c, preset, planned, prompt, steps, *more):
    rc, text, err, _ = c.run([c.tool("psrun"), "-p", planned, *on(c.o.device), "--bench", "--bench-prompt", prompt, "--bench-decode", steps, "--repeat",
                              c.scale.repeat, "--json", *more, model(c, preset)], 120)
    if rc != 0:
        raise RuntimeError(f"psrun: exit {rc}: {err[-200:]}")
    return json.loads(text)


def tier_for(level, tokens):
    fit = [t for t in level["tiers"] if t["max_tokens"] >= tokens]
    return min(fit, key=lambda t: t["max_tokens"]) if fit else None


@part("streaming", 150, "streamed prefill: h2d busy, weights copied once")
def streaming(c):
    s = c.scale
    for prompt in (s.short, s.long):
        planned, trace = c.work("streaming.plan"), c.work("streaming.trace")
        level = plan(c, s.dense, s.streaming_mib, prompt + s.context, "gpu", planned, "--workload", f"prompt={prompt},output=2")
        d = bench(c, s.dense, planned, prompt, 2)
        once = tier_for(level, prompt) or max(level["tiers"], key=lambda t: t["max_tokens"])
        copied = d["prefill"]["copied_bytes_per_step"]
        c.row(f"{s.dense}, {prompt} tokens: weights copied", f"{copied / 1e9:.3f} GB a step, {d['prefill']['steps']} step(s)",
              f"once: {once['copied_bytes'] / 1e9:.3f} GB", abs(copied - once["copied_bytes"]) <= 1e-3 * max(copied, 1),
              sure=d["prefill"]["steps"] == 1)  # how many steps pay is the profile's word, which means nothing on the emulated device
        rc, _, err, _ = c.run([c.tool("psrun"), "-p", planned, *on(c.o.device), "--bench", "--bench-prompt", prompt, "--bench-decode", "2", "--repeat", "1",
                               "--trace", trace, model(c, s.dense)], 100)
        if rc != 0:
            c.failed(f"{s.dense}, {prompt} tokens: trace", err[-200:])
            continue
        step = sorted(tiers(trace), key=lambda t: t["n_tokens"])[-1:]
        os.unlink(trace)
        if step:
            h2d, gpu = step[0]["busy"].get("h2d", 0.0), step[0]["busy"].get("gpu", 0.0)
            c.row(f"{s.dense}, {prompt} tokens: h2d queue busy", f"{100 * h2d:.1f}% (gpu {100 * gpu:.1f}%)", ">= 90%, or compute is",
                  max(h2d, gpu) >= 0.9, rate_bytes_per_s=copied / d["prefill"]["median_s"])


@part("split", 90, "split decode: bytes a second against what the probes reach")
def split(c):
    s = c.scale
    level = plan(c, s.dense, s.streaming_mib, s.context, "split", c.work("split.plan"))
    d = bench(c, s.dense, c.work("split.plan"), s.short, 16)
    tier = min(level["tiers"], key=lambda t: t["max_tokens"])
    step_s = d["decode"]["median_s"] / 16
    rate = (tier["cpu_bytes"] + d["decode"]["copied_bytes_per_step"] + d["decode"]["direct_bytes_per_step"]) / step_s
    found = c.detail.get("probes") or {}
    both = [sum(r[k]) for r in found.get("read", {}).values() for k in ("h2d",)] + [sum(r) for r in found.get("direct", {}).values()]
    share = rate / 1e9 / max(both) if both else 0.0
    c.row(f"{s.dense}, split decode: host bytes", f"{rate / 1e9:.1f} GB/s" + (f", probes {max(both):.1f}" if both else ""),
          ">= 85% of the probes'", share >= 0.85 if both else None, cpu_bytes=tier["cpu_bytes"], share=share)
    if not both:
        c.not_run("split decode against the probes", "part probes has no figures here")


@part("moe", 90, "MoE decode: what a layer costs beyond its longer part")
def moe(c):
    s = c.scale
    best = None
    for family in ("split",) if c.emulated else (None, "split"):
        plan(c, s.moe, s.streaming_mib, s.context, family, c.work("moe.plan"))
        trace = c.work("moe.trace")
        rc, _, err, _ = c.run([c.tool("psrun"), "-p", c.work("moe.plan"), *on(c.o.device), "--bench", "--bench-prompt", s.short, "--bench-decode", "16",
                               "--repeat", "1", "--trace", trace, model(c, s.moe)], 60)
        if rc != 0:
            c.failed(f"{s.moe}, {family or 'auto'}: trace", err[-200:])
            continue
        row = [t for t in tiers(trace) if t["n_tokens"] == 1 and "overhead_us" in t]
        os.unlink(trace)
        if row:
            c.detail.setdefault("moe", {})[family or "auto"] = row[0]
            best = min(best or 1e9, row[0]["overhead_us"])
            c.row(f"{s.moe}, decode, {family or 'auto'}: a layer beyond its parts", f"{row[0]['overhead_us']:.1f} us (cpu {row[0]['host_us']:.0f}, "
                  f"gpu {row[0]['gpu_us']:.0f} us)", "<= 15 us", row[0]["overhead_us"] <= 15)
    if best is None:
        c.not_run(f"{s.moe}, decode: a layer beyond its parts", "no layer has a part on both sides in these plans")


def cells_part(c, names, families="auto,split"):
    tiny = ["--tiny"] if c.emulated else []
    for preset, which in ((c.scale.dense, [n for n in names if n.startswith("8b")]), (c.scale.moe, [n for n in names if n.startswith("30b")])):
        if not which:
            continue
        name = f"{c.part}-{which[0][:3]}.json"
        _, results = c.script("gpu_cells.py", "--profile", profile(c, preset), "--models", c.o.work, "--cells", ",".join(which), "--families",
                              "split" if c.emulated else families,
                              "--repeat", c.scale.repeat, *tiny, json_name=name)
        for r in results or []:
            if r["family"] == "best":
                c.row(f"{r['cell']}: prefill, decode beside the peers", f"{r['prefill_times_peers']:.2f}x, {r['decode_times_peers']:.2f}x", ">= 1",
                      min(r["prefill_times_peers"], r["decode_times_peers"]) >= 1, prefill_s=r["prefill_s"], decode_tokens_per_s=r["decode_tokens_per_s"])
            elif "error" in r and "bytes short" not in r["error"]:
                c.failed(f"{r['cell']}, {r['family']}", r["error"][-120:])
            elif "error" not in r and r["peak_vram_bytes"] > r["budget_bytes"]:
                c.failed(f"{r['cell']}, {r['family']}: peak VRAM", f"{r['peak_vram_bytes'] / 2**20:.0f} MiB, above the budget")
        for name in which:
            if not any(r["cell"] == name and r["family"] == "best" for r in results or []):
                c.not_run(f"{name}: prefill, decode beside the peers", "no result in time")


@part("cells", 420, "the first six rows of the peers' table")
def cells(c):
    cells_part(c, "8b-1k-2.8 8b-1k-8.8 8b-16k-8.9 30b-1k-2.8 30b-1k-8.8 30b-16k-8.9".split())


@part("cells_threads", 150, "the same with 4 and 8 threads")
def cells_threads(c):
    cells_part(c, ["30b-1k-2.8-t4", "30b-1k-2.8-t8"])


@part("cells_seqs", 300, "the same with 4 and 16 sequences")
def cells_seqs(c):
    cells_part(c, "30b-1k-2.8-s4 30b-1k-2.8-s16 30b-1k-8.8-s4 30b-1k-8.8-s16".split())


def memory_part(c, parts, *more):
    preset = c.scale.moe if c.emulated else c.scale.dense
    rc, results = c.script("gpu_memory.py", "--parts", parts, "--profile", profile(c, preset), "--model", model(c, preset), *more)
    for r in results or []:
        c.row(r["what"], ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {str(v)[-80:]}" for k, v in r.items() if k not in ("what", "ok")),
              "kept", r["ok"], sure=True)
    if not results:
        c.failed(parts, f"gpu_memory.py: exit {rc}")


@part("memory", 300, "the meter at 1.5, 2, 3, 4, 8 GiB with a full 16K context")
def memory(c):
    memory_part(c, "budgets", *(["--budgets", "150,200", "--context", "64"] if c.emulated else []))


@part("ballast", 150, "--watch-vram while another process takes VRAM and gives it back")
def ballast(c):
    if c.emulated:
        memory_part(c, "ballast", "--levels", "204,244,304", "--total", "8192", "--context", "2048", "--tokens", "1200", "--wait", "0.7")
    else:
        memory_part(c, "ballast", "--ballast", c.tool("vram_ballast"))


# ---- the profiler ----
def show(c, path):
    return json.loads(c.run([c.tool("pstune"), "show", "--json", path])[1])


def tune(c, name):
    path = c.work(name + ".yaml")
    s = pstune(c, path, "--time", str(c.scale.tune_s), *(["--quick"] if c.emulated else []), seconds=c.left())
    size = os.path.getsize(path)
    c.row(f"pstune, default grid, {name}", f"{s:.0f} s, {size / 1024:.0f} KiB", "< 10 min, < 256 KiB", s < 600 and size < 256 * 1024)
    g = show(c, path)["gpu"]
    c.row(f"timer, {name}", g["timer"] + (f": {g['timer_reason']}" if g["timer_reason"] else f", gap {g['timer_gap_s'] * 1e9:.0f} ns"))
    checks = g["timer_checks"]
    if checks:
        worst = max(checks, key=lambda k: abs(k["median_frac"]))
        c.row(f"CUPTI against events, {name}", f"{sum(k['n'] for k in checks)} points, {len(checks)} kernels, worst {100 * worst['median_frac']:+.1f}% "
              f"(kernel {worst['kernel']})", "within 5% over 20 us", abs(worst["median_frac"]) <= 0.05, checks=checks)
    else:
        c.not_run(f"CUPTI against events, {name}", g["timer_reason"] or "no kernel over 20 us")


@part("tune_a", 330, "the default grid, once")
def tune_a(c):
    tune(c, "tune-a")


@part("tune_b", 330, "the default grid, again")
def tune_b(c):
    tune(c, "tune-b")


def tuned(c, name):
    path = c.work(name + ".yaml")
    if not os.path.exists(path):
        raise NotRun(f"no {name}.yaml: run its part first")
    return path


@part("tune_diff", 30, "two runs of pstune agree")
def tune_diff(c):
    rc, out, err, _ = c.run([c.tool("pstune"), "diff", "--json", tuned(c, "tune-a"), tuned(c, "tune-b")])
    if rc != 0:
        c.failed("pstune diff", err[-200:])
        return
    d = json.loads(out)
    c.detail["tune_diff"] = [e for e in d["entries"] if e["verdict"] != "same"]
    c.row("entries within 3%", f"{100 * d['within_3_frac']:.1f}% of {len(d['entries'])}", ">= 95%", d["within_3_frac"] >= 0.95)
    c.row("entries within 10%, those not marked noisy", f"{100 * d['quiet_within_10_frac']:.1f}%", "100%", d["quiet_within_10_frac"] >= 1)
    noisy = sum(e["noisy"] for e in d["entries"]) / max(1, len(d["entries"]))
    c.row("entries marked noisy", f"{100 * noisy:.1f}%", "", None)


@part("contended", 30, "bus and DRAM at once against the probes")
def contended(c):
    found = c.detail.get("probes")
    if not found:
        raise NotRun("part probes has no figures here")
    path = c.work("tune-a.yaml")
    together = {(t["bus"], t["n_threads"]): t for t in show(c, path if os.path.exists(path) else profile(c, c.scale.moe))["gpu"]["together"]}
    for n in ("4", "8", "16"):
        for bus in ("h2d", "d2h", "direct"):
            theirs = found["direct"].get(n) if bus == "direct" else found["read"].get(n, {}).get(bus)
            ours = together.get((bus, int(n)))
            if not theirs or not ours:
                c.not_run(f"{bus} beside {n} threads", "not measured by both")
                continue
            off = [ours["bus_bytes_per_s"]["median"] / 1e9 / theirs[0] - 1, ours["dram_bytes_per_s"]["median"] / 1e9 / theirs[1] - 1]
            c.row(f"{bus} beside {n} threads: bus, reads", f"{100 * off[0]:+.1f}%, {100 * off[1]:+.1f}% of the probes'", "within 5%",
                  max(abs(x) for x in off) <= 0.05)


def points_part(c, path, *more):
    rc, out, err, _ = c.run([c.tool("bench_points"), "--profile", path, "--device", c.o.device, "--time", str(min(60, c.left() - 10) if not c.emulated else 5), *more])
    rows = [json.loads(l) for l in out.splitlines() if l.startswith("{")]
    if rc == 69:
        raise NotRun(err)
    if not rows or "points" not in rows[-1]:
        c.failed("points off the grid", f"exit {rc}: {err[-200:]}")
        return
    r = rows.pop()
    c.detail[c.part] = rows
    worst = max(rows, key=lambda x: x["off_frac"])
    c.row(f"GPU, {r['points']} points off the grid: median, nine in ten", f"{100 * r['median_frac']:.1f}%, {100 * r['nine_in_ten_frac']:.1f}%",
          f"{100 * r['target_frac'][0]:.0f}%, {100 * r['target_frac'][1]:.0f}%", r["met"], worst=worst)


def points_cpu(c, path, *more):
    rc, out, err, _ = c.run([c.tool("pstune"), "check", "--json", "--time", "45", *more, path])
    if rc not in (0, 1) or not out:
        c.failed("CPU, points off the grid", f"exit {rc}: {err[-200:]}")
        return
    d = json.loads(out)
    c.detail[c.part + "-cpu"] = d["points"]
    if d["median_frac"] is None:
        c.failed("CPU, points off the grid", "nothing could be compared")
        return
    c.row(f"CPU, {d['n_quiet']} points off the grid: median, nine in ten", f"{100 * d['median_frac']:.1f}%, {100 * d['one_in_ten_frac']:.1f}%",
          "3%, 8%" if "--model" in more else "10%, 25%", d["good"])


@part("points", 180, "the default grid answers for 50 points that it does not hold")
def points(c):
    if not c.emulated:  # a synthetic profile would be held against the null device
        points_cpu(c, tuned(c, "tune-a"))
    points_part(c, tuned(c, "tune-a"), "--points", "50" if not c.emulated else "10")


@part("points_model", 180, "a model's profile likewise")
def points_model(c):
    if not c.emulated:
        points_cpu(c, profile(c, c.scale.moe), "--model", model(c, c.scale.moe))
    points_part(c, profile(c, c.scale.moe), "--model", model(c, c.scale.moe), "--points", "50" if not c.emulated else "10")


@part("resume", 200, "pstune killed at random moments, twenty times, resumes and ends")
def resume(c):
    path, killed = c.work("killed.yaml"), 0
    command = [c.tool("pstune"), "--quick", "--device", c.o.device, *(["--time", "12"] if not c.emulated else ["--time", "4", "--model", model(c, c.scale.dense)]),
               "-o", path]
    for leftover in (path, path + ".partial"):
        if os.path.exists(leftover):
            os.unlink(leftover)
    random.seed(1)
    for _ in range(20 if not c.emulated else 3):
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            p.wait(min(c.left(), random.uniform(0.2, 7.0 if not c.emulated else 2.0)))
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
            killed += 1
        for kept in (path, path + ".partial"):
            if os.path.exists(kept) and c.run([c.tool("pstune"), "show", "--json", kept])[0] != 0:
                c.failed("pstune killed at a random moment", f"{kept} cannot be read")
                return
    rc, _, err, _ = c.run(command)
    done = rc == 0 and show(c, path)["complete"] and not os.path.exists(path + ".partial")
    c.row("pstune killed at random moments", f"{killed} times, then exit {rc}", "ends with a valid profile", done, sure=True)


# ---- the planner ----
def regret_part(c, preset):
    s = c.scale
    rc, d = c.script("gpu_regret.py", "--profile", profile(c, preset), "--model", model(c, preset), "--budgets", ",".join(str(b) for b in s.budgets),
                     "--short", str(s.short), "--long", str(s.long), "--few", str(s.few), "--repeat", s.repeat, "--limit", f"{c.left():.0f}")
    for r in (d or {}).get("cells", []):
        c.row(f"{preset}, {r['budget_mib']} MiB, {r['cell']}: choice, best", f"{100 * r['regret_frac']:+.1f}% ({r['best']}), predicted "
              f"{100 * r['off_frac']:+.1f}%", "within 3%", r["regret_frac"] <= 0.03, reachable_frac=r["reachable_frac"])
    summary = (d or {}).get("summary")
    if d and d.get("left_out"):
        c.unfinished = True
        c.not_run(f"{preset}: {d['left_out']} runs of families", "no time left; --resume goes on")
    if d and not d["runs"]:
        return
    if not summary:
        c.failed(f"{preset}: regret", f"gpu_regret.py: exit {rc}")
        return
    c.row(f"{preset}: predictions of all families", f"{100 * summary['off_median_frac']:.1f}% median, {100 * summary['off_worst_frac']:.1f}% worst", "5%, 15%",
          summary["off_median_frac"] <= 0.05 and summary["off_worst_frac"] <= 0.15)
    low, high = summary["vram_over_min_frac"], summary["vram_over_max_frac"]
    if low is not None:
        c.row(f"{preset}: peak VRAM predicted over the meter's", f"{100 * low:.1f}% to {100 * high:.1f}%", "0 to 10%", low >= 0 and high <= 0.10)


@part("regret_8b", 420, "each family against the planner's choice, dense")
def regret_8b(c):
    regret_part(c, c.scale.dense)


@part("regret_30b", 420, "each family against the planner's choice, MoE")
def regret_30b(c):
    regret_part(c, c.scale.moe)


@part("predictions", 10, "errors of all predictions of this file, and the share of the reachable bound")
def predictions(c):
    off, reach = [], {}
    for name, d in c.detail.items():
        for r in d if name.startswith("cells") and isinstance(d, list) else []:
            if r.get("prefill_predicted_s"):
                off += [r["prefill_predicted_s"] / r["prefill_s"] - 1, r["decode_predicted_s"] / r["decode_step_s"] - 1]
        if name.startswith("regret") and d:
            off += [r[w]["predicted_s"] / r[w]["measured_s"] - 1 for r in d["runs"].values() if r and "error" not in r for w in ("prefill", "decode")]
            for r in d.get("cells", []):
                reach.setdefault(r["cell"].split()[0], []).append(r["reachable_frac"])
    if not off:
        raise NotRun("no part with predictions was run")
    c.row("all predictions", f"{len(off)}: median {100 * statistics.median(abs(x) for x in off):.1f}%, worst {100 * max(off, key=abs):+.1f}%", "5%, 15%",
          statistics.median(abs(x) for x in off) <= 0.05 and max(abs(x) for x in off) <= 0.15)
    for what, shares in sorted(reach.items()):
        c.row(f"{what}: share of the reachable bound", f"{100 * min(shares):.0f}% to {100 * max(shares):.0f}%", f">= {85 if what == 'decode' else 75}%",
              min(shares) >= (0.85 if what == "decode" else 0.75))


BY_NAME = {p.name: p for p in PARTS}
