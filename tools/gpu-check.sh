#!/usr/bin/env bash
# Everything that needs a GPU, on whatever GPU is here: builds (preset gpu), runs every GPU test and benchmark and end-to-end
# runs of synthetic models in real shapes, lets compute-sanitizer look where it can, and ends with a short table: figure, target,
# met or not.
# Usage: tools/gpu-check.sh [--no-build DIR] [--json FILE] [--only PART,...] [--synth DIR] [--models DIR]
#   --no-build DIR  programs are already built in DIR (tests/test_cuda_device, tests/test_cuda_kernels and so on, or beside each other)
#   --json FILE     also write commit, driver, clocks, commands and all figures there
#   --only PART     of device, kernels, sanitizer, speed, numerics, cells, memory (default: all)
#   --synth DIR     where synthetic models go, 35 GB; default /dev/shm/pinstripe-check
#   --models DIR    real models (default $PS_MODELS); those that are not there are reported as not run
# Exit 0: nothing failed and every target was met; 1: something failed; 69: there is no GPU.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$here"
build=build/gpu do_build=1 json= only=device,kernels,sanitizer,speed,numerics,cells,memory synth=/dev/shm/pinstripe-check models=${PS_MODELS:-}
while [ $# -gt 0 ]; do
  case $1 in
    --no-build) build=$2 do_build=0; shift 2 ;;
    --json) json=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --synth) synth=$2; shift 2 ;;
    --models) models=$2; shift 2 ;;
    *) echo "gpu-check.sh: unknown option $1" >&2; exit 64 ;;
  esac
done
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || { echo "gpu-check.sh: no GPU here" >&2; exit 69; }
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
failed=0
rows=()
part() { [[ ",$only," == *",$1,"* ]]; }
row() { rows+=("$(printf '%-52s %-22s %s' "$1" "$2" "$3")"); }

uname -r
gpu=$(nvidia-smi --query-gpu=name,driver_version,compute_cap,clocks.sm,clocks.mem,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader | head -n 1)
echo "$gpu"
commit=$(git rev-parse --verify -q HEAD 2>/dev/null || cat COMMIT 2>/dev/null || echo unknown)
if [ "$do_build" -eq 1 ]; then
  # Machine code for this GPU alone beside the PTX for 7.5: a full preset takes minutes.
  cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  if ! { cmake --preset gpu "-DCMAKE_CUDA_ARCHITECTURES=75-virtual;$cap-real" && cmake --build --preset gpu -j "$(nproc)" \
         -t test_cuda_device test_cuda_kernels bench_cuda_kernels vram_ballast pstune psplan psrun pssynth; } >"$log/build" 2>&1; then
    tail -n 30 "$log/build"
    echo "gpu-check.sh: the build failed" >&2
    exit 1
  fi
fi
bin=$build/tests
[ -x "$bin/test_cuda_kernels" ] || bin=$build

# The device by itself: memory, order, hand-over, graphs, the meter, each call made to fail in turn.
# device LABEL COMMAND...
device() {
  local label=$1 rc
  shift
  "$@" >"$log/device" 2>&1
  rc=$?
  if [ "$rc" -ne 0 ]; then
    failed=$((failed + 1))
    echo "== FAILED: device, $label"
    tail -n 20 "$log/device"
  fi
  row "$label: device" "$(grep -c ': passed' "$log/device") scenarios passed" "no other result: $([ "$rc" -eq 0 ] && echo met || echo MISSED)"
  row "$label: calls made to fail" "$(sed -n 's/.*each of \([0-9]*\) calls failed.*/\1/p' "$log/device") in turn" \
    "an error, no hang: $(grep -q '^faults: passed' "$log/device" && echo met || echo MISSED)"
}
part device && device native timeout 300 "$bin/test_cuda_device"
part device && device ptx-7.5 env CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1 timeout 300 "$bin/test_cuda_device"

# Kernels in parallel: each program tests those whose name contains its argument.
names=(matmul.f matmul.bf matmul.q4 matmul.q5 matmul.q6 matmul.q8 gemm.f gemm.q4 gemm.q5 gemm.q6 gemm.q8 matvec.f32 matvec.f16 matvec.bf16 matvec.q4_0 matvec.q4_1 matvec.q5_0 matvec.q5_1 matvec.q8_0 matvec.q4_k matvec.q5_k
       matvec.q6_k rmsnorm rope kv_store attention.split attention.flash copy glu add convert gather moe_route moe.f moe.bf moe.q4 moe.q5 moe.q6 moe.q8)
