#!/usr/bin/env bash
# What the programs do with outputs and inputs that are not plain files of their own: nothing is destroyed, nothing is
# left half done, nothing wrong goes unsaid.
. "$(dirname "$0")/common.sh"

m=$dir/m.gguf p=$dir/m.plan.yaml profile=$dir/profile.yaml
must "$bin/pssynth" --preset tiny-llama "$m"
must "$bin/pstune" --null --output "$profile"
plan=("$bin/psplan" --profile "$profile" --threads 1 --context 64)
run=("$bin/psrun" --quiet --raw --plan "$p")
must "${plan[@]}" --output "$p" "$m"
must "${run[@]}" -m Hi -n 2 --trace "$dir/t.json" "$m"
head -c 64 /dev/zero >"$dir/ids"
ln -s m.gguf "$dir/link.gguf"
sums() { (cd "$dir" && cksum m.gguf m.plan.yaml profile.yaml t.json ids); }
before=$(sums)

# An output over an input, by its own name or a link.
expect 64 "is an input" "${plan[@]}" --output "$m" "$m"
expect 64 "is an input" "${plan[@]}" --output "$dir/link.gguf" "$m"
expect 64 "is an input" "${plan[@]}" --output "$profile" "$m"
expect 64 "is an input" "${plan[@]}" --output "$dir/new.yaml" --trace "$m" "$m"
expect 64 "where the plan goes" "${plan[@]}" --output "$dir/new.yaml" --trace "$dir/new.yaml" "$m"
expect 64 "is an input" "$bin/psplan" emit binary "$p" --output "$p"
expect 64 "is an input" "$bin/psplan" emit timeline "$dir/t.json" --output "$dir/t.json"
expect 64 "is an input" "${run[@]}" -m Hi --trace "$m" "$m"
expect 64 "is an input" "${run[@]}" -m Hi --trace "$p" "$m"
expect 64 "is an input" "${run[@]}" --teacher-force "$dir/ids" --logits-out "$m" "$m"
expect 64 "is an input" "${run[@]}" --teacher-force "$dir/ids" --logits-out "$dir/ids" "$m"
expect 64 "where the logits go" "${run[@]}" --teacher-force "$dir/ids" --logits-out "$dir/l" --trace "$dir/l" "$m"
expect 64 "is the model" "$bin/pstune" --null --model "$m" --output "$m"
expect 64 "is the model" "$bin/pstune" --null --model "$m" --output "$dir/link.gguf"
[ "$(sums)" = "$before" ] || fail "an input was changed"
[ -e "$dir/new.yaml" ] && fail "a refused command wrote its output"

