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

# Interrupted by a signal and killed outright, a real run goes on where it was, and what was there stays.
cp "$dir/null.yaml" "$dir/real.yaml"
before=$(cksum <"$dir/real.yaml")
"$pstune" --quick -o "$dir/real.yaml" >"$dir/out" 2>"$dir/err" &
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
"$pstune" --quick -o "$dir/real.yaml" >"$dir/out" 2>"$dir/err" &
pid=$!
sleep 1
kill -KILL $pid
wait $pid 2>/dev/null
expect 0 "" "$pstune" --quick --time 4 --json -o "$dir/real.yaml"
grep -q '"n_resumed": [1-9]' "$dir/out" || fail "nothing was taken over from the interrupted run"
grep -q "complete: true" "$dir/real.yaml" || fail "the resumed run is not complete"
[ ! -e "$dir/real.yaml.partial" ] || fail "the partial file stayed"

# A damaged partial file costs a note and a fresh start, nothing else.
printf 'a: [' >"$dir/null2.yaml.partial"
"$pstune" --null --quick -o "$dir/null2.yaml" >"$dir/out" 2>"$dir/err" || fail "damaged partial file: exit $?"
grep -q "starting anew" "$dir/err" || fail "damaged partial file: no note"

exit $failed
