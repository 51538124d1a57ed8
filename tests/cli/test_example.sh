#!/usr/bin/env bash
# The installed library as a user meets it: install, build the example through pkg-config, run it; it must say what
# psrun says.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bin=${PS_BIN:?}
# A library built with sanitizers needs a program built with them.
flags=$(sed -n 's/^PS_SANITIZE:STRING=\(..*\)/-fsanitize=\1/p' "$bin/CMakeCache.txt")
cmake --install "$bin" --prefix "$dir/prefix" >/dev/null
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$dir/prefix" -name pinstripe.pc)")
# shellcheck disable=SC2046,SC2086 # lists of flags
cc -std=c17 -Wall -Wextra -Werror $flags "$dir"/prefix/share/doc/*/examples/generate.c -o "$dir/generate" \
  $(pkg-config --cflags --libs pinstripe)
[ -f "$dir/prefix/share/man/man1/psrun.1" ] || { echo "no man page was installed"; exit 1; }
PATH=$dir/prefix/bin:$PATH
pssynth --preset tiny-llama "$dir/m.gguf" 2>/dev/null
pstune --null --output "$dir/profile.yaml" >/dev/null 2>&1
psplan --profile "$dir/profile.yaml" --threads 1 --context 256 --output "$dir/plan.yaml" "$dir/m.gguf" >/dev/null 2>&1
lib=$(dirname "$(find "$dir/prefix" -name libpinstripe.so)")
LD_LIBRARY_PATH=$lib "$dir/generate" "$dir/m.gguf" "$dir/plan.yaml" 'Once upon a time' 16 >"$dir/a"
psrun --quiet --raw --plan "$dir/plan.yaml" -m 'Once upon a time' -n 16 "$dir/m.gguf" >"$dir/b"
cmp "$dir/a" "$dir/b"
[ -s "$dir/a" ]
echo "the example says what psrun says"
