#!/usr/bin/env bash
# psplan as a command: plans that check, the same bytes for the same request, JSON that parses, every wrong input in one
# line with the right exit code, and nothing half-written.
. "$(dirname "$0")/common.sh"
export SOURCE_DATE_EPOCH=1764374400
export XDG_DATA_HOME=$dir/none

for a in llama qwen3 qwen3moe gemma3; do must "$bin/pssynth" --arch $a "$dir/$a.gguf"; done
must "$bin/pstune" --null --threads 8 --output "$dir/profile.yaml"
m=$dir/llama.gguf
plan=("$bin/psplan" --profile "$dir/profile.yaml" --context 512)

# Every architecture plans, and the plan checks; YAML, binary and back are the same document.
for a in llama qwen3 qwen3moe gemma3; do
  must "${plan[@]}" -o "$dir/$a.yaml" "$dir/$a.gguf"
  must "$bin/psplan" check "$dir/$a.yaml" "$dir/$a.gguf"
  must "$bin/psplan" emit binary "$dir/$a.yaml" -o "$dir/$a.bin"
  must "$bin/psplan" check "$dir/$a.bin" "$dir/$a.gguf"
  must "$bin/psplan" emit yaml "$dir/$a.bin" -o "$dir/$a.again"
  cmp -s "$dir/$a.yaml" "$dir/$a.again" || fail "$a: YAML -> binary -> YAML differs"
done
must "${plan[@]}" -o "$dir/second.yaml" "$m"
cmp -s "$dir/llama.yaml" "$dir/second.yaml" || fail "the same request gave other bytes"
must "${plan[@]}" -o "$dir/direct.bin" "$m"
cmp -s "$dir/llama.bin" "$dir/direct.bin" || fail "a name that ends in .bin is no binary plan"
must "${plan[@]}" -f binary -o "$dir/direct" "$m"
cmp -s "$dir/llama.bin" "$dir/direct" || fail "--format binary"
"${plan[@]}" -o - "$m" >"$dir/stdout" 2>/dev/null || fail "--output -"
cmp -s "$dir/llama.yaml" "$dir/stdout" || fail "--output - differs"
(cd "$dir" && "${plan[@]}" llama.gguf >/dev/null 2>&1 && cmp -s llama.plan.yaml llama.yaml) || fail "default output"
mkdir -p "$dir/data/pinstripe" && cp "$dir/profile.yaml" "$dir/data/pinstripe/"
XDG_DATA_HOME=$dir/data "$bin/psplan" --context 512 -o "$dir/default.yaml" "$m" >/dev/null 2>&1 || fail "default profile"
cmp -s "$dir/default.yaml" "$dir/llama.yaml" || fail "default profile differs"

# Lists of levels, sequences, tiles, outputs.
must "${plan[@]}" --context 256,512 --threads 1,2,8 --parallel 3 --outputs 16 -o "$dir/many.yaml" "$m"
must "$bin/psplan" check "$dir/many.yaml" "$m"
"${plan[@]}" --context 256,512 --threads 1,2,8 --json -o "$dir/many.yaml" "$m" >"$dir/j" 2>/dev/null || fail "--json"
json 'd["feasible"] and len(d["levels"]) == 6 and all(t["step_full_s"] >= t["step_empty_s"] > 0 for l in d["levels"] for t in l["tiers"])' "$dir/j"
json 'all(l["memory"]["peak_host_bytes"] == l["memory"]["host_arena_bytes"] + l["memory"]["weight_bytes"] + l["memory"]["program_bytes"] for l in d["levels"])' "$dir/j"
"${plan[@]}" --json --explain -o "$dir/e.yaml" "$m" >"$dir/j" 2>/dev/null || fail "--explain --json"
json 'abs(sum(d["explain"][0]["by_operation_s"].values()) + d["explain"][0]["start_s"] - d["explain"][0]["step_full_s"]) < 1e-9' "$dir/j"
"${plan[@]}" --explain -o "$dir/e.yaml" "$m" >"$dir/out" 2>/dev/null || fail "--explain"
grep -q 'cpu.matmul' "$dir/out" || fail "--explain names no kernel"

# The simulated trace becomes a timeline.
must "${plan[@]}" --trace "$dir/t.json" -o "$dir/e.yaml" "$m"
must "$bin/psplan" emit timeline "$dir/t.json" -o "$dir/tl.json"
json 'd["otherData"]["source"] == "simulated" and sum(e["ph"] == "X" for e in d["traceEvents"]) > 100' "$dir/tl.json"

