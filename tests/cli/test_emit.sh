#!/usr/bin/env bash
# psplan emit llama.cpp as a command: flags that xargs takes apart, the level that is asked for, and every wrong
# input in one line with the right exit code.
set -uo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bin=${PS_BIN:?}
failures=0

fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
must() { "$@" >"$dir/log" 2>&1 || { cat "$dir/log"; fail "$*"; }; }
expect() {
  local code=$1 text=$2 got
  shift 2
  "$@" >"$dir/out" 2>"$dir/err" </dev/null
  got=$?
  [ "$got" -eq "$code" ] || fail "$* : exit $got, expected $code: $(cat "$dir/err")"
  [ "$(wc -l <"$dir/err")" -eq 1 ] || fail "$* : not one line: $(cat "$dir/err")"
  grep -qF -- "$text" "$dir/err" || fail "$* : '$text' is not in: $(cat "$dir/err")"
  [ -s "$dir/out" ] && fail "$* : printed: $(head -c 200 "$dir/out")"
}

must "$bin/pstune" --null --device null --quick --output "$dir/profile.yaml"
must "$bin/pssynth" --preset llama3-8b-q4_0 --sparse "$dir/8b.gguf"
must "$bin/pssynth" --preset tiny-qwen3moe "$dir/moe.gguf"
plan=("$bin/psplan" --profile "$dir/profile.yaml" --threads 4)
emit=("$bin/psplan" emit)
must "${plan[@]}" --budget host,2GiB,4GiB --context 1024,4096 -o "$dir/8b.yaml" "$dir/8b.gguf"
must "${plan[@]}" --budget 760MiB --context 512 -o "$dir/moe.yaml" "$dir/moe.gguf"

# flags FILE: what a program would get, one argument a line.
flags() { grep -v '^#' "$1" | xargs printf '%s\n'; }
value() { flags "$1" | grep -x -A1 -- "$2" | tail -n 1; }
must "${emit[@]}" llama.cpp "$dir/8b.yaml" "$dir/8b.gguf" -o "$dir/host"
[ "$(value "$dir/host" -ngl)" = 0 ] && [ "$(value "$dir/host" -c)" = 4096 ] || fail "first budget: $(cat "$dir/host")"
must "${emit[@]}" --budget 2GiB llama.cpp "$dir/8b.yaml" "$dir/8b.gguf" -o "$dir/small"
must "${emit[@]}" --budget 4GiB --context 1000 --threads 4 llama.cpp "$dir/8b.yaml" "$dir/8b.gguf" -o "$dir/large"
[ "$(value "$dir/small" -c)" = 4096 ] && [ "$(value "$dir/large" -c)" = 1024 ] || fail "level: $(cat "$dir/large")"
[ "$(value "$dir/small" -t)" = 4 ] && [ "$(value "$dir/small" -ngl)" -ge 1 ] || fail "flags: $(cat "$dir/small")"
flags "$dir/small" | grep -qx '\^.*\$=\(CPU\|CUDA0\)' || fail "no pattern: $(cat "$dir/small")"
grep -q '^# not expressed: .*in part in VRAM' "$dir/large" || fail "parts are not said: $(cat "$dir/large")"
must "${emit[@]}" llama.cpp "$dir/moe.yaml" "$dir/moe.gguf" -o "$dir/moe"
"${emit[@]}" llama.cpp "$dir/moe.yaml" "$dir/moe.gguf" | cmp -s - "$dir/moe" || fail "standard output differs"

expect 64 "MODEL.gguf" "${emit[@]}" llama.cpp "$dir/8b.yaml"
expect 64 "one file" "${emit[@]}" yaml "$dir/8b.yaml" "$dir/8b.gguf"
expect 64 "is an input" "${emit[@]}" llama.cpp "$dir/moe.yaml" "$dir/moe.gguf" -o "$dir/moe.gguf"
expect 64 "none of this" "${emit[@]}" --budget 3GiB llama.cpp "$dir/8b.yaml" "$dir/8b.gguf"
expect 64 "none of this" "${emit[@]}" --context 5000 llama.cpp "$dir/8b.yaml" "$dir/8b.gguf"
expect 64 "none of this" "${emit[@]}" --threads 3 llama.cpp "$dir/8b.yaml" "$dir/8b.gguf"
expect 1 "$dir/8b.yaml" "${emit[@]}" llama.cpp "$dir/8b.yaml" "$dir/moe.gguf"
expect 66 "$dir/no.gguf" "${emit[@]}" llama.cpp "$dir/8b.yaml" "$dir/no.gguf"
sed 's/vram_base_bytes: .*/vram_base_bytes: 9000000000/' "$dir/moe.yaml" >"$dir/unsafe.yaml"
expect 65 "$dir/unsafe.yaml" "${emit[@]}" llama.cpp "$dir/unsafe.yaml" "$dir/moe.gguf"

[ "$failures" -eq 0 ] && echo "emit: all as expected"
exit $((failures != 0))
