#!/usr/bin/env bash
# Levels at run time on the emulated device: SIGUSR1 and SIGUSR2, --watch-vram with other processes that come and go, what
# is said of memory. Whatever happens meanwhile, the tokens are those of an undisturbed run.
set -uo pipefail
dir=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
bin=${PS_BIN:?}
failures=0

fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
must() { "$@" >"$dir/log" 2>&1 || { cat "$dir/log"; fail "$*"; exit 1; }; }
# until WHAT COMMAND...: it must succeed within 60 s.
until_true() {
  local what=$1
  shift
  for ((i = 0; i < 1200; i++)); do
    "$@" && return 0
    sleep 0.05
  done
  fail "not within a minute: $what: $(cat "$dir/err")"
}
# start COMMAND...: in the background; what the one before printed is gone before anybody waits for output.
start() {
  : >"$dir/out"
  : >"$dir/err"
  "$@" >"$dir/out" 2>"$dir/err" &
  pid=$!
}
grown() { [ "$(stat -c %s "$dir/out")" -ge "$1" ]; }
said() { grep -q -- "$1" "$dir/err"; }
n_changes() { [ "$(grep -c 'changed in .* ms$' "$dir/err")" -ge "$1" ]; }
changed_to() { grep "changed in" "$dir/err" | tail -n 1 | grep -q "budget $1,"; }

# Experts are most of this model's bytes and few of its work: budgets hold different shares of it, and tokens come fast.
m=$dir/m.gguf
must "$bin/pssynth" --preset tiny-qwen3moe --n-expert 128 --n-ff-expert 256 --type F16 "$m"
must "$bin/pstune" --null --device null --quick --output "$dir/profile.yaml"
must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 2048 --budget 620MiB,660MiB,720MiB --force direct --output "$dir/p.yaml" "$m"
must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --budget host --output "$dir/host.yaml" "$m"
run=("$bin/psrun" --device emulated --plan "$dir/p.yaml" --raw -m 'Hello' -n 300 "$m")

"${run[@]}" --budget 620MiB --quiet >"$dir/quiet" 2>"$dir/err" || fail "undisturbed run: $(cat "$dir/err")"
[ -s "$dir/err" ] && fail "--quiet is not: $(cat "$dir/err")"

# Signals: two budgets down, no further, one up.
start "${run[@]}" --budget 720MiB
until_true "first tokens" grown 20
kill -USR1 $pid
until_true "first change" n_changes 1
changed_to 660MiB || fail "SIGUSR1: $(cat "$dir/err")"
kill -USR1 $pid
until_true "second change" n_changes 2
changed_to 620MiB || fail "SIGUSR1 again: $(cat "$dir/err")"
kill -USR1 $pid
until_true "nothing smaller" said "SIGUSR1: the plan has no smaller budget"
kill -USR2 $pid
until_true "third change" n_changes 3
changed_to 660MiB || fail "SIGUSR2: $(cat "$dir/err")"
wait $pid || fail "run with signals: exit $?"
pid=
cmp -s "$dir/quiet" "$dir/out" || fail "signals change the tokens"
grep -q '^VRAM .* MiB at most, budget 660MiB$' "$dir/err" || fail "no peak: $(cat "$dir/err")"
grep -q "warning.*budget" "$dir/err" && fail "above the budget: $(cat "$dir/err")"

# Other processes: they take nearly everything, leave room for the middle budget, then all of it. The emulated device has 8 GiB.
echo 0 >"$dir/others"
start "${run[@]}" --tokens 2000 --watch-vram 8GiB --emulated-others "$dir/others"
set_others() { echo $(($1 << 20)) >"$dir/others.new" && mv "$dir/others.new" "$dir/others"; }
until_true "first tokens" grown 5
said ', budget 720MiB, ' || fail "--watch-vram does not begin with the largest budget: $(cat "$dir/err")"
set_others $((8192 - 400))
until_true "smallest budget" changed_to 620MiB
set_others $((8192 - 700))
until_true "middle budget" changed_to 660MiB
set_others 0
until_true "largest budget again" changed_to 720MiB
until_true "tokens after it" grown $(($(stat -c %s "$dir/out") + 5))
kill $pid
wait $pid 2>/dev/null
pid=
same=$(($(stat -c %s "$dir/out" "$dir/quiet" | sort -n | head -n 1) - 1))
cmp -s -n $same "$dir/quiet" "$dir/out" || fail "--watch-vram changes the tokens"
[ "$(grep -c 'changed in' "$dir/err")" -le 5 ] || fail "levels flap: $(cat "$dir/err")"

