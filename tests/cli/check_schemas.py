"""Holds documents against the JSON Schemas, and the schemas against documents that must not pass."""
import copy
import json
import re
import sys

try:
    import jsonschema
    import yaml
except ImportError as missing:
    print("SKIP:", missing)
    sys.exit(77)


class Loader(yaml.SafeLoader):
    """PyYAML follows YAML 1.1, where 1e-05 is text; the documents follow 1.2."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"), list("-0123456789")
)
Loader.yaml_implicit_resolvers = {
    first: sorted(rows, key=lambda row: row[0] != "tag:yaml.org,2002:int")
    for first, rows in Loader.yaml_implicit_resolvers.items()
}

GOLDEN = "tests/golden/schemas/"
DOCUMENTS = [
    ("machine_profile", yaml.load(open(GOLDEN + "profile.yaml"), Loader)),
    ("plan", yaml.load(open(GOLDEN + "plan.yaml"), Loader)),
    ("plan", yaml.load(open(GOLDEN + "plan_stream.yaml"), Loader)),
    ("plan", yaml.load(open(GOLDEN + "plan_experts.yaml"), Loader)),
    ("trace", json.load(open(GOLDEN + "trace.json"))),
]


def positions(value, path=()):
    """Every scalar of a document, by path."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from positions(inner, path + (key,))
    if not isinstance(value, (dict, list)):
        yield path


def set_at(document, path, value):
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


failed = 0
for name, document in DOCUMENTS:
    schema = json.load(open(f"schemas/{name}.schema.json"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for error in validator.iter_errors(document):
        print(f"{name}: {list(error.absolute_path)}: {error.message[:200]}")
        failed += 1
    # No place takes a mapping where a scalar belongs, and no key is optional or unknown but the few that are.
    bad = 0
    paths = list(positions(document))
    for path in paths[:: max(1, len(paths) // 50)]:
        broken = copy.deepcopy(document)
        set_at(broken, path, {"x": 1})
        bad += not validator.is_valid(broken)
        if validator.is_valid(broken):
            print(f"{name}: {path} takes anything")
            failed += 1
    for key in list(document):
        broken = copy.deepcopy(document)
        del broken[key]
        if validator.is_valid(broken) != (key in ("note", "gpu")):
            print(f"{name}: key {key} can be left out")
            failed += 1
    broken = copy.deepcopy(document)
    broken["another"] = 1
    if validator.is_valid(broken):
        print(f"{name}: takes unknown keys")
        failed += 1
    print(f"{name}: valid, {bad} broken documents refused")
sys.exit(1 if failed else 0)
