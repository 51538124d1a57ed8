#!/usr/bin/env python3
"""Everything that needs a GPU, in parts: see gpu-check.sh for the options, gpu_parts.py for the parts.

A part has a limit of its own and gives rows: what, figure, target, and whether it was met, missed, failed or not run. Each row goes to
the JSON file as soon as it is known, so a run that is killed loses nothing, and --resume goes on behind the last part that ended.
"""
import argparse
import os
import platform
import subprocess
import sys
import time

import gpu_parts
from gpu_common import read_json, run, write_json

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Check:
    """What a part sees: options, tools, and where its rows go."""

    def __init__(self, o, state):
        self.o, self.state, self.part, self.part_end = o, state, "", 0.0
        self.unfinished = False  # a part sets it that --resume is to go on with
        self.start = time.time()
        self.emulated = o.device == "emulated"
        self.scale = gpu_parts.TINY if self.emulated else gpu_parts.REAL
        self.scale = self.scale._replace(tune_s=o.tune or self.scale.tune_s)
        self.detail = state.setdefault("detail", {})

    # ---- what parts use ----
    def tool(self, name):
        for folder in ("", "tests"):
            path = os.path.join(self.o.bin, folder, name)
            if os.access(path, os.X_OK):
                return path
        raise NotRun(f"{name} is not built in {self.o.bin}")

    def work(self, *names):
        return os.path.join(self.o.work, *names)

    def left(self):
        return max(1.0, self.part_end - time.time())

    def run(self, command, seconds=None, **more):
        """As gpu_common.run, within the part's limit; the command is said."""
        self.say("$ " + " ".join(str(c) for c in command))
        return run([str(c) for c in command], min(seconds or 1e9, self.left()), **more)

    def script(self, name, *options, json_name=None):
        """One of the scripts beside this one, its lines shown as they come. Returns exit code and what it wrote as JSON."""
        path = self.work(json_name or self.part + ".json")
        if not self.o.resume and os.path.exists(path):
            os.unlink(path)
        rc, _, err, _ = self.run([sys.executable, os.path.join(ROOT, "tools", name), "--bin", self.o.bin, "--device", self.o.device,
                                  "--json", path, *options], echo=True)
        if err:
            self.say(err[-1000:])
        self.detail[self.part] = read_json(path)
        return rc, self.detail[self.part]

    def say(self, text):
        print(f"[{time.time() - self.start:6.1f} s] {text}", flush=True)

    def row(self, what, figure, target="", met=None, sure=False, **more):
        """met: True, False, or None: a figure that is not judged. On the emulated device only what is sure is: speeds mean nothing."""
        met = met if sure or not self.emulated else None
        self.put(what, figure, target, "" if met is None else "met" if met else "MISSED", **more)

    def failed(self, what, why):
        self.put(what, why, "", "FAILED")

    def not_run(self, what, why):
        self.put(what, f"not run: {why}", "", "not run")

    def put(self, what, figure, target, verdict, **more):
        rows = [r for r in self.state["rows"] if (r["part"], r["what"]) != (self.part, what)]
        rows.append({"part": self.part, "what": what, "figure": figure, "target": target, "verdict": verdict,
                     "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **more})
        self.state["rows"] = rows
        self.save()
        self.say(line(rows[-1]))

    def save(self):
        write_json(self.o.json, self.state)

    # ---- the parts ----
    def go(self, part):
        self.part, self.unfinished, begin = part.name, False, time.time()
        rest = self.o.limit - (begin - self.start) if self.o.limit else 1e9
        limit = min(part.limit_s * self.o.stretch, rest)
        if rest < 10:
            self.not_run(part.about, "no time left")
            return
        self.part_end = begin + limit
        self.say(f"== {part.name}: {part.about} (at most {limit:.0f} s)")
        self.state["rows"] = [r for r in self.state["rows"] if r["part"] != part.name]
        try:
            if self.emulated and part.real_only:
                raise NotRun("needs a GPU")
            part.go(self)
            ended = time.time() < self.part_end
            if not ended:
                self.not_run(f"the rest of {part.name}", f"its {limit:.0f} s were up")
        except NotRun as why:
            ended = True
            self.not_run(part.about, str(why))
        except Exception as e:  # a part that breaks must not take the others with it
            ended = True
            self.failed(part.about, f"{type(e).__name__}: {e}")
        if ended and not self.unfinished and part.name not in self.state["ended"]:
            self.state["ended"].append(part.name)
        self.state["seconds"][part.name] = round(time.time() - begin, 1)
        self.save()


NotRun = gpu_parts.NotRun


def line(r):
    return f"{r['what']:<56} {r['figure']:<34} " + (f"{r['target']}: " if r["target"] else "") + r["verdict"]


def query(fields):
    rc, out, _, _ = run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], 20)
    return out.splitlines()[0] if rc == 0 and out else ""


