#!/usr/bin/env bash
# A 70B header plans as fast as a small one: 80 layers, sparse file of full length, all tiers of one level. CPU time is
# taken, as the machine may be busy.
set -uo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bin=${PS_BIN:?}
if grep -q '^PS_SANITIZE:STRING=.' "$bin/CMakeCache.txt"; then
  echo "SKIP: a sanitized build is not held to time and memory"
  exit 77
fi
"$bin/pssynth" --preset llama3-70b --sparse "$dir/70b.gguf" 2>/dev/null || { echo "SKIP: no sparse file of 40 GB here"; exit 77; }
"$bin/pstune" --null --output "$dir/null.yaml" >/dev/null 2>&1 || exit 1
sed 's/\bmemory_bytes: .*/memory_bytes: 137438953472/' "$dir/null.yaml" >"$dir/profile.yaml"
python3 - "$bin" "$dir" <<'PY'
import os, resource, subprocess, sys
bin, dir = sys.argv[1:]
def cost(args):
    best = None
    for _ in range(5):
        pid = os.posix_spawn(args[0], args, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])
        _, status, use = os.wait4(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, args
        s = use.ru_utime + use.ru_stime
        if best is None or s < best[0]:
            best = (s, use.ru_maxrss / 1024)
    return best
plan = cost([f"{bin}/psplan", "--profile", f"{dir}/profile.yaml", "--output", f"{dir}/70b.plan.yaml", f"{dir}/70b.gguf"])
parse = cost([f"{bin}/psplan", "inspect", f"{dir}/70b.gguf"])
check = cost([f"{bin}/psplan", "check", f"{dir}/70b.plan.yaml", f"{dir}/70b.gguf"])
print(f"plan {plan[0] * 1e3:.0f} ms, {plan[1]:.1f} MB; parse and survey {parse[0] * 1e3:.0f} ms; check {check[0] * 1e3:.0f} ms")
assert plan[0] < 0.3, "planning takes 0.3 s or more"
assert plan[1] < 64, "planning takes 64 MB or more"
assert parse[0] < 0.02, "parsing takes 20 ms or more"
PY