# With a GPU: every family plans and checks, levels nest, the table and JSON say where weights are, timelines have all queues.
must "$bin/tests/make_gpu_profile" "$dir/gpu.yaml"
must "$bin/pssynth" --arch llama --n-embd 512 --n-head 4 --n-head-kv 2 --head-dim 128 --n-ff 4096 --n-layers 8 --sparse "$dir/mid.gguf"
gpu=("$bin/psplan" --profile "$dir/gpu.yaml" --context 512)
for f in gpu direct static dynamic split; do
  must "${gpu[@]}" --budget 712MiB,736MiB --force $f -o "$dir/$f.bin" "$dir/mid.gguf"
  must "$bin/psplan" check "$dir/$f.bin" "$dir/mid.gguf"
  must "${gpu[@]}" --budget 736MiB --force $f -o "$dir/$f-moe.yaml" "$dir/qwen3moe.gguf"
  must "$bin/psplan" check "$dir/$f-moe.yaml" "$dir/qwen3moe.gguf"
done
"${gpu[@]}" --budget host,712MiB,736MiB --workload prompt=256,output=64 --json -o "$dir/g.yaml" "$dir/mid.gguf" >"$dir/j" 2>/dev/null || fail "--budget --json"
json '[l["budget"] for l in d["levels"]] == ["host", "712MiB", "736MiB"]' "$dir/j"
json 'all(l["memory"]["vram_base_bytes"] + l["memory"]["vram_work_bytes"] + l["memory"]["vram_weight_bytes"] <= l["budget_bytes"] for l in d["levels"][1:])' "$dir/j"
json 'd["levels"][2]["memory"]["vram_weight_bytes"] >= d["levels"][1]["memory"]["vram_weight_bytes"] > 0' "$dir/j"
json 'all(l["schedule"]["resident"].count("%") == 3 for l in d["levels"][1:])' "$dir/j"
json 'all(t["copied_bytes"] + t["direct_bytes"] + t["cpu_bytes"] >= 0 for l in d["levels"][1:] for t in l["tiers"])' "$dir/j"
json 'all(abs(sum(t["loss"][k] for k in ("in_vram_s", "budget_s", "hand_over_s", "serial_s", "waits_s", "rates_s")) / t["step_full_s"] - 1) < 1e-9 for l in d["levels"] for t in l["tiers"])' "$dir/j"
json 'all(0 <= t["busy_s"][q] <= t["busy_s"][t["loss"]["busiest"]] for l in d["levels"] for t in l["tiers"] for q in ("cpu", "gpu", "h2d", "d2h"))' "$dir/j"
json 'all(t["raw_bound_s"] <= t["reachable_bound_s"] for l in d["levels"] for t in l["tiers"]) and d["levels"][1]["tiers"][0]["busy_s"]["gpu"] > 0' "$dir/j"
# Of experts a step reads those that it is expected to select, and the GPU what it reads itself; VRAM is filled as far as it goes.
must "$bin/pssynth" --preset qwen3-30b-a3b-q4_0 --sparse "$dir/30b.gguf"
"${gpu[@]}" --budget 2GiB --max-step 8 --json -o "$dir/g.yaml" "$dir/30b.gguf" >"$dir/j" 2>/dev/null || fail "30b --json"
json 'all(0 < t["cpu_bytes"] + t["direct_bytes"] + t["copied_bytes"] < 0.1 * t["max_tokens"] * d["model"]["weight_bytes"] for l in d["levels"] for t in l["tiers"] if t["max_tokens"] <= 4)' "$dir/j"
json 'all((t["direct_bytes"] > 0) >= (t["max_direct"] > 0) for l in d["levels"] for t in l["tiers"])' "$dir/j"
json 'int(d["levels"][0]["schedule"]["resident"].rsplit(" ", 1)[1][:-1]) < 12' "$dir/j"
# The same as a table: a row of shares for every tier, with the link where there is a GPU.
"${gpu[@]}" --budget host,712MiB --force static -o "$dir/g.yaml" "$dir/mid.gguf" >"$dir/out" 2>/dev/null || fail "table"
[ "$(grep -c ' | ' "$dir/out")" -eq "$(("$(grep -c '/s empty' "$dir/out")" + "$(grep -c ' | *[0-9]*%' "$dir/out")"))" ] || fail "tables: $(cat "$dir/out")"
[ "$(grep -c ' | *[0-9]*%' "$dir/out")" -eq "$(grep -cE '^ +[0-9]+ +[0-9.]+ [mu]?s' "$dir/out")" ] || fail "not a row for each tier: $(cat "$dir/out")"
grep -q 'link | in vram  budget  hand-over' "$dir/out" && grep -q '| *raw   barriers' "$dir/out" || fail "headings: $(cat "$dir/out")"
grep -qE 'cpu waits for|gpu waits for|h2d waits for' "$dir/out" || fail "no queue waits: $(cat "$dir/out")"
# Sizes are in powers of 1024, whoever says them; rates alone in powers of 1000.
"${gpu[@]}" --budget host,712MiB --threads 1 --explain -o "$dir/g.yaml" "$dir/mid.gguf" >"$dir/sizes" 2>&1 || fail "--explain of two levels"
must "$bin/psplan" emit html -o "$dir/g.html" "$dir/g.yaml"
"${gpu[@]}" --budget 600MiB -o "$dir/not.yaml" "$dir/mid.gguf" >>"$dir/sizes" 2>&1
"$bin/psplan" inspect "$dir/mid.gguf" >>"$dir/sizes" 2>&1
"$bin/pstune" show "$dir/gpu.yaml" >>"$dir/sizes" 2>&1
"$bin/psrun" --device emulated --plan "$dir/g.yaml" --budget 712MiB --raw -m a -n 2 "$dir/mid.gguf" >>"$dir/sizes" 2>&1 || fail "psrun"
[ "$(grep -Ec '[0-9] [KMGT]iB' "$dir/sizes")" -ge 12 ] && grep -qE '[0-9] [KMGT]iB' "$dir/g.html" || fail "no sizes: $(cat "$dir/sizes")"
cat "$dir/sizes" "$dir/g.html" | grep -E '[0-9] [kKMGT]B([^/]|$)' | head -5 | grep . && fail "sizes in powers of 1000"
# A plan that takes more than a second shows how far it is, on a terminal alone; the line is gone in the end.
deep_layers=300
grep -q '^PS_SANITIZE:STRING=.' "$bin/CMakeCache.txt" && deep_layers=60 # slow enough there
must "$bin/pssynth" --preset qwen3-30b-a3b-q4_0 --n-layers $deep_layers --sparse "$dir/deep.gguf"
sed 's/\bmemory_bytes: .*/memory_bytes: 2000000000000/' "$dir/gpu.yaml" >"$dir/large.yaml"
deep=("$bin/psplan" --profile "$dir/large.yaml" --output "$dir/deep.bin")
took=$(TERMINAL_COLUMNS=56 python3 tests/cli/on_terminal.py "$dir/shown" "${deep[@]}" "$dir/deep.gguf") || fail "a deep model: $(cat "$dir/shown")"
if python3 -c "import sys; sys.exit(not $took > 1.5)"; then
  grep -qE '\[#*\.*\] +[0-9]+% .*(looking|search|build|compar)' "$dir/shown" || fail "no progress in $took s: $(cat -v "$dir/shown")"
  python3 - "$dir/shown" <<'EOF' || fail "progress goes back or stays on the screen: $(cat -v "$dir/shown")"
