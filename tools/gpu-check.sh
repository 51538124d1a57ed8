#!/usr/bin/env bash
# Everything that needs a GPU, on whatever GPU is here: builds (preset gpu), runs every GPU test and benchmark and end-to-end runs of
# synthetic models in real shapes, lets compute-sanitizer look where it can, and ends with a table: figure, target, met or not. A
# row for each thing that a GPU has to show; what was not run says why. Needs Python alone.
# Usage: tools/gpu-check.sh [--parts A,B] [--resume] [--json FILE] [--bin DIR | --build DIR [--cmake OPTION]...] [--work DIR]
#                           [--models DIR] [--probes DIR] [--cupti FILE] [--limit SECONDS] [--tune SECONDS] [--device emulated] [--list] [--help]
#   --parts A,B     these alone, in this order; --list names them with their limits. All of them take about an hour.
#   --json FILE     rows and all figures, written after each row (gpu-check.json); --resume goes on where that file ends
#   --bin DIR       programs are built in DIR; otherwise they are built in --build (build/gpu) for the GPU that is here
#   --work DIR      synthetic models and profiles, 36 GB; default /dev/shm/pinstripe-check. Later calls find them there.
#   --tune SECONDS  for each of the two runs of pstune (200; its own limit would be 570)
#   --models DIR    real models (default $PS_MODELS)
#   --probes DIR    ceilings.cu and direct.cu: plain programs that measure the machine, to hold our figures against
#   --device emulated  no GPU: the drivers with tiny models on the emulated device; the figures mean nothing
# Exit 0: nothing failed and every target that was tried was met; 1: not; 64: usage; 69: there is no GPU.
exec python3 "$(dirname "$0")/gpu_check.py" "$@"
