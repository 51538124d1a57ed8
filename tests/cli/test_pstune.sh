#!/usr/bin/env bash
# pstune: options, exit codes, one-line errors, the null device, show, and going on after an interruption.
set -u
pstune=$PS_BIN/pstune
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

fail() {
    echo "FAIL: $*" >&2
    failed=1
}

# expect CODE WORDS COMMAND...: exit code, and exactly one line on stderr that holds WORDS.
expect() {
    local code=$1 words=$2
    shift 2
    "$@" >"$dir/out" 2>"$dir/err"
    local got=$?
    [ $got -eq "$code" ] || fail "$*: exit $got, not $code: $(cat "$dir/err")"
    if [ -n "$words" ]; then
        [ "$(wc -l <"$dir/err")" -eq 1 ] || fail "$*: not one line: $(cat "$dir/err")"
        grep -q -- "$words" "$dir/err" || fail "$*: no '$words' in: $(cat "$dir/err")"
        [ ! -s "$dir/out" ] || fail "$*: wrote to stdout"
    fi
}

expect 0 "" "$pstune" --help
grep -q -- "--quick" "$dir/out" || fail "help without --quick"
expect 0 "" "$pstune" show --help
expect 0 "" "$pstune" --man
grep -q "^.TH" "$dir/out" || fail "man page without title"
expect 0 "" "$pstune" --version
expect 64 "no-such" "$pstune" --no-such-option
expect 64 "threads" "$pstune" --null --threads 99999 -o "$dir/x.yaml"
expect 64 "threads" "$pstune" --null --threads 0 -o "$dir/x.yaml"
expect 64 "time" "$pstune" --null --time 0 -o "$dir/x.yaml"
expect 64 "too little" "$pstune" --quick --time 1 -o "$dir/x.yaml"
expect 64 "none of auto, cupti, events" "$pstune" --null --timer clock -o "$dir/x.yaml"
expect 69 "no emulated device" "$pstune" --quick --device emulated --timer cupti -o "$dir/x.yaml"
expect 69 "cannot be opened" "$pstune" --quick --device emulated --timer cupti --cupti "$dir/libcupti.so" -o "$dir/x.yaml"
expect 64 "" "$pstune" surplus
expect 64 "device.*cuda" "$pstune" --null --device cuda -o "$dir/x.yaml"
expect 64 "device.*emulated" "$pstune" --null --device emulated -o "$dir/x.yaml"
expect 64 "device.*null" "$pstune" --device null -o "$dir/x.yaml"
expect 66 "missing.gguf" "$pstune" --null --model "$dir/missing.gguf" -o "$dir/x.yaml"
expect 66 "" "$pstune" --null --model "$dir" -o "$dir/x.yaml"
printf 'not a model' >"$dir/bad.gguf"
expect 65 "bad.gguf" "$pstune" --null --model "$dir/bad.gguf" -o "$dir/x.yaml"
expect 73 "no/such/folder" "$pstune" --null -o "$dir/no/such/folder/x.yaml"
expect 73 "not a regular file" "$pstune" --null -o "$dir"
expect 64 "HOME" env -u HOME -u XDG_DATA_HOME "$pstune" --null
expect 66 "missing.yaml" "$pstune" show "$dir/missing.yaml"
printf 'a: [' >"$dir/bad.yaml"
expect 65 "bad.yaml" "$pstune" show "$dir/bad.yaml"
expect 64 "" "$pstune" show
ls "$dir" | grep -q partial && fail "a failed start left something behind: $(ls "$dir")"

# The tracer is pstune's alone: nothing of it is in the program that runs models.
grep -q libcupti "$pstune" || fail "pstune knows no CUPTI"
grep -q libcupti "$PS_BIN/psrun" && fail "psrun knows CUPTI"