import re, sys
d = open(sys.argv[1], "rb").read().decode()
at = [int(x) for x in re.findall(r"\] +(\d+)%", d)]
assert at == sorted(at) and max(at) <= 100, at
last = d.rindex("\r\x1b[K")
assert "%" not in d[last:], d[last:]
assert max(len(x.split("\r")[0].split("\n")[0]) for x in d.split("\x1b[K") if "%" in x) < 56, d
EOF
fi
"${deep[@]}" "$dir/deep.gguf" >/dev/null 2>"$dir/err" || fail "a deep model: $(cat "$dir/err")"
grep -q '%' "$dir/err" && fail "progress where there is no terminal: $(cat -v "$dir/err")"
python3 tests/cli/on_terminal.py "$dir/shown" "${gpu[@]}" --budget host -o "$dir/r.yaml" "$m" >/dev/null || fail "a short plan: $(cat "$dir/shown")"
grep -q '%' "$dir/shown" && fail "progress of what takes no time: $(cat -v "$dir/shown")"
# Ranges end where they say, however large the step, and may be spelled out in bytes.
names() { "${gpu[@]}" --json --budget "$1" -o "$dir/r.yaml" "$dir/mid.gguf" >"$dir/j" 2>/dev/null && python3 -c 'import json,sys; print(*[l["budget"] for l in json.load(sys.stdin)["levels"]])' <"$dir/j"; }
[ "$(names 1GiB-2GiB/16777215TiB)" = 1GiB ] || fail "a step beyond the end: $(names 1GiB-2GiB/16777215TiB)"
[ "$(names 1073741824-4294967296/1073741824)" = "1GiB 2GiB 3GiB 4GiB" ] || fail "a range in bytes: $(names 1073741824-4294967296/1073741824)"
[ "$(names 1GiB-3GiB)" = "1GiB 2GiB 3GiB" ] || fail "doubled: $(names 1GiB-3GiB)"
# Levels that psrun can change into each other, and not into the host.
must "${gpu[@]}" --budget host,712MiB,736MiB -o "$dir/g.yaml" "$dir/mid.gguf"
"$bin/psplan" check --json "$dir/g.yaml" "$dir/mid.gguf" >"$dir/j" || fail "check --json"
json 'd["safe"] and [l["changes_to"] for l in d["levels"]] == [[], [2], [1]] and d["own_kernels"]' "$dir/j"
sed 's/^kernel_set: .*/kernel_set: "00000000000000000000000000000001"/' "$dir/g.yaml" >"$dir/others.yaml"
"$bin/psplan" check --json "$dir/others.yaml" "$dir/mid.gguf" >"$dir/j" || fail "check of another build's plan"
json 'd["safe"] and not d["own_kernels"]' "$dir/j"
must "$bin/psplan" check "$dir/g.yaml" "$dir/mid.gguf"
grep -q 'level 712MiB/512/1/15 changes to 1 of the other 2' "$dir/log" || fail "changes: $(cat "$dir/log")"
sed 's/vram_base_bytes: .*/vram_base_bytes: 9000000000/' "$dir/g.yaml" >"$dir/unsafe.yaml"
"$bin/psplan" check --json "$dir/unsafe.yaml" "$dir/mid.gguf" >"$dir/j" 2>"$dir/err"
[ $? -eq 65 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] || fail "check --json of an unsafe plan: $(cat "$dir/err")"
json 'd["safe"] is False and d["of_this_model"] and "budget" in d["where"] and "are more than" in d["message"]' "$dir/j"
"$bin/psplan" check --json "$dir/g.yaml" "$m" >"$dir/j" 2>/dev/null
[ $? -eq 1 ] || fail "check --json of another model"
json 'd["safe"] is False and not d["of_this_model"]' "$dir/j"
must "${gpu[@]}" --budget 712MiB --force split --explain --trace "$dir/t.json" -o "$dir/e.yaml" "$dir/mid.gguf"
grep -q 'busy alone' "$dir/log" || fail "--explain says nothing of queues"
must "$bin/psplan" emit timeline "$dir/t.json" -o "$dir/tl.json"
json 'len({e["tid"] for e in d["traceEvents"] if e["ph"] == "X"}) >= 3' "$dir/tl.json"
expect 1 "bytes short" "${gpu[@]}" --budget 600MiB -o "$dir/not.yaml" "$m"
"${gpu[@]}" --budget 600MiB --json -o "$dir/not.yaml" "$m" >"$dir/j" 2>/dev/null
[ $? -eq 1 ] || fail "infeasible budget --json"
json 'd["short_bytes"] > 0 and d["nearest_budget_bytes"] >= d["needed_bytes"] and d["largest"]' "$dir/j"
# R15: what is named fits and a step less does not: MiB of VRAM, of the level that is short.
must "$bin/pssynth" --preset llama3-8b-q4_0 --sparse "$dir/8b.gguf"
short=("$bin/psplan" --profile "$dir/gpu.yaml" --context 8192 --parallel 8 --force gpu --max-step 64 --output "$dir/least.bin")
"${short[@]}" --budget 2GiB,740MiB --json "$dir/8b.gguf" >"$dir/j" 2>"$dir/err"
[ $? -eq 1 ] && grep -q '^psplan: 740MiB: context 8192 .* bytes short; the largest part is .*MiB would do; ' "$dir/err" || fail "R15: $(cat "$dir/err")"
json 'd["short_bytes"] == d["needed_bytes"] - d["memory_bytes"] > 0 and d["memory_bytes"] == 740 << 20 and 0 <= d["nearest_budget_bytes"] - d["needed_bytes"] < 1 << 20' "$dir/j"
# The bytes themselves do as well, and a byte less does not.
bytes=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["needed_bytes"])' "$dir/j")
must "${short[@]}" --budget "$bytes" "$dir/8b.gguf"
expect 1 "needs $bytes bytes of VRAM: 1 bytes short" "${short[@]}" --budget "$((bytes - 1))" "$dir/8b.gguf"
least=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["nearest_budget_bytes"] >> 20)' "$dir/j")
must "${short[@]}" --budget "${least}MiB" "$dir/8b.gguf"
expect 1 "${least}MiB would do" "${short[@]}" --budget "$((least - 1))MiB" "$dir/8b.gguf"
# Tokens of context, where host memory is short.
sed 's/\bmemory_bytes: .*/memory_bytes: 6000000000/' "$dir/gpu.yaml" >"$dir/6gb.yaml"
for f in "--budget host" "--budget host,1GiB --force static"; do
  short=("$bin/psplan" --profile "$dir/6gb.yaml" --parallel 4 --max-step 64 $f --output "$dir/least.bin")
  "${short[@]}" --context 8192 --json "$dir/8b.gguf" >"$dir/j" 2>"$dir/err"
  [ $? -eq 1 ] && grep -q 'context 8192 .* bytes short; the largest part is the weights .*a context of .* would fit' "$dir/err" || fail "R15: $(cat "$dir/err")"
  most=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["nearest_context"])' "$dir/j")
  must "${short[@]}" --context "$most" "$dir/8b.gguf"
  expect 1 "a context of $most would fit" "${short[@]}" --context "$((most + 256))" "$dir/8b.gguf"
