#!/usr/bin/env bash
# Machines other than this one: --machine, psplan whatif, the fixtures that its script writes, and what psplan and psrun say of
# a plan whose profile is of elsewhere, with a GPU.
. "$(dirname "$0")/common.sh"
profiles=$PWD/fixtures/profiles
export SOURCE_DATE_EPOCH=1764374400
export XDG_DATA_HOME=$dir/none

must "$bin/pssynth" --arch llama "$dir/tiny.gguf"
must "$bin/pssynth" --preset qwen3-30b-a3b-q4_0 --sparse "$dir/moe.gguf"
h200=$profiles/h200-qwen3-30b-a3b-q4_0.yaml

# --machine is --profile, and says once that the plan is for elsewhere.
must "$bin/psplan" --profile "$h200" --context 512 --threads 1 -o "$dir/a.yaml" "$dir/tiny.gguf"
must "$bin/psplan" --machine "$h200" --context 512 --threads 1 -o "$dir/b.yaml" "$dir/tiny.gguf"
[ "$(grep -c 'of another machine' "$dir/log")" -eq 1 ] || fail "psplan does not warn once: $(cat "$dir/log")"
cmp -s "$dir/a.yaml" "$dir/b.yaml" || fail "--machine and --profile differ"
expect 64 "--profile" "$bin/psplan" --machine "$h200" --profile "$h200" "$dir/tiny.gguf"
expect 64 "is an input" "$bin/psplan" --machine "$dir/a.yaml" -o "$dir/a.yaml" "$dir/tiny.gguf"
# A plan of another kernel set is refused, one of another machine runs with one warning and says whose the predictions are.
sed 's/^kernel_set: "[0-9a-f]*"/kernel_set: "00000000000000000000000000000001"/' "$h200" >"$dir/set.yaml"
must "$bin/psplan" --machine "$dir/set.yaml" --context 512 --threads 1 -o "$dir/set.plan.yaml" "$dir/tiny.gguf"
expect 1 "another set of kernels" "$bin/psrun" --plan "$dir/set.plan.yaml" --raw -m a -n 1 "$dir/tiny.gguf"
must "$bin/tests/make_gpu_profile" "$dir/synthetic.yaml"
sed 's/^synthetic: true/synthetic: false/' "$dir/synthetic.yaml" >"$dir/gpu.yaml"
for of in synthetic gpu; do
  must "$bin/psplan" --machine "$dir/$of.yaml" --context 256 --threads 1 --budget host,740MiB -o "$dir/$of.plan.yaml" "$dir/tiny.gguf"
  "$bin/psrun" --device none --plan "$dir/$of.plan.yaml" --budget host --raw -m a -n 2 --json "$dir/tiny.gguf" >"$dir/$of.json" 2>"$dir/$of.err" ||
    fail "psrun with a plan of another machine: $(cat "$dir/$of.err")"
  [ "$(grep -c '^psrun: warning' "$dir/$of.err")" -eq 1 ] || fail "not one warning: $(cat "$dir/$of.err")"
done
grep -q 'of another machine; its predictions are not this' "$dir/gpu.err" || fail "warning of another machine"
grep -q 'synthetic profile' "$dir/synthetic.err" || fail "warning of a synthetic profile"
json 'd["predictions_of"] == "another machine"' "$dir/gpu.json"
json 'd["predictions_of"] == "synthetic"' "$dir/synthetic.json"

# The fixtures are what their script writes (to rounding: other C libraries).
mkdir "$dir/again"
cp "$profiles"/make.sh "$profiles"/h200*.yaml "$dir/again/"
must bash "$dir/again/make.sh" "$bin/psplan"
python3 - "$profiles" "$dir/again" <<'P' || fail "fixtures/profiles/make.sh writes something else"
import glob, os, re, sys
a, b = sys.argv[1:]
names = [os.path.basename(n) for n in glob.glob(b + "/*.yaml")]
assert len(names) >= 6, names
number = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
for n in names:
    x, y = open(f"{a}/{n}").read(), open(f"{b}/{n}").read()
    if x == y:
        continue
    hashes = r'machine_hash: "[0-9a-f]*"'
    assert re.search(hashes, x).group() == re.search(hashes, y).group(), n
    assert number.sub("N", x) == number.sub("N", y), n
    assert all(abs(float(p) - float(q)) <= 1e-9 * abs(float(q)) for p, q in zip(number.findall(x), number.findall(y))), n
P