# The null device: whole profile, default place, same result every time.
expect 0 "" env XDG_DATA_HOME="$dir/data" "$pstune" --null --quick
[ -f "$dir/data/pinstripe/profile.yaml" ] || fail "no profile in the default place"
expect 0 "" env -u XDG_DATA_HOME HOME="$dir/home" "$pstune" --null --quick
[ -f "$dir/home/.local/share/pinstripe/profile.yaml" ] || fail "no profile below HOME"
expect 0 "" "$pstune" --null --threads 4 --json -o "$dir/null.yaml"
grep -q '"complete": true' "$dir/out" || fail "--json without complete"
[ "$(wc -c <"$dir/null.yaml")" -lt 262144 ] || fail "profile of $(wc -c <"$dir/null.yaml") bytes"
ls "$dir" | grep -q partial && fail "a finished run left its partial file"
expect 0 "" "$pstune" show "$dir/null.yaml"
grep -q "made up" "$dir/out" || fail "show does not say that the machine is made up"
grep -q "GB/s" "$dir/out" || fail "show without rates"
expect 0 "" "$pstune" show --json "$dir/null.yaml"
grep -q '"synthetic": true' "$dir/out" || fail "show --json without synthetic"

# show --svg: one well-formed picture, whatever texts the profile holds; nothing is left of one that cannot be written.
sed -e 's/cpu_model: .*/cpu_model: "a <b> \& \\u00e9 machine"/' "$dir/null.yaml" >"$dir/names.yaml"
for profile in null names; do
    expect 0 "" "$pstune" show --svg "$dir/$profile.svg" "$dir/$profile.yaml"
    [ ! -s "$dir/out" ] || fail "show --svg writes to stdout: $(head -1 "$dir/out")"
    python3 - "$dir/$profile.svg" <<'EOF' || fail "$profile.svg"
import sys
from xml.etree import ElementTree
picture = ElementTree.parse(sys.argv[1]).getroot()
tags = [e.tag.split("}")[1] for e in picture.iter()]
texts = " ".join(e.text or "" for e in picture.iter())
assert tags.count("circle") > 20, tags.count("circle")
assert tags.count("rect") >= 1, tags.count("rect")
assert "Rooflines" in texts and "Slowdowns" in texts and "CPU kernels of" in texts, texts[:300]
assert "names" not in sys.argv[1].split("/")[-1] or "a <b> &" in texts, texts[-900:-600]
EOF
done
expect 73 "no/such" "$pstune" show --svg "$dir/no/such/x.svg" "$dir/null.yaml"
ln -sf null.yaml "$dir/link.yaml"
for same in null link; do expect 64 "is an input" "$pstune" show --svg "$dir/$same.yaml" "$dir/null.yaml"; done
"$pstune" show "$dir/null.yaml" >"$dir/out" || fail "the profile is gone after show --svg over it"
expect 64 "not both" "$pstune" show --json --svg "$dir/x.svg" "$dir/null.yaml"
[ ! -e "$dir/x.svg" ] || fail "a refused --svg left something"
mkdir "$dir/d.yaml.partial"
expect 73 "d.yaml.partial.*not a regular file" "$pstune" --null --quick -o "$dir/d.yaml"
rmdir "$dir/d.yaml.partial"
expect 64 "no GPU here" "$pstune" --null --quick --timer cupti -o "$dir/t.yaml"
expect 64 "no GPU here" "$pstune" --null --quick --cupti "$dir/none.so" -o "$dir/t.yaml"

# diff: a profile is the same as itself; a barrier twice as slow and a DRAM rate twice as high are found, a noisy entry is ambiguous.
expect 0 "" "$pstune" diff "$dir/null.yaml" "$dir/null.yaml"
grep -Eq "([0-9]+) in both: \1 same, 0 faster, 0 slower, 0 ambiguous; 0 only in A, 0 only in B" "$dir/out" ||
    fail "a profile differs from itself: $(cat "$dir/out")"
sed -e 's/^barrier_s: .*/barrier_s: {n: 29, median_s: 1e-3, q1_s: 0.9e-3, q3_s: 1.1e-3, stop: converged, noisy: false}/' \
    -e 's/^pool_start_s: .*/pool_start_s: {n: 29, median_s: 1e-3, q1_s: 0.9e-3, q3_s: 1.1e-3, stop: converged, noisy: true}/' \
    -e '/^dram:/,/^kernels:/s/^  - \[1, .*/  - [1, 77, 9e+12, 8.9e+12, 9.1e+12, converged, false]/' "$dir/null.yaml" >"$dir/other.yaml"
