#!/usr/bin/env bash
# Logits of a tiny random model of each architecture against llama.cpp's in float32 (tests/golden/make_tiny_logits.py):
# whole chain from file to logits, with a sliding window, routed experts, q and k norms, biases and rope scaling.
set -uo pipefail
bin=${PS_BIN:?}
golden=tests/golden/tiny-logits
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failures=0

must() { "$@" >"$dir/log" 2>&1 || { echo "FAIL: $*"; cat "$dir/log"; exit 1; }; }

must "$bin/tests/test_plan_synthetic" "$dir/profile.yaml"
read -r _ positions <"$golden/variants.txt"
while read -r name options; do
  [ "$name" = positions ] && continue
  # shellcheck disable=SC2086  # options are words
  must "$bin/pssynth" $options "$dir/m.gguf"
  must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --output "$dir/m.plan.yaml" "$dir/m.gguf"
  must "$bin/psrun" --quiet --plan "$dir/m.plan.yaml" --teacher-force "$golden/ids.bin" --window 100 --logits-out "$dir/logits" "$dir/m.gguf"
  python3 - "$name" "$dir/logits" "$golden/$name.bin" $positions <<'PY' || failures=$((failures + 1))
import array, math, sys

name, got_path, want_path, positions = sys.argv[1], sys.argv[2], sys.argv[3], [int(p) for p in sys.argv[4:]]


def load(path):
    a = array.array("f")
    with open(path, "rb") as f:
        a.frombytes(f.read())
    if sys.byteorder == "big":
        a.byteswap()
    return a


want, got = load(want_path), load(got_path)
n = len(want) // len(positions)
assert n > 500 and len(got) == 100 * n, (len(want), len(got))
worst, bad = 0.0, 0
for i, p in enumerate(positions):
    w, g = want[i * n:(i + 1) * n], got[p * n:(p + 1) * n]
    error = math.sqrt(sum((a - b) ** 2 for a, b in zip(w, g)) / sum(a * a for a in w))
    worst = max(worst, error)
    top = sorted(w)[-2:]
    if not error < 2e-3:
        print("FAIL: %s: position %d: relative error %g" % (name, p, error))
        bad = 1
    if top[1] - top[0] >= 0.05 and max(range(n), key=w.__getitem__) != max(range(n), key=g.__getitem__):
        print("FAIL: %s: position %d: another likeliest token" % (name, p))
        bad = 1
print("%s: worst relative error %.1e" % (name, worst))
sys.exit(bad)
PY
done <"$golden/variants.txt"
exit $((failures != 0))