# whatif: nothing asked for is the same file; the table and JSON; a profile to standard output.
must "$bin/psplan" whatif --profile "$h200" -o "$dir/same.yaml"
cmp -s "$h200" "$dir/same.yaml" || fail "whatif without wishes changed the profile"
"$bin/psplan" whatif --profile "$h200" --pcie 26.5GB/s --vram 8GiB --threads 8 -o - >"$dir/out.yaml" || fail "whatif -o -"
must "$bin/pstune" show "$dir/out.yaml"
grep -q '^synthetic: true' "$dir/out.yaml" && grep -q 'to 26.5 GB/s' "$dir/out.yaml" && grep -q '^  vram_bytes: 8589934592' "$dir/out.yaml" || fail "what was asked for"
ask=("$bin/psplan" whatif --profile "$h200" --pcie 13e9 --dram 55GB/s --hbm 230GB/s --gpu-flops 40TFLOPS --vram 8GiB --threads 8)
"${ask[@]}" --budget host,3GiB,9GiB --json "$dir/moe.gguf" >"$dir/j" 2>"$dir/err" || fail "whatif --json: $(cat "$dir/err")"
json '[b["budget"] for b in d["budgets"]] == ["host", "3GiB", "9GiB"] and d["prompt_tokens"] == 1024' "$dir/j"
json 'all(b["before"]["feasible"] and b["before"]["decode_step_s"] > 0 for b in d["budgets"])' "$dir/j"
json 'd["budgets"][1]["after"]["prefill_s"] > 2 * d["budgets"][1]["before"]["prefill_s"]' "$dir/j"
json 'not d["budgets"][2]["after"]["feasible"] and "memory" in d["budgets"][2]["after"]["message"]' "$dir/j"
json 'd["budgets"][0]["after"]["decode_weights"] == "cpu" and "vram" in d["budgets"][1]["after"]["decode_weights"]' "$dir/j"
must "${ask[@]}" --budget 3GiB --workload prompt=256,output=10 --context 2048 -o "$dir/scaled.yaml" "$dir/moe.gguf"
[ "$(wc -l <"$dir/log")" -eq 4 ] && grep -q "after .*; vram" "$dir/log" || fail "table: $(cat "$dir/log")"
# The written profile plans like the table said.
must "$bin/psplan" --machine "$dir/scaled.yaml" --budget 3GiB --workload prompt=256,output=10 --context 2048 -o "$dir/p.yaml" "$dir/moe.gguf"
grep -q 'synthetic' "$dir/log" || fail "a plan of a scaled profile is not marked"

# Without --budget: the host, and the whole of the smaller GPU's memory.
"${ask[@]}" --json "$dir/moe.gguf" >"$dir/j" 2>/dev/null || fail "whatif without --budget"
json '[b["budget"] for b in d["budgets"]] == ["host", "8192MiB"] and d["budgets"][1]["after"]["feasible"]' "$dir/j"

# R2: from how many tokens on experts are better streamed falls with the bus's rate, about as much as that rises, and rises with
# the CPU's: four times the cores' speed at twice the DRAM.
cross=(tools/crossover.py --psplan "$bin/psplan" --svg "$dir/x.svg")
"${cross[@]}" --profile "$h200" --pcie 4,8,16,32,50 "$dir/moe.gguf" >"$dir/slow.json" || fail "crossover"
must "$bin/psplan" whatif --profile "$h200" --cpu-flops 18TFLOPS --dram 120GB/s -o "$dir/fast.yaml"
"${cross[@]}" --profile "$dir/fast.yaml" --pcie 4,8,16,32,50 "$dir/moe.gguf" >"$dir/fast.json" || fail "crossover with a fast CPU"
json 'all(a["tokens"] and b["tokens"] and 1.3 < a["tokens"] / b["tokens"] < 2.6 for a, b in zip(d, d[1:]))' "$dir/slow.json"
json 'all(a > b for a, b in zip([r["tokens"] or 1e9 for r in d], [r["tokens"] or 1e9 for r in d][1:]) if a < 1e9)' "$dir/fast.json"
python3 - "$dir/slow.json" "$dir/fast.json" "$dir/x.svg" <<'P' || fail "crossover over the CPU's speed, or its drawing"
import json, sys, xml.dom.minidom
slow, fast = (json.load(open(n)) for n in sys.argv[1:3])
assert all((b["tokens"] or 1e9) > 1.5 * a["tokens"] for a, b in zip(slow, fast)), (slow, fast)
assert fast[-1]["tokens"] is not None, fast
assert len(xml.dom.minidom.parse(sys.argv[3]).getElementsByTagName("polyline")) == 6
P

