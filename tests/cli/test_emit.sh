#!/usr/bin/env bash
# psplan emit llama.cpp and html as commands: flags that xargs takes apart, pages that parse, the level that is asked for, and
# every wrong input in one line with the right exit code.
. "$(dirname "$0")/common.sh"

must "$bin/pstune" --null --device null --quick --output "$dir/profile.yaml"
must "$bin/pssynth" --preset llama3-8b-q4_0 --sparse "$dir/8b.gguf"
must "$bin/pssynth" --preset tiny-qwen3moe "$dir/moe.gguf"
plan=("$bin/psplan" --profile "$dir/profile.yaml" --threads 4)
emit=("$bin/psplan" emit)
must "${plan[@]}" --budget host,2GiB,4GiB --context 1024,4096 -o "$dir/8b.yaml" "$dir/8b.gguf"
must "$bin/psplan" --profile "$dir/profile.yaml" --threads 1 --budget 760MiB --context 512 -o "$dir/moe.yaml" "$dir/moe.gguf"

# flags FILE: what a program would get, one argument a line.
flags() { grep -v '^#' "$1" | xargs printf '%s\n'; }
value() { flags "$1" | grep -x -A1 -- "$2" | tail -n 1; }
must "${emit[@]}" --budget host llama.cpp "$dir/8b.yaml" "$dir/8b.gguf" -o "$dir/host"
[ "$(value "$dir/host" -ngl)" = 0 ] && [ "$(value "$dir/host" -c)" = 4096 ] || fail "host: $(cat "$dir/host")"
must "${emit[@]}" --budget 4096MiB llama.cpp "$dir/8b.yaml" "$dir/8b.gguf" -o "$dir/most"
[ "$(value "$dir/most" -c)" = 4096 ] || fail "4096MiB: $(cat "$dir/most")"
"${emit[@]}" llama.cpp "$dir/8b.yaml" "$dir/8b.gguf" | cmp -s - "$dir/most" || fail "the default is not the largest budget"
must "${emit[@]}" --budget 2GiB llama.cpp "$dir/8b.yaml" "$dir/8b.gguf" -o "$dir/small"
must "${emit[@]}" --budget 4GiB --context 1000 --threads 4 llama.cpp "$dir/8b.yaml" "$dir/8b.gguf" -o "$dir/large"
[ "$(value "$dir/small" -c)" = 4096 ] && [ "$(value "$dir/large" -c)" = 1024 ] || fail "level: $(cat "$dir/large")"
[ "$(value "$dir/small" -t)" = 4 ] && [ "$(value "$dir/small" -ngl)" -ge 1 ] || fail "flags: $(cat "$dir/small")"
flags "$dir/small" | grep -qx '\^.*\$=\(CPU\|CUDA0\)' || fail "no pattern: $(cat "$dir/small")"
grep -q '^# not expressed: .*in part in VRAM' "$dir/large" || fail "parts are not said: $(cat "$dir/large")"
must "${emit[@]}" llama.cpp "$dir/moe.yaml" "$dir/moe.gguf" -o "$dir/moe"
"${emit[@]}" llama.cpp "$dir/moe.yaml" "$dir/moe.gguf" | cmp -s - "$dir/moe" || fail "standard output differs"

expect 64 "MODEL.gguf" "${emit[@]}" llama.cpp "$dir/8b.yaml"
expect 64 "one file" "${emit[@]}" yaml "$dir/8b.yaml" "$dir/8b.gguf"
expect 64 "is an input" "${emit[@]}" llama.cpp "$dir/moe.yaml" "$dir/moe.gguf" -o "$dir/moe.gguf"
expect 64 "it has host 1024 4, host 4096 4, 2GiB 1024 4," "${emit[@]}" --budget 3GiB llama.cpp "$dir/8b.yaml" "$dir/8b.gguf"
expect 64 "none of this" "${emit[@]}" --context 5000 llama.cpp "$dir/8b.yaml" "$dir/8b.gguf"
expect 64 "none of this" "${emit[@]}" --threads 3 llama.cpp "$dir/8b.yaml" "$dir/8b.gguf"
expect 1 "$dir/8b.yaml" "${emit[@]}" llama.cpp "$dir/8b.yaml" "$dir/moe.gguf"
expect 66 "$dir/no.gguf" "${emit[@]}" llama.cpp "$dir/8b.yaml" "$dir/no.gguf"
sed 's/vram_base_bytes: .*/vram_base_bytes: 9000000000/' "$dir/moe.yaml" >"$dir/unsafe.yaml"
expect 65 "$dir/unsafe.yaml" "${emit[@]}" llama.cpp "$dir/unsafe.yaml" "$dir/moe.gguf"

# Pages: whole tags, drawings that are XML, nothing from elsewhere; predicted, simulated and measured.
page() {
  python3 - "$1" <<'P' || fail "page $1"
import html.parser, re, sys, xml.etree.ElementTree
text = open(sys.argv[1], encoding="utf-8").read()
assert len(text) < 1000000, len(text)
class Parser(html.parser.HTMLParser):
    open_tags = []
    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "img", "link", "iframe", "object", "image", "use", "foreignobject"), tag
        assert all(not k.startswith("on") and k not in ("href", "src", "xlink:href") for k, v in attrs), attrs
        if tag not in ("meta", "td", "th", "tr"):
            self.open_tags.append(tag)
    def handle_startendtag(self, tag, attrs):
        assert tag in ("path", "rect"), tag
    def handle_endtag(self, tag):
        if tag != "tr":
            assert self.open_tags.pop() == tag, tag
