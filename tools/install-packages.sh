#!/usr/bin/env bash
# Installs what building and testing Pinstripe needs on Debian 12, Ubuntu 24.04 and later.
# Usage: tools/install-packages.sh [--tests]   Does nothing where everything is there. Exit 77: no right to install.
set -euo pipefail
packages=(gcc cmake ninja-build pkg-config libyaml-dev libhwloc-dev libxxhash-dev python3 python3-pip ca-certificates)
[ "${1:-}" = --tests ] && packages+=(libcriterion-dev clang libclang-rt-dev clang-format clang-tidy mandoc git time)
# libclang-rt-dev is named by version on Debian 12.
if [ "${1:-}" = --tests ] && ! apt-cache show libclang-rt-dev >/dev/null 2>&1; then
  packages=("${packages[@]/libclang-rt-dev/libclang-rt-14-dev}")
fi
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-packages: need root for: ${missing[*]}" >&2; exit 77; }
  as_root=(sudo)
fi
echo "install-packages: installing ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