# SIGUSR2 takes no more than is left; then as much as that, margin included; and what is left less later is obeyed.
set_others $((8192 - 700))
start "${run[@]}" --tokens 2000 --watch-vram 8GiB --emulated-others "$dir/others"
until_true "first tokens" grown 5
kill -USR2 $pid
until_true "too little for a larger one" said 'SIGUSR2: the next larger budget is 720.0 MiB, but others leave 700.0 MiB of VRAM'
grep -q 'changed in' "$dir/err" && fail "SIGUSR2 above what is left: $(cat "$dir/err")"
set_others $((8192 - 730))
kill -USR2 $pid
until_true "SIGUSR2 within what is left" changed_to 720MiB
set_others $((8192 - 700))
until_true "less is left again" changed_to 660MiB
# After SIGUSR1 the watch stays where it was sent until SIGUSR2; and the plan's largest budget is said to be that only there.
set_others 0
until_true "largest budget again" changed_to 720MiB
kill -USR1 $pid
until_true "SIGUSR1 under a watch" changed_to 660MiB
set_others $((8192 - 650))
until_true "smallest budget again" changed_to 620MiB
said 'SIGUSR2: the plan has no larger' && fail "a larger budget there is: $(cat "$dir/err")"
set_others 0
until_true "what SIGUSR1 left" changed_to 660MiB
kill -USR2 $pid
until_true "largest budget once more" changed_to 720MiB
kill -USR2 $pid
until_true "nothing larger" said 'SIGUSR2: the plan has no larger budget'
kill $pid
wait $pid 2>/dev/null
pid=

# A larger budget when others have all the rest: said, and the run goes on where it was.
echo 0 >"$dir/others"
start "${run[@]}" --budget 620MiB --emulated-others "$dir/others"
until_true "first tokens" grown 20
set_others 9000
kill -USR2 $pid
until_true "refusal" said "no VRAM for a larger budget; at 620MiB"
wait $pid || fail "run with a refused change: exit $?: $(cat "$dir/err")"
pid=
cmp -s "$dir/quiet" "$dir/out" || fail "a refused change changes the tokens"
grep -q "changed in" "$dir/err" && fail "a refused change is said to be made: $(cat "$dir/err")"

# JSON: what it took, by part.
"$bin/psrun" --device emulated --plan "$dir/p.yaml" --budget 620MiB --bench --bench-prompt 20 --bench-decode 3 --repeat 1 --json "$m" >"$dir/json" 2>/dev/null ||
  fail "--bench --json: exit $?"
python3 - "$dir/json" <<'P' || fail "--bench --json: $(cat "$dir/json")"
import json, sys
d = json.load(open(sys.argv[1]))
parts = d["vram_base_bytes"] + d["vram_work_bytes"] + d["vram_weight_bytes"]
assert d["device"] == "emulated" and d["budget_bytes"] == 620 << 20
assert parts <= d["peak_vram_bytes"] <= d["budget_bytes"], d
assert d["load_s"] > 0 and d["steps"] > 0 and d["prefill"]["steps"] >= 1 and d["decode"]["steps"] == 3, d
P
# A total between budgets, whatever is asked for.
"${run[@]}" --budget 720MiB --watch-vram 700MiB --tokens 3 >/dev/null 2>"$dir/err" || fail "--watch-vram 700MiB: exit $?"
said ', budget 660MiB, ' || fail "--watch-vram 700MiB: $(cat "$dir/err")"
# Others who leave too little from the start: the budget that fits beside them is opened at once, also where it alone can be mapped.
for left in "700 660MiB" "650 620MiB"; do
  echo $(((8192 - ${left% *}) << 20)) >"$dir/others"
  "${run[@]}" --watch-vram 8GiB --emulated-others "$dir/others" --tokens 3 >/dev/null 2>"$dir/err" || fail "others leave ${left% *} MiB: exit $?: $(cat "$dir/err")"
  said ", budget ${left#* }, " || fail "others leave ${left% *} MiB: $(cat "$dir/err")"