parser = Parser()
parser.feed(text)
parser.close()
assert not parser.open_tags, parser.open_tags
drawings = re.findall(r"<svg.*?</svg>", text, re.S)
assert len(drawings) >= 3, len(drawings)
for d in drawings:
    xml.etree.ElementTree.fromstring(d)
P
}
must "${emit[@]}" html --budget host "$dir/8b.yaml" -o "$dir/host.html"
must "${emit[@]}" html --budget 4GiB "$dir/8b.yaml" -o "$dir/large.html"
grep -q '<h2>VRAM</h2>' "$dir/large.html" && ! grep -q '<h2>VRAM</h2>' "$dir/host.html" || fail "the map of VRAM"
! grep -q 'in VRAM\|class="k p[0124]"' "$dir/host.html" && grep -q 'in VRAM' "$dir/large.html" || fail "VRAM of a level that has none"
grep -q '<bdi>.*[a-zA-Z].*</bdi>\.' "$dir/large.html" || fail "the machine is not named"
page "$dir/host.html"
page "$dir/large.html"
for b in host 4GiB; do # of all the plan's levels, that of the page is in bold
  [ "$(grep -cE '^<tr( class="b")?><td>(host|2GiB|4GiB)<td>(1024|4096)<td>1<td>4<td>' "$dir/${b/4GiB/large}.html")" -eq 6 ] &&
    grep -q "^<tr class=\"b\"><td>$b<td>4096<td>" "$dir/${b/4GiB/large}.html" || fail "levels of $b's page"
done
"${emit[@]}" html --budget 4GiB "$dir/8b.yaml" | cmp -s - "$dir/large.html" || fail "html: standard output differs"
must "${plan[@]}" --budget 4GiB --context 1024 --trace "$dir/s.json" -o "$dir/s.yaml" "$dir/8b.gguf"
must "${emit[@]}" html "$dir/s.yaml" --trace "$dir/s.json" -o "$dir/s.html"
grep -q 'simulated trace' "$dir/s.html" || fail "no simulated trace"
page "$dir/s.html"
must "$bin/psrun" --device emulated --plan "$dir/moe.yaml" --budget 760MiB --raw -m Hello -n 4 --trace "$dir/m.json" "$dir/moe.gguf"
must "${emit[@]}" html "$dir/moe.yaml" --trace "$dir/m.json" -o "$dir/m.html"
grep -q '>gpu measured<' "$dir/m.html" && grep -q 'predicted / measured' "$dir/m.html" || fail "no measured lanes"
page "$dir/m.html"

# Timelines: a named lane for each queue, in order, nothing before the start, negative or above another of its lane; steps hold their
# instructions; every instruction of the trace is there.
timeline() {
  must "${emit[@]}" timeline "$1" -o "$dir/tl.json"
  python3 - "$dir/tl.json" "$1" <<'P' || fail "timeline of $1"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
steps = json.load(open(sys.argv[2]))["steps"]
names, lanes = {}, {}
for e in events:
    if e["ph"] == "M":
        if e["name"] == "thread_name":
            assert (e["pid"], e["tid"]) not in names, e
            names[e["pid"], e["tid"]] = e["args"]["name"]
        continue
    assert e["ph"] == "X" and e["ts"] >= 0 and e["dur"] >= 0, e
    lanes.setdefault((e["pid"], e["tid"]), []).append(e)
assert {"step", "cpu", "gpu", "h2d", "d2h"} <= {n for (pid, _), n in names.items() if pid == 1}, names
assert all(n.split()[0] == "cpu" for n in names.values() if " " in n), names  # further lanes where threads go on one by one
assert set(lanes) <= set(names), (set(lanes), names)
slack = 0.0015  # of rounding to nanoseconds
for lane, of in lanes.items():
    assert lane[1] == 0 or {e["cat"] for e in of} == {names[lane].split()[0]}, lane
    for a, b in zip(of, of[1:]):
        assert b["ts"] >= a["ts"] + a["dur"] - slack, (lane, a, b)
for pid in {p for p, _ in lanes}:
    whole = [e for (p, tid), of in lanes.items() if p == pid and tid for e in of]
    assert len(whole) == sum(len(s["rows"]) for s in steps), (pid, len(whole))
    if pid == 1:
        bounds = [(e["ts"], e["ts"] + e["dur"]) for e in lanes[pid, 0]]
        assert all(any(a - slack <= e["ts"] and e["ts"] + e["dur"] <= b + slack for a, b in bounds) for e in whole), pid
P
}
timeline "$dir/s.json"
timeline "$dir/m.json"
must "$bin/psplan" --profile "$dir/profile.yaml" --threads 2 --context 512 -o "$dir/host.yaml" "$dir/moe.gguf"
must "$bin/psrun" --device none --plan "$dir/host.yaml" --raw -m Hello -n 3 --trace "$dir/h.json" "$dir/moe.gguf"
timeline "$dir/h.json"
expect 1 "trace" "${emit[@]}" html "$dir/8b.yaml" --trace "$dir/m.json"
expect 64 "--trace" "${emit[@]}" yaml "$dir/8b.yaml" --trace "$dir/m.json"
expect 64 "is an input" "${emit[@]}" html "$dir/moe.yaml" --trace "$dir/m.json" -o "$dir/m.json"
expect 64 "one file" "${emit[@]}" html "$dir/8b.yaml" "$dir/8b.gguf"
expect 65 "$dir/moe.gguf" "${emit[@]}" html "$dir/moe.gguf"

[ "$failures" -eq 0 ] && echo "emit: all as expected"
exit $((failures != 0))
