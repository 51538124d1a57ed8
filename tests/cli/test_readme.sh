#!/usr/bin/env bash
# Every command of README.md: its program knows all of its options, and the files of the repository that it names are there.
. tests/cli/common.sh
grep -E '^    build/release/' README.md | sed 's/ #.*//' >"$dir/lines"
[ "$(wc -l <"$dir/lines")" -ge 8 ] || fail "$(wc -l <"$dir/lines") commands"
while read -r line; do
  eval "words=(${line#build/release/})"
  "$bin/${words[0]}" "${words[@]:1}" --help >/dev/null 2>"$dir/err" || fail "$line: $(cat "$dir/err")"
  for word in "${words[@]:1}"; do
    case $word in fixtures/*) [ -f "$word" ] || fail "$line: there is no $word" ;; esac
  done
done <"$dir/lines"
grep -oE '\]\([^)#h][^)#]*' README.md | cut -c3- | while read -r link; do
  [ -e "$link" ] || echo "$link"
done >"$dir/links"
[ ! -s "$dir/links" ] || fail "links to nothing: $(cat "$dir/links")"
[ $failures -eq 0 ] || exit 1