expect 0 "" "$pstune" diff "$dir/null.yaml" "$dir/other.yaml"
grep -q "1 faster, 1 slower, 1 ambiguous" "$dir/out" || fail "diff: $(head -5 "$dir/out")"
grep -Eq "^slower .*barrier$" "$dir/out" || fail "diff without the slower barrier"
grep -Eq "^faster .*dram read, 1 thr$" "$dir/out" || fail "diff without the faster DRAM"
grep -Eq "^ambiguous .*pool start \(noisy\)$" "$dir/out" || fail "diff without the noisy start"
expect 0 "" "$pstune" diff --json "$dir/null.yaml" "$dir/other.yaml"
grep -q '"faster": 1,' "$dir/out" || fail "diff --json: $(head -12 "$dir/out")"
expect 0 "" "$pstune" --null --threads 2 -o "$dir/two.yaml"
expect 0 "" "$pstune" diff "$dir/null.yaml" "$dir/two.yaml"
grep -q "different machines" "$dir/out" || fail "diff does not say that machines differ"
grep -Eq "[1-9][0-9]* only in A" "$dir/out" || fail "diff of other thread counts: $(sed -n 3,4p "$dir/out")"
expect 64 "" "$pstune" diff "$dir/null.yaml"
expect 64 "within" "$pstune" diff --within 0 "$dir/null.yaml" "$dir/two.yaml"
expect 66 "missing.yaml" "$pstune" diff "$dir/null.yaml" "$dir/missing.yaml"
expect 65 "bad.yaml" "$pstune" diff "$dir/bad.yaml" "$dir/null.yaml"

# check: what is interpolated against what is then measured, on a machine whose times are known; another kernel set is refused.
expect 0 "" "$pstune" check --points 100 "$dir/two.yaml"
grep -Eq "^100 points, .* error [0-9.]+% in the median" "$dir/out" || fail "check: $(tail -1 "$dir/out")"
grep -q "interpolated" "$dir/out" || fail "check without interpolated answers"
expect 0 "" "$pstune" check --points 30 --seed 7 --json "$dir/two.yaml"
grep -q '"good": true' "$dir/out" || fail "check --json: $(head -9 "$dir/out")"
sed -e '/^points:/,$ s/\(,idle,[0-9]*,\)[0-9.e-]*,[0-9.e-]*,[0-9.e-]*/\11.0,1.0,1.0/' "$dir/two.yaml" >"$dir/wrong.yaml"
expect 1 "" "$pstune" check --points 30 "$dir/wrong.yaml"
# --again: what is measured again makes up for what is wrong with the profile's own points.
expect 1 "" "$pstune" check --again --points 20 --time 600 --json "$dir/wrong.yaml"
awk -F'[:, ]+' '/"one_in_ten_frac"/ {old = $3} /"between_median_frac"/ {new = $3} /"drift_median_frac"/ {drift = $3}
    END {exit !(old > 1 && new < 0.05 && drift > 1)}' "$dir/out" || fail "check --again: $(head -20 "$dir/out")"