def commit():
    p = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if p.returncode == 0:
        return p.stdout.strip()
    try:
        with open(os.path.join(ROOT, "COMMIT"), encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return "unknown"


def main():
    a = argparse.ArgumentParser(prog="gpu-check.sh")
    a.add_argument("--parts", "--only", metavar="A,B", help="these, in this order; default: all")
    a.add_argument("--list", action="store_true", help="name the parts and their limits")
    a.add_argument("--resume", action="store_true", help="keep the rows of --json and leave out the parts that ended")
    a.add_argument("--bin", "--no-build", metavar="DIR", help="programs are built in DIR already")
    a.add_argument("--build", metavar="DIR", default="build/gpu", help="build there first (build/gpu)")
    a.add_argument("--cmake", metavar="OPTION", action="append", default=[], help="one more option of cmake; may be repeated")
    a.add_argument("--work", "--synth", metavar="DIR", default="/dev/shm/pinstripe-check", help="models and profiles, 36 GB")
    a.add_argument("--models", metavar="DIR", default=os.environ.get("PS_MODELS"), help="the real models ($PS_MODELS)")
    a.add_argument("--probes", metavar="DIR", help="programs that measure ceilings by themselves: ceilings.cu, direct.cu")
    a.add_argument("--cupti", metavar="FILE", help="the CUPTI library")
    a.add_argument("--json", metavar="FILE", default="gpu-check.json", help="rows and figures (gpu-check.json)")
    a.add_argument("--device", default="cuda", choices=["cuda", "emulated"], help="emulated: tiny models, to try the scripts")
    a.add_argument("--limit", type=float, default=0, metavar="SECONDS", help="of the whole call")
    a.add_argument("--tune", type=float, metavar="SECONDS", help="for each of the two runs of pstune (200)")
    a.add_argument("--stretch", type=float, default=1, metavar="X", help="times the limit of each part")
    o = a.parse_args()
    wanted = o.parts.split(",") if o.parts else [p.name for p in gpu_parts.PARTS]
    unknown = [w for w in wanted if w not in gpu_parts.BY_NAME]
    if unknown:
        print(f"gpu-check.sh: no part {unknown[0]}; --list names them", file=sys.stderr)
        return 64
    if o.list:
        for p in gpu_parts.PARTS:
            print(f"{p.name:<16} {p.limit_s:4} s  {p.about}")
        return 0
    if o.device == "cuda" and not query("name"):
        print("gpu-check.sh: no GPU here", file=sys.stderr)
        return 69
    os.makedirs(o.work, exist_ok=True)
    os.chdir(ROOT)
    state = read_json(o.json) if o.resume else None
    if state is None:
        state = {"commit": commit(), "device": o.device, "kernel": platform.release(), "cpus": os.cpu_count(),
                 "gpu, driver, capability, SM clock, memory clock, link":
                     query("name,driver_version,compute_cap,clocks.sm,clocks.mem,pcie.link.gen.current,pcie.link.width.current"),
                 "commands": [], "rows": [], "ended": [], "seconds": {}, "detail": {}}
    state["commands"].append(" ".join(sys.argv[1:]))
    if not o.bin:
        o.bin = o.build
        if "build" not in wanted:
            wanted.insert(0, "build")
    elif o.parts is None:
        wanted = [w for w in wanted if w != "build"]
    c = Check(o, state)
    for name in wanted:
        if not (o.resume and name in state["ended"]):
            c.go(gpu_parts.BY_NAME[name])
        if name == "build" and any(r["part"] == "build" and r["verdict"] == "FAILED" for r in state["rows"]):
            break
    if o.device == "cuda":
        state["clocks after"] = query("clocks.sm,clocks.mem,temperature.gpu,power.draw")
    c.save()
    print(f"\n{state['gpu, driver, capability, SM clock, memory clock, link']}  commit {state['commit'][:12]}  kernel {state['kernel']}")
    for r in state["rows"]:
        print(line(r))
    bad = [r for r in state["rows"] if r["verdict"] in ("FAILED", "MISSED")]
    idle = sum(r["verdict"] == "not run" for r in state["rows"])
    print(f"{len(bad)} missed or failed, {idle} not run, {sum(r['verdict'] == 'met' for r in state['rows'])} met")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
