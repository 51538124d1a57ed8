#!/usr/bin/env bash
# From a fresh Debian or Ubuntu to an answer: installs packages, builds, fetches a small real model, measures this
# machine (pstune --quick), plans (psplan) and runs the plan (psrun). Uses the CPU where there is no GPU.
# Usage: tools/quickstart.sh [MODEL.gguf]
set -euo pipefail
model=
if [ $# -ge 1 ]; then
  [ -r "$1" ] || { echo "quickstart: $1: no such file" >&2; exit 66; }
  model=$(realpath "$1")
fi
cd "$(dirname "$0")/.."
build=build/release
out=${XDG_DATA_HOME:-$HOME/.local/share}/pinstripe
mkdir -p "$out"

say() { printf '\n== %s\n' "$*" >&2; }

say "1/5 packages"
./tools/install-packages.sh
# A GPU's device files; under WSL2 its driver library.
cuda=OFF
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/nvidia0 ] && [ ! -e /usr/lib/wsl/lib/libcuda.so.1 ]; then
  if command -v nvcc >/dev/null; then
    echo "A CUDA compiler (nvcc) is here but no GPU: the GPU parts, minutes to compile, are left out." >&2
  fi
elif ! command -v nvcc >/dev/null; then
  echo "A GPU is here but no CUDA compiler (nvcc): the GPU parts are left out and everything runs on the CPU." >&2
else
  cuda=ON
fi

say "2/5 build (a few minutes the first time)"
mkdir -p "$build"
log=$build/quickstart.log
if ! { cmake --preset release -DPS_TESTS=OFF -DPS_CUDA=$cuda && cmake --build --preset release -j "$(nproc)"; } >"$log" 2>&1; then
  tail -n 60 "$log" >&2
  echo "quickstart: the build failed; all of its output is in $log" >&2
  exit 1
fi
grep -A4 -E 'warning:|CMake Warning' "$log" >&2 || [ $? -eq 1 ] # 1: there are none

say "3/5 model"
prompt="Why is the sky blue? Answer in two sentences."
if [ -z "$model" ] && ! model=$(./tools/fetch-models.sh smollm2); then
  echo "NOTE: the real model could not be fetched: a tiny one with random weights stands in, and its answer is noise." >&2
  model=$out/tiny-llama.gguf
  "$build/pssynth" --preset tiny-llama "$model"
fi
echo "$model" >&2

say "4/5 tune and plan"
name=$out/$(basename "$model" .gguf)
profile=$name.profile.yaml # of this model's shapes; profile.yaml stays free for pstune without --model
plan=$name.plan.yaml
"$build/pstune" --quick --model "$model" --output "$profile"
"$build/psplan" --profile "$profile" --output "$plan" "$model"

say "5/5 run"
echo "> $prompt"
"$build/psrun" --plan "$plan" --prompt "$prompt" --tokens 120 "$model"
say "measured against predicted"
"$build/psrun" --plan "$plan" --bench --repeat 3 "$model"
cat >&2 <<EOF

Profile: $profile
Plan:    $plan
Again:   $build/psrun --plan '$plan' --prompt 'Your question' '$model'
EOF
