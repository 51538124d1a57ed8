# The JSON Schemas agree with the golden documents. Needs Python with jsonschema and PyYAML (development only).
set -u
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
exec python3 tests/cli/check_schemas.py
