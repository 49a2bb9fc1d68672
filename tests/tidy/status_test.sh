#!/bin/sh
# Properties: docs/status.md is what scripts/status makes of docs/status.json; every row has all
# fields, a verdict of the known ones and a run with a machine, and what nobody measured says so.
# Method: the page is made again and compared; data with one mistake each must be refused, by a
# sentence that names it.
root=${top_srcdir:-.}
cd "$root" || exit 1
command -v python3 >/dev/null 2>&1 || { echo "SKIP: no python3"; exit 77; }
[ -d perf/results ] || { echo "SKIP: the results are not part of a released archive"; exit 77; }
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
status=0
scripts/status >"$dir/page" || status=1
cmp -s "$dir/page" docs/status.md || {
    echo "docs/status.md is not made of docs/status.json; run: scripts/status >docs/status.md"
    diff docs/status.md "$dir/page" | head -20
    status=1
}
scripts/status perf/results/status-earlier.json >/dev/null || status=1

# refused SENTENCE EXPRESSION: EXPRESSION spoils the data d.
refused() {
    python3 -c 'import json, sys
d = json.load(open("docs/status.json"))
exec(sys.argv[1])
print(json.dumps(d))' "$2" >"$dir/bad"
    if scripts/status "$dir/bad" >"$dir/page" 2>"$dir/said"; then
        echo "accepted: $2"
        status=1
    elif ! grep -qF "$1" "$dir/said" || [ -s "$dir/page" ]; then
        echo "$2: expected no page and \"$1\", got: $(cat "$dir/said")"
        status=1
    fi
}
refused 'does not have the fields' 'del d["rows"][0]["target"]'
refused 'does not have the fields' 'd["rows"][0]["value"] = ""'
refused 'does not have the fields' 'd["runs"][0]["machine"] = None'
refused 'ends a table' 'd["rows"][0]["claim"] = "a | b"'
refused 'good is not one of' 'd["rows"][0]["verdict"] = "good"'
refused 'no run is called x' 'd["rows"][0]["run"] = "x"'
refused 'no machine is called x' 'd["runs"][0]["machine"] = "x"'
refused 'is not a date' 'd["runs"][0]["date"] = "yesterday"'
refused 'no row names it' 'd["runs"].append(dict(d["runs"][0], name="x"))'
refused 'open is what has no date' 'd["rows"][0]["verdict"] = "open"'
refused 'has no target' 'd["rows"][0]["target"] = "-"'
refused 'more than a line' 'd["rows"][0]["value"] = 200 * "x"'
refused 'there is no perf/results/x' 'd["runs"][0]["results"] = "x"'
exit $status
