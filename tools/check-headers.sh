#!/usr/bin/env bash
# Every header compiles alone, as C17 and as C++17, and needs no CUDA include.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
while read -r header; do
  for lang in c:c17:gcc c++:c++17:g++; do
    IFS=: read -r name std compiler <<<"$lang"
    "$compiler" -x "$name" "-std=$std" -D_GNU_SOURCE -Wall -Wextra -Wno-psabi -I. -Ilib -Itools -fsyntax-only "$header" ||
      { echo "$header: does not compile alone as $std"; status=1; }
  done
done < <(git ls-files 'lib/*.h' 'schemas/*.h' 'plan/*.h' 'emit/*.h' 'profile/*.h' 'runtime-min/*.h' | grep -vE '_(avx2|avx512|amx|table|body)\.h$')
exit $status
