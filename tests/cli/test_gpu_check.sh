#!/usr/bin/env bash
# tools/gpu-check.sh without a GPU: its drivers on the emulated device with tiny models, its rows as soon as they are known, and going
# on where a run ended.
. tests/cli/common.sh
check=(tools/gpu-check.sh --device emulated --bin "$bin" --work "$dir/work" --json "$dir/check.json")

expect 64 "no part nothing" tools/gpu-check.sh --parts nothing
"${check[@]}" --list >"$dir/list" || fail "--list"
for part in device kernels speed numerics_gemma3 bits streaming split moe cells cells_seqs memory ballast tune_a tune_b contended points regret_8b; do
  grep -q "^$part " "$dir/list" || fail "no part $part"
done
if ! command -v nvidia-smi >/dev/null; then
  tools/gpu-check.sh --bin "$bin" --work "$dir/work" >"$dir/log" 2>&1
  [ $? -eq 69 ] || fail "without a GPU: $(tail -n 3 "$dir/log")"
fi

"${check[@]}" --parts models,device,streaming,split,moe,memory,contended >"$dir/log" 2>&1 || { cat "$dir/log"; fail "the drivers"; }
json 'd["ended"] == ["models", "device", "streaming", "split", "moe", "memory", "contended"]' "$dir/check.json"
json 'not [r for r in d["rows"] if r["verdict"] in ("FAILED", "MISSED")]' "$dir/check.json"
json '[r["figure"] for r in d["rows"] if r["part"] == "device"] == ["not run: needs a GPU"]' "$dir/check.json"
json '{r["verdict"] for r in d["rows"] if "weights copied" in r["what"]} in ({"met"}, {"met", ""})' "$dir/check.json"
json 'sum("full" in r["what"] and r["verdict"] == "met" for r in d["rows"]) == 2' "$dir/check.json"
json '[r["verdict"] for r in d["rows"] if r["part"] == "contended"] == ["not run"]' "$dir/check.json"
json 'any("h2d queue busy" in r["what"] for r in d["rows"]) and any("host bytes" in r["what"] for r in d["rows"])' "$dir/check.json"

# What has ended is not done again, what is new is added, and what is asked for again replaces its rows.
cp "$dir/check.json" "$dir/before.json"
"${check[@]}" --resume --parts models,streaming,cells_threads >"$dir/log" 2>&1 || { cat "$dir/log"; fail "--resume"; }
grep -q '== streaming' "$dir/log" && fail "--resume does a part again"
json 'len(d["rows"]) == len(json.load(open(sys.argv[2].replace("check", "before")))["rows"]) + 2 and "cells_threads" in d["ended"]' "$dir/check.json"

# A part has a limit, and its end is said.
"${check[@]}" --parts resume --stretch 0.005 >"$dir/log" 2>&1
grep -q 'the rest of resume.*not run' "$dir/log" || { cat "$dir/log"; fail "no end at the limit"; }

# Points off the grid: what the null device's profile says of them is near the null device's truth, and a profile without a GPU has none.
must "$bin/pstune" --null --device null --output "$dir/null.yaml"
"$bin/tests/bench_points" --profile "$dir/null.yaml" --device null >"$dir/points" || fail "points off the grid: $(tail -n 1 "$dir/points")"
[ "$(grep -c '"off_frac"' "$dir/points")" -eq 50 ] || fail "$(grep -c '"off_frac"' "$dir/points") points"
must "$bin/pstune" --null --output "$dir/cpu.yaml"
expect 69 "no kernel has points" "$bin/tests/bench_points" --profile "$dir/cpu.yaml" --device null
[ $failures -eq 0 ] || exit 1
