# docs/checker-rules.md, the checker's sources and its tests agree. Needs Python (development only).
set -u
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
exec python3 tests/cli/check_rules.py