done
# What is said to do does, for every family: also where products of resident weights want more scratch than streamed ones, and
# steps of some tokens more than longer ones.
must "$bin/pstune" --null --device null --output "$dir/null.yaml"
small=("$bin/psplan" --profile "$dir/null.yaml" --context 2048 --output "$dir/least.bin")
for f in gpu static; do
  for arch in llama qwen3moe; do
    least=$("${small[@]}" --budget 1MiB --force $f "$dir/$arch.gguf" 2>&1 | grep -o '[0-9]*MiB would do')
    for more in 0 16 48; do
      must "${small[@]}" --budget $((${least%%MiB*} + more))MiB --force $f "$dir/$arch.gguf"
    done
  done
done
expect 64 "--force" "${gpu[@]}" --budget 736MiB --force fast "$m"
expect 64 "is not a number" "${plan[@]}" --threads 1.9 -o "$dir/x.yaml" "$m"
expect 64 "standard output is where the plan goes" "${plan[@]}" --json -o - "$m"
expect 64 "give a VRAM budget" "${gpu[@]}" --force split --budget host "$m"
# With a GPU in the profile and no budget named: the host, and where the schedule changes.
must "${gpu[@]}" -o "$dir/both.yaml" "$m"
grep -q 'budget: "host"' "$dir/both.yaml" && grep -q 'budget: "[0-9]*[MG]iB"' "$dir/both.yaml" || fail "default budgets with a GPU: $(grep budget "$dir/both.yaml")"
# Where memory is slow once it is full, automatic budgets stay below an eighth less than the card has; others are warned of, in one line.
sed -e 's/^  vram_bytes: .*/  vram_bytes: 838860800/' "$dir/gpu.yaml" >"$dir/filled.yaml"
sed -e 's/^  hbm_read_bytes_per_s: .*/&\n  hbm_full_bytes_per_s: {n: 31, median: 2e+10, q1: 1.9e+10, q3: 2.1e+10, stop: converged, noisy: false}/' "$dir/filled.yaml" >"$dir/spills.yaml"
spills() { "$bin/psplan" --profile "$dir/$1.yaml" --context 512 "${@:2}" --json -o "$dir/s.yaml" "$dir/mid.gguf" 2>"$dir/err" | python3 -c 'import json,sys; print(*[l["budget"] for l in json.load(sys.stdin)["levels"]])'; }
[ "$(spills filled)" = "host 692MiB 708MiB" ] && ! grep -q 'once it is full' "$dir/err" || fail "memory that is never slow: $(spills filled) $(cat "$dir/err")"
[ "$(spills spills)" = "host 692MiB" ] || fail "memory that is slow once full: $(spills spills)"
grep -c 'once it is full' "$dir/err" | grep -qx 1 && grep -q 'is read at 20.0 GB/s once it is full, at 4540.0 before: automatic budgets end at 700 MiB$' "$dir/err" || fail "no warning: $(cat "$dir/err")"
[ "$(spills spills --budget 696MiB,720MiB)" = "696MiB 720MiB" ] || fail "named budgets are kept"
grep -q 'once it is full.*: budgets above 700 MiB, as 720MiB, may be slower than predicted$' "$dir/err" || fail "no warning of a budget: $(cat "$dir/err")"
spills spills --budget host >/dev/null
grep -q 'once it is full' "$dir/err" && fail "a warning of VRAM without a GPU"
# What spills is as slow as the bus, also on a machine that is scaled.
must "$bin/psplan" whatif --profile "$dir/spills.yaml" --pcie 10GB/s --hbm 1000GB/s -o "$dir/scaled.yaml"
grep -q 'hbm_full_bytes_per_s: {n: 31, median: 38[0-9]\{8\}[.,]' "$dir/scaled.yaml" || fail "whatif: $(grep hbm_ "$dir/scaled.yaml")"
# Budgets are chosen by name, so a plan has one name for each.
must "${gpu[@]}" --budget 712MiB,736MiB -o "$dir/two.yaml" "$m"
sed 's/budget: "736MiB"/budget: "712MiB"/' "$dir/two.yaml" >"$dir/one-name.yaml"
expect 65 "has other bytes before" "$bin/psplan" check "$dir/one-name.yaml" "$m"
"${gpu[@]}" --budget 100TiB -o "$dir/large.yaml" "$m" >/dev/null 2>"$dir/err" || fail "100TiB: exit $?"
grep -q "warning: budget 100TiB is more than" "$dir/err" || fail "100TiB without a word: $(cat "$dir/err")"
expect 64 "--workload" "${gpu[@]}" --budget 736MiB --workload decode=5 "$m"
expect 64 "is not what" "${gpu[@]}" --budget 736MiB --parallel 3 --workload parallel=2 "$m"
# Two names for one size; ranges; the points where the schedule changes.
"${gpu[@]}" --budget 1GiB-2GiB/512MiB,2048MiB,1024MiB,1GiB --json -o "$dir/r.bin" "$m" >"$dir/j" 2>/dev/null || fail "two names"
json '[l["budget"] for l in d["levels"]] == ["1024MiB", "1536MiB", "2048MiB"]' "$dir/j"
for range in 2GiB-1GiB 0-1GiB 1GiB-2GiB/0 1GiB/2-3GiB 1GiB- -1GiB; do
  expect 64 "--budget" "${gpu[@]}" --budget $range "$m"
