#!/usr/bin/env bash
# Installs what building and testing Pinstripe needs on Debian 12, Ubuntu 24.04 and later.
# Usage: tools/install-packages.sh [--tests]   Does nothing where everything is there. Exit 77: no right to install;
# 69: apt-get failed (its last lines are shown).
set -euo pipefail
packages=(gcc libc6-dev cmake ninja-build pkg-config libyaml-dev libhwloc-dev libxxhash-dev python3 python3-pip
  ca-certificates)
[ "${1:-}" = --tests ] && packages+=(libcriterion-dev g++ clang libclang-rt-dev clang-format clang-tidy mandoc git time
  python3-jsonschema python3-yaml)
# installed PATTERN: some package of that name is there.
installed() { dpkg-query -W -f '${Status}\n' "$1" 2>/dev/null | grep -q 'ok installed'; }
missing=()
for p in "${packages[@]}"; do
  installed "$p" || { [ "$p" = libclang-rt-dev ] && installed 'libclang-rt-*-dev'; } || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-packages: need root for: ${missing[*]}" >&2; exit 77; }
  as_root=(sudo)
fi
echo "install-packages: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() {
  "${as_root[@]}" "$@" >"$log" 2>&1 && return 0
  tail -n 40 "$log" >&2
  echo "install-packages: failed: $*" >&2
  exit 69
}
run apt-get update -qq
# libclang-rt-dev is named by version on Debian 12; only the fetched lists can tell.
if ! apt-cache show libclang-rt-dev >/dev/null 2>&1; then
  missing=("${missing[@]/#libclang-rt-dev/libclang-rt-14-dev}")
fi
run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
