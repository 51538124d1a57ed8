# Sourced by the tests of the programs: a folder that goes away, and what a command must do.
set -uo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bin=${PS_BIN:?}
failures=0

fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
must() { "$@" >"$dir/log" 2>&1 || { cat "$dir/log"; fail "$*"; }; }
# expect CODE TEXT COMMAND...: exit code, exactly one line on standard error, TEXT in it, nothing on standard output.
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
# json TEST FILE: python expression over the document d.
json() { python3 -c 'import json,sys; d=json.load(open(sys.argv[2])); assert eval(sys.argv[1]), d' "$1" "$2" || fail "JSON of $2: $1"; }
