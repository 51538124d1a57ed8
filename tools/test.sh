#!/usr/bin/env bash
# Everything that needs no GPU: builds (optimised with warnings as errors, and sanitized), checks the layering,
# runs every test in the first two builds and the threaded ones under TSan, and ends with one line:
# N passed, N failed, N skipped.
# Usage: tools/test.sh [--fast]   --fast leaves out the sanitized builds and the style checks.
# Fetches both real models unless they are cached. Exit 0 only if nothing failed and something ran.
set -uo pipefail
cd "$(dirname "$0")/.."
fast=0
[ "${1:-}" = --fast ] && fast=1
jobs=$(nproc)
command -v ccache >/dev/null && export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}
passed=0 failed=0 skipped=0
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT

say() { printf '== %s\n' "$*"; }
# check NAME COMMAND...: one test that passes or fails as a whole; its output is shown when it fails.
check() {
  local name=$1
  shift
  if "$@" >"$log/out" 2>&1; then
    passed=$((passed + 1))
    say "passed: $name"
  else
    failed=$((failed + 1))
    say "FAILED: $name"
    tail -n 60 "$log/out"
  fi
}

# suite PRESET: build and run CTest; a build that breaks counts as one failure.
suite() {
  local preset=$1
  say "build $preset"
  local target=all
  [ "$preset" = tsan ] && target=threaded_tests # Criterion does not start under TSan
  if ! { cmake --preset "$preset" && cmake --build --preset "$preset" -j "$jobs" --target "$target"; } >"$log/build" 2>&1; then
    failed=$((failed + 1))
    say "FAILED: build $preset"
    grep -E -A5 '[Ee]rror|FAILED' "$log/build" | head -n 60
    return
  fi
  # A leak that LeakSanitizer finds at exit does not change a Criterion program's result, so reports go to
  # files, and a file is a failure.
  rm -f "$log"/san.*
  local only=()
  [ "$preset" = tsan ] && only=(-L threaded)
  ASAN_OPTIONS="log_path=$log/san:detect_leaks=1" UBSAN_OPTIONS="log_path=$log/san:print_stacktrace=1" \
    TSAN_OPTIONS="log_path=$log/san" ctest --preset "$preset" "${only[@]}" -j "$jobs" --timeout 600 >"$log/ctest" 2>&1
  local p f s
  p=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.* Passed ' "$log/ctest")
  s=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.*\*\*\*Skipped' "$log/ctest")
  f=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.*(\*\*\*Failed|\*\*\*Exception|\*\*\*Timeout|\*\*\*Not Run|Subprocess)' "$log/ctest")
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  say "$preset: $p passed, $f failed, $s skipped"
  [ "$s" -ne 0 ] && grep -E '\*\*\*Skipped' "$log/ctest"
  if [ "$f" -ne 0 ]; then
    tail -n 120 "$log/ctest"
  elif [ "$p" -eq 0 ]; then
    failed=$((failed + 1))
    say "FAILED: $preset ran no test"
    tail -n 20 "$log/ctest"
  fi
  if compgen -G "$log/san.*" >/dev/null; then
    failed=$((failed + 1))
    say "FAILED: sanitizer reports in $preset"
    head -n 60 "$log"/san.*
  fi
}

say "packages"
./tools/install-packages.sh --tests || { echo "test.sh: packages are missing" >&2; exit 69; }
say "models"
./tools/fetch-models.sh || say "models are missing: tests that need them are skipped and counted"

check "layering" ./tools/check-layers.sh
suite dev
[ -x build/dev/tests/test_cuda_host_900 ] || say "not run: GPU kernels on the host (needs CUDA's headers, a C++ compiler and x86-64)"
if command -v nvcc >/dev/null; then
  check "GPU kernels compile for 7.5 and 12.0" bash -c "cmake --preset cuda && cmake --build --preset cuda -j $jobs"
else
  say "not run: GPU kernels compile (there is no nvcc)"
fi
if [ "$fast" -eq 0 ]; then
  suite asan-ubsan
  suite tsan
  check "format" bash -c 'clang-format --dry-run --Werror $(git ls-files "*.c" "*.h")'
  check "headers compile alone as C17 and C++17" ./tools/check-headers.sh
fi

printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
