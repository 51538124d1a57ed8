"""docs/checker-rules.md is the list of all that the checker refuses: every message of its sources is in the table, and each names a
test that exists and wants words of that message."""
import glob
import re
import sys

SOURCES = ["schemas/plan_validate.c", "schemas/plan_check.c", "schemas/check_level.c", "schemas/check_instr.c",
           "schemas/check_flow.c", "schemas/check_memory.c"]
DOCUMENT = "docs/checker-rules.md"
HOLE = re.compile(r"%[0-9.]*(?:ll)?[a-z]")


def balanced(text, at):
    depth, i = 1, at
    while depth:
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        i += 1
    return text[at:i]


def strings(text):
    """C string literals, neighbours joined."""
    return ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', run)).replace('\\"', '"')
            for run in re.findall(r'(?:"(?:[^"\\]|\\.)*"\s*)+', text)]


def messages():
    """(source, message) of everything that is refused; lack of memory is no rule."""
    found = []
    for source in SOURCES:
        text = open(source).read()
        for m in re.finditer(r"\b(ps_walk_fail|ps_error_set)\(", text):
            body = balanced(text, m.end())
            if "PS_E_NOMEM" in body or "const char *fmt" in body:
                continue
            arguments = strings(body)
            if m.group(1) == "ps_error_set" and re.match(r'[^,"]+,[^,"]+,\s*"', body):
                arguments = arguments[1:]  # the subject
            for said in arguments:
                if len(HOLE.sub("", said)) > 9 and (source, said) not in found:
                    found.append((source, said))
    return found


def says(message, wanted):
    """Could `wanted` be a piece of the message with something in place of its %: how many characters are the message's own."""
    literals = HOLE.split(message)
    best = 0

    def walk(k, at, own):
        """wanted[at:] against literal k and what follows."""
        nonlocal best
        rest = wanted[at:]
        if literals[k].startswith(rest):  # it ends within
            best = max(best, own + len(rest))
            return
        if not rest.startswith(literals[k]):
            return
        own, at = own + len(literals[k]), at + len(literals[k])
        if k + 1 == len(literals):
            return
        if re.fullmatch(r"[\w.\" -]{1,40}", wanted[at:]):  # it ends in what is filled in
            best = max(best, own)
        for n in range(1, min(40, len(wanted) - at)):
            if re.fullmatch(r"[\w.\" -]+", wanted[at:at + n]):
                walk(k + 1, at + n, own)

    for k, literal in enumerate(literals):
        for o in range(len(literal)):  # it begins within literal k
            tail = literal[o:]
            if tail.startswith(wanted):
                best = max(best, len(wanted))
            elif wanted.startswith(tail) and k + 1 < len(literals):
                if re.fullmatch(r"[\w.\" -]{1,40}", wanted[len(tail):]):
                    best = max(best, len(tail))
                for n in range(1, min(40, len(wanted) - len(tail))):
                    if re.fullmatch(r"[\w.\" -]+", wanted[len(tail):len(tail) + n]):
                        walk(k + 1, len(tail) + n, len(tail))
    for k in range(1, len(literals)):  # or in what is filled in before literal k
        for n in range(1, min(40, len(wanted))):
            if re.fullmatch(r"[\w.\" -]+", wanted[:n]):
                walk(k, n, 0)
    return best


def tests():
    """name -> text of every test of the folder."""
    found = {}
    for name in sorted(glob.glob("tests/unit/schemas/test_plan*.c")):
        text = open(name).read()
        for m in re.finditer(r"^(RULE|RULE_GPU|Test)\(", text, re.M):
            body = balanced(text, m.end())
            key = body.split(",")[0 if m.group(1) != "Test" else 1].strip(" )\n")
            if m.group(1) == "Test":
                body = text[m.end():text.find("\n}", m.end())]
            found[key] = strings(body)[:1 if m.group(1) != "Test" else None]
    return found


def wants(body, message):
    """Does a string of the test want a piece of the message, a good part of it the message's own words?"""
    for s in body:
        places = [s] + [s[m.end():] for m in re.finditer(": ", s)]  # without the subject
        if any(says(message, w) >= max(6, len(w) / 3) for w in places):
            return True
    return False


def table():
    rows, unreachable = {}, {}
    into = rows
    for line in open(DOCUMENT):
        if line.startswith("## Cannot"):
            into = unreachable
        m = re.match(r"\| `(.*?)` \| (.*?) \|$", line)
        if m:
            into[m.group(1)] = m.group(2)
    return rows, unreachable


def main():
    known = tests()
    rows, unreachable = table()
    wrong = []
    seen = set()
    for source, message in messages():
        seen.add(message)
        if message in unreachable:
            continue
        if message not in rows:
            wrong.append(f"{source}: no row for: {message}")
            continue
        named = re.findall(r"\w+", rows[message])
        for name in named:
            if name not in known:
                wrong.append(f"{message}: there is no test {name}")
        if not any(name in known and wants(known[name], message) for name in named):
            wrong.append(f"{message}: none of its tests wants these words: {rows[message]}")
    wrong += [f"no source says: {m}" for m in list(rows) + list(unreachable) if m not in seen]
    if len(seen) < 150:
        wrong.append(f"only {len(seen)} messages found")
    for line in wrong:
        print(line)
    print(f"checker rules: {len(seen)} messages, {len(unreachable)} of them cannot be reached, {len(known)} tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
