#!/usr/bin/env bash
# Holds every #include to the layering of the design:
#   core <- model <- schemas <- { plan, emit }     core <- machine <- { profile, runtime-min }
#   model <- kernels <- { profile, runtime-min }   schemas <- { profile, runtime-min }   everything <- tools, tests
# Usage: tools/check-layers.sh [ROOT]. Prints each breach as file:line; exit 1 if there is one.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

declare -A may=(
  [lib/core]="core"
  [lib/model]="core model"
  [lib/machine]="core machine"
  [lib/kernels]="core model kernels"
  [schemas]="core model schemas"
  [plan]="core model schemas plan"
  [emit]="core model schemas emit"
  [profile]="core model machine kernels schemas profile"
  [runtime-min]="core model machine kernels schemas runtime-min"
)
all=" core model machine kernels schemas plan emit profile runtime-min tools tests "

breaches=0
for folder in "${!may[@]}"; do
  [ -d "$folder" ] || { echo "$folder: no such folder"; exit 1; }
  # grep: 1 is no match, above that it failed
  includes=$(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' "$folder" --include='*.[ch]' --include='*.cu' --include='*.cuh') || [ $? -eq 1 ]
  while IFS=: read -r file line text; do
    target=$(sed -E 's/^[^"<]*["<]([^">]+)[">].*/\1/' <<<"$text")
    # Both the root and lib/ are on the include path, so angle brackets reach a folder as quotes do; what they
    # name that is no folder of ours is the system's.
    if [[ $text == *"<"* ]]; then
      target=${target#lib/}
      case $all in *" ${target%%/*} "*) ;; *) continue ;; esac
    fi
    top=${target%%/*}
    [ "$top" = "$target" ] && continue # a header beside the file
    case $all in *" $top "*) ;; *) echo "$file:$line: includes \"$target\", which is in no folder of the design"; breaches=1; continue ;; esac
    case " ${may[$folder]} " in
      *" $top "*) ;;
      *) echo "$file:$line: $folder may not include $top (\"$target\")"; breaches=1 ;;
    esac
  done <<<"$includes"
done
# Everything but the folders of GPU code compiles on machines without CUDA.
cuda=$(grep -rnE '#[[:space:]]*include[[:space:]]+<(cu[a-z_]*|nvml)\.h>' --include='*.[ch]' --exclude-dir=cuda lib schemas plan emit profile \
  runtime-min tools) || [ $? -eq 1 ]
if [ -n "$cuda" ]; then
  printf '%s\n' "$cuda"
  echo "the lines above include CUDA where the design allows none"
  breaches=1
fi
exit $breaches