done
"${gpu[@]}" --budget host,720MiB-752MiB/16MiB,1GiB-3GiB --json -o "$dir/r.bin" "$dir/mid.gguf" >"$dir/j" 2>/dev/null || fail "ranges"
json '[l["budget"] for l in d["levels"]] == ["host", "720MiB", "736MiB", "752MiB", "1GiB", "2GiB", "3GiB"]' "$dir/j"
must "$bin/psplan" check "$dir/r.bin" "$dir/mid.gguf"
"${gpu[@]}" --budget auto --workload prompt=256,output=64,parallel=2 --json -o "$dir/a.bin" "$dir/mid.gguf" >"$dir/j" 2>/dev/null || fail "--budget auto"
json '2 <= len(d["levels"]) <= 8 and all(l["n_sequences"] == 2 for l in d["levels"])' "$dir/j"
json 'all(a["workload_s"] > b["workload_s"] for a, b in zip(d["levels"], d["levels"][1:]))' "$dir/j"
# The families stand beside what was found, which is no slower than any.
json 'list(d["levels"][0]["candidates"]) == ["static", "gpu", "direct", "dynamic", "split", "chosen"]' "$dir/j"
"${gpu[@]}" --budget 720MiB --json -o "$dir/a.bin" "$dir/mid.gguf" >"$dir/j" 2>/dev/null || fail "a budget"
json 'all(d["levels"][0]["workload_s"] <= 1.002 * c["workload_s"] for c in d["levels"][0]["candidates"].values() if c["feasible"])' "$dir/j"
"${gpu[@]}" --budget 1GiB --explain -o "$dir/e.bin" "$dir/mid.gguf" >"$dir/out" 2>/dev/null || fail "--explain with a GPU"
grep -q 'static, attention first' "$dir/out" && grep -q 'chosen .* from .* for decoding' "$dir/out" || fail "no candidates: $(cat "$dir/out")"
expect 64 "--workload" "${gpu[@]}" --budget 736MiB --workload prompt=0 "$m"
expect 64 "prompt is given twice" "${gpu[@]}" --budget 736MiB --workload prompt=1,prompt=2 "$m"

