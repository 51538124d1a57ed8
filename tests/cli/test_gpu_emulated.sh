#!/usr/bin/env bash
# The whole way with a GPU, on the emulated one: pstune measures it, psplan plans every family of levels from that profile, psrun
# runs them, and each gives the tokens of the plan for the CPU alone.
set -uo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bin=${PS_BIN:?}
failures=0

fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
must() { "$@" >"$dir/log" 2>&1 || { cat "$dir/log"; fail "$*"; exit 1; }; }

for preset in tiny-llama tiny-qwen3moe; do
  m=$dir/$preset.gguf
  must "$bin/pssynth" --preset $preset "$m"
  must "$bin/pstune" --quick --device emulated --model "$m" --time 15 --output "$dir/profile.yaml"
  "$bin/pstune" show --json "$dir/profile.yaml" >"$dir/shown.json" || fail "show --json"
  python3 - "$dir/shown.json" <<'P' || fail "$preset: the GPU in the profile"
import json, sys
p = json.load(open(sys.argv[1]))
g = p["gpu"]
assert p["complete"] and p["synthetic"] and g["name"] == "emulated", g
assert g["base_bytes"] == 64 << 20 and g["vram_bytes"] == 8 << 30 and g["meter"] == "emulated", g
assert g["timer"] == "events" and "emulated" in g["timer_reason"] and not g["timer_checks"], g
assert g["context_bytes"] + g["modules_bytes"] + g["blas_bytes"] == g["base_bytes"], g
assert all(g[k]["median"] > 0 for k in ("hbm_read_bytes_per_s", "launch_s", "graph_launch_s", "to_cpu_s", "to_gpu_s", "map_s", "event_record_s", "level_bytes_per_s")), g
assert {(c["bus"], c["kind"]) for c in g["copies"]} >= {("h2d", "pinned"), ("d2h", "pinned"), ("direct", "pinned")}, g["copies"]
assert all(t["bus_bytes_per_s"]["median"] > 0 and t["dram_bytes_per_s"]["median"] > 0 for t in g["together"]) and g["together"], g
P
  must "$bin/pstune" show "$dir/profile.yaml"
  grep -q '^GPU  *emulated' "$dir/log" || fail "show has no GPU"
  grep -q 'times by CUDA events: emulated: ' "$dir/log" || fail "show does not say how times were taken"
  must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --budget host --output "$dir/host.yaml" "$m"
  "$bin/psrun" --quiet --plan "$dir/host.yaml" --raw -m 'Hello there' -n 8 "$m" >"$dir/host" || fail "$preset on the CPU"
  [ "$(wc -c <"$dir/host")" -gt 8 ] || fail "$preset: no tokens"
  for family in gpu direct static dynamic split; do
    must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --budget 256MiB --force $family --output "$dir/plan.yaml" "$m"
    "$bin/psrun" --quiet --device emulated --plan "$dir/plan.yaml" --raw -m 'Hello there' -n 8 "$m" >"$dir/out" 2>"$dir/err" ||
      fail "$preset, $family: exit $?: $(cat "$dir/err")"
    cmp -s "$dir/host" "$dir/out" || fail "$preset, $family: other tokens than on the CPU"
    if [ $family = gpu ]; then # the plan carries the card's facts: another driver or another card of that name is one warning
      sed -e 's/^synthetic_profile: true/synthetic_profile: false/' -e 's/^vram_bytes: .*/vram_bytes: 1073741824/' \
        -e 's/^gpu_hash: .*/gpu_hash: "00000000000000000000000000000001"/' "$dir/plan.yaml" >"$dir/was.yaml"
      "$bin/psrun" --device emulated --plan "$dir/was.yaml" --raw -m a -n 1 "$m" >/dev/null 2>"$dir/err" || fail "$preset: changed GPU: $(cat "$dir/err")"
      grep -q "warning: .*another emulated than in the plan's profile; 1.0 GiB of VRAM in the plan's profile, 8.0 here" "$dir/err" ||
        fail "$preset: changed GPU: $(cat "$dir/err")"
      [ "$(grep -c 'warning' "$dir/err")" -eq 1 ] || fail "$preset: not one warning: $(cat "$dir/err")"
      # Steps that take far longer than predicted, with weights in VRAM: the likely cause is named, once, after the answer.
      sed -e 's/^synthetic_profile: true/synthetic_profile: false/' -e 's/\(step_[a-z]*_s\): .*/\1: 1e-09/' "$dir/plan.yaml" >"$dir/slow.yaml"
      "$bin/psrun" --device emulated --plan "$dir/slow.yaml" --raw -m 'Hello there' -n 8 "$m" >"$dir/out" 2>"$dir/err" || fail "$preset: slow: $(cat "$dir/err")"
      cmp -s "$dir/host" "$dir/out" || fail "$preset: other tokens of a plan with other predictions"
      [ "$(grep -c 'warning: steps with .* MiB of weights in VRAM took .*system memory' "$dir/err")" -eq 1 ] || fail "$preset: no word of VRAM that is slow: $(cat "$dir/err")"
    fi
    "$bin/psrun" --quiet --device none --plan "$dir/plan.yaml" --raw -m a -n 1 "$m" >/dev/null 2>"$dir/err"
    [ $? -eq 69 ] || fail "$preset, $family: ran without a GPU: $(cat "$dir/err")"
  done
done
[ $failures -eq 0 ] || exit 1
echo "five families on the emulated device: the CPU's tokens"
