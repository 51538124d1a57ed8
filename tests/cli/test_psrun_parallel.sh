#!/usr/bin/env bash
# psrun --prompts: every line is answered, in order, alone as by itself, in company the same every time.
set -uo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bin=${PS_BIN:?}
failures=0
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
must() { "$@" >"$dir/log" 2>&1 || { cat "$dir/log"; fail "$*"; }; }

m=$dir/m.gguf p=$dir/m.plan.yaml
must "$bin/pssynth" --preset tiny-llama "$m"
must "$bin/pstune" --null --output "$dir/profile.yaml"
must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --parallel 3 --output "$p" "$m"
run=("$bin/psrun" --quiet --raw --plan "$p" -n 9)
lines=('Hello there' 'One' 'Two words' 'A longer line of text than the others here' 'Last')
printf '%s\n' "${lines[@]:0:2}" '' "${lines[@]:2}" >"$dir/prompts"

numbers=(1 2 4 5 6) # of the file's lines; an empty one has no answer
for i in "${!lines[@]}"; do
  printf '[%d] %s\n' "${numbers[$i]}" "$("${run[@]}" -m "${lines[$i]}" "$m")"
done >"$dir/alone"
"${run[@]}" --prompts "$dir/prompts" "$m" >"$dir/one" || fail "--prompts"
cmp -s "$dir/alone" "$dir/one" || fail "one at a time differs from runs by themselves: $(diff "$dir/alone" "$dir/one" | head -3)"
"${run[@]}" --prompts "$dir/prompts" --parallel 3 "$m" >"$dir/a" || fail "--parallel 3"
"${run[@]}" --prompts "$dir/prompts" --parallel 3 "$m" >"$dir/b" || fail "--parallel 3 again"
cmp -s "$dir/a" "$dir/b" || fail "--parallel 3 differs from run to run"
[ "$(grep -c '^\[[12456]\] ' "$dir/a")" -eq 5 ] || fail "not five answers: $(cat "$dir/a")"
"${run[@]}" --prompts "$dir/prompts" --parallel 3 --json "$m" |
  python3 -c 'import json,sys; d=json.load(sys.stdin); a=d["answers"]; assert [x["line"] for x in a]==[1,2,4,5,6] and d["generated_tokens"]==sum(x["generated_tokens"] for x in a)>0, d' || fail "--json"
"${run[@]}" --bench --parallel 3 --bench-prompt 20 --bench-decode 4 --repeat 2 --json "$m" |
  python3 -c 'import json,sys; d=json.load(sys.stdin); assert d["prefill"]["tokens"]==60 and d["decode"]["tokens"]==12, d' || fail "--bench --parallel"

# expect CODE TEXT COMMAND...: one line on standard error.
expect() {
  local code=$1 text=$2 got
  shift 2
  "$@" >"$dir/out" 2>"$dir/err"
  got=$?
  [ "$got" -eq "$code" ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qF -- "$text" "$dir/err" || fail "$* : exit $got, expected $code: $(cat "$dir/err")"
}
expect 64 'has no level for 4 sequences' "${run[@]}" --prompts "$dir/prompts" --parallel 4 "$m"
expect 64 'is for --prompts and --bench' "${run[@]}" -m Hi --parallel 2 "$m"
expect 64 'give one of' "${run[@]}" -m Hi --prompts "$dir/prompts" "$m"
expect 66 'nowhere' "${run[@]}" --prompts "$dir/nowhere" "$m"
: >"$dir/empty"
expect 65 'holds no prompt' "${run[@]}" --prompts "$dir/empty" "$m"
{ printf 'One\n\n'; for ((i = 0; i < 300; i++)); do printf 'word '; done; echo; } >"$dir/long"
for options in '' '--parallel 3' --json; do
  expect 64 'long: line 3: prompt: ' "${run[@]}" $options --prompts "$dir/long" "$m"
  [ -s "$dir/out" ] && fail "answers before a line is refused: $(cat "$dir/out")"
done

# Every byte of an answer comes out, NUL too: by itself, of several, and as JSON.
printf 'hi\n' >"$dir/hi"
hot=("$bin/psrun" --quiet --raw --plan "$p" -n 200 --temperature 100 --seed 1)
python3 - "$dir" "${hot[@]}" -- "$m" <<'P' || fail "an answer is cut at a NUL"
import json, subprocess, sys
dir, *hot, _, m = sys.argv[1:]
run = lambda *more: subprocess.run([*hot, *more, m], check=True, stdout=subprocess.PIPE).stdout
alone = run("-m", "hi")
assert b"\0" in alone[:-1], "no NUL in this answer: take another seed"
assert run("--prompts", f"{dir}/hi") == b"[1] " + alone
for text in (json.loads(run("-m", "hi", "--json"))["text"], json.loads(run("--prompts", f"{dir}/hi", "--json"))["answers"][0]["text"]):
    assert text.count("\0") == alone.count(b"\0"), text
P

# In conversations too a prompt is its own line alone.
chat=${PS_MODELS:-}/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -r "$chat" ]; then
  must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --output "$dir/chat.yaml" "$chat"
  printf 'Hi\nName a colour\r\nBye' >"$dir/prompts"
  "$bin/psrun" --quiet --plan "$dir/chat.yaml" --prompts "$dir/prompts" -n 1 --json "$chat" >"$dir/json" || fail "--prompts as conversations"
  for text in Hi 'Name a colour' Bye; do
    "$bin/psrun" --quiet --plan "$dir/chat.yaml" -m "$text" -n 1 --json "$chat"
  done >"$dir/alone"
  python3 - "$dir" <<'P' || fail "--prompts: conversations of other lengths than by themselves"
import re, sys
dir = sys.argv[1]
n = [re.findall(r'"prompt_tokens": (\d+)', open(f"{dir}/{f}").read()) for f in ("json", "alone")]
assert len(n[1]) == 3 and n[0][-3:] == n[1], n
P
else
  echo "no conversation tried: PS_MODELS has no SmolLM2"
fi
[ "$failures" -eq 0 ]