# inspect: also of what cannot run.
"$bin/psplan" inspect "$m" >"$dir/out" || fail "inspect"
grep -q 'refused       nothing' "$dir/out" || fail "inspect: $(cat "$dir/out")"
"$bin/psplan" inspect --json "$dir/qwen3moe.gguf" >"$dir/j" || fail "inspect --json"
json 'd["runs"] and d["architecture"] == "qwen3moe" and len(d["model"]["shards"]) == 2 + 2 * d["model"]["n_layers"]' "$dir/j"
sed 's/llama/lemma/g' "$m" >"$dir/lemma.gguf"
"$bin/psplan" inspect --json "$dir/lemma.gguf" >"$dir/j"
[ $? -eq 1 ] || fail "inspect of an unknown architecture must exit 1"
json 'not d["runs"] and d["architecture"] == "lemma" and d["n_refused"] > 0' "$dir/j"

# What a file and its metadata are called cannot move the cursor, colour the terminal or turn its direction.
bad=$dir/$'b\e[31m\n\xe2\x80\xae.gguf'
python3 - "$m" "$bad" <<'EOF'
import sys
d = open(sys.argv[1], "rb").read()
d = d.replace(b"tiny-llama", b"ti\x1b[1m\xc2\x9bnn").replace(b"llama.", b"l\xc2\x9bma.").replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0l\xc2\x9bma")
open(sys.argv[2], "wb").write(d.replace(b"blk.0.attn_norm", b"blk.0.\x1b[2J_norm"))
EOF
harmless() { python3 -c 'import sys; d = sys.stdin.buffer.read().decode(); assert not [c for c in d if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f" or c in "\u202e"], d' <"$1" || fail "$2"; }
"$bin/psplan" inspect "$bad" >"$dir/out" 2>"$dir/err"
harmless "$dir/out" "inspect prints control characters"
head -1 "$dir/out" | grep -qF '/b\x1b[31m\x0a\u202e.gguf: GGUF v3' || fail "inspect of a strange name: $(head -1 "$dir/out" | cat -v)"
grep -q '^architecture  l??ma, not supported$' "$dir/out" || fail "inspect of a strange architecture: $(cat -v "$dir/out")"
cp "$m" "$bad"
python3 - "$bad" <<'EOF'
import sys
d = open(sys.argv[1], "rb").read()
open(sys.argv[1], "wb").write(d.replace(b"tiny-llama", b"ti\x1b[1m\xc2\x9bnn").replace(b"blk.0.attn_norm", b"blk.0.\x1b[2J_norm"))
EOF
"$bin/psplan" inspect "$bad" >"$dir/out" 2>"$dir/err"
harmless "$dir/out" "inspect prints control characters of a name"
grep -q 'blk.0.?\[2J_norm' "$dir/out" || fail "inspect of a strange tensor: $(cat -v "$dir/out")"
"${plan[@]}" -o "$dir/not.yaml" "$bad" >"$dir/out" 2>"$dir/err"
harmless "$dir/err" "psplan prints control characters"
must "${plan[@]}" -o "$dir/"$'p\e.yaml' "$m"
"$bin/psplan" check "$dir/"$'p\e.yaml' "$m" >"$dir/out" 2>&1 || fail "check of a strange name"
harmless "$dir/out" "check prints control characters"