expect 0 "" "$pstune" check --again --points 20 --time 600 -o "$dir/again.yaml" "$dir/two.yaml"
grep -Eq "own [0-9]+ points around them measured again: error" "$dir/out" || fail "check --again: $(tail -3 "$dir/out")"
tail -3 "$dir/out" >"$dir/first"
expect 0 "" "$pstune" check --again "$dir/two.yaml" "$dir/again.yaml"
tail -3 "$dir/out" | cmp -s - "$dir/first" || fail "check --again of what was kept: $(tail -3 "$dir/out")"
# Of points that the profile knows nothing of, and of none at all, there is no error to tell: the answer is no.
awk '/^points:/ {print; getline; print; print "  rows: []"; exit} {print}' "$dir/two.yaml" >"$dir/none.yaml"
expect 1 "" "$pstune" check --points 5 "$dir/none.yaml"
tail -1 "$dir/out" | grep -qx "5 points, 0 not noisy and known, 5 that the profile says nothing of: nothing could be compared" || fail "check of nothing: $(tail -1 "$dir/out")"
grep -q "%" "$dir/out" && fail "check of nothing: $(cat "$dir/out")"
expect 1 "" "$pstune" check "$dir/two.yaml" "$dir/none.yaml"
grep -qx "0 points, 0 not noisy and known: nothing could be compared" "$dir/out" || fail "check against nothing: $(cat "$dir/out")"
expect 1 "" "$pstune" check --json "$dir/two.yaml" "$dir/none.yaml"
grep -q '"median_frac": null' "$dir/out" && grep -q '"good": false' "$dir/out" || fail "check --json against nothing: $(cat "$dir/out")"
sed -e 's/^kernel_set: .*/kernel_set: "00000000000000000000000000000000"/' "$dir/two.yaml" >"$dir/old.yaml"
expect 65 "other kernels" "$pstune" check "$dir/old.yaml"
expect 66 "missing.yaml" "$pstune" check "$dir/missing.yaml"
# A quick grid promises less, and is held to that: not to what it never said.
expect 0 "" "$pstune" --null --quick -o "$dir/coarse.yaml"
expect 0 "" "$pstune" check --points 100 "$dir/coarse.yaml"
grep -q "20% and 50% are allowed" "$dir/out" || fail "check of a quick profile: $(tail -1 "$dir/out")"
expect 64 "points" "$pstune" check --points 0 "$dir/two.yaml"

# --gather: a folder that holds the machine and not whose it is; never written over, and for nothing else.
expect 0 "" "$pstune" --gather "$dir/machine"
[ -s "$dir/machine/hwloc.xml" ] && [ -s "$dir/machine/proc/meminfo" ] || fail "gather: $(find "$dir/machine")"
grep -rqFw -- "$(hostname 2>/dev/null || cat /proc/sys/kernel/hostname)" "$dir/machine" && fail "gather: the host's name"
expect 73 "machine" "$pstune" --gather "$dir/machine"
expect 64 "quick" "$pstune" --quick --gather "$dir/machine2"
[ ! -e "$dir/machine2" ] || fail "a refused --gather left something"

# Interrupted by a signal and killed outright, a real run goes on where it was, and what was there stays.
"$PS_BIN/pssynth" --preset tiny-llama "$dir/tiny.gguf" >"$dir/out" 2>&1 || fail "pssynth: $(cat "$dir/out")"
cp "$dir/null.yaml" "$dir/real.yaml"
before=$(cksum <"$dir/real.yaml")
"$pstune" --quick --time 10 --model "$dir/tiny.gguf" -o "$dir/real.yaml" >"$dir/out" 2>"$dir/err" &
pid=$!
# Not before something is measured: on a busy machine that takes a while.
for _ in $(seq 600); do
    [ -e "$dir/real.yaml.partial" ] && break
    sleep 0.2
done
kill -INT $pid
wait $pid
code=$?
[ $code -eq 130 ] || fail "interrupted: exit $code, not 130: $(cat "$dir/err")"
grep -q "same command" "$dir/err" || fail "interrupted: no word on how to go on: $(cat "$dir/err")"
[ "$(cksum <"$dir/real.yaml")" = "$before" ] || fail "an interrupted run touched the profile that was there"
grep -q "complete: false" "$dir/real.yaml.partial" || fail "no partial profile after an interruption"
"$pstune" --quick --time 10 --model "$dir/tiny.gguf" -o "$dir/real.yaml" >"$dir/out" 2>"$dir/err" &
pid=$!
sleep 0.3
kill -KILL $pid
wait $pid 2>/dev/null
expect 0 "" "$pstune" --quick --time 2 --model "$dir/tiny.gguf" --json -o "$dir/real.yaml"
grep -q '"n_resumed": [1-9]' "$dir/out" || fail "nothing was taken over from the interrupted run"
grep -q "complete: true" "$dir/real.yaml" || fail "the resumed run is not complete"
[ ! -e "$dir/real.yaml.partial" ] || fail "the partial file stayed"

