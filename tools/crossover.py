#!/usr/bin/env python3
"""Where a step of a model of experts is better streamed to the GPU than computed by the CPU, over rates of the bus: by psplan
whatif and psplan --force static|gpu. Prints JSON, one row for each rate; --svg draws the curves and where they cross."""
import argparse
import json
import math
import os
import subprocess
import tempfile


def steps(args, folder, profile, family):
    """Predicted step, empty bucket, by tokens."""
    command = [args.psplan, "--machine", profile, "--force", family, "--budget", args.budget, "--context", "4096",
               "--max-step", "2048", "--json", "-o", os.path.join(folder, "plan.bin"), args.model]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return {t["max_tokens"]: t["step_empty_s"] for t in json.loads(done.stdout)["levels"][0]["tiers"]}


def crossing(cpu, streamed):
    """Tokens at which both take as long, and how long, times and tokens in logarithms; None, None: they do not cross."""
    last = None
    for n in sorted(cpu):
        gain = math.log(cpu[n] / streamed[n])
        if gain >= 0:
            if last is None:
                return float(n), cpu[n]
            m, before = last
            f = before / (before - gain)
            return n ** f * m ** (1 - f), cpu[n] ** f * cpu[m] ** (1 - f)
        last = n, gain
    return None, None


def draw(rows, path, title):
    left, top, wide, high = 70, 40, 640, 400
    points = [(n, s) for r in rows for c in ("cpu", "streamed") for n, s in r[c].items()]
    x0, x1 = 0.0, math.log2(max(n for n, _ in points))
    y0, y1 = (f(math.log10(s) for _, s in points) for f in (min, max))
    y0, y1 = math.floor(y0), math.ceil(y1)
    x = lambda n: left + wide * (math.log2(n) - x0) / (x1 - x0)
    y = lambda s: top + high * (y1 - math.log10(s)) / (y1 - y0)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 110}" height="{top + high + 60}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="24" font-size="14">{title}</text>']
    for e in range(int(y0), int(y1) + 1):
        out.append(f'<line x1="{left}" x2="{left + wide}" y1="{y(10 ** e):.1f}" y2="{y(10 ** e):.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{y(10 ** e) + 4:.1f}" text-anchor="end">{10 ** e:g} s</text>')
    for e in range(0, int(x1) + 1):
        out.append(f'<text x="{x(2 ** e):.1f}" y="{top + high + 18}" text-anchor="middle">{2 ** e}</text>')
    out.append(f'<text x="{left + wide / 2}" y="{top + high + 40}" text-anchor="middle">tokens of a step</text>')
    line = lambda curve, style: ('<polyline fill="none" %s points="%s"/>' % (
        style, " ".join(f"{x(n):.1f},{y(s):.1f}" for n, s in sorted(curve.items()))))
    out.append(line(rows[-1]["cpu"], 'stroke="#c33" stroke-width="2"'))
    out.append(f'<text x="{left + wide + 6}" y="{y(rows[-1]["cpu"][max(rows[-1]["cpu"])]) + 4:.1f}" fill="#c33">CPU</text>')
    for r in rows:
        last = max(r["streamed"])
        out.append(line(r["streamed"], 'stroke="#36a"'))
        out.append(f'<text x="{left + wide + 6}" y="{y(r["streamed"][last]) + 4:.1f}" fill="#36a">'
                   f'{r["pcie_bytes_per_s"] / 1e9:g} GB/s</text>')
        if r["tokens"]:
            at = y(r["step_s"])
            out.append(f'<circle cx="{x(r["tokens"]):.1f}" cy="{at:.1f}" r="4" fill="#222"/>'
                       f'<text x="{x(r["tokens"]) - 8:.1f}" y="{at - 6:.1f}" text-anchor="end">{r["tokens"]:.0f}</text>')
    with open(path, "w") as f:
        f.write("\n".join(out + ["</svg>", ""]))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--psplan", required=True)
    p.add_argument("--profile", required=True)
    p.add_argument("--budget", default="2800MiB")
    p.add_argument("--pcie", default="4,8,16,32,50", help="rates in GB/s, ascending")
    p.add_argument("--svg")
    p.add_argument("model")
    args = p.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for rate in args.pcie.split(","):
            profile = os.path.join(folder, "profile.yaml")
            subprocess.run([args.psplan, "whatif", "--profile", args.profile, "--pcie", rate + "GB/s", "-o", profile],
                           check=True)
            cpu, streamed = (steps(args, folder, profile, f) for f in ("static", "gpu"))
            tokens, step_s = crossing(cpu, streamed)
            rows.append({"pcie_bytes_per_s": float(rate) * 1e9, "tokens": tokens, "step_s": step_s, "cpu": cpu,
                         "streamed": streamed})
    if args.svg:
        draw(rows, args.svg, f"{os.path.basename(args.model)}, {args.budget}: predicted step, experts by the CPU or streamed")
    print(json.dumps([{k: r[k] for k in ("pcie_bytes_per_s", "tokens", "step_s")} for r in rows], indent=1))


if __name__ == "__main__":
    main()
