#!/usr/bin/env bash
# pssynth as a command: files, exit codes, one line per error.
set -u
bin=${PS_BIN:?}/pssynth
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
wrong=0

fail() {
    echo "FAIL: $*" >&2
    wrong=1
}

# expect CODE TEXT ARGS...: exit code, nothing on stdout, one line on stderr that holds TEXT.
expect() {
    local code=$1 text=$2 rc
    shift 2
    "$bin" "$@" >"$dir/out" 2>"$dir/err"
    rc=$?
    [ $rc -eq "$code" ] || fail "$*: exit $rc, not $code: $(cat "$dir/err")"
    [ ! -s "$dir/out" ] || fail "$*: wrote to stdout"
    [ "$(wc -l <"$dir/err")" -eq 1 ] || fail "$*: not one line: $(cat "$dir/err")"
    grep -qF -- "$text" "$dir/err" || fail "$*: no '$text' in: $(cat "$dir/err")"
}

for arch in llama qwen3 qwen3moe gemma3; do
    expect 0 "tiny-$arch" --arch $arch "$dir/$arch.gguf"
    [ "$(head -c 4 "$dir/$arch.gguf")" = GGUF ] || fail "$arch: no magic"
done
expect 0 tiny-llama "$dir/again.gguf"
cmp -s "$dir/llama.gguf" "$dir/again.gguf" || fail "the same options give other bytes"
expect 0 tiny-llama --seed 2 "$dir/again.gguf"
cmp -s "$dir/llama.gguf" "$dir/again.gguf" && fail "another seed gives the same bytes"
expect 0 tiny-llama --sparse "$dir/sparse.gguf"
[ "$(stat -c %s "$dir/sparse.gguf")" = "$(stat -c %s "$dir/llama.gguf")" ] || fail "sparse has another length"
expect 0 llama3-70b --preset llama3-70b --sparse "$dir/70b.gguf"
[ "$(stat -c %b "$dir/70b.gguf")" -lt 65536 ] || fail "the weights of a sparse file take space"
expect 0 tiny-llama --n-layers 3 --n-embd 512 --type Q8_0 --no-tokenizer "$dir/wide.gguf"

expect 64 'no file to write'
expect 64 "--preset: 'huge' is not known" --preset huge "$dir/x.gguf"
expect 64 "--arch: 'rwkv' is not known" --arch rwkv "$dir/x.gguf"
expect 64 "--arch: a preset has its own" --arch llama --preset tiny-llama "$dir/x.gguf"
expect 64 "--type: 'Q3_K' is not a type" --type Q3_K "$dir/x.gguf"
expect 64 '--n-layers' --n-layers 0 "$dir/x.gguf"
expect 64 '--n-head-kv: 3 does not divide' --n-head-kv 3 "$dir/x.gguf"
expect 64 '--n-expert: llama has no experts' --n-expert 4 "$dir/x.gguf"
expect 64 '--window: qwen3 has no sliding window' --arch qwen3 --window 4 "$dir/x.gguf"
expect 64 'not whole Q4_K blocks of 256' --type Q4_K --n-embd 288 "$dir/x.gguf"
expect 64 '--nonsense' --nonsense "$dir/x.gguf"
expect 73 'cannot create' /nonexistent/x.gguf
expect 73 'cannot create' "$dir/llama.gguf/x.gguf"
mkdir "$dir/folder.gguf"
expect 73 'cannot create' "$dir/folder.gguf"
ln -s llama.gguf "$dir/link.gguf"
expect 73 'is a link' "$dir/link.gguf"
[ -L "$dir/link.gguf" ] || fail "a link was replaced by a file"
[ ! -e "$dir/x.gguf" ] || fail "a refused call wrote a file"
[ -z "$(ls "$dir" | grep -v -e '\.gguf$' -e '^out$' -e '^err$')" ] || fail "left behind: $(ls "$dir")"
"$bin" --help | grep -q 'qwen3-30b-a3b-q4_0' || fail "--help does not name the presets"
exit $wrong