# A profile of this machine as it was: another amount of memory is one warning, and so is another machine; as it is, none.
plan() {
    "$PS_BIN/psplan" --profile "$1" --context 256 --threads 1 -o "$dir/tiny.plan.yaml" "$dir/tiny.gguf" >"$dir/out" 2>"$dir/err" ||
        fail "psplan: $(cat "$dir/err")"
}
plan "$dir/real.yaml"
grep -q warning "$dir/err" && fail "a profile of this machine: $(cat "$dir/err")"
sed -e 's/^  memory_bytes: .*/  memory_bytes: 1234567890/' "$dir/real.yaml" >"$dir/less.yaml"
plan "$dir/less.yaml"
grep -q "has changed since it was measured: 1.1 GiB of memory in the profile, .* here: run pstune again" "$dir/err" || fail "less memory: $(cat "$dir/err")"
[ "$(grep -c warning "$dir/err")" -eq 1 ] || fail "not one warning: $(cat "$dir/err")"
sed -e 's/^machine_hash: .*/machine_hash: "00000000000000000000000000000001"/' "$dir/less.yaml" >"$dir/else.yaml"
plan "$dir/else.yaml"
grep -q "of another machine (1.1 GiB of memory in the profile" "$dir/err" || fail "another machine: $(cat "$dir/err")"
[ "$(grep -c warning "$dir/err")" -eq 1 ] || fail "not one warning: $(cat "$dir/err")"

# A profile of this machine from a build with other kernels: refused, nothing written; of another machine: one warning says it.
sed -e 's/^kernel_set: .*/kernel_set: "00000000000000000000000000000000"/' "$dir/real.yaml" >"$dir/set.yaml"
expect 65 "another set of kernels.*run pstune again" "$PS_BIN/psplan" --profile "$dir/set.yaml" --context 256 --threads 1 -o "$dir/set.plan.yaml" "$dir/tiny.gguf"
[ ! -e "$dir/set.plan.yaml" ] || fail "a plan of another set of kernels was written"
sed -e 's/^machine_hash: .*/machine_hash: "00000000000000000000000000000001"/' "$dir/set.yaml" >"$dir/elset.yaml"
plan "$dir/elset.yaml"
grep -q "of another machine.*its kernels are another build's" "$dir/err" || fail "another machine's kernels: $(cat "$dir/err")"
# Times that no machine has, with their line.
sed -e 's/^barrier_s: .*/barrier_s: {n: 29, median_s: 1e308, q1_s: 1e308, q3_s: 1e308, stop: converged, noisy: false}/' "$dir/real.yaml" >"$dir/huge.yaml"
expect 65 "barrier_s: 1e+308 s is beyond any sense.*line [0-9]" "$PS_BIN/psplan" --profile "$dir/huge.yaml" --context 256 -o "$dir/huge.plan.yaml" "$dir/tiny.gguf"

# The plan carries what the machine was like, so psrun says the same of it: by name, once, and marks its predictions.
runs() {
    sed -e "$1" "$dir/tiny.plan.yaml" >"$dir/was.plan.yaml"
    "$PS_BIN/psrun" --plan "$dir/was.plan.yaml" --raw -m a -n 2 --json "$dir/tiny.gguf" >"$dir/out" 2>"$dir/err" ||
        fail "psrun: $(cat "$dir/err")"
    grep -q "\"predictions_of\": \"$3\"" "$dir/out" || fail "$1: predictions of $(grep predictions_of "$dir/out")"
    [ "$(grep -c warning "$dir/err")" -eq "$2" ] || fail "$1: not $2 warnings: $(cat "$dir/err")"
}
plan "$dir/real.yaml"
runs '' 0 "this machine"
runs 's/^memory_bytes: .*/memory_bytes: 1234567890/' 1 "this machine as it was"
grep -q "changed since it was measured.*1.1 GiB of memory in the plan's profile, .* here" "$dir/err" || fail "psrun, memory: $(cat "$dir/err")"
runs 's/^machine_hash: .*/machine_hash: "00000000000000000000000000000001"/; s/^cpu_model: .*/cpu_model: "a slide rule"/' 1 "another machine"
grep -q "another machine.*: CPU a slide rule in the plan's profile, .* here" "$dir/err" || fail "psrun, CPU: $(cat "$dir/err")"

