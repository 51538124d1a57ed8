#!/usr/bin/env bash
# --help of every command: 80 columns at most, and every option that its man page has.
. "$(dirname "$0")/common.sh"

while read -r command; do
  program=$bin/${command%% *} words=()
  [ "$command" = "${command%% *}" ] || words=("${command#* }")
  "$program" "${words[@]}" --help >"$dir/out" 2>"$dir/err" </dev/null || fail "$command --help: exit $?"
  [ -s "$dir/err" ] && fail "$command --help: $(cat "$dir/err")"
  awk 'length($0) > 80' "$dir/out" | grep -q . && fail "$command --help is wide: $(awk 'length($0) > 80' "$dir/out")"
  grep -q ' $' "$dir/out" && fail "$command --help: spaces at the end of a line"
  "$program" "${words[@]}" --man >"$dir/man" 2>&1 </dev/null || fail "$command --man: exit $?"
  [ "$(grep -c '^  \(-.,\|   \) --[a-z]' "$dir/out")" -eq "$(grep -c '^\.B \(\\-., \)\?\\-\\-' "$dir/man")" ] || fail "$command: --help and --man differ"
done <<'EOF'
psplan
psplan inspect
psplan emit
psplan check
psplan whatif
psrun
pssynth
pstune
pstune show
pstune diff
pstune check
EOF

[ "$failures" -eq 0 ] && echo "help: all as expected"
exit $((failures != 0))