# sweep LABEL COMMAND...: COMMAND is run once per name, its argument last.
sweep() {
  local label=$1 dir=$log/$1 pids=() ok=0 bad=0 cases
  shift
  mkdir -p "$dir"
  for n in "${names[@]}"; do
    ("$@" "cuda.$n" >"$dir/$n" 2>&1; echo $? >"$dir/$n.rc") &
    pids+=($!)
  done
  wait "${pids[@]}"
  for n in "${names[@]}"; do
    if [ "$(cat "$dir/$n.rc")" = 0 ]; then
      ok=$((ok + 1))
    else
      bad=$((bad + 1))
      echo "== FAILED: $label $n"
      grep -m 5 -E 'FAILED|ERROR|Error|error|hazard' "$dir/$n"
    fi
  done
  cases=$(cat "$dir"/* | awk '/cases, / { n += $3 } END { print n + 0 }')
  failed=$((failed + bad))
  row "$label: kernels against the reference" "$cases cases, $bad failed" "0 failed: $([ "$bad" -eq 0 ] && echo met || echo MISSED)"
}
part kernels && sweep native timeout 300 "$bin/test_cuda_kernels"
part kernels && sweep ptx-7.5 env CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1 timeout 300 "$bin/test_cuda_kernels"
if ! part sanitizer; then
  :
elif command -v compute-sanitizer >/dev/null && uname -r | grep -q -E '^6\..*-fc|^[5-9]\.[0-9]+\.[0-9]+-[0-9]+-generic'; then
  # Fewer cases: the tools slow kernels down a hundredfold.
  for tool in memcheck racecheck; do
    sweep "$tool" timeout 400 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/test_cuda_kernels" --few
  done
else
  row "memcheck, racecheck" "not run" "the tool refuses this machine or is not here"
fi

if part speed; then
  "$bin/bench_cuda_kernels" --json >"$log/bench" 2>"$log/bench.err"
  rc=$?
  [ "$rc" -le 1 ] && [ -s "$log/bench" ] || { failed=$((failed + 1)); cat "$log/bench.err"; }
  while IFS= read -r line; do
    kernel=$(sed -E 's/.*"kernel": "([^"]*)".*/\1/' <<<"$line") shape=$(sed -E 's/.*"shape": "([^"]*)".*/\1/' <<<"$line")
    us=$(sed -E 's/.*"us": ([0-9.]+).*/\1/' <<<"$line") rate=$(sed -E 's/.*"gb_per_s": ([0-9.]+).*/\1/' <<<"$line")
    target=$(sed -E 's/.*"target_us": ([0-9.]+).*/\1/' <<<"$line")
    case $line in
      *'"met": true'*) row "$kernel, $shape" "$us us, $rate GB/s" "<= $target us: met" ;;
      *'"met": false'*) row "$kernel, $shape" "$us us, $rate GB/s" "<= $target us: MISSED"; failed=$((failed + 1)) ;;
    esac
  done <"$log/bench"

  # Prefill attention beside PyTorch's, where that is installed.
  if python3 tests/gpu/bench_torch_attention.py >"$log/torch" 2>"$log/torch.err"; then
    while IFS= read -r line; do
      shape=$(sed -E 's/.*"shape": "([^"]*)".*/\1/' <<<"$line") torch_ms=$(sed -E 's/.*"ms": ([0-9.]+).*/\1/' <<<"$line")
      us=$(grep -F '"attention.flash"' "$log/bench" | grep -F "\"$shape\"" | sed -E 's/.*"us": ([0-9.]+).*/\1/')
      frac=$(awk -v t="$torch_ms" -v u="${us:-0}" 'BEGIN { printf "%.2f", u > 0 ? t * 1000 / u : 0 }')
      case $shape in
        *", 4096 tokens"|*", 16384 tokens")
          if awk -v f="$frac" 'BEGIN { exit !(f >= 0.7) }'; then met=met; else met=MISSED failed=$((failed + 1)); fi
          row "attention.flash, $shape" "${us:-?} us, torch $torch_ms ms" ">= 0.70 of torch's speed: $frac $met" ;;
        *) row "attention.flash, $shape" "${us:-?} us, torch $torch_ms ms" "$frac of torch's speed" ;;
      esac
    done <"$log/torch"
  else
    row "attention.flash beside PyTorch" "not run" "$(tail -n 1 "$log/torch.err")"
  fi
fi

# End to end: each script prints its own lines; what they found is a row each.
tool=$build
# script ROW TARGET COMMAND...: the command prints lines "ok ..." and "FAILED ..." or lines of figures.
script() {
  local label=$1 target=$2 rc
  shift 2
  "$@" 2>&1 | tee "$log/script"
  rc=${PIPESTATUS[0]}
  [ "$rc" -eq 0 ] || failed=$((failed + 1))
  row "$label" "$(grep -c '^ok' "$log/script") ok, $(grep -c '^FAILED' "$log/script") failed" "$target: $([ "$rc" -eq 0 ] && echo met || echo MISSED)"
}
if part numerics; then
  script "bits and numerics of every family" "within llama.cpp's figures" python3 tools/gpu_numerics.py --bin "$tool" --work "$log/numerics" \
    ${models:+--models "$models"} --json "$log/numerics.json"