# Infeasible: exit 1 with largest consumer and bytes short; as JSON the numbers too; no file.
sed 's/\bmemory_bytes: .*/memory_bytes: 12000000/' "$dir/profile.yaml" >"$dir/small.yaml"
expect 1 "bytes short" "$bin/psplan" -p "$dir/small.yaml" --context 512 -o "$dir/not.yaml" "$m"
"$bin/psplan" -p "$dir/small.yaml" --context 512 --json -o "$dir/not.yaml" "$m" >"$dir/j" 2>/dev/null
[ $? -eq 1 ] || fail "infeasible --json"
json 'd["feasible"] is False and d["short_bytes"] == d["needed_bytes"] - d["memory_bytes"] > 0 and d["largest"]' "$dir/j"
[ -e "$dir/not.yaml" ] && fail "an infeasible plan was written"

# Wrong inputs.
: >"$dir/empty"
printf 'this is not a model file at all, but it is long enough to be one' >"$dir/magic"
head -c 3000 "$m" >"$dir/short"
sed 's/^pinstripe-plan: .*/pinstripe-plan: 99/' "$dir/llama.yaml" >"$dir/v99.yaml"
sed 's/scratch_offset: .*/scratch_offset: 64/' "$dir/llama.yaml" >"$dir/unsafe.yaml"
expect 64 "--budget" "${plan[@]}" --budget 0 "$m"
expect 64 "--budget" "${plan[@]}" --budget host,0 "$m"
expect 64 "--budget" "${plan[@]}" --budget lots "$m"
expect 69 "GPU" "${plan[@]}" --budget 2GiB "$m"
expect 64 "beyond the model" "${plan[@]}" --context 1000000 "$m"
expect 64 "--context" "${plan[@]}" --context 0 "$m"
expect 64 "--context" "${plan[@]}" --context 5,,6 "$m"
expect 64 "threads" "${plan[@]}" --threads 9 "$m"
expect 64 "--threads" "${plan[@]}" --threads many "$m"
expect 64 "--parallel" "${plan[@]}" --parallel 0 "$m"
expect 64 "--format" "${plan[@]}" --format xml "$m"
expect 64 "unknown option" "${plan[@]}" --frobnicate "$m"
for t in soon -1 +1 " 1" 1.5 0x10 1764374400s 253402300800 99999999999999999999; do
  expect 64 "SOURCE_DATE_EPOCH: '$t' is not a number" env SOURCE_DATE_EPOCH="$t" "${plan[@]}" -o "$dir/not.yaml" "$m"