expect 64 "nothing to do" "$bin/psplan" whatif --profile "$h200" --pcie 13GB/s
for rate in 0 -5 GB/s 13XB/s 13GB nan inf 0x10 "1 2" ""; do
  expect 64 "--pcie" "$bin/psplan" whatif --profile "$h200" --pcie "$rate" -o "$dir/no.yaml"
done
expect 64 "cannot feed" "$bin/psplan" whatif --profile "$h200" --dram 5GB/s --pcie 60GB/s -o "$dir/no.yaml"
expect 69 "none to change" "$bin/psplan" whatif --profile "$profiles/thin-laptop.yaml" --hbm 1TB/s -o "$dir/no.yaml"
expect 64 "is an input" "$bin/psplan" whatif --profile "$dir/scaled.yaml" --dram 5GB/s -o "$dir/scaled.yaml"
expect 66 "cannot open" "$bin/psplan" whatif --profile "$h200" --dram 50GB/s "$dir/none.gguf"
expect 64 "--budget" "$bin/psplan" whatif --profile "$h200" --budget 1x "$dir/tiny.gguf"
expect 64 "0 is no budget" "$bin/psplan" whatif --profile "$h200" --budget 0 "$dir/tiny.gguf"
expect 64 "is given twice" "$bin/psplan" whatif --profile "$h200" --workload output=1,output=2 "$dir/tiny.gguf"
expect 64 "--parallel says" "$bin/psplan" whatif --profile "$h200" --parallel 2 --workload parallel=3 "$dir/tiny.gguf"
# Budgets are those of psplan, ranges and auto among them; each size once.
"${ask[@]}" --budget host,2GiB-3GiB/1GiB,2048MiB --json "$dir/tiny.gguf" >"$dir/j" 2>/dev/null || fail "whatif with a range"
json '[b["budget"] for b in d["budgets"]] == ["host", "2048MiB", "3GiB"]' "$dir/j"
"${ask[@]}" --budget auto --context 512 --json "$dir/tiny.gguf" >"$dir/j" 2>/dev/null || fail "whatif with auto"
json 'd["budgets"] and all(b["before"]["feasible"] or b["after"]["feasible"] for b in d["budgets"])' "$dir/j"
# Where nothing fits on the machine asked for the answer is no, in the table and by the exit code; psplan says the same.
"${ask[@]}" --budget 600MiB,650MiB "$dir/tiny.gguf" >"$dir/out" 2>"$dir/err"
[ $? -eq 1 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && [ "$(grep -c 'MiB would do' "$dir/out")" -eq 4 ] || fail "whatif where nothing fits: $(cat "$dir/out" "$dir/err")"
"$bin/psplan" --machine "$dir/scaled.yaml" --budget 600MiB -o "$dir/no.yaml" "$dir/tiny.gguf" 2>"$dir/err2"
[ $? -eq 1 ] && cmp -s "$dir/err" "$dir/err2" || fail "psplan says otherwise: $(cat "$dir/err" "$dir/err2")"
"${ask[@]}" --budget 600MiB,3GiB "$dir/tiny.gguf" >/dev/null 2>&1 || fail "whatif where one fits"
"$bin/psplan" whatif --profile "$h200" --no-gpu --budget 3GiB "$dir/tiny.gguf" >"$dir/out" 2>"$dir/err"
[ $? -eq 69 ] && grep -q 'has no GPU' "$dir/err" || fail "whatif --no-gpu with a budget: $(cat "$dir/err")"
# A machine without a GPU loses none.
must "$bin/psplan" whatif --profile "$profiles/vm-2-cores.yaml" --no-gpu -o "$dir/same.yaml"
cmp -s "$profiles/vm-2-cores.yaml" "$dir/same.yaml" || fail "whatif --no-gpu changed a profile without one"
must "$bin/psplan" whatif --profile "$profiles/vm-2-cores.yaml" --no-gpu "$dir/tiny.gguf"
expect 64 "--force" "$bin/psplan" whatif --profile "$h200" --force fast "$dir/tiny.gguf"
[ -e "$dir/no.yaml" ] && fail "a refused request wrote something"

[ "$failures" -eq 0 ] && echo "whatif: all as expected"
exit $((failures > 0))