# A GPU whose figures cannot be: refused by name, never planned with; one that is small is a finite plan or a clear no.
expect 0 "" "$pstune" --null --device null --quick -o "$dir/gpu.yaml"
refuse() {
    sed -e "$1" "$dir/gpu.yaml" >"$dir/cannot.yaml"
    cmp -s "$dir/gpu.yaml" "$dir/cannot.yaml" && fail "$1 changes nothing"
    expect 65 "$2" "$PS_BIN/psplan" --profile "$dir/cannot.yaml" --context 256 -o "$dir/never.yaml" "$dir/tiny.gguf"
    [ ! -e "$dir/never.yaml" ] || fail "$1: a plan was written"
}
refuse 's/^  vram_bytes: .*/  vram_bytes: 0/' vram_bytes
refuse 's/^  base_bytes: .*/  base_bytes: 99999999999/' base_bytes
refuse 's/^\(  launch_s: .*median: \)[0-9.e-]*/\1.nan/' 'finite number'
refuse 's/^\(  hbm_read_bytes_per_s: .*median: \)[0-9.e+]*/\10/' hbm_read_bytes_per_s
for vram in 600 12288; do
    sed -e "s/^  vram_bytes: .*/  vram_bytes: $((vram << 20))/" "$dir/gpu.yaml" >"$dir/small.yaml"
    "$PS_BIN/psplan" --profile "$dir/small.yaml" --context 256 --budget ${vram}MiB --json -o "$dir/small.plan.yaml" "$dir/tiny.gguf" \
        >"$dir/out" 2>"$dir/err"
    code=$?
    [ $code -eq 0 ] || [ $code -eq 1 ] || fail "$vram MiB: exit $code: $(cat "$dir/err")"
    grep -qiE '[^a-z](nan|inf|infinity)[^a-z]' "$dir/out" "$dir/err" && fail "$vram MiB: $(grep -iE 'nan|inf' "$dir/out" | head -3)"
    [ -s "$dir/out" ] || fail "$vram MiB: nothing said"
done

# Killed twenty times at any moment, starting and saving included, the same command still ends with a whole profile, and what was
# there before stays until then. A model this small is measured in a few seconds.
cp "$dir/null.yaml" "$dir/killed.yaml"
before=$(cksum <"$dir/killed.yaml")
n_killed=0
RANDOM=7
for i in $(seq 20); do
    [ $((i % 2)) -eq 0 ] && signal=KILL || signal=INT
    "$pstune" --quick --time 2 --model "$dir/tiny.gguf" -o "$dir/killed.yaml" >"$dir/out" 2>"$dir/err" &
    pid=$!
    sleep "0.$(printf %03d $((RANDOM % 500)))"
    kill -$signal $pid 2>/dev/null && n_killed=$((n_killed + 1))
    wait $pid 2>/dev/null
    if grep -q "complete: true" "$dir/killed.yaml" && [ "$(cksum <"$dir/killed.yaml")" != "$before" ]; then
        cp "$dir/null.yaml" "$dir/killed.yaml" # it was quicker than we
    fi
    [ "$(cksum <"$dir/killed.yaml")" = "$before" ] || fail "run $i, killed by $signal, changed the profile"
    [ ! -e "$dir/killed.yaml.partial" ] || "$pstune" show "$dir/killed.yaml.partial" >/dev/null 2>"$dir/err" ||
        fail "run $i, killed by $signal, left a partial file that does not read: $(cat "$dir/err")"
done
[ $n_killed -ge 10 ] || fail "only $n_killed of 20 runs could be killed"
expect 0 "" "$pstune" --quick --time 3 --model "$dir/tiny.gguf" --json -o "$dir/killed.yaml"
grep -q '"complete": true' "$dir/out" || fail "not complete after twenty kills"
expect 0 "" "$pstune" show "$dir/killed.yaml"
[ ! -e "$dir/killed.yaml.partial" ] || fail "the partial file stayed"

# A damaged partial file costs a note and a fresh start, nothing else.
printf 'a: [' >"$dir/null2.yaml.partial"
"$pstune" --null --quick -o "$dir/null2.yaml" >"$dir/out" 2>"$dir/err" || fail "damaged partial file: exit $?"
grep -q "starting anew" "$dir/err" || fail "damaged partial file: no note"

exit $failed