done
for t in "" 0 00001764374400 253402300799; do must env SOURCE_DATE_EPOCH="$t" "${plan[@]}" -o "$dir/date$t.yaml" "$m"; done
grep -q '^created: "1970-01-01T00:00:00Z"' "$dir/date0.yaml" && grep -q '^created: "9999-12-31T23:59:59Z"' "$dir/date253402300799.yaml" || fail "dates: $(grep -h created "$dir"/date*.yaml)"
expect 64 "argument is missing" "$bin/psplan"
expect 64 "not a kind" "$bin/psplan" emit poem "$m"
expect 66 "run pstune" "$bin/psplan" "$m"
expect 66 "$dir/no.yaml" "$bin/psplan" -p "$dir/no.yaml" "$m"
expect 65 "$dir/empty" "$bin/psplan" -p "$dir/empty" "$m"
expect 65 "$dir/magic" "$bin/psplan" -p "$dir/magic" "$m"
expect 66 "$dir/no.gguf" "${plan[@]}" "$dir/no.gguf"
expect 66 "is a directory" "${plan[@]}" "$dir"
expect 65 "$dir/empty" "${plan[@]}" "$dir/empty"
expect 65 "$dir/magic" "${plan[@]}" "$dir/magic"
expect 65 "$dir/short" "${plan[@]}" "$dir/short"
expect 65 "lemma" "${plan[@]}" "$dir/lemma.gguf"
expect 66 "$dir/no.gguf" "$bin/psplan" inspect "$dir/no.gguf"
expect 65 "$dir/magic" "$bin/psplan" inspect "$dir/magic"
expect 1 "$dir/llama.yaml" "$bin/psplan" check "$dir/llama.yaml" "$dir/qwen3.gguf"
expect 65 "$dir/v99.yaml" "$bin/psplan" check "$dir/v99.yaml" "$m"
expect 65 "$dir/unsafe.yaml" "$bin/psplan" check "$dir/unsafe.yaml" "$m"
expect 65 "$dir/magic" "$bin/psplan" emit timeline "$dir/magic"
expect 73 "$dir/none/p.yaml" "${plan[@]}" -o "$dir/none/p.yaml" "$m"
"$bin/psplan" --help >"$dir/out" && grep -q -- --explain "$dir/out" || fail "--help"
"$bin/psplan" --version >"$dir/out" && grep -q '^psplan [0-9]' "$dir/out" || fail "--version"
for c in inspect emit check; do "$bin/psplan" $c --help >"$dir/out" && grep -q "psplan $c" "$dir/out" || fail "$c --help"; done
if [ -w /dev/full ]; then
  "${plan[@]}" -o - "$m" >/dev/full 2>"$dir/err"
  [ $? -eq 74 ] || fail "full disk: $(cat "$dir/err")"
fi

[ "$failures" -eq 0 ] && echo "psplan: all as expected"
exit $((failures != 0))
