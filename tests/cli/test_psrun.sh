#!/usr/bin/env bash
# psrun on a tiny random model: right runs are reproducible, wrong inputs give one line and the right exit code.
. "$(dirname "$0")/common.sh"

m=$dir/m.gguf p=$dir/m.plan.yaml
must "$bin/pssynth" --preset tiny-llama "$m"
must "$bin/pssynth" --preset tiny-qwen3 "$dir/other.gguf"
must "$bin/pstune" --null --output "$dir/profile.yaml"
must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --output "$p" "$m"
must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --format binary --output "$dir/m.plan.bin" "$m"
run=("$bin/psrun" --quiet --raw --plan "$p")

# Right runs: same seed same answer, YAML and binary plan agree, every instruction within its tolerance.
"${run[@]}" -m 'Hello there' -n 12 "$m" >"$dir/a" || fail "greedy run"
"$bin/psrun" --quiet --raw --plan "$dir/m.plan.bin" -m 'Hello there' -n 12 "$m" >"$dir/b" || fail "binary plan"
cmp -s "$dir/a" "$dir/b" || fail "YAML and binary plan differ"
"${run[@]}" --verify -m 'Hello there' -n 12 "$m" >"$dir/b" || fail "verify"
cmp -s "$dir/a" "$dir/b" || fail "verify changes the answer"
printf 'Hello there' | "${run[@]}" -m - -n 12 "$m" >"$dir/b" || fail "prompt from standard input"
cmp -s "$dir/a" "$dir/b" || fail "prompt from standard input differs"
sample=(--temperature 0.9 --top-k 20 --top-p 0.95 --min-p 0.01)
"${run[@]}" "${sample[@]}" --seed 7 -m 'Hi' -n 20 "$m" >"$dir/a" && "${run[@]}" "${sample[@]}" --seed 7 -m 'Hi' -n 20 "$m" >"$dir/b" || fail "sampling"
cmp -s "$dir/a" "$dir/b" || fail "same seed, different answer"
"${run[@]}" "${sample[@]}" --seed 8 -m 'Hi' -n 20 "$m" >"$dir/b"
cmp -s "$dir/a" "$dir/b" && fail "another seed, same answer"
"${run[@]}" --json -m 'Hi' -n 5 "$m" | python3 -c 'import json,sys; d=json.load(sys.stdin); assert d["generated_tokens"] <= 5 and d["decode_predicted_s"] > 0, d' || fail "--json"
"${run[@]}" --bench --bench-prompt 40 --bench-decode 5 --repeat 2 --json "$m" | python3 -c 'import json,sys; d=json.load(sys.stdin); assert d["prefill"]["n"] == 2 and d["decode"]["median_s"] > 0, d' || fail "--bench"
# A trace: readable, one event per instruction, and psplan turns it into a timeline.
"${run[@]}" -m 'Hello there' -n 3 --trace "$dir/t.json" "$m" >/dev/null || fail "--trace"
python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); s=d["steps"]; assert len(s) == 3 and all(x["rows"] for x in s), d' "$dir/t.json" || fail "trace"
must "$bin/psplan" emit timeline "$dir/t.json" --output "$dir/tl.json"
python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); assert any(e.get("ph") == "X" for e in d["traceEvents"])' "$dir/tl.json" || fail "timeline"
# Logits of given tokens: a row of the vocabulary per token, the same for any thread count and window split.
python3 -c 'import array,sys; array.array("i", [i % 50 for i in range(48)]).tofile(open(sys.argv[1], "wb"))' "$dir/ids"
"${run[@]}" --teacher-force "$dir/ids" --window 48 --logits-out "$dir/l" "$m" || fail "--teacher-force"
[ $(($(stat -c %s "$dir/l") % (48 * 4))) -eq 0 ] && [ -s "$dir/l" ] || fail "logits have the wrong size"
# The synthetic models' chat templates are of formats that psrun knows, and where both streams go to one file the
# notes begin on their own line.
for a in llama qwen3 gemma3; do
  must "$bin/pssynth" --arch $a "$dir/c.gguf"
  must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --output "$dir/c.yaml" "$dir/c.gguf"
  "$bin/psrun" --plan "$dir/c.yaml" -m 'Hello' -n 2 "$dir/c.gguf" >"$dir/log" 2>&1 || fail "chat with $a"
  grep -q 'note:' "$dir/log" && fail "chat with $a: $(grep -a 'note:' "$dir/log")"
  grep -qa '^prompt ' "$dir/log" || fail "chat with $a: the speed does not begin a line"
done
"${run[@]}" --teacher-force "$dir/ids" --window 48 --chunk 1 --logits-out "$dir/l1" "$m" || fail "--chunk"
python3 - "$dir/l" "$dir/l1" <<'PY' || fail "one token at a time is far from 48 at once"
import array, math, sys
a, b = (array.array("f", open(p, "rb").read()) for p in sys.argv[1:])
diff = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b))) / math.sqrt(sum(x * x for x in a))
assert len(a) == len(b) and 0 < diff < 0.05, diff
PY