# A pipe stays a pipe; a link stays a link.
mkfifo "$dir/pipe"
expect 73 "not a regular file" "${plan[@]}" --output "$dir/pipe" "$m"
expect 73 "not a regular file" "$bin/psplan" emit binary "$p" --output "$dir/pipe"
expect 73 "not a regular file" "${run[@]}" -m Hi --trace "$dir/pipe" "$m"
expect 73 "not a regular file" "${run[@]}" --teacher-force "$dir/ids" --logits-out "$dir/pipe" "$m"
expect 73 "not a regular file" "$bin/pssynth" "$dir/pipe"
expect 73 "not a regular file" "$bin/pstune" --null --output "$dir/pipe"
[ -p "$dir/pipe" ] || fail "the pipe was replaced"
expect 73 "''" "${plan[@]}" --output "" "$m"
expect 66 "''" "${plan[@]}" --output "$dir/new.yaml" ""
echo old >"$dir/real.yaml"
ln -s real.yaml "$dir/link.yaml"
must "${plan[@]}" --output "$dir/link.yaml" "$m"
[ -L "$dir/link.yaml" ] && grep -q pinstripe-plan "$dir/real.yaml" || fail "a link was not followed"
: >"$dir/logits"
ln -s logits "$dir/logits.link"
must "${run[@]}" --teacher-force "$dir/ids" --logits-out "$dir/logits.link" "$m"
# A signal or a limit leaves nothing behind, and a limit is said; the new file appears only when it is complete.
mkdir "$dir/left"
python3 -c 'import array,sys; array.array("i", [i % 50 for i in range(100000)]).tofile(open(sys.argv[1], "wb"))' "$dir/many"
"${run[@]}" --teacher-force "$dir/many" --window 16 --logits-out "$dir/left/x" "$m" &
pid=$!
for ((i = 0; i < 200; i++)); do # until it writes
  [ -n "$(find /proc/$pid/fd -lname "$dir/left/*" 2>/dev/null)" ] && break
  sleep 0.05
done
[ $i -lt 200 ] || fail "no logits are written within 10 s"
kill -TERM $pid
wait $pid 2>/dev/null
[ $? -eq 143 ] || fail "the run ended before it was killed"
[ -z "$(ls -A "$dir/left")" ] || fail "a killed run left $(ls -A "$dir/left")"
limited() { (ulimit -f "$1" && shift && "$@"); }
expect 74 "left/x: cannot write" limited 4 "${run[@]}" --teacher-force "$dir/many" --window 16 --logits-out "$dir/left/x" "$m"
expect 74 "left/x: cannot write" limited 1 "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --context 256 --output "$dir/left/x" "$m"
expect 74 "left/x: cannot write" limited 4 "$bin/pssynth" "$dir/left/x"
[ -z "$(ls -A "$dir/left")" ] || fail "a limit left $(ls -A "$dir/left")"
[ -L "$dir/logits.link" ] && [ -s "$dir/logits" ] || fail "a link was not followed by --logits-out"
ls "$dir" | grep -q '^logits.*\.' | grep -v link && fail "--logits-out left a file behind"

# Standard output that cannot be written.
if [ -w /dev/full ]; then
  for command in "pstune --help" "pstune --version" "pstune show $profile" "pstune --null --output $dir/p2.yaml"; do
    # shellcheck disable=SC2086
    "$bin"/$command >/dev/full 2>"$dir/err"
    [ $? -eq 74 ] || fail "$command to a full disk: $(cat "$dir/err")"
  done
fi

# An interrupted pssynth leaves nothing.
mkdir "$dir/empty"
"$bin/pssynth" --preset llama3-8b-q4_0 "$dir/empty/big.gguf" 2>/dev/null &
pid=$!
for _ in $(seq 100); do
  [ -n "$(ls "$dir/empty")" ] && break
  sleep 0.05
done
kill -TERM "$pid"
wait "$pid"
[ $? -eq 143 ] || fail "an interrupted pssynth did not end by the signal"
[ -z "$(ls "$dir/empty")" ] || fail "an interrupted pssynth left $(ls "$dir/empty")"

# A model cut short while it is read: one line, no crash.
cp "$m" "$dir/cut.gguf"
mkfifo "$dir/in"
"${run[@]}" --teacher-force "$dir/many" --window 16 --logits-out - "$dir/cut.gguf" >"$dir/in" 2>"$dir/err" &
pid=$!
exec 9<"$dir/in"
head -c 1 <&9 >/dev/null # it has begun, and waits for a reader of the rest
: >"$dir/cut.gguf"
cat <&9 >/dev/null
exec 9<&-
wait "$pid"
[ $? -eq 74 ] || fail "a model cut short: $(cat "$dir/err")"
[ "$(wc -l <"$dir/err")" -eq 1 ] && grep -q 'cut short' "$dir/err" || fail "a model cut short: $(cat "$dir/err")"

# Weights that are not numbers, checked or not; a NUL in a conversation; modes that exclude each other.
python3 - "$m" "$dir/nan.gguf" <<'PY'
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
data[-300000:] = b"\xff" * 300000  # output matrix, last norm and a block before them: every scale a NaN
open(sys.argv[2], "wb").write(data)
PY
expect 65 "not numbers" "${run[@]}" -m Hi -n 2 "$dir/nan.gguf"
expect 65 "not numbers" "${run[@]}" -m Hi -n 2 --temperature 1 "$dir/nan.gguf"
printf 'Hello\0there' >"$dir/nul"
expect 65 "NUL" "$bin/psrun" --quiet --plan "$p" --prompt-file "$dir/nul" "$m"
must "${run[@]}" --prompt-file "$dir/nul" -n 1 "$m"
# A prompt from a standard input that cannot be read, or does not end.
"${run[@]}" -m - -n 1 "$m" <&- >"$dir/out" 2>"$dir/err"
[ $? -eq 74 ] && [ ! -s "$dir/out" ] && grep -q 'standard input' "$dir/err" || fail "closed standard input: $(cat "$dir/err")"
"${run[@]}" -m - -n 1 "$m" </dev/zero >"$dir/out" 2>"$dir/err"
[ $? -eq 65 ] && [ ! -s "$dir/out" ] && grep -q 'more than' "$dir/err" || fail "endless standard input: $(cat "$dir/err")"
expect 64 "give one of" "${run[@]}" --bench -m Hi "$m"
expect 64 "give one of" "${run[@]}" --bench --teacher-force "$dir/ids" --logits-out "$dir/l" "$m"

[ "$failures" -eq 0 ] && echo "outputs: all as expected"
exit $((failures != 0))