done
# Where not one fits it says so, and opens none.
for others in $(((8192 - 600) << 20)) $(((8192 - 130) << 20)) 99999999999999; do
  echo $others >"$dir/others"
  "${run[@]}" --watch-vram 8GiB --emulated-others "$dir/others" --tokens 3 >/dev/null 2>"$dir/err"
  [ $? -eq 1 ] && said 'other processes leave [0-9]*$' && [ "$(wc -l <"$dir/err")" -eq 1 ] || fail "others take $others: $(cat "$dir/err")"
done
# Nothing is said of budgets: the largest that the card holds beside the others; without a card the one without VRAM.
for left in "8192 720MiB" "700 660MiB"; do
  echo $(((8192 - ${left% *}) << 20)) >"$dir/others"
  "${run[@]}" --emulated-others "$dir/others" --tokens 3 >/dev/null 2>"$dir/err" || fail "no budget named, ${left% *} MiB left: exit $?: $(cat "$dir/err")"
  said ", budget ${left#* }, " || fail "no budget named, ${left% *} MiB left: $(cat "$dir/err")"
done
must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --budget 660MiB,host --output "$dir/both.yaml" "$m"
both=("$bin/psrun" --plan "$dir/both.yaml" --raw -m a -n 2)
# One line says which level it is and why; a budget may be spelled otherwise.
chosen() { # TEXT OPTION...: it is on standard error, once
  local text=$1
  shift
  "${both[@]}" "$@" "$m" >/dev/null 2>"$dir/err" || fail "psrun $*: $(cat "$dir/err")"
  [ "$(grep -c "^level $text" "$dir/err")" -eq 1 ] || fail "no 'level $text' with $*: $(cat "$dir/err")"
}
chosen 'host/256/1/1: no VRAM budget can be taken, its largest context, all threads that it has$' --device none
chosen 'host/256/1/1: no VRAM budget can be taken, smallest context of at least 100, threads as asked for$' --device none -t 1 -c 100
chosen '660MiB/256/1/1: largest budget within [0-9.]* GiB of VRAM, its smallest context' --device emulated
chosen '660MiB/256/1/1: budget as asked for' --device emulated --budget 675840KiB
"${both[@]}" --device emulated "$m" >/dev/null 2>"$dir/err" && said ', budget 660MiB, ' || fail "host and 660MiB, emulated: $(cat "$dir/err")"
"${both[@]}" --device none "$m" >/dev/null 2>"$dir/err" && said ', budget host, ' || fail "host and 660MiB, no GPU: $(cat "$dir/err")"
"${both[@]}" --device emulated --budget host "$m" >/dev/null 2>"$dir/err"
[ $? -eq 64 ] && said "has nothing to do" || fail "a device for the host's budget: $(cat "$dir/err")"
"${run[@]}" --device none >/dev/null 2>"$dir/err"
[ $? -eq 69 ] && said "need a GPU, and none may be used" || fail "only VRAM budgets, no GPU: $(cat "$dir/err")"
# Where it cannot be done.
"${run[@]}" --watch-vram 100MiB -q >/dev/null 2>"$dir/err"
[ $? -eq 1 ] && said "no VRAM budget of at most" || fail "--watch-vram below all budgets: $(cat "$dir/err")"
"$bin/psrun" --plan "$dir/host.yaml" --raw -m a -n 2 --watch-vram 4GiB -q "$m" >/dev/null 2>"$dir/err"
[ $? -eq 69 ] && said "no GPU takes part" || fail "--watch-vram without a GPU: $(cat "$dir/err")"
"${run[@]}" --watch-vram 9GiB -q >/dev/null 2>"$dir/err"
[ $? -eq 64 ] && said "the GPU has" || fail "--watch-vram of more than there is: $(cat "$dir/err")"

[ $failures -eq 0 ] || exit 1
echo "levels on the emulated device: passed"
