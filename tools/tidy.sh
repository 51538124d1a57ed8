#!/usr/bin/env bash
# clang-tidy with the checks of .clang-tidy over every C file of the product (minutes; not part of test.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset dev >/dev/null
run-clang-tidy -quiet -p build/dev -j "$(nproc)" '/(lib|schemas|plan|emit|profile|runtime-min|tools)/[^/]+.*[.]c$' 2>/dev/null