# Wrong inputs.
: >"$dir/empty"
printf 'this is not a model file at all, but it is long enough to be one' >"$dir/magic"
head -c 3000 "$m" >"$dir/short"
sed 's/^pinstripe-plan: .*/pinstripe-plan: 99/' "$p" >"$dir/v99"
expect 66 "$dir/no.gguf" "${run[@]}" -m x "$dir/no.gguf"
expect 66 "is a directory" "${run[@]}" -m x "$dir"
expect 65 "$dir/empty" "${run[@]}" -m x "$dir/empty"
expect 65 "$dir/magic" "${run[@]}" -m x "$dir/magic"
expect 65 "$dir/short" "${run[@]}" -m x "$dir/short"
expect 1 "$p" "${run[@]}" -m x "$dir/other.gguf"
expect 66 "$dir/no.plan" "$bin/psrun" --plan "$dir/no.plan" -m x "$m"
expect 65 "$dir/v99" "$bin/psrun" --plan "$dir/v99" -m x "$m"
expect 65 "$dir/empty" "$bin/psrun" --plan "$dir/empty" -m x "$m"
expect 64 "a value is missing" "$bin/psrun" -m x "$m" --plan
expect 66 "psplan" env -C "$dir" "$bin/psrun" -m x "$dir/other.gguf"
expect 64 "no budget '0'" "${run[@]}" --budget 0 -m x "$m"
expect 64 "99999" "${run[@]}" --context 99999 -m x "$m"
expect 64 "unknown option" "${run[@]}" --frobnicate "$m"
expect 64 "--tokens" "${run[@]}" -n 0 -m x "$m"
expect 64 "give one of" "${run[@]}" "$m"
expect 64 "--top-p" "${run[@]}" --top-p 1.5 -m x "$m"
expect 64 "context" "${run[@]}" -m "$(printf 'word %.0s' $(seq 600))" "$m"
expect 64 "argument is missing" "$bin/psrun"
expect 64 "--logits-out" "${run[@]}" --teacher-force "$dir/ids" "$m"
head -c 192 "$m" >"$dir/far" # ids outside the vocabulary
echo old >"$dir/keep"
expect 65 "$dir/far" "${run[@]}" --teacher-force "$dir/far" --logits-out "$dir/keep" "$m"
[ "$(cat "$dir/keep")" = old ] && [ ! -e "$dir/keep.partial" ] || fail "a failed run touched its output"
expect 73 "$dir/none/x" "${run[@]}" --teacher-force "$dir/ids" --logits-out "$dir/none/x" "$m"
head -c 3001 "$m" >"$dir/odd"
expect 65 "int32" "${run[@]}" --teacher-force "$dir/odd" --logits-out "$dir/l" "$m"
expect 73 "$dir/none/t.json" "${run[@]}" -m 'Hi' -n 3 --trace "$dir/none/t.json" "$m"
[ ! -s "$dir/out" ] || fail "a trace to a missing folder is refused only after the answer"
# What is wrong whatever the model is: said before one is opened, here one that is not there.
none=("$bin/psrun" --quiet --plan "$p")
mkfifo "$dir/pipe"
expect 64 "--teacher-force: needs --logits-out" "${none[@]}" --teacher-force "$dir/ids" "$dir/no.gguf"
expect 64 "--logits-out: is for --teacher-force" "${none[@]}" --raw -m x --logits-out "$dir/l" "$dir/no.gguf"
expect 64 "--system: is for a conversation" "${none[@]}" --raw --system x -m x "$dir/no.gguf"
expect 64 "--top-p: must be above 0" "${none[@]}" --top-p 0 -m x "$dir/no.gguf"
expect 65 "int32" "${none[@]}" --teacher-force "$dir/odd" --logits-out "$dir/l" "$dir/no.gguf"
expect 73 "/dev/full" "${none[@]}" --teacher-force "$dir/ids" --logits-out /dev/full "$dir/no.gguf"
for option in --prompt-file --prompts "--logits-out $dir/l --teacher-force"; do # two words in the last
  expect 66 "$dir/pipe: is not a regular file" "${none[@]}" $option "$dir/pipe" "$dir/no.gguf"
done
"${run[@]}" -m x -n 1 --seed 18446744073709551615 "$m" >/dev/null || fail "the largest seed"
"$bin/psrun" --help | grep -q -- --teacher-force || fail "--help"
"$bin/psrun" --version | grep -q '^psrun [0-9]' || fail "--version"
if [ -w /dev/full ]; then
  "${run[@]}" -m 'Hi' -n 3 "$m" >/dev/full 2>"$dir/err"
  [ $? -eq 74 ] || fail "full disk: $(cat "$dir/err")"
fi

[ "$failures" -eq 0 ] && echo "psrun: all as expected"
exit $((failures != 0))