fi
# profile MODEL: of this machine, with that model's shapes.
profile() { [ -s "$synth/$1.yaml" ] || "$tool/pstune" --quick --model "$synth/$1.gguf" -o "$synth/$1.yaml" >"$log/pstune" 2>&1 || tail -n 3 "$log/pstune"; }
if part cells || part memory; then
  mkdir -p "$synth"
  for m in minitron-8b-f16 qwen3-30b-a3b-q4_0; do
    [ -s "$synth/$m.gguf" ] || "$tool/pssynth" --preset "$m" --n-ctx 40960 "$synth/$m.gguf" || failed=$((failed + 1))
    profile "$m"
  done
fi
if part cells; then
  python3 tools/gpu_cells.py --bin "$tool" --profile "$synth/minitron-8b-f16.yaml" --models "$synth" --cells 8b-1k-2.8,8b-1k-8.8,8b-16k-8.9 \
    --json "$log/cells8.json" || failed=$((failed + 1))
  python3 tools/gpu_cells.py --bin "$tool" --profile "$synth/qwen3-30b-a3b-q4_0.yaml" --models "$synth" \
    --cells 30b-1k-2.8,30b-1k-8.8,30b-16k-8.9 --json "$log/cells30.json" || failed=$((failed + 1))
  while IFS='|' read -r cell prefill decode; do
    row "$cell: prefill, decode beside the peers" "${prefill}x, ${decode}x" ">= 1: $(awk -v a="$prefill" -v b="$decode" 'BEGIN { print a >= 1 && b >= 1 ? "met" : "MISSED" }')"
  done < <(python3 -c 'import json,sys
for f in sys.argv[1:]:
    for r in json.load(open(f)):
        if r["family"] == "best":
            print("%s|%.2f|%.2f" % (r["cell"], r["prefill_times_peers"], r["decode_times_peers"]))' "$log/cells8.json" "$log/cells30.json")
  # Queues of a streamed prefill, and what a layer of a split decode costs beyond its parts.
  for m in minitron-8b-f16 qwen3-30b-a3b-q4_0; do
    "$tool/psplan" -p "$synth/$m.yaml" -b 3GiB -c 2048 --force split -f binary -o "$log/plan" "$synth/$m.gguf" >/dev/null &&
      "$tool/psrun" -p "$log/plan" --bench --bench-prompt 1024 --bench-decode 8 --repeat 1 --trace "$log/trace.json" "$synth/$m.gguf" >/dev/null 2>&1 &&
      python3 tools/gpu_trace.py "$log/trace.json" | tee "$log/figures"
    busy=$(sed -n 's/^1024 tokens.* h2d \([0-9.]*\)%.*/\1/p' "$log/figures")
    row "$m, 1K prompt, 3 GiB: h2d queue busy" "${busy:-?}%" ">= 90%: $(awk -v b="${busy:-0}" 'BEGIN { print b >= 90 ? "met" : "MISSED" }')"
  done
  over=$(sed -n 's/^1 tokens.*, \([0-9.-]*\) us a layer.*/\1/p' "$log/figures")
  row "qwen3-30b-a3b, decode: a layer beyond its longer part" "${over:-?} us" "<= 15 us: $(awk -v o="${over:-99}" 'BEGIN { print o <= 15 ? "met" : "MISSED" }')"
fi
if part memory; then
  script "meter at 1.5, 2, 3, 4, 8 GiB, 16K context full" "never above" python3 tools/gpu_memory.py --bin "$tool" --profile "$synth/minitron-8b-f16.yaml" \
    --model "$synth/minitron-8b-f16.gguf" --json "$log/memory.json" --ballast "$bin/vram_ballast"
fi

printf '%s\n' "${rows[@]}"
if [ -n "$json" ]; then
  {
    printf '{\n"commit": "%s",\n"kernel": "%s",\n"gpu, driver, capability, SM clock, memory clock, link": "%s",\n' "$commit" "$(uname -r)" "$gpu"
    printf '"clocks after": "%s",\n' "$(nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv,noheader | head -n 1)"
    printf '"commands": ["test_cuda_device", "test_cuda_kernels cuda.NAME", "CUDA_FORCE_PTX_JIT=1 test_cuda_kernels cuda.NAME", "bench_cuda_kernels --json"],\n"table": [\n'
    for i in "${!rows[@]}"; do
      printf '  "%s"%s\n' "$(sed -E 's/ +/ /g' <<<"${rows[$i]}")" "$([ "$i" -lt $((${#rows[@]} - 1)) ] && echo ,)"
    done
    printf '],\n"benchmark": [\n'
    cat "$log/bench" "$log/torch" 2>/dev/null | sed '$!s/$/,/'
    printf '],\n"end to end": ['
    sep=
    for f in numerics cells8 cells30 memory; do
      [ -s "$log/$f.json" ] && { printf '%s{"%s": ' "$sep" "$f"; cat "$log/$f.json"; printf '}'; sep=,; }
    done
    printf ']\n}\n'
  } >"$json"
fi
echo "$failed failed"
[ "$failed" -eq 0 ]
